//! `tools/call`: a call like any other, answered by a result or by a stream that ends in one.

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::sleep;
use uuid::Uuid;

use super::super::Http;
use super::super::calls::{FIRST_NO_TOKEN, IDEMPOTENCY_KEY, saga, session_id, traced};
use super::super::problem::Problem;
use super::super::read::identity;
use super::events::Heard;
use super::message::RpcError;
use super::{answer, events};
use crate::core::caller::Caller;
use crate::core::mcp::mirrored::{self, Mirrored};
use crate::core::mcp::progress;
use crate::core::mcp::revision::{CAPABILITIES, Era, Malformed};
use crate::core::mcp::round::{self, Answer};
use crate::core::mcp::{self, Source};
use crate::core::record::CallId;
use crate::core::session::Brought;
use crate::core::tool::Effect;
use crate::core::trace::Context;
use crate::gateway::{Answers, Client, Door, Patience, Request, RequestSpan};

/// The parameters of `tools/call`, and the headers beside them.
pub(super) struct CallParams<'a> {
    pub(super) tool: String,
    pub(super) args: &'a str,
    pub(super) meta: &'a Map<String, Value>,
    pub(super) headers: &'a HeaderMap,
    pub(super) answer: Option<Answer>,
}

/// A request for a call, and its progress, if the caller asks for it.
pub(super) struct Call {
    request: Request,
    progress: Option<Heard>,
}

/// Progress notifications that wait to be sent to a caller.
const NOTES: usize = 16;

/// The round that a request answers.
///
/// Answers without a state belong to no round: each has got one. Then the call is asked for anew, which asks anew.
///
/// # Errors
/// The state is none of the gateway's.
pub(super) fn answer(
    state: Option<&str>,
    responses: Option<&RawValue>,
) -> Result<Option<Answer>, RpcError> {
    if responses.is_some_and(|responses| !responses.get().starts_with('{')) {
        return Err(RpcError::params("inputResponses must be an object"));
    }
    let read = |state| {
        let unknown = || RpcError::params("requestState is none that was given here");
        Answer::read(state, responses).ok_or_else(unknown)
    };
    state.map(read).transpose()
}

/// Reads a request for a call. Its user, session and key stand where `[mcp]` says.
///
/// # Errors
/// What is wrong with it; nothing was run.
pub(super) fn read(
    http: &Http,
    caller: &Caller,
    params: CallParams<'_>,
    era: Era,
) -> Result<Call, RpcError> {
    let CallParams {
        tool,
        args,
        meta,
        headers,
        answer,
    } = params;
    let is_modern = era == Era::Modern;

    let refuse = |problem: Problem| RpcError::params(problem.detail());
    if !args.starts_with('{') {
        return Err(RpcError::params("arguments must be an object"));
    }
    if is_modern {
        check_mirrored(http, caller, &tool, args, headers)?;
    }
    let first = |sources: &[Source]| {
        let line = |name: &str| super::header(headers, name);
        mcp::first_text(sources, meta, line).map_err(|why| RpcError::params(&why))
    };
    let user_id = first(&http.mcp.user)?.unwrap_or_else(|| caller.name.clone());
    let user_id = identity("the user", user_id).map_err(refuse)?;
    let session = first(&http.mcp.session)?.unwrap_or_else(|| user_id.clone());
    let own = |name: &str| [Source::Meta(name.to_owned())];
    let key_sources = [mcp::KEY]
        .into_iter()
        .chain(http.mcp.key_meta.iter().map(String::as_str));
    let key_sources: Vec<Source> = key_sources.map(|name| Source::Meta(name.into())).collect();
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key_header = keys
        .next()
        .map(|line| Bytes::copy_from_slice(line.as_bytes()));
    if keys.next().is_some() {
        return Err(RpcError::params(
            "there is more than one Idempotency-Key header line",
        ));
    }
    let reading = http.gateway.base.tools().get(&tool).cloned();
    let reading = reading.filter(|at| at.tool.effect == Effect::Read);
    // The result of a read is not kept, so that "still running" would have it read anew.
    let longest = reading.map_or(http.mcp.answer_within, |at| at.tool.longest());
    let context = context_of(meta).or_else(|| traced(headers));
    let brought = Brought {
        fencing: fencing_token(meta)?,
        confirmed: first(&own(mcp::CONFIRM))?
            .map(|id| {
                let id = Uuid::try_parse(&id);
                id.map_err(|_| {
                    RpcError::params(&format!("_meta[{:?}] is no call id", mcp::CONFIRM))
                })
            })
            .transpose()?
            .map(CallId),
    };
    // Only a stream has a place for it.
    let asked = meta.get(progress::TOKEN).filter(|_| takes_stream(headers));
    let heard = asked.and_then(progress::Asked::new).map(|asked| {
        let (sender, notes) = mpsc::channel(NOTES);
        (sender, Heard { asked, notes })
    });
    let (sender, progress) = heard.unzip();
    let request = Request {
        tool,
        args: args.to_owned(),
        user_id,
        session_id: session_id(session).map_err(refuse)?,
        saga_id: saga(first(&own(mcp::SAGA))?.unwrap_or_default()).map_err(refuse)?,
        trace_id: context.as_ref().map(|context| context.trace_id.clone()),
        span: RequestSpan::begin(context),
        key_header,
        key_member: first(&key_sources)?,
        brought,
        patience: Patience {
            longest: Some(longest),
            ..Patience::default()
        },
        door: Door::Mcp,
        client: Client {
            progress: sender,
            can_answer: is_modern.then(|| round::can_answer(meta.get(CAPABILITIES)).into()),
        },
        // The older revisions know no rounds.
        answers: answer
            .filter(|_| is_modern)
            .map_or(Answers::Nothing, Answers::Round),
        passed: None,
        client_ids: mcp::client_ids(&http.mcp.client_ids, meta),
    };
    Ok(Call { request, progress })
}

/// The trace context in `_meta`.
fn context_of(meta: &Map<String, Value>) -> Option<Context> {
    let text = |name: &str| meta.get(name).and_then(Value::as_str);
    Context::parse(text("traceparent")?, text("tracestate").unwrap_or_default())
}

fn fencing_token(meta: &Map<String, Value>) -> Result<Option<u64>, RpcError> {
    let name = mcp::FENCING_TOKEN;
    match meta.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(token) => match token.as_u64().filter(|token| *token < FIRST_NO_TOKEN) {
            Some(token) => Ok(Some(token)),
            None => Err(RpcError::params(&format!(
                "_meta[{name:?}] is no fencing token"
            ))),
        },
    }
}

/// Checks arguments against the headers that repeat them.
///
/// Not for those that may not call the tool: they would learn that it exists.
fn check_mirrored(
    http: &Http,
    caller: &Caller,
    tool: &str,
    args: &str,
    headers: &HeaderMap,
) -> Result<(), RpcError> {
    if !caller.may_call(tool) {
        return Ok(());
    }
    let tools = http.gateway.base.tools();
    let schema = tools.get(tool).and_then(|at| at.tool.schema.as_ref());
    let mirrored: Vec<Mirrored> =
        schema.map_or_else(Vec::new, |schema| mirrored::mirrored(schema.text()));
    if mirrored.is_empty() {
        return Ok(());
    }
    let args = serde_json::from_str(args).map_err(|error| RpcError::params(&error.to_string()))?;
    mirrored::check(&mirrored, &args, |name| super::header(headers, name))
        .map_err(|why| Malformed::Header(why).into())
}

/// Runs a call.
///
/// If it takes long, the answer is a stream, if the caller takes one.
///
/// A caller that hangs up ends its own wait, and not the call.
pub(super) async fn run(
    http: &Http,
    caller: Caller,
    call: Call,
    id: Box<RawValue>,
    era: Era,
    headers: &HeaderMap,
) -> Response {
    let Call {
        request,
        mut progress,
    } = call;
    let gateway = http.gateway.clone();
    let tools = gateway.base.tools();
    let is_passed = tools
        .get(&request.tool)
        .is_some_and(|at| at.is_of_upstream());
    let mut calling = Box::pin(async move {
        let answer = gateway.engine.call(&caller, request).await;
        answer::told(&id, answer, era, gateway.base.now(), is_passed)
    });
    if !takes_stream(headers) {
        return calling.await.into_response();
    }
    let note = tokio::select! {
        biased;
        note = events::heard(&mut progress) => Some(note),
        told = &mut calling => return told.into_response(),
        () = sleep(http.mcp.stream_after) => None,
    };
    events::one(async { calling.await.body }, note, progress)
}

fn takes_stream(headers: &HeaderMap) -> bool {
    let mut lines = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|line| line.to_str().ok());
    lines.any(|line| line.contains("text/event-stream"))
}
