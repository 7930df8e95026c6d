//! Unknown calls are settled as their tools' policies say, on both stores.

use std::time::Duration;

use oncegate::core::record::InstanceId;
use oncegate::gateway;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway::{Bare, one_tool};
use crate::support::memory::Memory;
use crate::support::rounds::recheck;
use crate::support::stores::{Stores, begin, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

on_both_stores![
    a_probe_that_finds_the_call_settles_it_with_what_the_tool_says,
    a_probe_that_finds_nothing_or_is_not_answered_proves_nothing,
    a_tool_that_deduplicates_gets_the_same_key_again_until_it_answers,
    a_held_call_is_never_sent_again_by_itself,
    a_call_that_cannot_be_settled_is_given_up_and_stays_visible,
    an_operator_settles_a_call_and_its_waiting_callers_are_told,
    each_check_is_made_by_one_gateway_only,
];

/// Unknown calls are checked every 100 ms.
const OFTEN: &str = "recheck = { base = \"100ms\", max = \"100ms\" }\nretry = { attempts = 1 }\n";

fn probing(tool: &Tool, more: &str) -> String {
    let probe = format!(
        "probe = {{ url = \"http://127.0.0.1:{}/by-key/{{key}}\"{more} }}",
        tool.port
    );
    one_tool(tool, &format!("unknown = \"probe\"\n{probe}\n{OFTEN}"))
}

/// Waits until the ledger says that the call is in this state.
async fn until_it_is(gateway: &Gateway, call: &Answer, state: &str) {
    until(state, async || {
        gateway.record(call).await.at("/state") == state
    })
    .await;
}

async fn a_probe_that_finds_the_call_settles_it_with_what_the_tool_says(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .then(Act::Ok("{ \"order\": 1.0 }"));
    let gateway = stores.gateway(&probing(&tool, "")).await;
    let unknown = gateway
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    until_it_is(&gateway, &unknown, "succeeded").await;
    let replayed = gateway.act("k", json!({})).await.expect_ok();
    assert_eq!(
        (replayed.result().as_str(), replayed.at("/replayed")),
        ("{ \"order\": 1.0 }", true.into())
    );
    let seen = tool.seen();
    let key = seen[0].header("idempotency-key");
    assert_eq!(seen[1].line, format!("GET /by-key/{key} HTTP/1.1"));
    assert_eq!(seen.len(), 2);
    let events = gateway.record(&unknown).await.events();
    assert_eq!(events, ["claimed", "ended", "probing", "probed"]);
}

async fn a_probe_that_finds_nothing_or_is_not_answered_proves_nothing(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .then(Act::Answer(404, "", b"{}"))
        .then(Act::Answer(503, "", b"{}"));
    tool.then(Act::Drop)
        .then(Act::Answer(410, "", b"{}"))
        .always(Act::Answer(404, "", b"{}"));
    let gateway = stores.gateway(&probing(&tool, "")).await;
    let unknown = gateway
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    until("it was asked often", async || tool.requests() >= 6).await;
    gateway
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let record = gateway.record(&unknown).await;
    assert_eq!(record.at("/state"), "unknown");
    assert_ne!(record.at("/next_check_at"), Value::Null);
    let sent = tool
        .seen()
        .iter()
        .filter(|seen| seen.line.starts_with("POST"))
        .count();
    assert_eq!(sent, 1, "it is only asked");
}

async fn a_tool_that_deduplicates_gets_the_same_key_again_until_it_answers(stores: &Stores) {
    let tool = Tool::start().await;
    tool.deduplicate().always(Act::ExecuteThenDrop);
    let rules =
        "unknown = \"retry\"\ndedup = \"key\"\nrecheck = { base = \"100ms\", max = \"100ms\" }\n";
    let rules = format!("{rules}retry = {{ attempts = 2, base = \"1ms\", max = \"1ms\" }}");
    let gateway = stores.gateway(&one_tool(&tool, &rules)).await;
    let unknown = gateway
        .act("k", json!({ "args": { "n": 1 } }))
        .await
        .expect_problem("outcome-unknown");
    assert!(
        tool.requests() >= 2,
        "within the deadline it is tried again, too"
    );
    tool.always(Act::Numbered);
    until_it_is(&gateway, &unknown, "succeeded").await;
    gateway
        .act("k", json!({ "args": { "n": 1 } }))
        .await
        .expect_ok();
    let seen = tool.seen();
    let what = |seen: &crate::support::tool::Seen| {
        (
            seen.header("idempotency-key").to_owned(),
            seen.header("fencing-token").to_owned(),
            seen.body.clone(),
        )
    };
    assert!(
        seen.iter().all(|again| what(again) == what(&seen[0])),
        "the same key, token and bytes"
    );
    assert_eq!(tool.effects_by_key().values().sum::<usize>(), 1);
    assert!(
        gateway
            .record(&unknown)
            .await
            .events()
            .contains(&"sent_again".to_owned())
    );
}

async fn a_held_call_is_never_sent_again_by_itself(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = stores.gateway(&one_tool(&tool, OFTEN)).await;
    let unknown = gateway
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let body = json!({ "args": {}, "session_id": "S", "idempotency_key": "k" });
    // Three rounds of the loop that works on unknown calls.
    gateway
        .post("act", &body, &[("prefer", "wait=3")])
        .await
        .expect_problem("outcome-unknown");
    assert_eq!(
        (
            tool.requests(),
            gateway.record(&unknown).await.at("/next_check_at")
        ),
        (1, Value::Null)
    );
}

async fn a_call_that_cannot_be_settled_is_given_up_and_stays_visible(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Answer(503, "", b"{}"));
    let config =
        probing(&tool, "").replace("max = \"100ms\"", "max = \"100ms\", give_up_after = \"1s\"");
    let gateway = stores.gateway(&config).await;
    let unknown = gateway
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    until("it is given up", async || {
        gateway
            .record(&unknown)
            .await
            .events()
            .contains(&"given_up".to_owned())
    })
    .await;
    let record = gateway.record(&unknown).await;
    assert_eq!(
        (record.at("/state"), record.at("/next_check_at")),
        ("unknown".into(), Value::Null)
    );
    assert_eq!(
        gateway.metric("oncegate_unknown_calls{tool=\"act\"}").await,
        1.0
    );
}

async fn an_operator_settles_a_call_and_its_waiting_callers_are_told(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    let unknown = gateway
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let waits = tokio::spawn({
        let (client, url) = (gateway.client.clone(), gateway.url("/v1/tools/act/calls"));
        let body = json!({ "args": {}, "session_id": "S", "idempotency_key": "k" }).to_string();
        async move {
            let request = client.post(url).header("prefer", "wait=30").body(body);
            Answer::to(request).await
        }
    });
    let resolve = async |body| gateway.resolve(&unknown, &body).await;
    for wrong in [
        json!({ "as": "succeeded" }),
        json!({ "as": "maybe", "reason": "r" }),
        json!({ "as": "failed", "result": 1, "reason": "r" }),
        json!({ "as": "succeeded", "result": 1, "reason": " " }),
        json!({ "as": "succeeded", "reason": "it is there" }),
    ] {
        resolve(wrong).await.expect_problem("invalid-request");
    }
    let early = resolve(json!({ "as": "failed", "reason": "not there" }))
        .await
        .expect_problem("wrong-state");
    assert!(
        early
            .at("/detail")
            .to_string()
            .contains("may still be executed until"),
        "{}",
        early.text
    );
    let settled =
        resolve(json!({ "as": "succeeded", "result": { "order": 7 }, "reason": "found it" })).await;
    assert_eq!(settled.expect_ok().at("/state"), "succeeded");
    let heard = waits.await.expect("no panic").expect_ok();
    assert_eq!(
        (heard.at("/result/order"), heard.at("/replayed")),
        (7.into(), true.into())
    );
    let again = json!({ "as": "succeeded", "result": null, "reason": "again" });
    resolve(again).await.expect_problem("wrong-state");
    let record = gateway.record(&unknown).await;
    assert_eq!(
        (record.at("/events/2/event"), record.at("/events/2/by")),
        ("resolved".into(), "token open".into())
    );
    assert!(
        record
            .at("/events/2/detail")
            .to_string()
            .contains("found it"),
        "{}",
        record.text
    );
    assert_eq!(tool.requests(), 1);
}

async fn each_check_is_made_by_one_gateway_only(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Answer(404, "", b"{}"));
    let gateways = stores.gateways(&probing(&tool, "")).await;
    let unknown = gateways[0]
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    until("it was asked often", async || tool.requests() >= 6).await;
    // The check is written before the tool is asked, so there are never more questions than entries.
    let asked = tool.requests() - 1;
    let events = gateways[0].record(&unknown).await.events();
    assert!(
        events.iter().filter(|event| *event == "probing").count() >= asked,
        "{events:?}"
    );
}

#[tokio::test]
async fn not_found_is_final_when_an_operator_or_a_deduplicating_tool_says_so() {
    for (more, dedup) in [(", negative_final_after = \"20s\"", "none"), ("", "key")] {
        let tool = Tool::start().await;
        tool.then(Act::Drop)
            .then(Act::Answer(404, "", b"{}"))
            .then(Act::Answer(404, "", b"{}"));
        let url = format!("http://127.0.0.1:{}/by-key/{{key}}", tool.port);
        let rules = format!(
            "unknown = \"probe\"\ndedup = \"{dedup}\"\nprobe = {{ url = \"{url}\"{more} }}\n"
        );
        let instance: InstanceId = gateway::new_instance();
        let bare = Bare::over(Memory::default(), instance, &tool, &rules).await;
        let ask = async || {
            let body = json!({ "args": {}, "idempotency_key": "k" }).to_string();
            Answer::to(client().post(&bare.url).body(body)).await
        };
        ask().await.expect_problem("outcome-unknown");
        // The lease lasts ten seconds longer than the default deadline of 30 s.
        let early = bare.gateway.now() + Duration::from_secs(10);
        let rested = recheck(&bare.gateway, early).await;
        assert_eq!(
            (rested.due, rested.settled),
            (1, 0),
            "its request may still be under way"
        );
        let late = bare.gateway.now() + Duration::from_secs(120);
        let rested = recheck(&bare.gateway, late).await;
        assert_eq!((rested.due, rested.settled), (1, 1), "{more} {dedup}");
        ask().await.expect_ok();
        assert_eq!(tool.effects_by_key().len(), 1);
    }
}

#[tokio::test]
async fn only_an_administrator_settles_a_call() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let mut config = one_tool(&tool, "");
    for (tenant, scopes) in [("shop", "\"call\", \"read\""), ("ops", "\"admin\"")] {
        let digest = hex::encode(Sha256::digest(tenant));
        config += &format!(
            "[[auth.tokens]]\nname = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n"
        );
    }
    let gateway = Gateway::start(&config).await;
    let unknown = gateway
        .post(
            "act",
            &json!({ "args": {} }),
            &[("authorization", "Bearer shop")],
        )
        .await
        .expect_problem("outcome-unknown");
    let as_done = json!({ "as": "succeeded", "result": null, "reason": "found it" });
    let resolve_as = async |token: &str, call: &Answer| {
        let path = format!("/v1/calls/{}/resolve", call.id());
        gateway.post_as(token, &path, &as_done).await
    };
    resolve_as("shop", &unknown)
        .await
        .expect_problem("forbidden");
    resolve_as("ops", &unknown).await.expect_ok();
    let other = Answer {
        text: json!({ "call_id": uuid::Uuid::new_v4() }).to_string(),
        ..unknown
    };
    resolve_as("ops", &other)
        .await
        .expect_problem("unknown-call");
}

#[tokio::test]
async fn who_has_to_wait_is_told_what_the_tool_usually_takes() {
    let tool = Tool::start().await;
    tool.then(Act::after_ms(1_500, Act::Numbered))
        .then(Act::after_ms(2_000, Act::Numbered));
    let gateway = Gateway::with_tool(&tool, "").await;
    gateway.act("first", json!({})).await.expect_ok();
    let second = begin(&gateway, "second", json!({}));
    until("it runs", async || tool.requests() == 2).await;
    let body = json!({ "args": {}, "session_id": "S", "idempotency_key": "second" });
    let early = gateway
        .post("act", &body, &[("prefer", "wait=0")])
        .await
        .expect_problem("call-in-progress");
    let wait = early.at("/retry_after_ms").as_u64().expect("a time");
    assert!((500..=1_600).contains(&wait), "{wait}");
    second.await.expect("no panic").expect_ok();
}

/// Each behaviour of a tool under each policy: there is at most one effect, and the call is settled as the policy says.
#[tokio::test]
async fn whatever_a_tool_does_each_policy_brings_its_calls_to_rest() {
    let hold = "";
    let probe = "unknown = \"probe\"\n";
    let retry = "unknown = \"retry\"\ndedup = \"key\"\n";
    let slow = || Act::after_ms(900, Act::Numbered);
    let rejected = || Act::Answer(422, "", b"{}");
    for (policy, act, first, rest) in [
        (hold, Act::ExecuteThenDrop, "outcome-unknown", "unknown"),
        (hold, rejected(), "tool-rejected", "failed"),
        (hold, slow(), "outcome-unknown", "succeeded"),
        (probe, Act::ExecuteThenDrop, "outcome-unknown", "succeeded"),
        (probe, rejected(), "tool-rejected", "failed"),
        (probe, slow(), "outcome-unknown", "succeeded"),
        (retry, Act::ExecuteThenDrop, "", "succeeded"),
        (retry, rejected(), "tool-rejected", "failed"),
        (retry, slow(), "", "succeeded"),
    ] {
        let said = format!("{policy:?} {act:?}");
        let tool = Tool::start().await;
        tool.deduplicate().then(act);
        let probe = format!(
            "probe = {{ url = \"http://127.0.0.1:{}/by-key/{{key}}\" }}\n",
            tool.port
        );
        let times =
            "timeout = \"400ms\"\ndeadline = \"2s\"\nretry = { attempts = 2, base = \"1ms\" }\n";
        let recheck = "recheck = { base = \"100ms\", max = \"100ms\" }\n";
        let gateway = Gateway::with_tool(&tool, &format!("{policy}{probe}{times}{recheck}")).await;
        let answer = gateway.act("k", json!({})).await;
        assert_eq!(answer.problem(), first, "{said}: {}", answer.text);
        until(&said, async || {
            gateway.record(&answer).await.at("/state") == rest
        })
        .await;
        let posts = tool.seen();
        let posts = posts.iter().filter(|seen| seen.line.starts_with("POST"));
        assert!(
            posts.clone().filter(|seen| seen.executed).count() <= 1,
            "{said}"
        );
        assert!(
            policy == retry || posts.count() == 1,
            "{said}: it is not sent again"
        );
    }
}
