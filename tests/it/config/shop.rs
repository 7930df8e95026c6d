//! The demo shop as an example of a tool that checks fencing tokens.

use serde_json::json;

use crate::support::shop::{Shop, order};
use crate::support::{Answer, Gateway};

fn holder<'a>(session_id: &'a str, token: &'a str) -> [(&'a str, &'a str); 2] {
    [("x-session-id", session_id), ("fencing-token", token)]
}

#[track_caller]
fn is_stale(answer: &Answer, newest: &str) {
    let expected = format!(r#"{{"error":"stale-fencing-token","newest":{newest}}}"#);
    assert_eq!((answer.status, &answer.text), (409, &expected));
    assert_eq!(answer.header("fencing-token"), newest);
}

#[tokio::test]
async fn each_effect_of_an_overtaken_writer_is_refused_and_nothing_is_done() {
    let shop = Shop::start().await;
    let made = shop.order(&holder("S", "7")).await;
    let order_id = made.at("/order_id");
    let pay = json!({ "order_id": order_id, "amount_cents": 999 });
    let payment = shop.post("/payments", pay.clone(), &holder("S", "7")).await;
    assert_eq!(
        (made.status, payment.status),
        (201, 201),
        "an equal token is the same holder"
    );
    let before = shop.stats().await;

    for (door, body) in [
        ("/orders", order("widget", 1)),
        ("/orders/cancel", json!({ "order_id": order_id })),
        ("/payments", pay),
        (
            "/payments/refund",
            json!({ "payment_id": payment.at("/payment_id") }),
        ),
    ] {
        is_stale(&shop.post(door, body, &holder("S", "6")).await, "7");
    }
    assert_eq!(shop.stats().await, before);
    assert_eq!(
        shop.order(&holder("other", "6")).await.status,
        201,
        "sessions are not compared"
    );
}

#[tokio::test]
async fn an_effect_that_was_refused_leaves_no_token_behind() {
    let shop = Shop::start().await;
    assert_eq!(shop.order(&holder("S", "7")).await.status, 201);
    let refused = shop
        .post("/orders", order("gizmo", 11), &holder("S", "9"))
        .await;
    assert_eq!(
        (refused.status, refused.header("fencing-token")),
        (409, ""),
        "{}",
        refused.text
    );
    assert_eq!(shop.order(&holder("S", "8")).await.status, 201);
    is_stale(&shop.order(&holder("S", "7")).await, "8");
}

#[tokio::test]
async fn without_both_headers_nothing_is_compared_and_what_is_no_number_is_refused() {
    let shop = Shop::start().await;
    for token in ["9", "7"] {
        assert_eq!(shop.order(&[("fencing-token", token)]).await.status, 201);
    }
    for token in ["seven", "", "-1", "7.5", "9223372036854775808"] {
        assert_eq!(
            shop.order(&holder("S", token)).await.status,
            422,
            "{token:?}"
        );
    }
    assert_eq!(shop.stats().await["orders"], 2);
}

#[tokio::test]
async fn the_tokens_of_the_gateway_are_let_in_and_then_guard_the_session() {
    let shop = Shop::start().await;
    let gateway = Gateway::start(&format!("[tools.act]\nurl = \"{}/orders\"\n", shop.url)).await;
    let body = |sku| json!({ "args": order(sku, 1), "session_id": "S" });
    gateway.post("act", &body("widget"), &[]).await.expect_ok();
    let newest = gateway
        .post("act", &body("gadget"), &[])
        .await
        .expect_ok()
        .at("/fencing");
    is_stale(&shop.order(&holder("S", "7")).await, &newest.to_string());
    gateway.stop().await;
}
