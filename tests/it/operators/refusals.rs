//! Every request that is answered with a problem leaves a trace, whatever protocol it came by.

use oncegate::http::problem::Slug;
use reqwest::Method;
use serde_json::{Value, json};

use crate::proxies::requests::api;
use crate::support::binary::{Process, free_port, log};
use crate::support::gateway::one_tool;
use crate::support::mcp::token;
use crate::support::redis::Redis;
use crate::support::{Act, Answer, Gateway, Tool, client};

const NEEDS_N: &str = "input_schema = { type = \"object\", required = [\"n\"] }";

/// The series of a problem.
fn series(door: &str, problem: &str) -> String {
    format!("oncegate_refusals_total{{door=\"{door}\",problem=\"{problem}\"}}")
}

/// How often it was answered.
async fn count(gateway: &Gateway, door: &str, problem: &str) -> f64 {
    gateway.metric(&series(door, problem)).await
}

/// How many problems were answered of any kind.
async fn count_all(gateway: &Gateway) -> f64 {
    let text = gateway.get("/metrics").await.text;
    let lines = text.lines();
    let lines = lines.filter(|line| line.starts_with("oncegate_refusals_total{"));
    let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    counts.sum()
}

/// Tokens that may call, that may only read, and that may ask once in a while.
fn tokens() -> String {
    [
        token("agent", "[\"call\", \"read\"]", ""),
        token("reader", "[\"read\"]", ""),
        token("slow", "[\"call\"]", "rate = { per_second = 1, burst = 1 }"),
    ]
    .concat()
}

#[tokio::test]
async fn every_problem_over_http_is_counted_by_its_slug() {
    let tool = Tool::start().await;
    let config = format!("{}{}", one_tool(&tool, NEEDS_N), tokens());
    let gateway = Gateway::start(&config).await;
    let text = gateway.get("/metrics").await.text;
    for slug in Slug::ALL {
        for door in ["http", "mcp", "proxy"] {
            let zero = format!("{} 0\n", series(door, slug.as_str()));
            assert!(text.contains(&zero), "{zero}");
        }
    }

    let act = "/v1/tools/act/calls";
    let good = json!({ "args": { "n": 1 } });
    for (problem, by, path, body) in [
        ("unknown-tool", "agent", "/v1/tools/nope/calls", &good),
        ("invalid-arguments", "agent", act, &json!({ "args": {} })),
        ("invalid-request", "agent", act, &json!([])),
        ("forbidden", "reader", act, &good),
        ("unauthenticated", "another", act, &good),
        ("unknown-path", "agent", "/v2", &good),
        ("method-not-allowed", "agent", "/healthz", &good),
    ] {
        let answer = gateway.post_as(by, path, body).await;
        answer.expect_problem(problem);
        assert_eq!(count(&gateway, "http", problem).await, 1.0, "{problem}");
    }
    tool.then(Act::Answer(422, "", b"{}"));
    let rejected = gateway.post_as("agent", act, &good).await;
    rejected.expect_problem("tool-rejected");
    assert_eq!(count(&gateway, "http", "tool-rejected").await, 1.0);
    assert_eq!(count_all(&gateway).await, 8.0, "nothing is counted twice");
    // Its token is known, and only its scopes are not enough.
    let scope = gateway.metric("oncegate_refused_tokens_total{reason=\"scope\"}");
    assert_eq!(scope.await, 1.0);

    let mut limited = 0.0;
    while limited < 1.0 {
        let answer = gateway.post_as("slow", act, &json!({ "args": {} })).await;
        limited += f64::from(u8::from(answer.status == 429));
    }
    assert_eq!(count(&gateway, "http", "rate-limited").await, 1.0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_request_that_a_redis_that_is_gone_refuses_is_counted() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = crate::redis::shared::gateway(&redis, &tool, "").await;
    assert_eq!(count_all(&gateway).await, 0.0);
    redis.kill();
    let answer = gateway.call(json!({})).await;
    answer.expect_problem("store-unavailable");
    assert_eq!(count(&gateway, "http", "store-unavailable").await, 1.0);
    gateway.begin_stop();
}

#[tokio::test]
async fn every_problem_over_mcp_is_counted_also_in_a_late_answer() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "[mcp]\nstream_after = \"20ms\"\n").await;
    let call = async |name: &str, n: u32| {
        let params = json!({ "name": name, "arguments": { "n": n } });
        gateway.mcp("tools/call", params).await
    };
    assert_eq!(call("nope", 1).await.rpc_code(), -32602);
    assert_eq!(count(&gateway, "mcp", "unknown-tool").await, 1.0);
    tool.then(Act::Answer(422, "", b"{}"));
    assert!(call("act", 1).await.is_error());
    assert_eq!(count(&gateway, "mcp", "tool-rejected").await, 1.0);
    tool.then(Act::after_ms(200, Act::Answer(422, "", b"{}")));
    let late = call("act", 2).await;
    assert_eq!(late.header("content-type"), "text/event-stream");
    assert!(late.is_error());
    assert_eq!(count(&gateway, "mcp", "tool-rejected").await, 2.0);
    // A result is not a problem.
    assert!(!call("act", 3).await.is_error());

    let malformed = Answer::to(gateway.mcp_raw("{}".into())).await;
    assert_eq!(malformed.rpc_code(), -32600);
    assert_eq!(count(&gateway, "mcp", "invalid-request").await, 1.0);
    gateway.mcp("resources/list", json!({})).await;
    assert_eq!(count(&gateway, "mcp", "unknown-path").await, 1.0);
    gateway
        .get("/mcp")
        .await
        .expect_problem("method-not-allowed");
    assert_eq!(count(&gateway, "mcp", "method-not-allowed").await, 1.0);
    assert_eq!(count_all(&gateway).await, 6.0);
    gateway.stop().await;
}

#[tokio::test]
async fn every_problem_of_a_proxy_is_counted_by_its_path_and_by_its_host() {
    let tool = Tool::start().await;
    let config = format!("{}{}", api(&tool, "host = \"api.internal\""), tokens());
    let gateway = Gateway::start(&config).await;
    let ask = async |by: &str, path: &str, host: &str| {
        let request = gateway.client.request(Method::POST, gateway.url(path));
        let request = request.bearer_auth(by).header("idempotency-key", path);
        Answer::to(request.header("host", host).body("{}")).await
    };
    let nope = ask("agent", "/proxy/nope/x", "localhost").await;
    nope.expect_problem("unknown-tool");
    assert_eq!(count(&gateway, "proxy", "unknown-tool").await, 1.0);
    let forbidden = ask("reader", "/proxy/api/x", "localhost").await;
    forbidden.expect_problem("forbidden");
    assert_eq!(count(&gateway, "proxy", "forbidden").await, 1.0);
    // At its host name each path is the API's.
    let by_host = ask("another", "/v1/tools/act/calls", "api.internal").await;
    by_host.expect_problem("unauthenticated");
    assert_eq!(count(&gateway, "proxy", "unauthenticated").await, 1.0);
    tool.then(Act::ExecuteThenDrop);
    let unknown = ask("agent", "/proxy/api/y", "localhost").await;
    unknown.expect_problem("outcome-unknown");
    assert_eq!(count(&gateway, "proxy", "outcome-unknown").await, 1.0);
    // What the API itself refuses is its answer.
    tool.then(Act::Answer(404, "", b"{}"));
    assert_eq!(ask("agent", "/proxy/api/z", "localhost").await.status, 404);
    assert_eq!(count_all(&gateway).await, 4.0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_flood_of_refusals_is_one_line_for_each_slug_and_holds_no_secret() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let config = format!("{}{}", one_tool(&tool, NEEDS_N), tokens());
    let gateway = Process::start(folder.path(), free_port(), &config).await;
    let post = async |by: &str, path: &str| {
        let request = client().post(gateway.url(path)).bearer_auth(by);
        let request = request.header("idempotency-key", "key-canary");
        let body = json!({ "args": { "card": "args-canary" }, "user_id": "user-canary" });
        Answer::to(request.body(body.to_string())).await
    };
    for _ in 0..5 {
        let unknown = post("agent", "/v1/tools/name-canary/calls").await;
        unknown.expect_problem("unknown-tool");
        let invalid = post("agent", "/v1/tools/act/calls").await;
        invalid.expect_problem("invalid-arguments");
        let token = post("token-canary", "/v1/tools/act/calls").await;
        token.expect_problem("unauthenticated");
    }
    gateway.signal("TERM");
    assert!(gateway.ended().await);
    let said = std::fs::read_to_string(log(folder.path())).expect("a log");
    assert!(!said.contains("canary"), "{said}");
    let line = |problem: &str| {
        let lines = said
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let mut of_it = lines.filter(|line: &Value| line["problem"] == problem);
        let line = of_it.next().expect("a line");
        assert_eq!(
            of_it.next(),
            None,
            "{problem} is logged again within ten seconds"
        );
        ["door", "tool", "tenant", "not_logged"].map(|field| line[field].clone())
    };
    let (http, none) = (json!("http"), Value::Null);
    assert_eq!(
        line("invalid-arguments"),
        [http.clone(), json!("act"), json!("t"), json!(0)]
    );
    assert_eq!(
        line("unknown-tool"),
        [http.clone(), none.clone(), json!("t"), json!(0)],
        "the name is the caller's text"
    );
    assert_eq!(
        line("unauthenticated"),
        [http, json!("act"), none, json!(0)]
    );
}
