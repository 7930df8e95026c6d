//! Where a value or a mistake is.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// One thing that is wrong with a configuration, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    pub place: Place,
    pub message: String,
}

/// Lines and columns count from 1; columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the file that was read first.
    File {
        line: usize,
        column: usize,
    },
    /// In a file that was included.
    Included {
        file: String,
        line: usize,
        column: usize,
    },
    Environment(String),
}

impl Mistake {
    /// The mistake with its file; this is the one that was read first.
    pub fn in_file(&self, first: &Path) -> String {
        match self.place {
            Place::Included { .. } => self.to_string(),
            Place::File { .. } | Place::Environment(_) => format!("{}:{self}", first.display()),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { line, column } => write!(f, "{line}:{column}"),
            Self::Included { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Environment(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// Where a value stands.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// The number of its file, and the offset of its first byte there.
    File {
        file: usize,
        offset: usize,
    },
    Environment(String),
}

impl Origin {
    /// The begin of the file that was read first.
    pub(super) const START: Self = Self::File { file: 0, offset: 0 };
}

/// A value with its place.
#[derive(Debug, Clone)]
pub struct Item {
    pub(super) origin: Origin,
    pub(super) node: Node,
}

#[derive(Debug, Clone)]
pub(super) enum Node {
    Table(BTreeMap<String, Item>),
    List(Vec<Item>),
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
}
