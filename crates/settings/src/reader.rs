//! Reads TOML value by value, so that it finds every mistake with its place.
//!
//! Must not know which keys there are.

mod files; // the file, and those that it includes
mod merge; // several tables as one
mod place; // where a mistake is
mod placeholders; // variables of the environment in texts
mod preset; // values for what a section does not say
mod value; // what a value can be read as

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};

pub use self::files::Files;
use self::merge::{merge, put};
pub use self::place::{Item, Mistake, Place};
use self::place::{Node, Origin};
pub use self::preset::preset;
pub use self::value::{Bytes, FromItem, Share, Switch, meaning};

/// The variables of the environment that the caller hands in.
pub type Environment = BTreeMap<String, String>;

/// The prefix of overrides: `ONCEGATE_SERVER__LISTEN` is `listen` in `[server]`.
const PREFIX: &str = "ONCEGATE_";

/// A configuration under inspection.
pub struct Reader<'a> {
    files: &'a Files,
    environment: &'a Environment,
    mistakes: RefCell<Vec<Mistake>>,
    warnings: RefCell<Vec<String>>,
}

impl<'a> Reader<'a> {
    pub fn new(files: &'a Files, environment: &'a Environment) -> Self {
        Self {
            files,
            environment,
            mistakes: RefCell::default(),
            warnings: RefCell::new(files.warnings.clone()),
        }
    }

    /// All files with what the environment puts over them.
    pub fn root(&self) -> Section<'_, 'a> {
        for (at, problem) in &self.files.problems {
            self.note(at, problem.clone());
        }
        let mut root = BTreeMap::new();
        for file in 0..self.files.all.len() {
            for (item, why) in merge(&mut root, self.file(file)) {
                let first = self.place(&item.first);
                self.note(&item.second, format!("{}: {why} at {first}", item.path));
            }
        }
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
        Section::new(self, String::new(), Origin::START, root)
    }

    /// One file as a table.
    fn file(&self, file: usize) -> BTreeMap<String, Item> {
        let (table, errors) = DeTable::parse_recoverable(&self.files.all[file].text);
        for error in errors {
            let offset = error.span().unwrap_or_default().start;
            self.note(&Origin::File { file, offset }, error.message().to_owned());
        }
        let mut table = self.table(table.into_inner(), &Origin::File { file, offset: 0 });
        table.remove(files::INCLUDE);
        table
    }

    /// Every mistake that was found, in the order of the file.
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = self.mistakes.take();
        mistakes.sort_by(|a, b| a.place.cmp(&b.place));
        mistakes
    }

    fn place(&self, origin: &Origin) -> Place {
        match origin {
            Origin::Environment(name) => Place::Environment(name.clone()),
            Origin::File { file, offset } => self.files.place(*file, *offset),
        }
    }

    fn note(&self, origin: &Origin, message: String) {
        let place = self.place(origin);
        let message = match origin {
            Origin::File { file, offset } => self.naming_variables(*file, *offset, message),
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
            Origin::File { file, .. } => Origin::File {
                file: *file,
                offset: value.span().start,
            },
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

/// Where a value stands, and by which path.
pub struct Spot {
    origin: Origin,
    path: String,
}

/// One table.
///
/// Each key is taken once; a key that is left when the section is dropped is a mistake.
pub struct Section<'r, 'a> {
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
    pub fn leaves(&self) -> BTreeMap<String, Json> {
        let mut leaves = BTreeMap::new();
        for (name, item) in &self.items {
            item.node.leaves(self.path_to(name), &mut leaves);
        }
        leaves
    }

    /// The value of a key. A value that does not fit is noted and counts as absent.
    pub fn get<T: FromItem>(&mut self, key: &'static str) -> Option<T> {
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
    pub fn need<T: FromItem>(&mut self, key: &'static str) -> Option<T> {
        self.require(key);
        self.get(key)
    }

    /// Notes a mistake if a key is missing.
    pub fn require(&self, key: &str) {
        self.check(self.has(key), key, "this key is missing");
    }

    /// Whether a key is there and was not taken.
    pub fn has(&self, key: &str) -> bool {
        self.items.contains_key(key)
    }

    /// Whether the value is one text, and not a section.
    pub fn is_text(&self, key: &str) -> bool {
        self.items
            .get(key)
            .is_some_and(|item| matches!(item.node, Node::Text(_)))
    }

    /// A text, which is not taken.
    pub fn text(&self, key: &str) -> Option<&str> {
        match &self.items.get(key)?.node {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether a key was there and is taken.
    pub fn has_taken(&self, key: &str) -> bool {
        self.taken.contains_key(key)
    }

    /// A variable of the environment.
    pub fn variable(&self, name: &str) -> Option<&'a String> {
        self.reader.environment.get(name)
    }

    /// The value of a key, or the default.
    pub fn get_or<T: FromItem>(&mut self, key: &'static str, default: T) -> T {
        self.get(key).unwrap_or(default)
    }

    /// A number of things, at least one.
    pub fn count_or(&mut self, key: &'static str, default: usize) -> usize {
        self.get(key).map_or(default, |count: u32| count as usize)
    }

    /// One of a few words that are of no enumeration.
    pub fn word<T: Clone>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.parsed(key, |text| meaning(text, words))
    }

    /// A text that a function can read.
    pub fn parsed<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text: String = self.get(key)?;
        parse(&text)
            .map_err(|message| self.mistake(key, &message))
            .ok()
    }

    /// The section below a key.
    pub fn section(&mut self, key: &'static str) -> Option<Section<'r, 'a>> {
        let item = self.take(key)?;
        let path = self.path_to(key);
        self.as_section(item, path)
    }

    /// A section that has a default for each key. One that is not there counts as empty.
    pub fn defaulted(&mut self, key: &'static str) -> Section<'r, 'a> {
        let (path, origin) = (self.path_to(key), self.origin.clone());
        let empty = Section::new(self.reader, path, origin, BTreeMap::new());
        self.section(key).unwrap_or(empty)
    }

    /// Reads each table in a table, by its name.
    pub fn named<T>(
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
    pub fn list_of_sections(&mut self, key: &'static str) -> Vec<Section<'r, 'a>> {
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
    pub fn entries<T>(
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
    pub fn mistake(&self, key: &str, message: &str) {
        self.mistake_at(&self.spot(key), message);
    }

    /// Notes a mistake at a key's value unless a rule holds.
    pub fn check(&self, holds: bool, key: &str, otherwise: &str) {
        if !holds {
            self.mistake(key, otherwise);
        }
    }

    /// Notes a warning to log at every start.
    pub fn warn(&self, warning: String) {
        self.reader.warnings.borrow_mut().push(warning);
    }

    /// Notes a warning, unless it was noted before.
    pub fn warn_once(&self, warning: String) {
        let is_new = !self.reader.warnings.borrow().contains(&warning);
        if is_new {
            self.warn(warning);
        }
    }

    /// All warnings that were noted.
    pub fn warnings(&self) -> Vec<String> {
        self.reader.warnings.borrow().clone()
    }

    /// The place of a key's value, for a later mistake.
    pub fn spot(&self, key: &str) -> Spot {
        let origin = self.taken.get(key).unwrap_or(&self.origin).clone();
        Spot {
            origin,
            path: self.path_to(key),
        }
    }

    /// Notes a mistake at a place that was seen before.
    pub fn mistake_at(&self, spot: &Spot, message: &str) {
        self.reader
            .note(&spot.origin, format!("{}: {message}", spot.path));
    }

    /// Notes that the section as a whole is a mistake. Its keys are not read.
    pub fn refuse(mut self, message: &str) {
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
