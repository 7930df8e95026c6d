//! Messages of MCP: each gets a clear answer, and a malformed one reaches no tool.

use serde_json::{Value, json};

use crate::config::mistakes::{cases, check_said, read};
use crate::support::gateway::one_tool;
use crate::support::mcp::{LEGACY, MODERN, meta, token};
use crate::support::{Answer, Gateway, Tool};

fn call(meta: Value) -> String {
    let params = json!({ "name": "act", "arguments": {}, "_meta": meta });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
}

#[tokio::test]
async fn a_body_that_is_no_message_gets_an_error_and_runs_nothing() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("nonsense", -32700),
        ("[]", -32600),
        ("{}", -32600),
        (
            r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"act"}}"#,
            -32600,
        ),
        (
            r#"{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"act"}}"#,
            -32600,
        ),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32600),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}"#,
            -32600,
        ),
        (
            r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"act"}}"#,
            -32600,
        ),
        (
            r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act"}}]"#,
            -32600,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act","name":"act"}}"#,
            -32602,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}"#,
            -32602,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"act","_meta":[]}}"#,
            -32602,
        ),
    ] {
        let said = Answer::to(gateway.mcp_raw(body.to_owned())).await;
        assert_eq!((said.status, said.rpc_code()), (400, code), "{body}");
        let has_good_id = body.contains("\"id\":1") && !body.starts_with('[');
        let id = if has_good_id { json!(1) } else { Value::Null };
        assert_eq!(said.at("/id"), id, "{body}");
    }
    for params in [json!({}), json!({ "name": "act", "arguments": "{}" })] {
        let said = gateway.mcp_legacy("tools/call", params.clone()).await;
        assert_eq!((said.status, said.rpc_code()), (200, -32602), "{params}");
    }
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"act","arguments":{deep}}}}}"#
    );
    let said = Answer::to(gateway.mcp_raw(deep)).await.expect_ok();
    assert!(said.is_error());
    let problem = said.meta("problem");
    assert_eq!(problem["type"], "/problems/invalid-request");
    let large = call(json!({ "large": "a".repeat(2 << 20) }));
    Answer::to(gateway.mcp_raw(large))
        .await
        .expect_problem("body-too-large");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_modern_request_whose_headers_and_body_differ_is_refused() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let good = [
        ("mcp-protocol-version", MODERN),
        ("mcp-method", "tools/call"),
        ("mcp-name", "act"),
    ];
    let send = async |headers: Vec<(&str, &str)>, body: String| {
        let request = gateway.mcp_raw(body);
        let with = headers.into_iter().fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        Answer::to(with).await
    };
    for (name, _) in good {
        let others = || good.into_iter().filter(move |(other, _)| *other != name);
        let without = send(others().collect(), call(meta(json!({})))).await;
        let wrong = send(
            others().chain([(name, "tools/list")]).collect(),
            call(meta(json!({}))),
        )
        .await;
        for said in [&without, &wrong] {
            assert_eq!(said.status, 400, "{name}: {}", said.text);
            assert_eq!(said.rpc_code(), -32020, "{name}: {}", said.text);
        }
        let twice = send(
            good.into_iter().chain([(name, "act")]).collect(),
            call(meta(json!({}))),
        )
        .await;
        assert_eq!(twice.rpc_code(), -32020, "{name}: {}", twice.text);
    }
    let unknown = meta(json!({ "io.modelcontextprotocol/protocolVersion": "2099-01-01" }));
    let said = send(vec![("mcp-protocol-version", "2099-01-01")], call(unknown)).await;
    assert_eq!((said.status, said.rpc_code()), (400, -32022));
    let data = json!({ "supported": [MODERN, LEGACY, "2025-06-18", "2025-03-26", "2024-11-05"], "requested": "2099-01-01" });
    assert_eq!(said.message()["error"]["data"], data);
    let bare = json!({ "io.modelcontextprotocol/protocolVersion": MODERN });
    let said = send(good.to_vec(), call(bare)).await;
    assert_eq!(
        (said.status, said.rpc_code()),
        (400, -32602),
        "capabilities are missing"
    );
    assert_eq!(tool.requests(), 0);
    let said = send(good.to_vec(), call(meta(json!({})))).await;
    assert!(!said.is_error(), "{}", said.text);
    gateway.stop().await;
}

#[tokio::test]
async fn headers_that_repeat_arguments_must_agree_with_them() {
    let tool = Tool::start().await;
    let schema = "input_schema = { properties = { region = { type = \"string\", x-mcp-header = \"Region\" } } }";
    let gateway = Gateway::with_tool(&tool, schema).await;
    let request = || {
        gateway.mcp_request(
            "tools/call",
            json!({ "name": "act", "arguments": { "region": "eu" } }),
        )
    };
    assert_eq!(Answer::to(request()).await.rpc_code(), -32020);
    assert_eq!(
        Answer::to(request().header("mcp-param-region", "us"))
            .await
            .rpc_code(),
        -32020
    );
    assert_eq!(tool.requests(), 0);
    assert!(
        !Answer::to(request().header("mcp-param-region", "eu"))
            .await
            .is_error()
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_of_the_older_era_begins_without_a_session() {
    let gateway = Gateway::start("").await;
    for (wanted, got) in [
        ("2025-06-18", "2025-06-18"),
        (LEGACY, LEGACY),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("2023-01-01", LEGACY),
    ] {
        let params = json!({ "protocolVersion": wanted, "capabilities": {}, "clientInfo": { "name": "a", "version": "1" } });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let said = Answer::to(gateway.mcp_raw(body.to_string()))
            .await
            .expect_ok();
        assert_eq!(said.at("/result/protocolVersion"), got);
        assert_eq!(said.at("/result/serverInfo/name"), "oncegate");
        assert!(said.at("/result/capabilities/tools").is_object());
        assert!(!said.headers.contains_key("mcp-session-id"));
    }
    let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "ping" }).to_string();
    for version in ["2025-03-26", "2024-11-05"] {
        let request = gateway.mcp_raw(body.clone());
        let said = Answer::to(request.header("mcp-protocol-version", version)).await;
        assert_eq!(said.at("/result"), json!({}), "{version}");
    }
    let unknown = gateway
        .mcp_raw(body)
        .header("mcp-protocol-version", "2023-01-01");
    assert_eq!(Answer::to(unknown).await.rpc_code(), -32022);
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let said = Answer::to(gateway.mcp_raw(ready.to_string())).await;
    assert_eq!((said.status, said.text.as_str()), (202, ""));
    assert_eq!(
        gateway.mcp_legacy("ping", json!({})).await.at("/result"),
        json!({})
    );
    let unknown = gateway.mcp_legacy("resources/list", json!({})).await;
    assert_eq!(
        (unknown.status, unknown.rpc_code()),
        (200, -32601),
        "404 would end a session there"
    );
    let url = gateway.url("/mcp");
    for request in [gateway.client.get(&url), gateway.client.delete(&url)] {
        Answer::to(request)
            .await
            .expect_problem("method-not-allowed");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_of_the_newer_era_discovers_the_server() {
    let gateway = Gateway::start("").await;
    let said = gateway.mcp("server/discover", json!({})).await.expect_ok();
    assert_eq!(said.at("/result/supportedVersions/0"), MODERN);
    assert_eq!(said.at("/result/resultType"), "complete");
    assert_eq!(said.at("/result/cacheScope"), "public");
    assert!(said.at("/result/ttlMs").is_u64());
    for method in [
        "ping",
        "initialize",
        "resources/list",
        "prompts/list",
        "logging/setLevel",
        "x",
    ] {
        let said = gateway.mcp(method, json!({})).await;
        assert_eq!((said.status, said.rpc_code()), (404, -32601), "{method}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_list_names_the_tools_that_the_token_may_call_in_their_order() {
    let tool = Tool::start().await;
    let url = tool.url();
    let tokens = token("narrow", r#"["call:b", "call:a"]"#, "");
    let gateway = Gateway::start(&format!(
        "{tokens}[tools.b]\nurl = \"{url}\"\n[tools.a]\nurl = \"{url}\"\neffect = \"read\"\n[tools.c]\nurl = \"{url}\"\n"
    ))
    .await;
    let list = Answer::to(
        gateway
            .mcp_request("tools/list", json!({}))
            .bearer_auth("narrow"),
    )
    .await
    .expect_ok();
    let names: Vec<Value> = list
        .at("/result/tools")
        .as_array()
        .expect("a list")
        .iter()
        .map(|tool| tool["name"].clone())
        .collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(list.at("/result/cacheScope"), "private");
    assert!(list.at("/result/ttlMs").is_u64());
    assert_eq!(list.at("/result/tools/0/annotations/readOnlyHint"), true);
    // Without a schema of its own a tool takes any arguments.
    let open = list.at("/result/tools/1/inputSchema");
    assert_eq!(open["additionalProperties"], true);
    assert_eq!(open.get("required"), None);
    let forbidden = json!({ "name": "c", "arguments": {} });
    let said = Answer::to(
        gateway
            .mcp_request("tools/call", forbidden)
            .bearer_auth("narrow"),
    )
    .await;
    assert!(said.is_error());
    assert_eq!(said.meta("problem")["type"], "/problems/forbidden");
    let stranger = Answer::to(gateway.mcp_request("tools/list", json!({}))).await;
    assert_eq!(stranger.expect_problem("unauthenticated").status, 401);
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn only_pages_of_listed_origins_may_ask() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "[mcp]\norigins = [\"https://app.example\"]\n").await;
    let request = || gateway.mcp_request("tools/call", json!({ "name": "act", "arguments": {} }));
    for origin in [
        "https://evil.example",
        "https://app.example.evil",
        "http://app.example",
        "null",
    ] {
        Answer::to(request().header("origin", origin))
            .await
            .expect_problem("forbidden");
    }
    let rebound = request().header("host", "app.example");
    Answer::to(rebound).await.expect_problem("forbidden");
    assert_eq!(tool.requests(), 0);
    let own = gateway.url("");
    for origin in ["https://app.example", &own] {
        let said = Answer::to(request().header("origin", origin)).await;
        assert!(!said.is_error(), "{}", said.text);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn with_tokens_a_web_page_needs_a_listed_origin_and_a_token() {
    let tool = Tool::start().await;
    let config = token("page", r#"["call"]"#, "")
        + "[mcp]\norigins = [\"https://app.example\"]\n"
        + &one_tool(&tool, "");
    let gateway = Gateway::start(&config).await;
    let request = || gateway.mcp_request("tools/call", json!({ "name": "act", "arguments": {} }));
    let with_token = |origin: &str| request().header("origin", origin).bearer_auth("page");
    let listed = "https://app.example";
    Answer::to(request().header("origin", listed))
        .await
        .expect_problem("unauthenticated");
    Answer::to(with_token("https://evil.example"))
        .await
        .expect_problem("forbidden");
    // A page that reaches this gateway under its own host name (DNS rebinding).
    let rebound = with_token("http://evil.example").header("host", "evil.example");
    Answer::to(rebound).await.expect_problem("forbidden");
    assert_eq!(tool.requests(), 0);
    for origin in [listed, &gateway.url("")] {
        let said = Answer::to(with_token(origin)).await;
        assert!(!said.is_error(), "{}", said.text);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_user_or_session_that_cannot_be_read_is_refused() {
    let tool = Tool::start().await;
    let rules = "[mcp]\nuser = [\"header:X-User\"]\nsession = [\"header:x-session\"]\n";
    let gateway = Gateway::with_tool(&tool, rules).await;
    let request = || gateway.mcp_request("tools/call", json!({ "name": "act", "arguments": {} }));
    for name in ["x-user", "x-session"] {
        let twice = request().header(name, "ada").header(name, "bob");
        let no_text = request().header(name, &b"\xff"[..]);
        for wrong in [twice, no_text] {
            assert_eq!(Answer::to(wrong).await.rpc_code(), -32602, "{name}");
        }
    }
    assert_eq!(tool.requests(), 0);
    let good = request().header("x-user", "ada").header("x-session", "s");
    assert!(!Answer::to(good).await.is_error());
    gateway.stop().await;
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for [line, words] in &cases(
        r#"
        answer_within = "0s" => mcp.answer_within: must be longer than zero
        answer_within = "11m" => mcp.answer_within: must be longer than zero
        origins = ["app.example"] => mcp.origins: an origin looks like
        origins = ["https://app.example/"] => mcp.origins: an origin looks like
        session = ["meta:"] => mcp.session: "meta:" is not a place in a request
        user = ["cookie:a"] => mcp.user: "cookie:a" is not a place in a request
        user = ["header:a b"] => mcp.user: "header:a b" is not a place in a request
        key_meta = [""] => mcp.key_meta: must be names of members
        client_ids = [""] => mcp.client_ids: must be names of members
        client_ids = ["a", "b", "c", "d", "e", "f", "g", "h", "i"] => mcp.client_ids: must be at most 8
        client_call_id = ["x-call"] => mcp.client_call_id: "x-call" is not a place in a request
        tools = [] => mcp.tools
    "#,
    ) {
        let text = format!("[store]\nurl = \"sqlite:x.db\"\n[mcp]\n{line}\n");
        check_said(&read(&text, &[]).expect_err(line), words);
    }
}
