//! Everything that is counted, declared in one place. Labels come from the configuration and from
//! enums only: no key, session, user or tenant is ever a label.

use std::sync::{Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::core::outcome::Outcome;
use crate::core::record::FailureKind;
use crate::core::session::Refusal;
use crate::store::{Census, Durability, Readiness};

/// Seconds: from a replay out of memory to a tool that takes its whole deadline.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];
/// Seconds: two parallel calls of a model, an SDK's retry, a timed-out agent, a resumed run.
const GAP_BUCKETS: [f64; 10] = [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 600.0, 3600.0];

/// Seconds: from a handful of calls to a hundred thousand.
const RUN_BUCKETS: [f64; 8] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0];

/// Seconds: from a look into memory to a Redis that is given up.
const STORE_BUCKETS: [f64; 13] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

/// The words of labels, apart from arrivals': each series of a configured tool is there before anything is
/// counted. One that began with its first event would not show that event as an increase.
/// A first arrival without a result that did not fail: nobody knows, or the result could not be read.
const NO_RESULT: [&str; 2] = ["unknown", "result_unavailable"];
const UNDONE: [&str; 5] = ["compensated", "empty", "failed", "skipped", "stuck"];
const ERRORS: [&str; 3] = ["refused", "ambiguous", "unreadable"];

/// What became of one request for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It ran the call.
    First,
    /// It was answered with a stored result.
    Replayed,
    /// It waited for a running call and got its answer.
    Joined,
    /// It was neither run nor answered with a result: the outcome is unknown, or not there yet.
    Suppressed,
    /// It was refused.
    Refused,
}

impl Arrival {
    const ALL: [Self; 5] = [
        Self::First,
        Self::Replayed,
        Self::Joined,
        Self::Suppressed,
        Self::Refused,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Replayed => "replayed",
            Self::Joined => "joined",
            Self::Suppressed => "suppressed",
            Self::Refused => "refused",
        }
    }
}

/// The metrics of one gateway.
pub struct Metrics {
    registry: Registry,
    pub arrivals: IntCounterVec,
    pub attempts: IntCounterVec,
    pub first_arrival_failures: IntCounterVec,
    pub call_duration: HistogramVec,
    pub attempt_duration: HistogramVec,
    pub duplicate_gap: HistogramVec,
    pub stale_owners: IntCounter,
    /// Attempts that were executed although they count as not executed.
    pub late_executions: IntCounterVec,
    pub store_errors: IntCounterVec,
    store_operation_duration: HistogramVec,
    /// Calls that their session did not let begin.
    pub denied: IntCounterVec,
    /// Calls that were to be undone.
    pub compensations: IntCounterVec,
    /// Requests that came too early.
    pub throttled: IntCounterVec,
    /// By reason.
    pub refused_tokens: IntCounterVec,
    /// Reads that went to their tool although the store was not there.
    pub passed_through: IntCounterVec,
    /// Duplicates that are missing in the ledger, because there was no room to remember them.
    pub uncounted_duplicates: IntCounter,
    /// Log lines that were not written, because standard error was not read fast enough.
    pub log_lines_dropped: IntCounter,
    sagas: IntGaugeVec,
    stuck_sagas: IntGauge,
    store_ready: IntGauge,
    store_durability: IntGaugeVec,
    store_reasons: IntGaugeVec,
    store_lost_writes: IntCounter,
    reloads: IntCounterVec,
    reload_succeeded: IntGauge,
    configured_at: IntGauge,
    /// Connections of clients; whoever takes one counts it.
    pub connections: IntGauge,
    memory_budget: IntGauge,
    memory_held: IntGauge,
    memory_refused: IntCounter,
    breaker_open: IntGaugeVec,
    tool_paused: IntGaugeVec,
    running: IntGaugeVec,
    unknown: IntGaugeVec,
    pub anomalies: IntCounterVec,
    reconciliation_runs: IntCounterVec,
    reconciliation_duration: HistogramVec,
    reconciled_at: IntGaugeVec,
    scraping: Mutex<()>,
}

impl Metrics {
    /// Nothing is counted yet.
    ///
    /// # Panics
    /// Never: the names below are valid and different, which every test that starts a gateway shows.
    #[expect(clippy::new_without_default, reason = "a registry is made on purpose")]
    pub fn new() -> Self {
        let registry = Registry::new();
        #[cfg(target_os = "linux")]
        drop(registry.register(Box::new(
            prometheus::process_collector::ProcessCollector::for_self(),
        )));
        let counters = |name: &str, help: &str, labels: &[&str]| {
            register(
                &registry,
                valid(IntCounterVec::new(Opts::new(name, help), labels)),
            )
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            register(
                &registry,
                valid(IntGaugeVec::new(Opts::new(name, help), labels)),
            )
        };
        let histograms = |name: &str, help: &str, labels: &[&str], buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            register(&registry, valid(HistogramVec::new(options, labels)))
        };
        Self {
            arrivals: counters(
                "oncegate_arrivals_total",
                "Requests for a call, by what became of them.",
                &["tool", "kind"],
            ),
            attempts: counters(
                "oncegate_attempts_total",
                "Dispatches to a tool, by what they proved.",
                &["tool", "outcome"],
            ),
            first_arrival_failures: counters(
                "oncegate_first_arrival_failures_total",
                "First arrivals that got no result, by reason.",
                &["tool", "reason"],
            ),
            call_duration: histograms(
                "oncegate_call_duration_seconds",
                "From a request to its answer, by what became of it.",
                &["tool", "kind"],
                &BUCKETS,
            ),
            attempt_duration: histograms(
                "oncegate_attempt_duration_seconds",
                "From a dispatch to the tool's answer, or to giving up on it.",
                &["tool"],
                &BUCKETS,
            ),
            duplicate_gap: histograms(
                "oncegate_duplicate_gap_seconds",
                "From a call's first arrival to a duplicate: tells an agent's repeat from an SDK's.",
                &["tool"],
                &GAP_BUCKETS,
            ),
            stale_owners: register(
                &registry,
                valid(IntCounter::new(
                    "oncegate_stale_owners_total",
                    "Completions refused because their attempt did not own the call any more.",
                )),
            ),
            late_executions: counters(
                "oncegate_late_executions_total",
                "Attempts that were executed, as it turned out after their call was settled as not executed.",
                &["tool"],
            ),
            store_errors: counters(
                "oncegate_store_errors_total",
                "Store operations that failed, by whether they surely did nothing.",
                &["operation", "kind"],
            ),
            store_operation_duration: histograms(
                "oncegate_store_operation_duration_seconds",
                "How long the store took, whether it did what it was asked for or not.",
                &["operation"],
                &STORE_BUCKETS,
            ),
            store_ready: register(
                &registry,
                valid(IntGauge::new(
                    "oncegate_store_ready",
                    "1 if calls may be claimed.",
                )),
            ),
            compensations: counters(
                "oncegate_compensations_total",
                "Calls that were to be undone, by what became of it.",
                &["tool", "result"],
            ),
            anomalies: counters(
                "oncegate_anomalies_total",
                "What ledger and sources were newly found to disagree on, by kind.",
                &["reconciliation", "kind"],
            ),
            reconciliation_runs: counters(
                "oncegate_reconciliation_runs_total",
                "Runs of a reconciliation, by whether all could be looked at.",
                &["reconciliation", "result"],
            ),
            reconciliation_duration: histograms(
                "oncegate_reconciliation_duration_seconds",
                "From the beginning of a run to its end.",
                &["reconciliation"],
                &RUN_BUCKETS,
            ),
            reconciled_at: gauges(
                "oncegate_reconciliation_last_success_timestamp_seconds",
                "When a run could last look at all; in seconds since 1970.",
                &["reconciliation"],
            ),
            sagas: gauges("oncegate_sagas", "Sagas, by state.", &["state"]),
            stuck_sagas: register(
                &registry,
                valid(IntGauge::new(
                    "oncegate_stuck_sagas",
                    "Sagas that need a person.",
                )),
            ),
            denied: counters(
                "oncegate_barred_total",
                "Calls that were not begun: frozen or busy session, stale or unknown token, budget, similar call.",
                &["tool", "reason"],
            ),
            throttled: counters(
                "oncegate_throttled_total",
                "Requests refused because their token asks too fast, by the limit that was reached.",
                &["token", "limit"],
            ),
            refused_tokens: counters(
                "oncegate_refused_tokens_total",
                "Requests refused because of their token: missing, unknown, expired, or its scopes do not cover them.",
                &["reason"],
            ),
            passed_through: counters(
                "oncegate_passed_through_total",
                "Reads that went to their tool although the store could not be asked.",
                &["tool"],
            ),
            store_durability: gauges(
                "oncegate_store_durability",
                "1 for the class that the store is found to be.",
                &["class"],
            ),
            store_reasons: gauges(
                "oncegate_store_reasons",
                "1 for each reason why nothing is claimed, and for each warning.",
                &["kind", "reason"],
            ),
            uncounted_duplicates: register(
                &registry,
                valid(IntCounter::new(
                    "oncegate_uncounted_duplicates_total",
                    "Duplicates that the ledger does not count, because too many waited to be written down.",
                )),
            ),
            log_lines_dropped: register(
                &registry,
                valid(IntCounter::new(
                    "oncegate_log_lines_dropped_total",
                    "Log lines that were not written, because standard error was not read fast enough.",
                )),
            ),
            store_lost_writes: register(
                &registry,
                valid(IntCounter::new(
                    "oncegate_store_lost_claims_total",
                    "Writes of this gateway that the store turned out to have lost.",
                )),
            ),
            reloads: counters(
                "oncegate_config_reloads_total",
                "Times that the configuration was read again (SIGHUP), and whether it was taken over.",
                &["result"],
            ),
            reload_succeeded: register(
                &registry,
                valid(IntGauge::new(
                    "oncegate_config_last_reload_successful",
                    "0 if what was read last was refused: the configuration that holds is not the file's.",
                )),
            ),
            configured_at: register(
                &registry,
                valid(IntGauge::new(
                    "oncegate_config_last_success_timestamp_seconds",
                    "When the configuration was last taken over, at the start or later; in seconds since 1970.",
                )),
            ),
            memory_budget: register(
                &registry,
                valid(IntGauge::new(
                    "oncegate_memory_budget_bytes",
                    "What connections, requests and answers may hold: server.max_memory.",
                )),
            ),
            memory_held: register(
                &registry,
                valid(IntGauge::new(
                    "oncegate_memory_held_bytes",
                    "What they hold, or what is reserved for them.",
                )),
            ),
            memory_refused: register(
                &registry,
                valid(IntCounter::new(
                    "oncegate_memory_refused_total",
                    "What had no room: connections, requests and answers.",
                )),
            ),
            connections: register(
                &registry,
                valid(IntGauge::new(
                    "oncegate_connections",
                    "Connections of clients that are open.",
                )),
            ),
            breaker_open: gauges(
                "oncegate_breaker_open",
                "1 from when a tool's attempts kept failing, and it is left alone, until one succeeds at this gateway.",
                &["tool"],
            ),
            tool_paused: gauges(
                "oncegate_tool_paused",
                "1 while a person has paused a tool.",
                &["tool"],
            ),
            running: gauges("oncegate_running_calls", "Calls under way.", &["tool"]),
            unknown: gauges(
                "oncegate_unknown_calls",
                "Calls of which nobody knows whether they were executed.",
                &["tool"],
            ),
            registry,
            scraping: Mutex::new(()),
        }
    }

    /// The configuration of the start is in force.
    pub fn configured(&self, at: i64) {
        for result in ["success", "failure"] {
            self.reloads.with_label_values(&[result]).inc_by(0);
        }
        self.reload_succeeded.set(1);
        self.configured_at.set(at);
    }

    /// Another one was taken over.
    pub fn reloaded(&self, at: i64) {
        self.reload_succeeded.set(1);
        self.reloads.with_label_values(&["success"]).inc();
        self.configured_at.set(at);
    }

    /// Another one was refused as a whole.
    pub fn reload_failed(&self) {
        self.reload_succeeded.set(0);
        self.reloads.with_label_values(&["failure"]).inc();
    }

    /// The store has been asked for something, and took so many seconds.
    pub fn took(&self, operation: &str, seconds: f64) {
        self.store_operation_duration
            .with_label_values(&[operation])
            .observe(seconds);
    }

    /// The store may be asked for this, and may fail in it.
    pub fn expect_verb(&self, operation: &str) {
        self.store_operation_duration
            .with_label_values(&[operation]);
        for kind in ERRORS {
            self.store_errors.with_label_values(&[operation, kind]);
        }
    }

    /// The text exposition format, version 0.0.4, with the store's present counts if it gave them.
    pub fn scrape<'a>(
        &self,
        tools: impl Iterator<Item = &'a String> + Clone,
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

    /// What the store is worth, and why nothing is claimed.
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

    /// How much of the memory budget is used, and how often something had no room.
    pub fn take_memory(&self, total: usize, held: usize, refused: u64) {
        let number = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.memory_budget.set(number(total));
        self.memory_held.set(number(held));
        let news = refused.saturating_sub(self.memory_refused.get());
        self.memory_refused.inc_by(news);
    }

    /// Which tools are left alone.
    pub fn take_resting<'a>(&self, tools: impl Iterator<Item = (&'a str, bool)>) {
        let _one_at_a_time = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
        self.breaker_open.reset();
        for (tool, is_resting) in tools {
            self.breaker_open
                .with_label_values(&[tool])
                .set(is_resting.into());
        }
    }

    /// From now on its counters are there, at zero.
    pub fn has_reconciliation(&self, name: &str, kinds: &[&str]) {
        for kind in kinds {
            self.anomalies.with_label_values(&[name, *kind]);
        }
        for result in ["done", "failed"] {
            self.reconciliation_runs.with_label_values(&[name, result]);
        }
    }

    /// A run has ended.
    pub fn reconciled(&self, name: &str, is_done: bool, took: std::time::Duration, at: i64) {
        let result = if is_done { "done" } else { "failed" };
        self.reconciliation_runs
            .with_label_values(&[name, result])
            .inc();
        self.reconciliation_duration
            .with_label_values(&[name])
            .observe(took.as_secs_f64());
        if is_done {
            self.reconciled_at.with_label_values(&[name]).set(at);
        }
    }

    /// How many sagas there are in each state, and how many of them are stuck.
    pub fn take_sagas<'a>(&self, counts: impl Iterator<Item = (&'a str, u64)>, stuck: u64) {
        let _one_at_a_time = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        for (state, count) in counts {
            self.sagas.with_label_values(&[state]).set(number(count));
        }
        self.stuck_sagas.set(number(stuck));
    }

    /// Which tools are paused.
    pub fn take_paused<'a>(&self, tools: impl Iterator<Item = (&'a str, bool)>) {
        let _one_at_a_time = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
        self.tool_paused.reset();
        for (tool, is_paused) in tools {
            self.tool_paused
                .with_label_values(&[tool])
                .set(is_paused.into());
        }
    }

    /// What may be counted of a tool is there from now on.
    fn expect(&self, tool: &str) {
        for arrival in Arrival::ALL {
            self.arrivals.with_label_values(&[tool, arrival.as_str()]);
            self.call_duration
                .with_label_values(&[tool, arrival.as_str()]);
        }
        self.attempt_duration.with_label_values(&[tool]);
        self.duplicate_gap.with_label_values(&[tool]);
        self.passed_through.with_label_values(&[tool]);
        self.late_executions.with_label_values(&[tool]);
        for (counters, words) in [
            (&self.attempts, &Outcome::WORDS[..]),
            (
                &self.first_arrival_failures,
                &FailureKind::ALL.map(FailureKind::as_str),
            ),
            (&self.first_arrival_failures, &NO_RESULT),
            (&self.denied, &Refusal::WORDS),
            (&self.compensations, &UNDONE),
        ] {
            for word in words {
                counters.with_label_values(&[tool, word]);
            }
        }
    }

    /// Every configured tool is there, at zero if need be, so that an alert has something to look
    /// at; a tool that is no longer configured is there as long as it has such calls.
    fn take<'a>(&self, tools: impl Iterator<Item = &'a String> + Clone, census: &[Census]) {
        for (state, gauge) in [("running", &self.running), ("unknown", &self.unknown)] {
            gauge.reset();
            for tool in tools.clone() {
                gauge.with_label_values(&[tool]).set(0);
            }
            for count in census.iter().filter(|count| count.state == state) {
                let calls = i64::try_from(count.calls).unwrap_or(i64::MAX);
                gauge.with_label_values(&[&count.tool]).set(calls);
            }
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "a wrong metric name is a bug, found by the first test"
)]
fn valid<T>(metric: prometheus::Result<T>) -> T {
    metric.expect("a metric's name and labels are valid")
}

#[expect(
    clippy::expect_used,
    reason = "two metrics of one name are a bug, found by the first test"
)]
fn register<T: Collector + Clone + 'static>(registry: &Registry, metric: T) -> T {
    registry
        .register(Box::new(metric.clone()))
        .expect("a metric's name is its own");
    metric
}
