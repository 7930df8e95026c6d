//! The next step for a saga that is being undone.

use jiff::Timestamp;

use super::Saga;
use crate::call::undoes_unknown;
use crate::compensation;
use crate::position::Position;
use crate::record::{Record, State as CallState};
use crate::tool::{Effect, OnUnknown, Tool};
use crate::work::Blocker;

/// A step of the undoing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// Write down that all calls are at rest, and list them once more before the first is marked.
    Rest,
    /// Wait until this call is at rest, before anything is undone.
    Wait(&'a Record, Blocker, &'static str),
    /// Mark this call as one to be undone, before anything is undone.
    ToCompensate(&'a Record),
    /// Undo this call.
    Undo(&'a Record),
    /// Wait for an operator, who alone can undo this call.
    Stuck(&'a Record),
    /// Nothing is left to be undone.
    Done,
}

/// A call of the saga, with its tool.
type Member<'a> = (&'a Record, &'a Tool);

/// Decides the next step from the saga's calls.
///
/// Before anything is undone every call has come to rest and is marked: no call of the saga has an
/// effect after that. Then the newest call is undone first, and each one before those that are older.
pub fn plan<'a>(saga: &Saga, members: &[Member<'a>], now: Timestamp) -> Step<'a> {
    let at_rest = saga.phase.at_rest() == Some(true);
    let concerned = members.iter().copied();
    let concerned = concerned.filter(|(record, tool)| is_concerned(saga, at_rest, record, tool));
    let concerned: Vec<Member<'_>> = concerned.collect();
    let is_unknown = |record: &Record| matches!(record.state, CallState::Unknown(_));

    if let Some(record) = first(members, |record, _| record.state == CallState::Running) {
        return Step::Wait(record, Blocker::Busy, "it still runs");
    }
    let may_come = |record: &Record, tool: &Tool| {
        is_unknown(record) && tool.effect == Effect::Write && now < record.attempt.lease_until
    };
    if let Some(record) = first(members, may_come) {
        let why = "its request may still reach the tool";
        return Step::Wait(record, Blocker::Busy, why);
    }
    let is_foreign = |record: &Record, tool: &Tool| {
        tool.unknown == OnUnknown::Elsewhere && !matches!(record.state, CallState::Compensated(_))
    };
    if let Some(record) = first(&concerned, is_foreign) {
        return Step::Wait(record, Blocker::Unknown, "its tool is not configured here");
    }
    if let Some(record) = first(&concerned, |record, tool| {
        is_unknown(record) && !undoes_unknown(tool)
    }) {
        let why = "it is not known whether it was executed";
        return Step::Wait(record, Blocker::Unknown, why);
    }
    // A call that is not undone is waited for only if it would be sent again meanwhile.
    let is_sent_again = |record: &Record, tool: &Tool| {
        is_unknown(record)
            && tool.unknown == OnUnknown::Retry
            && (tool.compensation == compensation::Policy::Needless || record.is_skipped())
            && record.check.is_some_and(|check| check.at.is_some())
    };
    if let Some(record) = first(members, is_sent_again) {
        return Step::Wait(record, Blocker::Unknown, "it may be sent again");
    }
    let unmarked = first(&concerned, |record, _| {
        matches!(
            record.state,
            CallState::Succeeded(_)
                | CallState::Failed(_)
                | CallState::Unknown(_)
                | CallState::Proposed
                | CallState::Approved
        )
    });
    let left: Vec<Member<'_>> = concerned
        .into_iter()
        .filter(|(record, _)| is_begun(record))
        .collect();
    match (unmarked, newest(&left)) {
        (None, None) => Step::Done,
        // Its mark makes it a call to be undone, which comes to rest like any other.
        (Some(record), _) if record.is_skipped() => Step::ToCompensate(record),
        _ if !at_rest => Step::Rest,
        (Some(record), _) => Step::ToCompensate(record),
        (None, Some(record)) if matches!(record.state, CallState::Stuck(_)) => Step::Stuck(record),
        (None, Some(record)) => Step::Undo(record),
    }
}

fn first<'a>(members: &[Member<'a>], is_it: impl Fn(&Record, &Tool) -> bool) -> Option<&'a Record> {
    let found = members.iter().find(|(record, tool)| is_it(record, tool));
    found.map(|(record, _)| *record)
}

fn is_begun(record: &Record) -> bool {
    matches!(
        record.state,
        CallState::Compensating(_) | CallState::Stuck(_)
    )
}

/// Whether the saga undoes this call, now or later.
fn is_concerned(saga: &Saga, at_rest: bool, record: &Record, tool: &Tool) -> bool {
    let is_undone =
        tool.effect == Effect::Write && tool.compensation != compensation::Policy::Needless;
    let is_only = saga.only == Some(record.intent.call_id);
    // An operator who asks for just this call wants it undone after all, unless it was skipped after that.
    let is_skipped = record.is_skipped() && (at_rest || !is_only);
    // An earlier saga of this name has let the call go.
    let is_released =
        matches!(record.state, CallState::Succeeded(_)) && record.retain_until.is_some();
    let is_released = is_released && !is_only;
    // An undoing that has begun is brought to its end, whatever the configuration says by now.
    // A call that waits for approval is marked, even if its effect would stand: else it could still begin.
    let waits = matches!(record.state, CallState::Proposed | CallState::Approved);
    waits || is_begun(record) || is_undone && !is_skipped && !is_released
}

/// The call that was begun last.
///
/// Within a session the tokens decide, whatever the clocks say, unless a caller has brought the
/// same token with several calls. Tokens of two sessions cannot be compared.
fn newest<'a>(left: &[Member<'a>]) -> Option<&'a Record> {
    let by_token = |(record, tool): &Member<'_>| {
        (record.fencing, begun_at(record, tool), Position::of(record))
    };
    let (last, _) = left
        .iter()
        .max_by_key(|call| (begun_at(call.0, call.1), by_token(call)))?;
    let session = &last.intent.session_id;
    let of_session = left
        .iter()
        .filter(|(record, _)| record.intent.session_id == *session);
    of_session
        .max_by_key(|call| by_token(call))
        .map(|call| call.0)
}

/// When a call was begun.
///
/// A call that is sent again because its outcome is unknown, which only some tools allow, keeps its
/// time. A call that runs again after it was surely not executed begins anew.
fn begun_at(record: &Record, tool: &Tool) -> Timestamp {
    let may_be_sent_again = record.earlier_attempt_may_have_run && tool.unknown == OnUnknown::Retry;
    let is_sent_again = may_be_sent_again && record.attempts > record.attempt.number;
    if is_sent_again {
        record.intent.created_at
    } else {
        record.attempt.run_started_at
    }
}
