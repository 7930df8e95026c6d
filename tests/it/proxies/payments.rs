//! Agents that pay: a request that is sent again with a payment is the same one, and settles once.

use reqwest::Method;
use serde_json::json;

use crate::proxies::requests::api;
#[cfg(feature = "postgres")]
use crate::support::postgres::place;
use crate::support::redis::Redis;
use crate::support::search::{all_bytes, holds};
use crate::support::stores::Stores;
use crate::support::{Act, Answer, Gateway, Tool};

/// What asks for a payment, and the header that brings it.
const PROTOCOLS: [(&str, (&str, &str)); 4] = [
    (
        "www-authenticate: Payment id=\"c2\", header=\"Payment-Authorization\"\r\n",
        ("payment-authorization", "Payment c2VjcmV0LXBheW1lbnQ"),
    ),
    (
        "www-authenticate: Payment id=\"c1\"\r\n",
        ("authorization", "Payment c2VjcmV0LXBheW1lbnQ"),
    ),
    (
        "payment-required: e30=\r\n",
        ("payment-signature", "c2VjcmV0LXBheW1lbnQ"),
    ),
    ("", ("x-payment", "c2VjcmV0LXBheW1lbnQ")),
];
/// The body of an answer that asks for a payment, as version 1 of x402 has it.
const CHALLENGE: &[u8] = b"{\"x402Version\":1,\"accepts\":[]}\n";
const PAYMENT: &str = "c2VjcmV0LXBheW1lbnQ";
const RECEIPTS: &str = "payment-receipt: cmVjZWlwdA\r\npayment-response: cmVjZWlwdA\r\nx-payment-response: cmVjZWlwdA\r\n";

async fn send(gateway: &Gateway, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let url = gateway.url(&format!("/proxy/api{path}"));
    let mut request = gateway.client.request(method, url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::to(request).await
}

/// A 402, then the paid request under the same key, whose answer is lost; then two repetitions.
async fn settled_once(stores: &Stores) {
    let tool = Tool::start().await;
    // An operator who wants refusals replayed does not want the demand for a payment replayed.
    let config = api(&tool, "remember_rejections = true");
    let gateway = stores.gateway(&config).await;
    for (n, (challenge, payment)) in PROTOCOLS.into_iter().enumerate() {
        let (key, other_payment) = (format!("k{n}"), (payment.0, "Payment another"));
        let ask = async |payment: Option<(&str, &str)>| {
            let headers: Vec<_> = payment
                .into_iter()
                .chain([("idempotency-key", &*key)])
                .collect();
            send(&gateway, Method::POST, "/v1/buy", &headers).await
        };
        let effects = tool.effects();
        tool.then(Act::Answer(402, challenge, CHALLENGE));
        let asked = ask(None).await;
        assert_eq!(asked.status, 402, "{}", asked.text);
        let header = challenge.split(':').next().unwrap_or_default();
        assert!(header.is_empty() || !asked.header(header).is_empty());
        tool.then(Act::Answer(200, RECEIPTS, b"{\"sold\":1}"));
        let paid = ask(Some(payment)).await;
        assert_eq!(paid.status, 200, "{}", paid.text);
        let seen = tool.seen().last().expect("a request").clone();
        assert_eq!(seen.header(payment.0), payment.1, "it reaches the API");
        for again in [Some(payment), Some(other_payment), None] {
            let again = ask(again).await;
            assert_eq!(
                (again.status, again.header("idempotent-replayed")),
                (200, "true"),
                "{}",
                again.text
            );
            assert_eq!(again.header("payment-receipt"), "cmVjZWlwdA");
        }
        assert_eq!(tool.effects(), effects + 1, "{payment:?}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_paid_request_after_a_402_is_the_same_intent_and_settles_once() {
    settled_once(&Stores::Sqlite).await;
}

#[tokio::test]
async fn over_redis_a_paid_request_after_a_402_settles_once() {
    let redis = Redis::strict().await;
    settled_once(&Stores::Redis(redis.url())).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn over_postgres_a_paid_request_after_a_402_settles_once() {
    settled_once(&Stores::Postgres(place().await)).await;
}

/// A server may execute first, and settle then.
#[tokio::test]
async fn a_402_to_a_payment_that_was_tried_proves_nothing() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "profile = \"x402\"")).await;
    let paid = async || {
        let payment = ("payment-signature", "e30=");
        send(&gateway, Method::GET, "/report", &[payment]).await
    };
    tool.then(Act::Tell(402, "payment-required: e30=\r\n", CHALLENGE));
    assert_eq!(paid().await.status, 402, "it was not tried");
    let tried = "payment-response: eyJzdWNjZXNzIjpmYWxzZX0=\r\n";
    tool.then(Act::Tell(402, tried, b"{}"));
    for _ in 0..3 {
        let unknown = paid().await.expect_problem("outcome-unknown");
        assert_eq!(unknown.status, 503);
        assert!(!unknown.header("retry-after").is_empty());
    }
    assert_eq!(tool.requests(), 2);
    gateway.stop().await;
}

/// Whatever its method and its rule, a request that pays is guarded.
#[tokio::test]
async fn a_request_that_pays_is_a_write_under_any_method() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let rules = "unkeyed = \"derive\"\n\
        [[proxies.api.rules]]\npath = \"/open\"\nas = \"write\"\nunkeyed = \"pass\"\n\
        [[proxies.api.rules]]\npath = \"/search\"\nas = \"read\"\n\
        [[proxies.api.rules]]\npath = \"/keyed\"\nas = \"write\"\nunkeyed = \"refuse\"\n\
        [[proxies.api.rules]]\npath = \"/closed\"\nas = \"deny\"\n";
    let gateway = Gateway::start(&api(&tool, rules)).await;
    for (_, payment) in PROTOCOLS {
        for (method, path) in [
            (Method::GET, "/weather"),
            (Method::POST, "/search"),
            (Method::POST, "/open"),
        ] {
            let path = format!("{path}?{}", payment.0);
            let before = tool.effects();
            for is_again in [false, true] {
                let answer = send(&gateway, method.clone(), &path, &[payment]).await;
                assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text);
                let replayed = answer.header("idempotent-replayed");
                assert_eq!(replayed, if is_again { "true" } else { "" });
            }
            assert_eq!(tool.effects(), before + 1, "{method} {path}");
        }
        let refused = send(&gateway, Method::GET, "/keyed", &[payment]).await;
        refused.expect_problem("key-missing");
        let denied = send(&gateway, Method::GET, "/closed", &[payment]).await;
        denied.expect_problem("forbidden");
    }
    gateway.stop().await;
}

/// Clients of these protocols take 409 for "another payload", and would pay anew under a new key.
#[tokio::test]
async fn a_client_that_pays_is_never_answered_409_while_its_call_may_have_run() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "deadline = \"60s\"")).await;
    let payment = ("payment-signature", PAYMENT);
    let ask = async |key: &str, payment: Option<(&str, &str)>| {
        let headers: Vec<_> = payment
            .into_iter()
            .chain([("idempotency-key", key)])
            .collect();
        send(&gateway, Method::POST, "/v1/buy", &headers).await
    };
    tool.then(Act::ExecuteThenDrop);
    for _ in 0..3 {
        let unknown = ask("k1", Some(payment)).await;
        assert_eq!(unknown.status, 503, "{}", unknown.text);
        let unknown = unknown.expect_problem("outcome-unknown");
        assert_eq!(unknown.at("/status"), 503);
        assert_eq!(unknown.at("/key_action"), "wait");
        assert_eq!(
            unknown.header("retry-after"),
            "300",
            "an operator has to look"
        );
        assert_eq!(unknown.header("www-authenticate"), "", "no challenge");
    }
    assert_eq!(tool.effects(), 1);
    // A demand that was cut off cannot be replayed either, and leads to no new key.
    tool.then(Act::HalfBody(402));
    let cut = ask("k2", Some(payment)).await;
    assert!(
        cut.status == 402 || cut.at("/key_action") != "rotate",
        "{}",
        cut.text
    );
    // Without a payment it stays as it was, and says as well when to come again.
    let plain = ask("k1", None).await.expect_problem("outcome-unknown");
    assert_eq!((plain.status, plain.header("retry-after")), (409, "300"));
    assert_eq!(
        plain.at("/retry_after_ms"),
        json!(null),
        "no check is planned"
    );
    gateway.stop().await;
}

/// A payment is in no file and on no page. A receipt is in the answer alone, and is not shown.
#[tokio::test]
async fn payments_are_stored_nowhere_and_receipts_are_not_shown() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    for (n, (_, payment)) in PROTOCOLS.into_iter().enumerate() {
        tool.then(Act::Answer(200, RECEIPTS, b"{}"));
        let key = format!("k{n}");
        let headers = [payment, ("idempotency-key", &*key)];
        let sent = send(&gateway, Method::POST, "/v1/buy", &headers).await;
        assert_eq!(sent.status, 200, "{}", sent.text);
        let id = sent.header("x-call-id");
        for page in ["", "/answer"] {
            let shown = gateway.get(&format!("/v1/calls/{id}{page}")).await.text;
            assert!(!shown.contains(PAYMENT), "{shown}");
        }
        let shown = gateway.get(&format!("/v1/calls/{id}")).await.text;
        assert!(!shown.contains("cmVjZWlwdA"), "{shown}");
    }
    let folder = gateway.stop().await;
    assert!(!holds(&all_bytes(folder.path()), PAYMENT));
}

/// The API knows a call by the gateway's key, and its caller by the caller's own.
#[tokio::test]
async fn an_api_that_repeats_the_key_in_its_answer_repeats_the_callers_own() {
    let tool = Tool::start().await;
    tool.always(Act::Answer(200, "idempotency-key: the-gateways\r\n", b"{}"));
    let gateway = Gateway::start(&api(&tool, "unkeyed = \"derive\"")).await;
    for _ in 0..2 {
        let headers = [("idempotency-key", "mine")];
        let keyed = send(&gateway, Method::POST, "/v1/buy", &headers).await;
        assert_eq!(keyed.header("idempotency-key"), "mine");
        let derived = send(&gateway, Method::POST, "/v1/other", &[]).await;
        assert_eq!(derived.header("idempotency-key"), "");
    }
    assert_eq!(tool.requests(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_payment_that_would_not_reach_the_api_is_refused() {
    let tool = Tool::start().await;
    let own = "headers = { Authorization = \"Bearer own\" }";
    let gateway = Gateway::start(&api(&tool, own)).await;
    let paid = [("authorization", "Payment abc"), ("idempotency-key", "k1")];
    let refused = send(&gateway, Method::POST, "/v1/buy", &paid).await;
    let refused = refused.expect_problem("invalid-request");
    let mixed = [
        ("authorization", "Bearer a, Payment abc"),
        ("idempotency-key", "k1"),
    ];
    let of_two = send(&gateway, Method::POST, "/v1/buy", &mixed).await;
    of_two.expect_problem("invalid-request");
    assert!(
        refused.text.contains("would not reach the API"),
        "{}",
        refused.text
    );
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}
