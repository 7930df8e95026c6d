//! An answer as it is kept: status, headers and body, as one JSON text from which it is sent again byte by byte.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::image::Body;

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

    /// `None`: this is no answer that was kept.
    pub fn read(json: &[u8]) -> Option<Self> {
        let stored: Stored = serde_json::from_slice(json).ok()?;
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
