//! Texts. Those of known forms take fewer bytes: words of the ledger, ids in hex digits.

use std::borrow::Cow;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text. The order of the variants is part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Text<'a> {
    Plain(#[serde(borrow)] &'a str),
    /// One of [`WORDS`], as its index.
    Word(#[serde(deserialize_with = "word")] u8),
    /// 32 hex digits.
    Simple([u8; 16]),
    /// A UUID with hyphens.
    Hyphenated([u8; 16]),
    /// `gateway ` and 32 hex digits, as the ledger names a gateway.
    Gateway([u8; 16]),
    /// The sentence about a tool's answer, with its status and its length in bytes.
    Answered(u16, u64),
}

/// Decodes the index of a word, if the word exists.
fn word<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    let word = u8::deserialize(from)?;
    if usize::from(word) < WORDS.len() {
        Ok(word)
    } else {
        Err(D::Error::custom("no such word"))
    }
}

/// Words of the ledger. Their indexes are stored, so only add words at the end.
pub(super) const WORDS: [&str; 24] = [
    "",
    "default",
    "claimed",
    "ended",
    "retried",
    "run_again",
    "ended_late",
    "sent_again",
    "resolved",
    "probed",
    "compensating",
    "compensated",
    "stuck",
    "skipped",
    "executed",
    "not_executed",
    "unknown",
    "replayed",
    "joined",
    "suppressed",
    "refused",
    "open",
    "token open",
    "the key was free",
];

/// The prefix of gateways in the ledger.
const GATEWAY: &str = "gateway ";

impl<'a> Text<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let word = (0..).zip(WORDS).find(|(_, word)| *word == text);
        if let Some((place, _)) = word {
            return Self::Word(place);
        }
        // Each form must decode to the same text, so only lower-case digits have a short form.
        if let Some(id) = text.strip_prefix(GATEWAY).and_then(simple) {
            return Self::Gateway(id);
        }
        if let Some(id) = simple(text) {
            return Self::Simple(id);
        }
        if let Some((status, bytes)) = answered(text) {
            return Self::Answered(status, bytes);
        }
        let is_same = |id: &Uuid| id.hyphenated().to_string() == text;
        match Uuid::try_parse(text).ok().filter(is_same) {
            Some(id) => Self::Hyphenated(id.into_bytes()),
            None => Self::Plain(text),
        }
    }

    pub(super) fn read(self) -> String {
        self.read_word().into_owned()
    }

    /// The text, without a copy if it is a word.
    pub(super) fn read_word(self) -> Cow<'static, str> {
        let simple = |id| Uuid::from_bytes(id).simple().to_string();
        match self {
            Self::Plain(text) => Cow::Owned(text.to_owned()),
            Self::Word(place) => {
                Cow::Borrowed(WORDS.get(usize::from(place)).copied().unwrap_or_default())
            }
            Self::Simple(id) => Cow::Owned(simple(id)),
            Self::Hyphenated(id) => Cow::Owned(Uuid::from_bytes(id).hyphenated().to_string()),
            Self::Gateway(id) => Cow::Owned(format!("{GATEWAY}{}", simple(id))),
            Self::Answered(status, bytes) => Cow::Owned(sentence(status, bytes)),
        }
    }
}

/// The 16 bytes of 32 lower-case hex digits.
fn simple(text: &str) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    (is_lower && hex::decode_to_slice(text, &mut id).is_ok()).then_some(id)
}

/// The ledger's sentence about an attempt that was answered.
fn sentence(status: u16, bytes: u64) -> String {
    format!("the tool answered {status} with {bytes} bytes")
}

/// The status and the length from such a sentence.
fn answered(text: &str) -> Option<(u16, u64)> {
    let (status, rest) = text
        .strip_prefix("the tool answered ")?
        .split_once(" with ")?;
    let bytes = rest.strip_suffix(" bytes")?;
    let (status, bytes) = (status.parse().ok()?, bytes.parse().ok()?);
    // Numbers such as "+1" or "01" would not decode to the same text.
    (sentence(status, bytes) == text).then_some((status, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_not_in_the_list_is_refused() {
        for place in 0..=u8::MAX {
            let stored = postcard::to_allocvec(&Text::Word(place)).expect("encoded");
            let read = postcard::from_bytes::<Text<'_>>(&stored);
            assert_eq!(read.is_ok(), usize::from(place) < WORDS.len(), "{place}");
        }
    }
}
