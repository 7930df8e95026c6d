//! What every service of a gateway shares: the store, the clock, the tools and the way to the end.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clock::{self, Clock};
use super::error::{Error, must_be_admin, unavailable};
use super::measured::Measured;
use super::places::{Owner, Place, Places};
use super::tools::{ToolAt, Tools, tools_after};
use crate::budget::Budget;
use crate::core::caller::Caller;
use crate::core::document::{Document, Kind};
use crate::core::ledger::LIMITS;
use crate::core::pace::Pace;
use crate::core::position::Position;
use crate::core::record::{InstanceId, Record};
use crate::core::saga;
use crate::core::time::{after, signed};
use crate::core::tool::{OnUnknown, Tool};
use crate::metrics::Metrics;
use crate::store::{self, Found, Store};

/// Unreadable calls that are named in the log; more are only counted.
const MAX_UNREADABLE: usize = 1_000;

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

/// What every service of a gateway shares.
pub struct Base {
    pub(super) store: Arc<dyn Store>,
    pub metrics: Arc<Metrics>,
    /// This run of the process.
    pub(super) instance: InstanceId,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) tools: ArcSwap<Tools>,
    /// How often they were set.
    tool_changes: watch::Sender<u64>,
    /// Clients that listen for changes of the tools.
    listeners: Places,
    /// Every call's task, so that none is dropped in the middle.
    pub(super) tasks: TaskTracker,
    /// Readiness fails from now on; calls are still accepted.
    pub(super) leaving: CancellationToken,
    /// No new calls.
    pub(super) draining: CancellationToken,
    /// No more time for the running ones.
    pub(super) abandoned: CancellationToken,
    /// Stored calls that were said to be unreadable.
    unreadable: Mutex<HashSet<String>>,
}

impl Base {
    pub(super) fn new(
        store: Arc<dyn Store>,
        tools: Vec<ToolAt>,
        metrics: Arc<Metrics>,
        instance: InstanceId,
        limits: Limits,
    ) -> Self {
        Self {
            clock: Clock::start(store.clock_offset()),
            tools: ArcSwap::from_pointee(tools_after(&Tools::new(), tools)),
            tool_changes: watch::Sender::default(),
            listeners: Places::new(limits.max_waiting),
            store: Arc::new(Measured::new(store, metrics.clone())),
            metrics,
            instance,
            limits,
            tasks: TaskTracker::new(),
            leaving: CancellationToken::new(),
            draining: CancellationToken::new(),
            abandoned: CancellationToken::new(),
            unreadable: Mutex::default(),
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
    pub(super) fn is_out_of_time(&self) -> bool {
        self.store.is_shared() && self.clock.is_ahead(self.store.clock_offset())
    }

    /// What is done about sagas, as it was at the start.
    pub fn saga_policy(&self) -> &saga::Policy {
        &self.limits.sagas
    }

    /// The tools as they are now. Take them once: a moment later they may be others.
    pub fn tools(&self) -> Arc<Tools> {
        self.tools.load_full()
    }

    /// Tools or tokens were set anew.
    pub fn tell_listeners(&self) {
        self.tool_changes.send_modify(|times| *times += 1);
    }

    /// Changes of the tools from now on. `None`: this caller listens as often as it may.
    pub fn tool_changes(&self, caller: &Caller) -> Option<ToolChanges> {
        Some(ToolChanges {
            changes: self.tool_changes.subscribe(),
            draining: self.draining.clone(),
            check_every: self.limits.pace.check_listener_every,
            until: Instant::now() + self.limits.pace.listen_at_most,
            _place: self.listeners.take(Owner::of_caller(caller))?,
        })
    }

    /// The tools that a caller may call, by name; an administrator sees all of them.
    pub fn tools_of(&self, caller: &Caller) -> Vec<Arc<ToolAt>> {
        let tools = self.tools();
        let may_see = |at: &&Arc<ToolAt>| {
            !at.is_unlisted()
                && at.tool.proxy.is_none()
                && (caller.is_admin() || caller.may_call(&at.tool.name))
        };
        tools.values().filter(may_see).cloned().collect()
    }

    /// Adds a tool of an MCP server that no section names. False: the server has as many as it may.
    pub(super) fn add_unlisted(&self, added: ToolAt, upstream: &str, most: usize) -> bool {
        let added = Arc::new(added.seen_before(&self.tools()));
        let mut is_added = false;
        self.tools.rcu(|tools| {
            let of_same = tools
                .values()
                .filter(|at| at.is_unlisted_of(upstream))
                .count();
            is_added = of_same < most || tools.contains_key(&added.tool.name);
            let mut tools = Tools::clone(tools);
            if is_added {
                // Calls that run go on with what they began with.
                tools.insert(added.tool.name.clone(), added.clone());
            }
            tools
        });
        is_added
    }

    /// One tool as it is now.
    pub(super) fn tool_at(&self, name: &str) -> Option<Arc<ToolAt>> {
        self.tools.load().get(name).cloned()
    }

    /// The tool of a stored call as it is now.
    pub(super) fn tool_of(&self, record: &Record) -> Option<Arc<ToolAt>> {
        let at = self.tool_at(&record.intent.tool)?;
        at.for_record(record)
    }

    /// A tool's rules. One that is not configured here is treated as undeclared, it writes; what is done
    /// about its unknown calls is decided where it is configured.
    pub(super) fn policy_of(&self, record: &Record) -> Tool {
        let name = &record.intent.tool;
        let undeclared = || Tool {
            unknown: OnUnknown::Elsewhere,
            ..Tool::new(name)
        };
        self.tool_of(record)
            .map_or_else(undeclared, |at| at.tool.clone())
    }

    /// Until when others leave alone what this gateway works on, if that may take so long.
    pub(super) fn busy_until(&self, now: Timestamp, time: Duration) -> Timestamp {
        let span = signed(self.limits.pace.work_margin + time);
        after(now.max(self.now()), span)
    }

    /// For what only persons do, and rest on what is stored.
    pub(super) async fn admit_person(&self, caller: &Caller) -> Result<(), Error> {
        must_be_admin(caller)?;
        self.must_know_all_data().await
    }

    /// What a person does is refused while data is known to be lost: it may rest on what is not so any more, and be
    /// lost itself. (A tool may be paused, so that it is when the store opens.)
    pub(super) async fn must_know_all_data(&self) -> Result<(), Error> {
        let reasons = self.store.readiness().await.reasons;
        if reasons.iter().any(|reason| reason.code == store::LOST_DATA) {
            return Err(unavailable(()));
        }
        Ok(())
    }

    /// What could be read of what a search has found. What could not is counted each time, and said once.
    pub(super) fn readable<T>(
        &self,
        operation: &str,
        found: Result<Found<T>, store::Error>,
    ) -> Result<Vec<T>, store::Error> {
        let Found { calls, unreadable } = found?;
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
    pub(super) fn readable_page(
        &self,
        found: Result<(Found<Document>, Option<Position>), store::Error>,
    ) -> Result<(Vec<Document>, Option<Position>), store::Error> {
        let (found, next) = found?;
        Ok((self.readable("documents", Ok(found))?, next))
    }

    /// Whether nothing was said yet of what cannot be read of this id; from now on it was.
    pub(super) fn is_first_said(&self, id: &str) -> bool {
        let mut said = self
            .unreadable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        said.len() < MAX_UNREADABLE && said.insert(id.to_owned())
    }
}

/// Tells one client when tools or tokens were set anew.
pub struct ToolChanges {
    changes: watch::Receiver<u64>,
    draining: CancellationToken,
    check_every: Duration,
    until: Instant,
    _place: Place,
}

/// What happened while a client listened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Nothing, for a while.
    Nothing,
    /// Tools or tokens were set anew.
    Change,
    /// The gateway stops, or the client has listened for long enough.
    End,
}

impl ToolChanges {
    /// Waits for the next of these.
    pub async fn next(&mut self) -> Heard {
        tokio::select! {
            () = self.draining.cancelled() => Heard::End,
            () = sleep_until(self.until) => Heard::End,
            changed = self.changes.changed() => match changed {
                Ok(()) => Heard::Change,
                Err(_) => Heard::End,
            },
            () = sleep(self.check_every) => Heard::Nothing,
        }
    }
}

/// The documents of a kind in one state, page after page.
pub(super) struct Documents {
    kind: Kind,
    state: &'static str,
    before: Option<Position>,
    is_over: bool,
}

impl Documents {
    pub(super) fn new(kind: Kind, state: &'static str) -> Self {
        Self {
            kind,
            state,
            before: None,
            is_over: false,
        }
    }

    /// Those of the next page that can be read; `None`: that was all.
    pub(super) async fn next(
        &mut self,
        base: &Base,
    ) -> Result<Option<Vec<Document>>, store::Error> {
        if self.is_over {
            return Ok(None);
        }
        let (state, before) = (Some(self.state), self.before.as_ref());
        let found = base
            .store
            .documents(self.kind, None, state, before, LIMITS.1);
        let (found, next) = base.readable_page(found.await)?;
        self.is_over = next.is_none();
        self.before = next;
        Ok(Some(found))
    }
}
