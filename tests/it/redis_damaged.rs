//! Unreadable calls in a Redis: they are reported, and hide no other calls.

use oncegate::core::ledger::Filter;
use oncegate::core::position::Position;
use oncegate::store::{Calls as _, Claimed, Ledger as _};
use uuid::Uuid;

use crate::contract::{ME, arrival, at, claimed, open_redis};
use crate::support::redis::{Redis, connect, short};

/// Overwrites the text of a call.
async fn damage(redis: &Redis, call: &oncegate::core::record::Record) {
    let id = short(call.intent.call_id.0.as_bytes());
    let pattern = format!("oncegate:*:call:{id}");
    let found = redis.ask(&["KEYS", &pattern]).await;
    let keys: Vec<String> = ::redis::from_redis_value(found).expect("keys");
    redis.ask(&["SET", &keys[0], "damaged"]).await;
}

#[tokio::test]
async fn a_list_says_that_one_of_its_calls_cannot_be_read() {
    let (redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let store = open_redis(&redis.url(), folder.path()).await;
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

/// The index has more unreadable calls than one round of a search reads.
#[tokio::test]
async fn unreadable_calls_hide_no_call_behind_them() {
    let (redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let store = open_redis(&redis.url(), folder.path()).await;
    let call = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let mut connection = connect(&redis.url()).await;
    let (mut texts, mut places) = (::redis::cmd("MSET"), ::redis::cmd("ZADD"));
    let running = redis.ask(&["KEYS", "oncegate:*:running"]).await;
    let running: Vec<String> = ::redis::from_redis_value(running).expect("keys");
    let prefix = running[0].trim_end_matches("running");
    places.arg(&running[0]);
    for n in 1..=600_u128 {
        let id = Uuid::from_u128(call.intent.call_id.0.as_u128() ^ n << 64);
        texts
            .arg(format!("{prefix}call:{}", short(id.as_bytes())))
            .arg("damaged");
        let created_at = call.intent.created_at;
        places
            .arg(1)
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
    let due = store.due(at(9_999_999), 1).await.expect("an answer");
    let due: Vec<_> = due
        .calls
        .iter()
        .map(|due| due.record.intent.call_id)
        .collect();
    assert_eq!(due, [call.intent.call_id]);
}

#[tokio::test]
async fn a_damaged_time_in_a_redis_frees_no_key() {
    let (redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let store = open_redis(&redis.url(), folder.path()).await;
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
