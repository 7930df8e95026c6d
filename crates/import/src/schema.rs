//! Schemas of a description as one JSON Schema.
//!
//! A reference becomes a definition, or its target is put in place. OpenAPI 3.0 is translated to JSON
//! Schema. Parts that no validator can read are left out, and reported.

mod words; // one keyword at a time, and choices

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value, json};

use super::document::{Document, is_true, members, reference, text};
use super::text::cut;

/// Most values, and most bytes as JSON, of one tool's schema.
const MAX_VALUES: usize = 4_000;
const MAX_BYTES: usize = 32 << 10;

/// How deep schemas may nest, and to which depth they keep descriptions.
///
/// The first pair counts with which the whole is small enough.
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
    /// Whether keywords are left out that refuse more when their parts allow more, such as `not`.
    is_loose: bool,
    /// The names of definitions, by their references.
    names: BTreeMap<String, String>,
    /// References whose definitions are still to be made, with their depths.
    waiting: VecDeque<(String, usize)>,
    values: usize,
    /// Whether the result allows values that the description refuses.
    relaxed: bool,
    notes: BTreeSet<String>,
}

/// Builds a schema with `build` that is small enough, and says what it leaves out.
///
/// Values that lie too deep are not validated. `None`: the schema is too large in spite of that.
pub(super) fn fit(
    document: &Document,
    shared: &Shared,
    mut build: impl FnMut(&mut Schemas<'_>) -> Value,
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
                notes: BTreeSet::new(),
            };
            let mut root = build(&mut schemas);
            let definitions = schemas.definitions();
            if let Some(root) = root.as_object_mut().filter(|_| !definitions.is_empty()) {
                root.insert("$defs".into(), definitions.into());
            }
            if schemas.values > MAX_VALUES || root.to_string().len() > MAX_BYTES {
                break;
            }
            if !schemas.relaxed || is_loose {
                return Some((root, schemas.notes));
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
            Value::Object(words) => match reference(schema) {
                Some(place) => self.refer(place, words, depth),
                None => self.object(schema, depth).into(),
            },
            _ => {
                self.relax("a part of its schema is not a schema: anything fits there");
                json!({})
            }
        }
    }

    /// Notes that the result allows more than the description, and why.
    fn relax(&mut self, what: &str) {
        self.relaxed = true;
        self.notes.insert(what.to_owned());
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
        if document.is_3_0 {
            beside.retain(|word, _| word == "description");
        }
        if !self.shared.has(place) {
            let found = self.convert(target, depth);
            return self.beside(found, beside, depth);
        }
        if depth > self.deepest {
            return self.too_deep(target).into();
        }
        let name = match self.names.get(place) {
            Some(name) => name.clone(),
            None => {
                let name = self.definition(place);
                self.waiting.push_back((place.to_owned(), depth));
                name
            }
        };
        self.beside(json!({ "$ref": format!("#/$defs/{name}") }), beside, depth)
    }

    /// A schema together with the keywords beside its reference.
    fn beside(&mut self, found: Value, beside: Map<String, Value>, depth: usize) -> Value {
        let mut beside = self.object(&beside.into(), depth);
        if beside.is_empty() {
            return found;
        }
        match found {
            Value::Object(mut found) if beside.keys().all(|word| word == "description") => {
                found.append(&mut beside);
                found.into()
            }
            found => {
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
        let plain = last.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let plain: String = plain.chars().take(60).collect();
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

    /// A schema that lies too deep: only its type is left.
    fn too_deep(&mut self, schema: &Value) -> Map<String, Value> {
        self.relax("its schema is too large or too deep: what lies deepest is taken as it comes");
        let mut out = Map::new();
        if let Some(kind) = schema.get("type").and_then(|kind| self.types(kind)) {
            out.insert("type".into(), kind);
            allow_null(schema, &mut out);
        }
        out
    }

    /// The keywords of a schema without a reference.
    fn object(&mut self, schema: &Value, depth: usize) -> Map<String, Value> {
        let words = || schema.as_object().into_iter().flatten();
        let holds_objects = |value: &Value| match value {
            Value::Object(_) => true,
            Value::Array(items) => items.iter().any(Value::is_object),
            _ => false,
        };
        if depth > self.deepest && words().any(|(_, value)| holds_objects(value)) {
            return self.too_deep(schema);
        }
        let hidden = self.read_only(schema);
        let mut out = Map::new();
        for (word, value) in words() {
            out.extend(self.word(word, value, schema, &hidden, depth));
        }
        if let Some(description) = text(schema, "description").map(str::trim)
            && depth <= self.described
            && !description.is_empty()
        {
            let text = cut(description, MAX_DESCRIPTION);
            out.insert("description".into(), text.into());
        }
        self.choices(schema, out)
    }

    /// The names of properties that only answers have.
    fn read_only(&mut self, schema: &Value) -> BTreeSet<String> {
        let hidden = members(schema, "properties").filter(|(_, property)| {
            let property = self.document.resolve(property).unwrap_or(property);
            is_true(property, "readOnly")
        });
        let hidden: BTreeSet<String> = hidden.map(|(name, _)| name.clone()).collect();
        self.relaxed |= !hidden.is_empty();
        hidden
    }
}

/// Adds null for OpenAPI 3.0's `nullable`.
fn allow_null(schema: &Value, out: &mut Map<String, Value>) {
    if !is_true(schema, "nullable") {
        return;
    }
    let mut kinds = match out.get("type") {
        Some(Value::Array(kinds)) => kinds.clone(),
        Some(kind) => vec![kind.clone()],
        None => return,
    };
    kinds.retain(|kind| kind != "null");
    kinds.push("null".into());
    out.insert("type".into(), kinds.into());
}

/// How many values are read in search of references, and how deep.
const MAX_SEARCHED: usize = 20_000;
const MAX_DEPTH: usize = 100;

/// References that become definitions: used more than once, or leading back to themselves.
#[derive(Default)]
pub(super) struct Shared {
    places: BTreeSet<String>,
    /// Whether the schema is too large to read, so that every reference counts as shared.
    all: bool,
    /// References that were found so far.
    seen: BTreeSet<String>,
    /// How many values may still be read.
    left: usize,
}

impl Shared {
    /// The shared references of these schemas.
    pub(super) fn of<'s>(document: &Document, schemas: impl Iterator<Item = &'s Value>) -> Self {
        let mut shared = Self {
            left: MAX_SEARCHED,
            ..Self::default()
        };
        for schema in schemas {
            shared.search(document, schema, 0);
        }
        shared
    }

    fn has(&self, place: &str) -> bool {
        self.all || self.places.contains(place)
    }

    fn search(&mut self, document: &Document, value: &Value, depth: usize) {
        if self.left == 0 || depth > MAX_DEPTH {
            self.all = true;
            return;
        }
        self.left -= 1;
        if let Some(place) = reference(value) {
            if !self.seen.insert(place.to_owned()) {
                self.places.insert(place.to_owned());
            } else if let Ok(target) = document.at(place) {
                self.search(document, target, depth + 1);
            }
        }
        match value {
            Value::Array(items) => {
                (items.iter()).for_each(|item| self.search(document, item, depth + 1));
            }
            Value::Object(members) => {
                let says_nothing = |word: &str| {
                    matches!(word, "example" | "examples" | "enum") || word.starts_with("x-")
                };
                for (word, member) in members {
                    if !says_nothing(word) && !member.is_string() {
                        self.search(document, member, depth + 1);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
