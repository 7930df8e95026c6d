//! Names and values of a form, `a[b]=c`, and the JSON Pointers to them.

use percent_encoding::percent_decode_str;

use crate::json::MAX_VALUES;
use crate::key::Pointer;

/// The media type of forms.
pub(super) const FORM: &str = "application/x-www-form-urlencoded";

/// A media type without its parameters, in lower case.
pub(super) fn media_type(written: &str) -> String {
    let name = written.split(';').next().unwrap_or_default();
    name.trim().to_ascii_lowercase()
}

/// Bytes of a step of a name, as the tree of a form holds it.
const STEP: usize = 1_024;
/// Bytes of a name and its value beside their texts.
const PAIR: usize = 256;

/// Bytes of memory that a form takes once it is read, at most.
pub(super) fn bytes_to_read(text: &[u8]) -> usize {
    let count = |sign| text.iter().filter(|byte| **byte == sign).count();
    let pairs = count(b'&') + 1;
    if pairs > MAX_VALUES {
        return 0;
    }
    // A tree ends before it has more values than may be read, and each step is three of them.
    let steps = (pairs + count(b'[')).min(MAX_VALUES / 3);
    pairs * PAIR + steps * STEP + text.len()
}

/// Names and values in their order; `None`: a decoded name or value is not UTF-8, or there are too many.
pub(super) fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    if text.bytes().filter(|byte| *byte == b'&').count() >= MAX_VALUES {
        return None;
    }
    let parts = text.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Some((decoded(name)?, decoded(value)?))
        })
        .collect()
}

fn decoded(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// Whether a name of a form is at or below a pointer, as `card[number]` and `card.number` below `/card`.
pub(super) fn is_at(name: &str, pointer: &Pointer) -> bool {
    let mut steps = name.split(['[', ']', '.']).filter(|step| !step.is_empty());
    pointer
        .steps()
        .all(|step| steps.next() == Some(step.as_str()))
}

/// Splits `a[b][c]` into `a`, `b`, `c`.
///
/// A name of another form is one step. No two names have the same steps.
pub(super) fn steps(name: &str) -> Vec<&str> {
    match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((first, inner)) => std::iter::once(first).chain(inner.split("][")).collect(),
        None => vec![name],
    }
}
