//! A store in memory that several gateways can share, and that can lose its newest writes, as a
//! server does that comes back from an older copy of its data.
//!
//! It keeps every promise of the trait but durability. Like a store whose counters show a loss, it
//! lets nothing begin after one until somebody has accepted it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use oncegate::core::call::{Change, Takes};
use oncegate::core::document::{Document, Kind, Place};
use oncegate::core::key::GroupKey;
use oncegate::core::key::Lookup;
use oncegate::core::ledger::{
    Duplicates, Filter, History, Listed, PAGE_BYTES, Page, Placed, Position,
};
use oncegate::core::record::{CallId, Entry, Holder, Record, State};
use oncegate::core::session::{
    Admission, Denied, LINE_PLACE, Line, Lock, Session, SessionId, Token, brought,
};
use oncegate::store::{
    Census, Claimed, Due, Durability, Endings, Error, Found, LOST_DATA, Listener, Put, Readiness,
    Reason, Replaced, Store,
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
    /// Who waits for the end of a call, if anybody is told.
    endings: Option<Arc<Endings>>,
    ahead: SignedDuration,
    lines: Lines,
    duplicates: HashMap<CallId, Duplicates>,
    /// The copy of the secret beside the watermarks.
    secret: Option<Bytes>,
}

/// How often a call has waited for a session's lock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lines {
    pub joined: usize,
    /// Those that got the lock from their place.
    pub served: usize,
    /// Locks of unknown calls whose lease was ended.
    pub ended: usize,
}

#[derive(Clone, Default)]
struct Kept {
    calls: HashMap<CallId, (Record, Vec<Entry>)>,
    holders: HashMap<Lookup, CallId>,
    sessions: HashMap<SessionId, Session>,
    /// Until when who waits in a line is waited for.
    alive: HashMap<CallId, Timestamp>,
    /// The calls in a room, and until when.
    rooms: HashMap<GroupKey, Vec<(CallId, Timestamp)>>,
    paused: HashMap<String, Entry>,
    tool_events: HashMap<String, Vec<Entry>>,
    documents: HashMap<(Kind, String, String), Document>,
    /// No token above this was given before a loss that was accepted.
    explained: u64,
}

impl Memory {
    /// Those who wait for a call of another gateway are told of its end.
    pub fn that_tells() -> Self {
        let memory = Self::default();
        memory.lock().endings = Some(Arc::default());
        memory
    }

    /// Its clock is so far ahead of this machine's.
    pub fn set_ahead(&self, ahead: SignedDuration) {
        self.lock().ahead = ahead;
    }

    /// Ends the leases of these unknown calls, as far as their sessions wait for that.
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

    /// Every record that was ever written under this key, also what was lost.
    pub fn written(&self, lookup: Lookup) -> Vec<Record> {
        let inner = self.lock();
        inner
            .written
            .iter()
            .filter(|record| record.intent.lookup == lookup)
            .cloned()
            .collect()
    }

    /// Everything that is kept beside the calls is gone.
    pub fn forget_documents(&self) {
        self.lock().kept.documents.clear();
    }

    /// Every call is gone, as if its retention were over.
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
    /// Writes a change whose conditions hold as it is to be stored.
    fn write(&mut self, change: &Change) -> Record {
        let mut record = change.record.clone();
        self.before.push((self.kept.clone(), record.intent.lookup));
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
        self.written.push(record.clone());
        record
    }

    /// The first of the conditions that does not hold.
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

    /// After a loss nobody knows which keys are free and which runs have been.
    fn may_begin(&self) -> Result<(), Error> {
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

    /// The call's places in the line of its session.
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
        let denied = brought(admission.token, session.token, self.explained);
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
            let has_place = places.iter().any(|(id, _)| *id == call_id);
            if let (false, Some(over)) =
                (has_place, places.len().checked_sub(spending.max as usize))
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
        self.alive.insert(call_id, now + LINE_PLACE);
        Some(Denied::Busy {
            lock,
            behind: Some(behind),
        })
    }

    /// Writes what follows from conditions that hold.
    fn enter(&mut self, admission: &Admission, record: &mut Record) {
        let (call_id, now) = (record.intent.call_id, record.updated_at);
        let session = self
            .sessions
            .entry(SessionId::of(&record.intent))
            .or_default();
        let clock = u64::try_from(now.as_microsecond()).expect("after 1970");
        let token = match admission.token {
            Token::Next => clock.max(session.token.unwrap_or(0) + 1),
            Token::This(token) => token,
        };
        session.token = Some(token);
        record.fencing = Some(token);
        if admission.lock.is_some() {
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

/// The calls of a room whose time there is not over, the oldest first.
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

/// The same version of the same call.
fn is_same(one: &Record, other: &Record) -> bool {
    let what = |record: &Record| (record.intent.call_id, record.version, record.attempt.id);
    what(one) == what(other)
}

#[async_trait]
impl Store for Memory {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let mut inner = self.lock();
        inner.may_begin()?;
        for name in change.record.intent.all_names() {
            let Some(holder) = inner.kept.holder(name) else {
                continue;
            };
            if is_same(holder, &change.record) {
                return Ok(Claimed::Yours(holder.clone()));
            }
            if !instead_of.iter().any(|seen| is_same(holder, seen)) {
                return Ok(Claimed::Existing(holder.clone()));
            }
        }
        if let Some(denied) = inner.denied(change) {
            return Ok(Claimed::Denied(denied));
        }
        let record = inner.write(change);
        for name in record.intent.all_names() {
            inner.kept.holders.insert(*name, record.intent.call_id);
        }
        Ok(Claimed::Yours(record))
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        let mut inner = self.lock();
        let stored = inner.kept.load(expected.intent.call_id).cloned();
        let is_gone_back = stored
            .as_ref()
            .is_none_or(|stored| stored.version < expected.version);
        if change.record.state == State::Running {
            inner.may_begin()?;
            if is_gone_back {
                return Err(Error::Refused("writes were lost".into()));
            }
            let mut holders = expected
                .intent
                .all_names()
                .filter_map(|name| inner.kept.holder(name));
            if let Some(other) =
                holders.find(|holder| holder.intent.call_id != expected.intent.call_id)
            {
                return Ok(Replaced::Lost(Some(other.clone())));
            }
        } else if is_gone_back {
            // What is known of a call that was lost goes back as a whole.
            let record = inner.write(change);
            for name in record.all_names() {
                let is_over = |holder: &Record| {
                    holder
                        .expires_at
                        .is_some_and(|expires_at| expires_at <= record.attempt.run_started_at)
                };
                if inner.kept.holder(name).is_none_or(is_over) {
                    inner.kept.holders.insert(*name, record.intent.call_id);
                }
            }
            return Ok(Replaced::Done(record));
        }
        let Takes { names, instead_of } = &change.takes;
        Ok(match stored {
            Some(stored) if is_same(&stored, expected) && stored.fencing == expected.fencing => {
                if !names.is_empty() {
                    inner.may_begin()?;
                }
                let mut holders = names.iter().filter_map(|name| inner.kept.holder(name));
                let gives_up =
                    |holder: &Record| instead_of.iter().any(|seen| is_same(holder, seen));
                let is_own = |holder: &Record| holder.intent.call_id == expected.intent.call_id;
                if let Some(other) = holders.find(|holder| !is_own(holder) && !gives_up(holder)) {
                    return Ok(Replaced::Lost(Some(other.clone())));
                }
                match inner.denied(change) {
                    Some(denied) => Replaced::Denied(denied),
                    None => {
                        let record = inner.write(change);
                        for name in names {
                            inner.kept.holders.insert(*name, record.intent.call_id);
                        }
                        Replaced::Done(record)
                    }
                }
            }
            Some(stored) if stored == change.as_stored(&stored) => Replaced::Done(stored),
            stored => Replaced::Lost(stored),
        })
    }

    async fn holders(&self, names: &[Lookup]) -> Result<Vec<Holder>, Error> {
        let inner = self.lock();
        let mut holders: Vec<Holder> = Vec::new();
        for (name, record) in names
            .iter()
            .filter_map(|name| Some((name, inner.kept.holder(name)?)))
        {
            match holders
                .iter_mut()
                .find(|holder| holder.record.intent.call_id == record.intent.call_id)
            {
                Some(holder) => holder.names.push(*name),
                None => holders.push(Holder {
                    record: record.clone(),
                    names: vec![*name],
                }),
            }
        }
        Ok(holders)
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        Ok(self.lock().kept.load(call_id).cloned())
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        let inner = self.lock();
        let found = inner.kept.calls.get(&call_id).cloned();
        let duplicates = inner.duplicates.get(&call_id).cloned().unwrap_or_default();
        Ok(found.map(|(record, mut entries)| {
            entries.drain(..entries.len().saturating_sub(limit as usize));
            History {
                record,
                entries,
                duplicates,
            }
        }))
    }

    async fn tenants(&self) -> Result<Vec<String>, Error> {
        let mut tenants: Vec<String> = self
            .lock()
            .kept
            .calls
            .values()
            .map(|(record, _)| record.intent.tenant.clone())
            .collect();
        tenants.sort();
        tenants.dedup();
        Ok(tenants)
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>, Error> {
        let inner = self.lock();
        let is_asked_for = |record: &Record| {
            let is_before = before.is_none_or(|before| Position::of(record) < before);
            record.intent.tenant == tenant && is_before && filter.matches(record)
        };
        let found = inner
            .kept
            .calls
            .values()
            .map(|(record, _)| record)
            .filter(|record| is_asked_for(record));
        let found = found.map(|record| {
            let duplicates = inner
                .duplicates
                .get(&record.intent.call_id)
                .cloned()
                .unwrap_or_default();
            let record = record.clone();
            let record = if filter.is_brief {
                record.without_texts()
            } else {
                record
            };
            Listed { record, duplicates }
        });
        let mut page = Page {
            found: found.collect::<Vec<Listed>>(),
            next: None,
            unreadable: 0,
        };
        page.found
            .sort_by_key(|listed| std::cmp::Reverse(listed.position()));
        let mut bytes = 0;
        let fits = page.found.iter().take_while(|listed| {
            let fits = bytes < PAGE_BYTES;
            bytes += listed.size();
            fits
        });
        let fits = fits.count();
        page.cut(fits.min(limit as usize));
        Ok(page)
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error> {
        self.lock()
            .duplicates
            .entry(call_id)
            .or_default()
            .add(later);
        Ok(())
    }

    /// By lease only: who shares a store cannot tell that an owner has ended.
    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        let inner = self.lock();
        let running = inner.kept.in_state(State::Running.as_str());
        let mut due: Vec<Record> = running
            .filter(|record| record.attempt.lease_until <= now)
            .cloned()
            .collect();
        due.sort_by_key(|record| record.attempt.lease_until);
        due.truncate(limit as usize);
        let due = due.into_iter().map(|record| Due {
            record,
            owner_ended: false,
        });
        Ok(Found {
            calls: due.collect(),
            unreadable: Vec::new(),
        })
    }

    async fn to_check(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>, Error> {
        let inner = self.lock();
        let is_due = |record: &&Record| {
            record
                .check
                .and_then(|check| check.at)
                .is_some_and(|at| at <= now)
        };
        let mut due: Vec<&Record> = inner.kept.in_state("unknown").filter(is_due).collect();
        due.sort_by_key(|record| record.check.and_then(|check| check.at));
        let of = |tool: &String| {
            let due = due.iter().filter(move |record| record.intent.tool == *tool);
            due.take(each as usize)
                .map(|record| (*record).clone())
                .collect::<Vec<_>>()
        };
        Ok(Found {
            calls: tools.iter().flat_map(of).collect(),
            unreadable: Vec::new(),
        })
    }

    async fn unchecked(&self, tools: &[String], limit: u32) -> Result<Found<Record>, Error> {
        let inner = self.lock();
        let held = inner
            .kept
            .in_state("unknown")
            .filter(|record| record.check.is_none());
        let held = held.filter(|record| tools.contains(&record.intent.tool));
        Ok(Found {
            calls: held.take(limit as usize).cloned().collect(),
            unreadable: Vec::new(),
        })
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
            .map(|((tool, state), calls)| Census {
                tool: tool.to_owned(),
                state: state.to_owned(),
                calls,
            })
            .collect())
    }

    /// Sessions are never forgotten here.
    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        let mut inner = self.lock();
        let is_over = |record: &Record| record.retain_until.is_some_and(|until| until <= now);
        let over = inner
            .kept
            .calls
            .values()
            .filter(|(record, _)| is_over(record));
        let over: Vec<CallId> = over
            .map(|(record, _)| record.intent.call_id)
            .take(limit as usize)
            .collect();
        for call_id in &over {
            inner.kept.calls.remove(call_id);
            inner.kept.holders.retain(|_, holder| holder != call_id);
        }
        let over_documents =
            |document: &Document| document.retain_until.is_some_and(|until| until <= now);
        let before = inner.kept.documents.len();
        inner
            .kept
            .documents
            .retain(|_, document| !over_documents(document));
        Ok((over.len() + before - inner.kept.documents.len()) as u64)
    }

    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        Ok(self
            .lock()
            .kept
            .sessions
            .get(id)
            .cloned()
            .unwrap_or_default())
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error> {
        let mut inner = self.lock();
        let session = inner.kept.sessions.entry(id.clone()).or_default();
        let run = |lock: &Lock| (lock.call_id, lock.token);
        let is_it = session.lock.as_ref().map(run) == Some(run(lock));
        if is_it {
            session.lock = None;
            session.events.push(entry.clone());
        }
        Ok(is_it)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error> {
        let mut inner = self.lock();
        let session = inner.kept.sessions.entry(id.clone()).or_default();
        let was = std::mem::replace(&mut session.frozen, frozen);
        if was != frozen {
            session.events.push(entry.clone());
        }
        Ok(was != frozen)
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<(), Error> {
        let mut inner = self.lock();
        inner
            .kept
            .sessions
            .entry(id.clone())
            .or_default()
            .waiting
            .retain(|(waits, _)| *waits != call_id);
        inner.say_end(call_id);
        Ok(())
    }

    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        Ok(self.lock().kept.paused.clone().into_iter().collect())
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
        let Kept {
            paused: tools,
            tool_events,
            ..
        } = &mut self.lock().kept;
        let changed = tools.contains_key(tool) != paused;
        if changed {
            tools.retain(|name, _| name != tool);
            tools.extend(paused.then(|| (tool.to_owned(), entry.clone())));
            let events = tool_events.entry(tool.to_owned()).or_default();
            events.push(entry.clone());
            events.drain(..events.len().saturating_sub(100));
        }
        Ok(changed)
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        Ok(self
            .lock()
            .kept
            .tool_events
            .get(tool)
            .cloned()
            .unwrap_or_default())
    }

    async fn document(
        &self,
        kind: Kind,
        tenant: &str,
        id: &str,
    ) -> Result<Option<Document>, Error> {
        Ok(self
            .lock()
            .kept
            .documents
            .get(&(kind, tenant.to_owned(), id.to_owned()))
            .cloned())
    }

    async fn put_document(&self, document: &Document) -> Result<Put, Error> {
        let mut inner = self.lock();
        let document = document.to_the_microsecond();
        let name = (document.kind, document.tenant.clone(), document.id.clone());
        let stored = inner.kept.documents.get(&name);
        if stored == Some(&document) {
            return Ok(Put::Done);
        }
        if stored.map_or(0, |stored| stored.version) + 1 != document.version {
            return Ok(Put::Lost(stored.cloned()));
        }
        inner.may_begin()?;
        inner.kept.documents.insert(name, document);
        Ok(Put::Done)
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put, Error> {
        let mut inner = self.lock();
        let document = document.to_the_microsecond();
        let name = (document.kind, document.tenant.clone(), document.id.clone());
        match inner.kept.documents.get(&name) {
            Some(stored) if *stored != document => return Ok(Put::Lost(Some(stored.clone()))),
            Some(_) => {}
            None => drop(inner.kept.documents.insert(name, document)),
        }
        Ok(Put::Done)
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>, Error> {
        let inner = self.lock();
        let is_due = |document: &&Document| {
            document.kind == kind && document.due_at.is_some_and(|due| due <= now)
        };
        let mut due: Vec<Document> = inner
            .kept
            .documents
            .values()
            .filter(is_due)
            .cloned()
            .collect();
        due.sort_by_key(|document| document.due_at);
        due.truncate(limit as usize);
        Ok(Found {
            calls: due,
            unreadable: Vec::new(),
        })
    }

    async fn documents(
        &self,
        kind: Kind,
        tenant: Option<&str>,
        state: Option<&str>,
        before: Option<&Place>,
        limit: u32,
    ) -> Result<(Found<Document>, Option<Place>), Error> {
        let inner = self.lock();
        let is_asked_for = |document: &&Document| {
            document.kind == kind
                && tenant.is_none_or(|tenant| document.tenant == tenant)
                && state.is_none_or(|state| document.state == state)
                && before.is_none_or(|before| Place::of(document) < *before)
        };
        let mut found: Vec<Document> = inner
            .kept
            .documents
            .values()
            .filter(is_asked_for)
            .cloned()
            .collect();
        found.sort_by_key(|document| std::cmp::Reverse(Place::of(document)));
        found.truncate(limit as usize);
        let next = found
            .last()
            .filter(|_| found.len() >= limit as usize)
            .map(Place::of);
        Ok((
            Found {
                calls: found,
                unreadable: Vec::new(),
            },
            next,
        ))
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>, Error> {
        let mut counts = std::collections::BTreeMap::<String, u64>::new();
        for document in self
            .lock()
            .kept
            .documents
            .values()
            .filter(|document| document.kind == kind)
        {
            *counts.entry(document.state.clone()).or_default() += 1;
        }
        Ok(counts.into_iter().collect())
    }

    async fn doubtful(
        &self,
        _from: &str,
        _limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        let inner = self.lock();
        let all = ["running", "failed", "unknown"]
            .into_iter()
            .flat_map(|state| inner.kept.in_state(state));
        Ok((all.map(|record| record.intent.call_id).collect(), None))
    }

    /// In the tests those who share it are in one process.
    fn is_shared(&self) -> bool {
        false
    }

    async fn prepare_acceptance(&self, _reason: &str) -> Result<(), Error> {
        Ok(())
    }

    fn break_off_acceptance(&self) {}

    fn sealing_key(&self) -> String {
        String::new()
    }

    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        Ok(self.lock().secret.clone())
    }

    fn remember_secret(&self, secret: &Bytes) {
        self.lock().secret = Some(secret.clone());
    }

    async fn accept_loss(&self, _reason: &str) -> Result<(), Error> {
        Self::accept_loss(self);
        Ok(())
    }

    async fn close(&self) {}

    fn clock_offset(&self) -> SignedDuration {
        self.lock().ahead
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        self.lock()
            .endings
            .as_ref()
            .map(|endings| endings.listen(call_id))
    }

    async fn readiness(&self) -> Readiness {
        let lost = Reason::new(LOST_DATA, "writes were lost");
        let reasons = if self.has_lost() {
            vec![lost]
        } else {
            Vec::new()
        };
        Readiness {
            durability: Some(Durability::Strict),
            reasons,
            warnings: Vec::new(),
            lost_writes: 0,
            whole_since: Some(Timestamp::MIN),
        }
    }
}
