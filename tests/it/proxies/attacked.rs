//! Callers and servers that try to deceive a proxy.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::proxies::requests::{api, post};
use crate::support::{Act, Answer, Gateway, Tool, until};

/// Sends these bytes as a request, and returns the bytes of the answer.
async fn raw(gateway: &Gateway, request: &str) -> String {
    let address = gateway.address;
    let mut stream = tokio::net::TcpStream::connect(address)
        .await
        .expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn send(
    gateway: &Gateway,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let method: Method = method.parse().expect("a method");
    let mut request = gateway
        .client
        .request(method, gateway.url(&format!("/proxy/api{path}")));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::to(request.body(body.to_owned())).await
}

#[tokio::test]
async fn deeply_nested_names_of_a_form_do_not_end_the_process() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    let form = ("content-type", "application/x-www-form-urlencoded");
    for steps in [70, 20_000] {
        let body = format!("a{}=1", "[b]".repeat(steps));
        let key = ("idempotency-key", format!("k{steps}"));
        let sent = send(&gateway, "POST", "/x", &[form, (key.0, &key.1)], &body).await;
        assert_eq!(sent.status, 200, "{}", sent.text);
        let again = send(&gateway, "POST", "/x", &[form, (key.0, &key.1)], &body).await;
        assert_eq!(again.header("idempotent-replayed"), "true");
    }
    for depth in [99, 126, 127, 400_000] {
        let body = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let key = format!("d{depth}");
        let sent = post(&gateway, &key, &body).await;
        assert_eq!(
            (
                sent.status,
                post(&gateway, &key, &body)
                    .await
                    .header("idempotent-replayed")
            ),
            (200, "true")
        );
        gateway
            .get(&format!("/v1/calls/{}", sent.header("x-call-id")))
            .await
            .expect_ok()
            .json();
    }
    gateway.get("/v1/calls").await.expect_ok().json();
    gateway.stop().await;
}

#[tokio::test]
async fn a_body_that_is_no_plain_json_is_passed_on_and_replayed_byte_for_byte() {
    let tool = Tool::start().await;
    for (n, body) in [
        "null",
        "{\"a\":1e999}",
        "{\"a\":\"\\ud800\"}",
        "{ \"b\":1, \"b\":2 }",
    ]
    .into_iter()
    .enumerate()
    {
        tool.always(Act::Answer(200, "", body.as_bytes()));
        let gateway = Gateway::start(&api(
            &tool,
            "dedup = \"key\"\nredact = { request = [\"/card\"] }",
        ))
        .await;
        let plain = Gateway::start(&api(&tool, "dedup = \"key\"")).await;
        for gateway in [&gateway, &plain] {
            let first = post(gateway, "k", body).await;
            assert_eq!(first.text, body);
            assert_eq!(post(gateway, "k", body).await.text, body);
            let call = format!("/v1/calls/{}", first.header("x-call-id"));
            gateway.get(&call).await.expect_ok().json();
            let verify = json!({ "mode": "verify" });
            gateway.post_to(&format!("{call}/replay"), &verify).await;
        }
        assert!(
            tool.seen().iter().skip(n * 4).all(|seen| seen.body == body),
            "{body}"
        );
        gateway.stop().await;
        plain.stop().await;
    }
}

#[tokio::test]
async fn no_write_passes_as_a_read_and_no_denied_request_gets_through() {
    let tool = Tool::start().await;
    let rules = "headers = { Authorization = \"Bearer sk_configured\" }\n\
        [[proxies.api.rules]]\nmethods = [\"DELETE\"]\npath = \"/v1/account\"\nas = \"deny\"\n\
        [[proxies.api.rules]]\nmethods = [\"POST\"]\npath = \"/v1/search\"\nas = \"read\"\n\
        [[proxies.api.rules]]\npath = \"/v1/admin\"\nas = \"deny\"\n\
        [[proxies.api.rules]]\nmethods = [\"GET\"]\npath = \"/v1/fire\"\nas = \"write\"\n";
    let gateway = Gateway::start(&api(&tool, rules)).await;
    let key = ("idempotency-key", "k1");
    for (method, path, headers, problem) in [
        ("TRACE", "/v1/x", vec![key], "forbidden"),
        ("delete", "/v1/account/1", vec![key], "invalid-request"),
        (
            "POST",
            "/v1/account/1",
            vec![key, ("x-http-method-override", "delete")],
            "forbidden",
        ),
        (
            "GET",
            "/v1/charges/1",
            vec![("x-http-method-override", "DELETE")],
            "key-missing",
        ),
        ("POST", "/v1/search/..;/charges", vec![], "invalid-request"),
        (
            "POST",
            "/v1/search/%252e%252e/charges",
            vec![],
            "invalid-request",
        ),
        ("GET", "/v1/ADMIN", vec![], "forbidden"),
        ("GET", "/v1/admin;a=b/x", vec![], "forbidden"),
    ] {
        send(&gateway, method, path, &headers, "")
            .await
            .expect_problem(problem);
    }
    let head = send(&gateway, "HEAD", "/v1/fire", &[], "").await;
    assert_eq!(
        (head.status, tool.requests()),
        (400, 0),
        "a HEAD is what its GET is"
    );
    let search = send(
        &gateway,
        "POST",
        "/v1/search",
        &[("idempotency-key", "raw-key")],
        "",
    )
    .await;
    assert_eq!(
        (search.status, tool.seen()[0].header("idempotency-key")),
        (200, "")
    );
    let quoted = "GET /proxy/api/v1/q?$filter=a%20eq%20'b' HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert!(raw(&gateway, quoted).await.starts_with("HTTP/1.1 200"));
    assert_eq!(send(&gateway, "GET", "/", &[], "").await.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn an_unknown_call_is_settled_by_the_probe_of_its_own_rule_whatever_its_body() {
    let tool = Tool::start().await;
    let port = tool.port;
    let rule = format!(
        "unknown = \"probe\"\nprobe = {{ url = \"http://127.0.0.1:{port}/general/{{key}}\" }}\nrecheck = {{ base = \"100ms\" }}\n\
         [[proxies.api.rules]]\npath = \"/v1/charges\"\nas = \"write\"\nprobe = {{ url = \"http://127.0.0.1:{port}/charge/{{key}}\" }}\n"
    );
    tool.choose(|seen, _| {
        if seen.line.starts_with("GET") {
            Act::Tell(200, "", b"{}")
        } else {
            Act::ExecuteThenDrop
        }
    });
    let gateway = Gateway::start(&api(&tool, &rule)).await;
    for (n, body) in ["{\"a\":1e999}", "{\"a\":\"\\ud800\"}"]
        .into_iter()
        .enumerate()
    {
        let unknown = post(&gateway, &format!("k{n}"), body).await;
        let id = unknown.expect_problem("outcome-unknown").id();
        until("it is settled", async || {
            gateway.get(&format!("/v1/calls/{id}")).await.at("/state") == "succeeded"
        })
        .await;
    }
    let seen = tool.seen();
    let probes: Vec<&str> = seen
        .iter()
        .map(|seen| &*seen.line)
        .filter(|line| line.starts_with("GET"))
        .collect();
    assert!(
        probes.len() == 2 && probes.iter().all(|line| line.contains("/charge/")),
        "{probes:?}"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_repetition_is_compared_by_the_settings_in_force() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = Gateway::start(&api(&tool, "")).await;
    post(&gateway, "k", "{\"a\":1,\"ts\":1}")
        .await
        .expect_problem("outcome-unknown");
    assert!(gateway.reload(&api(&tool, "ignore = [\"/body/ts\"]")).await);
    for body in ["{\"a\":1,\"ts\":1}", "{\"a\":1,\"ts\":2}"] {
        post(&gateway, "k", body)
            .await
            .expect_problem("outcome-unknown");
    }
    post(&gateway, "k", "{\"a\":2,\"ts\":1}")
        .await
        .expect_problem("key-reused");
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_that_an_operator_gave_cannot_frame_the_response() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    let told = |headers: Value, status: u32| json!({ "status": status, "headers": headers, "text": "abcdef" });
    for (n, (result, status)) in [
        (told(json!([["content-length", "2"]]), 200), "200"),
        (told(json!([["Transfer-Encoding", "chunked"]]), 200), "200"),
        (told(json!([["x", "a\r\nb: c"]]), 200), "502"),
        (told(json!([]), 99_999), "502"),
        (told(json!([]), 101), "502"),
    ]
    .into_iter()
    .enumerate()
    {
        tool.then(Act::ExecuteThenDrop);
        let key = format!("k{n}");
        let unknown = post(&gateway, &key, "{}")
            .await
            .expect_problem("outcome-unknown");
        let settled = json!({ "as": "succeeded", "result": result, "reason": "found" });
        gateway.resolve(&unknown, &settled).await.expect_ok();
        let request = format!(
            "POST /proxy/api/v1/charges HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nidempotency-key: {key}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
        );
        let answer = raw(&gateway, &request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        assert!(
            status == "502"
                || answer.contains("content-length: 6\r\n") && answer.ends_with("\r\n\r\nabcdef"),
            "{answer}"
        );
        assert!(
            status == "200" || answer.contains(&unknown.id()),
            "{answer}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_write_without_a_body_is_sent_with_the_credentials_of_every_other_request() {
    let tool = Tool::start().await;
    let config = format!(
        "[proxies.api]\nupstream = \"http://us%40er:p@127.0.0.1:{}/base\"\nunknown = \"probe\"\nprobe = {{ url = \"https://127.0.0.1:1/{{key}}\" }}\n",
        tool.port
    );
    let gateway = Gateway::start(&config).await;
    send(&gateway, "GET", "/x", &[], "").await.expect_ok();
    send(&gateway, "POST", "/x", &[("idempotency-key", "k1")], "{}")
        .await
        .expect_ok();
    send(&gateway, "DELETE", "/x", &[("idempotency-key", "k2")], "")
        .await
        .expect_ok();
    let seen = tool.seen();
    assert_eq!(seen[0].header("authorization"), "Basic dXNAZXI6cA==");
    assert!(
        seen.iter()
            .all(|one| one.header("authorization") == seen[0].header("authorization"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_failed_precondition_of_the_api_is_a_refusal_like_any_other() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    tool.then(Act::Answer(412, "", b"{}"));
    assert_eq!(post(&gateway, "k", "{}").await.status, 412);
    assert_eq!(
        post(&gateway, "k", "{}").await.status,
        200,
        "the key may run again"
    );
    gateway.stop().await;
}
