//! The main door, and what is known of a call.

use std::time::Duration;

use axum::body::{self, Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::timeout;
use uuid::Uuid;

use super::Http;
use super::auth::Known;
use super::ops::reason;
use super::problem::Problem;
use crate::core::outcome::Content;
use crate::core::record::{CallId, Entry, Record, State as CallState};
use crate::core::session::Brought;
use crate::core::tool::Tool;
use crate::core::unknown::Resolution;
use crate::gateway::{Answer, ErrorKind, Patience, Request, Stored, identify};

pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(super) const CALL_ID: HeaderName = HeaderName::from_static("x-call-id");
pub(super) const GATEWAY_OUTCOME: HeaderName = HeaderName::from_static("gateway-outcome");
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
pub(super) const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// A body that drips in more slowly than this is given up.
const BODY_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest that a caller may ask to wait.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The longest user, session or trace id, in bytes.
const MAX_ID: usize = 255;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallBody<'a> {
    #[serde(borrow)]
    args: &'a RawValue,
    user_id: Option<String>,
    session_id: Option<String>,
    idempotency_key: Option<String>,
    trace_id: Option<String>,
    fencing_token: Option<u64>,
    confirm_duplicate_of: Option<Uuid>,
}

/// `POST /v1/tools/{tool}/calls`
pub(super) async fn call(
    State(http): State<Http>,
    Known(caller): Known,
    tool: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let Path(tool) = tool.map_err(|_| Problem::from(ErrorKind::UnknownTool))?;
    let bytes = read_body(body, http.max_body).await?;
    let request = parse(tool, &headers, &bytes)?;
    // Who waits for a call need not keep its request in memory.
    drop(bytes);
    match http.gateway.call(&caller, request).await? {
        Answer::Result(stored) => Ok(result(&stored)),
        Answer::Accepted(record) => Ok(accepted(&record)),
    }
}

/// The key and the fingerprint that a request body gets, as JSON.
///
/// # Errors
/// Why it gets none, in a sentence.
pub fn dry_run(tool: &Tool, body: &[u8]) -> Result<String, String> {
    #[derive(Serialize)]
    struct DryRun<'a> {
        tool: &'a str,
        idempotency_key: &'a str,
        key_source: &'a str,
        fingerprint: String,
    }
    let request =
        parse(tool.name.clone(), &HeaderMap::new(), body).map_err(|problem| problem.detail().to_owned())?;
    let found = identify(tool, &request).map_err(|error| Problem::from(error).detail().to_owned())?;
    Ok(object(&DryRun {
        tool: &tool.name,
        idempotency_key: found.key.key.as_str(),
        key_source: found.key.source.as_str(),
        fingerprint: hex::encode(found.fingerprint),
    }))
}

pub(super) async fn read_body(body: Body, max_body: usize) -> Result<Bytes, Problem> {
    let read = timeout(BODY_TIMEOUT, body::to_bytes(body, max_body)).await;
    let read = read.map_err(|_| Problem::invalid_request("the request's body did not arrive in time"))?;
    read.map_err(|error| {
        let source = std::error::Error::source(&error);
        if source.is_some_and(|source| source.is::<LengthLimitError>()) {
            Problem::body_too_large(max_body)
        } else {
            Problem::invalid_request("the request's body could not be read")
        }
    })
}

fn parse(tool: String, headers: &HeaderMap, bytes: &[u8]) -> Result<Request, Problem> {
    let body: CallBody<'_> = serde_json::from_slice(bytes)
        .map_err(|error| Problem::invalid_request(&format!("the body: {error}")))?;
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key_header = keys.next().map(|line| Bytes::copy_from_slice(line.as_bytes()));
    if keys.next().is_some() {
        return Err(Problem::invalid_request("there is more than one Idempotency-Key header line"));
    }
    let trace_id = match traced(headers) {
        Some(trace_id) => Some(trace_id),
        None => body.trace_id.map(|id| identity("trace_id", id)).transpose()?,
    };
    Ok(Request {
        tool,
        args: body.args.get().to_owned(),
        user_id: identity("user_id", body.user_id.unwrap_or_default())?,
        session_id: identity("session_id", body.session_id.unwrap_or_default())?,
        trace_id: trace_id.filter(|id| !id.is_empty()),
        key_header,
        key_member: body.idempotency_key,
        brought: Brought { fencing: body.fencing_token, confirmed: body.confirm_duplicate_of.map(CallId) },
        patience: patience(headers),
    })
}

/// An id that can be stored, logged and sent on in a header.
pub(super) fn identity(name: &str, id: String) -> Result<String, Problem> {
    if id.len() > MAX_ID || id.chars().any(char::is_control) {
        let why = format!("{name} must be at most {MAX_ID} bytes without control characters");
        return Err(Problem::invalid_request(&why));
    }
    Ok(id)
}

/// The trace id of a `traceparent` header (W3C Trace Context). A later version may say more behind
/// what version 00 says.
fn traced(headers: &HeaderMap) -> Option<String> {
    let mut fields = headers.get("traceparent")?.to_str().ok()?.split('-');
    let (version, trace_id, span_id, flags) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let is_hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let is_id = |text: &str, length| is_hex(text, length) && text.bytes().any(|digit| digit != b'0');
    let is_version = is_hex(version, 2) && version != "ff" && (version != "00" || fields.next().is_none());
    let is_valid = is_version && is_id(trace_id, 32) && is_id(span_id, 16) && is_hex(flags, 2);
    is_valid.then(|| trace_id.to_owned())
}

/// `Prefer: wait=SECONDS, respond-async` (RFC 7240). What is not understood is passed over.
fn patience(headers: &HeaderMap) -> Patience {
    let mut patience = Patience::default();
    let lines = headers.get_all("prefer").iter().filter_map(|line| line.to_str().ok());
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

/// The members of a list: what stands between commas that stand in no quotes.
fn members(line: &str) -> impl Iterator<Item = &str> {
    let mut in_quotes = false;
    line.split(move |c| {
        in_quotes ^= c == '"';
        c == ',' && !in_quotes
    })
}

/// 200 with the tool's JSON, byte for byte, between members of our own.
fn result(stored: &Stored) -> Response {
    #[derive(Serialize)]
    struct Before<'a> {
        call_id: String,
        status: &'a str,
    }
    #[derive(Serialize)]
    struct After<'a> {
        latency_ms: Option<u64>,
        fencing: Option<u64>,
        idempotency_key: &'a str,
        replayed: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        age_ms: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        similar_to: Option<String>,
    }
    let record = &stored.record;
    let replayed = stored.replayed_age_ms.is_some();
    let before = Before { call_id: record.intent.call_id.to_string(), status: "ok" };
    let after = After {
        latency_ms: record.latency_ms,
        fencing: record.fencing,
        idempotency_key: &record.intent.key,
        replayed,
        age_ms: stored.replayed_age_ms,
        similar_to: record.similar_to.map(|call_id| call_id.to_string()),
    };
    let (before, after) = (object(&before), object(&after));
    let mut json = Vec::with_capacity(before.len() + stored.json.len() + after.len() + 16);
    json.extend_from_slice(before.as_bytes().strip_suffix(b"}").unwrap_or_default());
    json.extend_from_slice(b",\"result\":");
    json.extend_from_slice(&stored.json);
    json.push(b',');
    json.extend_from_slice(after.as_bytes().strip_prefix(b"{").unwrap_or_default());
    let mut response = ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], json).into_response();
    let headers = response.headers_mut();
    name_call(headers, record);
    headers.insert(REPLAYED, HeaderValue::from_static(if replayed { "true" } else { "false" }));
    headers.insert(GATEWAY_OUTCOME, HeaderValue::from_static(if replayed { "replayed" } else { "executed" }));
    response
}

/// 202 with the place to ask at.
fn accepted(record: &Record) -> Response {
    #[derive(Serialize)]
    struct Accepted<'a> {
        call_id: String,
        status: &'a str,
        idempotency_key: &'a str,
    }
    let call_id = record.intent.call_id.to_string();
    let place = HeaderValue::try_from(format!("/v1/calls/{call_id}"));
    let body = Accepted { call_id, status: "running", idempotency_key: &record.intent.key };
    let mut response = (StatusCode::ACCEPTED, axum::Json(body)).into_response();
    name_call(response.headers_mut(), record);
    if let Ok(place) = place {
        response.headers_mut().insert(LOCATION, place);
    }
    response.headers_mut().insert(GATEWAY_OUTCOME, HeaderValue::from_static("unknown"));
    response
}

fn name_call(headers: &mut HeaderMap, record: &Record) {
    let intent = &record.intent;
    if let (Ok(key), Ok(call_id)) = (HeaderValue::from_str(&intent.key), intent.call_id.to_string().parse()) {
        headers.insert(IDEMPOTENCY_KEY, key);
        headers.insert(CALL_ID, call_id);
    }
    if let Some(token) = record.fencing {
        headers.insert(FENCING_TOKEN, token.into());
    }
}

/// An object of our own making; it always serializes.
fn object(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// `GET /v1/calls/{id}`
pub(super) async fn show(
    State(http): State<Http>,
    Known(caller): Known,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let (record, entries) = http.gateway.find_call(&caller, call_id(id)?).await?;
    let events: Vec<EventView<'_>> = entries.iter().map(EventView::of).collect();
    Ok(axum::Json(CallView::of(&record, events)).into_response())
}

/// What a person says about an unknown call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResolveBody<'a> {
    r#as: As,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum As {
    Succeeded,
    Failed,
}

/// `POST /v1/calls/{id}/resolve`
pub(super) async fn resolve(
    State(http): State<Http>,
    Known(caller): Known,
    id: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Response, Problem> {
    let call_id = call_id(id)?;
    let bytes = read_body(body, http.max_body).await?;
    let body: ResolveBody<'_> = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::invalid_request(&format!("the body: {error}")))?;
    let result = body.result.map(|json| Bytes::copy_from_slice(json.get().as_bytes()));
    let resolution = match (body.r#as, result) {
        (As::Succeeded, result) => Resolution::Succeeded(Content::Kept(result.unwrap_or("null".into()))),
        (As::Failed, None) => Resolution::Failed,
        (As::Failed, Some(_)) => return Err(Problem::invalid_request("what has failed has no result")),
    };
    let reason = reason(body.reason)?;
    let record = http.gateway.resolve(&caller, call_id, &reason, &resolution).await?;
    Ok(axum::Json(CallView::of(&record, Vec::new())).into_response())
}

fn call_id(id: Result<Path<String>, PathRejection>) -> Result<CallId, Problem> {
    let Path(id) = id.map_err(|_| Problem::unknown_call())?;
    Uuid::try_parse(&id).map(CallId).map_err(|_| Problem::unknown_call())
}

/// A call as the ledger shows it (DESIGN.md section 9).
#[derive(Serialize)]
struct CallView<'a> {
    call_id: String,
    tool: &'a str,
    tenant: &'a str,
    key: &'a str,
    key_source: &'static str,
    fingerprint: String,
    state: &'static str,
    user_id: &'a str,
    session_id: &'a str,
    trace_id: &'a str,
    args: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<ErrorView<'a>>,
    fencing: Option<u64>,
    similar_to: Option<String>,
    attempts: u32,
    latency_ms: Option<u64>,
    created_at: String,
    updated_at: String,
    expires_at: Option<String>,
    /// When an unknown call is worked on next.
    next_check_at: Option<String>,
    events: Vec<EventView<'a>>,
}

impl<'a> CallView<'a> {
    fn of(record: &'a Record, events: Vec<EventView<'a>>) -> Self {
        let intent = &record.intent;
        let result = match &record.state {
            CallState::Succeeded(Content::Kept(json)) => Some(json),
            _ => None,
        };
        Self {
            call_id: intent.call_id.to_string(),
            tool: &intent.tool,
            tenant: &intent.tenant,
            key: &intent.key,
            key_source: intent.key_source.as_str(),
            fingerprint: hex::encode(intent.fingerprint),
            state: record.state.as_str(),
            user_id: &intent.user_id,
            session_id: &intent.session_id,
            trace_id: &intent.trace_id,
            args: raw(&intent.args),
            result: result.and_then(|json| raw(json)),
            error: ErrorView::of(&record.state),
            fencing: record.fencing,
            similar_to: record.similar_to.map(|call_id| call_id.to_string()),
            attempts: record.attempts,
            latency_ms: record.latency_ms,
            created_at: time(intent.created_at),
            updated_at: time(record.updated_at),
            expires_at: record.expires_at.map(time),
            next_check_at: record.check.map(|check| time(check.at)),
            events,
        }
    }
}

/// Why a call has no result.
#[derive(Serialize)]
struct ErrorView<'a> {
    kind: &'static str,
    detail: &'a str,
    tool_status: Option<u16>,
    tool_body: Option<&'a RawValue>,
}

impl<'a> ErrorView<'a> {
    fn of(state: &'a CallState) -> Option<Self> {
        let plain = |kind, detail| Some(Self { kind, detail, tool_status: None, tool_body: None });
        match state {
            CallState::Running | CallState::Succeeded(Content::Kept(_)) => None,
            CallState::Succeeded(Content::Unavailable(why)) => plain("result_unavailable", why),
            CallState::Unknown(why) => plain("unknown", why),
            CallState::Failed(failure) => Some(Self {
                kind: failure.kind.as_str(),
                detail: &failure.why,
                tool_status: failure.status,
                tool_body: failure.body.as_deref().and_then(raw),
            }),
        }
    }
}

#[derive(Serialize)]
pub(super) struct EventView<'a> {
    at: String,
    event: &'a str,
    attempt_id: Option<String>,
    outcome: Option<&'a str>,
    by: &'a str,
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
            detail: &entry.detail,
        }
    }
}

fn raw(json: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(json).ok()
}

/// RFC 3339 in UTC with milliseconds.
pub(super) fn time(time: jiff::Timestamp) -> String {
    format!("{time:.3}")
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
                (patience.wait.map(|wait| wait.as_secs()), patience.respond_async),
                (wait, respond_async),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn only_a_valid_traceparent_names_the_trace() {
        let trace = |line: &str| traced(&headers("traceparent", &[line]));
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(trace(&format!("00-{id}-00f067aa0ba902b7-01")), Some(id.to_owned()));
        for line in [
            "",
            "00",
            &format!("00-{id}-00f067aa0ba902b7-01-more"),
            &format!("00-{id}-00f067aa0ba902b7-zz"),
            &format!("ff-{id}-00f067aa0ba902b7-01"),
            &format!("00-{id}-0000000000000000-01"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ] {
            assert_eq!(trace(line), None, "{line:?}");
        }
    }
}
