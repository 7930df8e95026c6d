//! What a gateway's own store refuses where Redis is unfit, or lacks what the gateway knows.

use std::fs;
use std::time::Duration;

use oncegate::core::record::CallId;
use oncegate::core::timings::Timings;
use oncegate::store::redis::{Redis as RedisStore, Settings};
use oncegate::store::{
    Calls as _, Documents as _, Error, Health as _, LOST_DATA, LossRecovery as _, Put, Replaced,
    Sessions as _,
};
use serde_json::{Value, json};

use crate::stores::admission::{entry, session};
use crate::stores::contract::{
    ME, arrival, claimed, ended, open_redis, open_redis_as_it_is, redis_and_store, replaced, rerun,
    settings,
};
use crate::stores::documents::{document, next};
use crate::support::redis::{Redis, short};
use crate::support::{has_reason, until};

/// Deletes a call, and nothing else: its name still leads to it, and all writes are counted.
async fn lose(redis: &Redis, call_id: CallId) {
    let pattern = format!("oncegate:*:call:{}", short(call_id.0.as_bytes()));
    let keys: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", &pattern]).await).expect("keys");
    redis.ask(&["DEL", &keys[0]]).await;
}

#[tokio::test]
async fn a_call_that_is_gone_from_redis_does_not_run_again() {
    let (redis, _folder, store) = redis_and_store().await;
    let first = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let failed = replaced(&store, &ended(&first, 429, 1), &first).await;
    lose(&redis, failed.intent.call_id).await;
    let again = store.replace(&rerun(&failed, 2), &failed).await;
    assert!(matches!(again, Err(Error::Refused(_))), "{again:?}");
    let left = store.load(failed.intent.call_id).await;
    assert_eq!(left.expect("an answer"), None, "nothing was written");
}

/// Two gateways learn the end of a call at once, and Redis has lost it. They do not agree on the outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_ends_of_a_call_that_is_gone_from_redis_one_is_stored_and_the_other_told() {
    let (redis, folders) = (
        Redis::strict().await,
        [(); 2].map(|()| tempfile::tempdir().expect("a folder")),
    );
    let one = open_redis(&redis.url(), folders[0].path()).await;
    let other = open_redis(&redis.url(), folders[1].path()).await;
    for n in 0..20 {
        let record = claimed(&one, &arrival(&format!("k{n}"), "", 0, ME)).await;
        lose(&redis, record.intent.call_id).await;
        let (done, failed) = (ended(&record, 200, 1), ended(&record, 422, 1));
        let ends = tokio::join!(one.replace(&done, &record), other.replace(&failed, &record));
        let loaded = one.load(record.intent.call_id).await.expect("an answer");
        let stored = loaded.expect("a call");
        match (ends.0.expect("an answer"), ends.1.expect("an answer")) {
            (Replaced::Done(winner), Replaced::Lost(Some(met)))
            | (Replaced::Lost(Some(met)), Replaced::Done(winner)) => {
                assert_eq!((&winner, &met), (&stored, &stored));
            }
            ends => panic!("not one of two: {ends:?}"),
        }
    }
}

/// Otherwise a gateway would take its own claim, of which it had no answer, for that of another.
#[tokio::test]
async fn a_claim_that_is_repeated_at_a_redis_that_became_unfit_is_in_doubt() {
    let (redis, _folder, store) = redis_and_store().await;
    let mine = arrival("k", "S", 0, ME);
    claimed(&store, &mine).await;
    redis
        .ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    until("the store is closed", async || {
        has_reason(&store.readiness().await, "eviction")
    })
    .await;
    let again = store.claim(&mine, &[]).await;
    assert!(matches!(again, Err(Error::Ambiguous(_))), "{again:?}");
    let new = store.claim(&arrival("new", "S", 0, ME), &[]).await;
    assert!(matches!(new, Err(Error::Refused(_))), "{new:?}");
}

/// Another gateway may know of lost writes that this gateway has never seen.
#[tokio::test]
async fn nothing_is_claimed_before_other_gateways_had_time_to_look_at_a_server() {
    let (redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let settings = settings(&redis.url(), folder.path());
    let timings = Timings {
        redis_others_look: Duration::from_secs(3_600),
        ..settings.timings
    };
    let settings = Settings {
        timings,
        ..settings
    };
    // A second process has not waited because the first one did for a moment.
    for _ in 0..2 {
        let store = RedisStore::open(settings.clone()).await;
        let store = store.expect("a store");
        until("the server is new", async || {
            has_reason(&store.readiness().await, "restarted")
        })
        .await;
        let refused = store.claim(&arrival("k", "S", 0, ME), &[]).await;
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        store.close().await;
    }
}

#[tokio::test]
async fn a_gateway_whose_tokens_are_days_ahead_of_the_clock_of_redis_claims_nothing() {
    let (redis, folder, store) = redis_and_store().await;
    let token = claimed(&store, &arrival("k", "S", 0, ME)).await.fencing;
    store.close().await;
    drop(store);
    let file = folder.path().join("watermarks");
    let marks = fs::read(&file).expect("watermarks");
    let mut marks: Value = serde_json::from_slice(&marks).expect("JSON");
    let three_days = 3 * 24 * 3_600 * 1_000_000;
    marks["token"] = json!(token.expect("a token") + three_days);
    fs::write(&file, marks.to_string()).expect("room");
    let store = open_redis_as_it_is(&redis.url(), folder.path()).await;
    until("it is noticed", async || {
        has_reason(&store.readiness().await, "tokens_ahead")
    })
    .await;
    let refused = store.claim(&arrival("new", "", 0, ME), &[]).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
}

/// Other gateways remember it, for the case that Redis and this gateway are lost together.
#[tokio::test]
async fn an_older_published_token_of_a_gateway_is_replaced_in_redis() {
    let (redis, _folder, store) = redis_and_store().await;
    claimed(&store, &arrival("k", "S", 0, ME)).await;
    let tokens = "oncegate:{p000}:tokens";
    let published = async || -> Vec<(String, u64)> {
        ::redis::from_redis_value(redis.ask(&["HGETALL", tokens]).await).expect("tokens")
    };
    until("it is published", async || {
        matches!(published().await[..], [(_, 1..)])
    })
    .await;
    let (gateway, token) = published().await.remove(0);
    redis.ask(&["HSET", tokens, &gateway, "1"]).await;
    until("it is published again", async || {
        published().await[0].1 >= token
    })
    .await;
}

/// The next server to answer may be another one, so it is not waited for the next look at it.
#[tokio::test]
async fn when_the_connection_ends_the_server_is_looked_at_at_once() {
    let (redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let settings = settings(&redis.url(), folder.path());
    let timings = Timings {
        redis_look_every: Duration::from_secs(3_600),
        ..settings.timings
    };
    let store = RedisStore::open(Settings {
        timings,
        ..settings
    })
    .await;
    let store = store.expect("a store");
    until("the store is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    // Only an inspection asks for the time.
    let looks = async || {
        let stats = redis.ask(&["INFO", "commandstats"]).await;
        let stats: String = ::redis::from_redis_value(stats).expect("a text");
        let mut lines = stats.lines();
        let times = lines.find_map(|line| line.strip_prefix("cmdstat_time:calls="));
        let calls = times.and_then(|times| times.split(',').next());
        calls.expect("a look").parse::<u64>().expect("a number")
    };
    let before = looks().await;
    redis.ask(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    until("it is looked at again", async || looks().await > before).await;
}

/// A loss may have taken a newer version, so an operator looks first.
#[tokio::test]
async fn documents_are_changed_after_a_loss_only_while_an_operator_accepts_it() {
    let (redis, _folder, store) = redis_and_store().await;
    let first = document("shop", "s", 0);
    assert_eq!(store.put_document(&first).await.ok(), Some(Put::Done));
    redis.ask(&["FLUSHALL"]).await;
    until("the loss is noticed", async || {
        has_reason(&store.readiness().await, "lost_data")
    })
    .await;
    let second = next(&first, "completed");
    let is_refused = async || matches!(store.put_document(&second).await, Err(Error::Refused(_)));
    assert!(is_refused().await);
    let prepared = store.prepare_acceptance("a test").await;
    prepared.expect("an acceptance that begins");
    assert!(!is_refused().await);
    store.cancel_acceptance();
    assert!(is_refused().await);
}

/// Gateways also note it in the audit, which is counted, too; but not in the form that 0.2.0 reads.
#[tokio::test]
async fn a_freeze_alone_that_redis_has_lost_is_noticed() {
    let (mut redis, _folder, store) = redis_and_store().await;
    claimed(&store, &arrival("k", "S", 0, ME)).await;
    let snapshot = redis.snapshot();
    let is_frozen = store.set_frozen(&session(), true, &entry("frozen")).await;
    assert!(is_frozen.expect("an answer"));
    redis.restore(snapshot.path()).await;
    until("the loss is noticed", async || {
        has_reason(&store.readiness().await, LOST_DATA)
    })
    .await;
}
