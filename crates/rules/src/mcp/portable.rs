//! JSON that every client of MCP can read.
//!
//! Clients refuse a whole message for one value in it: half of a character (a lone surrogate), a number that is too
//! large, or values that are nested too deeply. Then they do not learn that the call was executed.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// How deeply values may be nested. Around them there are a few levels of the message.
const MAX_DEPTH: u8 = 100;

/// Whether every client can read this JSON as a part of a message.
pub fn is_portable(json: &[u8]) -> bool {
    let mut reader = serde_json::Deserializer::from_slice(json);
    Value(MAX_DEPTH).read(&mut reader).is_ok() && reader.end().is_ok()
}

/// One value, and how deeply others may be nested in it.
struct Value(u8);

impl Value {
    fn read<'de, D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }

    fn inner<E: Error>(&self) -> Result<u8, E> {
        let inner = self.0.checked_sub(1);
        inner.ok_or_else(|| E::custom("it is nested too deeply"))
    }
}

/// The same, as a seed: serde hands on no state otherwise.
impl<'de> serde::de::DeserializeSeed<'de> for Value {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        self.read(reader)
    }
}

impl<'de> Visitor<'de> for Value {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let depth = self.inner()?;
        while list.next_element_seed(Value(depth))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        struct Name;
        impl<'de> Deserialize<'de> for Name {
            fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
                Value(0).read(reader).map(|()| Self)
            }
        }
        let depth = self.inner()?;
        while members.next_key::<Name>()?.is_some() {
            members.next_value_seed(Value(depth))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nested(depth: usize) -> String {
        format!("{}1{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn what_some_client_refuses_is_not_portable() {
        for json in [
            r#""\ud83d""#,
            r#""\ude00x""#,
            r#"{"\ud83d":1}"#,
            r#"[{"a":["\ud83d\u0041"]}]"#,
            "1e999",
            &nested(101),
            "[1] 2",
            "",
        ] {
            assert!(!is_portable(json.as_bytes()), "{json}");
        }
        for json in [
            r#""\ud83d\ude00""#,
            r#"{"a":"\\ud83d","b":[null,true,-1,1.50,123456789012345678901234567890]}"#,
            r#""[[[[""#,
            &nested(100),
            " {} ",
        ] {
            assert!(is_portable(json.as_bytes()), "{json}");
        }
    }

    proptest! {
        #[test]
        fn what_is_portable_is_read_by_a_strict_reader(text in r#"[\[\]{}:,"a1e\\ud8x. -]{0,24}"#) {
            let is_read = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert_eq!(is_portable(text.as_bytes()), is_read, "{}", text);
        }
    }
}
