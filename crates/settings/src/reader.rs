//! Reads TOML value by value, so that it finds every mistake with its place.
//!
//! Must not know which keys there are.

mod placeholders; // variables of the environment in texts
mod value; // what a value can be read as

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};

pub(super) use self::value::{Bytes, FromItem, Share, Switch, meaning};

/// The variables of the environment that the caller hands in.
pub type Environment = BTreeMap<String, String>;

/// The prefix of overrides: `ONCEGATE_SERVER__LISTEN` is `listen` in `[server]`.
const PREFIX: &str = "ONCEGATE_";

/// One thing that is wrong with a configuration, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    pub place: Place,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Both count from 1; columns in characters.
    File {
        line: usize,
        column: usize,
    },
    Environment(String),
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File { line, column } => write!(f, "{line}:{column}: {}", self.message),
            Place::Environment(name) => write!(f, "environment variable {name}: {}", self.message),
        }
    }
}

/// Where a value stands.
#[derive(Debug, Clone)]
enum Origin {
    /// The offset of its first byte.
    File(usize),
    Environment(String),
}

/// A value with its place.
#[derive(Debug, Clone)]
pub(super) struct Item {
    origin: Origin,
    node: Node,
}

#[derive(Debug, Clone)]
enum Node {
    Table(BTreeMap<String, Item>),
    List(Vec<Item>),
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
}

/// A configuration under inspection.
pub(super) struct Reader<'a> {
    text: &'a str,
    environment: &'a Environment,
    mistakes: RefCell<Vec<Mistake>>,
    warnings: RefCell<Vec<String>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str, environment: &'a Environment) -> Self {
        Self {
            text,
            environment,
            mistakes: RefCell::default(),
            warnings: RefCell::default(),
        }
    }

    /// The whole file with what the environment puts over it.
    pub(super) fn root(&self) -> Section<'_, 'a> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let span = error.span().unwrap_or_default();
            self.note(&Origin::File(span.start), error.message().to_owned());
        }
        let mut root = self.table(table.into_inner(), &Origin::File(0));
        for (name, value) in self.environment {
            let path = name.strip_prefix(PREFIX);
            let Some(path) = path.filter(|path| path.contains("__")) else {
                continue;
            };
            let path: Vec<String> = path.split("__").map(str::to_lowercase).collect();
            let origin = Origin::Environment(name.clone());
            // A number or a list is written as in TOML; anything else is text.
            let item = match DeValue::parse(value) {
                Ok(value) => self.item(value, &origin),
                Err(_) => Item {
                    origin: origin.clone(),
                    node: Node::Text(value.clone()),
                },
            };
            if !put(&mut root, &path, item) {
                self.note(&origin, "this is a value, not a section".into());
            }
        }
        Section::new(self, String::new(), Origin::File(0), root)
    }

    /// Every mistake that was found, in the order of the file.
    pub(super) fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = self.mistakes.take();
        mistakes.sort_by(|a, b| a.place.cmp(&b.place));
        mistakes
    }

    fn place(&self, offset: usize) -> Place {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place::File {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    fn note(&self, origin: &Origin, message: String) {
        let place = match origin {
            Origin::Environment(name) => Place::Environment(name.clone()),
            Origin::File(offset) => self.place(*offset),
        };
        let message = match origin {
            Origin::File(offset) => self.naming_variables(*offset, message),
            Origin::Environment(_) => message,
        };
        self.mistakes.borrow_mut().push(Mistake { place, message });
    }

    fn table(&self, table: DeTable<'_>, origin: &Origin) -> BTreeMap<String, Item> {
        let members = table.into_iter();
        members
            .map(|(key, value)| (key.into_inner().into_owned(), self.item(value, origin)))
            .collect()
    }

    /// A value with its place.
    ///
    /// The place of every value in an environment variable is that variable.
    fn item(&self, value: toml::Spanned<DeValue<'_>>, within: &Origin) -> Item {
        let origin = match within {
            Origin::File(_) => Origin::File(value.span().start),
            Origin::Environment(name) => Origin::Environment(name.clone()),
        };
        let plain = |value: &str| value.replace('_', "");
        let node = match value.into_inner() {
            DeValue::String(text) => Node::Text(text.into_owned()),
            DeValue::Boolean(value) => Node::Bool(value),
            DeValue::Integer(number) => {
                let read = i64::from_str_radix(&plain(number.as_str()), number.radix());
                Node::Integer(read.unwrap_or_else(|_| {
                    self.note(&origin, "this number is too large".into());
                    0
                }))
            }
            DeValue::Float(number) => {
                Node::Float(plain(number.as_str()).parse().unwrap_or(f64::NAN))
            }
            DeValue::Datetime(time) => Node::Text(time.to_string()),
            DeValue::Table(table) => Node::Table(self.table(table, &origin)),
            DeValue::Array(items) => {
                let items = items.into_iter();
                Node::List(items.map(|value| self.item(value, &origin)).collect())
            }
        };
        Item { origin, node }
    }
}

/// Puts an item at a path; false if a value is in the way.
fn put(table: &mut BTreeMap<String, Item>, path: &[String], item: Item) -> bool {
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

/// Where a value stands, and by which path.
pub(super) struct Spot {
    origin: Origin,
    path: String,
}

/// One table.
///
/// Each key is taken once; a key that is left when the section is dropped is a mistake.
pub(super) struct Section<'r, 'a> {
    reader: &'r Reader<'a>,
    path: String,
    origin: Origin,
    items: BTreeMap<String, Item>,
    taken: HashMap<String, Origin>,
    asked: Vec<&'static str>,
}

impl<'r, 'a> Section<'r, 'a> {
    fn new(
        reader: &'r Reader<'a>,
        path: String,
        origin: Origin,
        items: BTreeMap<String, Item>,
    ) -> Self {
        Self {
            reader,
            path,
            origin,
            items,
            taken: HashMap::new(),
            asked: Vec::new(),
        }
    }

    /// Every value below, by its path.
    pub(super) fn leaves(&self) -> BTreeMap<String, Json> {
        let mut leaves = BTreeMap::new();
        for (name, item) in &self.items {
            item.node.leaves(self.path_to(name), &mut leaves);
        }
        leaves
    }

    /// The value of a key. A value that does not fit is noted and counts as absent.
    pub(super) fn get<T: FromItem>(&mut self, key: &'static str) -> Option<T> {
        let item = self.take(key)?;
        match T::from_item(&item, self.reader) {
            Ok(value) => Some(value),
            Err(message) => {
                self.mistake(key, &message);
                None
            }
        }
    }

    /// The value of a key that must be there.
    pub(super) fn need<T: FromItem>(&mut self, key: &'static str) -> Option<T> {
        self.require(key);
        self.get(key)
    }

    /// Notes a mistake if a key is missing.
    pub(super) fn require(&self, key: &str) {
        self.check(self.has(key), key, "this key is missing");
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.items.contains_key(key)
    }

    /// Whether the value is one text, and not a section.
    pub(super) fn is_text(&self, key: &str) -> bool {
        self.items
            .get(key)
            .is_some_and(|item| matches!(item.node, Node::Text(_)))
    }

    /// A text, which is not taken.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match &self.items.get(key)?.node {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn has_taken(&self, key: &str) -> bool {
        self.taken.contains_key(key)
    }

    /// A variable of the environment.
    pub(super) fn variable(&self, name: &str) -> Option<&'a String> {
        self.reader.environment.get(name)
    }

    pub(super) fn get_or<T: FromItem>(&mut self, key: &'static str, default: T) -> T {
        self.get(key).unwrap_or(default)
    }

    /// A number of things, at least one.
    pub(super) fn count_or(&mut self, key: &'static str, default: usize) -> usize {
        self.get(key).map_or(default, |count: u32| count as usize)
    }

    /// One of a few words that are of no enumeration.
    pub(super) fn word<T: Clone>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.parsed(key, |text| meaning(text, words))
    }

    /// A text that a function can read.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text: String = self.get(key)?;
        parse(&text)
            .map_err(|message| self.mistake(key, &message))
            .ok()
    }

    pub(super) fn section(&mut self, key: &'static str) -> Option<Section<'r, 'a>> {
        let item = self.take(key)?;
        let path = self.path_to(key);
        self.as_section(item, path)
    }

    /// A section that has a default for each key. One that is not there counts as empty.
    pub(super) fn defaulted(&mut self, key: &'static str) -> Section<'r, 'a> {
        let (path, origin) = (self.path_to(key), self.origin.clone());
        let empty = Section::new(self.reader, path, origin, BTreeMap::new());
        self.section(key).unwrap_or(empty)
    }

    /// Reads each table in a table, by its name.
    pub(super) fn named<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&str, Section<'r, 'a>) -> Option<T>,
    ) -> Vec<T> {
        let mut outer = self.defaulted(key);
        let items = std::mem::take(&mut outer.items).into_iter();
        items
            .filter_map(|(name, item)| read(&name, outer.as_section(item, outer.path_to(&name))?))
            .collect()
    }

    /// An array of tables.
    pub(super) fn list_of_sections(&mut self, key: &'static str) -> Vec<Section<'r, 'a>> {
        let Some(item) = self.take(key) else {
            return Vec::new();
        };
        let Node::List(items) = item.node else {
            self.mistake(key, "this must be an array of tables");
            return Vec::new();
        };
        let path = self.path_to(key);
        let numbered = items.into_iter().enumerate();
        numbered
            .filter_map(|(index, item)| self.as_section(item, format!("{path}[{index}]")))
            .collect()
    }

    /// Texts by key, each read by a function.
    pub(super) fn entries<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&str, &str) -> Result<T, String>,
    ) -> Vec<T> {
        let mut section = self.defaulted(key);
        let mut entries = Vec::new();
        for (name, item) in &std::mem::take(&mut section.items) {
            match String::from_item(item, self.reader).and_then(|text| read(name, &text)) {
                Ok(entry) => entries.push(entry),
                Err(message) => {
                    let message = format!("{}.{name}: {message}", section.path);
                    self.reader.note(&item.origin, message);
                }
            }
        }
        entries
    }

    /// Notes a mistake at a key's value.
    ///
    /// If the key is not there, the mistake stands at the section.
    pub(super) fn mistake(&self, key: &str, message: &str) {
        self.mistake_at(&self.spot(key), message);
    }

    /// Notes a mistake at a key's value unless a rule holds.
    pub(super) fn check(&self, holds: bool, key: &str, otherwise: &str) {
        if !holds {
            self.mistake(key, otherwise);
        }
    }

    /// Notes a warning to log at every start.
    pub(super) fn warn(&self, warning: String) {
        self.reader.warnings.borrow_mut().push(warning);
    }

    /// Notes a warning, unless it was noted before.
    pub(super) fn warn_once(&self, warning: String) {
        let is_new = !self.reader.warnings.borrow().contains(&warning);
        if is_new {
            self.warn(warning);
        }
    }

    /// All warnings that were noted.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.reader.warnings.borrow().clone()
    }

    /// The place of a key's value, for a later mistake.
    pub(super) fn spot(&self, key: &str) -> Spot {
        let origin = self.taken.get(key).unwrap_or(&self.origin).clone();
        Spot {
            origin,
            path: self.path_to(key),
        }
    }

    /// Notes a mistake at a place that was seen before.
    pub(super) fn mistake_at(&self, spot: &Spot, message: &str) {
        self.reader
            .note(&spot.origin, format!("{}: {message}", spot.path));
    }

    /// Notes that the section as a whole is a mistake. Its keys are not read.
    pub(super) fn refuse(mut self, message: &str) {
        self.items.clear();
        self.reader
            .note(&self.origin, format!("{}: {message}", self.path));
    }

    fn take(&mut self, key: &'static str) -> Option<Item> {
        self.asked.push(key);
        let item = self.items.remove(key)?;
        self.taken.insert(key.to_owned(), item.origin.clone());
        Some(item)
    }

    fn as_section(&self, item: Item, path: String) -> Option<Section<'r, 'a>> {
        match item.node {
            Node::Table(items) => Some(Section::new(self.reader, path, item.origin, items)),
            _ => {
                let message = format!("{path}: this must be a table");
                self.reader.note(&item.origin, message);
                None
            }
        }
    }

    fn path_to(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }
}

impl Drop for Section<'_, '_> {
    /// Every key that was not read is a mistake: a misspelt one must not pass as a default.
    fn drop(&mut self) {
        for (key, item) in &self.items {
            let known = self.asked.join(", ");
            let message = format!(
                "{}: there is no such key; known here: {known}",
                self.path_to(key)
            );
            self.reader.note(&item.origin, message);
        }
    }
}
