use serde_json::json;

use crate::support::binary::key_command;
use crate::support::gateway::one_tool;
#[cfg(feature = "postgres")]
use crate::support::postgres::place;
use crate::support::redis::Redis;
use crate::support::{Act, Gateway, Tool};

/// A tool with a business key and a schema that requires it.
const BUSINESS: &str = r#"
key = { fields = ["/business_id"], ignore = ["/note"] }
input_schema = { type = "object", required = ["business_id"], properties = { business_id = { type = "string" }, amount = { type = "integer" } } }
"#;

#[tokio::test]
async fn header_quoted_header_and_body_bring_the_same_key() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let args = json!({ "args": {} });
    let first = gateway
        .post("act", &args, &[("idempotency-key", "k-1")])
        .await
        .expect_ok();
    let quoted = gateway
        .post("act", &args, &[("idempotency-key", "\"k-1\"")])
        .await
        .expect_ok();
    let body = json!({ "args": {}, "idempotency_key": "k-1" });
    let member = gateway.post("act", &body, &[]).await.expect_ok();
    let both = gateway
        .post("act", &body, &[("Idempotency-Key", "\"k-1\"")])
        .await
        .expect_ok();
    for answer in [&quoted, &member, &both] {
        assert_eq!(answer.at("/call_id"), first.at("/call_id"));
        assert_eq!(
            (
                answer.header("idempotency-key"),
                answer.at("/idempotency_key")
            ),
            ("k-1", "k-1".into())
        );
    }
    assert_eq!(tool.requests(), 1);
    let conflict = gateway
        .post("act", &body, &[("idempotency-key", "k-2")])
        .await
        .expect_problem("key-conflict");
    assert_eq!(
        (conflict.status, conflict.at("/effect")),
        (400, "none".into())
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_key_that_is_none_is_refused() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let long = "k".repeat(256);
    let open_quote = [("idempotency-key", "\"open")];
    gateway
        .post("act", &json!({ "args": {} }), &open_quote)
        .await
        .expect_problem("key-invalid");
    for key in ["", "a b", "a, b", &long] {
        let refused = gateway
            .post("act", &json!({ "args": {} }), &[("idempotency-key", key)])
            .await;
        refused.expect_problem("key-invalid");
        let refused = gateway
            .post("act", &json!({ "args": {}, "idempotency_key": key }), &[])
            .await;
        refused.expect_problem("key-invalid");
    }
    let twice = [("idempotency-key", "a"), ("idempotency-key", "a")];
    gateway
        .post("act", &json!({ "args": {} }), &twice)
        .await
        .expect_problem("invalid-request");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn sources_have_an_order_and_the_ledger_says_which_it_was() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, BUSINESS).await;
    let with_model = json!({ "args": { "business_id": "B1", "idempotency_key": "model-1" } });
    let business = gateway.post("act", &with_model, &[]).await.expect_ok();
    assert_eq!(
        gateway.record(&business).await.at("/key_source"),
        "business"
    );
    let other_model = json!({ "args": { "business_id": "B1", "idempotency_key": "model-2", "note": "again, please" } });
    let again = gateway.post("act", &other_model, &[]).await.expect_ok();
    assert_eq!(
        again.at("/call_id"),
        business.at("/call_id"),
        "neither a new model key nor a new wording splits an intent"
    );
    let runtime = gateway
        .post("act", &with_model, &[("idempotency-key", "r")])
        .await
        .expect_ok();
    assert_eq!(
        (runtime.at("/call_id"), runtime.at("/replayed")),
        (business.at("/call_id"), true.into())
    );
    let unfit = json!({ "args": { "business_id": "B1", "idempotency_key": 7 } });
    assert_eq!(
        gateway
            .post("act", &unfit, &[])
            .await
            .expect_ok()
            .at("/call_id"),
        business.at("/call_id")
    );
    assert!(
        tool.seen()
            .iter()
            .all(|seen| !seen.body.contains("idempotency_key")),
        "the tool never sees it"
    );
    gateway.stop().await;

    let gateway = Gateway::with_tool(&tool, "key = { source = \"required\" }").await;
    let missing = gateway.call(json!({})).await.expect_problem("key-missing");
    assert_eq!(
        (missing.status, missing.at("/key_action")),
        (400, "reuse".into())
    );
    let model = gateway
        .call(json!({ "idempotency_key": "model-1" }))
        .await
        .expect_ok();
    assert_eq!(gateway.record(&model).await.at("/key_source"), "model");
    gateway
        .call(json!({ "idempotency_key": 7 }))
        .await
        .expect_problem("key-missing");
    gateway.stop().await;
}

/// What a framework does that sends a key of its own with each call of a tool, when it plans again or branches.
async fn business_fields_name_a_call_under_every_runtime_key(gateway: Gateway, tool: &Tool) {
    let ask = async |key: &str, id: &str, amount: u64, note: &str| {
        let body = json!({ "args": { "business_id": id, "amount": amount, "note": note } });
        gateway
            .post("act", &body, &[("idempotency-key", key)])
            .await
    };
    let first = ask("r-1", "B1", 1, "please").await.expect_ok();
    assert_eq!(gateway.record(&first).await.at("/key_source"), "business");
    assert_ne!(
        first.at("/idempotency_key"),
        "r-1",
        "an answer names the call's key"
    );
    for key in ["r-1", "r-2"] {
        let again = ask(key, "B1", 1, "once more").await.expect_ok();
        assert_eq!(
            (again.at("/call_id"), again.at("/replayed")),
            (first.at("/call_id"), true.into())
        );
        assert_eq!(
            again.header("idempotency-key"),
            first.header("idempotency-key")
        );
    }
    for key in ["r-1", "r-3"] {
        let other = ask(key, "B1", 2, "").await.expect_problem("key-reused");
        assert_eq!(
            (other.at("/call_id"), other.at("/key_action")),
            (first.at("/call_id"), "stop".into())
        );
    }
    // The first one's key stands for it; a duplicate's does not.
    let other = ask("r-1", "B2", 1, "").await.expect_problem("key-reused");
    assert_eq!(
        (other.at("/call_id"), other.at("/key_action")),
        (first.at("/call_id"), "rotate".into())
    );
    ask("r-2", "B2", 1, "").await.expect_ok();
    assert_eq!(tool.effects(), 2);

    let branches = (0..40).map(|n| {
        let body = json!({ "args": { "business_id": "B3", "amount": 1 } }).to_string();
        let ask = gateway.client.post(gateway.url("/v1/tools/act/calls"));
        ask.header("idempotency-key", format!("branch-{n}"))
            .body(body)
            .send()
    });
    for answer in futures_util::future::join_all(branches).await {
        crate::support::Answer::read(answer.expect("an answer"))
            .await
            .expect_ok();
    }
    assert_eq!(tool.effects(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn a_runtime_key_does_not_switch_the_business_key_off() {
    let tool = Tool::start().await;
    business_fields_name_a_call_under_every_runtime_key(
        Gateway::with_tool(&tool, BUSINESS).await,
        &tool,
    )
    .await;
}

#[tokio::test]
async fn a_runtime_key_does_not_switch_the_business_key_off_over_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, BUSINESS)).await;
    gateway.until_ready().await;
    business_fields_name_a_call_under_every_runtime_key(gateway, &tool).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_runtime_key_does_not_switch_the_business_key_off_over_postgres() {
    let (place, tool) = (place().await, Tool::start().await);
    let gateway = Gateway::sharing(&place, &one_tool(&tool, BUSINESS)).await;
    gateway.until_ready().await;
    business_fields_name_a_call_under_every_runtime_key(gateway, &tool).await;
}

#[tokio::test]
async fn a_tool_may_prefer_the_runtimes_key_to_its_fields() {
    let tool = Tool::start().await;
    let runtime = BUSINESS.replace("key = {", "key = { prefer = \"runtime\",");
    let gateway = Gateway::with_tool(&tool, &runtime).await;
    let body = json!({ "args": { "business_id": "B1" } });
    for (key, effects) in [("a", 1), ("b", 2), ("a", 2)] {
        gateway
            .post("act", &body, &[("idempotency-key", key)])
            .await
            .expect_ok();
        assert_eq!(tool.effects(), effects);
    }
    let business = gateway.post("act", &body, &[]).await.expect_ok();
    assert_eq!(
        gateway.record(&business).await.at("/key_source"),
        "business"
    );
    // Back again: what was called is still known, and so is what it is called by.
    assert!(gateway.reload(&one_tool(&tool, BUSINESS)).await);
    gateway
        .post("act", &body, &[("idempotency-key", "a")])
        .await
        .expect_ok();
    gateway
        .post("act", &body, &[("idempotency-key", "c")])
        .await
        .expect_ok();
    assert_eq!(tool.effects(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn the_same_business_key_with_another_amount_is_refused() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, BUSINESS).await;
    gateway
        .call(json!({ "business_id": "B1", "amount": 1 }))
        .await
        .expect_ok();
    gateway
        .call(json!({ "business_id": "B1", "amount": 2 }))
        .await
        .expect_problem("key-reused");
    gateway
        .call(json!({ "business_id": "B2", "amount": 2 }))
        .await
        .expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn derived_keys_know_the_user_and_the_meaning_of_the_arguments_not_their_spelling() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Gateway::with_tool(&tool, "").await;
    let call = async |body: &str| {
        gateway
            .post_text("act", body.to_owned(), &[])
            .await
            .expect_ok()
            .at("/call_id")
    };
    let first = call(r#"{"args":{"a":1,"b":"é"},"user_id":"U1"}"#).await;
    assert_eq!(
        call(r#"{"user_id":"U1","args":{ "b" : "\u00e9", "a": 1.0 }}"#).await,
        first
    );
    assert_ne!(
        call(r#"{"args":{"a":1,"b":"é"},"user_id":"U2"}"#).await,
        first
    );
    assert_ne!(
        call(r#"{"args":{"a":1,"b":"e\u0301"},"user_id":"U1"}"#).await,
        first,
        "byte-equal only: NFC is not NFD"
    );
    assert_eq!(
        call(r#"{"args":{"a":1,"b":"é","c":null},"user_id":"U1"}"#).await,
        first,
        "null counts as absent"
    );
    assert_eq!(tool.requests(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn what_two_readers_could_read_differently_is_refused() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    for body in [
        "",
        "{}",
        "[]",
        r#"{"args":[]}"#,
        r#"{"args":null}"#,
        r#"{"args":{},"args":{}}"#,
        r#"{"args":{"amount":1,"amount":2}}"#,
        r#"{"args":{"a":{"b":1,"b":1}}}"#,
        r#"{"args":{"id":9007199254740993}}"#,
        r#"{"args":{"id":-9007199254740992}}"#,
        r#"{"args":{"id":100000000000000000000000000}}"#,
        r#"{"args":{"id":1e400}}"#,
        r#"{"args":{"s":"\ud800"}}"#,
        r#"{"args":{},"unknown":1}"#,
        r#"{"args":{},"fencing_token":-1}"#,
        r#"{"args":{},"fencing_token":9007199254740992}"#,
        r#"{"args":{},"confirm_duplicate_of":"an order"}"#,
        r#"{"args":{},"saga_id":7}"#,
        r#"{"args":{},"user_id":7}"#,
        "{\"args\":{},\"session_id\":\"a\\nb\"}",
        r#"{"args":{}} trailing"#,
    ] {
        let refused = gateway.post_text("act", body.to_owned(), &[]).await;
        assert_eq!(
            refused.clone().expect_problem("invalid-request").status,
            400,
            "{body}"
        );
        assert_eq!(
            (refused.at("/effect"), refused.at("/key_action")),
            ("none".into(), "reuse".into()),
            "{body}"
        );
    }
    let deep = format!(
        "{{\"args\":{{\"a\":{}1{}}}}}",
        "[".repeat(5_000),
        "]".repeat(5_000)
    );
    gateway
        .post_text("act", deep, &[])
        .await
        .expect_problem("invalid-request");
    let large = format!("{{\"args\":{{\"a\":\"{}\"}}}}", "x".repeat(2 << 20));
    let refused = gateway
        .post_text("act", large, &[])
        .await
        .expect_problem("body-too-large");
    assert_eq!(refused.status, 413);
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn arguments_that_do_not_fit_the_schema_are_refused_before_any_claim() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, BUSINESS).await;
    let refused = gateway
        .call_with_key("k", json!({ "amount": "five" }))
        .await
        .expect_problem("invalid-arguments");
    assert_eq!(
        (refused.status, refused.at("/key_action")),
        (422, "rotate".into())
    );
    let pointers: Vec<_> = (0..2)
        .map(|index| refused.at(&format!("/errors/{index}/pointer")))
        .collect();
    assert!(
        pointers.contains(&json!("/amount")) && pointers.contains(&json!("")),
        "{pointers:?}"
    );
    gateway
        .call_with_key("k", json!({ "business_id": "B1" }))
        .await
        .expect_ok();
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn the_key_command_says_what_the_gateway_does() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let body = json!({ "args": { "b": [1, 2.50], "a": "x" }, "user_id": "U1" });
    let called = gateway.post("act", &body, &[]).await.expect_ok();
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        "[store]\nurl = \"sqlite:x.db\"\n[tools.act]\nurl = \"{}\"\n",
        tool.url()
    );
    std::fs::write(folder.path().join("c.toml"), config).expect("a file");
    let output = key_command(folder.path(), &body.to_string());
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["idempotency_key"], called.at("/idempotency_key"));
    assert_eq!(said["key_source"], "derived");
    gateway.stop().await;
    // What takes the store's secret cannot be said without it.
    let config = format!(
        "[store]\nurl = \"sqlite:x.db\"\n{}",
        one_tool(&tool, "redact = { args = [\"/a\"] }")
    );
    std::fs::write(folder.path().join("c.toml"), config).expect("a file");
    let refused = key_command(folder.path(), &body.to_string());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("/v1/tools/act/key"),
        "{said}"
    );
}
