//! Where the arguments of a request differ from those of the stored call.
//!
//! It tells places, and no values.

use serde_json::Value;

use super::KeyScheme;
use crate::schema::holder_of;
use crate::{json, redact, replay};

/// Most places that are reported.
pub const MAX_PLACES: usize = 8;
/// The longest arguments that are compared, in bytes.
const MAX_ARGS: usize = 64 * 1024;

impl KeyScheme {
    /// JSON Pointers to the arguments that count, and differ from the stored ones.
    ///
    /// A pointer that is too long is cut to a parent of the place. None where any argument of the tool is redacted, or
    /// the stored arguments are not whole.
    pub fn differing(&self, stored: &[u8], args: &[u8]) -> Vec<String> {
        if !self.redacted.is_empty()
            || !redact::is_whole(stored)
            || stored.len().max(args.len()) > MAX_ARGS
        {
            return Vec::new();
        }
        let compared = |args: &[u8]| -> Option<Value> {
            let args = json::parse(str::from_utf8(args).ok()?).ok()?;
            Some(self.compared(&self.counted(&args)).into_owned())
        };
        let (Some(stored), Some(args)) = (compared(stored), compared(args)) else {
            return Vec::new();
        };
        let places = replay::places(&stored, &args);
        let mut places: Vec<String> = places.map(|place| holder_of(&place)).collect();
        places.sort();
        places.dedup();
        places.truncate(MAX_PLACES);
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tool;
    use crate::tool::Tool;

    fn differing(tool: &Tool, stored: &str, args: &str) -> Vec<String> {
        KeyScheme::of(tool).differing(stored.as_bytes(), args.as_bytes())
    }

    #[test]
    fn places_are_told_without_what_is_ignored_and_never_where_something_is_redacted() {
        let mut tool = tool("t");
        tool.key.ignore = vec!["/note".parse().expect("a pointer")];
        let stored = r#"{"id":1,"note":"a","line":{"sku":"w"}}"#;
        let args = r#"{"id":1,"note":"b","line":{"sku":"x"},"more":1,"idempotency_key":"m"}"#;
        assert_eq!(differing(&tool, stored, args), ["/line/sku", "/more"]);
        assert_eq!(differing(&tool, r#"{"id":"[redacted]"}"#, args), [""; 0]);
        tool.redact.args = vec!["/card".parse().expect("a pointer")];
        assert_eq!(differing(&tool, stored, args), [""; 0]);
    }

    #[test]
    fn places_are_few_and_short() {
        let tool = tool("t");
        let object = |value: usize| {
            let members = (0..50).map(|n| (format!("m{n}"), Value::from(value)));
            members.collect::<serde_json::Map<_, _>>()
        };
        let json = |value: usize| Value::Object(object(value)).to_string();
        assert_eq!(differing(&tool, &json(1), &json(2)).len(), MAX_PLACES);
        let long = "n".repeat(500);
        let deep = |value: u8| format!("{{\"a\":{{\"{long}\":{value}}}}}");
        assert_eq!(differing(&tool, &deep(1), &deep(2)), ["/a"]);
        let large = |value: u8, size: usize| {
            let around = r#"{"a":1,"b":""}"#.len();
            format!("{{\"a\":{value},\"b\":\"{}\"}}", "x".repeat(size - around))
        };
        let of_size = |one, other| differing(&tool, &large(1, one), &large(2, other));
        assert_eq!(of_size(MAX_ARGS, MAX_ARGS), ["/a"]);
        assert_eq!(of_size(MAX_ARGS + 1, MAX_ARGS + 1), [""; 0]);
    }
}
