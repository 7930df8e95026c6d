//! Headers that pass through unchanged.

use reqwest::header::{CONNECTION, HeaderMap, HeaderValue};

use crate::core::proxy::is_of_connection;

/// The headers of a request or an answer that pass through.
pub fn passed(headers: &HeaderMap) -> Vec<(String, String)> {
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
