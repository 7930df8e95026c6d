use serde_json::{Value, json};

use super::fingerprints::Sameness;
use super::identity::{Asking, Part, identify};
use super::*;
use crate::key::{self, Lookup, Source};
use crate::record::{Intent, Record};
use crate::secret::Secrets;
use crate::testing::record;
use crate::testing::tool;

/// What a version before this rule would have stored of a call with these arguments.
fn stored_before(tool: &Tool, secret: &Secret, args: &Value) -> Record {
    let key_scheme = KeyScheme {
        counts_nulls: true,
        ..KeyScheme::of(tool)
    };
    let there = record(tool, Source::Derived, &[]);
    let intent = Intent {
        fingerprint: key_scheme.fingerprint(secret, args),
        key_scheme: key_scheme.id(),
        args: args.to_string().into(),
        ..(*there.intent).clone()
    };
    Record {
        intent: std::sync::Arc::new(intent),
        ..there
    }
}

/// A request without a key of its runtime.
fn asking<'a>(args: &'a Value, secrets: &'a Secrets) -> Asking<'a> {
    Asking {
        tenant: "shop",
        user_id: "u",
        earlier_user: None,
        client_call: None,
        runtime: None,
        args,
        secrets,
    }
}

/// How requests with these arguments compare with it, and whether their names have its derived key.
fn compared(tool: &Tool, stored: &Value, args: &Value) -> (Sameness, bool) {
    let secrets = Secrets::one(Secret::new([7; 32]));
    let held = stored_before(tool, &secrets.today, stored);
    let today = std::sync::Arc::new(KeyScheme::of(tool));
    let asking = asking(args, &secrets);
    let identity = identify(&today, &[], &asking);
    let intent = Intent {
        fingerprint: identity.fingerprint,
        key_scheme: today.id(),
        ..(*held.intent).clone()
    };
    let key = key::derive(&tool.name, "u", stored, None);
    let old = Lookup::new("shop", &tool.name, key.as_str());
    let has_its_name = identity.lookups.iter().any(|name| name.lookup == old);
    assert_eq!(identity.lookups[0].part, Part::Today);
    (identity.fingerprints.compare(&intent, &held), has_its_name)
}

#[test]
fn a_call_that_an_earlier_version_stored_with_a_null_is_recognised() {
    let with = json!({ "a": 1, "b": null, "c": { "d": null } });
    let without = json!({ "a": 1, "c": {} });
    let tool = tool("t");
    assert_eq!(compared(&tool, &with, &with), (Sameness::Same, true));
    assert_eq!(compared(&tool, &without, &with), (Sameness::Same, true));
    // Its derived key cannot be known any more; a key of another source finds it.
    assert_eq!(compared(&tool, &with, &without), (Sameness::Same, false));
    assert_eq!(compared(&tool, &without, &without), (Sameness::Same, true));
    let other = json!({ "a": 2, "b": null, "c": {} });
    assert_eq!(compared(&tool, &with, &other).0, Sameness::Other);
    let mut redacting = tool;
    redacting.redact.args = vec!["/card".parse().expect("a pointer")];
    assert_eq!(compared(&redacting, &with, &with).0, Sameness::Same);
}

#[test]
fn a_null_makes_neither_another_key_nor_another_fingerprint() {
    let secrets = Secrets::one(Secret::new([7; 32]));
    let mut by_fields = tool("t");
    by_fields.key.fields = vec!["/order".parse().expect("a pointer")];
    for tool in [tool("t"), by_fields] {
        let today = std::sync::Arc::new(KeyScheme::of(&tool));
        let identity = |args: &Value| {
            let asking = asking(args, &secrets);
            let identity = identify(&today, &[], &asking);
            (identity.key, identity.fingerprint, identity.counted)
        };
        let without = identity(&json!({ "order": { "id": 1 } }));
        assert_eq!(
            identity(&json!({ "order": { "id": 1, "note": null }, "x": null })),
            without
        );
        assert_ne!(
            identity(&json!({ "order": { "id": 1 }, "x": [null] })).1,
            without.1
        );
        assert_eq!(without.2, None, "the tool gets what came");
    }
}

#[test]
fn beside_a_models_key_a_null_makes_no_other_lookup_key_of_the_arguments() {
    let secrets = Secrets::one(Secret::new([7; 32]));
    let (mut ignores, mut redacts) = (tool("t"), tool("t"));
    ignores.key.ignore = vec!["/at".parse().expect("a pointer")];
    redacts.redact.args = vec!["/card".parse().expect("a pointer")];
    for tool in [tool("t"), ignores, redacts] {
        let today = std::sync::Arc::new(KeyScheme::of(&tool));
        let lookups = |args: Value| {
            let asking = asking(&args, &secrets);
            let lookups = identify(&today, &[], &asking).lookups;
            lookups
                .into_iter()
                .map(|name| name.lookup)
                .collect::<Vec<_>>()
        };
        let spelled = [
            json!({ "order": { "id": 1 }, "at": 5 }),
            json!({ "order": { "id": 1, "note": null }, "at": 5, "x": null }),
        ];
        let keys = [None, Some("m1"), Some("m2")];
        let asked = spelled.iter().flat_map(|args| {
            keys.map(|key| {
                let mut args = args.clone();
                if let Some(key) = key {
                    args["idempotency_key"] = key.into();
                }
                args
            })
        });
        let asked: Vec<Value> = asked.collect();
        for one in &asked {
            for other in &asked {
                let (of_one, of_other) = (lookups(one.clone()), lookups(other.clone()));
                assert!(
                    of_one.iter().any(|lookup| of_other.contains(lookup)),
                    "{one} and {other}"
                );
            }
        }
    }
}

#[test]
fn the_older_rule_is_stored_nowhere() {
    let key_scheme = KeyScheme::of(&tool("t"));
    let older = key_scheme
        .by_older_rule(&json!({ "a": null }))
        .expect("another rule");
    assert_eq!(
        (older.id(), older.to_json()),
        (key_scheme.id(), key_scheme.to_json())
    );
    assert!(key_scheme.by_older_rule(&json!({ "a": [null] })).is_none());
}
