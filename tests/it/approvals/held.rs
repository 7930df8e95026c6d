//! What holds an approved call: pauses, freezes, sessions, sagas, losses, and ends of processes.

use serde_json::json;

use super::*;
use crate::stores::acceptance::lose;
use crate::support::binary::{command, free_port, write_config};
use crate::support::client;
use crate::support::stores::{Stores, on_both_stores};

async fn while_its_tool_is_paused_or_its_session_frozen_nothing_is_approved(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    let asked = ask_in_session(&gateway, "k").await;
    let body = json!({ "seen": seen(&gateway, "ann", &asked).await });
    let why = json!({ "reason": "wait" });
    for (stop, go, problem) in [
        ("/v1/tools/act/pause", "/v1/tools/act/resume", "tool-paused"),
        (
            "/v1/sessions/S/freeze?tenant=shop",
            "/v1/sessions/S/thaw?tenant=shop",
            "session-frozen",
        ),
    ] {
        gateway.post_as("boss", stop, &why).await.expect_ok();
        let refused = post(&gateway, "ann", &asked, "approve", body.clone()).await;
        refused.expect_problem(problem);
        gateway.post_as("boss", go, &why).await.expect_ok();
    }
    assert_eq!(state(&gateway, &asked).await, "proposed");
    post(&gateway, "ann", &asked, "approve", body)
        .await
        .expect_ok();
    until_state(&gateway, &asked, "succeeded").await;
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}

async fn a_busy_session_holds_what_is_approved_and_sends_it_once_afterwards(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&config(&tool, EXCLUSIVE)).await;
    let (first, last) = (&gateways[0], &gateways[gateways.len() - 1]);
    let release = occupy(first, &tool).await;
    let asked = ask_in_session(last, "k").await;
    approve_held(last, &asked).await;
    let why = json!({ "reason": "wait" });
    first
        .post_as("boss", "/v1/tools/act/pause", &why)
        .await
        .expect_ok();
    // The other gateway looks for pauses now and then.
    let mut n = 0;
    until("the pause is known", async || {
        n += 1;
        let answer = ask_in_session(last, &format!("other-{n}")).await;
        answer.problem() == "tool-paused"
    })
    .await;
    until_tried(&[first, last]).await;
    drop(release);
    until("the first one ends", async || tool.effects() == 1).await;
    assert_eq!(state(first, &asked).await, "approved", "it is held");
    for (act, path) in [
        ("it is frozen", "/v1/sessions/S/freeze?tenant=shop"),
        ("it runs", "/v1/tools/act/resume"),
    ] {
        first.post_as("boss", path, &why).await.expect_ok();
        assert_eq!(state(first, &asked).await, "approved", "{act}");
    }
    // A worker that tries to begin it meets the freeze.
    until_tried(&[first]).await;
    assert_eq!((tool.requests(), tool.effects()), (1, 1));
    first
        .post_as("boss", "/v1/sessions/S/thaw?tenant=shop", &why)
        .await
        .expect_ok();
    until_state(last, &asked, "succeeded").await;
    assert_eq!(tool.effects(), 2);
}

async fn an_exclusive_session_works_on_while_a_proposal_waits(stores: &Stores) {
    let tool = Tool::start().await;
    let plain = format!("[tools.plain]\nurl = \"{}\"\n{EXCLUSIVE}\n", tool.url());
    let gateway = stores.gateway(&(config(&tool, EXCLUSIVE) + &plain)).await;
    let asked = ask_in_session(&gateway, "k").await;
    asked.clone().expect_problem("approval-required");
    for n in 0..3 {
        let body = json!({ "args": { "n": n }, "session_id": "S" });
        let path = "/v1/tools/plain/calls";
        gateway.post_as("agent", path, &body).await.expect_ok();
    }
    assert_eq!(
        (tool.effects(), state(&gateway, &asked).await),
        (3, "proposed".into())
    );
    gateway.stop().await;
}

async fn an_aborted_saga_sends_nothing_that_waits_and_a_completed_one_neither(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool, "")).await;
    for (end, expected) in [("abort", "compensated"), ("complete", "proposed")] {
        let body = json!({ "args": { "end": end }, "saga_id": end });
        let asked = ask_as(&gateway, "wait=0", &body)
            .await
            .expect_problem("approval-required");
        let body = json!({ "seen": seen(&gateway, "ann", &asked).await });
        let path = format!("/v1/sagas/{end}/{end}");
        let ended = gateway
            .post_as("agent", &path, &json!({ "reason": "over" }))
            .await;
        assert!(ended.status < 300, "{}", ended.text);
        let late = post(&gateway, "ann", &asked, "approve", body).await;
        late.expect_problem("wrong-state");
        until_state(&gateway, &asked, expected).await;
    }
    assert_eq!(tool.requests(), 0);
    gateway.stop().await;
}

async fn both_states_survive_a_restart_and_an_approved_call_begins_once(stores: &Stores) {
    let tool = Tool::start().await;
    let config = config(&tool, EXCLUSIVE);
    let gateway = stores.gateway(&config).await;
    let waits = ask_in_session(&gateway, "waits").await;
    let why = json!({ "reason": "wait" });
    let approved = ask_in_session(&gateway, "k").await;
    let release = occupy(&gateway, &tool).await;
    approve_held(&gateway, &approved).await;
    gateway
        .post_as("boss", "/v1/tools/act/pause", &why)
        .await
        .expect_ok();
    until_tried(&[&gateway]).await;
    drop(release);
    until("the first one ends", async || tool.effects() == 1).await;
    let gateway = stores.again(gateway, &config).await;
    assert_eq!(state(&gateway, &waits).await, "proposed");
    assert_eq!(state(&gateway, &approved).await, "approved");
    gateway
        .post_as("boss", "/v1/tools/act/resume", &why)
        .await
        .expect_ok();
    until_state(&gateway, &approved, "succeeded").await;
    assert_eq!(tool.effects(), 2);
    approve(&gateway, "ann", &waits).await.expect_ok();
    until_state(&gateway, &waits, "succeeded").await;
    assert_eq!(tool.effects(), 3);
    gateway.stop().await;
}

async fn after_an_accepted_loss_what_waited_is_unknown_and_cannot_be_approved(stores: &Stores) {
    let tool = Tool::start().await;
    let config = config(&tool, EXCLUSIVE);
    let gateway = stores.gateway(&config).await;
    let waits = ask_in_session(&gateway, "waits").await;
    let approved = ask_in_session(&gateway, "k").await;
    let body = json!({ "seen": seen(&gateway, "ann", &waits).await });
    let release = occupy(&gateway, &tool).await;
    approve_held(&gateway, &approved).await;
    let why = json!({ "reason": "wait" });
    gateway
        .post_as("boss", "/v1/tools/act/pause", &why)
        .await
        .expect_ok();
    until_tried(&[&gateway]).await;
    drop(release);
    until("the first one ends", async || tool.effects() == 1).await;

    let gateway = lose(stores, gateway, &config).await;
    for refused in ["approve", "decline"] {
        let body = match refused {
            "approve" => body.clone(),
            _ => why.clone(),
        };
        let answer = post(&gateway, "ann", &waits, refused, body).await;
        answer.expect_problem("store-unavailable");
    }
    until("the loss is accepted", async || {
        let path = "/v1/store/accept-loss";
        let answer = gateway.post_as("boss", path, &why).await;
        answer.status == 200 || answer.text.contains("no loss")
    })
    .await;
    gateway.until_ready().await;
    gateway.post_as("boss", "/v1/tools/act/resume", &why).await;
    for call in [&waits, &approved] {
        until_state(&gateway, call, "unknown").await;
        let late = post(&gateway, "ann", call, "approve", body.clone()).await;
        late.expect_problem("wrong-state");
        let shown = look(&gateway, "ann", call).await.expect_ok();
        assert!(shown.at("/seen").is_null());
    }
    let again = ask_in_session(&gateway, "waits").await;
    again.expect_problem("outcome-unknown");
    assert_eq!(tool.requests(), 1, "only the first one was sent");
    gateway.stop().await;
}

on_both_stores!(
    after_an_accepted_loss_what_waited_is_unknown_and_cannot_be_approved,
    while_its_tool_is_paused_or_its_session_frozen_nothing_is_approved,
    a_busy_session_holds_what_is_approved_and_sends_it_once_afterwards,
    an_exclusive_session_works_on_while_a_proposal_waits,
    an_aborted_saga_sends_nothing_that_waits_and_a_completed_one_neither,
    both_states_survive_a_restart_and_an_approved_call_begins_once,
);

/// A store as its file says, for a gateway in a process of its own.
pub(super) fn write_settings(
    folder: &std::path::Path,
    port: u16,
    store: Option<&String>,
    config: &str,
) {
    write_config(folder, port, config);
    if let Some(place) = store {
        // A PostgreSQL has a schema for each test.
        let place = place.replace('#', "\"\nschema = \"");
        let file = folder.join("oncegate.toml");
        let text = std::fs::read_to_string(&file).expect("a file");
        std::fs::write(&file, text.replace("sqlite:oncegate.db", &place)).expect("written");
    }
}

async fn a_process_that_ends_right_after_an_approval_leaves_a_call_that_begins_once(
    store: Option<&String>,
) {
    let tool = Tool::start().await;
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    write_settings(folder.path(), port, store, &config(&tool, ""));
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let http = client();
    let serve = |points: &str| {
        let mut gateway = command(folder.path(), &["serve", "--config", "oncegate.toml"]);
        let gateway = gateway.env("FAILPOINTS", points);
        gateway
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("the binary starts")
    };
    let is_ready = async || {
        until("it is ready", async || {
            let asked = http.get(url("/readyz")).send().await;
            asked.is_ok_and(|answer| answer.status().is_success())
        })
        .await;
    };
    // Each of these is between the approval and the first byte for the tool.
    for (n, point) in ["approved", "begun"].into_iter().enumerate() {
        let mut gateway = serve(&format!("{point}=return"));
        is_ready().await;
        let body = json!({ "args": { "n": n }, "idempotency_key": point });
        let asked = http.post(url("/v1/tools/act/calls")).bearer_auth("agent");
        let asked = Answer::to(asked.body(body.to_string())).await;
        let asked = asked.expect_problem("approval-required");
        let path = format!("/v1/calls/{}", asked.id());
        let shown = http
            .get(url(&format!("{path}/approval")))
            .bearer_auth("ann");
        let seen = json!({ "seen": Answer::to(shown).await.expect_ok().at("/seen") });
        let approve = http
            .post(url(&format!("{path}/approve")))
            .bearer_auth("ann");
        drop(approve.body(seen.to_string()).send().await);
        gateway.wait().expect("it ended");
        assert_eq!(tool.requests(), n, "nothing was sent before it ended");
        let mut gateway = serve("");
        is_ready().await;
        let state = async || {
            let found = http.get(url(&path)).bearer_auth("boss");
            Answer::to(found).await.expect_ok().at("/state")
        };
        // A call that had begun may have been sent, as far as the next process knows.
        let expected = if point == "approved" {
            "succeeded"
        } else {
            "unknown"
        };
        if store.is_none() || point == "approved" {
            until(expected, async || state().await == expected).await;
        }
        assert_eq!(tool.effects(), 1);
        gateway.kill().expect("killed");
        gateway.wait().expect("ended");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approved_call_over_a_file_begins_once_after_its_process_ended() {
    a_process_that_ends_right_after_an_approval_leaves_a_call_that_begins_once(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approved_call_over_a_redis_begins_once_after_its_process_ended() {
    let redis = crate::support::redis::Redis::strict().await;
    a_process_that_ends_right_after_an_approval_leaves_a_call_that_begins_once(Some(&redis.url()))
        .await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approved_call_over_a_postgres_begins_once_after_its_process_ended() {
    let place = crate::support::postgres::place().await;
    a_process_that_ends_right_after_an_approval_leaves_a_call_that_begins_once(Some(&place)).await;
}
