//! GitHub: no keys. What is unknown is held, or the thing itself is asked.

use serde_json::{Value, json};

use super::{at, call};
use crate::support::{Act, Gateway, Tool, until};

const ADDRESS: &str = "https://api.github.com";
const ISSUE: &[u8] = br#"{"number":1347,"state":"open"}"#;
const CLOSED: &[u8] = br#"{"number":1347,"state":"closed"}"#;
const MERGED: &[u8] = br#"{"sha":"6dcb09b5b57875f334f61aebed695e2e4193db5e","merged":true,"message":"Pull Request successfully merged"}"#;
const PULL: &[u8] = br#"{"number":7,"merged":true,"state":"closed"}"#;
const OPEN_PULL: &[u8] = br#"{"number":7,"merged":false,"state":"open"}"#;
const MOVED: &str = "location: https://api.github.com/repositories/1300192/issues\r\n";

/// A server that knows what it is asked for by `GET`, and nothing of keys.
async fn github(written: &'static [u8], looked_at: &'static [u8]) -> Tool {
    let tool = Tool::start().await;
    tool.choose(move |seen, _| match seen.line.starts_with("GET ") {
        true => Act::Tell(200, "", looked_at),
        false => Act::Answer(201, "", written),
    });
    tool
}

fn issue() -> Value {
    call(json!({ "repo": "shop", "title": "T-1041 The till is stuck", "body": "It is." }))
}

fn merge() -> Value {
    call(json!({ "repo": "shop", "pull": 7, "sha": "0d1a26e67d8f5eaf1f6ba5c57fc3c7d91ac0fd1c" }))
}

#[tokio::test]
async fn an_issue_whose_answer_is_lost_is_held_and_never_opened_twice() {
    let tool = github(ISSUE, ISSUE).await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = super::gateway("github", ADDRESS, &tool).await;
    let mut reworded = issue();
    let answer = gateway.post("create_issue", &reworded, &[]).await;
    let answer = answer.expect_problem("outcome-unknown");
    assert_eq!(
        answer.at("/retry_after_ms"),
        Value::Null,
        "an operator has to look"
    );
    reworded["args"]["body"] = "The till is stuck again.".into();
    gateway
        .post("create_issue", &reworded, &[])
        .await
        .expect_problem("outcome-unknown");
    let seen = tool.seen();
    assert_eq!((seen.len(), tool.effects()), (1, 1));
    assert_eq!(seen[0].line, "POST /repos/acme/shop/issues HTTP/1.1");
    assert_eq!(
        seen[0].body,
        r#"{"body":"It is.","title":"T-1041 The till is stuck"}"#
    );
    assert!(
        seen[0].header("user-agent").starts_with("oncegate/"),
        "GitHub asks for it"
    );
    assert_eq!(seen[0].header("accept"), "application/vnd.github+json");
    let found = json!({ "as": "succeeded", "result": { "number": 1347 }, "reason": "found" });
    gateway.resolve(&answer, &found).await.expect_ok();
    let again = gateway
        .post("create_issue", &issue(), &[])
        .await
        .expect_ok();
    assert_eq!(
        (again.at("/result/number"), tool.requests()),
        (1347.into(), 1)
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_repository_that_was_moved_is_told_and_nothing_is_unknown() {
    let tool = github(ISSUE, ISSUE).await;
    tool.then(Act::Answer(307, MOVED, b"{}"));
    let gateway = super::gateway("github", ADDRESS, &tool).await;
    let answer = gateway.post("create_issue", &issue(), &[]).await;
    assert_eq!(answer.expect_problem("tool-rejected").at("/effect"), "none");
    assert_eq!(
        (tool.requests(), tool.effects()),
        (1, 0),
        "no redirect is followed"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_merge_whose_answer_is_lost_is_asked_of_the_pull_request() {
    for lost in [Act::ExecuteThenDrop, Act::ExecuteThenAnswer(502)] {
        let tool = github(MERGED, PULL).await;
        tool.then(lost);
        let gateway = super::gateway("github", ADDRESS, &tool).await;
        let answer = gateway.post("merge_pull_request", &merge(), &[]).await;
        let answer = answer.expect_problem("outcome-unknown");
        until("the merge is settled", async || {
            gateway.record(&answer).await.at("/state") == "succeeded"
        })
        .await;
        let seen = tool.seen();
        assert_eq!(seen[0].line, "PUT /repos/acme/shop/pulls/7/merge HTTP/1.1");
        let sent: Value = serde_json::from_str(&seen[0].body).expect("JSON");
        let sha = merge()["args"]["sha"].clone();
        assert_eq!(sent, json!({ "merge_method": "squash", "sha": sha }));
        assert_eq!(seen[1].line, "GET /repos/acme/shop/pulls/7 HTTP/1.1");
        assert_eq!(tool.effects(), 1);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_pull_request_that_is_not_merged_yet_and_one_that_cannot_be_seen_prove_nothing() {
    for look in [Act::Tell(200, "", OPEN_PULL), Act::Answer(404, "", b"{}")] {
        let tool = Tool::start().await;
        tool.then(Act::ExecuteThenDrop)
            .choose(move |_, _| look.clone());
        let long = "timeout = \"15s\"\ndeadline = \"45s\"";
        let short = "timeout = \"200ms\"\ndeadline = \"600ms\"\nrecheck = { base = \"200ms\", max = \"400ms\" }";
        let config = at("github", ADDRESS, tool.port).replace(long, short);
        let gateway = Gateway::start(&config).await;
        let answer = gateway.post("merge_pull_request", &merge(), &[]).await;
        let answer = answer.expect_problem("outcome-unknown");
        // The last ones came after the call's lease.
        until("it was looked at again and again", async || {
            tool.requests() >= 10
        })
        .await;
        assert_eq!(gateway.record(&answer).await.at("/state"), "unknown");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn an_issue_of_an_abandoned_plan_is_closed_once_although_the_answer_to_that_is_lost() {
    let tool = github(ISSUE, CLOSED).await;
    let gateway = super::gateway("github", ADDRESS, &tool).await;
    let mut request = issue();
    request["saga_id"] = "plan-1".into();
    gateway
        .post("create_issue", &request, &[])
        .await
        .expect_ok();
    tool.then(Act::ExecuteThenDrop);
    super::abort(&gateway, "plan-1").await;
    let seen = tool.seen();
    assert_eq!(seen[1].line, "PATCH /repos/acme/shop/issues/1347 HTTP/1.1");
    assert_eq!(
        seen[1].body,
        r#"{"state":"closed","state_reason":"not_planned"}"#
    );
    assert!(
        seen[2..]
            .iter()
            .all(|seen| seen.line == "GET /repos/acme/shop/issues/1347 HTTP/1.1"),
        "{seen:#?}"
    );
    assert_eq!(tool.effects(), 2, "opened and closed");
    gateway.stop().await;
}
