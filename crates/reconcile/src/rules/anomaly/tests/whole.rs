//! Whole cases: an event changes only the members that it is about.

use super::*;

/// A case with a history: no member has the value of a new case.
fn before(state: State, action: Act) -> Case {
    let new = case(Act::Compensate);
    Case {
        listed: Listed {
            action,
            ..new.listed
        },
        undoing: Some(Undoing {
            tool: "cancel".into(),
            key: "a".into(),
            args: Value::Null,
        }),
        error: Some("down".into()),
        state,
        work: Work {
            due: Due::Taken { until: at(60) },
            tries: 3,
            waits: 2,
        },
        version: 7,
        created_at: at(-50),
        retain_until: Some(at(77)),
        ..new
    }
}

fn rests(case: &Case, state: State, error: Option<&str>, second: i64) -> Case {
    Case {
        state,
        error: error.map(str::to_owned),
        work: Work {
            due: Due::Never,
            ..case.work
        },
        version: 8,
        retain_until: Some(after(at(second), RETENTION)),
        ..case.clone()
    }
}

#[test]
fn a_reopened_case_keeps_its_age_and_its_compensation() {
    let reported = before(State::Reported, Act::Report);
    let again = Case {
        run: "run 2".into(),
        ..case(Act::Compensate)
    };
    let expected = Case {
        undoing: reported.undoing.clone(),
        found_at: at(9),
        work: Work::due_at(at(9)),
        version: 8,
        created_at: at(-50),
        ..again.clone()
    };
    let found = next(&reported, &found(again, false), RETENTION, at(9));
    assert_eq!(found, Ok(expected));
}

#[test]
fn taking_and_freeing_a_case_changes_only_its_work_and_version() {
    let open = Case {
        work: Work::due_at(at(1)),
        ..before(State::Open, Act::Compensate)
    };
    let event = Event::Taken {
        until: at(60),
        undoing: None,
    };
    let taken = Case {
        work: Work {
            due: Due::Taken { until: at(60) },
            tries: 1,
            waits: 0,
        },
        version: 8,
        ..open.clone()
    };
    assert_eq!(next(&open, &event, RETENTION, at(1)), Ok(taken.clone()));
    let freed = Case {
        work: Work {
            due: Due::At(at(5)),
            ..taken.work
        },
        version: 9,
        ..taken.clone()
    };
    assert_eq!(next(&taken, &Event::Freed, RETENTION, at(5)), Ok(freed));
}

#[test]
fn a_case_whose_work_has_ended_keeps_its_error_for_the_retention() {
    let taken = before(State::Open, Act::Adopt);
    for (end, expected) in [
        (Ok(End::Done), rests(&taken, State::Done, None, 5)),
        (Ok(End::Unwanted), rests(&taken, State::Reported, None, 5)),
        (
            Err(Blocked::for_good("no")),
            rests(&taken, State::GivenUp, Some("no"), 5),
        ),
    ] {
        assert_eq!(ended(&taken, end, 5), expected);
    }
    let mut adopted = rests(&taken, State::Done, None, 5);
    adopted.listed.call_id = Some(CALL.to_string());
    assert_eq!(ended(&taken, Ok(End::Adopted(CALL)), 5), adopted);
    let mut held = rests(&taken, State::Reported, None, 5);
    held.listed.kind = Kind::Duplicate;
    held.listed.call_id = Some(CALL.to_string());
    held.listed.detail += &format!("; call {CALL} has its key");
    held.listed.action = Act::Report;
    assert_eq!(ended(&taken, Ok(HELD), 5), held);
}

#[test]
fn a_blocked_case_keeps_its_reason_until_the_next_try() {
    let taken = before(State::Open, Act::Compensate);
    let blocked = ended(&taken, Err(Blocked::failed("f")), 5);
    let due = blocked.work.due;
    assert!(matches!(due, Due::At(due) if due > at(5)), "{due:?}");
    let expected = Case {
        work: blocked.work,
        error: Some("f".into()),
        version: 8,
        ..taken
    };
    assert_eq!(blocked, expected);
}

#[test]
fn a_request_of_an_operator_starts_new_tries() {
    let (reported, given_up) = (
        before(State::Reported, Act::Report),
        before(State::GivenUp, Act::Compensate),
    );
    for case in [reported, given_up] {
        let with = |act, state, due, retain_until| {
            let mut expected = Case {
                error: None,
                state,
                work: Work {
                    due,
                    ..Work::due_at(at(5))
                },
                version: 8,
                retain_until,
                ..case.clone()
            };
            expected.listed.acted = asks_for(act);
            expected
        };
        let mut undone = with(Request::Compensate, State::Open, Due::At(at(5)), None);
        undone.listed.action = Act::Compensate;
        assert_eq!(asked(&case, Request::Compensate, 5), Ok(undone));
        let until = Some(after(at(5), RETENTION));
        let ignored = with(Request::Ignore, State::Ignored, Due::Never, until);
        assert_eq!(asked(&case, Request::Ignore, 5), Ok(ignored));
    }
}

fn asks_for(act: Request) -> Option<Acted> {
    match asks(act) {
        Event::Asked { acted, .. } => Some(acted),
        _ => None,
    }
}

#[test]
fn a_report_lists_the_present_state_of_a_case() {
    let done = before(State::Done, Act::Compensate);
    for new in [true, false] {
        let expected = Listed {
            state: State::Done,
            error: Some("down".into()),
            new,
            ..done.listed.clone()
        };
        assert_eq!(done.clone().listed_now(new), expected);
    }
}

#[test]
fn only_a_done_adoption_has_become_a_call() {
    for (state, action, is) in [
        (State::Done, Act::Adopt, true),
        (State::Open, Act::Adopt, false),
        (State::Done, Act::Compensate, false),
    ] {
        let mut case = before(state, action);
        case.listed.call_id = Some(CALL.to_string());
        assert_eq!(
            case.adopted_as(),
            is.then_some(CALL),
            "{state:?} {action:?}"
        );
    }
}

#[test]
fn an_operator_is_offered_the_requests_that_would_be_met() {
    use Request::{Adopt, Compensate, Ignore};
    let offered = cases()
        .into_iter()
        .map(|(name, case)| (name, case.requests()));
    let offered: Vec<_> = offered.collect();
    assert_eq!(
        offered,
        [
            ("reported", vec![Compensate, Ignore, Adopt]),
            ("open", vec![]),
            ("taken", vec![]),
            ("done", vec![]),
            ("given up", vec![Compensate, Ignore, Adopt]),
            ("adopting", vec![]),
            ("told", vec![Compensate, Ignore, Adopt]),
            ("ignored", vec![Compensate, Adopt]),
        ]
    );
}

#[test]
fn the_word_of_a_request_is_its_stored_form() {
    for request in Request::ALL {
        assert_eq!(serde_json::json!(request), request.as_str());
    }
}
