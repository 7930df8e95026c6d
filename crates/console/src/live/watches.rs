//! Console pages that are kept current: how many at once, and for how long. The rule is in `oncegate_rules::permits`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use oncegate_engine::Base;
use oncegate_engine::wings::{FairPermit, FairPermits, Owner};
use oncegate_rules::caller::Caller;

/// Most pages that one gateway keeps current at once. Each asks the store once a second.
const MOST: usize = 64;

/// The permits for pages that are kept current.
pub(crate) struct Watches {
    base: Arc<Base>,
    permits: FairPermits,
}

/// A page that is kept current. Dropped, it gives its permit back.
pub(crate) struct Watch {
    draining: CancellationToken,
    until: Instant,
    _permit: FairPermit,
}

impl Watches {
    pub(crate) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            permits: FairPermits::new(MOST),
        }
    }

    /// A permit for a page. `None`: this caller has too many already.
    pub(crate) fn watch(&self, caller: &Caller) -> Option<Watch> {
        Some(Watch {
            draining: self.base.draining.clone(),
            until: Instant::now() + self.base.limits.timings.listen_at_most,
            _permit: self.permits.take(Owner::of_caller(caller))?,
        })
    }
}

impl Watch {
    /// Waits. False: the gateway stops, or the page was kept current for long enough.
    pub(crate) async fn rest(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.draining.cancelled() => false,
            () = sleep_until(self.until) => false,
            () = sleep(time) => true,
        }
    }
}
