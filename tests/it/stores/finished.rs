//! Succeeded calls that a gateway over SQLite remembers. It replays them without the store, and never in an older state.

use serde_json::json;

use crate::sagas::undone::{MADE, shop};
use crate::support::gateway::one_tool;
use crate::support::{Gateway, Tool, until};

/// How often the store was asked for calls by their names, or for a claim.
pub(crate) async fn asked(gateway: &Gateway) -> f64 {
    let count = async |verb: &str| {
        let line =
            format!("oncegate_store_operation_duration_seconds_count{{operation=\"{verb}\"}}");
        gateway.metric(&line).await
    };
    count("claim").await + count("holders").await
}

#[tokio::test]
async fn a_replay_asks_nothing_of_the_store() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let first = gateway.act("k", json!({ "args": { "n": 1 } })).await;
    let before = asked(&gateway).await;
    for _ in 0..3 {
        let again = gateway.act("k", json!({ "args": { "n": 1 } })).await;
        let again = again.expect_ok();
        assert_eq!(again.at("/replayed"), true);
        assert_eq!(again.at("/result"), first.at("/result"));
        assert_eq!(again.id(), first.id());
    }
    assert_eq!(asked(&gateway).await, before);
    let other = gateway.act("k", json!({ "args": { "n": 2 } })).await;
    other.expect_problem("key-reused");
    let duplicates = async || gateway.record(&first).await.at("/duplicates") == 3;
    until("they are counted", duplicates).await;
    assert_eq!(tool.effects(), 1);
}

#[tokio::test]
async fn after_a_restart_a_result_is_read_once() {
    let tool = Tool::start().await;
    let config = one_tool(&tool, "");
    let gateway = Gateway::start(&config).await;
    let first = gateway.act("k", json!({ "args": {} })).await.expect_ok();
    let gateway = gateway.restart().await;
    let mut asked_before = asked(&gateway).await;
    for times in [1.0, 0.0, 0.0] {
        let again = gateway.act("k", json!({ "args": {} })).await.expect_ok();
        assert_eq!(
            (again.id(), again.at("/replayed")),
            (first.id(), true.into())
        );
        let asked = asked(&gateway).await;
        assert_eq!(asked - asked_before, times);
        asked_before = asked;
    }
    assert_eq!(tool.effects(), 1);
}

#[tokio::test]
async fn a_call_that_was_undone_is_replayed_as_undone() {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = Gateway::start(&shop(&tool, "")).await;
    let body = json!({ "args": {}, "idempotency_key": "k" });
    let call = async || gateway.post("order", &body, &[]).await;
    let first = call().await.expect_ok();
    let replayed = call().await.expect_ok();
    assert_eq!(replayed.at("/compensated"), first.at("/compensated"));
    gateway
        .act_on(&format!("/v1/calls/{}/compensate", first.id()))
        .await;
    let is_undone = async || call().await.at("/compensated") == true;
    until("it is undone", is_undone).await;
    assert_eq!(tool.effects(), 2, "the call and its compensation");
}
