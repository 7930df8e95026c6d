//! Headers of the gateway's own for a tool, from the configuration.

use reqwest::header::{HeaderName, HeaderValue};

/// A header of the tool's own, from the configuration. Its value is never printed.
pub fn secret_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let name = check_header(name, &[])?;
    let mut value =
        HeaderValue::from_str(value).map_err(|_| "this is no header value".to_owned())?;
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
        .map_err(|_| format!("{name:?} is no header name"))?;
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
