//! The use cases: they load, ask the rules, save and act. Every rule is in `oncegate_rules`, every status in `http`.
//!
//! What counts as the same call does not depend on how its arguments are written:
//!
//! ```
//! use oncegate_engine::{Request, identify};
//! use oncegate_rules::tool::Tool;
//!
//! let key = |args: &str| {
//!     let request = Request { tool: "ship".into(), args: args.into(), ..Request::default() };
//!     identify(&Tool::new("ship"), &request).map(|chosen| chosen.key).expect("a key")
//! };
//! assert_eq!(key(r#"{"order": 7, "to": "x"}"#), key(r#"{"to":"x","order":7}"#));
//! assert_ne!(key(r#"{"order": 7}"#), key(r#"{"order": 8}"#));
//! ```

mod adopt; // an effect without a call becomes a call
mod approvals; // calls that wait for an approver
mod audit; // the acts of operators are written down
mod base; // what every service shares
mod callers; // how much a caller gets, and who is refused
mod calls; // the way of a call, and the only one that sends to tools
mod error; // why a request gets no result
mod key_schemes; // how keys are made
pub mod metrics; // what is counted
mod notices; // the webhook is told of calls that wait for approval
mod operator; // what operators ask and do
pub mod recovery; // lost owners, unknown calls, lost data
mod sagas; // groups of calls that are completed or undone as a whole
mod secret; // the secret of fingerprints
mod status; // what the ops endpoints show; asks the store at most once a second
mod tools; // the tools as they are configured now
mod trace; // spans
mod transition; // asks the rules about calls, and writes what they decide
mod webhook; // telling a system outside
pub mod wings; // what wings build on

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use self::approvals::Held;
pub use self::approvals::{
    Approvals, BuiltRequest, Look as ApprovalLook, Proposals, Shown as ShownProposal,
    State as ApprovalState,
};
pub use self::base::clock::local_time;
pub use self::base::ids::{jitter, new_instance};
pub use self::base::{Base, Heard, Limits, Query, ToolChanges};
pub use self::callers::permits::FairPermit;
use self::callers::permits::{FairPermits, Lines};
use self::callers::refusals::Refusals;
pub use self::callers::refusals::{Refused, TokenRefused};
use self::callers::throttle::Throttle;
pub use self::calls::{
    Answer, Answers, AskFor, Asked, Engine, Patience, Preview, Proxied, Request, Stored,
    ToolRequest, Would,
};
use self::calls::{Claimer, Duplicates, LargeRequests, ResultMemory, Sender, SharedRuns};
pub use self::calls::{identify, probe_url};
pub use self::error::{Differs, Error, ErrorKind, Reused, Unheard};
pub use self::key_schemes::{Error as KeySchemesError, KeySchemes};
use self::notices::Notices;
pub use self::operator::{
    CallAct, DryRun, Erasures, FeedEvent, FeedPage, FeedQuery, Line, LineOf, Many, Replay, Report,
    Reports, SessionFilter, Totals,
};
use self::operator::{Ledger, Operator, Sessions};
pub use self::recovery::AFTER_LOSS;
pub use self::recovery::RetentionCounts;
pub use self::recovery::acceptance::Accepted;
use self::recovery::acceptance::Progress;
use self::recovery::{Expiry, LossAcceptance, LostCalls, Rechecks, prune_all};
pub use self::sagas::{SagaAct, SagaAt};
use self::sagas::{SagaRegistry, SagaWorker, Sagas};
use self::secret::KnownSecrets;
use self::status::Status;
pub use self::tools::pauses::{Pauses, ToolNow, ToolState};
use self::tools::tools_after;
pub use self::tools::{ToolAt, Tools};
pub use self::trace::RequestSpan;
use self::webhook::Notifier;
pub use crate::metrics::Interface;
use crate::metrics::Metrics;
use oncegate_rules::audit::{Act, Action, Outcome, Target};
use oncegate_rules::caller::Caller;
use oncegate_rules::record::InstanceId;
pub use oncegate_store::repeats::Repeats;
use oncegate_store::{self as store, Store};
pub use oncegate_store::{LOST_DATA, Reason};
use oncegate_tools::outside::Webhook;
pub use oncegate_tools::{Client, Question, as_header, forwardable};
use oncegate_tools::{Downstream, Endpoint};

/// The parts of a gateway.
pub struct Parts {
    pub store: Arc<dyn Store>,
    pub downstream: Downstream,
    pub tools: Vec<ToolAt>,
    pub metrics: Arc<Metrics>,
    pub instance: InstanceId,
    pub limits: Limits,
    pub webhook: Option<Webhook>,
}

/// The services of a gateway. There are no globals.
pub struct Gateway {
    pub base: Arc<Base>,
    pub engine: Arc<Engine>,
    pub lost: Arc<LostCalls>,
    pub rechecks: Arc<Rechecks>,
    pub approvals: Arc<Approvals>,
    pub notices: Arc<Notices>,
    pub loss: Arc<LossAcceptance>,
    pub sagas: Arc<Sagas>,
    pub saga_worker: Arc<SagaWorker>,
    pub operator: Arc<Operator>,
    pub sessions: Arc<Sessions>,
    pub ledger: Arc<Ledger>,
    pub erasures: Arc<Erasures>,
    pub expiry: Arc<Expiry>,
    pub pauses: Arc<Pauses>,
    pub key_schemes: Arc<KeySchemes>,
    pub status: Arc<Status>,
    pub throttle: Arc<Throttle>,
    pub refusals: Refusals,
    pub secrets: Arc<KnownSecrets>,
    pub duplicates: Arc<Duplicates>,
    pub registry: Arc<SagaRegistry>,
    pub sender: Arc<Sender>,
    pub notifier: Arc<Notifier>,
    pub downstream: Arc<Downstream>,
}

impl Gateway {
    /// Keeps a reload of the configuration in the audit: what has changed, or why it was refused.
    pub async fn record_reload(&self, what: &str, is_done: bool) {
        // A gateway of 0.2.0 that shares the store cannot read such an act: it would log an error at each list.
        if !self.base.store.takes_new_acts() {
            return;
        }
        let operator = Caller::operator();
        let act = Act::new(&operator, Action::Reload, "", Target::Configuration, what);
        let outcome = if is_done {
            Outcome::Done
        } else {
            Outcome::Refused
        };
        audit::made(&self.base, &act, outcome).await;
    }

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
        let key_schemes = Arc::new(KeySchemes::new(base.clone(), secrets.clone()));
        let pauses = Arc::new(Pauses::new(base.clone()));
        let acceptance = Arc::<Progress>::default();
        let status = Arc::new(Status::new(
            base.clone(),
            key_schemes.clone(),
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
            followed: Arc::default(),
            key_schemes: key_schemes.clone(),
        });
        let notifier = Notifier::new(base.clone(), downstream.clone(), parts.webhook);
        let notifier = Arc::new(notifier);
        let notices = Arc::new(Notices {
            base: base.clone(),
            notifier: notifier.clone(),
        });
        let claims = Arc::new(Claimer {
            base: base.clone(),
            key_schemes: key_schemes.clone(),
            secrets: secrets.clone(),
            pauses: pauses.clone(),
            throttle: throttle.clone(),
            sender: sender.clone(),
            notices: notices.clone(),
            listening: FairPermits::new(max_running),
        });
        let waiting = FairPermits::new(base.limits.max_waiting);

        let memory = Arc::new(ResultMemory {
            budget: base.limits.memory.clone(),
            max_result: downstream.max_result(),
        });
        let engine = Arc::new(Engine {
            key_schemes: key_schemes.clone(),
            secrets: secrets.clone(),
            claims,
            sender: sender.clone(),
            lost: lost.clone(),
            running: FairPermits::new(max_running),
            sagas: registry.clone(),
            pauses: pauses.clone(),
            duplicates: duplicates.clone(),
            runs,
            waiting,
            lines: Lines::default(),
            memory,
            large: LargeRequests::new(),
            base: base.clone(),
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
        let ledger = Arc::new(Ledger::new(base.clone()));
        let rechecks = Arc::new(Rechecks {
            base: base.clone(),
            pauses: pauses.clone(),
            sender: sender.clone(),
            secrets: secrets.clone(),
        });
        let operator = Arc::new(Operator {
            base: base.clone(),
            pauses: pauses.clone(),
            status: status.clone(),
            sender: sender.clone(),
            ledger: ledger.clone(),
            sagas: sagas.clone(),
            rechecks: rechecks.clone(),
        });
        let approvals = Arc::new(Approvals {
            base: base.clone(),
            engine: engine.clone(),
            pauses: pauses.clone(),
            held: Held::default(),
        });
        Self {
            rechecks,
            approvals,
            notices,
            operator,
            loss: Arc::new(LossAcceptance {
                base: base.clone(),
                secrets: secrets.clone(),
                sagas: registry.clone(),
                progress: acceptance,
                accepting: Arc::default(),
            }),
            sessions: Arc::new(Sessions { base: base.clone() }),
            erasures: Arc::new(Erasures { base: base.clone() }),
            expiry: Arc::new(Expiry::new(base.clone(), status.clone())),
            secrets,
            refusals: Refusals::new(metrics),
            base,
            engine,
            lost,
            sagas,
            saga_worker,
            ledger,
            pauses,
            key_schemes,
            status,
            throttle,
            duplicates,
            registry,
            sender,
            notifier,
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
    /// `further`: endpoints of systems that are not tools themselves.
    ///
    /// # Errors
    /// A client for one of the tools cannot be built; then nothing has changed.
    pub fn set_tools(&self, tools: Vec<ToolAt>, further: &[Endpoint]) -> Result<(), String> {
        let of_tools = tools.iter().map(|at| &at.endpoint);
        self.downstream.serve(of_tools.chain(further))?;
        let tools = tools_after(&self.base.tools(), tools);
        self.base.tools.store(Arc::new(tools));
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
