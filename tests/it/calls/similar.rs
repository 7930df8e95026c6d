//! `similar = { action = "replay" }`: a request with another key that looks like a call gets its result, and its key is
//! a name of that call from then on. On both stores, seen from outside.

use jiff::{SignedDuration, Timestamp};
use oncegate::core::key::Lookup;
use oncegate::gateway::local_time;
use oncegate::store::Calls as _;
use serde_json::{Value, json};

use crate::stores::contract::ME;
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::{Bare, one_tool};
use crate::support::memory::Memory;
use crate::support::stores::{Stores, at_once, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

on_both_stores![
    a_key_that_was_answered_names_the_call_also_when_nothing_is_similar_any_more,
    while_the_call_runs_a_similar_one_waits_and_then_gets_its_result,
    while_nobody_knows_the_outcome_a_similar_one_is_told_whom_to_ask,
    what_surely_did_not_run_and_what_is_undone_is_not_replayed,
    of_sixty_that_look_alike_one_runs_and_each_answer_is_its_result,
    a_similar_one_costs_nothing_and_a_confirmed_one_runs,
    a_name_that_an_old_call_gives_up_is_taken,
    the_result_is_told_to_no_other_token,
];

const REPLAY: &str =
    "retry = { attempts = 1 }\nsimilar = { fields = [\"/sku\"], action = \"replay\", window = ";

fn replaying(tool: &Tool, window: &str, more: &str) -> String {
    one_tool(tool, &format!("{REPLAY}\"{window}\" }}\n{more}"))
}

fn order(note: &str) -> Value {
    json!({ "args": { "sku": "w", "note": note } })
}

#[track_caller]
fn is_similar_to(answer: &Answer, first: &Answer) {
    assert_eq!(answer.status, 200, "{}", answer.text);
    for (member, value) in [
        ("/call_id", first.at("/call_id")),
        ("/replayed", true.into()),
        ("/replayed_as_similar", true.into()),
    ] {
        assert_eq!(answer.at(member), value, "{}", answer.text);
    }
    assert_eq!(
        (answer.header("idempotent-replayed"), answer.at("/result")),
        ("true", first.at("/result"))
    );
}

async fn the_result_is_told_to_no_other_token(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let tokens = ["one", "two"].map(|name| {
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name));
        format!("[[auth.tokens]]\nname = \"{name}\"\ntenant = \"shop\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n")
    });
    let config = format!("{}{}", tokens.concat(), replaying(&tool, "1h", ""));
    let gateway = stores.gateway(&config).await;
    let ask = async |token: &str, key: &str| {
        let bearer = format!("Bearer {token}");
        gateway
            .post(
                "act",
                &order(key),
                &[("authorization", &bearer), ("idempotency-key", key)],
            )
            .await
    };
    let first = ask("one", "k1").await.expect_ok();
    is_similar_to(&ask("one", "k2").await, &first);
    let refused = ask("two", "k3").await.expect_problem("possible-duplicate");
    assert_eq!(
        (refused.at("/similar_to"), tool.effects()),
        (first.at("/call_id"), 1)
    );
    assert!(!refused.text.contains("\"result\""), "{}", refused.text);
    gateway.stop().await;
}

async fn a_key_that_was_answered_names_the_call_also_when_nothing_is_similar_any_more(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let config = replaying(&tool, "2s", "");
    let gateway = stores.gateway(&config).await;
    let first = gateway.act("first", order("as asked")).await.expect_ok();
    assert_eq!(first.at("/replayed_as_similar"), Value::Null);
    let second = gateway.act("second", order("in other words")).await;
    is_similar_to(&second, &first);
    assert_eq!(
        gateway
            .act("first", order("as asked"))
            .await
            .expect_ok()
            .at("/replayed_as_similar"),
        Value::Null
    );
    let events = gateway.record(&first).await.at("/events").to_string();
    assert_eq!(
        events.matches("\"replayed_as_similar\"").count(),
        1,
        "{events}"
    );
    // Nothing looks like the first any more, in another process, too.
    let gateway = stores.again(gateway, &config).await;
    let began = record_time(&gateway, &first).await;
    until("the window is over", async || {
        local_time() > began + SignedDuration::from_millis(2_100)
    })
    .await;
    let third = gateway.act("third", order("third")).await.expect_ok();
    assert_eq!(third.at("/replayed"), false);
    let effects = tool.effects();
    is_similar_to(
        &gateway.act("second", order("in other words")).await,
        &first,
    );
    let reused = gateway
        .act("second", order("in yet other words"))
        .await
        .expect_problem("key-reused");
    assert_eq!(reused.at("/call_id"), first.at("/call_id"));
    assert_eq!(tool.effects(), effects);
}

async fn while_the_call_runs_a_similar_one_waits_and_then_gets_its_result(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateways = stores.gateways(&replaying(&tool, "10m", "")).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let (client, url) = (one.client.clone(), one.url("/v1/tools/act/calls"));
    let body = json!({ "args": { "sku": "w" }, "session_id": "S", "idempotency_key": "first" })
        .to_string();
    let running =
        tokio::spawn(async move { client.post(url).body(body).send().await.expect("an answer") });
    until("it is at the tool", async || tool.requests() == 1).await;
    let waiting = other
        .act("second", order("again"))
        .await
        .expect_problem("possible-duplicate");
    let told = (waiting.at("/effect"), waiting.at("/key_action"));
    assert_eq!(
        (waiting.status, told),
        (409, ("unknown".into(), "wait".into()))
    );
    assert!(
        waiting
            .at("/retry_after_ms")
            .as_u64()
            .is_some_and(|wait| wait > 0),
        "{}",
        waiting.text
    );
    drop(hold);
    let first = Answer::read(running.await.expect("no panic"))
        .await
        .expect_ok();
    assert_eq!(waiting.at("/similar_to"), first.at("/call_id"));
    is_similar_to(&other.act("second", order("again")).await, &first);
    assert_eq!(tool.effects(), 1);
}

async fn while_nobody_knows_the_outcome_a_similar_one_is_told_whom_to_ask(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = stores.gateway(&replaying(&tool, "10m", "")).await;
    let first = gateway
        .act("first", order("a"))
        .await
        .expect_problem("outcome-unknown");
    let waiting = gateway
        .act("second", order("b"))
        .await
        .expect_problem("possible-duplicate");
    let told = (
        waiting.at("/effect"),
        waiting.at("/key_action"),
        waiting.at("/retry_after_ms"),
    );
    assert_eq!(told, ("unknown".into(), "wait".into(), Value::Null));
    assert!(
        waiting
            .at("/detail")
            .to_string()
            .contains("ask an operator"),
        "{}",
        waiting.text
    );
    let settle = json!({ "as": "succeeded", "result": { "order": 7 }, "reason": "it is there" });
    gateway.resolve(&first, &settle).await.expect_ok();
    let second = gateway.act("second", order("b")).await.expect_ok();
    assert_eq!(
        (second.at("/call_id"), second.at("/result/order")),
        (first.at("/call_id"), 7.into())
    );
    assert_eq!(tool.requests(), 1);
}

async fn what_surely_did_not_run_and_what_is_undone_is_not_replayed(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", b"{}")).always(Act::Numbered);
    let undo = "compensation = { tool = \"cancel\", args = {} }";
    let cancel = format!("[tools.cancel]\nurl = \"{}\"\n", tool.url());
    let gateway = stores
        .gateway(&format!("{}{cancel}", replaying(&tool, "10m", undo)))
        .await;
    gateway
        .act("failed", order("a"))
        .await
        .expect_problem("tool-rejected");
    let second = gateway.act("second", order("b")).await.expect_ok();
    assert_eq!(second.at("/replayed"), false);
    // A failed call has a key of its own, under which nothing else is answered.
    let refused = gateway
        .act("failed", order("a"))
        .await
        .expect_problem("possible-duplicate");
    assert_eq!(
        (refused.at("/effect"), refused.at("/key_action")),
        ("none".into(), "stop".into())
    );
    let saga = json!({ "args": { "sku": "w" }, "saga_id": "G" });
    gateway
        .act("of-a-saga", saga)
        .await
        .expect_problem("possible-duplicate");
    let undo = format!("/v1/calls/{}/compensate", second.id());
    let reason = json!({ "reason": "a mistake" });
    gateway.post_to(&undo, &reason).await.expect_ok();
    until("it is undone", async || {
        gateway.record(&second).await.at("/state") == "compensated"
    })
    .await;
    let refused = gateway
        .act("third", order("c"))
        .await
        .expect_problem("possible-duplicate");
    assert_eq!(
        (refused.at("/similar_to"), refused.at("/key_action")),
        (second.at("/call_id"), "stop".into())
    );
    assert_eq!(tool.requests(), 3);
}

async fn of_sixty_that_look_alike_one_runs_and_each_answer_is_its_result(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateways = stores.gateways(&replaying(&tool, "10m", "")).await;
    let answers = at_once(&gateways, 60, |n| order(&n.to_string())).await;
    let ran: Vec<&Answer> = answers
        .iter()
        .filter(|answer| answer.at("/replayed") == false)
        .collect();
    assert_eq!((ran.len(), tool.effects()), (1, 1));
    let mut replayed = 0;
    for answer in answers
        .iter()
        .filter(|answer| answer.at("/replayed") != false)
    {
        if answer.status == 200 {
            is_similar_to(answer, ran[0]);
            replayed += 1;
        } else {
            let refused = answer.clone().expect_problem("possible-duplicate");
            assert_eq!(
                refused.at("/similar_to"),
                ran[0].at("/call_id"),
                "{}",
                refused.text
            );
        }
    }
    // More keys than are kept for one call: nothing runs for them either.
    for n in 0..40 {
        let answer = gateways[0]
            .act(&format!("later-{n}"), order(&format!("later {n}")))
            .await;
        replayed += usize::from(answer.status == 200);
    }
    assert_eq!((replayed, tool.effects()), (32, 1));
}

async fn a_similar_one_costs_nothing_and_a_confirmed_one_runs(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let budget = "budget = { per = \"session\", max = 1, window = \"10m\" }";
    let gateway = stores.gateway(&replaying(&tool, "10m", budget)).await;
    let first = gateway.act("first", order("a")).await.expect_ok();
    is_similar_to(&gateway.act("second", order("b")).await, &first);
    let mut meant = order("c");
    meant["confirm_duplicate_of"] = first.at("/call_id");
    gateway
        .act("third", meant.clone())
        .await
        .expect_problem("budget-exceeded");
    meant["session_id"] = "T".into();
    let third = gateway.act("third", meant).await.expect_ok();
    assert_eq!(
        (third.at("/replayed"), third.at("/similar_to")),
        (false.into(), first.at("/call_id"))
    );
    assert_eq!(tool.effects(), 2);
}

async fn a_name_that_an_old_call_gives_up_is_taken(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let short = "timeout = \"2s\"\ndeadline = \"2s\"\ndedup_window = \"2s\"";
    let gateway = stores.gateway(&replaying(&tool, "1s", short)).await;
    // Keys that all arguments make are free again when their window is over.
    let asks = async |note: &str| gateway.post("act", &order(note), &[]).await.expect_ok();
    let old = asks("a").await;
    // Within the second in which they look alike, however slow the machine is now and then.
    for _ in 0..20 {
        let since = local_time();
        until("all are past", async || {
            local_time() > since + SignedDuration::from_millis(2_500)
        })
        .await;
        let first = asks("b").await;
        let again = asks("a").await;
        assert_ne!(again.at("/call_id"), old.at("/call_id"));
        if again.at("/call_id") == first.at("/call_id") {
            return is_similar_to(&again, &first);
        }
    }
    panic!("it was never answered as similar");
}

/// When a call has changed last: after it was claimed.
async fn record_time(gateway: &Gateway, answer: &Answer) -> Timestamp {
    let updated_at = gateway.record(answer).await.at("/updated_at");
    updated_at
        .as_str()
        .expect("a time")
        .parse()
        .expect("a time")
}

async fn post(bare: &Bare, key: &str, args: Value) -> Answer {
    let request = client().post(&bare.url).header("idempotency-key", key);
    Answer::to(request.body(json!({ "args": args }).to_string())).await
}

#[tokio::test]
async fn a_name_that_is_not_durable_is_not_answered_and_one_that_was_not_confirmed_is_found() {
    let tool = Tool::start().await;
    let faulty = FaultStore::over(Memory::default());
    let bare = Bare::over(faulty.clone(), ME, &tool, &format!("{REPLAY}\"10m\" }}")).await;
    let first = post(&bare, "first", json!({ "sku": "w" }))
        .await
        .expect_ok();
    faulty.next(Verb::Replace, Fault::ErrBefore, 1);
    let refused = post(&bare, "second", json!({ "sku": "w", "n": 2 }))
        .await
        .expect_problem("store-unavailable");
    assert_eq!(refused.at("/key_action"), "reuse");
    let names = async || {
        let calls = faulty
            .holders(&[Lookup::new("default", "act", "second")])
            .await;
        calls.expect("an answer").len()
    };
    assert_eq!(names().await, 0);
    for fault in [Fault::ExecuteThenTimeout, Fault::Duplicate] {
        faulty.next(Verb::Replace, fault, 1);
        let key = if fault == Fault::Duplicate {
            "third"
        } else {
            "second"
        };
        is_similar_to(
            &post(&bare, key, json!({ "sku": "w", "n": 2 })).await,
            &first,
        );
    }
    assert_eq!((names().await, tool.requests()), (1, 1));
}

#[tokio::test]
async fn what_is_kept_sealed_is_replayed_as_similar_too() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let keys = format!("[store]\nencryption_keys = [\"{}\"]\n", "ab".repeat(32));
    let gateway = Gateway::start(&format!("{keys}{}", replaying(&tool, "10m", ""))).await;
    let first = gateway.act("first", order("a")).await.expect_ok();
    is_similar_to(&gateway.act("second", order("b")).await, &first);
    let gateway = gateway.restart().await;
    is_similar_to(&gateway.act("second", order("b")).await, &first);
    assert_eq!(tool.effects(), 1);
    gateway.stop().await;
}
