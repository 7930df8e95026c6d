//! Each operation of the store fails once in the life of a saga, in every way. The saga still ends, and each call is done
//! and undone once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use oncegate::gateway;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::rounds::work_on_sagas;
use crate::support::{Act, Answer, Tool, client, until};

const FAULTS: [Fault; 4] = [
    Fault::ErrBefore,
    Fault::ExecuteThenTimeout,
    Fault::ExecuteLate(Duration::from_millis(15)),
    Fault::Duplicate,
];
/// How many operations in a row fail. A claim is given up after three.
const MANY: [usize; 2] = [1, 4];
/// Lives at once.
const AT_ONCE: usize = 32;

struct Life {
    tool: Tool,
    store: FaultStore,
    gateway: Bare,
    client: reqwest::Client,
}

impl Life {
    async fn begin(client: reqwest::Client) -> Self {
        let tool = Tool::start().await;
        tool.always(Act::Ok("{\"made\":7}"));
        let rules = format!(
            "retry = {{ attempts = 1 }}\ncompensation = {{ tool = \"undo\", args = {{ of = \"/call/call_id\" }} }}\n\
             [tools.undo]\nurl = \"http://127.0.0.1:{}/undo\"\nretry = {{ attempts = 1 }}\n\
             [sagas]\nretry = {{ attempts = 100, base = \"1ms\", max = \"1ms\" }}",
            tool.port
        );
        let store = FaultStore::over(Memory::default());
        let gateway = Bare::over(store.clone(), gateway::new_instance(), &tool, &rules).await;
        Self {
            tool,
            store,
            gateway,
            client,
        }
    }

    fn url(&self, path: &str) -> String {
        self.gateway.url_of(path)
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        let request = self.client.post(self.url(path)).body(body.to_string());
        Answer::to(request).await
    }

    /// Makes two calls and ends their saga, and repeats each request until it is done.
    async fn live(&self) -> Result<(), String> {
        let reason = json!({ "reason": "sold out" });
        let call =
            |key| json!({ "args": {}, "saga_id": "G", "session_id": "S", "idempotency_key": key });
        let asks = [
            ("/v1/tools/act/calls", call("a")),
            ("/v1/tools/act/calls", call("b")),
            ("/v1/sagas/G/abort", reason),
        ];
        let patience = Instant::now() + Duration::from_secs(30);
        for (path, body) in &asks {
            // An abort of a saga that is undone by now is refused.
            while !matches!(
                (self.post(path, body).await.status, *path),
                (200, _) | (409, "/v1/sagas/G/abort")
            ) {
                if Instant::now() > patience {
                    return Err(format!("it was never done: {body}"));
                }
                sleep(Duration::from_millis(5)).await;
            }
        }
        loop {
            // The worker of the saga may have been interrupted.
            self.work_later().await;
            let saga = Answer::to(self.client.get(self.url("/v1/sagas/G"))).await;
            if saga.at("/state") == "compensated" && saga.at("/next_at").is_null() {
                return Ok(());
            }
            if Instant::now() > patience {
                return Err(format!("it never rests: {}", saga.text));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Works on the sagas and calls that are due in five minutes, and ignores errors.
    async fn work_later(&self) {
        let gateway = &self.gateway.gateway;
        let later = gateway.now() + SignedDuration::from_mins(5);
        drop(work_on_sagas(gateway, later).await);
    }

    /// Checks that each call was done and undone once, the newest first.
    fn judge(&self) -> Result<(), String> {
        let executed = self.tool.executed();
        let of = |body: &str| serde_json::from_str::<Value>(body).expect("JSON")["of"].clone();
        let ids: Vec<String> = executed
            .iter()
            .map(|seen| {
                of(&seen.body)
                    .as_str()
                    .unwrap_or(seen.header("x-call-id"))
                    .to_owned()
            })
            .collect();
        match &ids[..] {
            [a, b, c, d] if a == d && b == c && a != b => {}
            _ => return Err(format!("in this order: {ids:?}")),
        }
        let mut keys = HashMap::new();
        for seen in self.tool.seen() {
            *keys
                .entry(seen.header("idempotency-key").to_owned())
                .or_insert(0) += 1;
        }
        if keys.len() == 4 && keys.values().all(|times| *times == 1) {
            return Ok(());
        }
        Err(format!("requests by key: {keys:?}"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_operation_of_the_store_goes_wrong_a_saga_comes_to_its_end() {
    let client = client();
    let good = Life::begin(client.clone()).await;
    good.live()
        .await
        .and_then(|()| good.judge())
        .expect("nothing went wrong");
    let operations = good.store.asked();
    assert!(operations > 30, "only {operations}");
    let (mut lives, places) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
    for (fault, many) in FAULTS
        .into_iter()
        .flat_map(|fault| MANY.map(|many| (fault, many)))
    {
        // Of the places where several begin to fail, half: they overlap.
        for n in (0..operations).step_by(if many == 1 { 1 } else { 2 }) {
            let (client, places) = (client.clone(), places.clone());
            lives.spawn(async move {
                let _place = places.acquire().await;
                let life = Life::begin(client).await;
                life.store.fail_from(n, many, fault);
                let lived = life.live().await.and_then(|()| life.judge());
                lived.map_err(|why| format!("{fault:?} of {many} from operation {n}: {why}"))
            });
        }
    }
    let broken: Vec<String> = lives
        .join_all()
        .await
        .into_iter()
        .filter_map(Result::err)
        .collect();
    assert!(broken.is_empty(), "of {operations} operations: {broken:#?}");
}

/// If a ready store fails in one verb again and again, waiting does not help.
#[tokio::test]
async fn a_saga_whose_calls_cannot_be_listed_again_and_again_is_stuck_and_told() {
    let tool = Tool::start().await;
    tool.always(Act::Ok("{\"made\":7}"));
    let rules = format!(
        "compensation = {{ tool = \"undo\" }}\n[tools.undo]\nurl = \"{0}\"\n\
         [sagas]\nretry = {{ attempts = 3, base = \"1ms\", max = \"1ms\" }}\n[webhook]\nurl = \"{0}/told\"",
        tool.url()
    );
    let store = FaultStore::over(Memory::default());
    let gateway = Bare::over(store.clone(), gateway::new_instance(), &tool, &rules).await;
    let life = Life {
        tool,
        store,
        gateway,
        client: client(),
    };
    let get = async |path: &str| Answer::to(life.client.get(life.url(path))).await.text;
    let call = json!({ "args": {}, "saga_id": "G", "idempotency_key": "a" });
    life.post("/v1/tools/act/calls", &call).await.expect_ok();
    life.store.next(Verb::List, Fault::ErrBefore, 1_000);
    // The saga is aborted, although its calls cannot be listed.
    life.post("/v1/sagas/G/abort", &json!({ "reason": "sold out" }))
        .await;
    until("an operator is asked for", async || {
        life.work_later().await;
        get("/metrics").await.contains("oncegate_stuck_sagas 1")
    })
    .await;
    until("the webhook is told", async || {
        life.work_later().await;
        life.tool
            .seen()
            .iter()
            .any(|seen| seen.body.contains("could not be listed"))
    })
    .await;
    life.store.heal();
    let acts = get("/v1/audit?act=abort").await;
    assert!(acts.contains("\"outcome\":\"done\""), "{acts}");
    let saga: Value = serde_json::from_str(&get("/v1/sagas/G").await).expect("JSON");
    assert_eq!(
        (&saga["state"], &saga["trouble"]["why"]),
        (&json!("stuck"), &json!("its calls could not be listed"))
    );
}
