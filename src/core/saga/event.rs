//! What may happen to a saga.

use jiff::Timestamp;

use super::{State, Trouble};
use crate::core::work::{self, Blocker};

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
