//! What tenants, and the tokens of a tenant, leave to each other.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

/// What is held back by a test ends when the test says so, and not before.
const PATIENT: &str = "timeout = \"60s\"\ndeadline = \"60s\"\nretry = { attempts = 1 }";

/// Tokens that are named as they are written; of `tenant/name`.
fn tokens(all: &[&str]) -> String {
    let token = |token: &&str| {
        let (tenant, digest) = (
            token.split('/').next().expect("a tenant"),
            hex::encode(Sha256::digest(token)),
        );
        format!(
            "[[auth.tokens]]\nname = \"{token}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\n\
             scopes = [\"call\", \"read\"]\n"
        )
    };
    all.iter().map(token).collect()
}

fn post(gateway: &Gateway, token: &str, tool: &str, body: &Value) -> JoinHandle<Answer> {
    let request = client().post(gateway.url(&format!("/v1/tools/{tool}/calls")));
    let request = request.bearer_auth(token).body(body.to_string());
    tokio::spawn(async move { Answer::to(request).await })
}

async fn call(gateway: &Gateway, token: &str, tool: &str, key: &str) -> Answer {
    post(
        gateway,
        token,
        tool,
        &json!({ "args": {}, "idempotency_key": key }),
    )
    .await
    .expect("no panic")
}

/// Begins calls of a token, all under keys of its own.
fn begin(gateway: &Gateway, token: &str, tool: &str, calls: usize) -> Vec<JoinHandle<Answer>> {
    let begun = (0..calls).map(|n| {
        let body = json!({ "args": {}, "session_id": format!("{token} {n}"), "idempotency_key": format!("{token}-{n}") });
        post(gateway, token, tool, &body)
    });
    begun.collect()
}

/// How many of them have been refused by now.
fn refused(calls: &[JoinHandle<Answer>]) -> usize {
    calls.iter().filter(|call| call.is_finished()).count()
}

/// Slow calls of one tenant keep no other tenant from calling, and those of one token no other token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_calls_of_one_tenant_leave_places_for_all_others() {
    let (slow, quick) = (Tool::start().await, Tool::start().await);
    let (hold, held) = Act::held(Act::Numbered);
    slow.always(held);
    let config = format!(
        "[server]\nmax_running = 32\n{}[tools.slow]\nurl = \"{}\"\n{PATIENT}\n[tools.quick]\nurl = \"{}\"\n",
        tokens(&["shop/a", "shop/b", "bank/c", "mill/d"]),
        slow.url(),
        quick.url()
    );
    let gateway = Gateway::start(&config).await;
    let calls = begin(&gateway, "shop/a", "slow", 60);
    until("no more of them are let in", async || {
        slow.requests() + refused(&calls) == 60
    })
    .await;
    assert_eq!(slow.requests(), 24, "three quarters of the places");
    for (n, token) in ["shop/b", "bank/c", "mill/d"]
        .into_iter()
        .cycle()
        .take(18)
        .enumerate()
    {
        call(&gateway, token, "quick", &format!("quick{n}"))
            .await
            .expect_ok();
    }
    let others = begin(&gateway, "shop/b", "slow", 10);
    until("no more of them are let in", async || refused(&others) == 9).await;
    for n in 0..6 {
        call(&gateway, "bank/c", "quick", &format!("more{n}"))
            .await
            .expect_ok();
    }
    let mut refusals = Vec::new();
    for call in calls
        .into_iter()
        .chain(others)
        .filter(JoinHandle::is_finished)
    {
        refusals.push(call.await.expect("no panic").expect_problem("rate-limited"));
    }
    assert_eq!(refusals.len(), 60 - 24 + 9);
    drop(hold);
    until("places are free again", async || {
        call(&gateway, "shop/a", "quick", "at-last").await.status == 200
    })
    .await;
    gateway.stop().await;
}

/// The same for those who wait for a call that runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_of_one_tenant_who_wait_leave_places_for_those_of_another() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.always(held);
    let config = format!(
        "[server]\nmax_waiting = 16\njoin_wait = \"60s\"\n{}{}",
        tokens(&["shop/a", "bank/c"]),
        one_tool(&tool, PATIENT)
    );
    let gateway = Gateway::start(&config).await;
    let body = json!({ "args": {}, "idempotency_key": "k" });
    let firsts = ["shop/a", "bank/c"].map(|token| post(&gateway, token, "act", &body));
    until("both run", async || tool.requests() == 2).await;
    let waiting: Vec<_> = (0..40)
        .map(|_| post(&gateway, "shop/a", "act", &body))
        .collect();
    until("the others are told", async || refused(&waiting) == 40 - 12).await;
    let other = post(&gateway, "bank/c", "act", &body);
    // Who has no place is told at once.
    let more = post(&gateway, "shop/a", "act", &body)
        .await
        .expect("no panic");
    more.expect_problem("call-in-progress");
    drop(hold);
    assert_eq!(
        other.await.expect("no panic").expect_ok().at("/replayed"),
        true,
        "it has waited"
    );
    for first in firsts {
        first.await.expect("no panic").expect_ok();
    }
    let mut told = Vec::new();
    for call in waiting {
        told.push(call.await.expect("no panic").status);
    }
    told.sort_unstable();
    assert_eq!(told, [vec![200; 12], vec![409; 28]].concat());
    gateway.stop().await;
}

/// The line of a session has a hundred places.
async fn one_token_does_not_fill_the_line_of_a_session(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let rules = format!("session = \"exclusive\"\nsession_wait = \"60s\"\n{PATIENT}");
    let config = format!(
        "{}{}",
        tokens(&["shop/a", "shop/b"]),
        one_tool(&tool, &rules)
    );
    let gateway = stores.gateway(&config).await;
    let of = |token: &str, n: usize| {
        let body =
            json!({ "args": {}, "session_id": "S", "idempotency_key": format!("{token}-{n}") });
        post(&gateway, token, "act", &body)
    };
    let first = of("shop/a", 0);
    until("it runs", async || tool.requests() == 1).await;
    let many: Vec<_> = (1..=110).map(|n| of("shop/a", n)).collect();
    let waiting = async || {
        let session = client()
            .get(gateway.url("/v1/sessions/S"))
            .bearer_auth("shop/a")
            .send()
            .await;
        let session = Answer::read(session.expect("an answer")).await.expect_ok();
        session.at("/waiting").as_array().expect("a list").len()
    };
    until("all of them stand or were told", async || {
        waiting().await + refused(&many) == 110
    })
    .await;
    assert_eq!(waiting().await, 88);
    let other = of("shop/b", 0);
    until("the other token has a place", async || {
        waiting().await == 89
    })
    .await;
    assert!(!other.is_finished());
    drop(hold);
    first.await.expect("no panic").expect_ok();
    for call in many.into_iter().filter(JoinHandle::is_finished) {
        let told = call.await.expect("no panic");
        assert!(
            told.status == 200 || told.problem() == "session-busy",
            "{}",
            told.text
        );
    }
    other.await.expect("no panic").expect_ok();
}

on_both_stores! {
    one_token_does_not_fill_the_line_of_a_session,
}
