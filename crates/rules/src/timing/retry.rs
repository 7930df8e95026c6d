//! When to try again, and how often.
//!
//! Must not know which attempts may be repeated: `call` and `outcome` decide that.

use std::time::Duration;

/// How often and how far apart a tool is tried within one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Attempts in all, the first included; at least 1.
    pub attempts: u32,
    /// The upper bound of the first wait; it doubles with each further one.
    pub base: Duration,
    /// The upper bound of every wait.
    pub max: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            attempts: 3,
            base: Duration::from_millis(200),
            max: Duration::from_secs(5),
        }
    }
}

/// How many retries a tool may get in all: a share of its first attempts, and a few in hand.
///
/// When every call fails, retries are a small part of the traffic and not a multiple of it. Source: Google, "Site Reliability
/// Engineering", 2016, chapter 21, "Handling Overload".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    in_hand: f64,
}

impl Budget {
    /// Most retries in hand.
    const MOST: f64 = 50.0;
    /// The part of a retry that each first attempt adds.
    const SHARE: f64 = 0.2;

    /// A first attempt is made.
    pub fn earn(&mut self) {
        self.in_hand = (self.in_hand + Self::SHARE).min(Self::MOST);
    }

    /// Takes one retry; `false`: none is left.
    ///
    /// Asking and taking are one step. Otherwise several requests would get the last retry.
    pub fn try_spend(&mut self) -> bool {
        let has_one = self.in_hand >= 1.0;
        if has_one {
            self.in_hand -= 1.0;
        }
        has_one
    }

    /// Gives back a retry that is not made.
    pub fn give_back(&mut self) {
        self.in_hand = (self.in_hand + 1.0).min(Self::MOST);
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            in_hand: Self::MOST,
        }
    }
}

/// How long to wait after attempt number `attempt` (the first is 1).
///
/// Exponential with full jitter: `jitter` is a random number of 0..1. Never shorter than
/// `retry_after`, which the tool asked for.
/// Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
pub fn delay(
    policy: &Policy,
    attempt: u32,
    jitter: f64,
    retry_after: Option<Duration>,
) -> Duration {
    let wait = back_off(policy.base, policy.max, attempt).mul_f64(jitter.clamp(0.0, 1.0));
    wait.max(retry_after.unwrap_or_default())
}

/// The longest wait after so many failures: `base` after the first, doubled after each further one.
pub(crate) fn back_off(base: Duration, max: Duration, failures: u32) -> Duration {
    let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
    base.saturating_mul(factor).min(max)
}

/// A wait between half of the longest and the longest. `jitter` is a number of 0..1.
pub(crate) fn at_least_half(longest: Duration, jitter: f64) -> Duration {
    longest.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_double_up_to_the_maximum() {
        let policy = Policy {
            attempts: 9,
            base: Duration::from_millis(200),
            max: Duration::from_secs(1),
        };
        let waits =
            [1, 2, 3, 4, u32::MAX].map(|attempt| delay(&policy, attempt, 1.0, None).as_millis());
        assert_eq!(waits, [200, 400, 800, 1000, 1000]);
    }

    #[test]
    fn when_everything_fails_retries_are_a_fifth_of_the_traffic() {
        let mut budget = Budget::default();
        let mut retries = 0;
        for _ in 0..10_000 {
            budget.earn();
            retries += u32::from(budget.try_spend());
        }
        assert!(
            (2_000..2_060).contains(&retries),
            "{retries}: and those that were in hand"
        );
        assert!(!budget.try_spend());
        budget.give_back();
        assert!(budget.try_spend() && !budget.try_spend());
    }

    proptest! {
        #[test]
        fn a_wait_stays_in_its_bounds(
            attempt: u32,
            base in 0..100_000_u64,
            max in 0..1_000_000_u64,
            jitter in -1.0..2.0_f64,
            after in prop::option::of(0..1_000_000_u64),
        ) {
            let policy = Policy { attempts: 3, base: Duration::from_millis(base), max: Duration::from_millis(max) };
            let after = after.map(Duration::from_millis);
            let wait = delay(&policy, attempt, jitter, after);
            prop_assert!(wait >= after.unwrap_or_default());
            prop_assert!(wait <= policy.max.max(after.unwrap_or_default()));
        }
    }
}
