//! Names and values of queries and forms: `a[b]=c`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};

use super::{Mistakes, mistake, pointer_to};
use crate::words::words;

/// All but the unreserved characters (RFC 3986, section 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

words! {
    /// How a list is written, by the words of the setting `arrays`.
    pub enum Lists {
        /// `a[0]=1&a[1]=2`.
        Indices = "indices",
        /// `a[]=1&a[]=2`.
        Brackets = "brackets",
        /// `a=1&a=2`.
        Repeat = "repeat",
        /// `a=1,2`.
        Comma = "comma",
    }
}

/// Percent-encodes all but unreserved characters.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// A string, number or boolean as a text.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The members of an object as `name=value&…`.
///
/// # Errors
/// A member cannot be written so that a reader gets the same value.
pub(super) fn write_pairs(body: &Map<String, Value>, lists: Lists) -> Result<String, Mistakes> {
    let mut pairs = Vec::new();
    for (name, value) in body {
        check_name(name)
            .and_then(|()| write_pair(name, value, lists, &mut pairs))
            .map_err(|why| mistake(&pointer_to(name), why))?;
    }
    Ok(pairs.join("&"))
}

/// One value under its name.
///
/// # Errors
/// Why it cannot be written.
pub(super) fn write_pair(
    name: &str,
    value: &Value,
    lists: Lists,
    pairs: &mut Vec<String>,
) -> Result<(), &'static str> {
    match value {
        Value::Null => pairs.push(format!("{}=", encode(name))),
        Value::Array(items) => write_list(name, items, lists, pairs)?,
        Value::Object(members) if members.is_empty() => {
            return Err("an empty object cannot be written in a query or a form; leave it out");
        }
        Value::Object(members) => {
            for (member, value) in members {
                check_name(member)?;
                write_pair(&format!("{name}[{member}]"), value, lists, pairs)?;
            }
        }
        Value::String(_) | Value::Number(_) | Value::Bool(_) => {
            let text = text(value).unwrap_or_default();
            pairs.push(format!("{}={}", encode(name), encode(&text)));
        }
    }
    Ok(())
}

fn write_list(
    name: &str,
    items: &[Value],
    lists: Lists,
    pairs: &mut Vec<String>,
) -> Result<(), &'static str> {
    if items.is_empty() {
        return Err("an empty list cannot be written in a query or a form; leave it out");
    }
    if lists == Lists::Indices {
        for (index, item) in items.iter().enumerate() {
            write_pair(&format!("{name}[{index}]"), item, lists, pairs)?;
        }
        return Ok(());
    }
    let texts: Option<Vec<String>> = items.iter().map(text).collect();
    let texts = texts
        .ok_or("only a list of strings, numbers and booleans can be written without indices")?;
    let name = match lists {
        Lists::Brackets => encode(&format!("{name}[]")),
        _ => encode(name),
    };
    let texts = texts.iter().map(|text| encode(text));
    if lists == Lists::Comma {
        let texts: Vec<String> = texts.collect();
        pairs.push(format!("{name}={}", texts.join(",")));
    } else {
        pairs.extend(texts.map(|text| format!("{name}={text}")));
    }
    Ok(())
}

/// Refuses a name with brackets, which readers take for a path of names.
fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.contains(['[', ']']) {
        return Err("a name in a query or a form is not empty and has no brackets");
    }
    Ok(())
}
