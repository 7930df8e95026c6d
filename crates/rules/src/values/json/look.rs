//! Looks into a JSON text without building what is in it.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

/// How deep the values of a text stand in each other; `None`: it is not JSON that can be read.
///
/// A number or a text alone is one deep.
pub fn depth(text: &[u8]) -> Option<usize> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let depth = Depth.deserialize(&mut reader).ok()?;
    reader.end().ok()?;
    Some(depth)
}

#[derive(Clone, Copy)]
struct Depth;

impl<'de> DeserializeSeed<'de> for Depth {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Depth {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<usize, E> {
        Ok(1)
    }

    fn visit_bool<E>(self, _: bool) -> Result<usize, E> {
        Ok(1)
    }

    fn visit_i64<E>(self, _: i64) -> Result<usize, E> {
        Ok(1)
    }

    fn visit_u64<E>(self, _: u64) -> Result<usize, E> {
        Ok(1)
    }

    fn visit_f64<E>(self, _: f64) -> Result<usize, E> {
        Ok(1)
    }

    fn visit_str<E>(self, _: &str) -> Result<usize, E> {
        Ok(1)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<usize, A::Error> {
        let mut deepest = 0;
        while let Some(depth) = items.next_element_seed(self)? {
            deepest = deepest.max(depth);
        }
        Ok(deepest + 1)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<usize, A::Error> {
        let mut deepest = 0;
        while members.next_key_seed(self)?.is_some() {
            deepest = deepest.max(members.next_value_seed(self)?);
        }
        Ok(deepest + 1)
    }
}

/// The text of the value to which these steps lead; `None`: there is none.
///
/// Of members with the same name the last one counts.
///
/// # Errors
/// The text is not JSON.
pub fn at(
    text: &str,
    steps: impl IntoIterator<Item = String>,
) -> Result<Option<&str>, serde_json::Error> {
    let whole: &RawValue = serde_json::from_str(text)?;
    let mut found = whole.get();
    for step in steps {
        if !found.starts_with(['[', '{']) {
            return Ok(None);
        }
        let mut reader = serde_json::Deserializer::from_str(found);
        match Step(&step).deserialize(&mut reader)? {
            Some(below) => found = below.get(),
            None => return Ok(None),
        }
    }
    Ok(Some(found))
}

struct Step<'s>(&'s str);

impl<'de> DeserializeSeed<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        // As JSON Pointers write numbers: without a sign, and without zeros in front.
        let number = self.0.parse::<usize>().ok();
        let number = number.filter(|number| number.to_string() == self.0);
        let mut found = None;
        for n in 0.. {
            if Some(n) == number {
                found = items.next_element()?;
                if found.is_none() {
                    break;
                }
            } else if items.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = members.next_key::<String>()? {
            if name == self.0 {
                found = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Does something with the text of each item of a list, one after the other.
///
/// # Errors
/// The text is not a list; or what was done with an item has failed.
pub fn each(
    list: &str,
    act: impl FnMut(&str) -> Result<(), String>,
) -> Result<(), serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(list);
    Each(act).deserialize(&mut reader)
}

struct Each<F>(F);

impl<'de, F: FnMut(&str) -> Result<(), String>> DeserializeSeed<'de> for Each<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(&str) -> Result<(), String>> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<&RawValue>()? {
            self.0(item.get()).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_a_pointer_leads_to_is_what_it_leads_to_in_the_value() {
        let text = r#" {"a":[1,{"b~c/d":"x"},[]],"":{"":2},"e":1,"e":[3]} "#;
        let value: Value = serde_json::from_str(text).expect("JSON");
        for place in [
            "",
            "/a",
            "/a/0",
            "/a/1/b~0c~1d",
            "/a/2/0",
            "/a/3",
            "/a/00",
            "/a/+1",
            "/a/-",
            "/",
            "//",
            "/e",
            "/e/0",
            "/x",
            "/a/0/0",
            "/e/0/x",
        ] {
            let steps = place.split('/').skip(1);
            let steps = steps.map(|step| step.replace("~1", "/").replace("~0", "~"));
            let found = at(text, steps).expect("JSON");
            let found = found.map(|found| serde_json::from_str::<Value>(found).expect("JSON"));
            assert_eq!(found.as_ref(), value.pointer(place), "{place}");
        }
        assert!(at("{\"a\":1", ["a".to_owned()]).is_err());
    }

    #[test]
    fn depth_is_that_of_the_value() {
        for (text, levels) in [
            ("0", Some(1)),
            ("[]", Some(1)),
            ("[[],{\"a\":[{}]}]", Some(4)),
            ("\"\\ud800\"", None),
            ("1e400", None),
            ("{\"\\ud800\":1}", None),
            ("[1] 2", None),
        ] {
            assert_eq!(depth(text.as_bytes()), levels, "{text}");
        }
        assert_eq!(depth(&[b'['; 10_000]), None);
    }

    #[test]
    fn each_item_of_a_list_is_seen_until_one_fails() {
        let mut seen = Vec::new();
        let mut note = |item: &str| {
            seen.push(item.to_owned());
            if item == "3" {
                Err("enough".to_owned())
            } else {
                Ok(())
            }
        };
        assert!(each("[1,{\"a\": 2}]", &mut note).is_ok());
        let error = each("[3,4]", &mut note).expect_err("it fails");
        assert!(error.to_string().starts_with("enough"), "{error}");
        assert_eq!(seen, ["1", "{\"a\": 2}", "3"]);
        assert!(each("{}", |_| Ok(())).is_err());
    }

    proptest! {
        #[test]
        fn a_text_that_can_be_read_has_a_depth_and_no_other_has(text in any::<String>()) {
            prop_assert_eq!(depth(text.as_bytes()).is_some(), serde_json::from_str::<Value>(&text).is_ok());
        }
    }
}
