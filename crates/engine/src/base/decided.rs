//! Which calls this process has let wait for approval, or ended their wait: a hint for notices, which come late without it.

use std::collections::HashSet;
use std::sync::Mutex;

use super::lock::lock;
use oncegate_rules::record::CallId;

/// Most calls of which this is known.
const MAX_DECIDED: usize = 10_000;

/// The calls since the last look.
#[derive(Debug, Default)]
pub(crate) struct Decided(Mutex<HashSet<CallId>>);

impl Decided {
    /// Notes that the wait of a call has begun or ended.
    pub(crate) fn note(&self, call_id: CallId) {
        let mut decided = lock(&self.0);
        if decided.len() < MAX_DECIDED {
            decided.insert(call_id);
        }
    }

    /// Takes what was noted.
    pub(crate) fn take(&self) -> HashSet<CallId> {
        std::mem::take(&mut *lock(&self.0))
    }
}
