//! The record of a call: its intent, its state and its history.
//!
//! Only values; `call` decides what happens to them.

mod id; // the name of a call
mod state; // how far the call is, its result, and why it failed

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use uuid::Uuid;

pub use self::id::CallId;
pub use self::state::{Content, Failure, FailureKind, State, Unread};
use crate::approval::Proposal;
use crate::key::{self, GroupKey};
use crate::key_scheme::KeySchemeId;
use crate::time::after;

/// Names one attempt: 128 random bits. Only the owner of the attempt knows them in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId(pub Uuid);

impl AttemptId {
    /// The attempt of a call that is adopted from an effect.
    ///
    /// It follows from the effect, so that an effect is adopted only once.
    pub fn of_effect(lookup: &key::Lookup, effect: &str) -> Self {
        let id = key::short_digest(["adopt", &lookup.for_tool(), effect]);
        Self(Uuid::from_bytes(id))
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

/// Names one run of a gateway process: 128 random bits, new at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstanceId(pub Uuid);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

/// What the first request for a call asked for. Only a compensation's arguments ever change.
///
/// An operator may correct those as long as the compensation was surely not executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    pub call_id: CallId,
    pub tenant: String,
    pub tool: String,
    pub lookup: key::Lookup,
    /// Further lookup keys, claimed with the key in one step. The tool does not get them.
    pub lookups: Vec<key::Lookup>,
    /// The key scheme by which lookup keys and fingerprint were made.
    pub key_scheme: KeySchemeId,
    /// The key in the form that the caller knows.
    pub key: String,
    pub key_source: key::Source,
    pub fingerprint: key::Fingerprint,
    /// Empty if the caller named no user.
    pub user_id: String,
    /// Empty if the caller named no session.
    pub session_id: String,
    /// The saga of the call; empty if it has none.
    pub saga_id: String,
    pub trace_id: String,
    /// The name of the caller's token; empty for the gateway's own calls.
    pub made_by: String,
    /// The client's own ids of the request, as one JSON object; empty without any.
    ///
    /// Calls that differ only in them are the same call.
    pub client_ids: String,
    /// The near-duplicate group, if the tool looks for similar calls.
    pub similar: Option<GroupKey>,
    /// The arguments for the tool: one JSON object.
    pub args: Bytes,
    pub created_at: Timestamp,
}

impl Intent {
    pub fn has_lookup(&self, name: &key::Lookup) -> bool {
        self.all_lookups().any(|own| own == name)
    }

    /// Every lookup key that the call claims, its key first.
    pub fn all_lookups(&self) -> impl Iterator<Item = &key::Lookup> {
        std::iter::once(&self.lookup).chain(&self.lookups)
    }
}

/// A key whose requests get the result of a similar call, or the first request for an adopted call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The lookup keys of the key.
    pub lookups: Vec<key::Lookup>,
    /// The fingerprint of the request.
    pub fingerprint: key::Fingerprint,
    /// The key scheme by which lookup keys and fingerprint were made.
    pub key_scheme: KeySchemeId,
}

/// The arguments of an erased call, as JSON. Those of any other call are an object.
pub const ERASED: &str = "\"[erased]\"";

/// The arguments of an ended call after its tool's `args_for`, as JSON.
pub const DELETED: &str = "\"[deleted]\"";

/// Why the result of a call is not available after its tool's `results_for`.
pub const RESULT_DELETED: &str = "it was deleted when results_for was over";

/// Most aliases of one call. Each change of the call writes all of them.
pub const MAX_ALIASES: usize = 32;

/// A call, and the lookup keys by which a search found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub record: Record,
    /// The searched lookup keys that the call holds, in the order of the search.
    pub lookups: Vec<key::Lookup>,
}

/// One call: its intent and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub intent: Arc<Intent>,
    /// Rises by one with every change; compare-and-swap compares it.
    pub version: u64,
    pub state: State,
    /// The newest attempt; while the call runs, the attempt under way.
    pub attempt: Attempt,
    /// Attempts in all runs of the call together.
    pub attempts: u32,
    /// Whether an earlier attempt, or one that the store has lost, may have been executed unseen.
    ///
    /// If the call was executed, it may be that attempt that was.
    pub earlier_attempt_may_have_run: bool,
    /// Whether a client has asked to cancel the newest run. What was sent is not broken off, and nothing more is sent.
    pub cancel_asked: bool,
    /// The fencing token of the newest run, drawn by the store; `None`: the tool only reads.
    pub fencing: Option<u64>,
    /// The newest similar call from before the newest run, found by the store.
    pub similar_to: Option<CallId>,
    /// The next check of an unknown call; `None`: only a late answer or an operator settles the call.
    pub check: Option<Check>,
    /// How the call is undone, once that is decided.
    pub undo: Option<Undo>,
    /// Further keys whose requests get this call's result.
    pub aliases: Vec<Alias>,
    /// Time from the start of the newest run to its end.
    pub latency_ms: Option<u64>,
    pub updated_at: Timestamp,
    /// Until when the key is remembered; `None`: for ever, or the call is unfinished or unknown.
    pub expires_at: Option<Timestamp>,
    /// From when on cleanup may delete the record; `None`: the call or its saga is unfinished.
    pub retain_until: Option<Timestamp>,
    /// What was asked about the call, and who has approved it; `None`: it needs no approval.
    pub proposal: Option<Box<Proposal>>,
}

impl Record {
    /// The first version of a call, in its first attempt.
    pub fn first(intent: Arc<Intent>, state: State, attempt: Attempt, now: Timestamp) -> Self {
        Self {
            intent,
            version: 1,
            state,
            attempt,
            attempts: 1,
            earlier_attempt_may_have_run: false,
            cancel_asked: false,
            fencing: None,
            similar_to: None,
            check: None,
            undo: None,
            aliases: Vec::new(),
            latency_ms: None,
            updated_at: now,
            expires_at: None,
            retain_until: None,
            proposal: None,
        }
    }

    /// The call's compensation, if there is one.
    pub fn compensation(&self) -> Option<&Compensation> {
        self.undo.as_ref()?.compensation.as_ref()
    }

    /// The next version, changed at this time.
    pub(super) fn changed(&self, now: Timestamp) -> Self {
        Self {
            version: self.version + 1,
            updated_at: now,
            ..self.clone()
        }
    }

    /// The record without the texts of caller and tool, for lists of many calls.
    ///
    /// It must not be written back.
    #[must_use]
    pub fn without_texts(mut self) -> Self {
        Arc::make_mut(&mut self.intent).args = Bytes::new();
        if let State::Failed(failure) = &mut self.state {
            failure.body = None;
            failure.sealed = None;
        }
        if let Some(content) = self.state.content_mut() {
            *content = Content::Unavailable(Unread::default());
        }
        self
    }

    /// Every lookup key of the call: its intent's, then those of its aliases.
    pub fn all_lookups(&self) -> impl Iterator<Item = &key::Lookup> {
        self.intent
            .all_lookups()
            .chain(self.aliases.iter().flat_map(|alias| &alias.lookups))
    }

    /// Whether a request with these lookup keys gets the result of a similar call.
    pub fn answers_as_similar(&self, mut lookups: impl Iterator<Item = key::Lookup>) -> bool {
        !self.aliases.is_empty() && !lookups.any(|name| self.intent.has_lookup(&name))
    }

    /// Whether arguments, result and names of the call were erased.
    pub fn is_erased(&self) -> bool {
        self.intent.args == ERASED
    }

    /// Whether its arguments are not stored any more: they were erased, or deleted when `args_for` was over.
    pub fn lacks_args(&self) -> bool {
        self.is_erased() || self.intent.args == DELETED
    }

    /// Whether its result was deleted when `results_for` was over.
    pub fn lacks_result(&self) -> bool {
        matches!(self.state.content(), Some(Content::Unavailable(unread)) if unread.why == RESULT_DELETED)
    }

    /// When its newest run ended, or, if that is not known, when the call last changed.
    pub fn run_ended_at(&self) -> Timestamp {
        let latency = self.latency_ms.map(Duration::from_millis);
        latency.map_or(self.updated_at, |latency| {
            after(self.attempt.run_started_at, latency)
        })
    }

    /// Whether the call was written back from its effect, which shows nothing but its key.
    pub fn is_adopted(&self) -> bool {
        self.intent.key_source == key::Source::Adopted
    }

    /// Whether the call's tenant is proven. Only its first request proves the tenant of an adopted call.
    pub fn is_proven(&self) -> bool {
        !self.is_adopted() || !self.aliases.is_empty()
    }

    /// Whether the call was adopted from this effect.
    pub fn is_adopted_from(&self, effect: &str) -> bool {
        self.is_adopted() && self.attempt.id == AttemptId::of_effect(&self.intent.lookup, effect)
    }

    /// Whether cleanup may delete the record now.
    pub fn may_be_forgotten(&self, now: Timestamp) -> bool {
        self.retain_until.is_some_and(|until| until <= now)
    }

    /// Whether the call is surely remembered at this time: under its lookup keys, and not deleted.
    pub fn is_remembered_at(&self, time: Timestamp) -> bool {
        !self.may_be_forgotten(time) && self.expires_at.is_none_or(|until| until > time)
    }

    /// Whether an operator has decided that the call is not undone.
    pub fn is_skipped(&self) -> bool {
        self.undo.as_ref().is_some_and(|undo| undo.skipped)
    }
}

/// How a call is undone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Undo {
    /// The compensation; `None`: the call never ran, or its tool declares none.
    pub compensation: Option<Compensation>,
    /// Whether an operator has decided that the effect stands.
    pub skipped: bool,
}

/// A compensation. It is decided before it is claimed, so that a call never gets a second one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compensation {
    pub tool: String,
    pub call_id: CallId,
}

/// The checks of an unknown call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Since when the call is unknown.
    pub since: Timestamp,
    /// The time of the next check; `None`: the checks are given up.
    pub at: Option<Timestamp>,
    /// How many checks were made.
    pub number: u32,
}

/// One dispatch of a call, from the decision to make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub id: AttemptId,
    /// The gateway that makes the attempt.
    pub owner: InstanceId,
    /// The number of the attempt within its run, from 1.
    pub number: u32,
    pub run_started_at: Timestamp,
    /// The end of the owner's lease.
    ///
    /// Never a time to live in a store: when the lease is over the call is unknown, and its key is not free.
    pub lease_until: Timestamp,
    /// The id of the task that an MCP server has given for the attempt, until its end is known.
    pub remote_task: Option<String>,
}

/// One entry of a call's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub at: Timestamp,
    /// The event in one word, the same in ledger and log.
    pub event: Cow<'static, str>,
    pub attempt: Option<AttemptId>,
    /// The outcome of the attempt that ended: `executed`, `not_executed` or `unknown`.
    pub outcome: Option<Cow<'static, str>>,
    /// The actor.
    pub by: String,
    /// A sentence for an engineer; nothing secret.
    pub detail: String,
}

impl Entry {
    /// An entry without an attempt.
    pub fn new(
        at: Timestamp,
        event: impl Into<Cow<'static, str>>,
        by: impl fmt::Display,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            at,
            event: event.into(),
            attempt: None,
            outcome: None,
            by: by.to_string(),
            detail: detail.into(),
        }
    }
}

#[cfg(test)]
mod tests;
