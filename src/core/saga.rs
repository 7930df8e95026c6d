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

mod event; // what may happen to it
mod next; // what that does to it
pub mod plan; // what is done next about one that is being undone
mod stored; // as a document

use std::time::Duration;

use jiff::Timestamp;

pub use self::event::{Event, Illegal};
pub use self::next::next;
use super::pace::Pace;
use super::record::{CallId, Entry, Record, State as CallState};
use super::time::later;
use super::work::{self, Due, Work};
use super::{retry, undo};

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

/// Most entries of its history.
const MAX_EVENTS: usize = 100;
/// Postponements in a row before an operator is told: an hour of them.
const MOST_WAITS: u32 = 720;

/// The settings for sagas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a saga may be open.
    pub deadline: Duration,
    pub on_timeout: OnTimeout,
    /// Tries to undo one call, and the waits between them, before it needs an operator.
    pub retry: retry::Policy,
    /// How long a finished saga is kept.
    pub retention: Duration,
    /// The longest pause before a running or unknown call is looked at again.
    pub look_again: Duration,
}

/// The action when a saga is open for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTimeout {
    Abort,
    /// It stays open, and a log line reports it.
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

/// A saga and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saga {
    pub id: SagaId,
    /// Rises by one with every change, for compare-and-swap.
    pub version: u64,
    pub phase: Phase,
    /// Name of the token that began it; empty for an operator or the gateway.
    pub begun_by: String,
    /// The one call that it undoes; `None`: all calls that name the saga.
    pub only: Option<CallId>,
    /// Why it was completed or aborted; empty before that.
    pub reason: String,
    /// The trouble that keeps it from going on.
    pub trouble: Option<Trouble>,
    pub work: Work,
    /// Whether its deadline passed while it was open.
    pub overdue: bool,
    /// Failed tries to tell an operator of its trouble; `None`: there is nothing to tell.
    pub telling: Option<u32>,
    pub created_at: Timestamp,
    pub deadline: Option<Timestamp>,
    pub updated_at: Timestamp,
    /// From when on cleanup may delete it. An unfinished saga never may be.
    pub retain_until: Option<Timestamp>,
    /// The newest entries of its history, oldest first.
    pub events: Vec<Entry>,
}

/// The phase of a saga, with the values that only this phase has.
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
    /// It needs an operator. `is_transient`: the cause may end by itself, and the worker retries.
    Stuck {
        at_rest: bool,
        is_transient: bool,
    },
    /// Data was lost while it was open. An operator completes or aborts it.
    OpenAtLoss,
}

/// The state of a saga, in one word.
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

    /// The states of unfinished sagas.
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

    /// Whether its calls are at rest; `None`: it is not being undone.
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

/// The trouble that keeps a saga from going on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The call in trouble, if it is one call.
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

    /// Whether calls may join the saga.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether its unknown calls may still be sent again: not once others are being undone.
    pub fn may_send_again(&self) -> bool {
        match self.phase {
            Phase::Open | Phase::Completed | Phase::OpenAtLoss => true,
            Phase::Compensating { at_rest } | Phase::Stuck { at_rest, .. } => !at_rest,
            Phase::Compensated => false,
        }
    }

    /// Whether a person may have it tried again.
    pub fn may_be_retried(&self) -> bool {
        matches!(self.phase, Phase::Stuck { .. })
    }

    /// The call that a person may skip; `None`: the saga is not stuck with one call.
    pub fn call_to_skip(&self) -> Option<CallId> {
        let trouble = self.trouble.as_ref().filter(|_| self.may_be_retried());
        trouble?.call_id
    }

    /// Whether the undoing of one call may begin anew, because the call was skipped.
    pub fn may_undo_after_all(&self, call: &Record) -> bool {
        self.phase == Phase::Compensated && !matches!(call.state, CallState::Compensated(_))
    }

    /// The saga in another phase, without its earlier trouble.
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
#[path = "saga_tests.rs"]
mod tests;
