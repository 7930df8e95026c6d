//! An operator accepts that a store has lost data: which acts are refused until then, when the acceptance is refused,
//! and what remains of an acceptance that breaks off.

use std::sync::Arc;

use oncegate::core::caller::Caller;
use oncegate::core::document::{Document, Kind};
use oncegate::store::LOST_DATA;
use oncegate::store::{Documents as _, Health as _};
use serde_json::json;

use crate::sagas::losses::Place;
use crate::stores::contract::ME;
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::{Bare, one_tool, store_is_free};
#[cfg(feature = "postgres")]
use crate::support::postgres::run_in;
use crate::support::redis::{Redis, connect};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

on_both_stores! {
    a_loss_is_not_accepted_while_a_saga_cannot_be_read,
    acts_of_operators_wait_until_a_loss_is_accepted,
}

/// Stops a gateway and starts it again over a store that seems to have lost its newest writes.
pub(crate) async fn lose(stores: &Stores, gateway: Gateway, config: &str) -> Gateway {
    let folder = gateway.stop().await;
    let store = match stores {
        Stores::Sqlite => {
            std::fs::remove_file(folder.path().join("oncegate.db.watermarks")).expect("removed");
            format!("sqlite:{}", folder.path().join("oncegate.db").display())
        }
        Stores::Redis(url) => {
            let mut connection = connect(url).await;
            let key = "oncegate:{p000}:marks";
            let marks = ::redis::cmd("GET")
                .arg(key)
                .query_async(&mut connection)
                .await;
            let marks: String = marks.expect("the counts");
            let (epoch, counts) = marks.split_once('\n').expect("counts");
            let lower = |line: &str| {
                let (gateway, writes) = line.split_once('=').expect("a count");
                let writes: u64 = writes.parse().expect("a number");
                format!("\n{gateway}={:015}", writes - 1)
            };
            let counts: String = counts.lines().map(lower).collect();
            let mut set = ::redis::cmd("SET");
            set.arg(key).arg(format!("{epoch}{counts}"));
            let () = set.query_async(&mut connection).await.expect("lowered");
            url.clone()
        }
        #[cfg(feature = "postgres")]
        Stores::Postgres(place) => {
            run_in(place, "UPDATE gateways SET beat = beat - 1").await;
            place.clone()
        }
    };
    let gateway = Gateway::again(folder, &store, config).await;
    until("the loss is noticed", async || {
        gateway.reasons().await.contains("accept-loss")
    })
    .await;
    gateway
}

fn sealed(tool: &Tool, keys: &[u8]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| hex::encode([*key; 32])).collect();
    format!(
        "{}\n[store]\nencryption_keys = {keys:?}\n",
        one_tool(tool, "retry = { attempts = 1 }")
    )
}

async fn a_loss_is_not_accepted_while_a_saga_cannot_be_read(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&sealed(&tool, &[1])).await;
    for saga in ["G", "H"] {
        gateway
            .act(saga, json!({ "saga_id": saga }))
            .await
            .expect_ok();
    }
    tool.then(Act::Answer(422, "", b"{}"));
    let failed = gateway
        .act("failed", json!({}))
        .await
        .expect_problem("tool-rejected");

    let gateway = lose(stores, gateway, &sealed(&tool, &[2])).await;
    for _ in 0..2 {
        let refused = gateway
            .accept_loss("an older copy")
            .await
            .expect_problem("wrong-state");
        for said in ["2 of 2 sagas", "encryption_keys"] {
            assert!(refused.text.contains(said), "{}", refused.text);
        }
        assert!(
            gateway.reasons().await.contains("accept-loss"),
            "the store stays closed"
        );
        assert_eq!(
            gateway.record(&failed).await.at("/state"),
            "failed",
            "nothing was changed"
        );
    }
    let folder = gateway.stop().await;
    let store = match stores {
        Stores::Sqlite => {
            store_is_free(folder.path()).await;
            format!("sqlite:{}", folder.path().join("oncegate.db").display())
        }
        Stores::Redis(url) => url.clone(),
        #[cfg(feature = "postgres")]
        Stores::Postgres(url) => url.clone(),
    };
    let gateway = Gateway::again(folder, &store, &sealed(&tool, &[2, 1])).await;
    until("the loss is seen again", async || {
        gateway.reasons().await.contains("accept-loss")
    })
    .await;
    gateway.accept_loss("an older copy").await.expect_ok();
    gateway.until_ready().await;
    for saga in ["G", "H"] {
        assert_eq!(
            gateway.get(&format!("/v1/sagas/{saga}")).await.at("/state"),
            "stuck"
        );
    }
    assert_eq!(gateway.record(&failed).await.at("/state"), "unknown");
    gateway.stop().await;
}

async fn acts_of_operators_wait_until_a_loss_is_accepted(stores: &Stores) {
    let tool = Tool::start().await;
    let config = one_tool(
        &tool,
        "retry = { attempts = 1 }\nsession = \"exclusive\"\ncompensation = { tool = \"undo\" }\n[tools.undo]\n\
         url = \"http://127.0.0.1:1\"\n[tools.other]\nurl = \"http://127.0.0.1:1\"\n",
    );
    let gateway = stores.gateway(&config).await;
    let reason = json!({ "reason": "a test" });
    let done = gateway
        .act("saga", json!({ "saga_id": "G", "session_id": "T" }))
        .await
        .expect_ok();
    let done = done.id();
    gateway
        .post_to("/v1/tools/other/pause", &reason)
        .await
        .expect_ok();
    tool.then(Act::ExecuteThenDrop);
    let unknown = gateway
        .act("unknown", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let unknown = unknown.id();

    let gateway = lose(stores, gateway, &config).await;
    let resolution = json!({ "as": "succeeded", "result": 1, "reason": "looked it up" });
    let acts = [
        (format!("/v1/calls/{unknown}/resolve"), resolution.clone()),
        (format!("/v1/calls/{done}/compensate"), reason.clone()),
        ("/v1/sessions/S/freeze".to_owned(), reason.clone()),
        ("/v1/sessions/S/thaw".to_owned(), reason.clone()),
        ("/v1/sessions/S/unlock".to_owned(), reason.clone()),
        ("/v1/sagas/G/complete".to_owned(), reason.clone()),
        ("/v1/sagas/G/abort".to_owned(), reason.clone()),
        ("/v1/sagas/G/retry".to_owned(), reason.clone()),
        ("/v1/sagas/G/skip".to_owned(), reason.clone()),
        ("/v1/tools/other/resume".to_owned(), reason.clone()),
    ];
    for (path, body) in &acts {
        let refused = gateway.post_to(path, body).await;
        assert_eq!(
            refused.at("/type"),
            "/problems/store-unavailable",
            "{path}: {}",
            refused.text
        );
    }
    // A pause only stops calls, so it is allowed before the store opens.
    gateway
        .post_to("/v1/tools/act/pause", &reason)
        .await
        .expect_ok();
    gateway.accept_loss("an older copy").await.expect_ok();
    gateway.until_ready().await;
    let resumed = gateway.get("/v1/audit?act=resume").await;
    assert_eq!(
        resumed.at("/acts"),
        json!([]),
        "the refused resume did nothing"
    );
    gateway
        .act("new", json!({}))
        .await
        .expect_problem("tool-paused");
    let found = gateway.get("/v1/sessions/S").await;
    assert_eq!(found.at("/frozen"), false, "{}", found.text);
    assert_eq!(gateway.get("/v1/sagas/G").await.at("/state"), "stuck");
    for (path, body) in [&acts[0], &acts[2], &acts[5], &acts[9]] {
        gateway.post_to(path, body).await.expect_ok();
    }
    gateway.stop().await;
}

/// Acceptances that break off after the store was prepared for them: the store must be closed for documents again.
async fn an_acceptance_that_breaks_off_closes_documents_again(mut place: Place) {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let store = place.open(folder.path()).await;
    let bare = Bare::over_shared(store.clone(), ME, &tool, "").await;
    until("it is ready", async || {
        bare.gateway.status.readiness().await.reasons.is_empty()
    })
    .await;
    let body = json!({ "args": {}, "saga_id": "G" }).to_string();
    let call = async |url: &str| Answer::to(client().post(url).body(body.clone())).await;
    call(&bare.url).await.expect_ok();
    bare.stop().await;
    store.close().await;
    drop(store);
    place.is_closed(folder.path()).await;
    let copy = place.copy(folder.path());
    // The store gets one write that its copy lacks.
    let store = place.open(folder.path()).await;
    let saga = store
        .document(Kind::Saga, "default", "G")
        .await
        .expect("an answer")
        .expect("a saga");
    let next = |saga: &Document| Document {
        version: saga.version + 1,
        ..saga.clone()
    };
    store.put_document(&next(&saga)).await.expect("written");
    store.close().await;
    drop(store);
    place.is_closed(folder.path()).await;
    let store = FaultStore::over_shared(place.put_back(copy.path(), folder.path()).await);
    let bare = Bare::over_shared(Arc::new(store.clone()), ME, &tool, "").await;

    let accept = async || {
        bare.gateway
            .loss
            .accept_loss(Caller::operator(), "put back".into())
            .await
    };
    let is_closed = async |why: &str| {
        assert!(store.put_document(&next(&saga)).await.is_err(), "{why}");
        let reasons = store.readiness().await.reasons;
        assert!(
            reasons.iter().any(|reason| reason.code == LOST_DATA),
            "{why}: {reasons:?}"
        );
    };
    is_closed("before").await;
    store.next(Verb::PutDocument, Fault::ErrBefore, 1);
    accept().await.expect_err("the saga was not stopped");
    assert_eq!(
        store.injected(Verb::PutDocument, Fault::ErrBefore),
        1,
        "it broke off at that write"
    );
    is_closed("after the store has failed").await;
    store.panic_at(Verb::PutDocument);
    accept().await.expect_err("it has panicked");
    is_closed("after a panic").await;
    accept().await.expect("accepted");
    until("it is open", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    bare.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_file_an_acceptance_that_breaks_off_closes_documents_again() {
    an_acceptance_that_breaks_off_closes_documents_again(Place::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_redis_an_acceptance_that_breaks_off_closes_documents_again() {
    an_acceptance_that_breaks_off_closes_documents_again(Place::Redis(Box::new(
        Redis::strict().await,
    )))
    .await;
}
