//! What the trait promises, asked of the store itself, and what only a broken disk shows.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use jiff::Timestamp;
use oncegate::core::call::{Change, Event, next};
use oncegate::core::key::{Lookup, Source};
use oncegate::core::outcome::{Body, Evidence};
use oncegate::core::record::{AttemptId, CallId, InstanceId, Intent, Record};
use oncegate::core::tool::Tool as Policy;
use oncegate::store::sqlite::{OpenError, Sqlite};
use oncegate::store::{Claimed, Replaced, Store};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::binary::{Process, free_port, log};
use crate::support::gateway::{one_tool, store_is_free};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

fn policy() -> Policy {
    Policy::new("t")
}

/// The change by which an arrival claims this key.
fn arrival(key: &str, session: &str, second: i64, owner: InstanceId) -> Change {
    let intent = Intent {
        call_id: CallId(Uuid::new_v4()),
        tenant: "shop".into(),
        tool: "t".into(),
        lookup: Lookup::new("shop", "t", key),
        key: key.into(),
        key_source: Source::Runtime,
        fingerprint: [1; 32],
        user_id: "U1".into(),
        session_id: session.into(),
        trace_id: "trace".into(),
        args: "{\"a\":1}".into(),
        created_at: at(second),
    };
    let event = Event::Arrived { intent: Arc::new(intent), attempt: AttemptId(Uuid::new_v4()), owner };
    next(&policy(), None, &event, at(second)).expect("a claim").change.expect("a change")
}

/// The change by which the attempt of a record ends with this status.
fn ended(record: &Record, status: u16, second: i64) -> Change {
    let evidence = Evidence::Answer { status, body: Body::Whole("{\"b\": 1.0}".into()), retry_after: None };
    let event = Event::Ended { attempt: record.attempt.id, fencing: record.fencing, evidence, retry: None };
    next(&policy(), Some(record), &event, at(second)).expect("an end").change.expect("a change")
}

const ME: InstanceId = InstanceId(Uuid::from_u128(1));

async fn claim(store: &dyn Store, change: &Change) -> Claimed {
    store.claim(change, None).await.expect("an answer")
}

async fn claimed(store: &dyn Store, change: &Change) -> Record {
    match claim(store, change).await {
        Claimed::Yours(record) => record,
        Claimed::Existing(record) => panic!("held by {record:?}"),
    }
}

async fn replaced(store: &dyn Store, change: &Change, expected: &Record) -> Record {
    match store.replace(change, expected).await.expect("an answer") {
        Replaced::Done(record) => record,
        Replaced::Lost(newer) => panic!("lost to {newer:?}"),
    }
}

fn open(folder: &Path, instance: InstanceId) -> Result<Sqlite, OpenError> {
    Sqlite::open(&folder.join("oncegate.db"), instance, &CancellationToken::new())
}

async fn close(store: Sqlite, folder: &Path) {
    drop(store);
    store_is_free(folder).await;
}

async fn reopen(store: Sqlite, folder: &Path) -> Sqlite {
    close(store, folder).await;
    open(folder, ME).expect("a store")
}

/// A store to make claims about, and the folder that it lives in.
fn store() -> (Sqlite, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    (open(folder.path(), ME).expect("a store"), folder)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_claims_of_one_key_one_holds_it() {
    let (store, _folder) = store();
    let mut claims = JoinSet::new();
    for _ in 0..100 {
        let store = store.clone();
        claims.spawn(async move {
            let change = arrival("k", "S", 0, ME);
            (change.record.attempt.id, claim(&store, &change).await)
        });
    }
    let answers = claims.join_all().await;
    let holders: Vec<_> = answers.iter().filter(|(_, answer)| matches!(answer, Claimed::Yours(_))).collect();
    assert_eq!(holders.len(), 1);
    let (holder, _) = holders[0];
    for (_, answer) in &answers {
        let (Claimed::Yours(record) | Claimed::Existing(record)) = answer;
        assert_eq!(record.attempt.id, *holder, "everyone is told the same holder");
    }
}

#[tokio::test]
async fn a_claim_asked_again_is_still_ours_and_writes_nothing() {
    let (store, _folder) = store();
    let change = arrival("k", "S", 0, ME);
    let first = claimed(&store, &change).await;
    assert_eq!(claimed(&store, &change).await, first);
    let (_, history) = store.history(first.intent.call_id, 10).await.expect("an answer").expect("a call");
    assert_eq!(history, [change.entry]);
}

#[tokio::test]
async fn what_is_stored_is_what_comes_back() {
    let (store, folder) = store();
    let record = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let mut all = vec![record.clone()];
    all.push(replaced(&store, &ended(&record, 200, 1), &record).await);
    for (key, status) in [("rejected", 422), ("unavailable", 429), ("unknown", 500)] {
        let record = claimed(&store, &arrival(key, "S", 0, ME)).await;
        all.push(replaced(&store, &ended(&record, status, 1), &record).await);
    }
    assert_eq!(all[1].state.as_str(), "succeeded");
    let store = reopen(store, folder.path()).await;
    for record in &all[1..] {
        assert_eq!(store.load(record.intent.call_id).await.expect("an answer").as_ref(), Some(record));
    }
    assert_eq!(store.load(CallId(Uuid::new_v4())).await.expect("an answer"), None);
}

#[tokio::test]
async fn a_replacement_needs_the_version_the_attempt_and_the_token() {
    let (store, _folder) = store();
    let record = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let done = ended(&record, 200, 1);
    let mut version = record.clone();
    version.version += 1;
    let mut attempt = record.clone();
    attempt.attempt.id = AttemptId(Uuid::new_v4());
    let mut token = record.clone();
    token.fencing = token.fencing.map(|token| token - 1);
    for stale in [version, attempt, token] {
        let answer = store.replace(&done, &stale).await.expect("an answer");
        assert_eq!(answer, Replaced::Lost(Some(record.clone())), "and nothing has changed");
    }
    let first = replaced(&store, &done, &record).await;
    assert_eq!(replaced(&store, &done, &record).await, first, "asked again it is done");
    let other = ended(&record, 500, 2);
    assert_eq!(store.replace(&other, &record).await.expect("an answer"), Replaced::Lost(Some(first)));
}

#[tokio::test]
async fn a_finished_call_gives_up_its_key_only_in_the_step_that_claims_it() {
    let (store, _folder) = store();
    let old = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let anew = arrival("k", "S", 9, ME);
    let wrong = store.claim(&anew, Some(CallId(Uuid::new_v4()))).await.expect("an answer");
    assert_eq!(wrong, Claimed::Existing(old.clone()), "another call holds it");
    let Claimed::Yours(new) = store.claim(&anew, Some(old.intent.call_id)).await.expect("an answer") else {
        panic!("the key was given up")
    };
    assert_eq!(claim(&store, &arrival("k", "S", 9, ME)).await, Claimed::Existing(new));
    assert!(store.load(old.intent.call_id).await.expect("an answer").is_some(), "it stays in the ledger");
}

#[tokio::test]
async fn fencing_tokens_of_a_session_rise_whatever_the_clock_does() {
    let (store, folder) = store();
    let mut last = 0;
    let mut rises = async |store: &dyn Store, key: String, second: i64| {
        let token = claimed(store, &arrival(&key, "S", second, ME)).await.fencing.expect("a token");
        assert!(token > last, "{token} after {last}");
        assert!(token < 1 << 53, "exact in every JSON reader");
        last = token;
    };
    for (n, second) in [0, 0, 10, 5, -3_600, 7_200, -7_200].into_iter().enumerate() {
        rises(&store, format!("a{n}"), second).await;
    }
    let store = reopen(store, folder.path()).await;
    rises(&store, "b".into(), 0).await;
    store.prune(at(90 * 24 * 3_600), 1_000).await.expect("pruned");
    rises(&store, "c".into(), 90 * 24 * 3_600).await;
}

#[tokio::test]
async fn due_are_calls_whose_lease_is_over_or_whose_owner_was_another_process() {
    let (store, _folder) = store();
    let mine = claimed(&store, &arrival("mine", "S", 0, ME)).await;
    let theirs = claimed(&store, &arrival("theirs", "S", 0, InstanceId(Uuid::from_u128(2)))).await;
    let done = claimed(&store, &arrival("done", "S", 0, ME)).await;
    replaced(&store, &ended(&done, 500, 1), &done).await;
    let due = async |second| {
        let due = store.due(at(second), 10).await.expect("an answer");
        due.into_iter().map(|due| (due.record.intent.call_id, due.owner_ended)).collect::<Vec<_>>()
    };
    assert_eq!(due(1).await, [(theirs.intent.call_id, true)]);
    let mut later = due(40).await;
    later.sort_by_key(|(_, owner_ended)| *owner_ended);
    assert_eq!(later, [(mine.intent.call_id, false), (theirs.intent.call_id, true)]);
    assert_eq!(store.due(at(40), 1).await.expect("an answer").len(), 1, "bounded");
}

#[tokio::test]
async fn only_what_may_be_deleted_is_deleted() {
    let (store, _folder) = store();
    let done = claimed(&store, &arrival("done", "S", 0, ME)).await;
    let done = replaced(&store, &ended(&done, 200, 1), &done).await;
    let unknown = claimed(&store, &arrival("unknown", "S", 0, ME)).await;
    replaced(&store, &ended(&unknown, 500, 1), &unknown).await;
    claimed(&store, &arrival("running", "S", 0, ME)).await;
    let years = 10 * 365 * 24 * 3_600;
    assert_eq!(store.prune(at(3_600), 10).await.expect("an answer"), 0);
    assert_eq!(store.prune(at(years), 10).await.expect("an answer"), 2, "a call and a session");
    assert_eq!(store.history(done.intent.call_id, 10).await.expect("an answer"), None);
    let census = store.census().await.expect("an answer");
    let counted: Vec<_> = census.iter().map(|count| (count.state.as_str(), count.calls)).collect();
    assert_eq!(counted, [("running", 1), ("unknown", 1)], "nobody settled these, so they stay");
}

#[tokio::test]
async fn a_file_belongs_to_one_process() {
    let (store, folder) = store();
    assert!(matches!(open(folder.path(), ME), Err(OpenError::InUse(_))));
    reopen(store, folder.path()).await;
}

#[tokio::test]
async fn a_link_to_a_file_is_the_file() {
    let (_store, folder) = store();
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.path().join("oncegate.db"), &link).expect("a link");
    assert!(matches!(Sqlite::open(&link, ME, &CancellationToken::new()), Err(OpenError::InUse(_))));
}

#[tokio::test]
async fn a_file_that_is_deleted_under_us_ends_the_process_and_nothing_is_acknowledged() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let call = |n| {
        client().post(gateway.url("/v1/tools/act/calls")).body(format!("{{\"args\":{{\"n\":{n}}}}}")).send()
    };
    Answer::read(call(1).await.expect("an answer")).await.expect_ok();
    for name in ["oncegate.db", "oncegate.db-wal", "oncegate.db-shm"] {
        fs::remove_file(folder.path().join(name)).expect("removed");
    }
    if let Ok(answer) = call(2).await {
        Answer::read(answer).await.expect_problem("store-unavailable");
    }
    assert!(!gateway.ended().await, "a bad end");
    assert_eq!(tool.requests(), 1, "without a claim nothing is run");
}

#[tokio::test]
async fn a_file_that_cannot_be_trusted_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("oncegate.db");
    fs::write(&path, "this is no database, but it is long enough to look at twice").expect("written");
    assert!(matches!(open(folder.path(), ME), Err(OpenError::Database { .. })));

    fs::remove_file(&path).expect("removed");
    rusqlite::Connection::open(&path).and_then(|c| c.execute_batch("CREATE TABLE t (a)")).expect("another's");
    assert!(matches!(open(folder.path(), ME), Err(OpenError::NotOurs(_))));

    fs::remove_file(&path).expect("removed");
    let store = open(folder.path(), ME).expect("a store");
    for n in 0..200 {
        claimed(&store, &arrival(&format!("k{n}"), "S", n, ME)).await;
    }
    close(store, folder.path()).await;
    let connection = rusqlite::Connection::open(&path).expect("opened");
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    connection.query_row(checkpoint, [], |_| Ok(())).expect("all is in one file");
    drop(connection);
    let whole = fs::read(&path).expect("read");
    let mut file = fs::OpenOptions::new().write(true).open(&path).expect("opened");
    for page in 2..whole.len() / 4096 {
        file.seek(SeekFrom::Start(page as u64 * 4096)).expect("a place");
        file.write_all(&[0xff; 16]).expect("damaged");
    }
    drop(file);
    assert!(matches!(open(folder.path(), ME), Err(OpenError::Damaged(..))));

    fs::write(&path, &whole).expect("restored");
    let connection = rusqlite::Connection::open(&path).expect("opened");
    connection.execute_batch("PRAGMA user_version = 99").expect("of the future");
    drop(connection);
    assert!(matches!(open(folder.path(), ME), Err(OpenError::TooNew(..))));
}

#[tokio::test]
async fn a_call_that_the_last_run_left_behind_is_unknown_before_anything_is_served() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let database = gateway.database();
    let answer = gateway.call_with_key("k", json!({})).await.expect_ok();
    let folder = gateway.stop().await;
    let id = answer.at("/call_id");
    let connection = rusqlite::Connection::open(&database).expect("opened");
    let sql = "UPDATE calls SET state = 'running', result = NULL, expires_at = NULL, retain_until = NULL WHERE call_id = ?1";
    assert_eq!(connection.execute(sql, [id.as_str()]).expect("written"), 1);
    drop(connection);
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let body = json!({ "args": {}, "idempotency_key": "k" }).to_string();
    let duplicate =
        client().post(gateway.url("/v1/tools/act/calls")).body(body).send().await.expect("an answer");
    let duplicate = Answer::read(duplicate).await.expect_problem("outcome-unknown");
    assert_eq!(duplicate.at("/call_id"), id);
    let path = format!("/v1/calls/{}", id.as_str().expect("an id"));
    let record = Answer::read(client().get(gateway.url(&path)).send().await.expect("an answer")).await;
    assert_eq!(record.at("/events/2/event"), "owner_lost");
    assert_eq!(tool.requests(), 1);
}

/// A file system of this size that ends with the test; `None` where that is not allowed.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(mib: u32) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let size = format!("size={mib}m");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).status();
        mount.is_ok_and(|status| status.success()).then_some(Self(folder))
    }

    /// Leaves no room at all.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.path().join("filler")).expect("a file");
        while file.write(&[0; 4096]).is_ok_and(|written| written == 4096) {}
    }

    fn free(&self) {
        fs::remove_file(self.0.path().join("filler")).expect("removed");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that ends just now may still hold it.
        drop(Command::new("umount").arg("-l").arg(self.0.path()).status());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_no_outcome_and_takes_no_claim() {
    let Some(disk) = SmallDisk::new(48) else {
        #[expect(clippy::print_stderr, reason = "a test that did not run says so")]
        {
            eprintln!("skipped: only root may mount a small file system here");
        }
        return;
    };
    let tool = Tool::start().await;
    let body: &'static str = format!("{{\"long\":\"{}\"}}", "x".repeat(100_000)).leak();
    tool.always(Act::after_ms(700, Act::Ok(body)));
    let gateway = Process::start(disk.0.path(), free_port(), &one_tool(&tool, "")).await;
    let post = |n: usize| {
        let request = client().post(gateway.url("/v1/tools/act/calls"));
        let body = json!({ "args": { "n": n } }).to_string();
        let log = log(disk.0.path());
        async move {
            let answer = request.body(body).send().await;
            let said = || fs::read_to_string(log).unwrap_or_default();
            Answer::read(answer.unwrap_or_else(|error| panic!("{error:?}\n{}", said()))).await
        }
    };
    let running: Vec<_> = (0..20).map(|n| tokio::spawn(post(n))).collect();
    until("all of them run", async || tool.requests() == 20).await;
    disk.fill();
    for call in running {
        call.await.expect("a caller").expect_ok();
    }
    let refused = post(99).await.expect_problem("store-unavailable");
    assert_eq!((refused.status, refused.header("retry-after")), (503, "2"));
    assert_eq!(post(7).await.expect_ok().at("/replayed"), true, "replays work while claims are refused");
    let ready = Answer::read(client().get(gateway.url("/readyz")).send().await.expect("an answer")).await;
    assert_eq!((ready.status, ready.at("/reasons/0")), (503, "the disk is full".into()));
    assert_eq!(tool.requests(), 20, "what was refused was not run");
    disk.free();
    until("claims are taken again", async || post(99).await.status == 200).await;
    gateway.kill();
}
