//! How unknown calls are settled or given up, event by event.

use super::*;
use crate::outcome::Sent;
use crate::record::Check;
use crate::tool::{Dedup, OnUnknown, Recheck};

pub(super) fn probing(negative_final_after: Option<u64>) -> Tool {
    let negative_final_after = negative_final_after.map(Duration::from_secs);
    Tool {
        unknown: OnUnknown::Probe,
        negative_final_after,
        ..tool("t")
    }
}

pub(super) fn retrying() -> Tool {
    Tool {
        unknown: OnUnknown::Retry,
        dedup: Dedup::Key,
        ..tool("t")
    }
}

/// A call, unknown since second 1.
pub(super) fn unknown(tool: &Tool) -> Record {
    record(
        tool,
        key::Source::Derived,
        &[(ended_with(1, no_answer(), None), 1)],
    )
}

pub(super) fn check_due(id: u128) -> Event {
    Event::CheckDue {
        by: ME,
        attempt: Some(attempt(id)),
    }
}

/// The change that an event makes.
pub(super) fn change(tool: &Tool, record: &Record, event: &Event, seconds: i64) -> Change {
    next(tool, Some(record), event, at(seconds))
        .expect("legal")
        .change
        .expect("a change")
}

pub(super) fn check_at(record: &Record) -> Option<i64> {
    Some(record.check?.at?.as_second() - at(0).as_second())
}

#[test]
fn after_a_loss_a_later_run_may_be_under_way_for_a_whole_lease() {
    let tool = probing(Some(5));
    let failed = record(
        &tool,
        key::Source::Derived,
        &[(ended_with(1, not_sent(), None), 1)],
    );
    for before in [unknown(&tool), failed] {
        let lost = change(&tool, &before, &store_lost(), 100).record;
        assert!(matches!(lost.state, State::Unknown(_)));
        assert_eq!(lost.attempt.lease_until, at(100) + tool.lease());
        assert_eq!(
            cell(&tool, Some(&lost), &probed(Finding::NotFound), 144),
            "Finish -> unknown"
        );
        assert_eq!(
            cell(&tool, Some(&lost), &resolved(Resolution::Failed), 139),
            "(MayStillRun)"
        );
        assert_eq!(
            cell(&tool, Some(&lost), &probed(Finding::NotFound), 145),
            "Finish -> failed"
        );
        assert_eq!(
            cell(&tool, Some(&lost), &resolved(Resolution::Failed), 140),
            "Finish -> failed"
        );
    }
}

/// A tool that can be asked by key.
fn asked(tool: Tool) -> Tool {
    Tool {
        protocol: probed_by("http://shop/by-key/{key}", None),
        ..tool
    }
}

#[test]
fn an_operator_may_have_a_tool_asked_about_any_unknown_call() {
    let held = asked(tool("t"));
    for tool in [held.clone(), asked(probing(None)), asked(retrying())] {
        // Even after its checks are given up.
        for seconds in [2, 9 * 3_600] {
            let before = unknown(&tool);
            let next = next(&tool, Some(&before), &probe_asked(), at(seconds)).expect("legal");
            assert_eq!(next.action, Action::Probe);
            let change = next.change.expect("a change");
            assert_eq!(
                (&*change.entry.event, &*change.entry.by),
                ("probing", "token ops")
            );
            assert_eq!(
                (
                    change.record.check,
                    change.record.state,
                    change.record.attempt
                ),
                (before.check, before.state, before.attempt),
                "nothing else is as it was not"
            );
        }
    }
    let elsewhere = Tool {
        unknown: OnUnknown::Elsewhere,
        ..held
    };
    for tool in [tool("t"), elsewhere] {
        let refused = next(&tool, Some(&unknown(&tool)), &probe_asked(), at(2));
        assert_eq!(refused, Err(Illegal::NoProbe));
    }
}

#[test]
fn a_held_call_that_is_not_found_has_failed_only_while_its_tool_remembers_the_key() {
    let tool = asked(Tool {
        dedup: Dedup::Key,
        ..tool("t")
    });
    let held = unknown(&tool);
    assert_eq!(held.check, None);
    let not_found = probed(Finding::NotFound);
    let forgotten = 60 * 60;
    for (seconds, expected) in [
        (20, "Finish -> unknown"),
        (60, "Finish -> failed"),
        (forgotten - 1, "Finish -> failed"),
        (forgotten, "Finish -> unknown"),
    ] {
        assert_eq!(
            cell(&tool, Some(&held), &not_found, seconds),
            expected,
            "{seconds}"
        );
    }
    assert_eq!(
        cell(&tool, Some(&held), &probed(found()), forgotten),
        "Finish -> succeeded"
    );
    // An earlier run may have been executed, and the tool may forget it sooner.
    let mut again = Record {
        earlier_attempt_may_have_run: true,
        ..held
    };
    again.attempt.run_started_at = at(forgotten - 100);
    again.attempt.lease_until = at(forgotten - 60);
    assert_eq!(
        cell(&tool, Some(&again), &not_found, forgotten),
        "Finish -> unknown"
    );
    again.earlier_attempt_may_have_run = false;
    assert_eq!(
        cell(&tool, Some(&again), &not_found, forgotten),
        "Finish -> failed"
    );
}

/// The store may have lost a run that began after the attempt that it still has.
#[test]
fn after_a_loss_a_late_refusal_of_the_attempt_that_is_left_proves_nothing() {
    let tool = probing(Some(5));
    let running = record(&tool, key::Source::Derived, &[]);
    for before in [running, unknown(&tool)] {
        let lost = change(&tool, &before, &store_lost(), 100).record;
        for evidence in [not_sent(), answer(429), answer(422)] {
            let late = ended_with(1, evidence, None);
            let refused = next(&tool, Some(&lost), &late, at(101));
            assert_eq!(refused, Err(Illegal::StillUnknown));
        }
        let executed = ended_with(1, answer(200), None);
        assert_eq!(
            cell(&tool, Some(&lost), &executed, 101),
            "Finish -> succeeded"
        );
    }
}

/// The saga orders compensations by the time at which calls began.
#[test]
fn a_call_that_succeeded_still_tells_that_it_was_sent_again() {
    let tool = retrying();
    let again = change(&tool, &unknown(&tool), &check_due(2), 9).record;
    let succeeded = change(&tool, &again, &ended_with(2, answer(200), None), 10).record;
    assert!(
        matches!(succeeded.state, State::Succeeded(_)) && succeeded.earlier_attempt_may_have_run
    );
    assert!(
        !Sent::of(&succeeded).earlier_attempt_may_have_run,
        "what is sent once more to compare is not a further attempt"
    );
}

#[test]
fn a_call_that_was_settled_as_not_executed_is_not_in_doubt() {
    let tool = Tool {
        dedup: Dedup::Key,
        ..probing(None)
    };
    let earlier_attempt_may_have_run = Record {
        earlier_attempt_may_have_run: true,
        ..unknown(&tool)
    };
    for event in [resolved(Resolution::Failed), probed(Finding::NotFound)] {
        let failed = change(&tool, &earlier_attempt_may_have_run, &event, 60).record;
        assert!(
            matches!(failed.state, State::Failed(_)) && !failed.earlier_attempt_may_have_run,
            "{event:?}"
        );
        let again = change(&tool, &failed, &arrived(key::Source::Derived, 1, 5), 61).record;
        let rejected = ended_with(5, answer(422), None);
        assert_eq!(
            cell(&tool, Some(&again), &rejected, 62),
            "Finish -> failed",
            "as if it were new"
        );
    }
}

#[test]
fn a_due_check_is_made_before_the_checks_are_given_up() {
    let tool = probing(None);
    let unknown = unknown(&tool);
    // No gateway ran for hours.
    let asked = change(&tool, &unknown, &check_due(2), 9_000);
    assert_eq!(
        (
            asked.entry.event.as_ref(),
            asked.record.check.expect("a check").number
        ),
        ("probing", 1)
    );
    assert!(
        check_at(&asked.record).is_some(),
        "a gateway that ends now leaves it due"
    );
    let nothing = change(&tool, &asked.record, &probed(Finding::NotFound), 9_001);
    assert_eq!(
        (nothing.entry.event.as_ref(), check_at(&nothing.record)),
        ("given_up", None)
    );
    assert!(
        nothing.record.check.is_some(),
        "that it was given up is remembered"
    );
    assert_eq!(
        cell(&tool, Some(&nothing.record), &check_due(3), 99_000),
        "(NotDue)"
    );
    let missing = Event::CheckMissing { by: ME };
    assert_eq!(
        cell(&tool, Some(&nothing.record), &missing, 99_000),
        "(NotDue)"
    );
    let late = change(&tool, &nothing.record, &probed(found()), 9_002).record;
    assert!(
        matches!(late.state, State::Succeeded(_)),
        "what is found counts all the same"
    );

    let tool = retrying();
    let earlier_attempt_may_have_run = self::unknown(&tool);
    let again = change(&tool, &earlier_attempt_may_have_run, &check_due(2), 3_599);
    assert_eq!(again.entry.event, "sent_again");
    let ended = change(
        &tool,
        &again.record,
        &ended_with(2, no_answer(), None),
        3_600,
    );
    assert_eq!(check_at(&ended.record), None);
    assert!(
        ended.entry.detail.contains("given up"),
        "{}",
        ended.entry.detail
    );
    let late = change(&tool, &earlier_attempt_may_have_run, &check_due(2), 3_600);
    assert_eq!(
        late.entry.event, "given_up",
        "the tool may have forgotten the key"
    );
    assert_eq!(check_at(&late.record), None);
}

#[test]
fn not_found_proves_nothing_once_the_tool_may_have_forgotten_the_key() {
    let tool = Tool {
        dedup: Dedup::Key,
        ..probing(None)
    };
    for (seconds, becomes) in [(3_599, "Finish -> failed"), (3_600, "Finish -> unknown")] {
        assert_eq!(
            cell(
                &tool,
                Some(&unknown(&tool)),
                &probed(Finding::NotFound),
                seconds
            ),
            becomes
        );
    }
}

#[test]
fn waits_are_spread_between_half_and_all() {
    let recheck = Recheck {
        base: Duration::from_secs(8),
        max: Duration::from_secs(16),
        ..Recheck::default()
    };
    let tool = Tool {
        recheck,
        ..probing(None)
    };
    let mut seen = std::collections::BTreeSet::new();
    for n in 1..200 {
        let mut record = unknown(&tool);
        record.attempt.id = attempt(n * 0x1234_5678_9abc_def1);
        let check = unknown::first_check(&tool, &record, at(0));
        let first = check.expect("a check");
        let later = Check { number: 5, ..first };
        let later = unknown::next_check(&tool, attempt(n), later, at(0));
        let wait = |check: Check| check.at.expect("a time").duration_since(at(0)).as_millis();
        assert!((4_000..=8_000).contains(&wait(first)) && (8_000..=16_000).contains(&wait(later)));
        seen.insert(wait(first));
    }
    assert!(seen.len() > 150, "they come back together: {}", seen.len());
}

#[test]
fn an_unknown_call_is_not_checked_before_the_time_that_its_tool_asked_for() {
    let busy = |seconds| Evidence::Answer {
        status: 503,
        body: outcome::Body::Whole("{}".into()),
        retry_after: Some(Duration::from_secs(seconds)),
        newest_token: None,
    };
    let tool = retrying();
    let running = record(&tool, key::Source::Derived, &[]);
    assert_eq!(
        cell(&tool, Some(&running), &ended_with(1, busy(7), Some(2)), 1),
        "Retry in 7s -> running"
    );
    let ended = change(&tool, &running, &ended_with(1, busy(60), Some(2)), 1).record;
    assert_eq!(
        (ended.state.as_str(), check_at(&ended)),
        ("unknown", Some(61)),
        "not within the deadline"
    );
    let tool = probing(None);
    let asked = change(&tool, &unknown(&tool), &check_due(2), 5).record;
    let unclear = Finding::Unclear("429".into());
    let retry_after = Some(Duration::from_secs(90));
    let event = Event::Probed(Probed {
        by: ME,
        asked_at: at(5),
        finding: unclear,
        retry_after,
    });
    assert_eq!(check_at(&change(&tool, &asked, &event, 6).record), Some(96));
}

#[test]
fn a_late_success_of_an_earlier_attempt_settles_a_call_in_doubt() {
    let tool = retrying();
    let again = change(&tool, &unknown(&tool), &check_due(2), 5).record;
    let in_doubt = change(&tool, &again, &ended_with(2, no_answer(), None), 6).record;
    for record in [&again, &in_doubt] {
        let late = |evidence| cell(&tool, Some(record), &ended_with(1, evidence, None), 7);
        assert_eq!(late(answer(200)), "Finish -> succeeded");
        for proves_nothing in [answer(422), answer(500), not_sent(), no_answer()] {
            assert_eq!(late(proves_nothing), "(NotOwner)");
        }
        let of_another_run = Event::Ended(Ended {
            attempt: attempt(1),
            fencing: Some(7),
            evidence: answer(200),
            retry: None,
        });
        assert_eq!(cell(&tool, Some(record), &of_another_run, 7), "(NotOwner)");
    }
    let settled = change(&tool, &again, &ended_with(1, answer(200), None), 7);
    assert_eq!(settled.entry.attempt, Some(attempt(1)));
    let newest = ended_with(2, answer(200), None);
    assert_eq!(
        cell(&tool, Some(&settled.record), &newest, 8),
        "(NotOwner)",
        "the first word counts"
    );
    let fresh = record(&tool, key::Source::Derived, &[]);
    assert_eq!(
        cell(&tool, Some(&fresh), &ended_with(9, answer(200), None), 7),
        "(NotOwner)"
    );
}

#[test]
fn a_blocked_check_is_postponed_for_longer_and_longer() {
    let tool = retrying();
    let mut record = unknown(&tool);
    let mut looks = 0;
    while let Some(seconds) = check_at(&record).filter(|seconds| *seconds < 24 * 3_600) {
        let later = change(
            &tool,
            &record,
            &postponed(CheckBlocker::Frozen),
            seconds + 1,
        );
        assert_eq!(
            (
                later.entry.event.as_ref(),
                later.record.check.expect("a check").number
            ),
            ("put_off", 0)
        );
        record = later.record;
        looks += 1;
    }
    assert!((20..70).contains(&looks), "{looks} in a day");
    let rests = postponed(CheckBlocker::BreakerOpen(Duration::from_secs(77)));
    let later = change(&tool, &unknown(&tool), &rests, 5).record;
    assert_eq!(check_at(&later), Some(82));
    let gone = change(&tool, &unknown(&tool), &postponed(CheckBlocker::KeyGone), 5);
    assert_eq!(
        (gone.entry.event.as_ref(), check_at(&gone.record)),
        ("given_up", None)
    );
}

#[test]
fn a_gateway_without_the_tool_leaves_its_calls_to_one_that_has_it() {
    let (here, elsewhere) = (
        probing(None),
        Tool {
            unknown: OnUnknown::Elsewhere,
            ..tool("t")
        },
    );
    assert_eq!(
        cell(&elsewhere, Some(&unknown(&here)), &check_due(2), 9_000),
        "(NotDue)"
    );
    let running = record(&here, key::Source::Derived, &[]);
    let lost = change(&elsewhere, &running, &Event::OwnerLost { by: ME }, 50).record;
    assert!(check_at(&lost).is_some());
    assert_eq!(
        cell(&here, Some(&lost), &check_due(2), 60),
        "Probe -> unknown"
    );
    // The configuration holds the tool's calls at first, and later does not.
    let held = change(&tool("t"), &lost, &check_due(2), 60).record;
    assert_eq!(held.check, None);
    let missing = Event::CheckMissing { by: ME };
    assert_eq!(cell(&tool("t"), Some(&held), &missing, 99), "(NotDue)");
    assert!(check_at(&change(&here, &held, &missing, 99).record).is_some());
}
