//! A SQLite file that has lost data: the next start notices the loss, and an operator accepts it.

use std::fs;

use oncegate::core::record::InstanceId;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::binary::{Process, free_port, run};
use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Tool, client};

pub const ME: InstanceId = InstanceId(Uuid::from_u128(1));

/// A gateway process that is killed when dropped, and its folder.
pub struct Serving {
    pub folder: tempfile::TempDir,
    pub port: u16,
    pub config: String,
    pub process: Option<Process>,
}

impl Serving {
    pub async fn start(tool: &Tool) -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder"), tool).await
    }

    pub async fn start_in(folder: tempfile::TempDir, tool: &Tool) -> Self {
        let config = one_tool(tool, "retry = { attempts = 1 }\n");
        let mut serving = Self {
            folder,
            port: free_port(),
            config,
            process: None,
        };
        serving.again().await;
        serving
    }

    pub async fn again(&mut self) {
        self.process = Some(Process::start(self.folder.path(), self.port, &self.config).await);
    }

    pub fn kill(&mut self) {
        self.process.take().expect("it runs").kill();
    }

    pub async fn stop(&mut self) {
        let process = self.process.take().expect("it runs");
        process.signal("TERM");
        assert!(process.ended().await, "a good end");
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub async fn post(&self, path: &str, body: Value) -> Option<Answer> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let sent = client().post(url).body(body.to_string()).send().await;
        Some(Answer::read(sent.ok()?).await)
    }

    pub async fn call(&self, n: u32) -> Answer {
        let body = json!({ "args": { "n": n }, "session_id": "S" });
        self.post("/v1/tools/act/calls", body)
            .await
            .expect("an answer")
    }

    pub async fn accept(&self) -> Answer {
        self.post("/v1/store/accept-loss", json!({ "reason": "put back" }))
            .await
            .expect("an answer")
    }

    pub async fn get(&self, path: &str) -> Answer {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        Answer::to(client().get(url)).await
    }

    pub async fn is_closed(&self) -> bool {
        let ready = self.get("/readyz").await;
        ready.status == 503 && ready.text.contains("lost_data")
    }
}

/// A gateway with three calls, and a copy of its file from before the newest run and call.
pub async fn with_a_copy(tool: &Tool) -> (Serving, Vec<u8>) {
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

/// Damages the file with `lose`, and checks that the loss is noticed and accepted. `known`: the file still has calls 1 and 2.
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
    // The store stays closed, however often the gateway starts.
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
        "the call that had failed"
    );
    assert_eq!(serving.get("/readyz").await.status, 200);
    serving.accept().await.expect_problem("wrong-state");
    if known {
        assert_eq!(serving.call(1).await.expect_ok().at("/replayed"), true);
        serving.call(2).await.expect_problem("outcome-unknown");
    }
    // The session accepts tokens that it gave out before the loss, and none above them.
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
    // The loss stays accepted.
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

pub fn remove(serving: &Serving, names: &[&str]) {
    for name in names {
        // After a clean stop only one of them exists.
        drop(fs::remove_file(serving.path(name)));
    }
}

pub const ALL: [&str; 3] = ["oncegate.db", "oncegate.db-wal", "oncegate.db-shm"];

/// A tool may be paused while data is lost.
#[tokio::test]
async fn a_pause_does_not_say_that_a_call_was_not_executed_while_the_file_has_lost_it() {
    let tool = Tool::start().await;
    let (mut serving, copy) = with_a_copy(&tool).await;
    serving.kill();
    remove(&serving, &ALL);
    fs::write(serving.path("oncegate.db"), copy).expect("put back");
    serving.again().await;
    assert!(serving.is_closed().await);
    let reason = json!({ "reason": "the file was put back" });
    let paused = serving.post("/v1/tools/act/pause", reason).await;
    paused.expect("an answer").expect_ok();
    let lost = serving.call(3).await;
    assert_eq!(lost.at("/effect"), "unknown", "{}", lost.text);
    lost.expect_problem("store-unavailable");
    assert_eq!(serving.call(1).await.expect_ok().at("/replayed"), true);
    serving.accept().await.expect_ok();
    serving.call(4).await.expect_problem("tool-paused");
}

#[tokio::test]
async fn an_older_copy_of_the_file_keeps_it_closed_until_an_operator_accepts_it() {
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

/// The salts of the write-ahead log. They change each time the log begins anew.
fn salt(serving: &Serving) -> Vec<u8> {
    fs::read(serving.path("oncegate.db-wal")).expect("read")[16..24].to_vec()
}

/// Otherwise SQLite would read pages of different times.
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
    // Until the log was moved into the file and has begun anew.
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
        "file and log belong together again"
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

/// Otherwise it would acknowledge calls that the next start does not find.
#[tokio::test]
async fn deleting_the_log_of_a_gateway_ends_it_and_nothing_is_acknowledged() {
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

/// The gateway writes watermarks without an fsync, so a loss of power may lose the newest.
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
    // Later losses are noticed again.
    serving.kill();
    remove(&serving, &ALL[1..]);
    serving.again().await;
    assert!(serving.is_closed().await);
}
