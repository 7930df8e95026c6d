//! A key scheme as a document, and how long it is remembered.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{KeyScheme, KeySchemeId};
use crate::document::{self, Document, Kind};
use crate::time::{after, between, micros, signed};

/// How often a gateway that uses a key scheme writes that down.
const RENEWED_EVERY: SignedDuration = SignedDuration::from_mins(10);
/// How much longer than needed a key scheme is remembered.
///
/// A gateway may write late that it uses the key scheme.
const GRACE: SignedDuration = SignedDuration::from_hours(2);

const IN_USE: &str = "kept";
const FORGOTTEN: &str = "forgotten";

/// A key scheme that stored calls may have been made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub id: KeySchemeId,
    pub key_scheme: Arc<KeyScheme>,
    pub version: u64,
    pub created_at: Timestamp,
    /// Since when every gateway that reads the store finds the key scheme.
    pub known_since: Timestamp,
    /// When a gateway last wrote that it uses the key scheme.
    pub used_at: Timestamp,
    /// The longest retention of the key scheme's calls so far.
    pub keep: SignedDuration,
}

/// The members of a key scheme that its document has no place for.
#[derive(Serialize, Deserialize)]
struct Body {
    #[serde(rename = "recipe")]
    key_scheme: Value,
    #[serde(with = "micros")]
    used_at: Timestamp,
    #[serde(with = "micros")]
    known_since: Timestamp,
    keep_ms: i64,
}

/// The name of a key scheme's document.
pub fn name_of(tool: &str, id: KeySchemeId) -> String {
    format!("{tool} {id}")
}

/// The tool in a key scheme document's name; `None`: it is not such a name.
pub fn tool_of(name: &str) -> Option<&str> {
    name.split_once(' ').map(|(tool, _)| tool)
}

impl Remembered {
    /// A key scheme that no gateway has used. `keep`: how long the tool's calls are kept.
    pub fn new(
        id: KeySchemeId,
        key_scheme: Arc<KeyScheme>,
        keep: Duration,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            key_scheme,
            version: 1,
            created_at: now,
            known_since: now,
            used_at: now,
            keep: signed(keep),
        }
    }

    /// The next version, if its use has to be written again.
    pub fn renewed(&self, keep: Duration, now: Timestamp) -> Option<Self> {
        let keep = self.keep.max(signed(keep));
        let is_fresh = now.duration_since(self.used_at) < RENEWED_EVERY;
        (!is_fresh || keep > self.keep).then(|| Self {
            version: self.version + 1,
            used_at: self.used_at.max(now),
            keep,
            ..self.clone()
        })
    }

    /// How long until every gateway claims lookup keys by this key scheme, too; `None`: all do.
    ///
    /// `max_age`: the greatest age of a gateway's list of key schemes.
    pub fn settles_in(&self, max_age: Duration, now: Timestamp) -> Option<Duration> {
        // Twice as long, because clocks differ a little, and the key scheme was written a little later.
        let left = between(now, after(self.known_since, max_age * 2));
        (!left.is_zero()).then_some(left)
    }

    /// The time after which no call was made by this key scheme.
    pub fn made_until(&self) -> Timestamp {
        after(self.used_at, GRACE)
    }

    /// Whether all calls of this key scheme should be gone, so that a search for them is due.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.made_until()
            .checked_add(self.keep)
            .is_ok_and(|until| until <= now)
    }

    pub fn to_document(&self) -> Document {
        self.document(IN_USE, None)
    }

    /// The next version, which says that the key scheme is forgotten.
    pub fn forgotten(&self, now: Timestamp) -> Document {
        Self {
            version: self.version + 1,
            ..self.clone()
        }
        .document(FORGOTTEN, Some(now))
    }

    fn document(&self, state: &str, retain_until: Option<Timestamp>) -> Document {
        let body = Body {
            key_scheme: self.key_scheme.to_json(),
            used_at: self.used_at,
            known_since: self.known_since,
            keep_ms: i64::try_from(self.keep.as_millis()).unwrap_or(i64::MAX),
        };
        let (id, body) = (
            name_of(&self.key_scheme.tool, self.id),
            document::body(&body),
        );
        Document {
            version: self.version,
            retain_until,
            ..Document::new(Kind::KeyScheme, &id, state, self.created_at, body)
        }
    }

    /// `None`: this version cannot read the document.
    pub fn from_document(document: &Document) -> Option<Self> {
        let body: Body = serde_json::from_slice(&document.body).ok()?;
        let key_scheme: KeyScheme = serde_json::from_value(body.key_scheme).ok()?;
        let id = key_scheme.id();
        let is_whole = document.id == name_of(&key_scheme.tool, id);
        is_whole.then_some(Self {
            id,
            key_scheme: Arc::new(key_scheme),
            version: document.version,
            created_at: document.created_at,
            known_since: body.known_since,
            used_at: body.used_at,
            keep: SignedDuration::from_millis(body.keep_ms),
        })
    }

    /// Whether the document says that the key scheme is remembered.
    pub fn is_in_use(document: &Document) -> bool {
        document.state != FORGOTTEN
    }
}

#[cfg(test)]
mod tests;
