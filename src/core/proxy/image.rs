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
use super::{Message, Policy, is_secret};
use crate::core::json;
use crate::core::key::Pointer;
use crate::core::redact::{self, MASK};

/// A body within a JSON object: JSON as it stands, else a text, else base64.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) json: Option<Box<RawValue>>,
    pub(super) text: Option<String>,
    pub(super) base64: Option<String>,
}

impl Body {
    pub(super) fn of(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::default();
        }
        if let Some(json) = bare_json(bytes) {
            return Self {
                json: Some(json),
                ..Self::default()
            };
        }
        let is_plain = |text: &&str| !text.chars().any(is_odd);
        match str::from_utf8(bytes).ok().filter(is_plain) {
            Some(text) => Self::of_text(text),
            None => Self {
                base64: Some(BASE64.encode(bytes)),
                ..Self::default()
            },
        }
    }

    fn of_text(text: &str) -> Self {
        Self {
            text: Some(text.to_owned()),
            ..Self::default()
        }
    }

    /// `None`: its base64 cannot be read.
    pub(super) fn bytes(self) -> Option<Bytes> {
        Some(match self {
            Self {
                json: Some(json), ..
            } => json.get().to_owned().into(),
            Self {
                text: Some(text), ..
            } => text.into(),
            Self {
                base64: Some(text), ..
            } => BASE64.decode(text).ok()?.into(),
            Self { .. } => Bytes::new(),
        })
    }

    /// The body with its secrets masked.
    ///
    /// A body without secrets stays as it came; one without places is masked as a whole.
    fn masked(self, policy: &Policy, kind: &str) -> Self {
        let whole = || Self::of_text(MASK);
        match &self {
            Self {
                json: Some(json), ..
            } => {
                // Of a member that stands there twice only one would be masked.
                let Ok(value) = json::parse(json.get()) else {
                    return whole();
                };
                let is_there = |place: &Pointer| value.pointer(place.as_str()).is_some();
                if !policy.redact.iter().any(is_there) {
                    return self;
                }
                let masked = redact::mask(&json.get().to_owned().into(), &policy.redact);
                let masked = serde_json::from_slice(&masked).ok();
                masked.map_or_else(whole, |json| Self {
                    json: Some(json),
                    ..Self::default()
                })
            }
            Self {
                text: Some(form), ..
            } if kind == FORM => {
                if has_secret(form, |name| policy.hides(name)) {
                    whole()
                } else {
                    self
                }
            }
            Self {
                text: None,
                base64: None,
                ..
            } => self,
            _ => whole(),
        }
    }
}

/// How deep JSON within JSON may be: readers stop at 128.
const MAX_DEPTH: usize = 100;

/// JSON that every reader takes as it stands.
///
/// `null` is kept as a text, because readers take null for an absent value.
fn bare_json(bytes: &[u8]) -> Option<Box<RawValue>> {
    // White space around it would be lost.
    if bytes.trim_ascii().len() != bytes.len() {
        return None;
    }
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let is_plain = !value.is_null() && !is_deeper(&value, MAX_DEPTH);
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

/// Whether a name of a form or a query is secret. An unreadable one may be.
fn has_secret(form: &str, is_secret: impl Fn(&str) -> bool) -> bool {
    pairs(form).is_none_or(|pairs| pairs.iter().any(|(name, _)| is_secret(name)))
}

/// The image of a request.
#[derive(Serialize, Deserialize)]
struct Image {
    method: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<String>,
    headers: Vec<(String, String)>,
    // Not flattened: a text of JSON is only read as it stands where it is a member itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl Policy {
    /// Makes the image of a request.
    ///
    /// Headers with secrets are masked, and parts that the operator calls secret.
    pub fn image(&self, message: &Message) -> Bytes {
        let kind = media_type(message.header("content-type").unwrap_or_default());
        let body = Body::of(&message.body);
        let masked = |(name, value): &(String, String)| {
            let is_secret = is_secret(name) || self.secret_headers.contains(name);
            let value = if is_secret { MASK } else { value };
            (name.clone(), value.to_owned())
        };
        // One value may say what another is.
        let shown = |query: &String| {
            let is_secret = |name: &str| is_secret(&name.to_ascii_lowercase()) || self.hides(name);
            let is_hidden = has_secret(query, is_secret);
            if is_hidden { MASK } else { query }.to_owned()
        };
        let Body { json, text, base64 } = if self.redact.is_empty() {
            body
        } else {
            body.masked(self, &kind)
        };
        let image = Image {
            method: message.method.clone(),
            path: message.path.clone(),
            query: message.query.as_ref().map(shown),
            headers: message.headers.iter().map(masked).collect(),
            json,
            text,
            base64,
        };
        serde_json::to_vec(&image).unwrap_or_default().into()
    }
}

/// The request of an image. `None`: it is no image, or a part is masked.
pub fn message(image: &[u8]) -> Option<Message> {
    if !redact::is_whole(image) {
        return None;
    }
    let image: Image = serde_json::from_slice(image).ok()?;
    let body = Body {
        json: image.json,
        text: image.text,
        base64: image.base64,
    };
    Some(Message {
        method: image.method,
        path: image.path,
        query: image.query,
        headers: image.headers,
        body: body.bytes()?,
    })
}

/// Method and path of an image's request.
#[derive(Deserialize)]
pub struct Place {
    pub method: String,
    pub path: String,
}

/// Reads method and path, whatever else the image holds. `None`: it is no image.
pub fn place(image: &[u8]) -> Option<Place> {
    serde_json::from_slice(image).ok()
}
