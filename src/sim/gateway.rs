//! Gateways that begin, crash, stall and begin again over one store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::life::{AGENT, Life};
use super::net::Net;
use super::plan;
use super::store::SimStore;
use super::world::World;
use crate::app::{WingServices, loops, routes, take_up};
use crate::config::{Config, Environment};
use crate::downstream::Downstream;
use crate::gateway::{self, Gateway, Parts};
use crate::http::{Http, MaxBody, Ops, Tokens};
use crate::metrics::Metrics;

const LARGEST: usize = 1 << 20;
/// How long a request for a call or an act may take, at most.
const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway that serves.
#[derive(Clone)]
struct Running {
    life: Arc<Life>,
    gateway: Arc<Gateway>,
    router: Router,
    /// Dropped with the last of the endpoint: then they end.
    _loops: Arc<JoinSet<()>>,
}

/// All gateways of a world.
pub(super) struct Gateways {
    pub(super) world: Arc<World>,
    slots: Mutex<Vec<Slot>>,
}

/// Where one gateway after the other serves.
struct Slot {
    lives: u64,
    life: Arc<Life>,
    /// None while it begins.
    running: Option<Running>,
}

/// What came back from an endpoint.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
}

impl Answer {
    /// The name of the problem; empty for a success.
    pub(super) fn problem(&self) -> &str {
        let said = self.body["type"].as_str().unwrap_or_default();
        said.trim_start_matches("/problems/")
    }
}

impl Gateways {
    pub(super) fn begin(world: &Arc<World>) -> Arc<Self> {
        let slots = (0..world.plan.gateways).map(|slot| Slot {
            lives: 1,
            life: Life::begin(name_of(slot, 1), world.clone()),
            running: None,
        });
        let all = Arc::new(Self {
            slots: Mutex::new(slots.collect()),
            world: world.clone(),
        });
        for slot in 0..world.plan.gateways {
            let life = all.slots()[slot].life.clone();
            drop(tokio::spawn(all.clone().open(slot, life)));
        }
        all
    }

    /// Builds a gateway as `app` does, and serves.
    async fn open(self: Arc<Self>, slot: usize, life: Arc<Life>) {
        let config = Config::read(
            &plan::config(self.world.plan.broken),
            &Environment::default(),
        );
        let config = config.unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
        let mut config = config.at_pace(plan::timings());
        let gateway = Arc::new(Gateway::new(Parts {
            store: Arc::new(SimStore::of(life.clone())),
            downstream: Downstream::over(Arc::new(Net::of(life.clone())), LARGEST),
            tools: config.tools,
            metrics: Arc::new(Metrics::new()),
            instance: gateway::new_instance(),
            limits: config.limits,
            webhook: None,
        }));
        take_up(&gateway, true).await.ok();
        let wings = WingServices::new(&gateway, Vec::new(), &mut config.wings);
        let loops = loops::begin(&gateway, &wings, plan::timings(), &CancellationToken::new());
        let http = Http {
            gateway: gateway.clone(),
            tokens: Tokens::default(),
            max_body: MaxBody {
                bytes: LARGEST,
                time: Duration::from_secs(10),
            },
            ops: Ops::CodesOnly,
            is_tls: false,
        };
        self.world.say(format!("{} serves", life.name));
        let running = Running {
            life,
            gateway,
            router: routes::router(http, &wings),
            _loops: Arc::new(loops),
        };
        self.slots()[slot].running = Some(running);
    }

    /// Ends a gateway and begins another in its place. `in_order`: it is told to stop before.
    pub(super) async fn restart(self: &Arc<Self>, slot: usize, in_order: bool, pause_ms: u64) {
        let (old, running) = {
            let mut slots = self.slots();
            (slots[slot].life.clone(), slots[slot].running.take())
        };
        if in_order && let Some(running) = &running {
            self.world.say(format!("{} stops", old.name));
            self.world.count("stops in order");
            let stopping = async {
                running.gateway.shut_down().await;
                running.gateway.close().await;
            };
            timeout(Duration::from_secs(5), stopping).await.ok();
        }
        old.over.cancel();
        drop(running);
        self.world.say(format!("{} has ended", old.name));
        self.world.count("ends of gateways");
        self.world
            .turns
            .wait(format!("begin {}", old.name), pause_ms)
            .await;
        let life = {
            let mut slots = self.slots();
            let slot_now = &mut slots[slot];
            slot_now.lives += 1;
            slot_now.life = Life::begin(name_of(slot, slot_now.lives), self.world.clone());
            slot_now.life.clone()
        };
        drop(tokio::spawn(self.clone().open(slot, life)));
    }

    /// Lets a gateway stall: whatever it does now takes so much longer.
    pub(super) fn stall(&self, slot: usize, for_ms: u64) {
        let life = self.slots()[slot].life.clone();
        self.world
            .say(format!("{} stalls for {for_ms} ms", life.name));
        self.world.count("stalls");
        life.stall(self.world.now() + for_ms);
    }

    /// Asks one of the gateways. `None`: it is not there, or there was no answer.
    pub(super) async fn ask(
        &self,
        agent: u64,
        slot: usize,
        path: &str,
        body: &Value,
        wait_s: Option<u64>,
    ) -> Option<Answer> {
        let wait = wait_s.map(|wait_s| format!("wait={wait_s}"));
        let headers = wait.iter().map(|wait| ("prefer", &**wait));
        let headers: Vec<_> = headers.collect();
        self.ask_with(agent, slot, path, body, &headers).await
    }

    /// The same, with these headers.
    pub(super) async fn ask_with(
        &self,
        agent: u64,
        slot: usize,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Option<Answer> {
        let name = format!("agent {agent} asks {path}");
        let mut dice = self.world.dice(&name);
        self.world.turns.wait(name.clone(), dice.below(5)).await;
        let running = self.slots()[slot].running.clone()?;
        running.life.awake_or_over(&name).await?;
        let mut request = Request::post(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_string())).ok()?;
        let over = running.life.over.clone();
        let asking = AGENT.scope(agent, async {
            let response = running.router.oneshot(request).await.ok()?;
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await.ok()?.to_bytes();
            Some(Answer {
                status,
                body: serde_json::from_slice(&bytes).unwrap_or_default(),
            })
        });
        let answer = tokio::select! {
            biased;
            () = over.cancelled() => None,
            answer = timeout(PATIENCE, asking) => answer.ok()?,
        }?;
        self.world.turns.wait(name.clone(), dice.below(5)).await;
        running.life.awake_or_over(&name).await?;
        Some(answer)
    }

    /// Whether each of them serves.
    pub(super) fn are_there(&self) -> bool {
        self.slots().iter().all(|slot| slot.running.is_some())
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name_of(slot: usize, life: u64) -> String {
    format!("{}{life}", ["A", "B"][slot])
}
