//! Where records are kept: few verbs, each atomic, and no rules.
//!
//! A store compares and swaps what `core` decided. It must not know what a state means; of a
//! record it looks only at the key it is claimed under, its version, its attempt and its times.

mod aliases; // further keys that a call answers, as both stores keep them
mod cipher; // keys that encrypt texts
mod duplicates; // duplicates of a call, as both stores keep them
mod encrypted; // a layer around a store, which encrypts
mod endings; // hints that a call of another process has ended
mod lock; // locks that go on after a panic
mod private; // files that only one gateway may read
pub mod redis; // the store that many gateways share
pub mod sqlite; // the embedded store of one gateway
mod state; // a state in parts, as both stores keep it
mod undo; // how a call is undone, as both stores keep it
pub mod verbs; // what a store is asked

pub use self::cipher::Keys;
pub use self::encrypted::Encrypted;
pub use self::endings::{Endings, Listener};
pub use self::verbs::{
    Calls, Documents, Health, Ledger, LossRecovery, Pauses, Secrets, Sessions, Store,
};

use jiff::Timestamp;

use crate::core::document::Document;
use crate::core::record::Record;
use crate::core::session::Denied;

/// Why a verb did nothing, or may have.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Nothing was changed.
    #[error("the store refused: {0}")]
    Refused(String),
    /// The change may have been made: ask again with the same attempt.
    #[error("the store did not answer: {0}")]
    Ambiguous(String),
    /// What is stored cannot be read here, as it is now. Nothing was changed, and asking again does not help.
    #[error("what is stored cannot be read: {0}")]
    Unreadable(String),
}

impl Error {
    /// The word for it in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Ambiguous(_) => "ambiguous",
            Self::Unreadable(_) => "unreadable",
        }
    }
}

/// What a search has found. One call, or document, that cannot be read is not in the way of all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    pub calls: Vec<T>,
    /// The ids of those that were passed over, each with what is wrong with it.
    pub unreadable: Vec<(String, String)>,
}

impl<T> Default for Found<T> {
    fn default() -> Self {
        Self {
            calls: Vec::new(),
            unreadable: Vec::new(),
        }
    }
}

impl<T> Found<T> {
    /// The same, with something else made of each call.
    pub fn map<U>(self, make: impl FnMut(T) -> U) -> Found<U> {
        Found {
            calls: self.calls.into_iter().map(make).collect(),
            unreadable: self.unreadable,
        }
    }
}

/// Calls or documents that cannot be read, and may stand before those that can.
const UNREADABLE: u32 = 1_000;

/// What came of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The key is held by this attempt. The record is as stored, with its fencing token.
    Yours(Record),
    /// Another call, or another attempt of it, holds one of the names.
    Existing(Record),
    /// The key is free, but the conditions do not hold.
    Denied(Denied),
}

/// Whether the holder of a name is still one of the records that were seen.
fn is_seen(holder: &Record, seen: &[Record]) -> bool {
    let version = |record: &Record| (record.intent.call_id, record.version, record.attempt.id);
    seen.iter().any(|seen| version(seen) == version(holder))
}

/// What came of a replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replaced {
    /// The record as stored.
    Done(Record),
    /// The record has changed since, or is gone. Nothing was written.
    Lost(Option<Record>),
    /// It is as expected, but the conditions do not hold.
    Denied(Denied),
}

/// What came of writing a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    Done,
    /// It has changed since, or is gone; this is what is stored. Nothing was written.
    Lost(Option<Document>),
}

/// How many calls of a tool are in a state that is not an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    pub tool: String,
    /// `running` or `unknown`.
    pub state: String,
    pub calls: u64,
}

/// What a store's promise rests on, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// What was acknowledged in the last seconds may be lost with power or in a failover. The loss is
    /// noticed afterwards.
    Relaxed,
    /// What is acknowledged is on a second machine, too.
    Bounded,
    /// What is acknowledged survives the loss of the process and of power.
    Strict,
}

impl Durability {
    pub const ALL: [Self; 3] = [Self::Strict, Self::Bounded, Self::Relaxed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Relaxed => "relaxed",
            Self::Bounded => "bounded",
            Self::Strict => "strict",
        }
    }
}

/// Whether calls may be claimed, and on what promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// What the store is found to be; `None` if that cannot be seen.
    pub durability: Option<Durability>,
    /// Why no call may be claimed; empty if they may.
    pub reasons: Vec<Reason>,
    /// What is allowed as the store is configured, and weakens the promise.
    pub warnings: Vec<Reason>,
    /// Writes of this gateway that the store turned out to have lost, since the start.
    pub lost_writes: u64,
    /// Since when every call is known: before it the ledger was not there, or has lost some. `None`: that
    /// cannot be seen.
    pub whole_since: Option<Timestamp>,
}

/// The code of the reason that only an operator can resolve: see [`LossRecovery::accept_loss`].
pub const LOST_DATA: &str = "lost_data";

/// The codes of reasons that go by themselves: until then it is not known whether data is lost.
pub const SETTLING: [&str; 4] = ["disconnected", "starting", "restarted", "suspect"];

/// The codes of reasons that cleanup takes away: there is no room.
pub const NO_ROOM: [&str; 2] = ["memory", "disk_full"];

/// Something about a store that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// One word for it in metrics; one of few.
    pub code: &'static str,
    /// A sentence that says what was found and what was to be found.
    pub text: String,
}

impl Reason {
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

/// A running call without a living owner, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    pub record: Record,
    /// The owner's process has ended; otherwise only the lease is over.
    pub owner_ended: bool,
}
