//! Agents that pay, by the rows of settings for their protocols: what counts as one purchase.

use reqwest::Method;
use serde_json::{Value, json};

use crate::proxies::commerce::{is_replay, with_headers};
use crate::proxies::requests::api;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool};

on_both_stores! {
    x402_executes_a_paid_request_once_for_each_payment_identifier,
    mpp_settles_each_challenge_once,
    an_unpaid_write_is_forwarded_without_a_claim_and_a_paid_one_never_is,
}

/// A payment of x402 with this identifier and this payload.
fn payment(id: &str, payload: &str) -> String {
    let payment = json!({
        "x402Version": 2,
        "payload": payload,
        "extensions": { "payment-identifier": { "info": { "id": id } } },
    });
    base64_of(&payment)
}

fn base64_of(value: &Value) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(value.to_string())
}

async fn get(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> Answer {
    let url = gateway.url(&format!("/proxy/api{path}"));
    let request = gateway.client.request(Method::GET, url);
    let headers = headers.iter();
    let request = headers.fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    Answer::to(request).await
}

async fn x402_executes_a_paid_request_once_for_each_payment_identifier(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = stores.gateway(&api(&tool, "profile = \"x402\"")).await;
    tool.then(Act::Answer(402, "payment-required: e30=\r\n", b"{}"));
    let asked = get(&gateway, "/report", &[]).await;
    assert_eq!(asked.status, 402, "{}", asked.text);
    let (id, other) = ("pay_0123456789abcdef", "pay_fedcba9876543210");
    let paid = async |path: &str, id: &str, payload: &str| {
        let payment = payment(id, payload);
        get(&gateway, path, &[("payment-signature", &*payment)]).await
    };
    let first = paid("/report", id, "p1").await;
    assert_eq!(first.status, 200, "{}", first.text);
    // Also with another payload of the payment: it is the same purchase.
    for payload in ["p1", "p2"] {
        let again = paid("/report", id, payload).await;
        assert_eq!((&again.text, is_replay(&again)), (&first.text, true));
    }
    let reused = paid("/other", id, "p1").await;
    assert_eq!(reused.status, 409, "{}", reused.text);
    let second = paid("/report", other, "p3").await;
    assert_ne!(second.text, first.text, "another purchase");
    assert_eq!(tool.effects(), 2);
    // Without an identifier a purchase is known by its payment: nobody else's is answered with it.
    let bare = |payload: &str| base64_of(&json!({ "x402Version": 1, "payload": payload }));
    let pay = async |payment: &str| get(&gateway, "/report", &[("x-payment", payment)]).await;
    let one = pay(&bare("p1")).await;
    let again = pay(&bare("p1")).await;
    assert_eq!((&again.text, is_replay(&again)), (&one.text, true));
    assert_ne!(pay(&bare("p2")).await.text, one.text);
    let unread = pay("%%%").await.expect_problem("invalid-request");
    assert!(unread.text.contains("cannot be read"), "{}", unread.text);
    assert_eq!(tool.effects(), 4);
}

/// What asks for a payment has no effect. One that is lost must not hold back the purchase.
async fn an_unpaid_write_is_forwarded_without_a_claim_and_a_paid_one_never_is(stores: &Stores) {
    let tool = Tool::start().await;
    for profile in ["mpp", "x402"] {
        let config = api(&tool, &format!("profile = \"{profile}\""));
        let gateway = stores.gateway(&config).await;
        tool.then(Act::Drop);
        let lost = with_headers(&gateway, "/buy", &[], "{}").await;
        lost.expect_problem("not-answered");
        tool.then(Act::Answer(402, "payment-required: e30=\r\n", b"{}"));
        let asked = with_headers(&gateway, "/buy", &[], "{}").await;
        assert_eq!(asked.status, 402, "{}", asked.text);
        let bare = base64_of(&json!({ "of": profile, "challenge": { "id": profile } }));
        let paid = async || {
            let payment = [("payment-authorization", &*format!("Payment {bare}"))];
            with_headers(&gateway, "/buy", &payment, "{}").await
        };
        tool.then(Act::ExecuteThenDrop);
        for _ in 0..2 {
            paid().await.expect_problem("outcome-unknown");
        }
        let listed = gateway.get("/v1/calls").await.expect_ok();
        let listed = listed.at("/calls").as_array().cloned();
        let listed = listed.expect("a list");
        assert!(listed.iter().all(|call| call["state"] == "unknown"));
        gateway.stop().await;
    }
    assert_eq!((tool.requests(), tool.effects()), (6, 2));
}

async fn mpp_settles_each_challenge_once(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&api(&tool, "profile = \"mpp\"")).await;
    let challenge = "www-authenticate: Payment id=\"c1\"\r\n";
    tool.then(Act::Answer(402, challenge, b"{}"));
    let asked = with_headers(&gateway, "/buy", &[], "{}").await;
    assert_eq!(asked.status, 402, "{}", asked.text);
    let credential = |id: &str| {
        let credential = json!({ "challenge": { "id": id }, "payload": { "token": "secret" } });
        format!("Payment {}", base64_of(&credential))
    };
    let pay = async |id: &str| {
        let credential = credential(id);
        let headers = [("authorization", &*credential)];
        with_headers(&gateway, "/buy", &headers, "{}").await
    };
    let receipt = "payment-receipt: cmVjZWlwdA\r\n";
    tool.then(Act::Answer(200, receipt, b"{\"sold\":1}"));
    for is_again in [false, true, true] {
        let paid = pay("c1").await;
        assert_eq!(
            (paid.status, is_replay(&paid)),
            (200, is_again),
            "{}",
            paid.text
        );
        assert_eq!(paid.header("payment-receipt"), "cmVjZWlwdA");
    }
    // Its outcome is unknown: no challenge, and nothing that a client takes for another payload.
    tool.then(Act::ExecuteThenDrop);
    for _ in 0..2 {
        let unknown = pay("c2").await;
        assert_eq!(unknown.status, 503, "{}", unknown.text);
        assert_eq!(unknown.header("www-authenticate"), "");
        assert!(!unknown.header("retry-after").is_empty());
    }
    assert_eq!(tool.effects(), 2);
    // A key of the client's own stands for the unpaid request and for the paid one.
    let own = async |credential: Option<&str>| {
        let key = [("idempotency-key", "mine")];
        let headers: Vec<_> = credential
            .map(|credential| ("authorization", credential))
            .into_iter()
            .chain(key)
            .collect();
        with_headers(&gateway, "/buy", &headers, "{}").await
    };
    tool.then(Act::Answer(402, challenge, b"{}"));
    assert_eq!(own(None).await.status, 402);
    let paid = own(Some(&credential("c3"))).await;
    assert_eq!(
        (paid.status, is_replay(&paid)),
        (200, false),
        "{}",
        paid.text
    );
    let again = own(Some(&credential("c4"))).await;
    assert_eq!(
        (again.status, is_replay(&again)),
        (200, true),
        "{}",
        again.text
    );
    assert_eq!(tool.effects(), 3);
    // The ledger shows neither a payment nor what stands in it.
    let listed = gateway.get("/v1/calls").await.text;
    assert!(
        !listed.contains("secret") && !listed.contains("\"c1\""),
        "{listed}"
    );
}
