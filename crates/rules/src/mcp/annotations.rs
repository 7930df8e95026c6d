//! What a server says of its tools' effects.
//!
//! Source: the Model Context Protocol, `ToolAnnotations`: "readOnlyHint", "destructiveHint". Only the operator decides
//! whether the server is believed.

use serde_json::Value;

use crate::tool::Effect;

/// The effect of a tool with these annotations; `None`: they do not say.
///
/// Only `true` says something. A tool that reads and destroys contradicts itself, and counts as a write.
pub fn effect(annotations: &Value) -> Option<Effect> {
    let says = |hint: &str| annotations.get(hint) == Some(&Value::Bool(true));
    match (says("readOnlyHint"), says("destructiveHint")) {
        (_, true) => Some(Effect::Write),
        (true, false) => Some(Effect::Read),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_plain_true_says_something() {
        for (annotations, said) in [
            (json!({ "readOnlyHint": true }), Some(Effect::Read)),
            (
                json!({ "readOnlyHint": true, "destructiveHint": false }),
                Some(Effect::Read),
            ),
            (json!({ "destructiveHint": true }), Some(Effect::Write)),
            (
                json!({ "readOnlyHint": true, "destructiveHint": true }),
                Some(Effect::Write),
            ),
            (
                json!({ "readOnlyHint": false, "idempotentHint": true }),
                None,
            ),
            (
                json!({ "readOnlyHint": "true", "destructiveHint": 1 }),
                None,
            ),
            (json!({}), None),
            (json!(["readOnlyHint"]), None),
            (json!("readOnlyHint"), None),
            (Value::Null, None),
        ] {
            assert_eq!(effect(&annotations), said, "{annotations}");
        }
    }
}
