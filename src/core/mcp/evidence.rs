//! What the answer of an MCP server proves: the table beside the one for HTTP tools in `core::outcome`.
//!
//! A server says 200 before it executes, so only a whole response proves anything. Sources: JSON-RPC 2.0, section 5.1;
//! the Model Context Protocol, revisions 2025-06-18 to 2026-07-28.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::core::evidence::{Body, McpAnswer, Outcome};
use crate::core::record::{Content, Failure, FailureKind};
use crate::core::tool::ToolError;

/// A response of JSON-RPC, as far as it matters here.
#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RpcError {
    code: i64,
}

/// The members of a `CallToolResult` that say what kind of result it is.
#[derive(Default, Deserialize)]
struct Head<'a> {
    #[serde(rename = "isError", default)]
    is_error: bool,
    #[serde(rename = "resultType", borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

/// Whether a message is the response to the request with this id, and no other message.
///
/// A server that could not read a request answers with an error without an id.
pub fn is_response(message: &[u8], id: &str) -> bool {
    let Some(response) = object::<Response<'_>>(message) else {
        return false;
    };
    let has_one = response.result.is_some() != response.error.is_some();
    let is_ours = match response.id.map(RawValue::get) {
        None | Some("null") => response.error.is_some(),
        Some(said) => serde_json::from_str::<Cow<'_, str>>(said).is_ok_and(|said| said == id),
    };
    has_one && is_ours
}

/// Whether a kept result says that the tool failed.
pub fn is_error(result: &[u8]) -> bool {
    object::<Head<'_>>(result).is_some_and(|head| head.is_error)
}

/// Whether a kept result is one that an MCP server gave, to be passed on as it is.
pub fn is_tool_result(result: &[u8]) -> bool {
    let head = serde_json::from_slice::<Head<'_>>(result);
    head.is_ok_and(|head| {
        head.content
            .is_some_and(|content| content.get().starts_with('['))
    })
}

/// Whether a result has something other than null there: in its structured content, or without that in its first text,
/// if that is JSON.
pub fn has(result: &[u8], pointer: &str) -> bool {
    let Ok(result) = serde_json::from_slice::<Value>(result) else {
        return false;
    };
    let text = || serde_json::from_str(result.pointer("/content/0/text")?.as_str()?).ok();
    let said = result.get("structuredContent").cloned().or_else(text);
    said.is_some_and(|said| said.pointer(pointer).is_some_and(|found| !found.is_null()))
}

/// The table: what an answer proves, and a sentence that says why.
pub fn classify(answer: &McpAnswer, tool_error: ToolError) -> (Outcome, String) {
    let McpAnswer { status, body, .. } = answer;
    let unknown = |why: String| (Outcome::Unknown, why);
    let rejected = |body: Option<Bytes>, why: String| {
        let failure = Failure {
            status: Some(*status),
            body,
            ..Failure::new(FailureKind::Rejected, &why)
        };
        (Outcome::NotExecuted(failure), why)
    };
    let bytes = match body {
        Body::Broken(why) => {
            return unknown(format!(
                "the server answered {status} without a whole response: {why}"
            ));
        }
        Body::Whole(bytes) => bytes,
    };
    if answer.is_expired_session() {
        let why = "the server does not know its session any more";
        let failure = Failure {
            status: Some(*status),
            ..Failure::new(FailureKind::Unavailable, why)
        };
        return (Outcome::NotExecuted(failure), why.into());
    }
    let response = object::<Response<'_>>(bytes);
    let error = response.as_ref().and_then(|response| response.error);
    let code =
        error.map(|error| object::<RpcError>(error.get().as_bytes()).map(|error| error.code));
    let said = error.map(|error| part(bytes, error));
    let is_refused = matches!(status, 400 | 401 | 403..=406 | 413 | 415);
    match code {
        Some(Some(code)) if is_rejection(code) && *status < 500 => {
            return rejected(
                said,
                format!("the server answered with the JSON-RPC error {code}"),
            );
        }
        // It may have happened, whatever the status says.
        Some(Some(INTERNAL_ERROR) | None) => {
            return unknown(
                "the server answered with an internal error, or with one that cannot be read"
                    .into(),
            );
        }
        _ if is_refused => {
            return rejected(
                said,
                format!("the server refused the request with {status}"),
            );
        }
        Some(Some(code)) => {
            return unknown(format!(
                "the server answered with the JSON-RPC error {code}; that does not prove that it was not executed"
            ));
        }
        None => {}
    }
    let result = response.and_then(|response| response.result);
    let Some(result) = result.filter(|_| (200..300).contains(status)) else {
        return unknown(format!(
            "the server answered {status} without a result; that does not prove that it was not executed"
        ));
    };
    let Some(head) = object::<Head<'_>>(result.get().as_bytes()) else {
        return unknown("the server answered with a result that cannot be read".into());
    };
    let json = part(bytes, result);
    let executed = |json, why: &str| (Outcome::Executed(Content::Kept(json)), why.into());
    match (head.kind.as_deref(), head.is_error, tool_error) {
        (Some("task"), _, _) => executed(json, "the server answered with a task"),
        (None | Some("complete"), false, _) => executed(json, "the server answered with a result"),
        (None | Some("complete"), true, ToolError::Remember) => executed(
            json,
            "the server answered with an error as the tool's result",
        ),
        (None | Some("complete"), true, ToolError::Rejected) => {
            let why = "the server answered with an error as the tool's result, which is declared to mean that nothing was executed";
            rejected(Some(json), why.into())
        }
        (None | Some("complete"), true, ToolError::Unknown) => unknown(
            "the server answered with an error as the tool's result; that does not prove that it was not executed"
                .into(),
        ),
        // Nothing that asks the caller was announced to the server.
        (Some(_), _, _) => unknown("the server answered with a result of an unknown type".into()),
    }
}

/// Internal error.
const INTERNAL_ERROR: i64 = -32_603;

/// Reads an object; what is none, an array among it, reads as nothing.
fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    let is_object = json.trim_ascii_start().starts_with(b"{");
    is_object
        .then(|| serde_json::from_slice(json).ok())
        .flatten()
}

/// Codes of errors that are found before a tool is executed: JSON-RPC's own, and MCP's of headers and versions.
///
/// -32602 is both "unknown tool" and "invalid arguments".
fn is_rejection(code: i64) -> bool {
    matches!(code, -32_700 | -32_602..=-32_600 | -32_022..=-32_020)
}

/// A value inside of these bytes, not copied.
fn part(bytes: &Bytes, value: &RawValue) -> Bytes {
    bytes.slice_ref(value.get().as_bytes())
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
