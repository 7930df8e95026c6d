//! Large and many sagas: sagas of thousands of calls are completed and undone as promised, and many unreadable sagas
//! delay no other saga.

use std::sync::Arc;

use jiff::SignedDuration;
use oncegate::core::document::Kind;
use oncegate::core::key::Source;
use oncegate::core::record::{CallId, InstanceId, Record};
use oncegate::core::saga::{Phase, Policy, Saga, SagaId};
use oncegate::core::work::Work;
use oncegate::store::Documents as _;
use oncegate::store::{Encrypted, Keys, Put, Store};
use serde_json::json;
use tokio::task::JoinSet;

use crate::stores::contract::{Home, ME, arrival, at, claimed, ended, replaced};
use crate::support::gateway::Bare;
use crate::support::rounds::work_on_sagas;
use crate::support::{Answer, Tool, client};

/// The instance of a gateway that has ended.
const OTHER: InstanceId = InstanceId(uuid::Uuid::from_u128(2));
/// Calls that are made at once.
const AT_ONCE: usize = 64;

/// A gateway over a store with a saga that has many calls and many compensations.
struct Large {
    home: Home,
    bare: Bare,
    calls: Vec<CallId>,
}

impl Large {
    async fn begin(home: Home, forward: usize, undoing: usize) -> Self {
        let tool = Tool::start().await;
        let bare =
            Bare::over_shared(home.store.clone(), ME, &tool, "compensation = \"none\"").await;
        let id = SagaId {
            tenant: "shop".into(),
            id: "big".into(),
        };
        let saga = Saga::begin(id, &Policy::default(), bare.gateway.now());
        assert_eq!(
            home.store
                .put_document(&saga.to_document())
                .await
                .expect("an answer"),
            Put::Done
        );
        let mut calls = Vec::new();
        let numbers: Vec<usize> = (0..forward + undoing).collect();
        for some in numbers.chunks(AT_ONCE) {
            let mut making = JoinSet::new();
            for n in some {
                let source = if *n < forward {
                    Source::Runtime
                } else {
                    Source::Compensation
                };
                making.spawn(make(home.store.clone(), *n, source));
            }
            calls.extend(
                making
                    .join_all()
                    .await
                    .into_iter()
                    .map(|record| record.intent.call_id),
            );
        }
        Self { home, bare, calls }
    }

    fn url(&self, path: &str) -> String {
        self.bare
            .url_of(&format!("/v1/sagas/big{path}?tenant=shop"))
    }

    async fn end(&self, how: &str) -> Answer {
        let request = client()
            .post(self.url(how))
            .body(json!({ "reason": "a test" }).to_string());
        Answer::to(request).await
    }

    /// The saga, when the worker has done everything for it.
    async fn at_rest(&self) -> Answer {
        for round in 1..=5 {
            let later = self.bare.gateway.now() + SignedDuration::from_mins(10 * round);
            work_on_sagas(&self.bare.gateway, later)
                .await
                .expect("an answer");
        }
        let saga = Answer::to(client().get(self.url(""))).await;
        assert!(
            saga.at("/next_at").is_null(),
            "{} {}",
            saga.at("/state"),
            saga.at("/trouble")
        );
        // Every tenth: of 2,001 also the one that is too many.
        for call_id in self.calls.iter().step_by(10) {
            let record = self
                .home
                .store
                .load(*call_id)
                .await
                .expect("an answer")
                .expect("it is stored");
            assert!(record.retain_until.is_some(), "it is let go");
            assert_eq!(record.intent.args, "{\"a\":1}");
            assert!(
                record
                    .state
                    .content()
                    .is_some_and(|content| format!("{content:?}").contains("1.0"))
            );
        }
        saga
    }
}

/// Stores a succeeded call of the saga.
async fn make(store: Arc<dyn Store>, n: usize, source: Source) -> Record {
    let mut change = arrival(
        &format!("k{n}"),
        &format!("S{n}"),
        i64::try_from(n).expect("small"),
        ME,
    );
    let intent = Arc::make_mut(&mut change.record.intent);
    (intent.tool, intent.saga_id, intent.key_source) = ("act".into(), "big".into(), source);
    let record = claimed(store.as_ref(), &change).await;
    replaced(store.as_ref(), &ended(&record, 200, 5_000), &record).await
}

async fn a_saga_of_too_many_calls_releases_them_when_it_is_completed(home: Home) {
    let large = Large::begin(home, 2_001, 0).await;
    let shown = large.end("/complete").await.expect_ok();
    assert_eq!(
        (shown.at("/state"), shown.at("/calls_cut")),
        ("completed".into(), true.into())
    );
    assert_eq!(shown.at("/calls").as_array().map(Vec::len), Some(2_000));
    large.at_rest().await;
}

/// The rules count them, whatever the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compensations_do_not_count_as_calls_of_a_saga() {
    let large = Large::begin(Home::sqlite().await, 1_001, 1_001).await;
    large.end("/abort").await.expect_ok();
    let saga = large.at_rest().await;
    assert_eq!(
        (saga.at("/state"), saga.at("/calls_cut")),
        ("compensated".into(), false.into())
    );
    assert_eq!(saga.at("/calls").as_array().map(Vec::len), Some(1_001));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_of_too_many_calls_releases_them_when_it_is_completed_over_a_file() {
    a_saga_of_too_many_calls_releases_them_when_it_is_completed(Home::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_of_too_many_calls_releases_them_when_it_is_completed_over_redis() {
    a_saga_of_too_many_calls_releases_them_when_it_is_completed(Home::redis().await).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_of_too_many_calls_releases_them_when_it_is_completed_over_postgres() {
    a_saga_of_too_many_calls_releases_them_when_it_is_completed(Home::postgres().await).await;
}

/// Sagas that were written under an encryption key that is gone.
async fn sealed_by_another_key(home: &Home, forward: usize) -> (Arc<dyn Store>, Vec<Saga>) {
    let sealed =
        |key: u8| Encrypted::new(home.store.clone(), Keys::new(&[[key; 32]]).expect("keys"));
    let closed: Arc<dyn Store> = Arc::new(sealed(1));
    let mut sagas = Vec::new();
    for n in 0..forward {
        let saga = a_saga(&format!("closed {n}"), n);
        assert_eq!(
            closed
                .put_document(&saga.to_document())
                .await
                .expect("an answer"),
            Put::Done
        );
        let mut change = arrival(
            &format!("k{n}"),
            "S",
            i64::try_from(n).expect("small"),
            OTHER,
        );
        Arc::make_mut(&mut change.record.intent)
            .saga_id
            .clone_from(&saga.id.id);
        claimed(closed.as_ref(), &change).await;
        sagas.push(saga);
    }
    (Arc::new(sealed(2)), sagas)
}

/// A saga that is to be undone, and has no calls.
fn a_saga(id: &str, n: usize) -> Saga {
    let created_at = at(i64::try_from(n).expect("small"));
    let saga = Saga::begin(
        SagaId {
            tenant: "shop".into(),
            id: id.into(),
        },
        &Policy::default(),
        created_at,
    );
    Saga {
        work: Work::due_at(created_at),
        deadline: Some(created_at),
        phase: Phase::Compensating { at_rest: false },
        ..saga
    }
}

async fn a_saga_that_no_key_opens_is_put_aside(home: Home) {
    let (store, closed) = sealed_by_another_key(&home, 130).await;
    let good = a_saga("good", 5_000);
    assert_eq!(
        store
            .put_document(&good.to_document())
            .await
            .expect("an answer"),
        Put::Done
    );
    let lost = claimed(store.as_ref(), &arrival("lost", "T", 5_000, OTHER)).await;
    let tool = Tool::start().await;
    let bare = Bare::over_shared(store.clone(), ME, &tool, "").await;

    assert_eq!(
        bare.gateway
            .lost
            .recover_all(bare.gateway.now())
            .await
            .expect("an answer"),
        1
    );
    let lost = store
        .load(lost.intent.call_id)
        .await
        .expect("an answer")
        .expect("it is stored");
    assert_eq!(lost.state.as_str(), "unknown");

    for _ in 0..6 {
        work_on_sagas(&bare.gateway, bare.gateway.now())
            .await
            .expect("an answer");
    }
    let good = store
        .document(Kind::Saga, "shop", "good")
        .await
        .expect("an answer")
        .expect("it is stored");
    assert_eq!(good.state, "compensated");
    let opens = Encrypted::new(home.store.clone(), Keys::new(&[[1; 32]]).expect("keys"));
    for before in closed {
        let there = opens
            .document(Kind::Saga, "shop", &before.id.id)
            .await
            .expect("it opens");
        let there = Saga::from_document(&there.expect("it is stored")).expect("a saga");
        assert_eq!(there.version, 2, "it was put aside once");
        assert!(
            there
                .work
                .due
                .at()
                .is_some_and(|due_at| due_at > bare.gateway.now())
        );
        assert_eq!(
            Saga {
                version: 1,
                work: before.work,
                ..there
            },
            before,
            "and is as it was"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_that_no_key_opens_is_put_aside_over_a_file() {
    a_saga_that_no_key_opens_is_put_aside(Home::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_that_no_key_opens_is_put_aside_over_redis() {
    a_saga_that_no_key_opens_is_put_aside(Home::redis().await).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saga_that_no_key_opens_is_put_aside_over_postgres() {
    a_saga_that_no_key_opens_is_put_aside(Home::postgres().await).await;
}
