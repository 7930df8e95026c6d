//! Changes to an argument's schema so that its values fit their place in the request.

use serde_json::{Map, Value, json};

/// How deep parts about the same value may nest.
const MAX_DEPTH: usize = 8;

/// Lets a closed schema of a body take the arguments outside of the body, too.
pub(super) fn admit(schema: &mut Value, names: &[&str], depth: usize) {
    let Value::Object(words) = schema else {
        return;
    };
    words.remove("maxProperties");
    words.remove("propertyNames");
    let mut closes = ["additionalProperties", "unevaluatedProperties"].into_iter();
    if closes.any(|word| words.get(word).is_some_and(|value| *value != true)) {
        let properties = words.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(properties) = properties {
            for name in names {
                properties.entry(*name).or_insert_with(|| json!({}));
            }
        }
    }
    if depth == MAX_DEPTH {
        return;
    }
    for word in ["allOf", "anyOf", "oneOf", "if", "then", "else"] {
        match words.get_mut(word) {
            Some(Value::Array(parts)) => {
                (parts.iter_mut()).for_each(|part| admit(part, names, depth + 1));
            }
            Some(part) => admit(part, names, depth + 1),
            None => {}
        }
    }
}

/// Makes a schema refuse values that no path can hold: null, lists, empty texts.
pub(super) fn stand_in_a_path(schema: &mut Value) {
    let Value::Object(words) = schema else {
        return;
    };
    without_null(words);
    if words.contains_key("enum") {
        return;
    }
    let mut kinds = kinds(words, 0);
    kinds.retain(|kind| matches!(&**kind, "string" | "number" | "integer" | "boolean"));
    kinds.dedup();
    if kinds.is_empty() {
        kinds = ["string", "number", "boolean"].map(str::to_owned).to_vec();
    }
    let may_be_text = kinds.iter().any(|kind| kind == "string");
    let least = words.get("minLength").and_then(Value::as_u64);
    let is_bounded = least.is_some_and(|length| length > 0)
        || words.contains_key("pattern")
        || words.contains_key("format");
    if may_be_text && !is_bounded {
        words.insert("minLength".into(), json!(1));
    }
    let kinds = match &kinds[..] {
        [one] => json!(one),
        _ => json!(kinds),
    };
    words.insert("type".into(), kinds);
}

/// Removes null from the values that fit.
fn without_null(words: &mut Map<String, Value>) {
    let parts = words.get_mut("anyOf").and_then(Value::as_array_mut);
    let Some(parts) = parts else { return };
    parts.retain(|part| *part != json!({ "type": "null" }));
    if let [Value::Object(only)] = &parts[..] {
        let only = only.clone();
        words.remove("anyOf");
        for (word, value) in only {
            words.entry(word).or_insert(value);
        }
    }
}

/// The types that a schema names for its value, itself or in its parts.
fn kinds(words: &Map<String, Value>, depth: usize) -> Vec<String> {
    match words.get("type") {
        Some(Value::String(one)) => return vec![one.clone()],
        Some(Value::Array(several)) => {
            let several = several.iter().filter_map(Value::as_str);
            return several.map(str::to_owned).collect();
        }
        _ => {}
    }
    if depth == MAX_DEPTH {
        return Vec::new();
    }
    let parts = ["allOf", "anyOf", "oneOf"].into_iter();
    let parts = parts.filter_map(|word| words.get(word)?.as_array());
    let mut found = Vec::new();
    for part in parts.flatten().filter_map(Value::as_object) {
        // A definition is not looked up, so any of the types may fit.
        let inner = match part.contains_key("$ref") {
            true => Vec::new(),
            false => kinds(part, depth + 1),
        };
        if inner.is_empty() {
            return Vec::new();
        }
        found.extend(inner);
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_a_path_argument_allows_neither_empty_nor_null() {
        for (said, stands) in [
            (
                json!({ "type": "string" }),
                json!({ "type": "string", "minLength": 1 }),
            ),
            (
                json!({ "type": "string", "minLength": 0 }),
                json!({ "type": "string", "minLength": 1 }),
            ),
            (
                json!({ "type": "string", "pattern": "^a" }),
                json!({ "type": "string", "pattern": "^a" }),
            ),
            (
                json!({ "type": ["integer", "null"] }),
                json!({ "type": "integer" }),
            ),
            (json!({ "enum": [1, 2] }), json!({ "enum": [1, 2] })),
            (
                json!({}),
                json!({ "type": ["string", "number", "boolean"], "minLength": 1 }),
            ),
            (
                json!({ "anyOf": [{ "type": "null" }, { "type": "string", "enum": ["a"] }] }),
                json!({ "type": "string", "enum": ["a"] }),
            ),
            (
                json!({ "allOf": [{ "type": "integer" }] }),
                json!({ "allOf": [{ "type": "integer" }], "type": "integer" }),
            ),
        ] {
            let mut schema = said.clone();
            stand_in_a_path(&mut schema);
            assert_eq!(schema, stands, "{said}");
        }
    }

    #[test]
    fn a_body_that_names_all_its_members_takes_the_other_arguments() {
        let closed =
            json!({ "additionalProperties": false, "properties": { "a": { "type": "string" } } });
        let mut schema = json!({ "oneOf": [closed, {}], "maxProperties": 1 });
        admit(&mut schema, &["id", "a"], 0);
        let open = json!({ "additionalProperties": false, "properties": { "a": { "type": "string" }, "id": {} } });
        assert_eq!(schema, json!({ "oneOf": [open, {}] }));
    }
}
