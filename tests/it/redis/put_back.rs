//! A gateway puts remembered calls back into a Redis that has lost them. Repetition does not change the result.

use std::collections::BTreeSet;

use oncegate::core::ledger::Filter;
use oncegate::core::position::Position;
use oncegate::core::record::CallId;
use oncegate::store::redis::Redis as RedisStore;
use oncegate::store::{Calls as _, Claimed, Ledger as _, LossRecovery as _, Sessions as _};
use serde_json::Value;
use uuid::Uuid;

use crate::stores::admission::{asks, ends, exclusive, session};
use crate::stores::contract::{
    ME, accept_noticed_loss, arrival, claimed, ended, name_of, open_redis, redis_and_store,
    replaced, with_lookups,
};
use crate::stores::faults::Lines;
use crate::support::redis::{Redis, connect, short};

const TWO_DAYS: i64 = 2 * 24 * 3_600;
const ALARM: &str = "a call that the store had lost was put back, but another call holds one of its lookup keys by now: \
     the same intent may have run twice";

/// The key under which Redis keeps the holder of a name.
async fn holder_key(redis: &Redis, name: &str) -> String {
    let pattern = format!("oncegate:*:key:{}", short(&name_of(name).0));
    let keys: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", &pattern]).await).expect("keys");
    keys.into_iter().next().expect("a key")
}

async fn holder_of(store: &RedisStore, name: &str) -> Option<CallId> {
    let holders = store.holders(&[name_of(name)]).await.expect("an answer");
    holders.first().map(|holder| holder.record.intent.call_id)
}

/// Deletes all keys that fit a pattern; there must be some.
async fn delete(redis: &Redis, pattern: &str) {
    let keys: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", pattern]).await).expect("keys");
    assert!(!keys.is_empty(), "{pattern}");
    for key in keys {
        redis.ask(&["DEL", &key]).await;
    }
}

fn call_key(call_id: CallId) -> String {
    format!("oncegate:*:call:{}", short(call_id.0.as_bytes()))
}

/// Deletes the epochs, so that the gateway puts remembered calls back, and accepts the loss.
async fn lose_and_accept(redis: &Redis, store: &RedisStore) {
    for partition in 0..64 {
        let key = format!("oncegate:{{p{partition:03}}}:marks");
        let marks = redis.ask(&["GET", &key]).await;
        let marks: String = ::redis::from_redis_value(marks).expect("marks");
        let counts = marks.split_once('\n').map_or("", |(_, counts)| counts);
        redis.ask(&["SET", &key, &format!("\n{counts}")]).await;
    }
    accept_noticed_loss(store).await;
}

/// The first attempt has written the call, and broke off before it took the name.
#[tokio::test]
async fn a_name_goes_to_the_call_that_held_it_last_also_after_an_attempt_that_broke_off() {
    let (redis, _folder, store) = redis_and_store().await;
    let first = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let first = replaced(&store, &ended(&first, 200, 1), &first).await;
    let change = arrival("k", "S", TWO_DAYS, ME);
    let second = store
        .claim(&change, std::slice::from_ref(&first))
        .await
        .expect("an answer");
    let Claimed::Yours(second) = second else {
        panic!("its time is over: {second:?}")
    };
    let (key, first) = (
        holder_key(&redis, "k").await,
        short(first.intent.call_id.0.as_bytes()),
    );
    redis.ask(&["SET", &key, &first]).await;

    for round in 0..3 {
        lose_and_accept(&redis, &store).await;
        assert_eq!(
            holder_of(&store, "k").await,
            Some(second.intent.call_id),
            "round {round}"
        );
    }
    let done = replaced(&store, &ended(&second, 200, TWO_DAYS + 1), &second).await;
    assert_eq!(
        store.load(done.intent.call_id).await.expect("an answer"),
        Some(done)
    );
}

/// Another call holds some of the names by now. The others are set.
#[tokio::test]
async fn a_call_that_is_put_back_has_all_names_that_are_free() {
    let (redis, _folder, store) = redis_and_store().await;
    let change = with_lookups(arrival("a", "S", 0, ME), &["b", "c", "d"]);
    let call = claimed(&store, &change).await;
    let [first, second] = ["x", "y"].map(|key| arrival(key, "S", 0, ME));
    let others = [
        claimed(&store, &first).await,
        claimed(&store, &second).await,
    ];
    let others = others.map(|other| other.intent.call_id);
    for (name, holder) in [
        ("a", Some(others[0])),
        ("b", None),
        ("c", Some(others[1])),
        ("d", None),
    ] {
        let key = holder_key(&redis, name).await;
        match holder {
            Some(holder) => redis.ask(&["SET", &key, &short(holder.0.as_bytes())]).await,
            None => redis.ask(&["DEL", &key]).await,
        };
    }
    delete(&redis, &call_key(call.intent.call_id)).await;

    let (lines, _guard) = Lines::take();
    lose_and_accept(&redis, &store).await;
    assert_eq!(
        store.load(call.intent.call_id).await.expect("an answer"),
        Some(call.clone())
    );
    let mut holders = Vec::new();
    for name in ["a", "b", "c", "d"] {
        holders.push(holder_of(&store, name).await.expect("a holder"));
    }
    let id = call.intent.call_id;
    assert_eq!(
        holders,
        [others[0], id, others[1], id],
        "names of other calls stay with them"
    );
    let by_key = Filter {
        key: Some("a".into()),
        ..Filter::default()
    };
    let page = store.list("shop", &by_key, None, 9).await;
    let found = page.expect("an answer").found.into_iter();
    let found: Vec<CallId> = found.map(|listed| listed.record.intent.call_id).collect();
    assert_eq!(found, [id], "it is found by its key all the same");
    let said = |line: &Value| ["call_id", "holder"].map(|name| line[name].clone());
    let said: Vec<[Value; 2]> = lines.with_message(ALARM).iter().map(said).collect();
    for other in others {
        assert!(
            said.contains(&[id.to_string().into(), other.to_string().into()]),
            "{said:?}"
        );
    }
}

/// Only the newest version of the lost call says that its window was over when the other call began.
#[tokio::test]
async fn a_lost_call_that_had_given_its_name_up_is_put_back_without_an_alarm() {
    let (redis, _folder, store) = redis_and_store().await;
    let first = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let first = replaced(&store, &ended(&first, 200, 1), &first).await;
    let change = arrival("k", "S", TWO_DAYS, ME);
    let second = store.claim(&change, std::slice::from_ref(&first)).await;
    assert!(matches!(second, Ok(Claimed::Yours(_))), "{second:?}");
    delete(&redis, &call_key(first.intent.call_id)).await;

    let (lines, _guard) = Lines::take();
    lose_and_accept(&redis, &store).await;
    assert_eq!(
        store.load(first.intent.call_id).await.expect("an answer"),
        Some(first)
    );
    let holder = holder_of(&store, "k").await;
    assert_eq!(holder, Some(change.record.intent.call_id));
    let said = lines.with_message(ALARM);
    assert!(said.is_empty(), "{said:?}");
}

/// Call and session are gone when the outcome is written. The request may be under way until the lease ends.
#[tokio::test]
async fn an_unknown_call_that_is_put_back_holds_its_session_until_its_lease_ends() {
    let (redis, _folder, store) = redis_and_store().await;
    let tool = exclusive();
    let running = claimed(&store, &asks(&tool, "k")).await;
    for pattern in ["oncegate:*:call:*", "oncegate:*:session:*"] {
        delete(&redis, pattern).await;
    }
    let unknown = ends(&store, &tool, &running, 500).await;
    assert_eq!(unknown.state.as_str(), "unknown");
    let seen = store.session(&session()).await.expect("an answer");
    let lock = seen.lock.expect("a lock");
    assert_eq!(
        (lock.call_id, lock.free_from),
        (running.intent.call_id, Some(running.attempt.lease_until))
    );
}

/// A restart changes the order of SCAN, and an index may vanish between two pages.
#[tokio::test]
async fn each_call_at_risk_is_read_although_redis_restarts_between_pages() {
    let (mut redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let store = open_redis(&redis.url(), folder.path()).await;
    let created_at = arrival("k", "S", 0, ME).record.intent.created_at;
    let mut calls = BTreeSet::new();
    // Most have the same score. The others have different and large scores.
    for (index, scores) in [("unknown", [9.2e18, 1.0]), ("failed", [0.0, 9.2e18])] {
        let mut fill = ::redis::cmd("ZADD");
        fill.arg(format!("oncegate:{{p003}}:{index}"));
        for n in 0..700_u128 {
            let id = Uuid::from_u128(n << 64 | calls.len() as u128);
            let score =
                scores[usize::from(n % 7 == 0)] + if n % 7 == 0 { n as f64 * 1e6 } else { 0.0 };
            let place = Position { created_at, id };
            fill.arg(score).arg(&place.to_bytes()[..]);
            calls.insert(CallId(id));
        }
        let mut connection = connect(&redis.url()).await;
        fill.query_async::<()>(&mut connection).await.expect("room");
    }

    let page = store.calls_at_risk_after_loss("", 100).await;
    let (_, next) = page.expect("a page");
    redis.start_again().await;

    let (mut found_all, mut from, mut pages) = (Vec::new(), next, 0);
    while let Some(here) = from {
        let Ok((found, next)) = store.calls_at_risk_after_loss(&here, 100).await else {
            // The connection is being made again.
            from = Some(here);
            continue;
        };
        if pages == 6 {
            redis.ask(&["DEL", "oncegate:{p003}:unknown"]).await;
        }
        found_all.extend(found);
        (from, pages) = (next, pages + 1);
    }
    assert_eq!(
        found_all.len(),
        calls.len(),
        "each call once, from the beginning"
    );
    assert_eq!(found_all.into_iter().collect::<BTreeSet<_>>(), calls);
}

/// The last entry of a page leaves the index before the next page is read, as a call does that becomes unknown.
#[tokio::test]
async fn a_page_of_calls_at_risk_in_redis_begins_behind_an_entry_that_is_gone() {
    let (redis, _folder, store) = redis_and_store().await;
    let created_at = arrival("k", "S", 0, ME).record.intent.created_at;
    let place = |n: u128| Position {
        created_at,
        id: Uuid::from_u128(n << 64),
    };
    let mut fill = ::redis::cmd("ZADD");
    fill.arg("oncegate:{p000}:running");
    for n in 0..40 {
        fill.arg(5).arg(&place(n).to_bytes()[..]);
    }
    let mut connection = connect(&redis.url()).await;
    fill.query_async::<()>(&mut connection).await.expect("room");

    let (mut found_all, mut from) = (Vec::new(), Some(String::new()));
    while let Some(here) = from {
        let page = store.calls_at_risk_after_loss(&here, 7).await;
        let (found, next) = page.expect("a page");
        for id in &found {
            let gone = Position {
                created_at,
                id: id.0,
            };
            let mut remove = ::redis::cmd("ZREM");
            remove
                .arg("oncegate:{p000}:running")
                .arg(&gone.to_bytes()[..]);
            remove
                .query_async::<()>(&mut connection)
                .await
                .expect("gone");
        }
        found_all.extend(found);
        from = next;
    }
    let all: Vec<CallId> = (0..40).map(|n| place(n).call_id()).collect();
    assert_eq!(found_all, all);
}
