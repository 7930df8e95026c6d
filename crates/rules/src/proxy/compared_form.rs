//! The compared form of a request: the value from which its key and fingerprint are made.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Message;
use super::credentials;
use super::form::{self, FORM, media_type, pairs, steps};
use super::stored_form::is_deeper;
use super::{encoded, multipart};
use crate::json;
use crate::key::Pointer;

/// The member with the caller's own credentials.
///
/// The fingerprint covers it, but no key does: a repetition with another credential finds the call,
/// and does not count as the same request.
pub const CREDENTIAL: &str = "oncegate:credential";

/// The member with the decoded body, where that differs from the body as it was sent.
///
/// A key scheme that names it among its headers compares decoded bodies.
pub const DECODED: &str = "oncegate:decoded";

/// The member with the digest of the bytes that were sent.
const EXACT: &str = "oncegate:exact";

/// The member with the payment that comes with the request, for keys that stand in it. It is never compared or stored.
const PAYMENT: &str = "oncegate:payment";

/// Makes the compared form with all from which a key scheme may choose.
///
/// `credential`: see [`compared_form`].
pub fn whole_form(message: &Message, credential: &str) -> Value {
    let mut form = compared_form(message, credential);
    form[EXACT] = json!({ "bytes": digest(&message.body) });
    if let Some(payment) = message.payment() {
        form[PAYMENT] = payment;
    }
    form
}

/// Makes the compared form: method, path, query, headers and body.
///
/// `credential`: the caller's own, where credentials go through; otherwise empty.
pub fn compared_form(message: &Message, credential: &str) -> Value {
    let mut headers = BTreeMap::<&str, Vec<&str>>::new();
    for (name, value) in &message.headers {
        headers.entry(name).or_default().push(value);
    }
    let query = message.query.as_deref().unwrap_or_default();
    let form = pairs(query).and_then(form_of);
    let query = form.unwrap_or_else(|| json!({ "text": query }));
    let method = std::iter::once(message.method.clone()).chain(message.overrides());
    let mut compared_form = json!({
        "method": method.collect::<Vec<_>>().join(" "),
        "path": message.path,
        "query": query,
        "headers": headers,
        "body": body(message),
    });
    if let Some(decoded) = decoded_body(message) {
        compared_form[DECODED] = decoded;
    }
    if !credential.is_empty() {
        compared_form[CREDENTIAL] = credential.into();
    }
    compared_form
}

/// Bytes of memory that the compared form of a request takes while it is made.
pub fn bytes_to_compare(message: &Message) -> usize {
    let kind = media_type(message.header("content-type").unwrap_or_default());
    let of_query = message
        .query
        .as_ref()
        .map_or(0, |query| form::bytes_to_read(query.as_bytes()));
    let of_body = bytes_to_read(&message.body, &kind);
    // A few encoded bytes may be many.
    let of_decoded = match encoded::is_encoded(&message.headers) {
        true => encoded::MAX_DECODED + MAX_COMPARED,
        false => 0,
    };
    of_query + of_body + of_decoded
}

fn bytes_to_read(body: &[u8], kind: &str) -> usize {
    match kind == FORM {
        true => form::bytes_to_read(body),
        false => json::bytes_to_read(body),
    }
}

/// Which body of a compared form counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedBody {
    /// The body as it was sent, read as JSON or as a form.
    Sent,
    /// The same, without its encodings.
    Decoded,
    /// The bytes that were sent.
    Exact,
}

/// The compared form with one body, and without what serves only to find a key.
///
/// A fingerprint can be compared only with one that was made of the same.
pub fn with_one_body(mut compared_form: Value, body: CountedBody) -> Value {
    let mut take = |name| compared_form.as_object_mut()?.remove(name);
    let (decoded, exact) = (take(DECODED), take(EXACT));
    drop(take(PAYMENT));
    let counted = match body {
        CountedBody::Sent => None,
        CountedBody::Decoded => decoded,
        CountedBody::Exact => exact,
    };
    if let Some(counted) = counted {
        compared_form["body"] = counted;
    }
    compared_form
}

/// The compared form with these headers only. A header that the request lacks is null.
///
/// With [`credentials::ALL`] in the list, the credentials of the request are a member of their own.
pub fn with_headers(mut compared_form: Value, counted: &[String]) -> Value {
    credentials::add_to(&mut compared_form, counted);
    let counted: Map<String, Value> = counted
        .iter()
        .map(|name| (name.clone(), compared_form["headers"][name].take()))
        .collect();
    if let Some(headers) = compared_form.get_mut("headers") {
        *headers = counted.into();
    }
    compared_form
}

/// The places in a compared form that `/query/name` or `/body/member` mean; none for another pointer.
pub fn places(pointer: &Pointer) -> Vec<Pointer> {
    let steps: Vec<String> = pointer.steps().collect();
    let Some((root, inner)) = steps.split_first().filter(|(_, inner)| !inner.is_empty()) else {
        return Vec::new();
    };
    let form = Pointer::to(&[root, "form"]);
    let in_form = inner
        .iter()
        .fold(form, |at, step| at.below("1").below(step));
    match root.as_str() {
        "query" => vec![in_form],
        "body" => {
            let json = Pointer::to(&["body", "json"]);
            vec![inner.iter().fold(json, |at, step| at.below(step)), in_form]
        }
        _ => Vec::new(),
    }
}

/// The places in a whole form that `/query/name`, `/body/member` or `/payment/member` mean for a key; none for another pointer.
pub fn places_of_key(pointer: &Pointer) -> Vec<Pointer> {
    let steps: Vec<String> = pointer.steps().collect();
    match steps.split_first() {
        Some((root, inner)) if root == "payment" => {
            let payment = Pointer::to(&[PAYMENT]);
            vec![inner.iter().fold(payment, |at, step| at.below(step))]
        }
        // In a form a name has a list of values, and a key is one of them. A body may be encoded.
        _ => places(pointer)
            .into_iter()
            .flat_map(|place| {
                let in_decoded = place.as_str().strip_prefix("/body");
                let in_decoded = in_decoded.and_then(|rest| rest.parse().ok());
                let decoded =
                    in_decoded.map(|rest: Pointer| Pointer::to(&[DECODED]).followed_by(&rest));
                std::iter::once(place).chain(decoded)
            })
            .map(|place| {
                let is_form = place.steps().nth(1).is_some_and(|step| step == "form");
                match is_form {
                    true => place.below("0").below("0"),
                    false => place,
                }
            })
            .collect(),
    }
}

/// Whether a place of a key is in the payment of the request.
pub fn is_of_payment(place: &Pointer) -> bool {
    Pointer::to(&[PAYMENT]).holds(place)
}

fn body(message: &Message) -> Value {
    let written = message.header("content-type").unwrap_or_default();
    read(&message.body, written, boundary(written))
}

/// The body without its encodings, and without its boundary in any spelling. `None`: as it was sent, it is the same.
fn decoded_body(message: &Message) -> Option<Value> {
    let written = message.header("content-type").unwrap_or_default();
    let usual = boundary(written);
    let boundary = multipart::boundary(written);
    let boundary = boundary.as_deref().or(usual);
    let decoded = match encoded::is_encoded(&message.headers) {
        true => encoded::decoded(&message.headers, &message.body),
        false => None,
    };
    let decoded = decoded.filter(|body| matches!(body, Cow::Owned(_)));
    if decoded.is_none() && boundary == usual {
        return None;
    }
    // A few encoded bytes can be very many values, so a long body is not looked into.
    if let Some(body) = &decoded
        && (body.len() > MAX_LOOKED_INTO
            || bytes_to_read(body, &media_type(written)) > MAX_COMPARED)
        && boundary.is_none()
    {
        return Some(json!({ "bytes": digest(body) }));
    }
    let body = decoded.as_deref().unwrap_or(&message.body);
    Some(read(body, written, boundary))
}

fn read(body: &[u8], written: &str, boundary: Option<&str>) -> Value {
    let kind = media_type(written);
    let text = str::from_utf8(body).ok();
    if let Some(text) = text
        && kind == FORM
        && let Some(form) = pairs(text).and_then(form_of)
    {
        return form;
    }
    // Ambiguous JSON is compared byte for byte.
    if let Some(text) = text
        && (kind.is_empty() || kind.contains("json"))
        && let Ok(value) = json::parse_bounded(text)
        && !is_deeper(&value, MAX_DEPTH)
    {
        return json!({ "json": value });
    }
    match boundary {
        Some(boundary) => json!({ "parts": digest(&without(body, boundary)) }),
        None => json!({ "bytes": digest(body) }),
    }
}

/// The longest decoded body that is read as JSON or as a form, in bytes.
const MAX_LOOKED_INTO: usize = 1 << 20;
/// Bytes of memory that the compared form of a decoded body takes, at most.
const MAX_COMPARED: usize = 16 << 20;
/// How deep JSON is looked into.
const MAX_DEPTH: usize = 100;
/// The most steps of a form's name. A name with more steps is one step.
const MAX_STEPS: usize = 32;

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// A form or a query.
///
/// Names such as `a[][b]` stand in their order, which tells the values of one item from those of the next.
///
/// `None`: it has more values than are read of a request.
fn form_of(pairs: Vec<(String, String)>) -> Option<Value> {
    let is_in_order = |(name, _): &(String, String)| {
        let places = name.matches("[]").count();
        places > usize::from(name.ends_with("[]"))
    };
    let (in_order, pairs): (Vec<_>, Vec<_>) = pairs.into_iter().partition(is_in_order);
    let left = json::MAX_VALUES.checked_sub(3 * in_order.len())?;
    Some(json!({ "form": tree(pairs, left)?, "pairs": in_order }))
}

/// The values of a form by the steps of their names: at each step `[values, steps below]`.
///
/// `left`: how many values it may have; `None`: it has more.
fn tree(pairs: Vec<(String, String)>, mut left: usize) -> Option<Value> {
    let mut root = json!([[], {}]);
    for (name, value) in pairs {
        let mut at = &mut root;
        let mut all = steps(&name);
        if all.len() > MAX_STEPS {
            all = vec![&name];
        }
        for step in all {
            let below = &mut at[1];
            if below.get(step).is_none() {
                left = left.checked_sub(3)?;
                below[step] = json!([[], {}]);
            }
            at = &mut below[step];
        }
        left = left.checked_sub(1)?;
        if let Some(values) = at[0].as_array_mut() {
            values.push(value.into());
        }
    }
    Some(root)
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

/// The parts of a multipart body without their delimiters (RFC 2046, section 5.1.1).
///
/// The length of each part stands before it.
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
