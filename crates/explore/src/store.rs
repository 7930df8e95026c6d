//! The store's compare-and-swap, like `crates/store-sqlite/src/calls.rs` and `crates/store-sqlite/src/calls/session.rs`.

use std::sync::Arc;

use super::names::{ARGUMENTS, names_of};
use super::scene::Break;
use super::world::{Name, World};
use oncegate_rules::call::Change;
use oncegate_rules::record::{Record, State};
use oncegate_rules::saga::Saga;
use oncegate_rules::session::{Lock, Token};

/// The result of a claim.
pub(super) enum Claimed {
    Yours(Arc<Record>),
    Existing(Arc<Record>),
    /// The session's lock is held, or the store lets nothing begin.
    Refused,
}

/// The result of a change.
pub(super) enum Replaced {
    Done(Arc<Record>),
    Lost(Option<Arc<Record>>),
    Refused,
}

fn is_seen(holder: &Record, seen: &[Arc<Record>]) -> bool {
    let version = |record: &Record| (record.intent.call_id, record.version, record.attempt.id);
    seen.iter().any(|seen| version(seen) == version(holder))
}

impl World {
    /// Claims the call's name, unless a call that is not in `replaced` holds it.
    pub(super) fn claim(
        &mut self,
        change: &Change,
        replaced: &[Arc<Record>],
        broken: Break,
    ) -> Claimed {
        for name in names_of(&change.record) {
            let Some(holder) = self.store.holder(name) else {
                continue;
            };
            let ours = [Arc::new(change.record.clone())];
            if is_seen(holder, &ours) {
                return Claimed::Yours(holder.clone());
            }
            let is_taken = match broken {
                Break::ClaimTakesHeldKey => true,
                Break::TakesArgumentsFromLivingCall => name == ARGUMENTS,
                _ => is_seen(holder, replaced),
            };
            if !is_taken {
                return Claimed::Existing(holder.clone());
            }
        }
        if self.is_closed {
            return Claimed::Refused;
        }
        let Some(record) = self.enter(change) else {
            return Claimed::Refused;
        };
        for name in names_of(&record) {
            self.store.give_name(name, record.intent.call_id);
        }
        self.store.put(record.clone());
        Claimed::Yours(record)
    }

    /// Writes a change, if the stored record is still the expected one.
    pub(super) fn replace(
        &mut self,
        change: &Change,
        expected: &Record,
        broken: Break,
    ) -> Replaced {
        let id = change.record.intent.call_id;
        let runs = change.record.state == State::Running;
        let mut holders = names_of(&change.record).filter_map(|name| self.store.holder(name));
        if runs && let Some(holder) = holders.find(|holder| holder.intent.call_id != id) {
            return Replaced::Lost(Some(holder.clone()));
        }
        let Some(stored) = self.store.load(id).cloned() else {
            return Replaced::Lost(None);
        };
        let tag = |record: &Record| (record.version, record.attempt.id, record.fencing);
        // A store that went back may hold another change of the same version: see `docs/evidence/reliability.md`.
        let is_same = tag(&stored) == tag(expected) && *stored == *expected;
        if !is_same && broken != Break::ReplacesWithoutComparing {
            return if *stored == change.as_stored(&stored) {
                Replaced::Done(stored)
            } else {
                Replaced::Lost(Some(stored))
            };
        }
        let begins = runs && change.record.attempt.id != expected.attempt.id;
        if begins && self.is_closed {
            return Replaced::Refused;
        }
        let Some(record) = self.enter(change) else {
            return Replaced::Refused;
        };
        self.store.put(record.clone());
        self.release(change);
        Replaced::Done(record)
    }

    /// Draws the fencing token and takes the session's lock, if the conditions of the change hold.
    fn enter(&mut self, change: &Change) -> Option<Arc<Record>> {
        let mut record = change.record.clone();
        let Some(admission) = &change.admission else {
            return Some(Arc::new(record));
        };
        let (id, now) = (record.intent.call_id, record.updated_at);
        if admission.lock.is_some() {
            let is_free =
                |lock: &Lock| lock.call_id == id || lock.free_from.is_some_and(|from| from <= now);
            if self.store.lock.as_ref().is_some_and(|lock| !is_free(lock)) {
                return None;
            }
        }
        if admission.token == Token::Undrawn {
            return Some(Arc::new(record));
        }
        self.store.token += 1;
        record.fencing = Some(self.store.token);
        if admission.lock.is_some() {
            self.store.lock = Some(Lock {
                call_id: id,
                token: self.store.token,
                lease_until: record.attempt.lease_until,
                free_from: None,
            });
        }
        Some(Arc::new(record))
    }

    /// Frees the session's lock, if this run of the call has it.
    fn release(&mut self, change: &Change) {
        let (id, token) = (change.record.intent.call_id, change.record.fencing);
        let Some(from) = change.release.lock_from else {
            return;
        };
        let holds = |lock: &Lock| lock.call_id == id && Some(lock.token) == token;
        if let Some(lock) = self.store.lock.filter(holds) {
            let is_free = from <= change.record.updated_at;
            let later = Lock {
                free_from: Some(from),
                ..lock
            };
            self.store.lock = (!is_free).then_some(later);
        }
    }

    /// Writes a saga, if the version before it is stored; `false`: another writer was faster.
    pub(super) fn put_saga(&mut self, saga: &Arc<Saga>) -> bool {
        let place = self
            .store
            .sagas
            .iter()
            .position(|stored| stored.id == saga.id);
        let before = place.map_or(0, |at| self.store.sagas[at].version);
        if saga.version != before + 1 {
            return false;
        }
        match place {
            Some(at) => self.store.sagas[at] = saga.clone(),
            None => self.store.sagas.push(saga.clone()),
        }
        true
    }

    /// Deletes calls and sagas that need not be kept.
    pub(super) fn prune(&mut self, is_over: impl Fn(&Record) -> bool) {
        self.store.calls.retain(|record| !is_over(record));
        let calls = &self.store.calls;
        let is_there =
            |(_, id): &(Name, _)| calls.iter().any(|record| record.intent.call_id == *id);
        self.store.names.retain(is_there);
    }
}
