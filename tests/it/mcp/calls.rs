//! Calls by MCP: each has at most one effect, whatever a client repeats, and a model learns what happened.

use serde_json::{Value, json};

use crate::support::gateway::one_tool;
#[cfg(feature = "postgres")]
use crate::support::postgres::place;
use crate::support::redis::Redis;
use crate::support::{Act, Answer, Gateway, Tool, until};

const SLOW: &str = "[mcp]\nanswer_within = \"300ms\"\nstream_after = \"50ms\"\n";

#[tokio::test]
async fn a_result_is_text_and_structured_content_and_names_its_call() {
    let tool = Tool::start().await;
    tool.then(Act::Ok("{\"a\": 1.0,\n\"b\":\"\\\"q\\\"\"}"));
    let gateway = Gateway::with_tool(&tool, "").await;
    let said = gateway.mcp_call(json!({ "n": 1 })).await.expect_ok();
    assert_eq!(said.told(), "{\"a\": 1.0,\n\"b\":\"\\\"q\\\"\"}");
    assert!(!said.is_error());
    assert!(
        said.text.contains("\"structuredContent\":{\"a\": 1.0,\n"),
        "{}",
        said.text
    );
    let message = said.message();
    assert_eq!(
        (&message["jsonrpc"], &message["id"]),
        (&json!("2.0"), &json!(7))
    );
    assert_eq!(message["result"]["resultType"], "complete");
    assert_eq!(
        message["result"]["content"].as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(said.meta("replayed"), Value::Null);
    let id = said.meta("call-id");
    let record = gateway
        .get(&format!("/v1/calls/{}", id.as_str().expect("an id")))
        .await
        .expect_ok();
    assert_eq!(record.at("/state"), "succeeded");
    gateway.stop().await;
}

#[tokio::test]
async fn a_request_that_is_issued_again_executes_nothing_twice_and_says_so() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Gateway::with_tool(&tool, "").await;
    let first = gateway.mcp_call(json!({ "n": 1 })).await.expect_ok();
    let again = gateway.mcp_call(json!({ "n": 1 })).await.expect_ok();
    let legacy = json!({ "name": "act", "arguments": { "n": 1 } });
    let legacy = gateway.mcp_legacy("tools/call", legacy).await.expect_ok();
    for replay in [&again, &legacy] {
        assert_eq!(replay.meta("call-id"), first.meta("call-id"));
        assert_eq!(replay.meta("replayed"), true);
        assert!(replay.meta("age-ms").is_u64());
        let told = replay.told();
        let note = told.strip_suffix(&format!("\n\n{}", first.told()));
        let note = note.expect("the result, after a note");
        assert!(note.contains("nothing was executed again."), "{note}");
        assert!(note.contains("confirm_duplicate_of"), "{note}");
        let all = replay.message()["result"]["content"].clone();
        assert_eq!(all.as_array().map(Vec::len), Some(1), "{all}");
    }
    assert_eq!(legacy.message()["id"], "seven");
    assert_eq!(legacy.message()["result"].get("resultType"), None);
    assert_eq!(tool.effects(), 1);
    assert_eq!(
        gateway
            .metric(r#"oncegate_requests_total{door="mcp",tool="act"}"#)
            .await,
        3.0
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_is_the_same_by_http_and_by_mcp() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Gateway::with_tool(&tool, "").await;
    let by_http = gateway
        .call_with_key("k1", json!({ "n": 1 }))
        .await
        .expect_ok();
    let params = json!({ "name": "act", "arguments": { "n": 1 } });
    let request = gateway.mcp_request("tools/call", params.clone());
    let by_header = Answer::to(request.header("idempotency-key", "k1"))
        .await
        .expect_ok();
    let mut with_meta = params;
    with_meta["_meta"] = json!({ "dev.oncegate/idempotency-key": "k1" });
    let by_meta = gateway.mcp("tools/call", with_meta).await.expect_ok();
    let by_model = json!({ "n": 1, "idempotency_key": "k1" });
    let by_model = gateway.mcp_call(by_model).await.expect_ok();
    for said in [&by_header, &by_meta, &by_model] {
        assert_eq!(said.meta("call-id"), by_http.at("/call_id"));
        assert_eq!(
            said.message()["result"]["content"].as_array().map(Vec::len),
            Some(1)
        );
    }
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn derived_and_business_keys_of_http_and_mcp_are_equal_if_the_user_is_the_same() {
    let business = "key = { fields = [\"/n\"] }\ninput_schema = { required = [\"n\"] }";
    for (rules, source) in [("", "derived"), (business, "business")] {
        let tool = Tool::start().await;
        let gateway = Gateway::with_tool(&tool, rules).await;
        let by_mcp = gateway.mcp_call(json!({ "n": 1 })).await.expect_ok();
        // Without tokens an earlier release took this for the user of a call by MCP.
        let body = json!({ "args": { "n": 1 }, "user_id": "open" });
        let by_http = gateway.post("act", &body, &[]).await.expect_ok();
        assert_eq!(by_http.at("/replayed"), true, "{source}");
        assert_eq!(by_http.at("/call_id"), by_mcp.meta("call-id"));
        assert_eq!(gateway.record(&by_http).await.at("/key_source"), source);
        assert_eq!(tool.effects(), 1, "{source}");
        // Without tokens everybody is one user at both endpoints.
        let body = json!({ "args": { "n": 1 } });
        let same = gateway.post("act", &body, &[]).await.expect_ok();
        assert_eq!(same.at("/call_id"), by_mcp.meta("call-id"), "{source}");
        let body = json!({ "args": { "n": 1 }, "user_id": "U1" });
        let other = gateway.post("act", &body, &[]).await.expect_ok();
        assert_eq!(other.at("/replayed"), false, "{source}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn an_unknown_outcome_is_reported_as_unknown_and_never_sent_again() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = Gateway::with_tool(&tool, "").await;
    let mut told = Vec::new();
    for _ in 0..3 {
        let said = gateway.mcp_call(json!({ "n": 1 })).await.expect_ok();
        assert!(said.is_error());
        assert!(
            said.told().starts_with("It may have happened"),
            "{}",
            said.told()
        );
        assert_eq!(said.meta("problem")["effect"], "unknown");
        assert_eq!(said.meta("problem")["key_action"], "wait");
        told.push(said.meta("call-id"));
    }
    assert!(told[0].is_string());
    assert_eq!((&told[0], &told[0]), (&told[1], &told[2]));
    assert_eq!((tool.requests(), tool.effects()), (1, 1));
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_was_not_executed_is_reported_with_the_time_to_repeat_it() {
    let gateway = Gateway::start(
        "[tools.act]\nurl = \"http://127.0.0.1:1/\"\ntimeout = \"200ms\"\ndeadline = \"1s\"\nretry = { attempts = 1 }\n",
    )
    .await;
    let said = gateway.mcp_call(json!({})).await.expect_ok();
    assert!(said.is_error());
    let told = said.told();
    assert!(
        told.starts_with("Nothing was executed.") && told.contains("Repeat the same call"),
        "{told}"
    );
    assert_eq!(said.meta("problem")["effect"], "none");
    gateway.stop().await;
}

#[tokio::test]
async fn a_model_reads_why_the_tool_rejected_a_call() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", b"{\"why\":\"sold out\"}"));
    let gateway = Gateway::with_tool(&tool, "").await;
    let said = gateway.mcp_call(json!({})).await.expect_ok();
    assert!(said.is_error());
    assert!(
        said.told()
            .starts_with("The tool says that it rejected the call"),
        "{}",
        said.told()
    );
    let is_last = said.told().ends_with("\n\n{\"why\":\"sold out\"}");
    assert!(is_last, "{}", said.told());
    assert_eq!(tool.effects(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn mistakes_in_the_arguments_are_results_that_a_model_reads() {
    let tool = Tool::start().await;
    let schema = r#"input_schema = { type = "object", required = ["amount"], properties = { amount = { type = "integer" } } }"#;
    let gateway = Gateway::with_tool(&tool, schema).await;
    let said = gateway
        .mcp_call(json!({ "amount": "ten" }))
        .await
        .expect_ok();
    assert!(said.is_error());
    assert!(said.told().contains("/amount"), "{}", said.told());
    assert_eq!(said.meta("problem")["errors"][0]["pointer"], "/amount");
    let unknown = json!({ "name": "nothing", "arguments": {} });
    assert_eq!(gateway.mcp("tools/call", unknown).await.rpc_code(), -32602);
    let list = json!({ "name": "act", "arguments": [1] });
    assert_eq!(gateway.mcp("tools/call", list).await.rpc_code(), -32602);
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_long_call_is_a_stream_that_ends_in_its_result() {
    let tool = Tool::start().await;
    tool.then(Act::after_ms(200, Act::Ok("{\"a\":\r\n[1,\n2]}")));
    let gateway = Gateway::with_tool(&tool, "[mcp]\nstream_after = \"20ms\"\n").await;
    let said = gateway.mcp_call(json!({})).await.expect_ok();
    assert_eq!(said.header("content-type"), "text/event-stream");
    assert_eq!(said.header("x-accel-buffering"), "no");
    assert_eq!(
        said.message()["result"]["structuredContent"],
        json!({ "a": [1, 2] })
    );
    assert_eq!(
        said.text
            .lines()
            .filter(|line| line.starts_with("data: "))
            .count(),
        1
    );
    // A client that accepts no stream waits for the whole answer.
    tool.then(Act::after_ms(200, Act::Numbered));
    let request = gateway.mcp_request(
        "tools/call",
        json!({ "name": "act", "arguments": { "n": 2 } }),
    );
    let mut request = request.build().expect("a request");
    request
        .headers_mut()
        .insert("accept", "application/json".parse().expect("a value"));
    let whole = Answer::read(gateway.client.execute(request).await.expect("an answer")).await;
    assert_eq!(whole.header("content-type"), "application/json");
    assert!(!whole.is_error());
    gateway.stop().await;
}

#[tokio::test]
async fn a_running_call_is_reported_as_running_and_its_repetition_gets_the_result() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Gateway::with_tool(&tool, SLOW).await;
    for _ in 0..2 {
        let said = gateway.mcp_call(json!({})).await.expect_ok();
        assert!(said.is_error());
        assert!(
            said.told().starts_with("Still running, not failed."),
            "{}",
            said.told()
        );
    }
    drop(hold);
    until("it has ended", async || {
        !gateway.mcp_call(json!({})).await.is_error()
    })
    .await;
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_caller_that_hangs_up_ends_its_wait_but_not_the_call() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Gateway::with_tool(&tool, "[mcp]\nstream_after = \"10ms\"\n").await;
    let request = gateway.mcp_request("tools/call", json!({ "name": "act", "arguments": {} }));
    let stream = request.send().await.expect("the head of a stream");
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    // The request for the metric is a connection, too.
    let connections = async || gateway.metric("oncegate_connections").await;
    until("both are open", async || connections().await >= 2.0).await;
    drop(stream);
    until("it has hung up", async || connections().await < 2.0).await;
    drop(hold);
    let said = gateway.mcp_call(json!({})).await;
    assert!(!said.is_error(), "{}", said.text);
    assert_eq!((tool.requests(), tool.effects()), (1, 1));
    gateway.stop().await;
}

#[tokio::test]
async fn a_header_brings_the_clients_own_id_of_a_call_where_the_configuration_says() {
    let tool = Tool::start().await;
    let more = "[mcp]\nclient_call_id = [\"header:x-call\"]\n";
    let gateway = Gateway::with_tool(&tool, more).await;
    let ask = async |n: u32, header: &str, member: Option<&str>| {
        let meta = member.map_or(json!({}), |id| json!({ "dev.oncegate/client-call-id": id }));
        let params = json!({ "name": "act", "arguments": { "n": n }, "_meta": meta });
        let request = gateway.mcp_request("tools/call", params);
        Answer::to(request.header("x-call", header)).await
    };
    let one = ask(1, "thread-1:call-1", None).await.expect_ok();
    let id = one.meta("call-id");
    let record = format!("/v1/calls/{}", id.as_str().expect("an id"));
    let record = gateway.get(&record).await.expect_ok();
    assert_eq!(
        record.at("/client_ids/dev.oncegate~1client-call-id"),
        "thread-1:call-1",
        "{}",
        record.text
    );
    // It stands for that call, and the member of `_meta` counts before it.
    let other = ask(2, "thread-1:call-1", None).await;
    assert_eq!(other.meta("problem")["type"], "/problems/key-reused");
    let by_member = ask(2, "thread-1:call-2", Some("thread-1:call-1")).await;
    assert_eq!(by_member.meta("problem")["type"], "/problems/key-reused");
    let again = ask(1, "thread-1:call-1", None).await.expect_ok();
    assert_eq!((again.meta("call-id"), tool.effects()), (id, 1));
    gateway.stop().await;
}

#[tokio::test]
async fn user_session_saga_and_fencing_token_are_read_where_the_configuration_says() {
    let tool = Tool::start().await;
    let more = "compensation = \"none\"\n[mcp]\nuser = [\"header:x-user\"]\nsession = [\"meta:thread\"]\nkey_meta = [\"run/step\"]\n";
    let gateway = Gateway::with_tool(&tool, more).await;
    let meta = json!({
        "thread": "t-1", "run/step": "step-1", "dev.oncegate/saga": "s-1",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    });
    let params = json!({ "name": "act", "arguments": {}, "_meta": meta });
    let request = gateway
        .mcp_request("tools/call", params)
        .header("x-user", "ada");
    let said = Answer::to(request).await.expect_ok();
    let id = said.meta("call-id");
    let record = gateway
        .get(&format!("/v1/calls/{}", id.as_str().expect("an id")))
        .await
        .expect_ok();
    for (pointer, value) in [
        ("/user_id", "ada"),
        ("/session_id", "t-1"),
        ("/saga_id", "s-1"),
        ("/key", "step-1"),
        ("/trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
    ] {
        assert_eq!(record.at(pointer), value, "{pointer}");
    }
    assert_eq!(said.meta("saga"), "s-1");
    // Without any of these, and without tokens, the session has the caller's name, and the user none, as over HTTP.
    let said = gateway.mcp_call(json!({ "n": 2 })).await;
    let id = said.meta("call-id");
    let record = gateway
        .get(&format!("/v1/calls/{}", id.as_str().expect("an id")))
        .await
        .expect_ok();
    assert_eq!(
        (record.at("/user_id"), record.at("/session_id")),
        (Value::Null, "open".into())
    );
    gateway.stop().await;
}

#[tokio::test]
async fn an_old_fencing_token_stops_a_branch_by_mcp_too() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let first = gateway.mcp_call(json!({ "n": 1 })).await;
    let old = first.meta("fencing-token");
    assert!(old.is_u64());
    assert!(!gateway.mcp_call(json!({ "n": 2 })).await.is_error());
    let params = json!({ "name": "act", "arguments": { "n": 3 }, "_meta": { "dev.oncegate/fencing-token": old } });
    let stale = gateway.mcp("tools/call", params).await;
    assert!(stale.is_error());
    assert_eq!(
        stale.meta("problem")["type"],
        "/problems/stale-fencing-token"
    );
    for wrong in [json!("1"), json!(-1), json!(1_u64 << 53)] {
        let params = json!({ "name": "act", "arguments": {}, "_meta": { "dev.oncegate/fencing-token": wrong } });
        assert_eq!(gateway.mcp("tools/call", params).await.rpc_code(), -32602);
    }
    assert_eq!(tool.requests(), 2);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_of_one_redis_run_a_call_by_mcp_once() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.always(Act::after_ms(100, Act::Numbered));
    let config = one_tool(&tool, "");
    let one = Gateway::sharing(&redis.url(), &config).await;
    let other = Gateway::sharing(&redis.url(), &config).await;
    one.until_ready().await;
    other.until_ready().await;
    let calls = (0..20).map(|n| {
        if n % 2 == 0 {
            one.mcp_call(json!({}))
        } else {
            other.mcp_call(json!({}))
        }
    });
    let said = futures_util::future::join_all(calls).await;
    let told = said.iter().map(|said| said.told());
    let first = told.min_by_key(String::len).expect("an answer");
    assert!(
        said.iter()
            .all(|said| !said.is_error() && said.told().ends_with(&first))
    );
    assert_eq!(tool.effects(), 1);
    one.stop().await;
    other.stop().await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_of_one_postgres_run_a_call_by_mcp_once() {
    let (place, tool) = (place().await, Tool::start().await);
    tool.always(Act::after_ms(100, Act::Numbered));
    let config = one_tool(&tool, "");
    let one = Gateway::sharing(&place, &config).await;
    let other = Gateway::sharing(&place, &config).await;
    one.until_ready().await;
    other.until_ready().await;
    let calls = (0..20).map(|n| {
        if n % 2 == 0 {
            one.mcp_call(json!({}))
        } else {
            other.mcp_call(json!({}))
        }
    });
    let said = futures_util::future::join_all(calls).await;
    let told = said.iter().map(|said| said.told());
    let first = told.min_by_key(String::len).expect("an answer");
    assert!(
        said.iter()
            .all(|said| !said.is_error() && said.told().ends_with(&first))
    );
    assert_eq!(tool.effects(), 1);
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_stored_result_of_any_kind_is_answered_in_both_eras() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    for (n, json) in ["[1]", "\"a\"", "1.50", "null", "true"]
        .into_iter()
        .enumerate()
    {
        tool.then(Act::Ok(json));
        let modern = gateway.mcp_call(json!({ "n": n })).await;
        assert_eq!(modern.told(), json);
        assert!(
            modern
                .text
                .contains(&format!("\"structuredContent\":{json},")),
            "{}",
            modern.text
        );
        let params = json!({ "name": "act", "arguments": { "n": n } });
        let legacy = gateway.mcp_legacy("tools/call", params).await;
        assert!(legacy.told().ends_with(&format!("\n\n{json}")));
        assert_eq!(
            legacy.message()["result"].get("structuredContent"),
            None,
            "no object"
        );
    }
    tool.then(Act::Answer(200, "", b"thank \"you\""));
    let text = gateway.mcp_call(json!({ "n": "text" })).await;
    assert_eq!(
        text.message()["result"]["structuredContent"],
        json!({ "text": "thank \"you\"" })
    );
    gateway.stop().await;
}
