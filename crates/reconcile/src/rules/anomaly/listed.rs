//! An anomaly in a report: its kind, the act for it, and the operator who asked for that.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::rules::{Anomaly, Kind, beginning, moment};
use oncegate_rules::audit::Action;
use oncegate_rules::key::{Lookup, Pointer};
use oncegate_rules::record::CallId;
use oncegate_rules::redact;
use oncegate_rules::words::words;
use oncegate_rules::work::{Due, Work};

/// Most values of an item that a report shows.
pub const MAX_SHOWN: usize = 8;
/// Most characters of one of them.
const MAX_TEXT: usize = 200;

words! {
    /// The act for one anomaly, or the configured one for all of a kind.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Act {
        /// Show, count and log it.
        Report = "report",
        /// Undo the call, or the surplus effect.
        Compensate = "compensate",
        /// Tell the webhook.
        Webhook = "webhook",
        /// Settle the unknown call. No configuration asks for it.
        Settle = "settle",
        /// Write the effect back as a call that the ledger has forgotten.
        Adopt = "adopt",
    }
}

words! {
    /// The state of a case.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum State {
        /// No act is due.
        Reported = "reported",
        /// An act is due.
        Open = "open",
        Done = "done",
        GivenUp = "given_up",
        /// An operator has decided against every act.
        Ignored = "ignored",
    }
}

impl State {
    /// The states of an anomaly that is neither done nor ignored.
    pub const UNSETTLED: [Self; 3] = [Self::Reported, Self::Open, Self::GivenUp];

    fn first(act: Act) -> Self {
        match act {
            Act::Report => Self::Reported,
            Act::Compensate | Act::Webhook | Act::Settle | Act::Adopt => Self::Open,
        }
    }

    /// The work of a case that comes into this state now.
    pub(super) fn work(self, now: Timestamp) -> Work {
        let due = match self {
            Self::Open => Due::At(now),
            Self::Reported | Self::Done | Self::GivenUp | Self::Ignored => Due::Never,
        };
        Work {
            due,
            ..Work::due_at(now)
        }
    }
}

words! {
    /// What an operator asks for.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Request {
        /// Undo the call, or the surplus effect.
        Compensate = "compensate",
        /// Do nothing, ever.
        Ignore = "ignore",
        /// Write the effect back as a call that the ledger has forgotten.
        Adopt = "adopt",
    }
}

impl From<Request> for Action {
    fn from(request: Request) -> Self {
        match request {
            Request::Compensate => Self::Compensate,
            Request::Ignore => Self::Ignore,
            Request::Adopt => Self::Adopt,
        }
    }
}

/// An operator's act on an anomaly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acted {
    pub act: Request,
    /// The name of the token.
    pub by: String,
    pub reason: String,
    /// Microseconds since 1970.
    pub at: i64,
}

/// One anomaly in a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// The anomaly's name, the same in every run.
    pub id: String,
    pub kind: Kind,
    pub source: String,
    pub key: String,
    pub call_id: Option<String>,
    /// The id of the effect at the source, or of the call.
    pub effect: String,
    pub detail: String,
    pub action: Act,
    pub state: State,
    /// Why the act is not done yet.
    pub error: Option<String>,
    /// Whether no run had found it before.
    pub new: bool,
    /// Values of the item, by their pointers.
    #[serde(default)]
    pub shown: BTreeMap<String, Value>,
    /// When the effect was made, as its source says: microseconds since 1970.
    pub made_at: Option<i64>,
    /// The last act of an operator on it.
    pub acted: Option<Acted>,
    /// Why another effect of the key is the one to adopt.
    pub rival: Option<String>,
}

impl Listed {
    pub fn of(reconciliation: &str, anomaly: &Anomaly, action: Act) -> Self {
        Self {
            id: anomaly.name(reconciliation),
            kind: anomaly.kind,
            source: anomaly.source.clone(),
            key: anomaly.key.clone(),
            call_id: anomaly.call_id.map(|call_id| call_id.to_string()),
            effect: anomaly.id.clone(),
            detail: match &anomaly.rival {
                Some(rival) => format!("{}; {rival}", anomaly.detail),
                None => anomaly.detail.clone(),
            },
            action,
            state: State::first(action),
            error: None,
            new: false,
            shown: BTreeMap::new(),
            made_at: None,
            acted: None,
            rival: anomaly.rival.clone(),
        }
    }

    /// Adds the values of the item that are shown, and its time.
    #[must_use]
    pub fn showing(mut self, item: &Value, showing: &Showing) -> Self {
        let time = showing.time.as_ref();
        let time = time.and_then(|time| item.pointer(time.as_str()));
        self.made_at = time.and_then(moment).map(Timestamp::as_microsecond);
        self.shown = showing.values_of(item);
        self
    }

    /// The call of the anomaly.
    pub fn call(&self) -> Option<CallId> {
        self.call_id.as_ref()?.parse().ok().map(CallId)
    }
}

/// Checks that an effect can be adopted.
///
/// No call is known to have its key, the key is of the gateway's form, and no other effect is the one to adopt.
///
/// # Errors
/// Why not.
pub(super) fn adoptable(
    kind: Kind,
    call: Option<CallId>,
    key: &str,
    rival: Option<&String>,
) -> Result<(), String> {
    if let Some(call_id) = call {
        return Err(format!("call {call_id} has its key"));
    }
    if kind != Kind::Orphan {
        return Err(format!("it is a {kind}, and only an orphan has no call"));
    }
    if Lookup::of_tool_key(key).is_none() {
        return Err("its key is not one that this gateway gives to tools".into());
    }
    rival.map_or(Ok(()), |rival| Err(rival.clone()))
}

/// Which values of an item are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Showing {
    pub values: Vec<Pointer>,
    /// The pointer to the time of an effect.
    pub time: Option<Pointer>,
    /// Pointers to values that must not be shown.
    pub secret: Vec<Pointer>,
}

impl Showing {
    /// The first few values, shortened, with secrets masked.
    fn values_of(&self, item: &Value) -> BTreeMap<String, Value> {
        let mut item = item.clone();
        redact::mask_in(&mut item, &self.secret);
        let value = |pointer: &Pointer| {
            let value = item.pointer(pointer.as_str())?;
            // Below a masked value no pointer finds a value.
            Some((pointer.as_str().to_owned(), shortened(value)))
        };
        let values = self.values.iter().take(MAX_SHOWN);
        values.filter_map(value).collect()
    }
}

/// A value as it is; a long text, list or object as the beginning of its text.
fn shortened(value: &Value) -> Value {
    let text = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => return value.clone(),
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    beginning(&text, MAX_TEXT).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pointers(all: &[&str]) -> Vec<Pointer> {
        all.iter()
            .map(|one| one.parse().expect("a pointer"))
            .collect()
    }

    #[test]
    fn only_few_and_short_values_and_no_secrets_are_shown() {
        let item = json!({
            "amount": 999, "customer": { "name": "Ann", "card": "4111" }, "note": "x".repeat(300),
            "card": "4111", "lines": [1, 2],
        });
        let showing = Showing {
            values: pointers(&[
                "/amount",
                "/customer",
                "/customer/card",
                "/card",
                "/note",
                "/lines",
                "/nothing",
                "/card/number",
                "/lines/0",
            ]),
            secret: pointers(&["/customer/card", "/card"]),
            time: None,
        };
        let shown = json!(showing.values_of(&item));
        let expected = json!({
            "/amount": 999, "/customer": "{\"card\":\"[redacted]\",\"name\":\"Ann\"}", "/customer/card": "[redacted]",
            "/card": "[redacted]", "/note": format!("{}…", "x".repeat(200)), "/lines": "[1,2]",
        });
        assert_eq!(shown, expected, "the ninth is not shown");
    }

    #[test]
    fn times_are_read_as_sources_write_them() {
        let at = "2026-11-23T14:02:03Z".parse().ok();
        for (value, time) in [
            (json!("2026-11-23T14:02:03Z"), at),
            (json!("2026-11-23T15:02:03+01:00"), at),
            (json!(1_795_442_523), at),
            (json!(1_795_442_523_000_i64), at),
            (json!("yesterday"), None),
            (json!(1.5), None),
            (json!(i64::MAX), None),
            (json!(null), None),
        ] {
            assert_eq!(moment(&value), time, "{value}");
        }
    }

    #[test]
    fn a_text_is_shown_whole_up_to_its_bound() {
        let text = |length: usize| json!("ä".repeat(length));
        assert_eq!(shortened(&text(MAX_TEXT)), text(MAX_TEXT));
        let cut = json!(format!("{}…", "ä".repeat(MAX_TEXT)));
        assert_eq!(shortened(&text(MAX_TEXT + 1)), cut);
    }
}
