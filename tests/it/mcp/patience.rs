//! Long calls whose clients give up, and whose gateway is killed: one effect each, and every client gets the result.

use std::path::Path;
use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
use crate::support::mcp::modern;
use crate::support::redis::Redis;
use crate::support::{Act, Answer, Tool, client, times, until};

const TASKS: &str = "io.modelcontextprotocol/tasks";

/// How long a client waits for all of its requests together.
const PATIENCE: Duration = Duration::from_secs(60);

/// A call by MCP, as a client asks for it that knows tasks, or knows none.
fn by_mcp(gateway: &Process, key: &str, knows_tasks: bool) -> RequestBuilder {
    let mut meta = json!({ "dev.oncegate/idempotency-key": key });
    if knows_tasks {
        meta["io.modelcontextprotocol/clientCapabilities"] = json!({ "extensions": { TASKS: {} } });
    }
    let params = json!({ "name": "act", "arguments": { "key": key }, "_meta": meta });
    modern(client().post(gateway.url("/mcp")), "tools/call", params)
}

fn by_http(gateway: &Process, key: &str) -> RequestBuilder {
    let body = json!({ "args": { "key": key }, "idempotency_key": key });
    client()
        .post(gateway.url("/v1/tools/act/calls"))
        .body(body.to_string())
}

/// A gateway that takes calls.
async fn ready(folder: &Path, config: &str, environment: &[(&str, &str)]) -> Process {
    let gateway = Process::start_in(folder, free_port(), config, environment).await;
    until("it is ready", async || {
        let asked = client().get(gateway.url("/readyz")).send().await;
        asked.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    gateway
}

async fn task(gateway: &Process, id: &str) -> Value {
    let meta =
        json!({ "io.modelcontextprotocol/clientCapabilities": { "extensions": { TASKS: {} } } });
    let params = json!({ "taskId": id, "_meta": meta });
    let asked = modern(client().post(gateway.url("/mcp")), "tasks/get", params);
    let asked = asked.header("mcp-name", id);
    Answer::to(asked).await.expect_ok().message()["result"].take()
}

/// Sends the same request until it has the tool's result. Returns how often it gave up.
async fn persist(
    what: &str,
    gives_up_after: Duration,
    request: impl Fn() -> RequestBuilder,
) -> usize {
    let (patience, mut given_up) = (Instant::now() + PATIENCE, 0);
    let mut last = String::new();
    loop {
        assert!(Instant::now() < patience, "{what}: no result: {last}");
        let Some(answer) = Answer::within(gives_up_after, request()).await else {
            given_up += 1;
            continue;
        };
        let has_result = match what.starts_with("mcp") {
            true => {
                let result = &answer.message()["result"];
                result["resultType"] == "complete" && result["isError"] == false
            }
            false => answer.status == 200,
        };
        if has_result {
            return given_up;
        }
        last = answer.text;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// As a tool of 90 s with clients that give up after 20, 30 and 60 s; here a second stands for half a minute.
async fn every_client_gets_the_result(environment: &[(&str, &str)]) {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(3_000, Act::Numbered));
    let config = one_tool(
        &tool,
        "timeout = \"30s\"\ndeadline = \"90s\"\n[mcp]\nanswer_within = \"1500ms\"\ntask_after = \"70ms\"\n",
    );
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = ready(folder.path(), &config, environment).await;
    let mut clients = Vec::new();
    for gives_up_after in [667, 1_000, 2_000].map(Duration::from_millis) {
        for door in ["http", "mcp", "mcp with tasks"] {
            let gateway = &gateway;
            clients.push(async move {
                let key = format!("{door} {}", gives_up_after.as_millis()).replace(' ', "-");
                let given_up = persist(&key, gives_up_after, || match door {
                    "http" => by_http(gateway, &key),
                    _ => by_mcp(gateway, &key, door == "mcp with tasks"),
                });
                (door, gives_up_after, given_up.await)
            });
        }
    }
    let number = clients.len();
    for (door, gives_up_after, given_up) in futures_util::future::join_all(clients).await {
        // Later ones are told before they give up that the call still runs, or wait for a task.
        let must_give_up = door == "http" || (door == "mcp" && gives_up_after.as_millis() < 1_500);
        assert!(!must_give_up || given_up > 0, "{door} {gives_up_after:?}");
    }
    assert_eq!(tool.effects(), number, "one effect each");
    gateway.kill();
}

#[tokio::test]
async fn clients_that_give_up_before_a_long_call_ends_get_its_result_over_a_file() {
    every_client_gets_the_result(&[]).await;
}

#[tokio::test]
async fn clients_that_give_up_before_a_long_call_ends_get_its_result_over_redis() {
    let redis = Redis::strict().await;
    every_client_gets_the_result(&[("ONCEGATE_STORE__URL", &redis.url())]).await;
}

/// The id that a client was given is good for ever, also if the gateway dies at once.
async fn a_task_outlives_its_gateway(environment: &[(&str, &str)], others: usize, runs: usize) {
    let tool = Tool::start().await;
    let more = "timeout = \"1s\"\ndeadline = \"3s\"\ntask = \"always\"\n";
    let config = one_tool(&tool, more);
    let folders: Vec<_> = (0..=others)
        .map(|_| tempfile::tempdir().expect("a folder"))
        .collect();
    let start = async |n: usize| ready(folders[n].path(), &config, environment).await;
    let mut beside = Vec::new();
    for n in 1..=others {
        beside.push(start(n).await);
    }
    for n in 0..runs {
        let (hold, held) = Act::held(Act::Numbered);
        tool.then(held);
        let gateway = start(0).await;
        let key = format!("k{n}");
        let created = Answer::to(by_mcp(&gateway, &key, true)).await.expect_ok();
        let created = created.message()["result"].take();
        assert_eq!(created["resultType"], "task", "{created}");
        gateway.kill();
        let id = created["taskId"].as_str().expect("an id");
        for other in &beside {
            assert_eq!(
                task(other, id).await["taskId"],
                id,
                "another gateway knows it"
            );
        }
        let gateway = start(0).await;
        assert_eq!(task(&gateway, id).await["taskId"], id);
        let again = Answer::to(by_mcp(&gateway, &key, true)).await.expect_ok();
        let again = again.message()["result"].take();
        let names = [&again["taskId"], &again["_meta"]["dev.oncegate/call-id"]];
        assert!(names.contains(&&json!(id)), "the same call: {again}");
        drop(hold);
        until("its outcome is told", async || {
            task(&gateway, id).await["status"] == "completed"
        })
        .await;
        gateway.kill();
    }
    assert!(tool.requests() <= runs, "nothing was sent twice");
    for other in beside {
        other.kill();
    }
}

#[tokio::test]
async fn a_task_that_was_created_right_before_a_kill_is_found_over_a_file() {
    a_task_outlives_its_gateway(&[], 0, times(3)).await;
}

#[tokio::test]
async fn a_task_that_was_created_right_before_a_kill_is_found_over_redis_by_two_gateways() {
    let redis = Redis::strict().await;
    a_task_outlives_its_gateway(&[("ONCEGATE_STORE__URL", &redis.url())], 1, times(1)).await;
}
