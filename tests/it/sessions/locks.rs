//! Locks, lines and freezes of sessions, tested over HTTP on both stores.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::sessions::session_tokens::{
    a_token_is_let_in_only_if_it_is_the_newest_that_the_session_gave_out,
    no_tenant_meets_the_session_of_another, token,
};
use crate::support::gateway::one_tool;
use crate::support::redis::Redis;
use crate::support::stores::{Stores, begin, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores![
    exclusive_calls_run_one_at_a_time_in_the_order_in_which_they_came,
    a_call_that_waited_its_limit_for_a_session_is_told_that_it_is_busy,
    a_call_that_may_not_wait_any_longer_when_it_first_asks_keeps_no_place,
    an_unknown_outcome_holds_its_session_until_an_operator_breaks_the_lock,
    a_failed_call_frees_its_session_at_once,
    a_frozen_session_begins_nothing_and_replays_what_it_has,
    a_token_is_let_in_only_if_it_is_the_newest_that_the_session_gave_out,
    a_read_does_not_wait_for_its_session,
    no_tenant_meets_the_session_of_another,
];

fn waiting(session: &Answer) -> usize {
    session.at("/waiting").as_array().expect("a list").len()
}

async fn exclusive_calls_run_one_at_a_time_in_the_order_in_which_they_came(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(100, Act::Numbered));
    let gateways = stores
        .gateways(&one_tool(
            &tool,
            "session = \"exclusive\"\nsession_wait = \"30s\"",
        ))
        .await;
    let mut calls = Vec::new();
    for n in 0..6 {
        let gateway = &gateways[n % gateways.len()];
        calls.push(begin(
            gateway,
            &format!("k{n}"),
            json!({ "args": { "n": n } }),
        ));
        let come = n + 1;
        until("it has come", async || {
            // In this order none is counted twice.
            let sent = tool.requests();
            sent + waiting(&gateway.session().await) >= come
        })
        .await;
    }
    for call in calls {
        call.await.expect("no panic").expect_ok();
    }
    let seen = tool.seen();
    let came: Vec<String> = (0..6).map(|n| json!({ "n": n }).to_string()).collect();
    assert_eq!(
        seen.iter()
            .map(|seen| seen.body.clone())
            .collect::<Vec<_>>(),
        came
    );
    assert!(
        seen.is_sorted_by(|one, next| one.until < next.at),
        "they do not overlap"
    );
    assert!(seen.is_sorted_by(
        |one, next| token(one.header("fencing-token")) < token(next.header("fencing-token"))
    ));
    let session = gateways[0].session().await;
    assert_eq!(
        (session.at("/lock"), waiting(&session)),
        (Value::Null, 0),
        "nothing is left over"
    );
}

async fn a_call_that_waited_its_limit_for_a_session_is_told_that_it_is_busy(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateways = stores
        .gateways(&one_tool(
            &tool,
            "session = \"exclusive\"\nsession_wait = \"200ms\"",
        ))
        .await;
    let first = begin(&gateways[0], "first", json!({}));
    until("the first runs", async || tool.requests() == 1).await;
    let last = &gateways[gateways.len() - 1];
    let busy = last
        .act("second", json!({}))
        .await
        .expect_problem("session-busy");
    assert_eq!(
        (busy.status, busy.at("/effect"), busy.at("/key_action")),
        (409, "none".into(), "reuse".into())
    );
    assert!(
        busy.at("/retry_after_ms").as_u64() >= Some(1_000),
        "{}",
        busy.text
    );
    assert_ne!(busy.header("retry-after"), "");
    assert_eq!(waiting(&last.session().await), 0, "it has left the line");
    let other = last
        .post("act", &json!({ "args": {}, "session_id": "T" }), &[])
        .await
        .expect_ok();
    assert_eq!(tool.requests(), 2, "another session does not wait");
    assert_ne!(other.at("/fencing"), Value::Null);
    drop(hold);
    first.await.expect("no panic").expect_ok();
    last.act("second", json!({})).await.expect_ok();
    assert_eq!(
        last.metric("oncegate_barred_total{reason=\"busy\",tool=\"act\"}")
            .await,
        1.0
    );
    let without_session = last
        .post("act", &json!({ "args": { "n": 1 } }), &[])
        .await
        .expect_problem("invalid-request");
    assert!(
        without_session
            .at("/detail")
            .to_string()
            .contains("session_id"),
        "{}",
        without_session.text
    );
}

async fn a_call_that_may_not_wait_any_longer_when_it_first_asks_keeps_no_place(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    // Shorter than one answer of most stores.
    let session = "session = \"exclusive\"\nsession_wait = \"1ms\"";
    let gateway = stores.gateway(&one_tool(&tool, session)).await;
    let first = begin(&gateway, "first", json!({}));
    until("the first runs", async || tool.requests() == 1).await;
    for key in ["second", "third"] {
        let busy = gateway.act(key, json!({})).await;
        busy.expect_problem("session-busy");
        assert_eq!(waiting(&gateway.session().await), 0, "{key} has left");
    }
    drop(hold);
    first.await.expect("no panic").expect_ok();
    gateway.stop().await;
}

async fn an_unknown_outcome_holds_its_session_until_an_operator_breaks_the_lock(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = stores
        .gateway(&one_tool(
            &tool,
            "session = \"exclusive\"\nsession_wait = \"0s\"\ndeadline = \"10m\"",
        ))
        .await;
    let unknown = gateway
        .act("first", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let busy = gateway
        .act("second", json!({}))
        .await
        .expect_problem("session-busy");
    // The lease lasts longer than the deadline.
    assert!(
        busy.at("/retry_after_ms").as_u64() > Some(540_000),
        "{}",
        busy.text
    );
    let session = gateway.session().await;
    assert_eq!(session.at("/lock/call_id"), unknown.at("/call_id"));
    assert_eq!(
        session.at("/lock/free_from"),
        session.at("/lock/lease_until")
    );

    let broken = gateway.person("unlock").await.expect_ok();
    assert_eq!(broken.at("/call_id"), unknown.at("/call_id"));
    let newer = gateway.act("second", json!({})).await.expect_ok();
    assert!(newer.at("/fencing").as_u64() > session.at("/fencing").as_u64());
    gateway.person("unlock").await.expect_problem("wrong-state");
    let record = gateway.record(&unknown).await;
    assert_eq!(
        (record.at("/state"), record.at("/events/2/event")),
        ("unknown".into(), "unlocked".into())
    );
    assert_eq!(record.at("/events/2/by"), "token open");
    assert!(
        record
            .at("/events/2/detail")
            .to_string()
            .contains("it hangs"),
        "{}",
        record.text
    );
    let session = gateway.session().await;
    assert_eq!(
        (session.at("/lock"), session.at("/events/0/event")),
        (Value::Null, "unlocked".into())
    );
    assert_eq!(tool.effects(), 2);
}

async fn a_failed_call_frees_its_session_at_once(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", b"{}"))
        .then(Act::Answer(429, "", b"{}"));
    let config = one_tool(
        &tool,
        "session = \"exclusive\"\nsession_wait = \"0s\"\nretry = { attempts = 1 }",
    );
    let gateway = stores.gateway(&config).await;
    gateway
        .act("rejected", json!({}))
        .await
        .expect_problem("tool-rejected");
    gateway
        .act("unavailable", json!({}))
        .await
        .expect_problem("tool-unavailable");
    let first = gateway.act("good", json!({})).await.expect_ok();
    let again = gateway.act("rejected", json!({})).await.expect_ok();
    assert!(
        again.at("/fencing").as_u64() > first.at("/fencing").as_u64(),
        "a run of its own has a token of its own"
    );
    assert_eq!(gateway.session().await.at("/lock"), Value::Null);
}

async fn a_frozen_session_begins_nothing_and_replays_what_it_has(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&one_tool(&tool, "")).await;
    let (here, there) = (&gateways[0], &gateways[gateways.len() - 1]);
    let before = here.act("before", json!({})).await.expect_ok();
    here.person("freeze").await.expect_ok();
    here.person("freeze").await.expect_problem("wrong-state");
    let frozen = there
        .act("after", json!({}))
        .await
        .expect_problem("session-frozen");
    assert_eq!(
        (
            frozen.status,
            frozen.at("/effect"),
            frozen.at("/key_action")
        ),
        (409, "none".into(), "stop".into())
    );
    let replayed = there.act("before", json!({})).await.expect_ok();
    assert_eq!(
        (replayed.at("/replayed"), replayed.at("/call_id")),
        (true.into(), before.at("/call_id"))
    );
    let session = there.session().await;
    assert_eq!(
        (session.at("/frozen"), session.at("/events/0/event")),
        (true.into(), "frozen".into())
    );
    assert_eq!(
        (session.at("/events/0/by"), session.at("/events/0/detail")),
        ("token open".into(), "it hangs".into())
    );
    there.person("thaw").await.expect_ok();
    here.person("thaw").await.expect_problem("wrong-state");
    here.act("after", json!({})).await.expect_ok();
    assert_eq!(tool.effects(), 2);
}

async fn a_read_does_not_wait_for_its_session(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let look = format!(
        "[tools.look]\nurl = \"{}\"\neffect = \"read\"\n",
        tool.url()
    );
    let gateway = stores
        .gateway(&format!(
            "{}{look}",
            one_tool(&tool, "session = \"exclusive\"")
        ))
        .await;
    let first = begin(&gateway, "first", json!({}));
    until("the write runs", async || tool.requests() == 1).await;
    gateway.person("freeze").await.expect_ok();
    let body = json!({ "args": {}, "session_id": "S", "fencing_token": 1 });
    let read = gateway.post("look", &body, &[]).await.expect_ok();
    assert_eq!(read.at("/fencing"), Value::Null);
    assert!(!first.is_finished(), "the write still holds its session");
    drop(hold);
    first.await.expect("no panic").expect_ok();
}

/// A gateway whose exclusive session S has a call that runs until the returned hold is dropped.
async fn busy(tool: &Tool) -> (impl Sized + use<>, Gateway, JoinHandle<Answer>) {
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let rules = "session = \"exclusive\"\nsession_wait = \"20s\"";
    let gateway = Gateway::with_tool(tool, rules).await;
    let first = begin(&gateway, "first", json!({}));
    until("the first runs", async || tool.requests() == 1).await;
    (hold, gateway, first)
}

#[tokio::test]
async fn a_caller_that_asks_for_an_early_answer_gets_one_while_its_session_is_busy() {
    let tool = Tool::start().await;
    let (hold, gateway, first) = busy(&tool).await;
    let body = json!({ "args": {}, "session_id": "S", "idempotency_key": "second" });
    let early = gateway
        .post("act", &body, &[("prefer", "wait=0")])
        .await
        .expect_problem("call-in-progress");
    assert_eq!(early.at("/call_id"), Value::Null, "nothing is claimed yet");
    let late = async {
        gateway
            .post("act", &body, &[("prefer", "respond-async")])
            .await
    };
    let (late, ()) = tokio::join!(late, async {
        until("it waits", async || waiting(&gateway.session().await) == 1).await;
        drop(hold);
    });
    assert_eq!(
        late.status, 202,
        "who wants a place to ask at waits until there is one: {}",
        late.text
    );
    first.await.expect("no panic").expect_ok();
    gateway.act("second", json!({})).await.expect_ok();
    assert_eq!(tool.effects(), 2);
}

#[tokio::test]
async fn a_call_whose_lock_an_operator_breaks_goes_on() {
    let tool = Tool::start().await;
    let (hold, gateway, first) = busy(&tool).await;
    let second = begin(&gateway, "second", json!({}));
    until("the second waits", async || {
        waiting(&gateway.session().await) == 1
    })
    .await;
    gateway.person("unlock").await.expect_ok();
    let second = second.await.expect("no panic").expect_ok();
    assert!(
        !first.is_finished(),
        "they run beside each other now: that is what the operator wanted"
    );
    drop(hold);
    let first = first.await.expect("no panic").expect_ok();
    assert!(
        second.at("/fencing").as_u64() > first.at("/fencing").as_u64(),
        "the tool can tell them apart"
    );
    let record = gateway.record(&first).await;
    let events: Vec<Value> = (0..3)
        .map(|n| record.at(&format!("/events/{n}/event")))
        .collect();
    assert_eq!(
        (events, record.at("/state")),
        (
            vec!["claimed".into(), "unlocked".into(), "ended".into()],
            "succeeded".into()
        )
    );
    assert_eq!(
        gateway.metric("oncegate_stale_owners_total").await,
        0.0,
        "it was the owner all the time"
    );
}

/// A lock is left over when its tool was exclusive only when the call began, or when an older copy of the data is back.
#[tokio::test]
async fn a_left_over_lock_is_freed_when_its_lease_has_ended_on_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = Gateway::sharing(
        &redis.url(),
        &one_tool(&tool, "session = \"exclusive\"\nsession_wait = \"20s\""),
    )
    .await;
    gateway.until_ready().await;
    gateway.act("before", json!({})).await.expect_ok();
    let keys = redis.ask(&["KEYS", "oncegate:*:session:*"]).await;
    let key: Vec<String> = ::redis::from_redis_value(keys).expect("names");
    let lock = async |lease_until: &str| {
        // The id of a call that does not exist, in 16 bytes.
        let missing = "AZAAAAAAcACAAAAAAAAAAA";
        let fields = [
            "HSET",
            &key[0],
            "lock",
            missing,
            "lock_token",
            "1",
            "lock_lease",
            lease_until,
        ];
        redis.ask(&fields).await;
    };
    lock("1700000000000000").await;
    let next = gateway.act("next", json!({})).await.expect_ok();
    let session = gateway.session().await;
    assert_eq!(
        (session.at("/lock"), session.at("/events/0/event")),
        (Value::Null, "left_over".into())
    );
    lock("9000000000000000").await;
    let waits = begin(&gateway, "waits", json!({}));
    until("it waits", async || waiting(&gateway.session().await) == 1).await;
    assert_eq!(gateway.session().await.at("/fencing"), next.at("/fencing"));
    gateway.person("unlock").await.expect_ok();
    waits.await.expect("no panic").expect_ok();
}
