//! Whether the ledger and a system behind the tools agree.
//!
//! Compares the calls of a window with the effects that the system shows. Must not know where either comes from.
//!
//! A call counts as missing only if its effect surely lies within the time for which the system was asked. An item
//! counts as an orphan only if no call of its key is known at all. An undecided case is counted, and never guessed.

pub mod anomaly; // an anomaly as a stored case, and its states
pub mod brake; // when a whole source is not believed
mod differ; // how a value of a source differs from that of the call
pub mod pairing; // each item with its call
pub mod revalidate; // whether an anomaly still holds when a worker acts on it

use std::fmt;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use oncegate_rules::key::{self, Lookup, Pointer};
use oncegate_rules::record::CallId;
use oncegate_rules::redact;
use oncegate_rules::time::{after, before};
use oncegate_rules::words::words;

words! {
    /// The kind of a disagreement between ledger and system.
    #[derive(PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Kind {
        /// The call succeeded, and the system lacks its effect.
        Missing = "missing",
        /// The system has an effect that no call made.
        Orphan = "orphan",
        /// The system has more than one effect of one call.
        Duplicate = "duplicate",
        /// Both have the effect, and its values differ.
        Mismatch = "mismatch",
        /// The call was unknown, and the system has its effect: it was executed.
        Settled = "settled",
    }
}

impl Kind {
    /// Whether the system has an effect too many.
    pub fn is_surplus(self) -> bool {
        matches!(self, Self::Orphan | Self::Duplicate)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A place in a call: in its arguments or in its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    pub root: Root,
    pub pointer: Pointer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    Args,
    Result,
}

impl Path {
    /// Reads `/args/…` or `/result/…`.
    ///
    /// # Errors
    /// Another text.
    pub fn read(text: &str) -> Result<Self, String> {
        let rest = |root: &str| text.strip_prefix(root).filter(|rest| rest.starts_with('/'));
        let (root, rest) = match (rest("/args"), rest("/result")) {
            (Some(rest), _) => (Root::Args, rest),
            (None, Some(rest)) => (Root::Result, rest),
            (None, None) => {
                return Err(format!(
                    "{text:?} begins neither with /args/ nor with /result/"
                ));
            }
        };
        Ok(Self {
            root,
            pointer: rest.parse()?,
        })
    }
}

/// The value by which an item and a call are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Join {
    /// The key for the tool.
    Key,
    /// The value at a place in the call.
    At(Path),
}

/// Values that must be the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    pub item: Pointer,
    pub call: Path,
}

/// How the items of one source are read and compared with calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub source: String,
    /// The pointer to the value by which an item is joined.
    pub key: Pointer,
    pub join: Join,
    /// The pointer to the id of an effect at the source.
    pub id: Option<Pointer>,
    /// The pointer to the call's id in an item, if the source keeps it.
    pub call_id: Option<Pointer>,
    pub compare: Vec<Compare>,
    /// The pointer to the time of an effect.
    pub time: Option<Pointer>,
    pub status: Option<Pointer>,
    /// An item in one of these states is not an effect any more.
    pub ignore: Vec<String>,
    /// Whether items without a key are those of others, and so no orphans.
    pub ignores_keyless: bool,
}

/// One item of a source.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    key: Option<String>,
    id: Option<String>,
    call_id: Option<CallId>,
    fields: Vec<Option<Value>>,
    /// Whether the item is an effect that was not undone.
    counts: bool,
    /// When the effect was made, as the source says.
    made_at: Option<Timestamp>,
    /// The item as the source sent it.
    pub raw: Bytes,
}

impl Rules {
    /// Reads an item.
    pub fn item(&self, item: &Value) -> Item {
        let at = |pointer: &Pointer| item.pointer(pointer.as_str());
        let text_at = |pointer: &Option<Pointer>| pointer.as_ref().and_then(at).and_then(text);
        let fields = self.compare.iter();
        Item {
            key: at(&self.key).and_then(text),
            id: text_at(&self.id),
            call_id: text_at(&self.call_id).and_then(|id| id.parse().ok().map(CallId)),
            fields: fields.map(|both| at(&both.item).cloned()).collect(),
            counts: text_at(&self.status).is_none_or(|status| !self.ignore.contains(&status)),
            made_at: self.time.as_ref().and_then(at).and_then(moment),
            raw: item.to_string().into(),
        }
    }

    /// A value by which items and calls are joined, in the one spelling in which they are compared.
    ///
    /// Systems print a key or a UUID in their own way.
    fn joined(&self, value: String) -> String {
        let spelled = match self.join {
            Join::Key => Lookup::of_tool_key(&value).map(|lookup| lookup.for_tool()),
            Join::At(_) => Uuid::try_parse(value.trim())
                .ok()
                .map(|id| id.simple().to_string()),
        };
        spelled.unwrap_or(value)
    }
}

impl Item {
    /// The id of an item among all of its source.
    fn name(&self) -> String {
        let digest = || hex::encode(&key::digest([&String::from_utf8_lossy(&self.raw)])[..8]);
        self.id.clone().unwrap_or_else(digest)
    }
}

/// Names and numbers as texts, because one side may quote a number where the other does not.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() && text != redact::MASK => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The first characters of a text, with `…` for the rest.
fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A time as sources write it: RFC 3339, or seconds or milliseconds since 1970.
fn moment(value: &Value) -> Option<Timestamp> {
    /// Read as seconds it is in the year 5138, read as milliseconds in 1973.
    const MILLISECONDS_FROM: i64 = 100_000_000_000;
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => match number.as_i64()? {
            seconds if seconds.abs() < MILLISECONDS_FROM => Timestamp::from_second(seconds).ok(),
            milliseconds => Timestamp::from_millisecond(milliseconds).ok(),
        },
        _ => None,
    }
}

/// The window of a run: it judges calls whose effect came in this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub since: Timestamp,
    pub until: Timestamp,
    /// By how much the source's window is wider, on both sides.
    pub margin: SignedDuration,
}

impl Window {
    /// The window of the next scheduled run.
    ///
    /// It begins where the last one ended, if calls of that time are kept.
    pub fn next(
        last: Option<Timestamp>,
        oldest: Timestamp,
        end: Timestamp,
        longest: SignedDuration,
        margin: SignedDuration,
    ) -> Option<Self> {
        let since = last.unwrap_or_else(|| before(end, longest)).max(oldest);
        let until = end.min(after(since, longest));
        (since < until).then_some(Self {
            since,
            until,
            margin,
        })
    }

    /// The time for which a source is asked. It does not end after `now`, unless the window does.
    pub fn of_source(&self, now: Timestamp) -> (Timestamp, Timestamp) {
        (
            before(self.since, self.margin),
            after(self.until, self.margin).min(now.max(self.until)),
        )
    }

    /// Whether the ledger knows every call that may have made the source's effects.
    pub fn is_known_since(&self, whole_since: Option<Timestamp>) -> bool {
        let first = before(self.since, self.margin);
        whole_since.is_some_and(|whole_since| after(whole_since, self.margin) <= first)
    }

    /// The time from which the ledger is read.
    ///
    /// It needs no end: every call whose effect the source has was claimed before.
    pub fn of_ledger(&self) -> Timestamp {
        before(self.since, self.margin + self.margin)
    }
}

/// The time from which every call is kept, if calls are kept for so long.
pub fn oldest(now: Timestamp, retention: SignedDuration, margin: SignedDuration) -> Timestamp {
    let whole = retention.saturating_sub(margin.saturating_mul(2));
    before(now, whole.max(SignedDuration::ZERO))
}

/// One disagreement between ledger and source.
#[derive(Debug, Clone, PartialEq)]
pub struct Anomaly {
    pub kind: Kind,
    pub source: String,
    /// The value by which item and call were joined; empty for an item without a key.
    pub key: String,
    pub call_id: Option<CallId>,
    /// The id of the surplus effect, or of the call, among all of this kind.
    pub id: String,
    pub detail: String,
    /// The doubt because of which nothing is undone.
    pub doubt: Option<Doubt>,
    /// Why another effect of the key is the one to adopt, where no call has the key.
    pub rival: Option<String>,
    pub item: Option<Item>,
}

/// Why an effect may not be one too many. Nothing is undone on a guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The ledger is younger than the call may be, or has lost data since.
    Young,
    /// The calls that may have made the effect were too many to read.
    Unread,
    /// The values by which some calls are joined cannot be read.
    Unreadable,
    /// The effect names a call that the ledger does not know.
    UnknownCall,
    /// No result names the effect that stays.
    Unnamed,
    /// The source has no effect of any call in the window.
    Silent,
    /// The effect may be that of a forgotten call with the same key.
    Forgotten,
    /// The effect may be that of a call of its time that the source seems to lack.
    Explained,
    /// A value has another type than the call's, or a part of it is absent: it may only be written in another way.
    Spelled,
    /// The source differs from too many calls to be believed.
    Suspect,
    /// The run has found more anomalies than `max_anomalies`.
    Many,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Young => "the ledger does not know every call of that time",
            Self::Unread => "not every call that may have made it could be looked at",
            Self::Unreadable => "what calls are joined by cannot be read in all that may have made it",
            Self::UnknownCall => "it names a call that is not known",
            Self::Unnamed => "the call's result does not name the one that stays",
            Self::Forgotten => "it may be that of another call with the key, which the ledger has forgotten",
            Self::Explained => {
                "the source lacks a call of that time, which may have made it under another key"
            }
            Self::Spelled => "a value of another type, or an absent one, may be a difference of notation",
            Self::Suspect => {
                "a source of the run is suspect: it differs from too many calls to be believed"
            }
            Self::Many => "the run has found more than max_anomalies",
            Self::Silent => {
                "the source has none of the calls that it should have: is it the right source, and configured as intended?"
            }
        })
    }
}

impl Anomaly {
    /// A name that is the same each time the anomaly is found.
    pub fn name(&self, reconciliation: &str) -> String {
        let parts = [
            reconciliation,
            &self.source,
            self.kind.as_str(),
            &self.key,
            &self.id,
        ];
        hex::encode(&key::digest(parts)[..16])
    }
}

/// How one source and the ledger compare.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// Calls that succeeded and have an item at the source.
    pub matched: u64,
    /// Calls that the source may or may not have.
    pub undecided: u64,
    /// Calls of the window that may have had an effect, and have none at the source.
    pub lacking: u64,
    /// Why the source is not believed.
    pub suspect: Option<String>,
    /// The anomalies, in a fixed order.
    pub anomalies: Vec<Anomaly>,
}

#[cfg(test)]
mod tests;
