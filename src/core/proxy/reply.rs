//! An answer of an API as it is kept: status, headers and body in one JSON text.
//!
//! The same bytes are sent again from it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::image::Body;
use super::{Policy, is_of_connection, is_secret};
use crate::core::redact::MASK;

/// Headers of one client's session: they are neither kept nor passed to another client.
const OF_ONE_CLIENT: [&str; 2] = ["set-cookie", "set-cookie2"];

/// An answer of an API.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// The headers that go through, with names in lower case. Each byte of a value is one character.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl Reply {
    /// Keeps the answer as one JSON text.
    pub fn keep(&self) -> Bytes {
        let is_kept = |(name, _): &&(String, String)| !OF_ONE_CLIENT.contains(&name.as_str());
        let (json, text, base64) = Body::of(&self.body).into_members();
        let stored = Stored {
            status: self.status,
            headers: self.headers.iter().filter(is_kept).cloned().collect(),
            json,
            text,
            base64,
        };
        serde_json::to_vec(&stored).unwrap_or_default().into()
    }

    /// Reads a kept answer; `None`: it is none, as a result that a person has given.
    pub fn read(json: &[u8]) -> Option<Self> {
        let mut stored: Stored = serde_json::from_slice(json).ok()?;
        let is_told = |name: &str| !is_of_connection(name, &[]) && !OF_ONE_CLIENT.contains(&name);
        stored
            .headers
            .retain(|(name, _)| is_told(&name.to_ascii_lowercase()));
        if !(200..=599).contains(&stored.status) {
            return None;
        }
        let body = Body::from((stored.json, stored.text, stored.base64));
        Some(Self {
            status: stored.status,
            headers: stored.headers,
            body: body.bytes()?,
        })
    }
}

impl Policy {
    /// A kept answer without the values of headers that may be secrets. Any other text stays as it is.
    pub fn shown(&self, json: &[u8]) -> Bytes {
        let Ok(mut stored) = serde_json::from_slice::<Stored>(json) else {
            return Bytes::copy_from_slice(json);
        };
        for (name, value) in &mut stored.headers {
            if is_secret(name) || self.secret_headers.contains(name) {
                *value = MASK.to_owned();
            }
        }
        serde_json::to_vec(&stored).unwrap_or_default().into()
    }
}
