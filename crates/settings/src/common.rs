//! Settings and checks that several sections have.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Method, Url};

use super::reader::{Section, Switch};
use serde_json::Value;

use oncegate_rules::compensation::{Template, read_members};
use oncegate_rules::key::Pointer;
use oncegate_rules::request::KEY_HEADER;
use oncegate_rules::retry;
use oncegate_tools::{check_header, is_http, secret_header};

impl Section<'_, '_> {
    /// Notes a mistake if a name has other than plain characters.
    pub fn check_name(&self, name: &str, whose: &str) {
        let is_plain = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        let why = format!("{whose} name has 1 to 64 characters of a-z, A-Z, 0-9, _ and -");
        self.check(is_plain && (1..=64).contains(&name.len()), "", &why);
    }

    /// Notes a mistake at each of these keys that is there.
    pub fn check_absent(&self, keys: &[&str], otherwise: &str) {
        for key in keys {
            let is_there = self.has(key) || self.has_taken(key);
            self.check(!is_there, key, otherwise);
        }
    }

    /// A URL of requests.
    ///
    /// Only the known placeholders are filled in, so others are mistakes.
    pub fn url(&mut self, known: &[&str]) -> Option<Url> {
        let text: String = self.need("url")?;
        if let (Ok(_), Some(place)) = (text.parse::<Url>(), placeholder(&text, known)) {
            let why = format!("{place} would be sent as it stands: nothing fills it in");
            self.mistake("url", &why);
            return None;
        }
        self.http_url(&text)
    }

    /// The value of `url`, filled in where it has places.
    pub fn http_url(&self, text: &str) -> Option<Url> {
        let url = text.parse().ok().filter(is_http);
        // The text may hold a secret, so it is not repeated.
        let why = "this is not an http:// or https:// URL";
        self.check(url.is_some(), "url", why);
        url
    }

    /// Warns if requests to a URL, and their credentials, can be read on the way.
    pub fn warn_in_the_open(&self, what: &str, url: &Url) {
        if is_in_the_open(url) {
            self.warn(format!("{what} is plain http:// to another machine"));
        }
    }

    /// The longest idle time of a connection that is reused.
    pub fn connection_reuse(&mut self) -> Option<Duration> {
        let default = Switch(Some(Duration::from_secs(1)));
        self.get_or("connection_reuse", default).0
    }

    /// The header that carries the idempotency key; none of the forbidden ones.
    pub fn key_header(&mut self, forbidden: &[&str]) -> String {
        let read = |name: &str| match name.to_ascii_lowercase() {
            usual if usual == KEY_HEADER => Ok(usual),
            other => check_header(&other, forbidden).map(|name| name.as_str().to_owned()),
        };
        let header = self.parsed("key_header", read);
        header.unwrap_or_else(|| KEY_HEADER.to_owned())
    }

    /// Headers of requests, which may be secrets.
    pub fn headers(&mut self) -> HeaderMap {
        self.entries("headers", secret_header).into_iter().collect()
    }

    /// How many attempts, and the waits between them.
    pub fn retry(&mut self, default: retry::Policy, most: u32, longest: Duration) -> retry::Policy {
        let mut section = self.defaulted("retry");
        let policy = retry::Policy {
            attempts: section.get_or("attempts", default.attempts),
            base: section.get_or("base", default.base),
            max: section.get_or("max", default.max),
        };
        let why = format!("must be at most {most} attempts");
        section.check(policy.attempts <= most, "attempts", &why);
        let why = "base must not exceed max";
        section.check(policy.base <= policy.max, "base", why);
        let why = format!("must be at most {longest:?}");
        section.check(policy.max <= longest, "max", &why);
        policy
    }

    /// One of a few words, or the default.
    pub fn word_or<T: Clone>(&mut self, key: &'static str, words: &[(&str, T)], default: T) -> T {
        self.word(key, words).unwrap_or(default)
    }

    /// A list of texts that a function can read. Each text that does not fit is a mistake.
    pub fn each_parsed<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let texts: Vec<String> = self.get(key).unwrap_or_default();
        let parsed = texts.iter().map(|text| parse(text));
        let parsed = parsed.map(|read| read.map_err(|why| self.mistake(key, &why)).ok());
        parsed.flatten().collect()
    }

    /// A list of texts that a function can read. Only the first that does not fit is a mistake.
    pub fn all_parsed<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let texts: Vec<String> = self.get(key)?;
        let parsed: Result<Vec<T>, String> = texts.iter().map(|text| parse(text)).collect();
        parsed.map_err(|why| self.mistake(key, &why)).ok()
    }

    /// A list of JSON Pointers.
    pub fn pointers(&mut self, key: &'static str) -> Vec<Pointer> {
        self.each_parsed(key, str::parse)
    }
}

/// A call of another tool that the gateway makes itself.
pub(super) fn template(section: &mut Section<'_, '_>, undoes_unknown: bool) -> Option<Template> {
    let tool = section.need("tool");
    let args = match section.get("args") {
        None => Ok(Vec::new()),
        Some(Value::Object(args)) => read_members(args),
        Some(_) => Err("the arguments of a call are a table".to_owned()),
    };
    let args = args.map_err(|why| section.mistake("args", &why));
    Some(Template {
        tool: tool?,
        args: args.unwrap_or_default(),
        undoes_unknown,
    })
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

/// Whether a method only reads.
pub(super) fn reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// 32 bytes in hex digits: a SHA-256, or a secret key.
pub(super) fn hex_32(text: &str) -> Option<[u8; 32]> {
    hex::decode(text).ok()?.try_into().ok()
}

/// As [`hex_32`], for the SHA-256 of a token.
pub(super) fn token_digest(text: &str) -> Result<[u8; 32], String> {
    hex_32(text).ok_or_else(|| "this must be the SHA-256 of the token in 64 hex digits".to_owned())
}
