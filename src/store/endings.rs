//! Listeners for the ends of calls. Only hints: correctness comes from looking.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::core::record::CallId;
use crate::store::lock::lock;

/// The calls that have listeners here.
#[derive(Default)]
pub struct Endings(Mutex<HashMap<CallId, Vec<Arc<Notify>>>>);

impl Endings {
    /// Begins to listen: no end after this is missed.
    pub fn listen(self: &Arc<Self>, call_id: CallId) -> Listener {
        let notify = Arc::<Notify>::default();
        self.lock().entry(call_id).or_default().push(notify.clone());
        Listener {
            call_id,
            notify,
            endings: self.clone(),
        }
    }

    /// Wakes the listeners of this call.
    pub fn say(&self, call_id: CallId) {
        for notify in self.lock().get(&call_id).into_iter().flatten() {
            // A permit is kept for one that is busy looking.
            notify.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CallId, Vec<Arc<Notify>>>> {
        lock(&self.0)
    }
}

/// Listens for the end of one call until it is dropped.
pub struct Listener {
    call_id: CallId,
    notify: Arc<Notify>,
    endings: Arc<Endings>,
}

impl Listener {
    /// Returns when the call may have ended. May never return.
    pub async fn heard(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut listened = self.endings.lock();
        let Some(listeners) = listened.get_mut(&self.call_id) else {
            return;
        };
        listeners.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
        if listeners.is_empty() {
            listened.remove(&self.call_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;
    use uuid::Uuid;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_listens_hears_of_its_own_call_only_and_leaves_nothing_behind() {
        let endings = Arc::<Endings>::default();
        let (mine, other) = (CallId(Uuid::from_u128(1)), CallId(Uuid::from_u128(2)));
        endings.say(mine);
        let listener = endings.listen(mine);
        endings.say(other);
        let hears = async || {
            timeout(Duration::from_secs(1), listener.heard())
                .await
                .is_ok()
        };
        assert!(!hears().await, "what was said before, or of another");
        endings.say(mine);
        assert!(hears().await, "also what was said while it was busy");
        let other = endings.listen(mine);
        endings.say(mine);
        let other_hears = timeout(Duration::from_secs(1), other.heard()).await.is_ok();
        assert!(
            hears().await && other_hears,
            "each who listens: one that waits for it, one next in line"
        );
        drop((listener, other));
        assert!(endings.lock().is_empty());
    }
}
