//! How a call is undone: by another call, whose arguments are taken from what is kept of the first.
//!
//! Must not know when a call is undone, nor in which order; that is `saga`'s.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::json;
use super::key::{self, Pointer};
use super::outcome::Content;
use super::record::{CallId, Record};
use super::redact;

/// How a tool's calls are undone.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Policy {
    /// Nobody has said. A person has to see to it.
    #[default]
    Undeclared,
    /// There is nothing to undo, an operator says.
    Needless,
    By(Template),
}

/// The call that undoes another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    pub tool: String,
    pub args: Vec<(String, Part)>,
    /// Whether a call is undone of which nobody knows whether it was executed. Only for a compensation that
    /// does no harm where there is nothing to undo.
    pub undoes_unknown: bool,
}

/// Where a part of its arguments comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Into `{"args": …, "result": …, "call": …}`.
    Taken(Pointer),
    Given(Value),
    Members(Vec<(String, Part)>),
    Items(Vec<Part>),
}

/// The roots that a pointer may begin with.
const ROOTS: [&str; 3] = ["/args", "/result", "/call"];

impl Part {
    /// Reads what an operator wrote: a text that begins with a slash is a pointer, anything else is meant as
    /// it stands.
    ///
    /// # Errors
    /// A pointer that points to nothing that there could be.
    pub fn read(value: Value) -> Result<Self, String> {
        Ok(match value {
            Value::String(text) if text.starts_with('/') => {
                let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
                if !ROOTS
                    .iter()
                    .any(|root| text.strip_prefix(root).is_some_and(is_below))
                {
                    return Err(format!("{text:?} begins with none of {}", ROOTS.join(", ")));
                }
                Self::Taken(text.parse()?)
            }
            Value::Object(members) => Self::Members(read_members(members)?),
            Value::Array(items) => Self::Items(
                items
                    .into_iter()
                    .map(Self::read)
                    .collect::<Result<_, _>>()?,
            ),
            plain => Self::Given(plain),
        })
    }

    fn make(&self, from: &Value) -> Result<Value, String> {
        Ok(match self {
            Self::Given(value) => value.clone(),
            Self::Items(items) => items
                .iter()
                .map(|item| item.make(from))
                .collect::<Result<_, _>>()?,
            Self::Members(members) => Value::Object(make_members(members, from)?),
            Self::Taken(pointer) => {
                let found = from.pointer(pointer.as_str());
                let found =
                    found.ok_or_else(|| format!("there is nothing at {}", pointer.as_str()))?;
                if holds_mask(found) {
                    return Err(format!("what stood at {} is not kept", pointer.as_str()));
                }
                found.clone()
            }
        })
    }
}

/// Reads the arguments of a compensation.
///
/// # Errors
/// Which pointer is none.
pub fn read_members(members: Map<String, Value>) -> Result<Vec<(String, Part)>, String> {
    members
        .into_iter()
        .map(|(name, value)| Ok((name, Part::read(value)?)))
        .collect()
}

fn make_members(members: &[(String, Part)], from: &Value) -> Result<Map<String, Value>, String> {
    members
        .iter()
        .map(|(name, part)| Ok((name.clone(), part.make(from)?)))
        .collect()
}

fn holds_mask(value: &Value) -> bool {
    match value {
        Value::String(text) => text == redact::MASK,
        Value::Array(items) => items.iter().any(holds_mask),
        Value::Object(members) => members.values().any(holds_mask),
        _ => false,
    }
}

impl Template {
    /// The arguments of the call that undoes this one, as one JSON object.
    ///
    /// # Errors
    /// What cannot be found: then nothing must be sent.
    pub fn args(&self, record: &Record) -> Result<Value, String> {
        let result = match record.state.content() {
            Some(Content::Kept(json)) => read(json),
            Some(Content::Unavailable(_)) | None => None,
        };
        self.args_from(record, result.as_ref())
    }

    /// The same, with another result than the one that is kept.
    ///
    /// # Errors
    /// As [`args`](Self::args).
    pub fn args_from(&self, record: &Record, result: Option<&Value>) -> Result<Value, String> {
        let mut from = Map::new();
        from.insert("call".into(), about(record));
        if let Some(args) = read(&record.intent.args) {
            from.insert("args".into(), args);
        }
        if let Some(result) = result {
            from.insert("result".into(), result.clone());
        }
        Ok(Value::Object(make_members(
            &self.args,
            &Value::Object(from),
        )?))
    }

    /// The same for an effect of which no call is known: there is only what a system says of it.
    ///
    /// # Errors
    /// As [`args`](Self::args).
    pub fn args_of_effect(&self, effect: &Value) -> Result<Value, String> {
        Ok(Value::Object(make_members(
            &self.args,
            &json!({ "result": effect }),
        )?))
    }
}

/// What a compensation may say of the call that it undoes.
fn about(record: &Record) -> Value {
    let intent = &record.intent;
    json!({
        "call_id": intent.call_id.to_string(),
        "tool": intent.tool,
        "key": intent.key,
        "tool_key": intent.lookup.for_tool(),
        "user_id": intent.user_id,
        "session_id": intent.session_id,
        "saga_id": intent.saga_id,
        "trace_id": intent.trace_id,
        "fencing": record.fencing,
    })
}

fn read(json: &Bytes) -> Option<Value> {
    json::parse(str::from_utf8(json).ok()?).ok()
}

/// The key of the call that undoes this one.
pub fn key_of(call_id: CallId) -> String {
    format!("{}{call_id}", key::COMPENSATION)
}

/// The call that a call with this key undoes; `None`: it undoes no call of ours.
pub fn undone_by(key: &str) -> Option<CallId> {
    key.strip_prefix(key::COMPENSATION)?
        .parse()
        .ok()
        .map(CallId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::call::tests::succeeded;

    fn template(args: Value) -> Result<Template, String> {
        let Value::Object(args) = args else {
            return Err("no object".into());
        };
        Ok(Template {
            tool: "cancel".into(),
            args: read_members(args)?,
            undoes_unknown: false,
        })
    }

    #[test]
    fn arguments_come_from_what_is_kept_of_the_call() {
        let call = succeeded("{\"order_id\":7,\"lines\":[{\"id\":\"a\"}]}");
        let args = template(json!({
            "order": "/result/order_id",
            "lines": [{ "id": "/result/lines/0/id", "why": "undone" }],
            "call": "/call/call_id",
            "force": true,
        }));
        let made = args.expect("a template").args(&call).expect("arguments");
        let expected = json!({
            "order": 7,
            "lines": [{ "id": "a", "why": "undone" }],
            "call": call.intent.call_id.to_string(),
            "force": true,
        });
        assert_eq!(made, expected);
    }

    #[test]
    fn what_is_not_there_or_not_kept_is_never_sent() {
        let mut call = succeeded("{\"order_id\":7}");
        let missing = template(json!({ "order": "/result/id" })).expect("a template");
        assert_eq!(
            missing.args(&call),
            Err("there is nothing at /result/id".into())
        );
        std::sync::Arc::make_mut(&mut call.intent).args =
            format!("{{\"card\":{{\"no\":\"{}\"}}}}", redact::MASK).into();
        let masked = template(json!({ "card": "/args/card" })).expect("a template");
        assert_eq!(
            masked.args(&call),
            Err("what stood at /args/card is not kept".into())
        );
    }

    #[test]
    fn a_pointer_begins_with_what_there_is() {
        for text in ["/resultx", "/", "/arg/x", "/result/~2"] {
            assert!(Part::read(json!(text)).is_err(), "{text:?}");
        }
        for text in ["/result", "/args/a/b", "/call/key", "plain text"] {
            assert!(Part::read(json!(text)).is_ok(), "{text:?}");
        }
    }
}
