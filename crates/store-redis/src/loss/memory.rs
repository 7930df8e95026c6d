//! The gateway's memory of a store: epoch, counts, newest token, and the writes of the last seconds.
//!
//! A small file, the watermarks, keeps all but the writes for the next start.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use super::format::{Format, OLDEST};
use super::{Sight, Writes};
use crate::keys::Partition;
use oncegate_rules::call::Change;
use oncegate_rules::record::State::Running;
use oncegate_rules::record::{CallId, Entry, Record};
use oncegate_store::shared::memory::{self, Own, new_name};
use oncegate_store::watermarks::WatermarksError;

/// How long a write is remembered to be put back.
const REMEMBERED: Duration = Duration::from_secs(10);
/// How many writes, and how many bytes of them, are remembered at most.
const MAX_REMEMBERED: (usize, usize) = (20_000, 64 << 20);

/// What the file has beside names, tokens and the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// The name that its own scripts contain.
    scripts: String,
    /// The epoch of the store's data; empty until the gateway has used a store.
    epoch: String,
    /// The store's format when the gateway last saw it; 0: not known.
    #[serde(default)]
    format: u32,
    /// When the store was moved to it, in microseconds.
    #[serde(default)]
    moved_us: Option<i64>,
    writes: Writes,
    /// The last servers at which every gateway had time to look.
    servers: String,
}

impl Own for Counted {
    fn begin() -> Self {
        Self {
            scripts: new_name(),
            epoch: String::new(),
            format: 0,
            moved_us: None,
            writes: Writes::default(),
            servers: String::new(),
        }
    }

    fn is_used(&self) -> bool {
        !self.epoch.is_empty()
    }
}

/// The gateway's memory of a store. Clones share it.
#[derive(Clone)]
pub(crate) struct Memory(memory::Memory<Counted, Live>);

impl Deref for Memory {
    type Target = memory::Memory<Counted, Live>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// What only this process remembers.
#[derive(Default)]
pub(crate) struct Live {
    /// Calls that run here, remembered until they end.
    running: HashMap<CallId, CallWrite>,
    recent: VecDeque<(Instant, CallWrite)>,
    recent_bytes: usize,
    /// How many writes of this gateway are left in each partition that has lost some.
    left: BTreeMap<Partition, u64>,
}

/// A write about a call, as it can be put back.
#[derive(Clone)]
pub(crate) struct CallWrite {
    pub(crate) record: Record,
    pub(crate) entry: Entry,
    /// Whether the call's run holds its session's lock.
    pub(crate) is_locked: bool,
}

impl CallWrite {
    pub(crate) fn call_id(&self) -> CallId {
        self.record.intent.call_id
    }

    fn size(&self) -> usize {
        self.record.intent.args.len() + crate::calls::record::result(&self.record).len() + 1_024
    }
}

impl Live {
    /// Forgets writes that are too old or too many.
    fn forget_old(&mut self, age: Duration) {
        while let Some((at, write)) = self.recent.front() {
            let (count, bytes) = MAX_REMEMBERED;
            let are_many = self.recent.len() > count || self.recent_bytes > bytes;
            if !are_many && at.elapsed() < age {
                return;
            }
            self.recent_bytes = self.recent_bytes.saturating_sub(write.size());
            self.recent.pop_front();
        }
    }
}

impl Memory {
    /// Reads the file, or begins one. A visitor neither locks nor writes it.
    pub(crate) fn open(path: &Path, is_visitor: bool) -> Result<Self, WatermarksError> {
        memory::Memory::open(path, is_visitor).map(Self)
    }

    /// The name that this process' own scripts contain.
    ///
    /// A visitor has another: its scripts are not a sign that the gateway has inspected the data.
    pub(crate) fn script_name(&self) -> String {
        if self.is_visitor() {
            format!("visitor {}", Uuid::new_v4())
        } else {
            self.state().noted.own.scripts.clone()
        }
    }

    /// The epoch; empty before the first use of a store.
    pub(crate) fn epoch(&self) -> String {
        self.state().noted.own.epoch.clone()
    }

    pub(crate) fn saw_format(&self, format: Format) {
        let noted = &mut self.state().noted.own;
        (noted.format, noted.moved_us) = (format.number, format.moved_us);
    }

    /// The store's format when it was last seen. The oldest if it never was.
    pub(crate) fn format(&self) -> Format {
        let noted = &self.state().noted.own;
        Format {
            number: noted.format.max(OLDEST),
            moved_us: noted.moved_us,
        }
    }

    /// How many of its own writes to a partition the gateway knows.
    pub(crate) fn writes(&self, partition: Partition) -> u64 {
        let state = self.state();
        state.noted.own.writes.of(&state.noted.gateway, partition)
    }

    /// How many of its own writes a server must have: those that the gateway knows, except lost ones.
    pub(crate) fn writes_left(&self, partition: Partition) -> u64 {
        let state = self.state();
        let known = state.noted.own.writes.of(&state.noted.gateway, partition);
        let left = state.live.left.get(&partition);
        left.map_or(known, |left| known.min(*left))
    }

    /// Notes an inspection that found writes missing. `known`: the writes that were known before it.
    ///
    /// A write that was made during the inspection may be absent from `sight`, and is not lost.
    pub(crate) fn saw_loss(&self, sight: &Sight, known: &Writes) {
        let mut state = self.state();
        let own = &state.noted.gateway;
        let left = Partition::all().filter_map(|at| {
            let there = sight.writes.of(own, at);
            (there < known.of(own, at)).then_some((at, there))
        });
        state.live.left = left.collect();
    }

    /// The known writes of all gateways.
    pub(crate) fn all_writes(&self) -> Writes {
        self.state().noted.own.writes.clone()
    }

    /// Notes an inspection that found nothing missing.
    ///
    /// Writes from before need not be put back, and forgotten gateways need not be remembered.
    pub(crate) fn saw_all(&self, sight: &Sight) {
        let mut state = self.state();
        state.live.left.clear();
        let noted = &mut state.noted;
        noted.own.writes.merge(&sight.writes);
        noted
            .own
            .writes
            .forget_absent(&sight.writes, &noted.gateway);
        state.saw_others_token(sight.token());
        state.live.forget_old(REMEMBERED);
    }

    /// The last servers at which every gateway had time to look; empty for a new gateway.
    pub(crate) fn settled_servers(&self) -> String {
        self.state().noted.own.servers.clone()
    }

    /// Every gateway had time to look at these servers.
    pub(crate) fn note_settled(&self, servers: &str) {
        servers.clone_into(&mut self.state().noted.own.servers);
    }

    /// Notes the store's count of this gateway's writes.
    pub(crate) fn saw_writes(&self, partition: Partition, writes: u64) {
        let noted = &mut self.state().noted;
        noted.own.writes.count(&noted.gateway, partition, writes);
    }

    /// Takes over an epoch, with the store's own counts.
    pub(crate) fn adopt(&self, epoch: &str, sight: Sight) {
        let mut state = self.state();
        state.live.left.clear();
        state.raise_token(sight.accepted_token(), sight.token());
        epoch.clone_into(&mut state.noted.own.epoch);
        state.noted.own.writes = sight.writes;
    }

    /// A write that a script has made of this change, with its record as stored.
    pub(crate) fn call_write(&self, record: &Record, change: &Change) -> CallWrite {
        let call_id = record.intent.call_id;
        let was_locked = |before: &CallWrite| before.is_locked;
        CallWrite {
            record: record.clone(),
            entry: change.entry.clone(),
            is_locked: match &change.admission {
                Some(admission) => admission.lock.is_some(),
                None => self
                    .state()
                    .live
                    .running
                    .get(&call_id)
                    .is_some_and(was_locked),
            },
        }
    }

    /// Remembers a write, to be put back if the store loses it.
    pub(crate) fn remember(&self, write: CallWrite) {
        let live = &mut self.state().live;
        let is_running = matches!(write.record.state, Running);
        if is_running && live.running.len() < MAX_REMEMBERED.0 {
            live.running.insert(write.call_id(), write.clone());
        } else {
            live.running.remove(&write.call_id());
        }
        live.recent_bytes += write.size();
        live.recent.push_back((Instant::now(), write));
        live.forget_old(Duration::MAX);
    }

    /// Forgets a call that another gateway has written since.
    pub(crate) fn forget(&self, call_id: CallId) {
        self.state().live.running.remove(&call_id);
    }

    /// The remembered writes, in the order in which they can be put back.
    ///
    /// Calls are ordered by when their newest runs began; of one call the older versions come first. When a run begins
    /// its call holds all of its names, so they belong to the call that is put back last.
    pub(crate) fn recent(&self) -> Vec<CallWrite> {
        let state = self.state();
        let recent = state.live.recent.iter().map(|(_, write)| write);
        let mut recent: Vec<_> = state.live.running.values().chain(recent).cloned().collect();
        let mut begun = HashMap::<CallId, (u64, Timestamp)>::new();
        for CallWrite { record, .. } in &recent {
            let version = (record.version, record.attempt.run_started_at);
            let newest = begun.entry(record.intent.call_id).or_insert(version);
            *newest = version.max(*newest);
        }
        recent.sort_by_key(|write| {
            let call_id = write.call_id();
            (begun[&call_id].1, call_id, write.record.version)
        });
        recent.dedup_by_key(|write| (write.call_id(), write.record.version));
        recent
    }
}

#[cfg(test)]
mod tests;
