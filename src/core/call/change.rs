//! The result of an event: the record to write, and the action after that.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::core::key::Lookup;
use crate::core::outcome::Outcome;
use crate::core::record::{AttemptId, CallId, Entry, Record};
use crate::core::session::{Admission, Release};

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
    /// The conditions of a call that begins.
    ///
    /// The store writes token, lock and places into the record.
    pub admission: Option<Admission>,
    /// The lock and places that the call gives back.
    pub release: Release,
    /// Names that the call takes beside its own. A claim takes all of them and has none here.
    pub takes: Takes,
}

/// Names that a change claims for its call.
///
/// If another call holds one of them, nothing is written, unless each holder is still exactly one
/// of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Takes {
    /// The last of the record's names.
    pub names: Vec<Lookup>,
    pub instead_of: Vec<Record>,
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
        }
    }

    /// The same, with an entry about this attempt.
    pub(super) fn about(mut self, attempt: AttemptId) -> Self {
        self.entry.attempt = Some(attempt);
        self
    }

    /// The same, with an entry that says what the attempt proved.
    pub(super) fn proving(mut self, outcome: &Outcome) -> Self {
        self.entry.outcome = Some(Cow::Borrowed(outcome.as_str()));
        self
    }

    /// The record as this change leaves it, if the change was stored.
    ///
    /// Values that a store draws itself are taken from `stored`.
    #[must_use]
    pub fn as_stored(&self, stored: &Record) -> Record {
        let record = self.record.clone();
        match self.admission {
            Some(_) => Record {
                fencing: stored.fencing,
                similar_to: stored.similar_to,
                ..record
            },
            None => record,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Write the claim, then dispatch.
    ///
    /// The claim is in place of the finished call that still has the key, if there is one.
    Claim { instead_of: Option<CallId> },
    /// Write the change, then dispatch.
    Run,
    /// Write the change, then ask the tool whether it knows the key.
    Probe,
    /// Write the change, then send the same request once more, and compare.
    Verify,
    /// Write the change, wait, then dispatch the record's new attempt.
    Retry { after: Duration },
    /// Write the change: this run is over.
    Finish,
    /// Write the change, and alert a person: an attempt that counts as not executed was executed.
    Alarm,
    /// The call runs: wait for it.
    Wait,
    /// Answer with the stored record.
    Answer,
    /// Write the change that adds names to the call; then answer with the stored record.
    TakeNames,
    /// Write the change that says what an adopted call asked for; then answer with the stored record.
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
    /// A zombie: another owner has taken over, or the call is settled.
    #[error("the attempt does not own the call any more")]
    NotOwner,
    #[error("the call's lease is not over")]
    LeaseHeld,
    #[error("the call is not under way")]
    NotRunning,
    /// A late end of an attempt leaves the call unknown.
    #[error("the call's outcome is as unknown as it was")]
    StillUnknown,
    /// The call is not unknown.
    #[error("the call's outcome is known")]
    NotUnknown,
    /// Another gateway checks the call, or its check is not due yet.
    #[error("it is not time to work on the call")]
    NotDue,
    /// The tool cannot be asked whether it knows a key.
    #[error("its tool has no probe, or is not configured here")]
    NoProbe,
    /// The call has no result to compare with.
    #[error("the call has no result")]
    NoResult,
    /// The call is undone or being undone already, or only reads.
    #[error("there is nothing to undo")]
    NothingToUndo,
    /// The call is not kept for its saga.
    #[error("the call is not kept for its saga")]
    NotKept,
    /// Sending it once more may have an effect; says why.
    #[error("{0}")]
    ReplayUnsafe(&'static str),
    /// The call's first request may still reach the tool.
    #[error("the call may still be executed until its lease is over")]
    MayStillRun,
    /// The call may still be undone.
    #[error("the call that undoes it may still run")]
    BeingUndone,
    /// The key of an effect is another call's.
    #[error("another call holds the key")]
    KeyHeld,
}
