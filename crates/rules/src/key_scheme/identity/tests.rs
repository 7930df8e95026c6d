//! Keys and fingerprints, by every key scheme.

mod lookups;
mod models;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::key::{Fold, Folded, MODEL_MEMBER, Per, Pointer, Prefer};
use crate::key_scheme::fingerprints::{Fingerprints, Sameness};
use crate::key_scheme::identity::Asking;
use crate::key_scheme::stored::Remembered;
use crate::record::{CallId, Intent, Record};
use crate::redact;
use crate::secret::Secret;
use crate::testing::tool;
use crate::tool::Tool;
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

static SECRET: Secret = Secret::new([7; 32]);
static SECRETS: Secrets = Secrets::one(Secret::new([7; 32]));

/// The key and the fingerprint of a request by a tool's key scheme.
fn read(
    tool: &Tool,
    runtime: Option<&Key>,
    args: &Value,
) -> (Result<Chosen, Refused>, Fingerprint) {
    let asking = Asking {
        tenant: "shop",
        user_id: "U123",
        earlier_user: None,
        client_call: None,
        runtime,
        args,
        secrets: &SECRETS,
    };
    let identity = identify(&Arc::new(KeyScheme::of(tool)), &[], &asking);
    (identity.key, identity.fingerprint)
}

#[test]
fn the_first_source_wins() {
    let mut tool = tool("create_order");
    let args = json!({ "business_id": "B1", "note": "please" });
    let runtime = Key::parse("runtime").ok();
    let model = Key::parse("model").ok();
    let source = |tool: &Tool, runtime: &Option<Key>, model: &Option<Key>| {
        let mut args = args.clone();
        if let Some(model) = model {
            args[MODEL_MEMBER] = json!(model.as_str());
        }
        read(tool, runtime.as_ref(), &args)
            .0
            .map(|chosen| chosen.source)
    };
    assert_eq!(source(&tool, &None, &None), Ok(Source::Derived));
    assert_eq!(source(&tool, &None, &model), Ok(Source::Model));
    tool.key.required = true;
    assert_eq!(source(&tool, &None, &None), Err(Refused::Missing));
    tool.key.fields = vec!["/business_id".parse().expect("a pointer")];
    assert_eq!(
        source(&tool, &None, &model),
        Ok(Source::Business),
        "a model's key never splits a business intent"
    );
    assert_eq!(
        source(&tool, &runtime, &model),
        Ok(Source::Business),
        "nor does a runtime's"
    );
    tool.key.prefer = Prefer::Runtime;
    assert_eq!(source(&tool, &runtime, &model), Ok(Source::Runtime));
    tool.key.fields = vec!["/missing".parse().expect("a pointer")];
    assert_eq!(
        source(&tool, &None, &model),
        Err(Refused::FieldMissing("/missing".into()))
    );
}

#[test]
fn derived_keys_are_what_an_independent_key_scheme_computes() {
    // python3 -c 'import hashlib,json;print(hashlib.sha256(json.dumps({"name":"create_order",
    //   "user":"U123","args":{"business_id":"B-1","amount":5}},sort_keys=True,
    //   separators=(",",":"),ensure_ascii=False).encode()).hexdigest()[:32])'
    let mut tool = tool("create_order");
    let args = json!({ "business_id": "B-1", "amount": 5.0 });
    let derived = read(&tool, None, &args).0.expect("a key");
    assert_eq!(derived.key.as_str(), "b8b8d98bab06c01fa8d3a047c28dc935");
    // the same with "args":{"/business_id":"B-1"}
    tool.key.fields = vec!["/business_id".parse().expect("a pointer")];
    let business = read(&tool, None, &args).0.expect("a key");
    assert_eq!(business.key.as_str(), "845df666c3317c32ca5bfb32e87f5698");
}

#[test]
fn the_models_key_does_not_count_unless_it_is_an_argument_of_the_tool() {
    let mut tool = tool("create_order");
    let with = |key: Value| json!({ "a": 1, MODEL_MEMBER: key });
    let key = |tool: &Tool, args: &Value| {
        read(tool, None, args)
            .0
            .map(|chosen| chosen.key.as_str().to_owned())
    };
    assert_eq!(key(&tool, &with(json!("m-1"))), Ok("m-1".into()));
    assert_eq!(
        *KeyScheme::of(&tool).counted(&with(json!("m-1"))),
        json!({ "a": 1 })
    );
    for none in [
        json!(7),
        json!(null),
        json!(""),
        json!({}),
        json!("a b"),
        json!("k".repeat(256)),
    ] {
        assert_eq!(
            key(&tool, &with(none.clone())),
            key(&tool, &json!({ "a": 1 })),
            "{none}"
        );
    }
    let print = |tool: &Tool, args: &Value| KeyScheme::of(tool).fingerprint(&SECRET, args);
    assert_eq!(
        print(&tool, &with(json!("m-1"))),
        print(&tool, &json!({ "a": 1 }))
    );
    tool.set_schema(json!({ "properties": { "idempotency_key": {} } }));
    assert_eq!(key(&tool, &with(json!("m-1"))), Ok("m-1".into()));
    for argument in [
        json!(7),
        json!(""),
        json!({}),
        json!("a b"),
        json!("k".repeat(256)),
    ] {
        assert_ne!(
            key(&tool, &with(argument.clone())),
            key(&tool, &json!({ "a": 1 })),
            "{argument}"
        );
    }
    // A member that is null counts as absent, as every argument does.
    assert_eq!(
        key(&tool, &with(json!(null))),
        key(&tool, &json!({ "a": 1 }))
    );
    assert_ne!(
        print(&tool, &with(json!("m-1"))),
        print(&tool, &json!({ "a": 1 }))
    );
}

#[test]
fn ignored_members_do_not_count_for_the_fingerprint() {
    let mut tool = tool("create_order");
    tool.key.ignore = ["/note", "/lines/0/text", "/a~1b"]
        .map(|p| p.parse().expect("a pointer"))
        .to_vec();
    let one = json!({ "sku": "w", "note": "one", "lines": [{ "text": "x", "n": 1 }], "a/b": 1 });
    let two = json!({ "sku": "w", "lines": [{ "text": "y", "n": 1.0 }] });
    let other = json!({ "sku": "w", "lines": [{ "text": "y", "n": 2 }] });
    assert_eq!(
        KeyScheme::of(&tool).fingerprint(&SECRET, &one),
        KeyScheme::of(&tool).fingerprint(&SECRET, &two)
    );
    assert_ne!(
        KeyScheme::of(&tool).fingerprint(&SECRET, &one),
        KeyScheme::of(&tool).fingerprint(&SECRET, &other)
    );
}

fn pointers(texts: &[&str]) -> Vec<Pointer> {
    texts
        .iter()
        .map(|text| text.parse().expect("a pointer"))
        .collect()
}

fn folded(fold: &[Fold]) -> Folded {
    Folded {
        field: "/id".parse().expect("a pointer"),
        fold: fold.to_vec(),
    }
}

fn tools() -> Vec<Tool> {
    let with = |change: &dyn Fn(&mut Tool)| {
        let mut tool = tool("act");
        change(&mut tool);
        tool
    };
    vec![
        with(&|_| {}),
        with(&|tool| tool.key.fields = pointers(&["/id"])),
        with(&|tool| tool.key.ignore = pointers(&["/note"])),
        with(&|tool| tool.key.required = true),
        with(&|tool| tool.redact.args = pointers(&["/card"])),
        with(&|tool| tool.set_schema(json!({ "properties": { "idempotency_key": {} } }))),
        with(&|tool| {
            tool.key.fields = pointers(&["/id"]);
            tool.key.prefer = Prefer::Runtime;
        }),
        with(&|tool| {
            tool.key.fields = pointers(&["/id"]);
            tool.key.per = Per::Tenant;
        }),
        with(&|tool| tool.name = "other".into()),
        with(&|tool| {
            tool.key.fields = pointers(&["/id"]);
            tool.key.fold = vec![folded(&[Fold::Case])];
        }),
        with(&|tool| {
            tool.key.fields = pointers(&["/id"]);
            tool.key.fold = vec![folded(&[Fold::Case, Fold::Nfc])];
        }),
    ]
}

#[test]
fn every_setting_that_changes_a_key_or_a_fingerprint_makes_another_key_scheme() {
    let ids: Vec<KeySchemeId> = tools()
        .iter()
        .map(|tool| KeyScheme::of(tool).id())
        .collect();
    for (n, id) in ids.iter().enumerate() {
        assert!(!ids[..n].contains(id), "{n}");
    }
    let mut same = tool("act");
    same.description = "another".into();
    same.retention += Duration::from_secs(1);
    assert_eq!(KeyScheme::of(&same).id(), ids[0]);
}

#[test]
fn a_key_scheme_comes_back_from_its_document_unchanged() {
    let now = Timestamp::from_second(1_700_000_000).expect("a time");
    for tool in tools() {
        let key_scheme = Arc::new(KeyScheme::of(&tool));
        let one = Remembered::new(key_scheme.id(), key_scheme.clone(), tool.retention, now);
        assert_eq!(
            Remembered::from_document(&one.to_document()),
            Some(one.clone())
        );
        let renewed = one
            .renewed(tool.retention, now + SignedDuration::from_mins(10))
            .expect("it is time");
        assert_eq!(
            Remembered::from_document(&renewed.to_document()),
            Some(renewed)
        );
        assert_eq!(
            one.renewed(tool.retention, now + SignedDuration::from_mins(9)),
            None
        );
        let mut moved = one.to_document();
        moved.id = "another".into();
        assert_eq!(Remembered::from_document(&moved), None);
        let mut newer = key_scheme.to_json();
        newer["salt"] = json!(1);
        assert_eq!(
            serde_json::from_value::<KeyScheme>(newer).ok(),
            None,
            "what this version does not know decides, too"
        );
    }
}

#[test]
fn a_key_scheme_is_overdue_when_its_last_call_need_not_be_kept_any_more() {
    let now = Timestamp::from_second(1_700_000_000).expect("a time");
    let key_scheme = Arc::new(KeyScheme::of(&tool("act")));
    let day = Duration::from_hours(24);
    let one = Remembered::new(key_scheme.id(), key_scheme, day, now);
    assert!(!one.is_overdue(now + SignedDuration::from_hours(25)));
    assert!(one.is_overdue(now + SignedDuration::from_hours(26)));
    let longer = one
        .renewed(2 * day, now)
        .expect("calls are stored for longer");
    assert!(!longer.is_overdue(now + SignedDuration::from_hours(26)));
}

/// A stored call with these arguments, made by this tool's key scheme.
fn stored(by: &Tool, args: &Value) -> Record {
    let key_scheme = KeyScheme::of(by);
    let record = crate::testing::record(by, Source::Runtime, &[]);
    let fingerprint = key_scheme.fingerprint(&SECRET, args);
    let args = redact::mask(
        &key_scheme.counted(args).to_string().into(),
        &by.redact.args,
    );
    let intent = Intent {
        key_scheme: key_scheme.id(),
        fingerprint,
        args,
        ..(*record.intent).clone()
    };
    Record {
        intent: Arc::new(intent),
        ..record
    }
}

/// How an arrival by today's key scheme compares with a call by another key scheme.
fn compare(today: &Tool, arrives: &Value, by: &Tool, there: &Value, is_known: bool) -> Sameness {
    let (today, other) = (Arc::new(KeyScheme::of(today)), Arc::new(KeyScheme::of(by)));
    let earlier: Vec<_> = is_known.then(|| (other.id(), other)).into_iter().collect();
    let record = stored(by, there);
    let intent = Intent {
        key_scheme: today.id(),
        fingerprint: today.fingerprint(&SECRET, arrives),
        call_id: CallId(uuid::Uuid::nil()),
        ..(*record.intent).clone()
    };
    Fingerprints::of(&today, &earlier, &SECRETS, arrives).compare(&intent, &record)
}

#[test]
fn equal_by_the_stored_or_by_todays_key_scheme_is_the_same() {
    let (plain, mut ignoring, mut redacting) = (tool("act"), tool("act"), tool("act"));
    ignoring.key.ignore = pointers(&["/note"]);
    redacting.redact.args = pointers(&["/note"]);
    let (one, two) = (
        json!({ "id": 1, "note": "a" }),
        json!({ "id": 1, "note": "b" }),
    );
    let other = json!({ "id": 2, "note": "a" });
    for (today, arrives, by, there, is_known, expected) in [
        (&ignoring, &one, &plain, &one, true, Sameness::Same),
        (&ignoring, &two, &plain, &one, true, Sameness::Same),
        (&ignoring, &two, &plain, &one, false, Sameness::Same),
        (&plain, &two, &ignoring, &one, true, Sameness::Same),
        // They differ by today's key scheme, and the key scheme of the stored call is not known.
        (&plain, &two, &ignoring, &one, false, Sameness::Unclear),
        (&plain, &one, &ignoring, &one, false, Sameness::Same),
        (&ignoring, &other, &plain, &one, true, Sameness::Other),
        (&plain, &one, &redacting, &one, true, Sameness::Same),
        (&plain, &two, &redacting, &one, true, Sameness::Other),
        // A redacted argument is not kept, so cannot be compared.
        (&plain, &one, &redacting, &one, false, Sameness::Unclear),
        // They differ by the key scheme of the stored call. By today's they would be equal if the rest is.
        (&ignoring, &two, &redacting, &one, true, Sameness::Unclear),
        (&plain, &two, &plain, &one, true, Sameness::Other),
    ] {
        assert_eq!(
            compare(today, arrives, by, there, is_known),
            expected,
            "{arrives} after {there}"
        );
    }
}

#[test]
fn keys_of_arguments_that_are_redacted_take_the_secret_and_others_do_not() {
    let (plain, mut redacting) = (tool("act"), tool("act"));
    redacting.redact.args = pointers(&["/card"]);
    let (args, other) = (json!({ "card": "4111" }), Secret::new([8; 32]));
    let key = |tool: &Tool, runtime: Option<&Key>, secret: &Secret| {
        let asking = Asking {
            tenant: "shop",
            user_id: "U",
            earlier_user: None,
            client_call: None,
            runtime,
            args: &args,
            secrets: &Secrets::one(secret.clone()),
        };
        identify(&Arc::new(KeyScheme::of(tool)), &[], &asking)
            .key
            .expect("a key")
            .key
            .as_str()
            .to_owned()
    };
    let depends = |tool: &Tool, runtime| key(tool, runtime, &SECRET) != key(tool, runtime, &other);
    assert!(!depends(&plain, None), "anyone may compute it");
    assert!(depends(&redacting, None));
    let runtime = Key::parse("k").ok();
    assert!(
        !depends(&redacting, runtime.as_ref()),
        "it says nothing of the arguments"
    );
    redacting.key.fields = pointers(&["/card"]);
    assert!(
        depends(&redacting, runtime.as_ref()),
        "fields make a key of arguments, too"
    );
    let print = |secret: &Secret| KeyScheme::of(&plain).fingerprint(secret, &args);
    assert_ne!(print(&SECRET), print(&other));
}

#[test]
fn a_call_under_an_unknown_secret_is_compared_by_its_kept_arguments() {
    let (plain, mut redacting) = (tool("act"), tool("act"));
    redacting.redact.args = pointers(&["/note"]);
    let (one, two) = (
        json!({ "id": 1, "note": "a" }),
        json!({ "id": 1, "note": "b" }),
    );
    for (tool, there, expected) in [
        (&plain, &one, Sameness::Same),
        (&plain, &two, Sameness::Other),
        // No advice leads to a second effect.
        (&redacting, &one, Sameness::Unclear),
        (&redacting, &two, Sameness::Unclear),
    ] {
        let key_scheme = Arc::new(KeyScheme::of(tool));
        let record = stored(tool, there);
        let fingerprint = key_scheme.fingerprint(&Secret::new([8; 32]), there);
        let intent = Arc::new(Intent {
            fingerprint,
            ..(*record.intent).clone()
        });
        let record = Record {
            intent: intent.clone(),
            ..record
        };
        let arrives = Intent {
            fingerprint: key_scheme.fingerprint(&SECRET, &one),
            ..(*intent).clone()
        };
        let fingerprints = Fingerprints::of(&key_scheme, &[], &SECRETS, &one);
        assert_eq!(fingerprints.compare(&arrives, &record), expected, "{there}");
    }
}

proptest! {
    /// Under any two configurations the same bytes are the same call, or unclear.
    ///
    /// If the key scheme of the stored call is known, they are the same.
    #[test]
    fn the_same_arguments_are_never_another_call(
        today in 0..6_usize, by in 0..6_usize, id in 0..3, note in ".{0,4}", model in any::<bool>(), is_known in any::<bool>(),
    ) {
        let mut args = json!({ "id": id, "note": note, "card": "4111" });
        if model {
            args[MODEL_MEMBER] = json!("m-1");
        }
        let (today, by) = (&tools()[today], &tools()[by]);
        let sameness = compare(today, &args, by, &args, is_known);
        prop_assert_ne!(sameness, Sameness::Other);
        if is_known || today.key == by.key {
            prop_assert!(sameness == Sameness::Same || !is_known);
        }
    }

    /// Each name occurs once, and today's key is the first.
    ///
    /// An arrival that today's configuration refuses has the lookup keys by earlier key schemes.
    #[test]
    fn lookup_keys_are_those_of_every_key_scheme_once(today in 0..6_usize, earlier in proptest::collection::vec(0..6_usize, 0..4), has_id in any::<bool>()) {
        let all = tools();
        let today = Arc::new(KeyScheme::of(&all[today]));
        let earlier: Vec<_> = earlier.iter().map(|n| Arc::new(KeyScheme::of(&all[*n]))).map(|one| (one.id(), one)).collect();
        let args = if has_id { json!({ "id": 1 }) } else { json!({ "n": 1 }) };
        let asking = Asking { tenant: "shop", user_id: "U1", earlier_user: None, client_call: None, runtime: None, args: &args, secrets: &SECRETS };
        let identity = identify(&today, &earlier, &asking);
        let key_of = |key_scheme: &KeyScheme| identify(&Arc::new(key_scheme.clone()), &[], &asking).key.ok().map(|chosen| Lookup::new("shop", "act", chosen.key.as_str()));
        let mut expected: Vec<Lookup> = Vec::new();
        for lookup in std::iter::once(key_of(&today)).chain(earlier.iter().map(|(_, one)| key_of(one))).flatten() {
            if !expected.contains(&lookup) {
                expected.push(lookup);
            }
        }
        let lookups: Vec<Lookup> = identity.lookups.iter().map(|name| name.lookup).collect();
        prop_assert_eq!(lookups, expected);
        let is_today = |name: &LookupKey| name.part == Part::Today;
        prop_assert_eq!(identity.lookups.first().is_some_and(is_today), identity.key.is_ok());
        prop_assert!(identity.lookups.iter().skip(1).all(|name| !is_today(name)));
    }
}

#[test]
fn a_key_scheme_has_settled_after_twice_the_greatest_age_of_a_list() {
    let (start, max_age) = (Timestamp::UNIX_EPOCH, Duration::from_secs(15));
    let key_scheme = Arc::new(KeyScheme::of(&tool("t")));
    let new = Remembered::new(key_scheme.id(), key_scheme, Duration::from_hours(1), start);
    let in_seconds = |seconds| new.settles_in(max_age, start + SignedDuration::from_secs(seconds));
    assert_eq!(in_seconds(0), Some(Duration::from_secs(30)));
    assert_eq!(in_seconds(29), Some(Duration::from_secs(1)));
    assert_eq!((in_seconds(30), in_seconds(31)), (None, None));
    let stored = Remembered::from_document(&new.to_document()).expect("a key scheme");
    assert_eq!(stored, new);
    assert_eq!(
        stored
            .renewed(Duration::from_hours(2), start)
            .expect("renewed")
            .known_since,
        start
    );
}
