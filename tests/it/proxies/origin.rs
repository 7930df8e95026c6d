//! Answers of others: never active on the gateway's origin, and never in a cache that callers share.

use crate::proxies::requests::{api, post};
use crate::support::{Act, Answer, Gateway, Tool};

fn said(answer: &Answer, name: &str) -> String {
    let lines = answer.headers.get_all(name).iter();
    let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    lines.join(", ").to_lowercase()
}

fn is_contained(answer: &Answer) {
    let policy = said(answer, "content-security-policy");
    let is_sandbox = policy.split(',').any(|policy| policy.trim() == "sandbox");
    assert!(is_sandbox, "{:?}", answer.headers);
    assert_eq!(said(answer, "x-content-type-options"), "nosniff");
    let cached = said(answer, "cache-control");
    let names = |wanted: &str| cached.split(',').any(|one| one.trim() == wanted);
    assert!(names("private"), "{cached}");
    assert!(!names("public") && !cached.contains("s-maxage"), "{cached}");
    for name in [
        "cdn-cache-control",
        "alt-svc",
        "clear-site-data",
        "service-worker-allowed",
        "strict-transport-security",
    ] {
        assert_eq!(said(answer, name), "", "{name} speaks for others, too");
    }
    assert!(said(answer, "vary").contains("oncegate-token"));
}

#[tokio::test]
async fn every_answer_of_a_proxy_is_sandboxed_and_private() {
    let tool = Tool::start().await;
    let html = "content-type: text/html\r\ncache-control: Public, max-age=60, s-maxage=600\r\n\
        cdn-cache-control: max-age=600\r\nvary: accept-encoding\r\nx-content-type-options: none\r\n\
        alt-svc: h3=\":443\"\r\nclear-site-data: \"cookies\"\r\nservice-worker-allowed: /\r\n\
        strict-transport-security: max-age=9\r\n\
        content-security-policy: sandbox allow-scripts allow-same-origin\r\n";
    tool.always(Act::Answer(
        200,
        html,
        b"<script>fetch('/v1/calls')</script>",
    ));
    let gateway = Gateway::start(&api(&tool, "")).await;
    let read = gateway.get("/proxy/api/page").await.expect_ok();
    is_contained(&read);
    assert!(said(&read, "cache-control").contains("max-age=60"));
    assert!(said(&read, "vary").contains("accept-encoding"));
    assert!(said(&read, "content-security-policy").contains("sandbox allow-scripts"));
    let (first, again) = (
        post(&gateway, "k", "{}").await,
        post(&gateway, "k", "{}").await,
    );
    assert_eq!(again.header("idempotent-replayed"), "true");
    for answer in [&first, &again] {
        is_contained(answer);
    }
    tool.then(Act::Answer(402, html, b"<script></script>"));
    is_contained(&post(&gateway, "refused", "{}").await);
    tool.then(Act::Answer(200, "cache-control: no-store\r\n", b"{}"));
    let secret = gateway.get("/proxy/api/secret").await;
    is_contained(&secret);
    assert!(said(&secret, "cache-control").contains("no-store"));
    tool.then(Act::ExecuteThenDrop);
    is_contained(
        &post(&gateway, "lost", "{}")
            .await
            .expect_problem("outcome-unknown"),
    );
    is_contained(
        &gateway
            .get("/proxy/other/x")
            .await
            .expect_problem("unknown-tool"),
    );
    gateway.stop().await;
}

#[tokio::test]
async fn without_tokens_a_browser_opens_no_answer_of_a_proxy_as_a_page() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    for (mode, site, opens) in [
        ("navigate", Some("none"), false),
        ("navigate", Some("same-origin"), false),
        ("navigate", None, false),
        ("cors", Some("same-origin"), true),
    ] {
        let request = gateway.client.get(gateway.url("/proxy/api/page"));
        let mut request = request.header("sec-fetch-mode", mode);
        if let Some(site) = site {
            request = request.header("sec-fetch-site", site);
        }
        let answer = Answer::to(request).await;
        assert_eq!(
            answer.status,
            if opens { 200 } else { 403 },
            "{mode} {site:?}"
        );
        is_contained(&answer);
    }
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn proxies_may_have_a_listener_of_their_own_where_no_other_route_is() {
    let tool = Tool::start().await;
    let config = format!(
        "[server]\nproxy_listen = \"127.0.0.1:0\"\n{}",
        api(&tool, "")
    );
    let gateway = Gateway::start(&config).await;
    let address = gateway.proxy_address.expect("an address");
    let at = |path: &str| format!("http://{address}{path}");
    gateway
        .get("/proxy/api/x")
        .await
        .expect_problem("unknown-path");
    assert_eq!(tool.requests(), 0);
    let read = Answer::to(gateway.client.get(at("/proxy/api/x"))).await;
    is_contained(&read.expect_ok());
    let write = gateway.client.post(at("/proxy/api/x"));
    let write = Answer::to(write.header("idempotency-key", "k").body("{}")).await;
    let call = format!("/v1/calls/{}", write.header("x-call-id"));
    gateway.get(&call).await.expect_ok();
    for path in [
        "/",
        "/v1/calls",
        "/v1/tools",
        "/console",
        "/metrics",
        "/mcp",
        &call,
    ] {
        let answer = Answer::to(gateway.client.get(at(path))).await;
        answer.expect_problem("unknown-path");
    }
    let open = gateway.client.get(at("/proxy/api/x"));
    let open = Answer::to(open.header("sec-fetch-mode", "navigate")).await;
    open.expect_problem("forbidden");
    gateway.stop().await;
}
