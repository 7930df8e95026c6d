//! The states of a call, and the one function that moves it: [`next`].
//!
//! ```text
//!             claim            executed
//!  (absent) ─────────► running ─────────► succeeded
//!                        │  ▲
//!           not_executed │  │ retry, or the same key again
//!                        ▼  │
//!                      failed
//!
//!  running ── ambiguous outcome / lease over / owner lost ──► unknown ── late answer, probe, operator ──► succeeded |
//! failed
//!                                                               └── retry, if the tool deduplicates ──► running
//!  succeeded, unknown ── to be undone ──► compensating ──► compensated
//!                                           ▲   └──► stuck ── an operator ──► compensating | compensated | succeeded
//!  failed ── to be undone ──► compensated   (it never ran, and never will)
//!  running, failed, unknown ── the store has lost data ──► unknown, for a lease that begins anew
//!  (absent) ── its effect is adopted ──► succeeded
//!  (absent), failed ── its tool asks for approval ──► proposed ──► approved ──► running; see `approve`
//! ```
//!
//! Live traffic and recovery both change calls here only. An event that does not fit is refused by name.
//! A call of a read tool never becomes unknown: it has no effect to be in doubt about.

mod adopt; // an effect without a call becomes a call
mod approve; // a call waits for approval, and begins by it
mod arrive; // a request asks for a call
mod change; // the result of an event
mod end; // an attempt ended, in time or late
mod erase; // arguments, result and names of an ended call are erased
mod event; // the events
mod expire; // how long an ended call is stored, and its arguments and result
mod loss; // a call whose owner, store or lock is lost
mod read; // a request to a tool that reads
mod remote; // an MCP server works on a call as a task of its own
mod resolve; // which stored call an arrival repeats
mod rest; // an unknown call is checked, settled or given up
mod similar; // a request with another key looks like a call
mod task; // the task of an attempt is written down
mod undo; // a call is undone
mod verify; // a verified replay

pub use self::adopt::tenant_of;
use self::change::Call;
pub use self::change::{Action, Change, Illegal, Next, Now, Takes};
pub use self::end::{judge, may_be_retried};
pub use self::event::{
    Adoption, Approved, Arrival, Begun, Declined, Ended, Event, Probed, Resembled, Retry, UndoEnd,
};
pub use self::read::in_doubt;
pub use self::resolve::{Resolved, Seeking, resolve};
pub use self::undo::undoes_unknown;
use crate::actor::Actor;
use crate::record::{Record, State};
use crate::tool::Tool;

/// Decides what an event does to a call.
///
/// # Errors
/// The event does not fit the state; nothing changes.
pub fn next(
    tool: &Tool,
    record: Option<&Record>,
    event: &Event,
    now: impl Into<Now>,
) -> Result<Next, Illegal> {
    let mut next = decide(tool, record, event, now.into())?;
    if let Some(change) = &mut next.change {
        erase::leave_out_result(&mut change.record);
    }
    Ok(next)
}

fn decide(tool: &Tool, record: Option<&Record>, event: &Event, time: Now) -> Result<Next, Illegal> {
    let (now, dedup_now) = (time.at, time.dedup_now());
    let Some(record) = record else {
        return match event {
            Event::Arrived(arrival) => Ok(arrive::claim(tool, arrival, None, None, now)),
            Event::Asked { arrival, ask } => Ok(arrive::claim(tool, arrival, Some(ask), None, now)),
            Event::Adopted(adoption) => Ok(adopt::claim(tool, adoption, now, dedup_now)),
            _ => Err(Illegal::NoCall),
        };
    };
    let call = Call {
        tool,
        record,
        now,
        dedup_now,
    };
    let change = match (event, &record.state) {
        // These events write nothing in some states, or lead to more than the end of a run.
        (Event::Arrived(arrival), _) => return Ok(arrive::arrive_again(call, arrival)),
        (Event::Asked { arrival, ask }, _) => {
            return Ok(arrive::arrive_as(call, arrival, Some(ask)));
        }
        (Event::Approved(approved), _) => return approve::approve(call, approved),
        (Event::Begun(begun), _) => return approve::begin(call, begun),
        (Event::Declined(declined), _) => approve::decline(call, declined)?,
        (Event::Withdrawn(by), _) => approve::withdraw(call, by)?,
        (Event::ProposalDue { by }, _) => approve::due(call, *by)?,
        (Event::Outdated { by }, _) => approve::outdated(call, *by)?,
        (Event::Voided { by, similar }, _) => approve::void(call, *by, *similar)?,
        (Event::Adopted(adoption), _) => return adopt::adopted_before(record, adoption),
        (Event::Resembled(request), _) => return Ok(similar::resembled(call, request)),
        (Event::Ended(ended), State::Running)
            if record.fencing == ended.fencing && record.attempt.id == ended.attempt =>
        {
            return Ok(end::end(call, ended));
        }
        (Event::Ended(ended), _) => return end::end_late(call, ended),
        (Event::CheckDue { by, attempt }, State::Unknown(_)) => {
            return rest::begin_check(call, *by, *attempt);
        }
        (Event::ProbeAsked(by), State::Unknown(_)) => return rest::ask_now(call, by),
        (Event::TaskGiven { attempt, id }, State::Running | State::Unknown(_)) => {
            return remote::given(call, *attempt, id);
        }
        (Event::CancelAsked(by), State::Running | State::Unknown(_)) => {
            return Ok(remote::cancel(call, by));
        }
        (Event::TaskGiven { .. } | Event::CancelAsked(_), _) => return Err(Illegal::NotRunning),
        (Event::ToVerify { by, by_operator }, _) => {
            return verify::begin_to_verify(call, by, *by_operator);
        }

        (Event::LeaseOver { .. }, State::Running) if call.may_still_run() => {
            return Err(Illegal::LeaseHeld);
        }
        (Event::LeaseOver { by }, State::Running) => loss::lose(
            call,
            "lease_over",
            Actor::Gateway(*by),
            "its lease was over",
        ),
        (Event::OwnerLost { by }, State::Running) => {
            let why = "its gateway had ended";
            loss::lose(call, "owner_lost", Actor::Gateway(*by), why)
        }
        (Event::StoreLost { by, whole_until }, _) => loss::store_lost(call, by, *whole_until)?,
        (Event::Unlocked { fencing, .. }, _) if record.fencing != *fencing => {
            return Err(Illegal::NotOwner);
        }
        (Event::Unlocked { by, .. }, State::Running | State::Unknown(_)) => loss::unlock(call, by),
        (Event::LeaseOver { .. } | Event::OwnerLost { .. } | Event::Unlocked { .. }, _) => {
            return Err(Illegal::NotRunning);
        }

        (Event::CheckPostponed { by, blocker }, State::Unknown(_)) => {
            rest::postpone(call, *by, *blocker)?
        }
        (Event::CheckMissing { by }, State::Unknown(_)) => rest::take_up(call, *by)?,
        (Event::Probed(probed), State::Unknown(_)) => rest::probed(call, probed),
        (Event::TaskSeen { by, attempt, seen }, State::Unknown(_)) => {
            remote::seen(call, *by, *attempt, seen)?
        }
        (Event::Resolved { by, resolution }, State::Unknown(_)) => {
            rest::resolve(call, by, resolution)?
        }
        (Event::Resolved { by, resolution }, State::Stuck(_)) => {
            undo::resolve_stuck(call, by, resolution)
        }
        (Event::Reconciled { by, content }, State::Unknown(_)) => {
            rest::reconciled(call, by, content)
        }
        (
            Event::CheckDue { .. }
            | Event::CheckPostponed { .. }
            | Event::CheckMissing { .. }
            | Event::ProbeAsked(_)
            | Event::Probed(_)
            | Event::TaskSeen { .. }
            | Event::Resolved { .. }
            | Event::Reconciled { .. },
            _,
        ) => return Err(Illegal::NotUnknown),

        (Event::Verified { by, fresh }, State::Succeeded(_)) => verify::verified(call, by, fresh),
        (Event::Verified { .. }, _) => return Err(Illegal::NoResult),

        (Event::NotJoined { by, attempt, why }, State::Running)
            if record.attempt.id == *attempt =>
        {
            undo::not_joined(call, *by, why)
        }
        (Event::NotJoined { by, attempt, why }, State::Proposed)
            if record.attempt.id == *attempt =>
        {
            undo::not_joined(call, *by, why)
        }
        (Event::NotJoined { .. }, _) => return Err(Illegal::NotOwner),
        (Event::EffectToUndo(by), _) => adopt::effect_to_undo(call, by)?,
        (Event::ToCompensate { by, compensation }, _) => {
            undo::to_compensate(call, by, compensation.as_ref())?
        }
        (Event::UndoEnded { by, end }, State::Compensating(_)) => undo::undo_ended(call, *by, end),
        (Event::UndoEnded { .. }, _) => return Err(Illegal::NothingToUndo),
        (Event::Skipped { by, compensation }, _) => undo::skip(call, by, compensation.as_deref())?,
        (Event::SagaEnded { by }, _) => undo::saga_ended(call, *by)?,
        (Event::Erased { by }, _) => erase::erase(call, by)?,
        (Event::BodiesOver { by }, _) => expire::delete_bodies(call, *by)?,
        (Event::RetentionChanged { by }, _) => expire::store_until(call, by)?,
    };
    Ok(Next::finish(change))
}

#[cfg(test)]
mod tests;
