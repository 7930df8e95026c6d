//! The store's secret: redacted values cannot be guessed without it, and it outlives the data that was made with it.

use std::fs;
use std::path::Path;

use oncegate::core::document::{Kind, digest};
use oncegate::core::key;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::secrets::stored::key;
use crate::support::gateway::one_tool;
#[cfg(feature = "postgres")]
use crate::support::postgres::{empty, run_in, text_in};
use crate::support::redis::connect;
use crate::support::search::{all_bytes, holds};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway, Tool, until};

on_both_stores! {
    redacted_values_cannot_be_guessed_from_what_is_shown,
    all_gateways_of_a_store_have_one_secret_and_a_restart_keeps_it,
    a_store_that_was_emptied_gets_its_secret_back,
    calls_without_their_secret_are_lost_data,
    a_secret_that_no_key_opens_closes_the_store,
    a_store_that_was_begun_anew_is_closed_until_accepted_and_then_keeps_both_secrets,
    a_copy_that_no_key_opens_closes_the_store_until_accepted,
}

pub const CARD: &str = "4111111111111111";

pub fn paying(tool: &Tool, more: &str) -> String {
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

async fn redacted_values_cannot_be_guessed_from_what_is_shown(stores: &Stores) {
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
        "without redaction the key follows from the arguments"
    );
    for answer in [gateway.record(&paid).await, gateway.record(&kept).await] {
        assert_eq!(answer.at("/fingerprint"), Value::Null, "{}", answer.text);
    }
    let folder = gateway.stop().await;
    if let Stores::Sqlite = stores {
        let bytes = all_bytes(folder.path());
        let is_there = |some: &[u8]| holds(&bytes, some);
        let fields = json!({ "/card": CARD }).to_string();
        assert!(
            !is_there(&Sha256::digest(args.to_string())),
            "an unsalted fingerprint"
        );
        assert!(
            !is_there(&key::digest(["similar", "default", "act", "U", &fields])[..16]),
            "a near-duplicate value"
        );
        let shown = hex::decode(shown.as_str().expect("a key")).expect("hex digits");
        assert!(is_there(&shown), "the search would find such bytes");
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

/// A configuration whose store is encrypted with these keys.
fn encrypting(tool: &Tool, keys: &[u8]) -> String {
    let keys: Vec<String> = keys.iter().map(|n| key(*n)).collect();
    format!("{}[store]\nencryption_keys = {keys:?}\n", paying(tool, ""))
}

async fn ask(url: &str, command: &[&str]) -> i64 {
    let mut connection = connect(url).await;
    let mut ask = ::redis::cmd(command[0]);
    ask.arg(&command[1..]);
    let answer: ::redis::Value = ask.query_async(&mut connection).await.expect("an answer");
    ::redis::from_redis_value(answer).unwrap_or_default()
}

/// The key under which a Redis keeps the secret.
pub fn document_key() -> String {
    let name = digest(Kind::Secret, "", "secret");
    format!("oncegate:{{p000}}:document:{}", hex::encode(name))
}

fn sqlite_in(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("oncegate.db").display())
}

/// With another secret a deduplicating tool would not recognise the repetition of a forgotten call.
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
        #[cfg(feature = "postgres")]
        Stores::Postgres(place) => {
            empty(place).await;
            place.clone()
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
        "{}[tools.open]\nurl = \"{url}\"\n[tools.look]\nurl = \"{url}\"\neffect = \"read\"\n",
        paying(&tool, ""),
        url = tool.url()
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
            assert_eq!(ask(url, &["DEL", &document_key()]).await, 1);
            // A gateway that has no copy of the secret.
            Gateway::sharing(url, &config).await
        }
        #[cfg(feature = "postgres")]
        Stores::Postgres(place) => {
            run_in(place, "DELETE FROM documents WHERE kind = 'secret'").await;
            Gateway::sharing(place, &config).await
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
    // A read runs. Stored, it would be taken for a call whose secret is lost.
    gateway
        .post("look", &json!({ "args": {} }), &[])
        .await
        .expect_ok();
    let reads = gateway.get("/v1/calls?tool=look").await.expect_ok();
    assert_eq!(reads.at("/calls"), json!([]));
    gateway.accept_loss("the secret is gone").await.expect_ok();
    gateway.until_ready().await;
    // Calls whose arguments are kept can be compared. For others no advice may lead to a second effect.
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
    assert_eq!(tool.effects(), 3, "two calls and the read");
    gateway.stop().await;
}

async fn a_secret_that_no_key_opens_closes_the_store(stores: &Stores) {
    let tool = Tool::start().await;
    let with = |keys: &[u8]| encrypting(&tool, keys);
    let gateway = stores.gateway(&with(&[1])).await;
    pay(&gateway, json!({ "card": CARD })).await.expect_ok();
    let folder = gateway.stop().await;
    let url = match stores {
        Stores::Sqlite => sqlite_in(folder.path()),
        Stores::Redis(url) => url.clone(),
        #[cfg(feature = "postgres")]
        Stores::Postgres(url) => url.clone(),
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
    // The secret is sealed anew with the first key, so the other key can be removed.
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

/// A gateway without a copy begins the store anew, before those with a copy come back.
async fn a_store_that_was_begun_anew_is_closed_until_accepted_and_then_keeps_both_secrets(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    let config = paying(&tool, "");
    let old = stores.gateway(&config).await;
    pay(&old, json!({ "card": CARD })).await.expect_ok();
    let folder = old.stop().await;
    match stores {
        Stores::Sqlite => {}
        Stores::Redis(url) => drop(ask(url, &["FLUSHALL"]).await),
        #[cfg(feature = "postgres")]
        Stores::Postgres(place) => empty(place).await,
    }
    let new = stores.gateway(&config).await;
    pay(&new, json!({ "card": "other" })).await.expect_ok();
    let (old, new) = match stores {
        Stores::Sqlite => {
            let begun = new.stop().await;
            fs::copy(
                begun.path().join("oncegate.db"),
                folder.path().join("oncegate.db"),
            )
            .expect("copied");
            let url = sqlite_in(folder.path());
            (Gateway::again(folder, &url, &config).await, None)
        }
        Stores::Redis(url) => (Gateway::again(folder, url, &config).await, Some(new)),
        #[cfg(feature = "postgres")]
        Stores::Postgres(url) => (Gateway::again(folder, url, &config).await, Some(new)),
    };
    until("it is noticed", async || {
        old.reasons().await.contains("secret is not the one")
    })
    .await;
    pay(&old, json!({ "card": CARD }))
        .await
        .expect_problem("store-unavailable");
    old.accept_loss("it was begun anew").await.expect_ok();
    old.until_ready().await;
    let again = pay(&old, json!({ "card": "other" })).await.expect_ok();
    assert_eq!(again.at("/replayed"), true, "it was made with the new one");
    let again = pay(&old, json!({ "card": CARD })).await.expect_ok();
    assert_eq!(again.at("/replayed"), false, "the store has lost it");
    let old = match new {
        None => stores.again(old, &config).await,
        Some(new) => {
            new.until_ready().await;
            for card in [CARD, "other"] {
                let again = pay(&new, json!({ "card": card })).await.expect_ok();
                assert_eq!(again.at("/replayed"), true, "{card}");
            }
            let Some(url) = stores.shared() else {
                unreachable!()
            };
            Gateway::again(old.stop().await, url, &config).await
        }
    };
    old.until_ready().await;
    for card in [CARD, "other"] {
        let again = pay(&old, json!({ "card": card })).await.expect_ok();
        assert_eq!(again.at("/replayed"), true, "{card}");
    }
    let seen = tool.seen();
    let keys: Vec<_> = (seen.iter().map(|seen| seen.header("idempotency-key"))).collect();
    assert_eq!(keys.len(), 3);
    assert_eq!(keys[0], keys[2], "a tool that deduplicates knows it");
    old.stop().await;
}

async fn a_copy_that_no_key_opens_closes_the_store_until_accepted(stores: &Stores) {
    let tool = Tool::start().await;
    let with = |keys: &[u8]| encrypting(&tool, keys);
    let gateway = stores.gateway(&with(&[1])).await;
    pay(&gateway, json!({ "card": CARD })).await.expect_ok();
    let folder = gateway.stop().await;
    // This gateway was stopped while the keys were changed.
    let (folder, url) = match stores {
        Stores::Sqlite => {
            let (url, marks) = (
                sqlite_in(folder.path()),
                folder.path().join("oncegate.db.watermarks"),
            );
            let copy_in = |text: &str| text.lines().nth(1).expect("a copy").to_owned();
            let before = copy_in(&fs::read_to_string(&marks).expect("read"));
            let gateway = Gateway::again(folder, &url, &with(&[2, 1])).await;
            gateway.until_ready().await;
            let folder = gateway.stop().await;
            let after = fs::read_to_string(&marks).expect("read");
            let older = after.replace(&copy_in(&after), &before);
            assert_ne!(older, after);
            fs::write(&marks, older).expect("written");
            (folder, url)
        }
        Stores::Redis(url) => {
            let mut connection = connect(url).await;
            let mut get = ::redis::cmd("HGET");
            let get = get.arg(document_key()).arg("body");
            let mut sealed =
                async || -> Vec<u8> { get.query_async(&mut connection).await.expect("an answer") };
            let before = sealed().await;
            let other = Gateway::sharing(url, &with(&[2, 1])).await;
            until("it is sealed anew", async || sealed().await != before).await;
            other.stop().await;
            (folder, url.clone())
        }
        #[cfg(feature = "postgres")]
        Stores::Postgres(place) => {
            let sql = "SELECT encode(body, 'hex') FROM documents WHERE kind = 'secret'";
            let before = text_in(place, sql).await;
            let other = Gateway::sharing(place, &with(&[2, 1])).await;
            until("it is sealed anew", async || {
                text_in(place, sql).await != before
            })
            .await;
            other.stop().await;
            (folder, place.clone())
        }
    };
    let gateway = Gateway::again(folder, &url, &with(&[2])).await;
    until("it says why", async || {
        let reasons = gateway.reasons().await;
        reasons.contains("store.encryption_keys") && reasons.contains("accept-loss")
    })
    .await;
    pay(&gateway, json!({ "card": CARD }))
        .await
        .expect_problem("store-unavailable");
    gateway.accept_loss("the key is gone").await.expect_ok();
    gateway.until_ready().await;
    let again = pay(&gateway, json!({ "card": CARD })).await;
    assert_eq!(again.problem(), "result-unavailable", "it is the same call");
    let gateway = Gateway::again(gateway.stop().await, &url, &with(&[2])).await;
    gateway.until_ready().await;
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_beside_a_file_closes_the_store_until_accepted() {
    let tool = Tool::start().await;
    let config = paying(&tool, "");
    let gateway = Gateway::start(&config).await;
    pay(&gateway, json!({ "card": CARD })).await.expect_ok();
    let folder = gateway.stop().await;
    let marks = folder.path().join("oncegate.db.watermarks");
    let mut bytes = fs::read(&marks).expect("read");
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    fs::write(&marks, &bytes).expect("written");
    let url = sqlite_in(folder.path());
    // After a restart the unreadable copy still counts as a copy.
    let gateway = Gateway::again(folder, &url, &config).await;
    until("it is closed", async || {
        gateway.reasons().await.contains("accept-loss")
    })
    .await;
    let gateway = Gateway::again(gateway.stop().await, &url, &config).await;
    until("it says why", async || {
        gateway.reasons().await.contains("cannot be read")
    })
    .await;
    pay(&gateway, json!({ "card": "other" }))
        .await
        .expect_problem("store-unavailable");
    gateway.accept_loss("the copy is damaged").await.expect_ok();
    let gateway = Gateway::again(gateway.stop().await, &url, &config).await;
    gateway.until_ready().await;
    let again = pay(&gateway, json!({ "card": CARD })).await.expect_ok();
    assert_eq!(again.at("/replayed"), true);
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}
