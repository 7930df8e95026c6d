//! Another node of a Redis becomes the master on purpose, under load. Nothing is lost, and no operator accepts anything.
//!
//! These are the commands of "Planned maintenance" in `docs/redis.md`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::gateway::one_tool;
use crate::support::redis::{Cluster, Redis, Sentinel};
use crate::support::{Act, Answer, Gateway, Tool, until};

const CALLERS: usize = 4;
/// So that all callers together make about 20 calls a second.
const PAUSE: Duration = Duration::from_millis(200);

async fn call(gateway: &Gateway, key: &str) -> Answer {
    let body = json!({ "args": { "key": key }, "idempotency_key": key });
    gateway.post("act", &body, &[]).await
}

/// Lets callers of two gateways repeat what was not acknowledged, while the master is changed.
async fn loses_nothing(url: &str, change_the_master: impl Future<Output = ()>) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let config = format!("[store]\ndurability = \"bounded\"\n{}", one_tool(&tool, ""));
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let gateway = Gateway::sharing(url, &config).await;
        gateway.until_ready().await;
        gateways.push(Arc::new(gateway));
    }
    let (is_over, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let mut callers = JoinSet::<Vec<(String, String)>>::new();
    for caller in 0..CALLERS {
        let gateway = gateways[caller % 2].clone();
        let (is_over, done) = (is_over.clone(), done.clone());
        callers.spawn(async move {
            let mut results = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                let key = format!("{caller}-{}", results.len());
                let mut answer = call(&gateway, &key).await;
                while answer.status != 200 {
                    let action = answer.at("/key_action");
                    assert!(action == "reuse" || action == "wait", "{}", answer.text);
                    sleep(PAUSE).await;
                    answer = call(&gateway, &key).await;
                }
                results.push((key, answer.result()));
                done.fetch_add(1, Ordering::SeqCst);
                sleep(PAUSE).await;
            }
            results
        });
    }
    let further = async |more: usize| {
        let before = done.load(Ordering::SeqCst);
        until("further calls are answered", async || {
            done.load(Ordering::SeqCst) >= before + more
        })
        .await;
    };
    further(20).await;
    change_the_master.await;
    for gateway in &gateways {
        gateway.until_ready().await;
    }
    further(20).await;
    is_over.store(true, Ordering::SeqCst);
    for results in callers.join_all().await {
        for (key, result) in results {
            let again = call(&gateways[0], &key).await.expect_ok();
            assert_eq!(
                (again.result(), again.at("/replayed")),
                (result, json!(true)),
                "{key}"
            );
        }
    }
    assert!(tool.effects_by_key().values().all(|effects| *effects == 1));
}

async fn until_role(redis: &Redis, role: &str) {
    let line = format!("role:{role}");
    until("it has the other role", async || {
        redis.info("replication").await.contains(&line)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_the_master_of_redis_makes_itself_needs_no_operator() {
    let bounded = [("min-replicas-to-write", "1")];
    let master = Redis::with(&bounded).await;
    let replica = master.replica().await;
    let sentinel = Sentinel::of(&master).await;
    loses_nothing(&sentinel.url(), async {
        let port = replica.port.to_string();
        master
            .ask(&["FAILOVER", "TO", "127.0.0.1", &port, "TIMEOUT", "10000"])
            .await;
        until_role(&replica, "master").await;
        until_role(&master, "slave").await;
        until("the sentinel names the new master", async || {
            sentinel.master_port().await == replica.port
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_the_replica_of_a_redis_cluster_asks_for_needs_no_operator() {
    let cluster = Cluster::start().await;
    let replicas = cluster.replicas().await;
    loses_nothing(&cluster.url(), async {
        for replica in &replicas {
            replica.ask(&["CLUSTER", "FAILOVER"]).await;
            until_role(replica, "master").await;
        }
    })
    .await;
}
