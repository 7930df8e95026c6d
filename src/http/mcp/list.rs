//! The gateway's own description: `initialize`, `server/discover`, `ping` and `tools/list`.

use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::Http;
use super::super::parts::Part;
use super::super::tools::McpTool;
use super::answer::{SERVER_INFO, server_info};
use super::message;
use crate::core::caller::Caller;
use crate::core::mcp::revision::{Era, negotiated, supported};
use crate::core::tool_schema_export::Keys;

/// How long a client may cache a list, in milliseconds. Listening clients are told of changes.
const FRESH_MS: u64 = 60_000;

/// Instructions for models about all tools.
pub(super) const INSTRUCTIONS: &str = "Each call of a tool here takes effect at most once. To repeat a call, after a timeout or an error or to ask how it ended, soon send exactly the same arguments again, the idempotency_key among them: the stored result comes back, and nothing is executed twice. A call that ended longer ago than its tool remembers (mostly a day, and an hour if it had no idempotency_key) may be taken for a new one: later look up what became of it, or ask a person. Choose a new idempotency_key only for a new intent. If an answer says that it may have happened, never try with other arguments or another tool.";

/// `initialize`, for clients of 2025-11-25 and before. There is no session.
pub(super) fn initialize(id: &RawValue, wanted: &str) -> Response {
    let result = json!({
        "protocolVersion": negotiated(wanted),
        "capabilities": { "tools": { "listChanged": false } },
        "serverInfo": server_info()[SERVER_INFO],
        "instructions": INSTRUCTIONS,
    });
    answer(id, result)
}

pub(super) fn ping(id: &RawValue) -> Response {
    answer(id, json!({}))
}

/// `server/discover`
pub(super) fn discover(id: &RawValue) -> Response {
    let result = json!({
        "resultType": "complete",
        "supportedVersions": supported(),
        "capabilities": { "tools": { "listChanged": true } },
        "instructions": INSTRUCTIONS,
        "ttlMs": FRESH_MS,
        "cacheScope": "public",
        "_meta": server_info(),
    });
    answer(id, result)
}

/// `tools/list`: what this caller may call, by name, on one page.
pub(super) fn tools(http: &Http, caller: &Caller, id: &RawValue, era: Era) -> Response {
    let tools = listed(http, caller);
    let mut result = Map::from_iter([("tools".to_owned(), json!(tools))]);
    if era == Era::Modern {
        result.insert("resultType".into(), "complete".into());
        result.insert("ttlMs".into(), FRESH_MS.into());
        result.insert("cacheScope".into(), "private".into());
        result.insert("_meta".into(), server_info().into());
    }
    answer(id, Value::Object(result))
}

/// The tools that this caller may call, by name.
pub(super) fn listed(http: &Http, caller: &Caller) -> Vec<McpTool> {
    let tools = http.gateway.base.tools_of(caller);
    let tools = tools.iter().filter(|at| caller.may_call(&at.tool.name));
    tools.map(|at| McpTool::of(&at.tool, Keys::Model)).collect()
}

fn answer(id: &RawValue, result: Value) -> Response {
    let result = Part::Plain(result.to_string().into());
    message::json(message::response(id, vec![result])).into_response()
}
