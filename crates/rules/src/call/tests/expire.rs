//! Ended calls whose arguments, result or retention are over.

use proptest::prelude::*;

use super::*;
use crate::record::{DELETED, RESULT_DELETED};

fn bodies_over() -> Event {
    Event::BodiesOver { by: ME }
}

fn retention_changed() -> Event {
    Event::RetentionChanged {
        by: By::token("ops", ""),
    }
}

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

fn timed(args: Option<Duration>, results: Option<Duration>) -> Tool {
    Tool {
        args_for: args,
        results_for: results,
        ..tool("t")
    }
}

/// A call that ended a second after its claim.
fn ended(tool: &Tool, evidence: Evidence) -> Record {
    record(
        tool,
        key::Source::Runtime,
        &[(ended_with(1, evidence, None), 1)],
    )
}

#[test]
fn each_body_goes_at_its_own_time_and_nothing_else_of_the_call() {
    let tool = timed(seconds(10), seconds(20));
    let before = ended(&tool, answer(200));
    let refused =
        |record: &Record, at| next(&tool, Some(record), &bodies_over(), super::at(at)).err();
    assert_eq!(refused(&before, 10), Some(Illegal::NotDue));
    let change = next(&tool, Some(&before), &bodies_over(), at(11)).expect("due");
    let change = change.change.expect("a change");
    assert_eq!(
        change.erases,
        Some(before.intent.clone()),
        "the store writes arguments"
    );
    let first = change.record;
    assert!(first.lacks_args() && !first.is_erased() && !first.lacks_result());
    let intent = Intent {
        args: DELETED.into(),
        ..(*before.intent).clone()
    };
    let expected = Record {
        intent: Arc::new(intent),
        version: first.version,
        updated_at: first.updated_at,
        ..before.clone()
    };
    assert_eq!(first, expected);
    assert_eq!(refused(&first, 20), Some(Illegal::NotDue));
    let change = next(&tool, Some(&first), &bodies_over(), at(21)).expect("due");
    let change = change.change.expect("a change");
    assert_eq!(change.erases, None);
    let State::Succeeded(Content::Unavailable(unread)) = &change.record.state else {
        panic!("{:?}", change.record.state);
    };
    assert_eq!((&*unread.why, &unread.sealed), (RESULT_DELETED, &None));
    assert!(change.record.lacks_result());
    assert_eq!(refused(&change.record, 99), Some(Illegal::NothingLeft));
}

#[test]
fn a_call_that_has_not_ended_or_whose_saga_has_not_keeps_everything() {
    let tool = Tool {
        compensation: cancel(true),
        ..timed(seconds(1), seconds(1))
    };
    let running = record(&tool, key::Source::Runtime, &[]);
    let unknown = ended(&tool, no_answer());
    let mut in_saga = ended(&tool, answer(200));
    in_saga.retain_until = None;
    for there in [running, unknown, in_saga] {
        for event in [bodies_over(), retention_changed()] {
            let refused = next(&tool, Some(&there), &event, at(99)).err();
            assert_eq!(refused, Some(Illegal::NotEnded), "{}", there.state.as_str());
        }
    }
}

#[test]
fn without_its_arguments_a_call_is_neither_sent_again_nor_undone_by_them() {
    let tool = Tool {
        unknown: OnUnknown::Retry,
        dedup: Dedup::Key,
        ..timed(seconds(1), None)
    };
    let there = ended(&tool, not_sent());
    let bare = moved(&tool, Some(&there), &bodies_over(), 9).expect("due");
    let lost = moved(&tool, Some(&bare), &store_lost(), 10).expect("it may have run again");
    let due = Event::CheckDue {
        by: ME,
        attempt: Some(attempt(3)),
    };
    let checked = next(&tool, Some(&lost), &due, at(3_600)).expect("due");
    assert_eq!(checked.action, Action::Finish, "given up");
}

/// Seconds below and above the window that counted when the call ended.
fn around_a_day() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..100_000, 0_u64..5_000_000]
}

proptest! {
    /// Whatever retention says today, a key is remembered for as long as it was when its call ended.
    #[test]
    fn a_changed_retention_never_shortens_the_time_of_a_key(
        retention in around_a_day(), window in around_a_day(), later in 2_i64..9_000_000,
    ) {
        let made = tool("t");
        let before = ended(&made, answer(200));
        let today = Tool {
            retention: Duration::from_secs(retention),
            dedup_window: seconds(window),
            ..tool("t")
        };
        let after = match next(&today, Some(&before), &retention_changed(), at(later)) {
            Ok(next) => next.change.expect("a change").record,
            Err(illegal) => {
                prop_assert_eq!(illegal, Illegal::NothingLeft);
                before.clone()
            }
        };
        prop_assert!(after.retain_until >= after.expires_at);
        prop_assert_eq!(after.expires_at, before.expires_at);
        let rest = Record {
            retain_until: before.retain_until,
            version: before.version,
            updated_at: before.updated_at,
            ..after.clone()
        };
        prop_assert_eq!(rest, before);
        let again = next(&today, Some(&after), &retention_changed(), at(later)).err();
        prop_assert_eq!(again, Some(Illegal::NothingLeft), "once is enough");
    }
}
