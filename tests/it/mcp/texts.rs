//! What MCP tells a model if a call has no result: what may have happened, and what to do next.

use serde_json::{Value, json};

use crate::support::mcp::token;
use crate::support::{Act, Answer, Gateway, Tool, until};

const SHORT_WAIT: &str =
    "[mcp]\nanswer_within = \"300ms\"\nstream_after = \"50ms\"\nawait_tool = \"off\"\n";

/// Calls `act` with this argument, and this key among the arguments.
async fn call(gateway: &Gateway, key: &str, n: u32) -> Answer {
    gateway
        .mcp_call(json!({ "n": n, "idempotency_key": key }))
        .await
}

/// The same in other words: calls with equal arguments are one call, whatever key the model makes up.
async fn alike_call(gateway: &Gateway, key: &str) -> Answer {
    let args = json!({ "n": 1, "note": key, "idempotency_key": key });
    gateway.mcp_call(args).await
}

#[track_caller]
fn assert_told(said: &Answer, words: &[&str]) {
    assert!(said.is_error(), "{}", said.text);
    let told = said.told();
    for words in words {
        assert!(told.contains(words), "{words:?} is not in {told}");
    }
    for foreign in [
        "GET /",
        "call_id",
        "retry_after_ms",
        "\"confirm_duplicate_of\"",
    ] {
        assert!(!told.contains(foreign), "{told}");
    }
}

#[track_caller]
fn id_of(said: &Answer) -> String {
    let id = said.meta("call-id");
    id.as_str().expect("a call id").to_owned()
}

#[tokio::test]
async fn a_key_of_another_call_is_reported_with_that_call() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let first = id_of(&call(&gateway, "k1", 1).await);
    let reused = call(&gateway, "k1", 2).await;
    assert_told(&reused, &[&first, "/n", "new idempotency_key only"]);
    assert_eq!(reused.meta("problem")["type"], "/problems/key-reused");
    gateway.stop().await;

    let gateway = Gateway::with_tool(
        &tool,
        "key = { fields = [\"/id\"] }\ninput_schema = { type = \"object\", required = [\"id\"] }",
    )
    .await;
    let first = gateway.mcp_call(json!({ "id": 1, "n": 1 })).await;
    let reused = gateway.mcp_call(json!({ "id": 1, "n": 2 })).await;
    assert_told(
        &reused,
        &[&id_of(&first), "same business id", "ask an operator"],
    );
    assert_eq!(tool.requests(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_looks_like_an_earlier_one_is_reported_with_that_call_and_its_age() {
    let alike = |action: &str| {
        format!("similar = {{ fields = [\"/n\"], window = \"10m\", action = \"{action}\" }}")
    };
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, &alike("refuse")).await;
    let first = id_of(&alike_call(&gateway, "k1").await);
    let refused = alike_call(&gateway, "k2").await;
    assert_told(
        &refused,
        &[
            &first,
            " s ago",
            "_meta[\"dev.oncegate/confirm-duplicate-of\"]",
        ],
    );
    assert_eq!(refused.meta("problem")["similar_to"], first);
    let meta = json!({ "dev.oncegate/confirm-duplicate-of": first });
    let args = json!({ "n": 1, "note": "k2", "idempotency_key": "k2" });
    let params = json!({ "name": "act", "arguments": args, "_meta": meta });
    assert!(!gateway.mcp("tools/call", params).await.is_error());
    gateway.stop().await;

    let gateway = Gateway::with_tool(&tool, &alike("replay")).await;
    tool.then(Act::ExecuteThenDrop);
    let unknown = id_of(&alike_call(&gateway, "k1").await);
    let pending = alike_call(&gateway, "k2").await;
    assert_told(
        &pending,
        &[
            &unknown,
            " s ago",
            "settle call",
            "Do not choose a new idempotency_key",
        ],
    );
    assert_eq!(pending.meta("problem")["effect"], "unknown");
    assert_eq!(tool.requests(), 3);
    gateway.stop().await;

    let gateway = Gateway::with_tool(&tool, &alike("flag")).await;
    let first = id_of(&alike_call(&gateway, "k1").await);
    let flagged = alike_call(&gateway, "k2").await;
    assert!(!flagged.is_error(), "{}", flagged.text);
    assert_eq!(flagged.meta("similar-to"), first);
    let note = flagged.told();
    assert!(note.contains(&first), "{note}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_refusal_of_a_call_without_a_key_names_the_argument_to_give() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "key = { source = \"required\" }").await;
    let missing = gateway.mcp_call(json!({ "n": 1 })).await;
    assert_told(
        &missing,
        &["Nothing was executed", "argument idempotency_key"],
    );
    assert!(!call(&gateway, "k1", 1).await.is_error());
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn the_answer_of_a_paused_tool_says_not_to_look_for_another_way() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let pause = gateway.client.post(gateway.url("/v1/tools/act/pause"));
    Answer::to(pause.body(r#"{"reason":"look"}"#))
        .await
        .expect_ok();
    let words = [
        "Nothing was executed. ",
        "Do not look for another way",
        "after 30 s",
    ];
    assert_told(&gateway.mcp_call(json!({})).await, &words);
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_waits_for_its_session_is_reported_as_waiting_and_not_as_running() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let rules = format!("session = \"exclusive\"\nsession_wait = \"30s\"\n{SHORT_WAIT}");
    let gateway = Gateway::with_tool(&tool, &rules).await;
    let running = gateway.mcp_call(json!({ "n": 1 })).await;
    assert_told(
        &running,
        &[
            "Still running, not failed.",
            "exactly the same arguments after ",
            "Do that soon",
        ],
    );
    let waiting = gateway.mcp_call(json!({ "n": 2 })).await;
    assert_told(
        &waiting,
        &[
            "Waiting for its turn",
            "executed nothing yet",
            "or it may not run",
        ],
    );
    assert_eq!(waiting.meta("call-id"), Value::Null);
    assert_eq!(tool.requests(), 1);
    drop(hold);
    until("both have run", async || {
        !gateway.mcp_call(json!({ "n": 2 })).await.is_error()
    })
    .await;
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_read_is_waited_for_because_its_result_is_not_stored() {
    let tool = Tool::start().await;
    tool.then(Act::after_ms(600, Act::Numbered));
    let gateway = Gateway::with_tool(&tool, &format!("effect = \"read\"\n{SHORT_WAIT}")).await;
    let said = gateway.mcp_call(json!({})).await;
    assert!(!said.is_error(), "{}", said.text);
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn no_text_promises_more_than_the_window_of_a_tool() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = Gateway::with_tool(&tool, "").await;
    let about = gateway.mcp("server/discover", json!({})).await;
    let about = about.at("/result/instructions").to_string();
    assert!(about.contains("may be taken for a new one"), "{about}");
    let unknown = gateway.mcp_call(json!({})).await;
    assert_told(
        &unknown,
        &["It may have happened", "may be taken for a new one"],
    );
    gateway.stop().await;
}

#[tokio::test]
async fn the_body_of_a_tools_rejection_is_passed_on_byte_for_byte() {
    const WHY: &str = r#"{"z": 1.50, "a": 12345678901234567890123, "q": "\u00e9"}"#;
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", WHY.as_bytes()));
    let gateway = Gateway::with_tool(&tool, "").await;
    let said = gateway.mcp_call(json!({})).await;
    assert!(said.told().ends_with(&format!("\n\n{WHY}")));
    assert!(
        said.text.contains(&format!("\"tool_body\":{WHY}")),
        "{}",
        said.text
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_forbidden_tool_is_counted_and_looks_like_one_that_does_not_exist() {
    let tool = Tool::start().await;
    let schema =
        "input_schema = { properties = { n = { type = \"integer\", x-mcp-header = \"N\" } } }";
    let tokens = token("narrow", r#"["call:other"]"#, "");
    let config = format!("{tokens}[tools.act]\nurl = \"{}\"\n{schema}\n", tool.url());
    let gateway = Gateway::start(&config).await;
    let call = async |name: &str| {
        let params = json!({ "name": name, "arguments": { "n": 1 } });
        let request = gateway.mcp_request("tools/call", params);
        Answer::to(request.bearer_auth("narrow")).await
    };
    let (real, made_up) = (call("act").await, call("nothing").await);
    assert_told(&real, &["this token may not do that"]);
    assert_eq!(real.message(), made_up.message());
    let line = "oncegate_refused_tokens_total{reason=\"scope\"}";
    until("both are counted", async || {
        gateway.metric(line).await >= 2.0
    })
    .await;
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}
