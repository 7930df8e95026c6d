//! The clock of a shared store, by which all its gateways go.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use oncegate_rules::record::{Record, State};

/// How far the store's clock is ahead of this machine's, as it was last compared.
#[derive(Debug, Default)]
pub struct StoreClock(AtomicI64);

impl StoreClock {
    /// In microseconds.
    pub fn offset_us(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn offset(&self) -> SignedDuration {
        SignedDuration::from_micros(self.offset_us())
    }

    /// Notes an offset in microseconds. Returns the earlier one.
    pub fn set(&self, offset_us: i64) -> i64 {
        self.0.swap(offset_us, Ordering::Relaxed)
    }

    /// Notes the store's clock, in microseconds, which has refused a change as too late: this machine's was set back
    /// since it was read.
    pub fn was_late(&self, clock_us: i64, store: &str) {
        let offset_us = clock_us.saturating_sub(local_time().as_microsecond());
        let set_back_ms = offset_us.saturating_sub(self.set(offset_us)) / 1_000;
        tracing::warn!(
            set_back_ms,
            store,
            "a claim came too late for its lease: this machine's clock was set back, or it was slow; the store's clock counts"
        );
    }

    /// The time by the store's clock.
    pub fn now(&self) -> Timestamp {
        let wall = local_time();
        wall.checked_add(self.offset()).unwrap_or(wall)
    }
}

/// The latest time of the store at which a change may begin a run; `None` if it begins none.
///
/// The time of the change is this machine's, which may have been set back since the store's clock was read. A run that begins
/// after half of what a lease has beyond the deadline (`lease_margin`) could outlive its lease.
pub fn latest_begin(record: &Record, lease_margin: Duration) -> Option<Timestamp> {
    let ahead = lease_margin / 2;
    match record.state {
        State::Running => Some(
            record
                .updated_at
                .checked_add(ahead)
                .unwrap_or(Timestamp::MAX),
        ),
        _ => None,
    }
}

/// This machine's time.
#[expect(
    clippy::disallowed_methods,
    reason = "compared with the store's clock, and used together with that"
)]
pub fn local_time() -> Timestamp {
    Timestamp::now()
}
