//! Bounded numbers of permits, shared by tenants and tokens. The rule is in `core::places`.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use super::lock::lock;
use oncegate_rules::caller::Caller;
use oncegate_rules::places::{Held, has_place, line_length};
use oncegate_rules::record::Intent;
use oncegate_rules::session::{LINE_LENGTH, SessionId};

/// The owner of a place: a tenant, and the name of one of its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    tenant: String,
    token: String,
}

impl Owner {
    pub(super) fn of(intent: &Intent) -> Self {
        Self {
            tenant: intent.tenant.clone(),
            token: intent.made_by.clone(),
        }
    }

    pub(super) fn of_caller(caller: &Caller) -> Self {
        Self {
            tenant: caller.tenant.clone(),
            token: caller.name.clone(),
        }
    }
}

/// How many permits each owner has.
type Counts<K> = Arc<Mutex<HashMap<K, usize>>>;

/// A taken permit; dropped, it is given back.
pub(super) struct Taken<K: Hash + Eq> {
    counts: Counts<K>,
    owner: K,
}

impl<K: Hash + Eq> Drop for Taken<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(places) = counts.get_mut(&self.owner) {
            *places -= 1;
            if *places == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}

pub(super) type Place = Taken<Owner>;

/// A bounded number of permits. Clones share them.
#[derive(Clone)]
pub(super) struct Places {
    all: usize,
    taken: Counts<Owner>,
}

impl Places {
    pub(super) fn new(all: usize) -> Self {
        Self {
            all,
            taken: Arc::default(),
        }
    }

    /// Takes a permit, if the owner may have one more.
    pub(super) fn take(&self, owner: Owner) -> Option<Place> {
        let mut taken = lock(&self.taken);
        // Few owners have permits at once: each owner is a token of the configuration.
        let mut held = Held::default();
        for (other, places) in &*taken {
            held.by_all += places;
            if other.tenant == owner.tenant {
                held.by_tenant += places;
            }
            if *other == owner {
                held.by_token += places;
            }
        }
        if !has_place(self.all, held) {
            return None;
        }
        *taken.entry(owner.clone()).or_default() += 1;
        let counts = self.taken.clone();
        Some(Taken { counts, owner })
    }
}

/// The calls of this process in the lines of sessions, by session and token.
#[derive(Default)]
pub(super) struct Lines(Counts<(SessionId, String)>);

impl Lines {
    /// Notes that a call may stand in its session's line, until the answer is dropped.
    ///
    /// Sets `longest`, the number of calls that may stand there before it. It is less for all but the first call of
    /// a token.
    pub(super) fn stand(&self, intent: &Intent, longest: &mut u32) -> Taken<(SessionId, String)> {
        let owner = (SessionId::of(intent), intent.made_by.clone());
        let mut standing = lock(&self.0);
        let before = standing.entry(owner.clone()).or_default();
        *longest = line_length(LINE_LENGTH, *before);
        *before += 1;
        let counts = self.0.clone();
        Taken { counts, owner }
    }
}
