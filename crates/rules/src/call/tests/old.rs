//! Calls that are found unknown, or taken up, long after they ran: the tool may have forgotten their keys.

use jiff::SignedDuration;

use super::rest::{change, check_at, check_due, probing, retrying, unknown};
use super::*;
use crate::tool::Recheck;

/// The states of a call that ran at 0 and is found without an owner at these seconds.
fn found_late(tool: &Tool, lost: &Event, seconds: i64) -> Record {
    let running = record(tool, key::Source::Derived, &[]);
    let lost = change(tool, &running, lost, seconds).record;
    let first = check_at(&lost).expect("it is worked on once");
    assert!(first > seconds && lost.check.expect("a check").since == at(0));
    lost
}

/// A tool whose unknown calls are given up after an hour.
fn for_an_hour(tool: Tool) -> Tool {
    let recheck = Recheck {
        give_up_after: Duration::from_secs(3_600),
        ..Recheck::default()
    };
    Tool { recheck, ..tool }
}

#[test]
fn the_time_for_checks_counts_from_the_run_and_not_from_when_its_owner_is_missed() {
    let retrying = for_an_hour(retrying());
    let probing = for_an_hour(Tool {
        dedup: Dedup::Key,
        ..probing(None)
    });
    for lost in [
        Event::OwnerLost { by: ME },
        Event::LeaseOver { by: ME },
        store_lost(),
    ] {
        // The tool still knows the key.
        let early = found_late(&retrying, &lost, 600);
        assert_eq!(
            cell(&retrying, Some(&early), &check_due(2), 700),
            "Run -> running"
        );
        // The tool may have forgotten the key.
        let late = found_late(&retrying, &lost, 90_000);
        let checked = change(&retrying, &late, &check_due(2), 90_100);
        assert_eq!(
            (checked.entry.event.as_ref(), checked.record.state.as_str()),
            ("given_up", "unknown"),
            "{lost:?}"
        );
        let early = found_late(&probing, &lost, 600);
        let asked = probed_at(Finding::NotFound, 3_000);
        assert_eq!(
            change(&probing, &early, &asked, 3_000)
                .record
                .state
                .as_str(),
            "failed"
        );
        let late = found_late(&probing, &lost, 90_000);
        let asked = probed_at(Finding::NotFound, 95_000);
        assert_eq!(
            change(&probing, &late, &asked, 95_000)
                .record
                .state
                .as_str(),
            "unknown",
            "{lost:?}"
        );
    }
}

#[test]
fn a_call_that_was_held_too_long_is_not_sent_again_when_it_is_taken_up() {
    let held = unknown(&tool("t"));
    let recheck = Recheck {
        give_up_after: Duration::from_secs(3_600),
        ..Recheck::default()
    };
    let retrying = Tool {
        recheck,
        ..retrying()
    };
    let missing = Event::CheckMissing { by: ME };
    let taken_up = |seconds| change(&retrying, &held, &missing, seconds).record;
    assert_eq!(
        cell(&retrying, Some(&taken_up(100)), &check_due(2), 200),
        "Run -> running"
    );
    let checked = change(&retrying, &taken_up(90_000), &check_due(2), 90_100);
    assert_eq!(
        (checked.entry.event.as_ref(), checked.record.state.as_str()),
        ("given_up", "unknown")
    );
}

#[test]
fn a_failed_call_may_have_run_again_unless_the_store_is_whole_until_its_key_was_forgotten() {
    let tool = retrying();
    let failed = record(
        &tool,
        key::Source::Derived,
        &[(ended_with(1, not_sent(), None), 1)],
    );
    let expires_at = failed.expires_at.expect("a time");
    let lost = |whole_until| Event::StoreLost {
        by: By::token("ops", "an older snapshot"),
        whole_until,
    };
    let days = 90_000;
    // A later run may have become unknown, and such a call keeps its key for ever.
    for (whole_until, since) in [
        (None, at(1)),
        (Some(at(0)), at(1)),
        (Some(at(500)), at(500)),
        (Some(expires_at), expires_at),
    ] {
        let marked = change(&tool, &failed, &lost(whole_until), days).record;
        assert_eq!(marked.state.as_str(), "unknown");
        assert_eq!(
            marked.check.expect("a check").since,
            since,
            "only a later run is in doubt"
        );
    }
    let whole = lost(Some(expires_at + tool.lease()));
    assert_eq!(cell(&tool, Some(&failed), &whole, days), "(NotRunning)");
    let running = record(&tool, key::Source::Derived, &[]);
    let marked = change(&tool, &running, &whole, days).record;
    assert_eq!(
        marked.check.expect("a check").since,
        at(0),
        "its own run is in doubt"
    );
}

/// A closed laptop: the gateway's time is eight hours behind from then on, and the next process has the right time.
#[test]
fn the_windows_of_keys_count_the_time_for_which_a_machine_slept_and_leases_do_not() {
    let tool = tool("t");
    let slept = SignedDuration::from_hours(8);
    let time = |seconds| Now {
        at: at(seconds),
        slept,
    };
    let running = record(&tool, key::Source::Derived, &[]);
    let ended = ended_with(1, answer(200), None);
    let done = next(&tool, Some(&running), &ended, time(1)).expect("an end");
    let done = done.change.expect("a change").record;
    assert_eq!(done.expires_at, Some(at(3_601) + slept), "an hour later");
    let again = arrived(key::Source::Derived, 1, 2);
    let action = |now: Now| {
        let next = next(&tool, Some(&done), &again, now);
        next.expect("an answer").action
    };
    let in_the_next_process = Now::from(at(3_600) + slept);
    for now in [time(3_600), in_the_next_process] {
        assert_eq!(action(now), Action::Answer);
    }
    let in_the_next_process = Now::from(at(3_601) + slept);
    for now in [time(3_601), in_the_next_process] {
        assert_eq!(action(now), Action::Claim);
    }
    // Whatever was on its way when the machine fell asleep is still on its way.
    let lost = Event::LeaseOver { by: ME };
    let lease = running.attempt.lease_until.duration_since(at(0)).as_secs();
    let early = next(&tool, Some(&running), &lost, time(lease - 1));
    assert_eq!(early.err(), Some(Illegal::LeaseHeld));
    assert!(next(&tool, Some(&running), &lost, time(lease)).is_ok());
}

#[test]
fn a_tool_may_forget_a_key_while_the_gateway_sleeps() {
    let (retrying, probing) = (for_an_hour(retrying()), for_an_hour(probing(Some(1))));
    let after_sleep = |hours| Now {
        at: at(200),
        slept: SignedDuration::from_hours(hours),
    };
    for (hours, sent, settled) in [(0, "running", "failed"), (1, "unknown", "unknown")] {
        let state = |tool: &Tool, event: &Event| {
            let unknown = unknown(tool);
            let next = next(tool, Some(&unknown), event, after_sleep(hours)).expect("a change");
            next.change.expect("a change").record.state.as_str()
        };
        assert_eq!(state(&retrying, &check_due(2)), sent, "{hours} h");
        let unclear = probed_at(Finding::Unclear("busy".into()), 200);
        let next = next(
            &probing,
            Some(&unknown(&probing)),
            &unclear,
            after_sleep(hours),
        );
        let check = next
            .expect("a change")
            .change
            .expect("a change")
            .record
            .check;
        assert_eq!(
            check.expect("a check").at.is_some(),
            hours == 0,
            "{hours} h"
        );
        let not_found = probed_at(Finding::NotFound, 200);
        assert_eq!(state(&probing, &not_found), settled, "{hours} h");
    }
}
