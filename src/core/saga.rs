//! A saga: a group of calls that is completed or undone as a whole (H. Garcia-Molina, K. Salem: Sagas,
//! SIGMOD 1987).
//!
//! It begins with the first call that names it, and takes calls while it is open. When it is aborted, what
//! its calls have done is undone, the newest first, by a call for each. [`next`] moves a saga, [`plan`] says
//! what is to be done next about one that is being undone. Must not know how a call is sent.
//!
//! ```text
//!            complete
//!   open ──────────────► completed
//!     │ abort, or its time is over
//!     ▼                all undone
//!   compensating ──────────────► compensated
//!     │  ▲
//!     ▼  │ a person: retry, skip, resolve; or what it waited for has come to rest
//!   stuck
//! ```
//!
//! A saga that is open when the store loses data is stuck, too, until a person completes or aborts it.

mod plan; // what is to be done next about one that is being undone
mod stored; // as a document

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

pub use self::plan::{Step, plan};
use super::pace::Pace;
use super::record::{CallId, Entry};
use super::{retry, undo};

/// Names a saga for ever, within its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SagaId {
    pub tenant: String,
    pub id: String,
}

/// Entries of its history that are kept.
const MAX_EVENTS: usize = 100;
/// How often that is done before a person hears of it: for an hour.
const MOST_WAITS: u32 = 720;

/// What is done about sagas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a saga may be open.
    pub deadline: Duration,
    pub on_timeout: OnTimeout,
    /// How often, and after which waits, one call is tried to be undone before a person has to see to it.
    pub retry: retry::Policy,
    /// How long one that has come to its end is kept.
    pub retention: Duration,
    /// How long the end of a running or unknown call is waited for before it is looked at again, at most.
    pub look_again: Duration,
}

/// What is done about a saga that is open for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTimeout {
    Abort,
    /// It stays open, and that is said.
    Report,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            deadline: Duration::from_mins(15),
            on_timeout: OnTimeout::Report,
            retry: retry::Policy {
                attempts: 10,
                base: Duration::from_secs(1),
                max: Duration::from_mins(5),
            },
            retention: Duration::from_hours(30 * 24),
            look_again: Pace::default().saga_looks_again,
        }
    }
}

/// A saga, as far as it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saga {
    pub id: SagaId,
    /// Rises by one with every change: what compare-and-swap compares.
    pub version: u64,
    pub state: State,
    /// Name of the token that began it; empty for a person or the gateway.
    pub begun_by: String,
    /// The one call that it undoes; `None`: all that name it.
    pub only: Option<CallId>,
    /// Why it was completed or aborted; empty as long as it was not.
    pub reason: String,
    /// What keeps it from going on.
    pub trouble: Option<Trouble>,
    /// How often in a row the call whose turn it is could not be undone.
    pub tries: u32,
    /// How often in a row it could not go on for no fault of anybody's.
    pub waits: u32,
    /// Its calls have come to rest: none of them is sent any more.
    pub at_rest: bool,
    /// Stuck, but by something that may come to rest by itself.
    pub looks_on: bool,
    /// Stuck because data was lost while it was open: a person completes or aborts it.
    pub was_open: bool,
    /// Whether `due_at` is the end of somebody's turn to work on it, and no other time.
    pub is_taken: bool,
    /// Whether its time was over while it was open.
    pub overdue: bool,
    /// Whether somebody is still to hear of its trouble, and how often that was tried.
    pub to_tell: bool,
    pub tellings: u32,
    pub created_at: Timestamp,
    pub deadline: Option<Timestamp>,
    pub updated_at: Timestamp,
    /// When it is worked on next; `None`: only when a person does something.
    pub due_at: Option<Timestamp>,
    /// From when on it may be deleted. One that has not come to its end never may.
    pub retain_until: Option<Timestamp>,
    /// The newest of its history, oldest first.
    pub events: Vec<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open,
    Completed,
    Compensating,
    Compensated,
    Stuck,
}

impl State {
    pub const ALL: [Self; 5] = [
        Self::Open,
        Self::Completed,
        Self::Compensating,
        Self::Compensated,
        Self::Stuck,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Completed => "completed",
            Self::Compensating => "compensating",
            Self::Compensated => "compensated",
            Self::Stuck => "stuck",
        }
    }
}

/// What keeps a saga from going on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// With which call, if it is with one.
    pub call_id: Option<CallId>,
    /// A sentence for an engineer.
    pub why: String,
}

impl Saga {
    /// A saga that begins now.
    pub fn begin(id: SagaId, policy: &Policy, now: Timestamp) -> Self {
        let deadline = after(now, policy.deadline);
        let detail = "the first call of the saga".to_owned();
        Self {
            id,
            version: 1,
            state: State::Open,
            begun_by: String::new(),
            only: None,
            reason: String::new(),
            trouble: None,
            tries: 0,
            waits: 0,
            at_rest: false,
            looks_on: false,
            was_open: false,
            is_taken: false,
            overdue: false,
            to_tell: false,
            tellings: 0,
            created_at: now,
            deadline: Some(deadline),
            updated_at: now,
            due_at: Some(deadline),
            retain_until: None,
            events: vec![entry("begun", "gateway".to_owned(), detail, now)],
        }
    }

    /// The undoing of one call, whatever saga it belongs to.
    pub fn undo(tenant: &str, call_id: CallId, by: &str, reason: &str, now: Timestamp) -> Self {
        Self {
            id: SagaId {
                tenant: tenant.to_owned(),
                id: undo::key_of(call_id),
            },
            version: 1,
            state: State::Compensating,
            begun_by: String::new(),
            only: Some(call_id),
            reason: reason.to_owned(),
            trouble: None,
            tries: 0,
            waits: 0,
            at_rest: false,
            looks_on: false,
            was_open: false,
            is_taken: false,
            overdue: false,
            to_tell: false,
            tellings: 0,
            created_at: now,
            deadline: None,
            updated_at: now,
            due_at: Some(now),
            retain_until: None,
            events: vec![entry("aborted", by.to_owned(), reason.to_owned(), now)],
        }
    }

    /// Whether calls may join it.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether a call of it, of which nobody knows whether it was executed, may still be sent again: not after
    /// the others are being undone.
    pub fn may_send_again(&self) -> bool {
        match self.state {
            State::Open | State::Completed => true,
            State::Compensating | State::Stuck => !self.at_rest,
            State::Compensated => false,
        }
    }

    fn changed(&self, now: Timestamp) -> Self {
        Self {
            version: self.version + 1,
            updated_at: now,
            is_taken: false,
            ..self.clone()
        }
    }

    fn noted(mut self, event: &'static str, by: String, detail: String, now: Timestamp) -> Self {
        self.events.push(entry(event, by, detail, now));
        let surplus = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..surplus);
        self
    }
}

fn entry(event: &'static str, by: String, detail: String, now: Timestamp) -> Entry {
    Entry {
        at: now,
        event: event.into(),
        attempt: None,
        outcome: None,
        by,
        detail,
    }
}

/// What happens to a saga. `by` is a token or a gateway.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The plan has come to its end.
    Complete { by: String, reason: String },
    /// The plan is abandoned. `after_loss`: also if data was lost while the saga was open.
    Abort {
        by: String,
        reason: String,
        after_loss: bool,
    },
    /// Its time is over, and it is still open.
    Overdue { by: String },
    /// A gateway works on it, and others leave it alone until then.
    Taken { until: Timestamp },
    /// The gateway that worked on it has ended, and no other can be at it.
    Freed,
    /// Something is sent for it now. Who does it needs until then.
    Prolonged { until: Timestamp },
    /// A person is about to settle what it is stuck with: whoever has looked at it before gives way.
    Held { until: Timestamp },
    /// All of its calls have come to rest. From now on none of them is sent again.
    Rested,
    /// A call of it was found that it may not know of, although it has come to its end.
    CallFound,
    /// The store has lost its newest writes, and a person accepts that.
    StoreLost { by: String, reason: String },
    /// It cannot go on now. `jitter` is random, of 0..1.
    Hindered {
        by: String,
        trouble: Trouble,
        hindrance: Hindrance,
        jitter: f64,
    },
    /// A call has been undone, or what was in the way is not any more.
    Advanced,
    /// All of its calls are undone.
    Undone { by: String },
    /// What was kept for it need not be any longer. `false`: some of its calls are not at rest yet.
    Released { all: bool },
    /// Whoever is to hear of its trouble was told; `false`: or was not reached.
    Told { delivered: bool },
    /// A person wants what is stuck to be tried again.
    Retry { by: String, reason: String },
    /// A person has settled the call with which it was stuck.
    Settled { by: String, reason: String },
}

/// Why a saga cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hindrance {
    /// Something will end soon, or is stopped for a while: it is no failure.
    Busy,
    /// Nobody knows what became of a call. It may come to rest by itself.
    Unknown,
    /// A call could not be undone this time.
    Failed,
    /// A call will never be undone without a person.
    Final,
}

/// An event that does not fit the state. Changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    #[error("the saga is {}", .0.as_str())]
    State(State),
    #[error("it is not time to work on the saga")]
    NotDue,
    #[error("the saga was open when the store lost data: an administrator completes or aborts it")]
    AfterLoss,
}

/// Decides what an event does to a saga.
///
/// # Errors
/// The event does not fit the state; nothing changes.
pub fn next(saga: &Saga, event: &Event, policy: &Policy, now: Timestamp) -> Result<Saga, Illegal> {
    let wrong = Err(Illegal::State(saga.state));
    let changed = saga.changed(now);
    // One that was open when data was lost is not undone before a person has said so.
    let is_unfinished = matches!(saga.state, State::Compensating | State::Stuck) && !saga.was_open;
    let may_end = saga.is_open() || saga.was_open;
    match event {
        // What is asked for again has been done.
        Event::Complete { .. } if saga.state == State::Completed => Ok(saga.clone()),
        Event::Complete { by, reason } if may_end => {
            let (state, reason) = (State::Completed, reason.clone());
            let completed = Saga {
                state,
                due_at: Some(now),
                reason: reason.clone(),
                to_tell: false,
                ..changed
            };
            let completed = Saga {
                trouble: None,
                was_open: false,
                ..completed
            };
            Ok(completed.noted("completed", by.clone(), reason, now))
        }
        Event::Abort { .. } if is_unfinished => Ok(saga.clone()),
        Event::Abort {
            after_loss: false, ..
        } if saga.was_open => Err(Illegal::AfterLoss),
        Event::Abort { by, reason, .. } if may_end => Ok(abort(changed, by, reason, now)),
        // Its one call was skipped then, and is to be undone after all.
        Event::Abort { by, reason, .. }
            if saga.only.is_some() && saga.state == State::Compensated =>
        {
            Ok(abort(
                Saga {
                    retain_until: None,
                    at_rest: false,
                    ..changed
                },
                by,
                reason,
                now,
            ))
        }
        Event::Complete { .. } | Event::Abort { .. } => wrong,
        Event::Overdue { .. } if !saga.is_open() => wrong,
        Event::Overdue { .. }
            if saga.overdue || saga.deadline.is_none_or(|deadline| now < deadline) =>
        {
            Err(Illegal::NotDue)
        }
        Event::Overdue { by } => {
            let overdue = Saga {
                overdue: true,
                ..changed
            };
            match policy.on_timeout {
                OnTimeout::Abort => Ok(abort(overdue, by, "its deadline is over", now)),
                OnTimeout::Report => {
                    let told = Saga {
                        due_at: Some(now),
                        to_tell: true,
                        ..overdue
                    };
                    let detail =
                        "its deadline is over; it stays open until somebody completes or aborts it";
                    Ok(told.noted("overdue", by.clone(), detail.to_owned(), now))
                }
            }
        }
        Event::Taken { .. } if saga.due_at.is_none_or(|due_at| now < due_at) => {
            Err(Illegal::NotDue)
        }
        Event::Taken { until } => Ok(Saga {
            due_at: Some(*until),
            is_taken: true,
            ..changed
        }),
        Event::Freed if saga.is_taken => Ok(Saga {
            due_at: Some(now),
            ..changed
        }),
        Event::Freed => Err(Illegal::NotDue),
        Event::Held { .. } if saga.state != State::Stuck => wrong,
        // One that is not worked on is not taken up for that.
        Event::Held { until } => Ok(Saga {
            due_at: saga.due_at.map(|due_at| due_at.max(*until)),
            is_taken: saga.is_taken,
            ..changed
        }),
        Event::Prolonged { .. }
        | Event::Rested
        | Event::Hindered { .. }
        | Event::Advanced
        | Event::Undone { .. }
            if !is_unfinished =>
        {
            wrong
        }
        Event::Prolonged { until } => {
            let (state, due_at) = (State::Compensating, Some(*until));
            // What was waited for has come to rest: what fails now fails for the first time.
            let (tries, waits) = if saga.state == State::Stuck {
                (0, 0)
            } else {
                (saga.tries, saga.waits)
            };
            let going = Saga {
                state,
                due_at,
                tries,
                waits,
                is_taken: true,
                ..changed
            };
            Ok(Saga {
                trouble: None,
                looks_on: false,
                to_tell: false,
                ..going
            })
        }
        // What is undone after it has its own tries.
        Event::Rested => {
            let rested = Saga {
                state: State::Compensating,
                at_rest: true,
                tries: 0,
                waits: 0,
                ..changed
            };
            let is_taken = saga.is_taken;
            Ok(Saga {
                trouble: None,
                looks_on: false,
                to_tell: false,
                is_taken,
                ..rested
            })
        }
        Event::StoreLost { .. } if !is_unfinished && !may_end => wrong,
        Event::StoreLost { by, reason } => {
            let what = if may_end {
                "it may have been completed or undone since; complete it, or abort it"
            } else {
                "what was undone may be forgotten"
            };
            let why = format!("the store has lost data ({reason}): {what}");
            let trouble = Some(Trouble {
                call_id: None,
                why: why.clone(),
            });
            let (state, due_at) = (State::Stuck, Some(now));
            let lost = Saga {
                state,
                due_at,
                trouble,
                looks_on: false,
                to_tell: true,
                tellings: 0,
                ..changed
            };
            let lost = Saga {
                was_open: may_end,
                ..lost
            };
            Ok(lost.noted("store_lost", by.clone(), why, now))
        }
        Event::CallFound if matches!(saga.state, State::Completed | State::Compensated) => {
            Ok(Saga {
                due_at: Some(now),
                retain_until: None,
                ..changed
            })
        }
        Event::CallFound => wrong,
        Event::Hindered {
            by,
            trouble,
            hindrance,
            jitter,
        } => Ok(hinder(saga, by, trouble, *hindrance, *jitter, policy, now)),
        Event::Advanced => {
            let (state, due_at) = (State::Compensating, Some(now));
            Ok(Saga {
                state,
                trouble: None,
                tries: 0,
                waits: 0,
                due_at,
                to_tell: false,
                ..changed
            })
        }
        Event::Undone { by } => {
            let (state, due_at) = (State::Compensated, Some(now));
            let undone = Saga {
                state,
                due_at,
                trouble: None,
                tries: 0,
                to_tell: false,
                ..changed
            };
            Ok(undone.noted(
                "compensated",
                by.clone(),
                "all of it is undone".to_owned(),
                now,
            ))
        }
        Event::Released { .. } if !matches!(saga.state, State::Completed | State::Compensated) => {
            wrong
        }
        Event::Released { all: true } => Ok(Saga {
            due_at: None,
            retain_until: Some(after(now, policy.retention)),
            ..changed
        }),
        Event::Released { all: false } => {
            // The later the longer it takes.
            let age = Duration::try_from(now.duration_since(saga.created_at)).unwrap_or_default();
            let wait = (age / 2).clamp(policy.look_again, policy.retry.max.max(policy.look_again));
            Ok(Saga {
                due_at: Some(after(now, in_milliseconds(wait))),
                ..changed
            })
        }
        Event::Told { .. } if !saga.to_tell => wrong,
        Event::Told { delivered } => Ok(told(saga, *delivered, policy, now)),
        Event::Retry { by, reason } | Event::Settled { by, reason }
            if is_unfinished && saga.state == State::Stuck =>
        {
            let (state, due_at) = (State::Compensating, Some(now));
            let is_settled = matches!(event, Event::Settled { .. });
            // What was decided about the one call of such a saga counts from now on.
            let at_rest = changed.at_rest || changed.only.is_some() && is_settled;
            let again = Saga {
                state,
                at_rest,
                due_at,
                trouble: None,
                tries: 0,
                waits: 0,
                to_tell: false,
                ..changed
            };
            let event = if is_settled { "settled" } else { "retry" };
            Ok(again.noted(event, by.clone(), reason.clone(), now))
        }
        Event::Retry { .. } | Event::Settled { .. } if saga.was_open => Err(Illegal::AfterLoss),
        Event::Retry { .. } | Event::Settled { .. } => wrong,
    }
}

fn abort(saga: Saga, by: &str, reason: &str, now: Timestamp) -> Saga {
    let (state, due_at, reason) = (State::Compensating, Some(now), reason.to_owned());
    let aborted = Saga {
        state,
        due_at,
        reason: reason.clone(),
        to_tell: false,
        ..saga
    };
    let aborted = Saga {
        trouble: None,
        was_open: false,
        ..aborted
    };
    aborted.noted("aborted", by.to_owned(), reason, now)
}

fn hinder(
    saga: &Saga,
    by: &str,
    trouble: &Trouble,
    hindrance: Hindrance,
    jitter: f64,
    policy: &Policy,
    now: Timestamp,
) -> Saga {
    let tries = saga
        .tries
        .saturating_add(u32::from(hindrance != Hindrance::Busy));
    let waits = if hindrance == Hindrance::Busy {
        saga.waits.saturating_add(1)
    } else {
        0
    };
    let hindered = Saga {
        trouble: Some(trouble.clone()),
        tries,
        waits,
        ..saga.changed(now)
    };
    let is_over = match hindrance {
        Hindrance::Busy => waits >= MOST_WAITS,
        Hindrance::Unknown | Hindrance::Failed => tries >= policy.retry.attempts,
        Hindrance::Final => true,
    };
    let wait = match hindrance {
        Hindrance::Busy => policy.look_again.min(policy.retry.max),
        Hindrance::Unknown | Hindrance::Failed | Hindrance::Final => {
            let most = retry::Policy {
                attempts: u32::MAX,
                ..policy.retry
            };
            let longest = retry::delay(&most, tries.max(1), 1.0, None);
            longest.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
        }
    };
    let later = Some(after(now, in_milliseconds(wait)));
    let was_stuck = saga.state == State::Stuck;
    let noted = |saga: Saga| match hindrance {
        Hindrance::Busy if !is_over => saga,
        _ => {
            let detail = match trouble.call_id {
                Some(call_id) => format!("call {call_id}: {}", trouble.why),
                None => trouble.why.clone(),
            };
            saga.noted(
                if is_over { "stuck" } else { "hindered" },
                by.to_owned(),
                detail,
                now,
            )
        }
    };
    if is_over {
        // What may come to rest by itself is still looked at.
        let looks_on = matches!(hindrance, Hindrance::Unknown | Hindrance::Busy);
        let stuck = Saga {
            state: State::Stuck,
            looks_on,
            ..hindered
        };
        return if was_stuck {
            Saga {
                due_at: later.filter(|_| looks_on || saga.to_tell),
                ..stuck
            }
        } else {
            noted(Saga {
                due_at: Some(now),
                to_tell: true,
                tellings: 0,
                ..stuck
            })
        };
    }
    if was_stuck {
        return Saga {
            due_at: later,
            ..hindered
        };
    }
    noted(Saga {
        due_at: later,
        ..hindered
    })
}

/// How often somebody is tried to be told of a trouble.
const TELLINGS: u32 = 12;

fn told(saga: &Saga, delivered: bool, policy: &Policy, now: Timestamp) -> Saga {
    let tellings = saga.tellings.saturating_add(1);
    let is_over = delivered || tellings >= TELLINGS;
    let most = retry::Policy {
        attempts: u32::MAX,
        ..policy.retry
    };
    let wait = in_milliseconds(retry::delay(&most, tellings, 1.0, None));
    let looks_on = saga.state == State::Stuck && saga.looks_on;
    let due_at = (!is_over || looks_on).then(|| after(now, wait));
    Saga {
        tellings,
        to_tell: !is_over,
        due_at,
        ..saga.changed(now)
    }
}

fn after(time: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Stores keep whole microseconds, and what comes back must be what was written.
fn in_milliseconds(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "saga_tests.rs"]
mod tests;
