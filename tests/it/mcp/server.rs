//! `POST /mcp/{upstream}`: one MCP server as its clients see it.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::support::binary::{Process, free_port};
use crate::support::mcp::{LEGACY, MODERN, meta};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::{Does, Upstream, result};
use crate::support::{Answer, Gateway, client};

on_both_stores!(
    a_tool_that_no_section_names_has_one_effect_for_each_call,
    the_same_call_at_once_by_all_gateways_has_one_effect,
    the_clients_id_of_a_request_is_in_the_ledger_and_in_no_key,
);

fn request(gateway: &Gateway, method: &str, params: Value) -> RequestBuilder {
    request_to(&gateway.url("/mcp/up"), method, params)
}

fn request_to(url: &str, method: &str, mut params: Value) -> RequestBuilder {
    let name = params.get("name").or_else(|| params.get("uri"));
    let name = name.and_then(Value::as_str).map(str::to_owned);
    params["_meta"] = meta(params.get("_meta").cloned().unwrap_or_else(|| json!({})));
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
    let request = client().post(url).body(body.to_string());
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request
        .header("mcp-protocol-version", MODERN)
        .header("mcp-method", method);
    match name {
        Some(name) => request.header("mcp-name", name),
        None => request,
    }
}

async fn ask(gateway: &Gateway, method: &str, params: Value) -> Answer {
    Answer::to(request(gateway, method, params)).await
}

async fn call(gateway: &Gateway, tool: &str, args: Value) -> Answer {
    ask(
        gateway,
        "tools/call",
        json!({ "name": tool, "arguments": args }),
    )
    .await
}

async fn ask_legacy(gateway: &Gateway, method: &str, params: Value) -> Answer {
    let body = json!({ "jsonrpc": "2.0", "id": "seven", "method": method, "params": params });
    let request = gateway
        .client
        .post(gateway.url("/mcp/up"))
        .body(body.to_string());
    Answer::to(request.header("mcp-protocol-version", LEGACY)).await
}

fn config(upstream: &Upstream, more: &str) -> String {
    format!("[upstreams.up]\nurl = \"{}\"\n{more}\n", upstream.url())
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "inputSchema": { "type": "object" }, "new": 1.5 })
}

async fn a_tool_that_no_section_names_has_one_effect_for_each_call(stores: &Stores) {
    let upstream = Upstream::modern().await;
    upstream.list(&[tool("other"), tool("create.order")]);
    let gateway = stores.gateway(&config(&upstream, "")).await;
    let args = json!({ "n": 1, "idempotency_key": "the-tools-own" });
    let first = call(&gateway, "create.order", args.clone())
        .await
        .expect_ok();
    assert_eq!(first.meta("replayed"), Value::Null);
    let replay = call(&gateway, "create.order", args.clone())
        .await
        .expect_ok();
    assert_eq!(
        replay.meta("replayed"),
        true,
        "{} {}",
        first.text,
        replay.text
    );
    assert_eq!(
        replay.at("/result/structuredContent"),
        first.at("/result/structuredContent")
    );
    assert_eq!(upstream.effects(), 1);
    let (_, sent) = upstream.seen("tools/call").pop().expect("a call");
    assert_eq!(sent["params"]["name"], "create.order");
    assert_eq!(
        sent["params"]["arguments"], args,
        "nothing is taken out of them"
    );
    let listed = gateway.get("/v1/calls?tool=up.create.order").await;
    assert_eq!(
        listed.at("/calls/0/tool"),
        "up.create.order",
        "{}",
        listed.text
    );

    upstream.then(Does::ExecuteThenNothing);
    for _ in 0..3 {
        let said = call(&gateway, "create.order", json!({ "n": 2 })).await;
        assert!(said.is_error());
        assert_eq!(said.meta("problem")["type"], "/problems/outcome-unknown");
    }
    assert_eq!(upstream.effects(), 2);
    let unlisted = call(&gateway, "no.such", json!({})).await;
    assert_eq!(unlisted.rpc_code(), -32602);
    assert_eq!(upstream.effects(), 2);
    gateway.stop().await;
}

async fn the_same_call_at_once_by_all_gateways_has_one_effect(stores: &Stores) {
    let upstream = Upstream::legacy().await;
    upstream.list(&[tool("a")]);
    let gateways = stores.gateways(&config(&upstream, "")).await;
    upstream.then(Does::Late(Duration::from_millis(200), result("done")));
    let asked = (0..20).map(|n| call(&gateways[n % gateways.len()], "a", json!({ "n": 1 })));
    for said in join_all(asked).await {
        assert!(said.told().ends_with("done"), "{}", said.text);
    }
    assert_eq!(upstream.effects(), 1);
    for gateway in gateways {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn an_unknown_call_is_reported_though_the_server_no_longer_lists_its_tool() {
    let upstream = Upstream::modern().await;
    upstream.list(&[tool("a")]);
    let stores = Stores::Sqlite;
    let gateway = stores.gateway(&config(&upstream, "")).await;
    upstream.then(Does::ExecuteThenNothing);
    let first = call(&gateway, "a", json!({})).await;
    let is_unknown = |said: &Answer| {
        assert_eq!(
            said.meta("problem")["type"],
            "/problems/outcome-unknown",
            "{}",
            said.text
        );
        assert_eq!(said.meta("call-id"), first.meta("call-id"));
    };
    is_unknown(&first);
    upstream.list(&[]);
    let gateway = stores.again(gateway, &config(&upstream, "")).await;
    is_unknown(&call(&gateway, "a", json!({})).await);
    assert!(
        gateway
            .reload(&config(&upstream, "dedup_window = \"20m\""))
            .await
    );
    is_unknown(&call(&gateway, "a", json!({})).await);
    // A section with the name of the tool keeps its calls.
    let section = "[tools.\"up.a\"]\nupstream = \"up\"\ndescription = \"d\"";
    assert!(gateway.reload(&config(&upstream, section)).await);
    is_unknown(&call(&gateway, "a", json!({})).await);
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_tool_that_the_server_no_longer_marks_as_a_read_is_a_write() {
    let upstream = Upstream::modern().await;
    let mut read = tool("a");
    read["annotations"] = json!({ "readOnlyHint": true });
    upstream.list(&[read]);
    let gateway = Gateway::start(&config(&upstream, "trust_annotations = true")).await;
    call(&gateway, "a", json!({})).await.expect_ok();
    call(&gateway, "a", json!({})).await.expect_ok();
    assert_eq!(upstream.effects(), 2);
    upstream.list(&[tool("a")]);
    // A reload of the configuration reads the list again.
    let again = config(
        &upstream,
        "trust_annotations = true\ndedup_window = \"20m\"",
    );
    assert!(gateway.reload(&again).await);
    call(&gateway, "a", json!({})).await.expect_ok();
    call(&gateway, "a", json!({})).await.expect_ok();
    assert_eq!(upstream.effects(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_is_the_same_call_at_every_route() {
    let upstream = Upstream::modern().await;
    let more = "[tools.create]\nupstream = \"up\"\ntool = \"create_order\"";
    let gateway = Gateway::start(&config(&upstream, more)).await;
    let args = json!({ "n": 1 });
    call(&gateway, "create_order", args.clone())
        .await
        .expect_ok();
    let same = json!({ "name": "create", "arguments": args });
    let replay = gateway.mcp("tools/call", same).await;
    assert_eq!(replay.meta("replayed"), true, "{}", replay.text);
    assert_eq!(upstream.effects(), 1);
    assert!(upstream.seen("tools/list").is_empty(), "a section names it");
    gateway.stop().await;
}

#[tokio::test]
async fn a_list_is_the_servers_own_without_tools_that_the_token_may_not_call() {
    let upstream = Upstream::modern().await;
    upstream.list(&[tool("b"), tool("no name for a URL"), tool("a")]);
    let digest = |token: &str| hex::encode(<sha2::Sha256 as sha2::Digest>::digest(token));
    let tokens = format!(
        "[[auth.tokens]]\nname = \"narrow\"\ntenant = \"t\"\nsha256 = \"{}\"\nscopes = [\"call:up.a\"]\n\
         [[auth.tokens]]\nname = \"wide\"\ntenant = \"t\"\nsha256 = \"{}\"\nscopes = [\"call\"]\n",
        digest("narrow"),
        digest("wide"),
    );
    let gateway = Gateway::start(&config(&upstream, &tokens)).await;
    for (token, expected) in [
        ("wide", vec![tool("b"), tool("a")]),
        ("narrow", vec![tool("a")]),
    ] {
        let (mut seen, mut cursor) = (Vec::new(), json!({}));
        loop {
            let page = request(&gateway, "tools/list", cursor).bearer_auth(token);
            let page = Answer::to(page).await.expect_ok();
            assert_eq!(page.at("/result/cacheScope"), "private");
            assert_eq!(page.at("/result/resultType"), "complete");
            seen.extend(page.at("/result/tools").as_array().expect("tools").clone());
            match page.at("/result/nextCursor") {
                Value::Null => break,
                next => cursor = json!({ "cursor": next }),
            }
        }
        assert_eq!(seen, expected, "{token}");
    }
    let narrow =
        |method, params| Answer::to(request(&gateway, method, params).bearer_auth("narrow"));
    let said = narrow("tools/call", json!({ "name": "b", "arguments": {} })).await;
    assert_eq!(said.meta("problem")["type"], "/problems/forbidden");
    narrow("resources/read", json!({ "uri": "a:b" }))
        .await
        .expect_problem("forbidden");
    narrow("tools/call", json!({ "name": "a", "arguments": {} }))
        .await
        .expect_ok();
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn resources_and_prompts_of_a_server_are_passed_on() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let about = ask(&gateway, "server/discover", json!({}))
        .await
        .expect_ok();
    assert_eq!(
        about.at("/result/capabilities"),
        json!({
            "tools": {}, "resources": {},
            "extensions": { "io.modelcontextprotocol/tasks": {} },
        })
    );
    let said = about.at("/result/instructions").to_string();
    assert!(
        said.contains("Be kind.") && said.contains("at most once"),
        "{said}"
    );
    let asked = json!({ "uri": "a:b", "_meta": { "dev.oncegate/session": "s", "own": 1 } });
    let read = ask(&gateway, "resources/read", asked).await.expect_ok();
    assert_eq!(
        read.at("/result/contents/0"),
        json!({ "uri": "a:b", "text": "t" })
    );
    assert_eq!(
        (read.at("/result/new"), read.at("/result/ttlMs")),
        (json!(1.5), json!(0))
    );
    let (headers, sent) = upstream.seen("resources/read").pop().expect("a question");
    assert_eq!(headers["mcp-name"], "a:b");
    assert_eq!(
        (
            sent["params"]["_meta"].get("own"),
            sent["params"]["_meta"].get("dev.oncegate/session")
        ),
        (None, None)
    );
    let error = ask(&gateway, "prompts/get", json!({ "name": "p" })).await;
    assert_eq!((error.status, error.rpc_code()), (400, -32602));
    for method in ["subscriptions/listen", "resources/subscribe", "x"] {
        assert_eq!(
            ask(&gateway, method, json!({})).await.rpc_code(),
            -32601,
            "{method}"
        );
    }
    assert_eq!(upstream.effects(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn clients_and_servers_of_different_eras_understand_each_other() {
    let upstream = Upstream::legacy().await;
    upstream.list(&[tool("a")]);
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let wanted = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } });
    let said = ask_legacy(&gateway, "initialize", wanted).await.expect_ok();
    assert_eq!(said.at("/result/protocolVersion"), "2025-06-18");
    assert_eq!(said.at("/result/capabilities"), json!({ "prompts": {} }));
    let legacy = ask_legacy(&gateway, "tools/list", json!({}))
        .await
        .expect_ok();
    assert_eq!(legacy.at("/result"), json!({ "tools": [tool("a")] }));
    call(&gateway, "a", json!({})).await.expect_ok();
    // A lost session is opened again, and the question repeated.
    upstream.forget_sessions(404, -32_001);
    ask(&gateway, "tools/list", json!({})).await.expect_ok();
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_section_of_upstreams_has_the_settings_of_tools_without_a_section() {
    let upstream = Upstream::modern().await;
    let mut read = tool("read");
    read["annotations"] = json!({ "readOnlyHint": true });
    upstream.list(&[read, tool("write")]);
    for (more, effects) in [
        ("trust_annotations = false", 2),
        ("", 3),
        ("unlisted = \"read\"", 4),
        ("unlisted = \"deny\"", 0),
    ] {
        let before = upstream.effects();
        let gateway = Gateway::start(&config(&upstream, more)).await;
        for tool in ["read", "read", "write", "write"] {
            upstream.then(Does::Json(result("done")));
            let said = call(&gateway, tool, json!({})).await;
            assert_eq!(
                said.status == 200 && said.message().get("result").is_some(),
                effects > 0,
                "{}",
                said.text
            );
        }
        assert_eq!(upstream.effects() - before, effects, "{more}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn without_the_servers_list_of_tools_nothing_is_executed() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}/mcp", nobody.local_addr().expect("an address"));
    drop(nobody);
    let gateway = Gateway::start(&format!("[upstreams.up]\nurl = \"{url}\"")).await;
    let said = call(&gateway, "a", json!({})).await;
    assert_eq!(said.meta("problem")["type"], "/problems/tool-unreachable");
    assert!(
        said.told().starts_with("Nothing was executed"),
        "{}",
        said.told()
    );
    assert_eq!(
        ask(&gateway, "tools/list", json!({})).await.rpc_code(),
        -32603
    );
    assert_eq!(
        ask(&gateway, "server/discover", json!({})).await.rpc_code(),
        -32603
    );
    let other = gateway.client.post(gateway.url("/mcp/none")).body("{}");
    Answer::to(other).await.expect_problem("unknown-path");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_dies_around_a_call_of_a_server_leaves_one_effect_at_most() {
    for point in ["before_first_byte", "after_last_byte", "after_answer"] {
        let upstream = Upstream::modern().await;
        upstream.list(&[tool("a")]);
        // The answer must not arrive before the gateway has noticed that the last byte has left.
        upstream.then(Does::Late(Duration::from_millis(500), result("late")));
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let config = config(&upstream, "");
        let points = format!("{point}=1*return");
        let dying = [("FAILPOINTS", points.as_str())];
        let dies = Process::start_in(folder.path(), port, &config, &dying).await;
        let args = json!({ "name": "a", "arguments": {} });
        let url = dies.url("/mcp/up");
        let ask = async || request_to(&url, "tools/call", args.clone()).send().await;
        assert!(ask().await.is_err(), "it dies at {point}");
        dies.ended().await;
        let executed = upstream.effects();
        assert!(executed <= 1, "{point}");
        let again = Process::start_in(folder.path(), port, &config, &[]).await;
        for _ in 0..3 {
            let said = Answer::read(ask().await.expect("an answer")).await;
            assert_eq!(
                said.meta("problem")["type"],
                "/problems/outcome-unknown",
                "{}",
                said.text
            );
        }
        assert_eq!(upstream.effects(), executed, "{point}");
        again.kill();
    }
}

async fn the_clients_id_of_a_request_is_in_the_ledger_and_in_no_key(stores: &Stores) {
    let upstream = Upstream::modern().await;
    let config = upstream.config("[mcp]\nclient_ids = [\"claudecode/toolUseId\", \"run\"]");
    let gateway = stores.gateway(&config).await;
    let record = async |meta: Value| {
        let params = json!({ "name": "act", "arguments": { "n": 1 }, "_meta": meta });
        let said = ask(&gateway, "tools/call", params).await;
        let id = said.meta("call-id");
        let id = id.as_str().expect("an id").to_owned();
        gateway.get(&format!("/v1/calls/{id}")).await.expect_ok()
    };
    let ids = json!({ "claudecode/toolUseId": "toolu_1", "run": 7 });
    let meta = json!({ "claudecode/toolUseId": "toolu_1", "run": 7, "other": "x" });
    assert_eq!(record(meta).await.at("/client_ids"), ids);
    // A repetition by the model has another id, but is the same call.
    let again = record(json!({ "claudecode/toolUseId": "toolu_2" })).await;
    assert_eq!(again.at("/client_ids"), ids);
    assert_eq!(upstream.effects(), 1);
    let (_, call) = upstream.seen("tools/call").pop().expect("a call");
    assert_eq!(call["params"]["_meta"].get("claudecode/toolUseId"), None);
    let other = gateway.call_with_key("other", json!({ "n": 2 })).await;
    assert_eq!(gateway.record(&other).await.at("/client_ids"), Value::Null);
    gateway.stop().await;
}
