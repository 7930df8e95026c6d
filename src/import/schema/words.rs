//! One keyword of a schema at a time.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{MAX_VALUES, Schemas};
use crate::core::schema::Schema;
use crate::import::text::cut;

/// The types of JSON Schema.
const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];

/// How deep the values of an `enum` may nest.
const MAX_NESTED: usize = 6;

/// The longest text that is kept as a default.
const MAX_DEFAULT: usize = 100;

impl Schemas<'_> {
    /// A keyword in JSON Schema; `None` if it means nothing there, or cannot be read.
    pub(super) fn word(
        &mut self,
        word: &str,
        value: &Value,
        words: &Map<String, Value>,
        hidden: &BTreeSet<String>,
        depth: usize,
    ) -> Option<(String, Value)> {
        let same = |value: Value| Some((word.to_owned(), value));
        let kept = match word {
            "type" => self.types(value).map(|kind| (word.to_owned(), kind)),
            "properties" | "dependentSchemas" => {
                same(self.named(value.as_object()?, hidden, depth).into())
            }
            "patternProperties" if are_patterns(value) => same(
                self.named(value.as_object()?, &BTreeSet::new(), depth)
                    .into(),
            ),
            "not"
            | "if"
            | "then"
            | "else"
            | "contains"
            | "minContains"
            | "maxContains"
            | "unevaluatedProperties"
            | "unevaluatedItems"
                if self.is_loose =>
            {
                return None;
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
            | "unevaluatedItems"
                if value.is_object() || value.is_boolean() =>
            {
                same(self.convert(value, depth + 1))
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" if is_filled(value) => {
                let parts = value.as_array().into_iter().flatten();
                let parts: Vec<Value> = parts.map(|part| self.convert(part, depth + 1)).collect();
                // More than one may fit what is let through.
                let is_choice = word == "oneOf" && self.is_loose;
                match is_choice && !words.contains_key("anyOf") {
                    true => Some(("anyOf".to_owned(), parts.into())),
                    false if is_choice => return None,
                    false => same(parts.into()),
                }
            }
            "minimum" | "maximum" if value.is_number() => {
                // In 3.0 a word beside it says whether the bound itself fits.
                let excludes = match word {
                    "minimum" => "exclusiveMinimum",
                    _ => "exclusiveMaximum",
                };
                match words.get(excludes) {
                    Some(Value::Bool(true)) => Some((excludes.to_owned(), value.clone())),
                    _ => same(value.clone()),
                }
            }
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => return None,
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_number() => same(value.clone()),
            "multipleOf" if value.as_f64().is_some_and(|step| step > 0.0) => same(value.clone()),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" | "minContains" | "maxContains"
                if value.is_u64() =>
            {
                same(value.clone())
            }
            "uniqueItems" | "deprecated" if value.is_boolean() => {
                (*value == Value::Bool(true)).then(|| (word.to_owned(), value.clone()))
            }
            "format" | "contentEncoding" | "contentMediaType" if value.is_string() => {
                same(value.clone())
            }
            "pattern" if Schema::new(json!({ "pattern": value })).is_ok() => same(value.clone()),
            "default" => is_short(value).then(|| (word.to_owned(), value.clone())),
            "required" => {
                let names = value.as_array()?.iter().filter_map(Value::as_str);
                let names: BTreeSet<&str> = names.filter(|name| !hidden.contains(*name)).collect();
                let names: Vec<Value> = names.into_iter().map(Value::from).collect();
                (!names.is_empty()).then(|| (word.to_owned(), names.into()))
            }
            "dependentRequired" if Schema::new(json!({ word: value })).is_ok() => {
                same(value.clone())
            }
            "$dynamicRef"
            | "$recursiveRef"
            | "items"
            | "additionalProperties"
            | "propertyNames"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contains"
            | "allOf"
            | "anyOf"
            | "oneOf"
            | "prefixItems"
            | "patternProperties"
            | "minimum"
            | "maximum"
            | "exclusiveMinimum"
            | "exclusiveMaximum"
            | "multipleOf"
            | "minLength"
            | "maxLength"
            | "minItems"
            | "maxItems"
            | "minProperties"
            | "maxProperties"
            | "pattern"
            | "dependentRequired" => {
                self.relax(&format!("a `{word}` that no JSON Schema has is left out"));
                return None;
            }
            // Choices are made of these together; the rest says nothing about what fits.
            _ => None,
        };
        if let Some((_, Value::Array(items))) = &kept {
            self.values += items.len();
        }
        kept
    }

    fn named(
        &mut self,
        members: &Map<String, Value>,
        hidden: &BTreeSet<String>,
        depth: usize,
    ) -> Map<String, Value> {
        let shown = members.iter().filter(|(name, _)| !hidden.contains(*name));
        shown
            .map(|(name, part)| (name.clone(), self.convert(part, depth + 1)))
            .collect()
    }

    /// The types that JSON Schema knows.
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
                    "the type {kind} is none of JSON Schema: anything fits"
                ));
                None
            }
        }
    }

    /// Adds null for OpenAPI 3.0's `nullable`.
    pub(super) fn allow_null(
        &self,
        words: Option<&Map<String, Value>>,
        out: &mut Map<String, Value>,
    ) {
        let is_nullable =
            words.is_some_and(|words| words.get("nullable") == Some(&Value::Bool(true)));
        let kinds = match out.get("type") {
            Some(Value::String(kind)) if is_nullable => vec![kind.clone().into()],
            Some(Value::Array(kinds)) if is_nullable => kinds.clone(),
            _ => return,
        };
        let null = Value::from("null");
        let others = kinds.into_iter().filter(|kind| *kind != null);
        let kinds: Vec<Value> = others.chain([null.clone()]).collect();
        out.insert("type".into(), kinds.into());
    }

    /// The `enum` or `const` of a schema, with null among them.
    ///
    /// TOML has no null, so it is named by its type.
    pub(super) fn choices(
        &mut self,
        words: &Map<String, Value>,
        mut out: Map<String, Value>,
    ) -> Value {
        let is_nullable = words.get("nullable") == Some(&Value::Bool(true));
        let listed = words.get("enum").and_then(Value::as_array);
        let listed = listed.filter(|values| !values.is_empty()).cloned();
        let listed = listed.or_else(|| words.get("const").map(|value| vec![value.clone()]));
        let Some(listed) = listed else {
            let choices = ["allOf", "anyOf", "oneOf"];
            let is_choice = choices.iter().any(|word| out.contains_key(*word));
            if is_nullable && is_choice && !out.contains_key("type") {
                return or_null(out);
            }
            self.allow_null(Some(words), &mut out);
            return out.into();
        };
        let has_null = is_nullable || listed.contains(&Value::Null);
        let mut values: Vec<Value> = listed
            .into_iter()
            .filter(|value| !value.is_null())
            .collect();
        self.values += values.len();
        values.truncate(MAX_VALUES);
        if values.iter().any(|value| !fits_toml(value, 0)) {
            self.relax("an `enum` or `const` is left out: TOML cannot hold its values");
            return out.into();
        }
        if out.get("type").and_then(Value::as_str) == Some("string") {
            // YAML makes numbers of what is not quoted.
            for value in &mut values {
                if value.is_number() || value.is_boolean() {
                    *value = value.to_string().into();
                }
            }
        }
        if values.is_empty() {
            out.retain(|word, _| word == "description");
            out.insert("type".into(), "null".into());
            return out.into();
        }
        let mut seen = Vec::new();
        values.retain(|value| {
            let is_new = !seen.contains(value);
            seen.push(value.clone());
            is_new
        });
        out.insert("enum".into(), values.into());
        if !has_null {
            return out.into();
        }
        if let Some(Value::Array(kinds)) = out.get_mut("type") {
            kinds.retain(|kind| kind != "null");
        }
        or_null(out)
    }
}

fn or_null(mut schema: Map<String, Value>) -> Value {
    let description = schema.remove("description");
    let mut out = Map::new();
    out.insert("anyOf".into(), json!([{ "type": "null" }, schema]));
    out.extend(description.map(|text| ("description".to_owned(), text)));
    out.into()
}

fn are_patterns(value: &Value) -> bool {
    let names = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name);
    value.is_object()
        && names
            .into_iter()
            .all(|name| Schema::new(json!({ "pattern": name })).is_ok())
}

fn is_filled(list: &Value) -> bool {
    list.as_array().is_some_and(|parts| !parts.is_empty())
}

fn is_short(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= MAX_DEFAULT,
        Value::Bool(_) | Value::Number(_) => true,
        _ => false,
    }
}

/// Whether a value fits into TOML.
///
/// TOML has no null, and its readers bound how deep values nest.
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
