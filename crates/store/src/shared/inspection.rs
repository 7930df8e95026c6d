//! When the server of a shared store is inspected, and what becomes of the finding.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{self, Notify};
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

    /// Held by an inspection, and by each step of accepting a loss. An inspection that began before an acceptance must not close
    /// the store after it.
    fn turn(&self) -> &sync::Mutex<()>;

    /// Inspects everything once, and publishes what it finds. Its caller holds the turn.
    async fn inspect_in_turn(&self);

    /// Waits for the turn, and inspects.
    async fn inspect(&self) {
        let _turn = self.turn().lock().await;
        self.inspect_in_turn().await;
    }
}

/// Prepares the acceptance of a loss.
///
/// # Errors
/// As of `preparing`.
pub async fn prepare<T>(
    watch: &impl Inspects,
    preparing: impl Future<Output = Result<T>>,
) -> Result<()> {
    let _turn = watch.turn().lock().await;
    preparing.await.map(drop)
}

/// Completes the acceptance of a loss, and inspects the store. It is open afterwards if nothing else is wrong.
///
/// # Errors
/// As of `accepting`.
pub async fn accept(
    watch: &impl Inspects,
    accepting: impl Future<Output = Result<()>>,
) -> Result<()> {
    let _turn = watch.turn().lock().await;
    accepting.await?;
    watch.inspect_in_turn().await;
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what begins and ends. Each inspection takes a second.
    #[derive(Default)]
    struct Slow {
        turn: sync::Mutex<()>,
        notes: Mutex<Vec<&'static str>>,
    }

    #[async_trait]
    impl Inspects for Slow {
        fn trouble(&self) -> Arc<Notify> {
            Arc::default()
        }

        fn pause(&self) -> Duration {
            Duration::ZERO
        }

        fn turn(&self) -> &sync::Mutex<()> {
            &self.turn
        }

        async fn inspect_in_turn(&self) {
            lock(&self.notes).push("begins");
            sleep(Duration::from_secs(1)).await;
            lock(&self.notes).push("ends");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_acceptance_waits_for_the_inspection_under_way_and_is_inspected_before_another() {
        let watch = Slow::default();
        let note = async |what| {
            lock(&watch.notes).push(what);
            Ok(())
        };
        let (_, prepared, accepted, _) = tokio::join!(
            watch.inspect(),
            prepare(&watch, note("prepared")),
            accept(&watch, note("accepted")),
            watch.inspect()
        );
        assert!(prepared.is_ok() && accepted.is_ok());
        let notes = lock(&watch.notes).join(" ");
        assert_eq!(
            notes,
            "begins ends prepared accepted begins ends begins ends"
        );
    }
}
