//! Reading a request: its key, its names, its fingerprint.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use super::large::LargeRequests;
use super::prepared::{Answers, Passed, PreparedCall, ReadWith, Request, ids_of, similar_group};
use crate::core::caller::Caller;
use crate::core::mcp::round;
use crate::core::proxy::view;
use crate::core::recipe::identity::Asking;
use crate::core::recipe::{Recipe, RecipeId, identity};
use crate::core::record::Intent;
use crate::core::request::Mistakes;
use crate::core::secret::{Secret, Secrets};
use crate::core::session::LINE_LENGTH;
use crate::core::tool::Tool;
use crate::core::{json, key, redact};
use crate::gateway::base::Base;
use crate::gateway::error::{Error, ErrorKind};
use crate::gateway::ids::{new_call_id, new_trace_id};
use crate::gateway::recipes::Recipes;
use crate::gateway::secret::KnownSecrets;
use crate::gateway::throttle::NewKeys;
use crate::gateway::tools::ToolAt;
use crate::gateway::trace::RequestSpan;

/// Turns requests into calls with a key.
pub(in crate::gateway) struct Preparer {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) recipes: Arc<Recipes>,
    pub(in crate::gateway) secrets: Arc<KnownSecrets>,
    pub(in crate::gateway) large: Arc<LargeRequests>,
}

impl Preparer {
    pub(in crate::gateway) fn tool_for(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<Arc<ToolAt>, Error> {
        if !caller.may_call(name) {
            return Err(ErrorKind::Forbidden.alone());
        }
        if self.base.draining.is_cancelled() {
            return Err(ErrorKind::ShuttingDown.alone());
        }
        self.base
            .tool_at(name)
            .ok_or_else(|| ErrorKind::UnknownTool.alone())
    }

    /// The tool of a request: an API with an HTTP request, or a tool with arguments.
    pub(in crate::gateway) fn at_for(
        &self,
        caller: &Caller,
        request: &Request,
    ) -> Result<Arc<ToolAt>, Error> {
        let at = self.tool_for(caller, &request.tool)?;
        match (&request.passed, &at.tool.proxy) {
            (Some(Passed { message, .. }), Some(_)) => {
                Ok(at.for_request(&message.method, &message.path))
            }
            (None, None) => Ok(at),
            _ => Err(ErrorKind::UnknownTool.alone()),
        }
    }

    /// Reads a request by today's recipe and by all remembered ones.
    ///
    /// # Errors
    /// It cannot be read, or gives no name to look for; or the recipes are not known.
    pub(in crate::gateway) async fn prepare(
        &self,
        at: Arc<ToolAt>,
        caller: &Caller,
        request: Request,
        span: &RequestSpan,
    ) -> Result<PreparedCall, Error> {
        let may_claim = self
            .recipes
            .know_recipes(&at)
            .await
            .map_err(ErrorKind::alone)?;
        let (earlier, secrets) = (self.recipes.earlier(&at), self.secrets.current());
        let (bytes, share, now) = (request.args.len(), self.base.limits.sample, self.base.now());
        let by = ReadBy {
            earlier: &earlier,
            secrets: &secrets,
        };
        let ask = || prepare(at, &by, caller, request, span, share, now);
        let call = self.large.read_off_workers(bytes, ask).await?;
        Ok(PreparedCall { may_claim, ..call })
    }
}

/// The key of a request by today's configuration, for a tool without `redact.args`.
///
/// Nothing is claimed, and nothing is looked up.
///
/// # Errors
/// The request cannot be read, does not fit the tool's schema, or has no good key.
pub fn identify(tool: &Tool, request: &Request) -> Result<key::Chosen, Error> {
    // Without redact.args no key depends on it.
    let none = Secrets::one(Secret::new([0; 32]));
    let read = read_request(tool, &Arc::new(Recipe::of(tool)), &[], "", request, &none)?;
    let refuse = |kind: ErrorKind| Error {
        key: read.brought(),
        ..kind.alone()
    };
    if let Some(complaint) = &read.complaint {
        return Err(refuse(complaint.clone()));
    }
    let key = read
        .identity
        .key
        .clone()
        .map_err(|why| refuse(ErrorKind::Key(why)))?;
    Ok(key)
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
    /// Why it is no call by today's configuration.
    complaint: Option<ErrorKind>,
    /// The key that the caller's runtime brought.
    runtime: Option<key::Key>,
}

impl Read {
    fn brought(&self) -> Option<String> {
        self.runtime.as_ref().map(|key| key.as_str().to_owned())
    }
}

/// Reads a request by today's recipe and by earlier ones.
fn read_request(
    tool: &Tool,
    today: &Arc<Recipe>,
    earlier: &[(RecipeId, Arc<Recipe>)],
    tenant: &str,
    request: &Request,
    secrets: &Secrets,
) -> Result<Read, Error> {
    let unreadable = |why: String| ErrorKind::InvalidRequest(why).alone();
    let args =
        json::parse_bounded(&request.args).map_err(|error| unreadable(format!("args: {error}")))?;
    if !args.is_object() {
        return Err(unreadable("args is no JSON object".into()));
    }
    if !matches!(request.answers, Answers::InArgs) && args.get(round::MEMBER).is_some() {
        let why = format!("the member {} of args is the gateway's own", round::MEMBER);
        return Err(unreadable(why));
    }
    if request.passed.is_none() && args.get(view::CREDENTIAL).is_some() {
        let why = format!(
            "the member {} of args is the gateway's own",
            view::CREDENTIAL
        );
        return Err(unreadable(why));
    }
    let runtime = key::from_runtime(request.key_header.as_deref(), request.key_member.as_deref());
    let runtime = runtime.map_err(|why| ErrorKind::Key(why).alone())?;
    let asking = Asking {
        tenant,
        user_id: &request.user_id,
        runtime: runtime.as_ref(),
        args: &args,
        secrets,
    };
    let mut identity = identity::identify(today, earlier, &asking);
    let counted = identity.counted.take();
    let raw = Bytes::from(request.args.clone());
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
    })
}

/// Why a request is no call by today's configuration.
fn complaint(tool: &Tool, identity: &identity::Identity, value: &Value) -> Option<ErrorKind> {
    let refused = identity.key.as_ref().err();
    let is_bad_key = matches!(
        refused,
        Some(key::Refused::Invalid(..) | key::Refused::Reserved)
    );
    let mistakes = tool.schema.as_ref().filter(|_| !is_bad_key).map(|schema| {
        match round::answered_by(value) {
            None => schema.mistakes(value),
            Some(_) => schema.mistakes(&round::without(value.clone())),
        }
    });
    let mistakes = mistakes.filter(|mistakes| !mistakes.is_empty());
    let mistakes = mistakes.or_else(|| no_request(tool, value));
    match mistakes.filter(|_| !is_bad_key) {
        Some(mistakes) => Some(ErrorKind::InvalidArguments(mistakes)),
        None => refused.cloned().map(ErrorKind::Key),
    }
}

/// The mistakes for which the arguments make no request to the tool.
pub(super) fn no_request(tool: &Tool, args: &Value) -> Option<Mistakes> {
    let mistakes = tool.request.as_ref()?.mistakes(args);
    (!mistakes.is_empty()).then_some(mistakes)
}

/// The recipes and secrets that read a request, beside today's recipe.
struct ReadBy<'a> {
    earlier: &'a [(RecipeId, Arc<Recipe>)],
    secrets: &'a Arc<Secrets>,
}

fn prepare(
    at: Arc<ToolAt>,
    by: &ReadBy<'_>,
    caller: &Caller,
    request: Request,
    span: &RequestSpan,
    share: f64,
    now: Timestamp,
) -> Result<PreparedCall, Error> {
    let read = read_request(
        &at.tool,
        &at.recipe,
        by.earlier,
        &caller.tenant,
        &request,
        by.secrets,
    )?;
    let brought = read.brought();
    let Read {
        identity,
        value,
        args,
        raw,
        complaint,
        runtime,
    } = read;
    let names = identity.names;
    // By the configuration of today it may have no key; then it is looked for under its other names.
    let (Some(first), Some(key)) = (names.first(), identity.keys.first()) else {
        let kind = complaint.unwrap_or(ErrorKind::Key(key::Refused::Missing));
        return Err(Error {
            key: brought,
            ..kind.alone()
        });
    };
    let similar = similar_group(
        &at.tool,
        &caller.tenant,
        &request.user_id,
        &value,
        by.secrets,
    );
    let intent = Intent {
        call_id: new_call_id(&first.lookup),
        tenant: caller.tenant.clone(),
        tool: at.tool.name.clone(),
        lookup: first.lookup,
        names: names[1..].iter().map(|name| name.lookup).collect(),
        recipe: at.recipe_id,
        key: key.key.as_str().to_owned(),
        key_source: key.source,
        fingerprint: identity.fingerprint,
        user_id: request.user_id,
        session_id: request.session_id,
        saga_id: request.saga_id,
        trace_id: request.trace_id.unwrap_or_else(new_trace_id),
        made_by: caller.name.clone(),
        client_ids: request.client_ids,
        similar,
        args: match &request.passed {
            Some(passed) => passed.image.clone(),
            None => redact::mask(&args, &at.tool.redact.args),
        },
        created_at: now,
    };
    let (session, new_keys) = (request.brought, NewKeys::of(caller));
    let trace = span.belongs_to(&intent, share);
    let told_key = if complaint.is_some() {
        brought
    } else {
        Some(intent.key.clone())
    };
    Ok(PreparedCall {
        at,
        intent: Arc::new(intent),
        names: names.into(),
        prints: Arc::new(identity.prints),
        read_by: Some(ReadWith {
            recipes: ids_of(by.earlier),
            secrets: by.secrets.clone(),
        }),
        runtime,
        raw,
        complaint,
        may_claim: true,
        told_key,
        args,
        message: request.passed.map(|passed| passed.message),
        brought: session,
        longest_line: LINE_LENGTH,
        new_keys,
        client: request.client,
        trace,
    })
}
