//! What a caller can learn, or hold up, by way of the store.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::bounds::attacked::token;
use crate::support::gateway::one_tool;
use crate::support::redis::Redis;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores![another_tenants_call_costs_the_store_as_much_as_one_that_is_not_there,];

async fn as_tenant(gateway: &Gateway, tenant: &str, body: String) -> Answer {
    let bearer = format!("Bearer {tenant}");
    gateway
        .post_text("act", body, &[("authorization", &bearer)])
        .await
}

async fn another_tenants_call_costs_the_store_as_much_as_one_that_is_not_there(stores: &Stores) {
    let tool = Tool::start().await;
    let config = token("shop") + &token("bank") + &one_tool(&tool, "");
    let gateway = stores.gateway(&config).await;
    let body = json!({ "args": { "n": 1 } }).to_string();
    let made = as_tenant(&gateway, "shop", body).await.expect_ok();
    let there = made.id();
    // The same but for the last digit of its random part.
    let digit = if there.contains('7') { '8' } else { '7' };
    let (head, tail) = there.split_at(there.len() - 6);
    let missing = format!("{head}{digit}{}", &tail[1..]);
    let questions = async || {
        let mut counts = Vec::new();
        for verb in ["maker", "load", "history", "holders", "list"] {
            let of =
                format!("oncegate_store_operation_duration_seconds_count{{operation=\"{verb}\"}}");
            counts.push(gateway.metric(&of).await);
        }
        counts
    };
    let cost = async |tenant: &str, id: &str| {
        let before = questions().await;
        let url = gateway.url(&format!("/v1/calls/{id}"));
        let request = gateway.client.get(url).bearer_auth(tenant).send();
        let answer = Answer::read(request.await.expect("an answer")).await;
        let after = questions().await;
        let asked: Vec<f64> = after
            .iter()
            .zip(before)
            .map(|(now, was)| now - was)
            .collect();
        (answer.status, asked)
    };
    let foreign = cost("bank", &there).await;
    assert_eq!(foreign, cost("bank", &missing).await);
    assert_eq!(foreign, (404, vec![1.0, 0.0, 0.0, 0.0, 0.0]));
    assert_eq!(
        cost("shop", &there).await,
        (200, vec![1.0, 0.0, 1.0, 0.0, 0.0])
    );
    gateway.stop().await;
}

/// They wait behind others that are looked up without memory for their results, which takes as long as the store does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_requests_are_refused_clearly_while_redis_does_not_answer() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (hold, held) = Act::held(Act::Numbered);
    tool.always(held);
    let tokens = token("shop") + &token("bank");
    let config = format!(
        "[server]\nmax_memory = \"16MiB\"\n{tokens}{}",
        one_tool(&tool, "")
    );
    let gateway = std::sync::Arc::new(Gateway::sharing(&redis.url(), &config).await);
    gateway.until_ready().await;
    let call = |n: usize| {
        let gateway = gateway.clone();
        let body = json!({ "args": { "n": n } }).to_string();
        tokio::spawn(async move { as_tenant(&gateway, "shop", body).await })
    };
    let mut running = Vec::new();
    // Until the tenant has no memory left.
    loop {
        let (asked, n) = (call(running.len()), running.len());
        until("it is at the tool, or refused", async || {
            tool.requests() > n || asked.is_finished()
        })
        .await;
        if tool.requests() == n {
            break;
        }
        running.push(asked);
    }
    redis.pause();
    let waiting: Vec<_> = (100..160).map(call).collect();
    until("the first of them is refused", async || {
        waiting.iter().any(tokio::task::JoinHandle::is_finished)
    })
    .await;
    let large = format!("{{\"args\":{{\"a\":\"{}\",\"a\":1}}}}", "a".repeat(100_000));
    let answer = timeout(Duration::from_secs(5), as_tenant(&gateway, "bank", large)).await;
    let answer = answer.expect("an answer at once, for it is wrong by itself");
    answer.expect_problem("invalid-request");
    for asked in waiting {
        let answer = asked.await.expect("no panic");
        assert!(matches!(answer.status, 429 | 503), "{}", answer.text);
    }
    redis.resume();
    drop(hold);
    for asked in running {
        asked.await.expect("no panic").expect_ok();
    }
}
