//! An anomaly as a stored case, and its states.
//!
//! Each case is a document, and gateways compete for it like for any other [`Work`].

mod case; // the case, and how it is stored
mod listed; // an anomaly in a report
mod operator; // requests of operators

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

pub use self::case::{Case, Illegal, Terms, Undoing};
pub use self::listed::{Act, Acted, Listed, MAX_SHOWN, Request, Showing, State};
use self::operator::act_for;
use super::Kind;
use oncegate_rules::record::{CallId, Record, State as CallState};
use oncegate_rules::time::after;
use oncegate_rules::tool::{Dedup, Tool};
use oncegate_rules::work::{self, Blocked, Blocker, Due, Work};

/// How many tries an act gets, and the pauses between them.
const TRIES: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// An event of a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A run has found the anomaly again.
    ///
    /// `again` is the case as it would be made now. `by_operator`: an operator asked for that run. Here and below `is_lost`:
    /// the ledger has lost the call that the effect was [adopted as](Case::adopted_as).
    Found {
        again: Box<Case>,
        by_operator: bool,
        is_lost: bool,
    },
    /// An operator asks for an act.
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
    /// Another call has its key, so it was not adopted.
    Held {
        call_id: CallId,
        holder: Holder,
    },
}

/// The call that has the key of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// The call has failed, so the effect is not its effect.
    Failed,
    /// The call may have had an effect of its own, so this one is most likely one too many.
    HasRun,
    /// The call's tool executes a key once, so it may have answered with just this effect.
    Deduplicated,
    /// The call was adopted from another effect of the same intent, or of another one.
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
        // A webhook may be down for long, so it has no bound of tries.
        tries: (case.listed.action != Act::Webhook).then_some(TRIES),
        waits: None,
        base: FIRST_PAUSE,
        max: LONGEST_PAUSE,
        postponed_by: None,
    };
    Ok(match event {
        Event::Found {
            again,
            by_operator,
            is_lost,
        } if is_reopened(case, &again.listed, *by_operator, *is_lost) => Case {
            // A compensation that was decided stays: it may have been begun.
            undoing: case.undoing.clone(),
            decides: case.decides,
            found_at: now,
            work: again.state.work(now),
            version: changed.version,
            created_at: case.created_at,
            ..(**again).clone()
        },
        Event::Found {
            again, by_operator, ..
        } => refreshed(case, again, *by_operator, now).ok_or(Illegal::Unchanged)?,
        Event::Asked { acted, is_lost } => {
            let act = act_for(case, acted.act, *is_lost)?;
            asked(changed, act, acted, retention, now)
        }
        Event::Taken { until, undoing } => {
            let taken = work::Event::Taken { until: *until };
            let work = case.work.next(&taken, &policy, now)?.work;
            Case {
                // The try counts from its begin, so that one counts whose gateway ends in the middle.
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
        // Work that no gateway has taken cannot end.
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
                // The outcome is looked for again later; that is not a try.
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
    let why = match holder {
        Holder::Failed | Holder::HasRun => "",
        Holder::Deduplicated => {
            ", and its tool executes a key once: it may be that call's effect; run the reconciliation again"
        }
        Holder::Adopted => {
            ", and was adopted from another effect: this one is a second effect of one intent, or that of another intent"
        }
    };
    let detail = format!("{}; call {call_id} has its key{why}", case.listed.detail);
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

/// A case after the request of an operator. `act`: `None` if nothing is to be done, ever.
fn asked(
    changed: Case,
    act: Option<Act>,
    acted: &Acted,
    retention: SignedDuration,
    now: Timestamp,
) -> Case {
    let state = match act {
        Some(_) => State::Open,
        None => State::Ignored,
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
        work: state.work(now),
        retain_until: act.is_none().then(|| after(now, retention)),
        ..changed
    }
}

/// A case at rest with the findings of a later run; `None`: they are not new, or the case is not at rest.
///
/// The call may differ from before: the ledger may have lost the call that had the key. A run that an operator asked
/// for changes at least the time at which the anomaly was found.
fn refreshed(case: &Case, again: &Case, by_operator: bool, now: Timestamp) -> Option<Case> {
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
    // A compensation that was decided follows from the earlier effect.
    let effect = match case.undoing {
        Some(_) => case.effect.clone(),
        None => again.effect.clone(),
    };
    let is_new = by_operator || listed != case.listed || effect != case.effect;
    is_new.then(|| Case {
        listed,
        effect,
        found_at: now,
        version: case.version + 1,
        ..case.clone()
    })
}

/// Whether an act is due again for an anomaly that a run has found again.
///
/// Always if it was only reported, or if it settled a call that is unknown again. After it was given up, only in a run
/// that an operator asked for. Never if an operator ignores it. An adopted effect is reopened whichever act is wanted,
/// if the ledger has lost its call: otherwise nothing would keep a repetition from being executed.
fn is_reopened(case: &Case, again: &Listed, by_operator: bool, is_lost: bool) -> bool {
    // An effect that may have been undone is not adopted as a call that has succeeded.
    let may_be_undone = again.action == Act::Adopt && case.undoing.is_some();
    if case.adopted_as().is_some() {
        return is_lost && again.call_id.is_none();
    }
    again.action != Act::Report
        && !may_be_undone
        && match case.state {
            State::Reported => true,
            State::Done => again.action == Act::Settle,
            State::GivenUp => by_operator,
            State::Open | State::Ignored => false,
        }
}

#[cfg(test)]
mod tests;
