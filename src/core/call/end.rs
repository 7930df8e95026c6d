//! The end of an attempt, as its owner saw it.

use std::time::Duration;

use jiff::Timestamp;

use super::change::{Action, Change, Next};
use super::event::Retry;
use crate::core::actor::Actor;
use crate::core::outcome::{Evidence, Outcome, Sent};
use crate::core::record::{Attempt, Check, Failure, FailureKind, Record, State};
use crate::core::session::Release;
use crate::core::time::{after, elapsed_ms};
use crate::core::tool::{Effect, OnUnknown, Tool};
use crate::core::{key, outcome, retry, unknown};

/// The running attempt ended.
pub(super) fn end(
    tool: &Tool,
    record: &Record,
    evidence: &Evidence,
    retry: Option<Retry>,
    now: Timestamp,
) -> Next {
    let (outcome, why) = judge(tool, record, evidence);
    let by = Actor::Gateway(record.attempt.owner);
    if let Some(retry) = retry
        && let Some(wait) = wait_before_retry(tool, record, &outcome, evidence, retry.jitter, now)
    {
        let again = Record {
            attempt: Attempt {
                id: retry.attempt,
                number: record.attempt.number + 1,
                ..record.attempt.clone()
            },
            attempts: record.attempts.saturating_add(1),
            earlier_attempt_may_have_run: record.earlier_attempt_may_have_run
                || outcome == Outcome::Unknown,
            ..record.changed(now)
        };
        let (attempt, ms) = (retry.attempt, wait.as_millis());
        let detail = format!("{why}; attempt {attempt} follows in {ms} ms");
        let change = Change::new(again, "retried", by, detail)
            .about(record.attempt.id)
            .proving(&outcome);
        return Next::write(change, Action::Retry { after: wait });
    }
    let mut change = finish(tool, record, "ended", by, &outcome, &why, now);
    // An unknown call is not worked on before the tool wants to hear of it again.
    if let Some(wait) = evidence.retry_after()
        && let Some(check) = &mut change.record.check
    {
        check.at = check.at.map(|at| at.max(after(now, wait)));
    }
    Next::finish(change)
}

/// What the evidence proves for this call.
///
/// A read has no effect to be in doubt about: an attempt of it without a clear answer has failed.
pub fn judge(tool: &Tool, record: &Record, evidence: &Evidence) -> (Outcome, String) {
    let (outcome, why) = outcome::classify(tool, evidence, Sent::of(record));
    match (outcome, tool.effect) {
        (Outcome::Unknown, Effect::Read) => {
            let failure = Failure {
                status: evidence.status(),
                retry_after: evidence.retry_after().map(|wait| wait.min(tool.deadline)),
                ..Failure::new(FailureKind::Unavailable, &why)
            };
            let why = format!("{why}; a read has no effect");
            (Outcome::NotExecuted(failure), why)
        }
        (outcome, _) => (outcome, why),
    }
}

/// Whether another attempt of the same run may follow, if there is time.
pub fn may_be_retried(tool: &Tool, record: &Record, outcome: &Outcome) -> bool {
    let is_safe = match outcome {
        Outcome::NotExecuted(failure) => {
            !matches!(failure.kind, FailureKind::Rejected | FailureKind::Fenced)
        }
        // The tool itself executes the same key at most once.
        Outcome::Unknown => tool.unknown == OnUnknown::Retry,
        Outcome::Executed(_) => false,
    };
    is_safe && record.attempt.number < tool.retry.attempts
}

/// How long to wait before another attempt of the same run; `None`: there is none.
fn wait_before_retry(
    tool: &Tool,
    record: &Record,
    outcome: &Outcome,
    evidence: &Evidence,
    jitter: f64,
    now: Timestamp,
) -> Option<Duration> {
    if !may_be_retried(tool, record, outcome) {
        return None;
    }
    let wait = retry::delay(
        &tool.retry,
        record.attempt.number,
        jitter,
        evidence.retry_after(),
    );
    let in_time = after(now, wait) < after(record.attempt.run_started_at, tool.deadline);
    in_time.then_some(wait)
}

/// Until when the key of a call that finishes now is remembered; `None`: for ever.
///
/// That of a compensation is.
pub(super) fn remembered_until(tool: &Tool, record: &Record, now: Timestamp) -> Option<Timestamp> {
    let source = record.intent.key_source;
    (source != key::Source::Compensation).then(|| after(now, tool.window(source)))
}

/// Until when a call that finishes now is kept.
pub(super) fn kept_until(tool: &Tool, record: &Record, now: Timestamp) -> Timestamp {
    after(
        now,
        tool.retention.max(tool.window(record.intent.key_source)),
    )
}

/// Until when a call that finishes now is kept; `None`: its saga keeps it.
pub(super) fn kept_unless_in_saga(
    tool: &Tool,
    record: &Record,
    now: Timestamp,
) -> Option<Timestamp> {
    let is_alone = record.intent.saga_id.is_empty();
    is_alone.then(|| kept_until(tool, record, now))
}

/// The change by which an attempt ends.
pub(super) fn finish(
    tool: &Tool,
    record: &Record,
    event: &'static str,
    by: Actor<'_>,
    outcome: &Outcome,
    why: &str,
    now: Timestamp,
) -> Change {
    // If the clock was set back meanwhile, the key must not look older than its call once the clock is right again.
    let now = now.max(record.updated_at);
    let (state, is_known) = match outcome {
        Outcome::Executed(content) => (State::Succeeded(content.clone()), true),
        Outcome::NotExecuted(failure) => (State::Failed(failure.clone()), true),
        Outcome::Unknown => (State::Unknown(why.to_owned()), false),
    };
    let check = match record.check {
        _ if is_known => None,
        Some(check @ Check { at: None, .. }) => Some(check),
        Some(check) => {
            let next = unknown::next_check(tool, record.attempt.id, check, now);
            Some(unknown::unless_too_late(tool, next))
        }
        None => unknown::first_check(tool, record, now),
    };
    let mut detail = why.to_owned();
    if check.is_some_and(|check| check.at.is_none()) {
        detail += "; it is given up: a late answer or a person still may settle it";
    }
    let has_failed = matches!(state, State::Failed(_));
    let finished = Record {
        state,
        // What surely was not executed is in doubt no more: the key may run again as if it were new.
        earlier_attempt_may_have_run: record.earlier_attempt_may_have_run && !has_failed,
        check,
        latency_ms: Some(elapsed_ms(record.attempt.run_started_at, now)),
        expires_at: remembered_until(tool, record, now).filter(|_| is_known),
        // What its saga may still have to undo is not deleted.
        retain_until: kept_unless_in_saga(tool, record, now).filter(|_| is_known),
        ..record.changed(now)
    };
    // The effect of an unknown call may still be under way: its session waits until the lease is over.
    let free_from = if is_known {
        now
    } else {
        record.attempt.lease_until
    };
    let release = Release {
        lock_from: tool.is_exclusive().then_some(free_from),
        retakes_lock: false,
        // What surely had no effect is no earlier call.
        similar: record.intent.similar.filter(|_| has_failed),
    };
    let change = Change::new(finished, event, by, detail)
        .about(record.attempt.id)
        .proving(outcome);
    Change { release, ..change }
}
