//! How many commands a gateway sends to Redis: for each call, and while it is idle.

use std::sync::Arc;
use std::time::Duration;

use oncegate::core::ledger::{Filter, PAGE_BYTES};
use oncegate::core::timings::Timings;
use oncegate::store::Ledger as _;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::stores::contract::{ME, arrival, claimed, redis_and_store};
use crate::support::gateway::one_tool;
use crate::support::redis::{Redis, short};
use crate::support::{Act, Gateway, Tool};

const CALLS: usize = 1_000;
const CALLERS: usize = 8;

/// All commands since the last `CONFIG RESETSTAT`, including those of scripts.
async fn commands(redis: &Redis) -> u64 {
    redis.commands().await.values().sum()
}

/// A gateway at the default pace.
async fn at_default_pace(redis: &Redis, tool: &Tool) -> Gateway {
    let gateway = Gateway::at_pace(Timings::default(), &redis.url(), &one_tool(tool, "")).await;
    gateway.until_ready().await;
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_arrival_takes_at_most_forty_commands_of_a_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = Arc::new(at_default_pace(&redis, &tool).await);
    redis.ask(&["CONFIG", "RESETSTAT"]).await;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let gateway = gateway.clone();
        callers.spawn(async move {
            for n in (0..CALLS).filter(|n| n % CALLERS == caller) {
                let body = json!({ "args": { "n": n }, "user_id": "U", "session_id": format!("S{caller}") });
                gateway.post("act", &body, &[]).await.expect_ok();
            }
        });
    }
    callers.join_all().await;
    let all = redis.commands().await;
    assert_eq!(tool.effects(), CALLS);
    assert_eq!(
        all.get("evalsha").map(|scripts| scripts / CALLS as u64),
        Some(2)
    );
    let of_a_call = all.values().sum::<u64>() as f64 / CALLS as f64;
    assert!(of_a_call <= 40.0, "{of_a_call} commands a call: {all:?}");
    assert!(
        !all.contains_key("xadd"),
        "a stream that is not configured is not written"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_gateway_asks_at_most_twenty_commands_a_second_of_a_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = at_default_pace(&redis, &tool).await;
    // The gateway has had calls.
    for n in 0..10 {
        gateway.call(json!({ "n": n })).await.expect_ok();
    }
    // It remembers a succeeded call.
    for _ in 0..20 {
        gateway.call(json!({ "n": 1 })).await.expect_ok();
    }
    sleep(Duration::from_secs(2)).await;
    redis.ask(&["CONFIG", "RESETSTAT"]).await;
    let began = Instant::now();
    sleep(Duration::from_secs(10)).await;
    let of_a_second = commands(&redis).await as f64 / began.elapsed().as_secs_f64();
    let all = redis.commands().await;
    assert!(
        of_a_second <= 20.0,
        "{of_a_second} commands a second: {all:?}"
    );
    assert!(!all.contains_key("subscribe"), "it has subscribed: {all:?}");
    let pings = all.get("ping").copied().unwrap_or(0);
    assert!(pings < 10, "nobody asks for what it remembers: {all:?}");
}

#[tokio::test]
async fn a_stream_of_changes_is_written_to_redis_if_it_is_configured() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let config = format!("[store]\nstream = true\n{}", one_tool(&tool, ""));
    let gateway = Gateway::sharing(&redis.url(), &config).await;
    gateway.until_ready().await;
    let done = gateway.call(json!({ "n": 1 })).await.expect_ok();
    let streams = redis.ask(&["KEYS", "oncegate:*:stream"]).await;
    let streams: Vec<String> = ::redis::from_redis_value(streams).expect("names");
    let told = redis.ask(&["XRANGE", &streams[0], "-", "+"]).await;
    type Told = Vec<(String, std::collections::HashMap<String, String>)>;
    let told: Told = ::redis::from_redis_value(told).expect("entries");
    let id: uuid::Uuid = done.id().parse().expect("an id");
    let states: Vec<&str> = told.iter().map(|(_, entry)| &*entry["state"]).collect();
    assert_eq!(states, ["running", "succeeded"]);
    for (_, entry) in &told {
        assert_eq!(
            (&*entry["call_id"], &*entry["tool"]),
            (&*short(id.as_bytes()), "act")
        );
    }
    let entry: serde_json::Value = serde_json::from_str(&told[1].1["entry"]).expect("JSON");
    assert_eq!(entry["event"], "ended");
}

/// An unknown call that waits for an operator must not cost one command for each of 64 partitions a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_stays_unknown_costs_few_commands_of_a_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = at_default_pace(&redis, &tool).await;
    tool.then(Act::ExecuteThenDrop);
    gateway
        .call(json!({ "n": 1 }))
        .await
        .expect_problem("outcome-unknown");
    sleep(Duration::from_secs(1)).await;
    redis.ask(&["CONFIG", "RESETSTAT"]).await;
    let began = Instant::now();
    sleep(Duration::from_secs(5)).await;
    let of_a_second = commands(&redis).await as f64 / began.elapsed().as_secs_f64();
    assert!(of_a_second <= 60.0, "{of_a_second} commands a second");
}

/// One large read would delay the commands of all others.
#[tokio::test]
async fn a_page_of_large_calls_reads_little_more_of_a_redis_than_it_shows() {
    let (redis, _folder, store) = redis_and_store().await;
    let calls = (4 * PAGE_BYTES) >> 20;
    for n in 0..calls {
        let mut change = arrival(&format!("k{n}"), "", 0, ME);
        let args = format!("{{\"long\":\"{}\"}}", "x".repeat(1 << 20));
        Arc::make_mut(&mut change.record.intent).args = args.into();
        claimed(&store, &change).await;
    }
    let sent = async || {
        let info = redis.info("stats").await;
        let mut lines = info.lines();
        let bytes = lines.find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        bytes.expect("a line").parse::<usize>().expect("a number")
    };
    let before = sent().await;
    let page = store.list("shop", &Filter::default(), None, 500).await;
    let read = sent().await - before;
    assert!(
        page.expect("a page").found.len() < calls,
        "a page has a size"
    );
    assert!(read < 2 * PAGE_BYTES, "{read} bytes");
}
