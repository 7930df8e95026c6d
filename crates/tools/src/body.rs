//! Sends a request once, and reads the body of its answer.

use std::error::Error as _;
use std::iter::successors;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use tokio::time::{Instant, timeout_at};

use oncegate_rules::outcome::Body;

/// Sends a request once.
///
/// # Errors
/// There is no answer; why, without the URL.
pub(super) async fn send(request: reqwest::RequestBuilder) -> Result<reqwest::Response, String> {
    request.send().await.map_err(|error| chain(&error))
}

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

/// The same, but only until `by`.
pub(super) async fn read_until(
    by: Instant,
    response: reqwest::Response,
    max_result: usize,
) -> Body {
    let body = timeout_at(by, read(response, max_result)).await;
    body.unwrap_or_else(|_| Body::Broken("it did not end in time".into()))
}

/// An error with its causes, without the URL, which may hold secrets.
pub(super) fn chain(error: &reqwest::Error) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    if causes.is_empty() {
        return "the request failed".to_owned();
    }
    causes.join(": ")
}

/// The longest wait that a tool may ask for.
const MOST_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads `Retry-After`: seconds, or a date (RFC 9110 section 10.2.3); at most a day.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if let Ok(seconds) = text.parse() {
        seconds
    } else {
        let date = httpdate::parse_http_date(text).ok()?;
        #[expect(
            clippy::disallowed_methods,
            reason = "a date on the wire means nothing without the clock"
        )]
        let now = SystemTime::now();
        // In whole seconds, like the header's other form: what is stored must come back as it was.
        let wait = date.duration_since(now).unwrap_or_default();
        wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
    };
    Some(Duration::from_secs(seconds).min(MOST_RETRY_AFTER))
}
