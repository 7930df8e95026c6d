//! Checks before an act on an anomaly.

use super::*;
use oncegate_rules::work::{Blocked, Blocker};

#[test]
fn a_missing_effect_is_probed_for_before_its_call_is_undone() {
    use oncegate_rules::testing::probed_by;
    use oncegate_rules::tool::Tool;
    use oncegate_rules::unknown::Finding;
    let done = call(1, 1_500, succeeded(1));
    let over = done.attempt.lease_until;
    let missing = |finding: &Finding| revalidate::missing(&Tool::new("t"), &done, finding, over);
    assert_eq!(missing(&Finding::NotFound), Ok(()));
    // A search may show an effect only after a while.
    let search = Tool {
        protocol: probed_by("http://shop/by-key/{key}", Some("/data")),
        ..Tool::new("t")
    };
    let waits = Tool {
        negative_final_after: Some(std::time::Duration::from_secs(60)),
        ..search.clone()
    };
    for (tool, seconds, is_missing) in [
        (&search, 999, false),
        (&waits, 59, false),
        (&waits, 60, true),
    ] {
        let at = over + SignedDuration::from_secs(seconds);
        let found = revalidate::missing(tool, &done, &Finding::NotFound, at);
        assert_eq!(found.is_ok(), is_missing, "{seconds}");
    }
    let its = Finding::Found(Content::Stored("{}".into()));
    assert_eq!(
        missing(&its),
        Err(Blocked::for_good(
            "the tool has it: the source is not whole"
        ))
    );
    let unclear = missing(&Finding::Unclear("it answered 500".into()));
    assert_eq!(unclear.map_err(|why| why.blocker), Err(Blocker::Failed));
}

#[test]
fn a_call_resolved_as_failed_contradicts_a_source_that_has_its_effect() {
    use revalidate::unsettled;
    let of = |state| unsettled(Some(&call(1, 1_500, state)));
    assert_eq!(of(succeeded(1)), Ok(()));
    assert_eq!(
        of(State::Running).map_err(|why| why.blocker),
        Err(Blocker::Busy)
    );
    assert_eq!(
        of(failed()),
        Err(Blocked::for_good(
            "resolved as failed, but the source has it"
        ))
    );
}

#[test]
fn a_surplus_effect_is_checked_again_before_it_is_undone() {
    use revalidate::surplus;
    let of = |kind, state| surplus(kind, Some(&call(1, 1_500, state)), "o1");
    let blocker = |result: Result<(), Blocked>| result.map_err(|why| why.blocker);
    let never = |result| blocker(result) == Err(Blocker::Final);
    assert_eq!(of(Kind::Duplicate, succeeded(2)), Ok(()));
    assert!(
        never(of(Kind::Duplicate, succeeded(1))),
        "its call was told of it"
    );
    for state in [State::Running, State::Unknown(String::new())] {
        assert_eq!(blocker(of(Kind::Duplicate, state)), Err(Blocker::Busy));
    }
    assert!(never(of(Kind::Duplicate, failed())));
    assert!(never(surplus(Kind::Duplicate, None, "o1")));
    assert_eq!(of(Kind::Orphan, failed()), Ok(()));
    assert_eq!(surplus(Kind::Orphan, None, "o1"), Ok(()));
    assert!(never(of(Kind::Orphan, succeeded(2))));
}

#[test]
fn only_a_second_effect_of_an_adopted_call_may_be_undone() {
    use oncegate_rules::record::AttemptId;
    use revalidate::surplus;
    let adopted = adopted_from("o1");
    for kind in [Kind::Orphan, Kind::Duplicate] {
        assert_eq!(surplus(kind, Some(&adopted), "o2"), Ok(()));
        let its_own = surplus(kind, Some(&adopted), "o1").map_err(|why| why.blocker);
        assert_eq!(its_own, Err(Blocker::Final));
    }
    let lookup = adopted.intent.lookup;
    assert_eq!(adopted.attempt.id, AttemptId::of_effect(&lookup, "o1"));
}

#[test]
fn an_effect_whose_key_its_tool_knows_is_adopted_before_it_is_undone() {
    use super::anomaly::{Act, Listed};
    use oncegate_rules::tool::Dedup;
    use revalidate::is_bound;
    let found = reconciled(&rules(), &[], &[item(1)]);
    let listed = Listed::of("orders", &found.anomalies[0], Act::Compensate);
    let tool = |dedup| oncegate_rules::tool::Tool {
        dedup,
        ..oncegate_rules::testing::tool("t")
    };
    let (key, none) = (tool(Dedup::Key), tool(Dedup::None));
    assert!(is_bound(&key, &Join::Key, &listed));
    assert!(!is_bound(&none, &Join::Key, &listed));
    let path = Path::read("/args/business_id").expect("a path");
    assert!(!is_bound(&key, &Join::At(path), &listed));
    let with = |change: &dyn Fn(&mut Listed)| {
        let mut listed = listed.clone();
        change(&mut listed);
        is_bound(&key, &Join::Key, &listed)
    };
    assert!(!with(&|listed| listed.kind = Kind::Duplicate));
    assert!(!with(&|listed| listed.call_id = Some(FIRST.into())));
    assert!(!with(&|listed| listed.rival = Some("o2 is newer".into())));
    assert!(!with(&|listed| listed.key = "beside".into()));
}

#[test]
fn an_adopted_call_is_undone_with_its_effect_and_in_one_way_only() {
    use oncegate_rules::record::{Compensation, Undo};
    use revalidate::{adopted, without_call};
    let call = adopted_from("o1");
    let as_state = |state| Record {
        state,
        undo: Some(Undo::default()),
        ..call.clone()
    };
    assert_eq!(adopted(&as_state(State::Compensating(None))), Ok(true));
    assert_eq!(adopted(&as_state(State::Compensated(None))), Ok(false));
    let blocker = |call: &Record| adopted(call).map_err(|why| why.blocker);
    assert_eq!(blocker(&call), Err(Blocker::Busy), "it is not marked yet");
    assert_eq!(blocker(&as_state(State::Stuck(None))), Err(Blocker::Final));
    let mut by_a_saga = as_state(State::Compensating(None));
    by_a_saga.undo = Some(Undo {
        compensation: Some(Compensation {
            tool: "cancel".into(),
            call_id: call.intent.call_id,
        }),
        skipped: false,
    });
    assert_eq!(blocker(&by_a_saga), Err(Blocker::Final));
    let mut skipped = call.clone();
    skipped.undo = Some(Undo {
        compensation: None,
        skipped: true,
    });
    assert_eq!(blocker(&skipped), Err(Blocker::Final));
    assert_eq!(without_call(Some(&call), "o1", true), Ok(()));
    for (effect, is_bound) in [("o1", false), ("o2", true)] {
        assert!(without_call(Some(&call), effect, is_bound).is_err());
    }
    assert_eq!(without_call(None, "o1", false), Ok(()));
}

#[test]
fn a_call_is_undone_only_if_its_outcome_is_known_and_no_operator_lets_it_stand() {
    use oncegate_rules::record::Undo;
    let of = |state| revalidate::call(&call(1, 1_500, state));
    for ended in [succeeded(1), failed(), State::Stuck(None)] {
        assert_eq!(of(ended), Ok(()));
    }
    for state in [State::Running, State::Unknown(String::new())] {
        let why = Blocked::busy("it is not known how the call ends");
        assert_eq!(of(state), Err(why));
    }
    for state in [succeeded(1), State::Running] {
        let undo = Some(Undo {
            compensation: None,
            skipped: true,
        });
        let skipped = Record {
            undo,
            ..call(1, 1_500, state)
        };
        let why = Blocked::for_good("an operator has decided that its effect stands");
        assert_eq!(revalidate::call(&skipped), Err(why));
    }
}
