//! What a gateway has seen of the data of a shared store.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jiff::Timestamp;

use super::moments::Moments;
use crate::Readiness;
use crate::lock::lock;

/// What this process has seen of a store's data. `T` proves that everything from before a moment is there.
#[derive(Debug)]
pub struct Seen<T> {
    /// How many lost writes were noticed.
    pub lost_writes: AtomicU64,
    /// Whether this process has found all of its own data there.
    pub was_whole: AtomicBool,
    /// Since when every call is known; `None` until the first inspection.
    pub whole_since: Mutex<Option<Timestamp>>,
    /// When nothing was missing.
    pub moments: Mutex<Moments<T>>,
}

impl<T> Seen<T> {
    pub fn new(moments: Moments<T>) -> Self {
        Self {
            lost_writes: 0.into(),
            was_whole: false.into(),
            whole_since: Mutex::default(),
            moments: Mutex::new(moments),
        }
    }

    /// A time until which the store surely has everything, as far as this process has seen it whole.
    pub fn whole_until(&self) -> Option<Timestamp> {
        lock(&self.moments).until()
    }

    /// Adds it to the finding of an inspection.
    pub(super) fn add_to(&self, found: &mut Readiness) {
        found.lost_writes = self.lost_writes.load(Ordering::Relaxed);
        found.whole_since = *lock(&self.whole_since);
    }
}
