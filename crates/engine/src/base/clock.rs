//! The clock of the rules: the store's time, but never ahead of the time that has passed.
//!
//! Keys are forgotten by time, so a wall clock that is set forward would free them early and let a late repetition run
//! again. Monotonic clocks measure the time since the start.
//!
//! While a machine is suspended its monotonic clock stands still, and so does this one. A gateway that shares its store
//! notices its sleep by the lag. `behind` says how far the clock lags, so that the rules know how old keys are.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use oncegate_hooks::uptime::since_boot;
use oncegate_rules::time::{after, signed};

/// How far the wall clock may be ahead of the passed time.
///
/// NTP may add a thousandth to that. Less than the margin of a lease.
const SLACK: SignedDuration = SignedDuration::from_secs(5);
/// The divisor of passed time by which a clock may be sped up.
const DRIFT: i32 = 1_000;

pub(crate) struct Clock {
    wall_at_start: Timestamp,
    start: Instant,
    /// The start by [`since_boot`].
    start_since_boot: Duration,
    has_jumped: AtomicBool,
    /// The smallest offset so far, in microseconds.
    least_offset_us: AtomicI64,
}

impl Clock {
    /// Starts at the present wall clock. `offset`: how far the store's clock is ahead of it.
    pub(crate) fn start(offset: SignedDuration) -> Self {
        Self {
            wall_at_start: wall(offset),
            start: Instant::now(),
            start_since_boot: since_boot(),
            has_jumped: AtomicBool::new(false),
            least_offset_us: AtomicI64::new(i64::MAX),
        }
    }

    /// The smallest offset so far, with this one.
    pub(crate) fn least_offset(&self, offset: SignedDuration) -> SignedDuration {
        let offset_us = i64::try_from(offset.as_micros()).unwrap_or(i64::MIN);
        let before_us = self.least_offset_us.fetch_min(offset_us, Ordering::Relaxed);
        SignedDuration::from_micros(before_us.min(offset_us))
    }

    /// The store's time, in whole microseconds as stores keep them.
    pub(crate) fn now(&self, offset: SignedDuration) -> Timestamp {
        self.checked(wall(offset))
    }

    /// Whether the wall clock is ahead of the passed time.
    pub(crate) fn is_ahead(&self, offset: SignedDuration) -> bool {
        wall(offset) > self.latest()
    }

    /// How far [`now`](Self::now) is behind the wall clock because the machine was suspended.
    pub(crate) fn behind(&self, offset: SignedDuration) -> SignedDuration {
        self.behind_at(wall(offset))
    }

    fn behind_at(&self, wall: Timestamp) -> SignedDuration {
        let with_sleep = since_boot().saturating_sub(self.start_since_boot);
        let slept = signed(with_sleep.saturating_sub(self.start.elapsed()));
        let lag = wall.duration_since(self.latest());
        let behind = lag.min(slept).max(SignedDuration::ZERO);
        SignedDuration::from_micros(i64::try_from(behind.as_micros()).unwrap_or(i64::MAX))
    }

    /// The latest time that counts now.
    fn latest(&self) -> Timestamp {
        let elapsed = signed(self.start.elapsed());
        let allowed = elapsed
            .saturating_add(elapsed / DRIFT)
            .saturating_add(SLACK);
        after(self.wall_at_start, allowed)
    }

    fn checked(&self, wall: Timestamp) -> Timestamp {
        let latest = self.latest();
        let jumped = wall > latest;
        if jumped != self.has_jumped.swap(jumped, Ordering::Relaxed) && jumped {
            tracing::warn!(
                "the wall clock was set forward, or the machine slept: until the next start this gateway's time is behind, so that no key is forgotten early"
            );
        }
        if jumped {
            in_microseconds(latest)
        } else {
            wall
        }
    }
}

/// This machine's time, where there is no gateway to ask.
pub fn local_time() -> Timestamp {
    wall(SignedDuration::ZERO)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the wall clock is read"
)]
pub(crate) fn wall(offset: SignedDuration) -> Timestamp {
    let here = Timestamp::now();
    #[cfg(feature = "simulate")]
    let here = oncegate_hooks::seed::wall().unwrap_or(here);
    in_microseconds(here.checked_add(offset).unwrap_or(here))
}

fn in_microseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_offsets_the_smallest_is_remembered() {
        let clock = Clock::start(SignedDuration::ZERO);
        let times =
            [9, 5, 7, -2, 3].map(|s| clock.least_offset(SignedDuration::from_secs(s)).as_secs());
        assert_eq!(times, [9, 5, 5, -2, -2]);
    }

    #[test]
    fn the_clock_is_behind_by_the_time_for_which_the_machine_slept() {
        let mut clock = Clock::start(SignedDuration::ZERO);
        let (begin, hour) = (clock.wall_at_start, SignedDuration::from_hours(1));
        assert_eq!(clock.behind_at(begin), SignedDuration::ZERO);
        assert_eq!(
            clock.behind_at(begin + hour),
            SignedDuration::ZERO,
            "set forward"
        );
        // As if the machine had been suspended since the start.
        clock.start_since_boot = clock
            .start_since_boot
            .saturating_sub(Duration::from_secs(60));
        let slept = clock.behind_at(begin + hour).as_secs();
        assert!(
            (1..=61).contains(&slept),
            "{slept}: not longer than it slept"
        );
        let lag = clock.behind_at(begin + SLACK + SignedDuration::from_secs(1));
        assert!(
            lag <= SignedDuration::from_secs(1),
            "the wall clock is right"
        );
        assert_eq!(
            clock.behind_at(begin - hour),
            SignedDuration::ZERO,
            "set back"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn time_passes_no_faster_than_it_does() {
        let clock = Clock::start(SignedDuration::ZERO);
        let begin = clock.wall_at_start;
        let hour = SignedDuration::from_hours(1);
        assert_eq!(clock.checked(begin + hour), begin + SLACK, "set forward");
        assert_eq!(
            clock.checked(begin - hour),
            begin - hour,
            "set back: keys are only remembered longer"
        );
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(clock.checked(begin + hour), begin + hour);
    }
}
