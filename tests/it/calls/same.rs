use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Act, Answer, Gateway, Tool, until};

#[tokio::test]
async fn the_same_call_sent_twice_runs_once() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Gateway::with_tool(&tool, "").await;

    let first = gateway.call(json!({ "sku": "widget" })).await.expect_ok();
    let second = gateway.call(json!({ "sku": "widget" })).await.expect_ok();

    assert_eq!(tool.effects(), 1);
    assert_eq!(
        (first.at("/replayed"), second.at("/replayed")),
        (false.into(), true.into())
    );
    assert_eq!(
        first.result(),
        "{ \"effect\": 0.0 }",
        "the tool's own bytes"
    );
    assert_eq!(first.result(), second.result());
    gateway.stop().await;
}

#[tokio::test]
async fn a_replay_differs_from_the_first_answer_only_in_saying_so() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Gateway::with_tool(&tool, "").await;
    let first = gateway
        .call_with_key("k-1", json!({ "a": 1 }))
        .await
        .expect_ok();
    let gateway = gateway.restart().await;
    let replay = gateway
        .call_with_key("k-1", json!({ "a": 1 }))
        .await
        .expect_ok();

    for member in [
        "call_id",
        "status",
        "result",
        "latency_ms",
        "fencing",
        "idempotency_key",
    ] {
        assert_eq!(
            first.at(&format!("/{member}")),
            replay.at(&format!("/{member}")),
            "{member}"
        );
    }
    assert_eq!(first.at("/age_ms"), Value::Null);
    assert!(replay.at("/age_ms").is_u64());
    for (header, of_first, of_replay) in [
        ("idempotent-replayed", "false", "true"),
        ("gateway-outcome", "executed", "replayed"),
        ("idempotency-key", "k-1", "k-1"),
        ("x-call-id", &first.id(), &replay.id()),
    ] {
        assert_eq!(
            (first.header(header), replay.header(header)),
            (of_first, of_replay),
            "{header}"
        );
    }
    assert_eq!(
        first.header("fencing-token"),
        first.at("/fencing").to_string()
    );
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_concurrent_identical_calls_have_one_effect_and_one_answer() {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(5_000, Act::Numbered));
    let gateway = std::sync::Arc::new(Gateway::with_tool(&tool, "").await);
    let mut callers = JoinSet::new();
    for _ in 0..500 {
        let gateway = gateway.clone();
        callers.spawn(async move { gateway.call(json!({ "sku": "widget" })).await.expect_ok() });
    }
    let answers: Vec<Answer> = callers.join_all().await;
    assert_eq!(tool.effects(), 1);
    assert_eq!(tool.requests(), 1);
    let same = |answer: &Answer| {
        (
            answer.result(),
            answer.at("/call_id"),
            answer.at("/latency_ms"),
            answer.at("/fencing"),
        )
    };
    assert!(
        answers
            .iter()
            .all(|answer| same(answer) == same(&answers[0]))
    );
    let firsts = answers
        .iter()
        .filter(|answer| answer.at("/replayed") == false)
        .count();
    assert_eq!(firsts, 1, "one ran it, the others joined");
    assert_eq!(
        gateway
            .metric("oncegate_arrivals_total{kind=\"first\",tool=\"act\"}")
            .await,
        1.0
    );
    assert_eq!(
        gateway
            .metric("oncegate_arrivals_total{kind=\"joined\",tool=\"act\"}")
            .await,
        499.0
    );
}

#[tokio::test]
async fn a_key_with_other_arguments_is_refused_also_while_its_call_runs() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Ok("{\"secret\":1}"));
    tool.then(held);
    let gateway = Gateway::with_tool(&tool, "").await;
    let running = gateway.call_with_key("k", json!({ "amount": 1 }));
    let other = async {
        until("the tool was asked", async || tool.requests() == 1).await;
        let other = gateway.call_with_key("k", json!({ "amount": 2 })).await;
        drop(hold);
        other
    };
    let (first, other) = tokio::join!(running, other);
    let later = gateway.call_with_key("k", json!({ "amount": 2 })).await;
    let first = first.expect_ok();
    for refused in [other, later] {
        let refused = refused.expect_problem("key-reused");
        assert_eq!(
            (refused.status, refused.at("/key_action")),
            (422, "rotate".into())
        );
        assert!(
            !refused.text.contains("secret"),
            "no byte of the stored call is shown"
        );
        assert_eq!(
            refused.at("/call_id"),
            first.at("/call_id"),
            "the call that it met"
        );
    }
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_caller_that_hangs_up_stops_nothing() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Gateway::with_tool(&tool, "").await;
    tokio::select! {
        _ = gateway.call(json!({})) => unreachable!("it is held"),
        () = until("the tool has it", async || tool.requests() == 1) => {}
    }
    drop(hold);
    until("the call completes", async || tool.effects() == 1).await;
    let duplicate = gateway.call(json!({})).await.expect_ok();
    assert_eq!(
        (tool.requests(), duplicate.at("/replayed")),
        (1, true.into())
    );
    assert_eq!(
        gateway
            .metric("oncegate_arrivals_total{kind=\"first\",tool=\"act\"}")
            .await,
        1.0
    );
    gateway.stop().await;
}

#[tokio::test]
async fn respond_async_names_the_place_where_the_result_will_be() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Ok("{\"n\":1}"));
    tool.then(held);
    let gateway = Gateway::with_tool(&tool, "").await;
    let body = json!({ "args": {} });
    let accepted = gateway
        .post("act", &body, &[("prefer", "respond-async")])
        .await;
    assert_eq!(
        (accepted.status, accepted.at("/status")),
        (202, "running".into())
    );
    let place = format!("/v1/calls/{}", accepted.id());
    assert_eq!(accepted.header("location"), format!("{place}/answer"));
    assert_eq!(
        gateway.get(&place).await.expect_ok().at("/state"),
        "running"
    );
    drop(hold);
    until("it has succeeded", async || {
        gateway.get(&place).await.at("/state") == "succeeded"
    })
    .await;
    assert_eq!(gateway.get(&place).await.at("/result"), json!({ "n": 1 }));
    gateway
        .post("act", &body, &[("prefer", "respond-async")])
        .await
        .expect_ok();
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_duplicate_waits_as_long_as_it_prefers_and_then_hears_that_the_call_runs() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Gateway::with_tool(&tool, "").await;
    let body = json!({ "args": {} });
    let first = gateway
        .post("act", &body, &[("prefer", "wait=0")])
        .await
        .expect_problem("call-in-progress");
    assert_eq!((first.status, first.header("retry-after")), (409, "1"));
    assert!(
        first.at("/call_id").is_string(),
        "there is a call to ask for"
    );
    assert_eq!(first.at("/retry_after_ms"), 1000);
    let second = gateway
        .post("act", &body, &[("prefer", "wait=0")])
        .await
        .expect_problem("call-in-progress");
    assert_eq!(
        (second.at("/effect"), second.at("/key_action")),
        ("unknown".into(), "reuse".into())
    );
    assert_eq!(second.at("/call_id"), first.at("/call_id"));
    drop(hold);
    let third = gateway.post("act", &body, &[]).await.expect_ok();
    assert_eq!((third.at("/replayed"), tool.requests()), (true.into(), 1));
    gateway.stop().await;
}

#[tokio::test]
async fn a_duplicate_without_preference_waits_for_join_wait() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let config = format!(
        "[server]\njoin_wait = \"50ms\"\n[tools.act]\nurl = \"{}\"\n",
        tool.url()
    );
    let gateway = Gateway::start(&config).await;
    let first = gateway.call(json!({}));
    let duplicate = async {
        until("the tool was asked", async || tool.requests() == 1).await;
        let told = gateway.call(json!({})).await;
        drop(hold);
        told
    };
    let (first, duplicate) = tokio::join!(first, duplicate);
    first.expect_ok();
    duplicate.expect_problem("call-in-progress");
    gateway.stop().await;
}

#[tokio::test]
async fn running_and_waiting_requests_are_bounded() {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(500, Act::Numbered));
    let bounds = "[server]\nmax_running = 1\nmax_waiting = 1\n";
    let config = format!("{bounds}[tools.act]\nurl = \"{}\"\n", tool.url());
    let gateway = Gateway::start(&config).await;
    let joins = async || {
        until("the tool was asked", async || tool.requests() == 1).await;
        gateway.call(json!({ "n": 1 })).await
    };
    let other = async {
        until("the tool was asked", async || tool.requests() == 1).await;
        gateway.call(json!({ "n": 2 })).await
    };
    let (first, one, two, other) =
        tokio::join!(gateway.call(json!({ "n": 1 })), joins(), joins(), other);
    first.expect_ok();
    let mut duplicates = [one.problem(), two.problem()];
    duplicates.sort();
    assert_eq!(
        duplicates,
        ["", "call-in-progress"],
        "one joined, the other was told at once"
    );
    let other = other.expect_problem("rate-limited");
    assert_eq!(
        (
            other.status,
            other.at("/effect"),
            other.header("retry-after")
        ),
        (429, "none".into(), "1")
    );
    gateway.call(json!({ "n": 2 })).await.expect_ok();

    // Without a place to run, the gateway still replays a finished call.
    tool.then(Act::after_ms(500, Act::Numbered));
    let requests = tool.requests();
    let replay = async {
        until("the tool was asked", async || tool.requests() > requests).await;
        gateway.call(json!({ "n": 1 })).await
    };
    let (running, replay) = tokio::join!(gateway.call(json!({ "n": 3 })), replay);
    running.expect_ok();
    assert_eq!(replay.expect_ok().at("/replayed"), true);
    gateway.stop().await;
}

#[tokio::test]
async fn a_forgotten_key_runs_anew_unless_the_runtime_brought_it() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let window = "timeout = \"50ms\"\ndeadline = \"200ms\"\ndedup_window = \"200ms\"";
    let gateway = Gateway::with_tool(&tool, window).await;
    let first = gateway.call(json!({})).await.expect_ok();
    gateway.call_with_key("k", json!({})).await.expect_ok();
    assert_eq!(
        gateway.call(json!({})).await.expect_ok().at("/call_id"),
        first.at("/call_id")
    );
    until("the derived key is forgotten", async || {
        gateway.call(json!({})).await.expect_ok().at("/call_id") != first.at("/call_id")
    })
    .await;
    until("the caller's own key is too old", async || {
        gateway.call_with_key("k", json!({})).await.status == 410
    })
    .await;
    let expired = gateway
        .call_with_key("k", json!({}))
        .await
        .expect_problem("key-expired");
    assert_eq!(
        (expired.status, expired.at("/key_action")),
        (410, "stop".into()),
        "it may be a repetition"
    );
    assert_eq!(expired.at("/call_id"), Value::Null);
    let other = gateway
        .call_with_key("k", json!({ "n": 2 }))
        .await
        .expect_problem("key-expired");
    assert_eq!(
        (other.status, other.at("/key_action")),
        (410, "rotate".into()),
        "it is another intent"
    );
    assert_eq!(
        gateway.record(&first).await.at("/state"),
        "succeeded",
        "the ledger remembers longer"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_read_is_executed_each_time_and_gets_no_token() {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(100, Act::Numbered));
    let gateway = Gateway::with_tool(&tool, "effect = \"read\"").await;
    let (one, two) = tokio::join!(gateway.call(json!({})), gateway.call(json!({})));
    assert_ne!(one.expect_ok().result(), two.expect_ok().result());
    let later = gateway.call(json!({})).await.expect_ok();
    assert_eq!((tool.requests(), later.at("/replayed")), (3, false.into()));
    assert_eq!(later.at("/fencing"), Value::Null, "a read gets no token");
    let one = gateway.call_with_key("k", json!({})).await.expect_ok();
    let two = gateway.call_with_key("k", json!({})).await.expect_ok();
    assert_ne!(one.result(), two.result());
    gateway.stop().await;
}

#[tokio::test]
async fn the_ledger_tells_the_whole_story() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let body = r#"{ "args": { "z": 1.0, "a":2 }, "user_id": "U1", "session_id": "S-1" }"#;
    let traceparent = format!("00-{trace}-00f067aa0ba902b7-01");
    let answer = gateway
        .post_text("act", body.to_owned(), &[("traceparent", &traceparent)])
        .await;
    let record = gateway.record(&answer.expect_ok()).await;
    for (pointer, value) in [
        ("/tool", json!("act")),
        ("/tenant", json!("default")),
        ("/key_source", json!("derived")),
        ("/state", json!("succeeded")),
        ("/user_id", json!("U1")),
        ("/session_id", json!("S-1")),
        ("/trace_id", json!(trace)),
        ("/args", json!({ "z": 1.0, "a": 2 })),
        ("/result", json!({ "ok": true })),
        ("/error", Value::Null),
        ("/attempts", json!(1)),
        ("/events/0/event", json!("claimed")),
        ("/events/1/event", json!("ended")),
        ("/events/1/outcome", json!("executed")),
        (
            "/events/1/detail",
            json!("the tool answered 200 with 11 bytes"),
        ),
    ] {
        assert_eq!(record.at(pointer), value, "{pointer}");
    }
    let seen = &tool.seen()[0];
    assert_eq!(
        record.at("/events/0/attempt_id"),
        record.at("/events/1/attempt_id")
    );
    assert_eq!(seen.header("x-call-id"), record.id());
    assert_eq!(
        seen.header("fencing-token"),
        record.at("/fencing").to_string()
    );
    assert_eq!(seen.header("x-session-id"), "S-1");
    assert!(
        seen.header("traceparent")
            .starts_with(&format!("00-{trace}-"))
    );
    assert_eq!(
        seen.body, r#"{ "z": 1.0, "a":2 }"#,
        "the caller's own bytes"
    );
    let time = record.at("/created_at");
    let time = time.as_str().expect("a time");
    assert!(
        time.len() == 24 && time.ends_with('Z'),
        "RFC 3339 in UTC with milliseconds: {time}"
    );
    gateway
        .get("/v1/calls/01a1fd12-5b4c-7535-93a3-eb953d3bb88d")
        .await
        .expect_problem("unknown-call");
    gateway
        .get("/v1/calls/nonsense")
        .await
        .expect_problem("unknown-call");
    gateway.stop().await;
}
