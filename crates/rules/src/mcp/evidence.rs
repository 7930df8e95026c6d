//! What an MCP server's answer proves: the table beside `rules::outcome`.
//!
//! A server says 200 before it executes, so only a whole response proves anything. Sources: JSON-RPC 2.0, section 5.1;
//! the Model Context Protocol, revisions 2025-06-18 to 2026-07-28.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::elicitation;
use super::members::object;
use super::payment;
use crate::evidence::{Body, McpAnswer, Outcome, keep};
use crate::json;
use crate::record::{Content, Failure, FailureKind};
use crate::tool::{Declared, Errors, RequestErrors, ToolError};

/// The members of a JSON-RPC response that are evidence.
#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
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

/// The members of a `CallToolResult` that tell its kind.
#[derive(Default, Deserialize)]
struct Head<'a> {
    #[serde(rename = "isError", default)]
    is_error: bool,
    #[serde(rename = "resultType", borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// How the ids of the gateway's requests begin.
pub const OWN_ID: &str = "oncegate-";

/// Whether a message is the response to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// It is the response to the request.
    Ours,
    /// It answers another request of the gateway, or is a result without an id.
    Another,
    /// It is an error without an id of the gateway, as for a request that a server could not read.
    Nameless,
    /// It is not a response.
    None,
}

/// Whether a message is the response to the request with this id.
pub fn matches(message: &[u8], id: &str) -> Match {
    let Some(response) = object::<Response<'_>>(message) else {
        return Match::None;
    };
    if response.result.is_some() == response.error.is_some() {
        return Match::None;
    }
    let found = response.id.map(RawValue::get);
    let found = found.and_then(|found| serde_json::from_str::<Cow<'_, str>>(found).ok());
    match found {
        Some(found) if found == id => Match::Ours,
        Some(found) if found.starts_with(OWN_ID) => Match::Another,
        _ if response.error.is_some() => Match::Nameless,
        _ => Match::Another,
    }
}

/// Whether a kept result says that the tool failed.
pub fn is_error(result: &[u8]) -> bool {
    object::<Head<'_>>(result).is_some_and(|head| head.is_error)
}

/// Whether a kept result came from an MCP server, and so is forwarded as it is.
pub fn is_tool_result(result: &[u8]) -> bool {
    object::<Head<'_>>(result).is_some_and(|head| {
        let content = head.content.map(RawValue::get);
        let has_content = content.is_some_and(|content| content.starts_with('['));
        has_content || head.kind.as_deref() == Some("task") || elicitation::asked(result).is_some()
    })
}

/// Whether a result has a value at a pointer; `None`: it cannot be read, or names an error instead.
///
/// It looks in the structured content or, without that, in the texts that are JSON. Null, false
/// and empty values count as no value.
pub fn has(result: &[u8], pointer: &str) -> Option<bool> {
    let result = json::read(result).ok()?;
    let kind = result.get("resultType").and_then(Value::as_str);
    if !matches!(kind, None | Some("complete")) {
        return None;
    }
    let has = |content: &Value| match content.pointer(pointer) {
        Some(value) if !is_empty(value) => Some(true),
        _ if names_error(content) => None,
        _ => Some(false),
    };
    let structured = &result["structuredContent"];
    if !structured.is_null() {
        return has(structured);
    }
    let blocks = result.get("content")?.as_array()?;
    let content = |block: &Value| {
        let text = block["text"].as_str().filter(|_| block["type"] == "text")?;
        let content = json::read(text.as_bytes()).ok()?;
        let is_searchable = content.is_object() || content.is_array();
        is_searchable.then(|| has(&content))?
    };
    let all: Vec<Option<bool>> = blocks.iter().map(content).collect();
    if all.contains(&Some(true)) {
        return Some(true);
    }
    // A block that cannot be read may hold the value.
    (!all.is_empty() && !all.contains(&None)).then_some(false)
}

/// Whether a successful answer has an `error` or `errors`.
///
/// Null, false, an empty text and an empty list are none. `{}` is one: JavaScript writes an exception in this way.
pub fn names_error(answer: &Value) -> bool {
    let named = ["error", "errors"].map(|name| answer.get(name));
    let is_error = |value: &Value| value.is_object() || !is_empty(value);
    named.into_iter().flatten().any(is_error)
}

/// Null, false, and empty texts, lists and objects.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_true) => !is_true,
        Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

/// The answer to a question that executes nothing.
#[derive(Debug, Clone)]
pub enum Reply {
    /// One object.
    Result(Bytes),
    /// An error of JSON-RPC.
    Error(Bytes),
}

/// Reads the answer to a question that executes nothing.
///
/// # Errors
/// Why it is not an answer.
pub fn reply(answer: &McpAnswer) -> Result<Reply, String> {
    let bytes = match &answer.body {
        Body::Broken(why) => return Err(why.clone()),
        Body::Whole(bytes) => bytes,
    };
    match object::<Response<'_>>(bytes) {
        Some(Response {
            error: Some(error), ..
        }) => Ok(Reply::Error(part(bytes, error))),
        Some(Response {
            result: Some(result),
            ..
        }) if result.get().starts_with('{') => Ok(Reply::Result(part(bytes, result))),
        _ => Err(format!("it answered {} without a result", answer.status)),
    }
}

/// Why a body is unreadable: it answers another request of the connection.
pub const ANOTHER: &str = "the server answered another request";

/// The table: what an answer proves, and why.
///
/// `declared`: what the operator says that the answer's status means. It counts only for an answer without a result, and
/// not for 2xx: a server says so before it executes.
pub fn classify(
    answer: &McpAnswer,
    means: Errors,
    declared: Option<Declared>,
) -> (Outcome, String) {
    let status = answer.status;
    let unknown = |why: String| (Outcome::Unknown, why);
    let not_executed = |kind, body: Option<Bytes>, why: String| {
        let failure = Failure {
            status: Some(status),
            body,
            ..Failure::new(kind, &why)
        };
        (Outcome::NotExecuted(failure), why)
    };
    let rejected = |body, why| not_executed(FailureKind::Rejected, body, why);
    let declared = declared.filter(|_| !(200..300).contains(&status));
    let bytes = match &answer.body {
        Body::Broken(why) => {
            if let Some(declared) = declared.filter(|_| why != ANOTHER) {
                return as_declared(answer, declared, None);
            }
            return unknown(format!(
                "the server answered {status} without a whole response: {why}"
            ));
        }
        Body::Whole(bytes) => bytes,
    };
    let response = object::<Response<'_>>(bytes);
    let (result, error) = response.map_or((None, None), |found| (found.result, found.error));
    let error = error.map(|error| part(bytes, error));
    // An error that cannot be read is taken for an internal one.
    let code = error
        .as_ref()
        .map(|error| object::<RpcError>(error).map_or(INTERNAL_ERROR, |error| error.code));
    // If the error names the request, the tool may have acted already, and raised the same code itself.
    let is_before = !answer.names_request && code != Some(INTERNAL_ERROR);
    let is_stale = is_before && is_stale_agreement(answer, code);
    if result.is_none() && is_stale && answer.is_forgotten && !means.strict {
        let why = "the server does not know the session or the revision that was agreed on, nor does it for a question that executes nothing";
        return not_executed(FailureKind::Unavailable, None, why.into());
    }
    if let Some(declared) = declared.filter(|_| result.is_none()) {
        return as_declared(answer, declared, error);
    }
    // Servers ask for the payment before they execute.
    if let Some(demand) = error.clone().filter(|error| payment::is_demand(error))
        && status < 500
        && !means.strict
    {
        return rejected(Some(demand), PAYMENT_FIRST.into());
    }
    match code {
        None => {}
        // Whatever the status is, the call may have been executed.
        Some(INTERNAL_ERROR) => {
            return unknown(
                "the server answered with an internal error, or with one that cannot be read"
                    .into(),
            );
        }
        Some(code) if status < 500 && is_about_request(code) && answer.names_request => {
            let why = format!("the server answered with the JSON-RPC error {code}");
            return match means.request_errors {
                RequestErrors::Rejected => rejected(
                    error,
                    format!("{why}, which is declared to mean that nothing was executed"),
                ),
                RequestErrors::Unknown => unknown(format!(
                    "{why}; servers say so after they have executed, too"
                )),
            };
        }
        Some(code) if answer.names_request || !is_refusal(status) => {
            return unknown(format!(
                "the server answered with the JSON-RPC error {code}; that does not prove that it was not executed"
            ));
        }
        // A server may say so of a session or a revision after it has executed.
        Some(code) if matches!(status, 400 | 404) && is_about_agreement(code) => {
            return unknown(format!(
                "the server refused its session or revision with {status} and the JSON-RPC error {code}; nothing proves that it does not know them, nor that it did not execute the request"
            ));
        }
        Some(_) => {}
    }
    if result.is_none() && is_refusal(status) && !means.strict {
        let why = format!("the server refused the request with {status}");
        return rejected(error, why);
    }
    let Some(result) = result.filter(|_| (200..300).contains(&status)) else {
        return unknown(format!(
            "the server answered {status} without a result; that does not prove that it was not executed"
        ));
    };
    let Some(head) = object::<Head<'_>>(result.get().as_bytes()) else {
        return unknown("the server answered with a result that cannot be read".into());
    };
    let json = part(bytes, result);
    let executed = |json, why: &str| (Outcome::Executed(Content::Stored(json)), why.into());
    if payment::is_result_demand(&json) && !means.strict {
        if payment::has_receipt(&json) {
            return unknown(PAYMENT_TRIED.into());
        }
        return rejected(Some(json), PAYMENT_FIRST.into());
    }
    match (head.kind.as_deref(), head.is_error, means.tool_error) {
        // What a task that is followed proves, its end says.
        (Some("task"), _, _) => unknown("the server answered with a task".into()),
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
        (Some("input_required"), _, _) if elicitation::asked(&json).is_some() => {
            executed(json, "the server answered with questions")
        }
        (Some(_), _, _) => unknown("the server answered with a result of an unknown type".into()),
    }
}

/// What an operator has declared of the answer's status.
fn as_declared(answer: &McpAnswer, declared: Declared, error: Option<Bytes>) -> (Outcome, String) {
    let why = format!(
        "the server answered {}, as declared for this tool",
        answer.status
    );
    let failed = |kind, body| {
        let failure = Failure {
            status: Some(answer.status),
            body,
            ..Failure::new(kind, &why)
        };
        Outcome::NotExecuted(failure)
    };
    let said = || error.or_else(|| keep(&answer.body).stored().cloned());
    let outcome = match declared {
        Declared::Executed => Outcome::Executed(keep(&answer.body)),
        Declared::NotExecuted => failed(FailureKind::Unavailable, None),
        Declared::Rejected => failed(FailureKind::Rejected, said()),
        Declared::Fenced => failed(FailureKind::Fenced, said()),
        Declared::Unknown => Outcome::Unknown,
    };
    (outcome, why)
}

/// Why a demand for a payment is a rejection.
const PAYMENT_FIRST: &str = "the server asks for a payment before it executes the call";

/// Why a demand for a payment proves nothing.
const PAYMENT_TRIED: &str =
    "the server asks for a payment after it has tried one, so it may have executed the call before";

/// Internal error.
const INTERNAL_ERROR: i64 = -32_603;

/// Whether an error code blames the request.
///
/// SDKs also use these codes for errors that a tool raises after its effect, and for results that
/// do not fit the schema.
fn is_about_request(code: i64) -> bool {
    matches!(code, -32_700 | -32_602..=-32_600 | -32_022..=-32_020)
}

/// Whether a server answers with this status before it executes a request.
fn is_refusal(status: u16) -> bool {
    matches!(status, 400 | 401 | 403 | 405 | 406 | 413 | 415)
}

/// Whether an error code, with status 400 and without naming the request, is about the session or the revision.
fn is_about_agreement(code: i64) -> bool {
    matches!(code, -32_000 | -32_020 | -32_022)
}

/// Whether a refusal asks for another session or revision.
///
/// That is 404 to a request in a session (some servers answer 400 and -32000), or one of MCP's codes
/// for headers and revisions.
fn is_stale_agreement(answer: &McpAnswer, code: Option<i64>) -> bool {
    match (answer.status, code) {
        (404, _) => answer.has_session,
        (400, Some(-32_000)) => answer.has_session,
        (400, Some(-32_022 | -32_020)) => true,
        _ => false,
    }
}

/// Whether this answer ends the agreement with a server.
pub fn ends_agreement(answer: &McpAnswer) -> bool {
    matches!(answer.status, 401 | 403) || is_stale_agreement(answer, code_of(answer))
}

/// Whether this answer says that the server does not know the session or the revision.
///
/// Alone it proves nothing: another question in the same agreement has to be refused in the same way.
pub fn may_have_forgotten(answer: &McpAnswer) -> bool {
    !answer.names_request && is_stale_agreement(answer, code_of(answer))
}

/// Whether a question that executes nothing was refused in the same way as a call.
pub fn is_same_refusal(question: &McpAnswer, call: &McpAnswer) -> bool {
    let is_same = question.status == call.status
        && (call.status == 404 || code_of(question) == code_of(call));
    is_same && may_have_forgotten(question) && may_have_forgotten(call)
}

/// The code of an answer's error, if it has a readable one.
fn code_of(answer: &McpAnswer) -> Option<i64> {
    let error = match &answer.body {
        Body::Whole(bytes) => object::<Response<'_>>(bytes).and_then(|response| response.error),
        Body::Broken(_) => None,
    };
    let code = error.and_then(|error| object::<RpcError>(error.get().as_bytes()));
    code.map(|error| error.code)
}

/// A value within these bytes, not copied.
fn part(bytes: &Bytes, value: &RawValue) -> Bytes {
    bytes.slice_ref(value.get().as_bytes())
}

#[cfg(test)]
mod tests;
