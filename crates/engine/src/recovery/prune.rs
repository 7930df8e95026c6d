//! Cleanup: deletes records whose retention is over.

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
    loop {
        let readiness = status.readiness().await;
        let mut warnings = readiness.warnings.iter();
        let is_clock_off = warnings.any(|warning| warning.code == "clock");
        let offset = base.clock.least_offset(base.store.clock_offset());
        if is_clock_off
            || !readiness
                .reasons
                .iter()
                .all(|reason| NO_SPACE.contains(&reason.code))
        {
            return Ok(());
        }
        let now = base.now().min(clock::wall(offset));
        let began = Instant::now();
        if base.store.prune(now, batch).await? < u64::from(batch) {
            return Ok(());
        }
        if !is_shared {
            batch = next_batch(batch, began.elapsed(), BATCH);
        }
    }
}
