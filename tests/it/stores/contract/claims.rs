//! Claims and replacements.

use super::*;

pub(super) async fn one_of_a_hundred_claims_of_a_key_gets_it(home: Home) {
    let mut claims = JoinSet::new();
    for _ in 0..100 {
        let store = home.store.clone();
        claims.spawn(async move {
            let change = arrival("k", "S", 0, ME);
            (change.record.attempt.id, claim(&*store, &change).await)
        });
    }
    let answers = claims.join_all().await;
    let holders: Vec<_> = answers
        .iter()
        .filter(|(_, answer)| matches!(answer, Claimed::Yours(_)))
        .collect();
    assert_eq!(holders.len(), 1);
    let (holder, _) = holders[0];
    for (_, answer) in &answers {
        let (Claimed::Yours(record) | Claimed::Existing(record)) = answer else {
            panic!("denied")
        };
        assert_eq!(record.attempt.id, *holder, "all get the same holder");
    }
}

pub(super) async fn a_repeated_claim_is_still_ours_and_writes_nothing(home: Home) {
    let store = &*home.store;
    let change = arrival("k", "S", 0, ME);
    let first = claimed(store, &change).await;
    assert_eq!(claimed(store, &change).await, first);
    let history = store
        .history(first.intent.call_id, 10)
        .await
        .expect("an answer")
        .expect("a call");
    assert_eq!(history.entries, [change.entry]);
}

pub(super) async fn a_call_comes_back_as_it_was_stored(home: Home) {
    let store = &*home.store;
    let record = claimed(store, &arrival("k", "S", 0, ME)).await;
    let mut all = vec![record.clone()];
    all.push(replaced(store, &ended(&record, 200, 1), &record).await);
    for (key, status) in [("rejected", 422), ("unavailable", 429), ("unknown", 500)] {
        let record = claimed(store, &arrival(key, "S", 0, ME)).await;
        all.push(replaced(store, &ended(&record, status, 1), &record).await);
    }
    assert_eq!(all[1].state.as_str(), "succeeded");
    let home = home.reopen().await;
    let store = &*home.store;
    for record in &all[1..] {
        assert_eq!(
            store
                .load(record.intent.call_id)
                .await
                .expect("an answer")
                .as_ref(),
            Some(record)
        );
    }
    assert_eq!(
        store.load(CallId(Uuid::new_v4())).await.expect("an answer"),
        None
    );
}

pub(super) async fn a_replacement_needs_the_version_the_attempt_and_the_token(home: Home) {
    let store = &*home.store;
    let record = claimed(store, &arrival("k", "S", 0, ME)).await;
    let done = ended(&record, 200, 1);
    let mut version = record.clone();
    version.version -= 1;
    let mut attempt = record.clone();
    attempt.attempt.id = AttemptId(Uuid::new_v4());
    let mut token = record.clone();
    token.fencing = token.fencing.map(|token| token - 1);
    for stale in [version, attempt, token] {
        let answer = store.replace(&done, &stale).await.expect("an answer");
        assert_eq!(
            answer,
            Replaced::Lost(Some(record.clone())),
            "nothing has changed"
        );
    }
    let first = replaced(store, &done, &record).await;
    assert_eq!(
        replaced(store, &done, &record).await,
        first,
        "the same change again"
    );
    let other = ended(&record, 500, 2);
    assert_eq!(
        store.replace(&other, &record).await.expect("an answer"),
        Replaced::Lost(Some(first.clone()))
    );
    // Another change to the same version, attempt and state.
    let another = ended(&record, 200, 2);
    assert_eq!(
        store.replace(&another, &record).await.expect("an answer"),
        Replaced::Lost(Some(first))
    );
}

pub(super) async fn a_finished_call_gives_up_its_key_only_in_the_step_that_claims_it(home: Home) {
    let store = &*home.store;
    let old = claimed(store, &arrival("k", "S", 0, ME)).await;
    let anew = arrival("k", "S", 9, ME);
    let failed = replaced(store, &ended(&old, 429, 1), &old).await;
    let other = arrival("k", "S", 2, ME).record;
    for seen in [&other, &old] {
        let wrong = store
            .claim(&anew, std::slice::from_ref(seen))
            .await
            .expect("an answer");
        assert_eq!(
            wrong,
            Claimed::Existing(failed.clone()),
            "the expected record is not the stored one"
        );
    }
    let Claimed::Yours(new) = store
        .claim(&anew, std::slice::from_ref(&failed))
        .await
        .expect("an answer")
    else {
        panic!("the call gives up its key")
    };
    let late = store
        .replace(&rerun(&failed, 9), &failed)
        .await
        .expect("an answer");
    assert_eq!(
        late,
        Replaced::Lost(Some(new.clone())),
        "without its key a call does not run again"
    );
    assert_eq!(
        claim(store, &arrival("k", "S", 9, ME)).await,
        Claimed::Existing(new)
    );
    assert!(
        store
            .load(old.intent.call_id)
            .await
            .expect("an answer")
            .is_some(),
        "it stays in the ledger"
    );
}
