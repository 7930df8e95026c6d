//! Requests, answers and effects as a history that `crates/judge` judges.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use crate::{Answer, Effect, Fallible, Gateway, Reply};

/// The time of this machine, on which all parts run, in nanoseconds.
pub(crate) fn now() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_nanos()
}

/// One operation of the history, which has a process of its own.
pub(crate) struct Operation {
    f: &'static str,
    process: String,
    intent: u32,
    pub(crate) begun: u128,
}

impl Operation {
    pub(crate) fn new(f: &'static str, intent: u32, begun: u128) -> Self {
        let process = format!("{f}-{}", Uuid::new_v4());
        Self {
            f,
            process,
            intent,
            begun,
        }
    }

    /// Writes down both ends, in one step. `info`: nobody knows.
    pub(crate) fn ends(&self, history: &Path, how: &str, value: Option<&str>) -> io::Result<()> {
        let event = |time: u128, kind: &str, value: Option<&str>| {
            let key = format!("call/{}", self.intent);
            // The time as it is: it is longer than a number of JSON values.
            let rest = json!({"process": self.process, "type": kind, "f": self.f, "key": key, "value": value});
            format!("{{\"time\":{time},{}\n", &rest.to_string()[1..])
        };
        let both = event(self.begun, "invoke", None) + &event(now(), how, value);
        let mut file = OpenOptions::new().create(true).append(true).open(history)?;
        file.write_all(both.as_bytes())
    }
}

impl Gateway {
    /// Asks once, and records what came of it.
    pub(crate) async fn ask(
        &self,
        client: &reqwest::Client,
        intent: u32,
        patience: Duration,
    ) -> Fallible<(Option<Answer>, Option<Reply>)> {
        let ask = Operation::new("ask", intent, now());
        let Ok(Ok(reply)) = timeout(patience, self.call(client, intent)).await else {
            ask.ends(&self.history, "info", None)?;
            return Ok((None, None));
        };
        let answer = reply.definite()?;
        match &answer {
            Some(Answer::Success(result)) => {
                let effect = serde_json::from_str::<Effect>(result)?.effect.to_string();
                ask.ends(&self.history, "ok", Some(&effect))?;
            }
            Some(Answer::ResultLost) => ask.ends(&self.history, "ok", None)?,
            Some(Answer::Unknown) => {
                ask.ends(&self.history, "info", None)?;
                Operation::new("unsure", intent, ask.begun).ends(&self.history, "ok", None)?;
            }
            None => ask.ends(&self.history, "info", None)?,
        }
        Ok((answer, Some(reply)))
    }
}
