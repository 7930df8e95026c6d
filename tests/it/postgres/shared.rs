//! Two gateways over one PostgreSQL keep the promise.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use oncegate::core::timings::Timings;
use oncegate::store::Health as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::folder;
use crate::redis::shared::{call, notices};
use crate::stores::contract::open_postgres_as_it_is;
use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
use crate::support::postgres::{Postgres, connect, place};
use crate::support::timings::brisk;
use crate::support::{Act, Answer, Gateway, Tool, until, until_ready};

async fn gateway(place: &str, tool: &Tool, more: &str) -> Gateway {
    let gateway = Gateway::sharing(place, &one_tool(tool, more)).await;
    gateway.until_ready().await;
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_callers_of_one_key_at_two_gateways_have_one_effect_and_one_answer() {
    let (place, tool) = (place().await, Tool::start().await);
    tool.always(Act::after_ms(300, Act::Numbered));
    let gateways = [
        Arc::new(gateway(&place, &tool, "").await),
        Arc::new(gateway(&place, &tool, "").await),
    ];
    let mut callers = JoinSet::new();
    for n in 0..200 {
        let gateway = gateways[n % 2].clone();
        callers.spawn(async move { call(&gateway, 1).await.expect_ok() });
    }
    let answers = callers.join_all().await;
    assert_eq!(tool.effects(), 1);
    let told = |answer: &Answer| {
        (
            answer.result(),
            answer.at("/call_id"),
            answer.at("/fencing"),
        )
    };
    for answer in &answers {
        assert_eq!(told(answer), told(&answers[0]));
    }
    let is_fresh = |answer: &&Answer| answer.at("/replayed") == false;
    assert_eq!(answers.iter().filter(is_fresh).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_gateway_takes_a_hundred_first_arrivals_at_once() {
    let (place, tool) = (place().await, Tool::start().await);
    let gateway = Arc::new(gateway(&place, &tool, "").await);
    let mut callers = JoinSet::new();
    for n in 0..100 {
        let gateway = gateway.clone();
        callers.spawn(async move { call(&gateway, n).await.expect_ok().at("/fencing").as_u64() });
    }
    let tokens: HashSet<_> = callers.join_all().await.into_iter().collect();
    assert_eq!((tokens.len(), tool.effects()), (100, 100));
    let ambiguous = "oncegate_store_errors_total{kind=\"ambiguous\",operation=\"claim\"}";
    assert_eq!(gateway.metric(ambiguous).await, 0.0);
}

/// A gateway that polls too rarely to find the end of another gateway's call by itself.
async fn listener(place: &str, tool: &Tool) -> Gateway {
    let timings = Timings {
        poll: (Duration::from_secs(60), Duration::from_secs(60)),
        ..brisk()
    };
    let gateway = Gateway::at_pace(timings, place, &one_tool(tool, "")).await;
    gateway.until_ready().await;
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_at_one_gateway_is_told_at_once_when_the_call_ends_at_another() {
    let (place, tool) = (place().await, Tool::start().await);
    let (one, other) = (listener(&place, &tool).await, listener(&place, &tool).await);
    tool.then(Act::after_ms(600, Act::Numbered));
    let joined = async {
        until("the call runs", async || tool.requests() == 1).await;
        (call(&other, 1).await.expect_ok(), Instant::now())
    };
    let first = async { (call(&one, 1).await.expect_ok(), Instant::now()) };
    let ((first, ended), (joined, heard)) = tokio::join!(first, joined);
    assert_eq!(joined.result(), first.result());
    let later = heard.saturating_duration_since(ended);
    assert!(later < Duration::from_millis(400), "{later:?}");
    assert_eq!(tool.effects(), 1);
}

#[tokio::test]
async fn with_postgres_down_a_write_is_refused_and_a_read_goes_through() {
    let (mut server, tool) = (Postgres::with(&[]).await, Tool::start().await);
    let reads = format!("[tools.look]\nurl = \"{}\"\neffect = \"read\"", tool.url());
    let gateway = gateway(&server.url(), &tool, &reads).await;
    server.kill();
    let refused = call(&gateway, 1).await.expect_problem("store-unavailable");
    assert_eq!((refused.status, tool.requests()), (503, 0));
    tool.then(Act::Numbered);
    let look = json!({ "args": {} });
    let read = gateway.post("look", &look, &[]).await.expect_ok();
    assert_eq!(
        (read.at("/replayed"), read.at("/fencing")),
        (false.into(), Value::Null)
    );
    server.start_again().await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
}

#[tokio::test]
async fn a_gateway_may_start_before_its_postgres() {
    let (mut server, tool) = (Postgres::with(&[]).await, Tool::start().await);
    server.kill();
    let gateway = Gateway::sharing(&server.url(), &one_tool(&tool, "")).await;
    notices(&gateway, "not reached").await;
    call(&gateway, 1).await.expect_problem("store-unavailable");
    server.start_again().await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_gateway_is_killed_is_in_progress_until_its_lease_is_over_and_then_unknown() {
    let (server, tool) = (Postgres::with(&[]).await, Tool::start().await);
    tool.always(Act::Hang);
    let rules = "timeout = \"2s\"\ndeadline = \"2s\"\nretry = { attempts = 1 }";
    let (config, url) = (one_tool(&tool, rules), server.url());
    let lease = Duration::from_secs(2) + brisk().lease_margin;
    let other = Gateway::sharing(&url, &config).await;
    other.until_ready().await;
    let folder = tempfile::tempdir().expect("a folder");
    let environment = [("ONCEGATE_STORE__URL", &*url)];
    let killed = Process::start_in(folder.path(), free_port(), &config, &environment).await;
    until_ready(&killed.url("/readyz")).await;
    let body = json!({ "args": { "n": 1 } });
    let request = other.client.post(killed.url("/v1/tools/act/calls"));
    let request = request.body(body.to_string());
    let came = Instant::now();
    let caller = tokio::spawn(async move { request.send().await.is_err() });
    until("the call runs", async || tool.requests() == 1).await;
    killed.kill();
    assert!(caller.await.expect("a caller"), "the caller got no answer");
    let ask = || other.post("act", &body, &[("prefer", "wait=0")]);
    ask().await.expect_problem("call-in-progress");
    until("the lease is over", async || {
        ask().await.problem() == "outcome-unknown"
    })
    .await;
    let took = came.elapsed();
    assert!(took > lease - Duration::from_millis(50), "{took:?}");
    assert_eq!(tool.requests(), 1, "the call was not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_could_not_make_its_tables_in_time_is_ready_once_it_can() {
    let (server, folder) = (Postgres::with(&[]).await, folder());
    let other = connect(server.port).await.expect("a connection");
    let key = "hashtextextended('oncegate oncegate', 0)";
    let run = async |sql: &str| other.batch_execute(sql).await.expect("run");
    run(&format!("SELECT pg_advisory_lock({key})")).await;
    let store = open_postgres_as_it_is(&server.main(), folder.path()).await;
    // Right after the start has given up, what it had asked for fails, too.
    let waiting = "locktype = 'advisory' AND NOT granted";
    run(&format!(
        "SELECT pg_cancel_backend(pid) FROM pg_locks WHERE {waiting}"
    ))
    .await;
    run(&format!("SELECT pg_advisory_unlock({key})")).await;
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
}
