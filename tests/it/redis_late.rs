//! What a gateway that has noticed a loss writes late, after a person has accepted it.

use serde_json::json;

use crate::redis::notices;
use crate::support::gateway::one_tool;
use crate::support::line::Line;
use crate::support::redis::Redis;
use crate::support::{Gateway, Tool, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accepted_store_is_not_closed_again_by_a_warning_that_comes_late() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let line = Line::to(redis.port).await;
    let config = one_tool(&tool, "");
    let slow = Gateway::sharing(&line.url(), &config).await;
    slow.until_ready().await;
    slow.call(json!({ "n": 0 })).await.expect_ok();
    // The word that closes a partition.
    line.hold(b"\r\nlost\r\n");
    redis.ask(&["FLUSHALL"]).await;
    until("it is about to close the store", async || line.holds() > 0).await;
    let other = Gateway::sharing(&redis.url(), &config).await;
    notices(&other, "accept-loss").await;
    other.accept_loss("it is gone").await.expect_ok();
    other.until_ready().await;
    line.release();
    until("the late words have come", async || line.holds() == 0).await;
    for n in 1..6 {
        // A busy machine may keep the store from answering in time; a store that is closed stays so.
        until("the call has run", async || {
            let answer = other.call(json!({ "n": n })).await;
            if answer.status != 200 {
                answer.clone().expect_problem("store-unavailable");
            }
            answer.status == 200
        })
        .await;
    }
    assert_eq!(other.reasons().await, "");
    assert_eq!(tool.effects(), 6);
}
