//! A circuit breaker: a tool whose attempts keep failing is left alone for a while, so that calls are
//! refused before they are claimed instead of becoming unknown one after the other.
//!
//! Times are what has passed since some start by a clock that only goes forward.
//! Source: M. Nygard, "Release It!", 2007, section "Circuit Breaker".

use std::time::Duration;

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Failing attempts in a row that open it.
    pub failures: u32,
    /// How long it stays open before one call is let through to try.
    pub cooldown: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self { failures: 20, cooldown: Duration::from_secs(5) }
    }
}

/// What is known of a tool's health.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Breaker {
    /// In a row, the newest ones.
    failures: u32,
    /// Until when nothing is let through; after that one call at a time.
    open_until: Option<Duration>,
}

impl Breaker {
    /// Lets a call through, or says how long to wait. The one that is let through to try keeps the others
    /// out for as long as the tool had been left alone.
    ///
    /// # Errors
    /// It is open.
    pub fn admit(&mut self, policy: &Policy, now: Duration) -> Result<(), Duration> {
        match self.open_until {
            None => Ok(()),
            Some(until) if now < until => Err(until - now),
            Some(_) => {
                self.open_until = Some(now + policy.cooldown);
                Ok(())
            }
        }
    }

    /// An attempt ended; `healthy`: the tool answered it with something definite.
    pub fn ended(&mut self, policy: &Policy, healthy: bool, now: Duration) {
        if healthy {
            *self = Self::default();
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= policy.failures {
            self.open_until = Some(now + policy.cooldown);
        }
    }

    /// Whether everything is let through.
    pub fn is_closed(&self) -> bool {
        self.open_until.is_none()
    }

    pub fn is_open(&self, now: Duration) -> bool {
        self.open_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { failures: 3, cooldown: Duration::from_secs(5) };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_only_then() {
        let mut breaker = Breaker::default();
        for healthy in [false, false, true, false, false] {
            breaker.ended(&POLICY, healthy, at(0));
            assert_eq!(breaker.admit(&POLICY, at(0)), Ok(()));
        }
        breaker.ended(&POLICY, false, at(1));
        assert_eq!(breaker.admit(&POLICY, at(2)), Err(at(4)));
        assert!(breaker.is_open(at(5)) && !breaker.is_open(at(6)));
    }

    #[test]
    fn one_call_tries_whether_the_tool_is_there_again() {
        let mut breaker = Breaker::default();
        (0..3).for_each(|_| breaker.ended(&POLICY, false, at(0)));
        assert_eq!(breaker.admit(&POLICY, at(5)), Ok(()));
        assert_eq!(breaker.admit(&POLICY, at(6)), Err(at(4)), "one at a time");
        breaker.ended(&POLICY, false, at(7));
        assert_eq!(breaker.admit(&POLICY, at(8)), Err(at(4)), "still not");
        assert_eq!(breaker.admit(&POLICY, at(12)), Ok(()));
        breaker.ended(&POLICY, true, at(13));
        assert_eq!((breaker.admit(&POLICY, at(13)), breaker), (Ok(()), Breaker::default()));
    }

    #[test]
    fn a_call_that_tries_and_never_ends_keeps_nobody_out_for_ever() {
        let mut breaker = Breaker::default();
        (0..3).for_each(|_| breaker.ended(&POLICY, false, at(0)));
        assert_eq!(breaker.admit(&POLICY, at(5)), Ok(()));
        assert_eq!(breaker.admit(&POLICY, at(10)), Ok(()));
    }
}
