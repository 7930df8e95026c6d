//! The loops of a running gateway: recovery, rechecks, sagas, cleanup and more.
//!
//! A failure is logged where it happens, and the next round tries again.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::WingServices;
#[cfg(feature = "console")]
use crate::console::SAMPLE_EVERY;
use crate::core::timings::Timings;
use crate::gateway::{self, Gateway, Tools};

/// How often paused tools are read.
///
/// One read may fail or be late before the list is too old to claim on.
const LOOK_AT_PAUSES_EVERY: Duration = Duration::from_millis(500);

/// Starts all loops. They end when `stop` is cancelled.
#[cfg_attr(
    not(any(feature = "console", feature = "reconcile")),
    expect(unused_variables, reason = "these wings are left out")
)]
pub fn begin(
    gateway: &Arc<Gateway>,
    wings: &WingServices,
    timings: Timings,
    stop: &CancellationToken,
) -> JoinSet<()> {
    let mut loops = JoinSet::new();
    macro_rules! every {
        ($period:expr, |$gateway:ident| $work:expr) => {
            every!($period, gateway, |$gateway| $work);
        };
        ($period:expr, $service:expr, |$own:ident| $work:expr) => {
            let ($own, stop, period) = ($service.clone(), stop.clone(), $period);
            loops.spawn(async move {
                while pause(period, &stop).await {
                    let _done = $work;
                }
            });
        };
    }
    let (recover, look) = (timings.recover_every, timings.look_every);
    every!(recover, |g| g.lost.recover_all(g.now()).await);
    // A loop of its own: recovery does not wait for deletions.
    every!(recover, |g| g.prune_all().await);
    every!(recover, |g| g
        .key_schemes
        .keep_key_schemes_once(g.now())
        .await);
    every!(recover, |g| g.status.count_frozen().await);
    every!(recover, |g| g.erasures.erase_due(g.now()).await);
    every!(recover, |g| g.expiry.delete_bodies_once().await);
    every!(LOOK_AT_PAUSES_EVERY, |g| g.pauses.look_at_pauses().await);
    every!(timings.count_every, |g| g
        .duplicates
        .write_duplicates()
        .await);
    every!(look, |g| g.approvals.run_once(g.now()).await);
    every!(recover, |g| g.approvals.note_oldest().await);
    every!(look, |g| g.notices.run_once(g.now()).await);
    every!(look, |g| g.saga_worker.begin_saga_work(g.now()).await);
    #[cfg(feature = "reconcile")]
    {
        let reconciler = &wings.reconciler;
        every!(look, reconciler, |r| r.reconcile_due(r.now()).await);
        every!(look, reconciler, |r| r.work_on_anomalies().await);
    }
    #[cfg(feature = "console")]
    every!(SAMPLE_EVERY, wings.console, |c| c.take_samples());
    loops.spawn(recheck(gateway.clone(), look, stop.clone()));
    loops
}

/// Begins the due rechecks, again and again.
async fn recheck(gateway: Arc<Gateway>, every: Duration, stop: CancellationToken) {
    // Unknown calls are scheduled once at the start, and again whenever the tools have changed.
    let mut taken_up: Option<Arc<Tools>> = None;
    while pause(every, &stop).await {
        let tools = gateway.base.tools();
        let is_taken_up = taken_up
            .as_ref()
            .is_some_and(|before| Arc::ptr_eq(before, &tools));
        // A store that is not ready yet may be so in a later round.
        if !is_taken_up
            && gateway.status.readiness().await.reasons.is_empty()
            && gateway.rechecks.take_up_once().await.is_ok()
        {
            taken_up = Some(tools);
        }
        drop(gateway.rechecks.begin_rechecks(gateway.now()).await);
    }
}

/// Waits for about this long; false: stop.
///
/// The jitter keeps gateways from working at the same moment.
async fn pause(about: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = sleep(about.mul_f64(0.5 + gateway::jitter())) => true,
        () = stop.cancelled() => false,
    }
}
