//! Adopted effects whose calls the ledger has lost.

use super::*;

/// An effect that was adopted as the call.
fn adopted() -> Case {
    ended(&taken(&case(Act::Adopt), 1), Ok(End::Adopted(CALL)), 2)
}

/// An effect that was not adopted, because a call had its key.
fn held() -> Case {
    ended(&taken(&case(Act::Adopt), 1), Ok(HELD), 2)
}

fn found_when(case: &Case, again: Case, is_lost: bool) -> Result<Case, Illegal> {
    let event = Event::Found {
        again: Box::new(again),
        by_operator: false,
        is_lost,
    };
    next(case, &event, RETENTION, at(9))
}

#[test]
fn an_adopted_effect_whose_call_is_lost_is_an_orphan_again_and_can_be_adopted_again() {
    for (wanted, state, due) in [
        (Act::Adopt, State::Open, Due::At(at(9))),
        (Act::Report, State::Reported, Due::Never),
        (Act::Webhook, State::Open, Due::At(at(9))),
    ] {
        let again = found_when(&adopted(), case(wanted), true).expect("it is taken up");
        assert_eq!(
            (again.state, again.work.due, again.listed.call()),
            (state, due, None)
        );
        assert_eq!(again.found_at, at(9), "after the loss");
    }
    let reported = found_when(&adopted(), case(Act::Report), true).expect("it is taken up");
    let open = asked(&reported, Request::Adopt, 10).expect("it can be adopted");
    assert_eq!((open.state, open.listed.action), (State::Open, Act::Adopt));
}

#[test]
fn an_adopted_effect_stays_adopted_while_its_call_is_stored() {
    for wanted in [Act::Adopt, Act::Report] {
        assert_eq!(
            found_when(&adopted(), case(wanted), false),
            Err(Illegal::Unchanged)
        );
    }
    let mut of_failed = case(Act::Report);
    of_failed.listed.call_id = Some(CALL.to_string());
    assert_eq!(
        found_when(&adopted(), of_failed, true),
        Err(Illegal::Unchanged),
        "a call has its key"
    );
}

#[test]
fn an_adoption_whose_call_is_lost_is_refused_and_not_reported_as_done() {
    let asks = |is_lost| {
        let Event::Asked { acted, .. } = asks(Request::Adopt) else {
            panic!("an operator asks");
        };
        let event = Event::Asked { acted, is_lost };
        next(&adopted(), &event, RETENTION, at(9))
    };
    assert_eq!(asks(false), Err(Illegal::Unchanged));
    let why = "the call that it became is not in the ledger any more: run the reconciliation again";
    assert_eq!(asks(true), Err(Illegal::Contrary(why.into())));
}

#[test]
fn the_call_of_an_anomaly_follows_the_latest_run() {
    let ignored = asked(&held(), Request::Ignore, 3).expect("ignored");
    for (before, state) in [(held(), State::Reported), (ignored, State::Ignored)] {
        let refused = asked(&before, Request::Adopt, 4);
        assert!(matches!(refused, Err(Illegal::Contrary(_))), "{refused:?}");
        let again = found_when(&before, case(Act::Report), false).expect("it says something else");
        assert_eq!(
            (again.state, again.listed.kind, again.listed.call()),
            (state, Kind::Orphan, None),
            "the call that had its key is lost"
        );
        assert_eq!(again.listed.acted, before.listed.acted);
        assert!(asked(&again, Request::Adopt, 10).is_ok());
    }
}

#[test]
fn the_kind_of_holder_follows_from_the_call_and_its_tool() {
    use oncegate_rules::record::Failure;
    use oncegate_rules::testing::succeeded;
    use oncegate_rules::testing::tool;
    let held_by = |change: &dyn Fn(&mut Record), dedup| {
        let mut holder = succeeded("{}");
        change(&mut holder);
        let tool = Tool { dedup, ..tool("t") };
        match End::held_by(&tool, &holder) {
            End::Held { holder, .. } => holder,
            other => panic!("{other:?}"),
        }
    };
    let is_adopted = |holder: &mut Record| {
        std::sync::Arc::make_mut(&mut holder.intent).key_source =
            oncegate_rules::key::Source::Adopted;
    };
    let has_failed = |holder: &mut Record| {
        let kind = oncegate_rules::record::FailureKind::NotExecuted;
        holder.state = CallState::Failed(Failure::new(kind, "no"));
    };
    let (none, key) = (Dedup::None, Dedup::Key);
    assert_eq!(held_by(&|_| {}, none), Holder::HasRun);
    assert_eq!(held_by(&|_| {}, key), Holder::Deduplicated);
    assert_eq!(held_by(&has_failed, key), Holder::Failed);
    assert_eq!(held_by(&is_adopted, none), Holder::Adopted);
    assert_eq!(held_by(&is_adopted, key), Holder::Adopted);
}

#[test]
fn an_effect_that_may_be_that_of_the_call_with_its_key_is_not_its_duplicate() {
    let adopting = taken(&case(Act::Adopt), 1);
    for (holder, says) in [
        (Holder::Deduplicated, "its tool executes a key once"),
        (Holder::Adopted, "was adopted from another effect"),
    ] {
        let call_id = CALL;
        let held = ended(&adopting, Ok(End::Held { call_id, holder }), 2);
        assert_eq!(
            (held.state, held.listed.kind, held.listed.call()),
            (State::Reported, Kind::Orphan, Some(CALL))
        );
        assert!(held.listed.detail.contains(says), "{}", held.listed.detail);
    }
}

#[test]
fn of_several_effects_of_a_key_only_the_newest_is_adopted() {
    let of = |rival: Option<&str>, wanted| {
        let found = Anomaly {
            rival: rival.map(str::to_owned),
            ..orphan()
        };
        let terms = Terms {
            wanted: Some(wanted),
            retention: RETENTION,
            ..Terms::default()
        };
        Case::new("orders", "run 1", &found, &terms, at(0))
    };
    assert_eq!(of(None, Act::Adopt).listed.action, Act::Adopt);
    let older = of(Some("e2 is newer"), Act::Adopt);
    assert_eq!(older.listed.action, Act::Report);
    assert!(older.listed.detail.ends_with("; e2 is newer"));
    let contrary = Illegal::Contrary("e2 is newer".into());
    assert_eq!(asked(&older, Request::Adopt, 5), Err(contrary));
    assert!(asked(&older, Request::Compensate, 5).is_ok());
    // In a later run it is the only effect of its key.
    let event = found(of(None, Act::Report), false);
    let alone = next(&older, &event, RETENTION, at(6)).expect("that is new");
    assert!(asked(&alone, Request::Adopt, 7).is_ok());
}
