//! Fencing tokens, and the sessions of different tenants.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway::one_tool;
use crate::support::stores::Stores;
use crate::support::{Act, Answer, Gateway, Tool, until};

pub fn token(text: &str) -> u64 {
    text.parse().expect("a token")
}

pub async fn a_token_is_let_in_only_if_it_is_the_newest_that_the_session_gave_out(stores: &Stores) {
    let tool = Tool::start().await;
    let shared = format!(
        "[tools.shared]\nurl = \"{}\"\nsession = \"shared\"\n",
        tool.url()
    );
    let gateway = stores
        .gateway(&format!("{}{shared}", one_tool(&tool, "")))
        .await;
    let first = gateway
        .act("first", json!({}))
        .await
        .expect_ok()
        .at("/fencing")
        .as_u64()
        .expect("a token");
    let equal = gateway
        .act("equal", json!({ "fencing_token": first }))
        .await
        .expect_ok();
    assert_eq!(
        equal.at("/fencing"),
        first,
        "who has the newest token passes it on"
    );
    let stale = gateway
        .act("stale", json!({ "fencing_token": first - 1 }))
        .await;
    let stale = stale.expect_problem("stale-fencing-token");
    assert_eq!(
        (stale.status, stale.at("/effect"), stale.at("/key_action")),
        (409, "none".into(), "stop".into())
    );
    assert!(
        !stale.text.contains(&first.to_string()),
        "no caller learns the newest token by guessing"
    );

    // A made-up token makes no other token stale.
    let made_up = [
        first + 1,
        first + 60_000_000,
        first + 7_190_000_000,
        (1 << 53) - 1,
        u64::MAX,
    ];
    for (n, made_up) in made_up.into_iter().enumerate() {
        let refused = gateway
            .act(&format!("burn{n}"), json!({ "fencing_token": made_up }))
            .await;
        let refused = refused.expect_problem("invalid-request");
        assert_eq!(
            (refused.status, refused.at("/effect")),
            (400, "none".into())
        );
    }
    gateway
        .act("victim", json!({ "fencing_token": first }))
        .await
        .expect_ok();
    let next = gateway.act("next", json!({})).await.expect_ok();
    let newest = next.at("/fencing");
    assert!(newest.as_u64() > Some(first));
    gateway
        .act("late", json!({ "fencing_token": first }))
        .await
        .expect_problem("stale-fencing-token");
    let passed_on = gateway
        .act("passed-on", json!({ "fencing_token": newest }))
        .await
        .expect_ok();
    assert_eq!(
        (passed_on.at("/fencing"), passed_on.header("fencing-token")),
        (newest.clone(), &*newest.to_string())
    );
    // A header loses outer spaces, so the tool would take this session for the victim's.
    for id in [" S", "S ", "S\u{a0}", " "] {
        let body = json!({ "args": {}, "session_id": id });
        gateway
            .post("act", &body, &[])
            .await
            .expect_problem("invalid-request");
    }
    // This session has given out no token.
    for token in [0, 1, first] {
        let body = json!({ "args": {}, "session_id": "T", "fencing_token": token });
        gateway
            .post("act", &body, &[])
            .await
            .expect_problem("invalid-request");
    }
    let replayed = gateway
        .act("first", json!({ "fencing_token": 1 }))
        .await
        .expect_ok();
    assert_eq!(
        replayed.at("/fencing"),
        first,
        "a stored result is replayed whatever the token"
    );
    let body = json!({ "args": {}, "session_id": "S", "fencing_token": 1 });
    let shared = gateway.post("shared", &body, &[]).await.expect_ok();
    assert!(
        shared.at("/fencing").as_u64() > next.at("/fencing").as_u64(),
        "a tool that does not care"
    );
    assert_eq!(tool.seen()[1].header("fencing-token"), first.to_string());
}

pub async fn no_tenant_meets_the_session_of_another(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::after_ms(500, Act::Numbered));
    let mut config = one_tool(&tool, "session = \"exclusive\"\nsession_wait = \"0s\"");
    for (tenant, scopes) in [
        ("shop", "\"call\", \"read\""),
        ("bank", "\"call\", \"read\""),
        ("ops", "\"admin\""),
    ] {
        let digest = hex::encode(Sha256::digest(tenant));
        config += &format!(
            "[[auth.tokens]]\nname = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n"
        );
    }
    let gateway = stores.gateway(&config).await;
    let ask = async |tenant: &str, method: &str, path: &str, body: Value| {
        let request = gateway
            .client
            .request(method.parse().expect("a method"), gateway.url(path));
        let request = request.bearer_auth(tenant).body(body.to_string()).send();
        Answer::read(request.await.expect("an answer")).await
    };
    let call = async |tenant, key: &str| {
        let body = json!({ "args": {}, "session_id": "S", "idempotency_key": key });
        ask(tenant, "POST", "/v1/tools/act/calls", body).await
    };
    let reason = json!({ "reason": "a try" });
    let (first, other, seen) = tokio::join!(
        call("shop", "k"),
        async {
            until("the first runs", async || tool.requests() == 1).await;
            call("bank", "k").await
        },
        async {
            until("the first runs", async || tool.requests() == 1).await;
            ask("bank", "GET", "/v1/sessions/S", Value::Null).await
        }
    );
    first.expect_ok();
    other.expect_ok();
    assert_ne!(seen.expect_ok().at("/tenant"), "shop");
    for tenant in ["shop", "bank"] {
        for act in ["unlock", "freeze", "thaw"] {
            ask(
                tenant,
                "POST",
                &format!("/v1/sessions/S/{act}"),
                reason.clone(),
            )
            .await
            .expect_problem("forbidden");
        }
        ask(tenant, "GET", "/v1/sessions/S?tenant=ops", Value::Null)
            .await
            .expect_problem("forbidden");
    }
    let frozen = ask(
        "ops",
        "POST",
        "/v1/sessions/S/freeze?tenant=shop",
        reason.clone(),
    )
    .await
    .expect_ok();
    assert_eq!(
        (frozen.at("/tenant"), frozen.at("/frozen")),
        ("shop".into(), true.into()),
        "whose it is is said"
    );
    let seen = ask("ops", "GET", "/v1/sessions/S?tenant=shop", Value::Null)
        .await
        .expect_ok();
    assert_eq!(
        (seen.at("/tenant"), seen.at("/events/0/by")),
        ("shop".into(), "token ops".into())
    );
    call("shop", "new").await.expect_problem("session-frozen");
    call("bank", "new").await.expect_ok();
    ask("ops", "POST", "/v1/sessions/S/freeze?user=shop", reason)
        .await
        .expect_problem("invalid-request");
}

#[tokio::test]
async fn a_tool_that_refuses_a_stale_token_is_not_asked_again() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "outcomes = { 418 = \"fenced\" }").await;
    for (key, act) in [
        (
            "newer",
            Act::Answer(409, "fencing-token: 9000000000000000\r\n", b"{\"seen\":9}"),
        ),
        ("precondition", Act::Answer(412, "", b"{}")),
        ("declared", Act::Answer(418, "", b"{}")),
    ] {
        tool.then(act);
        let fenced = gateway
            .act(key, json!({}))
            .await
            .expect_problem("stale-fencing-token");
        assert_eq!(
            (
                fenced.status,
                fenced.at("/effect"),
                fenced.at("/key_action")
            ),
            (409, "none".into(), "stop".into())
        );
        let record = gateway.record(&fenced).await;
        assert_eq!(
            (record.at("/state"), record.at("/error/kind")),
            ("failed".into(), "fenced".into())
        );
        assert_eq!(record.at("/attempts"), 1);
    }
    tool.then(Act::Answer(
        409,
        "fencing-token: 5\r\n",
        b"{\"error\":\"out of stock\"}",
    ));
    let other = gateway
        .act("other", json!({}))
        .await
        .expect_problem("tool-rejected");
    assert_eq!(
        other.at("/tool_status"),
        409,
        "another conflict is what it is"
    );
    assert_eq!(tool.requests(), 4);
    let counted = gateway
        .metric("oncegate_first_arrival_failures_total{reason=\"fenced\",tool=\"act\"}")
        .await;
    assert_eq!(counted, 3.0);
}
