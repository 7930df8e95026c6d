//! The events of a saga.

use jiff::Timestamp;

use super::{State, Trouble};
use crate::actor::By;
use crate::work::{self, Blocker};

/// An event of a saga.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A caller completes the saga: nothing is undone any more.
    Complete(By),
    /// A caller aborts the saga. `after_loss`: even if data was lost while the saga was open.
    Abort { by: By, after_loss: bool },
    /// The deadline passed while the saga was open. Gateway `by` has noticed.
    Overdue { by: String },
    /// A gateway takes the saga until then. Other gateways do not work on it meanwhile.
    Taken { until: Timestamp },
    /// The gateway that worked on the saga has ended, and no other gateway works on it.
    Freed,
    /// A request is being sent for the saga; its gateway needs until then.
    Prolonged { until: Timestamp },
    /// An operator is about to settle the trouble: a gateway that has read the saga before gives way.
    Held { until: Timestamp },
    /// All calls are at rest. From now on none of them is sent again.
    Rested,
    /// A call was found that joined the saga unseen, although the saga has ended.
    CallFound,
    /// An operator accepts that the store has lost its newest writes.
    StoreLost(By),
    /// Gateway `by` found the saga blocked. `jitter` is random, of 0..1.
    Blocked {
        by: String,
        trouble: Trouble,
        blocker: Blocker,
        jitter: f64,
    },
    /// A call was undone, or the blocker is gone.
    Advanced,
    /// Gateway `by` has undone all calls.
    Undone { by: String },
    /// The calls were let go, so that cleanup may delete them. `all` is false if some are not at rest.
    Released { all: bool },
    /// An operator was told of the trouble, or could not be reached.
    Notified { delivered: bool },
    /// An operator wants another try.
    Retry(By),
    /// An operator has settled the call in trouble.
    Settled(By),
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
