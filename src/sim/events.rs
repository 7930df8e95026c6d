//! What agents and tools have seen, as Jepsen writes it. `crates/judge` holds it against the promise.

use serde_json::{Value, json};

/// The history of calls, in the order in which it happened. Its times are places in that order.
#[derive(Default)]
pub(super) struct Events {
    events: Vec<(u64, String)>,
    begun: u64,
    /// Each process has it in its name, so that what is found can be repeated.
    seed: u64,
}

/// An operation that has begun. Without an end it stays open.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    at: u64,
    process: u64,
    f: &'static str,
    key: String,
}

impl Events {
    pub(super) fn of(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// An operation on the call with this key begins now.
    pub(super) fn begin(&mut self, f: &'static str, key: &str) -> Begun {
        let at = self.events.len() as u64;
        self.begin_at(at, f, key)
    }

    fn begin_at(&mut self, at: u64, f: &'static str, key: &str) -> Begun {
        self.begun += 1;
        let begun = Begun {
            at,
            process: self.begun,
            f,
            key: key.to_owned(),
        };
        self.add(at, &begun, "invoke", &Value::Null);
        begun
    }

    /// It was so (`ok`), or it surely was not (`fail`).
    pub(super) fn end(&mut self, begun: &Begun, kind: &str, value: &Value) {
        let at = self.events.len() as u64;
        self.add(at, begun, kind, value);
    }

    /// Something else was so, which began with this operation.
    pub(super) fn also(&mut self, with: &Begun, f: &'static str) {
        let begun = self.begin_at(with.at, f, &with.key);
        self.end(&begun, "ok", &Value::Null);
    }

    fn add(&mut self, at: u64, begun: &Begun, kind: &str, value: &Value) {
        let event = json!({
            "time": at,
            "process": format!("seed {}, {}", self.seed, begun.process),
            "type": kind,
            "f": begun.f,
            "key": format!("call/{}", begun.key),
            "value": value,
        });
        self.events.push((at, event.to_string()));
    }

    /// The lines of the history.
    pub(super) fn lines(&mut self) -> Vec<String> {
        let mut events = std::mem::take(&mut self.events);
        events.sort_by_key(|(at, _)| *at);
        events.into_iter().map(|(_, line)| line).collect()
    }
}
