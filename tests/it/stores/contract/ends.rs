//! Fencing tokens, ends of calls, retention, and pauses.

use super::*;

pub(super) async fn fencing_tokens_of_a_session_rise_whatever_the_clock_does(home: Home) {
    let store = &*home.store;
    let mut last = 0;
    let mut rises = async |store: &dyn Store, key: String, second: i64| {
        let token = claimed(store, &arrival(&key, "S", second, ME))
            .await
            .fencing
            .expect("a token");
        assert!(token > last, "{token} after {last}");
        assert!(token < 1 << 53, "exact in every JSON reader");
        last = token;
    };
    for (n, second) in [0, 0, 10, 5, -3_600, 7_200, -7_200].into_iter().enumerate() {
        rises(store, format!("a{n}"), second).await;
    }
    let home = home.reopen().await;
    let store = &*home.store;
    rises(store, "b".into(), 0).await;
    store
        .prune(at(90 * 24 * 3_600), 1_000)
        .await
        .expect("pruned");
    rises(store, "c".into(), 90 * 24 * 3_600).await;
}

pub(super) async fn a_failed_call_runs_again_under_its_own_key_with_a_new_token(home: Home) {
    let store = &*home.store;
    let first = claimed(store, &arrival("k", "S", 0, ME)).await;
    let failed = replaced(store, &ended(&first, 429, 1), &first).await;
    let change = rerun(&failed, 2);
    let second = replaced(store, &change, &failed).await;
    assert!(
        second.fencing > first.fencing,
        "{:?} after {:?}",
        second.fencing,
        first.fencing
    );
    assert_eq!(
        replaced(store, &change, &failed).await,
        second,
        "the same change again gets the same token"
    );
    let done = replaced(store, &ended(&second, 200, 3), &second).await;
    assert_eq!(
        claim(store, &arrival("k", "S", 4, ME)).await,
        Claimed::Existing(done.clone())
    );
    let history = store
        .history(done.intent.call_id, 10)
        .await
        .expect("an answer")
        .expect("a call")
        .entries;
    let events: Vec<&str> = history.iter().map(|entry| entry.event.as_ref()).collect();
    assert_eq!(events, ["claimed", "ended", "run_again", "ended"]);
    let newest = store
        .history(done.intent.call_id, 2)
        .await
        .expect("an answer")
        .expect("a call");
    assert_eq!(newest.entries, history[2..]);
}

/// The change by which a failed call runs again.
pub(crate) fn rerun(failed: &Record, second: i64) -> Change {
    let (intent, by) = (failed.intent.clone(), (ME, at(second)));
    arrives(
        &policy(),
        Some(failed),
        intent,
        Preconditions::default(),
        by,
    )
}

pub(super) async fn calls_are_due_when_their_lease_is_over(home: Home) {
    let store = &*home.store;
    let mine = claimed(store, &arrival("mine", "S", 0, ME)).await;
    let theirs = claimed(
        store,
        &arrival("theirs", "S", 0, InstanceId(Uuid::from_u128(2))),
    )
    .await;
    let done = claimed(store, &arrival("done", "S", 0, ME)).await;
    replaced(store, &ended(&done, 500, 1), &done).await;
    let due = async |second| {
        let due = store.due(at(second), 10).await.expect("an answer").calls;
        due.into_iter()
            .map(|due| (due.record.intent.call_id, due.owner_ended))
            .collect::<HashSet<_>>()
    };
    // Only one process uses a file, so any other owner has ended. Of a shared store that cannot be known.
    let is_known = !home.is_shared();
    let early = HashSet::from([(theirs.intent.call_id, true)]);
    assert_eq!(due(1).await, if is_known { early } else { HashSet::new() });
    assert_eq!(
        due(40).await,
        HashSet::from([
            (mine.intent.call_id, false),
            (theirs.intent.call_id, is_known)
        ])
    );
    assert_eq!(
        store.due(at(40), 1).await.expect("an answer").calls.len(),
        1,
        "bounded"
    );
}

/// An unknown call of this tool whose next check is due at this second; `None`: it is never checked.
pub(crate) async fn unknown(store: &dyn Store, tool: &str, key: &str, due: Option<i64>) -> CallId {
    let lookup = Lookup::new("shop", tool, key);
    let intent = Intent {
        call_id: CallId::new(Uuid::new_v4(), &lookup),
        tool: tool.into(),
        lookup,
        ..intent(key, "S", at(0))
    };
    let (tool, by) = (Policy::new(tool), (ME, at(0)));
    let change = arrives(&tool, None, Arc::new(intent), Preconditions::default(), by);
    let running = claimed(store, &change).await;
    let mut change = ended_by(&tool, &running, 500, 1);
    change.record.check = due.map(|due| Check {
        since: at(1),
        at: Some(at(due)),
        number: 0,
    });
    let unknown = replaced(store, &change, &running).await;
    unknown.intent.call_id
}

pub(super) async fn due_checks_are_found_by_tool_and_each_tool_gets_its_share(home: Home) {
    let store = &*home.store;
    let mut of_t = Vec::new();
    for n in 0..4 {
        of_t.push(unknown(store, "t", &format!("k{n}"), Some(10 + n)).await);
    }
    let of_other = unknown(store, "other", "k", Some(20)).await;
    unknown(store, "third", "k", Some(9)).await;
    unknown(store, "t", "later", Some(99)).await;
    let held = unknown(store, "other", "held", None).await;
    unknown(store, "third", "held", None).await;
    let ids = |found: Found<Record>| -> HashSet<CallId> {
        let calls = found.calls.into_iter();
        calls.map(|record| record.intent.call_id).collect()
    };
    let tools = ["t".to_owned(), "other".to_owned()];
    for (each, of_t) in [(1, &of_t[..1]), (2, &of_t[..2]), (9, &of_t[..])] {
        let due = store.due_rechecks(at(30), &tools, each).await;
        let expected = of_t.iter().copied().chain([of_other]).collect();
        assert_eq!(ids(due.expect("an answer")), expected, "{each} of each");
    }
    let found = store.unscheduled_unknown(&tools, 9).await;
    assert_eq!(ids(found.expect("an answer")), HashSet::from([held]));
}

pub(super) async fn only_calls_that_came_to_an_end_are_deleted(home: Home) {
    let store = &*home.store;
    // Its call is kept for one second by the clock of the store.
    let short = Policy {
        retention: Duration::from_secs(1),
        effect: Effect::Read,
        ..policy()
    };
    let mut done = arrival("done", "S", 0, ME);
    done.admission = None;
    let done = claimed(store, &done).await;
    let change = ended_by(&short, &done, 200, 1);
    let kept = replaced(
        store,
        &Change {
            record: brief(change.record),
            ..change
        },
        &done,
    )
    .await;
    let unknown = claimed(store, &arrival("unknown", "S", 0, ME)).await;
    let unknown = replaced(store, &ended(&unknown, 500, 1), &unknown).await;
    let failed = claimed(store, &arrival("failed", "S", 0, ME)).await;
    let failed = replaced(store, &ended(&failed, 429, 1), &failed).await;
    let running = claimed(store, &arrival("running", "S", 0, ME)).await;
    store.prune(at(1), 10).await.expect("an answer");
    assert!(
        store
            .load(failed.intent.call_id)
            .await
            .expect("an answer")
            .is_some(),
        "its time has not come"
    );
    until("the call is deleted", async || {
        store.prune(at(3_600), 10).await.expect("an answer");
        store
            .history(kept.intent.call_id, 10)
            .await
            .expect("an answer")
            .is_none()
    })
    .await;
    assert_eq!(
        store
            .holders(&[kept.intent.lookup])
            .await
            .expect("an answer"),
        [],
        "and its key is free"
    );
    let years = 10 * 365 * 24 * 3_600;
    store.prune(at(years), 10).await.expect("an answer");
    for record in [&unknown, &running] {
        let loaded = store.load(record.intent.call_id).await.expect("an answer");
        assert_eq!(
            loaded.as_ref(),
            Some(record),
            "it is not finished, so it stays"
        );
    }
    // If the store had lost its newest writes, either call may have gone on.
    let at_risk = calls_at_risk(store, 1).await;
    assert!(
        [&unknown, &running]
            .iter()
            .all(|record| at_risk.contains(&record.intent.call_id))
    );
    let census = store.census().await.expect("an answer");
    let counted: HashSet<_> = census
        .iter()
        .map(|count| (count.state.as_str(), count.calls))
        .collect();
    assert_eq!(counted, HashSet::from([("running", 1), ("unknown", 1)]));
    replaced(store, &ended(&running, 200, 2), &running).await;
    let census = store.census().await.expect("an answer");
    let counted: Vec<_> = census.iter().map(|count| count.state.as_str()).collect();
    assert_eq!(counted, ["unknown"], "what has no calls is not counted");
}

pub(super) async fn a_paused_tool_stays_so_and_its_newest_hundred_events_are_kept(home: Home) {
    let entry = |event: &'static str, n: i64| Entry {
        at: at(n),
        event: event.into(),
        attempt: None,
        outcome: None,
        by: "token ops".into(),
        detail: format!("reason \"{n}\""),
    };
    let set = async |store: &dyn Store, tool: &str, paused: bool, n: i64| {
        let entry = entry(if paused { "paused" } else { "resumed" }, n);
        store
            .set_paused(tool, paused, &entry)
            .await
            .expect("an answer")
    };
    let store = home.store.as_ref();
    assert_eq!(store.paused().await.expect("an answer"), []);
    assert!(!set(store, "t", false, 0).await, "it is not paused");
    for n in 0..101 {
        assert!(set(store, "t", n % 2 == 0, n).await);
        assert!(!set(store, "t", n % 2 == 0, 999).await, "no change");
    }
    assert!(set(store, "other", true, 1).await);
    assert!(set(store, "other", false, 2).await);
    let home = home.reopen().await;
    let paused = home.store.paused().await.expect("an answer");
    assert_eq!(
        paused,
        [("t".to_owned(), entry("paused", 100))],
        "the pause keeps its actor, time and reason"
    );
    let events = home.store.tool_events("t").await.expect("an answer");
    let all: Vec<Entry> = (1..101)
        .map(|n| entry(if n % 2 == 0 { "paused" } else { "resumed" }, n))
        .collect();
    assert_eq!(events, all, "the newest hundred, oldest first");
    assert_eq!(
        home.store
            .tool_events("other")
            .await
            .expect("an answer")
            .len(),
        2
    );
}
