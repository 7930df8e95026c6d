//! A Redis that has lost data: no call runs again by itself, and an operator opens the store again.

use std::time::Duration;

use oncegate::core::position::Position;
use oncegate::core::record::CallId;
use oncegate::gateway::local_time;
use oncegate::store::{self, Calls as _, Health as _, LOST_DATA, LossRecovery as _};
use serde_json::json;
use tokio::time::Instant;

use crate::redis::accepted::opens_for_both;
use crate::redis::shared::{call, gateway, notices};
use crate::stores::contract::{
    ME, arrival, at, claimed, ended, open_redis, redis_and_store, replaced, rerun,
};
use crate::support::binary::{accept_loss_command, free_port};
use crate::support::gateway::one_tool;
use crate::support::line::Line;
use crate::support::redis::{Redis, connect, short};
use crate::support::{Act, Answer, Gateway, Tool, has_reason, until};

/// Makes a Redis lose data. The gateway closes without an effect, and opens when an operator accepts the loss; tokens go
/// on rising.
async fn loses(
    redis: &mut Redis,
    gateway: &Gateway,
    tool: &Tool,
    lose: impl AsyncFnOnce(&mut Redis),
) {
    let session = |n: usize| json!({ "args": { "n": n }, "session_id": "S" });
    let before = gateway.post("act", &session(1), &[]).await.expect_ok();
    lose(redis).await;
    let effects = tool.effects();
    // Not even before the gateway has inspected the Redis.
    gateway
        .post("act", &session(2), &[])
        .await
        .expect_problem("store-unavailable");
    let again = gateway.post("act", &session(1), &[]).await;
    assert!(
        again.status == 503 || again.at("/replayed") == true,
        "{}",
        again.text
    );
    notices(gateway, "accept-loss").await;
    gateway
        .post("act", &session(3), &[])
        .await
        .expect_problem("store-unavailable");
    assert_eq!(tool.effects(), effects, "no effect meanwhile");
    assert_eq!(gateway.metric("oncegate_store_ready").await, 0.0);
    assert!(gateway.metric("oncegate_store_lost_claims_total").await > 0.0);
    gateway
        .accept_loss(" ")
        .await
        .expect_problem("invalid-request");
    gateway.accept_loss("it was flushed").await.expect_ok();
    gateway.until_ready().await;
    gateway
        .accept_loss("again")
        .await
        .expect_problem("wrong-state");
    // The loss explains a token that the session gave out before, but no token far above it.
    let brings = |n: usize, token: u64| json!({ "args": { "n": n }, "session_id": "S", "fencing_token": token });
    let given = before.at("/fencing").as_u64().expect("a token");
    let made_up = brings(4, given + 7_190_000_000);
    gateway
        .post("act", &made_up, &[])
        .await
        .expect_problem("invalid-request");
    assert_eq!(
        gateway
            .post("act", &brings(5, given), &[])
            .await
            .expect_ok()
            .at("/fencing"),
        given
    );
    let after = gateway.post("act", &session(2), &[]).await.expect_ok();
    let token = |answer: &Answer| answer.at("/fencing").as_u64().expect("a token");
    assert!(
        token(&after) > token(&before),
        "{} after {}",
        token(&after),
        token(&before)
    );
}

#[tokio::test]
async fn a_flushed_redis_is_noticed_before_anything_runs_again() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    loses(&mut redis, &gateway, &tool, async |redis| {
        redis.ask(&["FLUSHALL"]).await;
    })
    .await;
    // The gateway has put the remembered call back, so its result is replayed.
    let replay = gateway
        .post(
            "act",
            &json!({ "args": { "n": 1 }, "session_id": "S" }),
            &[],
        )
        .await;
    assert_eq!(replay.expect_ok().at("/replayed"), true);
    assert_eq!(tool.effects(), 3);
}

#[tokio::test]
async fn an_older_snapshot_is_noticed_before_anything_runs_again() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    call(&gateway, 99).await.expect_ok();
    let snapshot = redis.snapshot();
    loses(&mut redis, &gateway, &tool, async |redis| {
        redis.restore(snapshot.path()).await
    })
    .await;
}

#[tokio::test]
async fn a_call_that_one_gateway_lost_does_not_run_again_at_another() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let line = Line::to(redis.port).await;
    let one = gateway(&redis, &tool, "").await;
    let other = Gateway::sharing(&line.url(), &one_tool(&tool, "")).await;
    other.until_ready().await;
    call(&other, 0).await.expect_ok();
    let snapshot = redis.snapshot();
    for n in 1..=5 {
        call(&other, n).await.expect_ok();
    }
    // Only the other gateway knows what is missing, and it is cut off for a while.
    line.block(true);
    redis.restore(snapshot.path()).await;
    let until = Instant::now() + Duration::from_secs(1);
    for n in (1..=5).cycle() {
        if Instant::now() >= until {
            break;
        }
        call(&one, n).await.expect_problem("store-unavailable");
    }
    line.block(false);
    notices(&one, "accept-loss").await;
    assert_eq!(
        tool.effects(),
        6,
        "the gateway ran nothing while it waited for the other"
    );
}

#[tokio::test]
async fn a_newcomer_does_not_take_an_emptied_redis_for_a_new_one() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let start = async || Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    let gateway = start().await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
    redis.ask(&["FLUSHALL"]).await;
    let newcomer = start().await;
    // Until the loss is noticed no call may run.
    until("the loss is noticed", async || {
        if newcomer.reasons().await.contains("accept-loss") {
            return true;
        }
        let again = call(&newcomer, 1).await;
        assert!(
            again.status == 503 || again.at("/replayed") == true,
            "{}",
            again.text
        );
        call(&newcomer, 2).await.expect_problem("store-unavailable");
        false
    })
    .await;
    opens_for_both(&newcomer, &gateway, "it was emptied").await;
    assert_eq!(tool.effects(), 1);
}

#[tokio::test]
async fn a_gateway_that_starts_again_notices_what_was_lost_while_it_was_away() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    let newcomer = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    call(&gateway, 1).await.expect_ok();
    let config = one_tool(&tool, "");
    let folder = gateway.stop().await;
    redis.ask(&["FLUSHALL"]).await;
    notices(&newcomer, "accept-loss").await;
    let gateway = Gateway::again(folder, &redis.url(), &config).await;
    notices(&gateway, "accept-loss").await;
    call(&gateway, 1).await.expect_problem("store-unavailable");
    assert_eq!(tool.effects(), 1);

    // The command line does the same as the HTTP route, and every gateway with the old epoch follows.
    let text = format!(
        "[store]\nurl = \"{}\"\nwatermarks = \"watermarks\"\n{config}",
        redis.url()
    );
    std::fs::write(gateway.folder().join("oncegate.toml"), text).expect("a file");
    let accept = || accept_loss_command(gateway.folder(), "flushed by accident");
    let accepted = accept();
    let said = String::from_utf8_lossy(&accepted.stdout).into_owned();
    assert!(
        said.starts_with("the loss is accepted; 0 calls became unknown; "),
        "{said}"
    );
    assert!(said.contains("frozen"), "{said}");
    gateway.until_ready().await;
    newcomer.until_ready().await;
    let refused = accept();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("has not lost any data"),
        "{said}"
    );
}

#[tokio::test]
async fn a_failed_call_that_may_have_run_again_is_unknown_after_an_accepted_loss() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "retry = { attempts = 1 }").await;
    tool.then(Act::Answer(429, "", b"{}"));
    call(&gateway, 1).await.expect_problem("tool-unavailable");
    let snapshot = redis.snapshot();
    call(&gateway, 1).await.expect_ok();
    // Only another gateway is left, which does not remember the call.
    let config = one_tool(&tool, "");
    let other = Gateway::sharing(&redis.url(), &config).await;
    other.until_ready().await;
    call(&other, 2).await.expect_ok();
    drop(gateway.stop().await);
    redis.restore(snapshot.path()).await;
    notices(&other, "accept-loss").await;
    let accepted = other
        .accept_loss("an older snapshot was restored")
        .await
        .expect_ok();
    assert_eq!(accepted.at("/calls_now_unknown"), 1);
    let doubtful = call(&other, 1).await.expect_problem("outcome-unknown");
    let record = other.record(&doubtful).await;
    assert_eq!(record.at("/events/2/event"), "store_lost");
    assert_eq!(tool.effects(), 2);
}

#[tokio::test]
async fn an_outcome_replaces_an_older_version_of_its_call_as_a_whole() {
    let redis = Redis::strict().await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_redis(&redis.url(), folder.path()).await;
    let first = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let failed = replaced(&store, &ended(&first, 429, 1), &first).await;
    let keys: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", "oncegate:*:call:*"]).await).expect("keys");
    redis.ask(&["COPY", &keys[0], "before"]).await;
    let second = replaced(&store, &rerun(&failed, 2), &failed).await;
    redis.ask(&["COPY", "before", &keys[0], "REPLACE"]).await;

    // A new attempt is refused, and a known outcome is not lost.
    let retry = store.replace(&rerun(&failed, 2), &second).await;
    assert!(matches!(retry, Err(store::Error::Refused(_))), "{retry:?}");
    let done = replaced(&store, &ended(&second, 200, 3), &second).await;
    assert_eq!(
        store.load(done.intent.call_id).await.expect("an answer"),
        Some(done.clone())
    );
    assert_eq!(
        store
            .holders(&[done.intent.lookup])
            .await
            .expect("an answer")[0]
            .record,
        done
    );

    // The same if the call is gone.
    until("the store has been inspected", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    let running = claimed(&store, &arrival("gone", "S", 4, ME)).await;
    let all: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", "oncegate:*:call:*"]).await).expect("keys");
    let gone = all
        .iter()
        .find(|key| key.ends_with(&short(running.intent.call_id.0.as_bytes())))
        .expect("its key");
    redis.ask(&["DEL", gone]).await;
    let done = replaced(&store, &ended(&running, 200, 5), &running).await;
    assert_eq!(
        store.load(done.intent.call_id).await.expect("an answer"),
        Some(done)
    );
}

#[tokio::test]
async fn after_a_loss_the_last_whole_inspection_tells_until_when_redis_has_everything() {
    let (redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let before = local_time();
    let store = open_redis(&redis.url(), folder.path()).await;
    // The first inspection has seen everything that was written before it.
    let seen = local_time();
    let whole_until = async || store.whole_until().await.expect("an answer");
    claimed(&store, &arrival("k", "S", 0, ME)).await;
    assert_eq!(whole_until().await, None, "nothing is lost");
    let is_lost = async || {
        let reasons = store.readiness().await.reasons;
        reasons.iter().any(|reason| reason.code == LOST_DATA)
    };
    redis.ask(&["FLUSHALL"]).await;
    until("the loss is noticed", is_lost).await;
    let until_then = whole_until().await.expect("a moment");
    assert!(before <= until_then && until_then <= seen, "{until_then}");
    store.accept_loss("flushed").await.expect("accepted");
    assert!(!is_lost().await);
    assert_eq!(whole_until().await, None, "the store counts as whole");
}

/// There may be millions: neither the store nor the gateway holds all of them at once.
#[tokio::test]
async fn calls_at_risk_are_read_in_pages_and_none_is_left_out() {
    let (redis, _folder, store) = redis_and_store().await;
    let running = claimed(&store, &arrival("running", "S", 0, ME)).await;
    let mut all = vec![running.intent.call_id];
    for some in 0..30_u128 {
        let ids: Vec<CallId> = (0..100)
            .map(|n| CallId(uuid::Uuid::from_u128(some * 100 + n + 1)))
            .collect();
        let key = format!(
            "oncegate:{{p{:03}}}:{}",
            some % 3,
            ["failed", "unknown"][some as usize % 2]
        );
        let mut add = ::redis::cmd("ZADD");
        add.arg(key);
        for id in &ids {
            let (created_at, id) = (at(0), id.0);
            add.arg(1).arg(&Position { created_at, id }.to_bytes()[..]);
        }
        let added = add.query_async(&mut connect(&redis.url()).await).await;
        let () = added.expect("added");
        all.extend(ids);
    }
    let (mut met, mut from) = (Vec::new(), Some(String::new()));
    while let Some(here) = from {
        let (page, next) = store
            .calls_at_risk_after_loss(&here, 100)
            .await
            .expect("a page");
        assert!(page.len() <= 200, "{} at once", page.len());
        met.extend(page);
        from = next;
    }
    met.sort();
    met.dedup();
    all.sort();
    assert!(met == all, "{} of {}", met.len(), all.len());
}

/// The act of an operator on a session is counted like any other write.
#[tokio::test]
async fn a_lost_freeze_is_noticed_before_the_session_writes() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let one = gateway(&redis, &tool, "").await;
    one.act("a", json!({})).await.expect_ok();
    for (what, undone) in [("freeze", "thaw"), ("thaw", "freeze")] {
        let snapshot = redis.snapshot();
        one.person(what).await.expect_ok();
        redis.restore(snapshot.path()).await;
        notices(&one, "accept-loss").await;
        one.accept_loss("restored").await.expect_ok();
        one.until_ready().await;
        one.person(undone).await.expect_problem("wrong-state");
        one.person(what).await.expect_ok();
    }
    one.act("b", json!({})).await.expect_ok();

    // The same if only the file of watermarks knows of the act.
    let snapshot = redis.snapshot();
    one.person("freeze").await.expect_ok();
    let folder = one.stop().await;
    redis.restore(snapshot.path()).await;
    let one = Gateway::again(folder, &redis.url(), &one_tool(&tool, "")).await;
    notices(&one, "accept-loss").await;
    one.act("c", json!({}))
        .await
        .expect_problem("store-unavailable");
    assert_eq!(tool.effects(), 2, "the session was frozen");
    let accepted = one.accept_loss("restored").await.expect_ok();
    assert!(
        accepted
            .at("/notice")
            .as_str()
            .is_some_and(|notice| notice.contains("frozen")),
        "{}",
        accepted.text
    );
}

/// The older copy has a lock that an operator has taken from its call.
#[tokio::test]
async fn a_lost_unlock_is_noticed_before_the_session_writes() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let rules = "session = \"exclusive\"\nsession_wait = \"0s\"";
    let one = gateway(&redis, &tool, rules).await;
    tool.then(Act::ExecuteThenDrop);
    one.act("a", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let snapshot = redis.snapshot();
    one.person("unlock").await.expect_ok();
    let folder = one.stop().await;
    redis.restore(snapshot.path()).await;
    let one = Gateway::again(folder, &redis.url(), &one_tool(&tool, rules)).await;
    notices(&one, "accept-loss").await;
    one.act("b", json!({}))
        .await
        .expect_problem("store-unavailable");
    assert_eq!(tool.effects(), 1);
}

/// A server with `config/redis.conf` unchanged, killed when dropped.
struct Shipped(std::process::Child);

impl Shipped {
    fn start(folder: &std::path::Path, port: u16) -> Self {
        let config = concat!(env!("CARGO_MANIFEST_DIR"), "/config/redis.conf");
        let mut command = std::process::Command::new("redis-server");
        command
            .args([config, "--port", &port.to_string()])
            .current_dir(folder);
        let quiet = command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        Self(quiet.spawn().expect("redis-server starts"))
    }
}

impl Drop for Shipped {
    fn drop(&mut self) {
        self.0.kill().expect("it lives");
        self.0.wait().expect("it ends");
    }
}

/// Redis reads its own file as the default user. If that user had no permissions, every write of a script would be
/// missing.
#[tokio::test]
async fn the_shipped_redis_conf_keeps_all_data_over_a_kill() {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    let (redis, tool) = (Shipped::start(folder.path(), port), Tool::start().await);
    let url = format!("redis://gate:change-this-password@127.0.0.1:{port}");
    let gateway = Gateway::sharing(&url, &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
    drop(redis);
    until("the Redis is gone", async || {
        gateway.get("/readyz").await.status == 503
    })
    .await;
    let _redis = Shipped::start(folder.path(), port);
    gateway.until_ready().await;
    assert_eq!(call(&gateway, 1).await.expect_ok().at("/replayed"), true);
    assert_eq!(tool.effects(), 1);
}

/// A stored state may be older than the newest one until the lost writes are put back.
#[tokio::test]
async fn while_redis_may_have_lost_data_no_call_is_due() {
    let (redis, _folder, store) = redis_and_store().await;
    claimed(&store, &arrival("k", "S", 0, ME)).await;
    let due = async || {
        store
            .due(at(9_999_999), 9)
            .await
            .expect("an answer")
            .calls
            .len()
    };
    assert_eq!(due().await, 1);
    redis.ask(&["DEL", "oncegate:{p001}:marks"]).await;
    until("the loss is noticed", async || {
        has_reason(&store.readiness().await, LOST_DATA)
    })
    .await;
    assert_eq!(due().await, 0);
    store.accept_loss("a test").await.expect("accepted");
    until("the call is due again", async || due().await == 1).await;
}
