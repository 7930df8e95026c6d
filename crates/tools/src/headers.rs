//! Headers: from a tool's configuration, and those that pass through unchanged.

use reqwest::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue};

use oncegate_rules::proxy::is_of_connection;

/// A header of the tool's own, from the configuration. Its value is never printed.
pub fn secret_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let name = check_header(name, &[])?;
    let mut value =
        HeaderValue::from_str(value).map_err(|_| "this is not a header value".to_owned())?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Checks the name of a header that a tool's configuration sets.
///
/// # Errors
/// Why it is not.
pub fn check_header(name: &str, none_of: &[&str]) -> Result<HeaderName, String> {
    let name: HeaderName = name
        .parse()
        .map_err(|_| format!("{name:?} is not a header name"))?;
    if RESERVED.contains(&name.as_str()) {
        return Err(format!("the header {name} is the gateway's own"));
    }
    if none_of.contains(&name.as_str()) {
        return Err(format!("the header {name} says who calls"));
    }
    Ok(name)
}

/// Headers that a tool's configuration may not set: the gateway or the connection does.
const RESERVED: [&str; 12] = [
    "connection",
    "content-length",
    "content-type",
    "fencing-token",
    "host",
    "idempotency-key",
    "te",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "x-call-id",
    "x-session-id",
];

/// The headers of a request or an answer that pass through.
pub fn forwardable(headers: &HeaderMap) -> Vec<(String, String)> {
    let lines = headers.get_all(CONNECTION).iter();
    let named = lines.filter_map(|line| line.to_str().ok());
    let named = named.flat_map(|line| line.split(','));
    let named: Vec<String> = named.map(|name| name.trim().to_ascii_lowercase()).collect();
    let text = |value: &HeaderValue| value.as_bytes().iter().copied().map(char::from).collect();
    headers
        .iter()
        .filter(|(name, _)| !is_of_connection(name.as_str(), &named))
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect()
}

/// A header value from a text whose characters are single bytes.
pub fn as_header(value: &str) -> Result<HeaderValue, String> {
    let bytes: Result<Vec<u8>, _> = value.chars().map(u8::try_from).collect();
    let value = bytes
        .ok()
        .and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
    value.ok_or_else(|| "a header has no such value".to_owned())
}
