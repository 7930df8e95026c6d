//! Nobody makes a session of the console from what lies in the store and in the configuration.

use jiff::{SignedDuration, Timestamp};
use oncegate::console::{NONCE, SignIn};
use oncegate::core::secret::Secret;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::console::pages::{call, with_tokens};
use crate::support::browser::{Browser, try_to_sign_in};
use crate::support::gateway::one_tool;
use crate::support::{Gateway, Tool};

/// The store's secret, as whoever reads the file finds it.
fn secret_in(gateway: &Gateway) -> Secret {
    let file = rusqlite::Connection::open(gateway.database()).expect("a store");
    let body = "SELECT CAST(body AS TEXT) FROM documents WHERE kind = 'secret'";
    let body: String = file.query_row(body, [], |row| row.get(0)).expect("it");
    let stored: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let mut bytes = [0; 32];
    hex::decode_to_slice(stored["secret"].as_str().expect("digits"), &mut bytes).expect("hex");
    Secret::new(bytes)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a session that would end in ten years"
)]
#[tokio::test]
async fn a_session_cannot_be_made_with_what_the_store_and_the_configuration_hold() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, ""))).await;
    let body = json!({ "args": {}, "idempotency_key": "k" });
    call(&gateway, "agents", &body).await.expect_ok();
    Browser::sign_in(&gateway, "ops")
        .await
        .see("/console")
        .await
        .expect_ok();
    let secret = secret_in(&gateway);
    let forged = SignIn {
        id: [7; 16],
        token: Sha256::digest("ops").into(),
        until: Timestamp::now() + SignedDuration::from_hours(24 * 3_650),
    };
    let cookie = forged.seal(&secret, [7; NONCE]).expect("a cookie");
    let cookie = format!("oncegate_console={cookie}");
    let page = Browser::with_cookie(&gateway, &cookie)
        .see("/console")
        .await;
    assert_eq!(page.status, 303, "{}", page.text);
    gateway.stop().await;
}

#[tokio::test]
async fn tokens_cannot_be_guessed_fast_at_the_form_to_sign_in() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, ""))).await;
    let mut refused = Vec::new();
    for n in 0..40 {
        refused.push(try_to_sign_in(&gateway, &format!("guess{n}")).await);
    }
    let statuses: Vec<u16> = refused.iter().map(|one| one.status).collect();
    assert_eq!(statuses[..5], [401; 5], "{statuses:?}");
    assert_eq!(statuses[39], 429, "{statuses:?}");
    let wait = refused[39].header("retry-after").parse::<u64>();
    assert!(wait.is_ok_and(|seconds| (1..=60).contains(&seconds)));
    // A right guess tells nothing then, either.
    assert_eq!(try_to_sign_in(&gateway, "ops").await.status, 429);
    gateway.stop().await;
}
