//! The aliases of a call, as both stores keep them. Must not decide anything.

use crate::core::key::Lookup;
use crate::core::recipe::RecipeId;
use crate::core::record::Alias;

/// As a JSON text: of each its fingerprint, its recipe and its names, in hex digits. Empty if there are none.
pub(super) fn write(aliases: &[Alias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let one = |alias: &Alias| {
        let names: String = alias.names.iter().map(|name| hex::encode(name.0)).collect();
        [
            hex::encode(alias.fingerprint),
            hex::encode(alias.recipe.0),
            names,
        ]
    };
    serde_json::json!(aliases.iter().map(one).collect::<Vec<_>>()).to_string()
}

/// `None`: this was never written.
pub(super) fn read(text: &str) -> Option<Vec<Alias>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let stored: Vec<[String; 3]> = serde_json::from_str(text).ok()?;
    let one = |[fingerprint, recipe, names]: [String; 3]| {
        Some(Alias {
            names: self::names(&hex::decode(names).ok()?)?,
            fingerprint: bytes(&fingerprint)?,
            recipe: RecipeId(bytes(&recipe)?),
        })
    };
    stored.into_iter().map(one).collect()
}

/// Names that were written one after the other; `None`: they are cut off.
pub(super) fn names(bytes: &[u8]) -> Option<Vec<Lookup>> {
    let (names, rest) = bytes.as_chunks();
    rest.is_empty()
        .then(|| names.iter().copied().map(Lookup).collect())
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}
