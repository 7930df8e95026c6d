//! The operations of a description: their names as tools, and the chosen ones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::document::{Document, items, members, text};

/// The methods that an operation may have, as a path item names them.
const METHODS: [&str; 8] = [
    "delete", "get", "head", "options", "patch", "post", "put", "trace",
];

/// The longest name of a tool.
const MAX_NAME: usize = 64;

/// Most near names in a sentence about an unknown one.
const MAX_NEAR: usize = 3;

/// The least similarity of a near name, from 0 to 1.
const NEAR: f64 = 0.6;

/// One method of one path.
#[derive(Debug)]
pub(super) struct Operation<'a> {
    /// In capitals.
    pub(super) method: String,
    pub(super) path: &'a str,
    pub(super) id: Option<&'a str>,
    /// The name of its tool. No two operations of a description have the same.
    pub(super) name: String,
    pub(super) tags: Vec<&'a str>,
    /// The path item, for all operations of the path.
    pub(super) item: &'a Value,
    /// The operation's own value.
    pub(super) node: &'a Value,
}

impl Operation<'_> {
    /// Method and path, and the description's own name.
    pub(super) fn title(&self) -> String {
        let id = self.id.map(|id| format!(" ({id})")).unwrap_or_default();
        format!("{} {}{id}", self.method, self.path)
    }
}

/// Each operation in the order of the paths, and path items that cannot be read.
pub(super) fn list(document: &Document) -> (Vec<Operation<'_>>, Vec<String>) {
    let (mut found, mut unread) = (Vec::new(), Vec::new());
    let mut taken = BTreeMap::new();
    let paths = members(&document.root, "paths");
    for (path, item) in paths.filter(|(path, _)| !path.starts_with("x-")) {
        let item = match document.resolve(item) {
            Ok(item) => item,
            Err(why) => {
                unread.push(format!("all of {path}: {why}"));
                continue;
            }
        };
        for method in METHODS {
            let Some(node) = item.get(method) else {
                continue;
            };
            let id = text(node, "operationId");
            let tags = items(node, "tags").iter();
            found.push(Operation {
                method: method.to_uppercase(),
                path,
                id,
                name: name(id, method, path, &mut taken),
                tags: tags.filter_map(Value::as_str).collect(),
                item,
                node,
            });
        }
    }
    (found, unread)
}

/// The operations of these ids and tags; all of them if none is given.
///
/// An id is an `operationId`, the name of a tool, or method and path.
pub(super) fn choose<'o, 'a>(
    all: &'o [Operation<'a>],
    ids: &[String],
    tags: &[String],
) -> Result<Vec<&'o Operation<'a>>, String> {
    if ids.is_empty() && tags.is_empty() {
        return Ok(all.iter().collect());
    }
    let has_id = |operation: &Operation<'_>, id: &str| {
        operation.id == Some(id)
            || operation.name == id
            || id.split_once(' ').is_some_and(|(method, path)| {
                operation.method.eq_ignore_ascii_case(method) && operation.path == path
            })
    };
    let has_tag = |operation: &Operation<'_>, tag: &str| operation.tags.contains(&tag);
    for id in ids {
        if !all.iter().any(|operation| has_id(operation, id)) {
            let names = all.iter().map(|one| one.id.unwrap_or(&one.name));
            return Err(unknown("operation", id, names));
        }
    }
    for tag in tags {
        if !all.iter().any(|operation| has_tag(operation, tag)) {
            let names = all.iter().flat_map(|one| one.tags.iter().copied());
            return Err(unknown("tag", tag, names));
        }
    }
    let chosen = all.iter().filter(|one| {
        ids.iter().any(|id| has_id(one, id)) || tags.iter().any(|tag| has_tag(one, tag))
    });
    Ok(chosen.collect())
}

/// The sentence about an id or a tag that the description does not have.
fn unknown<'a>(what: &str, asked: &str, names: impl Iterator<Item = &'a str>) -> String {
    let lower = asked.to_lowercase();
    let similarity = |name: &str| strsim::jaro_winkler(&name.to_lowercase(), &lower);
    let names: BTreeSet<&str> = names.collect();
    let rated = names.into_iter().map(|name| (similarity(name), name));
    let mut near: Vec<(f64, &str)> = rated.filter(|(rate, _)| *rate > NEAR).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<&str> = near.iter().take(MAX_NEAR).map(|(_, name)| *name).collect();
    let near = match near.is_empty() {
        true => "nothing in the description has a name like that".to_owned(),
        false => format!("near are: {}", near.join(", ")),
    };
    format!("there is no {what} {asked:?}; {near}")
}

/// A name for a tool that no other operation has, from its id or from its method and path.
///
/// `taken`: the names so far in small letters, each with the number at which to search for the next.
fn name(id: Option<&str>, method: &str, path: &str, taken: &mut BTreeMap<String, usize>) -> String {
    let plain = |text: &str| {
        let mut out = String::new();
        for letter in text.chars() {
            match letter {
                'a'..='z' | 'A'..='Z' | '0'..='9' | '-' => out.push(letter),
                // In an environment variable's name `__` separates a tool's name from its setting.
                _ if out.ends_with('_') => {}
                _ => out.push('_'),
            }
        }
        out.truncate(MAX_NAME);
        out.trim_matches('_').to_owned()
    };
    let own = id.map(plain).filter(|name| !name.is_empty());
    let base = own.unwrap_or_else(|| plain(&format!("{method}_{path}")));
    let mut name = base.clone();
    // Names of environment variables do not tell small letters from capitals.
    let mut number = taken.get(&base.to_lowercase()).copied().unwrap_or(1);
    while taken.contains_key(&name.to_lowercase()) {
        number += 1;
        let end = format!("_{number}");
        let free = base.len().min(MAX_NAME - end.len());
        name = format!("{}{end}", &base[..free]);
    }
    taken.insert(base.to_lowercase(), number);
    taken.insert(name.to_lowercase(), 1);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_no_two_are_the_same() {
        let mut taken = BTreeMap::new();
        let mut named = |id: Option<&str>| name(id, "get", "/pets/{petId}/größe", &mut taken);
        assert_eq!(named(Some("listPets")), "listPets");
        assert_eq!(named(Some("listpets")), "listpets_2");
        assert_eq!(named(Some("pets/list all__now")), "pets_list_all_now");
        assert_eq!(named(Some("__")), "get_pets_petId_gr_e");
        assert_eq!(named(None), "get_pets_petId_gr_e_2");
        let long = "n".repeat(100);
        assert_eq!(named(Some(&long)), "n".repeat(64));
        assert_eq!(
            named(Some(&long)),
            format!("{}_2", "n".repeat(62)),
            "also at the bound"
        );
    }

    #[test]
    fn an_unknown_name_is_refused_with_similar_names() {
        let names = ["createOrder", "cancelOrder", "zzz"];
        let notes = unknown("operation", "createorders", names.into_iter());
        assert_eq!(
            notes,
            r#"there is no operation "createorders"; near are: createOrder, cancelOrder"#
        );
        let notes = unknown("tag", "qqq", names.into_iter());
        assert!(
            notes.ends_with("nothing in the description has a name like that"),
            "{notes}"
        );
    }
}
