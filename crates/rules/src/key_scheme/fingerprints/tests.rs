//! Compares arrivals with calls and aliases of other key schemes and secrets.

use serde_json::json;

use super::*;
use crate::key::Source;
use crate::proxy::Message;
use crate::proxy::compared_form::compared_form;
use crate::testing::record;
use crate::testing::tool;
use crate::tool::{Protocol, Proxy, Tool};

const SECRET: Secret = Secret::new([7; 32]);
const EARLIER: Secret = Secret::new([8; 32]);
const UNKNOWN: Secret = Secret::new([9; 32]);

fn key_scheme(change: impl FnOnce(&mut Tool)) -> (KeySchemeId, Arc<KeyScheme>) {
    let mut tool = tool("act");
    change(&mut tool);
    let key_scheme = KeyScheme::of(&tool);
    (key_scheme.id(), Arc::new(key_scheme))
}

/// Today's key scheme.
fn plain() -> (KeySchemeId, Arc<KeyScheme>) {
    key_scheme(|_| {})
}

/// Another key scheme, which makes the same fingerprints.
fn requiring() -> (KeySchemeId, Arc<KeyScheme>) {
    key_scheme(|tool| tool.key.required = true)
}

fn ignoring() -> (KeySchemeId, Arc<KeyScheme>) {
    key_scheme(|tool| tool.key.ignore = vec!["/note".parse().expect("a pointer")])
}

fn fingerprints(earlier: &[(KeySchemeId, Arc<KeyScheme>)], args: &Value) -> Fingerprints {
    let secrets = Secrets::of(vec![SECRET, EARLIER]).expect("two secrets");
    Fingerprints::of(&plain().1, earlier, &secrets, args)
}

fn name(key: &str) -> Lookup {
    Lookup::new("shop", "act", key)
}

/// An arrival under this name, by today's key scheme.
fn arrival(key: &str, args: &Value) -> Intent {
    let (key_scheme, today) = plain();
    let there = record(&tool("act"), Source::Runtime, &[]);
    Intent {
        lookup: name(key),
        key_scheme,
        fingerprint: today.fingerprint(&SECRET, args),
        ..(*there.intent).clone()
    }
}

/// A call under this name, with these arguments, key scheme and secret.
fn call(key: &str, by: &(KeySchemeId, Arc<KeyScheme>), secret: &Secret, args: &Value) -> Record {
    let intent = Intent {
        key_scheme: by.0,
        fingerprint: by.1.fingerprint(secret, args),
        args: args.to_string().into(),
        ..arrival(key, args)
    };
    Record {
        intent: Arc::new(intent),
        ..record(&tool("act"), Source::Runtime, &[])
    }
}

fn alias(key: &str, by: &(KeySchemeId, Arc<KeyScheme>), secret: &Secret, args: &Value) -> Alias {
    Alias {
        lookups: vec![name(key)],
        fingerprint: by.1.fingerprint(secret, args),
        key_scheme: by.0,
    }
}

#[test]
fn an_alias_is_compared_by_the_key_scheme_and_the_secret_that_it_was_made_with() {
    let (one, two) = (
        json!({ "id": 1, "note": "a" }),
        json!({ "id": 2, "note": "a" }),
    );
    for (by, secret, is_known, of_same, of_other) in [
        (plain(), SECRET, false, Sameness::Same, Sameness::Other),
        (plain(), EARLIER, false, Sameness::Same, Sameness::Other),
        (
            plain(),
            UNKNOWN,
            false,
            Sameness::Unclear,
            Sameness::Unclear,
        ),
        (requiring(), SECRET, true, Sameness::Same, Sameness::Other),
        (requiring(), EARLIER, true, Sameness::Same, Sameness::Other),
        (
            requiring(),
            SECRET,
            false,
            Sameness::Unclear,
            Sameness::Unclear,
        ),
        // A key scheme that makes other fingerprints than today's: equal by today's is still possible.
        (ignoring(), SECRET, true, Sameness::Same, Sameness::Unclear),
        (ignoring(), EARLIER, true, Sameness::Same, Sameness::Unclear),
    ] {
        let mut there = call("its own", &plain(), &SECRET, &two);
        there.aliases = vec![alias("k", &by, &secret, &one)];
        let earlier = if is_known { vec![by] } else { Vec::new() };
        for (args, expected) in [(&one, of_same), (&two, of_other)] {
            let sameness = fingerprints(&earlier, args).compare(&arrival("k", args), &there);
            assert_eq!(sameness, expected, "{args} {earlier:?} {secret:?}");
        }
    }
}

#[test]
fn a_call_is_compared_beside_its_alias_only_with_an_arrival_that_has_its_name() {
    let (one, two) = (json!({ "id": 1 }), json!({ "id": 2 }));
    let mut there = call("its own", &plain(), &SECRET, &one);
    there.aliases = vec![alias("k", &plain(), &SECRET, &two)];
    let compare = |key: &str, further: &[&str], args| {
        let arrival = Intent {
            lookups: further.iter().map(|key| name(key)).collect(),
            ..arrival(key, args)
        };
        fingerprints(&[], args).compare(&arrival, &there)
    };
    assert_eq!(compare("k", &[], &one), Sameness::Other);
    assert_eq!(compare("k", &[], &two), Sameness::Same);
    assert_eq!(compare("its own", &["k"], &one), Sameness::Same);
    assert_eq!(compare("its own", &["k"], &two), Sameness::Same);
    assert_eq!(compare("its own", &[], &two), Sameness::Other);
    assert_eq!(compare("neither", &[], &one), Sameness::Same);
}

#[test]
fn a_call_under_another_secret_is_compared_by_the_secret_or_by_its_arguments() {
    let (one, two) = (json!({ "id": 1 }), json!({ "id": 2 }));
    for (by, secret, of_same, of_other) in [
        (plain(), EARLIER, Sameness::Same, Sameness::Other),
        (requiring(), EARLIER, Sameness::Same, Sameness::Unclear),
        (plain(), UNKNOWN, Sameness::Same, Sameness::Other),
        // The call's own key scheme, which is not known, may make equal fingerprints.
        (requiring(), UNKNOWN, Sameness::Same, Sameness::Unclear),
    ] {
        let there = call("k", &by, &secret, &one);
        for (args, expected) in [(&one, of_same), (&two, of_other)] {
            let sameness = fingerprints(&[], args).compare(&arrival("k", args), &there);
            assert_eq!(sameness, expected, "{args} {by:?} {secret:?}");
        }
    }
}

#[test]
fn a_key_scheme_that_is_added_later_has_a_fingerprint_under_every_secret() {
    let (one, two) = (
        json!({ "id": 1, "note": "a" }),
        json!({ "id": 1, "note": "b" }),
    );
    let (id, met) = ignoring();
    let without = fingerprints(&[], &two);
    let with = without.with(id, &met, &two);
    let arrives = arrival("k", &two);
    let covers = |fingerprints: &Fingerprints, id| fingerprints.covers(&arrives, id);
    assert!(covers(&without, plain().0) && covers(&with, plain().0));
    assert!(!covers(&without, id) && covers(&with, id) && !covers(&with, requiring().0));
    for secret in [SECRET, EARLIER] {
        let there = call("k", &ignoring(), &secret, &one);
        assert_eq!(without.compare(&arrives, &there), Sameness::Unclear);
        assert_eq!(with.compare(&arrives, &there), Sameness::Same, "{secret:?}");
    }
}

/// Earlier versions compared proxied calls without most credentials, and kept some of them in clear.
#[test]
fn a_proxied_call_of_an_earlier_version_is_answered_only_if_its_credentials_are_surely_equal() {
    let mut of_today = tool("act");
    of_today.protocol = Protocol::Proxy(Proxy::default());
    let today = Arc::new(KeyScheme::of(&of_today));
    let mut before = today.to_json();
    before["headers"] = json!([]);
    let before: KeyScheme = serde_json::from_value(before).expect("a key scheme");
    let before = (before.id(), Arc::new(before));
    let asked = |header: Option<(&str, &str)>| Message {
        method: "POST".into(),
        path: "/x".into(),
        headers: header
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into_iter()
            .collect(),
        ..Message::default()
    };
    let compare = |stored: Option<(&str, &str)>, came: Option<(&str, &str)>| {
        // As it was kept: only some names were known as those of secrets.
        let redacted = |(name, value): (&str, &str)| match name {
            "x-api-key" => json!([name, redact::MASK]),
            _ => json!([name, value]),
        };
        let headers: Vec<Value> = stored.map(redacted).into_iter().collect();
        let stored_form = json!({ "method": "POST", "path": "/x", "headers": headers });
        let there = call("k", &before, &SECRET, &compared_form(&asked(stored), ""));
        let there = Record {
            intent: Arc::new(Intent {
                args: stored_form.to_string().into(),
                ..(*there.intent).clone()
            }),
            ..there
        };
        let args = compared_form(&asked(came), "");
        let arrives = Intent {
            key_scheme: today.id(),
            fingerprint: today.fingerprint(&SECRET, &args),
            ..arrival("k", &args)
        };
        let secrets = Secrets::one(SECRET);
        Fingerprints::of(&today, std::slice::from_ref(&before), &secrets, &args)
            .compare(&arrives, &there)
    };
    let (known, other) = (("x-api-key", "a"), ("dd-application-key", "a"));
    let changed = ("dd-application-key", "b");
    let plain = ("x-own", "a");
    for (stored, came, sameness) in [
        (None, None, Sameness::Same),
        (Some(plain), Some(("x-own", "b")), Sameness::Same),
        (Some(known), Some(known), Sameness::Unclear),
        (Some(known), None, Sameness::Unclear),
        (None, Some(known), Sameness::Unclear),
        (Some(other), Some(other), Sameness::Same),
        (Some(other), Some(changed), Sameness::Unclear),
        (Some(other), None, Sameness::Unclear),
    ] {
        assert_eq!(compare(stored, came), sameness, "{stored:?} {came:?}");
    }
}
