//! The contract of a store for budgets and near-duplicates, tested with each store.

use std::time::Duration;

use oncegate::core::record::CallId;
use oncegate::core::session::{Denied, Preconditions};
use oncegate::core::tool::Tool as Policy;
use oncegate::core::tool::{Budget, OnSimilar, Per, Similar};
use oncegate::store::{Claimed, Replaced};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::stores::admission::{again, asks, asks_with, denied, ends, exclusive, now, session};
use crate::stores::contract::{Home, claim, claimed, contract, replaced};

contract! {
    a_budget_admits_as_many_claims_as_it_has_room_for,
    a_call_costs_its_budget_once_however_often_it_is_asked_for_and_run,
    a_claim_of_a_held_key_costs_nothing,
    a_call_of_a_budget_is_similar_to_none,
    the_newest_similar_call_must_be_confirmed,
}

pub fn with_budget(max: u32, tool: Policy) -> Policy {
    let window = Duration::from_secs(600);
    Policy {
        budget: Some(Budget {
            per: Per::Session,
            max,
            window,
        }),
        ..tool
    }
}

fn refuses_similar() -> Policy {
    let (fields, window) = (
        vec!["/sku".parse().expect("a pointer")],
        Duration::from_secs(600),
    );
    Policy {
        similar: Some(Similar {
            fields,
            window,
            action: OnSimilar::Refuse,
        }),
        ..Policy::new("t")
    }
}

async fn a_budget_admits_as_many_claims_as_it_has_room_for(home: Home) {
    let mut claims = JoinSet::new();
    for n in 0..100 {
        let store = home.store.clone();
        claims.spawn(async move {
            let tool = with_budget(7, Policy::new("t"));
            claim(&*store, &asks(&tool, &format!("k{n}"))).await
        });
    }
    let answers = claims.join_all().await;
    assert_eq!(
        answers
            .iter()
            .filter(|answer| matches!(answer, Claimed::Yours(_)))
            .count(),
        7
    );
    for answer in answers {
        if let Claimed::Denied(denied) = answer {
            let Denied::Spent { frees_at } = denied else {
                panic!("{denied:?}")
            };
            let left = frees_at.duration_since(now()).as_secs();
            assert!((590..=600).contains(&left), "{left}");
        }
    }
}

async fn a_call_costs_its_budget_once_however_often_it_is_asked_for_and_run(home: Home) {
    let (store, tool) = (&*home.store, with_budget(2, Policy::new("t")));
    let change = asks(&tool, "a");
    let first = claimed(store, &change).await;
    assert_eq!(claimed(store, &change).await, first, "asked again");
    let failed = ends(store, &tool, &first, 422).await;
    let rerun = again(&tool, &failed);
    let second = replaced(store, &rerun, &failed).await;
    assert_eq!(replaced(store, &rerun, &failed).await, second);
    ends(store, &tool, &second, 200).await;
    claimed(store, &asks(&tool, "b")).await;
    assert!(matches!(
        denied(claim(store, &asks(&tool, "c")).await),
        Denied::Spent { .. }
    ));
}

async fn a_claim_of_a_held_key_costs_nothing(home: Home) {
    let (store, tool) = (&*home.store, with_budget(2, exclusive()));
    let first = claimed(store, &asks(&tool, "a")).await;
    assert_eq!(
        claim(store, &asks(&tool, "a")).await,
        Claimed::Existing(first.clone())
    );
    let seen = store.session(&session()).await.expect("an answer");
    assert_eq!((seen.token, seen.waiting.len()), (first.fencing, 0));
    ends(store, &tool, &first, 200).await;
    claimed(store, &asks(&tool, "b")).await;
}

async fn a_call_of_a_budget_is_similar_to_none(home: Home) {
    let store = &*home.store;
    claimed(store, &asks(&with_budget(1, Policy::new("t")), "a")).await;
    let first = claimed(store, &asks(&refuses_similar(), "b")).await;
    assert_eq!(first.similar_to, None);
}

async fn the_newest_similar_call_must_be_confirmed(home: Home) {
    let (store, tool) = (&*home.store, refuses_similar());
    let looks_like = async |key: &str, confirmed| {
        let change = asks_with(
            &tool,
            key,
            Preconditions {
                fencing: None,
                confirmed,
            },
        );
        match claim(store, &change).await {
            Claimed::Yours(record) => Ok(record),
            Claimed::Denied(Denied::Similar { call_id }) => Err(call_id),
            other => panic!("{other:?}"),
        }
    };
    let first = looks_like("a", None).await.expect("the first");
    let first_id = first.intent.call_id;
    assert_eq!(first.similar_to, None);
    assert_eq!(looks_like("b", None).await, Err(first_id));
    assert_eq!(
        looks_like("b", Some(CallId(Uuid::new_v4()))).await,
        Err(first_id)
    );
    let second = looks_like("b", Some(first_id)).await.expect("confirmed");
    let second_id = second.intent.call_id;
    assert_eq!(second.similar_to, Some(first_id));
    assert_eq!(
        store.load(second_id).await.expect("an answer"),
        Some(second.clone())
    );
    assert_eq!(
        looks_like("c", Some(first_id)).await,
        Err(second_id),
        "the second call is newer"
    );
    let failed = ends(store, &tool, &second, 422).await;
    assert_eq!(
        failed.similar_to,
        Some(first_id),
        "it keeps its similar call"
    );
    assert_eq!(
        looks_like("c", None).await,
        Err(first_id),
        "the newer one surely did not run"
    );
    let third = looks_like("c", Some(first_id)).await.expect("confirmed");
    let rerun = store
        .replace(&again(&tool, &failed), &failed)
        .await
        .expect("an answer");
    assert_eq!(
        rerun,
        Replaced::Denied(Denied::Similar {
            call_id: third.intent.call_id
        })
    );
    assert_eq!(
        store.load(second_id).await.expect("an answer"),
        Some(failed)
    );
}
