//! The contract of a store for the conditions of a claim, tested with each store.
//!
//! The times are this machine's, because a Redis goes by its own clock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oncegate::core::call::Change;
use oncegate::core::key::GroupKey;
use oncegate::core::record::{CallId, Entry, Intent, Record};
use oncegate::core::session::{Denied, Lock, Preconditions, SessionId};
use oncegate::core::tool::Tool as Policy;
use oncegate::core::tool::{Mode, SessionPolicy as Sessions};
use oncegate::store::{Claimed, Replaced, Store};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::stores::admission_groups::with_budget;
use crate::stores::contract::{
    Home, ME, arrives, claim, claimed, contract, ended_by, intent, replaced,
};

contract! {
    a_frozen_session_lets_nothing_begin_and_says_who_froze_it,
    an_older_token_is_refused_and_so_is_one_that_was_never_given_out,
    a_claim_that_loses_draws_no_token,
    claims_of_one_moment_draw_different_tokens_and_one_of_them_gets_the_lock,
    a_claim_that_is_denied_writes_nothing_but_its_place_in_the_line,
    the_lock_goes_to_the_call_that_waited_longest,
    an_unknown_outcome_holds_the_lock_until_its_lease_ends,
    unlock_frees_only_the_lock_of_the_expected_run,
}

#[expect(clippy::disallowed_methods, reason = "a Redis goes by its own clock")]
pub fn now() -> Timestamp {
    Timestamp::from_microsecond(Timestamp::now().as_microsecond()).expect("a time")
}

pub fn exclusive() -> Policy {
    Policy {
        session: Sessions {
            mode: Mode::Exclusive,
            wait: Duration::from_secs(5),
        },
        ..Policy::new("t")
    }
}

pub fn asks(tool: &Policy, key: &str) -> Change {
    asks_with(tool, key, Preconditions::default())
}

/// The change by which an arrival claims this key in the session S.
pub fn asks_with(tool: &Policy, key: &str, preconditions: Preconditions) -> Change {
    let intent = Intent {
        similar: tool.similar.as_ref().map(|_| GroupKey([7; 32])),
        args: "{}".into(),
        ..intent(key, "S", now())
    };
    arrives(tool, None, Arc::new(intent), preconditions, (ME, now()))
}

pub fn again(tool: &Policy, failed: &Record) -> Change {
    let (intent, by) = (failed.intent.clone(), (ME, now()));
    arrives(tool, Some(failed), intent, Preconditions::default(), by)
}

/// Ends a call now, with this status of the tool.
pub async fn ends(store: &dyn Store, tool: &Policy, record: &Record, status: u16) -> Record {
    let since = now().as_second() - 1_700_000_000;
    replaced(store, &ended_by(tool, record, status, since), record).await
}

#[track_caller]
pub fn denied(claimed: Claimed) -> Denied {
    match claimed {
        Claimed::Denied(denied) => denied,
        other => panic!("not denied: {other:?}"),
    }
}

fn id(change: &Change) -> CallId {
    change.record.intent.call_id
}

pub fn session() -> SessionId {
    SessionId {
        tenant: "shop".into(),
        id: "S".into(),
    }
}

pub fn entry(event: &'static str) -> Entry {
    let (by, detail) = ("token ops".to_owned(), "a test".to_owned());
    Entry {
        at: now(),
        event: event.into(),
        attempt: None,
        outcome: None,
        by,
        detail,
    }
}

async fn a_claim_that_is_denied_writes_nothing_but_its_place_in_the_line(home: Home) {
    let (store, tool) = (&*home.store, with_budget(2, exclusive()));
    let first = claimed(store, &asks(&tool, "a")).await;
    let gives_up = asks(&tool, "x");
    denied(claim(store, &gives_up).await);
    store
        .leave_line(&session(), id(&gives_up))
        .await
        .expect("an answer");
    let waits = asks(&tool, "b");
    let Denied::Busy {
        lock: Some(lock),
        behind,
    } = denied(claim(store, &waits).await)
    else {
        panic!("not the lock")
    };
    assert_eq!(
        (lock.call_id, Some(lock.token)),
        (first.intent.call_id, first.fencing)
    );
    assert_eq!(
        (lock.lease_until, lock.free_from),
        (first.attempt.lease_until, None)
    );
    assert_eq!(behind, Some(first.intent.call_id));
    assert_eq!(
        store
            .holders(&[waits.record.intent.lookup])
            .await
            .expect("an answer"),
        []
    );
    assert_eq!(store.load(id(&waits)).await.expect("an answer"), None);
    let seen = store.session(&session()).await.expect("an answer");
    assert_eq!(
        (seen.token, seen.lock),
        (first.fencing, Some(lock)),
        "no token was drawn"
    );
    assert_eq!(
        seen.waiting.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [id(&waits)]
    );
    ends(store, &tool, &first, 200).await;
    claimed(store, &waits).await;
    let spent = denied(claim(store, &asks(&tool, "c")).await);
    assert!(
        matches!(spent, Denied::Spent { .. }),
        "two have begun; the call that left the line does not count: {spent:?}"
    );
}

async fn the_lock_goes_to_the_call_that_waited_longest(home: Home) {
    let (store, tool) = (&*home.store, exclusive());
    let first = claimed(store, &asks(&tool, "a")).await;
    let line: Vec<Change> = ["b", "c", "d"].map(|key| asks(&tool, key)).into();
    let behind = async |change: &Change| match denied(claim(store, change).await) {
        Denied::Busy { behind, .. } => behind,
        other => panic!("{other:?}"),
    };
    assert_eq!(behind(&line[0]).await, Some(first.intent.call_id));
    assert_eq!(behind(&line[1]).await, Some(id(&line[0])));
    assert_eq!(behind(&line[2]).await, Some(id(&line[1])));
    ends(store, &tool, &first, 200).await;
    assert_eq!(
        behind(&line[1]).await,
        Some(id(&line[0])),
        "the lock is free, but another call is before it"
    );
    assert_eq!(behind(&asks(&tool, "late")).await, Some(id(&line[2])));
    store
        .leave_line(&session(), id(&line[0]))
        .await
        .expect("an answer");
    let second = claimed(store, &line[1]).await;
    assert!(
        second.fencing > first.fencing,
        "a call draws its token when it gets the lock"
    );
    assert_eq!(behind(&line[2]).await, Some(id(&line[1])));
    ends(store, &tool, &second, 422).await;
    claimed(store, &line[2]).await;
}

async fn an_unknown_outcome_holds_the_lock_until_its_lease_ends(home: Home) {
    let (store, tool) = (&*home.store, exclusive());
    let first = claimed(store, &asks(&tool, "a")).await;
    let unknown = ends(store, &tool, &first, 500).await;
    let waits = asks(&tool, "b");
    let Denied::Busy {
        lock: Some(lock), ..
    } = denied(claim(store, &waits).await)
    else {
        panic!("not the lock")
    };
    assert_eq!(lock.free_from, Some(first.attempt.lease_until));
    assert!(lock.free_from > Some(now()));
    // A late answer settles the call before that.
    let done = ends(store, &tool, &unknown, 200).await;
    assert_eq!(done.state.as_str(), "succeeded");
    claimed(store, &waits).await;
}

/// The lock of the session S.
async fn lock_of(store: &dyn Store) -> Option<Lock> {
    store.session(&session()).await.expect("an answer").lock
}

async fn unlock_frees_only_the_lock_of_the_expected_run(home: Home) {
    let (store, tool) = (&*home.store, exclusive());
    let first = claimed(store, &asks(&tool, "a")).await;
    let lock = lock_of(store).await.expect("a lock");
    let failed = ends(store, &tool, &first, 422).await;
    let change = again(&tool, &failed);
    let Replaced::Done(second) = store.replace(&change, &failed).await.expect("an answer") else {
        panic!("it runs again")
    };
    assert_eq!(
        lock_of(store).await.map(|lock| Some(lock.token)),
        Some(second.fencing)
    );
    let unlock = async |lock| {
        store
            .unlock(&session(), &lock, &entry("unlocked"))
            .await
            .expect("an answer")
    };
    assert!(!unlock(lock).await, "an earlier run of the same call");
    assert!(matches!(
        claim(store, &asks(&tool, "b")).await,
        Claimed::Denied(_)
    ));
    store
        .leave_line(&session(), CallId(Uuid::new_v4()))
        .await
        .expect("a call without a place may leave");
    let lock = lock_of(store).await.expect("a lock");
    assert!(unlock(lock).await);
    let seen = store.session(&session()).await.expect("an answer");
    assert_eq!(
        (seen.lock, seen.events.len()),
        (None, 1),
        "only the unlock that freed it is recorded"
    );
    assert_eq!(seen.events[0].event, "unlocked");
    ends(store, &tool, &second, 200).await;
}

async fn a_frozen_session_lets_nothing_begin_and_says_who_froze_it(home: Home) {
    let (store, tool) = (&*home.store, Policy::new("t"));
    let first = claimed(store, &asks(&tool, "a")).await;
    let failed = ends(store, &tool, &first, 422).await;
    let set = async |frozen, event| {
        store
            .set_frozen(&session(), frozen, &entry(event))
            .await
            .expect("an answer")
    };
    assert!(set(true, "frozen").await);
    assert!(!set(true, "frozen").await, "no change");
    assert_eq!(
        denied(claim(store, &asks(&tool, "b")).await),
        Denied::Frozen
    );
    let rerun = store
        .replace(&again(&tool, &failed), &failed)
        .await
        .expect("an answer");
    assert_eq!(rerun, Replaced::Denied(Denied::Frozen));
    store
        .prune(now() + Duration::from_secs(90 * 24 * 3_600), 100)
        .await
        .expect("pruned");
    assert_eq!(
        denied(claim(store, &asks(&tool, "b")).await),
        Denied::Frozen,
        "cleanup keeps a frozen session"
    );
    assert!(set(false, "thawed").await);
    claimed(store, &asks(&tool, "b")).await;
    let seen = store.session(&session()).await.expect("an answer");
    let events: Vec<&str> = seen
        .events
        .iter()
        .map(|entry| entry.event.as_ref())
        .collect();
    assert_eq!((events, seen.frozen), (vec!["frozen", "thawed"], false));
    assert_eq!(
        (seen.events[0].by.as_str(), seen.events[0].detail.as_str()),
        ("token ops", "a test")
    );
}

async fn an_older_token_is_refused_and_so_is_one_that_was_never_given_out(home: Home) {
    let (store, tool) = (&*home.store, Policy::new("t"));
    let first = claimed(store, &asks(&tool, "a"))
        .await
        .fencing
        .expect("a token");
    let brings = |key, token| {
        asks_with(
            &tool,
            key,
            Preconditions {
                fencing: Some(token),
                confirmed: None,
            },
        )
    };
    assert_eq!(
        denied(claim(store, &brings("b", first - 1)).await),
        Denied::Stale
    );
    assert_eq!(
        claimed(store, &brings("b", first)).await.fencing,
        Some(first)
    );
    for never in [
        first + 1,
        first + 1_000_000,
        first + 7_190_000_000,
        (1 << 53) - 1,
    ] {
        assert_eq!(
            denied(claim(store, &brings("c", never)).await),
            Denied::NotGiven
        );
    }
    let newest = claimed(store, &asks(&tool, "c"))
        .await
        .fencing
        .expect("a token");
    assert!(newest > first);
    assert_eq!(
        denied(claim(store, &brings("d", first)).await),
        Denied::Stale
    );
    assert_eq!(
        claimed(store, &brings("d", newest)).await.fencing,
        Some(newest)
    );
}

/// Otherwise the winner's token would not be the session's newest.
async fn a_claim_that_loses_draws_no_token(home: Home) {
    for n in 0..20 {
        let tool = Policy::new("t");
        let key = format!("k{n}");
        let (one, other) = (asks(&tool, &key), asks(&tool, &key));
        let (one, other) = tokio::join!(claim(&*home.store, &one), claim(&*home.store, &other));
        let ((Claimed::Yours(winner), _) | (_, Claimed::Yours(winner))) = (one, other) else {
            panic!("no winner")
        };
        let preconditions = Preconditions {
            fencing: winner.fencing,
            confirmed: None,
        };
        claimed(
            &*home.store,
            &asks_with(&tool, &format!("next{n}"), preconditions),
        )
        .await;
    }
}

/// A store may write several claims by one step. They must see each other all the same.
async fn claims_of_one_moment_draw_different_tokens_and_one_of_them_gets_the_lock(home: Home) {
    const CLAIMS: usize = 40;
    let at_once = async |tool: &Policy, round: &str| {
        // Others come first, so that those of the session wait together.
        let mut others = JoinSet::new();
        for n in 0..CLAIMS {
            let (key, session) = (format!("other-{round}{n}"), format!("other-{n}"));
            let intent = Arc::new(intent(&key, &session, now()));
            let by = (ME, now());
            let change = arrives(
                &Policy::new("t"),
                None,
                intent,
                Preconditions::default(),
                by,
            );
            let store = home.store.clone();
            others.spawn(async move { claim(&*store, &change).await });
        }
        let mut claims = JoinSet::new();
        for n in 0..CLAIMS {
            let (store, change) = (home.store.clone(), asks(tool, &format!("{round}{n}")));
            claims.spawn(async move { claim(&*store, &change).await });
        }
        others.join_all().await;
        claims.join_all().await
    };
    let token = |answer: &Claimed| match answer {
        Claimed::Yours(record) => record.fencing,
        _ => None,
    };
    let tokens = at_once(&Policy::new("t"), "a").await;
    let tokens: BTreeSet<u64> = tokens.iter().filter_map(token).collect();
    assert_eq!(tokens.len(), CLAIMS, "{tokens:?}");
    let locked = at_once(&exclusive(), "b").await;
    let locked: Vec<u64> = locked.iter().filter_map(token).collect();
    assert_eq!(locked.len(), 1, "one gets the lock: {locked:?}");
    assert!(Some(&locked[0]) > tokens.last());
}
