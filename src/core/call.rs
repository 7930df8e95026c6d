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
//! ```
//!
//! Live traffic and recovery enter by this one door. What is not listed is refused by name.
//! A call of a read tool never becomes unknown: it has no effect to be in doubt about.

mod arrive; // a request asks for a call
mod end; // an attempt ended
mod late; // a proof of execution that comes too late
mod meet; // which of the calls that it meets an arrival is
mod rest; // an unknown call comes to rest
mod similar; // a request with another key looks like a call
mod undo; // what a call has done is undone
mod verify; // a person asks whether a result is stable

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use self::arrive::{Arrival, arrive_again, claim};
use self::end::{doubt_anew, end, end_late, end_of_earlier, forget, lose};
pub use self::end::{judge, may_be_retried};
use self::late::contradict;
pub use self::meet::{Met, meet};
use self::rest::{Asked, hindered, probed, reconciled, resolve, take_up, work_on};
use self::similar::resembled;
pub use self::undo::undoes_unknown;
use self::undo::{not_joined, resolve_stuck, saga_ended, skip, to_compensate, undo_ended};
use self::verify::{begin_to_verify, verified};
use super::actor::Actor;
use super::key::Lookup;
use super::outcome::{Evidence, Outcome};
use super::recipe::prints::Prints;
use super::record::{
    Attempt, AttemptId, CallId, Compensation, Entry, InstanceId, Intent, Record, State,
};
use super::record::{Content, FailureKind};
use super::replay::Fresh;
use super::session::{Admission, Brought, Release};
use super::tool::{Effect, Tool};
use super::unknown::{Finding, Hindrance, Resolution};

/// What happens to a call.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request asks for it.
    Arrived {
        intent: Arc<Intent>,
        /// What it is by the recipes of earlier calls.
        prints: Arc<Prints>,
        brought: Brought,
        attempt: AttemptId,
        owner: InstanceId,
    },
    /// An attempt ended, as far as its owner can tell.
    Ended {
        attempt: AttemptId,
        fencing: Option<u64>,
        evidence: Evidence,
        /// What a further attempt would go by; `None` if its owner will make none.
        retry: Option<Retry>,
    },
    /// Nothing has been heard of the call until its lease was over. `by` found it.
    LeaseOver { by: InstanceId },
    /// The process that owned the running attempt is known to have ended. `by` found it.
    OwnerLost { by: InstanceId },
    /// The store has lost its newest writes, and a person accepts that: what is running may have
    /// ended, and what has failed may have run again. `by` is that person's token.
    StoreLost { by: String, reason: String },
    /// A person takes the session's lock away from its run with this fencing token. `by` is that person's token.
    Unlocked {
        by: String,
        reason: String,
        fencing: Option<u64>,
    },
    /// It is time to work on an unknown call. `by` does it; a further attempt would be `attempt`, and `None`
    /// if there must be none, because a person has paused the tool.
    CheckDue {
        by: InstanceId,
        attempt: Option<AttemptId>,
    },
    /// It is time, but the call cannot be worked on now. `by` has found that.
    CheckHindered {
        by: InstanceId,
        hindrance: Hindrance,
    },
    /// An unknown call is not worked on, although its tool has a policy now. `by` has found it.
    CheckMissing { by: InstanceId },
    /// The tool was asked at `asked_at` whether it knows the key of an unknown call. `by` has asked.
    Probed {
        by: InstanceId,
        asked_at: Timestamp,
        finding: Finding,
        /// How long the tool asked to wait.
        retry_after: Option<Duration>,
    },
    /// A person says what became of an unknown call. `by` is that person's token.
    Resolved {
        by: String,
        reason: String,
        resolution: Resolution,
    },
    /// A system behind the tool has what an unknown call would have made. `by` is the reconciliation that has
    /// found it.
    Reconciled { by: String, content: Content },
    /// A person wants the tool to be asked once more, to compare. `by` is that person's token.
    /// `by_person`: what it answers is what a person has said, and not the tool.
    ToVerify { by: String, by_person: bool },
    /// The tool was asked once more.
    Verified { by: String, fresh: Fresh },
    /// It was claimed, and is not sent after all: its saga takes no calls any more, or could not be asked. `by`
    /// has found it.
    NotJoined {
        by: InstanceId,
        attempt: AttemptId,
        kind: FailureKind,
        why: String,
    },
    /// What it has done is to be undone by this call; `None`: its tool declares no compensation. `by` is a
    /// gateway or a token.
    ToCompensate {
        by: String,
        reason: String,
        compensation: Option<Compensation>,
    },
    /// The call that undoes it has come to its end, or never will. `by` has seen to it.
    UndoEnded { by: InstanceId, end: UndoEnd },
    /// A person decides that it is not undone. `by` is that person's token; `compensation` is what there is of the
    /// call that undoes it, which no gateway begins meanwhile.
    Skipped {
        by: String,
        reason: String,
        compensation: Option<Box<Record>>,
    },
    /// Its saga has come to its end, so it need not be kept for it any longer.
    SagaEnded { by: InstanceId },
    /// A request with another key looks like it, and is to get its result. `instead_of` are calls past their window
    /// that hold a name of the request. `by` was asked.
    Resembled {
        intent: Arc<Intent>,
        instead_of: Vec<Record>,
        by: InstanceId,
    },
}

/// How the undoing of a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoEnd {
    Undone,
    /// It cannot be undone without a person; says why.
    Stuck(String),
}

impl Event {
    /// The same, but no further attempt is to be made.
    #[must_use]
    pub fn without_retry(&self) -> Self {
        match self {
            Self::Ended {
                attempt,
                fencing,
                evidence,
                ..
            } => Self::Ended {
                attempt: *attempt,
                fencing: *fencing,
                evidence: evidence.clone(),
                retry: None,
            },
            other => other.clone(),
        }
    }
}

/// The randomness that a further attempt needs.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    pub attempt: AttemptId,
    /// Of 0..1.
    pub jitter: f64,
}

/// What to write, and what to do when it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    pub change: Option<Change>,
    pub action: Action,
}

/// A new version of a record with its entry in the ledger. Both are stored in one atomic step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub record: Record,
    pub entry: Entry,
    /// On which conditions the call begins; the store writes into the record what follows from them.
    pub admission: Option<Admission>,
    /// What the call gives back.
    pub release: Release,
    /// Names that the call takes beside those that it has. Not of a claim, which takes all of them.
    pub takes: Takes,
}

/// Names that a change claims for its call. If another call holds one of them nothing is written, unless each holder
/// is still exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Takes {
    /// The last of the record's names.
    pub names: Vec<Lookup>,
    pub instead_of: Vec<Record>,
}

impl Change {
    /// The record as this change leaves it, if it is what is stored by now: what a store draws itself is
    /// taken from there.
    #[must_use]
    pub fn as_stored(&self, stored: &Record) -> Record {
        let record = self.record.clone();
        match self.admission {
            Some(_) => Record {
                fencing: stored.fencing,
                similar_to: stored.similar_to,
                ..record
            },
            None => record,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Claim the key with the changed record, in place of the finished call that still has it, if
    /// there is one; then dispatch.
    Claim { instead_of: Option<CallId> },
    /// Write the change, then dispatch.
    Run,
    /// Write the change, then ask the tool whether it knows the key.
    Probe,
    /// Write the change, then send the same once more, and compare.
    Verify,
    /// Write the change, wait, then dispatch the record's new attempt.
    Retry { after: Duration },
    /// Write the change: this run is over.
    Finish,
    /// Write the change, and tell a person: what counts as not executed was executed.
    Alarm,
    /// It runs.
    Wait,
    /// Answer with what the record says.
    Answer,
    /// Write the change, by which the call takes further names; then answer with what the record says.
    TakeNames,
    /// Answer that the key stands for something else.
    RefuseReused,
    /// Answer that the key is taken, and that it cannot be said whether for the same.
    RefuseUnclear,
    /// Answer that the key is too old.
    RefuseExpired,
    /// Answer that the key stands for a call of another saga.
    RefuseOtherSaga,
    /// Answer that an earlier call looks the same.
    RefuseSimilar,
    /// Answer that the request lacks something without which the call cannot begin.
    RefuseUnfit(&'static str),
}

/// An event that does not fit the state. Changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    #[error("there is no such call")]
    NoCall,
    /// A zombie: another owner has taken over, or the call is settled.
    #[error("the attempt does not own the call any more")]
    NotOwner,
    #[error("the call's lease is not over")]
    LeaseHeld,
    #[error("the call is not under way")]
    NotRunning,
    /// An ended attempt brought no news.
    #[error("the call's outcome is as unknown as it was")]
    StillUnknown,
    /// Nothing has to be settled.
    #[error("the call's outcome is known")]
    NotUnknown,
    /// Another gateway works on it, or it is not time yet.
    #[error("it is not time to work on the call")]
    NotDue,
    /// There is no result to compare with.
    #[error("the call has no result")]
    NoResult,
    /// It is undone already, or being undone; or the tool only reads.
    #[error("there is nothing to undo")]
    NothingToUndo,
    /// It is kept for as long as any other.
    #[error("the call is not kept for its saga")]
    NotKept,
    /// To send it once more may have an effect; says why.
    #[error("{0}")]
    ReplayUnsafe(&'static str),
    /// Its first request may still reach the tool.
    #[error("the call may still be executed until its lease is over")]
    MayStillRun,
    /// It may yet be undone.
    #[error("the call that undoes it may still run")]
    BeingUndone,
}

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
    match (record, event) {
        (
            None,
            Event::Arrived {
                intent,
                prints,
                brought,
                attempt,
                owner,
            },
        ) => {
            let arrival = Arrival {
                intent,
                prints,
                brought: *brought,
                attempt: *attempt,
                owner: *owner,
            };
            Ok(claim(tool, &arrival, None, now))
        }
        (
            None,
            Event::Ended { .. }
            | Event::LeaseOver { .. }
            | Event::OwnerLost { .. }
            | Event::StoreLost { .. }
            | Event::Unlocked { .. }
            | Event::CheckDue { .. }
            | Event::CheckHindered { .. }
            | Event::CheckMissing { .. }
            | Event::Probed { .. }
            | Event::Resolved { .. }
            | Event::Reconciled { .. }
            | Event::ToVerify { .. }
            | Event::Verified { .. }
            | Event::NotJoined { .. }
            | Event::ToCompensate { .. }
            | Event::UndoEnded { .. }
            | Event::Skipped { .. }
            | Event::SagaEnded { .. }
            | Event::Resembled { .. },
        ) => Err(Illegal::NoCall),
        (
            Some(record),
            Event::Arrived {
                intent,
                prints,
                brought,
                attempt,
                owner,
            },
        ) => {
            let arrival = Arrival {
                intent,
                prints,
                brought: *brought,
                attempt: *attempt,
                owner: *owner,
            };
            Ok(arrive_again(tool, record, &arrival, now))
        }
        (
            Some(record),
            Event::Ended {
                attempt,
                fencing,
                evidence,
                retry,
            },
        ) => {
            let next = if record.fencing != *fencing {
                Err(Illegal::NotOwner)
            } else if record.attempt.id != *attempt {
                end_of_earlier(tool, record, *attempt, evidence, now)
            } else {
                match record.state {
                    State::Running => Ok(end(tool, record, evidence, *retry, now)),
                    State::Unknown(_) => end_late(tool, record, evidence, now),
                    _ => Err(Illegal::NotOwner),
                }
            };
            next.or_else(|refused| contradict(tool, record, *attempt, evidence, now).ok_or(refused))
        }
        (Some(record), Event::LeaseOver { by }) => match record.state {
            State::Running if now < record.attempt.lease_until => Err(Illegal::LeaseHeld),
            State::Running => Ok(lose(
                tool,
                record,
                Occasion {
                    event: "lease_over",
                    by: gateway(*by),
                },
                "its lease was over",
                now,
            )),
            _ => Err(Illegal::NotRunning),
        },
        (Some(record), Event::OwnerLost { by }) => match record.state {
            State::Running => Ok(lose(
                tool,
                record,
                Occasion {
                    event: "owner_lost",
                    by: gateway(*by),
                },
                "its gateway had ended",
                now,
            )),
            _ => Err(Illegal::NotRunning),
        },
        (Some(record), Event::StoreLost { by, reason }) => match (&record.state, tool.effect) {
            // Had it run again while its key was remembered, that run would be forgotten by now, too.
            (State::Failed(_), _)
                if record.expires_at.is_some_and(|expires_at| {
                    after(
                        expires_at,
                        tool.lease() + tool.window(record.intent.key_source),
                    ) <= now
                }) =>
            {
                Err(Illegal::NotRunning)
            }
            (State::Running, _) | (State::Failed(_), Effect::Write) => {
                let occasion = Occasion {
                    event: "store_lost",
                    by: Actor::Token(by).to_string(),
                };
                Ok(forget(
                    tool,
                    record,
                    occasion,
                    &format!("the store has lost data ({reason})"),
                    now,
                ))
            }
            (State::Unknown(_), _) => {
                let occasion = Occasion {
                    event: "store_lost",
                    by: Actor::Token(by).to_string(),
                };
                Ok(doubt_anew(
                    tool,
                    record,
                    occasion,
                    &format!("the store has lost data ({reason})"),
                    now,
                ))
            }
            _ => Err(Illegal::NotRunning),
        },
        (
            Some(record),
            Event::Unlocked {
                by,
                reason,
                fencing,
            },
        ) => match record.state {
            _ if record.fencing != *fencing => Err(Illegal::NotOwner),
            State::Running | State::Unknown(_) => Ok(unlock(tool, record, by, reason, now)),
            _ => Err(Illegal::NotRunning),
        },
        (Some(record), Event::CheckDue { by, attempt }) => match record.state {
            State::Unknown(_) => work_on(tool, record, *by, *attempt, now),
            _ => Err(Illegal::NotUnknown),
        },
        (Some(record), Event::CheckHindered { by, hindrance }) => match record.state {
            State::Unknown(_) => hindered(tool, record, *by, *hindrance, now),
            _ => Err(Illegal::NotUnknown),
        },
        (Some(record), Event::CheckMissing { by }) => match record.state {
            State::Unknown(_) => take_up(tool, record, *by, now),
            _ => Err(Illegal::NotUnknown),
        },
        (
            Some(record),
            Event::Probed {
                by,
                asked_at,
                finding,
                retry_after,
            },
        ) => match record.state {
            State::Unknown(_) => {
                // It cannot have been asked later than now.
                let asked = Asked {
                    by: *by,
                    at: (*asked_at).min(now),
                    retry_after: *retry_after,
                };
                Ok(probed(tool, record, &asked, finding, now))
            }
            _ => Err(Illegal::NotUnknown),
        },
        (
            Some(record),
            Event::Resolved {
                by,
                reason,
                resolution,
            },
        ) => match record.state {
            State::Unknown(_) => resolve(tool, record, by, reason, resolution, now),
            State::Stuck(_) => Ok(resolve_stuck(tool, record, by, reason, resolution, now)),
            _ => Err(Illegal::NotUnknown),
        },
        (Some(record), Event::Reconciled { by, content }) => match record.state {
            State::Unknown(_) => Ok(reconciled(tool, record, by, content, now)),
            _ => Err(Illegal::NotUnknown),
        },
        (Some(record), Event::ToVerify { by, by_person }) => {
            begin_to_verify(tool, record, by, *by_person, now)
        }
        (Some(record), Event::Verified { by, fresh }) => match record.state {
            State::Succeeded(_) => Ok(verified(record, by, fresh, now)),
            _ => Err(Illegal::NoResult),
        },
        (
            Some(record),
            Event::NotJoined {
                by,
                attempt,
                kind,
                why,
            },
        ) => match record.state {
            State::Running if record.attempt.id == *attempt => {
                Ok(not_joined(tool, record, *by, *kind, why, now))
            }
            _ => Err(Illegal::NotOwner),
        },
        (
            Some(record),
            Event::ToCompensate {
                by,
                reason,
                compensation,
            },
        ) => to_compensate(tool, record, by, reason, compensation.as_ref(), now),
        (Some(record), Event::UndoEnded { by, end }) => match record.state {
            State::Compensating(_) => Ok(undo_ended(tool, record, *by, end, now)),
            _ => Err(Illegal::NothingToUndo),
        },
        (
            Some(record),
            Event::Skipped {
                by,
                reason,
                compensation,
            },
        ) => skip(tool, record, by, reason, compensation.as_deref(), now),
        (Some(record), Event::SagaEnded { by }) => saga_ended(tool, record, *by, now),
        (
            Some(record),
            Event::Resembled {
                intent,
                instead_of,
                by,
            },
        ) => Ok(resembled(tool, record, intent, instead_of, *by, now)),
    }
}

/// The session goes on without it; the attempt that the call makes stays as it is, and is its last.
fn unlock(tool: &Tool, record: &Record, by: &str, reason: &str, now: Timestamp) -> Next {
    // A further attempt would run beside the session's next call.
    let attempt = Attempt {
        number: tool.retry.attempts,
        ..record.attempt.clone()
    };
    let unlocked = Record {
        version: record.version + 1,
        updated_at: now,
        attempt,
        ..record.clone()
    };
    let detail = format!("the session's lock was taken away from it ({reason})");
    let entry = Entry {
        at: now,
        event: "unlocked".into(),
        attempt: Some(record.attempt.id),
        outcome: None,
        by: Actor::Token(by).to_string(),
        detail,
    };
    let release = Release {
        lock_from: Some(now),
        ..Release::default()
    };
    let change = Change {
        record: unlocked,
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

/// What an entry is about, and whose doing it was.
struct Occasion {
    event: &'static str,
    by: String,
}

fn ended(
    occasion: Occasion,
    record: &Record,
    outcome: &Outcome,
    detail: String,
    now: Timestamp,
) -> Entry {
    Entry {
        at: now,
        event: occasion.event.into(),
        attempt: Some(record.attempt.id),
        outcome: Some(outcome.as_str().into()),
        by: occasion.by,
        detail,
    }
}

/// A gateway as an entry names it: its log says the same at its start.
fn gateway(instance: InstanceId) -> String {
    Actor::Gateway(instance).to_string()
}

fn after(time: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Whole milliseconds from one time to another; 0 if the clock was set back in between.
pub fn elapsed_ms(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.duration_since(from).as_millis()).unwrap_or(0)
}

#[cfg(test)]
#[path = "call_tests.rs"]
pub(crate) mod tests;
