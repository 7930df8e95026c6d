//! Where records are kept: few verbs, each atomic, and no rules.
//!
//! The store compares and swaps what `core` decided. It must not know what a state means; of a
//! record it looks only at the key it is claimed under, its version, its attempt and its times.

mod aliases; // further keys that a call answers, as both keep them
mod endings; // who waits for a call that another process runs
mod private; // files that only one gateway may read
pub mod redis; // the store that many gateways share
pub mod sealed; // what callers and tools have said is encrypted
pub mod sqlite; // the embedded store of one gateway
mod undo; // how a call is undone, as both keep it

pub use self::endings::{Endings, Listener};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use crate::core::call::Change;
use crate::core::document::{Document, Kind, Place};
use crate::core::key;
use crate::core::ledger::{Duplicates, Filter, History, Listed, Page, Position};
use crate::core::record::{CallId, Entry, Holder, Record};
use crate::core::session::{Denied, Lock, Session, SessionId};

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

/// The code of the reason that only a person can take away: see [`Store::accept_loss`].
pub const LOST_DATA: &str = "lost_data";

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

/// The one seam of the house.
///
/// Every verb is atomic: a crash leaves it done or not begun. A verb that writes answers only when
/// what it wrote is durable, as far as the store's [`Durability`] goes.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Claims all names of `change.record` for its attempt, if the change's conditions hold, and writes its
    /// first ledger entry and what follows from the conditions: the fencing token, the session's lock, its
    /// place in budgets and among what looks alike.
    ///
    /// If the conditions do not hold, nothing is written but a place in the line for the lock. (Where a
    /// session and a call are on different servers, what was written for the conditions is taken back.)
    ///
    /// If any of the names is held, nothing is written and the first holder, in the order of the names, is
    /// returned; unless each holder is still exactly one of the records `instead_of`: those give up these
    /// names in the same step and stay in the ledger. Asked again with the same attempt it answers `Yours`,
    /// as long as nobody has changed the call since.
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error>;

    /// Writes `change` if the stored record is still `expected`: same version, attempt and fencing
    /// token. A change by which the call runs needs its names as well: if another call holds one of them by now,
    /// nothing is written and that one is returned. Arguments and fingerprint are written by a change that
    /// begins an attempt, and by no other. Admission are as in `claim`; what the change releases is
    /// given back in the same step, and names that it takes are claimed: if another call holds one of them, nothing is
    /// written and that one is returned. Asked again with the same change it answers `Done`.
    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error>;

    /// The calls that hold these names of one tenant now, in the order of the names; each is there once.
    async fn holders(&self, names: &[key::Lookup]) -> Result<Vec<Holder>, Error>;

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error>;

    /// A call with the newest entries of its ledger, at most `limit`, and its duplicates.
    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error>;

    /// Everyone who has made a call that is kept.
    async fn tenants(&self) -> Result<Vec<String>, Error>;

    /// Calls of a tenant that pass the filter, newest first, those before a position: at most `limit`, and
    /// about [`PAGE_BYTES`](crate::core::ledger::PAGE_BYTES). Takes a bounded number of operations, so it
    /// may find fewer than there are, and says up to where it has looked.
    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>, Error>;

    /// Adds to the duplicates of a call, if it is still kept.
    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error>;

    /// Running calls that nobody can be at any more, oldest first, at most `limit`: their lease is
    /// over, or their owner is known to have ended.
    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error>;

    /// Unknown calls of these tools that it is time to work on, those that wait longest first, at most
    /// `each` of one tool: the backlog of one is not in the way of another.
    async fn to_check(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>, Error>;

    /// Unknown calls of these tools that have no time to be worked on and were not given up, at most `limit`.
    async fn unchecked(&self, tools: &[String], limit: u32) -> Result<Found<Record>, Error>;

    /// Counts running and unknown calls per tool.
    async fn census(&self) -> Result<Vec<Census>, Error>;

    /// Deletes what is kept no longer and does not go by itself, at most `limit` records and as many
    /// sessions and documents, and answers how many of all: none is left if it is less than `limit`.
    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error>;

    /// What is known of a session; nothing of one that was never seen, or not for a week.
    async fn session(&self, id: &SessionId) -> Result<Session, Error>;

    /// Gives a session's lock free, if it is still exactly this one, and writes down whose doing it was.
    /// Answers whether it was. Refused while data is known to be lost, as [`set_frozen`](Self::set_frozen) is.
    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error>;

    /// Freezes or thaws a session and writes down whose doing it was. Answers whether it was not so
    /// before. While it is frozen no conditions of it hold.
    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error>;

    /// Gives up a call's place in the line for the session's lock, if it has one.
    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<(), Error>;

    /// The tools that persons have paused, each with the entry that says since when, by whom and why.
    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error>;

    /// Pauses or resumes a tool and writes down whose doing it was. Answers whether it was not so before.
    /// It keeps nothing from being claimed: whoever claims looks at [`paused`](Self::paused).
    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error>;

    /// What persons have done to a tool: the newest hundred, oldest first.
    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error>;

    /// A document. (One in a store that has lost data is simply older, or gone: it is not put back.)
    async fn document(&self, kind: Kind, tenant: &str, id: &str)
    -> Result<Option<Document>, Error>;

    /// Writes a document if what is stored has still the version before it (or nothing is stored, for version
    /// 1). It is as durable as a call. Asked again with the same document it answers `Done`.
    ///
    /// Like the claim of a call, a first version is refused while the store is not as it should be; a later
    /// one while it is not known that all data is there.
    async fn put_document(&self, document: &Document) -> Result<Put, Error>;

    /// Writes what was there before, or is in other hands, also while data is known to be missing; otherwise as
    /// [`put_document`](Self::put_document).
    async fn put_back_document(&self, document: &Document) -> Result<Put, Error>;

    /// Documents of a kind that it is time to work on, those that wait longest first, at most `limit`. Of one that
    /// no key opens the body is as it is kept.
    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>, Error>;

    /// Documents of a kind, newest first, those before a place, at most `limit`: of one tenant, or of all; in
    /// one state, or in any. And up to where it has looked, if there may be more. One that cannot be read, or that
    /// no key opens, is named by its id, or by its digest where the id cannot be read either.
    async fn documents(
        &self,
        kind: Kind,
        tenant: Option<&str>,
        state: Option<&str>,
        before: Option<&Place>,
        limit: u32,
    ) -> Result<(Found<Document>, Option<Place>), Error>;

    /// How many documents of a kind are in each state.
    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>, Error>;

    async fn readiness(&self) -> Readiness;

    /// How far the store's clock is ahead of this machine's: all who share a store go by its clock. Of several
    /// clocks the one that is furthest behind.
    fn clock_offset(&self) -> SignedDuration;

    /// Whether other gateways use it, too.
    fn is_shared(&self) -> bool;

    /// Begins to listen for the end of a call that another process runs. What is heard is only a
    /// hint that it is time to look. `None`: nobody else uses this store.
    fn listen(&self, call_id: CallId) -> Option<Listener>;

    /// The running, the failed and the unknown calls: those about which a store that has lost its newest
    /// writes may be wrong in the dangerous direction.
    ///
    /// A page of about `limit`, and where the next one begins, which is given back as `from`; empty for the first page.
    /// A call that is moved meanwhile may come twice; none is left out that is one of them all the time.
    async fn doubtful(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error>;

    /// A person is about to accept that the store has lost data. Documents may be changed from now on, by this
    /// process only; everything else stays closed for everyone, also if the process ends here. Refused where nothing
    /// is lost.
    async fn prepare_acceptance(&self, reason: &str) -> Result<(), Error>;

    /// Takes back a preparation that was not completed: documents are closed again. Changes nothing else.
    fn break_off_acceptance(&self);

    /// A person accepts that the store has lost data: from now on it counts as whole. What was not prepared is
    /// prepared first. Refused where nothing is lost.
    async fn accept_loss(&self, reason: &str) -> Result<(), Error>;

    /// Names the key that seals what is written now; empty if nothing is sealed.
    fn sealing_key(&self) -> String;

    /// The copy of the store's secret beside the watermarks; empty or `None`: there is none.
    ///
    /// # Errors
    /// It cannot be opened.
    fn remembered_secret(&self) -> Result<Option<Bytes>, Error>;

    /// Keeps a copy of the store's secret beside the watermarks.
    fn remember_secret(&self, secret: &Bytes);

    /// Writes down what has to outlive the process. Nothing can be asked any more.
    async fn close(&self);
}

/// A running call without a living owner, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    pub record: Record,
    /// The owner's process has ended; otherwise only the lease is over.
    pub owner_ended: bool,
}
