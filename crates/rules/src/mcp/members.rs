//! JSON objects, and their members in order, each as it was written.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object. A repeated name is here twice.
pub struct Members<'a>(pub Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// Reads an object; `None`: anything else, arrays included.
pub(super) fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    let is_object = json.trim_ascii_start().starts_with(b"{");
    is_object.then(|| serde_json::from_slice(json).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_and_their_bytes() {
        let text = r#"{ "b\u0062" : 1.50, "a": [ 1 ], "b": {"x" :1} }"#;
        let members: Members<'_> = serde_json::from_str(text).expect("an object");
        let members: Vec<(&str, &str)> = members
            .0
            .iter()
            .map(|(name, value)| (name.as_str(), value.get()))
            .collect();
        assert_eq!(
            members,
            [("bb", "1.50"), ("a", "[ 1 ]"), ("b", "{\"x\" :1}")]
        );
        let other = serde_json::from_str::<Members<'_>>("[]").map(|_| ());
        let why = other.expect_err("a list").to_string();
        assert!(why.contains("expected an object"), "{why}");
    }
}
