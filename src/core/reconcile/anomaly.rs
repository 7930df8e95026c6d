//! An anomaly as a stored case, and its states.
//!
//! Each is a document, and gateways compete for it like for any other [`Work`].

mod case; // as it is kept
mod listed; // as a report lists it
mod person; // what persons ask for

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

pub use self::case::{Case, Terms, Undoing};
pub use self::listed::{Act, Acted, Action, Listed, MAX_SHOWN, Request, Showing, State};
use self::person::{Verdict, verdict};
use super::Kind;
use crate::core::record::{CallId, Record, State as CallState};
use crate::core::time::after;
use crate::core::tool::{Dedup, Tool};
use crate::core::work::{self, Blocked, Blocker, Due, Work};

/// How many tries to undo, and the waits between them.
const TRIES: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// An event of a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A run has found the anomaly again.
    ///
    /// `again` is the case as it would be made now. `by_person`: an operator asked for that run. Here and below `is_lost`:
    /// the call that it was [adopted as](Case::adopted_as) is not in the ledger any more.
    Found {
        again: Box<Case>,
        by_person: bool,
        is_lost: bool,
    },
    /// A person asks for an act.
    Asked { acted: Acted, is_lost: bool },
    /// A gateway begins to work on it. `undoing`: the compensation, if it can be decided now.
    Taken {
        until: Timestamp,
        undoing: Option<Undoing>,
    },
    /// The gateway that worked on it has ended, and no other works on it.
    Freed,
    /// The work on it ended. `jitter` is random, of 0..1.
    Ended {
        end: Result<End, Blocked>,
        jitter: f64,
    },
}

/// How the work on a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Done,
    /// The configuration does not ask for the act any more.
    Unwanted,
    /// The effect is a call of the ledger now.
    Adopted(CallId),
    /// Another call has its key, so that it was not adopted.
    Held {
        call_id: CallId,
        holder: Holder,
    },
}

/// What the call that has the key of an effect says of that effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// It has failed: it is not its effect.
    Failed,
    /// It may have had an effect of its own: this one is most likely one too many.
    HasRun,
    /// Its tool executes a key once: it may have been told of just this effect.
    Deduplicated,
    /// It was adopted from another effect: this one is a second effect of one intent, or that of another intent.
    Adopted,
}

impl End {
    /// The end of an adoption whose key this call has.
    pub fn held_by(tool: &Tool, holder: &Record) -> Self {
        Self::Held {
            call_id: holder.intent.call_id,
            holder: match holder.state {
                _ if holder.is_adopted() => Holder::Adopted,
                CallState::Failed(_) => Holder::Failed,
                _ if tool.dedup == Dedup::Key => Holder::Deduplicated,
                _ => Holder::HasRun,
            },
        }
    }
}

/// An event that does not fit the state. Changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Illegal {
    /// The case stays as it is.
    Kept,
    NotDue,
    /// Something else is done, or being done; says what.
    Contrary(String),
}

impl From<work::NotDue> for Illegal {
    fn from(_: work::NotDue) -> Self {
        Self::NotDue
    }
}

/// Decides what an event does to a case.
///
/// `retention`: how long it is worked on, and then kept.
///
/// # Errors
/// The event does not fit the state; nothing changes.
pub fn next(
    case: &Case,
    event: &Event,
    retention: SignedDuration,
    now: Timestamp,
) -> Result<Case, Illegal> {
    let changed = Case {
        version: case.version + 1,
        ..case.clone()
    };
    let policy = work::Policy {
        // A webhook may be down for long.
        tries: (case.listed.action != Act::Webhook).then_some(TRIES),
        waits: None,
        base: FIRST_PAUSE,
        max: LONGEST_PAUSE,
        postponed_by: None,
    };
    Ok(match event {
        Event::Found {
            again,
            by_person,
            is_lost,
        } if is_reopened(case, &again.listed, *by_person, *is_lost) => {
            let is_open = again.state == State::Open;
            Case {
                // What was decided on stays: it may have been begun.
                undoing: case.undoing.clone(),
                decides: case.decides,
                found_at: now,
                work: Work {
                    due: if is_open { Due::At(now) } else { Due::Never },
                    ..Work::due_at(now)
                },
                version: changed.version,
                created_at: case.created_at,
                ..(**again).clone()
            }
        }
        Event::Found {
            again, by_person, ..
        } => refreshed(case, again, *by_person, now).ok_or(Illegal::Kept)?,
        Event::Asked { acted, is_lost } => match verdict(case, acted.act, *is_lost) {
            Verdict::Stands => return Err(Illegal::Kept),
            Verdict::Refused(why) => return Err(Illegal::Contrary(why)),
            Verdict::Do(act) => asked(changed, act, acted, retention, now),
        },
        Event::Taken { until, undoing } => {
            let taken = work::Event::Taken { until: *until };
            let work = case.work.next(&taken, &policy, now)?.work;
            Case {
                // It counts from now on: a gateway that ends in the middle has tried it.
                work: Work {
                    tries: work.tries + 1,
                    ..work
                },
                undoing: case.undoing.clone().or_else(|| undoing.clone()),
                ..changed
            }
        }
        Event::Freed => Case {
            work: case.work.next(&work::Event::Freed, &policy, now)?.work,
            ..changed
        },
        // Only what was taken can end.
        Event::Ended { .. } if !case.work.due.is_taken() => return Err(Illegal::NotDue),
        Event::Ended { end, jitter } => {
            let rests = |state, error| Case {
                state,
                error,
                work: Work {
                    due: Due::Never,
                    ..case.work
                },
                retain_until: Some(after(now, retention)),
                ..changed.clone()
            };
            let blocked = match end {
                Ok(End::Done) => return Ok(rests(State::Done, None)),
                Ok(End::Unwanted) => return Ok(rests(State::Reported, None)),
                Ok(End::Adopted(call_id)) => {
                    let mut done = rests(State::Done, None);
                    done.listed.call_id = Some(call_id.to_string());
                    return Ok(done);
                }
                Ok(End::Held { call_id, holder }) => {
                    let rests = rests(State::Reported, None);
                    return Ok(not_adopted(rests, *call_id, *holder));
                }
                Err(blocked) => blocked,
            };
            let blocker = match blocked.blocker {
                // How it ended is looked for again; that is no try.
                Blocker::Unknown => Blocker::Busy,
                blocker => blocker,
            };
            let before = Work {
                tries: case.work.tries.saturating_sub(1),
                ..case.work
            };
            let jitter = *jitter;
            let event = work::Event::Blocked { blocker, jitter };
            let next = before.next(&event, &policy, now)?;
            let error = Some(blocked.why.clone());
            if next.gives_up || after(case.wanted_since(), retention) <= now {
                return Ok(rests(State::GivenUp, error));
            }
            Case {
                work: next.work,
                error,
                ..changed
            }
        }
    })
}

/// A case whose effect is not adopted, because another call has its key.
fn not_adopted(case: Case, call_id: CallId, holder: Holder) -> Case {
    let so = match holder {
        Holder::Failed | Holder::HasRun => "",
        Holder::Deduplicated => {
            ", and its tool executes a key once: it may be that call's effect; run the reconciliation again"
        }
        Holder::Adopted => {
            ", and was adopted from another effect: this one is a second effect of one intent, or that of another intent"
        }
    };
    let detail = format!("{}; call {call_id} has its key{so}", case.listed.detail);
    let listed = Listed {
        kind: match holder {
            Holder::HasRun => Kind::Duplicate,
            Holder::Failed | Holder::Deduplicated | Holder::Adopted => case.listed.kind,
        },
        call_id: Some(call_id.to_string()),
        detail,
        action: Act::Report,
        ..case.listed
    };
    Case { listed, ..case }
}

/// A case that a person asks for an act on. Without one nothing is done, ever.
fn asked(
    changed: Case,
    act: Option<Act>,
    acted: &Acted,
    retention: SignedDuration,
    now: Timestamp,
) -> Case {
    let (state, due) = match act {
        Some(_) => (State::Open, Due::At(now)),
        None => (State::Ignored, Due::Never),
    };
    let listed = Listed {
        action: act.unwrap_or(changed.listed.action),
        acted: Some(acted.clone()),
        ..changed.listed.clone()
    };
    Case {
        listed,
        state,
        error: None,
        work: Work {
            due,
            ..Work::due_at(now)
        },
        retain_until: act.is_none().then(|| after(now, retention)),
        ..changed
    }
}

/// A case at rest with what a run says of it now; `None`: that is nothing new.
///
/// That is also whose effect it is: a call that had its key may be lost since. A run that a person asked for says at least
/// when it was found.
fn refreshed(case: &Case, again: &Case, by_person: bool, now: Timestamp) -> Option<Case> {
    let may_be_acted_on = match case.state {
        State::Reported | State::GivenUp | State::Ignored => true,
        State::Done => case.listed.action == Act::Webhook,
        State::Open => false,
    };
    if !may_be_acted_on {
        return None;
    }
    let listed = Listed {
        action: case.listed.action,
        state: case.listed.state,
        acted: case.listed.acted.clone(),
        ..again.listed.clone()
    };
    // How a begun compensation was decided on follows from it.
    let effect = match case.undoing {
        Some(_) => case.effect.clone(),
        None => again.effect.clone(),
    };
    let is_new = by_person || listed != case.listed || effect != case.effect;
    is_new.then(|| Case {
        listed,
        effect,
        found_at: now,
        version: case.version + 1,
        ..case.clone()
    })
}

/// Whether a rediscovered anomaly is worked on again.
///
/// What a person wants ignored is not.
///
/// Always if it was only reported, or was to settle a call that is still unknown; if given up, only on request. An
/// adopted effect is, whatever is to be done about it, if the call that it became is lost: nothing keeps its repetition
/// from being executed.
fn is_reopened(case: &Case, again: &Listed, by_person: bool, is_lost: bool) -> bool {
    // What may have been undone is no effect of a call that has succeeded.
    let may_be_undone = again.action == Act::Adopt && case.undoing.is_some();
    if case.adopted_as().is_some() {
        return is_lost && again.call_id.is_none();
    }
    again.action != Act::Report
        && !may_be_undone
        && match case.state {
            State::Reported => true,
            State::Done => again.action == Act::Settle,
            State::GivenUp => by_person,
            State::Open | State::Ignored => false,
        }
}

#[cfg(test)]
#[path = "anomaly_tests.rs"]
pub(crate) mod tests;
