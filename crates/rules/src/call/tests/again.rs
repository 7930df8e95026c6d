//! Requests with a known key: whether the call runs again, and with which fields.

use super::*;
use crate::record::{Alias, Attempt, Check};
use crate::time::after;
use crate::tool::Expired;

fn failed_with(tool: &Tool, kind: FailureKind) -> Record {
    let mut record = record(
        tool,
        key::Source::Derived,
        &[(ended_with(1, not_sent(), None), 1)],
    );
    if let State::Failed(failure) = &mut record.state {
        failure.kind = kind;
    }
    record
}

/// The action for a request for this call in this saga.
fn action(record: &Record, saga_id: &str, fencing: Option<u64>, seconds: i64) -> Action {
    let mut intent = intent(record.intent.key_source, 1);
    Arc::make_mut(&mut intent).saga_id = saga_id.into();
    let arrived = Event::Arrived(Arrival {
        intent,
        fingerprints: Arc::default(),
        preconditions: Preconditions {
            fencing,
            confirmed: None,
        },
        attempt: attempt(2),
        owner: ME,
    });
    next(&tool("t"), Some(record), &arrived, at(seconds))
        .expect("an answer")
        .action
}

#[test]
fn a_failed_call_runs_again_as_if_it_were_new() {
    let tool = tool("t");
    let failed = Record {
        similar_to: Some(CallId(Uuid::from_u128(5))),
        check: Some(Check {
            since: at(0),
            at: None,
            number: 3,
        }),
        latency_ms: Some(9),
        ..failed_with(&tool, FailureKind::Unreachable)
    };
    let again = moved(
        &tool,
        Some(&failed),
        &arrived(key::Source::Derived, 1, 2),
        7,
    );
    let expected = Record {
        version: failed.version + 1,
        state: State::Running,
        attempt: Attempt {
            remote_task: None,
            id: attempt(2),
            owner: ME,
            number: 1,
            run_started_at: at(7),
            lease_until: after(at(7), tool.lease()),
        },
        attempts: failed.attempts + 1,
        similar_to: None,
        check: None,
        latency_ms: None,
        updated_at: at(7),
        expires_at: None,
        retain_until: None,
        ..failed
    };
    assert_eq!(again, Some(expected));
}

#[test]
fn a_request_for_one_saga_gets_no_call_of_another() {
    let running = |saga_id: &str, source| {
        let mut record = record(&tool("t"), source, &[]);
        Arc::make_mut(&mut record.intent).saga_id = saga_id.into();
        record
    };
    for (there, named, expected) in [
        ("", "", Action::Wait),
        ("G", "G", Action::Wait),
        ("G", "", Action::Wait),
        ("", "G", Action::RefuseOtherSaga),
        ("G", "H", Action::RefuseOtherSaga),
    ] {
        let found = action(&running(there, key::Source::Derived), named, None, 1);
        assert_eq!(found, expected, "{there:?} {named:?}");
        let undoing = running(there, key::Source::Compensation);
        assert_eq!(action(&undoing, named, None, 1), Action::Wait);
    }
}

#[test]
fn a_call_that_was_overtaken_runs_again_only_with_a_token_of_its_own() {
    let tool = tool("t");
    for (kind, fencing, expected) in [
        (FailureKind::Fenced, None, Action::Answer),
        (FailureKind::Fenced, Some(7), Action::Run),
        (FailureKind::Unreachable, None, Action::Run),
        (FailureKind::Unreachable, Some(7), Action::Run),
    ] {
        let found = action(&failed_with(&tool, kind), "", fencing, 2);
        assert_eq!(found, expected, "{kind:?} {fencing:?}");
    }
}

#[test]
fn only_the_key_that_a_caller_brought_itself_outlives_its_window() {
    let window = 25 * 3_600;
    let expired = |source, lookups: Vec<Lookup>| {
        let mut record = record(&tool("t"), source, &[(ended_with(1, answer(200), None), 1)]);
        record.retain_until = Some(at(10 * window));
        if let Some(first) = lookups.first() {
            Arc::make_mut(&mut record.intent).lookup = *first;
            record.aliases = vec![Alias {
                lookups: vec![Lookup::new("shop", "t", "k")],
                fingerprint: [1; 32],
                key_scheme: crate::key_scheme::KeySchemeId::default(),
            }];
        }
        record
    };
    let other = vec![Lookup::new("shop", "t", "other")];
    for (record, expected) in [
        (expired(key::Source::Runtime, vec![]), true),
        (expired(key::Source::Derived, vec![]), false),
        (
            expired(key::Source::Runtime, vec![Lookup::new("shop", "t", "k")]),
            true,
        ),
        (expired(key::Source::Runtime, other), false),
    ] {
        let is_refused = action(&record, "", None, window) == Action::RefuseExpired;
        assert_eq!(is_refused, expected, "{:?}", record.intent.key_source);
    }
}

#[test]
fn where_an_old_key_stands_for_a_new_call_what_is_unknown_still_holds_it() {
    let window = 25 * 3_600;
    let tool = Tool {
        expired: Expired::New,
        ..tool("t")
    };
    let source = key::Source::Runtime;
    let again = |evidence: Evidence, at_s| {
        let mut there = record(&tool, source, &[(ended_with(1, evidence, None), 1)]);
        if there.expires_at.is_some() {
            there.retain_until = Some(at(10 * window));
        }
        let asked = next(&tool, Some(&there), &arrived(source, 1, 2), at(at_s));
        asked.expect("legal").action
    };
    assert_eq!(again(answer(200), 2), Action::Answer);
    assert_eq!(again(answer(200), window), Action::Claim);
    assert_eq!(again(no_answer(), window), Action::Answer);
}

#[test]
fn a_rejection_that_is_never_kept_runs_again_beside_others_that_are_kept() {
    let tool = Tool {
        remember_rejections: true,
        never_keep: vec![401],
        ..tool("t")
    };
    let source = key::Source::Runtime;
    for (status, expected) in [(401, Action::Run), (404, Action::Answer)] {
        let ended = ended_with(1, answer(status), None);
        let there = record(&tool, source, &[(ended, 1)]);
        let asked = next(&tool, Some(&there), &arrived(source, 1, 2), at(2));
        assert_eq!(asked.expect("legal").action, expected, "{status}");
    }
}

#[test]
fn values_that_the_store_draws_come_from_the_stored_record() {
    let tool = tool("t");
    let first = next(&tool, None, &arrived(key::Source::Derived, 1, 1), at(0));
    let change = first.expect("legal").change.expect("a claim");
    let stored = Record {
        fencing: Some(7),
        similar_to: Some(CallId(Uuid::from_u128(5))),
        version: 9,
        ..change.record.clone()
    };
    assert!(change.admission.is_some());
    let expected = Record {
        version: change.record.version,
        ..stored.clone()
    };
    assert_eq!(change.as_stored(&stored), expected);
    let settled = Change {
        admission: None,
        ..change
    };
    assert_eq!(settled.as_stored(&stored), settled.record);
}

#[test]
fn a_call_that_has_lost_its_lock_makes_its_last_attempt() {
    let tool = tool("t");
    let running = record(&tool, key::Source::Derived, &[]);
    let unlocked = moved(&tool, Some(&running), &unlocked(), 5).expect("a change");
    let expected = Record {
        version: running.version + 1,
        updated_at: at(5),
        attempt: Attempt {
            number: tool.retry.attempts,
            ..running.attempt.clone()
        },
        ..running.clone()
    };
    assert!(tool.retry.attempts > running.attempt.number);
    assert_eq!(unlocked, expected);
}
