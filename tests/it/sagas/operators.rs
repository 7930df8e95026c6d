//! Sagas that operators settle: a corrected configuration counts, and an operator's decision stands.

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::sagas::undone::{MADE, SOON, executed, shop, words};
use crate::stores::contract::{Home, ME};
use crate::support::gateway::Bare;
use crate::support::rounds::work_on_sagas;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

/// The requests to this path, oldest first.
fn sent(tool: &Tool, path: &str) -> Vec<Value> {
    let seen = tool
        .seen()
        .into_iter()
        .filter(|seen| seen.line.contains(path));
    seen.map(|seen| serde_json::from_str(&seen.body).expect("JSON"))
        .collect()
}

async fn a_compensation_is_sent_with_corrected_arguments_or_by_the_tool_that_is_named_now(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let config = shop(&tool, SOON);
    let gateway = stores.gateway(&config).await;
    let order = gateway.in_saga("order", "G", "a").await.expect_ok();
    tool.always(Act::Answer(422, "", b"{}"));
    gateway.end_saga("G", "abort").await.expect_ok();
    let by = gateway
        .saga_that_is("G", "stuck")
        .await
        .at("/calls/0/compensation_call_id");

    // The arguments of the compensation were wrong, and are corrected.
    let mended = config.replace("of = \"/call/call_id\"", "order = \"/call/call_id\"");
    let gateway = gateway.restart_with(&mended).await;
    gateway.end_saga("G", "retry").await.expect_ok();
    let saga = gateway.saga_that_is("G", "stuck").await;
    assert_eq!(
        saga.at("/calls/0/compensation_call_id"),
        by,
        "it is the same call"
    );
    let (old, new) = (
        json!({ "made": 7, "of": order.at("/call_id") }),
        order.at("/call_id"),
    );
    let new = json!({ "made": 7, "order": new });
    assert_eq!(
        sent(&tool, "/cancel"),
        [&old, &old, &old, &new, &new, &new].map(Clone::clone)
    );
    let by = gateway
        .get(&format!("/v1/calls/{}", by.as_str().expect("an id")))
        .await
        .expect_ok();
    assert_eq!(by.at("/args"), new);

    // The tool of the compensation is changed, and later changed back.
    let gateway = gateway
        .restart_with(&mended.replacen("\"cancel\"", "\"recall\"", 1))
        .await;
    gateway.end_saga("G", "retry").await.expect_ok();
    let saga = gateway.saga_that_is("G", "stuck").await;
    assert_ne!(saga.at("/calls/0/compensation_call_id"), by.at("/call_id"));
    assert_eq!(sent(&tool, "/recall"), [&new, &new, &new].map(Clone::clone));
    let gateway = gateway.restart_with(&mended).await;
    tool.always(MADE);
    gateway.end_saga("G", "retry").await.expect_ok();
    let saga = gateway.saga_that_is("G", "compensated").await;
    assert_eq!(saga.at("/calls/0/compensation_call_id"), by.at("/call_id"));
    assert_eq!(executed(&tool), ["order", "cancel"]);
}

async fn a_call_that_an_administrator_skipped_is_not_undone_by_a_token_that_may_only_call(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let tokens = [("agent", "\"call\", \"read\""), ("person", "\"call\", \"read\", \"admin\"")].map(|(name, scopes)| {
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name));
        format!("[[auth.tokens]]\nname = \"{name}\"\ntenant = \"t\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n")
    });
    let gateway = stores
        .gateway(&format!("{}{}", shop(&tool, SOON), tokens.concat()))
        .await;
    let post = async |token: &str, path: &str, body: Value| {
        let request = client()
            .post(gateway.url(path))
            .bearer_auth(token)
            .body(body.to_string());
        Answer::to(request).await
    };
    let reason = || json!({ "reason": "it may stay" });
    let order = json!({ "args": {}, "session_id": "S", "idempotency_key": "a" });
    let order = post("agent", "/v1/tools/order/calls", order)
        .await
        .expect_ok();
    let id = order.id();
    let saga = format!("/v1/sagas/compensate:{id}");
    let is = async |state: &str| {
        until(&format!("it is {state}"), async || {
            let shown = client()
                .get(gateway.url(&saga))
                .bearer_auth("agent")
                .send()
                .await;
            Answer::read(shown.expect("an answer"))
                .await
                .expect_ok()
                .at("/state")
                == state
        })
        .await;
    };
    tool.always(Act::Answer(422, "", b"{}"));
    post("person", &format!("/v1/calls/{id}/compensate"), reason())
        .await
        .expect_ok();
    is("stuck").await;
    tool.always(MADE);
    post("person", &format!("{saga}/skip"), reason())
        .await
        .expect_ok();
    is("compensated").await;
    for what in ["abort", "complete"] {
        post("agent", &format!("{saga}/{what}"), reason())
            .await
            .expect_problem("forbidden");
    }
    assert_eq!(executed(&tool), ["order"]);
    post("person", &format!("{saga}/abort"), reason())
        .await
        .expect_ok();
    until("it is undone after all", async || {
        executed(&tool) == ["order", "cancel"]
    })
    .await;
    is("compensated").await;
}

async fn nothing_is_skipped_that_may_still_be_undone(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(MADE)
        .then(MADE)
        .then(Act::ExecuteThenDrop)
        .always(MADE);
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    gateway.in_saga("pay", "G", "b").await.expect_ok();
    gateway.end_saga("G", "abort").await.expect_ok();
    let saga = gateway.saga_that_is("G", "stuck").await;
    let by = saga.at("/calls/1/compensation_call_id");
    assert_eq!(saga.at("/calls/1/compensation"), "unknown");
    let refused = gateway
        .end_saga("G", "skip")
        .await
        .expect_problem("wrong-state");
    assert!(refused.text.contains("may still run"), "{}", refused.text);
    let saga = gateway.saga("G").await;
    assert_eq!(
        (saga.at("/state"), saga.at("/calls/1/state")),
        ("stuck".into(), "compensating".into())
    );

    // As soon as the outcome is known, the saga goes on.
    let path = format!("/v1/calls/{}/resolve", by.as_str().expect("an id"));
    let said = json!({ "as": "succeeded", "result": {}, "reason": "the bank has it" }).to_string();
    let told = Answer::to(client().post(gateway.url(&path)).body(said)).await;
    told.expect_ok();
    let work = gateway.end_saga("G", "retry").await;
    assert!(
        matches!(work.status, 200 | 409),
        "it may have gone on by itself: {}",
        work.text
    );
    gateway.saga_that_is("G", "compensated").await;
    assert_eq!(executed(&tool), ["order", "pay", "refund", "cancel"]);
}

/// Undoes one call, and waits until it is undone.
async fn undo_alone(gateway: &Gateway, call: &Answer) {
    let id = call.id();
    let undo = format!("/v1/calls/{id}/compensate");
    gateway.act_on(&undo).await.expect_ok();
    let saga = format!("compensate:{id}");
    gateway.saga_that_is(&saga, "compensated").await;
}

async fn the_ledger_shows_how_a_call_was_undone_in_its_saga_by_itself_or_by_hand(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    // The first is undone by itself, by a call in a saga of its own.
    let alone = gateway.in_saga("order", "G", "a").await.expect_ok();
    undo_alone(&gateway, &alone).await;
    assert_eq!(
        gateway.saga("G").await.at("/calls/0/compensation"),
        "succeeded"
    );
    // A call without a compensation and a call whose compensation failed are undone by hand; a third call never ran.
    tool.then(Act::Answer(422, "", b"{}")).always(MADE);
    gateway
        .in_saga("order", "G", "never")
        .await
        .expect_problem("tool-rejected");
    tool.then(MADE)
        .then(MADE)
        .always(Act::Answer(422, "", b"{}"));
    gateway.in_saga("order", "G", "b").await.expect_ok();
    gateway.in_saga("mail", "G", "c").await.expect_ok();
    gateway.end_saga("G", "abort").await.expect_ok();
    for _ in 0..2 {
        let stuck = gateway
            .saga_that_is("G", "stuck")
            .await
            .at("/trouble/call_id");
        let path = format!("/v1/calls/{}/resolve", stuck.as_str().expect("an id"));
        let said = json!({ "as": "failed", "reason": "by hand" }).to_string();
        let told = Answer::to(client().post(gateway.url(&path)).body(said)).await;
        told.expect_ok();
        until("it goes on", async || {
            gateway.saga("G").await.at("/trouble/call_id") != stuck
        })
        .await;
    }
    let saga = gateway.saga_that_is("G", "compensated").await;
    let shown = words(&saga.at("/calls"), "compensation");
    assert_eq!(shown, ["succeeded", "empty", "undone", "undone"]);
    assert_eq!(words(&saga.at("/calls"), "state"), ["compensated"; 4]);
}

on_both_stores!(
    one_call_is_undone_by_itself_and_only_once,
    the_ledger_shows_how_a_call_was_undone_in_its_saga_by_itself_or_by_hand,
    nothing_is_skipped_that_may_still_be_undone,
    a_compensation_is_sent_with_corrected_arguments_or_by_the_tool_that_is_named_now,
    a_call_that_an_administrator_skipped_is_not_undone_by_a_token_that_may_only_call,
);

/// The webhook is called in each round, and the saga goes on in the same round.
async fn a_webhook_that_is_down_keeps_no_saga_waiting_that_could_go_on(home: Home) {
    let (tool, ears) = (Tool::start().await, Tool::start().await);
    tool.then(MADE).then(Act::ExecuteThenDrop).always(MADE);
    ears.always(Act::Answer(503, "", b""));
    let rules = format!(
        "retry = {{ attempts = 1 }}\ncompensation = {{ tool = \"undo\" }}\n[tools.undo]\nurl = \"{}\"\n\
         [sagas]\nretry = {{ attempts = 1, base = \"1h\", max = \"1h\" }}\n[webhook]\nurl = \"{}\"\n",
        tool.url(),
        ears.url()
    );
    let bare = Bare::over_shared(home.store.clone(), ME, &tool, &rules).await;
    let at = |path: &str| bare.url_of(path);
    let post = async |path: &str, body: Value| {
        let sent = client().post(at(path)).body(body.to_string()).send().await;
        Answer::read(sent.expect("an answer")).await.expect_ok()
    };
    let saga = async || {
        let sent = client().get(at("/v1/sagas/G")).send().await;
        Answer::read(sent.expect("an answer")).await.expect_ok()
    };
    post(
        "/v1/tools/act/calls",
        json!({ "args": {}, "saga_id": "G", "idempotency_key": "a" }),
    )
    .await;
    post("/v1/sagas/G/abort", json!({ "reason": "sold out" })).await;
    until("it is stuck", async || {
        saga().await.at("/state") == "stuck" && ears.requests() == 1
    })
    .await;
    let by = saga().await.at("/calls/0/compensation_call_id");
    let resolve = format!("/v1/calls/{}/resolve", by.as_str().expect("an id"));
    post(
        &resolve,
        json!({ "as": "succeeded", "result": {}, "reason": "it is there" }),
    )
    .await;
    until("the next round is written", async || {
        !saga().await.at("/next_at").is_null()
    })
    .await;
    let later = bare.gateway.now() + SignedDuration::from_hours(3);
    work_on_sagas(&bare.gateway, later)
        .await
        .expect("an answer");
    assert_eq!(
        (saga().await.at("/state"), ears.requests()),
        ("compensated".into(), 2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_is_down_keeps_no_saga_waiting_that_could_go_on_over_a_file() {
    a_webhook_that_is_down_keeps_no_saga_waiting_that_could_go_on(Home::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_is_down_keeps_no_saga_waiting_that_could_go_on_over_redis() {
    a_webhook_that_is_down_keeps_no_saga_waiting_that_could_go_on(Home::redis().await).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_is_down_keeps_no_saga_waiting_that_could_go_on_over_postgres() {
    a_webhook_that_is_down_keeps_no_saga_waiting_that_could_go_on(Home::postgres().await).await;
}

async fn one_call_is_undone_by_itself_and_only_once(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    let done = gateway.in_saga("order", "", "a").await.expect_ok();
    let id = done.id();
    let saga = gateway
        .act_on(&format!("/v1/calls/{id}/compensate"))
        .await
        .expect_ok();
    assert_eq!(saga.at("/saga_id"), format!("compensate:{id}"));
    gateway
        .saga_that_is(&format!("compensate:{id}"), "compensated")
        .await;
    gateway
        .act_on(&format!("/v1/calls/{id}/compensate"))
        .await
        .expect_ok();
    assert_eq!(executed(&tool), ["order", "cancel"]);
    assert_eq!(gateway.record(&done).await.at("/state"), "compensated");

    // For a call that surely never ran no compensation is sent, and the call never runs later.
    tool.always(Act::Answer(422, "", b"{}"));
    let failed = gateway
        .in_saga("order", "", "b")
        .await
        .expect_problem("tool-rejected");
    tool.always(MADE);
    undo_alone(&gateway, &failed).await;
    gateway
        .in_saga("order", "", "b")
        .await
        .expect_problem("wrong-state");
    let read = gateway.in_saga("look", "", "c").await.expect_ok();
    let path = format!("/v1/calls/{}/compensate", read.id());
    gateway.act_on(&path).await.expect_problem("wrong-state");
    gateway
        .act_on("/v1/calls/no-such-call/compensate")
        .await
        .expect_problem("unknown-call");
    assert_eq!(executed(&tool), ["order", "cancel", "look"]);
}
