//! A stored call is recognised whatever the configuration has become since: its repetition is answered, and nothing is
//! executed twice, on a gateway that has read another configuration, and on others that have an older one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::SignedDuration;
use oncegate::core::document::Kind;
use oncegate::core::pace::Pace;
use oncegate::core::record::InstanceId;
use oncegate::store::Documents as _;
use oncegate::store::Store;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::faulty::FaultStore;
use crate::support::gateway::{Bare, one_tool};
use crate::support::memory::Memory;
use crate::support::pace::brisk;
use crate::support::redis::Redis;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

const SCHEMA: &str =
    r#"input_schema = { type = "object", required = ["id"], properties = { id = {} } }"#;

/// A change of the configuration, and whether the request brings a key of its own.
struct Case {
    before: String,
    after: String,
    has_key: bool,
}

/// Each setting that changes a key, a fingerprint or what is accepted, given and taken away.
fn cases() -> Vec<Case> {
    let fields = format!("key = {{ fields = [\"/id\"] }}\n{SCHEMA}");
    let runtime = fields.replace("key = {", "key = { prefer = \"runtime\",");
    let per_tenant = fields.replace("key = {", "key = { per = \"tenant\",");
    let member = r#"input_schema = { properties = { idempotency_key = {} } }"#;
    let demanding = r#"input_schema = { required = ["amount"] }"#;
    let settings = [
        fields.as_str(),
        "key = { source = \"required\" }",
        runtime.as_str(),
        per_tenant.as_str(),
        "key = { ignore = [\"/note\"] }",
        "redact = { args = [\"/card\"] }",
        member,
    ];
    let pair = |before: &str, after: &str, has_key| Case {
        before: before.into(),
        after: after.into(),
        has_key,
    };
    let mut cases = Vec::new();
    for (setting, has_key) in settings
        .into_iter()
        .flat_map(|one| [(one, true), (one, false)])
    {
        cases.push(pair("", setting, has_key));
        if has_key || !setting.contains("required\"") {
            cases.push(pair(setting, "", has_key));
        }
        cases.push(pair(
            "",
            &if setting.contains("input_schema") {
                setting.into()
            } else {
                format!("{setting}\n{demanding}")
            },
            has_key,
        ));
    }
    for has_key in [true, false] {
        cases.push(pair(&fields, &runtime, has_key));
        cases.push(pair(&runtime, &fields, has_key));
        cases.push(pair(&fields, &per_tenant, has_key));
        cases.push(pair(&per_tenant, &fields, has_key));
    }
    cases.push(pair("key = { ignore = [\"/note\"] }", &fields, false));
    cases.push(pair(
        &fields,
        "key = { source = \"required\", ignore = [\"/note\"] }",
        false,
    ));
    cases.push(pair(
        "",
        "key = { source = \"required\", ignore = [\"/note\"] }\nredact = { args = [\"/card\"] }",
        false,
    ));
    cases
}

/// With a key that a model has made up, where the case is about that.
fn body(case: &str, user_id: &str) -> Value {
    let mut args = json!({ "id": user_id, "note": "please", "card": "4111" });
    if case.contains("idempotency_key") {
        args["idempotency_key"] = json!(format!("m-{user_id}"));
    }
    json!({ "args": args, "user_id": user_id })
}

async fn recognised(gateway: Gateway, tool: &Tool, case: &Case) {
    let (n, what) = (
        tool.requests(),
        format!("{} -> {} {}", case.before, case.after, case.has_key),
    );
    let body = body(&what, &format!("U{n}"));
    let key = format!("k-{n}");
    let headers: Vec<(&str, &str)> = if case.has_key {
        vec![("idempotency-key", &key)]
    } else {
        Vec::new()
    };
    let first = gateway.post("act", &body, &headers).await.expect_ok();
    assert!(gateway.reload(&one_tool(tool, &case.after)).await);
    let again = gateway.post("act", &body, &headers).await;
    assert_eq!(
        (again.status, tool.requests()),
        (200, n + 1),
        "{what}: {}",
        again.text
    );
    assert_eq!(
        (again.at("/replayed"), again.at("/call_id")),
        (true.into(), first.at("/call_id")),
        "{what}"
    );
    let tried = gateway
        .client
        .post(gateway.url("/v1/tools/act/key"))
        .body(body.to_string());
    let tried = headers
        .iter()
        .fold(tried, |tried, (name, value)| tried.header(*name, *value));
    let tried = Answer::read(tried.send().await.expect("an answer")).await;
    assert_eq!(
        (tried.at("/would"), tried.at("/call_id")),
        ("replay".into(), first.at("/call_id")),
        "{what}: {}",
        tried.text
    );

    // A new process knows as much.
    let gateway = gateway.restart_with(&one_tool(tool, &case.after)).await;
    let again = gateway.post("act", &body, &headers).await.expect_ok();
    assert_eq!(
        (again.at("/replayed"), tool.requests()),
        (true.into(), n + 1),
        "{what}"
    );
    gateway.stop().await;
}

/// Runs the cases four at a time. Each of the four has a tool of its own, and goes through its share in turn.
async fn side_by_side<F: Future<Output = ()>>(run: impl Fn(Arc<Tool>, Vec<(usize, Case)>) -> F) {
    let mut shares: [Vec<(usize, Case)>; 4] = Default::default();
    for (n, case) in cases().into_iter().enumerate() {
        shares[n % 4].push((n, case));
    }
    let mut running = Vec::new();
    for share in shares {
        let tool = Arc::new(Tool::start().await);
        tool.always(Act::Numbered);
        running.push(run(tool, share));
    }
    join_all(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_bytes_are_the_same_call_after_every_change_of_the_configuration() {
    side_by_side(|tool, share| async move {
        for (_, case) in share {
            recognised(Gateway::with_tool(&tool, &case.before).await, &tool, &case).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_bytes_are_the_same_call_over_redis_too() {
    side_by_side(|tool, share| async move {
        let redis = Redis::strict().await;
        for (_, case) in share {
            let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, &case.before)).await;
            gateway.until_ready().await;
            recognised(gateway, &tool, &case).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_of_a_redis_with_different_configurations_execute_each_intent_once() {
    side_by_side(|tool, share| async move {
        let redis = Redis::strict().await;
        for (n, case) in share {
            execute_once(&redis, &tool, n, &case).await;
        }
    })
    .await;
}

/// Twenty arrivals of one intent at two gateways, one with the configuration before and one with that after.
async fn execute_once(redis: &Redis, tool: &Tool, n: usize, case: &Case) {
    if case.after.contains("required = [\"amount\"]")
        || (!case.has_key && case.after.contains("source"))
    {
        return;
    }
    // The first has not heard of the other's recipe when it is asked.
    let one = Gateway::sharing(&redis.url(), &one_tool(tool, &case.before)).await;
    one.until_ready().await;
    let other = Gateway::sharing(&redis.url(), &one_tool(tool, &case.after)).await;
    other.until_ready().await;
    let before = tool.effects();
    let body = body(&format!("{} {}", case.before, case.after), &format!("U{n}"));
    let key = format!("k-{n}");
    let mut asking = JoinSet::new();
    for turn in 0..20 {
        let url = [&one, &other][turn % 2].url("/v1/tools/act/calls");
        let mut request = client().post(url).body(body.to_string());
        if case.has_key {
            request = request.header("idempotency-key", &key);
        }
        asking.spawn(async move { Answer::read(request.send().await.expect("an answer")).await });
    }
    let answers = asking.join_all().await;
    let what = format!("{} | {} {}", case.before, case.after, case.has_key);
    for answer in &answers {
        assert_eq!(answer.status, 200, "{what}: {}", answer.text);
        assert_eq!(answer.at("/call_id"), answers[0].at("/call_id"), "{what}");
    }
    assert_eq!(tool.effects(), before + 1, "{what}");
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_hundred_arrivals_at_two_gateways_of_a_redis_one_is_executed() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.always(Act::Numbered);
    let one = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    one.until_ready().await;
    let fields = format!("key = {{ fields = [\"/id\"] }}\n{SCHEMA}");
    let other = Gateway::sharing(&redis.url(), &one_tool(&tool, &fields)).await;
    other.until_ready().await;
    let mut asking = JoinSet::new();
    for turn in 0..200 {
        let request = [&one, &other][turn % 2]
            .client
            .post([&one, &other][turn % 2].url("/v1/tools/act/calls"));
        let request = request.body(body("", "U1").to_string());
        asking.spawn(async move { Answer::read(request.send().await.expect("an answer")).await });
    }
    for answer in asking.join_all().await {
        answer.expect_ok();
    }
    assert_eq!(tool.effects(), 1);
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn what_no_earlier_call_explains_is_told_as_today_and_a_finer_key_holds_at_once() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let coarse = format!("key = {{ fields = [\"/id\"] }}\n{SCHEMA}");
    let gateway = Gateway::with_tool(&tool, &coarse).await;
    let call = async |args: Value| gateway.call(args).await;
    let first = call(json!({ "id": 1, "line": 1 })).await.expect_ok();
    let reused = call(json!({ "id": 1, "line": 2 }))
        .await
        .expect_problem("key-reused");
    assert_eq!(
        (reused.at("/call_id"), reused.at("/key_action")),
        (first.at("/call_id"), "stop".into())
    );
    let fine = r#"key = { fields = ["/id", "/line"] }
        input_schema = { type = "object", required = ["id", "line"] }"#;
    assert!(gateway.reload(&one_tool(&tool, fine)).await);
    let second = call(json!({ "id": 1, "line": 2 })).await.expect_ok();
    assert_ne!(
        second.at("/call_id"),
        first.at("/call_id"),
        "the operator has said that these are two"
    );
    let again = call(json!({ "id": 1, "line": 1 })).await.expect_ok();
    assert_eq!(again.at("/call_id"), first.at("/call_id"));
    let refused = call(json!({ "id": 1 }))
        .await
        .expect_problem("invalid-arguments");
    assert_eq!(
        (refused.at("/effect"), refused.at("/key_action")),
        ("none".into(), "rotate".into())
    );
    assert_eq!(tool.effects(), 2);
    gateway.stop().await;
}

const SHORT: &str = "timeout = \"200ms\"\ndeadline = \"300ms\"\nretry = { attempts = 1 }\n";

/// A claim that leaves out a name by an earlier recipe is not found by a gateway that knows only that recipe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_a_redis_that_has_not_heard_of_a_finer_key_executes_nothing_a_second_time() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.always(Act::Numbered);
    let coarse = format!("key = {{ fields = [\"/id\"] }}\n{SCHEMA}\n{SHORT}dedup_window = \"4s\"");
    // It reads the recipes of others only when it has to.
    let never = Pace {
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
    // The first call gives up the coarse name: all that the first gateway knows of.
    let body = json!({ "args": { "id": 1, "line": 1 } }).to_string();
    until("the first call is past its window", async || {
        let tried = one
            .client
            .post(one.url("/v1/tools/act/key"))
            .body(body.clone())
            .send();
        let tried = Answer::read(tried.await.expect("an answer")).await;
        // On a busy machine that was so before the second call was made, which has the coarse name then, too.
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

/// A request that waits for its session while the settings change is the same call under them.
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
    // It asks twice, and then only when it hears that the session is free: by the settings that it came with it would
    // be refused in between.
    let seldom = Duration::from_secs(3_600);
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("oncegate.db").display());
    let pace = Pace {
        poll: (seldom, seldom),
        ..brisk()
    };
    let gateway = Gateway::at_pace(pace, &store, &settings("[\"/id\"]", short)).await;
    let body = |session: &str, id: u32, line: u32| json!({ "args": { "id": id, "line": line }, "session_id": session });
    let ask = |body: Value| {
        let (client, url) = (gateway.client.clone(), gateway.url("/v1/tools/act/calls"));
        tokio::spawn(async move {
            Answer::read(
                client
                    .post(url)
                    .body(body.to_string())
                    .send()
                    .await
                    .expect("an answer"),
            )
            .await
        })
    };
    let holder = ask(body("S", 7, 7));
    until("the session is taken", async || tool.requests() == 1).await;
    let waiting = ask(body("S", 1, 2));
    let claims = "oncegate_store_operation_duration_seconds_count{operation=\"claim\"}";
    until("it waits", async || gateway.metric(claims).await >= 3.0).await;
    assert!(gateway.reload(&settings("[\"/id\", \"/line\"]", "")).await);
    // Its coarse name, which is all that it came with, stands for another call from now on.
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
async fn a_running_or_unknown_call_is_recognised_as_well() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    tool.then(Act::ExecuteThenDrop);
    let args = json!({ "id": 1, "note": "a" });
    gateway
        .call_with_key("k", args.clone())
        .await
        .expect_problem("outcome-unknown");
    let after = "key = { ignore = [\"/note\"] }\ninput_schema = { required = [\"amount\"] }";
    assert!(gateway.reload(&one_tool(&tool, after)).await);
    gateway
        .call_with_key("k", args)
        .await
        .expect_problem("outcome-unknown");
    let other = gateway
        .call_with_key("k", json!({ "id": 2 }))
        .await
        .expect_problem("invalid-arguments");
    assert_eq!((other.at("/call_id"), tool.requests()), (Value::Null, 1));
    gateway.stop().await;
}

const ME: InstanceId = InstanceId(Uuid::from_u128(1));

async fn post(bare: &Bare, key: &str, args: Value) -> Answer {
    let request = client().post(&bare.url).header("idempotency-key", key);
    Answer::read(
        request
            .body(json!({ "args": args }).to_string())
            .send()
            .await
            .expect("an answer"),
    )
    .await
}

#[tokio::test]
async fn where_nothing_can_be_looked_up_a_complaint_is_not_told_as_if_nothing_had_run() {
    let tool = Tool::start().await;
    let faulty = FaultStore::over(Memory::default());
    let bare = Bare::over(faulty.clone(), ME, &tool, SCHEMA).await;
    post(&bare, "a", json!({ "n": 1 }))
        .await
        .expect_problem("invalid-arguments");
    faulty.set_down(true);
    let refused = post(&bare, "b", json!({ "n": 1 }))
        .await
        .expect_problem("store-unavailable");
    assert_eq!(
        (refused.at("/effect"), refused.at("/key_action")),
        ("unknown".into(), "reuse".into())
    );
    faulty.set_down(false);
    assert_eq!(tool.requests(), 0);
}

#[tokio::test]
async fn nothing_is_claimed_before_the_recipe_is_written_down() {
    let tool = Tool::start().await;
    let faulty = FaultStore::over(Memory::default());
    faulty.next(
        crate::support::faulty::Verb::PutDocument,
        crate::support::faulty::Fault::ErrBefore,
        1,
    );
    let bare = Bare::over(faulty.clone(), ME, &tool, "").await;
    post(&bare, "a", json!({ "n": 1 }))
        .await
        .expect_problem("store-unavailable");
    assert_eq!(tool.requests(), 0);
    post(&bare, "a", json!({ "n": 1 })).await.expect_ok();
    let kept = faulty
        .documents(Kind::Recipe, None, Some("kept"), None, 10)
        .await
        .expect("an answer")
        .0;
    assert_eq!(kept.calls.len(), 1);
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
        "it may be the same"
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
            .documents(Kind::Recipe, None, Some("kept"), None, 10)
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
        .recipes
        .keep_recipes_once(gateway.now())
        .await
        .expect("kept");
    assert_eq!(kept().await, 2);
    // The call is unknown, so it is kept, and so is what it is recognised by.
    gateway
        .recipes
        .keep_recipes_once(in_hours(24 * 365))
        .await
        .expect("kept");
    assert_eq!(kept().await, 2);
    memory.forget_calls();
    gateway
        .recipes
        .keep_recipes_once(in_hours(26))
        .await
        .expect("kept");
    assert_eq!(kept().await, 2, "it is not time yet");
    gateway
        .recipes
        .keep_recipes_once(in_hours(24 * 367))
        .await
        .expect("kept");
    assert_eq!(kept().await, 1);
    gateway
        .recipes
        .keep_recipes_once(in_hours(24 * 367))
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
        "what was before holds"
    );
    gateway
        .call_with_key("k", json!({ "n31": 1, "n32": 2 }))
        .await
        .expect_problem("key-reused");
    assert!(
        gateway.reload(&with(7)).await,
        "one that is remembered may come back"
    );
    gateway.stop().await;
}

on_both_stores! {
    a_recipe_that_cannot_be_read_closes_its_tool_for_new_calls,
}

/// What is wrong with the stored recipes of one tool, or of all.
#[derive(Clone, Copy, PartialEq)]
enum Spoiled {
    Act,
    /// Not even whose they are can be read.
    Nameless,
}

/// Makes stored recipes unreadable, of a store that no gateway has open.
async fn spoil_recipes(stores: &Stores, folder: &std::path::Path, spoiled: Spoiled) {
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
            let client = ::redis::Client::open(url.as_str()).expect("a URL");
            let mut connection = client
                .get_multiplexed_async_connection()
                .await
                .expect("a connection");
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
        spoil_recipes(stores, folder.path(), spoiled).await;
        let store = match stores {
            Stores::Sqlite => format!("sqlite:{}", folder.path().join("oncegate.db").display()),
            Stores::Redis(url) => url.clone(),
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
                    text.contains("a stored recipe of keys cannot be read")
                        && text.contains("of: act")
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
        // What else is in the way says that nothing was run. That is not known here.
        let person = async |what: &str| {
            let url = gateway.url(&format!("/v1/tools/act/{what}"));
            let request = gateway
                .client
                .post(url)
                .body("{\"reason\":\"it ships twice\"}");
            Answer::read(request.send().await.expect("an answer"))
                .await
                .expect_ok();
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
