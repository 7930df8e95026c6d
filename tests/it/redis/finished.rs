//! Succeeded calls that gateways over one Redis remember: replayed without Redis, and never in an outdated state.

use std::sync::Arc;
use std::time::Duration;

use oncegate::core::key::Lookup;
use oncegate::core::timings::Timings;
use oncegate::store::{Calls as _, Health as _, ReplayCache};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::redis::kinds::minimal_user;
use crate::redis::shared::notices;
use crate::sagas::undone::{MADE, shop};
use crate::stores::contract::{ME, arrival, claimed, redis_and_store};
use crate::stores::finished::asked;
use crate::support::gateway::one_tool;
use crate::support::line::Line;
use crate::support::redis::{Cluster, Redis, Sentinel};
use crate::support::{Answer, Gateway, Tool, until};

/// How long a gateway may answer from memory that gets no news of changes any more, as docs say.
const BELIEF: Duration = Duration::from_millis(500);
/// News of a change arrives at once; only a busy machine takes this long.
const SOON: Duration = Duration::from_secs(10);

async fn order(gateway: &Gateway) -> Answer {
    let body = json!({ "args": {}, "idempotency_key": "k" });
    gateway.post("order", &body, &[]).await
}

async fn act(gateway: &Gateway) -> Answer {
    gateway.act("k", json!({ "args": {} })).await
}

/// Whether the replay of a succeeded call was answered without the store.
async fn is_remembered(gateway: &Gateway, replay: impl AsyncFn(&Gateway) -> Answer) -> bool {
    let before = asked(gateway).await;
    let again = replay(gateway).await.expect_ok();
    assert_eq!(again.at("/replayed"), true);
    asked(gateway).await == before
}

async fn until_remembered(gateway: &Gateway, replay: impl AsyncFn(&Gateway) -> Answer) {
    let holds = async || is_remembered(gateway, &replay).await;
    until("the call is remembered", holds).await;
}

async fn until_told_undone(gateway: &Gateway) {
    let is_told = async || order(gateway).await.at("/compensated") == true;
    until("the call is replayed as undone", is_told).await;
}

/// The second gateway remembers the order again, and gets the news when the first undoes it.
async fn is_remembered_anew_until_it_is_undone([one, other]: [&Gateway; 2], order_made: &Answer) {
    one.until_ready().await;
    other.until_ready().await;
    until_remembered(other, order).await;
    undo(one, order_made).await;
    until_told_undone(other).await;
}

async fn over(redis: &str, config: &str) -> Gateway {
    let gateway = Gateway::sharing(redis, config).await;
    gateway.until_ready().await;
    gateway
}

/// Two gateways over one Redis, the second through a proxy; both have sold the same order, and the second remembers it.
async fn sold(redis: &Redis, tool: &Tool) -> (Gateway, Gateway, Line, Answer) {
    tool.always(MADE);
    let line = Line::to(redis.port).await;
    let config = shop(tool, "");
    let (one, other) = (
        over(&redis.url(), &config).await,
        over(&line.url(), &config).await,
    );
    let first = order(&one).await.expect_ok();
    until_remembered(&other, order).await;
    (one, other, line, first)
}

/// Undoes the call, and waits until the ledger says so.
async fn undo(gateway: &Gateway, call: &Answer) {
    let path = format!("/v1/calls/{}/compensate", call.id());
    let is_undone = async || {
        gateway.act_on(&path).await;
        gateway.record(call).await.at("/state") == "compensated"
    };
    until("the call is undone", is_undone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_after_the_first_ask_nothing_of_a_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    // At the default pace, so that background work adds few commands. But metrics that the test reads are of now.
    let config = one_tool(&tool, "");
    let timings = Timings {
        ask_store_every: Duration::ZERO,
        ..Timings::default()
    };
    let mut gateways = Vec::new();
    for _ in 0..2 {
        gateways.push(Gateway::at_pace(timings, &redis.url(), &config).await);
    }
    for gateway in &gateways {
        gateway.until_ready().await;
    }
    let first = act(&gateways[0]).await.expect_ok();
    for gateway in &gateways {
        until_remembered(gateway, act).await;
    }
    let before = asked(&gateways[0]).await + asked(&gateways[1]).await;
    redis.ask(&["CONFIG", "RESETSTAT"]).await;
    let began = Instant::now();
    for _ in 0..200 {
        for gateway in &gateways {
            let again = act(gateway).await.expect_ok();
            assert_eq!(
                (again.id(), again.result(), again.at("/replayed")),
                (first.id(), first.result(), true.into())
            );
        }
    }
    let (commands, seconds) = (redis.commands().await, began.elapsed().as_secs() + 1);
    // A busy machine may be late with the ping of the connection, and read from the store.
    let late = asked(&gateways[0]).await + asked(&gateways[1]).await - before;
    assert!(
        late <= 20.0,
        "{late} of 400 replays were read from the store"
    );
    // One script counts all duplicates of a call, once a second.
    let scripts = commands.get("evalsha").copied().unwrap_or(0);
    let most = 2 * (seconds + 1) + late as u64;
    assert!(scripts <= most, "{scripts} in {seconds} s: {commands:?}");
    let duplicates = async || {
        let counted = gateways[0].record(&first).await.at("/duplicates");
        counted.as_u64() >= Some(402)
    };
    until("each duplicate is counted", duplicates).await;
    assert_eq!(tool.effects(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_one_gateway_has_undone_is_replayed_as_undone_by_another() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other, _line, first) = sold(&redis, &tool).await;
    until_remembered(&one, order).await;
    undo(&one, &first).await;
    let undone = Instant::now();
    assert_eq!(
        order(&one).await.at("/compensated"),
        true,
        "the gateway knows its own change"
    );
    until_told_undone(&other).await;
    assert!(undone.elapsed() < SOON, "{:?}", undone.elapsed());
    assert_eq!(tool.effects(), 2, "the order, and its compensation");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_without_news_from_redis_is_used_for_half_a_second() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other, line, first) = sold(&redis, &tool).await;
    line.mute_tracking(true);
    let muted = Instant::now();
    undo(&one, &first).await;
    while muted.elapsed() < 3 * BELIEF {
        let (before, since) = (asked(&other).await, muted.elapsed());
        let again = order(&other).await.expect_ok();
        if asked(&other).await == before {
            assert!(since < BELIEF, "answered from memory after {since:?}");
        } else {
            assert_eq!(again.at("/compensated"), true);
        }
    }
    line.mute_tracking(false);
    order(&one).await.expect_ok();
    let next = async |gateway: &Gateway| {
        let body = json!({ "args": { "n": 2 }, "idempotency_key": "next" });
        gateway.post("order", &body, &[]).await
    };
    next(&one).await.expect_ok();
    until_remembered(&other, next).await;
    assert_eq!(order(&other).await.at("/compensated"), true);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_remembered_of_a_redis_that_was_emptied() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other, _line, first) = sold(&redis, &tool).await;
    redis.ask(&["FLUSHALL"]).await;
    let flushed = Instant::now();
    let is_asked = async || {
        let before = asked(&other).await;
        order(&other).await;
        asked(&other).await > before
    };
    until("the replay is read from the store", is_asked).await;
    assert!(flushed.elapsed() < SOON, "{:?}", flushed.elapsed());
    for gateway in [&one, &other] {
        notices(gateway, "accept-loss").await;
    }
    for _ in 0..3 {
        assert!(is_asked().await, "while data is missing");
    }
    assert_eq!(tool.effects(), 1);
    // The gateways remember again the call that they have put back, and get news of its changes.
    one.accept_loss("a test").await.expect_ok();
    is_remembered_anew_until_it_is_undone([&one, &other], &first).await;
    assert_eq!(tool.effects(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_redis_calls_are_read_from_it_again() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = over(&redis.url(), &one_tool(&tool, "")).await;
    act(&gateway).await.expect_ok();
    until_remembered(&gateway, act).await;
    redis.kill();
    until("memory is not used any more", async || {
        act(&gateway).await.status != 200
    })
    .await;
    redis.start_again().await;
    gateway.until_ready().await;
    assert!(!is_remembered(&gateway, act).await);
    until_remembered(&gateway, act).await;
    assert_eq!(tool.effects(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_the_new_master_of_redis_tells_of_changes() {
    let tool = Tool::start().await;
    tool.always(MADE);
    let bounded = [("min-replicas-to-write", "1")];
    let mut master = Redis::with(&bounded).await;
    let replicas = [master.replica().await, master.replica().await];
    for replica in &replicas {
        let command = ["CONFIG", "SET", "min-replicas-to-write", "1"];
        replica.ask(&command).await;
    }
    let sentinel = Sentinel::of(&master).await;
    let config = format!("[store]\ndurability = \"bounded\"\n{}", shop(&tool, ""));
    let (one, other) = (
        over(&sentinel.url(), &config).await,
        over(&sentinel.url(), &config).await,
    );
    let first = order(&one).await.expect_ok();
    until_remembered(&other, order).await;
    master.kill();
    until("memory is not used any more", async || {
        order(&other).await.status != 200
    })
    .await;
    is_remembered_anew_until_it_is_undone([&one, &other], &first).await;
    assert_eq!(tool.effects(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_may_soon_be_forgotten_is_always_read_from_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = over(
        &redis.url(),
        &one_tool(
            &tool,
            "timeout = \"1s\"\nretry = { attempts = 1 }\ndeadline = \"1s\"\ndedup_window = \"9s\"",
        ),
    )
    .await;
    act(&gateway).await.expect_ok();
    for _ in 0..5 {
        assert!(!is_remembered(&gateway, act).await);
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_does_not_allow_tracking_is_asked_for_each_replay() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let mut user = minimal_user();
    user.retain(|rule| !rule.starts_with("+client|"));
    let user: Vec<&str> = user.iter().map(String::as_str).collect();
    redis.ask(&user).await;
    let url = redis.url().replace("://", "://gate:s3cret@");
    let gateway = over(&url, &one_tool(&tool, "")).await;
    act(&gateway).await.expect_ok();
    for _ in 0..5 {
        assert!(!is_remembered(&gateway, act).await);
        sleep(Duration::from_millis(100)).await;
    }
    let ready = gateway.get("/readyz").await.expect_ok();
    assert_eq!(ready.at("/reasons").as_array().map_or(0, Vec::len), 0);
    assert_eq!(tool.effects(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_redis_cluster_each_replay_is_read() {
    let (cluster, tool) = (Cluster::start().await, Tool::start().await);
    let gateway = over(&cluster.url(), &one_tool(&tool, "")).await;
    act(&gateway).await.expect_ok();
    for _ in 0..3 {
        assert!(!is_remembered(&gateway, act).await);
    }
    assert_eq!(tool.effects(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_call_that_one_gateway_has_resolved_is_replayed_by_another_over_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let config = one_tool(&tool, "retry = { attempts = 1 }");
    let (one, other) = (
        over(&redis.url(), &config).await,
        over(&redis.url(), &config).await,
    );
    tool.always(crate::support::Act::ExecuteThenDrop);
    let unknown = act(&one).await.expect_problem("outcome-unknown");
    act(&other).await.expect_problem("outcome-unknown");
    let body = json!({ "as": "succeeded", "result": { "by": "hand" }, "reason": "seen" });
    one.resolve(&unknown, &body).await.expect_ok();
    until_remembered(&other, act).await;
    let result: Value = act(&other).await.expect_ok().at("/result");
    assert_eq!(result, json!({ "by": "hand" }));
    assert_eq!(tool.effects(), 1);
}

/// Otherwise a name that has passed to another call would be answered with the result of the former one.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_not_remembered_under_a_name_that_it_does_not_hold_in_redis() {
    let (_redis, _folder, store) = redis_and_store().await;
    assert!(store.track(&Arc::new(ReplayCache::of_shared_store(1 << 20))));
    let call = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let (name, id) = (call.intent.lookup, call.intent.call_id);
    until("Redis tells of changes", async || {
        store.watch(&name, id).await.is_ok()
    })
    .await;
    let watched = async |name: &Lookup| store.watch(name, id).await.expect("an answer");
    assert!(watched(&name).await.is_some());
    assert!(
        watched(&Lookup::new("shop", "t", "another"))
            .await
            .is_none()
    );
}
