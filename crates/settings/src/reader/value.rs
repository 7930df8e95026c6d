//! The types that a configuration's value can be read as.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SpanRelativeTo;
use serde_json::Value as Json;

use super::{Item, Node, Reader};
use oncegate_rules::key::{self, Pointer};
use oncegate_rules::words::Words;
use oncegate_rules::{proxy, request, saga, tool};

/// A type that a configuration's value can be read as.
pub trait FromItem: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// The value is not of this type; says what it must be.
    fn from_item(item: &Item, reader: &Reader<'_>) -> Result<Self, String>;
}

impl FromItem for String {
    fn from_item(item: &Item, reader: &Reader<'_>) -> Result<Self, String> {
        match &item.node {
            Node::Text(text) => reader.fill_in(text),
            _ => Err("this must be a text in quotes".into()),
        }
    }
}

impl FromItem for Pointer {
    fn from_item(item: &Item, reader: &Reader<'_>) -> Result<Self, String> {
        String::from_item(item, reader)?.parse()
    }
}

/// Enumerations of which a value is one word.
macro_rules! one_word {
    ($($name:ty),+ $(,)?) => {$(
        impl FromItem for $name {
            fn from_item(item: &Item, reader: &Reader<'_>) -> Result<Self, String> {
                meaning(&String::from_item(item, reader)?, <$name>::WORDS)
            }
        }
    )+};
}

one_word!(
    tool::AsTask,
    tool::OnCancel,
    tool::Declared,
    tool::Dedup,
    tool::Effect,
    tool::Expired,
    tool::Mode,
    tool::OnSimilar,
    tool::Per,
    tool::RequestErrors,
    tool::ToolError,
    proxy::Authority,
    proxy::Compare,
    proxy::Does,
    proxy::KeyScope,
    proxy::KnownBy,
    proxy::Locations,
    proxy::SendKey,
    proxy::Unkeyed,
    request::Lists,
    saga::OnTimeout,
    oncegate_rules::mcp::AwaitTool,
    key::Fold,
    key::Prefer,
    key::Per,
);

impl FromItem for bool {
    fn from_item(item: &Item, _: &Reader<'_>) -> Result<Self, String> {
        match &item.node {
            Node::Bool(value) => Ok(*value),
            _ => Err("this must be true or false".into()),
        }
    }
}

/// A number of things, at least one.
impl FromItem for u32 {
    fn from_item(item: &Item, _: &Reader<'_>) -> Result<Self, String> {
        match &item.node {
            Node::Integer(number) => match u32::try_from(*number) {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(format!("{number} must be at least 1")),
            },
            _ => Err("this must be a whole number".into()),
        }
    }
}

impl FromItem for Duration {
    fn from_item(item: &Item, reader: &Reader<'_>) -> Result<Self, String> {
        let text = String::from_item(item, reader)
            .map_err(|_| "this must be a duration like \"10s\"".to_owned())?;
        duration(&text).ok_or_else(|| {
            format!("{text:?} is not a duration; one looks like \"200ms\", \"10s\", \"24h\"")
        })
    }
}

/// A duration, or `None` for `"off"`.
#[derive(Debug, Clone, Copy)]
pub struct Switch(pub Option<Duration>);

impl FromItem for Switch {
    fn from_item(item: &Item, reader: &Reader<'_>) -> Result<Self, String> {
        match &item.node {
            Node::Text(text) if text == "off" => Ok(Self(None)),
            _ => Duration::from_item(item, reader)
                .map(|time| Self(Some(time)))
                .map_err(|why| format!("{why}, or \"off\"")),
        }
    }
}

/// A part of a whole: 0 to 1.
#[derive(Debug, Clone, Copy)]
pub struct Share(pub f64);

impl FromItem for Share {
    fn from_item(item: &Item, _: &Reader<'_>) -> Result<Self, String> {
        let number = match item.node {
            Node::Float(number) => number,
            Node::Integer(number) => number as f64,
            _ => f64::NAN,
        };
        let is_share = (0.0..=1.0).contains(&number);
        if is_share {
            Ok(Self(number))
        } else {
            Err("this must be a number from 0 to 1".into())
        }
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub usize);

impl FromItem for Bytes {
    fn from_item(item: &Item, reader: &Reader<'_>) -> Result<Self, String> {
        let wrong = || "this must be a size like \"1MiB\"".to_owned();
        let text = String::from_item(item, reader).map_err(|_| wrong())?;
        let size: bytesize::ByteSize = text.parse().map_err(|_| wrong())?;
        let size = usize::try_from(size.as_u64()).ok();
        size.filter(|size| *size > 0).map(Self).ok_or_else(wrong)
    }
}

impl FromItem for Vec<String> {
    fn from_item(item: &Item, reader: &Reader<'_>) -> Result<Self, String> {
        match &item.node {
            Node::List(items) => items
                .iter()
                .map(|item| String::from_item(item, reader))
                .collect(),
            _ => Err("this must be a list of texts".into()),
        }
    }
}

/// As JSON. Nothing is taken from the environment here: a schema's pattern may hold a `${`.
/// Statuses of HTTP.
impl FromItem for Vec<u16> {
    fn from_item(item: &Item, _: &Reader<'_>) -> Result<Self, String> {
        let Node::List(items) = &item.node else {
            return Err("this must be a list of numbers".into());
        };
        let status = |item: &Item| match item.node {
            Node::Integer(number) => u16::try_from(number).ok(),
            _ => None,
        };
        let statuses: Option<Self> = items.iter().map(status).collect();
        statuses.ok_or_else(|| "these must be statuses of HTTP".to_owned())
    }
}

impl FromItem for Json {
    fn from_item(item: &Item, _: &Reader<'_>) -> Result<Self, String> {
        Ok(item.node.to_json())
    }
}

/// The value that a word stands for.
pub fn meaning<T: Clone>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == text);
    let found = found.map(|(_, value)| value.clone());
    found.ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("{text:?} is not one of {}", words.join(", "))
    })
}

impl Node {
    /// Every value below, by its path.
    pub(super) fn leaves(&self, path: String, into: &mut BTreeMap<String, Json>) {
        match self {
            Self::Table(members) => {
                for (name, item) in members {
                    item.node.leaves(format!("{path}.{name}"), into);
                }
            }
            leaf => drop(into.insert(path, leaf.to_json())),
        }
    }

    /// The value as JSON.
    fn to_json(&self) -> Json {
        match self {
            Self::Text(text) => Json::from(text.as_str()),
            Self::Integer(number) => Json::from(*number),
            Self::Float(number) => Json::from(*number),
            Self::Bool(value) => Json::from(*value),
            Self::List(items) => items.iter().map(|item| item.node.to_json()).collect(),
            Self::Table(members) => members
                .iter()
                .map(|(name, item)| (name.clone(), item.node.to_json()))
                .collect(),
        }
    }
}

/// `"10s"`, `"1h 30m"`, `"30d"`: a day has 24 hours, and nothing is negative.
fn duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let exact = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(exact).ok()
}
