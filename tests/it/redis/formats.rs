//! Gateways of different releases share a Redis, and it is moved to the newest format once all of them know it.

use std::fs;
use std::path::Path;

use oncegate::core::record::InstanceId;
use oncegate::store::redis::{FORMAT, Redis as RedisStore, Settings};
use oncegate::store::{Calls as _, Error, Health as _, LossRecovery as _};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::approvals;
use crate::stores::contract::{ME, accept_noticed_loss, arrival, open_redis, settings};
use crate::support::binary::{free_port, run};
use crate::support::gateway::{Bare, one_tool};
use crate::support::redis::Redis;
use crate::support::{Answer, Gateway, Tool, client, has_reason, until};

const MANIFEST: &str = "oncegate:{p000}:manifest";
const SEEN: &str = "oncegate:{p000}:seen";
const ABILITIES: &str = "oncegate:{p000}:abilities";
/// The format of 0.2.0.
const OLD: u32 = 5;

/// A store as a gateway opens it that knows no later format than this one. It is not waited for.
async fn open_of(redis: &Redis, folder: &Path, newest_format: u32) -> RedisStore {
    let settings = Settings {
        newest_format,
        ..settings(&redis.url(), folder)
    };
    RedisStore::open(settings).await.expect("a store")
}

/// The same when it is ready.
async fn open_old(redis: &Redis, folder: &Path) -> RedisStore {
    let store = open_of(redis, folder, OLD).await;
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    store
}

async fn visit(redis: &Redis) -> (RedisStore, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = RedisStore::visit(settings(&redis.url(), folder.path())).await;
    (store.expect("a store"), folder)
}

/// What `oncegate store upgrade` does.
async fn move_on(redis: &Redis) -> Result<u32, String> {
    let (store, _folder) = visit(redis).await;
    let moved = store.move_on().await;
    moved
        .map(|before| before.format)
        .map_err(|error| error.to_string())
}

async fn manifest(redis: &Redis) -> Value {
    let manifest = redis.ask(&["GET", MANIFEST]).await;
    let manifest: String = ::redis::from_redis_value(manifest).expect("a manifest");
    serde_json::from_str(&manifest).expect("JSON")
}

async fn reloads(gateway: &Gateway) -> usize {
    let acts = gateway.get("/v1/audit?act=reload").await.expect_ok();
    acts.at("/acts").as_array().expect("acts").len()
}

/// Runs `oncegate store` over a Redis, in a folder of its own.
fn store(redis: &Redis, arguments: &[&str]) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\n[store]\nurl = \"{}\"\ndurability = \"strict\"\n",
        redis.url()
    );
    fs::write(folder.path().join("oncegate.toml"), config).expect("a file");
    let all = [&["store"], arguments, &["--config", "oncegate.toml"]].concat();
    let output = run(folder.path(), &all);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).expect("text");
    (output.status.success(), said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_gateway_and_a_new_one_share_a_redis_until_an_operator_moves_it() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let folder = tempfile::tempdir().expect("a folder");
    let old_store = open_old(&redis, folder.path()).await;
    let old = Bare::over(old_store.clone(), InstanceId(Uuid::new_v4()), &tool, "").await;
    let new = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    new.until_ready().await;
    let at_old = async |key: &str| {
        let request = client().post(&old.url).header("idempotency-key", key);
        Answer::to(request.body("{\"args\":{}}")).await
    };
    assert_eq!(manifest(&redis).await["format"], OLD);

    // Each gateway replays what the other has run.
    let first = at_old("of-the-old").await.expect_ok();
    let second = new.call_with_key("of-the-new", json!({})).await.expect_ok();
    let again = new.call_with_key("of-the-old", json!({})).await.expect_ok();
    assert_eq!(again.at("/call_id"), first.at("/call_id"));
    let again = at_old("of-the-new").await.expect_ok();
    assert_eq!(again.at("/call_id"), second.at("/call_id"));
    assert_eq!(tool.requests(), 2);

    // The new gateway writes nothing that the old one does not know.
    assert!(
        new.reload(&one_tool(&tool, "retry = { attempts = 1 }"))
            .await
    );
    assert_eq!(reloads(&new).await, 0);
    // The old one would send the arguments of an erased call as they are then.
    let erase = async || Answer::to(new.client.delete(new.url("/v1/users/U"))).await;
    let refused = erase().await.expect_problem("wrong-state");
    let why = refused.at("/detail").to_string();
    assert!(why.contains("oncegate store upgrade"), "{why}");
    let refused = move_on(&redis).await.expect_err("an old gateway serves");
    assert!(refused.contains("do not know format 6"), "{refused}");
    assert_eq!(manifest(&redis).await["format"], OLD);
    let (is_done, said) = store(&redis, &["inspect", "--dry-run"]);
    assert!(
        !is_done && said.contains("formats 5 to 5") && said.contains("formats 5 to 6"),
        "{said}"
    );
    let (is_done, said) = store(&redis, &["upgrade"]);
    assert!(
        !is_done && said.contains("the store stays at format 5"),
        "{said}"
    );

    // It stops, and says so.
    old_store.close().await;
    let (is_done, said) = store(&redis, &["inspect", "--dry-run"]);
    assert!(
        is_done && said.contains(", stopped\n") && said.contains("would move it to format 6"),
        "{said}"
    );
    let (is_done, said) = store(&redis, &["upgrade"]);
    assert!(is_done && said.contains("from format 5 to 6"), "{said}");
    assert_eq!(manifest(&redis).await["format"], FORMAT);
    let (is_done, said) = store(&redis, &["upgrade"]);
    assert!(is_done && said.contains("nothing to do"), "{said}");

    until("a reload is in the audit", async || {
        assert!(new.reload(&one_tool(&tool, "")).await);
        reloads(&new).await > 0
    })
    .await;
    let again = new.call_with_key("of-the-old", json!({})).await.expect_ok();
    assert_eq!(again.at("/call_id"), first.at("/call_id"));
    new.call_with_key("later", json!({})).await.expect_ok();
    assert_eq!(tool.requests(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_does_not_know_the_format_of_a_redis_writes_nothing_and_says_why() {
    let redis = Redis::strict().await;
    let (folder, old_folder) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let new = open_redis(&redis.url(), folder.path()).await;
    assert_eq!(
        manifest(&redis).await["format"],
        FORMAT,
        "a new store has the newest"
    );
    let old = open_of(&redis, old_folder.path(), OLD).await;
    let reasons = old.readiness().await.reasons;
    let foreign = reasons.iter().find(|reason| reason.code == "foreign");
    let text = &foreign.expect("a reason").text;
    assert!(text.contains("the store has format 6"), "{text}");
    let refused = old.claim(&arrival("k", "S", 0, ME), &[]).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    old.close().await;
    // A newer one than this release knows.
    let mut newer = manifest(&redis).await;
    newer["format"] = json!(FORMAT + 1);
    redis.ask(&["SET", MANIFEST, &newer.to_string()]).await;
    until("it is noticed", async || {
        has_reason(&new.readiness().await, "foreign")
    })
    .await;
    let refused = new.claim(&arrival("k", "S", 0, ME), &[]).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    new.accept_loss("a test").await.expect_err("not its store");
    assert_eq!(manifest(&redis).await, newer);
    let (is_done, said) = store(&redis, &["inspect"]);
    assert!(
        is_done && said.contains("format 7; this release knows formats 5 to 6"),
        "{said}"
    );
    newer["format"] = json!(FORMAT);
    redis.ask(&["SET", MANIFEST, &newer.to_string()]).await;
    until("it is ready again", async || {
        new.readiness().await.reasons.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_stays_at_its_format_while_a_gateway_serves_that_says_nothing_of_itself() {
    let redis = Redis::strict().await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_old(&redis, folder.path()).await;
    until("it has announced itself", async || {
        redis.ask(&["EXISTS", ABILITIES]).await == ::redis::Value::Int(1)
    })
    .await;
    // As 0.2.0, which has no such entry.
    redis.ask(&["DEL", ABILITIES]).await;
    let refused = move_on(&redis).await.expect_err("it serves");
    assert!(refused.contains("(release 0.2.0)"), "{refused}");
    store.close().await;
    drop(store);
    let refused = move_on(&redis).await.expect_err("it may serve");
    assert!(refused.contains("(release 0.2.0)"), "{refused}");
    // As if it had been silent for three minutes.
    let seen = redis.ask(&["ZRANGE", SEEN, "0", "-1"]).await;
    let seen: Vec<String> = ::redis::from_redis_value(seen).expect("names");
    for gateway in &seen {
        redis.ask(&["ZINCRBY", SEEN, "-181000000", gateway]).await;
    }
    assert_eq!(move_on(&redis).await, Ok(OLD));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_is_taken_back_if_an_old_gateway_comes_meanwhile_and_nothing_new_was_written() {
    let redis = Redis::strict().await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_old(&redis, folder.path()).await;
    store.close().await;
    drop(store);
    let new_folder = tempfile::tempdir().expect("a folder");
    let new = open_redis(&redis.url(), new_folder.path()).await;
    let before = manifest(&redis).await;
    let comes = async {
        until("the store is moved", async || {
            manifest(&redis).await["format"] == FORMAT
        })
        .await;
        assert!(
            !new.takes_new_acts(),
            "old gateways may not have looked yet"
        );
        let now = new.readiness().await;
        assert!(now.reasons.is_empty(), "{now:?}");
        redis.ask(&["ZADD", SEEN, "9000000000000000", "old"]).await;
    };
    let (moved, ()) = tokio::join!(move_on(&redis), comes);
    let refused = moved.expect_err("an old gateway has come");
    assert!(
        refused.contains("they came while it was moved"),
        "{refused}"
    );
    assert_eq!(manifest(&redis).await, before);
    assert!(!new.takes_new_acts());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_at_an_empty_redis_sets_up_nothing() {
    let redis = Redis::strict().await;
    for act in [&["inspect"][..], &["upgrade"]] {
        let (is_done, said) = store(&redis, act);
        assert!(!is_done, "{act:?}: {said}");
    }
    assert_eq!(
        redis.ask(&["EXISTS", MANIFEST]).await,
        ::redis::Value::Int(0)
    );
}

/// The manifest is lost with the rest. What is put back may be read by old gateways, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accepted_loss_leaves_a_redis_at_its_format() {
    let redis = Redis::strict().await;
    let folder = tempfile::tempdir().expect("a folder");
    let old = open_old(&redis, folder.path()).await;
    let new_folder = tempfile::tempdir().expect("a folder");
    let new = open_redis(&redis.url(), new_folder.path()).await;
    redis.ask(&["FLUSHALL"]).await;
    accept_noticed_loss(&new).await;
    assert_eq!(manifest(&redis).await["format"], OLD);
    until("the old gateway goes on, too", async || {
        old.readiness().await.reasons.is_empty()
    })
    .await;
}

/// A gateway of 0.2.0 could not read a call that waits, and would take its key for damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_for_approval_only_once_every_gateway_can_read_them() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let folder = tempfile::tempdir().expect("a folder");
    let old = open_old(&redis, folder.path()).await;
    let gateway = Gateway::sharing(&redis.url(), &approvals::config(&tool, "")).await;
    gateway.until_ready().await;
    let asked = async || approvals::ask(&gateway, "k", json!({})).await;
    asked().await.expect_problem("store-unavailable");
    let open = approvals::get_as(&gateway, "ann", "/v1/approvals").await;
    assert_eq!(open.expect_ok().at("/approvals"), json!([]));
    old.close().await;
    drop(old);
    assert_eq!(move_on(&redis).await, Ok(OLD));
    until("it waits for approval", async || {
        asked().await.problem() == "approval-required"
    })
    .await;
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}
