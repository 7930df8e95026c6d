//! The Redis of this gateway: connection, scripts, memory, and whether it may be used.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use redis::{Script, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use super::answer::Answer;
use super::barrier::Barrier;
use super::keys::{self, PARTITIONS, Partition};
use super::known::Known;
use super::link::Link;
use super::memory::{Memory, Need};
use super::record;
use super::scripts::{Run, Scripts, command};
use super::status::Status;
use crate::core::position::Position;
use crate::core::record::{CallId, Entry, Record};
use crate::store::lock::write;
use crate::store::{Error, Reason};

/// How long a call waits for a look at a server that was started anew.
const LOOK_TIME: Duration = Duration::from_secs(2);

/// A Redis, and this gateway's knowledge of it.
pub(super) struct Server {
    pub(super) link: Arc<Link>,
    pub(super) barrier: Barrier,
    pub(super) scripts: Scripts,
    pub(super) memory: Arc<Memory>,
    pub(super) status: Arc<Status>,
    /// From this machine's clock to the store's, in microseconds; of several masters the smallest.
    pub(super) clock_offset_us: AtomicI64,
    /// The highest fencing token before the last accepted loss.
    pub(super) accepted_token: AtomicU64,
    /// The servers that the scripts were tried on.
    pub(super) tried_on: RwLock<String>,
    /// One trial of the scripts at a time: all of them use the same keys.
    pub(super) trial: tokio::sync::Mutex<()>,
    /// How many looks there were.
    pub(super) looks: watch::Sender<u64>,
    pub(super) known: Known,
    /// Whether the streams of changes are written.
    pub(super) tells: bool,
}

impl Server {
    pub(super) fn new(link: Link, memory: Memory, tells: bool) -> Self {
        let (link, memory) = (Arc::new(link), Arc::new(memory));
        let lanes = if link.target.is_cluster() {
            PARTITIONS.into()
        } else {
            1
        };
        let scripts = Scripts::new(&memory.name());
        Self {
            barrier: Barrier::new(&link, &scripts.barrier, lanes, memory.clone()),
            scripts,
            link,
            memory,
            status: Arc::new(Status::new()),
            clock_offset_us: 0.into(),
            accepted_token: 0.into(),
            tried_on: RwLock::default(),
            trial: tokio::sync::Mutex::default(),
            looks: watch::Sender::new(0),
            known: Known::default(),
            tells,
        }
    }

    /// How far the store's clock is ahead of this machine's.
    pub(super) fn clock_offset(&self) -> SignedDuration {
        SignedDuration::from_micros(self.clock_offset_us.load(Ordering::Relaxed))
    }

    /// The time by the store's clock.
    pub(super) fn now(&self) -> Timestamp {
        let wall = local_time();
        wall.checked_add(self.clock_offset()).unwrap_or(wall)
    }

    /// A run of a script that writes, with its usual first arguments.
    ///
    /// `epoch` is of the data that it may write to; empty for any.
    pub(super) fn writing<'a>(
        &self,
        script: &'a Script,
        prefix: &str,
        partition: Partition,
        epoch: String,
    ) -> Run<'a> {
        let mut run = Run::new(script);
        run.arg(prefix).arg(self.memory.gateway());
        run.arg(epoch).arg(self.memory.writes(partition));
        run
    }

    /// The same for a script about a call.
    ///
    /// `counts`: in how many lists it stands, and how many calls give up names.
    pub(super) fn about_call<'a>(
        &self,
        script: &'a Script,
        record: &Record,
        epoch: String,
        counts: [usize; 2],
    ) -> Run<'a> {
        let intent = &record.intent;
        let partition = Partition::of(&intent.lookup);
        let mut run = self.writing(script, &partition.prefix(), partition, epoch);
        run.arg(&counts[..]).arg(keys::id(intent.call_id));
        run.arg((&Position::of(record).to_bytes()[..], &intent.tool));
        run
    }

    /// The same for a script about two keys beside a partition's marks. `epoch`: as in `writing`.
    pub(super) fn about_two<'a>(
        &self,
        script: &'a Script,
        partition: Partition,
        names: [String; 2],
        epoch: String,
    ) -> Run<'a> {
        let mut run = self.writing(script, "", partition, epoch);
        run.key(&names[..]).key(partition.marks());
        run
    }

    /// The same, on the data that this gateway knows.
    pub(super) fn writing_to<'a>(
        &self,
        script: &'a Script,
        partition: Partition,
        names: [String; 2],
    ) -> Run<'a> {
        self.about_two(script, partition, names, self.memory.epoch())
    }

    /// The entry for the stream of changes; empty if there is none.
    pub(super) fn told_of(&self, entry: &Entry) -> String {
        if self.tells {
            record::entry(entry)
        } else {
            String::new()
        }
    }

    /// The answer of a script; an error if data is missing.
    fn told(&self, answer: Value) -> Result<Answer, Error> {
        let answer = Answer::read(answer)?;
        if answer.word == "lost" {
            return Err(self.has_lost(&answer.text(0).unwrap_or_default()));
        }
        Ok(answer)
    }

    /// Runs a script, also on a server that was started anew.
    pub(super) async fn run(&self, run: &Run<'_>) -> Result<Answer, Error> {
        self.told(self.link.run(run).await?)
    }

    /// Runs a script after which a request may be sent.
    ///
    /// If the server lacks it, the server was started anew: then its data is looked at first.
    pub(super) async fn run_guarded(&self, run: &Run<'_>) -> Result<Answer, Error> {
        if let Some(answer) = self.link.run_if_loaded(run).await? {
            return self.told(answer);
        }
        let mut looks = self.looks.subscribe();
        write(&self.tried_on).clear();
        self.link.trouble.notify_one();
        // One that has begun before may not have seen it.
        for _ in 0..2 {
            if timeout(LOOK_TIME, looks.changed()).await.is_err() {
                break;
            }
            self.status.must_be_open()?;
            if let Some(answer) = self.link.run_if_loaded(run).await? {
                return self.told(answer);
            }
        }
        Err(Error::Refused(
            "Redis has been started anew and has not been looked at yet".into(),
        ))
    }

    /// Runs a script that deletes.
    ///
    /// If the server lacks it, the server was started anew: the script is loaded when looks since
    /// then have found no data in doubt, also where the memory is full and nothing else may run.
    pub(super) async fn run_deleting(&self, run: &Run<'_>) -> Result<Answer, Error> {
        if let Some(answer) = self.link.run_if_loaded(run).await? {
            return self.told(answer);
        }
        let mut looks = self.looks.subscribe();
        // One that has begun before may not have seen it.
        for _ in 0..2 {
            self.link.trouble.notify_one();
            let is_looked_at = timeout(LOOK_TIME, looks.changed()).await.is_ok();
            if !is_looked_at || self.status.is_in_doubt() {
                let why = "Redis has been started anew: nothing is deleted before its data has been looked at";
                return Err(Error::Refused(why.into()));
            }
        }
        self.run(run).await
    }

    /// Notes how many writes a script has counted.
    pub(super) fn saw_count(&self, partition: Partition, answer: &Answer, at: usize) {
        if let Some(writes) = answer.number(at) {
            self.memory.saw_writes(partition, writes);
        }
    }

    /// Notes a count, and returns when replicas have the write.
    pub(super) async fn counted(
        &self,
        partition: Partition,
        answer: &Answer,
        at: usize,
    ) -> Result<(), Error> {
        self.saw_count(partition, answer, at);
        self.barrier.pass(partition).await
    }

    /// Claims nothing from now on: a script has found other data than this gateway knows.
    pub(super) fn has_lost(&self, what: &str) -> Error {
        let text = format!("the store has lost data: its {what} is not what it was");
        self.status
            .close_for(&Reason::new("suspect", text.as_str()));
        self.link.trouble.notify_one();
        Error::Refused(text)
    }

    /// Writes the file of watermarks. False if it cannot be written.
    pub(super) async fn save_watermarks(&self, need: Need) -> bool {
        let memory = self.memory.clone();
        let saved = tokio::task::spawn_blocking(move || memory.save(need)).await;
        match saved.map_err(std::io::Error::other).flatten() {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "the file of watermarks cannot be written");
                false
            }
        }
    }

    pub(super) fn announcement(&self, begins: bool) -> &'static str {
        match (begins, self.link.target.is_cluster()) {
            (true, _) => "",
            (false, false) => "PUBLISH",
            (false, true) => "SPUBLISH",
        }
    }

    /// Wakes the waiters for a call, also on other gateways. Only a hint.
    pub(super) async fn announce(&self, call_id: CallId) {
        let say = (Partition::of_call(call_id).endings(), keys::id(call_id));
        self.link
            .ask::<()>(&command(self.announcement(false), say))
            .await
            .ok();
    }
}

/// The calls that give up their names, if they have not changed, for a script.
pub(super) fn givers(run: &mut Run<'_>, seen: &[Record]) {
    for record in seen {
        run.arg((keys::id(record.intent.call_id), &record::cas(record)[..]));
        run.arg(&Position::of(record).to_bytes()[..]);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "to be compared with the store's clock"
)]
pub(super) fn local_time() -> Timestamp {
    Timestamp::now()
}
