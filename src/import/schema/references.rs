//! The references of a schema that are used more than once, or lead back to themselves.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::import::document::{Document, reference};

/// How many values are read, and how deep.
const MAX_VALUES: usize = 20_000;
const MAX_DEPTH: usize = 100;

/// References that become definitions.
#[derive(Default)]
pub(in crate::import) struct Shared {
    places: BTreeSet<String>,
    /// Whether not all could be read, so that each one counts as shared.
    all: bool,
}

impl Shared {
    /// The shared references of these schemas.
    pub(in crate::import) fn of<'s>(
        document: &Document,
        schemas: impl Iterator<Item = &'s Value>,
    ) -> Self {
        let mut walk = Walk {
            document,
            seen: BTreeSet::new(),
            left: MAX_VALUES,
            shared: Self::default(),
        };
        for schema in schemas {
            walk.value(schema, 0);
        }
        walk.shared
    }

    pub(super) fn has(&self, place: &str) -> bool {
        self.all || self.places.contains(place)
    }
}

struct Walk<'d> {
    document: &'d Document,
    seen: BTreeSet<String>,
    left: usize,
    shared: Shared,
}

impl Walk<'_> {
    fn value(&mut self, value: &Value, depth: usize) {
        if self.left == 0 || depth > MAX_DEPTH {
            self.shared.all = true;
            return;
        }
        self.left -= 1;
        if let Some(place) = reference(value) {
            self.follow(place, depth);
        }
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.value(item, depth + 1)),
            Value::Object(members) => {
                let says_nothing = |word: &str| {
                    matches!(word, "example" | "examples" | "enum") || word.starts_with("x-")
                };
                for (word, member) in members {
                    if !says_nothing(word) && !member.is_string() {
                        self.value(member, depth + 1);
                    }
                }
            }
            _ => {}
        }
    }

    fn follow(&mut self, place: &str, depth: usize) {
        if !self.seen.insert(place.to_owned()) {
            self.shared.places.insert(place.to_owned());
            return;
        }
        let document = self.document;
        if let Ok(target) = document.at(place) {
            self.value(target, depth + 1);
        }
    }
}
