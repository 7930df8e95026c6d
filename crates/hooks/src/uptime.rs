//! A clock that counts suspension.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine was started, with the time for which it was suspended.
///
/// `Instant` does not count that: it stands still then, while leases end elsewhere.
pub fn since_boot() -> Duration {
    #[cfg(feature = "simulate")]
    if let Some(elapsed) = crate::seed::elapsed() {
        return elapsed;
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    // On macOS it goes on while the machine sleeps.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
