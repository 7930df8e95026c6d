//! The rate limits of tokens. The tests hold on a slow machine, too: until the time that a refusal names the token is
//! surely refused, and after that time it is surely admitted.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores![
    new_keys_are_bounded_and_repetitions_are_not,
    a_new_key_that_is_not_claimed_does_not_count,
];

/// A token whose text is `token-`, its name and its number.
fn token(name: &str, number: u8, more: &str) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(format!(
        "token-{name}-{number}"
    )));
    format!(
        "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"shop\"\nsha256 = \"{digest}\"\n\
         scopes = [\"call\", \"read\", \"admin\"]\n{more}\n"
    )
}

fn one_tool(tool: &Tool) -> String {
    format!("[tools.act]\nurl = \"{}\"\n", tool.url())
}

async fn call(gateway: &Gateway, token: &str, key: &str) -> Answer {
    let bearer = format!("Bearer token-{token}");
    let headers = [("authorization", bearer.as_str()), ("idempotency-key", key)];
    gateway
        .post("act", &json!({ "args": {}, "session_id": "S" }), &headers)
        .await
}

/// A refusal.
struct Refused {
    /// Until then further requests are surely refused.
    until: Instant,
    /// From then on requests are surely admitted.
    over: Instant,
}

impl Refused {
    fn new(asked: Instant, answer: Answer) -> Self {
        let answer = answer.expect_problem("rate-limited");
        // A request that was not read may repeat a call that had an effect.
        let was_read = answer.at("/detail").to_string().contains("new calls");
        let effect = if was_read { "none" } else { "unknown" };
        assert_eq!(
            (
                answer.status,
                answer.at("/effect"),
                answer.at("/key_action")
            ),
            (429, effect.into(), "reuse".into())
        );
        let ms = answer.at("/retry_after_ms").as_u64().expect("a number");
        assert!((1..=1_000).contains(&ms), "{}", answer.text);
        assert_eq!(answer.header("retry-after"), "1");
        Self {
            until: asked + Duration::from_millis(ms - 1),
            over: Instant::now() + Duration::from_millis(ms),
        }
    }

    /// Checks that an answer before that time is a refusal, too.
    #[track_caller]
    fn check(&self, answer: Answer) {
        if Instant::now() < self.until {
            answer.expect_problem("rate-limited");
        }
    }

    /// Waits until requests are admitted.
    async fn over(self) {
        sleep_until(self.over).await;
    }
}

/// Calls with new keys until one is refused for more than 500 ms. Returns how many were admitted.
async fn call_until_refused(gateway: &Gateway, token: &str, prefix: &str) -> (Refused, usize) {
    let mut admitted = 0;
    for n in 0..200 {
        let asked = Instant::now();
        let answer = call(gateway, token, &format!("{prefix}{n}")).await;
        if answer.status != 429 {
            answer.expect_ok();
            admitted += 1;
            continue;
        }
        let refused = Refused::new(asked, answer);
        if refused.until > Instant::now() + Duration::from_millis(500) {
            return (refused, admitted);
        }
    }
    panic!("nothing is refused");
}

/// A token with this limit, and a token without one.
fn slow_and_free(tool: &Tool, bound: &str) -> String {
    let tokens = [token("slow", 1, bound), token("free", 1, "")].concat();
    format!("{tokens}{}", one_tool(tool))
}

#[tokio::test]
async fn a_token_that_asks_too_fast_is_refused_before_its_request_is_read() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&slow_and_free(
        &tool,
        "rate = { per_second = 1, burst = 3 }",
    ))
    .await;
    let (refused, admitted) = call_until_refused(&gateway, "slow-1", "k").await;
    assert!(admitted >= 3, "{admitted}");
    // All these requests are invalid, but the limit refuses them before they are read.
    let bearer = [("authorization", "Bearer token-slow-1")];
    refused.check(
        gateway
            .post_text("nobody", "nonsense".into(), &bearer)
            .await,
    );
    for path in ["/v1/calls/nonsense", "/v1/sessions/S"] {
        let request = gateway
            .client
            .get(gateway.url(path))
            .bearer_auth("token-slow-1");
        refused.check(Answer::to(request).await);
    }
    call(&gateway, "free-1", "k").await.expect_ok();
    refused.over().await;
    call(&gateway, "slow-1", "again").await.expect_ok();
    assert_ne!(
        gateway
            .metric("oncegate_throttled_total{limit=\"rate\",token=\"slow\"}")
            .await,
        0.0
    );
    assert_eq!(
        gateway
            .metric("oncegate_throttled_total{limit=\"rate\",token=\"free\"}")
            .await,
        0.0
    );
    gateway.stop().await;
}

#[tokio::test]
async fn two_tokens_of_one_name_share_their_limits() {
    let tool = Tool::start().await;
    for timings in [
        "rate = { per_second = 1, burst = 4 }",
        "new_keys = { per_second = 1, burst = 4 }",
    ] {
        let tokens =
            token("twin", 1, timings) + &token("twin", 2, timings) + &token("other", 1, timings);
        let gateway = Gateway::start(&format!("{tokens}{}", one_tool(&tool))).await;
        let (refused, _) = call_until_refused(&gateway, "twin-1", "k").await;
        refused.check(call(&gateway, "twin-2", "new").await);
        call(&gateway, "other-1", "new").await.expect_ok();
        refused.over().await;
        call(&gateway, "twin-2", "newer").await.expect_ok();
        gateway.stop().await;
    }
}

async fn new_keys_are_bounded_and_repetitions_are_not(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores
        .gateway(&slow_and_free(
            &tool,
            "new_keys = { per_second = 1, burst = 2 }",
        ))
        .await;
    tool.then(Act::after_ms(3_000, Act::Numbered));
    let headers = [
        ("authorization", "Bearer token-free-1"),
        ("idempotency-key", "long"),
    ];
    let body = json!({ "args": {}, "session_id": "S" });
    let (running, ()) = tokio::join!(gateway.post("act", &body, &headers), async {
        until("it runs", async || tool.requests() == 1).await;
        let (_, admitted) = call_until_refused(&gateway, "slow-1", "k").await;
        assert!(admitted >= 2, "{admitted}");
        for _ in 0..20 {
            assert_eq!(
                call(&gateway, "slow-1", "k0")
                    .await
                    .expect_ok()
                    .at("/replayed"),
                true
            );
        }
        let joined = call(&gateway, "slow-1", "long").await.expect_ok();
        assert_eq!(
            (joined.at("/replayed"), joined.result().as_str()),
            (true.into(), "{ \"effect\": 0.0 }")
        );
        assert_eq!(tool.requests(), 1 + admitted, "nothing new was run");
        let (refused, _) = call_until_refused(&gateway, "slow-1", "l").await;
        refused.over().await;
        call(&gateway, "slow-1", "new").await.expect_ok();
    });
    running.expect_ok();
    let refused = gateway
        .metric("oncegate_arrivals_total{kind=\"refused\",tool=\"act\"}")
        .await;
    assert!(refused >= 2.0);
    let counted = gateway
        .metric("oncegate_throttled_total{limit=\"new_keys\",token=\"slow\"}")
        .await;
    assert_eq!(counted, refused);
}

async fn a_new_key_that_is_not_claimed_does_not_count(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", b"{}"));
    let gateway = stores
        .gateway(&slow_and_free(
            &tool,
            "new_keys = { per_second = 1, burst = 1 }",
        ))
        .await;
    let act = async |what: &str| {
        let request = gateway
            .client
            .post(gateway.url(&format!("/v1/sessions/S/{what}")));
        let request = request
            .bearer_auth("token-free-1")
            .body("{\"reason\":\"to see\"}");
        Answer::to(request).await.expect_ok();
    };
    act("freeze").await;
    for n in 0..5 {
        call(&gateway, "slow-1", &format!("frozen{n}"))
            .await
            .expect_problem("session-frozen");
    }
    act("thaw").await;
    call(&gateway, "slow-1", "k")
        .await
        .expect_problem("tool-rejected");
    // A failed call runs again under its own key, which does not count as new.
    call(&gateway, "slow-1", "k").await.expect_ok();
}

/// The first request runs the call for all that join it. Its limit must not refuse a token that joins.
#[tokio::test]
async fn a_token_is_not_refused_because_another_token_is_too_fast() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&slow_and_free(
        &tool,
        "new_keys = { per_second = 1, burst = 1 }",
    ))
    .await;
    let (mut refused, mut rounds) = (0, 0);
    // Either of the two may come first.
    while rounds < 20 || (refused == 0 && rounds < 1_000) {
        let key = format!("k{rounds}");
        let (slow, free) = tokio::join!(
            call(&gateway, "slow-1", &key),
            call(&gateway, "free-1", &key)
        );
        free.expect_ok();
        if slow.status != 200 {
            slow.expect_problem("rate-limited");
            refused += 1;
        }
        rounds += 1;
    }
    assert_eq!(tool.effects(), rounds);
    // Alone, the slow token is surely refused.
    until("it comes too fast", async || {
        rounds += 1;
        call(&gateway, "slow-1", &format!("k{rounds}"))
            .await
            .problem()
            == "rate-limited"
    })
    .await;
    gateway.stop().await;
}

/// A runtime with one worker answers `/healthz` while large bodies are read.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn large_bodies_do_not_delay_other_requests() {
    let tool = Tool::start().await;
    let gateway = std::sync::Arc::new(Gateway::start(&one_tool(&tool)).await);
    // Many members are the slowest to read: each name is compared with all before it.
    let large = |n: usize| {
        let members: Vec<String> = (0..50_000).map(|m| format!("\"m{n}x{m}\":{m}")).collect();
        format!("{{\"args\":{{{}}}}}", members.join(","))
    };
    let large: Vec<_> = (0..4)
        .map(|n| {
            let (gateway, body) = (gateway.clone(), large(n));
            tokio::spawn(async move { gateway.post_text("act", body, &[]).await })
        })
        .collect();
    let mut answers = 0;
    while !large.iter().all(tokio::task::JoinHandle::is_finished) {
        assert_eq!(gateway.get("/healthz").await.expect_ok().text, "ok\n");
        answers += 1;
    }
    for call in large {
        call.await.expect("no panic").expect_ok();
    }
    assert!(answers > 20, "only {answers} answers of /healthz");
}

#[tokio::test]
async fn a_body_of_too_many_values_is_refused_in_plain_words() {
    let tool = Tool::start().await;
    let config = format!("[server]\nmax_body = \"4MiB\"\n{}", one_tool(&tool));
    let gateway = Gateway::start(&config).await;
    let values = |count: usize| json!({ "list": vec![1; count] });
    let refused = gateway
        .call(values(100_000))
        .await
        .expect_problem("invalid-request");
    assert_eq!(refused.status, 400);
    assert!(
        refused
            .at("/detail")
            .to_string()
            .contains("more than 100000 values"),
        "{}",
        refused.text
    );
    gateway.call(values(99_998)).await.expect_ok();
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}
