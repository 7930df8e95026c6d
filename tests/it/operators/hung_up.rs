//! An operator hangs up in the middle of an act: the act goes on to its end.

use oncegate::core::caller::Caller;
use oncegate::core::record::CallId;
use oncegate::core::session::SessionId;
use oncegate::core::unknown::Resolution;
use oncegate::gateway;
use serde_json::{Value, json};

use crate::sagas::undone::SOON;
use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::rounds::work_on_sagas;
use crate::support::{Act, Answer, Tool, client, until};

struct World {
    tool: Tool,
    store: FaultStore,
    gateway: Bare,
}

impl World {
    async fn with(rules: impl Fn(&Tool) -> String) -> Self {
        let tool = Tool::start().await;
        let store = FaultStore::over(Memory::default());
        let instance = gateway::new_instance();
        let gateway = Bare::over(store.clone(), instance, &tool, &rules(&tool)).await;
        Self {
            tool,
            store,
            gateway,
        }
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        let url = self.gateway.url_of(path);
        Answer::to(client().post(url).body(body.to_string())).await
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::to(client().get(self.gateway.url_of(path))).await
    }

    /// Drops an act at the first operation of this verb. Then the store carries the operation out.
    async fn hang_up_at<T>(&self, verb: Verb, act: impl Future<Output = T>) {
        let before = self.store.injected(verb, Fault::Hold);
        self.store.next(verb, Fault::Hold, 1);
        tokio::select! {
            _ = act => panic!("it has ended"),
            () = until("it is under way", async || {
                self.store.injected(verb, Fault::Hold) > before
            }) => {}
        }
        self.store.heal();
    }
}

fn id(call: &Value) -> CallId {
    let id = call.as_str().expect("an id");
    CallId(id.parse().expect("a UUID"))
}

#[tokio::test]
async fn a_saga_goes_on_after_a_resolution_whose_caller_has_hung_up() {
    let world = World::with(|tool| {
        let url = tool.url();
        format!("compensation = {{ tool = \"undo\" }}\n[tools.undo]\nurl = \"{url}\"\n{SOON}")
    })
    .await;
    let call = json!({ "args": {}, "saga_id": "G", "idempotency_key": "a" });
    world.tool.then(Act::Ok("{}"));
    world.post("/v1/tools/act/calls", call).await.expect_ok();
    world.tool.always(Act::Answer(422, "", b"{}"));
    let reason = json!({ "reason": "sold out" });
    world.post("/v1/sagas/G/abort", reason).await.expect_ok();
    let saga = async || {
        let gateway = &world.gateway.gateway;
        drop(work_on_sagas(gateway, gateway.now()).await);
        world.get("/v1/sagas/G").await
    };
    until("it is stuck, and told", async || {
        let saga = saga().await;
        saga.at("/state") == "stuck" && saga.at("/next_at").is_null()
    })
    .await;
    let stuck = id(&saga().await.at("/trouble/call_id"));

    let (operator, caller) = (&world.gateway.gateway.operator, Caller::open());
    let failed = gateway::CallAct::Resolve(Resolution::Failed);
    let act = operator.act_on_call(&caller, failed, stuck, "undone by hand", None);
    world.hang_up_at(Verb::PutDocument, act).await;
    until("it goes on", async || {
        saga().await.at("/state") == "compensated"
    })
    .await;
}

#[tokio::test]
async fn a_call_is_told_that_it_has_lost_its_lock_also_if_the_operator_has_hung_up() {
    let world = World::with(|_| "session = \"exclusive\"".into()).await;
    let call = json!({ "args": {}, "session_id": "S", "idempotency_key": "a" });
    world.tool.then(Act::ExecuteThenDrop);
    let unknown = world.post("/v1/tools/act/calls", call).await;
    let unknown = unknown.expect_problem("outcome-unknown").id();
    let sessions = &world.gateway.gateway.sessions;
    let (caller, session) = (
        Caller::open(),
        SessionId {
            tenant: "default".into(),
            id: "S".into(),
        },
    );
    let act = sessions.unlock_session(&caller, &session, "it hangs", None);
    world.hang_up_at(Verb::Replace, act).await;
    until("it is told", async || {
        let call = world.get(&format!("/v1/calls/{unknown}")).await;
        call.at("/events").to_string().contains("it hangs")
    })
    .await;
}
