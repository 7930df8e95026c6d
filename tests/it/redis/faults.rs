//! A Redis that is killed, stopped, cut off, full or unfit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::redis::shared::{call, gateway, notices};
use crate::support::gateway::one_tool;
use crate::support::line::Line;
use crate::support::redis::Redis;
use crate::support::{Act, Gateway, Tool, times, until};

/// Sends calls until stopped, each twice with a key of its own. Returns the acknowledged results.
async fn load(
    gateways: Vec<Arc<Gateway>>,
    stop: Arc<AtomicBool>,
    counter: Arc<AtomicUsize>,
) -> Vec<(usize, String)> {
    let mut acknowledged = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let n = counter.fetch_add(1, Ordering::Relaxed);
        for gateway in [
            &gateways[n % gateways.len()],
            &gateways[(n + 1) % gateways.len()],
        ] {
            let answer = call(gateway, n).await;
            if answer.status == 200 {
                acknowledged.push((n, answer.result()));
            } else {
                let slug = answer.problem();
                // A call whose claim was confirmed too late is released as never sent.
                let honest = [
                    "store-unavailable",
                    "outcome-unknown",
                    "call-in-progress",
                    "tool-unreachable",
                ];
                let is_honest = honest.contains(&slug.as_str());
                assert!(is_honest, "{}", answer.text);
                sleep(Duration::from_millis(20)).await;
            }
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_redis_lose_no_acknowledged_success_and_double_no_effect() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.always(Act::Numbered);
    let gateways = vec![
        Arc::new(gateway(&redis, &tool, "").await),
        Arc::new(gateway(&redis, &tool, "").await),
    ];
    let (stop, counter) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        clients.spawn(load(gateways.clone(), stop.clone(), counter.clone()));
    }
    let kills = times(4);
    for round in 0..kills {
        let seen = tool.effects();
        until("calls have run", async || tool.effects() > seen + 20).await;
        sleep(Duration::from_millis(
            7 * (round as u64 * 20 / kills as u64),
        ))
        .await;
        redis.kill();
        redis.start_again().await;
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    for gateway in &gateways {
        gateway.until_ready().await;
    }
    assert!(
        acknowledged.len() > 20 * kills,
        "too little happened: {}",
        acknowledged.len()
    );
    for (n, result) in &acknowledged {
        let replay = call(&gateways[0], *n).await.expect_ok();
        assert_eq!(
            (&replay.result(), replay.at("/replayed")),
            (result, true.into())
        );
    }
    let doubled: Vec<_> = tool
        .effects_by_key()
        .into_iter()
        .filter(|(_, effects)| *effects > 1)
        .collect();
    assert!(doubled.is_empty(), "{doubled:?}");
    assert_eq!(
        gateways[0].metric("oncegate_store_lost_claims_total").await,
        0.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_during_a_five_second_stop_of_redis_succeeds_or_is_refused() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = Arc::new(gateway(&redis, &tool, "").await);
    call(&gateway, 0).await.expect_ok();
    redis.pause();
    let mut callers = JoinSet::new();
    for n in 1..=20 {
        let gateway = gateway.clone();
        callers.spawn(async move { (n, call(&gateway, n).await) });
    }
    sleep(Duration::from_secs(5)).await;
    redis.resume();
    for (_, answer) in callers.join_all().await {
        let slug = answer.problem();
        assert!(
            answer.status == 200 || slug == "store-unavailable",
            "{}",
            answer.text
        );
    }
    gateway.until_ready().await;
    // Calls whose claims Redis applied late are released as never sent, long before their lease is over.
    for n in 1..=20 {
        until("the call can be run", async || {
            call(&gateway, n).await.status == 200
        })
        .await;
    }
    assert_eq!(tool.effects(), 21, "each call ran once");
    assert!(tool.effects_by_key().values().all(|effects| *effects == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_before_the_answer_makes_no_second_effect() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let line = Line::to(redis.port).await;
    let gateway = Gateway::sharing(&line.url(), &one_tool(&tool, "")).await;
    let unanswered = ["claim", "replace"].map(|verb| {
        format!("oncegate_store_errors_total{{kind=\"ambiguous\",operation=\"{verb}\"}}")
    });
    let (mut doubted, mut n, mut were_both_cut) = (0, 0, false);
    // On a busy machine the connection is often cut a moment too early or too late.
    while n < 20 || !were_both_cut && n < 200 {
        gateway.until_ready().await;
        tool.then(Act::after_ms(20, Act::Numbered));
        // Cuts off the answer to a claim in one half of the cases, and the answer to an outcome in the other.
        let cutting = async {
            if n % 2 == 1 {
                until("the call runs", async || tool.requests() > n).await;
            }
            line.cut(true);
        };
        let (answer, ()) = tokio::join!(call(&gateway, n), cutting);
        let slug = answer.problem();
        assert!(
            ["", "outcome-unknown", "store-unavailable"].contains(&slug.as_str()),
            "{}",
            answer.text
        );
        doubted += usize::from(!slug.is_empty());
        until("the outcome is known", async || {
            call(&gateway, n).await.status == 200
        })
        .await;
        line.cut(false);
        n += 1;
        were_both_cut = gateway.metric(&unanswered[0]).await >= 1.0
            && gateway.metric(&unanswered[1]).await >= 1.0;
    }
    assert!(
        tool.effects_by_key().values().all(|effects| *effects == 1),
        "{doubted} answers were not successes"
    );
    assert_eq!(tool.effects(), n);
    assert!(
        were_both_cut,
        "the connection was never cut at the intended time"
    );
}

#[tokio::test]
async fn eviction_set_at_run_time_closes_the_gateway() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    let first = call(&gateway, 1).await.expect_ok();
    redis
        .ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    notices(&gateway, "maxmemory-policy is allkeys-lru").await;
    call(&gateway, 2).await.expect_problem("store-unavailable");
    assert_eq!(
        call(&gateway, 1).await.expect_ok().result(),
        first.result(),
        "a stored result is replayed"
    );
    assert_eq!(
        gateway
            .metric("oncegate_store_reasons{kind=\"reason\",reason=\"eviction\"}")
            .await,
        1.0
    );
    redis
        .ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])
        .await;
    gateway.until_ready().await;
    call(&gateway, 2).await.expect_ok();
    assert_eq!(tool.effects(), 2);
}

#[tokio::test]
async fn a_replica_is_not_used_as_a_store() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    call(&gateway, 1).await.expect_ok();
    let master = Redis::strict().await;
    redis
        .ask(&["REPLICAOF", "127.0.0.1", &master.port.to_string()])
        .await;
    call(&gateway, 2).await.expect_problem("store-unavailable");
    notices(&gateway, "not a master").await;
    assert_eq!(tool.effects(), 1);
}

#[tokio::test]
async fn each_weakness_of_a_redis_is_named_and_tolerated_only_where_less_is_demanded() {
    let tool = Tool::start().await;
    for (settings, words) in [
        (&[("appendonly", "no")][..], "appendonly is off"),
        (&[("appendfsync", "everysec")], "appendfsync is not always"),
        (
            &[("no-appendfsync-on-rewrite", "yes")],
            "during a rewrite nothing is synced",
        ),
    ] {
        let redis = Redis::with(settings).await;
        let strict = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
        notices(&strict, words).await;
        call(&strict, 1).await.expect_problem("store-unavailable");
        let relaxed = gateway(&redis, &tool, "[store]\ndurability = \"relaxed\"").await;
        let ready = relaxed.get("/readyz").await.expect_ok();
        assert_eq!(ready.at("/durability"), "relaxed");
        assert!(
            ready.at("/warnings").to_string().contains(words),
            "{}",
            ready.text
        );
        assert_eq!(
            relaxed
                .metric("oncegate_store_durability{class=\"relaxed\"}")
                .await,
            1.0
        );
        call(&relaxed, 1).await.expect_ok();
    }
    let replica_of = Redis::strict().await;
    let strict = gateway(&replica_of, &tool, "").await;
    let warnings = strict.get("/readyz").await.expect_ok().at("/warnings");
    let says_who = warnings.to_string().contains("the gateway is the user");
    assert!(says_who, "it may do more than it needs: {warnings}");
    let _replica = replica_of.replica().await;
    notices(&strict, "min-replicas-to-write is 0").await;
}

#[tokio::test]
async fn a_full_redis_takes_no_claim_and_loses_no_outcome() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    let first = call(&gateway, 0).await.expect_ok();
    tool.then(Act::after_ms(700, Act::Numbered));
    let running = call(&gateway, 1);
    let filling = async {
        until("the call runs", async || tool.requests() == 2).await;
        redis.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
        // The Redis itself refuses, before the gateway has inspected it.
        call(&gateway, 2).await.expect_problem("store-unavailable");
    };
    let (ran, ()) = tokio::join!(running, filling);
    ran.expect_ok();
    notices(&gateway, "from 80 % on").await;
    assert_eq!(call(&gateway, 0).await.expect_ok().result(), first.result());
    assert_eq!(call(&gateway, 1).await.expect_ok().at("/replayed"), true);
    redis.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    gateway.until_ready().await;
    call(&gateway, 2).await.expect_ok();
    assert_eq!(tool.effects(), 3);
}
