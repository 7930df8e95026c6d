//! Bounded numbers of permits, shared by tenants and tokens. The rule is in `rules::permits`.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use crate::base::lock::lock;
use oncegate_rules::caller::Caller;
use oncegate_rules::permits::{Held, has_permit, line_length};
use oncegate_rules::record::Intent;
use oncegate_rules::session::{LINE_LENGTH, SessionId};

/// The owner of a permit: a tenant, and the name of one of its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    tenant: String,
    token: String,
}

impl Owner {
    pub(crate) fn of(intent: &Intent) -> Self {
        Self {
            tenant: intent.tenant.clone(),
            token: intent.made_by.clone(),
        }
    }

    /// The token of a caller.
    pub fn of_caller(caller: &Caller) -> Self {
        Self {
            tenant: caller.tenant.clone(),
            token: caller.name.clone(),
        }
    }
}

/// How many permits each owner has.
type Counts<K> = Arc<Mutex<HashMap<K, usize>>>;

/// A taken permit; dropped, it is given back.
pub struct Taken<K: Hash + Eq> {
    counts: Counts<K>,
    owner: K,
}

impl<K: Hash + Eq> Drop for Taken<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(permits) = counts.get_mut(&self.owner) {
            *permits -= 1;
            if *permits == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}

/// A permit to run a call, or to forward a request.
pub type FairPermit = Taken<Owner>;

/// A bounded number of permits. Clones share them.
#[derive(Clone)]
pub struct FairPermits {
    all: usize,
    taken: Counts<Owner>,
}

impl FairPermits {
    /// So many permits.
    pub fn new(all: usize) -> Self {
        Self {
            all,
            taken: Arc::default(),
        }
    }

    /// Takes a permit, if the owner may have one more.
    pub fn take(&self, owner: Owner) -> Option<FairPermit> {
        let mut taken = lock(&self.taken);
        // Few owners have permits at once: each owner is a token of the configuration.
        let mut held = Held::default();
        for (other, permits) in &*taken {
            held.by_all += permits;
            if other.tenant == owner.tenant {
                held.by_tenant += permits;
            }
            if *other == owner {
                held.by_token += permits;
            }
        }
        if !has_permit(self.all, held) {
            return None;
        }
        *taken.entry(owner.clone()).or_default() += 1;
        let counts = self.taken.clone();
        Some(Taken { counts, owner })
    }
}

/// The calls of this process in the lines of sessions, by session and token.
#[derive(Default)]
pub(crate) struct Lines(Counts<(SessionId, String)>);

impl Lines {
    /// Notes that a call may stand in its session's line, until the answer is dropped.
    ///
    /// Sets `longest`, the number of calls that may stand there before it. It is less for all but the first call of
    /// a token.
    pub(crate) fn stand(&self, intent: &Intent, longest: &mut u32) -> Taken<(SessionId, String)> {
        let owner = (SessionId::of(intent), intent.made_by.clone());
        let mut standing = lock(&self.0);
        let before = standing.entry(owner.clone()).or_default();
        *longest = line_length(LINE_LENGTH, *before);
        *before += 1;
        let counts = self.0.clone();
        Taken { counts, owner }
    }
}
