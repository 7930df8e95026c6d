//! Keys: their sources, places and short forms.

use base64::Engine;
use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn each_source_has_its_word() {
    let words = Source::ALL.map(Source::as_str);
    assert_eq!(
        words,
        [
            "runtime",
            "business",
            "model",
            "derived",
            "compensation",
            "round",
            "adopted"
        ]
    );
}

#[test]
fn the_key_for_a_tool_leads_back_to_the_name_in_any_spelling_and_nothing_else_does() {
    let lookup = Lookup::new("shop", "t", "k");
    let key = lookup.for_tool();
    assert_eq!(Lookup::of_tool_key(&key), Some(lookup));
    let groups = [
        &key[..8],
        &key[8..12],
        &key[12..16],
        &key[16..20],
        &key[20..],
    ]
    .join("-");
    let bytes = hex::decode(&key).expect("hex digits");
    let padded = base64::engine::general_purpose::STANDARD.encode(&bytes);
    for same in [
        key.to_uppercase(),
        format!(" {key} "),
        groups.clone(),
        groups.to_uppercase(),
        format!("{{{groups}}}"),
        format!("({groups})"),
        format!("urn:uuid:{groups}"),
        format!("URN:UUID:{groups}"),
        format!("0x{key}"),
        format!("\\x{key}"),
        format!("X'{}'", key.to_uppercase()),
        padded.trim_end_matches('=').to_owned(),
        base64::engine::general_purpose::URL_SAFE.encode(&bytes),
        padded,
    ] {
        assert_eq!(Lookup::of_tool_key(&same), Some(lookup), "{same:?}");
    }
    let (longer, long) = (format!("{key}00"), format!("{key}{}", " ".repeat(64)));
    let huge = "0".repeat(1_000);
    assert_eq!(
        Lookup::of_tool_key(&long),
        Some(lookup),
        "a column of fixed width"
    );
    for other in ["", "beside", &key[1..], &longer, &huge, "ä", "{}", "===="] {
        assert_eq!(Lookup::of_tool_key(other), None, "{other:?}");
    }
}

#[test]
fn keys_are_looked_for_where_the_policy_says() {
    let field = || vec!["/order".parse().expect("a pointer")];
    let policy = |fields, prefer, required| Policy {
        fields,
        prefer,
        required,
        ..Policy::default()
    };
    use Source::{Business, Derived, Model, Runtime};
    for (policy, sources) in [
        (policy(field(), Prefer::Business, false), &[Business][..]),
        (
            policy(field(), Prefer::Runtime, false),
            &[Runtime, Business],
        ),
        (policy(field(), Prefer::Runtime, true), &[Runtime, Business]),
        (policy(vec![], Prefer::Business, true), &[Runtime, Model]),
        (
            policy(vec![], Prefer::Business, false),
            &[Runtime, Model, Derived],
        ),
    ] {
        assert_eq!(policy.sources(), sources, "{policy:?}");
    }
}

#[test]
fn a_pointer_takes_out_a_member_or_an_item_and_nothing_else() {
    let whole = json!({ "list": [1, 2], "a": { "b": 3 } });
    for (pointer, left) in [
        ("/list/0", json!({ "list": [2], "a": { "b": 3 } })),
        ("/list/1", json!({ "list": [1], "a": { "b": 3 } })),
        ("/list/2", whole.clone()),
        ("/list/x", whole.clone()),
        ("/a/b", json!({ "list": [1, 2], "a": {} })),
        ("/a/c", whole.clone()),
        ("/b/c", whole.clone()),
    ] {
        let (mut value, pointer) = (whole.clone(), pointer.parse::<Pointer>().expect(pointer));
        pointer.remove_from(&mut value);
        assert_eq!(value, left, "{pointer:?}");
    }
}

#[test]
fn a_pointer_holds_itself_and_what_is_below_it() {
    let at = |text: &str| text.parse::<Pointer>().expect(text);
    for (pointer, other, holds) in [
        ("/a", "/a", true),
        ("/a", "/a/b", true),
        ("/a", "/a/b/0", true),
        ("/a", "/ab", false),
        ("/a/b", "/a", false),
        ("/a", "/b/a", false),
    ] {
        assert_eq!(at(pointer).holds(&at(other)), holds, "{pointer} {other}");
        let overlaps = holds || at(other).holds(&at(pointer));
        assert_eq!(at(pointer).overlaps(&at(other)), overlaps);
    }
    let whole = Pointer::to(&[]);
    assert!(whole.holds(&whole) && whole.holds(&at("/a")));
}

/// Stored calls are found by these bytes: they must stay the same.
#[test]
fn the_forms_of_a_name_stay_as_they_are() {
    let lookup = Lookup::new("shop", "t", "k");
    assert_eq!(lookup.partition(), Lookup::partition_of("shop"));
    let partitions = ["shop", "bank", "mill"].map(Lookup::partition_of);
    assert_eq!(partitions, PARTITIONS);
    assert_eq!(lookup.for_tool().len(), 32);
    assert_eq!(lookup.short(), lookup.for_tool()[..8]);
}

const PARTITIONS: [u8; 3] = [69, 173, 139];

#[test]
fn quoted_and_bare_are_the_same_key() {
    let bare = Key::parse("8e03978e-40d5").expect("a key");
    for line in ["8e03978e-40d5", "\"8e03978e-40d5\"", " \"8e03978e-40d5\" "] {
        assert_eq!(
            Key::from_header(line.as_bytes()),
            Ok(bare.clone()),
            "{line:?}"
        );
    }
    assert_eq!(
        Key::from_header(br#""a\"b\\c""#),
        Ok(Key(r#"a"b\c"#.to_owned()))
    );
}

#[test]
fn what_is_no_key_is_refused() {
    let long = "k".repeat(256);
    for line in [
        "", "\"\"", "\"", "\"a", "a b", "\"a b\"", "a, b", "ключ", r#""a\b""#, r#""a"b""#, "a\tb",
        &long,
    ] {
        assert_eq!(Key::from_header(line.as_bytes()), Err(Invalid), "{line:?}");
    }
    assert!(Key::parse(&"k".repeat(255)).is_ok());
    assert_eq!(Key::from_header(b"\xff"), Err(Invalid));
}

#[test]
fn header_and_body_must_agree() {
    let key = Key::parse("k").expect("a key");
    assert_eq!(
        from_runtime(Some(b"\"k\""), Some("k")),
        Ok(Some(key.clone()))
    );
    assert_eq!(from_runtime(None, Some("k")), Ok(Some(key)));
    assert_eq!(from_runtime(None, None), Ok(None));
    assert_eq!(
        from_runtime(Some(b"k"), Some("other")),
        Err(Refused::Conflict)
    );
}

#[test]
fn parts_of_a_name_cannot_take_bytes_from_each_other() {
    assert_ne!(Lookup::new("a:b", "t", "c"), Lookup::new("a", "t", "b:c"));
    assert_ne!(Lookup::new("a", "bt", "c"), Lookup::new("ab", "t", "c"));
    assert_eq!(
        Lookup::new("default", "create_order", "k").for_tool(),
        "b700221b7ed665c90e13a4fa78c6f69c"
    );
}

proptest! {
    #[test]
    fn other_parts_are_another_call(a in ".{0,6}", b in ".{0,6}", c in ".{0,6}", d in ".{0,6}", e in ".{0,6}", f in ".{0,6}") {
        let same = (&a, &b, &c) == (&d, &e, &f);
        prop_assert_eq!(Lookup::new(&a, &b, &c) == Lookup::new(&d, &e, &f), same);
    }

    #[test]
    fn a_key_survives_quoting(text in "[\\x21-\\x7e]{1,255}") {
        let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let key = Key::parse(&text).expect("visible ASCII");
        prop_assert_eq!(Key::from_header(quoted.as_bytes()), Ok(key.clone()));
        if !text.starts_with('"') {
            prop_assert_eq!(Key::from_header(text.as_bytes()), Ok(key));
        }
    }
}

#[test]
fn a_caller_brings_no_key_of_the_gateway_itself() {
    for own in ["compensate:k", "oncegate-round:k"] {
        let header = from_runtime(Some(own.as_bytes()), None);
        assert_eq!(header, Err(Refused::Reserved), "{own}");
        assert_eq!(
            from_runtime(None, Some(own)),
            Err(Refused::Reserved),
            "{own}"
        );
    }
    for own in ["my-compensate:k", "compensate", "round:k"] {
        assert_eq!(
            from_runtime(None, Some(own)),
            Ok(Some(Key::parse(own).expect("a key")))
        );
    }
}

#[test]
fn objects_that_are_left_empty_go_with_their_last_member() {
    for (place, value, left) in [
        ("/a", json!({ "a": 1 }), json!({})),
        (
            "/a/b",
            json!({ "a": { "b": 1 }, "c": 2 }),
            json!({ "c": 2 }),
        ),
        ("/a/b/c", json!({ "a": { "b": { "c": null } } }), json!({})),
        (
            "/a/b/c",
            json!({ "a": { "b": { "c": 1 }, "d": 1 } }),
            json!({ "a": { "d": 1 } }),
        ),
        ("/a/b", json!({ "a": {} }), json!({ "a": {} })),
        (
            "/a/b",
            json!({ "a": { "b": 1, "c": {} } }),
            json!({ "a": { "c": {} } }),
        ),
        (
            "/a/0/b",
            json!({ "a": [{ "b": 1 }, 2] }),
            json!({ "a": [{}, 2] }),
        ),
    ] {
        let pointer: Pointer = place.parse().expect("a pointer");
        let mut taken = value.clone();
        pointer.take_from(&mut taken);
        assert_eq!(taken, left, "{place} of {value}");
    }
}
