//! Tasks of MCP servers: the one in an answer, and what a server says of it later.
//!
//! Source: the MCP extension `io.modelcontextprotocol/tasks` (SEP-2663). A task is followed by its id, also after a restart.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::evidence::{Reply, reply};
use super::members::object;
use crate::evidence::{Body, McpAnswer};

/// The longest id of a task that is stored, in bytes.
const MAX_ID: usize = 512;
/// The longest questions that are forwarded, in bytes.
const MAX_ASKS: usize = 256 << 10;
/// The shortest and the longest time between two requests for a task.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// The time between two requests, if the server does not say it.
const USUAL_POLL: Duration = Duration::from_secs(1);

/// A task that a server has given for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub id: String,
    /// After which time to ask for it.
    pub poll: Duration,
}

/// What a server says of its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    Runs {
        /// After which time to ask again.
        poll: Duration,
        /// Its questions to the client, as JSON: it waits for their answers.
        asks: Option<String>,
    },
    /// It has ended, with what the server would have answered at once.
    Ended(McpAnswer),
    /// It was cancelled, or the server does not know it: nothing more becomes known of it.
    Gone(&'static str),
    /// The answer is not clear.
    Unclear(String),
}

impl Seen {
    /// A sentence for an engineer.
    pub fn explanation(&self) -> String {
        match self {
            Self::Runs { .. } => "the server still works on its task".to_owned(),
            Self::Ended(_) => "the server's task has ended".to_owned(),
            Self::Gone(why) => (*why).to_owned(),
            Self::Unclear(why) => format!("the server did not say how far its task is: {why}"),
        }
    }
}

/// The members of a task that are read.
#[derive(Deserialize)]
struct Task<'a> {
    #[serde(rename = "resultType", borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(rename = "taskId", borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(rename = "pollIntervalMs")]
    poll: Option<f64>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(rename = "inputRequests", borrow)]
    questions: Option<&'a RawValue>,
}

impl Task<'_> {
    fn poll(&self) -> Duration {
        let asked = self.poll.filter(|ms| *ms >= 0.0);
        let asked = asked.map(|ms| Duration::from_secs_f64((ms / 1_000.0).min(3_600.0)));
        asked.unwrap_or(USUAL_POLL).clamp(POLL.0, POLL.1)
    }
}

/// The task that an answer gives; `None`: it gives none that can be asked for.
pub fn given(answer: &McpAnswer) -> Option<Given> {
    if !answer.names_request || !(200..300).contains(&answer.status) {
        return None;
    }
    let Ok(Reply::Result(result)) = reply(answer) else {
        return None;
    };
    let task: Task<'_> = object(&result)?;
    let is_usable = !task.id.is_empty()
        && task.id.len() <= MAX_ID
        && !task.id.contains(char::is_control)
        && task.kind.as_deref() == Some("task");
    is_usable.then(|| Given {
        poll: task.poll(),
        id: task.id.into_owned(),
    })
}

/// What the answer to `tasks/get` says of the task with this id.
///
/// An error that names the request and blames its parameters says that there is no such task. Any other error says nothing.
pub fn seen(answer: &McpAnswer, id: &str) -> Seen {
    let unclear = |why: &str| Seen::Unclear(why.to_owned());
    if !answer.names_request {
        return unclear("the server did not answer the question for its task");
    }
    let result = match reply(answer) {
        Err(why) => return Seen::Unclear(why),
        Ok(Reply::Error(error)) => {
            let code = object::<RpcError>(&error).map(|error| error.code);
            return match code {
                Some(INVALID_PARAMS) => Seen::Gone("the server does not know its task"),
                _ => unclear("the server answered the question for its task with an error"),
            };
        }
        Ok(Reply::Result(result)) => result,
    };
    let Some(task) = object::<Task<'_>>(&result) else {
        return unclear("the server answered without a task");
    };
    if task.id != id {
        return unclear("the server answered with another task");
    }
    let ended = |name: &str, value: Option<&RawValue>| match value {
        Some(value) => {
            let message = format!(r#"{{"jsonrpc":"2.0","id":"","{name}":{}}}"#, value.get());
            Seen::Ended(McpAnswer {
                body: Body::Whole(message.into()),
                ..answer.clone()
            })
        }
        None => Seen::Unclear(format!("the server's task has ended without its {name}")),
    };
    match &*task.status {
        status @ ("working" | "input_required") => {
            let asks = task.questions.map(RawValue::get);
            let asks = asks.filter(|asks| status == "input_required" && asks.len() <= MAX_ASKS);
            Seen::Runs {
                poll: task.poll(),
                asks: asks.map(str::to_owned),
            }
        }
        "completed" => ended("result", task.result),
        "failed" => ended("error", task.error),
        "cancelled" => Seen::Gone("the server's task was cancelled"),
        _ => unclear("the server's task has an unknown status"),
    }
}

#[derive(Deserialize)]
struct RpcError {
    code: i64,
}

/// Invalid params.
const INVALID_PARAMS: i64 = -32_602;

#[cfg(test)]
mod tests;
