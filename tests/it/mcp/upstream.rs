//! Tools of MCP servers: what their answers prove, and what is forwarded.

use std::time::Duration;

use serde_json::{Value, json};

use crate::config::mistakes::{cases, check_said, read};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::{Does, Upstream, result};
use crate::support::{Answer, Gateway, Tool, until};

on_both_stores!(
    a_call_of_either_era_has_one_effect_and_its_result_for_each_repetition,
    a_call_that_a_server_may_have_executed_is_never_sent_again,
    a_call_that_was_not_executed_may_run_again,
);

/// One attempt only, so that each answer shows the outcome of one attempt.
const ONCE: &str = "retry = { attempts = 1 }";

async fn act(gateway: &Gateway, key: &str) -> Answer {
    gateway.call_with_key(key, json!({ "n": 1 })).await
}

async fn a_call_of_either_era_has_one_effect_and_its_result_for_each_repetition(stores: &Stores) {
    for (era, upstream) in [
        ("m", Upstream::modern().await),
        ("l", Upstream::legacy().await),
    ] {
        let gateway = stores.gateway(&upstream.config("")).await;
        for (key, does) in [
            ("json", Does::Json(result("done"))),
            ("stream", Does::Stream(result("done"))),
            ("twice", Does::Twice(result("other"))),
        ] {
            let (key, before) = (format!("{era}-{key}"), upstream.effects());
            upstream.then(does);
            let first = act(&gateway, &key).await.expect_ok();
            assert_eq!(
                act(&gateway, &key).await.expect_ok().result(),
                first.result()
            );
            assert_eq!(upstream.effects(), before + 1, "{key}");
        }
        let (headers, call) = upstream.seen("tools/call").pop().expect("a call");
        assert_eq!(headers["x-secret"], "of-the-gateway");
        assert_eq!(
            headers["idempotency-key"].to_str().ok(),
            call["params"]["_meta"]["dev.oncegate/idempotency-key"].as_str()
        );
        assert_eq!(call["params"]["arguments"], json!({ "n": 1 }));
        let asked = upstream.seen("initialize").len() + upstream.seen("server/discover").len();
        assert!(asked <= 2, "the revision is agreed on once: {asked}");
        gateway.stop().await;
    }
}

async fn a_call_that_a_server_may_have_executed_is_never_sent_again(stores: &Stores) {
    let upstream = Upstream::modern().await;
    let gateway = stores
        .gateway(
            &upstream
                .config("timeout = \"1s\"\ndeadline = \"3s\"\nbreaker = { failures = 1000 }\n[server]\nmax_result = \"64KiB\""),
        )
        .await;
    for (n, does) in [
        Does::StreamThenEnd(b""),
        Does::StreamThenEnd(b"data: {\"jsonrpc\":\"2.0\",\"id\":"),
        Does::StreamThenEnd(b"data: \xe4\xb8"),
        Does::StreamThenEnd(b"data: {}\n\ndata: [1]\n\n"),
        Does::StreamThenHang,
        Does::OtherId,
        Does::OtherIdInStream,
        Does::Long(1 << 20),
        Does::ExecuteThenError(-32_603),
        Does::ExecuteThenError(-32_000),
        Does::ExecuteThenError(-32_600),
        Does::ExecuteThenError(-32_601),
        Does::ExecuteThenError(-32_602),
        Does::ExecuteThenError(-32_021),
        Does::ExecuteThenRefuse(-32_602),
        Does::ExecuteThenRefuse(-32_600),
        Does::ExecuteThenRefuse(-32_020),
        Does::ExecuteThenRefuse(-32_022),
        Does::RefuseAnother,
        Does::StreamThenEnd(b"data: {\"id\":null,\"error\":{\"code\":-32600}}\n\n"),
        Does::ExecuteThenNothing,
        Does::ExecuteThenStatus(500),
        Does::ExecuteThenStatus(502),
        Does::ExecuteThenStatus(307),
        Does::ExecuteThenStatus(404),
        Does::ExecuteThenNameless(404, -32_001),
        Does::ExecuteThenNameless(400, -32_000),
        Does::ExecuteThenNameless(400, -32_020),
        Does::ExecuteThenNameless(400, -32_022),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.then(does.clone());
        let key = format!("k{n}");
        for _ in 0..3 {
            act(&gateway, &key).await.expect_problem("outcome-unknown");
        }
        assert_eq!(upstream.effects(), n + 1, "{does:?}");
    }
    assert_eq!(upstream.seen("tools/call").len(), upstream.effects());
    gateway.stop().await;
}

async fn a_call_that_was_not_executed_may_run_again(stores: &Stores) {
    let upstream = Upstream::modern().await;
    let gateway = stores.gateway(&upstream.config(ONCE)).await;
    for (n, (does, problem)) in [
        (Does::Nameless(400, -32_600), "tool-rejected"),
        (Does::Nameless(400, -32_602), "tool-rejected"),
        (Does::Status(401), "tool-rejected"),
        (Does::Status(403), "tool-rejected"),
        (Does::Status(413), "tool-rejected"),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.then(does.clone());
        let key = format!("k{n}");
        act(&gateway, &key).await.expect_problem(problem);
        act(&gateway, &key).await.expect_ok();
        assert_eq!(upstream.effects(), n + 1, "{does:?}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn errors_about_the_request_prove_what_the_operator_declares() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("request_errors = \"rejected\"")).await;
    for (n, code) in [-32_600, -32_601, -32_602, -32_021].into_iter().enumerate() {
        upstream.then(Does::Error(200, code));
        let key = format!("k{n}");
        act(&gateway, &key).await.expect_problem("tool-rejected");
        act(&gateway, &key).await.expect_ok();
        assert_eq!(upstream.effects(), n + 1, "{code}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_that_the_server_has_forgotten_is_opened_again_and_the_call_sent_once_more() {
    let upstream = Upstream::legacy().await;
    let gateway = Gateway::start(&upstream.config("")).await;
    act(&gateway, "before").await.expect_ok();
    for (n, (status, code)) in [(404, -32_001), (400, -32_000)].into_iter().enumerate() {
        upstream.forget_sessions(status, code);
        act(&gateway, &format!("after-{n}")).await.expect_ok();
        assert_eq!(upstream.effects(), n + 2);
        assert_eq!(upstream.seen("initialize").len(), n + 2);
        assert_eq!(upstream.seen("notifications/initialized").len(), n + 2);
    }
    // Many calls find the session lost at once, and share few new sessions.
    upstream.forget_sessions(404, -32_001);
    let keys: Vec<String> = (0..10).map(|n| format!("many-{n}")).collect();
    let calls = keys.iter().map(|key| act(&gateway, key));
    for answer in futures_util::future::join_all(calls).await {
        answer.expect_ok();
    }
    assert_eq!(upstream.effects(), 13);
    assert!(
        upstream.seen("initialize").len() <= 6,
        "{}",
        upstream.seen("initialize").len()
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_whose_revision_cannot_be_learned_is_sent_nothing() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    drop(listener);
    let config = format!("[upstreams.up]\nurl = \"{url}\"\n[tools.act]\nupstream = \"up\"\n{ONCE}");
    let gateway = Gateway::start(&config).await;
    act(&gateway, "k").await.expect_problem("tool-unreachable");
    gateway.stop().await;

    // A server that speaks neither revision, and a server that does not answer.
    let tool = Tool::start().await;
    let config = format!(
        "[upstreams.up]\nurl = \"{}\"\n[tools.act]\nupstream = \"up\"\n{ONCE}",
        tool.url()
    );
    let gateway = Gateway::start(&config).await;
    act(&gateway, "k").await.expect_problem("tool-unreachable");
    assert!(
        tool.seen()
            .iter()
            .all(|seen| !seen.body.contains("tools/call"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn an_error_that_is_a_result_means_what_the_tool_declares() {
    let failed =
        json!({ "content": [{ "type": "text", "text": "no such city" }], "isError": true });
    for (declared, problem) in [
        ("remember", ""),
        ("rejected", "tool-rejected"),
        ("unknown", "outcome-unknown"),
    ] {
        let upstream = Upstream::modern().await;
        let more = format!("tool_error = \"{declared}\"");
        let gateway = Gateway::start(&upstream.config(&more)).await;
        upstream.then(Does::Json(failed.clone()));
        let first = act(&gateway, "k").await;
        assert_eq!(first.problem(), problem, "{declared}");
        if declared == "remember" {
            let replay = gateway
                .mcp(
                    "tools/call",
                    json!({ "name": "act", "arguments": { "n": 1 },
                    "_meta": { "dev.oncegate/idempotency-key": "k" } }),
                )
                .await;
            assert!(replay.is_error(), "{}", replay.text);
            assert!(replay.told().ends_with("\n\nno such city"));
            let note = replay.told();
            assert!(
                note.contains("This error is the stored result of call"),
                "{note}"
            );
            assert_eq!(replay.meta("replayed"), true);
        }
        assert_eq!(upstream.effects(), 1);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_tool_that_reads_is_asked_whether_an_unknown_call_was_executed() {
    let upstream = Upstream::modern().await;
    let config = upstream.config(
        "unknown = \"probe\"\nrecheck = { base = \"100ms\", max = \"200ms\" }\n\
         probe = { tool = \"find\", args = { key = \"/call/tool_key\" }, found = \"/order/id\" }\n\
         [tools.find]\nupstream = \"up\"\ntool = \"find_order\"\neffect = \"read\"\n",
    );
    let gateway = Gateway::start(&config).await;
    let found = json!({ "content": [], "structuredContent": { "order": { "id": 7 } } });
    let missing = json!({ "content": [], "structuredContent": { "order": null } });
    for does in [
        Does::ExecuteThenStatus(500),
        Does::Error(200, -32_603),
        Does::Json(json!({ "content": [], "isError": true })),
        Does::Json(missing),
        Does::Json(found.clone()),
    ] {
        upstream.then(does);
    }
    act(&gateway, "k").await.expect_problem("outcome-unknown");
    until("it is found", async || {
        act(&gateway, "k").await.status == 200
    })
    .await;
    assert_eq!(act(&gateway, "k").await.at("/result"), found);
    let mut calls = upstream
        .seen("tools/call")
        .into_iter()
        .map(|(_, call)| call);
    let key =
        calls.next().expect("the call")["params"]["_meta"]["dev.oncegate/idempotency-key"].clone();
    let probes: Vec<Value> = calls.collect();
    assert_eq!(
        probes.len(),
        4,
        "the call is sent once, and the probe until it says something"
    );
    for probe in probes {
        assert_eq!(probe["params"]["name"], "find_order");
        assert_eq!(probe["params"]["arguments"], json!({ "key": key }));
        assert_eq!(
            probe["params"]["_meta"].get("dev.oncegate/idempotency-key"),
            None
        );
    }
    gateway.stop().await;
}

#[test]
fn settings_of_upstreams_that_make_no_sense_are_refused() {
    let upstream = "[upstreams.up]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    for [lines, words] in &cases(
        r#"
        [tools.a];upstream = "other" => tools.a.upstream: there is no such section
        [tools.a];upstream = "up";url = "http://127.0.0.1:1/" => tools.a.url: this is for tools that have a URL
        [tools.a];upstream = "up";outcomes = { 200 = "executed" } => tools.a.outcomes: over MCP the response decides
        [tools.a];upstream = "up";tool = "" => tools.a.tool: this is not a name of a tool
        [tools.a];upstream = "up";tool_error = "ignore" => tools.a.tool_error
        [tools.a];upstream = "up";redact = { result = ["/structuredContent/card"] } => the texts of an MCP result repeat
        [tools.a];url = "http://127.0.0.1:1/";tool_error = "unknown" => tools.a.tool_error: this is for tools of an upstream
        [tools.a];url = "http://127.0.0.1:1/";tool = "b" => tools.a.tool
        [tools.a];upstream = "up";unknown = "probe" => tools.a.unknown: "probe" needs probe
        [tools.a];upstream = "up";unknown = "probe";probe = { tool = "a" } => tools.a.probe.found: this key is missing
        [tools.a];upstream = "up";unknown = "probe";probe = { tool = "b", found = "/x" } => a.probe: b: there is no such tool
        [tools.a];upstream = "up";unknown = "probe";probe = { tool = "a", found = "/x" } => a.probe: a: it writes
        [tools.a];upstream = "up";unknown = "probe";probe = { tool = "b", found = "/x", args = { all = true } };[tools.b];upstream = "up";effect = "read" => a.probe: args: nothing in them names the call
        [tools.a];upstream = "up";unknown = "probe";probe = { tool = "b", found = "/x", args = { a = "/args", r = "/result" } };[tools.b];upstream = "up";effect = "read" => a.probe: args: an unknown call has no result
        [tools.a];upstream = "up";input_schema = { type = "object", properties = { p = { x-mcp-header = "a b" } } } => tools.a.input_schema: x-mcp-header: "mcp-param-a b" is not a header name
        [tools.a];upstream = "up";[tools.b];upstream = "up";tool = "a" => b: a is the tool a of this upstream, too
        [tools."other.a"];upstream = "up" => a name with a dot is that of the upstream
        [tools."up.a"];upstream = "up";tool = "b" => a name with a dot is that of the upstream
        [tools."up.a"];url = "http://127.0.0.1:1/" => a tool's name has
        [upstreams.b];url = "http://127.0.0.1:1/";headers = { Mcp-Session-Id = "x" } => upstreams.b.headers
        [upstreams.b];url = "http://127.0.0.1:1/";unlisted = "maybe" => upstreams.b.unlisted
        [upstreams.b];url = "http://127.0.0.1:1/";dedup_window = "1s" => upstreams.b.dedup_window
        [upstreams."a b"];url = "http://127.0.0.1:1/" => an upstream's name
        [upstreams.b];url = "ftp://127.0.0.1:1/" => upstreams.b.url
        [upstreams.b];url = "http://127.0.0.1:1/";era = "old" => upstreams.b.era
    "#,
    ) {
        let lines = lines.replace(';', "\n");
        let text = format!("[store]\nurl = \"sqlite:x.db\"\n{upstream}{lines}\n");
        check_said(&read(&text, &[]).expect_err(&lines), words);
    }
}

#[tokio::test]
async fn a_late_response_settles_an_unknown_call() {
    let upstream = Upstream::modern().await;
    let gateway =
        Gateway::start(&upstream.config("timeout = \"100ms\"\nretry = { attempts = 1 }")).await;
    upstream.then(Does::Late(Duration::from_millis(600), result("late")));
    act(&gateway, "k").await.expect_problem("outcome-unknown");
    until("it is settled", async || {
        act(&gateway, "k").await.status == 200
    })
    .await;
    assert_eq!(act(&gateway, "k").await.at("/result"), result("late"));
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn an_upstream_is_read_again_with_its_tools() {
    let (before, after) = (Upstream::modern().await, Upstream::legacy().await);
    let gateway = Gateway::start(&before.config("")).await;
    act(&gateway, "before").await.expect_ok();
    assert!(gateway.reload(&after.config("")).await);
    act(&gateway, "before").await.expect_ok();
    act(&gateway, "after").await.expect_ok();
    assert_eq!((before.effects(), after.effects()), (1, 1));
    gateway.stop().await;
}

#[tokio::test]
async fn other_credentials_open_another_session() {
    let upstream = Upstream::legacy().await;
    let gateway = Gateway::start(&upstream.config("")).await;
    act(&gateway, "one").await.expect_ok();
    let other = upstream.config("").replace("of-the-gateway", "another");
    assert!(gateway.reload(&other).await);
    act(&gateway, "two").await.expect_ok();
    let secrets = upstream.seen("initialize").into_iter();
    let secrets: Vec<_> = secrets
        .map(|(headers, _)| headers["x-secret"].clone())
        .collect();
    assert_eq!(secrets, ["of-the-gateway", "another"]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_response_in_a_stream_is_not_longer_than_a_result_may_be() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("[server]\nmax_result = \"64KiB\"")).await;
    upstream.then(Does::Stream(result(&"a".repeat(70 << 10))));
    act(&gateway, "k").await.expect_problem("outcome-unknown");
    gateway.stop().await;
}

#[tokio::test]
async fn a_result_that_is_an_error_leaves_a_call_of_a_saga_unknown() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("compensation = \"none\"")).await;
    let failed = json!({ "content": [{ "type": "text", "text": "timeout" }], "isError": true });
    upstream.then(Does::Json(failed));
    let body = json!({ "args": { "n": 1 }, "saga_id": "s", "idempotency_key": "k" });
    for _ in 0..2 {
        let said = gateway.post("act", &body, &[]).await;
        said.expect_problem("outcome-unknown");
    }
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_result_is_passed_on_by_mcp_member_for_member() {
    let theirs: Value = serde_json::from_str(
        r#"{"content":[{"type":"image","data":"AA==","mimeType":"image/png","new":1.50},{"type":"text","text":"t"}],
            "structuredContent":{"a":[1,2.0]},"isError":false,"ttl":null,
            "_meta":{"x":{"y":1},"dev.oncegate/replayed":"a lie","io.modelcontextprotocol/serverInfo":{"name":"theirs"}}}"#,
    )
    .expect("JSON");
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("")).await;
    upstream.then(Does::Stream(theirs.clone()));
    let args = json!({ "name": "act", "arguments": { "n": 1 } });
    let first = gateway.mcp("tools/call", args.clone()).await;
    assert_eq!(
        first.text.matches("serverInfo").count(),
        1,
        "{}",
        first.text
    );
    let first = first.at("/result");
    for name in ["content", "structuredContent", "isError", "ttl"] {
        assert_eq!(first[name], theirs[name], "{name}");
    }
    assert_eq!(first["resultType"], "complete");
    assert_eq!(first["_meta"]["x"], theirs["_meta"]["x"]);
    assert_eq!(
        first["_meta"].get("dev.oncegate/replayed"),
        None,
        "that is the gateway's to say"
    );
    let replay = gateway.mcp("tools/call", args.clone()).await.at("/result");
    assert_eq!(replay["_meta"]["dev.oncegate/replayed"], true);
    let blocks = replay["content"].as_array().expect("blocks");
    assert_eq!(blocks[0], theirs["content"][0]);
    assert_eq!(blocks.len(), 2);
    let said = blocks[1]["text"].as_str().expect("a text");
    let is_said = said.starts_with("Stored result") && said.ends_with("\n\nt");
    assert!(is_said, "a derived key's replay says so: {said}");
    let legacy = gateway.mcp_legacy("tools/call", args).await.at("/result");
    assert_eq!(legacy.get("resultType"), None);
    assert_eq!(legacy["structuredContent"], theirs["structuredContent"]);
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn credentials_and_members_for_the_gateway_are_not_passed_on_to_a_server() {
    let upstream = Upstream::modern().await;
    let region = "{ type = \"string\", x-mcp-header = \"Region\" }";
    let schema = format!("{{ type = \"object\", properties = {{ region = {region} }} }}");
    let config = upstream.config(&format!("input_schema = {schema}\ntool = \"other\""));
    let gateway = Gateway::start(&config).await;
    let request = gateway.mcp_request(
        "tools/call",
        json!({ "name": "act", "arguments": { "region": "é", "idempotency_key": "m" },
            "_meta": { "dev.oncegate/call-id": "forged", "secret": "of the caller" } }),
    );
    let request = request
        .header("mcp-param-region", "=?base64?w6k=?=")
        .bearer_auth("of-the-caller");
    Answer::to(request).await.expect_ok();
    let (headers, call) = upstream.seen("tools/call").pop().expect("a call");
    assert_eq!(headers["mcp-param-region"], "=?base64?w6k=?=");
    assert_eq!(
        (&headers["mcp-name"], headers.get("authorization")),
        (&"other".parse().expect("a value"), None)
    );
    let meta = &call["params"]["_meta"];
    assert_ne!(meta["dev.oncegate/call-id"], "forged");
    assert_eq!(meta.get("secret"), None);
    gateway.stop().await;
}

#[tokio::test]
async fn sessions_are_ended_with_the_gateway() {
    let upstream = Upstream::legacy().await;
    let gateway = Gateway::start(&upstream.config("[tools.other]\nupstream = \"up\"")).await;
    act(&gateway, "k").await.expect_ok();
    let other = gateway.post("other", &json!({ "args": {} }), &[]).await;
    other.expect_ok();
    assert_eq!(upstream.sessions(), 2, "one for each tool");
    gateway.stop().await;
    assert_eq!(upstream.sessions(), 0);
}
