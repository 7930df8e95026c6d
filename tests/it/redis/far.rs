//! A Redis that is far away: every question takes a tenth of a second.

use std::time::Duration;

use oncegate::core::timings::Timings;
use serde_json::json;
use tokio::time::Instant;

use crate::support::far::Far;
use crate::support::gateway::one_tool;
use crate::support::redis::Redis;
use crate::support::{Gateway, Tool};

/// How long a question takes to Redis, and the answer takes back.
const EACH_WAY: Duration = Duration::from_millis(50);

/// How soon a gateway is ready on a machine without other work: beside the second that other gateways have to check a Redis
/// for lost data. A question after the other took ten.
const READY: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_over_a_redis_that_is_a_tenth_of_a_second_away_is_ready_within_three_seconds() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let far = Far::from(redis.port, EACH_WAY).await;
    let config = one_tool(&tool, "");
    let timings = Timings {
        redis_others_look: Duration::from_secs(1),
        ..Timings::default()
    };
    for which in ["an empty Redis", "a Redis in use"] {
        let (began, turns) = (Instant::now(), far.turns());
        let gateway = Gateway::at_pace(timings, &far.url(), &config).await;
        gateway.until_ready().await;
        let (took, turns) = (began.elapsed(), far.turns() - turns);
        assert!(took <= 2 * READY, "{which}: {took:?}, {turns} pieces sent");
        gateway.call(json!({ "of": which })).await.expect_ok();
        gateway.stop().await;
    }
}
