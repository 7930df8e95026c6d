//! A saga: a group of calls that is completed or undone as a whole (H. Garcia-Molina, K. Salem: Sagas,
//! SIGMOD 1987).
//!
//! It begins with the first call that names it, and takes calls while it is open. When it is aborted, what
//! its calls have done is undone, the newest first, by a call for each. [`next`] moves a saga, [`plan::plan`]
//! says what is done next about one that is being undone. Must not know how a call is sent.
//!
//! ```text
//!            complete
//!   open ──────────────► completed
//!     │ abort, or its time is over
//!     ▼                all undone
//!   compensating ──────────────► compensated
//!     │  ▲
//!     ▼  │ an operator: retry, skip, resolve; or what it waited for has ended
//!   stuck
//! ```
//!
//! A saga that is open when the store loses data is stuck, too, until an operator completes or aborts it.

pub mod plan; // what is done next about one that is being undone
mod stored; // as a document

use std::time::Duration;

use jiff::Timestamp;

use super::pace::Pace;
use super::record::{CallId, Entry};
use super::work::{self, Blocker, Due, Work, later};
use super::{retry, undo};

/// Names a saga for ever, within its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SagaId {
    pub tenant: String,
    pub id: String,
}

/// Entries of its history that are kept.
const MAX_EVENTS: usize = 100;
/// Postponements in a row before an operator is told: an hour of them.
const MOST_WAITS: u32 = 720;
/// Tries to tell an operator of one trouble.
const TELLINGS: u32 = 12;

/// What is done about sagas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a saga may be open.
    pub deadline: Duration,
    pub on_timeout: OnTimeout,
    /// How often, and how far apart, undoing one call is tried before an operator has to see to it.
    pub retry: retry::Policy,
    /// How long one that has come to its end is kept.
    pub retention: Duration,
    /// The longest pause before the end of a running or unknown call is looked for again.
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

impl Policy {
    fn of_work(&self) -> work::Policy {
        work::Policy {
            tries: Some(self.retry.attempts),
            waits: Some(MOST_WAITS),
            base: self.retry.base,
            max: self.retry.max,
            postponed_by: Some(self.look_again.min(self.retry.max)),
        }
    }
}

/// A saga, as far as it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saga {
    pub id: SagaId,
    /// Rises by one with every change: what compare-and-swap compares.
    pub version: u64,
    pub phase: Phase,
    /// Name of the token that began it; empty for an operator or the gateway.
    pub begun_by: String,
    /// The one call that it undoes; `None`: all that name it.
    pub only: Option<CallId>,
    /// Why it was completed or aborted; empty as long as it was not.
    pub reason: String,
    /// What keeps it from going on.
    pub trouble: Option<Trouble>,
    pub work: Work,
    /// Whether its time was over while it was open.
    pub overdue: bool,
    /// How often an operator could not be told of its trouble; `None`: nothing is to be told.
    pub telling: Option<u32>,
    pub created_at: Timestamp,
    pub deadline: Option<Timestamp>,
    pub updated_at: Timestamp,
    /// From when on it may be deleted. One that has not come to its end never may.
    pub retain_until: Option<Timestamp>,
    /// The newest of its history, oldest first.
    pub events: Vec<Entry>,
}

/// How far a saga is, with what only counts there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Calls may join it.
    Open,
    Completed,
    /// Its calls are being undone. `at_rest`: none of them is sent any more.
    Compensating {
        at_rest: bool,
    },
    Compensated,
    /// Undoing its calls is given up. `is_transient`: the cause may end without an operator, and is still looked at.
    Stuck {
        at_rest: bool,
        is_transient: bool,
    },
    /// Data was lost while it was open. An operator completes or aborts it.
    OpenAtLoss,
}

/// How far a saga is, in one word.
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

    /// Those in which a saga may still go on.
    pub const UNFINISHED: [Self; 3] = [Self::Open, Self::Compensating, Self::Stuck];

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

impl Phase {
    pub fn state(self) -> State {
        match self {
            Self::Open => State::Open,
            Self::Completed => State::Completed,
            Self::Compensating { .. } => State::Compensating,
            Self::Compensated => State::Compensated,
            Self::Stuck { .. } | Self::OpenAtLoss => State::Stuck,
        }
    }

    /// Whether its calls are at rest; `None`: they are not being undone.
    fn at_rest(self) -> Option<bool> {
        match self {
            Self::Compensating { at_rest } | Self::Stuck { at_rest, .. } => Some(at_rest),
            Self::Open | Self::Completed | Self::Compensated | Self::OpenAtLoss => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Open | Self::OpenAtLoss)
    }

    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Compensated)
    }

    /// Stuck on a transient cause; the worker retries without an operator.
    pub fn is_stuck_for_now(self) -> bool {
        matches!(
            self,
            Self::Stuck {
                is_transient: true,
                ..
            }
        )
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
        let deadline = later(now, policy.deadline);
        Self {
            deadline: Some(deadline),
            ..Self::new(id, Phase::Open, deadline, now)
        }
        .noted("begun", "gateway", "the first call of the saga", now)
    }

    /// The undoing of one call, whatever saga it belongs to.
    pub fn undo(tenant: &str, call_id: CallId, by: &str, reason: &str, now: Timestamp) -> Self {
        let id = SagaId {
            tenant: tenant.to_owned(),
            id: undo::key_of(call_id),
        };
        Self {
            only: Some(call_id),
            reason: reason.to_owned(),
            ..Self::new(id, Phase::Compensating { at_rest: false }, now, now)
        }
        .noted("aborted", by, reason, now)
    }

    fn new(id: SagaId, phase: Phase, due_at: Timestamp, now: Timestamp) -> Self {
        Self {
            id,
            version: 1,
            phase,
            begun_by: String::new(),
            only: None,
            reason: String::new(),
            trouble: None,
            work: Work::due_at(due_at),
            overdue: false,
            telling: None,
            created_at: now,
            deadline: None,
            updated_at: now,
            retain_until: None,
            events: Vec::new(),
        }
    }

    pub fn state(&self) -> State {
        self.phase.state()
    }

    /// Whether calls may join it.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether its unknown calls may still be sent again: not after the others are being undone.
    pub fn may_send_again(&self) -> bool {
        match self.phase {
            Phase::Open | Phase::Completed | Phase::OpenAtLoss => true,
            Phase::Compensating { at_rest } | Phase::Stuck { at_rest, .. } => !at_rest,
            Phase::Compensated => false,
        }
    }

    /// In another phase, where what troubled it before does not count.
    fn enter(self, phase: Phase) -> Self {
        Self {
            phase,
            trouble: None,
            telling: None,
            ..self
        }
    }

    fn due(self, due: Due) -> Self {
        Self {
            work: Work { due, ..self.work },
            ..self
        }
    }

    /// As before its first try.
    fn anew(self, now: Timestamp) -> Self {
        Self {
            work: Work::due_at(now),
            ..self
        }
    }

    fn aborted(self, by: &str, reason: &str, now: Timestamp) -> Self {
        Self {
            reason: reason.to_owned(),
            retain_until: None,
            ..self.enter(Phase::Compensating { at_rest: false })
        }
        .anew(now)
        .noted("aborted", by, reason, now)
    }

    fn noted(mut self, event: &'static str, by: &str, detail: &str, now: Timestamp) -> Self {
        self.events.push(Entry {
            at: now,
            event: event.into(),
            attempt: None,
            outcome: None,
            by: by.to_owned(),
            detail: detail.to_owned(),
        });
        let surplus = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..surplus);
        self
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
    /// Something is sent for it now; its gateway needs until then.
    Prolonged { until: Timestamp },
    /// An operator is about to settle what it is stuck with: a gateway that has read it before gives way.
    Held { until: Timestamp },
    /// All of its calls have come to rest. From now on none of them is sent again.
    Rested,
    /// A call of it was found that it may not know of, although it has come to its end.
    CallFound,
    /// The store has lost its newest writes, and an operator accepts that.
    StoreLost { by: String, reason: String },
    /// It cannot go on now. `jitter` is random, of 0..1.
    Blocked {
        by: String,
        trouble: Trouble,
        blocker: Blocker,
        jitter: f64,
    },
    /// A call has been undone, or what blocked it does not any more.
    Advanced,
    /// All of its calls are undone.
    Undone { by: String },
    /// What was kept for it need not be any longer. `false`: some of its calls are not at rest yet.
    Released { all: bool },
    /// An operator was told of its trouble; `false`: or could not be reached.
    Told { delivered: bool },
    /// An operator wants what is stuck to be tried again.
    Retry { by: String, reason: String },
    /// An operator has settled the call with which it was stuck.
    Settled { by: String, reason: String },
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

impl From<work::NotDue> for Illegal {
    fn from(_: work::NotDue) -> Self {
        Self::NotDue
    }
}

/// Decides what an event does to a saga.
///
/// # Errors
/// The event does not fit the state; nothing changes.
pub fn next(saga: &Saga, event: &Event, policy: &Policy, now: Timestamp) -> Result<Saga, Illegal> {
    let wrong = Illegal::State(saga.state());
    let at_rest = saga.phase.at_rest();
    let is_lost = saga.phase == Phase::OpenAtLoss;
    let changed = Saga {
        version: saga.version + 1,
        updated_at: now,
        ..saga.clone()
    };
    Ok(match event {
        // What is asked for again has been done.
        Event::Complete { .. } if saga.phase == Phase::Completed => saga.clone(),
        Event::Abort { .. } if at_rest.is_some() => saga.clone(),
        Event::Complete { by, reason } if saga.phase.may_end() => Saga {
            reason: reason.clone(),
            ..changed.enter(Phase::Completed).due(Due::At(now))
        }
        .noted("completed", by, reason, now),
        Event::Abort {
            after_loss: false, ..
        } if is_lost => return Err(Illegal::AfterLoss),
        Event::Abort { by, reason, .. } if saga.phase.may_end() => changed.aborted(by, reason, now),
        // Its one call was skipped then, and is to be undone after all.
        Event::Abort { by, reason, .. }
            if saga.only.is_some() && saga.phase == Phase::Compensated =>
        {
            changed.aborted(by, reason, now)
        }
        Event::Overdue { .. } if !saga.is_open() => return Err(wrong),
        Event::Overdue { .. }
            if saga.overdue || saga.deadline.is_none_or(|deadline| now < deadline) =>
        {
            return Err(Illegal::NotDue);
        }
        Event::Overdue { by } => {
            let overdue = Saga {
                overdue: true,
                ..changed
            };
            match policy.on_timeout {
                OnTimeout::Abort => overdue.aborted(by, "its deadline is over", now),
                OnTimeout::Report => {
                    let detail =
                        "its deadline is over; it stays open until somebody completes or aborts it";
                    let told = Saga {
                        telling: Some(0),
                        ..overdue.due(Due::At(now))
                    };
                    told.noted("overdue", by, detail, now)
                }
            }
        }
        Event::Taken { until } => {
            let taken = work::Event::Taken { until: *until };
            worked(changed, taken, policy, now)?.0
        }
        Event::Freed => worked(changed, work::Event::Freed, policy, now)?.0,
        // One that is not worked on is not taken up for that.
        Event::Held { until } if saga.state() == State::Stuck => {
            changed.due(saga.work.due.not_before(*until))
        }
        Event::StoreLost { by, reason } if at_rest.is_some() || saga.phase.may_end() => {
            let (phase, what) = match at_rest {
                None => (
                    Phase::OpenAtLoss,
                    "it may have been completed or undone since; complete it, or abort it",
                ),
                Some(at_rest) => (
                    Phase::Stuck {
                        at_rest,
                        is_transient: false,
                    },
                    "what was undone may be forgotten",
                ),
            };
            let why = format!("the store has lost data ({reason}): {what}");
            let lost = Saga {
                trouble: Some(Trouble {
                    call_id: None,
                    why: why.clone(),
                }),
                telling: Some(0),
                ..changed.enter(phase).due(Due::At(now))
            };
            lost.noted("store_lost", by, &why, now)
        }
        Event::CallFound if saga.phase.is_over() => Saga {
            retain_until: None,
            ..changed.due(Due::At(now))
        },
        Event::Released { all: true } if saga.phase.is_over() => Saga {
            retain_until: Some(later(now, policy.retention)),
            ..changed.due(Due::Never)
        },
        Event::Released { all: false } if saga.phase.is_over() => {
            // The later the longer it takes.
            let age = Duration::try_from(now.duration_since(saga.created_at)).unwrap_or_default();
            let wait = (age / 2).clamp(policy.look_again, policy.retry.max.max(policy.look_again));
            changed.due(Due::At(later(now, wait)))
        }
        Event::Told { delivered } => match saga.telling {
            None => return Err(wrong),
            Some(before) => told(changed, before + 1, *delivered, policy, now),
        },
        Event::Retry { .. } | Event::Settled { .. } if is_lost => return Err(Illegal::AfterLoss),
        Event::Retry { by, reason } | Event::Settled { by, reason } => {
            let Phase::Stuck { at_rest, .. } = saga.phase else {
                return Err(wrong);
            };
            let is_settled = matches!(event, Event::Settled { .. });
            // What was decided about the one call of such a saga counts from now on.
            let at_rest = at_rest || saga.only.is_some() && is_settled;
            let again = changed.enter(Phase::Compensating { at_rest }).anew(now);
            again.noted(
                if is_settled { "settled" } else { "retry" },
                by,
                reason,
                now,
            )
        }
        Event::Prolonged { .. }
        | Event::Rested
        | Event::Blocked { .. }
        | Event::Advanced
        | Event::Undone { .. } => match at_rest {
            Some(at_rest) => undoing(changed, event, at_rest, policy, now)?,
            None => return Err(wrong),
        },
        Event::Complete { .. }
        | Event::Abort { .. }
        | Event::Held { .. }
        | Event::StoreLost { .. }
        | Event::CallFound
        | Event::Released { .. } => return Err(wrong),
    })
}

/// The saga with its work as an event leaves it, and whether that is given up.
fn worked(
    saga: Saga,
    event: work::Event,
    policy: &Policy,
    now: Timestamp,
) -> Result<(Saga, bool), work::NotDue> {
    let next = saga.work.next(&event, &policy.of_work(), now)?;
    let work = next.work;
    Ok((Saga { work, ..saga }, next.gives_up))
}

/// What an event does to a saga whose calls are being undone.
fn undoing(
    saga: Saga,
    event: &Event,
    at_rest: bool,
    policy: &Policy,
    now: Timestamp,
) -> Result<Saga, Illegal> {
    let was_stuck = saga.state() == State::Stuck;
    Ok(match event {
        Event::Prolonged { until } => {
            let until = *until;
            // What was waited for has come to rest: what fails now fails for the first time.
            let saga = if was_stuck { saga.anew(now) } else { saga };
            let (saga, _) = worked(saga, work::Event::Prolonged { until }, policy, now)?;
            saga.enter(Phase::Compensating { at_rest })
        }
        // What is undone after it has its own tries.
        Event::Rested => {
            let due = saga.work.due;
            let rested = saga.enter(Phase::Compensating { at_rest: true });
            rested.anew(now).due(due)
        }
        Event::Undone { by } => {
            let undone = saga.enter(Phase::Compensated).anew(now);
            undone.noted("compensated", by, "all of it is undone", now)
        }
        Event::Blocked {
            by,
            trouble,
            blocker,
            jitter,
        } => {
            let (blocker, jitter) = (*blocker, *jitter);
            let event = work::Event::Blocked { blocker, jitter };
            let (saga, gives_up) = worked(saga, event, policy, now)?;
            let is_transient = matches!(blocker, Blocker::Unknown | Blocker::Busy);
            let blocked = Saga {
                trouble: Some(trouble.clone()),
                phase: if gives_up {
                    Phase::Stuck {
                        at_rest,
                        is_transient,
                    }
                } else {
                    saga.phase
                },
                ..saga
            };
            if was_stuck {
                // What may end without an operator is still looked at.
                let goes_on = !gives_up || is_transient || blocked.telling.is_some();
                return Ok(if goes_on {
                    blocked
                } else {
                    blocked.due(Due::Never)
                });
            }
            let detail = match trouble.call_id {
                Some(call_id) => format!("call {call_id}: {}", trouble.why),
                None => trouble.why.clone(),
            };
            if gives_up {
                Saga {
                    telling: Some(0),
                    ..blocked.due(Due::At(now))
                }
                .noted("stuck", by, &detail, now)
            } else if blocker == Blocker::Busy {
                blocked
            } else {
                blocked.noted("hindered", by, &detail, now)
            }
        }
        _ => saga.enter(Phase::Compensating { at_rest }).anew(now),
    })
}

/// After so many tries to tell an operator.
fn told(saga: Saga, tellings: u32, delivered: bool, policy: &Policy, now: Timestamp) -> Saga {
    let is_over = delivered || tellings >= TELLINGS;
    let wait = retry::delay(&policy.retry, tellings, 1.0, None);
    let goes_on = !is_over || saga.phase.is_stuck_for_now();
    let due = if goes_on {
        Due::At(later(now, wait))
    } else {
        Due::Never
    };
    Saga {
        telling: (!is_over).then_some(tellings),
        ..saga.due(due)
    }
}

#[cfg(test)]
#[path = "saga_tests.rs"]
mod tests;
