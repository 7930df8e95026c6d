//! The stored form of cases: what is written stays the same byte for byte, and what older gateways wrote can be read.

use super::*;
use oncegate_rules::document::{self, Document};

/// A case in each of its states, and one with every member set.
fn all() -> Vec<(&'static str, Case)> {
    let mut all = cases();
    let micros = Timestamp::from_microsecond(1_800_000_002_000_003).expect("a time");
    let acted = asked(&case(Act::Report), Request::Compensate, 4).expect("it can be undone");
    let whole = Case {
        effect: Some(serde_json::json!({ "id": "o1", "amount": 999 })),
        undoing: Some(Undoing {
            tool: "cancel".into(),
            key: "a".into(),
            args: serde_json::json!({ "order": "o1" }),
        }),
        found_at: micros,
        error: Some("down".into()),
        work: Work {
            due: Due::Taken { until: at(60) },
            tries: 2,
            waits: 3,
        },
        ..acted
    };
    all.push(("whole", whole));
    all
}

#[test]
fn the_bytes_of_each_kind_of_case_are_pinned() {
    let mut bytes = String::new();
    for (name, case) in all() {
        let document = case.to_document();
        assert_eq!(Case::from_document(&document), Some(case), "{name}");
        let body = String::from_utf8(document.body.to_vec()).expect("text");
        let columns = (&document.state, document.due_at, document.retain_until);
        bytes += &format!("{name}: {columns:?}\n  {body}\n");
    }
    insta::assert_snapshot!("bytes", bytes);
}

#[test]
fn members_that_older_gateways_did_not_write_may_be_absent_and_no_others() {
    let (_, case) = all().pop().expect("a case");
    let document = case.to_document();
    let body: Value = document.read().expect("JSON");
    let members = body.as_object().expect("an object");
    let with = |body: &serde_json::Map<String, Value>| {
        Case::from_document(&Document {
            body: document::body(body),
            ..document.clone()
        })
    };
    let newer = [
        "undoing", "found_at", "decides", "waits", "is_taken", "effect", "error",
    ];
    for name in members.keys() {
        let mut less = members.clone();
        less.remove(name);
        let read = with(&less);
        assert_eq!(read.is_some(), newer.contains(&name.as_str()), "{name}");
        if name == "found_at" {
            assert_eq!(read.map(|case| case.found_at), Some(document.created_at));
        }
    }
    let mut late = members.clone();
    late.insert("found_at".into(), i64::MAX.into());
    assert_eq!(with(&late), None, "a time out of range");
}
