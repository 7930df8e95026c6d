//! The console: a call that waits for approval is decided on its page, as it is shown there. As forms, without any script.

use serde_json::json;

use crate::approvals::{ask, config, get_as};
use crate::support::browser::{Browser, hidden};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway, Tool, until};

on_both_stores!(
    a_call_is_approved_on_its_page_exactly_as_it_is_shown,
    a_call_is_declined_on_its_page_and_its_agent_is_told,
);

/// Markup in an argument, and how a page shows it.
const HOSTILE: &str = "<script>alert(1)</script>";
const SHOWN: &str = "&lt;script&gt;alert(1)&lt;/script&gt;";

/// A call that waits, and the address of its page.
async fn waits(gateway: &Gateway) -> (Answer, String) {
    let asked = ask(gateway, "k", json!({ "note": HOSTILE })).await;
    let asked = asked.expect_problem("approval-required");
    let page = format!("/console/approvals/{}", asked.id());
    (asked, page)
}

/// Sends the form of a page with these fields instead of or beside its own.
async fn decide(by: &Browser, page: &str, act: &str, fields: &[(&str, &str)]) -> Answer {
    let shown = by.see(page).await.expect_ok().text;
    let token = hidden(&shown, "form").expect("a form");
    let mut all = vec![("form", token.as_str())];
    all.extend_from_slice(fields);
    Answer::to(by.form(&format!("{page}/{act}"), &all)).await
}

async fn a_call_is_approved_on_its_page_exactly_as_it_is_shown(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let (asked, page) = waits(&gateway).await;
    let ann = Browser::sign_in(&gateway, "ann").await;
    let first = ann.see("/console").await.expect_ok().text;
    assert!(
        first.contains("Waits for approval") && first.contains(&page),
        "{first}"
    );
    let list = ann.see("/console/approvals").await.expect_ok().text;
    assert!(list.contains(&page), "{list}");
    assert!(
        !list.contains("/approve\""),
        "nothing is approved from a list"
    );
    let shown = ann.see(&page).await.expect_ok().text;
    assert!(
        shown.contains(&tool.url()) && shown.contains(SHOWN),
        "{shown}"
    );
    assert!(!shown.contains(HOSTILE), "{shown}");
    let seen = hidden(&shown, "seen").expect("a mark");

    // Neither an address, nor a form of another page, nor another mark, nor an administrator alone approves.
    let approve = format!("{page}/approve");
    let looked = ann.see(&approve).await;
    assert!(looked.status >= 400, "{}", looked.text);
    let forged = Answer::to(ann.form(&approve, &[("seen", &seen)])).await;
    assert!(forged.status >= 400, "{}", forged.text);
    let other = "0".repeat(64);
    let wrong = decide(&ann, &page, "approve", &[("seen", &other)]).await;
    assert_eq!(wrong.status, 409, "{}", wrong.text);
    let unseen = decide(&ann, &page, "approve", &[]).await;
    assert_eq!(unseen.status, 400, "{}", unseen.text);
    let boss = Browser::sign_in(&gateway, "boss").await;
    let own = boss.see(&page).await.expect_ok().text;
    assert!(!own.contains(&format!("action=\"{approve}\"")), "{own}");
    let refused = decide(&boss, &page, "approve", &[("seen", &seen)]).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert_eq!(tool.requests(), 0);

    let done = decide(
        &ann,
        &page,
        "approve",
        &[("seen", &seen), ("reason", "it is right")],
    )
    .await;
    assert_eq!(done.status, 303, "{}", done.text);
    until("it is sent", async || tool.effects() == 1).await;
    assert!(tool.seen()[0].body.contains(HOSTILE), "as it was asked");
    let again = decide(&ann, &page, "approve", &[("seen", &seen)]).await;
    assert!(again.status == 303 || again.status == 409, "{}", again.text);
    let acts = get_as(&gateway, "boss", "/v1/audit?act=approve").await;
    let acts = acts.expect_ok().at("/acts");
    let by: Vec<_> = acts.as_array().expect("a list").iter().collect();
    assert!(
        by.iter()
            .any(|act| act["by"] == "ann" && act["outcome"] == "done"),
        "{acts}"
    );
    let decided = ann
        .see("/console/approvals?state=decided")
        .await
        .expect_ok();
    assert!(decided.text.contains(&asked.id()), "{}", decided.text);
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

async fn a_call_is_declined_on_its_page_and_its_agent_is_told(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let (_, page) = waits(&gateway).await;
    let ann = Browser::sign_in(&gateway, "ann").await;
    let silent = decide(&ann, &page, "decline", &[("reason", "")]).await;
    assert_eq!(silent.status, 400, "a reason is needed: {}", silent.text);
    let why = [("reason", "not this one"), ("tell", "ask for <b>less</b>")];
    let done = decide(&ann, &page, "decline", &why).await;
    assert_eq!(done.status, 303, "{}", done.text);
    let told = ask(&gateway, "k", json!({ "note": HOSTILE })).await;
    let told = told.expect_problem("approval-declined");
    assert!(
        told.at("/detail")
            .to_string()
            .contains("ask for <b>less</b>"),
        "{}",
        told.text
    );
    let shown = ann.see(&page).await.expect_ok().text;
    assert!(shown.contains("ask for &lt;b&gt;less&lt;/b&gt;"), "{shown}");
    assert!(
        !shown.contains(&format!("action=\"{page}/approve\"")),
        "{shown}"
    );
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}
