//! Pages that stay current: what is told, to whom, and when it ends.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::console::pages::{call, two_signed_in, with_tokens};
use crate::support::browser::Browser;
use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Gateway, PATIENCE, Tool};

on_both_stores! {
    a_change_is_told_once_and_a_page_that_stays_as_it_is_says_nothing,
}

const COMMENT: &[u8] = b":\n\n";

/// The address of the stream that a page names.
async fn stream_of(browser: &Browser, path: &str) -> String {
    let page = browser.see(path).await.expect_ok().text;
    let address = page.split("data-live=\"").nth(1).expect("a live page");
    address
        .split('"')
        .next()
        .expect("an address")
        .replace("&amp;", "&")
}

/// Opens the stream of a page.
async fn open(browser: &Browser, path: &str) -> reqwest::Response {
    let address = stream_of(browser, path).await;
    let stream = browser.request(&address).send().await.expect("an answer");
    assert_eq!(stream.status(), 200);
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    stream
}

/// What a stream says next, comments left out; `None`: it has ended.
async fn next(stream: &mut reqwest::Response) -> Option<String> {
    loop {
        let chunk = timeout(PATIENCE, stream.chunk()).await.expect("in time");
        let bytes = chunk.expect("a stream")?;
        if &bytes[..] != COMMENT {
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

/// Whether a stream says nothing for so long.
async fn is_quiet(stream: &mut reqwest::Response, time: Duration) -> bool {
    timeout(time, next(stream)).await.is_err()
}

async fn a_change_is_told_once_and_a_page_that_stays_as_it_is_says_nothing(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&with_tokens(&one_tool(&tool, ""))).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let (ops, bank) = (
        Browser::sign_in(one, "ops").await,
        Browser::sign_in(one, "bank").await,
    );
    let (mut all, mut banks) = (
        open(&ops, "/console/calls").await,
        open(&bank, "/console/calls").await,
    );
    let body = json!({ "args": {}, "idempotency_key": "k" });
    call(other, "reads", &body).await.expect_ok();
    assert_eq!(
        next(&mut all).await.as_deref(),
        Some("event: changed\ndata:\n\n")
    );
    // Ages pass, which is not a change; nor is another tenant's call.
    assert!(is_quiet(&mut all, Duration::from_millis(2_500)).await);
    assert!(is_quiet(&mut banks, Duration::from_millis(10)).await);
    // What changed between the page and its stream is told at once.
    let address = stream_of(&ops, "/console/calls").await;
    call(
        other,
        "reads",
        &json!({ "args": {}, "idempotency_key": "k2" }),
    )
    .await
    .expect_ok();
    let mut late = ops.request(&address).send().await.expect("an answer");
    assert_eq!(
        next(&mut late).await.as_deref(),
        Some("event: changed\ndata:\n\n")
    );
}

#[tokio::test]
async fn a_stream_ends_with_its_session_and_with_the_gateway() {
    let (gateway, ops, reads, without) = two_signed_in().await;
    let (mut of_ops, mut of_reads) = (open(&ops, "/console").await, open(&reads, "/console").await);
    assert!(gateway.reload(&without).await);
    while next(&mut of_ops).await.is_some() {}
    gateway.begin_stop();
    while next(&mut of_reads).await.is_some() {}
    drop((ops, reads));
    gateway.stop().await;
}

#[tokio::test]
async fn streams_are_few_and_are_only_of_pages() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, ""))).await;
    let ops = Browser::sign_in(&gateway, "ops").await;
    let mut open_ones = Vec::new();
    let refused = loop {
        assert!(open_ones.len() < 100, "there is no bound");
        let stream = ops
            .request("/console/live?at=%2Fconsole")
            .send()
            .await
            .expect("an answer");
        match stream.status().as_u16() {
            200 => open_ones.push(stream),
            status => break status,
        }
    };
    assert_eq!(refused, 429);
    // Another tenant still finds a place.
    let bank = Browser::sign_in(&gateway, "bank").await;
    open(&bank, "/console/calls").await;
    for at in [
        "",
        "%2Fv1%2Fcalls",
        "https%3A%2F%2Fevil.example%2Fconsole%2Fx",
        "%2Fconsoles",
    ] {
        let stream = bank.see(&format!("/console/live?at={at}")).await;
        assert_eq!(stream.status, 404, "{at}");
    }
    let nobody = Browser::with_cookie(&gateway, "");
    assert_eq!(nobody.see("/console/live?at=%2Fconsole").await.status, 401);
}
