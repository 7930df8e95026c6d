//! The parts that every service of a gateway shares: store, clock, tools and shutdown.

pub(crate) mod clock; // the time that the rules go by
pub(crate) mod decided; // calls whose wait for approval has begun or ended
pub(crate) mod documents; // stored documents, page after page
pub(crate) mod ids; // random names
pub(crate) mod lock; // locks that outlive a panic
pub(crate) mod measured; // the time and the errors of the store's verbs

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use reqwest::Url;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::clock::Clock;
use self::decided::Decided;
use self::lock::lock;
use self::measured::Measured;
use super::error::{Error, must_be_admin, tenant_to_list, unavailable};
use super::tools::{ToolAt, Tools, tools_after};
use crate::callers::permits::{FairPermit, FairPermits, Owner};
use crate::metrics::Metrics;
use oncegate_budget::{Budget, Lent};
use oncegate_rules::approval;
use oncegate_rules::call::Now;
use oncegate_rules::caller::Caller;
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::position::Position;
use oncegate_rules::record::{InstanceId, Record};
use oncegate_rules::saga;
use oncegate_rules::time::{after, signed};
use oncegate_rules::timings::Timings;
use oncegate_rules::tool::{OnUnknown, Tool};
use oncegate_store::{
    self as store, DocumentQuery, Found, Remembering, ReplayCache, Store, Tracked,
};

/// Unreadable calls that the log names; more are only counted.
const MAX_UNREADABLE: usize = 1_000;

/// The bounds of a gateway.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How long a duplicate waits for a running call, unless its request says otherwise.
    pub join_wait: Duration,
    /// Most calls under way at once; more are refused before they are claimed.
    pub max_running: usize,
    /// Most requests that wait for a running call; more get "in progress" at once.
    pub max_waiting: usize,
    /// How long running calls may still take when the gateway stops.
    pub shutdown_grace: Duration,
    /// The share of recorded traces, 0 to 1, where the caller does not decide.
    pub sample: f64,
    pub sagas: saga::Policy,
    pub approvals: approval::Limits,
    /// The base of the links to the console in notices; `None`: they have none.
    pub approval_console: Option<Url>,
    /// How long the audit keeps acts of operators.
    pub audit_retention: Duration,
    /// Not set by operators.
    pub timings: Timings,
    /// The budget for requests and answers; connections share it.
    pub memory: Budget,
    /// Most bytes of it that remembered calls may fill.
    pub max_remembered: usize,
}

#[cfg(test)]
impl Limits {
    /// Room for one call, and no time.
    pub(super) fn least() -> Self {
        Self {
            join_wait: Duration::ZERO,
            max_running: 1,
            max_waiting: 1,
            shutdown_grace: Duration::ZERO,
            sample: 0.0,
            sagas: saga::Policy::default(),
            approvals: approval::Limits::default(),
            approval_console: None,
            audit_retention: Duration::ZERO,
            timings: Timings::default(),
            memory: Budget::new(1 << 20),
            max_remembered: 0,
        }
    }
}

/// The parts that every service of a gateway shares.
pub struct Base {
    pub store: Arc<dyn Store>,
    /// Succeeded calls in memory. `None`: the store does not tell what other processes write to it.
    pub(super) replay_cache: Option<Arc<ReplayCache>>,
    pub metrics: Arc<Metrics>,
    /// This run of the process.
    pub instance: InstanceId,
    pub limits: Limits,
    pub(super) clock: Clock,
    pub(super) tools: ArcSwap<Tools>,
    /// The tenants of the configured tokens.
    tenants: ArcSwap<BTreeSet<String>>,
    /// How often the tools were swapped.
    tool_changes: watch::Sender<u64>,
    /// Clients that listen for changes of the tools.
    listeners: FairPermits,
    /// Every call's task, so that shutdown can wait for them.
    pub(super) tasks: TaskTracker,
    /// Pre-drain: readiness fails, calls are still accepted.
    pub(super) leaving: CancellationToken,
    /// No new calls.
    pub draining: CancellationToken,
    /// No more time for the running ones.
    pub(super) abandoned: CancellationToken,
    /// Unreadable stored calls that the log has named.
    unreadable: Mutex<HashSet<String>>,
    pub(super) decided: Decided,
}

/// Lends memory of the budget to the remembered calls, which are forgotten when a charge needs it.
struct Borrower(Arc<ReplayCache>);

impl Lent for Borrower {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn give_back(&self) {
        self.0.clear();
    }
}

/// Adds a memory of succeeded calls to a store that no other process writes, or that tells what others write.
fn remembering(
    store: Arc<dyn Store>,
    limits: &Limits,
) -> (Arc<dyn Store>, Option<Arc<ReplayCache>>) {
    let (bytes, is_shared) = (limits.max_remembered, store.is_shared());
    let replay_cache = Arc::new(match is_shared {
        true => ReplayCache::of_shared_store(bytes),
        false => ReplayCache::new(bytes),
    });
    let budget = limits.memory.clone();
    let has_memory = Arc::new(move |bytes| budget.may_lend(bytes));
    let store: Arc<dyn Store> = if !is_shared {
        Arc::new(Remembering::new(store, replay_cache.clone(), has_memory))
    } else if store.track(&replay_cache) {
        Arc::new(Tracked::new(store, replay_cache.clone(), has_memory))
    } else {
        return (store, None);
    };
    limits.memory.lend(Arc::new(Borrower(replay_cache.clone())));
    (store, Some(replay_cache))
}

impl Base {
    pub(super) fn new(
        store: Arc<dyn Store>,
        tools: Vec<ToolAt>,
        metrics: Arc<Metrics>,
        instance: InstanceId,
        limits: Limits,
    ) -> Self {
        let (store, replay_cache) = remembering(store, &limits);
        Self {
            replay_cache,
            clock: Clock::start(store.clock_offset()),
            tools: ArcSwap::from_pointee(tools_after(&Tools::new(), tools)),
            tenants: ArcSwap::default(),
            tool_changes: watch::Sender::default(),
            listeners: FairPermits::new(limits.max_waiting),
            store: Arc::new(Measured::new(store, metrics.clone())),
            metrics,
            instance,
            limits,
            tasks: TaskTracker::new(),
            leaving: CancellationToken::new(),
            draining: CancellationToken::new(),
            abandoned: CancellationToken::new(),
            unreadable: Mutex::default(),
            decided: Decided::default(),
        }
    }

    /// The time of the rules. It stands still while the machine is suspended.
    pub fn now(&self) -> Timestamp {
        self.clock.now(self.store.clock_offset())
    }

    /// The time of an event that happens now.
    pub(super) fn time(&self) -> Now {
        self.with_sleep(self.now())
    }

    /// The time of an event that happened at [`now`](Self::now).
    pub(super) fn with_sleep(&self, at: Timestamp) -> Now {
        let slept = self.clock.behind(self.store.clock_offset());
        Now { at, slept }
    }

    /// The wall clock. Unlike [`now`](Self::now) it counts even if it was set forward.
    ///
    /// For credentials, which must not outlive their time in a machine that slept.
    pub fn wall_time(&self) -> Timestamp {
        clock::wall(self.store.clock_offset())
    }

    /// Whether this gateway's time differs from that of the gateways that share its store.
    ///
    /// A gateway would then take over calls that another one still runs.
    pub fn is_out_of_time(&self) -> bool {
        self.store.is_shared() && self.clock.is_ahead(self.store.clock_offset())
    }

    /// The settings for sagas, as they were at the start.
    pub fn saga_policy(&self) -> &saga::Policy {
        &self.limits.sagas
    }

    /// The tools as they are now. A request takes them once: a reload may swap them at any time.
    pub fn tools(&self) -> Arc<Tools> {
        self.tools.load_full()
    }

    /// Tells listening clients that tools or tokens have changed.
    pub fn tell_listeners(&self) {
        self.tool_changes.send_modify(|times| *times += 1);
    }

    /// A receiver for changes of the tools. `None`: this caller has too many receivers.
    pub fn tool_changes(&self, caller: &Caller) -> Option<ToolChanges> {
        Some(ToolChanges {
            changes: self.tool_changes.subscribe(),
            draining: self.draining.clone(),
            check_every: self.limits.timings.check_listener_every,
            until: Instant::now() + self.limits.timings.listen_at_most,
            _permit: self.listeners.take(Owner::of_caller(caller))?,
        })
    }

    /// The tools that a caller may call, by name; an administrator sees all of them.
    pub fn tools_of(&self, caller: &Caller) -> Vec<Arc<ToolAt>> {
        let tools = self.tools();
        let may_see = |at: &&Arc<ToolAt>| {
            !at.is_unlisted()
                && !at.tool.is_proxy()
                && (caller.is_admin() || caller.may_call(&at.tool.name))
        };
        tools.values().filter(may_see).cloned().collect()
    }

    /// Adds a tool of an MCP server that no section names. False: the server has too many.
    pub fn add_unlisted(&self, added: ToolAt, upstream: &str, most: usize) -> bool {
        let added = Arc::new(added.seen_before(&self.tools()));
        let mut is_added = false;
        self.tools.rcu(|tools| {
            let of_same = tools.values().filter(|at| at.is_unlisted_of(upstream));
            is_added = of_same.count() < most || tools.contains_key(&added.tool.name);
            let mut tools = Tools::clone(tools);
            if is_added {
                // Running calls keep the tool with which they began.
                tools.insert(added.tool.name.clone(), added.clone());
            }
            tools
        });
        is_added
    }

    /// One tool as it is now.
    pub fn tool_at(&self, name: &str) -> Option<Arc<ToolAt>> {
        self.tools.load().get(name).cloned()
    }

    /// The tool of a stored call, as it is now.
    pub fn tool_of(&self, record: &Record) -> Option<Arc<ToolAt>> {
        let at = self.tool_at(&record.intent.tool)?;
        at.for_record(record)
    }

    /// Whether the tool of a stored call can be asked about it.
    pub fn can_ask_about(&self, record: &Record) -> bool {
        // A list has calls without their arguments, by which a proxy's rule is found.
        let at = self
            .tool_of(record)
            .or_else(|| self.tool_at(&record.intent.tool));
        at.is_some_and(|at| at.has_probe())
    }

    /// The rules of a stored call's tool.
    ///
    /// A tool that is not configured here counts as a write. A gateway that has the tool decides about its unknown
    /// calls.
    pub fn policy_of(&self, record: &Record) -> Tool {
        let name = &record.intent.tool;
        let undeclared = || Tool {
            unknown: OnUnknown::Elsewhere,
            ..Tool::new(name)
        };
        self.tool_of(record)
            .map_or_else(undeclared, |at| at.tool.clone())
    }

    /// Until when other gateways leave this gateway's work alone, if the work takes `time`.
    pub fn busy_until(&self, now: Timestamp, time: Duration) -> Timestamp {
        let span = signed(self.limits.timings.work_margin + time);
        after(now.max(self.now()), span)
    }

    /// Runs an act of an operator in a task of its own, so that a caller who hangs up does not leave it half done.
    ///
    /// # Errors
    /// Those of the act.
    pub async fn to_its_end<T: Send + 'static>(
        &self,
        act: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let acting = self.tasks.spawn(act);
        acting.await.unwrap_or_else(|_| Err(unavailable(())))
    }

    /// The tenants of the configured tokens.
    pub fn tenants(&self) -> Arc<BTreeSet<String>> {
        self.tenants.load_full()
    }

    /// Replaces the tenants of the configured tokens.
    pub fn set_tenants(&self, tenants: BTreeSet<String>) {
        self.tenants.store(Arc::new(tenants));
    }

    /// Refuses an act of a caller who is not an administrator, and any act while data is known to be lost.
    pub(super) async fn admit_operator(&self, caller: &Caller) -> Result<(), Error> {
        must_be_admin(caller)?;
        self.must_know_all_data().await
    }

    /// Refuses acts of operators while data is known to be lost.
    ///
    /// Such an act may rest on outdated data, and may be lost itself. (A tool may be paused, so that it is paused when
    /// the store opens.)
    pub(super) async fn must_know_all_data(&self) -> Result<(), Error> {
        let reasons = self.store.readiness().await.reasons;
        if reasons.iter().any(|reason| reason.code == store::LOST_DATA) {
            return Err(unavailable(()));
        }
        Ok(())
    }

    /// The readable part of a search's result.
    ///
    /// Unreadable calls are counted each time, and logged once.
    ///
    /// # Errors
    /// That of the search.
    pub fn readable<T>(
        &self,
        operation: &str,
        found: Result<Found<T>, store::Error>,
    ) -> Result<Vec<T>, store::Error> {
        let Found { calls, unreadable } = found?;
        let errors = &self.metrics.store_errors;
        let errors = errors.with_label_values(&[operation, "unreadable"]);
        errors.inc_by(unreadable.len() as u64);
        for (call_id, why) in unreadable {
            if self.is_not_logged_yet(&call_id) {
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

    /// The readable documents of a page, and where the next page begins.
    ///
    /// Unreadable ones are counted and logged as in [`readable`](Self::readable).
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn readable_page(
        &self,
        query: &DocumentQuery,
    ) -> Result<(Vec<Document>, Option<Position>), store::Error> {
        let (found, next) = self.store.documents(query).await?;
        Ok((self.readable("documents", Ok(found))?, next))
    }

    /// The documents that a caller asks for, and the position of the next page. `word`: the state of a filter's value.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, or the store does not answer.
    pub(super) async fn list_documents<F: Copy>(
        &self,
        kind: Kind,
        caller: &Caller,
        query: &Query<Option<F>>,
        word: fn(F) -> &'static str,
    ) -> Result<(Vec<Document>, Option<Position>), Error> {
        let query = DocumentQuery {
            kind,
            tenant: tenant_to_list(caller, query.tenant.as_ref())?,
            state: query.filter.map(|value| word(value).to_owned()),
            before: query.before,
            limit: query.limit,
        };
        self.readable_page(&query).await.map_err(unavailable)
    }

    /// Postpones a document that this gateway cannot work on, so that it delays no other.
    pub async fn put_aside(&self, document: Document, until: Timestamp) {
        let later = Document {
            version: document.version + 1,
            due_at: Some(until),
            ..document
        };
        drop(self.store.put_document(&later).await);
    }

    /// Whether this unreadable id was not logged before. Remembers it as logged.
    pub fn is_not_logged_yet(&self, id: &str) -> bool {
        let mut logged = lock(&self.unreadable);
        logged.len() < MAX_UNREADABLE && logged.insert(id.to_owned())
    }
}

/// A question about a list, newest first, page after page.
#[derive(Debug, Clone)]
pub struct Query<F> {
    /// `None`: the caller's own tenant, or every tenant for an administrator.
    pub tenant: Option<String>,
    pub filter: F,
    /// Only items before this position.
    pub before: Option<Position>,
    pub limit: u32,
}

impl<F> Query<F> {
    /// A question about the newest items.
    pub fn newest(tenant: Option<String>, filter: F, limit: u32) -> Self {
        Self {
            tenant,
            filter,
            before: None,
            limit,
        }
    }
}

/// Tells one client that tools or tokens have changed.
pub struct ToolChanges {
    changes: watch::Receiver<u64>,
    draining: CancellationToken,
    check_every: Duration,
    until: Instant,
    _permit: FairPermit,
}

/// The result of listening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Nothing has changed for a while.
    Nothing,
    /// Tools or tokens have changed.
    Change,
    /// The gateway stops, or the client has listened for long enough.
    End,
}

impl ToolChanges {
    /// Waits for a change, for the end, or for a bounded time.
    pub async fn next(&mut self) -> Heard {
        tokio::select! {
            () = self.draining.cancelled() => Heard::End,
            () = sleep_until(self.until) => Heard::End,
            changed = self.changes.changed() => changed.map_or(Heard::End, |()| Heard::Change),
            () = sleep(self.check_every) => Heard::Nothing,
        }
    }
}
