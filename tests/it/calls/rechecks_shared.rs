//! Rechecks by several gateways, and stored calls that cannot be read.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use oncegate::core::key::Lookup;
use serde_json::json;
use tokio::time::timeout;

use crate::calls::recheck::{OFTEN, RETRYING, over, probing};
use crate::support::gateway::one_tool;
use crate::support::memory::Memory;
use crate::support::redis::{PROGRESS, Redis, short};
use crate::support::rounds::{Rested, recheck};
use crate::support::stores::Stores;
use crate::support::{Act, Answer, Gateway, Tool, client, until};

#[tokio::test]
async fn a_finding_is_not_lost_because_another_gateway_asks_too() {
    let tool = Tool::start().await;
    let memory = Memory::default();
    let (first, second) = (
        over(&memory, &tool, &probing(&tool, "")).await,
        over(&memory, &tool, &probing(&tool, "")).await,
    );
    let (hold, found) = Act::held(Act::Ok("{\"order\":1}"));
    tool.then(Act::ExecuteThenDrop)
        .then(found)
        .always(Act::Answer(503, "", b"{}"));
    let unknown = first.ask("k").await.expect_problem("outcome-unknown");
    let gateway = Arc::clone(&first.gateway);
    let now = gateway.now() + Duration::from_secs(3);
    let asks = tokio::spawn(async move { recheck(&gateway, now).await });
    until("it is asked", async || tool.requests() == 2).await;
    // The tool answers slowly, and the next check is due meanwhile.
    assert_eq!(second.rest_in(60).await, Rested { due: 1, settled: 0 });
    drop(hold);
    assert_eq!(asks.await.expect("no panic"), Rested { due: 1, settled: 1 });
    assert_eq!(second.state(&unknown).await, "succeeded");
    assert_eq!(second.ask("k").await.expect_ok().at("/result/order"), 1);
}

#[tokio::test]
async fn a_gateway_that_stops_does_not_wait_for_the_calls_of_others() {
    let tool = Tool::start().await;
    let memory = Memory::default();
    let (runs, follows) = (
        over(&memory, &tool, "").await,
        over(&memory, &tool, "").await,
    );
    let (hold, held) = Act::held(Act::Ok("{\"order\":1}"));
    tool.then(held);
    let url = runs.url.clone();
    let body = json!({ "args": {}, "session_id": "S", "idempotency_key": "k" }).to_string();
    let asked = client().post(url).body(body.clone()).send();
    let asked = tokio::spawn(async move { Answer::read(asked.await.expect("an answer")).await });
    until("the tool has it", async || tool.requests() == 1).await;
    let waits = client()
        .post(&follows.url)
        .header("prefer", "wait=60")
        .body(body)
        .send();
    let waits = tokio::spawn(async move { Answer::read(waits.await.expect("an answer")).await });
    let joined = "oncegate_store_operation_duration_seconds_count{operation=\"claim\"} ";
    until("it is known there", async || {
        !follows.metrics().await.contains(&format!("\n{joined}0\n"))
    })
    .await;
    follows.gateway.drain();
    let told = timeout(Duration::from_secs(10), waits)
        .await
        .expect("at once")
        .expect("no panic");
    told.expect_problem("call-in-progress");
    drop(hold);
    asked.await.expect("no panic").expect_ok();
}

#[tokio::test]
async fn a_gateway_without_the_tool_leaves_its_calls_to_one_that_has_it() {
    let (act, tool) = (Tool::start().await, Tool::start().await);
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Ok("{\"order\":1}"));
    let memory = Memory::default();
    let other = |rules: &str| format!("[tools.other]\nurl = \"{}\"\n{rules}", tool.url());
    let has_it = over(&memory, &act, &other(&probing(&tool, ""))).await;
    let has_not = over(&memory, &act, "").await;
    let unknown = has_it
        .ask_for("other", "k")
        .await
        .expect_problem("outcome-unknown");
    assert_eq!(has_not.rest_in(9_000).await, Rested::default());
    assert_eq!(has_it.rest_in(9_000).await, Rested { due: 1, settled: 1 });
    assert_eq!(has_it.state(&unknown).await, "succeeded");

    // The owner of a running call is gone, and the gateway that finds the call does not have its tool.
    let (_hold, held) = Act::held(Act::Drop);
    tool.then(held);
    let running = tokio::spawn(async move { has_it.ask_for("other", "lost").await });
    until("it is at the tool", async || tool.requests() == 3).await;
    let later = has_not.gateway.now() + Duration::from_secs(60);
    assert_eq!(
        has_not
            .gateway
            .lost
            .recover_all(later)
            .await
            .expect("an answer"),
        1
    );
    running.abort();
    let has_it = over(&memory, &act, &other(&probing(&tool, ""))).await;
    assert_eq!(has_it.rest_in(9_000).await, Rested { due: 1, settled: 1 });
}

#[tokio::test]
async fn held_calls_are_checked_once_the_configuration_has_a_policy() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .then(Act::ExecuteThenDrop)
        .always(Act::Answer(503, "", b"{}"));
    let memory = Memory::default();
    let holds = over(&memory, &tool, "retry = { attempts = 1 }").await;
    let unknown = holds.ask("k").await.expect_problem("outcome-unknown");
    assert_eq!(
        holds
            .gateway
            .rechecks
            .take_up_once()
            .await
            .expect("an answer"),
        0
    );
    let probes = over(&memory, &tool, &probing(&tool, "")).await;
    let given_up = probes.ask("gone").await.expect_problem("outcome-unknown");
    probes.rest_in(7_200).await;
    assert_eq!(
        probes.events(&given_up).await.last().expect("an event"),
        "given_up"
    );
    let take_up = async || probes.gateway.rechecks.take_up_once().await;
    let taken_up = [take_up().await, take_up().await].map(|taken_up| taken_up.expect("an answer"));
    assert_eq!(taken_up, [1, 0], "not what was given up");
    tool.always(Act::Ok("{\"order\":1}"));
    assert_eq!(probes.rest_in(60).await, Rested { due: 1, settled: 1 });
    assert_eq!(
        probes.events(&unknown).await,
        ["claimed", "ended", "taken_up", "probing", "probed"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_send_an_unknown_call_again_once_per_check_on_redis() {
    let redis = Redis::strict().await;
    let tool = Tool::start().await;
    tool.deduplicate().always(Act::ExecuteThenDrop);
    let config = one_tool(
        &tool,
        &format!("{RETRYING}{OFTEN}breaker = {{ failures = 1000 }}\n"),
    );
    let stores = Stores::Redis(redis.url());
    let gateways = stores.gateways(&config).await;
    let unknown = gateways[0]
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    until("it was sent often", async || tool.requests() >= 6).await;
    tool.always(Act::Numbered);
    until("it is settled", async || {
        gateways[1].record(&unknown).await.at("/state") == "succeeded"
    })
    .await;
    let events = gateways[0].record(&unknown).await.at("/events");
    let again = events
        .as_array()
        .expect("a list")
        .iter()
        .filter(|event| event["event"] == "sent_again");
    assert_eq!(tool.requests(), 1 + again.count(), "as often as is written");
    assert_eq!(tool.effects(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_unreadable_calls_and_calls_without_their_key_delay_no_other() {
    let redis = Redis::strict().await;
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let slow = "recheck = { base = \"4s\", max = \"4s\" }\n";
    let config = one_tool(
        &tool,
        &format!("{RETRYING}{slow}breaker = {{ failures = 1000 }}\n"),
    );
    let gateway = Stores::Redis(redis.url()).gateway(&config).await;
    let mut calls = Vec::new();
    for key in ["unreadable", "keyless", "good"] {
        calls.push(
            gateway
                .act(key, json!({}))
                .await
                .expect_problem("outcome-unknown"),
        );
    }
    let id = |call: &Answer| {
        let id: uuid::Uuid = call.id().parse().expect("an id");
        short(id.as_bytes())
    };
    let key = async |pattern: String| -> String {
        let keys: Vec<String> =
            ::redis::from_redis_value(redis.ask(&["KEYS", &pattern]).await).expect("keys");
        keys.into_iter().next().expect("a key")
    };
    let record = key(format!("oncegate:*:call:{}", id(&calls[0]))).await;
    redis
        .ask(&["SETRANGE", &record, PROGRESS, "of a later version"])
        .await;
    let lookup = Lookup::new("default", "act", "keyless");
    let holder = key(format!("oncegate:*:key:{}", short(&lookup.0))).await;
    redis.ask(&["SET", &holder, &id(&calls[2])]).await;
    let missing = "\0".repeat(24);
    let index = "oncegate:{p000}:unknown";
    redis.ask(&["ZADD", index, "1", &missing]).await;
    tool.always(Act::Numbered);
    until("the good one is settled", async || {
        gateway.record(&calls[2]).await.at("/state") == "succeeded"
    })
    .await;
    until("the keyless one is given up", async || {
        gateway.record(&calls[1]).await.at("/events/2/event") == "given_up"
    })
    .await;
    let left = redis.ask(&["ZSCORE", index, &missing]).await;
    assert_eq!(
        left,
        ::redis::Value::Nil,
        "what points to no call is taken away"
    );
    let unreadable = "oncegate_store_errors_total{kind=\"unreadable\",operation=\"to_check\"}";
    until("the unreadable one is said", async || {
        gateway.metric(unreadable).await > 0.0
    })
    .await;
}

#[tokio::test]
async fn in_a_file_unreadable_calls_delay_no_other() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .then(Act::ExecuteThenDrop)
        .always(Act::Ok("{\"found\":1}"));
    let slow = "recheck = { base = \"1s\", max = \"1s\" }\n";
    let gateway = Gateway::with_tool(&tool, &format!("{}{slow}", probing(&tool, ""))).await;
    let bad = gateway
        .act("bad", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let good = gateway
        .act("good", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let connection = rusqlite::Connection::open(gateway.database()).expect("a store");
    let id: uuid::Uuid = serde_json::from_value(bad.at("/call_id")).expect("an id");
    let sql = "UPDATE calls SET progress = x'ff', due_at = 1 WHERE seq = (SELECT seq FROM ids WHERE call_id = ?1)";
    assert_eq!(connection.execute(sql, [id.into_bytes()]), Ok(1));
    until("the other is settled", async || {
        gateway.record(&good).await.at("/state") == "succeeded"
    })
    .await;
    let unreadable = "oncegate_store_errors_total{kind=\"unreadable\",operation=\"to_check\"}";
    assert!(gateway.metric(unreadable).await > 0.0);
}

/// An operator settles a call as failed. The tool's late answer proves the opposite; meanwhile the key may have run
/// again.
#[tokio::test]
async fn a_proof_of_execution_that_comes_after_an_operator_said_failed_is_noted_and_counted() {
    for runs_again in [false, true] {
        let tool = Tool::start().await;
        let memory = Memory::default();
        let rules = "timeout = \"200ms\"\ndeadline = \"300ms\"\nretry = { attempts = 1 }\n";
        let first = over(&memory, &tool, rules).await;
        let (hold, held) = Act::held(Act::Numbered);
        tool.then(held);
        let unknown = first.ask("k").await.expect_problem("outcome-unknown");
        // By the clock of another gateway the lease is over.
        memory.set_ahead(SignedDuration::from_hours(1));
        let second = over(&memory, &tool, rules).await;
        let id = unknown.id();
        let path = format!("/v1/calls/{id}/resolve");
        let url = second.url_of(&path);
        let body = json!({ "as": "failed", "reason": "not in the books" }).to_string();
        let resolved = Answer::to(client().post(url).body(body)).await;
        resolved.expect_ok();
        let state = if runs_again {
            second.ask("k").await.expect_ok();
            "succeeded"
        } else {
            "failed"
        };
        memory.set_ahead(SignedDuration::ZERO);
        let before = second.record(&unknown).await;
        drop(hold);
        until("it is noted", async || {
            first.events(&unknown).await.last().map(String::as_str) == Some("late_proof")
        })
        .await;
        let record = first.record(&unknown).await;
        assert_eq!(record.at("/state"), state, "it is not a change of state");
        assert_eq!(record.at("/result"), before.at("/result"));
        let event = record.at(&format!(
            "/events/{}",
            record.at("/events").as_array().expect("a list").len() - 1
        ));
        assert_eq!(
            (event["outcome"].as_str(), &event["attempt_id"]),
            (Some("executed"), &record.at("/events/0/attempt_id"))
        );
        until("it is counted", async || {
            first
                .metrics()
                .await
                .contains("oncegate_late_executions_total{tool=\"act\"} 1\n")
        })
        .await;
        assert_eq!(tool.effects(), if runs_again { 2 } else { 1 });
    }
}
