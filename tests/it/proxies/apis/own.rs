//! A service that was built to be asked: `examples/orders.rs` as a process of its own.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use serde_json::{Value, json};

use super::{at, call};
use crate::support::binary::{free_port, run};
use crate::support::line::Line;
use crate::support::{Answer, Gateway, client, until};

const ADDRESS: &str = "http://127.0.0.1:9091";

/// Killed when dropped.
struct Orders {
    child: Child,
    port: u16,
    client: reqwest::Client,
    _folder: tempfile::TempDir,
}

impl Drop for Orders {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Orders {
    async fn start() -> Self {
        let binary = Path::new(env!("CARGO_BIN_EXE_oncegate")).with_file_name("orders");
        assert!(binary.exists(), "cargo test builds the examples, too");
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let child = Command::new(binary)
            .args([
                "--listen",
                &format!("127.0.0.1:{port}"),
                "--db",
                "orders.db",
            ])
            .current_dir(&folder)
            .spawn()
            .expect("the service starts");
        until("the service is open", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_ok()
        })
        .await;
        Self {
            child,
            port,
            client: client(),
            _folder: folder,
        }
    }

    async fn get(&self, door: &str) -> Answer {
        let url = format!("http://127.0.0.1:{}{door}", self.port);
        Answer::to(self.client.get(url)).await
    }

    async fn post(&self, door: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let url = format!("http://127.0.0.1:{}{door}", self.port);
        let mut request = self.client.post(url).body(body.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::to(request).await
    }

    /// What it has of all orders.
    async fn orders(&self) -> Vec<Value> {
        let orders = self.get("/v1/orders").await.at("/orders");
        orders.as_array().expect("a list").clone()
    }
}

/// The configuration with calls of `create_order` that end soon, before a service at this port.
fn config(port: u16) -> String {
    let times = "[tools.create_order]\ntimeout = \"400ms\"\ndeadline = \"1500ms\"\n";
    at("rest", ADDRESS, port)
        .replace("[tools.create_order]\n", times)
        .replace("lag = \"1m\"", "lag = \"100ms\"")
}

/// A gateway with it that reconciles nothing, which would settle calls, too.
async fn gateway(port: u16) -> Gateway {
    let config = config(port);
    let (tools, _) = config
        .split_once("[reconciliations.")
        .expect("a reconciliation");
    Gateway::start(tools).await
}

fn order() -> Value {
    call(json!({ "business_id": "B-1", "sku": "widget", "quantity": 2 }))
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_found_by_its_key() {
    let orders = Orders::start().await;
    let line = Line::to(orders.port).await;
    let gateway = gateway(line.port).await;
    line.cut(true);
    let answer = gateway.post("create_order", &order(), &[]).await;
    let answer = answer.expect_problem("outcome-unknown");
    until("the call is settled", async || {
        gateway.record(&answer).await.at("/state") == "succeeded"
    })
    .await;
    let events = gateway.record(&answer).await.events();
    assert_eq!(events, ["claimed", "ended", "probing", "probed"]);
    let made = orders.orders().await;
    assert_eq!(made.len(), 1);
    let again = gateway
        .post("create_order", &order(), &[])
        .await
        .expect_ok();
    assert_eq!(again.at("/result/order_id"), made[0]["order_id"]);
    assert_eq!(
        made[0]["call_id"],
        answer.at("/call_id"),
        "X-Call-Id stays with the effect"
    );
    gateway.stop().await;
}

/// The service has a key as soon as it has the effect, so "not found" is proof when no request can come any more.
#[tokio::test]
async fn a_call_that_never_reached_the_service_fails_by_its_404_and_runs_when_it_is_sent_again() {
    let orders = Orders::start().await;
    let line = Line::to(orders.port).await;
    let gateway = gateway(line.port).await;
    line.hold(b"POST /v1/orders ");
    let answer = gateway.post("create_order", &order(), &[]).await;
    let answer = answer.expect_problem("outcome-unknown");
    until("the call is settled", async || {
        gateway.record(&answer).await.at("/state") == "failed"
    })
    .await;
    assert_eq!(orders.orders().await.len(), 0);
    let is_good_again = gateway.reload(&at("rest", ADDRESS, orders.port)).await;
    assert!(is_good_again);
    let again = gateway
        .post("create_order", &order(), &[])
        .await
        .expect_ok();
    assert_eq!(again.at("/call_id"), answer.at("/call_id"));
    assert_eq!(orders.orders().await.len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_plan_that_is_abandoned_cancels_its_order_once_and_the_books_agree() {
    let orders = Orders::start().await;
    let line = Line::to(orders.port).await;
    let gateway = Gateway::start(&config(line.port)).await;
    let mut kept = order();
    kept["args"]["business_id"] = "B-2".into();
    gateway.post("create_order", &kept, &[]).await.expect_ok();
    let mut request = order();
    request["saga_id"] = "trip-1".into();
    gateway
        .post("create_order", &request, &[])
        .await
        .expect_ok();
    line.cut(true);
    super::abort(&gateway, "trip-1").await;
    let made = orders.orders().await;
    let states: Vec<_> = made.iter().map(|order| order["status"].clone()).collect();
    assert_eq!(states, ["created", "cancelled"]);
    let by_hand = [("idempotency-key", "by-hand")];
    let body = json!({ "sku": "widget", "quantity": 1 });
    orders.post("/v1/orders", &by_hand, &body).await;
    until(
        "the order that no call made is found, and nothing else",
        async || {
            let report = gateway
                .post_to("/v1/reconciliations/orders/run", &json!({}))
                .await;
            report.at("/matched") == 1 && report.at("/counts") == json!({ "orphan": 1 })
        },
    )
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn the_service_executes_a_key_once_however_many_come_at_once_and_says_no_to_others() {
    let orders = Orders::start().await;
    let body = json!({ "sku": "widget", "quantity": 2 });
    let headers = [
        ("idempotency-key", "k1"),
        ("x-session-id", "s"),
        ("fencing-token", "7"),
    ];
    let answers =
        futures_util::future::join_all((0..8).map(|_| orders.post("/v1/orders", &headers, &body)))
            .await;
    let fresh = answers
        .iter()
        .filter(|answer| answer.header("idempotent-replayed").is_empty());
    assert_eq!((fresh.count(), orders.orders().await.len()), (1, 1));
    assert!(
        answers
            .iter()
            .all(|answer| answer.text == answers[0].text && answer.status == 201)
    );
    let found = orders.get("/v1/orders/by-key/k1").await.expect_ok();
    assert_eq!(found.text, answers[0].text);
    for (headers, body, status) in [
        (
            &[("idempotency-key", "k1")][..],
            json!({ "sku": "widget", "quantity": 3 }),
            422,
        ),
        (&[][..], body.clone(), 400),
        (&[("idempotency-key", "k2")][..], json!({ "sku": 1 }), 422),
        (
            &[
                ("idempotency-key", "k2"),
                ("x-session-id", "s"),
                ("fencing-token", "6"),
            ][..],
            body.clone(),
            412,
        ),
    ] {
        let answer = orders.post("/v1/orders", headers, &body).await;
        assert_eq!(answer.status, status, "{}", answer.text);
    }
    assert_eq!(orders.get("/v1/orders/by-key/k2").await.status, 404);
    assert_eq!(orders.orders().await.len(), 1);
}

#[tokio::test]
async fn verify_tool_refutes_no_promise_of_the_service() {
    let orders = Orders::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [
        ("c.toml", config(orders.port)),
        ("args.json", order()["args"].to_string()),
        (
            "other.json",
            json!({ "business_id": "B-1", "sku": "widget", "quantity": 3 }).to_string(),
        ),
    ] {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let count = format!("http://127.0.0.1:{}/v1/orders?status=created", orders.port);
    let options = "--config c.toml --args args.json --other-args other.json --id /order_id --count /orders \
        --undo-count /orders --after 10ms --yes --json";
    let mut arguments = vec!["verify-tool", "create_order", "--count-url", &count];
    arguments.extend(options.split_whitespace());
    let output = run(folder.path(), &arguments);
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let findings = report["findings"].as_array().expect("a list");
    assert_eq!(findings.len(), 7, "{report:#}");
    for finding in findings {
        // On a fast machine the first may be answered before the second has left.
        let may_be_too_fast = finding["claim"] == "once_at_once";
        let is_proved = finding["verdict"] == "proved";
        let is_open = finding["verdict"] == "not_shown" && may_be_too_fast;
        assert!(is_proved || is_open, "{finding:#}");
    }
}
