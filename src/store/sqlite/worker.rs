//! One thread with one connection, which commits in groups: every job that waits goes into one
//! transaction, and each is answered after the commit.
//!
//! Must not know what the jobs do.

use std::sync::Arc;
use std::thread;

use rusqlite::{Connection, ErrorCode, TransactionBehavior, ffi};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::open::Lock;
use super::reserve::Reserve;
use crate::store::Error;

/// Jobs that may wait before callers do: enough to fill several commits.
const QUEUE: usize = 4096;
/// Jobs in one commit: bounds the time that the first one waits for the last.
const BATCH: usize = 512;

/// What a job may do when the disk is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It is refused.
    Plain,
    /// An outcome: it gets the space that was kept back for it.
    Reserve,
}

trait Job: Send {
    fn need(&self) -> Need;
    /// May be run again if the transaction it ran in was rolled back.
    fn run(&mut self, connection: &Connection) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, committed: Result<(), Error>);
}

struct Task<T, F> {
    need: Need,
    work: F,
    done: Option<T>,
    reply: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Job for Task<T, F>
where
    T: Send,
    F: Fn(&Connection) -> rusqlite::Result<T> + Send,
{
    fn need(&self) -> Need {
        self.need
    }

    fn run(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.done = Some((self.work)(connection)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), Error>) {
        let Self { done, reply, .. } = *self;
        let answer = committed.and_then(|()| done.ok_or(Error::Refused("the job was not run".into())));
        // Whoever asked may have gone; what was committed stays.
        drop(reply.send(answer));
    }
}

/// The sending side. The thread ends when the last one is dropped.
#[derive(Clone)]
pub(super) struct Worker {
    jobs: mpsc::Sender<Box<dyn Job>>,
}

impl Worker {
    /// `reserve` is what a job with [`Need::Reserve`] falls back to; `lock` is kept as long as the
    /// connection. `fatal` is cancelled, and the
    /// thread ends, when the file can no longer be trusted: a failed fsync must not be tried again.
    pub(super) fn start(
        name: &str,
        connection: Connection,
        begin: TransactionBehavior,
        reserve: Option<Reserve>,
        lock: Arc<Lock>,
        fatal: CancellationToken,
    ) -> std::io::Result<Self> {
        let (jobs, waiting) = mpsc::channel(QUEUE);
        let thread = Thread { connection, begin, reserve, lock, fatal };
        thread::Builder::new().name(name.to_owned()).spawn(move || thread.work_off(waiting))?;
        Ok(Self { jobs })
    }

    /// Runs `work` in a transaction and answers when it is committed. `work` may be run twice, the
    /// first time for nothing.
    pub(super) async fn run<T, F>(&self, need: Need, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let gone = |_| Error::Ambiguous("the store has stopped".into());
        let task = Box::new(Task { need, work, done: None, reply });
        self.jobs.send(task).await.map_err(|_| Error::Refused("the store has stopped".into()))?;
        answer.await.map_err(gone)?
    }
}

struct Thread {
    connection: Connection,
    begin: TransactionBehavior,
    reserve: Option<Reserve>,
    /// Held until the connection is closed, which may be after the last handle has gone.
    lock: Arc<Lock>,
    fatal: CancellationToken,
}

impl Thread {
    fn work_off(mut self, mut waiting: mpsc::Receiver<Box<dyn Job>>) {
        // Without its thread the store would refuse everything for ever.
        let if_it_panics = self.fatal.clone().drop_guard();
        let mut batch: Vec<Box<dyn Job>> = Vec::with_capacity(BATCH);
        while waiting.blocking_recv_many(&mut batch, BATCH) > 0 {
            if let Some(reserve) = &mut self.reserve {
                reserve.refill();
            }
            if !self.commit_all(&mut batch) {
                return;
            }
        }
        if_it_panics.disarm();
    }

    /// Whether the thread may go on.
    fn commit_all(&mut self, batch: &mut Vec<Box<dyn Job>>) -> bool {
        let together = transaction(&mut self.connection, self.begin, batch);
        if together.as_ref().is_err_and(Failed::is_fatal) || !self.lock.is_of_the_file() {
            return self.give_up(batch);
        }
        let mut jobs = batch.drain(..);
        while let Some(mut job) = jobs.next() {
            let committed = match &together {
                Ok(()) => Ok(()),
                // It did not even begin: somebody holds the file, and trying alone would take as long.
                Err(Failed::Begin(error)) => Err(Error::Refused(error.to_string())),
                // One of them spoilt it for all and nothing was committed: each runs once more, alone.
                Err(Failed::Work(_)) => {
                    match commit_alone(&mut self.connection, self.begin, &mut self.reserve, &mut job) {
                        Err(failed) if failed.is_fatal() => {
                            job.answer(Err(Error::Ambiguous(failed.to_string())));
                            return self.give_up(&mut jobs.collect());
                        }
                        committed => committed.map_err(|failed| Error::Refused(failed.to_string())),
                    }
                }
            };
            job.answer(committed);
        }
        true
    }

    /// A failed fsync leaves it open what is on the disk, and a file that was deleted or replaced under
    /// us keeps nothing. Only a start over with recovery finds out.
    fn give_up(&self, batch: &mut Vec<Box<dyn Job>>) -> bool {
        tracing::error!("the database file cannot be trusted any more; the gateway stops");
        self.fatal.cancel();
        for job in batch.drain(..) {
            job.answer(Err(Error::Ambiguous("the database file failed".into())));
        }
        false
    }
}

fn commit_alone(
    connection: &mut Connection,
    begin: TransactionBehavior,
    reserve: &mut Option<Reserve>,
    job: &mut Box<dyn Job>,
) -> Result<(), Failed> {
    let first = transaction(connection, begin, std::slice::from_mut(job));
    let outcome_without_room = job.need() == Need::Reserve && first.as_ref().is_err_and(Failed::is_full);
    let has_room_now = outcome_without_room && reserve.as_mut().is_some_and(Reserve::release);
    if has_room_now { transaction(connection, begin, std::slice::from_mut(job)) } else { first }
}

/// A transaction that was rolled back.
#[derive(Debug, thiserror::Error)]
enum Failed {
    /// It could not begin.
    #[error("{0}")]
    Begin(rusqlite::Error),
    /// A job, or the commit.
    #[error("{0}")]
    Work(#[from] rusqlite::Error),
}

impl Failed {
    fn error(&self) -> &rusqlite::Error {
        match self {
            Self::Begin(error) | Self::Work(error) => error,
        }
    }

    fn is_full(&self) -> bool {
        match self.error() {
            // The index of the write-ahead log is a file too, and could not grow.
            rusqlite::Error::SqliteFailure(code, _) => {
                code.code == ErrorCode::DiskFull || code.extended_code == ffi::SQLITE_IOERR_SHMSIZE
            }
            _ => false,
        }
    }

    fn is_fatal(&self) -> bool {
        let suspicious = matches!(
            self.error().sqlite_error_code(),
            Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        );
        suspicious && !self.is_full()
    }
}

/// All of them, or none.
fn transaction(
    connection: &mut Connection,
    begin: TransactionBehavior,
    jobs: &mut [Box<dyn Job>],
) -> Result<(), Failed> {
    // Rolls back when dropped.
    let transaction = connection.transaction_with_behavior(begin).map_err(Failed::Begin)?;
    for job in jobs {
        job.run(&transaction)?;
    }
    Ok(transaction.commit()?)
}

/// The error that a full disk gives.
pub(super) fn full() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), Some("the disk is full".into()))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::core::record::InstanceId;
    use crate::store::sqlite::Sqlite;

    #[tokio::test]
    async fn a_job_whose_commit_fails_is_not_acknowledged() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("oncegate.db");
        let store = Sqlite::open(&path, InstanceId(Uuid::from_u128(1)), &CancellationToken::new());
        let store = store.expect("a store");
        // What is deferred is found wrong at the commit, and not before.
        let fails_late = |connection: &Connection| {
            connection.execute_batch(
                "CREATE TABLE one (id INTEGER PRIMARY KEY);
                 CREATE TABLE other (one INTEGER REFERENCES one DEFERRABLE INITIALLY DEFERRED);
                 INSERT INTO other VALUES (1);",
            )
        };
        let answer = store.writer.run(Need::Plain, fails_late).await;
        assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
    }
}
