//! A store goes back in time while sagas are open: nothing is undone because of an older copy.

use std::path::Path;
use std::sync::Arc;

use oncegate::store::sqlite::Sqlite;
use oncegate::store::{LOST_DATA, Store};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::sagas::undone::{MADE, executed, words};
use crate::stores::contract::{ME, open_redis, open_redis_as_it_is};
#[cfg(feature = "postgres")]
use crate::stores::contract::{open_postgres, open_postgres_as_it_is};
use crate::support::gateway::{Bare, store_is_free};
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::rounds::work_on_sagas;
use crate::support::{Act, Answer, Tool, at_its_end, client, has_reason, until};

/// A store that can be put back to a copy of it.
pub(crate) enum Place {
    Sqlite,
    Redis(Box<Redis>),
    #[cfg(feature = "postgres")]
    Postgres(Box<Postgres>),
}

impl Place {
    pub(crate) async fn open(&self, folder: &Path) -> Arc<dyn Store> {
        match self {
            Self::Sqlite => {
                let file = folder.join("oncegate.db");
                Arc::new(Sqlite::open(&file, ME, &CancellationToken::new()).expect("a store"))
            }
            Self::Redis(redis) => Arc::new(open_redis(&redis.url(), folder).await),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => Arc::new(open_postgres(&server.main(), folder).await),
        }
    }

    /// Copies a store that no process has open.
    pub(crate) fn copy(&self, folder: &Path) -> tempfile::TempDir {
        match self {
            Self::Sqlite => {
                let copy = tempfile::tempdir().expect("a folder");
                std::fs::copy(folder.join("oncegate.db"), copy.path().join("oncegate.db"))
                    .expect("copied");
                copy
            }
            Self::Redis(redis) => redis.snapshot(),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => server.snapshot(),
        }
    }

    /// Replaces the store by the copy, and opens it when the loss was noticed.
    pub(crate) async fn put_back(&mut self, copy: &Path, folder: &Path) -> Arc<dyn Store> {
        let store: Arc<dyn Store> = match self {
            Self::Sqlite => {
                std::fs::copy(copy.join("oncegate.db"), folder.join("oncegate.db"))
                    .expect("put back");
                self.open(folder).await
            }
            Self::Redis(redis) => {
                redis.restore(copy).await;
                Arc::new(open_redis_as_it_is(&redis.url(), folder).await)
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => {
                server.restore(copy).await;
                Arc::new(open_postgres_as_it_is(&server.main(), folder).await)
            }
        };
        until("the loss is noticed", async || {
            has_reason(&store.readiness().await, LOST_DATA)
        })
        .await;
        store
    }

    pub(crate) async fn is_closed(&self, folder: &Path) {
        match self {
            Self::Sqlite => store_is_free(folder).await,
            Self::Redis(_) => {}
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {}
        }
    }
}

/// A gateway without loops: only the test works on sagas whose deadline is over.
struct Shop {
    bare: Bare,
    store: Arc<dyn Store>,
}

impl Shop {
    async fn over(store: Arc<dyn Store>, tool: &Tool) -> Self {
        Self::over_when_overdue(store, tool, "abort").await
    }

    /// The same, with this setting for overdue sagas.
    async fn over_when_overdue(store: Arc<dyn Store>, tool: &Tool, on_timeout: &str) -> Self {
        let rules = format!(
            "compensation = {{ tool = \"undo\" }}\n[tools.undo]\nurl = \"http://127.0.0.1:{}/undo\"\n\
             [sagas]\ndeadline = \"100ms\"\non_timeout = \"{on_timeout}\"\n\
             retry = {{ attempts = 1, base = \"10ms\", max = \"10ms\" }}\n",
            tool.port
        );
        let bare = Bare::over_shared(store.clone(), ME, tool, &rules).await;
        Self { bare, store }
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        let url = self.bare.url_of(path);
        Answer::to(client().post(url).body(body.to_string())).await
    }

    async fn end(&self, saga: &str, how: &str) -> Answer {
        self.post(
            &format!("/v1/sagas/{saga}/{how}"),
            json!({ "reason": "a test" }),
        )
        .await
    }

    async fn call(&self, key: &str, saga: &str) -> Answer {
        let body =
            json!({ "args": {}, "session_id": "S", "saga_id": saga, "idempotency_key": key });
        self.post("/v1/tools/act/calls", body).await
    }

    async fn saga(&self, saga: &str) -> Answer {
        let url = self.bare.url_of(&format!("/v1/sagas/{saga}"));
        Answer::to(client().get(url)).await.expect_ok()
    }

    /// Works on the due sagas, whose deadline is over.
    async fn work(&self) {
        let now = self.bare.gateway.now();
        while work_on_sagas(&self.bare.gateway, now)
            .await
            .expect("worked")
            .settled
            > 0
        {}
    }

    /// Waits until a saga is undone, and works on it: if the store failed at the abort, no loop tries again.
    async fn undone(&self, saga: &str) {
        until("it is undone", async || {
            let (gateway, now) = (&self.bare.gateway, self.bare.gateway.now());
            drop(work_on_sagas(gateway, now).await);
            let state = self.saga(saga).await.at("/state");
            if state == "stuck" {
                self.end(saga, "retry").await;
            }
            state == "compensated"
        })
        .await;
    }

    async fn close(self) {
        self.bare.stop().await;
        self.store.close().await;
    }
}

async fn an_older_copy_undoes_nothing(mut place: Place) {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    tool.always(MADE);
    let shop = Shop::over(place.open(folder.path()).await, &tool).await;
    for (key, saga) in [("a", "A"), ("b", "B"), ("c", "C")] {
        shop.call(key, saga).await.expect_ok();
    }
    shop.close().await;
    place.is_closed(folder.path()).await;
    let copy = place.copy(folder.path());

    // C stays as it is: overdue sagas are only reported.
    let store = place.open(folder.path()).await;
    let shop = Shop::over_when_overdue(store, &tool, "report").await;
    shop.end("A", "complete").await.expect_ok();
    shop.end("B", "abort").await.expect_ok();
    shop.undone("B").await;
    assert_eq!(executed(&tool), ["do", "do", "do", "undo"]);
    shop.close().await;
    place.is_closed(folder.path()).await;

    let shop = Shop::over(place.put_back(copy.path(), folder.path()).await, &tool).await;
    let deadline = shop.saga("C").await.at("/deadline");
    let deadline: jiff::Timestamp = deadline.as_str().expect("a time").parse().expect("a time");
    until("it is over", async || shop.bare.gateway.now() > deadline).await;
    shop.work().await;
    shop.call("d", "A")
        .await
        .expect_problem("store-unavailable");
    let accepted = json!({ "reason": "put back" });
    at_its_end(async || shop.post("/v1/store/accept-loss", accepted.clone()).await)
        .await
        .expect_ok();
    until("it is open", async || {
        shop.store.readiness().await.reasons.is_empty()
    })
    .await;
    shop.work().await;
    for saga in ["A", "B", "C"] {
        let view = shop.saga(saga).await;
        assert_eq!(
            (view.at("/state"), view.at("/next_at")),
            ("stuck".into(), Value::Null)
        );
        let why = view.at("/trouble/why");
        assert!(
            why.as_str()
                .is_some_and(|why| why.contains("lost data") && why.contains("complete it"))
        );
        assert_eq!(
            words(&view.at("/events"), "event")
                .last()
                .map(String::as_str),
            Some("store_lost")
        );
        shop.call("late", saga).await.expect_problem("wrong-state");
        shop.end(saga, "retry").await.expect_problem("wrong-state");
        shop.end(saga, "skip").await.expect_problem("wrong-state");
    }
    assert_eq!(
        executed(&tool),
        ["do", "do", "do", "undo"],
        "nothing is undone, and not twice"
    );

    // An operator decides about each saga.
    assert_eq!(
        shop.end("A", "complete").await.expect_ok().at("/state"),
        "completed"
    );
    assert_eq!(
        shop.end("B", "complete").await.expect_ok().at("/trouble"),
        Value::Null
    );
    shop.end("C", "abort").await.expect_ok();
    shop.undone("C").await;
    shop.work().await;
    assert_eq!(executed(&tool), ["do", "do", "do", "undo", "undo"]);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_file_an_older_copy_of_open_sagas_undoes_nothing() {
    an_older_copy_undoes_nothing(Place::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_redis_an_older_copy_of_open_sagas_undoes_nothing() {
    an_older_copy_undoes_nothing(Place::Redis(Box::new(Redis::strict().await))).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_postgres_an_older_copy_of_open_sagas_undoes_nothing() {
    an_older_copy_undoes_nothing(Place::Postgres(Box::new(Postgres::with(&[]).await))).await;
}

/// One call of the saga is stuck in an undoing of its own, which an operator must end before the saga goes on.
async fn a_saga_that_was_open_at_a_loss_is_neither_retried_nor_continued(mut place: Place) {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    tool.always(MADE);
    let shop = Shop::over(place.open(folder.path()).await, &tool).await;
    let call = shop.call("a", "G").await.expect_ok().at("/call_id");
    let id = call.as_str().expect("an id").to_owned();
    tool.always(Act::Answer(422, "", b"{}"));
    shop.post(
        &format!("/v1/calls/{id}/compensate"),
        json!({ "reason": "a test" }),
    )
    .await
    .expect_ok();
    // The worker is not run here: it would abort G, whose deadline is over.
    until("it is stuck", async || {
        shop.saga(&format!("compensate:{id}")).await.at("/state") == "stuck"
    })
    .await;
    let copy_of = async |shop: Shop, place: &Place| {
        shop.close().await;
        place.is_closed(folder.path()).await;
        place.copy(folder.path())
    };
    let copy = copy_of(shop, &place).await;
    let shop = Shop::over(place.open(folder.path()).await, &tool).await;
    shop.call("b", "G").await;
    shop.close().await;
    place.is_closed(folder.path()).await;

    let shop = Shop::over(place.put_back(copy.path(), folder.path()).await, &tool).await;
    let accepted = json!({ "reason": "put back" });
    at_its_end(async || shop.post("/v1/store/accept-loss", accepted.clone()).await)
        .await
        .expect_ok();
    until("it is open", async || {
        shop.store.readiness().await.reasons.is_empty()
    })
    .await;
    tool.always(MADE);
    shop.work().await;
    let record = async || {
        let url = shop.bare.url_of(&format!("/v1/calls/{id}"));
        Answer::to(client().get(url)).await.expect_ok()
    };
    let (saga, call) = (shop.saga("G").await, record().await);
    assert_eq!(
        (saga.at("/state"), call.at("/state")),
        ("stuck".into(), "stuck".into())
    );
    let requests = tool.requests();
    for act in ["retry", "skip"] {
        let refused = shop.end("G", act).await.expect_problem("wrong-state");
        assert!(
            refused.text.contains("completes or aborts it"),
            "{act}: {}",
            refused.text
        );
        shop.work().await;
        assert_eq!(
            shop.saga("G").await.text,
            saga.text,
            "{act}: nothing of the saga was changed"
        );
        assert_eq!(record().await.text, call.text, "{act}: nor of its call");
    }
    assert_eq!(tool.requests(), requests, "nothing was sent");

    assert_eq!(
        shop.end("G", "complete").await.expect_ok().at("/state"),
        "completed"
    );
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_file_what_was_open_at_a_loss_is_neither_tried_again_nor_gone_on_with() {
    a_saga_that_was_open_at_a_loss_is_neither_retried_nor_continued(Place::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_redis_what_was_open_at_a_loss_is_neither_tried_again_nor_gone_on_with() {
    let redis = Place::Redis(Box::new(Redis::strict().await));
    a_saga_that_was_open_at_a_loss_is_neither_retried_nor_continued(redis).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_postgres_what_was_open_at_a_loss_is_neither_tried_again_nor_gone_on_with() {
    let redis = Place::Postgres(Box::new(Postgres::with(&[]).await));
    a_saga_that_was_open_at_a_loss_is_neither_retried_nor_continued(redis).await;
}
