//! How a tool's calls are undone, as an operator declares it.

use serde_json::{Map, Value};

use crate::key::Pointer;
use crate::redact;

/// How a tool's calls are undone.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Policy {
    /// Nothing is declared: an operator has to undo the tool's calls.
    #[default]
    Undeclared,
    /// The operator says that the tool's calls need no undoing.
    Needless,
    /// A call by this template undoes a call of the tool.
    By(Template),
}

/// A template of the compensation.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    pub tool: String,
    pub args: Vec<(String, Part)>,
    /// Whether calls with an unknown outcome are undone, too.
    ///
    /// Only for a compensation that does no harm if the call was never executed.
    pub undoes_unknown: bool,
}

/// Where a part of the arguments comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// A pointer into `{"args": …, "result": …, "call": …}`.
    Taken(Pointer),
    Given(Value),
    Members(Vec<(String, Part)>),
    Items(Vec<Part>),
}

/// The roots that a pointer may begin with.
const ROOTS: [&str; 3] = ["/args", "/result", "/call"];

impl Part {
    /// Reads a part of the arguments.
    ///
    /// A text that begins with a slash is a pointer; any other value is taken as it is.
    ///
    /// # Errors
    /// The pointer begins with none of the roots.
    pub fn read(value: Value) -> Result<Self, String> {
        Ok(match value {
            Value::String(text) if text.starts_with('/') => {
                let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
                let mut rests = ROOTS.iter().filter_map(|root| text.strip_prefix(root));
                if !rests.any(is_below) {
                    return Err(format!("{text:?} begins with none of {}", ROOTS.join(", ")));
                }
                Self::Taken(text.parse()?)
            }
            Value::Object(members) => Self::Members(read_members(members)?),
            Value::Array(items) => {
                let items = items.into_iter().map(Self::read);
                Self::Items(items.collect::<Result<_, _>>()?)
            }
            plain => Self::Given(plain),
        })
    }

    /// The pointers in this part.
    pub fn pointers(&self) -> Vec<&Pointer> {
        match self {
            Self::Taken(pointer) => vec![pointer],
            Self::Given(_) => Vec::new(),
            Self::Members(members) => pointers(members),
            Self::Items(items) => items.iter().flat_map(Self::pointers).collect(),
        }
    }

    fn make(&self, from: &Value) -> Result<Value, String> {
        Ok(match self {
            Self::Given(value) => value.clone(),
            Self::Items(items) => {
                let items = items.iter().map(|item| item.make(from));
                items.collect::<Result<_, _>>()?
            }
            Self::Members(members) => Value::Object(make_members(members, from)?),
            Self::Taken(pointer) => {
                let place = pointer.as_str();
                match from.pointer(place) {
                    None => return Err(format!("there is nothing at {place}")),
                    Some(found) if redact::holds_mask(found) => {
                        return Err(format!("what stood at {place} is not stored"));
                    }
                    Some(found) => found.clone(),
                }
            }
        })
    }
}

/// Reads the arguments of a compensation.
///
/// # Errors
/// Which pointer is invalid.
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

fn pointers(members: &[(String, Part)]) -> Vec<&Pointer> {
    members
        .iter()
        .flat_map(|(_, part)| part.pointers())
        .collect()
}

impl Template {
    /// The pointers in the arguments.
    pub fn pointers(&self) -> Vec<&Pointer> {
        pointers(&self.args)
    }

    /// Whether an argument comes from the result of the call that is undone.
    pub fn takes_result(&self) -> bool {
        let result = Pointer::to(&["result"]);
        self.pointers().iter().any(|pointer| result.holds(pointer))
    }

    /// Whether an argument comes from the call itself, not from its result.
    pub fn takes_of_call(&self) -> bool {
        let result = Pointer::to(&["result"]);
        !self.pointers().iter().all(|pointer| result.holds(pointer))
    }

    /// The arguments of the compensation, as one JSON object.
    ///
    /// # Errors
    /// What cannot be found. Then nothing must be sent.
    pub(crate) fn make(&self, from: &Value) -> Result<Value, String> {
        Ok(Value::Object(make_members(&self.args, from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_come_from_the_call_or_from_its_result() {
        for (args, takes_result, takes_of_call) in [
            (json!({}), false, false),
            (json!({ "id": "/args/id", "of": "/result/id" }), true, true),
            (
                json!({ "of": { "all": [{ "of": "/result" }] } }),
                true,
                false,
            ),
            (json!({ "id": "/args/result", "of": "result" }), false, true),
            (json!({ "of": [{ "key": "/call/key" }] }), false, true),
        ] {
            let Value::Object(members) = &args else {
                panic!("no object: {args}");
            };
            let template = Template {
                tool: "undo".into(),
                args: read_members(members.clone()).expect("arguments"),
                undoes_unknown: false,
            };
            assert_eq!(template.takes_result(), takes_result, "{args}");
            assert_eq!(template.takes_of_call(), takes_of_call, "{args}");
        }
    }

    #[test]
    fn a_pointer_begins_with_a_known_root() {
        for text in ["/resultx", "/", "/arg/x", "/result/~2"] {
            assert!(Part::read(json!(text)).is_err(), "{text:?}");
        }
        for text in ["/result", "/args/a/b", "/call/key", "plain text"] {
            assert!(Part::read(json!(text)).is_ok(), "{text:?}");
        }
    }
}
