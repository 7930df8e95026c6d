//! The Redis of this gateway: connection, scripts, the gateway's memory of it, and whether it may be used.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use redis::{Script, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use super::keys::{self, ConditionKeys, PARTITIONS, Partition};
use super::link::Link;
use super::scripts::{Run, Scripts};
use super::target::Settings;
use crate::calls::record;
use crate::link::answer::Answer;
use crate::link::barrier::Barrier;
use crate::loss::memory::Memory;
use oncegate_rules::ledger::Index;
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Entry, Record};
use oncegate_rules::time::signed;
use oncegate_store::known::Known;
use oncegate_store::lock::write;
use oncegate_store::repeats::Repeats;
use oncegate_store::shared::clock::{StoreClock, latest_begin};
use oncegate_store::status::Status;
use oncegate_store::{Error, Reason, Result, codec};

/// How long a call waits for the inspection of a restarted server.
const LOOK_TIME: Duration = Duration::from_secs(2);

/// How often the same log line of an inspection is written.
const SAME_EVERY: Duration = Duration::from_secs(60);

/// A Redis, and this gateway's knowledge of it.
pub(super) struct Server {
    pub(super) link: Arc<Link>,
    pub(super) barrier: Barrier,
    pub(super) scripts: Scripts,
    pub(super) memory: Memory,
    pub(super) status: Arc<Status>,
    /// Of several masters the one that is furthest behind.
    pub(super) clock: StoreClock,
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
    /// How much longer a lease is than its deadline.
    lease_margin: Duration,
    /// The newest format that this gateway knows.
    pub(super) newest_format: u32,
    /// How long nothing is written in the form to which the store was moved.
    pub(super) format_settles: SignedDuration,
    /// Whether this gateway has said that it stops.
    pub(super) has_left: AtomicBool,
    /// Log lines that each inspection would write again.
    pub(super) repeats: Repeats,
}

impl Server {
    pub(super) fn new(link: Link, memory: Memory, settings: &Settings) -> Self {
        let link = Arc::new(link);
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
            status: Arc::new(Status::new("Redis")),
            clock: StoreClock::default(),
            accepted_token: 0.into(),
            tried_on: RwLock::default(),
            trial: tokio::sync::Mutex::default(),
            looks: watch::Sender::new(()),
            known: Known::default(),
            has_stream: settings.stream,
            lease_margin: settings.timings.lease_margin,
            newest_format: settings.newest_format,
            format_settles: signed(settings.timings.redis_format_settles),
            has_left: false.into(),
            repeats: Repeats::every(SAME_EVERY),
        }
    }

    /// The time by the store's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether what belongs to this format may be written.
    pub(super) fn may_write(&self, format: u32) -> bool {
        let stored = self.memory.format();
        stored.may_write(format, self.now(), self.format_settles)
    }

    /// The latest time of the store at which a change may begin a run, in microseconds; empty if it begins none.
    pub(super) fn latest_begin(&self, record: &Record) -> String {
        record::microseconds(latest_begin(record, self.lease_margin))
    }

    /// Notes the store's clock, which a script has answered: this machine's was set back since it was read.
    pub(super) fn was_late(&self, answer: &Answer) {
        let Some(us) = answer.number(0).and_then(|us| i64::try_from(us).ok()) else {
            return;
        };
        self.clock.was_late(us, self.status.kind());
        self.link.trouble.notify_one();
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

    /// A run of a script that writes two keys beside a partition's loss counters, to the data that this gateway knows.
    pub(super) fn writing_two<'a>(
        &self,
        script: &'a Script,
        partition: Partition,
        keys: [String; 2],
    ) -> Run<'a> {
        self.writing(script, partition, self.memory.epoch())
            .key(&keys)
            .key(partition.counters())
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
