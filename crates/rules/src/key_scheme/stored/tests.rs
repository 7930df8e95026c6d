//! How long a key scheme is remembered, and how its documents follow each other.

use super::*;
use crate::testing::tool;

const DAY: Duration = Duration::from_hours(24);

fn at(minutes: i64) -> Timestamp {
    let time = Timestamp::from_second(1_700_000_000).expect("a time");
    time + SignedDuration::from_mins(minutes)
}

fn remembered() -> Remembered {
    let key_scheme = KeyScheme::of(&tool("act"));
    Remembered::new(key_scheme.id(), Arc::new(key_scheme), DAY, at(0))
}

#[test]
fn a_key_scheme_is_renewed_in_intervals_and_when_its_retention_grows() {
    let one = remembered();
    let renewed = |keep, minutes| {
        let next = one.renewed(keep, at(minutes))?;
        assert_eq!(next.version, one.version + 1);
        assert_eq!((next.created_at, next.known_since), (at(0), at(0)));
        Some((next.used_at, next.keep))
    };
    let keep = |days: u32| signed(DAY * days);
    assert_eq!(renewed(DAY, 9), None);
    assert_eq!(renewed(DAY, 10), Some((at(10), keep(1))));
    assert_eq!(renewed(DAY * 2, 9), Some((at(9), keep(2))));
    assert_eq!(renewed(DAY / 2, 9), None);
    assert_eq!(renewed(DAY / 2, 10), Some((at(10), keep(1))));
    // The clock of this gateway is slow.
    assert_eq!(renewed(DAY * 2, -5), Some((at(0), keep(2))));
}

#[test]
fn a_key_scheme_is_forgotten_by_its_next_version() {
    let one = remembered();
    let (in_use, forgotten) = (one.to_document(), one.forgotten(at(7)));
    assert!(Remembered::is_in_use(&in_use) && !Remembered::is_in_use(&forgotten));
    assert_eq!((in_use.version, forgotten.version), (1, 2));
    assert_eq!(
        (in_use.retain_until, forgotten.retain_until),
        (None, Some(at(7)))
    );
    assert_eq!(
        forgotten.id, in_use.id,
        "it stays the document of that key scheme"
    );
    assert_eq!(tool_of(&in_use.id), Some("act"));
    assert_eq!(tool_of("act"), None);
}

#[test]
fn calls_of_a_key_scheme_may_be_made_for_two_hours_after_it_was_last_used() {
    let one = remembered();
    assert_eq!(one.made_until(), at(120));
    let day = 24 * 60;
    assert!(!one.is_overdue(at(day + 119)) && one.is_overdue(at(day + 120)));
    let forever = Remembered {
        keep: SignedDuration::MAX,
        ..one
    };
    assert!(!forever.is_overdue(Timestamp::MAX));
}

#[test]
fn the_bytes_of_a_key_scheme_are_pinned() {
    let one = remembered();
    let mut bytes = String::new();
    for document in [one.to_document(), one.forgotten(at(7))] {
        let body = String::from_utf8(document.body.to_vec()).expect("text");
        let columns = (&document.id, &document.state, document.retain_until);
        bytes += &format!("{columns:?}\n  {body}\n");
    }
    let read = Remembered::from_document(&one.to_document());
    assert_eq!(read, Some(one));
    insta::assert_snapshot!("bytes", bytes);
}

#[test]
fn a_document_with_a_member_missing_or_a_time_out_of_range_is_not_a_key_scheme() {
    let document = remembered().to_document();
    let body: Value = document.read().expect("JSON");
    let members = body.as_object().expect("an object");
    let with = |body: &serde_json::Map<String, Value>| {
        Remembered::from_document(&Document {
            body: document::body(body),
            ..document.clone()
        })
    };
    assert!(with(members).is_some());
    for name in members.keys() {
        let mut less = members.clone();
        less.remove(name);
        assert_eq!(with(&less), None, "{name}");
    }
    for name in ["used_at", "known_since"] {
        let mut late = members.clone();
        late.insert(name.to_owned(), i64::MAX.into());
        assert_eq!(with(&late), None, "{name}");
    }
}
