//! Stuck sagas: who is told, and how they go on.

use serde_json::{Value, json};

use crate::sagas::undone::{MADE, SOON, executed, shop, words};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

on_both_stores! {
    a_saga_that_cannot_be_undone_is_stuck_and_visible_until_an_operator_retries_it,
    an_operator_may_skip_a_stuck_call_or_say_that_it_is_undone_by_hand,
    what_an_operator_says_of_a_stuck_call_is_what_its_duplicates_get,
    an_unknown_call_is_waited_for_or_undone_as_its_tool_allows,
    a_pointer_that_finds_nothing_sends_nothing,
    an_operator_is_told_of_a_stuck_saga_until_the_webhook_has_taken_it,
    a_tool_without_a_compensation_needs_an_operator,
    the_rejection_of_a_compensation_is_not_remembered,
    waiting_for_a_call_takes_no_tries_from_those_that_are_undone,
}

async fn a_saga_that_cannot_be_undone_is_stuck_and_visible_until_an_operator_retries_it(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    let paid = gateway.in_saga("pay", "G", "b").await.expect_ok();
    tool.always(Act::Answer(422, "", b"{\"why\":\"not settled\"}"));
    gateway.end_saga("G", "abort").await.expect_ok();
    let saga = gateway.saga_that_is("G", "stuck").await;
    assert_eq!(saga.at("/trouble/call_id"), paid.at("/call_id"));
    assert_eq!(
        words(&saga.at("/calls"), "state"),
        ["compensating", "stuck"]
    );
    assert_eq!(
        tool.requests(),
        2 + 3,
        "three tries, and not one of the older call"
    );
    let stuck = gateway.get("/v1/sagas?state=stuck").await.expect_ok();
    assert_eq!(words(&stuck.at("/sagas"), "saga_id"), ["G"]);
    assert_eq!(gateway.metric("oncegate_stuck_sagas").await, 1.0);
    // Duplicates of the call are told that it is being undone.
    let again = gateway.in_saga("pay", "G", "b").await.expect_ok();
    assert_eq!(
        (again.at("/compensating"), again.at("/compensated")),
        (true.into(), Value::Null)
    );

    tool.always(MADE);
    gateway.end_saga("G", "retry").await.expect_ok();
    gateway.saga_that_is("G", "compensated").await;
    assert_eq!(executed(&tool), ["order", "pay", "refund", "cancel"]);
    let keys = tool
        .seen()
        .into_iter()
        .filter(|seen| seen.line.contains("/refund"));
    let keys: std::collections::HashSet<String> = keys
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    assert_eq!(keys.len(), 1, "every try has the same key");
    assert_eq!(gateway.metric("oncegate_stuck_sagas").await, 0.0);
    gateway
        .end_saga("G", "retry")
        .await
        .expect_problem("wrong-state");
}

async fn an_operator_may_skip_a_stuck_call_or_say_that_it_is_undone_by_hand(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    for saga in ["skipped", "by-hand"] {
        gateway
            .in_saga("order", saga, &format!("{saga}-a"))
            .await
            .expect_ok();
        gateway
            .in_saga("pay", saga, &format!("{saga}-b"))
            .await
            .expect_ok();
    }
    let both_stuck = async || {
        for saga in ["skipped", "by-hand"] {
            gateway.saga_that_is(saga, "stuck").await;
        }
    };
    tool.always(Act::Answer(422, "", b"{}"));
    for saga in ["skipped", "by-hand"] {
        gateway.end_saga(saga, "abort").await.expect_ok();
    }
    both_stuck().await;
    tool.always(MADE);
    gateway.end_saga("skipped", "skip").await.expect_ok();
    let saga = gateway.saga_that_is("skipped", "compensated").await;
    assert_eq!(
        words(&saga.at("/calls"), "compensation"),
        ["succeeded", "skipped"]
    );
    assert_eq!(
        words(&saga.at("/calls"), "state"),
        ["compensated", "succeeded"],
        "its effect stands"
    );

    let stuck = gateway.saga("by-hand").await.at("/trouble/call_id");
    let path = format!("/v1/calls/{}/resolve", stuck.as_str().expect("an id"));
    let said = json!({ "as": "failed", "reason": "refunded in the bank's portal" }).to_string();
    let told = Answer::to(client().post(gateway.url(&path)).body(said)).await;
    assert_eq!(told.expect_ok().at("/state"), "compensated");
    gateway.saga_that_is("by-hand", "compensated").await;
    assert_eq!(
        executed(&tool),
        ["order", "pay", "order", "pay", "cancel", "cancel"],
        "no refund was sent"
    );
}

async fn what_an_operator_says_of_a_stuck_call_is_what_its_duplicates_get(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    for saga in ["said", "null"] {
        gateway.in_saga("order", saga, saga).await.expect_ok();
    }
    tool.always(Act::Answer(422, "", b"{}"));
    for saga in ["said", "null"] {
        gateway.end_saga(saga, "abort").await.expect_ok();
        gateway.saga_that_is(saga, "stuck").await;
    }
    let stored = gateway.saga("said").await.at("/calls/0/call_id");
    let stored = stored.as_str().expect("an id").to_owned();
    let stored = gateway
        .get(&format!("/v1/calls/{stored}"))
        .await
        .at("/result");
    for (saga, result) in [
        ("said", json!({ "order_id": "by hand" })),
        ("null", json!(null)),
    ] {
        let stuck = gateway.saga(saga).await.at("/trouble/call_id");
        let path = format!("/v1/calls/{}/resolve", stuck.as_str().expect("an id"));
        let said = json!({ "as": "succeeded", "result": result, "reason": "it stands" });
        let told = Answer::to(client().post(gateway.url(&path)).body(said.to_string())).await;
        // Null: nothing else is known than what the tool has answered.
        let expected = if result.is_null() {
            stored.clone()
        } else {
            result
        };
        let told = told.expect_ok();
        assert_eq!(
            (told.at("/state"), told.at("/result")),
            (json!("succeeded"), expected.clone())
        );
        let again = gateway.in_saga("order", saga, saga).await.expect_ok();
        assert_eq!(
            (again.at("/replayed"), again.at("/result")),
            (json!(true), expected)
        );
    }
    assert_eq!(
        executed(&tool),
        ["order", "order"],
        "nothing was sent again"
    );
}

/// A damaged file lists a call that is not found by its id, before it is marked as one to be undone or after.
#[tokio::test]
async fn a_saga_with_a_call_that_is_listed_and_not_found_needs_an_operator() {
    let patient = "[sagas]\nretry = { attempts = 1000, base = \"100ms\", max = \"100ms\" }\n";
    for is_marked in [false, true] {
        let tool = Tool::start().await;
        tool.always(MADE);
        let gateway = Gateway::start(&shop(&tool, patient)).await;
        let made = gateway.in_saga("order", "G", "a").await.expect_ok();
        tool.always(Act::Answer(422, "", b"{}"));
        if is_marked {
            gateway.end_saga("G", "abort").await.expect_ok();
            until("the call is marked", async || {
                gateway.saga("G").await.at("/calls/0/state") == "compensating"
            })
            .await;
        }
        let id: uuid::Uuid = made.id().parse().expect("an id");
        let file = rusqlite::Connection::open(gateway.database()).expect("a store");
        let sql = "DELETE FROM ids WHERE call_id = ?1";
        assert_eq!(file.execute(sql, [id.into_bytes()]), Ok(1));
        if !is_marked {
            gateway.end_saga("G", "abort").await.expect_ok();
        }
        let saga = gateway.saga_that_is("G", "stuck").await;
        let why = format!("its call {id} is listed, and cannot be found by its id");
        assert_eq!(saga.at("/trouble/why"), why);
    }
}

async fn an_unknown_call_is_waited_for_or_undone_as_its_tool_allows(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    // The tool's compensation must not be sent for an unknown call.
    tool.then(MADE).then(Act::ExecuteThenDrop).always(MADE);
    gateway.in_saga("order", "wait", "a").await.expect_ok();
    let unknown = gateway
        .in_saga("pay", "wait", "b")
        .await
        .expect_problem("outcome-unknown");
    gateway.end_saga("wait", "abort").await.expect_ok();
    let saga = gateway.saga_that_is("wait", "stuck").await;
    assert_eq!(saga.at("/trouble/call_id"), unknown.at("/call_id"));
    assert_eq!(
        executed(&tool),
        ["order", "pay"],
        "nothing is undone before that is known"
    );
    let path = format!("/v1/calls/{}/resolve", unknown.id());
    let said = json!({ "as": "succeeded", "result": { "made": 9 }, "reason": "the bank has it" })
        .to_string();
    Answer::to(client().post(gateway.url(&path)).body(said))
        .await
        .expect_ok();
    gateway.saga_that_is("wait", "compensated").await;
    assert_eq!(executed(&tool), ["order", "pay", "refund", "cancel"]);
}

async fn a_pointer_that_finds_nothing_sends_nothing(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::Ok("{\"other\":7}")).always(MADE);
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    gateway.end_saga("G", "abort").await.expect_ok();
    let saga = gateway.saga_that_is("G", "stuck").await;
    assert_eq!(saga.at("/trouble/why"), "there is nothing at /result/made");
    assert_eq!(tool.requests(), 1);
}

async fn an_operator_is_told_of_a_stuck_saga_until_the_webhook_has_taken_it(stores: &Stores) {
    let (tool, ears) = (Tool::start().await, Tool::start().await);
    tool.then(Act::Ok("{\"other\":7}")).always(MADE);
    ears.then(Act::Answer(503, "", b""))
        .always(Act::Answer(204, "", b""));
    let webhook = format!("{SOON}[webhook]\nurl = \"{}\"\n", ears.url());
    let gateway = stores.gateway(&shop(&tool, &webhook)).await;
    let order = gateway.in_saga("order", "G", "a").await.expect_ok();
    gateway.end_saga("G", "abort").await.expect_ok();
    gateway.saga_that_is("G", "stuck").await;
    until("it was heard", async || {
        ears.requests() == 2 && gateway.saga("G").await.at("/next_at").is_null()
    })
    .await;
    let told = ears.seen();
    assert_eq!(
        told[0].header("idempotency-key"),
        told[1].header("idempotency-key")
    );
    let said: Value = serde_json::from_str(&told[1].body).expect("JSON");
    assert_eq!(
        (said["event"].clone(), said["data"]["call_id"].clone()),
        ("saga".into(), order.at("/call_id"))
    );
}

async fn a_tool_without_a_compensation_needs_an_operator(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    gateway.in_saga("mail", "G", "b").await.expect_ok();
    gateway.end_saga("G", "abort").await.expect_ok();
    gateway.saga_that_is("G", "stuck").await;
    assert_eq!(executed(&tool), ["order", "mail"]);
    gateway.end_saga("G", "skip").await.expect_ok();
    gateway.saga_that_is("G", "compensated").await;
    assert_eq!(executed(&tool), ["order", "mail", "cancel"]);
}

async fn the_rejection_of_a_compensation_is_not_remembered(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(MADE)
        .then(Act::Answer(422, "", b"{}"))
        .then(Act::Answer(412, "", b"{}"))
        .always(MADE);
    let at = |path: &str| format!("http://127.0.0.1:{}/{path}", tool.port);
    let config = format!(
        "{SOON}[tools.order]\nurl = \"{}\"\ncompensation = {{ tool = \"cancel\" }}\n\
         [tools.cancel]\nurl = \"{}\"\nretry = {{ attempts = 1 }}\nremember_rejections = true\n",
        at("order"),
        at("cancel")
    );
    let gateway = stores.gateway(&config).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    gateway.end_saga("G", "abort").await.expect_ok();
    gateway.saga_that_is("G", "compensated").await;
    assert_eq!(tool.requests(), 4, "it is asked again after each refusal");
    assert_eq!(executed(&tool), ["order", "cancel"]);
}

async fn waiting_for_a_call_takes_no_tries_from_those_that_are_undone(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(MADE)
        .then(Act::ExecuteThenDrop)
        .always(Act::Answer(422, "", b"{}"));
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    let unknown = gateway
        .in_saga("pay", "G", "b")
        .await
        .expect_problem("outcome-unknown");
    gateway.end_saga("G", "abort").await.expect_ok();
    gateway.saga_that_is("G", "stuck").await;
    let path = format!("/v1/calls/{}/resolve", unknown.id());
    let said = json!({ "as": "succeeded", "result": { "made": 9 }, "reason": "the bank has it" })
        .to_string();
    let told = Answer::to(client().post(gateway.url(&path)).body(said)).await;
    told.expect_ok();
    until("it is tried three times", async || tool.requests() == 2 + 3).await;
    until("it is stuck", async || {
        gateway.saga("G").await.at("/next_at").is_null()
    })
    .await;
    assert_eq!(gateway.saga("G").await.at("/state"), "stuck");
    assert_eq!(tool.requests(), 2 + 3);
}
