//! Damaged rows. A call with a missing part never counts as absent, and hides no other call.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Params;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;
use oncegate_rules::call::{Arrival, Change, Event, next};
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::key::{Lookup, Source};
use oncegate_rules::ledger::{Duplicate, Duplicates, Filter};
use oncegate_rules::outcome::Evidence;
use oncegate_rules::record::{AttemptId, Intent, Record};
use oncegate_rules::session::Preconditions;
use oncegate_rules::tool::Tool;
use oncegate_store::{Calls as _, Claimed, Documents as _, Found, Ledger as _, Put, Replaced};

const ME: InstanceId = InstanceId(Uuid::from_u128(1));

/// A store, and a second connection that damages its file.
pub(super) struct Damaged {
    pub(super) store: Sqlite,
    pub(super) file: Connection,
    _folder: tempfile::TempDir,
}

impl Damaged {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path: &Path = &folder.path().join("oncegate.db");
        Self {
            store: Sqlite::open(path, ME, &CancellationToken::new()).expect("a store"),
            file: Connection::open(path).expect("opened"),
            _folder: folder,
        }
    }

    fn damage(&self, sql: &str, params: impl Params) {
        assert_eq!(self.file.execute(sql, params), Ok(1), "{sql}");
    }

    pub(super) async fn claimed(&self, key: &str) -> Record {
        match self.store.claim(&arrival(key), &[]).await {
            Ok(Claimed::Yours(record)) => record,
            other => panic!("not claimed: {other:?}"),
        }
    }

    /// A new call that ends with this evidence. `over`: the second of the end of its retention.
    async fn ended(&self, key: &str, evidence: Evidence, over: Option<i64>) -> Record {
        let running = self.claimed(key).await;
        self.end(&running, evidence, over).await
    }

    pub(super) async fn end(
        &self,
        running: &Record,
        evidence: Evidence,
        over: Option<i64>,
    ) -> Record {
        let event = Event::ended(running, evidence);
        let change = next(&Tool::new("t"), Some(running), &event, at(1));
        let mut change = change.expect("an end").change.expect("a change");
        change.record.retain_until = over.map(at);
        match self.store.replace(&change, running).await {
            Ok(Replaced::Done(record)) => record,
            other => panic!("not replaced: {other:?}"),
        }
    }

    /// A failed call whose retention ends at this second.
    async fn over(&self, key: &str, second: i64) -> Record {
        let why = "it is not there".into();
        self.ended(key, Evidence::NotSent { why }, Some(second))
            .await
    }

    /// An unknown call. `due`: the second of its next check.
    pub(super) async fn unknown(&self, key: &str, due: Option<i64>) -> Record {
        let why = "timed out".into();
        let unknown = self.ended(key, Evidence::NoAnswer { why }, None).await;
        let due = due.map(|second| at(second).as_microsecond());
        self.damage(
            "UPDATE calls SET due_at = ?2 WHERE seq = (SELECT seq FROM ids WHERE call_id = ?1)",
            (id(&unknown), due),
        );
        unknown
    }

    /// Damages one column of a call, in whichever table has it.
    fn spoil(&self, record: &Record, column: &str) {
        let table = match column {
            "intent" => "intents",
            "duplicates" => "duplicates",
            _ => "calls",
        };
        let sql = format!(
            "UPDATE {table} SET {column} = x'ff' WHERE seq = (SELECT seq FROM ids WHERE call_id = ?1)"
        );
        self.damage(&sql, [id(record)]);
    }

    /// Damages the index of a table: by the index, cleanup may delete all rows.
    ///
    /// SQLite does not update an index while its schema says that it has no rows.
    fn mislead(&self, table: &str) {
        let say = |from: &str, to: &str| {
            format!(
                "PRAGMA writable_schema = ON;
                 UPDATE sqlite_schema SET sql = replace(sql, 'WHERE {from}', 'WHERE {to}')
                     WHERE name = '{table}_to_prune';
                 PRAGMA writable_schema = RESET;"
            )
        };
        let (some, none) = ("retain_until IS NOT NULL", "0");
        let sql = format!(
            "UPDATE {table} SET retain_until = 1; {}
             UPDATE {table} SET retain_until = NULL; {}",
            say(some, none),
            say(none, some)
        );
        self.file.execute_batch(&sql).expect("misled");
    }

    /// Deletes a call's row of this table.
    fn lose(&self, record: &Record, table: &str) {
        let sql =
            format!("DELETE FROM {table} WHERE seq = (SELECT seq FROM ids WHERE call_id = ?1)");
        self.damage(&sql, [id(record)]);
    }

    /// The keys on a page of the ledger, and how many calls on it are unreadable.
    async fn listed(&self, filter: Filter) -> (Vec<String>, u64) {
        let page = self.store.list("shop", &filter, None, 10).await;
        let page = page.expect("a page");
        let keys = page
            .found
            .into_iter()
            .map(|listed| listed.record.intent.key.clone());
        (keys.collect(), page.unreadable)
    }
}

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

/// A document that is due at once.
pub(super) fn saga() -> Document {
    Document {
        kind: Kind::Saga,
        tenant: "shop".into(),
        id: "G".into(),
        version: 1,
        state: "open".into(),
        created_at: at(0),
        due_at: Some(at(1)),
        retain_until: None,
        body: "{}".into(),
    }
}

fn id(record: &Record) -> [u8; 16] {
    record.intent.call_id.0.into_bytes()
}

pub(super) fn arrival(key: &str) -> Change {
    let lookup = Lookup::new("shop", "t", key);
    let intent = Intent {
        call_id: CallId::new(Uuid::new_v4(), &lookup),
        lookup,
        key: key.into(),
        trace_id: "trace".into(),
        created_at: at(0),
        ..(*oncegate_rules::testing::intent(Source::Runtime, 1)).clone()
    };
    let event = Event::Arrived(Arrival {
        intent: Arc::new(intent),
        fingerprints: Arc::default(),
        preconditions: Preconditions::default(),
        attempt: AttemptId(Uuid::new_v4()),
        owner: ME,
    });
    let next = next(&Tool::new("t"), None, &event, at(0)).expect("a claim");
    next.change.expect("a change")
}

fn by_key(key: &str) -> Filter {
    Filter {
        key: Some(key.into()),
        ..Filter::default()
    }
}

#[tokio::test]
async fn a_key_is_not_free_because_a_row_of_its_call_is_lost() {
    for table in ["intents", "calls"] {
        let damaged = Damaged::new();
        let call = damaged.claimed("k").await;
        damaged.lose(&call, table);
        let again = arrival("k");
        let (store, call_id) = (&damaged.store, call.intent.call_id);
        assert!(store.claim(&again, &[]).await.is_err(), "{table}");
        let lookups = [call.intent.lookup];
        assert!(store.holders(&lookups).await.is_err(), "{table}");
        assert!(store.load(call_id).await.is_err(), "{table}");
        assert!(store.history(call_id, 9).await.is_err(), "{table}");
        assert!(store.replace(&again, &call).await.is_err(), "{table}");
        let maker = store.maker(call_id).await;
        assert_eq!(maker.is_err(), table == "intents", "{table}");
        assert_eq!(damaged.listed(by_key("k")).await, (vec![], 1), "{table}");
        assert_eq!(
            damaged.listed(Filter::default()).await,
            (vec![], 1),
            "{table}"
        );
        if table == "intents" {
            let due = store.due(at(1_000_000), 9).await.expect("an answer");
            assert_eq!((due.calls, due.unreadable.len()), (vec![], 1));
        }
    }
}

#[tokio::test]
async fn a_name_or_an_id_that_leads_to_another_call_is_an_error() {
    let damaged = Damaged::new();
    let (one, other) = (damaged.claimed("one").await, damaged.claimed("other").await);
    let seq = "(SELECT seq FROM names WHERE lookup = ?2)";
    let sql = format!("UPDATE names SET seq = {seq} WHERE lookup = ?1");
    damaged.damage(&sql, (one.intent.lookup.0, other.intent.lookup.0));
    let lookups = [one.intent.lookup];
    assert!(damaged.store.holders(&lookups).await.is_err());
    assert!(damaged.store.claim(&arrival("one"), &[]).await.is_err());
    let sql = format!("UPDATE ids SET seq = {seq} WHERE call_id = ?1");
    damaged.damage(&sql, (id(&one), other.intent.lookup.0));
    assert!(damaged.store.load(one.intent.call_id).await.is_err());
    let known = damaged.store.load(other.intent.call_id).await;
    assert_eq!(known.expect("an answer"), Some(other));
}

#[tokio::test]
async fn a_damaged_intent_keeps_no_call_out_of_a_list() {
    let damaged = Damaged::new();
    let (bad, _) = (damaged.claimed("bad").await, damaged.claimed("good").await);
    damaged.spoil(&bad, "intent");
    assert_eq!(damaged.listed(by_key("bad")).await, (vec![], 1));
    assert_eq!(
        damaged.listed(by_key("good")).await,
        (vec!["good".into()], 0)
    );
    let running = Filter {
        state: Some("running".into()),
        ..Filter::default()
    };
    assert_eq!(damaged.listed(running).await, (vec!["good".into()], 1));
}

#[tokio::test]
async fn damaged_duplicates_hide_no_call() {
    let damaged = Damaged::new();
    let call = damaged.claimed("k").await;
    let (store, call_id) = (&damaged.store, call.intent.call_id);
    let later = Duplicates {
        count: 1,
        last: vec![Duplicate {
            at: at(2),
            by: "agent".into(),
            kind: "joined".into(),
        }],
    };
    let count = async || store.count_duplicates(call_id, &later).await;
    count().await.expect("counted");
    let counted = async || {
        let history = store.history(call_id, 9).await.expect("an answer");
        history.expect("a call").duplicates.count
    };
    assert_eq!(counted().await, 1);
    damaged.spoil(&call, "duplicates");
    assert_eq!(counted().await, 0);
    assert_eq!(
        damaged.listed(Filter::default()).await,
        (vec!["k".into()], 0)
    );
    count().await.expect("counted");
    assert_eq!(counted().await, 1, "it is counted anew");
}

#[tokio::test]
async fn an_unreadable_count_is_logged_before_it_is_overwritten() {
    #[derive(Clone, Default)]
    struct Said(Arc<std::sync::Mutex<Vec<u8>>>);
    impl std::io::Write for Said {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let damaged = Damaged::new();
    let call = damaged.claimed("k").await;
    let (call_id, one) = (call.intent.call_id, Duplicates::default());
    let counted = damaged.store.count_duplicates(call_id, &one).await;
    counted.expect("counted");
    damaged.spoil(&call, "duplicates");
    let said = Said::default();
    // With one subscriber only, another test's thread may decide for all that the line is not wanted.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let lines = tracing_subscriber::fmt().with_writer({
        let said = said.clone();
        move || said.clone()
    });
    tracing::subscriber::with_default(lines.finish(), || {
        for _ in 0..2 {
            ledger::count(&damaged.file, call_id, &one).expect("counted");
        }
    });
    let said = said.0.lock().expect("not poisoned").clone();
    let said = String::from_utf8(said).expect("a text");
    assert_eq!(said.matches("count as none").count(), 1, "{said}");
}

/// Each is due before the good one, and each page is smaller than they are.
#[tokio::test]
async fn damaged_calls_keep_no_other_from_its_check() {
    let damaged = Damaged::new();
    let mut named = Vec::new();
    for (due, keys) in [(Some(2), ["a", "b", "c"]), (None, ["d", "e", "f"])] {
        for key in keys {
            let bad = damaged.unknown(key, due).await;
            damaged.spoil(&bad, "progress");
            named.push(bad.intent.call_id.to_string());
        }
    }
    let ids = |found: &Found<Record>| -> Vec<String> {
        found.unreadable.iter().map(|(id, _)| id.clone()).collect()
    };
    let due = damaged.unknown("due", Some(3)).await;
    let unscheduled = damaged.unknown("unscheduled", None).await;
    let tools = ["t".to_owned()];
    let found = damaged.store.due_rechecks(at(9), &tools, 1).await;
    let found = found.expect("an answer");
    assert_eq!((ids(&found), found.calls), (named[..3].to_vec(), vec![due]));
    let found = damaged.store.unscheduled_unknown(&tools, 1).await;
    let found = found.expect("an answer");
    assert_eq!(
        (ids(&found), found.calls),
        (named[3..].to_vec(), vec![unscheduled])
    );
}

#[tokio::test]
async fn no_call_at_risk_is_skipped_because_it_cannot_be_read() {
    for table in ["intents", "ids", "spoiled", "misled"] {
        let damaged = Damaged::new();
        let (bad, good) = (damaged.claimed("bad").await, damaged.claimed("good").await);
        let at_risk = async |from: &str| damaged.store.calls_at_risk_after_loss(from, 1).await;
        let (found, next) = at_risk("").await.expect("a page");
        assert_eq!(found, [bad.intent.call_id]);
        match table {
            "spoiled" => damaged.spoil(&bad, "intent"),
            "misled" => {
                let sql = "UPDATE ids SET seq = seq + 1 WHERE call_id = ?1";
                damaged.damage(sql, [id(&bad)]);
            }
            table => damaged.lose(&bad, table),
        }
        let Err(Error::Unreadable(why)) = at_risk("").await else {
            panic!("{table}: it was skipped");
        };
        assert!(why.contains("the loss cannot be accepted"), "{why}");
        let (found, _) = at_risk(&next.expect("more")).await.expect("a page");
        assert_eq!(found, [good.intent.call_id]);
    }
}

#[tokio::test]
async fn a_page_of_unreadable_calls_comes_to_an_end() {
    let damaged = Damaged::new();
    damaged.claimed("good").await;
    // Newer entries, which lead to no call.
    let fill = |connection: &Connection| {
        let list = oncegate_store::search::by_tool("shop", "t");
        for n in 1..=2_500 {
            lists::insert(connection, list, at(n), 1_000_000 + n)?;
        }
        Ok(())
    };
    damaged
        .store
        .writer
        .run(Need::Plain, fill)
        .await
        .expect("filled");
    let (filter, mut before, mut pages) = (Filter::default(), None, Vec::new());
    loop {
        let page = damaged.store.list("shop", &filter, before, 10).await;
        let page = page.expect("a page");
        pages.push((page.found.len(), page.unreadable));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(pages, [(0, 2_000), (1, 500)]);
}

#[tokio::test]
async fn cleanup_tries_an_unreadable_call_again_after_a_day() {
    let damaged = Damaged::new();
    let call = damaged.over("k", 2).await;
    let sql = "SELECT progress FROM calls";
    let whole: Vec<u8> = damaged
        .file
        .query_row(sql, [], |row| row.get(0))
        .expect("a row");
    damaged.spoil(&call, "progress");
    let prune = async |second| damaged.store.prune(at(second), 9).await.expect("pruned");
    assert_eq!(prune(2).await, 1, "it was looked at");
    damaged.damage("UPDATE calls SET progress = ?1", [whole]);
    let load = async || damaged.store.load(call.intent.call_id).await;
    assert_eq!(prune(86_401).await, 0);
    assert_eq!(load().await.expect("an answer"), Some(call.clone()));
    assert_eq!(prune(86_402).await, 1);
    assert_eq!(load().await.expect("an answer"), None);
}

/// The damaged time is that of the row, or only that of the index.
#[tokio::test]
async fn cleanup_frees_no_key_because_of_a_damaged_time() {
    for is_in_row in [true, false] {
        let damaged = Damaged::new();
        let running = damaged.claimed("running").await;
        let unknown = damaged.unknown("unknown", None).await;
        if is_in_row {
            let all = damaged
                .file
                .execute("UPDATE calls SET retain_until = 1", []);
            assert_eq!(all, Ok(2));
        } else {
            damaged.mislead("calls");
        }
        let over = damaged.over("over", 2).await;
        let load = async |call: &Record| {
            let loaded = damaged.store.load(call.intent.call_id).await;
            loaded.expect("an answer")
        };
        for second in [2, 3, 86_402, 86_403] {
            let pruned = damaged.store.prune(at(second), 9).await;
            pruned.expect("pruned");
            for call in [&running, &unknown] {
                assert_eq!(load(call).await.as_ref(), Some(call), "{is_in_row}");
                let again = arrival(&call.intent.key);
                let again = damaged.store.claim(&again, &[]).await;
                let again = again.expect("an answer");
                assert_eq!(again, Claimed::Existing(call.clone()), "{is_in_row}");
            }
            assert_eq!(load(&over).await, None, "it keeps no other back");
        }
    }
}

#[tokio::test]
async fn cleanup_deletes_no_document_because_of_a_damaged_index() {
    let damaged = Damaged::new();
    let saga = saga();
    let put = damaged.store.put_document(&saga).await;
    assert_eq!(put.expect("an answer"), Put::Done);
    damaged.mislead("documents");
    let pruned = damaged.store.prune(at(9), 9).await;
    assert_eq!(pruned.expect("pruned"), 0);
    let stored = damaged.store.document(Kind::Saga, "shop", "G").await;
    assert_eq!(stored.expect("an answer"), Some(saga));
}

#[tokio::test]
async fn to_count_a_duplicate_does_not_write_the_result_again() {
    let damaged = Damaged::new();
    let call = damaged.claimed("k").await;
    let result = vec![b' '; 1 << 20];
    damaged.damage("UPDATE calls SET result = ?1", [result]);
    let log = damaged.file.path().expect("a path").to_owned() + "-wal";
    let length = || std::fs::metadata(&log).expect("a log").len();
    let before = length();
    let later = Duplicates {
        count: 1,
        last: Vec::new(),
    };
    let counted = damaged.store.count_duplicates(call.intent.call_id, &later);
    counted.await.expect("counted");
    let written = length() - before;
    assert!((1..100_000).contains(&written), "{written} bytes");
}
