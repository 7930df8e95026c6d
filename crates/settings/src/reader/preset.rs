//! Values for what a section does not say.

use std::collections::BTreeMap;

use toml::de::DeTable;

use super::Section;
use super::place::{Item, Node, Origin};

/// Takes each value of a table, as TOML, that a section does not have.
///
/// Mistakes about such a value stand at the key `of`, which chose the table.
pub fn preset(section: &mut Section<'_, '_>, of: &str, table: &str) {
    let origin = section.taken.get(of).unwrap_or(&section.origin).clone();
    let (read, _) = DeTable::parse_recoverable(table);
    let read = section.reader.table(read.into_inner(), &origin);
    for (key, item) in placed(read, &origin) {
        section.items.entry(key).or_insert(item);
    }
}

/// The same values, all at one place.
fn placed(table: BTreeMap<String, Item>, origin: &Origin) -> BTreeMap<String, Item> {
    let at = |(key, item)| (key, place(item, origin));
    table.into_iter().map(at).collect()
}

fn place(item: Item, origin: &Origin) -> Item {
    let node = match item.node {
        Node::Table(table) => Node::Table(placed(table, origin)),
        Node::List(items) => {
            let items = items.into_iter();
            Node::List(items.map(|item| place(item, origin)).collect())
        }
        other => other,
    };
    Item {
        origin: origin.clone(),
        node,
    }
}
