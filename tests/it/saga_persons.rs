//! Sagas that persons see to: what they have mended counts, and what they have decided stands.

use serde_json::{Value, json};

use crate::sagas::{MADE, SOON, executed, shop};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Tool};

/// What was sent to this path, oldest first.
fn sent(tool: &Tool, path: &str) -> Vec<Value> {
    let seen = tool.seen().into_iter().filter(|seen| seen.line.contains(path));
    seen.map(|seen| serde_json::from_str(&seen.body).expect("JSON")).collect()
}

async fn what_undoes_a_call_is_sent_as_it_was_mended_or_by_the_tool_that_is_named_now(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let config = shop(&tool, SOON);
    let gateway = stores.gateway(&config).await;
    let order = gateway.in_saga("order", "G", "a").await.expect_ok();
    tool.always(Act::Answer(422, "", b"{}"));
    gateway.end_saga("G", "abort").await.expect_ok();
    let by = gateway.saga_that_is("G", "stuck").await.at("/calls/0/compensation_call_id");

    // The arguments were wrong.
    let mended = config.replace("of = \"/call/call_id\"", "order = \"/call/call_id\"");
    let gateway = gateway.restart_with(&mended).await;
    gateway.end_saga("G", "retry").await.expect_ok();
    let saga = gateway.saga_that_is("G", "stuck").await;
    assert_eq!(saga.at("/calls/0/compensation_call_id"), by, "it is the same call");
    let (old, new) = (json!({ "made": 7, "of": order.at("/call_id") }), order.at("/call_id"));
    let new = json!({ "made": 7, "order": new });
    assert_eq!(sent(&tool, "/cancel"), [&old, &old, &old, &new, &new, &new].map(Clone::clone));
    let by = gateway.get(&format!("/v1/calls/{}", by.as_str().expect("an id"))).await.expect_ok();
    assert_eq!(by.at("/args"), new);

    // So was the tool; and then it was not.
    let gateway = gateway.restart_with(&mended.replacen("\"cancel\"", "\"recall\"", 1)).await;
    gateway.end_saga("G", "retry").await.expect_ok();
    let saga = gateway.saga_that_is("G", "stuck").await;
    assert_ne!(saga.at("/calls/0/compensation_call_id"), by.at("/call_id"));
    assert_eq!(sent(&tool, "/recall"), [&new, &new, &new].map(Clone::clone));
    let gateway = gateway.restart_with(&mended).await;
    tool.always(MADE);
    gateway.end_saga("G", "retry").await.expect_ok();
    let saga = gateway.saga_that_is("G", "compensated").await;
    assert_eq!(saga.at("/calls/0/compensation_call_id"), by.at("/call_id"));
    assert_eq!(executed(&tool), ["order", "cancel"]);
}

on_both_stores!(what_undoes_a_call_is_sent_as_it_was_mended_or_by_the_tool_that_is_named_now);
