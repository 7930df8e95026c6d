//! How many values a JSON text has, and how much memory they take. It is known before anything is built.

/// Bytes of a value beside its text: its place in a list or an object, and the allocations of its name and its text.
const VALUE: usize = 128;
/// Bytes of an object with a member: its first node has room for eleven members.
const OBJECT: usize = 640;

/// The weight of a text, once it is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight {
    /// Each member and each item counts, and the whole.
    pub values: usize,
    /// Bytes of memory that the values take.
    pub bytes: usize,
}

/// Weighs a text. What is not JSON has a weight, too: readers build a part of it before they notice.
pub fn weigh(text: &[u8]) -> Weight {
    let (mut values, mut objects, mut is_text, mut is_escaped) = (1_usize, 0_usize, false, false);
    // Whether the last sign has opened a list or an object, which may be empty.
    let mut opened = None;
    for byte in text {
        if is_text {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => is_text = false,
                _ => {}
            }
            continue;
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            continue;
        }
        let is_empty = matches!(byte, b']' | b'}');
        if let Some(is_object) = opened.take().filter(|_| !is_empty) {
            values += 1;
            objects += usize::from(is_object);
        }
        match byte {
            b'"' => is_text = true,
            b',' => values += 1,
            b'[' => opened = Some(false),
            b'{' => opened = Some(true),
            _ => {}
        }
    }
    Weight {
        values,
        bytes: values * VALUE + objects * OBJECT + text.len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn count(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(count).sum(),
            Value::Object(members) => members.values().map(count).sum(),
            _ => 0,
        }
    }

    #[test]
    fn every_member_and_every_item_counts() {
        for value in [
            json!(1),
            json!("a,[{\\\",{"),
            json!([]),
            json!({}),
            json!([[], {}, [{ "": 0 }], "}]"]),
            json!({ "a,b": { "c": [1, "\\", 3] }, "d\"": null }),
        ] {
            assert_eq!(
                weigh(value.to_string().as_bytes()).values,
                count(&value),
                "{value}"
            );
            let spaced = serde_json::to_string_pretty(&value).expect("text");
            assert_eq!(weigh(spaced.as_bytes()).values, count(&value), "{value}");
        }
    }

    #[test]
    fn small_objects_weigh_much_more_than_they_are_long() {
        let text = format!("[{}0]", "{\"\":0},".repeat(1_000));
        assert!(weigh(text.as_bytes()).bytes > 640 * 1_000);
        let text = format!("\"{}\"", "{\\\"".repeat(1_000));
        assert!(weigh(text.as_bytes()).bytes < 2 * text.len());
    }

    proptest! {
        #[test]
        fn any_text_has_a_weight(text in any::<Vec<u8>>()) {
            let weight = weigh(&text);
            prop_assert!(weight.values <= text.len() + 1 && weight.bytes >= text.len());
        }
    }
}
