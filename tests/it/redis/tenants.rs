//! A tenant is in one partition: every kind of tool works on every kind of Redis, also while the slot moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{FromRedisValue, Value};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::redis::shared::call;
use crate::sagas::undone::{MADE, SOON, executed, shop};
use crate::support::gateway::one_tool;
use crate::support::redis::{Cluster, Redis, Sentinel};
use crate::support::{Act, Gateway, Tool, until};

/// Tries each condition of a claim: the lock, a budget, near duplicates; and a saga that is undone.
async fn keeps_every_condition(url: &str, store: &str) {
    for (rules, most) in [
        (
            "budget = { per = \"session\", max = 3, window = \"10m\" }",
            3,
        ),
        (
            "similar = { fields = [\"/sku\"], window = \"10m\", action = \"refuse\" }\nretry = { attempts = 1 }",
            1,
        ),
        ("session = \"exclusive\"\nsession_wait = \"30s\"", 12),
    ] {
        let tool = Tool::start().await;
        tool.always(Act::after_ms(20, Act::Numbered));
        let config = format!("{store}{}", one_tool(&tool, rules));
        let mut gateways = Vec::new();
        for _ in 0..2 {
            let gateway = Gateway::sharing(url, &config).await;
            gateway.until_ready().await;
            gateways.push(Arc::new(gateway));
        }
        let mut callers = JoinSet::new();
        for n in 0..12 {
            let gateway = gateways[n % 2].clone();
            let key = format!("{most}-{n}");
            let body = json!({ "args": { "sku": most }, "session_id": format!("S{most}"), "idempotency_key": key });
            callers.spawn(async move { gateway.post("act", &body, &[]).await });
        }
        let answers = callers.join_all().await;
        let good = answers.iter().filter(|answer| answer.status == 200).count();
        assert_eq!((good, tool.effects()), (most, most), "{rules}");
        if most == 12 {
            let seen = tool.seen();
            let overlap = seen
                .iter()
                .zip(&seen[1..])
                .find(|(one, next)| next.at < one.until);
            assert!(overlap.is_none(), "two exclusive calls at the tool at once");
        }
        // These gateways do not have the tools of the saga below, and would work on it, too.
        for gateway in gateways {
            let gateway = Arc::into_inner(gateway).expect("all callers have ended");
            gateway.stop().await;
        }
    }
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = Gateway::sharing(url, &format!("{store}{SOON}{}", shop(&tool, ""))).await;
    gateway.until_ready().await;
    gateway.in_saga("order", "G", "o").await.expect_ok();
    gateway.in_saga("pay", "G", "p").await.expect_ok();
    gateway.end_saga("G", "abort").await.expect_ok();
    gateway.saga_that_is("G", "compensated").await;
    assert_eq!(executed(&tool), ["order", "pay", "refund", "cancel"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_condition_holds_on_one_redis() {
    keeps_every_condition(&Redis::strict().await.url(), "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_condition_holds_on_a_redis_behind_a_sentinel() {
    let master = Redis::strict().await;
    let sentinel = Sentinel::of(&master).await;
    keeps_every_condition(&sentinel.url(), "[store]\ndurability = \"relaxed\"\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_condition_holds_on_a_redis_cluster() {
    keeps_every_condition(&Cluster::start().await.url(), "").await;
}

/// The hash tag of the first key that matches this pattern.
async fn tag_of(cluster: &Cluster, pattern: &str) -> String {
    for node in &cluster.nodes {
        let keys = node.ask(&["KEYS", pattern]).await;
        let keys = Vec::<Vec<u8>>::from_redis_value(keys).expect("names");
        if let Some(key) = keys.first() {
            let key = String::from_utf8_lossy(key);
            let tag = key.split(['{', '}']).nth(1).expect("a tag");
            return tag.to_owned();
        }
    }
    panic!("no key is like {pattern}");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_slot_of_a_redis_cluster_moves_nothing_is_lost_and_nothing_doubled() {
    let (cluster, tool) = (Cluster::start().await, Tool::start().await);
    tool.always(Act::after_ms(10, Act::Numbered));
    let rules = "session = \"exclusive\"\nsession_wait = \"30s\"\n";
    let config = format!(
        "{}[tools.alone]\nurl = \"{}\"\n{rules}",
        one_tool(&tool, ""),
        tool.url()
    );
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let gateway = Gateway::sharing(&cluster.url(), &config).await;
        gateway.until_ready().await;
        gateways.push(Arc::new(gateway));
    }
    let (is_over, mut callers) = (Arc::<AtomicBool>::default(), JoinSet::new());
    for caller in 0..8 {
        let (gateway, is_over) = (gateways[caller % 2].clone(), is_over.clone());
        callers.spawn(async move {
            let mut results = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                let key = format!("{caller}-{}", results.len());
                let name = if caller < 6 { "act" } else { "alone" };
                let body =
                    json!({ "args": { "key": key }, "session_id": "S", "idempotency_key": key });
                // Repeats as a client does that was told to wait or to use the same key again.
                loop {
                    let answer = gateway.post(name, &body, &[]).await;
                    if answer.status == 200 {
                        results.push((name, body, answer.result()));
                        break;
                    }
                    let (problem, action) = (answer.problem(), answer.at("/key_action"));
                    assert!(action == "reuse" || action == "wait", "{problem}: {action}");
                    sleep(Duration::from_millis(20)).await;
                }
            }
            results
        });
    }
    until("calls have run", async || tool.effects() > 50).await;
    let tag = tag_of(&cluster, "oncegate:*:session:*").await;
    cluster.move_slot_of(&tag).await;
    let moved = tool.effects();
    until("calls go on", async || tool.effects() > moved + 50).await;
    is_over.store(true, Ordering::SeqCst);
    let results = callers.join_all().await.concat();
    assert_eq!(tool.effects(), results.len(), "one effect for each intent");
    assert!(tool.effects_by_key().values().all(|effects| *effects == 1));
    for (n, (name, body, result)) in results.iter().enumerate() {
        let replay = gateways[n % 2].post(name, body, &[]).await.expect_ok();
        let (again, is_replay) = (replay.result(), replay.at("/replayed"));
        assert_eq!((&again, is_replay), (result, true.into()));
    }
    let moved: Value = cluster.nodes[0].ask(&["CLUSTER", "INFO"]).await;
    assert!(
        String::from_redis_value(moved)
            .expect("a text")
            .contains("cluster_state:ok")
    );
}

/// Some of its keys are there and others are not, which may last: it is not sent again for ever.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_slot_of_a_redis_cluster_stays_on_the_move_a_call_is_refused() {
    let (cluster, tool) = (Cluster::start().await, Tool::start().await);
    let gateway = Gateway::sharing(&cluster.url(), &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
    let tag = tag_of(&cluster, "oncegate:*:call:*").await;
    cluster.begin_to_move_slot_of(&tag).await;
    call(&gateway, 2).await.expect_problem("store-unavailable");
    assert_eq!(tool.effects(), 1);
}
