//! What may happen to a call.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::core::outcome::Evidence;
use crate::core::recipe::prints::Prints;
use crate::core::record::{
    AttemptId, Compensation, Content, FailureKind, InstanceId, Intent, Record,
};
use crate::core::replay::Fresh;
use crate::core::session::Brought;
use crate::core::unknown::{CheckBlocker, Finding, Resolution};

/// What happens to a call.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request asks for it.
    Arrived(Arrival),
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
    CheckPostponed {
        by: InstanceId,
        blocker: CheckBlocker,
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

/// A request for a call, as the gateway that would run it has read it.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub intent: Arc<Intent>,
    /// What it is by the recipes of earlier calls.
    pub prints: Arc<Prints>,
    pub brought: Brought,
    pub attempt: AttemptId,
    pub owner: InstanceId,
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
        let mut event = self.clone();
        if let Self::Ended { retry, .. } = &mut event {
            *retry = None;
        }
        event
    }
}

/// The randomness that a further attempt needs.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    pub attempt: AttemptId,
    /// Of 0..1.
    pub jitter: f64,
}
