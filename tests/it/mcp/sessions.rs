//! What a refusal proves that a server says of its sessions and revisions, and statuses that an operator declares.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;

use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::{Does, Upstream, result};
use crate::support::{Answer, Gateway, until};

on_both_stores!(
    a_refusal_after_the_effect_is_never_taken_for_a_lost_session,
    a_write_is_sent_again_once_for_a_session_that_is_surely_lost,
);

const PATIENT: &str = "deadline = \"2m\"\nretry = { attempts = 5, base = \"1ms\", max = \"2ms\" }\nbreaker = { failures = 1000 }";

async fn act(gateway: &Gateway, key: &str) -> Answer {
    gateway.call_with_key(key, json!({ "n": 1 })).await
}

async fn a_refusal_after_the_effect_is_never_taken_for_a_lost_session(stores: &Stores) {
    for upstream in [Upstream::legacy().await, Upstream::modern().await] {
        let gateway = stores.gateway(&upstream.config(PATIENT)).await;
        let effects = upstream.effects();
        for (n, (has_served, status, code)) in [
            (false, 404, -32_001),
            (true, 404, -32_001),
            (true, 404, -32_601),
            (true, 400, -32_000),
            (true, 400, -32_020),
            (true, 400, -32_022),
        ]
        .into_iter()
        .enumerate()
        {
            if has_served {
                act(&gateway, &format!("served-{}", upstream.url()))
                    .await
                    .expect_ok();
            }
            let before = upstream.effects();
            upstream.then(Does::ExecuteThenNameless(status, code));
            for _ in 0..2 {
                let said = act(&gateway, &format!("k{n}-{}", upstream.url())).await;
                said.expect_problem("outcome-unknown");
            }
            assert_eq!(upstream.effects(), before + 1, "{status} {code}");
        }
        assert_eq!(upstream.effects(), effects + 7);
        gateway.stop().await;
    }
}

async fn a_write_is_sent_again_once_for_a_session_that_is_surely_lost(stores: &Stores) {
    for (status, code) in [(404, -32_001), (400, -32_000)] {
        let upstream = Upstream::legacy().await;
        let gateway = stores.gateway(&upstream.config(PATIENT)).await;
        let named = |name: &str| format!("{name}-{status}");
        // A session that has served nothing proves nothing.
        upstream.then(Does::ExecuteThenForget(status, code));
        act(&gateway, &named("first"))
            .await
            .expect_problem("outcome-unknown");
        assert_eq!(upstream.effects(), 1);
        act(&gateway, &named("served")).await.expect_ok();
        upstream.forget_sessions(status, code);
        act(&gateway, &named("again")).await.expect_ok();
        assert_eq!(upstream.effects(), 3);
        // Twice in one call: the second refusal proves nothing.
        let held: Arc<Notify> = Arc::default();
        upstream.then(Does::ExecuteThenForget(404, -32_001));
        upstream.then(Does::HeldThenForget(held.clone()));
        let sent = upstream.seen("tools/call").len();
        let name = named("twice");
        let twice = act(&gateway, &name);
        let meanwhile = async {
            until("it is sent again", async || {
                upstream.seen("tools/call").len() == sent + 2
            })
            .await;
            // Now the new session has served a request.
            act(&gateway, &named("between")).await.expect_ok();
            held.notify_one();
        };
        let (twice, ()) = tokio::join!(twice, meanwhile);
        twice.expect_problem("outcome-unknown");
        assert_eq!(upstream.effects(), 6, "{status}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_read_is_sent_again_whatever_a_ping_gets() {
    let upstream = Upstream::legacy().await;
    let gateway = Gateway::start(&upstream.config(&format!("effect = \"read\"\n{PATIENT}"))).await;
    upstream.then(Does::ExecuteThenNameless(404, -32_001));
    act(&gateway, "k").await.expect_ok();
    assert_eq!(upstream.seen("tools/call").len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_status_of_a_server_means_what_the_operator_declares() {
    for upstream in [Upstream::legacy().await, Upstream::modern().await] {
        let declared = "outcomes = { 404 = \"rejected\", 503 = \"not_executed\", 400 = \"unknown\", 409 = \"executed\" }\nretry = { attempts = 1 }";
        let gateway = Gateway::start(&upstream.config(declared)).await;
        for (does, problem) in [
            (Does::Status(404), "tool-rejected"),
            (Does::Nameless(404, -32_001), "tool-rejected"),
            (Does::Error(404, -32_601), "tool-rejected"),
            (Does::Status(503), "tool-unavailable"),
            (Does::Error(503, -32_603), "tool-unavailable"),
            (Does::Nameless(400, -32_600), "outcome-unknown"),
            // The whole response of another request says nothing of this one.
            (Does::RefuseAnother, "outcome-unknown"),
            (Does::ExecuteThenStatus(409), ""),
        ] {
            upstream.then(does.clone());
            let key = format!("{does:?}").replace([' ', '-'], "");
            let said = act(&gateway, &key).await;
            assert_eq!(said.problem(), problem, "{does:?}: {}", said.text);
        }
        // A whole result is what it says.
        upstream.then(Does::Json(result("done")));
        act(&gateway, "last").await.expect_ok();
        gateway.stop().await;
    }
}
