//! A gateway whose clock is set back while it shares a store.

use std::time::Duration;

use oncegate::core::timings::Timings;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::binary::{Process, free_port};
use crate::support::clock::Clock;
use crate::support::gateway::one_tool;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::timings::brisk;
use crate::support::{Act, Answer, Gateway, Tool, client, until};

const RULES: &str = "session = \"exclusive\"\nsession_wait = \"0s\"\ntimeout = \"20s\"\ndeadline = \"20s\"\nretry = { attempts = 1 }";

async fn call(url: &str, key: &str) -> Answer {
    let body = json!({ "args": {}, "session_id": "S", "idempotency_key": key });
    Answer::to(client().post(url).body(body.to_string())).await
}

fn begin(url: &str, key: &'static str) -> JoinHandle<Answer> {
    let url = url.to_owned();
    tokio::spawn(async move { call(&url, key).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_claimed_after_its_gateways_clock_was_set_back_keeps_its_session_and_its_lease_on_redis()
 {
    let redis = Redis::strict().await;
    keeps_session_and_lease(&redis.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_claimed_after_its_gateways_clock_was_set_back_keeps_its_session_and_its_lease_on_postgres()
 {
    let server = Postgres::with(&[]).await;
    keeps_session_and_lease(&server.url()).await;
}

/// Two gateways share the store; the clock of one is set back.
async fn keeps_session_and_lease(store: &str) {
    let (tool, clock) = (Tool::start().await, Clock::new());
    let other = Gateway::sharing(store, &one_tool(&tool, RULES)).await;
    other.until_ready().await;
    // It does not look at the store again by itself, as a gateway in the second after its clock was set.
    let pace = Timings {
        redis_look_every: Duration::from_secs(3_600),
        ..brisk()
    };
    let pace = serde_json::to_string(&pace).expect("JSON");
    let mut environment = vec![("ONCEGATE_STORE__URL", store), ("TEST_PACE", &*pace)];
    environment.extend(clock.environment());
    let folder = tempfile::tempdir().expect("a folder");
    let rules = one_tool(&tool, RULES);
    let set_back = Process::start_in(folder.path(), free_port(), &rules, &environment).await;
    let url = set_back.url("/v1/tools/act/calls");
    let not_executed = Act::Answer(429, "", b"{}");
    tool.then(not_executed);
    until("it is ready", async || {
        call(&url, "again").await.problem() == "tool-unavailable"
    })
    .await;

    for (ahead, key) in [(-3_600, "new"), (-7_200, "again")] {
        // A clock that is wrong closes the store at the next look, so each time it is right before.
        clock.set_ahead(0);
        until("it is ready", async || {
            let ready = client().get(set_back.url("/readyz")).send().await;
            ready.is_ok_and(|ready| ready.status() == 200)
        })
        .await;
        let requests = tool.requests();
        let (hold, held) = Act::held(Act::Numbered);
        tool.then(held);
        clock.set_ahead(ahead);
        let running = begin(&url, key);
        until("it runs", async || tool.requests() == requests + 1).await;
        // Another gateway looks for calls whose lease is over, and takes a session whose lock is left over.
        for n in 0..10 {
            let next = call(&other.url("/v1/tools/act/calls"), &format!("{key}-{n}")).await;
            next.expect_problem("session-busy");
            sleep(Duration::from_millis(100)).await;
        }
        drop(hold);
        let ended = running.await.expect("no panic").expect_ok();
        let ledger = other.record(&ended).await;
        assert_eq!(ledger.at("/state"), "succeeded", "{}", ledger.text);
        let events = ledger.events();
        assert!(!events.contains(&"lease_over".to_owned()), "{events:?}");
    }
    let next = call(&other.url("/v1/tools/act/calls"), "next").await;
    next.expect_ok();
}
