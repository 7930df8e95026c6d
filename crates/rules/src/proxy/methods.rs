//! Methods that a request names in its query or its body, as forms of web frameworks do.

use std::collections::BTreeSet;
use std::fmt;

use percent_encoding::percent_decode_str;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::form::{FORM, media_type};
use super::{Message, encoded, is_override};

/// The name by which frameworks know a method in a query or a body.
const METHOD: &str = "_method";

/// The methods that query and body name, in upper case. `None`: they name one that cannot be read.
pub(super) fn named_in(message: &Message) -> Option<BTreeSet<String>> {
    let mut named = BTreeSet::new();
    if let Some(query) = &message.query {
        in_form(query.as_bytes(), &mut named);
    }
    let kind = media_type(message.header("content-type").unwrap_or_default());
    // A server that decodes a body obeys what is in it.
    let decoded = encoded::decoded(&message.headers, &message.body);
    let body: &[u8] = decoded.as_deref().unwrap_or(&message.body);
    let is_read = if !may_name_one(body) {
        true
    } else if kind.starts_with("multipart/") {
        in_parts(body, &mut named)
    } else {
        let is_text = kind.is_empty() || kind.starts_with("text/");
        if is_text || kind == FORM {
            in_form(body, &mut named);
        }
        let may_be_json = is_text || kind == FORM || kind.contains("json");
        !may_be_json || in_json(body, &mut named)
    };
    is_read.then_some(named)
}

/// Whether a body may name a method at all: most do not, and are not looked into.
fn may_name_one(body: &[u8]) -> bool {
    has(body, "method") || body.contains(&b'%') || body.windows(2).any(|some| some == b"\\u")
}

/// Whether bytes have this text, in any case.
fn has(bytes: &[u8], text: &str) -> bool {
    let text = text.as_bytes();
    bytes
        .windows(text.len())
        .any(|some| some.eq_ignore_ascii_case(text))
}

/// Whether a name stands for a method. `_method[]` does, too.
fn is_method(name: &str) -> bool {
    let name = name.split(['[', '.']).next().unwrap_or_default().trim();
    name.eq_ignore_ascii_case(METHOD) || is_override(&name.to_ascii_lowercase())
}

fn as_method(value: &str) -> String {
    value.trim().to_ascii_uppercase()
}

fn in_form(form: &[u8], named: &mut BTreeSet<String>) {
    // Some servers take a semicolon for the end of a pair.
    for pair in form.split(|byte| matches!(byte, b'&' | b';')) {
        let mut halves = pair.splitn(2, |byte| *byte == b'=');
        let name = halves.next().unwrap_or_default();
        if name.len() <= MAX_NAME && is_method(&decoded(name)) {
            named.insert(as_method(&decoded(halves.next().unwrap_or_default())));
        }
    }
}

/// The longest name that is looked at: with every character percent-encoded, and some steps.
const MAX_NAME: usize = 256;

fn decoded(text: &[u8]) -> String {
    let spaced: Vec<u8> = text
        .iter()
        .map(|byte| if *byte == b'+' { b' ' } else { *byte })
        .collect();
    let decoded = percent_encoding::percent_decode(&spaced).decode_utf8_lossy();
    decoded.into_owned()
}

/// Looks at the members of a JSON object. Whether what they name can be read.
fn in_json(body: &[u8], named: &mut BTreeSet<String>) -> bool {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    if body.trim_ascii_start().first() != Some(&b'{') {
        return true;
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let mut members = Members {
        named,
        is_clear: true,
    };
    let is_read = reader.deserialize_map(&mut members).is_ok();
    // Another reader may get further.
    members.is_clear && (is_read || !has(body, METHOD) && !has(body, "\\u005f"))
}

/// The members of an object, each of them, also where a name is there twice.
struct Members<'n> {
    named: &'n mut BTreeSet<String>,
    is_clear: bool,
}

impl<'de> Visitor<'de> for &mut Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if !is_method(&name) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            match map.next_value::<Value>()? {
                Value::String(method) => {
                    self.named.insert(as_method(&method));
                }
                Value::Array(methods) if methods.iter().all(Value::is_string) => {
                    let methods = methods.iter().filter_map(Value::as_str);
                    self.named.extend(methods.map(as_method));
                }
                Value::Null => {}
                _ => self.is_clear = false,
            }
        }
        Ok(())
    }
}

/// Looks at the names of a multipart body's parts. Whether what they name can be read.
fn in_parts(body: &[u8], named: &mut BTreeSet<String>) -> bool {
    let mut lines = body.split(|byte| *byte == b'\n');
    while let Some(line) = lines.next() {
        if !has(line, "method") {
            continue;
        }
        let line = String::from_utf8_lossy(line);
        if !part_names(&line).any(|name| is_method(&name)) {
            continue;
        }
        // The value begins after an empty line.
        let is_found = lines.any(|line| line.trim_ascii().is_empty());
        let Some(value) = lines.next().filter(|_| is_found) else {
            return false;
        };
        named.insert(as_method(&String::from_utf8_lossy(value)));
    }
    true
}

/// The values of the parameters `name` in a line of a part's head.
fn part_names(line: &str) -> impl Iterator<Item = String> {
    let line = line.to_ascii_lowercase();
    let pieces: Vec<String> = line.split([';', ':']).map(str::to_owned).collect();
    pieces.into_iter().filter_map(|piece| {
        let (name, value) = piece.split_once('=')?;
        let name = name.trim();
        let value = value.trim().trim_matches('"');
        let value = match name {
            "name" => value,
            // With a character set and a language before it (RFC 5987).
            "name*" => value.rsplit('\'').next()?,
            _ => return None,
        };
        Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::post;
    use super::*;

    #[test]
    fn methods_are_found_where_frameworks_look_for_them() {
        let delete = Some(BTreeSet::from(["DELETE".to_owned()]));
        let parts = |head: &str| format!("--x\r\n{head}\r\n\r\ndelete\r\n--x--");
        for (kind, body) in [
            (FORM, "a=1&_method=delete".to_owned()),
            (FORM, "%5Fmethod=+DELETE".to_owned()),
            (FORM, "x-http-method-override=DELETE".to_owned()),
            ("", "_method=DELETE".to_owned()),
            (FORM, "{\"_method\":\"DELETE\"}".to_owned()),
            ("application/json", " {\"_method\":\"delete\"}".to_owned()),
            (
                "application/json",
                "{\"\\u005fmethod\":[\"delete\"]}".to_owned(),
            ),
            (
                "multipart/form-data; boundary=x",
                parts("Content-Disposition: form-data; name=\"_method\""),
            ),
            (
                "Multipart/Mixed",
                parts("content-disposition:form-data;name=_method"),
            ),
        ] {
            assert_eq!(named_in(&post(kind, &body)), delete, "{kind} {body}");
        }
        let asked = Message {
            query: Some("a=1&_METHOD[]=delete".into()),
            ..post("", "")
        };
        assert_eq!(named_in(&asked), delete);
        for (kind, body) in [
            ("application/json", "{\"_method\":{}}"),
            ("application/json", "{\"_method\":\"DELETE\""),
            ("multipart/form-data", "--x\r\nA: b; name=_method\r\n"),
        ] {
            assert_eq!(named_in(&post(kind, body)), None, "{body}");
        }
        for (kind, body) in [
            (FORM, "method=delete&a=_method%3Ddelete"),
            ("application/json", "{\"a\":{\"_method\":\"DELETE\"}}"),
            ("application/json", "[{\"_method\":\"DELETE\"}]"),
            ("application/json", "{\"a\":\"\\ud800\"}"),
            ("application/json", "{\"a\":1e999,\"method\":"),
            ("image/png", "_method=DELETE"),
            ("multipart/form-data", "--x\r\nA: b; filename=_method\r\n"),
        ] {
            assert_eq!(named_in(&post(kind, body)), Some(BTreeSet::new()), "{body}");
        }
        let twice = "{\"_method\":\"PUT\",\"_method\":\"DELETE\"}";
        let both = named_in(&post("application/json", twice)).expect("read");
        assert!(both.contains("PUT") && both.contains("DELETE"), "{both:?}");
    }
}
