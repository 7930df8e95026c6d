//! Where records are kept: few verbs, each atomic, and no rules.
//!
//! The store compares and swaps what `core` decided. It must not know what a state means; of a
//! record it looks only at the key it is claimed under, its version, its attempt and its times.

pub mod sqlite; // the embedded store of one gateway

use async_trait::async_trait;
use jiff::Timestamp;

use crate::core::call::Change;
use crate::core::key;
use crate::core::record::{CallId, Entry, Record};

/// Why a verb did nothing, or may have.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Nothing was changed.
    #[error("the store refused: {0}")]
    Refused(String),
    /// The change may have been made: ask again with the same attempt.
    #[error("the store did not answer: {0}")]
    Ambiguous(String),
}

impl Error {
    /// The word for it in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Ambiguous(_) => "ambiguous",
        }
    }
}

/// What came of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The key is held by this attempt. The record is as stored, with its fencing token.
    Yours(Record),
    /// Another call, or another attempt of it, holds the key.
    Existing(Record),
}

/// What came of a replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replaced {
    /// The record as stored.
    Done(Record),
    /// The record has changed since, or is gone. Nothing was written.
    Lost(Option<Record>),
}

/// How many calls of a tool are in a state that is not an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    pub tool: String,
    /// `running` or `unknown`.
    pub state: String,
    pub calls: u64,
}

/// What a store's promise rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// What is acknowledged survives the loss of the process and of power.
    Strict,
}

impl Durability {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
        }
    }
}

/// Whether calls may be claimed, and on what promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    pub durability: Durability,
    /// Why no call may be claimed; empty if they may.
    pub reasons: Vec<String>,
}

/// The one seam of the house.
///
/// Every verb is atomic: a crash leaves it done or not begun. A verb that writes answers only when
/// what it wrote is durable, as far as the store's [`Durability`] goes.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Claims the key of `change.record` for its attempt, writes its first ledger entry and, if
    /// the change asks for it, draws the session's next fencing token.
    ///
    /// If the key is held, nothing is written and the holder is returned, unless the holder is the
    /// call `instead_of`: that one gives up the key in the same step and stays in the ledger. Asked
    /// again with the same attempt it answers `Yours`.
    async fn claim(&self, change: &Change, instead_of: Option<CallId>) -> Result<Claimed, Error>;

    /// Writes `change` if the stored record is still `expected`: same version, attempt and fencing
    /// token. Asked again with the same change it answers `Done`.
    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error>;

    /// The call that holds a key now.
    async fn holder(&self, lookup: key::Lookup) -> Result<Option<Record>, Error>;

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error>;

    /// A call with the newest entries of its ledger, oldest first, at most `limit`.
    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<(Record, Vec<Entry>)>, Error>;

    /// Running calls that nobody can be at any more, oldest first, at most `limit`: their lease is
    /// over, or their owner is known to have ended.
    async fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<Due>, Error>;

    /// Counts running and unknown calls per tool.
    async fn census(&self) -> Result<Vec<Census>, Error>;

    /// Deletes what is kept no longer, at most `limit` records and as many sessions, and answers how
    /// many of both: none is left if it is less than `limit`.
    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error>;

    async fn readiness(&self) -> Readiness;
}

/// A running call without a living owner, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    pub record: Record,
    /// The owner's process has ended; otherwise only the lease is over.
    pub owner_ended: bool,
}
