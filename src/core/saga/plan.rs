//! The next step for a saga that is being undone.

use jiff::Timestamp;

use super::{Phase, Saga};
use crate::core::call::undoes_unknown;
use crate::core::compensation;
use crate::core::position::Position;
use crate::core::record::{Record, State as CallState};
use crate::core::tool::{Effect, OnUnknown, Tool};
use crate::core::work::Blocker;

/// The next step for a saga that is being undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// All calls are at rest.
    ///
    /// That is written down, and the calls are looked at once more, before the first is marked.
    Rest,
    /// This call must come to rest before anything is undone.
    Wait(&'a Record, Blocker, &'static str),
    /// Mark this call as one to be undone, before anything is undone.
    Mark(&'a Record),
    /// Undo this call.
    Undo(&'a Record),
    /// This call is next, and cannot be undone without a person.
    Stuck(&'a Record),
    /// Nothing is left to be undone.
    Done,
}

/// Decides the next step from the saga's calls, each with its tool.
///
/// Before anything is undone every call has come to rest and is marked: no call of the saga has an
/// effect after that. Then the newest is undone first, and none before the calls that are newer.
pub fn plan<'a>(saga: &Saga, members: &[(&'a Record, &Tool)], now: Timestamp) -> Step<'a> {
    let at_rest = matches!(
        saga.phase,
        Phase::Compensating { at_rest: true } | Phase::Stuck { at_rest: true, .. }
    );
    let is_begun = |record: &Record| {
        matches!(
            record.state,
            CallState::Compensating(_) | CallState::Stuck(_)
        )
    };
    let concerned = members.iter().filter(|(record, tool)| {
        let is_undone =
            tool.effect == Effect::Write && tool.compensation != compensation::Policy::Needless;
        // Who asks for this one by itself wants it undone after all, unless it was skipped after that.
        let is_asked_for = saga.only == Some(record.intent.call_id) && !at_rest;
        let is_skipped = record.is_skipped() && !is_asked_for;
        // An earlier saga of this name had it, and has come to its end.
        let is_released =
            matches!(record.state, CallState::Succeeded(_)) && record.retain_until.is_some();
        let is_released = is_released && saga.only != Some(record.intent.call_id);
        // What is begun is brought to its end, whatever the configuration says by now.
        is_begun(record) || is_undone && !is_skipped && !is_released
    });
    let concerned: Vec<_> = concerned.collect();
    let find = |is: &dyn Fn(&Record, &Tool) -> bool| {
        concerned
            .iter()
            .find(|(record, tool)| is(record, tool))
            .map(|(record, _)| *record)
    };
    if let Some(record) = members
        .iter()
        .map(|(record, _)| *record)
        .find(|r| r.state == CallState::Running)
    {
        return Step::Wait(record, Blocker::Busy, "it still runs");
    }
    let may_come = |(record, tool): &(&Record, &Tool)| {
        let is_unknown = matches!(record.state, CallState::Unknown(_));
        is_unknown && tool.effect == Effect::Write && now < record.attempt.lease_until
    };
    if let Some((record, _)) = members.iter().find(|member| may_come(member)) {
        return Step::Wait(
            record,
            Blocker::Busy,
            "its request may still reach the tool",
        );
    }
    let is_foreign = |record: &Record, tool: &Tool| {
        tool.unknown == OnUnknown::Elsewhere && !matches!(record.state, CallState::Compensated(_))
    };
    if let Some(record) = find(&is_foreign) {
        return Step::Wait(record, Blocker::Unknown, "its tool is not configured here");
    }
    let is_unclear = |record: &Record, tool: &Tool| {
        matches!(record.state, CallState::Unknown(_)) && !undoes_unknown(tool)
    };
    if let Some(record) = find(&is_unclear) {
        return Step::Wait(
            record,
            Blocker::Unknown,
            "it is not known whether it was executed",
        );
    }
    // What is not undone is not waited for, unless it would be sent again meanwhile.
    let is_sent_again = |(record, tool): &(&Record, &Tool)| {
        matches!(record.state, CallState::Unknown(_))
            && tool.unknown == OnUnknown::Retry
            && (tool.compensation == compensation::Policy::Needless || record.is_skipped())
            && record.check.is_some_and(|check| check.at.is_some())
    };
    if let Some((record, _)) = members.iter().find(|member| is_sent_again(member)) {
        return Step::Wait(record, Blocker::Unknown, "it may be sent again");
    }
    let is_unmarked = |record: &Record, _: &Tool| {
        matches!(
            record.state,
            CallState::Succeeded(_) | CallState::Failed(_) | CallState::Unknown(_)
        )
    };
    let unmarked = find(&is_unmarked);
    let left: Vec<_> = concerned
        .iter()
        .copied()
        .filter(|(record, _)| is_begun(record))
        .collect();
    match (unmarked, newest(&left)) {
        (None, None) => Step::Done,
        // From then on it is not skipped any more, and comes to rest like any other.
        (Some(record), _) if record.is_skipped() => Step::Mark(record),
        _ if !at_rest => Step::Rest,
        (Some(record), _) => Step::Mark(record),
        (None, Some(record)) if matches!(record.state, CallState::Stuck(_)) => Step::Stuck(record),
        (None, Some(record)) => Step::Undo(record),
    }
}

/// The call that was begun last.
///
/// Within a session the tokens decide, whatever the clocks say, unless a caller has brought the
/// same token with several calls. The tokens of two sessions say nothing about each other.
fn newest<'a>(left: &[&(&'a Record, &Tool)]) -> Option<&'a Record> {
    let by_token = |(record, tool): &(&Record, &Tool)| {
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
        .map(|(record, _)| *record)
}

/// When a call was begun.
///
/// A call that is sent again because its outcome is unknown, which only some tools allow, keeps its
/// time. One that runs again after it surely had not been executed begins anew.
fn begun_at(record: &Record, tool: &Tool) -> Timestamp {
    let may_be_sent_again = record.earlier_attempt_may_have_run && tool.unknown == OnUnknown::Retry;
    let is_sent_again = may_be_sent_again && record.attempts > record.attempt.number;
    if is_sent_again {
        record.intent.created_at
    } else {
        record.attempt.run_started_at
    }
}
