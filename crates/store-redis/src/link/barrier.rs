//! Waits until replicas have a write: `WAIT`, on a connection of its own because it blocks.
//!
//! Replication is one ordered stream. So a *barrier*, a small write that is sent after the answer to a write, proves by
//! reaching the replicas that they have that write, too. One barrier serves all callers that wait at the moment. The
//! connection may lead to another server than the write went to, so the loss counters are read before the barrier: they show
//! whether the writes are on this server. Writes that an inspection has found missing are not demanded: otherwise the
//! outcomes that remain could neither be shown nor settled, and no loss be accepted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use redis::{FromRedisValue, Script, Value};
use tokio::sync::{mpsc, oneshot};

use super::Link;
use super::answer::unreadable;
use crate::keys::Partition;
use crate::loss::counters::LossCounters;
use crate::loss::memory::Memory;
use crate::scripts::Run;
use oncegate_rules::time::after;
use oncegate_store::lock::lock;
use oncegate_store::{Error, Result};

/// How long replicas may take to have a write.
const WAIT: Duration = Duration::from_millis(500);
/// How many callers wait for one barrier at most.
const WAITERS: usize = 4_096;
/// How far the clocks of two gateways may be apart.
const CLOCKS: SignedDuration = SignedDuration::from_secs(10);

/// A caller that waits for a barrier.
struct Waiter {
    partition: Partition,
    /// The count of this gateway's writes that the server must have.
    writes: u64,
    raised: oneshot::Sender<Result<()>>,
}

/// The barriers of a store, in lanes: one lane for a single master, one for each partition of a cluster.
pub(crate) struct Barrier {
    lanes: Vec<mpsc::Sender<Waiter>>,
    replicas: Arc<AtomicU32>,
    memory: Memory,
    /// For each lane: replicas have every write before this time.
    covered: Mutex<Vec<Timestamp>>,
}

impl Barrier {
    /// Connects only when a barrier is first needed. `script`: writes a barrier.
    pub(crate) fn new(link: &Link, script: &Script, lanes: usize, memory: Memory) -> Self {
        let link = Arc::new(link.beside(WAIT * 2));
        let replicas = Arc::<AtomicU32>::default();
        let covered = Mutex::new(vec![Timestamp::MIN; lanes]);
        let lanes = (0..lanes)
            .map(|_| {
                let (waiters, waiting) = mpsc::channel(WAITERS);
                let lane = Lane {
                    link: link.clone(),
                    script: script.clone(),
                    replicas: replicas.clone(),
                    gateway: memory.gateway(),
                };
                tokio::spawn(lane.serve(waiting));
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

    /// Sets how many replicas must have a write.
    pub(crate) fn demand(&self, replicas: u32) {
        self.replicas.store(replicas, Ordering::Relaxed);
    }

    /// Waits until replicas have every earlier write to this partition.
    pub(crate) async fn pass(&self, partition: Partition) -> Result<()> {
        if !self.is_demanded() {
            return Ok(());
        }
        let ended = || Error::Ambiguous("the store is being closed".into());
        let (raised, answer) = oneshot::channel();
        let waiter = Waiter {
            partition,
            writes: self.memory.writes_left(partition),
            raised,
        };
        let sent = self.lanes[self.lane(partition)].send(waiter).await;
        sent.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    /// Waits until replicas have all writes up to this time, also those of other gateways.
    ///
    /// Does not wait if an earlier barrier has covered them.
    pub(crate) async fn cover(
        &self,
        partition: Partition,
        written_at: Timestamp,
        now: Timestamp,
    ) -> Result<()> {
        if !self.is_demanded() {
            // Proves nothing for later, when replicas may be demanded.
            return Ok(());
        }
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

    fn is_demanded(&self) -> bool {
        self.replicas.load(Ordering::Relaxed) > 0
    }

    fn lane(&self, partition: Partition) -> usize {
        partition.index() % self.lanes.len()
    }
}

/// Runs the barriers of a lane, one after the other.
struct Lane {
    link: Arc<Link>,
    /// Writes a barrier.
    script: Script,
    replicas: Arc<AtomicU32>,
    gateway: String,
}

impl Lane {
    /// Runs one barrier for all callers that wait, and again for those that came meanwhile.
    async fn serve(self, mut waiting: mpsc::Receiver<Waiter>) {
        let mut waiters = Vec::new();
        while waiting.recv_many(&mut waiters, WAITERS).await > 0 {
            let raised = self.raise(&waiters).await;
            if raised.is_err() {
                self.link.disconnect();
            }
            for waiter in waiters.drain(..) {
                // A waiter may have gone.
                drop(waiter.raised.send(raised.clone()));
            }
        }
    }

    /// Runs one barrier for these waiters.
    async fn raise(&self, waiters: &[Waiter]) -> Result<()> {
        let replicas = self.replicas.load(Ordering::Relaxed);
        if !self.link.is_connected() {
            let connected = self.link.connect(|_| ()).await;
            connected.map_err(|error| {
                Error::Ambiguous(format!("no connection to wait for replicas on: {error}"))
            })?;
        }
        // For each partition the count that the server must have.
        let mut least = BTreeMap::<Partition, u64>::new();
        for waiter in waiters {
            let least = least.entry(waiter.partition).or_default();
            *least = waiter.writes.max(*least);
        }
        let Some((first, _)) = least.first_key_value() else {
            return Ok(());
        };
        let mut commands = redis::pipe();
        for partition in least.keys() {
            commands.cmd("GET").arg(partition.counters());
        }
        // A plain SET is refused when memory is full. Outcomes are written then, too, and must be confirmed.
        let write = Run::new(&self.script).key(first.key("barrier"));
        commands.add_command(write.command()).ignore();
        let wait = (replicas, WAIT.as_millis() as u64);
        commands.cmd("WAIT").arg(wait);
        let answers = self.link.ask_in_turn(&commands, &self.script).await;
        // The write itself was made, so the error is ambiguous.
        let mut answers: Vec<Value> = answers.map_err(|error: Error| {
            let why = format!("written, but whether replicas have it is not known: {error}");
            Error::Ambiguous(why)
        })?;
        let acknowledged = answers.pop().unwrap_or(Value::Nil);
        let acknowledged = u64::from_redis_value(acknowledged).map_err(unreadable)?;
        for (writes, counters) in least.values().zip(answers) {
            let counters = Option::<Vec<u8>>::from_redis_value(counters).map_err(unreadable)?;
            if LossCounters::read(&counters.unwrap_or_default()).of(&self.gateway) < *writes {
                let why = "written, but not to the server that is the master now";
                return Err(Error::Ambiguous(why.into()));
            }
        }
        if acknowledged < u64::from(replicas) {
            let why = format!("written, but not on {replicas} replicas yet");
            return Err(Error::Ambiguous(why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::keys::PARTITIONS;
    use crate::scripts::Scripts;
    use crate::target::Target;
    use oncegate_rules::testing::at;

    /// The barriers of a Redis that does not answer: each wait for one fails.
    fn barriers(lanes: usize) -> (Barrier, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let memory = Memory::open(&folder.path().join("watermarks"), false).expect("a memory");
        let link = Link::new(
            Target::parse("redis://127.0.0.1:1").expect("a target"),
            None,
        );
        let script = Scripts::new(&memory.script_name()).barrier;
        (Barrier::new(&link, &script, lanes, memory), folder)
    }

    #[tokio::test]
    async fn what_a_barrier_has_surely_covered_needs_no_other_and_all_else_does() {
        let (barrier, _folder) = barriers(1);
        let is_shown = async |written: i64| {
            let covered = barrier.cover(Partition::FIRST, at(written), at(200));
            covered.await.is_ok()
        };
        assert!(is_shown(0).await, "no replica is demanded");
        barrier.demand(1);
        assert!(!is_shown(0).await, "no barrier was raised yet");
        lock(&barrier.covered)[0] = at(100);
        // The clock of the gateway that wrote it may be ten seconds ahead.
        for (written, is_covered) in [(89, true), (90, false), (95, false), (101, false)] {
            assert_eq!(is_shown(written).await, is_covered, "{written}");
        }
    }

    #[tokio::test]
    async fn each_partition_of_a_cluster_has_barriers_of_its_own() {
        for (lanes, distinct) in [(1, 1), (usize::from(PARTITIONS), Partition::all().count())] {
            let (barrier, _folder) = barriers(lanes);
            let found: BTreeSet<usize> = Partition::all().map(|at| barrier.lane(at)).collect();
            assert_eq!(found.len(), distinct);
        }
    }

    #[tokio::test]
    async fn the_lanes_end_with_their_store() {
        let (barrier, _folder) = barriers(1);
        let replicas = barrier.replicas.clone();
        drop(barrier);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&replicas), 1, "no lane has it");
    }
}
