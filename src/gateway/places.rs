//! Rooms with a bounded number of places, shared by tenants and tokens. The rule is in
//! `core::places`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::caller::Caller;
use crate::core::places::{Held, has_place, line_length};
use crate::core::record::Intent;
use crate::core::session::{LINE_LENGTH, SessionId};

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

/// A room with places. Clones are the same room.
#[derive(Clone)]
pub(super) struct Places {
    all: usize,
    taken: Arc<Mutex<HashMap<Owner, usize>>>,
}

/// A taken place; dropped, it is given back.
pub(super) struct Place {
    taken: Arc<Mutex<HashMap<Owner, usize>>>,
    owner: Owner,
}

impl Places {
    pub(super) fn new(all: usize) -> Self {
        Self {
            all,
            taken: Arc::default(),
        }
    }

    /// Takes a place, if the owner may have one more.
    pub(super) fn take(&self, owner: Owner) -> Option<Place> {
        let mut taken = lock(&self.taken);
        // Few have places at once: each of them is a token of the configuration.
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
        Some(Place {
            taken: self.taken.clone(),
            owner,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        give_back(&self.taken, &self.owner);
    }
}

/// The calls of this process in the lines of sessions, by token.
#[derive(Default)]
pub(super) struct Lines {
    standing: Arc<Mutex<HashMap<(SessionId, String), usize>>>,
}

/// A call in a line, until it is dropped.
pub(super) struct Standing {
    standing: Arc<Mutex<HashMap<(SessionId, String), usize>>>,
    whose: (SessionId, String),
}

impl Lines {
    /// Notes that a call may stand in its session's line.
    ///
    /// `longest`: how many may stand there before it, which is less for all but the first of its
    /// token.
    pub(super) fn stand(&self, intent: &Intent, longest: &mut u32) -> Standing {
        let whose = (SessionId::of(intent), intent.made_by.clone());
        let mut standing = lock(&self.standing);
        let before = standing.entry(whose.clone()).or_default();
        *longest = line_length(LINE_LENGTH, *before);
        *before += 1;
        Standing {
            standing: self.standing.clone(),
            whose,
        }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        give_back(&self.standing, &self.whose);
    }
}

/// Gives places back. Owners without a place are dropped.
fn give_back<K: std::hash::Hash + Eq>(taken: &Mutex<HashMap<K, usize>>, owner: &K) {
    let mut taken = lock(taken);
    if let Some(places) = taken.get_mut(owner) {
        *places -= 1;
        if *places == 0 {
            taken.remove(owner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
