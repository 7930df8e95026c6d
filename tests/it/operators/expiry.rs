//! `args_for`, `results_for` and `oncegate store retention`: what goes earlier than a call, and calls that go earlier.

use std::path::Path;

use serde_json::{Value, json};

use crate::reconcile::adopting::{accept, lost};
use crate::reconcile::runs::config;
use crate::sagas::losses::Place;
use crate::sagas::undone::{MADE, SOON, executed, shop};
use crate::support::binary::run;
use crate::support::books::Books;
use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    arguments_and_results_go_and_the_key_stays,
    the_key_of_a_failure_without_its_arguments_runs_again_with_those_of_the_request,
    what_may_still_be_undone_or_is_not_known_keeps_its_arguments_and_result,
    a_reload_counts_for_stored_calls,
    the_names_of_a_call_without_arguments_are_erased_all_the_same,
    a_shorter_retention_counts_for_stored_calls_once_an_operator_says_so,
}

const BODIES: &str = "args_for = \"1s\"\nresults_for = \"1s\"";

async fn act(gateway: &Gateway, key: &str) -> Answer {
    let body = json!({ "args": { "to": key }, "idempotency_key": key, "user_id": "bob" });
    gateway.post("act", &body, &[]).await
}

async fn call(gateway: &Gateway, id: &str) -> Answer {
    gateway.get(&format!("/v1/calls/{id}")).await.expect_ok()
}

/// Waits until both are gone.
async fn bare(gateway: &Gateway, id: &str) -> Answer {
    until("arguments and result are deleted", async || {
        let call = call(gateway, id).await;
        call.at("/args") == "[deleted]" && call.at("/result").is_null()
    })
    .await;
    call(gateway, id).await
}

async fn arguments_and_results_go_and_the_key_stays(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Ok("{\"said\":\"canary\"}"));
    let gateways = stores.gateways(&one_tool(&tool, BODIES)).await;
    let (gateway, last) = (&gateways[0], gateways.last().expect("one"));
    let first = act(gateway, "k").await.expect_ok();
    assert_eq!(act(gateway, "k").await.expect_ok().at("/replayed"), true);
    let left = bare(last, &first.id()).await;
    assert!(!left.text.contains("canary"), "{}", left.text);
    assert_eq!(
        (left.at("/state"), left.at("/user_id")),
        (json!("succeeded"), json!("bob"))
    );
    let events = left.at("/events");
    let said: Vec<&Value> = events
        .as_array()
        .expect("events")
        .iter()
        .filter(|event| event["event"] == "bodies_deleted")
        .collect();
    assert!(!said.is_empty(), "{events}");
    for gateway in &gateways {
        let again = act(gateway, "k").await;
        let again = again.expect_problem("result-unavailable");
        assert_eq!(
            (again.id(), again.at("/effect")),
            (first.id(), json!("done"))
        );
        let other = json!({ "args": { "to": "eve" }, "idempotency_key": "k", "user_id": "bob" });
        let other = gateway.post("act", &other, &[]).await;
        other.expect_problem("key-reused");
    }
    assert_eq!(tool.requests(), 1, "executed once");
    let listed = last.get("/v1/calls?user_id=bob").await.expect_ok();
    assert_eq!(listed.at("/calls/0/call_id"), first.id());
}

async fn the_key_of_a_failure_without_its_arguments_runs_again_with_those_of_the_request(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", b"{\"why\":\"canary\"}"));
    let gateway = stores.gateway(&one_tool(&tool, BODIES)).await;
    let refused = act(&gateway, "k").await.expect_problem("tool-rejected");
    let id = refused.id().to_owned();
    bare(&gateway, &id).await;
    let again = act(&gateway, "k").await.expect_ok();
    assert_eq!(again.at("/replayed"), false);
    assert_ne!(
        again.id(),
        id,
        "a call of its own, with arguments of its own"
    );
    let sent = tool.executed();
    assert!(sent.last().expect("one").body.contains("\"to\":\"k\""));
}

async fn what_may_still_be_undone_or_is_not_known_keeps_its_arguments_and_result(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let config =
        shop(&tool, SOON).replacen("[tools.order]\n", &format!("[tools.order]\n{BODIES}\n"), 1);
    assert!(config.contains(BODIES), "{config}");
    let gateway = stores.gateway(&config).await;
    let body = |key: &str, saga: &str| json!({ "args": { "to": key }, "session_id": "S", "saga_id": saga, "idempotency_key": key });
    let in_saga = gateway
        .post("order", &body("k1", "trip"), &[])
        .await
        .expect_ok();
    // Made later, and alone.
    let alone = gateway
        .post(
            "order",
            &json!({ "args": {}, "idempotency_key": "k2" }),
            &[],
        )
        .await;
    bare(&gateway, &alone.expect_ok().id()).await;
    let there = call(&gateway, &in_saga.id()).await;
    assert_eq!(there.at("/args/to"), "k1", "{}", there.text);
    gateway.end_saga("trip", "abort").await.expect_ok();
    gateway.saga_that_is("trip", "compensated").await;
    assert_eq!(executed(&tool), ["order", "order", "cancel"]);
    assert!(tool.executed()[2].body.contains("\"made\":7"));
    bare(&gateway, &in_saga.id()).await;
}

async fn a_reload_counts_for_stored_calls(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    let first = act(&gateway, "k").await.expect_ok();
    assert!(
        gateway
            .reload(&one_tool(&tool, "results_for = \"1s\""))
            .await
    );
    until("its result is deleted", async || {
        act(&gateway, "k").await.status == 502
    })
    .await;
    let left = call(&gateway, &first.id()).await;
    assert_eq!(left.at("/args/to"), "k", "only the result");
    assert!(gateway.reload(&one_tool(&tool, BODIES)).await);
    bare(&gateway, &first.id()).await;
    assert_eq!(tool.requests(), 1);
}

async fn the_names_of_a_call_without_arguments_are_erased_all_the_same(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, BODIES)).await;
    let first = act(&gateway, "k").await.expect_ok();
    bare(&gateway, &first.id()).await;
    let request = gateway.client.delete(gateway.url("/v1/users/bob"));
    assert_eq!(Answer::to(request).await.expect_ok().at("/erased"), 1);
    let left = call(&gateway, &first.id()).await;
    assert_eq!(
        (left.at("/args"), left.at("/user_id")),
        (json!("[erased]"), Value::Null)
    );
    let listed = gateway.get("/v1/calls?user_id=bob").await.expect_ok();
    assert_eq!(listed.at("/calls"), json!([]));
}

/// What the store shows of a call may be older than what became of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_redis_may_have_lost_data_no_retention_is_changed() {
    let books = Books::open().await;
    let rules = config(&books, "", "");
    let redis = crate::support::redis::Redis::strict().await;
    let mut place = Place::Redis(Box::new(redis));
    let made = async |gateway: &Gateway, n| {
        gateway.plan(n, "").await.expect_ok();
    };
    let gateways = lost(
        &mut place,
        &rules,
        async |g| made(g, 1).await,
        async |g| made(g, 2).await,
    )
    .await;
    let Place::Redis(redis) = &place else {
        panic!("a Redis");
    };
    let shorter = "retention = \"20d\"\n";
    let rules = rules.replacen("[tools.act]\n", &format!("[tools.act]\n{shorter}"), 1);
    let file = format!("[store]\nurl = \"{}\"\n{rules}", redis.url());
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("r.toml"), file).expect("written");
    let arguments = ["store", "retention", "--config", "r.toml", "--apply"];
    let output = run(folder.path(), &arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    assert!(errors.contains("the store is not ready"), "{errors}");
    accept(&gateways).await;
    let done = retention(folder.path(), &["--apply"]);
    assert!(
        done.contains("act: 1 calls are stored for a shorter time"),
        "{done}"
    );
}

/// What the command prints.
fn retention(folder: &Path, more: &[&str]) -> String {
    let arguments = [&["store", "retention", "--config", "r.toml"], more].concat();
    let output = run(folder, &arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}

async fn a_shorter_retention_counts_for_stored_calls_once_an_operator_says_so(stores: &Stores) {
    let tool = Tool::start().await;
    let of = |retention: &str| {
        one_tool(
            &tool,
            &format!(
                "dedup_window = \"1s\"\ntimeout = \"1s\"\ndeadline = \"1s\"\nretry = {{ attempts = 1 }}\nretention = \"{retention}\""
            ),
        )
    };
    let gateway = stores.gateway(&of("30d")).await;
    let first = act(&gateway, "k").await.expect_ok();
    tool.then(Act::Hang);
    act(&gateway, "open").await;
    let url = match stores.shared() {
        // A PostgreSQL is named with its schema.
        Some(url) => url.replacen('#', "\"\nschema = \"", 1),
        None => "sqlite:oncegate.db".to_owned(),
    };
    // Over a file it is the only one that uses it.
    let (folder, gateway) = match stores {
        Stores::Sqlite => (gateway.stop().await, None),
        _ => (tempfile::tempdir().expect("a folder"), Some(gateway)),
    };
    let file = format!("[store]\nurl = \"{url}\"\n{}", of("2s"));
    std::fs::write(folder.path().join("r.toml"), file).expect("written");
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    let dry = retention(folder.path(), &[]);
    assert!(
        dry.starts_with("act: 1 calls are stored for a shorter time (1 of them are over now), 0 for a longer one, 0 as before; 1 have not ended"),
        "{dry}"
    );
    assert!(dry.contains("nothing was changed"), "{dry}");
    assert_eq!(retention(folder.path(), &[]), dry, "it changes nothing");
    let done = retention(folder.path(), &["--apply"]);
    assert!(
        done.starts_with("act: 1 calls are stored for a shorter time"),
        "{done}"
    );
    let gateway = match gateway {
        Some(gateway) => gateway,
        None => {
            let url = format!("sqlite:{}", folder.path().join("oncegate.db").display());
            Gateway::again(folder, &url, &of("2s")).await
        }
    };
    gateway.until_ready().await;
    let path = format!("/v1/calls/{}", first.id());
    until("it is deleted", async || {
        gateway.get(&path).await.status == 404
    })
    .await;
    let open = gateway.get("/v1/calls?key=open").await.expect_ok();
    assert_eq!(open.at("/calls/0/state"), "unknown", "{}", open.text);
}
