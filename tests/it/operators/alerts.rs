//! The metrics behind the alerts: they go back when the cause is gone, and not because calls were lost.

use serde_json::json;

use crate::support::gateway::one_tool;
use crate::support::redis::Redis;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Gateway, Tool, until};

on_both_stores! {
    a_tool_that_is_resumed_is_tried_at_once_whatever_is_left_of_a_cooldown,
}

async fn a_tool_that_is_resumed_is_tried_at_once_whatever_is_left_of_a_cooldown(stores: &Stores) {
    let tool = Tool::start().await;
    let rules = "breaker = { failures = 2, cooldown = \"1h\" }\nretry = { attempts = 1 }";
    let gateways = stores.gateways(&one_tool(&tool, rules)).await;
    tool.always(Act::Answer(500, "", b"{}"));
    let open =
        async |gateway: &Gateway| gateway.metric("oncegate_breaker_open{tool=\"act\"}").await;
    for (n, gateway) in gateways.iter().enumerate() {
        for key in ["a", "b"] {
            let failed = gateway.act(&format!("{n}{key}"), json!({})).await;
            failed.expect_problem("outcome-unknown");
        }
        let left_alone = gateway.act("c", json!({})).await;
        left_alone.expect_problem("tool-unavailable");
        assert_eq!(open(gateway).await, 1.0);
    }
    let reason = json!({ "reason": "it is down" });
    let act = async |what: &str| {
        let path = format!("/v1/tools/act/{what}");
        gateways[0].post_to(&path, &reason).await.expect_ok();
    };
    act("pause").await;
    for gateway in &gateways {
        until("it is paused there, too", async || {
            gateway.act("c", json!({})).await.problem() == "tool-paused"
        })
        .await;
        // Both are said; the rule takes the pause for the answer.
        assert_eq!(open(gateway).await, 1.0);
        assert_eq!(
            gateway.metric("oncegate_tool_paused{tool=\"act\"}").await,
            1.0
        );
    }
    let before = tool.requests();
    tool.always(Act::Numbered);
    act("resume").await;
    for (n, gateway) in gateways.iter().enumerate() {
        until("it is tried", async || {
            gateway.act(&format!("{n}d"), json!({})).await.status == 200
        })
        .await;
        assert_eq!(open(gateway).await, 0.0);
    }
    assert_eq!(tool.requests() - before, gateways.len());
}

#[tokio::test]
async fn while_a_loss_of_redis_is_not_accepted_no_count_falls_and_its_time_is_told() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let rules = "retry = { attempts = 1 }\n";
    let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, rules)).await;
    gateway.until_ready().await;
    let unknown = async |gateway: &Gateway, key: &str| {
        tool.then(Act::ExecuteThenDrop);
        let call = gateway.act(key, json!({})).await;
        call.expect_problem("outcome-unknown")
    };
    unknown(&gateway, "kept").await;
    // What a gateway has written itself it puts back; another one is gone by then.
    let other = Gateway::sharing(&redis.url(), &one_tool(&tool, rules)).await;
    other.until_ready().await;
    let snapshot = redis.snapshot();
    let first_lost = unknown(&other, "lost-1").await;
    let first_lost = other.record(&first_lost).await.at("/created_at");
    for key in ["lost-2", "lost-3"] {
        unknown(&other, key).await;
    }
    let line = "oncegate_unknown_calls{tool=\"act\"}";
    assert_eq!(gateway.metric(line).await, 4.0);
    other.stop().await;
    // It surely misses its own write, which is newer than the lost calls, and puts it back.
    gateway.act("own", json!({})).await.expect_ok();
    redis.restore(snapshot.path()).await;
    until("the loss is noticed", async || {
        gateway.reasons().await.contains("accept-loss")
    })
    .await;
    assert_eq!(gateway.metric(line).await, 4.0, "three of them are missing");
    let lost = "oncegate_store_reasons{kind=\"reason\",reason=\"lost_data\"}";
    assert_eq!(gateway.metric(lost).await, 1.0);
    let reasons = gateway.reasons().await;
    let told = |before: &str| -> jiff::Timestamp {
        let rest = reasons.split_once(before);
        let rest = rest.unwrap_or_else(|| panic!("no {before} in {reasons}")).1;
        let end = rest.find('Z').expect("a time") + 1;
        rest[..end].parse().expect("a time")
    };
    let first_lost = first_lost.as_str().expect("a time");
    let first_lost: jiff::Timestamp = first_lost.parse().expect("a time");
    let until_then = told("all that was written until ");
    assert!(until_then <= first_lost, "{reasons}: {first_lost}");
    let since = told("reconcile since ");
    let before = until_then.duration_since(since).as_secs();
    assert!((59..=61).contains(&before), "{reasons}");
    assert!(reasons.contains("noticed here at 20"), "{reasons}");
    gateway.accept_loss("they are looked for").await.expect_ok();
    gateway.until_ready().await;
    until("they are counted as they are", async || {
        gateway.metric(line).await == 1.0
    })
    .await;
    assert_eq!(gateway.metric(lost).await, 0.0);
}
