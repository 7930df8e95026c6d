//! An attempt ended, or its owner ended without a word of it.

use std::time::Duration;

use jiff::Timestamp;

use super::arrive::in_doubt;
use super::{
    Action, Change, Illegal, Next, Occasion, Retry, Takes, after, elapsed_ms, ended, gateway,
};
use crate::core::outcome::{Evidence, Outcome, Sent};
use crate::core::record::{Attempt, AttemptId, Record, State};
use crate::core::record::{Check, Failure, FailureKind};
use crate::core::session::Release;
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
    if let Some(retry) = retry
        && let Some(wait) = wait_before_retry(tool, record, &outcome, evidence, retry.jitter, now)
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
        let detail = format!(
            "{why}; attempt {} follows in {} ms",
            retry.attempt,
            wait.as_millis()
        );
        let entry = ended(
            Occasion {
                event: "retried",
                by: gateway(record.attempt.owner),
            },
            record,
            &outcome,
            detail,
            now,
        );
        let change = Change {
            record: again,
            entry,
            admission: None,
            release: Release::default(),
            takes: Takes::default(),
        };
        return Next {
            change: Some(change),
            action: Action::Retry { after: wait },
        };
    }
    let occasion = Occasion {
        event: "ended",
        by: gateway(record.attempt.owner),
    };
    let mut next = finish(tool, record, occasion, outcome, why, now);
    if let Some(change) = &mut next.change {
        wait_as_asked(change, evidence, now);
    }
    next
}

/// An unknown call is not worked on before the tool wants to hear of it again.
fn wait_as_asked(change: &mut Change, evidence: &Evidence, now: Timestamp) {
    let Some(earliest) = evidence.retry_after().map(|wait| after(now, wait)) else {
        return;
    };
    if let Some(at) = change
        .record
        .check
        .as_mut()
        .and_then(|check| check.at.as_mut())
    {
        *at = earliest.max(*at);
    }
}

/// An answer came after the call had been given up as unknown. It is the same attempt's, so it counts.
pub(super) fn end_late(
    tool: &Tool,
    record: &Record,
    evidence: &Evidence,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let (outcome, why) = outcome::classify(tool, evidence, Sent::of(record));
    match outcome {
        Outcome::Unknown => Err(Illegal::StillUnknown),
        outcome => {
            let occasion = Occasion {
                event: "ended_late",
                by: gateway(record.attempt.owner),
            };
            Ok(finish(tool, record, occasion, outcome, why, now))
        }
    }
}

/// An attempt before the newest one is answered. That it was executed, the call was executed, whatever
/// becomes of the newest; anything else says nothing of that one.
pub(super) fn end_of_earlier(
    tool: &Tool,
    record: &Record,
    attempt: AttemptId,
    evidence: &Evidence,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let counts = match record.state {
        State::Unknown(_) => true,
        // Only a run that goes on after a doubt has earlier attempts; a session's next call would run
        // beside the newest one.
        State::Running => record.doubted && !tool.is_exclusive(),
        _ => false,
    };
    let sent = Sent {
        doubted: true,
        fencing: record.fencing,
    };
    let (outcome, why) = outcome::classify(tool, evidence, sent);
    if !counts || !matches!(outcome, Outcome::Executed(_)) {
        return Err(Illegal::NotOwner);
    }
    let occasion = Occasion {
        event: "ended_late",
        by: "the gateway of an earlier attempt".into(),
    };
    let mut next = finish(tool, record, occasion, outcome, why, now);
    if let Some(change) = &mut next.change {
        change.entry.attempt = Some(attempt);
    }
    Ok(next)
}

/// The owner of a running attempt is gone: how it ended is unknown.
pub(super) fn lose(
    tool: &Tool,
    record: &Record,
    occasion: Occasion,
    why: &str,
    now: Timestamp,
) -> Next {
    let (outcome, why) = judge(
        tool,
        record,
        &Evidence::Lost {
            why: why.to_owned(),
        },
    );
    finish(tool, record, occasion, outcome, why, now)
}

/// The store has forgotten how a call went on, and with it who had the session's lock.
pub(super) fn forget(
    tool: &Tool,
    record: &Record,
    occasion: Occasion,
    why: &str,
    now: Timestamp,
) -> Next {
    let mut next = lose(
        tool,
        &with_a_lease_from(tool, record, now),
        occasion,
        why,
        now,
    );
    if let Some(change) = &mut next.change {
        change.release.retakes_lock = matches!(record.state, State::Running);
    }
    next
}

/// The same of a call that is in doubt already.
pub(super) fn doubt_anew(
    tool: &Tool,
    record: &Record,
    occasion: Occasion,
    why: &str,
    now: Timestamp,
) -> Next {
    let prolonged = with_a_lease_from(tool, record, now);
    let prolonged = Record {
        version: record.version + 1,
        updated_at: now,
        ..prolonged
    };
    let why = format!("{why}: it may have been sent again since");
    let entry = ended(occasion, record, &Outcome::Unknown, why, now);
    let lock_from = tool.is_exclusive().then_some(prolonged.attempt.lease_until);
    let release = Release {
        lock_from,
        ..Release::default()
    };
    let change = Change {
        record: prolonged,
        entry,
        admission: None,
        release,
        takes: Takes::default(),
    };
    Next {
        change: Some(change),
        action: Action::Finish,
    }
}

/// A later run, of which the store has lost everything, may have begun just now.
fn with_a_lease_from(tool: &Tool, record: &Record, now: Timestamp) -> Record {
    let lease_until = record.attempt.lease_until.max(after(now, tool.lease()));
    Record {
        attempt: Attempt {
            lease_until,
            ..record.attempt.clone()
        },
        ..record.clone()
    }
}

/// What the evidence means for this call. A read has no effect to be in doubt about: an attempt of
/// it that was not answered, or answered with nothing definite, has simply failed.
pub fn judge(tool: &Tool, record: &Record, evidence: &Evidence) -> (Outcome, String) {
    let (outcome, why) = outcome::classify(tool, evidence, Sent::of(record));
    match (outcome, tool.effect) {
        (Outcome::Unknown, Effect::Read) => {
            let (status, retry_after) = match evidence {
                Evidence::Answer {
                    status,
                    retry_after,
                    ..
                } => (Some(*status), *retry_after),
                Evidence::NotSent { .. } | Evidence::NoAnswer { .. } | Evidence::Lost { .. } => {
                    (None, None)
                }
            };
            let kind = FailureKind::Unavailable;
            let retry_after = retry_after.map(|wait| wait.min(tool.deadline));
            let failure = Failure {
                kind,
                status,
                body: None,
                retry_after,
                why: why.clone(),
            };
            (
                Outcome::NotExecuted(failure),
                format!("{why}; a read has no effect"),
            )
        }
        (outcome, _) => (outcome, why),
    }
}

/// Whether the running attempt may be followed by another one of the same run, if there is time.
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

/// How long to wait before another attempt of the same run, if there is to be one.
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

/// From when on the key of a call that is finished now is not remembered; that of a compensation always is.
pub(super) fn remembered_until(tool: &Tool, record: &Record, now: Timestamp) -> Option<Timestamp> {
    let source = record.intent.key_source;
    (source != key::Source::Compensation).then(|| after(now, tool.window(source)))
}

/// From when on a call that is finished now may be deleted.
pub(super) fn kept_until(tool: &Tool, record: &Record, now: Timestamp) -> Timestamp {
    after(
        now,
        tool.retention.max(tool.window(record.intent.key_source)),
    )
}

pub(super) fn finish(
    tool: &Tool,
    record: &Record,
    occasion: Occasion,
    outcome: Outcome,
    why: String,
    now: Timestamp,
) -> Next {
    let mut entry = ended(occasion, record, &outcome, why.clone(), now);
    let (state, known) = match outcome {
        Outcome::Executed(content) => (State::Succeeded(content), true),
        Outcome::NotExecuted(failure) => (State::Failed(failure), true),
        Outcome::Unknown => (State::Unknown(why), false),
    };
    let check = match record.check {
        _ if known => None,
        Some(check @ Check { at: None, .. }) => Some(check),
        Some(check) => {
            let next = unknown::next_check(tool, record.attempt.id, check, now, None);
            Some(unknown::unless_too_late(tool, next))
        }
        None => unknown::first_check(tool, record.attempt.id, now, None),
    };
    if check.is_some_and(|check| check.at.is_none()) {
        entry.detail += "; it is given up: a late answer or a person still may settle it";
    }
    // What surely was not executed is in doubt no more: the key may run again as if it were new.
    let doubted = record.doubted && !matches!(state, State::Failed(_));
    let finished = Record {
        version: record.version + 1,
        state,
        doubted,
        check,
        latency_ms: Some(elapsed_ms(record.attempt.run_started_at, now)),
        updated_at: now,
        expires_at: remembered_until(tool, record, now).filter(|_| known),
        // What its saga may still have to undo is not deleted.
        retain_until: (known && record.intent.saga_id.is_empty())
            .then(|| kept_until(tool, record, now)),
        ..record.clone()
    };
    // The effect of an unknown call may still be under way: its session waits until the lease is over.
    let free_from = if known {
        now
    } else {
        record.attempt.lease_until
    };
    let release = Release {
        lock_from: tool.is_exclusive().then_some(free_from),
        retakes_lock: false,
        // What surely had no effect is no earlier call.
        similar: record
            .intent
            .similar
            .filter(|_| matches!(finished.state, State::Failed(_))),
    };
    let change = Change {
        record: finished,
        entry,
        admission: None,
        release,
        takes: Takes::default(),
    };
    Next {
        change: Some(change),
        action: Action::Finish,
    }
}
