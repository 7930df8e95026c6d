//! The answer to a call for a model: its result, or why there is none.

use std::time::Duration;

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::parts::{Part, Parts};
use super::super::problem::{Body, Problem, Slug};
use super::message::{self, INVALID_PARAMS, RpcError};
use super::passed;
use super::text::text;
use crate::budget::Elsewhere;
use crate::core::key::Source;
use crate::core::mcp::evidence::is_error;
use crate::core::mcp::{self, revision::Era};
use crate::core::record::{Record, State};
use crate::gateway::{Answer, Error, ErrorKind, Stored};

/// The member of a result's `_meta` that names the server.
pub(super) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// How soon to ask again for a running call, if nothing better is known.
const RETRY_RUNNING: Duration = Duration::from_secs(1);

/// An answer to `tools/call`.
pub(super) struct Told {
    pub(super) body: Parts,
    /// How many of its bytes have memory reserved already.
    shared: usize,
    /// The problem, if there is no result.
    problem: Option<Slug>,
}

impl IntoResponse for Told {
    fn into_response(self) -> Response {
        let mut response = message::json(self.body);
        response.extensions_mut().insert(Elsewhere(self.shared));
        if let Some(problem) = self.problem {
            response.extensions_mut().insert(problem);
        }
        response
    }
}

/// The answer for this end of a call.
///
/// `is_passed`: the tool is one of an MCP server, whose results are passed on as they are.
pub(super) fn told(
    id: &RawValue,
    answer: Result<Answer, Error>,
    era: Era,
    now: Timestamp,
    is_passed: bool,
) -> Told {
    let error = match answer {
        Ok(Answer::Result(stored)) if is_passed && let Some(told) = passed(id, &stored, era) => {
            return told;
        }
        Ok(Answer::Result(stored)) => return result(id, &stored, era),
        // Only a request that asks for it is answered before its call has ended, and none here does.
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
        return refused(id, &problem);
    }
    if problem.slug() == Slug::UnknownTool {
        return no_such_tool(id);
    }
    failed(id, &problem, era, now)
}

/// The result of an MCP server; `None`: the tool was of another kind when it was stored.
fn passed(id: &RawValue, stored: &Stored, era: Era) -> Option<Told> {
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
    Some(Told {
        body: passed::response(id, &stored.json, &notes, about(stored), &call_id, era)?,
        shared: stored.json.len(),
        problem: None,
    })
}

/// A stored result.
///
/// The tool's JSON is written twice, as text and as structured content, and kept once.
fn result(id: &RawValue, stored: &Stored, era: Era) -> Told {
    let json = &stored.json;
    let is_object = json.trim_ascii_start().starts_with(b"{");
    // Before 2026-07-28 structured content is an object.
    let is_structured = era == Era::Modern || is_object;
    let mut after = vec![Part::Plain(Bytes::from_static(b"\"}"))];
    for note in notes(stored) {
        let block = json!({ "type": "text", "text": note });
        after.push(plain(format!(",{block}")));
    }
    after.push(Part::Plain(Bytes::from_static(b"]")));
    if is_structured {
        after.push(Part::Plain(Bytes::from_static(b",\"structuredContent\":")));
        after.push(Part::Plain(json.clone()));
    }
    let about = serde_json::to_string(&about(stored)).unwrap_or_default();
    after.push(plain(format!(",\"isError\":false,\"_meta\":{about}}}")));
    let before = plain(format!(
        "{{{}\"content\":[{{\"type\":\"text\",\"text\":\"",
        kind(era)
    ));
    let escaped = Part::Escaped(json.clone());
    let shared = escaped.shared() + if is_structured { json.len() as u64 } else { 0 };
    let parts = [before, escaped].into_iter().chain(after).collect();
    Told {
        body: message::response(id, parts),
        shared: usize::try_from(shared).unwrap_or(usize::MAX),
        problem: None,
    }
}

/// Notes for a model beside a result.
fn notes(stored: &Stored) -> Vec<String> {
    let mut notes = Vec::new();
    let record = &stored.record;
    if let Some(age_ms) = stored.replayed_age_ms
        && matches!(record.intent.key_source, Source::Derived | Source::Round)
    {
        let seconds = age_ms.div_ceil(1_000);
        notes.push(format!(
            "Stored result of an identical call {seconds} s ago; nothing was executed again."
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

/// `_meta` of a result.
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

/// The server's name and version, as in each result.
pub(super) fn server_info() -> Map<String, Value> {
    let info = json!({ "name": "oncegate", "version": env!("CARGO_PKG_VERSION") });
    Map::from_iter([(SERVER_INFO.to_owned(), info)])
}

/// The type of a result, which is complete. Since 2026-07-28.
fn kind(era: Era) -> &'static str {
    match era {
        Era::Modern => "\"resultType\":\"complete\",",
        Era::Legacy => "",
    }
}

/// A result with `isError` that says why there is none.
fn failed(id: &RawValue, problem: &Problem, era: Era, now: Timestamp) -> Told {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Failed<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        result_type: Option<&'a str>,
        content: Vec<Value>,
        is_error: bool,
        #[serde(rename = "_meta")]
        meta: Meta<'a>,
    }
    #[derive(Serialize)]
    struct Meta<'a> {
        #[serde(flatten)]
        server_info: Map<String, Value>,
        #[serde(rename = "dev.oncegate/call-id")]
        #[serde(skip_serializing_if = "Option::is_none")]
        call_id: Option<&'a str>,
        #[serde(rename = "dev.oncegate/problem")]
        problem: Body<'a>,
    }
    let mut content = vec![json!({ "type": "text", "text": text(problem, now) })];
    // A model has to read why the tool rejected the call.
    if let Some(body) = problem.tool_body() {
        content.push(json!({ "type": "text", "text": body.get() }));
    }
    let failed = Failed {
        result_type: (era == Era::Modern).then_some("complete"),
        content,
        is_error: true,
        meta: Meta {
            server_info: server_info(),
            call_id: problem.call_id(),
            problem: problem.body(),
        },
    };
    let result = plain(serde_json::to_string(&failed).unwrap_or_default());
    Told {
        body: message::response(id, vec![result]),
        shared: 0,
        problem: Some(problem.slug()),
    }
}

/// The error for a state that the gateway did not give. Nothing was run.
fn refused(id: &RawValue, problem: &Problem) -> Told {
    let why = format!("Invalid params: {}", problem.detail());
    let error = RpcError::new(INVALID_PARAMS, why);
    Told {
        body: Parts::of([plain(error.text(Some(id)))]),
        shared: 0,
        problem: Some(problem.slug()),
    }
}

/// The error for a call of an unknown tool. Its status is 200: the request could be read.
fn no_such_tool(id: &RawValue) -> Told {
    let error = RpcError::params("there is no such tool");
    Told {
        body: Parts::of([plain(error.text(Some(id)))]),
        shared: 0,
        problem: None,
    }
}

fn plain(text: String) -> Part {
    Part::Plain(text.into())
}
