//! The view of a request: the value from which its key and fingerprint are made.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Message;
use super::form::{FORM, media_type, pairs, steps};
use super::image::is_deeper;
use crate::core::json;
use crate::core::key::Pointer;

/// The member with the caller's own credentials.
///
/// The fingerprint covers it, and no key does: a repetition with another credential meets its call,
/// and is not the same.
pub const CREDENTIAL: &str = "oncegate:credential";

/// Makes the view: method, path, query, headers and body.
///
/// `credential`: the caller's own, where they go through.
pub fn view(message: &Message, credential: &str) -> Value {
    let mut headers = Map::new();
    for (name, value) in &message.headers {
        let values = headers.entry(name).or_insert_with(|| json!([]));
        values
            .as_array_mut()
            .into_iter()
            .for_each(|values| values.push(value.as_str().into()));
    }
    let query = message.query.as_deref().unwrap_or_default();
    let query = pairs(query).map_or_else(|| json!({ "text": query }), form);
    let method = [message.method.clone()]
        .into_iter()
        .chain(message.overrides());
    let mut view = json!({
        "method": method.collect::<Vec<_>>().join(" "),
        "path": message.path,
        "query": query,
        "headers": headers,
        "body": body(message),
    });
    if !credential.is_empty() {
        view[CREDENTIAL] = credential.into();
    }
    view
}

/// The view with these headers alone; a missing one is there without a value.
pub fn with_headers(mut view: Value, counted: &[String]) -> Value {
    let counted: Map<String, Value> = counted
        .iter()
        .map(|name| (name.clone(), view["headers"][name].take()))
        .collect();
    if let Some(headers) = view.get_mut("headers") {
        *headers = counted.into();
    }
    view
}

/// The places in a view that `/query/name` or `/body/member` mean. Empty: it is neither.
pub fn places(pointer: &Pointer) -> Vec<Pointer> {
    let steps: Vec<String> = pointer.steps().collect();
    let in_tree = |root: &str, inner: &[String]| {
        let root = Pointer::to(&[root, "form"]);
        inner
            .iter()
            .fold(root, |at, step| at.below("1").below(step))
    };
    match steps.split_first() {
        Some((root, inner)) if root == "query" && !inner.is_empty() => {
            vec![in_tree("query", inner)]
        }
        Some((root, inner)) if root == "body" && !inner.is_empty() => {
            let json = inner
                .iter()
                .fold(Pointer::to(&["body", "json"]), |at, step| at.below(step));
            vec![json, in_tree("body", inner)]
        }
        _ => Vec::new(),
    }
}

fn body(message: &Message) -> Value {
    let written = message.header("content-type").unwrap_or_default();
    let kind = media_type(written);
    let text = str::from_utf8(&message.body).ok();
    if let Some(text) = text
        && kind == FORM
        && let Some(pairs) = pairs(text)
    {
        return form(pairs);
    }
    // What two readers could understand differently is compared as it is written.
    if let Some(text) = text
        && (kind.is_empty() || kind.contains("json"))
        && let Ok(value) = json::parse_bounded(text)
        && !is_deeper(&value, MAX_DEPTH)
    {
        return json!({ "json": value });
    }
    match boundary(written) {
        Some(boundary) => json!({ "parts": digest(&without(&message.body, boundary)) }),
        None => json!({ "bytes": digest(&message.body) }),
    }
}

/// How deep JSON is looked into.
const MAX_DEPTH: usize = 100;
/// How many steps a form's name is split into.
const MAX_STEPS: usize = 32;

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// A form or a query.
///
/// Where the places of names count, the order tells which values belong together.
fn form(pairs: Vec<(String, String)>) -> Value {
    let is_counted = |(name, _): &(String, String)| {
        let places = name.matches("[]").count();
        places > usize::from(name.ends_with("[]"))
    };
    let (counted, pairs): (Vec<_>, Vec<_>) = pairs.into_iter().partition(is_counted);
    json!({ "form": tree(pairs), "pairs": counted })
}

/// A form by the steps of its names.
///
/// Each place has the list of its values, and the places below it.
fn tree(pairs: Vec<(String, String)>) -> Value {
    let mut root = json!([[], {}]);
    for (name, value) in pairs {
        let mut at = &mut root;
        let mut all: Vec<String> = steps(&name).take(MAX_STEPS + 1).collect();
        if all.len() > MAX_STEPS {
            all = vec![name];
        }
        for step in all {
            let below = &mut at[1];
            if below.get(&step).is_none() {
                below[&step] = json!([[], {}]);
            }
            at = &mut below[&step];
        }
        if let Some(values) = at[0].as_array_mut() {
            values.push(value.into());
        }
    }
    root
}

/// The boundary of a multipart body.
fn boundary(kind: &str) -> Option<&str> {
    let rest = kind.strip_prefix("multipart/")?;
    let (_, rest) = rest.split_once("boundary=")?;
    let boundary = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => rest.split([';', ' ']).next(),
    };
    boundary.filter(|boundary| !boundary.is_empty())
}

/// The parts of a multipart body, without their delimiters (RFC 2046, section 5.1.1).
///
/// Each comes after its length.
fn without(body: &[u8], boundary: &str) -> Vec<u8> {
    let between = [b"--", boundary.as_bytes()].concat();
    let (mut parts, mut from) = (Vec::new(), 0);
    let mut add = |part: &[u8]| {
        parts.extend((part.len() as u64).to_be_bytes());
        parts.extend(part);
    };
    let ends = body.windows(between.len()).enumerate();
    for (at, _) in ends.filter(|(_, some)| *some == between) {
        let is_line = at == 0 || body[at - 1] == b'\n';
        if is_line && at >= from {
            add(&body[from..at]);
            from = at + between.len();
        }
    }
    add(&body[from..]);
    parts
}
