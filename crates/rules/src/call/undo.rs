//! A call is undone, or surely never ran.
//!
//! `saga` decides the order and the compensations.

use super::change::{Call, Change, Illegal};
use super::end::{finish, remembered_until, stored_unless_in_saga, stored_until};
use super::event::UndoEnd;
use crate::actor::{Actor, By};
use crate::compensation;
use crate::mcp::elicitation;
use crate::outcome::Outcome;
use crate::record::{Check, Compensation, Content, Failure, InstanceId, Record, State, Undo};
use crate::tool::{Effect, Tool};
use crate::unknown::Resolution;

/// A claimed call is not sent, because of its saga.
pub(super) fn not_joined(call: Call<'_>, by: InstanceId, why: &Failure) -> Change {
    let outcome = Outcome::NotExecuted(why.clone());
    let by = Actor::Gateway(by);
    let mut change = finish(call, "not_joined", by, &outcome, &why.why);
    // The saga may not revisit this call, so retention starts now.
    change.record.retain_until = Some(stored_until(call));
    change
}

/// Marks a call to be undone.
///
/// The mark is written before anything is sent: from then on nothing else happens to the call, and
/// its compensation is known.
pub(super) fn to_compensate(
    call: Call<'_>,
    by: &By,
    compensation: Option<&Compensation>,
) -> Result<Change, Illegal> {
    let Call { tool, record, .. } = call;
    if tool.effect == Effect::Read {
        return Err(Illegal::NothingToUndo);
    }
    let reason = &by.reason;
    let content = match &record.state {
        State::Running => return Err(Illegal::MayStillRun),
        State::Compensating(_) | State::Compensated(_) => return Err(Illegal::NothingToUndo),
        _ if has_no_effect(tool, record) => {
            let detail = format!("it surely never ran, so nothing is sent ({reason})");
            let waited = record.state.waits_for_approval();
            let undone = Record {
                state: State::Compensated(None),
                undo: Some(Undo::default()),
                check: None,
                expires_at: remembered_until(call),
                retain_until: match waited {
                    true => stored_unless_in_saga(call),
                    false => record.retain_until,
                },
                ..call.changed()
            };
            let mut change = Change::new(undone, "compensation_empty", &by.actor, detail);
            // A call that surely had no effect is not a near-duplicate of a later one.
            change.release.similar = record.intent.similar.filter(|_| waited);
            return Ok(change);
        }
        // The call's request may still reach the tool, after the compensation.
        State::Unknown(_) if call.may_still_run() => return Err(Illegal::MayStillRun),
        State::Unknown(_) if !undoes_unknown(tool) => return Err(Illegal::StillUnknown),
        State::Unknown(_) | State::Failed(_) | State::Proposed | State::Approved => None,
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
        ..call.changed()
    };
    Ok(Change::new(undone, "compensating", &by.actor, detail))
}

/// Whether the call surely has no effect: it never ran, or its server only asked a question.
fn has_no_effect(tool: &Tool, record: &Record) -> bool {
    let is_unsent = matches!(
        record.state,
        State::Failed(_) | State::Proposed | State::Approved
    );
    is_unsent || tool.may_ask() && elicitation::asked_by(record).is_some()
}

/// Whether a tool's calls are undone even if their outcome is unknown.
pub fn undoes_unknown(tool: &Tool) -> bool {
    matches!(&tool.compensation, compensation::Policy::By(template) if template.undoes_unknown)
}

/// A compensation has ended.
pub(super) fn undo_ended(call: Call<'_>, by: InstanceId, end: &UndoEnd) -> Change {
    let content = call.record.state.content().cloned();
    let by = Actor::Gateway(by);
    match end {
        UndoEnd::Undone => {
            let undone = at_rest(call, State::Compensated(content));
            Change::new(undone, "compensated", by, "what it did is undone")
        }
        UndoEnd::Stuck(why) => {
            let mut stuck = call.changed();
            stuck.state = State::Stuck(content);
            Change::new(stuck, "stuck", by, why)
        }
    }
}

/// The record of a call that is undone, or is not to be undone any more.
fn at_rest(call: Call<'_>, state: State) -> Record {
    Record {
        state,
        expires_at: remembered_until(call),
        retain_until: stored_unless_in_saga(call),
        ..call.changed()
    }
}

/// An operator settles a stuck call: its effect stands, or is gone.
pub(super) fn resolve_stuck(call: Call<'_>, by: &By, resolution: &Resolution) -> Change {
    let known = call.record.state.content().cloned();
    let (resolved, what) = match resolution {
        Resolution::Failed => (at_rest(call, State::Compensated(known)), "it is undone"),
        Resolution::Succeeded(content) => {
            // Null says nothing, so the tool's own result stays.
            let said = match content {
                Content::Stored(json) if json.trim_ascii() == b"null" => None,
                content => Some(content.clone()),
            };
            let content = said.or(known).unwrap_or_else(|| content.clone());
            let mut stands = at_rest(call, State::Succeeded(content));
            stands.undo.get_or_insert_default().skipped = true;
            (stands, "its effect stands")
        }
    };
    let detail = format!("an operator says that {what} ({})", by.reason);
    Change::new(resolved, "resolved", &by.actor, detail)
}

/// An operator decides that the call is not undone.
pub(super) fn skip(
    call: Call<'_>,
    by: &By,
    compensation: Option<&Record>,
) -> Result<Change, Illegal> {
    let Call { record, now, .. } = call;
    if let Some(made) = compensation {
        match (&made.state, &record.state) {
            (State::Running, _) => return Err(Illegal::BeingUndone),
            (State::Unknown(_), _) if now < made.attempt.lease_until => {
                return Err(Illegal::BeingUndone);
            }
            // The call is undone; only its record does not say so yet.
            (State::Succeeded(_), State::Compensating(_)) => return Err(Illegal::NothingToUndo),
            _ => {}
        }
    }
    let mut skipped = match (&record.state, record.state.content()) {
        (State::Running, _) => return Err(Illegal::MayStillRun),
        (State::Unknown(_), _) if call.may_still_run() => return Err(Illegal::MayStillRun),
        (State::Failed(_) | State::Compensated(_) | State::Proposed | State::Approved, _) => {
            return Err(Illegal::NothingToUndo);
        }
        (_, Some(content)) => at_rest(call, State::Succeeded(content.clone())),
        // The checks of an unknown call go on.
        (State::Unknown(_), None) => call.changed(),
        // Its outcome was never known, and no check is planned any more.
        (_, None) => Record {
            state: State::Unknown(
                "its outcome is not known, and an operator has decided not to undo it".into(),
            ),
            check: Some(Check {
                since: now,
                at: None,
                number: 0,
            }),
            ..call.changed()
        },
    };
    skipped.undo.get_or_insert_default().skipped = true;
    let detail = format!("it is not undone ({})", by.reason);
    Ok(Change::new(skipped, "skipped", &by.actor, detail))
}

/// The call's saga has ended.
pub(super) fn saga_ended(call: Call<'_>, by: InstanceId) -> Result<Change, Illegal> {
    let is_settled = match call.record.state {
        State::Succeeded(_) | State::Failed(_) | State::Compensated(_) => true,
        State::Running
        | State::Unknown(_)
        | State::Compensating(_)
        | State::Stuck(_)
        | State::Proposed
        | State::Approved => false,
    };
    if !is_settled || call.record.retain_until.is_some() {
        return Err(Illegal::NotStored);
    }
    let mut ended = call.changed();
    ended.retain_until = Some(stored_until(call));
    let detail = "its saga has come to its end";
    Ok(Change::new(ended, "saga_ended", Actor::Gateway(by), detail))
}
