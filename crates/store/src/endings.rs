//! Listeners for the ends of calls. They get hints only: a listener must read the call itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::lock::lock;
use oncegate_rules::record::CallId;

/// The calls that have listeners here.
#[derive(Default)]
pub struct Endings(Mutex<HashMap<CallId, Vec<Arc<Notify>>>>);

impl Endings {
    /// Begins to listen. The listener misses no end after this.
    pub fn listen(self: &Arc<Self>, call_id: CallId) -> Listener {
        let notify = Arc::<Notify>::default();
        lock(&self.0)
            .entry(call_id)
            .or_default()
            .push(notify.clone());
        Listener {
            call_id,
            notify,
            endings: self.clone(),
        }
    }

    /// Wakes the listeners of this call.
    pub fn say(&self, call_id: CallId) {
        for notify in lock(&self.0).get(&call_id).into_iter().flatten() {
            // It is kept for a listener that does not wait at the moment.
            notify.notify_one();
        }
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
        let mut listened = lock(&self.endings.0);
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
    async fn a_listener_hears_of_its_own_call_only_and_leaves_nothing_behind() {
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
        assert!(!hears().await, "an end before it, or of another call");
        endings.say(mine);
        assert!(hears().await, "also an end while it did not wait");
        let other = endings.listen(mine);
        endings.say(mine);
        let other_hears = timeout(Duration::from_secs(1), other.heard()).await.is_ok();
        assert!(hears().await && other_hears, "each of two listeners");
        drop(other);
        endings.say(mine);
        assert!(hears().await, "also after another has stopped to listen");
        drop(listener);
        assert!(lock(&endings.0).is_empty());
    }
}
