//! What a model is told of a call: its result, or in a result with `isError` why there is none.

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::parts::{Part, Parts};
use super::super::problem::{Effect, Problem, Slug};
use super::message::{self, RpcError};
use crate::budget::Elsewhere;
use crate::core::key::Source;
use crate::core::mcp::{self, revision::Era};
use crate::core::record::{Record, State};
use crate::gateway::{Answer, Error, Stored};

/// An answer to `tools/call`.
pub(super) struct Told {
    pub(super) body: Parts,
    /// Of its bytes, those that the gateway has made room for.
    shared: usize,
}

impl IntoResponse for Told {
    fn into_response(self) -> Response {
        let mut response = message::json(self.body);
        response.extensions_mut().insert(Elsewhere(self.shared));
        response
    }
}

/// What came of a call.
pub(super) fn told(id: &RawValue, answer: Result<Answer, Error>, era: Era) -> Told {
    match answer {
        Ok(Answer::Result(stored)) => result(id, &stored, era),
        // Only who asks for it is answered before the call has ended, and nothing here does.
        Ok(Answer::Accepted(record)) => {
            let call_id = record.intent.call_id;
            failed(
                id,
                json!({ "call_id": call_id.to_string() }),
                STILL_RUNNING,
                era,
            )
        }
        Err(error) => {
            let problem = Problem::from(error);
            match problem.slug() {
                Slug::UnknownTool => malformed(id, "there is no such tool"),
                Slug::InvalidRequest => malformed(id, problem.detail()),
                _ => {
                    let text = text(&problem);
                    let members = serde_json::to_value(problem.body()).unwrap_or_default();
                    failed(id, members, &text, era)
                }
            }
        }
    }
}

const STILL_RUNNING: &str = "Still running, not failed. The same call with exactly the same arguments gets its result and runs nothing twice.";

/// Why there is no result, in words for a model: what may have happened, and what to do next.
fn text(problem: &Problem) -> String {
    let seconds = problem
        .retry_after()
        .map(|time| time.as_secs() + u64::from(time.subsec_nanos() > 0));
    let again = match seconds {
        Some(seconds) => {
            format!(" Repeat the same call with exactly the same arguments after {seconds} s.")
        }
        None => String::new(),
    };
    match problem.slug() {
        Slug::CallInProgress => STILL_RUNNING.to_owned(),
        Slug::OutcomeUnknown => {
            let next = match (seconds, problem.call_id()) {
                (Some(seconds), _) => format!(" (next check in {seconds} s)."),
                (None, Some(call_id)) => format!(
                    ". No check is planned: tell the user that a person has to look into the tool's own system and settle call {call_id}."
                ),
                (None, None) => ".".to_owned(),
            };
            format!(
                "It may have happened: nothing proves whether the tool executed this call. Do NOT try with other arguments or another tool. Asking again with exactly the same arguments is safe, never executes it twice, and tells the outcome once it is known{next}"
            )
        }
        Slug::PossibleDuplicate if problem.effect() == Effect::None => format!(
            "{} A caller confirms that both are meant with _meta[{:?}].",
            problem.detail(),
            mcp::CONFIRM
        ),
        Slug::RateLimited | Slug::StoreUnavailable | Slug::ShuttingDown
            if problem.effect() == Effect::Unknown =>
        {
            format!(
                "{}: this request executed nothing. If it repeats an earlier call, that one may have been executed; do not change its arguments.{again}",
                problem.title()
            )
        }
        Slug::ToolUnreachable
        | Slug::ToolUnavailable
        | Slug::ToolPaused
        | Slug::BudgetExceeded
        | Slug::SessionBusy
        | Slug::RateLimited
        | Slug::StoreUnavailable => format!("Nothing was executed. {}.{again}", problem.title()),
        _ => problem.detail().to_owned(),
    }
}

/// A stored result. The tool's JSON is written twice, as text and as structured content, and kept once.
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
    let shared = escaped.len() + if is_structured { json.len() as u64 } else { 0 };
    let parts = [before, escaped].into_iter().chain(after).collect();
    Told {
        body: message::response(id, parts),
        shared: usize::try_from(shared).unwrap_or(usize::MAX),
    }
}

/// What a model should know of a result beside it.
fn notes(stored: &Stored) -> Vec<String> {
    let mut notes = Vec::new();
    let record = &stored.record;
    if let Some(age_ms) = stored.replayed_age_ms
        && record.intent.key_source == Source::Derived
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
    if let Some(age_ms) = stored.replayed_age_ms {
        about.insert(mcp::REPLAYED.into(), true.into());
        about.insert(mcp::AGE.into(), age_ms.into());
    }
    about
}

/// Who answers, as each result says it.
pub(super) fn server_info() -> Map<String, Value> {
    let info = json!({ "name": "oncegate", "version": env!("CARGO_PKG_VERSION") });
    Map::from_iter([("io.modelcontextprotocol/serverInfo".to_owned(), info)])
}

/// Since 2026-07-28 a result says that it is whole.
fn kind(era: Era) -> &'static str {
    match era {
        Era::Modern => "\"resultType\":\"complete\",",
        Era::Legacy => "",
    }
}

/// A result that says why there is none.
fn failed(id: &RawValue, problem: Value, text: &str, era: Era) -> Told {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Failed<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        result_type: Option<&'a str>,
        content: Vec<Value>,
        is_error: bool,
        #[serde(rename = "_meta")]
        meta: Map<String, Value>,
    }
    let mut meta = server_info();
    if let Some(call_id) = problem.get("call_id").filter(|id| id.is_string()) {
        meta.insert(mcp::CALL_ID.into(), call_id.clone());
    }
    let mut content = vec![json!({ "type": "text", "text": text })];
    // A model has to read why the tool rejected the call.
    if let Some(body) = problem.get("tool_body") {
        content.push(json!({ "type": "text", "text": body.to_string() }));
    }
    meta.insert(mcp::PROBLEM.into(), problem);
    let failed = Failed {
        result_type: (era == Era::Modern).then_some("complete"),
        content,
        is_error: true,
        meta,
    };
    let result = plain(serde_json::to_string(&failed).unwrap_or_default());
    Told {
        body: message::response(id, vec![result]),
        shared: 0,
    }
}

/// A call that there cannot be. It travels with status 200, for the request itself could be read.
fn malformed(id: &RawValue, why: &str) -> Told {
    Told {
        body: Parts::of([plain(RpcError::params(why).text(Some(id)))]),
        shared: 0,
    }
}

fn plain(text: String) -> Part {
    Part::Plain(text.into())
}
