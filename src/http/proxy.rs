//! Proxied APIs: `/proxy/{name}/{path}`, or any path under a proxy's host name.

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;

use super::contained::contained;
use super::headers::{CALL_ID, GATEWAY_OUTCOME, REPLAYED, header, trace_context};
use super::problem::Problem;
use super::read::read_body;
use super::{Http, MaxBody, auth, host};
use crate::budget::{Elsewhere, OfBalancer};
use crate::core::proxy::reply::Reply;
use crate::core::proxy::{Message, names_path};
use crate::core::record::CallId;
use crate::gateway::{Asked, Error, ErrorKind, RequestSpan, Stored, Through, as_header, passed};

/// The header with the gateway's token, if `Authorization` holds the API's.
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
    contained(serve(&http, name, path, request).await.into_response())
}

/// Middleware: a request for a proxy's host name goes to that proxy, whatever its path.
pub(super) async fn by_host(State(http): State<Http>, request: Request, next: Next) -> Response {
    let named = host::name(request.uri(), request.headers());
    match named.and_then(|host| http.gateway.proxies.of_host(host)) {
        Some(name) => {
            let path = request.uri().path().to_owned();
            contained(serve(&http, &name, &path, request).await.into_response())
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
    // No bytes for the answer: the gateway reserves memory for it before it claims a call.
    let caller = auth::by_token(&parts, http, digest, 0)?;
    if http.tokens.now().is_empty() && host::is_navigation(&parts.headers) {
        let why = "without tokens a browser cannot open answers of a proxy as pages";
        return Err(Problem::forbidden(why));
    }
    let entry = entry.ok_or(ErrorKind::UnknownTool)?;
    let context = trace_context(&parts.headers);
    let trace_id = context.as_ref().map(|context| context.trace_id.clone());
    let span = RequestSpan::begin(context);
    let max_body = MaxBody {
        bytes: entry.max_body,
        ..http.max_body
    };
    let body = read_body(body, max_body).await?;
    let asked = Asked {
        message: message(&parts, path, body),
        is_forwarded: parts.extensions.get::<OfBalancer>().is_some(),
        trace_id,
        span,
    };
    match http.gateway.proxies.serve(&caller, name, asked).await {
        Ok(Through::Kept(stored, reply)) => kept(&stored, reply),
        Ok(Through::Passing(response, admitted)) => Ok(passing(response.into(), admitted)),
        Err(error) => refused(error),
    }
}

fn message(parts: &Parts, path: &str, body: Bytes) -> Message {
    let mut headers = passed(&parts.headers);
    headers.retain(|(name, _)| name != OWN_TOKEN.as_str() && !names_path(name));
    Message {
        method: parts.method.as_str().to_owned(),
        path: path.to_owned(),
        query: parts.uri.query().map(str::to_owned),
        headers,
        body,
    }
}

/// The API's answer, as it is stored.
fn kept(stored: &Stored, reply: Reply) -> Result<Response, Problem> {
    let is_replayed = stored.replayed_age_ms.is_some();
    // The stored bytes hold their reserved memory, and must live until the answer is sent.
    let body = Bytes::from_owner(Held {
        body: reply.body,
        _kept: stored.json.clone(),
    });
    let call_id = stored.record.intent.call_id;
    let reply = Reply { body, ..reply };
    let answer = response_of(reply).map_err(|kind| Error {
        call_id: Some(call_id),
        ..kind.alone()
    })?;
    let shared = Extension(Elsewhere(stored.json.len()));
    let answer = with_call_headers(answer, is_replayed, "executed", Some(call_id));
    Ok((shared, answer).into_response())
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

/// The API's own refusal, unchanged, or the problem that says why the API gave none.
fn refused(error: Error) -> Result<Response, Problem> {
    let body = match &error.kind {
        ErrorKind::ToolRejected(failure)
        | ErrorKind::ToolUnavailable(failure)
        | ErrorKind::Fenced(failure) => failure.body.as_deref(),
        _ => None,
    };
    let Some(reply) = body.and_then(Reply::read) else {
        return Err(error.into());
    };
    let is_replayed = error.replayed == Some(true);
    Ok(with_call_headers(
        response_of(reply)?,
        is_replayed,
        "not-executed",
        error.call_id,
    ))
}

/// Adds the gateway's headers about the call to an answer of the API.
fn with_call_headers(
    answer: Response,
    is_replayed: bool,
    outcome: &'static str,
    call_id: Option<CallId>,
) -> Response {
    let outcome = if is_replayed { "replayed" } else { outcome };
    (
        header(GATEWAY_OUTCOME, Some(outcome)),
        header(REPLAYED, is_replayed.then_some("true")),
        header(CALL_ID, call_id.map(|call_id| call_id.to_string())),
        answer,
    )
        .into_response()
}

fn response_of(reply: Reply) -> Result<Response, ErrorKind> {
    let unreadable = || ErrorKind::ResultUnavailable("its head cannot be written".into());
    let status = StatusCode::from_u16(reply.status).map_err(|_| unreadable())?;
    let mut headers = HeaderMap::new();
    for (name, value) in &reply.headers {
        let name: HeaderName = name.parse().map_err(|_| unreadable())?;
        headers.append(name, as_header(value).map_err(|_| unreadable())?);
    }
    Ok((status, headers, Body::from(reply.body)).into_response())
}

/// The answer to a request without a key, passed on as it arrives. `admitted` lasts as long as its body.
fn passing<B>(response: axum::http::Response<B>, admitted: impl Send + 'static) -> Response
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
    // The answer to HEAD has no body, but the length that GET would have.
    if let Some(length) = parts.headers.get(CONTENT_LENGTH) {
        headers.insert(CONTENT_LENGTH, length.clone());
    }
    let body = body.map_frame(move |frame| {
        let _lasts = &admitted;
        frame
    });
    (parts.status, headers, Body::new(body)).into_response()
}
