//! Callers that bring the API's own credential, and no token of the gateway, on every store.

use oncegate::config::{Config, Environment};

use crate::proxies::commerce::{is_replay, with_headers};
use crate::proxies::requests::api;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    a_caller_is_known_by_its_credential_and_another_one_gets_nothing_of_its_calls,
    nothing_is_claimed_or_shown_before_the_api_has_let_the_caller_in,
    a_caller_with_a_new_credential_is_the_same_caller_if_the_api_says_so,
}

/// A proxy without tokens for its callers, and a token for each of two tenants.
fn tokenless(tool: &Tool, more: &str) -> String {
    let token = |name: &str, tenant: &str| {
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name));
        format!(
            "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [\"call\", \"read\"]\n"
        )
    };
    let proxy = api(
        tool,
        &format!(
            "caller = \"passed\"\ntenant = \"shop\"\nrate = {{ per_second = 1000, burst = 1000 }}\n{more}"
        ),
    );
    format!("{}{}{proxy}", token("desk", "shop"), token("other", "bank"))
}

/// The line that lets a system say who is let in.
fn authorized_by(door: &Tool, more: &str) -> String {
    let port = door.port;
    format!("authorize = {{ url = \"http://127.0.0.1:{port}/door?x=1\"{more} }}\n")
}

async fn order(gateway: &Gateway, key: &str, headers: &[(&str, &str)]) -> Answer {
    let headers = [&[("idempotency-key", key)], headers].concat();
    with_headers(gateway, "/orders", &headers, "{\"amount\":1}").await
}

const ALICE: (&str, &str) = ("authorization", "Bearer alice-1");
const BOB: (&str, &str) = ("authorization", "Bearer bob-1");

async fn a_caller_is_known_by_its_credential_and_another_one_gets_nothing_of_its_calls(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.always(Act::Ok("{\"secret\":\"of alice\"}"));
    let gateway = stores.gateway(&tokenless(&tool, "")).await;
    let first = order(&gateway, "k", &[ALICE]).await;
    assert_eq!((first.status, is_replay(&first)), (200, false));
    assert_eq!(tool.seen()[0].header("authorization"), ALICE.1);
    assert!(is_replay(&order(&gateway, "k", &[ALICE]).await));
    // A token of the gateway is not read, so it makes no other caller of this one.
    let own = ("oncegate-token", "Bearer other");
    assert!(is_replay(&order(&gateway, "k", &[ALICE, own]).await));
    for other in [&[BOB][..], &[BOB, ("cookie", "alice")]] {
        let refused = order(&gateway, "k", other).await;
        assert_eq!(refused.status, 422, "{}", refused.text);
        assert!(!refused.text.contains("of alice"), "{}", refused.text);
        assert!(refused.at("/call_id").is_null(), "{}", refused.text);
        assert_eq!(refused.header("x-call-id"), "");
    }
    for unknown in [
        &[][..],
        &[own],
        &[("payment-signature", "e30=")],
        &[("cookie", "language=en")],
        &[("x-api-key", "alice")],
        &[("authorization", "")],
        &[("authorization", "Bearer ")],
        &[("authorization", "Payment e30=")],
    ] {
        let refused = order(&gateway, "k", unknown).await;
        refused.expect_problem("unauthenticated");
    }
    assert_eq!(tool.requests(), 1);
    // Another body is surely another request, whoever sends it.
    for caller in [ALICE, BOB] {
        let headers = [("idempotency-key", "k"), caller];
        let other = with_headers(&gateway, "/orders", &headers, "{\"amount\":2}").await;
        let other = other.expect_problem("key-reused");
        assert_eq!(other.at("/key_action"), "rotate", "{}", other.text);
        assert!(other.at("/call_id").is_null() && !other.text.contains("of alice"));
    }
    // While it runs, and while it is unknown, another caller is not told of it either.
    tool.then(Act::ExecuteThenDrop);
    order(&gateway, "k2", &[ALICE])
        .await
        .expect_problem("outcome-unknown");
    order(&gateway, "k2", &[BOB])
        .await
        .expect_problem("key-reused");
    assert_eq!(tool.requests(), 2);
    let with_key = [ALICE, ("x-api-key", "alice")];
    assert_eq!(order(&gateway, "k3", &with_key).await.status, 200);
    assert!(is_replay(&order(&gateway, "k3", &with_key).await));
    let ledger = async |token: &str| {
        let listed = gateway.client.get(gateway.url("/v1/calls"));
        let listed = Answer::to(listed.bearer_auth(token)).await.expect_ok();
        listed.at("/calls").as_array().map(Vec::len)
    };
    assert_eq!(ledger("desk").await, Some(3));
    assert_eq!(ledger("other").await, Some(0));
    // A read needs nothing of the gateway: the API judges it.
    let read = gateway.client.get(gateway.url("/proxy/api/orders"));
    assert_eq!(Answer::to(read).await.status, 200);
}

async fn nothing_is_claimed_or_shown_before_the_api_has_let_the_caller_in(stores: &Stores) {
    let (tool, door) = (Tool::start().await, Tool::start().await);
    tool.always(Act::Ok("{\"secret\":\"of alice\"}"));
    door.always(Act::Tell(204, "", b""));
    let config = tokenless(&tool, &authorized_by(&door, ""));
    let gateway = stores.gateway(&config).await;
    let signed = [
        ("signature", "sig=:YQ==:"),
        ("payment-signature", "e30="),
        ("if-none-match", "*"),
        ("x-original_method", "GET"),
        ("x-real-ip", "10.0.0.1"),
        ("x-http-method-override", "PUT"),
        ("x-pay", "Payment eyJhIjoxODQ0Njc0NDA3MzcwOTU1MTYxNX0"),
    ];
    let first = order(&gateway, "k", &signed).await;
    assert_eq!(first.status, 200, "{}", first.text);
    let asked = door.seen().remove(0);
    assert!(asked.line.starts_with("GET /door?x=1 "), "{}", asked.line);
    assert_eq!(asked.header("signature"), signed[0].1);
    assert_eq!(asked.header("x-original-method"), "POST");
    assert_eq!(asked.header("x-original-uri"), "/orders");
    assert_eq!(asked.header("idempotency-key"), "k");
    for absent in [
        "payment-signature", // it could be taken
        "content-type",
        "if-none-match",
        "x-original_method",
        "x-real-ip",
        "x-http-method-override",
        "x-pay",
    ] {
        assert_eq!(asked.header(absent), "", "{absent}");
    }
    assert_eq!(asked.body, "");
    assert!(is_replay(&order(&gateway, "k", &signed).await));
    for (status, problem) in [
        (401, "unauthenticated"),
        (403, "unauthenticated"),
        (302, "caller-not-checked"),
        (404, "caller-not-checked"),
        (500, "caller-not-checked"),
    ] {
        door.always(Act::Tell(status, "location: /\r\n", b"{}"));
        for key in ["k", "new"] {
            let refused = order(&gateway, key, &signed).await;
            let refused = refused.expect_problem(problem);
            assert!(!refused.text.contains("of alice"), "{}", refused.text);
        }
    }
    door.always(Act::Drop);
    let refused = order(&gateway, "new", &signed).await;
    let refused = refused.expect_problem("caller-not-checked");
    assert_eq!(refused.at("/key_action"), "reuse");
    assert_eq!(
        refused.at("/effect"),
        "unknown",
        "an earlier one may have run"
    );
    assert_eq!(refused.header("retry-after"), "5");
    assert_eq!(tool.requests(), 1);
    door.always(Act::Tell(200, "", b"{\"more\":true}"));
    assert_eq!(order(&gateway, "new", &signed).await.status, 200);
    assert_eq!(tool.effects(), 2);
}

async fn a_caller_with_a_new_credential_is_the_same_caller_if_the_api_says_so(stores: &Stores) {
    let (tool, door) = (Tool::start().await, Tool::start().await);
    let more = authorized_by(&door, ", caller = \"X-Customer\", timeout = \"20s\"");
    let gateways = stores.gateways(&tokenless(&tool, &more)).await;
    let (gateway, last) = (&gateways[0], gateways.last().expect("one"));
    door.always(Act::Tell(204, "x-customer: alice\r\n", b""));
    assert_eq!(order(gateway, "k", &[ALICE]).await.status, 200);
    let refreshed = ("authorization", "Bearer alice-2");
    assert!(is_replay(&order(last, "k", &[refreshed]).await));
    // The same credential, and the API takes it for another's now.
    door.always(Act::Tell(204, "x-customer: bob\r\n", b""));
    order(gateway, "k", &[ALICE])
        .await
        .expect_problem("key-reused");
    for nameless in ["", "x-customer:\r\n", "x-customer: a\r\nx-customer: b\r\n"] {
        door.always(Act::Tell(204, nameless, b""));
        order(gateway, "k", &[ALICE])
            .await
            .expect_problem("caller-not-checked");
    }
    assert_eq!(tool.effects(), 1);
}

/// A request whose body comes after the reload was let in by other rules.
#[tokio::test]
async fn a_request_that_a_reload_overtakes_is_let_in_by_neither_rule() {
    let (tool, door) = (Tool::start().await, Tool::start().await);
    let (release, held) = Act::held(Act::Tell(204, "", b""));
    door.then(held);
    let open = tokenless(&tool, &authorized_by(&door, ", timeout = \"20s\""));
    let gateway = Gateway::start(&open).await;
    let closed = open
        .split("[proxies.api]")
        .next()
        .expect("tokens")
        .to_owned();
    let own = "headers = { Authorization = \"Bearer gateway\" }";
    let closed = closed + &api(&tool, own);
    let overtaken = order(&gateway, "k", &[ALICE]);
    let reload = async {
        until("it was asked", async || door.requests() == 1).await;
        assert!(gateway.reload(&closed).await);
        drop(release);
    };
    let (overtaken, ()) = tokio::join!(overtaken, reload);
    overtaken.expect_problem("caller-not-checked");
    order(&gateway, "k", &[ALICE])
        .await
        .expect_problem("unauthenticated");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn callers_without_tokens_share_a_rate_and_a_name_in_the_ledger() {
    let tool = Tool::start().await;
    let more = "new_keys = { per_second = 1, burst = 2 }\n";
    let gateway = Gateway::start(&tokenless(&tool, more)).await;
    for key in ["a", "b"] {
        assert_eq!(order(&gateway, key, &[ALICE]).await.status, 200);
    }
    let refused = order(&gateway, "c", &[BOB]).await;
    refused.expect_problem("rate-limited");
    assert!(is_replay(&order(&gateway, "a", &[ALICE]).await));
    let listed = gateway.client.get(gateway.url("/v1/calls"));
    let listed = Answer::to(listed.bearer_auth("desk")).await.expect_ok();
    assert_eq!(listed.at("/calls/0/made_by"), "proxy:api");
    assert_eq!(listed.at("/calls/0/tenant"), "shop");
    // A token has this tenant's calls, and cannot be one of these callers.
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}

#[test]
fn mistakes_about_callers_without_tokens_are_said_with_their_place() {
    let token = "[[auth.tokens]]\nname = \"a\"\ntenant = \"t\"\nsha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"\nscopes = [\"call\"]\n";
    let said = |more: &str, tokens: &str| {
        let text = format!(
            "[store]\nurl = \"sqlite:a.db\"\n{tokens}[proxies.p]\nupstream = \"http://h\"\n{more}\n"
        );
        let read = Config::read(&text, &Environment::new());
        read.map(|_| ()).map_err(|mistakes| {
            let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            mistakes.join("\n")
        })
    };
    let tokenless = "caller = \"passed\"\ntenant = \"t\"\nrate = { per_second = 9, burst = 9 }\n";
    assert_eq!(said(tokenless, token), Ok(()));
    for (more, part) in [
        ("caller = \"cookie\"".to_owned(), "token, passed"),
        (
            "caller = \"passed\"".to_owned(),
            "tenant: this key is missing",
        ),
        (
            "caller = \"passed\"\ntenant = \"t\"".to_owned(),
            "rate: this key is missing",
        ),
        (
            "tenant = \"t\"".to_owned(),
            "for a proxy with caller = \"passed\"",
        ),
        (
            format!("{tokenless}pass_authorization = false"),
            "has to get the caller's credential",
        ),
        (
            format!("{tokenless}headers = {{ Authorization = \"Bearer own\" }}"),
            "the gateway's own credential with requests of everyone",
        ),
        (
            format!("{tokenless}headers = {{ X-Api-Key = \"own\" }}"),
            "the gateway's own credential with requests of everyone",
        ),
        (
            format!("{tokenless}unknown = \"retry\"\ndedup = \"key\""),
            "credentials are not stored",
        ),
        (
            format!("{tokenless}authorize = {{ url = \"http://me:pw@h/\" }}"),
            "URL without user and fragment",
        ),
        (
            format!("{tokenless}authorize = {{ url = \"http://h/\", caller = \"a b\" }}"),
            "not the name of a header",
        ),
        (
            format!("{tokenless}authorize = {{ timeout = \"0s\" }}"),
            "must be above 0",
        ),
    ] {
        let said = said(&more, token).expect_err(&more);
        assert!(said.contains(part), "{more}: {said}");
    }
    let open = said(tokenless, "").expect_err("no tokens");
    assert!(open.contains("reads the calls of all callers"), "{open}");
}
