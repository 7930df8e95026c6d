use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::support::binary::command;
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
    let first = gateway.post("act", &args, &[("idempotency-key", "k-1")]).await.expect_ok();
    let quoted = gateway.post("act", &args, &[("idempotency-key", "\"k-1\"")]).await.expect_ok();
    let body = json!({ "args": {}, "idempotency_key": "k-1" });
    let member = gateway.post("act", &body, &[]).await.expect_ok();
    let both = gateway.post("act", &body, &[("Idempotency-Key", "\"k-1\"")]).await.expect_ok();
    for answer in [&quoted, &member, &both] {
        assert_eq!(answer.at("/call_id"), first.at("/call_id"));
        assert_eq!((answer.header("idempotency-key"), answer.at("/idempotency_key")), ("k-1", "k-1".into()));
    }
    assert_eq!(tool.requests(), 1);
    let conflict =
        gateway.post("act", &body, &[("idempotency-key", "k-2")]).await.expect_problem("key-conflict");
    assert_eq!((conflict.status, conflict.at("/effect")), (400, "none".into()));
    gateway.stop().await;
}

#[tokio::test]
async fn a_key_that_is_none_is_refused() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let long = "k".repeat(256);
    let open_quote = [("idempotency-key", "\"open")];
    gateway.post("act", &json!({ "args": {} }), &open_quote).await.expect_problem("key-invalid");
    for key in ["", "a b", "a, b", &long] {
        let refused = gateway.post("act", &json!({ "args": {} }), &[("idempotency-key", key)]).await;
        refused.expect_problem("key-invalid");
        let refused = gateway.post("act", &json!({ "args": {}, "idempotency_key": key }), &[]).await;
        refused.expect_problem("key-invalid");
    }
    let twice = [("idempotency-key", "a"), ("idempotency-key", "a")];
    gateway.post("act", &json!({ "args": {} }), &twice).await.expect_problem("invalid-request");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn sources_have_an_order_and_the_ledger_says_which_it_was() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, BUSINESS).await;
    let with_model = json!({ "args": { "business_id": "B1", "idempotency_key": "model-1" } });
    let business = gateway.post("act", &with_model, &[]).await.expect_ok();
    assert_eq!(gateway.record(&business).await.at("/key_source"), "business");
    let other_model =
        json!({ "args": { "business_id": "B1", "idempotency_key": "model-2", "note": "again, please" } });
    let again = gateway.post("act", &other_model, &[]).await.expect_ok();
    assert_eq!(
        again.at("/call_id"),
        business.at("/call_id"),
        "neither a new model key nor a new wording splits an intent"
    );
    let runtime = gateway.post("act", &with_model, &[("idempotency-key", "r")]).await.expect_ok();
    assert_eq!(gateway.record(&runtime).await.at("/key_source"), "runtime");
    assert!(tool.seen().iter().all(|seen| !seen.body.contains("idempotency_key")), "the tool never sees it");
    gateway.stop().await;

    let gateway = Gateway::with_tool(&tool, "key = { source = \"required\" }").await;
    let missing = gateway.call(json!({})).await.expect_problem("key-missing");
    assert_eq!((missing.status, missing.at("/key_action")), (400, "reuse".into()));
    let model = gateway.call(json!({ "idempotency_key": "model-1" })).await.expect_ok();
    assert_eq!(gateway.record(&model).await.at("/key_source"), "model");
    gateway.call(json!({ "idempotency_key": 7 })).await.expect_problem("key-invalid");
    gateway.stop().await;
}

#[tokio::test]
async fn the_same_business_key_with_another_amount_is_refused() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, BUSINESS).await;
    gateway.call(json!({ "business_id": "B1", "amount": 1 })).await.expect_ok();
    gateway.call(json!({ "business_id": "B1", "amount": 2 })).await.expect_problem("key-reused");
    gateway.call(json!({ "business_id": "B2", "amount": 2 })).await.expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn derived_keys_know_the_user_and_the_meaning_of_the_arguments_not_their_spelling() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Gateway::with_tool(&tool, "").await;
    let call =
        async |body: &str| gateway.post_text("act", body.to_owned(), &[]).await.expect_ok().at("/call_id");
    let first = call(r#"{"args":{"a":1,"b":"é"},"user_id":"U1"}"#).await;
    assert_eq!(call(r#"{"user_id":"U1","args":{ "b" : "\u00e9", "a": 1.0 }}"#).await, first);
    assert_ne!(call(r#"{"args":{"a":1,"b":"é"},"user_id":"U2"}"#).await, first);
    assert_ne!(
        call(r#"{"args":{"a":1,"b":"e\u0301"},"user_id":"U1"}"#).await,
        first,
        "byte-equal only: NFC is not NFD"
    );
    assert_ne!(
        call(r#"{"args":{"a":1,"b":"é","c":null},"user_id":"U1"}"#).await,
        first,
        "null is not absent"
    );
    assert_eq!(tool.requests(), 4);
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
        assert_eq!(refused.clone().expect_problem("invalid-request").status, 400, "{body}");
        assert_eq!(
            (refused.at("/effect"), refused.at("/key_action")),
            ("none".into(), "reuse".into()),
            "{body}"
        );
    }
    let deep = format!("{{\"args\":{{\"a\":{}1{}}}}}", "[".repeat(5_000), "]".repeat(5_000));
    gateway.post_text("act", deep, &[]).await.expect_problem("invalid-request");
    let large = format!("{{\"args\":{{\"a\":\"{}\"}}}}", "x".repeat(2 << 20));
    let refused = gateway.post_text("act", large, &[]).await.expect_problem("body-too-large");
    assert_eq!(refused.status, 413);
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn arguments_that_do_not_fit_the_schema_are_refused_before_any_claim() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, BUSINESS).await;
    let refused =
        gateway.call_with_key("k", json!({ "amount": "five" })).await.expect_problem("invalid-arguments");
    assert_eq!((refused.status, refused.at("/key_action")), (422, "rotate".into()));
    let pointers: Vec<_> = (0..2).map(|index| refused.at(&format!("/errors/{index}/pointer"))).collect();
    assert!(pointers.contains(&json!("/amount")) && pointers.contains(&json!("")), "{pointers:?}");
    gateway.call_with_key("k", json!({ "business_id": "B1" })).await.expect_ok();
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
    let config = format!("[store]\nurl = \"sqlite:x.db\"\n[tools.act]\nurl = \"{}\"\n", tool.url());
    std::fs::write(folder.path().join("c.toml"), config).expect("a file");
    let mut command = command(folder.path(), &["key", "--config", "c.toml", "--tool", "act"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().expect("standard input").write_all(body.to_string().as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["idempotency_key"], called.at("/idempotency_key"));
    assert_eq!(said["fingerprint"], gateway.record(&called).await.at("/fingerprint"));
    assert_eq!(said["key_source"], "derived");
    gateway.stop().await;
}
