//! What is kept of a call: the intent, how far it has come, and its history. Only values; what
//! happens to them is decided in `call`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use uuid::Uuid;

use super::key::{self, GroupKey};
use super::recipe::RecipeId;

/// Names one call for ever; ordered by time (UUIDv7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub Uuid);

impl CallId {
    /// The id of a call that has this lookup key. Both end in the same byte, so that a store which is
    /// split into partitions finds a call by either.
    pub fn new(unique: Uuid, lookup: &key::Lookup) -> Self {
        let mut bytes = unique.into_bytes();
        bytes[15] = lookup.0[31];
        Self(Uuid::from_bytes(bytes))
    }

    /// When the call was made, by the clock of its gateway. `None`: the id holds no time.
    pub fn made_at(&self) -> Option<Timestamp> {
        let (seconds, nanoseconds) = self.0.get_timestamp()?.to_unix();
        let (seconds, nanoseconds) = (seconds.try_into().ok()?, nanoseconds.try_into().ok()?);
        Timestamp::new(seconds, nanoseconds).ok()
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// Names one attempt: 128 bits, random. Its holder owns the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId(pub Uuid);

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

/// Names one run of a gateway process: 128 bits, random at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstanceId(pub Uuid);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

/// What the first arrival asked for. Never changes, but for the arguments of a call that undoes another: as long
/// as it has surely not been executed, an operator may mend them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    pub call_id: CallId,
    pub tenant: String,
    pub tool: String,
    pub lookup: key::Lookup,
    /// What else it is found by; claimed with its key in one step, and not given to the tool.
    pub names: Vec<key::Lookup>,
    /// How names and fingerprint were made.
    pub recipe: RecipeId,
    /// The key as the caller knows it.
    pub key: String,
    pub key_source: key::Source,
    pub fingerprint: key::Fingerprint,
    /// Empty if the caller named none; so is `session_id`.
    pub user_id: String,
    pub session_id: String,
    /// The saga that it belongs to; empty if it belongs to none.
    pub saga_id: String,
    pub trace_id: String,
    /// The name of the token with which it was made; empty for the gateway's own calls.
    pub made_by: String,
    /// What its client calls the request, one JSON object; empty if nothing is known of that. It tells no calls apart.
    pub client_ids: String,
    /// Where calls that look like this one are found, if the tool asks for that.
    pub similar: Option<GroupKey>,
    /// The arguments as the tool gets them: one JSON object.
    pub args: Bytes,
    pub created_at: Timestamp,
}

impl Intent {
    /// Every name that it claims, its key first.
    pub fn all_names(&self) -> impl Iterator<Item = &key::Lookup> {
        std::iter::once(&self.lookup).chain(&self.names)
    }
}

/// A key of a request that was answered with the result of a call, because it looked like it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// What the key is found by.
    pub names: Vec<key::Lookup>,
    /// What that request asked for.
    pub fingerprint: key::Fingerprint,
    /// How names and fingerprint were made.
    pub recipe: RecipeId,
}

/// Aliases of one call at the most: each change of the call writes all of them.
pub const MAX_ALIASES: usize = 32;

/// A call, and the names that it was found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub record: Record,
    /// Those of the names asked for that it holds, in their order.
    pub names: Vec<key::Lookup>,
}

/// One call: the intent, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub intent: Arc<Intent>,
    /// Rises by one with every change: what compare-and-swap compares.
    pub version: u64,
    pub state: State,
    /// The newest attempt; in `Running`, the one under way.
    pub attempt: Attempt,
    /// Attempts in all, over every run of the call.
    pub attempts: u32,
    /// An attempt before the newest may have been executed unseen.
    ///
    /// Of a call that was executed it may be that attempt that was.
    pub earlier_attempt_may_have_run: bool,
    /// The fencing token of the newest run; the store draws it. A read tool's call has none.
    pub fencing: Option<u64>,
    /// The newest earlier call that looked the same when the newest run began; the store finds it.
    pub similar_to: Option<CallId>,
    /// When an unknown call is worked on next; `None`: only a late answer or a person settles it.
    pub check: Option<Check>,
    /// How it is undone, once that is decided.
    pub undo: Option<Undo>,
    /// Further keys that it answers.
    pub aliases: Vec<Alias>,
    /// From the start of the newest run to its end.
    pub latency_ms: Option<u64>,
    pub updated_at: Timestamp,
    /// From when on the key is no longer remembered. Unfinished and unknown calls never expire.
    pub expires_at: Option<Timestamp>,
    /// From when on the record may be deleted.
    pub retain_until: Option<Timestamp>,
}

impl Record {
    /// The call that undoes this one, as far as it is decided.
    pub fn compensation(&self) -> Option<&Compensation> {
        self.undo.as_ref()?.compensation.as_ref()
    }

    /// The next version, for a change of this time.
    pub(super) fn changed(&self, now: Timestamp) -> Self {
        Self {
            version: self.version + 1,
            updated_at: now,
            ..self.clone()
        }
    }

    /// The same without what the caller and the tool have said: what is looked at of many calls at once. It must
    /// not be written back.
    #[must_use]
    pub fn without_texts(mut self) -> Self {
        Arc::make_mut(&mut self.intent).args = Bytes::new();
        if let State::Failed(failure) = &mut self.state {
            failure.body = None;
        }
        if let Some(content) = self.state.content_mut() {
            *content = Content::Unavailable(String::new());
        }
        self
    }

    /// Every name that it has claimed: its intent's, then those of its aliases.
    pub fn all_names(&self) -> impl Iterator<Item = &key::Lookup> {
        self.intent
            .all_names()
            .chain(self.aliases.iter().flat_map(|alias| &alias.names))
    }

    /// Whether a request with these names gets its result only because it looked like this call.
    pub fn answers_as_similar(&self, mut names: impl Iterator<Item = key::Lookup>) -> bool {
        !self.aliases.is_empty()
            && !names.any(|name| self.intent.all_names().any(|own| *own == name))
    }

    /// Whether a person has decided that it is not undone.
    pub fn is_skipped(&self) -> bool {
        self.undo.as_ref().is_some_and(|undo| undo.skipped)
    }
}

/// How a call is undone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Undo {
    /// `None`: nothing is sent, because it never ran, or because its tool declares no compensation.
    pub compensation: Option<Compensation>,
    /// A person has decided that its effect stands.
    pub skipped: bool,
}

/// The call that undoes another one. Decided before it is claimed, so that there is never a second one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compensation {
    pub tool: String,
    pub call_id: CallId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Running,
    Succeeded(Content),
    /// Surely no effect. The same key may run again.
    Failed(Failure),
    /// May have been executed; says why it is not known.
    Unknown(String),
    /// It is being undone. Here and below: its result, if it is known to have one.
    Compensating(Option<Content>),
    /// It has been undone, or surely never ran and never will.
    Compensated(Option<Content>),
    /// It could not be undone: a person has to see to it.
    Stuck(Option<Content>),
}

impl State {
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded(_) => "succeeded",
            Self::Failed(_) => "failed",
            Self::Unknown(_) => "unknown",
            Self::Compensating(_) => "compensating",
            Self::Compensated(_) => "compensated",
            Self::Stuck(_) => "stuck",
        }
    }

    /// What the tool has said of the call's success.
    pub fn content(&self) -> Option<&Content> {
        match self {
            Self::Succeeded(content) => Some(content),
            Self::Compensating(content) | Self::Compensated(content) | Self::Stuck(content) => {
                content.as_ref()
            }
            Self::Running | Self::Failed(_) | Self::Unknown(_) => None,
        }
    }

    /// What is kept of the tool's answer: its result, or the body of a rejection.
    pub fn kept_mut(&mut self) -> Option<&mut Bytes> {
        match self {
            Self::Failed(failure) => failure.body.as_mut(),
            state => match state.content_mut() {
                Some(Content::Kept(json)) => Some(json),
                Some(Content::Unavailable(_)) | None => None,
            },
        }
    }

    /// The same as [`content`](Self::content), to be changed in its place.
    pub fn content_mut(&mut self) -> Option<&mut Content> {
        match self {
            Self::Succeeded(content) => Some(content),
            Self::Compensating(content) | Self::Compensated(content) | Self::Stuck(content) => {
                content.as_mut()
            }
            Self::Running | Self::Failed(_) | Self::Unknown(_) => None,
        }
    }
}

/// What is kept of an executed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// One JSON text: the tool's own, byte for byte, or a wrapper around what is none.
    Kept(Bytes),
    /// The tool executed, but its answer could not be read; says why.
    Unavailable(String),
}

/// Why a call surely had no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    /// The tool's status, if it answered.
    pub status: Option<u16>,
    /// The tool's body as one JSON text, if it answered with a rejection.
    pub body: Option<Bytes>,
    /// How long the tool asked to wait.
    pub retry_after: Option<Duration>,
    /// A sentence for an engineer; nothing secret.
    pub why: String,
}

impl Failure {
    /// One of which the tool has said nothing.
    pub fn new(kind: FailureKind, why: impl Into<String>) -> Self {
        Self {
            kind,
            status: None,
            body: None,
            retry_after: None,
            why: why.into(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The tool refused this request. Never retried by the gateway.
    Rejected,
    /// The tool has seen a newer fencing token of the session. Never retried by the gateway.
    Fenced,
    /// The tool was not reached.
    Unreachable,
    /// The tool is there but did not take the request now.
    Unavailable,
    /// It was unknown for a while, and has turned out not to have been executed.
    NotExecuted,
    /// Its saga takes no calls any more. Never sent, and never will be.
    SagaClosed,
}

impl FailureKind {
    pub const ALL: [Self; 6] = [
        Self::Rejected,
        Self::Fenced,
        Self::Unreachable,
        Self::Unavailable,
        Self::NotExecuted,
        Self::SagaClosed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Fenced => "fenced",
            Self::Unreachable => "unreachable",
            Self::Unavailable => "unavailable",
            Self::NotExecuted => "not_executed",
            Self::SagaClosed => "saga_closed",
        }
    }
}

/// When an unknown call is worked on next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Since when it is unknown.
    pub since: Timestamp,
    /// `None`: it is given up.
    pub at: Option<Timestamp>,
    /// How often it has been worked on.
    pub number: u32,
}

/// One dispatch, from the decision to make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub id: AttemptId,
    /// The gateway that makes it.
    pub owner: InstanceId,
    /// The first of a run is 1.
    pub number: u32,
    pub run_started_at: Timestamp,
    /// Until when the owner may take. A field, never a TTL: when it is over the call is unknown, not free.
    pub lease_until: Timestamp,
}

/// One line of a call's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub at: Timestamp,
    /// One word, the same in the ledger and in the log.
    pub event: Cow<'static, str>,
    pub attempt: Option<AttemptId>,
    /// `executed`, `not_executed` or `unknown`, if an attempt ended.
    pub outcome: Option<Cow<'static, str>>,
    /// Whose doing it was.
    pub by: String,
    /// For an engineer at 3 a.m.; nothing secret.
    pub detail: String,
}

impl Entry {
    /// An entry about no attempt.
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
