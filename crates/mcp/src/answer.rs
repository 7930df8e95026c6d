//! The answer to `tools/call`: the call's result, or why the call has none.

use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::forwarded::{self, Written};
use super::message::{self, INVALID_PARAMS, RpcError};
use super::task;
use super::text::{AsksBy, text};
use oncegate_budget::Elsewhere;
use oncegate_engine::{Answer, Error, ErrorKind, Stored};
use oncegate_http::parts::{Part, Parts};
use oncegate_http::problem::{Problem, Slug};
use oncegate_rules::key::{CONFIRM_MEMBER, Source};
use oncegate_rules::mcp::evidence::{is_error, is_tool_result};
use oncegate_rules::mcp::payment;
use oncegate_rules::mcp::portable::is_portable;
use oncegate_rules::mcp::{self, revision::Era};
use oncegate_rules::record::{CallId, Failure, Record, State};

/// The member of a result's `_meta` that names the server.
pub(super) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// How soon to ask again for a running call.
const RETRY_RUNNING: Duration = Duration::from_secs(1);

/// An answer to `tools/call`.
pub(super) struct CallAnswer {
    /// The result, or the error of JSON-RPC about a request that ran nothing.
    pub(super) result: Result<Vec<Part>, RpcError>,
    /// How many bytes of the body have their memory reserved already.
    shared: usize,
    /// The problem, if the call has no result.
    problem: Option<Slug>,
}

impl CallAnswer {
    /// A result, of whose bytes so many have their memory reserved already.
    pub(super) fn of(result: Vec<Part>, shared: usize) -> Self {
        Self {
            result: Ok(result),
            shared,
            problem: None,
        }
    }

    /// The same with a problem that the result has in it.
    pub(super) fn with_problem(self, problem: Option<Slug>) -> Self {
        Self { problem, ..self }
    }

    /// The problem, if the call has no result.
    pub(super) fn problem(&self) -> Option<Slug> {
        self.problem
    }

    /// The result of a call that ran; an error of JSON-RPC as a result with `isError`. Also how much of it is shared, in bytes.
    pub(super) fn into_result(self) -> (Vec<Part>, usize) {
        let result = self.result.unwrap_or_else(|error| {
            let text = json!({
                "content": [{ "type": "text", "text": error.message() }],
                "isError": true,
            });
            vec![Part::Plain(text.to_string().into())]
        });
        (result, self.shared)
    }

    /// The response of JSON-RPC to the request with this id.
    pub(super) fn body(self, id: &RawValue) -> Parts {
        match self.result {
            Ok(result) => message::response(id, result),
            // With status 200: the request could be read, and nothing was run.
            Err(error) => Parts::new([error.text(Some(id)).into()]),
        }
    }

    pub(super) fn respond(self, id: &RawValue) -> Response {
        let shared = Extension(Elsewhere(self.shared));
        let problem = self.problem.map(Extension);
        (shared, problem, message::json(self.body(id))).into_response()
    }
}

/// What an answer depends on besides the call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) era: Era,
    pub(super) now: Timestamp,
    /// Whether the tool belongs to an MCP server, whose results are forwarded member for member.
    pub(super) is_forwarded: bool,
    /// Whether the answer is that of `tools/call` itself, which the client sends again if it has to pay.
    pub(super) is_of_call: bool,
    /// How the client asks for a call that still runs.
    pub(super) asks_by: AsksBy,
    /// Where its user decides about a call that waits: see `Settings::pages`.
    pub(super) pages: Option<&'a str>,
}

/// The answer to a call that has ended like this.
pub(super) fn answer_to(answer: Result<Answer, Error>, reader: Reader<'_>) -> CallAnswer {
    let era = reader.era;
    let error = match answer {
        Ok(Answer::Result(stored))
            if reader.is_forwarded
                && let Some(answer) = forwarded(&stored, era) =>
        {
            return answer;
        }
        Ok(Answer::Result(stored)) => return result(&stored, era),
        Ok(Answer::Accepted(record)) if reader.asks_by == AsksBy::Task => {
            return CallAnswer::of(task::created(&record, reader.now, server_info()), 0);
        }
        // Cannot occur: only a client that knows tasks is answered before its call has ended.
        Ok(Answer::Accepted(record)) => Error {
            call_id: Some(record.intent.call_id),
            ..ErrorKind::CallInProgress {
                retry_after: RETRY_RUNNING,
            }
            .alone()
        },
        Err(error) => error,
    };
    if let ErrorKind::ToolRejected(failure) = &error.kind
        && let Some(demand) = demand(failure, error.call_id, reader)
    {
        return demand;
    }
    let is_malformed = matches!(error.kind, ErrorKind::UnknownElicitation);
    let problem = Problem::from(error);
    if is_malformed {
        let why = format!("Invalid params: {}", problem.detail);
        return refused(RpcError::new(INVALID_PARAMS, why), Some(problem.slug));
    }
    if problem.slug == Slug::UnknownTool {
        return refused(
            RpcError::params("there is no such tool"),
            Some(problem.slug),
        );
    }
    failed(problem, reader)
}

/// A server's demand for a payment, as the server made it: the client pays by it. `None`: it is another rejection.
fn demand(failure: &Failure, call_id: Option<CallId>, reader: Reader) -> Option<CallAnswer> {
    let may_pay = reader.is_forwarded && reader.is_of_call;
    let body = failure.body.as_ref().filter(|_| may_pay)?;
    if payment::is_demand(body) {
        let error = serde_json::from_slice(body).ok()?;
        return Some(refused(error, Some(Slug::ToolRejected)));
    }
    if !payment::is_result_demand(body) || !is_portable(body) {
        return None;
    }
    let call_id = call_id
        .map(|call_id| call_id.to_string())
        .unwrap_or_default();
    let mut about = server_info();
    about.insert(mcp::CALL_ID.into(), call_id.clone().into());
    Some(CallAnswer {
        result: Ok(forwarded::result(body, &[], about, &call_id, reader.era)?),
        shared: body.len(),
        problem: Some(Slug::ToolRejected),
    })
}

/// The result of an MCP server. `None`: when the result was stored, the tool was not a server's.
fn forwarded(stored: &Stored, era: Era) -> Option<CallAnswer> {
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
        return is_tool_result(&stored.json).then(|| as_text(stored, &notes, era, is_error));
    }
    Some(CallAnswer {
        result: Ok(forwarded::result(
            &stored.json,
            &notes,
            about(stored),
            &call_id,
            era,
        )?),
        shared: stored.json.len(),
        problem: None,
    })
}

/// The result of a tool over HTTP.
///
/// The tool's JSON is sent twice, as text and as structured content, but is in memory once.
fn result(stored: &Stored, era: Era) -> CallAnswer {
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
    ended(stored, result, shared, false)
}

/// A stored result as a text only, because not every client could read it as a part of the message.
fn as_text(stored: &Stored, notes: &[String], era: Era, is_error: bool) -> CallAnswer {
    let (result, shared) = begun(stored, notes, era);
    ended(stored, result, shared, is_error)
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

fn ended(stored: &Stored, mut result: Written<'_>, shared: u64, is_error: bool) -> CallAnswer {
    result.text("isError", is_error.to_string());
    result.text("_meta", Value::Object(about(stored)).to_string());
    CallAnswer {
        result: Ok(result.end()),
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
            || matches!(
                record.intent.key_source,
                Source::Derived | Source::Elicitation
            ))
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
        // Who has waited for the approval gets the result of its own call.
        let what = match &record.proposal {
            Some(_) => "Result of this call, which was approved and executed once".to_owned(),
            None => format!("Stored result of an identical call {seconds} s ago"),
        };
        notes.push(format!("{what}; nothing was executed again.{meant}"));
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
fn failed(mut problem: Problem, reader: Reader<'_>) -> CallAnswer {
    // Programs that read `_meta` are told the same as the model.
    problem.detail = text(&problem, reader.now, reader.asks_by);
    if let (Slug::ApprovalRequired, Some(pages), Some(call_id)) =
        (problem.slug, reader.pages, problem.call_id)
    {
        let page = format!(" The user decides at {pages}/{call_id}, or with `oncegate approvals`.");
        problem.detail += &page;
    }
    let text = match &problem.tool_body {
        // The tool's own answer says why it rejected the call.
        Some(body) => format!("{}\n\n{}", problem.detail, body.get()),
        None => problem.detail.clone(),
    };
    let content = json!([{ "type": "text", "text": text }]);
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
    let mut result = Written::result(&nothing, reader.era);
    result.text("content", content.to_string());
    result.text("isError", "true".into());
    result.object("_meta", meta);
    CallAnswer {
        result: Ok(result.end()),
        shared: 0,
        problem: Some(problem.slug),
    }
}

fn refused(error: RpcError, problem: Option<Slug>) -> CallAnswer {
    CallAnswer {
        result: Err(error),
        shared: 0,
        problem,
    }
}
