//! APIs that callers use unchanged, through `/proxy/{name}/…`.

use reqwest::Method;
use serde_json::{Value, json};

#[cfg(feature = "postgres")]
use crate::support::postgres::place;
use crate::support::redis::Redis;
use crate::support::search::{all_bytes, holds};
use crate::support::stores::Stores;
use crate::support::{Act, Answer, Gateway, Tool};

/// A proxy `api` in front of this tool, with further lines of its section.
pub fn api(tool: &Tool, more: &str) -> String {
    format!(
        "[proxies.api]\nupstream = \"http://127.0.0.1:{}/base\"\n{more}\n",
        tool.port
    )
}

/// A write with a key.
pub async fn post(gateway: &Gateway, key: &str, body: &str) -> Answer {
    let request = gateway
        .client
        .post(gateway.url("/proxy/api/v1/charges"))
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(body.to_owned());
    Answer::to(request).await
}

async fn calls(gateway: &Gateway) -> Vec<Value> {
    let listed = gateway.get("/v1/calls").await.expect_ok();
    listed.at("/calls").as_array().expect("a list").clone()
}

/// A write is forwarded unchanged, and a repetition gets the same answer.
async fn once(stores: &Stores) {
    let tool = Tool::start().await;
    let said = Act::Answer(
        201,
        "content-type: application/json\r\nx-request-id: r1\r\nconnection: x-hop\r\nx-hop: 1\r\nset-cookie: s=1\r\n",
        b" {\"id\": \"ch_1\", \"amount\" : 1.50}\n",
    );
    tool.then(said);
    let gateway = stores.gateway(&api(&tool, "")).await;
    let send = async || {
        let request = gateway
            .client
            .request(
                Method::PATCH,
                gateway.url("/proxy/api/v1/a%20b//c?x=1&y=%2F&z"),
            )
            .header("idempotency-key", "k1")
            .header("content-type", "application/json")
            .header("x-own", "a")
            .header("x-own", "b")
            .header("connection", "x-secret")
            .header("x-secret", "hop")
            .header("user-agent", "sdk/1")
            .body("{ \"amount\":1.50 }\n");
        Answer::to(request).await
    };
    let (first, again) = (send().await, send().await);
    let seen = tool.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    let seen = &seen[0];
    assert_eq!(seen.line, "PATCH /base/v1/a%20b//c?x=1&y=%2F&z HTTP/1.1");
    assert_eq!(seen.body, "{ \"amount\":1.50 }\n");
    assert_eq!(
        (seen.header("user-agent"), seen.header("x-secret")),
        ("sdk/1", "")
    );
    assert_eq!(
        (seen.header("x-own"), seen.header("authorization")),
        ("b", "")
    );
    assert_eq!(
        seen.header("idempotency-key").len(),
        32,
        "the call's own key"
    );
    for answer in [&first, &again] {
        assert_eq!(answer.status, 201, "{}", answer.text);
        assert_eq!(answer.text, " {\"id\": \"ch_1\", \"amount\" : 1.50}\n");
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(
            (answer.header("x-request-id"), answer.header("x-hop")),
            ("r1", "")
        );
        assert_eq!(answer.header("set-cookie"), "", "a cookie is of one client");
    }
    assert_eq!(
        (
            first.header("idempotent-replayed"),
            again.header("idempotent-replayed")
        ),
        ("", "true")
    );
    assert_eq!(first.header("gateway-outcome"), "executed");
    let call = gateway
        .get(&format!("/v1/calls/{}", first.header("x-call-id")))
        .await
        .expect_ok();
    assert_eq!(
        (call.at("/tool"), call.at("/key")),
        (json!("api"), json!("k1"))
    );
    assert_eq!(call.at("/args/path"), "/v1/a%20b//c");
    assert_eq!(call.at("/result/status"), 201);
    let other = post(&gateway, "k1", "{}")
        .await
        .expect_problem("key-reused");
    assert_eq!(other.at("/key_action"), "rotate");
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_write_is_passed_on_unchanged_and_its_answer_is_replayed_byte_for_byte() {
    once(&Stores::Sqlite).await;
}

#[tokio::test]
async fn over_redis_a_write_is_passed_on_unchanged_and_its_answer_is_replayed() {
    let redis = Redis::strict().await;
    once(&Stores::Redis(redis.url())).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn over_postgres_a_write_is_passed_on_unchanged_and_its_answer_is_replayed() {
    let place = place().await;
    once(&Stores::Postgres(place)).await;
}

#[tokio::test]
async fn bodies_are_passed_on_unchanged() {
    let tool = Tool::start().await;
    let limits = "max_body = \"12MiB\"\nmax_result = \"12MiB\"\n";
    let config = format!("[server]\nmax_memory = \"1GiB\"\n{}", api(&tool, limits));
    let gateway = Gateway::start(&config).await;
    let large: &'static [u8] = (0..10 << 20)
        .map(|n: u32| (n % 251) as u8)
        .collect::<Vec<u8>>()
        .leak();
    let gzip: &'static [u8] = b"\x1f\x8b\x08\x00\xff\xfe\x00\x01";
    for (n, (status, headers, body)) in [
        (200, "content-encoding: gzip\r\n", gzip),
        (200, "", large),
        (204, "", b"".as_slice()),
        (200, "content-type: text/plain\r\n", "grüße\n".as_bytes()),
        (
            200,
            "content-type: application/json\r\n",
            b"{\"a\":1,\"a\":2}".as_slice(),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        tool.then(Act::Answer(status, headers, body));
        for replayed in [false, true] {
            let request = gateway
                .client
                .put(gateway.url("/proxy/api/x"))
                .header("idempotency-key", format!("k{n}"))
                .body(body.to_vec());
            let answer = request.send().await.expect("an answer");
            assert_eq!(answer.status().as_u16(), status);
            assert_eq!(
                answer.headers().contains_key("idempotent-replayed"),
                replayed
            );
            assert_eq!(
                answer.headers().contains_key("content-encoding"),
                headers.contains("gzip")
            );
            let bytes = answer.bytes().await.expect("a body");
            assert!(bytes == body, "{n}: {} bytes", bytes.len());
        }
        let seen = tool.seen();
        assert_eq!(seen.len(), n + 1);
        assert!(seen[n].bytes == body, "{n}");
    }
    let chunked = reqwest::Body::wrap(http_body_util::Full::new(bytes::Bytes::from("in chunks")));
    let request = gateway
        .client
        .post(gateway.url("/proxy/api/x"))
        .header("idempotency-key", "c");
    let request = request.header("transfer-encoding", "chunked").body(chunked);
    assert_eq!(Answer::to(request).await.status, 200);
    assert_eq!(tool.seen()[5].body, "in chunks");
    let long = vec![b'x'; (12 << 20) + 1];
    let request = gateway
        .client
        .post(gateway.url("/proxy/api/x"))
        .header("idempotency-key", "l")
        .body(long);
    Answer::to(request).await.expect_problem("body-too-large");
    gateway.stop().await;
}

#[tokio::test]
async fn reads_pass_each_time_and_are_no_calls() {
    let tool = Tool::start().await;
    tool.always(Act::Answer(
        206,
        "x-a: 1\r\ncontent-encoding: gzip\r\n",
        b"\x1f\x8b\xff",
    ));
    let gateway = Gateway::start(&api(&tool, "")).await;
    for _ in 0..2 {
        let request = gateway
            .client
            .get(gateway.url("/proxy/api/v1/charges?limit=3"));
        let answer = request.send().await.expect("an answer");
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["x-a"]),
            (206, &"1".parse().expect("a value"))
        );
        assert_eq!(
            answer.bytes().await.expect("a body"),
            b"\x1f\x8b\xff".as_slice()
        );
    }
    assert_eq!(tool.seen()[1].line, "GET /base/v1/charges?limit=3 HTTP/1.1");
    assert_eq!(calls(&gateway).await, [] as [Value; 0]);
    let passed = gateway
        .metric("oncegate_passed_on_total{kind=\"read\",tool=\"api\"}")
        .await;
    assert_eq!(passed, 2.0);
    tool.then(Act::Drop);
    let refused = gateway
        .get("/proxy/api/x")
        .await
        .expect_problem("tool-unavailable");
    assert_eq!(refused.at("/effect"), "none");
    gateway.stop().await;
}

#[tokio::test]
async fn the_answer_to_a_read_is_passed_on_while_it_arrives() {
    let tool = Tool::start().await;
    // The answer never ends.
    tool.then(Act::ExecuteThenDrip(
        b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ));
    let gateway = Gateway::start(&api(&tool, "")).await;
    let request = gateway.client.get(gateway.url("/proxy/api/stream"));
    let mut answer = request.send().await.expect("an answer");
    let first = answer.chunk().await.expect("a part");
    assert_eq!(first.as_deref(), Some(b"hello".as_slice()));
    drop(answer);
    gateway.stop().await;
}

#[tokio::test]
async fn a_write_without_a_key_is_refused_derived_or_passed_as_configured() {
    let tool = Tool::start().await;
    let rules = "unkeyed = \"refuse\"\nignore = [\"/query/ts\"]\n\
        [[proxies.api.rules]]\npath = \"/derived\"\nas = \"write\"\nunkeyed = \"derive\"\n\
        [[proxies.api.rules]]\npath = \"/open\"\nas = \"write\"\nunkeyed = \"pass\"\n";
    let gateway = Gateway::start(&api(&tool, rules)).await;
    let send = async |path: &str, body: &'static str| {
        let request = gateway
            .client
            .post(gateway.url(&format!("/proxy/api{path}")));
        Answer::to(
            request
                .header("content-type", "application/json")
                .body(body),
        )
        .await
    };
    send("/v1/charges", "{}")
        .await
        .expect_problem("key-missing");
    assert_eq!(tool.requests(), 0);
    assert_eq!(send("/derived?ts=1", "{\"a\":1,\"b\":2}").await.status, 200);
    let again = send("/derived?ts=2", "{ \"b\":2, \"a\":1 }").await;
    assert_eq!(
        (tool.requests(), again.header("idempotent-replayed")),
        (1, "true")
    );
    assert_eq!(
        send("/derived", "{\"a\":2}")
            .await
            .header("idempotent-replayed"),
        ""
    );
    assert_eq!(
        send("/derived", "{\"a\":1,\"b\":2}")
            .await
            .header("idempotent-replayed"),
        "true"
    );
    assert_eq!(
        tool.requests(),
        2,
        "also after another write of the same path"
    );
    for _ in 0..2 {
        assert_eq!(send("/open", "{}").await.status, 200);
    }
    assert_eq!(tool.requests(), 4);
    tool.then(Act::ExecuteThenDrop);
    let lost = send("/open", "{}").await.expect_problem("not-answered");
    assert_eq!(
        (lost.at("/effect"), lost.at("/key_action")),
        (json!("unknown"), json!("stop"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn refusals_of_the_api_reach_the_caller_as_they_are() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    for (status, headers) in [
        (402, "x-a: 1\r\n"),
        (409, ""),
        (429, "retry-after: 7\r\n"),
        (400, ""),
    ] {
        tool.then(Act::Answer(
            status,
            headers,
            b"{\"error\":{\"code\":\"declined\"}}",
        ));
        let answer = post(&gateway, &format!("k{status}"), "{}").await;
        assert_eq!(
            (answer.status, answer.text.as_str()),
            (status, "{\"error\":{\"code\":\"declined\"}}")
        );
        assert_eq!(answer.header("gateway-outcome"), "not-executed");
        assert_eq!(
            answer.header("retry-after"),
            if status == 429 { "7" } else { "" }
        );
    }
    assert_eq!(
        post(&gateway, "k402", "{}").await.status,
        200,
        "the same key may run again"
    );
    assert_eq!(tool.requests(), 5, "nothing is repeated by the gateway");
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_never_executed_again_and_the_gateway_reports_it() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    for (n, act) in [
        Act::ExecuteThenDrop,
        Act::ExecuteThenAnswer(500),
        Act::ExecuteThenAnswer(503),
        Act::HalfBody(500),
    ]
    .into_iter()
    .enumerate()
    {
        tool.then(act);
        let key = format!("k{n}");
        for _ in 0..3 {
            let unknown = post(&gateway, &key, "{}")
                .await
                .expect_problem("outcome-unknown");
            assert_eq!(unknown.at("/effect"), "unknown");
        }
        assert_eq!(tool.effects(), n + 1);
    }
    tool.then(Act::HalfBody(200));
    let lost = post(&gateway, "half", "{}")
        .await
        .expect_problem("result-unavailable");
    assert_eq!(lost.at("/effect"), "done");
    gateway.stop().await;
}

#[tokio::test]
async fn secrets_of_a_proxied_call_are_stored_nowhere() {
    let tool = Tool::start().await;
    tool.always(Act::Ok("{\"id\":1,\"client_secret\":\"result-secret\"}"));
    let redact = "redact = { request = [\"/card\"], response = [\"/client_secret\"] }";
    let gateway = Gateway::start(&api(&tool, redact)).await;
    for (key, kind, body) in [
        (
            "k1",
            "application/json",
            "{\"card\":{\"number\":\"request-secret\"},\"amount\":5}",
        ),
        (
            "k2",
            "application/x-www-form-urlencoded",
            "card[number]=request-secret&amount=5",
        ),
    ] {
        let send = async || {
            let request = gateway.client.post(gateway.url("/proxy/api/x"));
            let request = request
                .header("idempotency-key", key)
                .header("content-type", kind);
            Answer::to(request.header("x-api-key", "header-secret").body(body)).await
        };
        let first = send().await;
        assert!(
            send().await.text.contains("result-secret"),
            "a repetition gets all of it"
        );
        let seen = tool.seen().pop().expect("a request");
        assert_eq!(
            (seen.body.as_str(), seen.header("x-api-key")),
            (body, "header-secret")
        );
        let call = gateway
            .get(&format!("/v1/calls/{}", first.header("x-call-id")))
            .await;
        for secret in ["request-secret", "header-secret", "result-secret"] {
            assert!(!call.text.contains(secret), "{}", call.text);
        }
        assert!(
            call.text.contains("amount") == (key == "k1"),
            "{}",
            call.text
        );
    }
    let folder = gateway.stop().await;
    let bytes = all_bytes(folder.path());
    assert!(!holds(&bytes, "request-secret") && !holds(&bytes, "header-secret"));
}

#[tokio::test]
async fn pause_verify_and_metrics_work_as_for_a_tool() {
    let tool = Tool::start().await;
    tool.always(Act::Answer(200, "date: x\r\n", b"{\"id\":1}"));
    let gateway = Gateway::start(&api(&tool, "dedup = \"key\"")).await;
    let first = post(&gateway, "k1", "{\"a\":1}").await;
    post(&gateway, "k1", "{\"a\":1}").await;
    let path = format!("/v1/calls/{}/replay", first.header("x-call-id"));
    let verified = gateway
        .post_to(&path, &json!({ "mode": "verify" }))
        .await
        .expect_ok();
    assert_eq!(verified.at("/stable"), true, "{}", verified.text);
    let seen = tool.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        (&seen[0].line, &seen[0].body),
        (&seen[1].line, &seen[1].body)
    );
    assert_eq!(
        seen[0].header("idempotency-key"),
        seen[1].header("idempotency-key")
    );
    let counted = async |kind: &str| {
        gateway
            .metric(&format!(
                "oncegate_arrivals_total{{kind=\"{kind}\",tool=\"api\"}}"
            ))
            .await
    };
    assert_eq!(
        (counted("first").await, counted("replayed").await),
        (1.0, 1.0)
    );
    gateway
        .post_to("/v1/tools/api/pause", &json!({ "reason": "test" }))
        .await
        .expect_ok();
    post(&gateway, "k2", "{}")
        .await
        .expect_problem("tool-paused");
    gateway
        .get("/proxy/api/x")
        .await
        .expect_problem("tool-paused");
    assert_eq!(
        post(&gateway, "k1", "{\"a\":1}").await.status,
        200,
        "what is known is answered"
    );
    gateway
        .post_to("/v1/tools/api/resume", &json!({}))
        .await
        .expect_ok();
    assert_eq!(post(&gateway, "k2", "{}").await.status, 200);
    gateway.stop().await;
}
