//! The file of SQLite: who may use it, damage, and a full disk.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use oncegate::core::record::InstanceId;
use oncegate::store::Health as _;
use oncegate::store::sqlite::{OpenError, Sqlite};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::stores::contract::{arrival, claimed};
use crate::support::binary::{Process, free_port, log, run};
use crate::support::gateway::{one_tool, store_is_free};
use crate::support::{Act, Answer, Tool, client, until};

const ME: InstanceId = InstanceId(Uuid::from_u128(1));

fn open(folder: &Path, instance: InstanceId) -> Result<Sqlite, OpenError> {
    Sqlite::open(
        &folder.join("oncegate.db"),
        instance,
        &CancellationToken::new(),
    )
}

/// The error of opening a file that is refused.
async fn refused(folder: &Path) -> OpenError {
    let error = open(folder, ME).err().expect("refused");
    store_is_free(folder).await;
    error
}

async fn close(store: Sqlite, folder: &Path) {
    drop(store);
    store_is_free(folder).await;
}

#[tokio::test]
async fn a_file_belongs_to_one_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path(), ME).expect("a store");
    assert!(matches!(open(folder.path(), ME), Err(OpenError::InUse(_))));
    close(store, folder.path()).await;
    open(folder.path(), ME).expect("a store");
}

#[tokio::test]
async fn a_file_knows_since_when_it_has_every_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path(), ME).expect("a store");
    let fresh = store.readiness().await.whole_since.expect("it is known");
    let call = claimed(&store, &arrival("k", "S", 0, ME)).await;
    assert!(call.intent.created_at < fresh, "by the clock of this test");
    close(store, folder.path()).await;
    let store = open(folder.path(), ME).expect("a store");
    assert_eq!(
        store.readiness().await.whole_since,
        Some(fresh),
        "after a new start"
    );
}

#[tokio::test]
async fn a_link_to_a_file_is_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let _store = open(folder.path(), ME).expect("a store");
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.path().join("oncegate.db"), &link).expect("a link");
    assert!(matches!(
        Sqlite::open(&link, ME, &CancellationToken::new()),
        Err(OpenError::InUse(_))
    ));
}

async fn call_once(gateway: &Process) {
    let body = json!({ "args": {}, "idempotency_key": "k" }).to_string();
    let call = client().post(gateway.url("/v1/tools/act/calls")).body(body);
    Answer::to(call).await.expect_ok();
}

/// Otherwise each name would have its own lock, and two gateways could use the file.
#[tokio::test]
async fn a_file_with_a_second_name_is_refused() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let (file, hard) = (
        folder.path().join("oncegate.db"),
        folder.path().join("hard.db"),
    );
    fs::hard_link(&file, &hard).expect("a second name");
    let second = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite:hard.db\"\n{}",
        one_tool(&tool, "")
    );
    fs::write(folder.path().join("second.toml"), second).expect("a file");
    let refused = |why: &str| {
        let second = run(folder.path(), &["serve", "--config", "second.toml"]);
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(!second.status.success() && said.contains(why), "{said}");
    };
    refused("in use by another gateway");
    call_once(&gateway).await;
    gateway.kill();
    refused("hard link");
    fs::remove_file(&hard).expect("removed");
    let _gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
}

/// So a copy of the database file has every call.
#[tokio::test]
async fn after_a_clean_stop_all_is_in_one_file() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    call_once(&gateway).await;
    gateway.signal("TERM");
    assert!(gateway.ended().await, "a good end");
    let names = fs::read_dir(folder.path()).expect("a folder");
    let names = names.map(|file| {
        file.expect("a file")
            .file_name()
            .into_string()
            .expect("a name")
    });
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("oncegate.db"))
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "oncegate.db",
            "oncegate.db.checked",
            "oncegate.db.lock",
            "oncegate.db.reserve",
            "oncegate.db.watermarks"
        ]
    );
    let elsewhere = tempfile::tempdir().expect("a folder");
    for name in ["oncegate.db", "oncegate.db.watermarks"] {
        fs::copy(folder.path().join(name), elsewhere.path().join(name)).expect("copied");
    }
    let gateway = Process::start(elsewhere.path(), free_port(), &one_tool(&tool, "")).await;
    let body = json!({ "args": {}, "idempotency_key": "k" }).to_string();
    let again = client()
        .post(gateway.url("/v1/tools/act/calls"))
        .body(body)
        .send()
        .await;
    let again = Answer::read(again.expect("an answer")).await.expect_ok();
    assert_eq!((again.at("/replayed"), tool.effects()), (true.into(), 1));
}

#[tokio::test]
async fn deleting_the_file_of_a_gateway_ends_it_and_nothing_is_acknowledged() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let call = |n| {
        client()
            .post(gateway.url("/v1/tools/act/calls"))
            .body(format!("{{\"args\":{{\"n\":{n}}}}}"))
            .send()
    };
    Answer::read(call(1).await.expect("an answer"))
        .await
        .expect_ok();
    for name in ["oncegate.db", "oncegate.db-wal", "oncegate.db-shm"] {
        fs::remove_file(folder.path().join(name)).expect("removed");
    }
    if let Ok(answer) = call(2).await {
        let slug = Answer::read(answer).await.problem().to_owned();
        // `outcome-unknown`: the process ended before it knew whether the claim was stored.
        assert!(
            ["store-unavailable", "outcome-unknown"].contains(&&*slug),
            "{slug}"
        );
    }
    assert!(!gateway.ended().await, "a bad end");
    assert_eq!(tool.requests(), 1, "without a claim nothing is run");
}

#[tokio::test]
async fn a_file_that_cannot_be_trusted_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("oncegate.db");
    fs::write(
        &path,
        "this is not a database, but it is long enough to look at twice",
    )
    .expect("written");
    assert!(matches!(
        open(folder.path(), ME),
        Err(OpenError::Database(..))
    ));

    fs::remove_file(&path).expect("removed");
    rusqlite::Connection::open(&path)
        .and_then(|c| c.execute_batch("CREATE TABLE t (a)"))
        .expect("another's");
    let foreign = refused(folder.path()).await;
    assert!(matches!(foreign, OpenError::NotOurs(_)), "{foreign:?}");

    fs::remove_file(&path).expect("removed");
    let store = open(folder.path(), ME).expect("a store");
    for n in 0..200 {
        claimed(&store, &arrival(&format!("k{n}"), "S", n, ME)).await;
    }
    close(store, folder.path()).await;
    let connection = rusqlite::Connection::open(&path).expect("opened");
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    connection
        .query_row(checkpoint, [], |_| Ok(()))
        .expect("all is in one file");
    drop(connection);
    let whole = fs::read(&path).expect("read");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("opened");
    for page in 2..whole.len() / 4096 {
        file.seek(SeekFrom::Start(page as u64 * 4096))
            .expect("a place");
        file.write_all(&[0xff; 16]).expect("damaged");
    }
    drop(file);
    let damaged = refused(folder.path()).await;
    assert!(matches!(damaged, OpenError::Damaged(..)), "{damaged:?}");

    fs::write(&path, &whole).expect("restored");
    for (layout, says) in [
        (8, "older than that of 0.2.0"),
        (99, "a newer release has served it"),
    ] {
        let connection = rusqlite::Connection::open(&path).expect("opened");
        connection
            .execute_batch(&format!("PRAGMA user_version = {layout}"))
            .expect("of another version");
        drop(connection);
        let refused = refused(folder.path()).await;
        assert!(
            matches!(refused, OpenError::TooOld(_, 8) | OpenError::Newer(_, 99)),
            "{refused}"
        );
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

#[tokio::test]
async fn a_call_that_the_last_run_left_behind_is_unknown_before_anything_is_served() {
    let tool = Tool::start().await;
    tool.then(Act::Hang);
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let body = json!({ "args": {}, "idempotency_key": "k" }).to_string();
    let call = client().post(gateway.url("/v1/tools/act/calls")).body(body);
    let call = tokio::spawn(call.send());
    until("the tool was asked", async || tool.requests() == 1).await;
    gateway.kill();
    assert!(call.await.expect("a caller").is_err(), "it was cut off");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let body = json!({ "args": {}, "idempotency_key": "k" }).to_string();
    // A request that does not wait gets the state from before any later recovery.
    let duplicate = client()
        .post(gateway.url("/v1/tools/act/calls"))
        .header("prefer", "wait=0")
        .body(body);
    let duplicate = Answer::to(duplicate).await;
    let duplicate = duplicate.expect_problem("outcome-unknown");
    let id = duplicate.at("/call_id");
    let path = format!("/v1/calls/{}", id.as_str().expect("an id"));
    let record = Answer::to(client().get(gateway.url(&path))).await;
    assert_eq!(record.at("/events/1/event"), "owner_lost");
    assert_eq!(tool.requests(), 1);
}

/// A small file system that exists until the test ends.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`: this user may not mount it.
    fn new(mib: u32) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let size = format!("size={mib}m");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(folder.path())
            .status();
        mount
            .is_ok_and(|status| status.success())
            .then_some(Self(folder))
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
        // Lazily (`-l`), because a process that is ending may still use it.
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
    tool.then(Act::Answer(422, "", b"{}"))
        .always(Act::after_ms(700, Act::Ok(body)));
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
    post(98).await.expect_problem("tool-rejected");
    let running: Vec<_> = (0..20).map(|n| tokio::spawn(post(n))).collect();
    until("all of them run", async || tool.requests() == 21).await;
    disk.fill();
    for call in running {
        call.await.expect("a caller").expect_ok();
    }
    let refused = post(99).await.expect_problem("store-unavailable");
    assert_eq!((refused.status, refused.header("retry-after")), (503, "2"));
    post(98).await.expect_problem("store-unavailable");
    assert_eq!(
        post(7).await.expect_ok().at("/replayed"),
        true,
        "replays work while claims are refused"
    );
    let ready = Answer::to(client().get(gateway.url("/readyz"))).await;
    assert_eq!(
        (ready.status, ready.at("/reasons/0")),
        (503, "disk_full".into())
    );
    assert_eq!(
        tool.requests(),
        21,
        "neither new calls nor the failed one were run"
    );
    disk.free();
    until("claims are taken again", async || {
        post(99).await.status == 200
    })
    .await;
    gateway.kill();
}

/// Both after a clean stop and after a kill during a call.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_is_not_ready_and_replays() {
    for clean in [true, false] {
        let Some(disk) = SmallDisk::new(48) else {
            #[expect(clippy::print_stderr, reason = "a test that did not run says so")]
            {
                eprintln!("skipped: only root may mount a small file system here");
            }
            return;
        };
        // Its log must not take room on the small disk.
        let (elsewhere, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let tool = Tool::start().await;
        let start = async || {
            let config = one_tool(&tool, "");
            Process::start_logging_to(&log(elsewhere.path()), disk.0.path(), port, &config, &[])
                .await
        };
        let send = |key: &str| {
            let body = json!({ "args": {}, "idempotency_key": key }).to_string();
            let request = client()
                .post(format!("http://127.0.0.1:{port}/v1/tools/act/calls"))
                .body(body);
            request.header("prefer", "wait=0").send()
        };
        let ask = async |key: &str| Answer::read(send(key).await.expect("an answer")).await;
        let gateway = start().await;
        until("it is executed", async || ask("done").await.status == 200).await;
        if clean {
            gateway.signal("TERM");
            assert!(gateway.ended().await, "a good end");
        } else {
            let (_hold, held) = Act::held(Act::Ok("{}"));
            tool.then(held);
            drop(tokio::time::timeout(std::time::Duration::from_millis(100), send("lost")).await);
            until("it is at the tool", async || tool.requests() == 2).await;
            gateway.kill();
        }
        fs::remove_file(disk.0.path().join("oncegate.db.reserve")).expect("removed");
        disk.fill();
        let requests = tool.requests();

        let gateway = start().await;
        // After a clean stop no file is left in which the index of the log would find room.
        let said = fs::read_to_string(log(elsewhere.path())).expect("a log");
        assert_eq!(
            said.contains("one connection reads and writes"),
            clean,
            "{said}"
        );
        let ready = Answer::to(client().get(gateway.url("/readyz"))).await;
        assert_eq!(
            (ready.status, ready.at("/reasons/0")),
            (503, "disk_full".into())
        );
        assert_eq!(ask("done").await.expect_ok().at("/replayed"), true);
        ask("new").await.expect_problem("store-unavailable");
        if !clean {
            assert_eq!(ask("lost").await.status, 409, "its outcome is unknown");
        }
        assert_eq!(tool.requests(), requests);
        disk.free();
        until("claims are taken again", async || {
            ask("new").await.status == 200
        })
        .await;
        if !clean {
            until("it is unknown", async || {
                ask("lost").await.problem() == "outcome-unknown"
            })
            .await;
        }
        assert_eq!(tool.requests(), requests + 1);
        gateway.kill();
    }
}
