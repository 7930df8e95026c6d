//! Settings that several sections have.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderMap;

use super::reader::{Count, Section};
use serde_json::Value;

use crate::core::compensation::{Part, read_members};
use crate::core::key::Pointer;
use crate::core::retry;
use crate::downstream::secret_header;

impl Section<'_, '_> {
    /// Notes a mistake if a name has other than plain characters.
    pub(super) fn check_name(&self, name: &str, whose: &str) {
        let is_plain = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        let why = format!("{whose} name has 1 to 64 characters of a-z, A-Z, 0-9, _ and -");
        self.check(is_plain && (1..=64).contains(&name.len()), "", &why);
    }

    /// A URL of requests.
    ///
    /// Only the known placeholders are filled in, so others are mistakes.
    pub(super) fn url(&mut self, known: &[&str]) -> Option<Url> {
        let text: String = self.need("url")?;
        match text.parse::<Url>() {
            Ok(_) if let Some(place) = placeholder(&text, known) => {
                let why = format!("{place} would be sent as it stands: nothing fills it in");
                self.mistake("url", &why);
                None
            }
            Ok(url) if is_http(&url) => Some(url),
            // The text may hold a secret, so it is not repeated.
            _ => {
                self.mistake("url", "this is no http:// or https:// URL");
                None
            }
        }
    }

    /// Headers of requests, which may be secrets.
    pub(super) fn headers(&mut self) -> HeaderMap {
        self.entries("headers", secret_header).into_iter().collect()
    }

    /// How many attempts, and the waits between them.
    pub(super) fn retry(
        &mut self,
        default: retry::Policy,
        most: u32,
        longest: Duration,
    ) -> retry::Policy {
        let Some(mut section) = self.section("retry") else {
            return default;
        };
        let Count(attempts) = section.get_or("attempts", Count(default.attempts));
        let policy = retry::Policy {
            attempts,
            base: section.get_or("base", default.base),
            max: section.get_or("max", default.max),
        };
        let why = format!("more than {most} attempts are never useful");
        section.check(attempts <= most, "attempts", &why);
        let why = "the first wait is longer than the longest";
        section.check(policy.base <= policy.max, "base", why);
        let why = format!("a wait is not longer than {longest:?}");
        section.check(policy.max <= longest, "max", &why);
        policy
    }

    /// A list of JSON Pointers.
    pub(super) fn pointers(&mut self, key: &'static str) -> Vec<Pointer> {
        let texts: Vec<String> = self.get(key).unwrap_or_default();
        let read = |text: &String| {
            text.parse()
                .map_err(|why: String| self.mistake(key, &why))
                .ok()
        };
        texts.iter().filter_map(read).collect()
    }
}

/// The arguments of a call that the gateway makes itself.
pub(super) fn args(section: &mut Section<'_, '_>) -> Vec<(String, Part)> {
    let args = match section.get("args") {
        None => Ok(Vec::new()),
        Some(Value::Object(args)) => read_members(args),
        Some(_) => Err("the arguments of a call are a table".to_owned()),
    };
    args.map_err(|why| section.mistake("args", &why))
        .unwrap_or_default()
}

pub(super) fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

/// A `{name}` in a URL that nothing fills in.
///
/// Braces without a plain name between them are not repeated: the text may hold a secret.
pub(super) fn placeholder(url: &str, known: &[&str]) -> Option<String> {
    let rest = known
        .iter()
        .fold(url.to_owned(), |url, known| url.replace(known, ""));
    let (_, inside) = rest.split_once('{')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = inside.split_once('}').map(|(name, _)| name);
    let name = name.filter(|name| (1..=40).contains(&name.len()) && name.chars().all(is_plain));
    Some(name.map_or_else(|| "{".to_owned(), |name| format!("{{{name}}}")))
}

/// Whether requests to a URL, and their credentials, can be read on the way.
pub(super) fn is_in_the_open(url: &Url) -> bool {
    let is_local = url.host_str().is_some_and(|host| {
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    });
    url.scheme() == "http" && !is_local
}

/// 32 bytes in hex digits: a SHA-256, or a secret key.
pub(super) fn hex_32(text: &str) -> Option<[u8; 32]> {
    hex::decode(text).ok()?.try_into().ok()
}

/// As [`hex_32`], for the SHA-256 of a token.
pub(super) fn token_digest(text: &str) -> Result<[u8; 32], String> {
    hex_32(text).ok_or_else(|| "this must be the SHA-256 of the token in 64 hex digits".to_owned())
}
