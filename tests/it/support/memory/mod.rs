//! A store in memory. Several gateways can share it, and it can lose its newest writes, like a server that restarts with an
//! older copy of its data.
//!
//! It keeps the contract of a store except durability. After a loss it refuses new calls until the loss is accepted.

mod beside;
mod calls;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use oncegate::core::call::Change;
use oncegate::core::document::Document;
use oncegate::core::key::{GroupKey, Lookup};
use oncegate::core::ledger::Duplicates;
use oncegate::core::record::{CallId, Entry, Record, State};
use oncegate::core::session::{
    Admission, Denied, LINE_ENTRY, Line, Lock, Session, SessionId, Token, token_denied,
};
use oncegate::store::{Endings, Error, Result};

/// Clones share one store.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    kept: Kept,
    /// The data before each write, and the key of the write.
    before: Vec<(Kept, Lookup)>,
    /// Whether it keeps no such copies. Then it can lose nothing.
    keeps_no_copies: bool,
    /// Every record that was ever written, including lost ones.
    written: Vec<Record>,
    has_lost: bool,
    /// Listeners for the ends of calls, if the store tells of them.
    endings: Option<Arc<Endings>>,
    ahead: SignedDuration,
    lines: Lines,
    duplicates: HashMap<CallId, Duplicates>,
    /// The copy of the secret beside the watermarks.
    secret: Option<Bytes>,
}

/// Counts of calls that waited for a session's lock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lines {
    pub joined: usize,
    /// Calls that got the lock from their place in the line.
    pub served: usize,
    /// Locks of unknown calls whose lease was ended.
    pub ended: usize,
}

#[derive(Clone, Default)]
struct Kept {
    /// Sorted, so that a search finds the same in each run.
    calls: BTreeMap<CallId, (Record, Vec<Entry>)>,
    holders: HashMap<Lookup, CallId>,
    sessions: HashMap<SessionId, Session>,
    /// When the place in a line of each call ends.
    alive: HashMap<CallId, Timestamp>,
    /// The calls of a group, and when their places end.
    rooms: HashMap<GroupKey, Vec<(CallId, Timestamp)>>,
    paused: BTreeMap<String, Entry>,
    tool_events: HashMap<String, Vec<Entry>>,
    documents: BTreeMap<(&'static str, String, String), Document>,
    /// No higher token was given out before the last accepted loss.
    explained: u64,
}

impl Memory {
    /// A store that tells listeners of the ends of calls.
    pub fn that_tells() -> Self {
        let memory = Self::default();
        memory.lock().endings = Some(Arc::default());
        memory
    }

    /// The same for thousands of calls. It keeps no copies, so it cannot lose writes.
    #[allow(dead_code, reason = "of the simulation, which is another test binary")]
    pub fn that_loses_nothing() -> Self {
        let memory = Self::that_tells();
        memory.lock().keeps_no_copies = true;
        memory
    }

    /// Sets how far its clock is ahead of this machine's.
    pub fn set_ahead(&self, ahead: SignedDuration) {
        self.lock().ahead = ahead;
    }

    /// Ends the leases of these unknown calls, where they hold a session's lock.
    pub fn end_leases(&self, is_over: impl Fn(&Record) -> bool) {
        let mut inner = self.lock();
        let Inner {
            kept: Kept {
                calls, sessions, ..
            },
            lines,
            ..
        } = &mut *inner;
        for lock in sessions
            .values_mut()
            .filter_map(|session| session.lock.as_mut())
        {
            let call = calls.get(&lock.call_id).map(|(record, _)| record);
            let is_unknown = |record: &&Record| matches!(record.state, State::Unknown(_));
            if lock
                .free_from
                .is_some_and(|from| from > Timestamp::UNIX_EPOCH)
                && call.filter(is_unknown).is_some_and(&is_over)
            {
                lock.free_from = Some(Timestamp::UNIX_EPOCH);
                lines.ended += 1;
            }
        }
    }

    pub fn lines(&self) -> Lines {
        self.lock().lines
    }

    pub fn sessions(&self) -> HashMap<SessionId, Session> {
        self.lock().kept.sessions.clone()
    }

    /// Undoes the last `n` writes. Returns their keys.
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

    /// Accepts the loss: calls may begin again.
    pub fn accept_loss(&self) {
        let mut inner = self.lock();
        inner.has_lost = false;
        inner.kept.explained = inner
            .written
            .iter()
            .filter_map(|record| record.fencing)
            .max()
            .unwrap_or(0);
    }

    pub fn records(&self) -> Vec<(Record, Vec<Entry>)> {
        self.lock().kept.calls.values().cloned().collect()
    }

    /// Every record that was ever written under this key, including lost ones.
    pub fn written(&self, lookup: Lookup) -> Vec<Record> {
        let inner = self.lock();
        inner
            .written
            .iter()
            .filter(|record| record.intent.lookup == lookup)
            .cloned()
            .collect()
    }

    /// Deletes all documents.
    pub fn forget_documents(&self) {
        self.lock().kept.documents.clear();
    }

    /// Deletes all calls, as if their retention were over.
    pub fn forget_calls(&self) {
        let mut inner = self.lock();
        inner.kept.calls.clear();
        inner.kept.holders.clear();
    }

    pub fn holder_of(&self, lookup: Lookup) -> Option<Record> {
        self.lock().kept.holder(&lookup).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("not poisoned")
    }
}

impl Inner {
    /// Writes a change whose conditions hold. Returns the stored record.
    fn write(&mut self, change: &Change) -> Record {
        let mut record = change.record.clone();
        if !self.keeps_no_copies {
            self.before.push((self.kept.clone(), record.intent.lookup));
        }
        let call_id = record.intent.call_id;
        if let Some(admission) = &change.admission {
            self.lines.served += self.kept.waiting(&record, call_id).count();
            self.kept.enter(admission, &mut record);
        }
        self.kept.release(change);
        if record.state != State::Running {
            self.say_end(call_id);
        }
        let (stored, entries) = self
            .kept
            .calls
            .entry(call_id)
            .or_insert_with(|| (record.clone(), Vec::new()));
        *stored = record.clone();
        entries.push(change.entry.clone());
        if !self.keeps_no_copies {
            self.written.push(record.clone());
        }
        record
    }

    /// The first condition that does not hold.
    fn denied(&mut self, change: &Change) -> Option<Denied> {
        let (record, call_id) = (&change.record, change.record.intent.call_id);
        let before = self.kept.waiting(record, call_id).count();
        let denied = self.kept.denied(change);
        self.lines.joined += self
            .kept
            .waiting(record, call_id)
            .count()
            .saturating_sub(before);
        denied
    }

    fn say_end(&self, call_id: CallId) {
        if let Some(endings) = &self.endings {
            endings.say(call_id);
        }
    }

    /// Refuses after a loss: nothing shows which keys are free and which calls ran.
    fn may_begin(&self) -> Result<()> {
        if self.has_lost {
            Err(Error::Refused("writes were lost".into()))
        } else {
            Ok(())
        }
    }
}

impl Kept {
    fn holder(&self, lookup: &Lookup) -> Option<&Record> {
        self.load(*self.holders.get(lookup)?)
    }

    fn load(&self, call_id: CallId) -> Option<&Record> {
        self.calls.get(&call_id).map(|(record, _)| record)
    }

    /// The places of a call in the line of its session.
    fn waiting(&self, record: &Record, call_id: CallId) -> impl Iterator<Item = &CallId> {
        let session = self.sessions.get(&SessionId::of(&record.intent));
        let waiting = session.into_iter().flat_map(|session| &session.waiting);
        waiting
            .map(|(waits, _)| waits)
            .filter(move |waits| **waits == call_id)
    }

    fn denied(&mut self, change: &Change) -> Option<Denied> {
        let admission = change.admission.as_ref()?;
        let (call_id, now) = (change.record.intent.call_id, change.record.updated_at);
        let session = self
            .sessions
            .entry(SessionId::of(&change.record.intent))
            .or_default();
        if session.frozen {
            return Some(Denied::Frozen);
        }
        let denied = token_denied(admission.token, session.token, self.explained);
        if denied.is_some() {
            return denied;
        }
        if let Some(likeness) = admission.similar.filter(|likeness| likeness.refuses)
            && let Some(other) = newest(self.rooms.get(&likeness.group), call_id, now)
            && Some(other) != likeness.confirmed
        {
            return Some(Denied::Similar { call_id: other });
        }
        if let Some(spending) = admission.budget {
            let places = in_time(self.rooms.get(&spending.group), now);
            let has_permit = places.iter().any(|(id, _)| *id == call_id);
            if let (false, Some(over)) =
                (has_permit, places.len().checked_sub(spending.max as usize))
            {
                return Some(Denied::Spent {
                    frees_at: places[over].1,
                });
            }
        }
        let line = admission.lock?;
        let alive = &self.alive;
        session
            .waiting
            .retain(|(id, _)| alive.get(id).is_some_and(|until| *until > now));
        let is_free =
            |lock: &Lock| lock.call_id == call_id || lock.free_from.is_some_and(|from| from <= now);
        let lock = session.lock.filter(|lock| !is_free(lock));
        let place = session.waiting.iter().position(|(id, _)| *id == call_id);
        let ahead = place.unwrap_or(session.waiting.len());
        let in_front = ahead.checked_sub(1).map(|last| session.waiting[last].0);
        let behind = in_front.or(lock.map(|lock| lock.call_id))?;
        let has_room = match line {
            Line::Waits { longest } => place.is_some() || session.waiting.len() < longest as usize,
            Line::Leaves => false,
        };
        if !has_room {
            return Some(Denied::Busy { lock, behind: None });
        }
        if place.is_none() {
            session.waiting.push((call_id, now));
        }
        self.alive.insert(call_id, now + LINE_ENTRY);
        Some(Denied::Busy {
            lock,
            behind: Some(behind),
        })
    }

    /// Writes token, lock and places of a call whose conditions hold.
    fn enter(&mut self, admission: &Admission, record: &mut Record) {
        let (call_id, now) = (record.intent.call_id, record.updated_at);
        let session = self
            .sessions
            .entry(SessionId::of(&record.intent))
            .or_default();
        let clock = u64::try_from(now.as_microsecond()).expect("after 1970");
        let token = match admission.token {
            Token::Next => Some(clock.max(session.token.unwrap_or(0) + 1)),
            Token::This(token) => Some(token),
            Token::Undrawn => None,
        };
        session.token = token.or(session.token);
        record.fencing = token.or(record.fencing);
        if let Some(token) = token
            && admission.lock.is_some()
        {
            let lease_until = record.attempt.lease_until;
            session.lock = Some(Lock {
                call_id,
                token,
                lease_until,
                free_from: None,
            });
            session.waiting.retain(|(id, _)| *id != call_id);
        }
        if let Some(spending) = admission.budget {
            self.take(spending.group, call_id, now + spending.window);
        }
        if let Some(likeness) = admission.similar {
            record.similar_to = newest(self.rooms.get(&likeness.group), call_id, now);
            self.take(likeness.group, call_id, now + likeness.window);
        }
    }

    fn take(&mut self, room: GroupKey, call_id: CallId, until: Timestamp) {
        let room = self.rooms.entry(room).or_default();
        room.retain(|(id, _)| *id != call_id);
        room.push((call_id, until));
    }

    fn release(&mut self, change: &Change) {
        let call_id = change.record.intent.call_id;
        if let (Some(from), Some(session)) = (
            change.release.lock_from,
            self.sessions.get_mut(&SessionId::of(&change.record.intent)),
        ) && let Some(lock) = session.lock.as_mut().filter(|lock| lock.call_id == call_id)
        {
            lock.free_from = Some(from);
        }
        if let Some(room) = change
            .release
            .similar
            .and_then(|room| self.rooms.get_mut(&room))
        {
            room.retain(|(id, _)| *id != call_id);
        }
    }

    fn in_state(&self, name: &str) -> impl Iterator<Item = &Record> {
        self.calls
            .values()
            .map(|(record, _)| record)
            .filter(move |record| record.state.as_str() == name)
    }
}

/// The calls of a group whose places have not ended, oldest first.
fn in_time(room: Option<&Vec<(CallId, Timestamp)>>, now: Timestamp) -> Vec<(CallId, Timestamp)> {
    room.into_iter()
        .flatten()
        .filter(|(_, until)| *until > now)
        .copied()
        .collect()
}

fn newest(room: Option<&Vec<(CallId, Timestamp)>>, but: CallId, now: Timestamp) -> Option<CallId> {
    in_time(room, now)
        .iter()
        .rev()
        .map(|(id, _)| *id)
        .find(|id| *id != but)
}
