//! What is kept no longer is deleted, and nothing else is.

#[cfg(target_os = "linux")]
use oncegate::gateway::new_instance;
use serde_json::json;

#[cfg(target_os = "linux")]
use crate::contract::open_redis_as_it_is;
#[cfg(target_os = "linux")]
use crate::support::clock::Clock;
#[cfg(target_os = "linux")]
use crate::support::gateway::Bare;
use crate::support::gateway::one_tool;
use crate::support::redis::Cluster;
use crate::support::{Gateway, Tool, until};

/// How many calls the masters of a cluster hold.
async fn calls_of(cluster: &Cluster) -> Vec<usize> {
    let mut calls = Vec::new();
    for node in &cluster.nodes {
        let keys = node.ask(&["KEYS", "oncegate:*:call:*"]).await;
        calls.push(::redis::from_redis_value::<Vec<String>>(keys).expect("keys").len());
    }
    calls
}

/// A gateway that starts meanwhile has no other time to go by.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_redis_masters_wrong_clock_deletes_nothing_at_any_of_them() {
    let (clock, tool) = (Clock::new(), Tool::start().await);
    let cluster = Cluster::start_by(&clock).await;
    let gateway = Gateway::sharing(&cluster.url(), &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    for n in 0..24 {
        gateway.call(json!({ "n": n })).await.expect_ok();
    }
    gateway.stop().await;
    let before = calls_of(&cluster).await;
    assert!(before.iter().all(|calls| *calls > 0), "{before:?}");

    // Longer than calls are kept.
    clock.set_ahead(33 * 24 * 3_600);
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_redis_as_it_is(&cluster.url(), folder.path()).await;
    let Bare { gateway, .. } = Bare::over(store, new_instance(), &tool, "").await;
    let is_closed = async || gateway.readiness().await.reasons.iter().any(|reason| reason.code == "clock");
    until("the clock is seen", is_closed).await;
    gateway.prune_all().await.expect("an answer");
    assert_eq!(calls_of(&cluster).await, before, "while it is wrong");
    clock.set_ahead(0);
    until("the clock is right again", async || gateway.readiness().await.reasons.is_empty()).await;
    gateway.prune_all().await.expect("an answer");
    assert_eq!(calls_of(&cluster).await, before, "when it is right again");
}
