//! Keys that a model made up, ids of clients, and fields that people type.

use super::*;

struct Asked<'a> {
    user: &'a str,
    earlier: Option<&'a str>,
    client_call: Option<&'a str>,
    runtime: Option<&'a str>,
    args: Value,
}

fn asked(args: Value) -> Asked<'static> {
    Asked {
        user: "U",
        earlier: None,
        client_call: None,
        runtime: None,
        args,
    }
}

fn identity(tool: &Tool, asked: &Asked<'_>) -> Identity {
    let runtime = asked.runtime.map(|key| Key::parse(key).expect("a key"));
    let asking = Asking {
        tenant: "shop",
        user_id: asked.user,
        earlier_user: asked.earlier,
        client_call: asked.client_call,
        runtime: runtime.as_ref(),
        args: &asked.args,
        secrets: &SECRETS,
    };
    identify(&Arc::new(KeyScheme::of(tool)), &[], &asking)
}

fn parts(identity: &Identity) -> Vec<(Source, Part)> {
    let parts = identity.lookups.iter().zip(&identity.keys);
    parts
        .map(|(name, chosen)| (chosen.source, name.part))
        .collect()
}

/// A stored call of this request.
fn stored(tool: &Tool, asked: &Asked<'_>) -> Record {
    let identity = identity(tool, asked);
    let record = crate::testing::record(tool, Source::Model, &[]);
    let intent = intent(tool, &identity, &record.intent);
    Record {
        intent: Arc::new(intent),
        ..record
    }
}

fn intent(tool: &Tool, identity: &Identity, like: &Intent) -> Intent {
    Intent {
        tenant: "shop".into(),
        tool: tool.name.clone(),
        lookup: identity.lookups[0].lookup,
        lookups: identity.lookups[1..]
            .iter()
            .map(|name| name.lookup)
            .collect(),
        key_scheme: KeyScheme::of(tool).id(),
        key_source: identity.keys[0].source,
        fingerprint: identity.fingerprint,
        ..like.clone()
    }
}

/// How a request compares with a stored call, and whether only its arguments show that it is that call.
fn met(tool: &Tool, asked: &Asked<'_>, there: &Record) -> (Sameness, bool) {
    let identity = identity(tool, asked);
    let intent = intent(tool, &identity, &there.intent);
    let fingerprints = &identity.fingerprints;
    (
        fingerprints.compare(&intent, there),
        fingerprints.is_met_by_arguments(&intent, there),
    )
}

/// Tools that differ in how they take a model's key.
fn all_tools() -> Vec<Tool> {
    let with = |change: &dyn Fn(&mut Tool)| {
        let mut tool = tool("act");
        change(&mut tool);
        tool
    };
    vec![
        with(&|_| {}),
        with(&|tool| tool.set_schema(json!({ "properties": { "idempotency_key": {} } }))),
        with(&|tool| tool.keeps_key_member = true),
        with(&|tool| {
            tool.keeps_key_member = true;
            tool.key.ignore = pointers(&["/idempotency_key"]);
        }),
        with(&|tool| {
            tool.keeps_key_member = true;
            tool.redact.args = pointers(&["/n"]);
        }),
        with(&|tool| {
            tool.keeps_key_member = true;
            tool.redact.args = pointers(&["/idempotency_key"]);
        }),
    ]
}

fn args(n: u32, key: Option<&str>) -> Value {
    match key {
        Some(key) => json!({ "n": n, MODEL_MEMBER: key }),
        None => json!({ "n": n }),
    }
}

#[test]
fn a_models_key_proves_sameness_and_never_difference() {
    for tool in all_tools() {
        for first in [Some("one"), None] {
            let there = stored(&tool, &asked(args(1, first)));
            for second in [Some("one"), Some("two"), None] {
                let (sameness, by_arguments) = met(&tool, &asked(args(1, second)), &there);
                assert_eq!(
                    sameness,
                    Sameness::Same,
                    "{first:?}, then {second:?}: {tool:?}"
                );
                let is_its_key = first.is_some() && first == second;
                assert_eq!(by_arguments, !is_its_key, "{first:?}, then {second:?}");
            }
            let (other, _) = met(&tool, &asked(args(2, first)), &there);
            assert_eq!(
                other,
                Sameness::Other,
                "other arguments: {first:?} {tool:?}"
            );
        }
    }
}

#[test]
fn a_models_key_has_the_name_of_the_arguments_beside_it() {
    use Part::{Arguments, Fallback, Today};
    let tool = tool("act");
    let with_key = identity(&tool, &asked(args(1, Some("one"))));
    assert_eq!(
        parts(&with_key),
        [(Source::Model, Today), (Source::Derived, Arguments)]
    );
    let without = identity(&tool, &asked(args(1, None)));
    assert_eq!(parts(&without), [(Source::Derived, Today)]);
    assert_eq!(with_key.lookups[1].lookup, without.lookups[0].lookup);
    // A runtime's key proves difference, too.
    let of_runtime = Asked {
        runtime: Some("r"),
        ..asked(args(1, Some("one")))
    };
    assert_eq!(
        parts(&identity(&tool, &of_runtime)),
        [(Source::Runtime, Today)]
    );
    // The model takes up the key of an answer, which was made of its arguments.
    let copied = without.keys[0].key.as_str().to_owned();
    let copied = identity(&tool, &asked(args(1, Some(&copied))));
    assert_eq!(parts(&copied), [(Source::Derived, Today)]);
    // The fingerprint ignores a note, and so does one of the names.
    let mut ignoring = tool.clone();
    ignoring.key.ignore = pointers(&["/note"]);
    let noted = |note: &str, key: &str| json!({ "n": 1, "note": note, MODEL_MEMBER: key });
    let there = stored(&ignoring, &asked(noted("a", "one")));
    let (sameness, _) = met(&ignoring, &asked(noted("b", "two")), &there);
    assert_eq!(sameness, Sameness::Same);
    // The client's own id of the call is a further name.
    let named = |user, id| Asked {
        user,
        client_call: Some(id),
        ..asked(args(1, None))
    };
    let one = identity(&tool, &named("U", "thread:1"));
    assert_eq!(
        parts(&one),
        [(Source::Derived, Today), (Source::Runtime, Fallback)]
    );
    for other in [named("U", "thread:2"), named("V", "thread:1")] {
        assert_ne!(
            identity(&tool, &other).lookups[1].lookup,
            one.lookups[1].lookup
        );
    }
    assert!(Key::parse(one.keys[1].key.as_str()).is_ok());
    assert_eq!(
        key::from_runtime(None, Some(one.keys[1].key.as_str())),
        Err(Refused::Reserved),
        "no caller may bring it as a key"
    );
}

#[test]
fn a_text_of_one_model_that_is_the_name_of_other_arguments_stands_for_nothing() {
    let mut tool = tool("act");
    tool.keeps_key_member = true;
    let name = identity(&tool, &asked(args(2, None))).keys[0]
        .key
        .as_str()
        .to_owned();
    let there = stored(&tool, &asked(args(1, Some(&name))));
    let (sameness, _) = met(&tool, &asked(args(2, None)), &there);
    assert_eq!(sameness, Sameness::Other);
}

#[test]
fn a_request_has_the_names_of_the_user_that_an_earlier_release_took_for_it() {
    let tool = tool("act");
    let before = identity(
        &tool,
        &Asked {
            user: "open",
            ..asked(args(1, None))
        },
    );
    let now = Asked {
        user: "",
        earlier: Some("open"),
        ..asked(args(1, None))
    };
    let lookups = identity(&tool, &now).lookups;
    let earlier = lookups
        .iter()
        .find(|name| name.lookup == before.lookups[0].lookup);
    assert_eq!(earlier.map(|name| name.part), Some(Part::Earlier));
    let there = stored(
        &tool,
        &Asked {
            user: "open",
            ..asked(args(1, None))
        },
    );
    assert_eq!(met(&tool, &now, &there).0, Sameness::Same);
}

#[test]
fn what_people_type_is_folded_where_the_operator_says_so() {
    let mut folding = tool("act");
    folding.key.fields = pointers(&["/id"]);
    let key = |tool: &Tool, id: &str| identity(tool, &asked(json!({ "id": id })));
    let same = |tool: &Tool, one: &str, other: &str| {
        let (one, other) = (key(tool, one), key(tool, other));
        let is_same = one.keys[0].key == other.keys[0].key;
        assert_eq!(is_same, one.fingerprint == other.fingerprint);
        is_same
    };
    assert!(
        !same(&folding, "R-1", "r-1 "),
        "exact unless said otherwise"
    );
    for (fold, one, other) in [
        (Fold::Case, "R-É1", "r-é1"),
        (Fold::Space, "R 1", " R \t 1 "),
        (Fold::Nfc, "caf\u{e9}", "cafe\u{301}"),
    ] {
        folding.key.fold = vec![folded(&[fold])];
        assert!(same(&folding, one, other), "{one} {other}");
        assert!(!same(&folding, one, "another"));
        for other_fold in Fold::ALL.into_iter().filter(|other| *other != fold) {
            folding.key.fold = vec![folded(&[other_fold])];
            assert!(!same(&folding, one, other), "{one} {other}");
        }
    }
    folding.key.fold = vec![folded(&Fold::ALL)];
    assert!(same(&folding, "R-CAF\u{c9} 1", " r-cafe\u{301}  1"));
    assert!(
        key(&folding, "").key.is_ok(),
        "an emptied field is refused elsewhere"
    );
}
