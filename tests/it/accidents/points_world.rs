//! Gateways that end at a crash point, and the checks of what must hold afterwards.

use std::collections::HashMap;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate::core::key::Lookup;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::accidents::points::{act, rounds};
use crate::support::binary::{free_port, spawn_with_points};
use crate::support::gateway::one_tool;
use crate::support::timings::brisk;
use crate::support::{Act, Answer, Tool, client, until, until_ready};

/// The crash points, in the order in which a call passes them.
pub const POINTS: [&str; 7] = [
    "after_claim",
    "before_first_byte",
    "after_last_byte",
    "after_answer",
    "before_completion",
    "after_completion",
    "before_reply",
];
/// At most this many calls pass a point before a call ends the process there.
pub const MOST_PASSES: usize = 20;
const AGENTS: usize = 3;
/// The lease lasts a second longer than the deadline.
const RULES: &str = "timeout = \"1s\"\ndeadline = \"1s\"\nretry = { attempts = 1 }\nbreaker = { failures = 1000 }\n";

/// What all agents have seen.
#[derive(Default)]
pub struct History {
    pub over: AtomicBool,
    pub intents: AtomicUsize,
    /// Acknowledged successes, by key.
    pub acknowledged: Mutex<HashMap<String, String>>,
    pub unknown: Mutex<Vec<String>>,
    pub replayed: AtomicUsize,
    pub cut_off: AtomicUsize,
}

pub struct World {
    pub tool: Tool,
    pub folder: tempfile::TempDir,
    pub port: u16,
    pub store: String,
    pub rules: String,
    pub history: Arc<History>,
}

impl World {
    pub async fn new(store: String) -> Self {
        let tool = Tool::start().await;
        tool.always(Act::after_ms(3, Act::Numbered));
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            tool,
            folder,
            port: free_port(),
            store,
            rules: RULES.to_owned(),
            history: Arc::default(),
        }
    }

    /// The same world for another gateway over the same store.
    pub fn beside(&self) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (tool, store, history) = (self.tool.clone(), self.store.clone(), self.history.clone());
        Self {
            tool,
            folder,
            port: free_port(),
            store,
            rules: self.rules.clone(),
            history,
        }
    }

    /// Starts a gateway with these actions at its crash points.
    pub fn spawn(&self, points: &str) -> Child {
        let listen = format!(
            "[server]\nlisten = \"127.0.0.1:{}\"\nshutdown_grace = \"1s\"\n",
            self.port
        );
        let store = format!(
            "[store]\nurl = \"{}\"\n[log]\nlevel = \"error\"\n",
            self.store
        );
        let config = format!("{listen}{store}{}", one_tool(&self.tool, &self.rules));
        std::fs::write(self.folder.path().join("oncegate.toml"), config).expect("a file");
        spawn_with_points(self.folder.path(), points)
    }

    pub fn agents(&self) -> JoinSet<()> {
        let url = format!("http://127.0.0.1:{}/v1/tools/act/calls", self.port);
        let mut agents = JoinSet::new();
        for _ in 0..AGENTS {
            agents.spawn(act(self.history.clone(), url.clone()));
        }
        agents
    }

    /// Runs a gateway until it has ended at this point.
    pub async fn dies_at(&self, points: &str) {
        let mut gateway = self.spawn(points);
        until(points, async || {
            gateway.try_wait().expect("a status").is_some()
        })
        .await;
    }

    /// The same at each point in turn, after this many calls have passed the point.
    pub async fn dies_at_every_point(&self, passes: usize) {
        for point in POINTS {
            let points = format!("{point}={passes}*off->1*return");
            self.dies_at(&points).await;
        }
    }

    /// Ends a gateway while it runs this many calls, and waits until their leases are over.
    pub async fn loses(&self, calls: usize) {
        // The deadline is long enough for all calls to be running at once.
        let slow = Self {
            rules: RULES.replace("1s", "4s"),
            ..self.beside()
        };
        let mut gateway = slow.spawn("");
        let (http, url) = (client(), |path: &str| {
            format!("http://127.0.0.1:{}{path}", slow.port)
        });
        until_ready(&url("/readyz")).await;
        let before = self.tool.requests();
        self.tool.always(Act::Hang);
        let mut agents = JoinSet::new();
        for n in 0..calls {
            let (http, door) = (http.clone(), url("/v1/tools/act/calls"));
            agents.spawn(async move { drop(post(&http, &door, &format!("lost{n}")).await) });
        }
        until("all of them run", async || {
            self.tool.requests() >= before + calls
        })
        .await;
        gateway.kill().expect("it could be killed");
        gateway.wait().expect("it ended");
        self.tool.always(Act::after_ms(3, Act::Numbered));
        sleep(Duration::from_secs(4) + brisk().lease_margin).await;
    }

    /// Checks all promises with a gateway that does not end.
    pub async fn holds(&self, lost_calls: f64) {
        let http = client();
        let url = |path: &str| format!("http://127.0.0.1:{}{path}", self.port);
        until_ready(&url("/readyz")).await;
        let metric = async |line: &str| {
            let text = Answer::to(http.get(url("/metrics"))).await.text;
            let value = text
                .lines()
                .find_map(|have| have.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
            value.unwrap_or(0.0)
        };
        let running = "oncegate_running_calls{tool=\"act\"}";
        until("nothing is left as running", async || {
            metric(running).await == 0.0
        })
        .await;
        let effects = self.tool.effects_by_key();
        let doubled: Vec<_> = effects
            .iter()
            .filter(|(_, effects)| **effects > 1)
            .collect();
        assert!(doubled.is_empty(), "two effects: {doubled:?}");
        let acknowledged = self
            .history
            .acknowledged
            .lock()
            .expect("unpoisoned")
            .clone();
        for (key, result) in &acknowledged {
            let answer = post(&http, &url("/v1/tools/act/calls"), key)
                .await
                .expect("an answer")
                .expect_ok();
            assert_eq!(
                (answer.result(), answer.at("/replayed")),
                (result.clone(), true.into()),
                "{key}"
            );
            let tool_key = Lookup::new("default", "act", key).for_tool();
            assert_eq!(effects.get(&tool_key), Some(&1), "{key} was acknowledged");
        }
        let unknown = self.history.unknown.lock().expect("unpoisoned").clone();
        for key in unknown {
            let answer = ask(&http, &url("/v1/tools/act/calls"), &key, "wait=0")
                .await
                .expect("an answer");
            answer.expect_problem("outcome-unknown");
        }
        let unknown = metric("oncegate_unknown_calls{tool=\"act\"}").await;
        // If nothing was interrupted, the test has proved nothing.
        assert!(unknown >= lost_calls, "only {unknown} calls were lost");
        assert!(
            acknowledged.len() > 50,
            "only {} were acknowledged",
            acknowledged.len()
        );
        assert!(
            self.history.replayed.load(Ordering::SeqCst) > 0,
            "no replay across a restart"
        );
        assert!(
            self.history.cut_off.load(Ordering::SeqCst) > rounds() * POINTS.len(),
            "no caller was cut off"
        );
    }
}

pub async fn post(http: &reqwest::Client, url: &str, key: &str) -> Option<Answer> {
    ask(http, url, key, "wait=40").await
}

pub async fn ask(http: &reqwest::Client, url: &str, key: &str, prefer: &str) -> Option<Answer> {
    let body = json!({ "args": { "key": key }, "idempotency_key": key }).to_string();
    let request = http.post(url).header("prefer", prefer).body(body);
    Answer::within(Duration::from_secs(45), request).await
}
