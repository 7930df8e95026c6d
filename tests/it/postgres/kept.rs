//! What a store keeps, whatever the server was set to and however its lines break.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use oncegate::core::document::{Document, Kind};
use oncegate::core::timings::Timings;
use oncegate::store::{Calls as _, Claimed, Documents as _, Error, Health as _, Put};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::folder;
use crate::stores::contract::lookups::{name_of, with_lookups};
use crate::stores::contract::{
    ME, arrival, at, claimed, ended, long_leases, open_postgres, open_postgres_at_pace, replaced,
};
use crate::support::line::Line;
use crate::support::postgres::{Postgres, connect, lock_sql, place};
use crate::support::{PATIENCE, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_durable_whatever_the_role_was_set_to() {
    let server = Postgres::with(&["wal_writer_delay = '10s'"]).await;
    server
        .run("ALTER ROLE gate SET synchronous_commit = off")
        .await;
    let (folder, place) = (folder(), server.place());
    let store = open_postgres(&place, folder.path()).await;
    for n in 0..20 {
        claimed(&store, &arrival(&format!("k{n}"), "S", n, ME)).await;
        let rows = server
            .ask("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")
            .await;
        assert!(
            rows[0].get::<_, bool>(0),
            "what was acknowledged is flushed"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_that_fails_spoils_none_that_was_sent_with_it() {
    let (folder, place) = (folder(), place().await);
    let store = Arc::new(open_postgres(&place, folder.path()).await);
    let mut claims = JoinSet::new();
    for n in 0..100 {
        let store = store.clone();
        claims.spawn(async move {
            let good = store
                .claim(&arrival(&format!("k{n}"), "", n, ME), &[])
                .await;
            // PostgreSQL has no text with a NUL.
            let mut document =
                Document::new(Kind::Saga, &format!("d{n}"), "open", at(n), "1".into());
            document.state = "\0".into();
            (good, store.put_document(&document).await)
        });
    }
    for (good, bad) in claims.join_all().await {
        assert!(matches!(good, Ok(Claimed::Yours(_))), "{good:?}");
        assert!(matches!(bad, Err(Error::Refused(_))), "{bad:?}");
    }
    let fine = Document::new(Kind::Saga, "fine", "open", at(0), "1".into());
    assert_eq!(
        store.put_document(&fine).await.expect("an answer"),
        Put::Done
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_killed_has_everything_and_is_used_again_after_an_inspection() {
    let mut server = Postgres::with(&[]).await;
    let (folder, place) = (folder(), server.place());
    let store = open_postgres(&place, folder.path()).await;
    let mut records = Vec::new();
    for n in 0..50 {
        records.push(claimed(&store, &arrival(&format!("k{n}"), "S", n, ME)).await);
    }
    server.kill();
    until("it is noticed", async || {
        !store.readiness().await.reasons.is_empty()
    })
    .await;
    let late = store.claim(&arrival("late", "S", 60, ME), &[]).await;
    assert!(matches!(late, Err(Error::Refused(_))), "{late:?}");
    server.start_again().await;
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    for record in &records {
        let loaded = store.load(record.intent.call_id).await.expect("an answer");
        assert_eq!(loaded.as_ref(), Some(record));
    }
    claimed(&store, &arrival("late", "S", 60, ME)).await;
    assert_eq!(store.readiness().await.lost_writes, 0);
}

/// Takes the names of calls in opposite orders, over two lanes of each of two stores.
#[tokio::test(flavor = "multi_thread")]
async fn names_taken_in_opposite_orders_wait_for_each_other_in_no_postgres_lane() {
    let (one, other, place) = (folder(), folder(), place().await);
    let stores = [
        Arc::new(open_postgres(&place, one.path()).await),
        Arc::new(open_postgres(&place, other.path()).await),
    ];
    let began = Instant::now();
    let mut claims = JoinSet::new();
    for n in 0..200 {
        for (which, store) in stores.iter().enumerate() {
            let (a, b) = (format!("a{n}"), format!("b{n}"));
            // The key is a name, too.
            let (key, name) = if which == 0 { (a, b) } else { (b, a) };
            let change = arrival(&key, &format!("S{}", n % 7), n, ME);
            let (change, store) = (with_lookups(change, &[&name]), store.clone());
            claims.spawn(async move { (n, store.claim(&change, &[]).await) });
        }
    }
    let mut won = HashSet::new();
    for (n, claim) in claims.join_all().await {
        match claim {
            Ok(Claimed::Yours(_)) => assert!(won.insert(n), "{n}: both have the names"),
            Ok(Claimed::Existing(_)) => {}
            other => panic!("{n}: {other:?}"),
        }
    }
    assert_eq!(won.len(), 200);
    // A deadlock takes a second to be found.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Each of two claims has one name, waits for a second one, and needs the name of the other, unless all take them in one order.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_wait_in_a_postgres_for_a_third_name_are_no_deadlock() {
    let server = Postgres::with(&[]).await;
    let (folders, place) = ([folder(), folder()], server.main());
    let stores = [
        Arc::new(open_postgres(&place, folders[0].path()).await),
        Arc::new(open_postgres(&place, folders[1].path()).await),
    ];
    let holder = connect(server.port).await.expect("a connection");
    for n in 0..5 {
        let [a, b, third] = ["a", "b", "third"].map(|name| format!("{name}{n}"));
        let lock = format!("BEGIN; {}", lock_sql("oncegate", &name_of(&third)));
        holder.batch_execute(&lock).await.expect("locked");
        let mut claims = JoinSet::new();
        for (store, key, other) in [(&stores[0], &a, &b), (&stores[1], &b, &a)] {
            let change = with_lookups(arrival(key, key, n, ME), &[&third, other]);
            let store = store.clone();
            claims.spawn(async move { store.claim(&change, &[]).await });
        }
        // The server gives up after a second.
        until("both wait", async || {
            let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
            server.ask(sql).await[0].get::<_, i64>(0) == 2
        })
        .await;
        holder.batch_execute("ROLLBACK").await.expect("free");
        let mut won = 0;
        for claim in claims.join_all().await {
            won += usize::from(matches!(claim.expect("no deadlock"), Claimed::Yours(_)));
        }
        assert_eq!(won, 1);
    }
}

/// What is read for a long time, such as a backup, keeps dead rows: a row that all calls change would become slower and slower.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_thousand_writes_under_an_old_snapshot_of_postgres_become_no_slower() {
    let server = Postgres::with(&[]).await;
    let (folder, place) = (folder(), server.main());
    let store = Arc::new(open_postgres(&place, folder.path()).await);
    let old = connect(server.port).await.expect("a connection");
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    old.batch_execute(begin).await.expect("a snapshot");
    let mut rounds = Vec::new();
    for round in 0..15 {
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for caller in 0..50 {
            let store = store.clone();
            callers.spawn(async move {
                for n in 0..20 {
                    let key = format!("{round}-{caller}-{n}");
                    // Fifty sessions, each with one call after another, as agents have them.
                    let change = arrival(&key, &format!("S{caller}"), n, ME);
                    let record = claimed(&*store, &change).await;
                    replaced(&*store, &ended(&record, 200, n + 1), &record).await;
                }
            });
        }
        callers.join_all().await;
        rounds.push(began.elapsed());
    }
    old.batch_execute("COMMIT").await.expect("the end");
    // Other tests run meanwhile. An updated row is thirty times slower by then.
    let fastest = |rounds: &[Duration]| rounds.iter().min().copied().expect("rounds");
    let (first, last) = (fastest(&rounds[..5]), fastest(&rounds[10..]));
    assert!(last < first * 3, "{rounds:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_and_an_outcome_are_one_round_trip_each_to_a_postgres() {
    let server = Postgres::with(&[]).await;
    let line = Line::to(server.port).await;
    let (folder, place) = (
        folder(),
        format!("postgres://gate@127.0.0.1:{}/postgres#oncegate", line.port),
    );
    // Nothing else is asked meanwhile.
    let timings = Timings {
        redis_look_every: PATIENCE * 10,
        ..long_leases()
    };
    let store = open_postgres_at_pace(&place, folder.path(), timings).await;
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    let call = async |n: i64| {
        let change = arrival(&format!("k{n}"), &format!("S{n}"), n, ME);
        let before = line.trips();
        let record = claimed(&store, &change).await;
        let claim = line.trips() - before;
        replaced(&store, &ended(&record, 200, n + 1), &record).await;
        (claim, line.trips() - before - claim)
    };
    // The first call connects a lane and prepares its statements. Calls one after the other use only that lane.
    call(0).await;
    for n in 1..50 {
        assert_eq!(
            call(n).await,
            (1, 1),
            "round trips of a claim and an outcome"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_whose_answers_are_lost_on_the_way_from_a_postgres_are_there_once() {
    let server = Postgres::with(&[]).await;
    let line = Arc::new(Line::to(server.port).await);
    let folder = folder();
    let place = format!("postgres://gate@127.0.0.1:{}/postgres#oncegate", line.port);
    let store = Arc::new(open_postgres(&place, folder.path()).await);
    let cutting = tokio::spawn({
        let line = line.clone();
        async move {
            loop {
                sleep(Duration::from_millis(350)).await;
                line.cut(true);
            }
        }
    });
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let store = store.clone();
        callers.spawn(async move {
            let mut lost = 0;
            for n in 0..40 {
                let change = arrival(&format!("{caller}-{n}"), "", n, ME);
                let mut in_doubt = false;
                let patience = Instant::now() + PATIENCE;
                loop {
                    match store.claim(&change, &[]).await {
                        Ok(Claimed::Yours(record)) => {
                            assert_eq!(record.intent.call_id, change.record.intent.call_id);
                            break;
                        }
                        Ok(other) => panic!("{other:?}"),
                        Err(Error::Ambiguous(_)) => (in_doubt, lost) = (true, lost + 1),
                        Err(Error::Refused(_)) => sleep(Duration::from_millis(5)).await,
                        Err(other) => panic!("{other:?}"),
                    }
                    assert!(Instant::now() < patience, "in doubt: {in_doubt}");
                }
            }
            lost
        });
    }
    let lost: usize = callers.join_all().await.into_iter().sum();
    cutting.abort();
    let rows = server
        .ask("SELECT count(*), count(DISTINCT call_id), (SELECT count(*) FROM oncegate.names), (SELECT count(*) FROM oncegate.states) FROM oncegate.calls")
        .await;
    let counts: [i64; 4] = std::array::from_fn(|column| rows[0].get(column));
    assert_eq!(counts, [320; 4], "each call once");
    assert!(lost > 0, "no answer was lost");
    assert_eq!(store.readiness().await.lost_writes, 0);
}
