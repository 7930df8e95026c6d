//! `null` for an argument that need not be there: frameworks send it for what a model left out.

use serde_json::{Value, json};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::Upstream;
use crate::support::{Act, Answer, Gateway, Tool};

on_both_stores!(
    a_null_that_need_not_be_there_counts_as_absent_and_is_sent_as_it_came,
    a_null_makes_no_other_call_under_business_fields_either,
    a_null_makes_no_other_call_beside_a_key_that_the_model_made_up,
);

const SCHEMA: &str = r##"
[tools.act.input_schema]
type = "object"
required = ["id", "parent"]
additionalProperties = false
[tools.act.input_schema.properties]
id = { type = "string" }
parent = { type = ["string", "null"] }
note = { type = "string" }
price = { type = ["number", "null"] }
lines = { type = "array", items = { type = "object", required = ["sku"], properties = { sku = { type = "string" }, colour = { type = "string" } } } }
to = { "$ref" = "#/$defs/place" }
[tools.act.input_schema."$defs".place]
type = "object"
required = ["street"]
properties = { street = { type = "string" }, floor = { type = "integer" } }
"##;

/// Arguments without a null that need not be there, and the same with some.
fn spelled() -> [(Value, Value); 5] {
    let base = |more: Value| {
        let mut args = json!({ "id": "1", "parent": null });
        let members = args.as_object_mut().expect("an object");
        members.extend(more.as_object().expect("an object").clone());
        args
    };
    [
        (base(json!({})), base(json!({ "note": null }))),
        (
            base(json!({ "id": "2" })),
            base(json!({ "id": "2", "price": null })),
        ),
        (
            base(json!({ "id": "3", "lines": [{ "sku": "w" }] })),
            base(json!({ "id": "3", "lines": [{ "sku": "w", "colour": null }] })),
        ),
        (
            base(json!({ "id": "4", "to": { "street": "s" } })),
            base(json!({ "id": "4", "to": { "street": "s", "floor": null }, "note": null })),
        ),
        (
            base(json!({ "id": "5", "note": "n" })),
            base(json!({ "id": "5", "note": "n", "to": null, "lines": null })),
        ),
    ]
}

async fn a_null_that_need_not_be_there_counts_as_absent_and_is_sent_as_it_came(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&one_tool(&tool, SCHEMA)).await;
    let (one, other) = (&gateways[0], gateways.last().expect("one"));
    for (without, with) in spelled() {
        let before = tool.requests();
        let first = one.call(with.clone()).await.expect_ok();
        let sent = tool.seen().pop().expect("a request").body;
        assert_eq!(sent, with.to_string(), "the tool gets what came");
        for args in [&without, &with] {
            let again = other.call(args.clone()).await.expect_ok();
            assert_eq!(
                (again.id(), again.at("/replayed")),
                (first.id(), true.into()),
                "{args}"
            );
        }
        let keyed = one.call_with_key("k", without.clone()).await;
        let again = other.call_with_key("k", with.clone()).await;
        assert_eq!(keyed.status == 200, again.status == 200, "{}", again.text);
        assert!(tool.requests() - before <= 2, "{with}");
    }
    for gateway in gateways {
        gateway.stop().await;
    }
}

async fn a_null_makes_no_other_call_under_business_fields_either(stores: &Stores) {
    let tool = Tool::start().await;
    let config = one_tool(&tool, &format!("key = {{ fields = [\"/id\"] }}\n{SCHEMA}"));
    let gateway = stores.gateway(&config).await;
    for (without, with) in spelled() {
        let first = gateway.call(without.clone()).await.expect_ok();
        let again = gateway.call(with.clone()).await.expect_ok();
        assert_eq!(again.id(), first.id(), "{with}");
    }
    assert_eq!(tool.effects(), 5);
    gateway.stop().await;
}

async fn a_null_makes_no_other_call_beside_a_key_that_the_model_made_up(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, SCHEMA)).await;
    for (n, (without, with)) in spelled().into_iter().enumerate() {
        let keyed = |args: &Value, key: &str| {
            let mut args = args.clone();
            args["idempotency_key"] = format!("{key}-{n}").into();
            args
        };
        // Whichever comes first: the other one, beside another key or none, is the same call.
        let (first, second) = if n % 2 == 0 {
            (&with, &without)
        } else {
            (&without, &with)
        };
        let made = gateway.mcp_call(keyed(first, "m1")).await.expect_ok();
        for again in [keyed(second, "m2"), keyed(first, "m3"), second.clone()] {
            let told = gateway.mcp_call(again.clone()).await.expect_ok();
            assert_eq!(told.meta("call-id"), made.meta("call-id"), "{again}");
        }
        let told = gateway.call(second.clone()).await.expect_ok();
        assert_eq!(told.id(), made.meta("call-id"), "{second}");
    }
    assert_eq!(tool.effects(), 5);
    gateway.stop().await;
}

#[tokio::test]
async fn a_null_that_the_schema_requires_to_be_more_is_refused_with_its_place() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&one_tool(&tool, SCHEMA)).await;
    for (args, place) in [
        (json!({ "id": null, "parent": null }), "/id"),
        (json!({ "id": null, "parent": null, "note": null }), "/id"),
        (
            json!({ "id": "1", "parent": null, "to": { "street": null, "floor": null } }),
            "/to/street",
        ),
        (
            json!({ "id": "1", "parent": null, "lines": [{ "sku": null }] }),
            "/lines/0/sku",
        ),
        (
            json!({ "id": "1", "parent": null, "lines": [null] }),
            "/lines/0",
        ),
        (
            json!({ "id": "1", "parent": null, "note": null, "price": "x" }),
            "/price",
        ),
        (json!({ "id": "1", "note": null }), ""),
    ] {
        let said = gateway
            .call(args.clone())
            .await
            .expect_problem("invalid-arguments");
        let errors = said.at("/errors");
        let places: Vec<&str> = errors
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|error| error["pointer"].as_str())
            .collect();
        assert_eq!(places, [place], "{args} {}", said.text);
    }
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_null_has_no_place_in_a_request_and_makes_no_near_duplicate_another() {
    let tool = Tool::start().await;
    let config = "method = \"POST\"\nbody = \"none\"\nquery = { page = \"/page\" }\ninput_schema = { type = \"object\", properties = { page = { type = \"integer\" } } }";
    let gateway = Gateway::with_tool(&tool, config).await;
    gateway
        .call(json!({ "page": null, "other": null }))
        .await
        .expect_ok();
    let seen = tool.seen().pop().expect("a request");
    assert_eq!(
        (seen.line.as_str(), seen.body.as_str()),
        ("POST /do HTTP/1.1", "")
    );
    gateway.call(json!({})).await.expect_ok();
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;

    let similar =
        "similar = { fields = [\"/sku\", \"/colour\"], window = \"10m\", action = \"refuse\" }";
    let gateway = Gateway::with_tool(&tool, similar).await;
    gateway
        .call_with_key("a", json!({ "sku": "w" }))
        .await
        .expect_ok();
    let said = gateway
        .call_with_key("b", json!({ "sku": "w", "colour": null }))
        .await;
    said.expect_problem("possible-duplicate");
    gateway.stop().await;
}

#[tokio::test]
async fn a_null_counts_as_absent_by_mcp_and_for_a_tool_that_no_section_names() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Gateway::start(&one_tool(&tool, SCHEMA)).await;
    let (without, with) = spelled()[3].clone();
    let first = gateway.mcp_call(with).await.expect_ok();
    assert!(!first.is_error(), "{}", first.text);
    let again = gateway.mcp_call(without).await.expect_ok();
    assert_eq!(again.meta("call-id"), first.meta("call-id"));
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;

    let upstream = Upstream::legacy().await;
    let listed = json!({ "name": "a", "inputSchema": { "type": "object" } });
    upstream.list(&[listed]);
    let gateway = Gateway::start(&format!("[upstreams.up]\nurl = \"{}\"\n", upstream.url())).await;
    let call = async |args: Value| {
        let params = json!({ "name": "a", "arguments": args });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let request = gateway
            .client
            .post(gateway.url("/mcp/up"))
            .body(body.to_string());
        Answer::to(request.header("mcp-protocol-version", crate::support::mcp::LEGACY)).await
    };
    let first = call(json!({ "a": 1, "b": null, "c": { "d": null } }))
        .await
        .expect_ok();
    let again = call(json!({ "c": {}, "a": 1 })).await.expect_ok();
    assert_eq!(again.meta("call-id"), first.meta("call-id"));
    let (_, sent) = upstream.seen("tools/call").pop().expect("a call");
    assert_eq!(
        sent["params"]["arguments"],
        json!({ "a": 1, "b": null, "c": { "d": null } })
    );
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

/// The body of a proxied request is the API's own: null may be what its caller means.
#[tokio::test]
async fn a_null_in_the_body_of_a_proxied_request_counts() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&crate::proxies::requests::api(&tool, "")).await;
    let first = crate::proxies::requests::post(&gateway, "k", "{\"mail\":null}").await;
    assert_eq!(first.status, 200, "{}", first.text);
    crate::proxies::requests::post(&gateway, "k", "{}")
        .await
        .expect_problem("key-reused");
    gateway.stop().await;
}
