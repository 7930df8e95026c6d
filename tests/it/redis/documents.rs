//! Documents that a Redis has lost, cannot read or has no room for.

use std::sync::Arc;

use ::redis::FromRedisValue as _;
use oncegate::core::document::{Document, Kind};
use oncegate::store::{
    Calls as _, DocumentQuery, Documents as _, Health as _, LossRecovery as _, Put,
};

use crate::stores::contract::{
    Home, ME, arrival, at, claimed, ended, open_redis, redis_and_store, replaced,
};
use crate::stores::documents::{document, load, next, put};
use crate::support::line::Line;
use crate::support::redis::Redis;
use crate::support::{has_reason, until};

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_documents_do_not_hide_those_behind_them_on_redis() {
    for home in [Home::sqlite().await, Home::redis().await] {
        let store = home.store.as_ref();
        for n in 0..5 {
            put(
                store,
                &Document {
                    due_at: Some(at(n)),
                    ..document("shop", &format!("spoiled {n}"), 9)
                },
            )
            .await;
        }
        home.spoil_documents().await;
        let good = put(
            store,
            &Document {
                due_at: Some(at(9)),
                ..document("shop", "good", 1)
            },
        )
        .await;
        let due = store
            .due_documents(Kind::Saga, at(99), 2)
            .await
            .expect("an answer");
        assert_eq!((due.calls, due.unreadable.len()), (vec![good.clone()], 5));
        let (mut listed, mut named, mut before, mut is_first) = (Vec::new(), 0, None, true);
        while std::mem::take(&mut is_first) || before.is_some() {
            let (found, next) = store
                .documents(&DocumentQuery {
                    before,
                    ..DocumentQuery::newest(Kind::Saga, 2)
                })
                .await
                .expect("an answer");
            named += found.unreadable.len();
            (listed, before) = ([listed, found.calls].concat(), next);
        }
        assert_eq!(listed, [good]);
        assert_eq!(named, 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_document_is_noticed_before_another_is_written_on_redis() {
    let (mut redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let store = open_redis(&redis.url(), folder.path()).await;
    let first = put(&store, &document("shop", "s", 1)).await;
    let whole_since = store.readiness().await.whole_since.expect("it is known");
    let snapshot = redis.snapshot();
    put(&store, &next(&first, "completed")).await;
    redis.restore(snapshot.path()).await;
    let again = next(&first, "aborted");
    // The gateway may have to connect again first.
    until("the loss is noticed", async || {
        assert_ne!(
            store.put_document(&again).await.ok(),
            Some(Put::Done),
            "a document was written to the older copy"
        );
        has_reason(&store.readiness().await, oncegate::store::LOST_DATA)
    })
    .await;
    assert!(store.put_document(&again).await.is_err());
    store.accept_loss("restored").await.expect("accepted");
    until("the store is open again", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    assert_eq!(
        load(&store, &first).await,
        Some(first),
        "the accepted document is the older one"
    );
    assert!(
        store.readiness().await.whole_since > Some(whole_since),
        "earlier calls may be gone"
    );
    put(&store, &again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_memory_is_full_documents_change_and_none_is_made_on_redis() {
    let (redis, _folder, store) = redis_and_store().await;
    let first = put(&store, &document("shop", "s", 1)).await;
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert!(
        store.put_document(&document("shop", "t", 1)).await.is_err(),
        "the Redis itself refuses"
    );
    let first = put(&store, &next(&first, "completed")).await;
    until("the store is not ready", async || {
        !store.readiness().await.reasons.is_empty()
    })
    .await;
    assert!(
        store.put_document(&document("shop", "t", 1)).await.is_err(),
        "nothing may begin while memory is full"
    );
    put(&store, &next(&first, "aborted")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_act_of_an_operator_is_recorded_on_a_redis_with_nearly_full_memory() {
    let (redis, _folder, store) = redis_and_store().await;
    let act = |id| Document {
        kind: Kind::Act,
        ..document("shop", id, 1)
    };
    let put_back = async |document: &Document| store.put_back_document(document).await.is_ok();
    assert!(put_back(&act("A")).await, "memory is free");
    let info = String::from_redis_value(redis.ask(&["INFO", "memory"]).await).expect("a text");
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    let used: u64 = used.expect("a number").parse().expect("a number");
    // A tenth of the memory is free: the server itself still takes all writes.
    let limit = (used * 10 / 9).to_string();
    redis.ask(&["CONFIG", "SET", "maxmemory", &limit]).await;
    until("the store is not ready", async || {
        !store.readiness().await.reasons.is_empty()
    })
    .await;
    assert!(!put_back(&act("B")).await);
    let begins = store.put_document(&document("shop", "new", 1)).await;
    assert!(begins.is_err(), "nothing begins: {begins:?}");
    assert!(
        put_back(&next(&act("A"), "open")).await,
        "the outcome of an act is recorded"
    );
    let mark = Document {
        kind: Kind::Session,
        ..document("shop", "S", 1)
    };
    assert!(put_back(&mark).await, "other kinds are recorded");
}

/// An index is read before what it leads to. What another gateway takes in between would be done twice.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_gateway_has_taken_meanwhile_is_not_due_in_a_redis() {
    let (redis, folders) = (
        Redis::strict().await,
        [(); 2].map(|()| tempfile::tempdir().expect("a folder")),
    );
    let line = Line::to(redis.port).await;
    let slow = Arc::new(open_redis(&line.url(), folders[0].path()).await);
    let other = open_redis(&redis.url(), folders[1].path()).await;
    let taken = Document {
        due_at: Some(at(1)),
        ..document("shop", "taken", 1)
    };
    let taken = put(&other, &taken).await;
    let call = claimed(&other, &arrival("k", "S", 0, ME)).await;
    let (of_documents, of_calls) = (slow.clone(), slow.clone());

    line.hold(b"HMGET");
    let found =
        tokio::spawn(async move { of_documents.due_documents(Kind::Saga, at(40), 9).await });
    until("the index was read", async || line.holds() > 0).await;
    let later = Document {
        due_at: Some(at(60)),
        ..next(&taken, "running")
    };
    put(&other, &later).await;
    line.release();
    let found = found.await.expect("no panic").expect("an answer");
    assert_eq!(found.calls, []);
    let due = slow.due_documents(Kind::Saga, at(60), 9).await;
    assert_eq!(due.expect("an answer").calls, [later]);

    let due = slow.due(at(40), 9).await.expect("an answer");
    assert_eq!(due.calls.len(), 1);
    line.hold(b"GETRANGE");
    let found = tokio::spawn(async move { of_calls.due(at(40), 9).await });
    until("the index was read", async || line.holds() > 0).await;
    replaced(&other, &ended(&call, 200, 20), &call).await;
    line.release();
    let found = found.await.expect("no panic").expect("an answer");
    assert_eq!(found.calls.len(), 0);
}
