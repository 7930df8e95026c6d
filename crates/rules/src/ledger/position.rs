//! Positions in lists that are read page by page.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use uuid::Uuid;

use crate::document::Document;
use crate::record::{CallId, Record};

/// A position in a list that is ordered by time of creation.
///
/// No two calls have the same position, and no two documents of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub created_at: Timestamp,
    /// The call's, or the document's digest.
    pub id: Uuid,
}

impl Position {
    pub fn of(record: &Record) -> Self {
        Self {
            created_at: record.intent.created_at,
            id: record.intent.call_id.0,
        }
    }

    pub fn of_document(document: &Document) -> Self {
        Self {
            created_at: document.created_at,
            id: Uuid::from_bytes(document.digest()),
        }
    }

    /// The call at this position, in a list of calls.
    pub fn call_id(&self) -> CallId {
        CallId(self.id)
    }

    /// The position as bytes, in the same order as positions.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&Self::time_bytes(self.created_at));
        bytes[8..].copy_from_slice(self.id.as_bytes());
        bytes
    }

    /// The first bytes of every position of this time.
    pub fn time_bytes(time: Timestamp) -> [u8; 8] {
        // Nothing was created before 1970.
        u64::try_from(time.as_microsecond())
            .unwrap_or(0)
            .to_be_bytes()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (time, id) = bytes.split_first_chunk::<8>()?;
        let time = i64::try_from(u64::from_be_bytes(*time)).ok()?;
        Some(Self {
            created_at: Timestamp::from_microsecond(time).ok()?,
            id: Uuid::from_slice(id).ok()?,
        })
    }

    /// The cursor that a caller sends back for the next page.
    pub fn to_cursor(self) -> String {
        URL_SAFE_NO_PAD.encode(self.to_bytes())
    }

    /// Reads a cursor; `None`: the text is none.
    pub fn from_cursor(text: &str) -> Option<Self> {
        Self::from_bytes(&URL_SAFE_NO_PAD.decode(text).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::positions;

    proptest! {
        #[test]
        fn bytes_are_ordered_as_positions_are(one in positions(), other in positions()) {
            prop_assert_eq!(one.cmp(&other), one.to_bytes().cmp(&other.to_bytes()));
            prop_assert_eq!(Position::from_bytes(&one.to_bytes()), Some(one));
            prop_assert_eq!(Position::from_cursor(&one.to_cursor()), Some(one));
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
            assert_eq!(Position::from_cursor(text), None, "{text:?}");
        }
    }
}
