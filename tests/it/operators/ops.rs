use std::io::{BufRead, BufReader};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::json;

use crate::support::binary::{Process, free_port, log};
use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Gateway, Tool, client};

#[tokio::test]
async fn a_gateway_says_that_it_lives_and_is_ready() {
    let gateway = Gateway::start("").await;
    assert_eq!(gateway.get("/healthz").await.expect_ok().text, "ok\n");
    let ready = gateway.get("/readyz").await.expect_ok().json();
    assert_eq!(
        ready,
        json!({ "ready": true, "durability": "strict", "reasons": [], "warnings": [] })
    );
    assert_eq!(gateway.metric("oncegate_store_ready").await, 1.0);
    gateway.stop().await;
}

#[tokio::test]
async fn the_root_says_what_this_is_and_where_to_look() {
    let gateway = Gateway::start("").await;
    let root = gateway.get("/").await.expect_ok();
    assert_eq!(
        (root.at("/name"), root.at("/openapi")),
        ("oncegate".into(), "/openapi.json".into())
    );
    let browser = gateway
        .client
        .get(gateway.url("/"))
        .header("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let page = Answer::to(browser).await.expect_ok();
    assert!(page.header("content-type").starts_with("text/html"));
    for (name, path) in root.json().as_object().expect("an object") {
        let path = path.as_str().expect("a text");
        if path.starts_with('/') {
            assert!(
                page.text.contains(&format!("<a href=\"{path}\">")),
                "{name}"
            );
            gateway.get(path).await.expect_ok();
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn arrivals_attempts_and_failures_are_counted() {
    let tool = Tool::start().await;
    tool.then(Act::Numbered)
        .then(Act::Answer(422, "", b"{}"))
        .then(Act::ExecuteThenDrop);
    let gateway = Gateway::with_tool(&tool, "").await;
    for (n, answers) in [
        (1, ["", ""]),
        (2, ["tool-rejected", ""]),
        (3, ["outcome-unknown", "outcome-unknown"]),
    ] {
        if n == 3 {
            tool.then(Act::ExecuteThenDrop);
        }
        for expected in answers {
            assert_eq!(
                gateway
                    .call_with_key(&format!("k{n}"), json!({ "n": n }))
                    .await
                    .problem(),
                expected,
                "{n}"
            );
            if n == 2 {
                // The same rejected call runs again and is dropped by the plan's third act.
                break;
            }
        }
    }
    gateway
        .call_with_key("k1", json!({ "n": 9 }))
        .await
        .expect_problem("key-reused");
    gateway
        .post_text("act", "{\"args\":7}".into(), &[])
        .await
        .expect_problem("invalid-request");
    for (line, expected) in [
        ("oncegate_arrivals_total{kind=\"first\",tool=\"act\"}", 3.0),
        (
            "oncegate_arrivals_total{kind=\"replayed\",tool=\"act\"}",
            1.0,
        ),
        (
            "oncegate_arrivals_total{kind=\"suppressed\",tool=\"act\"}",
            1.0,
        ),
        (
            "oncegate_arrivals_total{kind=\"refused\",tool=\"act\"}",
            2.0,
        ),
        (
            "oncegate_attempts_total{outcome=\"executed\",tool=\"act\"}",
            1.0,
        ),
        (
            "oncegate_attempts_total{outcome=\"not_executed\",tool=\"act\"}",
            1.0,
        ),
        (
            "oncegate_attempts_total{outcome=\"unknown\",tool=\"act\"}",
            1.0,
        ),
        (
            "oncegate_first_arrival_failures_total{reason=\"rejected\",tool=\"act\"}",
            1.0,
        ),
        (
            "oncegate_first_arrival_failures_total{reason=\"unknown\",tool=\"act\"}",
            1.0,
        ),
        // The five that were not refused.
        ("oncegate_call_duration_seconds_count{tool=\"act\"}", 5.0),
        ("oncegate_attempt_duration_seconds_count{tool=\"act\"}", 3.0),
        ("oncegate_duplicate_gap_seconds_count", 2.0),
        ("oncegate_running_calls{tool=\"act\"}", 0.0),
        ("oncegate_unknown_calls{tool=\"act\"}", 1.0),
    ] {
        assert_eq!(gateway.metric(line).await, expected, "{line}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn names_from_outside_never_become_labels() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let lines = async || gateway.get("/metrics").await.text.lines().count();
    gateway.call(json!({})).await.expect_ok();
    gateway
        .get("/v1/no/such/path")
        .await
        .expect_problem("unknown-path");
    gateway
        .post("nobody-0", &json!({ "args": {} }), &[])
        .await
        .expect_problem("unknown-tool");
    gateway.call(json!({})).await.expect_ok();
    let before = lines().await;
    for n in 0..50 {
        gateway
            .post(&format!("nobody-{n}"), &json!({ "args": {} }), &[])
            .await
            .expect_problem("unknown-tool");
        let body = json!({ "args": {}, "user_id": format!("U{n}"), "session_id": format!("S{n}") });
        gateway
            .post("act", &body, &[("idempotency-key", &format!("k{n}"))])
            .await
            .expect_ok();
    }
    assert_eq!(lines().await, before);
    gateway.stop().await;
}

#[tokio::test]
async fn a_log_line_reads_alone_and_holds_no_secret() {
    let tool = Tool::start().await;
    tool.then(Act::Ok("{\"canary\":\"result-canary\"}"));
    let folder = tempfile::tempdir().expect("a folder");
    let more = "headers = { Authorization = \"Bearer tool-canary\" }\n[log]\nlevel = \"trace\"";
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, more)).await;
    let url = gateway.url("/v1/tools/act/calls");
    let request = client()
        .post(url)
        .header("authorization", "Bearer caller-canary")
        .header("idempotency-key", "key-canary");
    let body = json!({ "args": { "card": "args-canary" }, "user_id": "U\u{1b}[31m1", "trace_id": "trace-7" });
    let refused = Answer::to(request.try_clone().expect("a copy").body(body.to_string())).await;
    refused.expect_problem("invalid-request");
    let body = json!({ "args": { "card": "args-canary" }, "user_id": "U1", "trace_id": "trace-7" });
    let answer = Answer::to(request.body(body.to_string())).await.expect_ok();
    let metrics = Answer::to(client().get(gateway.url("/metrics"))).await.text;
    gateway.signal("TERM");
    assert!(gateway.ended().await);
    let said = std::fs::read_to_string(log(folder.path())).expect("a log");
    for canary in [
        "tool-canary",
        "caller-canary",
        "key-canary",
        "args-canary",
        "result-canary",
    ] {
        assert!(!said.contains(canary), "{canary} in the log");
        assert!(!metrics.contains(canary), "{canary} in the metrics");
    }
    let line = said
        .lines()
        .find(|line| line.contains("call ended"))
        .expect("a line");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(line["call_id"], answer.at("/call_id"));
    assert_eq!(
        (&line["tool"], &line["trace_id"], &line["state"]),
        (&json!("act"), &json!("trace-7"), &json!("succeeded"))
    );
}

/// A terminal would show another text than the line has.
#[tokio::test]
async fn marks_that_change_the_order_of_a_reason_are_escaped_in_the_log() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let marks = "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";
    let reason = format!("ships{marks}twice");
    for path in ["/v1/tools/act/pause", "/v1/sessions/S/freeze"] {
        let request = client().post(gateway.url(path));
        let body = json!({ "reason": reason }).to_string();
        Answer::to(request.body(body)).await.expect_ok();
    }
    gateway.signal("TERM");
    assert!(gateway.ended().await);
    let said = std::fs::read_to_string(log(folder.path())).expect("a log");
    for event in ["a tool is paused", "a session was frozen"] {
        let line = said.lines().find(|line| line.contains(event));
        let line = line.unwrap_or_else(|| panic!("{event}: {said}"));
        assert!(!line.contains(|char| marks.contains(char)), "{line}");
        assert!(line.contains("\\u202e"), "{line}");
        let read: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(read["reason"], reason, "the text stays the same");
    }
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_log_that_cannot_be_written_stops_nothing() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let full = std::path::Path::new("/dev/full");
    let config = one_tool(&tool, "");
    let gateway = Process::start_logging_to(full, folder.path(), free_port(), &config, &[]).await;
    for _ in 0..2 {
        let request = client()
            .post(gateway.url("/v1/tools/act/calls"))
            .body("{\"args\":{}}");
        Answer::to(request).await.expect_ok();
    }
    gateway.signal("TERM");
    assert!(gateway.ended().await);
    assert_eq!(tool.requests(), 1);
}

/// Calls `act` so often, each time with another key, and with a trace id that makes log lines long.
async fn call_often(process: &Process, count: usize) {
    let client = client();
    let trace = "t".repeat(255);
    let call = async |n: usize| {
        let request = client
            .post(process.url("/v1/tools/act/calls"))
            .timeout(Duration::from_secs(60));
        let body = json!({ "args": { "n": n }, "trace_id": trace }).to_string();
        Answer::to(request.body(body)).await.expect_ok();
    };
    stream::iter(0..count).for_each_concurrent(16, call).await;
}

#[tokio::test]
async fn a_log_that_is_not_read_stops_nothing_and_says_later_what_is_missing() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut process = Process::start_unread(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let get = async |path: &str| {
        let request = client()
            .get(process.url(path))
            .timeout(Duration::from_secs(60));
        Answer::to(request).await.expect_ok().text
    };
    let name = "oncegate_log_lines_dropped_total";
    assert!(get("/metrics").await.contains(&format!("{name} 0\n")));
    // More than the pipe and the queue hold.
    call_often(&process, 3_000).await;
    assert_eq!(get("/healthz").await, "ok\n");
    assert!(!get("/metrics").await.contains(&format!("{name} 0\n")));
    // The log is read up to the line that says how much is missing.
    let log = process.read_log();
    let mentioned = tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(log);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
            if line.contains("log lines were dropped") {
                return Some(lines);
            }
            line.clear();
        }
        None
    });
    let mentioned = tokio::time::timeout(Duration::from_secs(60), mentioned).await;
    let unread = mentioned
        .expect("in time")
        .expect("no panic")
        .expect("it is mentioned");
    drop(unread);
    process.signal("TERM");
    assert!(process.ended().await, "a good end");
    assert_eq!(tool.effects(), 3_000);
}

#[tokio::test]
async fn a_log_that_is_never_read_does_not_keep_it_from_stopping() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let process = Process::start_unread(folder.path(), free_port(), &one_tool(&tool, "")).await;
    call_often(&process, 400).await;
    process.signal("TERM");
    assert!(process.ended().await, "a good end");
    assert_eq!(tool.effects(), 400);
}
