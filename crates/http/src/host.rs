//! The host and the origin of a request. Without tokens only programs on this machine may ask.

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri, Version};

use super::problem::Problem;

/// Headers in which a browser says where a request comes from (W3C Fetch Metadata).
const FETCH_SITE: &str = "sec-fetch-site";
const FETCH_MODE: &str = "sec-fetch-mode";

/// Checks that a request over HTTP/1.1 has exactly one `Host` (RFC 9112, section 3.2).
///
/// # Errors
/// It has none, or several.
pub(super) fn has_one(request: &Request) -> Result<(), Problem> {
    let is_v1 = request.version() == Version::HTTP_11;
    if is_v1 && request.headers().get_all(HOST).iter().count() != 1 {
        let why = "a request over HTTP/1.1 has exactly one Host header";
        return Err(Problem::invalid_request(why));
    }
    Ok(())
}

/// Checks that a program on this machine asks, for a gateway without tokens.
///
/// A web page can reach loopback as well, even under its own host name (DNS rebinding).
///
/// # Errors
/// The request comes from a web page, or its host name is not this machine's.
pub fn is_local(parts: &Parts) -> Result<(), Problem> {
    let headers = &parts.headers;
    if headers.contains_key(ORIGIN) || is_from_another_site(headers) {
        return Err(no_web_pages());
    }
    asks_for_loopback(parts)
}

/// Checks the same for a page of the console, to which another page may lead by a link.
///
/// # Errors
/// A web page of another site asks otherwise than by a link, or the host name is not this machine's.
pub fn asks_this_machine(parts: &Parts) -> Result<(), Problem> {
    let mode = parts.headers.get(FETCH_MODE);
    let is_navigation = mode.is_some_and(|mode| mode == "navigate");
    if is_from_another_site(&parts.headers) && !is_navigation {
        return Err(no_web_pages());
    }
    asks_for_loopback(parts)
}

/// Whether a browser is to show the answer as a page, or in a frame of one.
pub fn is_navigation(headers: &HeaderMap) -> bool {
    let mut modes = headers.get_all(FETCH_MODE).iter();
    modes.any(|mode| mode.as_bytes().eq_ignore_ascii_case(b"navigate"))
}

fn no_web_pages() -> Problem {
    Problem::forbidden("a gateway without tokens takes no requests from web pages")
}

fn asks_for_loopback(parts: &Parts) -> Result<(), Problem> {
    if name(&parts.uri, &parts.headers).is_none_or(is_loopback) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "a gateway without tokens has the names localhost, 127.0.0.1 and [::1] only",
    ))
}

/// Whether a request comes from a page of this gateway on this machine.
pub fn is_own_page(parts: &Parts, origin: &HeaderValue) -> bool {
    is_own_origin(parts, origin) && name(&parts.uri, &parts.headers).is_some_and(is_loopback)
}

/// Whether a form was sent by a page of this gateway, by the browser's headers.
///
/// A request with neither header comes from no browser, and passes.
pub fn has_own_origin(parts: &Parts) -> bool {
    if parts.headers.contains_key(FETCH_SITE) {
        return !is_from_another_site(&parts.headers);
    }
    let mut origins = parts.headers.get_all(ORIGIN).iter();
    origins.all(|origin| is_own_origin(parts, origin))
}

/// Whether an origin is the address of the request itself.
fn is_own_origin(parts: &Parts, origin: &HeaderValue) -> bool {
    let asked = match parts.uri.authority() {
        Some(authority) => Some(authority.as_str().as_bytes()),
        None => parts.headers.get(HOST).map(HeaderValue::as_bytes),
    };
    let of_origin = origin.as_bytes().splitn(3, |byte| *byte == b'/').nth(2);
    asked.is_some() && asked == of_origin
}

/// Whether a page of another site made this request, as the browser says.
///
/// The browser sends no cookie of a session with such a request.
pub fn is_from_another_site(headers: &HeaderMap) -> bool {
    headers
        .get_all(FETCH_SITE)
        .iter()
        .any(|site| !matches!(site.as_bytes(), b"none" | b"same-origin"))
}

/// The host name of a request, without its port.
pub fn name<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    if let Some(host) = uri.host() {
        return Some(host);
    }
    let host = headers.get(HOST)?.to_str().unwrap_or("?");
    // An IPv6 address is in brackets, and contains colons itself.
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
