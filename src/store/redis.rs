//! The shared store: one Redis (or the master of its sentinels, or a cluster), many gateways.
//!
//! Each verb that writes is one script, so it is one atomic step and one round trip (but for a session's
//! token on a cluster). What a Redis is
//! worth is looked at all the time, and so is whether it still has what was written to it; while either
//! is not as it should be, nothing is claimed.

mod barrier; // WAIT, for what replicas must have
mod checks; // what is looked at, and when
mod durability; // what a Redis is worth
mod epoch; // lost data: noticing it, mending it, accepting it
mod keys; // names of keys
mod link; // the connection
mod loss; // whether the store has lost data
mod memory; // what a gateway remembers of it
mod record; // records as fields of a hash
mod scripts; // one per verb
mod selftest; // a trial of them
mod target; // which Redis

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use redis::{FromRedisValue, Value, cmd};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::barrier::Barrier;
use self::keys::Partition;
use self::link::Link;
pub use self::memory::WatermarksError;
use self::memory::{Memory, Need, TOKEN_LIMIT_US};
use self::scripts::{Run, Scripts};
pub use self::target::Target;
use super::{
    Census, Claimed, Due, Durability, Endings, Error, LOST_DATA, Listener, Readiness, Replaced, Store,
};
use crate::core::call::Change;
use crate::core::key;
use crate::core::record::{CallId, Entry, Record, State};

/// How long a call waits for a look at a server that was started anew.
const LOOK_TIME: Duration = Duration::from_secs(2);

/// What an operator says about a Redis.
#[derive(Debug, Clone)]
pub struct Settings {
    pub target: Target,
    /// What must hold, or nothing is claimed.
    pub durability: Durability,
    /// What holds where it cannot be seen, because CONFIG is not allowed.
    pub declared: Option<Durability>,
    /// A certificate authority to trust instead of the system's, in PEM.
    pub ca: Option<PathBuf>,
    /// Where this gateway keeps what it must remember about the store.
    pub watermarks: PathBuf,
}

/// Why a Redis store cannot be opened. That it is not reached is no reason: it may come.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Watermarks(#[from] WatermarksError),
    #[error("{0}: the certificate authority cannot be read: {1}")]
    Ca(PathBuf, std::io::Error),
}

/// Clones share one store.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    weak: Weak<Inner>,
    link: Link,
    barrier: Barrier,
    scripts: Scripts,
    memory: Arc<Memory>,
    endings: Arc<Endings>,
    settings: Settings,
    status: RwLock<Readiness>,
    /// From this machine's clock to the store's, in microseconds.
    clock_offset_us: AtomicI64,
    lost_writes: AtomicU64,
    /// This process has found its own data here.
    was_whole: AtomicBool,
    /// What is remembered has been put back since the loss was noticed.
    is_mended: AtomicBool,
    /// The servers that the scripts were tried on.
    tried_on: RwLock<String>,
    /// Since when other servers are there than before.
    met_at: Mutex<Option<Instant>>,
    /// How often the store was closed between looks.
    closings: AtomicU64,
    /// How often everything has been looked at.
    looks: watch::Sender<u64>,
}

#[async_trait]
impl Store for Redis {
    async fn claim(&self, change: &Change, instead_of: Option<&Record>) -> Result<Claimed, Error> {
        let store = &*self.0;
        let intent = &change.record.intent;
        match store.try_claim(change, instead_of).await {
            // What is there can be told all the same; but nothing runs on it.
            Err(Error::Refused(why)) if store.is_reached() => match store.held(intent.lookup).await {
                Ok(Some(holder)) if holder.intent.call_id == intent.call_id => Err(Error::Ambiguous(why)),
                Ok(Some(holder)) if !is_seen(&holder, instead_of) => {
                    Ok(Claimed::Existing(store.settled(holder).await?))
                }
                _ => Err(Error::Refused(why)),
            },
            Ok(Claimed::Existing(holder)) => Ok(Claimed::Existing(store.settled(holder).await?)),
            claimed => claimed,
        }
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        let store = &*self.0;
        // Where something is to be sent next, the store must be as it should be.
        let begins = matches!(change.record.state, State::Running);
        let (epoch, script) = if begins {
            store.must_be_open()?;
            (store.memory.epoch(), &store.scripts.begin)
        } else {
            (String::new(), &store.scripts.finish)
        };
        let intent = &change.record.intent;
        let partition = Partition::of(&intent.lookup);
        let floor = if change.draws_token { store.floor()? } else { 0 };
        let token = match (change.draws_token, store.is_cluster()) {
            (false, _) => "keep".to_owned(),
            (true, false) => "draw".to_owned(),
            (true, true) => store.draw(&change.record, floor).await?,
        };
        let known = store.memory.writes(partition);
        let drawn_here = (token == "draw").then(|| keys::token(intent));
        let mut run = Run::new(script);
        run.key(&partition.of_script(&intent.lookup, intent.call_id, drawn_here)[..]);
        let result = record::result(&change.record);
        run.arg(partition.prefix()).arg(store.memory.gateway()).arg(epoch).arg(known);
        run.arg(intent.call_id.to_string()).arg(record::cas(expected)).arg(record::fencing(expected));
        run.arg(record::cas(&change.record)).arg(record::progress(&change.record));
        run.arg(u8::from(result.is_some())).arg(result.map_or(&[][..], AsRef::as_ref));
        run.arg(record::entry_field(change.record.version)).arg(record::entry(&change.entry));
        run.arg(&intent.tool).arg(change.record.state.as_str()).arg(score(&change.record));
        run.arg(time_to_live(&change.record)).arg(token).arg(floor).arg(store.announcement(begins));
        let answer = if begins { store.run_guarded(&run).await? } else { store.link.run(&run).await? };
        let (word, rest) = reply(answer)?;
        match word.as_str() {
            "done" => {
                let mut record = change.record.clone();
                record.fencing = store.wrote(partition, &rest).await?;
                store.memory.remember(&record, &change.entry);
                store.barrier.pass(partition).await?;
                Ok(Replaced::Done(record))
            }
            "gone" if begins => Err(store.has_lost("call")),
            "gone" => store.complete_lost(change).await,
            "changed" => {
                let newer = stored(rest)?;
                let is_older = newer.as_ref().is_some_and(|stored| {
                    stored.intent.call_id == intent.call_id && stored.version < expected.version
                });
                match (is_older, begins) {
                    (true, true) => Err(store.has_lost("call")),
                    (true, false) => store.complete_lost(change).await,
                    (false, _) => {
                        store.memory.forget(intent.call_id);
                        Ok(Replaced::Lost(newer))
                    }
                }
            }
            _ => Err(store.has_lost(&text(&rest, 0).unwrap_or_default())),
        }
    }

    async fn holder(&self, lookup: key::Lookup) -> Result<Option<Record>, Error> {
        match self.0.held(lookup).await? {
            Some(holder) => Ok(Some(self.0.settled(holder).await?)),
            None => Ok(None),
        }
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        match self.0.fields_of(call_id).await? {
            Some(record) => Ok(Some(self.0.settled(record).await?)),
            None => Ok(None),
        }
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<(Record, Vec<Entry>)>, Error> {
        let Some(record) = self.load(call_id).await? else { return Ok(None) };
        // Each version has one entry.
        let oldest = record.version.saturating_sub(u64::from(limit)) + 1;
        let mut ask = cmd("HMGET");
        ask.arg(Partition::of_call(call_id).call(call_id));
        for version in oldest..=record.version {
            ask.arg(record::entry_field(version));
        }
        let texts: Vec<Option<Vec<u8>>> = self.0.link.ask(&ask).await?;
        let entries = texts.iter().flatten().map(|text| record::read_entry(text));
        let entries = entries.collect::<Result<_, _>>().map_err(unreadable)?;
        Ok(Some((record, entries)))
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<Due>, Error> {
        // What was lost is put back before anybody takes the rest for its end.
        if self.0.is_in_doubt() {
            return Ok(Vec::new());
        }
        let until = now.as_microsecond();
        let mut over: Vec<(CallId, i64)> = Vec::new();
        let found = self.0.link.ask_each(|partition| {
            let mut ask = cmd("ZRANGEBYSCORE");
            ask.arg(partition.key("running")).arg("-inf").arg(until).arg("WITHSCORES");
            ask.arg("LIMIT").arg(0).arg(limit);
            ask
        });
        for ids in found.await? {
            let ids = Vec::<(String, f64)>::from_redis_value(ids).map_err(unreadable)?;
            over.extend(ids.into_iter().filter_map(|(id, lease)| Some((call_id(&id)?, lease as i64))));
        }
        over.sort_by_key(|(_, lease)| *lease);
        let mut due = Vec::new();
        for (call_id, _) in over.into_iter().take(limit as usize) {
            // That the owner has ended nobody can know; its lease is what counts.
            let record = self.0.fields_of(call_id).await?;
            due.extend(record.map(|record| Due { record, owner_ended: false }));
        }
        Ok(due)
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        let mut census: Vec<Census> = Vec::new();
        for counts in
            self.0.link.ask_each(|partition| cmd("HGETALL").arg(partition.key("census")).to_owned()).await?
        {
            for (name, calls) in Vec::<(String, i64)>::from_redis_value(counts).map_err(unreadable)? {
                let Some((state, tool)) = name.split_once(':') else { continue };
                let calls = u64::try_from(calls).unwrap_or(0);
                if calls == 0 {
                    continue;
                }
                match census.iter_mut().find(|count| count.state == state && count.tool == tool) {
                    Some(count) => count.calls += calls,
                    None => census.push(Census { tool: tool.to_owned(), state: state.to_owned(), calls }),
                }
            }
        }
        Ok(census)
    }

    /// Finished calls and sessions go by themselves when their time is over; here only what points
    /// to failed ones is taken away.
    async fn prune(&self, now: Timestamp, _limit: u32) -> Result<u64, Error> {
        let until = now.as_microsecond();
        let over = |partition: Partition| {
            cmd("ZREMRANGEBYSCORE").arg(partition.key("failed")).arg("-inf").arg(until).to_owned()
        };
        self.0.link.ask_each(over).await?;
        Ok(0)
    }

    async fn readiness(&self) -> Readiness {
        self.0.status()
    }

    fn clock_offset(&self) -> SignedDuration {
        SignedDuration::from_micros(self.0.clock_offset_us.load(std::sync::atomic::Ordering::Relaxed))
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        Some(self.0.endings.listen(call_id))
    }

    async fn doubtful(&self) -> Result<Vec<CallId>, Error> {
        let mut doubtful = Vec::new();
        for index in ["running", "failed"] {
            let all =
                |partition: Partition| cmd("ZRANGE").arg(partition.key(index)).arg(0).arg(-1).to_owned();
            for ids in self.0.link.ask_each(all).await? {
                let ids = Vec::<String>::from_redis_value(ids).map_err(unreadable)?;
                doubtful.extend(ids.iter().filter_map(|id| call_id(id)));
            }
        }
        Ok(doubtful)
    }

    async fn accept_loss(&self, reason: &str) -> Result<(), Error> {
        self.0.accept_loss(reason).await
    }

    async fn close(&self) {
        self.0.save_watermarks(Need::Always).await;
    }
}

impl Inner {
    async fn try_claim(&self, change: &Change, instead_of: Option<&Record>) -> Result<Claimed, Error> {
        self.must_be_open()?;
        let intent = &change.record.intent;
        let partition = Partition::of(&intent.lookup);
        let floor = if change.draws_token { self.floor()? } else { 0 };
        let token = match (change.draws_token, self.is_cluster()) {
            (false, _) => String::new(),
            (true, false) => "draw".to_owned(),
            (true, true) => {
                // The session is in another slot. No token is drawn for a key that is held.
                match self.held(intent.lookup).await? {
                    // Asked again: it has its token.
                    Some(holder) if holder.intent.call_id == intent.call_id => record::fencing(&holder),
                    Some(holder) if !is_seen(&holder, instead_of) => return Ok(Claimed::Existing(holder)),
                    _ => self.draw(&change.record, floor).await?,
                }
            }
        };
        let mut run = Run::new(&self.scripts.claim);
        let drawn_here = (token == "draw").then(|| keys::token(intent));
        run.key(&partition.of_script(&intent.lookup, intent.call_id, drawn_here)[..]);
        run.key(partition.call(instead_of.map_or(intent.call_id, |old| old.intent.call_id)));
        run.arg(partition.prefix()).arg(self.memory.gateway());
        run.arg(self.memory.epoch()).arg(self.memory.writes(partition));
        run.arg(intent.call_id.to_string());
        run.arg(instead_of.map(|old| old.intent.call_id.to_string()).unwrap_or_default());
        run.arg(instead_of.map(record::cas).unwrap_or_default());
        run.arg(record::cas(&change.record)).arg(record::intent(intent)).arg(&intent.args[..]);
        run.arg(record::progress(&change.record)).arg(record::entry(&change.entry));
        run.arg(&intent.tool).arg(score(&change.record)).arg(token).arg(floor);
        let (word, mut rest) = reply(self.run_guarded(&run).await?)?;
        match word.as_str() {
            "done" => {
                let mut record = change.record.clone();
                record.fencing = self.wrote(partition, &rest).await?;
                self.memory.remember(&record, &change.entry);
                self.barrier.pass(partition).await?;
                Ok(Claimed::Yours(record))
            }
            "held" => {
                let fields = Vec::from_redis_value(rest.pop().unwrap_or(Value::Nil)).map_err(unreadable)?;
                let holder = record::read(fields).map_err(unreadable)?;
                let missing = || Error::Refused("the record behind a key is missing".into());
                Ok(Claimed::Existing(holder.ok_or_else(missing)?))
            }
            _ => Err(self.has_lost(&text(&rest, 0).unwrap_or_default())),
        }
    }

    /// Runs a script after which something may be sent. If the server does not have it, it has been
    /// started anew: then what it holds is looked at first.
    async fn run_guarded(&self, run: &Run<'_>) -> Result<Value, Error> {
        if let Some(answer) = self.link.run_if_loaded(run).await? {
            return Ok(answer);
        }
        let mut looks = self.looks.subscribe();
        self.tried_on.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.link.trouble.notify_one();
        // One that has begun before may not have seen it.
        for _ in 0..2 {
            if timeout(LOOK_TIME, looks.changed()).await.is_err() {
                break;
            }
            self.must_be_open()?;
            if let Some(answer) = self.link.run_if_loaded(run).await? {
                return Ok(answer);
            }
        }
        Err(Error::Refused("Redis has been started anew and has not been looked at yet".into()))
    }

    /// Draws a token where the session lives.
    async fn draw(&self, record: &Record, floor: u64) -> Result<String, Error> {
        let mut run = Run::new(&self.scripts.token);
        run.key(keys::token(&record.intent)).arg(floor);
        String::from_redis_value(self.link.run(&run).await?).map_err(unreadable)
    }

    /// What no token may be below: the clock, and every token that this gateway has seen.
    fn floor(&self) -> Result<u64, Error> {
        let now = self.store_time().as_microsecond().unsigned_abs();
        let floor = now.max(self.memory.token() + 1);
        if floor.saturating_sub(now) > TOKEN_LIMIT_US {
            return Err(Error::Refused("fencing tokens are more than a day ahead of the clock".into()));
        }
        Ok(floor)
    }

    /// Takes note of what a script has written: the token, and the count of this gateway's writes.
    async fn wrote(&self, partition: Partition, rest: &[Value]) -> Result<Option<u64>, Error> {
        let token = text(rest, 0).filter(|token| !token.is_empty()).map(|token| token.parse());
        let token = token.transpose().map_err(unreadable)?;
        if let Some(writes) = text(rest, 1).and_then(|writes| writes.parse().ok()) {
            self.memory.saw_writes(partition, writes);
        }
        if let Some(token) = token
            && self.memory.saw_token(token)
            && !self.save_watermarks(Need::Token(token)).await
        {
            return Err(Error::Ambiguous(
                "written, but the token could not be noted in the watermarks".into(),
            ));
        }
        Ok(token)
    }

    async fn held(&self, lookup: key::Lookup) -> Result<Option<Record>, Error> {
        let partition = Partition::of(&lookup);
        let mut run = Run::new(&self.scripts.holder);
        run.key(partition.holder(&lookup)).arg(partition.prefix());
        match self.link.run(&run).await? {
            Value::Nil => Ok(None),
            fields => stored_in(fields)?
                .map(Some)
                .ok_or_else(|| Error::Refused("the record behind a key is missing".into())),
        }
    }

    async fn fields_of(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        let mut ask = cmd("HMGET");
        ask.arg(Partition::of_call(call_id).call(call_id)).arg(&record::FIELDS);
        stored_in(self.link.ask(&ask).await?)
    }

    /// A record, when replicas have it too, if they have to. One that runs is told to nobody.
    async fn settled(&self, record: Record) -> Result<Record, Error> {
        if !matches!(record.state, State::Running) {
            let partition = Partition::of(&record.intent.lookup);
            self.barrier.cover(partition, record.updated_at, self.store_time()).await?;
        }
        Ok(record)
    }

    /// Writes how a call ended that the store has lost, or of which it has an older version only:
    /// nothing unfinished is ever deleted. What is known of it goes back as a whole.
    async fn complete_lost(&self, change: &Change) -> Result<Replaced, Error> {
        self.put_back(&change.record, &change.entry).await?;
        self.memory.remember(&change.record, &change.entry);
        self.link.trouble.notify_one();
        let call_id = change.record.intent.call_id;
        match self.fields_of(call_id).await? {
            // Somebody was faster; what is known here may still settle it.
            Some(there) if there != change.record => {
                self.memory.forget(call_id);
                Ok(Replaced::Lost(Some(there)))
            }
            _ => {
                self.barrier.pass(Partition::of(&change.record.intent.lookup)).await?;
                Ok(Replaced::Done(change.record.clone()))
            }
        }
    }

    fn is_reached(&self) -> bool {
        self.status.read().unwrap_or_else(PoisonError::into_inner).durability.is_some()
    }

    /// Whether it is not known yet that all data is there.
    fn is_in_doubt(&self) -> bool {
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        let doubts =
            ["unreachable", "disconnected", "starting", "restarted", "suspect", "foreign", LOST_DATA];
        status.reasons.iter().any(|reason| doubts.contains(&reason.code))
    }

    fn must_be_open(&self) -> Result<(), Error> {
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        match status.reasons.first() {
            None => Ok(()),
            Some(reason) => Err(Error::Refused(reason.text.clone())),
        }
    }

    fn is_cluster(&self) -> bool {
        self.link.target.is_cluster()
    }

    fn announcement(&self, begins: bool) -> &'static str {
        match (begins, self.is_cluster()) {
            (true, _) => "",
            (false, false) => "PUBLISH",
            (false, true) => "SPUBLISH",
        }
    }
}

/// Whether the holder of a key is still the record that was seen.
fn is_seen(holder: &Record, seen: Option<&Record>) -> bool {
    seen.is_some_and(|seen| {
        seen.intent.call_id == holder.intent.call_id && record::cas(seen) == record::cas(holder)
    })
}

/// Where a call stands in the index of its state, in microseconds.
fn score(record: &Record) -> i64 {
    let time = match &record.state {
        State::Running => record.attempt.lease_until,
        State::Failed(_) => record.retain_until.unwrap_or(Timestamp::MAX),
        State::Succeeded(_) | State::Unknown(_) => record.updated_at,
    };
    time.as_microsecond()
}

/// For how long a finished call is kept, in milliseconds; empty for ever.
fn time_to_live(record: &Record) -> String {
    let Some(until) = record.retain_until else { return String::new() };
    until.duration_since(record.updated_at).as_millis().max(1).to_string()
}

fn call_id(text: &str) -> Option<CallId> {
    text.parse().ok().map(CallId)
}

/// One of the texts behind a script's word.
fn text(rest: &[Value], at: usize) -> Option<String> {
    rest.get(at).cloned().and_then(|value| String::from_redis_value(value).ok())
}

/// A script's answer: a word and what follows it.
fn reply(answer: Value) -> Result<(String, Vec<Value>), Error> {
    let mut parts = Vec::<Value>::from_redis_value(answer).map_err(unreadable)?;
    if parts.is_empty() {
        return Err(unreadable("an empty answer"));
    }
    let rest = parts.split_off(1);
    let word = parts.pop().unwrap_or(Value::Nil);
    Ok((String::from_redis_value(word).map_err(unreadable)?, rest))
}

fn stored(mut rest: Vec<Value>) -> Result<Option<Record>, Error> {
    stored_in(rest.pop().unwrap_or(Value::Nil))
}

fn stored_in(fields: Value) -> Result<Option<Record>, Error> {
    let fields = Vec::from_redis_value(fields).map_err(unreadable)?;
    record::read(fields).map_err(unreadable)
}

/// An answer that makes no sense proves nothing.
fn unreadable(why: impl ToString) -> Error {
    Error::Ambiguous(format!("an answer of Redis cannot be read: {}", why.to_string()))
}
