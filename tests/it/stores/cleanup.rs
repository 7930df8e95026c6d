//! Cleanup deletes calls and documents past their retention, and nothing else.

use jiff::SignedDuration;
use oncegate::app::loops::begin;
use oncegate::core::position::Position;
use oncegate::core::record::{CallId, Record, State};
use oncegate::gateway::new_instance;
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Calls as _, Error, Health as _, Ledger as _, Store};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::stores::contract::{
    ME, accept_noticed_loss, arrival, at, claimed, ended, open_redis, open_redis_as_it_is,
    redis_and_store, replaced, with_lookups,
};
use crate::support::clock::Clock;
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::{Bare, one_tool};
use crate::support::memory::Memory;
use crate::support::redis::{Cluster, PROGRESS, Redis, connect, short};
use crate::support::timings::brisk;
use crate::support::{Act, Answer, Gateway, Tool, client, has_reason, until};

/// Not even a list is left. A call that cannot be read does not keep cleanup from the others.
#[tokio::test]
async fn deleted_calls_leave_nothing_in_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("oncegate.db");
    let store = Sqlite::open(&file, ME, &CancellationToken::new()).expect("a store");
    let done = succeed(&store, 30).await;
    let unknown = claimed(&store, &arrival("unknown", "S", 0, ME)).await;
    let unknown = replaced(&store, &ended(&unknown, 500, 1), &unknown).await;
    let failed = claimed(
        &store,
        &with_lookups(arrival("failed", "S", 0, ME), &["b", "c"]),
    )
    .await;
    replaced(&store, &ended(&failed, 429, 1), &failed).await;
    let other = rusqlite::Connection::open(&file).expect("opened");
    let sql =
        "UPDATE calls SET progress = x'ff' WHERE seq = (SELECT seq FROM ids WHERE call_id = ?1)";
    let id = done[0].intent.call_id.0.into_bytes();
    assert_eq!(other.execute(sql, [id]), Ok(1));
    let years = at(0) + SignedDuration::from_hours(24 * 365 * 10);
    let mut deleted = Vec::new();
    while deleted.last() != Some(&0) {
        deleted.push(store.prune(years, 7).await.expect("an answer"));
    }
    let count = |table: &str| {
        let sql = format!("SELECT count(*) FROM {table}");
        other
            .query_row(&sql, [], |row| row.get::<_, i64>(0))
            .expect("a count")
    };
    // The unknown call, and the one that cannot be read.
    for table in ["calls", "intents", "ids", "names"] {
        assert_eq!(count(table), 2, "{table}");
    }
    assert_eq!(
        count("lists"),
        4 + 5,
        "tool, trace, session, user; one is unknown"
    );
    assert_eq!(count("tools"), 1);
    let kept = store.load(unknown.intent.call_id).await.expect("an answer");
    assert_eq!(kept, Some(unknown));
    assert!(
        store.load(done[0].intent.call_id).await.is_err(),
        "it does not count as absent"
    );
}

/// The names of the keys that fit a pattern.
async fn names(redis: &Redis, pattern: &str) -> Vec<String> {
    ::redis::from_redis_value(redis.ask(&["KEYS", pattern]).await).expect("names")
}

/// Makes succeeded calls, each with its own session, user and trace.
async fn succeed(store: &impl Store, calls: usize) -> Vec<Record> {
    let mut done = Vec::new();
    for n in 0..calls {
        let mut change = arrival(&format!("k{n}"), &format!("S{n}"), 0, ME);
        let intent = std::sync::Arc::make_mut(&mut change.record.intent);
        (intent.user_id, intent.trace_id) = (format!("U{n}"), format!("T{n}"));
        let running = claimed(store, &change).await;
        done.push(replaced(store, &ended(&running, 200, 1), &running).await);
    }
    done
}

/// Redis itself must not expire them either, whatever its clock says.
#[tokio::test]
async fn calls_that_expire_while_no_gateway_runs_leave_nothing_in_a_redis() {
    let (clock, folder) = (Clock::new(), tempfile::tempdir().expect("a folder"));
    let redis = Redis::strict_by(&clock).await;
    let store = open_redis(&redis.url(), folder.path()).await;
    let done = succeed(&store, 200).await;
    store.close().await;
    drop(store);
    clock.set_ahead(400 * 24 * 3_600);
    // Redis deletes an expired key when a client asks for it.
    for name in names(&redis, "oncegate:*:call:*").await {
        redis.ask(&["EXISTS", &name]).await;
    }
    clock.set_ahead(0);

    let store = open_redis(&redis.url(), folder.path()).await;
    let kept = store.load(done[0].intent.call_id).await.expect("an answer");
    assert_eq!(
        kept.as_ref(),
        Some(&done[0]),
        "by the right clock its time is not over"
    );
    let years = at(0) + SignedDuration::from_hours(24 * 365 * 10);
    let deleted = store.prune(years, 50).await.expect("an answer");
    assert_eq!(deleted, 50, "no more than the limit at once");
    while store.prune(years, 50).await.expect("an answer") > 0 {}
    for pattern in [
        "oncegate:*:call:*",
        "oncegate:*:key:*",
        "oncegate:*:list:*",
        "oncegate:*:again:*",
        "oncegate:*:retained",
        "oncegate:*:earliest",
    ] {
        assert_eq!(names(&redis, pattern).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn one_step_of_redis_deletes_many_calls_and_leaves_one_that_runs_again() {
    let (redis, _folder, store) = redis_and_store().await;
    let done = succeed(&store, 300).await;
    let failed = claimed(&store, &arrival("again", "S", 0, ME)).await;
    let failed = replaced(&store, &ended(&failed, 429, 1), &failed).await;
    let again = replaced(&store, &crate::stores::contract::rerun(&failed, 2), &failed).await;
    // One entry leads to no call, and one call cannot be read.
    let nothing = Uuid::new_v4();
    let place = Position {
        created_at: at(0),
        id: nothing,
    };
    let partition = format!("oncegate:{{p{:03}}}", nothing.as_bytes()[15] % 64);
    let mut add = ::redis::cmd("ZADD");
    add.arg((format!("{partition}:retained"), 1, &place.to_bytes()[..]));
    let added = add.query_async(&mut connect(&redis.url()).await).await;
    let () = added.expect("added");
    redis
        .ask(&["SET", &format!("{partition}:earliest"), "1"])
        .await;
    let broken = names(
        &redis,
        &format!(
            "oncegate:*:call:{}",
            short(done[7].intent.call_id.0.as_bytes())
        ),
    )
    .await
    .remove(0);
    redis.ask(&["SETRANGE", &broken, PROGRESS, "spoiled"]).await;
    let steps = async || redis.commands().await.get("evalsha").copied().unwrap_or(0);
    let before = steps().await;
    let years = at(0) + SignedDuration::from_hours(24 * 365 * 10);
    // A busy machine may answer too late. A gateway would try again, and so does this test, at most twice.
    let mut unanswered = 0;
    loop {
        match store.prune(years, 100).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(Error::Ambiguous(_)) if unanswered < 2 => {
                unanswered += 1;
                until("it is ready again", async || {
                    store.readiness().await.reasons.is_empty()
                })
                .await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let used = steps().await - before;
    // A try without an answer may have made up to 64 steps.
    assert!(
        used <= 70 + 64 * unanswered,
        "one step for each partition, not one for each call: {used}"
    );
    assert_eq!(
        store.load(again.intent.call_id).await.expect("an answer"),
        Some(again.clone())
    );
    assert_eq!(
        store
            .holders(&[again.intent.lookup])
            .await
            .expect("an answer")[0]
            .record,
        again
    );
    assert_eq!(
        names(&redis, "oncegate:*:call:*").await.len(),
        2,
        "it, and the call that cannot be read"
    );
    let gone = store.load(CallId(nothing)).await.expect("an answer");
    assert_eq!(gone, None);
}

/// The server was put back to older data, and no gateway has looked at it since.
#[tokio::test]
async fn nothing_is_deleted_from_a_redis_that_the_gateway_does_not_know() {
    let (redis, _folder, store) = redis_and_store().await;
    let done = succeed(&store, 10).await;
    for what in ["writes", "epoch"] {
        for key in names(&redis, "oncegate:*:marks").await {
            let marks = redis.ask(&["GET", &key]).await;
            let marks: String = ::redis::from_redis_value(marks).expect("marks");
            let (epoch, counts) = marks.split_once('\n').unwrap_or((&marks, ""));
            let spoiled = match what {
                "writes" => epoch.to_owned(),
                _ => format!("another\n{counts}"),
            };
            redis.ask(&["SET", &key, &spoiled]).await;
        }
        let years = at(0) + SignedDuration::from_hours(24 * 365 * 10);
        drop(store.prune(years, 50).await);
        assert_eq!(
            names(&redis, "oncegate:*:call:*").await.len(),
            done.len(),
            "{what}"
        );
        accept_noticed_loss(&store).await;
    }
}

/// The partition of a key.
fn partition(key: &str) -> Option<&str> {
    key.split(':').nth(1)
}

/// Only another partition has lost data, which the script that deletes does not see.
#[tokio::test]
async fn nothing_is_deleted_from_a_redis_that_has_forgotten_the_scripts_before_it_is_inspected() {
    let (redis, _folder, store) = redis_and_store().await;
    succeed(&store, 10).await;
    let calls = names(&redis, "oncegate:*:call:*").await;
    let has_calls = |marks: &&String| calls.iter().any(|call| partition(call) == partition(marks));
    let marks = names(&redis, "oncegate:*:marks").await;
    let other = marks.iter().find(|marks| !has_calls(marks));
    let other = other.expect("a partition without calls");
    redis.ask(&["SET", other, "another\n"]).await;
    redis.ask(&["SCRIPT", "FLUSH"]).await;
    let years = at(0) + SignedDuration::from_hours(24 * 365 * 10);
    drop(store.prune(years, 50).await);
    assert_eq!(names(&redis, "oncegate:*:call:*").await.len(), calls.len());
}

/// Whether it has lost data since is not known.
#[tokio::test]
async fn nothing_is_deleted_from_a_redis_that_has_forgotten_the_scripts_and_cannot_be_inspected() {
    let (redis, _folder, store) = redis_and_store().await;
    succeed(&store, 10).await;
    redis.ask(&["ACL", "SETUSER", "default", "-info"]).await;
    redis.ask(&["SCRIPT", "FLUSH"]).await;
    let years = at(0) + SignedDuration::from_hours(24 * 365 * 10);
    let refused = store.prune(years, 50).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(names(&redis, "oncegate:*:call:*").await.len(), 10);
}

/// After a restart the scripts are gone, and a full Redis runs none that needs memory.
#[tokio::test]
async fn cleanup_makes_room_in_a_full_redis_that_was_started_anew() {
    let (redis, _folder, store) = redis_and_store().await;
    let done = succeed(&store, 10).await;
    // A call that cannot be read must not keep cleanup from the others.
    let broken = short(done[7].intent.call_id.0.as_bytes());
    let broken = names(&redis, &format!("oncegate:*:call:{broken}")).await;
    redis
        .ask(&["SETRANGE", &broken[0], PROGRESS, "spoiled"])
        .await;
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let is_full = async || has_reason(&store.readiness().await, "memory");
    until("it is full", is_full).await;
    redis.ask(&["SCRIPT", "FLUSH"]).await;
    let years = at(0) + SignedDuration::from_hours(24 * 365 * 10);
    assert_eq!(store.prune(years, 50).await.expect("an answer"), 10);
    assert_eq!(names(&redis, "oncegate:*:call:*").await, broken);
}

/// How many calls the masters of a cluster hold.
async fn calls_of(cluster: &Cluster) -> Vec<usize> {
    let mut calls = Vec::new();
    for node in &cluster.nodes {
        let keys = node.ask(&["KEYS", "oncegate:*:call:*"]).await;
        calls.push(
            ::redis::from_redis_value::<Vec<String>>(keys)
                .expect("keys")
                .len(),
        );
    }
    calls
}

/// A gateway that starts while the clock is wrong knows no other time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_redis_masters_wrong_clock_deletes_nothing_at_any_of_them() {
    let (clock, tool) = (Clock::new(), Tool::start().await);
    let cluster = Cluster::start_by(&clock).await;
    // The calls of a tenant are on one master.
    let tenants: Vec<String> = (0..24).map(|n| format!("tenant{n}")).collect();
    let token = |tenant: &String| {
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(tenant));
        let name = format!("name = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\n");
        format!("[[auth.tokens]]\n{name}scopes = [\"call\"]\n")
    };
    let tokens: String = tenants.iter().map(token).collect();
    let gateway =
        Gateway::sharing(&cluster.url(), &format!("{tokens}{}", one_tool(&tool, ""))).await;
    gateway.until_ready().await;
    for tenant in &tenants {
        let bearer = format!("Bearer {tenant}");
        gateway
            .post("act", &json!({ "args": {} }), &[("authorization", &bearer)])
            .await
            .expect_ok();
    }
    gateway.stop().await;
    let before = calls_of(&cluster).await;
    assert!(before.iter().all(|calls| *calls > 0), "{before:?}");

    // More than the retention of calls.
    clock.set_ahead(400 * 24 * 3_600);
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_redis_as_it_is(&cluster.url(), folder.path()).await;
    let seen = store.clone();
    let Bare { gateway, .. } = Bare::over(store, new_instance(), &tool, "").await;
    let is_closed = async || has_reason(&gateway.status.readiness().await, "clock");
    until("the clock is seen", is_closed).await;
    assert!(
        seen.clock_offset() < SignedDuration::from_hours(1),
        "the others are right"
    );
    gateway.prune_all().await.expect("an answer");
    assert_eq!(calls_of(&cluster).await, before, "while it is wrong");
    clock.set_ahead(0);
    until("the clock is right again", async || {
        gateway.status.readiness().await.reasons.is_empty()
    })
    .await;
    gateway.prune_all().await.expect("an answer");
    assert_eq!(calls_of(&cluster).await, before, "when it is right again");
}

/// A gateway that starts while the clock is wrong knows no other time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_whose_clock_is_wrong_deletes_nothing() {
    let (clock, tool) = (Clock::new(), Tool::start().await);
    let redis = Redis::strict_by(&clock).await;
    let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    gateway.call(json!({})).await.expect_ok();
    gateway.stop().await;

    // More than the retention of calls.
    clock.set_ahead(400 * 24 * 3_600);
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_redis_as_it_is(&redis.url(), folder.path()).await;
    let seen = store.clone();
    let Bare { gateway, .. } = Bare::over(store, new_instance(), &tool, "").await;
    until("only the clock is wrong", async || {
        let reasons = gateway.status.readiness().await.reasons;
        reasons.len() == 1 && reasons[0].code == "clock"
    })
    .await;
    assert!(seen.clock_offset() > SignedDuration::from_hours(399 * 24));
    gateway.prune_all().await.expect("an answer");
    assert_eq!(names(&redis, "oncegate:*:call:*").await.len(), 1);
}

/// Cleanup, recovery and rechecks have separate loops.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_and_rechecks_do_not_wait_for_a_cleanup_that_hangs() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop).always(Act::Numbered);
    tool.deduplicate();
    let store = FaultStore::over(Memory::default());
    store.next(Verb::Prune, Fault::Hang, 1);
    let rules = "dedup = \"key\"\nunknown = \"retry\"\nretry = { attempts = 1 }\n\
         recheck = { base = \"100ms\", max = \"100ms\" }";
    let at = Bare::over(store.clone(), new_instance(), &tool, rules).await;
    let stop = CancellationToken::new();
    let _loops = begin(&at.gateway, &at.wings, brisk(), &stop);
    until("the cleanup hangs", async || {
        store.injected(Verb::Prune, Fault::Hang) == 1
    })
    .await;
    let lost = claimed(&store, &arrival("lost", "S", 0, ME)).await;
    let body = json!({ "args": {}, "idempotency_key": "unknown" }).to_string();
    let unknown = Answer::to(client().post(&at.url).body(body)).await;
    unknown.expect_problem("outcome-unknown");
    until("the lost call was found", async || {
        let found = store.load(lost.intent.call_id).await.expect("an answer");
        found.is_some_and(|found| found.state != State::Running)
    })
    .await;
    until("the unknown call was asked about", async || {
        tool.requests() >= 2
    })
    .await;
    stop.cancel();
    at.stop().await;
}

/// Otherwise its end would be days old when the clock is right again, and its key would be free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_ends_while_the_clock_of_redis_is_days_behind_is_remembered() {
    let (clock, tool) = (Clock::new(), Tool::start().await);
    let redis = Redis::strict_by(&clock).await;
    let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    tool.then(Act::after_ms(3_000, Act::Numbered));
    let running = gateway.call(json!({ "n": 1 }));
    let setting = async {
        until("it runs", async || tool.requests() == 1).await;
        clock.set_ahead(-2 * 24 * 3_600);
        let is_closed = async || gateway.reasons().await.contains("its clock is -");
        until("the clock is seen", is_closed).await;
    };
    let (first, ()) = tokio::join!(running, setting);
    let first = first.expect_ok();
    clock.set_ahead(0);
    gateway.until_ready().await;
    let again = gateway.call(json!({ "n": 1 })).await.expect_ok();
    assert_eq!(again.at("/replayed"), true);
    assert_eq!(again.result(), first.result());
    assert_eq!(tool.effects(), 1);
}
