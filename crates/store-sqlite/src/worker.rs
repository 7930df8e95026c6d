//! Threads with a connection each: one writes, the others read.
//!
//! The thread that writes commits in groups: all jobs that wait go into one transaction, and each is answered after the
//! commit.
//!
//! Must not know what the jobs do.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, ErrorCode, TransactionBehavior, ffi};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::check::Check;
use super::files::Files;
use crate::files::log::Log;
use crate::files::reserve::Reserve;
use crate::files::watermarks::{Counters, Watermarks};
use oncegate_store::lock::lock;
use oncegate_store::{Error, Result};

/// Most jobs in the queue: enough to fill several commits.
const QUEUE: usize = 4096;
/// Most jobs in one commit, so that the first does not wait long for the last.
pub(super) const BATCH: usize = 512;

/// Whether a job may use the reserved space when the disk is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// No: it is refused.
    Plain,
    /// Yes: it writes an outcome.
    Reserve,
}

pub(super) trait Job: Send {
    fn need(&self) -> Need;
    /// Runs the job. Runs again if its transaction was rolled back.
    fn run(&mut self, connection: &Connection) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, committed: Result<()>);
}

struct Task<T, F> {
    need: Need,
    work: F,
    done: Option<T>,
    reply: oneshot::Sender<Result<T>>,
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

    fn answer(self: Box<Self>, committed: Result<()>) {
        let Self { done, reply, .. } = *self;
        let answer =
            committed.and_then(|()| done.ok_or(Error::Refused("the job was not run".into())));
        // The caller may be gone. The job stays committed.
        drop(reply.send(answer));
    }
}

pub(super) enum Message {
    Job(Box<dyn Job>),
    /// The last message. Its sender is dropped when the connection is closed.
    Stop(oneshot::Sender<()>),
}

/// The sending side. The threads end when the last one is dropped, or after [`stop`](Self::stop).
#[derive(Clone)]
pub(super) struct Worker {
    messages: mpsc::Sender<Message>,
}

/// The receiving side, which several threads may share. `None` after the last message.
pub(super) struct Messages(Mutex<Option<mpsc::Receiver<Message>>>);

impl Messages {
    /// Receives the next messages, at most so many. False: no more will come.
    ///
    /// Nothing behind the last message is done: its callers are told that the store has stopped.
    fn receive(&self, messages: &mut Vec<Message>, most: usize) -> bool {
        // The thread that waits for messages holds the lock. The other threads wait for the lock.
        let mut queue = lock(&self.0);
        let Some(receiver) = &mut *queue else {
            return false;
        };
        receiver.blocking_recv_many(messages, most);
        let is_stop = |message: &Message| matches!(message, Message::Stop(_));
        if let Some(last) = messages.iter().position(is_stop) {
            messages.truncate(last + 1);
            *queue = None;
        }
        !messages.is_empty()
    }
}

/// The members that every thread has.
pub(super) struct Thread {
    pub(super) name: &'static str,
    pub(super) connection: Connection,
    /// Most jobs in one transaction.
    pub(super) batch: usize,
    /// The members of the thread that writes.
    pub(super) writing: Option<Writing>,
    /// Learns of damage that is met here.
    pub(super) check: Arc<Check>,
    /// Keeps the lock of the files until the connection is closed.
    pub(super) files: Arc<Files>,
    /// Cancelled when the file can no longer be trusted. Then the thread ends.
    ///
    /// A failed fsync must not be tried again.
    pub(super) fatal: CancellationToken,
}

/// The members of the thread that writes.
pub(super) struct Writing {
    /// The reserve, for a job with [`Need::Reserve`].
    pub(super) reserve: Reserve,
    pub(super) watermarks: Arc<Watermarks>,
    pub(super) log: Log,
    /// Threads that read. They close their connections first: the last one to close leaves a single file.
    pub(super) readers: Vec<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn new() -> (Self, Arc<Messages>) {
        let (messages, receiver) = mpsc::channel(QUEUE);
        let waiting = Messages(Mutex::new(Some(receiver)));
        (Self { messages }, Arc::new(waiting))
    }

    /// Runs `work` in a transaction and answers when it is committed.
    ///
    /// `work` may run twice. Then the transaction of the first time was rolled back.
    pub(super) async fn run<T, F>(&self, need: Need, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Message::Job(Box::new(Task {
            need,
            work,
            done: None,
            reply,
        }));
        self.messages
            .send(job)
            .await
            .map_err(|_| Error::Refused("the store has stopped".into()))?;
        let answer = answer.await;
        answer.map_err(|_| Error::Ambiguous("the store has stopped".into()))?
    }

    /// Runs `work`, which only reads.
    pub(super) async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.run(Need::Plain, work).await
    }

    /// Stops after the jobs in the queue.
    ///
    /// Answers when the first of the threads has closed its connection.
    pub(super) async fn stop(&self) {
        let (closed, is_closed) = oneshot::channel();
        if self.messages.send(Message::Stop(closed)).await.is_ok() {
            // It ends when the sender is dropped: nothing is ever sent.
            drop(is_closed.await);
        }
    }
}

impl Thread {
    pub(super) fn start(self, waiting: Arc<Messages>) -> std::io::Result<JoinHandle<()>> {
        thread::Builder::new()
            .name(self.name.to_owned())
            .spawn(move || self.work_off(&waiting))
    }

    fn work_off(mut self, waiting: &Messages) {
        // After a panic the store would refuse everything for ever, so the gateway must stop.
        let if_it_panics = self.fatal.clone().drop_guard();
        let mut messages = Vec::with_capacity(self.batch);
        let mut batch = Vec::with_capacity(self.batch);
        let mut stop = None;
        while stop.is_none() && waiting.receive(&mut messages, self.batch) {
            for message in messages.drain(..) {
                match message {
                    Message::Job(job) => batch.push(job),
                    Message::Stop(closed) => stop = Some(closed),
                }
            }
            if let Some(writing) = &mut self.writing {
                writing.reserve.refill();
            }
            if !self.commit_all(&mut batch) {
                return;
            }
        }
        if_it_panics.disarm();
        self.end();
        drop(stop);
    }

    /// Closes the connection.
    ///
    /// The thread that writes closes last, and leaves a single file with everything in it.
    fn end(self) {
        let Self {
            connection,
            writing,
            check,
            files,
            ..
        } = self;
        let Some(writing) = writing else {
            return drop((connection, files));
        };
        check.stop();
        for reader in writing.readers {
            // A panic of it is logged already.
            drop(reader.join());
        }
        // The next start reads what is left in the log.
        let moved: rusqlite::Result<i64> =
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
        if !matches!(moved, Ok(0)) {
            tracing::warn!(
                ?moved,
                "the write-ahead log could not be moved into the database"
            );
        }
        writing.watermarks.end(&connection);
        drop(connection);
        drop(files);
    }

    /// Commits a batch. Returns whether the thread may go on.
    fn commit_all(&mut self, batch: &mut Vec<Box<dyn Job>>) -> bool {
        if batch.is_empty() {
            return true;
        }
        let together = self.transaction(batch);
        if let Some(why) = together.as_ref().err().and_then(Failed::damage) {
            self.check.close(why);
        }
        if together.as_ref().is_err_and(Failed::is_fatal) || !self.files.are_those_opened() {
            return self.give_up(batch);
        }
        // To run it again would give the same error.
        let is_one_read = batch.len() == 1 && self.writing.is_none();
        let mut jobs = batch.drain(..);
        while let Some(mut job) = jobs.next() {
            let committed = match &together {
                Ok(()) => Ok(()),
                // If it did not begin, another process holds the file: each further try would take as long.
                Err(failed) if !failed.has_begun || is_one_read => {
                    Err(Error::Refused(failed.to_string()))
                }
                // One job failed, so none was committed: each runs once more, alone.
                Err(_) => match self.commit_alone(&mut job) {
                    Err(failed) if failed.is_fatal() => {
                        job.answer(Err(Error::Ambiguous(failed.to_string())));
                        return self.give_up(&mut jobs.collect());
                    }
                    committed => committed.map_err(|failed| Error::Refused(failed.to_string())),
                },
            };
            job.answer(committed);
        }
        drop(jobs);
        self.move_log()
    }

    /// Moves a long log into the file. Returns whether the thread may go on.
    fn move_log(&mut self) -> bool {
        let Some(Writing { log, .. }) = &mut self.writing else {
            return true;
        };
        match log.move_if_long(&self.connection).map_err(Failed::from) {
            Err(failed) if failed.is_fatal() => self.give_up(&mut Vec::new()),
            // The rest stays in the log, and the next commit tries again.
            Ok(()) | Err(_) => true,
        }
    }

    /// Gives up a file in an unknown state.
    ///
    /// After a failed fsync nothing shows what is on the disk, and a deleted or replaced file keeps
    /// nothing. Only a new start with recovery finds out.
    fn give_up(&self, batch: &mut Vec<Box<dyn Job>>) -> bool {
        tracing::error!("the database file cannot be trusted any more; the gateway stops");
        self.fatal.cancel();
        for job in batch.drain(..) {
            job.answer(Err(Error::Ambiguous("the database file failed".into())));
        }
        false
    }

    fn commit_alone(&mut self, job: &mut Box<dyn Job>) -> Result<(), Failed> {
        let first = self.transaction(std::slice::from_mut(job));
        let outcome_without_space =
            job.need() == Need::Reserve && first.as_ref().is_err_and(Failed::is_full);
        let reserve = self.writing.as_mut().map(|writing| &mut writing.reserve);
        let has_space_now = outcome_without_space && reserve.is_some_and(Reserve::release);
        if has_space_now {
            self.transaction(std::slice::from_mut(job))
        } else {
            first
        }
    }

    /// Runs all jobs in one transaction, or none.
    fn transaction(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), Failed> {
        // A transaction that begins as a reader may fail to become a writer.
        let begin = match self.writing {
            Some(_) => TransactionBehavior::Immediate,
            None => TransactionBehavior::Deferred,
        };
        // Rolls back when dropped.
        let transaction = self
            .connection
            .transaction_with_behavior(begin)
            .map_err(|error| Failed {
                error,
                has_begun: false,
            })?;
        let before = transaction.total_changes();
        for job in jobs {
            job.run(&transaction)?;
        }
        // While data is missing no transaction is counted: the count must go on to show the loss.
        let counting = self.writing.as_ref().filter(|writing| {
            transaction.total_changes() != before && !writing.watermarks.is_lost()
        });
        let Some(Writing {
            watermarks, log, ..
        }) = counting
        else {
            return Ok(transaction.commit()?);
        };
        let counters = Counters::count(&transaction, log.moved)?;
        transaction.commit()?;
        // Before any job is answered.
        watermarks.write(&counters, false);
        Ok(())
    }
}

/// Why a transaction was rolled back: a job failed, or the commit.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
struct Failed {
    error: rusqlite::Error,
    /// False: it did not even begin.
    has_begun: bool,
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self {
            error,
            has_begun: true,
        }
    }
}

impl Failed {
    fn is_full(&self) -> bool {
        match &self.error {
            // The index of the write-ahead log is a file, too, and may fail to grow.
            rusqlite::Error::SqliteFailure(code, _) => {
                code.code == ErrorCode::DiskFull || code.extended_code == ffi::SQLITE_IOERR_SHMSIZE
            }
            _ => false,
        }
    }

    /// What is damaged.
    fn damage(&self) -> Option<String> {
        let code = self.error.sqlite_error_code();
        (code == Some(ErrorCode::DatabaseCorrupt)).then(|| self.error.to_string())
    }

    fn is_fatal(&self) -> bool {
        let suspicious = matches!(
            self.error.sqlite_error_code(),
            Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        );
        suspicious && !self.is_full()
    }
}

#[cfg(test)]
mod tests;
