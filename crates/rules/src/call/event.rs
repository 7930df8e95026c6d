//! The events of a call.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::actor::By;
use crate::approval::{Ask, Digest, Shown};
use crate::key_scheme::fingerprints::Fingerprints;
use crate::mcp::remote::Seen;
use crate::outcome::Evidence;
use crate::record::{
    AttemptId, CallId, Compensation, Content, Failure, InstanceId, Intent, Record,
};
use crate::replay::Fresh;
use crate::session::Preconditions;
use crate::unknown::{CheckBlocker, Finding, Resolution};

/// An event of a call.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request asks for the call.
    Arrived(Arrival),
    /// A request asks for the call, and its tool's rule asks for approval.
    Asked { arrival: Arrival, ask: Ask },
    /// An approver approves the call.
    Approved(Approved),
    /// An approver declines the call.
    Declined(Declined),
    /// The call's maker, an operator or its saga takes it back before it is sent.
    Withdrawn(By),
    /// The time to decide, or to begin an approved call, may be over.
    ProposalDue { by: InstanceId },
    /// A gateway begins an approved call.
    Begun(Begun),
    /// Gateway `by` found a similar call that was not shown to the approvers of an approved call.
    Voided { by: InstanceId, similar: CallId },
    /// Gateway `by` found that the fencing token of an approved call is stale.
    Outdated { by: InstanceId },
    /// An attempt ended.
    Ended(Ended),
    /// The lease ended and no outcome was written. Gateway `by` found the call.
    LeaseOver { by: InstanceId },
    /// The process that owned the running attempt has ended. Gateway `by` found the call.
    OwnerLost { by: InstanceId },
    /// An operator accepts that the store has lost its newest writes.
    ///
    /// A running call may have ended since, and a failed one may have run again.
    StoreLost {
        by: By,
        /// The store has every write up to this time; `None`: no such time is known.
        whole_until: Option<Timestamp>,
    },
    /// An operator takes the session's lock from the run with this fencing token.
    Unlocked { by: By, fencing: Option<u64> },
    /// The check of an unknown call is due, and gateway `by` does it.
    ///
    /// `attempt` is the id of a further attempt; `None`: the tool is paused, so nothing is sent.
    CheckDue {
        by: InstanceId,
        attempt: Option<AttemptId>,
    },
    /// Gateway `by` found the due check blocked.
    CheckPostponed {
        by: InstanceId,
        blocker: CheckBlocker,
    },
    /// Gateway `by` found an unknown call without a planned check, although its tool has a policy now.
    CheckMissing { by: InstanceId },
    /// An operator wants the tool asked whether it knows the key.
    ProbeAsked(By),
    /// A probe has asked the tool whether it knows the key.
    Probed(Probed),
    /// An MCP server answered an attempt with a task of this id.
    TaskGiven { attempt: AttemptId, id: String },
    /// Gateway `by` has asked an MCP server for the task that it had given for an attempt.
    TaskSeen {
        by: InstanceId,
        attempt: AttemptId,
        seen: Seen,
    },
    /// A client asks to cancel the call.
    CancelAsked(By),
    /// An operator settles an unknown or a stuck call.
    Resolved { by: By, resolution: Resolution },
    /// A source shows the effect of an unknown call to the reconciliation `by`.
    Reconciled { by: String, content: Content },
    /// The operator with token `by` wants the request sent once more, to compare the results.
    ///
    /// `by_operator`: the stored result comes from an operator, not from the tool.
    ToVerify { by: String, by_operator: bool },
    /// The tool answered the same request once more.
    Verified { by: String, fresh: Fresh },
    /// Gateway `by` has claimed the call, and its saga does not let the call be sent.
    NotJoined {
        by: InstanceId,
        attempt: AttemptId,
        why: Failure,
    },
    /// The call is to be undone by this compensation; `None`: its tool declares none.
    ToCompensate {
        by: By,
        compensation: Option<Compensation>,
    },
    /// Gateway `by` found that the compensation has ended, or never will run.
    UndoEnded { by: InstanceId, end: UndoEnd },
    /// An operator decides that the call is not undone.
    ///
    /// `compensation` is the stored compensation. No gateway begins it meanwhile.
    Skipped {
        by: By,
        compensation: Option<Box<Record>>,
    },
    /// The call's saga has ended and no longer keeps the call.
    SagaEnded { by: InstanceId },
    /// An operator has the data of the call's user erased.
    Erased { by: By },
    /// Gateway `by` found that the time for the call's arguments or result may be over.
    BodiesOver { by: InstanceId },
    /// An operator has the tool's `retention` of today counted for the call.
    RetentionChanged { by: By },
    /// An effect without a call in the ledger is written back as a call.
    Adopted(Adoption),
    /// A reconciliation is about to undo, at its source, the effect that the call was adopted from.
    EffectToUndo(By),
    /// A request with another key looks like the call and is to get its result.
    Resembled(Resembled),
}

/// An approval.
#[derive(Debug, Clone)]
pub struct Approved {
    /// The name of the approver's token.
    pub by: String,
    pub reason: String,
    /// What the approver says that it has seen.
    pub seen: Digest,
    /// What the gateway shows now.
    pub shown: Shown,
}

/// A refusal by an approver.
#[derive(Debug, Clone)]
pub struct Declined {
    /// The name of the approver's token.
    pub by: String,
    pub reason: String,
    /// What the agent is told; empty: nothing more.
    pub tell: String,
}

/// The begin of an approved call.
#[derive(Debug, Clone)]
pub struct Begun {
    pub by: InstanceId,
    pub attempt: AttemptId,
    /// The call as this gateway would send it.
    pub bound: Digest,
}

/// The end of an attempt, as its owner saw it.
#[derive(Debug, Clone)]
pub struct Ended {
    pub attempt: AttemptId,
    pub fencing: Option<u64>,
    pub evidence: Evidence,
    /// The id and jitter of a further attempt; `None`: the owner makes none.
    pub retry: Option<Retry>,
}

/// The answer to a probe.
#[derive(Debug, Clone)]
pub struct Probed {
    /// The gateway that asked the tool.
    pub by: InstanceId,
    pub asked_at: Timestamp,
    pub finding: Finding,
    /// How long the tool asked to wait.
    pub retry_after: Option<Duration>,
}

/// A request whose key is another than that of the call it looks like.
#[derive(Debug, Clone)]
pub struct Resembled {
    pub intent: Arc<Intent>,
    /// Calls past their window that hold a lookup key of the request.
    pub replaced: Vec<Record>,
    /// The gateway that got the request.
    pub by: InstanceId,
}

/// A request for a call, as read by the gateway that would run it.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub intent: Arc<Intent>,
    /// The request's fingerprints by the key schemes of earlier calls.
    pub fingerprints: Arc<Fingerprints>,
    pub preconditions: Preconditions,
    pub attempt: AttemptId,
    pub owner: InstanceId,
}

/// An effect that a source shows and that is adopted as a call.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// What the effect shows of the intent: a key, and no arguments.
    pub intent: Arc<Intent>,
    /// Derived from the effect, so that the effect is adopted only once.
    pub attempt: AttemptId,
    pub content: Content,
    /// The gateway that adopts the effect.
    pub owner: InstanceId,
    /// The reconciliation that has found the effect.
    pub by: String,
    /// A sentence for the history.
    pub why: String,
}

/// How a compensation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoEnd {
    Undone,
    /// Only an operator can undo the call; says why.
    Stuck(String),
}

impl Event {
    /// The newest attempt of a call ended, and its owner makes no further one.
    pub fn ended(record: &Record, evidence: Evidence) -> Self {
        Self::Ended(Ended {
            attempt: record.attempt.id,
            fencing: record.fencing,
            evidence,
            retry: None,
        })
    }

    /// The same event, without a further attempt.
    #[must_use]
    pub fn without_retry(&self) -> Self {
        let mut event = self.clone();
        if let Self::Ended(ended) = &mut event {
            ended.retry = None;
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
