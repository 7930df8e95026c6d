//! Calls as tasks: a client gets an id, and asks for the call until it has ended.
//!
//! Source: the MCP extension `io.modelcontextprotocol/tasks` (SEP-2663). The id of a task is the id of its call.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::revision::CAPABILITIES;
use crate::record::{FailureKind, Record, State};
use crate::time::elapsed_ms;
use crate::unknown;

/// The name of the extension, in the abilities of clients and servers.
pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The tool that waits for a call, for clients that know no tasks.
pub const AWAIT_CALL: &str = "await_call";

/// The shortest and the longest time between two requests for a task.
const POLL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The part of a call's age after which to ask again.
const POLL_PART: u32 = 10;

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The call runs or waits for approval, or a check of its outcome is planned.
    Working,
    /// `tools/call` would answer now, if only with the text of an unknown outcome.
    Completed,
    /// The call was taken back before it was approved, or was not executed after a client had asked to cancel it.
    Cancelled,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Whether a client says in `_meta` that it knows tasks.
pub fn is_known_by(meta: &Map<String, Value>) -> bool {
    let extensions = meta.get(CAPABILITIES).map(|said| &said["extensions"]);
    extensions.is_some_and(|extensions| extensions[EXTENSION].is_object())
}

/// The status of a call as a task.
///
/// An unknown call is never cancelled or failed: its task works as long as a check is planned or its lease runs, and then
/// completes with the text of an unknown outcome. What is learned later replaces that text.
pub fn status(record: &Record, now: Timestamp) -> Status {
    match &record.state {
        _ if unknown::is_open(record, now) => Status::Working,
        State::Failed(failure) if failure.kind == FailureKind::Withdrawn || record.cancel_asked => {
            Status::Cancelled
        }
        _ => Status::Completed,
    }
}

/// After which time a client should ask again: the older the call, the later.
pub fn poll_interval(record: &Record, now: Timestamp) -> Duration {
    let age = Duration::from_millis(elapsed_ms(record.intent.created_at, now));
    (age / POLL_PART).clamp(POLL.0, POLL.1)
}

/// How long after its creation a task may be asked for, in milliseconds; `None`: no end is known yet.
pub fn ttl_ms(record: &Record, now: Timestamp) -> Option<u64> {
    let end = record.retain_until?;
    let is_settled = status(record, now) != Status::Working;
    is_settled.then(|| elapsed_ms(record.intent.created_at, end))
}

/// The parameters of `tasks/get`, `tasks/update` and `tasks/cancel`.
#[derive(Debug, Deserialize)]
pub struct Params {
    #[serde(rename = "taskId")]
    pub task_id: String,
}

#[cfg(test)]
mod tests;
