//! The states of cases, and the acts of operators.

mod adopted;
mod stored;
mod whole;

use serde_json::Value;

use super::*;
use crate::rules::{Anomaly, Doubt, Item};
use crate::testing::orphan;

const CALL: CallId = CallId(uuid::Uuid::from_u128(0xca11));
const HELD: End = End::Held {
    call_id: CALL,
    holder: Holder::HasRun,
};
const RETENTION: SignedDuration = SignedDuration::from_hours(1);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

fn case(wanted: Act) -> Case {
    let terms = Terms {
        wanted: Some(wanted),
        retention: RETENTION,
        ..Terms::default()
    };
    Case::new("orders", "run 1", &orphan(), &terms, at(0))
}

fn asks(act: Request) -> Event {
    let acted = Acted {
        act,
        by: "ops".into(),
        reason: "ticket 7".into(),
        at: at(999).as_microsecond(),
    };
    let is_lost = false;
    Event::Asked { acted, is_lost }
}

fn found(again: Case, by_operator: bool) -> Event {
    Event::Found {
        again: Box::new(again),
        by_operator,
        is_lost: false,
    }
}

fn asked(case: &Case, act: Request, second: i64) -> Result<Case, Illegal> {
    next(case, &asks(act), RETENTION, at(second))
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
    let open = case(Act::Compensate);
    let worked = taken(&open, 1);
    vec![
        ("reported", case(Act::Report)),
        ("open", open),
        ("taken", worked.clone()),
        ("done", ended(&worked, Ok(End::Done), 2)),
        ("given up", ended(&worked, Err(Blocked::for_good("no")), 2)),
        ("adopting", case(Act::Adopt)),
        ("told", {
            let telling = taken(&case(Act::Webhook), 1);
            ended(&telling, Ok(End::Done), 2)
        }),
        (
            "ignored",
            asked(&case(Act::Report), Request::Ignore, 3).expect("ignored"),
        ),
    ]
}

#[test]
fn the_whole_grid() {
    let again = |by_operator| found(case(Act::Compensate), by_operator);
    let end = |end| Event::Ended { end, jitter: 1.0 };
    let events = [
        ("found", again(false)),
        ("found on request", again(true)),
        ("found, reports", found(case(Act::Report), true)),
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
        ("adopted", end(Ok(End::Adopted(CALL)))),
        ("held", end(Ok(HELD))),
        ("busy", end(Err(Blocked::busy("b")))),
        ("unknown", end(Err(Blocked::by(Blocker::Unknown, "u")))),
        ("failed", end(Err(Blocked::failed("f")))),
        ("final", end(Err(Blocked::for_good("x")))),
        ("asked to undo", asks(Request::Compensate)),
        ("asked to ignore", asks(Request::Ignore)),
        ("asked to adopt", asks(Request::Adopt)),
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
fn a_case_comes_back_from_its_document_unchanged() {
    for (name, case) in cases() {
        let document = case.to_document();
        assert_eq!(Case::from_document(&document), Some(case), "{name}");
    }
}

#[test]
fn an_act_is_given_up_after_its_tries_and_a_webhook_after_its_time() {
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
    assert_eq!(fail(case(Act::Compensate)), TRIES);
    assert_eq!(fail(case(Act::Webhook)), 100);
    let late = taken(&case(Act::Webhook), 5_000);
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
    let open = case(Act::Compensate);
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

#[test]
fn a_request_of_an_operator_is_recorded_once() {
    for (request, state) in [
        (Request::Compensate, State::Open),
        (Request::Ignore, State::Ignored),
        (Request::Adopt, State::Open),
    ] {
        let first = asked(&case(Act::Report), request, 5).expect("it can be asked for");
        assert_eq!(first.state, state);
        let acted = first.listed.acted.clone().expect("an act");
        assert_eq!(
            (acted.act, &*acted.by, &*acted.reason),
            (request, "ops", "ticket 7")
        );
        assert_eq!(
            asked(&first, request, 6),
            Err(Illegal::Unchanged),
            "{request:?}"
        );
        assert_eq!(
            Case::from_document(&first.to_document()),
            Some(first.clone())
        );
        let runs = found(case(Act::Compensate), true);
        let found = next(&first, &runs, RETENTION, at(7)).unwrap_or(first);
        assert_eq!(
            found.state, state,
            "no run changes what an operator has decided"
        );
    }
}

#[test]
fn an_ignored_anomaly_may_be_undone_but_an_open_one_is_not_ignored() {
    let ignored = asked(&case(Act::Report), Request::Ignore, 5).expect("ignored");
    let open = asked(&ignored, Request::Compensate, 6).expect("nothing was done");
    let contrary = Illegal::Contrary("it is open, and its action is compensate".into());
    assert_eq!(asked(&open, Request::Ignore, 7), Err(contrary));
    let done = ended(&taken(&open, 8), Ok(End::Done), 9);
    let contrary = Illegal::Contrary("it is done, and its action is compensate".into());
    assert_eq!(asked(&done, Request::Ignore, 10), Err(contrary));
}

#[test]
fn an_act_of_an_operator_has_its_time_also_on_an_old_anomaly() {
    let old = case(Act::Report);
    let late = RETENTION.as_secs() + 5;
    let acted = Acted {
        act: Request::Compensate,
        by: "ops".into(),
        reason: "r".into(),
        at: at(late).as_microsecond(),
    };
    let is_lost = false;
    let event = Event::Asked { acted, is_lost };
    let open = next(&old, &event, RETENTION, at(late)).expect("asked");
    let blocked = ended(&taken(&open, late), Err(Blocked::busy("paused")), late + 1);
    assert_eq!(blocked.state, State::Open, "it waits like a new one");
}

#[test]
fn a_run_updates_only_the_findings_of_a_case_at_rest() {
    let before = ended(
        &taken(&case(Act::Compensate), 1),
        Err(Blocked::for_good("no")),
        2,
    );
    let mut again = case(Act::Report);
    let found = |again: &Case, by_operator| {
        let event = found(again.clone(), by_operator);
        next(&before, &event, RETENTION, at(9))
    };
    assert_eq!(
        found(&again, false),
        Err(Illegal::Unchanged),
        "nothing is new"
    );
    again.listed.shown = [("/amount".to_owned(), 7.into())].into();
    again.effect = Some(Value::from(7));
    let after = found(&again, false).expect("it shows more");
    assert_eq!(
        (&after.listed.shown, &after.effect),
        (&again.listed.shown, &again.effect)
    );
    let same = Case {
        listed: before.listed.clone(),
        effect: None,
        ..after
    };
    let expected = Case {
        found_at: at(9),
        version: before.version + 1,
        ..before.clone()
    };
    assert_eq!(same, expected);
    let by_operator = found(&case(Act::Report), true).expect("found again");
    assert_eq!(
        by_operator.found_at,
        at(9),
        "a loss may have come in between"
    );
}

#[test]
fn only_an_orphan_with_a_key_of_the_gateways_own_is_adopted_and_not_what_may_be_undone() {
    let reported = case(Act::Report);
    let with = |change: &dyn Fn(&mut Case)| {
        let mut case = reported.clone();
        change(&mut case);
        asked(&case, Request::Adopt, 5)
            .map(|case| (case.state, case.listed.action))
            .map_err(|why| match why {
                Illegal::Contrary(why) => why,
                other => format!("{other:?}"),
            })
    };
    assert_eq!(with(&|_| {}), Ok((State::Open, Act::Adopt)));
    let undoing = Undoing {
        tool: "cancel".into(),
        key: "a".into(),
        args: Value::Null,
    };
    type Change<'a> = &'a dyn Fn(&mut Case);
    let cases: [(Change<'_>, &str); 4] = [
        (
            &|case| case.listed.kind = Kind::Duplicate,
            "it is a duplicate, and only an orphan has no call",
        ),
        (
            &|case| case.listed.key = "beside".into(),
            "its key is not one that this gateway gives to tools",
        ),
        (
            &|case| case.listed.call_id = Some(CALL.to_string()),
            "call 00000000-0000-0000-0000-00000000ca11 has its key",
        ),
        (
            &|case| case.undoing = Some(undoing.clone()),
            "how it is undone is decided already: that may have been begun",
        ),
    ];
    for (change, why) in cases {
        assert_eq!(with(change), Err(why.to_owned()));
    }
}

#[test]
fn an_effect_whose_key_a_call_holds_is_its_duplicate_unless_the_call_never_ran() {
    let adopting = taken(&case(Act::Adopt), 1);
    let done = ended(&adopting, Ok(End::Adopted(CALL)), 2);
    assert_eq!(
        (done.state, done.listed.call()),
        (State::Done, Some(CALL)),
        "the call that it is now"
    );
    for (holder, kind) in [
        (Holder::HasRun, Kind::Duplicate),
        (Holder::Failed, Kind::Orphan),
    ] {
        let call_id = CALL;
        let held = ended(&adopting, Ok(End::Held { call_id, holder }), 2);
        assert_eq!(
            (held.state, held.listed.kind, held.listed.call()),
            (State::Reported, kind, Some(CALL))
        );
        assert!(held.listed.detail.ends_with("ca11 has its key"));
        let again = asked(&held, Request::Adopt, 3);
        assert!(matches!(again, Err(Illegal::Contrary(_))), "{again:?}");
        assert!(asked(&held, Request::Compensate, 3).is_ok());
    }
}

#[test]
fn an_effect_that_may_have_been_undone_is_not_reopened_for_adoption() {
    let undoing = Undoing {
        tool: "cancel".into(),
        key: "a".into(),
        args: Value::Null,
    };
    let given_up = |undoing| {
        let event = Event::Taken {
            until: at(60),
            undoing,
        };
        let open = case(Act::Compensate);
        let taken = next(&open, &event, RETENTION, at(1)).expect("it is due");
        ended(&taken, Err(Blocked::for_good("no")), 2)
    };
    let again = found(case(Act::Adopt), true);
    for (undoing, state) in [(None, State::Open), (Some(undoing), State::GivenUp)] {
        let found = next(&given_up(undoing), &again, RETENTION, at(9)).expect("found again");
        assert_eq!(found.state, state);
    }
}

#[test]
fn only_adoptable_effects_are_adopted_by_configuration() {
    let terms = Terms {
        wanted: Some(Act::Adopt),
        retention: RETENTION,
        ..Terms::default()
    };
    let anomaly = |key: &str, doubt, call_id| Anomaly {
        key: key.into(),
        call_id,
        doubt,
        ..orphan()
    };
    let key = "b700221b7ed665c90e13a4fa78c6f69c";
    for (key, doubt, call_id, action) in [
        (key, None, None, Act::Adopt),
        // After a loss of data every orphan is in doubt, but the claim of its key is not.
        (key, Some(Doubt::Young), None, Act::Adopt),
        (key, Some(Doubt::UnknownCall), None, Act::Adopt),
        (key, Some(Doubt::Silent), None, Act::Report),
        (key, None, Some(CALL), Act::Report),
        ("beside", None, None, Act::Report),
    ] {
        let found = anomaly(key, doubt, call_id);
        let case = Case::new("orders", "run 1", &found, &terms, at(0));
        assert_eq!(case.listed.action, action, "{key} {doubt:?} {call_id:?}");
    }
}

#[test]
fn an_item_is_kept_for_an_operator_up_to_16_kib() {
    for (length, is_stored) in [(16 << 10, true), ((16 << 10) + 1, false)] {
        let raw = format!("\"{}\"", "x".repeat(length - 2));
        let item = Item {
            key: None,
            id: None,
            call_id: None,
            fields: Vec::new(),
            counts: true,
            made_at: None,
            raw: raw.into(),
        };
        let found = Anomaly {
            item: Some(item),
            ..orphan()
        };
        let case = Case::new("orders", "run 1", &found, &Terms::default(), at(0));
        assert_eq!(case.effect.is_some(), is_stored, "{length} bytes");
    }
}
