//! Epochs: begin one, notice its loss, and begin the next one when an operator accepts the loss.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::try_join_all;
use jiff::Timestamp;

use super::answer::unreadable;
use super::gateways::Gateways;
use super::keys::{self, Partition};
use super::loss::{self, CLOSED, Finding, Manifest, Sight};
use super::marks::Marks;
use super::put_back::Restorer;
use super::scripts::{Run, command};
use super::server::Server;
use super::whole::Moments;
use crate::store::lock::lock;
use crate::store::{Error, LOST_DATA, Reason};

/// How often a look begins again after another gateway has written the manifest.
const LOOKS: usize = 3;
const NOT_ALONE: &str =
    "another person accepts it at the same time, or more was lost meanwhile: look again";

/// Whether a warning has closed the store for all gateways.
enum Warned {
    Now,
    Before,
    /// Another gateway has written the manifest since it was read: look again.
    TooLate,
}

/// The epochs of a store's data, and whether data is missing.
pub(super) struct Epochs {
    server: Arc<Server>,
    restorer: Restorer,
    gateways: Gateways,
    pub(super) lost_writes: AtomicU64,
    /// Whether this process has found its own data here.
    was_whole: AtomicBool,
    /// Since when every call is known, in microseconds; 0: not seen yet.
    pub(super) whole_since_us: AtomicI64,
    /// Whether the remembered writes were put back since the loss was noticed.
    is_mended: AtomicBool,
    /// The manifest of a prepared acceptance, which closes the store for all gateways.
    prepared: Mutex<Option<Manifest>>,
    /// When this process has seen everything there.
    moments: Mutex<Moments>,
}

impl Epochs {
    pub(super) fn new(server: Arc<Server>, restorer: Restorer, gateways: Gateways) -> Self {
        Self {
            server,
            restorer,
            gateways,
            lost_writes: 0.into(),
            was_whole: false.into(),
            whole_since_us: 0.into(),
            is_mended: false.into(),
            moments: Mutex::default(),
            prepared: Mutex::default(),
        }
    }

    /// Compares the store with memory, puts lost writes back, and says which are missing.
    pub(super) async fn look_for_loss(&self) -> Result<Option<Reason>, Error> {
        for _ in 0..LOOKS {
            if let ControlFlow::Break(seen) = self.compare_once().await? {
                return Ok(seen);
            }
        }
        self.server.link.trouble.notify_one();
        Ok(Some(Reason::new(
            "suspect",
            "the store was changed each time it was looked at",
        )))
    }

    /// Compares once; `Continue`: the manifest has changed meanwhile.
    ///
    /// An acceptance that has just ended must not be taken back by a look that began before it.
    async fn compare_once(&self) -> Result<ControlFlow<Option<Reason>>, Error> {
        let (epoch, known) = (self.server.memory.epoch(), self.server.memory.all_writes());
        let looked_at = self.server.now();
        let mut sight = self.sight().await?;
        let mut found = loss::compare(&sight, &epoch, &known);
        if let Finding::Fresh(manifest) = found {
            self.begin(manifest).await?;
            sight = self.sight().await?;
            found = loss::compare(&sight, &epoch, &known);
        }
        match found {
            Finding::Whole => {
                self.know_since(&sight).await;
                self.forget_acceptance();
                self.server.memory.saw_all(&sight);
                lock(&self.moments).saw_whole(looked_at, &self.server.memory.all_writes());
                self.publish_token(&sight).await;
                self.gateways.forget_gone(&sight).await;
                self.was_whole.store(true, Ordering::Relaxed);
                self.is_mended.store(false, Ordering::Relaxed);
                Ok(ControlFlow::Break(None))
            }
            // Another gateway is doing it, too.
            Finding::Fresh(_) => Ok(ControlFlow::Break(Some(Reason::new(
                "starting",
                "the store is being set up",
            )))),
            Finding::Adopt(adopted) => {
                self.restorer.put_all_back().await?;
                let sight = self.sight().await?;
                // Before anything is written to what is left after a loss.
                self.know_since(&sight).await;
                self.server.memory.adopt(&adopted, sight);
                lock(&self.moments).begin_anew();
                self.forget_acceptance();
                self.was_whole.store(true, Ordering::Relaxed);
                let before = if epoch.is_empty() { "none" } else { &epoch };
                tracing::info!(store = %self.server.link.target, epoch = adopted, before, "this data is gone by from now on");
                Ok(ControlFlow::Break(None))
            }
            Finding::Foreign(what) => Ok(ControlFlow::Break(Some(Reason::new("foreign", what)))),
            Finding::Lost { what, writes } => {
                let text = format!(
                    "{what}; nothing is claimed until a person runs `oncegate store accept-loss`"
                );
                let reason = Reason::new(LOST_DATA, text);
                if self.manifest().await? != sight.manifest {
                    return Ok(ControlFlow::Continue(()));
                }
                lock(&self.moments).saw_loss(&sight, &epoch);
                self.server.memory.saw_loss(&sight, &known);
                // Nothing may be claimed that is about to be put back.
                self.server.status.close_for(&reason);
                // Also if the warning itself was lost since: the store may have been emptied once more.
                match self
                    .warn_others(sight.manifest.as_ref(), &what, &epoch)
                    .await?
                {
                    Warned::Now => self.is_mended.store(false, Ordering::Relaxed),
                    Warned::Before => {}
                    Warned::TooLate => return Ok(ControlFlow::Continue(())),
                }
                if !self.is_mended.load(Ordering::Relaxed) {
                    self.publish_token(&Sight::default()).await;
                    let mended = self.restorer.put_all_back().await;
                    if let Err(error) = mended {
                        tracing::error!(%error, "what is remembered could not be put back yet");
                    } else if !self.is_mended.swap(true, Ordering::Relaxed) {
                        self.lost_writes.fetch_add(writes, Ordering::Relaxed);
                    }
                }
                Ok(ControlFlow::Break(Some(reason)))
            }
        }
    }

    /// Closes the store for all gateways, by the manifest and then by the epochs.
    ///
    /// Also for gateways that have begun to use the rest of the data: they may not know what is
    /// missing. The manifest comes first: it says which epoch an acceptance has to follow. `before`
    /// is the manifest from which the loss was judged.
    async fn warn_others(
        &self,
        before: Option<&Manifest>,
        what: &str,
        epoch: &str,
    ) -> Result<Warned, Error> {
        if before.is_none() && epoch.is_empty() {
            // There is no epoch to follow. Gateways that remember one write the manifest.
            if self.is_mended.load(Ordering::Relaxed) {
                return Ok(Warned::Before);
            }
            return Ok(match self.close_partitions(epoch).await? {
                true => Warned::Now,
                false => Warned::TooLate,
            });
        }
        let was_whole = self.was_whole.load(Ordering::Relaxed);
        let Some(warning) = loss::warning(before, epoch, what, was_whole) else {
            return Ok(Warned::Before);
        };
        match self.swap_manifest(before, &warning).await {
            Ok(false) => Ok(Warned::TooLate),
            // It may be written although no answer came.
            said => {
                let is_closed = self.close_partitions(epoch).await?;
                said.map(|_| match is_closed {
                    true => Warned::Now,
                    false => Warned::TooLate,
                })
            }
        }
    }

    /// Makes every claim be refused until a loss is accepted.
    ///
    /// Answers whether the manifest says so after that, too: if not, the store was emptied once
    /// more, or another gateway has begun with it or accepts the loss.
    ///
    /// An acceptance that begins meanwhile is not undone: it writes the manifest first, and then an epoch that was not
    /// there when the partition was read. `epoch`: a gateway without one has no manifest to write.
    async fn close_partitions(&self, epoch: &str) -> Result<bool, Error> {
        let is_closed = |manifest: Option<Manifest>| {
            manifest.map_or(epoch.is_empty(), |manifest| !manifest.lost.is_empty())
        };
        for _ in 0..LOOKS {
            let epochs = self.marks().await?.into_iter().map(|marks| marks.epoch);
            if !is_closed(self.manifest().await?) {
                return Ok(false);
            }
            let close = async |(partition, epoch): (Partition, String)| {
                self.mark(partition, &epoch, CLOSED).await
            };
            let closed = try_join_all(Partition::all().zip(epochs).map(close)).await?;
            if closed.into_iter().all(|is_done| is_done) {
                return Ok(is_closed(self.manifest().await?));
            }
        }
        Ok(false)
    }

    /// Publishes up to where this gateway gives tokens.
    ///
    /// Other gateways remember it, in case the store and this gateway are lost together.
    async fn publish_token(&self, sight: &Sight) {
        let (gateway, token) = (
            self.server.memory.gateway(),
            self.server.memory.covered_token(),
        );
        if sight
            .tokens
            .get(&gateway)
            .is_some_and(|published| *published >= token)
        {
            return;
        }
        // A full Redis refuses it, which is told elsewhere; the next look tries again.
        drop(
            self.server
                .link
                .ask::<()>(&command("HSET", (keys::tokens(), gateway, token)))
                .await,
        );
    }

    /// Reads from the manifest since when every call is known, and the highest accepted token.
    ///
    /// An older store gets the present time. Where that cannot be written, it is not known yet, and
    /// nothing is undone on a guess.
    async fn know_since(&self, sight: &Sight) {
        let Some(manifest) = &sight.manifest else {
            return;
        };
        self.server
            .accepted_token
            .store(manifest.token, Ordering::SeqCst);
        let since = match manifest.whole_since_us {
            Some(since) => Some(since),
            None => self.say_since(manifest).await.ok().flatten(),
        };
        if let Some(since) = since {
            self.whole_since_us.store(since, Ordering::SeqCst);
        }
    }

    /// Writes since when every call is known. `None`: another gateway has just written a manifest.
    async fn say_since(&self, manifest: &Manifest) -> Result<Option<i64>, Error> {
        let since = self.server.now().as_microsecond();
        let next = Manifest {
            whole_since_us: Some(since),
            ..manifest.clone()
        };
        let is_said = self.swap_manifest(Some(manifest), &next).await?;
        Ok(is_said.then_some(since))
    }

    /// Drops a prepared acceptance, which is another gateway's by now, or over.
    pub(super) fn forget_acceptance(&self) {
        lock(&self.prepared).take();
    }

    /// A time until which the store surely has everything, as far as this process has seen it whole.
    pub(super) fn whole_until(&self) -> Option<Timestamp> {
        lock(&self.moments).until()
    }

    async fn sight(&self) -> Result<Sight, Error> {
        let manifest = self.manifest().await?;
        let marks = self.marks().await?;
        let mut sight = Sight {
            manifest,
            tokens: self
                .server
                .link
                .ask(&command("HGETALL", keys::tokens()))
                .await?,
            ..Sight::default()
        };
        for (partition, marks) in Partition::all().zip(marks) {
            for (gateway, count) in marks.writes {
                sight.writes.count(&gateway, partition, count);
            }
            sight.epochs.push(marks.epoch);
        }
        sight.forgotten = self
            .gateways
            .last_counts(self.server.memory.all_writes().absent_from(&sight.writes))
            .await?;
        Ok(sight)
    }

    /// Sets up a new Redis. Several gateways may do it at once.
    async fn begin(&self, manifest: Manifest) -> Result<(), Error> {
        let key = manifest_key();
        let manifest = Manifest {
            whole_since_us: Some(self.server.now().as_microsecond()),
            ..manifest
        };
        let text = serde_json::to_string(&manifest).map_err(unreadable)?;
        self.server
            .link
            .ask::<()>(&command("SET", (&key, text, "NX")))
            .await?;
        // The first gateway has chosen the epoch.
        let Some(chosen) = self.manifest().await? else {
            return Ok(());
        };
        self.mark_all("", &chosen.epoch).await?;
        // Unless another gateway has found a loss in the meantime. An acceptance is completed only by its own gateway.
        if !chosen.complete && chosen.follows.is_empty() {
            let complete = Manifest {
                complete: true,
                ..chosen.clone()
            };
            self.swap_manifest(Some(&chosen), &complete).await?;
        }
        Ok(())
    }

    /// Accepts a loss: begins a new epoch, as the successor of the old one.
    pub(super) async fn accept(&self, reason: &str) -> Result<(), Error> {
        let prepared = lock(&self.prepared).take();
        let mut manifest = match prepared {
            Some(manifest) => manifest,
            None => self.prepare(reason).await?,
        };
        *lock(&self.prepared) = None;
        let sight = self.sight().await?;
        let prepared = manifest.clone();
        manifest.complete = true;
        let sight = Sight {
            manifest: Some(manifest.clone()),
            ..sight
        };
        let found = loss::compare(&sight, &manifest.epoch, &self.server.memory.all_writes());
        if found != Finding::Whole || !self.swap_manifest(Some(&prepared), &manifest).await? {
            return Err(Error::Refused(NOT_ALONE.into()));
        }
        self.server.memory.adopt(&manifest.epoch, sight);
        lock(&self.moments).begin_anew();
        Ok(())
    }

    /// Prepares the new epoch, which counts only once its manifest is complete.
    pub(super) async fn prepare(&self, reason: &str) -> Result<Manifest, Error> {
        self.restorer.put_all_back().await?;
        let sight = self.sight().await?;
        let remembered = self.server.memory.epoch();
        let before = sight.manifest.as_ref();
        if remembered.is_empty() && before.is_none() {
            let why = "no gateway has met this store with these watermarks: run it where a gateway's watermarks are";
            return Err(Error::Refused(why.into()));
        }
        let mut epochs: Vec<&str> = Vec::new();
        if let Some(before) = before {
            epochs.extend(before.follows.iter().map(String::as_str));
            epochs.push(&before.epoch);
        }
        epochs.push(&remembered);
        let mut manifest = Manifest::after(&epochs, reason, false);
        let now = self.server.now().as_microsecond();
        // Tokens that no gateway remembers were not ahead of the clock either.
        manifest.token = self
            .server
            .memory
            .highest_token()
            .max(sight.token())
            .max(now.unsigned_abs());
        manifest.whole_since_us = Some(now);
        if !self.swap_manifest(before, &manifest).await? {
            return Err(Error::Refused(NOT_ALONE.into()));
        }
        let epoch = manifest.epoch.clone();
        self.mark_all("*", &epoch).await?;
        self.whole_since_us.store(now, Ordering::SeqCst);
        self.server.memory.adopt(&epoch, self.sight().await?);
        lock(&self.moments).begin_anew();
        *lock(&self.prepared) = Some(manifest.clone());
        Ok(manifest)
    }

    /// Whether an operator is about to accept a loss here.
    ///
    /// Until that is done this process may change documents.
    pub(super) fn is_accepting(&self) -> bool {
        lock(&self.prepared).is_some()
    }

    /// The marks of all partitions.
    async fn marks(&self) -> Result<Vec<Marks>, Error> {
        let names = Partition::all().map(Partition::marks).collect();
        let marks = self.server.link.get_all(names).await?;
        let read = |marks: Option<Vec<u8>>| Marks::read(&marks.unwrap_or_default());
        Ok(marks.into_iter().map(read).collect())
    }

    /// Writes a partition's epoch, if it has not changed. Answers whether it did.
    async fn mark(&self, partition: Partition, seen: &str, epoch: &str) -> Result<bool, Error> {
        let mut run = Run::new(&self.server.scripts.mark);
        run.key(partition.marks()).arg((seen, epoch));
        Ok(self.server.run(&run).await?.word == "done")
    }

    async fn mark_all(&self, seen: &str, epoch: &str) -> Result<(), Error> {
        let mark = |partition| self.mark(partition, seen, epoch);
        try_join_all(Partition::all().map(mark)).await.map(drop)
    }

    async fn manifest(&self) -> Result<Option<Manifest>, Error> {
        parse(
            self.server
                .link
                .ask(&command("GET", manifest_key()))
                .await?,
        )
    }

    /// Writes the manifest if it still is `before`. Answers whether it did.
    async fn swap_manifest(
        &self,
        before: Option<&Manifest>,
        next: &Manifest,
    ) -> Result<bool, Error> {
        let found: Option<Vec<u8>> = self
            .server
            .link
            .ask(&command("GET", manifest_key()))
            .await?;
        if parse(found.clone())?.as_ref() != before {
            return Ok(false);
        }
        let mut run = Run::new(&self.server.scripts.swap);
        run.key(manifest_key()).arg(found.unwrap_or_default());
        run.arg(serde_json::to_string(next).map_err(unreadable)?);
        Ok(self.server.run(&run).await?.word == "done")
    }
}

fn parse(manifest: Option<Vec<u8>>) -> Result<Option<Manifest>, Error> {
    manifest
        .map(|text| serde_json::from_slice(&text))
        .transpose()
        .map_err(unreadable)
}

fn manifest_key() -> String {
    Partition::FIRST.key("manifest")
}
