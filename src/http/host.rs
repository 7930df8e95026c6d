//! The host of a request: one `Host` for HTTP/1.1, and without tokens only this machine's names.

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

/// A browser's header about the origin of a request (W3C Fetch Metadata).
const FETCH_SITE: &str = "sec-fetch-site";
const FETCH_MODE: &str = "sec-fetch-mode";

/// Refuses HTTP/1.1 requests without exactly one `Host` (RFC 9112, section 3.2).
pub(super) async fn one_host(request: Request, next: Next) -> Response {
    let is_v1 = request.version() == Version::HTTP_11;
    if is_v1 && request.headers().get_all(HOST).iter().count() != 1 {
        return Problem::invalid_request("a request over HTTP/1.1 has exactly one Host header")
            .into_response();
    }
    next.run(request).await
}

/// Whether a gateway without tokens takes a request.
///
/// It must come from a program on this machine, not from a web page.
///
/// A page may reach loopback under a name of its own (DNS rebinding), so the name has to be one of this machine.
///
/// # Errors
/// The request comes from a web page, or asks for another name.
pub(super) fn is_local(parts: &Parts) -> Result<(), Problem> {
    let headers = &parts.headers;
    if headers.contains_key(ORIGIN) || is_from_another_site(headers) {
        return Err(Problem::forbidden(
            "a gateway without tokens takes no requests from web pages",
        ));
    }
    let asked = name(&parts.uri, headers);
    if asked.is_none_or(is_loopback) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "a gateway without tokens is asked as localhost, 127.0.0.1 or [::1]",
    ))
}

/// Whether a request comes from a page of this gateway on this machine.
///
/// Its origin is the address that it asks, by a loopback name.
pub(super) fn is_own_page(parts: &Parts, origin: &HeaderValue) -> bool {
    let authority = match parts.uri.authority() {
        Some(authority) => Some(authority.as_str().as_bytes()),
        None => parts.headers.get(HOST).map(HeaderValue::as_bytes),
    };
    let of_origin = origin.as_bytes().splitn(3, |byte| *byte == b'/').nth(2);
    authority.is_some()
        && of_origin == authority
        && name(&parts.uri, &parts.headers).is_some_and(is_loopback)
}

/// Whether a request asks this machine by a name of its own.
///
/// # Errors
/// It asks for another name, as a web page does that reaches loopback under a name of its own.
pub(super) fn asks_this_machine(parts: &Parts) -> Result<(), Problem> {
    let is_navigation = parts
        .headers
        .get(FETCH_MODE)
        .is_some_and(|mode| mode == "navigate");
    if is_from_another_site(&parts.headers) && !is_navigation {
        return Err(Problem::forbidden(
            "a gateway without tokens takes no requests from web pages",
        ));
    }
    if name(&parts.uri, &parts.headers).is_none_or(is_loopback) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "a gateway without tokens is asked as localhost, 127.0.0.1 or [::1]",
    ))
}

/// Whether a form comes from a page of this gateway, as the browser says.
///
/// Without either header it comes from no browser.
pub(super) fn has_own_origin(parts: &Parts) -> bool {
    if parts.headers.contains_key(FETCH_SITE) {
        return !is_from_another_site(&parts.headers);
    }
    let authority = match parts.uri.authority() {
        Some(authority) => Some(authority.as_str().as_bytes()),
        None => parts.headers.get(HOST).map(HeaderValue::as_bytes),
    };
    let mut origins = parts.headers.get_all(ORIGIN).iter();
    origins.all(|origin| {
        let of_origin = origin.as_bytes().splitn(3, |byte| *byte == b'/').nth(2);
        authority.is_some() && of_origin == authority
    })
}

/// Whether a page of another site has led to a page of this gateway.
///
/// The cookie of a session does not come with such a request.
pub(super) fn is_from_another_site(headers: &HeaderMap) -> bool {
    headers
        .get_all(FETCH_SITE)
        .iter()
        .any(|site| !matches!(site.as_bytes(), b"none" | b"same-origin"))
}

/// The host name of a request, without its port.
pub(super) fn name<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    if let Some(host) = uri.host() {
        return Some(host);
    }
    let host = headers.get(HOST)?.to_str().unwrap_or("?");
    // An IPv6 address stands in brackets and has colons of its own.
    let end = host
        .rfind(']')
        .map_or_else(|| host.find(':'), |at| Some(at + 1));
    Some(&host[..end.unwrap_or(host.len())])
}

fn is_loopback(name: &str) -> bool {
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address
            .parse()
            .is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for name in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert!(is_loopback(name), "{name}");
        }
        for name in [
            "evil.example",
            "localhost.evil.example",
            "0.0.0.0",
            "10.0.0.1",
            "[::2]",
            "?",
            "",
        ] {
            assert!(!is_loopback(name), "{name}");
        }
    }

    #[test]
    fn a_port_is_no_part_of_the_name() {
        for (host, expected) in [
            ("localhost:8080", "localhost"),
            ("[::1]:8080", "[::1]"),
            ("[::1]", "[::1]"),
            ("a.b", "a.b"),
        ] {
            let headers = HeaderMap::from_iter([(HOST, host.parse().expect("a header"))]);
            assert_eq!(
                name(&Uri::from_static("/v1/tools"), &headers),
                Some(expected)
            );
        }
    }
}
