use serde_json::json;

use crate::support::{Act, Gateway, Tool, until};

/// Behaviours of a tool that leave the outcome unknown, each with the reason in the ledger.
fn ambiguities() -> Vec<(&'static str, Act, &'static str)> {
    vec![
        (
            "dropped",
            Act::ExecuteThenDrop,
            "the request was sent and not answered",
        ),
        (
            "reset",
            Act::ExecuteThenReset,
            "the request was sent and not answered",
        ),
        (
            "garbage",
            Act::ExecuteThenSay(b"what?\r\n\r\n"),
            "the request was sent and not answered",
        ),
        (
            "half a head",
            Act::ExecuteThenSay(b"HTTP/1.1 200 O"),
            "the request was sent and not answered",
        ),
        (
            "only 100",
            Act::ExecuteThenSay(b"HTTP/1.1 100 Continue\r\n\r\n"),
            "the request was sent and not answered",
        ),
        ("silence", Act::Hang, "no answer within 200 ms"),
        ("500", Act::ExecuteThenAnswer(500), "the tool answered 500"),
        ("502", Act::ExecuteThenAnswer(502), "the tool answered 502"),
        ("503", Act::ExecuteThenAnswer(503), "the tool answered 503"),
        ("504", Act::ExecuteThenAnswer(504), "the tool answered 504"),
        ("408", Act::ExecuteThenAnswer(408), "the tool answered 408"),
        (
            "307",
            Act::ExecuteThenAnswer(307),
            "redirects are never followed",
        ),
        ("418", Act::ExecuteThenAnswer(418), "the tool answered 418"),
        ("half a 500", Act::HalfBody(500), "the tool answered 500"),
        (
            "dropped before executing",
            Act::Drop,
            "the request was sent and not answered",
        ),
    ]
}

#[tokio::test]
async fn an_ambiguous_outcome_is_said_held_and_explained() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "timeout = \"200ms\"\ndeadline = \"600ms\"").await;
    for (name, act, evidence) in ambiguities() {
        tool.then(act);
        let before = tool.requests();
        let answer = gateway
            .call(json!({ "case": name }))
            .await
            .expect_problem("outcome-unknown");
        assert_eq!(
            answer.status, 409,
            "{name}: never a status that a client library repeats by itself"
        );
        assert_eq!(
            (answer.at("/effect"), answer.at("/key_action")),
            ("unknown".into(), "wait".into()),
            "{name}"
        );
        assert_eq!(answer.header("gateway-outcome"), "unknown");
        let duplicate = gateway
            .call(json!({ "case": name }))
            .await
            .expect_problem("outcome-unknown");
        assert_eq!(duplicate.at("/call_id"), answer.at("/call_id"), "{name}");
        assert_eq!(
            tool.requests() - before,
            1,
            "{name}: sent once, and never again"
        );
        let record = gateway.record(&answer).await;
        assert_eq!(record.at("/state"), "unknown", "{name}");
        assert_eq!(record.at("/events/1/outcome"), "unknown", "{name}");
        let detail = record.at("/events/1/detail");
        assert!(
            detail.as_str().is_some_and(|text| text.contains(evidence)),
            "{name}: {detail}"
        );
        assert_eq!(
            record.at("/expires_at"),
            serde_json::Value::Null,
            "{name}: no time frees the key"
        );
    }
    let unknown = ambiguities().len() as f64;
    assert_eq!(
        gateway.metric("oncegate_unknown_calls{tool=\"act\"}").await,
        unknown
    );
    assert_eq!(
        gateway
            .metric("oncegate_attempts_total{outcome=\"unknown\",tool=\"act\"}")
            .await,
        unknown
    );
    assert_eq!(
        gateway
            .metric("oncegate_first_arrival_failures_total{reason=\"unknown\",tool=\"act\"}")
            .await,
        unknown
    );
    let gateway = gateway.restart().await;
    for (name, ..) in ambiguities() {
        gateway
            .call(json!({ "case": name }))
            .await
            .expect_problem("outcome-unknown");
    }
    assert_eq!(
        tool.requests(),
        ambiguities().len(),
        "not after a restart either"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_that_comes_late_settles_the_call() {
    let tool = Tool::start().await;
    tool.then(Act::after_ms(500, Act::Numbered))
        .then(Act::after_ms(500, Act::Answer(422, "", b"{\"no\":1}")));
    let gateway = Gateway::with_tool(&tool, "timeout = \"150ms\"\ndeadline = \"450ms\"").await;
    for (case, expected) in [("executed", "succeeded"), ("rejected", "failed")] {
        let answer = gateway
            .call(json!({ "case": case }))
            .await
            .expect_problem("outcome-unknown");
        until("the late answer is in", async || {
            gateway.record(&answer).await.at("/state") == expected
        })
        .await;
        let record = gateway.record(&answer).await;
        assert_eq!(record.at("/events/2/event"), "ended_late");
        assert_eq!(
            record.at("/events/2/attempt_id"),
            record.at("/events/0/attempt_id")
        );
    }
    let replay = gateway
        .call(json!({ "case": "executed" }))
        .await
        .expect_ok();
    assert_eq!(
        (replay.result(), tool.effects()),
        ("{ \"effect\": 0.0 }".to_owned(), 1)
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_success_whose_body_is_lost_is_done_and_not_repeated() {
    let tool = Tool::start().await;
    let config = format!(
        "[server]\nmax_result = \"1KiB\"\n[tools.act]\nurl = \"{}\"\ntimeout = \"100ms\"\ndeadline = \"300ms\"\n",
        tool.url()
    );
    let gateway = Gateway::start(&config).await;
    let long: &'static [u8] = vec![b'1'; 2_000].leak();
    let slow: &'static [u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"slow\"";
    for (name, act) in [
        ("cut", Act::HalfBody(200)),
        ("too large", Act::Answer(201, "", long)),
        ("endless", Act::ExecuteThenDrip(slow)),
    ] {
        tool.then(act);
        let answer = gateway
            .call(json!({ "case": name }))
            .await
            .expect_problem("result-unavailable");
        assert_eq!(
            (answer.status, answer.header("gateway-outcome")),
            (502, "executed"),
            "{name}"
        );
        assert_eq!(
            (answer.at("/effect"), answer.at("/key_action")),
            ("done".into(), "stop".into()),
            "{name}"
        );
        let duplicate = gateway
            .call(json!({ "case": name }))
            .await
            .expect_problem("result-unavailable");
        assert_eq!(duplicate.at("/call_id"), answer.at("/call_id"));
        assert_eq!(gateway.record(&answer).await.at("/state"), "succeeded");
    }
    assert_eq!(tool.requests(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn a_success_test_that_cannot_be_made_proves_nothing() {
    let tool = Tool::start().await;
    let test = "success = { pointer = \"/ok\", equals = true, otherwise = \"rejected\" }";
    let gateway = Gateway::with_tool(&tool, test).await;
    for (name, act) in [
        ("cut", Act::HalfBody(200)),
        ("empty", Act::Answer(204, "", b"")),
        ("no JSON", Act::Ok("<p>")),
    ] {
        tool.then(act);
        for _ in 0..2 {
            gateway
                .call(json!({ "case": name }))
                .await
                .expect_problem("outcome-unknown");
        }
    }
    assert_eq!(tool.requests(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn a_read_without_an_answer_has_failed_and_may_be_read_again() {
    let tool = Tool::start().await;
    tool.then(Act::Drop)
        .then(Act::Answer(500, "", b"{}"))
        .then(Act::Numbered);
    let gateway = Gateway::with_tool(
        &tool,
        "effect = \"read\"\nretry = { attempts = 2, base = \"1ms\" }",
    )
    .await;
    let answer = gateway
        .call(json!({}))
        .await
        .expect_problem("tool-unavailable");
    assert_eq!((answer.at("/effect"), tool.requests()), ("none".into(), 2));
    gateway.call(json!({})).await.expect_ok();
    assert_eq!(
        gateway.metric("oncegate_unknown_calls{tool=\"act\"}").await,
        0.0
    );
    gateway.stop().await;
}

#[tokio::test]
async fn nothing_is_retried_that_may_have_been_executed() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenAnswer(503));
    let gateway = Gateway::with_tool(&tool, "retry = { attempts = 3, base = \"1ms\" }").await;
    gateway
        .call(json!({}))
        .await
        .expect_problem("outcome-unknown");
    // The gateway stops when no call has work left.
    gateway.stop().await;
    assert_eq!(tool.requests(), 1);
}
