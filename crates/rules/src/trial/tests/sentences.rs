//! A trial beside its findings: undone effects and justified lines.

use super::*;
use crate::compensation::{Policy, read_members};
use crate::outcome::Outcome;
use crate::record::{Failure, FailureKind};
use crate::trial::lines::Line;
use uuid::Uuid;

fn done() -> Step {
    step(vec![seen("k", 200, 1)])
}

fn refused() -> Step {
    step(vec![seen("k", 409, 0)])
}

#[test]
fn whether_an_effect_was_undone_is_told_apart_for_each_key() {
    let undone = |first: &Step, other: Option<&Step>| Trial {
        undone: Some(Ok(Undone {
            naming: naming("/id"),
            first: first.clone(),
            again: refused(),
            other: other.cloned(),
        })),
        ..trial()
    };
    let (yes, no) = (done(), refused());
    for (trial, is_undone, is_another_undone) in [
        (trial(), false, false),
        (undone(&yes, None), true, false),
        (undone(&no, None), false, false),
        (undone(&no, Some(&yes)), false, true),
        (undone(&yes, Some(&no)), true, false),
        (undone(&yes, Some(&yes)), true, true),
    ] {
        assert_eq!(
            trial.undone_effects(),
            (is_undone, is_another_undone),
            "{:?}",
            trial.undone
        );
    }
}

#[test]
fn results_are_given_again_only_if_the_last_answer_of_both_repetitions_has_one() {
    let both = |again: &Step, later: &Step| {
        let (again, later) = (again.clone(), later.clone());
        let trial = Trial {
            again,
            later,
            ..trial()
        };
        trial.gives_results_again()
    };
    let (yes, no) = (done(), refused());
    let at_last = step(vec![seen("k", 409, 0), seen("k", 200, 1)]);
    assert!(both(&yes, &yes) && both(&at_last, &at_last));
    assert!(!both(&yes, &no) && !both(&no, &yes) && !both(&no, &no));
}

#[test]
fn a_request_is_refused_only_with_a_status_that_says_so() {
    let failure = Failure::new(FailureKind::Unreachable, "connection refused");
    let unreached = Seen {
        status: None,
        outcome: Outcome::NotExecuted(failure),
        ..seen("k", 422, 0)
    };
    for (seen, is_refused, for_now) in [
        (seen("k", 200, 1), false, false),
        (seen("k", 422, 0), true, false),
        (seen("k", 409, 0), true, true),
        (seen("k", 429, 0), true, true),
        (seen("k", 500, 0), false, false),
        (unreached, false, false),
    ] {
        let found = (seen.is_refused(), seen.is_refused_for_now());
        assert_eq!(found, (is_refused, for_now), "{:?}", seen.status);
    }
}

#[test]
fn a_compensation_of_a_trial_gets_key_arguments_and_result_of_the_call() {
    let Value::Object(args) = json!({
        "order": "/result/id", "sku": "/args/sku", "key": "/call/key", "tool_key": "/call/tool_key",
        "call": "/call/call_id",
    }) else {
        unreachable!("an object")
    };
    let template = Template {
        tool: "cancel".into(),
        args: read_members(args).expect("members"),
        undoes_unknown: false,
    };
    let call_id = CallId(Uuid::from_u128(7));
    let undo = |seen: &Seen| undoing(&template, br#"{"sku":"b"}"#, seen, "k-1", call_id);
    let expected = json!({
        "order": 5, "sku": "b", "key": "k-1", "tool_key": "k-1", "call": call_id.to_string(),
    });
    assert_eq!(undo(&seen("k-1", 200, 5)), Ok(expected));
    let missing = undo(&seen("k-1", 500, 0));
    assert_eq!(missing, Err("there is nothing at /result/id".into()));
}

#[test]
fn a_tool_that_deduplicates_does_not_thereby_declare_that_it_is_sent_again() {
    let tool = Tool {
        dedup: Dedup::Key,
        ..Tool::new("t")
    };
    let trial = trial();
    let lines = lines(&tool, false, &trial, &trial.findings());
    let declared = lines.iter().map(|line| (line.setting, line.is_declared));
    let expected = [(Setting::Dedup, true), (Setting::Retry, false)];
    assert_eq!(declared.collect::<Vec<_>>(), expected);
}

#[test]
fn each_line_says_whether_the_configuration_has_it_and_which_claims_decided_it() {
    let declared = Tool {
        dedup: Dedup::Key,
        unknown: OnUnknown::Retry,
        compensation: Policy::Needless,
        ..Tool::new("t")
    };
    let trial = Trial {
        undone: Some(Err("it was not undone".into())),
        ..trial()
    };
    for (tool, has_probe) in [(Tool::new("t"), false), (declared, true)] {
        let is_declared = has_probe;
        let findings = trial.findings();
        let why = |claim: Claim| {
            let found = findings.iter().find(|finding| finding.claim == claim);
            format!("{claim} ({})", found.expect("a finding").why)
        };
        let once = [OnceInSequence, OnceAtOnce, OnceLater].map(why).to_vec();
        let line = |setting, verdict, why| Line {
            setting,
            verdict,
            is_declared,
            why,
        };
        let undone = vec![why(UndoneTwice)];
        let expected = vec![
            line(Setting::Dedup, Proved, once.clone()),
            line(Setting::Retry, Proved, once.clone()),
            line(Setting::Compensation, NotShown, undone.clone()),
        ];
        assert_eq!(lines(&tool, has_probe, &trial, &findings), expected);

        let refuses = Trial {
            later: refused(),
            ..trial.clone()
        };
        let why =
            "a repetition is refused and does not bring the result: its call would stay unknown";
        let expected = vec![
            line(Setting::Dedup, Proved, once),
            line(Setting::Retry, NotShown, vec![why.to_owned()]),
            line(Setting::Compensation, NotShown, undone),
        ];
        assert_eq!(lines(&tool, has_probe, &refuses, &findings), expected);
    }
}
