//! Redaction: which arguments are never kept, and which results are never shown.

use bytes::Bytes;
use serde_json::Value;

use crate::json;
use crate::key::Pointer;

/// The text in place of a redacted value.
pub const MASK: &str = "[redacted]";

/// Which parts of a tool's calls are secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Secret arguments: the tool gets them and the fingerprint covers them, but they are not kept.
    pub args: Vec<Pointer>,
    /// Secret parts of results and rejections: kept for duplicates, but not shown in the ledger.
    pub result: Vec<Pointer>,
}

/// Masks these places of a JSON text. A text that cannot be read is masked as a whole.
pub fn mask(json: &Bytes, places: &[Pointer]) -> Bytes {
    if places.is_empty() {
        return json.clone();
    }
    let Ok(mut value) = json::read(json) else {
        return format!("\"{MASK}\"").into();
    };
    mask_in(&mut value, places);
    // The text is always written anew: only the last of several members of one name was masked.
    value.to_string().into()
}

/// Masks these places of a value.
pub fn mask_in(value: &mut Value, places: &[Pointer]) {
    for place in places {
        if let Some(found) = value.pointer_mut(place.as_str()) {
            *found = MASK.into();
        }
    }
}

/// Whether any part of a value is masked.
pub fn holds_mask(value: &Value) -> bool {
    match value {
        Value::String(text) => text == MASK,
        Value::Array(items) => items.iter().any(holds_mask),
        Value::Object(members) => members.values().any(holds_mask),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

impl Policy {
    /// Whether nothing is hidden.
    pub fn is_empty(&self) -> bool {
        self.args.is_empty() && self.result.is_empty()
    }
}

/// Whether stored arguments are whole: a readable object without a mask.
///
/// Other arguments must never be sent to a tool, whatever the configuration says today.
pub fn is_whole(args: &[u8]) -> bool {
    let mask = format!("\"{MASK}\"");
    args.first() == Some(&b'{') && !args.windows(mask.len()).any(|some| some == mask.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_masked_and_nothing_else() {
        let places: Vec<Pointer> = ["/card/number", "/lines/1"]
            .map(|place| place.parse().expect("a pointer"))
            .to_vec();
        for (json, masked) in [
            (
                "{\"card\":{\"number\":\"4111\",\"kind\":\"v\"},\"lines\":[1,2]}",
                "{\"card\":{\"kind\":\"v\",\"number\":\"[redacted]\"},\"lines\":[1,\"[redacted]\"]}",
            ),
            ("{ \"card\": 1.0 }", "{\"card\":1.0}"),
            ("{\"card\":{\"number\":1},\"card\":1}", "{\"card\":1}"),
            ("secret", "\"[redacted]\""),
        ] {
            assert_eq!(mask(&Bytes::from(json), &places), masked);
        }
        assert_eq!(mask(&Bytes::from("secret"), &[]), "secret");
    }

    #[test]
    fn only_whole_arguments_are_sent() {
        for (args, whole) in [
            ("{}", true),
            ("{\"a\":1}", true),
            ("{\"a\":\"[redacted]\"}", false),
            ("\u{1}abcd", false),
            ("", false),
        ] {
            assert_eq!(is_whole(args.as_bytes()), whole, "{args}");
        }
    }
}
