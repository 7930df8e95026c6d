//! All metrics, declared in one place.
//!
//! Labels come from the configuration and from enums only: no key, session, user or tenant is ever
//! a label.

mod tools; // the series of tools

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use prometheus::{
    Encoder, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    TextEncoder, register_histogram_vec_with_registry, register_histogram_with_registry,
    register_int_counter_vec_with_registry, register_int_counter_with_registry,
    register_int_gauge_vec_with_registry, register_int_gauge_with_registry,
};

use oncegate_rules::tool::Tool;
use oncegate_rules::words::words;
use oncegate_store::{Census, Durability, Readiness, Space};

// The buckets of these two are few, because each tool has them: see `tools`.

/// Seconds: a replay out of memory, a quick tool, a slow one, the default timeout's half, the default deadline.
const CALL_BUCKETS: [f64; 5] = [0.01, 0.1, 1.0, 5.0, 30.0];
/// Seconds: from a quick tool to the default timeout and the default deadline.
const ATTEMPT_BUCKETS: [f64; 5] = [0.1, 0.5, 2.5, 10.0, 30.0];
/// Seconds: two parallel calls of a model, an SDK's retry, a timed-out agent, a resumed run.
const GAP_BUCKETS: [f64; 10] = [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 600.0, 3600.0];

/// Seconds: an approver at the screen, one who is called, one in another time zone.
const WAIT_BUCKETS: [f64; 9] = [
    5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0, 604800.0,
];

/// Seconds: runs of a reconciliation, from a handful of calls to a hundred thousand.
const RUN_BUCKETS: [f64; 8] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0];

/// Seconds: from a look into memory to a Redis that does not answer.
const STORE_BUCKETS: [f64; 13] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

const ERRORS: [&str; 3] = ["refused", "ambiguous", "unreadable"];

words! {
    /// How one request for a call was answered.
    pub enum ArrivalKind {
        /// It ran the call.
        First = "first",
        /// It was answered with a stored result.
        Replayed = "replayed",
        /// It waited for a running call and got its answer.
        Joined = "joined",
        /// It got neither: the outcome is unknown, or not there yet.
        Suppressed = "suppressed",
        /// It was refused.
        Refused = "refused",
        /// Its call waits for approval.
        Asked = "asked",
    }
}

words! {
    /// The protocol of a request.
    #[derive(Default)]
    pub enum Interface {
        #[default]
        Http = "http",
        Mcp = "mcp",
        Proxy = "proxy",
    }
}

/// Makes and registers a metric of one kind.
macro_rules! registered {
    (IntCounter, $registry:ident, $name:literal, $help:literal, []) => {
        register_int_counter_with_registry!($name, $help, $registry)
    };
    (IntGauge, $registry:ident, $name:literal, $help:literal, []) => {
        register_int_gauge_with_registry!($name, $help, $registry)
    };
    (IntCounterVec, $registry:ident, $name:literal, $help:literal, $labels:tt) => {
        register_int_counter_vec_with_registry!($name, $help, &$labels, $registry)
    };
    (IntGaugeVec, $registry:ident, $name:literal, $help:literal, $labels:tt) => {
        register_int_gauge_vec_with_registry!($name, $help, &$labels, $registry)
    };
    (Histogram, $registry:ident, $name:literal, $help:literal, [], $buckets:ident) => {
        register_histogram_with_registry!($name, $help, $buckets.to_vec(), $registry)
    };
    (HistogramVec, $registry:ident, $name:literal, $help:literal, $labels:tt, $buckets:ident) => {
        register_histogram_vec_with_registry!($name, $help, &$labels, $buckets.to_vec(), $registry)
    };
}

macro_rules! metrics {
    ($($vis:vis $field:ident: $kind:ident = $name:literal, [$($label:literal),*] $(, $buckets:ident)? => $help:literal;)*) => {
        /// The metrics of one gateway.
        pub struct Metrics {
            registry: Registry,
            scraping: Mutex<()>,
            $(#[doc = $help] $vis $field: $kind,)*
        }

        impl Metrics {
            /// All metrics, at zero.
            ///
            /// # Panics
            /// Never: the names are valid and different, which every test that starts a gateway shows.
            #[expect(clippy::new_without_default, reason = "a registry is made on purpose")]
            pub fn new() -> Self {
                let registry = Registry::new();
                #[cfg(target_os = "linux")]
                drop(registry.register(Box::new(
                    prometheus::process_collector::ProcessCollector::for_self(),
                )));
                $(let $field = registered!($kind, registry, $name, $help, [$($label),*] $(, $buckets)?)
                    .expect("a valid name of its own");)*
                Self { registry, scraping: Mutex::new(()), $($field),* }
            }
        }
    };
}

metrics! {
    pub tasks: IntCounterVec = "oncegate_tasks_total", ["tool"]
        => "Answers to MCP clients that a call is a task, which they ask for later.";
    pub task_requests: IntCounterVec = "oncegate_task_requests_total", ["method", "result"]
        => "Requests of MCP clients for a task, by what they were answered.";
    pub arrivals: IntCounterVec = "oncegate_arrivals_total", ["tool", "kind"]
        => "Requests for a call, by how they were answered.";
    pub requests: IntCounterVec = "oncegate_requests_total", ["tool", "door"]
        => "Requests for a call, by the protocol that they came by.";
    pub attempts: IntCounterVec = "oncegate_attempts_total", ["tool", "outcome"]
        => "Dispatches to a tool, by what they proved.";
    pub first_arrival_failures: IntCounterVec = "oncegate_first_arrival_failures_total", ["tool", "reason"]
        => "First arrivals that got no result, by reason.";
    pub call_duration: HistogramVec = "oncegate_call_duration_seconds", ["tool"], CALL_BUCKETS
        => "From a request for a call to its answer, without requests that were refused.";
    pub attempt_duration: HistogramVec = "oncegate_attempt_duration_seconds", ["tool"], ATTEMPT_BUCKETS
        => "From a dispatch to the tool's answer, or to giving up on it.";
    pub duplicate_gap: Histogram = "oncegate_duplicate_gap_seconds", [], GAP_BUCKETS
        => "From a call's first arrival to a duplicate: tells an agent's repeat from an SDK's.";
    pub stale_owners: IntCounter = "oncegate_stale_owners_total", []
        => "Completions refused because their attempt did not own the call any more.";
    pub late_executions: IntCounterVec = "oncegate_late_executions_total", ["tool"]
        => "Attempts that were executed, as it turned out after their call was settled as not executed.";
    pub store_errors: IntCounterVec = "oncegate_store_errors_total", ["operation", "kind"]
        => "Store operations that failed, by whether they surely did nothing.";
    store_operation_duration: HistogramVec = "oncegate_store_operation_duration_seconds", ["operation"], STORE_BUCKETS
        => "How long the store took, whether it did what it was asked for or not.";
    pub denied: IntCounterVec = "oncegate_barred_total", ["tool", "reason"]
        => "Calls that were not started: frozen or busy session, stale or unknown token, budget, similar call.";
    pub similar: IntCounterVec = "oncegate_similar_total", ["tool"]
        => "Calls that ran, and may have had an effect, although an earlier call looked the same and was not confirmed.";
    pub compensations: IntCounterVec = "oncegate_compensations_total", ["tool", "result"]
        => "Calls that were to be compensated, by the result.";
    pub throttled: IntCounterVec = "oncegate_throttled_total", ["token", "limit"]
        => "Requests refused because their token asks too fast, by the limit that was reached.";
    pub refused_tokens: IntCounterVec = "oncegate_refused_tokens_total", ["reason"]
        => "Requests refused because of their token: missing, unknown, expired, or its scopes do not cover them.";
    pub refusals: IntCounterVec = "oncegate_refusals_total", ["problem", "door"]
        => "Requests that were answered with a problem, by its slug and by the protocol that they came by.";
    pub pass_through: IntCounterVec = "oncegate_passed_through_total", ["tool"]
        => "Reads that went to their tool although the store could not be asked.";
    pub proxied: IntCounterVec = "oncegate_passed_on_total", ["tool", "kind"]
        => "Requests that a proxy forwarded without making calls of them: reads, and writes without a key where unkeyed is pass.";
    pub uncounted_duplicates: IntCounter = "oncegate_uncounted_duplicates_total", []
        => "Duplicates that the ledger does not count, because too many waited to be written down.";
    pub log_lines_dropped: IntCounter = "oncegate_log_lines_dropped_total", []
        => "Log lines that were not written, because standard error was not read fast enough.";
    sagas: IntGaugeVec = "oncegate_sagas", ["state"]
        => "Sagas, by state.";
    stuck_sagas: IntGauge = "oncegate_stuck_sagas", []
        => "Sagas that need an operator.";
    pub frozen_sessions: IntGauge = "oncegate_frozen_sessions", []
        => "Sessions that an operator has frozen, and not thawed.";
    store_ready: IntGauge = "oncegate_store_ready", []
        => "1 if calls may be claimed.";
    store_durability: IntGaugeVec = "oncegate_store_durability", ["class"]
        => "1 for the durability class of the store.";
    store_reasons: IntGaugeVec = "oncegate_store_reasons", ["kind", "reason"]
        => "1 for each reason why nothing is claimed, and for each warning.";
    store_lost_writes: IntCounter = "oncegate_store_lost_claims_total", []
        => "Writes of this gateway that the store has lost.";
    store_file: IntGauge = "oncegate_store_file_bytes", []
        => "The SQLite file without its log; 0 over other stores.";
    store_free: IntGauge = "oncegate_store_free_bytes", []
        => "Free pages of the SQLite file, which new calls use first.";
    store_disk_free: IntGauge = "oncegate_store_disk_free_bytes", []
        => "What the disk of the SQLite file still has for the gateway; -1 where that is not known.";
    store_checked: IntGauge = "oncegate_store_checked_percent", []
        => "How much of the SQLite file this process has checked for damage; 100 over other stores.";
    store_checked_at: IntGauge = "oncegate_store_checked_timestamp_seconds", []
        => "When the last check of the whole SQLite file found no damage, in seconds since 1970; 0 if none has.";
    token_expires: IntGaugeVec = "oncegate_token_expires_timestamp_seconds", ["token"]
        => "When the first token of this name expires, for those that do.";
    certificate_expires: IntGauge = "oncegate_certificate_expires_timestamp_seconds", []
        => "When the certificate of this gateway expires; 0: it has none.";
    build_info: IntGaugeVec = "oncegate_build_info", ["version"]
        => "1, with the version of this gateway.";
    config_hash: IntGauge = "oncegate_config_hash", []
        => "The first 48 bits of a digest of the configuration in force: gateways with the same file have the same number.";
    reloads: IntCounterVec = "oncegate_config_reloads_total", ["result"]
        => "Reloads of the configuration (SIGHUP), by whether it was accepted.";
    reload_succeeded: IntGauge = "oncegate_config_last_reload_successful", []
        => "0 if the last reload was refused: the configuration in force is not the file's.";
    configured_at: IntGauge = "oncegate_config_last_success_timestamp_seconds", []
        => "When the configuration in force was accepted, at the start or by a reload; in seconds since 1970.";
    pub connections: IntGauge = "oncegate_connections", []
        => "Open connections of clients.";
    memory_budget: IntGauge = "oncegate_memory_budget_bytes", []
        => "Bytes that connections, requests and answers may hold: server.max_memory.";
    memory_held: IntGauge = "oncegate_memory_held_bytes", []
        => "Bytes that connections, requests and answers hold, or that are reserved for them.";
    memory_refused: IntCounter = "oncegate_memory_refused_total", []
        => "Connections, requests and answers that were refused for want of memory.";
    breaker_open: IntGaugeVec = "oncegate_breaker_open", ["tool"]
        => "1 while the circuit breaker of a tool is open or half-open at this gateway.";
    tool_paused: IntGaugeVec = "oncegate_tool_paused", ["tool"]
        => "1 while an operator has paused a tool.";
    running: IntGaugeVec = "oncegate_running_calls", ["tool"]
        => "Calls that are running.";
    unknown: IntGaugeVec = "oncegate_unknown_calls", ["tool"]
        => "Calls whose outcome is unknown.";
    proposals: IntGaugeVec = "oncegate_proposals", ["tool"]
        => "Calls that wait for approval, or that are approved and have not begun.";
    pub oldest_proposal: IntGauge = "oncegate_oldest_proposal_seconds", []
        => "How long the oldest call waits for approval; 0 if none does.";
    pub approvals: IntCounterVec = "oncegate_approvals_total", ["tool", "outcome"]
        => "Ends of waiting for approval, by outcome.";
    pub approval_wait: Histogram = "oncegate_approval_wait_seconds", [], WAIT_BUCKETS
        => "From an ask to its approval.";
    pub webhook_events: IntCounterVec = "oncegate_webhook_events_total", ["event", "result"]
        => "Tries to send an event to the webhook, by whether it was taken.";
    pub anomalies: IntCounterVec = "oncegate_anomalies_total", ["reconciliation", "kind"]
        => "New disagreements between ledger and sources, by kind.";
    reconciliation_runs: IntCounterVec = "oncegate_reconciliation_runs_total", ["reconciliation", "result"]
        => "Runs of a reconciliation, by whether all sources could be read.";
    reconciliation_duration: HistogramVec = "oncegate_reconciliation_duration_seconds", ["reconciliation"], RUN_BUCKETS
        => "How long a run of a reconciliation took.";
    reconciled_at: IntGaugeVec = "oncegate_reconciliation_last_success_timestamp_seconds", ["reconciliation"]
        => "When a run could last read all sources; in seconds since 1970.";
    reconciliation_failed_at: IntGaugeVec = "oncegate_reconciliation_last_failure_timestamp_seconds", ["reconciliation"]
        => "When a run last could not; in seconds since 1970, 0 if none has failed since the start.";
}

impl Metrics {
    /// Notes the version of this gateway.
    pub fn built(&self, version: &str) {
        self.build_info.with_label_values(&[version]).set(1);
    }

    /// Notes the configuration of the start, with its number.
    pub fn configured(&self, at: i64, hash: i64) {
        self.config_hash.set(hash);
        for result in ["success", "failure"] {
            self.reloads.with_label_values(&[result]).inc_by(0);
        }
        self.reload_succeeded.set(1);
        self.configured_at.set(at);
    }

    /// Notes when tokens and certificate expire, in seconds since 1970.
    pub fn expire<'a>(
        &self,
        tokens: impl Iterator<Item = (&'a str, i64)>,
        certificate: Option<i64>,
    ) {
        let mut first = BTreeMap::<&str, i64>::new();
        for (name, at) in tokens {
            let first = first.entry(name).or_insert(at);
            *first = at.min(*first);
        }
        self.token_expires.reset();
        for (name, at) in first {
            self.token_expires.with_label_values(&[name]).set(at);
        }
        self.certificate_expires.set(certificate.unwrap_or(0));
    }

    /// Notes an accepted reload, with the number of its configuration.
    pub fn reloaded(&self, at: i64, hash: i64) {
        self.config_hash.set(hash);
        self.reload_succeeded.set(1);
        self.reloads.with_label_values(&["success"]).inc();
        self.configured_at.set(at);
    }

    /// Notes a refused reload.
    pub fn reload_failed(&self) {
        self.reload_succeeded.set(0);
        self.reloads.with_label_values(&["failure"]).inc();
    }

    /// Notes how many seconds a store operation took.
    pub fn took(&self, operation: &str, seconds: f64) {
        self.store_operation_duration
            .with_label_values(&[operation])
            .observe(seconds);
    }

    /// Makes the series of a store operation exist at zero.
    pub fn expect_verb(&self, operation: &str) {
        self.store_operation_duration
            .with_label_values(&[operation]);
        for kind in ERRORS {
            self.store_errors.with_label_values(&[operation, kind]);
        }
    }

    /// The text exposition, with the store's present counts.
    ///
    /// Its version is 0.0.4.
    pub fn scrape<'a>(
        &self,
        tools: impl Iterator<Item = &'a Tool> + Clone,
        census: Option<&[Census]>,
    ) -> String {
        let _one_at_a_time = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
        for tool in tools.clone() {
            self.expect(tool);
        }
        if let Some(census) = census {
            self.take(tools, census);
        }
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics could not be encoded");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Takes over what the store says of its readiness.
    pub fn take_readiness(&self, readiness: &Readiness) {
        let _one_at_a_time = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
        self.store_ready
            .set(i64::from(readiness.reasons.is_empty()));
        for class in Durability::ALL {
            let found = readiness.durability == Some(class);
            self.store_durability
                .with_label_values(&[class.as_str()])
                .set(found.into());
        }
        self.store_reasons.reset();
        for (kind, reasons) in [
            ("reason", &readiness.reasons),
            ("warning", &readiness.warnings),
        ] {
            for reason in reasons {
                self.store_reasons
                    .with_label_values(&[kind, reason.code])
                    .set(1);
            }
        }
        let news = readiness
            .lost_writes
            .saturating_sub(self.store_lost_writes.get());
        self.store_lost_writes.inc_by(news);
    }

    /// Takes over the room that the store takes; without any, its disk counts as not known.
    pub fn take_space(&self, space: Option<Space>) {
        let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.store_file
            .set(space.map_or(0, |space| number(space.file)));
        self.store_free
            .set(space.map_or(0, |space| number(space.free)));
        let disk_free = space.and_then(|space| space.disk_free);
        self.store_disk_free.set(disk_free.map_or(-1, number));
        self.store_checked
            .set(space.map_or(100, |space| space.checked.into()));
        let checked_at = space.and_then(|space| space.checked_at);
        self.store_checked_at
            .set(checked_at.map_or(0, Timestamp::as_second));
    }

    /// Takes over use and refusals of the memory budget.
    pub fn take_memory(&self, total: usize, held: usize, refused: u64) {
        let number = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.memory_budget.set(number(total));
        self.memory_held.set(number(held));
        let news = refused.saturating_sub(self.memory_refused.get());
        self.memory_refused.inc_by(news);
    }

    /// Makes the series of a reconciliation exist at zero.
    pub fn has_reconciliation(&self, name: &str, kinds: &[&str]) {
        for kind in kinds {
            self.anomalies.with_label_values(&[name, *kind]);
        }
        for result in ["done", "failed"] {
            self.reconciliation_runs.with_label_values(&[name, result]);
        }
        for ended_at in [&self.reconciled_at, &self.reconciliation_failed_at] {
            ended_at.with_label_values(&[name]);
        }
    }

    /// Notes the end of a reconciliation's run.
    pub fn reconciled(&self, name: &str, is_done: bool, took: std::time::Duration, at: i64) {
        let result = if is_done { "done" } else { "failed" };
        self.reconciliation_runs
            .with_label_values(&[name, result])
            .inc();
        self.reconciliation_duration
            .with_label_values(&[name])
            .observe(took.as_secs_f64());
        let ended_at = if is_done {
            &self.reconciled_at
        } else {
            &self.reconciliation_failed_at
        };
        ended_at.with_label_values(&[name]).set(at);
    }

    /// Takes over how many sagas are in each state.
    pub fn take_sagas<'a>(&self, counts: impl Iterator<Item = (&'a str, u64)>, stuck: u64) {
        let _one_at_a_time = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        for (state, count) in counts {
            self.sagas.with_label_values(&[state]).set(number(count));
        }
        self.stuck_sagas.set(number(stuck));
    }
}
