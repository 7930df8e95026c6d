//! What every store promises, asked of SQLite, of a Redis, of a Redis Cluster, and of the store in memory that
//! other tests stand on.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use oncegate::core::call::{Change, Event, next};
use oncegate::core::key::{Lookup, Source};
use oncegate::core::outcome::{Body, Evidence};
use oncegate::core::recipe::RecipeId;
use oncegate::core::record::{AttemptId, CallId, Entry, InstanceId, Intent, Record};
use oncegate::core::session::Brought;
use oncegate::core::tool::{Effect, Tool as Policy};
use oncegate::store::Health as _;
use oncegate::store::redis::{Redis as RedisStore, Settings, Target};
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Claimed, Durability, Replaced, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::gateway::store_is_free;
use crate::support::memory::Memory;
use crate::support::pace::brisk;
use crate::support::redis::{Cluster, Redis};
use crate::support::until;

/// A store to make claims about, and what it lives in.
pub(crate) struct Home {
    pub(crate) store: Arc<dyn Store>,
    place: Place,
    folder: tempfile::TempDir,
}

enum Place {
    Memory(Memory),
    Sqlite,
    Redis(Redis),
    Cluster(Cluster),
}

impl Home {
    pub(crate) async fn memory() -> Self {
        Self::over(
            Place::Memory(Memory::default()),
            tempfile::tempdir().expect("a folder"),
        )
        .await
    }

    pub(crate) async fn sqlite() -> Self {
        Self::over(Place::Sqlite, tempfile::tempdir().expect("a folder")).await
    }

    pub(crate) async fn redis() -> Self {
        Self::over(
            Place::Redis(Redis::strict().await),
            tempfile::tempdir().expect("a folder"),
        )
        .await
    }

    pub(crate) async fn redis_cluster() -> Self {
        Self::over(
            Place::Cluster(Cluster::start().await),
            tempfile::tempdir().expect("a folder"),
        )
        .await
    }

    async fn over(place: Place, folder: tempfile::TempDir) -> Self {
        let store: Arc<dyn Store> = match &place {
            Place::Memory(memory) => Arc::new(memory.clone()),
            Place::Sqlite => Arc::new(open_sqlite(folder.path())),
            Place::Redis(redis) => Arc::new(open_redis(&redis.url(), folder.path()).await),
            Place::Cluster(cluster) => Arc::new(open_redis(&cluster.url(), folder.path()).await),
        };
        Self {
            store,
            place,
            folder,
        }
    }

    /// Spoils all documents that are there, so that none of them can be read.
    pub(crate) async fn spoil_documents(&self) {
        match &self.place {
            Place::Sqlite => {
                let file = rusqlite::Connection::open(self.folder.path().join("oncegate.db"));
                let spoiled = file.and_then(|file| {
                    file.execute("UPDATE documents SET retain_until = ?1", [i64::MAX])
                });
                assert!(spoiled.is_ok_and(|spoiled| spoiled > 0));
            }
            Place::Redis(redis) => {
                let names = redis.ask(&["KEYS", "oncegate:*:document:*"]).await;
                let names: Vec<String> = ::redis::from_redis_value(names).expect("names");
                for name in names {
                    redis.ask(&["HSET", &name, "rest", "spoiled"]).await;
                }
            }
            // In memory nothing is read.
            Place::Memory(_) | Place::Cluster(_) => {}
        }
    }

    /// Kills what can be killed, and opens the store again.
    pub(crate) async fn reopen(self) -> Self {
        let Self {
            store,
            mut place,
            folder,
        } = self;
        store.close().await;
        drop(store);
        match &mut place {
            Place::Memory(_) => {}
            Place::Sqlite => store_is_free(folder.path()).await,
            Place::Redis(redis) => {
                redis.kill();
                redis.start_again().await;
            }
            // One of three: the others have to wait for it.
            Place::Cluster(cluster) => {
                cluster.nodes[1].kill();
                cluster.nodes[1].start_again().await;
            }
        }
        Self::over(place, folder).await
    }

    /// Every key of a Redis.
    pub(crate) async fn keys(&self) -> Option<Vec<String>> {
        let Place::Redis(redis) = &self.place else {
            return None;
        };
        Some(
            ::redis::FromRedisValue::from_redis_value(redis.ask(&["KEYS", "*"]).await)
                .expect("names"),
        )
    }

    /// Whether others than its own process use the store.
    fn is_shared(&self) -> bool {
        !matches!(self.place, Place::Sqlite)
    }
}

fn open_sqlite(folder: &Path) -> Sqlite {
    Sqlite::open(&folder.join("oncegate.db"), ME, &CancellationToken::new()).expect("a store")
}

pub(crate) fn settings(url: &str, folder: &Path) -> Settings {
    Settings {
        target: Target::parse(url).expect("a target"),
        durability: Durability::Strict,
        declared: None,
        ca: None,
        watermarks: folder.join("watermarks"),
        pace: brisk(),
    }
}

/// Opens a Redis, whatever it is like.
pub(crate) async fn open_redis_as_it_is(url: &str, folder: &Path) -> RedisStore {
    let mut opened = None;
    until("the watermarks are free", async || {
        opened = RedisStore::open(settings(url, folder)).await.ok();
        opened.is_some()
    })
    .await;
    opened.expect("a store")
}

/// Opens a Redis, and waits until it is as it should be.
pub(crate) async fn open_redis(url: &str, folder: &Path) -> RedisStore {
    let store = open_redis_as_it_is(url, folder).await;
    until("the store is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    store
}

macro_rules! contract {
    ($($claim:ident),* $(,)?) => {
        $crate::contract::contract!(memory: $($claim),*);
        $crate::contract::contract!(sqlite: $($claim),*);
        $crate::contract::contract!(redis: $($claim),*);
        $crate::contract::contract!(redis_cluster: $($claim),*);
    };
    ($home:ident: $($claim:ident),*) => {
        mod $home {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $claim() {
                super::$claim($crate::contract::Home::$home().await).await;
            })*
        }
    };
}

pub(crate) use contract;

contract! {
    of_a_hundred_claims_of_one_key_one_holds_it,
    a_claim_asked_again_is_still_ours_and_writes_nothing,
    what_is_stored_is_what_comes_back,
    a_replacement_needs_the_version_the_attempt_and_the_token,
    a_finished_call_gives_up_its_key_only_in_the_step_that_claims_it,
    a_call_claims_all_of_its_names_or_none,
    a_call_that_is_over_takes_further_names_or_none_and_they_go_with_it,
    each_name_is_given_up_only_by_a_call_that_was_seen,
    a_call_runs_again_only_with_all_of_its_names,
    a_failed_call_runs_again_under_its_own_key_with_a_new_token,
    fencing_tokens_of_a_session_rise_whatever_the_clock_does,
    due_are_calls_whose_lease_is_over,
    what_is_deleted_has_come_to_an_end,
    a_paused_tool_stays_so_and_its_newest_hundred_events_are_kept,
}

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a time")
}

fn policy() -> Policy {
    Policy::new("t")
}

/// The change by which an arrival claims this key.
pub(crate) fn arrival(key: &str, session: &str, second: i64, owner: InstanceId) -> Change {
    let lookup = Lookup::new("shop", "t", key);
    let intent = Intent {
        call_id: CallId::new(Uuid::new_v4(), &lookup),
        tenant: "shop".into(),
        tool: "t".into(),
        lookup,
        names: Vec::new(),
        recipe: RecipeId::default(),
        key: key.into(),
        key_source: Source::Runtime,
        fingerprint: [1; 32],
        user_id: "U1".into(),
        session_id: session.into(),
        saga_id: String::new(),
        trace_id: "trace".into(),
        made_by: "agent".into(),
        similar: None,
        args: "{\"a\":1}".into(),
        created_at: at(second),
    };
    let (intent, brought) = (Arc::new(intent), Brought::default());
    let event = Event::Arrived {
        intent,
        prints: Arc::default(),
        brought,
        attempt: AttemptId(Uuid::new_v4()),
        owner,
    };
    next(&policy(), None, &event, at(second))
        .expect("a claim")
        .change
        .expect("a change")
}

/// The change by which the attempt of a record ends with this status.
pub(crate) fn ended(record: &Record, status: u16, second: i64) -> Change {
    ended_by(&policy(), record, status, second)
}

pub(crate) fn ended_by(policy: &Policy, record: &Record, status: u16, second: i64) -> Change {
    let body = Body::Whole("{\"b\": 1.0}".into());
    let evidence = Evidence::Answer {
        status,
        body,
        retry_after: None,
        newest_token: None,
    };
    let event = Event::Ended {
        attempt: record.attempt.id,
        fencing: record.fencing,
        evidence,
        retry: None,
    };
    next(policy, Some(record), &event, at(second))
        .expect("an end")
        .change
        .expect("a change")
}

pub(crate) const ME: InstanceId = InstanceId(Uuid::from_u128(1));

pub(crate) async fn claim(store: &dyn Store, change: &Change) -> Claimed {
    store.claim(change, &[]).await.expect("an answer")
}

/// All calls in doubt, from pages of this size.
pub(crate) async fn doubtful(store: &dyn Store, limit: u32) -> Vec<CallId> {
    let (mut all, mut from) = (Vec::new(), Some(String::new()));
    while let Some(here) = from {
        let (page, next) = store
            .calls_at_risk_after_loss(&here, limit)
            .await
            .expect("a page");
        all.extend(page);
        from = next;
    }
    all
}

pub(crate) async fn claimed(store: &dyn Store, change: &Change) -> Record {
    match claim(store, change).await {
        Claimed::Yours(record) => record,
        other => panic!("not claimed: {other:?}"),
    }
}

pub(crate) async fn replaced(store: &dyn Store, change: &Change, expected: &Record) -> Record {
    match store.replace(change, expected).await.expect("an answer") {
        Replaced::Done(record) => record,
        other => panic!("not replaced: {other:?}"),
    }
}

async fn of_a_hundred_claims_of_one_key_one_holds_it(home: Home) {
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
        assert_eq!(
            record.attempt.id, *holder,
            "everyone is told the same holder"
        );
    }
}

async fn a_claim_asked_again_is_still_ours_and_writes_nothing(home: Home) {
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

async fn what_is_stored_is_what_comes_back(home: Home) {
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

async fn a_replacement_needs_the_version_the_attempt_and_the_token(home: Home) {
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
            "and nothing has changed"
        );
    }
    let first = replaced(store, &done, &record).await;
    assert_eq!(
        replaced(store, &done, &record).await,
        first,
        "asked again it is done"
    );
    let other = ended(&record, 500, 2);
    assert_eq!(
        store.replace(&other, &record).await.expect("an answer"),
        Replaced::Lost(Some(first.clone()))
    );
    // The same version, attempt and state, but not the same change.
    let another = ended(&record, 200, 2);
    assert_eq!(
        store.replace(&another, &record).await.expect("an answer"),
        Replaced::Lost(Some(first))
    );
}

async fn a_finished_call_gives_up_its_key_only_in_the_step_that_claims_it(home: Home) {
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
            "what was seen is not what is there"
        );
    }
    let Claimed::Yours(new) = store
        .claim(&anew, std::slice::from_ref(&failed))
        .await
        .expect("an answer")
    else {
        panic!("the key was given up")
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

/// The same with further names.
pub(crate) fn with_names(change: Change, names: &[&str]) -> Change {
    let names = names.iter().map(|name| name_of(name)).collect();
    let intent = Intent {
        names,
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
async fn who_holds(store: &dyn Store, names: [&str; 3]) -> [Option<CallId>; 3] {
    let names = names.map(name_of);
    let holders = store.holders(&names).await.expect("an answer");
    let places: Vec<_> = holders
        .iter()
        .filter_map(|holder| names.iter().position(|name| *name == holder.names[0]))
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
    names.map(|name| {
        let holder = holders.iter().find(|holder| holder.names.contains(&name));
        holder.map(|holder| holder.record.intent.call_id)
    })
}

async fn a_call_claims_all_of_its_names_or_none(home: Home) {
    let store = &*home.store;
    let change = with_names(arrival("a", "S", 0, ME), &["b", "c"]);
    let first = claimed(store, &change).await;
    let id = Some(first.intent.call_id);
    assert_eq!(
        claimed(store, &change).await,
        first,
        "asked again it is ours"
    );
    assert_eq!(who_holds(store, ["c", "a", "b"]).await, [id; 3]);
    for (key, names) in [
        ("a", &["x"][..]),
        ("b", &[]),
        ("c", &["x"]),
        ("x", &["y", "c"]),
        ("x", &["b"]),
    ] {
        let other = with_names(arrival(key, "S", 1, ME), names);
        assert_eq!(
            claim(store, &other).await,
            Claimed::Existing(first.clone()),
            "{key} {names:?}"
        );
    }
    assert_eq!(
        who_holds(store, ["x", "y", "a"]).await,
        [None, None, id],
        "and nothing was written"
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
        (&loaded.intent.names, loaded.intent.recipe),
        (&first.intent.names, first.intent.recipe)
    );

    // They live as long as the call, and go with it.
    let short = Policy {
        retention: std::time::Duration::from_secs(1),
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
    claimed(store, &with_names(arrival("c", "S", 3_600, ME), &["a"])).await;
}

/// The change by which a call answers further keys.
fn also_named(record: &Record, names: &[&str], instead_of: &[Record], second: i64) -> Change {
    let change = with_names(arrival(names[0], "S", second, ME), &names[1..]);
    let (intent, by) = (change.record.intent, ME);
    let event = Event::Resembled {
        intent,
        instead_of: instead_of.to_vec(),
        by,
    };
    next(&policy(), Some(record), &event, at(second))
        .expect("a change")
        .change
        .expect("a change")
}

async fn a_call_that_is_over_takes_further_names_or_none_and_they_go_with_it(home: Home) {
    let store = &*home.store;
    let lone = claimed(store, &arrival("a", "S", 0, ME)).await;
    let first = replaced(store, &ended(&lone, 200, 1), &lone).await;
    let id = Some(first.intent.call_id);
    let other = claimed(store, &arrival("x", "S", 1, ME)).await;
    let lost = |there: &Record| Replaced::Lost(Some(there.clone()));
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
        "none is taken"
    );
    let both = also_named(&first, &["b", "c"], &[], 2);
    let named = replaced(store, &both, &first).await;
    assert_eq!(
        replaced(store, &both, &first).await,
        named,
        "asked again it is done"
    );
    assert_eq!(who_holds(store, ["a", "b", "c"]).await, [id; 3]);
    let again = also_named(&first, &["d"], &[], 3);
    assert_eq!(
        replace(&again, &first).await,
        lost(&named),
        "it has changed since"
    );
    // A call that was seen gives its name up, and only as it was seen.
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

async fn each_name_is_given_up_only_by_a_call_that_was_seen(home: Home) {
    let store = &*home.store;
    let mut old = Vec::new();
    for (key, other) in [("a", "a2"), ("b", "b2")] {
        let record = claimed(store, &with_names(arrival(key, "S", 0, ME), &[other])).await;
        old.push(replaced(store, &ended(&record, 200, 1), &record).await);
    }
    let change = with_names(arrival("a", "S", 9, ME), &["b", "n"]);
    for seen in [&old[..1], &old[1..], &[]] {
        let in_the_way = if seen == &old[..1] { &old[1] } else { &old[0] };
        let claimed = store.claim(&change, seen).await.expect("an answer");
        assert_eq!(claimed, Claimed::Existing(in_the_way.clone()));
    }
    let Claimed::Yours(new) = store.claim(&change, &old).await.expect("an answer") else {
        panic!("both have given up their names")
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
    assert_eq!(kept, [ids[0], ids[1], None], "the others they keep");
    // What is deleted takes only its own names with it.
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

async fn a_call_runs_again_only_with_all_of_its_names(home: Home) {
    let store = &*home.store;
    let first = claimed(store, &with_names(arrival("a", "S", 0, ME), &["b"])).await;
    let failed = replaced(store, &ended(&first, 429, 1), &first).await;
    let again = rerun(&failed, 2);
    let other = store
        .claim(&arrival("b", "S", 2, ME), std::slice::from_ref(&failed))
        .await;
    let Claimed::Yours(other) = other.expect("an answer") else {
        panic!("it was given up")
    };
    assert_eq!(
        store.replace(&again, &failed).await.expect("an answer"),
        Replaced::Lost(Some(other))
    );
}

async fn fencing_tokens_of_a_session_rise_whatever_the_clock_does(home: Home) {
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

async fn a_failed_call_runs_again_under_its_own_key_with_a_new_token(home: Home) {
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
        "asked again it is done, with the same token"
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
    let (intent, brought) = (failed.intent.clone(), Brought::default());
    let event = Event::Arrived {
        intent,
        prints: Arc::default(),
        brought,
        attempt: AttemptId(Uuid::new_v4()),
        owner: ME,
    };
    next(&policy(), Some(failed), &event, at(second))
        .expect("a rerun")
        .change
        .expect("a change")
}

async fn due_are_calls_whose_lease_is_over(home: Home) {
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
    // A file is ours alone, so another owner has ended; of a shared store nobody can know that.
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

async fn what_is_deleted_has_come_to_an_end(home: Home) {
    let store = &*home.store;
    // It is kept for one second, by the clock of the store.
    let short = Policy {
        retention: std::time::Duration::from_secs(1),
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
    until("what may go is gone", async || {
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
            "nobody settled it, so it stays"
        );
    }
    // Had the store lost its newest writes, each of them may have gone on.
    let doubtful = doubtful(store, 1).await;
    assert!(
        [&unknown, &running]
            .iter()
            .all(|record| doubtful.contains(&record.intent.call_id))
    );
    let census = store.census().await.expect("an answer");
    let counted: HashSet<_> = census
        .iter()
        .map(|count| (count.state.as_str(), count.calls))
        .collect();
    assert_eq!(counted, HashSet::from([("running", 1), ("unknown", 1)]));
}

/// The same, to be deleted a second after it ended.
fn brief(record: Record) -> Record {
    Record {
        retain_until: Some(record.updated_at + jiff::SignedDuration::from_secs(1)),
        ..record
    }
}

async fn a_paused_tool_stays_so_and_its_newest_hundred_events_are_kept(home: Home) {
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
        assert!(!set(store, "t", n % 2 == 0, 999).await, "it is so already");
    }
    assert!(set(store, "other", true, 1).await);
    assert!(set(store, "other", false, 2).await);
    let home = home.reopen().await;
    let paused = home.store.paused().await.expect("an answer");
    assert_eq!(
        paused,
        [("t".to_owned(), entry("paused", 100))],
        "who, when and why stays known"
    );
    let events = home.store.tool_events("t").await.expect("an answer");
    let all: Vec<Entry> = (1..101)
        .map(|n| entry(if n % 2 == 0 { "paused" } else { "resumed" }, n))
        .collect();
    assert_eq!(events, all, "the newest, the oldest of them first");
    assert_eq!(
        home.store
            .tool_events("other")
            .await
            .expect("an answer")
            .len(),
        2
    );
}
