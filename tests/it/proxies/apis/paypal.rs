//! PayPal: the key in a header of another name, and in the body of what has no such header.

use serde_json::{Value, json};

use super::{call, keeping_keys, sent_alike};
use crate::support::tool::Seen;
use crate::support::{Act, Tool};

const ADDRESS: &str = "https://api-m.paypal.com";
const CAPTURED: &[u8] = br#"{"id":"5O190127TN364715T","status":"COMPLETED","purchase_units":[{"payments":{"captures":[{"id":"3C679366HH908993F","status":"COMPLETED"}]}}]}"#;
const REFUNDED: &[u8] = br#"{"id":"1JU08902781691411","status":"COMPLETED"}"#;
const BUSY: &[u8] =
    br#"{"name":"RESOURCE_CONFLICT","details":[{"issue":"PREVIOUS_REQUEST_IN_PROGRESS"}]}"#;

fn key(seen: &Seen) -> String {
    seen.header("paypal-request-id").to_owned()
}

/// A server that answers as PayPal does: 201, and 200 to the same again.
async fn paypal(body: &'static [u8]) -> Tool {
    let tool = Tool::start().await;
    let other = Act::Answer(422, "", br#"{"name":"UNPROCESSABLE_ENTITY"}"#);
    let (fresh, again) = (Act::Answer(201, "", body), Act::Tell(200, "", body));
    keeping_keys(&tool, key, fresh, again, other, Act::Answer(409, "", BUSY));
    tool
}

#[tokio::test]
async fn a_lost_answer_to_a_capture_is_asked_for_again_and_one_capture_is_made() {
    let tool = paypal(CAPTURED).await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = super::gateway("paypal", ADDRESS, &tool).await;
    let order = call(json!({ "order_id": "5O190127TN364715T" }));
    let answer = gateway.post("capture_order", &order, &[]).await.expect_ok();
    assert_eq!(answer.at("/result/status"), "COMPLETED");
    let sent = sent_alike(&tool, 2);
    assert_eq!(
        sent.line,
        "POST /v2/checkout/orders/5O190127TN364715T/capture HTTP/1.1"
    );
    assert_eq!(
        (sent.body.as_str(), sent.header("content-type")),
        ("{}", "application/json")
    );
    assert_eq!(sent.header("prefer"), "return=representation");
    assert_eq!(
        sent.header("idempotency-key"),
        "",
        "PayPal reads another header"
    );
    let record = gateway.record(&answer).await;
    assert_eq!(record.at("/tool_key"), key(&sent).as_str());
    gateway.stop().await;
}

#[tokio::test]
async fn a_lost_answer_to_a_refund_is_asked_for_again_and_the_reports_have_its_key() {
    let tool = paypal(REFUNDED).await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = super::gateway("paypal", ADDRESS, &tool).await;
    let amount = json!({ "value": "10.99", "currency_code": "USD" });
    let refund =
        call(json!({ "capture_id": "3C679366HH908993F", "invoice_id": "R-1", "amount": amount }));
    gateway
        .post("refund_capture", &refund, &[])
        .await
        .expect_ok();
    let sent = sent_alike(&tool, 2);
    assert_eq!(
        sent.line,
        "POST /v2/payments/captures/3C679366HH908993F/refund HTTP/1.1"
    );
    let body: Value = serde_json::from_str(&sent.body).expect("JSON");
    assert_eq!(
        body,
        json!({ "amount": amount, "custom_id": key(&sent), "invoice_id": "R-1" })
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_batch_that_paypal_refuses_to_pay_twice_is_left_to_an_operator() {
    let tool = paypal(REFUNDED).await;
    let refused = br#"{"name":"USER_BUSINESS_ERROR","details":[{"field":"SENDER_BATCH_ID"}]}"#;
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Answer(400, "", refused));
    tool.choose(move |_, _| Act::Answer(400, "", refused));
    let gateway = super::gateway("paypal", ADDRESS, &tool).await;
    let item = json!({ "recipient_type": "EMAIL", "receiver": "a@shop.example", "amount": { "value": "9.87", "currency": "USD" } });
    let payout = call(json!({ "items": [item] }));
    gateway
        .post("send_payout", &payout, &[])
        .await
        .expect_problem("key-missing");
    assert_eq!(tool.requests(), 0);
    let headers = [("idempotency-key", "payout-2026-48")];
    let answer = gateway.post("send_payout", &payout, &headers).await;
    let answer = answer.expect_problem("outcome-unknown");
    let sent = tool.seen()[0].clone();
    assert_eq!(sent.line, "POST /v1/payments/payouts HTTP/1.1");
    let body: Value = serde_json::from_str(&sent.body).expect("JSON");
    let header = json!({ "email_subject": "You have a payout", "sender_batch_id": key(&sent) });
    assert_eq!(
        body,
        json!({ "items": [item], "sender_batch_header": header })
    );
    assert_eq!(tool.effects(), 1);
    assert_eq!(gateway.record(&answer).await.at("/state"), "unknown");
    gateway.stop().await;
}
