//! Square: the key in the body.

use serde_json::{Value, json};

use super::{call, keeping_keys, sent_alike};
use crate::support::tool::Seen;
use crate::support::{Act, Tool};

const ADDRESS: &str = "https://connect.squareup.com";
const PAID: &[u8] = br#"{"payment":{"id":"R2B3Z8WMVt3EAmzYWLZvz7Y69EbZY","status":"COMPLETED","amount_money":{"amount":1998,"currency":"USD"}}}"#;
const REUSED: &[u8] =
    br#"{"errors":[{"category":"INVALID_REQUEST_ERROR","code":"IDEMPOTENCY_KEY_REUSED"}]}"#;
const TEMPORARY: &[u8] =
    br#"{"errors":[{"category":"PAYMENT_METHOD_ERROR","code":"TEMPORARY_ERROR"}]}"#;

fn body(seen: &Seen) -> Value {
    serde_json::from_str(&seen.body).unwrap_or_default()
}

fn key(seen: &Seen) -> String {
    body(seen)["idempotency_key"].to_string()
}

/// A server that answers as Square does. What it does with a key that is under way is not known: here it is an error.
async fn square() -> Tool {
    let tool = Tool::start().await;
    let (fresh, again) = (Act::Answer(200, "", PAID), Act::Tell(200, "", PAID));
    let other = Act::Answer(400, "", REUSED);
    keeping_keys(
        &tool,
        key,
        fresh,
        again,
        other,
        Act::Answer(500, "", TEMPORARY),
    );
    tool
}

fn paid_with(card: &str) -> Value {
    call(json!({ "source_id": card, "amount_money": { "amount": 1998 }, "reference_id": "B-1" }))
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_with_the_key_in_the_body_and_one_payment_is_taken() {
    let tool = square().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = super::gateway("square", ADDRESS, &tool).await;
    let answer = gateway
        .post("take_payment", &paid_with("ccof:1"), &[])
        .await
        .expect_ok();
    let sent = sent_alike(&tool, 2);
    assert_eq!(sent.line, "POST /v2/payments HTTP/1.1");
    assert_eq!(sent.header("square-version"), "2025-08-20");
    let tool_key = gateway.record(&answer).await.at("/tool_key");
    let expected = json!({
        "amount_money": { "amount": 1998, "currency": "USD" }, "autocomplete": true,
        "idempotency_key": tool_key, "reference_id": "B-1", "source_id": "ccof:1",
    });
    assert_eq!(body(&sent), expected);
    gateway.stop().await;
}

#[tokio::test]
async fn a_second_card_for_an_order_waits_for_a_word_of_its_caller() {
    let tool = square().await;
    let gateway = super::gateway("square", ADDRESS, &tool).await;
    let first = gateway
        .post("take_payment", &paid_with("ccof:1"), &[])
        .await
        .expect_ok();
    let mut second = paid_with("ccof:2");
    let refused = gateway.post("take_payment", &second, &[]).await;
    assert_eq!(
        (refused.status, tool.requests()),
        (409, 1),
        "{}",
        refused.text
    );
    second["confirm_duplicate_of"] = first.at("/call_id");
    gateway.post("take_payment", &second, &[]).await.expect_ok();
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_payment_of_an_abandoned_plan_is_paid_back_once() {
    let tool = square().await;
    let gateway = super::gateway("square", ADDRESS, &tool).await;
    let mut payment = paid_with("ccof:1");
    payment["saga_id"] = "trip-1".into();
    let answer = gateway
        .post("take_payment", &payment, &[])
        .await
        .expect_ok();
    tool.then(Act::ExecuteThenDrop);
    super::abort(&gateway, "trip-1").await;
    let seen = tool.seen();
    assert_eq!(
        (seen[1].line.as_str(), seen.len()),
        ("POST /v2/refunds HTTP/1.1", 3)
    );
    let refund = body(&seen[1]);
    assert_eq!(refund["payment_id"], "R2B3Z8WMVt3EAmzYWLZvz7Y69EbZY");
    assert_eq!(
        refund["amount_money"],
        json!({ "amount": 1998, "currency": "USD" })
    );
    assert_eq!(refund["reason"], answer.at("/call_id"));
    assert_eq!(
        (tool.effects(), seen[2].body.clone()),
        (2, seen[1].body.clone())
    );
    gateway.stop().await;
}
