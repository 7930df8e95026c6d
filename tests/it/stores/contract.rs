//! The contract of a store. It is tested with SQLite, a Redis, a Redis behind a Sentinel, a Redis Cluster, a PostgreSQL, and the
//! store in memory that other tests use.

mod claims;
mod ends;
mod late;
pub(crate) mod lookups;
mod proposals;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use oncegate::core::call::{Arrival, Change, Event, Resembled, next};
use oncegate::core::key::{Lookup, Source};
use oncegate::core::key_scheme::KeySchemeId;
use oncegate::core::outcome::{Body, Evidence};
use oncegate::core::record::{AttemptId, CallId, Check, Entry, InstanceId, Intent, Record};
use oncegate::core::session::Preconditions;
use oncegate::core::timings::Timings;
use oncegate::core::tool::{Effect, Tool as Policy};
use oncegate::store::Health as _;
#[cfg(feature = "postgres")]
use oncegate::store::postgres::{
    Postgres as PostgresStore, Schema, Settings as PostgresSettings, Target as PostgresTarget,
};
use oncegate::store::redis::{FORMAT, Redis as RedisStore, Settings, Target};
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Claimed, Durability, Found, LOST_DATA, Replaced, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::claims::*;
use self::ends::*;
use self::lookups::*;
use self::proposals::*;
use crate::support::gateway::{make_sparse_reserve, store_is_free};
use crate::support::memory::Memory;
#[cfg(feature = "postgres")]
use crate::support::postgres::{place, run_in};
use crate::support::redis::{Cluster, Redis, Sentinel};
use crate::support::timings::brisk;
use crate::support::{has_reason, until};

/// A store, and the server or folder that holds its data.
pub(crate) struct Home {
    pub(crate) store: Arc<dyn Store>,
    place: Place,
    folder: tempfile::TempDir,
}

enum Place {
    Memory(Memory),
    Sqlite,
    Redis(Redis),
    Sentinel(Redis, Sentinel),
    Cluster(Cluster),
    /// A schema on the server that the tests share.
    #[cfg(feature = "postgres")]
    Postgres(String),
}

impl Home {
    pub(crate) async fn memory() -> Self {
        Self::new(Place::Memory(Memory::default())).await
    }

    pub(crate) async fn sqlite() -> Self {
        Self::new(Place::Sqlite).await
    }

    pub(crate) async fn redis() -> Self {
        Self::new(Place::Redis(Redis::strict().await)).await
    }

    pub(crate) async fn redis_sentinel() -> Self {
        let master = Redis::strict().await;
        let sentinel = Sentinel::of(&master).await;
        Self::new(Place::Sentinel(master, sentinel)).await
    }

    pub(crate) async fn redis_cluster() -> Self {
        Self::new(Place::Cluster(Cluster::start().await)).await
    }

    #[cfg(feature = "postgres")]
    pub(crate) async fn postgres() -> Self {
        Self::new(Place::Postgres(place().await)).await
    }

    async fn new(place: Place) -> Self {
        Self::over(place, tempfile::tempdir().expect("a folder")).await
    }

    async fn over(place: Place, folder: tempfile::TempDir) -> Self {
        let store: Arc<dyn Store> = match &place {
            Place::Memory(memory) => Arc::new(memory.clone()),
            Place::Sqlite => Arc::new(open_sqlite(folder.path())),
            Place::Redis(redis) => Arc::new(open_redis(&redis.url(), folder.path()).await),
            Place::Sentinel(_, sentinel) => {
                Arc::new(open_redis(&sentinel.url(), folder.path()).await)
            }
            Place::Cluster(cluster) => Arc::new(open_redis(&cluster.url(), folder.path()).await),
            #[cfg(feature = "postgres")]
            Place::Postgres(place) => Arc::new(open_postgres(place, folder.path()).await),
        };
        Self {
            store,
            place,
            folder,
        }
    }

    /// Damages all documents, so that none of them can be read.
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
            #[cfg(feature = "postgres")]
            Place::Postgres(place) => {
                let sql = "UPDATE documents SET retain_until = 9223372036854775807";
                run_in(place, sql).await;
            }
            // Documents in memory are not decoded.
            Place::Memory(_) | Place::Sentinel(..) | Place::Cluster(_) => {}
        }
    }

    /// Kills the server, if there is one, and opens the store again.
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
            // Other tests use the same server.
            #[cfg(feature = "postgres")]
            Place::Postgres(_) => {}
            Place::Sqlite => store_is_free(folder.path()).await,
            Place::Redis(redis) | Place::Sentinel(redis, _) => {
                redis.kill();
                redis.start_again().await;
            }
            // One of three nodes. The others wait for it.
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

    /// Whether other processes may use the store, too.
    fn is_shared(&self) -> bool {
        !matches!(self.place, Place::Sqlite)
    }
}

fn open_sqlite(folder: &Path) -> Sqlite {
    make_sparse_reserve(folder);
    Sqlite::open(&folder.join("oncegate.db"), ME, &CancellationToken::new()).expect("a store")
}

pub(crate) fn settings(url: &str, folder: &Path) -> Settings {
    Settings {
        target: Target::parse(url).expect("a target"),
        // A store with failover cannot be strict.
        durability: if url.contains("sentinel") {
            Durability::Relaxed
        } else {
            Durability::Strict
        },
        declared: None,
        ca: None,
        watermarks: folder.join("watermarks"),
        stream: false,
        timings: long_leases(),
        newest_format: FORMAT,
    }
}

/// The times of these tests are long ago by the clocks of stores, and no lease is.
pub(crate) fn long_leases() -> Timings {
    Timings {
        lease_margin: 2 * DECADES,
        ..brisk()
    }
}

/// How long before the clock of a store a run may begin here.
const DECADES: Duration = Duration::from_secs(20 * 366 * 24 * 3_600);

/// Opens a Redis. It need not be ready.
pub(crate) async fn open_redis_as_it_is(url: &str, folder: &Path) -> RedisStore {
    let mut opened = None;
    until("the watermarks are free", async || {
        opened = RedisStore::open(settings(url, folder)).await.ok();
        opened.is_some()
    })
    .await;
    opened.expect("a store")
}

/// Opens a Redis, and waits until it is ready.
pub(crate) async fn open_redis(url: &str, folder: &Path) -> RedisStore {
    let store = open_redis_as_it_is(url, folder).await;
    until("the store is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    store
}

/// Opens a PostgreSQL. It need not be ready.
#[cfg(feature = "postgres")]
pub(crate) async fn open_postgres_as_it_is(place: &str, folder: &Path) -> PostgresStore {
    open_postgres_at_pace(place, folder, long_leases()).await
}

/// The same, which looks at things at this pace.
#[cfg(feature = "postgres")]
pub(crate) async fn open_postgres_at_pace(
    place: &str,
    folder: &Path,
    timings: Timings,
) -> PostgresStore {
    let (url, schema) = place.split_once('#').expect("a place");
    let settings = || PostgresSettings {
        target: PostgresTarget::parse(url).expect("a target"),
        schema: Schema::parse(schema).expect("a schema"),
        durability: Durability::Strict,
        declared: None,
        ca: None,
        watermarks: folder.join("watermarks"),
        timings,
    };
    let mut opened = None;
    until("the watermarks are free", async || {
        opened = PostgresStore::open(settings()).await.ok();
        opened.is_some()
    })
    .await;
    opened.expect("a store")
}

/// Opens a PostgreSQL, and waits until it is ready.
#[cfg(feature = "postgres")]
pub(crate) async fn open_postgres(place: &str, folder: &Path) -> PostgresStore {
    let store = open_postgres_as_it_is(place, folder).await;
    let mut last = Vec::new();
    let patience = tokio::time::Instant::now() + crate::support::PATIENCE;
    while tokio::time::Instant::now() < patience {
        last = store.readiness().await.reasons;
        if last.is_empty() {
            return store;
        }
        tokio::time::sleep(crate::support::PAUSE).await;
    }
    panic!("the store is not ready: {last:?}")
}

/// A strict Redis, the folder of a store over it, and the store.
pub(crate) async fn redis_and_store() -> (Redis, tempfile::TempDir, RedisStore) {
    let (redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let store = open_redis(&redis.url(), folder.path()).await;
    (redis, folder, store)
}

macro_rules! contract {
    ($($claim:ident),* $(,)?) => {
        $crate::stores::contract::contract!(memory: $($claim),*);
        $crate::stores::contract::contract!(sqlite: $($claim),*);
        $crate::stores::contract::contract!(redis: $($claim),*);
        $crate::stores::contract::contract!(redis_sentinel: $($claim),*);
        $crate::stores::contract::contract!(redis_cluster: $($claim),*);
        #[cfg(feature = "postgres")]
        $crate::stores::contract::contract!(postgres: $($claim),*);
    };
    ($home:ident: $($claim:ident),*) => {
        mod $home {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $claim() {
                super::$claim($crate::stores::contract::Home::$home().await).await;
            })*
        }
    };
}

pub(crate) use contract;

pub(crate) use self::ends::{rerun, unknown};
pub(crate) use self::lookups::{name_of, with_lookups};

contract! {
    one_of_a_hundred_claims_of_a_key_gets_it,
    a_repeated_claim_is_still_ours_and_writes_nothing,
    a_call_comes_back_as_it_was_stored,
    a_replacement_needs_the_version_the_attempt_and_the_token,
    a_finished_call_gives_up_its_key_only_in_the_step_that_claims_it,
    a_call_claims_all_of_its_names_or_none,
    a_finished_call_takes_all_further_names_or_none,
    a_claim_takes_names_only_from_the_expected_calls,
    a_call_runs_again_only_with_all_of_its_names,
    a_failed_call_runs_again_under_its_own_key_with_a_new_token,
    fencing_tokens_of_a_session_rise_whatever_the_clock_does,
    calls_are_due_when_their_lease_is_over,
    due_checks_are_found_by_tool_and_each_tool_gets_its_share,
    only_calls_that_came_to_an_end_are_deleted,
    a_paused_tool_stays_so_and_its_newest_hundred_events_are_kept,
    what_waits_for_approval_is_found_when_it_is_due_counted_and_listed,
    an_approved_call_begins_once,
    many_held_calls_delay_none_that_is_over,
    a_proposal_takes_its_places_and_no_lock_and_its_begin_takes_that,
    a_failed_call_that_asks_again_keeps_its_token_until_it_begins,
}

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a time")
}

fn policy() -> Policy {
    Policy::new("t")
}

/// The intent of a call of the tool `t`.
pub(crate) fn intent(key: &str, session: &str, created_at: Timestamp) -> Intent {
    let lookup = Lookup::new("shop", "t", key);
    Intent {
        call_id: CallId::new(Uuid::new_v4(), &lookup),
        tenant: "shop".into(),
        tool: "t".into(),
        lookup,
        lookups: Vec::new(),
        key_scheme: KeySchemeId::default(),
        key: key.into(),
        key_source: Source::Runtime,
        fingerprint: [1; 32],
        user_id: "U1".into(),
        session_id: session.into(),
        saga_id: String::new(),
        trace_id: "trace".into(),
        made_by: "agent".into(),
        client_ids: String::new(),
        similar: None,
        args: "{\"a\":1}".into(),
        created_at,
    }
}

/// The change that `core` makes of an arrival which finds this record.
pub(crate) fn arrives(
    tool: &Policy,
    met: Option<&Record>,
    intent: Arc<Intent>,
    preconditions: Preconditions,
    (owner, now): (InstanceId, Timestamp),
) -> Change {
    let event = Event::Arrived(Arrival {
        intent,
        fingerprints: Arc::default(),
        preconditions,
        attempt: AttemptId(Uuid::new_v4()),
        owner,
    });
    let next = next(tool, met, &event, now).expect("a claim");
    next.change.expect("a change")
}

/// The change by which an arrival claims this key.
pub(crate) fn arrival(key: &str, session: &str, second: i64, owner: InstanceId) -> Change {
    let intent = Arc::new(intent(key, session, at(second)));
    let by = (owner, at(second));
    arrives(&policy(), None, intent, Preconditions::default(), by)
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
    next(
        policy,
        Some(record),
        &Event::ended(record, evidence),
        at(second),
    )
    .expect("an end")
    .change
    .expect("a change")
}

pub(crate) const ME: InstanceId = InstanceId(Uuid::from_u128(1));

pub(crate) async fn claim(store: &dyn Store, change: &Change) -> Claimed {
    store.claim(change, &[]).await.expect("an answer")
}

/// Waits until a store has noticed its loss, accepts it, and waits until the store is open.
pub(crate) async fn accept_noticed_loss(store: &impl Store) {
    until("the loss is noticed", async || {
        has_reason(&store.readiness().await, LOST_DATA)
    })
    .await;
    // On a busy machine another reading of the loss may have come between, which says: try again.
    until("the loss is accepted", async || {
        store.accept_loss("a test").await.is_ok()
    })
    .await;
    until("it is open", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
}

/// All calls at risk after a loss, from pages of this size.
pub(crate) async fn calls_at_risk(store: &dyn Store, limit: u32) -> Vec<CallId> {
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

/// The record, with a retention that ends a second after the call.
fn brief(record: Record) -> Record {
    Record {
        retain_until: Some(record.updated_at + jiff::SignedDuration::from_secs(1)),
        ..record
    }
}
