//! An attempt ended, or nobody will ever say how.

use std::time::Duration;

use jiff::Timestamp;

use super::arrive::in_doubt;
use super::{Action, Change, Illegal, Next, Occasion, Retry, after, elapsed_ms, ended, gateway};
use crate::core::outcome::{self, Evidence, Failure, FailureKind, Outcome};
use crate::core::record::{Attempt, Record, State};
use crate::core::session::{self, Release};
use crate::core::tool::{Effect, Tool};
use crate::core::{retry, unknown};

/// The running attempt ended.
pub(super) fn end(
    tool: &Tool,
    record: &Record,
    evidence: &Evidence,
    retry: Option<Retry>,
    now: Timestamp,
) -> Next {
    let (outcome, why) = judge(tool, record, evidence);
    if let Some(retry) = retry
        && let Some(wait) = wait_before_retry(tool, record, &outcome, retry.jitter, now)
    {
        let again = Record {
            version: record.version + 1,
            attempt: Attempt {
                id: retry.attempt,
                number: record.attempt.number + 1,
                ..record.attempt.clone()
            },
            attempts: record.attempts.saturating_add(1),
            doubted: in_doubt(record) || outcome == Outcome::Unknown,
            updated_at: now,
            ..record.clone()
        };
        let detail = format!("{why}; attempt {} follows in {} ms", retry.attempt, wait.as_millis());
        let entry = ended(
            Occasion { event: "retried", by: gateway(record.attempt.owner) },
            record,
            &outcome,
            detail,
            now,
        );
        let change = Change { record: again, entry, terms: None, release: Release::default() };
        return Next { change: Some(change), action: Action::Retry { after: wait } };
    }
    finish(tool, record, Occasion { event: "ended", by: gateway(record.attempt.owner) }, outcome, why, now)
}

/// An answer came after the call had been given up as unknown. It is the same attempt's, so it counts.
pub(super) fn end_late(
    tool: &Tool,
    record: &Record,
    evidence: &Evidence,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let (outcome, why) = outcome::classify(tool, evidence, record.sent());
    match outcome {
        Outcome::Unknown => Err(Illegal::StillUnknown),
        outcome => {
            let occasion = Occasion { event: "ended_late", by: gateway(record.attempt.owner) };
            Ok(finish(tool, record, occasion, outcome, why, now))
        }
    }
}

/// The owner of a running attempt is gone: nobody will say how it ended.
pub(super) fn lose(tool: &Tool, record: &Record, occasion: Occasion, why: &str, now: Timestamp) -> Next {
    let (outcome, why) = judge(tool, record, &Evidence::Lost { why: why.to_owned() });
    finish(tool, record, occasion, outcome, why, now)
}

/// The store has forgotten how a call went on, and with it who had the session's lock.
pub(super) fn forget(tool: &Tool, record: &Record, occasion: Occasion, why: &str, now: Timestamp) -> Next {
    let mut next = lose(tool, record, occasion, why, now);
    if let Some(change) = &mut next.change {
        change.release.retakes_lock = matches!(record.state, State::Running);
    }
    next
}

/// What the evidence means for this call. A read has no effect to be in doubt about: an attempt of
/// it that was not answered, or answered with nothing definite, has simply failed.
fn judge(tool: &Tool, record: &Record, evidence: &Evidence) -> (Outcome, String) {
    let (outcome, why) = outcome::classify(tool, evidence, record.sent());
    match (outcome, tool.effect) {
        (Outcome::Unknown, Effect::Read) => {
            let (status, retry_after) = match evidence {
                Evidence::Answer { status, retry_after, .. } => (Some(*status), *retry_after),
                Evidence::NotSent { .. } | Evidence::NoAnswer { .. } | Evidence::Lost { .. } => (None, None),
            };
            let kind = FailureKind::Unavailable;
            let failure = Failure { kind, status, body: None, retry_after, why: why.clone() };
            (Outcome::NotExecuted(failure), format!("{why}; a read has no effect"))
        }
        (outcome, _) => (outcome, why),
    }
}

/// How long to wait before another attempt of the same run, if there is to be one.
fn wait_before_retry(
    tool: &Tool,
    record: &Record,
    outcome: &Outcome,
    jitter: f64,
    now: Timestamp,
) -> Option<Duration> {
    let retry_after = match outcome {
        Outcome::NotExecuted(Failure { kind: FailureKind::Rejected | FailureKind::Fenced, .. }) => {
            return None;
        }
        Outcome::NotExecuted(failure) => failure.retry_after,
        // The tool itself executes the same key at most once.
        Outcome::Unknown if tool.unknown == unknown::Policy::Retry => None,
        Outcome::Unknown | Outcome::Executed(_) => return None,
    };
    if record.attempt.number >= tool.retry.attempts {
        return None;
    }
    let wait = retry::delay(&tool.retry, record.attempt.number, jitter, retry_after);
    let in_time = after(now, wait) < after(record.attempt.run_started_at, tool.deadline);
    in_time.then_some(wait)
}

pub(super) fn finish(
    tool: &Tool,
    record: &Record,
    occasion: Occasion,
    outcome: Outcome,
    why: String,
    now: Timestamp,
) -> Next {
    let entry = ended(occasion, record, &outcome, why.clone(), now);
    let (state, known) = match outcome {
        Outcome::Executed(content) => (State::Succeeded(content), true),
        Outcome::NotExecuted(failure) => (State::Failed(failure), true),
        Outcome::Unknown => (State::Unknown(why), false),
    };
    let window = tool.window(record.intent.key_source);
    let check = match record.check {
        _ if known => None,
        Some(check) => unknown::next_check(tool, check, now),
        None => unknown::first_check(tool, now),
    };
    let finished = Record {
        version: record.version + 1,
        state,
        check,
        latency_ms: Some(elapsed_ms(record.attempt.run_started_at, now)),
        updated_at: now,
        expires_at: known.then(|| after(now, window)),
        retain_until: known.then(|| after(now, tool.retention.max(window))),
        ..record.clone()
    };
    // The effect of an unknown call may still be under way: its session waits until the lease is over.
    let free_from = if known { now } else { record.attempt.lease_until };
    let release = Release {
        lock_from: session::is_exclusive(tool).then_some(free_from),
        retakes_lock: false,
        // What surely had no effect is no earlier call.
        similar: record.intent.similar.filter(|_| matches!(finished.state, State::Failed(_))),
    };
    let change = Change { record: finished, entry, terms: None, release };
    Next { change: Some(change), action: Action::Finish }
}
