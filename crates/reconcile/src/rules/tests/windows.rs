//! The windows of runs, and how values of a source are read.

use super::*;

fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

#[test]
fn each_window_begins_where_the_last_one_ended_as_far_as_calls_are_kept() {
    let next = |before: Option<i64>, oldest, end| {
        let window = Window::next(
            before.map(at),
            at(oldest),
            at(end),
            seconds(100),
            seconds(7),
        );
        window.map(|window| {
            assert_eq!(window.margin, seconds(7));
            let second = |time: Timestamp| time.duration_since(at(0)).as_secs();
            (second(window.since), second(window.until))
        })
    };
    for (before, oldest, end, window) in [
        (None, 0, 1_000, Some((900, 1_000))),
        (None, 950, 1_000, Some((950, 1_000))),
        (Some(960), 0, 1_000, Some((960, 1_000))),
        (Some(960), 980, 1_000, Some((980, 1_000))),
        // Runs catch up on missed time, one longest window at a time.
        (Some(300), 0, 1_000, Some((300, 400))),
        (Some(999), 0, 1_000, Some((999, 1_000))),
        (Some(1_000), 0, 1_000, None),
        (Some(1_001), 0, 1_000, None),
        (None, 1_000, 1_000, None),
    ] {
        assert_eq!(
            next(before, oldest, end),
            window,
            "{before:?} {oldest} {end}"
        );
    }
}

#[test]
fn a_source_is_asked_for_a_wider_window_but_not_for_the_future() {
    let window = window();
    for (now, until) in [
        (5_000, 2_100),
        (2_100, 2_100),
        (2_050, 2_050),
        (1_500, 2_000),
    ] {
        assert_eq!(window.of_source(at(now)), (at(900), at(until)), "{now}");
    }
    assert_eq!(window.of_ledger(), at(800), "and the ledger for yet more");
}

#[test]
fn calls_are_judged_as_long_as_all_that_may_have_made_an_effect_are_kept() {
    for (retention, margin, second) in [(1_000, 100, -800), (1_000, 0, -1_000), (150, 100, 0)] {
        let found = oldest(at(0), seconds(retention), seconds(margin));
        assert_eq!(found, at(second), "{retention} {margin}");
    }
}

#[test]
fn an_empty_or_masked_value_is_no_key_and_no_id() {
    let read = |value: Value| text(&value);
    assert_eq!(read(json!("a")), Some("a".to_owned()));
    assert_eq!(read(json!(7)), Some("7".to_owned()));
    for none in [
        json!(""),
        json!(redact::MASK),
        json!(null),
        json!([]),
        json!(true),
    ] {
        assert_eq!(read(none.clone()), None, "{none}");
    }
}

#[test]
fn a_number_is_a_time_in_seconds_up_to_the_year_5138_and_then_in_milliseconds() {
    const BORDER: i64 = 100_000_000_000;
    for (number, read) in [
        (BORDER - 1, Timestamp::from_second(BORDER - 1)),
        (1 - BORDER, Timestamp::from_second(1 - BORDER)),
        (BORDER, Timestamp::from_millisecond(BORDER)),
        (-BORDER, Timestamp::from_millisecond(-BORDER)),
    ] {
        assert_eq!(moment(&json!(number)), read.ok(), "{number}");
    }
}

#[test]
fn only_orphans_and_duplicates_are_an_effect_too_many() {
    let surplus: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| kind.is_surplus())
        .collect();
    assert_eq!(surplus, [Kind::Orphan, Kind::Duplicate]);
}
