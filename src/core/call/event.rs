//! The events of a call.

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

/// An event of a call.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request asks for the call.
    Arrived(Arrival),
    /// An attempt ended, as its owner saw it.
    Ended {
        attempt: AttemptId,
        fencing: Option<u64>,
        evidence: Evidence,
        /// The id and jitter of a further attempt; `None`: its owner makes none.
        retry: Option<Retry>,
    },
    /// The lease ended without news of the call. `by` found it.
    LeaseOver { by: InstanceId },
    /// The process that owned the running attempt has ended. `by` found it.
    OwnerLost { by: InstanceId },
    /// A person accepts that the store has lost its newest writes.
    ///
    /// Running calls may have ended, and failed ones may have run again. `by` is that person's
    /// token.
    StoreLost {
        by: String,
        reason: String,
        /// The store surely has everything that was written until then; `None`: that is not known.
        whole_until: Option<Timestamp>,
    },
    /// A person takes the session's lock from the run with this fencing token.
    ///
    /// `by` is that person's token.
    Unlocked {
        by: String,
        reason: String,
        fencing: Option<u64>,
    },
    /// The check of an unknown call is due.
    ///
    /// `by` does it. A further attempt would be `attempt`; `None`: a person has paused the tool, so
    /// there must be none.
    CheckDue {
        by: InstanceId,
        attempt: Option<AttemptId>,
    },
    /// The check is due, but something blocks it. `by` has found that.
    CheckPostponed {
        by: InstanceId,
        blocker: CheckBlocker,
    },
    /// An unknown call has no check planned, although its tool has a policy now.
    ///
    /// `by` has found it.
    CheckMissing { by: InstanceId },
    /// A person wants the tool asked whether it knows the key. `by` is that person's token.
    ProbeAsked { by: String, reason: String },
    /// A probe asked at `asked_at` whether the tool knows the key. `by` has asked.
    Probed {
        by: InstanceId,
        asked_at: Timestamp,
        finding: Finding,
        /// How long the tool asked to wait.
        retry_after: Option<Duration>,
    },
    /// A person settles an unknown call. `by` is that person's token.
    Resolved {
        by: String,
        reason: String,
        resolution: Resolution,
    },
    /// A source shows the effect of an unknown call. `by` is the reconciliation that has found it.
    Reconciled { by: String, content: Content },
    /// A person wants the request sent once more, to compare.
    ///
    /// `by` is that person's token. `by_person`: the stored result is a person's, and not the
    /// tool's.
    ToVerify { by: String, by_person: bool },
    /// The tool answered the same request once more.
    Verified { by: String, fresh: Fresh },
    /// The call was claimed, and its saga does not let it be sent. `by` has found it.
    NotJoined {
        by: InstanceId,
        attempt: AttemptId,
        kind: FailureKind,
        why: String,
    },
    /// The call is to be undone by this compensation; `None`: its tool declares none.
    ///
    /// `by` is a gateway or a token.
    ToCompensate {
        by: String,
        reason: String,
        compensation: Option<Compensation>,
    },
    /// The compensation has ended, or never will run. `by` has noticed.
    UndoEnded { by: InstanceId, end: UndoEnd },
    /// A person decides that the call is not undone.
    ///
    /// `by` is that person's token; `compensation` is the stored compensation, which no gateway
    /// begins meanwhile.
    Skipped {
        by: String,
        reason: String,
        compensation: Option<Box<Record>>,
    },
    /// Its saga has ended, and no longer keeps the call.
    SagaEnded { by: InstanceId },
    /// An effect whose call no ledger knows any more is written back as a call.
    Adopted(Adoption),
    /// The effect that the call was adopted from is to be undone at its source. `by` is the reconciliation that does it.
    EffectToUndo { by: String, reason: String },
    /// A request with another key looks like the call and is to get its result.
    ///
    /// `instead_of` are calls past their window that hold a name of the request. `by` was asked.
    Resembled {
        intent: Arc<Intent>,
        instead_of: Vec<Record>,
        by: InstanceId,
    },
}

/// A request for a call, as read by the gateway that would run it.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub intent: Arc<Intent>,
    /// Its fingerprints by the recipes of earlier calls.
    pub prints: Arc<Prints>,
    pub brought: Brought,
    pub attempt: AttemptId,
    pub owner: InstanceId,
}

impl Arrival {
    /// Whether it names a saga that is not the call's: it would be undone with a saga of which this one knows nothing.
    pub(super) fn is_of_other_saga(&self, record: &Record) -> bool {
        let (named, there) = (&self.intent.saga_id, &record.intent.saga_id);
        !named.is_empty() && named != there
    }
}

/// An effect at a source that is adopted.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The intent, as far as it is known from the effect: a key, and no arguments.
    pub intent: Arc<Intent>,
    /// Follows from the effect, so that it is adopted once.
    pub attempt: AttemptId,
    pub content: Content,
    /// The gateway that adopts it.
    pub owner: InstanceId,
    /// The reconciliation that has found it.
    pub by: String,
    /// A sentence for the history.
    pub why: String,
}

/// How a compensation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoEnd {
    Undone,
    /// Only a person can undo it; says why.
    Stuck(String),
}

impl Event {
    /// The same event, without a further attempt.
    #[must_use]
    pub fn without_retry(&self) -> Self {
        let mut event = self.clone();
        if let Self::Ended { retry, .. } = &mut event {
            *retry = None;
        }
        event
    }
}

/// The id and randomness of a further attempt.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    pub attempt: AttemptId,
    /// 0 to 1.
    pub jitter: f64,
}
