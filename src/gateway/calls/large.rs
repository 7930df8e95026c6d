//! Large requests are read off the runtime's workers: what takes long must not hold up everything else.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// From this size on, in bytes, reading a request takes longer than a worker may be kept busy.
const LARGE: usize = 64 * 1024;

/// How long a request for whose result there is no memory waits to be looked up.
const WITHOUT_ROOM: Duration = Duration::from_secs(1);

/// Places for requests that take much at once.
pub struct LargeRequests {
    reading: Semaphore,
    /// Places for requests that are looked up although there is no memory for their results.
    without_room: Semaphore,
}

impl LargeRequests {
    pub(in crate::gateway) fn new() -> Self {
        let places = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            reading: Semaphore::new(places),
            without_room: Semaphore::new(places),
        }
    }

    /// A place to be looked up without memory for the result; `None`: the store is slow, and others have them all.
    pub(in crate::gateway) async fn without_room(&self) -> Option<SemaphorePermit<'_>> {
        let place = timeout(WITHOUT_ROOM, self.without_room.acquire()).await;
        place.ok()?.ok()
    }

    /// Reads a request of so many bytes. Of large ones only a few are read at the same time.
    pub async fn read_off_workers<T>(&self, bytes: usize, read: impl FnOnce() -> T) -> T {
        if bytes < LARGE {
            return read();
        }
        // Never closed.
        let _place = self.reading.acquire().await;
        match Handle::current().runtime_flavor() {
            // The worker's other tasks go on elsewhere.
            RuntimeFlavor::MultiThread => tokio::task::block_in_place(read),
            _ => read(),
        }
    }
}
