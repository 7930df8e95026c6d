//! What is kept beside the calls: sagas, reports. Only values; a store keeps and finds them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use jiff::Timestamp;

use super::key;

/// What a document is about; each kind has its own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A group of calls that is completed or compensated as a whole.
    Saga,
    /// A reconciliation: when it runs next, and up to when it has looked.
    Reconciliation,
    /// What one run of a reconciliation has found.
    Report,
    /// One thing on which the ledger and a system behind a tool disagree.
    Anomaly,
    /// How names and fingerprint of a tool's calls are made, or were made.
    Recipe,
    /// What fingerprints are made with. There is one.
    Secret,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::Saga,
        Self::Reconciliation,
        Self::Report,
        Self::Anomaly,
        Self::Recipe,
        Self::Secret,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Saga => "saga",
            Self::Reconciliation => "reconciliation",
            Self::Report => "report",
            Self::Anomaly => "anomaly",
            Self::Recipe => "recipe",
            Self::Secret => "secret",
        }
    }
}

/// Something that is kept beside the calls. A store looks at no more of it than what is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub kind: Kind,
    /// May be empty, for what belongs to no tenant.
    pub tenant: String,
    pub id: String,
    /// Rises by one with every change: what compare-and-swap compares. The first is 1.
    pub version: u64,
    /// The word by which it is listed.
    pub state: String,
    /// Never changes.
    pub created_at: Timestamp,
    /// When a worker takes it up; `None`: never.
    pub due_at: Option<Timestamp>,
    /// From when on it may be deleted; `None`: never.
    pub retain_until: Option<Timestamp>,
    /// JSON.
    pub body: Bytes,
}

impl Document {
    /// As a store keeps it: times to the microsecond.
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

/// What a document is found by: a digest, so that nothing that a caller wrote gets into a name.
pub fn digest(kind: Kind, tenant: &str, id: &str) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&key::digest(["document", kind.as_str(), tenant, id])[..16]);
    short
}

/// Where a document stands among those of its kind, which are ordered by when they were made. No two stand
/// in the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub created_at: Timestamp,
    pub digest: [u8; 16],
}

impl Place {
    pub fn of(document: &Document) -> Self {
        let digest = digest(document.kind, &document.tenant, &document.id);
        Self {
            created_at: document.created_at,
            digest,
        }
    }

    /// As bytes that are ordered as places are.
    pub fn to_bytes(self) -> [u8; 24] {
        // Before 1970 nothing was made.
        let time = u64::try_from(self.created_at.as_microsecond()).unwrap_or(0);
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&time.to_be_bytes());
        bytes[8..].copy_from_slice(&self.digest);
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (time, digest) = bytes.split_first_chunk::<8>()?;
        let time = i64::try_from(u64::from_be_bytes(*time)).ok()?;
        let created_at = Timestamp::from_microsecond(time).ok()?;
        Some(Self {
            created_at,
            digest: digest.try_into().ok()?,
        })
    }

    /// As a text that a caller gives back to go on from here.
    pub fn to_cursor(self) -> String {
        URL_SAFE_NO_PAD.encode(self.to_bytes())
    }

    /// `None`: that is no cursor of ours.
    pub fn from_cursor(text: &str) -> Option<Self> {
        URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| Self::from_bytes(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places() -> impl Strategy<Value = Place> {
        (0..50_i64, 0..8_u8).prop_map(|(time, digest)| Place {
            created_at: Timestamp::from_microsecond(time).expect("a time"),
            digest: [digest; 16],
        })
    }

    proptest! {
        #[test]
        fn bytes_are_ordered_as_places_are(one in places(), other in places()) {
            prop_assert_eq!(one.cmp(&other), one.to_bytes().cmp(&other.to_bytes()));
            prop_assert_eq!(Place::from_cursor(&one.to_cursor()), Some(one));
        }
    }

    #[test]
    fn no_other_text_is_a_cursor() {
        for text in [
            "",
            "x",
            "AAAA",
            "\u{e4}",
            &"A".repeat(31),
            &"A".repeat(33),
            &"_".repeat(32),
        ] {
            assert_eq!(Place::from_cursor(text), None, "{text:?}");
        }
    }

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
    }
}
