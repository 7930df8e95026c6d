//! Redacted arguments cannot be guessed by asking for keys.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::secrets::fingerprints::{CARD, paying};
use crate::support::{Gateway, Tool};

#[tokio::test]
async fn the_dry_run_of_a_key_tells_nothing_of_redacted_arguments_and_counts_as_a_new_key() {
    let tool = Tool::start().await;
    let token = |name: &str, scopes: &str, more: &str| {
        let digest = hex::encode(Sha256::digest(name));
        format!(
            "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"t\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n{more}"
        )
    };
    let tokens = [
        token(
            "agent",
            "\"call\"",
            "new_keys = { per_second = 1, burst = 3 }\n",
        ),
        token("payer", "\"call\"", ""),
        token("reader", "\"call\", \"read\"", ""),
    ];
    let open = format!("[tools.open]\nurl = \"{}\"\n", tool.url());
    let config = format!("{}{open}{}", paying(&tool, ""), tokens.concat());
    let gateway = Gateway::start(&config).await;
    let body = |card: &str| json!({ "args": { "card": card }, "user_id": "U" });
    let paid = gateway
        .post_as("payer", "/v1/tools/act/calls", &body(CARD))
        .await;
    paid.expect_ok();
    let ask = async |token: &str, tool: &str, card: &str| {
        let path = format!("/v1/tools/{tool}/key");
        gateway.post_as(token, &path, &body(card)).await
    };
    for card in [CARD, "4000000000000000"] {
        let told = ask("agent", "act", card).await.expect_ok();
        for member in ["/would", "/problem", "/call_id", "/state"] {
            assert_eq!(told.at(member), Value::Null, "{}", told.text);
        }
        assert_eq!(told.at("/idempotency_key").as_str().map(str::len), Some(32));
    }
    let mut statuses = Vec::new();
    for n in 0..20 {
        statuses.push(ask("agent", "act", &n.to_string()).await.status);
    }
    assert!(statuses.contains(&429), "{statuses:?}");
    // A token that reads calls may know, and so may everybody where nothing is redacted.
    assert_eq!(
        ask("reader", "act", CARD).await.expect_ok().at("/would"),
        "replay"
    );
    assert_eq!(
        ask("payer", "open", CARD).await.expect_ok().at("/would"),
        "run"
    );
    gateway.stop().await;
}
