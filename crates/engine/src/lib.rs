//! The use cases: they load, ask `core`, save and act. Every rule is in `core`, every status in `http`.

mod acceptance; // how far the acceptance of a loss is
mod audit; // the acts of operators are written down
mod base; // what every service shares
mod calls; // the way of a call, and the only one that sends to tools
mod clock; // the time that the rules go by
mod error; // why a request gets no result
mod health; // the breaker, retries and latency of a tool
mod ids; // random names
mod lock; // locks that outlive a panic
mod measured; // the time and the errors of the store's verbs
pub mod metrics; // what is counted
mod operator; // what operators ask and do
mod pauses; // tools that an operator has paused
mod places; // permits that tenants and tokens share
mod proxies; // APIs that callers use as they are
mod recipes; // how keys are made
pub mod reconcile; // compares the ledger with the systems behind the tools
pub mod recovery; // lost owners, unknown calls, lost data
mod refusals; // tokens that were refused
mod sagas; // groups of calls that are completed or undone as a whole
mod samples; // the last hour of each tool
mod secret; // the secret of fingerprints
mod sign_ins; // sessions of operators in the console
mod status; // what the ops endpoints show; asks the store at most once a second
mod throttle; // how fast a caller may be
mod tools; // the tools as they are configured now
mod trace; // spans
mod transition; // asks core about calls, and writes its decision
mod upstreams; // MCP servers, and their tools that no section names
mod watches; // pages that stay current
mod webhook; // telling a system outside

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;

pub use self::acceptance::Accepted;
use self::acceptance::Progress;
pub use self::base::{Base, Heard, Limits, Query, ToolChanges};
pub use self::calls::{Answer, Answers, Patience, Preview, Request, Stored, ToolRequest, Would};
use self::calls::{Claimer, Duplicates, Engine, LargeRequests, ResultMemory, Sender, SharedRuns};
pub use self::calls::{identify, probe_url};
pub use self::clock::local_time;
pub use self::error::{Differs, Error, ErrorKind, Reused};
pub use self::ids::{jitter, new_instance};
pub use self::operator::{
    CallAct, DryRun, Line, LineOf, Many, Replay, Report, Reports, SessionFilter, Totals,
};
use self::operator::{Ledger, Operator, Sessions};
use self::pauses::Pauses;
pub use self::pauses::{ToolNow, ToolState};
use self::places::{Lines, Places};
use self::proxies::hosts;
pub use self::proxies::{Asked, Entry, Proxies, Through};
pub use self::recipes::Error as RecipesError;
use self::recipes::Recipes;
use self::reconcile::{AnomalyWorker, Reconciler, Reconciliation, by_name};
pub use self::recovery::AFTER_LOSS;
use self::recovery::{LossAcceptance, LostCalls, Rechecks, prune_all};
use self::refusals::Refusals;
pub use self::refusals::TokenRefused;
pub use self::sagas::{SagaAct, SagaAt};
use self::sagas::{SagaRegistry, SagaWorker, Sagas};
use self::samples::Samples;
pub use self::samples::{Rates, SAMPLE_EVERY};
use self::secret::KnownSecrets;
use self::sign_ins::SignIns;
use self::status::Status;
use self::throttle::Throttle;
use self::tools::tools_after;
pub use self::tools::{ToolAt, Tools};
pub use self::trace::RequestSpan;
pub use self::upstreams::{UpstreamAt, Upstreams};
pub use self::watches::Watch;
use self::watches::Watches;
use self::webhook::Notifier;
pub use crate::metrics::Door;
use crate::metrics::Metrics;
use oncegate_rules::record::InstanceId;
use oncegate_store::{self as store, Store};
pub use oncegate_store::{LOST_DATA, Reason};
use oncegate_tools::Downstream;
use oncegate_tools::outside::Webhook;
pub use oncegate_tools::{Client, Question, as_header, passed};

/// The parts of a gateway.
pub struct Parts {
    pub store: Arc<dyn Store>,
    pub downstream: Downstream,
    pub tools: Vec<ToolAt>,
    pub upstreams: Vec<UpstreamAt>,
    pub metrics: Arc<Metrics>,
    pub instance: InstanceId,
    pub limits: Limits,
    pub reconciliations: Vec<Reconciliation>,
    pub webhook: Option<Webhook>,
}

/// The services of a gateway. There are no globals.
pub struct Gateway {
    pub base: Arc<Base>,
    pub engine: Arc<Engine>,
    pub lost: Arc<LostCalls>,
    pub rechecks: Arc<Rechecks>,
    pub loss: Arc<LossAcceptance>,
    pub sagas: Arc<Sagas>,
    pub saga_worker: Arc<SagaWorker>,
    pub reconciler: Arc<Reconciler>,
    pub anomalies: Arc<AnomalyWorker>,
    pub operator: Arc<Operator>,
    pub sessions: Arc<Sessions>,
    pub upstreams: Upstreams,
    pub proxies: Proxies,
    pub ledger: Arc<Ledger>,
    pub pauses: Arc<Pauses>,
    pub recipes: Arc<Recipes>,
    pub status: Arc<Status>,
    pub throttle: Arc<Throttle>,
    pub refusals: Refusals,
    pub sign_ins: SignIns,
    pub watches: Watches,
    pub samples: Samples,
    pub duplicates: Arc<Duplicates>,
    downstream: Arc<Downstream>,
}

impl Gateway {
    /// Builds every service, each from those below it.
    pub fn new(parts: Parts) -> Self {
        let (downstream, metrics) = (Arc::new(parts.downstream), parts.metrics);
        let base = Arc::new(Base::new(
            parts.store,
            parts.tools,
            metrics.clone(),
            parts.instance,
            parts.limits,
        ));
        let max_running = base.limits.max_running;
        let throttle = Arc::new(Throttle::new(metrics.clone()));
        let secrets = Arc::new(KnownSecrets::new(base.clone()));
        let recipes = Arc::new(Recipes::new(base.clone(), secrets.clone()));
        let pauses = Arc::new(Pauses::new(base.clone()));
        let acceptance = Arc::<Progress>::default();
        let status = Arc::new(Status::new(
            base.clone(),
            recipes.clone(),
            secrets.clone(),
            pauses.clone(),
            acceptance.clone(),
        ));
        let duplicates = Arc::new(Duplicates::new(base.clone()));
        let registry = Arc::new(SagaRegistry::new(base.clone()));
        let runs = Arc::<SharedRuns>::default();
        let lost = Arc::new(LostCalls {
            base: base.clone(),
            sagas: registry.clone(),
            runs: runs.clone(),
        });
        let sender = Arc::new(Sender {
            base: base.clone(),
            downstream: downstream.clone(),
            pauses: pauses.clone(),
            sagas: registry.clone(),
        });
        let claims = Arc::new(Claimer {
            base: base.clone(),
            recipes: recipes.clone(),
            secrets: secrets.clone(),
            pauses: pauses.clone(),
            throttle: throttle.clone(),
            sender: sender.clone(),
            listening: Places::new(max_running),
        });
        let waiting = Places::new(base.limits.max_waiting);

        let memory = Arc::new(ResultMemory {
            budget: base.limits.memory.clone(),
            max_result: downstream.max_result(),
        });
        let engine = Arc::new(Engine {
            recipes: recipes.clone(),
            secrets: secrets.clone(),
            claims,
            sender: sender.clone(),
            lost: lost.clone(),
            running: Places::new(max_running),
            sagas: registry.clone(),
            pauses: pauses.clone(),
            duplicates: duplicates.clone(),
            runs,
            waiting,
            lines: Lines::default(),
            memory: memory.clone(),
            large: LargeRequests::new(),
            base: base.clone(),
        });
        let notifier = Arc::new(Notifier {
            downstream: downstream.clone(),
            webhook: parts.webhook,
        });
        let saga_worker = Arc::new(SagaWorker::new(
            registry.clone(),
            engine.clone(),
            notifier.clone(),
        ));
        let sagas = Arc::new(Sagas {
            base: base.clone(),
            registry: registry.clone(),
            worker: saga_worker.clone(),
        });
        let anomalies = Arc::new(AnomalyWorker {
            base: base.clone(),
            downstream: downstream.clone(),
            engine: engine.clone(),
            sender: sender.clone(),
            registry: registry.clone(),
            sagas: sagas.clone(),
            notifier,
            all: by_name(parts.reconciliations),
        });
        let ledger = Arc::new(Ledger::new(base.clone()));
        let rechecks = Arc::new(Rechecks {
            base: base.clone(),
            pauses: pauses.clone(),
            sender: sender.clone(),
        });
        let operator = Arc::new(Operator {
            base: base.clone(),
            pauses: pauses.clone(),
            status: status.clone(),
            sender,
            ledger: ledger.clone(),
            sagas: sagas.clone(),
            rechecks: rechecks.clone(),
        });
        Self {
            rechecks,
            operator,
            loss: Arc::new(LossAcceptance {
                base: base.clone(),
                secrets: secrets.clone(),
                sagas: registry,
                progress: acceptance,
                accepting: Arc::default(),
            }),
            reconciler: Arc::new(Reconciler::new(anomalies.clone())),
            anomalies,
            sessions: Arc::new(Sessions { base: base.clone() }),
            sign_ins: SignIns::new(base.clone(), secrets),
            watches: Watches::new(base.clone()),
            samples: Samples::new(base.clone()),
            refusals: Refusals::new(metrics),
            proxies: Proxies {
                hosts: ArcSwap::from_pointee(hosts(&base.tools())),
                base: base.clone(),
                engine: engine.clone(),
                downstream: downstream.clone(),
                pauses: pauses.clone(),
            },
            upstreams: Upstreams::new(
                base.clone(),
                downstream.clone(),
                (memory, engine.running.clone()),
                recipes.clone(),
                parts.upstreams,
            ),
            base,
            engine,
            lost,
            sagas,
            saga_worker,
            ledger,
            pauses,
            recipes,
            status,
            throttle,
            duplicates,
            downstream,
        }
    }

    /// The time of the rules.
    pub fn now(&self) -> Timestamp {
        self.base.now()
    }

    /// Deletes every record whose retention is over.
    ///
    /// # Errors
    /// The store failed; what was deleted stays so.
    pub async fn prune_all(&self) -> Result<(), store::Error> {
        prune_all(&self.base, &self.status).await
    }

    /// Replaces the tools.
    ///
    /// Running calls keep the tools with which they began. Calls of a tool that is gone are held as they are.
    ///
    /// # Errors
    /// A client for one of the tools cannot be built; then nothing has changed.
    pub fn set_tools(&self, tools: Vec<ToolAt>, upstreams: Vec<UpstreamAt>) -> Result<(), String> {
        let of_tools = tools.iter().map(|at| &at.endpoint);
        let endpoints = of_tools.chain(upstreams.iter().map(|at| &at.endpoint));
        self.downstream.serve(endpoints)?;
        let tools = tools_after(&self.base.tools(), tools);
        self.upstreams.set(upstreams, tools);
        self.proxies.renew();
        Ok(())
    }

    /// Pre-drain: readiness fails, but calls are accepted as before.
    pub fn leave(&self) {
        self.base.leaving.cancel();
    }

    /// Refuses new calls from now on; running ones go on.
    pub fn drain(&self) {
        self.leave();
        self.base.draining.cancel();
    }

    /// Gives up running calls: a call that may have been sent becomes unknown.
    pub fn give_up(&self) {
        self.base.abandoned.cancel();
    }

    /// Waits until no call runs, at most for the shutdown grace; then gives up the rest.
    ///
    /// A call that may have been sent and was not answered becomes unknown.
    pub async fn shut_down(&self) {
        self.drain();
        self.base.tasks.close();
        self.end_calls().await;
        self.duplicates.write_duplicates().await;
    }

    /// Writes the state that has to outlive the process. No request may arrive after that.
    pub async fn close(&self) {
        self.duplicates.write_duplicates().await;
        self.downstream.close().await;
        self.base.store.close().await;
    }

    async fn end_calls(&self) {
        tokio::select! {
            biased;
            ended = tokio::time::timeout(self.base.limits.shutdown_grace, self.base.tasks.wait()) => {
                if ended.is_ok() {
                    return;
                }
                tracing::warn!(calls = self.base.tasks.len(), "the shutdown grace has passed: running calls are given up");
                self.base.abandoned.cancel();
            }
            () = self.base.abandoned.cancelled() => {
                tracing::warn!(calls = self.base.tasks.len(), "running calls are given up");
            }
        }
        let ended = tokio::time::timeout(LAST_WRITES, self.base.tasks.wait()).await;
        if ended.is_err() {
            tracing::error!(
                calls = self.base.tasks.len(),
                "left behind as running; the next start will find them"
            );
        }
    }
}

/// How long the outcomes of abandoned calls may take to be written.
const LAST_WRITES: Duration = Duration::from_secs(3);
