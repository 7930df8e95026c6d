//! Late writes to Redis, and keys that were left there, close no store.

use std::fs;

use oncegate::store::Health as _;
use serde_json::{Value, json};

use crate::redis::shared::notices;
use crate::stores::contract::open_redis;
use crate::support::gateway::one_tool;
use crate::support::line::Line;
use crate::support::redis::Redis;
use crate::support::{Gateway, Tool, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accepted_store_is_not_closed_again_by_a_late_warning() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let line = Line::to(redis.port).await;
    let config = one_tool(&tool, "");
    let slow = Gateway::sharing(&line.url(), &config).await;
    slow.until_ready().await;
    slow.call(json!({ "n": 0 })).await.expect_ok();
    // This write closes a partition.
    line.hold(b"\r\nlost\r\n");
    redis.ask(&["FLUSHALL"]).await;
    until("the gateway is about to close the store", async || {
        line.holds() > 0
    })
    .await;
    let other = Gateway::sharing(&redis.url(), &config).await;
    notices(&other, "accept-loss").await;
    // Refused until the new gateway may write the secret again: a second after its start, and later on a busy machine.
    until("the loss is accepted", async || {
        other.accept_loss("it is gone").await.status == 200
    })
    .await;
    other.until_ready().await;
    line.release();
    until("the late writes have arrived", async || line.holds() == 0).await;
    for n in 1..6 {
        // On a busy machine the store may answer too late. A closed store would stay closed.
        until("the call has run", async || {
            let answer = other.call(json!({ "n": n })).await;
            if answer.status != 200 {
                answer.clone().expect_problem("store-unavailable");
            }
            answer.status == 200
        })
        .await;
    }
    assert_eq!(other.reasons().await, "");
    assert_eq!(tool.effects(), 6);
}

/// Two trials at once, or a trial that broke off, may leave a key that a later trial uses, too.
#[tokio::test]
async fn keys_that_a_trial_of_the_scripts_left_in_redis_do_not_keep_the_store_closed() {
    let (mut redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let store = open_redis(&redis.url(), folder.path()).await;
    let marks = fs::read(folder.path().join("watermarks")).expect("watermarks");
    let marks: Value = serde_json::from_slice(&marks).expect("JSON");
    let gateway = marks["gateway"].as_str().expect("a name");
    let left = format!("oncegate:{{p000}}:selftest:{gateway}:key:2");
    redis.ask(&["SET", &left, "1"]).await;

    redis.start_again().await;
    until("the restart is noticed", async || {
        !store.readiness().await.reasons.is_empty()
    })
    .await;
    until("the store is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    assert_eq!(redis.ask(&["EXISTS", &left]).await, ::redis::Value::Int(0));
}
