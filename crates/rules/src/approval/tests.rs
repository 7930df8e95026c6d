use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::key::Pointer;
use crate::record::{CallId, Intent, Record};
use crate::secret::Secret;
use crate::testing::{at, succeeded};

fn policy(when: Vec<When>) -> Policy {
    Policy {
        when,
        expires: Duration::from_secs(3_600),
        good_for: Duration::from_secs(300),
        approvals: 1,
        from: Vec::new(),
        show: Vec::new(),
    }
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn above(text: &str) -> When {
    let Value::Number(above) = read(text) else {
        panic!("a number")
    };
    let pointer = Pointer::to(&["amount"]);
    When::Above { pointer, above }
}

#[test]
fn above_lets_pass_only_numbers_that_are_surely_not_above() {
    let asks = |limit: &str, args: &str| policy(vec![above(limit)]).ask(&read(args)).is_some();
    for (limit, args, expected) in [
        ("10000", r#"{"amount":9999}"#, false),
        ("10000", r#"{"amount":10000}"#, false),
        ("10000", r#"{"amount":10001}"#, true),
        ("10000", r#"{"amount":-1}"#, false),
        ("10000", r#"{"amount":9999.99}"#, false),
        ("10000", r#"{"amount":10000.01}"#, true),
        ("10000", r#"{"amount":1e308}"#, true),
        ("10000", r#"{}"#, true),
        ("10000", r#"{"amount":null}"#, true),
        ("10000", r#"{"amount":"5"}"#, true),
        ("10000", r#"{"amount":[5]}"#, true),
        // As rounded numbers these are equal.
        ("9007199254740992", r#"{"amount":9007199254740993}"#, true),
        ("9007199254740993", r#"{"amount":9007199254740993}"#, false),
        ("0.1", r#"{"amount":0.10000000000000000001}"#, true),
        (
            "18446744073709551614",
            r#"{"amount":18446744073709551615}"#,
            true,
        ),
    ] {
        assert_eq!(asks(limit, args), expected, "{args} above {limit}");
    }
}

#[test]
fn lists_ask_about_what_is_missing_and_what_may_be_listed() {
    let pointer = || Pointer::to(&["env"]);
    let listed = vec![json!("prod"), json!(1)];
    let is_in = When::In {
        pointer: pointer(),
        values: listed.clone(),
    };
    let not_in = When::NotIn {
        pointer: pointer(),
        values: listed,
    };
    for (args, by_in, by_not_in) in [
        (json!({"env": "prod"}), true, false),
        (json!({"env": "test"}), false, true),
        (json!({"env": 1.0}), true, true),
        (json!({"env": ["prod"]}), true, true),
        (json!({"env": null}), false, true),
        (json!({}), true, true),
    ] {
        assert_eq!(is_in.asks(&args).is_some(), by_in, "{args} in");
        assert_eq!(not_in.asks(&args).is_some(), by_not_in, "{args} not in");
    }
}

#[test]
fn every_condition_that_asks_is_named_and_none_means_no_approval() {
    let both = policy(vec![When::Always, above("1")]);
    assert_eq!(both.ask(&json!({})).expect("an ask").why.len(), 2);
    assert_eq!(policy(vec![above("1")]).ask(&json!({"amount": 1})), None);
}

#[test]
fn the_digest_of_a_rule_changes_with_each_part_of_it() {
    let rule = policy(vec![When::Always]);
    let changes: [fn(&mut Policy); 5] = [
        |rule| rule.when.push(above("1")),
        |rule| rule.expires = Duration::from_secs(1),
        |rule| rule.good_for = Duration::from_secs(1),
        |rule| rule.approvals = 2,
        |rule| rule.from.push("ann".into()),
    ];
    for change in changes {
        let mut other = rule.clone();
        change(&mut other);
        assert_ne!(other.digest(), rule.digest(), "{other:?}");
    }
}

#[test]
fn an_approval_binds_the_call_its_rule_its_request_the_ask_and_the_approvals_so_far() {
    let (secret, rule) = (Secret::new([1; 32]), [2; 32]);
    let ask = policy(vec![When::Always]).ask(&json!({})).expect("an ask");
    let mut record = succeeded("1");
    let proposal = Proposal::new(&ask, None, None, None, at(0));
    record.proposal = Some(Box::new(proposal));
    let built = Built {
        rule: &rule,
        request: b"POST /refund",
        similar: &[],
    };
    let first = shown(&secret, &record, built).expect("a proposal");
    let of = |record: &Record, secret: &Secret, built| shown(secret, record, built).expect("one");
    assert_eq!(of(&record, &secret, built), first);

    let similar = [CallId(uuid::Uuid::nil())];
    for other in [
        Built {
            rule: &[3; 32],
            ..built
        },
        Built {
            request: b"POST /refunds",
            ..built
        },
        Built {
            similar: &similar,
            ..built
        },
    ] {
        let other = of(&record, &secret, other);
        assert!(other.bound != first.bound && other.seen != first.seen);
    }
    let intents: [fn(&mut Intent); 5] = [
        |intent| intent.call_id = CallId(uuid::Uuid::nil()),
        |intent| intent.tenant = "bank".into(),
        |intent| intent.tool = "u".into(),
        |intent| intent.fingerprint = [9; 32],
        |intent| intent.args = "{\"a\":1}".into(),
    ];
    for change in intents {
        let mut other = record.clone();
        change(Arc::make_mut(&mut other.intent));
        assert_ne!(of(&other, &secret, built).bound, first.bound);
    }
    assert_ne!(of(&record, &Secret::new([9; 32]), built).bound, first.bound);

    let mut later = record.clone();
    later.proposal.as_mut().expect("one").ask += 1;
    let later = of(&later, &secret, built);
    assert!(later.bound == first.bound && later.seen != first.seen);
    let mut counted = record.clone();
    let approval = Approval {
        by: "ann".into(),
        at: at(1),
        reason: String::new(),
        seen: [0; 32],
    };
    counted
        .proposal
        .as_mut()
        .expect("one")
        .approvals
        .push(approval);
    let counted = of(&counted, &secret, built);
    assert!(counted.bound == first.bound && counted.seen != first.seen);
}

#[test]
fn only_what_the_rule_names_is_asked_about_in_place_of_a_refusal_and_each_of_it_once() {
    let (similar, spent) = (Found::Similar, Found::OverBudget);
    let both = policy(vec![When::Similar, When::OverBudget]);
    let first = both.ask_about(similar, None).expect("an ask");
    assert!(first.similar && !first.over_budget);
    assert_eq!(both.ask_about(similar, Some(&first)), None);
    let second = both.ask_about(spent, Some(&first)).expect("two reasons");
    assert!(second.similar && second.over_budget);
    assert_eq!(second.why.len(), 2);
    assert_eq!(both.ask_about(spent, Some(&second)), None);
    for (when, found) in [(When::Similar, spent), (When::OverBudget, similar)] {
        let rule = policy(vec![When::Always, when]);
        assert_eq!(rule.ask_about(found, None), None);
        assert_eq!(rule.ask(&json!({})).expect("always").why.len(), 1);
    }
    // No argument asks.
    assert_eq!(both.ask(&json!({})), None);
}
