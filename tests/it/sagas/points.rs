//! The process ends at each crash point on the way of a saga, and is started again. The saga ends, and each call is
//! done and undone once.

use std::process::Child;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::binary::{Process, free_port, spawn_with_points, write_config};
use crate::support::{Act, Answer, Tool, client, until};

/// Each crash point, and how often it is passed before the process ends there. The first three calls are the plan; later
/// calls are compensations.
const POINTS: [(&str, usize); 22] = [
    ("saga_claimed", 0),
    ("saga_claimed", 2),
    ("saga_claimed", 3),
    ("saga_joined", 0),
    ("saga_joined", 2),
    ("saga_closed", 0),
    ("saga_taken", 0),
    ("saga_marked", 0),
    ("saga_marked", 2),
    ("after_claim", 3),
    ("before_first_byte", 3),
    ("after_last_byte", 3),
    ("after_answer", 4),
    ("before_completion", 4),
    ("after_completion", 5),
    ("saga_undone", 0),
    ("saga_undone", 2),
    ("saga_noted", 0),
    ("saga_noted", 2),
    ("saga_compensated", 0),
    // Reached only if compensations fail at first.
    ("saga_stuck", 0),
    ("saga_retried", 0),
];
/// A lease lasts ten seconds longer than the deadline.
const PATIENCE: Duration = Duration::from_secs(90);

struct World {
    tool: Tool,
    folder: tempfile::TempDir,
    port: u16,
    client: reqwest::Client,
}

impl World {
    async fn new(client: reqwest::Client, is_bad: bool) -> Self {
        let tool = Tool::start().await;
        tool.deduplicate().choose(move |seen, before| {
            // The first three compensations fail.
            let undoing = before
                .iter()
                .filter(|seen| seen.line.contains("/undo"))
                .count();
            let fails = is_bad && seen.line.contains("/undo") && undoing < 3;
            // The delay leaves a moment between the last byte and the answer.
            Act::after_ms(
                20,
                if fails {
                    Act::Answer(422, "", b"{}")
                } else {
                    Act::Ok("{\"made\":7}")
                },
            )
        });
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            tool,
            folder,
            port: free_port(),
            client,
        }
    }

    fn spawn(&self, points: &str) -> Child {
        let at = |path: &str| format!("http://127.0.0.1:{}/{path}", self.tool.port);
        let rules = "timeout = \"5s\"\ndeadline = \"5s\"\nretry = { attempts = 1 }\ndedup = \"key\"\n\
             unknown = \"retry\"\nrecheck = { base = \"100ms\", max = \"200ms\" }\n";
        let mut config =
            "[sagas]\nretry = { attempts = 3, base = \"10ms\", max = \"100ms\" }\n".to_owned();
        for (tool, more) in [
            (
                "act",
                "compensation = { tool = \"undo\", args = { of = \"/call/call_id\" } }\n",
            ),
            ("undo", ""),
        ] {
            config += &format!("[tools.{tool}]\nurl = \"{}\"\n{rules}{more}", at(tool));
        }
        write_config(self.folder.path(), self.port, &config);
        spawn_with_points(self.folder.path(), points)
    }

    async fn ask(&self, path: &str, body: Option<&Value>) -> Option<Answer> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let request = match body {
            Some(body) => self
                .client
                .post(url)
                .header("prefer", "wait=1")
                .body(body.to_string()),
            None => self.client.get(url),
        };
        Answer::within(Duration::from_secs(5), request).await
    }

    async fn saga(&self) -> Option<Answer> {
        self.ask("/v1/sagas/G", None)
            .await
            .filter(|answer| answer.status == 200)
    }

    /// Carries out the plan step by step, until the saga or the gateway has ended.
    async fn carry_out(&self, mut gateway: Option<&mut Child>, what: &str) {
        let patience = Instant::now() + PATIENCE;
        let mut has_ended = || {
            gateway
                .as_mut()
                .is_some_and(|gateway| gateway.try_wait().expect("a status").is_some())
        };
        let mut calls = ["a", "b", "c"].into_iter().peekable();
        let (mut is_aborted, reason) = (false, json!({ "reason": "sold out" }));
        while !has_ended() {
            assert!(
                Instant::now() < patience,
                "not in time: {what}: {:?}",
                self.saga().await
            );
            if let Some(key) = calls.peek() {
                let body = json!({ "args": {}, "saga_id": "G", "session_id": "S", "idempotency_key": key });
                let answer = self.ask("/v1/tools/act/calls", Some(&body)).await;
                // An ended saga takes no new call.
                if answer.is_some_and(|answer| {
                    matches!(answer.status, 200 | 409) && answer.problem() != "call-in-progress"
                }) {
                    calls.next();
                }
            } else if !is_aborted {
                let answer = self.ask("/v1/sagas/G/abort", Some(&reason)).await;
                is_aborted = answer.is_some_and(|answer| matches!(answer.status, 200 | 409));
            } else if let Some(saga) = self.saga().await {
                if saga.at("/state") == "stuck" {
                    self.ask("/v1/sagas/G/retry", Some(&reason)).await;
                }
                if saga.at("/state") == "compensated" && saga.at("/next_at").is_null() {
                    return;
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Checks that each call was done once and undone once, the newest first.
    fn judge(&self, what: &str) {
        let executed = self.tool.executed();
        let of = |body: &str| serde_json::from_str::<Value>(body).expect("JSON")["of"].clone();
        let (undoing, done): (Vec<_>, Vec<_>) = executed
            .iter()
            .enumerate()
            .partition(|(_, seen)| of(&seen.body).is_string());
        // A call that was lost before it was sent is sent later, so the order is that of the fencing tokens.
        let mut done = done;
        done.sort_by_key(|(_, seen)| {
            seen.header("fencing-token")
                .parse::<u64>()
                .expect("a token")
        });
        let done: Vec<String> = done
            .iter()
            .map(|(_, seen)| seen.header("x-call-id").to_owned())
            .collect();
        let mut undone: Vec<String> = undoing
            .iter()
            .map(|(_, seen)| of(&seen.body).as_str().expect("an id").to_owned())
            .collect();
        let last_done = executed
            .iter()
            .rposition(|seen| !of(&seen.body).is_string())
            .expect("something");
        assert!(
            undoing.iter().all(|(at, _)| *at > last_done),
            "{what}: done after it was undone"
        );
        undone.reverse();
        assert_eq!(done, undone, "{what}");
        assert_eq!(done.len(), 3, "{what}");
    }
}

async fn ends_at(client: reqwest::Client, point: &str, times: usize) {
    let what = format!("{point}={times}*off->1*return");
    let world = World::new(client, matches!(point, "saga_stuck" | "saga_retried")).await;
    let mut gateway = world.spawn(&what);
    world.carry_out(Some(&mut gateway), &what).await;
    assert!(
        gateway.try_wait().expect("a status").is_some(),
        "it has not come to {what}"
    );
    let mut gateway = world.spawn("");
    world.carry_out(None, &what).await;
    gateway.kill().expect("it could be killed");
    gateway.wait().expect("it ended");
    world.judge(&what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_gateway_ends_a_saga_comes_to_its_end() {
    let client = client();
    let mut worlds = JoinSet::new();
    for (point, times) in POINTS {
        let client = client.clone();
        worlds.spawn(async move { ends_at(client, point, times).await });
    }
    worlds.join_all().await;
}

/// The compensating tool has a deadline of ten minutes: without the release at the start the saga would wait longer than
/// this test does.
#[tokio::test]
async fn after_a_crash_a_saga_over_a_file_goes_on_at_once() {
    let (tool, folder, port) = (
        Tool::start().await,
        tempfile::tempdir().expect("a folder"),
        free_port(),
    );
    tool.always(Act::Ok("{\"made\":7}"));
    let config = format!(
        "[tools.act]\nurl = \"{0}\"\ncompensation = {{ tool = \"undo\" }}\n\
         [tools.undo]\nurl = \"{0}\"\ndeadline = \"10m\"\n",
        tool.url()
    );
    let begin = async |points: &str| {
        Process::start_in(folder.path(), port, &config, &[("FAILPOINTS", points)]).await
    };
    let post = async |path: &str, body: Value| {
        let url = format!("http://127.0.0.1:{port}{path}");
        Some(
            Answer::read(
                client()
                    .post(url)
                    .body(body.to_string())
                    .send()
                    .await
                    .ok()?,
            )
            .await,
        )
    };
    let dying = begin("saga_undone=return").await;
    for key in ["a", "b"] {
        let call = json!({ "args": {}, "saga_id": "G", "idempotency_key": key });
        post("/v1/tools/act/calls", call)
            .await
            .expect("an answer")
            .expect_ok();
    }
    post("/v1/sagas/G/abort", json!({ "reason": "sold out" })).await;
    dying.ended().await;
    assert_eq!(tool.effects(), 3);

    let _gateway = begin("").await;
    until("all is undone", async || {
        let saga = client()
            .get(format!("http://127.0.0.1:{port}/v1/sagas/G"))
            .send()
            .await;
        Answer::read(saga.expect("an answer")).await.at("/state") == "compensated"
    })
    .await;
    assert_eq!(tool.effects(), 4, "each is undone once");
}
