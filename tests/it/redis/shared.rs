//! Many gateways over one Redis keep the promise, whatever happens to the Redis.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use oncegate::core::timings::Timings;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
use crate::support::redis::Redis;
use crate::support::timings::brisk;
use crate::support::{Act, Answer, Gateway, Tool, until};

/// Operators are promised that an unfit Redis is noticed within this time.
const NOTICED: Duration = Duration::from_secs(5);
/// How much longer it may take beside many other tests.
const BUSY: u32 = 3;

pub(crate) async fn gateway(redis: &Redis, tool: &Tool, more: &str) -> Gateway {
    let gateway = Gateway::sharing(&redis.url(), &one_tool(tool, more)).await;
    gateway.until_ready().await;
    gateway
}

/// Waits until the gateway is not ready for this reason.
pub(crate) async fn notices(gateway: &Gateway, why: &str) {
    let came = Instant::now();
    until(why, async || gateway.reasons().await.contains(why)).await;
    assert!(
        came.elapsed() < BUSY * NOTICED,
        "noticed only after {:?}",
        came.elapsed()
    );
}

pub(crate) async fn call(gateway: &Gateway, n: usize) -> Answer {
    gateway.call(json!({ "n": n })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_callers_of_one_key_at_two_gateways_have_one_effect_and_one_answer() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.always(Act::after_ms(300, Act::Numbered));
    let gateways = [
        Arc::new(gateway(&redis, &tool, "").await),
        Arc::new(gateway(&redis, &tool, "").await),
    ];
    let mut callers = JoinSet::new();
    for n in 0..200 {
        let gateway = gateways[n % 2].clone();
        callers.spawn(async move { call(&gateway, 1).await.expect_ok() });
    }
    let answers = callers.join_all().await;
    assert_eq!(tool.effects(), 1);
    let first = &answers[0];
    for answer in &answers {
        assert_eq!(
            (answer.result(), answer.at("/call_id")),
            (first.result(), first.at("/call_id"))
        );
        assert_eq!(answer.at("/fencing"), first.at("/fencing"));
    }
    let fresh = answers
        .iter()
        .filter(|answer| answer.at("/replayed") == false)
        .count();
    assert_eq!(fresh, 1);
}

#[tokio::test]
async fn a_replay_is_one_round_trip_at_most_and_a_first_arrival_is_two() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    // At the default pace, so that background work adds few commands.
    let gateway = Gateway::at_pace(Timings::default(), &redis.url(), &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    call(&gateway, 0).await.expect_ok();
    let scripts = async || redis.commands().await.get("evalsha").copied().unwrap_or(0);
    let before = scripts().await;
    for n in 1..=50 {
        call(&gateway, n).await.expect_ok();
    }
    let first_arrivals = scripts().await - before;
    // One script counts all duplicates of a call, at most twice a second.
    let began = Instant::now();
    for _ in 1..=50 {
        assert_eq!(call(&gateway, 7).await.expect_ok().at("/replayed"), true);
    }
    let replays = scripts().await - before - first_arrivals;
    let counts = began.elapsed().as_secs() * 2 + 1;
    assert_eq!(first_arrivals, 100);
    assert!((1..=50 + counts).contains(&replays), "{replays}");
}

/// A gateway that polls too rarely to find the end of another gateway's call by itself.
async fn listener(redis: &Redis, tool: &Tool) -> Gateway {
    let timings = Timings {
        poll: (Duration::from_secs(60), Duration::from_secs(60)),
        ..brisk()
    };
    let gateway = Gateway::at_pace(timings, &redis.url(), &one_tool(tool, "")).await;
    gateway.until_ready().await;
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_at_one_gateway_is_told_at_once_when_the_call_ends_at_another() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other) = (listener(&redis, &tool).await, listener(&redis, &tool).await);
    tool.then(Act::after_ms(600, Act::Numbered));
    let joined = async {
        until("the call runs", async || tool.requests() == 1).await;
        let answer = call(&other, 1).await.expect_ok();
        (answer, Instant::now())
    };
    let first = async { (call(&one, 1).await.expect_ok(), Instant::now()) };
    let ((first, ended), (joined, heard)) = tokio::join!(first, joined);
    assert_eq!(joined.result(), first.result());
    assert!(
        heard.saturating_duration_since(ended) < Duration::from_millis(400),
        "{:?}",
        heard - ended
    );
    assert_eq!(tool.effects(), 1);
}

#[tokio::test]
async fn duplicates_beyond_the_limit_of_waiters_are_answered_at_once() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let one = gateway(&redis, &tool, "").await;
    let other = gateway(&redis, &tool, "[server]\nmax_waiting = 1").await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.always(held);
    let running = async {
        tokio::join!(call(&one, 1), call(&one, 2));
    };
    let duplicates = async {
        until("both calls run", async || tool.requests() == 2).await;
        // The call that comes second.
        let (told, waits) = select(Box::pin(call(&other, 1)), Box::pin(call(&other, 2)))
            .await
            .factor_first();
        told.expect_problem("call-in-progress");
        drop(hold);
        waits.await.expect_ok();
    };
    tokio::join!(running, duplicates);
    assert_eq!(tool.effects(), 2);
}

#[tokio::test]
async fn a_proven_non_execution_is_recorded_while_no_call_may_begin() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    tool.then(Act::after_ms(300, Act::Answer(429, "", b"{}")));
    let running = call(&gateway, 1);
    let filling = async {
        until("the call runs", async || tool.requests() == 1).await;
        redis.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    };
    let (ended, ()) = tokio::join!(running, filling);
    let ended = ended.expect_problem("tool-unavailable");
    assert_eq!(
        (gateway.record(&ended).await.at("/state"), tool.requests()),
        ("failed".into(), 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_gateway_takes_a_hundred_first_arrivals_at_once() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = Arc::new(gateway(&redis, &tool, "").await);
    let mut callers = JoinSet::new();
    for n in 0..100 {
        let gateway = gateway.clone();
        callers.spawn(async move { call(&gateway, n).await.expect_ok().at("/fencing").as_u64() });
    }
    let tokens: std::collections::HashSet<_> = callers.join_all().await.into_iter().collect();
    assert_eq!((tokens.len(), tool.effects()), (100, 100));
    assert_eq!(
        gateway
            .metric("oncegate_store_errors_total{kind=\"ambiguous\",operation=\"claim\"}")
            .await,
        0.0
    );
    assert_eq!(gateway.reasons().await, "");
}

#[tokio::test]
async fn scripts_that_were_forgotten_are_loaded_again() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    for n in 0..3 {
        redis.ask(&["SCRIPT", "FLUSH"]).await;
        call(&gateway, n).await.expect_ok();
        redis.ask(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(call(&gateway, n).await.expect_ok().at("/replayed"), true);
    }
    assert_eq!(tool.effects(), 3);
}

#[tokio::test]
async fn with_redis_down_a_write_is_refused_and_a_read_goes_through() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let reads = format!("[tools.look]\nurl = \"{}\"\neffect = \"read\"", tool.url());
    let gateway = gateway(&redis, &tool, &reads).await;
    redis.kill();
    let refused = call(&gateway, 1).await.expect_problem("store-unavailable");
    assert_eq!(refused.status, 503);
    assert_eq!(tool.requests(), 0);
    tool.then(Act::Numbered);
    let read = gateway
        .post("look", &json!({ "args": {} }), &[])
        .await
        .expect_ok();
    assert_eq!(
        (read.at("/replayed"), read.at("/fencing")),
        (false.into(), Value::Null)
    );
    tool.then(Act::Answer(422, "", b"{}"));
    gateway
        .post("look", &json!({ "args": {} }), &[])
        .await
        .expect_problem("tool-rejected");
    assert_eq!(
        gateway
            .metric("oncegate_passed_through_total{tool=\"look\"}")
            .await,
        2.0
    );
    assert_eq!(tool.requests(), 2);
    redis.start_again().await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
}

#[tokio::test]
async fn a_gateway_may_start_before_its_redis() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    redis.kill();
    let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    notices(&gateway, "not reached").await;
    call(&gateway, 1).await.expect_problem("store-unavailable");
    redis.start_again().await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_runs_at_another_gateway_is_in_progress() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.always(Act::Hang);
    let one = gateway(&redis, &tool, "").await;
    let other = gateway(&redis, &tool, "").await;
    let running = call(&one, 1);
    let lost = async {
        until("the call runs", async || tool.requests() == 1).await;
        let body = json!({ "args": { "n": 1 } });
        other
            .post("act", &body, &[("prefer", "wait=0")])
            .await
            .expect_problem("call-in-progress")
    };
    tokio::select! {
        _ = running => panic!("it cannot end"),
        answer = lost => assert!(!answer.at("/call_id").is_null()),
    }
    assert_eq!(tool.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_gateway_is_killed_is_in_progress_until_its_lease_is_over_and_then_unknown() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.always(Act::Hang);
    let config = one_tool(
        &tool,
        "timeout = \"2s\"\ndeadline = \"2s\"\nretry = { attempts = 1 }",
    );
    let lease = Duration::from_secs(2) + brisk().lease_margin;
    let other = Gateway::sharing(&redis.url(), &config).await;
    other.until_ready().await;
    let folder = tempfile::tempdir().expect("a folder");
    let url = redis.url();
    let killed = Process::start_in(
        folder.path(),
        free_port(),
        &config,
        &[("ONCEGATE_STORE__URL", &url)],
    )
    .await;
    let is_ready = async || {
        let answer = other
            .client
            .get(killed.url("/readyz"))
            .send()
            .await
            .expect("an answer");
        answer.status() == 200
    };
    until("the gateway is ready", is_ready).await;
    let body = json!({ "args": { "n": 1 } });
    let request = other
        .client
        .post(killed.url("/v1/tools/act/calls"))
        .body(body.to_string());
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
    assert!(
        came.elapsed() > lease - Duration::from_millis(50),
        "after {:?}: the call became unknown before the end of its lease",
        came.elapsed()
    );
    let record = other.record(&ask().await).await;
    assert_eq!(record.at("/events/1/event"), "lease_over");
    assert_eq!(tool.requests(), 1, "the call was not sent again");
}

#[tokio::test]
async fn no_call_and_no_key_has_a_time_to_live() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(
        &redis,
        &tool,
        "retry = { attempts = 1 }\nretention = \"48h\"",
    )
    .await;
    tool.then(Act::ExecuteThenDrop);
    call(&gateway, 1).await.expect_problem("outcome-unknown");
    call(&gateway, 2).await.expect_ok();
    tool.then(Act::Answer(429, "", b"{}"));
    call(&gateway, 3).await.expect_problem("tool-unavailable");
    // The call runs again.
    call(&gateway, 3).await.expect_ok();
    let mut looked = 0;
    for names in ["oncegate:*:key:*", "oncegate:*:call:*"] {
        let names: Vec<String> =
            redis::from_redis_value(redis.ask(&["KEYS", names]).await).expect("names");
        for name in names {
            assert_eq!(
                redis.ask(&["TTL", &name]).await,
                redis::Value::Int(-1),
                "{name}"
            );
            looked += 1;
        }
    }
    assert_eq!(looked, 6, "three calls, each with its key");
}

/// Redis closes a subscriber that takes its answers too slowly. The connection of the commands is not a subscriber.
#[tokio::test]
async fn answers_above_the_buffer_limit_of_subscribers_close_nothing() {
    let limit = [("client-output-buffer-limit", "pubsub 1mb 1mb 1")];
    let (redis, tool) = (Redis::with(&limit).await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    let text = "x".repeat(200_000);
    for n in 0..40 {
        gateway
            .call(json!({ "n": n, "text": text }))
            .await
            .expect_ok();
    }
    let (mut shown, mut path) = (0, "/v1/calls?limit=50".to_owned());
    loop {
        let page = gateway.get(&path).await.expect_ok();
        shown += page.at("/calls").as_array().expect("calls").len();
        let Some(cursor) = page.at("/next_cursor").as_str().map(str::to_owned) else {
            break;
        };
        path = format!("/v1/calls?limit=50&cursor={cursor}");
    }
    assert_eq!(shown, 40);
    assert_eq!(gateway.reasons().await, "");
    let failed = "oncegate_store_errors_total{kind=\"ambiguous\",operation=\"list\"}";
    assert_eq!(gateway.metric(failed).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_is_cut_off_subscribes_again_while_calls_go_on() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other) = (listener(&redis, &tool).await, listener(&redis, &tool).await);
    let subscribers = async || {
        let clients = redis.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        redis::from_redis_value::<String>(clients)
            .expect("a text")
            .lines()
            .count()
    };
    until("both gateways subscribe", async || subscribers().await == 2).await;
    redis.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    for n in 0..20 {
        call(&one, n).await.expect_ok();
    }
    until("both gateways subscribe again", async || {
        subscribers().await == 2
    })
    .await;
    tool.then(Act::after_ms(600, Act::Numbered));
    let joined = async {
        until("the call runs", async || tool.requests() == 21).await;
        call(&other, 99).await.expect_ok();
        Instant::now()
    };
    let first = async {
        call(&one, 99).await.expect_ok();
        Instant::now()
    };
    let (ended, heard) = tokio::join!(first, joined);
    assert!(
        heard.saturating_duration_since(ended) < Duration::from_millis(400),
        "{:?}",
        heard - ended
    );
}
