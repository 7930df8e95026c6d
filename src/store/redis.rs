//! The shared store: one Redis (or the master of its sentinels, or a cluster), many gateways.
//!
//! Each verb that writes is one script, so it is one atomic step and one round trip (but for a session's
//! token on a cluster). What a Redis is
//! worth is looked at all the time, and so is whether it still has what was written to it; while either
//! is not as it should be, nothing is claimed.

mod barrier; // WAIT, for what replicas must have
mod checks; // what is looked at, and when
mod document; // what is kept beside the calls
mod durability; // what a Redis is worth
mod epoch; // lost data: noticing it, mending it, accepting it
mod gateways; // those that are gone are forgotten
mod keys; // names of keys
mod ledger; // what the ledger is asked
mod link; // the connection
mod loss; // whether the store has lost data
mod memory; // what a gateway remembers of it
mod pause; // tools that persons have paused
mod record; // records as fields of a hash
mod scripts; // one per verb
mod selftest; // a trial of them
mod session; // conditions, and what persons do to a session
mod target; // which Redis
mod write; // claims and changes of calls

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use redis::{FromRedisValue, Value, cmd};
use tokio::sync::watch;
use tokio::time::Instant;

use self::barrier::Barrier;
use self::keys::Partition;
use self::link::Link;
use self::loss::Manifest;
pub use self::memory::WatermarksError;
use self::memory::{Memory, Need};
use self::scripts::{Run, Scripts};
pub use self::target::Target;
use super::{
    Census, Claimed, Due, Durability, Endings, Error, Found, LOST_DATA, Listener, Put, Readiness,
    Replaced, Store,
};
use crate::core::call::Change;
use crate::core::document::{Document, Kind, Place};
use crate::core::key;
use crate::core::ledger::{Duplicates, Filter, History, Listed, Page, Position};
use crate::core::pace::Pace;
use crate::core::record::Check;
use crate::core::record::{CallId, Entry, Holder, Record, State};
use crate::core::session::{Lock, Session, SessionId};

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
    /// Not set by operators.
    pub pace: Pace,
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
    /// On which the ends of calls are heard.
    ears: Link,
    /// The next look subscribes anew.
    is_deaf: AtomicBool,
    /// Connections on which the ends of calls were heard.
    hearings: AtomicU64,
    barrier: Barrier,
    scripts: Scripts,
    memory: Arc<Memory>,
    endings: Arc<Endings>,
    settings: Settings,
    status: RwLock<Readiness>,
    /// From this machine's clock to the store's, in microseconds; of several masters the smallest.
    clock_offset_us: AtomicI64,
    lost_writes: AtomicU64,
    /// This process has found its own data here.
    was_whole: AtomicBool,
    /// Since when every call is known, in microseconds; 0: that was not seen yet.
    whole_since_us: AtomicI64,
    /// No fencing token above this was given before the last loss of data that was accepted.
    accepted_token: AtomicU64,
    /// What is remembered has been put back since the loss was noticed.
    is_mended: AtomicBool,
    /// What begins when a person has accepted a loss; until then it closes the store for everyone.
    prepared: Mutex<Option<Manifest>>,
    /// The servers that the scripts were tried on.
    tried_on: RwLock<String>,
    /// When this gateway last said that it is there.
    said_hello: Mutex<Option<Instant>>,
    /// Gateways that seem to be gone: when they were there last, and since when that is watched.
    watched: Mutex<HashMap<String, (f64, Instant)>>,
    /// Since when other servers are there than before.
    met_at: Mutex<Option<Instant>>,
    /// How often the store was closed between looks.
    closings: AtomicU64,
    /// Up to which time unknown calls were looked through, where there are too many for one round.
    checked_until: AtomicI64,
    /// How often everything has been looked at.
    looks: watch::Sender<u64>,
}

#[async_trait]
impl Store for Redis {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        self.0.claim(change, instead_of).await
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        self.0.replace(change, expected).await
    }

    async fn holders(&self, names: &[key::Lookup]) -> Result<Vec<Holder>, Error> {
        let mut holders = self.0.holders(names).await?;
        for holder in &mut holders {
            holder.record = self.0.settled(holder.record.clone()).await?;
        }
        Ok(holders)
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        match self.0.fields_of(call_id).await? {
            Some(record) => Ok(Some(self.0.settled(record).await?)),
            None => Ok(None),
        }
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        self.0.history(call_id, limit).await
    }

    async fn tenants(&self) -> Result<Vec<String>, Error> {
        self.0.tenants().await
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>, Error> {
        self.0.list(tenant, filter, before, limit).await
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error> {
        self.0.count_duplicates(call_id, later).await
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        // That the owner has ended nobody can know; its lease is what counts.
        let (limit, times) = (limit as usize, 0..=now.as_microsecond());
        let over = self
            .0
            .search("running", times, limit, limit.max(SEARCHED), |_| true)
            .await?
            .0;
        Ok(over.map(|record| Due {
            record,
            owner_ended: false,
        }))
    }

    async fn to_check(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>, Error> {
        let mut free: HashMap<&str, u32> = tools.iter().map(|tool| (tool.as_str(), each)).collect();
        let limit = tools.len().saturating_mul(each as usize);
        let has_place = |record: &Record| match free.get_mut(record.intent.tool.as_str()) {
            None | Some(0) => false,
            Some(places) => {
                *places -= 1;
                true
            }
        };
        // The index knows no tools: what stands before a long backlog is met in the next rounds.
        let from = self.0.checked_until.load(Ordering::Relaxed);
        let (found, last) = self
            .0
            .search(
                "unknown",
                from..=now.as_microsecond(),
                limit,
                SEARCHED,
                has_place,
            )
            .await?;
        self.0
            .checked_until
            .store(last.unwrap_or(0), Ordering::Relaxed);
        Ok(found)
    }

    async fn unchecked(&self, tools: &[String], limit: u32) -> Result<Found<Record>, Error> {
        self.0.must_be_open()?;
        let is_asked_for = |record: &Record| tools.contains(&record.intent.tool);
        Ok(self
            .0
            .search(
                "unknown",
                NEVER..=NEVER,
                limit as usize,
                SEARCHED,
                is_asked_for,
            )
            .await?
            .0)
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        let mut census: Vec<Census> = Vec::new();
        for counts in self
            .0
            .link
            .ask_each(|partition| cmd("HGETALL").arg(partition.key("census")).to_owned())
            .await?
        {
            for (name, calls) in
                Vec::<(String, i64)>::from_redis_value(counts).map_err(unreadable)?
            {
                let Some((state, tool)) = name.split_once(':') else {
                    continue;
                };
                let calls = u64::try_from(calls).unwrap_or(0);
                if calls == 0 {
                    continue;
                }
                match census
                    .iter_mut()
                    .find(|count| count.state == state && count.tool == tool)
                {
                    Some(count) => count.calls += calls,
                    None => census.push(Census {
                        tool: tool.to_owned(),
                        state: state.to_owned(),
                        calls,
                    }),
                }
            }
        }
        Ok(census)
    }

    /// Sessions go by themselves when their time is over.
    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        self.0.forget_old(now, limit).await
    }

    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        self.0.look_at(id).await
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error> {
        let unlocked = self.0.act(id, "unlock", entry, Some(lock)).await?;
        self.0.announce(lock.call_id).await;
        Ok(unlocked)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error> {
        self.0
            .act(id, if frozen { "freeze" } else { "thaw" }, entry, None)
            .await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<(), Error> {
        self.0.leave_line(id, call_id).await?;
        self.0.announce(call_id).await;
        Ok(())
    }

    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        self.0.paused().await
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
        self.0
            .set_paused(tool, if paused { "pause" } else { "resume" }, entry)
            .await
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        self.0.tool_events(tool).await
    }

    async fn document(
        &self,
        kind: Kind,
        tenant: &str,
        id: &str,
    ) -> Result<Option<Document>, Error> {
        self.0.document(kind, tenant, id).await
    }

    async fn put_document(&self, document: &Document) -> Result<Put, Error> {
        self.0.put_document(document).await
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put, Error> {
        self.0.put_back_document(document).await
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>, Error> {
        self.0.due_documents(kind, now, limit).await
    }

    async fn documents(
        &self,
        kind: Kind,
        tenant: Option<&str>,
        state: Option<&str>,
        before: Option<&Place>,
        limit: u32,
    ) -> Result<(Found<Document>, Option<Place>), Error> {
        self.0.documents(kind, tenant, state, before, limit).await
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>, Error> {
        self.0.count_documents(kind).await
    }

    async fn readiness(&self) -> Readiness {
        self.0.status()
    }

    fn clock_offset(&self) -> SignedDuration {
        SignedDuration::from_micros(self.0.clock_offset_us.load(Ordering::Relaxed))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        Some(self.0.endings.listen(call_id))
    }

    async fn doubtful(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        self.0.doubtful(from, limit).await
    }

    async fn prepare_acceptance(&self, reason: &str) -> Result<(), Error> {
        self.0.prepare_acceptance(reason).await.map(drop)
    }

    fn sealing_key(&self) -> String {
        String::new()
    }

    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        self.0.memory.secret()
    }

    fn remember_secret(&self, secret: &Bytes) {
        if let Err(error) = self.0.memory.remember_secret(secret) {
            tracing::error!(%error, "no copy of the store's secret is kept");
        }
    }

    fn break_off_acceptance(&self) {
        self.0.forget_acceptance();
    }

    async fn accept_loss(&self, reason: &str) -> Result<(), Error> {
        self.0.accept_loss(reason).await
    }

    async fn close(&self) {
        self.0.save_watermarks(Need::Last).await;
    }
}

impl Inner {
    async fn holders(&self, names: &[key::Lookup]) -> Result<Vec<Holder>, Error> {
        let Some(first) = names.first() else {
            return Ok(Vec::new());
        };
        let partition = Partition::of(first);
        let mut run = Run::new(&self.scripts.holders);
        for name in names {
            run.key(partition.holder(name));
        }
        run.arg(partition.prefix());
        let found = Vec::<(Vec<usize>, Value)>::from_redis_value(self.link.run(&run).await?);
        let holder = |(places, fields): (Vec<usize>, Value)| {
            let missing = || Error::Refused("the record behind a key is missing".into());
            let record = stored_in(fields)?.ok_or_else(missing)?;
            let names = places
                .iter()
                .filter_map(|place| names.get(place.checked_sub(1)?).copied())
                .collect();
            Ok(Holder { record, names })
        };
        found.map_err(unreadable)?.into_iter().map(holder).collect()
    }

    async fn fields_of(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        let mut ask = cmd("HMGET");
        ask.arg(Partition::of_call(call_id).call(call_id))
            .arg(&record::FIELDS);
        stored_in(self.link.ask(&ask).await?)
    }

    /// A record, when replicas have it too, if they have to. One that runs is told to nobody.
    async fn settled(&self, record: Record) -> Result<Record, Error> {
        if !matches!(record.state, State::Running) {
            let partition = Partition::of(&record.intent.lookup);
            self.barrier
                .cover(partition, record.updated_at, self.store_time())
                .await?;
        }
        Ok(record)
    }

    /// The wanted calls of an index whose time is within these bounds, the oldest first, at most `limit` of the
    /// `searched` first; and up to when it was looked through, if there was no end to it. What points to no call is taken away.
    async fn search(
        &self,
        index: &str,
        times: RangeInclusive<i64>,
        limit: usize,
        searched: usize,
        mut is_wanted: impl FnMut(&Record) -> bool,
    ) -> Result<(Found<Record>, Option<i64>), Error> {
        let mut found = Found::default();
        // What was lost is put back before anybody takes the rest for its end.
        if self.is_in_doubt() {
            return Ok((found, None));
        }
        let mut over: Vec<(CallId, i64)> = Vec::new();
        let listed = self.link.ask_each(|partition| {
            let mut ask = cmd("ZRANGEBYSCORE");
            ask.arg(partition.key(index))
                .arg(*times.start())
                .arg(*times.end())
                .arg("WITHSCORES");
            ask.arg("LIMIT").arg(0).arg(searched);
            ask
        });
        for ids in listed.await? {
            let ids = Vec::<(String, f64)>::from_redis_value(ids).map_err(unreadable)?;
            over.extend(
                ids.into_iter()
                    .filter_map(|(id, time)| Some((call_id(&id)?, time as i64))),
            );
        }
        over.sort_by_key(|(_, time)| *time);
        let mut last = over.get(searched - 1).map(|(_, time)| *time);
        for (call_id, _) in over.into_iter().take(searched) {
            if found.calls.len() >= limit {
                last = None;
                break;
            }
            let partition = Partition::of_call(call_id);
            let mut ask = cmd("HMGET");
            ask.arg(partition.call(call_id)).arg(&record::FIELDS);
            match stored_in(self.link.ask(&ask).await?) {
                Ok(Some(record)) if is_wanted(&record) => found.calls.push(record),
                Ok(Some(_)) => {}
                Ok(None) => {
                    let mut take_away = cmd("ZREM");
                    take_away.arg(partition.key(index)).arg(call_id.to_string());
                    self.link.ask::<()>(&take_away).await?;
                }
                Err(error) => found
                    .unreadable
                    .push((call_id.to_string(), error.to_string())),
            }
        }
        Ok((found, last))
    }

    fn is_reached(&self) -> bool {
        self.status
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .durability
            .is_some()
    }

    /// Whether it is not known yet that all data is there.
    fn is_in_doubt(&self) -> bool {
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        let doubts = [
            "unreachable",
            "disconnected",
            "starting",
            "restarted",
            "suspect",
            "foreign",
            LOST_DATA,
        ];
        status
            .reasons
            .iter()
            .any(|reason| doubts.contains(&reason.code))
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
}

/// Calls of an index that are looked at in one go.
const SEARCHED: usize = 256;

/// Later than any time; a double still prints it in full.
const NEVER: i64 = 9_000_000_000_000_000;

/// The same, of what is given up: told from what was never to be worked on.
const GIVEN_UP: i64 = NEVER + 1;

/// Where a call stands in the index of its state, in microseconds: when somebody has to look at it.
fn score(record: &Record) -> i64 {
    let time = match &record.state {
        State::Running => record.attempt.lease_until,
        State::Failed(_) => record.retain_until.unwrap_or(Timestamp::MAX),
        State::Unknown(_) => match record.check {
            Some(Check { at: Some(at), .. }) => at,
            Some(Check { at: None, .. }) => return GIVEN_UP,
            None => return NEVER,
        },
        _ => record.updated_at,
    };
    time.as_microsecond()
}

/// From when on a finished call may be deleted, in microseconds; empty for never.
fn retain_until(record: &Record) -> String {
    record
        .retain_until
        .map(|until| until.as_microsecond().to_string())
        .unwrap_or_default()
}

fn call_id(text: &str) -> Option<CallId> {
    text.parse().ok().map(CallId)
}

/// One of the texts behind a script's word.
fn text(rest: &[Value], at: usize) -> Option<String> {
    rest.get(at)
        .cloned()
        .and_then(|value| String::from_redis_value(value).ok())
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

fn stored_in(fields: Value) -> Result<Option<Record>, Error> {
    let fields = Vec::from_redis_value(fields).map_err(unreadable)?;
    record::read(fields).map_err(unreadable)
}

/// An answer that makes no sense proves nothing.
fn unreadable(why: impl ToString) -> Error {
    Error::Ambiguous(format!(
        "an answer of Redis cannot be read: {}",
        why.to_string()
    ))
}
