//! Epochs: begins one, notices its loss, and begins the next one when an operator accepts the loss.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::try_join_all;
use jiff::Timestamp;
use redis::{FromRedisValue, Value};
use tokio::join;

use super::counters::LossCounters;
use super::gateways::Gateways;
use super::put_back::put_all_back;
use super::{CLOSED, Finding, Manifest, Sight, Writes};
use crate::keys::{self, Partition};
use crate::link::answer::unreadable;
use crate::loss;
use crate::scripts::{Run, command};
use crate::server::Server;
use oncegate_store::lock::lock;
use oncegate_store::shared::moments::Moments;
use oncegate_store::shared::seen::Seen;
use oncegate_store::{Error, FOREIGN, LOST_DATA, Reason, Result};

/// How often an inspection begins again after another gateway has written the manifest.
const TRIES: usize = 3;
const NOT_ALONE: &str =
    "another operator accepts the loss at the same time, or more was lost meanwhile: try again";

/// Whether this gateway has closed the store for all gateways.
enum Closed {
    Now,
    Before,
    /// Another gateway has written the manifest since it was read: inspect again.
    TooLate,
}

/// The epochs of a store's data, and whether data is missing.
pub(crate) struct Epochs {
    pub(super) server: Arc<Server>,
    gateways: Gateways,
    /// Whether the remembered writes were put back since the loss was noticed.
    is_mended: AtomicBool,
    /// The manifest of a prepared acceptance, which closes the store for all gateways.
    prepared: Mutex<Option<Manifest>>,
    pub(crate) seen: Seen<Writes>,
    /// What the last inspection has read, if nothing was missing: for [`tidy_up`](Self::tidy_up).
    whole: Mutex<Option<Sight>>,
}

impl Epochs {
    /// `patience`: how long a gateway that seems gone is watched.
    pub(crate) fn new(server: Arc<Server>, patience: Duration) -> Self {
        Self {
            gateways: Gateways::new(server.clone(), patience),
            server,
            is_mended: false.into(),
            seen: Seen::new(Moments::default()),
            whole: Mutex::default(),
            prepared: Mutex::default(),
        }
    }

    /// Compares the store with memory, puts lost writes back, and says what is missing.
    pub(crate) async fn look_for_loss(&self) -> Result<Option<Reason>> {
        for _ in 0..TRIES {
            if let ControlFlow::Break(reason) = self.compare_once().await? {
                return Ok(reason);
            }
        }
        self.server.link.trouble.notify_one();
        let text = "the store was changed during each inspection";
        Ok(Some(Reason::new("suspect", text)))
    }

    /// Publishes what others have to know of this gateway, and forgets those that are gone, if no data was missing.
    pub(crate) async fn tidy_up(&self) {
        let whole = lock(&self.whole).take();
        if let Some(sight) = whole {
            join!(
                self.publish_token(&sight),
                self.gateways.forget_gone(&sight)
            );
        }
    }

    /// Compares once; `Continue`: another gateway has written the manifest meanwhile.
    ///
    /// An inspection that began before the end of an acceptance must not undo the acceptance.
    async fn compare_once(&self) -> Result<ControlFlow<Option<Reason>>> {
        let (epoch, known) = (self.server.memory.epoch(), self.server.memory.all_writes());
        let (began_at, newest) = (self.server.now(), self.server.newest_format);
        let mut sight = self.sight().await?;
        let mut found = loss::compare(&sight, &epoch, &known, newest);
        // A visitor sets no store up.
        if let Finding::Fresh(manifest) = &found
            && !self.server.memory.is_visitor()
        {
            self.begin(manifest.clone()).await?;
            sight = self.sight().await?;
            found = loss::compare(&sight, &epoch, &known, newest);
        }
        let reason = match found {
            Finding::Whole => {
                self.know_since(&sight);
                self.forget_acceptance();
                self.server.memory.saw_all(&sight);
                lock(&self.seen.moments).saw_whole(began_at, self.server.memory.all_writes());
                *lock(&self.whole) = Some(sight);
                self.seen.was_whole.store(true, Ordering::Relaxed);
                self.is_mended.store(false, Ordering::Relaxed);
                None
            }
            // Another gateway sets the store up at the same time.
            Finding::Fresh(_) => Some(Reason::new("starting", "the store is being set up")),
            Finding::Adopt(adopted) => {
                put_all_back(&self.server).await?;
                let sight = self.sight().await?;
                // Before anything is written to the data that is left after a loss.
                self.know_since(&sight);
                self.server.memory.adopt(&adopted, sight);
                lock(&self.seen.moments).begin_anew();
                self.forget_acceptance();
                self.seen.was_whole.store(true, Ordering::Relaxed);
                let before = if epoch.is_empty() { "none" } else { &epoch };
                tracing::info!(store = %self.server.link.target, epoch = adopted, before, "this gateway uses the data of another epoch from now on");
                None
            }
            Finding::Foreign(what) => Some(Reason::new(FOREIGN, what)),
            Finding::Lost { what, writes } => {
                let text = format!(
                    "{what}; nothing is claimed until an operator runs `oncegate store accept-loss`"
                );
                let reason = Reason::new(LOST_DATA, text);
                if self.manifest().await? != sight.manifest {
                    return Ok(ControlFlow::Continue(()));
                }
                lock(&self.seen.moments).saw_loss(|writes| sight.has(writes, &epoch));
                self.server.memory.saw_loss(&sight, &known);
                // No key may be claimed while its lost call is being put back.
                self.server.status.close_for(&reason);
                // Warns again if the warning itself was lost since: the store may have been emptied once more.
                let before = sight.manifest.as_ref();
                match self.warn_others(before, &what, &epoch).await? {
                    Closed::Now => self.is_mended.store(false, Ordering::Relaxed),
                    Closed::Before => {}
                    Closed::TooLate => return Ok(ControlFlow::Continue(())),
                }
                if !self.is_mended.load(Ordering::Relaxed) {
                    self.publish_token(&Sight::default()).await;
                    if let Err(error) = put_all_back(&self.server).await {
                        let text = "remembered writes could not be put back yet";
                        if let Some(left_out) = self.server.repeats.note(text) {
                            tracing::error!(%error, left_out, "{text}");
                        }
                    } else if !self.is_mended.swap(true, Ordering::Relaxed) {
                        self.seen.lost_writes.fetch_add(writes, Ordering::Relaxed);
                    }
                }
                Some(reason)
            }
        };
        Ok(ControlFlow::Break(reason))
    }

    /// Closes the store for all gateways, by the manifest and then by the epochs.
    ///
    /// Gateways that use the rest of the data may not know what is missing. The manifest comes first: it says which
    /// epoch an acceptance has to follow. `before` is the manifest from which the loss was judged.
    async fn warn_others(
        &self,
        before: Option<&Manifest>,
        what: &str,
        epoch: &str,
    ) -> Result<Closed> {
        if before.is_none() && epoch.is_empty() {
            // There is no epoch to follow. Gateways that remember one write the manifest.
            if self.is_mended.load(Ordering::Relaxed) {
                return Ok(Closed::Before);
            }
            return self.close_partitions(epoch).await;
        }
        let was_whole = self.seen.was_whole.load(Ordering::Relaxed);
        let known = (epoch, self.server.memory.format());
        let Some(warning) = loss::warning(before, known, what, was_whole) else {
            return Ok(Closed::Before);
        };
        match self.swap_manifest(before, &warning).await {
            Ok(false) => Ok(Closed::TooLate),
            // Without an answer the manifest may be written all the same.
            swapped => {
                let closed = self.close_partitions(epoch).await?;
                swapped.map(|_| closed)
            }
        }
    }

    /// Makes every claim be refused until a loss is accepted.
    ///
    /// `TooLate`: the manifest does not close the store any more. The store was emptied once more, or another gateway
    /// has begun to use it or accepts the loss.
    ///
    /// An acceptance that begins meanwhile is not undone: it writes the manifest first, and then an epoch that was not
    /// there when the partition was read. `epoch`: a gateway without one has no manifest to write.
    async fn close_partitions(&self, epoch: &str) -> Result<Closed> {
        let is_closed = |manifest: Option<Manifest>| {
            manifest.map_or(epoch.is_empty(), |manifest| !manifest.lost.is_empty())
        };
        for _ in 0..TRIES {
            let counters = self.counters().await?;
            if !is_closed(self.manifest().await?) {
                return Ok(Closed::TooLate);
            }
            let close = async |(partition, counters): (Partition, LossCounters)| {
                self.set_epoch(partition, &counters.epoch, CLOSED).await
            };
            let closed = try_join_all(Partition::all().zip(counters).map(close)).await?;
            if closed.into_iter().all(|is_done| is_done) {
                return Ok(match is_closed(self.manifest().await?) {
                    true => Closed::Now,
                    false => Closed::TooLate,
                });
            }
        }
        Ok(Closed::TooLate)
    }

    /// Publishes up to where this gateway gives tokens.
    ///
    /// Other gateways remember it, in case the store and this gateway are lost together.
    async fn publish_token(&self, sight: &Sight) {
        let memory = &self.server.memory;
        let (gateway, token) = (memory.gateway(), memory.covered_token());
        let published = sight.tokens.get(&gateway);
        if published.is_none_or(|published| *published < token) {
            // A full Redis refuses it, which the inspection reports. The next inspection tries again.
            let set = (keys::tokens(), gateway, token);
            drop(self.server.link.ask::<()>("HSET", set).await);
        }
    }

    /// Reads from the manifest since when every call is known, the highest accepted token, and the format.
    fn know_since(&self, sight: &Sight) {
        let Some(manifest) = &sight.manifest else {
            return;
        };
        self.server.memory.saw_format(manifest.format());
        let accepted_token = &self.server.accepted_token;
        accepted_token.store(manifest.token, Ordering::SeqCst);
        let since = manifest.whole_since_us.map(Timestamp::from_microsecond);
        *lock(&self.seen.whole_since) = since.and_then(Result::ok);
    }

    /// Drops a prepared acceptance, which another gateway has taken over, or which is done.
    pub(crate) fn forget_acceptance(&self) {
        lock(&self.prepared).take();
    }

    async fn sight(&self) -> Result<Sight> {
        let (manifest, counters, tokens) = self.read_sight().await?;
        let mut sight = Sight {
            manifest,
            tokens,
            ..Sight::default()
        };
        for (partition, counters) in Partition::all().zip(counters) {
            for (gateway, count) in counters.writes {
                sight.writes.count(&gateway, partition, count);
            }
            sight.epochs.push(counters.epoch);
        }
        let absent = self.server.memory.all_writes().absent_from(&sight.writes);
        sight.forgotten = self.gateways.last_counts(absent).await?;
        Ok(sight)
    }

    /// Reads the manifest, then the loss counters, and then the tokens; in one round trip, except over a cluster.
    ///
    /// In this order: an acceptance writes the loss counters before its manifest is complete.
    async fn read_sight(
        &self,
    ) -> Result<(Option<Manifest>, Vec<LossCounters>, BTreeMap<String, u64>)> {
        let link = &self.server.link;
        if link.target.is_cluster() {
            let (manifest, counters) = (self.manifest().await?, self.counters().await?);
            return Ok((
                manifest,
                counters,
                link.ask("HGETALL", keys::tokens()).await?,
            ));
        }
        let counters: Vec<String> = Partition::all().map(Partition::counters).collect();
        let commands = vec![
            command("GET", manifest_key()),
            command("MGET", counters),
            command("HGETALL", keys::tokens()),
        ];
        let found = Value::Array(link.ask_in_order(commands).await?);
        let (manifest, counters, tokens) =
            FromRedisValue::from_redis_value(found).map_err(unreadable)?;
        let manifest = read_manifest(manifest)?.map(|(_, manifest)| manifest);
        Ok((manifest, read_counters(counters), tokens))
    }

    /// Sets up a new Redis. Several gateways may do it at once.
    async fn begin(&self, manifest: Manifest) -> Result<()> {
        let manifest = Manifest {
            whole_since_us: Some(self.server.now().as_microsecond()),
            ..manifest
        };
        let text = serde_json::to_string(&manifest).map_err(unreadable)?;
        let set = (manifest_key(), text, "NX");
        let commands = vec![command("SET", set), command("GET", manifest_key())];
        let mut answers = self.server.link.ask_in_order(commands).await?;
        let found = FromRedisValue::from_redis_value(answers.pop().unwrap_or(Value::Nil));
        // The first gateway has chosen the epoch.
        let Some((text, chosen)) = read_manifest(found.map_err(unreadable)?)? else {
            return Ok(());
        };
        self.set_epochs("", &chosen.epoch).await?;
        // Unless another gateway has found a loss in the meantime. An acceptance is completed only by its own gateway.
        if !chosen.complete && chosen.follows.is_empty() {
            let complete = Manifest {
                complete: true,
                ..chosen.clone()
            };
            self.swap_text(Some(text), &complete).await?;
        }
        Ok(())
    }

    /// Accepts a loss: begins a new epoch, as the successor of the old one.
    pub(crate) async fn accept(&self, reason: &str) -> Result<()> {
        let prepared = lock(&self.prepared).take();
        let prepared = match prepared {
            Some(prepared) => prepared,
            None => self.prepare(reason).await?,
        };
        self.forget_acceptance();
        let complete = Manifest {
            complete: true,
            ..prepared.clone()
        };
        let sight = Sight {
            manifest: Some(complete.clone()),
            ..self.sight().await?
        };
        let newest = self.server.newest_format;
        let writes = self.server.memory.all_writes();
        let found = loss::compare(&sight, &complete.epoch, &writes, newest);
        if found != Finding::Whole || !self.swap_manifest(Some(&prepared), &complete).await? {
            return Err(Error::Refused(NOT_ALONE.into()));
        }
        self.server.memory.adopt(&complete.epoch, sight);
        lock(&self.seen.moments).begin_anew();
        Ok(())
    }

    /// Prepares the new epoch, which counts only once its manifest is complete.
    pub(crate) async fn prepare(&self, reason: &str) -> Result<Manifest> {
        put_all_back(&self.server).await?;
        let sight = self.sight().await?;
        let memory = &self.server.memory;
        let remembered = memory.epoch();
        let before = sight.manifest.as_ref();
        let newest = self.server.newest_format;
        let unknown =
            |before: &Manifest| loss::format::unknown(before.format, before.partitions, newest);
        if let Some(why) = before.and_then(unknown) {
            return Err(Error::Refused(why));
        }
        if remembered.is_empty() && before.is_none() {
            let why = "no gateway has used this store with these watermarks: use the watermarks of a gateway";
            return Err(Error::Refused(why.into()));
        }
        let mut epochs: Vec<&str> = Vec::new();
        if let Some(before) = before {
            epochs.extend(before.follows.iter().map(String::as_str));
            epochs.push(&before.epoch);
        }
        epochs.push(&remembered);
        let format = before.map_or_else(|| memory.format(), Manifest::format);
        let mut manifest = Manifest::after(&epochs, format);
        reason.clone_into(&mut manifest.reason);
        let now = self.server.now();
        let now_us = now.as_microsecond();
        // Tokens that no gateway remembers were not ahead of the clock either.
        let known_token = memory.highest_token().max(sight.token());
        manifest.token = known_token.max(now_us.unsigned_abs());
        manifest.whole_since_us = Some(now_us);
        if !self.swap_manifest(before, &manifest).await? {
            return Err(Error::Refused(NOT_ALONE.into()));
        }
        self.set_epochs("*", &manifest.epoch).await?;
        *lock(&self.seen.whole_since) = Some(now);
        memory.adopt(&manifest.epoch, self.sight().await?);
        lock(&self.seen.moments).begin_anew();
        *lock(&self.prepared) = Some(manifest.clone());
        Ok(manifest)
    }

    /// Whether an operator is accepting a loss at this process, which may change documents until then.
    pub(crate) fn is_accepting(&self) -> bool {
        lock(&self.prepared).is_some()
    }

    /// The loss counters of all partitions.
    async fn counters(&self) -> Result<Vec<LossCounters>> {
        let keys = Partition::all().map(Partition::counters);
        Ok(read_counters(self.server.link.get_all(keys).await?))
    }

    /// Writes a partition's epoch if it still is `seen`. Returns whether it did.
    async fn set_epoch(&self, partition: Partition, seen: &str, epoch: &str) -> Result<bool> {
        let run = Run::new(&self.server.scripts.set_epoch).key(partition.counters());
        Ok(self.server.run(run.arg((seen, epoch))).await?.word == "done")
    }

    async fn set_epochs(&self, seen: &str, epoch: &str) -> Result<()> {
        let set_epoch = |partition| self.set_epoch(partition, seen, epoch);
        try_join_all(Partition::all().map(set_epoch))
            .await
            .map(drop)
    }

    async fn manifest(&self) -> Result<Option<Manifest>> {
        Ok(self.manifest_text().await?.map(|(_, manifest)| manifest))
    }

    /// The stored manifest, as bytes and as read from them.
    pub(super) async fn manifest_text(&self) -> Result<Option<(Vec<u8>, Manifest)>> {
        read_manifest(self.server.link.ask("GET", manifest_key()).await?)
    }

    /// Writes the manifest if it still is `before`. Returns whether it did.
    pub(super) async fn swap_manifest(
        &self,
        before: Option<&Manifest>,
        next: &Manifest,
    ) -> Result<bool> {
        let (text, stored) = self.manifest_text().await?.unzip();
        if stored.as_ref() != before {
            return Ok(false);
        }
        self.swap_text(text, next).await
    }

    /// Writes the manifest if its text still is this. Returns whether it did.
    pub(super) async fn swap_text(&self, text: Option<Vec<u8>>, next: &Manifest) -> Result<bool> {
        let next = serde_json::to_string(next).map_err(unreadable)?;
        let run = Run::new(&self.server.scripts.swap)
            .key(manifest_key())
            .arg((text.unwrap_or_default(), next));
        Ok(self.server.run(run).await?.word == "done")
    }
}

/// A manifest, with its text.
fn read_manifest(text: Option<Vec<u8>>) -> Result<Option<(Vec<u8>, Manifest)>> {
    let read = |text: Vec<u8>| serde_json::from_slice(&text).map(|manifest| (text, manifest));
    text.map(read).transpose().map_err(unreadable)
}

fn read_counters(counters: Vec<Option<Vec<u8>>>) -> Vec<LossCounters> {
    let read = |counters: Option<Vec<u8>>| LossCounters::read(&counters.unwrap_or_default());
    counters.into_iter().map(read).collect()
}

fn manifest_key() -> String {
    Partition::FIRST.key("manifest")
}
