use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::binary::free_port;
use crate::support::{Act, Gateway, Tool};

#[tokio::test]
async fn a_rejection_is_shown_and_the_same_call_may_run_again() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(402, "", b"{\"error\":\"card declined\"}"))
        .then(Act::Numbered);
    let gateway = Gateway::with_tool(&tool, "").await;
    let rejected = gateway
        .call_with_key("k", json!({}))
        .await
        .expect_problem("tool-rejected");
    assert_eq!(
        (rejected.status, rejected.header("gateway-outcome")),
        (422, "not-executed")
    );
    assert_eq!(
        (rejected.at("/tool_status"), rejected.at("/tool_body/error")),
        (402.into(), "card declined".into())
    );
    let record = gateway.record(&rejected).await;
    assert_eq!(
        (record.at("/state"), record.at("/error/tool_status")),
        ("failed".into(), 402.into())
    );
    let again = gateway.call_with_key("k", json!({})).await.expect_ok();
    assert_eq!(
        (again.at("/call_id"), again.at("/replayed")),
        (rejected.at("/call_id"), false.into())
    );
    assert!(
        again.at("/fencing").as_u64() > record.at("/fencing").as_u64(),
        "a new run, a new token"
    );
    let record = gateway.record(&again).await;
    assert_eq!(
        (record.at("/attempts"), record.at("/events/2/event")),
        (2.into(), "run_again".into())
    );
    assert_eq!(
        gateway
            .metric("oncegate_arrivals_total{kind=\"first\",tool=\"act\"}")
            .await,
        2.0
    );
    gateway.stop().await;
}

#[tokio::test]
async fn no_tool_sends_a_caller_away_for_longer_than_a_call_may_take() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "retry = { attempts = 1 }\nunknown = \"hold\"").await;
    for (index, wait) in [
        "18446744073709551615",
        "31536000",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "7",
    ]
    .iter()
    .enumerate()
    {
        let header: &'static str = format!("retry-after: {wait}\r\n").leak();
        tool.then(Act::Answer(429, header, b"{}"));
        let answer = gateway
            .call(json!({ "n": index }))
            .await
            .expect_problem("tool-unavailable");
        let told = if *wait == "7" { 7 } else { 30 };
        assert_eq!(
            (answer.at("/retry_after_ms"), answer.header("retry-after")),
            ((told * 1_000).into(), told.to_string().as_str()),
            "{wait}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_remembered_rejection_is_replayed_like_a_result() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(409, "", b"taken"));
    let gateway = Gateway::with_tool(&tool, "remember_rejections = true").await;
    for replayed in ["false", "true"] {
        let rejected = gateway
            .call(json!({}))
            .await
            .expect_problem("tool-rejected");
        assert_eq!(rejected.at("/tool_body"), json!({ "text": "taken" }));
        assert_eq!(rejected.header("idempotent-replayed"), replayed);
    }
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_was_surely_not_executed_is_retried_within_the_deadline() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(429, "", b"{}"))
        .then(Act::Answer(425, "", b"{}"))
        .then(Act::Numbered);
    let gateway = Gateway::with_tool(
        &tool,
        "dedup = \"key\"\nretry = { attempts = 3, base = \"5ms\" }",
    )
    .await;
    let answer = gateway.call(json!({})).await.expect_ok();
    assert_eq!((tool.requests(), tool.effects()), (3, 1));
    let record = gateway.record(&answer).await;
    assert_eq!(record.at("/attempts"), 3);
    let events: Vec<Value> = (0..4)
        .map(|index| record.at(&format!("/events/{index}/event")))
        .collect();
    assert_eq!(events, ["claimed", "retried", "retried", "ended"]);
    let keys: Vec<String> = tool
        .seen()
        .iter()
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    assert!(
        keys.iter().all(|key| key.len() == 32 && *key == keys[0]),
        "one key for every attempt"
    );
    assert_ne!(
        record.at("/events/0/attempt_id"),
        record.at("/events/3/attempt_id")
    );
    gateway.stop().await;
}

#[tokio::test]
async fn the_tools_retry_after_reaches_the_caller() {
    let tool = Tool::start().await;
    tool.always(Act::Answer(429, "retry-after: 77\r\n", b"{}"));
    let gateway = Gateway::with_tool(&tool, "timeout = \"1s\"\ndeadline = \"77s\"").await;
    let answer = gateway
        .call(json!({}))
        .await
        .expect_problem("tool-unavailable");
    assert_eq!((answer.status, answer.header("retry-after")), (502, "77"));
    assert_eq!(
        (answer.at("/retry_after_ms"), answer.at("/effect")),
        (77_000.into(), "none".into())
    );
    assert_eq!(tool.requests(), 1, "77 s do not fit into the deadline");
    gateway.stop().await;
}

#[tokio::test]
async fn an_unreachable_tool_has_surely_done_nothing() {
    let port = free_port();
    let config = format!(
        "[tools.act]\nurl = \"http://127.0.0.1:{port}/\"\nretry = {{ attempts = 2, base = \"1ms\" }}\n"
    );
    let gateway = Gateway::start(&config).await;
    let answer = gateway
        .call(json!({}))
        .await
        .expect_problem("tool-unreachable");
    assert_eq!(
        (
            answer.status,
            answer.at("/effect"),
            answer.at("/key_action")
        ),
        (502, "none".into(), "reuse".into())
    );
    let record = gateway.record(&answer).await;
    assert_eq!(
        (record.at("/state"), record.at("/attempts")),
        ("failed".into(), 2.into())
    );
    assert!(
        record
            .at("/events/1/detail")
            .as_str()
            .is_some_and(|text| text.starts_with("nothing was sent"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_name_that_does_not_resolve_and_a_handshake_that_fails_are_not_executed() {
    // A listener that speaks no TLS, and ignores the bytes that it gets.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream);
        }
    });
    let urls = [
        format!("https://127.0.0.1:{port}/"),
        "http://no-such-host.invalid/".to_owned(),
    ];
    for url in urls {
        let config = format!("[tools.act]\nurl = \"{url}\"\nretry = {{ attempts = 1 }}\n");
        let gateway = Gateway::start(&config).await;
        gateway
            .call(json!({}))
            .await
            .expect_problem("tool-unreachable");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn declared_statuses_hold_for_their_tool() {
    let tool = Tool::start().await;
    let declared = "retry = { attempts = 1 }\noutcomes = { 503 = \"not_executed\", 404 = \"unknown\", 500 = \"executed\" }";
    let gateway = Gateway::with_tool(&tool, declared).await;
    tool.then(Act::Answer(503, "", b"{}"))
        .then(Act::Answer(404, "", b"{}"))
        .then(Act::ExecuteThenAnswer(500));
    gateway
        .call(json!({ "n": 1 }))
        .await
        .expect_problem("tool-unavailable");
    gateway
        .call(json!({ "n": 2 }))
        .await
        .expect_problem("outcome-unknown");
    gateway.call(json!({ "n": 3 })).await.expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn a_success_test_looks_into_the_body() {
    let tool = Tool::start().await;
    let test = "success = { pointer = \"/status\", equals = \"ok\", otherwise = \"rejected\" }";
    let gateway = Gateway::with_tool(&tool, test).await;
    tool.then(Act::Ok("{\"status\":\"failed\"}"))
        .then(Act::Ok("{\"status\":\"ok\"}"));
    gateway
        .call(json!({}))
        .await
        .expect_problem("tool-rejected");
    gateway.call(json!({})).await.expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn results_that_are_no_json_are_wrapped() {
    let tool = Tool::start().await;
    tool.then(Act::Ok("thank you"))
        .then(Act::Answer(200, "", b"\xff\x00"))
        .then(Act::Answer(204, "", b""));
    let gateway = Gateway::with_tool(&tool, "").await;
    for (n, result) in [
        r#"{"text":"thank you"}"#,
        r#"{"base64":"/wA="}"#,
        r#"{"text":""}"#,
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(
            gateway.call(json!({ "n": n })).await.expect_ok().result(),
            *result
        );
        assert_eq!(
            gateway.call(json!({ "n": n })).await.expect_ok().result(),
            *result
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_tool_that_comes_back_gets_the_same_call() {
    let port = free_port();
    let config =
        format!("[tools.act]\nurl = \"http://127.0.0.1:{port}/\"\nretry = {{ attempts = 1 }}\n");
    let gateway = Gateway::start(&config).await;
    let first = gateway
        .call(json!({}))
        .await
        .expect_problem("tool-unreachable");
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .expect("the port");
    let answer = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.expect("a request");
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            .await
            .expect("written");
        stream.shutdown().await.expect("closed");
        length
    });
    let second = gateway.call(json!({})).await.expect_ok();
    assert_eq!(second.at("/call_id"), first.at("/call_id"));
    assert!(answer.await.expect("a request") > 0);
    gateway.stop().await;
}

/// Each row: the tool's behaviour, the caller's answer, the ledger's entry, and whether a repeated key is sent again.
#[tokio::test]
async fn the_table_of_outcomes() {
    let tool = Tool::start().await;
    let rules = "retry = { attempts = 1 }\nbreaker = { failures = 1000 }";
    let gateway = Gateway::with_tool(&tool, rules).await;
    let executed = ("", "succeeded", false);
    let lost = ("result-unavailable", "succeeded", false);
    let rejected = ("tool-rejected", "failed", true);
    let fenced = ("stale-fencing-token", "failed", false);
    let unavailable = ("tool-unavailable", "failed", true);
    let unknown = ("outcome-unknown", "unknown", false);
    let mut rows = vec![
        (Act::Numbered, executed),
        (Act::HalfBody(200), lost),
        (Act::ExecuteThenDrop, unknown),
        (Act::ExecuteThenReset, unknown),
        (Act::Drop, unknown),
        (Act::ExecuteThenSay(b"HTTP/1.1 2"), unknown),
        (Act::ExecuteThenSay(b"garbage\r\n\r\n"), unknown),
        (Act::HalfBody(500), unknown),
    ];
    for (statuses, row) in [
        (&[200, 201, 202, 204, 303][..], executed),
        (&[300, 301, 302, 307, 308], unknown),
        (
            &[
                400, 401, 402, 403, 404, 405, 406, 409, 410, 411, 413, 414, 415, 416, 417,
            ],
            rejected,
        ),
        (&[421, 422, 424, 426, 428, 431, 451, 501, 505], rejected),
        (&[412], fenced),
        (&[425, 429], unavailable),
        (
            &[
                407, 408, 418, 420, 423, 430, 440, 500, 502, 503, 504, 507, 508, 520, 599,
            ],
            unknown,
        ),
    ] {
        rows.extend(
            statuses
                .iter()
                .map(|status| (Act::Answer(*status, "", b"{}"), row)),
        );
    }
    for (n, (act, (problem, state, is_sent_again))) in rows.into_iter().enumerate() {
        let (said, key) = (format!("{act:?}"), format!("k{n}"));
        tool.then(act);
        let answer = gateway.call_with_key(&key, json!({})).await;
        assert_eq!(answer.problem(), problem, "{said}");
        let id = answer.header("x-call-id");
        let record = gateway.get(&format!("/v1/calls/{id}")).await.expect_ok();
        assert_eq!(record.at("/state"), state, "{said}");
        let before = tool.requests();
        let again = gateway.call_with_key(&key, json!({})).await;
        assert_eq!(tool.requests() > before, is_sent_again, "{said}");
        assert!(
            is_sent_again || again.problem() == problem,
            "{said}: {}",
            again.text
        );
    }
    gateway.stop().await;
}
