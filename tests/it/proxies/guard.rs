//! Other spellings of what a rule or the gateway names: paths, methods, headers.

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::proxies::requests::api;
use crate::support::{Act, Answer, Gateway, Tool, until};

const JSON: (&str, &str) = ("content-type", "application/json");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// Sends exactly this target. HTTP clients would change some of them.
async fn raw(gateway: &Gateway, method: &str, target: &str) -> String {
    let stream = tokio::net::TcpStream::connect(gateway.address);
    let mut stream = stream.await.expect("a connection");
    let head = format!(
        "{method} /proxy/api{target} HTTP/1.1\r\nhost: localhost\r\nidempotency-key: k\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn send(
    gateway: &Gateway,
    method: Method,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let url = gateway.url(&format!("/proxy/api{target}"));
    let mut request = gateway.client.request(method, url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::to(request.body(body.to_owned())).await
}

#[tokio::test]
async fn a_denied_path_is_denied_in_every_spelling_that_a_server_may_read_as_it() {
    let tool = Tool::start().await;
    let rules = "[[proxies.api.rules]]\npath = \"/v1/accounts\"\nas = \"deny\"\n";
    let gateway = Gateway::start(&api(&tool, rules)).await;
    for path in [
        "/v1/accounts",
        "/v1/accounts.json",
        "/v1/accounts.JSON",
        "/v1/accounts.tar.gz",
        "/v1/accounts.",
        "/v1/accounts...",
        "/v1/accounts%20",
        "/v1/accounts%20.",
        "/v1/%20accounts",
        "/v1/accounts+",
        "/v1/accounts%C2%A0",
        "/v1/accounts%2Ejson",
        "/v1/accounts%252Ejson",
        "/v1/%2561ccounts",
        "/v1/%25252561ccounts",
        "//v1//accounts",
        "/v1%2Faccounts",
        "/v1/;a=b/accounts",
        "/v1/%20/accounts",
        "/v1/accounts.json/7",
        "/v1/accounts.php/7",
        "/v1/accounts;a=b.json",
        "/v1/accounts.json;a=b",
        "/v1/accounts%3Fa=b",
        "/v1/accounts%23a",
        "/v1/Accounts.Json/",
    ] {
        for method in ["GET", "DELETE"] {
            let answer = raw(&gateway, method, path).await;
            assert!(answer.contains("/problems/forbidden"), "{path}: {answer}");
        }
    }
    for path in ["/v1/%u0061ccounts", "/v1/accounts%00.json"] {
        let answer = raw(&gateway, "GET", path).await;
        assert!(
            answer.contains("/problems/invalid-request"),
            "{path}: {answer}"
        );
    }
    assert_eq!(tool.requests(), 0);
    for path in [
        "/v1/accounts-old",
        "/v1/accountsx.json",
        "/v1.1/accounts",
        "/v1/account.s",
    ] {
        let answer = raw(&gateway, "GET", path).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_method_in_the_query_or_the_body_counts_like_the_method() {
    let tool = Tool::start().await;
    let rules = "[[proxies.api.rules]]\nmethods = [\"DELETE\"]\npath = \"/v1/users\"\nas = \"deny\"\n\
        [[proxies.api.rules]]\nmethods = [\"POST\"]\npath = \"/v1/search\"\nas = \"read\"\n\
        [[proxies.api.rules]]\npath = \"/v1/open\"\nas = \"write\"\nunkeyed = \"pass\"\n";
    let gateway = Gateway::start(&api(&tool, rules)).await;
    let key = ("idempotency-key", "k");
    let multipart = ("content-type", "Multipart/Form-Data; Boundary=x");
    let none = ("x-none", "1");
    for (target, kind, body) in [
        ("/v1/users/1?_method=DELETE", none, ""),
        ("/v1/users/1?_method=delete", none, ""),
        ("/v1/users/1?a=1&%5Fmethod=DELETE", none, ""),
        ("/v1/users/1?_METHOD=DELETE", none, ""),
        ("/v1/users/1?_method[]=DELETE", none, ""),
        ("/v1/users/1?_method=PUT&_method=DELETE", none, ""),
        ("/v1/users/1?X-HTTP-Method-Override=DELETE", none, ""),
        ("/v1/users/1", FORM, "a=1&_method=DELETE"),
        ("/v1/users/1", FORM, "%5fmethod=+delete+"),
        ("/v1/users/1", FORM, "a=1;_method=DELETE"),
        ("/v1/users/1", none, "_method=DELETE"),
        ("/v1/users/1", JSON, "{\"_method\":\"DELETE\"}"),
        (
            "/v1/users/1",
            JSON,
            "{\"a\":{},\"\\u005fmethod\":\"delete\"}",
        ),
        (
            "/v1/users/1",
            JSON,
            "{\"_method\":\"DELETE\",\"_method\":\"PUT\"}",
        ),
        ("/v1/users/1", JSON, "\u{feff}{\"_method\":\"DELETE\"}"),
        ("/v1/users/1", none, " {\"_method\":[\"DELETE\"]}"),
        (
            "/v1/users/1",
            multipart,
            "--x\r\nContent-Disposition: form-data; name=\"_method\"\r\n\r\nDELETE\r\n--x--\r\n",
        ),
        (
            "/v1/users/1",
            multipart,
            "--x\r\ncontent-disposition:form-data;name=_method\r\n\r\ndelete\r\n--x--\r\n",
        ),
    ] {
        let sent = send(&gateway, Method::POST, target, &[key, kind], body).await;
        let is_refused = sent.text.contains("/problems/forbidden")
            || sent.text.contains("/problems/invalid-request");
        assert!(is_refused, "{target} {body}: {}", sent.text);
    }
    // Not a read, and nothing that passes unguarded.
    for (method, target, kind, body) in [
        (Method::GET, "/v1/x?_method=PUT", none, ""),
        (Method::POST, "/v1/search", FORM, "_method=put"),
        (Method::POST, "/v1/search", JSON, "{\"_method\":\"PUT\"}"),
        (Method::POST, "/v1/open", JSON, "{\"_method\":\"PUT\"}"),
    ] {
        let sent = send(&gateway, method, target, &[kind], body).await;
        sent.expect_problem("key-missing");
    }
    assert_eq!(tool.requests(), 0);
    for (target, kind, body) in [
        ("/v1/users/2", JSON, "{\"a\":{\"_method\":\"DELETE\"}}"),
        ("/v1/users/3", JSON, "{\"method\":\"DELETE\"}"),
        ("/v1/users/4?method=DELETE", FORM, "text=_method%3DDELETE"),
        ("/v1/users/5", FORM, "_method=patch"),
    ] {
        let own = ("idempotency-key", target);
        let sent = send(&gateway, Method::POST, target, &[own, kind], body).await;
        assert_eq!(sent.status, 200, "{target} {body}: {}", sent.text);
    }
    assert_eq!(tool.requests(), 4);
    gateway.stop().await;
}

/// Servers that pass headers on as variables of a program read `_`, `.` and `-` alike.
#[tokio::test]
async fn names_that_the_gateway_owns_come_from_no_caller_in_any_spelling() {
    let tool = Tool::start().await;
    let own = "key_header = \"X-Request-Key\"\nheaders = { X-Api-Key = \"configured\" }";
    let gateway = Gateway::start(&api(&tool, own)).await;
    let owned = [
        "idempotency-key",
        "idempotency_key",
        "idempotency.key",
        "x_request_key",
        "x-call-id",
        "x_call_id",
        "fencing-token",
        "fencing_token",
        "oncegate_token",
        "x_api_key",
        "x-forwarded-for",
        "x_forwarded_for",
        "x-forwarded-user",
        "forwarded",
        "x-real-ip",
        "transfer_encoding",
        "content_length",
        "proxy_authorization",
    ];
    let passing = ["x-own", "x_own_too", "x-session-id", "traceparent", "via"];
    for method in [Method::GET, Method::POST] {
        let target = gateway.url("/proxy/api/x");
        let mut request = gateway.client.request(method, target);
        for name in owned.iter().chain(&passing) {
            request = request.header(*name, "forged");
        }
        request = request.header("x-request-key", "k");
        assert_eq!(Answer::to(request.body("")).await.status, 200);
        let seen = tool.seen().pop().expect("a request");
        for name in owned {
            assert_ne!(seen.header(name), "forged", "{name}: {seen:?}");
        }
        for name in passing {
            assert_eq!(seen.header(name), "forged", "{name}: {seen:?}");
        }
        assert_eq!(seen.header("x-api-key"), "configured");
    }
    let key = tool.seen().pop().expect("a request");
    assert_eq!(key.header("x-request-key").len(), 32, "the call's own");
    gateway.stop().await;
}

#[tokio::test]
async fn where_a_request_was_forwarded_from_is_believed_of_the_operators_proxies() {
    let tool = Tool::start().await;
    let balanced = format!("[server]\nproxies = [\"127.0.0.0/8\"]\n{}", api(&tool, ""));
    let gateway = Gateway::start(&balanced).await;
    let headers = [
        ("x-forwarded-for", "10.0.0.1"),
        ("forwarded", "for=10.0.0.1"),
    ];
    send(&gateway, Method::GET, "/x", &headers, "")
        .await
        .expect_ok();
    let seen = tool.seen().remove(0);
    for (name, value) in headers {
        assert_eq!(seen.header(name), value);
    }
    gateway.stop().await;
}

/// The shape that docs/proxies.md shows.
#[tokio::test]
async fn a_probe_of_a_rule_alone_is_asked_for_the_calls_of_that_rule() {
    for unknown in ["", "unknown = \"probe\"\n"] {
        let tool = Tool::start().await;
        let rule = format!(
            "recheck = {{ base = \"100ms\" }}\n{unknown}\
             [[proxies.api.rules]]\npath = \"/v1/charges\"\nas = \"write\"\nprobe = {{ url = \"http://127.0.0.1:{}/by-key/{{key}}\" }}\n",
            tool.port
        );
        tool.choose(|seen, _| match seen.line.starts_with("GET") {
            true => Act::Tell(200, "", b"{}"),
            false => Act::ExecuteThenDrop,
        });
        let gateway = Gateway::start(&api(&tool, &rule)).await;
        let write = async |path: &str| {
            let key = ("idempotency-key", path);
            let sent = send(&gateway, Method::POST, path, &[key, JSON], "{}").await;
            sent.expect_problem("outcome-unknown")
        };
        let (other, charge) = (write("/v1/other").await, write("/v1/charges").await);
        until("the probe has found it", async || {
            let call = gateway.get(&format!("/v1/calls/{}", charge.id())).await;
            call.at("/state") == "succeeded"
        })
        .await;
        let call = gateway.get(&format!("/v1/calls/{}", other.id())).await;
        assert_eq!(call.at("/state"), "unknown", "{}", call.text);
        let asked = tool.seen().into_iter().map(|seen| seen.line);
        let asked: Vec<String> = asked.filter(|line| line.starts_with("GET")).collect();
        assert_eq!(asked.len(), 1, "{asked:?}");
        gateway.stop().await;
    }
}
