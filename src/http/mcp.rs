//! `POST /mcp`: the tools of `[tools]` for clients that speak the Model Context Protocol. No sessions.
//!
//! What concerns a call is told as a result with `isError`; errors of JSON-RPC are for malformed requests only, because
//! agent frameworks break on them, or send them again unseen.

mod answer; // what a model is told of a call
mod call; // `tools/call`
mod events; // answers as a stream of events
mod forward; // what is asked of one MCP server beside calls
mod list; // what is here: `initialize`, `server/discover`, `tools/list`
mod listen; // changes of the list: `subscriptions/listen`
mod message; // JSON-RPC on the wire
mod passed; // results of MCP servers
mod text; // why a call has no result, in words

#[cfg(test)]
mod fuzz_tests;

use std::borrow::Cow;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::header::ORIGIN;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use self::forward::Forwarded;
pub(super) use self::message::Message;
use self::message::{INVALID_REQUEST, METHOD_NOT_FOUND, RpcError};
use super::Http;
use super::auth::Known;
use super::host;
use super::problem::{Problem, unknown_path};
use super::read::read_body;
use crate::core::caller::Caller;
use crate::core::mcp::revision::{self, Era, Headers, Said};

/// The caller of a request from an allowed origin, or from none.
pub(super) struct FromAllowedOrigin(Caller);

impl FromRequestParts<Http> for FromAllowedOrigin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        if let Some(origin) = parts.headers.get(ORIGIN) {
            let is_listed = |listed: &String| origin.as_bytes() == listed.as_bytes();
            if !http.mcp.origins.iter().any(is_listed) && !host::is_own_page(parts, origin) {
                return Err(Problem::forbidden(
                    "web pages of this origin may not ask here; mcp.origins lists those that may",
                ));
            }
            // What a gateway without tokens refuses are other pages.
            parts.headers.remove(ORIGIN);
            parts.headers.remove("sec-fetch-site");
        }
        Known::from_request_parts(parts, http)
            .await
            .map(|Known(caller)| Self(caller))
    }
}

/// A request, parsed.
struct ParsedRequest {
    id: Box<RawValue>,
    era: Era,
    method: Method,
}

/// The methods that this server knows, each with its parameters.
enum Method {
    Initialize {
        version: String,
    },
    Ping,
    Discover,
    ListTools,
    /// A call; for one server's endpoint with the tool's name on that server.
    Call(Box<call::Call>, Option<String>),
    Listen {
        tools: bool,
    },
    Forward(Forwarded),
}

/// `POST /mcp`
pub(super) async fn post(
    State(http): State<Http>,
    FromAllowedOrigin(caller): FromAllowedOrigin,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answered(http, caller, headers, body, None).await
}

/// `POST /mcp/{upstream}`
pub(super) async fn post_to_upstream(
    State(http): State<Http>,
    FromAllowedOrigin(caller): FromAllowedOrigin,
    upstream: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let upstream = upstream.map(|Path(name)| name).unwrap_or_default();
    if !http.gateway.upstreams.has(&upstream) {
        return Err(unknown_path().await);
    }
    answered(http, caller, headers, body, Some(&upstream)).await
}

async fn answered(
    http: Http,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
    upstream: Option<&str>,
) -> Result<Response, Problem> {
    let bytes = read_body(body, http.max_body).await?;
    let read = || read(&http, &caller, &headers, &bytes, upstream);
    let large = &http.gateway.engine.large;
    let parsed = large.read_off_workers(bytes.len(), read).await;
    // Who waits for a call need not keep its request in memory.
    drop(bytes);
    let ParsedRequest { id, era, method } = match parsed {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return Ok(StatusCode::ACCEPTED.into_response()),
        Err(refused) => return Ok(refused),
    };
    Ok(match method {
        Method::Initialize { version } if let Some(upstream) = upstream => {
            forward::about(&http, &caller, upstream, Some(&version), &id, era).await
        }
        Method::Discover if let Some(upstream) = upstream => {
            forward::about(&http, &caller, upstream, None, &id, era).await
        }
        Method::Forward(forwarded) => {
            let upstream = upstream.unwrap_or_default();
            forward::forward(&http, &caller, upstream, forwarded, &id, era).await?
        }
        Method::Initialize { version } => list::initialize(&id, &version),
        Method::Ping => list::ping(&id),
        Method::Discover => list::discover(&id),
        Method::ListTools => list::tools(&http, &caller, &id, era),
        Method::Call(call, theirs) => {
            let upstreams = &http.gateway.upstreams;
            if let (Some(upstream), Some(tool)) = (upstream, &theirs)
                && let Err(error) = upstreams.admit(&caller, upstream, tool).await
            {
                return Ok(
                    answer::told(&id, Err(error), era, http.gateway.now(), true).into_response()
                );
            }
            call::run(&http, caller, *call, id, era, &headers).await
        }
        Method::Listen { tools } => listen::listen(http, &caller, &headers, id, tools)?,
    })
}

/// The members of `params`, of all methods together.
#[derive(Default, Deserialize)]
struct Params<'a> {
    name: Option<Cow<'a, str>>,
    uri: Option<Cow<'a, str>>,
    #[serde(rename = "_meta")]
    meta: Option<Map<String, Value>>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(rename = "inputResponses", borrow)]
    responses: Option<&'a RawValue>,
    #[serde(rename = "requestState")]
    state: Option<Cow<'a, str>>,
    #[serde(rename = "protocolVersion")]
    version: Option<String>,
    notifications: Option<Map<String, Value>>,
}

/// Parses a request; `None`: a notification, which is ignored.
fn read(
    http: &Http,
    caller: &Caller,
    headers: &HeaderMap,
    bytes: &[u8],
    upstream: Option<&str>,
) -> Result<Option<ParsedRequest>, Response> {
    let message = Message::read(bytes)
        .map_err(|error| error.answer(message::readable_id(bytes), Era::Modern))?;
    let Some(id) = message.id else {
        if message.method.starts_with("notifications/") {
            return Ok(None);
        }
        let why = "Invalid request: it has no id, so it could not be answered; nothing was run";
        return Err(RpcError::new(INVALID_REQUEST, why).answer(None, Era::Modern));
    };
    let raw_params = message.params.map_or("{}", RawValue::get);
    let params: Params<'_> = serde_json::from_str(raw_params)
        .map_err(|error| RpcError::params(&error.to_string()).answer(Some(id), Era::Modern))?;
    let meta = params.meta.unwrap_or_default();
    let method = message.method.as_str();
    let said = Said {
        method,
        name: match method {
            "tools/call" | "prompts/get" => params.name.as_deref(),
            "resources/read" => params.uri.as_deref(),
            _ => None,
        },
        meta: &meta,
    };
    let of_request = Headers {
        version: header(headers, "mcp-protocol-version"),
        method: header(headers, "mcp-method"),
        name: header(headers, "mcp-name"),
    };
    let era = revision::era(&of_request, said)
        .map_err(|why| RpcError::from(why).answer(Some(id), Era::Modern))?;
    let refused = |error: RpcError| error.answer(Some(id), era);
    let method = match (method, era) {
        ("initialize", Era::Legacy) => Method::Initialize {
            version: params.version.unwrap_or_default(),
        },
        ("ping", Era::Legacy) => Method::Ping,
        ("server/discover", Era::Modern) => Method::Discover,
        ("tools/list", _) if upstream.is_none() => Method::ListTools,
        ("tools/call", _) => {
            let name = params
                .name
                .ok_or_else(|| refused(RpcError::params("name is missing")))?;
            let args = params.arguments.map_or("{}", RawValue::get);
            let (tool, theirs) = match upstream {
                Some(upstream) => (http.gateway.upstreams.name_of(upstream, &name), Some(name)),
                None => (name.into_owned(), None),
            };
            let answer = call::answer(params.state.as_deref(), params.responses);
            let params = call::CallParams {
                tool,
                args,
                meta: &meta,
                headers,
                answer: answer.map_err(refused)?,
            };
            let call = call::read(http, caller, params, era).map_err(refused)?;
            Method::Call(Box::new(call), theirs.map(Cow::into_owned))
        }
        ("subscriptions/listen", Era::Modern) if upstream.is_none() => {
            let wanted = params.notifications.unwrap_or_default();
            Method::Listen {
                tools: wanted.get("toolsListChanged") == Some(&Value::Bool(true)),
            }
        }
        (method, _)
            if let Some(forwarded) =
                upstream.and_then(|_| Forwarded::of(method, said.name, raw_params)) =>
        {
            Method::Forward(forwarded)
        }
        _ if upstream.is_some() => {
            let why = "Method not found: it is not passed on";
            return Err(refused(RpcError::new(METHOD_NOT_FOUND, why)));
        }
        _ => {
            let why = "Method not found: this server has tools, and neither resources nor prompts";
            return Err(refused(RpcError::new(METHOD_NOT_FOUND, why)));
        }
    };
    let id = id.to_owned();
    Ok(Some(ParsedRequest { id, era, method }))
}

/// The one line of a header. `Err`: there are more, or it is no text.
fn header(headers: &HeaderMap, name: &str) -> Option<Result<String, ()>> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next()?.to_str().map(|text| text.trim().to_owned());
    Some(match lines.next() {
        None => first.map_err(|_| ()),
        Some(_) => Err(()),
    })
}
