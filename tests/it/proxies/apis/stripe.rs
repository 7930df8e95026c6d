//! Stripe: forms, nested names, and answers that are given again under their key, failures too.

use serde_json::json;

use super::{at, call, keeping_keys, sent_alike};
use crate::support::tool::Seen;
use crate::support::{Act, Answer, Gateway, Tool, until};

const ADDRESS: &str = "https://api.stripe.com";
const AGAIN: &str = "Idempotent-Replayed: true\r\n";
const PAYMENT: &[u8] =
    br#"{"id":"pi_1","object":"payment_intent","status":"requires_confirmation","client_secret":"pi_1_secret"}"#;
const DECLINED: &[u8] = br#"{"error":{"type":"card_error","code":"card_declined"}}"#;
const BROKEN: &[u8] = br#"{"error":{"type":"api_error"}}"#;

fn key(seen: &Seen) -> String {
    seen.header("idempotency-key").to_owned()
}

/// A server that answers as Stripe does: the first answer to a key is given again.
async fn stripe(fresh: Act, again: Act) -> Tool {
    let tool = Tool::start().await;
    let other = Act::Answer(400, "", br#"{"error":{"type":"idempotency_error"}}"#);
    let busy = Act::Answer(409, "", br#"{"error":{"code":"idempotency_key_in_use"}}"#);
    keeping_keys(&tool, key, fresh, again, other, busy);
    tool
}

async fn payments() -> Tool {
    stripe(
        Act::Answer(200, "", PAYMENT),
        Act::Tell(200, AGAIN, PAYMENT),
    )
    .await
}

fn order() -> serde_json::Value {
    call(json!({ "amount": 1998, "metadata": { "order_id": "B-1" } }))
}

fn confirmed_with(card: &str) -> serde_json::Value {
    call(json!({ "payment_intent": "pi_1", "payment_method": card }))
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_under_its_key_and_one_payment_is_prepared() {
    let tool = payments().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = super::gateway("stripe", ADDRESS, &tool).await;
    let answer = gateway
        .post("create_payment", &order(), &[])
        .await
        .expect_ok();
    assert_eq!(answer.at("/result/id"), "pi_1");
    let sent = sent_alike(&tool, 2);
    assert_eq!(sent.line, "POST /v1/payment_intents HTTP/1.1");
    assert_eq!(
        sent.header("content-type"),
        "application/x-www-form-urlencoded"
    );
    assert_eq!(sent.header("authorization"), "Bearer secret");
    assert_eq!(sent.header("stripe-version"), "2025-03-31.basil");
    let body = "amount=1998&automatic_payment_methods%5Ballow_redirects%5D=never\
        &automatic_payment_methods%5Benabled%5D=true&currency=eur&metadata%5Boncegate_key%5D=KEY&metadata%5Border_id%5D=B-1";
    assert_eq!(sent.body, body.replace("KEY", &key(&sent)));
    let again = gateway
        .post("create_payment", &order(), &[])
        .await
        .expect_ok();
    assert_eq!((again.at("/replayed"), tool.requests()), (true.into(), 2));
    let record = gateway.record(&answer).await;
    assert_eq!(
        record.at("/tool_key"),
        key(&sent).as_str(),
        "an operator finds it at Stripe"
    );
    assert!(!record.text.contains("pi_1_secret"), "{}", record.text);
    gateway.stop().await;
}

#[tokio::test]
async fn what_the_model_may_not_choose_is_refused_before_anything_is_sent() {
    let tool = payments().await;
    let gateway = super::gateway("stripe", ADDRESS, &tool).await;
    for (member, value) in [
        ("currency", json!("usd")),
        ("transfer_data", json!({ "destination": "acct_1" })),
        ("confirm", json!(true)),
        (
            "metadata",
            json!({ "order_id": "B-1", "oncegate_key": "mine" }),
        ),
    ] {
        let mut order = order();
        order["args"][member] = value;
        let answer = gateway.post("create_payment", &order, &[]).await;
        answer.expect_problem("invalid-arguments");
    }
    let escape = call(json!({ "payment_intent": "pi_1/../../refunds", "payment_method": "pm_1" }));
    let answer = gateway.post("confirm_payment", &escape, &[]).await;
    answer.expect_problem("invalid-arguments");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_declined_card_stays_declined_and_another_card_is_another_call() {
    let declined = Act::Answer(402, AGAIN, DECLINED);
    let tool = stripe(Act::Answer(402, "", DECLINED), declined).await;
    let gateway = super::gateway("stripe", ADDRESS, &tool).await;
    for _ in 0..2 {
        let answer = gateway
            .post("confirm_payment", &confirmed_with("pm_1"), &[])
            .await;
        let answer = answer.expect_problem("tool-rejected");
        assert_eq!(answer.at("/effect"), "none");
        assert!(answer.text.contains("card_declined"), "{}", answer.text);
    }
    assert_eq!(
        tool.seen()[0].line,
        "POST /v1/payment_intents/pi_1/confirm HTTP/1.1"
    );
    tool.then(Act::Answer(200, "", PAYMENT));
    let answer = gateway
        .post("confirm_payment", &confirmed_with("pm_2"), &[])
        .await;
    answer.expect_ok();
    let seen = tool.seen();
    assert_eq!(key(&seen[0]), key(&seen[1]));
    assert_ne!(key(&seen[0]), key(&seen[2]));
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

/// The request is still at work when its time is over: that a second one finds it there proves nothing.
#[tokio::test]
async fn a_conflict_with_the_request_that_still_runs_leaves_the_call_unknown_until_it_is_answered()
{
    let tool = payments().await;
    let (held, act) = Act::held(Act::Answer(200, "", PAYMENT));
    tool.then(act);
    let config = at("stripe", ADDRESS, tool.port).replace(
        "timeout = \"20s\"\ndeadline = \"60s\"",
        "timeout = \"300ms\"\ndeadline = \"2s\"",
    );
    let gateway = Gateway::start(&config).await;
    let answer = gateway.post("create_payment", &order(), &[]).await;
    let answer = answer.expect_problem("outcome-unknown");
    assert!(tool.requests() >= 2, "it was asked again");
    drop(held);
    until("the call is settled", async || {
        gateway.record(&answer).await.at("/state") == "succeeded"
    })
    .await;
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn what_stripe_does_not_know_either_is_left_to_an_operator() {
    for (status, again) in [
        (500, Act::Answer(500, AGAIN, BROKEN)),
        (424, Act::Answer(424, "", BROKEN)),
    ] {
        let tool = stripe(Act::ExecuteThenAnswer(status), again).await;
        let gateway = super::gateway("stripe", ADDRESS, &tool).await;
        let refund = call(json!({ "payment_intent": "pi_1", "metadata": { "refund_id": "R-1" } }));
        let answer = gateway.post("refund_payment", &refund, &[]).await;
        let answer = answer.expect_problem("outcome-unknown");
        let looks = tool.requests();
        until("it is asked again", async || tool.requests() > looks).await;
        let found =
            json!({ "as": "succeeded", "result": { "id": "re_1" }, "reason": "in the dashboard" });
        // Unless it is just being asked again.
        until("an operator settles it", async || {
            gateway.resolve(&answer, &found).await.status == 200
        })
        .await;
        let again = gateway
            .post("refund_payment", &refund, &[])
            .await
            .expect_ok();
        assert_eq!(again.at("/result/id"), "re_1");
        assert_eq!(tool.effects(), 1, "{status}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_payment_of_an_abandoned_plan_is_refunded_once_although_the_answer_to_that_is_lost() {
    let tool = payments().await;
    let gateway = super::gateway("stripe", ADDRESS, &tool).await;
    for (name, mut request) in [
        ("create_payment", order()),
        ("confirm_payment", confirmed_with("pm_1")),
    ] {
        request["saga_id"] = "trip-1".into();
        gateway.post(name, &request, &[]).await.expect_ok();
    }
    tool.then(Act::ExecuteThenDrop);
    super::abort(&gateway, "trip-1").await;
    let seen = tool.seen();
    let refunds: Vec<_> = seen
        .iter()
        .filter(|seen| seen.line.starts_with("POST /v1/refunds "))
        .collect();
    assert_eq!(refunds.len(), 2, "the lost answer was asked for again");
    assert_eq!(refunds.iter().filter(|seen| seen.executed).count(), 1);
    let body = "metadata%5Boncegate_key%5D=KEY&metadata%5Brefund_id%5D=";
    assert!(
        refunds[0]
            .body
            .starts_with(&body.replace("KEY", &key(refunds[0]))),
        "{}",
        refunds[0].body
    );
    assert!(
        refunds[0]
            .body
            .ends_with("&payment_intent=pi_1&reason=requested_by_customer")
    );
    gateway.stop().await;
}

#[tokio::test]
async fn an_application_with_stripes_library_gets_the_answer_that_was_lost() {
    let tool = payments().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = super::gateway("stripe", ADDRESS, &tool).await;
    let create = async |account: &str| {
        let request = gateway
            .client
            .post(gateway.url("/proxy/stripe/v1/payment_intents"))
            .header("idempotency-key", "order-7")
            .header("authorization", "Bearer of-the-gateway")
            .header("content-type", "application/x-www-form-urlencoded")
            .header("stripe-account", account);
        Answer::to(request.body("amount=1998&metadata[order]=7")).await
    };
    let first = create("acct_1").await;
    assert_eq!((first.status, first.text.as_bytes()), (200, PAYMENT));
    let sent = sent_alike(&tool, 2);
    assert_eq!(sent.header("authorization"), "Bearer secret");
    assert_eq!(create("acct_1").await.text, first.text);
    create("acct_2").await.expect_problem("key-reused");
    let call = format!("/v1/calls/{}", first.header("x-call-id"));
    let call = gateway.get(&call).await.expect_ok();
    assert!(!call.text.contains("pi_1_secret"), "{}", call.text);
    let request = gateway
        .client
        .delete(gateway.url("/proxy/stripe/v1/customers/cus_1"));
    assert_eq!(Answer::to(request).await.status, 200, "without a key");
    assert_eq!(tool.requests(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn a_decline_whose_answer_was_lost_is_told_to_the_library_as_unknown() {
    let declined = Act::Answer(402, AGAIN, DECLINED);
    let tool = stripe(Act::ExecuteThenDrop, declined).await;
    let gateway = super::gateway("stripe", ADDRESS, &tool).await;
    let request = gateway
        .client
        .post(gateway.url("/proxy/stripe/v1/payment_intents/pi_1/confirm"))
        .header("idempotency-key", "order-7");
    let answer = Answer::to(request).await;
    let answer = answer.expect_problem("outcome-unknown");
    assert_eq!(answer.at("/key_action"), "wait");
    sent_alike(&tool, 3);
    gateway.stop().await;
}
