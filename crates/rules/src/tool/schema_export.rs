//! The schema of a tool for models, also for OpenAI's strict mode.
//!
//! It asks for an idempotency key. The gateway validates by the tool's own schema; arguments that fit an
//! exported schema fit that one, too.

use serde_json::{Map, Value, json};

use crate::key::{CONFIRM_MEMBER, MAX_LEN, MODEL_MEMBER};
use crate::schema::{Schema, has_type, in_place};
use crate::tool::{Effect, Tool};

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

/// The schema of a tool's arguments, always an object's.
///
/// That of a write tool asks for an idempotency key, unless the tool's own schema names such a
/// member, or refuses an object with one more member than it names. A tool without a schema takes any members, and
/// says so: a model would take a key alone for all that the tool takes.
pub fn input_schema(tool: &Tool, keys: Keys) -> Value {
    let own = tool.schema.as_ref().map(Schema::text);
    let mut root = own.and_then(Value::as_object).cloned().unwrap_or_default();
    root.insert("type".into(), "object".into());
    let is_named = tool.schema.is_some() || tool.key.required;
    let asks = keys == Keys::Model && tool.effect == Effect::Write && is_named;
    let takes_a_member = takes_a_member(&root);
    if asks && takes_a_member && tool.takes_confirmation() {
        add_confirmation(&mut root);
    }
    if asks && tool.takes_models_keys() {
        describe_own_key(&mut root);
    }
    if asks && !tool.has_property(MODEL_MEMBER) && takes_a_member {
        let properties = root.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(properties) = properties {
            properties.insert(MODEL_MEMBER.into(), key_property(tool));
        }
        let required = root.entry("required").or_insert_with(|| json!([]));
        if let Value::Array(required) = required {
            required.push(MODEL_MEMBER.into());
        }
    }
    root.entry("properties").or_insert_with(|| json!({}));
    if tool.schema.is_none() {
        root.insert("additionalProperties".into(), true.into());
    }
    root.into()
}

/// What a model has to know about a server's own argument for a key.
const OWN_KEY: &str = "Names this one intent, so that it takes effect at most once. A repetition with equal other arguments is recognised whatever value stands here, so send the same one, or leave it out if it is not required. A new value does not make a second call: for that confirm_duplicate_of has to name the first.";

/// What a model has to know about the argument that says that two equal calls are meant.
const CONFIRM: &str = "Leave it out, unless the user wants exactly the same once more: then the call_id of the earlier call with equal arguments, as its result says. Never use it to repeat a call that may have failed.";

/// Adds the argument by which a model says that it means an equal call as well.
fn add_confirmation(root: &mut Map<String, Value>) {
    let properties = root.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        // In strict mode a model sends null instead of leaving it out.
        let property = json!({ "type": ["string", "null"], "description": CONFIRM });
        properties.insert(CONFIRM_MEMBER.into(), property);
    }
}

/// Says what a tool's own argument for a key is for: its own description asks models for a new one with each request.
///
/// Returns whether the schema has such an argument.
fn describe_own_key(root: &mut Map<String, Value>) -> bool {
    let properties = root.get_mut("properties").and_then(Value::as_object_mut);
    let own = properties.and_then(|properties| properties.get_mut(MODEL_MEMBER)?.as_object_mut());
    own.is_some_and(|own| {
        own.insert("description".into(), OWN_KEY.into());
        true
    })
}

/// A tool of a server's list, as clients get it: with what the gateway says about the argument for a key.
///
/// `None`: its schema has no such argument, so that it stays as it is.
pub fn described(listed: &str, takes_confirmation: bool) -> Option<String> {
    // Almost no tool has one, and a list may be long.
    if !listed.contains(MODEL_MEMBER) {
        return None;
    }
    let mut tool: Value = serde_json::from_str(listed).ok()?;
    let root = tool.get_mut("inputSchema")?.as_object_mut()?;
    if !describe_own_key(root) {
        return None;
    }
    let has_confirmation = root["properties"].get(CONFIRM_MEMBER).is_some();
    if takes_confirmation && !has_confirmation && takes_a_member(root) {
        add_confirmation(root);
    }
    Some(tool.to_string())
}

/// The property for the key, which tells a model when to send the same key and when another one.
fn key_property(tool: &Tool) -> Value {
    let fields: Vec<&str> = tool.key.fields.iter().map(|field| field.as_str()).collect();
    let business = match fields.join(", ") {
        fields if fields.is_empty() => {
            " A new value with equal other arguments is taken for a repetition soon after it, unless confirm_duplicate_of names the earlier call."
                .to_owned()
        }
        fields => format!(
            " Repetitions of a call are also recognised by {fields}: a new intent needs another value there."
        ),
    };
    let description = format!(
        "Names this one intent, so that it takes effect at most once. REUSE exactly the same value whenever the same intent is sent again: after a network error or a timeout, to poll for the result, or when the same step was planned again. ROTATE it, that is choose a new unique value such as a UUID, only for a genuinely new intent or when any other argument has changed.{business} 1 to {MAX_LEN} visible ASCII characters without spaces."
    );
    json!({ "type": "string", "pattern": KEY_PATTERN, "description": description })
}

/// Whether an object that fits still fits with a key in it.
///
/// Only the schema's own `properties` may bound the members.
fn takes_a_member(root: &Map<String, Value>) -> bool {
    // A reference to the whole schema would ask for a key in each place where it stands.
    let refers_to_root = json!(root).to_string().contains("\"$ref\":\"#\"");
    !has_any(root, &["$ref", "$dynamicRef"])
        && !refers_to_root
        && !bounds_names(root)
        && in_place(root).all(|part| is_open(part, 0))
}

fn has_any(schema: &Map<String, Value>, words: &[&str]) -> bool {
    words.iter().any(|word| schema.contains_key(*word))
}

fn bounds_names(schema: &Map<String, Value>) -> bool {
    let words = [
        "propertyNames",
        "patternProperties",
        "maxProperties",
        "enum",
        "const",
    ];
    has_any(schema, &words)
}

/// Whether a part of a schema lets any member pass, whichever members its neighbours name.
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
    let mut closing = closes.iter().filter_map(|word| part.get(*word));
    depth < MAX_STRICT_DEPTH
        && closing.all(|value| *value == true)
        && !bounds_names(part)
        && in_place(part).all(|inner| is_open(inner, depth + 1))
}

/// A schema without keywords that are refused at its root, and these keywords.
///
/// It allows more than before; the gateway still validates by the whole.
pub fn plain_root(mut schema: Value) -> (Value, Map<String, Value>) {
    let root = schema.as_object_mut();
    let taken = root.map(|root| {
        let taken = NOT_AT_ROOT.into_iter();
        taken.filter_map(|word| root.remove_entry(word)).collect()
    });
    (schema, taken.unwrap_or_default())
}

/// [`input_schema`] in OpenAI's strict mode: closed objects whose properties are all required.
///
/// `None`: no schema of strict mode allows only values that fit the tool's schema.
///
/// In strict mode a model cannot leave out a property; it sends null instead. So each property must be
/// required already or allow null already. Objects are closed, which refuses members that a model makes
/// up; an object that names no property of its own is meant to take any, and stays open.
pub fn strict(tool: &Tool, keys: Keys) -> Option<Value> {
    let own = tool.schema.as_ref().map(Schema::text)?;
    if own.get("properties").is_none() && own["additionalProperties"] != false {
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

/// How many properties and values strict mode still allows.
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
        let valid = |is_valid: bool| is_valid.then(|| value.clone());
        let is_text = |test: fn(&str) -> bool| valid(value.as_str().is_some_and(test));
        let exported = match word.as_str() {
            // These do not decide which values fit.
            "$schema" | "$comment" | "default" | "examples" | "deprecated" | "readOnly"
            | "writeOnly" => {
                continue;
            }
            "title" | "description" | "type" | "minItems" | "maxItems" => value.clone(),
            "enum" => {
                let values = value.as_array()?;
                left.values = left.values.checked_sub(values.len())?;
                valid(values.iter().all(is_scalar))?
            }
            "const" => valid(is_scalar(value))?,
            // Engines for regular expressions differ in groups with `(?`.
            "pattern" => is_text(|pattern| !pattern.contains("(?"))?,
            "format" => is_text(|format| STRICT_FORMATS.contains(&format))?,
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
                valid(value.is_number())?
            }
            "items" => tighten(value, root, depth + 1, left)?,
            "anyOf" => {
                let choices = value.as_array()?.iter();
                let choices = choices.map(|choice| tighten(choice, root, depth + 1, left));
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
            "$ref" => is_text(|place| place.starts_with("#/$defs/"))?,
            // `close` writes these anew.
            "required" => continue,
            "additionalProperties" if *value == false => continue,
            _ => return None,
        };
        out.insert(word.clone(), exported);
    }
    let has = |word: &str| words.contains_key(word);
    let kinds = [has("type"), has("anyOf"), has("$ref")];
    // Only one of them may stand there: strict mode does not define what they mean together.
    if kinds.iter().filter(|is_there| **is_there).count() != 1 {
        return None;
    }
    if has_type(schema, "object") {
        close(words, &mut out, root)?;
    } else if has("properties") || has("required") || has("additionalProperties") {
        return None;
    }
    (!has_type(schema, "array") || has("items")).then(|| out.into())
}

/// Closes an object and requires all its properties; `None`: it would then refuse values that fit.
fn close(words: &Map<String, Value>, out: &mut Map<String, Value>, root: &Value) -> Option<()> {
    let properties = words.get("properties")?.as_object()?;
    let required = match words.get("required") {
        Some(list) => list.as_array()?.as_slice(),
        None => &[],
    };
    let is_known = |name: &Value| {
        name.as_str()
            .is_some_and(|name| properties.contains_key(name))
    };
    let is_exported = |(name, part): (&String, &Value)| {
        required.iter().any(|required| required == name) || allows_null(part, root, 0)
    };
    if !required.iter().all(is_known) || !properties.iter().all(is_exported) {
        return None;
    }
    out.insert("required".into(), properties.keys().cloned().collect());
    out.insert("additionalProperties".into(), false.into());
    Some(())
}

fn is_scalar(value: &Value) -> bool {
    !value.is_object() && !value.is_array()
}

/// Whether null surely fits. Reads only keywords that strict mode can hold.
fn allows_null(part: &Value, root: &Value, depth: usize) -> bool {
    let Value::Object(words) = part else {
        return false;
    };
    if depth > MAX_STRICT_DEPTH {
        return false;
    }
    let lists_null = |values: &Value| {
        values
            .as_array()
            .is_some_and(|all| all.contains(&Value::Null))
    };
    let fits_in = |part: &Value| allows_null(part, root, depth + 1);
    let fits = if let Some(choices) = words.get("anyOf") {
        choices
            .as_array()
            .is_some_and(|all| all.iter().any(fits_in))
    } else if let Some(place) = words.get("$ref").and_then(Value::as_str) {
        let target = place.strip_prefix('#').and_then(|at| root.pointer(at));
        target.is_some_and(fits_in)
    } else {
        has_type(part, "null")
    };
    fits && words.get("enum").is_none_or(lists_null)
        && words.get("const").is_none_or(Value::is_null)
}

#[cfg(test)]
mod tests;
