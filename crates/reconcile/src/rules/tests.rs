//! Anomalies that are found, and cases that are none.

mod known;
mod paired;
mod planted;
mod revalidated;
mod windows;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use uuid::Uuid;

use super::pairing::Pairing;
use super::*;
use oncegate_rules::key::{Lookup, Source};
use oncegate_rules::record::{
    Attempt, AttemptId, Content, Failure, FailureKind, InstanceId, Intent, Record, State,
};

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
        time: None,
        status: Some(pointer("/status")),
        ignore: vec!["cancelled".into()],
        ignores_keyless: false,
    }
}

/// The window: second 1000 to 2000.
fn window() -> Window {
    Window {
        since: at(1_000),
        until: at(2_000),
        margin: SignedDuration::from_secs(100),
    }
}

fn succeeded(id: u128) -> State {
    State::Succeeded(Content::Stored(
        format!("{{\"order\":{{\"id\":\"o{id}\"}}}}").into(),
    ))
}

fn failed() -> State {
    let kind = FailureKind::NotExecuted;
    State::Failed(Failure {
        kind,
        status: None,
        body: None,
        sealed: None,
        retry_after: None,
        why: "no".into(),
    })
}

/// A call of 10 seconds, made at this second.
fn call(id: u128, second: i64, state: State) -> Record {
    let key = format!("k{id}");
    let intent = Intent {
        call_id: CallId(Uuid::from_u128(id)),
        lookup: Lookup::new("shop", "t", &key),
        key,
        args: format!("{{\"amount\":{id},\"business_id\":\"B{id}\"}}").into(),
        created_at: at(second),
        ..(*oncegate_rules::testing::intent(Source::Runtime, 0)).clone()
    };
    let attempt = Attempt {
        remote_task: None,
        id: AttemptId(Uuid::from_u128(1)),
        owner: InstanceId(Uuid::from_u128(2)),
        number: 1,
        run_started_at: at(second),
        lease_until: at(second + 40),
    };
    Record {
        version: 2,
        ..Record::first(Arc::new(intent), state, attempt, at(second + 10))
    }
}

fn key_of(id: u128) -> String {
    Lookup::new("shop", "t", &format!("k{id}")).for_tool()
}

/// The first call, adopted from an effect, with no result.
fn adopted_from(effect: &str) -> Record {
    let content = Content::Unavailable("it was adopted".into());
    let mut adopted = call(1, 1_500, State::Succeeded(content));
    Arc::make_mut(&mut adopted.intent).key_source = Source::Adopted;
    adopted.attempt.id = AttemptId::of_effect(&adopted.intent.lookup, effect);
    adopted
}

fn item(id: u128) -> Value {
    json!({ "key": key_of(id), "id": format!("o{id}"), "amount": id, "status": "created" })
}

fn with(mut item: Value, name: &str, value: impl Into<Value>) -> Value {
    item[name] = value.into();
    item
}

fn reconciled(rules: &Rules, calls: &[Record], items: &[Value]) -> Comparison {
    let items = items.iter().map(|item| rules.item(item)).collect();
    let mut pairing = Pairing::new(rules, window(), items);
    calls.iter().for_each(|call| pairing.add(call));
    pairing.finish(&[])
}

/// Kind and id of each.
fn brief(found: &Comparison) -> Vec<(Kind, &str)> {
    found
        .anomalies
        .iter()
        .map(|anomaly| (anomaly.kind, anomaly.id.as_str()))
        .collect()
}

fn check(
    calls: &[Record],
    items: &[Value],
    matched: u64,
    anomalies: &[(Kind, &str)],
) -> Comparison {
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
fn a_call_that_agrees_with_its_item_is_only_counted() {
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
    assert_eq!(found.anomalies[0].doubt, Some(Doubt::Unnamed));
    let taken_back = [
        with(item(1), "status", "cancelled"),
        with(item(1), "id", "o7"),
    ];
    let found = check(&[ok()], &taken_back, 1, &[(Kind::Duplicate, "o7")]);
    assert_eq!(
        found.anomalies[0].doubt,
        Some(Doubt::Unnamed),
        "the customer would be left with none"
    );
}

#[test]
fn calls_under_way_or_near_the_border_of_the_window_are_no_anomalies() {
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
fn a_call_that_was_unknown_for_long_is_counted_as_undecided() {
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
fn an_effect_undone_at_the_source_is_neither_surplus_nor_missing() {
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
fn an_item_that_is_listed_twice_is_one_effect() {
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
fn items_without_a_key_may_be_those_of_others() {
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
fn calls_are_joined_by_values_in_arguments_and_results() {
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
fn only_an_item_that_is_surely_the_calls_is_compared() {
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
fn a_source_that_lacks_many_calls_and_has_none_is_in_doubt() {
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
    let names = |found: &Comparison| {
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
