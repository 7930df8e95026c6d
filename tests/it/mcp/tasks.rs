//! Calls that a client asks for by their ids: tasks, `await_call`, and `GET /v1/calls/{id}/answer`.

use serde_json::{Value, json};

use crate::support::gateway::one_tool;
use crate::support::mcp::token;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

const TASKS: &str = "io.modelcontextprotocol/tasks";
const SOON: &str = "[mcp]\ntask_after = \"50ms\"\n";
/// `await_call` is listed, and calls outlast the wait for them.
const IMPATIENT: &str = "[mcp]\nanswer_within = \"200ms\"\nstream_after = \"50ms\"\n";

/// A request by a client that knows tasks.
async fn ask(gateway: &Gateway, method: &str, params: Value) -> Answer {
    ask_as(gateway, "", method, params).await
}

async fn ask_as(gateway: &Gateway, token: &str, method: &str, mut params: Value) -> Answer {
    let abilities = json!({ "extensions": { TASKS: {} } });
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = abilities;
    let name = params["taskId"].as_str().map(str::to_owned);
    let mut request = gateway.mcp_request(method, params);
    if let Some(name) = name {
        request = request.header("mcp-name", name);
    }
    if !token.is_empty() {
        request = request.bearer_auth(token);
    }
    Answer::to(request).await
}

async fn call(gateway: &Gateway, n: u32) -> Answer {
    let params = json!({ "name": "act", "arguments": { "n": n } });
    ask(gateway, "tools/call", params).await.expect_ok()
}

async fn task(gateway: &Gateway, id: &str) -> Answer {
    let asked = ask(gateway, "tasks/get", json!({ "taskId": id })).await;
    asked.expect_ok()
}

/// The id of the task that was given, and that it works.
#[track_caller]
fn given(said: &Answer) -> String {
    let result = &said.message()["result"];
    assert_eq!(result["resultType"], "task", "{}", said.text);
    assert_eq!(result["status"], "working", "{}", said.text);
    assert_eq!(result["ttlMs"], Value::Null, "no end is known");
    assert_eq!(result["pollIntervalMs"], 1_000);
    result["taskId"].as_str().expect("an id").to_owned()
}

async fn completed(gateway: &Gateway, id: &str) -> Value {
    until("it is completed", async || {
        task(gateway, id).await.message()["result"]["status"] == "completed"
    })
    .await;
    let task = task(gateway, id).await.message()["result"].take();
    assert_eq!(task["resultType"], "complete");
    task
}

on_both_stores!(
    a_long_call_becomes_a_task_whose_id_finds_it_on_every_gateway,
    a_lost_answer_is_asked_for_again_and_names_the_same_task,
    a_task_of_a_call_that_only_an_operator_settles_says_so_and_later_has_the_outcome,
    a_cancelled_call_that_was_sent_is_never_called_cancelled,
    a_task_belongs_to_the_token_that_made_the_call,
    a_call_that_is_accepted_is_answered_at_its_location,
);

async fn a_long_call_becomes_a_task_whose_id_finds_it_on_every_gateway(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let config = one_tool(&tool, SOON);
    let gateways = stores.gateways(&config).await;
    let (here, there) = (&gateways[0], gateways.last().expect("a gateway"));
    let id = given(&call(here, 1).await);
    for gateway in [here, there] {
        let working = task(gateway, &id).await.message()["result"].take();
        assert_eq!(
            (
                &working["taskId"],
                &working["status"],
                &working["resultType"]
            ),
            (&json!(id), &json!("working"), &json!("complete"))
        );
        assert_eq!(working.get("result"), None);
    }
    drop(hold);
    let done = completed(there, &id).await;
    let result = &done["result"];
    assert_eq!(result["isError"], false, "{done}");
    assert_eq!(result["_meta"]["dev.oncegate/call-id"], json!(id));
    assert_eq!(
        result["_meta"].get("dev.oncegate/replayed"),
        None,
        "it is the call's own answer"
    );
    assert!(done["ttlMs"].as_u64().is_some_and(|ttl| ttl > 60_000));
    assert_eq!(tool.effects(), 1);
    // The next process answers as well, and the same call again gets its result at once.
    let mut gateways = gateways;
    let last = gateways.pop().expect("a gateway");
    for other in gateways {
        other.stop().await;
    }
    let again = stores.again(last, &config).await;
    assert_eq!(completed(&again, &id).await["result"], *result);
    let replay = call(&again, 1).await;
    assert_eq!(replay.message()["result"]["resultType"], "complete");
    assert_eq!(replay.meta("call-id"), json!(id));
    assert_eq!(tool.effects(), 1);
    again.stop().await;
}

async fn a_lost_answer_is_asked_for_again_and_names_the_same_task(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateways = stores.gateways(&one_tool(&tool, SOON)).await;
    let first = given(&call(&gateways[0], 1).await);
    for gateway in &gateways {
        assert_eq!(given(&call(gateway, 1).await), first);
    }
    let other = call(&gateways[0], 2).await;
    assert_ne!(other.meta("call-id"), json!(first));
    drop(hold);
    completed(&gateways[0], &first).await;
    assert_eq!(tool.effects(), 2);
    for gateway in gateways {
        gateway.stop().await;
    }
}

async fn a_task_of_a_call_that_only_an_operator_settles_says_so_and_later_has_the_outcome(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let short = format!("timeout = \"200ms\"\ndeadline = \"3s\"\n{SOON}");
    let gateway = stores.gateway(&one_tool(&tool, &short)).await;
    let id = given(&call(&gateway, 1).await);
    until("it is unknown", async || {
        let task = task(&gateway, &id).await.message()["result"].take();
        let about = task["statusMessage"].as_str().unwrap_or_default();
        assert_eq!(task["status"], "working", "its lease runs");
        about.starts_with("It may have happened")
    })
    .await;
    // The lease ends, and no check is planned: an operator decides.
    let done = completed(&gateway, &id).await;
    let text = done["result"]["content"][0]["text"].as_str();
    assert!(text.is_some_and(|text| text.starts_with("It may have happened")));
    assert_eq!(done["result"]["isError"], true);
    let settled = json!({ "as": "succeeded", "result": { "by": "hand" }, "reason": "it is there" });
    let resolve = format!("/v1/calls/{id}/resolve");
    gateway.post_to(&resolve, &settled).await.expect_ok();
    let done = completed(&gateway, &id).await;
    assert_eq!(done["result"]["structuredContent"], json!({ "by": "hand" }));
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

async fn a_cancelled_call_that_was_sent_is_never_called_cancelled(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = stores.gateway(&one_tool(&tool, SOON)).await;
    let id = given(&call(&gateway, 1).await);
    for method in ["tasks/cancel", "tasks/update"] {
        let params = json!({ "taskId": id, "inputResponses": { "unknown": {} } });
        let said = ask(&gateway, method, params).await.expect_ok();
        assert_eq!(said.message()["result"]["resultType"], "complete");
    }
    let working = task(&gateway, &id).await.message()["result"].take();
    assert_eq!(working["status"], "working");
    drop(hold);
    let done = completed(&gateway, &id).await;
    assert_eq!(done["result"]["isError"], false);
    assert_eq!((tool.requests(), tool.effects()), (1, 1));
    gateway.stop().await;
}

async fn a_task_belongs_to_the_token_that_made_the_call(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let tokens = [
        token("mine", "[\"call\"]", ""),
        token("reader", "[\"read\", \"call\"]", ""),
        token("theirs", "[\"call\"]", ""),
        token("looks", "[\"read\"]", ""),
    ];
    let config = one_tool(&tool, &format!("{SOON}{}", tokens.concat()));
    let gateway = stores.gateway(&config).await;
    let key = json!({ "dev.oncegate/idempotency-key": "k" });
    let params = json!({ "name": "act", "arguments": {}, "_meta": key });
    let made = ask_as(&gateway, "mine", "tools/call", params.clone()).await;
    let id = given(&made.expect_ok());
    let random = "01a21efb-e1fa-70f1-89ed-340973f5c49c";
    let by = async |token: &str, method: &str, id: &str| {
        ask_as(&gateway, token, method, json!({ "taskId": id })).await
    };
    for token in ["mine", "reader"] {
        by(token, "tasks/get", &id).await.expect_ok();
    }
    let unknown = by("mine", "tasks/get", random).await;
    assert_eq!(unknown.rpc_code(), -32602);
    for token in ["theirs", "looks"] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let foreign = by(token, method, &id).await;
            assert_eq!(foreign.text, unknown.text, "{token} {method}");
        }
        let answer = format!("/v1/calls/{id}/answer");
        let request = gateway.client.get(gateway.url(&answer)).bearer_auth(token);
        Answer::to(request).await.expect_problem("unknown-call");
    }
    for malformed in ["", "x", &id.to_uppercase(), &id.replace('-', "")] {
        assert_eq!(by("mine", "tasks/get", malformed).await.rpc_code(), -32602);
    }
    // Another token that repeats the call finds it, and gets no task that it could not ask for.
    let found = ask_as(&gateway, "theirs", "tools/call", params).await;
    assert_eq!(found.message()["result"]["resultType"], "complete");
    assert_eq!(found.meta("call-id"), json!(id), "{}", found.text);
    drop(hold);
    gateway.stop().await;
}

async fn a_call_that_is_accepted_is_answered_at_its_location(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateways = stores.gateways(&one_tool(&tool, "")).await;
    let (here, there) = (&gateways[0], gateways.last().expect("a gateway"));
    let body = json!({ "args": {} });
    let accepted = here
        .post("act", &body, &[("prefer", "respond-async")])
        .await;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    let place = accepted.header("location").to_owned();
    let still = there.get(&place).await;
    assert_eq!((still.status, still.text), (202, accepted.text.clone()));
    for header in ["location", "idempotency-key", "x-call-id"] {
        assert_eq!(still.headers[header], accepted.headers[header], "{header}");
    }
    for said in [&accepted.headers, &still.headers] {
        let seconds = said["retry-after"].to_str().expect("text");
        assert!(
            seconds.parse::<u32>().is_ok_and(|seconds| seconds > 0),
            "{seconds}"
        );
    }
    let waiting = format!("{place}?wait=30");
    let (answered, ()) = tokio::join!(there.get(&waiting), async { drop(hold) });
    let answered = answered.expect_ok();
    let repeated = here.post("act", &body, &[]).await.expect_ok();
    for member in [
        "/call_id",
        "/status",
        "/result",
        "/replayed",
        "/idempotency_key",
    ] {
        assert_eq!(answered.at(member), repeated.at(member), "{member}");
    }
    there
        .get(&format!("{place}?wait=x"))
        .await
        .expect_problem("invalid-request");
    there
        .get(&format!("{place}?wait=61"))
        .await
        .expect_problem("invalid-request");
    there
        .get(&format!("{place}?until=1"))
        .await
        .expect_problem("invalid-request");
    assert_eq!(tool.effects(), 1);
    for gateway in gateways {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn an_answer_by_id_is_the_problem_that_a_repetition_gets() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    tool.then(Act::Answer(422, "", b"{\"why\":\"no\"}"));
    let rejected = gateway.call_with_key("r", json!({})).await;
    tool.then(Act::ExecuteThenDrop);
    let unknown = gateway.call_with_key("u", json!({})).await;
    for (first, slug) in [(rejected, "tool-rejected"), (unknown, "outcome-unknown")] {
        let first = first.expect_problem(slug);
        let asked = gateway
            .get(&format!("/v1/calls/{}/answer", first.id()))
            .await;
        let asked = asked.expect_problem(slug);
        assert_eq!(asked.status, first.status);
        for member in [
            "/type",
            "/effect",
            "/key_action",
            "/call_id",
            "/tool_status",
            "/tool_body",
        ] {
            assert_eq!(asked.at(member), first.at(member), "{slug} {member}");
        }
    }
    assert_eq!(tool.requests(), 2);
    gateway
        .get("/v1/calls/nonsense/answer")
        .await
        .expect_problem("unknown-call");
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_that_the_ledger_hides_is_given_to_the_token_that_made_the_call_alone() {
    let tool = Tool::start().await;
    for (hidden, others) in [("", 200), ("redact = { result = [\"/secret\"] }\n", 404)] {
        tool.then(Act::Ok("{\"secret\":\"s3\"}"));
        let tokens = token("mine", "[\"call\"]", "") + &token("reader", "[\"read\", \"call\"]", "");
        let gateway = Gateway::with_tool(&tool, &format!("{hidden}{tokens}")).await;
        let call = gateway.client.post(gateway.url("/v1/tools/act/calls"));
        let call = call.bearer_auth("mine").body("{\"args\":{}}");
        let made = Answer::to(call).await.expect_ok();
        let ask = async |token: &str| {
            let answer = format!("/v1/calls/{}/answer", made.id());
            let request = gateway.client.get(gateway.url(&answer)).bearer_auth(token);
            Answer::to(request).await
        };
        assert_eq!(ask("mine").await.at("/result/secret"), "s3");
        let other = ask("reader").await;
        assert_eq!(other.status, others, "{}", other.text);
        assert_eq!(other.text.contains("s3"), others == 200);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_client_without_tasks_is_never_given_one() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Gateway::with_tool(&tool, IMPATIENT).await;
    let said = gateway.mcp_call(json!({})).await;
    assert_eq!(said.message()["result"]["resultType"], "complete");
    assert!(said.told().starts_with("Still running"), "{}", said.told());
    let id = said.meta("call-id");
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({ "taskId": id });
        let request = gateway.mcp_request(method, params.clone());
        let request = request.header("mcp-name", id.as_str().expect("an id"));
        let refused = Answer::to(request).await;
        assert_eq!(
            (refused.status, refused.rpc_code()),
            (400, -32021),
            "{method}"
        );
        let wanted = &refused.message()["error"]["data"]["requiredCapabilities"];
        assert_eq!(*wanted, json!({ "extensions": { TASKS: {} } }));
        // The older revisions have no such method.
        assert_eq!(gateway.mcp_legacy(method, params).await.rpc_code(), -32601);
    }
    let listen = json!({ "notifications": { "taskIds": [id] } });
    let refused = gateway.mcp("subscriptions/listen", listen).await;
    assert_eq!((refused.status, refused.rpc_code()), (400, -32021));
    drop(hold);
    gateway.stop().await;
}

#[tokio::test]
async fn headers_of_a_request_for_a_task_agree_with_its_body() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let id = call(&gateway, 1).await.meta("call-id");
    let params = json!({ "taskId": id, "_meta": {
        "io.modelcontextprotocol/clientCapabilities": { "extensions": { TASKS: {} } } } });
    for name in [None, Some("another"), Some("")] {
        let mut request = gateway.mcp_request("tasks/get", params.clone());
        if let Some(name) = name {
            request = request.header("mcp-name", name);
        }
        let refused = Answer::to(request).await;
        assert_eq!(
            (refused.status, refused.rpc_code()),
            (400, -32020),
            "{name:?}"
        );
    }
    let missing = ask(&gateway, "tasks/get", json!({})).await;
    assert_eq!((missing.status, missing.rpc_code()), (400, -32602));
    gateway.stop().await;
}

#[tokio::test]
async fn the_settings_say_which_calls_become_tasks() {
    let tool = Tool::start().await;
    let gateway =
        Gateway::with_tool(&tool, "task = \"always\"\n[mcp]\ntask_after = \"1h\"\n").await;
    tool.always(Act::after_ms(100, Act::Numbered));
    let id = given(&call(&gateway, 1).await);
    completed(&gateway, &id).await;
    let about = ask(&gateway, "server/discover", json!({})).await;
    let extensions = &about.message()["result"]["capabilities"]["extensions"];
    assert_eq!(*extensions, json!({ TASKS: {} }));
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let about = gateway.mcp_legacy("initialize", params).await;
    assert_eq!(
        about.message()["result"]["capabilities"].get("extensions"),
        None
    );
    assert_eq!(
        gateway.metric(r#"oncegate_tasks_total{tool="act"}"#).await,
        1.0
    );
    gateway.stop().await;

    for without in [
        "task = \"never\"\n[mcp]\ntask_after = \"10ms\"\n",
        "effect = \"read\"\n[mcp]\ntask_after = \"10ms\"\n",
        "[mcp]\ntasks = false\ntask_after = \"10ms\"\n",
    ] {
        let gateway = Gateway::with_tool(&tool, without).await;
        let said = call(&gateway, 2).await;
        assert_eq!(
            said.message()["result"]["resultType"],
            "complete",
            "{without}"
        );
        gateway.stop().await;
    }
    let gateway = Gateway::with_tool(&tool, "[mcp]\ntasks = false\n").await;
    let gone = ask(&gateway, "tasks/get", json!({ "taskId": "x" })).await;
    assert_eq!(gone.rpc_code(), -32601);
    gateway.stop().await;
}

#[tokio::test]
async fn await_call_waits_for_a_call_and_executes_nothing() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Gateway::with_tool(&tool, IMPATIENT).await;
    let names = async |gateway: &Gateway| {
        let listed = gateway.mcp("tools/list", json!({})).await.message();
        let tools = listed["result"]["tools"].as_array().cloned();
        let tools = tools.expect("a list");
        let names = tools
            .iter()
            .map(|tool| tool["name"].as_str().map(str::to_owned));
        names.map(Option::unwrap_or_default).collect::<Vec<_>>()
    };
    assert_eq!(names(&gateway).await, ["act", "await_call"]);
    let running = gateway.mcp_call(json!({ "n": 1 })).await;
    let id = running.meta("call-id").as_str().expect("an id").to_owned();
    let told = running.told();
    assert!(told.contains("await_call") && told.contains(&id), "{told}");
    let wait = async |id: &str| {
        let params = json!({ "name": "await_call", "arguments": { "call_id": id } });
        gateway.mcp("tools/call", params).await
    };
    let still = wait(&id).await;
    assert!(
        still.is_error() && still.told().starts_with("Still running"),
        "{}",
        still.told()
    );
    drop(hold);
    until("it has ended", async || !wait(&id).await.is_error()).await;
    let (awaited, repeated) = (wait(&id).await, gateway.mcp_call(json!({ "n": 1 })).await);
    assert_eq!(awaited.meta("call-id"), json!(id));
    assert_eq!(
        awaited.message()["result"]["structuredContent"],
        repeated.message()["result"]["structuredContent"]
    );
    assert_eq!(awaited.meta("replayed"), Value::Null);
    let random = wait("01a21efb-e1fa-70f1-89ed-340973f5c49c").await;
    assert!(random.is_error(), "{}", random.text);
    for arguments in [
        json!({}),
        json!({ "call_id": "x" }),
        json!({ "call_id": id, "n": 1 }),
    ] {
        let params = json!({ "name": "await_call", "arguments": arguments });
        assert_eq!(gateway.mcp("tools/call", params).await.rpc_code(), -32602);
    }
    assert_eq!((tool.requests(), tool.effects()), (1, 1));
    gateway.stop().await;
    // No call of this tool outlasts the default wait.
    let gateway = Gateway::with_tool(&tool, "").await;
    assert_eq!(names(&gateway).await, ["act"]);
    gateway.stop().await;
}
