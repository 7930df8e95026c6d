//! Whether the store still has what was written to it.
//!
//! Each partition holds the *epoch*, a random word that lost or foreign data does not have, and counts
//! the writes of each gateway. A gateway remembers both, in memory and in a small file, and every claim
//! compares them in its own atomic step. Where they do not fit nothing may be claimed until a person
//! accepts the loss, which begins a new epoch.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use super::keys::{PARTITIONS, Partition};
use crate::core::record::State::Running;
use crate::core::record::{CallId, Entry, Record};

/// The layout of the keys. Another one is never touched.
pub(super) const FORMAT: u32 = 1;
/// How long a write is remembered to be put back.
const REMEMBERED: Duration = Duration::from_secs(10);
/// How many writes, and how many bytes of them, are remembered at the most.
const MAX_REMEMBERED: (usize, usize) = (20_000, 64 << 20);
/// Tokens up to this far ahead of the newest are covered by what is in the file.
const TOKENS_AHEAD_US: u64 = 10_000_000;
/// A token this far ahead of the clock is a fault, not a clock that was set.
pub(super) const TOKEN_LIMIT_US: u64 = 24 * 3_600 * 1_000_000;

/// What is written once for all partitions: which epoch holds, and which ones it followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) partitions: u8,
    pub(super) epoch: String,
    /// Earlier epochs whose loss a person has accepted, the newest last.
    pub(super) follows: Vec<String>,
    /// False until every partition has the epoch.
    pub(super) complete: bool,
    /// Why a person began this epoch; empty for the first.
    pub(super) reason: String,
    /// What a gateway has found to be missing; empty if nothing is. Closes the store for everyone.
    #[serde(default)]
    pub(super) lost: String,
}

/// How many writes each gateway has made in each partition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Writes(BTreeMap<String, Vec<u64>>);

impl Writes {
    pub(super) fn of(&self, gateway: &str, partition: Partition) -> u64 {
        self.0.get(gateway).and_then(|counts| counts.get(partition.index())).copied().unwrap_or(0)
    }

    /// Takes note of a count, unless a higher one is known.
    pub(super) fn count(&mut self, gateway: &str, partition: Partition, writes: u64) {
        let counts = self.0.entry(gateway.to_owned()).or_default();
        counts.resize(PARTITIONS.into(), 0);
        let known = &mut counts[partition.index()];
        *known = writes.max(*known);
    }

    fn merge(&mut self, other: &Self) {
        for (gateway, counts) in &other.0 {
            for (partition, writes) in Partition::all().zip(counts) {
                self.count(gateway, partition, *writes);
            }
        }
    }

    /// How many of these `other` does not have.
    fn missing_in(&self, other: &Self) -> u64 {
        let missing = self.0.iter().flat_map(|(gateway, counts)| {
            Partition::all().zip(counts).map(|(at, count)| count.saturating_sub(other.of(gateway, at)))
        });
        missing.sum()
    }
}

impl Manifest {
    /// Epochs that are remembered to have been accepted.
    const MAX_FOLLOWED: usize = 32;

    pub(super) fn first() -> Self {
        Self::after(&[], "", false)
    }

    /// A new epoch after these.
    pub(super) fn after(epochs: &[&str], reason: &str, complete: bool) -> Self {
        let mut follows: Vec<String> = Vec::new();
        for epoch in epochs.iter().filter(|epoch| !epoch.is_empty()) {
            if !follows.iter().any(|known| known == epoch) {
                follows.push((*epoch).to_owned());
            }
        }
        follows.drain(..follows.len().saturating_sub(Self::MAX_FOLLOWED));
        let epoch = Uuid::new_v4().simple().to_string();
        Self {
            format: FORMAT,
            partitions: PARTITIONS,
            epoch,
            follows,
            complete,
            reason: reason.to_owned(),
            lost: String::new(),
        }
    }
}

/// The file, as JSON. Belongs to one gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Watermarks {
    /// Under which this gateway's writes are counted.
    gateway: String,
    /// Empty until the store was met.
    epoch: String,
    writes: Writes,
    /// No token above this was ever given.
    token: u64,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WatermarksError {
    #[error("{0}: another gateway uses it; each needs a file of its own")]
    InUse(PathBuf),
    #[error("{0}: {1}")]
    Io(PathBuf, std::io::Error),
    #[error("{0}: this is no file of watermarks: {1}")]
    Damaged(PathBuf, serde_json::Error),
}

/// What this gateway remembers of a store.
pub(super) struct Memory {
    path: PathBuf,
    /// Held as long as this process may write the file; `None` if it only looks.
    lock: Option<File>,
    state: Mutex<State>,
}

struct State {
    marks: Watermarks,
    /// What the file holds.
    saved: Watermarks,
    /// Calls that run here. They are remembered until they end.
    running: HashMap<CallId, Remembered>,
    recent: VecDeque<Remembered>,
    recent_bytes: usize,
}

/// A write of the last seconds.
#[derive(Clone)]
pub(super) struct Remembered {
    at: Instant,
    pub(super) record: Record,
    pub(super) entry: Entry,
}

impl Remembered {
    fn size(&self) -> usize {
        self.record.intent.args.len()
            + super::record::result(&self.record).map_or(0, bytes::Bytes::len)
            + 1_024
    }
}

impl Memory {
    /// Reads the file, or begins one. Somebody who only `looks` neither locks nor writes it.
    pub(super) fn open(path: &Path, looks: bool) -> Result<Self, WatermarksError> {
        let io = |error| WatermarksError::Io(path.to_owned(), error);
        let lock = if looks { None } else { Some(lock(path)?) };
        let marks = match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| WatermarksError::Damaged(path.to_owned(), error))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Watermarks {
                gateway: Uuid::new_v4().simple().to_string(),
                epoch: String::new(),
                writes: Writes::default(),
                token: 0,
            },
            Err(error) => return Err(io(error)),
        };
        let state = State {
            saved: marks.clone(),
            marks,
            running: HashMap::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
        };
        let memory = Self { path: path.to_owned(), lock, state: Mutex::new(state) };
        // What cannot be written is found now and not in the middle of an incident.
        memory.save(true).map_err(io)?;
        Ok(memory)
    }

    pub(super) fn gateway(&self) -> String {
        self.state().marks.gateway.clone()
    }

    /// Empty if the store was never met.
    pub(super) fn epoch(&self) -> String {
        self.state().marks.epoch.clone()
    }

    /// How many of its own writes the gateway knows of in a partition.
    pub(super) fn writes(&self, partition: Partition) -> u64 {
        let state = self.state();
        state.marks.writes.of(&state.marks.gateway, partition)
    }

    /// How many writes of each gateway it knows of.
    pub(super) fn all_writes(&self) -> Writes {
        self.state().marks.writes.clone()
    }

    pub(super) fn saw_all(&self, writes: &Writes) {
        self.state().marks.writes.merge(writes);
    }

    /// The newest token that it ever saw; tokens in the file are counted as seen.
    pub(super) fn token(&self) -> u64 {
        self.state().marks.token
    }

    /// The store has counted this many.
    pub(super) fn saw_writes(&self, partition: Partition, writes: u64) {
        let mut state = self.state();
        let gateway = state.marks.gateway.clone();
        state.marks.writes.count(&gateway, partition, writes);
    }

    /// A token was drawn. True if it is not covered by the file yet: save before it is used.
    pub(super) fn saw_token(&self, token: u64) -> bool {
        let mut state = self.state();
        state.marks.token = token.max(state.marks.token);
        token > state.saved.token
    }

    /// From now on this epoch counts, with the store's own counts.
    pub(super) fn adopt(&self, epoch: &str, writes: Writes) {
        let mut state = self.state();
        epoch.clone_into(&mut state.marks.epoch);
        state.marks.writes = writes;
    }

    pub(super) fn remember(&self, record: &Record, entry: &Entry) {
        let remembered = Remembered { at: Instant::now(), record: record.clone(), entry: entry.clone() };
        let mut state = self.state();
        if matches!(record.state, Running) && state.running.len() < MAX_REMEMBERED.0 {
            state.running.insert(record.intent.call_id, remembered.clone());
        } else {
            state.running.remove(&record.intent.call_id);
        }
        state.recent_bytes += remembered.size();
        state.recent.push_back(remembered);
        while let Some(oldest) = state.recent.front() {
            let (count, bytes) = MAX_REMEMBERED;
            let is_over = state.recent.len() > count || state.recent_bytes > bytes;
            if !is_over && oldest.at.elapsed() < REMEMBERED {
                break;
            }
            let size = oldest.size();
            state.recent_bytes = state.recent_bytes.saturating_sub(size);
            state.recent.pop_front();
        }
    }

    /// Somebody else has written the call since.
    pub(super) fn forget(&self, call_id: CallId) {
        self.state().running.remove(&call_id);
    }

    /// What runs here and the writes of the last seconds. Of one call, the older first.
    pub(super) fn recent(&self) -> Vec<Remembered> {
        let state = self.state();
        let mut recent: Vec<Remembered> = state.running.values().chain(&state.recent).cloned().collect();
        recent.sort_by_key(|remembered| remembered.record.version);
        recent
    }

    /// Writes the file if it has become old. Blocks.
    ///
    /// The tokens in it run ahead of those that were given, as in a timestamp oracle, so that not every
    /// token has to wait for the disk.
    pub(super) fn save(&self, always: bool) -> std::io::Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        let mut marks = {
            let state = self.state();
            if !always
                && state.marks.epoch == state.saved.epoch
                && state.marks.writes == state.saved.writes
                && state.marks.token < state.saved.token.saturating_sub(TOKENS_AHEAD_US / 2)
            {
                return Ok(());
            }
            state.marks.clone()
        };
        if marks.token > 0 {
            marks.token += TOKENS_AHEAD_US;
        }
        let beside = beside(&self.path, "new");
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec(&marks)?)?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            File::open(folder)?.sync_all()?;
        }
        self.state().saved = marks;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock is a file beside it: the file itself is replaced at each save.
fn lock(path: &Path) -> Result<File, WatermarksError> {
    let io = |error| WatermarksError::Io(path.to_owned(), error);
    let file =
        File::options().create(true).truncate(false).write(true).open(beside(path, "lock")).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(WatermarksError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// What a look at the store has shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sight {
    pub(super) manifest: Option<Manifest>,
    /// Per partition; empty if there is none.
    pub(super) epochs: Vec<String>,
    pub(super) writes: Writes,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// Everything is there, and this much has been written.
    Whole(Writes),
    /// Nobody has used this Redis before, or somebody was interrupted at it: begin.
    Fresh(Manifest),
    /// A person has accepted a loss, or this gateway is new here: go by the store's words.
    Adopt(String),
    /// Data is missing, and how many writes at least.
    Lost { what: String, writes: u64 },
}

/// Compares what the store shows with what this gateway remembers. Pure.
pub(super) fn compare(sight: &Sight, epoch: &str, known: &Writes) -> Finding {
    let lost = |what: String, writes| Finding::Lost { what, writes };
    let missing = known.missing_in(&sight.writes);
    let Some(manifest) = &sight.manifest else {
        return if epoch.is_empty() && sight.epochs.iter().all(String::is_empty) {
            Finding::Fresh(Manifest::first())
        } else {
            lost("the store is not the one that was used before: its manifest is gone".into(), missing)
        };
    };
    if (manifest.format, manifest.partitions) != (FORMAT, PARTITIONS) {
        return lost(format!("the store has format {}, this gateway knows {FORMAT}", manifest.format), 0);
    }
    if !manifest.lost.is_empty() {
        return lost(manifest.lost.clone(), missing);
    }
    if !manifest.complete {
        return if manifest.follows.is_empty() && epoch.is_empty() {
            Finding::Fresh(manifest.clone())
        } else {
            lost("the acceptance of a loss was interrupted: accept it again".into(), 0)
        };
    }
    if let Some(at) = sight.epochs.iter().position(|have| *have != manifest.epoch) {
        return lost(format!("partition {at} has lost its data"), missing);
    }
    if manifest.epoch != epoch {
        return if epoch.is_empty() || manifest.follows.iter().any(|followed| followed == epoch) {
            Finding::Adopt(manifest.epoch.clone())
        } else {
            lost("the store holds other data than before: its epoch is a stranger".into(), missing)
        };
    }
    match missing {
        0 => Finding::Whole(sight.writes.clone()),
        missing => lost(format!("the newest {missing} writes are missing"), missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(epoch: &str, writes: u64) -> Sight {
        let manifest =
            Manifest { epoch: epoch.into(), complete: true, ..Manifest::after(&["older"], "r", true) };
        Sight {
            manifest: Some(manifest),
            epochs: vec![epoch.into(); PARTITIONS.into()],
            writes: known(writes),
        }
    }

    /// Of two gateways, in every partition.
    fn known(writes: u64) -> Writes {
        let mut known = Writes::default();
        for partition in Partition::all() {
            known.count("me", partition, writes);
            known.count("other", partition, writes);
        }
        known
    }

    fn partition(number: usize) -> Partition {
        Partition::all().nth(number).expect("a partition")
    }

    fn missing(finding: Finding) -> Option<u64> {
        match finding {
            Finding::Lost { writes, .. } => Some(writes),
            _ => None,
        }
    }

    #[test]
    fn a_store_that_has_all_that_is_remembered_is_whole() {
        assert_eq!(compare(&whole("e", 5), "e", &known(5)), Finding::Whole(known(5)));
        let later = compare(&whole("e", 6), "e", &known(5));
        assert_eq!(later, Finding::Whole(known(6)), "written while it was looked at");
    }

    #[test]
    fn writes_that_are_missing_are_counted() {
        for gateway in ["me", "other"] {
            let mut more = known(5);
            more.count(gateway, partition(7), 8);
            assert_eq!(missing(compare(&whole("e", 5), "e", &more)), Some(3));
        }
    }

    #[test]
    fn what_one_gateway_has_found_missing_closes_the_store_for_all() {
        let mut sight = whole("e", 5);
        let manifest = sight.manifest.as_mut().expect("a manifest");
        manifest.lost = "the newest 3 writes are missing".into();
        assert_eq!(missing(compare(&sight, "e", &known(5))), Some(0));
        assert_eq!(missing(compare(&sight, "", &Writes::default())), Some(0), "also for who comes anew");
    }

    #[test]
    fn an_empty_store_is_fresh_only_for_who_has_never_met_it() {
        let empty = Sight { manifest: None, epochs: vec![String::new(); 64], writes: Writes::default() };
        assert!(matches!(compare(&empty, "", &Writes::default()), Finding::Fresh(_)));
        assert_eq!(missing(compare(&empty, "e", &known(1))), Some(128), "flushed");
        let mut half = empty.clone();
        half.epochs[3] = "e".into();
        assert!(
            missing(compare(&half, "", &Writes::default())).is_some(),
            "one master of a cluster was flushed"
        );
    }

    #[test]
    fn an_epoch_is_adopted_by_newcomers_and_by_those_whose_loss_was_accepted() {
        let accepted = whole("e2", 0);
        assert_eq!(compare(&accepted, "", &Writes::default()), Finding::Adopt("e2".into()));
        assert_eq!(compare(&accepted, "older", &known(9)), Finding::Adopt("e2".into()));
        assert!(missing(compare(&accepted, "stranger", &known(9))).is_some());
    }

    #[test]
    fn a_partition_without_the_epoch_is_lost() {
        let mut sight = whole("e", 5);
        sight.epochs[63].clear();
        assert_eq!(missing(compare(&sight, "e", &known(5))), Some(0));
    }

    #[test]
    fn who_was_interrupted_in_the_first_set_up_goes_on_with_it_and_in_an_acceptance_does_not() {
        let begun = Manifest::first();
        let sight = Sight {
            manifest: Some(begun.clone()),
            epochs: vec![String::new(); 64],
            writes: Writes::default(),
        };
        assert_eq!(compare(&sight, "", &Writes::default()), Finding::Fresh(begun));
        let accepting = Manifest::after(&["e"], "flushed", false);
        let sight = Sight { manifest: Some(accepting), ..sight };
        assert!(missing(compare(&sight, "e", &Writes::default())).is_some());
    }

    #[test]
    fn the_file_is_one_gateways_and_its_tokens_run_ahead() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("watermarks");
        let memory = Memory::open(&path, false).expect("a memory");
        assert!(matches!(Memory::open(&path, false), Err(WatermarksError::InUse(_))));
        memory.adopt("e", known(3));
        memory.saw_writes(Partition::FIRST, 9);
        memory.saw_all(&known(4));
        assert!(memory.saw_token(1_000), "not covered yet");
        memory.save(false).expect("saved");
        assert!(!memory.saw_token(1_001), "covered");
        let gateway = memory.gateway();
        drop(memory);
        let again = Memory::open(&path, false).expect("a memory");
        assert_eq!((again.gateway(), again.epoch()), (gateway, "e".into()));
        assert_eq!((again.writes(Partition::FIRST), again.writes(partition(1))), (9, 0));
        assert_eq!(again.all_writes().of("other", partition(1)), 4);
        assert!(again.token() >= 1_001, "no token is given twice");
        fs::write(&path, "{").expect("damaged");
        assert!(matches!(Memory::open(&path, true), Err(WatermarksError::Damaged(..))));
    }
}
