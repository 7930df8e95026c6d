//! A store goes back to an older copy while requests wait for a call of another gateway.

use std::time::Duration;

use oncegate::core::record::{Record, State};
use oncegate::gateway::new_instance;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::faulty::FaultStore;
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::{Act, Answer, Tool, client, until};

fn ask(at: &Bare) -> JoinHandle<Answer> {
    let body = json!({ "args": {} }).to_string();
    let request = client().post(&at.url).body(body);
    let request = request.header("idempotency-key", "k");
    let request = request.header("prefer", "wait=20");
    tokio::spawn(Answer::to(request))
}

/// What the store says of the call may be from before a run that had the effect.
#[tokio::test]
async fn after_a_loss_no_waiting_request_is_told_that_nothing_was_executed() {
    let tool = Tool::start().await;
    let (hold, refusal) = Act::held(Act::Answer(422, "", b"{\"no\":1}"));
    tool.then(refusal);
    tool.then(Act::ExecuteThenDrip(
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",
    ));
    let memory = Memory::default();
    let watched = FaultStore::over(memory.clone());
    let one = Bare::over(memory.clone(), new_instance(), &tool, "").await;
    let other = Bare::over(watched.clone(), new_instance(), &tool, "").await;

    // The other gateway follows the first attempt, and has just looked.
    let first = ask(&one);
    until("the tool was asked", async || tool.requests() == 1).await;
    let early = ask(&other);
    let looks = watched.asked();
    until("it looks rarely", async || watched.asked() > looks + 6).await;
    drop(hold);
    let refused = first.await.expect("an answer");
    assert_eq!(refused.problem(), "tool-rejected");
    // The rejected call runs again, with its effect.
    let second = ask(&one);
    until("the effect", async || tool.effects() == 1).await;
    let late = ask(&other);
    // Until it waits beside the early one. If it does not yet, it finds what the store says later.
    sleep(Duration::from_millis(20)).await;
    memory.lose(1);
    let (record, _) = memory.records().pop().expect("a call");
    assert!(matches!(record.state, State::Failed(_)), "{record:?}");

    let late = late.await.expect("an answer");
    assert_ne!(late.at("/effect"), "none", "{}", late.text);
    early.abort();
    second.abort();
}

/// The same of a request that waits until the outcome of the later run is known. An operator may have accepted the loss before it
/// looks again.
#[tokio::test]
async fn after_a_loss_no_request_that_waits_for_an_outcome_is_told_an_earlier_one() {
    tokio::join!(wait_through_a_loss(false), wait_through_a_loss(true));
}

async fn wait_through_a_loss(is_accepted: bool) {
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", b"{\"no\":1}"));
    tool.then(Act::ExecuteThenDrop);
    let memory = Memory::default();
    let one = Bare::over(memory.clone(), new_instance(), &tool, "").await;
    let refused = ask(&one).await.expect("an answer");
    assert_eq!(refused.problem(), "tool-rejected");
    let waiting = ask(&one);
    let is_unknown = |record: &Record| matches!(record.state, State::Unknown(_));
    until("the outcome is unknown", async || {
        memory
            .records()
            .iter()
            .any(|(record, _)| is_unknown(record))
    })
    .await;
    memory.lose(2);
    if is_accepted {
        memory.accept_loss();
    }
    let (record, _) = memory.records().pop().expect("a call");
    assert!(matches!(record.state, State::Failed(_)), "{record:?}");
    let told = waiting.await.expect("an answer");
    assert_eq!(told.problem(), "outcome-unknown", "{}", told.text);
    assert_eq!((told.at("/effect"), tool.effects()), (json!("unknown"), 1));
}
