//! An HTTP API that callers use as it is: which of its requests are calls.
//!
//! Promises: a request that may write is a call unless the operator says otherwise; credentials are kept nowhere.

pub mod compared_form; // the value from which key and fingerprint are made
pub mod cookies; // cookies on several lines
pub mod credentials; // headers that count as the caller's own credentials
pub mod encoded; // bodies with Content-Encoding
mod form; // the names and values of a form
mod methods; // methods that a query or a body names
mod multipart; // the boundary of a multipart body
pub mod names; // headers that no caller may set, in any spelling
pub mod paths; // paths as servers may read them
pub mod payment; // payments of agents, and what APIs say of them
pub mod reply; // an answer as it is kept
mod secrets; // names and values that sound like secrets
pub mod stored_form; // a request as the ledger keeps it

#[cfg(test)]
mod attacked_tests; // requests that try to deceive the rules
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::form::is_at;
use self::names::folded;
use self::paths::Path;
use self::secrets::is_of_scheme;
pub use self::secrets::{SECRETS, is_secret};
use crate::key::Pointer;
use crate::rate::Rate;
use crate::words::words;

words! {
    /// The treatment of a request.
    pub enum Does {
        /// The request goes through, and nothing is kept of it.
        Read = "read",
        /// The request is a call: claimed, sent at most once, kept.
        Write = "write",
        /// The request is refused.
        Deny = "deny",
    }
}

words! {
    /// The treatment of a write without a key.
    #[derive(Default)]
    pub enum Unkeyed {
        #[default]
        Refuse = "refuse",
        /// The key is derived from the request.
        Derive = "derive",
        /// The request goes through unguarded.
        Pass = "pass",
    }
}

words! {
    /// What becomes of a `Location` of the API.
    #[derive(Default)]
    pub enum Locations {
        /// It leads back through the proxy.
        #[default]
        Rewrite = "rewrite",
        Keep = "keep",
    }
}

words! {
    /// For which requests a key is the same.
    #[derive(Default)]
    pub enum KeyScope {
        /// For all of the proxy: with another path it is reused.
        #[default]
        Proxy = "proxy",
        /// For those of one path: with another path it is another key.
        Path = "path",
    }
}

words! {
    /// How the bodies of two requests are compared.
    #[derive(Default)]
    pub enum Compare {
        /// By what they mean, where they are JSON or a form.
        #[default]
        Json = "json",
        Bytes = "bytes",
    }
}

words! {
    /// The key that the API gets. The words are stored.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum SendKey {
        /// The gateway's own for the call.
        #[default]
        Derived = "derived",
        /// The caller's, as it came.
        AsIs = "as_is",
        /// None.
        Never = "none",
    }
}

words! {
    /// The `Host` that the API gets.
    #[derive(Default)]
    pub enum Authority {
        /// That of its URL.
        #[default]
        Upstream = "upstream",
        /// The caller's.
        Caller = "caller",
    }
}

words! {
    /// How the caller of a proxy is known.
    #[derive(Default)]
    pub enum KnownBy {
        /// By the gateway's token.
        #[default]
        Token = "token",
        /// By its credential for the API. It brings no token.
        Credential = "passed",
    }
}

/// Callers without a token of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenless {
    /// The tenant of their calls.
    pub tenant: String,
    /// How fast all of them together may be; `None`: no bound.
    pub rate: Option<Rate>,
    /// How fast all of them together may claim new keys.
    pub new_keys: Option<Rate>,
    /// What says whether to let a caller in. `None`: its credential counts, which only the API can judge.
    pub authorize: Option<Authorize>,
}

/// A request to the API, or to a system beside it, before a write is claimed or answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorize {
    pub url: String,
    /// The header of its answer with the caller's name. `None`: callers are told apart by their credentials.
    pub caller: Option<String>,
    pub timeout: Duration,
}

/// The treatment of some requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Methods in upper case. Empty: all.
    pub methods: Vec<String>,
    /// The path, or what it begins with, up to a slash. A segment `{name}` stands for any one.
    pub path: String,
    pub does: Does,
    /// `None`: that of the policy.
    pub unkeyed: Option<Unkeyed>,
}

/// The treatment of the requests of one API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The first rule that fits decides.
    pub rules: Vec<Rule>,
    pub unkeyed: Unkeyed,
    /// The header for the key in requests of callers and to the API, in lower case.
    pub key_header: String,
    /// Headers that are part of the intent, in lower case.
    pub counted_headers: Vec<String>,
    /// Headers that sound like a credential and do not count as one, in lower case.
    pub uncounted_headers: Vec<String>,
    /// Parts of a body or a query that are not kept.
    pub redact: Vec<Pointer>,
    /// Further headers whose values are not kept, in lower case.
    pub secret_headers: Vec<String>,
    /// The longest body of a request, in bytes.
    pub max_body: usize,
    /// A host name by which callers reach the API, beside its path. In lower case, without a port.
    pub host: Option<String>,
    /// Whether the caller's own credentials go through. They are kept nowhere.
    pub passes_authorization: bool,
    /// Callers without a token of the gateway. `None`: each caller brings one.
    pub tokenless: Option<Box<Tokenless>>,
    /// Whether a `Location` of the API is returned as it is. Otherwise it leads back through the proxy.
    pub keeps_locations: bool,
    pub key_scope: KeyScope,
    pub compare: Compare,
    pub send_key: SendKey,
    pub authority: Authority,
    /// Whether each answer says the caller's key in the header of the key.
    pub echoes_key: bool,
    /// The name of the form of the gateway's own answers.
    pub answers: String,
    /// The name of the row that presets these settings.
    pub profile: Option<String>,
}

/// An HTTP request of a caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// In upper case.
    pub method: String,
    /// As it was written, with its first slash.
    pub path: String,
    pub query: Option<String>,
    /// The headers that go through, with names in lower case. Each byte of a value is one
    /// character.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

impl Message {
    /// The only value of a header; `None`: no value, or more than one.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(named, _)| named == name);
        match (values.next(), values.next()) {
            (Some((_, value)), None) => Some(value),
            _ => None,
        }
    }

    /// The methods in override headers, in upper case. Some servers obey them. See also [`methods::named_in`].
    fn overrides(&self) -> impl Iterator<Item = String> {
        let headers = self.headers.iter();
        let named = headers.filter(|(name, _)| is_override(name));
        let methods = named.flat_map(|(_, methods)| methods.split(','));
        methods.map(|method| method.trim().to_ascii_uppercase())
    }

    /// Whether it has an `Authorization` that tells its caller from others.
    ///
    /// A payment does not: each request may bring another one. Nor do cookies and others: many clients may have the same.
    pub fn has_authorization(&self) -> bool {
        self.headers.iter().any(|(name, value)| {
            let has_scheme = value.trim().split_once([' ', '\t']).is_some();
            name == "authorization" && has_scheme && !payment::is_payment(name, value)
        })
    }

    /// Path and query.
    pub fn target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }
}

/// Most methods that one request may name.
const MAX_METHODS: usize = 8;

/// Headers that name another method.
pub const OVERRIDES: [&str; 3] = [
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

/// Whether a header names another method.
///
/// Some servers read `_` in a name as `-`. `name` is in lower case.
pub fn is_override(name: &str) -> bool {
    OVERRIDES.contains(&&*folded(name))
}

/// Headers that name another path. Some servers obey them, so they are not forwarded: no rule could hold.
const OTHER_PATHS: [&str; 4] = [
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-url",
];

/// Whether a header names another path. `name` is in lower case.
pub fn names_path(name: &str) -> bool {
    OTHER_PATHS.contains(&&*folded(name))
}

impl Policy {
    /// The treatment of a request with a key, and without.
    ///
    /// Where headers, query or body name another method, the stricter treatment counts, and no request passes
    /// unguarded. A request that pays is a write, whatever its method, and does not pass unguarded either.
    pub fn decide_on(&self, message: &Message) -> (Does, Unkeyed) {
        let (rule, does) = self.decide(&message.method, &message.path);
        let mut decided = match (does, self.unkeyed(rule)) {
            (Does::Deny, unkeyed) => (Does::Deny, unkeyed),
            (_, Unkeyed::Pass) if message.pays() => (Does::Write, Unkeyed::Derive),
            (_, unkeyed) if message.pays() => (Does::Write, unkeyed),
            as_ruled => as_ruled,
        };
        let in_content = methods::named_in(message).unwrap_or_default();
        let named: BTreeSet<String> = message.overrides().chain(in_content).collect();
        if named.len() > MAX_METHODS {
            return (Does::Deny, Unkeyed::Refuse);
        }
        for method in named {
            let (rule, named) = self.decide(&method, &message.path);
            decided.0 = match (decided.0, named) {
                (Does::Deny, _) | (_, Does::Deny) => Does::Deny,
                _ => Does::Write,
            };
            if decided.1 != self.unkeyed(rule) || decided.1 == Unkeyed::Pass {
                decided.1 = Unkeyed::Refuse;
            }
        }
        decided
    }

    /// The number of the first rule that fits, and its treatment.
    pub fn decide(&self, method: &str, path: &str) -> (Option<usize>, Does) {
        if matches!(method, "CONNECT" | "TRACE") {
            return (None, Does::Deny);
        }
        let path = Path::of(path);
        let fits = |rule: &Rule| rule.fits(method, &path);
        match self.rules.iter().position(fits) {
            Some(at) => (Some(at), self.rules[at].does),
            None if matches!(method, "GET" | "HEAD" | "OPTIONS") => (None, Does::Read),
            None => (None, Does::Write),
        }
    }

    /// The headers that are part of the intent.
    ///
    /// [`CREDENTIAL`](compared_form::CREDENTIAL) is one of them if credentials go through: a fingerprint that
    /// covers them can be compared only while they do, so it needs a key scheme of its own.
    pub fn counted(&self) -> Vec<String> {
        let mut counted = self.counted_headers.clone();
        // Not a header: a release that does not know the word can read the key scheme, and finds an absent header.
        counted.push(compared_form::DECODED.to_owned());
        if self.passes_authorization {
            counted.push(compared_form::CREDENTIAL.to_owned());
        }
        counted.extend(credentials::in_list(&self.uncounted_headers));
        counted
    }

    /// Whether callers are known, and their credentials treated, as by another policy.
    pub fn has_same_callers(&self, other: &Self) -> bool {
        self.tokenless == other.tokenless && self.passes_authorization == other.passes_authorization
    }

    /// Whether a header's value is not kept or shown.
    fn hides_header(&self, name: &str, value: &str) -> bool {
        is_secret(name)
            || payment::is_secret(name, value)
            || self.secret_headers.iter().any(|one| one == name)
            || secrets::is_secret_value(value)
    }

    /// The treatment of a write without a key.
    fn unkeyed(&self, rule: Option<usize>) -> Unkeyed {
        let own = rule.and_then(|at| self.rules.get(at)?.unkeyed);
        own.unwrap_or(self.unkeyed)
    }

    /// Whether a name of a form or a query is secret, as the operator says.
    fn hides(&self, name: &str) -> bool {
        self.redact.iter().any(|pointer| is_at(name, pointer))
    }
}

impl Rule {
    /// Whether the rule is for a request.
    ///
    /// A `read` rule fits only paths that every server reads in the same way. A `write` or `deny` rule also fits a path
    /// that only some servers read as the rule's: in another case, with `;` parameters, with an extension, percent-encoded
    /// several times.
    fn fits(&self, method: &str, path: &Path) -> bool {
        let is_named = |name: &str| self.methods.iter().any(|one| one == name);
        // Servers answer HEAD by what they do for GET.
        let is_method =
            self.methods.is_empty() || is_named(method) || (method == "HEAD" && is_named("GET"));
        let is_path = match self.does {
            Does::Read => path.is_surely_below(&self.path),
            Does::Write | Does::Deny => path.may_be_below(&self.path),
        };
        is_method && is_path
    }
}

/// Why a request is refused; `None`: it is forwarded as it is.
///
/// The API would read a refused request as another one than the gateway.
pub fn mistake(message: &Message) -> Option<&'static str> {
    if message.method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Some("methods are in upper case");
    }
    if methods::named_in(message).is_none() {
        return Some("its body names another method in a way that cannot be read");
    }
    paths::mistake(&message.path)
}

/// Whether a header of the gateway's own is a credential.
pub fn is_credential(name: &str, value: &str) -> bool {
    is_secret(name) || is_of_scheme(value)
}

/// Headers about one connection (RFC 9110, section 7.6.1), and those that the gateway writes itself.
const OF_CONNECTION: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether a header is about one connection. `named`: the names in `Connection`, in lower case.
pub fn is_of_connection(name: &str, named: &[String]) -> bool {
    OF_CONNECTION.contains(&name) || named.iter().any(|one| one == name)
}

/// Headers that hold credentials. They are kept nowhere.
pub const CREDENTIALS: [&str; 2] = ["authorization", "cookie"];
