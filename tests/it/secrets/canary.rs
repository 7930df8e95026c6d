//! No secret of one caller gets into logs, metrics or the answers of others.

use std::fs;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::binary::{Process, free_port, log};
use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Tool, client};

/// Puts a canary in every place of a request and an answer, and finds none in a log, a metric or another tenant's answer.
#[tokio::test]
async fn no_canary_gets_into_logs_metrics_or_the_answers_of_others() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut rules = one_tool(
        &tool,
        "retry = { attempts = 1 }\nheaders = { X-Secret = \"canary-header\" }\n\
        input_schema = { type = \"object\", properties = { n = { type = \"integer\" } } }",
    );
    for tenant in ["shop", "bank"] {
        let digest = hex::encode(Sha256::digest(format!("canary-token-{tenant}")));
        rules += &format!(
            "[[auth.tokens]]\nname = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [\"call\", \"read\"]\n"
        );
    }
    let debug = [(
        "ONCEGATE_LOG__LEVEL",
        "debug,hyper=info,hyper_util=info,reqwest=info",
    )];
    let gateway = Process::start_in(folder.path(), free_port(), &rules, &debug).await;
    let http = client();
    let ask = async |tenant: &str, method: &str, path: &str, body: Value| {
        let request = http.request(method.parse().expect("a method"), gateway.url(path));
        let request = request
            .bearer_auth(format!("canary-token-{tenant}"))
            .header("cookie", "canary-cookie");
        Answer::to(request.body(body.to_string())).await
    };
    let call = |key: &str| {
        json!({
            "args": { "secret": "canary-args" }, "idempotency_key": key, "session_id": "canary-session",
            "user_id": "canary-user", "trace_id": "plain-trace",
        })
    };
    let path = "/v1/tools/act/calls";
    tool.then(Act::Ok("{\"said\":\"canary-answer\"}"))
        .then(Act::Answer(422, "", b"{\"said\":\"canary-answer\"}"))
        .then(Act::Answer(500, "", b"canary-answer"))
        .then(Act::ExecuteThenSay(b"canary-answer"))
        .then(Act::ExecuteThenDrop);
    let mut own = Vec::new();
    for n in 0..5 {
        own.push(
            ask(
                "shop",
                "POST",
                path,
                call(&format!("canary-key-{n}-that-is-long")),
            )
            .await,
        );
    }
    ask(
        "shop",
        "POST",
        path,
        json!({ "args": { "n": "canary-args" } }),
    )
    .await
    .expect_problem("invalid-arguments");
    ask("shop", "POST", path, json!({ "args": "canary-args" }))
        .await
        .expect_problem("invalid-request");
    ask("shop", "POST", path, json!({ "canary-args": 1 }))
        .await
        .expect_problem("invalid-request");
    ask("nobody", "POST", path, call("k"))
        .await
        .expect_problem("unauthenticated");
    let id = own[0].at("/call_id");
    let id = id.as_str().expect("an id");
    let mut others = vec![
        ask("bank", "GET", &format!("/v1/calls/{id}"), Value::Null)
            .await
            .expect_problem("unknown-call"),
    ];
    for path in [
        "/v1/calls",
        "/v1/calls?session_id=canary-session",
        "/v1/calls?key=canary-key-0-that-is-long",
        "/v1/calls?trace_id=plain-trace",
        "/v1/sessions/canary-session",
        "/metrics",
        "/readyz",
        "/healthz",
    ] {
        others.push(ask("bank", "GET", path, Value::Null).await);
    }
    let same_key = json!({ "args": { "secret": "canary-args" }, "idempotency_key": "canary-key-0-that-is-long" });
    let preview = ask("bank", "POST", "/v1/tools/act/key", same_key)
        .await
        .expect_ok();
    assert_eq!(
        (preview.at("/would"), preview.at("/call_id")),
        ("run".into(), Value::Null),
        "no other tenant's call is met"
    );
    others.push(
        ask(
            "bank",
            "POST",
            "/v1/tools/act/pause",
            json!({ "reason": "a try" }),
        )
        .await
        .expect_problem("forbidden"),
    );
    for act in ["replay", "resolve"] {
        others.push(
            ask(
                "bank",
                "POST",
                &format!("/v1/calls/{id}/{act}"),
                json!({ "mode": "stored" }),
            )
            .await,
        );
    }
    for answer in &others {
        // The other tenant's own request names the session, so the answer may name it.
        let text = answer.text.replace("\"session_id\":\"canary-session\"", "");
        assert!(!text.contains("canary"), "{text}");
    }
    gateway.kill();
    let logged = fs::read_to_string(log(folder.path())).expect("a log");
    assert!(logged.contains("call ended"), "the log has lines to search");
    for line in logged.lines() {
        assert!(
            !line.contains("canary-args") && !line.contains("canary-answer"),
            "{line}"
        );
        assert!(
            !line.contains("canary-token")
                && !line.contains("canary-header")
                && !line.contains("canary-cookie"),
            "{line}"
        );
        assert!(!line.contains("that-is-long"), "no key in full: {line}");
    }
    // The caller's own answer has the canary, so the search would find one.
    assert!(own[0].text.contains("canary-answer"));
}
