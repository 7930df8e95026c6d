//! Where the arguments of a request differ from those of the stored call.
//!
//! It tells places, and no values.

use serde_json::Value;

use super::KeyScheme;
use crate::json::canonical;
use crate::key::Pointer;
use crate::proxy::compared_form::{self, whole_form};
use crate::proxy::{credentials, paths, stored_form};
use crate::record::{Intent, Record};
use crate::schema::holder_of;
use crate::{json, redact, replay};

/// Most places that are reported.
pub const MAX_PLACES: usize = 8;
/// The longest arguments that are compared, in bytes.
const MAX_ARGS: usize = 64 * 1024;

impl KeyScheme {
    /// JSON Pointers to the arguments that count, and differ from the stored ones.
    ///
    /// A pointer that is too long is cut to a parent of the place. None where any argument of the tool is redacted, or
    /// the stored arguments are not whole.
    pub fn differing(&self, stored: &[u8], args: &[u8]) -> Vec<String> {
        if !self.redacted.is_empty()
            || !redact::is_whole(stored)
            || stored.len().max(args.len()) > MAX_ARGS
        {
            return Vec::new();
        }
        let compared = |args: &[u8]| -> Option<Value> {
            let args = json::parse(str::from_utf8(args).ok()?).ok()?;
            Some(self.compared(&self.counted(&args)).into_owned())
        };
        let (Some(stored), Some(args)) = (compared(stored), compared(args)) else {
            return Vec::new();
        };
        let places = replay::places(&stored, &args);
        let mut places: Vec<String> = places.map(|place| holder_of(&place)).collect();
        places.sort();
        places.dedup();
        places.truncate(MAX_PLACES);
        places
    }

    /// Whether a proxied request surely asks for something else than a stored call, whatever credentials each of them has.
    ///
    /// It does if method, path, query or body count and differ. False where these are masked, or too long to compare, and
    /// where the call was claimed by another key scheme: by that one the two may be the same.
    pub fn is_surely_other(&self, held: &Record, intent: &Intent, args: &[u8]) -> bool {
        held.aliases.is_empty()
            && held.intent.key_scheme == intent.key_scheme
            && self.has_other_content(&held.intent.args, args)
    }

    /// `stored`: the stored form of a request. `args`: the whole form of another one.
    fn has_other_content(&self, stored: &[u8], args: &[u8]) -> bool {
        if self.headers.is_none() || stored.len().max(args.len()) > MAX_ARGS {
            return false;
        }
        let read = |args: &str| json::parse(args).ok();
        let stored = stored_form::content(stored)
            .and_then(|message| read(&whole_form(&message, "").to_string()));
        let args = str::from_utf8(args).ok().and_then(read);
        let content = |form: Value| {
            let mut content = self.compared(&self.counted(&form)).into_owned();
            for member in ["headers", compared_form::CREDENTIAL, credentials::ALL] {
                Pointer::to(&[member]).remove_from(&mut content);
            }
            // Two paths that some server takes for the same one may be one.
            if let Some(path) = form["path"].as_str() {
                content["path"] = paths::plainest(path).into();
            }
            canonical(&content)
        };
        match (stored, args) {
            (Some(stored), Some(args)) => content(stored) != content(args),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Source;
    use crate::key_scheme::KeySchemeId;
    use crate::proxy::{Message, Policy};
    use crate::record::Alias;
    use crate::testing::{record, tool};
    use crate::tool::{Protocol, Proxy, Tool};

    fn differing(tool: &Tool, stored: &str, args: &str) -> Vec<String> {
        KeyScheme::of(tool).differing(stored.as_bytes(), args.as_bytes())
    }

    #[test]
    fn places_are_told_without_what_is_ignored_and_never_where_something_is_redacted() {
        let mut tool = tool("t");
        tool.key.ignore = vec!["/note".parse().expect("a pointer")];
        let stored = r#"{"id":1,"note":"a","line":{"sku":"w"}}"#;
        let args = r#"{"id":1,"note":"b","line":{"sku":"x"},"more":1,"idempotency_key":"m"}"#;
        assert_eq!(differing(&tool, stored, args), ["/line/sku", "/more"]);
        assert_eq!(differing(&tool, r#"{"id":"[redacted]"}"#, args), [""; 0]);
        tool.redact.args = vec!["/card".parse().expect("a pointer")];
        assert_eq!(differing(&tool, stored, args), [""; 0]);
    }

    #[test]
    fn places_are_few_and_short() {
        let tool = tool("t");
        let object = |value: usize| {
            let members = (0..50).map(|n| (format!("m{n}"), Value::from(value)));
            members.collect::<serde_json::Map<_, _>>()
        };
        let json = |value: usize| Value::Object(object(value)).to_string();
        assert_eq!(differing(&tool, &json(1), &json(2)).len(), MAX_PLACES);
        let long = "n".repeat(500);
        let deep = |value: u8| format!("{{\"a\":{{\"{long}\":{value}}}}}");
        assert_eq!(differing(&tool, &deep(1), &deep(2)), ["/a"]);
        let large = |value: u8, size: usize| {
            let around = r#"{"a":1,"b":""}"#.len();
            format!("{{\"a\":{value},\"b\":\"{}\"}}", "x".repeat(size - around))
        };
        let of_size = |one, other| differing(&tool, &large(1, one), &large(2, other));
        assert_eq!(of_size(MAX_ARGS, MAX_ARGS), ["/a"]);
        assert_eq!(of_size(MAX_ARGS + 1, MAX_ARGS + 1), [""; 0]);
    }

    fn proxied(policy: &Policy) -> Tool {
        Tool {
            protocol: Protocol::Proxy(Proxy {
                policy: policy.clone(),
                ..Proxy::default()
            }),
            ..tool("api")
        }
    }

    fn asked(path: &str, credential: &str, body: &str) -> Message {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Message {
            method: "POST".to_owned(),
            path: path.to_owned(),
            headers: vec![
                header("content-type", "application/json"),
                header("x-api-key", credential),
            ],
            body: body.to_owned().into(),
            ..Message::default()
        }
    }

    #[test]
    fn a_proxied_request_is_surely_another_one_if_its_content_differs() {
        let policy = Policy {
            redact: vec![Pointer::to(&["card"])],
            key_header: "idempotency-key".into(),
            ..Policy::default()
        };
        let scheme = KeyScheme::of(&proxied(&policy));
        let is_other = |stored: (&str, &str, &str), other: (&str, &str, &str)| {
            let stored = asked(stored.0, stored.1, stored.2);
            let other = whole_form(&asked(other.0, other.1, other.2), other.1);
            scheme.has_other_content(&policy.stored_form(&stored), other.to_string().as_bytes())
        };
        let first = ("/a", "one", r#"{"a":1,"b":[]}"#);
        for (other, is) in [
            (("/a", "one", r#"{"a":2,"b":[]}"#), true),
            (("/a", "two", r#"{"a":2,"b":[]}"#), true),
            (("/b", "one", first.2), true),
            (("/a", "two", first.2), false),
            (("//a", "two", r#"{ "b": [], "a": 1.0 }"#), false),
        ] {
            assert_eq!(is_other(first, other), is, "{other:?}");
        }
        let hidden = ("/a", "one", r#"{"card":1}"#);
        assert!(!is_other(hidden, ("/a", "two", r#"{"card":2}"#)));
        assert!(!scheme.has_other_content(b"{}", b"{}"));
    }

    /// By another key scheme, or by an alias, it may be the same call.
    #[test]
    fn it_is_surely_another_one_only_by_the_key_scheme_of_the_call() {
        let policy = Policy::default();
        let tool = proxied(&policy);
        let scheme = KeyScheme::of(&tool);
        let other = whole_form(&asked("/a", "two", r#"{"a":2}"#), "two").to_string();
        let mut held = record(&tool, Source::Runtime, &[]);
        let mut intent = Intent::clone(&held.intent);
        intent.args = policy.stored_form(&asked("/a", "one", r#"{"a":1}"#));
        intent.key_scheme = scheme.id();
        held.intent = intent.clone().into();
        let is_other =
            |held: &Record, intent: &Intent| scheme.is_surely_other(held, intent, other.as_bytes());
        assert!(is_other(&held, &intent));
        let by_another = Intent {
            key_scheme: KeySchemeId([7; 16]),
            ..intent.clone()
        };
        assert!(!is_other(&held, &by_another));
        held.aliases.push(Alias {
            lookups: Vec::new(),
            fingerprint: intent.fingerprint,
            key_scheme: intent.key_scheme,
        });
        assert!(!is_other(&held, &intent));
    }
}
