//! Requests with another key that look like a call.

use proptest::prelude::*;

use super::promise::{any_event, led_through};
use super::*;
use crate::record::MAX_ALIASES;
use crate::session::Release;

fn alike(key: &str, fingerprint: u8, saga_id: &str) -> Arc<Intent> {
    let lookup = Lookup::new("shop", "t", key);
    let like = intent(key::Source::Runtime, fingerprint);
    Arc::new(Intent {
        lookup,
        saga_id: saga_id.into(),
        ..(*like).clone()
    })
}

fn asks(tool: &Tool, record: &Record, intent: &Arc<Intent>, seconds: i64) -> Next {
    let event = Event::Resembled(Resembled {
        intent: intent.clone(),
        replaced: Vec::new(),
        by: ME,
    });
    next(tool, Some(record), &event, at(seconds)).expect("it is never illegal")
}

fn arrives(tool: &Tool, record: &Record, intent: &Arc<Intent>, seconds: i64) -> Action {
    let event = Event::Arrived(Arrival {
        intent: intent.clone(),
        fingerprints: Arc::default(),
        preconditions: Preconditions::default(),
        attempt: attempt(9),
        owner: ME,
    });
    next(tool, Some(record), &event, at(seconds))
        .expect("an arrival is never illegal")
        .action
}

#[test]
fn a_key_that_was_answered_names_the_call_for_its_own_window_and_only_with_its_own_arguments() {
    let tool = tool("t");
    let (hour, day) = (3_600, 24 * 3_600);
    let like = alike("k2", 2, "");
    let next = asks(&tool, &succeeded("{}"), &like, 60);
    let change = next.change.expect("a change");
    assert_eq!(
        (next.action, change.takes.lookups.as_slice()),
        (Action::TakeLookups, &[like.lookup][..])
    );
    let named = change.record;
    assert_eq!(
        named.expires_at,
        Some(at(60 + day)),
        "as long as if it had run"
    );
    assert_eq!(
        asks(&tool, &named, &like, 61).action,
        Action::Answer,
        "asked again it is done"
    );
    assert_eq!(
        asks(&tool, &named, &alike("k2", 3, ""), 61).action,
        Action::RefuseReused
    );
    for (key, fingerprint, seconds, action) in [
        ("k2", 2, 2 * hour, Action::Answer),
        ("k2", 1, 2 * hour, Action::RefuseReused),
        ("k", 1, 2 * hour, Action::Answer),
        ("k", 2, 2 * hour, Action::RefuseReused),
    ] {
        let arrival = alike(key, fingerprint, "");
        assert_eq!(
            arrives(&tool, &named, &arrival, seconds),
            action,
            "{key} {fingerprint}"
        );
    }
    assert!(!named.answers_as_similar([Lookup::new("shop", "t", "k")].into_iter()));
    assert!(named.answers_as_similar([like.lookup].into_iter()));
}

#[test]
fn a_call_of_another_saga_or_token_past_its_window_or_with_enough_names_answers_no_further_key() {
    let tool = tool("t");
    let done = succeeded("{}");
    assert_eq!(
        asks(&tool, &done, &alike("k2", 2, "G"), 2).action,
        Action::RefuseSimilar
    );
    assert_eq!(
        asks(&tool, &done, &alike("k2", 2, ""), 3_601).action,
        Action::RefuseSimilar
    );
    let of_another = Intent {
        made_by: "another".into(),
        ..(*alike("k2", 2, "")).clone()
    };
    assert_eq!(
        asks(&tool, &done, &Arc::new(of_another), 2).action,
        Action::RefuseSimilar
    );
    let mut full = done;
    for n in 0..MAX_ALIASES {
        let change = asks(&tool, &full, &alike(&format!("n{n}"), 2, ""), 2).change;
        full = change.expect("a change").record;
    }
    assert_eq!(
        asks(&tool, &full, &alike("k2", 2, ""), 2).action,
        Action::RefuseSimilar
    );
}

proptest! {
    /// No request that looks like a call runs, and it gets only a success.
    #[test]
    fn a_similar_request_never_runs_and_gets_only_a_success(
        steps in prop::collection::vec((any_event(), 0..50_000_i64), 0..20),
        fingerprint in 1..4_u8,
        saga in prop_oneof![Just(""), Just("G")],
        pause in 0..50_000_i64,
    ) {
        let tool = Tool { compensation: cancel(true), ..tool("t") };
        let (there, mut seconds) = led_through(&tool, &steps);
        seconds += pause;
        let like = alike("like", fingerprint, saga);
        let Next { change, action } = asks(&tool, &there, &like, seconds);
        match &there.state {
            State::Proposed | State::Approved | State::Running | State::Unknown(_) => {
                prop_assert_eq!(&action, &Action::Wait);
            }
            State::Succeeded(_) => {
                prop_assert!(matches!(action, Action::TakeLookups | Action::RefuseSimilar), "{:?}", action);
            }
            _ => prop_assert_eq!(&action, &Action::RefuseSimilar),
        }
        prop_assert_eq!(change.is_some(), action == Action::TakeLookups);
        let Some(change) = change else { return Ok(()) };
        let named = &change.record;
        prop_assert!(change.admission.is_none() && change.release == Release::default());
        prop_assert_eq!((&named.state, &named.intent, &named.attempt), (&there.state, &there.intent, &there.attempt));
        prop_assert!(named.expires_at >= there.expires_at && named.retain_until >= there.retain_until);
        prop_assert_eq!(&change.takes.lookups, &vec![like.lookup]);
        prop_assert_eq!(named.all_lookups().last(), Some(&like.lookup), "a store takes the last of the names");
        prop_assert_eq!(arrives(&tool, named, &like, seconds), Action::Answer);
        prop_assert_eq!(arrives(&tool, named, &alike("like", fingerprint + 1, ""), seconds), Action::RefuseReused);
    }
}

#[test]
fn a_key_without_a_saga_or_of_the_same_one_gets_the_result_of_a_sagas_call() {
    let tool = tool("t");
    let mut done = succeeded("{}");
    Arc::make_mut(&mut done.intent).saga_id = "G".into();
    for (saga_id, action) in [
        ("", Action::TakeLookups),
        ("G", Action::TakeLookups),
        ("H", Action::RefuseSimilar),
    ] {
        let asked = asks(&tool, &done, &alike("k2", 2, saga_id), 2);
        assert_eq!(asked.action, action, "{saga_id:?}");
    }
}
