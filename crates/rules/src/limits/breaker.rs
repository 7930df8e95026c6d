//! A circuit breaker for a tool whose attempts keep failing.
//!
//! It refuses calls before they are claimed. Otherwise they would become unknown, one after the other.
//!
//! Times are durations since a fixed start, by a clock that only goes forward.
//! Source: M. Nygard, "Release It!", 2007, section "Circuit Breaker".

mod tool; // one breaker per tenant, and one for all

use std::time::Duration;

pub use self::tool::{Sign, ToolBreaker, Trials};

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Failing attempts in a row that open it.
    pub failures: u32,
    /// How long the breaker stays open before it lets one call through as a trial.
    pub cooldown: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            failures: 20,
            cooldown: Duration::from_secs(5),
        }
    }
}

/// A circuit breaker: closed, open or half-open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Breaker {
    /// Failures in a row.
    failures: u32,
    /// Until when it is open; after that it is half-open.
    open_until: Option<Duration>,
    /// The trial of a half-open breaker.
    trial: Option<Trial>,
    /// Whether the trial has reached the tool, and failed.
    has_asked: bool,
    trials: u64,
}

/// The one call that a half-open breaker lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial(u64);

impl Breaker {
    /// Lets a call through, or says how long to wait. A half-open breaker makes the call its trial.
    ///
    /// The trial keeps other calls out for another cooldown, or until it is [given
    /// back](Self::give_back).
    ///
    /// # Errors
    /// The breaker is open.
    pub fn admit(&mut self, policy: &Policy, now: Duration) -> Result<Option<Trial>, Duration> {
        match self.open_until {
            None => Ok(None),
            Some(until) if now < until => Err(until - now),
            Some(_) => {
                self.open_until = Some(now + policy.cooldown);
                self.trials += 1;
                self.trial = Some(Trial(self.trials));
                self.has_asked = false;
                Ok(self.trial)
            }
        }
    }

    /// Gives back a trial that has not reached the tool: the next call becomes the trial.
    pub fn give_back(&mut self, trial: Trial, now: Duration) {
        if self.trial == Some(trial) && !self.has_asked {
            self.trial = None;
            self.open_until = self.open_until.map(|until| until.min(now));
        }
    }

    /// An attempt ended; `healthy`: the tool has answered. `trial`: the attempt was this trial.
    ///
    /// The failure of an attempt that began before the breaker opened, or that did not ask it, does not
    /// keep the breaker open: otherwise it would stay open for as long as any attempt still fails.
    pub fn ended(&mut self, policy: &Policy, healthy: bool, trial: Option<Trial>, now: Duration) {
        if healthy {
            *self = Self {
                trials: self.trials,
                ..Self::default()
            };
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let opens = self.open_until.is_none() && self.failures >= policy.failures;
        let still_fails = trial.is_some() && trial == self.trial;
        if opens || still_fails {
            self.open_until = Some(now + policy.cooldown);
        }
        self.has_asked |= still_fails;
    }

    /// Makes an open breaker half-open: the next call becomes the trial.
    fn end_cooldown(&mut self, now: Duration) {
        self.open_until = self.open_until.map(|until| until.min(now));
    }

    /// Whether every call is let through.
    pub fn is_closed(&self) -> bool {
        self.open_until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const POLICY: Policy = Policy {
        failures: 3,
        cooldown: Duration::from_secs(5),
    };

    pub(super) fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Open since second 0.
    fn open() -> Breaker {
        let mut breaker = Breaker::default();
        (0..3).for_each(|_| breaker.ended(&POLICY, false, None, at(0)));
        breaker
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_only_then() {
        let mut breaker = Breaker::default();
        for healthy in [false, false, true, false, false] {
            breaker.ended(&POLICY, healthy, None, at(0));
            assert_eq!(breaker.admit(&POLICY, at(0)), Ok(None));
        }
        breaker.ended(&POLICY, false, None, at(1));
        assert_eq!(breaker.admit(&POLICY, at(2)), Err(at(4)));
        assert_eq!(breaker.admit(&POLICY, at(5)), Err(at(1)));
        assert!(
            breaker
                .admit(&POLICY, at(6))
                .is_ok_and(|trial| trial.is_some())
        );
    }

    #[test]
    fn a_half_open_breaker_lets_one_trial_through() {
        let mut breaker = open();
        let trial = breaker.admit(&POLICY, at(5)).expect("let through");
        assert_eq!(breaker.admit(&POLICY, at(6)), Err(at(4)), "one at a time");
        breaker.ended(&POLICY, false, trial, at(7));
        assert_eq!(breaker.admit(&POLICY, at(8)), Err(at(4)), "still not");
        let trial = breaker.admit(&POLICY, at(12)).expect("let through");
        breaker.ended(&POLICY, true, trial, at(13));
        assert_eq!(
            (breaker.admit(&POLICY, at(13)), breaker.is_closed()),
            (Ok(None), true)
        );
    }

    #[test]
    fn a_trial_that_never_ends_is_followed_by_another_after_a_cooldown() {
        let mut breaker = open();
        assert!(breaker.admit(&POLICY, at(5)).is_ok());
        assert!(breaker.admit(&POLICY, at(10)).is_ok());
    }

    #[test]
    fn calls_that_fail_while_it_is_open_do_not_keep_it_open() {
        let mut breaker = open();
        (1..5).for_each(|second| breaker.ended(&POLICY, false, None, at(second)));
        let trial = breaker
            .admit(&POLICY, at(5))
            .expect("as if nothing else had failed");
        breaker.ended(&POLICY, false, None, at(6));
        assert_eq!(breaker.admit(&POLICY, at(6)), Err(at(4)));
        breaker.ended(&POLICY, false, trial, at(8));
        assert_eq!(
            breaker.admit(&POLICY, at(10)),
            Err(at(3)),
            "but the one that tries does"
        );
    }

    #[test]
    fn a_trial_that_did_not_reach_the_tool_goes_to_the_next_call() {
        let mut breaker = open();
        let trial = breaker
            .admit(&POLICY, at(5))
            .expect("let through")
            .expect("to try");
        breaker.give_back(trial, at(6));
        let next = breaker
            .admit(&POLICY, at(6))
            .expect("let through")
            .expect("to try");
        breaker.give_back(trial, at(7));
        assert_eq!(
            breaker.admit(&POLICY, at(7)),
            Err(at(4)),
            "it had only one place"
        );
        breaker.ended(&POLICY, true, Some(next), at(8));
        breaker.give_back(next, at(9));
        assert!(breaker.is_closed());
    }

    #[test]
    fn a_trial_from_before_it_closed_does_not_end_the_next_trial() {
        let mut breaker = open();
        let old = breaker.admit(&POLICY, at(5)).expect("let through");
        let old = old.expect("to try");
        breaker.ended(&POLICY, true, None, at(6));
        (0..3).for_each(|_| breaker.ended(&POLICY, false, None, at(7)));
        let new = breaker.admit(&POLICY, at(12)).expect("let through");
        assert!(new.is_some() && new != Some(old));
        breaker.give_back(old, at(13));
        assert_eq!(
            breaker.admit(&POLICY, at(13)),
            Err(at(4)),
            "the new one tries"
        );
    }

    #[test]
    fn a_failed_trial_cannot_be_given_back() {
        let mut breaker = open();
        let trial = breaker.admit(&POLICY, at(5)).expect("let through");
        breaker.ended(&POLICY, false, trial, at(6));
        breaker.give_back(trial.expect("to try"), at(7));
        assert_eq!(breaker.admit(&POLICY, at(7)), Err(at(4)));
    }
}
