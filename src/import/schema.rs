//! Schemas of a description as one JSON Schema.
//!
//! References become `$defs` or are put in place, OpenAPI 3.0 is translated to JSON Schema, and
//! what no validator could read is left out and told.

mod references; // which parts are referred to more than once
mod words; // one keyword at a time

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value, json};

use super::document::Document;
use super::text::cut;
pub(super) use references::Shared;

/// Most values, and most bytes as JSON, of one tool's schema.
const MAX_VALUES: usize = 4_000;
const MAX_BYTES: usize = 32 << 10;

/// How deep schemas may nest, and to which depth they keep descriptions.
///
/// The first pair with which the whole is small enough counts.
const DEPTHS: [(usize, usize); 9] = [
    (20, 20),
    (20, 2),
    (8, 2),
    (5, 2),
    (4, 1),
    (3, 1),
    (2, 1),
    (1, 1),
    (0, 1),
];

/// The longest description of a part.
const MAX_DESCRIPTION: usize = 400;

/// Turns schemas of a document into parts of one schema.
pub(super) struct Schemas<'a> {
    document: &'a Document,
    shared: &'a Shared,
    deepest: usize,
    described: usize,
    /// Whether parts are left out under which less is allowed when they allow more.
    is_loose: bool,
    /// The names of definitions, by their references.
    names: BTreeMap<String, String>,
    waiting: VecDeque<(String, usize)>,
    values: usize,
    /// Whether the result allows values that the description refuses.
    relaxed: bool,
    told: BTreeSet<String>,
}

/// Builds a schema with `build` that is small enough, and says what it leaves out.
///
/// What lies too deep is let through. `None` if it is too large in spite of that.
pub(super) fn fit(
    document: &Document,
    shared: &Shared,
    mut build: impl FnMut(&mut Schemas<'_>) -> Map<String, Value>,
) -> Option<(Value, BTreeSet<String>)> {
    for (deepest, described) in DEPTHS {
        for is_loose in [false, true] {
            let mut schemas = Schemas {
                document,
                shared,
                deepest,
                described,
                is_loose,
                names: BTreeMap::new(),
                waiting: VecDeque::new(),
                values: 0,
                relaxed: false,
                told: BTreeSet::new(),
            };
            let mut root = build(&mut schemas);
            let definitions = schemas.definitions();
            if !definitions.is_empty() {
                root.insert("$defs".into(), definitions.into());
            }
            let root = Value::Object(root);
            if schemas.values > MAX_VALUES || root.to_string().len() > MAX_BYTES {
                break;
            }
            if !schemas.relaxed || is_loose {
                return Some((root, schemas.told));
            }
        }
    }
    None
}

impl Schemas<'_> {
    /// A schema at a depth; the arguments are at 0.
    pub(super) fn convert(&mut self, schema: &Value, depth: usize) -> Value {
        self.values += 1;
        if self.values > MAX_VALUES {
            return json!({});
        }
        match schema {
            Value::Bool(_) => schema.clone(),
            Value::Object(words) => match words.get("$ref").and_then(Value::as_str) {
                Some(place) => self.refer(place, words, depth),
                None => self.object(words, depth),
            },
            _ => {
                self.relax("a part of its schema is no schema: anything fits there");
                json!({})
            }
        }
    }

    /// Allows more than the description does, and tells it.
    fn relax(&mut self, what: &str) {
        self.relaxed = true;
        self.told.insert(what.to_owned());
    }

    /// The target of a reference: in place, or a definition if it is used more than once.
    fn refer(&mut self, place: &str, words: &Map<String, Value>, depth: usize) -> Value {
        let document = self.document;
        let target = match document.at(place) {
            Ok(target) => target,
            Err(why) => {
                self.relax(&format!("{why}: anything fits there"));
                return json!({});
            }
        };
        let mut beside = words.clone();
        beside.remove("$ref");
        if document.is_3_0() {
            beside.retain(|word, _| word == "description");
        }
        if !self.shared.has(place) {
            let found = self.convert(target, depth);
            return self.beside(found, &beside, depth);
        }
        if depth > self.deepest {
            return self.too_deep(target);
        }
        let name = match self.names.get(place) {
            Some(name) => name.clone(),
            None => {
                let name = self.definition(place);
                self.waiting.push_back((place.to_owned(), depth));
                name
            }
        };
        self.beside(json!({ "$ref": format!("#/$defs/{name}") }), &beside, depth)
    }

    /// A schema together with the keywords beside its reference.
    fn beside(&mut self, found: Value, beside: &Map<String, Value>, depth: usize) -> Value {
        let Value::Object(mut beside) = self.object(beside, depth) else {
            return found;
        };
        if beside.is_empty() {
            return found;
        }
        match found {
            Value::Object(mut found) if beside.keys().all(|word| word == "description") => {
                found.append(&mut beside);
                found.into()
            }
            found => {
                // All that stand beside it, and what it led to.
                let mut all = vec![found];
                if let Some(Value::Array(more)) = beside.remove("allOf") {
                    all.extend(more);
                }
                beside.insert("allOf".into(), all.into());
                beside.into()
            }
        }
    }

    /// A new name for a definition: the last step of its reference.
    fn definition(&mut self, place: &str) -> String {
        let last = place.rsplit('/').next().unwrap_or_default();
        let plain: String = last
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .take(60)
            .collect();
        let taken: BTreeSet<&String> = self.names.values().collect();
        let mut name = plain.clone();
        let mut number = 1;
        while name.is_empty() || taken.contains(&name) {
            number += 1;
            name = format!("{plain}_{number}");
        }
        self.names.insert(place.to_owned(), name.clone());
        name
    }

    /// All referenced definitions, and those that they reference.
    fn definitions(&mut self) -> Map<String, Value> {
        let document = self.document;
        let mut found = Map::new();
        while let Some((place, depth)) = self.waiting.pop_front() {
            if let (Ok(target), Some(name)) = (document.at(&place), self.names.get(&place)) {
                let name = name.clone();
                found.insert(name, self.convert(target, depth));
            }
        }
        found
    }

    /// The rest of a schema that lies too deep: its type.
    fn too_deep(&mut self, schema: &Value) -> Value {
        self.relax("its schema is too large or too deep: what lies deepest is taken as it comes");
        let mut out = Map::new();
        if let Some(kind) = schema.get("type").and_then(|kind| self.types(kind)) {
            out.insert("type".into(), kind);
            self.allow_null(schema.as_object(), &mut out);
        }
        out.into()
    }

    /// The keywords of a schema without a reference.
    fn object(&mut self, words: &Map<String, Value>, depth: usize) -> Value {
        if depth > self.deepest
            && words
                .values()
                .any(|value| value.is_object() || holds_objects(value))
        {
            return self.too_deep(&Value::Object(words.clone()));
        }
        let hidden = self.read_only(words);
        let mut out = Map::new();
        for (word, value) in words {
            if let Some((word, value)) = self.word(word, value, words, &hidden, depth) {
                out.insert(word, value);
            }
        }
        if let Some(description) = words.get("description").and_then(Value::as_str)
            && depth <= self.described
            && !description.trim().is_empty()
        {
            let text = cut(description.trim(), MAX_DESCRIPTION);
            out.insert("description".into(), text.into());
        }
        self.choices(words, out)
    }

    /// The names of properties that only answers have.
    fn read_only(&mut self, words: &Map<String, Value>) -> BTreeSet<String> {
        let properties = words.get("properties").and_then(Value::as_object);
        let hidden = properties.into_iter().flatten().filter(|(_, property)| {
            let property = self.document.resolve(property).unwrap_or(property);
            property.get("readOnly") == Some(&Value::Bool(true))
        });
        let hidden: BTreeSet<String> = hidden.map(|(name, _)| name.clone()).collect();
        self.relaxed |= !hidden.is_empty();
        hidden
    }
}

fn holds_objects(value: &Value) -> bool {
    let items = value.as_array().into_iter().flatten();
    items.into_iter().any(Value::is_object)
}

#[cfg(test)]
mod tests;
