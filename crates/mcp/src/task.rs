//! A call, as a task in an answer.

use axum::body::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::forwarded::Written;
use oncegate_http::parts::Part;
use oncegate_rules::mcp;
use oncegate_rules::mcp::tasks::{self, Status};
use oncegate_rules::record::{Record, State};

/// The status of a task whose server waits for answers.
const INPUT_REQUIRED: &str = "input_required";

/// The result of `tools/call` for a call that has become a task.
pub(super) fn created(record: &Record, now: Timestamp, meta: Map<String, Value>) -> Vec<Part> {
    let nothing = Bytes::new();
    let mut task = Written::new(&nothing);
    task.text("resultType", r#""task""#.into());
    write(&mut task, record, now, meta, None);
    task.end()
}

/// Writes the members that every task has.
///
/// `meta`: members of its `_meta`, besides those about the call. `questions`: what the server of the call asks, as JSON.
pub(super) fn write(
    task: &mut Written<'_>,
    record: &Record,
    now: Timestamp,
    mut meta: Map<String, Value>,
    questions: Option<String>,
) {
    let call_id = record.intent.call_id.to_string();
    let status = tasks::status(record, now);
    task.text("taskId", json!(call_id).to_string());
    let word = match questions {
        Some(_) => INPUT_REQUIRED,
        None => status.as_str(),
    };
    task.text("status", json!(word).to_string());
    if let Some(questions) = questions {
        task.text("inputRequests", questions);
    }
    let about = match (status, &record.state) {
        (Status::Working, State::Unknown(_)) => Some(
            "It may have happened: the tool was asked and did not answer. The outcome is being checked. Do not make this call in another way.",
        ),
        (Status::Working, State::Proposed) => Some(
            "Nothing was executed yet: an approver has to approve exactly this call, and does so elsewhere. Tell the user. Do not make this call in another way.",
        ),
        (Status::Working, State::Approved) => Some(
            "The call was approved. It was not sent yet, and will be without a further request.",
        ),
        _ => None,
    };
    if let Some(about) = about {
        task.text("statusMessage", json!(about).to_string());
    }
    task.text(
        "createdAt",
        json!(record.intent.created_at.to_string()).to_string(),
    );
    task.text(
        "lastUpdatedAt",
        json!(record.updated_at.to_string()).to_string(),
    );
    task.text("ttlMs", json!(tasks::ttl_ms(record, now)).to_string());
    let poll = tasks::poll_interval(record, now).as_millis();
    task.text("pollIntervalMs", poll.to_string());
    meta.insert(mcp::CALL_ID.into(), call_id.into());
    meta.insert(mcp::KEY.into(), record.intent.key.clone().into());
    task.text("_meta", json!(meta).to_string());
}
