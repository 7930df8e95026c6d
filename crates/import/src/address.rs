//! The URL of an operation: its server, and its path with a place for each argument.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde_json::Value;

use super::document::{Document, items, members, text};
use super::operations::Operation;
use super::parameters::Reason;

/// Characters that a path has encoded. `$` is one, because `${` begins a variable.
const ENCODED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'$')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A part of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Fixed(String),
    /// The place of a parameter, by its name.
    Place(&'a str),
}

/// The URL of an operation's server, without a slash at its end.
pub(super) fn server(
    document: &Document,
    operation: &Operation<'_>,
    instead: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<String, Reason> {
    if let Some(instead) = instead {
        return plain(instead);
    }
    let owners = [operation.node, operation.item, &document.root].into_iter();
    let mut lists = owners.map(|owner| items(owner, "servers"));
    let servers = lists.find(|servers| !servers.is_empty());
    let servers: Vec<_> = servers.unwrap_or_default().iter().map(filled).collect();
    let is_safe = |(url, _): &&(String, Vec<String>)| has_scheme(url, "https://");
    let chosen = servers.iter().find(is_safe).or(servers.first());
    let (chosen, filled_in) = chosen.ok_or(NO_SERVER)?;
    notes.extend_from_slice(filled_in);
    let others = servers.iter().filter(is_safe).map(|(url, _)| url.as_str());
    let others = others
        .filter(|url| *url != chosen.as_str())
        .take(MAX_OTHERS);
    let others: Vec<&str> = others.collect();
    if !others.is_empty() {
        notes.push(format!(
            "the description has other servers, too: {}",
            others.join(" ")
        ));
    }
    let unsafe_ones = servers.iter().filter(|one| !is_safe(one));
    let unsafe_ones = unsafe_ones.map(|(url, _)| url.as_str());
    let left_out: Vec<&str> = unsafe_ones
        .filter(|url| !url.is_empty() && *url != chosen.as_str())
        .take(MAX_OTHERS)
        .collect();
    if !left_out.is_empty() {
        notes.push(format!(
            "servers of the description without https are left out; --server URL takes one: {}",
            left_out.join(" ")
        ));
    }
    plain(chosen)
}

/// The longest server address that is filled in.
const MAX_URL: usize = 500;

/// How often a server may decode a path.
const MAX_DECODED: usize = 2;

/// Most other servers that are named.
const MAX_OTHERS: usize = 3;

const NO_SERVER: &str = "its server has no whole address; --server URL gives one";

/// The URL of a server with its variables filled in, and sentences about their values.
fn filled(server: &Value) -> (String, Vec<String>) {
    let mut url = text(server, "url").unwrap_or_default().to_owned();
    let mut notes = Vec::new();
    for (name, variable) in members(server, "variables") {
        let place = format!("{{{name}}}");
        let default = text(variable, "default").filter(|default| {
            let is_short = default.len() + url.len() < MAX_URL;
            is_short && url.contains(&place)
        });
        if let Some(default) = default {
            url = url.replace(&place, default);
            notes.push(format!(
                "the server's {name} is {default:?}, as the description has it by default"
            ));
        }
    }
    (url, notes)
}

/// Whether an address begins with a scheme, which may be written in capitals.
fn has_scheme(url: &str, scheme: &str) -> bool {
    url.get(..scheme.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// An address to which a path can be appended.
fn plain(url: &str) -> Result<String, Reason> {
    if url.contains(['{', '}']) {
        return Err(
            "its server's address has a variable without a default; --server URL gives one".into(),
        );
    }
    if url.contains(['?', '#', '$', '@']) || !url.is_ascii() {
        return Err(
            "its server's address has more than a host and a path; --server URL gives one".into(),
        );
    }
    if !has_scheme(url, "https://") && !has_scheme(url, "http://") {
        return Err(NO_SERVER.into());
    }
    let (_, behind) = url.split_once("://").unwrap_or_default();
    let (host, path) = behind.split_once('/').unwrap_or((behind, ""));
    // The printed URL must be the one that is called: parsers of URLs skip some characters and decode others.
    let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_of_host) {
        return Err("its server's host is not a plain name; --server URL gives one".into());
    }
    if let Some(what) = strange(path) {
        return Err(format!(
            "its server's address has {what}; --server URL gives one"
        ));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// What in a path a server may read as another path, even if it decodes the path twice.
fn strange(path: &str) -> Option<&'static str> {
    let mut decoded = path.as_bytes().to_vec();
    for _ in 0..=MAX_DECODED {
        if decoded.contains(&b'\\') {
            return Some("a backslash, which some servers take for a slash");
        }
        if decoded.iter().any(u8::is_ascii_control) {
            return Some("a control character");
        }
        // Some servers first cut off the text behind a semicolon.
        let is_step = |segment: &[u8]| {
            let name = segment.split(|byte| *byte == b';').next();
            matches!(name, Some(b"." | b".."))
        };
        if decoded.split(|byte| *byte == b'/').any(is_step) {
            return Some("`.` or `..` as a segment, which leads to another path");
        }
        let next = String::from_utf8_lossy(&decoded).into_owned();
        decoded = percent_decode_str(&next).collect();
    }
    None
}

/// The fixed parts of a path, and its places in order.
pub(super) fn parts(path: &str) -> Result<Vec<Part<'_>>, Reason> {
    // A fragment is never sent: descriptions tell paths apart by it.
    let mut rest = path.split('#').next().unwrap_or_default();
    let names = rest.split('?').next().unwrap_or_default();
    if let Some(what) = strange(names) {
        return Err(format!("its path has {what}"));
    }
    let mut parts = Vec::new();
    let fixed = |text: &str| Part::Fixed(utf8_percent_encode(text, ENCODED).to_string());
    if !rest.starts_with('/') {
        parts.push(fixed("/"));
    }
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, after) = after
            .split_once('}')
            .ok_or("its path has a { without a }")?;
        // `{+name}` and `{name*}` are forms of RFC 6570.
        let name = inside.trim_start_matches('+').trim_end_matches('*');
        if name.is_empty() || name.contains('{') {
            return Err("its path has a place without a name".into());
        }
        parts.push(fixed(before));
        parts.push(Part::Place(name));
        rest = after;
    }
    parts.push(fixed(rest));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(path: &str) -> String {
        let show = |part: &Part<'_>| match part {
            Part::Fixed(text) => text.clone(),
            Part::Place(name) => format!("<{name}>"),
        };
        parts(path).expect("a path").iter().map(show).collect()
    }

    #[test]
    fn a_path_has_fixed_parts_and_places() {
        assert_eq!(shown("/pets/{petId}/toys"), "/pets/<petId>/toys");
        assert_eq!(shown("/v1/{+name}:cancel"), "/v1/<name>:cancel");
        assert_eq!(shown("pets"), "/pets");
        assert_eq!(shown("/a b/${id}"), "/a%20b/%24<id>");
        assert_eq!(shown("/#Action=Run"), "/", "a fragment is never sent");
        assert_eq!(shown("/do?action=run"), "/do?action=run");
        assert_eq!(shown("/a/.b/...;v=1/c.d"), "/a/.b/...;v=1/c.d");
        assert!(parts("/{a").is_err() && parts("/{}").is_err() && parts("/{{a}}").is_err());
    }

    #[test]
    fn a_path_that_a_server_may_read_as_another_one_is_refused() {
        for (path, what) in [
            ("/a/{x}{y}/..", "`..`"),
            ("/../admin", "`..`"),
            ("/a/./b", "`..`"),
            ("/a/%2e%2E/b", "`..`"),
            ("/a/%252e./b", "`..`"),
            ("/a%2f..%2fb", "`..`"),
            ("/a/..;v=1/b", "`..`"),
            ("/a\\b", "a backslash"),
            ("/a%255cb", "a backslash"),
            ("/a\nb", "a control character"),
            ("/a%00b", "a control character"),
        ] {
            let why = parts(path).expect_err(path);
            assert!(why.contains(what), "{path}: {why}");
        }
    }

    #[test]
    fn a_server_has_its_variables_by_default_and_a_bound() {
        let server = |url: &str, default: &str| {
            let server =
                json!({ "url": url, "variables": { "a": { "default": default }, "b": {} } });
            filled(&server).0
        };
        assert_eq!(
            server("https://{a}.example/{a}", "eu"),
            "https://eu.example/eu"
        );
        assert_eq!(server("https://{b}", "eu"), "https://{b}");
        let long = server(&"{a}".repeat(100_000), &"x".repeat(100_000));
        assert!(long.len() < 1_000_000, "{}", long.len());
    }

    #[test]
    fn an_address_is_a_host_and_a_path() {
        assert_eq!(
            plain("https://a.example/v1/"),
            Ok("https://a.example/v1".into())
        );
        for refused in [
            "/v1",
            "",
            "ftp://a",
            "https://u:p@a",
            "https://a/?b",
            "https://{a}.b",
            "https://${A}",
            "https://api.example\\evil.com",
            "https://api.exa\nmple",
            "https://a%2eb",
            "https:///evil.com",
            "https://a:8443/..%2f",
            "https://a/v1/%252e%252e/b",
            "https://a/v1\tb",
        ] {
            assert!(plain(refused).is_err(), "{refused}");
        }
    }
}
