//! Requests to systems that are not tools: sources of reconciliations, the webhook, and what says who a caller is.
//!
//! None has an effect that a repetition could double.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{StatusCode, Url};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::body::chain;
use super::pools::{Party, Pool};
use super::{Downstream, SECURE, in_time, origin_only, send, signed};
pub use signed::{MAX_SECRETS, SigningSecret};

/// How long a connection is kept for the next page.
const OUTSIDE_REUSE: Duration = Duration::from_secs(2);
/// The largest page of a source, in bytes.
pub const MAX_PAGE: usize = 32 << 20;

/// A system that gets events.
#[derive(Clone)]
pub struct Webhook {
    pub url: Url,
    pub headers: HeaderMap,
    pub timeout: Duration,
    /// What signs events; empty: they are not signed.
    pub secrets: Vec<SigningSecret>,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&origin_only(&self.url))
    }
}

impl Downstream {
    /// The client for a system that is not a tool. `reuse`: how long a connection is kept; `None`: it is not.
    fn client_outside(
        &self,
        url: &Url,
        reuse: Option<Duration>,
    ) -> Result<reqwest::Client, String> {
        let pool = Pool {
            party: Party::Outside,
            reuse,
            is_secure: url.scheme() == SECURE,
        };
        self.pools.client(&pool)
    }

    /// Asks a system for a page. `take` is told of each part before it is kept, and may refuse it.
    ///
    /// # Errors
    /// The whole page could not be had, and why.
    pub async fn get_outside(
        &self,
        url: Url,
        headers: HeaderMap,
        timeout: Duration,
        mut take: impl FnMut(usize) -> Result<(), String>,
    ) -> Result<Bytes, String> {
        let by = Instant::now() + timeout;
        let client = self.client_outside(&url, Some(OUTSIDE_REUSE))?;
        let asked = client.get(url).headers(headers);
        let mut response = in_time(by, send(asked)).await?;
        // Any other success may be a part of it, or something else.
        match response.status().as_u16() {
            200 => {}
            status => return Err(format!("it answered {status}")),
        }
        let mut page = BytesMut::new();
        let broken = |why: &str| format!("a page could not be read: {why}");
        loop {
            let chunk = timeout_at(by, response.chunk()).await;
            let chunk = chunk.map_err(|_| broken("it did not end in time"))?;
            match chunk.map_err(|error| broken(&chain(&error)))? {
                None => return Ok(page.freeze()),
                Some(chunk) if page.len() + chunk.len() > MAX_PAGE => {
                    return Err(broken(&format!("it is longer than {MAX_PAGE} bytes")));
                }
                Some(chunk) => {
                    take(chunk.len())?;
                    page.extend_from_slice(&chunk);
                }
            }
        }
    }

    /// Asks a system with these headers, on a connection that no other question has. Returns the status and the headers of
    /// its answer; a body is not read.
    ///
    /// # Errors
    /// There is no answer in time; says why.
    pub async fn head_of_outside(
        &self,
        url: Url,
        headers: HeaderMap,
        timeout: Duration,
    ) -> Result<(StatusCode, HeaderMap), String> {
        let client = self.client_outside(&url, None)?;
        let asked = client.get(url).headers(headers);
        let mut answer = in_time(Instant::now() + timeout, send(asked)).await?;
        let headers = std::mem::take(answer.headers_mut());
        Ok((answer.status(), headers))
    }

    /// Sends an event, signed at this time of the wall clock. A repetition has the same `Idempotency-Key`.
    ///
    /// # Errors
    /// It may not have been heard; says why.
    pub async fn tell(
        &self,
        webhook: &Webhook,
        (event, id): (&str, &str),
        data: &Value,
        now: Timestamp,
    ) -> Result<(), String> {
        let by = Instant::now() + webhook.timeout;
        let body = json!({ "event": event, "id": id, "data": data }).to_string();
        let client = self.client_outside(&webhook.url, Some(OUTSIDE_REUSE))?;
        let about = format!("{event}:{id}");
        let mut headers = webhook.headers.clone();
        headers.extend(signed::headers(&webhook.secrets, &about, &body, now));
        let event = client
            .post(webhook.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", about)
            .headers(headers)
            .body(body);
        match in_time(by, send(event)).await?.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answered {}", status.as_u16())),
        }
    }
}
