//! The acceptance of a loss of Redis takes longer than a request: it answers soon, and goes on by itself.

use std::time::Duration;

use oncegate::core::timings::Timings;
use serde_json::json;
use tokio::time::Instant;

use crate::redis::shared::{call, notices};
use crate::support::gateway::one_tool;
use crate::support::redis::Redis;
use crate::support::timings::brisk;
use crate::support::{Answer, Gateway, Tool, at_its_end, until};

/// How long other gateways may still claim by an earlier secret, which an acceptance waits for.
const WAIT: Duration = Duration::from_secs(6);

/// A gateway whose Redis was emptied, and who has noticed.
async fn emptied(redis: &Redis, tool: &Tool) -> Gateway {
    let timings = Timings {
        key_schemes_max_age: WAIT,
        ..brisk()
    };
    let gateway = Gateway::at_pace(timings, &redis.url(), &one_tool(tool, "")).await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
    redis.ask(&["FLUSHALL"]).await;
    notices(&gateway, "accept-loss").await;
    gateway
}

async fn accept(gateway: &Gateway) -> Answer {
    let body = json!({ "reason": "it was emptied" });
    gateway.post_to("/v1/store/accept-loss", &body).await
}

/// Says so at once, as often as it is asked, and the readiness says what it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepting_an_emptied_redis_answers_within_two_seconds_that_it_is_under_way_and_then_with_its_result()
 {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = emptied(&redis, &tool).await;
    let began = Instant::now();
    for _ in 0..2 {
        let asked = Instant::now();
        // Refused if the inspection has written something at the same moment.
        let mut answer = accept(&gateway).await;
        while answer.text.contains("try again") {
            answer = accept(&gateway).await;
        }
        let took = asked.elapsed();
        assert_eq!(answer.status, 202, "{}", answer.text);
        assert_eq!(
            (answer.at("/accepted"), answer.at("/state")),
            (false.into(), "accepting".into())
        );
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
    let reasons = gateway.reasons().await;
    assert!(
        reasons.contains("is being accepted") && reasons.contains("6 s"),
        "{reasons}"
    );
    call(&gateway, 2).await.expect_problem("store-unavailable");

    let accepted = at_its_end(async || accept(&gateway).await)
        .await
        .expect_ok();
    assert!(began.elapsed() >= WAIT, "no wait is shorter than before");
    assert_eq!(
        (accepted.at("/accepted"), accepted.at("/state")),
        (true.into(), "accepted".into())
    );
    gateway.until_ready().await;
    call(&gateway, 2).await.expect_ok();
    // The result was heard. Nothing is accepted that is not lost.
    accept(&gateway).await.expect_problem("wrong-state");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepting_an_emptied_redis_goes_on_when_the_client_hangs_up_and_the_next_request_hears_the_result()
 {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = emptied(&redis, &tool).await;
    until("the acceptance is under way", async || {
        let request = gateway
            .client
            .post(gateway.url("/v1/store/accept-loss"))
            .timeout(Duration::from_millis(300))
            .body(json!({ "reason": "it was emptied" }).to_string());
        let hung_up = request.send().await.is_err();
        hung_up && gateway.reasons().await.contains("is being accepted")
    })
    .await;
    gateway.until_ready().await;
    let accepted = accept(&gateway).await.expect_ok();
    assert_eq!(accepted.at("/accepted"), true);
    accept(&gateway).await.expect_problem("wrong-state");
}
