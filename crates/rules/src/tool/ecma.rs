//! Patterns of schemas that look around, or refer back.
//!
//! JSON Schema's patterns are those of ECMAScript. The validator translates plain ones, and leaves the others as they
//! are: to its engine `\d` is a digit of any script. Here they get the same meaning as in ECMAScript.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// The members of classes, as ECMAScript has them.
const DIGIT: &str = "0-9";
const WORD: &str = "A-Za-z0-9_";
const SPACE: &str = r"\t\n\x0B\x0C\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}";
/// All other characters, for use in a class: the validator takes a class in a class for text.
const NO_DIGIT: &str = r"\x00-\x2F\x3A-\x{10FFFF}";
const NO_WORD: &str = r"\x00-\x2F\x3A-\x40\x5B-\x5E\x60\x7B-\x{10FFFF}";
const NO_SPACE: &str = r"\x00-\x08\x0E-\x1F\x21-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{FEFE}\x{FF00}-\x{10FFFF}";
/// What `.` does not match.
const LINE_ENDS: &str = r"\n\r\x{2028}\x{2029}";

/// Keywords whose values are data, and no schemas.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

/// A schema with its patterns translated, and each translated pattern with the one that was written.
pub(crate) fn translated(schema: &Value) -> (Cow<'_, Value>, Vec<(String, String)>) {
    if !has_any(schema) {
        return (Cow::Borrowed(schema), Vec::new());
    }
    let (mut schema, mut all) = (schema.clone(), Vec::new());
    translate_in(&mut schema, &mut all);
    (Cow::Owned(schema), all)
}

fn has_any(schema: &Value) -> bool {
    match schema {
        Value::String(text) => looks_around(text),
        Value::Array(items) => items.iter().any(has_any),
        Value::Object(members) => {
            let mut members = members.iter();
            members.any(|(name, value)| looks_around(name) || has_any(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn translate_in(schema: &mut Value, all: &mut Vec<(String, String)>) {
    let translate = |pattern: &str, all: &mut Vec<(String, String)>| {
        let translated = looks_around(pattern).then(|| of_ecma(pattern))?;
        all.push((translated.clone(), pattern.to_owned()));
        Some(translated)
    };
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| translate_in(item, all)),
        Value::Object(members) => {
            for (name, value) in members {
                match (name.as_str(), &mut *value) {
                    ("pattern", Value::String(pattern)) => {
                        if let Some(translated) = translate(pattern, all) {
                            *pattern = translated;
                        }
                    }
                    ("patternProperties", Value::Object(patterns)) => {
                        let old = std::mem::take(patterns).into_iter();
                        let new = old.map(|(pattern, schema)| {
                            (translate(&pattern, all).unwrap_or(pattern), schema)
                        });
                        *patterns = new.collect::<Map<_, _>>();
                        translate_in(value, all);
                    }
                    (name, value) if !DATA.contains(&name) => translate_in(value, all),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// Whether a pattern looks around or refers back. Some others count, too: the translation of those is the same.
fn looks_around(pattern: &str) -> bool {
    let back =
        |escape: &str| escape.starts_with(|one: char| one == 'k' || matches!(one, '1'..='9'));
    ["(?=", "(?!", "(?<=", "(?<!"]
        .iter()
        .any(|start| pattern.contains(start))
        || pattern.split('\\').skip(1).any(back)
}

/// The pattern for an engine whose classes are those of Unicode.
fn of_ecma(pattern: &str) -> String {
    let (mut out, mut in_class) = (String::new(), false);
    let mut chars = pattern.chars();
    while let Some(one) = chars.next() {
        match one {
            '\\' => match chars.next() {
                Some(escape) => out.push_str(&escaped(escape, &mut chars, in_class)),
                None => out.push('\\'),
            },
            '[' if !in_class => {
                in_class = true;
                out.push('[');
            }
            // The engine would take it for the begin of a class in the class.
            '[' => out.push_str(r"\["),
            ']' => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(one);
            }
            '.' if !in_class => out.push_str(&format!("[^{LINE_ENDS}]")),
            other => out.push(other),
        }
    }
    out
}

/// What stands for an escape.
fn escaped(escape: char, rest: &mut std::str::Chars<'_>, in_class: bool) -> String {
    let class = |members: &str| match in_class {
        true => members.to_owned(),
        false => format!("[{members}]"),
    };
    match escape {
        'd' => class(DIGIT),
        'w' => class(WORD),
        's' => class(SPACE),
        'D' => class(NO_DIGIT),
        'W' => class(NO_WORD),
        'S' => class(NO_SPACE),
        'b' if in_class => r"\x08".to_owned(),
        'b' => format!("(?:(?<=[{WORD}])(?![{WORD}])|(?<![{WORD}])(?=[{WORD}]))"),
        'B' if !in_class => format!("(?:(?<=[{WORD}])(?=[{WORD}])|(?<![{WORD}])(?![{WORD}]))"),
        'c' => match rest.next() {
            Some(letter) if letter.is_ascii_alphabetic() => {
                format!(r"\x{:02X}", u32::from(letter) % 32)
            }
            Some(other) => format!(r"\c{other}"),
            None => r"\c".to_owned(),
        },
        other => format!("\\{other}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::schema::Schema;

    fn matches(pattern: &str, text: &str) -> bool {
        let schema = Schema::new(json!({ "pattern": pattern })).expect("a schema");
        schema.mistakes(&json!(text)).is_empty()
    }

    #[test]
    fn a_pattern_that_looks_around_keeps_the_rules_of_ecmascript() {
        for (pattern, good, bad) in [
            // Digits of other scripts are not digits, letters of other scripts are not of words.
            (r"^(?!0)\d+$", "123", "\u{661}\u{662}"),
            (r"^(?!0)[\d-]+$", "1-2", "\u{661}-"),
            (r"^(?!0)\w+$", "abc_1", "äb"),
            (r"^(?!0)\D+$", "\u{661}", "1"),
            (r"^(?!0)[\Dx]+$", "\u{661}x", "1"),
            (r"^(?!0)\W+$", "ä", "a"),
            (r"^(?!0)\S+$", "a\u{85}", "a\u{feff}"),
            (r"^(?!0)a\sb$", "a\u{feff}b", "a\u{85}b"),
            (r"^(?!0).+$", "a\u{85}", "a\u{2028}"),
            (r"^(?!0).$", "a", "\r"),
            (r"^(?=.*\bä).*$", "aä", "ä"),
            (r"^(?=a)[a.&&b]+$", "a.&b", "ac"),
            (r"^(?=[[])[[]$", "[", "a"),
            (r"^(?=a)a$", "a", "a\n"),
            (r"^(\d)\1$", "11", "\u{661}\u{661}"),
            (r"^(?<!x)\w$", "a", "é"),
            (r"^(?=\cJ)\n$", "\n", "J"),
        ] {
            assert!(matches(pattern, good), "{pattern} {good:?}");
            assert!(!matches(pattern, bad), "{pattern} {bad:?}");
        }
    }

    #[test]
    fn the_schema_is_shown_and_quoted_as_it_was_written() {
        let text = json!({
            "properties": { "pattern": { "pattern": r"^(?!x)\d$", "default": r"(?!)\d" } },
            "patternProperties": { r"^(?=k)\w+$": { "type": "integer" } },
            "additionalProperties": false,
        });
        let schema = Schema::new(text.clone()).expect("a schema");
        assert_eq!(schema.text(), &text);
        assert_eq!(schema.mistakes(&json!({ "pattern": "1", "k1": 1 })), []);
        let mistakes = schema.mistakes(&json!({ "pattern": "x" }));
        assert!(mistakes[0].1.contains(r"^(?!x)\d$"), "{mistakes:?}");
        assert_eq!(schema.mistakes(&json!({ "kä": 1 })).len(), 1);
    }
}
