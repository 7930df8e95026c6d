//! An agent that times out, repeats, plans again and crashes. It follows `key_action`, `retry_after_ms` and `detail`, and
//! nothing else. Each intent has one effect, and ends with the result or with a sentence that says whom to ask.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    a_loop_that_is_told_to_wait_gets_the_outcome,
    a_loop_that_cannot_get_the_outcome_is_told_whom_to_ask,
    a_loop_that_times_out_and_repeats_has_one_effect,
    a_loop_that_crashes_and_resumes_with_its_key_has_one_effect,
    two_branches_with_one_key_have_one_effect,
    a_loop_that_meets_every_refusal_of_a_tool_has_one_effect,
    a_key_that_is_too_old_is_not_rotated_for_the_same_intent,
    a_loop_that_plans_again_with_new_keys_meets_its_business_key,
    two_branches_with_keys_of_their_own_meet_in_the_business_key,
}

/// How the loop ended.
#[derive(Debug)]
pub enum End {
    Result(Answer),
    /// With a problem that says to stop, or gives no time at which to repeat.
    Told(Answer),
}

impl End {
    #[track_caller]
    pub fn result(self) -> Answer {
        match self {
            Self::Result(answer) => answer,
            Self::Told(answer) => panic!("no result: {}", answer.text),
        }
    }

    #[track_caller]
    pub fn told(self) -> Answer {
        match self {
            Self::Told(answer) => answer,
            Self::Result(answer) => panic!("a result: {}", answer.text),
        }
    }
}

/// A scripted model with one intent.
pub struct Agent<'a> {
    pub gateway: &'a Gateway,
    pub body: Value,
    pub keys: usize,
}

impl<'a> Agent<'a> {
    pub fn new(gateway: &'a Gateway, key: &str, args: Value) -> Self {
        Self {
            gateway,
            body: json!({ "args": args, "session_id": "S", "idempotency_key": key }),
            keys: 0,
        }
    }

    /// An agent whose runtime sends no key.
    pub fn without_key(gateway: &'a Gateway, args: Value) -> Self {
        Self {
            gateway,
            body: json!({ "args": args, "session_id": "S", "user_id": "U" }),
            keys: 0,
        }
    }

    pub async fn ask(&self) -> Answer {
        self.gateway.post("act", &self.body, &[]).await
    }

    /// Sends the request and hangs up before it is answered, when the tool has the call.
    pub async fn hang_up(&self, tool: &Tool) {
        let waited = async {
            until("the call is at the tool", async || tool.requests() > 0).await;
            sleep(Duration::from_millis(50)).await;
        };
        tokio::select! {
            _ = self.ask() => panic!("it was answered"),
            () = waited => {}
        }
    }

    /// Follows each answer to the letter, until it gets the result or has to stop.
    pub async fn follow(&mut self) -> End {
        for _ in 0..100 {
            let answer = self.ask().await;
            if answer.status == 200 {
                return End::Result(answer);
            }
            let wait = answer
                .at("/retry_after_ms")
                .as_u64()
                .map(Duration::from_millis);
            match (answer.at("/key_action").as_str(), wait) {
                (Some("reuse" | "wait"), Some(wait)) => sleep(wait).await,
                (Some("rotate"), _) => {
                    self.keys += 1;
                    self.body["idempotency_key"] = format!("rotated-{}", self.keys).into();
                }
                (Some("stop" | "wait" | "reuse"), _) => return End::Told(answer),
                other => panic!("{other:?} in {}", answer.text),
            }
        }
        panic!("the loop does not end");
    }
}

/// A tool with a probe that the gateway repeats every 200 ms.
fn probing(tool: &Tool) -> String {
    let probe = format!(
        "probe = {{ url = \"http://127.0.0.1:{}/by-key/{{key}}\" }}",
        tool.port
    );
    let often = "recheck = { base = \"200ms\", max = \"200ms\" }\nretry = { attempts = 1 }";
    one_tool(tool, &format!("unknown = \"probe\"\n{probe}\n{often}"))
}

async fn a_loop_that_is_told_to_wait_gets_the_outcome(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .then(Act::Answer(404, "", b"{}"))
        .always(Act::Ok("{\"order\":7}"));
    let gateway = stores.gateway(&probing(&tool)).await;
    let mut agent = Agent::new(&gateway, "k", json!({ "n": 1 }));
    let unknown = agent.ask().await.expect_problem("outcome-unknown");
    let next = unknown
        .at("/retry_after_ms")
        .as_u64()
        .expect("a check is planned");
    assert!((1_000..5_000).contains(&next), "{}", unknown.text);
    assert_eq!(
        unknown.header("retry-after"),
        next.div_ceil(1_000).to_string()
    );
    let result = agent.follow().await.result();
    assert_eq!(
        (result.at("/call_id"), result.at("/result/order")),
        (unknown.at("/call_id"), 7.into())
    );
    let sent = tool
        .seen()
        .iter()
        .filter(|seen| seen.line.starts_with("POST"))
        .count();
    assert_eq!((sent, agent.keys), (1, 0));
}

async fn a_loop_that_cannot_get_the_outcome_is_told_whom_to_ask(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    let mut agent = Agent::new(&gateway, "k", json!({ "n": 1 }));
    for _ in 0..2 {
        let told = agent
            .follow()
            .await
            .told()
            .expect_problem("outcome-unknown");
        assert_eq!(
            (told.at("/key_action"), told.at("/retry_after_ms")),
            ("wait".into(), Value::Null)
        );
        let detail = told.at("/detail").to_string();
        for words in [
            "ask an operator",
            "never executes it twice",
            "Never send it with a new key",
        ] {
            assert!(detail.contains(words), "{words}: {detail}");
        }
        assert!(!told.at("/call_id").is_null());
    }
    assert_eq!((tool.requests(), agent.keys), (1, 0));
}

async fn a_loop_that_times_out_and_repeats_has_one_effect(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    let mut agent = Agent::new(&gateway, "k", json!({ "n": 1 }));
    for _ in 0..3 {
        agent.hang_up(&tool).await;
    }
    let running = gateway
        .post("act", &agent.body, &[("prefer", "wait=0")])
        .await;
    let running = running.expect_problem("call-in-progress");
    assert_eq!(running.at("/key_action"), "reuse");
    assert!(
        running
            .at("/retry_after_ms")
            .as_u64()
            .is_some_and(|wait| wait > 0)
    );
    drop(hold);
    agent.follow().await.result();
    assert_eq!((tool.effects(), agent.keys), (1, 0));
}

async fn a_loop_that_crashes_and_resumes_with_its_key_has_one_effect(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    let first = Agent::new(&gateway, "k", json!({ "n": 1 }))
        .follow()
        .await
        .result();
    // The agent and the gateway have both crashed, and run in new processes.
    let config = one_tool(&tool, "");
    let gateway = stores.again(gateway, &config).await;
    let again = Agent::new(&gateway, "k", json!({ "n": 1 }))
        .follow()
        .await
        .result();
    assert_eq!(
        (again.at("/call_id"), again.at("/replayed")),
        (first.at("/call_id"), true.into())
    );
    assert_eq!(tool.effects(), 1);
}

async fn two_branches_with_one_key_have_one_effect(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(200, Act::Numbered));
    let gateways = stores.gateways(&one_tool(&tool, "")).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let args = json!({ "n": 1 });
    let (mut one, mut other) = (
        Agent::new(one, "k", args.clone()),
        Agent::new(other, "k", args),
    );
    let (one, other) = tokio::join!(one.follow(), other.follow());
    assert_eq!(one.result().at("/call_id"), other.result().at("/call_id"));
    assert_eq!(tool.effects(), 1);
}

async fn a_loop_that_meets_every_refusal_of_a_tool_has_one_effect(stores: &Stores) {
    let tool = Tool::start().await;
    for refusal in [
        Act::Answer(429, "retry-after: 1\r\n", b"{}"),
        Act::Answer(422, "", b"{}"),
    ] {
        tool.then(refusal);
    }
    let gateway = stores
        .gateway(&one_tool(&tool, "retry = { attempts = 1 }"))
        .await;
    let mut agent = Agent::new(&gateway, "k", json!({ "n": 1 }));
    agent.follow().await.result();
    assert_eq!(
        (tool.effects(), agent.keys),
        (1, 1),
        "the rejected one may be sent with a new key"
    );
}

async fn a_key_that_is_too_old_is_not_rotated_for_the_same_intent(stores: &Stores) {
    let tool = Tool::start().await;
    let rules = "timeout = \"200ms\"\ndeadline = \"300ms\"\nretry = { attempts = 1 }\ndedup_window = \"500ms\"";
    let gateway = stores.gateway(&one_tool(&tool, rules)).await;
    let mut agent = Agent::new(&gateway, "k", json!({ "n": 1 }));
    agent.follow().await.result();
    until("the window is over", async || {
        agent.ask().await.problem() == "key-expired"
    })
    .await;
    let told = agent.follow().await.told().expect_problem("key-expired");
    assert_eq!(
        (told.status, told.at("/key_action"), told.at("/effect")),
        (410, "stop".into(), "unknown".into())
    );
    assert_eq!(
        (tool.effects(), agent.keys),
        (1, 0),
        "it is the same intent"
    );
    // Other arguments are another intent.
    agent.body["args"] = json!({ "n": 2 });
    agent.follow().await.result();
    assert_eq!((tool.effects(), agent.keys), (2, 1));
}

/// A tool whose business id names the intent. The note may differ from one repetition to the next.
pub fn by_business_id(tool: &Tool) -> String {
    let fields = "key = { fields = [\"/invoice\"], ignore = [\"/note\"] }";
    let schema = "input_schema = { type = \"object\", required = [\"invoice\"], properties = { invoice = { type = \"string\" } } }";
    one_tool(tool, &format!("{fields}\n{schema}"))
}

async fn a_loop_that_plans_again_with_new_keys_meets_its_business_key(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&by_business_id(&tool)).await;
    let args = |note: &str| json!({ "invoice": "I-1", "note": note, "amount": 7 });
    let first = Agent::new(&gateway, "plan-1", args("as asked"))
        .follow()
        .await
        .result();
    // The agent crashes and plans again with other words, and its framework makes a new key.
    for key in ["plan-2", "plan-3"] {
        let again = Agent::new(&gateway, key, args(key)).follow().await.result();
        assert_eq!(
            (again.at("/call_id"), again.at("/replayed")),
            (first.at("/call_id"), true.into())
        );
    }
    // Other arguments for the same invoice: a new key would find the same call.
    let mut other = Agent::new(&gateway, "plan-4", json!({ "invoice": "I-1", "amount": 8 }));
    let told = other.follow().await.told().expect_problem("key-reused");
    assert_eq!(
        (told.at("/key_action"), told.at("/call_id")),
        ("stop".into(), first.at("/call_id"))
    );
    assert_eq!((tool.effects(), other.keys), (1, 0));
}

async fn two_branches_with_keys_of_their_own_meet_in_the_business_key(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(200, Act::Numbered));
    let gateways = stores.gateways(&by_business_id(&tool)).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let args = json!({ "invoice": "I-1", "amount": 7 });
    let (mut one, mut other) = (
        Agent::new(one, "left", args.clone()),
        Agent::new(other, "right", args),
    );
    let (one, other) = tokio::join!(one.follow(), other.follow());
    assert_eq!(one.result().at("/call_id"), other.result().at("/call_id"));
    assert_eq!(tool.effects(), 1);
}

/// `Prefer: wait` also holds for the request that runs the call.
#[tokio::test]
async fn a_first_arrival_waits_until_its_outcome_is_known() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .then(Act::Answer(404, "", b"{}"))
        .always(Act::Ok("{\"order\":7}"));
    let gateway = Gateway::start(&probing(&tool)).await;
    let body = json!({ "args": {}, "idempotency_key": "k" });
    let first = gateway
        .post("act", &body, &[("prefer", "wait=30")])
        .await
        .expect_ok();
    assert_eq!(first.at("/result/order"), 7);
    gateway.stop().await;
}
