//! Several tables as one.

use std::collections::BTreeMap;

use super::place::{Item, Node, Origin};

/// A setting that two files have.
pub(super) struct Twice {
    pub(super) path: String,
    pub(super) first: Origin,
    pub(super) second: Origin,
}

/// Adds the settings of another file, and answers with those that are there already.
///
/// A section may stand in several files, and lists of tables are joined; below that a setting, or a tool, stands in one
/// file.
pub(super) fn merge(
    into: &mut BTreeMap<String, Item>,
    file: BTreeMap<String, Item>,
) -> Vec<(Twice, &'static str)> {
    let mut twice = Vec::new();
    for (name, item) in file {
        match (into.get_mut(&name).map(|have| &mut have.node), item) {
            (
                Some(Node::Table(section)),
                Item {
                    node: Node::Table(more),
                    ..
                },
            ) => {
                for (key, item) in more {
                    add(section, key, item, &name, &mut twice);
                }
            }
            (_, item) => add_new(into, name.clone(), item, name, &mut twice),
        }
    }
    twice
}

fn add(
    section: &mut BTreeMap<String, Item>,
    key: String,
    item: Item,
    of: &str,
    twice: &mut Vec<(Twice, &'static str)>,
) {
    let path = format!("{of}.{key}");
    match (section.get_mut(&key).map(|have| &mut have.node), item) {
        (
            Some(Node::List(list)),
            Item {
                node: Node::List(more),
                ..
            },
        ) if all_tables(list) && all_tables(&more) => list.extend(more),
        (_, item) => add_new(section, key, item, path, twice),
    }
}

fn add_new(
    table: &mut BTreeMap<String, Item>,
    key: String,
    item: Item,
    path: String,
    twice: &mut Vec<(Twice, &'static str)>,
) {
    if let Some(have) = table.get(&key) {
        let (first, second) = (have.origin.clone(), item.origin);
        let there = Twice {
            path,
            first,
            second,
        };
        twice.push((there, "it is set in another file already,"));
    } else {
        table.insert(key, item);
    }
}

fn all_tables(list: &[Item]) -> bool {
    let is_table = |item: &Item| matches!(item.node, Node::Table(_));
    !list.is_empty() && list.iter().all(is_table)
}

/// Puts an item at a path; false if a value is in the way.
pub(super) fn put(table: &mut BTreeMap<String, Item>, path: &[String], item: Item) -> bool {
    match path {
        [] => false,
        [last] => {
            table.insert(last.clone(), item);
            true
        }
        [first, rest @ ..] => {
            let empty = || Item {
                origin: item.origin.clone(),
                node: Node::Table(BTreeMap::new()),
            };
            match &mut table.entry(first.clone()).or_insert_with(empty).node {
                Node::Table(inner) => put(inner, rest, item),
                _ => false,
            }
        }
    }
}
