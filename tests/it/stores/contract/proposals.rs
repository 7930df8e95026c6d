//! Calls that wait for approval: their places, their index, and their begin.

use oncegate::core::actor::By;
use oncegate::core::approval::{Ask, Shown};
use oncegate::core::call::{Approved, Begun};
use oncegate::core::key::GroupKey;
use oncegate::core::ledger::Filter;
use oncegate::core::record::State;
use oncegate::core::session::Denied;
use oncegate::core::tool::{Budget, Mode, OnSimilar, Per, SessionPolicy, Similar};

use super::*;
use crate::support::Tool;
use crate::support::gateway::Bare;

const BOUND: [u8; 32] = [7; 32];

fn ask() -> Ask {
    Ask {
        why: vec!["every call of this tool needs approval".into()],
        expires: Duration::from_secs(3_600),
        good_for: Duration::from_secs(300),
        needed: 1,
        from: Vec::new(),
        similar: false,
        over_budget: false,
    }
}

/// A tool with every condition on a begin.
fn bounded() -> Policy {
    Policy {
        session: SessionPolicy {
            mode: Mode::Exclusive,
            wait: Duration::ZERO,
        },
        budget: Some(Budget {
            per: Per::Session,
            max: 2,
            window: Duration::from_secs(3_600),
        }),
        similar: Some(Similar {
            fields: vec!["/a".parse().expect("a pointer")],
            window: Duration::from_secs(3_600),
            action: OnSimilar::Flag,
        }),
        ..policy()
    }
}

/// The change that an event makes of a record.
fn after(policy: &Policy, record: Option<&Record>, event: &Event, second: i64) -> Change {
    let next = next(policy, record, event, at(second)).expect("legal");
    next.change.expect("a change")
}

fn proposal(policy: &Policy, key: &str, second: i64) -> Change {
    let intent = Intent {
        similar: policy.similar.as_ref().map(|_| GroupKey([9; 32])),
        ..intent(key, "S", at(second))
    };
    let arrival = Arrival {
        intent: Arc::new(intent),
        fingerprints: Arc::default(),
        preconditions: Preconditions::default(),
        attempt: AttemptId(Uuid::new_v4()),
        owner: ME,
    };
    let ask = ask();
    after(policy, None, &Event::Asked { arrival, ask }, second)
}

fn approves(record: &Record, second: i64) -> Change {
    let shown = Shown {
        bound: BOUND,
        seen: [1; 32],
    };
    let event = Event::Approved(Approved {
        by: "ann".into(),
        reason: "seen".into(),
        seen: shown.seen,
        shown,
    });
    after(&policy(), Some(record), &event, second)
}

fn begins(policy: &Policy, record: &Record, second: i64) -> Change {
    let event = Event::Begun(Begun {
        by: ME,
        attempt: AttemptId(Uuid::new_v4()),
        bound: BOUND,
    });
    after(policy, Some(record), &event, second)
}

async fn waiting(store: &dyn Store, second: i64) -> Vec<CallId> {
    let due = store
        .due_proposals(at(second), 10)
        .await
        .expect("an answer");
    assert_eq!(due.unreadable, Vec::new());
    due.calls
        .iter()
        .map(|record| record.intent.call_id)
        .collect()
}

async fn counts(store: &dyn Store) -> Vec<(String, u64)> {
    let census = store.census().await.expect("an answer");
    let counts = census.into_iter().map(|count| (count.state, count.calls));
    let mut counts: Vec<_> = counts.filter(|(_, calls)| *calls > 0).collect();
    counts.sort();
    counts
}

async fn listed(store: &dyn Store, state: &str) -> Vec<CallId> {
    let filter = Filter {
        state: Some(state.into()),
        ..Filter::default()
    };
    let page = store.list("shop", &filter, None, 10).await.expect("a page");
    page.found
        .iter()
        .map(|listed| listed.record.intent.call_id)
        .collect()
}

pub(super) async fn what_waits_for_approval_is_found_when_it_is_due_counted_and_listed(home: Home) {
    let store = &*home.store;
    let plain = policy();
    let proposed = claimed(store, &proposal(&plain, "k", 0)).await;
    let id = proposed.intent.call_id;
    assert_eq!(
        (&proposed.state, proposed.fencing),
        (&State::Proposed, None)
    );
    assert_eq!(
        claim(store, &proposal(&plain, "k", 1)).await,
        Claimed::Existing(proposed.clone())
    );
    assert_eq!(waiting(store, 3_599).await, []);
    assert_eq!(waiting(store, 3_600).await, [id]);
    assert_eq!(counts(store).await, [("proposed".to_owned(), 1)]);
    assert_eq!(
        (
            listed(store, "proposed").await,
            listed(store, "approved").await
        ),
        (vec![id], vec![])
    );
    assert_eq!(calls_at_risk(store, 10).await, [id]);

    let home = home.reopen().await;
    let store = &*home.store;
    let approved = replaced(store, &approves(&proposed, 10), &proposed).await;
    assert_eq!(
        store.load(id).await.expect("an answer"),
        Some(approved.clone())
    );
    assert_eq!(
        (waiting(store, 9).await, waiting(store, 10).await),
        (vec![], vec![id])
    );
    assert_eq!(counts(store).await, [("approved".to_owned(), 1)]);
    assert_eq!(
        (
            listed(store, "proposed").await,
            listed(store, "approved").await
        ),
        (vec![], vec![id])
    );
    assert_eq!(calls_at_risk(store, 10).await, [id]);

    let running = replaced(store, &begins(&plain, &approved, 20), &approved).await;
    assert!(running.fencing.is_some(), "the begin draws it");
    assert_eq!(waiting(store, 9_000).await, []);
    assert_eq!(counts(store).await, [("running".to_owned(), 1)]);
    let done = replaced(store, &ended(&running, 200, 21), &running).await;
    assert_eq!(
        done.proposal.as_ref().map(|asked| asked.approvals.len()),
        Some(1)
    );
    assert_eq!(
        (
            listed(store, "approved").await,
            calls_at_risk(store, 10).await
        ),
        (vec![], vec![])
    );
    store.prune(at(90 * 24 * 3_600), 100).await.expect("pruned");
    assert_eq!(store.load(id).await.expect("an answer"), None);
}

pub(super) async fn an_approved_call_begins_once(home: Home) {
    let store = home.store.clone();
    let proposed = claimed(&*store, &proposal(&policy(), "k", 0)).await;
    let approved = replaced(&*store, &approves(&proposed, 10), &proposed).await;
    let mut begun = JoinSet::new();
    for _ in 0..20 {
        let (store, approved) = (store.clone(), approved.clone());
        let change = begins(&policy(), &approved, 20);
        begun.spawn(async move { store.replace(&change, &approved).await.expect("an answer") });
    }
    let begun = begun.join_all().await;
    let ours = begun.iter().filter(|one| matches!(one, Replaced::Done(_)));
    assert_eq!(ours.count(), 1, "{begun:?}");
}

pub(super) async fn a_proposal_takes_its_places_and_no_lock_and_its_begin_takes_that(home: Home) {
    let store = &*home.store;
    let bounded = bounded();
    let first = claimed(store, &proposal(&bounded, "a", 0)).await;
    let second = claimed(store, &proposal(&bounded, "b", 1)).await;
    assert_eq!(
        (first.similar_to, second.similar_to),
        (None, Some(first.intent.call_id))
    );
    let third = claim(store, &proposal(&bounded, "c", 2)).await;
    assert!(
        matches!(third, Claimed::Denied(Denied::Spent { .. })),
        "{third:?}"
    );

    // A similar call that was not shown keeps the first one from its begin.
    let approved = replaced(store, &approves(&first, 3), &first).await;
    let begin = begins(&bounded, &approved, 4);
    let denied = store.replace(&begin, &approved).await.expect("an answer");
    assert_eq!(
        denied,
        Replaced::Denied(Denied::Similar {
            call_id: second.intent.call_id
        })
    );
    let voided = Event::Voided {
        by: ME,
        similar: second.intent.call_id,
    };
    let shown = replaced(
        store,
        &after(&bounded, Some(&approved), &voided, 5),
        &approved,
    )
    .await;
    assert_eq!(shown.similar_to, Some(second.intent.call_id));
    let approved = replaced(store, &approves(&shown, 6), &shown).await;
    let running = replaced(store, &begins(&bounded, &approved, 7), &approved).await;

    // It has the lock now, so the second one waits.
    let other = replaced(store, &approves(&second, 8), &second).await;
    let begin = begins(&bounded, &other, 9);
    let denied = store.replace(&begin, &other).await.expect("an answer");
    assert!(
        matches!(denied, Replaced::Denied(Denied::Busy { .. })),
        "{denied:?}"
    );
    replaced(store, &ended_by(&bounded, &running, 200, 10), &running).await;
    let begun = replaced(store, &begins(&bounded, &other, 11), &other).await;
    assert!(begun.fencing > running.fencing);
}

pub(super) async fn a_failed_call_that_asks_again_keeps_its_token_until_it_begins(home: Home) {
    let store = &*home.store;
    let proposed = claimed(store, &proposal(&policy(), "k", 0)).await;
    let approved = replaced(store, &approves(&proposed, 10), &proposed).await;
    let running = replaced(store, &begins(&policy(), &approved, 20), &approved).await;
    let failed = replaced(store, &ended(&running, 429, 21), &running).await;
    let arrival = Arrival {
        intent: failed.intent.clone(),
        fingerprints: Arc::default(),
        preconditions: Preconditions::default(),
        attempt: AttemptId(Uuid::new_v4()),
        owner: ME,
    };
    let ask = ask();
    let again = after(
        &policy(),
        Some(&failed),
        &Event::Asked { arrival, ask },
        400,
    );
    let asks = replaced(store, &again, &failed).await;
    assert_eq!(
        (&asks.state, asks.fencing),
        (&State::Proposed, running.fencing)
    );
    assert_eq!(
        replaced(store, &again, &failed).await,
        asks,
        "the same change again"
    );
    let back = Event::Withdrawn(By::token("agent", "r"));
    let back = replaced(store, &after(&policy(), Some(&asks), &back, 401), &asks).await;
    assert_eq!(
        (back.state.as_str(), back.fencing),
        ("failed", running.fencing)
    );
}

/// The tool of these calls is not configured here, so none of those that are approved can begin.
pub(super) async fn many_held_calls_delay_none_that_is_over(home: Home) {
    let store = &*home.store;
    for n in 0..300 {
        let proposed = claimed(store, &proposal(&policy(), &format!("k{n}"), 3_000)).await;
        replaced(store, &approves(&proposed, 3_500), &proposed).await;
    }
    let late = claimed(store, &proposal(&policy(), "late", 0)).await;
    let tool = Tool::start().await;
    let bare = Bare::over_shared(home.store.clone(), ME, &tool, "").await;
    let approvals = &bare.gateway.approvals;
    let state = async || {
        let found = store.load(late.intent.call_id).await.expect("an answer");
        found.expect("a call").state
    };
    approvals.run_once(at(3_599)).await.expect("a look");
    assert_eq!(state().await, State::Proposed);
    approvals.run_once(at(3_600)).await.expect("a look");
    assert!(matches!(state().await, State::Failed(_)));
    assert_eq!(counts(store).await, [("approved".to_owned(), 300)]);
    // Once their approvals are no longer good, all of them wait again.
    let done = approvals.run_once(at(3_800)).await.expect("a look");
    assert_eq!(done, 300);
    assert_eq!(counts(store).await, [("proposed".to_owned(), 300)]);
    bare.stop().await;
}
