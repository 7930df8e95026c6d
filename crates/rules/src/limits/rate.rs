//! Rates: so many per second, and so many at once (the generic cell rate algorithm).
//!
//! Times are durations since any fixed moment.

use std::time::Duration;

/// A rate. Both numbers are above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The mean rate.
    pub per_second: u32,
    /// How many at once after a pause.
    pub burst: u32,
}

/// The units of a rate that were taken and have not come back yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// When all units will have come back.
    until: Duration,
}

impl Spent {
    /// Whether all units have come back.
    pub fn is_over(&self, now: Duration) -> bool {
        self.until <= now
    }
}

impl Rate {
    /// Takes one unit, or says how long to wait for it.
    ///
    /// # Errors
    /// No unit is left. After this time one comes back, and any request may take it.
    pub fn take(&self, spent: &mut Spent, now: Duration) -> Result<(), Duration> {
        let until = spent.until.max(now);
        let allowed = self.interval() * self.burst.saturating_sub(1);
        let too_early = (until - now).saturating_sub(allowed);
        if !too_early.is_zero() {
            return Err(too_early);
        }
        spent.until = until + self.interval();
        Ok(())
    }

    /// Gives back one unit that was not used.
    pub fn give_back(&self, spent: &mut Spent) {
        spent.until = spent.until.saturating_sub(self.interval());
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1) / self.per_second.max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn so_many_at_once_and_then_as_they_come_back() {
        let rate = Rate {
            per_second: 10,
            burst: 3,
        };
        let mut spent = Spent::default();
        let mut take = |ms: u32| {
            rate.take(&mut spent, MS * ms)
                .map_err(|wait| wait.as_millis())
        };
        assert_eq!(
            [0, 0, 0, 0].map(&mut take),
            [Ok(()), Ok(()), Ok(()), Err(100)]
        );
        assert_eq!([99, 100, 100].map(&mut take), [Err(1), Ok(()), Err(100)]);
        assert_eq!(
            [9_000, 9_000, 9_000, 9_000].map(&mut take),
            [Ok(()), Ok(()), Ok(()), Err(100)]
        );
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_nothing_more() {
        let rate = Rate {
            per_second: 1,
            burst: 1,
        };
        let mut spent = Spent::default();
        rate.give_back(&mut spent);
        assert_eq!(rate.take(&mut spent, MS), Ok(()));
        assert!(
            rate.take(&mut spent, MS).is_err(),
            "what was not taken cannot be given back"
        );
        rate.give_back(&mut spent);
        assert_eq!(rate.take(&mut spent, MS), Ok(()));
    }

    proptest! {
        #[test]
        fn never_more_than_the_rate_allows_and_who_waits_as_told_gets_one(
            per_second in 1..200_u32, burst in 1..50_u32, waits in prop::collection::vec(0..200_u32, 1..300),
        ) {
            let rate = Rate { per_second, burst };
            let (mut spent, mut now, mut taken) = (Spent::default(), Duration::ZERO, 0_u32);
            for wait in waits {
                now += MS * wait;
                match rate.take(&mut spent, now) {
                    Ok(()) => taken += 1,
                    Err(wait) => {
                        prop_assert!(rate.take(&mut spent.clone(), now + wait).is_ok());
                        prop_assert!(rate.take(&mut spent.clone(), now + wait - Duration::from_nanos(1)).is_err());
                    }
                }
            }
            // A second divided by the rate is rounded down to whole nanoseconds.
            let came_back = now.as_secs_f64() * f64::from(per_second) * 1.000_001;
            prop_assert!(f64::from(taken) <= f64::from(burst) + came_back + 1e-6, "{taken}");
        }
    }
}
