//! Long questions hold up no call, and an uncommitted job is not acknowledged.

use std::sync::atomic::Ordering;
use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::{Sqlite, calls};
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{CallId, InstanceId};
use oncegate_store::{Calls as _, Documents as _, Health as _, Pauses as _};

fn open(folder: &std::path::Path) -> Sqlite {
    let (path, me) = (folder.join("oncegate.db"), InstanceId(Uuid::from_u128(1)));
    Sqlite::open(&path, me, &CancellationToken::new()).expect("a store")
}

/// A thread that reads, beside those of the store.
fn reader(store: &Sqlite, fatal: &CancellationToken) -> Thread {
    Thread {
        name: "reader",
        connection: Connection::open_in_memory().expect("a database"),
        batch: BATCH,
        writing: None,
        check: store.gate.check.clone(),
        files: store.files.upgrade().expect("open"),
        fatal: fatal.clone(),
    }
}

/// Two questions take as long as they like, and a third one waits behind them.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_question_to_the_ledger_holds_up_no_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let (begun, mut is_begun) = mpsc::channel(3);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let questions: Vec<_> = (0..3)
        .map(|_| {
            let (begun, ended, ledger) =
                (begun.clone(), ended.clone(), store.readers.ledger.clone());
            tokio::spawn(async move {
                let ask = move |_: &Connection| {
                    begun.blocking_send(()).expect("a test that listens");
                    // Until the test drops `end`.
                    let end = lock(&ended).recv();
                    assert!(end.is_err(), "nothing is sent");
                    Ok(())
                };
                ledger.run(Need::Plain, ask).await
            })
        })
        .collect();
    for _ in 0..2 {
        is_begun.recv().await.expect("a question");
    }
    let looks = async {
        let now = jiff::Timestamp::UNIX_EPOCH;
        assert_eq!(
            store.holders(&[Lookup([1; 16])]).await.expect("an answer"),
            []
        );
        assert_eq!(
            store
                .load(CallId(Uuid::from_u128(1)))
                .await
                .expect("an answer"),
            None
        );
        assert_eq!(store.paused().await.expect("an answer"), []);
        assert_eq!(store.due(now, 9).await.expect("an answer").calls, []);
        assert_eq!(
            store
                .due_rechecks(now, &["t".to_owned()], 9)
                .await
                .expect("an answer")
                .calls,
            []
        );
        assert!(store.readiness().await.reasons.is_empty());
    };
    let looked = tokio::time::timeout(Duration::from_secs(60), looks).await;
    looked.expect("nothing waits for a question");
    assert!(
        questions.iter().all(|question| !question.is_finished()),
        "they still ask"
    );
    drop(end);
    for question in questions {
        question.await.expect("no panic").expect("an answer");
    }
}

/// Each kind of read has connections of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_write_holds_up_no_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let (begun, mut is_begun) = mpsc::channel(1);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let writer = store.writer.clone();
    let write = tokio::spawn(async move {
        let wait = move |_: &Connection| {
            begun.blocking_send(()).expect("a test that listens");
            // Until the test drops `end`.
            assert!(ended.recv().is_err(), "nothing is sent");
            Ok(())
        };
        writer.run(Need::Plain, wait).await
    });
    is_begun.recv().await.expect("a write");
    let looks = async {
        for reader in [
            &store.readers.calls,
            &store.readers.due,
            &store.readers.ledger,
        ] {
            reader.read(|_| Ok(())).await.expect("an answer");
        }
    };
    let looked = tokio::time::timeout(Duration::from_secs(60), looks).await;
    looked.expect("nothing waits for the write");
    drop(end);
    write.await.expect("no panic").expect("an answer");
}

#[tokio::test]
async fn a_full_disk_takes_marks_and_ends_of_acts_but_no_new_act() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let make = |kind, id: &str, version| Document {
        kind,
        tenant: "shop".into(),
        id: id.into(),
        version,
        state: "freeze".into(),
        created_at: jiff::Timestamp::UNIX_EPOCH,
        due_at: None,
        retain_until: None,
        body: "{}".into(),
    };
    let put = async |document: Document| store.put_back_document(&document).await.is_ok();
    assert!(put(make(Kind::Act, "A", 1)).await, "the disk has room");
    let is_short = &store.gate.short_of_space;
    is_short.store(true, Ordering::SeqCst);
    assert!(!put(make(Kind::Act, "B", 1)).await);
    assert!(put(make(Kind::Act, "A", 2)).await, "its outcome");
    assert!(put(make(Kind::Session, "S", 1)).await, "a mark");
}

#[tokio::test]
async fn only_an_outcome_that_finds_the_disk_full_uses_the_space_that_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    for (need, code, is_used) in [
        (Need::Plain, ffi::SQLITE_FULL, false),
        (Need::Reserve, ffi::SQLITE_BUSY, false),
        (Need::Reserve, ffi::SQLITE_FULL, true),
    ] {
        let fails = move |_: &Connection| -> rusqlite::Result<()> {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))
        };
        let answer = store.writer.run(need, fails).await;
        assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
        let released = &store.gate.short_of_space;
        assert_eq!(released.load(Ordering::SeqCst), is_used, "{code}");
    }
}

#[tokio::test]
async fn a_job_whose_commit_fails_is_not_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    // A deferred constraint fails at the commit, and not before.
    let fails_late = |connection: &Connection| {
        connection.execute_batch(
            "CREATE TABLE one (id INTEGER PRIMARY KEY);
             CREATE TABLE other (one INTEGER REFERENCES one DEFERRABLE INITIALLY DEFERRED);
             INSERT INTO other VALUES (1);",
        )
    };
    let answer = store.writer.run(Need::Plain, fails_late).await;
    assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
}

/// With many unknown calls each look would read and sort all of them.
#[tokio::test]
async fn due_rechecks_are_found_by_an_index() {
    let folder = tempfile::tempdir().expect("a folder");
    let _store = open(folder.path());
    let connection = Connection::open(folder.path().join("oncegate.db")).expect("opened");
    let mut plan = connection
        .prepare(&format!("EXPLAIN QUERY PLAN {}", calls::DUE_RECHECKS))
        .expect("a statement");
    let plan: Vec<String> = plan
        .query_map(("tool", 1), |step| step.get("detail"))
        .and_then(Iterator::collect)
        .expect("a plan");
    assert_eq!(
        plan,
        [
            "SEARCH c USING INDEX calls_to_check (tool=? AND due_at<?)",
            "SEARCH i USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"
        ]
    );
}

/// A failed fsync must not be tried again, and a full disk must not stop the gateway.
#[test]
fn a_failed_disk_or_a_damaged_file_is_fatal_and_a_full_disk_is_not() {
    let is_fatal = |code| {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        Failed::from(error).is_fatal()
    };
    for code in [
        ffi::SQLITE_IOERR_FSYNC,
        ffi::SQLITE_CORRUPT,
        ffi::SQLITE_NOTADB,
    ] {
        assert!(is_fatal(code), "{code}");
    }
    for code in [
        ffi::SQLITE_FULL,
        ffi::SQLITE_IOERR_SHMSIZE,
        ffi::SQLITE_BUSY,
    ] {
        assert!(!is_fatal(code), "{code}");
    }
}

/// Otherwise one damaged call would fail the reads of all others in its batch.
#[tokio::test]
async fn a_question_that_fails_fails_no_other_of_its_batch() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let (worker, waiting) = Worker::new();
    let reader = reader(&store, &CancellationToken::new());
    let fails = worker.read(|connection| connection.execute_batch("nonsense"));
    let works = worker.read(|_| Ok(7));
    // Both questions wait when it begins.
    let begins = async { reader.start(waiting).expect("a thread") };
    let (failed, worked, _) = tokio::join!(fails, works, begins);
    assert!(matches!(failed, Err(Error::Refused(_))), "{failed:?}");
    assert_eq!(worked.expect("an answer"), 7);
}

#[tokio::test]
async fn a_store_that_is_closed_writes_its_watermarks_a_last_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let watermarks = folder.path().join("oncegate.db.watermarks");
    std::fs::write(&watermarks, "").expect("emptied");
    store.close().await;
    assert_ne!(std::fs::read(&watermarks).expect("a file"), b"");
}

/// Nothing shows what a file keeps that is not at its place any more.
#[tokio::test]
async fn a_gateway_whose_file_is_gone_stops_and_leaves_the_outcome_open() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let (worker, waiting) = Worker::new();
    let fatal = CancellationToken::new();
    let reader = reader(&store, &fatal);
    std::fs::remove_file(folder.path().join("oncegate.db")).expect("a file");
    let read = worker.read(|_| Ok(7));
    let begins = async { reader.start(waiting).expect("a thread") };
    let (read, _) = tokio::join!(read, begins);
    assert!(matches!(read, Err(Error::Ambiguous(_))), "{read:?}");
    assert!(fatal.is_cancelled());
}
