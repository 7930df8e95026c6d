//! Unreadable calls in a Redis: they are reported, and hide no other calls.

use oncegate::core::key::Lookup;
use oncegate::core::ledger::Filter;
use oncegate::core::position::Position;
use oncegate::core::record::Record;
use oncegate::store::{Calls as _, Claimed, Ledger as _};
use uuid::Uuid;

use crate::stores::contract::{ME, arrival, at, claimed, redis_and_store, unknown};
use crate::support::redis::{Redis, connect, short};

/// Overwrites the text of a call.
async fn damage(redis: &Redis, call: &Record) {
    let id = short(call.intent.call_id.0.as_bytes());
    let pattern = format!("oncegate:*:call:{id}");
    let found = redis.ask(&["KEYS", &pattern]).await;
    let keys: Vec<String> = ::redis::from_redis_value(found).expect("keys");
    redis.ask(&["SET", &keys[0], "damaged"]).await;
}

/// Adds six hundred unreadable calls to an index of a call's partition.
async fn add_unreadable(redis: &Redis, call: &Record, index: &str, score: impl Fn(u128) -> u128) {
    let mut connection = connect(&redis.url()).await;
    let (mut texts, mut places) = (::redis::cmd("MSET"), ::redis::cmd("ZADD"));
    let running = redis.ask(&["KEYS", "oncegate:*:running"]).await;
    let running: Vec<String> = ::redis::from_redis_value(running).expect("keys");
    let prefix = running[0].trim_end_matches("running");
    let index = format!("{prefix}{index}");
    places.arg(&index);
    for n in 1..=600_u128 {
        let id = Uuid::from_u128(call.intent.call_id.0.as_u128() ^ n << 64);
        texts
            .arg(format!("{prefix}call:{}", short(id.as_bytes())))
            .arg("damaged");
        let created_at = call.intent.created_at;
        places
            .arg(score(n).to_string())
            .arg(&Position { created_at, id }.to_bytes()[..]);
    }
    texts
        .query_async::<()>(&mut connection)
        .await
        .expect("room");
    places
        .query_async::<()>(&mut connection)
        .await
        .expect("room");
}

#[tokio::test]
async fn a_list_says_that_one_of_its_calls_cannot_be_read() {
    let (redis, _folder, store) = redis_and_store().await;
    let call = claimed(&store, &arrival("k", "S", 0, ME)).await;
    damage(&redis, &call).await;
    let of_key = Filter {
        key: Some("k".into()),
        ..Filter::default()
    };
    let running = Filter {
        state: Some("running".into()),
        ..Filter::default()
    };
    let tenant = &call.intent.tenant;
    for filter in [Filter::default(), of_key, running] {
        let page = store.list(tenant, &filter, None, 9).await.expect("a page");
        assert_eq!((page.found.len(), page.unreadable), (0, 1), "{filter:?}");
        let page = store.list("other", &filter, None, 9).await.expect("a page");
        assert_eq!(page.unreadable, 0, "{filter:?}");
    }
}

/// Only its tenant's lists say whose call it is.
#[tokio::test]
async fn an_unreadable_call_is_told_to_its_own_tenant_only() {
    let (redis, _folder, store) = redis_and_store().await;
    let call = claimed(&store, &arrival("k", "S", 0, ME)).await;
    damage(&redis, &call).await;
    let running = Filter {
        state: Some("running".into()),
        ..Filter::default()
    };
    let partition = |tenant: &str| Lookup::partition_of(tenant) % 64;
    let own = &call.intent.tenant;
    let mut others = (0..).map(|n| format!("tenant{n}"));
    let neighbour = others.find(|other| partition(other) == partition(own));
    let neighbour = neighbour.expect("a tenant of the same partition");
    for (tenant, unreadable) in [(own.as_str(), 1), (neighbour.as_str(), 0)] {
        let page = store.list(tenant, &running, None, 9).await.expect("a page");
        assert_eq!(page.unreadable, unreadable, "{tenant}");
    }
}

#[tokio::test]
async fn a_list_by_key_says_that_the_holder_of_the_key_cannot_be_read_in_a_redis() {
    let (redis, _folder, store) = redis_and_store().await;
    let call = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let holders = redis.ask(&["KEYS", "oncegate:*:key:*"]).await;
    let holders: Vec<String> = ::redis::from_redis_value(holders).expect("keys");
    assert_eq!(holders.len(), 1);
    redis.ask(&["SET", &holders[0], "damaged"]).await;
    let of_key = Filter {
        key: Some("k".into()),
        ..Filter::default()
    };
    let page = store.list(&call.intent.tenant, &of_key, None, 9).await;
    let page = page.expect("a page");
    assert_eq!((page.found.len(), page.unreadable), (0, 1));
}

/// Entries that lead to no call are removed when a list comes upon them.
#[tokio::test]
async fn a_list_of_a_redis_forgets_a_call_that_is_gone() {
    let (redis, _folder, store) = redis_and_store().await;
    let call = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let keys = async |pattern: &str| {
        let found = redis.ask(&["KEYS", pattern]).await;
        ::redis::from_redis_value::<Vec<String>>(found).expect("keys")
    };
    let lists = keys("oncegate:*:list:*").await.len();
    assert!(lists > 1, "by tool, and by others");
    redis
        .ask(&["DEL", &keys("oncegate:*:call:*").await[0]])
        .await;
    let of_session = Filter {
        session_id: Some("S".into()),
        ..Filter::default()
    };
    for (filter, left) in [(Filter::default(), lists - 1), (of_session, lists - 2)] {
        let page = store.list(&call.intent.tenant, &filter, None, 9).await;
        let page = page.expect("a page");
        assert_eq!((page.found.len(), page.unreadable), (0, 0));
        assert_eq!(keys("oncegate:*:list:*").await.len(), left, "{filter:?}");
    }
}

/// The index has more unreadable calls than one round of a search reads.
#[tokio::test]
async fn unreadable_calls_hide_no_call_behind_them() {
    let (redis, _folder, store) = redis_and_store().await;
    let call = claimed(&store, &arrival("k", "S", 0, ME)).await;
    add_unreadable(&redis, &call, "running", |_| 1).await;
    let due = store.due(at(9_999_999), 1).await.expect("an answer");
    let due: Vec<_> = due
        .calls
        .iter()
        .map(|due| due.record.intent.call_id)
        .collect();
    assert_eq!(due, [call.intent.call_id]);
}

/// A round of checks reads a part of the index; the next goes on behind it.
#[tokio::test]
async fn unreadable_calls_hide_no_check_behind_them() {
    let (redis, _folder, store) = redis_and_store().await;
    let call = claimed(&store, &arrival("k", "S", 0, ME)).await;
    add_unreadable(&redis, &call, "unknown", |n| n).await;
    let behind = unknown(&store, "t", "behind", Some(0)).await;
    let mut rounds = Vec::<Vec<_>>::new();
    for _ in 0..3 {
        let due = store.due_rechecks(at(0), &["t".to_owned()], 1).await;
        let due = due.expect("an answer").calls.into_iter();
        rounds.push(due.map(|record| record.intent.call_id).collect());
    }
    assert_eq!(rounds, [vec![], vec![], vec![behind]]);
}

#[tokio::test]
async fn a_damaged_time_in_a_redis_frees_no_key() {
    let (redis, _folder, store) = redis_and_store().await;
    let running = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let keys = redis.ask(&["KEYS", "oncegate:*:running"]).await;
    let keys: Vec<String> = ::redis::from_redis_value(keys).expect("keys");
    let prefix = keys[0].trim_end_matches("running");
    let (retained, earliest) = (format!("{prefix}retained"), format!("{prefix}earliest"));
    let place = Position::of(&running).to_bytes();
    let mut connection = connect(&redis.url()).await;
    let mut add = ::redis::cmd("ZADD");
    let add = add.arg(&retained).arg(1).arg(&place[..]);
    add.query_async::<()>(&mut connection).await.expect("added");
    redis.ask(&["SET", &earliest, "1"]).await;
    for (second, looked_at) in [(0, 1), (86_399, 0), (86_400, 1)] {
        let pruned = store.prune(at(second), 9).await;
        assert_eq!(pruned.expect("pruned"), looked_at, "{second}");
        let again = store.claim(&arrival("k", "S", second, ME), &[]).await;
        assert_eq!(
            again.expect("an answer"),
            Claimed::Existing(running.clone())
        );
    }
}
