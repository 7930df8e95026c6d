//! A store in memory that several gateways can share, and that can lose its newest writes, as a
//! server does that comes back from an older copy of its data.
//!
//! It keeps every promise of the trait but durability. Like a store whose counters show a loss, it
//! lets nothing begin after one until somebody has accepted it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use jiff::Timestamp;
use oncegate::core::call::Change;
use oncegate::core::key::Lookup;
use oncegate::core::record::{CallId, Entry, Record, State};
use oncegate::store::{
    Census, Claimed, Due, Durability, Error, LOST_DATA, Readiness, Reason, Replaced, Store,
};

/// Clones share one store.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    kept: Kept,
    /// What was kept before each write, with the key that the write was about.
    before: Vec<(Kept, Lookup)>,
    /// Every record that was ever written, also what was undone.
    written: Vec<Record>,
    has_lost: bool,
}

#[derive(Clone, Default)]
struct Kept {
    calls: HashMap<CallId, (Record, Vec<Entry>)>,
    holders: HashMap<Lookup, CallId>,
    /// The newest fencing token of each tenant's session.
    tokens: HashMap<(String, String), u64>,
}

impl Memory {
    /// Undoes the last `n` writes and answers which keys they were about.
    pub fn lose(&self, n: usize) -> Vec<Lookup> {
        let mut inner = self.lock();
        let first = inner.before.len().saturating_sub(n);
        let undone = inner.before.split_off(first);
        if let Some((kept, _)) = undone.first() {
            inner.kept = kept.clone();
            inner.has_lost = true;
        }
        undone.into_iter().map(|(_, lookup)| lookup).collect()
    }

    pub fn has_lost(&self) -> bool {
        self.lock().has_lost
    }

    /// Calls may begin again.
    pub fn accept_loss(&self) {
        self.lock().has_lost = false;
    }

    pub fn records(&self) -> Vec<(Record, Vec<Entry>)> {
        self.lock().kept.calls.values().cloned().collect()
    }

    /// Every record that was ever written under this key, also what was lost.
    pub fn written(&self, lookup: Lookup) -> Vec<Record> {
        let inner = self.lock();
        inner.written.iter().filter(|record| record.intent.lookup == lookup).cloned().collect()
    }

    pub fn holder_of(&self, lookup: Lookup) -> Option<Record> {
        self.lock().kept.holder(&lookup).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("not poisoned")
    }
}

impl Inner {
    /// Writes a change as it is to be stored.
    fn write(&mut self, change: &Change) -> Record {
        let mut record = change.record.clone();
        self.before.push((self.kept.clone(), record.intent.lookup));
        if change.draws_token {
            record.fencing = Some(self.kept.next_token(&record));
        }
        let call_id = record.intent.call_id;
        let (stored, entries) =
            self.kept.calls.entry(call_id).or_insert_with(|| (record.clone(), Vec::new()));
        *stored = record.clone();
        entries.push(change.entry.clone());
        self.written.push(record.clone());
        record
    }

    /// After a loss nobody knows which keys are free and which runs have been.
    fn may_begin(&self) -> Result<(), Error> {
        if self.has_lost { Err(Error::Refused("writes were lost".into())) } else { Ok(()) }
    }
}

impl Kept {
    fn holder(&self, lookup: &Lookup) -> Option<&Record> {
        self.load(*self.holders.get(lookup)?)
    }

    fn load(&self, call_id: CallId) -> Option<&Record> {
        self.calls.get(&call_id).map(|(record, _)| record)
    }

    /// The session's token after this one: it rises, and never falls behind the clock.
    fn next_token(&mut self, record: &Record) -> u64 {
        let session = (record.intent.tenant.clone(), record.intent.session_id.clone());
        let now = u64::try_from(record.updated_at.as_microsecond()).expect("after 1970");
        let token = self.tokens.entry(session).or_default();
        *token = now.max(*token + 1);
        *token
    }

    fn in_state(&self, name: &str) -> impl Iterator<Item = &Record> {
        self.calls.values().map(|(record, _)| record).filter(move |record| record.state.as_str() == name)
    }
}

/// The same version of the same call.
fn is_same(one: &Record, other: &Record) -> bool {
    let what = |record: &Record| (record.intent.call_id, record.version, record.attempt.id);
    what(one) == what(other)
}

#[async_trait]
impl Store for Memory {
    async fn claim(&self, change: &Change, instead_of: Option<&Record>) -> Result<Claimed, Error> {
        let mut inner = self.lock();
        inner.may_begin()?;
        let lookup = change.record.intent.lookup;
        if let Some(holder) = inner.kept.holder(&lookup) {
            if is_same(holder, &change.record) {
                return Ok(Claimed::Yours(holder.clone()));
            }
            if !instead_of.is_some_and(|seen| is_same(holder, seen)) {
                return Ok(Claimed::Existing(holder.clone()));
            }
        }
        let record = inner.write(change);
        inner.kept.holders.insert(lookup, record.intent.call_id);
        Ok(Claimed::Yours(record))
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        let mut inner = self.lock();
        let stored = inner.kept.load(expected.intent.call_id).cloned();
        let is_gone_back = stored.as_ref().is_none_or(|stored| stored.version < expected.version);
        if change.record.state == State::Running {
            inner.may_begin()?;
            if is_gone_back {
                return Err(Error::Refused("writes were lost".into()));
            }
            if let Some(holder) = inner.kept.holder(&expected.intent.lookup)
                && holder.intent.call_id != expected.intent.call_id
            {
                return Ok(Replaced::Lost(Some(holder.clone())));
            }
        } else if is_gone_back {
            // What is known of a call that was lost goes back as a whole.
            let record = inner.write(change);
            inner.kept.holders.entry(record.intent.lookup).or_insert(record.intent.call_id);
            return Ok(Replaced::Done(record));
        }
        Ok(match stored {
            Some(stored) if is_same(&stored, expected) && stored.fencing == expected.fencing => {
                Replaced::Done(inner.write(change))
            }
            Some(stored) if is_same(&stored, &change.record) && stored.state == change.record.state => {
                Replaced::Done(stored)
            }
            stored => Replaced::Lost(stored),
        })
    }

    async fn holder(&self, lookup: Lookup) -> Result<Option<Record>, Error> {
        Ok(self.holder_of(lookup))
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        Ok(self.lock().kept.load(call_id).cloned())
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<(Record, Vec<Entry>)>, Error> {
        let found = self.lock().kept.calls.get(&call_id).cloned();
        Ok(found.map(|(record, mut entries)| {
            entries.drain(..entries.len().saturating_sub(limit as usize));
            (record, entries)
        }))
    }

    /// By lease only: who shares a store cannot tell that an owner has ended.
    async fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<Due>, Error> {
        let inner = self.lock();
        let running = inner.kept.in_state(State::Running.as_str());
        let mut due: Vec<Record> =
            running.filter(|record| record.attempt.lease_until <= now).cloned().collect();
        due.sort_by_key(|record| record.attempt.lease_until);
        due.truncate(limit as usize);
        Ok(due.into_iter().map(|record| Due { record, owner_ended: false }).collect())
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        let inner = self.lock();
        let mut counts = HashMap::<(&str, &str), u64>::new();
        for state in ["running", "unknown"] {
            for record in inner.kept.in_state(state) {
                *counts.entry((&record.intent.tool, state)).or_default() += 1;
            }
        }
        let census = counts.into_iter();
        Ok(census
            .map(|((tool, state), calls)| Census { tool: tool.to_owned(), state: state.to_owned(), calls })
            .collect())
    }

    /// Sessions are never forgotten here.
    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        let mut inner = self.lock();
        let is_over = |record: &Record| record.retain_until.is_some_and(|until| until <= now);
        let over = inner.kept.calls.values().filter(|(record, _)| is_over(record));
        let over: Vec<CallId> = over.map(|(record, _)| record.intent.call_id).take(limit as usize).collect();
        for call_id in &over {
            inner.kept.calls.remove(call_id);
            inner.kept.holders.retain(|_, holder| holder != call_id);
        }
        Ok(over.len() as u64)
    }

    async fn readiness(&self) -> Readiness {
        let lost = Reason::new(LOST_DATA, "writes were lost");
        let reasons = if self.has_lost() { vec![lost] } else { Vec::new() };
        Readiness { durability: Some(Durability::Strict), reasons, warnings: Vec::new(), lost_writes: 0 }
    }
}
