//! Reads large requests apart from the runtime's workers, so that they delay no other request.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// The size from which reading a request keeps a worker busy for too long.
const LARGE: usize = 64 * 1024;

/// How long a request without memory for its result waits for a look at the store.
const WITHOUT_RESERVATION: Duration = Duration::from_secs(1);

/// Bounds how many large requests are read or looked up at once.
pub struct LargeRequests {
    reading: Semaphore,
    /// Permits for lookups without memory for the result.
    without_reservation: Semaphore,
}

impl LargeRequests {
    pub(crate) fn new() -> Self {
        let permits = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            reading: Semaphore::new(permits),
            without_reservation: Semaphore::new(permits),
        }
    }

    /// A permit to look up a request without memory for its result.
    ///
    /// `None`: the store is slow, and all permits are taken.
    pub(super) async fn without_reservation(&self) -> Option<SemaphorePermit<'_>> {
        let permit = timeout(WITHOUT_RESERVATION, self.without_reservation.acquire()).await;
        permit.ok()?.ok()
    }

    /// Reads a request of this size. Only a few large requests are read at the same time.
    pub async fn read_off_workers<T>(&self, bytes: usize, read: impl FnOnce() -> T) -> T {
        if bytes < LARGE {
            return read();
        }
        // This semaphore is never closed.
        let _permit = self.reading.acquire().await;
        match Handle::current().runtime_flavor() {
            // The worker's other tasks go on elsewhere.
            RuntimeFlavor::MultiThread => tokio::task::block_in_place(read),
            _ => read(),
        }
    }
}
