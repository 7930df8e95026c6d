//! One life of a gateway: it stalls, and ends at any moment.
//!
//! A gateway that has ended reaches nothing any more, so it does not matter that its tasks are still there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use super::world::World;

tokio::task_local! {
    /// The number of the agent whose request a task serves, from 1.
    pub(super) static AGENT: u64;
}

pub(super) struct Life {
    pub(super) name: String,
    pub(super) world: Arc<World>,
    pub(super) over: CancellationToken,
    stalled_until: AtomicU64,
}

impl Life {
    pub(super) fn begin(name: String, world: Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            name,
            world,
            over: CancellationToken::new(),
            stalled_until: AtomicU64::new(0),
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Whatever it does now takes until then.
    pub(super) fn stall(&self, until: u64) {
        self.stalled_until.store(until, Ordering::SeqCst);
    }

    /// Waits for a turn, and while the gateway stalls; for ever if it has ended.
    pub(super) async fn turn(&self, name: &str, after_ms: u64) {
        self.world.turns.wait(name.to_owned(), after_ms).await;
        self.awake(name).await;
    }

    /// Waits while the gateway stalls; for ever if it has ended.
    pub(super) async fn awake(&self, name: &str) {
        loop {
            if self.is_over() {
                return std::future::pending().await;
            }
            let (now, until) = (self.world.now(), self.stalled_until.load(Ordering::SeqCst));
            if until <= now {
                return;
            }
            self.world.turns.wait(name.to_owned(), until - now).await;
        }
    }

    /// Waits while the gateway stalls. `None`: it has ended.
    pub(super) async fn awake_or_over(&self, name: &str) -> Option<()> {
        tokio::select! {
            biased;
            () = self.over.cancelled() => None,
            () = self.awake(name) => Some(()),
        }
    }
}
