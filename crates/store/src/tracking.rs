//! Whether calls that were read from a shared store are unchanged.
//!
//! The store reports changes over the connection on which it read the calls. One `Tracking` stands for one such
//! connection. These rules keep an older state from being believed for longer than [`BELIEF`]:
//! * A call is remembered only if no change of its name or of itself was told since its read began. A change that is
//!   told later removes it from memory.
//! * The store tells of a change before it answers later questions on the same connection, and the reader of the
//!   connection forwards both in this order. So a change is told either before the read that missed it is remembered,
//!   or after.
//! * Calls are believed for [`BELIEF`] after the last answered question was sent, and never after the connection has
//!   ended or the store was in doubt.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use oncegate_hooks::uptime::since_boot;
use oncegate_rules::record::CallId;

/// How long an answer of the store proves that all earlier changes were told.
pub const BELIEF: Duration = Duration::from_millis(500);
/// Calls of one stripe share a count of changes.
const STRIPES: usize = 4096;
/// Instead of microseconds: for ever.
const ALWAYS: u64 = u64::MAX;

/// One connection that reports changes.
pub struct Tracking {
    began: Instant,
    began_since_boot: Duration,
    /// Microseconds since it began.
    believed_until: AtomicU64,
    is_over: AtomicBool,
    /// Whether a remembered call was asked for lately.
    is_asked: AtomicBool,
    /// How often calls have changed, by stripe. Empty: nothing reports changes.
    changes: Box<[AtomicU64]>,
}

impl Tracking {
    /// For a store to which no other process writes.
    pub fn of_own_store() -> Self {
        Self {
            believed_until: ALWAYS.into(),
            changes: Box::default(),
            ..Self::unanswered()
        }
    }

    /// For a connection without an answered question.
    pub fn unanswered() -> Self {
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
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// The time since it began. It goes on while the machine is suspended.
    pub fn now(&self) -> Duration {
        let since_boot = since_boot().saturating_sub(self.began_since_boot);
        self.began.elapsed().max(since_boot)
    }

    /// Notes the answer to a question that was sent at this time by [`now`](Self::now).
    pub fn answered(&self, sent: Duration) {
        let until = u64::try_from((sent + BELIEF).as_micros()).unwrap_or(ALWAYS);
        self.believed_until.fetch_max(until, Ordering::SeqCst);
    }

    /// Whether all changes until a moment ago were told.
    pub fn is_believed(&self) -> bool {
        let until = self.believed_until.load(Ordering::SeqCst);
        if until == ALWAYS {
            return true;
        }
        if !self.is_asked.load(Ordering::Relaxed) {
            self.is_asked.store(true, Ordering::Relaxed);
        }
        self.now().as_micros() < u128::from(until) && !self.is_over()
    }

    /// Whether a remembered call was asked for since the last call of this function.
    pub fn take_asked(&self) -> bool {
        self.is_asked.swap(false, Ordering::Relaxed)
    }

    /// Notes a change of a call.
    pub fn changed(&self, call_id: CallId) {
        if let Some(changes) = self.stripe(call_id) {
            changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// How often a call of the same stripe has changed.
    pub fn changes(&self, call_id: CallId) -> u64 {
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
