//! Filters, the indexes of a call, and its size.

use super::*;
use crate::erasure::UserDigest;
use crate::testing::{at, succeeded};

/// A call with every property that a filter can name.
fn call() -> Record {
    let mut record = succeeded("{\"a\":1}");
    let intent = std::sync::Arc::make_mut(&mut record.intent);
    intent.trace_id = "T".into();
    intent.session_id = "S".into();
    intent.user_id = "U".into();
    intent.tool = "pay".into();
    intent.key = "K".into();
    intent.saga_id = "G".into();
    intent.made_by = "M".into();
    intent.created_at = at(10);
    record
}

/// A filter for all of these properties.
fn filter() -> Filter {
    Filter {
        trace_id: Some("T".into()),
        session_id: Some("S".into()),
        user_id: Some("U".into()),
        user: None,
        tool: Some("pay".into()),
        key: Some("K".into()),
        saga_id: Some("G".into()),
        by: Some("M".into()),
        similar: Some(false),
        duplicates_min: None,
        state: Some("succeeded".into()),
        since: Some(at(10)),
        until: Some(at(11)),
        updated_since: None,
        unknown_in: None,
        is_brief: false,
        looks: None,
    }
}

#[test]
fn a_call_is_found_only_if_every_field_of_the_filter_matches() {
    assert!(filter().matches(&call()) && Filter::default().matches(&call()));
    let other = || Some("other".to_owned());
    let changes: [fn(&mut Filter, Option<String>); 8] = [
        |filter, other| filter.trace_id = other,
        |filter, other| filter.session_id = other,
        |filter, other| filter.user_id = other,
        |filter, other| filter.tool = other,
        |filter, other| filter.key = other,
        |filter, other| filter.saga_id = other,
        |filter, other| filter.by = other,
        |filter, other| filter.state = other,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (mut all, mut alone) = (filter(), Filter::default());
        change(&mut all, other());
        change(&mut alone, other());
        assert!(!all.matches(&call()), "member {number}");
        assert!(!alone.matches(&call()), "member {number} alone");
    }
}

#[test]
fn a_call_is_found_by_what_it_looks_like_and_by_how_often_it_was_asked_for() {
    for (count, min, similar, is_found) in [
        (3, None, None, true),
        (3, Some(3), None, true),
        (3, Some(4), None, false),
        (0, Some(1), None, false),
        (3, Some(3), Some(true), true),
        (3, None, Some(false), false),
        (3, Some(4), Some(true), false),
    ] {
        let mut record = call();
        record.similar_to = Some(record.intent.call_id);
        let duplicates = Duplicates {
            count,
            last: Vec::new(),
        };
        let filter = Filter {
            similar,
            duplicates_min: min,
            ..Filter::default()
        };
        let listed = Listed { record, duplicates };
        assert_eq!(filter.lists(&listed), is_found, "{count} {filter:?}");
    }
}

#[test]
fn since_includes_its_time_and_until_does_not() {
    for (since, until, is_found) in [
        (Some(9), None, true),
        (Some(10), None, true),
        (Some(11), None, false),
        (None, Some(9), false),
        (None, Some(10), false),
        (None, Some(11), true),
    ] {
        let filter = Filter {
            since: since.map(at),
            until: until.map(at),
            ..Filter::default()
        };
        assert_eq!(filter.matches(&call()), is_found, "{since:?} {until:?}");
    }
}

#[test]
fn a_call_is_found_by_a_digest_of_its_user() {
    let of = |user: &str| {
        let intent = &call().intent;
        Filter {
            user: Some(UserDigest::of(&intent.tenant, user)),
            ..Filter::default()
        }
    };
    assert!(of("U").matches(&call()) && !of("V").matches(&call()));
    let user = UserDigest::of(&call().intent.tenant, "U");
    assert_eq!(of("U").index(), Index::UserDigest(&user));
}

#[test]
fn a_call_stands_in_the_lists_of_all_that_it_names() {
    let always = [
        Index::All,
        Index::Key("K"),
        Index::Trace("T"),
        Index::Tool("pay"),
    ];
    let named = [Index::Session("S"), Index::User("U"), Index::Saga("G")];
    assert_eq!(indexes(&call()), [&always[..], &named].concat());
    for left_out in 0..3 {
        let mut record = call();
        let intent = std::sync::Arc::make_mut(&mut record.intent);
        *[
            &mut intent.session_id,
            &mut intent.user_id,
            &mut intent.saga_id,
        ][left_out] = String::new();
        let mut rest = named.to_vec();
        rest.remove(left_out);
        assert_eq!(indexes(&record), [&always[..], &rest].concat());
    }
}

#[test]
fn a_listed_call_is_as_large_as_its_arguments_and_its_result() {
    let mut record = call();
    std::sync::Arc::make_mut(&mut record.intent).args = "{\"long\":true}".into();
    let listed = Listed {
        record,
        duplicates: Duplicates::default(),
    };
    assert_eq!(listed.size(), 13 + 7 + 1_024);
}

#[test]
fn duplicates_are_counted_and_the_newest_of_them_listed() {
    let seen = |count, seconds: std::ops::Range<i64>| Duplicates {
        count,
        last: seconds
            .map(|second| Duplicate {
                at: at(second),
                by: "agent".into(),
                kind: "replayed".into(),
            })
            .collect(),
    };
    let mut all = seen(4, 0..3);
    all.add(&seen(20, 3..12));
    assert_eq!(all.count, 24);
    let times: Vec<Timestamp> = all.last.iter().map(|one| one.at).collect();
    assert_eq!(times, (2..12).rev().map(at).collect::<Vec<_>>());
}

#[test]
fn a_page_that_is_exactly_full_keeps_its_next_position() {
    let place = |second| Position {
        created_at: at(second),
        id: uuid::Uuid::from_u128(1),
    };
    let page = |limit| {
        let mut page = Page {
            found: vec![place(3), place(2)],
            next: Some(place(1)),
            unreadable: 0,
        };
        page.cut(limit);
        (page.found.len(), page.next)
    };
    assert_eq!(page(2), (2, Some(place(1))));
    assert_eq!(page(1), (1, Some(place(3))));
}

#[test]
fn few_calls_stay_failed_unknown_or_unapproved() {
    let listed = STATES.into_iter().filter(|state| is_listed(state));
    let few = ["failed", "unknown", "proposed", "approved"];
    assert_eq!(listed.collect::<Vec<_>>(), few);
}

#[test]
fn a_page_ends_with_the_call_that_fills_it() {
    let sized = |second, bytes: usize| {
        let mut record = call();
        let intent = std::sync::Arc::make_mut(&mut record.intent);
        intent.created_at = at(second);
        intent.args = vec![b' '; bytes].into();
        let mut listed = Listed {
            record,
            duplicates: Duplicates::default(),
        };
        let more = listed.size() - bytes;
        let args = vec![b' '; bytes.saturating_sub(more)];
        std::sync::Arc::make_mut(&mut listed.record.intent).args = args.into();
        listed
    };
    let half = PAGE_BYTES / 2;
    for (sizes, fit) in [
        (&[half, half, half][..], 2),
        (&[half, half - 1, half, half], 3),
        (&[PAGE_BYTES, half], 1),
        (&[half, half - 1], 2),
    ] {
        let found = (0_i64..)
            .zip(sizes)
            .map(|(second, bytes)| sized(100 - second, *bytes));
        let mut page = Page {
            found: found.collect(),
            next: None,
            unreadable: 0,
        };
        let last = page.found[fit - 1].position();
        page.cut_bytes();
        assert_eq!(page.found.len(), fit, "{sizes:?}");
        assert_eq!(page.next, (fit < sizes.len()).then_some(last), "{sizes:?}");
    }
}
