//! Properties of every anomaly, whatever its events.

use super::*;

const RETENTION: SignedDuration = SignedDuration::from_hours(1);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

fn case(wanted: Action) -> Case {
    let anomaly = Anomaly {
        kind: Kind::Orphan,
        source: "shop".into(),
        key: "k".into(),
        call_id: None,
        id: "e1".into(),
        detail: "no call has made it".into(),
        doubt: None,
        item: None,
    };
    Case::new(
        "orders",
        "run 1",
        &anomaly,
        Some(wanted),
        None,
        RETENTION,
        at(0),
    )
}

fn taken(case: &Case, second: i64) -> Case {
    let event = Event::Taken {
        until: at(second + 60),
        undoing: None,
    };
    next(case, &event, RETENTION, at(second)).expect("it is due")
}

fn ended(case: &Case, end: Result<End, Blocked>, second: i64) -> Case {
    next(
        case,
        &Event::Ended { end, jitter: 1.0 },
        RETENTION,
        at(second),
    )
    .expect("it can end")
}

/// A case in each of its states, and one under way.
fn cases() -> Vec<(&'static str, Case)> {
    let open = case(Action::Compensate);
    let worked = taken(&open, 1);
    vec![
        ("reported", case(Action::Report)),
        ("open", open),
        ("taken", worked.clone()),
        ("done", ended(&worked, Ok(End::Done), 2)),
        ("given up", ended(&worked, Err(Blocked::for_good("no")), 2)),
    ]
}

#[test]
fn the_whole_grid() {
    let again = |by_person| Event::Found {
        again: Box::new(case(Action::Compensate)),
        by_person,
    };
    let end = |end| Event::Ended { end, jitter: 1.0 };
    let events = [
        ("found", again(false)),
        ("found on request", again(true)),
        (
            "found, reports",
            Event::Found {
                again: Box::new(case(Action::Report)),
                by_person: true,
            },
        ),
        (
            "taken",
            Event::Taken {
                until: at(2_000),
                undoing: None,
            },
        ),
        ("freed", Event::Freed),
        ("done", end(Ok(End::Done))),
        ("unwanted", end(Ok(End::Unwanted))),
        ("busy", end(Err(Blocked::busy("b")))),
        ("unknown", end(Err(Blocked::by(Blocker::Unknown, "u")))),
        ("failed", end(Err(Blocked::failed("f")))),
        ("final", end(Err(Blocked::for_good("x")))),
    ];
    let mut grid = String::new();
    for (name, case) in cases() {
        grid += &format!("{name}\n");
        for (event_name, event) in &events {
            let cell = match next(&case, event, RETENTION, at(1_000)) {
                Err(illegal) => format!("({illegal:?})"),
                Ok(case) => {
                    let Work { due, tries, waits } = case.work;
                    let due = due.at().map(|due| due.duration_since(at(1_000)).as_secs());
                    let due = due.map_or("never".to_owned(), |due| format!("in {due} s"));
                    format!(
                        "{}, due {due}, tries {tries}, waits {waits}",
                        case.state.as_str()
                    )
                }
            };
            grid += &format!("  {event_name:<18}{cell}\n");
        }
    }
    insta::assert_snapshot!("anomaly_grid", grid);
}

#[test]
fn a_case_is_stored_as_it_is() {
    for (name, case) in cases() {
        let document = case.to_document();
        assert_eq!(Case::from_document(&document), Some(case), "{name}");
    }
}

#[test]
fn what_fails_is_given_up_after_so_many_tries_and_a_webhook_is_told_until_its_time_is_over() {
    let fail = |mut case: Case| {
        let mut tries = 0;
        while case.state == State::Open && tries < 100 {
            let due = case.work.due.at().expect("a time");
            let event = Event::Taken {
                until: due,
                undoing: None,
            };
            case = next(&case, &event, SignedDuration::MAX, due).expect("it is due");
            let end = Err(Blocked::failed("down"));
            let event = Event::Ended { end, jitter: 1.0 };
            case = next(&case, &event, SignedDuration::MAX, due).expect("it can end");
            tries += 1;
        }
        tries
    };
    assert_eq!(fail(case(Action::Compensate)), TRIES);
    assert_eq!(fail(case(Action::Webhook)), 100);
    let late = taken(&case(Action::Webhook), 5_000);
    for blocked in [Blocked::busy("b"), Blocked::failed("f")] {
        assert_eq!(ended(&late, Err(blocked), 5_000).state, State::GivenUp);
    }
}

#[test]
fn an_effect_is_undone_only_as_it_was_decided() {
    let undoing = |key: &str| Undoing {
        tool: "cancel".into(),
        key: key.into(),
        args: Value::Null,
    };
    let (decided, other) = (undoing("a"), undoing("b"));
    let open = case(Action::Compensate);
    fn blocker<'a>(case: &'a Case, now: &Undoing) -> Result<&'a Undoing, Blocker> {
        case.undoing(now).map_err(|why| why.blocker)
    }
    assert_eq!(blocker(&open, &decided), Err(Blocker::Busy));
    let event = |undoing: &Undoing, second| Event::Taken {
        until: at(second),
        undoing: Some(undoing.clone()),
    };
    let taken = next(&open, &event(&decided, 5), RETENTION, at(1)).expect("due");
    assert_eq!(blocker(&taken, &decided), Ok(&decided));
    assert_eq!(blocker(&taken, &other), Err(Blocker::Final));
    let again = next(&taken, &event(&other, 9), RETENTION, at(5)).expect("due");
    assert_eq!(again.undoing, Some(decided.clone()), "it is decided once");
    let older = Case {
        decides: false,
        ..again
    };
    assert_eq!(blocker(&older, &decided), Err(Blocker::Final));
    let first = Case {
        decides: false,
        ..taken
    };
    assert_eq!(blocker(&first, &decided), Ok(&decided));
}
