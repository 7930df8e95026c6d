//! An operator accepts that Redis has lost data.

use futures_util::future::join_all;
use oncegate::core::caller::Caller;
use oncegate::core::document::{Document, Kind};
use oncegate::core::saga::{Policy, Saga, SagaId};
use oncegate::gateway::new_instance;
use oncegate::store::redis::Redis as RedisStore;
use oncegate::store::{self, Calls as _, Documents as _, Health as _, LossRecovery as _, Put};
use serde_json::json;

use crate::redis::shared::{call, gateway, notices};
use crate::stores::contract::{ME, arrival, at, claimed, open_redis, open_redis_as_it_is};
#[cfg(feature = "crash-points")]
use crate::support::binary::Process;
use crate::support::binary::free_port;
use crate::support::faulty::FaultStore;
use crate::support::gateway::{Bare, OPS_TOKEN, one_tool, ops_token_sha256};
use crate::support::redis::Redis;
use crate::support::{Act, Answer, Gateway, Tool, at_its_end, client, has_reason, until};

/// A new gateway accepts a loss: the other gateway follows, and its call 1 was put back.
pub async fn opens_for_both(newcomer: &Gateway, other: &Gateway, reason: &str) {
    // An operator tries again while the store does not know yet what is lost.
    until("the loss is accepted", async || {
        newcomer.accept_loss(reason).await.status == 200
    })
    .await;
    newcomer.until_ready().await;
    other.until_ready().await;
    assert_eq!(
        call(newcomer, 1).await.expect_ok().at("/replayed"),
        true,
        "the call was put back"
    );
}

#[tokio::test]
async fn a_new_gateway_accepts_for_all_a_loss_that_was_found_before_it_started() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    call(&gateway, 1).await.expect_ok();
    redis.ask(&["FLUSHALL"]).await;
    notices(&gateway, "accept-loss").await;
    let newcomer = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    notices(&newcomer, "accept-loss").await;
    opens_for_both(&newcomer, &gateway, "it was emptied").await;
    assert_eq!(tool.effects(), 1);
}

#[tokio::test]
async fn a_redis_that_is_emptied_again_before_the_loss_is_accepted_stays_closed_for_a_new_gateway()
{
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    call(&gateway, 1).await.expect_ok();
    redis.ask(&["FLUSHALL"]).await;
    notices(&gateway, "accept-loss").await;
    redis.ask(&["FLUSHALL"]).await;
    let newcomer = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    notices(&newcomer, "accept-loss").await;
    call(&newcomer, 2).await.expect_problem("store-unavailable");
    opens_for_both(&newcomer, &gateway, "it was emptied twice").await;
    assert_eq!(tool.effects(), 1);
}

/// The gateway has inspected the empty Redis, and the new gateway's manifest was written just after that.
#[tokio::test]
async fn a_gateway_whose_warning_met_a_new_gateways_manifest_follows_its_acceptance() {
    let redis = Redis::strict().await;
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let one = open_redis(&redis.url(), folders[0].path()).await;
    until("the store is ready", async || {
        one.readiness().await.reasons.is_empty()
    })
    .await;
    let keys: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", "oncegate:*:manifest"]).await).expect("keys");
    let manifest = async || -> serde_json::Value {
        let text: String =
            ::redis::from_redis_value(redis.ask(&["GET", &keys[0]]).await).expect("a text");
        serde_json::from_str(&text).expect("a manifest")
    };
    let mut newcomers = manifest().await;
    let epoch = newcomers["epoch"].take();
    newcomers["epoch"] = json!("newcomer");
    redis.ask(&["FLUSHALL"]).await;
    let is_closed = async |store: &RedisStore| {
        let reasons = store.readiness().await.reasons;
        reasons.iter().any(|reason| reason.code == store::LOST_DATA)
    };
    until("the loss is noticed", async || is_closed(&one).await).await;
    redis.ask(&["SET", &keys[0], &newcomers.to_string()]).await;
    let newcomer = open_redis_as_it_is(&redis.url(), folders[1].path()).await;
    until("the manifest names the gateway's epoch", async || {
        manifest().await["follows"] == json!([epoch])
    })
    .await;
    until("the new gateway is closed", async || {
        is_closed(&newcomer).await
    })
    .await;
    until("the loss is accepted", async || {
        newcomer.accept_loss("it was emptied").await.is_ok()
    })
    .await;
    until("both are open", async || {
        one.readiness().await.reasons.is_empty() && newcomer.readiness().await.reasons.is_empty()
    })
    .await;
}

/// Until the end of an acceptance only the gateway that accepts the loss changes anything, also if that gateway ends.
#[tokio::test]
async fn during_an_acceptance_only_its_gateway_changes_anything_and_only_documents() {
    let mut redis = Redis::strict().await;
    let folders = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let one = open_redis(&redis.url(), folders[0].path()).await;
    let other = open_redis(&redis.url(), folders[1].path()).await;
    let id = SagaId {
        tenant: "shop".into(),
        id: "G".into(),
    };
    let saga = Saga::begin(id, &Policy::default(), at(0)).to_document();
    assert_eq!(one.put_document(&saga).await.expect("an answer"), Put::Done);
    let snapshot = redis.snapshot();
    claimed(&one, &arrival("a", "S", 0, ME)).await;
    redis.restore(snapshot.path()).await;
    let is_closed = async |store: &RedisStore| {
        let reasons = store.readiness().await.reasons;
        reasons.iter().any(|reason| reason.code == store::LOST_DATA)
    };
    let next = |document: &Document| Document {
        version: document.version + 1,
        ..document.clone()
    };
    until("both have noticed the loss", async || {
        is_closed(&one).await && is_closed(&other).await
    })
    .await;
    assert!(one.put_document(&next(&saga)).await.is_err());

    one.prepare_acceptance("restored").await.expect("prepared");
    assert!(is_closed(&one).await && one.claim(&arrival("b", "S", 1, ME), &[]).await.is_err());
    assert_eq!(
        other
            .due_documents(Kind::Saga, at(9_999), 9)
            .await
            .expect("an answer")
            .calls,
        []
    );
    assert!(other.put_document(&next(&saga)).await.is_err());
    let saga = next(&saga);
    assert_eq!(one.put_document(&saga).await.expect("an answer"), Put::Done);

    // The gateway ends before it has accepted the loss. The next one finds the loss still open.
    drop(one);
    let third = open_redis_as_it_is(&redis.url(), folders[2].path()).await;
    until("the third store is closed", async || {
        is_closed(&third).await
    })
    .await;
    assert!(is_closed(&other).await && other.put_document(&next(&saga)).await.is_err());
    until("the loss is accepted", async || {
        third.accept_loss("restored, and tried again").await.is_ok()
    })
    .await;
    until("all are open", async || {
        other.readiness().await.reasons.is_empty()
    })
    .await;
    assert_eq!(
        other.put_document(&next(&saga)).await.expect("an answer"),
        Put::Done
    );
}

/// The tool refuses the cancellation before the loss, and accepts it after the loss.
#[cfg(feature = "crash-points")]
#[tokio::test]
async fn a_saga_that_was_being_undone_when_data_was_lost_waits_for_an_operator_also_if_the_gateway_ends()
 {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.then(Act::Ok("{\"made\":7}"))
        .always(Act::Answer(422, "", b"{}"));
    let config = format!(
        "[sagas]\nretry = {{ attempts = 999, base = \"50ms\", max = \"50ms\" }}\n\
         [tools.act]\nurl = \"{0}\"\ncompensation = {{ tool = \"undo\" }}\n[tools.undo]\nurl = \"{0}\"\n",
        tool.url()
    );
    let (folder, port, url) = (
        tempfile::tempdir().expect("a folder"),
        free_port(),
        redis.url(),
    );
    let begin = async |points: &str| {
        let environment = [
            ("ONCEGATE_STORE__URL", &*url),
            ("ONCEGATE_STORE__WATERMARKS", "marks"),
            ("ONCEGATE_SERVER__OPS_TOKEN", &*ops_token_sha256()),
            ("FAILPOINTS", points),
        ];
        Process::start_in(folder.path(), port, &config, &environment).await
    };
    let at = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let post = async |path: &str, body: serde_json::Value| {
        let sent = client().post(at(path)).body(body.to_string()).send().await;
        Some(Answer::read(sent.ok()?).await)
    };
    let get = async |path: &str| {
        let sent = client().get(at(path)).bearer_auth(OPS_TOKEN).send().await;
        Answer::read(sent.expect("an answer")).await
    };
    let reason = || json!({ "reason": "restored" });
    let call =
        |key: &str, saga: &str| json!({ "args": {}, "saga_id": saga, "idempotency_key": key });
    let dying = begin("loss_prepared=return").await;
    until("the store is ready", async || {
        get("/readyz").await.status == 200
    })
    .await;
    post("/v1/tools/act/calls", call("a", "G"))
        .await
        .expect("an answer")
        .expect_ok();
    post("/v1/sagas/G/abort", reason())
        .await
        .expect("an answer")
        .expect_ok();
    until("the saga is being undone", async || tool.requests() > 2).await;
    let snapshot = redis.snapshot();
    post("/v1/tools/act/calls", call("b", ""))
        .await
        .expect("an answer")
        .expect_problem("tool-rejected");
    redis.restore(snapshot.path()).await;
    until("the loss is noticed", async || {
        get("/readyz").await.text.contains("accept-loss")
    })
    .await;
    tool.always(Act::Ok("{\"made\":7}"));
    // On a busy machine it says first that the acceptance is under way.
    let answer = post("/v1/store/accept-loss", reason()).await;
    assert!(
        answer.is_none_or(|answer| answer.status == 202),
        "the gateway ends during the acceptance"
    );
    dying.ended().await;

    let _gateway = begin("").await;
    until("the interrupted acceptance is reported", async || {
        get("/readyz").await.text.contains("interrupted")
    })
    .await;
    let accept = async || {
        let answer = post("/v1/store/accept-loss", reason()).await;
        answer.expect("an answer")
    };
    at_its_end(accept).await.expect_ok();
    until("the store is ready", async || {
        get("/readyz").await.status == 200
    })
    .await;
    let saga = get("/v1/sagas/G").await.expect_ok();
    assert_eq!(saga.at("/state"), "stuck");
    assert!(
        saga.at("/trouble/why")
            .as_str()
            .is_some_and(|why| why.contains("lost data")),
        "{}",
        saga.text
    );
    assert_eq!(tool.effects(), 1, "nothing was undone");
}

/// During an acceptance no saga may change. An acceptance that panicked must not count as running.
#[tokio::test(flavor = "multi_thread")]
async fn sagas_go_on_after_an_acceptance_that_ended_in_a_panic() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let folder = tempfile::tempdir().expect("a folder");
    let store = FaultStore::over(open_redis(&redis.url(), folder.path()).await);
    let Bare { gateway, url, .. } = Bare::over(store.clone(), new_instance(), &tool, "").await;
    let ready = async || gateway.status.readiness().await.reasons.is_empty();
    until("the store is ready", ready).await;
    redis.ask(&["FLUSHALL"]).await;
    until("the loss is noticed", async || {
        has_reason(&gateway.status.readiness().await, store::LOST_DATA)
    })
    .await;
    store.panic_at(crate::support::faulty::Verb::CallsAtRiskAfterLoss);
    assert!(
        gateway
            .loss
            .accept_loss(Caller::operator(), "flushed".into())
            .await
            .is_err()
    );
    // Repeated, as an operator would, because the Redis may be slow.
    until("the loss is accepted", async || {
        drop(
            gateway
                .loss
                .accept_loss(Caller::operator(), "flushed".into())
                .await,
        );
        ready().await
    })
    .await;
    let body = json!({ "args": {}, "saga_id": "G" }).to_string();
    Answer::to(client().post(url).body(body)).await.expect_ok();
}

/// An inspection may take a while: one that began before the acceptance must not close the store again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_of_redis_that_was_accepted_stays_accepted_while_gateways_inspect() {
    let redis = Redis::strict().await;
    let folders: Vec<_> = (0..6)
        .map(|_| tempfile::tempdir().expect("a folder"))
        .collect();
    let url = redis.url();
    let stores = join_all(folders.iter().map(|folder| open_redis(&url, folder.path()))).await;
    let is_ready = async |store: &RedisStore| store.readiness().await.reasons.is_empty();
    for _ in 0..5 {
        for store in &stores {
            until("the store is ready", async || is_ready(store).await).await;
        }
        redis.ask(&["FLUSHALL"]).await;
        let reasons = async || stores[0].readiness().await.reasons;
        until("the loss is noticed", async || {
            reasons()
                .await
                .iter()
                .any(|reason| reason.code == store::LOST_DATA)
        })
        .await;
        // The acceptance is refused if another gateway warns at the same time.
        until("the loss is accepted", async || {
            stores[0].accept_loss("flushed").await.is_ok()
        })
        .await;
    }
    for store in &stores {
        until("the store is ready", async || is_ready(store).await).await;
    }
}
