//! MCP servers that answer a call with questions, and calls that bring the answers.

use serde_json::{Value, json};

use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::{Does, Upstream, asks, result};
use crate::support::{Answer, Gateway, until};

on_both_stores!(
    a_round_is_answered_once_and_its_answers_are_sent_once,
    each_of_several_rounds_is_a_call_of_its_own,
    answers_whose_outcome_is_unknown_are_never_sent_again,
);

const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Calls `act` as a client that can answer questions.
async fn call(gateway: &Gateway, mut params: Value) -> Answer {
    params["name"] = "act".into();
    if params.get("arguments").is_none() {
        params["arguments"] = json!({ "n": 1 });
    }
    if params.get("_meta").is_none() {
        params["_meta"] = json!({});
    }
    params["_meta"][CAPABILITIES] = json!({ "elicitation": { "form": {} }, "other": {} });
    gateway.mcp("tools/call", params).await
}

/// The `requestState` of an answer that asks questions.
#[track_caller]
fn state(answer: &Answer) -> Value {
    let result = answer.message()["result"].clone();
    assert_eq!(result["resultType"], "input_required", "{}", answer.text);
    assert_eq!(result["inputRequests"], asks(None)["inputRequests"]);
    result["requestState"].clone()
}

fn accept(n: i64) -> Value {
    json!({ "sure": { "action": "accept", "content": { "n": n } } })
}

async fn answer(gateway: &Gateway, state: &Value, responses: Value) -> Answer {
    let params = json!({ "inputResponses": responses, "requestState": state });
    call(gateway, params).await
}

async fn a_round_is_answered_once_and_its_answers_are_sent_once(stores: &Stores) {
    for (n, theirs) in [None, Some("a.state")].into_iter().enumerate() {
        let args = json!({ "n": 1, "round": n });
        let upstream = Upstream::modern().await;
        let gateway = stores.gateway(&upstream.config("")).await;
        upstream.then(Does::Ask(asks(theirs)));
        let first = call(&gateway, json!({ "arguments": args })).await;
        // A repetition gets the same questions.
        let again = call(&gateway, json!({ "arguments": args })).await;
        assert_eq!(state(&again), state(&first));
        assert_eq!(again.meta("replayed"), true);
        assert_eq!(upstream.effects(), 0);

        let state = state(&first);
        let answer = |n: i64| {
            let params =
                json!({ "arguments": args, "inputResponses": accept(n), "requestState": state });
            call(&gateway, params)
        };
        let said = answer(1).await;
        assert_eq!(said.told(), "done");
        assert_ne!(said.meta("call-id"), first.meta("call-id"));
        let replay = answer(1).await;
        assert_eq!(replay.meta("replayed"), true);
        assert_eq!(replay.meta("call-id"), said.meta("call-id"));
        // The same answers may have been given twice on purpose, so a note tells that nothing ran again.
        let note = "nothing was executed again";
        assert!(replay.text.contains(note), "{}", replay.text);
        assert!(!said.text.contains(note), "{}", said.text);
        let other = answer(2).await;
        assert!(
            other.is_error() && other.told().contains("answered before"),
            "{}",
            other.text
        );
        assert_eq!(other.meta("problem")["type"], "/problems/key-reused");
        assert_eq!(other.meta("problem")["key_action"], "stop");
        // Another key does not help.
        let renamed = json!({ "arguments": args, "inputResponses": accept(2), "requestState": state,
            "_meta": { "dev.oncegate/idempotency-key": "another" } });
        assert!(call(&gateway, renamed).await.is_error());
        assert_eq!(upstream.effects(), 1);

        let calls = upstream.seen("tools/call");
        assert_eq!(calls.len(), 2);
        let params = &calls[1].1["params"];
        assert_eq!(params["arguments"], args);
        assert_eq!(params["inputResponses"], accept(1));
        assert_eq!(
            params.get("requestState"),
            theirs.map(|state| json!(state)).as_ref()
        );
        let can = json!({ "elicitation": { "form": {} } });
        assert_eq!(params["_meta"][CAPABILITIES], can, "what can be answered");
        let record = gateway
            .get(&format!(
                "/v1/calls/{}",
                said.meta("call-id").as_str().expect("an id")
            ))
            .await;
        assert_eq!(record.at("/key_source"), "round");
        gateway.stop().await;
    }
}

async fn each_of_several_rounds_is_a_call_of_its_own(stores: &Stores) {
    let upstream = Upstream::modern().await;
    let config = upstream.config(
        "budget = { per = \"session\", max = 1, window = \"10m\" }\n\
         similar = { fields = [\"/n\"], window = \"10m\", action = \"refuse\" }",
    );
    let gateway = stores.gateway(&config).await;
    for does in [
        Does::Ask(asks(Some("1"))),
        Does::Ask(asks(None)),
        Does::Ask(asks(None)),
    ] {
        upstream.then(does);
    }
    let mut asked = vec![state(&call(&gateway, json!({})).await)];
    for n in 0..2 {
        let said = answer(&gateway, &asked[n], accept(1)).await;
        asked.push(state(&said));
    }
    assert_eq!(answer(&gateway, &asked[2], accept(1)).await.told(), "done");
    assert_eq!(upstream.effects(), 1);
    // The questions of each round are repeated to each repetition.
    for n in 0..2 {
        let said = answer(&gateway, &asked[n], accept(1)).await;
        assert_eq!(state(&said), asked[n + 1]);
    }
    assert_eq!(upstream.seen("tools/call").len(), 4);
    gateway.stop().await;
}

async fn answers_whose_outcome_is_unknown_are_never_sent_again(stores: &Stores) {
    let upstream = Upstream::modern().await;
    let gateway = stores.gateway(&upstream.config("")).await;
    upstream.then(Does::Ask(asks(None)));
    let first = call(&gateway, json!({})).await;
    upstream.then(Does::ExecuteThenStatus(500));
    for _ in 0..3 {
        let said = answer(&gateway, &state(&first), accept(1)).await;
        assert_eq!(said.meta("problem")["type"], "/problems/outcome-unknown");
    }
    let other = answer(&gateway, &state(&first), accept(2)).await;
    assert_eq!(other.meta("problem")["type"], "/problems/key-reused");
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn answers_to_another_calls_questions_are_never_sent() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("")).await;
    upstream.then(Does::Ask(asks(Some("s"))));
    let first = state(&call(&gateway, json!({})).await);
    let done = call(&gateway, json!({ "arguments": { "n": 2 } })).await;
    let done = done.meta("call-id");
    let first = first.as_str().expect("a state");
    let nothing = "01a204fb-4781-776a-aa14-a78d6ac6bf9c";
    for state in [
        "",
        "s",
        nothing,
        done.as_str().expect("an id"),
        &first[..36],
        &format!("{first}x"),
    ] {
        let said = answer(&gateway, &json!(state), accept(1)).await;
        assert_eq!(said.rpc_code(), -32_602, "{state}");
    }
    for params in [
        // The state belongs to a call with other arguments.
        json!({ "arguments": { "n": 3 }, "requestState": first }),
        json!({ "inputResponses": [], "requestState": first }),
        json!({ "requestState": 1 }),
    ] {
        assert_eq!(
            call(&gateway, params.clone()).await.rpc_code(),
            -32_602,
            "{params}"
        );
    }
    // The state belongs to a call of another user.
    let config = upstream.config("[mcp]\nuser = [\"meta:user\"]");
    let gateway = gateway.restart_with(&config).await;
    let other = json!({ "requestState": first, "_meta": { "user": "another" } });
    assert_eq!(call(&gateway, other).await.rpc_code(), -32_602);
    // The arguments cannot carry answers.
    let member = json!({ "n": 1, "dev.oncegate/round": { "call": &first[..36], "state": "s" } });
    gateway.call(member).await.expect_problem("invalid-request");
    assert_eq!(upstream.seen("tools/call").len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn answers_without_a_state_lead_to_the_questions_again() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("")).await;
    upstream.then(Does::Ask(asks(None)));
    let first = call(&gateway, json!({ "inputResponses": accept(1) })).await;
    let again = call(&gateway, json!({ "inputResponses": accept(2) })).await;
    assert_eq!(state(&again), state(&first));
    let calls = upstream.seen("tools/call");
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].1["params"].get("inputResponses"), None);
    gateway.stop().await;
}

#[tokio::test]
async fn a_caller_that_cannot_answer_questions_gets_a_problem() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("")).await;
    upstream.then(Does::Ask(asks(None)));
    let meta = json!({ "dev.oncegate/idempotency-key": "k" });
    let params = json!({ "name": "act", "arguments": { "n": 1 }, "_meta": meta });
    for _ in 0..2 {
        let said = gateway.mcp_legacy("tools/call", params.clone()).await;
        assert!(
            said.is_error()
                && said
                    .told()
                    .starts_with("Nothing was executed: the tool asks")
        );
        assert_eq!(said.meta("problem")["type"], "/problems/input-required");
        gateway
            .call_with_key("k", json!({ "n": 1 }))
            .await
            .expect_problem("input-required");
    }
    let calls = upstream.seen("tools/call");
    assert_eq!(calls.len(), 1);
    let abilities = &calls[0].1["params"]["_meta"][CAPABILITIES];
    assert_eq!(abilities["elicitation"], Value::Null);
    gateway.stop().await;
}

#[tokio::test]
async fn a_saga_has_nothing_to_undo_of_a_call_that_only_asked() {
    let upstream = Upstream::modern().await;
    let config = upstream.config(
        "compensation = { tool = \"undo\", args = { all = \"/args\" } }\n\
         [tools.undo]\nupstream = \"up\"",
    );
    let gateway = Gateway::start(&config).await;
    upstream.then(Does::Ask(asks(None)));
    let saga = json!({ "dev.oncegate/saga": "s" });
    let first = call(&gateway, json!({ "_meta": saga })).await;
    // The answers name no saga; they belong to the saga of the call that asked.
    let said = answer(&gateway, &state(&first), accept(1)).await;
    assert_eq!(
        (said.told().as_str(), said.meta("saga")),
        ("done", json!("s"))
    );
    let abort = json!({ "reason": "changed" });
    gateway.post_to("/v1/sagas/s/abort", &abort).await;
    until("it is undone", async || {
        gateway.get("/v1/sagas/s").await.at("/state") == "compensated"
    })
    .await;
    let calls = upstream.seen("tools/call");
    assert_eq!(calls.len(), 3, "what asked is not undone");
    let undo = &calls[2].1["params"];
    assert_eq!(undo["name"], "undo");
    assert_eq!(
        undo["arguments"],
        json!({ "all": { "n": 1 } }),
        "nor is it answered"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_compensation_must_not_ask_questions() {
    let upstream = Upstream::modern().await;
    let config = upstream.config(
        "compensation = { tool = \"undo\", args = { n = \"/args/n\" } }\n\
         [tools.undo]\nupstream = \"up\"",
    );
    let gateway = Gateway::start(&config).await;
    upstream
        .then(Does::Json(result("done")))
        .then(Does::Ask(asks(None)));
    let body = json!({ "args": { "n": 1 }, "saga_id": "s", "idempotency_key": "k" });
    gateway.post("act", &body, &[]).await.expect_ok();
    let abort = json!({ "reason": "changed" });
    gateway.post_to("/v1/sagas/s/abort", &abort).await;
    until("it has asked", async || {
        gateway.get("/v1/sagas/s").await.at("/calls/0/compensation") == "unknown"
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn answers_are_kept_for_a_call_that_is_sent_again() {
    let upstream = Upstream::modern().await;
    let config = upstream.config(
        "dedup = \"key\"\nunknown = \"retry\"\nretry = { attempts = 1 }\n\
         recheck = { base = \"100ms\", max = \"200ms\" }",
    );
    let gateway = Gateway::start(&config).await;
    upstream.then(Does::Ask(asks(Some("s"))));
    let first = state(&call(&gateway, json!({})).await);
    upstream.then(Does::ExecuteThenStatus(500));
    answer(&gateway, &first, accept(1)).await;
    until("it is sent again", async || {
        upstream.seen("tools/call").len() == 3
    })
    .await;
    let calls = upstream.seen("tools/call");
    for name in ["inputResponses", "requestState", "arguments"] {
        assert_eq!(
            calls[1].1["params"][name], calls[2].1["params"][name],
            "{name}"
        );
    }
    until("it is settled", async || {
        !answer(&gateway, &first, accept(1)).await.is_error()
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_read_may_ask_too() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("effect = \"read\"")).await;
    upstream.then(Does::Ask(asks(None)));
    let first = state(&call(&gateway, json!({})).await);
    let said = answer(&gateway, &first, accept(1)).await;
    assert_eq!(said.told(), "done");
    // A read is executed each time, and never answered from the store.
    let again = answer(&gateway, &first, accept(1)).await;
    assert_eq!(again.meta("replayed"), Value::Null);
    assert_eq!(upstream.seen("tools/call").len(), 3);
    gateway.stop().await;
}
