//! Who may use a proxy, and whose credentials the API gets.

use serde_json::json;

use crate::proxies::requests::{api, post};
use crate::support::search::{all_bytes, holds};
use crate::support::{Answer, Gateway, Tool};

const TOKENS: [(&str, &str, &str); 3] = [
    ("agent", "a", "[\"call:api\", \"read\"]"),
    ("other", "b", "[\"call\"]"),
    ("reader", "a", "[\"read\"]"),
];

fn with_tokens(tool: &Tool, more: &str) -> String {
    let token = |(name, tenant, scopes): (&str, &str, &str)| {
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name));
        format!(
            "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = {scopes}\n"
        )
    };
    format!("{}{}", TOKENS.map(token).concat(), api(tool, more))
}

async fn send(gateway: &Gateway, headers: &[(&str, &str)]) -> Answer {
    let mut request = gateway.client.post(gateway.url("/proxy/api/v1/charges"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::to(request.header("idempotency-key", "k1").body("{}")).await
}

#[tokio::test]
async fn a_proxy_takes_the_gateways_token_and_sends_the_configured_credentials() {
    let tool = Tool::start().await;
    let own = "headers = { Authorization = \"Bearer sk_configured\" }";
    let gateway = Gateway::start(&with_tokens(&tool, own)).await;
    send(&gateway, &[]).await.expect_problem("unauthenticated");
    send(&gateway, &[("authorization", "Bearer nobody")])
        .await
        .expect_problem("unauthenticated");
    send(&gateway, &[("authorization", "Bearer reader")])
        .await
        .expect_problem("forbidden");
    assert_eq!(tool.requests(), 0);
    let cookie = ("cookie", "session=1");
    assert_eq!(
        send(&gateway, &[("authorization", "Bearer agent"), cookie])
            .await
            .status,
        200
    );
    let seen = tool.seen().remove(0);
    assert_eq!(
        (seen.header("authorization"), seen.header("cookie")),
        ("Bearer sk_configured", "")
    );
    let again = send(&gateway, &[("oncegate-token", "Bearer agent")]).await;
    assert_eq!(
        (again.status, again.header("idempotent-replayed")),
        (200, "true")
    );
    let other = send(&gateway, &[("authorization", "Bearer other")]).await;
    assert_eq!(
        (other.status, other.header("idempotent-replayed")),
        (200, ""),
        "another tenant's call"
    );
    assert_ne!(
        tool.seen()[0].header("idempotency-key"),
        tool.seen()[1].header("idempotency-key")
    );
    assert_eq!(tool.seen()[1].header("oncegate-token"), "");
    gateway.stop().await;
}

#[tokio::test]
async fn a_passed_credential_is_stored_nowhere_and_a_repetition_with_another_one_is_refused() {
    let tool = Tool::start().await;
    let more = "pass_authorization = true\nunkeyed = \"derive\"\nheaders = { X-Version = \"1\" }";
    let gateway = Gateway::start(&with_tokens(&tool, more)).await;
    let own = ("oncegate-token", "Bearer agent");
    let first = ("authorization", "Bearer upstream-secret-1");
    send(&gateway, &[("authorization", "Bearer agent")])
        .await
        .expect_problem("unauthenticated");
    assert_eq!(send(&gateway, &[own, first]).await.status, 200);
    assert_eq!(
        tool.seen()[0].header("authorization"),
        "Bearer upstream-secret-1"
    );
    assert_eq!(
        send(&gateway, &[own, first])
            .await
            .header("idempotent-replayed"),
        "true"
    );
    for headers in [
        vec![own, ("authorization", "Bearer upstream-secret-2")],
        vec![own],
        vec![own, first, ("cookie", "a=b")],
    ] {
        let stopped = send(&gateway, &headers).await.expect_problem("key-reused");
        assert_eq!(stopped.at("/key_action"), "stop", "{}", stopped.text);
        assert!(!stopped.text.contains("secret"), "{}", stopped.text);
    }
    // The same holds for a derived key.
    for (secret, status) in [
        ("upstream-secret-1", 200),
        ("upstream-secret-1", 200),
        ("upstream-secret-2", 422),
    ] {
        let request = gateway.client.post(gateway.url("/proxy/api/other"));
        let request = request
            .header("oncegate-token", "Bearer agent")
            .bearer_auth(secret);
        assert_eq!(Answer::to(request.body("{}")).await.status, status);
    }
    assert_eq!(tool.effects(), 2);
    let folder = gateway.stop().await;
    assert!(!holds(&all_bytes(folder.path()), "upstream-secret"));
}

/// The stored call was made with a credential that is no longer forwarded. A new key would execute the call twice.
#[tokio::test]
async fn a_repetition_is_refused_for_good_once_credentials_are_no_longer_passed_on() {
    let tool = Tool::start().await;
    let passing = with_tokens(&tool, "pass_authorization = true");
    let gateway = Gateway::start(&passing).await;
    let own = ("oncegate-token", "Bearer agent");
    let secret = ("authorization", "Bearer upstream-secret-1");
    assert_eq!(send(&gateway, &[own, secret]).await.status, 200);
    assert!(gateway.reload(&with_tokens(&tool, "")).await);
    for headers in [vec![own], vec![own, secret]] {
        let stopped = send(&gateway, &headers).await.expect_problem("key-reused");
        assert_eq!(stopped.at("/key_action"), "stop", "{}", stopped.text);
    }
    assert!(gateway.reload(&passing).await);
    let again = send(&gateway, &[own, secret]).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

/// On a shared connection, a surplus answer to a read could be taken for the answer to a call.
#[tokio::test]
async fn reads_share_no_connection_with_calls() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "connection_reuse = \"1m\"")).await;
    for (number, connections) in [(1, 2), (2, 2)] {
        assert_eq!(gateway.get("/proxy/api/v1/x").await.status, 200);
        let key = format!("k{number}");
        assert_eq!(post(&gateway, &key, "{}").await.status, 200);
        assert_eq!(tool.connections(), connections);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_proxys_own_host_name_leads_to_it_whatever_the_path() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&with_tokens(&tool, "host = \"Api.Internal\"")).await;
    let send = async |host: &str, path: &str| {
        let request = gateway.client.post(gateway.url(path)).header("host", host);
        let request = request
            .header("idempotency-key", path.replace('/', "-"))
            .bearer_auth("agent");
        Answer::to(request.body("{}")).await
    };
    assert_eq!(send("api.internal:8080", "/v1/calls").await.status, 200);
    assert_eq!(tool.seen()[0].line, "POST /base/v1/calls HTTP/1.1");
    send("elsewhere", "/v1/unknown")
        .await
        .expect_problem("unknown-path");
    let without = gateway
        .client
        .post(gateway.url("/x"))
        .header("host", "api.internal");
    Answer::to(without.body("{}"))
        .await
        .expect_problem("unauthenticated");
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn without_tokens_a_web_page_is_not_passed_on() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    send(&gateway, &[("origin", "https://evil.example")])
        .await
        .expect_problem("forbidden");
    let read = gateway
        .client
        .get(gateway.url("/proxy/api/x"))
        .header("sec-fetch-site", "cross-site");
    Answer::to(read).await.expect_problem("forbidden");
    assert_eq!(
        (tool.requests(), post(&gateway, "k", "{}").await.status),
        (0, 200)
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_proxy_is_no_tool_for_models() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    assert_eq!(gateway.get("/v1/tools").await.at("/tools"), json!([]));
    let body = json!({ "args": { "method": "POST", "path": "/x" } });
    gateway
        .post("api", &body, &[])
        .await
        .expect_problem("unknown-tool");
    gateway
        .get("/proxy/other/x")
        .await
        .expect_problem("unknown-tool");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}
