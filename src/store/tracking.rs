//! Whether calls that were read from a shared store are still as they were read.
//!
//! The store tells of changes over the connection on which the calls were read, and one `Tracking` stands for one such
//! connection:
//! * A call is remembered only if nothing was heard of its name or of itself since its read began, and what is heard later
//!   ends that.
//! * The store tells of a change before it answers whatever it is asked later on the same connection, and the
//!   connection's reader passes both on in this order: so a change is heard before the read that missed it is remembered,
//!   or it ends what was remembered.
//! * Calls are believed for [`BELIEF`] after the sending of the last question that was answered on the connection, and
//!   never after the connection has ended or the store was in doubt.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::core::record::CallId;
use crate::uptime::since_boot;

/// How long an answer of the store is evidence that all changes before it were heard.
pub(super) const BELIEF: Duration = Duration::from_millis(500);
/// Calls of one stripe share a count of changes.
const STRIPES: usize = 4096;
/// Instead of microseconds: always.
const ALWAYS: u64 = u64::MAX;

/// One connection that tells of changes.
pub(super) struct Tracking {
    began: Instant,
    began_since_boot: Duration,
    /// Microseconds since the beginning.
    believed_until: AtomicU64,
    is_over: AtomicBool,
    /// Whether a remembered call was asked for lately.
    is_asked: AtomicBool,
    /// How often calls have changed, by stripe. Empty if nothing tells of it.
    changes: Box<[AtomicU64]>,
}

impl Tracking {
    /// For a store to which no other process writes.
    pub(super) fn of_own_store() -> Self {
        Self {
            believed_until: ALWAYS.into(),
            changes: Box::default(),
            ..Self::unanswered()
        }
    }

    /// A connection on which nothing was answered yet.
    pub(super) fn unanswered() -> Self {
        Self {
            began: Instant::now(),
            began_since_boot: since_boot(),
            believed_until: 0.into(),
            is_over: false.into(),
            is_asked: false.into(),
            changes: (0..STRIPES).map(|_| AtomicU64::default()).collect(),
        }
    }

    /// Ends it for good.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// The time since its beginning. It goes on while the machine is suspended.
    pub(super) fn now(&self) -> Duration {
        let since_boot = since_boot().saturating_sub(self.began_since_boot);
        self.began.elapsed().max(since_boot)
    }

    /// A question that was sent at this time by [`now`](Self::now) was answered.
    pub(super) fn answered(&self, sent: Duration) {
        let until = u64::try_from((sent + BELIEF).as_micros()).unwrap_or(ALWAYS);
        self.believed_until.fetch_max(until, Ordering::SeqCst);
    }

    /// Whether all changes until shortly before now were heard.
    pub(super) fn is_believed(&self) -> bool {
        let until = self.believed_until.load(Ordering::SeqCst);
        if until == ALWAYS {
            return true;
        }
        if !self.is_asked.load(Ordering::Relaxed) {
            self.is_asked.store(true, Ordering::Relaxed);
        }
        self.now().as_micros() < u128::from(until) && !self.is_over()
    }

    /// Whether a remembered call was asked for since this was last called.
    pub(super) fn take_asked(&self) -> bool {
        self.is_asked.swap(false, Ordering::Relaxed)
    }

    /// A call has changed.
    pub(super) fn changed(&self, call_id: CallId) {
        if let Some(changes) = self.stripe(call_id) {
            changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// How often a call of the same stripe has changed.
    pub(super) fn changes(&self, call_id: CallId) -> u64 {
        self.stripe(call_id)
            .map_or(0, |changes| changes.load(Ordering::SeqCst))
    }

    fn stripe(&self, call_id: CallId) -> Option<&AtomicU64> {
        // The last byte is the partition, and the one before it is random.
        let [.., high, low, _] = *call_id.0.as_bytes();
        let at = usize::from(u16::from_be_bytes([high, low])) % STRIPES;
        self.changes.get(at)
    }
}

#[cfg(test)]
#[path = "tracking_tests.rs"]
mod tests;
