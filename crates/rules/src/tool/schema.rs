//! The JSON Schema of a tool's arguments, and mistakes of arguments.

use std::collections::HashSet;
use std::fmt;

use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value};

use super::ecma;
use crate::key::Pointer;
use crate::nulls::{has_nulls, without_nulls, without_nulls_but};

/// The most mistakes that one refusal of arguments names.
const MAX_SCHEMA_MISTAKES: usize = 20;

/// The longest sentence about a mistake, and the longest pointer to it, in bytes.
const MAX_SENTENCE: usize = 200;

/// Arguments with more values are refused without naming the place.
const MAX_VALUES_LISTED: usize = 10_000;

/// The most members that are missing and were null, so that the refusal says what is wrong with the null.
const MAX_REQUIRED: usize = 1_000;

/// How deep a schema's parts are searched for a property.
const MAX_PARTS: usize = 6;

/// The JSON Schema of a tool's arguments.
#[derive(Clone)]
pub struct Schema {
    text: Value,
    validator: jsonschema::Validator,
    /// Each pattern that the validator has got in another form, with the one that was written.
    translated: Vec<(String, String)>,
}

impl Schema {
    /// # Errors
    /// Why this is not a JSON Schema. A `$ref` to another document is refused: nothing is fetched.
    pub fn new(text: Value) -> Result<Self, String> {
        let (schema, translated) = ecma::translated(&text);
        let validator = jsonschema::validator_for(&schema);
        let validator = validator.map_err(|error| written(error.to_string(), &translated))?;
        drop(schema);
        Ok(Self {
            validator,
            translated,
            text,
        })
    }

    /// The schema as it was written.
    pub fn text(&self) -> &Value {
        &self.text
    }

    /// The mistakes in `args`: a JSON Pointer and a sentence each. At most twenty.
    ///
    /// The sentences name what was expected and quote no value, because clients log refusals. A pointer that is too long
    /// is cut to a parent of the place.
    pub fn mistakes(&self, args: &Value) -> Vec<(String, String)> {
        if self.validator.is_valid(args) {
            return Vec::new();
        }
        // A null that need not be there counts as absent.
        let without = has_nulls(args).then(|| self.without_nulls(args));
        let args = without.as_ref().unwrap_or(args);
        if without.is_some() && self.validator.is_valid(args) {
            return Vec::new();
        }
        // The validator gathers every mistake before it returns the first.
        if count(args) > MAX_VALUES_LISTED {
            return vec![(
                String::new(),
                "something in it does not fit; it is too large to say what".into(),
            )];
        }
        let mistakes = self.validator.iter_errors(args).take(MAX_SCHEMA_MISTAKES);
        let sentences = mistakes.map(|mistake| {
            let place = holder_of(mistake.instance_path().as_str());
            let why = written(mistake.masked().to_string(), &self.translated);
            (place, cut(&why, MAX_SENTENCE))
        });
        sentences.collect()
    }

    /// Arguments without the members that are null and need not be there.
    fn without_nulls(&self, args: &Value) -> Value {
        let without = without_nulls(args);
        let mut required = HashSet::new();
        for mistake in self.validator.iter_errors(&without).take(MAX_REQUIRED) {
            if let ValidationErrorKind::Required { property } = mistake.kind()
                && let Some(name) = property.as_str()
            {
                let name = Pointer::to(&[name]);
                required.insert(format!(
                    "{}{}",
                    mistake.instance_path().as_str(),
                    name.as_str()
                ));
            }
        }
        without_nulls_but(args, &|at| required.contains(at))
    }

    /// Whether the schema names this member of the arguments.
    pub(crate) fn has_property(&self, name: &str) -> bool {
        has_property(&self.text, name)
    }

    /// The schema of the value at a pointer, through properties and local references.
    pub fn at(&self, pointer: &Pointer) -> Option<&Value> {
        let mut part = self.follow(&self.text)?;
        for step in pointer.steps() {
            part = self.follow(part.get("properties")?.get(&step)?)?;
        }
        Some(part)
    }

    /// A part of the schema, or the target of its reference.
    fn follow<'a>(&'a self, mut part: &'a Value) -> Option<&'a Value> {
        for _ in 0..MAX_PARTS {
            match part.get("$ref").and_then(Value::as_str) {
                Some(place) => part = self.text.pointer(place.strip_prefix('#')?)?,
                None => return Some(part),
            }
        }
        None
    }

    /// Whether every valid `args` has a value at `pointer`.
    pub fn requires(&self, pointer: &Pointer) -> bool {
        let mut at = &self.text;
        for step in pointer.steps() {
            let mut required = at["required"].as_array().into_iter().flatten();
            if !required.any(|name| *name == *step) {
                return false;
            }
            at = &at["properties"][&step];
        }
        true
    }
}

/// A sentence with the patterns as they were written.
fn written(mut sentence: String, translated: &[(String, String)]) -> String {
    for (pattern, as_written) in translated {
        sentence = sentence.replace(pattern, as_written);
    }
    sentence
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

/// The parts of a schema that validate the same value as the whole.
pub(crate) fn in_place(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let lists = ["allOf", "anyOf", "oneOf"].into_iter();
    let lists = lists.filter_map(|word| schema.get(word)?.as_array());
    let named = schema.get("dependentSchemas").and_then(Value::as_object);
    let alone = ["if", "then", "else", "not"].into_iter();
    let alone = alone.filter_map(|word| schema.get(word));
    let named = named.into_iter().flat_map(Map::values);
    lists.flatten().chain(named).chain(alone)
}

/// Whether a schema names this member of its value.
pub fn has_property(schema: &Value, name: &str) -> bool {
    names(schema, schema, name, 0)
}

/// Whether a schema or a part of it names this property of its value.
fn names(part: &Value, root: &Value, name: &str, depth: usize) -> bool {
    let Value::Object(words) = part else {
        return false;
    };
    let properties = words.get("properties");
    if properties.is_some_and(|properties| properties.get(name).is_some()) {
        return true;
    }
    let place = words.get("$ref").and_then(Value::as_str);
    let target = place.and_then(|place| root.pointer(place.strip_prefix('#')?));
    let mut inner = in_place(words).chain(target);
    depth < MAX_PARTS && inner.any(|inner| names(inner, root, name, depth + 1))
}

/// Whether `type` names this type, alone or among others.
pub fn has_type(schema: &Value, name: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(several)) => several.iter().any(|one| one == name),
        _ => false,
    }
}

/// How many values a value has, itself included.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// A place, or its nearest parent that is short enough: its names are those of the caller.
pub(crate) fn holder_of(mut place: &str) -> String {
    while place.len() > MAX_SENTENCE {
        place = place.rsplit_once('/').map_or("", |(holder, _)| holder);
    }
    place.to_owned()
}

/// The beginning of a text, with `…` for the rest. `most`: bytes.
pub fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_names_every_mistake_with_its_place() {
        let schema = json!({ "type": "object", "required": ["a"], "properties": { "b": { "type": "integer" } } });
        let schema = Schema::new(schema).expect("a schema");
        assert_eq!(schema.mistakes(&json!({ "a": 1, "b": 2 })), []);
        let places: Vec<String> = schema
            .mistakes(&json!({ "b": "x" }))
            .into_iter()
            .map(|(place, _)| place)
            .collect();
        assert_eq!(places.len(), 2);
        assert!(places.contains(&"/b".to_owned()) && places.contains(&String::new()));
    }

    #[test]
    fn mistakes_are_few_and_short_and_quote_no_value() {
        let schema = json!({ "additionalProperties": { "type": "integer", "enum": [1, 2] } });
        let schema = Schema::new(schema).expect("a schema");
        let long = "n".repeat(5_000);
        let args: Map<String, Value> = (0..500)
            .map(|n| (format!("{n}{long}"), json!("hunter2")))
            .collect();
        let mistakes = schema.mistakes(&args.into());
        assert_eq!(mistakes.len(), MAX_SCHEMA_MISTAKES);
        for (place, sentence) in mistakes {
            assert!(
                place.len() <= MAX_SENTENCE && sentence.len() <= MAX_SENTENCE + 3,
                "{place} {sentence}"
            );
            assert!(!sentence.contains("hunter2"), "{sentence}");
        }
        let many = json!({ "list": vec!["x"; MAX_VALUES_LISTED] });
        assert_eq!(
            schema.mistakes(&many).len(),
            1,
            "and those of large arguments are not gathered"
        );
        let listed_of = |items| {
            let list = vec!["x"; items];
            let mistakes = schema.mistakes(&json!({ "list": list }));
            mistakes[0].0.clone()
        };
        // The list and its object are values, too.
        assert_eq!(listed_of(MAX_VALUES_LISTED - 2), "/list");
        assert_eq!(listed_of(MAX_VALUES_LISTED - 1), "");
    }

    #[test]
    fn an_invalid_schema_and_one_with_a_foreign_reference_are_refused() {
        assert!(Schema::new(json!({ "type": "nonsense" })).is_err());
        assert!(Schema::new(json!({ "$ref": "http://127.0.0.1:9/schema.json" })).is_err());
    }

    #[test]
    fn a_key_field_is_required_only_if_each_step_to_it_is() {
        let schema = Schema::new(json!({
            "required": ["order", "id"],
            "properties": { "order": { "required": ["id"], "properties": { "id": {}, "note": {} } } },
        }))
        .expect("a schema");
        let requires = |pointer: &str| schema.requires(&pointer.parse().expect("a pointer"));
        assert!(requires("/id") && requires("/order") && requires("/order/id"));
        assert!(!requires("/order/note") && !requires("/other") && !requires("/other/id"));
    }

    #[test]
    fn a_property_is_looked_for_in_parts_and_references_down_to_a_bound() {
        let named = json!({ "properties": { "key": {} } });
        let inside = |depth, word: &str| {
            let wrap = |part: Value, _| json!({ word: [part] });
            let text = (0..depth).fold(named.clone(), wrap);
            Schema::new(text).expect("a schema").has_property("key")
        };
        for word in ["allOf", "anyOf", "oneOf"] {
            assert!(inside(0, word) && inside(1, word) && inside(MAX_PARTS, word));
            assert!(!inside(MAX_PARTS + 1, word), "{word}");
        }
        let refers = |place: &str, x: &Value| {
            let text = json!({ "$ref": place, "$defs": { "x": x } });
            Schema::new(text).expect("a schema").has_property("key")
        };
        assert!(refers("#/$defs/x", &named) && !refers("#/$defs/x", &json!({})));
        let to_itself = json!({ "allOf": [{ "$ref": "#/$defs/x" }] });
        assert!(!refers("#/$defs/x", &to_itself), "it comes to an end");
        let at_once = json!({ "$ref": "#/$defs/x" });
        assert!(!refers("#/$defs/x", &at_once), "so does this");
    }

    #[test]
    fn places_and_sentences_are_kept_up_to_their_bound() {
        let place = format!("/a/{}", "n".repeat(MAX_SENTENCE - 3));
        assert_eq!(holder_of(&place), place);
        assert_eq!(holder_of(&format!("{place}n")), "/a");
        assert_eq!(holder_of(&"n".repeat(MAX_SENTENCE + 1)), "");
        let sentence = "s".repeat(MAX_SENTENCE);
        let cut = |sentence: &str| cut(sentence, MAX_SENTENCE);
        assert_eq!(cut(&sentence), sentence);
        assert_eq!(cut(&format!("{sentence}s")), format!("{sentence}…"));
        let wide = format!("{}éé", &sentence[1..]);
        assert_eq!(cut(&wide), format!("{}…", &sentence[1..]));
    }

    #[test]
    fn a_schema_of_a_value_is_found_through_properties_and_references() {
        let id = json!({ "type": "string" });
        let order = json!({ "properties": { "id": id, "next": { "$ref": "#/$defs/order" } } });
        let text = json!({
            "$ref": "#/$defs/root",
            "$defs": { "root": { "properties": { "order": { "$ref": "#/$defs/order" } } }, "order": order },
        });
        let schema = Schema::new(text.clone()).expect("a schema");
        let at = |pointer: &str| schema.at(&pointer.parse().expect("a pointer")).cloned();
        assert_eq!(at("/order"), Some(order));
        assert_eq!(at("/order/id"), Some(id.clone()));
        assert_eq!(at("/order/next/next/id"), Some(id));
        assert_eq!((at("/id"), at("/order/id/x")), (None, None));
        let root = schema.at(&Pointer::to(&[]));
        assert_eq!(root, text.pointer("/$defs/root"));
        let in_circles = Schema::new(json!({ "$ref": "#" })).expect("a schema");
        assert_eq!(in_circles.at(&Pointer::to(&[])), None);
    }
}
