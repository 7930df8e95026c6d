//! What agents and the tool have seen, as Jepsen writes it, for a judge that others wrote (`crates/judge`).

use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::checks::WITHOUT_EFFECT;
use super::scenario::{args_of, fresh_key, lookup_of, name_of};
use super::sessions::ONE_MORE;
use super::world::{Heard, World};
use crate::support::tool::Seen;

/// An operation, from its begin to its end.
struct Operation {
    begun: Instant,
    ended: Option<Instant>,
    f: &'static str,
    kind: &'static str,
    key: String,
    value: Value,
}

impl World {
    /// Sends the history of this world to where `HISTORIES` says, if it does.
    pub(super) fn note_history(&self) {
        static PLACE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
        let place = PLACE.get_or_init(|| {
            let path = std::env::var_os("HISTORIES")?;
            let file = File::options().append(true).open(path).expect("a file");
            Some(Mutex::new(file))
        });
        let Some(file) = place else { return };
        let lines = lines_of(&self.operations());
        if !lines.is_empty() {
            let mut file = file.lock().expect("not poisoned");
            writeln!(file, "{}\n", lines.join("\n")).expect("it is written");
        }
    }

    /// What happened to the calls of which the store has lost nothing.
    fn operations(&self) -> Vec<Operation> {
        let seen = self.tool.seen();
        let heard = self.heard.lock().expect("not poisoned").clone();
        let mut all = Vec::new();
        for key in (0..fresh_key(0, ONE_MORE)).filter(|key| !self.has_lost(lookup_of(*key))) {
            let lookup = lookup_of(key);
            let is_of_key = |seen: &Seen| seen.header("idempotency-key") == lookup.for_tool();
            let at_tool: Vec<_> = seen
                .iter()
                .enumerate()
                .filter(|(_, seen)| is_of_key(seen))
                .collect();
            for (index, effect) in at_tool.iter().filter(|(_, seen)| seen.executed) {
                let Some(begun) = effect.at else { continue };
                all.push(Operation {
                    begun,
                    ended: effect.until,
                    f: "effect",
                    kind: "ok",
                    key: name_of(key),
                    value: result_of(*index).into(),
                });
            }
            let heard = heard.iter().filter(|heard| heard.ask.key == key);
            // Who asks with other arguments is told nothing of the call.
            let heard = heard.filter(|heard| {
                let mut sent = at_tool.iter();
                sent.all(|(_, seen)| seen.body == args_of(&heard.ask))
            });
            all.extend(heard.flat_map(|heard| self.asked(heard)));
        }
        all
    }

    /// A request and what was heard; one that was told nothing is left open.
    fn asked(&self, heard: &Heard) -> Option<Operation> {
        let answer = heard.answer.as_ref()?;
        let problem = answer.problem();
        let (f, kind, value) = match problem.as_str() {
            "" if answer.status == 200 => ("ask", "ok", answer.result().into()),
            "result-unavailable" => ("ask", "ok", Value::Null),
            "outcome-unknown" if !answer.text.contains("does not take the outcome") => {
                ("unsure", "ok", Value::Null)
            }
            refused
                if WITHOUT_EFFECT.contains(&refused)
                    || self.bounds.refusals().contains(&refused) =>
            {
                ("ask", "fail", Value::Null)
            }
            _ => return None,
        };
        Some(Operation {
            begun: heard.asked_at,
            ended: Some(heard.heard_at),
            f,
            kind,
            key: name_of(heard.ask.key),
            value,
        })
    }
}

/// What the tool answers, which tells an effect from all others.
fn result_of(index: usize) -> String {
    format!("{{ \"effect\": {index}.0 }}")
}

/// Two events for each operation, in the order of time. What begins when something else ends is beside it.
fn lines_of(operations: &[Operation]) -> Vec<String> {
    let Some(first) = operations.iter().map(|operation| operation.begun).min() else {
        return Vec::new();
    };
    let mut events = Vec::new();
    for (process, operation) in operations.iter().enumerate() {
        let mut add = |at: Instant, kind: &str, value: &Value| {
            let at = at.duration_since(first).as_nanos();
            let event = json!({
                "process": process.to_string(),
                "type": kind,
                "f": operation.f,
                "key": format!("call/{}", operation.key),
                "value": value,
            });
            events.push(((at, kind != "invoke"), event));
        };
        add(operation.begun, "invoke", &Value::Null);
        if let Some(ended) = operation.ended {
            add(ended, operation.kind, &operation.value);
        }
    }
    events.sort_by_key(|(at, _)| *at);
    let lines = events
        .into_iter()
        .enumerate()
        .map(|(place, (_, mut event))| {
            event["time"] = place.into();
            event.to_string()
        });
    lines.collect()
}
