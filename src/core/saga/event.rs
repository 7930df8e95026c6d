//! The events of a saga.

use jiff::Timestamp;

use super::{State, Trouble};
use crate::core::work::{self, Blocker};

/// An event of a saga. `by` is a token or a gateway.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A caller completes it: nothing is undone any more.
    Complete { by: String, reason: String },
    /// A caller aborts it. `after_loss`: also if data was lost while it was open.
    Abort {
        by: String,
        reason: String,
        after_loss: bool,
    },
    /// Its deadline passed while it was open.
    Overdue { by: String },
    /// A gateway takes it until then; others leave it alone.
    Taken { until: Timestamp },
    /// The gateway that worked on it has ended, and no other works on it.
    Freed,
    /// A request is being sent for it; its gateway needs until then.
    Prolonged { until: Timestamp },
    /// An operator is about to settle its trouble: a gateway that read it before gives way.
    Held { until: Timestamp },
    /// All of its calls are at rest. From now on none of them is sent again.
    Rested,
    /// A call was found that joined it unseen, although the saga has ended.
    CallFound,
    /// An operator accepts that the store has lost its newest writes.
    StoreLost { by: String, reason: String },
    /// Something blocks it now. `jitter` is random, of 0..1.
    Blocked {
        by: String,
        trouble: Trouble,
        blocker: Blocker,
        jitter: f64,
    },
    /// A call was undone, or the blocker is gone.
    Advanced,
    /// All of its calls are undone.
    Undone { by: String },
    /// Its calls were let go, so that cleanup may delete them. `false`: some are not at rest yet.
    Released { all: bool },
    /// An operator was told of its trouble; `false`: could not be reached.
    Told { delivered: bool },
    /// An operator wants it tried again.
    Retry { by: String, reason: String },
    /// An operator has settled the call in trouble.
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
