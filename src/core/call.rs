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
//!  running ── ambiguous outcome / lease over / owner lost ──► unknown ── late answer, probe, person ──► succeeded | failed
//!                                                               └── retry, if the tool deduplicates ──► running
//!  succeeded, unknown ── to be undone ──► compensating ──► compensated
//!                                           ▲   └──► stuck ── a person ──► compensating | compensated | succeeded
//!  failed ── to be undone ──► compensated   (it never ran, and never will)
//!  running, failed, unknown ── the store has lost data ──► unknown, for a lease that begins anew
//!  (absent) ── its effect is adopted ──► succeeded
//! ```
//!
//! Live traffic and recovery enter by this one door. What is not listed is refused by name.
//! A call of a read tool never becomes unknown: it has no effect to be in doubt about.

mod adopt; // an effect that was forgotten is written back as a call
mod arrive; // a request asks for a call
mod change; // what an event leads to
mod end; // an attempt ended
mod event; // what may happen to a call
mod late; // an answer that comes too late
mod loss; // a call whose owner, store or lock is lost
mod meet; // which of the calls that it meets an arrival is
mod rest; // an unknown call comes to rest
mod similar; // a request with another key looks like a call
mod undo; // what a call has done is undone
mod verify; // a person asks whether a result is stable

use jiff::Timestamp;

pub use self::adopt::tenant_of;
pub use self::change::{Action, Change, Illegal, Next, Takes};
pub use self::end::{judge, may_be_retried};
pub use self::event::{Adoption, Arrival, Event, Retry, UndoEnd};
pub use self::meet::{Met, meet};
pub use self::undo::undoes_unknown;
use super::actor::Actor;
use super::record::{Record, State};
use super::tool::Tool;

/// Decides what an event does to a call.
///
/// # Errors
/// The event does not fit the state; nothing changes.
pub fn next(
    tool: &Tool,
    record: Option<&Record>,
    event: &Event,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let Some(record) = record else {
        return match event {
            Event::Arrived(arrival) => Ok(arrive::claim(tool, arrival, None, now)),
            Event::Adopted(adoption) => Ok(adopt::claim(tool, adoption, now)),
            _ => Err(Illegal::NoCall),
        };
    };
    let change = match (event, &record.state) {
        // Some of these write nothing, or go on after they have written.
        (Event::Arrived(arrival), _) => {
            return Ok(arrive::arrive_again(tool, record, arrival, now));
        }
        (Event::Adopted(adoption), _) => return adopt::adopted_before(record, adoption),
        (
            Event::Resembled {
                intent,
                instead_of,
                by,
            },
            _,
        ) => {
            return Ok(similar::resembled(
                tool, record, intent, instead_of, *by, now,
            ));
        }
        (
            Event::Ended {
                attempt,
                fencing,
                evidence,
                retry,
            },
            State::Running,
        ) if record.fencing == *fencing && record.attempt.id == *attempt => {
            return Ok(end::end(tool, record, evidence, *retry, now));
        }
        (
            Event::Ended {
                attempt,
                fencing,
                evidence,
                ..
            },
            _,
        ) => return late::ended(tool, record, *attempt, *fencing, evidence, now),
        (Event::CheckDue { by, attempt }, State::Unknown(_)) => {
            return rest::work_on(tool, record, *by, *attempt, now);
        }
        (Event::ProbeAsked { by, reason }, State::Unknown(_)) => {
            return rest::ask_now(tool, record, by, reason, now);
        }
        (Event::ToVerify { by, by_person }, _) => {
            return verify::begin_to_verify(tool, record, by, *by_person, now);
        }

        (Event::LeaseOver { .. }, State::Running) if now < record.attempt.lease_until => {
            return Err(Illegal::LeaseHeld);
        }
        (Event::LeaseOver { by }, State::Running) => loss::lose(
            tool,
            record,
            "lease_over",
            Actor::Gateway(*by),
            "its lease was over",
            now,
        ),
        (Event::OwnerLost { by }, State::Running) => loss::lose(
            tool,
            record,
            "owner_lost",
            Actor::Gateway(*by),
            "its gateway had ended",
            now,
        ),
        (
            Event::StoreLost {
                by,
                reason,
                whole_until,
            },
            _,
        ) => loss::store_lost(tool, record, by, reason, *whole_until, now)?,
        (Event::Unlocked { fencing, .. }, _) if record.fencing != *fencing => {
            return Err(Illegal::NotOwner);
        }
        (Event::Unlocked { by, reason, .. }, State::Running | State::Unknown(_)) => {
            loss::unlock(tool, record, by, reason, now)
        }
        (Event::LeaseOver { .. } | Event::OwnerLost { .. } | Event::Unlocked { .. }, _) => {
            return Err(Illegal::NotRunning);
        }

        (Event::CheckPostponed { by, blocker }, State::Unknown(_)) => {
            rest::postpone(tool, record, *by, *blocker, now)?
        }
        (Event::CheckMissing { by }, State::Unknown(_)) => rest::take_up(tool, record, *by, now)?,
        (
            Event::Probed {
                by,
                asked_at,
                finding,
                retry_after,
            },
            State::Unknown(_),
        ) => {
            // It cannot have been asked later than now.
            let asked_at = (*asked_at).min(now);
            rest::probed(tool, record, *by, asked_at, finding, *retry_after, now)
        }
        (
            Event::Resolved {
                by,
                reason,
                resolution,
            },
            State::Unknown(_),
        ) => rest::resolve(tool, record, by, reason, resolution, now)?,
        (
            Event::Resolved {
                by,
                reason,
                resolution,
            },
            State::Stuck(_),
        ) => undo::resolve_stuck(tool, record, by, reason, resolution, now),
        (Event::Reconciled { by, content }, State::Unknown(_)) => {
            rest::reconciled(tool, record, by, content, now)
        }
        (
            Event::CheckDue { .. }
            | Event::CheckPostponed { .. }
            | Event::CheckMissing { .. }
            | Event::ProbeAsked { .. }
            | Event::Probed { .. }
            | Event::Resolved { .. }
            | Event::Reconciled { .. },
            _,
        ) => return Err(Illegal::NotUnknown),

        (Event::Verified { by, fresh }, State::Succeeded(_)) => {
            verify::verified(record, by, fresh, now)
        }
        (Event::Verified { .. }, _) => return Err(Illegal::NoResult),

        (
            Event::NotJoined {
                by,
                attempt,
                kind,
                why,
            },
            State::Running,
        ) if record.attempt.id == *attempt => undo::not_joined(tool, record, *by, *kind, why, now),
        (Event::NotJoined { .. }, _) => return Err(Illegal::NotOwner),
        (Event::EffectToUndo { by, reason }, _) => {
            adopt::effect_to_undo(tool, record, by, reason, now)?
        }
        (
            Event::ToCompensate {
                by,
                reason,
                compensation,
            },
            _,
        ) => undo::to_compensate(tool, record, by, reason, compensation.as_ref(), now)?,
        (Event::UndoEnded { by, end }, State::Compensating(_)) => {
            undo::undo_ended(tool, record, *by, end, now)
        }
        (Event::UndoEnded { .. }, _) => return Err(Illegal::NothingToUndo),
        (
            Event::Skipped {
                by,
                reason,
                compensation,
            },
            _,
        ) => undo::skip(tool, record, by, reason, compensation.as_deref(), now)?,
        (Event::SagaEnded { by }, _) => undo::saga_ended(tool, record, *by, now)?,
    };
    Ok(Next::finish(change))
}

#[cfg(test)]
#[path = "call_tests.rs"]
pub(crate) mod tests;
