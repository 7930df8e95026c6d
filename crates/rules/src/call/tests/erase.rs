//! Calls whose arguments, results and names are erased.

use super::*;
use crate::key_scheme::fingerprints::Fingerprints;
use crate::key_scheme::identity::{LookupKey, Part};
use crate::record::{ERASED, Holder};

/// The intent of a call of a user, with everything that a caller may name.
fn of_bob(saga_id: &str) -> Arc<Intent> {
    Arc::new(Intent {
        user_id: "bob".into(),
        session_id: "talk".into(),
        saga_id: saga_id.into(),
        trace_id: "trace".into(),
        client_ids: "{\"thread\":\"t\"}".into(),
        args: "{\"to\":\"bob\"}".into(),
        ..(*intent(key::Source::Runtime, 1)).clone()
    })
}

fn arrives(intent: &Arc<Intent>, id: u128) -> Event {
    arrived_with(intent.clone(), id)
}

/// A call of bob that ended in this way.
fn ended(tool: &Tool, saga_id: &str, evidence: Evidence) -> Record {
    let claimed = moved(tool, None, &arrives(&of_bob(saga_id), 1), 0).expect("a claim");
    moved(tool, Some(&claimed), &ended_with(1, evidence, None), 1).expect("an end")
}

fn gone(tool: &Tool, record: &Record) -> Record {
    moved(tool, Some(record), &erased(), 2).expect("erased")
}

#[test]
fn what_the_promise_needs_stays_and_everything_else_goes() {
    let tool = tool("t");
    let before = ended(&tool, "", answer(200));
    let next = next(&tool, Some(&before), &erased(), at(2)).expect("erased");
    let change = next.change.expect("a change");
    assert_eq!(change.erases, Some(before.intent.clone()), "for the lists");
    assert_eq!(
        (&*change.entry.event, &*change.entry.by),
        ("erased", "token ops")
    );
    let after = change.record;
    let expected = Intent {
        user_id: String::new(),
        session_id: String::new(),
        trace_id: String::new(),
        client_ids: String::new(),
        args: ERASED.into(),
        ..(*before.intent).clone()
    };
    assert_eq!(*after.intent, expected);
    assert!(after.is_erased() && !before.is_erased());
    assert!(
        matches!(&after.state, State::Succeeded(Content::Unavailable(unread)) if unread.sealed.is_none())
    );
    let rest = Record {
        intent: before.intent.clone(),
        state: before.state.clone(),
        version: before.version,
        updated_at: before.updated_at,
        ..after.clone()
    };
    assert_eq!(rest, before);
    let again = super::next(&tool, Some(&after), &erased(), at(3));
    assert_eq!(again.err(), Some(Illegal::ErasedBefore));
}

#[test]
fn the_body_of_a_rejection_goes_too_also_one_that_no_key_decrypts() {
    let tool = tool("t");
    let mut rejected = ended(&tool, "", answer(422));
    let State::Failed(failure) = &mut rejected.state else {
        panic!("{rejected:?}");
    };
    assert!(failure.body.is_some());
    failure.sealed = Some("sealed".into());
    let State::Failed(failure) = gone(&tool, &rejected).state else {
        panic!("it stays failed");
    };
    assert_eq!(
        (failure.body, failure.sealed, failure.status),
        (None, None, Some(422))
    );
}

#[test]
fn a_call_that_has_not_ended_or_whose_saga_has_not_is_not_erased() {
    let undoes = Tool {
        compensation: cancel(true),
        ..tool("t")
    };
    let running = moved(&undoes, None, &arrives(&of_bob(""), 1), 0).expect("a claim");
    let succeeded = ended(&undoes, "", answer(200));
    let compensating = moved(&undoes, Some(&succeeded), &to_compensate(), 2).expect("marked");
    let stuck = moved(&undoes, Some(&compensating), &is_stuck(), 3).expect("stuck");
    let in_saga = ended(&undoes, "trip", answer(200));
    for there in [
        running,
        ended(&undoes, "", no_answer()),
        compensating,
        stuck,
        in_saga.clone(),
        ended(&undoes, "trip", not_sent()),
    ] {
        let word = there.state.as_str();
        let refused = next(&undoes, Some(&there), &erased(), at(4)).err();
        assert_eq!(refused, Some(Illegal::NotEnded), "{word}");
    }
    let released = moved(&undoes, Some(&in_saga), &Event::SagaEnded { by: ME }, 5);
    let released = released.expect("its saga has ended");
    assert_eq!(
        gone(&undoes, &released).intent.saga_id,
        "trip",
        "the saga's id stays"
    );
}

#[test]
fn a_repetition_of_an_erased_success_is_answered_and_runs_nothing() {
    let tool = tool("t");
    let there = gone(&tool, &ended(&tool, "", answer(200)));
    let again = next(&tool, Some(&there), &arrives(&of_bob(""), 2), at(3)).expect("fits");
    assert_eq!((again.change, again.action), (None, Action::Answer));
    let other = arrived(key::Source::Runtime, 2, 2);
    let other = next(&tool, Some(&there), &other, at(3)).expect("fits");
    assert_eq!(other.action, Action::RefuseReused, "the fingerprint stays");
}

#[test]
fn the_key_of_a_failure_without_its_arguments_runs_again_by_a_call_of_its_own() {
    let tool = Tool {
        args_for: Some(Duration::ZERO),
        ..tool("t")
    };
    let failed = ended(&tool, "", not_sent());
    let over = Event::BodiesOver { by: ME };
    let bare = moved(&tool, Some(&failed), &over, 4).expect("due");
    for there in [gone(&tool, &failed), bare] {
        runs_again_by_a_call_of_its_own(&tool, &there);
    }
}

fn runs_again_by_a_call_of_its_own(tool: &Tool, there: &Record) {
    let asked = Arc::new(Intent {
        call_id: CallId(Uuid::from_u128(0xca12)),
        ..(*of_bob("")).clone()
    });
    let lookups = [LookupKey {
        lookup: asked.lookup,
        part: Part::Today,
        is_runtime: true,
    }];
    let holders = [Holder {
        record: there.clone(),
        lookups: vec![asked.lookup],
    }];
    let (same, other) = (asked.clone(), intent(key::Source::Runtime, 2));
    let met = |intent: &Intent, holders: &[Holder]| {
        let seeking = Seeking {
            lookups: &lookups,
            intent,
            fingerprints: &Fingerprints::default(),
            confirmed: None,
        };
        resolve(tool, holders, seeking, at(3))
    };
    let free = Resolved::Free {
        replaced: vec![0],
        left: Vec::new(),
    };
    assert_eq!(met(&same, &holders), free, "its lookup keys are taken");
    assert_eq!(
        met(&other, &holders),
        Resolved::Call(0),
        "other arguments need another key"
    );

    let claim = next(tool, Some(there), &arrives(&same, 2), at(3)).expect("fits");
    let claimed = claim.change.expect("a claim").record;
    assert_eq!(
        (claim.action, &claimed.intent, claimed.version),
        (Action::Claim, &asked, 1)
    );
    let reused = next(tool, Some(there), &arrives(&other, 2), at(3)).expect("fits");
    assert_eq!(reused.action, Action::RefuseReused);
}

#[test]
fn an_erased_failure_that_is_kept_is_answered() {
    let remembers = Tool {
        remember_rejections: true,
        ..tool("t")
    };
    let rejected = gone(&remembers, &ended(&remembers, "", answer(422)));
    // A token of its own would let it run again, with arguments that are gone.
    let mut fenced = ended(&tool("t"), "", not_sent());
    fenced.state = State::Failed(Failure::new(FailureKind::Fenced, "a newer token was seen"));
    let fenced = gone(&tool("t"), &fenced);
    for there in [rejected, fenced] {
        let mut again = arrives(&of_bob(""), 2);
        if let Event::Arrived(arrival) = &mut again {
            arrival.preconditions.fencing = Some(9);
        }
        let again = next(&remembers, Some(&there), &again, at(3)).expect("fits");
        assert_eq!((again.change, again.action), (None, Action::Answer));
    }
}

/// An operator may have it undone alone, and then say that its effect stands.
#[test]
fn what_becomes_known_of_an_erased_call_is_not_kept() {
    let undoes = Tool {
        compensation: cancel(false),
        ..tool("t")
    };
    let succeeded = gone(&undoes, &ended(&undoes, "", answer(200)));
    let marked = moved(&undoes, Some(&succeeded), &to_compensate(), 3).expect("marked");
    let stuck = moved(&undoes, Some(&marked), &is_stuck(), 4).expect("stuck");
    let failed = gone(&undoes, &ended(&undoes, "", not_sent()));
    let lost = moved(&undoes, Some(&failed), &store_lost(), 3).expect("it may have run again");
    for open in [stuck, lost] {
        let resolution = Resolution::Succeeded(Content::Stored("{\"to\":\"bob\"}".into()));
        let resolved = moved(&undoes, Some(&open), &resolved(resolution), 99).expect("resolved");
        assert!(resolved.is_erased());
        assert!(
            matches!(resolved.state, State::Succeeded(Content::Unavailable(_))),
            "{:?}",
            resolved.state
        );
    }
}

/// After a loss of data it may count as unknown again. It cannot be sent.
#[test]
fn an_erased_call_is_never_sent_again_by_a_worker() {
    let retries = Tool {
        unknown: OnUnknown::Retry,
        dedup: Dedup::Key,
        ..tool("t")
    };
    let there = gone(&retries, &ended(&retries, "", not_sent()));
    let lost = moved(&retries, Some(&there), &store_lost(), 3).expect("it may have run again");
    assert!(matches!(lost.state, State::Unknown(_)) && lost.is_erased());
    let due = Event::CheckDue {
        by: ME,
        attempt: Some(attempt(3)),
    };
    let checked = next(&retries, Some(&lost), &due, at(3_600)).expect("due");
    assert_eq!(checked.action, Action::Finish, "given up");
}
