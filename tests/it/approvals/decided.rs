//! Who decides, and what a decision does.

use serde_json::json;

use super::*;
use crate::support::gateway::SOON;
use crate::support::stores::{Stores, on_both_stores};

async fn neither_its_maker_nor_an_administrator_nor_another_tool_or_tenant_approves(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let asked = ask(&gateway, "k", json!({})).await;
    let body = json!({ "seen": seen(&gateway, "ann", &asked).await });
    for (by, expected) in [
        ("agent", "forbidden"),
        ("boss", "forbidden"),
        ("other", "unknown-call"),
        ("elsewhere", "unknown-call"),
    ] {
        for act in ["approve", "decline"] {
            let body = match act {
                "approve" => body.clone(),
                _ => json!({ "reason": "no" }),
            };
            let answer = post(&gateway, by, &asked, act, body).await;
            assert_eq!(answer.problem(), expected, "{by} {act}: {}", answer.text);
        }
    }
    for path in ["/v1/tools/act/calls", "/v1/tools/act/key"] {
        let answer = gateway.post_as("ann", path, &json!({ "args": {} })).await;
        answer.expect_problem("forbidden");
    }
    assert_eq!(state(&gateway, &asked).await, "proposed");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

async fn an_approval_that_comes_twice_counts_once_and_has_one_effect(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&config(&tool, "")).await;
    let (first, last) = (&gateways[0], &gateways[gateways.len() - 1]);
    let asked = ask(first, "k", json!({})).await;
    let body = json!({ "seen": seen(first, "ann", &asked).await });
    post(first, "ann", &asked, "approve", body.clone())
        .await
        .expect_ok();
    post(last, "ann", &asked, "approve", body.clone())
        .await
        .expect_ok();
    until_state(last, &asked, "succeeded").await;
    post(first, "ann", &asked, "approve", body)
        .await
        .expect_ok();
    assert_eq!(tool.effects(), 1);
    let events = events(first, &asked).await;
    assert_eq!(
        events.iter().filter(|event| *event == "approved").count(),
        1
    );
}

/// Requests that have waited since before do not answer for one that comes afterwards.
async fn a_request_that_comes_after_a_decision_is_told_of_it(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&config(&tool, "")).await;
    let (first, last) = (&gateways[0], &gateways[gateways.len() - 1]);
    for n in 0..8 {
        let (key, args) = (format!("k{n}"), json!({ "n": n }));
        let asked = ask(first, &key, args.clone()).await;
        let body = json!({ "args": args, "idempotency_key": key });
        let wait = ask_as(first, "wait=60", &body);
        let decide = async {
            // The other one waits by now, or joins the run of this one.
            ask(first, &key, args.clone()).await;
            let no = json!({ "reason": "no" });
            let declined = post(last, "ann", &asked, "decline", no).await;
            declined.expect_ok();
            ask(first, &key, args.clone()).await
        };
        let (waited, after) = tokio::join!(wait, decide);
        after.expect_problem("approval-declined");
        waited.expect_problem("approval-declined");
    }
    assert_eq!(tool.requests(), 0);
}

async fn of_an_approval_and_a_refusal_one_wins_and_the_tool_agrees(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&config(&tool, "")).await;
    let (first, last) = (&gateways[0], &gateways[gateways.len() - 1]);
    for n in 0..8 {
        let asked = ask(first, &format!("k{n}"), json!({ "n": n })).await;
        let body = json!({ "seen": seen(first, "ann", &asked).await });
        let no = json!({ "reason": "too much" });
        let before = tool.effects();
        let (yes, no) = tokio::join!(
            post(first, "ann", &asked, "approve", body),
            post(last, "bob", &asked, "decline", no),
        );
        // An approved call may still be declined before it begins; a begun one may not.
        let is_declined = no.status == 200;
        assert!(is_declined || yes.status == 200, "{} {}", yes.text, no.text);
        let expected = if is_declined { "failed" } else { "succeeded" };
        until_state(first, &asked, expected).await;
        let sent = usize::from(!is_declined);
        assert_eq!(tool.effects() - before, sent, "{} {}", yes.text, no.text);
    }
}

async fn two_approvals_are_of_two_names_and_of_the_same_view(stores: &Stores) {
    let tool = Tool::start().await;
    let rule = "when = [\"always\"]\napprovals = 2";
    // Ann has two tokens while one replaces the other.
    let second =
        token("second", "shop", "\"approve\"").replace("name = \"second\"", "name = \"ann\"");
    let config = config_with(&tool.url(), rule, "") + &second;
    let gateway = stores.gateway(&config).await;
    let asked = ask(&gateway, "k", json!({})).await;
    let before = seen(&gateway, "bob", &asked).await;
    approve(&gateway, "ann", &asked).await.expect_ok();
    assert_eq!(state(&gateway, &asked).await, "proposed");
    approve(&gateway, "second", &asked).await.expect_ok();
    assert_eq!(
        state(&gateway, &asked).await,
        "proposed",
        "one name counts once"
    );
    let outdated = post(
        &gateway,
        "bob",
        &asked,
        "approve",
        json!({ "seen": before }),
    )
    .await;
    outdated.expect_problem("not-confirmed");
    assert_eq!(tool.requests(), 0);
    approve(&gateway, "bob", &asked).await.expect_ok();
    until_state(&gateway, &asked, "succeeded").await;
    assert_eq!(tool.effects(), 1);
    let events = events(&gateway, &asked).await;
    assert!(events.contains(&"approval".to_owned()), "{events:?}");
    gateway.stop().await;
}

async fn a_declined_call_is_answered_with_what_the_approver_says_and_is_not_asked_about_again(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let asked = ask(&gateway, "k", json!({ "amount": 5 })).await;
    for (body, why) in [
        (json!({}), "no reason"),
        (
            json!({ "reason": "no", "tell": "x".repeat(501) }),
            "too long",
        ),
        (json!({ "reason": "no", "more": 1 }), "unknown member"),
    ] {
        let answer = post(&gateway, "ann", &asked, "decline", body).await;
        assert_eq!(answer.status, 400, "{why}: {}", answer.text);
    }
    let body = json!({ "reason": "too much for one day", "tell": "Ask for at most 3." });
    post(&gateway, "ann", &asked, "decline", body)
        .await
        .expect_ok();
    for _ in 0..3 {
        let again = ask(&gateway, "k", json!({ "amount": 5 })).await;
        let again = again.expect_problem("approval-declined");
        assert_eq!(
            (again.status, again.at("/key_action")),
            (409, json!("stop"))
        );
        assert!(again.text.contains("Ask for at most 3."), "{}", again.text);
        assert!(
            !again.text.contains("too much"),
            "the reason is for the books"
        );
    }
    let late = json!({ "seen": "0".repeat(64) });
    post(&gateway, "ann", &asked, "approve", late)
        .await
        .expect_problem("wrong-state");
    let open = get_as(&gateway, "ann", "/v1/approvals").await.expect_ok();
    assert_eq!(open.at("/approvals"), json!([]));
    let decided = get_as(&gateway, "ann", "/v1/approvals?state=decided")
        .await
        .expect_ok();
    assert_eq!(decided.at("/approvals/0/outcome"), json!("declined"));
    assert_eq!(tool.requests(), 0);
    let acts = get_as(&gateway, "boss", "/v1/audit").await.expect_ok();
    assert!(acts.text.contains("\"decline\"") && acts.text.contains("too much for one day"));
    gateway.stop().await;
}

async fn its_maker_takes_it_back_and_may_ask_again(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let asked = ask(&gateway, "k", json!({})).await;
    post(&gateway, "ann", &asked, "withdraw", json!({}))
        .await
        .expect_problem("unknown-call");
    let back = post(&gateway, "agent", &asked, "withdraw", json!({}))
        .await
        .expect_ok();
    assert_eq!(back.at("/outcome"), json!("withdrawn"));
    let old = json!({ "seen": "0".repeat(64) });
    post(&gateway, "ann", &asked, "approve", old)
        .await
        .expect_problem("wrong-state");
    let again = ask(&gateway, "k", json!({}))
        .await
        .expect_problem("approval-required");
    assert_eq!(again.id(), asked.id());
    approve(&gateway, "ann", &asked).await.expect_ok();
    until_state(&gateway, &asked, "succeeded").await;
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

async fn what_is_not_decided_in_time_lapses_and_cannot_be_approved_any_more(stores: &Stores) {
    let tool = Tool::start().await;
    let config = format!("{SOON}\n{}", config(&tool, ""));
    let gateway = stores.gateway(&config).await;
    let asked = ask(&gateway, "k", json!({})).await;
    let body = json!({ "seen": seen(&gateway, "ann", &asked).await });
    until_state(&gateway, &asked, "failed").await;
    post(&gateway, "ann", &asked, "approve", body.clone())
        .await
        .expect_problem("wrong-state");
    let shown = look(&gateway, "ann", &asked).await.expect_ok();
    assert_eq!(shown.at("/outcome"), json!("lapsed"));
    // The same request asks again. What was seen of the earlier ask does not count for this one.
    let again = ask(&gateway, "k", json!({})).await;
    assert_eq!(again.expect_problem("approval-required").id(), asked.id());
    post(&gateway, "ann", &asked, "approve", body)
        .await
        .expect_problem("not-confirmed");
    let events = events(&gateway, &asked).await;
    assert_eq!(events[..3], ["proposed", "lapsed", "asked_again"]);
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

on_both_stores!(
    what_is_not_decided_in_time_lapses_and_cannot_be_approved_any_more,
    neither_its_maker_nor_an_administrator_nor_another_tool_or_tenant_approves,
    an_approval_that_comes_twice_counts_once_and_has_one_effect,
    a_request_that_comes_after_a_decision_is_told_of_it,
    of_an_approval_and_a_refusal_one_wins_and_the_tool_agrees,
    two_approvals_are_of_two_names_and_of_the_same_view,
    a_declined_call_is_answered_with_what_the_approver_says_and_is_not_asked_about_again,
    its_maker_takes_it_back_and_may_ask_again,
);
