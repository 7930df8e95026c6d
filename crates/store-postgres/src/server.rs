//! The PostgreSQL of this gateway: connections, the gateway's memory of it, and whether it may be used.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;

use super::link::{Dialer, Slot, params};
use super::target::{Schema, Settings, Target};
use crate::link::lanes::{Lanes, Verb};
use crate::link::rows::{get, signed};
use crate::loss::memory::Memory;
use oncegate_rules::record::Record;
use oncegate_store::known::Known;
use oncegate_store::lock::read;
use oncegate_store::shared::OpenError;
use oncegate_store::shared::clock::{StoreClock, latest_begin};
use oncegate_store::status::Status;
use oncegate_store::{Error, Reason, Result};

const BEAT: &str = "beat_1";
pub(crate) const SUSPECT: &str =
    "PostgreSQL was restarted, exchanged or set otherwise since it was inspected";

/// A PostgreSQL, and this gateway's knowledge of it.
pub(crate) struct Server {
    pub(crate) target: Target,
    pub(crate) schema: Schema,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) lanes: Lanes,
    /// Reads for calls that callers wait for.
    pub(crate) calls: Slot,
    /// Searches, and questions of operators.
    pub(crate) ledger: Slot,
    /// Inspections; hears of the ends of other gateways' calls.
    pub(crate) inspector: Slot,
    pub(crate) memory: Memory,
    pub(crate) status: Arc<Status>,
    /// The server and the data that were inspected, as `identity` of `verbs.sql` says it; empty: none.
    pub(crate) identity: RwLock<String>,
    pub(crate) clock: StoreClock,
    /// The highest fencing token before the last accepted loss.
    pub(crate) accepted_token: AtomicU64,
    /// The tools that are listed.
    pub(crate) tools: Known,
    /// How much longer a lease is than its deadline.
    lease_margin: Duration,
    beating: tokio::sync::Mutex<()>,
}

impl Server {
    pub(crate) fn new(settings: &Settings, memory: Memory) -> Result<Self, OpenError> {
        let status = Arc::new(Status::new("PostgreSQL"));
        let dialer = Arc::new(Dialer::new(settings, status.clone())?);
        Ok(Self {
            target: settings.target.clone(),
            schema: settings.schema.clone(),
            lanes: Lanes::new(&dialer),
            calls: Slot::new(&dialer, false),
            ledger: Slot::new(&dialer, false),
            inspector: Slot::new(&dialer, true),
            dialer,
            memory,
            status,
            identity: RwLock::default(),
            clock: StoreClock::default(),
            accepted_token: 0.into(),
            tools: Known::default(),
            lease_margin: settings.timings.lease_margin,
            beating: tokio::sync::Mutex::default(),
        })
    }

    /// The time by the store's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The latest time of the store at which a change may begin a run, in microseconds; `None` if it begins none.
    pub(crate) fn latest_begin(&self, record: &Record) -> Option<i64> {
        latest_begin(record, self.lease_margin).map(Timestamp::as_microsecond)
    }

    /// Notes the server's clock, which a function has answered: this machine's was set back since it was read.
    pub(crate) fn was_late(&self, answer: &Row) -> Result<()> {
        let clock_us: Option<i64> = get(answer, 8)?;
        if let Some(clock_us) = clock_us {
            self.clock.was_late(clock_us, self.status.kind());
        }
        self.dialer.trouble.notify_one();
        Ok(())
    }

    /// What was inspected last, for a verb that only this server may carry out.
    pub(crate) fn known(&self) -> String {
        read(&self.identity).clone()
    }

    /// Closes the store because the server is not the one that was inspected.
    pub(crate) fn suspect(&self) -> Error {
        self.status.close_for(&Reason::new("suspect", SUSPECT));
        self.dialer.trouble.notify_one();
        Error::Refused(SUSPECT.into())
    }

    /// Runs a verb that only the inspected server may carry out, and whose answer begins with a word.
    pub(crate) async fn run_guarded(&self, verb: Verb) -> Result<Row> {
        let row = self.lanes.run(verb).await?;
        match get(&row, 0)? {
            "unknown_server" => Err(self.suspect()),
            _ => Ok(row),
        }
    }

    /// Raises this gateway's beat, which proves all that was acknowledged before. False: the server lacks an earlier beat, or
    /// was not inspected.
    pub(crate) async fn beat(&self) -> Result<bool> {
        let _one_at_a_time = self.beating.lock().await;
        let memory = &self.memory;
        memory.begin_beat();
        let (beat, token) = (signed(memory.beat()), signed(memory.covered_token()));
        let params = params![self.known(), memory.name(), beat, token];
        let row = self.lanes.run(Verb::plain(BEAT, params)).await?;
        let (word, beat): (&str, Option<i64>) = (get(&row, 0)?, get(&row, 1)?);
        if let (true, Some(beat)) = (word == "done", beat) {
            memory.end_beat(beat.unsigned_abs());
        }
        Ok(word == "done")
    }

    /// A beat after a write that is not about a call or a document, so that its loss is noticed.
    pub(crate) async fn prove(&self) {
        // The write is stored; the next inspection beats, too.
        drop(self.beat().await);
    }
}
