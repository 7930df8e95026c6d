//! The process is killed at each step of a reconciliation.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::reconcile::runs::{MENDS, config, run};
use crate::support::binary::{Process, free_port};
use crate::support::books::Books;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::stores::{LONG_AGO, Stores, know_all_since};
use crate::support::{Answer, client, until};

/// The crash points, and how often each is passed before the process ends.
const POINTS: [(&str, usize); 5] = [
    ("reconciliation_reported", 0),
    ("anomaly_taken", 0),
    ("anomaly_taken", 3),
    ("anomaly_acted", 0),
    ("anomaly_acted", 3),
];

/// Calls with which nothing is wrong.
const GOOD: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_killed_in_the_middle_is_made_good() {
    let worlds = POINTS.map(async |(point, passed)| dies_at(point, passed, None).await);
    futures_util::future::join_all(worlds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_a_run_that_is_killed_in_the_middle_is_made_good_by_another_gateway() {
    let worlds = POINTS.map(async |(point, passed)| {
        let redis = Redis::strict().await;
        dies_at(point, passed, Some(Stores::Redis(redis.url()))).await;
    });
    futures_util::future::join_all(worlds).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_run_that_is_killed_in_the_middle_is_made_good_by_another_gateway() {
    let worlds = POINTS.map(async |(point, passed)| {
        let server = Postgres::with(&[]).await;
        dies_at(point, passed, Some(Stores::Postgres(server.main()))).await;
    });
    futures_util::future::join_all(worlds).await;
}

/// Kills a run at a point. In the end every anomaly is found, remedied and reported once.
async fn dies_at(point: &str, passed: usize, shared: Option<Stores>) {
    let books = Books::open().await;
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let config = config(&books, MENDS, "");
    let points = format!("{point}={passed}*off->return");
    let url = shared.as_ref().and_then(Stores::shared);
    let store: Vec<_> = url
        .map(|url| url.split('#').next().expect("a URL"))
        .map(|url| ("ONCEGATE_STORE__URL", url))
        .into_iter()
        .collect();
    if let Some(shared) = &shared {
        shared.gateway_of_old(&config).await.stop().await;
    }
    let environment = [&store[..], &[("FAILPOINTS", &points)]].concat();
    let dying = Process::start_in(folders[0].path(), free_port(), &config, &environment).await;
    if shared.is_none() {
        know_all_since(&folders[0].path().join("oncegate.db"), LONG_AGO);
    }
    ready(&dying).await;
    let call = async |gateway: &Process, n: usize, plan: &str| {
        let body = json!({ "args": { "amount": n, "plan": plan } }).to_string();
        let mut answer = None;
        // A busy store may take longer than a call waits.
        until("the call is taken", async || {
            let request = client().post(gateway.url("/v1/tools/act/calls"));
            let request = request.header("idempotency-key", format!("k{n}"));
            let told = Answer::to(request.body(body.clone())).await;
            let is_taken = told.problem() != "store-unavailable";
            answer = Some(told);
            is_taken
        })
        .await;
        answer.expect("an answer")
    };
    let plans = [
        "",
        "missing",
        "duplicate",
        "mismatch",
        "silent",
        "rejected but there",
    ];
    for (n, plan) in plans.iter().enumerate() {
        call(&dying, n, plan).await;
    }
    // So many that what is wrong with the others makes no suspect of the source.
    let good = (plans.len()..plans.len() + GOOD).map(|n| call(&dying, n, ""));
    futures_util::future::join_all(good).await;
    books.make_beside(Some("beside"));
    // Surplus effects are undone by a later run than missing ones.
    let mut dying = dying;
    until("it dies", async || {
        let request = client().post(dying.url("/v1/reconciliations/books/run"));
        drop(request.send().await);
        dying.has_ended()
    })
    .await;
    assert!(!dying.ended().await, "it has died at {point}");

    // Over a shared store another gateway goes on, which knows nothing of the first.
    let folder = &folders[usize::from(shared.is_some())];
    let again = Process::start_in(folder.path(), free_port(), &config, &store).await;
    ready(&again).await;
    let path = again.url("/v1/reconciliations/books");
    let broken_off = Answer::to(client().get(path)).await.expect_ok();
    // At the other points the background loop may have reached the point after the run had ended.
    if point == "reconciliation_reported" {
        assert_eq!(broken_off.at("/state"), "running", "it had not ended");
        let counts =
            json!({ "missing": 1, "duplicate": 1, "mismatch": 1, "settled": 1, "orphan": 2 });
        assert_eq!(broken_off.at("/counts"), counts);
    }
    // Anomalies that the dead gateway has taken are left alone until their lease ends.
    until(point, async || {
        let report = run(&again.url("")).await.expect_ok();
        // Each run reads all of the books, so the loop pauses.
        sleep(Duration::from_millis(250)).await;
        // The saga worker undoes calls in the background.
        report.at("/counts") == json!({}) && books.undone().len() >= 5
    })
    .await;
    let undone = books.undone();
    assert!(
        undone.values().all(|times| *times == 1),
        "{point}: {undone:?}"
    );
    assert_eq!(undone.len(), 5, "{point}: {undone:?}");
    assert_eq!(
        books.live().len(),
        3 + GOOD,
        "one that was right, one that was settled, one of two"
    );
    call(&again, 4, "silent").await.expect_ok();
}

/// Over a file no other worker can hold the anomaly, so the gateway does not wait until its lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_an_anomaly_over_a_file_is_worked_on_at_once() {
    let (books, folder) = (Books::open().await, tempfile::tempdir().expect("a folder"));
    let config = config(&books, MENDS, "").replace("\"10s\"", "\"10m\"");
    let environment = [("FAILPOINTS", "anomaly_taken=return")];
    let dying = Process::start_in(folder.path(), free_port(), &config, &environment).await;
    know_all_since(&folder.path().join("oncegate.db"), LONG_AGO);
    ready(&dying).await;
    let body = json!({ "args": { "amount": 1, "plan": "missing" } }).to_string();
    let call = client()
        .post(dying.url("/v1/tools/act/calls"))
        .body(body)
        .send()
        .await;
    Answer::read(call.expect("an answer")).await.expect_ok();
    let request = client().post(dying.url("/v1/reconciliations/books/run"));
    assert!(request.send().await.is_err(), "it has died");
    assert!(!dying.ended().await);
    assert_eq!(books.undone().len(), 0);
    let again = Process::start(folder.path(), free_port(), &config).await;
    until("it is undone", async || books.undone().len() == 1).await;
    again.kill();
}

async fn ready(gateway: &Process) {
    let url = gateway.url("/readyz");
    until("it is ready", async || {
        client()
            .get(&url)
            .send()
            .await
            .is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}
