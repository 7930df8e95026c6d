//! Which tokens may complete, abort and read a saga: an abort calls tools.

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::sagas::undone::{MADE, SOON, executed, shop};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway, Tool};

/// Tokens whose secret is their name.
fn tokens() -> String {
    [
        ("planner", "t", "\"call:order\", \"call:pay\""),
        ("ping", "t", "\"call:look\""),
        ("undoes-half", "t", "\"call:order\", \"call:cancel\", \"call:pay\""),
        ("all-four", "t", "\"call:order\", \"call:cancel\", \"call:pay\", \"call:refund\""),
        ("reader", "t", "\"read\""),
        ("elsewhere", "u", "\"call\", \"read\""),
    ]
    .map(|(name, tenant, scopes)| {
        let digest = hex::encode(Sha256::digest(name));
        format!("[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n")
    })
    .concat()
}

async fn look(gateway: &Gateway, token: &str, saga: &str) -> Answer {
    let request = gateway
        .client
        .get(gateway.url(&format!("/v1/sagas/{saga}")))
        .bearer_auth(token);
    Answer::to(request).await
}

/// Makes an order and a payment by the planner, which begin the saga.
async fn plan(gateway: &Gateway, saga: &str) {
    for tool in ["order", "pay"] {
        let key = format!("{saga}-{tool}");
        let body =
            json!({ "args": {}, "session_id": "S", "saga_id": saga, "idempotency_key": key });
        gateway
            .post_as("planner", &format!("/v1/tools/{tool}/calls"), &body)
            .await
            .expect_ok();
    }
}

async fn a_token_ends_a_saga_only_if_it_began_it_or_may_call_all_of_its_tools(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores
        .gateway(&format!("{}{}", shop(&tool, SOON), tokens()))
        .await;
    for saga in ["G", "H", "I"] {
        plan(&gateway, saga).await;
    }
    // A token with a call in the saga gets no right to the other calls.
    let joined = json!({ "args": {}, "saga_id": "G", "idempotency_key": "joined" });
    gateway
        .post_as("ping", "/v1/tools/look/calls", &joined)
        .await
        .expect_ok();
    let before = executed(&tool).len();
    let reason = || json!({ "reason": "a test" });
    for token in ["ping", "undoes-half", "reader"] {
        for what in ["abort", "complete"] {
            let refused = gateway
                .post_as(token, &format!("/v1/sagas/G/{what}"), &reason())
                .await;
            refused.expect_problem("forbidden");
        }
    }
    for what in ["abort", "complete"] {
        gateway
            .post_as("elsewhere", &format!("/v1/sagas/G/{what}"), &reason())
            .await
            .expect_problem("unknown-saga");
        // Another tenant's saga and no saga are refused in the same way.
        for saga in ["G", "none"] {
            let path = format!("/v1/sagas/{saga}/{what}?tenant=t");
            let refused = gateway.post_as("elsewhere", &path, &reason()).await;
            refused.expect_problem("forbidden");
        }
    }
    assert_eq!(
        look(&gateway, "reader", "G").await.expect_ok().at("/state"),
        "open"
    );
    assert_eq!(executed(&tool).len(), before, "nothing was undone");

    let aborted = gateway
        .post_as("planner", "/v1/sagas/G/abort", &reason())
        .await
        .expect_ok();
    assert_ne!(aborted.at("/state"), "open");
    gateway.saga_that("G", "compensated", "reader").await;
    let aborted = gateway
        .post_as("all-four", "/v1/sagas/H/abort", &reason())
        .await
        .expect_ok();
    assert_eq!(aborted.at("/calls"), json!([]), "it made none of them");
    gateway.saga_that("H", "compensated", "reader").await;
    gateway
        .post_as("all-four", "/v1/sagas/I/complete", &reason())
        .await
        .expect_ok();
}

async fn a_token_that_may_not_read_sees_of_a_saga_its_state_and_its_own_calls(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores
        .gateway(&format!("{}{}", shop(&tool, SOON), tokens()))
        .await;
    plan(&gateway, "G").await;
    gateway
        .post_as(
            "planner",
            "/v1/sagas/G/complete",
            &json!({ "reason": "secret-reason" }),
        )
        .await
        .expect_ok();
    for token in ["ping", "undoes-half", "elsewhere"] {
        look(&gateway, token, "G")
            .await
            .expect_problem("unknown-saga");
    }
    let all = look(&gateway, "reader", "G").await.expect_ok();
    let is_whole =
        |saga: &Answer| saga.text.contains("secret-reason") && saga.text.contains("token planner");
    assert!(
        is_whole(&all) && all.at("/calls/1/tool") == "pay",
        "{}",
        all.text
    );
    for (token, calls, is_cut) in [("planner", 2, false), ("all-four", 0, true)] {
        let slim = look(&gateway, token, "G").await.expect_ok();
        assert_eq!(
            (slim.at("/state"), slim.at("/calls_cut")),
            ("completed".into(), is_cut.into()),
            "{token}"
        );
        assert_eq!(
            slim.at("/calls").as_array().map(Vec::len),
            Some(calls),
            "{token}"
        );
        assert!(
            !slim.text.contains("secret-reason") && !slim.text.contains("token planner"),
            "{}",
            slim.text
        );
    }
}

impl Gateway {
    /// Waits until a saga is in this state, as this token sees it.
    async fn saga_that(&self, saga: &str, state: &str, token: &str) {
        crate::support::until(&format!("{saga} is {state}"), async || {
            look(self, token, saga).await.expect_ok().at("/state") == state
        })
        .await;
    }
}

on_both_stores! {
    a_token_ends_a_saga_only_if_it_began_it_or_may_call_all_of_its_tools,
    a_token_that_may_not_read_sees_of_a_saga_its_state_and_its_own_calls,
}
