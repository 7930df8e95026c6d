use serde_json::{Value, json};

use crate::support::binary::{Process, free_port, log};
use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Gateway, Tool, client};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn traceparent(trace: &str, flags: &str) -> String {
    format!("00-{trace}-00f067aa0ba902b7-{flags}")
}

/// The fields of what the tool was told of the trace.
fn told(line: &str) -> (&str, &str, &str) {
    let mut fields = line.split('-').skip(1);
    let mut next = || fields.next().expect("a field");
    (next(), next(), next())
}

#[tokio::test]
async fn a_tool_is_told_its_attempt_and_whether_the_caller_records_the_trace() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(
        &tool,
        "outcomes = { 429 = \"not_executed\" }\nretry = { base = \"1ms\" }",
    )
    .await;
    for flags in ["01", "00"] {
        tool.then(Act::Answer(429, "", b""));
        let line = traceparent(TRACE, flags);
        let headers = [
            ("traceparent", line.as_str()),
            ("tracestate", "us=1,them=2"),
            ("idempotency-key", flags),
        ];
        let answer = gateway
            .post("act", &json!({ "args": {} }), &headers)
            .await
            .expect_ok();
        let record = gateway.record(&answer).await;
        let seen = tool.seen().split_off(tool.requests() - 2);
        let events = record.at("/events");
        let ended = events
            .as_array()
            .expect("events")
            .iter()
            .filter(|event| event["outcome"] != Value::Null);
        let attempts: Vec<&str> = ended
            .map(|event| event["attempt_id"].as_str().expect("an id"))
            .collect();
        assert_eq!(attempts.len(), 2, "{events}");
        for (seen, attempt) in seen.iter().zip(attempts) {
            assert_eq!(
                told(seen.header("traceparent")),
                (TRACE, &attempt[..16], flags)
            );
            assert_eq!(seen.header("tracestate"), "us=1,them=2");
        }
        assert_ne!(seen[0].header("traceparent"), seen[1].header("traceparent"));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn without_a_trace_of_the_callers_the_tool_gets_the_calls_own() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let long = "a".repeat(513);
    for (n, headers) in [
        vec![],
        vec![("traceparent", "nonsense"), ("tracestate", "us=1")],
        vec![("tracestate", "us=1")],
        vec![
            (
                "traceparent",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            ),
            ("tracestate", &long),
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let answer = gateway
            .post("act", &json!({ "args": { "n": n } }), &headers)
            .await
            .expect_ok();
        let trace = gateway.record(&answer).await.at("/trace_id");
        let seen = &tool.seen()[n];
        let (told, _, flags) = told(seen.header("traceparent"));
        assert_eq!((told, flags), (trace.as_str().expect("an id"), "01"));
        assert_eq!(seen.header("tracestate"), "", "{n}");
    }
    let body = json!({ "args": { "n": 9 }, "trace_id": "trace-7" });
    gateway
        .post("act", &body, &[("tracestate", "us=1")])
        .await
        .expect_ok();
    let seen = &tool.seen()[4];
    assert_eq!(
        (seen.header("traceparent"), seen.header("tracestate")),
        ("", ""),
        "it fits no header"
    );
    gateway.stop().await;
}

/// A call that failed and runs again keeps the trace in which it was asked for first; so does its tool.
#[tokio::test]
async fn a_call_that_runs_again_stays_in_its_trace() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", b"{}"));
    let gateway = Gateway::with_tool(&tool, "").await;
    let other = "5bf92f3577b34da6a3ce929d0e0e4736";
    for trace in [TRACE, other] {
        let line = traceparent(trace, "01");
        let headers = [
            ("traceparent", line.as_str()),
            ("tracestate", trace),
            ("idempotency-key", "k"),
        ];
        gateway.post("act", &json!({ "args": {} }), &headers).await;
    }
    let seen = tool.seen();
    assert_eq!(
        (seen.len(), told(seen[1].header("traceparent")).0),
        (2, TRACE)
    );
    assert_eq!(
        seen[1].header("tracestate"),
        "",
        "another trace does not concern this one"
    );
    gateway.stop().await;
}

/// Every line of the log, as JSON.
fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[tokio::test]
async fn every_log_line_of_a_call_has_its_trace_and_is_flat() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(429, "", b""))
        .then(Act::Ok("{}"))
        .then(Act::ExecuteThenDrop);
    let folder = tempfile::tempdir().expect("a folder");
    let config = one_tool(
        &tool,
        "outcomes = { 429 = \"not_executed\" }\nretry = { base = \"1ms\" }\n[log]\nlevel = \"warn,oncegate=debug\"",
    );
    let gateway = Process::start(folder.path(), free_port(), &config).await;
    let post = async |path: String, body: Value, trace: &str| {
        let request = client()
            .post(gateway.url(&path))
            .header("traceparent", traceparent(trace, "01"));
        Answer::to(request.body(body.to_string())).await
    };
    let call = "/v1/tools/act/calls".to_owned();
    post(call.clone(), json!({ "args": {} }), TRACE)
        .await
        .expect_ok();
    let unknown = post(call, json!({ "args": { "n": 2 } }), TRACE)
        .await
        .expect_problem("outcome-unknown");
    let call_id = unknown.id();
    let id = call_id;
    let body = json!({ "as": "succeeded", "result": null, "reason": "looked" });
    let resolved = post(format!("/v1/calls/{id}/resolve"), body, TRACE).await;
    gateway.signal("TERM");
    assert!(gateway.ended().await);
    let said = lines(&std::fs::read_to_string(log(folder.path())).expect("a log"));
    let of_calls: Vec<&Value> = said
        .iter()
        .filter(|line| line["call_id"].is_string())
        .collect();
    assert!(of_calls.len() >= 3, "{} {said:#?}", resolved.text);
    for line in &of_calls {
        assert_eq!(line["trace_id"], json!(TRACE), "{line}");
    }
    for line in &said {
        assert!(
            line["span"].is_null() && line["spans"].is_null() && line["fields"].is_null(),
            "{line}"
        );
    }
}

#[cfg(feature = "otel")]
mod exported {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::support::collector::{Collector, Span};
    use crate::support::until;

    const OTHER: &str = "5bf92f3577b34da6a3ce929d0e0e4736";

    async fn start(folder: &std::path::Path, tool: &Tool, collector: &str, more: &str) -> Process {
        let tracing =
            format!("[tracing]\notlp = \"{collector}\"\nservice_name = \"gate-7\"\n{more}");
        let config = one_tool(
            tool,
            &format!(
                "outcomes = {{ 429 = \"not_executed\" }}\nretry = {{ base = \"1ms\" }}\n{tracing}"
            ),
        );
        Process::start(folder, free_port(), &config).await
    }

    async fn call(gateway: &Process, key: &str, trace: &str, flags: &str) -> Answer {
        call_by(&client(), gateway, key, trace, flags).await
    }

    async fn call_by(
        client: &reqwest::Client,
        gateway: &Process,
        key: &str,
        trace: &str,
        flags: &str,
    ) -> Answer {
        let request = client
            .post(gateway.url("/v1/tools/act/calls"))
            .header("traceparent", traceparent(trace, flags))
            .header("authorization", "Bearer caller-canary")
            .header("idempotency-key", key)
            .body("{\"args\":{\"card\":\"args-canary\"},\"user_id\":\"U1\"}");
        Answer::to(request).await
    }

    fn one<'a>(spans: &'a [Span], name: &str) -> &'a Span {
        let mut found = spans.iter().filter(|span| span.name == name);
        let span = found
            .next()
            .unwrap_or_else(|| panic!("no {name}: {spans:#?}"));
        assert!(found.next().is_none(), "more than one {name}: {spans:#?}");
        span
    }

    #[tokio::test]
    async fn log_ledger_tool_and_collector_tell_the_same_story() {
        let (tool, collector) = (Tool::start().await, Collector::start().await);
        tool.then(Act::Answer(429, "", b""))
            .then(Act::after_ms(60, Act::Ok("{\"a\":\"result-canary\"}")));
        let folder = tempfile::tempdir().expect("a folder");
        let gateway = start(folder.path(), &tool, &collector.url, "").await;
        let answer = call(&gateway, "key-canary", TRACE, "01").await.expect_ok();
        call(&gateway, "key-canary", OTHER, "01").await.expect_ok();
        let call_id = answer.id();
        let id = call_id.as_str();
        let record = client()
            .get(gateway.url(&format!("/v1/calls/{id}")))
            .send()
            .await
            .expect("an answer");
        let record = Answer::read(record).await.expect_ok();
        call(&gateway, "k2", OTHER, "00").await.expect_ok();
        gateway.signal("TERM");
        assert!(gateway.ended().await, "and what is left is sent first");

        let all = collector.spans();
        let of = |trace: &str| {
            all.iter()
                .filter(|span| span.trace_id == trace)
                .cloned()
                .collect::<Vec<_>>()
        };
        let spans = of(TRACE);
        let (arrival, run, claim) = (
            one(&spans, "arrival"),
            one(&spans, "call"),
            one(&spans, "claim"),
        );
        assert_eq!(arrival.parent, "00f067aa0ba902b7", "the caller's span");
        assert_eq!((&run.parent, &claim.parent), (&arrival.id, &run.id));
        let attempts: Vec<&Span> = spans.iter().filter(|span| span.name == "attempt").collect();
        assert_eq!(attempts.len(), 2, "{spans:#?}");
        for (attempt, seen) in attempts.iter().zip(tool.seen()) {
            assert_eq!(
                told(seen.header("traceparent")),
                (TRACE, attempt.id.as_str(), "01")
            );
            assert_eq!(attempt.parent, run.id);
        }
        let outcomes: Vec<&str> = attempts
            .iter()
            .map(|attempt| attempt.field("outcome"))
            .collect();
        assert_eq!(outcomes, ["not_executed", "executed"]);
        assert!(
            attempts[1].ended - attempts[1].began >= 60_000_000,
            "{attempts:#?}"
        );
        assert!(
            run.began <= claim.began && claim.ended <= attempts[0].began,
            "{spans:#?}"
        );
        let completions: Vec<&Span> = spans
            .iter()
            .filter(|span| span.name == "completion")
            .collect();
        assert_eq!(
            (completions.len(), completions[1].field("outcome")),
            (2, "succeeded")
        );
        assert!(completions.iter().all(|span| span.parent == run.id));
        for span in &spans {
            assert_eq!(
                (span.field("call_id"), span.field("tool")),
                (id, "act"),
                "{span:?}"
            );
            assert_eq!(span.field("trace_id"), TRACE);
        }
        assert_eq!(record.at("/trace_id"), json!(TRACE));
        let said = lines(&std::fs::read_to_string(log(folder.path())).expect("a log"));
        let ended = said
            .iter()
            .find(|line| line["message"] == "call ended")
            .expect("a line");
        assert_eq!(
            (&ended["trace_id"], &ended["call_id"]),
            (&json!(TRACE), &json!(id))
        );

        let replay = of(OTHER);
        let arrival = one(&replay, "arrival");
        assert_eq!(
            (arrival.field("outcome"), arrival.field("call_id")),
            ("replayed", id)
        );
        assert_eq!(
            arrival.field("call_trace_id"),
            TRACE,
            "a duplicate names the trace of its call"
        );
        assert_eq!(
            replay.len(),
            1,
            "a replay from memory claims and sends nothing, and who is not recorded is not here: {replay:#?}"
        );
        assert_eq!(
            all.len(),
            spans.len() + replay.len(),
            "no other spans: {all:#?}"
        );
        let bytes = collector.bytes();
        let has = |text: &str| crate::support::search::holds(&bytes, text);
        assert!(has("gate-7"));
        for canary in [
            "key-canary",
            "caller-canary",
            "args-canary",
            "result-canary",
        ] {
            assert!(!has(canary), "{canary} was exported");
        }
    }

    #[tokio::test]
    async fn a_callers_span_ends_when_it_hangs_up_and_the_calls_goes_on() {
        let (tool, collector) = (Tool::start().await, Collector::start().await);
        let (held, act) = Act::held(Act::Ok("{}"));
        tool.then(act);
        let folder = tempfile::tempdir().expect("a folder");
        let gateway = start(folder.path(), &tool, &collector.url, "").await;
        let asking = call(&gateway, "k", TRACE, "01");
        tokio::select! {
            answer = asking => panic!("it is held: {answer:?}"),
            () = until("the tool has it", async || tool.requests() == 1) => {}
        }
        let is_there = async || collector.spans().iter().any(|span| span.name == "arrival");
        until("the caller's span is exported", is_there).await;
        drop(held);
        gateway.signal("TERM");
        assert!(gateway.ended().await);
        let spans = collector.spans();
        let (arrival, attempt) = (one(&spans, "arrival"), one(&spans, "attempt"));
        assert!(arrival.ended < attempt.ended, "{spans:#?}");
        assert_eq!(one(&spans, "call").parent, arrival.id);
        assert_eq!(attempt.field("outcome"), "executed");
    }

    #[tokio::test]
    async fn the_share_of_the_gateway_counts_only_where_a_caller_says_nothing() {
        let (tool, collector) = (Tool::start().await, Collector::start().await);
        let folder = tempfile::tempdir().expect("a folder");
        let gateway = start(folder.path(), &tool, &collector.url, "sample = 0.0\n").await;
        call(&gateway, "k1", "nonsense", "01").await.expect_ok();
        call(&gateway, "k2", TRACE, "01").await.expect_ok();
        gateway.signal("TERM");
        assert!(gateway.ended().await);
        assert_eq!(
            told(tool.seen()[0].header("traceparent")).2,
            "00",
            "the tool is told"
        );
        assert_eq!(told(tool.seen()[1].header("traceparent")).2, "01");
        let spans = collector.spans();
        assert!(
            !spans.is_empty() && spans.iter().all(|span| span.trace_id == TRACE),
            "{spans:#?}"
        );
    }

    #[tokio::test]
    async fn a_collector_that_never_answers_holds_up_no_call_and_no_stop() {
        let (tool, silent) = (Tool::start().await, Tool::start().await);
        silent.always(Act::Hang);
        let folder = tempfile::tempdir().expect("a folder");
        let gateway = start(folder.path(), &tool, &silent.url(), "").await;
        // Each with a key of its own, so that none joins another: a span for each replay, and that is more than have room.
        let client = client();
        let replays = async |key: usize| {
            for _ in 0..300 {
                call_by(&client, &gateway, &format!("k{key}"), TRACE, "01")
                    .await
                    .expect_ok();
            }
        };
        call(&gateway, "k", TRACE, "01").await.expect_ok();
        until("the collector has the first", async || {
            silent.requests() > 0
        })
        .await;
        let many: [_; 17] = std::array::from_fn(&replays);
        futures_util::future::join_all(many).await;
        gateway.signal("TERM");
        let stopping = Instant::now();
        assert!(gateway.ended().await);
        assert!(
            stopping.elapsed() < Duration::from_secs(8),
            "{:?}",
            stopping.elapsed()
        );
        assert_eq!(tool.requests(), 18);
        let said = std::fs::read_to_string(log(folder.path())).expect("a log");
        assert_eq!(
            said.matches("dropped a Span").count(),
            1,
            "it is said once: {said}"
        );
        assert!(
            said.contains("dropped_span_count"),
            "and counted in the end: {said}"
        );
    }
}
