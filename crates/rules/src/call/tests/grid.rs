//! The grid of states and events as one snapshot.

use super::*;

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
    let probes = Tool {
        unknown: OnUnknown::Probe,
        negative_final_after: Some(Duration::from_secs(5)),
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
            "unknown, its tool is not known here",
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
            "running as a task",
            &write,
            Some(record(&write, Derived, &[(remote::given(), 1)])),
            2,
        ),
        (
            "unknown, a task",
            &write,
            Some(record(&write, Derived, &[finished(remote::task())])),
            4,
        ),
        (
            "same, deduplicates",
            &retries,
            Some(record(&retries, Derived, &[finished(remote::task())])),
            4,
        ),
        (
            "unknown, deduplicates, cancel asked",
            &retries,
            Some(record(
                &retries,
                Derived,
                &[finished(no_answer()), (remote::cancel_asked(), 2)],
            )),
            4,
        ),
        ("proposed", &write, Some(approve::proposed()), 2),
        (
            "proposed, its time is over",
            &write,
            Some(approve::proposed()),
            hour,
        ),
        ("approved", &write, Some(approve::approved()), 20),
        (
            "approved, no longer good",
            &write,
            Some(approve::approved()),
            310,
        ),
        (
            "approved, all its times are over",
            &write,
            Some(approve::approved()),
            hour,
        ),
        (
            "succeeded, erased",
            &write,
            Some(record(
                &write,
                Derived,
                &[finished(answer(200)), (erased(), 2)],
            )),
            3,
        ),
        (
            "failed, erased",
            &write,
            Some(record(
                &write,
                Derived,
                &[finished(not_sent()), (erased(), 2)],
            )),
            3,
        ),
        (
            "rejected and remembered, erased",
            &remembers,
            Some(record(
                &remembers,
                Derived,
                &[finished(answer(422)), (erased(), 2)],
            )),
            3,
        ),
        (
            "compensated, erased",
            &undoes,
            Some(record(
                &undoes,
                Derived,
                &[
                    finished(answer(200)),
                    undone.clone(),
                    (undo_ended(UndoEnd::Undone), 3),
                    (erased(), 4),
                ],
            )),
            5,
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
        ("erased", erased()),
        ("bodies over", Event::BodiesOver { by: ME }),
        (
            "retention changed",
            Event::RetentionChanged {
                by: By::token("ops", ""),
            },
        ),
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
        ("check postponed", postponed(CheckBlocker::Frozen)),
        ("check missing", Event::CheckMissing { by: ME }),
        ("probe asked", probe_asked()),
        ("probed: found", probed(found())),
        ("probed: not found", probed(Finding::NotFound)),
        ("probed: unclear", probed(Finding::Unclear("503".into()))),
        (
            "resolved: succeeded",
            resolved(Resolution::Succeeded(stored())),
        ),
        ("resolved: failed", resolved(Resolution::Failed)),
        (
            "reconciled",
            Event::Reconciled {
                by: "orders".into(),
                content: stored(),
            },
        ),
        ("to verify", to_verify()),
        ("verified", verified()),
        ("resembled", resembled(2)),
        ("adopted", adopt::adopts(1)),
        ("effect to undo", Event::EffectToUndo(By::new("books", "r"))),
        ("asked", approve::asked(1, approve::ask(1, &[]))),
        (
            "asked, other fingerprint",
            approve::asked(2, approve::ask(1, &[])),
        ),
        ("approves", approve::approves("bob", 2, 2, approve::BOUND)),
        (
            "approves, seen otherwise",
            approve::approves("bob", 2, 3, approve::BOUND),
        ),
        (
            "approves, its maker",
            approve::approves("agent", 2, 2, approve::BOUND),
        ),
        ("declines", approve::declined("bob")),
        ("withdrawn", Event::Withdrawn(By::token("agent", "r"))),
        ("proposal due", Event::ProposalDue { by: ME }),
        ("begun", approve::begun(approve::BOUND)),
        ("begun, another request", approve::begun([8; 32])),
        (
            "voided",
            Event::Voided {
                by: ME,
                similar: CallId(Uuid::from_u128(9)),
            },
        ),
        ("outdated", Event::Outdated { by: ME }),
        ("task given", remote::given()),
        ("ended: task", ended_with(1, remote::task(), Some(2))),
        ("task runs", remote::saw(remote::runs())),
        ("task ended: executed", remote::saw(remote::ended(200))),
        ("task ended: unknown", remote::saw(remote::ended(500))),
        ("task gone", remote::saw(Seen::Gone("it is gone"))),
        ("task unclear", remote::saw(Seen::Unclear("503".into()))),
        ("cancel asked", remote::cancel_asked()),
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
