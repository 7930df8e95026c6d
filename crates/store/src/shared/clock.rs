//! The clock of a shared store, by which all its gateways go.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};

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

    /// The time by the store's clock.
    pub fn now(&self) -> Timestamp {
        let wall = local_time();
        wall.checked_add(self.offset()).unwrap_or(wall)
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
