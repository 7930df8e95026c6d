//! The shared store: one Redis (or the master of its sentinels, or a cluster), many gateways.
//!
//! Each verb that writes is one script, so it is one atomic step and one round trip (but for a session's
//! token on a cluster). What a Redis is
//! worth is looked at all the time, and so is whether it still has what was written to it; while either
//! is not as it should be, nothing is claimed.

mod barrier; // WAIT, for what replicas must have
mod calls; // claims, changes, and finding calls that need work
mod checks; // what is looked at, and when
mod document; // documents
mod durability; // what a Redis is worth
mod ears; // hearing the ends of other gateways' calls
mod epoch; // lost data: noticing it, accepting it
mod gateways; // gateways that are gone are forgotten
mod keys; // names of keys
mod ledger; // listing and forgetting calls
mod link; // the connection
mod loss; // whether the store has lost data
mod memory; // what a gateway remembers of it
mod pause; // paused tools
mod put_back; // writes that were lost and are remembered
mod record; // records as fields of a hash
mod scripts; // one per verb
mod selftest; // a trial of them
mod session; // conditions, and what follows from them
mod sessions; // sessions as operators see them
mod target; // which Redis
mod write; // claims and changes of calls

use std::collections::HashMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use redis::{FromRedisValue, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use self::barrier::Barrier;
use self::link::Link;
use self::loss::Manifest;
pub use self::memory::WatermarksError;
use self::memory::{Memory, Need};
use self::scripts::Scripts;
pub use self::target::Target;
use super::{
    Durability, Endings, Error, Health, LOST_DATA, Listener, LossRecovery, Readiness, Secrets,
};
use crate::core::pace::Pace;
use crate::core::record::Check;
use crate::core::record::{CallId, Record, State};
use crate::store::lock::read;

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

/// What all clones of a [`Redis`] share.
pub struct Inner {
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
    /// The epoch of a prepared acceptance; until it is accepted it closes the store for all gateways.
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

impl Deref for Redis {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

#[async_trait]
impl LossRecovery for Redis {
    async fn calls_at_risk_after_loss(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        self.at_risk_after_loss(from, limit).await
    }

    async fn prepare_acceptance(&self, reason: &str) -> Result<(), Error> {
        self.prepare(reason).await.map(drop)
    }

    async fn accept_loss(&self, reason: &str) -> Result<(), Error> {
        self.accept(reason).await
    }
}

impl Secrets for Redis {
    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        self.memory.secret()
    }

    fn remember_secret(&self, secret: &Bytes) {
        if let Err(error) = self.memory.remember_secret(secret) {
            tracing::error!(%error, "no copy of the store's secret is kept");
        }
    }
}

#[async_trait]
impl Health for Redis {
    async fn readiness(&self) -> Readiness {
        self.status()
    }

    fn clock_offset(&self) -> SignedDuration {
        SignedDuration::from_micros(self.clock_offset_us.load(Ordering::Relaxed))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        Some(self.endings.listen(call_id))
    }

    fn cancel_acceptance(&self) {
        self.forget_acceptance();
    }

    async fn close(&self) {
        self.save_watermarks(Need::Last).await;
    }
}

impl Inner {
    fn is_reached(&self) -> bool {
        read(&self.status).durability.is_some()
    }

    /// Whether it is not known yet that all data is there.
    fn is_in_doubt(&self) -> bool {
        let status = read(&self.status);
        let doubts = ["unreachable", "foreign", LOST_DATA];
        status.reasons.iter().any(|reason| {
            doubts.contains(&reason.code) || crate::store::SETTLING.contains(&reason.code)
        })
    }

    fn must_be_open(&self) -> Result<(), Error> {
        let status = read(&self.status);
        match status.reasons.first() {
            None => Ok(()),
            Some(reason) => Err(Error::Refused(reason.text.clone())),
        }
    }

    fn is_cluster(&self) -> bool {
        self.link.target.is_cluster()
    }
}

/// Later than any time; a double still prints it in full.
const NEVER: i64 = 9_000_000_000_000_000;

/// The same, of what is given up: told from what was never to be worked on.
const GIVEN_UP: i64 = NEVER + 1;

/// Where a call stands in the index of its state, in microseconds: when it needs work.
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
