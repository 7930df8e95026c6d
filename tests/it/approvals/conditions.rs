//! A call that would be refused as a near-duplicate, or for its budget, and that an approver is asked about instead.

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::support::stores::{Stores, on_both_stores};

/// A tool whose similar calls are asked about, whatever else would become of them.
fn asks_about_similar(tool: &Tool, action: &str) -> String {
    let similar =
        format!("similar = {{ fields = [\"/to\"], window = \"1h\", action = \"{action}\" }}");
    config_with(&tool.url(), "when = [\"similar\"]", &similar)
}

/// A tool of which one call of a session is free in this time.
fn bounded(tool: &Tool, when: &str, window: &str) -> String {
    let budget = format!("budget = {{ per = \"session\", max = 1, window = \"{window}\" }}");
    config_with(&tool.url(), when, &budget)
}

/// A call of the agent that may take its time.
async fn call(gateway: &Gateway, key: &str, args: Value) -> Answer {
    let body = json!({ "args": args, "idempotency_key": key });
    ask_as(gateway, "wait=30", &body).await
}

/// The same in the session S.
async fn call_in_session(gateway: &Gateway, key: &str) -> Answer {
    let body = json!({ "args": { "key": key }, "idempotency_key": key, "session_id": "S" });
    ask_as(gateway, "wait=30", &body).await
}

/// When a call came to this event.
async fn time_of(gateway: &Gateway, call: &Answer, event: &str) -> Timestamp {
    let path = format!("/v1/calls/{}", call.id());
    let found = get_as(gateway, "boss", &path).await.expect_ok();
    let events = found.at("/events");
    let events = events.as_array().expect("a list");
    let one = events.iter().find(|one| one["event"] == event);
    let at = one.expect(event)["at"].as_str().expect("a time");
    at.parse().expect("a time")
}

async fn a_similar_call_is_asked_about_and_the_earlier_one_is_shown(stores: &Stores) {
    for action in ["flag", "refuse"] {
        let tool = Tool::start().await;
        let gateway = stores.gateway(&asks_about_similar(&tool, action)).await;
        let to = |n: u32| json!({ "to": action, "n": n });
        let first = call(&gateway, &format!("{action}-1"), to(1)).await;
        let first = first.expect_ok();
        let key = format!("{action}-2");
        let asked = ask(&gateway, &key, to(2)).await;
        let asked = asked.expect_problem("approval-required");
        // An agent that names the earlier call does not approve for the approver.
        let names = json!({ "args": to(3), "idempotency_key": format!("{action}-3"),
            "confirm_duplicate_of": first.id() });
        let named = ask_as(&gateway, "wait=0", &names).await;
        named.clone().expect_problem("approval-required");
        post(&gateway, "agent", &named, "withdraw", json!({}))
            .await
            .expect_ok();
        assert_eq!(tool.requests(), 1);
        let shown = look(&gateway, "ann", &asked).await.expect_ok();
        assert_eq!(shown.at("/why"), json!(["an earlier call looks the same"]));
        assert_eq!(shown.at("/similar/0/call_id"), json!(first.id()));
        approve(&gateway, "ann", &asked).await.expect_ok();
        until_state(&gateway, &asked, "succeeded").await;
        call(&gateway, &key, to(2)).await.expect_ok();
        let other = json!({ "to": format!("{action} another"), "n": 4 });
        let free = call(&gateway, &format!("{action}-4"), other).await;
        free.expect_ok();
        assert_eq!(tool.effects(), 3);
        gateway.stop().await;
    }
}

async fn a_similar_call_that_was_not_shown_voids_the_approval_and_is_shown_then(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&asks_about_similar(&tool, "refuse")).await;
    let to = |n: u32| json!({ "to": "ann", "n": n });
    let first = call(&gateway, "first", to(0)).await.expect_ok();
    let earlier = ask(&gateway, "earlier", to(1)).await;
    let before = json!({ "seen": seen(&gateway, "ann", &earlier).await });
    let later = ask(&gateway, "later", to(2)).await;
    let shown = look(&gateway, "ann", &earlier).await.expect_ok();
    assert_eq!(shown.at("/similar/0/call_id"), json!(first.id()));
    let shown = look(&gateway, "ann", &later).await.expect_ok();
    assert_eq!(shown.at("/similar/0/call_id"), json!(earlier.id()));
    post(&gateway, "ann", &earlier, "approve", before.clone())
        .await
        .expect_ok();
    until("it is void", async || {
        let events = events(&gateway, &earlier).await;
        events.contains(&"voided".to_owned())
    })
    .await;
    assert_eq!(
        (state(&gateway, &earlier).await, tool.requests()),
        ("proposed".into(), 1)
    );
    let shown = look(&gateway, "ann", &earlier).await.expect_ok();
    assert_eq!(shown.at("/similar/0/call_id"), json!(later.id()));
    post(&gateway, "ann", &earlier, "approve", before)
        .await
        .expect_problem("not-confirmed");
    for (call, effects) in [(&earlier, 2), (&later, 3)] {
        approve(&gateway, "ann", call).await.expect_ok();
        until_state(&gateway, call, "succeeded").await;
        assert_eq!(tool.effects(), effects);
    }
    gateway.stop().await;
}

async fn a_call_beyond_the_budget_is_asked_about_and_begins_although_it_is_spent(stores: &Stores) {
    let tool = Tool::start().await;
    let config = bounded(&tool, "when = [\"over_budget\"]", "1h");
    let gateway = stores.gateway(&config).await;
    call_in_session(&gateway, "free").await.expect_ok();
    let (sent, stopped) = (
        ask_in_session(&gateway, "sent").await,
        ask_in_session(&gateway, "stopped").await,
    );
    for asked in [&sent, &stopped] {
        asked.clone().expect_problem("approval-required");
        let shown = look(&gateway, "ann", asked).await.expect_ok();
        assert_eq!(
            shown.at("/why"),
            json!(["the budget of the tool is used up"])
        );
    }
    let why = json!({ "reason": "no" });
    post(&gateway, "ann", &stopped, "decline", why)
        .await
        .expect_ok();
    approve(&gateway, "ann", &sent).await.expect_ok();
    until_state(&gateway, &sent, "succeeded").await;
    call_in_session(&gateway, "sent").await.expect_ok();
    let again = ask_in_session(&gateway, "stopped").await;
    again.expect_problem("approval-declined");
    let next = ask_in_session(&gateway, "next").await;
    next.expect_problem("approval-required");
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}

async fn a_declined_call_keeps_its_place_in_the_budget(stores: &Stores) {
    let tool = Tool::start().await;
    let when = "when = [\"over_budget\", { pointer = \"/key\", in = [\"asks\"] }]";
    let gateway = stores.gateway(&bounded(&tool, when, "1h")).await;
    let asked = ask_in_session(&gateway, "asks").await;
    let shown = look(&gateway, "ann", &asked).await.expect_ok();
    assert_eq!(
        shown.at("/why"),
        json!(["/key is one of the listed values"])
    );
    let why = json!({ "reason": "no" });
    post(&gateway, "ann", &asked, "decline", why)
        .await
        .expect_ok();
    let next = ask_in_session(&gateway, "next").await;
    let shown = look(&gateway, "ann", &next.expect_problem("approval-required")).await;
    assert_eq!(
        shown.at("/why"),
        json!(["the budget of the tool is used up"])
    );
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

async fn a_spent_budget_puts_off_what_was_approved_for_another_reason(stores: &Stores) {
    let tool = Tool::start().await;
    let when = "when = [{ pointer = \"/key\", in = [\"asks\"] }]\ngood_for = \"1m\"";
    let gateway = stores.gateway(&bounded(&tool, when, "3s")).await;
    let asked = ask_in_session(&gateway, "asks").await;
    asked.clone().expect_problem("approval-required");
    // Its own place has an end, and then another call takes it.
    let (mut n, mut free) = (0, None);
    until("there is room for another call", async || {
        n += 1;
        let answer = call_in_session(&gateway, &format!("free-{n}")).await;
        let is_free = answer.status == 200;
        free = Some(answer);
        is_free
    })
    .await;
    approve(&gateway, "ann", &asked).await.expect_ok();
    until_state(&gateway, &asked, "succeeded").await;
    let taken = time_of(&gateway, &free.expect("a call"), "claimed").await;
    let begun = time_of(&gateway, &asked, "begun").await;
    let apart = begun.duration_since(taken).as_millis();
    // The times in the ledger are those before each write, so a busy store makes the time between them shorter.
    assert!(
        apart >= 2_000,
        "it begins in the window of the other: {apart}"
    );
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}

on_both_stores!(
    a_similar_call_is_asked_about_and_the_earlier_one_is_shown,
    a_similar_call_that_was_not_shown_voids_the_approval_and_is_shown_then,
    a_call_beyond_the_budget_is_asked_about_and_begins_although_it_is_spent,
    a_declined_call_keeps_its_place_in_the_budget,
    a_spent_budget_puts_off_what_was_approved_for_another_reason,
);
