//! Exclusive sessions under load, with gateways that are killed and stopped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::tool::Seen;
use crate::support::{Act, Answer, Tool, client, times, until};

/// Branches of one session that call at the same time.
const BRANCHES: usize = 8;
const CALLS_OF_A_BRANCH: usize = 5;

/// A gateway in a process of its own over this store.
async fn process(folder: &tempfile::TempDir, url: &str, tool: &Tool, more: &str) -> Process {
    let environment = [("ONCEGATE_STORE__URL", url)];
    let process = Process::start_in(
        folder.path(),
        free_port(),
        &one_tool(tool, more),
        &environment,
    )
    .await;
    let http = client();
    until("it is ready", async || {
        http.get(process.url("/readyz"))
            .send()
            .await
            .is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    process
}

/// The answer that an agent gets; `None` if the gateway is gone.
async fn post(http: &reqwest::Client, url: &str, session: &str, key: &str) -> Option<Answer> {
    let body = json!({ "args": { "key": key }, "session_id": session, "idempotency_key": key });
    let response = timeout(
        Duration::from_secs(90),
        http.post(url).body(body.to_string()).send(),
    )
    .await;
    let response = response.expect("every waiter ends").ok()?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Some(Answer {
        status,
        headers,
        text: response.text().await.ok()?,
    })
}

#[derive(Default)]
struct Agents {
    one_is_gone: AtomicBool,
    ended: AtomicUsize,
    cut_off: AtomicUsize,
}

/// One branch of a session: call after call, each repeated with its key until there is a definite answer.
/// Returns the keys and the numbers of their effects; `None` for an unknown outcome.
async fn branch(
    http: reqwest::Client,
    agents: Arc<Agents>,
    urls: [String; 2],
    session: String,
    branch: usize,
) -> Vec<(String, Value)> {
    let mut outcomes = Vec::new();
    for n in 0..CALLS_OF_A_BRANCH {
        let key = format!("{session}-{branch}-{n}");
        let mut url = &urls[(branch + n) % 2];
        let outcome = loop {
            if agents.one_is_gone.load(Ordering::SeqCst) {
                url = &urls[1];
            }
            let Some(answer) = post(&http, url, &session, &key).await else {
                agents.cut_off.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            match answer.problem().as_str() {
                "" => break answer.at("/result/effect"),
                "outcome-unknown" => break Value::Null,
                "call-in-progress" | "session-busy" | "store-unavailable" | "tool-unreachable"
                | "tool-unavailable" => {
                    sleep(Duration::from_millis(50)).await;
                }
                other => panic!("{key}: {other}: {}", answer.text),
            }
        };
        outcomes.push((key, outcome));
        agents.ended.fetch_add(1, Ordering::SeqCst);
    }
    outcomes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_calls_of_many_sessions_never_overlap_though_a_gateway_of_redis_is_killed() {
    let redis = Redis::strict().await;
    never_overlap(&redis.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_calls_of_many_sessions_never_overlap_though_a_gateway_of_postgres_is_killed() {
    let server = Postgres::with(&[]).await;
    never_overlap(&server.url()).await;
}

async fn never_overlap(url: &str) {
    let tool = Tool::start().await;
    let many = times(10);
    let calls = many * BRANCHES * CALLS_OF_A_BRANCH;
    // Before the gateway is killed, its calls are held at the tool.
    let (hold, held) = Act::held(Act::Numbered);
    let (is_holding, holds) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    tool.choose({
        let (is_holding, holds) = (is_holding.clone(), holds.clone());
        move |seen, earlier| {
            if is_holding.load(Ordering::SeqCst) && seen.header("x-gateway") == "killed" {
                holds.fetch_add(1, Ordering::SeqCst);
                return held.clone();
            }
            // Two calls of a session in a row take different times.
            Act::after_ms((earlier.len() as u64 * 7_919) % 19, Act::Numbered)
        }
    });
    let rules = "session = \"exclusive\"\nsession_wait = \"60s\"\ntimeout = \"5s\"\ndeadline = \"5s\"\nretry = { attempts = 1 }";
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let marked = format!("{rules}\nheaders = {{ x-gateway = \"killed\" }}");
    let killed = process(&folders[0], url, &tool, &marked).await;
    let survivor = process(&folders[1], url, &tool, rules).await;
    let urls = [
        killed.url("/v1/tools/act/calls"),
        survivor.url("/v1/tools/act/calls"),
    ];
    // One client for all: building a client blocks this process, and so its tool, for a while.
    let http = client();
    let (agents, mut branches) = (Arc::<Agents>::default(), JoinSet::new());
    for session in 0..many {
        for n in 0..BRANCHES {
            branches.spawn(branch(
                http.clone(),
                agents.clone(),
                urls.clone(),
                format!("S{session}"),
                n,
            ));
        }
    }
    // Waits for a number of calls and not for a time, so that a busy machine makes no difference.
    let third = async {
        while agents.ended.load(Ordering::SeqCst) < calls / 3 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(150), third)
        .await
        .expect("a third of it is done");
    is_holding.store(true, Ordering::SeqCst);
    until(
        "calls are under way at the one that is killed",
        async || holds.load(Ordering::SeqCst) > 0,
    )
    .await;
    killed.kill();
    drop(hold);
    agents.one_is_gone.store(true, Ordering::SeqCst);
    let outcomes: HashMap<String, Value> =
        branches.join_all().await.into_iter().flatten().collect();
    assert_eq!(outcomes.len(), calls, "every waiter ended");

    let mut sessions: HashMap<String, Vec<Seen>> = HashMap::new();
    for seen in tool.seen() {
        sessions
            .entry(seen.header("x-session-id").to_owned())
            .or_default()
            .push(seen);
    }
    assert_eq!(sessions.len(), many);
    for (session, calls) in &sessions {
        assert!(
            calls.is_sorted_by(|one, next| one.until <= next.at),
            "calls of {session} overlap"
        );
        let tokens: Vec<u64> = calls
            .iter()
            .map(|seen| seen.header("fencing-token").parse().expect("a token"))
            .collect();
        assert!(
            tokens.is_sorted_by(|one, next| one < next),
            "tokens of {session}: {tokens:?}"
        );
    }
    assert!(
        tool.effects_by_key().values().all(|effects| *effects == 1),
        "no intent had two effects"
    );
    let unknown = outcomes
        .values()
        .filter(|outcome| outcome.is_null())
        .count();
    let acknowledged: Vec<&Value> = outcomes
        .values()
        .filter(|outcome| !outcome.is_null())
        .collect();
    assert!(tool.effects() >= acknowledged.len() && tool.effects() <= calls);
    // If no call was interrupted, the test has proved nothing.
    assert!(
        unknown > 0,
        "no call was under way at the gateway that was killed"
    );
    assert!(
        agents.cut_off.load(Ordering::SeqCst) > unknown,
        "no call waited at it"
    );
    assert!(
        unknown <= many,
        "{unknown}: of each session one call at the most was under way"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_redis_that_was_stopped_past_its_lease_overrules_nothing_that_happened_meanwhile()
 {
    let redis = Redis::strict().await;
    overrules_nothing(&redis.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_postgres_that_was_stopped_past_its_lease_overrules_nothing_that_happened_meanwhile()
 {
    let server = Postgres::with(&[]).await;
    overrules_nothing(&server.url()).await;
}

async fn overrules_nothing(url: &str) {
    let tool = Tool::start().await;
    let (release, held) = Act::held(Act::Numbered);
    tool.then(held);
    let rules = "session = \"exclusive\"\nsession_wait = \"60s\"\ntimeout = \"1s\"\ndeadline = \"1s\"\nretry = { attempts = 1 }";
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let stopped = process(&folders[0], url, &tool, rules).await;
    let other = process(&folders[1], url, &tool, rules).await;
    let (http, door) = (client(), "/v1/tools/act/calls");
    let (stopped_url, other_url) = (stopped.url(door), other.url(door));
    let asker = client();
    let first = tokio::spawn(async move { post(&asker, &stopped_url, "S", "first").await });
    until("the tool has it", async || tool.requests() == 1).await;
    stopped.pause();
    drop(release);

    // The stopped gateway's call becomes unknown when its lease is over. Only then the next call gets the session.
    let next = post(&http, &other_url, "S", "next")
        .await
        .expect("an answer")
        .expect_ok();
    let unknown = post(&http, &other_url, "S", "first")
        .await
        .expect("an answer");
    let unknown = unknown.expect_problem("outcome-unknown");
    let record = async || {
        let path = format!("/v1/calls/{}", unknown.id());
        Answer::to(http.get(other.url(&path))).await.expect_ok()
    };
    let held = record().await;
    assert_eq!(held.at("/state"), "unknown");
    assert!(held.at("/fencing").as_u64() < next.at("/fencing").as_u64());

    stopped.signal("CONT");
    let answer = first.await.expect("no panic").expect("an answer");
    assert!(
        answer.status == 200 && answer.at("/result/effect") == json!(0.0)
            || answer.problem() == "outcome-unknown",
        "whichever it hears first, it is true: {}",
        answer.text
    );
    until("its late answer has settled the call", async || {
        record().await.at("/state") == "succeeded"
    })
    .await;
    let replayed = post(&http, &other_url, "S", "first")
        .await
        .expect("an answer")
        .expect_ok();
    assert_eq!(
        (replayed.at("/replayed"), replayed.at("/result/effect")),
        (true.into(), json!(0.0))
    );
    let metrics = http
        .get(stopped.url("/metrics"))
        .send()
        .await
        .expect("an answer")
        .text()
        .await
        .expect("text");
    assert!(
        metrics.contains("\noncegate_stale_owners_total 1\n"),
        "its completion was refused and counted"
    );
    assert_eq!((tool.requests(), tool.effects()), (2, 2), "each once");
}
