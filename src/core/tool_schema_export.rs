//! The schema of a tool for models.
//!
//! It asks for an idempotency key, as far as OpenAI's strict mode can hold it, and comes with hints
//! about the tool's effect.
//!
//! Whatever fits a schema that is shown fits the tool's own, by which the gateway validates.

use serde_json::{Map, Value, json};

use super::key::{MAX_LEN, MODEL_MEMBER};
use super::schema::{Schema, in_place};
use super::tool::{Effect, Tool};

/// A key as a regular expression of JSON Schema: ASCII 0x21 to 0x7E.
pub const KEY_PATTERN: &str = "^[!-~]{1,255}$";

/// Whether the model or its runtime brings the keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keys {
    /// The model: the schema of a write tool asks for one.
    #[default]
    Model,
    /// The runtime around the model: the schema is the tool's own.
    Runtime,
}

/// The bounds of OpenAI's strict mode.
///
/// These are the oldest of its documented bounds, which every model keeps; a schema beyond them is
/// served without strict mode.
const MAX_STRICT_DEPTH: usize = 5;
const MAX_STRICT_PROPERTIES: usize = 100;
const MAX_STRICT_VALUES: usize = 250;
const STRICT_FORMATS: [&str; 9] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
];

/// Keywords that OpenAI or Anthropic refuse at the root of the parameters.
const NOT_AT_ROOT: [&str; 5] = ["allOf", "anyOf", "oneOf", "not", "enum"];

/// What a tool does, in the words of MCP. Hints: they are no guarantee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hints {
    pub read_only: bool,
    /// Whether it may destroy something: unknown for a write, so never denied.
    pub destructive: bool,
    /// Whether the same arguments and key have no further effect: the gateway sees to it.
    pub idempotent: bool,
}

pub fn hints(tool: &Tool) -> Hints {
    let read_only = tool.effect == Effect::Read;
    Hints {
        read_only,
        destructive: !read_only,
        idempotent: true,
    }
}

/// The schema of a tool's arguments, always an object's.
///
/// That of a write tool asks for an idempotency key. Not if the tool's own schema names such a
/// member, or refuses an object with one more member than it names.
pub fn input_schema(tool: &Tool, keys: Keys) -> Value {
    let own = tool.schema.as_ref().map(Schema::text);
    let mut root = own.and_then(Value::as_object).cloned().unwrap_or_default();
    root.insert("type".into(), "object".into());
    let asks = keys == Keys::Model && tool.effect == Effect::Write;
    if asks && !tool.has_property(MODEL_MEMBER) && takes_a_member(&root) {
        let mut properties = object_at(&root, "properties");
        properties.insert(MODEL_MEMBER.into(), key_property(tool));
        root.insert("properties".into(), properties.into());
        let mut required = root
            .get("required")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        required.push(MODEL_MEMBER.into());
        root.insert("required".into(), required.into());
    }
    root.entry("properties").or_insert_with(|| json!({}));
    root.into()
}

/// When to send the same key and when another one, in words for a model.
fn key_property(tool: &Tool) -> Value {
    let fields: Vec<&str> = tool.key.fields.iter().map(|field| field.as_str()).collect();
    let business = if fields.is_empty() {
        String::new()
    } else {
        let fields = fields.join(", ");
        format!(
            " Repetitions of a call are also recognised by {fields}: a new intent needs another value there."
        )
    };
    let description = format!(
        "Names this one intent, so that it takes effect at most once. REUSE exactly the same value whenever the same intent is sent again: after a network error or a timeout, to poll for the result, or when the same step was planned again. ROTATE it, that is choose a new unique value such as a UUID, only for a genuinely new intent or when any other argument has changed.{business} 1 to {MAX_LEN} visible ASCII characters without spaces."
    );
    json!({ "type": "string", "pattern": KEY_PATTERN, "description": description })
}

/// Whether a key may be added to an object that fits.
///
/// Only the schema's own list may bound the members.
fn takes_a_member(root: &Map<String, Value>) -> bool {
    // A reference to the whole would ask for a key in each place that it stands.
    let refers_to_root = |schema: &Value| schema.to_string().contains("\"$ref\":\"#\"");
    !["$ref", "$dynamicRef"]
        .iter()
        .any(|word| root.contains_key(*word))
        && !refers_to_root(&Value::Object(root.clone()))
        && !bounds_names(root)
        && in_place(root).all(|part| is_open(part, 0))
}

fn bounds_names(schema: &Map<String, Value>) -> bool {
    let words = [
        "propertyNames",
        "patternProperties",
        "maxProperties",
        "enum",
        "const",
    ];
    words.iter().any(|word| schema.contains_key(*word))
}

/// Whether a part of a schema lets any member pass, whatever its neighbours name.
fn is_open(part: &Value, depth: usize) -> bool {
    let Value::Object(part) = part else {
        return part.is_boolean();
    };
    let closes = [
        "additionalProperties",
        "unevaluatedProperties",
        "$ref",
        "$dynamicRef",
    ];
    depth < MAX_STRICT_DEPTH
        && !closes.iter().any(|word| {
            part.get(*word)
                .is_some_and(|value| *value != Value::Bool(true))
        })
        && !bounds_names(part)
        && in_place(part).all(|inner| is_open(inner, depth + 1))
}

fn object_at(schema: &Map<String, Value>, name: &str) -> Map<String, Value> {
    schema
        .get(name)
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}

/// A schema without keywords that are refused at its root, and these keywords.
///
/// It allows more than before; the gateway still validates by the whole.
pub fn plain_root(mut schema: Value) -> (Value, Map<String, Value>) {
    let mut taken = Map::new();
    if let Value::Object(root) = &mut schema {
        for word in NOT_AT_ROOT {
            if let Some(value) = root.remove(word) {
                taken.insert(word.into(), value);
            }
        }
    }
    (schema, taken)
}

/// [`input_schema`] in OpenAI's strict mode: closed objects whose properties are all required.
///
/// `None` if strict mode cannot say it so that every value that fits also fits the tool's schema.
///
/// In strict mode a model cannot leave out a property; it sends null instead. So each one must be
/// required already or allow null already. Objects are closed, which refuses what a model would make
/// up; one that names no property of its own is meant to take any, and stays open.
pub fn strict(tool: &Tool, keys: Keys) -> Option<Value> {
    let own = tool.schema.as_ref().map(Schema::text)?;
    if own.get("properties").is_none()
        && own.get("additionalProperties") != Some(&Value::Bool(false))
    {
        return None;
    }
    let schema = input_schema(tool, keys);
    if schema.get("anyOf").is_some() {
        return None;
    }
    let mut left = Left {
        properties: MAX_STRICT_PROPERTIES,
        values: MAX_STRICT_VALUES,
    };
    tighten(&schema, &schema, 0, &mut left)
}

/// The rest of strict mode's bounds.
struct Left {
    properties: usize,
    values: usize,
}

fn tighten(schema: &Value, root: &Value, depth: usize, left: &mut Left) -> Option<Value> {
    let Value::Object(words) = schema else {
        return None;
    };
    if depth > MAX_STRICT_DEPTH {
        return None;
    }
    let mut out = Map::new();
    for (word, value) in words {
        let kept = match word.as_str() {
            // They say nothing about what fits.
            "$schema" | "$comment" | "default" | "examples" | "deprecated" | "readOnly"
            | "writeOnly" => {
                continue;
            }
            "title" | "description" => value.clone(),
            "type" => value.clone(),
            "enum" => {
                let values = value.as_array()?;
                left.values = left.values.checked_sub(values.len())?;
                values.iter().all(is_scalar).then(|| value.clone())?
            }
            "const" => is_scalar(value).then(|| value.clone())?,
            // Groups with a meaning of their own are where regular expressions differ.
            "pattern" => value
                .as_str()
                .filter(|pattern| !pattern.contains("(?"))
                .map(Value::from)?,
            "format" => value
                .as_str()
                .filter(|format| STRICT_FORMATS.contains(format))
                .map(Value::from)?,
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
                value.is_number().then(|| value.clone())?
            }
            "minItems" | "maxItems" => value.clone(),
            "items" => tighten(value, root, depth + 1, left)?,
            "anyOf" => {
                let choices = value
                    .as_array()?
                    .iter()
                    .map(|choice| tighten(choice, root, depth + 1, left));
                choices.collect::<Option<Vec<_>>>()?.into()
            }
            "properties" | "$defs" => {
                let parts = value.as_object()?;
                if word == "properties" {
                    left.properties = left.properties.checked_sub(parts.len())?;
                }
                let parts = parts.iter().map(|(name, part)| {
                    Some((name.clone(), tighten(part, root, depth + 1, left)?))
                });
                parts.collect::<Option<Map<_, _>>>()?.into()
            }
            "$ref" => value
                .as_str()
                .filter(|place| place.starts_with("#/$defs/"))
                .map(Value::from)?,
            // Said anew below.
            "required" => continue,
            "additionalProperties" if *value == Value::Bool(false) => continue,
            _ => return None,
        };
        out.insert(word.clone(), kept);
    }
    let has = |word: &str| words.contains_key(word);
    let kinds = [has("type"), has("anyOf"), has("$ref")];
    // Each kind stands alone, or what it means together would have to be worked out.
    if kinds.iter().filter(|is_there| **is_there).count() != 1 {
        return None;
    }
    if is_of(words, "object") {
        close(words, &mut out, root)?;
    } else if has("properties") || has("required") || has("additionalProperties") {
        return None;
    }
    (!is_of(words, "array") || has("items")).then_some(())?;
    Some(out.into())
}

/// Closes an object and requires all its properties, if no value is lost by that.
fn close(words: &Map<String, Value>, out: &mut Map<String, Value>, root: &Value) -> Option<()> {
    let properties = words.get("properties")?.as_object()?;
    let required = words
        .get("required")
        .map_or(Some(&[][..]), |list| list.as_array().map(Vec::as_slice))?;
    let is_required = |name: &str| required.iter().any(|have| have.as_str() == Some(name));
    let all_there = required.iter().all(|name| {
        name.as_str()
            .is_some_and(|name| properties.contains_key(name))
    });
    let none_missed = properties
        .iter()
        .all(|(name, part)| is_required(name) || allows_null(part, root, 0));
    if !all_there || !none_missed {
        return None;
    }
    let names: Vec<Value> = properties.keys().map(|name| name.as_str().into()).collect();
    out.insert("required".into(), names.into());
    out.insert("additionalProperties".into(), false.into());
    Some(())
}

fn is_scalar(value: &Value) -> bool {
    !value.is_object() && !value.is_array()
}

/// Whether `type` names this type, alone or among others.
fn is_of(words: &Map<String, Value>, name: &str) -> bool {
    match words.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(several)) => several.iter().any(|one| one.as_str() == Some(name)),
        _ => false,
    }
}

/// Whether null surely fits. Looks only at keywords that strict mode can hold.
fn allows_null(part: &Value, root: &Value, depth: usize) -> bool {
    let Value::Object(words) = part else {
        return false;
    };
    if depth > MAX_STRICT_DEPTH {
        return false;
    }
    let listed = words.get("enum").is_none_or(|values| {
        values
            .as_array()
            .is_some_and(|all| all.contains(&Value::Null))
    });
    let fixed = words.get("const").is_none_or(Value::is_null);
    let fits = if let Some(choices) = words.get("anyOf") {
        choices.as_array().is_some_and(|all| {
            all.iter()
                .any(|choice| allows_null(choice, root, depth + 1))
        })
    } else if let Some(place) = words.get("$ref").and_then(Value::as_str) {
        let target = place
            .strip_prefix('#')
            .and_then(|pointer| root.pointer(pointer));
        target.is_some_and(|target| allows_null(target, root, depth + 1))
    } else {
        is_of(words, "null")
    };
    fits && listed && fixed
}

#[cfg(test)]
#[path = "tool_schema_export_tests.rs"]
mod tests;
