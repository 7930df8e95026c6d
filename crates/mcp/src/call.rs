//! `tools/call`: reads the call, runs it, and answers with a result or a stream that ends in one.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use axum::response::Response;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::sleep;
use uuid::Uuid;

use super::answer::{CallAnswer, Reader};
use super::events::{Progress, Waiting};
use super::message::RpcError;
use super::state::Mcp;
use super::text::AsksBy;
use super::{Params, answer, events, list};
use oncegate_engine::{
    Answer as CallResult, Answers, Client, Error, ErrorKind, Interface, Patience, Request,
    RequestSpan,
};
use oncegate_http::calls::{FENCING_TOKEN_BOUND, saga, session_id};
use oncegate_http::headers::{key_header, trace_context};
use oncegate_http::problem::Problem;
use oncegate_http::read::identity;
use oncegate_rules::caller::{Caller, OPEN};
use oncegate_rules::mcp::elicitation::{self, Answer};
use oncegate_rules::mcp::mirrored::{self, Mirrored};
use oncegate_rules::mcp::revision::{CAPABILITIES, Era, Malformed};
use oncegate_rules::mcp::tasks;
use oncegate_rules::mcp::{self, Source};
use oncegate_rules::mcp::{payment, progress};
use oncegate_rules::record::CallId;
use oncegate_rules::session::Preconditions;
use oncegate_rules::tool::{AsTask, Effect};
use oncegate_rules::trace::Context;

/// A request for a call, and the progress to forward, if the caller asks for progress.
pub(super) type Call = (Request, Option<Progress>);

/// How many progress notifications may wait to be sent.
const NOTES: usize = 16;

/// The tool's questions that a request answers, with the answers.
///
/// Every question came with a state, so answers without one are ignored: the tool asks again.
///
/// # Errors
/// The gateway has not given out this state.
fn answer(state: Option<&str>, responses: Option<&RawValue>) -> Result<Option<Answer>, RpcError> {
    if responses.is_some_and(|responses| !responses.get().starts_with('{')) {
        return Err(RpcError::params("inputResponses must be an object"));
    }
    let read = |state| {
        let unknown = || RpcError::params("this requestState was not issued here");
        Answer::read(state, responses).ok_or_else(unknown)
    };
    state.map(read).transpose()
}

/// Reads a request for a call. `[mcp]` says where its user, session and key are.
///
/// # Errors
/// The request is malformed; nothing was run.
pub(super) fn read(
    mcp: &Mcp,
    caller: &Caller,
    tool: String,
    params: &Params<'_>,
    headers: &HeaderMap,
    era: Era,
) -> Result<Call, RpcError> {
    let answer = answer(params.state.as_deref(), params.responses)?;
    let args = params.arguments.map_or("{}", RawValue::get);
    let (meta, is_modern) = (&params.meta, era == Era::Modern);

    let refuse = |problem: Problem| RpcError::params(&problem.detail);
    if !args.starts_with('{') {
        return Err(RpcError::params("arguments must be an object"));
    }
    if is_modern {
        check_mirrored(mcp, caller, &tool, args, headers)?;
    }
    let first = |sources: &[Source]| {
        let line = |name: &str| super::header(headers, name);
        mcp::first_text(sources, meta, line).map_err(|why| RpcError::params(&why))
    };
    let user_id = first(&mcp.settings.user)?.unwrap_or_else(|| caller.name.clone());
    let user_id = identity("the user", user_id).map_err(refuse)?;
    let session = first(&mcp.settings.session)?.unwrap_or_else(|| user_id.clone());
    // Without tokens everybody is one user, as over HTTP. Earlier releases named that user here.
    let is_nobody = *caller == Caller::open() && user_id == caller.name;
    let (user_id, earlier_user) = match is_nobody {
        true => (String::new(), Some(OPEN)),
        false => (user_id, None),
    };
    let own = |name: &str| [Source::Meta(name.to_owned())];
    let key_sources = [mcp::KEY]
        .into_iter()
        .chain(mcp.settings.key_meta.iter().map(String::as_str));
    let key_sources: Vec<Source> = key_sources.map(|name| Source::Meta(name.into())).collect();
    let key_header = key_header(headers).map_err(RpcError::params)?;
    let at = mcp.http.gateway.base.tools().get(&tool).cloned();
    let knows_tasks = is_modern && mcp.settings.tasks && tasks::is_known_by(meta);
    let accept_after = match at.as_ref().map_or(AsTask::Auto, |at| at.tool.task) {
        _ if !knows_tasks => None,
        AsTask::Auto => Some(mcp.settings.task_after.min(mcp.settings.answer_within)),
        AsTask::Never => None,
        AsTask::Always => Some(Duration::ZERO),
    };
    let reading = at.filter(|at| at.tool.effect == Effect::Read);
    // The result of a read is not stored, so a caller that is told "still running" would read again.
    let within = mcp.settings.answer_within;
    let longest = reading.map_or(within, |at| at.tool.longest());
    // Its client may give up all the same.
    let keep_read = (longest > within && answer.is_none()).then_some(within);
    let context = context_of(meta).or_else(|| trace_context(headers));
    let fencing = fencing_token(meta)?;
    let confirmed = first(&own(mcp::CONFIRM))?.map(|id| Uuid::try_parse(&id));
    let confirmed = confirmed
        .transpose()
        .map_err(|_| RpcError::params(&format!("_meta[{:?}] is not a call id", mcp::CONFIRM)))?;
    let [own_place] = own(mcp::CLIENT_CALL);
    let places: Vec<Source> = [own_place]
        .into_iter()
        .chain(mcp.settings.client_call_id.iter().cloned())
        .collect();
    let client_call = first(&places)?.unwrap_or_default();
    let client_call = identity(mcp::CLIENT_CALL, client_call).map_err(refuse)?;
    let preconditions = Preconditions {
        fencing,
        confirmed: confirmed.map(CallId),
    };
    // Only a stream can carry progress notifications.
    let asked = meta.get(progress::TOKEN).filter(|_| takes_stream(headers));
    let channel = asked.and_then(progress::Asked::new).map(|asked| {
        let (sender, notes) = mpsc::channel(NOTES);
        (sender, Progress { asked, notes })
    });
    let (sender, progress) = channel.unzip();
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
        preconditions,
        patience: Patience {
            longest: Some(longest),
            accept_after,
            keep_read,
            ..Patience::default()
        },
        interface: Interface::Mcp,
        client: Client {
            progress: sender,
            knows_tasks: accept_after.is_some(),
            payments: payment::of(meta).into(),
            can_answer: is_modern.then(|| elicitation::can_answer(meta.get(CAPABILITIES)).into()),
        },
        // The older revisions have no questions of tools.
        answers: answer
            .filter(|_| is_modern)
            .map_or(Answers::Nothing, Answers::Elicitation),
        proxied: None,
        client_ids: mcp::client_ids(
            &client_call,
            mcp.settings.client_ids.iter().map(String::as_str),
            meta,
        ),
        client_call,
        earlier_user,
    };
    Ok((request, progress))
}

/// Reads the trace context in `_meta`.
fn context_of(meta: &Map<String, Value>) -> Option<Context> {
    let text = |name: &str| meta.get(name).and_then(Value::as_str);
    Context::parse(text("traceparent")?, text("tracestate").unwrap_or_default())
}

fn fencing_token(meta: &Map<String, Value>) -> Result<Option<u64>, RpcError> {
    let name = mcp::FENCING_TOKEN;
    match meta.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(token) => {
            let token = token.as_u64().filter(|token| *token < FENCING_TOKEN_BOUND);
            let refuse = || RpcError::params(&format!("_meta[{name:?}] is not a fencing token"));
            token.map(Some).ok_or_else(refuse)
        }
    }
}

/// Checks that headers which repeat arguments agree with them.
///
/// Skipped for a caller that may not call the tool: the error would tell that the tool exists.
fn check_mirrored(
    mcp: &Mcp,
    caller: &Caller,
    tool: &str,
    args: &str,
    headers: &HeaderMap,
) -> Result<(), RpcError> {
    if !caller.may_call(tool) {
        return Ok(());
    }
    let tools = mcp.http.gateway.base.tools();
    let schema = tools.get(tool).and_then(|at| at.tool.schema.as_ref());
    let mirrored: Vec<Mirrored> =
        schema.map_or_else(Vec::new, |schema| mirrored::mirrored(schema.text()));
    agree(&mirrored, args, headers)
}

/// Checks the same for a tool of an MCP server, by the schema that the server lists.
///
/// A tool with an `input_schema` of its own was checked by that.
pub(super) fn check_listed(
    mcp: &Mcp,
    caller: &Caller,
    request: &Request,
    headers: &HeaderMap,
) -> Result<(), RpcError> {
    if !caller.may_call(&request.tool) {
        return Ok(());
    }
    let tools = mcp.http.gateway.base.tools();
    let at = tools.get(&request.tool);
    let mirrored = at.and_then(|at| at.endpoint.mcp.as_ref());
    let mirrored = mirrored.map_or(&[][..], |mcp| &mcp.mirrored[..]);
    agree(mirrored, &request.args, headers)
}

/// Whether headers and arguments agree.
fn agree(mirrored: &[Mirrored], args: &str, headers: &HeaderMap) -> Result<(), RpcError> {
    if mirrored.is_empty() {
        return Ok(());
    }
    let args = serde_json::from_str(args).map_err(|error| RpcError::params(&error.to_string()))?;
    mirrored::check(mirrored, &args, |name| super::header(headers, name))
        .map_err(|why| Malformed::Header(why).into())
}

/// Runs a call. The answer to a long one is a stream, if the caller accepts a stream.
///
/// A caller that hangs up ends only its wait; the call goes on.
pub(super) async fn run(
    mcp: &Mcp,
    caller: Caller,
    (request, progress): Call,
    id: Box<RawValue>,
    era: Era,
    waiting: Waiting,
    upstream: Option<&str>,
) -> Response {
    let is_forwarded = is_of_upstream(mcp, &request.tool);
    let knows_tasks = request.patience.accept_after.is_some();
    let (here, upstream) = (mcp.clone(), upstream.map(str::to_owned));
    let calling = async move {
        let gateway = &here.http.gateway;
        let tool = request.tool.clone();
        let answer = gateway.engine.call(&caller, request).await;
        let runs = |error: &Error| {
            matches!(
                error.kind,
                ErrorKind::CallInProgress { .. } | ErrorKind::ApprovalRequired { .. }
            )
        };
        let asks_by = match &answer {
            _ if knows_tasks => AsksBy::Task,
            Err(error) if runs(error) && list::has_await(&here, &caller, upstream.as_deref()) => {
                AsksBy::Await
            }
            _ => AsksBy::Repetition,
        };
        if matches!(answer, Ok(CallResult::Accepted(_))) {
            let tasks = &gateway.base.metrics.tasks;
            tasks.with_label_values(&[&tool]).inc();
        }
        let reader = Reader {
            era,
            now: gateway.base.now(),
            is_forwarded,
            is_of_call: true,
            asks_by,
            pages: here.settings.pages.as_deref(),
        };
        answer::answer_to(answer, reader)
    };
    respond(mcp, calling, progress, id, waiting).await
}

/// Whether the tool is an MCP server's.
pub(super) fn is_of_upstream(mcp: &Mcp, tool: &str) -> bool {
    let tools = mcp.http.gateway.base.tools();
    tools.get(tool).is_some_and(|at| at.is_of_upstream())
}

/// Answers a request. A late answer is a stream, if the caller accepts a stream.
pub(super) async fn respond(
    mcp: &Mcp,
    calling: impl Future<Output = CallAnswer> + Send + 'static,
    mut progress: Option<Progress>,
    id: Box<RawValue>,
    waiting: Waiting,
) -> Response {
    let mut calling = Box::pin(calling);
    if !waiting.takes_stream {
        return calling.await.respond(&id);
    }
    let note = tokio::select! {
        biased;
        note = events::next_note(&mut progress) => Some(note),
        answer = &mut calling => return answer.respond(&id),
        () = sleep(mcp.settings.stream_after) => None,
    };
    let gateway = mcp.http.gateway.clone();
    let late = async move {
        let answer = calling.await;
        // The head of the response is sent already, so nothing around it sees the problem.
        if let Some(problem) = answer.problem() {
            waiting.asker.note(&gateway, problem);
        }
        answer.body(&id)
    };
    events::one(late, note, progress)
}

pub(super) fn takes_stream(headers: &HeaderMap) -> bool {
    let mut lines = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|line| line.to_str().ok());
    lines.any(|line| line.contains("text/event-stream"))
}
