//! `DELETE /v1/users/{id}`: who may, what is refused, and what other tenants and running calls have of it.

use oncegate::store::sqlite::compact;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::operators::exports::config;
use crate::sagas::undone::{MADE, SOON, executed, shop};
use crate::support::gateway::{one_tool, store_is_free};
use crate::support::search::{all_bytes, count};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

on_both_stores! {
    only_an_administrator_erases_and_only_the_named_tenants_user,
    a_running_call_is_erased_when_it_has_ended,
    a_call_of_an_open_saga_is_erased_after_the_saga_and_undone_with_its_arguments,
}

async fn delete(gateway: &Gateway, token: &str, path: &str) -> Answer {
    let request = gateway.client.delete(gateway.url(path)).bearer_auth(token);
    Answer::to(request).await
}

async fn acted(gateway: &Gateway, token: &str, key: &str, user: &str) -> Answer {
    let body = json!({ "args": { "n": 1 }, "idempotency_key": key, "user_id": user });
    gateway.post_as(token, "/v1/tools/act/calls", &body).await
}

/// The users of the calls that an administrator sees, newest first.
async fn users(gateway: &Gateway, tenant: &str) -> Vec<Value> {
    let path = gateway.url(&format!("/v1/calls?tenant={tenant}"));
    let calls = Answer::to(gateway.client.get(path).bearer_auth("ops")).await;
    let calls = calls.expect_ok().at("/calls");
    let calls = calls.as_array().expect("calls").clone();
    calls
        .into_iter()
        .map(|call| call["user_id"].clone())
        .collect()
}

async fn only_an_administrator_erases_and_only_the_named_tenants_user(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool)).await;
    for (token, key, user) in [
        ("shop", "k1", "bob"),
        ("shop", "k2", "bobby"),
        ("bank", "k1", "bob"),
        ("shop", "k3", "bob"),
    ] {
        acted(&gateway, token, key, user).await.expect_ok();
    }
    for token in ["shop", "bank"] {
        let refused = delete(&gateway, token, "/v1/users/bob").await;
        refused.expect_problem("forbidden");
        let refused = delete(&gateway, token, "/v1/users/bob?tenant=shop").await;
        refused.expect_problem("forbidden");
    }
    delete(&gateway, "nobody", "/v1/users/bob")
        .await
        .expect_problem("unauthenticated");
    for path in [
        format!("/v1/users/{}", "u".repeat(256)),
        "/v1/users/bob%0a".into(),
        "/v1/users/bob?colour=red".into(),
        format!("/v1/users/bob?tenant={}", "t".repeat(256)),
    ] {
        let refused = delete(&gateway, "ops", &path).await;
        refused.expect_problem("invalid-request");
    }
    // A user of whom nothing is known is no error: it looks like one who was forgotten. So does one of a wrong tenant.
    for path in ["/v1/users/zoe?tenant=shop", "/v1/users/bob"] {
        let none = delete(&gateway, "ops", path).await.expect_ok();
        assert_eq!(
            (none.at("/erased"), none.at("/kept/calls")),
            (0.into(), 0.into())
        );
        assert_eq!(
            (none.at("/state"), none.at("/kept/until")),
            ("done".into(), Value::Null)
        );
        let next = none.at("/next").to_string();
        assert!(next.contains("No call of this user"), "{next}");
    }
    assert_eq!(users(&gateway, "shop").await, ["bob", "bobby", "bob"]);

    let done = delete(&gateway, "ops", "/v1/users/bob?tenant=shop")
        .await
        .expect_ok();
    assert_eq!(
        (done.at("/erased"), done.at("/tenant")),
        (2.into(), "shop".into())
    );
    assert_eq!(
        users(&gateway, "shop").await,
        [Value::Null, json!("bobby"), Value::Null]
    );
    assert_eq!(users(&gateway, "bank").await, ["bob"], "another tenant's");
    // The longest id that a call may have.
    let long = "u".repeat(255);
    acted(&gateway, "shop", "k4", &long).await.expect_ok();
    let done = delete(&gateway, "ops", &format!("/v1/users/{long}?tenant=shop")).await;
    assert_eq!(done.expect_ok().at("/erased"), 1);
}

async fn a_running_call_is_erased_when_it_has_ended(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool)).await;
    let (hold, held) = Act::held(Act::Ok("{}"));
    tool.then(held);
    let body = json!({ "args": {}, "idempotency_key": "k", "user_id": "bob" }).to_string();
    let request = client()
        .post(gateway.url("/v1/tools/act/calls"))
        .bearer_auth("shop")
        .body(body);
    let running = tokio::spawn(Answer::to(request));
    until("it runs", async || tool.requests() == 1).await;
    let path = "/v1/users/bob?tenant=shop";
    let waits = delete(&gateway, "ops", path).await.expect_ok();
    assert_eq!(
        (waits.at("/state"), waits.at("/erased")),
        ("waiting".into(), 0.into())
    );
    assert_eq!(waits.at("/waiting/running"), 1, "{}", waits.text);
    drop(hold);
    // Its caller gets the result, and is the last who does.
    let first = running.await.expect("no panic").expect_ok();
    let done = delete(&gateway, "ops", path).await.expect_ok();
    assert_eq!(
        (done.at("/state"), done.at("/erased")),
        ("done".into(), 1.into()),
        "{}",
        done.text
    );
    let again = acted(&gateway, "shop", "k", "bob").await;
    again.expect_problem("key-reused");
    let body = json!({ "args": {}, "idempotency_key": "k", "user_id": "bob" });
    let again = gateway.post_as("shop", "/v1/tools/act/calls", &body).await;
    assert_eq!(again.expect_problem("result-unavailable").id(), first.id());
    assert_eq!(tool.requests(), 1);
}

async fn a_call_of_an_open_saga_is_erased_after_the_saga_and_undone_with_its_arguments(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.always(MADE);
    let gateway = stores.gateway(&shop(&tool, SOON)).await;
    for saga in ["completes", "aborts"] {
        let body = json!({
            "args": { "to": saga }, "session_id": "S", "saga_id": saga, "idempotency_key": saga, "user_id": "bob",
        });
        gateway.post("order", &body, &[]).await.expect_ok();
    }
    let erase = async || Answer::to(gateway.client.delete(gateway.url("/v1/users/bob"))).await;
    let waits = erase().await.expect_ok();
    assert_eq!(
        (waits.at("/erased"), waits.at("/waiting/in_saga")),
        (0.into(), 2.into()),
        "{}",
        waits.text
    );
    gateway.end_saga("completes", "complete").await.expect_ok();
    gateway.end_saga("aborts", "abort").await.expect_ok();
    gateway.saga_that_is("aborts", "compensated").await;
    // What it had made was undone with the stored result.
    assert_eq!(executed(&tool), ["order", "order", "cancel"]);
    let undoing = tool.executed();
    assert!(
        undoing[2].body.contains("\"made\":7"),
        "{}",
        undoing[2].body
    );
    // Both calls and the compensation, once their sagas have let them go.
    let mut erased = 0;
    until("they are erased", async || {
        let answer = erase().await.expect_ok();
        erased += answer.at("/erased").as_u64().expect("a number");
        answer.at("/state") == "done"
    })
    .await;
    assert_eq!(erased, 3);
    let left = gateway.get("/v1/calls?user_id=bob").await.expect_ok();
    assert_eq!(left.at("/calls"), json!([]));
    // The saga is still there, and says what was undone.
    let saga = gateway.saga("aborts").await.expect_ok();
    assert_eq!(saga.at("/calls/0/state"), "compensated", "{}", saga.text);
    // What has completed cannot be undone any more, because its compensation needs the result. It is said, and not tried.
    let completed = gateway.get("/v1/calls?saga_id=completes").await.expect_ok();
    let id = completed.at("/calls/0/call_id");
    let id = id.as_str().expect("an id");
    let refused = gateway.act_on(&format!("/v1/calls/{id}/compensate")).await;
    let why = refused
        .expect_problem("wrong-state")
        .at("/detail")
        .to_string();
    assert!(why.contains("needs what is not stored"), "{why}");
    assert_eq!(executed(&tool).len(), 3);
}

/// Free pages are overwritten at once. A copy that SQLite has left within a page when it moved rows is gone after `compact`.
#[tokio::test]
async fn a_file_that_was_written_anew_keeps_no_byte_of_what_was_erased() {
    let tool = Tool::start().await;
    let config = one_tool(&tool, "retry = { attempts = 1 }");
    let gateway = Gateway::start(&config).await;
    let long = "args-canary ".repeat(2_000);
    let body = |key: &str, user: &str| {
        let args = if user == "bob-canary" {
            json!({ "long": long, "to": "args-canary" })
        } else {
            json!({})
        };
        json!({
            "args": args, "idempotency_key": key, "user_id": user, "session_id": format!("talk-of-{user}"),
            "trace_id": format!("trace-of-{user}"),
        })
    };
    tool.always(Act::Ok("{\"said\":\"answer-canary\"}"));
    for n in 0..20 {
        let user = if n % 2 == 0 { "bob-canary" } else { "eve" };
        if user == "eve" {
            tool.then(Act::Ok("{}"));
        }
        gateway
            .post("act", &body(&format!("k{n}"), user), &[])
            .await
            .expect_ok();
    }
    let before = all_bytes(gateway.folder());
    for canary in ["args-canary", "answer-canary", "bob-canary"] {
        assert!(count(&before, canary) > 0, "the search finds {canary}");
    }
    let done = Answer::to(gateway.client.delete(gateway.url("/v1/users/bob-canary"))).await;
    assert_eq!(done.expect_ok().at("/erased"), 10);
    let folder = gateway.stop().await;
    store_is_free(folder.path()).await;
    let bytes = all_bytes(folder.path());
    let (left, was) = (count(&bytes, "args-canary"), count(&before, "args-canary"));
    assert!(left < was / 20, "{left} of {was} are left");
    compact(&folder.path().join("oncegate.db")).expect("written anew");
    let bytes = all_bytes(folder.path());
    for canary in ["args-canary", "answer-canary", "bob-canary"] {
        assert_eq!(count(&bytes, canary), 0, "{canary}");
    }
    assert!(count(&bytes, "talk-of-eve") > 0, "the others are as before");
}

/// A digest of a name says nothing to who does not know the name.
#[tokio::test]
async fn the_audit_names_an_erased_user_by_a_digest() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&config(&tool)).await;
    acted(&gateway, "shop", "k", "bob").await.expect_ok();
    delete(&gateway, "ops", "/v1/users/bob?tenant=shop")
        .await
        .expect_ok();
    let acts = gateway
        .client
        .get(gateway.url("/v1/audit?act=erase"))
        .bearer_auth("ops");
    let act = Answer::to(acts).await.expect_ok().at("/acts/0");
    assert_eq!(
        (&act["by"], &act["target"]["tenant"]),
        (&json!("ops"), &json!("shop"))
    );
    let digest = act["target"]["id"].as_str().expect("a digest");
    assert_eq!(digest.len(), 64);
    assert_ne!(digest, hex::encode(Sha256::digest("bob")));
    assert!(!act.to_string().contains("bob"), "{act}");
}
