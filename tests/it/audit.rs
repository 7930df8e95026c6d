//! Acts of persons while the store fails: they are made all the same, and the audit says what it knows.

use oncegate::core::audit::{Deed, Outcome};
use oncegate::core::caller::Caller;
use oncegate::core::record::{CallId, Content};
use oncegate::core::session::SessionId;
use oncegate::core::unknown::Resolution;
use oncegate::gateway::{AuditQuery, SessionQuery};
use serde_json::json;

use crate::contract::ME;
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::{Act, Answer, Tool, client};

/// The acts of the audit, newest first.
async fn acts(bare: &Bare) -> Vec<(Deed, String, Outcome)> {
    let query = AuditQuery {
        tenant: None,
        deed: None,
        before: None,
        limit: 10,
    };
    let (ledger, ops) = (&bare.gateway.ledger, Caller::operator());
    let found = ledger.list_acts(&ops, &query).await;
    let (found, _) = found.expect("an answer");
    let parts = found
        .into_iter()
        .map(|one| (one.act.deed, one.act.reason, one.outcome));
    parts.collect()
}

#[tokio::test]
async fn an_act_is_made_also_where_the_audit_takes_no_entry() {
    let (tool, faulty) = (Tool::start().await, FaultStore::over(Memory::default()));
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    let (pauses, ops) = (&bare.gateway.pauses, Caller::operator());
    faulty.next(Verb::PutBackDocument, Fault::ErrBefore, 2);
    let paused = pauses.pause_tool(&ops, "act", "R1").await;
    assert!(paused.expect("an answer").paused.is_some());
    assert_eq!(acts(&bare).await, []);
    // Refused once, it is written when its outcome is known.
    faulty.next(Verb::PutBackDocument, Fault::ErrBefore, 1);
    pauses
        .resume_tool(&ops, "act", "R2")
        .await
        .expect("resumed");
    let resumed = (Deed::Resume, "R2".to_owned(), Outcome::Done);
    assert_eq!(acts(&bare).await, std::slice::from_ref(&resumed));
    // Written, but the answer is lost.
    faulty.next(Verb::PutBackDocument, Fault::ExecuteThenTimeout, 1);
    pauses.pause_tool(&ops, "act", "R3").await.expect("paused");
    let paused = (Deed::Pause, "R3".to_owned(), Outcome::Done);
    assert_eq!(acts(&bare).await, [paused, resumed]);
    bare.stop().await;
}

#[tokio::test]
async fn an_act_that_the_store_does_not_answer_stays_unknown() {
    let (tool, faulty) = (Tool::start().await, FaultStore::over(Memory::default()));
    tool.then(Act::ExecuteThenDrop);
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    let body = json!({ "args": {} }).to_string();
    let call = Answer::to(client().post(&bare.url).body(body)).await;
    let call = call.expect_problem("outcome-unknown").id();
    let call = CallId(call.parse().expect("an id"));
    let settle = async |reason: &str| {
        let result = Resolution::Succeeded(Content::Kept("1".into()));
        let operator = &bare.gateway.operator;
        operator
            .resolve(&Caller::operator(), call, reason, &result)
            .await
    };
    faulty.next(Verb::Replace, Fault::ErrBefore, 1);
    settle("R1").await.expect_err("not written");
    let lost = (Deed::Resolve, "R1".to_owned(), Outcome::Unknown);
    assert_eq!(acts(&bare).await, std::slice::from_ref(&lost));
    settle("R2").await.expect("settled");
    settle("R3").await.expect_err("it is settled");
    let done = (Deed::Resolve, "R2".to_owned(), Outcome::Done);
    let refused = (Deed::Resolve, "R3".to_owned(), Outcome::Refused);
    assert_eq!(acts(&bare).await, [refused, done, lost]);
    bare.stop().await;
}

#[tokio::test]
async fn a_session_is_frozen_also_where_no_mark_can_be_written() {
    let (tool, faulty) = (Tool::start().await, FaultStore::over(Memory::default()));
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    let (sessions, ops) = (&bare.gateway.sessions, Caller::operator());
    let id = SessionId {
        tenant: "shop".into(),
        id: "S".into(),
    };
    let is_frozen = async || sessions.find_session(&ops, &id).await.expect("it").frozen;
    let found = async || {
        let query = SessionQuery {
            tenant: None,
            frozen: true,
            locked: false,
            before: None,
            limit: 10,
        };
        let found = sessions.list_sessions(&ops, &query).await;
        found.expect("an answer").0.len()
    };
    faulty.next(Verb::PutBackDocument, Fault::ErrBefore, 3);
    sessions
        .freeze_session(&ops, &id, "R1")
        .await
        .expect("frozen");
    assert_eq!((is_frozen().await, found().await), (true, 0));
    // To freeze it once more is refused, and mends the list.
    let again = sessions.freeze_session(&ops, &id, "R2").await;
    again.expect_err("it is frozen already");
    assert_eq!((is_frozen().await, found().await), (true, 1));
    sessions
        .thaw_session(&ops, &id, "R3")
        .await
        .expect("thawed");
    assert_eq!((is_frozen().await, found().await), (false, 0));
    bare.stop().await;
}
