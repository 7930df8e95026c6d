//! The paths of MCP, headers that repeat arguments, servers of older revisions, and results that not every client can read.

use serde_json::{Value, json};

use crate::support::mcp::{MODERN, meta};
use crate::support::upstream::{Does, Upstream, result};
use crate::support::{Act, Answer, Gateway, Tool, client};

fn body(method: &str, mut params: Value) -> String {
    params["_meta"] = meta(json!({}));
    json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string()
}

fn request(gateway: &Gateway, path: &str, method: &str, params: Value) -> reqwest::RequestBuilder {
    let name = params["name"].as_str().map(str::to_owned);
    let request = client().post(gateway.url(path)).body(body(method, params));
    let request = request
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", MODERN)
        .header("mcp-method", method);
    match name {
        Some(name) => request.header("mcp-name", name),
        None => request,
    }
}

/// What a strict reader finds in a text: it refuses halves of characters, and what is nested too deeply.
#[track_caller]
fn strictly(answer: &Answer) -> Value {
    let read = serde_json::from_str(&answer.text);
    read.unwrap_or_else(|error| panic!("{error}: {}", answer.text))
}

#[tokio::test]
async fn a_path_with_a_slash_at_its_end_is_the_same_door() {
    let (tool, upstream) = (Tool::start().await, Upstream::modern().await);
    upstream.list(&[json!({ "name": "other", "inputSchema": { "type": "object" } })]);
    let config = format!(
        "[tools.act]\nurl = \"{}\"\n[upstreams.up]\nurl = \"{}\"\n",
        tool.url(),
        upstream.url()
    );
    let gateway = Gateway::start(&config).await;
    for path in ["/mcp", "/mcp/"] {
        let params = json!({ "name": "act", "arguments": { "n": 1 } });
        let said = Answer::to(request(&gateway, path, "tools/call", params)).await;
        assert!(!said.is_error(), "{}", said.text);
    }
    for path in ["/mcp/up", "/mcp/up/"] {
        let params = json!({ "name": "other", "arguments": {} });
        let said = Answer::to(request(&gateway, path, "tools/call", params)).await;
        assert!(!said.is_error(), "{}", said.text);
    }
    assert_eq!(
        (tool.effects(), upstream.effects()),
        (1, 1),
        "one call each"
    );
    for path in ["/mcp/", "/mcp/up/"] {
        let got = client().get(gateway.url(path)).send().await;
        assert_eq!(got.expect("an answer").status(), 405, "{path}");
    }
    let none = Answer::to(request(&gateway, "/mcp/none/", "tools/list", json!({}))).await;
    assert_eq!(none.status, 404);
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_refers_to_another_address_is_named_with_it() {
    for (location, named) in [
        ("/mcp/?token=secret", "/mcp/"),
        (
            "https://user:secret@other.example/mcp",
            "https://other.example/mcp",
        ),
    ] {
        for status in [301, 302, 307, 308] {
            let tool = Tool::start().await;
            let headers: &'static str = format!("location: {location}\r\n").leak();
            tool.always(Act::Answer(status, headers, b""));
            let config = format!(
                "[upstreams.up]\nurl = \"{}\"\n[tools.act]\nupstream = \"up\"\nretry = {{ attempts = 1 }}\n",
                tool.url()
            );
            let gateway = Gateway::start(&config).await;
            let said = gateway.call_with_key("k", json!({})).await;
            let id = said.expect_problem("tool-unreachable").at("/call_id");
            let id = id.as_str().expect("a call").to_owned();
            let record = gateway.get(&format!("/v1/calls/{id}")).await.text;
            assert!(record.contains(&status.to_string()), "{record}");
            assert!(record.contains(named), "{record}");
            assert!(!record.contains("secret"), "{record}");
            assert!(
                tool.seen()
                    .iter()
                    .all(|seen| !seen.body.contains("tools/call"))
            );
            gateway.stop().await;
        }
    }
}

#[tokio::test]
async fn headers_that_repeat_arguments_of_a_listed_tool_must_agree_with_them() {
    let upstream = Upstream::modern().await;
    let schema = json!({ "type": "object", "properties": { "region": { "type": "string", "x-mcp-header": "Region" } } });
    upstream.list(&[json!({ "name": "other", "inputSchema": schema })]);
    let gateway = Gateway::start(&format!("[upstreams.up]\nurl = \"{}\"\n", upstream.url())).await;
    let call = || {
        let params = json!({ "name": "other", "arguments": { "region": "eu" } });
        request(&gateway, "/mcp/up", "tools/call", params)
    };
    // At the first call the list is not known yet.
    for _ in 0..2 {
        for wrong in [
            call(),
            call().header("mcp-param-region", "us"),
            call()
                .header("mcp-param-region", "eu")
                .header("mcp-param-region", "eu"),
        ] {
            let said = Answer::to(wrong).await;
            assert_eq!(
                (said.status, said.rpc_code()),
                (400, -32_020),
                "{}",
                said.text
            );
            assert_eq!(said.at("/id"), 7);
        }
    }
    assert_eq!(upstream.seen("tools/call").len(), 0);
    let said = Answer::to(call().header("mcp-param-region", "eu")).await;
    assert!(!said.is_error(), "{}", said.text);
    let (headers, _) = upstream.seen("tools/call").pop().expect("a call");
    assert_eq!(headers["mcp-param-region"], "eu");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_of_an_older_revision_is_spoken_to_as_it_is() {
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let upstream = Upstream::of_revision(revision).await;
        let gateway = Gateway::start(&upstream.config("")).await;
        for (n, does) in [
            Does::Json(result("one")),
            Does::Stream(result("two")),
            Does::Batch(result("three")),
            Does::BatchInStream(result("four")),
        ]
        .into_iter()
        .enumerate()
        {
            upstream.then(does.clone());
            let said = gateway
                .call_with_key(&format!("k{n}"), json!({ "n": 1 }))
                .await;
            said.expect_ok();
        }
        assert_eq!(upstream.effects(), 4, "{revision}");
        let (headers, _) = upstream.seen("tools/call").pop().expect("a call");
        let named = headers
            .get("mcp-protocol-version")
            .map(|name| name.to_str().expect("text"));
        let has_header = revision == "2025-06-18";
        assert_eq!(
            named,
            has_header.then_some(revision),
            "the header is of 2025-06-18"
        );
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_result_that_not_every_client_can_read_goes_as_text() {
    let deep: &'static str = format!("{{\"a\":{}1{}}}", "[".repeat(200), "]".repeat(200)).leak();
    for json in [
        r#"{"a":"\ud83d"}"#,
        r#"{"a":"\ude00"}"#,
        r#"{"\ud83dx":1}"#,
        r#"{"a":"\ud83d\u0041"}"#,
        r#"["\\\ud83d"]"#,
        deep,
    ] {
        let tool = Tool::start().await;
        tool.then(Act::Ok(json));
        let gateway = Gateway::with_tool(&tool, "").await;
        for _ in 0..2 {
            let said = gateway.mcp_call(json!({ "n": 1 })).await.expect_ok();
            let read = strictly(&said);
            assert_eq!(read["result"].get("structuredContent"), None, "{json}");
            assert!(said.told().ends_with(json), "{}", said.told());
        }
        assert_eq!(tool.effects(), 1);
        gateway.stop().await;
    }
    for json in [
        r#"{"a":"\ud83d\ude00"}"#,
        r#"{"a":"\\ud83d"}"#,
        r#"{"a":"[[[["}"#,
    ] {
        let tool = Tool::start().await;
        tool.then(Act::Ok(json));
        let gateway = Gateway::with_tool(&tool, "").await;
        let said = gateway.mcp_call(json!({})).await.expect_ok();
        assert!(strictly(&said)["result"]["structuredContent"].is_object());
        gateway.stop().await;
    }
    let rejection: &'static str = r#"{"why":"\ud83d"}"#;
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", rejection.as_bytes()));
    let gateway = Gateway::with_tool(&tool, "").await;
    let said = gateway.mcp_call(json!({})).await.expect_ok();
    strictly(&said);
    assert!(said.told().ends_with(rejection), "{}", said.told());
    gateway.stop().await;
}

#[tokio::test]
async fn a_servers_result_that_not_every_client_can_read_goes_as_text() {
    for (text, is_error) in [
        (
            r#"{"content":[{"type":"text","text":"\ud83d"}],"isError":false}"#,
            false,
        ),
        (
            r#"{"content":[],"structuredContent":{"a":"\ude00"}}"#,
            false,
        ),
        (
            r#"{"content":[{"type":"text","text":"x\ud83d"}],"isError":true}"#,
            true,
        ),
    ] {
        let upstream = Upstream::modern().await;
        let gateway = Gateway::start(&upstream.config("")).await;
        upstream.then(Does::Text(text));
        for is_replay in [false, true] {
            let said = gateway.mcp_call(json!({ "n": 1 })).await.expect_ok();
            strictly(&said);
            assert!(said.told().ends_with(text), "{}", said.told());
            assert_eq!(said.is_error(), is_error);
            assert_eq!(
                said.told().contains("tored result"),
                is_replay,
                "{}",
                said.told()
            );
        }
        assert_eq!(upstream.effects(), 1);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn the_first_text_of_a_servers_stored_result_says_so() {
    for (content, first) in [
        (json!([{ "type": "text", "text": "é\"\n" }]), 0),
        (
            json!([{ "text": "é\"\n", "type": "text", "annotations": { "priority": 0.5 } }, { "type": "text", "text": "b" }]),
            0,
        ),
        (json!([]), 0),
        (
            json!([{ "type": "image", "data": "AA==", "mimeType": "image/png" }]),
            0,
        ),
    ] {
        let upstream = Upstream::modern().await;
        let gateway = Gateway::start(&upstream.config("")).await;
        upstream.then(Does::Json(json!({ "content": content })));
        let read = async || {
            let said = gateway.mcp_call(json!({ "n": 1 })).await.expect_ok();
            said.message()["result"]["content"].clone()
        };
        assert_eq!(
            read().await,
            content,
            "the first answer is the server's own"
        );
        let mut replayed = read().await;
        let text = replayed[first]["text"].as_str().expect("a text").to_owned();
        assert!(text.starts_with("Stored result of"), "{text}");
        let has_text = content[first]["type"] == "text";
        if has_text {
            assert!(text.ends_with(".\n\né\"\n"), "{text}");
            replayed[first]["text"] = content[first]["text"].clone();
            assert_eq!(replayed, content, "nothing else is changed");
        } else {
            assert!(text.ends_with("confirm-duplicate-of\"]."), "{text}");
            let rest = replayed.as_array().map(|blocks| &blocks[1..]);
            assert_eq!(rest, content.as_array().map(Vec::as_slice));
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn text_and_meta_of_a_failure_have_one_wording() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = Gateway::with_tool(&tool, "breaker = { failures = 1000 }").await;
    let unknown = gateway.mcp_call(json!({ "n": 1 })).await;
    let reused = {
        let args = |n: u32| json!({ "n": n, "idempotency_key": "k" });
        gateway.mcp_call(args(2)).await;
        gateway.mcp_call(args(3)).await
    };
    for said in [unknown, reused] {
        assert!(said.is_error(), "{}", said.text);
        assert_eq!(said.meta("problem")["detail"], said.told(), "{}", said.text);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_tool_without_a_schema_is_listed_as_an_open_object() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let listed = gateway.mcp("tools/list", json!({})).await.expect_ok();
    let schema = listed.at("/result/tools/0/inputSchema");
    assert_eq!(
        schema,
        json!({ "type": "object", "properties": {}, "additionalProperties": true })
    );
    gateway.stop().await;
}
