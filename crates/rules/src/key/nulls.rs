//! Members that are null: for an argument that need not be there they count as absent.
//!
//! Many frameworks send null for each argument that a model left out.

use std::borrow::Cow;

use serde_json::Value;

/// The value without members that are null, at any depth. Items of lists stay.
pub fn without_nulls(value: &Value) -> Cow<'_, Value> {
    if !has_nulls(value) {
        return Cow::Borrowed(value);
    }
    let mut value = value.clone();
    remove_nulls(&mut value, "", &|_| false);
    Cow::Owned(value)
}

/// Whether a member is null, at any depth.
pub fn has_nulls(value: &Value) -> bool {
    match value {
        Value::Object(members) => members
            .values()
            .any(|member| member.is_null() || has_nulls(member)),
        Value::Array(items) => items.iter().any(has_nulls),
        _ => false,
    }
}

/// The value without members that are null, but for those at places that stay. A place is a JSON Pointer.
pub fn without_nulls_but(value: &Value, stays: &dyn Fn(&str) -> bool) -> Value {
    let mut value = value.clone();
    remove_nulls(&mut value, "", stays);
    value
}

fn remove_nulls(value: &mut Value, at: &str, stays: &dyn Fn(&str) -> bool) {
    let below = |step: &str| format!("{at}/{}", step.replace('~', "~0").replace('/', "~1"));
    match value {
        Value::Object(members) => {
            members.retain(|name, member| !member.is_null() || stays(&below(name)));
            for (name, member) in members {
                remove_nulls(member, &below(name), stays);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                remove_nulls(item, &below(&index.to_string()), stays);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_that_are_null_go_at_any_depth_and_items_stay() {
        let value =
            json!({ "a": null, "b": { "c": null, "d": [null, { "e": null, "f": 0 }] }, "g": "" });
        let without = json!({ "b": { "d": [null, { "f": 0 }] }, "g": "" });
        assert!(has_nulls(&value) && !has_nulls(&without));
        assert_eq!(*without_nulls(&value), without);
        assert!(matches!(without_nulls(&without), Cow::Borrowed(_)));
        let stays = |at: &str| at == "/a" || at == "/b/d/1/e";
        let some = json!({ "a": null, "b": { "d": [null, { "e": null, "f": 0 }] }, "g": "" });
        assert_eq!(without_nulls_but(&value, &stays), some);
        let named = json!({ "a/b": { "~": null, "x": null } });
        let without = without_nulls_but(&named, &|at| at == "/a~1b/~0");
        assert_eq!(without, json!({ "a/b": { "~": null } }));
    }
}
