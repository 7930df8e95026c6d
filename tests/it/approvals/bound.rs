//! What an approval binds, and what voids it.

use serde_json::json;

use super::*;
use crate::support::gateway::SOON;
use crate::support::stores::{Stores, on_both_stores};

async fn a_reload_between_page_and_click_is_refused_and_after_the_approval_nothing_is_sent(
    stores: &Stores,
) {
    let (tool, other) = (Tool::start().await, Tool::start().await);
    let gateway = stores.gateway(&config(&tool, EXCLUSIVE)).await;
    let asked = ask_in_session(&gateway, "k").await;
    let body = json!({ "seen": seen(&gateway, "ann", &asked).await });
    assert!(gateway.reload(&config(&other, EXCLUSIVE)).await);
    let late = post(&gateway, "ann", &asked, "approve", body).await;
    assert_eq!(late.expect_problem("not-confirmed").status, 409);
    assert_eq!(state(&gateway, &asked).await, "proposed");

    // Another call has the session, so the approved one does not begin before the reload.
    assert!(gateway.reload(&config(&tool, EXCLUSIVE)).await);
    let release = occupy(&gateway, &tool).await;
    approve_held(&gateway, &asked).await;
    assert!(gateway.reload(&config(&other, EXCLUSIVE)).await);
    until_tried(&[&gateway]).await;
    drop(release);
    until_state(&gateway, &asked, "proposed").await;
    assert!(
        events(&gateway, &asked)
            .await
            .contains(&"voided".to_owned())
    );
    assert_eq!((tool.requests(), other.requests()), (1, 0));
    gateway.stop().await;
}

async fn other_credentials_between_approval_and_begin_void_nothing(stores: &Stores) {
    let tool = Tool::start().await;
    let with = |secret: &str| {
        let more = format!("{EXCLUSIVE}\nheaders = {{ Authorization = \"Bearer {secret}\" }}");
        config(&tool, &more)
    };
    let gateway = stores.gateway(&with("old")).await;
    let release = occupy(&gateway, &tool).await;
    let asked = ask_in_session(&gateway, "k").await;
    approve_held(&gateway, &asked).await;
    assert!(gateway.reload(&with("new")).await);
    until_tried(&[&gateway]).await;
    drop(release);
    until_state(&gateway, &asked, "succeeded").await;
    assert_eq!(tool.executed()[1].header("authorization"), "Bearer new");
    gateway.stop().await;
}

async fn removing_the_rule_releases_nothing(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let asked = ask(&gateway, "k", json!({})).await;
    let without = format!("[tools.act]\nurl = \"{}\"\n{}", tool.url(), tokens());
    assert!(gateway.reload(&without).await);
    for _ in 0..3 {
        ask(&gateway, "k", json!({}))
            .await
            .expect_problem("approval-required");
    }
    assert_eq!(tool.requests(), 0);
    let body = json!({ "args": { "n": 1 }, "idempotency_key": "new" });
    ask_as(&gateway, "wait=30", &body).await.expect_ok();
    assert_eq!(tool.effects(), 1, "what is new needs none");
    approve(&gateway, "ann", &asked).await.expect_ok();
    until_state(&gateway, &asked, "succeeded").await;
    assert_eq!(tool.effects(), 2, "only an approval lets it run");
    gateway.stop().await;
}

async fn a_tool_that_is_gone_cannot_be_approved(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let asked = ask(&gateway, "k", json!({})).await;
    let body = json!({ "seen": seen(&gateway, "ann", &asked).await });
    let without = config(&tool, "").replace("tools.act", "tools.other");
    assert!(gateway.reload(&without).await);
    post(&gateway, "ann", &asked, "approve", body)
        .await
        .expect_problem("wrong-state");
    let shown = look(&gateway, "ann", &asked).await.expect_ok();
    assert!(shown.at("/trouble").is_string() && shown.at("/seen").is_null());
    gateway.stop().await;
}

async fn credentials_are_neither_shown_nor_bound(stores: &Stores) {
    let tool = Tool::start().await;
    let more = "headers = { Authorization = \"Bearer geheim\", X-API-Key = \"geheim\", X-Account = \"number one\" }";
    let gateway = stores.gateway(&config(&tool, more)).await;
    let asked = ask(&gateway, "k", json!({})).await;
    let shown = look(&gateway, "ann", &asked).await.expect_ok();
    assert!(
        !shown.text.contains("geheim") && !shown.text.contains("number one"),
        "{}",
        shown.text
    );
    let before = shown.at("/seen");
    assert!(
        gateway
            .reload(&config(&tool, &more.replace("geheim", "neu")))
            .await
    );
    assert_eq!(look(&gateway, "ann", &asked).await.at("/seen"), before);
    assert!(
        gateway
            .reload(&config(&tool, &more.replace("number one", "number two")))
            .await
    );
    assert_ne!(look(&gateway, "ann", &asked).await.at("/seen"), before);
    gateway.stop().await;
}

/// A tool that deduplicates is sent an unknown call again, but only the request that an approver has seen.
async fn an_unknown_call_is_sent_again_only_as_it_was_approved(stores: &Stores) {
    let (tool, other) = (Tool::start().await, Tool::start().await);
    let retries = "dedup = \"key\"\nunknown = \"retry\"\nretry = { attempts = 1 }\n\
        recheck = { base = \"3s\", max = \"3s\" }";
    let gateway = stores.gateway(&config(&tool, retries)).await;
    for (key, elsewhere) in [("stays", false), ("moves", true)] {
        tool.then(Act::ExecuteThenDrop);
        let (asked, requests) = (ask(&gateway, key, json!({})).await, tool.requests());
        let seen = json!({ "seen": look(&gateway, "ann", &asked).await.expect_ok().at("/seen") });
        let approved = post(&gateway, "ann", &asked, "approve", seen).await;
        approved.expect_ok();
        if elsewhere {
            until("it is sent", async || tool.requests() == requests + 1).await;
            until_state(&gateway, &asked, "unknown").await;
            let rules = config(&other, retries);
            assert!(gateway.reload(&rules).await);
            until("it is given up", async || {
                let call = get_as(&gateway, "agent", &format!("/v1/calls/{}", asked.id())).await;
                call.events().iter().any(|event| event == "given_up")
            })
            .await;
        } else {
            until_state(&gateway, &asked, "succeeded").await;
            assert_eq!(tool.requests(), requests + 2, "it was sent again");
            let verified = post(
                &gateway,
                "boss",
                &asked,
                "replay",
                json!({ "mode": "verify" }),
            )
            .await;
            verified.expect_problem("replay-unsafe");
            assert_eq!(tool.requests(), requests + 2, "not to compare its results");
        }
    }
    assert_eq!(other.requests(), 0, "it was not approved for this tool");
    gateway.stop().await;
}

async fn an_approval_that_is_no_longer_good_sends_nothing_and_asks_again(stores: &Stores) {
    let tool = Tool::start().await;
    let rule = "when = [\"always\"]\ngood_for = \"1s\"";
    let gateway = stores
        .gateway(&config_with(&tool.url(), rule, EXCLUSIVE))
        .await;
    let release = occupy(&gateway, &tool).await;
    let asked = ask_in_session(&gateway, "k").await;
    approve_held(&gateway, &asked).await;
    until_state(&gateway, &asked, "proposed").await;
    assert!(
        events(&gateway, &asked)
            .await
            .contains(&"voided".to_owned())
    );
    drop(release);
    until("the first one ends", async || tool.effects() == 1).await;
    let again = ask_in_session(&gateway, "k").await;
    again.expect_problem("approval-required");
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

/// Neither approved again nor begun before the end of all its times: it is over, and its agent may ask once more.
async fn an_approval_that_began_nothing_before_the_time_to_decide_was_over_lapses(stores: &Stores) {
    let tool = Tool::start().await;
    let rule = "when = [\"always\"]\ngood_for = \"2s\"";
    let config = config_with(&tool.url(), rule, EXCLUSIVE);
    let gateway = stores.gateway(&format!("{SOON}\n{config}")).await;
    let release = occupy(&gateway, &tool).await;
    let asked = ask_in_session(&gateway, "k").await;
    let seen = json!({ "seen": seen(&gateway, "ann", &asked).await });
    approve_held(&gateway, &asked).await;
    until_state(&gateway, &asked, "failed").await;
    let shown = look(&gateway, "ann", &asked).await.expect_ok();
    assert_eq!(shown.at("/outcome"), json!("lapsed"));
    drop(release);
    until("the first one ends", async || tool.effects() == 1).await;
    let late = post(&gateway, "ann", &asked, "approve", seen.clone()).await;
    assert!(
        late.status == 200 && late.at("/outcome") == json!("lapsed"),
        "the same approval again changes nothing: {}",
        late.text
    );
    post(&gateway, "bob", &asked, "approve", seen)
        .await
        .expect_problem("wrong-state");
    let again = ask_in_session(&gateway, "k").await;
    again.expect_problem("approval-required");
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

on_both_stores!(
    an_approval_that_began_nothing_before_the_time_to_decide_was_over_lapses,
    a_reload_between_page_and_click_is_refused_and_after_the_approval_nothing_is_sent,
    other_credentials_between_approval_and_begin_void_nothing,
    removing_the_rule_releases_nothing,
    a_tool_that_is_gone_cannot_be_approved,
    credentials_are_neither_shown_nor_bound,
    an_unknown_call_is_sent_again_only_as_it_was_approved,
    an_approval_that_is_no_longer_good_sends_nothing_and_asks_again,
);
