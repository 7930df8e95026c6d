//! Progress notifications of a server reach the caller that asked for them.

use serde_json::{Value, json};

use crate::support::mcp::LEGACY;
use crate::support::upstream::{Does, Upstream};
use crate::support::{Answer, Gateway};

fn params(n: i64, token: Value) -> Value {
    json!({ "name": "act", "arguments": { "n": n }, "_meta": { "progressToken": token } })
}

/// The parameters of the notifications before the answer.
fn notes(answer: &Answer) -> Vec<Value> {
    let data = answer
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let messages = data.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
    let notes = messages.filter(|message| message["method"] == "notifications/progress");
    notes.map(|mut note| note["params"].take()).collect()
}

#[tokio::test]
async fn progress_reaches_the_caller_under_its_own_token() {
    for (upstream, is_modern) in [
        (Upstream::modern().await, true),
        (Upstream::legacy().await, false),
    ] {
        let gateway = Gateway::start(&upstream.config("")).await;
        for (n, token) in [json!("own \"token\""), json!(7)].into_iter().enumerate() {
            upstream.then(Does::Progress(3));
            let params = params(n.try_into().expect("a number"), token.clone());
            let answer = if is_modern {
                gateway.mcp("tools/call", params.clone()).await
            } else {
                legacy(&gateway, params.clone()).await
            };
            let expected =
                [0, 1, 2].map(|n| json!({ "progressToken": token, "progress": n, "message": "m" }));
            assert_eq!(notes(&answer), expected);
            assert_eq!(answer.told(), "done");
            let (_, call) = upstream.seen("tools/call").pop().expect("a call");
            let sent = &call["params"]["_meta"]["progressToken"];
            assert!(
                sent.is_string() && *sent != token,
                "the server gets another token"
            );
            // A replay has no progress.
            let replay = gateway.mcp("tools/call", params).await;
            assert!(
                notes(&replay).is_empty() && replay.meta("replayed") == true,
                "{}",
                replay.text
            );
        }
        assert_eq!(upstream.effects(), 2);
        gateway.stop().await;
    }
}

async fn legacy(gateway: &Gateway, params: Value) -> Answer {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = gateway.mcp_raw(body.to_string());
    Answer::to(request.header("mcp-protocol-version", LEGACY)).await
}

#[tokio::test]
async fn a_caller_that_accepts_no_stream_gets_no_progress() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("")).await;
    let none = json!({ "name": "act", "arguments": { "n": 0 } });
    for params in [none, params(1, json!(1.5)), params(2, json!({}))] {
        upstream.then(Does::Progress(3));
        let answer = gateway.mcp("tools/call", params).await;
        assert_eq!(answer.message()["result"]["isError"], false);
        assert!(notes(&answer).is_empty());
        let (_, call) = upstream.seen("tools/call").pop().expect("a call");
        assert_eq!(call["params"]["_meta"].get("progressToken"), None);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn progress_beyond_the_buffer_is_dropped_without_harm() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("")).await;
    upstream.then(Does::Progress(1_000));
    let call = || gateway.mcp("tools/call", params(1, json!("t")));
    let (first, second) = tokio::join!(call(), call());
    for answer in [&first, &second] {
        assert!(answer.told().ends_with("done"), "{}", answer.told());
        let told = notes(answer);
        let rises = |pair: &[Value]| pair[0]["progress"].as_u64() < pair[1]["progress"].as_u64();
        assert!(told.windows(2).all(rises));
    }
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}
