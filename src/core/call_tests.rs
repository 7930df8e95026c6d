//! The grid of states and events as one snapshot, and what must hold on every path.

#[path = "call_again_tests.rs"]
mod again;
#[path = "call_rest_tests.rs"]
mod rest;
#[path = "call_similar_tests.rs"]
mod similar;

use uuid::Uuid;

use super::*;
use crate::core::ledger::Position;
use crate::core::outcome::{self, Evidence};
use crate::core::tool::tests::tool;
use crate::core::tool::{Dedup, Mode, OnUnknown, SessionPolicy};
use crate::core::{compensation, key, unknown};
use proptest::prelude::*;

const ME: InstanceId = InstanceId(Uuid::from_u128(0xe));

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

fn attempt(number: u128) -> AttemptId {
    AttemptId(Uuid::from_u128(number))
}

fn intent(source: key::Source, fingerprint: u8) -> Arc<Intent> {
    Arc::new(Intent {
        call_id: CallId(Uuid::from_u128(0xca11)),
        tenant: "shop".into(),
        tool: "t".into(),
        lookup: Lookup::new("shop", "t", "k"),
        names: Vec::new(),
        recipe: crate::core::recipe::RecipeId::default(),
        key: "k".into(),
        key_source: source,
        fingerprint: [fingerprint; 32],
        user_id: String::new(),
        session_id: "S".into(),
        saga_id: String::new(),
        trace_id: String::new(),
        made_by: "agent".into(),
        similar: None,
        args: "{}".into(),
        created_at: at(0),
    })
}

fn arrived(source: key::Source, fingerprint: u8, id: u128) -> Event {
    let intent = intent(source, fingerprint);
    Event::Arrived {
        intent,
        prints: Arc::default(),
        brought: Brought::default(),
        attempt: attempt(id),
        owner: ME,
    }
}

fn answer(status: u16) -> Evidence {
    Evidence::Answer {
        status,
        body: outcome::Body::Whole("{}".into()),
        retry_after: None,
        newest_token: None,
    }
}

fn not_sent() -> Evidence {
    Evidence::NotSent {
        why: "connection refused".into(),
    }
}

fn no_answer() -> Evidence {
    Evidence::NoAnswer {
        why: "timed out".into(),
    }
}

fn ended_with(id: u128, evidence: Evidence, retry: Option<u128>) -> Event {
    let retry = retry.map(|id| Retry {
        attempt: attempt(id),
        jitter: 1.0,
    });
    Event::Ended {
        attempt: attempt(id),
        fencing: None,
        evidence,
        retry,
    }
}

/// A call claimed at second 0 as attempt 1, then moved by these events at the seconds given.
pub(crate) fn record(tool: &Tool, source: key::Source, events: &[(Event, i64)]) -> Record {
    let mut record = moved(tool, None, &arrived(source, 1, 1), 0).expect("a claim");
    for (event, seconds) in events {
        record = moved(tool, Some(&record), event, *seconds).expect("a change");
    }
    record
}

fn moved(tool: &Tool, record: Option<&Record>, event: &Event, seconds: i64) -> Option<Record> {
    next(tool, record, event, at(seconds))
        .ok()?
        .change
        .map(|change| change.record)
}

/// One cell: the action, and the new state if there is one; or the refusal.
fn cell(tool: &Tool, record: Option<&Record>, event: &Event, seconds: i64) -> String {
    match next(tool, record, event, at(seconds)) {
        Err(illegal) => format!("({illegal:?})"),
        Ok(Next {
            change: None,
            action,
        }) => format!("{action:?}"),
        Ok(Next {
            change: Some(change),
            action,
        }) => {
            let replaces = matches!(action, Action::Claim { .. });
            let before = record.filter(|_| !replaces);
            let version = before.map_or(0, |record| record.version);
            assert_eq!(
                (change.record.version, change.record.updated_at),
                (version + 1, at(seconds)),
                "{event:?}"
            );
            let action = match action {
                Action::Claim { instead_of: None } => "Claim".to_owned(),
                Action::Claim {
                    instead_of: Some(_),
                } => "Claim instead".to_owned(),
                Action::Retry { after } => format!("Retry in {after:?}"),
                action => format!("{action:?}"),
            };
            format!("{action} -> {}", change.record.state.as_str())
        }
    }
}

fn store_lost() -> Event {
    Event::StoreLost {
        by: "ops".into(),
        reason: "an older snapshot".into(),
    }
}

fn unlocked() -> Event {
    Event::Unlocked {
        by: "ops".into(),
        reason: "it hangs".into(),
        fencing: None,
    }
}

fn kept() -> Content {
    Content::Kept("{}".into())
}

fn found() -> Finding {
    Finding::Found(kept())
}

fn probed(finding: Finding) -> Event {
    probed_at(finding, i64::MAX)
}

/// Asked at this second, if that is not later than when it is heard.
fn probed_at(finding: Finding, seconds: i64) -> Event {
    let asked_at = Timestamp::from_second(1_800_000_000_i64.saturating_add(seconds));
    Event::Probed {
        by: ME,
        asked_at: asked_at.unwrap_or(Timestamp::MAX),
        finding,
        retry_after: None,
    }
}

fn hindered(hindrance: Hindrance) -> Event {
    Event::CheckHindered { by: ME, hindrance }
}

fn resolved(resolution: Resolution) -> Event {
    Event::Resolved {
        by: "ops".into(),
        reason: "looked it up".into(),
        resolution,
    }
}

fn to_verify() -> Event {
    Event::ToVerify {
        by: "ops".into(),
        by_person: false,
    }
}

/// A request with another key looks like the call.
fn resembled(fingerprint: u8) -> Event {
    let intent = Intent {
        lookup: Lookup::new("shop", "t", "k2"),
        ..(*intent(key::Source::Derived, fingerprint)).clone()
    };
    Event::Resembled {
        intent: Arc::new(intent),
        instead_of: Vec::new(),
        by: ME,
    }
}

fn verified() -> Event {
    Event::Verified {
        by: "ops".into(),
        fresh: Fresh::Compared(vec!["/a".into()]),
    }
}

fn cancel(undoes_unknown: bool) -> compensation::Policy {
    compensation::Policy::By(compensation::Template {
        tool: "cancel".into(),
        args: Vec::new(),
        undoes_unknown,
    })
}

fn to_compensate() -> Event {
    let compensation = Some(Compensation {
        tool: "cancel".into(),
        call_id: CallId(Uuid::from_u128(0xcace1)),
    });
    Event::ToCompensate {
        by: "gateway".into(),
        reason: "aborted".into(),
        compensation,
    }
}

fn not_joined(kind: FailureKind) -> Event {
    Event::NotJoined {
        by: ME,
        attempt: attempt(1),
        kind,
        why: "it is aborted".into(),
    }
}

fn undo_ended(end: UndoEnd) -> Event {
    Event::UndoEnded { by: ME, end }
}

fn is_stuck() -> Event {
    undo_ended(UndoEnd::Stuck("cancel says no".into()))
}

fn skipped(compensation: Option<&Record>) -> Event {
    let compensation = compensation.cloned().map(Box::new);
    Event::Skipped {
        by: "ops".into(),
        reason: "it stays".into(),
        compensation,
    }
}

/// A call that has succeeded with this result.
pub(crate) fn succeeded(result: &'static str) -> Record {
    let body = outcome::Body::Whole(result.into());
    let evidence = Evidence::Answer {
        status: 200,
        body,
        retry_after: None,
        newest_token: None,
    };
    record(
        &tool("t"),
        key::Source::Derived,
        &[(ended_with(1, evidence, None), 1)],
    )
}

/// A call that was not sent.
pub(crate) fn failed() -> State {
    record(
        &tool("t"),
        key::Source::Derived,
        &[(ended_with(1, not_sent(), None), 1)],
    )
    .state
}

#[test]
fn what_is_undone_is_kept_until_it_is_and_its_key_is_never_free_meanwhile() {
    let tool = Tool {
        compensation: cancel(false),
        ..tool("t")
    };
    let done = (ended_with(1, answer(200), None), 1);
    let undoing = record(
        &tool,
        key::Source::Derived,
        &[done.clone(), (to_compensate(), 2)],
    );
    assert_eq!((undoing.expires_at, undoing.retain_until), (None, None));
    let again = |record: &Record, seconds| {
        cell(
            &tool,
            Some(record),
            &arrived(key::Source::Derived, 1, 2),
            seconds,
        )
    };
    assert_eq!(again(&undoing, 99 * 24 * 3_600), "Answer");
    let undone = moved(&tool, Some(&undoing), &undo_ended(UndoEnd::Undone), 3).expect("undone");
    assert!(undone.expires_at.is_some() && undone.retain_until.is_some());
    assert_eq!(again(&undone, 4), "Answer", "and not run again");
    let mut in_saga = record(&tool, key::Source::Derived, &[]);
    Arc::make_mut(&mut in_saga.intent).saga_id = "G".into();
    let done = moved(&tool, Some(&in_saga), &done.0, 1).expect("done");
    assert_eq!(
        done.retain_until, None,
        "its saga may still have to undo it"
    );
    let ended = moved(&tool, Some(&done), &Event::SagaEnded { by: ME }, 2).expect("let go");
    assert!(ended.retain_until.is_some());
    let mut compensation = record(&tool, key::Source::Compensation, &[]);
    Arc::make_mut(&mut compensation.intent).saga_id = "G".into();
    let done = moved(
        &tool,
        Some(&compensation),
        &ended_with(1, answer(200), None),
        1,
    )
    .expect("done");
    assert_eq!((done.expires_at, done.retain_until), (None, None));
}

#[test]
fn what_undoes_a_call_may_be_sent_with_other_arguments_as_long_as_it_surely_was_not_executed() {
    let tool = tool("t");
    let source = key::Source::Compensation;
    let mended = |id: u128| {
        let intent = Arc::new(Intent {
            args: "{\"mended\":1}".into(),
            ..(*intent(source, 2)).clone()
        });
        Event::Arrived {
            intent,
            prints: Arc::default(),
            brought: Brought::default(),
            attempt: attempt(id),
            owner: ME,
        }
    };
    let running = record(&tool, source, &[]);
    let failed =
        moved(&tool, Some(&running), &ended_with(1, answer(422), None), 1).expect("failed");
    let again = moved(&tool, Some(&failed), &mended(2), 2).expect("it runs again");
    assert_eq!(
        (again.state.as_str(), &again.intent.args[..]),
        ("running", &b"{\"mended\":1}"[..])
    );
    assert_eq!(
        (again.intent.fingerprint, again.intent.call_id),
        ([2; 32], failed.intent.call_id)
    );
    assert_eq!(Position::of(&again), Position::of(&failed));
    for ended in [answer(200), no_answer()] {
        let ended = moved(&tool, Some(&running), &ended_with(1, ended, None), 1).expect("ended");
        for there in [&running, &ended] {
            let next =
                next(&tool, Some(there), &mended(2), at(2)).expect("an arrival is never illegal");
            assert_eq!(
                (next.change, next.action),
                (None, Action::RefuseReused),
                "{}",
                there.state.as_str()
            );
        }
    }
    let of_a_caller = record(
        &tool,
        key::Source::Runtime,
        &[(ended_with(1, answer(422), None), 1)],
    );
    let next =
        next(&tool, Some(&of_a_caller), &mended(2), at(2)).expect("an arrival is never illegal");
    assert_eq!(next.action, Action::RefuseReused);
}

#[test]
fn a_call_is_not_skipped_while_what_undoes_it_may_still_run() {
    let (tool, source) = (tool("t"), key::Source::Compensation);
    let undone = moved(&tool, Some(&succeeded("{}")), &to_compensate(), 2).expect("to be undone");
    let stuck = moved(&tool, Some(&undone), &is_stuck(), 3).expect("stuck");
    let made = record(&tool, source, &[]);
    let ended =
        |evidence| moved(&tool, Some(&made), &ended_with(1, evidence, None), 4).expect("ended");
    let (unknown, failed, done) = (ended(no_answer()), ended(answer(422)), ended(answer(200)));
    let lease_s = i64::try_from(tool.lease().as_secs()).expect("small");
    for (record, made, seconds, expected) in [
        (&undone, None, 5, "Finish -> succeeded"),
        (&undone, Some(&failed), 5, "Finish -> succeeded"),
        (&undone, Some(&made), lease_s + 1, "(BeingUndone)"),
        (&stuck, Some(&made), 5, "(BeingUndone)"),
        (&undone, Some(&unknown), lease_s - 1, "(BeingUndone)"),
        (&undone, Some(&unknown), lease_s, "Finish -> succeeded"),
        (&undone, Some(&done), 5, "(NothingToUndo)"),
    ] {
        assert_eq!(
            cell(&tool, Some(record), &skipped(made), seconds),
            expected,
            "{made:?}"
        );
    }
}

#[test]
fn an_unknown_call_is_undone_only_if_that_is_safe_and_its_request_cannot_come_any_more() {
    for (undoes_unknown, seconds, expected) in [
        (false, 99, "(StillUnknown)"),
        (true, 39, "(MayStillRun)"),
        (true, 40, "Finish -> compensating"),
    ] {
        let tool = Tool {
            compensation: cancel(undoes_unknown),
            ..tool("t")
        };
        let unknown = record(
            &tool,
            key::Source::Derived,
            &[(ended_with(1, no_answer(), None), 1)],
        );
        assert_eq!(
            cell(&tool, Some(&unknown), &to_compensate(), seconds),
            expected
        );
    }
}

#[test]
fn a_call_of_a_closed_saga_never_runs_again() {
    let tool = tool("t");
    let running = record(&tool, key::Source::Runtime, &[]);
    let closed = moved(
        &tool,
        Some(&running),
        &not_joined(FailureKind::SagaClosed),
        1,
    )
    .expect("closed");
    assert_eq!(
        cell(
            &tool,
            Some(&closed),
            &arrived(key::Source::Runtime, 1, 2),
            2
        ),
        "Answer"
    );
    assert!(closed.retain_until.is_some(), "nobody lets it go later");
}

#[test]
fn the_whole_grid() {
    use key::Source::{Derived, Runtime};
    let write = tool("t");
    let read = Tool {
        effect: Effect::Read,
        ..tool("t")
    };
    let remembers = Tool {
        remember_rejections: true,
        ..tool("t")
    };
    let probe = OnUnknown::Probe {
        negative_final_after: Some(Duration::from_secs(5)),
    };
    let probes = Tool {
        unknown: probe,
        ..tool("t")
    };
    let retries = Tool {
        unknown: OnUnknown::Retry,
        dedup: Dedup::Key,
        ..tool("t")
    };
    let elsewhere = Tool {
        unknown: OnUnknown::Elsewhere,
        ..tool("t")
    };
    let undoes = Tool {
        compensation: cancel(true),
        ..tool("t")
    };
    let undone = (to_compensate(), 2);
    let sent_again = (
        Event::CheckDue {
            by: ME,
            attempt: Some(attempt(1)),
        },
        4,
    );
    let finished = |evidence: Evidence| (ended_with(1, evidence, None), 1);
    let (hour, day, month) = (3_600, 24 * 3_600, 31 * 24 * 3_600);

    let records: Vec<(&str, &Tool, Option<Record>, i64)> = vec![
        ("absent", &write, None, 2),
        ("running", &write, Some(record(&write, Derived, &[])), 2),
        (
            "running, at its deadline",
            &write,
            Some(record(&write, Derived, &[])),
            30,
        ),
        (
            "running, lease over",
            &write,
            Some(record(&write, Derived, &[])),
            40,
        ),
        (
            "running, a read",
            &read,
            Some(record(&read, Derived, &[])),
            40,
        ),
        (
            "succeeded",
            &write,
            Some(record(&write, Derived, &[finished(answer(200))])),
            2,
        ),
        (
            "succeeded, window over",
            &write,
            Some(record(&write, Derived, &[finished(answer(200))])),
            hour + 1,
        ),
        (
            "succeeded, a read",
            &read,
            Some(record(&read, Derived, &[finished(answer(200))])),
            2,
        ),
        (
            "succeeded, runtime key",
            &write,
            Some(record(&write, Runtime, &[finished(answer(200))])),
            day,
        ),
        (
            "same, window over",
            &write,
            Some(record(&write, Runtime, &[finished(answer(200))])),
            day + 1,
        ),
        (
            "same, retention over",
            &write,
            Some(record(&write, Runtime, &[finished(answer(200))])),
            month,
        ),
        (
            "failed, unreachable",
            &write,
            Some(record(&write, Derived, &[finished(not_sent())])),
            2,
        ),
        (
            "same, window over",
            &write,
            Some(record(&write, Derived, &[finished(not_sent())])),
            hour + 2,
        ),
        (
            "same, a rerun's, too",
            &write,
            Some(record(&write, Derived, &[finished(not_sent())])),
            3 * hour,
        ),
        (
            "failed, a read",
            &read,
            Some(record(&read, Derived, &[finished(not_sent())])),
            1,
        ),
        (
            "failed, rejected",
            &write,
            Some(record(&write, Derived, &[finished(answer(422))])),
            2,
        ),
        (
            "same, remembered",
            &remembers,
            Some(record(&remembers, Derived, &[finished(answer(422))])),
            2,
        ),
        (
            "unknown",
            &write,
            Some(record(&write, Derived, &[finished(no_answer())])),
            2,
        ),
        (
            "unknown, probed",
            &probes,
            Some(record(&probes, Derived, &[finished(no_answer())])),
            4,
        ),
        (
            "same, lease over",
            &probes,
            Some(record(&probes, Derived, &[finished(no_answer())])),
            60,
        ),
        (
            "same, given up",
            &probes,
            Some(record(&probes, Derived, &[finished(no_answer())])),
            2 * hour,
        ),
        (
            "unknown, deduplicates",
            &retries,
            Some(record(&retries, Derived, &[finished(no_answer())])),
            4,
        ),
        (
            "same, running again",
            &retries,
            Some(record(
                &retries,
                Derived,
                &[finished(no_answer()), sent_again],
            )),
            5,
        ),
        (
            "unknown, nobody here knows its tool",
            &elsewhere,
            Some(record(&elsewhere, Derived, &[finished(no_answer())])),
            4,
        ),
        (
            "compensating",
            &undoes,
            Some(record(
                &undoes,
                Derived,
                &[finished(answer(200)), undone.clone()],
            )),
            4,
        ),
        (
            "compensated",
            &undoes,
            Some(record(
                &undoes,
                Derived,
                &[
                    finished(answer(200)),
                    undone.clone(),
                    (undo_ended(UndoEnd::Undone), 3),
                ],
            )),
            4,
        ),
        (
            "stuck",
            &undoes,
            Some(record(
                &undoes,
                Derived,
                &[finished(answer(200)), undone.clone(), (is_stuck(), 3)],
            )),
            4,
        ),
        (
            "compensated, never ran",
            &undoes,
            Some(record(
                &undoes,
                Derived,
                &[finished(not_sent()), undone.clone()],
            )),
            4,
        ),
        (
            "unknown, may be undone",
            &undoes,
            Some(record(&undoes, Derived, &[finished(no_answer())])),
            40,
        ),
        (
            "compensating, was unknown",
            &undoes,
            Some(record(
                &undoes,
                Derived,
                &[finished(no_answer()), (undone.0.clone(), 40)],
            )),
            41,
        ),
        (
            "unknown, years later",
            &write,
            Some(record(&write, Derived, &[finished(no_answer())])),
            99 * month,
        ),
    ];
    let events: Vec<(&str, Event)> = vec![
        ("saga closed", not_joined(FailureKind::SagaClosed)),
        ("to compensate", to_compensate()),
        ("undone", undo_ended(UndoEnd::Undone)),
        ("cannot be undone", is_stuck()),
        ("skipped", skipped(None)),
        ("saga ended", Event::SagaEnded { by: ME }),
        ("arrived", arrived(Derived, 1, 2)),
        ("arrived, other fingerprint", arrived(Derived, 2, 2)),
        ("ended: executed", ended_with(1, answer(200), Some(2))),
        ("ended: rejected", ended_with(1, answer(422), Some(2))),
        ("ended: not sent", ended_with(1, not_sent(), Some(2))),
        ("ended: not sent, no retry", ended_with(1, not_sent(), None)),
        ("ended: unavailable", ended_with(1, answer(429), Some(2))),
        ("ended: no answer", ended_with(1, no_answer(), Some(2))),
        ("ended: 502", ended_with(1, answer(502), Some(2))),
        (
            "ended: another attempt",
            ended_with(9, answer(200), Some(2)),
        ),
        ("lease over", Event::LeaseOver { by: ME }),
        ("owner lost", Event::OwnerLost { by: ME }),
        ("store lost", store_lost()),
        ("unlocked", unlocked()),
        (
            "check due",
            Event::CheckDue {
                by: ME,
                attempt: Some(attempt(3)),
            },
        ),
        (
            "check due, paused",
            Event::CheckDue {
                by: ME,
                attempt: None,
            },
        ),
        ("check hindered", hindered(Hindrance::Frozen)),
        ("check missing", Event::CheckMissing { by: ME }),
        ("probed: found", probed(found())),
        ("probed: not found", probed(Finding::NotFound)),
        ("probed: unclear", probed(Finding::Unclear("503".into()))),
        (
            "resolved: succeeded",
            resolved(Resolution::Succeeded(kept())),
        ),
        ("resolved: failed", resolved(Resolution::Failed)),
        (
            "reconciled",
            Event::Reconciled {
                by: "orders".into(),
                content: kept(),
            },
        ),
        ("to verify", to_verify()),
        ("verified", verified()),
        ("resembled", resembled(2)),
    ];
    let mut grid = String::new();
    for (state, tool, record, seconds) in &records {
        grid += &format!("{state}\n");
        for (name, event) in &events {
            grid += &format!(
                "  {name:<27}{}\n",
                cell(tool, record.as_ref(), event, *seconds)
            );
        }
    }
    insta::assert_snapshot!("grid", grid);
}

#[test]
fn a_retry_waits_no_longer_than_the_deadline_allows() {
    let tool = tool("t");
    let mut running = record(&tool, key::Source::Derived, &[]);
    let slow = Evidence::Answer {
        status: 429,
        body: outcome::Body::Whole("{}".into()),
        retry_after: Some(Duration::from_secs(20)),
        newest_token: None,
    };
    let event = ended_with(1, slow, Some(2));
    assert_eq!(
        cell(&tool, Some(&running), &event, 9),
        "Retry in 20s -> running"
    );
    assert_eq!(cell(&tool, Some(&running), &event, 10), "Finish -> failed");
    running.attempt.number = tool.retry.attempts;
    assert_eq!(
        cell(&tool, Some(&running), &event, 1),
        "Finish -> failed",
        "attempts are bounded"
    );
}

#[test]
fn a_zombie_with_an_old_token_is_refused() {
    let tool = tool("t");
    let mut running = record(&tool, key::Source::Derived, &[]);
    running.fencing = Some(8);
    let old = Event::Ended {
        attempt: attempt(1),
        fencing: Some(7),
        evidence: answer(200),
        retry: None,
    };
    assert_eq!(
        next(&tool, Some(&running), &old, at(1)),
        Err(Illegal::NotOwner)
    );
}

#[test]
fn only_the_run_that_has_lost_its_lock_is_told_of_it() {
    let tool = tool("t");
    let mut running = record(&tool, key::Source::Derived, &[]);
    running.fencing = Some(8);
    let told = next(&tool, Some(&running), &unlocked(), at(1));
    assert_eq!(told, Err(Illegal::NotOwner));
    running.fencing = None;
    assert!(next(&tool, Some(&running), &unlocked(), at(1)).is_ok());
}

#[test]
fn a_session_is_given_free_when_the_outcome_is_known_and_else_when_the_lease_ends() {
    let exclusive = Tool {
        session: SessionPolicy {
            mode: Mode::Exclusive,
            ..Default::default()
        },
        ..tool("t")
    };
    let running = record(&exclusive, key::Source::Derived, &[]);
    let free_from = |tool: &Tool, record: &Record, event: &Event| {
        let next = next(tool, Some(record), event, at(3)).expect("a change");
        next.change.expect("a change").release.lock_from
    };
    let lease_end = Some(running.attempt.lease_until);
    for evidence in [answer(200), answer(422), not_sent()] {
        assert_eq!(
            free_from(&exclusive, &running, &ended_with(1, evidence, None)),
            Some(at(3))
        );
    }
    for event in [
        ended_with(1, no_answer(), None),
        Event::OwnerLost { by: ME },
    ] {
        assert_eq!(
            free_from(&exclusive, &running, &event),
            lease_end,
            "{event:?}"
        );
    }
    let lease_from_now = Some(at(3 + 40));
    assert_eq!(
        free_from(&exclusive, &running, &store_lost()),
        lease_from_now,
        "a later run may be there"
    );
    let retried = ended_with(1, not_sent(), Some(2));
    assert_eq!(
        free_from(&exclusive, &running, &retried),
        None,
        "it goes on"
    );
    let unknown = moved(
        &exclusive,
        Some(&running),
        &ended_with(1, no_answer(), None),
        1,
    )
    .expect("unknown");
    assert_eq!(
        free_from(&exclusive, &unknown, &ended_with(1, answer(200), None)),
        Some(at(3))
    );
    assert_eq!(free_from(&exclusive, &unknown, &unlocked()), Some(at(3)));
    assert_eq!(
        free_from(&tool("t"), &running, &ended_with(1, answer(200), None)),
        None,
        "it never had it"
    );
}

#[test]
fn not_found_proves_nothing_before_the_lease_and_the_operators_time_are_over() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let tool = |negative_final_after, dedup| {
        let unknown = OnUnknown::Probe {
            negative_final_after,
        };
        Tool {
            unknown,
            dedup,
            ..tool("t")
        }
    };
    for (tool, final_after) in [
        (tool(seconds(5), Dedup::None), Some(5)),
        (tool(seconds(5), Dedup::Key), Some(0)),
        (tool(None, Dedup::Key), Some(0)),
        (tool(None, Dedup::None), None),
    ] {
        let unknown = record(
            &tool,
            key::Source::Derived,
            &[(ended_with(1, no_answer(), None), 1)],
        );
        let lease_end = unknown.attempt.lease_until.as_second() - at(0).as_second();
        let found_nothing = |at| cell(&tool, Some(&unknown), &probed(Finding::NotFound), at);
        let last = lease_end + final_after.unwrap_or(1_000_000);
        assert_eq!(found_nothing(last - 1), "Finish -> unknown");
        assert_eq!(
            found_nothing(last) == "Finish -> failed",
            final_after.is_some()
        );
        let asked_early = probed_at(Finding::NotFound, last - 1);
        assert_eq!(
            cell(&tool, Some(&unknown), &asked_early, last + 9),
            "Finish -> unknown",
            "a late answer"
        );
    }
}

#[test]
fn a_clock_set_back_does_no_harm() {
    let tool = tool("t");
    let running = record(&tool, key::Source::Derived, &[]);
    let done = moved(
        &tool,
        Some(&running),
        &ended_with(1, answer(200), None),
        -3600,
    )
    .expect("done");
    assert_eq!(done.latency_ms, Some(0));
}

/// Any event that may reach a call; attempts 1..4, so that owners and zombies both occur.
fn any_event() -> impl Strategy<Value = Event> {
    let evidence = prop_oneof![
        Just(not_sent()),
        Just(no_answer()),
        prop_oneof![Just(200_u16), Just(422), Just(429), Just(409), 200..600_u16].prop_map(answer),
    ];
    let source = prop_oneof![Just(key::Source::Runtime), Just(key::Source::Derived)];
    prop_oneof![
        3 => (source, 1..3_u8, 1..4_u128).prop_map(|(source, print, id)| arrived(source, print, id)),
        4 => (1..4_u128, evidence, prop::option::of(1..4_u128)).prop_map(|(id, evidence, retry)| ended_with(id, evidence, retry)),
        1 => Just(Event::LeaseOver { by: ME }),
        1 => Just(Event::OwnerLost { by: ME }),
        1 => Just(store_lost()),
        1 => Just(unlocked()),
        2 => Just(to_compensate()),
        1 => Just(undo_ended(UndoEnd::Undone)),
        1 => Just(is_stuck()),
        1 => Just(skipped(None)),
        1 => Just(Event::SagaEnded { by: ME }),
        2 => (1..4_u128).prop_map(|id| Event::CheckDue { by: ME, attempt: Some(attempt(id)) }),
        1 => Just(Event::CheckDue { by: ME, attempt: None }),
        1 => prop_oneof![Just(Hindrance::Frozen), Just(Hindrance::KeyGone)].prop_map(hindered),
        1 => Just(Event::CheckMissing { by: ME }),
        1 => prop_oneof![Just(found()), Just(Finding::NotFound), Just(Finding::Unclear("?".into()))].prop_map(probed),
        1 => prop_oneof![Just(Resolution::Succeeded(kept())), Just(Resolution::Failed)].prop_map(resolved),
        1 => prop_oneof![Just(to_verify()), Just(verified())],
        1 => (1..3_u8).prop_map(resembled),
    ]
}

/// The policies that a configuration allows.
fn any_policy() -> impl Strategy<Value = (OnUnknown, Dedup)> {
    let probe = OnUnknown::Probe {
        negative_final_after: None,
    };
    prop_oneof![
        Just((OnUnknown::Hold, Dedup::None)),
        Just((probe, Dedup::None)),
        Just((probe, Dedup::Key)),
        Just((OnUnknown::Retry, Dedup::Key)),
    ]
}

proptest! {
    // 1,024, unless `PROPTEST_CASES` says otherwise.
    #![proptest_config(ProptestConfig::with_cases(4 * ProptestConfig::default().cases))]

    /// Random lives of a call, with the promise checked at each step.
    #[test]
    fn whatever_happens_the_promise_holds(
        // Some at once, so that there is time for a retry; some after hours, so that windows end.
        steps in prop::collection::vec((any_event(), prop_oneof![0..4_i64, 0..50_000_i64]), 1..60),
        read: bool,
        remember_rejections: bool,
        policy in any_policy(),
        undoes_unknown: bool,
    ) {
        let effect = if read { Effect::Read } else { Effect::Write };
        let (unknown, dedup) = policy;
        let compensation = cancel(undoes_unknown);
        let tool = Tool { effect, remember_rejections, unknown, dedup, compensation, ..tool("t") };
        let sends_again = unknown == OnUnknown::Retry;
        let mut record: Option<Record> = None;
        let mut seconds = 0;
        for (event, pause) in steps {
            seconds += pause;
            let Ok(Next { change, action }) = next(&tool, record.as_ref(), &event, at(seconds)) else { continue };
            let dispatches = matches!(action, Action::Claim { .. } | Action::Run | Action::Retry { .. });
            let before = record.as_ref();
            let writes = dispatches || matches!(action, Action::Finish | Action::Probe | Action::Verify | Action::Alarm | Action::TakeNames);
            prop_assert_eq!(change.is_some(), writes);
            if action == Action::Verify {
                prop_assert!(read || dedup == Dedup::Key, "sent again to a tool that executes it again");
            }
            if let (Action::Alarm, Some(before), Some(change)) = (&action, before, &change) {
                prop_assert_eq!(&before.state, &change.record.state, "too late to change anything");
                prop_assert!(!read && !matches!(before.state, State::Unknown(_)));
            }
            if dispatches {
                // Nothing runs beside a running attempt, and nothing runs again that may have been executed.
                match before.map(|record| &record.state) {
                    None | Some(State::Failed(_)) => {}
                    Some(State::Running) => {
                        let surely_not = matches!(
                            &event,
                            Event::Ended { evidence: Evidence::NotSent { .. } | Evidence::Answer { status: 425 | 429, .. }, .. }
                        );
                        prop_assert!(surely_not || read || sends_again, "retried after {:?}", event);
                    }
                    Some(State::Compensating(_) | State::Stuck(_)) => {
                        prop_assert!(false, "what is being undone was dispatched");
                    }
                    Some(State::Succeeded(_) | State::Compensated(_)) => {
                        let anew = matches!(action, Action::Claim { instead_of: Some(_) });
                        prop_assert!(anew, "a success was dispatched again");
                    }
                    Some(State::Unknown(_)) => prop_assert!(sends_again, "an unknown call was dispatched"),
                }
            }
            if let (Some(before), Some(change)) = (before, &change) {
                let anew = matches!(action, Action::Claim { .. });
                prop_assert_eq!(change.record.version, if anew { 1 } else { before.version + 1 });
                if matches!(before.state, State::Unknown(_)) && before.state != change.record.state {
                    // Unknown is left only by an answer to the attempt that left the doubt.
                    let is_proof = match &event {
                        Event::Ended { attempt, .. } => {
                            let is_done = matches!(change.record.state, State::Succeeded(_));
                            *attempt == before.attempt.id || is_done
                        }
                        Event::Probed { finding: Finding::Found(_), .. } | Event::Resolved { .. } | Event::Reconciled { .. } => true,
                        Event::Probed { finding: Finding::NotFound, .. } => dedup == Dedup::Key,
                        Event::CheckDue { .. } => sends_again && change.record.state == State::Running,
                        Event::ToCompensate { .. } => undoes_unknown && before.attempt.lease_until <= at(seconds),
                        _ => false,
                    };
                    let is_held = matches!(change.record.state, State::Unknown(_));
                    prop_assert!(is_proof || is_held, "left unknown by {:?}", event);
                }
                if matches!(action, Action::Claim { .. }) {
                    prop_assert!(before.expires_at.is_some_and(|end| end <= at(seconds)), "a key was freed early");
                }
            }
            if let Some(change) = change {
                let done = matches!(
                    change.record.state,
                    State::Succeeded(_) | State::Failed(_) | State::Compensated(_)
                );
                prop_assert_eq!(change.record.expires_at.is_some(), done, "only what is done expires");
                prop_assert_eq!(change.record.retain_until.is_some(), done, "only what is done is deleted");
                prop_assert!(!(read && matches!(change.record.state, State::Unknown(_))));
                let has_check = change.record.check.is_some_and(|check| check.at.is_some());
                prop_assert!(!has_check || (unknown != OnUnknown::Hold && !done), "worked on for nothing");
                prop_assert!(change.record.attempt.number <= tool.retry.attempts);
                prop_assert!(change.record.attempt.lease_until >= at(seconds) || !dispatches);
                record = Some(change.record);
            }
        }
    }
}
