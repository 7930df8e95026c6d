//! A client that makes call after call and lets each become a task.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::bounds::attacked::token;
use crate::support::gateway::one_tool;
use crate::support::upstream::TASKS;
use crate::support::{Act, Answer, Gateway, Tool, until};

/// The answer to a request of a client that knows tasks.
async fn ask(gateway: &Gateway, tenant: &str, method: &str, mut params: Value) -> Value {
    let abilities = json!({ "extensions": { TASKS: {} } });
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = abilities;
    let name = params["taskId"].as_str().map(str::to_owned);
    let mut request = gateway.mcp_request(method, params).bearer_auth(tenant);
    if let Some(name) = name {
        request = request.header("mcp-name", name);
    }
    Answer::to(request).await.message()
}

async fn call(gateway: &Gateway, tenant: &str, n: usize) -> Value {
    let params = json!({ "name": "act", "arguments": { "n": n } });
    ask(gateway, tenant, "tools/call", params).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_beyond_the_share_of_their_token_are_refused_and_others_still_get_theirs() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.always(held);
    let tokens = token("greedy") + &token("quiet");
    let config = format!(
        "[server]\nmax_running = 16\n{tokens}{}",
        one_tool(
            &tool,
            "task = \"always\"\ntimeout = \"2m\"\ndeadline = \"6m\""
        )
    );
    let gateway = Gateway::start(&config).await;
    let (mut tasks, mut refused) = (Vec::new(), 0);
    for first in (0..1_000).step_by(50) {
        let asking = (first..first + 50).map(|n| call(&gateway, "greedy", n));
        for said in join_all(asking).await {
            let result = &said["result"];
            if result["resultType"] == "task" {
                let id = result["taskId"].as_str().expect("an id");
                tasks.push(id.to_owned());
                continue;
            }
            let problem = &result["_meta"]["dev.oncegate/problem"]["type"];
            assert_eq!(problem, "/problems/rate-limited", "{said}");
            refused += 1;
        }
    }
    assert!((8..16).contains(&tasks.len()), "{} open tasks", tasks.len());
    assert_eq!(tasks.len() + refused, 1_000);
    let quiet = call(&gateway, "quiet", 0).await;
    assert_eq!(quiet["result"]["resultType"], "task", "{quiet}");
    drop(hold);
    for id in &tasks {
        until("it is completed", async || {
            let task = ask(&gateway, "greedy", "tasks/get", json!({ "taskId": id })).await;
            task["result"]["status"] == "completed"
        })
        .await;
    }
    until("the other's, too", async || {
        tool.effects() == tasks.len() + 1
    })
    .await;
    // There is room again, and what was refused may run.
    let again = call(&gateway, "greedy", 999).await;
    let kind = again["result"]["resultType"].as_str();
    let is_let_in = kind == Some("task") || again["result"]["isError"] == false;
    assert!(is_let_in, "{again}");
    gateway.stop().await;
}
