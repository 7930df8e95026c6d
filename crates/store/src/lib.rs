//! The store's traits: few verbs, each atomic, and no rules.
//!
//! A store writes what `core` decided, by compare-and-swap. It must not know what a state means. It compares version,
//! attempt and fencing token of a record, and finds records by names, id, state, owner, tool, due times and the lists of
//! the ledger.

mod cipher; // keys that encrypt texts
pub mod codec; // calls as bytes, the same in both stores
mod encrypted; // a layer around a store, which encrypts
mod endings; // hints that a call of another process has ended
mod finished; // succeeded calls in memory
pub mod lock; // locks that go on after a panic
pub mod private; // files that only one gateway may read
mod remembering; // layers around a store, which remember succeeded calls
pub mod tracking; // whether remembered calls of a shared store are still as they were read
pub mod verbs; // the traits of a store

#[doc(hidden)]
pub use oncegate_rules; // for the macros of layers

pub use self::cipher::Keys;
pub use self::encrypted::Encrypted;
pub use self::endings::{Endings, Listener};
pub use self::finished::Finished;
pub use self::private::distrust;
pub use self::remembering::{Remembering, Tracked};
pub use self::verbs::{
    Calls, Documents, Health, Ledger, LossRecovery, Pauses, Secrets, Sessions, Store,
};

use jiff::Timestamp;

use oncegate_rules::document::{Document, Kind};
use oncegate_rules::position::Position;
use oncegate_rules::record::Record;
use oncegate_rules::session::Denied;
use oncegate_rules::words::words;
use oncegate_rules::work::Blocked;

/// Why a verb failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Nothing was changed.
    #[error("the store refused: {0}")]
    Refused(String),
    /// The change may have been made: ask again with the same attempt.
    #[error("the store did not answer: {0}")]
    Ambiguous(String),
    /// The stored data is unreadable. Nothing was changed, and another try does not help.
    #[error("what is stored cannot be read: {0}")]
    Unreadable(String),
}

impl Error {
    /// The kind of error as one word, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Ambiguous(_) => "ambiguous",
            Self::Unreadable(_) => "unreadable",
        }
    }
}

/// A store that fails blocks work only for a while.
impl From<Error> for Blocked {
    fn from(error: Error) -> Self {
        Self::busy(error.to_string())
    }
}

/// The answer of a verb, and of the parts that it is made of.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The result of a search. Unreadable calls or documents do not hide the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    pub calls: Vec<T>,
    /// The ids of unreadable ones, each with the reason.
    pub unreadable: Vec<(String, String)>,
}

/// A question for the documents of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentQuery {
    pub kind: Kind,
    /// `None`: all tenants.
    pub tenant: Option<String>,
    /// `None`: any state.
    pub state: Option<String>,
    /// Only documents before this position.
    pub before: Option<Position>,
    pub limit: u32,
}

impl DocumentQuery {
    /// The newest documents of a kind, of all tenants and in any state.
    pub fn newest(kind: Kind, limit: u32) -> Self {
        Self {
            kind,
            tenant: None,
            state: None,
            before: None,
            limit,
        }
    }

    /// The newest documents of a kind that are in this state, of all tenants.
    pub fn in_state(kind: Kind, state: &str, limit: u32) -> Self {
        Self {
            state: Some(state.to_owned()),
            ..Self::newest(kind, limit)
        }
    }
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
    /// Maps each call.
    pub fn map<U>(self, make: impl FnMut(T) -> U) -> Found<U> {
        Found {
            calls: self.calls.into_iter().map(make).collect(),
            unreadable: self.unreadable,
        }
    }
}

/// Largest number of unreadable rows skipped by one scan.
pub const UNREADABLE: u32 = 1_000;

/// The result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// This attempt holds the key. The record is as stored, with its fencing token.
    Yours(Record),
    /// Another call, or another attempt of it, holds one of the names.
    Existing(Record),
    /// The key is free, but the conditions do not hold.
    Denied(Denied),
}

/// Whether the holder of a name is still exactly one of these records.
pub fn is_seen(holder: &Record, seen: &[Record]) -> bool {
    let version = |record: &Record| (record.intent.call_id, record.version, record.attempt.id);
    seen.iter().any(|seen| version(seen) == version(holder))
}

/// The result of a replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replaced {
    /// The record as stored.
    Done(Record),
    /// The record has changed since, or is gone. Nothing was written.
    Lost(Option<Record>),
    /// The record is as expected, but the conditions do not hold.
    Denied(Denied),
}

/// The result of writing a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    Done,
    /// The document has changed since, or is gone. Nothing was written. Holds the stored one.
    Lost(Option<Document>),
}

/// How many calls of a tool are running or unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    pub tool: String,
    /// `running` or `unknown`.
    pub state: String,
    pub calls: u64,
}

words! {
    /// How durable acknowledged writes are, the weakest first.
    #[derive(PartialOrd, Ord)]
    pub enum Durability {
        /// The last seconds may be lost with power or in a failover. The loss is noticed afterwards.
        Relaxed = "relaxed",
        /// An acknowledged write is on a second machine, too.
        Bounded = "bounded",
        /// An acknowledged write survives the loss of the process and of power.
        Strict = "strict",
    }
}

/// Whether calls may be claimed, and how durable writes are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The store's durability. `None`: it is not known.
    pub durability: Option<Durability>,
    /// Why no call may be claimed. Empty: calls may be claimed.
    pub reasons: Vec<Reason>,
    /// Reasons that weaken the promise and are allowed by the configuration.
    pub warnings: Vec<Reason>,
    /// Writes of this gateway that the store has lost, since the start.
    pub lost_writes: u64,
    /// Since when the ledger has all calls. `None`: it is not known.
    ///
    /// Earlier calls may be lost, or were made before the ledger existed.
    pub whole_since: Option<Timestamp>,
}

/// The code of the reason that only an operator resolves: see [`LossRecovery::accept_loss`].
pub const LOST_DATA: &str = "lost_data";

/// The codes of transient reasons. Until they are gone it is unknown whether data is lost.
pub const SETTLING: [&str; 4] = ["disconnected", "starting", "restarted", "suspect"];

/// The codes of reasons that cleanup may resolve: the store is full.
pub const NO_ROOM: [&str; 2] = ["memory", "disk_full"];

/// A reason or a warning about a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// One word for metrics, out of a small set.
    pub code: &'static str,
    /// A sentence that says what was found and what was expected.
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

/// A running call without a living owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    pub record: Record,
    /// Whether the owner's process is known to have ended. Otherwise only its lease is over.
    pub owner_ended: bool,
}
