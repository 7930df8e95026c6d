//! Whose call it is: every header that sounds like a credential counts as one, and none is shown.

use serde_json::json;

use crate::proxies::requests::api;
#[cfg(feature = "postgres")]
use crate::support::postgres::place;
use crate::support::redis::Redis;
use crate::support::search::{all_bytes, holds};
use crate::support::stores::Stores;
use crate::support::{Act, Answer, Gateway, Tool};

/// Headers that name an account.
const KEYS: [&str; 10] = [
    "X-Api-Key",
    "api-key",
    "DD-APPLICATION-KEY",
    "x-functions-key",
    "X-Parse-Master-Key",
    "X_Access_Token",
    "X-Auth-Email-Password",
    "x-apikey",
    "X-Client-Secret",
    "X-Hidden-Pwd",
];
/// Headers that a client may make anew for each request.
const SIGNATURES: [&str; 5] = [
    "X-Sig",
    "X-Shopify-Hmac-Sha256",
    "X-Hub-Signature-256",
    "X-CSRF-Token",
    "X-Session",
];

async fn send(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = gateway
        .client
        .post(gateway.url(&format!("/proxy/api{path}")));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::to(request.body("{\"a\":1}")).await
}

fn is_replayed(answer: &Answer) -> bool {
    answer.status == 200 && answer.header("idempotent-replayed") == "true"
}

/// Another credential never gets the first one's answer, with any kind of key.
async fn of_one_account(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = stores.gateway(&api(&tool, "unkeyed = \"derive\"")).await;
    for (n, name) in KEYS.iter().chain(&SIGNATURES).enumerate() {
        let key = ("idempotency-key", format!("k{n}"));
        let with = async |value: Option<&str>| {
            let own = value.map(|value| (*name, value));
            let headers: Vec<_> = own.into_iter().chain([(key.0, &*key.1)]).collect();
            send(&gateway, &format!("/v1/keyed/{n}"), &headers).await
        };
        let before = tool.effects();
        assert_eq!(with(Some("account-a")).await.status, 200, "{name}");
        assert!(is_replayed(&with(Some("account-a")).await), "{name}");
        for other in [Some("account-b"), None] {
            let stopped = with(other).await.expect_problem("key-reused");
            assert_eq!(stopped.at("/key_action"), "stop", "{name}");
            assert!(!stopped.text.contains("account-"), "{}", stopped.text);
        }
        assert_eq!(tool.effects(), before + 1, "{name}");
    }
    for (n, name) in KEYS.iter().enumerate() {
        let with = async |value: &str| {
            send(&gateway, &format!("/v1/derived/{n}"), &[(*name, value)]).await
        };
        let before = tool.effects();
        let first = with("account-a").await;
        assert_eq!(first.status, 200, "{name}");
        let other = with("account-b").await;
        assert_eq!((other.status, is_replayed(&other)), (200, false), "{name}");
        assert_ne!(first.text, other.text, "{name}");
        for (value, answer) in [("account-a", &first), ("account-b", &other)] {
            let again = with(value).await;
            assert!(is_replayed(&again) && again.text == answer.text, "{name}");
        }
        assert_eq!(tool.effects(), before + 2, "{name}: two calls");
    }
    // A new signature may belong to the same request, so it is neither answered nor executed.
    for (n, name) in SIGNATURES.iter().enumerate() {
        let path = format!("/v1/signed/{n}");
        let with = async |value: &str| send(&gateway, &path, &[(*name, value)]).await;
        let before = tool.effects();
        assert_eq!(with("signed-1").await.status, 200, "{name}");
        assert!(is_replayed(&with("signed-1").await), "{name}");
        let stopped = with("signed-2").await.expect_problem("key-reused");
        assert_eq!(stopped.at("/key_action"), "stop", "{name}");
        assert_eq!(tool.effects(), before + 1, "{name}");
    }
    let listed = gateway.get("/v1/calls?limit=500").await.expect_ok();
    assert!(!listed.text.contains("account-"), "{}", listed.text);
    gateway.stop().await;
}

#[tokio::test]
async fn another_credential_never_gets_the_answer_of_the_first_one() {
    of_one_account(&Stores::Sqlite).await;
}

#[tokio::test]
async fn over_redis_another_credential_never_gets_the_answer_of_the_first_one() {
    let redis = Redis::strict().await;
    of_one_account(&Stores::Redis(redis.url())).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn over_postgres_another_credential_never_gets_the_answer_of_the_first_one() {
    let place = place().await;
    of_one_account(&Stores::Postgres(place)).await;
}

#[tokio::test]
async fn a_header_that_only_sounds_like_a_credential_can_be_left_out() {
    let tool = Tool::start().await;
    let config = "unkeyed = \"derive\"\nuncounted_headers = [\"X-Sig\", \"x-sort-key\"]";
    let gateway = Gateway::start(&api(&tool, config)).await;
    for key in [None, Some(("idempotency-key", "k"))] {
        for (n, value) in ["1", "2", "3"].into_iter().enumerate() {
            let mut headers = vec![("x-sig", value), ("x-sort-key", value)];
            headers.extend(key);
            let sent = send(&gateway, "/v1/x", &headers).await;
            assert_eq!((sent.status, is_replayed(&sent)), (200, n > 0), "{value}");
        }
    }
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}

/// Two callers whose SDK insists on some key are one account if the gateway replaces it.
#[tokio::test]
async fn a_credential_that_the_gateway_replaces_is_not_the_callers_and_a_change_repeats_nothing() {
    let tool = Tool::start().await;
    let of = |more: &str| api(&tool, &format!("unkeyed = \"derive\"\n{more}"));
    let own = of("headers = { X-Api-Key = \"configured\" }");
    let gateway = Gateway::start(&own).await;
    assert_eq!(
        send(&gateway, "/v1/x", &[("x-api-key", "dummy-1")])
            .await
            .status,
        200
    );
    assert!(is_replayed(
        &send(&gateway, "/v1/x", &[("x-api-key", "dummy-2")]).await
    ));
    // From now on the caller's own key goes through: it is not known whether the stored call was this account's.
    assert!(gateway.reload(&of("")).await);
    let stopped = send(&gateway, "/v1/x", &[("x-api-key", "dummy-1")]).await;
    let stopped = stopped.expect_problem("key-reused");
    assert_eq!(stopped.at("/key_action"), "stop", "{}", stopped.text);
    assert_eq!(
        send(&gateway, "/v1/y", &[("x-api-key", "a")]).await.status,
        200
    );
    assert!(gateway.reload(&own).await);
    let again = send(&gateway, "/v1/y", &[("x-api-key", "a")]).await;
    assert!(is_replayed(&again) || again.status == 422, "{}", again.text);
    assert_eq!(tool.effects(), 2, "nothing was executed again");
    gateway.stop().await;
}

#[tokio::test]
async fn secrets_are_masked_by_kind_in_queries_headers_and_addresses() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    let mut n = 0;
    let mut ledger = async |query: &str, headers: &[(&str, &str)]| {
        n += 1;
        let key = format!("m{n}");
        let headers: Vec<_> = headers
            .iter()
            .copied()
            .chain([("idempotency-key", &*key)])
            .collect();
        let sent = send(&gateway, &format!("/x?{query}"), &headers).await;
        assert!(matches!(sent.status, 200 | 201), "{}", sent.text);
        let call = gateway
            .get(&format!("/v1/calls/{}", sent.header("x-call-id")))
            .await;
        (sent, call.expect_ok().text)
    };
    for name in [
        "sig",
        "key",
        "code",
        "pwd",
        "pass",
        "hmac",
        "KEY",
        "x_sig",
        "userPass",
        "api.key",
        "masterKey",
        "a[pwd]",
        "X-Goog-Signature",
        "otp",
    ] {
        let (_, text) = ledger(&format!("a=1&{name}=masked-secret"), &[]).await;
        assert!(!text.contains("masked-secret"), "{name}: {text}");
    }
    for (name, value) in [
        ("referer", "https://h/x?code=masked-secret"),
        ("referer", "https://u:masked-secret@h/x"),
        ("referer", "/x#access_token=masked-secret"),
        ("x-callback", "https://h/x?a=1&sig=masked-secret"),
        ("x-own", "Bearer masked-secret"),
        ("x-own", "basic masked-secret"),
        ("x-sig", "masked-secret"),
        ("dd-application-key", "masked-secret"),
    ] {
        let (_, text) = ledger("a=1", &[(name, value)]).await;
        assert!(!text.contains("masked-secret"), "{name}: {text}");
    }
    for headers in [
        "location: https://h/cb?code=answered-secret\r\n",
        "link: </x?page=2&key=answered-secret>; rel=\"next\"\r\n",
        "x-shop-hmac: answered-secret\r\n",
    ] {
        tool.then(Act::Answer(201, headers, b"{}"));
        let (sent, text) = ledger("a=1", &[]).await;
        assert!(!text.contains("answered-secret"), "{text}");
        let told = format!("{:?}", sent.headers);
        assert!(
            told.contains("answered-secret"),
            "the caller gets it: {told}"
        );
    }
    let (_, text) = ledger(
        "country_code=DE&limit=3&passenger=2&author=x",
        &[("referer", "https://h/x?limit=3"), ("x-status-code", "7")],
    )
    .await;
    for shown in ["https://h/x?limit=3", "\"7\""] {
        assert!(text.contains(shown), "{text}");
    }
    let folder = gateway.stop().await;
    assert!(!holds(&all_bytes(folder.path()), "masked-secret"));
}

/// A cookie of the gateway's own session at the API would be everybody's.
#[tokio::test]
async fn a_cookie_for_the_gateways_own_credential_reaches_no_caller() {
    let tool = Tool::start().await;
    tool.always(Act::Answer(
        200,
        "set-cookie: s=1\r\nset-cookie2: t=1\r\nx-a: 1\r\n",
        b"{}",
    ));
    let read = async |config: &str| {
        let gateway = Gateway::start(config).await;
        let answer = gateway.get("/proxy/api/x").await.expect_ok();
        gateway.stop().await;
        assert_eq!(answer.header("x-a"), "1");
        answer.headers.contains_key("set-cookie") || answer.headers.contains_key("set-cookie2")
    };
    for own in [
        "headers = { Authorization = \"Bearer x\" }",
        "headers = { DD-APPLICATION-KEY = \"x\" }",
        "headers = { X-Own = \"Basic eDp5\" }",
        "headers = { Cookie = \"a=b\" }",
    ] {
        assert!(!read(&api(&tool, own)).await, "{own}");
    }
    let user = format!(
        "[proxies.api]\nupstream = \"http://user:word@127.0.0.1:{}\"\n",
        tool.port
    );
    assert!(!read(&user).await);
    assert!(
        read(&api(&tool, "headers = { X-Version = \"1\" }")).await,
        "the caller's own"
    );
    gateway_cookie(&tool).await;
}

/// No API sets the cookie of the console.
async fn gateway_cookie(tool: &Tool) {
    tool.always(Act::Answer(
        200,
        "set-cookie: oncegate_console=forged; Path=/\r\n",
        b"{}",
    ));
    let gateway = Gateway::start(&api(tool, "")).await;
    let answer = gateway.get("/proxy/api/x").await.expect_ok();
    assert!(!answer.headers.contains_key("set-cookie"));
    let shown = json!(answer.text);
    assert_eq!(shown, "{}");
    gateway.stop().await;
}
