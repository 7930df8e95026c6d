//! Requests to one MCP server beside calls, passed on member for member.

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::Http;
use super::super::parts::Part;
use super::super::problem::Problem;
use super::answer::{SERVER_INFO, server_info};
use super::list::INSTRUCTIONS;
use super::message::{self, INTERNAL_ERROR, RpcError};
use super::passed::Written;
use crate::core::caller::Caller;
use crate::core::mcp::evidence::Reply;
use crate::core::mcp::members::Members;
use crate::core::mcp::revision::{Era, negotiated, supported};
use crate::gateway::{ErrorKind, Question};

/// The methods that are passed on, and whether clients may cache the results.
const METHODS: [(&str, bool); 7] = [
    ("tools/list", true),
    ("resources/list", true),
    ("resources/templates/list", true),
    ("resources/read", true),
    ("prompts/list", true),
    ("prompts/get", false),
    ("completion/complete", false),
];

/// A request to pass on.
pub(super) struct Forwarded {
    method: &'static str,
    is_cacheable: bool,
    name: Option<String>,
    params: Box<RawValue>,
}

impl Forwarded {
    /// `None`: this method is not passed on.
    pub(super) fn of(method: &str, name: Option<&str>, params: &str) -> Option<Self> {
        let (method, is_cacheable) = METHODS.into_iter().find(|(known, _)| *known == method)?;
        Some(Self {
            method,
            is_cacheable,
            name: name.map(str::to_owned),
            params: RawValue::from_string(params.to_owned()).ok()?,
        })
    }
}

/// Passes a request on, and its answer back.
///
/// # Errors
/// This token may call single tools only, and asks for something else than tools.
pub(super) async fn forward(
    http: &Http,
    caller: &Caller,
    upstream: &str,
    asked: Forwarded,
    id: &RawValue,
    era: Era,
) -> Result<Response, Problem> {
    let is_list = asked.method == "tools/list";
    // Resources and prompts have no scopes of their own.
    if !is_list && !caller.may_call(&format!("{upstream}.")) {
        return Err(Problem::forbidden(
            "a token for single tools asks for no resources and prompts",
        ));
    }
    let upstreams = &http.gateway.upstreams;
    let params = serde_json::from_str(asked.params.get()).unwrap_or(Members(Vec::new()));
    let question = Question {
        method: asked.method,
        name: asked.name.as_deref(),
        params: &params,
    };
    let result = match upstreams.ask(caller, upstream, question).await {
        Ok(Reply::Result(result)) => result,
        Ok(Reply::Error(error)) => return Ok(RpcError::of_server(&error).answer(Some(id), era)),
        Err(ErrorKind::ToolUnreachable(failure)) => {
            return Ok(no_answer(&failure.why).answer(Some(id), era));
        }
        Err(kind) => return Err(kind.into()),
    };
    let may_see = upstreams.may_see(caller, upstream);
    let may_see: Option<&dyn Fn(&RawValue) -> bool> = if is_list { Some(&may_see) } else { None };
    let written = written(&result, era, asked.is_cacheable, may_see);
    Ok(message::json(message::response(id, written)).into_response())
}

/// A result, with the members of the envelope in the caller's era.
fn written(
    result: &Bytes,
    era: Era,
    is_cacheable: bool,
    may_see: Option<&dyn Fn(&RawValue) -> bool>,
) -> Vec<Part> {
    let Members(members) = serde_json::from_slice(result).unwrap_or(Members(Vec::new()));
    let is_modern = era == Era::Modern;
    let mut written = Written::new(result);
    let has = |name: &str| members.iter().any(|(known, _)| known == name);
    let mut added = vec![("resultType", "\"complete\"")];
    if is_cacheable {
        added.extend([("ttlMs", "0"), ("cacheScope", "\"private\"")]);
    }
    for (name, value) in added
        .into_iter()
        .filter(|(name, _)| is_modern && !has(name))
    {
        written.text(name, value.into());
    }
    for (name, value) in &members {
        match (name.as_str(), may_see) {
            ("resultType" | "ttlMs" | "cacheScope", _) if !is_modern => {}
            // What one token gets is not what another gets.
            ("cacheScope", _) => written.text(name, "\"private\"".into()),
            ("tools", Some(may_see)) => {
                let tools: Vec<&RawValue> = serde_json::from_str(value.get()).unwrap_or_default();
                written.list(name, tools.into_iter().filter(|tool| may_see(tool)));
            }
            _ => written.value(name, value),
        }
    }
    written.end()
}

/// `initialize` and `server/discover`: the server's description, as the gateway changes it.
pub(super) async fn about(
    http: &Http,
    caller: &Caller,
    upstream: &str,
    wanted: Option<&str>,
    id: &RawValue,
    era: Era,
) -> Response {
    let about = match http.gateway.upstreams.about(caller, upstream).await {
        Ok(about) => about,
        Err(why) => return no_answer(&why).answer(Some(id), era),
    };
    let theirs = &about.instructions;
    let capabilities = about
        .capabilities
        .iter()
        .map(|name| ((*name).to_owned(), json!({})));
    let mut result = json!({
        "capabilities": capabilities.collect::<Value>(),
        "instructions": format!("{theirs}\n\n{INSTRUCTIONS}").trim_start(),
    });
    let more = match wanted {
        Some(wanted) => json!({
            "protocolVersion": negotiated(wanted),
            "serverInfo": server_info()[SERVER_INFO],
        }),
        None => json!({
            "resultType": "complete",
            "supportedVersions": supported(),
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": server_info(),
        }),
    };
    if let (Some(result), Value::Object(more)) = (result.as_object_mut(), more) {
        result.extend(more);
    }
    let result = Part::Plain(result.to_string().into());
    message::json(message::response(id, vec![result])).into_response()
}

fn no_answer(why: &str) -> RpcError {
    RpcError::new(INTERNAL_ERROR, format!("The server did not answer: {why}"))
}
