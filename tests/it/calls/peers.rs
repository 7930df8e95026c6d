//! Mistakes of other systems that no other test looks for: docs/evidence/peers-bugs.md has them all.

use serde_json::{Value, json};

use crate::proxies::requests::api;
use crate::redis::shared::{call, gateway};
use crate::support::gateway::one_tool;
use crate::support::redis::Redis;
use crate::support::stores::{Stores, begin, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores![
    those_who_wait_for_a_call_that_is_rejected_are_told_so_and_run_nothing,
    after_a_restart_a_finished_call_is_replayed_and_its_key_is_refused_to_another,
    one_key_at_two_tools_is_two_calls,
];

const CAME: &str = "oncegate_requests_total{door=\"http\",tool=\"act\"}";

async fn came(gateways: &[Gateway]) -> f64 {
    let mut came = 0.0;
    for gateway in gateways {
        came += gateway.metric(CAME).await;
    }
    came
}

/// The rejection gives the key free: none of those who wait may take it.
async fn those_who_wait_for_a_call_that_is_rejected_are_told_so_and_run_nothing(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Answer(422, "", b"{}"));
    tool.then(held).always(Act::Numbered);
    let gateways = stores.gateways(&one_tool(&tool, "")).await;
    let first = begin(&gateways[0], "k", json!({}));
    until("it is at the tool", async || tool.requests() == 1).await;
    let waiting: Vec<_> = (0..20)
        .map(|n| begin(&gateways[n % gateways.len()], "k", json!({})))
        .collect();
    until("all have come", async || came(&gateways).await >= 21.0).await;
    let body = json!({ "args": {}, "session_id": "S", "idempotency_key": "k" });
    for gateway in &gateways {
        let early = gateway.post("act", &body, &[("prefer", "wait=0")]).await;
        early.expect_problem("call-in-progress");
    }
    drop(hold);
    let rejected = first
        .await
        .expect("no panic")
        .expect_problem("tool-rejected");
    for told in waiting {
        let told = told
            .await
            .expect("no panic")
            .expect_problem("tool-rejected");
        assert_eq!(told.at("/call_id"), rejected.at("/call_id"));
    }
    assert_eq!((tool.requests(), tool.effects()), (1, 0));
    // A caller that comes afterwards asks for a new run.
    let last = &gateways[gateways.len() - 1];
    last.act("k", json!({})).await.expect_ok();
    assert_eq!((tool.requests(), tool.effects()), (2, 1));
}

/// The end of a call keeps what its arguments are compared with.
async fn after_a_restart_a_finished_call_is_replayed_and_its_key_is_refused_to_another(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let config = one_tool(&tool, "");
    let gateway = stores.gateway(&config).await;
    let args = |amount: u32| json!({ "args": { "amount": amount } });
    let first = gateway.act("k", args(1)).await.expect_ok();
    let gateway = stores.again(gateway, &config).await;
    let again = gateway.act("k", args(1)).await.expect_ok();
    assert_eq!(
        (again.at("/replayed"), again.result()),
        (true.into(), first.result())
    );
    let other = gateway.act("k", args(2)).await.expect_problem("key-reused");
    assert_eq!(other.at("/call_id"), first.at("/call_id"));
    assert_eq!(tool.requests(), 1);
}

async fn one_key_at_two_tools_is_two_calls(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let config = format!(
        "{}[tools.pay]\nurl = \"{}\"\n",
        one_tool(&tool, ""),
        tool.url()
    );
    let gateway = stores.gateway(&config).await;
    let body = json!({ "args": {}, "idempotency_key": "k" });
    let order = gateway.post("act", &body, &[]).await.expect_ok();
    let payment = gateway.post("pay", &body, &[]).await.expect_ok();
    assert_ne!(order.at("/call_id"), payment.at("/call_id"));
    assert_ne!(order.result(), payment.result());
    let keys: Vec<_> = tool
        .seen()
        .iter()
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    assert_ne!(keys[0], keys[1], "the tools may share a backend");
    for (name, first) in [("act", order), ("pay", payment)] {
        let again = gateway.post(name, &body, &[]).await.expect_ok();
        assert_eq!(
            (again.at("/replayed"), again.result()),
            (true.into(), first.result())
        );
    }
    assert_eq!(tool.effects(), 2);
}

#[tokio::test]
async fn headers_with_commas_and_those_that_come_twice_are_answered_again_as_they_came() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(
        201,
        "content-disposition: attachment; filename=\"a,b.txt\"\r\n\
         link: </a>; rel=\"next\", </b>; rel=\"last\"\r\nwarning: 199 - \"one\"\r\nwarning: 199 - \"two, three\"\r\n",
        b"{}",
    ));
    let gateway = Gateway::start(&api(&tool, "")).await;
    for replayed in ["", "true"] {
        let request = gateway
            .client
            .post(gateway.url("/proxy/api/files"))
            .header("idempotency-key", "k")
            .body("{}");
        let answer = Answer::to(request).await;
        assert_eq!(
            (answer.status, answer.header("idempotent-replayed")),
            (201, replayed)
        );
        let values = |name: &str| -> Vec<String> {
            let values = answer.headers.get_all(name).iter();
            values
                .map(|value| value.to_str().expect("text").to_owned())
                .collect()
        };
        assert_eq!(
            values("content-disposition"),
            ["attachment; filename=\"a,b.txt\""]
        );
        assert_eq!(values("link"), ["</a>; rel=\"next\", </b>; rel=\"last\""]);
        assert_eq!(values("warning"), ["199 - \"one\"", "199 - \"two, three\""]);
    }
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

/// A notification only says when to look: without any, waiters look by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_hears_of_an_end_at_another_gateway_of_a_redis_that_lets_none_subscribe() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other) = (
        gateway(&redis, &tool, "").await,
        gateway(&redis, &tool, "").await,
    );
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let none = "-subscribe -psubscribe -ssubscribe";
    let user: Vec<&str> = ["ACL", "SETUSER", "default"]
        .into_iter()
        .chain(none.split(' '))
        .collect();
    redis.ask(&user).await;
    redis.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    let waits = async {
        until("it runs", async || tool.requests() == 1).await;
        let ends = async {
            until("it is asked for", async || other.metric(CAME).await == 1.0).await;
            let listening = redis.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
            drop(hold);
            ::redis::from_redis_value::<String>(listening).expect("a text")
        };
        tokio::join!(call(&other, 1), ends)
    };
    let (first, (heard, listening)) = tokio::join!(call(&one, 1), waits);
    assert_eq!(listening.trim(), "", "no gateway gets any notification");
    let first = first.expect_ok();
    let heard = heard.expect_ok();
    assert_eq!(
        (heard.at("/replayed"), heard.result()),
        (true.into(), first.result())
    );
    assert_eq!(tool.requests(), 1);
}

/// A name that leads to nothing readable is an error, and no free key.
#[tokio::test]
async fn a_key_is_not_free_because_its_call_is_lost_or_damaged_in_a_redis() {
    for damage in [&["DEL"][..], &["SET", "damaged"], &["SET", ""]] {
        let (redis, tool) = (Redis::strict().await, Tool::start().await);
        tool.always(Act::Numbered);
        let before = gateway(&redis, &tool, "").await;
        call(&before, 1).await.expect_ok();
        before.stop().await;
        let found = redis.ask(&["KEYS", "oncegate:*:call:*"]).await;
        let found: Vec<String> = ::redis::from_redis_value(found).expect("keys");
        assert_eq!(found.len(), 1);
        let mut command = vec![damage[0], found[0].as_str()];
        command.extend(&damage[1..]);
        redis.ask(&command).await;
        let after = gateway(&redis, &tool, "").await;
        for _ in 0..2 {
            let refused = call(&after, 1).await.expect_problem("store-unavailable");
            assert_eq!(refused.at("/effect"), Value::from("unknown"), "{damage:?}");
        }
        assert_eq!(tool.requests(), 1, "{damage:?}");
        after.stop().await;
    }
}
