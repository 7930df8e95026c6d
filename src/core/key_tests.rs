//! Keys: their sources, places and short forms.

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
            "round"
        ]
    );
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
