//! An answer to an attempt that is not the record's running attempt.

use jiff::Timestamp;

use super::change::{Action, Change, Illegal, Next};
use super::end::finish;
use crate::core::actor::Actor;
use crate::core::outcome::{Evidence, Outcome, Sent, classify};
use crate::core::record::{AttemptId, Record, State};
use crate::core::tool::{Dedup, Effect, Tool};

/// An attempt that does not run any more ended.
pub(super) fn ended(
    tool: &Tool,
    record: &Record,
    attempt: AttemptId,
    fencing: Option<u64>,
    evidence: &Evidence,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let settled = if record.fencing != fencing {
        Err(Illegal::NotOwner)
    } else if record.attempt.id == attempt {
        end_of_newest(tool, record, evidence, now)
    } else {
        end_of_earlier(tool, record, attempt, evidence, now)
    };
    match settled {
        Ok(change) => Ok(Next::finish(change)),
        Err(refused) => {
            let change = contradict(tool, record, attempt, evidence, now).ok_or(refused)?;
            Ok(Next::write(change, Action::Alarm))
        }
    }
}

/// An answer came after the call had become unknown. It is the same attempt's, so it counts.
fn end_of_newest(
    tool: &Tool,
    record: &Record,
    evidence: &Evidence,
    now: Timestamp,
) -> Result<Change, Illegal> {
    if !matches!(record.state, State::Unknown(_)) {
        return Err(Illegal::NotOwner);
    }
    let (outcome, why) = classify(tool, evidence, Sent::of(record));
    if outcome == Outcome::Unknown {
        return Err(Illegal::StillUnknown);
    }
    let by = Actor::Gateway(record.attempt.owner);
    Ok(finish(tool, record, "ended_late", by, &outcome, &why, now))
}

/// An attempt before the newest one is answered.
///
/// If it was executed, the call was, whatever the outcome of the newest attempt. Any other answer
/// says nothing about the newest.
fn end_of_earlier(
    tool: &Tool,
    record: &Record,
    attempt: AttemptId,
    evidence: &Evidence,
    now: Timestamp,
) -> Result<Change, Illegal> {
    let counts = match record.state {
        State::Unknown(_) => true,
        // Only a run that goes on after a doubt has earlier attempts; a session's next call would run
        // beside the newest one.
        State::Running => record.earlier_attempt_may_have_run && !tool.is_exclusive(),
        _ => false,
    };
    let sent = Sent {
        earlier_attempt_may_have_run: true,
        ..Sent::of(record)
    };
    let (outcome, why) = classify(tool, evidence, sent);
    if !counts || !matches!(outcome, Outcome::Executed(_)) {
        return Err(Illegal::NotOwner);
    }
    let by = Actor::EarlierAttempt;
    Ok(finish(tool, record, "ended_late", by, &outcome, &why, now).about(attempt))
}

/// Notes that an attempt which counts as not executed was executed. `None`: there is no
/// contradiction.
///
/// The state stays as it is: callers were told, and the key may have run again. A person has to know.
fn contradict(
    tool: &Tool,
    record: &Record,
    attempt: AttemptId,
    evidence: &Evidence,
    now: Timestamp,
) -> Option<Change> {
    let is_newest = record.attempt.id == attempt;
    let was_never_run = match &record.state {
        State::Failed(_) => true,
        State::Compensated(None) => record
            .undo
            .as_ref()
            .is_none_or(|undo| undo.compensation.is_none()),
        // It ran again because the earlier attempt counted as not executed.
        State::Running
        | State::Succeeded(_)
        | State::Compensating(_)
        | State::Compensated(Some(_))
        | State::Stuck(_) => {
            !is_newest && !record.earlier_attempt_may_have_run && tool.dedup != Dedup::Key
        }
        State::Unknown(_) => false,
    };
    let sent = Sent {
        earlier_attempt_may_have_run: !is_newest,
        ..Sent::of(record)
    };
    let (outcome, why) = classify(tool, evidence, sent);
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
    let change = Change::new(record.changed(now), "late_proof", by, detail);
    Some(change.about(attempt).proving(&outcome))
}
