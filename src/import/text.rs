//! Text for TOML: keys, values and comments, of what a stranger has written.

use serde_json::{Map, Value};
use toml_writer::{ToTomlKey, ToTomlValue, TomlKeyBuilder, TomlStringBuilder};

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

/// A value on one line. TOML has no null: nothing that has one comes here.
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
    // What kind of value is meant, before the rest about it.
    let is_kind = |(name, _): &(&String, &Value)| *name == "type";
    let (kind, others): (Vec<_>, Vec<_>) = members.iter().partition(is_kind);
    let members: Vec<String> = kind.into_iter().chain(others).map(pair).collect();
    format!("{{ {} }}", members.join(", "))
}

/// A text that a comment may hold: one line that shows what it says, and is not too long.
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

/// Whether a character makes an editor show those beside it in another order.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The beginning of a text.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)])
}
