//! The gateway's memory of a store: epoch, counts, newest token, and the writes of the last seconds.
//!
//! A small file, the watermarks, keeps all but the writes for the next start.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
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
use oncegate_rules::call::Change;
use oncegate_rules::record::State::Running;
use oncegate_rules::record::{CallId, Entry, Record};
use oncegate_store::lock::lock;
use oncegate_store::{Reason, private};

/// How long a write is remembered to be put back.
const REMEMBERED: Duration = Duration::from_secs(10);
/// How many writes, and how many bytes of them, are remembered at most.
const MAX_REMEMBERED: (usize, usize) = (20_000, 64 << 20);
/// How far the token in the file is ahead of the newest token.
const TOKENS_AHEAD_US: u64 = 10_000_000;
/// A token that is further ahead of the clock is a fault: no clock was set by that much.
pub(super) const TOKEN_LIMIT_US: u64 = 24 * 3_600 * 1_000_000;

/// The content of the file, as JSON. Belongs to one gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Watermarks {
    /// The name under which the gateway's writes are counted. It changes when the gateway was killed.
    gateway: String,
    /// The name that its own scripts contain.
    scripts: String,
    /// Whether the last run has stopped, and has written nothing after this file.
    is_complete: bool,
    /// The epoch of the store's data; empty until the gateway has used a store.
    epoch: String,
    writes: Writes,
    /// The servers at the last inspection.
    servers: String,
    /// The highest token that the gateway may have given.
    token: u64,
    /// The highest token of other gateways and callers, as far as this gateway knows.
    others_token: u64,
    /// A copy of the store's secret in hex digits; empty if there is none yet.
    ///
    /// Encrypted if the store encrypts.
    secret: String,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WatermarksError {
    #[error("{0}: another gateway uses it; each needs a file of its own")]
    InUse(PathBuf),
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    #[error("{0}: this is not a file of watermarks: {1}")]
    Damaged(PathBuf, serde_json::Error),
}

/// The gateway's memory of a store.
pub(super) struct Memory {
    path: PathBuf,
    /// Held as long as this process may write the file; `None` if it only reads it.
    lock: Option<File>,
    state: Mutex<State>,
    saving: Mutex<()>,
}

/// For what the file is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// For a stop: no more tokens are drawn, so the token in the file need not be ahead.
    Last,
    /// To keep it new: only if it is behind memory, or its token is nearly reached.
    IfOld,
    /// For this token: only if it is above the token in the file.
    Token(u64),
}

#[derive(Default)]
struct State {
    marks: Watermarks,
    /// The content of the file.
    saved: Watermarks,
    /// The newest token that this process has drawn; 0 before the first.
    drawn: u64,
    /// Calls that run here, remembered until they end.
    running: HashMap<CallId, CallWrite>,
    recent: VecDeque<(Instant, CallWrite)>,
    recent_bytes: usize,
    /// How many writes of this gateway are left in each partition that has lost some.
    left: BTreeMap<Partition, u64>,
}

/// A write about a call, as it can be put back.
#[derive(Clone)]
pub(super) struct CallWrite {
    pub(super) record: Record,
    pub(super) entry: Entry,
    /// Whether the call's run holds its session's lock.
    pub(super) is_locked: bool,
}

impl CallWrite {
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
    ///
    /// A gateway that was killed may have made writes that are not in the file. If the store loses them, too, the gateway
    /// must not count up to them again: other gateways that know them would not notice the loss. So it counts under
    /// another name.
    pub(super) fn open(path: &Path, is_visitor: bool) -> Result<Self, WatermarksError> {
        let io = |error| WatermarksError::Io(path.to_owned(), error);
        let lock = (!is_visitor).then(|| lock_file(path)).transpose()?;
        if private::is_link(path) {
            let why = "it is a symbolic link, which is not followed";
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let mut marks: Watermarks = match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| WatermarksError::Damaged(path.to_owned(), error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Watermarks {
                gateway: new_name(),
                scripts: new_name(),
                ..Watermarks::default()
            },
            Err(error) => return Err(io(error)),
        };
        // A visitor has a name of its own, too: the gateway of this file may run beside it.
        if is_visitor || (!marks.is_complete && !marks.epoch.is_empty()) {
            marks.gateway = new_name();
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
        // A file that cannot be written is found now and not in the middle of an incident.
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

    /// The name that this process' own scripts contain.
    ///
    /// A visitor has another: its scripts are not a sign that the gateway has inspected the data.
    pub(super) fn script_name(&self) -> String {
        match self.lock {
            Some(_) => self.state().marks.scripts.clone(),
            None => format!("visitor {}", Uuid::new_v4()),
        }
    }

    pub(super) fn secret(&self) -> Result<Option<Bytes>, oncegate_store::Error> {
        let secret = hex::decode(&self.state().marks.secret);
        let secret = secret.map_err(|_| unreadable("the copy of the secret is not hexadecimal"))?;
        Ok((!secret.is_empty()).then(|| secret.into()))
    }

    /// Keeps a copy of the store's secret. Blocks.
    pub(super) fn remember_secret(&self, secret: &Bytes) -> io::Result<()> {
        self.state().marks.secret = hex::encode(secret);
        self.save(Need::IfOld)
    }

    /// The epoch; empty before the first use of a store.
    pub(super) fn epoch(&self) -> String {
        self.state().marks.epoch.clone()
    }

    /// How many of its own writes to a partition the gateway knows.
    pub(super) fn writes(&self, partition: Partition) -> u64 {
        let state = self.state();
        state.marks.writes.of(&state.marks.gateway, partition)
    }

    /// How many of its own writes a server must have: those that the gateway knows, except lost ones.
    pub(super) fn writes_left(&self, partition: Partition) -> u64 {
        let state = self.state();
        let known = state.marks.writes.of(&state.marks.gateway, partition);
        let left = state.left.get(&partition);
        left.map_or(known, |left| known.min(*left))
    }

    /// Notes an inspection that found writes missing. `known`: the writes that were known before it.
    ///
    /// A write that was made during the inspection may be absent from `sight`, and is not lost.
    pub(super) fn saw_loss(&self, sight: &Sight, known: &Writes) {
        let mut state = self.state();
        let own = &state.marks.gateway;
        let left = Partition::all().filter_map(|at| {
            let there = sight.writes.of(own, at);
            (there < known.of(own, at)).then_some((at, there))
        });
        state.left = left.collect();
    }

    /// The known writes of all gateways.
    pub(super) fn all_writes(&self) -> Writes {
        self.state().marks.writes.clone()
    }

    /// Notes an inspection that found nothing missing.
    ///
    /// Writes from before need not be put back, and forgotten gateways need not be remembered.
    pub(super) fn saw_all(&self, sight: &Sight) {
        let mut state = self.state();
        state.left.clear();
        let marks = &mut state.marks;
        marks.writes.merge(&sight.writes);
        marks.writes.forget_absent(&sight.writes, &marks.gateway);
        state.marks.others_token = sight.token().max(state.marks.others_token);
        state.forget_old(REMEMBERED);
    }

    /// The newest token so far, and at least the token that the file had at the start.
    pub(super) fn token(&self) -> u64 {
        self.state().marks.token
    }

    /// The token in the file, which covers all tokens until the next save.
    pub(super) fn covered_token(&self) -> u64 {
        self.state().saved.token
    }

    /// The highest token of any gateway, as far as known. After a loss no token may be below it.
    pub(super) fn highest_token(&self) -> u64 {
        let state = self.state();
        state
            .marks
            .token
            .max(state.saved.token)
            .max(state.marks.others_token)
    }

    /// Notes the present servers. Returns the earlier ones.
    pub(super) fn replace_servers(&self, servers: &str) -> String {
        std::mem::replace(&mut self.state().marks.servers, servers.to_owned())
    }

    /// Notes the store's count of this gateway's writes.
    pub(super) fn saw_writes(&self, partition: Partition, writes: u64) {
        let marks = &mut self.state().marks;
        marks.writes.count(&marks.gateway, partition, writes);
    }

    /// Notes a drawn token. True if the file does not cover it yet: save the file before the token is used.
    pub(super) fn saw_token(&self, token: u64) -> bool {
        let mut state = self.state();
        state.marks.token = token.max(state.marks.token);
        state.drawn = token.max(state.drawn);
        token > state.saved.token
    }

    /// Notes a token that a caller has brought.
    pub(super) fn saw_brought(&self, token: u64) {
        let mut state = self.state();
        state.marks.others_token = token.max(state.marks.others_token);
    }

    /// Takes over an epoch, with the store's own counts.
    ///
    /// If the epoch follows a loss, no token may be below those that any gateway has given. A new gateway needs only the
    /// accepted token: the sessions of the data are there.
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

    /// A write that a script has made of this change, with its record as stored.
    pub(super) fn call_write(&self, record: &Record, change: &Change) -> CallWrite {
        let call_id = record.intent.call_id;
        let was_locked = |before: &CallWrite| before.is_locked;
        CallWrite {
            record: record.clone(),
            entry: change.entry.clone(),
            is_locked: match &change.admission {
                Some(admission) => admission.lock.is_some(),
                None => self.state().running.get(&call_id).is_some_and(was_locked),
            },
        }
    }

    /// Remembers a write, to be put back if the store loses it.
    pub(super) fn remember(&self, write: CallWrite) {
        let mut state = self.state();
        let is_running = matches!(write.record.state, Running);
        if is_running && state.running.len() < MAX_REMEMBERED.0 {
            state.running.insert(write.call_id(), write.clone());
        } else {
            state.running.remove(&write.call_id());
        }
        state.recent_bytes += write.size();
        state.recent.push_back((Instant::now(), write));
        state.forget_old(Duration::MAX);
    }

    /// Forgets a call that another gateway has written since.
    pub(super) fn forget(&self, call_id: CallId) {
        self.state().running.remove(&call_id);
    }

    /// The remembered writes, in the order in which they can be put back.
    ///
    /// Calls are ordered by when their newest runs began; of one call the older versions come first. When a run begins
    /// its call holds all of its names, so they belong to the call that is put back last.
    pub(super) fn recent(&self) -> Vec<CallWrite> {
        let state = self.state();
        let recent = state.recent.iter().map(|(_, write)| write);
        let mut recent: Vec<_> = state.running.values().chain(recent).cloned().collect();
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

    /// Writes the file, if needed. Blocks.
    ///
    /// The token in the file is ahead of those that were given, as in a timestamp oracle, so that not every token has to
    /// wait for the disk.
    pub(super) fn save(&self, need: Need) -> io::Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        let _one_at_a_time = lock(&self.saving);
        let (mut marks, saved, drawn) = {
            let state = self.state();
            (state.marks.clone(), state.saved.clone(), state.drawn)
        };
        let as_saved = Watermarks {
            token: marks.token,
            ..saved.clone()
        };
        let is_needed = match need {
            Need::Last => true,
            Need::IfOld => {
                marks.token > saved.token
                    || drawn > saved.token.saturating_sub(TOKENS_AHEAD_US / 2)
                    || marks != as_saved
            }
            Need::Token(token) => token > saved.token,
        };
        if !is_needed {
            return Ok(());
        }
        marks.is_complete = matches!(need, Need::Last);
        if !marks.is_complete {
            // A process that has drawn no token yet does not move the token in the file.
            let ahead = if drawn > 0 {
                drawn.saturating_add(TOKENS_AHEAD_US)
            } else {
                0
            };
            marks.token = marks.token.max(ahead).max(saved.token);
        }
        self.write(&marks)?;
        self.state().saved = marks;
        Ok(())
    }

    fn write(&self, marks: &Watermarks) -> io::Result<()> {
        let new = beside(&self.path, "new");
        let mut file = private::make_anew(&new)?;
        file.write_all(&serde_json::to_vec(marks)?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Locks a file beside it, because each save replaces the file itself.
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
    name.push(format!(".{ending}"));
    name.into()
}

fn new_name() -> String {
    Uuid::new_v4().simple().to_string()
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
