//! Waits until replicas have what was written: `WAIT`, on a connection of its own because it blocks.
//!
//! Replication is one ordered stream. So a small write of our own, sent after the answer to the write
//! that matters, covers it as soon as the replicas have that one; and one such barrier covers all who
//! wait at the moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::keys::Partition;
use super::link::{Link, deaf};
use crate::store::Error;

/// How long replicas may take.
const WAIT: Duration = Duration::from_millis(500);
/// How many may wait for one barrier.
const WAITERS: usize = 4_096;

type Waiter = oneshot::Sender<Result<(), Error>>;

/// The barriers of a store: on a cluster each partition has its own.
pub(super) struct Barrier {
    lanes: Vec<mpsc::Sender<Waiter>>,
    replicas: Arc<AtomicU32>,
}

impl Barrier {
    /// Connects when it is needed first.
    pub(super) fn new(link: &Link, lanes: usize) -> Self {
        let link = Arc::new(link.beside(WAIT * 2));
        let replicas = Arc::<AtomicU32>::default();
        let lanes = Partition::all()
            .take(lanes)
            .map(|partition| {
                let (waiters, waiting) = mpsc::channel(WAITERS);
                tokio::spawn(serve(link.clone(), partition, waiting, replicas.clone()));
                waiters
            })
            .collect();
        Self { lanes, replicas }
    }

    /// From now on this many replicas must have a write; 0: none.
    pub(super) fn demand(&self, replicas: u32) {
        self.replicas.store(replicas, Ordering::Relaxed);
    }

    /// Returns when replicas have everything that was written to this partition before.
    pub(super) async fn pass(&self, partition: Partition) -> Result<(), Error> {
        if self.replicas.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let ended = || Error::Ambiguous("the store is being closed".into());
        let (waiter, passed) = oneshot::channel();
        let lane = &self.lanes[partition.index() % self.lanes.len()];
        lane.send(waiter).await.map_err(|_| ended())?;
        passed.await.map_err(|_| ended())?
    }
}

/// One barrier after the other, each for all who have come until then.
async fn serve(
    link: Arc<Link>,
    partition: Partition,
    mut waiting: mpsc::Receiver<Waiter>,
    replicas: Arc<AtomicU32>,
) {
    let mut waiters = Vec::new();
    while waiting.recv_many(&mut waiters, WAITERS).await > 0 {
        let passed = raise(&link, partition, replicas.load(Ordering::Relaxed)).await;
        if passed.is_err() {
            link.disconnect();
        }
        for waiter in waiters.drain(..) {
            // Who has gone need not hear it.
            drop(waiter.send(passed.clone()));
        }
    }
}

async fn raise(link: &Link, partition: Partition, replicas: u32) -> Result<(), Error> {
    if !link.is_connected() {
        let connected = link.connect(deaf).await;
        connected
            .map_err(|error| Error::Ambiguous(format!("no connection to wait for replicas on: {error}")))?;
    }
    let mut commands = redis::pipe();
    commands.cmd("SET").arg(partition.key("barrier")).arg("").ignore();
    commands.cmd("WAIT").arg(replicas).arg(WAIT.as_millis() as u64);
    let (have,): (u32,) = link.ask_in_turn(&commands).await.map_err(unsure)?;
    if have < replicas {
        return Err(Error::Ambiguous(format!("written, but not on {replicas} replicas yet")));
    }
    Ok(())
}

/// What was written before stays written, whatever the barrier says.
fn unsure(error: Error) -> Error {
    Error::Ambiguous(format!("written, but whether replicas have it is not known: {error}"))
}
