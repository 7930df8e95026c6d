//! A SQLite file that has lost data: it is noticed at the next start, and a person opens the store again.

use std::fs;
use std::path::Path;

use oncegate::core::record::InstanceId;
use oncegate::gateway::local_time;
use oncegate::store::LOST_DATA;
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Calls as _, Documents as _, Health as _, LossRecovery as _};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::contract::{arrival, claimed};
use crate::support::binary::{Process, free_port, run};
use crate::support::gateway::{one_tool, store_is_free};
use crate::support::{Act, Answer, Tool, client, until};

const ME: InstanceId = InstanceId(Uuid::from_u128(1));

/// A gateway process, killed when dropped, over a folder that outlives it.
struct Serving {
    folder: tempfile::TempDir,
    port: u16,
    config: String,
    process: Option<Process>,
}

impl Serving {
    async fn start(tool: &Tool) -> Self {
        let config = one_tool(tool, "retry = { attempts = 1 }\n");
        let folder = tempfile::tempdir().expect("a folder");
        let mut serving = Self {
            folder,
            port: free_port(),
            config,
            process: None,
        };
        serving.again().await;
        serving
    }

    async fn again(&mut self) {
        self.process = Some(Process::start(self.folder.path(), self.port, &self.config).await);
    }

    fn kill(&mut self) {
        self.process.take().expect("it runs").kill();
    }

    async fn stop(&mut self) {
        let process = self.process.take().expect("it runs");
        process.signal("TERM");
        assert!(process.ended().await, "a good end");
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    async fn post(&self, path: &str, body: Value) -> Option<Answer> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let sent = client().post(url).body(body.to_string()).send().await;
        Some(Answer::read(sent.ok()?).await)
    }

    async fn call(&self, n: u32) -> Answer {
        let body = json!({ "args": { "n": n }, "session_id": "S" });
        self.post("/v1/tools/act/calls", body)
            .await
            .expect("an answer")
    }

    async fn accept(&self) -> Answer {
        self.post("/v1/store/accept-loss", json!({ "reason": "put back" }))
            .await
            .expect("an answer")
    }

    async fn get(&self, path: &str) -> Answer {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        Answer::read(client().get(url).send().await.expect("an answer")).await
    }

    async fn is_closed(&self) -> bool {
        let ready = self.get("/readyz").await;
        ready.status == 503 && ready.text.contains("lost_data")
    }
}

/// Every call before this has been copied; the last one has not.
async fn with_a_copy(tool: &Tool) -> (Serving, Vec<u8>) {
    let mut serving = Serving::start(tool).await;
    serving.call(1).await.expect_ok();
    tool.then(Act::Answer(429, "", b"{}"));
    serving.call(2).await.expect_problem("tool-unavailable");
    serving.stop().await;
    let copy = fs::read(serving.path("oncegate.db")).expect("read");
    serving.again().await;
    serving.call(2).await.expect_ok();
    serving.call(3).await.expect_ok();
    (serving, copy)
}

/// The file goes back to a copy, or is exchanged; `known`: the calls that it still knows.
async fn is_noticed(mut serving: Serving, tool: &Tool, known: bool, lose: impl FnOnce(&Serving)) {
    let before = serving
        .call(4)
        .await
        .expect_ok()
        .at("/fencing")
        .as_u64()
        .expect("a token");
    serving.kill();
    lose(&serving);
    let effects = tool.effects();
    // It stays so, however often it is started.
    for _ in 0..2 {
        serving.again().await;
        assert!(
            serving.is_closed().await,
            "{}",
            serving.get("/readyz").await.text
        );
        for n in 1..=5 {
            let again = serving.call(n).await;
            assert!(
                again.status == 503 || again.at("/replayed") == true || n == 2,
                "{}",
                again.text
            );
        }
        assert!(
            serving
                .get("/metrics")
                .await
                .text
                .contains("oncegate_store_ready 0")
        );
        serving.kill();
    }
    serving.again().await;
    assert_eq!(tool.effects(), effects, "nothing is executed again");
    let accepted = serving.accept().await.expect_ok();
    assert_eq!(
        accepted.at("/calls_now_unknown"),
        u32::from(known),
        "the one that had failed"
    );
    assert_eq!(serving.get("/readyz").await.status, 200);
    serving.accept().await.expect_problem("wrong-state");
    if known {
        assert_eq!(serving.call(1).await.expect_ok().at("/replayed"), true);
        serving.call(2).await.expect_problem("outcome-unknown");
    }
    // What the session had given out before is explained by the loss; nothing above it is.
    let brings = async |n: u32, token: u64| {
        let body = json!({ "args": { "n": n }, "session_id": "S", "fencing_token": token });
        serving
            .post("/v1/tools/act/calls", body)
            .await
            .expect("an answer")
    };
    brings(7, before + 60_000_000)
        .await
        .expect_problem("invalid-request");
    assert_eq!(brings(8, before).await.expect_ok().at("/fencing"), before);
    let after = serving
        .call(6)
        .await
        .expect_ok()
        .at("/fencing")
        .as_u64()
        .expect("a token");
    assert!(after > before, "{after} after {before}");
    // What was accepted stays so.
    serving.kill();
    serving.again().await;
    assert_eq!(
        serving.get("/readyz").await.status,
        200,
        "{}",
        serving.get("/readyz").await.text
    );
    assert_eq!(serving.call(6).await.expect_ok().at("/replayed"), true);
}

fn remove(serving: &Serving, names: &[&str]) {
    for name in names {
        // After a clean stop there is only one.
        drop(fs::remove_file(serving.path(name)));
    }
}

const ALL: [&str; 3] = ["oncegate.db", "oncegate.db-wal", "oncegate.db-shm"];

#[tokio::test]
async fn an_older_copy_of_the_file_keeps_it_closed_until_a_person_accepts_it() {
    let tool = Tool::start().await;
    let (serving, copy) = with_a_copy(&tool).await;
    is_noticed(serving, &tool, true, |serving| {
        remove(serving, &ALL);
        fs::write(serving.path("oncegate.db"), copy).expect("put back");
    })
    .await;
}

#[tokio::test]
async fn a_file_that_was_deleted_is_not_taken_for_a_new_one() {
    let tool = Tool::start().await;
    let (serving, _) = with_a_copy(&tool).await;
    is_noticed(serving, &tool, false, |serving| remove(serving, &ALL)).await;
}

#[tokio::test]
async fn another_gateways_file_is_not_taken_for_ones_own() {
    let tool = Tool::start().await;
    let (serving, _) = with_a_copy(&tool).await;
    let mut other = Serving::start(&tool).await;
    for n in 20..40 {
        other.call(n).await.expect_ok();
    }
    other.stop().await;
    is_noticed(serving, &tool, false, |serving| {
        remove(serving, &ALL);
        fs::copy(other.path("oncegate.db"), serving.path("oncegate.db")).expect("exchanged");
    })
    .await;
}

#[tokio::test]
async fn calls_without_watermarks_are_a_backup_that_was_put_back() {
    let tool = Tool::start().await;
    let (serving, copy) = with_a_copy(&tool).await;
    is_noticed(serving, &tool, true, |serving| {
        remove(serving, &ALL);
        remove(serving, &["oncegate.db.watermarks"]);
        fs::write(serving.path("oncegate.db"), copy).expect("put back");
    })
    .await;
}

#[tokio::test]
async fn a_log_that_was_deleted_is_noticed() {
    let tool = Tool::start().await;
    let (serving, _) = with_a_copy(&tool).await;
    is_noticed(serving, &tool, true, |serving| remove(serving, &ALL[1..])).await;
}

/// A salt of the write-ahead log: another one each time when it is begun anew.
fn salt(serving: &Serving) -> Vec<u8> {
    fs::read(serving.path("oncegate.db-wal")).expect("read")[16..24].to_vec()
}

/// Read together they would be pages of different times.
#[tokio::test]
async fn an_older_file_beneath_a_newer_log_is_refused_and_nothing_is_changed() {
    let tool = Tool::start().await;
    let mut serving = Serving::start(&tool).await;
    serving.call(1).await.expect_ok();
    serving.stop().await;
    let copy = fs::read(serving.path("oncegate.db")).expect("read");
    serving.again().await;
    serving.call(2).await.expect_ok();
    let (before, mut n) = (salt(&serving), 3);
    let large = "x".repeat(100_000);
    // Until the log was moved into the file and begun anew.
    while salt(&serving) == before {
        let body = json!({ "args": { "n": n, "large": large }, "session_id": "S" });
        serving
            .post("/v1/tools/act/calls", body)
            .await
            .expect("an answer")
            .expect_ok();
        n += 1;
        assert!(n < 200, "the log is never moved");
    }
    serving.call(1_000).await.expect_ok();
    serving.kill();
    let all = || {
        ["oncegate.db", "oncegate.db-wal"].map(|name| fs::read(serving.path(name)).expect("read"))
    };
    let [file, log] = all();
    fs::write(serving.path("oncegate.db"), &copy).expect("put back");
    let serve = ["serve", "--config", "oncegate.toml"];
    for _ in 0..2 {
        let refused = run(serving.folder.path(), &serve);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success());
        assert!(
            said.contains("do not belong together: the file is older"),
            "{said}"
        );
        assert!(all() == [copy.clone(), log.clone()], "a file was changed");
    }
    let effects = tool.effects();
    fs::write(serving.path("oncegate.db"), &file).expect("put back");
    serving.again().await;
    assert_eq!(
        serving.get("/readyz").await.status,
        200,
        "what belongs together is served"
    );
    assert_eq!(serving.call(1_000).await.expect_ok().at("/replayed"), true);
    serving.kill();
    remove(&serving, &ALL);
    fs::write(serving.path("oncegate.db"), &copy).expect("put back");
    serving.again().await;
    assert!(
        serving.is_closed().await,
        "without its log it has lost data"
    );
    assert_eq!(tool.effects(), effects);
}

/// Whatever is still acknowledged would be gone.
#[tokio::test]
async fn a_log_that_is_deleted_under_us_ends_the_process_and_nothing_is_acknowledged() {
    let tool = Tool::start().await;
    let mut serving = Serving::start(&tool).await;
    serving.call(1).await.expect_ok();
    remove(&serving, &ALL[1..2]);
    let body = json!({ "args": { "n": 2 }, "session_id": "S" });
    if let Some(answer) = serving.post("/v1/tools/act/calls", body).await {
        answer.expect_problem("store-unavailable");
    }
    assert!(
        !serving.process.take().expect("it runs").ended().await,
        "a bad end"
    );
    assert_eq!(tool.effects(), 1, "without a claim nothing is run");
    serving.again().await;
    assert!(serving.is_closed().await);
}

/// They are written without an fsync: a loss of power may take the newest away.
#[tokio::test]
async fn watermarks_that_are_behind_the_file_are_no_loss() {
    let tool = Tool::start().await;
    let mut serving = Serving::start(&tool).await;
    serving.call(1).await.expect_ok();
    let older = fs::read(serving.path("oncegate.db.watermarks")).expect("read");
    serving.call(2).await.expect_ok();
    serving.kill();
    fs::write(serving.path("oncegate.db.watermarks"), older).expect("put back");
    serving.again().await;
    assert_eq!(serving.get("/readyz").await.status, 200);
    serving.call(3).await.expect_ok();
    // From then on it counts again.
    serving.kill();
    remove(&serving, &ALL[1..]);
    serving.again().await;
    assert!(serving.is_closed().await);
}

#[tokio::test]
async fn a_loss_is_accepted_by_the_command_when_no_gateway_runs() {
    let tool = Tool::start().await;
    let (mut serving, _) = with_a_copy(&tool).await;
    serving.kill();
    remove(&serving, &ALL[1..]);
    serving.again().await;
    let arguments = [
        "store",
        "accept-loss",
        "--config",
        "oncegate.toml",
        "--reason",
        "the log was deleted",
    ];
    let accept = |folder: &Path| {
        let done = run(folder, &arguments);
        // What it logs goes to the same place as what is wrong.
        let said = if done.status.success() {
            done.stdout
        } else {
            done.stderr
        };
        (
            done.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let (accepted, said) = accept(serving.folder.path());
    assert!(
        !accepted && said.contains("in use by another gateway"),
        "{said}"
    );
    serving.stop().await;
    let (accepted, said) = accept(serving.folder.path());
    assert!(
        accepted && said.starts_with("the loss is accepted; 1 calls became unknown"),
        "{said}"
    );
    let (accepted, said) = accept(serving.folder.path());
    assert!(
        !accepted && said.contains("has not lost any data"),
        "{said}"
    );
    serving.again().await;
    assert_eq!(serving.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn after_a_loss_tokens_go_on_above_those_that_were_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || {
        Sqlite::open(
            &folder.path().join("oncegate.db"),
            ME,
            &CancellationToken::new(),
        )
        .expect("a store")
    };
    let store = open();
    claimed(&store, &arrival("k", "S", 0, ME)).await;
    let since = store.readiness().await.whole_since.expect("it is known");
    store.close().await;
    drop(store);
    store_is_free(folder.path()).await;
    let copy = fs::read(folder.path().join("oncegate.db")).expect("read");
    // The clock of the machine was an hour ahead for a while.
    let ahead = local_time().as_microsecond() + 3_600_000_000;
    let connection = rusqlite::Connection::open(folder.path().join("oncegate.db")).expect("opened");
    connection
        .execute("UPDATE sessions SET token = ?1", [ahead])
        .expect("written");
    drop(connection);
    let store = open();
    let forgotten = claimed(&store, &arrival("l", "S", 1, ME))
        .await
        .fencing
        .expect("a token");
    assert_eq!(forgotten, ahead.unsigned_abs() + 1);
    store.close().await;
    drop(store);
    store_is_free(folder.path()).await;
    fs::write(folder.path().join("oncegate.db"), copy).expect("put back");

    let store = open();
    assert_eq!(store.readiness().await.reasons[0].code, LOST_DATA);
    assert!(store.claim(&arrival("l", "S", 2, ME), &[]).await.is_err());
    store.accept_loss("put back").await.expect("accepted");
    let readiness = store.readiness().await;
    assert!(readiness.reasons.is_empty() && readiness.whole_since > Some(since));
    let next = claimed(&store, &arrival("l", "other", 3, ME))
        .await
        .fencing
        .expect("a token");
    assert!(next > forgotten, "{next} after {forgotten}");
}

#[tokio::test]
async fn until_a_loss_is_accepted_only_the_documents_of_who_accepts_it_are_changed() {
    use oncegate::core::document::{Document, Kind};
    use oncegate::core::saga::{Policy, Saga, SagaId};
    use oncegate::store::Put;

    let folder = tempfile::tempdir().expect("a folder");
    let open = || {
        Sqlite::open(
            &folder.path().join("oncegate.db"),
            ME,
            &CancellationToken::new(),
        )
        .expect("a store")
    };
    let store = open();
    let id = SagaId {
        tenant: "shop".into(),
        id: "G".into(),
    };
    let saga = Saga::begin(id, &Policy::default(), crate::contract::at(0)).to_document();
    assert_eq!(
        store.put_document(&saga).await.expect("an answer"),
        Put::Done
    );
    store.close().await;
    drop(store);
    store_is_free(folder.path()).await;
    fs::remove_file(folder.path().join("oncegate.db.watermarks")).expect("removed");

    let store = open();
    let next = Document {
        version: 2,
        ..saga.clone()
    };
    assert!(store.put_document(&next).await.is_err());
    assert_eq!(
        store
            .due_documents(Kind::Saga, crate::contract::at(9_999), 9)
            .await
            .expect("an answer")
            .calls,
        []
    );
    store
        .prepare_acceptance("put back")
        .await
        .expect("prepared");
    assert_eq!(
        store.put_document(&next).await.expect("an answer"),
        Put::Done
    );
    assert!(
        store
            .put_document(&Document {
                id: "H".into(),
                version: 1,
                ..saga
            })
            .await
            .is_err()
    );
    assert!(store.claim(&arrival("k", "S", 2, ME), &[]).await.is_err());
    // It ends before it has accepted it: the next start finds it as it was.
    drop(store);
    store_is_free(folder.path()).await;
    let store = open();
    assert_eq!(store.readiness().await.reasons[0].code, LOST_DATA);
    store
        .accept_loss("put back, and tried again")
        .await
        .expect("accepted");
    assert!(store.accept_loss("again").await.is_err());
    until("it is open", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
}
