//! Requests that share a run in one process, while another gateway runs the same key again.

use std::sync::Arc;
use std::time::Duration;

use oncegate::core::record::InstanceId;
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use crate::stores::contract::ME;
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::{Act, Answer, Tool, client, until};

const OTHER: InstanceId = InstanceId(Uuid::from_u128(2));

async fn ask(url: String) -> Answer {
    let body = json!({ "args": { "n": 1 }, "idempotency_key": "k" });
    Answer::to(client().post(url).body(body.to_string())).await
}

/// A gateway learns late that its failure is written. Meanwhile another gateway runs the key again, and the tool executes it.
#[tokio::test]
async fn a_failure_is_told_only_to_requests_that_came_before_it_was_written() {
    let (tool, memory) = (Tool::start().await, Memory::that_tells());
    let slow = FaultStore::over(memory.clone());
    let more = "retry = { attempts = 1 }";
    let here = Bare::over_shared(Arc::new(slow.clone()), ME, &tool, more).await;
    let there = Bare::over_shared(Arc::new(memory), OTHER, &tool, more).await;
    tool.then(Act::Answer(429, "", b"{}"));
    slow.next(Verb::Replace, Fault::HoldAnswer, 1);
    let early = tokio::spawn(ask(here.url.clone()));
    until("the failure is written", async || {
        slow.injected(Verb::Replace, Fault::HoldAnswer) == 1
            && ask(there.url.clone()).await.status == 200
    })
    .await;
    assert_eq!(tool.effects(), 1);
    // A late request must neither wait for the earlier run nor be told its outcome.
    let late = timeout(Duration::from_secs(20), ask(here.url.clone())).await;
    let late = late.expect("an answer").expect_ok();
    assert_eq!(late.at("/replayed"), true);
    slow.heal();
    let early = early.await.expect("an answer");
    early.expect_problem("tool-unavailable");
    assert_eq!(tool.effects(), 1);
    here.stop().await;
    there.stop().await;
}
