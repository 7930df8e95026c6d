//! The process ends at each named point, again and again, on both stores. No call is doubled or lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::accidents::points_world::{History, MOST_PASSES, World, ask, post};
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::{Act, Answer, client, times, until, until_ready};

/// How often the process ends at each point.
pub fn rounds() -> usize {
    times(3)
}

pub fn passes() -> impl Iterator<Item = usize> {
    (0..rounds()).map(|round| round * MOST_PASSES / rounds())
}

/// An agent: one intent after another, each repeated with its key until there is a definite answer. Every fourth intent is
/// an old one.
pub async fn act(history: Arc<History>, url: String) {
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
        // Once a gateway has ended, the agent does not wait for its call.
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
                // On a shared store a call that lost its gateway counts as running until its lease is over.
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
    let agents = world.agents();
    for passes in passes() {
        world.dies_at_every_point(passes).await;
        // The next start finds the call that this one leaves behind, and ends as well; the start after that finds it again.
        world.dies_at("after_claim=1*return").await;
        world.dies_at("in_recovery=1*return").await;
    }
    let mut gateway = world.spawn("");
    world.history.over.store(true, Ordering::SeqCst);
    agents.join_all().await;
    world.holds(rounds() as f64).await;
    gateway.kill().expect("it could be killed");
    gateway.wait().expect("it ended");
}

/// Only on a shared store: a claim whose answer is lost, and an owner that comes too late.
///
/// `pause` lets the store be silent for so long that the gateway does not wait for it.
async fn a_zombie_and_an_ambiguous_claim(
    world: &World,
    pause: impl Fn(),
    silent: Duration,
    resume: impl Fn(),
) {
    let slow = world.beside();
    let is_over = slow.folder.path().join("is-over");
    let mut gateway = slow.spawn(&format!(
        "before_completion=1*return({})",
        is_over.display()
    ));
    let (http, url) = (client(), |path: &str| {
        format!("http://127.0.0.1:{}{path}", slow.port)
    });
    until_ready(&url("/readyz")).await;
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
        pause();
        let ambiguous = post(&http, &door, "ambiguous");
        let resume = async {
            sleep(silent).await;
            resume();
        };
        tokio::join!(ambiguous, resume).0
    };
    let late = async {
        claim.await;
        // The zombie comes after its lease: when its call is unknown.
        until("the lease is over", async || {
            let unknown = http.get(url("/v1/calls?tool=act&state=unknown&key=zombie"));
            Answer::to(unknown).await.at("/calls/0") != Value::Null
        })
        .await;
        std::fs::write(&is_over, "").expect("a file");
    };
    let (zombie, ()) = tokio::join!(zombie, late);
    let zombie = zombie.expect("an answer");
    assert!(
        zombie.status == 200 || zombie.problem() == "outcome-unknown",
        "{}",
        zombie.text
    );
    let metrics = Answer::to(http.get(url("/metrics"))).await.text;
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
    let agents = world.agents();
    for passes in passes() {
        world.dies_at_every_point(passes).await;
    }
    world.history.over.store(true, Ordering::SeqCst);
    agents.join_all().await;
    world.loses(2 * rounds()).await;
    // The leases end. Each start settles one call and ends at the next call.
    for _ in 0..rounds() {
        world.dies_at("in_recovery=1*off->1*return").await;
    }
    let mut gateway = world.spawn("");
    let silent = Duration::from_millis(1_500);
    a_zombie_and_an_ambiguous_claim(&world, || redis.pause(), silent, || redis.resume()).await;
    world.holds(rounds() as f64).await;
    gateway.kill().expect("it could be killed");
    gateway.wait().expect("it ended");
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_gateway_over_postgres_ends_nothing_is_doubled_or_lost() {
    let server = Postgres::with(&[]).await;
    let world = World::new(server.url()).await;
    let agents = world.agents();
    for passes in passes() {
        world.dies_at_every_point(passes).await;
    }
    world.history.over.store(true, Ordering::SeqCst);
    agents.join_all().await;
    world.loses(2 * rounds()).await;
    // The leases end. Each start settles one call and ends at the next call.
    for _ in 0..rounds() {
        world.dies_at("in_recovery=1*off->1*return").await;
    }
    let mut gateway = world.spawn("");
    let silent = Duration::from_millis(6_500);
    a_zombie_and_an_ambiguous_claim(&world, || server.pause(), silent, || server.resume()).await;
    world.holds(rounds() as f64).await;
    gateway.kill().expect("it could be killed");
    gateway.wait().expect("it ended");
}

/// A check is written before the tool is asked or gets the call again. If the gateway ends in between, the next gateway
/// checks the call.
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
        // A request that waits for longer would see the gateway end.
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
        let id = unknown.id();
        let path = format!("/v1/calls/{id}");
        let record = async || Answer::to(http.get(url(&path))).await.expect_ok();
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
