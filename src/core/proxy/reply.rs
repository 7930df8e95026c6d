//! An answer as it is kept: status, headers and body, as one JSON text from which it is sent again byte by byte.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::image::Body;
use super::{Policy, is_of_connection, is_secret};
use crate::core::redact::MASK;

/// Cookies are the session of one client, and are neither kept nor told to another one.
const OF_ONE_CLIENT: [&str; 2] = ["set-cookie", "set-cookie2"];

/// An answer of an API.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// Those that go through, with names in lower case. Each byte of a value is one character.
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
    /// As one JSON text.
    pub fn keep(&self) -> Bytes {
        let is_kept = |(name, _): &&(String, String)| !OF_ONE_CLIENT.contains(&name.as_str());
        let Body { json, text, base64 } = Body::of(&self.body);
        let stored = Stored {
            status: self.status,
            headers: self.headers.iter().filter(is_kept).cloned().collect(),
            json,
            text,
            base64,
        };
        serde_json::to_vec(&stored).unwrap_or_default().into()
    }

    /// `None`: this is no answer that was kept, or that a person has given.
    pub fn read(json: &[u8]) -> Option<Self> {
        let mut stored: Stored = serde_json::from_slice(json).ok()?;
        let is_told = |name: &str| !is_of_connection(name, &[]) && !OF_ONE_CLIENT.contains(&name);
        stored
            .headers
            .retain(|(name, _)| is_told(&name.to_ascii_lowercase()));
        if !(200..=599).contains(&stored.status) {
            return None;
        }
        let body = Body {
            json: stored.json,
            text: stored.text,
            base64: stored.base64,
        };
        Some(Self {
            status: stored.status,
            headers: stored.headers,
            body: body.bytes()?,
        })
    }
}

impl Policy {
    /// An answer that was kept, without headers that may be secrets. What is none is as it is.
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
