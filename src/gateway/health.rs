//! What this gateway sees of a tool's health: whether to leave it alone, how many retries it may get,
//! and how long it takes. The rules are in `core`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::core::breaker::{self, Breaker};
use crate::core::retry::Budget;

/// How much the newest attempt counts for the usual latency.
const WEIGHT: f64 = 0.2;
/// What is told to wait for a tool of which nothing is known yet, and at the least and the most.
const WAITS: (Duration, Duration, Duration) =
    (Duration::from_secs(1), Duration::from_millis(200), Duration::from_secs(30));

/// Of one tool.
pub(super) struct Health {
    policy: breaker::Policy,
    start: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    breaker: Breaker,
    budget: Budget,
    /// Exponentially weighted.
    latency: Option<Duration>,
}

impl Health {
    pub(super) fn new(policy: breaker::Policy) -> Self {
        Self { policy, start: Instant::now(), seen: Mutex::default() }
    }

    /// Whether a call may begin, or how long the tool is left alone.
    pub(super) fn admit(&self) -> Result<(), Duration> {
        self.seen().breaker.admit(&self.policy, self.start.elapsed())
    }

    /// Whether every call may begin.
    pub(super) fn is_calm(&self) -> bool {
        self.seen().breaker.is_closed()
    }

    pub(super) fn is_open(&self) -> bool {
        self.seen().breaker.is_open(self.start.elapsed())
    }

    /// An attempt ended after this long; `healthy`: with something definite.
    pub(super) fn ended(&self, healthy: bool, took: Duration) {
        let now = self.start.elapsed();
        let mut seen = self.seen();
        seen.breaker.ended(&self.policy, healthy, now);
        let before = seen.latency.unwrap_or(took);
        seen.latency = Some(before.mul_f64(1.0 - WEIGHT) + took.mul_f64(WEIGHT));
    }

    /// A call's first attempt is made.
    pub(super) fn earn_retry(&self) {
        self.seen().budget.earn();
    }

    /// Whether the tool may get one more retry.
    pub(super) fn has_retry(&self) -> bool {
        self.seen().budget.has_one()
    }

    pub(super) fn spend_retry(&self) {
        self.seen().budget.spend();
    }

    /// How soon to ask again for a call that has run for so long: when it usually has ended.
    pub(super) fn retry_after(&self, runs_for: Duration) -> Duration {
        let (unknown, least, most) = WAITS;
        let usual = self.seen().latency;
        usual.map_or(unknown, |usual| usual.saturating_sub(runs_for)).clamp(least, most)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_has_to_wait_is_told_what_the_tool_usually_takes() {
        let health = Health::new(breaker::Policy::default());
        let told = |ran_ms| health.retry_after(Duration::from_millis(ran_ms)).as_millis();
        assert_eq!(told(0), 1_000, "nothing is known yet");
        health.ended(true, Duration::from_secs(4));
        assert_eq!((told(0), told(1_500), told(9_000)), (4_000, 2_500, 200));
        (0..100).for_each(|_| health.ended(true, Duration::from_millis(500)));
        assert_eq!(told(0), 500, "it has become faster");
        (0..100).for_each(|_| health.ended(false, Duration::from_secs(600)));
        assert_eq!(told(0), 30_000, "nobody is sent away for longer");
    }
}
