//! Calls that pay: a server's demand reaches the client as it is, and the paid call is the same one.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::approvals::tokens;
use crate::support::mcp::{MODERN, meta};
use crate::support::search::{all_bytes, holds};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::{Does, Upstream};
use crate::support::{Answer, Gateway, client};

on_both_stores! {
    a_call_that_is_paid_after_a_demand_is_the_same_and_is_paid_once,
    a_key_among_the_arguments_names_the_call_whatever_else_changes,
}

async fn call(gateway: &Gateway, name: &str, args: Value, more: Value) -> Answer {
    Answer::to(request(gateway, name, args, more)).await
}

fn request(gateway: &Gateway, name: &str, args: Value, more: Value) -> RequestBuilder {
    let params = json!({ "name": name, "arguments": args, "_meta": meta(more) });
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    let request = client().post(gateway.url("/mcp/up")).body(body.to_string());
    request
        .header("accept", "application/json")
        .header("mcp-protocol-version", MODERN)
        .header("mcp-method", "tools/call")
        .header("mcp-name", name)
}

fn config(upstream: &Upstream, more: &str) -> String {
    format!("[upstreams.up]\nurl = \"{}\"\n{more}\n", upstream.url())
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "inputSchema": { "type": "object" } })
}

const PAYMENT: &str = "c2VjcmV0LXBheW1lbnQ";

/// How servers ask for a payment, and where a client puts it.
fn protocols() -> [(Does, &'static str); 3] {
    let challenges = json!({ "challenges": [{ "id": "c1", "amount": 1.50 }] });
    let accepts = json!({ "x402Version": 2, "accepts": [{ "scheme": "exact" }] });
    let content = json!([{ "type": "text", "text": "pay first" }]);
    [
        (
            Does::Demand(json!({ "code": -32042, "message": "pay", "data": challenges })),
            "org.paymentauth/credential",
        ),
        (
            Does::Demand(json!({ "code": 402, "message": "pay", "data": accepts })),
            "x402/payment",
        ),
        (
            Does::Ask(json!({ "isError": true, "content": content, "structuredContent": accepts })),
            "x402/payment",
        ),
    ]
}

async fn a_call_that_is_paid_after_a_demand_is_the_same_and_is_paid_once(stores: &Stores) {
    let upstream = Upstream::modern().await;
    upstream.list(&[tool("buy")]);
    let gateway = stores.gateway(&config(&upstream, "")).await;
    for (n, (demand, member)) in protocols().into_iter().enumerate() {
        let (args, paid) = (json!({ "n": n }), json!({ member: { "payload": PAYMENT } }));
        let before = upstream.effects();
        upstream.then(demand.clone());
        let asked = call(&gateway, "buy", args.clone(), json!({})).await;
        let said = asked.message();
        match &demand {
            Does::Demand(error) => assert_eq!(&said["error"], error),
            Does::Ask(result) => {
                let structured = &said["result"]["structuredContent"];
                assert_eq!(structured, &result["structuredContent"], "{said}");
                assert_eq!(said["result"]["isError"], true);
            }
            _ => {}
        }
        let receipt = json!({ "content": [], "_meta": { "x402/payment-response": { "tx": 1 } } });
        upstream.then(Does::Json(receipt));
        for is_again in [false, true] {
            let answer = call(&gateway, "buy", args.clone(), paid.clone()).await;
            let answer = answer.expect_ok();
            let meta = &answer.message()["result"]["_meta"];
            assert_eq!(meta["x402/payment-response"]["tx"], 1, "{}", answer.text);
            assert_eq!(answer.meta("replayed") == true, is_again);
        }
        assert_eq!(upstream.effects(), before + 1, "{demand:?}");
        let (_, sent) = upstream.seen("tools/call").pop().expect("a call");
        assert_eq!(sent["params"]["_meta"][member]["payload"], PAYMENT);
    }
    // Where a demand cannot be answered with a payment, it still leads to no new key.
    let (demand, _) = protocols()[0].clone();
    upstream.then(demand);
    let direct = gateway
        .post("up.buy", &json!({ "args": { "n": "direct" } }), &[])
        .await;
    let direct = direct.expect_problem("tool-rejected");
    assert_eq!(direct.at("/key_action"), "reuse");
    let listed = gateway.get("/v1/calls").await.expect_ok();
    for one in listed.at("/calls").as_array().expect("a list") {
        let id = one["call_id"].as_str().expect("an id");
        let shown = gateway.get(&format!("/v1/calls/{id}")).await.text;
        assert!(!shown.contains(PAYMENT), "{shown}");
        assert!(
            !shown.contains("\"tx\":1"),
            "a receipt is not shown: {shown}"
        );
    }
    gateway.stop().await;
}

/// As UCP has it over MCP.
async fn a_key_among_the_arguments_names_the_call_whatever_else_changes(stores: &Stores) {
    let upstream = Upstream::modern().await;
    upstream.list(&[tool("complete")]);
    let key = "[tools.complete]\nupstream = \"up\"\nkey = { from = [\"/meta/idempotency-key\"], source = \"required\" }";
    let gateways = stores.gateways(&config(&upstream, key)).await;
    let (gateway, last) = (&gateways[0], gateways.last().expect("one"));
    let args = |key: &str, id: &str| json!({ "id": "c1", "meta": { "idempotency-key": key, "request_id": id } });
    let first = call(gateway, "complete", args("k1", "r1"), json!({})).await;
    first.expect_ok();
    let again = call(last, "complete", args("k1", "r1"), json!({})).await;
    assert_eq!(again.expect_ok().meta("replayed"), true);
    let other = call(last, "complete", args("k1", "r2"), json!({})).await;
    assert_eq!(other.meta("problem")["type"], "/problems/key-reused");
    let none = call(gateway, "complete", json!({ "id": "c1" }), json!({})).await;
    assert_eq!(none.meta("problem")["type"], "/problems/key-missing");
    assert_eq!(upstream.effects(), 1);
    let second = call(gateway, "complete", args("k2", "r2"), json!({})).await;
    second.expect_ok();
    assert_eq!(upstream.effects(), 2);
}

/// A server may execute first, and settle then.
#[tokio::test]
async fn a_demand_after_a_payment_was_tried_proves_nothing() {
    let upstream = Upstream::modern().await;
    upstream.list(&[tool("buy")]);
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let tried = json!({
        "isError": true,
        "content": [],
        "structuredContent": { "x402Version": 2, "accepts": [] },
        "_meta": { "x402/payment-response": { "success": false } },
    });
    upstream.then(Does::Ask(tried));
    let paid = json!({ "x402/payment": { "payload": PAYMENT } });
    for _ in 0..3 {
        let unknown = call(&gateway, "buy", json!({ "n": 1 }), paid.clone()).await;
        assert_eq!(
            unknown.meta("problem")["type"],
            "/problems/outcome-unknown",
            "{}",
            unknown.text
        );
    }
    assert_eq!(upstream.seen("tools/call").len(), 1);
    gateway.stop().await;
}

/// A payment is in no file.
#[tokio::test]
async fn a_payment_by_mcp_is_stored_nowhere() {
    let upstream = Upstream::modern().await;
    upstream.list(&[tool("buy")]);
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let paid = json!({ "x402/payment": { "payload": PAYMENT } });
    let bought = call(&gateway, "buy", json!({ "n": 1 }), paid).await;
    bought.expect_ok();
    let folder = gateway.stop().await;
    assert!(!holds(&all_bytes(folder.path()), PAYMENT));
}

/// Reads are executed each time, so a payment that comes twice could be taken twice.
#[tokio::test]
async fn a_payment_for_a_tool_that_is_said_to_read_is_refused() {
    let upstream = Upstream::modern().await;
    let mut read = tool("weather");
    read["annotations"] = json!({ "readOnlyHint": true });
    upstream.list(&[read]);
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let paid = json!({ "x402/payment": { "payload": PAYMENT } });
    let refused = call(&gateway, "weather", json!({}), paid.clone()).await;
    assert!(refused.text.contains("only reads"), "{}", refused.text);
    assert_eq!(upstream.effects(), 0);
    // The unpaid one still reads.
    call(&gateway, "weather", json!({}), json!({}))
        .await
        .expect_ok();
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

/// A payment is not stored, so it could not be sent once the call is approved.
#[tokio::test]
async fn a_call_that_waits_for_approval_takes_no_payment() {
    let upstream = Upstream::modern().await;
    upstream.list(&[tool("buy")]);
    let approval = "[upstreams.up.approval]\nwhen = [\"always\"]\n".to_owned() + &tokens();
    let gateway = Gateway::start(&config(&upstream, &approval)).await;
    let paid = json!({ "x402/payment": { "payload": PAYMENT } });
    let refused = request(&gateway, "buy", json!({}), paid).bearer_auth("agent");
    let refused = Answer::to(refused).await;
    assert!(
        refused.text.contains("waits for approval first"),
        "{}",
        refused.text
    );
    let open = gateway
        .client
        .get(gateway.url("/v1/approvals"))
        .bearer_auth("ann");
    let open = Answer::to(open).await.expect_ok();
    assert_eq!(open.at("/approvals"), json!([]));
    assert_eq!(upstream.effects(), 0);
    gateway.stop().await;
}

/// It is refused, as without a rule of approval.
#[tokio::test]
async fn a_paid_call_that_looks_like_an_earlier_one_is_not_asked_about() {
    let upstream = Upstream::modern().await;
    upstream.list(&[tool("buy")]);
    let rules = "[tools.buy]\nupstream = \"up\"\nsimilar = { fields = [\"/n\"], window = \"10m\", action = \"refuse\" }\n\
        [tools.buy.approval]\nwhen = [\"similar\"]\n[mcp]\nanswer_within = \"1s\"\n"
        .to_owned()
        + &tokens();
    let gateway = Gateway::start(&config(&upstream, &rules)).await;
    let buy = async |note: u32, more: Value| {
        let args = json!({ "n": 1, "note": note });
        Answer::to(request(&gateway, "buy", args, more).bearer_auth("agent")).await
    };
    buy(1, json!({})).await.expect_ok();
    assert_eq!(upstream.effects(), 1);
    let paid = json!({ "x402/payment": { "payload": PAYMENT } });
    let refused = buy(2, paid).await;
    assert!(
        refused.text.contains("possible-duplicate"),
        "{}",
        refused.text
    );
    let open = async || {
        let open = gateway.client.get(gateway.url("/v1/approvals"));
        let open = Answer::to(open.bearer_auth("ann")).await.expect_ok();
        open.at("/approvals").as_array().map(Vec::len)
    };
    assert_eq!(open().await, Some(0));
    buy(3, json!({})).await;
    assert_eq!((open().await, upstream.effects()), (Some(1), 1));
    gateway.stop().await;
}
