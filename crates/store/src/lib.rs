//! The store's traits: few verbs, each atomic, and no rules.
//!
//! A store writes what the rules decided, by compare-and-swap. It must not know what a state means. It compares version,
//! attempt and fencing token of a record, and finds records by lookup keys, id, state, owner, tool, due times and the lists of
//! the ledger.
//!
//! A call has the same bytes in every store:
//!
//! ```
//! use oncegate_rules::testing::succeeded;
//! use oncegate_store::codec::{pack, unpack};
//!
//! let record = succeeded(r#"{"order":7}"#);
//! let read = unpack(&pack(&record)).expect("it was written by this build");
//! assert_eq!(read.intent.key, record.intent.key);
//! assert_eq!(read.state, record.state);
//! ```

mod cipher; // keys that encrypt texts
pub mod codec; // calls as bytes, the same in both stores
mod encrypted; // a layer around a store, which encrypts
mod endings; // hints that a call of another process has ended
pub mod known; // tenants and tools that a shared store lists
pub mod lock; // locks that go on after a panic
pub mod private; // files that only one gateway may read
mod remembering; // layers around a store, which remember succeeded calls
pub mod repeats; // log lines that say the same again
mod replay_cache; // succeeded calls in memory
pub mod search; // what stores in tables search by
pub mod shared; // what stores of many gateways have in common
pub mod status; // whether a shared store may be used
pub mod tracking; // whether remembered calls of a shared store are still as they were read
pub mod verbs; // the traits of a store
pub mod watermarks; // what a gateway remembers of a shared store, in a file

#[doc(hidden)]
pub use oncegate_rules; // for the macros of layers

pub use self::cipher::Keys;
pub use self::encrypted::Encrypted;
pub use self::endings::{Endings, Listener};
pub use self::private::distrust;
pub use self::remembering::{Remembering, Tracked};
pub use self::replay_cache::ReplayCache;
pub use self::verbs::{
    Calls, Documents, Health, Ledger, LossRecovery, Pauses, Secrets, Sessions, Store,
};

use std::fmt;

use jiff::Timestamp;
use uuid::Uuid;

use oncegate_rules::call::Change;
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Holder, Record};
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
    /// Reads rows, until so many were readable. `id` names one that is not.
    pub fn read<R>(
        rows: &[R],
        limit: u32,
        read: impl Fn(&R) -> Result<T>,
        id: impl Fn(&R) -> String,
    ) -> Self {
        let mut found = Self::default();
        for row in rows {
            if found.calls.len() >= limit as usize {
                break;
            }
            match read(row) {
                Ok(call) => found.calls.push(call),
                Err(error) => found.unreadable.push((id(row), error.to_string())),
            }
        }
        found
    }

    /// Maps each call.
    pub fn map<U>(self, make: impl FnMut(T) -> U) -> Found<U> {
        Found {
            calls: self.calls.into_iter().map(make).collect(),
            unreadable: self.unreadable,
        }
    }
}

/// A part of the feed: events in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feed {
    /// Names the data. After an accepted loss the numbers mean other events.
    pub epoch: Uuid,
    /// The number of the oldest event that the feed still has; 0: it has none.
    pub oldest: u64,
    pub events: Vec<Fed>,
    /// The number of the last event that was looked at.
    pub last: u64,
}

/// One event of the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fed {
    pub number: u64,
    pub call_id: CallId,
    /// The version of the call that the event has made.
    pub version: u64,
}

/// How much room a store takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The file, without its log.
    pub file: u64,
    /// Free pages of the file, which new calls use first.
    pub free: u64,
    /// What its disk still has for this process.
    pub disk_free: Option<u64>,
    /// How much of the file was checked since it was opened, in per cent.
    pub checked: u32,
    /// When the last complete check found no damage.
    pub checked_at: Option<Timestamp>,
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
    /// The key is free, but the lease is over, or nearly, by the store's clock. Nothing was written.
    ///
    /// The gateway's clock was set back. The store's clock counts from now on, so the change can be made again.
    Late,
}

/// Whether the holder of a lookup key is still exactly one of these records.
pub fn is_seen(holder: &Record, seen: &[Record]) -> bool {
    let version = |record: &Record| (record.intent.call_id, record.version, record.attempt.id);
    seen.iter().any(|seen| version(seen) == version(holder))
}

/// The call that answers a claim which was refused: nothing may be claimed, but a stored result can still be replayed.
///
/// `holders`: the calls that hold the lookup keys, as far as that could be read.
///
/// # Errors
/// The refusal. `Ambiguous` if the call itself is stored.
pub fn other_holder(
    why: String,
    change: &Change,
    replaced: &[Record],
    holders: Result<Vec<Holder>>,
) -> Result<Record> {
    let holders = holders.unwrap_or_default().into_iter();
    let mut records = holders.map(|holder| holder.record);
    match records.find(|record| !is_seen(record, replaced)) {
        Some(holder) if holder.intent.call_id == change.record.intent.call_id => {
            Err(Error::Ambiguous(why))
        }
        Some(holder) => Ok(holder),
        None => Err(Error::Refused(why)),
    }
}

/// The call that cleanup has found, if it may be deleted. The call's own record decides: an index only leads to it, and a damaged
/// time must not free the key of a call that is not over. `id` is for the log.
pub fn to_forget(
    record: Result<Record, impl fmt::Display>,
    id: &str,
    now: Timestamp,
) -> Option<Record> {
    let why = match record {
        Ok(record) if record.may_be_forgotten(now) => return Some(record),
        Ok(_) => "its own retention is not over".to_owned(),
        // Its names are not known, so they cannot be deleted with it.
        Err(error) => error.to_string(),
    };
    tracing::error!(call_id = id, why, "a call is damaged, and is not deleted");
    None
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

impl Readiness {
    /// Whether data may be missing. Then a call that is not found may still have been executed.
    pub fn may_lack_data(&self) -> bool {
        let doubts = [UNREACHABLE, FOREIGN, LOST_DATA];
        let mut codes = self.reasons.iter().map(|reason| reason.code);
        codes.any(|code| doubts.contains(&code) || SETTLING.contains(&code))
    }
}

/// The code of the reason that only an operator resolves: see [`LossRecovery::accept_loss`].
pub const LOST_DATA: &str = "lost_data";

/// The code of a store that is not reached.
pub const UNREACHABLE: &str = "unreachable";

/// The code of a server with the data of another application, or of a newer version.
pub const FOREIGN: &str = "foreign";

/// The codes of transient reasons. Until they are gone it is unknown whether data is lost.
pub const SETTLING: [&str; 4] = ["disconnected", "starting", "restarted", "suspect"];

/// The codes of reasons that cleanup may resolve: the store is full.
pub const NO_SPACE: [&str; 2] = ["memory", "disk_full"];

/// A reason or a warning about a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// One word for metrics, out of a small set.
    pub code: &'static str,
    /// A sentence that says what was found and what was expected.
    pub text: String,
}

impl Reason {
    /// A reason, if there is one.
    pub fn given(is_so: bool, code: &'static str, text: impl Into<String>) -> Option<Self> {
        is_so.then(|| Self::new(code, text))
    }

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
