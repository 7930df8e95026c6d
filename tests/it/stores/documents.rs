//! The contract of a store for documents, tested with each store.

use jiff::Timestamp;
use oncegate::core::document::{Document, Kind};
use oncegate::core::position::Position;
use oncegate::store::{DocumentQuery, Documents as _, Encrypted, Keys, Put, Store};
use tokio::task::JoinSet;

use crate::stores::contract::{Home, at, contract};
use crate::support::search::holds;

contract! {
    a_document_comes_back_as_it_was_written_also_after_a_restart,
    one_of_many_writers_of_a_version_succeeds,
    a_document_written_again_is_done_and_changes_nothing,
    due_documents_come_in_the_order_of_their_times,
    lists_show_every_document_once_newest_first_by_tenant_and_state,
    only_documents_whose_time_is_over_are_deleted,
}

pub fn document(tenant: &str, id: &str, second: i64) -> Document {
    Document {
        kind: Kind::Saga,
        tenant: tenant.into(),
        id: id.into(),
        version: 1,
        state: "open".into(),
        created_at: at(second),
        due_at: None,
        retain_until: None,
        body: "{\"a\": 1.0, \"b\":\"\u{e4}\"}".into(),
    }
}

pub fn next(document: &Document, state: &str) -> Document {
    Document {
        version: document.version + 1,
        state: state.into(),
        ..document.clone()
    }
}

pub async fn put(store: &dyn Store, document: &Document) -> Document {
    assert_eq!(
        store.put_document(document).await.expect("an answer"),
        Put::Done,
        "{document:?}"
    );
    document.clone()
}

pub async fn load(store: &dyn Store, of: &Document) -> Option<Document> {
    store
        .document(of.kind, &of.tenant, &of.id)
        .await
        .expect("an answer")
}

async fn counts(store: &dyn Store) -> Vec<(String, u64)> {
    store.count_documents(Kind::Saga).await.expect("an answer")
}

async fn a_document_comes_back_as_it_was_written_also_after_a_restart(home: Home) {
    let store = home.store.as_ref();
    let whole = Document {
        due_at: Some(at(5)),
        retain_until: Some(at(9)),
        ..document("shop", "s:1", 1)
    };
    let odd = Document {
        body: "".into(),
        state: "".into(),
        ..document("", "a b\n{}", 2)
    };
    let other_kind = Document {
        kind: Kind::Report,
        ..whole.clone()
    };
    for document in [&whole, &odd, &other_kind] {
        assert_eq!(load(store, document).await, None);
        put(store, document).await;
    }
    let changed = put(
        store,
        &Document {
            due_at: None,
            body: "2".into(),
            ..next(&whole, "stuck")
        },
    )
    .await;
    let home = home.reopen().await;
    for document in [&changed, &odd, &other_kind] {
        assert_eq!(
            load(home.store.as_ref(), document).await.as_ref(),
            Some(document)
        );
    }
    let store = home.store.as_ref();
    assert_eq!(
        load(store, &document("shop2", "s:1", 1)).await,
        None,
        "a document of another tenant"
    );
    assert_eq!(
        counts(store).await,
        [(String::new(), 1), ("stuck".into(), 1)]
    );
    // Times are stored to the microsecond. A document with finer times still counts as the same when it is written again.
    let fine = Document {
        created_at: Timestamp::from_nanosecond(1_700_000_000_000_001_234).expect("a time"),
        ..document("shop", "fine", 0)
    };
    put(store, &fine).await;
    put(store, &fine).await;
    assert_eq!(load(store, &fine).await, Some(fine.to_the_microsecond()));
}

async fn one_of_many_writers_of_a_version_succeeds(home: Home) {
    let first = put(home.store.as_ref(), &document("shop", "s", 1)).await;
    let mut writers = JoinSet::new();
    for n in 0..40 {
        let (store, state) = (home.store.clone(), format!("of {n}"));
        let mine = next(&first, &state);
        writers.spawn(async move { (store.put_document(&mine).await.expect("an answer"), mine) });
    }
    let mut written = Vec::new();
    let mut lost = Vec::new();
    for (put, mine) in writers.join_all().await {
        match put {
            Put::Done => written.push(mine),
            Put::Lost(Some(stored)) => lost.push(stored),
            Put::Lost(None) => panic!("it is stored"),
        }
    }
    assert_eq!((written.len(), lost.len()), (1, 39));
    assert!(
        lost.iter().all(|stored| *stored == written[0]),
        "all get the stored document"
    );
    assert_eq!(
        counts(home.store.as_ref()).await,
        [(written[0].state.clone(), 1)]
    );
}

/// The same version with another body is not written.
async fn another_body_loses_to(store: &dyn Store, first: &Document) {
    let other = Document {
        body: "other".into(),
        ..first.clone()
    };
    assert_eq!(
        store.put_document(&other).await.expect("an answer"),
        Put::Lost(Some(first.clone()))
    );
}

async fn a_document_written_again_is_done_and_changes_nothing(home: Home) {
    let store = home.store.as_ref();
    let first = put(store, &document("shop", "s", 1)).await;
    put(store, &first).await;
    another_body_loses_to(store, &first).await;
    let second = put(store, &next(&first, "completed")).await;
    put(store, &second).await;
    assert_eq!(counts(store).await, [("completed".into(), 1)]);
    assert_eq!(
        store.put_document(&first).await.expect("an answer"),
        Put::Lost(Some(second.clone()))
    );
    let later = next(&next(&second, "x"), "x");
    assert_eq!(
        store.put_document(&later).await.expect("an answer"),
        Put::Lost(Some(second.clone()))
    );
    let absent = next(&document("shop", "absent", 1), "x");
    assert_eq!(
        store.put_document(&absent).await.expect("an answer"),
        Put::Lost(None)
    );
    assert_eq!(load(store, &second).await, Some(second));
}

async fn due_documents_come_in_the_order_of_their_times(home: Home) {
    let store = home.store.as_ref();
    let due = async |second: i64, limit: u32| {
        let due = store
            .due_documents(Kind::Saga, at(second), limit)
            .await
            .expect("an answer");
        due.calls
            .into_iter()
            .map(|document| document.id)
            .collect::<Vec<_>>()
    };
    for (id, time) in [("c", 30), ("a", 10), ("b", 20)] {
        put(
            store,
            &Document {
                due_at: Some(at(time)),
                ..document("shop", id, 1)
            },
        )
        .await;
    }
    put(store, &document("shop", "never", 1)).await;
    put(
        store,
        &Document {
            kind: Kind::Report,
            due_at: Some(at(1)),
            ..document("shop", "other", 1)
        },
    )
    .await;
    assert_eq!(due(9, 10).await, [""; 0]);
    assert_eq!(due(20, 10).await, ["a", "b"]);
    assert_eq!(due(99, 2).await, ["a", "b"]);
    let a = Document {
        due_at: Some(at(40)),
        ..document("shop", "a", 1)
    };
    put(store, &next(&a, "open")).await;
    let b = Document {
        due_at: None,
        ..document("shop", "b", 1)
    };
    put(store, &next(&b, "open")).await;
    assert_eq!(due(99, 10).await, ["c", "a"]);
}

async fn lists_show_every_document_once_newest_first_by_tenant_and_state(home: Home) {
    let store = home.store.as_ref();
    let mut all = Vec::new();
    for n in 0..12 {
        let tenant = ["shop", "bank"][n % 2];
        // Three in each second, so that a page ends within a second.
        all.push(put(store, &document(tenant, &format!("s{n}"), (n / 3) as i64)).await);
    }
    for n in [1, 2, 8] {
        all[n] = put(store, &next(&all[n], "stuck")).await;
    }
    all.sort_by_key(|document| std::cmp::Reverse(Position::of_document(document)));
    let places = [None, Some("shop"), Some("bank"), Some("nobody")];
    for (tenant, state) in places
        .into_iter()
        .flat_map(|t| [(t, None), (t, Some("stuck")), (t, Some("x"))])
    {
        let (mut shown, mut before) = (Vec::new(), None);
        loop {
            let (found, more) = store
                .documents(&DocumentQuery {
                    tenant: tenant.map(str::to_owned),
                    state: state.map(str::to_owned),
                    before,
                    ..DocumentQuery::newest(Kind::Saga, 2)
                })
                .await
                .expect("an answer");
            assert!(found.calls.len() <= 2);
            shown.extend(found.calls);
            // Clients send the position as a cursor.
            before =
                more.map(|place| Position::from_cursor(&place.to_cursor()).expect("a position"));
            if before.is_none() {
                break;
            }
        }
        let is_asked_for = |document: &&Document| {
            tenant.is_none_or(|tenant| document.tenant == tenant)
                && state.is_none_or(|state| document.state == state)
        };
        let expected: Vec<Document> = all.iter().filter(is_asked_for).cloned().collect();
        assert_eq!(shown, expected, "{tenant:?} {state:?}");
    }
    assert_eq!(
        counts(store).await,
        [("open".into(), 9), ("stuck".into(), 3)]
    );
}

async fn only_documents_whose_time_is_over_are_deleted(home: Home) {
    let store = home.store.as_ref();
    let until_10 = |id: &str| Document {
        retain_until: Some(at(10)),
        ..document("shop", id, 1)
    };
    let gone = Document {
        due_at: Some(at(1)),
        ..until_10("gone")
    };
    put(store, &gone).await;
    let kept = put(store, &document("shop", "kept", 1)).await;
    let reopened = put(store, &until_10("reopened")).await;
    let reopened = put(
        store,
        &Document {
            retain_until: None,
            ..next(&reopened, "open")
        },
    )
    .await;
    let later = put(
        store,
        &Document {
            retain_until: Some(at(20)),
            ..document("shop", "later", 1)
        },
    )
    .await;
    store.prune(at(9), 10).await.expect("an answer");
    assert!(load(store, &gone).await.is_some(), "its time has not come");
    assert_eq!(store.prune(at(10), 10).await.expect("an answer"), 1);
    assert_eq!(load(store, &gone).await, None);
    for document in [&kept, &reopened, &later] {
        assert_eq!(load(store, document).await.as_ref(), Some(document));
    }
    let (left, _) = store
        .documents(&DocumentQuery::newest(Kind::Saga, 10))
        .await
        .expect("an answer");
    assert_eq!(left.calls.len(), 3);
    assert_eq!(counts(store).await, [("open".into(), 3)]);
    assert_eq!(
        store
            .due_documents(Kind::Saga, at(99), 10)
            .await
            .expect("an answer")
            .calls,
        []
    );
    put(store, &gone).await;
    assert_eq!(
        counts(store).await,
        [("open".into(), 4)],
        "its name is free again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_document_opens_only_in_its_place() {
    let home = Home::sqlite().await;
    let sealed =
        |key: u8| Encrypted::new(home.store.clone(), Keys::new(&[[key; 32]]).expect("keys"));
    let (store, plain) = (sealed(1), home.store.as_ref());
    let first = put(&store, &document("shop", "s", 1)).await;
    put(&store, &first).await;
    let kept = load(plain, &first).await.expect("a document");
    assert!(!holds(&kept.body, "\"a\""), "{:?}", kept.body);
    assert_eq!(load(&store, &first).await, Some(first.clone()));
    another_body_loses_to(&store, &first).await;
    let (listed, _) = store
        .documents(&DocumentQuery::newest(Kind::Saga, 9))
        .await
        .expect("an answer");
    assert_eq!(listed.calls, std::slice::from_ref(&first));
    put(
        plain,
        &Document {
            body: kept.body,
            ..document("shop", "elsewhere", 1)
        },
    )
    .await;
    assert!(
        store
            .document(Kind::Saga, "shop", "elsewhere")
            .await
            .is_err(),
        "it was moved"
    );
    assert!(
        sealed(2).document(Kind::Saga, "shop", "s").await.is_err(),
        "another key"
    );
    let (listed, _) = store
        .documents(&DocumentQuery::newest(Kind::Saga, 9))
        .await
        .expect("an answer");
    assert_eq!(listed.calls, [first], "the others are listed");
    let (id, why) = &listed.unreadable[0];
    assert!(
        id == "elsewhere" && why.contains("belongs elsewhere"),
        "{id}: {why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_of_a_frozen_session_is_found_and_changed_whatever_keys_there_are() {
    let home = Home::sqlite().await;
    let sealed =
        |key: u8| Encrypted::new(home.store.clone(), Keys::new(&[[key; 32]]).expect("keys"));
    let mark = Document {
        kind: Kind::Session,
        ..document("shop", "S", 1)
    };
    let (before, after) = (sealed(1), sealed(2));
    put(&before, &mark).await;
    let (listed, _) = after
        .documents(&DocumentQuery::newest(Kind::Session, 9))
        .await
        .expect("an answer");
    assert_eq!(listed.calls, std::slice::from_ref(&mark));
    assert_eq!(load(&after, &mark).await, Some(mark.clone()));
    put(&after, &next(&mark, "thawed")).await;
}
