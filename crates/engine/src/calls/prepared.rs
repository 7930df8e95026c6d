//! A request for a call: as it came, and with its key.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::callers::throttle::NewKeys;
use crate::error::ErrorKind;
use crate::metrics::Interface;
use crate::tools::ToolAt;
use crate::trace::{RequestSpan, Trace};
use oncegate_rules::approval::Ask;
use oncegate_rules::call::Seeking;
use oncegate_rules::key_scheme::fingerprints::Fingerprints;
use oncegate_rules::key_scheme::identity::{Asking, LookupKey};
use oncegate_rules::key_scheme::{KeyScheme, KeySchemeId, identity};
use oncegate_rules::mcp::elicitation::Answer;
use oncegate_rules::proxy::{Message, Policy};
use oncegate_rules::record::{Intent, Record};
use oncegate_rules::secret::Secrets;
use oncegate_rules::session::{LINE_LENGTH, Preconditions, similar_group};
use oncegate_rules::tool::Effect;
use oncegate_rules::{json, key};
use oncegate_tools::Client;

/// One request for a call, as it came.
#[derive(Debug, Default)]
pub struct Request {
    pub tool: String,
    /// The arguments as JSON, as the caller wrote them.
    pub args: String,
    /// Empty if the caller named no user; so is `session_id`.
    pub user_id: String,
    pub session_id: String,
    /// Empty if the call belongs to no saga.
    pub saga_id: String,
    pub trace_id: Option<String>,
    /// The span of the request.
    pub span: RequestSpan,
    /// What an earlier release took for the user of such a request, if that was another.
    pub earlier_user: Option<&'static str>,
    /// The client's own id of the call; empty if it has none.
    pub client_call: String,
    /// The value of the `Idempotency-Key` header line.
    pub key_header: Option<Bytes>,
    /// The body's `idempotency_key`.
    pub key_member: Option<String>,
    pub preconditions: Preconditions,
    pub patience: Patience,
    pub interface: Interface,
    /// The MCP client that waits for the call, if there is one.
    pub client: Client,
    pub answers: Answers,
    /// The HTTP request, for an API that callers use as it is. Its compared form is the arguments.
    pub proxied: Option<Proxied>,
    /// The client's names of the request, one JSON object; empty if there are none.
    pub client_ids: String,
}

/// A request to an API that callers use as it is.
#[derive(Debug, Clone)]
pub struct Proxied {
    pub message: Arc<Message>,
    /// The stored form of it.
    pub stored_form: Bytes,
    /// The API as it was configured when the request was read.
    pub read_by: Arc<ToolAt>,
}

impl Proxied {
    /// Whether today's API knows its callers, and treats their credentials, as it did when the request was read.
    pub(super) fn has_same_callers(&self, today: &Policy) -> bool {
        let read_by = self.read_by.tool.proxy();
        read_by.is_some_and(|read_by| read_by.has_same_callers(today))
    }
}

/// Whether a request answers a server's questions.
#[derive(Debug, Default)]
pub enum Answers {
    #[default]
    Nothing,
    /// It answers this elicitation.
    Elicitation(Answer),
    /// It answers an elicitation, and its arguments hold the answers.
    InArgs,
}

/// How long a caller waits (RFC 7240).
#[derive(Debug, Default, Clone, Copy)]
pub struct Patience {
    /// `wait`: the longest wait.
    pub wait: Option<Duration>,
    /// `respond-async`: a running call is answered as accepted rather than waited for.
    pub respond_async: bool,
    /// The longest wait of the protocol, for callers that give none.
    pub longest: Option<Duration>,
    /// After this long a call that is not over is answered as accepted; `None`: only `respond_async` lets it be.
    ///
    /// For callers that ask for the call by its id, and only if they may.
    pub accept_after: Option<Duration>,
    /// How long the result of a read is kept for its repetition. Until it ends, repetitions wait for it.
    ///
    /// For callers that may give up before it ends; `None`: each read is a run of its own.
    pub keep_read: Option<Duration>,
}

impl Patience {
    /// The same for a tool with this effect.
    ///
    /// A caller of a read that is told "still running" would read again, and never get an answer: so it waits until the end.
    pub(super) fn for_effect(self, effect: Effect) -> Self {
        let waits = effect == Effect::Read && !self.respond_async;
        Self {
            wait: self.wait.filter(|_| !waits),
            // The result of a read is not stored, so it cannot be asked for later.
            accept_after: self.accept_after.filter(|_| effect == Effect::Write),
            keep_read: self.keep_read.filter(|_| effect == Effect::Read),
            ..self
        }
    }
}

/// A request whose tool, arguments and key are known to be good.
#[derive(Clone)]
pub(crate) struct PreparedCall {
    /// When its request came.
    pub began: Instant,
    /// See [`Patience::keep_read`].
    pub keep_read: Option<Duration>,
    pub at: Arc<ToolAt>,
    pub intent: Arc<Intent>,
    /// The names by which the call may be found, today's key first. None for a stored call that is sent once more.
    pub lookups: Arc<[LookupKey]>,
    /// Its fingerprints by earlier key schemes.
    pub fingerprints: Arc<Fingerprints>,
    /// The key schemes and secrets of its lookup keys. `None`: these never change.
    pub read_by: Option<ReadBy>,
    /// The key that the caller's runtime brought.
    pub runtime: Option<key::Key>,
    /// See [`Request::client_call`].
    pub client_call: Option<Arc<str>>,
    /// See [`Request::earlier_user`].
    pub earlier_user: Option<&'static str>,
    /// The arguments as they came, until it is known which call it is.
    pub raw: Bytes,
    /// Why the request is not a call by today's configuration.
    ///
    /// The caller is told only if no stored call is the same.
    pub complaint: Option<ErrorKind>,
    /// Whether the key schemes are written down, so that the key may be claimed.
    pub may_claim: bool,
    /// The key in an answer without a result.
    pub shown_key: Option<String>,
    /// The arguments for the tool. In the intent some may be masked.
    pub args: Bytes,
    /// The HTTP request, for an API that callers use as it is.
    pub message: Option<Arc<Message>>,
    pub preconditions: Preconditions,
    /// What its tool's rule asks of approvers; `None`: it needs no approval.
    pub ask: Option<Ask>,
    /// Most calls that may be in line for its session before it.
    pub longest_line: u32,
    /// The bound on new keys of its caller.
    pub new_keys: Option<Arc<NewKeys>>,
    /// The MCP client that waits for the call, if there is one.
    pub client: Client,
    /// The trace of its spans.
    pub trace: Trace,
}

/// The key schemes and secrets that read a request, beside today's key scheme.
#[derive(Clone)]
pub(crate) struct ReadBy {
    /// The earlier key schemes.
    pub key_schemes: Arc<[KeySchemeId]>,
    pub secrets: Arc<Secrets>,
}

impl ReadBy {
    pub(super) fn new(earlier: &[(KeySchemeId, Arc<KeyScheme>)], secrets: Arc<Secrets>) -> Self {
        let key_schemes = earlier.iter().map(|(id, _)| *id).collect();
        Self {
            key_schemes,
            secrets,
        }
    }
}

impl PreparedCall {
    /// A call without names that no caller waits for.
    pub(super) fn new(at: Arc<ToolAt>, intent: Arc<Intent>, args: Bytes, trace: Trace) -> Self {
        Self {
            began: Instant::now(),
            keep_read: None,
            at,
            intent,
            lookups: [].into(),
            fingerprints: Arc::default(),
            read_by: None,
            runtime: None,
            client_call: None,
            earlier_user: None,
            raw: Bytes::new(),
            complaint: None,
            may_claim: true,
            shown_key: None,
            args,
            message: None,
            preconditions: Preconditions::default(),
            ask: None,
            longest_line: LINE_LENGTH,
            new_keys: None,
            client: Client::default(),
            trace,
        }
    }

    /// A stored call that is to be sent once more, without a caller. `sample`: the share of recorded traces.
    pub(crate) fn again(at: Arc<ToolAt>, record: &Record, sample: f64) -> Self {
        let intent = record.intent.clone();
        let (args, trace) = (intent.args.clone(), Trace::of(&intent.trace_id, sample));
        Self::new(at, intent, args, trace)
    }

    /// What it looks for among the stored calls.
    pub(super) fn seeking(&self) -> Seeking<'_> {
        Seeking {
            lookups: &self.lookups,
            intent: &self.intent,
            fingerprints: &self.fingerprints,
            confirmed: self.preconditions.confirmed,
        }
    }

    /// The same request by other earlier key schemes or secrets. `None`: its arguments are gone.
    pub(super) fn read_again(
        &self,
        earlier: &[(KeySchemeId, Arc<KeyScheme>)],
        secrets: Arc<Secrets>,
    ) -> Option<Self> {
        let args = json::parse(str::from_utf8(&self.raw).ok()?).ok()?;
        let Intent {
            tenant, user_id, ..
        } = &*self.intent;
        let asking = Asking {
            tenant,
            user_id,
            earlier_user: self.earlier_user,
            client_call: self.client_call.as_deref(),
            runtime: self.runtime.as_ref(),
            args: &args,
            secrets: &secrets,
        };
        let identity = identity::identify(&self.at.key_scheme, earlier, &asking);
        let (first, key) = (identity.lookups.first()?, identity.keys.first()?);
        let value = identity.counted.as_ref().unwrap_or(&args);
        let similar = similar_group(&self.at.tool, tenant, user_id, value, &secrets.today);
        let intent = Intent {
            lookup: first.lookup,
            lookups: identity.lookups[1..]
                .iter()
                .map(|name| name.lookup)
                .collect(),
            key: key.key.as_str().to_owned(),
            key_source: key.source,
            fingerprint: identity.fingerprint,
            similar,
            ..(*self.intent).clone()
        };
        Some(Self {
            intent: Arc::new(intent),
            lookups: identity.lookups.into(),
            fingerprints: Arc::new(identity.fingerprints),
            read_by: Some(ReadBy::new(earlier, secrets)),
            ..self.clone()
        })
    }
}
