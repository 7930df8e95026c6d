//! Files that earlier releases have left: today's gateway opens each, and keeps every promise in it.
//!
//! `scripts/store_fixtures` has made them, with the binary of the release. They are never changed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::binary::{Process, free_port, write_config};
use crate::support::{Answer, Tool, client, until};

/// One file as a release has left it, served from a copy.
pub(super) struct Kept {
    pub(super) folder: tempfile::TempDir,
    name: String,
    config: String,
    calls: Vec<Value>,
    process: Option<Process>,
}

pub(super) fn stored_folders() -> Vec<PathBuf> {
    let stores = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stores");
    let below = |folder: &Path| {
        let entries = fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let folders: Vec<_> = below(&stores)
        .iter()
        .flat_map(|release| below(release))
        .collect();
    assert!(
        folders.len() >= 3,
        "the files of 0.2.0 are there: {folders:?}"
    );
    folders
}

impl Kept {
    async fn open(stored: &Path, tool: &Tool) -> Self {
        let mut kept = Self::copy(stored, tool);
        kept.start().await;
        kept
    }

    /// A copy that nothing serves from yet.
    pub(super) fn copy(stored: &Path, tool: &Tool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for entry in fs::read_dir(stored).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name");
            if name.to_string_lossy().starts_with("oncegate.db") {
                fs::copy(&path, folder.path().join(name)).expect("a copy");
            }
        }
        let read = |name: &str| fs::read_to_string(stored.join(name)).expect("a text");
        let address = format!("http://127.0.0.1:{}", tool.port);
        Self {
            folder,
            name: stored.display().to_string(),
            config: read("tools.toml").replace("TOOL", &address),
            calls: serde_json::from_str(&read("calls.json")).expect("JSON"),
            process: None,
        }
    }

    pub(super) async fn start(&mut self) {
        let process = Process::start(self.folder.path(), free_port(), &self.config).await;
        let url = process.url("/readyz");
        until("it is ready", async || {
            Answer::to(client().get(&url)).await.status == 200
        })
        .await;
        self.process = Some(process);
    }

    /// Writes the configuration that [`start`](Self::start) serves with.
    pub(super) fn configure(&self) {
        write_config(self.folder.path(), free_port(), &self.config);
    }

    fn kill(&mut self) {
        self.process.take().expect("it runs").kill();
    }

    fn url(&self, path: &str) -> String {
        self.process.as_ref().expect("it runs").url(path)
    }

    async fn get(&self, path: &str) -> Value {
        let answer = Answer::to(client().get(self.url(path))).await;
        assert_eq!(answer.status, 200, "{}: {path}: {}", self.name, answer.text);
        serde_json::from_str(&answer.text).expect("JSON")
    }

    async fn call(&self, tool: &str, request: &Value) -> (u16, Value) {
        let url = self.url(&format!("/v1/tools/{tool}/calls"));
        let answer = Answer::to(client().post(url).body(request.to_string())).await;
        (
            answer.status,
            serde_json::from_str(&answer.text).expect("JSON"),
        )
    }

    /// Every call of the file is asked for again: nothing runs, and each answer is the one that was given.
    pub(super) async fn keeps_every_promise(&self) {
        for call in &self.calls {
            let what = format!("{}: {}", self.name, call["name"]);
            let tool = call["tool"].as_str().expect("a tool");
            if call["status"] == 422 {
                // The key of a rejected call may run again, so it is only looked at.
                let id = call["answer"]["call_id"].as_str().expect("an id");
                let found = self.get(&format!("/v1/calls/{id}")).await;
                assert_eq!(found["state"], "failed", "{what}: {found}");
                continue;
            }
            let (status, answer) = self.call(tool, &call["request"]).await;
            if call["status"] == 200 {
                assert_eq!(status, 200, "{what}: {answer}");
                assert_eq!(answer["replayed"], true, "{what}: {answer}");
                for member in [
                    "call_id",
                    "result",
                    "latency_ms",
                    "fencing",
                    "idempotency_key",
                ] {
                    assert_eq!(answer[member], call["answer"][member], "{what}: {member}");
                }
            } else {
                // Unknown when it was left, or running: then nobody knows what became of it.
                assert_eq!(status, 409, "{what}: {answer}");
                assert_eq!(
                    answer["type"], "/problems/outcome-unknown",
                    "{what}: {answer}"
                );
                let was = &call["answer"]["call_id"];
                assert!(
                    was.is_null() || *was == answer["call_id"],
                    "{what}: {answer}"
                );
            }
        }
        let saga = self.get("/v1/sagas/trip-1").await;
        assert_eq!(saga["state"], "open", "{}: {saga}", self.name);
        assert_eq!(
            saga["calls"].as_array().map(Vec::len),
            Some(2),
            "{}: {saga}",
            self.name
        );
        let saga = self.get("/v1/sagas/trip-2").await;
        assert_eq!(saga["state"], "compensated", "{}: {saga}", self.name);
    }
}

#[tokio::test]
async fn the_file_of_each_release_opens_and_replays_and_runs_nothing_again() {
    for stored in stored_folders() {
        let tool = Tool::start().await;
        let mut kept = Kept::open(&stored, &tool).await;
        kept.keeps_every_promise().await;
        // What today's gateway has written is opened again, too.
        kept.kill();
        kept.start().await;
        kept.keeps_every_promise().await;
        assert_eq!(tool.requests(), 0, "{}", kept.name);

        let new = json!({ "args": { "amount": 1 }, "idempotency_key": "new", "user_id": "U-1" });
        let (status, answer) = kept.call("pay", &new).await;
        assert_eq!(
            (status, tool.effects()),
            (200, 1),
            "{}: {answer}",
            kept.name
        );
        let newest = kept
            .calls
            .iter()
            .filter_map(|call| call["answer"]["fencing"].as_u64())
            .max();
        assert!(
            answer["fencing"].as_u64() > newest,
            "{}: {answer}",
            kept.name
        );
    }
}

#[tokio::test]
async fn a_saga_that_an_earlier_release_left_open_is_undone_by_todays_gateway() {
    for stored in stored_folders() {
        let tool = Tool::start().await;
        let kept = Kept::open(&stored, &tool).await;
        let made = kept
            .calls
            .iter()
            .find(|call| call["request"]["idempotency_key"] == "r-1")
            .expect("a member");
        let unknown = kept
            .calls
            .iter()
            .find(|call| call["request"]["idempotency_key"] == "r-2")
            .expect("a member");
        // An operator knows that the unknown member had no effect.
        let id = unknown["answer"]["call_id"].as_str().expect("an id");
        let resolve = client().post(kept.url(&format!("/v1/calls/{id}/resolve")));
        let body = json!({ "as": "failed", "reason": "it is not in the books" });
        let resolved = Answer::to(resolve.body(body.to_string())).await;
        assert_eq!(resolved.status, 200, "{}: {}", kept.name, resolved.text);
        let abort = client().post(kept.url("/v1/sagas/trip-1/abort"));
        Answer::to(abort.body(json!({ "reason": "not wanted" }).to_string())).await;
        until("the saga is undone", async || {
            kept.get("/v1/sagas/trip-1").await["state"] == "compensated"
        })
        .await;
        let undone: Vec<_> = tool
            .executed()
            .into_iter()
            .map(|seen| (seen.line, seen.body))
            .collect();
        let release = json!({ "id": made["answer"]["result"]["id"] }).to_string();
        assert_eq!(
            undone,
            [("POST /release HTTP/1.1".to_owned(), release)],
            "{}",
            kept.name
        );
    }
}
