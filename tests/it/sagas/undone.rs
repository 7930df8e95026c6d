//! Sagas: the calls of an aborted saga are undone, the newest first, each once.

use serde_json::{Value, json};

use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

/// Three tools with their compensations, all at one server that tells them apart by their paths.
pub(crate) fn shop(tool: &Tool, more: &str) -> String {
    let at = |path: &str| format!("http://127.0.0.1:{}/{path}", tool.port);
    let mut config = String::new();
    let made = "made = \"/result/made\", ";
    for (name, undo, made, rules) in [
        ("order", "cancel", made, ""),
        ("pay", "refund", made, ""),
        // An unknown call has no result.
        ("ship", "recall", "", "compensate_unknown = \"send\"\n"),
    ] {
        config += &format!(
            "[tools.{name}]\nurl = \"{}\"\nretry = {{ attempts = 1 }}\ntimeout = \"2s\"\ndeadline = \"2s\"\n\
             {rules}compensation = {{ tool = \"{undo}\", args = {{ {made}of = \"/call/call_id\" }} }}\n\
             [tools.{undo}]\nurl = \"{}\"\nretry = {{ attempts = 1 }}\n",
            at(name),
            at(undo)
        );
    }
    config += &format!(
        "[tools.look]\nurl = \"{}\"\neffect = \"read\"\n",
        at("look")
    );
    format!("{config}[tools.mail]\nurl = \"{}\"\n{more}", at("mail"))
}

pub(crate) const SOON: &str =
    "[sagas]\nretry = { attempts = 3, base = \"10ms\", max = \"20ms\" }\n";

/// The tool executes the call and answers with what it has made.
pub(crate) const MADE: Act = Act::Ok("{\"made\":7}");

impl Gateway {
    pub async fn in_saga(&self, tool: &str, saga: &str, key: &str) -> Answer {
        let body =
            json!({ "args": {}, "session_id": "S", "saga_id": saga, "idempotency_key": key });
        self.post(tool, &body, &[]).await
    }

    pub async fn saga(&self, id: &str) -> Answer {
        self.get(&format!("/v1/sagas/{id}")).await
    }

    pub async fn end_saga(&self, id: &str, how: &str) -> Answer {
        self.act_on(&format!("/v1/sagas/{id}/{how}")).await
    }

    pub async fn act_on(&self, path: &str) -> Answer {
        let reason = json!({ "reason": "sold out" }).to_string();
        Answer::to(client().post(self.url(path)).body(reason)).await
    }

    /// The saga, as soon as it is in this state.
    pub async fn saga_that_is(&self, id: &str, state: &str) -> Answer {
        until(&format!("saga {id} is {state}"), async || {
            self.saga(id).await.at("/state") == state
        })
        .await;
        self.saga(id).await
    }
}

/// The paths of the executed requests, in order.
pub(crate) fn executed(tool: &Tool) -> Vec<String> {
    let path = |line: &str| {
        line.split(' ')
            .nth(1)
            .unwrap_or_default()
            .trim_start_matches('/')
            .to_owned()
    };
    tool.seen()
        .iter()
        .filter(|seen| seen.executed)
        .map(|seen| path(&seen.line))
        .collect()
}

pub(crate) fn words(list: &Value, member: &str) -> Vec<String> {
    let list = list.as_array().expect("a list");
    list.iter()
        .map(|one| one[member].as_str().expect("a word").to_owned())
        .collect()
}

async fn a_saga_begins_with_its_first_call_and_takes_none_after_it_is_completed(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, "")).await;
    gateway.saga("G").await.expect_problem("unknown-saga");
    gateway
        .end_saga("G", "complete")
        .await
        .expect_problem("unknown-saga");
    let first = gateway.in_saga("order", "G", "a").await.expect_ok();
    assert_eq!(first.at("/saga_id"), "G");
    gateway.in_saga("pay", "G", "b").await.expect_ok();
    let open = gateway.saga("G").await.expect_ok();
    assert_eq!(
        (open.at("/state"), words(&open.at("/calls"), "tool")),
        ("open".into(), vec!["order".into(), "pay".into()])
    );
    assert!(open.at("/deadline").is_string());
    let listed = gateway.get("/v1/calls?saga_id=G").await.expect_ok();
    assert_eq!(words(&listed.at("/calls"), "tool"), ["pay", "order"]);

    assert_eq!(
        gateway
            .end_saga("G", "complete")
            .await
            .expect_ok()
            .at("/state"),
        "completed"
    );
    gateway.end_saga("G", "complete").await.expect_ok();
    gateway
        .end_saga("G", "abort")
        .await
        .expect_problem("wrong-state");
    let late = gateway
        .in_saga("ship", "G", "c")
        .await
        .expect_problem("wrong-state");
    assert_eq!(
        (late.at("/effect"), late.at("/key_action")),
        ("none".into(), "stop".into())
    );
    gateway
        .in_saga("ship", "G", "c")
        .await
        .expect_problem("wrong-state");
    assert_eq!(executed(&tool), ["order", "pay"], "nothing is sent");
    // A duplicate of a finished call still gets its result.
    let again = gateway.in_saga("order", "G", "a").await.expect_ok();
    assert_eq!(
        (again.at("/replayed"), again.at("/compensated")),
        (true.into(), Value::Null)
    );
    until("its calls are let go", async || {
        gateway.saga("G").await.at("/next_at").is_null()
    })
    .await;
    let sagas = gateway.get("/v1/sagas?state=completed").await.expect_ok();
    assert_eq!(words(&sagas.at("/sagas"), "saga_id"), ["G"]);
    assert!(
        gateway
            .get("/v1/sagas?state=open")
            .await
            .at("/sagas")
            .as_array()
            .expect("a list")
            .is_empty()
    );
}

async fn an_aborted_saga_is_undone_the_newest_first_each_once(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, "")).await;
    let mut calls = Vec::new();
    for (name, key) in [("order", "a"), ("look", "l"), ("pay", "b"), ("ship", "c")] {
        calls.push(gateway.in_saga(name, "G", key).await.expect_ok());
    }
    assert_eq!(
        gateway
            .end_saga("G", "abort")
            .await
            .expect_ok()
            .at("/reason"),
        "sold out"
    );
    // A repeated abort is the same abort.
    let _ = gateway.end_saga("G", "abort").await;
    let saga = gateway.saga_that_is("G", "compensated").await;
    assert_eq!(
        executed(&tool),
        ["order", "look", "pay", "ship", "recall", "refund", "cancel"]
    );
    assert_eq!(
        words(&saga.at("/calls"), "compensation"),
        ["succeeded", "none", "succeeded", "succeeded"]
    );
    assert_eq!(
        words(&saga.at("/calls"), "state"),
        ["compensated", "succeeded", "compensated", "compensated"]
    );
    gateway
        .end_saga("G", "abort")
        .await
        .expect_problem("wrong-state");

    // The compensation that was sent, and its key.
    let order = calls[0].at("/call_id");
    let cancel = tool
        .seen()
        .into_iter()
        .find(|seen| seen.line.contains("/cancel"))
        .expect("it was sent");
    let sent: Value = serde_json::from_str(&cancel.body).expect("JSON");
    assert_eq!(sent, json!({ "made": 7, "of": order }));
    let by = saga.at("/calls/0/compensation_call_id");
    let by = gateway
        .get(&format!("/v1/calls/{}", by.as_str().expect("an id")))
        .await
        .expect_ok();
    assert_eq!(
        by.at("/key"),
        format!("compensate:{}", order.as_str().expect("an id"))
    );
    assert_eq!(
        (by.at("/key_source"), by.at("/saga_id")),
        ("compensation".into(), "G".into())
    );
    let view = gateway.record(&calls[0]).await;
    assert_eq!(view.at("/compensation_call_id"), by.at("/call_id"));
    assert_eq!(view.at("/state"), "compensated");
    until("its calls are let go", async || {
        gateway.saga("G").await.at("/next_at").is_null()
    })
    .await;

    // A duplicate is told that the call is compensated, and runs nothing.
    let again = gateway.in_saga("order", "G", "a").await.expect_ok();
    assert_eq!(again.result(), "{\"made\":7}");
    assert_eq!(
        (again.at("/compensated"), again.at("/replayed")),
        (true.into(), true.into())
    );
    assert_eq!(executed(&tool).len(), 7);
    assert_eq!(
        gateway
            .metric("oncegate_compensations_total{result=\"compensated\",tool=\"pay\"}")
            .await,
        1.0
    );
}

async fn a_call_that_never_ran_is_recorded_as_empty_and_never_runs_later(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(MADE).always(Act::Answer(422, "", b"{}"));
    let gateway = stores.gateway(&shop(&tool, "")).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    let refused = gateway
        .in_saga("pay", "G", "b")
        .await
        .expect_problem("tool-rejected");
    tool.always(MADE);
    gateway.end_saga("G", "abort").await.expect_ok();
    let saga = gateway.saga_that_is("G", "compensated").await;
    assert_eq!(executed(&tool), ["order", "cancel"]);
    assert_eq!(
        words(&saga.at("/calls"), "compensation"),
        ["succeeded", "empty"]
    );
    let view = gateway.record(&refused).await;
    assert_eq!(view.at("/state"), "compensated");
    assert!(words(&view.at("/events"), "event").contains(&"compensation_empty".to_owned()));
    // The call is sent again after its compensation was due.
    gateway
        .in_saga("pay", "G", "b")
        .await
        .expect_problem("wrong-state");
    gateway
        .in_saga("pay", "G", "new")
        .await
        .expect_problem("wrong-state");
    assert_eq!(executed(&tool), ["order", "cancel"]);
}

async fn nothing_is_undone_while_a_call_of_the_saga_runs(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(MADE);
    tool.then(MADE).then(held).always(MADE);
    let gateway = stores.gateway(&shop(&tool, "")).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    let running = {
        let (client, url) = (client(), gateway.url("/v1/tools/pay/calls"));
        let body = json!({ "args": {}, "session_id": "S", "saga_id": "G", "idempotency_key": "b" });
        tokio::spawn(async move { Answer::to(client.post(url).body(body.to_string())).await })
    };
    until("it is at the tool", async || tool.requests() == 2).await;
    gateway.end_saga("G", "abort").await.expect_ok();
    until("it is waited for", async || {
        gateway
            .saga("G")
            .await
            .at("/trouble/why")
            .as_str()
            .is_some_and(|why| why.contains("runs"))
    })
    .await;
    assert_eq!(executed(&tool), ["order"]);
    drop(hold);
    running.await.expect("no panic").expect_ok();
    gateway.saga_that_is("G", "compensated").await;
    assert_eq!(executed(&tool), ["order", "pay", "refund", "cancel"]);
}

async fn a_call_that_waits_for_its_turn_is_not_sent_once_its_saga_is_aborted(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(MADE);
    tool.then(MADE).then(held).always(MADE);
    let at = |path: &str| format!("http://127.0.0.1:{}/{path}", tool.port);
    let config = format!(
        "{SOON}[tools.order]\nurl = \"{}\"\nsession = \"exclusive\"\nsession_wait = \"60s\"\n\
         compensation = {{ tool = \"cancel\" }}\n[tools.cancel]\nurl = \"{}\"\n",
        at("order"),
        at("cancel")
    );
    let gateway = stores.gateway(&config).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    let begin = |saga: &str, key: &str| {
        let (client, url) = (client(), gateway.url("/v1/tools/order/calls"));
        let body =
            json!({ "args": {}, "session_id": "S", "saga_id": saga, "idempotency_key": key });
        tokio::spawn(async move { Answer::to(client.post(url).body(body.to_string())).await })
    };
    let running = begin("other", "b");
    until("it is at the tool", async || tool.requests() == 2).await;
    let waiting = begin("G", "c");
    until("it waits", async || {
        !gateway
            .session()
            .await
            .at("/waiting")
            .as_array()
            .is_none_or(Vec::is_empty)
    })
    .await;
    gateway.end_saga("G", "abort").await.expect_ok();
    gateway.saga_that_is("G", "compensated").await;
    drop(hold);
    running.await.expect("no panic").expect_ok();
    waiting
        .await
        .expect("no panic")
        .expect_problem("wrong-state");
    assert_eq!(
        executed(&tool),
        ["order", "order", "cancel"],
        "the other saga's is the second"
    );
}

async fn a_saga_that_is_open_for_too_long_is_aborted_or_reported(stores: &Stores) {
    for (on_timeout, state, effects) in [("abort", "compensated", 2), ("report", "open", 1)] {
        let tool = Tool::start().await;
        tool.always(MADE);
        let rules = format!("[sagas]\ndeadline = \"100ms\"\non_timeout = \"{on_timeout}\"\n");
        let gateway = stores.gateway(&shop(&tool, &rules)).await;
        gateway
            .in_saga("order", on_timeout, on_timeout)
            .await
            .expect_ok();
        until("it is overdue", async || {
            gateway.saga(on_timeout).await.at("/overdue") == true
        })
        .await;
        let saga = gateway.saga_that_is(on_timeout, state).await;
        assert_eq!(saga.at("/state"), state);
        assert_eq!(tool.effects(), effects, "{on_timeout}");
        // On a shared store this gateway would also work on the sagas of the next one, by its own rules.
        gateway.stop().await;
    }
}

async fn a_key_stands_for_one_saga_only(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, "")).await;
    gateway.in_saga("order", "G", "a").await.expect_ok();
    gateway.in_saga("order", "", "b").await.expect_ok();
    for key in ["a", "b"] {
        gateway
            .in_saga("order", "H", key)
            .await
            .expect_problem("wrong-state");
    }
    let body = json!({ "args": {}, "session_id": "S", "saga_id": "H", "idempotency_key": "a" })
        .to_string();
    let met = Answer::to(client().post(gateway.url("/v1/tools/order/key")).body(body)).await;
    assert_eq!(met.expect_ok().at("/would"), "refuse");
    // A request that names no saga gets the stored result.
    gateway.in_saga("order", "", "a").await.expect_ok();
    assert_eq!(executed(&tool), ["order", "order"]);
    gateway.saga("H").await.expect_problem("unknown-saga");
}

async fn no_caller_can_bring_the_gateways_own_keys(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, "")).await;
    gateway
        .in_saga("cancel", "", "compensate:x")
        .await
        .expect_problem("key-invalid");
    // A model's member that is not a valid key names no call, and no compensation.
    let model = json!({ "args": { "idempotency_key": "compensate:x" } });
    let derived = gateway.post("cancel", &model, &[]).await.expect_ok();
    assert_ne!(derived.at("/idempotency_key"), "compensate:x");
    gateway
        .in_saga("cancel", "compensate:x", "k")
        .await
        .expect_problem("invalid-request");
    assert_eq!(executed(&tool), ["cancel"]);
}

on_both_stores! {
    a_saga_begins_with_its_first_call_and_takes_none_after_it_is_completed,
    an_aborted_saga_is_undone_the_newest_first_each_once,
    a_call_that_never_ran_is_recorded_as_empty_and_never_runs_later,
    nothing_is_undone_while_a_call_of_the_saga_runs,
    a_call_that_waits_for_its_turn_is_not_sent_once_its_saga_is_aborted,
    a_saga_that_is_open_for_too_long_is_aborted_or_reported,
    a_key_stands_for_one_saga_only,
    no_caller_can_bring_the_gateways_own_keys,
}
