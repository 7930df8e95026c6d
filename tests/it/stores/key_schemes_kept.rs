//! Key schemes are stored before they are used, and forgotten after their last call.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use oncegate::core::document::Kind;
use oncegate::core::timings::Timings;
use oncegate::store::{DocumentQuery, Documents as _, Store};
use serde_json::{Value, json};

use crate::stores::key_schemes::{ME, SCHEMA, post};
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::{Bare, one_tool};
use crate::support::memory::Memory;
#[cfg(feature = "postgres")]
use crate::support::postgres::run_in;
use crate::support::redis::{Redis, connect};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::timings::brisk;
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    a_recipe_that_cannot_be_read_closes_its_tool_for_new_calls,
}

const SHORT: &str = "timeout = \"200ms\"\ndeadline = \"300ms\"\nretry = { attempts = 1 }\n";

/// A gateway that knows only an earlier key scheme does not find a claim that leaves out the lookup key by that key
/// scheme.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_a_redis_that_has_not_heard_of_a_finer_key_executes_nothing_a_second_time() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.always(Act::Numbered);
    let coarse = format!("key = {{ fields = [\"/id\"] }}\n{SCHEMA}\n{SHORT}dedup_window = \"4s\"");
    // This gateway reads the key schemes of others only when it has to.
    let never = Timings {
        recover_every: Duration::from_secs(3_600),
        ..brisk()
    };
    let one = Gateway::at_pace(never, &redis.url(), &one_tool(&tool, &coarse)).await;
    one.until_ready().await;
    let first = one.call(json!({ "id": 1, "line": 1 })).await.expect_ok();
    let fine = r#"key = { fields = ["/id", "/line"] }
        input_schema = { type = "object", required = ["id", "line"] }"#;
    let other = Gateway::sharing(&redis.url(), &one_tool(&tool, fine)).await;
    other.until_ready().await;
    let second = json!({ "id": 1, "line": 2 });
    let made = loop {
        let answer = other.call(second.clone()).await;
        if answer.status == 200 {
            break answer;
        }
        let refused = answer.expect_problem("store-unavailable");
        assert_eq!(
            (refused.at("/effect"), refused.at("/key_action")),
            ("none".into(), "reuse".into())
        );
        let wait = refused
            .at("/retry_after_ms")
            .as_u64()
            .expect("a time to wait");
        tokio::time::sleep(Duration::from_millis(wait)).await;
    };
    assert_ne!(made.at("/call_id"), first.at("/call_id"));
    // Once past its window the first call gives up the coarse name, the only one that the first gateway knows.
    let body = json!({ "args": { "id": 1, "line": 1 } }).to_string();
    until("the first call is past its window", async || {
        let tried = one
            .client
            .post(one.url("/v1/tools/act/key"))
            .body(body.clone())
            .send();
        let tried = Answer::read(tried.await.expect("an answer")).await;
        // On a busy machine that may have happened before the second call was made, which then has the coarse name, too.
        tried.at("/would") == "run" || tried.at("/call_id") == made.at("/call_id")
    })
    .await;
    let again = one.call(second).await.expect_ok();
    assert_eq!(
        (again.at("/call_id"), again.at("/replayed")),
        (made.at("/call_id"), true.into())
    );
    assert_eq!(tool.effects(), 2);
    one.stop().await;
    other.stop().await;
}

/// A request that waits for its session while the settings change is the same call under the new settings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waited_during_a_reload_is_looked_for_under_its_new_names() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held).always(Act::Numbered);
    let settings = |fields: &str, window: &str| {
        let schema = r#"input_schema = { type = "object", required = ["id", "line"] }"#;
        let session = "session = \"exclusive\"\nsession_wait = \"30s\"";
        one_tool(
            &tool,
            &format!("key = {{ fields = {fields} }}\n{schema}\n{session}\n{window}"),
        )
    };
    let short =
        "timeout = \"20s\"\ndeadline = \"20s\"\nretry = { attempts = 1 }\ndedup_window = \"21s\"";
    // The waiting request asks twice, and again only when the session is free. In between, its old settings would get it
    // refused.
    let seldom = Duration::from_secs(3_600);
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("oncegate.db").display());
    let timings = Timings {
        poll: (seldom, seldom),
        ..brisk()
    };
    let gateway = Gateway::at_pace(timings, &store, &settings("[\"/id\"]", short)).await;
    let body = |session: &str, id: u32, line: u32| json!({ "args": { "id": id, "line": line }, "session_id": session });
    let ask = |body: Value| {
        let (client, url) = (gateway.client.clone(), gateway.url("/v1/tools/act/calls"));
        tokio::spawn(async move { Answer::to(client.post(url).body(body.to_string())).await })
    };
    let holder = ask(body("S", 7, 7));
    until("the session is taken", async || tool.requests() == 1).await;
    let waiting = ask(body("S", 1, 2));
    let claims = "oncegate_store_operation_duration_seconds_count{operation=\"claim\"}";
    until("it waits", async || gateway.metric(claims).await >= 3.0).await;
    assert!(gateway.reload(&settings("[\"/id\", \"/line\"]", "")).await);
    // From now on the coarse name, the only name of the waiting request, stands for another call.
    gateway.post("act", &body("T", 1, 1), &[]).await.expect_ok();
    let made = gateway.post("act", &body("U", 1, 2), &[]).await.expect_ok();
    drop(hold);
    holder.await.expect("no panic").expect_ok();
    let waited = waiting.await.expect("no panic").expect_ok();
    assert_eq!(
        (waited.at("/call_id"), waited.at("/replayed")),
        (made.at("/call_id"), true.into())
    );
    assert_eq!(tool.effects(), 3);
}

#[tokio::test]
async fn nothing_is_claimed_before_the_recipe_is_written_down() {
    let tool = Tool::start().await;
    let faulty = FaultStore::over(Memory::default());
    faulty.next(Verb::PutDocument, Fault::ErrBefore, 1);
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    post(&bare, "a", json!({ "n": 1 }))
        .await
        .expect_problem("store-unavailable");
    assert_eq!(tool.requests(), 0);
    post(&bare, "a", json!({ "n": 1 })).await.expect_ok();
    let kept = faulty
        .documents(&DocumentQuery::in_state(Kind::KeyScheme, "kept", 10))
        .await
        .expect("an answer")
        .0;
    assert_eq!(kept.calls.len(), 1);
}

/// Other gateways may have found it later than it says, and so claim by their old list for longer.
#[tokio::test]
async fn a_recipe_of_which_it_was_not_known_that_it_is_written_down_counts_from_when_it_surely_is()
{
    let tool = Tool::start().await;
    let faulty = FaultStore::over(Memory::default());
    // The first is the store's secret.
    faulty.next(Verb::PutDocument, Fault::ExecuteThenTimeout, 2);
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    let known_since = async || {
        let query = DocumentQuery::in_state(Kind::KeyScheme, "kept", 10);
        let kept = faulty.documents(&query).await.expect("an answer").0.calls;
        let body: Value = serde_json::from_slice(&kept[0].body).expect("JSON");
        body["known_since"].as_i64().expect("microseconds")
    };
    for _ in 0..2 {
        post(&bare, "a", json!({ "n": 1 }))
            .await
            .expect_problem("store-unavailable");
    }
    let written = known_since().await;
    post(&bare, "a", json!({ "n": 1 })).await.expect_ok();
    assert!(known_since().await > written);
    assert_eq!(tool.requests(), 1);
}

#[tokio::test]
async fn a_call_of_a_recipe_that_is_gone_is_neither_repeated_nor_taken_for_another() {
    let tool = Tool::start().await;
    let memory = Memory::default();
    let first = Bare::over(memory.clone(), ME, &tool, "key = { ignore = [\"/note\"] }").await;
    post(&first, "k", json!({ "n": 1, "note": "a" }))
        .await
        .expect_ok();
    drop(first);
    memory.forget_documents();
    let second = Bare::over(memory, ME, &tool, "").await;
    let refused = post(&second, "k", json!({ "n": 1, "note": "b" }))
        .await
        .expect_problem("key-reused");
    let told = (refused.at("/effect"), refused.at("/key_action"));
    assert_eq!(
        told,
        ("unknown".into(), "stop".into()),
        "the two may be the same intent"
    );
    post(&second, "k", json!({ "n": 1, "note": "a" }))
        .await
        .expect_ok();
    assert_eq!(tool.requests(), 1);
}

#[tokio::test]
async fn a_recipe_is_forgotten_when_no_call_of_it_is_kept_and_not_before() {
    let tool = Tool::start().await;
    let memory = Memory::default();
    let faulty: Arc<dyn Store> = Arc::new(memory.clone());
    let kept = async || {
        memory
            .documents(&DocumentQuery::in_state(Kind::KeyScheme, "kept", 10))
            .await
            .expect("an answer")
            .0
            .calls
            .len()
    };
    let short = "retention = \"25h\"";
    let first = Bare::over_shared(faulty.clone(), ME, &tool, short).await;
    tool.then(Act::ExecuteThenDrop);
    post(&first, "unknown", json!({ "n": 1 }))
        .await
        .expect_problem("outcome-unknown");
    drop(first);
    let second = Bare::over_shared(
        faulty,
        ME,
        &tool,
        &format!("{short}\nkey = {{ ignore = [\"/note\"] }}"),
    )
    .await;
    let gateway = &second.gateway;
    let in_hours = |hours: i64| gateway.now() + SignedDuration::from_hours(hours);
    gateway
        .key_schemes
        .keep_key_schemes_once(gateway.now())
        .await
        .expect("kept");
    assert_eq!(kept().await, 2);
    // The unknown call is kept, so its key scheme is kept, too.
    gateway
        .key_schemes
        .keep_key_schemes_once(in_hours(24 * 365))
        .await
        .expect("kept");
    assert_eq!(kept().await, 2);
    memory.forget_calls();
    gateway
        .key_schemes
        .keep_key_schemes_once(in_hours(26))
        .await
        .expect("kept");
    assert_eq!(kept().await, 2, "it is not time yet");
    gateway
        .key_schemes
        .keep_key_schemes_once(in_hours(24 * 367))
        .await
        .expect("kept");
    assert_eq!(kept().await, 1);
    gateway
        .key_schemes
        .keep_key_schemes_once(in_hours(24 * 367))
        .await
        .expect("kept");
    assert_eq!(kept().await, 1, "and it does not come back");
}

#[tokio::test]
async fn a_reload_that_needs_more_recipes_than_are_remembered_is_refused_and_changes_nothing() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Gateway::with_tool(&tool, "").await;
    let with = |n: usize| one_tool(&tool, &format!("key = {{ ignore = [\"/n{n}\"] }}"));
    for n in 1..32 {
        assert!(gateway.reload(&with(n)).await, "{n}");
    }
    let one = gateway
        .call_with_key("k", json!({ "n31": 1, "n32": 1 }))
        .await
        .expect_ok();
    assert!(!gateway.reload(&with(32)).await);
    let same = gateway
        .call_with_key("k", json!({ "n31": 2, "n32": 1 }))
        .await
        .expect_ok();
    assert_eq!(
        same.at("/call_id"),
        one.at("/call_id"),
        "the earlier settings hold"
    );
    gateway
        .call_with_key("k", json!({ "n31": 1, "n32": 2 }))
        .await
        .expect_problem("key-reused");
    assert!(
        gateway.reload(&with(7)).await,
        "a remembered key scheme may be used again"
    );
    gateway.stop().await;
}

/// Which stored key schemes are made unreadable.
#[derive(Clone, Copy, PartialEq)]
enum Spoiled {
    Act,
    /// One whose tool cannot be read either.
    Nameless,
}

/// Makes stored key schemes unreadable while no gateway has the store open.
async fn spoil_key_schemes(stores: &Stores, folder: &std::path::Path, spoiled: Spoiled) {
    match stores {
        Stores::Sqlite => {
            let file = rusqlite::Connection::open(folder.join("oncegate.db")).expect("a store");
            let sql = match spoiled {
                Spoiled::Act => {
                    "UPDATE documents SET retain_until = 9223372036854775807 WHERE id LIKE 'act %'"
                }
                Spoiled::Nameless => {
                    "UPDATE documents SET id = CAST(x'ff' AS TEXT) WHERE kind = 'recipe'"
                }
            };
            assert!(file.execute(sql, []).expect("spoiled") > 0);
        }
        Stores::Redis(url) => {
            let mut connection = connect(url).await;
            let names = ::redis::cmd("KEYS")
                .arg("oncegate:*:document:*")
                .query_async(&mut connection)
                .await;
            let names: Vec<String> = names.expect("names");
            for name in names {
                let rest = ::redis::cmd("HGET")
                    .arg(&name)
                    .arg("rest")
                    .query_async(&mut connection)
                    .await;
                let rest: String = rest.expect("it");
                let set = match spoiled {
                    Spoiled::Act if rest.contains("\"id\":\"act ") => ["version", "spoiled"],
                    Spoiled::Act => continue,
                    Spoiled::Nameless if rest.contains("\"id\":\"secret\"") => continue,
                    Spoiled::Nameless => ["rest", "spoiled"],
                };
                let set = ::redis::cmd("HSET")
                    .arg(&name)
                    .arg(&set)
                    .query_async(&mut connection)
                    .await;
                let _: i64 = set.expect("spoiled");
            }
        }
        #[cfg(feature = "postgres")]
        Stores::Postgres(place) => {
            let sql = match spoiled {
                Spoiled::Act => {
                    "UPDATE documents SET retain_until = 9223372036854775807 WHERE convert_from(id, 'UTF8') LIKE 'act %'"
                }
                Spoiled::Nameless => "UPDATE documents SET id = '\\xff' WHERE kind = 'recipe'",
            };
            run_in(place, sql).await;
        }
    }
}

async fn a_recipe_that_cannot_be_read_closes_its_tool_for_new_calls(stores: &Stores) {
    let tool = Tool::start().await;
    let config = format!(
        "{}[tools.other]\nurl = \"{}\"\n",
        one_tool(&tool, ""),
        tool.url()
    );
    let mut gateway = stores.gateway(&config).await;
    gateway
        .call_with_key("k", json!({ "n": 1 }))
        .await
        .expect_ok();
    for spoiled in [Spoiled::Act, Spoiled::Nameless] {
        let folder = gateway.stop().await;
        spoil_key_schemes(stores, folder.path(), spoiled).await;
        let store = match stores {
            Stores::Sqlite => format!("sqlite:{}", folder.path().join("oncegate.db").display()),
            Stores::Redis(url) => url.clone(),
            #[cfg(feature = "postgres")]
            Stores::Postgres(url) => url.clone(),
        };
        gateway = Gateway::again(folder, &store, &config).await;
        let said = |ready: &Answer, list: &str| {
            ready
                .at(list)
                .as_array()
                .expect("a list")
                .iter()
                .any(|one| {
                    let text = one.to_string();
                    text.contains("a stored key scheme cannot be read") && text.contains("of: act")
                })
        };
        let list = if spoiled == Spoiled::Act {
            "/warnings"
        } else {
            "/reasons"
        };
        until("it says so", async || {
            said(&gateway.get("/readyz").await, list)
        })
        .await;
        let effects = tool.effects();
        gateway
            .call_with_key("new", json!({ "n": 2 }))
            .await
            .expect_problem("store-unavailable");
        let again = gateway.call_with_key("k", json!({ "n": 1 })).await;
        assert_eq!(again.at("/replayed"), true, "{}", again.text);
        assert_eq!(tool.effects(), effects);
        // Other refusals say that nothing was executed. Here that is not known.
        let person = async |what: &str| {
            let url = gateway.url(&format!("/v1/tools/act/{what}"));
            let request = gateway
                .client
                .post(url)
                .body("{\"reason\":\"it ships twice\"}");
            Answer::to(request).await.expect_ok();
        };
        person("pause").await;
        let refused = gateway
            .call_with_key("new", json!({ "n": 2 }))
            .await
            .expect_problem("store-unavailable");
        assert_eq!(refused.at("/effect"), "unknown");
        person("resume").await;
        let other = json!({ "args": { "n": 1 } });
        let other = gateway.post("other", &other, &[]).await;
        match spoiled {
            Spoiled::Act => {
                assert_eq!(gateway.get("/readyz").await.status, 200);
                other.expect_ok();
            }
            Spoiled::Nameless => {
                assert_eq!(gateway.get("/readyz").await.status, 503);
                assert_eq!(other.at("/replayed"), true, "{}", other.text);
            }
        }
    }
    gateway.stop().await;
}
