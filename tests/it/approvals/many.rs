//! Many calls that wait are declined at once. None is approved so.

use serde_json::json;

use super::*;
use crate::operators::many::{confirmed, lines};
use crate::support::stores::{Stores, on_both_stores};

const ALL: &str = "/v1/calls/decline";

/// Two calls of `act` and one of `other` that wait, in this order.
async fn three(gateway: &Gateway) -> [Answer; 3] {
    let one = ask(gateway, "one", json!({ "n": 1 })).await;
    let two = ask(gateway, "two", json!({ "n": 2 })).await;
    let body = json!({ "args": {}, "idempotency_key": "three" });
    let path = "/v1/tools/other/calls";
    let three = gateway.post_as("agent", path, &body).await;
    [one, two, three].map(|asked| asked.expect_problem("approval-required"))
}

/// The usual tool, and a tool `other` whose calls need approval, too.
fn two_tools(tool: &Tool) -> String {
    let other = format!(
        "[tools.other]\nurl = \"{}\"\n[tools.other.approval]\nwhen = [\"always\"]\n",
        tool.url()
    );
    config(tool, "") + &other
}

async fn those_that_were_confirmed_are_declined_and_their_agents_are_told_why(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&two_tools(&tool)).await;
    let [one, two, three] = three(&gateway).await;
    let body =
        json!({ "filter": { "tool": "act" }, "reason": "an agent in a loop", "tell": "Stop." });
    let dry = gateway.post_as("ann", ALL, &body).await.expect_ok();
    assert_eq!((dry.at("/count"), dry.at("/refused")), (json!(2), json!(0)));
    assert_eq!(dry.at("/sample").as_array().map(Vec::len), Some(2));
    assert_eq!(
        state(&gateway, &one).await,
        "proposed",
        "nothing is changed"
    );
    let mut other = confirmed(&body, &dry);
    other["tell"] = json!("Go on.");
    let refused = gateway.post_as("ann", ALL, &other).await;
    refused.expect_problem("not-confirmed");

    let done = gateway.post_as("ann", ALL, &confirmed(&body, &dry)).await;
    let (each, totals) = lines(&done.expect_ok());
    assert!(each.iter().all(|line| line["result"] == "done"), "{each:?}");
    assert_eq!((&totals["total"], &totals["done"]), (&json!(2), &json!(2)));
    for (key, n) in [("one", 1), ("two", 2)] {
        let told = ask(&gateway, key, json!({ "n": n })).await;
        let told = told.expect_problem("approval-declined");
        assert!(told.text.contains("Stop."), "{}", told.text);
    }
    assert_eq!(state(&gateway, &two).await, "failed");
    assert_eq!(state(&gateway, &three).await, "proposed");
    let acts = get_as(&gateway, "boss", "/v1/audit").await.expect_ok();
    let acts = acts.at("/acts");
    let made = acts.as_array().expect("a list").iter();
    let made: Vec<_> = made.filter(|act| act["act"] == "decline").collect();
    // The act that was not confirmed stands there, too.
    assert_eq!(made.len(), 2, "{acts}");
    assert_eq!(made[0]["reason"], "an agent in a loop");
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

async fn an_approver_declines_only_calls_of_its_own_tools_and_tenant(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&two_tools(&tool)).await;
    let [one, ..] = three(&gateway).await;
    let of = |filter: Value| json!({ "filter": filter, "reason": "no" });
    for (by, count) in [("ann", 3), ("bob", 2), ("elsewhere", 1), ("other", 0)] {
        let dry = gateway.post_as(by, ALL, &of(json!({}))).await.expect_ok();
        assert_eq!(dry.at("/count"), json!(count), "{by}");
        assert!(count > 0 || dry.at("/sample") == json!([]), "{}", dry.text);
    }
    for (by, filter) in [
        ("agent", json!({})),
        ("boss", json!({})),
        ("other", json!({ "tenant": "shop" })),
    ] {
        let refused = gateway.post_as(by, ALL, &of(filter)).await;
        refused.expect_problem("forbidden");
    }
    for (body, why) in [
        (of(json!({ "state": "unknown" })), "filter.state"),
        (json!({ "filter": {} }), "reason"),
        (
            json!({ "filter": {}, "reason": "no", "tell": "x".repeat(501) }),
            "tell",
        ),
    ] {
        let refused = gateway.post_as("ann", ALL, &body).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert!(refused.text.contains(why), "{}", refused.text);
    }
    assert_eq!(state(&gateway, &one).await, "proposed");
    gateway.stop().await;
}

async fn a_call_that_was_asked_about_anew_is_not_the_one_that_was_confirmed(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&two_tools(&tool)).await;
    let [one, ..] = three(&gateway).await;
    let body = json!({ "filter": { "key": "one" }, "reason": "no" });
    let dry = gateway.post_as("ann", ALL, &body).await.expect_ok();
    assert_eq!(dry.at("/count"), json!(1), "{}", dry.text);
    post(&gateway, "agent", &one, "withdraw", json!({}))
        .await
        .expect_ok();
    let again = ask(&gateway, "one", json!({ "n": 1 })).await;
    again.expect_problem("approval-required");
    let late = gateway.post_as("ann", ALL, &confirmed(&body, &dry)).await;
    late.expect_problem("not-confirmed");
    assert_eq!(state(&gateway, &one).await, "proposed");
    gateway.stop().await;
}

on_both_stores!(
    those_that_were_confirmed_are_declined_and_their_agents_are_told_why,
    an_approver_declines_only_calls_of_its_own_tools_and_tenant,
    a_call_that_was_asked_about_anew_is_not_the_one_that_was_confirmed,
);
