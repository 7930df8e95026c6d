//! Calls that are known, named by items or looked for, and their effects.

use super::*;

#[test]
fn items_without_a_call_name_the_calls_to_look_for() {
    let rules = Rules {
        call_id: Some(pointer("/call")),
        ..rules()
    };
    let items = vec![rules.item(&with(item(1), "call", FIRST))];
    let mut pairing = Pairing::new(&rules, window(), items);
    assert!(pairing.names_unknown_calls());
    assert_eq!(
        pairing.calls_to_look_for(),
        [CallId(Uuid::from_u128(1))].into()
    );
    pairing.add(&call(1, 10, succeeded(1)));
    assert!(!pairing.names_unknown_calls());
    assert_eq!(pairing.finish(&[]).anomalies, []);
}

fn cancelled(item: Value) -> Value {
    with(item, "status", "cancelled")
}

/// The comparison if these calls of other tools are known, too.
fn marked_known(rules: &Rules, items: &[Value], others: &[Record]) -> Comparison {
    let items = items.iter().map(|item| rules.item(item)).collect();
    let mut pairing = Pairing::new(rules, window(), items);
    others.iter().for_each(|other| pairing.mark_known(other));
    pairing.finish(&[])
}

fn naming_calls() -> Rules {
    Rules {
        call_id: Some(pointer("/call")),
        ..rules()
    }
}

#[test]
fn an_effect_is_claimed_by_a_call_of_another_tool_that_it_names_or_has_the_key_of() {
    let theirs = [call(1, 1_500, succeeded(1))];
    let named = with(with(item(1), "key", "another"), "call", FIRST);
    for item in [
        item(1),
        named.clone(),
        with(named.clone(), "key", Value::Null),
    ] {
        let found = marked_known(&naming_calls(), std::slice::from_ref(&item), &theirs);
        assert_eq!((brief(&found), found.undecided), (vec![], 1), "{item}");
        let found = marked_known(&naming_calls(), &[item], &[call(2, 1_500, succeeded(2))]);
        assert_eq!(
            (brief(&found), found.undecided),
            (vec![(Kind::Orphan, "o1")], 0)
        );
    }
}

#[test]
fn a_call_that_an_item_without_its_key_names_is_not_missing() {
    let items = [with(with(item(1), "key", Value::Null), "call", FIRST)];
    let found = reconciled(&naming_calls(), &[call(1, 1_500, succeeded(1))], &items);
    assert_eq!((brief(&found), found.undecided), (vec![], 2));
}

#[test]
fn older_calls_are_looked_for_where_effects_outnumber_executed_calls() {
    let older = |call: &Record, items: &[Value]| {
        let rules = naming_calls();
        let items = items.iter().map(|item| rules.item(item)).collect();
        let mut pairing = Pairing::new(&rules, window(), items);
        pairing.add(call);
        pairing.names_unknown_calls()
    };
    let (ok, unknown) = (
        call(1, 1_500, succeeded(1)),
        call(1, 1_500, State::Unknown(String::new())),
    );
    let two = [item(1), with(item(1), "id", "o9")];
    assert!(!older(&ok, &two[..1]));
    assert!(
        older(&ok, &two),
        "one may be that of an older call of the same key"
    );
    assert!(
        older(&unknown, &two[..1]),
        "it may be that of an older call"
    );
    assert!(older(&call(1, 1_500, failed()), &two[..1]));
    let its_own = two.clone().map(|item| with(item, "call", FIRST));
    assert!(!older(&ok, &its_own), "they say whose they are");
    assert!(!older(&unknown, &its_own[..1]));
}

#[test]
fn an_effect_that_an_unread_call_may_have_made_settles_nothing() {
    let rules = naming_calls();
    let settled = |item: &Value, doubts: &[Doubt]| {
        let mut pairing = Pairing::new(&rules, window(), vec![rules.item(item)]);
        pairing.add(&call(1, 1_500, State::Unknown(String::new())));
        let found = pairing.finish(doubts);
        (found.anomalies.len(), found.undecided)
    };
    assert_eq!(settled(&item(1), &[]), (1, 0));
    assert_eq!(settled(&item(1), &[Doubt::Unread]), (0, 1));
    assert_eq!(
        settled(&with(item(1), "call", FIRST), &[Doubt::Unread]),
        (1, 0),
        "it says whose it is"
    );
}

#[test]
fn an_effect_older_than_the_whole_ledger_is_surplus_only_with_proof() {
    for (since, known) in [
        (None, false),
        (Some(at(801)), false),
        (Some(at(800)), true),
        (Some(at(0)), true),
    ] {
        assert_eq!(window().is_known_since(since), known, "{since:?}");
    }
    let rules = naming_calls();
    let items = [
        item(1),
        item(2),
        with(item(2), "id", "o9"),
        with(with(item(2), "id", "o8"), "call", SECOND),
    ];
    let items = items.iter().map(|item| rules.item(item)).collect();
    let mut pairing = Pairing::new(&rules, window(), items);
    pairing.add(&call(2, 1_500, succeeded(2)));
    let found = pairing.finish(&[Doubt::Young]);
    let doubts: Vec<_> = found
        .anomalies
        .iter()
        .map(|one| (one.id.as_str(), one.doubt))
        .collect();
    assert_eq!(
        doubts,
        [
            ("o1", Some(Doubt::Young)),
            ("o8", None),
            ("o9", Some(Doubt::Young))
        ]
    );
}

#[test]
fn an_item_belongs_only_to_the_call_that_it_names() {
    // The key was forgotten and called again: the first call has made the effect, the second is unknown.
    let first = call(1, 500, succeeded(7));
    let mut second = call(2, 1_500, State::Unknown(String::new()));
    Arc::make_mut(&mut second.intent).lookup = first.intent.lookup;
    let its = with(item(1), "call", FIRST);
    let found = reconciled(
        &naming_calls(),
        &[second.clone(), first],
        std::slice::from_ref(&its),
    );
    assert_eq!((found.matched, brief(&found)), (1, vec![]));
    // The named call is in another ledger, or of another tool.
    let rules = naming_calls();
    let mut pairing = Pairing::new(&rules, window(), vec![rules.item(&its)]);
    pairing.add(&second);
    pairing.mark_known(&call(1, 500, succeeded(7)));
    let found = pairing.finish(&[]);
    assert_eq!((brief(&found), found.undecided), (vec![], 1));
}

#[test]
fn nothing_is_surplus_while_its_call_may_have_been_executed() {
    let by = Path::read("/args/business_id").expect("a path");
    let rules = Rules {
        join: Join::At(by),
        ..rules()
    };
    let items = [
        with(item(1), "key", "B1"),
        with(with(item(1), "id", "o9"), "key", "B1"),
    ];
    let found = reconciled(
        &rules,
        &[call(1, 1_500, State::Unknown(String::new()))],
        &items,
    );
    assert_eq!((brief(&found), found.undecided), (vec![], 2), "{found:?}");
}

#[test]
fn an_unknown_call_is_settled_if_all_calls_of_its_key_were_read() {
    let unknown = call(1, 1_500, State::Unknown(String::new()));
    let kinds = |is_read: bool| {
        let rules = rules();
        let mut pairing = Pairing::new(&rules, window(), vec![rules.item(&item(1))]);
        pairing.add(&unknown);
        let keys = pairing.keys_to_read();
        let (key, name) = keys
            .first()
            .cloned()
            .expect("it may have been one of before");
        let intent = &unknown.intent;
        assert_eq!(
            name,
            (
                intent.tenant.clone(),
                intent.tool.clone(),
                intent.key.clone()
            )
        );
        if is_read {
            pairing.has_read(key);
            assert!(!pairing.names_unknown_calls());
        }
        let found = pairing.finish(&[Doubt::Unread]);
        found
            .anomalies
            .iter()
            .map(|anomaly| anomaly.kind)
            .collect::<Vec<_>>()
    };
    assert_eq!((kinds(false), kinds(true)), (vec![], vec![Kind::Settled]));
}

#[test]
fn an_effect_that_is_older_than_an_unknown_call_does_not_settle_it() {
    // The key was forgotten with its first call and called again: the second call was never executed.
    let rules = Rules {
        time: Some(pointer("/made_at")),
        call_id: Some(pointer("/call")),
        ..rules()
    };
    let made = |id: &str, second: i64| {
        let item = with(item(1), "id", id);
        with(item, "made_at", at(second).as_second())
    };
    let found = |items: &[Value]| {
        let unknown = call(1, 1_500, State::Unknown(String::new()));
        let found = reconciled(&rules, &[unknown], items);
        let kinds = found
            .anomalies
            .iter()
            .map(|one| (one.kind, one.item.clone()));
        let settled: Vec<_> = kinds
            .filter(|(kind, _)| *kind == Kind::Settled)
            .map(|(_, item)| item.expect("an item").id)
            .collect();
        (settled, found.anomalies.len(), found.undecided)
    };
    let by = |id: &str| (vec![Some(id.to_owned())], 1, 0);
    // Clocks may differ by the margin of 100 seconds.
    assert_eq!(found(&[made("o1", 1_399)]), (vec![], 0, 1));
    assert_eq!(found(&[made("o1", 1_400)]), by("o1"));
    assert_eq!(
        found(&[item(1)]),
        by("o1"),
        "its source does not say when it was made"
    );
    let its_own = with(made("o1", 1_000), "call", FIRST);
    assert_eq!(found(&[its_own]), by("o1"), "it says whose it is");
    // The later effect is that of the call, in whichever order they are listed.
    let (settled, ..) = found(&[made("o1", 1_000), made("o9", 1_505)]);
    assert_eq!(settled, [Some("o9".to_owned())]);
}

#[test]
fn an_adopted_call_has_the_effect_from_which_it_was_adopted_and_another_is_in_doubt() {
    let adopted = adopted_from("o1");
    for items in [
        [item(1), with(item(1), "id", "o9")],
        [with(item(1), "id", "o9"), item(1)],
    ] {
        let found = reconciled(&rules(), std::slice::from_ref(&adopted), &items);
        assert_eq!(brief(&found), [(Kind::Duplicate, "o9")]);
        assert_eq!(found.anomalies[0].doubt, Some(Doubt::Forgotten));
        assert_eq!(found.matched, 1);
    }
}

#[test]
fn of_several_effects_of_a_key_without_a_call_the_newest_has_no_rival() {
    let rules = Rules {
        time: Some(pointer("/made_at")),
        ..rules()
    };
    let made = |id: &str, second: Option<i64>| {
        let item = with(item(1), "id", id);
        match second {
            Some(second) => with(item, "made_at", at(second).as_second()),
            None => item,
        }
    };
    let rivals = |items: &[Value]| {
        let found = reconciled(&rules, &[], items);
        let rivals = found.anomalies.into_iter().map(|one| one.rival);
        rivals.collect::<Vec<_>>()
    };
    let newer = |id: &str| Some(format!("{id} has the same key, and is newer"));
    assert_eq!(rivals(&[made("o1", Some(1_500))]), [None]);
    assert_eq!(rivals(&[made("o1", None)]), [None]);
    let two = [made("o1", Some(1_500)), made("o2", Some(1_400))];
    assert_eq!(rivals(&two), [None, newer("o1")]);
    let three = [
        made("o3", Some(1_300)),
        made("o1", Some(1_500)),
        made("o2", Some(1_500)),
    ];
    assert_eq!(
        rivals(&three),
        [newer("o2"), None, newer("o2")],
        "o1, o2, o3"
    );
    let unsaid = rivals(&[made("o1", Some(1_500)), made("o2", None)]);
    let says = |rival: &Option<String>| {
        rival
            .as_ref()
            .is_some_and(|why| why.contains("does not say"))
    };
    assert!(unsaid.iter().all(says) && unsaid.len() == 2, "{unsaid:?}");
    let taken_back = [made("o1", Some(1_400)), cancelled(made("o2", Some(1_500)))];
    assert_eq!(rivals(&taken_back), [None]);
    let other_key = with(with(item(2), "id", "o9"), "made_at", at(1_600).as_second());
    assert_eq!(rivals(&[made("o1", Some(1_500)), other_key]), [None, None]);
}
