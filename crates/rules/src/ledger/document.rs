//! Documents, which are stored beside the calls: sagas, reports and more.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::key;
use crate::words::words;

words! {
    /// The kind of a document; each kind has its own names.
    pub enum Kind {
        /// A group of calls that is completed or compensated as a whole.
        Saga = "saga",
        /// When a reconciliation runs next, and how far it has looked.
        Reconciliation = "reconciliation",
        /// The report of one run of a reconciliation.
        Report = "report",
        /// One thing on which the ledger and a system behind a tool disagree.
        Anomaly = "anomaly",
        /// How the lookup keys and fingerprints of a tool's calls are made, or were made once.
        KeyScheme = "recipe",
        /// The secret of fingerprints. There is one.
        Secret = "secret",
        /// An act of an operator.
        Act = "act",
        /// A session that an operator has frozen.
        Session = "session",
        /// An operator's session in the console.
        SignIn = "sign_in",
        /// The wish that a user's data is erased.
        Erasure = "erasure",
        /// What the webhook was told of a call that waits for approval.
        Notice = "notice",
    }
}

/// A document. A store looks at all fields but the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub kind: Kind,
    /// The tenant; empty for documents of no tenant.
    pub tenant: String,
    pub id: String,
    /// Rises by one with every change; compare-and-swap compares it. The first is 1.
    pub version: u64,
    /// The state by which documents are listed.
    pub state: String,
    /// The time of the first version.
    pub created_at: Timestamp,
    /// When a worker takes the document next; `None`: never.
    pub due_at: Option<Timestamp>,
    /// From when on cleanup may delete the document; `None`: never.
    pub retain_until: Option<Timestamp>,
    /// The document itself, as JSON.
    pub body: Bytes,
}

impl Document {
    /// The first version of a document of no tenant, which no worker takes and no cleanup deletes.
    pub fn new(kind: Kind, id: &str, state: &str, created_at: Timestamp, body: Bytes) -> Self {
        Self {
            kind,
            tenant: String::new(),
            id: id.to_owned(),
            version: 1,
            state: state.to_owned(),
            created_at,
            due_at: None,
            retain_until: None,
            body,
        }
    }

    /// The next version, with this body.
    #[must_use]
    pub fn next(self, body: Bytes) -> Self {
        Self {
            version: self.version + 1,
            body,
            ..self
        }
    }

    /// The digest by which a store finds the document.
    pub fn digest(&self) -> [u8; 16] {
        digest(self.kind, &self.tenant, &self.id)
    }

    /// Reads the body.
    ///
    /// # Errors
    /// The body was never written so.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.body).map_err(|error| error.to_string())
    }

    /// Whether only a store with room to spare takes the document: it is new, and outcomes need the room more.
    pub fn needs_spare_space(&self) -> bool {
        matches!(self.kind, Kind::Act | Kind::Notice) && self.version == 1
    }

    /// The document with times rounded to the microsecond, as stores keep them.
    pub fn to_the_microsecond(&self) -> Self {
        let cut =
            |time: Timestamp| Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time);
        Self {
            created_at: cut(self.created_at),
            due_at: self.due_at.map(cut),
            retain_until: self.retain_until.map(cut),
            ..self.clone()
        }
    }
}

/// The body of a document, as JSON.
pub fn body(value: &impl Serialize) -> Bytes {
    #[expect(clippy::expect_used, reason = "texts and numbers always make JSON")]
    let json = serde_json::to_vec(value).expect("plain values");
    json.into()
}

/// The digest of a document's name.
///
/// Stores use it in their keys, so that no text of a caller gets into a key.
pub fn digest(kind: Kind, tenant: &str, id: &str) -> [u8; 16] {
    key::short_digest(["document", kind.as_str(), tenant, id])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_tenants_have_names_of_their_own() {
        let names = [
            digest(Kind::Saga, "a", "b"),
            digest(Kind::Report, "a", "b"),
            digest(Kind::Saga, "ab", ""),
            digest(Kind::Saga, "", "ab"),
        ];
        for (n, name) in names.iter().enumerate() {
            assert!(!names[..n].contains(name));
        }
    }

    #[test]
    fn only_new_acts_and_notices_wait_for_room() {
        for kind in Kind::ALL {
            for version in [1, 2] {
                let document = Document {
                    kind,
                    tenant: "shop".into(),
                    id: "A".into(),
                    version,
                    state: "open".into(),
                    created_at: Timestamp::UNIX_EPOCH,
                    due_at: None,
                    retain_until: None,
                    body: Bytes::new(),
                };
                let waits = [Kind::Act, Kind::Notice].contains(&kind) && version == 1;
                assert_eq!(document.needs_spare_space(), waits, "{document:?}");
            }
        }
    }

    #[test]
    fn times_are_kept_to_the_microsecond() {
        let time = |nanoseconds| Timestamp::from_nanosecond(nanoseconds).expect("a time");
        let document = Document {
            kind: Kind::Saga,
            tenant: "shop".into(),
            id: "G".into(),
            version: 1,
            state: "open".into(),
            created_at: time(1_234),
            due_at: Some(time(5_678)),
            retain_until: Some(time(9_999)),
            body: Bytes::new(),
        };
        let stored = Document {
            created_at: time(1_000),
            due_at: Some(time(5_000)),
            retain_until: Some(time(9_000)),
            ..document.clone()
        };
        assert_eq!(document.to_the_microsecond(), stored);
        assert_eq!(document.digest(), digest(Kind::Saga, "shop", "G"));
    }
}
