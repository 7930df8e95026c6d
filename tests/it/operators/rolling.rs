//! Two gateways over one Redis are restarted in turn under load, with the real binary.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::{Act, Answer, Tool, client, until};

const WORKERS: usize = 8;
/// Calls in a row with the same key, at whatever gateway.
const REPEATS: usize = 2;

/// One of the two, as a load balancer sees it.
struct Place {
    port: u16,
    folder: tempfile::TempDir,
    is_up: AtomicBool,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            port: free_port(),
            folder,
            is_up: AtomicBool::new(false),
        }
    }

    async fn start(&self, config: &str, store: &str) -> Process {
        let environment = [
            ("ONCEGATE_STORE__URL", store),
            ("ONCEGATE_STORE__WATERMARKS", "watermarks"),
            ("ONCEGATE_SERVER__SHUTDOWN_GRACE", "10s"),
            ("ONCEGATE_SERVER__DRAIN_DELAY", "300ms"),
        ];
        let process = Process::start_in(self.folder.path(), self.port, config, &environment).await;
        let ready = process.url("/readyz");
        until("it is ready", async || {
            client()
                .get(&ready)
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 200)
        })
        .await;
        self.is_up.store(true, Ordering::SeqCst);
        process
    }
}

/// One call. Goes to the other gateway if the one is not there, or says that it stops, and only then.
async fn call(
    client: &reqwest::Client,
    places: &[Place; 2],
    first: usize,
    key: &str,
) -> Result<Answer, String> {
    for turn in 0.. {
        let place = &places[(first + turn) % 2];
        if !place.is_up.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(1)).await;
            continue;
        }
        let url = format!("http://127.0.0.1:{}/v1/tools/act/calls", place.port);
        let body = json!({ "args": { "key": key } }).to_string();
        match client
            .post(url)
            .header("idempotency-key", key)
            .body(body)
            .send()
            .await
        {
            Ok(answer) => {
                let answer = Answer::read(answer).await;
                if answer.status == 503 && answer.problem() == "shutting-down" {
                    place.is_up.store(false, Ordering::SeqCst);
                    continue;
                }
                return if answer.status == 200 {
                    Ok(answer)
                } else {
                    Err(answer.text)
                };
            }
            Err(error) if error.is_connect() => place.is_up.store(false, Ordering::SeqCst),
            Err(error) => return Err(format!("{error:?}")),
        }
    }
    Err("never asked".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn while_gateways_are_restarted_in_turn_no_call_fails_and_none_is_left_over_on_redis() {
    let redis = Redis::strict().await;
    restarted_in_turn(redis.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn while_gateways_are_restarted_in_turn_no_call_fails_and_none_is_left_over_on_postgres() {
    let server = Postgres::with(&[]).await;
    restarted_in_turn(server.url()).await;
}

/// No call fails while the gateways over this store are restarted.
#[expect(
    clippy::print_stderr,
    reason = "figures for who runs it with --nocapture"
)]
async fn restarted_in_turn(url: String) {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(20, Act::Numbered));
    let config = one_tool(&tool, "");
    let places = Arc::new([Place::new(), Place::new()]);
    let mut processes = VecDeque::from([
        places[0].start(&config, &url).await,
        places[1].start(&config, &url).await,
    ]);

    let (mut workers, stop, calls) = (
        JoinSet::new(),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    for worker in 0..WORKERS {
        let (places, stop, calls) = (places.clone(), stop.clone(), calls.clone());
        workers.spawn(async move {
            let (client, mut failures, mut keys) = (client(), Vec::new(), 0);
            while !stop.load(Ordering::SeqCst) {
                let key = format!("{worker}-{keys}");
                for repeat in 0..REPEATS {
                    if let Err(why) = call(&client, &places, worker + keys + repeat, &key).await {
                        failures.push(format!("{key}: {why}"));
                    }
                    calls.fetch_add(1, Ordering::SeqCst);
                }
                keys += 1;
            }
            (keys, failures)
        });
    }
    for restart in 0..4 {
        let before = calls.load(Ordering::SeqCst);
        until("there is load", async || {
            calls.load(Ordering::SeqCst) > before + 100
        })
        .await;
        // The one that has run for longer; a client that does not know yet cannot connect.
        let old = processes.pop_front().expect("a process");
        old.signal("TERM");
        assert!(old.ended().await, "a good end");
        processes.push_back(places[restart % 2].start(&config, &url).await);
    }
    stop.store(true, Ordering::SeqCst);
    let done = workers.join_all().await;
    let failures: Vec<&String> = done.iter().flat_map(|(_, failures)| failures).collect();
    let keys: usize = done.iter().map(|(keys, _)| keys).sum();
    eprintln!(
        "rolling: {keys} keys, {} calls, 4 restarts, {} failures",
        calls.load(Ordering::SeqCst),
        failures.len()
    );
    assert!(failures.is_empty(), "{failures:#?}");

    let effects = tool.effects_by_key();
    assert_eq!(
        (
            effects.len(),
            effects.values().filter(|times| **times != 1).count()
        ),
        (keys, 0)
    );
    for process in &processes {
        let text = Answer::to(client().get(process.url("/metrics"))).await.text;
        for gauge in ["oncegate_running_calls", "oncegate_unknown_calls"] {
            assert!(
                text.contains(&format!("{gauge}{{tool=\"act\"}} 0\n")),
                "{gauge} is not 0"
            );
        }
    }
}
