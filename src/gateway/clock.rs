//! The clock of the rules: the store's time, but never ahead of the time that has passed.
//!
//! Keys are forgotten by time, so a wall clock that is set forward would free them early and let a late repetition run
//! again. Monotonic clocks measure the time since the start.
//!
//! While a machine is suspended, time passes. A gateway that is alone with its store counts that: if its time lagged, what
//! it writes afterwards would look too old to the next process. A gateway that shares its store does not count it, so that
//! it notices its sleep: what it knows of the others is out of date.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::core::time::{after, signed};
use crate::uptime::since_boot;

/// How far the wall clock may be ahead of the passed time.
///
/// NTP may add a thousandth to that. Less than the margin of a lease.
const SLACK: SignedDuration = SignedDuration::from_secs(5);
/// The divisor of passed time by which a clock may be sped up.
const DRIFT: i32 = 1_000;

pub(super) struct Clock {
    wall_at_start: Timestamp,
    start: Instant,
    /// The start by [`since_boot`]; `None`: suspension does not count.
    start_since_boot: Option<Duration>,
    has_jumped: AtomicBool,
    /// The smallest offset so far, in microseconds.
    least_offset_us: AtomicI64,
}

impl Clock {
    /// Starts at the present wall clock. `offset`: how far the store's clock is ahead of it.
    pub(super) fn start(offset: SignedDuration, is_alone: bool) -> Self {
        Self {
            wall_at_start: wall(offset),
            start: Instant::now(),
            start_since_boot: is_alone.then(since_boot),
            has_jumped: AtomicBool::new(false),
            least_offset_us: AtomicI64::new(i64::MAX),
        }
    }

    /// The smallest offset so far, with this one.
    pub(super) fn least_offset(&self, offset: SignedDuration) -> SignedDuration {
        let offset_us = i64::try_from(offset.as_micros()).unwrap_or(i64::MIN);
        let before_us = self.least_offset_us.fetch_min(offset_us, Ordering::Relaxed);
        SignedDuration::from_micros(before_us.min(offset_us))
    }

    /// The store's time, in whole microseconds as stores keep them.
    pub(super) fn now(&self, offset: SignedDuration) -> Timestamp {
        self.checked(wall(offset))
    }

    /// Whether the wall clock is ahead of the passed time.
    pub(super) fn is_ahead(&self, offset: SignedDuration) -> bool {
        wall(offset) > self.latest()
    }

    /// The latest time that counts now.
    fn latest(&self) -> Timestamp {
        let since_start = |start| since_boot().saturating_sub(start);
        let with_sleep = self.start_since_boot.map_or(Duration::ZERO, since_start);
        let passed = signed(self.start.elapsed().max(with_sleep));
        let allowed = passed.saturating_add(passed / DRIFT).saturating_add(SLACK);
        after(self.wall_at_start, allowed)
    }

    fn checked(&self, wall: Timestamp) -> Timestamp {
        let latest = self.latest();
        let jumped = wall > latest;
        if jumped != self.has_jumped.swap(jumped, Ordering::Relaxed) && jumped {
            tracing::warn!(
                "the wall clock was set forward: until the next start it is not believed, so that no key is forgotten early"
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
pub(super) fn wall(offset: SignedDuration) -> Timestamp {
    let here = Timestamp::now();
    #[cfg(test)]
    let here = crate::seed::wall().unwrap_or(here);
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
        let clock = Clock::start(SignedDuration::ZERO, true);
        let told =
            [9, 5, 7, -2, 3].map(|s| clock.least_offset(SignedDuration::from_secs(s)).as_secs());
        assert_eq!(told, [9, 5, 5, -2, -2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_alone_with_its_store_counts_the_time_for_which_it_slept() {
        let slept = Duration::from_secs(20);
        for is_alone in [true, false] {
            let mut clock = Clock::start(SignedDuration::ZERO, is_alone);
            // As if the machine had been suspended since the start.
            clock.start_since_boot = is_alone.then(|| since_boot() - slept);
            let woken = clock.wall_at_start + slept;
            let believed = clock.checked(woken) == woken;
            assert_eq!(believed, is_alone);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_passes_no_faster_than_it_does() {
        let clock = Clock::start(SignedDuration::ZERO, false);
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
