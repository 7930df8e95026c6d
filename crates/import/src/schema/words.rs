//! One keyword of a schema at a time.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{MAX_VALUES, Schemas, allow_null};
use crate::document::{is_true, items};
use crate::text::cut;
use oncegate_rules::schema::Schema;

/// The types of JSON Schema.
const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];

/// How deep the values of an `enum` may nest.
const MAX_NESTED: usize = 6;

/// The longest text that is kept as a default.
const MAX_DEFAULT: usize = 100;

impl Schemas<'_> {
    /// A keyword in JSON Schema; `None`: it is left out.
    ///
    /// `hidden`: properties that only answers have.
    pub(super) fn word(
        &mut self,
        word: &str,
        value: &Value,
        schema: &Value,
        hidden: &BTreeSet<String>,
        depth: usize,
    ) -> Option<(String, Value)> {
        let is_silently_left_out = match word {
            "not" | "if" | "then" | "else" | "contains" => self.is_loose,
            "minContains" | "maxContains" => self.is_loose || !value.is_u64(),
            "unevaluatedProperties" | "unevaluatedItems" => self.is_loose || !is_schema(value),
            // In OpenAPI 3.0 these are about `minimum` and `maximum`.
            "exclusiveMinimum" | "exclusiveMaximum" => value.is_boolean(),
            "uniqueItems" | "deprecated" => *value != Value::Bool(true),
            "format" | "contentEncoding" | "contentMediaType" => !value.is_string(),
            "default" => !is_short(value),
            _ => false,
        };
        if is_silently_left_out {
            return None;
        }
        let mut new_word = word;
        let valid = |is_valid: bool| is_valid.then(|| value.clone());
        let copied = match word {
            "type" => Some(self.types(value)?),
            "properties" | "dependentSchemas" => {
                Some(self.named(value.as_object()?, hidden, depth))
            }
            "patternProperties" => {
                let patterns = value.as_object().filter(|members| are_patterns(members));
                patterns.map(|members| self.named(members, &BTreeSet::new(), depth))
            }
            "items"
            | "additionalProperties"
            | "propertyNames"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contains"
            | "unevaluatedProperties"
            | "unevaluatedItems" => is_schema(value).then(|| self.convert(value, depth + 1)),
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                let parts = value.as_array().filter(|parts| !parts.is_empty());
                let parts = parts.map(|parts| -> Value {
                    let parts = parts.iter().map(|part| self.convert(part, depth + 1));
                    parts.collect()
                });
                // Of looser parts more than one may fit.
                if word == "oneOf" && self.is_loose && parts.is_some() {
                    if schema.get("anyOf").is_some() {
                        return None;
                    }
                    new_word = "anyOf";
                }
                parts
            }
            "minimum" | "maximum" => {
                // In OpenAPI 3.0 another keyword says whether the bound itself fits.
                let excludes = match word {
                    "minimum" => "exclusiveMinimum",
                    _ => "exclusiveMaximum",
                };
                if is_true(schema, excludes) {
                    new_word = excludes;
                }
                valid(value.is_number())
            }
            "exclusiveMinimum" | "exclusiveMaximum" => valid(value.is_number()),
            "multipleOf" => valid(value.as_f64().is_some_and(|step| step > 0.0)),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => valid(value.is_u64()),
            "pattern" | "dependentRequired" => valid(Schema::new(json!({ word: value })).is_ok()),
            "minContains" | "maxContains" | "uniqueItems" | "deprecated" | "format"
            | "contentEncoding" | "contentMediaType" | "default" => valid(true),
            "required" => {
                let names = value.as_array()?.iter().filter_map(Value::as_str);
                let names: BTreeSet<&str> = names.filter(|name| !hidden.contains(*name)).collect();
                if names.is_empty() {
                    return None;
                }
                Some(names.into_iter().collect())
            }
            "$dynamicRef" | "$recursiveRef" => None,
            // `choices` reads the keywords that list values. Any other says nothing about what fits.
            _ => return None,
        };
        let Some(copied) = copied else {
            self.relax(&format!("a `{word}` that no JSON Schema has is left out"));
            return None;
        };
        if let Value::Array(items) = &copied {
            self.values += items.len();
        }
        Some((new_word.to_owned(), copied))
    }

    /// Schemas by their names, without those that are hidden.
    fn named(
        &mut self,
        members: &Map<String, Value>,
        hidden: &BTreeSet<String>,
        depth: usize,
    ) -> Value {
        let shown = members.iter().filter(|(name, _)| !hidden.contains(*name));
        shown
            .map(|(name, part)| (name.clone(), self.convert(part, depth + 1)))
            .collect()
    }

    /// The value of `type`; `None`: one of the types is unknown to JSON Schema.
    pub(super) fn types(&mut self, value: &Value) -> Option<Value> {
        let is_known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
        match value {
            Value::String(_) if is_known(value) => Some(value.clone()),
            Value::Array(kinds) if !kinds.is_empty() && kinds.iter().all(is_known) => {
                let kinds: BTreeSet<&str> = kinds.iter().filter_map(Value::as_str).collect();
                Some(kinds.into_iter().collect())
            }
            _ => {
                let kind = cut(&value.to_string(), 40);
                self.relax(&format!(
                    "the type {kind} is unknown to JSON Schema: anything fits"
                ));
                None
            }
        }
    }

    /// Adds the `enum` or `const` of a schema, with null among its values.
    ///
    /// TOML has no null, so null is named by its type.
    pub(super) fn choices(
        &mut self,
        schema: &Value,
        mut out: Map<String, Value>,
    ) -> Map<String, Value> {
        let is_nullable = is_true(schema, "nullable");
        let mut listed = items(schema, "enum").to_vec();
        if listed.is_empty() {
            listed.extend(schema.get("const").cloned());
        }
        if listed.is_empty() {
            let choices = ["allOf", "anyOf", "oneOf"];
            let is_choice = choices.iter().any(|word| out.contains_key(*word));
            if is_nullable && is_choice && !out.contains_key("type") {
                return or_null(out);
            }
            allow_null(schema, &mut out);
            return out;
        }
        let has_null = is_nullable || listed.contains(&Value::Null);
        listed.retain(|value| !value.is_null());
        self.values += listed.len();
        listed.truncate(MAX_VALUES);
        if !listed.iter().all(|value| fits_toml(value, 0)) {
            self.relax("an `enum` or `const` is left out: TOML cannot hold its values");
            return out;
        }
        if listed.is_empty() {
            out.retain(|word, _| word == "description");
            out.insert("type".into(), "null".into());
            return out;
        }
        let are_texts = out.get("type").and_then(Value::as_str) == Some("string");
        let mut values: Vec<Value> = Vec::new();
        for value in listed {
            // YAML reads an unquoted text as a number or a boolean.
            let value = match value {
                Value::Number(_) | Value::Bool(_) if are_texts => value.to_string().into(),
                _ => value,
            };
            if !values.contains(&value) {
                values.push(value);
            }
        }
        out.insert("enum".into(), values.into());
        if !has_null {
            return out;
        }
        if let Some(Value::Array(kinds)) = out.get_mut("type") {
            kinds.retain(|kind| kind != "null");
        }
        or_null(out)
    }
}

/// A schema that null fits, too.
fn or_null(mut schema: Map<String, Value>) -> Map<String, Value> {
    let description = schema.remove_entry("description");
    let choices = json!([{ "type": "null" }, schema]);
    let mut out = Map::from_iter([("anyOf".to_owned(), choices)]);
    out.extend(description);
    out
}

fn are_patterns(members: &Map<String, Value>) -> bool {
    let is_pattern = |name: &String| Schema::new(json!({ "pattern": name })).is_ok();
    members.keys().all(is_pattern)
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

fn is_short(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= MAX_DEFAULT,
        Value::Bool(_) | Value::Number(_) => true,
        _ => false,
    }
}

/// Whether TOML can hold a value: it has no null, and its readers bound how deep values nest.
fn fits_toml(value: &Value, depth: usize) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => {
            depth < MAX_NESTED && items.iter().all(|item| fits_toml(item, depth + 1))
        }
        Value::Object(members) => {
            depth < MAX_NESTED && members.values().all(|member| fits_toml(member, depth + 1))
        }
        _ => true,
    }
}
