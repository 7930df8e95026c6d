//! Tools that keep failing are left alone for a while.

use serde_json::{Value, json};

use crate::support::{Act, Gateway, Tool, until};

#[tokio::test]
async fn a_tool_that_keeps_failing_is_left_alone_and_its_replays_are_not() {
    let tool = Tool::start().await;
    let rules = "breaker = { failures = 3, cooldown = \"1s\" }\nretry = { attempts = 1 }";
    let gateway = Gateway::with_tool(&tool, rules).await;
    gateway.act("good", json!({})).await.expect_ok();
    tool.always(Act::Answer(500, "", b"{}"));
    for key in ["a", "b", "c"] {
        gateway
            .act(key, json!({}))
            .await
            .expect_problem("outcome-unknown");
    }
    let refused = gateway
        .act("d", json!({}))
        .await
        .expect_problem("tool-unavailable");
    assert_eq!(
        (
            refused.status,
            refused.at("/effect"),
            refused.at("/key_action")
        ),
        (502, "none".into(), "reuse".into())
    );
    assert!(refused.at("/retry_after_ms").as_u64() <= Some(1_000));
    assert_eq!(
        refused.at("/call_id"),
        Value::Null,
        "it was not even claimed"
    );
    assert_eq!(
        gateway.metric("oncegate_breaker_open{tool=\"act\"}").await,
        1.0
    );
    assert_eq!(
        gateway
            .act("good", json!({}))
            .await
            .expect_ok()
            .at("/replayed"),
        true
    );
    gateway
        .act("a", json!({}))
        .await
        .expect_problem("outcome-unknown");
    assert_eq!(tool.requests(), 4);
    tool.always(Act::Numbered);
    until("one is let through to try", async || {
        gateway.act("d", json!({})).await.status == 200
    })
    .await;
    gateway.act("e", json!({})).await.expect_ok();
    assert_eq!(
        gateway.metric("oncegate_breaker_open{tool=\"act\"}").await,
        0.0
    );
}
