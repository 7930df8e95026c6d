//! What an event leads to: what is written, and what is done then.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::core::key::Lookup;
use crate::core::outcome::Outcome;
use crate::core::record::{AttemptId, CallId, Entry, Record};
use crate::core::session::{Admission, Release};

/// What to write, and what to do when it is written.
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
    /// On which conditions the call begins; the store writes into the record what follows from them.
    pub admission: Option<Admission>,
    /// What the call gives back.
    pub release: Release,
    /// Names that the call takes beside those that it has. Not of a claim, which takes all of them.
    pub takes: Takes,
}

/// Names that a change claims for its call. If another call holds one of them nothing is written, unless each holder
/// is still exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Takes {
    /// The last of the record's names.
    pub names: Vec<Lookup>,
    pub instead_of: Vec<Record>,
}

impl Change {
    /// A changed record, and the entry that says why; nothing else.
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

    /// The record as this change leaves it, if it is what is stored by now: what a store draws itself is
    /// taken from there.
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
    /// Claim the key with the changed record, in place of the finished call that still has it, if
    /// there is one; then dispatch.
    Claim { instead_of: Option<CallId> },
    /// Write the change, then dispatch.
    Run,
    /// Write the change, then ask the tool whether it knows the key.
    Probe,
    /// Write the change, then send the same once more, and compare.
    Verify,
    /// Write the change, wait, then dispatch the record's new attempt.
    Retry { after: Duration },
    /// Write the change: this run is over.
    Finish,
    /// Write the change, and tell a person: what counts as not executed was executed.
    Alarm,
    /// It runs.
    Wait,
    /// Answer with what the record says.
    Answer,
    /// Write the change, by which the call takes further names; then answer with what the record says.
    TakeNames,
    /// Answer that the key stands for something else.
    RefuseReused,
    /// Answer that the key is taken, and that it cannot be said whether for the same.
    RefuseUnclear,
    /// Answer that the key is too old.
    RefuseExpired,
    /// Answer that the key stands for a call of another saga.
    RefuseOtherSaga,
    /// Answer that an earlier call looks the same.
    RefuseSimilar,
    /// Answer that the request lacks something without which the call cannot begin.
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
    /// An ended attempt brought no news.
    #[error("the call's outcome is as unknown as it was")]
    StillUnknown,
    /// Nothing has to be settled.
    #[error("the call's outcome is known")]
    NotUnknown,
    /// Another gateway works on it, or it is not time yet.
    #[error("it is not time to work on the call")]
    NotDue,
    /// There is no result to compare with.
    #[error("the call has no result")]
    NoResult,
    /// It is undone already, or being undone; or the tool only reads.
    #[error("there is nothing to undo")]
    NothingToUndo,
    /// It is kept for as long as any other.
    #[error("the call is not kept for its saga")]
    NotKept,
    /// To send it once more may have an effect; says why.
    #[error("{0}")]
    ReplayUnsafe(&'static str),
    /// Its first request may still reach the tool.
    #[error("the call may still be executed until its lease is over")]
    MayStillRun,
    /// It may yet be undone.
    #[error("the call that undoes it may still run")]
    BeingUndone,
}
