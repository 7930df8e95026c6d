//! The answer to `tools/call`: the call's result, or why the call has none.

use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::parts::{Part, Parts};
use super::super::problem::{Problem, Slug};
use super::message::{self, INVALID_PARAMS, RpcError};
use super::passed::{self, Written};
use super::text::text;
use oncegate_budget::Elsewhere;
use oncegate_engine::{Answer, Error, ErrorKind, Stored};
use oncegate_rules::key::{CONFIRM_MEMBER, Source};
use oncegate_rules::mcp::evidence::{is_error, is_tool_result};
use oncegate_rules::mcp::portable::is_portable;
use oncegate_rules::mcp::{self, revision::Era};
use oncegate_rules::record::{Record, State};

/// The member of a result's `_meta` that names the server.
pub(super) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// How soon to ask again for a running call.
const RETRY_RUNNING: Duration = Duration::from_secs(1);

/// An answer to `tools/call`.
pub(super) struct CallAnswer {
    pub(super) body: Parts,
    /// How many bytes of the body have their memory reserved already.
    shared: usize,
    /// The problem, if the call has no result.
    problem: Option<Slug>,
}

impl IntoResponse for CallAnswer {
    fn into_response(self) -> Response {
        let shared = Extension(Elsewhere(self.shared));
        let problem = self.problem.map(Extension);
        (shared, problem, message::json(self.body)).into_response()
    }
}

/// The answer to a call that has ended like this.
///
/// `is_passed`: the tool belongs to an MCP server, whose results are forwarded member for member.
pub(super) fn answer_to(
    id: &RawValue,
    answer: Result<Answer, Error>,
    era: Era,
    now: Timestamp,
    is_passed: bool,
) -> CallAnswer {
    let error = match answer {
        Ok(Answer::Result(stored)) if is_passed && let Some(answer) = passed(id, &stored, era) => {
            return answer;
        }
        Ok(Answer::Result(stored)) => return result(id, &stored, era),
        // Cannot occur: no request of MCP asks for an answer before its call has ended.
        Ok(Answer::Accepted(record)) => Error {
            call_id: Some(record.intent.call_id),
            ..ErrorKind::CallInProgress {
                retry_after: RETRY_RUNNING,
            }
            .alone()
        },
        Err(error) => error,
    };
    let is_malformed = matches!(error.kind, ErrorKind::UnknownRound);
    let problem = Problem::from(error);
    if is_malformed {
        let why = format!("Invalid params: {}", problem.detail);
        return refused(id, &RpcError::new(INVALID_PARAMS, why), Some(problem.slug));
    }
    if problem.slug == Slug::UnknownTool {
        return refused(id, &RpcError::params("there is no such tool"), None);
    }
    failed(id, problem, era, now)
}

/// The result of an MCP server. `None`: when the result was stored, the tool was not a server's.
fn passed(id: &RawValue, stored: &Stored, era: Era) -> Option<CallAnswer> {
    let mut notes = notes(stored);
    let call_id = stored.record.intent.call_id.to_string();
    if let Some(age_ms) = stored.replayed_age_ms
        && is_error(&stored.json)
    {
        let seconds = age_ms.div_ceil(1_000);
        notes.push(format!(
            "This error is the stored result of call {call_id}, {seconds} s old. It does not say that nothing was executed."
        ));
    }
    if !is_portable(&stored.json) {
        let is_error = is_error(&stored.json);
        return is_tool_result(&stored.json).then(|| as_text(id, stored, &notes, era, is_error));
    }
    Some(CallAnswer {
        body: passed::response(id, &stored.json, &notes, about(stored), &call_id, era)?,
        shared: stored.json.len(),
        problem: None,
    })
}

/// The result of a tool over HTTP.
///
/// The tool's JSON is sent twice, as text and as structured content, but is in memory once.
fn result(id: &RawValue, stored: &Stored, era: Era) -> CallAnswer {
    let json = &stored.json;
    let is_object = json.trim_ascii_start().starts_with(b"{");
    // Before 2026-07-28 structured content must be an object.
    let is_structured = (era == Era::Modern || is_object) && is_portable(json);
    let (mut result, mut shared) = begun(stored, &notes(stored), era);
    if is_structured {
        result.name("structuredContent");
        result.part(Part::Plain(json.clone()));
        shared += json.len() as u64;
    }
    ended(id, stored, result, shared, false)
}

/// A stored result as a text only, because not every client could read it as a part of the message.
fn as_text(
    id: &RawValue,
    stored: &Stored,
    notes: &[String],
    era: Era,
    is_error: bool,
) -> CallAnswer {
    let (result, shared) = begun(stored, notes, era);
    ended(id, stored, result, shared, is_error)
}

/// The beginning of a result: one text, of the notes and the stored JSON. Also how much of it is shared, in bytes.
fn begun<'a>(stored: &'a Stored, notes: &[String], era: Era) -> (Written<'a>, u64) {
    let escaped = Part::Escaped(stored.json.clone());
    let shared = escaped.shared();
    let mut result = Written::result(&stored.json, era);
    result.name("content");
    result.plain(r#"[{"type":"text","text":""#.into());
    // Some clients show a model only the first text, so all is in one.
    if !notes.is_empty() {
        let note = json!(format!("{}\n\n", notes.join("\n"))).to_string();
        result.plain(note.trim_matches('"').to_owned());
    }
    result.part(escaped);
    result.plain(r#""}]"#.into());
    (result, shared)
}

fn ended(
    id: &RawValue,
    stored: &Stored,
    mut result: Written<'_>,
    shared: u64,
    is_error: bool,
) -> CallAnswer {
    result.text("isError", is_error.to_string());
    result.text("_meta", Value::Object(about(stored)).to_string());
    CallAnswer {
        body: message::response(id, result.end()),
        shared: usize::try_from(shared).unwrap_or(usize::MAX),
        problem: None,
    }
}

/// What a model should know about a result, in sentences.
fn notes(stored: &Stored) -> Vec<String> {
    let mut notes = Vec::new();
    let record = &stored.record;
    if let Some(age_ms) = stored.replayed_age_ms
        && (stored.is_by_arguments
            || matches!(record.intent.key_source, Source::Derived | Source::Round))
    {
        let seconds = age_ms.div_ceil(1_000);
        let meant = if stored.is_by_arguments {
            format!(
                " Only if the user wants the same once more, as well as that call: send it again with {CONFIRM_MEMBER} = \"{}\" among its arguments, or have your runtime send _meta[{:?}].",
                record.intent.call_id,
                mcp::CONFIRM
            )
        } else {
            String::new()
        };
        notes.push(format!(
            "Stored result of an identical call {seconds} s ago; nothing was executed again.{meant}"
        ));
    }
    if stored.is_similar {
        notes.push(
            "Stored result of an earlier call that asked for the same; nothing was executed again."
                .into(),
        );
    }
    if let Some(call_id) = record.similar_to {
        notes.push(format!(
            "This call looks like call {call_id}, which asked for the same a short while before it. If only one of them was meant, tell the user."
        ));
    }
    match record.state {
        State::Compensated(_) => {
            notes.push("What this call did is undone: do not build on its result.".into())
        }
        State::Compensating(_) | State::Stuck(_) => {
            notes.push("What this call did is being undone: do not build on its result.".into());
        }
        _ => {}
    }
    notes
}

/// The members of a result's `_meta`.
fn about(stored: &Stored) -> Map<String, Value> {
    let record: &Record = &stored.record;
    let mut about = server_info();
    about.insert(
        mcp::CALL_ID.into(),
        record.intent.call_id.to_string().into(),
    );
    about.insert(mcp::KEY.into(), record.intent.key.clone().into());
    if let Some(token) = record.fencing {
        about.insert(mcp::FENCING_TOKEN.into(), token.into());
    }
    if !record.intent.saga_id.is_empty() {
        about.insert(mcp::SAGA.into(), record.intent.saga_id.clone().into());
    }
    if let Some(call_id) = record.similar_to {
        about.insert(mcp::SIMILAR_TO.into(), call_id.to_string().into());
    }
    if let Some(age_ms) = stored.replayed_age_ms {
        about.insert(mcp::REPLAYED.into(), true.into());
        about.insert(mcp::AGE.into(), age_ms.into());
    }
    about
}

/// The member of `_meta` with the gateway's name and version.
pub(super) fn server_info() -> Map<String, Value> {
    let info = json!({ "name": "oncegate", "version": env!("CARGO_PKG_VERSION") });
    Map::from_iter([(SERVER_INFO.to_owned(), info)])
}

/// A result with `isError` that says why the call has no result.
fn failed(id: &RawValue, mut problem: Problem, era: Era, now: Timestamp) -> CallAnswer {
    // Programs that read `_meta` are told the same as the model.
    problem.detail = text(&problem, now);
    let told = match &problem.tool_body {
        // The tool's own answer says why it rejected the call.
        Some(body) => format!("{}\n\n{}", problem.detail, body.get()),
        None => problem.detail.clone(),
    };
    let content = json!([{ "type": "text", "text": told }]);
    let is_readable = |body: &RawValue| is_portable(body.get().as_bytes());
    problem.tool_body = problem.tool_body.filter(|body| is_readable(body));
    let nothing = Bytes::new();
    let mut meta = Written::new(&nothing);
    for (name, value) in server_info() {
        meta.text(&name, value.to_string());
    }
    if let Some(call_id) = problem.call_id {
        meta.text(mcp::CALL_ID, format!("\"{call_id}\""));
    }
    let body = serde_json::to_string(&problem.body());
    meta.text("dev.oncegate/problem", body.unwrap_or_default());
    let mut result = Written::result(&nothing, era);
    result.text("content", content.to_string());
    result.text("isError", "true".into());
    result.object("_meta", meta);
    CallAnswer {
        body: message::response(id, result.end()),
        shared: 0,
        problem: Some(problem.slug),
    }
}

/// An error of JSON-RPC, with status 200: the request could be read, and nothing was run.
fn refused(id: &RawValue, error: &RpcError, problem: Option<Slug>) -> CallAnswer {
    CallAnswer {
        body: Parts::new([error.text(Some(id)).into()]),
        shared: 0,
        problem,
    }
}
