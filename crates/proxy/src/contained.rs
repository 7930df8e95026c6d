//! What every answer of a proxy says to browsers and caches.
//!
//! Bytes of others are never active on the gateway's origin, and no cache gives one caller's answer to another.

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, VARY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;

/// A page has no scripts, no forms and an origin of its own. A policy of the API holds beside it.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// Directives that let a cache share an answer.
const SHARED: [&str; 2] = ["public", "s-maxage"];

/// Ends of the names of headers that speak to caches of one kind alone (RFC 9213).
const TO_SOME_CACHES: [&str; 2] = ["-cache-control", "surrogate-control"];

/// Headers that speak for a whole origin. The gateway's origin is not the API's.
const OF_ORIGIN: [&str; 7] = [
    "alt-svc",
    "clear-site-data",
    "nel",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "strict-transport-security",
];

/// Contains an answer of a proxy.
pub(crate) fn contained(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let theirs = taken(headers, &CONTENT_SECURITY_POLICY);
    headers.insert(CONTENT_SECURITY_POLICY, SANDBOX);
    for line in theirs {
        headers.append(CONTENT_SECURITY_POLICY, line);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    let is_dropped = |name: &&HeaderName| {
        let name = name.as_str();
        OF_ORIGIN.contains(&name) || TO_SOME_CACHES.iter().any(|end| name.ends_with(end))
    };
    let dropped: Vec<HeaderName> = headers.keys().filter(is_dropped).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
    let lines = taken(headers, &CACHE_CONTROL);
    headers.insert(CACHE_CONTROL, private(&lines));
    let lines = taken(headers, &VARY);
    headers.insert(VARY, with_token(&lines));
    response
}

/// Takes out the lines of a header.
fn taken(headers: &mut HeaderMap, name: &HeaderName) -> Vec<HeaderValue> {
    let lines = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    lines
}

/// The directives of an API without those that let caches share the answer, and with `private`.
fn private(lines: &[HeaderValue]) -> HeaderValue {
    let mut directives = vec!["private".to_owned()];
    for directive in lines.iter().flat_map(split) {
        let name = directive.split('=').next().unwrap_or_default().trim();
        let name = name.to_ascii_lowercase();
        if name != "private" && !SHARED.contains(&&*name) {
            directives.push(directive);
        }
    }
    let joined = directives.join(", ").try_into();
    joined.unwrap_or(HeaderValue::from_static("private, no-store"))
}

/// What an answer depends on, with the header of the gateway's token.
fn with_token(lines: &[HeaderValue]) -> HeaderValue {
    let mut names: Vec<String> = lines.iter().flat_map(split).collect();
    names.push("Oncegate-Token".to_owned());
    let joined = names.join(", ").try_into();
    joined.unwrap_or(HeaderValue::from_static("*"))
}

/// The parts of a line between commas that are in no quotes. A line that is not text has none.
fn split(line: &HeaderValue) -> Vec<String> {
    let (mut parts, mut is_quoted) = (vec![String::new()], false);
    for letter in line.to_str().unwrap_or_default().chars() {
        is_quoted ^= letter == '"';
        match parts.last_mut() {
            Some(part) if letter != ',' || is_quoted => part.push(letter),
            _ => parts.push(String::new()),
        }
    }
    let parts = parts.into_iter().map(|part| part.trim().to_owned());
    parts.filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cache_is_let_share_an_answer() {
        for (line, said) in [
            ("", "private"),
            ("public, max-age=60", "private, max-age=60"),
            ("Public,S-MaxAge=5 , no-store", "private, no-store"),
            ("private=\"x, public\", no-cache", "private, no-cache"),
            ("no-cache=\"a, b\"", "private, no-cache=\"a, b\""),
        ] {
            assert_eq!(private(&[HeaderValue::from_static(line)]), said, "{line}");
        }
        assert_eq!(with_token(&[]), "Oncegate-Token");
        let theirs = [HeaderValue::from_static("accept, origin")];
        assert_eq!(with_token(&theirs), "accept, origin, Oncegate-Token");
    }
}
