//! `POST /mcp`: the tools of `[tools]` for clients that speak the Model Context Protocol, without sessions.
//!
//! A failure of a call is a result with `isError`. Errors of JSON-RPC are for malformed requests only, because agent
//! frameworks break on such errors, or repeat the request without telling the model.

mod answer; // the answer to `tools/call`
mod call; // `tools/call`
mod events; // answers as server-sent events
mod forward; // other requests to one MCP server
mod list; // `initialize`, `server/discover`, `ping`, `tools/list`
mod listen; // `subscriptions/listen`
mod message; // JSON-RPC on the wire
mod passed; // results of MCP servers
mod text; // failures of calls, in words for a model

#[cfg(test)]
mod fuzz_tests;

use std::borrow::Cow;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::header::ORIGIN;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post as to_post;
use axum::{Extension, Router};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use self::forward::Forwarded;
pub(super) use self::message::{INTERNAL_ERROR, INVALID_REQUEST, Message};
use self::message::{METHOD_NOT_FOUND, RpcError};
use super::headers::only_line;
use super::problem::{Problem, unknown_path};
use super::read::read_body;
use super::{Http, auth, host};
use oncegate_rules::caller::Caller;
use oncegate_rules::mcp::revision::{self, Era, Said};

/// The caller of a request that has no origin, or an allowed one.
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
            // The origin is allowed: the check of a gateway without tokens must not refuse it as a web page.
            parts.headers.remove(ORIGIN);
            parts.headers.remove("sec-fetch-site");
        }
        auth::caller_of(parts, http).map(Self)
    }
}

/// A request, parsed.
struct ParsedRequest {
    id: Box<RawValue>,
    era: Era,
    method: Method,
}

/// The known methods, each with its parameters.
enum Method {
    /// `initialize` with its version, or `server/discover`.
    Describe {
        version: Option<String>,
    },
    Ping,
    ListTools,
    /// A call. At the endpoint of one server also the tool's name on that server.
    Call(Box<call::Call>, Option<String>),
    Listen {
        tools: bool,
    },
    Forward(Forwarded),
}

/// The same route with a slash at its end, as some clients write it.
pub(super) fn with_slash() -> Router<Http> {
    Router::new().route("/mcp/", to_post(post))
}

/// The same for one MCP server.
pub(super) fn upstreams_with_slash() -> Router<Http> {
    Router::new().route("/mcp/{upstream}/", to_post(post_to_upstream))
}

/// Marks a message from standard input. It has no headers that repeat its arguments.
#[derive(Clone, Copy)]
pub(super) struct FromStdin;

/// `POST /mcp`
pub(super) async fn post(
    State(http): State<Http>,
    FromAllowedOrigin(caller): FromAllowedOrigin,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answered(http, caller, headers, body, None, None).await
}

/// `POST /mcp/{upstream}`
pub(super) async fn post_to_upstream(
    State(http): State<Http>,
    FromAllowedOrigin(caller): FromAllowedOrigin,
    upstream: Result<Path<String>, PathRejection>,
    from_stdin: Option<Extension<FromStdin>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let upstream = upstream.map(|Path(name)| name).unwrap_or_default();
    if !http.gateway.upstreams.has(&upstream) {
        return Err(unknown_path().await);
    }
    let from_stdin = from_stdin.map(|Extension(mark)| mark);
    answered(http, caller, headers, body, Some(&upstream), from_stdin).await
}

async fn answered(
    http: Http,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
    upstream: Option<&str>,
    from_stdin: Option<FromStdin>,
) -> Result<Response, Problem> {
    let bytes = read_body(body, http.max_body).await?;
    let read = || read(&http, &caller, &headers, &bytes, upstream);
    let large = &http.gateway.engine.large;
    let parsed = large.read_off_workers(bytes.len(), read).await;
    // The wait for a call may be long, and needs no bytes of the request.
    drop(bytes);
    let ParsedRequest { id, era, method } = match parsed {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return Ok(StatusCode::ACCEPTED.into_response()),
        Err(refused) => return Ok(refused),
    };
    Ok(match method {
        Method::Describe { version } => {
            let about = match upstream {
                // A client of `initialize` cannot listen to changes.
                None => list::About::gateway(version.is_none()),
                Some(upstream) => match forward::about(&http, &caller, upstream).await {
                    Ok(about) => about,
                    Err(error) => return Ok(error.answer(Some(&id), era)),
                },
            };
            list::describe(&id, version.as_deref(), about)
        }
        Method::Forward(forwarded) => {
            let upstream = upstream.unwrap_or_default();
            forward::forward(&http, &caller, upstream, forwarded, &id, era).await?
        }
        Method::Ping => list::ping(&id),
        Method::ListTools => list::tools(&http, &caller, &id, era),
        Method::Call(call, remote_name) => {
            let upstreams = &http.gateway.upstreams;
            if let (Some(upstream), Some(tool)) = (upstream, &remote_name)
                && let Err(error) = upstreams.admit(&caller, upstream, tool).await
            {
                return Ok(
                    answer::answer_to(&id, Err(error), era, http.gateway.now(), true)
                        .into_response(),
                );
            }
            if era == Era::Modern
                && remote_name.is_some()
                && from_stdin.is_none()
                && let Err(error) = call::check_listed(&http, &caller, &call.0, &headers)
            {
                return Ok(error.answer(Some(&id), era));
            }
            call::run(&http, caller, *call, id, era, &headers).await
        }
        Method::Listen { tools } => listen::listen(http, &caller, &headers, id, tools)?,
    })
}

/// The members of `params` that any method has.
#[derive(Deserialize)]
struct Params<'a> {
    name: Option<Cow<'a, str>>,
    uri: Option<Cow<'a, str>>,
    #[serde(rename = "_meta", default, deserialize_with = "or_empty")]
    meta: Map<String, Value>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(rename = "inputResponses", borrow)]
    responses: Option<&'a RawValue>,
    #[serde(rename = "requestState")]
    state: Option<Cow<'a, str>>,
    #[serde(rename = "protocolVersion")]
    version: Option<String>,
    #[serde(default, deserialize_with = "or_empty")]
    notifications: Map<String, Value>,
}

/// Reads an object, or null as an empty one.
fn or_empty<'a, D: Deserializer<'a>>(value: D) -> Result<Map<String, Value>, D::Error> {
    Option::deserialize(value).map(Option::unwrap_or_default)
}

/// Parses a message. `None`: a notification, which is ignored.
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
    let method = message.method.as_str();
    let body = Said {
        method,
        name: match method {
            "tools/call" | "prompts/get" => params.name.as_deref(),
            "resources/read" => params.uri.as_deref(),
            _ => None,
        },
        meta: &params.meta,
    };
    let era = revision::era(|name| header(headers, name), body)
        .map_err(|why| RpcError::from(why).answer(Some(id), Era::Modern))?;
    let refused = |error: RpcError| error.answer(Some(id), era);
    let method = match (method, era) {
        ("initialize", Era::Legacy) => Method::Describe {
            version: Some(params.version.unwrap_or_default()),
        },
        ("ping", Era::Legacy) => Method::Ping,
        ("server/discover", Era::Modern) => Method::Describe { version: None },
        ("tools/list", _) if upstream.is_none() => Method::ListTools,
        ("tools/call", _) => {
            let missing = || refused(RpcError::params("name is missing"));
            let name = params.name.as_deref().ok_or_else(missing)?;
            let (tool, remote_name) = match upstream {
                Some(upstream) => (http.gateway.upstreams.name_of(upstream, name), Some(name)),
                None => (name.to_owned(), None),
            };
            let call = call::read(http, caller, tool, &params, headers, era).map_err(refused)?;
            Method::Call(Box::new(call), remote_name.map(str::to_owned))
        }
        ("subscriptions/listen", Era::Modern) if upstream.is_none() => Method::Listen {
            tools: params.notifications.get("toolsListChanged") == Some(&Value::Bool(true)),
        },
        (method, _)
            if let Some(forwarded) =
                upstream.and_then(|_| Forwarded::of(method, body.name, raw_params)) =>
        {
            Method::Forward(forwarded)
        }
        _ => {
            let why = match upstream {
                Some(_) => "Method not found: it is not forwarded",
                None => {
                    "Method not found: this server has tools, and neither resources nor prompts"
                }
            };
            return Err(refused(RpcError::new(METHOD_NOT_FOUND, why)));
        }
    };
    let id = id.to_owned();
    Ok(Some(ParsedRequest { id, era, method }))
}

/// The text of a header. `Err`: there are several lines, or the line is not text.
fn header(headers: &HeaderMap, name: &str) -> Option<Result<String, ()>> {
    let text = |line: &HeaderValue| {
        line.to_str()
            .map_err(|_| ())
            .map(|text| text.trim().to_owned())
    };
    Some(only_line(headers, name)?.and_then(text))
}
