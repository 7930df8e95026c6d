//! The use cases: they load, ask `core`, save and act. Every rule is in `core`, every status in `http`.

mod arrivals; // duplicates are counted
mod call; // the way of a call, on the side of the one who asks
mod clock; // the time that the rules go by
mod flight; // one run, and everyone who waits for it
mod health; // what is seen of a tool
mod hold; // getting hold of a key
mod large; // large requests are read off the workers
mod ledger; // what is known of calls
mod loss; // a store that has lost data
mod measured; // the time and the errors of the store's verbs
mod own; // calls that the gateway makes itself
mod pause; // tools that a person has paused
mod places; // places that tenants and tokens share
mod preview; // what a request would meet
mod recipes; // by which keys are made
pub mod reconcile; // the ledger, held against the systems behind the tools
pub mod recover; // calls whose owner is gone
mod refusals; // tokens that were refused
mod replay; // what a duplicate would get, and whether the tool would still say it
mod room; // memory for results, before their calls are claimed
mod run; // the other side: claim, dispatch, write down
mod sagas; // groups of calls: joined, ended, looked at
mod scrape; // what the ops doors show, asked of the store once a second at most
mod secret; // what fingerprints are made with
mod session; // one's turn in a session, and what persons do to one
mod similar; // a request that looks like an earlier call
mod throttle; // how fast a caller may be
mod tools; // the tools as they are configured now
mod trace; // spans
mod transition; // core is asked, and what it says is written
mod undo; // what a saga has done is undone
pub mod unknown; // unknown calls come to rest
mod webhook; // telling somebody outside

use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::arrivals::Arrivals;
pub use self::call::{Answer, Patience, Request, Stored, identify};
use self::clock::Clock;
pub use self::clock::local_time;
use self::flight::Flights;
pub use self::ledger::Query;
pub use self::loss::AFTER_LOSS;
use self::measured::Measured;
use self::pause::Pauses;
pub use self::pause::ToolState;
use self::places::{Lines, Places};
pub use self::preview::{Preview, Would};
pub use self::recipes::Error as RecipesError;
use self::recipes::Recipes;
use self::refusals::Refusals;
pub use self::refusals::TokenRefused;
pub use self::replay::Replay;
pub use self::sagas::{SagaAt, SagaQuery};
use self::scrape::Recent;
use self::secret::KnownSecrets;
use self::throttle::Throttle;
use self::tools::tools_after;
pub use self::tools::{ToolAt, Tools};
pub use self::trace::Arrival;
use crate::budget::Budget;
use crate::core::caller::Caller;
use crate::core::document::{Document, Place};
use crate::core::key;
use crate::core::pace::Pace;
use crate::core::record::Failure;
use crate::core::record::{AttemptId, CallId, InstanceId, Intent};
use crate::core::saga;
use crate::core::session::Refusal;
use crate::downstream::Downstream;
use crate::metrics::Metrics;
pub use crate::store::Reason;
use crate::store::{self, Found, Store};

/// The bounds of a gateway.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How long a duplicate waits for a running call unless it says so itself.
    pub join_wait: Duration,
    /// Calls under way at once; more are refused before they are claimed.
    pub max_running: usize,
    /// Requests that wait for a running call at once; more are told at once that it is in progress.
    pub max_waiting: usize,
    /// How long running calls may still take when the gateway stops.
    pub shutdown_grace: Duration,
    /// The share of the traces that is recorded, where a caller does not say whether it is; 0 to 1.
    pub sample: f64,
    pub sagas: saga::Policy,
    /// Not set by operators.
    pub pace: Pace,
    /// For requests and answers; connections have the same.
    pub memory: Budget,
}

/// The parts of a gateway, handed down; there are no globals.
pub struct Gateway {
    tools: ArcSwap<Tools>,
    store: Arc<dyn Store>,
    downstream: Downstream,
    pub metrics: Arc<Metrics>,
    /// This run of the process.
    instance: InstanceId,
    limits: Limits,
    clock: Clock,
    flights: Arc<Flights>,
    running: Places,
    /// Places for attempts that were given up and may still be answered.
    listening: Places,
    waiting: Places,
    lines: Lines,
    /// Places for large requests that are being read.
    reading: Semaphore,
    /// Places for sagas that are worked on.
    undoing: Arc<Semaphore>,
    reconciling: reconcile::Reconciling,
    /// Places for reconciliations that run.
    reconciliations: Semaphore,
    /// The tenants of those who read everything now.
    exports: Arc<Mutex<Vec<String>>>,
    arrivals: Arrivals,
    recent: Recent,
    throttle: Throttle,
    pauses: Pauses,
    recipes: Recipes,
    secrets: KnownSecrets,
    refusals: Refusals,
    /// Every call's task, so that none is dropped in mid-flight.
    tasks: TaskTracker,
    /// Stored calls that were said to be unreadable.
    unreadable: Mutex<HashSet<String>>,
    /// Others are to notice that it will stop.
    leaving: CancellationToken,
    /// No new calls.
    /// How many persons accept a loss of data here just now.
    acceptances: AtomicUsize,
    draining: CancellationToken,
    /// No more time for the running ones.
    abandoned: CancellationToken,
}

/// Why a request got no result. `http::problem` turns it into a status; nobody else does.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{kind}")]
pub struct Error {
    pub kind: ErrorKind,
    pub call_id: Option<CallId>,
    /// The call's key as the caller knows it.
    pub key: Option<String>,
    /// Whether this is the stored outcome of a call that the request did not run. `None`: it is no outcome.
    pub replayed: Option<bool>,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum ErrorKind {
    #[error("the request cannot be read: {0}")]
    InvalidRequest(String),
    #[error(transparent)]
    Key(key::Refused),
    #[error("this token may not do that")]
    Forbidden,
    #[error("there is no tool of this name")]
    UnknownTool,
    #[error("there is no such call")]
    UnknownCall,
    #[error("there is no such saga")]
    UnknownSaga,
    #[error("there is no such reconciliation")]
    UnknownReconciliation,
    #[error("the arguments do not fit the tool's schema")]
    InvalidArguments(Vec<(String, String)>),
    #[error("the call is still running")]
    CallInProgress { retry_after: Duration },
    #[error("the call has just changed")]
    JustChanged,
    #[error("nobody knows whether the call was executed")]
    OutcomeUnknown {
        /// When it is looked at next; `None`: not by itself.
        retry_after: Option<Duration>,
    },
    #[error("the key stands for another call")]
    KeyReused {
        call_id: CallId,
        reused: Reused,
        differs: Differs,
    },
    #[error("the key is too old")]
    KeyExpired {
        /// The earlier call has the same arguments.
        is_repetition: bool,
    },
    #[error("the tool rejected the call")]
    ToolRejected(Failure),
    #[error("the tool was not reached")]
    ToolUnreachable(Failure),
    #[error("the tool did not take the call")]
    ToolUnavailable(Failure),
    #[error("the tool keeps failing and is left alone for a while")]
    ToolResting { retry_after: Duration },
    #[error("the tool executed the call, but its result could not be read: {0}")]
    ResultUnavailable(String),
    #[error("to send the call once more may have an effect: {0}")]
    ReplayUnsafe(&'static str),
    #[error("not in this state: {0}")]
    WrongState(String),
    #[error("the session does not let it begin: {0}")]
    Refused(Refusal),
    #[error("the tool has seen a newer fencing token")]
    Fenced(Failure),
    #[error("too many calls are under way")]
    RateLimited,
    #[error("there is no memory for it or for its answer")]
    NoRoom,
    #[error("too many requests with this token")]
    TooFast { retry_after: Duration },
    #[error("too many new calls with this token")]
    TooManyNewKeys { retry_after: Duration },
    /// Other gateways may not know yet how the keys of this tool are made since its settings have changed.
    #[error("the settings of the tool's key have just changed")]
    KeysSettle { retry_after: Duration },
    #[error("the store is not available")]
    StoreUnavailable,
    #[error("the gateway is shutting down")]
    ShuttingDown,
    #[error("a person has paused the tool")]
    ToolPaused,
}

/// How a request differs from the call that stands under its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reused {
    /// It asks for something else, and a new key would stand for a new intent.
    Other,
    /// It asks for something else, and every key that comes with its business fields meets the same call.
    SameFields,
    /// It may be the same: the two cannot be compared.
    Unclear,
}

/// Where a request differs from the call that stands under its key: JSON Pointers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differs {
    pub places: Vec<String>,
    /// The token that made the call; those that may not read the call are told no places.
    made_by: String,
}

impl ErrorKind {
    /// As it is told to this caller.
    fn told_to(mut self, caller: &Caller, tool: &str) -> Self {
        if let Self::KeyReused { differs, .. } = &mut self
            && !caller.may_read_call(&caller.tenant, tool, &differs.made_by)
        {
            differs.places.clear();
        }
        self
    }

    /// What comes of a key that stands for a call of another saga, or of none.
    fn of_another_saga() -> Self {
        Self::WrongState(
            "the key stands for a call of another saga, with which it would be undone".into(),
        )
    }

    /// What the store's failure means to who asks: what cannot be read is no store that is unavailable.
    fn of_store(error: store::Error) -> Self {
        match error {
            error @ store::Error::Unreadable(_) => Self::WrongState(error.to_string()),
            store::Error::Refused(_) | store::Error::Ambiguous(_) => Self::StoreUnavailable,
        }
    }

    /// Whether this says how a call ended, for good or until it is sent again.
    fn is_outcome(&self) -> bool {
        matches!(
            self,
            Self::ToolRejected(_)
                | Self::Fenced(_)
                | Self::ToolUnreachable(_)
                | Self::ToolUnavailable(_)
                | Self::ResultUnavailable(_)
        )
    }

    /// Without a call or a key yet.
    pub fn alone(self) -> Error {
        Error {
            kind: self,
            call_id: None,
            key: None,
            replayed: None,
        }
    }
}

impl Gateway {
    pub fn new(
        store: Arc<dyn Store>,
        downstream: Downstream,
        tools: Vec<ToolAt>,
        metrics: Arc<Metrics>,
        instance: InstanceId,
        limits: Limits,
    ) -> Self {
        let clock = Clock::start(store.clock_offset());
        // There before the first one, which would be no increase otherwise.
        for why in TokenRefused::ALL {
            metrics.refused_tokens.with_label_values(&[why.as_str()]);
        }
        Self {
            tools: ArcSwap::from_pointee(tools_after(&Tools::new(), tools)),
            store: Arc::new(Measured::new(store, metrics.clone())),
            downstream,
            metrics,
            instance,
            running: Places::new(limits.max_running),
            waiting: Places::new(limits.max_waiting),
            lines: Lines::default(),
            reading: Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)),
            undoing: Arc::new(Semaphore::new(undo::AT_ONCE)),
            reconciling: reconcile::Reconciling::default(),
            reconciliations: Semaphore::new(reconcile::AT_ONCE),
            exports: Arc::default(),
            arrivals: Arrivals::default(),
            recent: Recent::default(),
            listening: Places::new(limits.max_running),
            limits,
            clock,
            flights: Arc::default(),
            throttle: Throttle::new(),
            pauses: Pauses::default(),
            recipes: Recipes::default(),
            secrets: KnownSecrets::default(),
            refusals: Refusals::default(),
            tasks: TaskTracker::new(),
            unreadable: Mutex::default(),
            leaving: CancellationToken::new(),
            acceptances: AtomicUsize::new(0),
            draining: CancellationToken::new(),
            abandoned: CancellationToken::new(),
        }
    }

    /// The time that the rules go by.
    pub fn now(&self) -> Timestamp {
        self.clock.now(self.store.clock_offset())
    }

    /// What the clock on the wall says: unlike [`now`](Self::now) it is believed, too, when it was set
    /// forward. For credentials, which must not outlive their time in a machine that slept.
    pub fn wall_time(&self) -> Timestamp {
        clock::wall(self.store.clock_offset())
    }

    /// Whether this gateway and others that share its store go by different times: then the one takes for
    /// over what the other still runs.
    fn is_out_of_time(&self) -> bool {
        self.store.is_shared() && self.clock.is_ahead(self.store.clock_offset())
    }

    /// Whether calls may be claimed, and if not, why.
    pub async fn readiness(&self) -> store::Readiness {
        let found = self.store.readiness().await;
        self.readiness_with(found).await
    }

    /// What was found of the store, and what this gateway has to add.
    async fn readiness_with(&self, mut readiness: store::Readiness) -> store::Readiness {
        if self.is_out_of_time() {
            let why = "its clock was set forward since this gateway started: restart it";
            readiness.reasons.push(Reason::new("clock", why));
        }
        if readiness.reasons.is_empty() {
            self.look_at_recipes(&mut readiness).await;
        } else if self.has_lost_secret() {
            readiness.reasons.extend(self.trouble_with_secret());
        }
        if self.leaving.is_cancelled() {
            let reason = Reason::new("shutting_down", "the gateway is shutting down");
            readiness.reasons.push(reason);
        }
        readiness.warnings.extend(self.pause_warnings());
        self.metrics.take_readiness(&readiness);
        readiness
    }

    /// It is not ready from now on, but calls are taken as before.
    pub fn leave(&self) {
        self.leaving.cancel();
    }

    /// New calls are refused from now on; those that run go on.
    pub fn drain(&self) {
        self.leave();
        self.draining.cancel();
    }

    /// Running calls are given up now: what may have been sent is recorded as unknown.
    pub fn give_up(&self) {
        self.abandoned.cancel();
    }

    /// Waits until no call runs, but no longer than the grace allows; then makes an end of those
    /// that are left, and says which. What may have been sent and was not answered is recorded as
    /// unknown.
    pub async fn shut_down(&self) {
        self.drain();
        self.tasks.close();
        self.end_calls().await;
        self.write_duplicates().await;
    }

    /// Writes down what has to outlive the process. Nothing can be asked any more.
    pub async fn close(&self) {
        self.write_duplicates().await;
        self.store.close().await;
    }

    async fn end_calls(&self) {
        tokio::select! {
            ended = tokio::time::timeout(self.limits.shutdown_grace, self.tasks.wait()) => {
                if ended.is_ok() {
                    return;
                }
                tracing::warn!(calls = self.tasks.len(), "the grace is over: running calls are given up");
                self.abandoned.cancel();
            }
            () = self.abandoned.cancelled() => {
                tracing::warn!(calls = self.tasks.len(), "running calls are given up");
            }
        }
        if tokio::time::timeout(LAST_WRITES, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::error!(
                calls = self.tasks.len(),
                "left behind as running; the next start will find them"
            );
        }
    }

    /// What could be read of what a search has found. What could not is counted each time, and said once.
    fn readable<T>(
        &self,
        operation: &str,
        found: Result<Found<T>, store::Error>,
    ) -> Result<Vec<T>, store::Error> {
        let Found { calls, unreadable } = self.counted(operation, found)?;
        self.metrics
            .store_errors
            .with_label_values(&[operation, "unreadable"])
            .inc_by(unreadable.len() as u64);
        for (call_id, why) in unreadable {
            if self.is_first_said(&call_id) {
                tracing::error!(
                    operation,
                    call_id,
                    why,
                    "a stored call cannot be read, or a document; it is passed over"
                );
            }
        }
        Ok(calls)
    }

    /// The documents of a page that could be read, and where the next page begins. Those that could not are counted
    /// and said as in [`readable`](Self::readable).
    fn readable_page(
        &self,
        found: Result<(Found<Document>, Option<Place>), store::Error>,
    ) -> Result<(Vec<Document>, Option<Place>), store::Error> {
        let (found, next) = self.counted("documents", found)?;
        Ok((self.readable("documents", Ok(found))?, next))
    }

    /// Whether nothing was said yet of what cannot be read of this id; from now on it was.
    fn is_first_said(&self, id: &str) -> bool {
        let mut said = self
            .unreadable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        said.len() < MAX_UNREADABLE && said.insert(id.to_owned())
    }

    /// Returns the result. Errors are counted and logged by the measured store.
    fn counted<T>(
        &self,
        _operation: &str,
        result: Result<T, store::Error>,
    ) -> Result<T, store::Error> {
        result
    }

    /// The same for an operation on behalf of one call.
    fn counted_for<T>(
        &self,
        _intent: &Intent,
        _operation: &str,
        result: Result<T, store::Error>,
    ) -> Result<T, store::Error> {
        result
    }
}

/// Unreadable calls that are named in the log; more are only counted.
const MAX_UNREADABLE: usize = 1_000;

/// How long the outcomes of abandoned calls may take to be written.
const LAST_WRITES: Duration = Duration::from_secs(3);

/// A new identity for this run of the process.
pub fn new_instance() -> InstanceId {
    InstanceId(Uuid::new_v4())
}

fn new_attempt() -> AttemptId {
    AttemptId(Uuid::new_v4())
}

/// A random number of 0..1.
pub fn jitter() -> f64 {
    let (high, _) = Uuid::new_v4().as_u64_pair();
    (high >> 32) as f64 / f64::from(u32::MAX)
}
