//! A read is executed each time: no answer of an earlier call is returned in its place, at any endpoint.

use oncegate::config::Config;
use serde_json::{Value, json};

use crate::support::gateway::read as read_config;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::{Does, Upstream, result};
use crate::support::{Act, Answer, Gateway, Tool};

on_both_stores!(
    a_get_is_a_read_and_sees_what_a_write_has_changed,
    a_read_is_not_answered_with_what_it_was_told_as_a_write,
    a_call_in_doubt_that_was_made_as_a_write_is_not_sent_again_as_a_read,
    a_server_that_changes_its_annotations_is_believed_from_the_next_list_on,
);

/// An order that is there until something cancels it.
async fn shop() -> Tool {
    let tool = Tool::start().await;
    tool.choose(|seen, before| {
        let is_cancelled = before.iter().any(|seen| seen.line.starts_with("DELETE"));
        match (seen.line.starts_with("GET"), is_cancelled) {
            (true, true) => Act::Tell(200, "", b"{\"status\":\"cancelled\"}"),
            (true, false) => Act::Tell(200, "", b"{\"status\":\"created\"}"),
            _ => Act::Numbered,
        }
    });
    tool
}

fn tools(tool: &Tool, look: &str) -> String {
    let url = tool.url();
    format!(
        "[tools.look]\nmethod = \"GET\"\nurl = \"{url}\"\n{look}\n[tools.cancel]\nmethod = \"DELETE\"\nurl = \"{url}\"\n"
    )
}

async fn look(gateway: &Gateway, key: Option<&str>) -> Answer {
    let headers: Vec<_> = key.iter().map(|key| ("idempotency-key", *key)).collect();
    let body = json!({ "args": { "order": 1 } });
    gateway.post("look", &body, &headers).await
}

async fn a_get_is_a_read_and_sees_what_a_write_has_changed(stores: &Stores) {
    for key in [None, Some("k1")] {
        let tool = shop().await;
        let gateways = stores
            .gateways(&tools(&tool, "remember_rejections = true"))
            .await;
        let (first, last) = (&gateways[0], gateways.last().expect("one"));
        let before = look(first, key).await.expect_ok();
        assert_eq!(before.at("/result/status"), "created");
        let cancel = json!({ "args": { "order": key } });
        first.post("cancel", &cancel, &[]).await.expect_ok();
        for gateway in [first, last, first] {
            let after = look(gateway, key).await.expect_ok();
            assert_eq!(after.at("/result/status"), "cancelled", "{key:?}");
            assert_eq!(after.at("/replayed"), false);
            assert_ne!(after.id(), before.id(), "each read is a call of its own");
        }
        // What it was refused is not remembered either.
        tool.then(Act::Answer(404, "", b"{}"));
        look(first, key).await.expect_problem("tool-rejected");
        look(first, key).await.expect_ok();
        // A tool that remembers keys must not answer a later read with an earlier one.
        let reads = tool
            .seen()
            .into_iter()
            .filter(|seen| seen.line.starts_with("GET"));
        let mut keys: Vec<String> = reads
            .map(|seen| seen.header("idempotency-key").to_owned())
            .collect();
        let all = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), all);
        assert_eq!(tool.effects(), 1);
        for gateway in gateways {
            gateway.stop().await;
        }
    }
}

#[tokio::test]
async fn by_mcp_a_read_sees_what_a_write_has_changed() {
    let tool = shop().await;
    let gateway = Gateway::start(&tools(&tool, "").replace("tools.look", "tools.act")).await;
    let before = gateway.mcp_call(json!({ "order": 1 })).await.expect_ok();
    assert_eq!(before.told(), "{\"status\":\"created\"}");
    gateway
        .post("cancel", &json!({ "args": {} }), &[])
        .await
        .expect_ok();
    let after = gateway.mcp_call(json!({ "order": 1 })).await.expect_ok();
    assert_eq!(after.told(), "{\"status\":\"cancelled\"}");
    assert_eq!(after.meta("replayed"), Value::Null);
    gateway.stop().await;
}

#[tokio::test]
async fn a_read_does_not_wait_for_an_answer_that_is_older_than_itself() {
    let tool = shop().await;
    let gateway = Gateway::start(&tools(&tool, "")).await;
    let (hold, held) = Act::held(Act::Tell(200, "", b"{\"status\":\"created\"}"));
    tool.then(held);
    let slow = look(&gateway, Some("k"));
    let meanwhile = async {
        crate::support::until("it is asked", async || tool.requests() == 1).await;
        gateway
            .post("cancel", &json!({ "args": {} }), &[])
            .await
            .expect_ok();
        let after = look(&gateway, Some("k")).await.expect_ok();
        assert_eq!(after.at("/result/status"), "cancelled");
        drop(hold);
    };
    let (slow, ()) = tokio::join!(slow, meanwhile);
    assert_eq!(slow.expect_ok().at("/result/status"), "created");
    // A caller is not sent away to ask again: it would only read again.
    tool.then(Act::after_ms(1_200, Act::Ok("{\"slow\":true}")));
    let body = json!({ "args": { "order": 1 } });
    let waited = gateway
        .post("look", &body, &[("prefer", "wait=0")])
        .await
        .expect_ok();
    assert_eq!(waited.at("/result/slow"), true);
    let later = gateway
        .post("look", &body, &[("prefer", "respond-async")])
        .await;
    assert_eq!(later.status, 202, "{}", later.text);
    gateway.stop().await;
}

#[tokio::test]
async fn a_read_has_no_key_that_a_preview_could_tell() {
    let tool = shop().await;
    let gateway = Gateway::start(&tools(&tool, "")).await;
    let body = json!({ "args": { "order": 1 }, "idempotency_key": "k" });
    look(&gateway, Some("k")).await.expect_ok();
    let preview = gateway
        .post_to("/v1/tools/look/key", &body)
        .await
        .expect_ok();
    assert_eq!(
        (
            preview.at("/would"),
            preview.at("/tool_key"),
            preview.at("/call_id")
        ),
        ("run".into(), Value::Null, Value::Null)
    );
    gateway.stop().await;
}

async fn a_read_is_not_answered_with_what_it_was_told_as_a_write(stores: &Stores) {
    for key in [None, Some("k1")] {
        let tool = shop().await;
        let config = tools(&tool, "effect = \"write\"");
        let gateway = stores.gateway(&config).await;
        let stored = look(&gateway, key).await.expect_ok();
        let replay = look(&gateway, key).await.expect_ok();
        assert_eq!((replay.id(), tool.requests()), (stored.id(), 1));
        // A reload keeps what the process remembers of calls.
        assert!(gateway.reload(&tools(&tool, "")).await);
        let fresh = look(&gateway, key).await.expect_ok();
        assert_eq!((fresh.at("/replayed"), tool.requests()), (false.into(), 2));
        let gateway = stores.again(gateway, &tools(&tool, "")).await;
        look(&gateway, key).await.expect_ok();
        assert_eq!(tool.requests(), 3);
        gateway.stop().await;
    }
}

async fn a_call_in_doubt_that_was_made_as_a_write_is_not_sent_again_as_a_read(stores: &Stores) {
    for key in [None, Some("k1")] {
        let tool = Tool::start().await;
        let config = |effect: &str| {
            format!(
                "[tools.look]\nurl = \"{}\"\neffect = \"{effect}\"\ntimeout = \"1s\"\ndeadline = \"1s\"\nretry = {{ attempts = 1 }}\n",
                tool.url()
            )
        };
        let gateway = stores.gateway(&config("write")).await;
        tool.then(Act::ExecuteThenDrop);
        let unknown = look(&gateway, key).await.expect_problem("outcome-unknown");
        let gateway = stores.again(gateway, &config("read")).await;
        let again = look(&gateway, key).await.expect_problem("outcome-unknown");
        assert_eq!((again.id(), tool.requests()), (unknown.id(), 1));
        // Another question is not a repetition.
        let body = json!({ "args": { "order": 2 } });
        gateway.post("look", &body, &[]).await.expect_ok();
        let said = json!({ "as": "failed", "reason": "it is not there" });
        crate::support::until("an operator may settle it", async || {
            gateway.resolve(&unknown, &said).await.status == 200
        })
        .await;
        look(&gateway, key).await.expect_ok();
        assert_eq!(tool.requests(), 3);
        gateway.stop().await;
    }
}

fn listed(name: &str, annotations: Value) -> Value {
    json!({ "name": name, "inputSchema": { "type": "object" }, "annotations": annotations })
}

fn upstream_config(upstream: &Upstream, more: &str) -> String {
    format!("[upstreams.up]\nurl = \"{}\"\n{more}\n", upstream.url())
}

async fn list(gateway: &Gateway) {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
    let request = gateway
        .client
        .post(gateway.url("/mcp/up"))
        .body(body.to_string());
    Answer::to(request.header("mcp-protocol-version", crate::support::mcp::LEGACY))
        .await
        .expect_ok();
}

async fn ask(gateway: &Gateway, tool: &str) -> Answer {
    let params = json!({ "name": tool, "arguments": { "n": 1 } });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = gateway
        .client
        .post(gateway.url("/mcp/up"))
        .body(body.to_string());
    Answer::to(request.header("mcp-protocol-version", crate::support::mcp::LEGACY)).await
}

/// How many of two equal calls are executed.
async fn executed_of_two(gateway: &Gateway, upstream: &Upstream, tool: &str) -> usize {
    let before = upstream.effects();
    for _ in 0..2 {
        let said = ask(gateway, tool).await.expect_ok();
        assert!(said.message().get("result").is_some(), "{}", said.text);
    }
    upstream.effects() - before
}

async fn a_server_that_changes_its_annotations_is_believed_from_the_next_list_on(stores: &Stores) {
    let (reads, writes) = (
        json!({ "readOnlyHint": true }),
        json!({ "readOnlyHint": false }),
    );
    let upstream = Upstream::legacy().await;
    upstream.list(&[listed("a", reads.clone())]);
    let gateway = stores.gateway(&upstream_config(&upstream, "")).await;
    assert_eq!(executed_of_two(&gateway, &upstream, "a").await, 2);
    upstream.list(&[listed("a", writes)]);
    list(&gateway).await;
    assert_eq!(executed_of_two(&gateway, &upstream, "a").await, 1);
    upstream.list(&[listed("a", reads.clone())]);
    list(&gateway).await;
    assert_eq!(executed_of_two(&gateway, &upstream, "a").await, 2);
    // A call that is in doubt stays so, whatever the server says of its tool by now.
    upstream.list(&[listed("a", json!({}))]);
    list(&gateway).await;
    upstream.then(Does::ExecuteThenNothing);
    let before = upstream.effects();
    let mut doubt = json!({ "name": "a", "arguments": { "n": 2 } });
    doubt["_meta"] = json!({});
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": doubt });
    let send = async || {
        let request = gateway
            .client
            .post(gateway.url("/mcp/up"))
            .body(body.to_string());
        Answer::to(request.header("mcp-protocol-version", crate::support::mcp::LEGACY)).await
    };
    assert_eq!(
        send().await.meta("problem")["type"],
        "/problems/outcome-unknown"
    );
    upstream.list(&[listed("a", reads)]);
    list(&gateway).await;
    assert_eq!(executed_of_two(&gateway, &upstream, "a").await, 2);
    assert_eq!(
        send().await.meta("problem")["type"],
        "/problems/outcome-unknown"
    );
    assert_eq!(upstream.effects() - before, 3);
    gateway.stop().await;
}

#[tokio::test]
async fn annotations_are_trusted_unless_switched_off_and_only_a_plain_true_is_one() {
    let upstream = Upstream::legacy().await;
    let cases = [
        ("read", json!({ "readOnlyHint": true }), 2, 1, 2),
        ("nothing", json!({}), 1, 1, 2),
        ("null", Value::Null, 1, 1, 2),
        ("text", json!("readOnlyHint"), 1, 1, 2),
        ("word", json!({ "readOnlyHint": "true" }), 1, 1, 2),
        ("number", json!({ "readOnlyHint": 1 }), 1, 1, 2),
        ("again", json!({ "idempotentHint": true }), 1, 1, 2),
        ("destroys", json!({ "destructiveHint": true }), 1, 1, 1),
        ("harmless", json!({ "destructiveHint": false }), 1, 1, 2),
        // Who says both is not believed.
        (
            "both",
            json!({ "readOnlyHint": true, "destructiveHint": true }),
            1,
            1,
            1,
        ),
    ];
    let all: Vec<Value> = cases
        .iter()
        .map(|case| listed(case.0, case.1.clone()))
        .collect();
    upstream.list(&all);
    for (more, of) in [
        ("", 0),
        ("trust_annotations = false", 1),
        ("unlisted = \"read\"", 2),
    ] {
        let gateway = Gateway::start(&upstream_config(&upstream, more)).await;
        for case in &cases {
            let expected = [case.2, case.3, case.4][of];
            let executed = executed_of_two(&gateway, &upstream, case.0).await;
            assert_eq!(executed, expected, "{more} {}", case.0);
        }
        gateway.stop().await;
    }
    let gateway = Gateway::start(&upstream_config(&upstream, "repeatable = [\"destroys\"]")).await;
    assert_eq!(
        executed_of_two(&gateway, &upstream, "destroys").await,
        2,
        "the operator says so"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn an_order_that_a_reading_tool_did_not_see_yet_is_not_denied() {
    let upstream = Upstream::legacy().await;
    upstream.list(&[
        listed("get_order", json!({ "readOnlyHint": true })),
        listed("create_order", json!({})),
    ]);
    let gateway = Gateway::start(&upstream_config(&upstream, "")).await;
    upstream.then(Does::Json(result("[]")));
    assert_eq!(ask(&gateway, "get_order").await.told(), "[]");
    upstream.then(Does::ExecuteThenNothing);
    let said = ask(&gateway, "create_order").await;
    assert_eq!(said.meta("problem")["type"], "/problems/outcome-unknown");
    upstream.then(Does::Json(result("[1]")));
    assert_eq!(ask(&gateway, "get_order").await.told(), "[1]");
    gateway.stop().await;
}

#[tokio::test]
async fn a_head_is_a_read() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "method = \"HEAD\"").await;
    tool.always(Act::Tell(204, "", b""));
    for _ in 0..2 {
        gateway.call(json!({})).await.expect_ok();
    }
    assert!(tool.seen().iter().all(|seen| seen.line.starts_with("HEAD")));
    assert_eq!(tool.requests(), 2);
    gateway.stop().await;
}

fn warnings(tools: &str) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let config: Config = read_config(folder.path(), tools);
    config.warnings
}

#[test]
fn a_get_that_is_declared_as_a_write_and_a_window_of_a_read_are_warned_about() {
    let act = |lines: &str| format!("[tools.act]\nurl = \"http://127.0.0.1:1/\"\n{lines}\n");
    let has =
        |lines: &str, words: &str| warnings(&act(lines)).iter().any(|one| one.contains(words));
    for method in ["GET", "HEAD"] {
        let declared = format!("method = \"{method}\"\neffect = \"write\"");
        let words = format!("act: its method is {method}, and effect = \"write\"");
        assert!(has(&declared, &words), "{:?}", warnings(&act(&declared)));
        assert!(!has(&format!("method = \"{method}\""), "effect"));
    }
    assert!(has(
        "effect = \"read\"\ndedup_window = \"1h\"",
        "act: dedup_window"
    ));
    assert!(!has("dedup_window = \"1h\"", "act: dedup_window"));
    let notes = |more: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let config = format!("[upstreams.up]\nurl = \"http://127.0.0.1:1/\"\n{more}\n");
        read_config(folder.path(), &config).notes
    };
    assert!(notes("")[0].contains("upstream up:") && notes("")[0].contains("readOnlyHint"));
    assert!(notes("trust_annotations = false").is_empty());
    assert!(notes("unlisted = \"deny\"").is_empty());
}
