//! An operator pauses a tool on every gateway that shares the store.

use serde_json::{Value, json};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, begin, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores![
    a_paused_tool_gets_nothing_new_until_it_is_resumed,
    calls_made_before_a_pause_are_still_answered,
    a_pause_while_a_call_runs_lets_it_end,
    a_pause_survives_a_restart,
    nothing_is_sent_again_to_a_paused_tool,
    a_retry_that_has_not_been_made_when_its_tool_is_paused_is_not_made,
    a_paused_tool_is_still_asked_whether_it_knows_a_key,
    pauses_of_different_tools_are_different,
];

async fn person(gateway: &Gateway, token: &str, tool: &str, what: &str, body: Value) -> Answer {
    let request = gateway
        .client
        .post(gateway.url(&format!("/v1/tools/{tool}/{what}")));
    let request = request.bearer_auth(token).body(if body.is_null() {
        String::new()
    } else {
        body.to_string()
    });
    Answer::to(request).await
}

pub async fn pause(gateway: &Gateway) -> Answer {
    person(
        gateway,
        "any",
        "act",
        "pause",
        json!({ "reason": "it ships twice" }),
    )
    .await
}

pub async fn resume(gateway: &Gateway) -> Answer {
    person(gateway, "any", "act", "resume", Value::Null).await
}

pub async fn warnings(gateway: &Gateway) -> Value {
    let warnings = gateway.get("/readyz").await.expect_ok().at("/warnings");
    let of_tools = warnings.as_array().expect("a list").iter();
    of_tools
        .filter(|text| text.as_str().is_some_and(|text| text.contains("is paused")))
        .cloned()
        .collect()
}

async fn a_paused_tool_gets_nothing_new_until_it_is_resumed(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    assert_eq!(
        gateway.metric("oncegate_tool_paused{tool=\"act\"}").await,
        0.0
    );
    let paused = pause(&gateway).await.expect_ok();
    assert_eq!(
        (paused.at("/tool"), paused.at("/paused")),
        ("act".into(), true.into())
    );
    assert_eq!(
        (paused.at("/by"), paused.at("/reason")),
        ("token open".into(), "it ships twice".into())
    );
    assert_eq!(paused.at("/since"), paused.at("/events/0/at"));
    let refused = gateway
        .act("k", json!({}))
        .await
        .expect_problem("tool-paused");
    assert_eq!(
        (
            refused.status,
            refused.at("/effect"),
            refused.at("/key_action"),
            refused.at("/call_id")
        ),
        (503, "none".into(), "reuse".into(), Value::Null)
    );
    assert_eq!(
        (refused.header("retry-after"), refused.at("/retry_after_ms")),
        ("30", 30_000.into())
    );
    assert_eq!(tool.requests(), 0);
    assert_eq!(
        warnings(&gateway).await,
        json!(["tool act is paused by open: it ships twice"])
    );
    assert_eq!(
        gateway.metric("oncegate_tool_paused{tool=\"act\"}").await,
        1.0
    );
    pause(&gateway).await.expect_problem("wrong-state");

    let resumed = resume(&gateway).await.expect_ok();
    assert_eq!(
        (
            resumed.at("/paused"),
            resumed.at("/since"),
            resumed.at("/reason")
        ),
        (false.into(), Value::Null, Value::Null)
    );
    let events = resumed.at("/events");
    let events: Vec<&Value> = events
        .as_array()
        .expect("a list")
        .iter()
        .map(|event| &event["event"])
        .collect();
    assert_eq!(events, ["paused", "resumed"], "who did what stays known");
    gateway.act("k", json!({})).await.expect_ok();
    assert_eq!((warnings(&gateway).await, tool.effects()), (json!([]), 1));
    assert_eq!(
        gateway.metric("oncegate_tool_paused{tool=\"act\"}").await,
        0.0
    );
    resume(&gateway).await.expect_problem("wrong-state");
}

async fn calls_made_before_a_pause_are_still_answered(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&one_tool(&tool, "")).await;
    tool.then(Act::Numbered)
        .then(Act::ExecuteThenDrop)
        .then(Act::Answer(422, "", b"{}"));
    let first = gateways[0].act("done", json!({})).await.expect_ok();
    let unknown = gateways[0]
        .act("unknown", json!({}))
        .await
        .expect_problem("outcome-unknown");
    gateways[0]
        .act("failed", json!({}))
        .await
        .expect_problem("tool-rejected");
    pause(&gateways[0]).await.expect_ok();
    for gateway in &gateways {
        until("it is paused", async || {
            warnings(gateway).await != json!([])
        })
        .await;
        let replayed = gateway.act("done", json!({})).await.expect_ok();
        assert_eq!(
            (replayed.result(), replayed.at("/replayed")),
            (first.result(), true.into())
        );
        gateway
            .act("unknown", json!({}))
            .await
            .expect_problem("outcome-unknown");
        assert_eq!(gateway.record(&unknown).await.at("/state"), "unknown");
        gateway
            .act("done", json!({ "args": { "n": 1 } }))
            .await
            .expect_problem("key-reused");
        // A failed call would run again, so its repetition is refused.
        gateway
            .act("failed", json!({}))
            .await
            .expect_problem("tool-paused");
    }
    assert_eq!(tool.requests(), 3);
}

async fn a_pause_while_a_call_runs_lets_it_end(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::after_ms(1_500, Act::Numbered));
    let gateways = stores.gateways(&one_tool(&tool, "")).await;
    let running = begin(&gateways[0], "k", json!({}));
    until("it runs", async || tool.requests() == 1).await;
    pause(&gateways[0]).await.expect_ok();
    let joined = gateways[gateways.len() - 1]
        .act("k", json!({}))
        .await
        .expect_ok();
    assert_eq!(joined.at("/replayed"), true);
    let first = running.await.expect("no panic").expect_ok();
    assert_eq!((first.at("/replayed"), tool.effects()), (false.into(), 1));
    gateways[0]
        .act("other", json!({}))
        .await
        .expect_problem("tool-paused");
}

async fn a_pause_survives_a_restart(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    pause(&gateway).await.expect_ok();
    let gateway = gateway.restart().await;
    gateway.until_ready().await;
    gateway
        .act("k", json!({}))
        .await
        .expect_problem("tool-paused");
    assert_eq!(tool.requests(), 0);
    assert_eq!(
        warnings(&gateway).await,
        json!(["tool act is paused by open: it ships twice"])
    );
    resume(&gateway).await.expect_ok();
    let gateway = gateway.restart().await;
    gateway.until_ready().await;
    gateway.act("k", json!({})).await.expect_ok();
}

async fn nothing_is_sent_again_to_a_paused_tool(stores: &Stores) {
    let tool = Tool::start().await;
    tool.deduplicate().always(Act::ExecuteThenDrop);
    let rules =
        "unknown = \"retry\"\ndedup = \"key\"\nrecheck = { base = \"100ms\", max = \"100ms\" }\n";
    let gateway = stores
        .gateway(&one_tool(
            &tool,
            &format!("{rules}retry = {{ attempts = 1 }}"),
        ))
        .await;
    let unknown = gateway
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    until("it is sent again by itself", async || tool.requests() >= 2).await;
    pause(&gateway).await.expect_ok();
    let held_back = async || {
        let events = gateway.record(&unknown).await.at("/events");
        events
            .as_array()
            .expect("a list")
            .iter()
            .filter(|event| event["event"] == "held_back")
            .count()
    };
    // A check that began right before the pause may still send.
    until("it is held back", async || held_back().await >= 1).await;
    let (sent, held) = (tool.requests(), held_back().await);
    until("it is held back again", async || {
        held_back().await >= held + 2
    })
    .await;
    assert_eq!(tool.requests(), sent);
    tool.always(Act::Numbered);
    resume(&gateway).await.expect_ok();
    until("it is settled", async || {
        gateway.record(&unknown).await.at("/state") == "succeeded"
    })
    .await;
    assert_eq!(tool.effects(), 1);
}

async fn a_retry_that_has_not_been_made_when_its_tool_is_paused_is_not_made(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::Answer(429, "retry-after: 3\r\n", b"{}"))
        .then(Act::Numbered);
    let declared = "outcomes = { 429 = \"not_executed\" }";
    let gateway = stores.gateway(&one_tool(&tool, declared)).await;
    let call = begin(&gateway, "k", json!({}));
    until("it runs", async || tool.requests() == 1).await;
    pause(&gateway).await.expect_ok();
    let refused = call.await.expect("no panic");
    assert_eq!(
        (refused.status, refused.at("/effect"), tool.requests()),
        (502, "none".into(), 1)
    );
    gateway
        .act("k", json!({}))
        .await
        .expect_problem("tool-paused");
    resume(&gateway).await.expect_ok();
    gateway.act("k", json!({})).await.expect_ok();
    assert_eq!(tool.effects(), 1);
}

async fn a_paused_tool_is_still_asked_whether_it_knows_a_key(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Answer(404, "", b"{}"));
    let probe = format!(
        "probe = {{ url = \"http://127.0.0.1:{}/by-key/{{key}}\" }}",
        tool.port
    );
    let rules =
        format!("unknown = \"probe\"\n{probe}\nrecheck = {{ base = \"100ms\", max = \"100ms\" }}");
    let gateway = stores.gateway(&one_tool(&tool, &rules)).await;
    let unknown = gateway
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    pause(&gateway).await.expect_ok();
    tool.always(Act::Numbered);
    until("it is settled", async || {
        gateway.record(&unknown).await.at("/state") == "succeeded"
    })
    .await;
    gateway.act("k", json!({})).await.expect_ok();
    assert_eq!(
        tool.seen()
            .iter()
            .filter(|seen| seen.line.starts_with("POST"))
            .count(),
        1
    );
}

async fn pauses_of_different_tools_are_different(stores: &Stores) {
    let tool = Tool::start().await;
    let read = format!(
        "[tools.look]\nurl = \"{}\"\neffect = \"read\"\n",
        tool.url()
    );
    let gateway = stores
        .gateway(&format!("{}{read}", one_tool(&tool, "")))
        .await;
    person(
        &gateway,
        "any",
        "look",
        "pause",
        json!({ "reason": "too slow" }),
    )
    .await
    .expect_ok();
    gateway.act("k", json!({})).await.expect_ok();
    gateway
        .post("look", &json!({ "args": {} }), &[])
        .await
        .expect_problem("tool-paused");
    person(
        &gateway,
        "any",
        "nobody",
        "pause",
        json!({ "reason": "no" }),
    )
    .await
    .expect_problem("unknown-tool");
    person(&gateway, "any", "nobody", "resume", Value::Null)
        .await
        .expect_problem("unknown-tool");
    person(&gateway, "any", "act", "pause", json!({ "reason": " " }))
        .await
        .expect_problem("invalid-request");
    person(&gateway, "any", "act", "pause", Value::Null)
        .await
        .expect_problem("invalid-request");
    let reason = json!({ "reason": "it is fast again" });
    let resumed = person(&gateway, "any", "look", "resume", reason)
        .await
        .expect_ok();
    assert_eq!(resumed.at("/events/1/detail"), "it is fast again");
    gateway
        .post("look", &json!({ "args": {} }), &[])
        .await
        .expect_ok();
}

#[tokio::test]
async fn only_an_administrator_pauses_and_the_ledger_has_its_name() {
    let tool = Tool::start().await;
    let tokens: String = [("agents", "token-agents", "\"call\", \"read\""), ("ops", "token-ops", "\"admin\"")]
        .iter()
        .map(|(name, token, scopes)| {
            let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(token));
            format!("[[auth.tokens]]\nname = \"{name}\"\ntenant = \"shop\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n")
        })
        .collect();
    let gateway = Gateway::start(&format!("{tokens}{}", one_tool(&tool, ""))).await;
    let reason = json!({ "reason": "it ships twice" });
    for (token, problem) in [("token-agents", "forbidden"), ("wrong", "unauthenticated")] {
        for what in ["pause", "resume"] {
            person(&gateway, token, "act", what, reason.clone())
                .await
                .expect_problem(problem);
        }
    }
    let bearer = [("authorization", "Bearer token-agents")];
    gateway
        .post("act", &json!({ "args": {} }), &bearer)
        .await
        .expect_ok();
    let paused = person(&gateway, "token-ops", "act", "pause", reason)
        .await
        .expect_ok();
    assert_eq!(
        (paused.at("/by"), paused.at("/events/0/by")),
        ("token ops".into(), "token ops".into())
    );
    gateway
        .post("act", &json!({ "args": { "n": 1 } }), &bearer)
        .await
        .expect_problem("tool-paused");
    assert_eq!(
        warnings(&gateway).await,
        json!(["tool act is paused by ops: it ships twice"])
    );
    gateway.stop().await;
}
