//! Reads that take longer than their clients wait.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

/// A read that may take longer than an answer.
fn config(tool: &Tool, kept: &str) -> String {
    let mcp = format!("[mcp]\nanswer_within = \"{kept}\"\n");
    one_tool(
        tool,
        &format!("effect = \"read\"\ntimeout = \"60s\"\ndeadline = \"180s\"\n{mcp}"),
    )
}

/// A client that gives up before the tool answers.
async fn give_up(gateway: &Gateway, tool: &Tool, requests: usize) {
    let before = gateway.metric("oncegate_connections").await;
    let asked = tokio::spawn({
        let request = gateway.mcp_request("tools/call", named(1));
        Answer::to(request)
    });
    until("the tool is asked", async || tool.requests() == requests).await;
    asked.abort();
    assert!(asked.await.is_err(), "it has no answer");
    until("the gateway has noticed it", async || {
        gateway.metric("oncegate_connections").await <= before
    })
    .await;
}

fn named(n: u32) -> Value {
    json!({ "name": "act", "arguments": { "n": n } })
}

async fn read(gateway: &Gateway, n: u32) -> Value {
    let asked = gateway.mcp("tools/call", named(n)).await.expect_ok();
    let result = asked.message()["result"].clone();
    assert_eq!(result["isError"], false, "{}", asked.text);
    result["content"].clone()
}

on_both_stores!(
    a_long_read_is_joined_while_it_runs_and_its_result_is_given_once_after_it,
    a_kept_result_of_a_read_is_forgotten_after_a_while,
);

async fn a_long_read_is_joined_while_it_runs_and_its_result_is_given_once_after_it(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = stores.gateway(&config(&tool, "30s")).await;
    give_up(&gateway, &tool, 1).await;
    // Joined while it runs.
    let mut waits = Box::pin(read(&gateway, 1));
    assert!(
        timeout(Duration::from_millis(200), &mut waits)
            .await
            .is_err(),
        "it waits for the read that runs"
    );
    assert_eq!(tool.requests(), 1, "and begins no other");
    assert_ne!(read(&gateway, 2).await, Value::Null);
    assert_eq!(tool.requests(), 2, "other arguments are another read");
    drop(hold);
    let first = waits.await;
    assert_ne!(read(&gateway, 1).await, first, "a later read is a new one");
    assert_eq!(tool.requests(), 3);

    // Kept when all have gone.
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    give_up(&gateway, &tool, 4).await;
    drop(hold);
    until("it has ended", async || tool.effects() == 4).await;
    until("its result is written down", async || {
        let calls = gateway.get("/v1/calls?state=running").await.expect_ok();
        calls.at("/calls") == json!([])
    })
    .await;
    let kept = read(&gateway, 1).await;
    assert_eq!(tool.requests(), 4, "the result was kept");
    assert_ne!(read(&gateway, 1).await, kept, "and is given once");
    assert_eq!(tool.requests(), 5);
    gateway.stop().await;
}

async fn a_kept_result_of_a_read_is_forgotten_after_a_while(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = stores.gateway(&config(&tool, "50ms")).await;
    give_up(&gateway, &tool, 1).await;
    drop(hold);
    until("its result is written down", async || {
        let calls = gateway.get("/v1/calls?state=succeeded").await.expect_ok();
        calls.at("/calls").as_array().map(Vec::len) == Some(1)
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    read(&gateway, 1).await;
    assert_eq!(tool.requests(), 2, "a new read");
    gateway.stop().await;
}
