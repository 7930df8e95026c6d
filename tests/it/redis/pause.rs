//! Pauses that gateways of one Redis share.

use std::time::Duration;

use oncegate::core::record::{Entry, InstanceId};
use oncegate::core::timings::Timings;
use oncegate::store::redis::{Redis as RedisStore, Settings};
use oncegate::store::{Health as _, Pauses as _, Store};
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::sessions::pause::{pause, resume, warnings};
use crate::stores::contract::{open_redis, settings};
use crate::support::gateway::{Bare, one_tool};
use crate::support::redis::Redis;
use crate::support::stores::Stores;
use crate::support::timings::brisk;
use crate::support::{Answer, Gateway, Tool, client, has_reason, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_at_one_gateway_holds_at_another_within_two_seconds_on_redis() {
    let redis = Redis::strict().await;
    let tool = Tool::start().await;
    let stores = Stores::Redis(redis.url());
    let gateways = stores.gateways(&one_tool(&tool, "")).await;
    gateways[1].act("before", json!({})).await.expect_ok();
    pause(&gateways[0]).await.expect_ok();
    let paused_at = Instant::now();
    for n in 0.. {
        let answer = gateways[1].act(&format!("k{n}"), json!({})).await;
        let took = paused_at.elapsed();
        if answer.problem() == "tool-paused" {
            break;
        }
        answer.expect_ok();
        assert!(took < Duration::from_secs(5), "the pause does not hold yet");
    }
    let begun = tool.requests();
    assert!(
        last_begun(&tool) < paused_at + Duration::from_millis(2_500),
        "no call may begin more than two seconds after the pause, plus the time of a claim"
    );
    gateways[0]
        .act("k", json!({}))
        .await
        .expect_problem("tool-paused");
    gateways[1]
        .act("k", json!({}))
        .await
        .expect_problem("tool-paused");
    assert_eq!(tool.requests(), begun);
    resume(&gateways[1]).await.expect_ok();
    gateways[1].act("k", json!({})).await.expect_ok();
    until("the first gateway has resumed, too", async || {
        warnings(&gateways[0]).await == json!([])
    })
    .await;
    gateways[0].act("l", json!({})).await.expect_ok();
}

fn last_begun(tool: &Tool) -> Instant {
    tool.seen()
        .iter()
        .filter_map(|seen| seen.at)
        .max()
        .expect("a request")
}

/// The gateway runs without its background loop, so that only the call itself reads pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_claimed_on_pauses_that_were_read_two_seconds_ago_on_redis() {
    let redis = Redis::strict().await;
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_redis(&redis.url(), folder.path()).await;
    let gateway = Bare::over(store.clone(), InstanceId(Uuid::new_v4()), &tool, "").await;
    let call = async |key: &str| {
        let request = client()
            .post(&gateway.url)
            .header("idempotency-key", key)
            .body("{\"args\":{}}");
        Answer::to(request).await
    };
    let set = async |paused: bool| {
        let entry = Entry {
            at: gateway.gateway.now(),
            event: if paused { "paused" } else { "resumed" }.into(),
            attempt: None,
            outcome: None,
            by: "token ops".into(),
            detail: "elsewhere".into(),
        };
        assert!(
            store
                .set_paused("act", paused, &entry)
                .await
                .expect("an answer")
        );
    };
    set(true).await;
    call("first").await.expect_problem("tool-paused");
    set(false).await;
    sleep(Duration::from_secs(2)).await;
    call("second").await.expect_ok();
    set(true).await;
    sleep(Duration::from_secs(2)).await;
    call("third").await.expect_problem("tool-paused");
    assert_eq!(tool.requests(), 1);
}

/// A gateway that was cut off from its store must not use the pauses that it knew before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_reconnects_to_redis_claims_nothing_before_it_has_read_the_pauses() {
    let mut redis = Redis::strict().await;
    let tool = Tool::start().await;
    let gateway = Stores::Redis(redis.url())
        .gateway(&one_tool(&tool, ""))
        .await;
    gateway.act("before", json!({})).await.expect_ok();
    pause(&gateway).await.expect_ok();
    let folder = gateway.stop().await;
    redis.kill();
    let gateway = Gateway::again(folder, &redis.url(), &one_tool(&tool, "")).await;
    gateway
        .act("k", json!({}))
        .await
        .expect_problem("store-unavailable");
    redis.start_again().await;
    let refused = async || {
        let answer = gateway.act("k", json!({})).await;
        assert_ne!(answer.status, 200, "a call ran before the pauses were read");
        answer.problem() == "tool-paused"
    };
    until("the pause holds", refused).await;
    assert_eq!(tool.requests(), 1);
}

/// The gateway runs without its background loop, so the pause was not put back before the resume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_whose_pause_was_just_lost_can_be_resumed_on_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_redis(&redis.url(), folder.path()).await;
    let gateway = Bare::over(store, InstanceId(Uuid::new_v4()), &tool, "").await;
    let act = async |what: &str| {
        let body = json!({ "reason": "it ships twice" }).to_string();
        let url = gateway.url.replace("/calls", &format!("/{what}"));
        Answer::to(client().post(url).body(body)).await
    };
    act("pause").await.expect_ok();
    let keys: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", "oncegate:*:paused"]).await).expect("keys");
    assert_eq!(keys.len(), 1);
    redis.ask(&["DEL", &keys[0]]).await;
    let resumed = act("resume").await.expect_ok();
    assert_eq!(resumed.at("/paused"), false);
    let call = client()
        .post(&gateway.url)
        .header("idempotency-key", "k")
        .body("{\"args\":{}}");
    Answer::to(call).await.expect_ok();
}

/// Its record is gone with the rest, so the gateway cannot say that it was not executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_does_not_say_that_a_call_was_not_executed_while_redis_has_lost_it() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    gateway.act("before", json!({})).await.expect_ok();
    pause(&gateway).await.expect_ok();
    // From now on it has nothing that it could put back.
    let gateway = gateway.restart().await;
    gateway
        .act("new", json!({}))
        .await
        .expect_problem("tool-paused");
    redis.ask(&["FLUSHALL"]).await;
    let is_not_known = async || {
        let answer = gateway.act("before", json!({})).await;
        assert_eq!(answer.at("/effect"), "unknown", "{}", answer.text);
        answer.expect_problem("store-unavailable");
    };
    is_not_known().await;
    crate::redis::shared::notices(&gateway, "accept-loss").await;
    is_not_known().await;
    gateway.accept_loss("a test").await.expect_ok();
    gateway.until_ready().await;
    gateway
        .act("new", json!({}))
        .await
        .expect_problem("tool-paused");
    assert_eq!(tool.requests(), 1);
}

/// Another gateway may still find that newer data are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_redis_settles_nothing_is_said_of_a_call_that_is_not_there() {
    let mut redis = Redis::strict().await;
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings {
        timings: Timings {
            redis_others_look: Duration::from_secs(8),
            ..brisk()
        },
        ..settings(&redis.url(), folder.path())
    };
    let store = RedisStore::open(settings).await.expect("a store");
    until("it is ready", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    says_nothing_while_it_settles(store, async || {
        redis.kill();
        redis.start_again().await;
    })
    .await;
}

/// Its tool is paused, and it has no call: neither is said while other gateways may still find that data are lost.
pub(crate) async fn says_nothing_while_it_settles(
    store: impl Store + Clone,
    restart: impl AsyncFnOnce(),
) {
    let tool = Tool::start().await;
    let gateway = Bare::over(store.clone(), InstanceId(Uuid::new_v4()), &tool, "").await;
    let paused = gateway.url.replace("/calls", "/pause");
    let reason = json!({ "reason": "a test" }).to_string();
    Answer::to(client().post(paused).body(reason))
        .await
        .expect_ok();
    let asked = async || Answer::to(client().post(&gateway.url).body("{\"args\":{}}")).await;
    asked().await.expect_problem("tool-paused");
    restart().await;
    until("it settles", async || {
        has_reason(&store.readiness().await, "restarted")
    })
    .await;
    let answer = asked().await;
    assert_eq!(answer.at("/effect"), "unknown", "{}", answer.text);
    answer.expect_problem("store-unavailable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_pause_is_put_back_but_not_after_a_resume_on_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    gateway.act("before", json!({})).await.expect_ok();
    pause(&gateway).await.expect_ok();
    redis.ask(&["FLUSHALL"]).await;
    crate::redis::shared::notices(&gateway, "accept-loss").await;
    gateway.accept_loss("a test").await.expect_ok();
    gateway.until_ready().await;
    gateway
        .act("k", json!({}))
        .await
        .expect_problem("tool-paused");
    assert_eq!(tool.requests(), 1);
    resume(&gateway).await.expect_ok();
    until("the resume is known", async || {
        gateway.act("k", json!({})).await.status == 200
    })
    .await;
    let looks = "oncegate_store_operation_duration_seconds_count{operation=\"paused\"}";
    let before = gateway.metric(looks).await;
    until("pauses were read four more times", async || {
        gateway.metric(looks).await >= before + 4.0
    })
    .await;
    gateway.act("later", json!({})).await.expect_ok();
}
