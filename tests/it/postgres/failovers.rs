//! The primary is lost, and a standby takes its place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncegate::core::record::CallId;
use oncegate::store::postgres::Postgres as Store;
use oncegate::store::{Calls as _, Claimed, Durability, Health as _, LOST_DATA};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{folder, pair, refused};
use crate::stores::contract::{
    ME, accept_noticed_loss, arrival, claimed, ended, open_postgres, open_postgres_as_it_is,
};
use crate::support::gateway::one_tool;
use crate::support::line::Line;
use crate::support::postgres::Postgres;
use crate::support::{Act, Gateway, Tool, until};

/// Claims and ends calls until it is told to stop. Returns those whose end was acknowledged.
async fn load(store: Arc<Store>, lane: usize, until: Instant) -> Vec<CallId> {
    let mut acknowledged = Vec::new();
    let mut n = 0;
    while Instant::now() < until {
        n += 1;
        let change = arrival(&format!("l{lane}-{n}"), &format!("S{lane}"), n, ME);
        let Ok(Claimed::Yours(record)) = store.claim(&change, &[]).await else {
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        let end = ended(&record, 200, n + 1);
        if store.replace(&end, &record).await.is_ok() {
            acknowledged.push(record.intent.call_id);
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_to_a_synchronous_standby_loses_nothing_and_needs_no_operator() {
    let (mut primary, standby, place) = pair(true).await;
    let folder = folder();
    let store = Arc::new(open_postgres(&place, folder.path()).await);
    let seen = store.readiness().await;
    assert_eq!(
        seen.durability,
        Some(Durability::Strict),
        "{:?}",
        seen.warnings
    );
    let end = Instant::now() + Duration::from_secs(2);
    let mut callers = JoinSet::new();
    for lane in 0..16 {
        callers.spawn(load(store.clone(), lane, end));
    }
    sleep(Duration::from_secs(1)).await;
    primary.kill();
    let acknowledged: Vec<CallId> = callers.join_all().await.concat();
    assert!(acknowledged.len() > 50, "{}", acknowledged.len());
    // Otherwise its commits would wait for a standby of its own.
    standby.promote().await;
    standby
        .run("ALTER SYSTEM SET synchronous_standby_names = ''")
        .await;
    standby.run("SELECT pg_reload_conf()").await;
    let promoted = Instant::now();
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    assert!(
        promoted.elapsed() < Duration::from_secs(10),
        "{:?}",
        promoted.elapsed()
    );
    let mut missing = BTreeSet::new();
    for id in acknowledged {
        match store.load(id).await.expect("an answer") {
            Some(record) if record.state.as_str() == "succeeded" => {}
            _ => drop(missing.insert(id.0)),
        }
    }
    assert_eq!(missing, BTreeSet::new());
    assert_eq!(store.readiness().await.lost_writes, 0);
    claimed(&*store, &arrival("after", "S", 9, ME)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_loses_writes_is_noticed_before_anything_runs() {
    let (mut primary, mut standby, place) = pair(false).await;
    // An operator says that it is never promoted, and is wrong.
    let folder = folder();
    let store = open_postgres_as_it_is(&place, folder.path()).await;
    let why = refused(&store, "replicas").await;
    assert!(why.contains("synchronous_standby_names is empty"), "{why}");
    // Without the standby it is a strict one.
    standby.kill();
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    for n in 0..20 {
        claimed(&store, &arrival(&format!("k{n}"), "S", n, ME)).await;
    }
    primary.kill();
    standby.start_again().await;
    standby.promote().await;
    let why = refused(&store, LOST_DATA).await;
    assert!(!why.is_empty());
    let late = store.claim(&arrival("k1", "S", 60, ME), &[]).await;
    assert!(late.is_err(), "{late:?}");
    assert!(store.readiness().await.lost_writes > 0);
    accept_noticed_loss(&store).await;
    claimed(&store, &arrival("k1", "S", 61, ME)).await;
}

/// How many callers there are at each of two gateways.
const CALLERS: usize = 8;

/// Calls of callers that go on through all failovers, with their acknowledged results by key.
struct Load {
    callers: JoinSet<BTreeMap<String, String>>,
    over: Arc<AtomicBool>,
    /// They call often. What matters is that calls are under way when the primary is lost.
    often: Arc<AtomicBool>,
}

impl Load {
    fn on(gateways: &[Arc<Gateway>]) -> Self {
        let mut load = Self {
            callers: JoinSet::new(),
            over: Arc::default(),
            often: Arc::default(),
        };
        for (which, gateway) in gateways.iter().enumerate() {
            for caller in 0..CALLERS {
                let (over, often) = (load.over.clone(), load.often.clone());
                let calls = calls(gateway.clone(), format!("{which}-{caller}"), over, often);
                load.callers.spawn(calls);
            }
        }
        load
    }

    /// Waits until 100 calls more have reached the tool.
    async fn rises(&self, tool: &Tool) {
        self.often.store(true, Ordering::SeqCst);
        let before = tool.requests();
        until("there is load", async || tool.requests() > before + 100).await;
    }

    fn falls(&self) {
        self.often.store(false, Ordering::SeqCst);
    }

    async fn end(self) -> BTreeMap<String, String> {
        self.over.store(true, Ordering::SeqCst);
        self.callers
            .join_all()
            .await
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Calls again and again until it is over. Returns the acknowledged results by key.
async fn calls(
    gateway: Arc<Gateway>,
    name: String,
    over: Arc<AtomicBool>,
    often: Arc<AtomicBool>,
) -> BTreeMap<String, String> {
    let (mut acknowledged, mut n) = (BTreeMap::new(), 0);
    while !over.load(Ordering::SeqCst) {
        n += 1;
        let key = format!("{name}-{n}");
        let body = json!({ "args": { "key": key }, "session_id": name });
        let answer = gateway
            .post("act", &body, &[("idempotency-key", &key)])
            .await;
        if answer.status == 200 {
            acknowledged.insert(key, answer.result());
        }
        let often = often.load(Ordering::SeqCst);
        sleep(Duration::from_millis(if often { 50 } else { 500 })).await;
    }
    acknowledged
}

/// Sets a primary's standbys, and waits until one of them is synchronous.
async fn synchronous(primary: &mut Postgres) {
    until("it follows", async || {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        primary.ask(sql).await[0].get::<_, i64>(0) == 1
    })
    .await;
    primary.set("synchronous_standby_names = 'ANY 1 (*)'").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_failovers_of_a_postgres_under_load_lose_nothing_and_double_nothing() {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(5, Act::Numbered));
    let mut primary = Postgres::with(&[]).await;
    let lines = [Line::to(primary.port).await, Line::to(primary.port).await];
    let url = format!(
        "postgres://gate@127.0.0.1:{},127.0.0.1:{}/postgres",
        lines[0].port, lines[1].port
    );
    let config = one_tool(
        &tool,
        "retry = { attempts = 1 }\nbreaker = { failures = 100000 }",
    );
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let gateway = Gateway::sharing(&url, &config).await;
        gateway.until_ready().await;
        gateways.push(Arc::new(gateway));
    }
    let load = Load::on(&gateways);
    let mut slowest = Duration::ZERO;
    for round in 0..10 {
        let standby = primary.standby(&[]).await;
        lines[(round + 1) % 2].lead_to(standby.port);
        synchronous(&mut primary).await;
        for gateway in &gateways {
            gateway.until_ready().await;
        }
        load.rises(&tool).await;
        primary.kill();
        standby.promote().await;
        let promoted = Instant::now();
        for gateway in &gateways {
            gateway.until_ready().await;
        }
        load.falls();
        slowest = slowest.max(promoted.elapsed());
        primary = standby;
    }
    let acknowledged = load.end().await;
    assert!(
        slowest < Duration::from_secs(10),
        "ready only after {slowest:?}"
    );
    assert!(acknowledged.len() > 1_000, "{}", acknowledged.len());
    let doubled: Vec<_> = tool
        .effects_by_key()
        .into_iter()
        .filter(|(_, times)| *times > 1)
        .collect();
    assert!(doubled.is_empty(), "{doubled:?}");
    for gateway in &gateways {
        let lost = gateway.metric("oncegate_store_lost_claims_total").await;
        assert_eq!(lost, 0.0);
    }
    let requests = tool.requests();
    let mut replays = JoinSet::new();
    let keys: Vec<_> = acknowledged.into_iter().collect();
    for (n, keys) in keys.chunks(keys.len() / 16 + 1).enumerate() {
        let (gateway, keys) = (gateways[n % 2].clone(), keys.to_vec());
        replays.spawn(async move {
            for (key, result) in keys {
                let (session, _) = key.rsplit_once('-').expect("a number");
                let body = json!({ "args": { "key": key }, "session_id": session });
                let again = gateway
                    .post("act", &body, &[("idempotency-key", &key)])
                    .await;
                let again = again.expect_ok();
                assert_eq!(
                    (again.at("/replayed"), again.result()),
                    (true.into(), result),
                    "{key}"
                );
            }
        });
    }
    replays.join_all().await;
    assert_eq!(tool.requests(), requests, "nothing was sent again");
}

/// How many calls a store has.
async fn stored(server: &Postgres) -> usize {
    let rows = server.ask("SELECT count(*) FROM oncegate.names").await;
    usize::try_from(rows[0].get::<_, i64>(0)).expect("a count")
}

/// Before each failover the standby is cut off for a while, so that it lacks what was acknowledged then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_failovers_to_a_postgres_that_lags_behind_are_noticed_before_anything_runs() {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(5, Act::Numbered));
    let mut primary = Postgres::with(&[]).await;
    let lines = [Line::to(primary.port).await, Line::to(primary.port).await];
    let url = format!(
        "postgres://gate@127.0.0.1:{},127.0.0.1:{}/postgres",
        lines[0].port, lines[1].port
    );
    let config = one_tool(
        &tool,
        "retry = { attempts = 1 }\nbreaker = { failures = 100000 }\n[store]\ndurability = \"relaxed\"",
    );
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let gateway = Gateway::sharing(&url, &config).await;
        gateway.until_ready().await;
        gateways.push(Arc::new(gateway));
    }
    let load = Load::on(&gateways);
    let mut lost = 0;
    for round in 0..10 {
        let standby = primary.standby(&[]).await;
        let replication = Line::to(primary.port).await;
        let follows = format!(
            "ALTER SYSTEM SET primary_conninfo = 'user=admin host=127.0.0.1 port={}'",
            replication.port
        );
        standby.run(&follows).await;
        standby.run("SELECT pg_reload_conf()").await;
        lines[(round + 1) % 2].lead_to(standby.port);
        until("it follows over that line", async || {
            let sql = "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming' AND sender_port = ";
            let sql = format!("{sql}{}", replication.port);
            standby.ask(&sql).await[0].get::<_, i64>(0) == 1
        })
        .await;
        for gateway in &gateways {
            gateway.until_ready().await;
        }
        replication.block(true);
        replication.cut(true);
        load.rises(&tool).await;
        primary.kill();
        let mut sent = 0;
        until("what was claimed before has been sent", async || {
            let before = std::mem::replace(&mut sent, tool.requests());
            sleep(Duration::from_millis(300)).await;
            before == tool.requests()
        })
        .await;
        standby.promote().await;
        for gateway in &gateways {
            until("the loss is noticed", async || {
                gateway.reasons().await.contains("accept-loss")
            })
            .await;
        }
        assert_eq!(
            tool.requests(),
            sent,
            "nothing runs before the loss is noticed"
        );
        let missing = tool.effects().saturating_sub(lost + stored(&standby).await);
        assert!(missing > 0, "round {round}: nothing was lost");
        lost += missing;
        gateways[round % 2].accept_loss("a drill").await.expect_ok();
        for gateway in &gateways {
            gateway.until_ready().await;
        }
        load.falls();
        primary = standby;
    }
    let acknowledged = load.end().await.len();
    assert!(acknowledged > 1_000, "{acknowledged}");
    let effects = tool.effects_by_key();
    let doubled = effects.iter().filter(|(_, times)| **times > 1).count();
    assert_eq!(doubled, 0);
}
