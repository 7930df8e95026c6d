//! A server that does not answer: a standby that is silent, a commit that hangs, a stopped process.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use oncegate::store::postgres::Postgres as Store;
use oncegate::store::{Calls as _, Claimed, Error, Health as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{folder, pair, refused};
use crate::redis::shared::call;
use crate::stores::contract::{ME, arrival, claimed, open_postgres};
use crate::support::gateway::one_tool;
use crate::support::line::Line;
use crate::support::postgres::{Postgres, connect, lock_sql};
use crate::support::{Gateway, PATIENCE, Tool, until};

/// Claims until the store says whose the call is.
async fn until_claimed(store: &Store, key: &str) -> oncegate::core::record::Record {
    let change = arrival(key, "S", 1, ME);
    claim_until_answered(store, &change).await
}

async fn claim_until_answered(
    store: &Store,
    change: &oncegate::core::call::Change,
) -> oncegate::core::record::Record {
    let patience = Instant::now() + PATIENCE;
    loop {
        match store.claim(change, &[]).await {
            Ok(Claimed::Yours(record)) => return record,
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(Instant::now() < patience, "{error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn ready(store: &Store) {
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
}

/// How many rows the call of this change has.
async fn rows(server: &Postgres, change: &oncegate::core::call::Change) -> i64 {
    let id = change.record.intent.call_id.0;
    let sql = format!("SELECT count(*) FROM pair.states WHERE call_id = '{id}'");
    server.ask(&sql).await[0].get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_wait_for_a_standby_of_postgres_is_in_doubt_and_no_success() {
    let (primary, standby, place) = pair(true).await;
    let folder = folder();
    let store = open_postgres(&place, folder.path()).await;
    claimed(&store, &arrival("before", "S", 0, ME)).await;
    let change = arrival("cancelled", "S", 1, ME);
    // PostgreSQL answers a cancelled wait with success and a warning. A beat has no locks, and is not cancelled.
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'
        AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";
    let cancelling = async || -> Infallible {
        loop {
            primary.ask(cancel).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    let mut tries = 0;
    let claim = loop {
        standby.pause();
        let claim = tokio::select! {
            claim = store.claim(&change, &[]) => claim,
            never = cancelling() => match never {},
        };
        tries += 1;
        // The gateway's own beat may wait first. Then nothing is sent of the claim.
        if !matches!(claim, Err(Error::Refused(_))) || tries == 5 {
            break claim;
        }
        standby.resume();
        ready(&store).await;
    };
    assert!(matches!(claim, Err(Error::Ambiguous(_))), "{claim:?}");
    assert_eq!(
        rows(&primary, &change).await,
        1,
        "it is there, on one machine"
    );
    until("it is not ready", async || {
        !store.readiness().await.reasons.is_empty()
    })
    .await;
    standby.resume();
    let record = claim_until_answered(&store, &change).await;
    assert_eq!(record.intent.call_id, change.record.intent.call_id);
    assert_eq!(rows(&primary, &change).await, 1);
    ready(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_postgres_that_hangs_keeps_its_name_and_is_there_once() {
    let (primary, standby, place) = pair(true).await;
    let folder = folder();
    let store = open_postgres(&place, folder.path()).await;
    claimed(&store, &arrival("before", "S", 0, ME)).await;
    let change = arrival("hangs", "S", 1, ME);
    let mut tries = 0;
    let first = loop {
        standby.pause();
        let first = store.claim(&change, &[]).await;
        tries += 1;
        // The gateway's own beat may hang first. Then nothing is sent of the claim.
        if !matches!(first, Err(Error::Refused(_))) || tries == 5 {
            break first;
        }
        standby.resume();
        ready(&store).await;
    };
    assert!(matches!(first, Err(Error::Ambiguous(_))), "{first:?}");
    let unseen = store.load(change.record.intent.call_id).await;
    assert_eq!(unseen.ok().flatten(), None, "nothing is told of it yet");
    let why = refused(&store, "beat").await;
    assert!(why.contains("standby"), "{why}");
    // Another call must not get its name meanwhile.
    let other = store.claim(&arrival("hangs", "S", 2, ME), &[]).await;
    assert!(other.is_err(), "{other:?}");
    standby.resume();
    let record = claim_until_answered(&store, &change).await;
    assert_eq!(record.intent.call_id, change.record.intent.call_id);
    assert_eq!(rows(&primary, &change).await, 1);
    ready(&store).await;
    let late = store.claim(&arrival("hangs", "S", 3, ME), &[]).await;
    assert!(matches!(late, Ok(Claimed::Existing(held)) if held == record));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_backend_of_postgres_keeps_its_names_alone() {
    let server = Postgres::with(&[]).await;
    let (one, other) = (folder(), folder());
    let place = format!("{}#pair", server.url());
    let stopped = open_postgres(&place, one.path()).await;
    let store = open_postgres(&place, other.path()).await;
    claimed(&stopped, &arrival("before", "S", 0, ME)).await;
    // As a process that the kernel does not run: it has the locks of a name.
    let held = arrival("held", "S", 1, ME);
    let lock = lock_sql("pair", &held.record.intent.lookup);
    let holder = connect(server.port).await.expect("a connection");
    let lock = format!("BEGIN; {lock}");
    holder.batch_execute(&lock).await.expect("locked");
    let refused = store.claim(&held, &[]).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    for n in 0..20 {
        claimed(&store, &arrival(&format!("k{n}"), "T", n, ME)).await;
    }
    assert_eq!(store.readiness().await.reasons, []);
    // An installation with another schema in this database does not wait for that lock.
    let elsewhere = folder();
    let neighbour = format!("{}#neighbour", server.url());
    let neighbour = open_postgres(&neighbour, elsewhere.path()).await;
    claimed(&neighbour, &held).await;
    holder.batch_execute("ROLLBACK").await.expect("the end");
    until_claimed(&store, "held").await;
}

/// Each would otherwise dial three times: for its claim, to look for its key, and for what is paused.
#[tokio::test(flavor = "multi_thread")]
async fn calls_while_a_postgres_is_away_do_not_dial_again_and_again() {
    let (mut server, tool) = (Postgres::with(&[]).await, Tool::start().await);
    let line = Line::to(server.port).await;
    let url = format!("postgres://gate@127.0.0.1:{}/postgres", line.port);
    let gateway = Arc::new(Gateway::sharing(&url, &one_tool(&tool, "")).await);
    gateway.until_ready().await;
    server.kill();
    until("it is noticed", async || {
        !gateway.reasons().await.is_empty()
    })
    .await;
    let (before, began) = (line.connections(), Instant::now());
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let gateway = gateway.clone();
        callers.spawn(async move {
            for n in 0..50 {
                let refused = call(&gateway, caller * 50 + n).await;
                refused.expect_problem("store-unavailable");
            }
        });
    }
    callers.join_all().await;
    let dialed = line.connections() - before;
    let took = began.elapsed();
    assert!(
        (dialed as u128) < 20 + took.as_millis() / 100,
        "{dialed} connections for 400 calls in {took:?}"
    );
    server.start_again().await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
    assert_eq!(tool.effects(), 1);
}
