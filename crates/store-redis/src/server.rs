//! The Redis of this gateway: connection, scripts, the gateway's memory of it, and whether it may be used.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use redis::{Script, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use super::answer::Answer;
use super::barrier::Barrier;
use super::keys::{self, ConditionKeys, PARTITIONS, Partition};
use super::known::Known;
use super::link::Link;
use super::memory::{Memory, Need};
use super::record;
use super::scripts::{Run, Scripts};
use super::status::Status;
use oncegate_rules::ledger::Index;
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Entry, Record};
use oncegate_store::lock::write;
use oncegate_store::{Error, Reason, Result, codec};

/// How long a call waits for the inspection of a restarted server.
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
    /// Held during a trial of the scripts: all trials use the same keys.
    pub(super) trial: tokio::sync::Mutex<()>,
    /// Told when an inspection has ended.
    pub(super) looks: watch::Sender<()>,
    pub(super) known: Known,
    /// Whether the streams of changes are written.
    pub(super) has_stream: bool,
}

impl Server {
    pub(super) fn new(link: Link, memory: Memory, has_stream: bool) -> Self {
        let (link, memory) = (Arc::new(link), Arc::new(memory));
        let lanes = if link.target.is_cluster() {
            PARTITIONS.into()
        } else {
            1
        };
        let scripts = Scripts::new(&memory.script_name());
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
            looks: watch::Sender::new(()),
            known: Known::default(),
            has_stream,
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

    /// A run of a script that writes, with its first arguments: see `marks.lua`.
    ///
    /// `epoch` is of the data that the script may write to; empty for any data.
    pub(super) fn writing<'a>(
        &self,
        script: &'a Script,
        partition: Partition,
        epoch: String,
    ) -> Run<'a> {
        Run::new(script)
            .arg((partition.prefix(), self.memory.gateway(), epoch))
            .arg(self.memory.writes(partition))
    }

    /// A run of a script that writes two keys beside a partition's marks, to the data that this gateway knows.
    pub(super) fn writing_two<'a>(
        &self,
        script: &'a Script,
        partition: Partition,
        keys: [String; 2],
    ) -> Run<'a> {
        self.writing(script, partition, self.memory.epoch())
            .key(&keys)
            .key(partition.marks())
    }

    /// A run of a script about a call, with its keys and its first arguments: see `common.lua`.
    ///
    /// `lists`: those that get the call. `givers`: the calls whose names it takes, if they have not changed.
    pub(super) fn about_call<'a>(
        &self,
        script: &'a Script,
        epoch: String,
        (record, entry): (&Record, &Entry),
        conditions: ConditionKeys,
        lists: &[Index<'_>],
        givers: &[Record],
    ) -> Run<'a> {
        let intent = &record.intent;
        let partition = Partition::of(&intent.lookup);
        let mut packed_givers = Vec::new();
        for giver in givers {
            packed_givers.extend(keys::id(giver.intent.call_id).into_bytes());
            packed_givers.extend(record::cas(giver));
            packed_givers.extend(Position::of(giver).to_bytes());
        }
        self.writing(script, partition, epoch)
            .key(partition.of_script(record, conditions, lists, givers))
            .arg((lists.len(), packed_givers, keys::id(intent.call_id)))
            .arg((&Position::of(record).to_bytes(), &intent.tool))
            .arg((&record::cas(record), codec::progress(record)))
            .arg((record::result(record), record.state.as_str()))
            .arg((record::letter(record), record::score(record)))
            .arg((
                record::microseconds(record.retain_until),
                codec::entry(entry, intent),
            ))
            .arg(if self.has_stream {
                record::entry(entry)
            } else {
                String::new()
            })
    }

    /// Reads the answer of a script; an error if data is missing.
    fn read(&self, answer: Value) -> Result<Answer> {
        let answer = Answer::read(answer)?;
        if answer.word == "lost" {
            return Err(self.has_lost(&answer.text(0)));
        }
        Ok(answer)
    }

    /// Runs a script, also on a restarted server.
    pub(super) async fn run(&self, run: Run<'_>) -> Result<Answer> {
        self.read(self.link.run(&run).await?)
    }

    async fn run_if_loaded(&self, run: &Run<'_>) -> Result<Option<Answer>> {
        let answer = self.link.run_if_loaded(run).await?;
        answer.map(|answer| self.read(answer)).transpose()
    }

    /// Runs a script after which a request may be sent.
    ///
    /// A server that lacks the script was restarted: its data is inspected first.
    pub(super) async fn run_guarded(&self, run: Run<'_>) -> Result<Answer> {
        if let Some(answer) = self.run_if_loaded(&run).await? {
            return Ok(answer);
        }
        let mut looks = self.looks.subscribe();
        write(&self.tried_on).clear();
        self.link.trouble.notify_one();
        // The first inspection may have begun before the restart.
        for _ in 0..2 {
            if timeout(LOOK_TIME, looks.changed()).await.is_err() {
                break;
            }
            self.status.must_be_open()?;
            if let Some(answer) = self.run_if_loaded(&run).await? {
                return Ok(answer);
            }
        }
        let why = "Redis was restarted, and its data has not been inspected yet";
        Err(Error::Refused(why.into()))
    }

    /// Runs a script that deletes.
    ///
    /// A server that lacks the script was restarted: the script is loaded once inspections since then have found no
    /// data in doubt, also where memory is full and nothing else may run.
    pub(super) async fn run_deleting(&self, run: Run<'_>) -> Result<Answer> {
        if let Some(answer) = self.run_if_loaded(&run).await? {
            return Ok(answer);
        }
        let mut looks = self.looks.subscribe();
        // The first inspection may have begun before the restart.
        for _ in 0..2 {
            self.link.trouble.notify_one();
            let is_inspected = timeout(LOOK_TIME, looks.changed()).await.is_ok();
            if !is_inspected || self.status.is_in_doubt() {
                let why =
                    "Redis was restarted: nothing is deleted before its data has been inspected";
                return Err(Error::Refused(why.into()));
            }
        }
        self.run(run).await
    }

    /// Notes how many writes a script has counted: the value at `at` of its answer.
    pub(super) fn saw_count(&self, partition: Partition, answer: &Answer, at: usize) {
        if let Some(writes) = answer.number(at) {
            self.memory.saw_writes(partition, writes);
        }
    }

    /// Notes a count, and waits until replicas have the write.
    pub(super) async fn counted(
        &self,
        partition: Partition,
        answer: &Answer,
        at: usize,
    ) -> Result<()> {
        self.saw_count(partition, answer, at);
        self.barrier.pass(partition).await
    }

    /// Closes the store for claims: a script has found other data than this gateway knows.
    pub(super) fn has_lost(&self, what: &str) -> Error {
        let text = format!("the store has lost data: its {what} is not what it was");
        self.status.close_for(&Reason::new("suspect", &*text));
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

    /// The command that announces the end of a call.
    pub(super) fn publish_command(&self) -> &'static str {
        if self.link.target.is_cluster() {
            "SPUBLISH"
        } else {
            "PUBLISH"
        }
    }

    /// Wakes the waiters for a call, also on other gateways. Only a hint.
    pub(super) async fn announce(&self, call_id: CallId) {
        let message = (Partition::of_call(call_id).endings(), keys::id(call_id));
        let published = self.link.ask::<()>(self.publish_command(), message);
        published.await.ok();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "to be compared with the store's clock"
)]
pub(super) fn local_time() -> Timestamp {
    Timestamp::now()
}
