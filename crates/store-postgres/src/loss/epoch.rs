//! Epochs: names the data of a new store, notices its loss, and begins the next epoch when an operator accepts the loss.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::memory::Written;
use crate::checks::durability::Facts;
use crate::link::lanes::Verb;
use crate::link::rows::{get, signed};
use crate::link::{Param, params};
use crate::loss::{self, Finding, Sight};
use crate::server::Server;
use oncegate_store::lock::{lock, write};
use oncegate_store::shared::moments::Moments;
use oncegate_store::shared::seen::Seen;
use oncegate_store::{Error, LOST_DATA, Reason, Result};

/// How often an inspection begins again after another gateway has written the ledger's row.
const TRIES: usize = 3;
const NOTHING_LOST: &str = "the store has not lost any data";
const NOT_ALONE: &str =
    "another operator accepts the loss at the same time, or more was lost meanwhile: try again";

const SIGHT: &str = include_str!("../sql/sight.sql");
const MISSING: &str = "SELECT count(*) FROM unnest($1::uuid[], $2::bigint[]) w (id, version)
    LEFT JOIN states s ON s.call_id = w.id LEFT JOIN documents d ON d.digest = w.id
    WHERE coalesce(s.version, d.version, 0) < w.version";
const BEGIN: &str = "begin_1";
const CLOSE: &str = "close_1";
const ACCEPT: &str = "accept_1";

/// The epochs of a store's data, and whether data is missing.
pub(crate) struct Epochs {
    server: Arc<Server>,
    /// Whether an operator is accepting a loss at this process.
    is_accepting: AtomicBool,
    pub(crate) seen: Seen<u64>,
}

impl Epochs {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            is_accepting: false.into(),
            seen: Seen::new(Moments::apart(SignedDuration::ZERO)),
        }
    }

    /// Compares the store with memory, and says what is missing. If nothing is, the server may be used from now on.
    pub(crate) async fn look_for_loss(&self, facts: &Facts) -> Result<Option<Reason>> {
        for _ in 0..TRIES {
            if let ControlFlow::Break(reason) = self.compare_once(facts).await? {
                return Ok(reason);
            }
        }
        self.server.dialer.trouble.notify_one();
        let text = "the store was changed during each inspection";
        Ok(Some(Reason::new("suspect", text)))
    }

    /// Compares once; `Continue`: another gateway has written the ledger's row meanwhile.
    async fn compare_once(&self, facts: &Facts) -> Result<ControlFlow<Option<Reason>>> {
        let memory = &self.server.memory;
        let (epoch, known) = (memory.epoch(), memory.beats());
        let sight = self.sight().await?;
        match loss::compare(&sight, epoch, &known) {
            Finding::Whole => {
                self.cancel_acceptance();
                memory.saw_all(&sight);
                self.is_whole(&sight, facts);
                Ok(ControlFlow::Break(None))
            }
            Finding::Fresh => {
                self.begin(&[], "").await?;
                Ok(ControlFlow::Continue(()))
            }
            Finding::Adopt(adopted) => {
                self.cancel_acceptance();
                memory.adopt(adopted, &sight);
                lock(&self.seen.moments).begin_anew();
                self.is_whole(&sight, facts);
                let before = epoch.map_or_else(|| "none".to_owned(), |epoch| epoch.to_string());
                tracing::info!(store = %self.server.target, epoch = %adopted, before, "this gateway uses the data of another epoch from now on");
                Ok(ControlFlow::Break(None))
            }
            Finding::Lost { what, writes } => {
                let text = format!(
                    "{what}; nothing is claimed until an operator runs `oncegate store accept-loss`"
                );
                let reason = Reason::new(LOST_DATA, text);
                self.server.status.close_for(&reason);
                write(&self.server.identity).clear();
                if !lock(&self.seen.moments).has_loss() {
                    self.seen.lost_writes.fetch_add(writes, Ordering::Relaxed);
                }
                self.saw_loss(&sight);
                match self.close_for_all(&sight, epoch, &what).await? {
                    true => Ok(ControlFlow::Break(Some(reason))),
                    false => Ok(ControlFlow::Continue(())),
                }
            }
        }
    }

    /// The server that was asked for these facts has everything.
    fn is_whole(&self, sight: &Sight, facts: &Facts) {
        let Some(ledger) = &sight.ledger else { return };
        let server = &self.server;
        server.accepted_token.store(ledger.token, Ordering::SeqCst);
        *lock(&self.seen.whole_since) = Timestamp::from_microsecond(ledger.whole_since).ok();
        lock(&self.seen.moments).is_whole();
        self.seen.was_whole.store(true, Ordering::Relaxed);
        let (server_run, standbys) = (facts.started_us, &facts.standby_names);
        *write(&server.identity) = format!("{server_run} {} {standbys}", ledger.epoch);
    }

    /// Notes until when everything is there, of several inspections the worst.
    fn saw_loss(&self, sight: &Sight) {
        let memory = &self.server.memory;
        let stored = sight.beats.get(&memory.name()).copied().unwrap_or(0);
        // Of a store that names other data no beat proves anything.
        let is_same = sight.ledger.as_ref().zip(memory.epoch());
        let is_same = is_same.is_some_and(|(ledger, epoch)| loss::knows(ledger, epoch));
        lock(&self.seen.moments).saw_loss(|beat| is_same && *beat <= stored);
    }

    /// Closes the store for all gateways, which may not know what is missing. False: the ledger's row has changed meanwhile.
    async fn close_for_all(&self, sight: &Sight, epoch: Option<Uuid>, what: &str) -> Result<bool> {
        let Some(ledger) = &sight.ledger else {
            let follows: Vec<Uuid> = epoch.into_iter().collect();
            self.begin(&follows, what).await?;
            return Ok(true);
        };
        if !loss::may_close(ledger, epoch, self.seen.was_whole.load(Ordering::Relaxed)) {
            return Ok(true);
        }
        let also = epoch.filter(|epoch| !loss::knows(ledger, *epoch));
        let close = params![ledger.epoch, ledger.lost.clone(), what.to_owned(), also];
        self.ask(CLOSE, close).await
    }

    /// Names the data of a store that has no name yet.
    async fn begin(&self, follows: &[Uuid], lost: &str) -> Result<()> {
        let begin = params![Uuid::new_v4(), follows.to_vec(), lost.to_owned()];
        let begun = self.server.lanes.run(Verb::plain(BEGIN, begin)).await;
        begun.map(drop)
    }

    async fn sight(&self) -> Result<Sight> {
        let known: Vec<Uuid> = self.server.memory.beats().into_keys().collect();
        let sight = self.server.inspector.ask_json(SIGHT, &[&known]).await?;
        let missing = self.missing().await?;
        Ok(Sight { missing, ..sight })
    }

    /// How many versions are missing that no beat has proved yet.
    async fn missing(&self) -> Result<u64> {
        let (memory, now) = (&self.server.memory, self.server.now());
        let unproved = memory.unproved();
        // As long as no connection was lost nothing is compared: the next beat proves it.
        if self.server.status.is_open() || unproved.is_empty() {
            return Ok(0);
        }
        let stored = |(id, (version, retain_until)): (Uuid, Written)| {
            let may_be_gone = retain_until.is_some_and(|until| until <= now);
            (!may_be_gone).then_some((id, signed(version)))
        };
        let (ids, versions): (Vec<Uuid>, Vec<i64>) =
            unproved.into_iter().filter_map(stored).unzip();
        let inspector = &self.server.inspector;
        let found = inspector.ask(MISSING, &[&ids, &versions]).await?;
        let missing: i64 = found.first().map_or(Ok(0), |row| get(row, 0))?;
        Ok(missing.unsigned_abs())
    }

    /// Whether an operator is accepting a loss at this process, which may change documents until then.
    pub(crate) fn is_accepting(&self) -> bool {
        self.is_accepting.load(Ordering::SeqCst)
    }

    pub(crate) fn cancel_acceptance(&self) {
        self.is_accepting.store(false, Ordering::SeqCst);
    }

    /// Begins the acceptance of a loss.
    pub(crate) async fn prepare(&self) -> Result<Sight> {
        let memory = &self.server.memory;
        let sight = self.sight().await?;
        match loss::compare(&sight, memory.epoch(), &memory.beats()) {
            Finding::Lost { what, .. } => {
                if !self.close_for_all(&sight, memory.epoch(), &what).await? {
                    return Err(Error::Refused(NOT_ALONE.into()));
                }
            }
            _ => return Err(Error::Refused(NOTHING_LOST.into())),
        }
        self.is_accepting.store(true, Ordering::SeqCst);
        self.sight().await
    }

    /// Completes the acceptance of a loss: begins another epoch.
    pub(crate) async fn accept(&self, reason: &str) -> Result<()> {
        let memory = &self.server.memory;
        let sight = self.prepare().await?;
        let Some(ledger) = &sight.ledger else {
            return Err(Error::Refused(NOT_ALONE.into()));
        };
        let also = memory.epoch().filter(|epoch| !loss::knows(ledger, *epoch));
        let next = Uuid::new_v4();
        let token = signed(memory.highest_token().max(sight.token));
        let reason = reason.replace('\0', "\u{fffd}");
        let accept = params![ledger.epoch, next, also, reason, token];
        if !self.ask(ACCEPT, accept).await? {
            return Err(Error::Refused(NOT_ALONE.into()));
        }
        let sight = self.sight().await?;
        memory.adopt(next, &sight);
        lock(&self.seen.moments).begin_anew();
        self.cancel_acceptance();
        Ok(())
    }

    async fn ask(&self, function: &'static str, params: Vec<Param>) -> Result<bool> {
        let answer = self.server.lanes.run(Verb::plain(function, params)).await?;
        get(&answer, 0)
    }
}
