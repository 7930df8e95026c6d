//! A tool's health, as this gateway sees it: breaker, retries and usual latency.
//!
//! The rules are in `core`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::core::breaker::{self, Sign, ToolBreaker, Trials};
use crate::core::retry::Budget;

/// How much the newest attempt counts for the usual latency.
const WEIGHT: f64 = 0.2;
/// How long to wait for a tool: without a known latency, at least, and at most.
const WAITS: (Duration, Duration, Duration) = (
    Duration::from_secs(1),
    Duration::from_millis(200),
    Duration::from_secs(30),
);

/// Unknown calls of a tool that are checked at the same time.
const CHECKS: usize = 4;

/// The health of one tool.
pub(super) struct Health {
    /// Places for checks of its unknown calls.
    ///
    /// A tool that is just up again is not overrun, and one that hangs delays no other tool.
    pub(super) checks: Semaphore,
    policy: breaker::Policy,
    start: Instant,
    observed: Mutex<Observed>,
}

#[derive(Default)]
struct Observed {
    breaker: ToolBreaker,
    budget: Budget,
    /// Exponentially weighted.
    latency: Option<Duration>,
}

/// Permit of the circuit breaker. When half-open it holds the single trial; dropped unused, it gives it back.
#[derive(Default)]
pub(super) struct Permit(Option<Held>);

struct Held {
    health: Arc<Health>,
    tenant: String,
    trials: Trials,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(Held {
            health,
            tenant,
            trials,
        }) = self.0.take()
        {
            let now = health.start.elapsed();
            health.observed().breaker.give_back(&tenant, trials, now);
        }
    }
}

impl Health {
    pub(super) fn new(policy: breaker::Policy) -> Self {
        Self {
            checks: Semaphore::new(CHECKS),
            policy,
            start: Instant::now(),
            observed: Mutex::default(),
        }
    }

    /// Lets a call of a tenant through, or says how long the breaker stays open.
    pub(super) fn admit(self: &Arc<Self>, tenant: &str) -> Result<Permit, Duration> {
        let trials = self
            .observed()
            .breaker
            .admit(&self.policy, tenant, self.start.elapsed())?;
        let is_trial = trials != Trials::default();
        Ok(Permit(is_trial.then(|| Held {
            health: self.clone(),
            tenant: tenant.to_owned(),
            trials,
        })))
    }

    /// Lets a call try at once whether the tool is there again.
    pub(super) fn end_cooldown(&self) {
        self.observed().breaker.end_cooldown(self.start.elapsed());
    }

    /// Whether every call of a tenant may begin.
    pub(super) fn is_closed_for(&self, tenant: &str) -> bool {
        self.observed()
            .breaker
            .is_closed_for(&self.policy, tenant, self.start.elapsed())
    }

    /// Whether every call of every tenant may begin.
    pub(super) fn is_closed(&self) -> bool {
        self.observed().breaker.is_closed()
    }

    /// An attempt for a tenant ended after this long.
    pub(super) fn ended(&self, tenant: &str, sign: Sign, permit: &Permit, took: Duration) {
        let now = self.start.elapsed();
        let mut observed = self.observed();
        let trials = permit
            .0
            .as_ref()
            .map_or_else(Trials::default, |held| held.trials);
        observed
            .breaker
            .ended(&self.policy, tenant, sign, trials, now);

        let before = observed.latency.unwrap_or(took);
        observed.latency = Some(before.mul_f64(1.0 - WEIGHT) + took.mul_f64(WEIGHT));
    }

    /// A call's first attempt is made.
    pub(super) fn earn_retry(&self) {
        self.observed().budget.earn();
    }

    /// Takes one retry for the tool, if there is one.
    pub(super) fn try_spend_retry(&self) -> bool {
        self.observed().budget.try_spend()
    }

    /// Gives back a retry that is not made.
    pub(super) fn give_retry_back(&self) {
        self.observed().budget.give_back();
    }

    /// How long an attempt usually takes; `None`: there was none.
    pub(super) fn usual_latency(&self) -> Option<Duration> {
        self.observed().latency
    }

    /// How long a call usually takes.
    pub(super) fn usual_time(&self) -> Duration {
        self.retry_after(Duration::ZERO)
    }

    /// How soon to ask again for a call that has run for so long.
    ///
    /// When such calls usually end.
    pub(super) fn retry_after(&self, runs_for: Duration) -> Duration {
        let (unknown, least, most) = WAITS;
        let usual = self.observed().latency;
        usual
            .map_or(unknown, |usual| usual.saturating_sub(runs_for))
            .clamp(least, most)
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_has_to_wait_is_told_what_the_tool_usually_takes() {
        let health = Health::new(breaker::Policy::default());
        let told = |ran_ms| {
            health
                .retry_after(Duration::from_millis(ran_ms))
                .as_millis()
        };
        assert_eq!(told(0), 1_000, "nothing is known yet");
        let ended = |sign, took| health.ended("t", sign, &Permit::default(), took);
        ended(Sign::Healthy, Duration::from_secs(4));
        assert_eq!((told(0), told(1_500), told(9_000)), (4_000, 2_500, 200));
        (0..100).for_each(|_| ended(Sign::Healthy, Duration::from_millis(500)));
        assert_eq!(told(0), 500, "it has become faster");
        (0..100).for_each(|_| ended(Sign::Failed, Duration::from_secs(600)));
        assert_eq!(told(0), 30_000, "no caller is sent away for longer");
    }
}
