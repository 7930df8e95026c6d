//! The gateway's own description: `initialize`, `server/discover`, `ping` and `tools/list`.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::answer::{SERVER_INFO, server_info};
use super::message;
use super::state::Mcp;
use oncegate_engine::ToolAt;
use oncegate_http::parts::Part;
use oncegate_http::tools::McpTool;
use oncegate_rules::caller::Caller;
use oncegate_rules::mcp::AwaitTool;
use oncegate_rules::mcp::revision::{Era, negotiated, supported};
use oncegate_rules::mcp::tasks::{AWAIT_CALL, EXTENSION};
use oncegate_rules::tool::Effect;
use oncegate_rules::tool_schema_export::Keys;

/// How long a client may cache a list, in milliseconds. Clients that listen learn of changes sooner.
const FRESH_MS: u64 = 60_000;

/// Instructions for models about all tools.
pub(super) const INSTRUCTIONS: &str = "Each call of a tool here takes effect at most once. To repeat a call, after a timeout or an error or to ask how it ended, soon send exactly the same arguments again, the idempotency_key among them: the stored result comes back, and nothing is executed twice. A call that ended longer ago than its tool remembers (mostly a day, and an hour if it had no idempotency_key) may be taken for a new one: later look up what became of it, or ask an operator. Choose a new idempotency_key only for a new intent. If an answer says that it may have happened, never try with other arguments or another tool.";

/// The description of a server, for clients.
pub(super) struct About {
    pub(super) capabilities: Value,
    /// Whether calls may become tasks. `initialize` never says so: older revisions have other tasks.
    pub(super) has_tasks: bool,
    /// Instructions for models.
    pub(super) instructions: String,
    /// How long and in which scope a client may cache the answer to `server/discover`.
    pub(super) fresh_ms: u64,
    pub(super) scope: &'static str,
}

impl About {
    /// The gateway itself, with the tools of `[tools]`.
    pub(super) fn gateway(tells_changes: bool, has_tasks: bool) -> Self {
        Self {
            has_tasks,
            capabilities: json!({ "tools": { "listChanged": tells_changes } }),
            instructions: INSTRUCTIONS.to_owned(),
            fresh_ms: FRESH_MS,
            scope: "public",
        }
    }
}

/// The answer to `initialize` for this version; `None`: to `server/discover`.
///
/// `initialize` is for clients of 2025-11-25 and before. It begins no session.
pub(super) fn describe(id: &RawValue, version: Option<&str>, about: About) -> Response {
    let mut result = match version {
        Some(wanted) => json!({
            "protocolVersion": negotiated(wanted),
            "serverInfo": server_info()[SERVER_INFO],
        }),
        None => json!({
            "resultType": "complete",
            "supportedVersions": supported(),
            "ttlMs": about.fresh_ms,
            "cacheScope": about.scope,
            "_meta": server_info(),
        }),
    };
    result["capabilities"] = about.capabilities;
    if about.has_tasks && version.is_none() {
        result["capabilities"]["extensions"] = json!({ EXTENSION: {} });
    }
    result["instructions"] = about.instructions.into();
    answer(id, &result)
}

pub(super) fn ping(id: &RawValue) -> Response {
    answer(id, &json!({}))
}

/// `tools/list`: what this caller may call, by name, on one page.
pub(super) fn tools(mcp: &Mcp, caller: &Caller, id: &RawValue, era: Era) -> Response {
    let mut tools: Vec<Value> = listed(mcp, caller).iter().map(|tool| json!(tool)).collect();
    if has_await(mcp, caller, None) {
        tools.push(await_call());
    }
    let mut result = Map::from_iter([("tools".to_owned(), json!(tools))]);
    if era == Era::Modern {
        result.insert("resultType".into(), "complete".into());
        result.insert("ttlMs".into(), FRESH_MS.into());
        result.insert("cacheScope".into(), "private".into());
        result.insert("_meta".into(), server_info().into());
    }
    answer(id, &Value::Object(result))
}

/// Whether the tool `await_call` is listed for this caller at `POST /mcp`, or at the endpoint of one server.
pub(super) fn has_await(mcp: &Mcp, caller: &Caller, upstream: Option<&str>) -> bool {
    let name = match upstream {
        None => AWAIT_CALL.to_owned(),
        Some(upstream) => mcp.upstreams.name_of(upstream, AWAIT_CALL),
    };
    // A tool of this name that the configuration has goes first.
    let tools = mcp.http.gateway.base.tools();
    if tools.contains_key(&name) {
        return false;
    }
    let runs_long = |at: &&Arc<ToolAt>| {
        at.tool.effect == Effect::Write
            && (at.tool.approval.is_some() || at.tool.longest() > mcp.settings.answer_within)
    };
    match (mcp.settings.await_tool, upstream) {
        (AwaitTool::Off, _) | (AwaitTool::Auto, Some(_)) => false,
        (AwaitTool::On, _) => true,
        (AwaitTool::Auto, None) => tools
            .values()
            .filter(runs_long)
            .any(|at| caller.may_call(&at.tool.name)),
    }
}

/// The tool `await_call`, as a list has it.
pub(super) fn await_call() -> Value {
    json!({
        "name": AWAIT_CALL,
        "title": "Wait for a call",
        "description": "Waits for a call that was answered as still running, and returns that call's own answer. Executes nothing, and may be called any number of times. call_id is the id that the answer named.",
        "inputSchema": {
            "type": "object",
            "properties": { "call_id": { "type": "string", "format": "uuid" } },
            "required": ["call_id"],
            "additionalProperties": false,
        },
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}

/// The tools that this caller may call, by name.
pub(super) fn listed(mcp: &Mcp, caller: &Caller) -> Vec<McpTool> {
    let tools = mcp.http.gateway.base.tools_of(caller);
    let tools = tools.iter().filter(|at| caller.may_call(&at.tool.name));
    tools.map(|at| McpTool::of(&at.tool, Keys::Model)).collect()
}

fn answer(id: &RawValue, result: &Value) -> Response {
    let result = Part::Plain(result.to_string().into());
    message::json(message::response(id, vec![result])).into_response()
}
