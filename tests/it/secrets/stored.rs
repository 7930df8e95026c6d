//! Secrets stay secret: the tests put canaries wherever a caller, a tool or an operator can put a secret, and then search
//! everything that can be read.

use serde_json::{Value, json};

use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
use crate::support::redis::Redis;
use crate::support::search::{all_bytes, holds};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

on_both_stores! {
    redacted_values_are_sent_and_replayed_and_never_shown,
}

const SECRET_ARGS: &str = "4111-canary-args";
const SECRET_RESULT: &str = "canary-result";

fn redacting(tool: &Tool, more: &str) -> String {
    let rules = format!(
        "redact = {{ args = [\"/card\"], result = [\"/token\"] }}\nretry = {{ attempts = 1 }}\n{more}"
    );
    one_tool(tool, &rules)
}

fn paying(card: &str) -> Value {
    json!({ "args": { "card": card, "amount": 3 }, "session_id": "S", "idempotency_key": "k" })
}

async fn redacted_values_are_sent_and_replayed_and_never_shown(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&redacting(&tool, "")).await;
    // The tool refuses the call at first, so the same key runs again, with the arguments of the repeated request.
    let refusal: &'static [u8] = b"{\"token\":\"canary-result\",\"why\":\"closed\"}";
    tool.then(Act::Answer(422, "", refusal));
    gateway
        .post("act", &paying(SECRET_ARGS), &[])
        .await
        .expect_problem("tool-rejected");
    let failed = gateway.get("/v1/calls?session_id=S").await.expect_ok();
    assert_eq!(
        failed.at("/calls/0/error/tool_body/token"),
        "[redacted]",
        "{}",
        failed.text
    );
    tool.then(Act::Ok("{\"token\":\"canary-result\",\"paid\":true}"));
    let first = gateway
        .post("act", &paying(SECRET_ARGS), &[])
        .await
        .expect_ok();
    let again = gateway
        .post("act", &paying(SECRET_ARGS), &[])
        .await
        .expect_ok();
    assert_eq!(again.at("/replayed"), true);
    for answer in [&first, &again] {
        assert_eq!(
            answer.at("/result/token"),
            SECRET_RESULT,
            "the caller gets the whole result"
        );
    }
    assert!(
        tool.seen()
            .iter()
            .all(|seen| seen.body.contains(SECRET_ARGS)),
        "the tool gets it"
    );
    let other = gateway.post("act", &paying("4222"), &[]).await;
    other.expect_problem("key-reused");

    let record = gateway.record(&first).await;
    assert_eq!(
        record.at("/args"),
        json!({ "amount": 3, "card": "[redacted]" })
    );
    assert_eq!(
        record.at("/result"),
        json!({ "paid": true, "token": "[redacted]" })
    );
    let lines = gateway
        .client
        .get(gateway.url("/v1/calls"))
        .header("accept", "application/x-ndjson");
    let lines = Answer::to(lines).await;
    let body = json!({ "mode": "stored" }).to_string();
    let id = first.id();
    let replay = gateway.url(&format!("/v1/calls/{id}/replay"));
    let replay = Answer::to(gateway.client.post(replay).body(body)).await;
    let shown = [
        record,
        lines,
        replay.expect_ok(),
        gateway.get("/v1/calls").await,
        gateway.get("/metrics").await,
    ];
    for answer in &shown {
        for secret in [SECRET_ARGS, SECRET_RESULT] {
            assert!(!answer.text.contains(secret), "{}", answer.text);
        }
    }
    assert!(shown[1].text.contains("[redacted]"));
}

pub(crate) fn key(n: u8) -> String {
    hex::encode([n; 32])
}

#[tokio::test]
async fn a_sealed_file_holds_no_text_of_requests_and_answers_and_its_keys_can_be_changed() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let http = client();
    let ask = async |gateway: &Process, name: &str| {
        let body =
            json!({ "args": { "secret": "canary-said" }, "idempotency_key": name }).to_string();
        let request = http.post(gateway.url("/v1/tools/act/calls")).body(body);
        Answer::to(request).await
    };
    let start = async |keys: &[String]| {
        // Right behind the store's URL.
        let rules = format!(
            "encryption_keys = {keys:?}\n{}",
            one_tool(&tool, "retry = { attempts = 1 }")
        );
        Process::start(folder.path(), free_port(), &rules).await
    };
    tool.always(Act::Ok("{\"said\":\"canary-answer\"}"));
    let gateway = start(&[key(1)]).await;
    let first = ask(&gateway, "k").await.expect_ok();
    tool.then(Act::Answer(422, "", b"{\"said\":\"canary-answer\"}"));
    ask(&gateway, "refused")
        .await
        .expect_problem("tool-rejected");
    tool.then(Act::ExecuteThenDrop);
    ask(&gateway, "unknown")
        .await
        .expect_problem("outcome-unknown");
    let of_saga = async |gateway: &Process, key: &str| {
        let body = json!({ "args": {}, "saga_id": "G", "idempotency_key": key }).to_string();
        let request = http.post(gateway.url("/v1/tools/act/calls")).body(body);
        Answer::to(request).await
    };
    of_saga(&gateway, "of_saga").await.expect_ok();
    gateway.kill();
    let bytes = all_bytes(folder.path());
    for secret in ["canary-said", "canary-answer", &key(1)] {
        assert!(!holds(&bytes, secret), "{secret}");
    }
    assert!(
        holds(&bytes, first.at("/call_id").to_string().replace('"', "")),
        "the search finds such bytes"
    );

    let gateway = start(&[key(2), key(1)]).await;
    assert_eq!(
        ask(&gateway, "k").await.expect_ok().result(),
        first.result()
    );
    let second = ask(&gateway, "second").await.expect_ok();
    gateway.kill();

    let gateway = start(&[key(2)]).await;
    assert_eq!(
        ask(&gateway, "second").await.expect_ok().result(),
        second.result()
    );
    let closed = "it is sealed with a key that is not configured";
    let unavailable = ask(&gateway, "k")
        .await
        .expect_problem("result-unavailable");
    assert_eq!(tool.effects(), 4, "what cannot be read is not run again");
    // The store answered, so no text may say that it did not.
    assert!(
        !unavailable.text.contains("did not answer"),
        "{}",
        unavailable.text
    );
    let saga = http
        .get(gateway.url("/v1/sagas/G"))
        .send()
        .await
        .expect("an answer");
    for refused in [Answer::read(saga).await, of_saga(&gateway, "later").await] {
        let refused = refused.expect_problem("wrong-state");
        assert!(
            refused.text.contains(closed) && !refused.text.contains("did not answer"),
            "{}",
            refused.text
        );
    }
    assert_eq!(
        tool.effects(),
        4,
        "nothing is sent for a saga that cannot be read"
    );
    let metrics = Answer::to(http.get(gateway.url("/metrics"))).await.text;
    let errors = |kind: &str| {
        format!("oncegate_store_errors_total{{kind=\"{kind}\",operation=\"document\"}} ")
    };
    assert!(metrics.contains(&(errors("ambiguous") + "0")), "{metrics}");
    assert!(
        !metrics.contains(&(errors("unreadable") + "0")),
        "{metrics}"
    );
    let listed = Answer::to(http.get(gateway.url("/v1/calls"))).await;
    assert!(
        listed
            .expect_ok()
            .text
            .contains("sealed with a key that is not configured")
    );
    // The unknown call can be settled nevertheless.
    let unknown = ask(&gateway, "unknown")
        .await
        .expect_problem("outcome-unknown");
    let id = unknown.id();
    let resolve = gateway.url(&format!("/v1/calls/{id}/resolve"));
    let body = json!({ "as": "succeeded", "result": 7, "reason": "looked it up" }).to_string();
    Answer::to(http.post(resolve).body(body)).await.expect_ok();
    assert_eq!(ask(&gateway, "unknown").await.expect_ok().result(), "7");
    gateway.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sealed_redis_survives_a_loss() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let rules = format!(
        "{}\n[store]\nencryption_keys = [\"{}\"]\n",
        one_tool(&tool, ""),
        key(3)
    );
    let gateway = Gateway::sharing(&redis.url(), &rules).await;
    gateway.until_ready().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let body = json!({ "args": { "secret": "canary-said" }, "idempotency_key": "k" });
    let accepted = gateway
        .post("act", &body, &[("prefer", "respond-async")])
        .await;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    redis.ask(&["FLUSHALL"]).await;
    crate::redis::shared::notices(&gateway, "accept-loss").await;
    drop(hold);
    let id = accepted.id();
    let place = format!("/v1/calls/{id}");
    until("what was lost is complete", async || {
        gateway.get(&place).await.at("/state") == "succeeded"
    })
    .await;
    let record = gateway.record(&accepted).await;
    assert_eq!(
        (record.at("/args/secret"), record.at("/result/effect")),
        ("canary-said".into(), 0.0.into())
    );
}

/// Arguments that one configuration has masked are never sent under another.
#[tokio::test]
async fn masked_arguments_are_never_sent() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let http = client();
    let ask = async |gateway: &Process, name: &str| {
        let body = json!({ "args": { "card": SECRET_ARGS }, "idempotency_key": name }).to_string();
        let request = http.post(gateway.url("/v1/tools/act/calls")).body(body);
        Answer::to(request).await
    };
    tool.then(Act::Drop).then(Act::Answer(422, "", b"{}"));
    let gateway = Process::start(folder.path(), free_port(), &redacting(&tool, "")).await;
    let unknown = ask(&gateway, "unknown")
        .await
        .expect_problem("outcome-unknown");
    ask(&gateway, "failed")
        .await
        .expect_problem("tool-rejected");
    gateway.kill();
    let rules =
        "unknown = \"retry\"\ndedup = \"key\"\nrecheck = { base = \"100ms\", max = \"100ms\" }\n";
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, rules)).await;
    ask(&gateway, "failed").await.expect_ok();
    assert!(
        tool.seen()[2].body.contains(SECRET_ARGS),
        "the request has them"
    );
    let id = unknown.id();
    let place = gateway.url(&format!("/v1/calls/{id}"));
    until("it is given up", async || {
        let record = Answer::to(http.get(&place)).await;
        record.at("/events").to_string().contains("given_up")
    })
    .await;
    assert!(
        tool.seen()
            .iter()
            .all(|seen| seen.body.contains(SECRET_ARGS)),
        "no mask gets to the tool"
    );
    gateway.kill();
}
