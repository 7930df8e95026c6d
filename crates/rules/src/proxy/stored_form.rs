//! A request as the ledger keeps it: one JSON object.
//!
//! The same bytes can be sent again from it, unless a part is masked.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::form::{FORM, media_type, pairs};
use super::secrets::is_secret;
use super::{Message, Policy};
use crate::json;
use crate::key::Pointer;
use crate::redact::{self, MASK};

/// A body within a JSON object: JSON as it stands, else a text, else base64.
#[derive(Debug)]
pub(super) enum Body {
    Empty,
    Json(Box<RawValue>),
    Text(String),
    Base64(String),
}

impl Body {
    pub(super) fn of(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::Empty;
        }
        if let Some(json) = bare_json(bytes) {
            return Self::Json(json);
        }
        match str::from_utf8(bytes) {
            Ok(text) if !text.chars().any(is_odd) => Self::Text(text.to_owned()),
            _ => Self::Base64(BASE64.encode(bytes)),
        }
    }

    /// `None`: its base64 cannot be read.
    fn bytes(self) -> Option<Bytes> {
        Some(match self {
            Self::Empty => Bytes::new(),
            Self::Json(json) => json.get().to_owned().into(),
            Self::Text(text) => text.into(),
            Self::Base64(base64) => BASE64.decode(base64).ok()?.into(),
        })
    }

    /// The body with its secrets masked.
    ///
    /// A body without secrets stays as it came. A body in which no place can be found is masked as a whole.
    fn masked(self, policy: &Policy, kind: &str) -> Self {
        let is_clear = match &self {
            Self::Empty => true,
            // Of a member that the text has twice only one would be masked, so such a text is masked as a whole.
            Self::Json(json) => match json::parse_bounded(json.get()) {
                Ok(value) => {
                    let has = |place: &Pointer| value.pointer(place.as_str()).is_some();
                    if policy.redact.iter().any(has) {
                        let masked = redact::mask(&json.get().to_owned().into(), &policy.redact);
                        let masked = serde_json::from_slice(&masked);
                        return masked.map_or_else(|_| Self::Text(MASK.to_owned()), Self::Json);
                    }
                    true
                }
                Err(_) => false,
            },
            Self::Text(form) => kind == FORM && !has_secret(form, |name| policy.hides(name)),
            Self::Base64(_) => false,
        };
        match is_clear {
            true => self,
            false => Self::Text(MASK.to_owned()),
        }
    }
}

/// How deep JSON within JSON may be: readers stop at 128.
const MAX_DEPTH: usize = 100;

/// A body as JSON; `None`: as a part of the stored form it would be read as another value.
fn bare_json(bytes: &[u8]) -> Option<Box<RawValue>> {
    // Readers drop white space around a value, and take null for an absent value.
    if bytes.trim_ascii().len() != bytes.len() {
        return None;
    }
    let is_plain = bytes != b"null" && json::depth(bytes)? <= MAX_DEPTH;
    is_plain.then(|| serde_json::from_slice(bytes).ok())?
}

/// Whether a value has more levels than these.
pub(super) fn is_deeper(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else {
        return true;
    };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper(item, below)),
        Value::Object(members) => members.values().any(|member| is_deeper(member, below)),
        _ => false,
    }
}

/// A character that takes six bytes in JSON.
fn is_odd(c: char) -> bool {
    c.is_ascii_control() && !matches!(c, '\n' | '\r' | '\t')
}

/// Whether a form or a query has a secret name. One that cannot be read may have.
fn has_secret(form: &str, is_secret: impl Fn(&str) -> bool) -> bool {
    pairs(form).is_none_or(|pairs| pairs.iter().any(|(name, _)| is_secret(name)))
}

/// Names and values. Each byte of a value is one character.
type Headers = Vec<(String, String)>;

/// A request or an answer as one JSON object: its head, its headers and its body.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored<H> {
    #[serde(flatten)]
    pub(super) head: H,
    pub(super) headers: Headers,
    // The body is not flattened: serde reads a `RawValue` only as a member of the struct itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl<H: Serialize> Stored<H> {
    pub(super) fn new(head: H, headers: Headers, body: Body) -> Self {
        let (json, text, base64) = match body {
            Body::Empty => (None, None, None),
            Body::Json(json) => (Some(json), None, None),
            Body::Text(text) => (None, Some(text), None),
            Body::Base64(base64) => (None, None, Some(base64)),
        };
        Self {
            head,
            headers,
            json,
            text,
            base64,
        }
    }

    pub(super) fn write(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// The head, the headers and the bytes of the body. `None`: its base64 cannot be read.
    pub(super) fn into_parts(self) -> Option<(H, Headers, Bytes)> {
        let body = match (self.json, self.text, self.base64) {
            (Some(json), _, _) => Body::Json(json),
            (None, Some(text), _) => Body::Text(text),
            (None, None, Some(base64)) => Body::Base64(base64),
            (None, None, None) => Body::Empty,
        };
        Some((self.head, self.headers, body.bytes()?))
    }
}

/// The head of a request.
#[derive(Serialize, Deserialize)]
struct RequestHead {
    method: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<String>,
}

impl Policy {
    /// Makes the stored form of a request.
    ///
    /// Headers with secrets are masked, and parts that the operator calls secret.
    pub fn stored_form(&self, message: &Message) -> Bytes {
        let kind = media_type(message.header("content-type").unwrap_or_default());
        let body = Body::of(&message.body);
        let masked = |(name, value): &(String, String)| {
            let value = if self.hides_header(name, value) {
                MASK
            } else {
                value
            };
            (name.clone(), value.to_owned())
        };
        // A query with one secret is masked as a whole: one value may tell about another.
        let shown = |query: &String| {
            let is_secret = |name: &str| is_secret(name) || self.hides(name);
            match has_secret(query, is_secret) {
                true => MASK.to_owned(),
                false => query.clone(),
            }
        };
        let body = match self.redact.is_empty() {
            true => body,
            false => body.masked(self, &kind),
        };
        let head = RequestHead {
            method: message.method.clone(),
            path: message.path.clone(),
            query: message.query.as_ref().map(shown),
        };
        let headers = message.headers.iter().map(masked).collect();
        Stored::new(head, headers, body).write()
    }
}

/// The request of a stored form. `None`: it is not a stored form, or a part is masked.
pub fn message(stored_form: &[u8]) -> Option<Message> {
    redact::is_whole(stored_form).then(|| read(stored_form))?
}

/// The request of a stored form without its masked headers. `None`: it is not a stored form, or another part is masked.
pub fn content(stored_form: &[u8]) -> Option<Message> {
    let mut message = read(stored_form)?;
    let has_mask = |bytes: &[u8]| {
        bytes
            .windows(MASK.len())
            .any(|some| some == MASK.as_bytes())
    };
    let query = message.query.as_deref().unwrap_or_default();
    if has_mask(query.as_bytes()) || has_mask(&message.body) {
        return None;
    }
    message.headers.retain(|(_, value)| value != MASK);
    Some(message)
}

/// The request of a stored form, masks included.
fn read(stored_form: &[u8]) -> Option<Message> {
    let stored_form: Stored<RequestHead> = serde_json::from_slice(stored_form).ok()?;
    let (head, headers, body) = stored_form.into_parts()?;
    Some(Message {
        method: head.method,
        path: head.path,
        query: head.query,
        headers,
        body,
    })
}

/// The headers of a stored form's request, some with masked values. None: it is not a stored form.
pub fn headers(stored_form: &[u8]) -> Vec<(String, String)> {
    #[derive(Deserialize)]
    struct Head {
        headers: Headers,
    }
    let head: Option<Head> = serde_json::from_slice(stored_form).ok();
    head.map_or_else(Vec::new, |head| head.headers)
}

/// Method and path of a stored form's request.
#[derive(Deserialize)]
pub struct Target {
    pub method: String,
    pub path: String,
}

/// Reads method and path, whatever else the stored form holds. `None`: it is not a stored form.
pub fn target(stored_form: &[u8]) -> Option<Target> {
    serde_json::from_slice(stored_form).ok()
}
