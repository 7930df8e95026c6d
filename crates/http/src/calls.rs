//! `POST /v1/tools/{tool}/calls`: reads a request for a call, and prints the answer.

pub mod approvals; // calls that wait for approval
pub(crate) mod asked; // the answer to a call that is named by its id
pub(crate) mod preview; // the key of a call that is not made

use std::ops::Not;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::headers::{
    CALL_ID, FENCING_TOKEN, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED, key_header, trace_context,
};
use super::ledger::named;
use super::openapi::Route;
use super::parts::Parts;
use super::problem::{Problem, Slug, whole_seconds};
use super::read::{On, ToolName, identity, object, read_body};
use oncegate_budget::Elsewhere;
use oncegate_engine::{Answer, Interface, Patience, Request, RequestSpan, Stored, identify};
use oncegate_rules::key::COMPENSATION;
use oncegate_rules::record::{CallId, Record, State as CallState};
use oncegate_rules::session::Preconditions;
use oncegate_rules::tool::Tool;

/// Problems of a request before its call is known.
pub(super) const OF_A_REQUEST: [Slug; 8] = [
    Slug::KeyMissing,
    Slug::KeyInvalid,
    Slug::KeyConflict,
    Slug::UnknownTool,
    Slug::UnknownPath,
    Slug::InvalidArguments,
    Slug::StoreUnavailable,
    Slug::ShuttingDown,
];
/// Problems of a call.
const OF_A_CALL: [Slug; 20] = [
    Slug::CallInProgress,
    Slug::ApprovalRequired,
    Slug::ApprovalDeclined,
    Slug::ApprovalLapsed,
    Slug::WrongState,
    Slug::OutcomeUnknown,
    Slug::SessionBusy,
    Slug::SessionFrozen,
    Slug::StaleFencingToken,
    Slug::PossibleDuplicate,
    Slug::KeyExpired,
    Slug::KeyReused,
    Slug::InputRequired,
    Slug::ToolRejected,
    Slug::RateLimited,
    Slug::BudgetExceeded,
    Slug::ToolUnreachable,
    Slug::ToolUnavailable,
    Slug::ResultUnavailable,
    Slug::ToolPaused,
];

/// The main route.
pub(super) fn routes() -> Vec<Route> {
    let about = "Run a call, or get what is known of it";
    let route = Route::post("/v1/tools/{tool}/calls", "call_tool", about, call)
        .path("tool", "The tool's name.")
        .call_headers()
        .body::<CallBody<'_>>()
        .problems(&OF_A_REQUEST)
        .problems(&OF_A_CALL);
    vec![with_answers(route)]
}

/// The answers about a call that has a result, or runs.
fn with_answers(route: Route) -> Route {
    route
        .json_with::<ResultView<'_>>(
            200,
            "The tool's result, new or stored.",
            &[
                &IDEMPOTENCY_KEY,
                &CALL_ID,
                &GATEWAY_OUTCOME,
                &REPLAYED,
                &FENCING_TOKEN,
            ],
        )
        .json_with::<Accepted<'_>>(
            202,
            "The call runs, or waits for approval; ask for its answer at Location, after Retry-After.",
            &[
                &LOCATION,
                &RETRY_AFTER,
                &IDEMPOTENCY_KEY,
                &CALL_ID,
                &GATEWAY_OUTCOME,
                &FENCING_TOKEN,
            ],
        )
}

/// The longest wait that a caller may ask for.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Every fencing token is smaller: each reader of JSON holds such integers exactly.
pub const FENCING_TOKEN_BOUND: u64 = 1 << 53;

/// A request for a call.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CallRequest)]
pub(super) struct CallBody<'a> {
    /// The tool's arguments.
    #[serde(borrow)]
    #[schema(value_type = Object)]
    args: &'a RawValue,
    #[schema(max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    user_id: Option<String>,
    #[schema(max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    session_id: Option<String>,
    /// The saga that the call belongs to. It begins with the first call that names it.
    #[schema(max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    saga_id: Option<String>,
    #[schema(pattern = "^[!-~]{1,255}$")]
    idempotency_key: Option<String>,
    /// A `traceparent` header takes precedence.
    #[schema(max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    trace_id: Option<String>,
    /// The newest fencing token of the session that the caller knows.
    #[schema(maximum = 9_007_199_254_740_991_i64)]
    fencing_token: Option<u64>,
    /// The earlier call that this one looks like, or that has equal arguments, to confirm that both are meant.
    #[schema(value_type = Option<Uuid>)]
    confirm_duplicate_of: Option<Uuid>,
    /// The caller's own id of this call, which stays the same when the call is sent again, as thread and tool call. It
    /// makes no call new, and finds its call as long as the call is kept.
    #[schema(max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    client_call_id: Option<String>,
}

/// `POST /v1/tools/{tool}/calls`
async fn call(on: On<ToolName>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let span = RequestSpan::begin(trace_context(&headers));
    let bytes = read_body(body, on.http.max_body).await?;
    let engine = &on.http.gateway.engine;
    let parse = || parse(on.target.0, &headers, &bytes);
    let read = engine.large.read_off_workers(bytes.len(), parse).await?;
    let request = Request { span, ..read };
    // The wait for the call may be long, and needs no bytes of the request.
    drop(bytes);
    match engine.call(&on.caller, request).await? {
        Answer::Result(stored) => Ok(result(&stored)),
        Answer::Accepted(record) => {
            let retry_after = engine.retry_after(&record);
            Ok(accepted(&record, retry_after))
        }
    }
}

/// The key that a request body gets, as JSON, for `oncegate key`.
///
/// # Errors
/// Why the body gets no key, in a sentence.
pub fn dry_run(tool: &Tool, body: &[u8]) -> Result<String, String> {
    #[derive(Serialize)]
    struct DryRun<'a> {
        tool: &'a str,
        idempotency_key: &'a str,
        key_source: &'a str,
    }
    if !tool.redact.args.is_empty() {
        let why = "its keys are made with the store's secret, because of redact.args: ask a gateway, POST /v1/tools/{tool}/key";
        return Err(why.replace("{tool}", &tool.name));
    }
    let request = parse(tool.name.clone(), &HeaderMap::new(), body);
    let request = request.map_err(|problem| problem.detail)?;
    let found = identify(tool, &request).map_err(|error| Problem::from(error).detail)?;
    Ok(json(&DryRun {
        tool: &tool.name,
        idempotency_key: found.key.as_str(),
        key_source: found.source.as_str(),
    }))
}

/// Reads a request for a call.
pub(super) fn parse(tool: String, headers: &HeaderMap, bytes: &[u8]) -> Result<Request, Problem> {
    let body: CallBody<'_> = object(bytes)?;
    let key_header = key_header(headers).map_err(Problem::invalid_request)?;
    if body
        .fencing_token
        .is_some_and(|token| token >= FENCING_TOKEN_BOUND)
    {
        return Err(Problem::invalid_request(
            "fencing_token is larger than any that was ever given out",
        ));
    }
    let trace_id = match trace_context(headers) {
        Some(context) => Some(context.trace_id),
        None => body
            .trace_id
            .map(|id| identity("trace_id", id))
            .transpose()?,
    };
    let client_call = identity("client_call_id", body.client_call_id.unwrap_or_default())?;
    Ok(Request {
        tool,
        args: body.args.get().to_owned(),
        client_ids: match client_call.as_str() {
            "" => String::new(),
            id => serde_json::json!({ "client_call_id": id }).to_string(),
        },
        client_call,
        user_id: identity("user_id", body.user_id.unwrap_or_default())?,
        session_id: session_id(body.session_id.unwrap_or_default())?,
        saga_id: saga(body.saga_id.unwrap_or_default())?,
        trace_id: trace_id.filter(|id| !id.is_empty()),
        span: RequestSpan::default(),
        key_header,
        key_member: body.idempotency_key,
        preconditions: Preconditions {
            fencing: body.fencing_token,
            confirmed: body.confirm_duplicate_of.map(CallId),
        },
        patience: patience(headers),
        interface: Interface::Http,
        ..Request::default()
    })
}

/// Checks a caller's session id.
///
/// A tool gets the id as a header. Headers lose outer spaces, so that two sessions would look like one.
pub fn session_id(id: String) -> Result<String, Problem> {
    if id.trim() != id {
        return Err(Problem::invalid_request(
            "session_id must not begin or end with a space",
        ));
    }
    identity("session_id", id)
}

/// Checks a caller's saga id.
pub fn saga(id: String) -> Result<String, Problem> {
    if id.starts_with(COMPENSATION) {
        let why = format!("a saga_id that begins with {COMPENSATION} is the gateway's own");
        return Err(Problem::invalid_request(&why));
    }
    identity("saga_id", id)
}

/// Reads `Prefer: wait=SECONDS, respond-async` (RFC 7240), and ignores other preferences.
fn patience(headers: &HeaderMap) -> Patience {
    let mut patience = Patience::default();
    let lines = headers
        .get_all("prefer")
        .iter()
        .filter_map(|line| line.to_str().ok());
    for preference in lines.flat_map(members) {
        let preference = preference.split(';').next().unwrap_or_default().trim();
        let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "respond-async" => patience.respond_async = true,
            "wait" if patience.wait.is_none() => {
                let seconds = value.trim().trim_matches('"').parse().ok();
                patience.wait = seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_WAIT));
            }
            _ => {}
        }
    }
    patience
}

/// Splits a list at commas outside of quotes.
fn members(line: &str) -> impl Iterator<Item = &str> {
    let mut in_quotes = false;
    line.split(move |c| {
        in_quotes ^= c == '"';
        c == ',' && !in_quotes
    })
}

/// The members that [`result`] writes, for the OpenAPI document.
#[derive(Serialize, ToSchema)]
#[schema(as = CallResult)]
pub(super) struct ResultView<'a> {
    call_id: Uuid,
    #[schema(pattern = "^ok$")]
    status: &'a str,
    /// The tool's JSON, byte for byte.
    #[schema(value_type = serde_json::Value)]
    result: (),
    #[schema(required)]
    latency_ms: Option<u64>,
    /// The call's fencing token; a read has none.
    #[schema(required)]
    fencing: Option<u64>,
    idempotency_key: &'a str,
    /// Whether the answer repeats the result of a call that another request ran.
    replayed: bool,
    /// How long ago the call was first requested; of a replay only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    age_ms: Option<u64>,
    /// The result is that of a similar call under another key. The key of this request also stands for that call now.
    #[serde(skip_serializing_if = "Not::not")]
    replayed_as_similar: bool,
    /// The call has equal arguments and another key of a model, or none. `confirm_duplicate_of` with its `call_id` makes
    /// another call.
    #[serde(skip_serializing_if = "Not::not")]
    replayed_by_arguments: bool,
    /// A similar call that was made shortly before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    similar_to: Option<Uuid>,
    /// The saga that the call belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    saga_id: Option<&'a str>,
    /// What the call did is undone: do not build on its result. A new intent needs a new key.
    #[serde(skip_serializing_if = "Not::not")]
    compensated: bool,
    /// What the call did is being undone: do not build on its result.
    #[serde(skip_serializing_if = "Not::not")]
    compensating: bool,
}

/// 200 with the tool's JSON, byte for byte, between the gateway's own members.
fn result(stored: &Stored) -> Response {
    let record = &stored.record;
    let replayed = stored.replayed_age_ms.is_some();
    let is_being_undone = matches!(
        record.state,
        CallState::Compensating(_) | CallState::Stuck(_)
    );
    let view = json(&ResultView {
        call_id: record.intent.call_id.0,
        status: "ok",
        result: (),
        latency_ms: record.latency_ms,
        fencing: record.fencing,
        idempotency_key: &record.intent.key,
        replayed,
        age_ms: stored.replayed_age_ms,
        replayed_as_similar: stored.is_similar,
        replayed_by_arguments: stored.is_by_arguments,
        similar_to: record.similar_to.map(|call_id| call_id.0),
        saga_id: named(&record.intent.saga_id),
        compensated: matches!(record.state, CallState::Compensated(_)),
        compensating: is_being_undone,
    });
    // The members before `result` hold an id and a word only, so the first match is the placeholder.
    let (before, after) = view.split_once(r#""result":null"#).unwrap_or_default();
    // All answers with this result share its bytes, for which the gateway has reserved memory.
    let shared = Extension(Elsewhere(stored.json.len()));
    let (replayed, outcome) = if replayed {
        ("true", "replayed")
    } else {
        ("false", "executed")
    };
    let body = Body::new(Parts::new([
        format!(r#"{before}"result":"#).into(),
        stored.json.clone(),
        after.to_owned().into(),
    ]));
    (
        shared,
        [(CONTENT_TYPE, "application/json")],
        call_headers(record),
        [(REPLAYED, replayed), (GATEWAY_OUTCOME, outcome)],
        body,
    )
        .into_response()
}

/// A call that runs, or that waits for approval.
#[derive(Serialize, ToSchema)]
pub(super) struct Accepted<'a> {
    call_id: Uuid,
    #[schema(pattern = "^(running|proposed|approved)$")]
    status: &'a str,
    idempotency_key: &'a str,
}

/// 202 with the URL of the call's answer, and when to ask for it.
fn accepted(record: &Record, retry_after: Duration) -> Response {
    let call_id = record.intent.call_id.0;
    let location = format!("/v1/calls/{call_id}/answer");
    let body = Accepted {
        call_id,
        status: record.state.as_str(),
        idempotency_key: &record.intent.key,
    };
    let outcome = if record.state.waits_for_approval() {
        "not-executed"
    } else {
        "unknown"
    };
    (
        StatusCode::ACCEPTED,
        call_headers(record),
        [
            (LOCATION, location),
            (RETRY_AFTER, whole_seconds(retry_after).to_string()),
            (GATEWAY_OUTCOME, outcome.to_owned()),
        ],
        Json(body),
    )
        .into_response()
}

/// The headers with the key, the id and the fencing token of a call.
fn call_headers(record: &Record) -> HeaderMap {
    let (mut headers, intent) = (HeaderMap::new(), &record.intent);
    if let (Ok(key), Ok(call_id)) = (
        HeaderValue::from_str(&intent.key),
        intent.call_id.to_string().parse(),
    ) {
        headers.insert(IDEMPOTENCY_KEY, key);
        headers.insert(CALL_ID, call_id);
    }
    if let Some(token) = record.fencing {
        headers.insert(FENCING_TOKEN, token.into());
    }
    headers
}

/// The JSON of a value that always serializes.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, line.parse().expect("a header value"));
        }
        headers
    }

    #[test]
    fn preferences_are_read_as_rfc_7240_says() {
        for (lines, wait, respond_async) in [
            (&["wait=5"][..], Some(5), false),
            (&["respond-async, wait=10"], Some(10), true),
            (&["respond-async", "wait=10; x=y"], Some(10), true),
            (&["WAIT = 7, wait=9"], Some(7), false),
            (&["wait=900"], Some(60), false),
            (&["wait=0"], Some(0), false),
            (&["wait=soon, return=minimal"], None, false),
            (&["foo=\"a,respond-async,b\", wait=3"], Some(3), false),
            (&[], None, false),
        ] {
            let patience = patience(&headers("prefer", lines));
            assert_eq!(
                (
                    patience.wait.map(|wait| wait.as_secs()),
                    patience.respond_async
                ),
                (wait, respond_async),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn lines_of_a_state_are_one_state() {
        let mut headers = headers("tracestate", &["a=1", "b=2"]);
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(
            trace_context(&headers),
            None,
            "it is worth nothing without the other"
        );
        let line = format!("00-{id}-00f067aa0ba902b7-01");
        headers.append("traceparent", line.parse().expect("a header value"));
        let context = trace_context(&headers).expect("a trace");
        assert_eq!(
            (context.trace_id.as_str(), context.state.as_str()),
            (id, "a=1,b=2")
        );
        headers.append(
            "tracestate",
            HeaderValue::from_bytes(b"c=\xff").expect("a header value"),
        );
        assert_eq!(trace_context(&headers).expect("a trace").state, "");
    }
}
