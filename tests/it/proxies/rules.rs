//! Rules of proxies, and how their unknown calls are settled.

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::config::mistakes::{check_said, read, token};
use crate::proxies::requests::{api, post};
use crate::support::{Act, Answer, Gateway, Tool, until};

#[tokio::test]
async fn rules_read_write_and_deny_by_method_and_path() {
    let tool = Tool::start().await;
    let rules = "[[proxies.api.rules]]\nmethods = [\"POST\"]\npath = \"/v1/search\"\nas = \"read\"\n\
        [[proxies.api.rules]]\npath = \"/v1/admin\"\nas = \"deny\"\n\
        [[proxies.api.rules]]\nmethods = [\"GET\"]\npath = \"/v1/fire\"\nas = \"write\"\n\
        [[proxies.api.rules]]\npath = \"/v1/strict\"\nas = \"write\"\noutcomes = { 503 = \"not_executed\" }\n";
    let gateway = Gateway::start(&api(&tool, rules)).await;
    let send = async |method: Method, path: &str| {
        let request = gateway
            .client
            .request(method, gateway.url(&format!("/proxy/api{path}")));
        Answer::to(request.header("idempotency-key", path.replace('/', "-"))).await
    };
    for path in ["/v1/admin", "/v1/admin/x", "/v1/%61dmin", "//v1/admin"] {
        send(Method::GET, path).await.expect_problem("forbidden");
    }
    assert_eq!(tool.requests(), 0);
    for _ in 0..2 {
        assert_eq!(send(Method::POST, "/v1/search").await.status, 200);
        assert_eq!(send(Method::GET, "/v1/fire").await.status, 200);
    }
    assert_eq!(tool.requests(), 3, "the search twice, the fire once");
    tool.then(Act::Answer(503, "", b"busy"))
        .then(Act::ExecuteThenAnswer(503));
    assert_eq!(send(Method::POST, "/v1/strict").await.text, "busy");
    send(Method::POST, "/v1/lax")
        .await
        .expect_problem("outcome-unknown");
    // HTTP clients normalise such paths, so the requests are written by hand.
    for path in ["/v1/%2e%2e/x", "/v1/a%5Cb", "/v1/..%2fadmin"] {
        let answer = raw(&gateway, path).await;
        assert!(answer.contains("invalid-request"), "{path}: {answer}");
    }
    assert_eq!(tool.requests(), 5);
    gateway.stop().await;
}

/// Sends a GET of exactly this path, and returns the answer.
async fn raw(gateway: &Gateway, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    let head =
        format!("GET /proxy/api{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[tokio::test]
async fn an_unknown_call_is_sent_again_byte_for_byte_to_an_api_that_deduplicates() {
    let tool = Tool::start().await;
    tool.deduplicate();
    tool.then(Act::ExecuteThenDrop);
    let more = "dedup = \"key\"\nunknown = \"retry\"\nrecheck = { base = \"100ms\" }";
    let gateway = Gateway::start(&api(&tool, more)).await;
    let unknown = post(&gateway, "k1", "{ \"a\": 1.0 }").await;
    if unknown.status != 200 {
        unknown.expect_problem("outcome-unknown");
    }
    until("it is settled", async || {
        post(&gateway, "k1", "{ \"a\": 1.0 }").await.status == 200
    })
    .await;
    let seen = tool.seen();
    assert_eq!((seen.len(), tool.effects()), (2, 1));
    let told = |n: usize| {
        (
            seen[n].line.clone(),
            seen[n].body.clone(),
            seen[n].headers.get("content-type").cloned(),
        )
    };
    assert_eq!(told(0), told(1));
    gateway.stop().await;
}

#[tokio::test]
async fn a_probe_of_a_rule_settles_its_calls_and_an_operator_may_say_the_answer() {
    let tool = Tool::start().await;
    let url = format!("http://127.0.0.1:{}/found/{{/json/id}}/{{key}}", tool.port);
    let rule = format!(
        "redact = {{ response = [\"/client_secret\"] }}\nunknown = \"probe\"\nprobe = {{ url = \"http://127.0.0.1:{}/none/{{key}}\" }}\nrecheck = {{ base = \"100ms\" }}\n\
         [[proxies.api.rules]]\npath = \"/v1/charges\"\nas = \"write\"\nprobe = {{ url = \"{url}\" }}\n",
        tool.port
    );
    tool.then(Act::ExecuteThenDrop).always(Act::Tell(
        200,
        "",
        b"{\"id\":\"o 1\",\"client_secret\":\"probed-secret\"}",
    ));
    let gateway = Gateway::start(&api(&tool, &rule)).await;
    let unknown = post(&gateway, "k1", "{\"id\":\"o 1\"}").await;
    let id = unknown.expect_problem("outcome-unknown").id();
    until("the probe has found it", async || {
        gateway.get(&format!("/v1/calls/{id}")).await.at("/state") == "succeeded"
    })
    .await;
    let seen = tool.seen();
    let key = seen[0].header("idempotency-key");
    assert_eq!(seen[1].line, format!("GET /found/o%201/{key} HTTP/1.1"));
    let shown = gateway.get(&format!("/v1/calls/{id}")).await;
    assert!(
        !shown.text.contains("probed-secret") && shown.text.contains("redacted"),
        "{}",
        shown.text
    );
    // The answer of the probe is not the answer that the API would have given.
    post(&gateway, "k1", "{\"id\":\"o 1\"}")
        .await
        .expect_problem("result-unavailable");
    gateway.stop().await;
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = Gateway::start(&api(&tool, "")).await;
    let unknown = post(&gateway, "k2", "{}").await;
    let unknown = unknown.expect_problem("outcome-unknown");
    let result = json!({ "status": 201, "headers": [["x-a", "1"]], "json": { "id": "ch_9" } });
    let told = json!({ "as": "succeeded", "result": result, "reason": "found in the dashboard" });
    gateway.resolve(&unknown, &told).await.expect_ok();
    let answer = post(&gateway, "k2", "{}").await;
    assert_eq!((answer.status, answer.header("x-a")), (201, "1"));
    assert_eq!(answer.json(), json!({ "id": "ch_9" }));
    gateway.stop().await;
}

#[tokio::test]
async fn a_repetition_is_recognised_after_the_compared_parts_have_changed() {
    let tool = Tool::start().await;
    let before = "unkeyed = \"derive\"\nignore = [\"/query/ts\"]\ncounted_headers = [\"x-a\"]";
    let after = "unkeyed = \"derive\"\nignore = [\"/body/n\"]\ncounted_headers = [\"x-b\"]";
    let gateway = Gateway::start(&api(&tool, before)).await;
    let send = async |gateway: &Gateway, key: Option<&str>| {
        let request = gateway.client.post(gateway.url("/proxy/api/x?ts=1&b=2"));
        let request = request
            .header("x-a", "1")
            .header("x-b", "1")
            .body("n=1&m=2");
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        Answer::to(match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        })
        .await
    };
    for key in [None, Some("k1")] {
        assert_eq!(send(&gateway, key).await.status, 200);
    }
    assert!(gateway.reload(&api(&tool, after)).await);
    for key in [None, Some("k1")] {
        let again = send(&gateway, key).await;
        assert_eq!(
            (again.status, again.header("idempotent-replayed")),
            (200, "true"),
            "{key:?}"
        );
    }
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}

#[test]
fn settings_that_do_not_fit_a_proxy_are_mistakes() {
    let proxy = |more: &str| {
        let tokens = if more.contains("NO TOKENS") {
            String::new()
        } else {
            token("a", '0', "")
        };
        format!("[store]\nurl = \"sqlite:x.db\"\n{tokens}[proxies.p]\n{more}\n")
    };
    let at = "upstream = \"https://h/v1\"\n";
    for (more, said) in [
        ("", "proxies.p.upstream"),
        ("upstream = \"ftp://h\"", "not an http:// or https:// URL"),
        (
            "upstream = \"https://h?a=b\"",
            "not an http:// or https:// URL",
        ),
        (
            "upstream = \"https://h/{/x}\"",
            "not an http:// or https:// URL",
        ),
        (
            "pass_authorization = true # NO TOKENS",
            "callers cannot be told apart",
        ),
        ("host = \"h\" # NO TOKENS", "loopback names only"),
        ("host = \"h:80\"", "without scheme and port"),
        ("ignore = [\"/nonce\"]", "begins with /query/ or /body/"),
        (
            "counted_headers = [\"Authorization\"]",
            "a credential is not part",
        ),
        (
            "uncounted_headers = [\"cookie\"]",
            "a forwarded credential always counts",
        ),
        ("key_header = \"Cookie\"", "says who calls"),
        ("unkeyed = \"guess\"", "refuse, derive, pass"),
        (
            "derived_window = \"1s\"",
            "must not be shorter than the deadline",
        ),
        ("unknown = \"retry\"", "needs dedup"),
        ("unknown = \"probe\"", "needs probe"),
        (
            "unknown = \"retry\"\ndedup = \"key\"\npass_authorization = true",
            "credentials are not stored",
        ),
        (
            "unknown = \"retry\"\ndedup = \"key\"\nredact = { request = [\"/card\"] }",
            "cannot send arguments again",
        ),
        (
            "[[proxies.p.rules]]\nas = \"read\"",
            "path: this key is missing",
        ),
        (
            "[[proxies.p.rules]]\npath = \"/x\"",
            "as: this key is missing",
        ),
        (
            "[[proxies.p.rules]]\npath = \"x\"\nas = \"read\"",
            "begins with a slash",
        ),
        (
            "[[proxies.p.rules]]\npath = \"/x\"\nas = \"deny\"\nunkeyed = \"pass\"",
            "for rules with as",
        ),
        (
            "[[proxies.p.rules]]\npath = \"/x\"\nas = \"read\"\nmethods = [\"get\"]",
            "upper case",
        ),
        ("[tools.p]\nurl = \"https://h\"", "p is a tool already"),
    ] {
        let is_at = more.is_empty() || more.starts_with("upstream");
        let text = proxy(&if is_at {
            more.to_owned()
        } else {
            format!("{at}{more}")
        });
        let mistakes = read(&text, &[]).expect_err(&text);
        check_said(&mistakes, said);
    }
    let undone = format!(
        "{}[tools.t]\nurl = \"https://h\"\ncompensation = {{ tool = \"p\" }}\n",
        proxy(at)
    );
    check_said(
        &read(&undone, &[]).expect_err("a proxy undoes nothing"),
        "p is not a tool",
    );
    let config = read(&proxy(&format!("{at}unkeyed = \"derive\"")), &[]).expect("good");
    assert!(
        config
            .warnings
            .iter()
            .any(|said| said.contains("list in ignore")),
        "{:?}",
        config.warnings
    );
    let again = "unknown = \"retry\"\ndedup = \"key\"";
    let config = read(&proxy(&format!("{at}{again}")), &[]).expect("good");
    let waits = |said: &String| said.contains("by a recheck alone");
    assert!(config.warnings.iter().any(waits), "{:?}", config.warnings);
    let config = read(&proxy(&format!("{at}unkeyed = \"pass\"")), &[]).expect("good");
    assert!(
        config
            .warnings
            .iter()
            .any(|said| said.contains("nothing guards them"))
    );
}
