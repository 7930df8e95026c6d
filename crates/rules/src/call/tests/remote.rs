//! Calls that a server works on as tasks, and calls that a client has asked to cancel.

use super::rest::{change, check_at, check_due, probing, retrying, unknown as unknown_call};
use super::*;
use crate::evidence::McpAnswer;
use crate::mcp::remote::Seen;

/// The server has answered the first attempt with a task.
pub(super) fn given() -> Event {
    Event::TaskGiven {
        attempt: attempt(1),
        id: "t".into(),
    }
}

/// The time of an attempt was over, and its task had not ended.
pub(super) fn task() -> Evidence {
    Evidence::Task {
        id: "t".into(),
        why: "it has not ended in time".into(),
    }
}

pub(super) fn saw(seen: Seen) -> Event {
    Event::TaskSeen {
        by: ME,
        attempt: attempt(1),
        seen,
    }
}

pub(super) fn runs() -> Seen {
    Seen::Runs {
        poll: Duration::from_secs(7),
        asks: None,
    }
}

/// It has ended, with a result or, with another status than 200, with an error.
pub(super) fn ended(status: u16) -> Seen {
    let body = match status {
        200 => r#"{"jsonrpc":"2.0","id":"","result":{"content":[]}}"#,
        _ => r#"{"jsonrpc":"2.0","id":"","error":{"code":-32603,"message":"m"}}"#,
    };
    Seen::Ended(McpAnswer {
        status,
        body: outcome::Body::Whole(body.into()),
        has_session: false,
        names_request: true,
        is_forgotten: false,
    })
}

pub(super) fn cancel_asked() -> Event {
    Event::CancelAsked(By::token("agent", ""))
}

fn task_of(record: &Record) -> Option<&str> {
    record.attempt.remote_task.as_deref()
}

#[test]
fn a_task_is_known_from_the_answer_until_its_end() {
    let tool = tool("t");
    let running = record(&tool, key::Source::Derived, &[(given(), 1)]);
    assert_eq!(
        (&running.state, task_of(&running)),
        (&State::Running, Some("t"))
    );
    let again = next(&tool, Some(&running), &given(), at(2)).expect("legal");
    assert_eq!(
        again,
        Next::unchanged(Action::Wait),
        "it is written already"
    );
    let done = change(&tool, &running, &ended_with(1, answer(200), None), 3);
    assert_eq!(task_of(&done.record), None);
    // A call that is taken for lost is checked by its task, though calls of the tool are held.
    let lost = change(&tool, &running, &Event::OwnerLost { by: ME }, 3).record;
    assert_eq!(
        (lost.state.as_str(), task_of(&lost)),
        ("unknown", Some("t"))
    );
    assert!(check_at(&lost).is_some());
}

#[test]
fn a_task_that_comes_after_the_call_became_unknown_is_checked() {
    let tool = tool("t");
    let lost = record(
        &tool,
        key::Source::Derived,
        &[(Event::OwnerLost { by: ME }, 1)],
    );
    assert_eq!(check_at(&lost), None, "calls of the tool are held");
    for event in [given(), ended_with(1, task(), None)] {
        let noted = change(&tool, &lost, &event, 2);
        assert_eq!(task_of(&noted.record), Some("t"));
        assert!(check_at(&noted.record).is_some());
        assert_eq!(noted.entry.event, "task_given");
    }
}

#[test]
fn a_check_asks_for_the_task_whatever_the_policy_is() {
    for tool in [tool("t"), probing(None), retrying()] {
        let unknown = record(
            &tool,
            key::Source::Derived,
            &[(ended_with(1, task(), Some(2)), 1)],
        );
        assert_eq!(unknown.attempt.number, 1, "nothing is sent beside a task");
        let due = next(&tool, Some(&unknown), &check_due(3), at(60)).expect("due");
        assert_eq!(due.action, Action::AskTask);
        let checked = due.change.expect("a change").record;
        let still = change(&tool, &checked, &saw(runs()), 61).record;
        assert_eq!(
            (still.state.as_str(), task_of(&still)),
            ("unknown", Some("t"))
        );
        assert!(check_at(&still) >= Some(68), "not before the server says");
        let (settled, late) = (resolved(Resolution::Failed), at(500));
        let refused = next(&tool, Some(&still), &settled, late);
        assert_eq!(refused, Err(Illegal::MayStillRun), "its server works on it");
        let found = change(&tool, &checked, &saw(ended(200)), 61).record;
        assert_eq!((found.state.as_str(), task_of(&found)), ("succeeded", None));
    }
}

#[test]
fn a_task_without_an_end_that_proves_anything_is_left_to_the_policy() {
    let (held, sends) = (tool("t"), retrying());
    for seen in [Seen::Gone("it was cancelled"), ended(500)] {
        let lost = |tool: &Tool| {
            let events = [(ended_with(1, task(), None), 1)];
            change(
                tool,
                &record(tool, key::Source::Derived, &events),
                &saw(seen.clone()),
                9,
            )
        };
        let operator = lost(&held).record;
        assert_eq!(
            (operator.state.as_str(), task_of(&operator)),
            ("unknown", None)
        );
        assert_eq!(operator.check, None);
        let again = lost(&sends).record;
        let sent = next(&sends, Some(&again), &check_due(3), at(60)).expect("due");
        assert_eq!(sent.action, Action::Run, "its tool deduplicates");
    }
}

/// The server may have executed the call just before its task was gone.
#[test]
fn not_found_counts_only_as_long_after_a_task_was_gone_as_after_a_lease() {
    let tool = probing(Some(20));
    let events = [(ended_with(1, task(), None), 1)];
    let unknown = record(&tool, key::Source::Derived, &events);
    let gone = saw(Seen::Gone("it was cancelled"));
    let lease_until = |record: &Record| record.attempt.lease_until;
    let at_once = change(&tool, &unknown, &gone, 2).record;
    assert_eq!(
        lease_until(&at_once),
        lease_until(&unknown),
        "the lease itself is not over"
    );
    let left = change(&tool, &unknown, &gone, 500).record;
    assert_eq!(lease_until(&left), at(500));
    for (asked, expected) in [(519, "unknown"), (520, "failed")] {
        let not_found = probed_at(Finding::NotFound, asked);
        let probed = change(&tool, &left, &not_found, asked).record;
        assert_eq!(probed.state.as_str(), expected, "asked at {asked}");
    }
}

#[test]
fn what_a_server_says_of_an_earlier_attempts_task_settles_nothing() {
    let tool = retrying();
    let mut again = unknown_call(&tool);
    again.attempt.id = attempt(2);
    again.attempt.remote_task = Some("t".into());
    let other = next(&tool, Some(&again), &saw(ended(200)), at(9));
    assert_eq!(other, Err(Illegal::NotOwner));
    let other = next(&tool, Some(&again), &given(), at(9));
    assert_eq!(other, Err(Illegal::NotOwner));
}

#[test]
fn after_a_wish_to_cancel_no_attempt_follows() {
    let tool = retrying();
    let running = record(&tool, key::Source::Derived, &[(cancel_asked(), 1)]);
    assert_eq!(running.state, State::Running);
    let asked_twice = next(&tool, Some(&running), &cancel_asked(), at(2)).expect("legal");
    assert_eq!(asked_twice.change, None);
    for evidence in [not_sent(), no_answer()] {
        let ended = change(&tool, &running, &ended_with(1, evidence, Some(2)), 2);
        assert_eq!(ended.entry.event, "ended", "and is not tried again");
    }
    let unknown = change(&tool, &running, &ended_with(1, no_answer(), None), 2).record;
    let due = change(&tool, &unknown, &check_due(3), 60);
    assert_eq!(
        (&*due.entry.event, due.record.state.as_str()),
        ("given_up", "unknown")
    );
    // A call that surely had no effect may run again when its client asks for it.
    let failed = change(&tool, &running, &ended_with(1, not_sent(), None), 2).record;
    let asked = next(
        &tool,
        Some(&failed),
        &arrived(key::Source::Derived, 1, 5),
        at(3),
    );
    let again = asked.expect("legal").change.expect("a change").record;
    assert!(!again.cancel_asked && again.state == State::Running);
}

#[test]
fn a_task_that_comes_after_the_checks_were_given_up_is_asked_for() {
    let tool = retrying();
    let running = record(&tool, key::Source::Derived, &[(cancel_asked(), 1)]);
    let unknown = change(&tool, &running, &ended_with(1, no_answer(), None), 2).record;
    let given_up = change(&tool, &unknown, &check_due(3), 60).record;
    assert_eq!(check_at(&given_up), None);
    let late = change(&tool, &given_up, &ended_with(1, task(), None), 61).record;
    assert!(check_at(&late).is_some());
    let due = next(&tool, Some(&late), &check_due(4), at(3_000)).expect("due");
    assert_eq!(due.action, Action::AskTask);
}

#[test]
fn a_server_that_works_on_its_task_is_asked_for_ever_and_one_that_is_silent_is_given_up() {
    let tool = retrying();
    let unknown = record(
        &tool,
        key::Source::Derived,
        &[(ended_with(1, task(), None), 1)],
    );
    let (soon, late) = (60, 30 * 24 * 3_600);
    for seconds in [soon, late] {
        let asked = change(&tool, &unknown, &check_due(3), seconds).record;
        let still = change(&tool, &asked, &saw(runs()), seconds).record;
        assert!(check_at(&still) >= Some(seconds + 7), "{seconds}");
        let silent = saw(Seen::Unclear("503".into()));
        let silent = change(&tool, &asked, &silent, seconds).record;
        assert_eq!(check_at(&silent).is_some(), seconds == soon, "{seconds}");
        // If an operator has it asked once more and it still works, it is asked again.
        let resumed = change(&tool, &silent, &saw(runs()), seconds).record;
        assert!(check_at(&resumed).is_some());
    }
}

#[test]
fn not_found_settles_no_call_that_its_server_works_on() {
    let tool = probing(Some(5));
    let probed = |tool: Tool| Tool {
        protocol: probed_by("http://127.0.0.1/{key}", None),
        ..tool
    };
    // Such tools take no tasks, unless the configuration was another one.
    for (tool, proves) in [
        (probed(probing(Some(5))), true),
        (probed(retrying()), true),
        (probed(probing(None)), false),
        (retrying(), false),
    ] {
        assert_eq!(unknown::proves_absence(&tool), proves);
    }
    let events = [(ended_with(1, task(), None), 1)];
    let unknown = record(&tool, key::Source::Derived, &events);
    let not_found = probed_at(Finding::NotFound, 5_000);
    let probed = change(&tool, &unknown, &not_found, 5_000).record;
    assert_eq!(
        (probed.state.as_str(), task_of(&probed)),
        ("unknown", Some("t"))
    );
}

#[test]
fn a_call_whose_server_left_the_configuration_can_be_settled() {
    let held = tool("t");
    let events = [(ended_with(1, task(), None), 1)];
    let unknown = record(&held, key::Source::Derived, &events);
    let failed = resolved(Resolution::Failed);
    assert_eq!(
        next(&held, Some(&unknown), &failed, at(500)),
        Err(Illegal::MayStillRun)
    );
    let elsewhere = Tool {
        unknown: OnUnknown::Elsewhere,
        ..tool("t")
    };
    let settled = change(&elsewhere, &unknown, &failed, 500).record;
    assert_eq!(
        (settled.state.as_str(), task_of(&settled)),
        ("failed", None)
    );
}
