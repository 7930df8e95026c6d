//! Protocols of agents that buy: each row of settings answers as its protocol asks, on every store.

use reqwest::RequestBuilder;

use crate::proxies::requests::api;
use crate::support::redis::Redis;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    acp_refuses_a_request_without_a_key_and_sends_nothing,
    acp_compares_what_json_means_and_tells_null_from_absent,
    another_body_under_a_key_is_a_conflict_also_beside_a_credential,
    acp_has_keys_for_each_path,
    acp_knows_keys_from_before_they_counted_for_one_path,
    a_call_is_asked_about_by_the_key_with_which_it_was_sent,
    acp_replays_with_the_status_the_mark_and_the_callers_key,
    acp_answers_an_unknown_outcome_as_in_flight_until_a_probe_has_the_answer,
    acp_replays_a_refusal_but_none_that_a_credential_may_change,
    acp_takes_an_old_key_for_a_new_request_and_never_one_that_is_unknown,
    ucp_compares_bytes,
    ucp_is_never_answered_409_for_what_is_not_over,
}

const ACP: &str = "profile = \"acp@2026-04-17\"";

/// A proxy for UCP. Signatures cover the name by which a caller calls it.
fn ucp(tool: &Tool) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest("agent"));
    let token = format!(
        "[[auth.tokens]]\nname = \"agent\"\ntenant = \"shop\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n"
    );
    let proxy = api(tool, "host = \"shop.example\"\nprofile = \"ucp\"");
    format!("{token}{proxy}")
}

async fn send(gateway: &Gateway, path: &str, key: &str, body: &str) -> Answer {
    with_headers(gateway, path, &[("idempotency-key", key)], body).await
}

pub(super) async fn with_headers(
    gateway: &Gateway,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let url = gateway.url(&format!("/proxy/api{path}"));
    with(gateway.client.post(url), headers, body).await
}

async fn with(request: RequestBuilder, headers: &[(&str, &str)], body: &str) -> Answer {
    let request = request
        .header("content-type", "application/json")
        .body(body.to_owned());
    let headers = headers.iter();
    let request = headers.fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    Answer::to(request).await
}

/// An error as the specification of ACP closes it: these members and no other.
fn is_acp_error(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.text);
    assert_eq!(answer.header("content-type"), "application/json");
    let error = answer.json();
    let members: Vec<&String> = error.as_object().expect("an object").keys().collect();
    assert_eq!(members, ["code", "message", "type"]);
    assert_eq!(error["code"], code, "{}", answer.text);
    let kinds = ["invalid_request", "processing_error", "service_unavailable"];
    assert!(kinds.iter().any(|kind| error["type"] == *kind));
}

pub(super) fn is_replay(answer: &Answer) -> bool {
    answer.header("idempotent-replayed") == "true"
}

async fn acp_refuses_a_request_without_a_key_and_sends_nothing(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&api(&tool, ACP)).await;
    let refused = with_headers(&gateway, "/checkout_sessions", &[], "{}").await;
    is_acp_error(&refused, 400, "idempotency_key_required");
    assert_eq!(refused.at("/type"), "invalid_request");
    let invalid = send(&gateway, "/checkout_sessions", "a b", "{}").await;
    is_acp_error(&invalid, 400, "key_invalid");
    assert_eq!(tool.requests(), 0);
}

async fn acp_compares_what_json_means_and_tells_null_from_absent(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&api(&tool, ACP)).await;
    let first = send(&gateway, "/checkout_sessions", "k", r#"{"a":1,"b":[1,2]}"#).await;
    assert_eq!(first.status, 200, "{}", first.text);
    for same in [r#"{ "b": [1, 2], "a": 1.0 }"#, r#"{"a":1e0,"b":[1,2]}"#] {
        let again = send(&gateway, "/checkout_sessions", "k", same).await;
        assert!(again.status == 200 && is_replay(&again), "{}", again.text);
    }
    let headers = [("idempotency-key", "k"), ("signature", "bmV3")];
    let body = r#"{"a":1,"b":[1,2]}"#;
    let anew = with_headers(&gateway, "/checkout_sessions", &headers, body).await;
    assert!(
        anew.status == 200 && is_replay(&anew),
        "signed anew: {}",
        anew.text
    );
    for other in [
        r#"{"a":1,"b":[1,2],"c":null}"#,
        r#"{"a":1,"b":[2,1]}"#,
        r#"{"a":"1","b":[1,2]}"#,
    ] {
        let refused = send(&gateway, "/checkout_sessions", "k", other).await;
        is_acp_error(&refused, 422, "idempotency_conflict");
    }
    assert_eq!(tool.effects(), 1);
}

/// A client that is told "in flight" would ask for ever.
async fn another_body_under_a_key_is_a_conflict_also_beside_a_credential(stores: &Stores) {
    let tool = Tool::start().await;
    let acp = format!("{ACP}\nredact = {{ request = [\"/card\"] }}");
    let gateway = stores.gateway(&api(&tool, &acp)).await;
    let ask = async |key: &str, credential: &str, body: &str| {
        let headers = [("idempotency-key", key), ("x-api-key", credential)];
        with_headers(&gateway, "/checkout_sessions?a=1", &headers, body).await
    };
    assert_eq!(ask("k", "one", "{\"a\":1}").await.status, 200);
    for (credential, body, status, code) in [
        ("one", "{\"a\":2}", 422, "idempotency_conflict"),
        ("two", "{\"a\":2}", 422, "idempotency_conflict"),
        // It may be the same request, with a new credential.
        ("two", "{\"a\":1}", 409, "idempotency_in_flight"),
        ("two", "{ \"a\": 1.0 }", 409, "idempotency_in_flight"),
    ] {
        is_acp_error(&ask("k", credential, body).await, status, code);
    }
    // What is not stored cannot be compared.
    assert_eq!(ask("k2", "one", "{\"card\":1}").await.status, 200);
    let hidden = ask("k2", "one", "{\"card\":2}").await;
    is_acp_error(&hidden, 409, "idempotency_in_flight");
    assert_eq!(tool.effects(), 2);
}

async fn acp_has_keys_for_each_path(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateways = stores.gateways(&api(&tool, ACP)).await;
    let (gateway, last) = (&gateways[0], gateways.last().expect("one"));
    let one = send(gateway, "/checkout_sessions/1", "k", "{}").await;
    let two = send(last, "/checkout_sessions/2", "k", "{}").await;
    assert_ne!(one.text, two.text, "each has run");
    let again = send(last, "/checkout_sessions/1", "k", "{}").await;
    assert_eq!((&again.text, is_replay(&again)), (&one.text, true));
    assert_eq!(tool.effects(), 2);
    // Two spellings that some server takes for one path are one.
    let spelt = send(last, "/checkout_sessions//%32", "k", "{}").await;
    is_acp_error(&spelt, 422, "idempotency_conflict");
    // The ledger finds both by the key that their caller knows.
    let listed = gateway.get("/v1/calls?key=k").await.expect_ok();
    assert_eq!(listed.at("/calls").as_array().map(Vec::len), Some(2));
}

/// A reload does not free a key that was used before it.
async fn acp_knows_keys_from_before_they_counted_for_one_path(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&api(&tool, "")).await;
    tool.then(Act::ExecuteThenDrop);
    let unknown = send(&gateway, "/checkout_sessions/1", "k", "{}").await;
    unknown.expect_problem("outcome-unknown");
    assert!(gateway.reload(&api(&tool, ACP)).await);
    for path in ["/checkout_sessions/1", "/checkout_sessions/2"] {
        let other = send(&gateway, path, "k", "{\"a\":1}").await;
        is_acp_error(&other, 422, "idempotency_conflict");
    }
    let same = send(&gateway, "/checkout_sessions/1", "k", "{}").await;
    is_acp_error(&same, 409, "idempotency_in_flight");
    assert_eq!(tool.requests(), 1);
    // A key that was not used before counts for each path.
    for path in ["/checkout_sessions/1", "/checkout_sessions/2"] {
        // Once every gateway of the store knows so.
        until("it has run", async || {
            let new = send(&gateway, path, "new", "{}").await;
            assert!([200, 503].contains(&new.status), "{}", new.text);
            new.status == 200
        })
        .await;
    }
    assert_eq!(tool.requests(), 3);
}

async fn acp_replays_with_the_status_the_mark_and_the_callers_key(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Answer(201, "", b"{\"id\":\"cs_1\"}"));
    let gateway = stores.gateway(&api(&tool, ACP)).await;
    for is_again in [false, true] {
        let answer = send(&gateway, "/checkout_sessions", "mine", "{}").await;
        assert_eq!((answer.status, is_replay(&answer)), (201, is_again));
        assert_eq!(answer.header("idempotency-key"), "mine");
    }
    let refused = send(&gateway, "/checkout_sessions", "mine", "{\"a\":1}").await;
    is_acp_error(&refused, 422, "idempotency_conflict");
    assert_eq!(refused.header("idempotency-key"), "mine");
    let sent = &tool.seen()[0];
    assert_ne!(sent.header("idempotency-key"), "mine", "the gateway's own");
}

async fn acp_answers_an_unknown_outcome_as_in_flight_until_a_probe_has_the_answer(stores: &Stores) {
    let tool = Tool::start().await;
    let books = Tool::start().await;
    books.always(Act::Tell(404, "", b"{}"));
    let rule = format!(
        "{ACP}\nrecheck = {{ base = \"100ms\", max = \"100ms\" }}\n\
         [[proxies.api.rules]]\nmethods = [\"POST\"]\npath = \"/checkout_sessions/{{id}}/complete\"\nas = \"write\"\n\
         probe = {{ url = \"http://127.0.0.1:{}/sessions/{{id}}\", found = \"/order/id\", answers = true }}\n",
        books.port
    );
    let gateway = stores.gateway(&api(&tool, &rule)).await;
    let path = "/checkout_sessions/cs%20_1/complete";
    tool.then(Act::ExecuteThenAnswer(500));
    for _ in 0..5 {
        let held = send(&gateway, path, "k", "{}").await;
        is_acp_error(&held, 409, "idempotency_in_flight");
        let wait: u64 = held.header("retry-after").parse().expect("seconds");
        assert!((1..=300).contains(&wait), "{wait}");
    }
    assert_eq!((tool.requests(), tool.effects()), (1, 1));
    // A session that was not completed has no order, so it proves nothing.
    books.always(Act::Tell(200, "", b"{\"id\":\"cs _1\"}"));
    let probes = books.requests();
    until("it is asked again", async || books.requests() > probes + 1).await;
    is_acp_error(
        &send(&gateway, path, "k", "{}").await,
        409,
        "idempotency_in_flight",
    );
    let order = br#"{"id":"cs _1","order":{"id":"o_1"}}"#;
    books.always(Act::Tell(200, "", order));
    until("the probe has found the order", async || {
        send(&gateway, path, "k", "{}").await.status == 200
    })
    .await;
    let found = send(&gateway, path, "k", "{}").await;
    assert_eq!(found.text.as_bytes(), order);
    assert_eq!(found.header("content-type"), "application/json");
    assert!(is_replay(&found));
    assert!(
        books.seen()[0].line.contains("/sessions/cs%20_1 "),
        "{}",
        books.seen()[0].line
    );
    assert_eq!(tool.requests(), 1);
}

async fn acp_replays_a_refusal_but_none_that_a_credential_may_change(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&api(&tool, ACP)).await;
    for (key, status, stays) in [("a", 404, true), ("b", 422, true), ("c", 401, false)] {
        tool.then(Act::Answer(status, "", b"{\"no\":1}"));
        let first = send(&gateway, "/checkout_sessions", key, "{}").await;
        assert_eq!((first.status, &*first.text), (status, "{\"no\":1}"));
        let again = send(&gateway, "/checkout_sessions", key, "{}").await;
        let expected = if stays { status } else { 200 };
        assert_eq!(
            (again.status, is_replay(&again)),
            (expected, stays),
            "{key}"
        );
    }
}

async fn acp_takes_an_old_key_for_a_new_request_and_never_one_that_is_unknown(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let short = format!(
        "{ACP}\ntimeout = \"1s\"\ndeadline = \"1s\"\ndedup_window = \"2s\"\nderived_window = \"2s\""
    );
    let gateway = stores.gateway(&api(&tool, &short)).await;
    tool.then(Act::ExecuteThenDrop);
    let unknown = send(&gateway, "/checkout_sessions", "unknown", "{}").await;
    is_acp_error(&unknown, 409, "idempotency_in_flight");
    let first = send(&gateway, "/checkout_sessions", "k", "{}").await;
    until("its window is over", async || {
        let again = send(&gateway, "/checkout_sessions", "k", "{}").await;
        assert_eq!(again.status, 200, "{}", again.text);
        again.text != first.text
    })
    .await;
    let unknown = send(&gateway, "/checkout_sessions", "unknown", "{}").await;
    is_acp_error(&unknown, 409, "idempotency_in_flight");
    assert_eq!(tool.effects(), 3);
}

/// Otherwise the API would not know the key, and the call would count as never executed.
async fn a_call_is_asked_about_by_the_key_with_which_it_was_sent(stores: &Stores) {
    let tool = Tool::start().await;
    let books = Tool::start().await;
    books.always(Act::Tell(202, "", b""));
    let config = |more: &str| {
        let probe = format!(
            "{more}\nunknown = \"probe\"\nrecheck = {{ base = \"100ms\", max = \"100ms\" }}\nprobe = {{ url = \"http://127.0.0.1:{}/{{key}}\" }}",
            books.port
        );
        api(&tool, &probe)
    };
    let mut gateway = stores.gateway(&config("")).await;
    for (key, more) in [("k1", "send_key = \"as_is\""), ("k2", "")] {
        tool.then(Act::ExecuteThenDrop);
        let unknown = send(&gateway, "/orders", key, "{}").await;
        unknown.expect_problem("outcome-unknown");
        let sent = tool.seen().last().expect("a request").clone();
        let sent = sent.header("idempotency-key");
        assert_eq!(sent == "k2", key == "k2", "{sent}");
        // Started anew, it knows the configuration of before from the store alone.
        gateway = gateway.restart_with(&config(more)).await;
        let before = books.requests();
        until("it is asked about", async || {
            let seen = books.seen();
            let after = seen.get(before..).unwrap_or_default();
            after.iter().filter(|seen| seen.line.contains(sent)).count() > 1
        })
        .await;
    }
}

async fn ucp_compares_bytes(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&ucp(&tool)).await;
    let ask = async |body: &str, signature: &str| {
        let headers = [
            ("idempotency-key", "platforms-own"),
            ("oncegate-token", "Bearer agent"),
            ("host", "shop.example"),
            ("signature", signature),
        ];
        let request = gateway.client.post(gateway.url("/checkout-sessions"));
        with(request, &headers, body).await
    };
    let first = ask(r#"{"a":1}"#, "sig1=:YQ==:").await;
    assert_eq!(first.status, 200, "{}", first.text);
    // Signed anew, the bytes are the same.
    let again = ask(r#"{"a":1}"#, "sig1=:Yg==:").await;
    assert!(again.status == 200 && is_replay(&again), "{}", again.text);
    let other = ask(r#"{"a": 1}"#, "sig1=:YQ==:").await;
    assert_eq!(other.status, 409, "{}", other.text);
    let error = other.json();
    let members: Vec<&String> = error.as_object().expect("an object").keys().collect();
    assert_eq!(members, ["code", "content"]);
    // What a signature covers reaches the merchant as it came.
    let seen = &tool.seen()[0];
    assert_eq!(seen.header("idempotency-key"), "platforms-own");
    assert_eq!(seen.header("host"), "shop.example");
    assert_eq!(seen.header("signature"), "sig1=:YQ==:");
    assert_eq!((tool.requests(), &*seen.body), (1, r#"{"a":1}"#));
    // By another name a caller could get at another server behind the merchant's address.
    let headers = [
        ("idempotency-key", "k2"),
        ("oncegate-token", "Bearer agent"),
        ("host", "admin.internal"),
    ];
    let named = with_headers(&gateway, "/checkout-sessions", &headers, "{}").await;
    assert_eq!(named.status, 200, "{}", named.text);
    let host = format!("127.0.0.1:{}", tool.port);
    assert_eq!(tool.seen()[1].header("host"), host);
}

async fn as_platform(gateway: &Gateway, key: &str) -> Answer {
    let headers = [("oncegate-token", "Bearer agent"), ("idempotency-key", key)];
    with_headers(gateway, "/checkout-sessions", &headers, "{}").await
}

async fn ucp_is_never_answered_409_for_what_is_not_over(stores: &Stores) {
    let tool = Tool::start().await;
    let config = format!("[server]\njoin_wait = \"50ms\"\n{}", ucp(&tool));
    let gateway = stores.gateway(&config).await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let first = as_platform(&gateway, "k1");
    let while_it_runs = async {
        until("it has arrived", async || tool.requests() == 1).await;
        let in_flight = as_platform(&gateway, "k1").await;
        drop(hold);
        in_flight
    };
    let (first, in_flight) = tokio::join!(first, while_it_runs);
    assert_eq!(
        (first.status, in_flight.status),
        (200, 503),
        "{}",
        in_flight.text
    );
    assert!(!in_flight.header("retry-after").is_empty());
    tool.then(Act::ExecuteThenDrop);
    for _ in 0..3 {
        let unknown = as_platform(&gateway, "k2").await;
        assert_eq!(unknown.status, 503, "{}", unknown.text);
        assert_eq!(
            unknown.header("retry-after"),
            "300",
            "an operator has to look"
        );
        let content = unknown.at("/content");
        let content = content.as_str().expect("a sentence");
        assert!(content.contains("with the same key"), "{content}");
    }
    assert_eq!(tool.effects(), 2);
}

#[tokio::test]
async fn ucp_is_answered_503_while_redis_is_away() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = Gateway::sharing(&redis.url(), &ucp(&tool)).await;
    gateway.until_ready().await;
    redis.kill();
    let refused = as_platform(&gateway, "k").await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert_eq!(refused.at("/code"), "service_unavailable");
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(tool.requests(), 0);
}
