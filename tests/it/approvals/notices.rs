//! What the webhook is told of calls that wait for approval, and that nothing depends on it.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::held::write_settings;
use super::*;
use crate::support::binary::{command, free_port};
use crate::support::client;
use crate::support::gateway::SOON;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::tool::Seen;

/// Two secrets, and one that signs nothing here.
const SECRETS: [&[u8; 32]; 3] = [&[1; 32], &[2; 32], &[3; 32]];
/// What an agent would rather keep between itself and the tool.
const CARD: &str = "4242-4242";

fn written(secret: &[u8]) -> String {
    format!("whsec_{}", STANDARD.encode(secret))
}

/// A tool that asks, and a webhook that is told.
fn notified(tool: &Tool, ears: &Tool, more: &str) -> String {
    let approval = "when = [\"always\"]\nshow = [\"/amount\", \"/memo\"]";
    format!(
        "[approvals]\nconsole = \"https://gate.example/base/\"\n[webhook]\nurl = \"{}\"\n\
         secrets = [\"{}\", \"{}\"]\n{}{more}",
        ears.url(),
        written(SECRETS[0]),
        written(SECRETS[1]),
        config_with(&tool.url(), approval, ""),
    )
}

async fn ears() -> Tool {
    let ears = Tool::start().await;
    ears.always(Act::Answer(204, "", b""));
    ears
}

fn args() -> Value {
    json!({ "amount": 12, "card": CARD, "memo": "m".repeat(2_000) })
}

/// HMAC-SHA256, as RFC 2104 has it.
fn hmac(secret: &[u8], text: &[u8]) -> Vec<u8> {
    let mut key = [0_u8; 64];
    key[..secret.len()].copy_from_slice(secret);
    let pad = |byte: u8| key.map(|one| one ^ byte);
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text);
    let outer = Sha256::new()
        .chain_update(pad(0x5c))
        .chain_update(inner.finalize());
    outer.finalize().to_vec()
}

/// Whether a receiver with this secret takes a message.
fn verifies(seen: &Seen, secret: &[u8]) -> bool {
    let (id, time) = (seen.header("webhook-id"), seen.header("webhook-timestamp"));
    let sent: i64 = time.parse().expect("seconds");
    let age = oncegate::gateway::local_time().as_second() - sent;
    assert!((-5..300).contains(&age), "{age} seconds old");
    let signed = hmac(secret, format!("{id}.{time}.{}", seen.body).as_bytes());
    let expected = format!("v1,{}", STANDARD.encode(signed));
    let mut signatures = seen.header("webhook-signature").split(' ');
    signatures.any(|one| one == expected)
}

/// What was told: event, outcome and ask of each message, each with its id.
fn told(ears: &Tool) -> Vec<(String, Value)> {
    let seen = ears.seen();
    let bodies = seen.iter().map(|one| {
        let body: Value = serde_json::from_str(&one.body).expect("JSON");
        let event = body["event"].as_str().expect("a word").to_owned();
        assert_eq!(
            one.header("idempotency-key"),
            format!("{event}:{}", body["id"].as_str().expect("an id"))
        );
        assert!(!one.body.contains(CARD), "{}", one.body);
        (event, body["data"].clone())
    });
    bodies.collect()
}

/// The events with their outcomes.
fn events_of(ears: &Tool) -> Vec<String> {
    let word = |(event, data): (String, Value)| match data["outcome"].as_str() {
        Some(outcome) => format!("{event}: {outcome}"),
        None => event,
    };
    told(ears).into_iter().map(word).collect()
}

async fn until_told(ears: &Tool, expected: &[&str]) {
    until("it is told", async || {
        events_of(ears).len() >= expected.len()
    })
    .await;
    assert_eq!(events_of(ears), expected);
}

/// Every id that was told, and how many messages there were.
fn ids(ears: &Tool) -> (BTreeSet<String>, usize) {
    let ids = ears.seen();
    let ids = ids.iter().map(|seen| seen.header("webhook-id").to_owned());
    (ids.collect(), ears.requests())
}

async fn a_notice_is_signed_and_has_of_the_arguments_only_what_show_names(stores: &Stores) {
    let (tool, ears) = (Tool::start().await, ears().await);
    let gateway = stores.gateway(&notified(&tool, &ears, "")).await;
    let body = json!({ "args": args(), "idempotency_key": "k", "session_id": "S" });
    let asked = ask_as(&gateway, "wait=0", &body).await;
    until_told(&ears, &["approval.asked"]).await;
    let seen = &ears.seen()[0];
    assert_eq!(
        SECRETS.map(|secret| verifies(seen, secret)),
        [true, true, false]
    );
    let mut forged = seen.clone();
    forged.body = forged.body.replace("12", "13");
    assert!(!verifies(&forged, SECRETS[0]));
    let (_, data) = &told(&ears)[0];
    let shown = look(&gateway, "ann", &asked).await.expect_ok();
    let link = format!("https://gate.example/base/console/approvals/{}", asked.id());
    let expected = json!({
        "call_id": asked.id(), "tenant": "shop", "tool": "act", "session_id": "S", "saga_id": "",
        "ask": 1, "asked_at": shown.at("/asked_at"), "expires_at": shown.at("/expires_at"),
        "needed": 1, "approvals": 0,
        "show": { "/amount": 12 }, "left_out": ["/memo"], "link": link,
    });
    assert_eq!(*data, expected);

    approve(&gateway, "ann", &asked).await.expect_ok();
    until_told(&ears, &["approval.asked", "approval.ended: approved"]).await;
    until_state(&gateway, &asked, "succeeded").await;
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
    assert_eq!(ids(&ears).0.len(), ids(&ears).1, "each message has its id");
}

async fn whoever_opens_the_link_of_a_notice_changes_nothing(stores: &Stores) {
    let (tool, ears) = (Tool::start().await, ears().await);
    let gateway = stores.gateway(&notified(&tool, &ears, "")).await;
    let asked = ask(&gateway, "k", args()).await;
    until_told(&ears, &["approval.asked"]).await;
    let link = told(&ears)[0].1["link"].as_str().expect("one").to_owned();
    let path = link.strip_prefix("https://gate.example/base").expect("it");
    let before = look(&gateway, "ann", &asked).await.expect_ok().text;
    for token in ["", "ann", "agent", "boss"] {
        for method in [reqwest::Method::GET, reqwest::Method::HEAD] {
            for path in [path.to_owned(), format!("{path}/approve")] {
                let request = gateway.client.request(method.clone(), gateway.url(&path));
                let request = match token {
                    "" => request,
                    token => request.bearer_auth(token),
                };
                drop(Answer::to(request).await);
            }
        }
    }
    let after = look(&gateway, "ann", &asked).await.expect_ok().text;
    assert_eq!(after, before);
    assert_eq!(
        (state(&gateway, &asked).await, tool.requests()),
        ("proposed".into(), 0)
    );
    gateway.stop().await;
}

async fn each_end_of_a_wait_is_told_and_that_little_time_is_left(stores: &Stores) {
    let (tool, ears) = (Tool::start().await, ears().await);
    let gateway = stores.gateway(&notified(&tool, &ears, "")).await;
    let why = json!({ "reason": "too much", "tell": "no" });
    let declined = ask(&gateway, "declined", args()).await;
    until_told(&ears, &["approval.asked"]).await;
    post(&gateway, "ann", &declined, "decline", why)
        .await
        .expect_ok();
    let mut expected = vec!["approval.asked", "approval.ended: declined"];
    until_told(&ears, &expected).await;
    let withdrawn = ask(&gateway, "withdrawn", args()).await;
    expected.push("approval.asked");
    until_told(&ears, &expected).await;
    post(&gateway, "agent", &withdrawn, "withdraw", json!({}))
        .await
        .expect_ok();
    expected.push("approval.ended: withdrawn");
    until_told(&ears, &expected).await;
    let ended = told(&ears);
    assert!(ended.iter().all(|(_, data)| data["ask"] == 1));
    gateway.stop().await;

    // Two seconds to decide; a second before the end is late enough.
    let ears = self::ears().await;
    let gateway = stores.gateway(&notified(&tool, &ears, SOON)).await;
    let lapsed = ask(&gateway, "lapsed", args()).await;
    let mut expected = vec![
        "approval.asked",
        "approval.expiring",
        "approval.ended: lapsed",
    ];
    until_told(&ears, &expected).await;
    until_state(&gateway, &lapsed, "failed").await;
    // The same request asks once more, and so is told once more.
    ask(&gateway, "lapsed", args())
        .await
        .expect_problem("approval-required");
    expected.extend(expected.clone());
    until_told(&ears, &expected).await;
    let asks: Vec<Value> = told(&ears)
        .into_iter()
        .map(|(_, data)| data["ask"].clone())
        .collect();
    assert_eq!(asks, [1, 1, 1, 2, 2, 2]);
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
    assert_eq!(ids(&ears).0.len(), ids(&ears).1);
}

async fn approvals_that_are_void_are_told_and_the_call_is_told_of_again(stores: &Stores) {
    let (tool, ears) = (Tool::start().await, ears().await);
    let config = notified(&tool, &ears, "");
    let config = config.replace("[tools.act]\n", &format!("[tools.act]\n{EXCLUSIVE}\n"));
    let gateway = stores.gateway(&config).await;
    let asked = ask_in_session(&gateway, "k").await;
    until_told(&ears, &["approval.asked"]).await;
    let release = occupy(&gateway, &tool).await;
    approve_held(&gateway, &asked).await;
    let ended = |data: &Value| data["call_id"] == asked.id() && !data["outcome"].is_null();
    until("its approval is told", async || {
        told(&ears).iter().any(|(_, data)| ended(data))
    })
    .await;
    // What would be sent now is not what was approved.
    let moved = config.replace(&tool.url(), &format!("{}/elsewhere", tool.url()));
    assert!(gateway.reload(&moved).await);
    until_tried(&[&gateway]).await;
    drop(release);
    until("it waits again", async || {
        events(&gateway, &asked)
            .await
            .contains(&"voided".to_owned())
    })
    .await;
    let of_it = || -> Vec<(Value, Value)> {
        let told = told(&ears).into_iter().map(|(_, data)| data);
        let told = told.filter(|data| data["call_id"] == asked.id());
        told.map(|data| (data["ask"].clone(), data["outcome"].clone()))
            .collect()
    };
    until("it is told", async || of_it().len() >= 4).await;
    let expected = [
        (json!(1), Value::Null),
        (json!(1), json!("approved")),
        (json!(1), json!("voided")),
        (json!(2), Value::Null),
    ];
    assert_eq!(of_it(), expected);
    gateway.stop().await;
}

async fn a_webhook_that_fails_is_told_again_and_delays_no_decision(stores: &Stores) {
    let (tool, ears) = (Tool::start().await, ears().await);
    ears.then(Act::Answer(503, "", b""));
    let gateway = stores.gateway(&notified(&tool, &ears, "")).await;
    let asked = ask(&gateway, "k", args()).await;
    until("it was tried", async || ears.requests() == 1).await;
    let failed = "oncegate_webhook_events_total{event=\"approval.asked\",result=\"failed\"}";
    until("it is counted", async || {
        gateway.metric(failed).await >= 1.0
    })
    .await;
    until("it was told", async || ears.requests() == 2).await;
    let seen = ears.seen();
    for name in ["webhook-id", "idempotency-key"] {
        assert_eq!(seen[0].header(name), seen[1].header(name), "{name}");
    }
    assert!(verifies(&seen[1], SECRETS[1]));
    // It hears nothing more, and the call is decided and sent all the same.
    ears.always(Act::Hang);
    approve(&gateway, "ann", &asked).await.expect_ok();
    until_state(&gateway, &asked, "succeeded").await;
    assert_eq!(tool.effects(), 1);
    let taken = "oncegate_webhook_events_total{event=\"approval.asked\",result=\"taken\"}";
    assert_eq!(
        (gateway.metric(failed).await, gateway.metric(taken).await),
        (1.0, 1.0)
    );
}

/// How often gateways have tried to tell this event, with this result.
async fn tries(gateways: &[Gateway], event: &str, result: &str) -> usize {
    let line = format!("oncegate_webhook_events_total{{event=\"{event}\",result=\"{result}\"}}");
    let mut all = 0;
    for gateway in gateways {
        all += gateway.metric(&line).await as usize;
    }
    all
}

async fn many_gateways_tell_each_message_once(stores: &Stores) {
    let (tool, ears) = (Tool::start().await, ears().await);
    // A gateway that has not ended for so long is taken for gone, and its messages are told again.
    let patient = "[webhook]\ntimeout = \"60s\"\n";
    let config = notified(&tool, &ears, "").replace("[webhook]\n", patient);
    let gateways = stores.gateways(&config).await;
    let (first, last) = (&gateways[0], &gateways[gateways.len() - 1]);
    // Each notice fails once, so that it is due at all gateways. Then it takes longer than they need to look again.
    ears.choose(|seen, before| {
        let is_same = |one: &Seen| one.header("webhook-id") == seen.header("webhook-id");
        match before.iter().any(is_same) {
            true => Act::after_ms(1_000, Act::Answer(204, "", b"")),
            false => Act::Answer(503, "", b""),
        }
    });
    let mut calls = Vec::new();
    // A session of its own for each, or there would be too many of one.
    for n in 0..8 {
        let gateway = &gateways[n % gateways.len()];
        calls.push(ask(gateway, &format!("k{n}"), args()).await);
    }
    until("all are told of", async || {
        tries(&gateways, "approval.asked", "taken").await >= 8
    })
    .await;
    assert_eq!(tries(&gateways, "approval.asked", "taken").await, 8);
    ears.choose(|_, _| Act::Answer(204, "", b""));
    for call in &calls {
        approve(last, "ann", call).await.expect_ok();
    }
    until("all ends are told", async || {
        tries(&gateways, "approval.ended", "taken").await >= 8
    })
    .await;
    until("all are sent", async || tool.effects() == 8).await;
    // Both look again and again.
    let looks = "oncegate_store_operation_duration_seconds_count{operation=\"due_documents\"}";
    let before = (first.metric(looks).await, last.metric(looks).await);
    until("both have looked", async || {
        first.metric(looks).await > before.0 + 20.0 && last.metric(looks).await > before.1 + 20.0
    })
    .await;
    assert_eq!(tries(&gateways, "approval.ended", "taken").await, 8);
    // A busy machine may make some more of them fail.
    let failed = tries(&gateways, "approval.asked", "failed").await
        + tries(&gateways, "approval.ended", "failed").await;
    assert_eq!((ids(&ears).0.len(), ids(&ears).1), (16, 16 + failed));
}

async fn an_ask_is_told_of_although_its_process_has_ended(stores: &Stores) {
    let (tool, ears) = (Tool::start().await, ears().await);
    // This webhook was set up before, and is only reached by the next process.
    let deaf = notified(&tool, &ears, "").replace(&ears.url(), "http://127.0.0.1:9/");
    let gateway = stores.gateway(&deaf).await;
    let asked = ask(&gateway, "k", args()).await;
    let failed = "oncegate_webhook_events_total{event=\"approval.asked\",result=\"failed\"}";
    until("it was tried", async || gateway.metric(failed).await >= 1.0).await;
    let gateway = stores.again(gateway, &notified(&tool, &ears, "")).await;
    until_told(&ears, &["approval.asked"]).await;
    assert_eq!(told(&ears)[0].1["call_id"], asked.id());
    gateway.stop().await;
}

async fn a_gateway_that_stops_hears_what_the_webhook_says(stores: &Stores) {
    let (tool, ears) = (Tool::start().await, ears().await);
    // A gateway that has ended without hearing it would be followed by another telling after three seconds.
    let config = notified(&tool, &ears, "").replace("[webhook]\n", "[webhook]\ntimeout = \"1s\"\n");
    let gateway = stores.gateway(&config).await;
    let (release, held) = Act::held(Act::Answer(204, "", b""));
    ears.then(held);
    ask(&gateway, "k", args()).await;
    until("the webhook has it", async || ears.requests() == 1).await;
    gateway.begin_stop();
    until("nothing is taken any more", async || {
        tokio::net::TcpStream::connect(gateway.address)
            .await
            .is_err()
    })
    .await;
    drop(release);
    let gateway = stores.again(gateway, &config).await;
    let looks = "oncegate_store_operation_duration_seconds_count{operation=\"due_documents\"}";
    until("it has looked for longer than that", async || {
        gateway.metric(looks).await > 30.0
    })
    .await;
    assert_eq!(ears.requests(), 1);
    gateway.stop().await;
}

on_both_stores!(
    a_notice_is_signed_and_has_of_the_arguments_only_what_show_names,
    whoever_opens_the_link_of_a_notice_changes_nothing,
    each_end_of_a_wait_is_told_and_that_little_time_is_left,
    approvals_that_are_void_are_told_and_the_call_is_told_of_again,
    a_webhook_that_fails_is_told_again_and_delays_no_decision,
    many_gateways_tell_each_message_once,
    an_ask_is_told_of_although_its_process_has_ended,
    a_gateway_that_stops_hears_what_the_webhook_says,
);

/// `point`: where the process ends. The request is not answered there, so its agent sends it again.
async fn what_a_process_was_about_to_tell_the_next_one_tells(point: &str, store: Option<&String>) {
    let (tool, ears) = (Tool::start().await, ears().await);
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    write_settings(folder.path(), port, store, &notified(&tool, &ears, ""));
    let http = client();
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let serve = |points: &str| {
        let mut gateway = command(folder.path(), &["serve", "--config", "oncegate.toml"]);
        let silent = std::process::Stdio::null;
        let gateway = gateway.env("FAILPOINTS", points);
        let gateway = gateway.stdout(silent()).stderr(silent());
        gateway.spawn().expect("the binary starts")
    };
    let is_ready = async || {
        until("it is ready", async || {
            let asked = http.get(url("/readyz")).send().await;
            asked.is_ok_and(|answer| answer.status().is_success())
        })
        .await;
    };
    let ask = async || {
        let body = json!({ "args": args(), "idempotency_key": "k" }).to_string();
        let asked = http.post(url("/v1/tools/act/calls")).bearer_auth("agent");
        asked.header("prefer", "wait=0").body(body).send().await
    };
    let mut gateway = serve(&format!("{point}=return"));
    is_ready().await;
    drop(ask().await);
    gateway.wait().expect("it ended");
    let mut gateway = serve("");
    is_ready().await;
    // Right before the claim there is no call yet. After it the call is told of without a further request.
    if point == "notice_expected" {
        drop(ask().await);
    }
    until_told(&ears, &["approval.asked"]).await;
    gateway.kill().expect("killed");
    gateway.wait().expect("ended");
    assert_eq!((ids(&ears).0.len(), tool.requests()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_over_a_file_is_told_of_by_the_next_process() {
    for point in ["notice_expected", "proposed"] {
        what_a_process_was_about_to_tell_the_next_one_tells(point, None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_over_a_redis_is_told_of_by_the_next_process() {
    for point in ["notice_expected", "proposed"] {
        let redis = crate::support::redis::Redis::strict().await;
        let url = redis.url();
        what_a_process_was_about_to_tell_the_next_one_tells(point, Some(&url)).await;
    }
}
