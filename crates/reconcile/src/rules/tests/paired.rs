//! Pairs of items and calls, and judgements of the rest.

use super::*;

fn pairing<'a>(rules: &'a Rules, items: &[Value]) -> Pairing<'a> {
    let items = items.iter().map(|item| rules.item(item)).collect();
    Pairing::new(rules, window(), items)
}

fn naming_calls() -> Rules {
    Rules {
        call_id: Some(pointer("/call")),
        ..rules()
    }
}

fn joined_at(path: &str) -> Rules {
    Rules {
        join: Join::At(Path::read(path).expect("a path")),
        ..rules()
    }
}

fn unknown() -> State {
    State::Unknown(String::new())
}

fn cancelled(item: Value) -> Value {
    with(item, "status", "cancelled")
}

#[test]
fn one_name_under_two_keys_is_two_effects() {
    let (one, two) = (item(1), with(item(2), "id", "o1"));
    // A list that moves on between pages may repeat an item often.
    for again in [&one, &two] {
        let said = [one.clone(), two.clone(), again.clone()];
        let found = reconciled(&rules(), &[], &said);
        assert_eq!(brief(&found), [(Kind::Orphan, "o1"), (Kind::Orphan, "o1")]);
    }
    let found = reconciled(&rules(), &[], &[one, two]);
    let keys: BTreeSet<_> = found.anomalies.iter().map(|one| one.key.clone()).collect();
    assert_eq!(keys, BTreeSet::from([key_of(1), key_of(2)]));
    assert!(found.anomalies.iter().all(|one| one.source == "shop"));
}

#[test]
fn a_call_that_is_read_twice_counts_once() {
    let ok = || call(1, 1_500, succeeded(1));
    check(&[ok(), ok()], &[item(1)], 1, &[]);
    check(&[ok(), ok()], &[], 0, &[(Kind::Missing, FIRST)]);
}

#[test]
fn an_item_is_unclaimed_as_long_as_no_call_of_any_tool_has_its_key() {
    let (rules, elsewhere) = (rules(), joined_at("/args/amount"));
    let unclaimed = |item: Value, change: &dyn Fn(&mut Pairing<'_>)| {
        let mut pairing = pairing(&rules, &[item]);
        change(&mut pairing);
        pairing.has_unclaimed_items()
    };
    let ok = |id| call(id, 1_500, succeeded(id));
    assert!(unclaimed(item(1), &|_| {}));
    assert!(unclaimed(item(1), &|pairing| pairing.mark_known(&ok(2))));
    assert!(unclaimed(item(1), &|pairing| pairing.add(&ok(2))));
    assert!(!unclaimed(item(1), &|pairing| pairing.mark_known(&ok(1))));
    assert!(!unclaimed(item(1), &|pairing| pairing.add(&ok(1))));
    assert!(!unclaimed(item(1), &|pairing| pairing.add(&call(
        1,
        1_500,
        failed()
    ))));
    assert!(!unclaimed(item(1), &|pairing| pairing.has_read(key_of(1))));
    assert!(!unclaimed(cancelled(item(1)), &|_| {}));
    assert!(!pairing(&elsewhere, &[item(1)]).has_unclaimed_items());
}

#[test]
fn only_items_that_are_effects_name_calls_to_look_for() {
    let rules = naming_calls();
    let items = [
        with(item(2), "call", SECOND),
        with(item(1), "call", FIRST),
        with(with(item(1), "id", "o9"), "call", FIRST),
        cancelled(with(
            item(3),
            "call",
            "00000000-0000-0000-0000-000000000003",
        )),
    ];
    let mut pairing = pairing(&rules, &items);
    let ids = [1, 2].map(|id| CallId(Uuid::from_u128(id)));
    assert_eq!(pairing.calls_to_look_for(), ids.into());
    pairing.mark_known(&call(1, 10, succeeded(1)));
    assert_eq!(pairing.calls_to_look_for(), [ids[1]].into());
    assert_eq!(pairing.calls_to_look_for(), [ids[1]].into());
}

#[test]
fn a_call_that_an_item_names_has_had_that_effect_and_no_other() {
    let rules = naming_calls();
    let its_own = with(item(1), "call", FIRST);
    let another = with(item(1), "id", "o9");
    let mut named = pairing(&rules, &[its_own, another.clone()]);
    named.add(&call(1, 1_500, succeeded(1)));
    assert!(named.names_unknown_calls());
    let mut unnamed = pairing(&rules, &[another]);
    unnamed.add(&call(1, 1_500, succeeded(1)));
    assert!(!unnamed.names_unknown_calls());
    let mut taken_back = pairing(&rules, &[cancelled(item(1))]);
    taken_back.add(&call(1, 1_500, failed()));
    assert!(!taken_back.names_unknown_calls());
}

#[test]
fn older_calls_are_read_only_for_keys_of_unknown_calls() {
    let read = |rules: &Rules, key: &str, state| {
        let items = [item(1), with(item(1), "id", "o9")];
        let items = items.map(|item| with(item, "key", key));
        let mut pairing = pairing(rules, &items);
        pairing.add(&call(1, 1_500, state));
        pairing.keys_to_read().len()
    };
    let (by_key, by_args) = (rules(), joined_at("/args/business_id"));
    assert_eq!(read(&by_key, &key_of(1), unknown()), 1);
    assert_eq!(read(&by_key, &key_of(1), succeeded(1)), 0);
    assert_eq!(read(&by_key, &key_of(1), failed()), 0);
    assert_eq!(read(&by_args, "B1", unknown()), 0);
}

#[test]
fn a_call_whose_key_cannot_be_read_may_have_made_any_item_unless_it_failed() {
    let rules = joined_at("/args/business_id");
    for (state, doubt) in [
        (succeeded(1), Some(Doubt::Unreadable)),
        (unknown(), Some(Doubt::Unreadable)),
        (State::Running, Some(Doubt::Unreadable)),
        (State::Compensated(None), Some(Doubt::Unreadable)),
        (failed(), None),
    ] {
        for args in ["{}", "{\"business_id\":\"[redacted]\"}", "nonsense"] {
            let mut call = call(1, 10, state.clone());
            let args = args.replace("[redacted]", redact::MASK);
            Arc::make_mut(&mut call.intent).args = args.into();
            let found = reconciled(&rules, &[call], &[with(item(9), "key", "B9")]);
            assert_eq!(brief(&found), [(Kind::Orphan, "o9")]);
            assert_eq!(found.anomalies[0].doubt, doubt, "{state:?}");
            assert_eq!(found.undecided, 0);
        }
    }
}

#[test]
fn a_call_is_judged_by_the_time_of_its_effect() {
    let at_times = |created: i64, attempts, updated: i64, lease: i64| {
        let mut call = call(1, created, succeeded(1));
        (call.attempts, call.updated_at) = (attempts, at(updated));
        call.attempt.lease_until = at(lease);
        if attempts > 1 {
            call.attempt.run_started_at = at(updated - 10);
        }
        let found = reconciled(&rules(), &[call], &[]);
        (found.anomalies.len(), found.undecided)
    };
    assert_eq!(at_times(1_500, 1, 1_510, 1_540), (1, 0));
    // The record changed again after the call had ended: it ended when its lease did, at the latest.
    assert_eq!(at_times(1_500, 1, 2_500, 1_540), (1, 0));
    assert_eq!(at_times(1_500, 1, 2_500, 2_000), (0, 0));
    // The border lies a margin before the window. The begin counts only where an earlier run was possible.
    assert_eq!(at_times(900, 2, 1_510, 1_540), (1, 0));
    assert_eq!(at_times(899, 2, 1_510, 1_540), (0, 1));
    assert_eq!(at_times(900, 1, 1_510, 1_540), (1, 0));
    assert_eq!(at_times(899, 1, 1_510, 1_540), (0, 1));
    assert_eq!(at_times(10, 2, 2_510, 2_540), (0, 0));
    // The call ran for the first time long after its request.
    let mut late = call(1, 1_500, succeeded(1));
    Arc::make_mut(&mut late.intent).created_at = at(10);
    assert_eq!(reconciled(&rules(), &[late], &[]).anomalies.len(), 1);
}

#[test]
fn only_calls_that_succeeded_are_counted_as_undecided() {
    for (state, undecided) in [
        (succeeded(1), 1),
        (unknown(), 0),
        (State::Running, 0),
        (failed(), 0),
        (State::Compensated(None), 0),
    ] {
        let call = Record {
            updated_at: at(1_500),
            ..call(1, 10, state)
        };
        let call = Record {
            attempt: Attempt {
                lease_until: at(1_600),
                ..call.attempt
            },
            ..call
        };
        assert_eq!(reconciled(&rules(), &[call], &[]).undecided, undecided);
    }
}

#[test]
fn a_remaining_effect_of_a_compensated_call_is_surplus() {
    let compensated = |content: Option<&str>| {
        let content = content.map(|json| Content::Stored(json.to_owned().into()));
        call(1, 1_500, State::Compensated(content))
    };
    let another = || with(item(1), "id", "o9");
    let found = check(
        &[compensated(None)],
        &[item(1), another()],
        0,
        &[(Kind::Duplicate, "o9")],
    );
    assert_eq!(found.anomalies[0].doubt, Some(Doubt::Unnamed));
    let found = check(
        &[compensated(Some("{\"id\":\"o1\"}"))],
        &[another(), cancelled(item(1))],
        0,
        &[(Kind::Duplicate, "o9")],
    );
    assert_eq!(found.anomalies[0].doubt, None);
    // The undone effect is that of the call; the remaining one is not.
    check(
        &[compensated(None)],
        &[another(), cancelled(item(1))],
        0,
        &[(Kind::Duplicate, "o9")],
    );
}

#[test]
fn an_effect_that_a_running_call_may_have_made_is_undecided() {
    let items = [
        item(1),
        with(item(1), "id", "o8"),
        with(item(1), "id", "o9"),
    ];
    let found = check(&[call(1, 1_500, State::Running)], &items, 0, &[]);
    assert_eq!(found.undecided, 2);
    let items = [item(1), cancelled(with(item(1), "id", "o9"))];
    let found = check(&[call(1, 1_500, State::Running)], &items, 0, &[]);
    assert_eq!(found.undecided, 0, "what was taken back is not an effect");
}

#[test]
fn a_difference_is_told_in_few_words() {
    let named = |amount: Value| {
        let found = reconciled(
            &rules(),
            &[call(1, 1_500, succeeded(1))],
            &[with(item(1), "amount", amount)],
        );
        found.anomalies[0].detail.clone()
    };
    // 100 characters, quotation marks included.
    let full = "x".repeat(98);
    assert_eq!(
        named(json!(full)),
        format!("/amount is \"{full}\" at the source and 1 in the call")
    );
    assert_eq!(
        named(json!(format!("{full}y"))),
        format!("/amount is \"{full}y… at the source and 1 in the call")
    );
    let mut nothing = item(1);
    nothing.as_object_mut().expect("an object").remove("amount");
    let found = reconciled(&rules(), &[call(1, 1_500, succeeded(1))], &[nothing]);
    assert_eq!(
        found.anomalies[0].detail,
        "/amount is nothing at the source and 1 in the call"
    );
}

#[test]
fn an_effect_that_names_another_call_is_in_doubt() {
    let unknown = || with(item(1), "call", SECOND);
    let doubt = |state, items: &[Value]| {
        let found = reconciled(&naming_calls(), &[call(1, 1_500, state)], items);
        assert_eq!(found.anomalies.len(), 1, "{found:?}");
        found.anomalies[0].doubt
    };
    assert_eq!(doubt(failed(), &[unknown()]), Some(Doubt::UnknownCall));
    assert_eq!(doubt(failed(), &[with(item(1), "call", FIRST)]), None);
    assert_eq!(doubt(failed(), &[item(1)]), None);
    let surplus = with(unknown(), "id", "o9");
    assert_eq!(
        doubt(succeeded(1), &[item(1), surplus]),
        Some(Doubt::UnknownCall)
    );
}

/// Two calls of one key, as after the key was forgotten.
fn two_calls(first: State, second: State) -> [Record; 2] {
    let (first, mut second) = (call(1, 1_400, first), call(2, 1_500, second));
    Arc::make_mut(&mut second.intent).lookup = first.intent.lookup;
    [first, second]
}

fn of_first_key(id: &str) -> Value {
    with(item(1), "id", id)
}

#[test]
fn of_several_calls_only_an_item_that_is_surely_its_own_is_compared() {
    let mismatches = |items: &[Value]| {
        let calls = two_calls(succeeded(1), succeeded(2));
        let found = reconciled(&naming_calls(), &calls, items).anomalies;
        let is_mismatch = |one: &&Anomaly| one.kind == Kind::Mismatch;
        let found = found.iter().filter(is_mismatch).map(|one| one.call_id);
        found
            .map(|id| id.map_or(0, |id| id.0.as_u128()))
            .collect::<Vec<_>>()
    };
    let fits = || with(of_first_key("o2"), "amount", 2);
    let differs = |id| with(of_first_key(id), "amount", 7);
    assert_eq!(
        mismatches(&[differs("o1"), fits()]),
        [1],
        "its result says so"
    );
    let its_own = with(differs("x"), "call", FIRST);
    assert_eq!(mismatches(&[its_own, fits()]), [1], "it says so itself");
    assert_eq!(mismatches(&[differs("x"), fits()]), []);
    assert_eq!(mismatches(&[differs("o1"), differs("o2")]), [1, 2]);
}

#[test]
fn a_mismatch_is_in_doubt_only_where_the_item_may_be_of_another_call() {
    let doubt = |id: &str| {
        let rules = rules();
        let mut pairing = pairing(&rules, &[with(of_first_key(id), "amount", 7)]);
        pairing.add(&call(1, 1_500, succeeded(1)));
        let found = pairing.finish(&[Doubt::Young]);
        assert_eq!(brief(&found), [(Kind::Mismatch, FIRST)]);
        found.anomalies[0].doubt
    };
    assert_eq!(doubt("o1"), None);
    assert_eq!(doubt("x"), Some(Doubt::Young));
}

#[test]
fn a_surplus_effect_is_that_of_the_call_that_it_names_or_of_the_last_that_has_run() {
    let surplus = |calls: &[Record], items: &[Value]| {
        let found = reconciled(&naming_calls(), calls, items).anomalies;
        let said = found.iter().map(|one| {
            let id = one.call_id.map_or(0, |id| id.0.as_u128());
            (one.kind, id, one.doubt)
        });
        said.collect::<Vec<_>>()
    };
    let names = |id, call| with(of_first_key(id), "call", call);
    let both = two_calls(succeeded(1), succeeded(2));
    let own = || [of_first_key("o1"), with(of_first_key("o2"), "amount", 2)];
    let with_one = |more: Value| [&own()[..], &[more]].concat();
    assert_eq!(
        surplus(&both, &with_one(of_first_key("x"))),
        [(Kind::Duplicate, 2, None)]
    );
    let failed_first = two_calls(failed(), succeeded(2));
    let items = [own()[1].clone(), names("o8", FIRST), names("o9", FIRST)];
    let orphan = (Kind::Orphan, 1, None);
    assert_eq!(surplus(&failed_first, &items), [orphan, orphan]);
    let failed_second = two_calls(succeeded(1), failed());
    let items = [of_first_key("o1"), of_first_key("x"), of_first_key("y")];
    assert_eq!(
        surplus(&failed_second, &items),
        [(Kind::Orphan, 2, None), (Kind::Duplicate, 1, None)]
    );
    // The first call does not take the effect that names the second.
    assert_eq!(
        surplus(
            &both,
            &["x1", "x2"].map(|id| with(names(id, SECOND), "amount", 2))
        ),
        [
            (Kind::Missing, 1, None),
            (Kind::Duplicate, 2, Some(Doubt::Unnamed))
        ]
    );
    // An unknown call id may be that of an earlier, forgotten call.
    let unknown = "00000000-0000-0000-0000-000000000009";
    assert_eq!(surplus(&both[..1], &[names("x1", unknown)]), []);
}

#[test]
fn a_call_whose_server_only_asked_questions_is_not_missing() {
    let with_result = |result: &'static str| {
        let content = Content::Stored(result.into());
        call(1, 1_500, State::Succeeded(content))
    };
    let asked = with_result(r#"{"resultType":"input_required","requestState":"s"}"#);
    check(std::slice::from_ref(&asked), &[], 0, &[]);
    check(&[asked], &[item(1)], 1, &[]);
    let done = with_result(r#"{"resultType":"complete"}"#);
    check(&[done], &[], 0, &[(Kind::Missing, FIRST)]);
}
