//! What is planted is found, and nothing else.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::pairing::Pairing;
use super::pairing::is_same;
use super::*;
use crate::core::key::{Lookup, Source};
use crate::core::record::{Attempt, AttemptId, InstanceId, Intent, Record, State};
use crate::core::record::{Content, Failure, FailureKind};
use crate::core::work::{Blocked, Blocker};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

fn pointer(text: &str) -> Pointer {
    text.parse().expect("a pointer")
}

fn rules() -> Rules {
    Rules {
        source: "shop".into(),
        key: pointer("/key"),
        join: Join::Key,
        id: Some(pointer("/id")),
        call_id: None,
        compare: vec![Compare {
            item: pointer("/amount"),
            call: Path::read("/args/amount").expect("a path"),
        }],
        status: Some(pointer("/status")),
        ignore: vec!["cancelled".into()],
        ignores_keyless: false,
    }
}

/// What is judged lies between second 1000 and 2000.
fn window() -> Window {
    Window {
        since: at(1_000),
        until: at(2_000),
        margin: SignedDuration::from_secs(100),
    }
}

fn succeeded(id: u128) -> State {
    State::Succeeded(Content::Kept(
        format!("{{\"order\":{{\"id\":\"o{id}\"}}}}").into(),
    ))
}

fn failed() -> State {
    let kind = FailureKind::NotExecuted;
    State::Failed(Failure {
        kind,
        status: None,
        body: None,
        retry_after: None,
        why: "no".into(),
    })
}

/// A call of 10 seconds, made at this second.
fn call(id: u128, second: i64, state: State) -> Record {
    let lookup = Lookup::new("shop", "t", &format!("k{id}"));
    let intent = Intent {
        call_id: CallId(Uuid::from_u128(id)),
        tenant: "shop".into(),
        tool: "t".into(),
        lookup,
        names: Vec::new(),
        recipe: crate::core::recipe::RecipeId::default(),
        key: format!("k{id}"),
        key_source: Source::Runtime,
        fingerprint: [0; 32],
        user_id: String::new(),
        session_id: String::new(),
        saga_id: String::new(),
        trace_id: String::new(),
        made_by: "agent".into(),
        similar: None,
        args: format!("{{\"amount\":{id},\"business_id\":\"B{id}\"}}").into(),
        created_at: at(second),
    };
    let attempt = Attempt {
        id: AttemptId(Uuid::from_u128(1)),
        owner: InstanceId(Uuid::from_u128(2)),
        number: 1,
        run_started_at: at(second),
        lease_until: at(second + 40),
    };
    Record {
        intent: Arc::new(intent),
        version: 2,
        state,
        attempt,
        attempts: 1,
        earlier_attempt_may_have_run: false,
        fencing: None,
        similar_to: None,
        check: None,
        latency_ms: None,
        updated_at: at(second + 10),
        expires_at: None,
        retain_until: None,
        undo: None,
        aliases: Vec::new(),
    }
}

fn key_of(id: u128) -> String {
    Lookup::new("shop", "t", &format!("k{id}")).for_tool()
}

/// The effect of this call.
fn item(id: u128) -> Value {
    json!({ "key": key_of(id), "id": format!("o{id}"), "amount": id, "status": "created" })
}

fn with(mut item: Value, name: &str, value: impl Into<Value>) -> Value {
    item[name] = value.into();
    item
}

fn reconciled(rules: &Rules, calls: &[Record], items: &[Value]) -> Found {
    let items = items.iter().map(|item| rules.item(item)).collect();
    let mut pairing = Pairing::new(rules, window(), items);
    calls.iter().for_each(|call| pairing.add(call));
    pairing.finish(&[])
}

/// Kind and id of each.
fn brief(found: &Found) -> Vec<(Kind, &str)> {
    found
        .anomalies
        .iter()
        .map(|anomaly| (anomaly.kind, anomaly.id.as_str()))
        .collect()
}

fn check(calls: &[Record], items: &[Value], matched: u64, anomalies: &[(Kind, &str)]) -> Found {
    let found = reconciled(&rules(), calls, items);
    assert_eq!(
        (found.matched, brief(&found)),
        (matched, anomalies.to_vec()),
        "{found:#?}"
    );
    found
}

const SECOND: &str = "00000000-0000-0000-0000-000000000002";
const FIRST: &str = "00000000-0000-0000-0000-000000000001";

#[test]
fn what_agrees_is_counted_and_nothing_else_said() {
    check(&[call(1, 1_500, succeeded(1))], &[item(1)], 1, &[]);
    check(&[], &[], 0, &[]);
}

#[test]
fn each_kind_of_anomaly_is_named() {
    let ok = || call(1, 1_500, succeeded(1));
    check(&[ok()], &[], 0, &[(Kind::Missing, FIRST)]);
    check(&[], &[item(1)], 0, &[(Kind::Orphan, "o1")]);
    check(
        &[],
        &[with(item(1), "key", Value::Null)],
        0,
        &[(Kind::Orphan, "o1")],
    );
    check(
        &[ok()],
        &[item(1), with(item(1), "id", "o9")],
        1,
        &[(Kind::Duplicate, "o9")],
    );
    let found = check(
        &[ok()],
        &[with(item(1), "amount", 7)],
        1,
        &[(Kind::Mismatch, FIRST)],
    );
    assert_eq!(
        found.anomalies[0].detail,
        "/amount is 7 at the source and 1 in the call"
    );
    check(
        &[call(1, 1_500, State::Unknown(String::new()))],
        &[item(1)],
        0,
        &[(Kind::Settled, FIRST)],
    );
    let found = check(
        &[call(1, 1_500, failed())],
        &[item(1)],
        0,
        &[(Kind::Orphan, "o1")],
    );
    assert_eq!(
        found.anomalies[0].call_id,
        Some(CallId(Uuid::from_u128(1))),
        "its call is named"
    );
}

#[test]
fn the_effect_that_the_result_names_stays_and_if_it_names_none_nothing_is_undone() {
    let ok = || call(1, 1_500, succeeded(1));
    let found = check(
        &[ok()],
        &[with(item(1), "id", "o9"), item(1)],
        1,
        &[(Kind::Duplicate, "o9")],
    );
    assert_eq!(found.anomalies[0].doubt, None);
    let nameless = [with(item(1), "id", "o7"), with(item(1), "id", "o8")];
    let found = check(&[ok()], &nameless, 1, &[(Kind::Duplicate, "o8")]);
    assert_eq!(found.anomalies[0].doubt, Some(Doubt::Untold));
    let taken_back = [
        with(item(1), "status", "cancelled"),
        with(item(1), "id", "o7"),
    ];
    let found = check(&[ok()], &taken_back, 1, &[(Kind::Duplicate, "o7")]);
    assert_eq!(
        found.anomalies[0].doubt,
        Some(Doubt::Untold),
        "the customer would be left with none"
    );
}

#[test]
fn what_is_still_under_way_or_near_the_border_is_no_alarm() {
    check(&[call(1, 1_500, State::Running)], &[item(1)], 0, &[]);
    check(&[call(1, 1_500, State::Running)], &[], 0, &[]);
    check(
        &[call(1, 1_500, State::Unknown(String::new()))],
        &[],
        0,
        &[],
    );
    check(&[call(1, 1_500, failed())], &[], 0, &[]);
    for second in [900, 989, 1_990, 2_500] {
        check(&[call(1, second, succeeded(1))], &[], 0, &[]);
        check(&[call(1, second, succeeded(1))], &[item(1)], 1, &[]);
    }
    for second in [990, 1_989] {
        check(
            &[call(1, second, succeeded(1))],
            &[],
            0,
            &[(Kind::Missing, FIRST)],
        );
    }
}

#[test]
fn a_call_that_was_long_in_doubt_is_counted_and_not_guessed_at() {
    let compensated = Record {
        attempts: 2,
        ..call(1, 1_500, succeeded(1))
    };
    let mut intent = compensated.intent.as_ref().clone();
    intent.created_at = at(10);
    let compensated = Record {
        intent: Arc::new(intent),
        ..compensated
    };
    let found = check(&[compensated], &[], 0, &[]);
    assert_eq!(found.undecided, 1);
}

#[test]
fn what_was_taken_back_at_the_source_does_not_count_as_surplus_and_is_not_missing() {
    let cancelled = || with(item(1), "status", "cancelled");
    check(&[call(1, 1_500, succeeded(1))], &[cancelled()], 1, &[]);
    check(&[], &[cancelled()], 0, &[]);
    check(&[call(1, 1_500, failed())], &[cancelled()], 0, &[]);
    check(
        &[call(1, 1_500, succeeded(1))],
        &[item(1), with(cancelled(), "id", "o9")],
        1,
        &[],
    );
    check(
        &[call(1, 1_500, succeeded(1))],
        &[with(cancelled(), "id", "o9"), item(1)],
        1,
        &[],
    );
}

#[test]
fn an_item_that_is_said_twice_is_one_effect() {
    let ok = || call(1, 1_500, succeeded(1));
    check(&[ok()], &[item(1), item(1)], 1, &[]);
    check(
        &[ok()],
        &[item(1), with(item(1), "status", "cancelled")],
        1,
        &[],
    );
    check(&[], &[item(1), item(1)], 0, &[(Kind::Orphan, "o1")]);
    let nameless = Rules {
        id: None,
        ..rules()
    };
    assert_eq!(
        brief(&reconciled(&nameless, &[ok()], &[item(1), item(1)])),
        []
    );
}

#[test]
fn items_without_a_key_may_be_other_peoples() {
    let rules = Rules {
        ignores_keyless: true,
        ..rules()
    };
    assert_eq!(
        brief(&reconciled(
            &rules,
            &[],
            &[with(item(1), "key", Value::Null)]
        )),
        []
    );
}

#[test]
fn calls_are_joined_by_what_stands_in_them() {
    let by = |text: &str| Rules {
        join: Join::At(Path::read(text).expect("a path")),
        ..rules()
    };
    let ok = || call(1, 1_500, succeeded(1));
    for (rules, key) in [
        (by("/args/business_id"), json!("B1")),
        (by("/args/amount"), json!(1)),
        (by("/args/amount"), json!("1")),
        (by("/result/order/id"), json!("o1")),
    ] {
        let found = reconciled(&rules, &[ok()], &[with(item(1), "key", key)]);
        assert_eq!((found.matched, found.anomalies.len()), (1, 0), "{found:?}");
    }
    // Two calls of one business key, as after the key was forgotten: each has its effect.
    let mut again = call(2, 1_600, succeeded(2));
    Arc::make_mut(&mut again.intent).args = "{\"amount\":2,\"business_id\":\"B1\"}".into();
    let business = by("/args/business_id");
    let items = [with(item(2), "key", "B1"), with(item(1), "key", "B1")];
    let found = reconciled(&business, &[ok(), again.clone()], &items);
    assert_eq!((found.matched, found.anomalies.len()), (2, 0), "{found:?}");
    let found = reconciled(&business, &[ok(), again], &items[..1]);
    assert_eq!(
        brief(&found),
        [(Kind::Missing, FIRST)],
        "the item is the other one's: its result says so"
    );
    let nowhere = reconciled(&by("/args/nothing"), &[ok()], &[]);
    assert_eq!((nowhere.undecided, nowhere.anomalies.len()), (1, 0));
}

#[test]
fn items_of_nobody_name_the_calls_to_look_for() {
    let rules = Rules {
        call_id: Some(pointer("/call")),
        ..rules()
    };
    let items = vec![rules.item(&with(item(1), "call", FIRST))];
    let mut pairing = Pairing::new(&rules, window(), items);
    assert!(pairing.has_strangers());
    assert_eq!(pairing.names_to_look_for(), [CallId(Uuid::from_u128(1))]);
    pairing.add(&call(1, 10, succeeded(1)));
    assert!(!pairing.has_strangers());
    assert_eq!(pairing.finish(&[]).anomalies, []);
}

/// What comes of it if also these calls are known, which are none of the source's tool.
fn marked_known(rules: &Rules, items: &[Value], others: &[Record]) -> Found {
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
fn older_calls_are_looked_for_where_there_are_more_effects_than_calls_that_had_one() {
    let older = |call: &Record, items: &[Value]| {
        let rules = naming_calls();
        let items = items.iter().map(|item| rules.item(item)).collect();
        let mut pairing = Pairing::new(&rules, window(), items);
        pairing.add(call);
        pairing.has_strangers()
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
fn what_an_unread_call_may_have_made_settles_nothing() {
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
fn what_was_made_before_the_ledger_knew_every_call_is_nobodys_without_proof() {
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
fn an_item_that_names_its_call_is_no_other_calls() {
    // The same key, forgotten and called again: the first has made it, the second is unknown.
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
    // It was kept elsewhere, or is of another tool.
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
fn only_what_is_surely_the_calls_own_is_compared() {
    let by = Path::read("/args/business_id").expect("a path");
    let business = Rules {
        join: Join::At(by),
        ..rules()
    };
    let other = |id: &str| with(with(with(item(1), "amount", 7), "id", id), "key", "B1");
    let kinds = |rules: &Rules, call: &Record, items: &[Value]| {
        let found = reconciled(rules, std::slice::from_ref(call), items);
        found
            .anomalies
            .iter()
            .map(|anomaly| anomaly.kind)
            .collect::<Vec<_>>()
    };
    let ok = call(1, 1_500, succeeded(1));
    assert_eq!(kinds(&business, &ok, &[other("o1")]), [Kind::Mismatch]);
    assert_eq!(
        kinds(&business, &ok, &[other("o7")]),
        [Kind::Mismatch],
        "one call, one item"
    );
    assert_eq!(
        kinds(&business, &ok, &[other("o7"), other("o8")]),
        [Kind::Duplicate],
        "which is its?"
    );
    let unknown = call(1, 1_500, State::Unknown(String::new()));
    assert_eq!(
        kinds(&business, &unknown, &[other("o7")]),
        [],
        "nothing proves that it is its"
    );
    let mut null = ok.clone();
    Arc::make_mut(&mut null.intent).args = "{\"amount\":null,\"business_id\":\"B1\"}".into();
    assert_eq!(
        kinds(&business, &null, &[other("o1")]),
        [],
        "null is as absent"
    );
}

#[test]
fn what_is_missing_is_asked_for_by_its_key_before_it_is_undone() {
    use crate::core::unknown::Finding;
    use revalidate::missing;
    assert_eq!(missing(&Finding::NotFound), Ok(()));
    let its = Finding::Found(Content::Kept("{}".into()));
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
fn what_was_resolved_as_failed_and_is_there_is_not_shown_as_settled() {
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
fn nothing_is_believed_of_a_source_that_has_none_of_many_calls() {
    let calls: Vec<_> = (1..6).map(|id| call(id, 1_500, succeeded(id))).collect();
    for (calls, items, is_believed) in [
        (&calls[..4], vec![], false),
        (&calls[..3], vec![], true),
        (&calls[..5], vec![item(1)], true),
        (&calls[..4], vec![item(9)], false),
    ] {
        let found = reconciled(&rules(), calls, &items).anomalies;
        assert!(found.len() >= 3, "{found:?}");
        assert!(
            found
                .iter()
                .all(|anomaly| anomaly.doubt.is_none() == is_believed),
            "{found:?}"
        );
    }
}

#[test]
fn an_unknown_call_is_settled_if_all_that_had_its_key_are_known_though_others_were_not_read() {
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
            assert!(!pairing.has_strangers());
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
fn a_surplus_effect_is_looked_at_again_before_it_is_undone() {
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
fn an_anomaly_has_one_name_whenever_it_is_found() {
    let found = check(
        &[],
        &[item(1), item(2)],
        0,
        &[(Kind::Orphan, "o1"), (Kind::Orphan, "o2")],
    );
    let again = check(
        &[],
        &[item(2), item(1)],
        0,
        &[(Kind::Orphan, "o1"), (Kind::Orphan, "o2")],
    );
    assert_eq!(found, again);
    let names = |found: &Found| {
        found
            .anomalies
            .iter()
            .map(|one| one.name("orders"))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&found), names(&again));
    assert_ne!(names(&found)[0], names(&found)[1]);
    assert_ne!(
        found.anomalies[0].name("orders"),
        found.anomalies[0].name("payments")
    );
}

#[test]
fn numbers_are_the_same_however_they_are_written() {
    for (one, other, same) in [
        (json!(1), json!(1.0), true),
        (json!(1), json!(2), false),
        (json!("1"), json!(1), false),
        (json!({ "a": 1 }), json!({ "a": 1 }), true),
    ] {
        assert_eq!(is_same(&one, &other), same, "{one} {other}");
    }
}

/// What is done to one call and its effect.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Plant {
    Nothing,
    Missing,
    Orphan,
    Duplicate,
    Mismatch,
    Settled,
    FailedButThere,
    /// None of these is an anomaly.
    Running,
    Unknown,
    Failed,
    TakenBack,
    Compensated,
}

fn plants() -> impl Strategy<Value = Plant> {
    prop_oneof![
        6 => Just(Plant::Nothing),
        1 => Just(Plant::Missing),
        1 => Just(Plant::Orphan),
        1 => Just(Plant::Duplicate),
        1 => Just(Plant::Mismatch),
        1 => Just(Plant::Settled),
        1 => Just(Plant::FailedButThere),
        1 => Just(Plant::Running),
        1 => Just(Plant::Unknown),
        1 => Just(Plant::Failed),
        1 => Just(Plant::TakenBack),
        1 => Just(Plant::Compensated),
    ]
}

proptest! {
    /// In whatever order calls and items come.
    #[test]
    fn what_is_planted_is_found_exactly(
        plants in prop::collection::vec((plants(), 1_000..1_990_i64), 0..40), turn in any::<prop::sample::Index>(),
    ) {
        let (mut calls, mut items, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (plant, second)) in plants.iter().enumerate() {
            let id = n as u128 + 1;
            let call_id = CallId(Uuid::from_u128(id)).to_string();
            let unknown = State::Unknown("?".into());
            let (state, has) = match plant {
                Plant::Nothing => (Some(succeeded(id)), vec![item(id)]),
                Plant::Missing => (Some(succeeded(id)), vec![]),
                Plant::Orphan => (None, vec![item(id)]),
                Plant::Duplicate => (Some(succeeded(id)), vec![with(item(id), "id", format!("x{id}")), item(id)]),
                Plant::Mismatch => (Some(succeeded(id)), vec![with(item(id), "amount", 0)]),
                Plant::Settled => (Some(unknown), vec![item(id)]),
                Plant::FailedButThere => (Some(failed()), vec![item(id)]),
                Plant::Running => (Some(State::Running), vec![item(id)]),
                Plant::Unknown => (Some(unknown), vec![]),
                Plant::Failed => (Some(failed()), vec![]),
                Plant::Compensated => {
                    let gone = with(item(id), "status", "cancelled");
                    (Some(State::Compensated(None)), if id.is_multiple_of(2) { vec![gone] } else { vec![] })
                }
                Plant::TakenBack => (Some(succeeded(id)), vec![with(item(id), "status", "cancelled")]),
            };
            expected.extend(match plant {
                Plant::Missing => Some((Kind::Missing, call_id)),
                Plant::Orphan | Plant::FailedButThere => Some((Kind::Orphan, format!("o{id}"))),
                Plant::Duplicate => Some((Kind::Duplicate, format!("x{id}"))),
                Plant::Mismatch => Some((Kind::Mismatch, call_id)),
                Plant::Settled => Some((Kind::Settled, call_id)),
                _ => None,
            });
            calls.extend(state.map(|state| call(id, *second, state)));
            items.extend(has);
        }
        if !calls.is_empty() {
            let by = turn.index(calls.len());
            calls.rotate_left(by);
        }
        if !items.is_empty() {
            let by = turn.index(items.len());
            items.rotate_left(by);
        }
        let found = reconciled(&rules(), &calls, &items);
        let mut names: Vec<(Kind, String)> =
            found.anomalies.iter().map(|one| (one.kind, one.id.clone())).collect();
        names.sort();
        expected.sort();
        prop_assert_eq!(names, expected);
        prop_assert_eq!(found.undecided, 0);
    }
}
