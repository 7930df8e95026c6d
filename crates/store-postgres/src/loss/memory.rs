//! The gateway's memory of a store: epoch, beats, and what was written since the last beat.
//!
//! The file of watermarks keeps all but the last for the next start.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::loss::Sight;
use oncegate_rules::record::CallId;
use oncegate_store::shared::memory::{self, Own};
use oncegate_store::watermarks::WatermarksError;

/// How many writes are remembered at most between two beats.
const MAX_FRESH: usize = 200_000;

/// What the file has beside names, tokens and the secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    /// The epoch of the store's data; `None` until the gateway has used a store.
    pub(crate) epoch: Option<Uuid>,
    /// The beats of this gateway and of others.
    pub(crate) beats: BTreeMap<Uuid, u64>,
    /// The start of the server, in microseconds, in the last run at which every gateway had time to look.
    pub(crate) server: Option<i64>,
}

impl Own for Known {
    fn begin() -> Self {
        Self::default()
    }

    fn is_used(&self) -> bool {
        self.epoch.is_some()
    }
}

/// Something that was written: the version, and from when on it may be deleted.
pub(crate) type Written = (u64, Option<Timestamp>);

/// Calls and documents by their ids and digests.
pub(crate) type AllWritten = HashMap<Uuid, Written>;

/// What was acknowledged, and no beat has proved yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Unproved {
    /// Since the last beat was sent.
    fresh: AllWritten,
    /// Before that. The beat proves it when it is acknowledged.
    proving: AllWritten,
}

/// The gateway's memory of a store. Clones share it.
#[derive(Clone)]
pub(crate) struct Memory(memory::Memory<Known, Unproved>);

impl Deref for Memory {
    type Target = memory::Memory<Known, Unproved>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Memory {
    /// Reads the file, or begins one. A visitor neither locks nor writes it.
    pub(crate) fn open(path: &Path, is_visitor: bool) -> Result<Self, WatermarksError> {
        memory::Memory::open(path, is_visitor).map(Self)
    }

    /// The name of the gateway's beats.
    pub(crate) fn name(&self) -> Uuid {
        Uuid::parse_str(&self.gateway()).unwrap_or_default()
    }

    /// The epoch; `None` before the first use of a store.
    pub(crate) fn epoch(&self) -> Option<Uuid> {
        self.state().noted.own.epoch
    }

    /// The last run of the server in which every gateway had time to look; `None` for a new gateway.
    pub(crate) fn settled_run(&self) -> Option<i64> {
        self.state().noted.own.server
    }

    /// Every gateway had time to look at this run.
    pub(crate) fn note_settled(&self, started_us: i64) {
        self.state().noted.own.server = Some(started_us);
    }

    /// The known beats of all gateways.
    pub(crate) fn beats(&self) -> BTreeMap<Uuid, u64> {
        self.state().noted.own.beats.clone()
    }

    /// This gateway's own beat.
    pub(crate) fn beat(&self) -> u64 {
        self.beats().get(&self.name()).copied().unwrap_or(0)
    }

    /// What no beat has proved yet.
    pub(crate) fn unproved(&self) -> AllWritten {
        let live = &self.state().live;
        let all = live.proving.iter().chain(&live.fresh);
        all.map(|(id, written)| (*id, *written)).collect()
    }

    /// A beat is sent: it will prove what was written before.
    pub(crate) fn begin_beat(&self) {
        let live = &mut self.state().live;
        live.proving.extend(live.fresh.drain());
    }

    /// A beat is stored.
    pub(crate) fn end_beat(&self, beat: u64) {
        let own = self.name();
        let mut state = self.state();
        state.live.proving.clear();
        state.noted.own.beats.insert(own, beat);
    }

    /// Notes a write of a call or a document.
    pub(crate) fn wrote(&self, id: Uuid, written: Written) {
        let fresh = &mut self.state().live.fresh;
        if fresh.len() < MAX_FRESH {
            fresh.insert(id, written);
        }
    }

    /// These calls are deleted now.
    pub(crate) fn forgot(&self, calls: &[CallId]) {
        let live = &mut self.state().live;
        for call_id in calls {
            live.fresh.remove(&call_id.0);
            live.proving.remove(&call_id.0);
        }
    }

    /// Notes an inspection that found nothing missing. Gateways that were silent for long are not remembered any more.
    pub(crate) fn saw_all(&self, sight: &Sight) {
        let own = self.name();
        let is_known = |gateway: &Uuid| *gateway == own || sight.recent.contains(gateway);
        let mut state = self.state();
        let beats = &mut state.noted.own.beats;
        beats.retain(|gateway, _| is_known(gateway));
        for (gateway, beat) in sight.beats.iter().filter(|(gateway, _)| is_known(gateway)) {
            let known = beats.entry(*gateway).or_default();
            *known = (*beat).max(*known);
        }
        state.saw_others_token(sight.token);
    }

    /// A token above all that this gateway knows of, and above the clock, which no other call of it gets.
    pub(crate) fn next_token(&self, now_us: u64) -> u64 {
        let noted = &mut self.state().noted;
        noted.token = now_us.max(noted.token + 1);
        noted.token
    }

    /// Takes over an epoch, with the store's own beats.
    pub(crate) fn adopt(&self, epoch: Uuid, sight: &Sight) {
        let mut state = self.state();
        state.raise_token(sight.accepted_token(), sight.token);
        state.noted.own.epoch = Some(epoch);
        state.noted.own.beats = sight.beats.clone();
        state.live = Unproved::default();
    }
}
