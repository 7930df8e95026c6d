//! An answer of an API as it is kept: status, headers and body in one JSON text.
//!
//! The same bytes are sent again from it.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::stored_form::{Body, Stored};
use super::{Policy, encoded, is_of_connection};
use crate::redact::MASK;

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

/// Headers about the encoded bytes of a body.
const OF_ENCODED: [&str; 5] = [
    encoded::CONTENT_ENCODING,
    "content-digest",
    "content-md5",
    "digest",
    "repr-digest",
];
/// A part of a body: it cannot be decoded alone.
const PARTIAL: u16 = 206;

/// The head of an answer.
#[derive(Serialize, Deserialize)]
struct ReplyHead {
    status: u16,
}

/// What a probe was told in place of an answer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answered<'a> {
    #[serde(borrow)]
    answered: &'a RawValue,
}

impl Reply {
    /// Keeps the answer as one JSON text.
    pub fn keep(&self) -> Bytes {
        let is_stored = |(name, _): &&(String, String)| !OF_ONE_CLIENT.contains(&name.as_str());
        let head = ReplyHead {
            status: self.status,
        };
        let headers = self.headers.iter().filter(is_stored).cloned().collect();
        Stored::new(head, headers, Body::of(&self.body)).write()
    }

    /// Decodes the body for a client that refuses its encoding, and says whether it did.
    ///
    /// `accept`: the client's `Accept-Encoding`.
    pub fn decode_for(&mut self, accept: Option<&str>) -> bool {
        if self.status == PARTIAL || !encoded::is_refused(&self.headers, accept) {
            return false;
        }
        let Some(Cow::Owned(body)) = encoded::decoded(&self.headers, &self.body) else {
            return false;
        };
        self.body = body.into();
        let is_about = |name: &str| OF_ENCODED.contains(&name);
        self.headers.retain(|(name, _)| !is_about(name));
        for (name, value) in &mut self.headers {
            // The bytes are others, and say the same.
            if name == "etag" && !value.starts_with("W/") {
                value.insert_str(0, "W/");
            }
        }
        let vary = ("vary".to_owned(), "accept-encoding".to_owned());
        self.headers.push(vary);
        true
    }

    /// What a probe was told in place of an answer, as that answer; `None`: nothing was.
    pub fn of_probe(json: &[u8]) -> Option<Self> {
        let probed: Answered<'_> = serde_json::from_slice(json).ok()?;
        let json = ("content-type".to_owned(), "application/json".to_owned());
        Some(Self {
            status: 200,
            headers: vec![json],
            body: probed.answered.get().to_owned().into(),
        })
    }

    /// Reads a kept answer; `None`: it is none, as a result that an operator has given.
    pub fn read(json: &[u8]) -> Option<Self> {
        let stored: Stored<ReplyHead> = serde_json::from_slice(json).ok()?;
        let (ReplyHead { status }, mut headers, body) = stored.into_parts()?;
        if !(200..=599).contains(&status) {
            return None;
        }
        let is_returned =
            |name: &str| !is_of_connection(name, &[]) && !OF_ONE_CLIENT.contains(&name);
        headers.retain(|(name, _)| is_returned(&name.to_ascii_lowercase()));
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
