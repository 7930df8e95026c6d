//! Reads a request: its key, its names, its fingerprint.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use uuid::Uuid;

use super::engine::Engine;
use super::prepared::{Answers, PreparedCall, Proxied, ReadBy, Request};
use crate::base::ids::{new_call_id, new_trace_id};
use crate::callers::throttle::NewKeys;
use crate::error::{Error, ErrorKind};
use crate::tools::ToolAt;
use crate::trace::RequestSpan;
use oncegate_rules::caller::Caller;
use oncegate_rules::key::CONFIRM_MEMBER;
use oncegate_rules::key_scheme::identity::Asking;
use oncegate_rules::key_scheme::{KeyScheme, KeySchemeId, identity};
use oncegate_rules::mcp::elicitation;
use oncegate_rules::proxy::compared_form;
use oncegate_rules::record::{CallId, Intent};
use oncegate_rules::request::Mistakes;
use oncegate_rules::secret::{Secret, Secrets};
use oncegate_rules::session::{Preconditions, similar_group};
use oncegate_rules::tool::{Effect, Tool};
use oncegate_rules::{json, key, redact};

impl Engine {
    /// A tool that the caller may call.
    pub fn tool_for(&self, caller: &Caller, name: &str) -> Result<Arc<ToolAt>, Error> {
        if !caller.may_call(name) {
            return Err(ErrorKind::Forbidden.alone());
        }
        if self.base.draining.is_cancelled() {
            return Err(ErrorKind::ShuttingDown.alone());
        }
        let at = self.base.tool_at(name);
        at.ok_or_else(|| ErrorKind::UnknownTool.alone())
    }

    /// The tool of a request: an API with an HTTP request, or a tool with arguments.
    pub(super) fn at_for(&self, caller: &Caller, request: &Request) -> Result<Arc<ToolAt>, Error> {
        let at = self.tool_for(caller, &request.tool)?;
        match (&request.proxied, at.tool.proxy()) {
            // A reload has come between: the caller was let in by other rules than those of today.
            (Some(proxied), Some(policy)) if !proxied.has_same_callers(policy) => {
                Err(ErrorKind::NotChecked.alone())
            }
            (Some(Proxied { message, .. }), Some(_)) => {
                Ok(at.for_request(&message.method, &message.path))
            }
            // Reads are executed each time, so a payment that comes twice could be taken twice.
            (None, None)
                if at.tool.effect == Effect::Read && !request.client.payments.is_empty() =>
            {
                let why = "it pays, and the tool counts as one that only reads, whose calls are not guarded; an operator has to configure it as one that writes";
                Err(ErrorKind::InvalidRequest(why.into()).alone())
            }
            (None, None) => Ok(at),
            _ => Err(ErrorKind::UnknownTool.alone()),
        }
    }

    /// Reads a request by today's key scheme and by all remembered ones.
    ///
    /// # Errors
    /// It cannot be read, or gives no lookup key; or the key schemes are not known.
    pub(super) async fn prepare(
        &self,
        at: Arc<ToolAt>,
        caller: &Caller,
        request: Request,
        span: &RequestSpan,
    ) -> Result<PreparedCall, Error> {
        let known = self.key_schemes.know_key_schemes(&at).await;
        let may_claim = known.map_err(ErrorKind::alone)?;
        let bytes = request.args.len();
        let read = || {
            let weight = json::bytes_to_read(request.args.as_bytes());
            let _reservation = self.memory.to_read(&caller.tenant, weight)?;
            self.read(may_claim, at, caller, request, span)
        };
        self.large.read_off_workers(bytes, read).await
    }

    fn read(
        &self,
        may_claim: bool,
        at: Arc<ToolAt>,
        caller: &Caller,
        request: Request,
        span: &RequestSpan,
    ) -> Result<PreparedCall, Error> {
        let (earlier, secrets) = (self.key_schemes.earlier(&at), self.secrets.current());
        let (tool, tenant, today) = (&at.tool, &caller.tenant, &secrets.today);
        let read = read_request(tool, &at.key_scheme, &earlier, tenant, &request, &secrets)?;
        let (runtime_key, identity) = (read.runtime_key(), read.identity);
        let lookups = identity.lookups;
        // By today's configuration the request may have no key; then it is looked for under its other names.
        let (Some(first), Some(key)) = (lookups.first(), identity.keys.first()) else {
            let kind = read
                .complaint
                .unwrap_or(ErrorKind::Key(key::Refused::Missing));
            return Err(Error {
                key: runtime_key,
                ..kind.alone()
            });
        };
        let intent = Intent {
            call_id: new_call_id(&first.lookup),
            tenant: tenant.clone(),
            tool: tool.name.clone(),
            lookup: first.lookup,
            lookups: lookups[1..].iter().map(|name| name.lookup).collect(),
            key_scheme: at.key_scheme_id,
            key: key.key.as_str().to_owned(),
            key_source: key.source,
            fingerprint: identity.fingerprint,
            similar: similar_group(tool, tenant, &request.user_id, &read.value, today),
            user_id: request.user_id,
            session_id: request.session_id,
            saga_id: request.saga_id,
            trace_id: request.trace_id.unwrap_or_else(new_trace_id),
            made_by: caller.name.clone(),
            client_ids: request.client_ids,
            args: match &request.proxied {
                Some(proxied) => proxied.stored_form.clone(),
                None => redact::mask(&read.args, &tool.redact.args),
            },
            created_at: self.base.now(),
        };
        let trace = span.belongs_to(&intent, self.base.limits.sample);
        let shown_key = match read.complaint {
            Some(_) => runtime_key,
            None => Some(intent.key.clone()),
        };
        let ask = tool.approval.as_ref();
        let ask = ask.and_then(|policy| policy.ask(&read.value));
        if ask.is_some() && !request.client.payments.is_empty() {
            let why = "it pays, and waits for approval first: a payment is not stored, so it would not be sent";
            return Err(ErrorKind::InvalidRequest(why.into()).alone());
        }
        let preconditions = Preconditions {
            confirmed: request.preconditions.confirmed.or(read.confirmed),
            ..request.preconditions
        };
        Ok(PreparedCall {
            lookups: lookups.into(),
            fingerprints: Arc::new(identity.fingerprints),
            read_by: Some(ReadBy::new(&earlier, secrets)),
            may_claim,
            runtime: read.runtime,
            raw: read.raw,
            complaint: read.complaint,
            shown_key,
            message: request.proxied.map(|proxied| proxied.message),
            preconditions,
            ask,
            client_call: Some(request.client_call)
                .filter(|id| !id.is_empty())
                .map(Into::into),
            earlier_user: request.earlier_user,
            new_keys: NewKeys::of(caller),
            client: request.client,
            ..PreparedCall::new(at, Arc::new(intent), read.args, trace)
        })
    }
}

/// The key of a request by today's configuration, for a tool without `redact.args`.
///
/// Nothing is claimed, and nothing is looked up.
///
/// # Errors
/// The request cannot be read, does not fit the tool's schema, or has no valid key.
pub fn identify(tool: &Tool, request: &Request) -> Result<key::Chosen, Error> {
    // Without redact.args no key depends on the secret.
    let none = Secrets::one(Secret::new([0; 32]));
    let read = read_request(
        tool,
        &Arc::new(KeyScheme::of(tool)),
        &[],
        "",
        request,
        &none,
    )?;
    let key = read.runtime_key();
    let chosen = match read.complaint {
        Some(complaint) => Err(complaint),
        None => read.identity.key.map_err(ErrorKind::Key),
    };
    chosen.map_err(|kind| Error {
        key,
        ..kind.alone()
    })
}

/// A request that could be read.
struct Read {
    identity: identity::Identity,
    /// The arguments that count today.
    value: Value,
    /// The arguments for the tool: the caller's own bytes, or a copy without the model's key.
    args: Bytes,
    /// The arguments as they came.
    raw: Bytes,
    /// Why the request is not a call by today's configuration.
    complaint: Option<ErrorKind>,
    /// The key that the caller's runtime brought.
    runtime: Option<key::Key>,
    /// The call with equal arguments beside which the model means this one.
    confirmed: Option<CallId>,
}

impl Read {
    fn runtime_key(&self) -> Option<String> {
        self.runtime.as_ref().map(|key| key.as_str().to_owned())
    }
}

/// Reads a request by today's key scheme and by earlier ones.
fn read_request(
    tool: &Tool,
    today: &Arc<KeyScheme>,
    earlier: &[(KeySchemeId, Arc<KeyScheme>)],
    tenant: &str,
    request: &Request,
    secrets: &Secrets,
) -> Result<Read, Error> {
    let unreadable = |why: String| ErrorKind::InvalidRequest(why).alone();
    let args = json::parse_bounded(&request.args);
    let mut args = args.map_err(|error| unreadable(format!("args: {error}")))?;
    if !args.is_object() {
        return Err(unreadable("args is not a JSON object".into()));
    }
    let is_of_elicitation = matches!(request.answers, Answers::InArgs);
    let is_of_proxy = request.proxied.is_some();
    let own = [
        (elicitation::MEMBER, is_of_elicitation),
        (compared_form::CREDENTIAL, is_of_proxy),
    ];
    for (member, may_be_there) in own {
        if !may_be_there && args.get(member).is_some() {
            let why = format!("the member {member} of args is the gateway's own");
            return Err(unreadable(why));
        }
    }
    let confirmation = tool
        .takes_confirmation()
        .then(|| take_confirmation(&mut args));
    let (confirmed, is_taken) = match confirmation {
        Some(taken) => taken.map_err(unreadable)?,
        None => (None, false),
    };
    let runtime = key::from_runtime(request.key_header.as_deref(), request.key_member.as_deref());
    let runtime = runtime.map_err(|why| ErrorKind::Key(why).alone())?;
    let asking = Asking {
        tenant,
        user_id: &request.user_id,
        earlier_user: request.earlier_user,
        client_call: Some(request.client_call.as_str()).filter(|id| !id.is_empty()),
        runtime: runtime.as_ref(),
        args: &args,
        secrets,
    };
    let mut identity = identity::identify(today, earlier, &asking);
    let counted = identity.counted.take();
    let raw: Bytes = match is_taken {
        true => args.to_string().into(),
        false => request.args.clone().into(),
    };
    let sent = counted
        .as_ref()
        .map_or_else(|| raw.clone(), |counted| counted.to_string().into());
    let value = counted.unwrap_or(args);
    let complaint = complaint(tool, &identity, &value);
    Ok(Read {
        identity,
        value,
        args: sent,
        raw,
        complaint,
        runtime,
        confirmed,
    })
}

/// Takes the call that the model names as another intent out of its arguments; the second is whether a member was
/// there.
///
/// # Errors
/// The member is not an id of a call.
fn take_confirmation(args: &mut Value) -> Result<(Option<CallId>, bool), String> {
    let members = args.as_object_mut();
    match members.and_then(|members| members.remove(CONFIRM_MEMBER)) {
        None => Ok((None, false)),
        // Some clients send nothing in this way.
        Some(Value::Null) => Ok((None, true)),
        Some(Value::String(text)) if text.is_empty() => Ok((None, true)),
        Some(Value::String(text)) if let Ok(id) = Uuid::try_parse(&text) => {
            Ok((Some(CallId(id)), true))
        }
        Some(_) => Err(format!("args: {CONFIRM_MEMBER} is not an id of a call")),
    }
}

/// Why a request is not a call by today's configuration.
fn complaint(tool: &Tool, identity: &identity::Identity, value: &Value) -> Option<ErrorKind> {
    let refused = identity.key.as_ref().err();
    let is_bad_key = matches!(
        refused,
        Some(key::Refused::Invalid(..) | key::Refused::Reserved)
    );
    // The answers to an elicitation are not arguments of the tool's schema.
    let args = match elicitation::answered_by(value) {
        None => Cow::Borrowed(value),
        Some(_) => Cow::Owned(elicitation::without(value.clone())),
    };
    if !is_bad_key && let Some(mistakes) = mistakes(tool, &args) {
        return Some(ErrorKind::InvalidArguments(mistakes));
    }
    let is_business = |key: &key::Chosen| key.source == key::Source::Business;
    // A field that is null counts as absent, and is reported as an empty one.
    let lacks_one = matches!(refused, Some(key::Refused::FieldMissing(..)));
    if lacks_one || identity.key.as_ref().is_ok_and(is_business) {
        let empty = tool.key.empty_fields(value);
        if !empty.is_empty() {
            return Some(ErrorKind::InvalidArguments(empty));
        }
    }
    refused.cloned().map(ErrorKind::Key)
}

/// The mistakes for which the arguments make no call of the tool; `None`: there are none.
pub(super) fn mistakes(tool: &Tool, args: &Value) -> Option<Mistakes> {
    let of_schema = tool.schema.as_ref().map(|schema| schema.mistakes(args));
    let of_request = || tool.request().map(|request| request.mistakes(args));
    let is_any = |mistakes: &Mistakes| !mistakes.is_empty();
    of_schema
        .filter(is_any)
        .or_else(|| of_request().filter(is_any))
}
