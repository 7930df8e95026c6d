//! How fast a token may be. What is claimed holds however slow the machine is: a token is surely refused
//! until the time that an earlier refusal has named, and surely let in after it.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores![
    new_keys_are_bounded_and_repetitions_are_not,
    a_new_key_that_is_not_claimed_is_given_back,
];

/// A token whose text is `token-` and its name and number.
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
    /// Until when there surely are more.
    until: Instant,
    /// From when on there surely are none.
    over: Instant,
}

impl Refused {
    fn new(asked: Instant, answer: Answer) -> Self {
        let answer = answer.expect_problem("rate-limited");
        // A request that is not looked at may not be the first.
        let is_looked_at = answer.at("/detail").to_string().contains("new calls");
        let effect = if is_looked_at { "none" } else { "unknown" };
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

    /// What came in time is refused, too.
    #[track_caller]
    fn check(&self, answer: Answer) {
        if Instant::now() < self.until {
            answer.expect_problem("rate-limited");
        }
    }

    /// Waits as long as it says.
    async fn over(self) {
        sleep_until(self.over).await;
    }
}

/// Calls with new keys until one is refused for a good while, and answers with how many were let in.
async fn call_until_refused(gateway: &Gateway, token: &str, prefix: &str) -> (Refused, usize) {
    let mut let_in = 0;
    for n in 0..200 {
        let asked = Instant::now();
        let answer = call(gateway, token, &format!("{prefix}{n}")).await;
        if answer.status != 429 {
            answer.expect_ok();
            let_in += 1;
            continue;
        }
        let refused = Refused::new(asked, answer);
        if refused.until > Instant::now() + Duration::from_millis(500) {
            return (refused, let_in);
        }
    }
    panic!("nothing is refused");
}

/// A token that has this bound, and one that has none.
fn slow_and_free(tool: &Tool, bound: &str) -> String {
    let tokens = [token("slow", 1, bound), token("free", 1, "")].concat();
    format!("{tokens}{}", one_tool(tool))
}

#[tokio::test]
async fn a_token_that_asks_too_fast_is_refused_before_anything_of_it_is_looked_at() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&slow_and_free(
        &tool,
        "rate = { per_second = 1, burst = 3 }",
    ))
    .await;
    let (refused, let_in) = call_until_refused(&gateway, "slow-1", "k").await;
    assert!(let_in >= 3, "{let_in}");
    // Nothing of these is good; but that is found out only when there is time for it.
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
async fn two_tokens_of_one_name_share_what_they_may_do() {
    let tool = Tool::start().await;
    for pace in [
        "rate = { per_second = 1, burst = 4 }",
        "new_keys = { per_second = 1, burst = 4 }",
    ] {
        let tokens = token("twin", 1, pace) + &token("twin", 2, pace) + &token("other", 1, pace);
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
        let (_, let_in) = call_until_refused(&gateway, "slow-1", "k").await;
        assert!(let_in >= 2, "{let_in}");
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
        assert_eq!(tool.requests(), 1 + let_in, "nothing new was run");
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

async fn a_new_key_that_is_not_claimed_is_given_back(stores: &Stores) {
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
    // A call that has failed runs again under its own key: that is no new one.
    call(&gateway, "slow-1", "k").await.expect_ok();
}

/// The first arrival runs the call for all that join it; a token that may claim must not be refused for another's bound.
#[tokio::test]
async fn nobody_is_refused_because_another_token_is_too_fast() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&slow_and_free(
        &tool,
        "new_keys = { per_second = 1, burst = 1 }",
    ))
    .await;
    let (mut refused, mut rounds) = (0, 0);
    // Which of the two comes first is up to the machine.
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
    // One that comes alone is refused in any case.
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

/// While some are read, everything else goes on: on one worker a look at its health comes between.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn large_bodies_do_not_hold_up_everything_else() {
    let tool = Tool::start().await;
    let gateway = std::sync::Arc::new(Gateway::start(&one_tool(&tool)).await);
    // Sorted members are the slowest to read: a name is looked for among all before it.
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
    let mut looks = 0;
    while !large.iter().all(tokio::task::JoinHandle::is_finished) {
        assert_eq!(gateway.get("/healthz").await.expect_ok().text, "ok\n");
        looks += 1;
    }
    for call in large {
        call.await.expect("no panic").expect_ok();
    }
    assert!(looks > 20, "{looks}: it was held up");
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
