//! What an agent is told while its call waits, and what reaches the tool.

use serde_json::json;
use tokio::task::JoinSet;

use super::*;
use crate::support::stores::{Stores, on_both_stores};

async fn a_call_reaches_its_tool_only_after_it_was_approved_and_then_once_as_it_was_shown(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let asked = ask(&gateway, "k", json!({ "amount": 5, "to": "ann" })).await;
    let asked = asked.expect_problem("approval-required");
    assert_eq!((asked.status, asked.at("/effect")), (409, json!("none")));
    assert_eq!(asked.at("/key_action"), json!("wait"));
    assert_eq!(asked.at("/retry_after_ms"), json!(10_000));
    assert!(asked.at("/approval/expires_at").is_string());
    for _ in 0..3 {
        let again = ask(&gateway, "k", json!({ "amount": 5, "to": "ann" })).await;
        assert_eq!(again.expect_problem("approval-required").id(), asked.id());
    }
    assert_eq!(tool.requests(), 0, "it is not approved");

    let shown = look(&gateway, "ann", &asked).await.expect_ok();
    assert_eq!(
        shown.at("/why/0"),
        json!("every call of this tool needs approval")
    );
    assert_eq!(shown.at("/made_by"), json!("agent"));
    assert_eq!(shown.at("/request/method"), json!("POST"));
    let approved = approve(&gateway, "ann", &asked).await.expect_ok();
    assert_eq!(approved.at("/outcome"), json!("approved"));

    let body = json!({ "args": { "amount": 5, "to": "ann" }, "idempotency_key": "k" });
    let answer = ask_as(&gateway, "wait=30", &body).await.expect_ok();
    assert_eq!(answer.id(), asked.id());
    let executed = tool.executed();
    assert_eq!(executed.len(), 1);
    assert_eq!(
        shown.at("/request/body"),
        json!(executed[0].body),
        "what was shown is what was sent"
    );
    let events = events(&gateway, &asked).await;
    assert_eq!(events, ["proposed", "approved", "begun", "ended"]);
    assert!(answer.at("/fencing").is_u64(), "it was drawn at its begin");
    gateway.stop().await;
}

async fn ten_identical_requests_make_one_proposal_and_all_get_one_result(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&config(&tool, "")).await;
    let body = json!({ "args": { "n": 1 }, "idempotency_key": "k" });
    let mut waiting = JoinSet::new();
    for n in 0..10 {
        let gateway = &gateways[n % gateways.len()];
        let request = gateway
            .client
            .post(gateway.url("/v1/tools/act/calls"))
            .bearer_auth("agent")
            .header("prefer", "wait=60")
            .body(body.to_string());
        waiting.spawn(Answer::to(request));
    }
    let first = &gateways[0];
    until("it is asked", async || {
        let open = get_as(first, "ann", "/v1/approvals").await.expect_ok();
        open.at("/approvals/0").is_object()
    })
    .await;
    let open = get_as(first, "ann", "/v1/approvals").await;
    assert_eq!(open.at("/approvals").as_array().expect("a list").len(), 1);
    let asked = ask(first, "k", json!({ "n": 1 })).await;
    approve(first, "ann", &asked).await.expect_ok();
    let answers = waiting.join_all().await;
    let results: Vec<String> = answers
        .into_iter()
        .map(|one| one.expect_ok().result())
        .collect();
    assert!(results.iter().all(|one| *one == results[0]), "{results:?}");
    assert_eq!((results.len(), tool.effects()), (10, 1));
}

async fn other_arguments_under_its_key_are_refused_while_it_waits(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let asked = ask(&gateway, "k", json!({ "amount": 5 })).await;
    for _ in 0..2 {
        let other = ask(&gateway, "k", json!({ "amount": 50 })).await;
        assert_eq!(other.expect_problem("key-reused").status, 422);
        if state(&gateway, &asked).await == "proposed" {
            approve(&gateway, "ann", &asked).await.expect_ok();
        }
    }
    until_state(&gateway, &asked, "succeeded").await;
    let executed = tool.executed();
    assert_eq!(executed.len(), 1);
    assert_eq!(executed[0].body, r#"{"amount":5}"#);
    gateway.stop().await;
}

async fn what_cannot_be_judged_asks_or_is_refused_and_never_runs(stores: &Stores) {
    let tool = Tool::start().await;
    let rule = "when = [{ pointer = \"/amount\", above = 100 }]";
    let gateway = stores.gateway(&config_with(&tool.url(), rule, "")).await;
    for (args, expected) in [
        (r#"{"amount":101}"#, "approval-required"),
        (r#"{}"#, "approval-required"),
        (r#"{"amount":null}"#, "approval-required"),
        (r#"{"amount":"5"}"#, "approval-required"),
        (r#"{"amount":[5]}"#, "approval-required"),
        (r#"{"amount":100.5}"#, "approval-required"),
        (r#"{"amount":1e999}"#, "invalid-request"),
        (r#"{"amount":9007199254740993}"#, "invalid-request"),
    ] {
        let request = gateway.client.post(gateway.url("/v1/tools/act/calls"));
        let request = request
            .bearer_auth("agent")
            .header("prefer", "wait=0")
            .header("idempotency-key", hex::encode(args));
        let answer = Answer::to(request.body(format!("{{\"args\":{args}}}"))).await;
        assert_eq!(answer.problem(), expected, "{args}: {}", answer.text);
    }
    assert_eq!(tool.requests(), 0);
    let small = json!({ "args": { "amount": 100 }, "idempotency_key": "small" });
    ask_as(&gateway, "wait=30", &small).await.expect_ok();
    assert_eq!(tool.effects(), 1, "what surely needs no approval runs");
    gateway.stop().await;
}

async fn respond_async_says_that_it_waits_and_too_many_are_refused(stores: &Stores) {
    let tool = Tool::start().await;
    let more = format!(
        "{}\n[approvals]\nmax_open = 2\nmax_open_per_session = 1\n",
        config(&tool, "")
    );
    let gateway = stores.gateway(&more).await;
    let body = |key: &str| json!({ "args": {}, "idempotency_key": key, "session_id": "S" });
    let accepted = ask_as(&gateway, "respond-async", &body("a")).await;
    assert_eq!(
        (accepted.status, accepted.at("/status")),
        (202, json!("proposed"))
    );
    assert_eq!(accepted.header("gateway-outcome"), "not-executed");
    let refused = ask_as(&gateway, "wait=0", &body("b")).await;
    let refused = refused.expect_problem("rate-limited");
    assert_eq!(
        (refused.status, refused.at("/effect")),
        (429, json!("none"))
    );
    ask(&gateway, "c", json!({}))
        .await
        .expect_problem("approval-required");
    ask(&gateway, "d", json!({}))
        .await
        .expect_problem("rate-limited");
    ask_as(&gateway, "wait=0", &body("a"))
        .await
        .expect_problem("approval-required");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

on_both_stores!(
    a_call_reaches_its_tool_only_after_it_was_approved_and_then_once_as_it_was_shown,
    ten_identical_requests_make_one_proposal_and_all_get_one_result,
    other_arguments_under_its_key_are_refused_while_it_waits,
    what_cannot_be_judged_asks_or_is_refused_and_never_runs,
    respond_async_says_that_it_waits_and_too_many_are_refused,
);
