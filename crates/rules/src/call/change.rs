//! The result of an event: the record to write, and the action after that.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::key::Lookup;
use crate::outcome::Outcome;
use crate::record::{Attempt, AttemptId, Entry, InstanceId, Intent, Record, State};
use crate::session::{Admission, Release};
use crate::time::after;
use crate::tool::{OnUnknown, Tool};

/// A stored call that an event meets, with its tool and the time of the event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) tool: &'a Tool,
    pub(super) record: &'a Record,
    pub(super) now: Timestamp,
    /// The time by which the windows of keys are measured: see [`Now::dedup_now`].
    pub(super) dedup_now: Timestamp,
}

/// The time of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Leases, deadlines and waits go by this time. It stands still while the gateway's machine is suspended: a request
    /// that was on its way then is still on its way.
    pub at: Timestamp,
    /// How far it is behind because the machine was suspended since the gateway's start.
    pub slept: SignedDuration,
}

impl Now {
    /// The time by which the windows of keys are measured.
    ///
    /// It goes on while the machine is suspended. Otherwise the next process, whose time does not lag, would take a key
    /// for older than it is, and forget it early.
    pub fn dedup_now(self) -> Timestamp {
        self.at.checked_add(self.slept).unwrap_or(self.at)
    }
}

/// The time in a gateway whose machine never slept.
impl From<Timestamp> for Now {
    fn from(at: Timestamp) -> Self {
        let slept = SignedDuration::ZERO;
        Self { at, slept }
    }
}

impl Call<'_> {
    /// How far its time is behind, because the machine was suspended.
    pub(super) fn slept(&self) -> SignedDuration {
        self.dedup_now.duration_since(self.now)
    }

    /// The next version of the record, changed now.
    pub(super) fn changed(&self) -> Record {
        self.record.changed(self.now)
    }

    /// Whether the newest attempt's request may still reach the tool, or its server is still asked for its task.
    pub(super) fn may_still_run(&self) -> bool {
        let is_asked = self.record.check.is_some_and(|check| check.at.is_some());
        let is_unknown = matches!(self.record.state, State::Unknown(_));
        let has_task = self.record.attempt.remote_task.is_some();
        // A server that is not configured any more is asked no more.
        let is_known = self.tool.unknown != OnUnknown::Elsewhere;
        self.now < self.record.attempt.lease_until
            || (is_unknown && is_known && has_task && is_asked)
    }

    /// Whether a request for this saga must not get the call.
    ///
    /// The call would be undone with its own saga, which knows nothing of the other one.
    pub(super) fn is_of_other_saga(&self, saga_id: &str) -> bool {
        !saga_id.is_empty() && saga_id != self.record.intent.saga_id
    }
}

/// The first attempt of a run that begins now.
pub(super) fn first_attempt(
    tool: &Tool,
    id: AttemptId,
    owner: InstanceId,
    now: Timestamp,
) -> Attempt {
    Attempt {
        id,
        owner,
        number: 1,
        run_started_at: now,
        lease_until: after(now, tool.lease()),
        remote_task: None,
    }
}

/// What to write, and what to do once it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    pub change: Option<Change>,
    pub action: Action,
}

impl Next {
    /// Nothing is written.
    pub(super) fn unchanged(action: Action) -> Self {
        Self {
            change: None,
            action,
        }
    }

    pub(super) fn write(change: Change, action: Action) -> Self {
        Self {
            change: Some(change),
            action,
        }
    }

    pub(super) fn finish(change: Change) -> Self {
        Self::write(change, Action::Finish)
    }
}

/// A new version of a record with its entry in the ledger. Both are stored in one atomic step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub record: Record,
    pub entry: Entry,
    /// The conditions on which the call begins; `None`: the change begins no call.
    ///
    /// The store writes the token, the lock and the places that follow.
    pub admission: Option<Admission>,
    /// The lock and the places that the call gives back.
    pub release: Release,
    /// Further lookup keys for a call that has a key already. A claim claims all of its lookup keys without this.
    pub takes: Takes,
    /// The intent as it was, if the change erases arguments or names.
    ///
    /// The store then writes the new intent, and takes the call out of the lists of the names that it has no more.
    pub erases: Option<Arc<Intent>>,
}

/// Names that a change claims for its call.
///
/// If another call holds one of them, nothing is written, unless each holder is still exactly one
/// of `replaced`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Takes {
    /// The last of the record's lookup keys.
    pub lookups: Vec<Lookup>,
    pub replaced: Vec<Record>,
}

impl Change {
    /// A changed record and the entry that gives the reason.
    pub(super) fn new(
        record: Record,
        event: &'static str,
        by: impl fmt::Display,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            entry: Entry::new(record.updated_at, event, by, detail),
            record,
            admission: None,
            release: Release::default(),
            takes: Takes::default(),
            erases: None,
        }
    }

    /// The same change, with an entry about this attempt.
    pub(super) fn about(mut self, attempt: AttemptId) -> Self {
        self.entry.attempt = Some(attempt);
        self
    }

    /// The same change, with an entry that says what the attempt proved.
    pub(super) fn proving(mut self, outcome: &Outcome) -> Self {
        self.entry.outcome = Some(Cow::Borrowed(outcome.as_str()));
        self
    }

    /// The record that this change leaves in a store.
    ///
    /// `stored` gives the values that the store draws itself.
    #[must_use]
    pub fn as_stored(&self, stored: &Record) -> Record {
        let mut record = self.record.clone();
        if self.admission.is_some() {
            record.fencing = stored.fencing;
            record.similar_to = stored.similar_to;
        }
        record
    }
}

/// What to do about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Write the claim, then dispatch. The claim replaces a finished call that still has the key.
    Claim,
    /// Write the change, then dispatch.
    Run,
    /// Write the proposal: nothing is sent before it is approved.
    Propose,
    /// Write the change, then begin the approved call.
    Begin,
    /// Write the change, then ask the tool whether it knows the key.
    Probe,
    /// Write the change, then follow the task that an MCP server has given for the running attempt.
    Follow,
    /// Write the change, then ask the MCP server for the task that it has given for the call.
    AskTask,
    /// Write the change, then send the same request once more, and compare.
    Verify,
    /// Write the change, wait, then dispatch the record's new attempt.
    Retry { after: Duration },
    /// Write the change: this run is over.
    Finish,
    /// Write the change, and alert an operator: an attempt that counts as not executed was executed.
    Alarm,
    /// Wait: the call runs.
    Wait,
    /// Answer with the stored record.
    Answer,
    /// Write the change that gives the call further lookup keys, then answer with the stored record.
    TakeLookups,
    /// Write the change that keeps what an adopted call asked for, then answer with the stored record.
    TakeFingerprint,
    /// Refuse: the key stands for other arguments.
    RefuseReused,
    /// Refuse: it is unclear whether the key stands for the same arguments.
    RefuseUnclear,
    /// Refuse: the key is past its window.
    RefuseExpired,
    /// Refuse: the key stands for a call of another saga.
    RefuseOtherSaga,
    /// Refuse: an earlier call looks the same.
    RefuseSimilar,
    /// Refuse: the request lacks what the call needs to begin.
    RefuseUnfit(&'static str),
}

/// An event that does not fit the state. Changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    #[error("there is no such call")]
    NoCall,
    /// Another owner has taken over, or the call is settled.
    #[error("the attempt does not own the call any more")]
    NotOwner,
    #[error("the call's lease is not over")]
    LeaseHeld,
    #[error("the call is not under way")]
    NotRunning,
    /// The late end of an attempt proves nothing, so the call stays unknown.
    #[error("the call's outcome is still unknown")]
    StillUnknown,
    #[error("the call's outcome is known")]
    NotUnknown,
    /// Another gateway checks the call, or its check is not due yet.
    #[error("it is not time to work on the call")]
    NotDue,
    #[error("its tool has no probe, or is not configured here")]
    NoProbe,
    #[error("the call has no result")]
    NoResult,
    /// The call only reads, or it is undone or being undone already.
    #[error("there is nothing to undo")]
    NothingToUndo,
    #[error("the call is not retained for its saga")]
    NotStored,
    /// The call runs, its outcome is open, or its saga has not ended.
    #[error("the call has not ended, or its saga has not")]
    NotEnded,
    #[error("the call was erased before")]
    ErasedBefore,
    /// What the event would change of an ended call is so already.
    #[error("there is nothing left to do for the call")]
    NothingLeft,
    /// Another request may have another effect; says why.
    #[error("{0}")]
    ReplayUnsafe(&'static str),
    /// The call's request may still reach the tool, or its server works on it as a task.
    #[error("the call may still be executed until its lease and its server's task are over")]
    MayStillRun,
    #[error("the call that undoes it may still run")]
    BeingUndone,
    #[error("the call does not wait for approval")]
    NotProposed,
    #[error("the call is not approved")]
    NotApproved,
    #[error("the time to approve the call is over")]
    ApprovalOver,
    #[error("the token that made the call does not decide about it")]
    OwnCall,
    #[error("this token may not decide about the call")]
    NotAnApprover,
    /// The call would not begin as the approver has seen it.
    #[error("what was shown is not what would be sent now")]
    NotConfirmed,
    #[error("another call holds the key")]
    KeyHeld,
}
