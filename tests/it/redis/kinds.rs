//! Kinds of Redis: as `config/redis.conf` sets it up, over TLS, as a cluster, with replicas and Sentinels.

use std::sync::Arc;

use oncegate::store::redis::Redis as RedisStore;
use oncegate::store::{Calls as _, Durability, Error, Health as _};
use serde_json::json;
use tokio::task::JoinSet;

use crate::redis::shared::{call, gateway, notices};
use crate::stores::contract::{ME, arrival, claimed, ended, settings};
use crate::support::gateway::one_tool;
use crate::support::line::Line;
use crate::support::redis::{Cluster, Redis, Sentinel, TlsRedis};
use crate::support::{Act, Gateway, Tool, until};

/// The configuration that operators are told to copy.
const CONFIGURED: &str = include_str!("../../../config/redis.conf");

/// The user that operators are told to create. It has only the permissions that a gateway needs.
pub(crate) fn minimal_user() -> Vec<String> {
    let user = CONFIGURED
        .lines()
        .find(|line| line.starts_with("user gate "))
        .expect("a user");
    assert!(
        include_str!("../../../docs/redis.md").contains(user),
        "docs/redis.md has the same user"
    );
    let rules = user
        .trim_start_matches("user gate ")
        .replace(">change-this-password", ">s3cret");
    ["ACL", "SETUSER", "gate", "reset"]
        .into_iter()
        .chain(rules.split(' '))
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn the_shipped_redis_conf_is_strict_without_a_warning() {
    let lines = CONFIGURED
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with(['#', ' ']));
    let settings = lines
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, value)| !value.starts_with("default off"));
    let settings: Vec<_> = settings
        .map(|(name, value)| (name, value.trim_matches('"')))
        .collect();
    assert!(settings.len() > 6, "{settings:?}");
    let (redis, tool) = (Redis::with(&settings).await, Tool::start().await);
    let url = redis.url().replace("://", "://gate:change-this-password@");
    let gateway = Gateway::sharing(&url, &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    let ready = gateway.get("/readyz").await.expect_ok();
    assert_eq!(
        (ready.at("/durability"), ready.at("/warnings")),
        ("strict".into(), json!([]))
    );
    call(&gateway, 1).await.expect_ok();
}

#[tokio::test]
async fn a_gateway_works_over_tls_as_a_user_with_the_least_permissions() {
    let (redis, tool) = (TlsRedis::start().await, Tool::start().await);
    let command = minimal_user();
    redis
        .redis
        .ask(&command.iter().map(String::as_str).collect::<Vec<_>>())
        .await;
    let url = redis.url().replace("://", "://gate:s3cret@");
    let ca = format!("[store]\nca = \"{}\"\n", redis.ca.display());
    let one = Gateway::sharing(&url, &format!("{ca}{}", one_tool(&tool, ""))).await;
    let other = Gateway::sharing(&url, &format!("{ca}{}", one_tool(&tool, ""))).await;
    for gateway in [&one, &other] {
        gateway.until_ready().await;
        let ready = gateway.get("/readyz").await.expect_ok();
        assert!(
            !ready.at("/warnings").to_string().contains("default"),
            "{}",
            ready.text
        );
    }
    tool.always(Act::after_ms(400, Act::Numbered));
    let (first, joined) = tokio::join!(call(&one, 1), async {
        until("the call runs", async || tool.requests() == 1).await;
        call(&other, 1).await
    });
    assert_eq!(first.expect_ok().result(), joined.expect_ok().result());
    tool.always(Act::Answer(429, "", b"{}"));
    call(&one, 2).await.expect_problem("tool-unavailable");
    tool.always(Act::Numbered);
    call(&other, 2).await.expect_ok();
    assert_eq!(
        one.metric("oncegate_store_errors_total{kind=\"ambiguous\",operation=\"claim\"}")
            .await,
        0.0
    );

    // A missing permission is found before a call, a forgotten gateway or an act of an operator needs it.
    for missing in ["hincrby", "rename", "lpush"] {
        let allow = async |sign: &str| {
            let rule = format!("{sign}{missing}");
            redis.redis.ask(&["ACL", "SETUSER", "gate", &rule]).await
        };
        allow("-").await;
        let third = Gateway::sharing(&url, &format!("{ca}{}", one_tool(&tool, ""))).await;
        notices(&third, "a trial of the scripts failed").await;
        allow("+").await;
    }

    let stranger = Gateway::sharing(&url, &one_tool(&tool, "")).await;
    notices(&stranger, "not reached").await;
}

#[tokio::test]
async fn a_redis_that_forbids_config_is_as_durable_as_its_operator_declares() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let mut command = minimal_user();
    command.push("-config".into());
    redis
        .ask(&command.iter().map(String::as_str).collect::<Vec<_>>())
        .await;
    let url = redis.url().replace("://", "://gate:s3cret@");
    let silent = Gateway::sharing(&url, &one_tool(&tool, "")).await;
    notices(&silent, "declared_durability").await;
    let declared = "[store]\ndeclared_durability = \"strict\"\n";
    let gateway = Gateway::sharing(&url, &format!("{declared}{}", one_tool(&tool, ""))).await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_the_promise_and_its_tokens_rise() {
    let (cluster, tool) = (Cluster::start().await, Tool::start().await);
    tool.always(Act::after_ms(100, Act::Numbered));
    let config = one_tool(&tool, "");
    let one = Gateway::sharing(&cluster.url(), &config).await;
    let other = Gateway::sharing(&cluster.url(), &config).await;
    one.until_ready().await;
    other.until_ready().await;
    let mut last = 0;
    for n in 0..20 {
        let body = json!({ "args": { "n": n }, "session_id": "S" });
        let (first, second) =
            tokio::join!(one.post("act", &body, &[]), other.post("act", &body, &[]));
        let (first, second) = (first.expect_ok(), second.expect_ok());
        assert_eq!(first.result(), second.result());
        let token = first.at("/fencing").as_u64().expect("a token");
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    assert_eq!(tool.effects(), 20);
    // One of three masters loses everything.
    cluster.nodes[0].ask(&["FLUSHALL"]).await;
    notices(&one, "accept-loss").await;
    call(&one, 99).await.expect_problem("store-unavailable");
    assert_eq!(tool.effects(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_write_is_on_a_replica_before_it_is_acknowledged() {
    let tool = Tool::start().await;
    let redis = Redis::with(&[("min-replicas-to-write", "1")]).await;
    let replica = redis.replica().await;
    let gateway = gateway(&redis, &tool, "[store]\ndurability = \"bounded\"").await;
    assert_eq!(gateway.get("/readyz").await.at("/durability"), "bounded");
    call(&gateway, 1).await.expect_ok();
    replica.pause();
    // The master takes the claim, but it is not acknowledged, and nothing is sent.
    call(&gateway, 2).await.expect_problem("store-unavailable");
    assert_eq!(tool.effects(), 1);
    replica.resume();
    until("the claim is on the replica", async || {
        call(&gateway, 2).await.status == 200
    })
    .await;
    // An outcome is not acknowledged either until it is on the replica.
    tool.then(Act::after_ms(500, Act::Numbered));
    let running = call(&gateway, 3);
    let cut_off = async {
        until("the call runs", async || tool.requests() == 3).await;
        replica.pause();
    };
    let (held_back, ()) = tokio::join!(running, cut_off);
    held_back.expect_problem("outcome-unknown");
    replica.resume();
    until("the outcome is on the replica", async || {
        call(&gateway, 3).await.status == 200
    })
    .await;
    assert_eq!(tool.effects(), 3);
}

/// The act of an operator must not be lost with the master either.
#[tokio::test(flavor = "multi_thread")]
async fn an_act_on_a_session_is_on_a_replica_before_it_is_acknowledged() {
    let tool = Tool::start().await;
    let redis = Redis::with(&[("min-replicas-to-write", "1")]).await;
    let replica = redis.replica().await;
    let rules = "session = \"exclusive\"\nsession_wait = \"0s\"\n[store]\ndurability = \"bounded\"";
    let gateway = gateway(&redis, &tool, rules).await;
    tool.then(Act::ExecuteThenDrop);
    gateway
        .act("holds", json!({}))
        .await
        .expect_problem("outcome-unknown");
    for what in ["unlock", "freeze", "thaw"] {
        replica.pause();
        gateway
            .person(what)
            .await
            .expect_problem("store-unavailable");
        replica.resume();
        until("the act is on the replica", async || {
            matches!(gateway.person(what).await.status, 200 | 409)
        })
        .await;
    }
    gateway.act("next", json!({})).await.expect_ok();
    assert_eq!(tool.effects(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_is_confirmed_by_replicas_also_when_memory_is_full() {
    let tool = Tool::start().await;
    let redis = Redis::with(&[("min-replicas-to-write", "1")]).await;
    let _replica = redis.replica().await;
    let gateway = gateway(&redis, &tool, "[store]\ndurability = \"bounded\"").await;
    tool.then(Act::after_ms(300, Act::Numbered));
    let running = call(&gateway, 1);
    let filling = async {
        until("the call runs", async || tool.requests() == 1).await;
        redis.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    };
    let (ended, ()) = tokio::join!(running, filling);
    ended.expect_ok();
}

/// Otherwise a failover could take back an outcome that was shown.
#[tokio::test]
async fn an_outcome_is_shown_only_when_a_replica_has_it() {
    let redis = Redis::with(&[("min-replicas-to-write", "1")]).await;
    let replica = redis.replica().await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut settings = settings(&redis.url(), folder.path());
    settings.durability = Durability::Bounded;
    let store = RedisStore::open(settings).await.expect("a store");
    until("the store is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    let running = claimed(&store, &arrival("k", "S", 0, ME)).await;
    replica.pause();
    let change = ended(&running, 200, 1);
    let written = store.replace(&change, &running).await;
    assert!(matches!(written, Err(Error::Ambiguous(_))), "{written:?}");
    let id = running.intent.call_id;
    let shown = store.load(id).await;
    assert!(matches!(shown, Err(Error::Ambiguous(_))), "{shown:?}");
    replica.resume();
    until("it is shown", async || {
        let shown = store.load(id).await;
        shown.is_ok_and(|shown| shown.is_some_and(|shown| shown.state == change.record.state))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_replicas_is_bounded_and_survives_the_loss_of_a_master() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let mut cluster = Cluster::start().await;
    let _replicas = cluster.replicas().await;
    let strict = Gateway::sharing(&cluster.url(), &one_tool(&tool, "")).await;
    notices(&strict, "a failover may lose").await;
    let config = format!("[store]\ndurability = \"bounded\"\n{}", one_tool(&tool, ""));
    let gateway = Arc::new(Gateway::sharing(&cluster.url(), &config).await);
    gateway.until_ready().await;
    assert_eq!(gateway.get("/readyz").await.at("/durability"), "bounded");
    let mut callers = JoinSet::new();
    for n in 0..50 {
        let gateway = gateway.clone();
        callers.spawn(async move { (n, call(&gateway, n).await.expect_ok().result()) });
    }
    let acknowledged = callers.join_all().await;
    cluster.nodes[0].kill();
    until("the lost master is noticed", async || {
        gateway.get("/readyz").await.status == 503
    })
    .await;
    // The replica becomes the master, but takes no write until it has a replica itself.
    until("the replica is the master", async || {
        gateway.reasons().await.contains("0 replicas are connected")
    })
    .await;
    call(&gateway, 99).await.expect_problem("store-unavailable");
    cluster.nodes[0].start_again().await;
    gateway.until_ready().await;
    for (n, result) in &acknowledged {
        let replay = call(&gateway, *n).await.expect_ok();
        assert_eq!(
            (&replay.result(), replay.at("/replayed")),
            (result, true.into())
        );
    }
    assert_eq!(tool.effects(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_cluster_a_freeze_waits_for_a_replica() {
    let (cluster, tool) = (Cluster::start().await, Tool::start().await);
    let replicas = cluster.replicas().await;
    let config = format!("[store]\ndurability = \"bounded\"\n{}", one_tool(&tool, ""));
    let gateway = Gateway::sharing(&cluster.url(), &config).await;
    gateway.until_ready().await;
    gateway.person("freeze").await.expect_ok();
    gateway.person("thaw").await.expect_ok();
    replicas.iter().for_each(Redis::pause);
    gateway
        .person("freeze")
        .await
        .expect_problem("store-unavailable");
    replicas.iter().for_each(Redis::resume);
}

#[tokio::test]
async fn a_replica_of_another_master_is_no_proof() {
    let tool = Tool::start().await;
    let bounded = [("min-replicas-to-write", "1")];
    let (written, other) = (Redis::with(&bounded).await, Redis::with(&bounded).await);
    let _replicas = (written.replica().await, other.replica().await);
    let line = Line::to(written.port).await;
    let config = format!("[store]\ndurability = \"bounded\"\n{}", one_tool(&tool, ""));
    let gateway = Gateway::sharing(&line.url(), &config).await;
    gateway.until_ready().await;
    // The connection for `WAIT` is made again when it is needed, and leads to the other master then.
    line.lead_to(other.port);
    let clients: String =
        ::redis::from_redis_value(written.ask(&["CLIENT", "LIST"]).await).expect("a list");
    let waits = clients
        .lines()
        .filter(|client| client.contains(" cmd=wait "));
    let ids: Vec<&str> = waits
        .filter_map(|client| client.strip_prefix("id=")?.split(' ').next())
        .collect();
    assert!(!ids.is_empty(), "{clients}");
    for id in ids {
        written.ask(&["CLIENT", "KILL", "ID", id]).await;
    }
    call(&gateway, 1).await.expect_problem("store-unavailable");
    assert_eq!(tool.requests(), 0);
    line.lead_to(written.port);
    until("the right master is asked", async || {
        call(&gateway, 1).await.status == 200
    })
    .await;
    assert_eq!(tool.effects(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_the_new_master_has_all_acknowledged_writes() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let bounded = [("min-replicas-to-write", "1")];
    let mut master = Redis::with(&bounded).await;
    let (one, two) = (master.replica().await, master.replica().await);
    for replica in [&one, &two] {
        replica
            .ask(&["CONFIG", "SET", "min-replicas-to-write", "1"])
            .await;
    }
    let sentinel = Sentinel::of(&master).await;
    let config = format!("[store]\ndurability = \"bounded\"\n{}", one_tool(&tool, ""));
    let gateway = Gateway::sharing(&sentinel.url(), &config).await;
    gateway.until_ready().await;
    let mut acknowledged = Vec::new();
    for n in 0..50 {
        acknowledged.push(call(&gateway, n).await.expect_ok().result());
    }
    master.kill();
    call(&gateway, 99).await.expect_problem("store-unavailable");
    notices(&gateway, "not reached").await;
    gateway.until_ready().await;
    for (n, result) in acknowledged.iter().enumerate() {
        let replay = call(&gateway, n).await.expect_ok();
        assert_eq!(
            (&replay.result(), replay.at("/replayed")),
            (result, true.into())
        );
    }
    call(&gateway, 100).await.expect_ok();
    assert!(tool.effects_by_key().values().all(|effects| *effects == 1));
}

/// As after a failover to a replica that lacks the newest write.
#[tokio::test]
async fn the_loss_of_a_bounded_redis_can_be_accepted_at_the_gateway_that_lost_a_write() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let redis = Redis::with(&[("min-replicas-to-write", "1")]).await;
    let _replica = redis.replica().await;
    let gateway = gateway(&redis, &tool, "[store]\ndurability = \"bounded\"").await;
    let first = call(&gateway, 1).await.expect_ok();
    let mut lost = 0;
    for partition in 0..64 {
        let mut counts = redis.counts(partition).await;
        for count in counts.values_mut().filter(|count| **count > 1) {
            *count -= 1;
            lost += 1;
        }
        redis.set_counts(partition, &counts).await;
    }
    assert!(lost > 0, "the call was counted");
    notices(&gateway, "accept-loss").await;
    // The remaining writes are on the replica, and are shown.
    until("the call is replayed", async || {
        call(&gateway, 1).await.status == 200
    })
    .await;
    gateway.accept_loss("a test").await.expect_ok();
    gateway.until_ready().await;
    assert_eq!(call(&gateway, 1).await.expect_ok().result(), first.result());
    call(&gateway, 2).await.expect_ok();
    assert_eq!(tool.effects(), 2);
}
