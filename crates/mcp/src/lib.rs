//! `POST /mcp`: the tools of `[tools]` for clients that speak the Model Context Protocol, without sessions.
//!
//! A failure of a call is a result with `isError`. Errors of JSON-RPC are for malformed requests only, because agent
//! frameworks break on such errors, or repeat the request without telling the model.
//!
//! One client on standard input and output goes through the same router as requests over HTTP:
//!
//! ```
//! use axum::routing::post;
//! use axum::{Json, Router};
//! use oncegate_mcp::stdio;
//! use serde_json::json;
//! use tokio::io::AsyncReadExt as _;
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": {} });
//! let router = Router::new().route("/mcp/files", post(async || Json(answer)));
//! let input = &b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n"[..];
//! let (output, mut client) = tokio::io::duplex(1024);
//! let (path, stop) = ("/mcp/files".parse()?, CancellationToken::new());
//! stdio::serve(router, path, 1 << 20, input, output, &stop, || {}).await;
//! let mut line = String::new();
//! client.read_to_string(&mut line).await?;
//! assert_eq!(line, "{\"id\":1,\"jsonrpc\":\"2.0\",\"result\":{}}\n");
//! # Ok(())
//! # }
//! ```

mod answer; // the answer to `tools/call`
mod call; // `tools/call`
mod events; // answers as server-sent events
mod forward; // other requests to one MCP server
mod forwarded; // results of MCP servers
mod list; // `initialize`, `server/discover`, `ping`, `tools/list`
mod listen; // `subscriptions/listen`
mod message; // JSON-RPC on the wire
mod settings; // the section `[mcp]`
mod state; // what the handlers share
pub mod stdio; // one client on standard input and output
mod task; // a call, as a task in an answer
mod tasks; // calls that are asked for by their ids
mod text; // failures of calls, in words for a model
mod upstreams; // MCP servers, and their tools that no section names

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
use axum::routing::post;
use axum::{Extension, Router};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use self::events::Waiting;
use self::forward::Forwarded;
use self::message::{INVALID_REQUEST, METHOD_NOT_FOUND, Message, RpcError};
pub use self::settings::settings;
use self::state::FromStdin;
pub use self::state::Mcp;
use self::text::AsksBy;
pub use self::upstreams::Upstreams;
use oncegate_engine::metrics::Interface;
use oncegate_http::headers::only_line;
use oncegate_http::openapi::Route;
use oncegate_http::problem::refusals::Asker;
use oncegate_http::problem::{Problem, Slug, unknown_path};
use oncegate_http::read::read_body;
use oncegate_http::{Http, ListenerLayer, Routes, auth, host};
use oncegate_rules::caller::Caller;
pub use oncegate_rules::mcp::Settings;
use oncegate_rules::mcp::elicitation;
use oncegate_rules::mcp::revision::{self, CAPABILITIES, Era, Said, TASKS};
use oncegate_rules::mcp::tasks::{AWAIT_CALL, is_known_by};
use oncegate_rules::record::CallId;

/// The prefix of the routes.
const PREFIX: &str = "/mcp";

/// The caller of a request that has no origin, or an allowed one.
struct FromAllowedOrigin(Caller, Asker);

impl FromRequestParts<Mcp> for FromAllowedOrigin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, mcp: &Mcp) -> Result<Self, Problem> {
        if let Some(origin) = parts.headers.get(ORIGIN) {
            let is_listed = |listed: &String| origin.as_bytes() == listed.as_bytes();
            if !mcp.settings.origins.iter().any(is_listed) && !host::is_own_page(parts, origin) {
                return Err(Problem::forbidden(
                    "web pages of this origin may not ask here; mcp.origins lists those that may",
                ));
            }
            // The origin is allowed: the check of a gateway without tokens must not refuse it as a web page.
            parts.headers.remove(ORIGIN);
            parts.headers.remove("sec-fetch-site");
        }
        // No memory for the answer: the gateway reserves it before it claims a call or asks a server.
        let asker = Asker::of(&parts.extensions);
        asker.speaks(Interface::Mcp);
        let caller = auth::by_token(parts, &mcp.http, auth::bearer_digest(&parts.headers), 0)?;
        Ok(Self(caller, asker))
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
    Task(tasks::TaskRequest),
    /// The tool `await_call`, with the call that it waits for.
    Await(CallId),
    Forward(Forwarded),
}

/// Adds the routes for clients that speak MCP.
pub fn add_to(routes: Routes, mcp: Mcp) -> Routes {
    routes
        .with(self::routes(&mcp))
        .with_others(routes_with_slash(mcp))
        .with_interface(PREFIX, Interface::Mcp)
}

/// The routes for clients that speak MCP.
fn routes(mcp: &Mcp) -> Vec<Route> {
    vec![
        Route::post(
            "/mcp",
            "mcp",
            "The tools for clients that speak MCP: one JSON-RPC message a request",
            of_gateway,
        )
        .json_rpc::<Message<'_>>()
        .with_state(mcp.clone()),
        Route::post(
            "/mcp/{upstream}",
            "mcp_upstream",
            "One MCP server, for clients that speak MCP: its calls are claimed",
            of_upstream,
        )
        .path("upstream", "The name of the server's section.")
        .problems(&[Slug::UnknownPath])
        .json_rpc::<Message<'_>>()
        .with_state(mcp.clone()),
    ]
}

/// The same routes as some clients write them, with a slash at the end.
fn routes_with_slash(mcp: Mcp) -> Router<Http> {
    Router::new()
        .route("/mcp/", post(of_gateway))
        .route("/mcp/{upstream}/", post(of_upstream))
        .with_state(mcp)
}

/// The routes of single MCP servers, for `oncegate wrap`.
pub fn upstream_routes(mcp: Mcp) -> Router {
    let gateway = mcp.http.gateway.clone();
    let routes = Router::new()
        .route("/mcp/{upstream}", post(of_upstream))
        .route("/mcp/{upstream}/", post(of_upstream))
        .with_state(mcp);
    let interfaces = vec![(PREFIX, Interface::Mcp)];
    ListenerLayer::new(gateway)
        .with_interfaces(interfaces)
        .wrap(routes)
}

/// `POST /mcp`
async fn of_gateway(
    State(mcp): State<Mcp>,
    FromAllowedOrigin(caller, asker): FromAllowedOrigin,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answered(mcp, (caller, asker), headers, body, None, None).await
}

/// `POST /mcp/{upstream}`
async fn of_upstream(
    State(mcp): State<Mcp>,
    FromAllowedOrigin(caller, asker): FromAllowedOrigin,
    upstream: Result<Path<String>, PathRejection>,
    from_stdin: Option<Extension<FromStdin>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let upstream = upstream.map(|Path(name)| name).unwrap_or_default();
    if !mcp.upstreams.has(&upstream) {
        return Err(unknown_path().await);
    }
    let from_stdin = from_stdin.map(|Extension(marker)| marker);
    answered(
        mcp,
        (caller, asker),
        headers,
        body,
        Some(&upstream),
        from_stdin,
    )
    .await
}

async fn answered(
    mcp: Mcp,
    (caller, asker): (Caller, Asker),
    headers: HeaderMap,
    body: Body,
    upstream: Option<&str>,
    from_stdin: Option<FromStdin>,
) -> Result<Response, Problem> {
    let bytes = read_body(body, mcp.http.max_body).await?;
    let read = || read(&mcp, (&caller, &asker), &headers, &bytes, upstream);
    let large = &mcp.http.gateway.engine.large;
    let parsed = large.read_off_workers(bytes.len(), read).await;
    // The wait for a call may be long, and needs no bytes of the request.
    drop(bytes);
    let waiting = Waiting {
        takes_stream: call::takes_stream(&headers),
        asker,
    };
    let ParsedRequest { id, era, method } = match parsed {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return Ok(StatusCode::ACCEPTED.into_response()),
        Err(refused) => return Ok(refused),
    };
    Ok(match method {
        Method::Describe { version } => {
            let about = match upstream {
                // A client of `initialize` cannot listen to changes.
                None => list::About::gateway(version.is_none(), mcp.settings.tasks),
                Some(upstream) => match forward::about(&mcp, &caller, upstream).await {
                    Ok(about) => about,
                    Err(error) => {
                        let unreachable = Some(Slug::ToolUnreachable);
                        return Ok(error.answer_as(unreachable, Some(&id), era));
                    }
                },
            };
            list::describe(&id, version.as_deref(), about)
        }
        Method::Forward(forwarded) => {
            let upstream = upstream.unwrap_or_default();
            forward::forward(&mcp, &caller, upstream, forwarded, &id, era).await?
        }
        Method::Ping => list::ping(&id),
        Method::ListTools => list::tools(&mcp, &caller, &id, era),
        Method::Call(call, remote_name) => {
            let upstreams = &mcp.upstreams;
            if let (Some(upstream), Some(tool)) = (upstream, &remote_name)
                && let Err(error) = upstreams.admit(&caller, upstream, tool).await
            {
                let reader = answer::Reader {
                    era,
                    now: mcp.http.gateway.now(),
                    is_forwarded: true,
                    is_of_call: true,
                    asks_by: AsksBy::Repetition,
                    pages: None,
                };
                return Ok(answer::answer_to(Err(error), reader).respond(&id));
            }
            if era == Era::Modern
                && remote_name.is_some()
                && from_stdin.is_none()
                && let Err(error) = call::check_listed(&mcp, &caller, &call.0, &headers)
            {
                return Ok(error.answer(Some(&id), era));
            }
            call::run(&mcp, caller, *call, id, era, waiting, upstream).await
        }
        Method::Task(request) => tasks::answer(&mcp, &caller, request, &id).await,
        Method::Await(call_id) => tasks::await_call(&mcp, caller, call_id, id, era, waiting).await,
        Method::Listen { tools } => listen::listen(mcp, &caller, &headers, id, tools)?,
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
    #[serde(rename = "taskId")]
    task_id: Option<Cow<'a, str>>,
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
    mcp: &Mcp,
    (caller, asker): (&Caller, &Asker),
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
            _ if TASKS.contains(&method) => params.task_id.as_deref(),
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
        (method, Era::Modern)
            if mcp.settings.tasks
                && let Some(method) = tasks::TaskMethod::ALL
                    .into_iter()
                    .find(|known| known.as_str() == method) =>
        {
            if !is_known_by(&params.meta) {
                return Err(refused(RpcError::no_tasks()));
            }
            let missing = || refused(RpcError::params("taskId is missing"));
            let task_id = params.task_id.as_deref().ok_or_else(missing)?;
            Method::Task(tasks::TaskRequest {
                method,
                task_id: task_id.to_owned(),
                answers: params.responses.map(RawValue::to_owned),
                can_answer: elicitation::can_answer(params.meta.get(CAPABILITIES)),
            })
        }
        ("tools/call", _)
            if params.name.as_deref() == Some(AWAIT_CALL)
                && list::has_await(mcp, caller, upstream) =>
        {
            Method::Await(tasks::awaited(params.arguments).map_err(refused)?)
        }
        ("tools/call", _) => {
            let missing = || refused(RpcError::params("name is missing"));
            let name = params.name.as_deref().ok_or_else(missing)?;
            let (tool, remote_name) = match upstream {
                Some(upstream) => (mcp.upstreams.name_of(upstream, name), Some(name)),
                None => (name.to_owned(), None),
            };
            asker.asks_for(&tool);
            let call = call::read(mcp, caller, tool, &params, headers, era).map_err(refused)?;
            Method::Call(Box::new(call), remote_name.map(str::to_owned))
        }
        ("subscriptions/listen", Era::Modern) if upstream.is_none() => {
            // Changes of tasks are not told: an acknowledgement that names no task says so.
            if params.notifications.contains_key("taskIds") && !is_known_by(&params.meta) {
                return Err(refused(RpcError::no_tasks()));
            }
            Method::Listen {
                tools: params.notifications.get("toolsListChanged") == Some(&Value::Bool(true)),
            }
        }
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
