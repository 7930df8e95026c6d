//! Routes of single calls: show, resolve, probe and replay. How a call looks in JSON.

pub mod export; // all calls, as lines that can be resumed
pub mod listing; // many calls
pub mod many; // acts on many calls or sagas at once
pub mod users; // users whose data is erased

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::openapi::Route;
use super::problem::{Problem, Slug};
use super::read::{Act, On, Sentence, given, read_object, word};
use oncegate_engine::CallAct;
use oncegate_rules::ledger::{Duplicate, Duplicates};
use oncegate_rules::record::{CallId, Content, Entry, Record, State as CallState};
use oncegate_rules::unknown::Resolution;

/// The routes of single calls.
pub(super) fn routes() -> Vec<Route> {
    let on_call = |route: Route| {
        let route = route.path("id", "The call's id.");
        route.problems(&[Slug::UnknownCall]).of_one()
    };
    let replayed = "Whether a result is stable: as it is stored, or compared with a fresh one";
    let resolved = "Settle a call whose outcome is unknown";
    let probed = "Ask the tool of an unknown call whether it knows the key; nothing is sent again";
    vec![
        on_call(Route::get(
            "/v1/calls/{id}",
            "show_call",
            "A call with its history",
            show,
        ))
        .json::<CallView<'_>>("The call."),
        on_call(
            Route::post("/v1/calls/{id}/replay", "replay_call", replayed, replay)
                .body::<ReplayBody>(),
        )
        .problems(&[
            Slug::WrongState,
            Slug::ReplayUnsafe,
            Slug::ShuttingDown,
            Slug::ToolPaused,
        ])
        .json::<ReplayView<'_>>("Both results and their differences."),
        on_call(
            Route::post("/v1/calls/{id}/resolve", "resolve_call", resolved, resolve)
                .body::<ResolveBody>(),
        )
        .problems(&[Slug::WrongState])
        .json::<CallView<'_>>("The call, without its history."),
        on_call(Route::act(
            "/v1/calls/{id}/probe",
            "probe_call",
            probed,
            probe,
        ))
        .problems(&[Slug::CallInProgress])
        .json::<CallView<'_>>("The call as the answer leaves it, without its history."),
    ]
}

/// `GET /v1/calls/{id}`
async fn show(on: On<CallId>) -> Result<Response, Problem> {
    let ledger = &on.http.gateway.ledger;
    let history = ledger.find_call(&on.caller, on.target).await?;
    // A claim shows the token that made the call.
    let events = history.entries.iter().map(|entry| EventView {
        token: entry.token_in(&history.record.intent),
        ..EventView::of(entry)
    });
    let view = CallView {
        events: Some(events.collect()),
        ..CallView::of(&history.record, &history.duplicates)
    };
    Ok(Json(view).into_response())
}

/// An operator's decision about an unknown call.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Resolution)]
pub(super) struct ResolveBody {
    #[serde(deserialize_with = "word")]
    r#as: As,
    /// The result that duplicates get. `succeeded` needs it; `null` if the tool answers nothing.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    #[schema(inline)]
    reason: Sentence,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ResolveAs)]
pub(super) enum As {
    Succeeded,
    Failed,
}

/// `POST /v1/calls/{id}/resolve`
async fn resolve(on: On<CallId>, body: Body) -> Result<Response, Problem> {
    let body: ResolveBody = read_object(body, on.http.max_body).await?;
    let act = CallAct::Resolve(resolution(body.r#as, body.result)?);
    let reason = body.reason.checked()?;
    let operator = &on.http.gateway.operator;
    let resolving = operator.act_on_call(&on.caller, act, on.target, &reason, None);
    Ok(shown(&resolving.await?))
}

/// An operator's decision: a success needs a result, a failure must have none.
pub(super) fn resolution(r#as: As, result: Option<Box<RawValue>>) -> Result<Resolution, Problem> {
    match (r#as, result) {
        (As::Succeeded, Some(json)) => {
            let json = String::from(Box::<str>::from(json));
            Ok(Resolution::Succeeded(Content::Stored(json.into())))
        }
        (As::Succeeded, None) => Err(Problem::invalid_request(
            "what has succeeded needs result: what every duplicate gets from now on, or null",
        )),
        (As::Failed, None) => Ok(Resolution::Failed),
        (As::Failed, Some(_)) => Err(Problem::invalid_request("what has failed has no result")),
    }
}

/// `POST /v1/calls/{id}/probe`
async fn probe(Act { on, reason }: Act<CallId>) -> Result<Response, Problem> {
    let operator = &on.http.gateway.operator;
    let probing = operator.act_on_call(&on.caller, CallAct::Probe, on.target, &reason, None);
    Ok(shown(&probing.await?))
}

/// A call without its history.
fn shown(record: &Record) -> Response {
    Json(CallView::of(record, &Duplicates::default())).into_response()
}

/// How to replay a result.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReplayRequest)]
pub(super) struct ReplayBody {
    #[serde(deserialize_with = "word")]
    mode: Mode,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ReplayMode)]
enum Mode {
    Stored,
    Verify,
}

/// `POST /v1/calls/{id}/replay`
async fn replay(on: On<CallId>, body: Body) -> Result<Response, Problem> {
    let body: ReplayBody = read_object(body, on.http.max_body).await?;
    let operator = &on.http.gateway.operator;
    let replay = match body.mode {
        Mode::Stored => operator.replay_stored(&on.caller, on.target).await?,
        Mode::Verify => operator.replay_verified(&on.caller, on.target).await?,
    };
    Ok(Json(ReplayView {
        call_id: replay.call_id.0,
        stable: replay.differences.is_empty(),
        stored: raw(&replay.stored),
        fresh: replay.fresh.as_deref().and_then(raw),
        differences: &replay.differences,
    })
    .into_response())
}

/// A stored result beside a fresh one.
#[derive(Serialize, ToSchema)]
#[schema(as = Replay)]
pub(super) struct ReplayView<'a> {
    call_id: Uuid,
    /// Whether both results are equal, apart from members that the tool may change.
    stable: bool,
    #[schema(required, value_type = serde_json::Value)]
    stored: Option<&'a RawValue>,
    /// The tool's fresh result, if the tool was asked.
    #[schema(required, value_type = serde_json::Value)]
    fresh: Option<&'a RawValue>,
    /// Where both results differ, as JSON Pointers.
    differences: &'a [String],
}

/// A call as the ledger shows it. An identity that the caller did not name is null.
#[derive(Serialize, ToSchema)]
#[schema(as = Call)]
pub(super) struct CallView<'a> {
    call_id: Uuid,
    tool: &'a str,
    tenant: &'a str,
    key: &'a str,
    #[schema(pattern = "^(runtime|business|model|derived|compensation|round|adopted)$")]
    key_source: &'static str,
    /// The key as the tool gets it, and as its own books may show it.
    tool_key: String,
    #[schema(
        pattern = "^(running|succeeded|failed|unknown|compensating|compensated|stuck|proposed|approved)$"
    )]
    state: &'static str,
    #[schema(required)]
    user_id: Option<&'a str>,
    #[schema(required)]
    session_id: Option<&'a str>,
    #[schema(required)]
    saga_id: Option<&'a str>,
    /// The call that undoes this one.
    #[schema(required)]
    compensation_call_id: Option<Uuid>,
    trace_id: &'a str,
    /// The name of the token that made the call; null for a call of the gateway itself.
    #[schema(required)]
    made_by: Option<&'a str>,
    /// The client's ids of the request: the members of `_meta` that `[mcp] client_ids` lists.
    #[schema(required, value_type = Option<Object>)]
    client_ids: Option<&'a RawValue>,
    /// An object. The text `[erased]` once the data of the call's user was erased, `[deleted]` after `args_for`; null if it cannot be read.
    #[schema(required, value_type = serde_json::Value)]
    args: Option<&'a RawValue>,
    /// The tool's JSON.
    #[schema(required, value_type = serde_json::Value)]
    result: Option<&'a RawValue>,
    #[schema(required)]
    error: Option<ErrorView<'a>>,
    #[schema(required)]
    fencing: Option<u64>,
    #[schema(required)]
    similar_to: Option<String>,
    attempts: u32,
    #[schema(required)]
    latency_ms: Option<u64>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    updated_at: String,
    #[schema(required, format = DateTime)]
    expires_at: Option<String>,
    /// When the gateway checks an unknown call next.
    #[schema(required, format = DateTime)]
    next_check_at: Option<String>,
    /// How many requests have repeated the call; may lag by a second or two.
    duplicates: u64,
    /// The newest of these requests.
    last_duplicates: Vec<DuplicateView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    events: Option<Vec<EventView<'a>>>,
}

impl<'a> CallView<'a> {
    /// The call without its history.
    pub(super) fn of(record: &'a Record, duplicates: &'a Duplicates) -> Self {
        let intent = &record.intent;
        let compensation = record.compensation();
        let duplicate = |duplicate: &'a Duplicate| DuplicateView {
            at: time(duplicate.at),
            by: &duplicate.by,
            kind: &duplicate.kind,
        };
        Self {
            call_id: intent.call_id.0,
            tool: &intent.tool,
            tenant: &intent.tenant,
            key: &intent.key,
            key_source: intent.key_source.as_str(),
            tool_key: intent.lookup.for_tool(),
            state: record.state.as_str(),
            user_id: named(&intent.user_id),
            session_id: named(&intent.session_id),
            saga_id: named(&intent.saga_id),
            compensation_call_id: compensation.map(|call| call.call_id.0),
            trace_id: &intent.trace_id,
            made_by: named(&intent.made_by),
            client_ids: serde_json::from_str(&intent.client_ids).ok(),
            args: raw(&intent.args),
            result: match record.state.content() {
                Some(Content::Stored(json)) => raw(json),
                Some(Content::Unavailable(_)) | None => None,
            },
            error: ErrorView::of(&record.state),
            fencing: record.fencing,
            similar_to: record.similar_to.map(|call_id| call_id.to_string()),
            attempts: record.attempts,
            latency_ms: record.latency_ms,
            created_at: time(intent.created_at),
            updated_at: time(record.updated_at),
            expires_at: record.expires_at.map(time),
            next_check_at: record.check.and_then(|check| check.at).map(time),
            duplicates: duplicates.count,
            last_duplicates: duplicates
                .newest_first()
                .into_iter()
                .map(duplicate)
                .collect(),
            events: None,
        }
    }
}

/// A request that repeated a call.
#[derive(Serialize, ToSchema)]
#[schema(as = Duplicate)]
struct DuplicateView<'a> {
    #[schema(format = DateTime)]
    at: String,
    by: &'a str,
    kind: &'a str,
}

/// Why a call has no result.
#[derive(Serialize, ToSchema)]
#[schema(as = CallError)]
struct ErrorView<'a> {
    kind: &'static str,
    detail: &'a str,
    #[schema(required)]
    tool_status: Option<u16>,
    #[schema(required, value_type = serde_json::Value)]
    tool_body: Option<&'a RawValue>,
}

impl<'a> ErrorView<'a> {
    fn of(state: &'a CallState) -> Option<Self> {
        let failure = match state {
            CallState::Failed(failure) => Some(failure),
            _ => None,
        };
        let (kind, detail) = match state {
            CallState::Failed(failure) => (failure.kind.as_str(), &failure.why),
            CallState::Unknown(why) => ("unknown", why),
            _ => match state.content()? {
                Content::Unavailable(unread) => ("result_unavailable", &unread.why),
                Content::Stored(_) => return None,
            },
        };
        Some(Self {
            kind,
            detail,
            tool_status: failure.and_then(|failure| failure.status),
            tool_body: failure.and_then(|failure| raw(failure.body.as_deref()?)),
        })
    }
}

/// One line of a history.
#[derive(Serialize, ToSchema)]
#[schema(as = Event)]
pub(super) struct EventView<'a> {
    #[schema(format = DateTime)]
    at: String,
    event: &'a str,
    #[schema(required)]
    attempt_id: Option<String>,
    #[schema(required)]
    outcome: Option<&'a str>,
    by: &'a str,
    /// The name of the token that acted, or that asked for the run.
    #[schema(required)]
    token: Option<&'a str>,
    detail: &'a str,
}

impl<'a> EventView<'a> {
    pub(super) fn of(entry: &'a Entry) -> Self {
        Self {
            at: time(entry.at),
            event: &entry.event,
            attempt_id: entry.attempt.map(|id| id.to_string()),
            outcome: entry.outcome.as_deref(),
            by: &entry.by,
            token: entry.token(),
            detail: &entry.detail,
        }
    }
}

/// An identity; `None` if it is empty, because the caller named none.
pub(super) fn named(id: &str) -> Option<&str> {
    Some(id).filter(|id| !id.is_empty())
}

pub(super) fn raw(json: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(json).ok()
}

/// A time in RFC 3339, in UTC with milliseconds.
pub fn time(time: jiff::Timestamp) -> String {
    format!("{time:.3}")
}

/// A length of time in milliseconds.
pub fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
