//! The process ends at each named point, again and again, on both stores; what was promised holds.

use std::collections::HashMap;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate::core::key::Lookup;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::binary::{command, free_port};
use crate::support::gateway::one_tool;
use crate::support::pace::brisk;
use crate::support::redis::Redis;
use crate::support::{Act, Answer, Tool, client, times, until};

/// In the order in which a call passes them.
const POINTS: [&str; 7] = [
    "after_claim",
    "before_first_byte",
    "after_last_byte",
    "after_answer",
    "before_completion",
    "after_completion",
    "before_reply",
];
/// Up to this many calls pass a point before one ends the process there.
const MOST_PASSES: usize = 20;
const AGENTS: usize = 3;
/// The lease is a second longer than the deadline.
const RULES: &str = "timeout = \"1s\"\ndeadline = \"1s\"\nretry = { attempts = 1 }\nbreaker = { failures = 1000 }\n";

/// How often the process ends at each point.
fn rounds() -> usize {
    times(4)
}

fn passes() -> impl Iterator<Item = usize> {
    (0..rounds()).map(|round| round * MOST_PASSES / rounds())
}

/// What all agents have seen.
#[derive(Default)]
struct History {
    over: AtomicBool,
    intents: AtomicUsize,
    /// Acknowledged successes, by key.
    acknowledged: Mutex<HashMap<String, String>>,
    unknown: Mutex<Vec<String>>,
    replayed: AtomicUsize,
    cut_off: AtomicUsize,
}

struct World {
    tool: Tool,
    folder: tempfile::TempDir,
    port: u16,
    store: String,
    rules: String,
    history: Arc<History>,
}

impl World {
    async fn new(store: String) -> Self {
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

    /// For another gateway over the same store.
    fn beside(&self) -> Self {
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

    /// A gateway that does this at these points.
    fn spawn(&self, points: &str) -> Child {
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
        let mut gateway = command(self.folder.path(), &["serve", "--config", "oncegate.toml"]);
        gateway
            .env("FAILPOINTS", points)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        gateway.spawn().expect("the binary starts")
    }

    fn agents(&self) -> JoinSet<()> {
        let url = format!("http://127.0.0.1:{}/v1/tools/act/calls", self.port);
        let mut agents = JoinSet::new();
        for _ in 0..AGENTS {
            agents.spawn(act(self.history.clone(), url.clone()));
        }
        agents
    }

    /// Lets a gateway run until it has ended at this point.
    async fn dies_at(&self, points: &str) {
        let mut gateway = self.spawn(points);
        let patience = Instant::now() + Duration::from_secs(30);
        while gateway.try_wait().expect("a status").is_none() {
            assert!(Instant::now() < patience, "it has not come to {points}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Lets a gateway end while it runs so many calls, and waits until their leases are over.
    async fn loses(&self, calls: usize) {
        // All of them run before the time of the first is over.
        let slow = Self {
            rules: RULES.replace("1s", "4s"),
            ..self.beside()
        };
        let mut gateway = slow.spawn("");
        let (http, url) = (client(), |path: &str| {
            format!("http://127.0.0.1:{}{path}", slow.port)
        });
        let ready = async || {
            http.get(url("/readyz"))
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 200)
        };
        until("it is ready", ready).await;
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

    /// Everything that was promised, when nothing goes wrong any more.
    async fn holds(&self, lost_calls: f64) {
        let http = client();
        let url = |path: &str| format!("http://127.0.0.1:{}{path}", self.port);
        let ready = async || {
            http.get(url("/readyz"))
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 200)
        };
        until("it is ready", ready).await;
        let metric = async |line: &str| {
            let text = http
                .get(url("/metrics"))
                .send()
                .await
                .expect("an answer")
                .text()
                .await
                .expect("a text");
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
        // Something must have happened, or nothing was shown.
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
            "nobody was cut off"
        );
    }
}

async fn post(http: &reqwest::Client, url: &str, key: &str) -> Option<Answer> {
    ask(http, url, key, "wait=40").await
}

async fn ask(http: &reqwest::Client, url: &str, key: &str, prefer: &str) -> Option<Answer> {
    let body = json!({ "args": { "key": key }, "idempotency_key": key }).to_string();
    let request = http.post(url).header("prefer", prefer).body(body);
    let response = timeout(Duration::from_secs(45), request.send())
        .await
        .ok()?
        .ok()?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Some(Answer {
        status,
        headers,
        text: response.text().await.ok()?,
    })
}

/// Intent after intent, each repeated with its key until there is a definite answer; every fourth is an
/// old one.
async fn act(history: Arc<History>, url: String) {
    let http = client();
    while !history.over.load(Ordering::SeqCst) {
        let n = history.intents.fetch_add(1, Ordering::SeqCst);
        let old = history
            .acknowledged
            .lock()
            .expect("unpoisoned")
            .keys()
            .next()
            .cloned();
        let key = old
            .filter(|_| n.is_multiple_of(4))
            .unwrap_or_else(|| format!("k{n}"));
        // Nobody waits for a call whose gateway has ended.
        let mut prefer = "wait=1";
        while !history.over.load(Ordering::SeqCst) {
            let Some(answer) = ask(&http, &url, &key, prefer).await else {
                prefer = "wait=0";
                history.cut_off.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(5)).await;
                continue;
            };
            match answer.problem().as_str() {
                "" => {
                    let result = answer.result();
                    let before = history
                        .acknowledged
                        .lock()
                        .expect("unpoisoned")
                        .insert(key, result.clone());
                    if let Some(before) = before {
                        assert_eq!(before, result, "a replay differs");
                        history.replayed.fetch_add(1, Ordering::SeqCst);
                    }
                    break;
                }
                "outcome-unknown" => {
                    let is_acknowledged = history
                        .acknowledged
                        .lock()
                        .expect("unpoisoned")
                        .contains_key(&key);
                    assert!(
                        !is_acknowledged,
                        "{key} was acknowledged and is unknown now"
                    );
                    history.unknown.lock().expect("unpoisoned").push(key);
                    break;
                }
                // On a shared store a call that was lost is running until its lease is over.
                "call-in-progress" => break,
                "store-unavailable" | "shutting-down" => sleep(Duration::from_millis(5)).await,
                other => panic!("{other}: {}", answer.text),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_gateway_over_a_file_ends_nothing_is_doubled_or_lost() {
    let world = World::new("sqlite:oncegate.db".into()).await;
    let mut agents = world.agents();
    for passes in passes() {
        for point in POINTS {
            world
                .dies_at(&format!("{point}={passes}*off->1*return"))
                .await;
        }
        // What the last one has left behind is found at the start; the next start finds it again.
        world.dies_at("after_claim=1*return").await;
        world.dies_at("in_recovery=1*return").await;
    }
    let mut gateway = world.spawn("");
    world.history.over.store(true, Ordering::SeqCst);
    while agents
        .join_next()
        .await
        .transpose()
        .expect("no panic")
        .is_some()
    {}
    world.holds(rounds() as f64).await;
    gateway.kill().expect("it could be killed");
    gateway.wait().expect("it ended");
}

/// What only a shared store can show: a claim whose answer is lost, and an owner that comes too late.
async fn a_zombie_and_an_ambiguous_claim(world: &World, redis: &Redis) {
    let slow = world.beside();
    let mut gateway = slow.spawn("before_completion=1*sleep(6000)");
    let (http, url) = (client(), |path: &str| {
        format!("http://127.0.0.1:{}{path}", slow.port)
    });
    let ready = async || {
        http.get(url("/readyz"))
            .send()
            .await
            .is_ok_and(|answer| answer.status() == 200)
    };
    until("it is ready", ready).await;
    let door = url("/v1/tools/act/calls");
    let zombie = post(&http, &door, "zombie");
    let claim = async {
        until("the tool was asked", async || {
            world
                .tool
                .seen()
                .iter()
                .any(|seen| seen.body.contains("zombie"))
        })
        .await;
        redis.pause();
        let ambiguous = post(&http, &door, "ambiguous");
        let resume = async {
            sleep(Duration::from_millis(1_500)).await;
            redis.resume();
        };
        tokio::join!(ambiguous, resume).0
    };
    let (zombie, _) = tokio::join!(zombie, claim);
    let zombie = zombie.expect("an answer");
    assert!(
        zombie.status == 200 || zombie.problem() == "outcome-unknown",
        "{}",
        zombie.text
    );
    let metrics = http
        .get(url("/metrics"))
        .send()
        .await
        .expect("an answer")
        .text()
        .await
        .expect("a text");
    assert!(
        metrics.contains("oncegate_store_errors_total{kind=\"ambiguous\",operation=\"claim\"}"),
        "{metrics}"
    );
    assert!(
        metrics.contains("\noncegate_stale_owners_total 1\n"),
        "{metrics}"
    );
    gateway.kill().expect("it could be killed");
    gateway.wait().expect("it ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_gateway_over_redis_ends_nothing_is_doubled_or_lost() {
    let redis = Redis::strict().await;
    let world = World::new(redis.url()).await;
    let mut agents = world.agents();
    for passes in passes() {
        for point in POINTS {
            world
                .dies_at(&format!("{point}={passes}*off->1*return"))
                .await;
        }
    }
    world.history.over.store(true, Ordering::SeqCst);
    while agents
        .join_next()
        .await
        .transpose()
        .expect("no panic")
        .is_some()
    {}
    world.loses(2 * rounds()).await;
    // Their leases end; each start settles one and dies at the next.
    for _ in 0..rounds() {
        world.dies_at("in_recovery=1*off->1*return").await;
    }
    let mut gateway = world.spawn("");
    a_zombie_and_an_ambiguous_claim(&world, &redis).await;
    world.holds(rounds() as f64).await;
    gateway.kill().expect("it could be killed");
    gateway.wait().expect("it ended");
}

/// The check is written before the tool is asked, or sent the same again: who ends in between leaves it to
/// the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_ends_in_a_recheck_leaves_it_to_the_next() {
    for retries in [true, false] {
        let mut world = World::new("sqlite:oncegate.db".into()).await;
        world
            .tool
            .deduplicate()
            .then(Act::ExecuteThenDrop)
            .always(Act::Ok("{\"order\":1}"));
        let policy = if retries {
            "unknown = \"retry\"\ndedup = \"key\"\n".to_owned()
        } else {
            let url = format!("http://127.0.0.1:{}/by-key/{{key}}", world.tool.port);
            format!("unknown = \"probe\"\nprobe = {{ url = \"{url}\" }}\n")
        };
        world.rules += &format!("{policy}recheck = {{ base = \"500ms\", max = \"500ms\" }}\n");
        let (http, url) = (client(), |path: &str| {
            format!("http://127.0.0.1:{}{path}", world.port)
        });
        let is_ready = async || {
            http.get(url("/readyz"))
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 200)
        };
        let mut gateway = world.spawn("in_recheck=1*return");
        until("it is ready", is_ready).await;
        // Who waits for longer than for the outcome would see the gateway end.
        let body = json!({ "args": {}, "idempotency_key": "k" }).to_string();
        let unknown = http
            .post(url("/v1/tools/act/calls"))
            .body(body)
            .send()
            .await
            .expect("an answer");
        let unknown = Answer::read(unknown)
            .await
            .expect_problem("outcome-unknown");
        until("it has ended in a recheck", async || {
            gateway.try_wait().expect("a status").is_some()
        })
        .await;
        assert_eq!(world.tool.requests(), 1, "nothing was asked or sent");
        let mut gateway = world.spawn("");
        until("it is ready", is_ready).await;
        let id = unknown.at("/call_id");
        let path = format!("/v1/calls/{}", id.as_str().expect("an id"));
        let record = async || {
            Answer::read(http.get(url(&path)).send().await.expect("an answer"))
                .await
                .expect_ok()
        };
        until("it is settled", async || {
            record().await.at("/state") == "succeeded"
        })
        .await;
        assert_eq!(world.tool.requests(), 2);
        let posts = world
            .tool
            .seen()
            .into_iter()
            .filter(|seen| seen.line.starts_with("POST"));
        assert!(
            posts.filter(|seen| seen.executed).count() == 1,
            "one effect"
        );
        gateway.kill().expect("it could be killed");
        gateway.wait().expect("it ended");
    }
}
