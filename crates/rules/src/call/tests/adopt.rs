//! Effects without a call become calls again, and their first requests are recognised.

use proptest::prelude::*;

use super::promise::{any_event, led_through};
use super::*;
use crate::key_scheme::fingerprints::Fingerprints;
use crate::key_scheme::identity::{LookupKey, Part};
use crate::record::Holder;
use crate::tenant::RESERVED_TENANT;

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// The effect of the call with the key `k`, adopted as this attempt.
pub(super) fn adopts(id: u128) -> Event {
    let intent = intent(key::Source::Adopted, 0);
    Event::Adopted(Adoption {
        intent,
        attempt: attempt(id),
        content: stored(),
        owner: ME,
        by: "books".into(),
        why: "the shop has e1, and no call had its key".into(),
    })
}

fn adopted() -> Record {
    moved(&tool("t"), None, &adopts(7), 0).expect("a claim")
}

/// A request for the key, with this source and these arguments.
fn asks(record: &Record, source: key::Source, fingerprint: u8, seconds: i64) -> Next {
    next(
        &tool("t"),
        Some(record),
        &arrived(source, fingerprint, 1),
        at(seconds),
    )
    .expect("an arrival is never illegal")
}

#[test]
fn an_effect_is_a_success_that_is_remembered_from_now_on_as_long_as_any() {
    let adopted = adopted();
    assert_eq!(adopted.state, State::Succeeded(stored()));
    assert_eq!(
        (adopted.expires_at, adopted.retain_until),
        (Some(at(DAY)), Some(at(30 * DAY)))
    );
    assert_eq!((adopted.version, adopted.fencing), (1, None));
    assert_eq!(adopted.attempt.lease_until, at(0), "nothing runs for it");
}

#[test]
fn the_first_request_says_what_the_call_asked_for_and_others_are_compared_with_it() {
    let Next { change, action } = asks(&adopted(), key::Source::Derived, 1, 9);
    assert_eq!(action, Action::TakeFingerprint);
    let change = change.expect("a change");
    assert!(change.takes.lookups.is_empty() && change.admission.is_none());
    let known = change.record;
    assert_eq!(
        (&known.intent, &known.state),
        (&adopted().intent, &adopted().state),
        "nothing else changes"
    );
    for (fingerprint, action) in [(1, Action::Answer), (2, Action::RefuseReused)] {
        let next = asks(&known, key::Source::Derived, fingerprint, 10);
        assert_eq!(next, Next::unchanged(action));
    }
}

#[test]
fn an_effect_is_adopted_once_and_never_under_the_key_of_another_call() {
    let again = |record: &Record, id| next(&tool("t"), Some(record), &adopts(id), at(99));
    let known = asks(&adopted(), key::Source::Derived, 1, 9).change;
    for record in [adopted(), known.expect("a change").record] {
        assert_eq!(again(&record, 7), Ok(Next::unchanged(Action::Answer)));
        assert_eq!(again(&record, 8), Err(Illegal::KeyHeld), "another effect");
    }
    // Even if an attempt has the same id.
    assert_eq!(again(&succeeded("{}"), 1), Err(Illegal::KeyHeld));
}

#[test]
fn requests_tell_where_the_key_of_an_adopted_call_came_from() {
    use key::Source::{Compensation, Derived, Elicitation, Runtime};
    let late = |source| asks(&adopted(), source, 1, DAY).action;
    for source in [Runtime, Elicitation] {
        assert_eq!(late(source), Action::RefuseExpired);
    }
    assert_eq!(late(Derived), Action::Claim);
    // A compensation is never executed twice, however late its request comes again.
    assert_eq!(late(Compensation), Action::TakeFingerprint);
    let undoing = asks(&adopted(), Compensation, 1, 1)
        .change
        .expect("a change");
    assert_eq!(undoing.record.expires_at, None);
}

#[test]
fn only_its_own_key_of_today_is_surely_the_same_intent() {
    let asked_as = |change: &dyn Fn(&mut Intent)| {
        let mut intent = (*intent(key::Source::Derived, 1)).clone();
        change(&mut intent);
        let event = Event::Arrived(Arrival {
            intent: Arc::new(intent),
            fingerprints: Arc::default(),
            preconditions: Preconditions::default(),
            attempt: attempt(1),
            owner: ME,
        });
        let next = next(&tool("t"), Some(&adopted()), &event, at(1)).expect("legal");
        (next.action, next.change.is_some())
    };
    let other = Lookup::new("shop", "t", "other");
    let own = Lookup::new("shop", "t", "k");
    assert_eq!(asked_as(&|_| {}), (Action::TakeFingerprint, true));
    let by_earlier_name = asked_as(&|intent| {
        intent.lookup = other;
        intent.lookups = vec![own];
    });
    assert_eq!(by_earlier_name, (Action::RefuseUnclear, false));
    for other in ["tenant", "tool"] {
        let of_another = asked_as(&|intent| match other {
            "tenant" => intent.tenant = "bank".into(),
            _ => intent.tool = "u".into(),
        });
        assert_eq!(of_another, (Action::RefuseUnclear, false), "{other}");
    }
    let of_a_saga = asked_as(&|intent| intent.saga_id = "G".into());
    assert_eq!(of_a_saga, (Action::RefuseOtherSaga, false));
}

/// Otherwise the request would be executed although its effect exists.
#[test]
fn an_adopted_call_under_an_earlier_name_blocks() {
    let own = Lookup::new("shop", "t", "k");
    let intent = Intent {
        lookup: Lookup::new("shop", "t", "other"),
        lookups: vec![own],
        ..(*intent(key::Source::Derived, 1)).clone()
    };
    let holder = Holder {
        record: adopted(),
        lookups: vec![own],
    };
    let name = |lookup, part| LookupKey {
        lookup,
        part,
        is_runtime: false,
    };
    let lookups = [name(intent.lookup, Part::Today), name(own, Part::Earlier)];
    let seeking = Seeking {
        lookups: &lookups,
        intent: &intent,
        fingerprints: &Fingerprints::default(),
        confirmed: None,
    };
    let met = resolve(&tool("t"), &[holder], seeking, at(1));
    assert_eq!(met, Resolved::Call(0));
}

#[test]
fn an_effect_that_is_undone_leaves_its_key_with_the_call_that_it_was_adopted_as() {
    let to_undo = Event::EffectToUndo(By::new("reconciliation books", "sold twice"));
    let undone = Event::UndoEnded {
        by: ME,
        end: UndoEnd::Undone,
    };
    let known = asks(&adopted(), key::Source::Derived, 1, 1).change;
    for before in [adopted(), known.expect("a change").record] {
        let marked = moved(&tool("t"), Some(&before), &to_undo, 2).expect("it can be undone");
        assert_eq!(marked.state, State::Compensating(Some(stored())));
        assert_eq!((marked.compensation(), marked.expires_at), (None, None));
        let again = next(&tool("t"), Some(&marked), &to_undo, at(3));
        assert_eq!(again, Err(Illegal::NothingToUndo), "it has begun");
        let after = moved(&tool("t"), Some(&marked), &undone, 3).expect("it has ended");
        assert_eq!(after.state, State::Compensated(Some(stored())));
        let again = next(&tool("t"), Some(&after), &to_undo, at(4));
        assert_eq!(again, Err(Illegal::NothingToUndo));
        let action = asks(&after, key::Source::Derived, 1, 5).action;
        assert!(
            matches!(action, Action::Answer | Action::TakeFingerprint),
            "{action:?}"
        );
    }
    let others = next(&tool("t"), Some(&succeeded("{}")), &to_undo, at(2));
    assert_eq!(
        others,
        Err(Illegal::NothingToUndo),
        "it is not an effect alone"
    );
}

#[test]
fn the_tenant_of_an_effect_is_the_only_known_one_with_such_a_key_and_never_the_gateways_own() {
    let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let of = |tenant: &str, names: &[&str]| tenant_of(&Lookup::new(tenant, "t", "k"), known(names));
    let twin = |tenant: &str| {
        let mut names = (0..).map(|n| format!("tenant {n}"));
        let is_twin = |name: &String| Lookup::partition_of(name) == Lookup::partition_of(tenant);
        names.find(is_twin).expect("one in 256")
    };
    assert_eq!(of("shop", &["bank", "shop"]), Ok("shop".into()));
    assert!(of("shop", &["bank"]).is_err());
    let several = of("shop", &["shop", &twin("shop")]);
    assert!(several.is_err_and(|why| why.contains("may be of any of these tenants")));
    // No effect of the gateway's own compensations becomes a call of a tenant.
    let own = RESERVED_TENANT;
    for names in [
        &[][..],
        &["shop"],
        &[own],
        &[&twin(own)],
        &[own, &twin(own)],
    ] {
        assert!(of(own, names).is_err(), "{names:?}");
    }
}

#[test]
fn only_a_request_proves_the_tenant_of_an_adopted_call() {
    assert!(!adopted().is_proven() && succeeded("{}").is_proven());
    let known = asks(&adopted(), key::Source::Derived, 1, 1).change;
    assert!(known.expect("a change").record.is_proven());
}

proptest! {
    /// The call that holds the key does not change, whatever its state.
    #[test]
    fn no_effect_is_adopted_over_a_call(
        steps in prop::collection::vec((any_event(), 0..50_000_i64), 0..20),
        pause in 0..50_000_i64,
    ) {
        let tool = Tool { compensation: cancel(true), ..tool("t") };
        let (there, seconds) = led_through(&tool, &steps);
        prop_assert_eq!(next(&tool, Some(&there), &adopts(7), at(seconds + pause)), Err(Illegal::KeyHeld));
    }

    /// One of the requests within the window shows what the call asked for, and none runs.
    #[test]
    fn one_request_says_what_an_adopted_call_asked_for_and_none_runs(
        requests in prop::collection::vec((1..4_u8, any::<bool>(), 0..1_000_i64), 1..30),
    ) {
        let (mut there, mut first, mut seconds) = (adopted(), None, 0);
        for (fingerprint, is_runtime, pause) in requests {
            seconds += pause;
            let source = if is_runtime { key::Source::Runtime } else { key::Source::Derived };
            let Next { change, action } = asks(&there, source, fingerprint, seconds);
            let expected = match first {
                None => Action::TakeFingerprint,
                Some(first) if first == fingerprint => Action::Answer,
                Some(_) => Action::RefuseReused,
            };
            prop_assert_eq!(&action, &expected);
            prop_assert_eq!(change.is_some(), first.is_none());
            first.get_or_insert(fingerprint);
            if let Some(change) = change {
                prop_assert_eq!(change.record.version, there.version + 1);
                there = change.record;
            }
        }
    }
}
