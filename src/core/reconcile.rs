//! Whether the ledger and a system behind the tools agree.
//!
//! The calls of a window are held against the effects that the system shows. Must not know where
//! either comes from.
//!
//! A call is said to be missing only if its effect surely lies within what the system was asked for; an item
//! is said to belong to no call only if no call of its key is known at all. What cannot be told is counted, not guessed.

pub mod anomaly; // as it is kept and worked on, and what persons ask for
pub mod pairing; // items and calls, put together
pub mod revalidate; // whether it still holds when it is acted on

use std::fmt;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::key::{self, Pointer};
use super::record::CallId;
use super::redact;
use super::time::{after, before};

/// The kind of a disagreement between ledger and system.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The call succeeded, and the system lacks its effect.
    Missing,
    /// The system has an effect that no call made.
    Orphan,
    /// The system has more than one effect of one call.
    Duplicate,
    /// Both have the effect, and its values differ.
    Mismatch,
    /// The call was unknown, and the system has its effect: it was executed.
    Settled,
}

impl Kind {
    pub const ALL: [Self; 5] = [
        Self::Missing,
        Self::Orphan,
        Self::Duplicate,
        Self::Mismatch,
        Self::Settled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Orphan => "orphan",
            Self::Duplicate => "duplicate",
            Self::Mismatch => "mismatch",
            Self::Settled => "settled",
        }
    }

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
    /// It is neither.
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
    /// Whether items without a key belong to others, and are no orphans.
    pub ignores_keyless: bool,
}

/// One item of a source.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    key: Option<String>,
    id: Option<String>,
    call_id: Option<CallId>,
    fields: Vec<Option<Value>>,
    /// Whether the item is an effect that was not taken back.
    counts: bool,
    /// When it was made, as the source says.
    made_at: Option<Timestamp>,
    /// The item as the source sent it.
    pub raw: Bytes,
}

impl Rules {
    /// Reads an item.
    pub fn item(&self, item: &Value) -> Item {
        let at = |pointer: &Pointer| item.pointer(pointer.as_str());
        let status = self.status.as_ref().and_then(at).and_then(text);
        Item {
            key: at(&self.key).and_then(text),
            id: self.id.as_ref().and_then(at).and_then(text),
            call_id: self
                .call_id
                .as_ref()
                .and_then(at)
                .and_then(text)
                .and_then(|id| id.parse().ok())
                .map(CallId),
            fields: self
                .compare
                .iter()
                .map(|compare| at(&compare.item).cloned())
                .collect(),
            counts: status.is_none_or(|status| !self.ignore.contains(&status)),
            made_at: self.time.as_ref().and_then(at).and_then(moment),
            raw: item.to_string().into(),
        }
    }
}

impl Item {
    /// The id of an item among all of its source.
    fn name(&self) -> String {
        let digest = || hex::encode(&key::digest([&String::from_utf8_lossy(&self.raw)])[..8]);
        self.id.clone().unwrap_or_else(digest)
    }
}

/// Names and numbers as texts.
///
/// One side may have quotes where the other has none.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() && text != redact::MASK => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A time as sources write it: RFC 3339, or seconds or milliseconds since 1970.
fn moment(value: &Value) -> Option<Timestamp> {
    /// As seconds this is the year 5138, as milliseconds 1973.
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

/// The window of a run: calls whose effect came in this time are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub since: Timestamp,
    pub until: Timestamp,
    /// How much the source's window is wider, on both sides.
    pub margin: SignedDuration,
}

impl Window {
    /// The window of the next scheduled run.
    ///
    /// It begins where the last one ended, if calls of that time are kept.
    pub fn next(
        before: Option<Timestamp>,
        oldest: Timestamp,
        end: Timestamp,
        longest: SignedDuration,
        margin: SignedDuration,
    ) -> Option<Self> {
        let since = before
            .unwrap_or_else(|| super::time::before(end, longest))
            .max(oldest);
        let until = end.min(after(since, longest));
        (since < until).then_some(Self {
            since,
            until,
            margin,
        })
    }

    /// The time for which a source is asked. It never ends after `now`.
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
    /// It has no end: every call whose effect the source has was claimed before.
    pub fn of_ledger(&self) -> Timestamp {
        before(self.since, self.margin + self.margin)
    }
}

/// The time from which every call is kept, if calls are kept for so long.
pub fn oldest(now: Timestamp, kept: SignedDuration, margin: SignedDuration) -> Timestamp {
    let whole = kept.saturating_sub(margin.saturating_mul(2));
    before(now, whole.max(SignedDuration::ZERO))
}

/// One disagreement between ledger and source.
#[derive(Debug, Clone, PartialEq)]
pub struct Anomaly {
    pub kind: Kind,
    pub source: String,
    /// The value by which item and call were joined; empty for an item without one.
    pub key: String,
    pub call_id: Option<CallId>,
    /// The id of the surplus effect, or of the call, among all of this kind.
    pub id: String,
    pub detail: String,
    /// The doubt because of which nothing is undone.
    pub doubt: Option<Doubt>,
    /// Of several effects of a key without a call, why this is not the one that is adopted.
    pub rival: Option<String>,
    pub item: Option<Item>,
}

/// Why it is in doubt that an effect is too much. Nothing is undone on a guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The ledger is younger than the call may be, or has lost data since.
    Young,
    /// There are too many calls to look through.
    Unread,
    /// Some calls have values that cannot be read, by which they would be joined.
    Unreadable,
    /// The effect names a call that the ledger does not know.
    Stranger,
    /// No result says which of the effects is the right one.
    Untold,
    /// The source has no effect of any call in the window.
    Silent,
    /// The effect may be that of another call with the same key.
    Forgotten,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Young => "the ledger does not know every call of that time",
            Self::Unread => "not every call that may have made it could be looked at",
            Self::Unreadable => "what calls are joined by cannot be read in all that may have made it",
            Self::Stranger => "it names a call that is not known",
            Self::Untold => "the call's result does not name the one that stays",
            Self::Forgotten => "it may be that of another call with the key, which the ledger has forgotten",
            Self::Silent => {
                "the source has none of the calls that it should have: is it the right one, and read rightly?"
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
    /// The anomalies, in a fixed order.
    pub anomalies: Vec<Anomaly>,
}

/// So many calls may be missing at a silent source: few calls may all have failed.
const FEW: usize = 3;

impl Comparison {
    /// A source that shows no effect of any call is not believed.
    fn doubted_if_silent(mut self) -> Self {
        let missing = self
            .anomalies
            .iter()
            .filter(|anomaly| anomaly.kind == Kind::Missing)
            .count();
        if self.matched == 0 && missing > FEW {
            self.anomalies
                .iter_mut()
                .for_each(|anomaly| anomaly.doubt = Some(Doubt::Silent));
        }
        self
    }
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
