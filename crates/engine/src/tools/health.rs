//! A tool's health, as this gateway sees it: breaker, retries and usual latency. The rules are in `rules::breaker`.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::base::lock::lock;
use oncegate_rules::breaker::{self, Sign, ToolBreaker, Trials};
use oncegate_rules::retry::Budget;

/// The weight of the newest attempt in the usual latency.
const WEIGHT: f64 = 0.2;
/// How soon to ask again for a running call: if the latency is unknown, at the earliest, and at the latest.
const WAITS: (Duration, Duration, Duration) = (
    Duration::from_secs(1),
    Duration::from_millis(200),
    Duration::from_secs(30),
);

/// Unknown calls of a tool that are checked at the same time.
const CHECKS: usize = 4;

/// The health of one tool.
pub(crate) struct Health {
    /// Permits for checks of its unknown calls.
    ///
    /// The bound keeps checks from overrunning a tool that has just recovered, and a tool that hangs from delaying others.
    pub(crate) checks: Semaphore,
    policy: breaker::Policy,
    start: Instant,
    observed: Mutex<Observed>,
}

#[derive(Default)]
struct Observed {
    breaker: ToolBreaker,
    budget: Budget,
    /// An exponentially weighted mean.
    latency: Option<Duration>,
}

/// Permit of the circuit breaker. While the breaker is half-open it holds its trials; dropped unused, it gives them back.
#[derive(Default)]
pub(crate) struct Permit(Option<Held>);

struct Held {
    health: Arc<Health>,
    tenant: String,
    trials: Trials,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            let now = held.health.start.elapsed();
            let mut observed = held.health.observed();
            observed.breaker.give_back(&held.tenant, held.trials, now);
        }
    }
}

impl Health {
    pub(crate) fn new(policy: breaker::Policy) -> Self {
        Self {
            checks: Semaphore::new(CHECKS),
            policy,
            start: Instant::now(),
            observed: Mutex::default(),
        }
    }

    /// Lets a call of a tenant through.
    ///
    /// # Errors
    /// The breaker is open; says for how long.
    pub(crate) fn admit(self: &Arc<Self>, tenant: &str) -> Result<Permit, Duration> {
        let now = self.start.elapsed();
        let trials = self.observed().breaker.admit(&self.policy, tenant, now)?;
        let is_trial = trials != Trials::default();
        Ok(Permit(is_trial.then(|| Held {
            health: self.clone(),
            tenant: tenant.to_owned(),
            trials,
        })))
    }

    /// Ends the cooldown of an open breaker: the next call may try the tool.
    pub(crate) fn end_cooldown(&self) {
        self.observed().breaker.end_cooldown(self.start.elapsed());
    }

    /// Whether every call of a tenant may begin.
    pub(crate) fn is_closed_for(&self, tenant: &str) -> bool {
        self.observed().breaker.is_closed_for(tenant)
    }

    /// Whether every call of every tenant may begin.
    pub(crate) fn is_closed(&self) -> bool {
        self.observed().breaker.is_closed()
    }

    /// Notes the end of a tenant's attempt, and how long the attempt took.
    pub(crate) fn ended(&self, tenant: &str, sign: Sign, permit: &Permit, took: Duration) {
        let now = self.start.elapsed();
        let mut observed = self.observed();
        let trials = permit
            .0
            .as_ref()
            .map_or_else(Trials::default, |held| held.trials);
        let breaker = &mut observed.breaker;
        breaker.ended(&self.policy, tenant, sign, trials, now);
        let before = observed.latency.unwrap_or(took);
        observed.latency = Some(before.mul_f64(1.0 - WEIGHT) + took.mul_f64(WEIGHT));
    }

    /// Notes a call's first attempt, which earns a part of a retry.
    pub(crate) fn earn_retry(&self) {
        self.observed().budget.earn();
    }

    /// Takes a retry from the tool's budget. False: none is left.
    pub(crate) fn try_spend_retry(&self) -> bool {
        self.observed().budget.try_spend()
    }

    /// Gives back a retry that is not made.
    pub(crate) fn give_retry_back(&self) {
        self.observed().budget.give_back();
    }

    /// How long an attempt usually takes; `None`: no attempt was made yet.
    pub(crate) fn usual_latency(&self) -> Option<Duration> {
        self.observed().latency
    }

    /// How long a call usually takes.
    pub(crate) fn usual_time(&self) -> Duration {
        self.retry_after(Duration::ZERO)
    }

    /// How soon to ask again for a call that has run for this long: when such calls usually end.
    pub(crate) fn retry_after(&self, runs_for: Duration) -> Duration {
        let (unknown, least, most) = WAITS;
        let usual = self.observed().latency;
        let left = usual.map_or(unknown, |usual| usual.saturating_sub(runs_for));
        left.clamp(least, most)
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        lock(&self.observed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_has_to_wait_is_sent_away_for_the_time_that_the_tool_usually_takes() {
        let health = Health::new(breaker::Policy::default());
        let retry_after = |ran_ms| {
            health
                .retry_after(Duration::from_millis(ran_ms))
                .as_millis()
        };
        assert_eq!(retry_after(0), 1_000, "no latency is known yet");
        let ended = |sign, took| health.ended("t", sign, &Permit::default(), took);
        ended(Sign::Healthy, Duration::from_secs(4));
        let after_a_while = (retry_after(0), retry_after(1_500), retry_after(9_000));
        assert_eq!(after_a_while, (4_000, 2_500, 200));
        (0..100).for_each(|_| ended(Sign::Healthy, Duration::from_millis(500)));
        assert_eq!(retry_after(0), 500, "the tool has become faster");
        (0..100).for_each(|_| ended(Sign::Failed, Duration::from_secs(600)));
        assert_eq!(retry_after(0), 30_000, "no caller is sent away for longer");
    }
}
