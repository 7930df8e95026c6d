//! A saga: a group of calls that is completed or undone as a whole (H. Garcia-Molina, K. Salem: Sagas,
//! SIGMOD 1987).
//!
//! A saga begins with the first call that names it, and takes calls while it is open. When it is aborted, its calls
//! are undone, the newest first, by one compensation each. [`next`] moves a saga; [`plan::plan`] says which step of the
//! undoing comes next. Must not know how a call is sent.
//!
//! ```text
//!            complete
//!   open ──────────────► completed
//!     │ abort, or its time is over
//!     ▼                all undone
//!   compensating ──────────────► compensated
//!     │  ▲
//!     ▼  │ an operator: retry, skip, resolve; or a transient cause has ended
//!   stuck
//! ```
//!
//! A saga that is open when the store loses data is stuck, too, until an operator completes or aborts it.

pub mod compensation; // how a tool's calls are undone
mod ended_by; // who may end it
mod event; // the events
mod next; // what an event does
pub mod plan; // the next step of the undoing
mod stored; // a saga as a document
pub mod undo; // the keys and arguments of compensations

use std::time::Duration;

use jiff::Timestamp;

pub use self::event::{Event, Illegal};
pub use self::next::next;
use crate::actor::By;
use crate::record::{CallId, Entry, Record, State as CallState};
use crate::retry;
use crate::time::later;
use crate::timings::Timings;
use crate::words::words;
use crate::work::{self, Due, Work};

/// Names a saga for ever, within its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SagaId {
    pub tenant: String,
    pub id: String,
}

impl SagaId {
    pub fn new(tenant: impl Into<String>, id: impl Into<String>) -> Self {
        Self {
            tenant: tenant.into(),
            id: id.into(),
        }
    }
}

/// Most entries of a saga's history.
const MAX_EVENTS: usize = 100;
/// Postponements in a row before an operator is told: an hour of them.
const MOST_WAITS: u32 = 720;

/// The settings for sagas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a saga may be open.
    pub deadline: Duration,
    pub on_timeout: OnTimeout,
    /// Tries to undo one call, and the waits between them, before the saga needs an operator.
    pub retry: retry::Policy,
    /// How long a finished saga is kept.
    pub retention: Duration,
    /// The longest pause before a running or unknown call is looked at again.
    pub look_again: Duration,
}

words! {
    /// The action when a saga is open for too long.
    pub enum OnTimeout {
        Abort = "abort",
        /// The saga stays open, and a log line reports it.
        Report = "report",
    }
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
            look_again: Timings::default().saga_looks_again,
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

/// A saga and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saga {
    pub id: SagaId,
    /// Rises by one with every change, for compare-and-swap.
    pub version: u64,
    pub phase: Phase,
    /// Name of the token that began the saga; empty for an operator or the gateway.
    pub begun_by: String,
    /// The one call that the saga undoes; `None`: all calls that name the saga.
    pub only: Option<CallId>,
    /// Why the saga was completed or aborted; empty before that.
    pub reason: String,
    /// The trouble that keeps the saga from going on.
    pub trouble: Option<Trouble>,
    pub work: Work,
    /// Whether the deadline passed while the saga was open.
    pub overdue: bool,
    /// Failed tries to tell an operator of the trouble; `None`: nothing to tell.
    pub telling: Option<u32>,
    pub created_at: Timestamp,
    pub deadline: Option<Timestamp>,
    pub updated_at: Timestamp,
    /// From when on cleanup may delete the saga; `None`: never, as long as the saga is unfinished.
    pub retain_until: Option<Timestamp>,
    /// The newest entries of the history, oldest first.
    pub events: Vec<Entry>,
}

/// The phase of a saga, with the values that only this phase has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Calls may join it.
    Open,
    Completed,
    /// The calls are being undone. `at_rest`: none of them is sent any more.
    Compensating {
        at_rest: bool,
    },
    Compensated,
    /// The saga needs an operator. `is_transient`: the cause may end by itself, and the worker retries.
    Stuck {
        at_rest: bool,
        is_transient: bool,
    },
    /// Data was lost while the saga was open. An operator completes or aborts it.
    OpenAtLoss,
}

words! {
    /// The state of a saga, in one word.
    pub enum State {
        Open = "open", Completed = "completed",
        Compensating = "compensating", Compensated = "compensated", Stuck = "stuck",
    }
}

impl State {
    /// The states of unfinished sagas.
    pub const UNFINISHED: [Self; 3] = [Self::Open, Self::Compensating, Self::Stuck];
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

    /// Whether the calls are at rest; `None`: the saga is not being undone.
    fn at_rest(self) -> Option<bool> {
        match self {
            Self::Compensating { at_rest } | Self::Stuck { at_rest, .. } => Some(at_rest),
            Self::Open | Self::Completed | Self::Compensated | Self::OpenAtLoss => None,
        }
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

/// The trouble that keeps a saga from going on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The call in trouble; `None`: the trouble is the whole saga's.
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
    pub fn undo(tenant: &str, call_id: CallId, by: &By, now: Timestamp) -> Self {
        let id = SagaId::new(tenant, undo::key_of(call_id));
        Self {
            only: Some(call_id),
            reason: by.reason.clone(),
            ..Self::new(id, Phase::Compensating { at_rest: false }, now, now)
        }
        .noted("aborted", &by.actor, &by.reason, now)
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

    /// Whether calls may join the saga.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether unknown calls may still be sent again: not once other calls are being undone.
    pub fn may_send_again(&self) -> bool {
        self.phase != Phase::Compensated && self.phase.at_rest() != Some(true)
    }

    /// Whether an operator may ask for another try.
    pub fn may_be_retried(&self) -> bool {
        matches!(self.phase, Phase::Stuck { .. })
    }

    /// The call that an operator may skip; `None`: the saga is not stuck with one call.
    pub fn call_to_skip(&self) -> Option<CallId> {
        let trouble = self.trouble.as_ref().filter(|_| self.may_be_retried());
        trouble?.call_id
    }

    /// Whether the undoing of one call may begin anew, because the call was skipped.
    pub fn may_undo_after_all(&self, call: &Record) -> bool {
        self.phase == Phase::Compensated && !matches!(call.state, CallState::Compensated(_))
    }

    /// The saga in another phase, without its trouble.
    fn enter(self, phase: Phase) -> Self {
        Self {
            phase,
            trouble: None,
            telling: None,
            ..self
        }
    }

    /// The saga with a trouble that an operator is told of now.
    fn reporting(self, now: Timestamp) -> Self {
        Self {
            telling: Some(0),
            ..self.due(Due::At(now))
        }
    }

    fn due(self, due: Due) -> Self {
        Self {
            work: Work { due, ..self.work },
            ..self
        }
    }

    /// The saga with its tries reset.
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
        self.events.push(Entry::new(now, event, by, detail));
        let surplus = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..surplus);
        self
    }
}

#[cfg(test)]
mod tests;
