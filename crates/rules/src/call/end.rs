//! The end of an attempt, as its owner saw it: in time, or late.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use super::change::{Action, Call, Change, Illegal, Next};
use super::event::Ended;
use super::task;
use crate::actor::Actor;
use crate::outcome::{Evidence, Outcome, Sent};
use crate::record::{Failure, FailureKind, Record, State};
use crate::time::{after, elapsed_ms};
use crate::tool::{Dedup, Effect, OnUnknown, Tool};
use crate::{key, outcome, retry, unknown};

/// The running attempt ended.
pub(super) fn end(call: Call<'_>, ended: &Ended) -> Next {
    let Call {
        tool, record, now, ..
    } = call;
    let (outcome, why) = judge(tool, record, &ended.evidence);
    let by = Actor::Gateway(record.attempt.owner);
    if let Evidence::Task { id, .. } = &ended.evidence {
        let with_task = task::with_task(record, id);
        let call = Call {
            record: &with_task,
            ..call
        };
        return Next::finish(finish(call, "ended", by, &outcome, &why));
    }
    let retry_after = ended.evidence.retry_after();
    if let Some(retry) = ended.retry
        && let Some(wait) = wait_before_retry(call, &outcome, retry_after, retry.jitter)
    {
        let mut again = call.changed();
        again.attempt.id = retry.attempt;
        again.attempt.number += 1;
        again.attempt.remote_task = None;
        again.attempts = again.attempts.saturating_add(1);
        again.earlier_attempt_may_have_run |= outcome == Outcome::Unknown;
        let (attempt, ms) = (retry.attempt, wait.as_millis());
        let detail = format!("{why}; attempt {attempt} follows in {ms} ms");
        let change = Change::new(again, "retried", by, detail)
            .about(record.attempt.id)
            .proving(&outcome);
        return Next::write(change, Action::Retry { after: wait });
    }
    let mut change = finish(call, "ended", by, &outcome, &why);
    // An unknown call is not checked before the time that the tool asked for.
    if let Some(wait) = retry_after
        && let Some(check) = &mut change.record.check
    {
        check.at = check.at.map(|at| at.max(after(now, wait)));
    }
    Next::finish(change)
}

/// What the evidence proves for this call.
///
/// A read has no effect: without a clear answer its attempt has failed, and is not unknown.
pub fn judge(tool: &Tool, record: &Record, evidence: &Evidence) -> (Outcome, String) {
    let (outcome, why) = outcome::classify(tool, evidence, Sent::of(record));
    if outcome != Outcome::Unknown || tool.effect == Effect::Write {
        return (outcome, why);
    }
    let failure = Failure {
        status: evidence.status(),
        retry_after: evidence.retry_after().map(|wait| wait.min(tool.deadline)),
        ..Failure::new(FailureKind::Unavailable, &why)
    };
    let why = format!("{why}; a read has no effect");
    (Outcome::NotExecuted(failure), why)
}

/// Whether another attempt of the same run may follow, if there is time.
pub fn may_be_retried(tool: &Tool, record: &Record, outcome: &Outcome) -> bool {
    let is_safe = match outcome {
        Outcome::NotExecuted(failure) => {
            !matches!(failure.kind, FailureKind::Rejected | FailureKind::Fenced)
                && !outcome::is_mere_word(tool, failure)
        }
        // The tool itself executes the same key at most once.
        Outcome::Unknown => tool.unknown == OnUnknown::Retry,
        Outcome::Executed(_) => false,
    };
    is_safe && record.attempt.number < tool.retry.attempts
}

/// How long to wait before another attempt of the same run; `None`: no further attempt.
fn wait_before_retry(
    call: Call<'_>,
    outcome: &Outcome,
    retry_after: Option<Duration>,
    jitter: f64,
) -> Option<Duration> {
    let Call {
        tool, record, now, ..
    } = call;
    if record.cancel_asked || !may_be_retried(tool, record, outcome) {
        return None;
    }
    let wait = retry::delay(&tool.retry, record.attempt.number, jitter, retry_after);
    let in_time = after(now, wait) < after(record.attempt.run_started_at, tool.deadline);
    in_time.then_some(wait)
}

/// Until when the key of a call that finishes now is remembered; `None`: for ever, as for a compensation.
pub(super) fn remembered_until(call: Call<'_>) -> Option<Timestamp> {
    let source = call.record.intent.key_source;
    (source != key::Source::Compensation).then(|| after(call.dedup_now, call.tool.window(source)))
}

/// Until when a call that finishes now is kept.
pub(super) fn stored_until(call: Call<'_>) -> Timestamp {
    let window = call.tool.window(call.record.intent.key_source);
    after(call.dedup_now, call.tool.retention.max(window))
}

/// Until when a call that finishes now is kept; `None`: until its saga lets it go.
pub(super) fn stored_unless_in_saga(call: Call<'_>) -> Option<Timestamp> {
    let is_alone = call.record.intent.saga_id.is_empty();
    is_alone.then(|| stored_until(call))
}

/// The change by which an attempt ends.
pub(super) fn finish(
    call: Call<'_>,
    event: &'static str,
    by: impl fmt::Display,
    outcome: &Outcome,
    why: &str,
) -> Change {
    let Call {
        tool, record, now, ..
    } = call;
    // The clock may have been set back during the call. Once it is right again, the key must not look older than its call.
    let now = now.max(record.updated_at);
    let dedup_now = call.dedup_now.max(now);
    let call = Call {
        now,
        dedup_now,
        ..call
    };
    let (state, is_known) = match outcome {
        Outcome::Executed(content) => (State::Succeeded(content.clone()), true),
        Outcome::NotExecuted(failure) => (State::Failed(failure.clone()), true),
        Outcome::Unknown => (State::Unknown(why.to_owned()), false),
    };
    let check = match record.check {
        _ if is_known => None,
        // A task is asked for at least once, however late it is.
        Some(check) if record.attempt.remote_task.is_none() => {
            let next = unknown::next_check(tool, record.attempt.id, check, now);
            Some(unknown::unless_too_late(tool, next, call.slept()))
        }
        _ => unknown::first_check(tool, record, now),
    };
    let mut detail = why.to_owned();
    if check.is_some_and(|check| check.at.is_none()) {
        detail += "; it is given up: a late answer or an operator may still settle it";
    }
    let has_failed = matches!(state, State::Failed(_));
    let mut proposal = record.proposal.clone();
    // An approval is for one call: it is used up, unless the call surely had no effect and was never in doubt.
    let was_in_doubt = record.earlier_attempt_may_have_run || record.state != State::Running;
    if (!has_failed || was_in_doubt)
        && let Some(proposal) = &mut proposal
    {
        proposal.good_until = None;
    }
    let mut attempt = record.attempt.clone();
    attempt.remote_task = attempt.remote_task.filter(|_| !is_known);
    let finished = Record {
        attempt,
        proposal,
        state,
        // A call that was surely not executed is in doubt no more: its key may run again as if it were new.
        earlier_attempt_may_have_run: record.earlier_attempt_may_have_run && !has_failed,
        check,
        latency_ms: Some(elapsed_ms(record.attempt.run_started_at, now)),
        expires_at: remembered_until(call).filter(|_| is_known),
        retain_until: stored_unless_in_saga(call).filter(|_| is_known),
        ..call.changed()
    };
    // The effect of an unknown call may still be under way: its session waits until the lease is over.
    let free_from = if is_known {
        now
    } else {
        record.attempt.lease_until
    };
    let mut change = Change::new(finished, event, by, detail);
    change.release.lock_from = tool.is_exclusive().then_some(free_from);
    // A call that surely had no effect is not a near-duplicate of a later one.
    change.release.similar = record.intent.similar.filter(|_| has_failed);
    change.about(record.attempt.id).proving(outcome)
}

/// An attempt that does not run any more ended.
pub(super) fn end_late(call: Call<'_>, ended: &Ended) -> Result<Next, Illegal> {
    let waits = matches!(call.record.state, State::Proposed | State::Approved);
    if waits && let Some(change) = end_of_asked(call, ended) {
        return Ok(Next::write(change, Action::Alarm));
    }
    let settled = if call.record.fencing != ended.fencing {
        Err(Illegal::NotOwner)
    } else if call.record.attempt.id == ended.attempt {
        end_of_newest(call, ended)
    } else {
        end_of_earlier(call, ended)
    };
    match settled {
        Ok(change) => Ok(Next::finish(change)),
        Err(refused) => {
            let change = contradict(call, ended).ok_or(refused)?;
            Ok(Next::write(change, Action::Alarm))
        }
    }
}

/// An earlier run of a call that asks again is answered late: it was executed after all, and nothing begins any more.
fn end_of_asked(call: Call<'_>, ended: &Ended) -> Option<Change> {
    let Call { tool, record, .. } = call;
    let sent = Sent {
        earlier_attempt_may_have_run: true,
        ..Sent::of(record)
    };
    let (outcome, why) = outcome::classify(tool, &ended.evidence, sent);
    let has_run = record.attempts > 0 && tool.effect == Effect::Write;
    if !has_run || !matches!(outcome, Outcome::Executed(_)) {
        return None;
    }
    let why = format!(
        "{why}, although the attempt counts as not executed: the call waits for approval no more"
    );
    let change = finish(call, "late_proof", Actor::EarlierAttempt, &outcome, &why);
    Some(change.about(ended.attempt))
}

/// The newest attempt is answered after the call became unknown. The answer counts.
fn end_of_newest(call: Call<'_>, ended: &Ended) -> Result<Change, Illegal> {
    let record = call.record;
    if !matches!(record.state, State::Unknown(_)) {
        return Err(Illegal::NotOwner);
    }
    if let Evidence::Task { id, .. } = &ended.evidence
        && record.attempt.remote_task.is_none()
    {
        return Ok(task::note(call, id));
    }
    let (outcome, why) = outcome::classify(call.tool, &ended.evidence, Sent::of(record));
    if outcome == Outcome::Unknown {
        return Err(Illegal::StillUnknown);
    }
    let by = Actor::Gateway(record.attempt.owner);
    Ok(finish(call, "ended_late", by, &outcome, &why))
}

/// An attempt before the newest one is answered.
///
/// If that attempt was executed, the call was, whatever the outcome of the newest attempt. Any other
/// answer proves nothing about the newest attempt.
fn end_of_earlier(call: Call<'_>, ended: &Ended) -> Result<Change, Illegal> {
    let Call { tool, record, .. } = call;
    let counts = match record.state {
        State::Unknown(_) => true,
        // Only a run that goes on although an attempt is in doubt has earlier attempts. In an exclusive session the end
        // would free the lock, and the session's next call would run beside the newest attempt.
        State::Running => record.earlier_attempt_may_have_run && !tool.is_exclusive(),
        _ => false,
    };
    let sent = Sent {
        earlier_attempt_may_have_run: true,
        ..Sent::of(record)
    };
    let (outcome, why) = outcome::classify(tool, &ended.evidence, sent);
    if !counts || !matches!(outcome, Outcome::Executed(_)) {
        return Err(Illegal::NotOwner);
    }
    let change = finish(call, "ended_late", Actor::EarlierAttempt, &outcome, &why);
    Ok(change.about(ended.attempt))
}

/// Notes that an attempt was executed which counts as not executed; `None`: no contradiction.
///
/// The state stays: callers were told of it, and the key may have run again. An operator has to know.
fn contradict(call: Call<'_>, ended: &Ended) -> Option<Change> {
    let Call { tool, record, .. } = call;
    let is_newest = record.attempt.id == ended.attempt;
    let was_never_run = match &record.state {
        State::Failed(_) => true,
        State::Compensated(None) => record.compensation().is_none(),
        // The call ran again because the earlier attempt counted as not executed.
        State::Running
        | State::Succeeded(_)
        | State::Compensating(_)
        | State::Compensated(Some(_))
        | State::Stuck(_) => {
            !is_newest && !record.earlier_attempt_may_have_run && tool.dedup != Dedup::Key
        }
        State::Unknown(_) | State::Proposed | State::Approved => false,
    };
    let sent = Sent {
        earlier_attempt_may_have_run: !is_newest,
        ..Sent::of(record)
    };
    let (outcome, why) = outcome::classify(tool, &ended.evidence, sent);
    if tool.effect == Effect::Read || !was_never_run || !matches!(outcome, Outcome::Executed(_)) {
        return None;
    }
    let by = if is_newest {
        Actor::Gateway(record.attempt.owner)
    } else {
        Actor::EarlierAttempt
    };
    let detail = format!(
        "{why}, although the attempt counts as not executed: the call stays {}, and its key may run again or \
         has done so",
        record.state.as_str()
    );
    let change = Change::new(call.changed(), "late_proof", by, detail);
    Some(change.about(ended.attempt).proving(&outcome))
}
