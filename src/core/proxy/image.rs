//! A request as the ledger has it: one JSON object, from which it can be sent again byte by byte unless something of it is
//! masked.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::form::{FORM, is_at, pairs};
use super::{Message, Policy, is_secret};
use crate::core::redact::{self, MASK};

/// Bytes as part of a JSON object: JSON as it stands, else a text, else base64.
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
        // White space around a JSON text would be lost.
        let is_bare = bytes.trim_ascii().len() == bytes.len();
        let json: Option<Box<RawValue>> = serde_json::from_slice(bytes).ok();
        match (json.filter(|_| is_bare), str::from_utf8(bytes)) {
            (Some(json), _) => Self {
                json: Some(json),
                ..Self::default()
            },
            (None, Ok(text)) => Self {
                text: Some(text.to_owned()),
                ..Self::default()
            },
            (None, Err(_)) => Self {
                base64: Some(BASE64.encode(bytes)),
                ..Self::default()
            },
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

    /// Without what is secret. What has no places is masked as a whole.
    fn masked(self, policy: &Policy, kind: &str) -> Self {
        let text = |text: String| Self {
            text: Some(text),
            ..Self::default()
        };
        match self {
            Self {
                json: Some(json), ..
            } => {
                let masked = redact::mask(&json.get().to_owned().into(), &policy.redact);
                let masked = serde_json::from_slice(&masked).ok();
                masked.map_or_else(
                    || text(MASK.into()),
                    |json| Self {
                        json: Some(json),
                        ..Self::default()
                    },
                )
            }
            Self {
                text: Some(form), ..
            } if kind.starts_with(FORM) => text(masked_form(policy, form)),
            Self {
                text: None,
                base64: None,
                ..
            } => Self::default(),
            _ => text(MASK.into()),
        }
    }
}

/// The form as it came if nothing of it is secret, else the mask: one value may say what another is.
fn masked_form(policy: &Policy, form: String) -> String {
    let is_secret = |name: &str| policy.redact.iter().any(|pointer| is_at(name, pointer));
    match pairs(&form) {
        Some(pairs) if !pairs.iter().any(|(name, _)| is_secret(name)) => form,
        _ => MASK.into(),
    }
}

/// A request as it is kept.
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
    /// What is kept of a request: headers with secrets are masked, and what the operator calls secret.
    pub fn image(&self, message: &Message) -> Bytes {
        let kind = message.header("content-type").unwrap_or_default();
        let body = Body::of(&message.body);
        let masked = |(name, value): &(String, String)| {
            let value = if is_secret(name) { MASK } else { value };
            (name.clone(), value.to_owned())
        };
        let Body { json, text, base64 } = if self.redact.is_empty() {
            body
        } else {
            body.masked(self, kind)
        };
        let image = Image {
            method: message.method.clone(),
            path: message.path.clone(),
            query: message.query.clone(),
            headers: message.headers.iter().map(masked).collect(),
            json,
            text,
            base64,
        };
        serde_json::to_vec(&image).unwrap_or_default().into()
    }
}

/// The request that an image is of. `None`: it is none, or something of it is masked.
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

/// Method and path of the request that an image is of, masked or not.
pub fn place(image: &[u8]) -> Option<(String, String)> {
    let image: Value = serde_json::from_slice(image).ok()?;
    let text = |name: &str| Some(image.get(name)?.as_str()?.to_owned());
    Some((text("method")?, text("path")?))
}
