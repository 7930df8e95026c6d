//! Text for TOML: keys, values and comments from foreign text.

use serde_json::{Map, Value};
use toml_writer::{ToTomlKey, ToTomlValue, TomlKeyBuilder, TomlStringBuilder};

pub(super) use oncegate_rules::schema::cut;

/// The longest line of a comment, in bytes.
const MAX_COMMENT: usize = 400;

/// A key of a table.
pub(super) fn key(name: &str) -> String {
    let key = TomlKeyBuilder::new(name);
    key.as_unquoted()
        .unwrap_or_else(|| key.as_basic())
        .to_toml_key()
}

/// A text on one line.
pub(super) fn string(text: &str) -> String {
    TomlStringBuilder::new(text).as_basic().to_toml_value()
}

/// A value on one line. It must hold no null, which TOML lacks.
pub(super) fn value(value: &Value) -> String {
    match value {
        Value::Null => "{}".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.to_string(),
            (None, Some(fraction)) => fraction.to_toml_value(),
            (None, None) => "0".into(),
        },
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(self::value).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => table(members),
    }
}

fn table(members: &Map<String, Value>) -> String {
    if members.is_empty() {
        return "{}".into();
    }
    let pair = |(name, member): (&String, &Value)| format!("{} = {}", key(name), value(member));
    // `type` stands first, because the other keywords refine it.
    let is_kind = |(name, _): &(&String, &Value)| *name == "type";
    let (kind, others): (Vec<_>, Vec<_>) = members.iter().partition(is_kind);
    let members: Vec<String> = kind.into_iter().chain(others).map(pair).collect();
    format!("{{ {} }}", members.join(", "))
}

/// A text for a comment: one short line without invisible characters.
pub(super) fn line(text: &str) -> String {
    let is_apart = |c: char| c.is_whitespace() || c.is_control() || turns_text(c);
    let mut out = String::new();
    for word in text.split(is_apart).filter(|word| !word.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
        if out.len() > MAX_COMMENT {
            break;
        }
    }
    cut(&out, MAX_COMMENT)
}

/// Whether a character changes the order in which editors show text.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_comment_is_one_short_line_without_invisible_characters() {
        assert_eq!(
            line(" a\n[tools.b]\r\u{7}\u{202e}c\u{2028}d "),
            "a [tools.b] c d"
        );
        let long = line(&"äb ".repeat(1_000));
        assert!(
            long.len() < MAX_COMMENT + 4 && long.ends_with('…'),
            "{long}"
        );
    }

    #[test]
    fn keys_and_values_are_quoted_where_toml_needs_it() {
        assert_eq!(
            (key("a-b_1"), key("a.b"), key("")),
            ("a-b_1".into(), "\"a.b\"".into(), "\"\"".into())
        );
        let whole =
            json!({ "z": [1, -2.5, true, u64::MAX], "type": "a\n\"", "e": {}, "]": "\u{7f}" });
        assert_eq!(
            value(&whole),
            r#"{ type = "a\n\"", "]" = "\u007F", e = {}, z = [1, -2.5, true, 18446744073709552000.0] }"#
        );
    }
}
