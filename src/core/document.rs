//! Documents, which are stored beside the calls: sagas, reports and more. Values only.

use bytes::Bytes;
use jiff::Timestamp;

use super::key;

/// The kind of a document; each kind has its own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A group of calls that is completed or compensated as a whole.
    Saga,
    /// When a reconciliation runs next, and how far it has looked.
    Reconciliation,
    /// The report of one run of a reconciliation.
    Report,
    /// One thing on which the ledger and a system behind a tool disagree.
    Anomaly,
    /// How the names and fingerprints of a tool's calls are made, or were made.
    Recipe,
    /// The secret of fingerprints. There is one.
    Secret,
    /// An act of a person.
    Act,
    /// A session that a person has frozen.
    Session,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Saga,
        Self::Reconciliation,
        Self::Report,
        Self::Anomaly,
        Self::Recipe,
        Self::Secret,
        Self::Act,
        Self::Session,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Saga => "saga",
            Self::Reconciliation => "reconciliation",
            Self::Report => "report",
            Self::Anomaly => "anomaly",
            Self::Recipe => "recipe",
            Self::Secret => "secret",
            Self::Act => "act",
            Self::Session => "session",
        }
    }
}

/// Something that is stored beside the calls.
///
/// A store looks at these members only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub kind: Kind,
    /// The tenant; empty for documents of no tenant.
    pub tenant: String,
    pub id: String,
    /// Rises by one with every change: what compare-and-swap compares. The first is 1.
    pub version: u64,
    /// The state by which documents are listed.
    pub state: String,
    /// When it was made. Never changes.
    pub created_at: Timestamp,
    /// When a worker takes it next; `None`: never.
    pub due_at: Option<Timestamp>,
    /// From when on cleanup may delete it; `None`: never.
    pub retain_until: Option<Timestamp>,
    /// The document itself, as JSON.
    pub body: Bytes,
}

impl Document {
    /// The digest by which a store finds the document.
    pub fn digest(&self) -> [u8; 16] {
        digest(self.kind, &self.tenant, &self.id)
    }

    /// Whether only a store with room to spare takes it: it is new, and outcomes need the room more.
    pub fn needs_spare_room(&self) -> bool {
        self.kind == Kind::Act && self.version == 1
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

/// The digest of a document's name.
///
/// So nothing that a caller wrote gets into a key of the store.
pub fn digest(kind: Kind, tenant: &str, id: &str) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&key::digest(["document", kind.as_str(), tenant, id])[..16]);
    short
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
    fn only_a_new_act_waits_for_room() {
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
                let waits = kind == Kind::Act && version == 1;
                assert_eq!(document.needs_spare_room(), waits, "{document:?}");
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
        let kept = Document {
            created_at: time(1_000),
            due_at: Some(time(5_000)),
            retain_until: Some(time(9_000)),
            ..document.clone()
        };
        assert_eq!(document.to_the_microsecond(), kept);
        assert_eq!(document.digest(), digest(Kind::Saga, "shop", "G"));
    }
}
