//! `kill -9`, again and again, under load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate::core::key::Lookup;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::support::binary::{Process, free_port, log};
use crate::support::gateway::{count, count_where, one_tool};
use crate::support::{Act, Answer, PATIENCE, Tool, client, times};

const KILLS: usize = 30;
const AGENTS: usize = 12;

/// What the agents saw, all together.
#[derive(Default)]
struct Seen {
    port: AtomicU16,
    over: AtomicBool,
    /// Acknowledged successes: key to result.
    acknowledged: Mutex<HashMap<String, String>>,
    unknown: AtomicUsize,
    replayed_after_restart: AtomicUsize,
    /// The last answer of each agent, to explain a run that gets stuck.
    last: Mutex<HashMap<usize, String>>,
}

/// The next pseudo-random number of this seed.
fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

async fn post(http: &reqwest::Client, port: u16, key: &str) -> Option<Answer> {
    let request = http
        .post(format!("http://127.0.0.1:{port}/v1/tools/act/calls"))
        .header("idempotency-key", key);
    let body = json!({ "args": { "key": key } }).to_string();
    Answer::within(Duration::from_secs(5), request.body(body)).await
}

/// An agent: one intent after another, each repeated with its key until there is a definite answer. Now and then it
/// repeats an old intent.
async fn act(seen: Arc<Seen>, agent: usize, mut seed: u64) {
    let http = client();
    let mut done: Vec<String> = Vec::new();
    for n in 0.. {
        let old = (!done.is_empty() && random(&mut seed, 4) == 0)
            .then(|| random(&mut seed, done.len() as u64));
        let key = old.map_or_else(
            || format!("agent-{agent}-{n}"),
            |index| done[index as usize].clone(),
        );
        while !seen.over.load(Ordering::SeqCst) {
            let answer = post(&http, seen.port.load(Ordering::SeqCst), &key).await;
            let told = answer.as_ref().map_or("no answer", |answer| &answer.text);
            let told = format!("{key}: {told}");
            seen.last.lock().expect("unpoisoned").insert(agent, told);
            let Some(answer) = answer else {
                sleep(Duration::from_millis(3)).await;
                continue;
            };
            match answer.problem().as_str() {
                "" => {
                    let result = answer.result();
                    let before = seen
                        .acknowledged
                        .lock()
                        .expect("unpoisoned")
                        .insert(key.clone(), result.clone());
                    if let Some(before) = before {
                        assert_eq!(before, result, "a replay of {key} differs");
                        seen.replayed_after_restart.fetch_add(1, Ordering::SeqCst);
                    }
                    done.push(key);
                    break;
                }
                "outcome-unknown" => {
                    let acknowledged = seen
                        .acknowledged
                        .lock()
                        .expect("unpoisoned")
                        .contains_key(&key);
                    assert!(!acknowledged, "{key} was acknowledged and is unknown now");
                    seen.unknown.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                "call-in-progress" | "store-unavailable" | "shutting-down" => {
                    sleep(Duration::from_millis(3)).await
                }
                other => panic!("{other}: {}", answer.text),
            }
        }
        if seen.over.load(Ordering::SeqCst) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_under_load_double_and_lose_nothing() {
    let (seed, _) = Uuid::new_v4().as_u64_pair();
    let mut seed = seed >> 1;
    let said = format!("seed {seed}");
    let tool = Tool::start().await;
    tool.always(Act::after_ms(4, Act::Numbered));
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let seen = Arc::new(Seen::default());
    seen.port.store(port, Ordering::SeqCst);
    let mut agents = JoinSet::new();
    for agent in 0..AGENTS {
        agents.spawn(act(seen.clone(), agent, seed.wrapping_add(agent as u64)));
    }
    let is_enough = || {
        let acknowledged = seen.acknowledged.lock().expect("unpoisoned").len();
        let others = [&seen.unknown, &seen.replayed_after_restart];
        acknowledged > 150 && others.iter().all(|count| count.load(Ordering::SeqCst) > 10)
    };
    let kills = times(KILLS);
    for round in 0..kills * 8 {
        if round >= kills && is_enough() {
            break;
        }
        let mut gateway = Process::start(
            folder.path(),
            port,
            &one_tool(&tool, "[log]\nlevel = \"error\""),
        )
        .await;
        // The kill comes after a number of calls, however long they take, and a random moment more.
        let enough = tool.requests() + random(&mut seed, 16) as usize;
        let patience = Instant::now() + PATIENCE;
        while tool.requests() < enough {
            let is_over = Instant::now() > patience || gateway.has_ended();
            assert!(
                !is_over,
                "{said}: no calls are run in round {round}; the agents were told {:#?}; the gateway said {}",
                seen.last.lock().expect("unpoisoned"),
                std::fs::read_to_string(log(folder.path())).unwrap_or_default()
            );
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(random(&mut seed, 8))).await;
        gateway.kill();
    }
    let gateway = Process::start(folder.path(), port, &one_tool(&tool, "")).await;
    sleep(Duration::from_millis(100)).await;
    seen.over.store(true, Ordering::SeqCst);
    agents.join_all().await;

    let effects = tool.effects_by_key();
    let doubled: Vec<_> = effects
        .iter()
        .filter(|(_, effects)| **effects > 1)
        .collect();
    assert!(doubled.is_empty(), "{said}: {doubled:?}");
    let acknowledged = seen.acknowledged.lock().expect("unpoisoned").clone();
    let http = client();
    for (key, result) in &acknowledged {
        let answer = post(&http, port, key).await.expect("an answer").expect_ok();
        assert_eq!(
            (answer.result(), answer.at("/replayed")),
            (result.clone(), true.into()),
            "{said}: {key}"
        );
        let tool_key = Lookup::new("default", "act", key).for_tool();
        assert_eq!(
            effects.get(&tool_key),
            Some(&1),
            "{said}: {key} was acknowledged"
        );
    }
    gateway.signal("TERM");
    assert!(gateway.ended().await);
    let database = folder.path().join("oncegate.db");
    assert_eq!(count(&database, "running"), 0, "{said}");
    assert_eq!(
        count(&database, "failed"),
        0,
        "{said}: the tool was always there"
    );
    let without_record: Vec<_> = effects
        .keys()
        .filter(|key| count_where(&database, &format!("names WHERE lookup = x'{key}'")) != 1)
        .collect();
    assert!(
        without_record.is_empty(),
        "{said}: effects without a record: {without_record:?}"
    );
    // A run without enough calls proves nothing.
    let unknown = count(&database, "unknown");
    assert!(
        acknowledged.len() > 120,
        "{said}: only {} calls",
        acknowledged.len()
    );
    assert!(unknown > 10, "{said}: only {unknown} calls were cut");
    assert!(
        seen.replayed_after_restart.load(Ordering::SeqCst) > 10,
        "{said}: hardly a replay"
    );
}

#[tokio::test]
#[should_panic(expected = "cannot listen on")]
async fn a_gateway_whose_port_another_server_has_is_not_taken_for_one_that_serves() {
    let (other, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    Process::start(folder.path(), other.port, &one_tool(&other, "")).await;
}
