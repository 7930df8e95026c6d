//! The rates of each tool in the last hour, from this process's own metrics. They are not stored.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

use oncegate_engine::Base;
use oncegate_engine::metrics::ArrivalKind;
use oncegate_engine::wings::lock;
use oncegate_rules::outcome::Outcome;
use oncegate_rules::time::elapsed_ms;

/// How often a sample is taken.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(30);
/// How many samples of a tool are kept: those of an hour, and the one before.
const MOST: usize = 121;
/// Most tools that are sampled. MCP servers may bring any number of tools.
const MOST_TOOLS: usize = 500;

/// Keeps a bounded number of samples of each tool.
pub(crate) struct Samples {
    base: Arc<Base>,
    of_tools: Mutex<BTreeMap<String, VecDeque<Sample>>>,
}

/// The counters of a tool at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    at: Timestamp,
    requests: u64,
    repeated: u64,
    attempts: u64,
    not_executed: u64,
    seconds: f64,
}

/// The rates of a tool between two samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rates {
    /// The end of the interval.
    pub(crate) at: Timestamp,
    pub(crate) requests_per_minute: f64,
    /// Requests that did not run their call.
    pub(crate) repeated_per_minute: f64,
    /// Attempts that are not proven to have been executed.
    pub(crate) not_executed_per_minute: f64,
    /// The mean time of an attempt in milliseconds; `None`: no attempt was made.
    pub(crate) mean_ms: Option<f64>,
}

impl Samples {
    pub(crate) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            of_tools: Mutex::default(),
        }
    }

    /// Takes a sample of each tool, and forgets tools that are not configured any more.
    pub(crate) fn take_samples(&self, now: Timestamp) {
        let tools = self.base.tools();
        let mut of_tools = lock(&self.of_tools);
        of_tools.retain(|tool, _| tools.contains_key(tool));
        for tool in tools.keys() {
            if of_tools.len() >= MOST_TOOLS && !of_tools.contains_key(tool) {
                continue;
            }
            let samples = of_tools.entry(tool.clone()).or_default();
            if samples.len() == MOST {
                samples.pop_front();
            }
            samples.push_back(self.sample(tool, now));
        }
    }

    /// The rates of a tool, oldest first.
    pub(crate) fn rates(&self, tool: &str) -> Vec<Rates> {
        let of_tools = lock(&self.of_tools);
        let Some(samples) = of_tools.get(tool) else {
            return Vec::new();
        };
        let pairs = samples.iter().zip(samples.iter().skip(1));
        pairs.filter_map(|(one, next)| one.until(next)).collect()
    }

    fn sample(&self, tool: &str, at: Timestamp) -> Sample {
        let metrics = &self.base.metrics;
        let arrivals = |kind: ArrivalKind| {
            let counter = metrics.arrivals.with_label_values(&[tool, kind.as_str()]);
            counter.get()
        };
        let attempts = |word: &str| metrics.attempts.with_label_values(&[tool, word]).get();
        let repeated = arrivals(ArrivalKind::Replayed)
            + arrivals(ArrivalKind::Joined)
            + arrivals(ArrivalKind::Suppressed);
        let times = metrics.attempt_duration.with_label_values(&[tool]);
        let not_executed = Outcome::WORDS.iter().filter(|word| **word != "executed");
        Sample {
            at,
            requests: repeated + arrivals(ArrivalKind::First) + arrivals(ArrivalKind::Refused),
            repeated,
            attempts: times.get_sample_count(),
            not_executed: not_executed.map(|word| attempts(word)).sum(),
            seconds: times.get_sample_sum(),
        }
    }
}

impl Sample {
    /// The rates up to a later sample; `None`: no time has passed, or the clock was set back.
    fn until(&self, next: &Self) -> Option<Rates> {
        let minutes = elapsed_ms(self.at, next.at) as f64 / 60_000.0;
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / minutes;
        let attempts = next.attempts.saturating_sub(self.attempts);
        let mean = || (next.seconds - self.seconds) * 1_000.0 / attempts as f64;
        (minutes > 0.0).then(|| Rates {
            at: next.at,
            requests_per_minute: rate(self.requests, next.requests),
            repeated_per_minute: rate(self.repeated, next.repeated),
            not_executed_per_minute: rate(self.not_executed, next.not_executed),
            mean_ms: (attempts > 0).then(mean),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between_two_samples() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let sample = |second, requests, attempts, seconds| Sample {
            at: at(second),
            requests,
            repeated: requests / 2,
            attempts,
            not_executed: attempts / 4,
            seconds,
        };
        let (one, next) = (sample(0, 10, 4, 1.0), sample(30, 30, 8, 3.0));
        let rates = Rates {
            at: at(30),
            requests_per_minute: 40.0,
            repeated_per_minute: 20.0,
            not_executed_per_minute: 2.0,
            mean_ms: Some(500.0),
        };
        assert_eq!(one.until(&next), Some(rates));
        assert_eq!(one.until(&one), None, "no time has passed");
        assert_eq!(next.until(&one), None, "the clock was set back");
        let quiet = sample(60, 30, 8, 3.0);
        assert_eq!(next.until(&quiet).and_then(|rates| rates.mean_ms), None);
    }
}
