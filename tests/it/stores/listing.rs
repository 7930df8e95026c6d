//! What every store promises about the ledger: over SQLite, one Redis and a Redis Cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use oncegate::core::call::Change;
use oncegate::core::key::Lookup;
use oncegate::core::ledger::{Duplicate, Duplicates, Filter, PAGE_BYTES};
use oncegate::core::position::Position;
use oncegate::core::record::{CallId, Intent, Record};
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Claimed, Store};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::stores::contract::{Home, ME, arrival, at, claimed, contract, ended, replaced};

contract! {
    pages_together_show_every_call_that_passes_a_filter,
    calls_that_have_lost_their_key_are_still_found_by_that_key,
    names_that_callers_choose_may_be_long,
    a_page_of_large_results_ends_early,
    duplicates_are_counted_and_the_newest_are_listed,
    deleted_calls_are_in_no_list,
}

/// The n-th of many calls with mixed tenants, tools, keys, users, sessions and times.
fn mixed(n: usize) -> Change {
    let mut change = arrival("", "", 0, ME);
    let tenant = ["shop", "bank"][n % 2];
    let (tool, key) = (["pay", "ship", "mail"][n % 3], format!("key{}", n / 2));
    let lookup = Lookup::new(tenant, tool, &key);
    // Six calls have the same time.
    let created_at = at(0) + SignedDuration::from_micros((n / 6) as i64);
    let intent = Intent {
        call_id: CallId::new(Uuid::new_v4(), &lookup),
        tenant: tenant.into(),
        tool: tool.into(),
        lookup,
        key,
        user_id: ["", "ann", "bob"][n / 2 % 3].into(),
        session_id: ["", "S1", "S2", "S3"][n / 3 % 4].into(),
        saga_id: String::new(),
        trace_id: format!("trace{}", n / 10),
        created_at,
        ..(*change.record.intent).clone()
    };
    change.record.intent = Arc::new(intent);
    change.admission = None;
    change
}

async fn claim_mixed(store: &dyn Store, n: usize) -> Record {
    let record = claimed(store, &mixed(n)).await;
    match n % 5 {
        0 => record,
        1 => replaced(store, &ended(&record, 429, 1), &record).await,
        2 => replaced(store, &ended(&record, 500, 1), &record).await,
        _ => replaced(store, &ended(&record, 200, 1), &record).await,
    }
}

fn filters() -> Vec<Filter> {
    let none = Filter::default;
    let text = |text: &str| Some(text.to_owned());
    let time = |micros: i64| Some(at(0) + SignedDuration::from_micros(micros));
    vec![
        none(),
        Filter {
            trace_id: text("trace3"),
            ..none()
        },
        Filter {
            trace_id: text("nothing"),
            ..none()
        },
        Filter {
            session_id: text("S2"),
            ..none()
        },
        Filter {
            user_id: text("ann"),
            ..none()
        },
        Filter {
            tool: text("ship"),
            ..none()
        },
        Filter {
            key: text("key7"),
            ..none()
        },
        Filter {
            state: text("running"),
            ..none()
        },
        Filter {
            state: text("failed"),
            ..none()
        },
        Filter {
            state: text("unknown"),
            ..none()
        },
        Filter {
            state: text("succeeded"),
            ..none()
        },
        Filter {
            since: time(5),
            ..none()
        },
        Filter {
            until: time(5),
            ..none()
        },
        Filter {
            since: time(3),
            until: time(9),
            tool: text("pay"),
            ..none()
        },
        Filter {
            updated_since: time(6),
            ..none()
        },
        Filter {
            user_id: text("bob"),
            state: text("unknown"),
            ..none()
        },
        Filter {
            session_id: text("S1"),
            user_id: text("ann"),
            state: text("succeeded"),
            ..none()
        },
        // A page that may look at one call only ends early, and the next page goes on.
        Filter {
            looks: Some(1),
            ..none()
        },
        Filter {
            state: text("succeeded"),
            looks: Some(5),
            ..none()
        },
        Filter {
            by: text("none"),
            looks: Some(5),
            ..none()
        },
    ]
}

async fn all(store: &dyn Store, tenant: &str, filter: &Filter, limit: u32) -> Vec<Record> {
    let (mut found, mut before) = (Vec::new(), None::<Position>);
    loop {
        let page = store
            .list(tenant, filter, before, limit)
            .await
            .expect("an answer");
        assert!(page.found.len() <= limit as usize, "{filter:?}");
        found.extend(page.found.into_iter().map(|listed| listed.record));
        let Some(next) = page.next else { return found };
        assert!(
            before.is_none_or(|before| next < before),
            "it goes on: {filter:?}"
        );
        before = Some(next);
    }
}

async fn pages_together_show_every_call_that_passes_a_filter(home: Home) {
    let store = &*home.store;
    let mut records = Vec::new();
    for n in 0..120 {
        records.push(claim_mixed(store, n).await);
    }
    records.sort_by_key(|record| std::cmp::Reverse(Position::of(record)));
    for tenant in ["shop", "bank", "nobody"] {
        for filter in filters() {
            let is_asked_for =
                |record: &&Record| record.intent.tenant == tenant && filter.matches(record);
            let expected: Vec<&Record> = records.iter().filter(is_asked_for).collect();
            let limits: &[u32] = if filter == Filter::default() {
                &[1, 7, 500]
            } else {
                &[7, 500]
            };
            for &limit in limits {
                let found = all(store, tenant, &filter, limit).await;
                assert_eq!(
                    found.iter().collect::<Vec<_>>(),
                    expected,
                    "{tenant}, {limit}, {filter:?}"
                );
            }
        }
    }
    assert_eq!(store.tenants().await.expect("an answer"), ["bank", "shop"]);
}

async fn calls_that_have_lost_their_key_are_still_found_by_that_key(home: Home) {
    let store = &*home.store;
    let mut kept: Vec<Record> = Vec::new();
    for second in 0..3 {
        let change = arrival("k", "S", second, ME);
        let claim = store.claim(&change, kept.first().map_or(&[], std::slice::from_ref));
        let Claimed::Yours(running) = claim.await.expect("an answer") else {
            panic!("the one before has ended");
        };
        let done = replaced(store, &ended(&running, 200, second), &running).await;
        kept.insert(0, done);
    }
    // The id of this call does not follow from its key.
    let mut other = arrival("other", "S", 3, ME);
    Arc::make_mut(&mut other.record.intent).key = "k".into();
    let other = claimed(store, &other).await;
    kept.insert(0, replaced(store, &ended(&other, 200, 3), &other).await);
    let by_key = Filter {
        key: Some("k".into()),
        ..Filter::default()
    };
    let of_tool = Filter {
        tool: Some("t".into()),
        ..by_key.clone()
    };
    for limit in [1, 9] {
        assert_eq!(all(store, "shop", &by_key, limit).await, kept);
        assert_eq!(all(store, "shop", &of_tool, limit).await, kept);
    }
    let many_years = at(0) + SignedDuration::from_hours(24 * 365 * 20);
    while store.prune(many_years, 10).await.expect("an answer") > 0 {}
    assert_eq!(all(store, "shop", &by_key, 9).await, []);
}

async fn names_that_callers_choose_may_be_long(home: Home) {
    let store = &*home.store;
    let mut change = arrival("k", "S", 0, ME);
    let intent = Arc::make_mut(&mut change.record.intent);
    (intent.user_id, intent.made_by) = ("u".repeat(5_000), "m".repeat(5_000));
    let running = claimed(store, &change).await;
    let done = replaced(store, &ended(&running, 200, 1), &running).await;
    let brief = Filter {
        is_brief: true,
        ..Filter::default()
    };
    let shown = all(store, "shop", &brief, 9).await;
    assert_eq!(shown, [done.clone().without_texts()]);
    let maker = store.maker(done.intent.call_id).await.expect("an answer");
    assert_eq!(maker.map(|maker| maker.token), Some("m".repeat(5_000)));
    let many_years = at(0) + SignedDuration::from_hours(24 * 365 * 20);
    while store.prune(many_years, 10).await.expect("an answer") > 0 {}
    assert_eq!(
        store.load(done.intent.call_id).await.expect("an answer"),
        None
    );
}

async fn a_page_of_large_results_ends_early(home: Home) {
    let store = &*home.store;
    for n in 0..6 {
        let mut change = arrival(&format!("k{n}"), "", n, ME);
        let args = format!("{{\"long\":\"{}\"}}", "x".repeat(PAGE_BYTES / 4));
        change.record.intent = Arc::new(Intent {
            args: args.into(),
            ..(*change.record.intent).clone()
        });
        claimed(store, &change).await;
    }
    let page = store
        .list("shop", &Filter::default(), None, 500)
        .await
        .expect("an answer");
    assert_eq!(page.found.len(), 4, "a page has a size");
    let rest = store
        .list("shop", &Filter::default(), page.next, 500)
        .await
        .expect("an answer");
    let shown: BTreeSet<String> = page
        .found
        .iter()
        .chain(&rest.found)
        .map(|listed| listed.record.intent.key.clone())
        .collect();
    assert_eq!(shown.len(), 6);
}

async fn duplicates_are_counted_and_the_newest_are_listed(home: Home) {
    let store = &*home.store;
    let record = claimed(store, &arrival("k", "S", 0, ME)).await;
    let call_id = record.intent.call_id;
    let one = |second: i64| Duplicate {
        at: at(second),
        by: "agents".into(),
        kind: "replayed".into(),
    };
    let many = |seconds: std::ops::Range<i64>| Duplicates {
        count: (seconds.end - seconds.start).unsigned_abs(),
        last: seconds.rev().map(one).take(10).collect(),
    };
    let unknown = CallId::new(Uuid::new_v4(), &record.intent.lookup);
    store
        .count_duplicates(call_id, &many(1..8))
        .await
        .expect("written");
    store
        .count_duplicates(unknown, &many(0..1))
        .await
        .expect("written");
    store
        .count_duplicates(call_id, &many(8..31))
        .await
        .expect("written");
    let found = store
        .history(call_id, 10)
        .await
        .expect("an answer")
        .expect("a call");
    let expected = Duplicates {
        count: 30,
        last: (21..31).rev().map(one).collect(),
    };
    assert_eq!(
        (&found.record, &found.duplicates),
        (&record, &expected),
        "the call itself is as it was"
    );
    let page = store
        .list("shop", &Filter::default(), None, 10)
        .await
        .expect("an answer");
    assert_eq!(page.found[0].duplicates, expected);
    assert_eq!(
        store.load(unknown).await.expect("an answer"),
        None,
        "what is not there is not made"
    );
    assert_eq!(store.history(unknown, 10).await.expect("an answer"), None);
}

async fn deleted_calls_are_in_no_list(home: Home) {
    let store = &*home.store;
    for n in 0..40 {
        claim_mixed(store, n).await;
    }
    let many_years = at(0) + SignedDuration::from_hours(24 * 365 * 20);
    while store.prune(many_years, 10).await.expect("an answer") > 0 {}
    for tenant in ["shop", "bank"] {
        for filter in filters() {
            for record in all(store, tenant, &filter, 500).await {
                assert!(
                    matches!(record.state.as_str(), "running" | "unknown"),
                    "{filter:?}: {record:?}"
                );
            }
        }
        let left = all(store, tenant, &Filter::default(), 500).await.len();
        assert_eq!(left, 8, "what has not come to an end stays: {tenant}");
    }
    if let Some(keys) = home.keys().await {
        let lists = keys.iter().filter(|key| key.contains(":list:")).count();
        let calls = keys.iter().filter(|key| key.contains(":call:")).count();
        assert_eq!(calls, 16, "{keys:?}");
        // The lists of all, by key, trace, tool and state, and for some calls by session and user.
        assert!(lists <= 16 * 7, "{lists} lists lead to 16 calls");
        assert!(
            !keys.iter().any(|key| key.ends_with(":retained")),
            "nothing waits to be deleted"
        );
    }
}

/// Adds each call to each list, as if the digests of all lists were equal.
#[tokio::test]
async fn lists_of_a_file_whose_digests_collide_show_no_other_calls() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("oncegate.db");
    let store = Sqlite::open(&file, ME, &CancellationToken::new()).expect("a store");
    let mut records = Vec::new();
    for n in 0..40 {
        records.push(claim_mixed(&store, n).await);
    }
    records.sort_by_key(|record| std::cmp::Reverse(Position::of(record)));
    let other = rusqlite::Connection::open(&file).expect("opened");
    let sql = "INSERT OR IGNORE INTO lists SELECT one.list, other.created_at, other.seq FROM lists one, lists other";
    assert!(other.execute(sql, []).is_ok_and(|added| added > 40));
    for filter in filters() {
        let is_asked_for =
            |record: &&Record| record.intent.tenant == "shop" && filter.matches(record);
        let expected: Vec<&Record> = records.iter().filter(is_asked_for).collect();
        let found = all(&store, "shop", &filter, 7).await;
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

/// Checks the test data: several calls must share a time.
#[test]
fn some_mixed_calls_have_the_same_time() {
    let times: BTreeSet<Timestamp> = (0..120)
        .map(|n| mixed(n).record.intent.created_at)
        .collect();
    assert_eq!(times.len(), 20);
}

/// One round reads sixty-four calls at least.
#[tokio::test]
async fn a_page_of_a_redis_goes_on_until_it_is_full_or_has_looked_at_enough() {
    let home = Home::redis().await;
    let store = &*home.store;
    let mut oldest = mixed(0);
    Arc::make_mut(&mut oldest.record.intent).made_by = "rare".into();
    claimed(store, &oldest).await;
    for n in 1..=130 {
        claimed(store, &mixed(2 * n)).await;
    }
    let rare = Filter {
        by: Some("rare".into()),
        ..Filter::default()
    };
    let page = store.list("shop", &rare, None, 7).await.expect("a page");
    assert_eq!(page.found.len(), 1, "it is behind all others");
    let few = Filter {
        looks: Some(5),
        ..rare
    };
    let page = store.list("shop", &few, None, 7).await.expect("a page");
    assert_eq!(page.found, []);
    assert!(page.next.is_some(), "it has not looked at all of them");
}
