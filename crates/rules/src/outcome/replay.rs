//! Verified replay: whether a tool gives the same answer as before.

use std::collections::HashSet;

use serde_json::Value;

use crate::key::Pointer;

/// Most differences that are named.
const MAX_DIFFERENCES: usize = 100;

/// The tool's answer to the repeated request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fresh {
    /// A result, and where it differs from the stored one.
    Compared(Vec<String>),
    /// An answer that cannot be compared; says why.
    Unclear(String),
}

/// Where two results differ, as JSON Pointers. Places below `ignore` do not count.
///
/// A result that is not JSON differs as a whole.
pub fn differences(stored: &[u8], fresh: &[u8], ignore: &[Pointer]) -> Vec<String> {
    if stored == fresh {
        return Vec::new();
    }
    let read = |json: &[u8]| -> Option<Value> {
        let mut value = serde_json::from_slice(json).ok()?;
        for pointer in ignore {
            pointer.remove_from(&mut value);
        }
        Some(value)
    };
    let (Some(stored), Some(fresh)) = (read(stored), read(fresh)) else {
        return vec![String::new()];
    };
    let mut known = HashSet::new();
    let found = places(&stored, &fresh).filter(|place| known.insert(place.clone()));
    found.take(MAX_DIFFERENCES).collect()
}

/// Where two values differ, as JSON Pointers.
pub fn places(one: &Value, other: &Value) -> impl Iterator<Item = String> {
    json_patch::diff(one, other)
        .0
        .into_iter()
        .map(|operation| operation.path().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stored: &str, fresh: &str, ignore: &[&str], expected: &[&str]) {
        let ignore: Vec<Pointer> = ignore
            .iter()
            .map(|pointer| pointer.parse().expect("a pointer"))
            .collect();
        let mut found = differences(stored.as_bytes(), fresh.as_bytes(), &ignore);
        found.sort();
        assert_eq!(found, expected, "{stored} {fresh}");
    }

    #[test]
    fn differences_are_named_by_their_place() {
        check("{\"a\":1}", "{\"a\":1}", &[], &[]);
        check("{\"a\":1, \"b\":2}", "{\"b\":2,\"a\":1}", &[], &[]);
        check("{\"a\":1}", "{\"a\":2}", &[], &["/a"]);
        check(
            "{\"a\":{\"b\":[1,2]}}",
            "{\"a\":{\"b\":[1,3]}}",
            &[],
            &["/a/b/1"],
        );
        check("{\"a\":1}", "{\"b\":1}", &[], &["/a", "/b"]);
        check("{\"a/b\":1}", "{\"a/b\":2}", &[], &["/a~1b"]);
        check("[1]", "[1,2]", &[], &["/1"]);
        check("1", "2", &[], &[""]);
        check("no json", "1", &[], &[""]);
    }

    #[test]
    fn what_is_ignored_does_not_count() {
        let stored = "{\"id\":1,\"at\":\"noon\",\"log\":{\"at\":1,\"by\":2}}";
        let fresh = "{\"id\":1,\"at\":\"night\",\"log\":{\"at\":2,\"by\":2}}";
        check(stored, fresh, &["/at", "/log/at"], &[]);
        check(stored, fresh, &["/at"], &["/log/at"]);
        check(
            stored,
            fresh,
            &["/nowhere", "/at/deep"],
            &["/at", "/log/at"],
        );
    }

    #[test]
    fn many_differences_have_a_bound() {
        let object = |n: usize| {
            (0..300)
                .map(|i| (format!("k{i}"), Value::from(i + n)))
                .collect::<Value>()
        };
        let found = differences(
            object(0).to_string().as_bytes(),
            object(1).to_string().as_bytes(),
            &[],
        );
        assert_eq!(found.len(), MAX_DIFFERENCES);
    }
}
