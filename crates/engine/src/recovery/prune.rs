//! Cleanup: deletes records whose retention is over.

use jiff::Timestamp;
use tokio::time::Instant;

use crate::base::Base;
use crate::base::clock;
use crate::status::Status;
use oncegate_rules::timings::next_batch;
use oncegate_store::{self as store, NO_SPACE};

/// Most calls of one batch. A slow batch is followed by a smaller one, because live traffic waits for it.
const BATCH: u32 = 100;

/// Calls of a shared store in one batch. The store deletes them in smaller steps between live traffic.
const SHARED_BATCH: u32 = 1_000;

/// Deletes every record whose retention is over, in small steps between live traffic.
///
/// Goes by the store's clock, with the smallest offset that was ever seen. Deletes nothing while the store is not
/// ready, unless it lacks only room. So neither a wrong clock of the store nor of this machine deletes anything.
///
/// # Errors
/// The store failed; what was deleted stays so.
pub(crate) async fn prune_all(base: &Base, status: &Status) -> Result<(), store::Error> {
    let is_shared = base.store.is_shared();
    let mut batch = if is_shared { SHARED_BATCH } else { BATCH };
    while let Some(now) = time_of_deletion(base, status).await {
        let began = Instant::now();
        if base.store.prune(now, batch).await? < u64::from(batch) {
            return Ok(());
        }
        if !is_shared {
            batch = next_batch(batch, began.elapsed(), BATCH);
        }
    }
    Ok(())
}

/// The time by which something stored is over. `None`: nothing may be deleted now.
pub(super) async fn time_of_deletion(base: &Base, status: &Status) -> Option<Timestamp> {
    let readiness = status.readiness().await;
    let mut warnings = readiness.warnings.iter();
    let is_clock_off = warnings.any(|warning| warning.code == "clock");
    let offset = base.clock.least_offset(base.store.clock_offset());
    let mut reasons = readiness.reasons.iter();
    let is_whole = reasons.all(|reason| NO_SPACE.contains(&reason.code));
    (is_whole && !is_clock_off).then(|| base.now().min(clock::wall(offset)))
}
