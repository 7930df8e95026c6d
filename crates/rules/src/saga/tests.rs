//! Properties of every saga, whatever its events.

mod plans;

use uuid::Uuid;

use super::*;
use crate::record::CallId;
use crate::retry;
use crate::work::Blocker;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

fn id() -> SagaId {
    SagaId {
        tenant: "shop".into(),
        id: "G".into(),
    }
}

fn by() -> String {
    "token ops".into()
}

fn complete() -> Event {
    Event::Complete(By::token("ops", "done"))
}

fn abort() -> Event {
    Event::Abort {
        by: By::token("ops", "sold out"),
        after_loss: false,
    }
}

fn blocked(blocker: Blocker) -> Event {
    let trouble = Trouble {
        call_id: Some(CallId(Uuid::from_u128(1))),
        why: "no".into(),
    };
    Event::Blocked {
        by: by(),
        trouble,
        blocker,
        jitter: 1.0,
    }
}

fn moved(saga: &Saga, event: &Event, seconds: i64) -> Saga {
    next(saga, event, &Policy::default(), at(seconds)).expect("a change")
}

/// A saga in each of its states.
fn sagas() -> Vec<(&'static str, Saga)> {
    let open = Saga::begin(id(), &Policy::default(), at(0));
    let compensating = moved(&open, &abort(), 1);
    let stuck = moved(&compensating, &blocked(Blocker::Final), 2);
    let notified = moved(&stuck, &Event::Notified { delivered: true }, 2);
    let at_rest = moved(&compensating, &Event::Rested, 2);
    let hopeful = Saga {
        phase: Phase::Stuck {
            at_rest: true,
            is_transient: true,
        },
        ..stuck.clone()
    };
    let compensated = moved(&compensating, &Event::Undone { by: by() }, 2);
    let single = Saga::undo(
        "shop",
        CallId(Uuid::from_u128(7)),
        &By::token("ops", "wrong"),
        at(0),
    );
    let single_stuck = moved(&single, &blocked(Blocker::Final), 2);
    let single_done = moved(&single, &Event::Undone { by: by() }, 2);
    let released = |saga: &Saga| moved(saga, &Event::Released { all: true }, 3);
    let lost = Event::StoreLost(By::token("ops", "an older snapshot"));
    vec![
        ("open", open.clone()),
        ("overdue", moved(&open, &Event::Overdue { by: by() }, 900)),
        ("completed", moved(&open, &complete(), 1)),
        ("compensating", compensating.clone()),
        ("stuck", stuck),
        ("stuck, and told", notified),
        ("open when data was lost", moved(&open, &lost, 1)),
        ("compensated, and released", released(&compensated)),
        ("compensated", compensated),
        ("compensating, at rest", at_rest),
        ("stuck at rest, for now", hopeful),
        ("one call's", single),
        ("one call's, stuck", single_stuck),
        (
            "one call's, compensated and released",
            released(&single_done),
        ),
    ]
}

#[test]
fn a_loss_leaves_a_saga_its_own_trouble_and_is_told_once() {
    let lost = |saga: &Saga, reason: &str, seconds| {
        moved(saga, &Event::StoreLost(By::token("ops", reason)), seconds)
    };
    let open = Saga::begin(id(), &Policy::default(), at(0));
    let stuck = moved(&moved(&open, &abort(), 1), &blocked(Blocker::Final), 2);
    let own = stuck.trouble.clone().expect("a trouble");
    let twice = lost(&lost(&stuck, "a flush", 3), "a copy", 4);
    let trouble = twice.trouble.as_ref().expect("a trouble");
    assert_eq!(trouble.call_id, own.call_id);
    let expected = "no; the store has lost data (a copy): what was undone may be forgotten";
    assert_eq!(trouble.why, expected);
    assert_eq!(
        (twice.call_to_skip(), twice.may_be_retried()),
        (own.call_id, true)
    );
    // A saga that is open and has no trouble of its own has no call to skip.
    let lost_open = lost(&open, "a flush", 3);
    assert!(!lost_open.may_be_retried() && lost_open.call_to_skip().is_none());
    let why = &lost_open.trouble.as_ref().expect("a trouble").why;
    assert!(
        why.starts_with("the store has lost data (a flush)"),
        "{why}"
    );
}

/// The saga after an event at second 1000.
fn change(before: &Saga, saga: &Saga) -> String {
    assert_eq!(saga.version, before.version + 1);
    assert_eq!(saga.updated_at, at(1_000));
    let mut parts = vec![saga.state().as_str().to_owned()];
    let mut say = |part: String| parts.push(part);
    let secs = |time: Timestamp| time.duration_since(at(1_000)).as_secs();
    if saga.phase.at_rest() == Some(true) {
        say("at rest".into());
    }
    if saga.phase.is_stuck_for_now() {
        say("for now".into());
    }
    say(saga.work.due.at().map_or("due never".to_owned(), |due| {
        format!("due in {} s", secs(due))
    }));
    for (count, what) in [(saga.work.tries, "tries"), (saga.work.waits, "waits")] {
        if count > 0 {
            say(format!("{what} {count}"));
        }
    }
    if let Some(times) = saga.telling {
        say(format!("tells after {times}"));
    }
    if saga.overdue {
        say("overdue".into());
    }
    if let Some(trouble) = &saga.trouble {
        let with = trouble.call_id.map_or("", |_| " with a call");
        say(format!("in trouble{with}"));
    }
    if let Some(until) = saga.retain_until {
        say(format!("kept for {} s", secs(until)));
    }
    if saga.reason != before.reason {
        say(format!("because {:?}", saga.reason));
    }
    if saga.events.len() > before.events.len() {
        let entry = saga.events.last().expect("the newest");
        assert_eq!((entry.at, &entry.by), (at(1_000), &by()));
        say(format!("notes {} {:?}", entry.event, entry.detail));
    }
    parts.join(", ")
}

#[test]
fn the_whole_grid() {
    let events = [
        ("complete", complete()),
        ("abort", abort()),
        (
            "abort after a loss",
            Event::Abort {
                by: By::token("ops", "found"),
                after_loss: true,
            },
        ),
        ("overdue", Event::Overdue { by: by() }),
        ("taken", Event::Taken { until: at(2_000) }),
        ("freed", Event::Freed),
        ("prolonged", Event::Prolonged { until: at(2_000) }),
        ("held", Event::Held { until: at(2_000) }),
        ("rested", Event::Rested),
        ("call found", Event::CallFound),
        (
            "store lost",
            Event::StoreLost(By::token("ops", "an older snapshot")),
        ),
        ("hindered: busy", blocked(Blocker::Busy)),
        ("hindered: unknown", blocked(Blocker::Unknown)),
        ("hindered: failed", blocked(Blocker::Failed)),
        ("hindered: final", blocked(Blocker::Final)),
        ("advanced", Event::Advanced),
        ("undone", Event::Undone { by: by() }),
        ("released", Event::Released { all: true }),
        ("released in part", Event::Released { all: false }),
        ("told", Event::Notified { delivered: true }),
        ("not told", Event::Notified { delivered: false }),
        ("retry", Event::Retry(By::token("ops", "mended"))),
        ("settled", Event::Settled(By::token("ops", "by hand"))),
    ];
    let mut grid = String::new();
    for (name, saga) in sagas() {
        grid += &format!("{name}\n");
        for (event_name, event) in &events {
            let cell = match next(&saga, event, &Policy::default(), at(1_000)) {
                Err(illegal) => format!("({illegal})"),
                Ok(same) if same == saga => "as it was".to_owned(),
                Ok(next) => change(&saga, &next),
            };
            grid += &format!("  {event_name:<20}{cell}\n");
        }
    }
    insta::assert_snapshot!("saga_grid", grid);
}

#[test]
fn failures_are_tried_again_ever_more_slowly_and_then_an_operator_is_told_once() {
    let policy = Policy::default();
    let mut saga = moved(&Saga::begin(id(), &policy, at(0)), &abort(), 0);
    let mut waits = Vec::new();
    for _ in 1..policy.retry.attempts {
        saga = moved(&saga, &blocked(Blocker::Failed), 0);
        assert_eq!(
            (saga.state(), saga.telling.is_some()),
            (State::Compensating, false)
        );
        waits.push(
            saga.work
                .due
                .at()
                .expect("a time")
                .duration_since(at(0))
                .as_secs(),
        );
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256]);
    saga = moved(&saga, &blocked(Blocker::Failed), 0);
    assert_eq!((saga.state(), saga.telling.is_some()), (State::Stuck, true));
    saga = moved(&saga, &Event::Notified { delivered: true }, 1);
    assert_eq!(
        (saga.telling.is_some(), saga.work.due.at()),
        (false, None),
        "only an operator goes on"
    );
    let again = moved(&saga, &Event::Retry(By::token("ops", "mended")), 2);
    assert_eq!(
        (again.state(), again.work.tries, again.work.due.at()),
        (State::Compensating, 0, Some(at(2)))
    );
}

#[test]
fn a_saga_that_is_open_for_too_long_is_aborted_where_that_is_wanted() {
    let policy = Policy {
        on_timeout: OnTimeout::Abort,
        ..Policy::default()
    };
    let open = Saga::begin(id(), &policy, at(0));
    let overdue = |seconds| next(&open, &Event::Overdue { by: by() }, &policy, at(seconds));
    assert_eq!(overdue(899), Err(Illegal::NotDue));
    let aborted = overdue(900).expect("its time is over");
    assert!(aborted.overdue && aborted.state() == State::Compensating);
    assert_eq!(aborted.reason, "its deadline has passed");
}

#[test]
fn an_operator_is_told_until_it_works_or_often_enough() {
    let aborted = moved(&Saga::begin(id(), &Policy::default(), at(0)), &abort(), 0);
    let mut saga = moved(&aborted, &blocked(Blocker::Final), 0);
    let mut waits = Vec::new();
    while saga.telling.is_some() {
        saga = moved(&saga, &Event::Notified { delivered: false }, 0);
        let due = saga.work.due.at();
        waits.push(due.map(|due| due.duration_since(at(0)).as_secs()));
    }
    let expected = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300].map(Some);
    assert_eq!(waits, [&expected[..], &[None]].concat());
}

#[test]
fn calls_that_are_not_released_yet_are_looked_at_the_later_the_longer_it_takes() {
    let completed = moved(
        &Saga::begin(id(), &Policy::default(), at(0)),
        &complete(),
        0,
    );
    let look_again = i64::try_from(Policy::default().look_again.as_secs()).expect("small");
    for (age, wait) in [(0, look_again), (2, look_again), (100, 50), (601, 300)] {
        let left = moved(&completed, &Event::Released { all: false }, age);
        assert_eq!(left.work.due.at(), Some(at(age + wait)), "after {age} s");
    }
}

#[test]
fn only_its_newest_entries_are_kept() {
    let aborted = moved(&Saga::begin(id(), &Policy::default(), at(0)), &abort(), 0);
    let mut saga = moved(&aborted, &blocked(Blocker::Final), 0);
    let retry = Event::Retry(By::token("ops", "mended"));
    for _ in 0..MAX_EVENTS {
        saga = moved(&moved(&saga, &retry, 0), &blocked(Blocker::Final), 0);
    }
    let events: Vec<_> = saga.events.iter().map(|entry| &*entry.event).collect();
    assert_eq!(events, ["retry", "stuck"].repeat(MAX_EVENTS / 2));
}

#[test]
fn unknown_calls_may_be_sent_again_only_before_others_are_undone() {
    let may: Vec<_> = sagas()
        .iter()
        .filter(|(_, saga)| saga.may_send_again())
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(
        may,
        [
            "open",
            "overdue",
            "completed",
            "compensating",
            "stuck",
            "stuck, and told",
            "open when data was lost",
            "one call's",
            "one call's, stuck"
        ]
    );
}

#[test]
fn a_saga_that_is_stuck_on_a_transient_cause_is_still_looked_at() {
    let policy = Policy {
        retry: retry::Policy {
            attempts: 1,
            ..Policy::default().retry
        },
        ..Policy::default()
    };
    let saga = moved(&Saga::begin(id(), &policy, at(0)), &abort(), 0);
    let stuck = next(&saga, &blocked(Blocker::Unknown), &policy, at(0)).expect("stuck");
    assert_eq!(stuck.state(), State::Stuck);
    let notified =
        next(&stuck, &Event::Notified { delivered: true }, &policy, at(1)).expect("told");
    assert!(notified.work.due.at().is_some());
    let advanced = next(&notified, &Event::Advanced, &policy, at(2)).expect("it goes on");
    assert_eq!(advanced.state(), State::Compensating);
}

#[test]
fn a_saga_is_stored_as_it_is() {
    for (name, saga) in sagas() {
        let saga = Saga {
            only: Some(CallId(Uuid::from_u128(7))),
            ..saga
        };
        assert_eq!(
            Saga::from_document(&saga.to_document()).as_ref(),
            Ok(&saga),
            "{name}"
        );
    }
}

/// A saga taken by a process that has ended is due at once; other sagas keep their times.
#[test]
fn only_a_saga_that_was_worked_on_is_freed() {
    let aborted = moved(&Saga::begin(id(), &Policy::default(), at(0)), &abort(), 0);
    let taken = moved(&aborted, &Event::Taken { until: at(60) }, 1);
    let at_rest = moved(&taken, &Event::Rested, 2);
    let sending = moved(&at_rest, &Event::Prolonged { until: at(90) }, 3);
    for saga in [&taken, &at_rest, &sending] {
        assert_eq!(moved(saga, &Event::Freed, 5).work.due.at(), Some(at(5)));
    }
    let waits = moved(&sending, &blocked(Blocker::Failed), 4);
    for saga in [&aborted, &waits, &moved(&taken, &Event::Freed, 5)] {
        assert_eq!(
            next(saga, &Event::Freed, &Policy::default(), at(9)),
            Err(Illegal::NotDue)
        );
    }
}
