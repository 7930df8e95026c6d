//! What an agent can try: no message of MCP approves, and no link does.

use serde_json::json;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_of_mcp_approves_and_its_text_says_what_to_do() {
    let tool = Tool::start().await;
    let config = config(&tool, "") + "[mcp]\nanswer_within = \"1s\"\n";
    let gateway = Gateway::start(&config).await;
    let call = json!({ "name": "act", "arguments": { "amount": 5 } });
    let call_with = |more: Value| {
        let mut call = call.clone();
        for (name, value) in more.as_object().expect("an object") {
            call[name] = value.clone();
        }
        call
    };
    let accepted = json!({ "approve": { "action": "accept", "content": { "approve": true } } });
    for params in [
        call.clone(),
        call_with(json!({ "inputResponses": accepted })),
        call_with(json!({ "inputResponses": accepted, "requestState": "approved" })),
    ] {
        let request = gateway
            .mcp_request("tools/call", params)
            .bearer_auth("agent");
        let text = Answer::to(request).await.text;
        assert!(!text.contains("\"isError\":false"), "{text}");
    }
    let request = gateway
        .mcp_request("tools/call", call.clone())
        .bearer_auth("agent");
    let answer = Answer::to(request).await.message();
    assert_eq!(answer["result"]["isError"], json!(true), "{answer}");
    let text = answer["result"]["content"][0]["text"]
        .as_str()
        .expect("a text");
    assert!(
        text.contains("Nothing was executed yet") && text.contains("exactly the same arguments"),
        "{text}"
    );
    for method in [
        "approve",
        "tasks/update",
        "calls/approve",
        "elicitation/create",
    ] {
        let request = gateway.mcp_request(method, json!({})).bearer_auth("agent");
        let answer = Answer::to(request).await;
        assert!(answer.text.contains("error"), "{method}: {}", answer.text);
    }
    assert_eq!(tool.requests(), 0);
    let request = gateway.mcp_request("tools/call", call.clone());
    let request = request.bearer_auth("ann");
    let refused = Answer::to(request).await;
    assert!(
        !refused.text.contains("Nothing was executed yet"),
        "{}",
        refused.text
    );
    let open = get_as(&gateway, "ann", "/v1/approvals").await.expect_ok();
    assert_eq!(open.at("/approvals").as_array().map(Vec::len), Some(1));

    // Once it was approved, the same call gets its result, and is not told that another one had it.
    let path = format!(
        "/v1/calls/{}",
        open.at("/approvals/0/call_id").as_str().expect("an id")
    );
    let shown = get_as(&gateway, "ann", &format!("{path}/approval")).await;
    let seen = json!({ "seen": shown.expect_ok().at("/seen") });
    let approved = gateway
        .post_as("ann", &format!("{path}/approve"), &seen)
        .await;
    approved.expect_ok();
    until("it has run", async || tool.effects() == 1).await;
    let request = gateway.mcp_request("tools/call", call).bearer_auth("agent");
    let text = Answer::to(request).await.text;
    assert!(
        text.contains("which was approved and executed once"),
        "{text}"
    );
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

/// A request of the agent, whose client knows tasks.
async fn as_task(gateway: &Gateway, method: &str, mut params: Value) -> Value {
    let abilities = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = abilities;
    let name = params["taskId"].as_str().map(str::to_owned);
    let mut request = gateway.mcp_request(method, params).bearer_auth("agent");
    if let Some(name) = name {
        request = request.header("mcp-name", name);
    }
    Answer::to(request).await.expect_ok().message()["result"].take()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_tasks_gets_a_task_that_works_until_a_person_decides() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&config(&tool, "")).await;
    let call = |n: u32| json!({ "name": "act", "arguments": { "n": n } });
    for (n, expected) in [(1, "approved"), (2, "declined"), (3, "cancelled")] {
        let given = as_task(&gateway, "tools/call", call(n)).await;
        assert_eq!(
            (&given["resultType"], &given["status"]),
            (&json!("task"), &json!("working"))
        );
        let about = given["statusMessage"].as_str().expect("a sentence");
        assert!(about.contains("an approver has to approve"), "{about}");
        let task = json!({ "taskId": given["taskId"] });
        let again = as_task(&gateway, "tools/call", call(n)).await;
        assert_eq!(again["taskId"], given["taskId"], "the same call");
        let working = as_task(&gateway, "tasks/get", task.clone()).await;
        assert_eq!(working["status"], "working");
        let path = format!("/v1/calls/{}", given["taskId"].as_str().expect("an id"));
        match expected {
            "approved" => {
                let shown = get_as(&gateway, "ann", &format!("{path}/approval")).await;
                let body = json!({ "seen": shown.expect_ok().at("/seen") });
                let path = format!("{path}/approve");
                gateway.post_as("ann", &path, &body).await.expect_ok();
            }
            "declined" => {
                let body = json!({ "reason": "no", "tell": "Not today." });
                let path = format!("{path}/decline");
                gateway.post_as("ann", &path, &body).await.expect_ok();
            }
            _ => drop(as_task(&gateway, "tasks/cancel", task.clone()).await),
        }
        let get = async || as_task(&gateway, "tasks/get", task.clone()).await;
        until("it ends", async || get().await["status"] != "working").await;
        let ended = get().await;
        let is_error = &ended["result"]["isError"];
        match expected {
            "approved" => assert_eq!(
                (&ended["status"], is_error),
                (&json!("completed"), &json!(false))
            ),
            "declined" => {
                assert_eq!(
                    (&ended["status"], is_error),
                    (&json!("completed"), &json!(true))
                );
                assert!(ended.to_string().contains("Not today."), "{ended}");
            }
            _ => assert_eq!(
                (&ended["status"], &ended["result"]),
                (&json!("cancelled"), &Value::Null)
            ),
        }
    }
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_of_any_route_changes_a_call_that_waits() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&config(&tool, "")).await;
    let asked = ask(&gateway, "k", json!({})).await;
    let before = look(&gateway, "ann", &asked).await.expect_ok().text;
    for act in ["approve", "decline", "withdraw"] {
        for root in ["/v1/calls", "/console/approvals"] {
            let path = format!("{root}/{}/{act}", asked.id());
            let answer = get_as(&gateway, "ann", &path).await;
            assert!(answer.status >= 300, "{path}: {}", answer.status);
        }
    }
    assert_eq!(look(&gateway, "ann", &asked).await.expect_ok().text, before);
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}
