//! The store's secret: who has not got it cannot guess from what is kept or shown what was to be kept nowhere; and it
//! outlives the data that was made with it.

use std::fs;
use std::path::Path;

use oncegate::core::document::{Kind, digest};
use oncegate::core::key;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::secrets::{all_bytes, key};
use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway, Tool, until};

on_both_stores! {
    what_was_redacted_cannot_be_guessed_from_what_is_shown,
    all_gateways_of_a_store_have_one_secret_and_a_restart_keeps_it,
    a_store_that_was_emptied_gets_its_secret_back,
    calls_without_their_secret_are_lost_data,
    a_secret_that_no_key_opens_closes_the_store,
}

const CARD: &str = "4111111111111111";

fn paying(tool: &Tool, more: &str) -> String {
    one_tool(tool, &format!("redact = {{ args = [\"/card\"] }}\n{more}"))
}

async fn pay(gateway: &Gateway, args: Value) -> Answer {
    gateway
        .post("act", &json!({ "args": args, "user_id": "U" }), &[])
        .await
}

fn plain(text: &str) -> String {
    hex::encode(&Sha256::digest(text)[..16])
}

async fn what_was_redacted_cannot_be_guessed_from_what_is_shown(stores: &Stores) {
    let tool = Tool::start().await;
    let alike = "similar = { fields = [\"/card\"], window = \"10m\", action = \"flag\" }\n";
    let open = format!("[tools.open]\nurl = \"{}\"\n", tool.url());
    let gateway = stores
        .gateway(&paying(&tool, &format!("{alike}{open}")))
        .await;
    let args = json!({ "amount": 3, "card": CARD });
    let paid = pay(&gateway, args.clone()).await.expect_ok();
    assert_eq!(
        pay(&gateway, args.clone())
            .await
            .expect_ok()
            .at("/replayed"),
        true
    );
    let guess = |name: &str| format!("{{\"args\":{args},\"name\":\"{name}\",\"user\":\"U\"}}");
    let shown = paid.at("/idempotency_key");
    assert_eq!(shown.as_str().map(str::len), Some(32));
    assert_ne!(shown, plain(&guess("act")));
    let body = json!({ "args": args, "user_id": "U" });
    let kept = gateway.post("open", &body, &[]).await.expect_ok();
    assert_eq!(
        kept.at("/idempotency_key"),
        plain(&guess("open")),
        "where nothing is redacted anyone may know it"
    );
    for answer in [gateway.record(&paid).await, gateway.record(&kept).await] {
        assert_eq!(answer.at("/fingerprint"), Value::Null, "{}", answer.text);
    }
    let folder = gateway.stop().await;
    if let Stores::Sqlite = stores {
        let bytes = all_bytes(folder.path());
        let is_there = |some: &[u8]| bytes.windows(some.len()).any(|there| there == some);
        let fields = json!({ "/card": CARD }).to_string();
        assert!(
            !is_there(&Sha256::digest(args.to_string())),
            "an unsalted fingerprint"
        );
        assert!(
            !is_there(&key::digest(["similar", "default", "act", "U", &fields])),
            "a near-duplicate value"
        );
        assert!(
            is_there(shown.as_str().expect("a key").as_bytes()),
            "what is looked for would be found"
        );
    }
}

async fn all_gateways_of_a_store_have_one_secret_and_a_restart_keeps_it(stores: &Stores) {
    let tool = Tool::start().await;
    let config = paying(&tool, "");
    let gateways = stores.gateways(&config).await;
    let first = pay(&gateways[0], json!({ "card": CARD })).await.expect_ok();
    for gateway in gateways {
        let again = pay(&gateway, json!({ "card": CARD })).await.expect_ok();
        assert_eq!(
            (again.at("/replayed"), again.at("/call_id")),
            (true.into(), first.at("/call_id"))
        );
        let gateway = stores.again(gateway, &config).await;
        let again = pay(&gateway, json!({ "card": CARD })).await.expect_ok();
        assert_eq!(again.at("/replayed"), true);
        gateway.stop().await;
    }
    assert_eq!(tool.effects(), 1);
}

async fn ask(url: &str, command: &[&str]) -> i64 {
    let client = ::redis::Client::open(url).expect("a URL");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    let mut ask = ::redis::cmd(command[0]);
    ask.arg(&command[1..]);
    let answer: ::redis::Value = ask.query_async(&mut connection).await.expect("an answer");
    ::redis::from_redis_value(answer).unwrap_or_default()
}

fn sqlite_in(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("oncegate.db").display())
}

/// Or a tool that deduplicates would not know the repetition of what the store has forgotten.
async fn a_store_that_was_emptied_gets_its_secret_back(stores: &Stores) {
    let tool = Tool::start().await;
    let config = format!(
        "{}[store]\nencryption_keys = [\"{}\"]\n",
        paying(&tool, ""),
        key(1)
    );
    let gateway = stores.gateway(&config).await;
    pay(&gateway, json!({ "card": CARD })).await.expect_ok();
    let folder = gateway.stop().await;
    let url = match stores {
        Stores::Sqlite => {
            fs::remove_file(folder.path().join("oncegate.db")).expect("removed");
            sqlite_in(folder.path())
        }
        Stores::Redis(url) => {
            ask(url, &["FLUSHALL"]).await;
            url.clone()
        }
    };
    let gateway = Gateway::again(folder, &url, &config).await;
    until("the loss is noticed", async || {
        gateway.reasons().await.contains("accept-loss")
    })
    .await;
    gateway.accept_loss("it is gone").await.expect_ok();
    gateway.until_ready().await;
    assert_eq!(
        pay(&gateway, json!({ "card": CARD }))
            .await
            .expect_ok()
            .at("/replayed"),
        false
    );
    let keys: Vec<_> = tool
        .seen()
        .iter()
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
    gateway.stop().await;
}

async fn calls_without_their_secret_are_lost_data(stores: &Stores) {
    let tool = Tool::start().await;
    let config = format!(
        "{}[tools.open]\nurl = \"{}\"\n",
        paying(&tool, ""),
        tool.url()
    );
    let gateway = stores.gateway(&config).await;
    let with = |card: &str| json!({ "args": { "card": card }, "idempotency_key": "k" });
    for name in ["act", "open"] {
        gateway.post(name, &with(CARD), &[]).await.expect_ok();
    }
    let folder = gateway.stop().await;
    let gateway = match stores {
        Stores::Sqlite => {
            let file =
                rusqlite::Connection::open(folder.path().join("oncegate.db")).expect("a store");
            let gone = file
                .execute("DELETE FROM documents WHERE kind = 'secret'", [])
                .expect("deleted");
            assert_eq!(gone, 1);
            drop(file);
            let marks = folder.path().join("oncegate.db.watermarks");
            let text = fs::read_to_string(&marks).expect("read");
            fs::write(
                &marks,
                format!("{}\n", text.lines().next().expect("a line")),
            )
            .expect("written");
            let url = sqlite_in(folder.path());
            Gateway::again(folder, &url, &config).await
        }
        Stores::Redis(url) => {
            let name = hex::encode(digest(Kind::Secret, "", "secret"));
            assert_eq!(
                ask(url, &["DEL", &format!("oncegate:{{p000}}:document:{name}")]).await,
                1
            );
            // Another one, which has no copy.
            Gateway::sharing(url, &config).await
        }
    };
    until("it is noticed", async || {
        let reasons = gateway.reasons().await;
        reasons.contains("secret") && reasons.contains("accept-loss")
    })
    .await;
    gateway
        .post("open", &json!({ "args": { "n": 2 } }), &[])
        .await
        .expect_problem("store-unavailable");
    gateway.accept_loss("the secret is gone").await.expect_ok();
    gateway.until_ready().await;
    // Arguments that are kept can be compared; others cannot, and nothing is advised that would be a second effect.
    assert_eq!(
        gateway
            .post("open", &with(CARD), &[])
            .await
            .expect_ok()
            .at("/replayed"),
        true
    );
    assert_eq!(
        gateway
            .post("open", &with("other"), &[])
            .await
            .expect_problem("key-reused")
            .at("/key_action"),
        "rotate"
    );
    assert_eq!(
        gateway
            .post("act", &with(CARD), &[])
            .await
            .expect_problem("key-reused")
            .at("/key_action"),
        "stop"
    );
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}

async fn a_secret_that_no_key_opens_closes_the_store(stores: &Stores) {
    let tool = Tool::start().await;
    let with = |keys: &[u8]| {
        let keys: Vec<String> = keys.iter().map(|n| key(*n)).collect();
        format!("{}[store]\nencryption_keys = {keys:?}\n", paying(&tool, ""))
    };
    let gateway = stores.gateway(&with(&[1])).await;
    pay(&gateway, json!({ "card": CARD })).await.expect_ok();
    let folder = gateway.stop().await;
    let url = match stores {
        Stores::Sqlite => sqlite_in(folder.path()),
        Stores::Redis(url) => url.clone(),
    };
    let gateway = Gateway::again(folder, &url, &with(&[2])).await;
    until("it says why", async || {
        gateway.reasons().await.contains("store.encryption_keys")
    })
    .await;
    pay(&gateway, json!({ "card": CARD }))
        .await
        .expect_problem("store-unavailable");
    gateway
        .accept_loss("the key is gone")
        .await
        .expect_problem("wrong-state");
    let folder = gateway.stop().await;
    // It is sealed anew with the first key, so that the other one can go.
    let gateway = Gateway::again(folder, &url, &with(&[2, 1])).await;
    gateway.until_ready().await;
    let folder = gateway.stop().await;
    let gateway = Gateway::again(folder, &url, &with(&[2])).await;
    gateway.until_ready().await;
    let again = pay(&gateway, json!({ "card": CARD })).await;
    assert_eq!(
        again.problem(),
        "result-unavailable",
        "it is the same call, of which no key opens the result"
    );
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}
