//! The names that a call holds.

use super::*;

/// The change, with further names in its intent.
pub(crate) fn with_lookups(change: Change, lookups: &[&str]) -> Change {
    let lookups = lookups.iter().map(|name| name_of(name)).collect();
    let intent = Intent {
        lookups,
        ..(*change.record.intent).clone()
    };
    Change {
        record: Record {
            intent: Arc::new(intent),
            ..change.record
        },
        ..change
    }
}

pub(crate) fn name_of(key: &str) -> Lookup {
    Lookup::new("shop", "t", key)
}

/// Which call holds each of these names.
async fn who_holds(store: &dyn Store, lookups: [&str; 3]) -> [Option<CallId>; 3] {
    let lookups = lookups.map(name_of);
    let holders = store.holders(&lookups).await.expect("an answer");
    let places: Vec<_> = holders
        .iter()
        .filter_map(|holder| lookups.iter().position(|name| *name == holder.lookups[0]))
        .collect();
    assert!(
        places.is_sorted() && places.len() == holders.len(),
        "in the order of the names"
    );
    let ids: HashSet<_> = holders
        .iter()
        .map(|holder| holder.record.intent.call_id)
        .collect();
    assert_eq!(ids.len(), holders.len(), "each call once");
    lookups.map(|name| {
        let holder = holders.iter().find(|holder| holder.lookups.contains(&name));
        holder.map(|holder| holder.record.intent.call_id)
    })
}

pub(super) async fn a_call_claims_all_of_its_names_or_none(home: Home) {
    let store = &*home.store;
    let change = with_lookups(arrival("a", "S", 0, ME), &["b", "c"]);
    let first = claimed(store, &change).await;
    let id = Some(first.intent.call_id);
    assert_eq!(claimed(store, &change).await, first, "the same claim again");
    assert_eq!(who_holds(store, ["c", "a", "b"]).await, [id; 3]);
    for (key, lookups) in [
        ("a", &["x"][..]),
        ("b", &[]),
        ("c", &["x"]),
        ("x", &["y", "c"]),
        ("x", &["b"]),
    ] {
        let other = with_lookups(arrival(key, "S", 1, ME), lookups);
        assert_eq!(
            claim(store, &other).await,
            Claimed::Existing(first.clone()),
            "{key} {lookups:?}"
        );
    }
    assert_eq!(
        who_holds(store, ["x", "y", "a"]).await,
        [None, None, id],
        "nothing was written"
    );
    let home = home.reopen().await;
    let store = &*home.store;
    assert_eq!(who_holds(store, ["a", "b", "c"]).await, [id; 3]);
    let loaded = store
        .load(first.intent.call_id)
        .await
        .expect("an answer")
        .expect("a call");
    assert_eq!(
        (&loaded.intent.lookups, loaded.intent.key_scheme),
        (&first.intent.lookups, first.intent.key_scheme)
    );

    // Names live as long as their call.
    let short = Policy {
        retention: Duration::from_secs(1),
        ..policy()
    };
    let done = ended_by(&short, &first, 200, 1);
    let done = replaced(
        store,
        &Change {
            record: brief(done.record),
            ..done
        },
        &first,
    )
    .await;
    assert_eq!(who_holds(store, ["a", "b", "c"]).await, [id; 3]);
    until("it is gone", async || {
        store.prune(at(3_600), 10).await.expect("an answer");
        store
            .load(done.intent.call_id)
            .await
            .expect("an answer")
            .is_none()
    })
    .await;
    assert_eq!(who_holds(store, ["a", "b", "c"]).await, [None; 3]);
    claimed(store, &with_lookups(arrival("c", "S", 3_600, ME), &["a"])).await;
}

/// The change by which a call gets the names of further keys.
fn also_named(record: &Record, lookups: &[&str], replaced: &[Record], second: i64) -> Change {
    let change = with_lookups(arrival(lookups[0], "S", second, ME), &lookups[1..]);
    let (intent, by) = (change.record.intent, ME);
    let event = Event::Resembled(Resembled {
        intent,
        replaced: replaced.to_vec(),
        by,
    });
    next(&policy(), Some(record), &event, at(second))
        .expect("a change")
        .change
        .expect("a change")
}

pub(super) async fn a_finished_call_takes_all_further_names_or_none(home: Home) {
    let store = &*home.store;
    let lone = claimed(store, &arrival("a", "S", 0, ME)).await;
    let first = replaced(store, &ended(&lone, 200, 1), &lone).await;
    let id = Some(first.intent.call_id);
    let other = claimed(store, &arrival("x", "S", 1, ME)).await;
    let lost = |stored: &Record| Replaced::Lost(Some(stored.clone()));
    let replace = async |change: &Change, expected: &Record| {
        store.replace(change, expected).await.expect("an answer")
    };
    assert_eq!(
        replace(&also_named(&first, &["b", "x"], &[], 2), &first).await,
        lost(&other)
    );
    assert_eq!(
        who_holds(store, ["a", "b", "x"]).await,
        [id, None, Some(other.intent.call_id)],
        "it takes none"
    );
    let both = also_named(&first, &["b", "c"], &[], 2);
    let named = replaced(store, &both, &first).await;
    assert_eq!(
        replaced(store, &both, &first).await,
        named,
        "the same change again"
    );
    assert_eq!(who_holds(store, ["a", "b", "c"]).await, [id; 3]);
    let again = also_named(&first, &["d"], &[], 3);
    assert_eq!(
        replace(&again, &first).await,
        lost(&named),
        "it has changed since"
    );
    // A call gives up its name only if it is still as expected.
    let seen = replaced(store, &ended(&other, 200, 2), &other).await;
    let change = also_named(&named, &["x"], std::slice::from_ref(&other), 3);
    assert_eq!(replace(&change, &named).await, lost(&seen));
    let change = also_named(&named, &["x"], std::slice::from_ref(&seen), 3);
    let named = replaced(store, &change, &named).await;
    assert_eq!(who_holds(store, ["x", "b", "d"]).await, [id, id, None]);
    assert_eq!(
        claim(store, &arrival("c", "S", 4, ME)).await,
        Claimed::Existing(named.clone())
    );

    let home = home.reopen().await;
    let store = &*home.store;
    assert_eq!(who_holds(store, ["a", "c", "x"]).await, [id; 3]);
    let loaded = store
        .load(named.intent.call_id)
        .await
        .expect("an answer")
        .expect("a call");
    assert_eq!(loaded, named);
    until("it is gone", async || {
        store
            .prune(at(100 * 24 * 3_600), 10)
            .await
            .expect("an answer");
        store
            .load(named.intent.call_id)
            .await
            .expect("an answer")
            .is_none()
    })
    .await;
    assert_eq!(who_holds(store, ["a", "c", "x"]).await, [None; 3]);
    assert_eq!(who_holds(store, ["b", "c", "d"]).await, [None; 3]);
}

pub(super) async fn a_claim_takes_names_only_from_the_expected_calls(home: Home) {
    let store = &*home.store;
    let mut old = Vec::new();
    for (key, other) in [("a", "a2"), ("b", "b2")] {
        let record = claimed(store, &with_lookups(arrival(key, "S", 0, ME), &[other])).await;
        old.push(replaced(store, &ended(&record, 200, 1), &record).await);
    }
    let change = with_lookups(arrival("a", "S", 9, ME), &["b", "n"]);
    for seen in [&old[..1], &old[1..], &[]] {
        let holder = if seen == &old[..1] { &old[1] } else { &old[0] };
        let claimed = store.claim(&change, seen).await.expect("an answer");
        assert_eq!(claimed, Claimed::Existing(holder.clone()));
    }
    let Claimed::Yours(new) = store.claim(&change, &old).await.expect("an answer") else {
        panic!("both give up their names")
    };
    assert_eq!(
        who_holds(store, ["a", "b", "n"]).await,
        [Some(new.intent.call_id); 3]
    );
    let kept = who_holds(store, ["a2", "b2", "x"]).await;
    let ids = old
        .iter()
        .map(|record| Some(record.intent.call_id))
        .collect::<Vec<_>>();
    assert_eq!(kept, [ids[0], ids[1], None], "they keep their other names");
    // A deleted call loses only the names that it still holds.
    let gone = old
        .iter()
        .map(|record| record.intent.call_id)
        .collect::<Vec<_>>();
    until("the old ones are gone", async || {
        store
            .prune(at(90 * 24 * 3_600), 10)
            .await
            .expect("an answer");
        store.load(gone[0]).await.expect("an answer").is_none()
            && store.load(gone[1]).await.expect("an answer").is_none()
    })
    .await;
    assert_eq!(
        who_holds(store, ["a2", "b2", "a"]).await,
        [None, None, Some(new.intent.call_id)]
    );
    assert_eq!(
        who_holds(store, ["b", "n", "x"]).await,
        [Some(new.intent.call_id), Some(new.intent.call_id), None]
    );
}

pub(super) async fn a_call_runs_again_only_with_all_of_its_names(home: Home) {
    let store = &*home.store;
    let first = claimed(store, &with_lookups(arrival("a", "S", 0, ME), &["b"])).await;
    let failed = replaced(store, &ended(&first, 429, 1), &first).await;
    let again = rerun(&failed, 2);
    let other = store
        .claim(&arrival("b", "S", 2, ME), std::slice::from_ref(&failed))
        .await;
    let Claimed::Yours(other) = other.expect("an answer") else {
        panic!("the call gives up its name")
    };
    assert_eq!(
        store.replace(&again, &failed).await.expect("an answer"),
        Replaced::Lost(Some(other))
    );
}
