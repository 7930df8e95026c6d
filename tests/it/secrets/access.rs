use serde_json::json;

use crate::support::{Answer, Gateway, Tool, until};

/// A gateway with four tokens, whose texts begin with `token-`.
async fn with_tokens(tool: &Tool) -> Gateway {
    let tokens: String = [
        ("shop-agents", "shop", "token-shop", r#"["call", "read"]"#),
        ("bank-agents", "bank", "token-bank", r#"["call", "read"]"#),
        ("narrow", "shop", "token-narrow", r#"["call:other"]"#),
        ("auditor", "audit", "token-admin", r#"["admin"]"#),
    ]
    .iter()
    .map(|(name, tenant, token, scopes)| {
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(token));
        format!("[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = {scopes}\n")
    })
    .collect();
    let url = tool.url();
    Gateway::start(&format!(
        "{tokens}[tools.act]\nurl = \"{url}\"\n[tools.other]\nurl = \"{url}\"\n"
    ))
    .await
}

async fn call(gateway: &Gateway, token: &str, key: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    gateway
        .post(
            "act",
            &json!({ "args": {} }),
            &[("authorization", &bearer), ("idempotency-key", key)],
        )
        .await
}

async fn show(gateway: &Gateway, token: &str, call: &Answer) -> Answer {
    let id = call.id();
    let url = gateway.url(&format!("/v1/calls/{id}"));
    Answer::to(gateway.client.get(url).bearer_auth(token)).await
}

#[tokio::test]
async fn without_a_valid_token_nothing_is_run_and_nothing_disclosed() {
    let tool = Tool::start().await;
    let gateway = with_tokens(&tool).await;
    let body = json!({ "args": {} });
    for headers in [
        &[][..],
        &[("authorization", "Bearer wrong")],
        &[("authorization", "Basic token-shop")],
        &[("authorization", "token-shop")],
        &[
            ("authorization", "Bearer token-shop"),
            ("authorization", "Bearer token-shop"),
        ],
    ] {
        let refused = gateway
            .post("act", &body, headers)
            .await
            .expect_problem("unauthenticated");
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, "Bearer")
        );
    }
    gateway
        .get("/v1/calls/01a1fd12-5b4c-7535-93a3-eb953d3bb88d")
        .await
        .expect_problem("unauthenticated");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn refused_tokens_are_counted_by_reason() {
    let tool = Tool::start().await;
    let gateway = with_tokens(&tool).await;
    let body = json!({ "args": {} });
    gateway
        .post("act", &body, &[])
        .await
        .expect_problem("unauthenticated");
    for _ in 0..2 {
        gateway
            .post("act", &body, &[("authorization", "Bearer wrong")])
            .await
            .expect_problem("unauthenticated");
    }
    call(&gateway, "token-narrow", "k")
        .await
        .expect_problem("forbidden");
    call(&gateway, "token-shop", "k").await.expect_ok();
    let count = async |reason: &str| {
        gateway
            .metric(&format!(
                "oncegate_refused_tokens_total{{reason=\"{reason}\"}}"
            ))
            .await
    };
    until("all are counted", async || count("scope").await >= 1.0).await;
    assert_eq!(
        (
            count("missing").await,
            count("unknown").await,
            count("scope").await
        ),
        (1.0, 2.0, 1.0)
    );
    assert_eq!((count("expired").await, tool.requests()), (0.0, 1));
    gateway.stop().await;
}

#[tokio::test]
async fn the_same_key_in_two_tenants_is_two_calls_and_neither_sees_the_other() {
    let tool = Tool::start().await;
    let gateway = with_tokens(&tool).await;
    let shop = call(&gateway, "token-shop", "k").await.expect_ok();
    let bank = call(&gateway, "token-bank", "k").await.expect_ok();
    assert_ne!(shop.at("/call_id"), bank.at("/call_id"));
    assert_eq!((bank.at("/replayed"), tool.effects()), (false.into(), 2));
    let keys: Vec<String> = tool
        .seen()
        .iter()
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    assert_ne!(keys[0], keys[1]);
    assert_eq!(
        show(&gateway, "token-shop", &shop)
            .await
            .expect_ok()
            .at("/tenant"),
        "shop"
    );
    show(&gateway, "token-bank", &shop)
        .await
        .expect_problem("unknown-call");
    assert_eq!(
        show(&gateway, "token-admin", &shop)
            .await
            .expect_ok()
            .at("/tenant"),
        "shop"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_token_does_only_what_its_scopes_say() {
    let tool = Tool::start().await;
    let gateway = with_tokens(&tool).await;
    let shop = call(&gateway, "token-shop", "k").await.expect_ok();
    let refused = call(&gateway, "token-narrow", "k")
        .await
        .expect_problem("forbidden");
    assert_eq!(
        (refused.status, refused.at("/effect")),
        (403, "none".into())
    );
    call(&gateway, "token-admin", "k")
        .await
        .expect_problem("forbidden");
    show(&gateway, "token-narrow", &shop)
        .await
        .expect_problem("unknown-call");
    let bearer = [("authorization", "Bearer token-narrow")];
    gateway
        .post("other", &json!({ "args": {} }), &bearer)
        .await
        .expect_ok();
    gateway
        .post("missing", &json!({ "args": {} }), &bearer)
        .await
        .expect_problem("forbidden");
    let bearer = [("authorization", "Bearer token-shop")];
    gateway
        .post("missing", &json!({ "args": {} }), &bearer)
        .await
        .expect_problem("unknown-tool");
    gateway.stop().await;
}

#[tokio::test]
async fn an_expired_token_is_refused_and_another_of_the_same_name_still_works() {
    let tool = Tool::start().await;
    let token = |token: &str, expires: &str| {
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(token));
        format!(
            "[[auth.tokens]]\nname = \"agents\"\ntenant = \"shop\"\nsha256 = \"{digest}\"\n\
             scopes = [\"call\", \"read\"]\nexpires = \"{expires}\"\n"
        )
    };
    let tokens =
        token("token-old", "2026-01-01T00:00:00Z") + &token("token-new", "2999-01-01T00:00:00Z");
    let gateway = Gateway::start(&format!("{tokens}[tools.act]\nurl = \"{}\"\n", tool.url())).await;
    let refused = call(&gateway, "token-old", "k")
        .await
        .expect_problem("unauthenticated");
    assert_eq!(
        (refused.status, refused.header("www-authenticate")),
        (401, "Bearer")
    );
    assert!(refused.text.contains("expired"), "{}", refused.text);
    assert_eq!(tool.requests(), 0);
    let done = call(&gateway, "token-new", "k").await.expect_ok();
    show(&gateway, "token-old", &done)
        .await
        .expect_problem("unauthenticated");
    show(&gateway, "token-new", &done).await.expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn a_web_page_cannot_use_a_gateway_in_open_mode() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let refused = gateway
        .post(
            "act",
            &json!({ "args": {} }),
            &[("origin", "http://evil.example")],
        )
        .await;
    refused.expect_problem("forbidden");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}
