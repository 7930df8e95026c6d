//! Business fields that people type: what does not count in them.

use icu_normalizer::ComposingNormalizerBorrowed;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Pointer;
use crate::words::words;

words! {
    /// What does not count in a text that people type.
    pub enum Fold {
        /// Upper and lower case.
        Case = "case",
        /// Spaces around the text, and how many there are within it.
        Space = "space",
        /// Whether a letter and its accent are one character or two (NFC of Unicode).
        Nfc = "nfc",
    }
}

impl Serialize for Fold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Fold {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Self::of(&word).ok_or_else(|| D::Error::custom("it is not one of case, space, nfc"))
    }
}

impl Fold {
    /// The text without what does not count.
    fn fold(self, text: &str) -> String {
        match self {
            Self::Case => text.to_lowercase(),
            Self::Space => text.split_whitespace().collect::<Vec<_>>().join(" "),
            Self::Nfc => ComposingNormalizerBorrowed::new_nfc()
                .normalize(text)
                .into_owned(),
        }
    }
}

/// A business field, and what does not count in its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Folded {
    pub field: Pointer,
    /// Each once, in the order of [`Fold`].
    pub fold: Vec<Fold>,
}

impl Folded {
    /// Folds the text at the field. Values other than texts stay as they are.
    pub fn fold_in(&self, args: &mut Value) {
        if let Some(Value::String(text)) = args.pointer_mut(self.field.as_str()) {
            // Composed last once more: lower case may take a letter and its accent apart.
            let nfc = self.fold.iter().filter(|fold| **fold == Fold::Nfc);
            for fold in self.fold.iter().chain(nfc) {
                *text = fold.fold(text);
            }
        }
    }
}
