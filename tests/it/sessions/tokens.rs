//! The fencing tokens of one session rise, whatever happens to the gateway, the store and its clock.

use serde_json::json;

use crate::redis::shared::{gateway, notices};
use crate::support::redis::Redis;
use crate::support::{Answer, Gateway, Tool, client, until};

/// One session, and the tokens that it got so far.
struct Session {
    agent: reqwest::Client,
    tokens: Vec<u64>,
}

impl Session {
    fn begin() -> Self {
        Self {
            agent: client(),
            tokens: Vec::new(),
        }
    }

    /// Makes calls at this gateway. Each must get a token above all earlier ones.
    async fn rises(&mut self, gateway: &Gateway) {
        self.rises_at(&gateway.url("")).await;
    }

    /// Flushes Redis, accepts the loss at the other gateway, and makes calls there.
    async fn rises_after_a_flush(&mut self, redis: &Redis, one: &Gateway, other: &Gateway) {
        redis.ask(&["FLUSHALL"]).await;
        notices(one, "accept-loss").await;
        is_accepted(other).await;
        one.until_ready().await;
        self.rises(other).await;
    }

    async fn rises_at(&mut self, gateway: &str) {
        for _ in 0..3 {
            let answer = self.goes_on(gateway).await;
            let token = answer.at("/fencing").as_u64().expect("a token");
            assert!(
                self.tokens.last() < Some(&token),
                "{token} after {:?}",
                self.tokens
            );
            self.tokens.push(token);
        }
    }

    /// Makes a new call, as soon as the store is open.
    async fn goes_on(&self, gateway: &str) -> Answer {
        let body = json!({ "args": { "n": self.tokens.len() }, "session_id": "S" }).to_string();
        let mut answers = Vec::new();
        until("the store is open", async || {
            let request = self
                .agent
                .post(format!("{gateway}/v1/tools/act/calls"))
                .body(body.clone());
            let answer = Answer::to(request).await;
            let is_closed = answer.problem() == "store-unavailable";
            answers.push(answer);
            !is_closed
        })
        .await;
        answers.pop().expect("an answer").expect_ok()
    }
}

/// Waits until the gateway has noticed a loss, and accepts the loss.
async fn is_accepted(gateway: &Gateway) {
    notices(gateway, "accept-loss").await;
    gateway.accept_loss("a test").await.expect_ok();
}

#[tokio::test]
async fn tokens_rise_when_a_gateway_starts_again_over_its_file() {
    let (tool, mut session) = (Tool::start().await, Session::begin());
    let mut gateway = Gateway::with_tool(&tool, "").await;
    for _ in 0..3 {
        session.rises(&gateway).await;
        gateway = gateway.restart().await;
    }
    session.rises(&gateway).await;
}

#[tokio::test]
async fn tokens_rise_when_a_gateway_starts_again_over_redis() {
    let (redis, tool, mut session) = (Redis::strict().await, Tool::start().await, Session::begin());
    let (mut one, other) = (
        gateway(&redis, &tool, "").await,
        gateway(&redis, &tool, "").await,
    );
    for _ in 0..3 {
        session.rises(&one).await;
        session.rises(&other).await;
        one = one.restart().await;
    }
    session.rises(&one).await;
    session.rises(&other).await;
}

#[tokio::test]
async fn tokens_rise_when_redis_is_killed_and_starts_again() {
    let (mut redis, tool, mut session) =
        (Redis::strict().await, Tool::start().await, Session::begin());
    let gateway = gateway(&redis, &tool, "").await;
    for _ in 0..2 {
        session.rises(&gateway).await;
        redis.kill();
        redis.start_again().await;
    }
    session.rises(&gateway).await;
}

#[tokio::test]
async fn tokens_rise_after_a_flush_that_an_operator_accepts_on_redis() {
    let (redis, tool, mut session) = (Redis::strict().await, Tool::start().await, Session::begin());
    let gateway = gateway(&redis, &tool, "").await;
    session.rises(&gateway).await;
    redis.ask(&["FLUSHALL"]).await;
    is_accepted(&gateway).await;
    session.rises(&gateway).await;
}

#[tokio::test]
async fn tokens_rise_after_an_older_snapshot_that_an_operator_accepts_on_redis() {
    let (mut redis, tool, mut session) =
        (Redis::strict().await, Tool::start().await, Session::begin());
    let gateway = gateway(&redis, &tool, "").await;
    session.rises(&gateway).await;
    let snapshot = redis.snapshot();
    session.rises(&gateway).await;
    redis.restore(snapshot.path()).await;
    is_accepted(&gateway).await;
    session.rises(&gateway).await;
}

/// The clock is set back by one hour.
#[cfg(target_os = "linux")]
mod an_hour_back {
    use std::time::Duration;

    use oncegate::store::Health as _;
    use oncegate::store::redis::Redis as RedisStore;
    use redis::from_redis_value;

    use super::*;
    use crate::stores::contract::{ME, arrival, claimed, settings};
    use crate::support::binary::{Process, command, free_port};
    use crate::support::clock::Clock;
    use crate::support::gateway::one_tool;

    const RELAXED: &str = "[store]\ndurability = \"relaxed\"";

    /// The time of Redis in microseconds, the unit of tokens.
    async fn time(redis: &Redis) -> u64 {
        let (seconds, micros): (u64, u64) =
            from_redis_value(redis.ask(&["TIME"]).await).expect("a time");
        seconds * 1_000_000 + micros
    }

    /// Sets the clock of the running server back, and checks that the server sees the new time.
    async fn set_back(clock: &Clock, redis: &Redis) {
        let before = time(redis).await;
        clock.set_ahead(-3_600);
        let seconds = before.saturating_sub(time(redis).await) / 1_000_000;
        assert!((3_500..3_600).contains(&seconds), "set back by {seconds} s");
    }

    /// Checks that the newest token is above the clock, so that it comes from memory.
    async fn no_clock_has_made(session: &Session, redis: &Redis) {
        assert!(
            session.tokens.last() > Some(&time(redis).await),
            "{:?}",
            session.tokens
        );
    }

    #[tokio::test]
    async fn tokens_rise_by_the_key_alone_and_a_strict_store_is_closed_meanwhile_on_redis() {
        let (clock, tool, mut session) = (Clock::new(), Tool::start().await, Session::begin());
        let redis = Redis::strict_by(&clock).await;
        let strict = gateway(&redis, &tool, "").await;
        session.rises(&strict).await;
        set_back(&clock, &redis).await;

        notices(&strict, "ms away from this machine's").await;
        assert!(
            strict.reasons().await.contains("its clock is -3"),
            "{}",
            strict.reasons().await
        );
        strict
            .call(json!({ "n": "new" }))
            .await
            .expect_problem("store-unavailable");
        let replay = strict
            .post(
                "act",
                &json!({ "args": { "n": 0 }, "session_id": "S" }),
                &[],
            )
            .await;
        assert_eq!(replay.expect_ok().at("/fencing"), session.tokens[0]);

        // A gateway over a relaxed store goes on with a warning. It has no memory of the session.
        let relaxed = gateway(&redis, &tool, RELAXED).await;
        let ready = relaxed.get("/readyz").await.expect_ok();
        assert!(
            ready
                .at("/warnings")
                .to_string()
                .contains("its clock is -3"),
            "{}",
            ready.text
        );
        session.rises(&relaxed).await;
        no_clock_has_made(&session, &redis).await;

        clock.set_ahead(0);
        session.rises(&strict).await;
        // The relaxed gateway starts again, after the clock was set forward.
        session.rises(&relaxed.restart().await).await;
    }

    /// Tokens two days ahead would close the gateway for two days.
    #[tokio::test]
    async fn a_clock_that_was_two_days_ahead_for_a_moment_does_not_close_a_gateway_over_redis() {
        let (clock, tool, mut session) = (Clock::new(), Tool::start().await, Session::begin());
        let redis = Redis::strict_by(&clock).await;
        let gateway = gateway(&redis, &tool, RELAXED).await;
        session.rises(&gateway).await;
        clock.set_ahead(172_800);
        // Its lease would be over by that clock.
        gateway
            .call(json!({ "n": "new" }))
            .await
            .expect_problem("store-unavailable");
        clock.set_ahead(0);
        gateway.until_ready().await;
        session.rises(&gateway).await;
        let token = session.tokens.last().expect("a token");
        let ahead = token.saturating_sub(time(&redis).await);
        assert!(ahead < 60 * 1_000_000, "ahead by {ahead} µs");
    }

    #[tokio::test]
    async fn no_token_is_made_by_a_clock_of_redis_that_is_two_days_ahead() {
        let (clock, folder) = (Clock::new(), tempfile::tempdir().expect("a folder"));
        let redis = Redis::strict_by(&clock).await;
        let mut settings = settings(&redis.url(), folder.path());
        // It does not look at the clock again.
        settings.timings.redis_look_every = Duration::from_secs(3_600);
        let store = RedisStore::open(settings).await.expect("a store");
        until("the store is ready", async || {
            store.readiness().await.reasons.is_empty()
        })
        .await;
        let first = claimed(&store, &arrival("first", "S", 0, ME)).await;
        clock.set_ahead(172_800);
        let second = claimed(&store, &arrival("second", "S", 0, ME)).await;
        clock.set_ahead(0);
        assert!(second.fencing > first.fencing);
        let ahead = second.fencing.expect("a token");
        let ahead = ahead.saturating_sub(time(&redis).await);
        assert!(ahead < 60 * 1_000_000, "ahead by {ahead} µs");
    }

    #[tokio::test]
    async fn tokens_rise_by_the_gateways_memory_alone_when_redis_is_flushed_too() {
        let (clock, tool, mut session) = (Clock::new(), Tool::start().await, Session::begin());
        let redis = Redis::strict_by(&clock).await;
        let gateway = gateway(&redis, &tool, RELAXED).await;
        session.rises(&gateway).await;
        set_back(&clock, &redis).await;
        session.rises(&gateway).await;
        redis.ask(&["FLUSHALL"]).await;
        is_accepted(&gateway).await;
        session.rises(&gateway).await;
        no_clock_has_made(&session, &redis).await;
    }

    /// Gateway and Redis share one machine and its clock, so not even a strict store is closed.
    #[tokio::test]
    async fn tokens_rise_by_the_file_of_watermarks_alone_when_the_gateway_is_killed_too_on_redis() {
        let (clock, tool, mut session) = (Clock::new(), Tool::start().await, Session::begin());
        let redis = Redis::strict_by(&clock).await;
        let (folder, config, url) = (
            tempfile::tempdir().expect("a folder"),
            one_tool(&tool, ""),
            redis.url(),
        );
        let [library, file] = clock.environment();
        let environment = [library, file, ("ONCEGATE_STORE__URL", &*url)];
        let start =
            async || Process::start_in(folder.path(), free_port(), &config, &environment).await;
        let killed = start().await;
        session.rises_at(&killed.url("")).await;
        killed.kill();
        redis.ask(&["FLUSHALL"]).await;
        set_back(&clock, &redis).await;
        let gateway = start().await;
        let accept = [
            "store",
            "accept-loss",
            "--config",
            "oncegate.toml",
            "--reason",
            "a test",
        ];
        until("the loss can be accepted", async || {
            let mut accept = command(folder.path(), &accept);
            accept
                .envs(environment)
                .output()
                .expect("the binary runs")
                .status
                .success()
        })
        .await;
        session.rises_at(&gateway.url("")).await;
        no_clock_has_made(&session, &redis).await;
    }

    #[tokio::test]
    async fn tokens_rise_over_a_file_while_the_gateway_runs_and_when_it_starts_again() {
        let (clock, tool, mut session) = (Clock::new(), Tool::start().await, Session::begin());
        let (folder, config) = (tempfile::tempdir().expect("a folder"), one_tool(&tool, ""));
        let environment = clock.environment();
        let start =
            async || Process::start_in(folder.path(), free_port(), &config, &environment).await;
        let killed = start().await;
        session.rises_at(&killed.url("")).await;
        clock.set_ahead(-3_600);
        session.rises_at(&killed.url("")).await;
        killed.kill();
        session.rises_at(&start().await.url("")).await;
        assert_eq!(
            session.tokens[8] - session.tokens[2],
            6,
            "each the one before, and one: by no clock"
        );
    }

    #[tokio::test]
    async fn tokens_rise_at_another_gateway_when_redis_is_flushed_too() {
        let clock = Clock::new();
        let (redis, tool, mut session) = (
            Redis::strict_by(&clock).await,
            Tool::start().await,
            Session::begin(),
        );
        let relaxed = "[store]\ndurability = \"relaxed\"";
        let (one, other) = (
            gateway(&redis, &tool, relaxed).await,
            gateway(&redis, &tool, relaxed).await,
        );
        session.rises(&one).await;
        clock.set_ahead(-3_600);
        session.rises_after_a_flush(&redis, &one, &other).await;
    }
}

/// All clocks are right; only Redis has lost data.
#[tokio::test]
async fn tokens_rise_after_a_loss_at_another_gateway_than_the_one_that_drew_the_newest_on_redis() {
    let (redis, tool, mut session) = (Redis::strict().await, Tool::start().await, Session::begin());
    let (mut one, other) = (
        gateway(&redis, &tool, "").await,
        gateway(&redis, &tool, "").await,
    );
    session.rises(&one).await;
    // After the restart its tokens are ahead of the clock by the reserve of its file.
    one = one.restart().await;
    session.rises(&one).await;
    session.rises_after_a_flush(&redis, &one, &other).await;
}

/// Repeated restarts must not drive tokens away from the clock: one day ahead the gateway would be closed.
#[tokio::test]
async fn starting_again_takes_the_tokens_no_further_ahead_on_redis() {
    let (redis, tool, mut session) = (Redis::strict().await, Tool::start().await, Session::begin());
    let mut gateway = gateway(&redis, &tool, "").await;
    session.rises(&gateway).await;
    for _ in 0..5 {
        gateway = gateway.restart().await;
    }
    session.rises(&gateway).await;
    let ahead = session.tokens[3] - session.tokens[2];
    assert!(ahead < 15_000_000, "{} s ahead", ahead / 1_000_000);
}
