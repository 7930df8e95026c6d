//! Reads the bodies of answers.

use std::error::Error as _;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use reqwest::header::HeaderValue;

use crate::core::outcome::Body;

/// Reads a body to its end, but at most so many bytes.
pub(super) async fn read(mut response: reqwest::Response, max_result: usize) -> Body {
    let mut whole = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Body::Whole(whole.freeze()),
            Ok(Some(chunk)) if whole.len() + chunk.len() > max_result => {
                return Body::Broken(format!("it is longer than {max_result} bytes"));
            }
            Ok(Some(chunk)) => whole.extend_from_slice(&chunk),
            Err(error) => return Body::Broken(chain(&error)),
        }
    }
}

/// An error with its causes, without the URL, which may hold secrets.
pub(super) fn chain(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    if causes.is_empty() {
        "the request failed".to_owned()
    } else {
        causes.join(": ")
    }
}

/// The longest wait that a tool may ask for.
const MOST_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Seconds, or a date (RFC 9110 section 10.2.3); at most a day.
pub(super) fn retry_after(value: &HeaderValue) -> Option<Duration> {
    read_retry_after(value).map(|wait| wait.min(MOST_RETRY_AFTER))
}

fn read_retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let date = httpdate::parse_http_date(text).ok()?;
            #[expect(
                clippy::disallowed_methods,
                reason = "a date on the wire means nothing without the clock"
            )]
            let now = SystemTime::now();
            // In whole seconds, like the header's other form: what is stored must come back as it was.
            let wait = date.duration_since(now).unwrap_or_default();
            Some(Duration::from_secs(
                wait.as_secs() + u64::from(wait.subsec_nanos() > 0),
            ))
        }
    }
}
