//! An answer of an API as it is kept: status, headers and body in one JSON text.
//!
//! The same bytes are sent again from it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::image::{Body, Stored};
use super::{Policy, is_of_connection};
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

/// The head of an answer.
#[derive(Serialize, Deserialize)]
struct ReplyHead {
    status: u16,
}

impl Reply {
    /// Keeps the answer as one JSON text.
    pub fn keep(&self) -> Bytes {
        let is_kept = |(name, _): &&(String, String)| !OF_ONE_CLIENT.contains(&name.as_str());
        let head = ReplyHead {
            status: self.status,
        };
        let headers = self.headers.iter().filter(is_kept).cloned().collect();
        Stored::new(head, headers, Body::of(&self.body)).write()
    }

    /// Reads a kept answer; `None`: it is none, as a result that a person has given.
    pub fn read(json: &[u8]) -> Option<Self> {
        let stored: Stored<ReplyHead> = serde_json::from_slice(json).ok()?;
        let (ReplyHead { status }, mut headers, body) = stored.into_parts()?;
        if !(200..=599).contains(&status) {
            return None;
        }
        let is_told = |name: &str| !is_of_connection(name, &[]) && !OF_ONE_CLIENT.contains(&name);
        headers.retain(|(name, _)| is_told(&name.to_ascii_lowercase()));
        Some(Self {
            status,
            headers,
            body,
        })
    }
}

impl Policy {
    /// A kept answer without the values of headers that may be secrets. Any other text stays as it is.
    pub fn shown(&self, json: &[u8]) -> Bytes {
        let Ok(mut stored) = serde_json::from_slice::<Stored<ReplyHead>>(json) else {
            return Bytes::copy_from_slice(json);
        };
        for (name, value) in &mut stored.headers {
            if self.hides_header(name, value) {
                *value = MASK.to_owned();
            }
        }
        stored.write()
    }
}
