//! Waits until replicas have a write: `WAIT`, on a connection of its own because it blocks.
//!
//! Replication is one ordered stream. So a *barrier*, a small write that is sent after the answer to a write, proves by
//! reaching the replicas that they have that write, too. One barrier serves all callers that wait at the moment. The
//! connection may lead to another server than the write went to. So before the barrier the marks are read: they show
//! whether the writes are on this server. Writes that a look has found missing are not asked for: otherwise the outcomes
//! that remain could neither be shown nor settled, and no loss be accepted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use redis::{FromRedisValue, Script, Value};
use tokio::sync::{mpsc, oneshot};

use super::answer::unreadable;
use super::keys::Partition;
use super::link::{Link, deaf};
use super::marks::Marks;
use super::memory::Memory;
use super::scripts::Run;
use crate::core::time::after;
use crate::store::Error;
use crate::store::lock::lock;

/// How long replicas may take.
const WAIT: Duration = Duration::from_millis(500);
/// Most waiters of one barrier.
const WAITERS: usize = 4_096;
/// How far the clocks of two gateways may differ.
const CLOCKS: SignedDuration = SignedDuration::from_secs(10);

/// A caller that waits for a barrier.
struct Waiter {
    partition: Partition,
    /// The count of this gateway's writes that the server must have.
    writes: u64,
    passed: oneshot::Sender<Result<(), Error>>,
}

/// The barriers of a store, in lanes: one lane for a single master, one for each partition of a cluster.
pub(super) struct Barrier {
    lanes: Vec<mpsc::Sender<Waiter>>,
    replicas: Arc<AtomicU32>,
    memory: Arc<Memory>,
    /// For each lane: replicas have every write before this time.
    covered: Mutex<Vec<Timestamp>>,
}

impl Barrier {
    /// Connects when it is first needed. `barrier`: the script that writes one.
    pub(super) fn new(link: &Link, barrier: &Script, lanes: usize, memory: Arc<Memory>) -> Self {
        let link = Arc::new(link.beside(WAIT * 2));
        let replicas = Arc::<AtomicU32>::default();
        let covered = Mutex::new(vec![Timestamp::MIN; lanes]);
        let lanes = (0..lanes)
            .map(|_| {
                let (waiters, waiting) = mpsc::channel(WAITERS);
                tokio::spawn(serve(
                    link.clone(),
                    barrier.clone(),
                    waiting,
                    replicas.clone(),
                    memory.gateway(),
                ));
                waiters
            })
            .collect();
        Self {
            lanes,
            replicas,
            memory,
            covered,
        }
    }

    /// Sets how many replicas must have a write; 0: none.
    pub(super) fn demand(&self, replicas: u32) {
        self.replicas.store(replicas, Ordering::Relaxed);
    }

    /// Returns when replicas have every earlier write to this partition.
    pub(super) async fn pass(&self, partition: Partition) -> Result<(), Error> {
        if self.replicas.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let ended = || Error::Ambiguous("the store is being closed".into());
        let (passed, answer) = oneshot::channel();
        let waiter = Waiter {
            partition,
            writes: self.memory.writes_left(partition),
            passed,
        };
        self.lanes[self.lane(partition)]
            .send(waiter)
            .await
            .map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    /// Waits until replicas have all writes up to this time, those of other gateways, too.
    ///
    /// Does not wait if a later barrier has covered them.
    pub(super) async fn cover(
        &self,
        partition: Partition,
        written_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), Error> {
        let lane = self.lane(partition);
        let latest = after(written_at, CLOCKS);
        if lock(&self.covered)[lane] > latest {
            return Ok(());
        }
        self.pass(partition).await?;
        let mut covered = lock(&self.covered);
        covered[lane] = covered[lane].max(now);
        Ok(())
    }

    fn lane(&self, partition: Partition) -> usize {
        partition.index() % self.lanes.len()
    }
}

/// Runs the barriers of a lane one after the other, each for all waiters so far.
async fn serve(
    link: Arc<Link>,
    barrier: Script,
    mut waiting: mpsc::Receiver<Waiter>,
    replicas: Arc<AtomicU32>,
    gateway: String,
) {
    let mut waiters = Vec::new();
    while waiting.recv_many(&mut waiters, WAITERS).await > 0 {
        let replicas = replicas.load(Ordering::Relaxed);
        let passed = raise(&link, &barrier, &waiters, replicas, &gateway).await;
        if passed.is_err() {
            link.disconnect();
        }
        for waiter in waiters.drain(..) {
            // A waiter may have gone.
            drop(waiter.passed.send(passed.clone()));
        }
    }
}

/// Runs one barrier for these waiters.
async fn raise(
    link: &Link,
    barrier: &Script,
    waiters: &[Waiter],
    replicas: u32,
    gateway: &str,
) -> Result<(), Error> {
    if !link.is_connected() {
        let connected = link.connect(deaf).await;
        connected.map_err(|error| {
            Error::Ambiguous(format!("no connection to wait for replicas on: {error}"))
        })?;
    }
    let mut least = BTreeMap::<usize, (Partition, u64)>::new();
    for waiter in waiters {
        let (_, writes) = least
            .entry(waiter.partition.index())
            .or_insert((waiter.partition, 0));
        *writes = waiter.writes.max(*writes);
    }
    let Some((first, _)) = least.values().next() else {
        return Ok(());
    };
    let mut commands = redis::pipe();
    for (partition, _) in least.values() {
        commands.cmd("GET").arg(partition.marks());
    }
    // A plain SET is refused when memory is full. Outcomes are written then, too, and must be confirmed.
    let mut write = Run::new(barrier);
    commands.add_command(write.key(first.key("barrier")).command());
    commands.ignore();
    commands
        .cmd("WAIT")
        .arg(replicas)
        .arg(WAIT.as_millis() as u64);
    let answers = link.ask_in_turn(&commands, barrier).await;
    let mut answers: Vec<Value> = answers.map_err(unsure)?;
    let acknowledged = answers.pop().unwrap_or(Value::Nil);
    let acknowledged = u64::from_redis_value(acknowledged).map_err(unreadable)?;
    let marks = answers.into_iter().map(Option::<Vec<u8>>::from_redis_value);
    let marks: Vec<Option<Vec<u8>>> = marks.collect::<Result<_, _>>().map_err(unreadable)?;
    let is_there = least.values().zip(&marks).all(|((_, writes), marks)| {
        Marks::read(marks.as_deref().unwrap_or_default()).of(gateway) >= *writes
    });
    if !is_there {
        return Err(Error::Ambiguous(
            "written, but not to the server that is the master now".into(),
        ));
    }
    if acknowledged < u64::from(replicas) {
        return Err(Error::Ambiguous(format!(
            "written, but not on {replicas} replicas yet"
        )));
    }
    Ok(())
}

/// The error of a barrier: the write itself was made, so it is ambiguous.
fn unsure(error: Error) -> Error {
    Error::Ambiguous(format!(
        "written, but whether replicas have it is not known: {error}"
    ))
}
