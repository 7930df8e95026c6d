//! How a value of a source differs from that of the call.

use serde_json::Value;

/// A difference between two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Difference {
    /// Both are of one type, and say something else.
    Value,
    /// They are of different types, or one has a part that the other lacks: perhaps the same, written in another way.
    Spelling,
}

/// How a source's value differs from the call's; `None`: it does not.
pub(super) fn difference(of_call: &Value, of_item: Option<&Value>) -> Option<Difference> {
    let of_item = of_item.unwrap_or(&Value::Null);
    match (of_call, of_item) {
        (Value::Number(a), Value::Number(b)) if a == b || a.as_f64() == b.as_f64() => None,
        (Value::Object(of_call), Value::Object(of_item)) => {
            let extra = of_item.keys().any(|name| !of_call.contains_key(name));
            let extra = extra.then_some(Difference::Spelling);
            let parts = of_call.iter();
            let parts = parts.filter_map(|(name, value)| difference(value, of_item.get(name)));
            parts.chain(extra).max()
        }
        (Value::Array(of_call), Value::Array(of_item)) => {
            let length = (of_call.len() != of_item.len()).then_some(Difference::Value);
            let pairs = of_call.iter().zip(of_item);
            let parts = pairs.filter_map(|(one, other)| difference(one, Some(other)));
            parts.chain(length).max()
        }
        (one, other) if one == other => None,
        (Value::Number(_), Value::Number(_))
        | (Value::String(_), Value::String(_))
        | (Value::Bool(_), Value::Bool(_)) => Some(Difference::Value),
        _ => Some(Difference::Spelling),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_of_type_and_an_absent_part_are_told_from_a_difference_of_value() {
        use Difference::{Spelling, Value};
        for (of_call, of_item, is) in [
            (json!(1), json!(1.0), None),
            (json!(1), json!(2), Some(Value)),
            (json!("a"), json!("b"), Some(Value)),
            (json!(true), json!(false), Some(Value)),
            (json!(1), json!("1"), Some(Spelling)),
            (json!("1"), json!(1), Some(Spelling)),
            (json!(1), json!(null), Some(Spelling)),
            (json!(0), json!(false), Some(Spelling)),
            (json!(1), json!([1]), Some(Spelling)),
            (json!({ "a": 1 }), json!({ "a": 1.0 }), None),
            (json!({ "a": 1 }), json!({ "a": 2 }), Some(Value)),
            (json!({ "a": 1 }), json!({ "a": "1" }), Some(Spelling)),
            (json!({ "a": 1 }), json!({}), Some(Spelling)),
            (json!({ "a": 1 }), json!({ "a": 1, "b": 2 }), Some(Spelling)),
            (json!({ "a": 1, "b": 2 }), json!({ "a": 3 }), Some(Spelling)),
            (json!([1, 2]), json!([1, 2]), None),
            (json!([1, 2]), json!([1]), Some(Value)),
            (json!([1]), json!(["1"]), Some(Spelling)),
            (json!([{ "a": 1 }]), json!([{ "a": "1" }]), Some(Spelling)),
        ] {
            assert_eq!(
                difference(&of_call, Some(&of_item)),
                is,
                "{of_call} {of_item}"
            );
        }
        assert_eq!(difference(&json!(1), None), Some(Spelling));
    }
}
