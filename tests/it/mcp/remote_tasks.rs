//! Servers that answer a call with a task: it is written down, followed until its end, and found again after a restart.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::binary::{Process, free_port};
use crate::support::stores::{Stores, begin, on_both_stores};
use crate::support::upstream::{Does, TASKS, Upstream, asks, result};
use crate::support::{Answer, Gateway, PATIENCE, until};

on_both_stores!(
    a_task_of_a_server_is_followed_and_its_end_is_the_answer_of_the_call,
    a_task_that_outlasts_the_deadline_is_unknown_until_its_id_tells_its_end,
    a_server_that_is_gone_after_it_gave_a_task_is_asked_when_it_is_back,
    a_task_that_ends_without_proof_leaves_the_call_unknown,
    after_a_client_has_asked_to_cancel_nothing_more_is_sent,
    a_server_asks_in_its_task_and_is_answered_by_the_caller_alone,
);

/// Time for one attempt, and checks one after the other.
const SHORT: &str = "timeout = \"2s\"\ndeadline = \"2s\"\nretry = { attempts = 1 }\nrecheck = { base = \"300ms\", max = \"300ms\" }\n";

fn completed(said: &str) -> Value {
    json!({ "status": "completed", "result": result(said) })
}

async fn until_asked(upstream: &Upstream) {
    let asked = upstream.seen("tasks/get").len();
    until("the server is asked for its task", async || {
        upstream.seen("tasks/get").len() > asked
    })
    .await;
}

async fn until_state(gateway: &Gateway, of: &Answer, state: &str) -> Answer {
    until(state, async || {
        gateway.record(of).await.at("/state") == state
    })
    .await;
    gateway.record(of).await
}

/// Begins a call whose server answers with this task, and waits until that is written down.
async fn begun(
    gateway: &Gateway,
    upstream: &Upstream,
    key: &str,
    task: &'static str,
) -> tokio::task::JoinHandle<Answer> {
    upstream.then(Does::Task(task));
    let call = begin(gateway, key, json!({}));
    until_asked(upstream).await;
    call
}

async fn a_task_of_a_server_is_followed_and_its_end_is_the_answer_of_the_call(stores: &Stores) {
    let upstream = Upstream::modern().await;
    let gateways = stores.gateways(&upstream.config("")).await;
    let (here, there) = (&gateways[0], gateways.last().expect("one"));
    let call = begun(here, &upstream, "k", "t-1").await;
    until_asked(&upstream).await;
    // Somebody else waits for it.
    let other = begin(there, "k", json!({}));
    upstream.task("t-1", completed("done at last"));
    let first = call.await.expect("no panic").expect_ok();
    assert_eq!(
        first.at("/result/structuredContent/said"),
        "done at last",
        "{}",
        first.text
    );
    let joined = other.await.expect("no panic").expect_ok();
    assert_eq!(joined.result(), first.result());
    let record = there.record(&first).await;
    assert_eq!(record.events()[..2], ["claimed", "task_given"]);
    let asked = upstream.seen("tasks/get").len();
    let again = there.call_with_key("k", json!({})).await.expect_ok();
    assert_eq!(again.result(), first.result());
    let (headers, question) = upstream.seen("tasks/get").pop().expect("one");
    assert_eq!(headers["mcp-name"], "t-1");
    assert_eq!(headers["x-secret"], "of-the-gateway");
    assert_eq!(question["params"]["taskId"], "t-1");
    assert_eq!(upstream.seen("tasks/get").len(), asked);
    assert_eq!(
        (upstream.effects(), upstream.seen("tools/call").len()),
        (1, 1)
    );
    for gateway in gateways {
        gateway.stop().await;
    }
}

async fn a_task_that_outlasts_the_deadline_is_unknown_until_its_id_tells_its_end(stores: &Stores) {
    let upstream = Upstream::modern().await;
    let config = upstream.config(SHORT);
    let gateway = stores.gateway(&config).await;
    let call = begun(&gateway, &upstream, "k", "t-1").await;
    let unknown = call.await.expect("no panic");
    let unknown = unknown.expect_problem("outcome-unknown");
    assert!(
        unknown.at("/retry_after_ms").as_u64().is_some(),
        "a check is planned: {}",
        unknown.text
    );
    // The tool has no probe and sends nothing again, but its task is known, also to the next process.
    let gateway = stores.again(gateway, &config).await;
    gateway.until_ready().await;
    until_asked(&upstream).await;
    let record = gateway.record(&unknown).await;
    assert_eq!(record.at("/state"), "unknown");
    assert!(!record.text.contains("t-1"), "its id may be a secret");
    // It cannot be called a failure while the server works on it.
    let settles = json!({ "as": "failed", "reason": "it takes too long" });
    let resolve = format!("/v1/calls/{}/resolve", unknown.id());
    let refused = gateway.post_to(&resolve, &settles).await;
    refused.expect_problem("wrong-state");
    upstream.task("t-1", completed("late"));
    until_state(&gateway, &unknown, "succeeded").await;
    let replay = gateway.call_with_key("k", json!({})).await.expect_ok();
    assert_eq!(replay.at("/result/structuredContent/said"), "late");
    assert_eq!(
        (upstream.effects(), upstream.seen("tools/call").len()),
        (1, 1)
    );
    gateway.stop().await;
}

async fn a_server_that_is_gone_after_it_gave_a_task_is_asked_when_it_is_back(stores: &Stores) {
    let upstream = Upstream::modern().await;
    // Whatever the policy is: the task is asked for, and nothing is sent again.
    for policy in ["", "unknown = \"retry\"\ndedup = \"key\"\n"] {
        let key = if policy.is_empty() { "held" } else { "sent" };
        let task = if policy.is_empty() { "t-1" } else { "t-2" };
        let gateway = stores
            .gateway(&upstream.config(&format!("{SHORT}{policy}")))
            .await;
        let before = upstream.effects();
        let call = begun(&gateway, &upstream, key, task).await;
        upstream.is_down(true);
        let unknown = call
            .await
            .expect("no panic")
            .expect_problem("outcome-unknown");
        until_state(&gateway, &unknown, "unknown").await;
        upstream.is_down(false);
        upstream.task(task, completed("back"));
        until_state(&gateway, &unknown, "succeeded").await;
        let replay = gateway.call_with_key(key, json!({})).await.expect_ok();
        assert_eq!(replay.at("/result/structuredContent/said"), "back");
        assert_eq!(upstream.effects(), before + 1, "{policy}");
        gateway.stop().await;
    }
    assert_eq!(upstream.seen("tools/call").len(), 2);
}

async fn a_task_that_ends_without_proof_leaves_the_call_unknown(stores: &Stores) {
    let upstream = Upstream::modern().await;
    let gateway = stores.gateway(&upstream.config(SHORT)).await;
    let failed = json!({ "status": "failed", "error": { "code": -32_603, "message": "m" } });
    let another = json!({ "resultType": "task", "taskId": "t-9", "status": "working" });
    for (key, task, says) in [
        ("gone", "t-1", Value::Null),
        ("cancelled", "t-2", json!({ "status": "cancelled" })),
        ("failed", "t-3", failed),
        (
            "another",
            "t-4",
            json!({ "status": "completed", "result": another }),
        ),
    ] {
        upstream.task(task, says);
        upstream.then(Does::Task(task));
        let call = gateway.call_with_key(key, json!({})).await;
        let unknown = call.expect_problem("outcome-unknown");
        // Where nothing more can be learned, an operator decides.
        until("nothing more is planned", async || {
            let record = gateway.record(&unknown).await;
            assert_eq!(record.at("/state"), "unknown", "{key}");
            record.at("/next_check_at") == Value::Null
        })
        .await;
        let again = gateway.call_with_key(key, json!({})).await;
        again.expect_problem("outcome-unknown");
    }
    let about = upstream.seen("tasks/get");
    let asked_for_another = about
        .iter()
        .any(|(_, asked)| asked["params"]["taskId"] == "t-9");
    assert!(!asked_for_another, "a task is not followed to a second one");
    assert_eq!(
        (upstream.effects(), upstream.seen("tools/call").len()),
        (4, 4)
    );
    gateway.stop().await;
}

async fn after_a_client_has_asked_to_cancel_nothing_more_is_sent(stores: &Stores) {
    let upstream = Upstream::modern().await;
    for (how, told) in [("keep", 0), ("forward", 2)] {
        let retries = "timeout = \"1s\"\ndeadline = \"4s\"\nunknown = \"retry\"\ndedup = \"key\"\n\
             recheck = { base = \"300ms\", max = \"300ms\" }\n";
        let more = format!("{retries}cancel = \"{how}\"\n[mcp]\ntask_after = \"50ms\"\n");
        let gateways = stores.gateways(&upstream.config(&more)).await;
        let (here, there) = (&gateways[0], gateways.last().expect("one"));
        let (sent, effects) = (upstream.seen("tools/call").len(), upstream.effects());
        upstream.then(Does::Task("t-1"));
        upstream.task("t-1", json!({ "status": "working" }));
        let params = json!({ "name": "act", "arguments": { "how": how } });
        let made = as_task(here, "tools/call", params).await;
        let id = made["result"]["taskId"]
            .as_str()
            .expect("a task")
            .to_owned();
        until_asked(&upstream).await;
        for gateway in [here, there] {
            as_task(gateway, "tasks/cancel", json!({ "taskId": id })).await;
        }
        assert_eq!(upstream.seen("tasks/cancel").len(), told, "{how}");
        let status = async |gateway: &Gateway| {
            let task = as_task(gateway, "tasks/get", json!({ "taskId": id })).await;
            task["result"]["status"].clone()
        };
        assert_eq!(status(there).await, "working");
        // The task says nothing more: the policy would send the call again.
        upstream.task("t-1", Value::Null);
        let url = format!("/v1/calls/{id}");
        until("it is given up", async || {
            let record = here.get(&url).await.expect_ok();
            record.events().contains(&"given_up".to_owned())
        })
        .await;
        let record = here.get(&url).await.expect_ok();
        assert_eq!(record.at("/state"), "unknown");
        let asked = record.events().into_iter();
        assert_eq!(asked.filter(|event| event == "cancel_asked").count(), 1);
        // As long as its lease runs, an answer may come.
        until("it is completed, and never cancelled", async || {
            let status = status(here).await;
            assert_ne!(status, "cancelled");
            status == "completed"
        })
        .await;
        assert_eq!(
            (upstream.effects(), upstream.seen("tools/call").len()),
            (effects + 1, sent + 1)
        );
        for gateway in gateways {
            gateway.stop().await;
        }
    }
}

/// What a client that knows tasks and answers questions is answered.
async fn as_task(gateway: &Gateway, method: &str, params: Value) -> Value {
    let abilities = json!({ "extensions": { TASKS: {} }, "elicitation": { "form": {} } });
    as_client(gateway, abilities, method, params).await
}

/// What a client with these abilities is answered.
async fn as_client(gateway: &Gateway, abilities: Value, method: &str, mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = abilities;
    let name = params["taskId"].as_str().map(str::to_owned);
    let mut request = gateway.mcp_request(method, params);
    if let Some(name) = name {
        request = request.header("mcp-name", name);
    }
    Answer::to(request).await.expect_ok().message()
}

async fn a_server_asks_in_its_task_and_is_answered_by_the_caller_alone(stores: &Stores) {
    let upstream = Upstream::modern().await;
    let config = upstream.config("[mcp]\ntask_after = \"50ms\"\n");
    let gateways = stores.gateways(&config).await;
    let (here, there) = (&gateways[0], gateways.last().expect("one"));
    let params = json!({ "name": "act", "arguments": {} });
    // One that can be asked but knows no tasks gets its questions in the answer, so the server may give no task.
    upstream.then(Does::Task("t-0"));
    let can_answer = json!({ "elicitation": { "form": {} } });
    let said = as_client(here, can_answer, "tools/call", params.clone()).await;
    assert_eq!(said["result"]["structuredContent"]["said"], "done");

    upstream.then(Does::Task("t-1"));
    let params = json!({ "name": "act", "arguments": { "n": 1 } });
    let made = as_task(here, "tools/call", params).await;
    let id = made["result"]["taskId"]
        .as_str()
        .expect("a task")
        .to_owned();
    let questions = asks(None)["inputRequests"].clone();
    upstream.task(
        "t-1",
        json!({ "status": "input_required", "inputRequests": questions }),
    );
    let named = json!({ "taskId": id });
    until("the upstream has answered with its task", async || {
        let asked = as_task(here, "tasks/get", named.clone()).await;
        asked["result"]["status"] != "working"
    })
    .await;
    for gateway in [here, there] {
        let asked = as_task(gateway, "tasks/get", named.clone()).await;
        assert_eq!(
            (
                &asked["result"]["status"],
                &asked["result"]["inputRequests"]
            ),
            (&json!("input_required"), &questions),
            "{asked}"
        );
    }
    // One that cannot answer sees no question. What it answers all the same is not lost in silence.
    let tasks_only = json!({ "extensions": { TASKS: {} } });
    let asked = as_client(there, tasks_only.clone(), "tasks/get", named.clone()).await;
    assert_eq!(asked["result"]["status"], "working");
    let answers = json!({ "sure": { "action": "accept", "content": {} } });
    let update = json!({ "taskId": id, "inputResponses": answers });
    as_client(there, tasks_only, "tasks/update", update.clone()).await;
    assert_eq!(upstream.seen("tasks/update").len(), 1);
    upstream.is_down(true);
    let lost = as_task(there, "tasks/update", update.clone()).await;
    assert_eq!(
        lost["error"]["code"], -32_603,
        "it may send them again: {lost}"
    );
    upstream.is_down(false);
    let taken = as_task(there, "tasks/update", update).await;
    assert_eq!(taken["result"]["resultType"], "complete");
    let told = upstream.seen("tasks/update");
    let told = &told.last().expect("one").1["params"];
    assert_eq!(
        (&told["taskId"], &told["inputResponses"]),
        (&json!("t-1"), &answers)
    );
    upstream.task("t-1", completed("sure"));
    until("it is completed", async || {
        let task = as_task(there, "tasks/get", named.clone()).await;
        task["result"]["result"]["structuredContent"]["said"] == "sure"
    })
    .await;
    assert_eq!(upstream.effects(), 2);
    for gateway in gateways {
        gateway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_for_two_calls_is_the_outcome_of_the_first_alone() {
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config(SHORT)).await;
    let first = begun(&gateway, &upstream, "one", "t-1").await;
    upstream.then(Does::Task("t-1"));
    let second = gateway.call_with_key("two", json!({})).await;
    second.expect_problem("outcome-unknown");
    upstream.task("t-1", completed("of the first"));
    first.await.expect("no panic").expect_ok();
    let second = gateway.call_with_key("two", json!({})).await;
    second.expect_problem("outcome-unknown");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_comes_after_the_time_for_an_answer_is_asked_for_all_the_same() {
    let upstream = Upstream::modern().await;
    let config = SHORT.replace("deadline = \"2s\"", "deadline = \"30s\"");
    let gateway = Gateway::start(&upstream.config(&config)).await;
    let task = json!({ "resultType": "task", "taskId": "t-1", "status": "working" });
    upstream.then(Does::Late(Duration::from_millis(2_500), task));
    upstream.task("t-1", completed("later still"));
    let unknown = gateway.call_with_key("k", json!({})).await;
    let unknown = unknown.expect_problem("outcome-unknown");
    let record = until_state(&gateway, &unknown, "succeeded").await;
    assert!(record.events().contains(&"task_given".to_owned()));
    let replay = gateway.call_with_key("k", json!({})).await.expect_ok();
    assert_eq!(replay.at("/result/structuredContent/said"), "later still");
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}

/// The gateway ends before and after the task is written down, while it is followed, and before its end is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_dies_around_a_task_leaves_one_effect_and_finds_its_end() {
    for (point, is_known) in [
        ("before_task_noted", false),
        ("after_task_noted", true),
        ("before_completion", true),
    ] {
        let upstream = Upstream::modern().await;
        upstream.then(Does::Task("t-1"));
        if point == "before_completion" {
            upstream.task("t-1", completed("found"));
        }
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let config = upstream.config(SHORT);
        let points = format!("{point}=1*return");
        let dying = [("FAILPOINTS", points.as_str())];
        let dies = Process::start_in(folder.path(), port, &config, &dying).await;
        let ask = async |process: &Process, wait: &str| {
            let body = json!({ "args": {}, "idempotency_key": "k" });
            let url = process.url("/v1/tools/act/calls");
            let request = crate::support::client().post(url).body(body.to_string());
            Answer::within(PATIENCE, request.header("prefer", wait)).await
        };
        assert_eq!(ask(&dies, "wait=30").await, None, "it dies at {point}");
        dies.ended().await;
        upstream.task("t-1", completed("found"));
        let again = Process::start_in(folder.path(), port, &config, &[]).await;
        if is_known {
            until("its end is found", async || {
                let answer = ask(&again, "wait=0").await.expect("an answer");
                answer.status == 200 && answer.at("/result/structuredContent/said") == "found"
            })
            .await;
        } else {
            let answer = ask(&again, "wait=0").await.expect("an answer");
            answer.expect_problem("outcome-unknown");
        }
        assert_eq!(
            (upstream.effects(), upstream.seen("tools/call").len()),
            (1, 1),
            "{point}"
        );
        again.kill();
    }
}
