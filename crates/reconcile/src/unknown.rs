//! How many calls are unknown, asked for by several reconciliations.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::settings::Reconciliation;
use oncegate_store as store;

/// How often the store is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How many calls of each tool are unknown.
#[derive(Default)]
pub(super) struct Unknown(Mutex<Option<(Instant, Vec<store::Census>)>>);

impl Unknown {
    /// The unknown calls of a reconciliation's tools; `None`: the store does not say.
    pub(super) async fn of(&self, store: &dyn store::Store, of: &Reconciliation) -> Option<u64> {
        let mut known = self.0.lock().await;
        let is_old = |(at, _): &(Instant, _)| at.elapsed() >= ASK_EVERY;
        if known.as_ref().is_none_or(is_old) {
            *known = Some((Instant::now(), store.census().await.ok()?));
        }
        let (_, census) = known.as_ref()?;
        let unknown = census.iter().filter(|count| count.state == "unknown");
        let of_tools = unknown.filter(|count| of.tools.contains(&count.tool));
        Some(of_tools.map(|count| count.calls).sum())
    }
}
