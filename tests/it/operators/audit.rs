//! Acts of operators while the store fails: they are made nevertheless, and the audit keeps what is known of them.

use oncegate::core::audit::{Action, Outcome};
use oncegate::core::caller::Caller;
use oncegate::core::position::Position;
use oncegate::core::record::{CallId, Content};
use oncegate::core::session::SessionId;
use oncegate::core::unknown::Resolution;
use oncegate::gateway::{CallAct, Query, SessionFilter};
use serde_json::json;

use crate::stores::contract::ME;
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::rounds::work_on_sagas;
use crate::support::{Act, Answer, Tool, client, until};

/// The acts of the audit, newest first.
async fn acts(bare: &Bare) -> Vec<(Action, String, Outcome)> {
    let query = Query {
        tenant: None,
        filter: None,
        before: None,
        limit: 10,
    };
    let (ledger, ops) = (&bare.gateway.ledger, Caller::operator());
    let found = ledger.list_acts(&ops, &query).await;
    let (found, _) = found.expect("an answer");
    let parts = found
        .into_iter()
        .map(|one| (one.act.action, one.act.reason, one.outcome));
    parts.collect()
}

#[tokio::test]
async fn an_act_is_made_also_where_the_audit_takes_no_entry() {
    let (tool, faulty) = (Tool::start().await, FaultStore::over(Memory::default()));
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    let (pauses, ops) = (&bare.gateway.pauses, Caller::operator());
    faulty.next(Verb::PutBackDocument, Fault::ErrBefore, 2);
    let paused = pauses.set_paused(&ops, "act", true, "R1").await;
    assert!(paused.expect("an answer").paused.is_some());
    assert_eq!(acts(&bare).await, []);
    // If the first write of the entry fails, the entry is written with the outcome.
    faulty.next(Verb::PutBackDocument, Fault::ErrBefore, 1);
    pauses
        .set_paused(&ops, "act", false, "R2")
        .await
        .expect("resumed");
    let resumed = (Action::Resume, "R2".to_owned(), Outcome::Done);
    assert_eq!(acts(&bare).await, std::slice::from_ref(&resumed));
    // The entry is written, but the store's answer is lost.
    faulty.next(Verb::PutBackDocument, Fault::ExecuteThenTimeout, 1);
    pauses
        .set_paused(&ops, "act", true, "R3")
        .await
        .expect("paused");
    let paused = (Action::Pause, "R3".to_owned(), Outcome::Done);
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
        let result = Resolution::Succeeded(Content::Stored("1".into()));
        let (operator, by) = (&bare.gateway.operator, Caller::operator());
        let act = CallAct::Resolve(result);
        operator.act_on_call(&by, act, call, reason, None).await
    };
    faulty.next(Verb::Replace, Fault::ErrBefore, 1);
    settle("R1").await.expect_err("not written");
    let lost = (Action::Resolve, "R1".to_owned(), Outcome::Unknown);
    assert_eq!(acts(&bare).await, std::slice::from_ref(&lost));
    settle("R2").await.expect("settled");
    settle("R3").await.expect_err("it is settled");
    let done = (Action::Resolve, "R2".to_owned(), Outcome::Done);
    let refused = (Action::Resolve, "R3".to_owned(), Outcome::Refused);
    assert_eq!(acts(&bare).await, [refused, done, lost]);
    bare.stop().await;
}

#[tokio::test]
async fn an_act_that_is_refused_half_way_is_unknown() {
    let (tool, faulty) = (Tool::start().await, FaultStore::over(Memory::default()));
    let more = format!(
        "retry = {{ attempts = 1 }}\ncompensation = {{ tool = \"undo\", args = {{}} }}\n\
         [tools.undo]\nurl = \"{}\"\nretry = {{ attempts = 1 }}\n[sagas]\nretry = {{ attempts = 1, base = \"1ms\" }}",
        tool.url()
    );
    let bare = Bare::over(faulty.clone(), ME, &tool, &more).await;
    let post = async |path: &str, body: serde_json::Value| {
        Answer::to(client().post(bare.url_of(path)).body(body.to_string())).await
    };
    let why = || json!({ "reason": "R" });
    let call = json!({ "args": {}, "saga_id": "G" });
    post("/v1/tools/act/calls", call).await.expect_ok();
    tool.always(Act::Answer(422, "", b"{}"));
    post("/v1/sagas/G/abort", why()).await.expect_ok();
    until("it is stuck", async || {
        let later = bare.gateway.now() + jiff::SignedDuration::from_mins(5);
        drop(work_on_sagas(&bare.gateway, later).await);
        let saga = Answer::to(client().get(bare.url_of("/v1/sagas/G"))).await;
        saga.at("/state") == "stuck"
    })
    .await;
    // A second operator has the saga retried after the first has skipped the call, and before the first act ends.
    faulty.next(Verb::PutDocument, Fault::Duplicate, 1);
    faulty.next(Verb::PutDocument, Fault::Hold, 1);
    let skip = async {
        let skipped = post("/v1/sagas/G/skip", why()).await;
        skipped.expect_problem("wrong-state");
    };
    let retry = async {
        let is_held = async || faulty.injected(Verb::PutDocument, Fault::Hold) == 1;
        until("it is skipped", is_held).await;
        post("/v1/sagas/G/retry", why()).await.expect_ok();
        faulty.heal();
    };
    tokio::join!(skip, retry);
    let found: Vec<_> = acts(&bare)
        .await
        .into_iter()
        .map(|(action, _, outcome)| (action, outcome))
        .collect();
    let expected = [
        (Action::Retry, Outcome::Done),
        (Action::Skip, Outcome::Unknown),
        (Action::Abort, Outcome::Done),
    ];
    assert_eq!(found, expected);
    bare.stop().await;
}

/// The frozen sessions that the list finds.
async fn listed(bare: &Bare) -> usize {
    let query = Query {
        filter: FROZEN,
        ..LOCKED
    };
    found(bare, &query).await.0.len()
}

#[tokio::test]
async fn a_freeze_and_a_thaw_that_cross_leave_a_list_that_is_right() {
    let (tool, faulty) = (Tool::start().await, FaultStore::over(Memory::default()));
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    let id = SessionId {
        tenant: "shop".into(),
        id: "S".into(),
    };
    let sessions = bare.gateway.sessions.clone();
    let act = {
        let id = id.clone();
        move |frozen: bool| {
            let (sessions, id) = (sessions.clone(), id.clone());
            tokio::spawn(async move {
                let ops = Caller::operator();
                let done = sessions.set_frozen(&ops, &id, frozen, "R").await;
                done.expect("done");
            })
        }
    };
    let ops = Caller::operator();
    let is_frozen = async || {
        let found = bare.gateway.sessions.find_session(&ops, &id);
        found.await.expect("an answer").frozen
    };
    act(true).await.expect("no panic");
    // The session is frozen again before a thaw has written its mark. The duplicate is the thaw's audit entry.
    faulty.next(Verb::PutBackDocument, Fault::Duplicate, 1);
    faulty.next(Verb::PutBackDocument, Fault::Hold, 1);
    let thaw = act(false);
    let is_held = async |verb| {
        until("it is held", async || {
            faulty.injected(verb, Fault::Hold) == 1
        })
        .await
    };
    is_held(Verb::PutBackDocument).await;
    act(true).await.expect("no panic");
    faulty.heal();
    thaw.await.expect("no panic");
    assert_eq!((is_frozen().await, listed(&bare).await), (true, 1));
    // A freeze has marked the session; a thaw marks it anew before the freeze is written.
    act(false).await.expect("no panic");
    faulty.next(Verb::SetFrozen, Fault::Hold, 1);
    let freeze = act(true);
    is_held(Verb::SetFrozen).await;
    let thaw = bare.gateway.sessions.set_frozen(&ops, &id, false, "R");
    thaw.await.expect_err("it is not frozen yet");
    assert_eq!((is_frozen().await, listed(&bare).await), (false, 0));
    faulty.heal();
    freeze.await.expect("no panic");
    assert_eq!((is_frozen().await, listed(&bare).await), (true, 1));
    bare.stop().await;
}

/// The ids of the sessions that a list finds, and the position of the next page.
async fn found(bare: &Bare, query: &Query<SessionFilter>) -> (Vec<String>, Option<Position>) {
    let ops = Caller::operator();
    let found = bare.gateway.sessions.list_sessions(&ops, query).await;
    let (found, next) = found.expect("an answer");
    (found.into_iter().map(|(id, _)| id.id).collect(), next)
}

const FROZEN: SessionFilter = SessionFilter {
    frozen: true,
    locked: false,
};

const LOCKED: Query<SessionFilter> = Query {
    tenant: None,
    filter: SessionFilter {
        frozen: false,
        locked: true,
    },
    before: None,
    limit: 500,
};

#[tokio::test]
async fn a_session_that_cannot_be_read_keeps_no_other_out_of_the_list() {
    let (tool, faulty) = (Tool::start().await, FaultStore::over(Memory::default()));
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    let (sessions, ops) = (&bare.gateway.sessions, Caller::operator());
    for id in ["A", "B"] {
        let id = SessionId {
            tenant: "shop".into(),
            id: id.into(),
        };
        sessions
            .set_frozen(&ops, &id, true, "R")
            .await
            .expect("frozen");
    }
    let query = Query {
        filter: FROZEN,
        ..LOCKED
    };
    assert_eq!(found(&bare, &query).await.0, ["B", "A"]);
    faulty.next(Verb::Session, Fault::Unreadable, 1);
    assert_eq!(found(&bare, &query).await.0, ["A"]);
    bare.stop().await;
}

/// A call that changes its state while the list of locked sessions is read.
#[tokio::test]
async fn a_call_that_changes_its_state_meanwhile_is_listed_once() {
    let (tool, faulty) = (Tool::start().await, FaultStore::over(Memory::default()));
    let more =
        "session = \"exclusive\"\ntimeout = \"3s\"\ndeadline = \"3s\"\nretry = { attempts = 1 }\n";
    let bare = Bare::over(faulty.clone(), ME, &tool, more).await;
    let (hold, held) = Act::held(Act::ExecuteThenDrop);
    tool.then(held);
    let body = json!({ "args": {}, "session_id": "S" }).to_string();
    let call = tokio::spawn(Answer::to(client().post(&bare.url).body(body.clone())));
    until("it runs", async || tool.requests() == 1).await;
    let held_at = async |n| {
        until("it is held", async || {
            faulty.injected(Verb::List, Fault::Hold) == n
        })
        .await
    };
    // The call runs while running calls are read, and is unknown while unknown calls are read.
    faulty.next(Verb::List, Fault::Duplicate, 1);
    faulty.next(Verb::List, Fault::Hold, 1);
    let end = async {
        held_at(1).await;
        drop(hold);
        let unknown = call.await.expect("no panic");
        faulty.heal();
        unknown.expect_problem("outcome-unknown").id()
    };
    let (listed, id) = tokio::join!(found(&bare, &LOCKED), end);
    assert_eq!(listed.0, ["S"]);
    // The call is unknown while running calls are read, and runs again while unknown calls are read.
    let (hold, held) = Act::held(Act::Ok("{}"));
    tool.then(held);
    faulty.next(Verb::List, Fault::Duplicate, 1);
    faulty.next(Verb::List, Fault::Hold, 1);
    let again = async {
        held_at(2).await;
        let settle = json!({ "as": "failed", "reason": "R" }).to_string();
        let path = bare.url_of(&format!("/v1/calls/{id}/resolve"));
        until("its request is over", async || {
            let settled = client().post(&path).body(settle.clone());
            Answer::to(settled).await.status == 200
        })
        .await;
        let call = tokio::spawn(Answer::to(client().post(&bare.url).body(body.clone())));
        until("it runs again", async || tool.requests() == 2).await;
        faulty.heal();
        Some(call)
    };
    let (listed, call) = tokio::join!(found(&bare, &LOCKED), again);
    assert_eq!(listed.0, ["S"]);
    drop(hold);
    let call = call.expect("a task");
    call.await.expect("no panic").expect_ok();
    bare.stop().await;
}

#[tokio::test]
async fn readiness_does_not_wait_for_a_count_of_frozen_sessions() {
    let (tool, faulty) = (Tool::start().await, FaultStore::over(Memory::default()));
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    let id = SessionId {
        tenant: "shop".into(),
        id: "S".into(),
    };
    let (sessions, ops) = (&bare.gateway.sessions, Caller::operator());
    sessions
        .set_frozen(&ops, &id, true, "R")
        .await
        .expect("frozen");
    bare.gateway.status.count_frozen().await;
    faulty.next(Verb::CountDocuments, Fault::Hang, usize::MAX);
    let ready = bare.gateway.status.recent_readiness();
    let ready = tokio::time::timeout(std::time::Duration::from_secs(20), ready).await;
    let warnings = ready.expect("it does not wait").warnings;
    let codes: Vec<_> = warnings.iter().map(|warning| warning.code).collect();
    assert_eq!(codes, ["session_frozen"], "{warnings:?}");
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
    let found = async || listed(&bare).await;
    faulty.next(Verb::PutBackDocument, Fault::ErrBefore, 3);
    sessions
        .set_frozen(&ops, &id, true, "R1")
        .await
        .expect("frozen");
    assert_eq!((is_frozen().await, found().await), (true, 0));
    // A second freeze is refused, but corrects the list.
    let again = sessions.set_frozen(&ops, &id, true, "R2").await;
    again.expect_err("it is frozen already");
    assert_eq!((is_frozen().await, found().await), (true, 1));
    sessions
        .set_frozen(&ops, &id, false, "R3")
        .await
        .expect("thawed");
    assert_eq!((is_frozen().await, found().await), (false, 0));
    bare.stop().await;
}
