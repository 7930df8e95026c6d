//! `subscriptions/listen`: which changes of the tools clients learn, and how a stream ends.

use std::time::Duration;

use oncegate::core::timings::Timings;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::stores::admission::now;
use crate::support::gateway::one_tool;
use crate::support::mcp::{MODERN, meta, token};
use crate::support::timings::brisk;
use crate::support::{Act, Answer, Gateway, PATIENCE, Tool, until};

/// A request to listen for changes of the list.
fn listen(gateway: &Gateway) -> RequestBuilder {
    gateway.mcp_request("subscriptions/listen", wanted())
}

fn wanted() -> Value {
    json!({ "notifications": { "toolsListChanged": true, "promptsListChanged": true } })
}

/// A stream that has begun with its acknowledgement.
struct Stream(Response);

impl Stream {
    async fn open(request: RequestBuilder) -> Self {
        let response = request.send().await.expect("a stream");
        assert_eq!(response.status(), 200);
        let mut stream = Self(response);
        let first = stream.next().await.expect("an event");
        assert!(first.contains("subscriptions/acknowledged"), "{first}");
        stream
    }

    /// The next message, without comments. `None`: the stream has ended.
    async fn next(&mut self) -> Option<String> {
        loop {
            let chunk = timeout(PATIENCE, self.0.chunk()).await.expect("in time");
            let text = String::from_utf8(chunk.expect("bytes")?.to_vec()).expect("UTF-8");
            if let Some((_, data)) = text.split_once("data: ") {
                return Some(data.trim().to_owned());
            }
            assert_eq!(text, ":\n\n", "a comment");
        }
    }

    /// Checks that the result comes next, and ends the stream.
    async fn expect_end(&mut self) {
        let last = self.next().await.expect("a result");
        let last: Value = serde_json::from_str(&last).expect("JSON");
        assert_eq!(last["result"]["resultType"], "complete", "{last}");
        assert_eq!(self.next().await, None);
    }
}

#[tokio::test]
async fn clients_that_listen_learn_that_the_tools_have_changed_and_that_the_gateway_stops() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    // A number that no JSON library can hold.
    let id = "99999999999999999999";
    let mut params = wanted();
    params["_meta"] = meta(json!({}));
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{params}}}"#
    );
    let request = gateway.mcp_raw(body).header("mcp-protocol-version", MODERN);
    let request = request.header("mcp-method", "subscriptions/listen");
    let mut stream = Stream(request.send().await.expect("a stream"));
    let named = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
    let first = stream.next().await.expect("an event");
    assert!(first.contains(&named), "{first}");
    let first: Value = serde_json::from_str(&first).expect("JSON");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    let granted = json!({ "toolsListChanged": true });
    assert_eq!(first["params"]["notifications"], granted);
    let other = one_tool(&tool, "description = \"other\"");
    assert!(gateway.reload(&other).await);
    let changed = stream.next().await.expect("an event");
    assert!(changed.contains("notifications/tools/list_changed"));
    assert!(changed.contains(&named), "{changed}");
    gateway.begin_stop();
    let last = stream.next().await.expect("an event");
    assert!(
        last.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result""#)),
        "{last}"
    );
    let last: Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(last["result"]["resultType"], "complete");
    assert!(last["result"]["_meta"]["io.modelcontextprotocol/serverInfo"].is_object());
    assert_eq!(stream.next().await, None);
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_learns_only_of_changes_of_its_own_list() {
    let tool = Tool::start().await;
    let config = |scopes: &str, description: &str| {
        let tokens = token("narrow", scopes, "") + &token("wide", r#"["call"]"#, "");
        let url = tool.url();
        format!(
            "{tokens}[tools.act]\nurl = \"{url}\"\n[tools.other]\nurl = \"{url}\"\ndescription = \"{description}\"\n"
        )
    };
    let only_act = r#"["call:act"]"#;
    let gateway = Gateway::start(&config(only_act, "one")).await;
    let mut narrow = Stream::open(listen(&gateway).bearer_auth("narrow")).await;
    let mut wide = Stream::open(listen(&gateway).bearer_auth("wide")).await;
    assert!(gateway.reload(&config(only_act, "two")).await);
    let changed = wide.next().await.expect("an event");
    assert!(changed.contains("list_changed"), "{changed}");
    // With another scope the token has another list.
    assert!(gateway.reload(&config(r#"["call"]"#, "two")).await);
    let changed = narrow.next().await.expect("an event");
    assert!(changed.contains("list_changed"), "{changed}");
    gateway.begin_stop();
    narrow.expect_end().await;
    wide.expect_end().await;
    gateway.stop().await;
}

#[tokio::test]
async fn the_streams_of_a_token_end_when_it_is_no_longer_valid() {
    let tool = Tool::start().await;
    let (folder, until_then) = (
        tempfile::tempdir().expect("a folder"),
        now() + Duration::from_secs(6),
    );
    let config = |tokens: &str| format!("{tokens}{}", one_tool(&tool, ""));
    let expires = token(
        "expires",
        r#"["call"]"#,
        &format!("expires = \"{until_then}\""),
    );
    let (stays, goes) = (
        token("stays", r#"["call"]"#, ""),
        token("goes", r#"["call"]"#, ""),
    );
    let store = format!("sqlite:{}", folder.path().join("oncegate.db").display());
    let often = Timings {
        check_listener_every: Duration::from_millis(50),
        ..brisk()
    };
    let tokens = format!("{expires}{stays}{goes}");
    let gateway = Gateway::at_pace(often, &store, &config(&tokens)).await;
    let open = async |token: &str| Stream::open(listen(&gateway).bearer_auth(token)).await;
    let mut expiring = open("expires").await;
    let (mut staying, mut going) = (open("stays").await, open("goes").await);
    expiring.expect_end().await;
    assert!(gateway.reload(&config(&stays)).await);
    going.expect_end().await;
    Answer::to(listen(&gateway).bearer_auth("goes"))
        .await
        .expect_problem("unauthenticated");
    gateway.begin_stop();
    staying.expect_end().await;
    drop((expiring, staying, going, gateway));
}

#[tokio::test]
async fn a_stream_ends_after_a_while_and_the_client_has_to_listen_again() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("oncegate.db").display());
    let short = Timings {
        listen_at_most: Duration::from_millis(300),
        ..brisk()
    };
    let gateway = Gateway::at_pace(short, &store, &one_tool(&tool, "")).await;
    for _ in 0..2 {
        Stream::open(listen(&gateway)).await.expect_end().await;
    }
}

#[tokio::test]
async fn streams_that_listen_are_few_and_take_no_place_of_a_call() {
    let tool = Tool::start().await;
    let rules = format!("[server]\nmax_waiting = 2\n{}", one_tool(&tool, ""));
    let gateway = Gateway::start(&rules).await;
    let (one, other) = (
        Stream::open(listen(&gateway)).await,
        Stream::open(listen(&gateway)).await,
    );
    let refused = listen(&gateway).send().await.expect("an answer");
    assert_eq!(refused.status(), 429);
    // A call can still join a running one.
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let first = tokio::spawn(Answer::to(call(&gateway)));
    until("the call runs", async || tool.requests() == 1).await;
    let second = tokio::spawn(Answer::to(call(&gateway)));
    let waiting = "oncegate_requests_total{door=\"mcp\",tool=\"act\"}";
    until("the second request has arrived", async || {
        gateway.metric(waiting).await >= 2.0
    })
    .await;
    drop(hold);
    for said in [first, second] {
        assert!(!said.await.expect("no panic").is_error());
    }
    drop(one);
    until("another stream may begin", async || {
        let response = listen(&gateway).send().await.expect("an answer");
        response.status() == 200
    })
    .await;
    drop(other);
    gateway.stop().await;
}

fn call(gateway: &Gateway) -> RequestBuilder {
    gateway.mcp_request("tools/call", json!({ "name": "act", "arguments": {} }))
}
