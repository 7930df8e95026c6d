//! What may interrupt an act on many calls: another operator, a stop, a kill.

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::operators::many::{confirmed, lines, probe_of};
use crate::stores::contract::ME;
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::{Act, Answer, PATIENCE, Tool, client, until};

async fn post(url: &str, body: &Value) -> Answer {
    Answer::to(client().post(url).body(body.to_string())).await
}

async fn record(bare: &Bare, id: &str) -> Answer {
    let url = bare.url_of(&format!("/v1/calls/{id}"));
    Answer::to(client().get(url)).await
}

/// Calls that are unknown, by their ids.
async fn unknown(bare: &Bare, tool: &Tool, many: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for n in 0..many {
        tool.then(Act::ExecuteThenDrop);
        let body = json!({ "args": {}, "idempotency_key": format!("k{n}") });
        let call = post(&bare.url, &body).await;
        ids.push(call.expect_problem("outcome-unknown").id());
    }
    ids
}

const RULES: &str = "retry = { attempts = 1 }\nbreaker = { failures = 1000 }\n";

#[tokio::test]
async fn a_call_that_another_operator_settles_meanwhile_is_not_touched() {
    let (tool, store) = (Tool::start().await, FaultStore::over(Memory::default()));
    let bare = Bare::over(store.clone(), ME, &tool, RULES).await;
    let ids = unknown(&bare, &tool, 3).await;
    let url = bare.url_of("/v1/calls/resolve");
    let body =
        json!({ "filter": {}, "as": "succeeded", "result": { "by": "many" }, "reason": "r" });
    let dry = post(&url, &body).await.expect_ok();
    store.next(Verb::Replace, Fault::Hold, 1);
    let acting = tokio::spawn({
        let (url, body) = (url.clone(), confirmed(&body, &dry));
        async move { post(&url, &body).await }
    });
    let open = async || {
        let mut open = Vec::new();
        for id in &ids {
            if record(&bare, id).await.at("/state") == "unknown" {
                open.push(id.clone());
            }
        }
        open
    };
    until("all but one are settled", async || open().await.len() == 1).await;
    let held = open().await.remove(0);
    let by_hand = json!({ "as": "succeeded", "result": { "by": "one" }, "reason": "r" });
    let single = bare.url_of(&format!("/v1/calls/{held}/resolve"));
    post(&single, &by_hand).await.expect_ok();
    store.heal();
    let (all, totals) = lines(&acting.await.expect("no panic").expect_ok());
    assert_eq!(
        totals,
        json!({ "total": 3, "done": 2, "changed": 1, "refused": 0, "unclear": 0, "left": 0,
                "states": { "succeeded": 2 } })
    );
    let line = all.iter().find(|line| line["call_id"] == held.as_str());
    let line = line.expect("it is named");
    assert_eq!(
        (&line["result"], &line["state"]),
        (&json!("changed"), &json!("succeeded"))
    );
    assert_eq!(record(&bare, &held).await.at("/result/by"), "one");
    bare.stop().await;
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_said_and_the_act_can_be_given_again() {
    let (tool, store) = (Tool::start().await, FaultStore::over(Memory::default()));
    let bare = Bare::over(store.clone(), ME, &tool, RULES).await;
    unknown(&bare, &tool, 4).await;
    let url = bare.url_of("/v1/calls/resolve");
    let body = json!({ "filter": {}, "as": "succeeded", "result": 1, "reason": "r" });
    let dry = post(&url, &body).await.expect_ok();
    store.next(Verb::Replace, Fault::ExecuteThenTimeout, 1);
    store.next(Verb::Replace, Fault::ErrBefore, 1);
    let (all, totals) = lines(&post(&url, &confirmed(&body, &dry)).await);
    assert_eq!(
        (&totals["done"], &totals["unclear"]),
        (&json!(2), &json!(2)),
        "{all:?}"
    );
    let dry = post(&url, &body).await.expect_ok();
    assert_eq!(dry.at("/count"), 1, "one of the two was carried out");
    let (_, totals) = lines(&post(&url, &confirmed(&body, &dry)).await);
    assert_eq!(totals["done"], 1);
    bare.stop().await;
}

#[tokio::test]
async fn a_stop_leaves_the_rest_and_says_how_many() {
    let (tool, store) = (Tool::start().await, Memory::default());
    let rules = format!("{RULES}{}", probe_of(&tool));
    let bare = Bare::over(store, ME, &tool, &rules).await;
    unknown(&bare, &tool, 30).await;
    let (hold, held) = Act::held(Act::Tell(200, "", b"{}"));
    tool.always(held);
    let url = bare.url_of("/v1/calls/probe");
    let body = json!({ "filter": {}, "reason": "r" });
    let dry = post(&url, &body).await.expect_ok();
    let acting = tokio::spawn({
        let body = confirmed(&body, &dry);
        async move { post(&url, &body).await }
    });
    until("as many calls are probed at once as allowed", async || {
        tool.requests() == 34
    })
    .await;
    bare.gateway.drain();
    drop(hold);
    let answer = timeout(PATIENCE, acting).await.expect("it ends");
    let (all, totals) = lines(&answer.expect("no panic"));
    let left = totals["left"].as_u64().expect("a number");
    assert!(left >= 20, "{totals}");
    assert_eq!(totals["done"], 4, "{totals}");
    assert_eq!(all.len() as u64 + left, 30);
    bare.stop().await;
}

#[cfg(feature = "crash-points")]
mod killed {
    use super::*;
    use crate::accidents::points_world::World;
    use crate::support::redis::Redis;
    use crate::support::until_ready;

    /// A gateway is killed in the middle of an act, and another one repeats the act.
    async fn each_call_is_done_or_untouched_and_the_act_is_given_again(store: String) {
        let world = World::new(store).await;
        world.tool.always(Act::ExecuteThenDrop);
        let at = |path: &str| format!("http://127.0.0.1:{}{path}", world.port);
        let mut gateway = world.spawn("acted_on_one=5*off->1*return");
        until_ready(&at("/readyz")).await;
        let mut ids = Vec::new();
        for n in 0..30 {
            let body = json!({ "args": {}, "idempotency_key": format!("k{n}") });
            let call = post(&at("/v1/tools/act/calls"), &body).await;
            ids.push(call.expect_problem("outcome-unknown").id());
        }
        let body = json!({ "filter": {}, "as": "succeeded", "result": 1, "reason": "r" });
        let url = at("/v1/calls/resolve");
        let dry = post(&url, &body).await.expect_ok();
        let request = client().post(&url);
        let request = request.body(confirmed(&body, &dry).to_string());
        assert_eq!(Answer::within(PATIENCE, request).await, None, "cut off");
        until("it has ended", async || {
            gateway.try_wait().expect("a status").is_some()
        })
        .await;

        let mut gateway = world.spawn("");
        until_ready(&at("/readyz")).await;
        let mut done = 0;
        for id in &ids {
            let record = Answer::to(client().get(at(&format!("/v1/calls/{id}")))).await;
            match record.at("/state").as_str() {
                Some("succeeded") => {
                    assert_eq!(record.events(), ["claimed", "ended", "resolved"]);
                    done += 1;
                }
                Some("unknown") => assert_eq!(record.events(), ["claimed", "ended"]),
                other => panic!("{other:?}"),
            }
        }
        assert!((5..30).contains(&done), "{done}");
        let acts = Answer::to(client().get(at("/v1/audit"))).await;
        assert_eq!(acts.at("/acts/0/outcome"), "unknown");
        let dry = post(&url, &body).await.expect_ok();
        assert_eq!(dry.at("/count"), 30 - done);
        let (_, totals) = lines(&post(&url, &confirmed(&body, &dry)).await);
        assert_eq!(totals["done"], 30 - done);
        assert_eq!(world.tool.requests(), 30, "nothing was sent again");
        gateway.kill().expect("it could be killed");
        gateway.wait().expect("it ended");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn in_the_middle_over_a_file() {
        let store = "sqlite:oncegate.db".into();
        each_call_is_done_or_untouched_and_the_act_is_given_again(store).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn in_the_middle_over_redis() {
        let redis = Redis::strict().await;
        each_call_is_done_or_untouched_and_the_act_is_given_again(redis.url()).await;
    }

    #[cfg(feature = "postgres")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn in_the_middle_over_postgres() {
        let server = crate::support::postgres::Postgres::with(&[]).await;
        each_call_is_done_or_untouched_and_the_act_is_given_again(server.url()).await;
    }
}
