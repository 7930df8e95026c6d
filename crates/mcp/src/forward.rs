//! Requests to one MCP server other than calls, forwarded member for member.

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::forwarded::Written;
use super::list::{self, About, INSTRUCTIONS};
use super::message::{self, INTERNAL_ERROR, RpcError};
use super::state::Mcp;
use oncegate_engine::{ErrorKind, Question};
use oncegate_http::parts::Part;
use oncegate_http::problem::{Problem, Slug};
use oncegate_rules::caller::Caller;
use oncegate_rules::mcp::evidence::Reply;
use oncegate_rules::mcp::members::Members;
use oncegate_rules::mcp::revision::Era;

/// The methods that are forwarded, and whether their results say how long to cache them.
const METHODS: [(&str, bool); 7] = [
    ("tools/list", true),
    ("resources/list", true),
    ("resources/templates/list", true),
    ("resources/read", true),
    ("prompts/list", true),
    ("prompts/get", false),
    ("completion/complete", false),
];

/// A request to forward.
pub(super) struct Forwarded {
    method: &'static str,
    is_cacheable: bool,
    name: Option<String>,
    params: Box<RawValue>,
}

impl Forwarded {
    /// `None`: the method is not forwarded.
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

/// Passes a request on to a server, and its answer back.
///
/// # Errors
/// The token is limited to single tools, and the request is not for the list of tools.
pub(super) async fn forward(
    mcp: &Mcp,
    caller: &Caller,
    upstream: &str,
    asked: Forwarded,
    id: &RawValue,
    era: Era,
) -> Result<Response, Problem> {
    let is_list = asked.method == "tools/list";
    // No scope exists for single resources or prompts.
    if !is_list && !caller.may_call(&format!("{upstream}.")) {
        return Err(Problem::forbidden(
            "a token for single tools cannot ask for resources and prompts",
        ));
    }
    let upstreams = &mcp.upstreams;
    let params = serde_json::from_str(asked.params.get()).unwrap_or(Members(Vec::new()));
    let question = Question {
        method: asked.method,
        name: asked.name.as_deref(),
        params: &params,
    };
    let result = match upstreams.ask(caller, upstream, question).await {
        Ok(Reply::Result(result)) => result,
        Ok(Reply::Error(error)) => {
            return Ok(RpcError::of_server(&error).answer_as(None, Some(id), era));
        }
        Err(ErrorKind::ToolUnreachable(failure)) => {
            let unreachable = Some(Slug::ToolUnreachable);
            return Ok(no_answer(&failure.why).answer_as(unreachable, Some(id), era));
        }
        Err(kind) => return Err(kind.into()),
    };
    if is_list {
        upstreams.learn(upstream, &result);
    }
    let may_see = upstreams.may_see(caller, upstream);
    let shown = |tool: &RawValue| may_see(tool).then(|| upstreams.described(upstream, tool));
    let shown: Option<&Shown<'_>> = if is_list { Some(&shown) } else { None };
    let more = (is_list && list::has_await(mcp, caller, Some(upstream))).then(list::await_call);
    let written = written(&result, era, asked.is_cacheable, shown, more);
    Ok(message::json(message::response(id, written)).into_response())
}

/// Whether a caller sees a tool of a server's list, and what it is told instead of what the server says.
type Shown<'a> = dyn Fn(&RawValue) -> Option<Option<String>> + 'a;

/// A server's result, with the envelope that the caller's era needs.
///
/// `more`: a tool of the gateway, which the last page of a list of tools has besides.
fn written(
    result: &Bytes,
    era: Era,
    is_cacheable: bool,
    shown: Option<&Shown<'_>>,
    more: Option<Value>,
) -> Vec<Part> {
    let Members(members) = serde_json::from_slice(result).unwrap_or(Members(Vec::new()));
    let is_modern = era == Era::Modern;
    let mut written = Written::new(result);
    let has = |name: &str| members.iter().any(|(known, _)| known == name);
    let more = more
        .filter(|_| !has("nextCursor"))
        .map(|tool| tool.to_string());
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
        match (name.as_str(), shown) {
            ("resultType" | "ttlMs" | "cacheScope", _) if !is_modern => {}
            // Another token may get another result, so shared caches must not keep it.
            ("cacheScope", _) => written.text(name, "\"private\"".into()),
            ("tools", Some(shown)) => {
                let tools: Vec<&RawValue> = serde_json::from_str(value.get()).unwrap_or_default();
                let shown = |tool| shown(tool).map(|instead| (tool, instead));
                written.list(name, tools.into_iter().filter_map(shown), more.as_deref());
            }
            _ => written.value(name, value),
        }
    }
    written.end()
}

/// The description of one server, with the gateway's instructions.
///
/// # Errors
/// The server did not answer.
pub(super) async fn about(mcp: &Mcp, caller: &Caller, upstream: &str) -> Result<About, RpcError> {
    let about = mcp.upstreams.about(caller, upstream).await;
    let about = about.map_err(|why| no_answer(&why))?;
    let capabilities = about.capabilities.iter();
    let capabilities = capabilities.map(|name| ((*name).to_owned(), json!({})));
    let instructions = format!("{}\n\n{INSTRUCTIONS}", about.instructions);
    Ok(About {
        has_tasks: mcp.settings.tasks,
        capabilities: capabilities.collect(),
        instructions: instructions.trim_start().to_owned(),
        fresh_ms: 0,
        scope: "private",
    })
}

fn no_answer(why: &str) -> RpcError {
    RpcError::new(INTERNAL_ERROR, format!("The server did not answer: {why}"))
}
