//! When the server of a shared store is inspected, and what becomes of the finding.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::seen::Seen;
use crate::lock::lock;
use crate::status::{Status, unreachable};
use crate::{Readiness, Reason, Result};

/// How long a start waits for the first inspection.
const FIRST: Duration = Duration::from_secs(3);
/// The shortest time between two inspections after trouble.
pub const PAUSE: Duration = Duration::from_millis(50);

/// What inspects a server, all of it each time.
#[async_trait]
pub trait Inspects: Send + Sync + 'static {
    /// Told of trouble with a connection: then the next inspection comes early.
    fn trouble(&self) -> Arc<Notify>;

    /// How long to wait for the next inspection.
    fn pause(&self) -> Duration;

    /// Inspects everything once, and publishes what it finds.
    async fn inspect(&self);
}

/// Inspects a server, and goes on as long as a handle of the store is open.
pub async fn begin(watch: &Arc<impl Inspects>) {
    // If it takes longer, the loop repeats it.
    drop(timeout(FIRST, watch.inspect()).await);
    tokio::spawn(go_on(Arc::downgrade(watch)));
}

async fn go_on(store: Weak<impl Inspects>) {
    loop {
        let Some(watch) = store.upgrade() else { return };
        let (trouble, pause) = (watch.trouble(), watch.pause());
        drop(watch);
        tokio::select! {
            () = sleep(pause) => {}
            () = trouble.notified() => sleep(PAUSE).await,
        }
        let Some(watch) = store.upgrade() else { return };
        watch.inspect().await;
    }
}

impl Status {
    /// Publishes the finding of an inspection that began when the store had been closed so often.
    ///
    /// `is_saved`: whether the file of watermarks could be written.
    pub fn conclude<T>(
        &self,
        store: &dyn fmt::Display,
        found: Result<Readiness>,
        closings: u64,
        is_saved: bool,
        trouble: &Notify,
        seen: &Seen<T>,
    ) {
        let kind = self.kind();
        let mut found =
            found.unwrap_or_else(|error| unreachable(format!("{kind} is not reached: {error}")));
        if !is_saved {
            let text = "the file of watermarks cannot be written";
            found.reasons.push(Reason::new("watermarks", text));
        }
        if self.closings() != closings && found.reasons.is_empty() {
            // This inspection may have seen the state before the store was closed.
            let text = format!("{kind} has to be inspected once more");
            found.reasons.push(Reason::new("disconnected", text));
            trouble.notify_one();
        }
        seen.add_to(&mut found);
        self.publish(found, store);
    }
}

/// The time after a restart or an exchange of the server in which every gateway inspects it.
///
/// The server may have lost writes that only another gateway knows. `R` names a run of the server.
pub struct Settling<R> {
    time: Duration,
    since: Mutex<Option<(R, Instant)>>,
}

impl<R: PartialEq> Settling<R> {
    pub fn new(time: Duration) -> Self {
        let since = Mutex::default();
        Self { time, since }
    }

    /// This run was seen, at this time at the latest. The time begins if the last one was another.
    ///
    /// `settled`: the run that an earlier process remembers as settled. A process that stopped before that begins anew.
    pub fn saw(&self, run: R, settled: Option<R>, at: Instant) {
        let mut since = lock(&self.since);
        let is_same = match &*since {
            Some((last, _)) => *last == run,
            None => settled.is_some_and(|settled| settled == run),
        };
        if !is_same {
            *since = Some((run, at));
        }
    }

    /// How long other gateways still have.
    pub fn left(&self) -> Option<Duration> {
        let since = lock(&self.since);
        let (_, since) = since.as_ref()?;
        let left = self.time.checked_sub(since.elapsed())?;
        (!left.is_zero()).then_some(left)
    }
}
