//! Headers of requests and responses: their names, and how they are read and written.

use axum::body::Bytes;
use axum::http::header::{ACCEPT, AsHeaderName};
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use oncegate_rules::trace::Context;

/// The media type of a stream of JSON lines.
pub(crate) const NDJSON: &str = "application/x-ndjson";

pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub const CALL_ID: HeaderName = HeaderName::from_static("x-call-id");
pub const GATEWAY_OUTCOME: HeaderName = HeaderName::from_static("gateway-outcome");
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// The only line of a header. `Some(Err(()))`: the header has several lines.
pub fn only_line(headers: &HeaderMap, name: impl AsHeaderName) -> Option<Result<&HeaderValue, ()>> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next()?;
    Some(lines.next().map_or(Ok(first), |_| Err(())))
}

/// Reads the key in the `Idempotency-Key` header.
///
/// # Errors
/// The header has several lines; the text says so.
pub fn key_header(headers: &HeaderMap) -> Result<Option<Bytes>, &'static str> {
    let line = only_line(headers, IDEMPOTENCY_KEY).transpose();
    let line = line.map_err(|()| "there is more than one Idempotency-Key header line")?;
    Ok(line.map(|line| Bytes::copy_from_slice(line.as_bytes())))
}

/// Reads the caller's trace context (W3C).
pub fn trace_context(headers: &HeaderMap) -> Option<Context> {
    let line = |value: &HeaderValue| value.to_str().map(str::to_owned);
    let traceparent = line(headers.get("traceparent")?).ok()?;
    let states: Result<Vec<String>, _> = headers.get_all("tracestate").iter().map(line).collect();
    Context::parse(&traceparent, &states.unwrap_or_default().join(","))
}

/// Whether the `Accept` header names this media type.
pub fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let lines = headers.get_all(ACCEPT).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let mut accepted = lines.flat_map(|line| line.split(','));
    accepted.any(|accepted| accepted.trim().starts_with(kind))
}

/// A header for a response, unless its value is absent or cannot be written.
pub fn header<V: TryInto<HeaderValue>>(
    name: HeaderName,
    value: Option<V>,
) -> Option<[(HeaderName, HeaderValue); 1]> {
    Some([(name, value?.try_into().ok()?)])
}

/// A header's name with capitals, as people write it.
pub fn title(name: &HeaderName) -> String {
    let words = name.as_str().split('-').map(|word| {
        let (first, rest) = word.split_at_checked(1).unwrap_or((word, ""));
        format!("{}{rest}", first.to_ascii_uppercase())
    });
    words.collect::<Vec<_>>().join("-")
}
