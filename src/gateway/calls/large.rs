//! Large requests are read off the runtime's workers: what takes long must not hold up everything else.

use tokio::runtime::{Handle, RuntimeFlavor};

use tokio::sync::Semaphore;

/// From this size on, in bytes, reading a request takes longer than a worker may be kept busy.
const LARGE: usize = 64 * 1024;

/// Places for large requests that are being read.
pub struct LargeRequests {
    pub(in crate::gateway) reading: Semaphore,
}

impl LargeRequests {
    pub(in crate::gateway) fn new() -> Self {
        let places = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            reading: Semaphore::new(places),
        }
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
