//! The endpoints for those who run the gateway: what they cost, and what they tell to whom.

use serde_json::json;

use oncegate::core::timings::Timings;

use crate::support::gateway::{OPS_TOKEN, one_tool, ops_token_sha256};
use crate::support::timings::brisk;
use crate::support::{Answer, Gateway, Tool, until};

/// Of an endpoint at this address, with this bearer token if there is one.
async fn ask(
    gateway: &Gateway,
    address: std::net::SocketAddr,
    door: &str,
    token: Option<&str>,
) -> Answer {
    let mut request = gateway.client.get(format!("http://{address}{door}"));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    Answer::to(request).await
}

/// A gateway with a tool that an operator has paused, which is a warning of `/readyz`.
async fn with_a_warning(tool: &Tool, server: &str) -> Gateway {
    let gateway = Gateway::start(&format!("[server]\n{server}\n{}", one_tool(tool, ""))).await;
    let pause = gateway
        .client
        .post(gateway.url("/v1/tools/act/pause"))
        .body("{\"reason\":\"it ships twice\"}");
    Answer::to(pause).await.expect_ok();
    gateway
}

#[tokio::test]
async fn readyz_says_codes_only_where_nothing_guards_it() {
    let tool = Tool::start().await;
    // Nothing is set; the comment keeps the harness from setting it.
    let gateway = with_a_warning(&tool, "# no ops_token, no ops_listen").await;
    for token in [None, Some(OPS_TOKEN)] {
        let ready = ask(&gateway, gateway.address, "/readyz", token)
            .await
            .expect_ok();
        assert_eq!(
            (ready.at("/reasons"), ready.at("/warnings")),
            (json!([]), json!(["tool_paused"]))
        );
    }
    ask(&gateway, gateway.address, "/metrics", None)
        .await
        .expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn a_token_guards_metrics_and_the_sentences_of_readyz() {
    let tool = Tool::start().await;
    let gateway = with_a_warning(&tool, &format!("ops_token = \"{}\"", ops_token_sha256())).await;
    for token in [None, Some("another")] {
        let refused = ask(&gateway, gateway.address, "/metrics", token).await;
        assert_eq!(refused.expect_problem("unauthenticated").status, 401);
        let ready = ask(&gateway, gateway.address, "/readyz", token)
            .await
            .expect_ok();
        assert_eq!(ready.at("/warnings"), json!(["tool_paused"]));
        assert_eq!(
            ask(&gateway, gateway.address, "/healthz", token)
                .await
                .expect_ok()
                .text,
            "ok\n"
        );
    }
    let metrics = ask(&gateway, gateway.address, "/metrics", Some(OPS_TOKEN))
        .await
        .expect_ok();
    assert!(metrics.text.contains("oncegate_store_ready 1"));
    let ready = ask(&gateway, gateway.address, "/readyz", Some(OPS_TOKEN))
        .await
        .expect_ok();
    assert!(
        ready.at("/warnings").to_string().contains("it ships twice"),
        "{}",
        ready.text
    );
    gateway.stop().await;
}

#[tokio::test]
async fn the_ops_doors_have_a_listener_of_their_own_if_one_is_set() {
    let tool = Tool::start().await;
    for (guard, token) in [
        ("", None),
        (
            &*format!("ops_token = \"{}\"", ops_token_sha256()),
            Some(OPS_TOKEN),
        ),
    ] {
        let gateway =
            with_a_warning(&tool, &format!("ops_listen = \"127.0.0.1:0\"\n{guard}")).await;
        let ops = gateway.ops_address.expect("an address");
        ask(&gateway, gateway.address, "/metrics", token)
            .await
            .expect_problem("unknown-path");
        let ready = ask(&gateway, gateway.address, "/readyz", token)
            .await
            .expect_ok();
        assert_eq!(
            ready.at("/warnings"),
            json!(["tool_paused"]),
            "for a balancer"
        );
        let metrics = ask(&gateway, ops, "/metrics", token).await.expect_ok();
        assert!(metrics.text.contains("oncegate_store_ready 1"));
        let ready = ask(&gateway, ops, "/readyz", token).await.expect_ok();
        assert!(
            ready.at("/warnings").to_string().contains("it ships twice"),
            "{}",
            ready.text
        );
        assert_eq!(
            ask(&gateway, ops, "/healthz", None).await.expect_ok().text,
            "ok\n"
        );
        for door in ["/v1/tools", "/v1/calls", "/"] {
            ask(&gateway, ops, door, token)
                .await
                .expect_problem("unknown-path");
        }
        if token.is_some() {
            ask(&gateway, ops, "/metrics", None)
                .await
                .expect_problem("unauthenticated");
            let ready = ask(&gateway, ops, "/readyz", None).await.expect_ok();
            assert_eq!(ready.at("/warnings"), json!(["tool_paused"]));
        }
        gateway.begin_stop();
        gateway.stop().await;
        // A process that another test starts at this moment has the listener, too, until it runs its own program.
        until("it ends with the gateway", async || {
            tokio::net::TcpStream::connect(ops).await.is_err()
        })
        .await;
    }
}

#[tokio::test]
async fn scrapes_and_looks_at_readiness_share_one_question_to_the_store() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("oncegate.db").display());
    // So slow that the test sees one question, however busy the machine is.
    let timings = Timings {
        ask_store_every: std::time::Duration::from_secs(3_600),
        ..brisk()
    };
    let gateway = Gateway::at_pace(timings, &store, &one_tool(&tool, "")).await;
    let first = gateway.get("/metrics").await.expect_ok().text;
    let scrapes: Vec<_> = (0..100)
        .map(|_| {
            let metrics = gateway
                .client
                .get(gateway.url("/metrics"))
                .bearer_auth(OPS_TOKEN);
            let ready = gateway.client.get(gateway.url("/readyz"));
            tokio::spawn(async move {
                let ready = ready.send().await.expect("an answer").status();
                (ready, Answer::to(metrics).await)
            })
        })
        .collect();
    for scrape in scrapes {
        let (ready, metrics) = scrape.await.expect("no panic");
        assert_eq!(ready, 200);
        assert!(metrics.expect_ok().text == first, "it is the same buffer");
    }
    gateway.begin_stop();
}
