//! The gateway's memory of a store: epoch, counts, newest token, and the last seconds' writes.
//!
//! All but the last is kept in a small file, for the next start.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use super::answer::unreadable;
use super::keys::Partition;
use super::loss::{Sight, Writes};
use crate::core::call::Change;
use crate::core::record::State::Running;
use crate::core::record::{CallId, Entry, Record};
use crate::store::lock::lock;
use crate::store::{Reason, private};

/// How long a write is remembered to be put back.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Most writes, and most bytes of them, that are remembered.
const MAX_REMEMBERED: (usize, usize) = (20_000, 64 << 20);
/// How far ahead of the newest token the file covers tokens.
const TOKENS_AHEAD_US: u64 = 10_000_000;
/// How far ahead of the clock a token is a fault, and no clock that was set.
pub(super) const TOKEN_LIMIT_US: u64 = 24 * 3_600 * 1_000_000;

/// The file, as JSON. Belongs to one gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Watermarks {
    /// The name under which its writes are counted. Another one after each end that was no stop.
    gateway: String,
    /// The name under which its scripts are known.
    #[serde(default)]
    scripts: String,
    /// Whether the last run has stopped, and nothing was written after this.
    #[serde(default)]
    is_complete: bool,
    /// Empty until the gateway has met the store.
    epoch: String,
    writes: Writes,
    /// The servers at the last meeting.
    #[serde(default)]
    servers: String,
    /// The highest token that it may have given.
    token: u64,
    /// The highest token of other gateways and callers, as far as it has heard.
    #[serde(default)]
    others_token: u64,
    /// A copy of the store's secret in hex digits; empty if there is none yet.
    ///
    /// Encrypted where there are keys.
    #[serde(default)]
    secret: String,
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

/// The gateway's memory of a store.
pub(super) struct Memory {
    path: PathBuf,
    /// Held as long as this process may write the file; `None` if it only reads.
    lock: Option<File>,
    state: Mutex<State>,
    saving: Mutex<()>,
}

/// When the file has to be written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// No token is drawn any more: the tokens in it need not run ahead.
    Last,
    /// If it is behind memory, or its tokens are nearly used up.
    IfOld,
    /// If this token is above those in it.
    Token(u64),
}

#[derive(Default)]
struct State {
    marks: Watermarks,
    /// The content of the file.
    saved: Watermarks,
    /// The newest token of this run; 0 before the first.
    drawn: u64,
    /// Calls that run here, remembered until they end.
    running: HashMap<CallId, Remembered>,
    recent: VecDeque<Remembered>,
    recent_bytes: usize,
    /// Where writes of this gateway are missing: how many are left, by the number of the partition.
    left: HashMap<usize, u64>,
}

/// A write of the last seconds.
#[derive(Clone)]
pub(super) struct Remembered {
    at: Instant,
    pub(super) record: Record,
    pub(super) entry: Entry,
    /// Whether its run holds its session's lock.
    pub(super) is_locked: bool,
}

impl Remembered {
    pub(super) fn call_id(&self) -> CallId {
        self.record.intent.call_id
    }

    fn size(&self) -> usize {
        self.record.intent.args.len() + super::record::result(&self.record).len() + 1_024
    }
}

impl State {
    /// Forgets writes that are too old or too many.
    fn forget_old(&mut self, age: Duration) {
        while let Some(oldest) = self.recent.front() {
            let (count, bytes) = MAX_REMEMBERED;
            let are_many = self.recent.len() > count || self.recent_bytes > bytes;
            if !are_many && oldest.at.elapsed() < age {
                return;
            }
            self.recent_bytes = self.recent_bytes.saturating_sub(oldest.size());
            self.recent.pop_front();
        }
    }
}

impl Memory {
    /// Reads the file, or begins one. With `looks` it is neither locked nor written.
    ///
    /// A gateway that was killed may have made writes that are not in the file. If the store loses them, too, it must not
    /// count up to them again: other gateways that know of them would not notice. So it counts under another name.
    pub(super) fn open(path: &Path, looks: bool) -> Result<Self, WatermarksError> {
        let io = |error| WatermarksError::Io(path.to_owned(), error);
        let lock = if looks { None } else { Some(lock_file(path)?) };
        if private::is_link(path) {
            let why = "it is a symbolic link, which is not followed";
            return Err(io(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                why,
            )));
        }
        let mut marks: Watermarks = match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| WatermarksError::Damaged(path.to_owned(), error))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Watermarks {
                gateway: Uuid::new_v4().simple().to_string(),
                ..Watermarks::default()
            },
            Err(error) => return Err(io(error)),
        };
        if marks.scripts.is_empty() {
            marks.scripts.clone_from(&marks.gateway);
        }
        // A visitor has a name of its own, too: the gateway of this file may start beside it.
        if looks || (!marks.is_complete && !marks.epoch.is_empty()) {
            marks.gateway = Uuid::new_v4().simple().to_string();
        }
        if lock.is_some() {
            marks.is_complete = false;
        }
        let state = State {
            saved: marks.clone(),
            marks,
            ..State::default()
        };
        let memory = Self {
            path: path.to_owned(),
            lock,
            state: Mutex::new(state),
            saving: Mutex::default(),
        };
        if let Some(exposed) = memory.exposed() {
            tracing::warn!("{}", exposed.text);
        }
        // What cannot be written is found now and not in the middle of an incident.
        if memory.lock.is_some() {
            let marks = memory.state().marks.clone();
            memory.write(&marks).map_err(io)?;
        }
        Ok(memory)
    }

    /// The warning that other users may read or write the file.
    pub(super) fn exposed(&self) -> Option<Reason> {
        private::exposed([self.path.as_path()].into_iter())
    }

    pub(super) fn gateway(&self) -> String {
        self.state().marks.gateway.clone()
    }

    /// The name of this process' scripts.
    ///
    /// A visitor's scripts are no sign that the gateway has looked.
    pub(super) fn name(&self) -> String {
        if self.lock.is_some() {
            self.state().marks.scripts.clone()
        } else {
            format!("visitor {}", Uuid::new_v4())
        }
    }

    pub(super) fn secret(&self) -> Result<Option<Bytes>, crate::store::Error> {
        let secret = hex::decode(&self.state().marks.secret);
        let secret = secret.map_err(|_| unreadable("the copy of the secret is no hexadecimal"))?;
        Ok((!secret.is_empty()).then(|| secret.into()))
    }

    /// Keeps a copy of the store's secret. Blocks.
    pub(super) fn remember_secret(&self, secret: &Bytes) -> std::io::Result<()> {
        self.state().marks.secret = hex::encode(secret);
        self.save(Need::IfOld)
    }

    /// The epoch; empty if the store was never met.
    pub(super) fn epoch(&self) -> String {
        self.state().marks.epoch.clone()
    }

    /// How many of its own writes in a partition the gateway knows.
    pub(super) fn writes(&self, partition: Partition) -> u64 {
        let state = self.state();
        state.marks.writes.of(&state.marks.gateway, partition)
    }

    /// How many of its own writes a server must have to be the store: those that it knows, but for lost ones.
    pub(super) fn writes_left(&self, partition: Partition) -> u64 {
        let state = self.state();
        let known = state.marks.writes.of(&state.marks.gateway, partition);
        let left = state.left.get(&partition.index());
        left.map_or(known, |left| known.min(*left))
    }

    /// Notes a look that found writes missing. `known`: the writes that were known before it.
    ///
    /// One that was made during the look is not in `sight`, and is not lost.
    pub(super) fn saw_loss(&self, sight: &Sight, known: &Writes) {
        let mut state = self.state();
        let own = &state.marks.gateway;
        let left = Partition::all().filter_map(|at| {
            let there = sight.writes.of(own, at);
            (there < known.of(own, at)).then(|| (at.index(), there))
        });
        state.left = left.collect();
    }

    /// How many writes of each gateway it knows.
    pub(super) fn all_writes(&self) -> Writes {
        self.state().marks.writes.clone()
    }

    /// Notes a look that found everything.
    ///
    /// Older writes need not be put back, and forgotten gateways need not be remembered.
    pub(super) fn saw_all(&self, sight: &Sight) {
        let mut state = self.state();
        state.left.clear();
        let marks = &mut state.marks;
        marks.writes.merge(&sight.writes);
        marks.writes.forget_absent(&sight.writes, &marks.gateway);
        state.marks.others_token = sight.token().max(state.marks.others_token);
        state.forget_old(REMEMBERED);
    }

    /// The newest token so far; tokens in the file count.
    pub(super) fn token(&self) -> u64 {
        self.state().marks.token
    }

    /// The token that covers all tokens until the next save.
    pub(super) fn covered_token(&self) -> u64 {
        self.state().saved.token
    }

    /// The highest token of any known gateway, below which none may be after a loss.
    pub(super) fn highest_token(&self) -> u64 {
        let state = self.state();
        state
            .marks
            .token
            .max(state.saved.token)
            .max(state.marks.others_token)
    }

    /// Notes the present servers. Answers with the earlier ones.
    pub(super) fn meet(&self, servers: &str) -> String {
        std::mem::replace(&mut self.state().marks.servers, servers.to_owned())
    }

    /// Notes the store's count.
    pub(super) fn saw_writes(&self, partition: Partition, writes: u64) {
        let mut state = self.state();
        let gateway = state.marks.gateway.clone();
        state.marks.writes.count(&gateway, partition, writes);
    }

    /// Notes a drawn token. True if the file does not cover it yet: save before it is used.
    pub(super) fn saw_token(&self, token: u64) -> bool {
        let mut state = self.state();
        state.marks.token = token.max(state.marks.token);
        state.drawn = token.max(state.drawn);
        token > state.saved.token
    }

    /// Notes a caller's token that is ahead of those drawn here.
    pub(super) fn saw_brought(&self, token: u64) {
        let mut state = self.state();
        state.marks.others_token = token.max(state.marks.others_token);
    }

    /// Takes over an epoch, with the store's own counts.
    ///
    /// If it follows a loss, no token may be below what any gateway has given. A newcomer goes by
    /// the accepted token: the sessions are there.
    pub(super) fn adopt(&self, epoch: &str, sight: Sight) {
        let is_new = self.epoch().is_empty();
        let floor = if is_new {
            sight.accepted_token()
        } else {
            sight.token().max(self.highest_token())
        };
        let mut state = self.state();
        state.left.clear();
        epoch.clone_into(&mut state.marks.epoch);
        state.marks.writes = sight.writes;
        state.marks.token = floor.max(state.marks.token);
    }

    pub(super) fn remember(&self, record: &Record, change: &Change) {
        let mut state = self.state();
        let before = state.running.get(&record.intent.call_id);
        let is_locked = match &change.admission {
            Some(admission) => admission.lock.is_some(),
            None => before.is_some_and(|before| before.is_locked),
        };
        let (record, entry) = (record.clone(), change.entry.clone());
        let remembered = Remembered {
            at: Instant::now(),
            record,
            entry,
            is_locked,
        };
        let call_id = remembered.call_id();
        if matches!(remembered.record.state, Running) && state.running.len() < MAX_REMEMBERED.0 {
            state.running.insert(call_id, remembered.clone());
        } else {
            state.running.remove(&call_id);
        }
        state.recent_bytes += remembered.size();
        state.recent.push_back(remembered);
        state.forget_old(Duration::MAX);
    }

    /// Whether a call that runs here holds its session's lock.
    pub(super) fn is_locked(&self, call_id: CallId) -> bool {
        self.state()
            .running
            .get(&call_id)
            .is_some_and(|remembered| remembered.is_locked)
    }

    /// Forgets a call that another gateway has written since.
    pub(super) fn forget(&self, call_id: CallId) {
        self.state().running.remove(&call_id);
    }

    /// The remembered writes, in the order in which they can be put back.
    ///
    /// Calls by when their newest runs began, and of one call the older versions first.
    ///
    /// When a run begins its call holds all of its names, so they stay with the call that is put back last.
    pub(super) fn recent(&self) -> Vec<Remembered> {
        let state = self.state();
        let mut recent: Vec<Remembered> = state
            .running
            .values()
            .chain(&state.recent)
            .cloned()
            .collect();
        let mut begun = HashMap::<CallId, (u64, Timestamp)>::new();
        for Remembered { record, .. } in &recent {
            let version = (record.version, record.attempt.run_started_at);
            let newest = begun.entry(record.intent.call_id).or_insert(version);
            *newest = version.max(*newest);
        }
        recent.sort_by_key(|remembered| {
            let call_id = remembered.call_id();
            (begun[&call_id].1, call_id, remembered.record.version)
        });
        recent.dedup_by_key(|remembered| (remembered.call_id(), remembered.record.version));
        recent
    }

    /// Writes the file, if it needs to be. Blocks.
    ///
    /// The tokens in it run ahead of those that were given, as in a timestamp oracle, so that not every
    /// token has to wait for the disk.
    pub(super) fn save(&self, need: Need) -> std::io::Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        let _one_at_a_time = lock(&self.saving);
        let marks = {
            let state = self.state();
            let (marks, saved) = (&state.marks, &state.saved);
            let but_for_its_token = |marks: &Watermarks| Watermarks {
                token: 0,
                ..marks.clone()
            };
            let is_old = but_for_its_token(marks) != but_for_its_token(saved)
                || marks.token > saved.token
                || state.drawn > saved.token.saturating_sub(TOKENS_AHEAD_US / 2);
            let is_needed = match need {
                Need::Last => true,
                Need::IfOld => is_old,
                Need::Token(token) => token > saved.token,
            };
            if !is_needed {
                return Ok(());
            }
            let mut marks = marks.clone();
            marks.is_complete = matches!(need, Need::Last);
            // A start that draws nothing takes the tokens no further.
            if !matches!(need, Need::Last) {
                let ahead = match state.drawn {
                    0 => 0,
                    drawn => drawn.saturating_add(TOKENS_AHEAD_US),
                };
                marks.token = marks.token.max(ahead).max(saved.token);
            }
            marks
        };
        self.write(&marks)?;
        self.state().saved = marks;
        Ok(())
    }

    fn write(&self, marks: &Watermarks) -> std::io::Result<()> {
        let beside = beside(&self.path, "new");
        let mut file = private::make_anew(&beside)?;
        file.write_all(&serde_json::to_vec(marks)?)?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        if let Some(folder) = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// The lock file beside it: the file itself is replaced at each save.
fn lock_file(path: &Path) -> Result<File, WatermarksError> {
    let io = |error| WatermarksError::Io(path.to_owned(), error);
    let file = private::open(&beside(path, "lock")).map_err(io)?;
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

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
