//! Requests to APIs that callers use as they are.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use reqwest::header::{HeaderMap, HeaderName};
use reqwest::{Method, Response};

use super::fresh::say_empty;
use super::headers::as_header;
use super::{Downstream, Endpoint, Party, joined, send};
use oncegate_rules::proxy::names::folded;
use oncegate_rules::proxy::{Message, is_credential};

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
    /// The request cannot be forwarded as it is written.
    pub fn for_message(&self, message: &Message) -> Result<(Self, HeaderMap), String> {
        let base = self.url.as_str().trim_end_matches('/');
        let endpoint = self.for_call(&format!("{base}{}", message.target()))?;
        // A URL may have more characters percent-encoded than the caller did, and nothing else may be other.
        let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
        let path = format!("{}{}", self.url.path().trim_end_matches('/'), message.path);
        let is_as_written = decoded(endpoint.url.path()) == decoded(&path)
            && endpoint.url.query().map(decoded) == message.query.as_deref().map(decoded);
        if !is_as_written {
            return Err("its path or query cannot be forwarded as they are written".into());
        }
        let method = Method::from_bytes(message.method.as_bytes());
        let endpoint = Self {
            method: method.map_err(|_| "this is not a method")?,
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

    /// A `Location` of the API as its caller can follow it through the proxy; `None`: as it is.
    ///
    /// `target`: path and query of the request. `prefix`: the path of the proxy at this gateway. A place of the API that
    /// the proxy does not lead to gets its whole URL, so that it is not taken for a path of the gateway.
    pub fn lead_back(&self, target: &str, location: &str, prefix: &str) -> Option<String> {
        let base = self.url.path().trim_end_matches('/');
        let mut asked = self.url.clone();
        // A relative URL would inherit them.
        asked.set_username("").ok()?;
        asked.set_password(None).ok()?;
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        asked.set_path(&format!("{base}{path}"));
        asked.set_query(query);
        let url = asked.join(&utf8(location)?).ok()?;
        let is_its = url.origin() == self.url.origin();
        if !is_its || !url.username().is_empty() || url.password().is_some() {
            return None;
        }
        let below = url.path().strip_prefix(base);
        let Some(rest) = below.filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
            return Some(url.into());
        };
        // Two slashes at the beginning would name another host.
        if prefix.is_empty() && rest.starts_with("//") {
            return None;
        }
        let rest = if rest.is_empty() { "/" } else { rest };
        let query = url.query().map(|query| format!("?{query}"));
        let fragment = url.fragment().map(|fragment| format!("#{fragment}"));
        let (query, fragment) = (query.unwrap_or_default(), fragment.unwrap_or_default());
        Some(format!("{prefix}{rest}{query}{fragment}"))
    }
}

/// The text of a header value whose characters are single bytes.
fn utf8(value: &str) -> Option<String> {
    let bytes: Result<Vec<u8>, _> = value.chars().map(u8::try_from).collect();
    String::from_utf8(bytes.ok()?).ok()
}

impl Downstream {
    /// Forwards a request that is not a call: a read, or one that the operator lets pass.
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
        let mut headers = joined(&endpoint.headers, headers);
        if message.body.is_empty() {
            say_empty(&endpoint.method, &mut headers);
        }
        let request = client
            .request(endpoint.method.clone(), endpoint.url.clone())
            .headers(headers)
            .timeout(within);
        let response = send(match message.body.clone() {
            body if body.is_empty() => request,
            body => request.body(body),
        })
        .await?;
        // No request asked for another protocol on the connection.
        if response.status().is_informational() {
            return Err("the answer switches to another protocol".into());
        }
        Ok(response)
    }
}
