//! APIs that callers use as they are: `/proxy/{name}/{path}`, or by the host's name.

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::auth::{self, Known};
use super::calls::{CALL_ID, GATEWAY_OUTCOME, REPLAYED, traced};
use super::problem::Problem;
use super::read::read_body;
use super::{Http, MaxBody, host};
use crate::budget::Elsewhere;
use crate::core::proxy::Message;
use crate::core::proxy::reply::Reply;
use crate::core::record::Failure;
use crate::gateway::{Asked, Error, ErrorKind, RequestSpan, Stored, Through, as_header, passed};

/// The header for the gateway's token, where `Authorization` is for the API.
const OWN_TOKEN: HeaderName = HeaderName::from_static("oncegate-token");

/// The path prefix of proxies.
const PREFIX: &str = "/proxy/";

/// Any method of `/proxy/{name}` and `/proxy/{name}/{path}`
pub(super) async fn by_path(State(http): State<Http>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let rest = path.strip_prefix(PREFIX).unwrap_or_default();
    let (name, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    serve(&http, name, path, request).await.into_response()
}

/// Sends a request with a proxy's host name there, whatever its path.
pub(super) async fn by_host(State(http): State<Http>, request: Request, next: Next) -> Response {
    let named = host::name(request.uri(), request.headers());
    match named.and_then(|host| http.gateway.proxies.of_host(host)) {
        Some(name) => {
            let path = request.uri().path().to_owned();
            serve(&http, &name, &path, request).await.into_response()
        }
        None => next.run(request).await,
    }
}

async fn serve(http: &Http, name: &str, path: &str, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let entry = http.gateway.proxies.entry(name);
    let own = auth::digest_in(&parts.headers, &OWN_TOKEN);
    let digest = match &entry {
        Some(entry) if entry.passes_authorization => own,
        _ => own.or_else(|| auth::bearer_digest(&parts.headers)),
    };
    // The gateway makes room for an answer before it claims a call.
    let Known(caller) = Known::by_token(&parts, http, digest, 0)?;
    let entry = entry.ok_or(ErrorKind::UnknownTool)?;
    let span = RequestSpan::begin(traced(&parts.headers));
    let max_body = MaxBody {
        bytes: entry.max_body,
        ..http.max_body
    };
    let body = read_body(body, max_body).await?;
    let asked = Asked {
        message: message(&parts, path, body),
        trace_id: traced(&parts.headers).map(|context| context.trace_id),
        span,
    };
    match http.gateway.proxies.serve(&caller, name, asked).await {
        Ok(Through::Kept(stored, reply)) => kept(&stored, reply),
        Ok(Through::Passing(response)) => Ok(passing(response.into())),
        Err(error) => refused(error),
    }
}

fn message(parts: &Parts, path: &str, body: Bytes) -> Message {
    let mut headers = passed(&parts.headers);
    headers.retain(|(name, _)| name != OWN_TOKEN.as_str());
    Message {
        method: parts.method.as_str().to_owned(),
        path: path.to_owned(),
        query: parts.uri.query().map(str::to_owned),
        headers,
        body,
    }
}

/// The API's stored answer.
fn kept(stored: &Stored, reply: Reply) -> Result<Response, Problem> {
    let is_replayed = stored.replayed_age_ms.is_some();
    // The room that was made for what is kept is held as long as the answer is sent.
    let body = Bytes::from_owner(Held {
        body: reply.body,
        _kept: stored.json.clone(),
    });
    let call_id = stored.record.intent.call_id;
    let written = written(Reply { body, ..reply });
    let mut response = written.map_err(|kind| Error {
        call_id: Some(call_id),
        ..kind.alone()
    })?;
    response
        .extensions_mut()
        .insert(Elsewhere(stored.json.len()));
    tell(&mut response, is_replayed, "executed");
    if let Ok(call_id) = call_id.to_string().parse() {
        response.headers_mut().insert(CALL_ID, call_id);
    }
    Ok(response)
}

struct Held {
    body: Bytes,
    _kept: Bytes,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// The API's own refusal, unchanged; or why there is no answer.
fn refused(error: Error) -> Result<Response, Problem> {
    let (ErrorKind::ToolRejected(Failure { body, .. })
    | ErrorKind::ToolUnavailable(Failure { body, .. })
    | ErrorKind::Fenced(Failure { body, .. })) = &error.kind
    else {
        return Err(error.into());
    };
    let reply = body.as_deref().and_then(Reply::read);
    let Some(reply) = reply else {
        return Err(error.into());
    };
    let mut response = written(reply)?;
    tell(&mut response, error.replayed == Some(true), "not-executed");
    if let Some(call_id) = error.call_id.and_then(|id| id.to_string().parse().ok()) {
        response.headers_mut().insert(CALL_ID, call_id);
    }
    Ok(response)
}

fn tell(response: &mut Response, is_replayed: bool, outcome: &'static str) {
    let headers = response.headers_mut();
    let outcome = if is_replayed { "replayed" } else { outcome };
    headers.insert(GATEWAY_OUTCOME, HeaderValue::from_static(outcome));
    if is_replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
}

fn written(reply: Reply) -> Result<Response, ErrorKind> {
    let unreadable = |_| ErrorKind::ResultUnavailable("its head cannot be written".into());
    let status = StatusCode::from_u16(reply.status);
    let status = status.map_err(|error| unreadable(error.to_string()))?;
    let mut headers = HeaderMap::new();
    for (name, value) in &reply.headers {
        let name: Result<HeaderName, _> = name.parse();
        let name = name.map_err(|error| unreadable(error.to_string()))?;
        headers.append(name, as_header(value).map_err(unreadable)?);
    }
    Ok((status, headers, Body::from(reply.body)).into_response())
}

/// An answer that goes through as it comes.
fn passing<B>(response: axum::http::Response<B>) -> Response
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let (parts, body) = response.into_parts();
    let mut headers = HeaderMap::new();
    for (name, value) in passed(&parts.headers) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), as_header(&value)) {
            headers.append(name, value);
        }
    }
    // Of HEAD it says what GET would have.
    if let Some(length) = parts.headers.get(CONTENT_LENGTH) {
        headers.insert(CONTENT_LENGTH, length.clone());
    }
    (parts.status, headers, Body::new(body)).into_response()
}
