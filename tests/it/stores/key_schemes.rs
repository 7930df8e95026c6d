//! A stored call is recognised after any change of the key's settings: its repetition is answered, and no intent is executed
//! twice, neither by a gateway with the new settings nor by one with older settings.

use std::sync::Arc;

use futures_util::future::join_all;
use oncegate::core::record::InstanceId;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::faulty::FaultStore;
use crate::support::gateway::{Bare, one_tool};
use crate::support::memory::Memory;
use crate::support::redis::Redis;
use crate::support::{Act, Answer, Gateway, Tool, client, times};

/// Which of the cases a test runs.
#[derive(Clone, Copy)]
enum Which {
    All,
    Even,
    Odd,
}

pub const SCHEMA: &str =
    r#"input_schema = { type = "object", required = ["id"], properties = { id = {} } }"#;

/// A change of the configuration, and whether the request has a key of its own.
pub struct Case {
    before: String,
    after: String,
    has_key: bool,
}

/// Every setting that changes keys, fingerprints or accepted arguments, once added and once removed.
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

/// The body of a request. It has a model's key in its arguments where the case is about that.
pub fn body(case: &str, user_id: &str) -> Value {
    let mut args = json!({ "id": user_id, "note": "please", "card": "4111" });
    if case.contains("idempotency_key") {
        args["idempotency_key"] = json!(format!("m-{user_id}"));
    }
    json!({ "args": args, "user_id": user_id })
}

pub async fn recognised(gateway: Gateway, tool: &Tool, case: &Case) {
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
    let tried = Answer::to(tried).await;
    assert_eq!(
        (tried.at("/would"), tried.at("/call_id")),
        ("replay".into(), first.at("/call_id")),
        "{what}: {}",
        tried.text
    );

    // After a restart the call is recognised, too.
    let gateway = gateway.restart_with(&one_tool(tool, &case.after)).await;
    let again = gateway.post("act", &body, &headers).await.expect_ok();
    assert_eq!(
        (again.at("/replayed"), tool.requests()),
        (true.into(), n + 1),
        "{what}"
    );
    gateway.stop().await;
}

/// Runs cases in four concurrent shares, each with a tool of its own. Over Redis each case starts gateways that take a
/// while, so each test there runs every second case, and all in `make soak`.
async fn side_by_side<F: Future<Output = ()>>(
    which: Which,
    run: impl Fn(Arc<Tool>, Vec<(usize, Case)>) -> F,
) {
    let mut shares: [Vec<(usize, Case)>; 4] = Default::default();
    let chosen = |n: &usize| match which {
        Which::All => true,
        Which::Even => times(1) > 1 || n.is_multiple_of(2),
        Which::Odd => times(1) > 1 || !n.is_multiple_of(2),
    };
    let cases = cases().into_iter().enumerate();
    for (turn, (n, case)) in cases.filter(|(n, _)| chosen(n)).enumerate() {
        shares[turn % 4].push((n, case));
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
    side_by_side(Which::All, |tool, share| async move {
        for (_, case) in share {
            recognised(Gateway::with_tool(&tool, &case.before).await, &tool, &case).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_bytes_are_the_same_call_over_redis_too() {
    side_by_side(Which::Even, |tool, share| async move {
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
    side_by_side(Which::Odd, |tool, share| async move {
        let redis = Redis::strict().await;
        for (n, case) in share {
            execute_once(&redis, &tool, n, &case).await;
        }
    })
    .await;
}

/// Sends one intent twenty times to two gateways, one with the old and one with the new configuration.
async fn execute_once(redis: &Redis, tool: &Tool, n: usize, case: &Case) {
    if case.after.contains("required = [\"amount\"]")
        || (!case.has_key && case.after.contains("source"))
    {
        return;
    }
    // The first gateway does not know the other's key scheme when the requests come.
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
        asking.spawn(async move { Answer::to(request).await });
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
        asking.spawn(async move { Answer::to(request).await });
    }
    for answer in asking.join_all().await {
        answer.expect_ok();
    }
    assert_eq!(tool.effects(), 1);
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_finer_key_holds_at_once_and_requests_without_an_earlier_call_go_by_the_new_settings() {
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
        "by the new settings these are two intents"
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

pub const ME: InstanceId = InstanceId(Uuid::from_u128(1));

pub async fn post(bare: &Bare, key: &str, args: Value) -> Answer {
    let request = client().post(&bare.url).header("idempotency-key", key);
    Answer::to(request.body(json!({ "args": args }).to_string())).await
}

#[tokio::test]
async fn while_no_call_can_be_looked_up_a_refusal_does_not_say_that_nothing_was_executed() {
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
