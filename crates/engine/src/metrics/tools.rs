//! The series of tools.
//!
//! Each series of a configured tool exists at zero before anything is counted: one that began with its first event would not
//! show that event as an increase. A tool has only those that its settings can ever count, and at most 60 of them, because a
//! gateway may have hundreds of tools: a new word, label or bucket here is paid for by each of them.

use std::sync::PoisonError;

use super::{ArrivalKind, Interface, Metrics};
use oncegate_rules::outcome::Outcome;
use oncegate_rules::record::FailureKind;
use oncegate_rules::session::Refusal;
use oncegate_rules::tool::{AsTask, Effect, Tool};
use oncegate_store::Census;

/// Reasons of first arrivals without a result that did not fail.
const NO_RESULT: [&str; 2] = ["unknown", "result_unavailable"];
const UNDONE: [&str; 5] = ["compensated", "empty", "failed", "skipped", "stuck"];
/// How waiting for approval ends.
const DECISIONS: [&str; 5] = ["approved", "declined", "lapsed", "withdrawn", "voided"];
/// Requests that a proxy forwards without making calls of them.
const FORWARDED: [&str; 2] = ["read", "unkeyed"];

impl Metrics {
    /// Takes over each tool's name, whether its circuit breaker is open or half-open, and whether it is paused.
    pub fn take_tools<'a>(&self, tools: impl Iterator<Item = (&'a str, bool, bool)>) {
        let _one_at_a_time = self.scraping.lock().unwrap_or_else(PoisonError::into_inner);
        self.breaker_open.reset();
        self.tool_paused.reset();
        for (tool, is_open, is_paused) in tools {
            for (gauge, is_set) in [
                (&self.breaker_open, is_open),
                (&self.tool_paused, is_paused),
            ] {
                gauge.with_label_values(&[tool]).set(is_set.into());
            }
        }
    }

    /// Makes the series of a tool exist at zero.
    pub(super) fn expect(&self, tool: &Tool) {
        let name = tool.name.as_str();
        let (writes, is_proxy) = (tool.effect == Effect::Write, tool.is_proxy());
        let is_approved = tool.approval.is_some();
        self.call_duration.with_label_values(&[name]);
        self.attempt_duration.with_label_values(&[name]);
        for (counter, is_possible) in [
            (&self.late_executions, true),
            (&self.pass_through, !writes),
            (&self.similar, tool.similar.is_some()),
            (&self.tasks, !is_proxy && tool.task != AsTask::Never),
        ] {
            if is_possible {
                counter.with_label_values(&[name]);
            }
        }
        let arrivals = ArrivalKind::ALL.into_iter();
        let arrivals = arrivals.filter(|kind| is_approved || *kind != ArrivalKind::Asked);
        let interfaces = Interface::ALL.into_iter();
        let interfaces = interfaces.filter(|by| (*by == Interface::Proxy) == is_proxy);
        let failures = FailureKind::ALL.into_iter().filter(|kind| is_of_run(*kind));
        let failures = failures.map(FailureKind::as_str).chain(NO_RESULT);
        let refusals = Refusal::WORDS.into_iter().filter(|why| match *why {
            "budget" => tool.budget.is_some(),
            "busy" => tool.is_exclusive(),
            "similar" => tool.similar.is_some(),
            _ => writes,
        });
        let words: [(_, Vec<&str>); 8] = [
            (&self.arrivals, arrivals.map(ArrivalKind::as_str).collect()),
            (&self.requests, interfaces.map(Interface::as_str).collect()),
            (&self.attempts, Outcome::WORDS.to_vec()),
            (&self.first_arrival_failures, failures.collect()),
            (&self.denied, refusals.collect()),
            (&self.compensations, if_possible(!is_proxy, &UNDONE)),
            (&self.approvals, if_possible(is_approved, &DECISIONS)),
            (&self.proxied, if_possible(is_proxy, &FORWARDED)),
        ];
        for (counters, words) in words {
            for word in words {
                counters.with_label_values(&[name, word]);
            }
        }
    }

    /// Takes over the counts of running and unknown calls, and of those that wait for approval.
    ///
    /// Every configured tool has a series, so that alerts have something to compare. A tool that is not configured any
    /// more has one as long as it has such calls.
    pub(super) fn take<'a>(
        &self,
        tools: impl Iterator<Item = &'a Tool> + Clone,
        census: &[Census],
    ) {
        // Only a tool that asks for approval has calls that wait for it.
        let gauges = [
            (&["running"][..], &self.running, false),
            (&["unknown"], &self.unknown, false),
            (&["proposed", "approved"], &self.proposals, true),
        ];
        for (states, gauge, takes_approval) in gauges {
            gauge.reset();
            let tools = tools.clone();
            for tool in tools.filter(|tool| !takes_approval || tool.approval.is_some()) {
                gauge.with_label_values(&[&tool.name]).set(0);
            }
            let counted = |count: &&Census| states.contains(&count.state.as_str());
            for count in census.iter().filter(counted) {
                let calls = i64::try_from(count.calls).unwrap_or(i64::MAX);
                gauge.with_label_values(&[&count.tool]).add(calls);
            }
        }
    }
}

/// Whether a run may end like this. A call that waits for approval ends its wait otherwise, and has no run.
fn is_of_run(kind: FailureKind) -> bool {
    !matches!(
        kind,
        FailureKind::Declined | FailureKind::Lapsed | FailureKind::Withdrawn
    )
}

fn if_possible(is_possible: bool, words: &'static [&'static str]) -> Vec<&'static str> {
    match is_possible {
        true => words.to_vec(),
        false => Vec::new(),
    }
}
