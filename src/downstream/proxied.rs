//! Requests to APIs that callers use as they are.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use reqwest::header::{HeaderMap, HeaderName};
use reqwest::{Method, Response};

use super::headers::as_header;
use super::{Downstream, Endpoint, Party, joined, send};
use crate::core::proxy::names::folded;
use crate::core::proxy::{Message, is_credential};

impl Endpoint {
    /// The names of its own headers, as servers may read them.
    pub fn header_names(&self) -> Vec<String> {
        let names = self.headers.keys();
        names.map(|name| folded(name.as_str())).collect()
    }

    /// Whether its own headers or its URL hold a credential.
    pub fn has_credential(&self) -> bool {
        let has_user = !self.url.username().is_empty() || self.url.password().is_some();
        has_user
            || self.headers.iter().any(|(name, value)| {
                is_credential(name.as_str(), &String::from_utf8_lossy(value.as_bytes()))
            })
    }

    /// The endpoint and the headers for one request to an API.
    ///
    /// The endpoint's own headers replace the caller's.
    ///
    /// # Errors
    /// The request cannot be passed on as it is written.
    pub fn for_message(&self, message: &Message) -> Result<(Self, HeaderMap), String> {
        let base = self.url.as_str().trim_end_matches('/');
        let endpoint = self.for_call(&format!("{base}{}", message.target()))?;
        // A URL may have more characters percent-encoded than the caller did, and nothing else may be other.
        let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
        let path = format!("{}{}", self.url.path().trim_end_matches('/'), message.path);
        let is_as_written = decoded(endpoint.url.path()) == decoded(&path)
            && endpoint.url.query().map(decoded) == message.query.as_deref().map(decoded);
        if !is_as_written {
            return Err("its path or query cannot be passed on as they are written".into());
        }
        let method = Method::from_bytes(message.method.as_bytes());
        let endpoint = Self {
            method: method.map_err(|_| "this is no method")?,
            ..endpoint
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &message.headers {
            let name: HeaderName = name.parse().map_err(|_| "a header has no name")?;
            if !self.headers.contains_key(&name) {
                headers.append(name, as_header(value)?);
            }
        }
        Ok((endpoint, headers))
    }
}

impl Downstream {
    /// Passes on a request that is no call: a read, or one that the operator lets pass.
    ///
    /// The body of the answer is read as the caller reads it, for so long at the most.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn pass(
        &self,
        endpoint: &Endpoint,
        party: Party,
        message: &Message,
        within: Duration,
    ) -> Result<Response, String> {
        let (endpoint, headers) = endpoint.for_message(message)?;
        let client = self.pools.client(&endpoint.pool(party))?;
        let request = client
            .request(endpoint.method.clone(), endpoint.url.clone())
            .headers(joined(&endpoint.headers, headers))
            .timeout(within);
        send(match message.body.clone() {
            body if body.is_empty() => request,
            body => request.body(body),
        })
        .await
    }
}
