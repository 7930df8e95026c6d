//! A call is undone, or surely never ran.
//!
//! `saga` decides the order and the compensations.

use jiff::Timestamp;

use super::change::{Change, Illegal};
use super::end::{finish, kept_unless_in_saga, kept_until, remembered_until};
use super::event::UndoEnd;
use crate::core::actor::Actor;
use crate::core::compensation;
use crate::core::mcp::round;
use crate::core::outcome::Outcome;
use crate::core::record::{
    Check, Compensation, Content, Failure, FailureKind, InstanceId, Record, State, Undo,
};
use crate::core::tool::{Effect, Tool};
use crate::core::unknown::Resolution;

/// A claimed call is not sent, because of its saga.
pub(super) fn not_joined(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    kind: FailureKind,
    why: &str,
    now: Timestamp,
) -> Change {
    let outcome = Outcome::NotExecuted(Failure::new(kind, why));
    let by = Actor::Gateway(by);
    let mut change = finish(tool, record, "not_joined", by, &outcome, why, now);
    // Its saga has nothing to undo here, and may not look at it again.
    change.record.retain_until = Some(kept_until(tool, record, now));
    change
}

/// Marks a call to be undone.
///
/// The mark is written before anything is sent: from then on nothing else happens to the call, and
/// its compensation is known.
pub(super) fn to_compensate(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    compensation: Option<&Compensation>,
    now: Timestamp,
) -> Result<Change, Illegal> {
    if tool.effect == Effect::Read {
        return Err(Illegal::NothingToUndo);
    }
    let content = match &record.state {
        State::Running => return Err(Illegal::MayStillRun),
        State::Compensating(_) | State::Compensated(_) => return Err(Illegal::NothingToUndo),
        _ if has_no_effect(tool, record) => {
            let detail = format!("it surely never ran, so nothing is sent ({reason})");
            let undone = Record {
                state: State::Compensated(None),
                undo: Some(Undo::default()),
                expires_at: remembered_until(tool, record, now),
                ..record.changed(now)
            };
            return Ok(Change::new(undone, "compensation_empty", by, detail));
        }
        // Its request may still reach the tool, after what would undo it.
        State::Unknown(_) if now < record.attempt.lease_until => return Err(Illegal::MayStillRun),
        State::Unknown(_) if !undoes_unknown(tool) => return Err(Illegal::StillUnknown),
        State::Unknown(_) | State::Failed(_) => None,
        State::Succeeded(content) => Some(content.clone()),
        State::Stuck(content) => content.clone(),
    };
    let detail = match compensation {
        Some(Compensation { tool, call_id }) => {
            format!("{tool} undoes it by call {call_id} ({reason})")
        }
        None => format!("it is to be undone, but its tool declares no compensation ({reason})"),
    };
    let undone = Record {
        state: State::Compensating(content),
        check: None,
        undo: Some(Undo {
            compensation: compensation.cloned(),
            skipped: false,
        }),
        expires_at: None,
        retain_until: None,
        ..record.changed(now)
    };
    Ok(Change::new(undone, "compensating", by, detail))
}

/// Whether the call surely has no effect: it never ran, or its server only asked.
fn has_no_effect(tool: &Tool, record: &Record) -> bool {
    matches!(record.state, State::Failed(_)) || tool.may_ask && round::asked_by(record).is_some()
}

/// Whether a tool's calls are undone even if their outcome is unknown.
pub fn undoes_unknown(tool: &Tool) -> bool {
    matches!(&tool.compensation, compensation::Policy::By(template) if template.undoes_unknown)
}

/// A compensation has ended.
pub(super) fn undo_ended(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    end: &UndoEnd,
    now: Timestamp,
) -> Change {
    let content = record.state.content().cloned();
    let by = Actor::Gateway(by);
    match end {
        UndoEnd::Undone => {
            let undone = compensated(tool, record, content, now);
            Change::new(undone, "compensated", by, "what it did is undone")
        }
        UndoEnd::Stuck(why) => {
            let stuck = Record {
                state: State::Stuck(content),
                ..record.changed(now)
            };
            Change::new(stuck, "stuck", by, why)
        }
    }
}

fn compensated(tool: &Tool, record: &Record, content: Option<Content>, now: Timestamp) -> Record {
    Record {
        state: State::Compensated(content),
        expires_at: remembered_until(tool, record, now),
        retain_until: kept_unless_in_saga(tool, record, now),
        ..record.changed(now)
    }
}

/// A person settles a stuck call: its effect stands, or is gone.
pub(super) fn resolve_stuck(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    resolution: &Resolution,
    now: Timestamp,
) -> Change {
    let known = record.state.content().cloned();
    let (resolved, what) = match resolution {
        Resolution::Failed => (compensated(tool, record, known, now), "it is undone"),
        Resolution::Succeeded(content) => {
            // What the tool itself has said goes before what a person says.
            let content = known.unwrap_or_else(|| content.clone());
            (stands(tool, record, content, now), "its effect stands")
        }
    };
    let detail = format!("a person says that {what} ({reason})");
    Change::new(resolved, "resolved", Actor::Token(by), detail)
}

/// A person decides that the call is not undone.
pub(super) fn skip(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    compensation: Option<&Record>,
    now: Timestamp,
) -> Result<Change, Illegal> {
    match (
        &record.state,
        compensation.map(|made| (&made.state, made.attempt.lease_until)),
    ) {
        (_, Some((State::Running, _))) => return Err(Illegal::BeingUndone),
        (_, Some((State::Unknown(_), lease_until))) if now < lease_until => {
            return Err(Illegal::BeingUndone);
        }
        // It is undone; only that is not written down yet.
        (State::Compensating(_), Some((State::Succeeded(_), _))) => {
            return Err(Illegal::NothingToUndo);
        }
        _ => {}
    }
    let skipped = match (&record.state, record.state.content()) {
        (State::Running, _) => return Err(Illegal::MayStillRun),
        (State::Unknown(_), _) if now < record.attempt.lease_until => {
            return Err(Illegal::MayStillRun);
        }
        (State::Failed(_) | State::Compensated(_), _) => return Err(Illegal::NothingToUndo),
        (_, Some(content)) => stands(tool, record, content.clone(), now),
        // What is done about unknown calls goes on.
        (State::Unknown(_), None) => Record {
            undo: skipped(record),
            ..record.changed(now)
        },
        // Its outcome was never known, and it is not asked for any more.
        (_, None) => Record {
            state: State::Unknown(
                "its outcome is not known, and a person has decided not to undo it".into(),
            ),
            check: Some(Check {
                since: now,
                at: None,
                number: 0,
            }),
            undo: skipped(record),
            ..record.changed(now)
        },
    };
    let detail = format!("it is not undone ({reason})");
    Ok(Change::new(skipped, "skipped", Actor::Token(by), detail))
}

fn stands(tool: &Tool, record: &Record, content: Content, now: Timestamp) -> Record {
    Record {
        state: State::Succeeded(content),
        undo: skipped(record),
        expires_at: remembered_until(tool, record, now),
        retain_until: kept_unless_in_saga(tool, record, now),
        ..record.changed(now)
    }
}

fn skipped(record: &Record) -> Option<Undo> {
    Some(Undo {
        skipped: true,
        ..record.undo.clone().unwrap_or_default()
    })
}

/// The call's saga has ended.
pub(super) fn saga_ended(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    now: Timestamp,
) -> Result<Change, Illegal> {
    let is_settled = match record.state {
        State::Succeeded(_) | State::Failed(_) | State::Compensated(_) => true,
        State::Running | State::Unknown(_) | State::Compensating(_) | State::Stuck(_) => false,
    };
    if !is_settled || record.retain_until.is_some() {
        return Err(Illegal::NotKept);
    }
    let kept = Record {
        retain_until: Some(kept_until(tool, record, now)),
        ..record.changed(now)
    };
    let detail = "its saga has come to its end";
    Ok(Change::new(kept, "saga_ended", Actor::Gateway(by), detail))
}
