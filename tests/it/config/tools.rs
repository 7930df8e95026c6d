use serde_json::{Value, json};

use crate::support::{Act, Answer, Gateway, Tool};

/// A read without a schema, a write whose schema fits the strict mode of OpenAI, and one with an optional member.
pub fn three_tools(url: &str) -> String {
    format!(
        r#"
[tools.ship]
description = "Ship an order."
url = "{url}"
session = "exclusive"
key = {{ source = "required" }}
input_schema = {{ type = "object", required = ["order_id"], properties = {{ order_id = {{ type = "string" }}, note = {{ type = ["string", "null"] }} }} }}

[tools.look]
description = "Look at an order."
effect = "read"
url = "{url}"

[tools.order]
description = "Order an article."
url = "{url}"
dedup_window = "2h"
retention = "10d"
key = {{ fields = ["/business_id"], ignore = ["/note"] }}
input_schema = {{ type = "object", additionalProperties = false, required = ["business_id"], properties = {{ business_id = {{ type = "string" }}, note = {{ type = "string" }} }} }}
"#
    )
}

/// Tokens that are named after their scopes. Each name is also the text of the token.
fn tokens() -> String {
    let scopes = [
        ("one", r#"["call:ship"]"#),
        ("reader", r#"["read"]"#),
        ("admin", r#"["admin"]"#),
        ("caller", r#"["call"]"#),
    ];
    let token = |(name, scopes): (&str, &str)| {
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name));
        format!(
            "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"shop\"\nsha256 = \"{digest}\"\nscopes = {scopes}\n"
        )
    };
    scopes.into_iter().map(token).collect()
}

async fn get_as(gateway: &Gateway, token: &str, path: &str) -> Answer {
    Answer::to(gateway.client.get(gateway.url(path)).bearer_auth(token)).await
}

pub fn names(answer: &Answer) -> Vec<Value> {
    let tools = answer.at("/tools");
    let name = |tool: &Value| {
        tool.get("name")
            .or(tool.pointer("/function/name"))
            .cloned()
            .unwrap_or_default()
    };
    tools.as_array().expect("a list").iter().map(name).collect()
}

#[tokio::test]
async fn tools_are_listed_by_name_with_what_a_caller_needs_to_know() {
    let gateway = Gateway::start(&three_tools("http://127.0.0.1:9/")).await;
    let listed = gateway.get("/v1/tools").await.expect_ok();
    assert_eq!(names(&listed), ["look", "order", "ship"]);
    insta::assert_snapshot!("tools", pretty(&listed));
    assert_eq!(
        gateway.get("/v1/tools").await.text,
        listed.text,
        "always in the same order"
    );
    gateway.stop().await;
}

fn pretty(answer: &Answer) -> String {
    serde_json::to_string_pretty(&answer.json()).expect("JSON")
}

#[tokio::test]
async fn each_api_gets_its_own_shape() {
    let gateway = Gateway::start(&three_tools("http://127.0.0.1:9/")).await;
    for format in ["openai", "openai-chat", "anthropic", "mcp"] {
        let listed = gateway
            .get(&format!("/v1/tools?format={format}"))
            .await
            .expect_ok();
        assert_eq!(names(&listed), ["look", "order", "ship"]);
        insta::assert_snapshot!(format!("tools_{format}"), pretty(&listed));
    }
    for query in [
        "format=gemini",
        "format=",
        "format=mcp&format=mcp",
        "kind=mcp",
    ] {
        let refused = gateway
            .get(&format!("/v1/tools?{query}"))
            .await
            .expect_problem("invalid-request");
        assert_eq!(refused.status, 400, "{query}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn arguments_that_fit_the_schema_for_a_model_fit_the_tool() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&three_tools(&tool.url())).await;
    let listed = gateway.get("/v1/tools?format=openai").await.expect_ok();
    let sent = [
        json!({}),
        json!({ "business_id": "B", "idempotency_key": "k" }),
        json!({ "order_id": "O", "note": null, "idempotency_key": "k", "confirm_duplicate_of": null }),
    ];
    for (place, args) in sent.iter().enumerate() {
        let shown = listed.at(&format!("/tools/{place}/parameters"));
        assert!(jsonschema::is_valid(&shown, args), "{args}");
        let name = names(&listed)[place].as_str().expect("a name").to_owned();
        let done = gateway
            .post(&name, &json!({ "args": args, "session_id": "S" }), &[])
            .await
            .expect_ok();
        assert_eq!(
            gateway.record(&done).await.at("/args/idempotency_key"),
            Value::Null,
            "{name}"
        );
    }
    assert!(
        tool.seen()
            .iter()
            .all(|seen| !seen.body.contains("idempotency_key"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_member_named_idempotency_key_stays_the_tools_own_wherever_its_schema_names_it() {
    let tool = Tool::start().await;
    let schema = r#"input_schema = { allOf = [{ required = ["idempotency_key"], properties = { idempotency_key = { type = "string" } } }] }"#;
    let gateway = Gateway::with_tool(&tool, schema).await;
    let shown = gateway.get("/v1/tools?format=anthropic").await.expect_ok();
    let schema = shown.at("/tools/0/input_schema");
    let names = schema["properties"].as_object().expect("an object").keys();
    assert_eq!(names.collect::<Vec<_>>(), ["confirm_duplicate_of"]);
    assert!(
        shown
            .at("/tools/0/description")
            .as_str()
            .expect("a text")
            .contains("idempotency_key")
    );
    gateway
        .call(json!({ "idempotency_key": "mine" }))
        .await
        .expect_ok();
    assert!(tool.seen()[0].body.contains("mine"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_token_sees_the_tools_that_it_may_call_and_an_administrator_all() {
    let gateway = Gateway::start(&format!(
        "{}{}",
        tokens(),
        three_tools("http://127.0.0.1:9/")
    ))
    .await;
    for (token, plain, for_models) in [
        ("one", &["ship"][..], 1),
        ("reader", &[], 0),
        ("admin", &["look", "order", "ship"], 0),
        ("caller", &["look", "order", "ship"], 3),
    ] {
        assert_eq!(
            names(&get_as(&gateway, token, "/v1/tools").await.expect_ok()),
            plain,
            "{token}"
        );
        let published = get_as(&gateway, token, "/.well-known/idempotency")
            .await
            .expect_ok();
        assert_eq!(names(&published), plain, "{token}");
        let shown = get_as(&gateway, token, "/v1/tools?format=mcp")
            .await
            .expect_ok();
        assert_eq!(names(&shown).len(), for_models, "{token}");
    }
    for path in [
        "/v1/tools",
        "/v1/tools?format=mcp",
        "/.well-known/idempotency",
    ] {
        gateway.get(path).await.expect_problem("unauthenticated");
    }
    gateway.get("/openapi.json").await.expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn the_promise_about_keys_is_published() {
    let gateway = Gateway::start(&three_tools("http://127.0.0.1:9/")).await;
    let published = gateway.get("/.well-known/idempotency").await.expect_ok();
    insta::assert_snapshot!("idempotency", pretty(&published));
    gateway.stop().await;
}

#[tokio::test]
async fn the_preview_of_a_key_names_the_call_that_holds_it_and_claims_nothing() {
    let tool = Tool::start().await;
    tool.then(Act::Numbered)
        .then(Act::ExecuteThenDrop)
        .then(Act::Hang);
    let gateway = Gateway::with_tool(&tool, "timeout = \"300ms\"\ndeadline = \"1s\"").await;
    let look = async |args: Value| {
        let body = json!({ "args": args, "user_id": "U" });
        gateway
            .post_as("", "/v1/tools/act/key", &body)
            .await
            .expect_ok()
    };
    let call = async |args: Value| {
        gateway
            .post("act", &json!({ "args": args, "user_id": "U" }), &[])
            .await
    };
    let would = |answer: &Answer| {
        (
            answer.at("/would"),
            answer.at("/problem"),
            answer.at("/state"),
        )
    };
    let free = (json!("run"), Value::Null, Value::Null);

    assert_eq!(would(&look(json!({ "n": 1 })).await), free);
    assert_eq!(
        would(&look(json!({ "n": 1 })).await),
        free,
        "the first one has claimed nothing"
    );
    assert_eq!(tool.requests(), 0);
    let done = call(json!({ "n": 1 })).await.expect_ok();
    let met = look(json!({ "n": 1 })).await;
    assert_eq!(
        would(&met),
        (json!("replay"), Value::Null, json!("succeeded"))
    );
    assert_eq!(
        (met.at("/call_id"), met.at("/key_source")),
        (done.at("/call_id"), json!("derived"))
    );
    assert_eq!(met.at("/idempotency_key"), done.at("/idempotency_key"));
    assert_eq!(
        met.at("/tool_key"),
        tool.seen()[0].header("idempotency-key")
    );

    let other = json!({ "args": { "n": 2 }, "idempotency_key": done.at("/idempotency_key") });
    let reused = gateway
        .post_as("", "/v1/tools/act/key", &other)
        .await
        .expect_ok();
    assert_eq!(
        would(&reused),
        (json!("refuse"), json!("key-reused"), json!("succeeded"))
    );

    call(json!({ "n": 3 }))
        .await
        .expect_problem("outcome-unknown");
    assert_eq!(
        would(&look(json!({ "n": 3 })).await),
        (json!("refuse"), json!("outcome-unknown"), json!("unknown"))
    );

    let waiting = json!({ "args": { "n": 4 }, "user_id": "U" });
    let accepted = gateway
        .post("act", &waiting, &[("prefer", "respond-async")])
        .await;
    assert_eq!(accepted.status, 202);
    assert_eq!(
        would(&look(json!({ "n": 4 })).await),
        (json!("wait"), Value::Null, json!("running"))
    );

    let unfit = gateway
        .post_as("", "/v1/tools/act/key", &json!({ "args": 7 }))
        .await;
    unfit.expect_problem("invalid-request");
    gateway
        .post_as("", "/v1/tools/missing/key", &json!({ "args": {} }))
        .await
        .expect_problem("unknown-tool");
    assert_eq!(tool.requests(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn the_preview_of_a_key_names_a_call_only_to_a_token_that_may_read_it() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&format!("{}{}", tokens(), three_tools(&tool.url()))).await;
    let body = json!({ "args": { "order_id": "O" }, "session_id": "S", "idempotency_key": "k" });
    gateway
        .post_as("caller", "/v1/tools/ship/calls", &body)
        .await
        .expect_ok();
    let own = gateway
        .post_as("caller", "/v1/tools/ship/key", &body)
        .await
        .expect_ok();
    assert_eq!(
        (own.at("/would"), own.at("/state")),
        (json!("replay"), json!("succeeded")),
        "it made it"
    );
    let met = gateway
        .post_as("one", "/v1/tools/ship/key", &body)
        .await
        .expect_ok();
    assert_eq!(
        (met.at("/would"), met.at("/call_id"), met.at("/state")),
        (json!("replay"), Value::Null, Value::Null)
    );
    for token in ["reader", "admin"] {
        gateway
            .post_as(token, "/v1/tools/ship/key", &body)
            .await
            .expect_problem("forbidden");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_runtime_that_brings_keys_gets_schemas_that_ask_for_none() {
    let tool = Tool::start().await;
    let schema = r#"input_schema = { type = "object", required = ["a"], properties = { a = { type = "string" } } }"#;
    let gateway = Gateway::with_tool(&tool, schema).await;
    for (format, place) in [
        ("", "/tools/0/input_schema"),
        ("&format=openai", "/tools/0/parameters"),
        ("&format=openai-chat", "/tools/0/function/parameters"),
        ("&format=anthropic", "/tools/0/input_schema"),
        ("&format=mcp", "/tools/0/inputSchema"),
    ] {
        for (keys, required) in [
            ("runtime", json!(["a"])),
            ("model", json!(["a", "idempotency_key"])),
        ] {
            let list = gateway
                .get(&format!("/v1/tools?keys={keys}{format}"))
                .await
                .expect_ok();
            // In strict mode each property is required.
            let required = match (keys, format.starts_with("&format=openai")) {
                ("model", true) => json!(["a", "confirm_duplicate_of", "idempotency_key"]),
                _ => required,
            };
            assert_eq!(
                list.at(&format!("{place}/required")),
                required,
                "{keys}{format}"
            );
            let asks = !list
                .at(&format!("{place}/properties/idempotency_key"))
                .is_null();
            assert_eq!(asks, keys == "model", "{format}");
        }
    }
    gateway
        .get("/v1/tools?keys=nobody")
        .await
        .expect_problem("invalid-request");
    gateway.stop().await;
}

#[tokio::test]
async fn a_refusal_of_arguments_is_bounded_and_quotes_none_of_them() {
    let tool = Tool::start().await;
    let schema =
        r#"input_schema = { type = "object", additionalProperties = { type = "integer" } }"#;
    let gateway = Gateway::with_tool(&tool, schema).await;
    let long = "n".repeat(1_000);
    let args: serde_json::Map<String, Value> = (0..300)
        .map(|n| (format!("{long}{n}"), json!("4111 1111 1111 1111")))
        .collect();
    let refused = gateway
        .call(args.into())
        .await
        .expect_problem("invalid-arguments");
    assert_eq!(refused.at("/errors").as_array().expect("a list").len(), 20);
    assert!(
        refused.text.len() < 20_000 && !refused.text.contains("4111"),
        "{}",
        refused.text
    );
    let many = gateway
        .call(json!({ "a": vec!["4111"; 50_000] }))
        .await
        .expect_problem("invalid-arguments");
    assert!(
        many.text.len() < 2_000 && !many.text.contains("4111"),
        "{}",
        many.text
    );
    let member = "x".repeat(100_000);
    let unread = gateway
        .post_text("act", format!("{{\"args\":{{}},\"{member}\":1}}"), &[])
        .await;
    assert!(unread.expect_problem("invalid-request").text.len() < 2_000);
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}
