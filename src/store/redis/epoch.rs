//! The acts behind `loss`: begin an epoch, notice that it is gone, and begin the next one when an operator
//! accepts what is missing.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::try_join_all;
use redis::Value;

use super::answer::unreadable;
use super::gateways::Gateways;
use super::keys::{self, Partition};
use super::loss::{self, Finding, Manifest, Sight};
use super::put_back::Restorer;
use super::scripts::{Run, command};
use super::server::Server;
use crate::store::lock::lock;
use crate::store::{Error, LOST_DATA, Reason};

/// How often a look begins again because another gateway has written the manifest meanwhile.
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

/// The epochs of a store's data, and whether it still has what was written to it.
pub(super) struct Epochs {
    server: Arc<Server>,
    restorer: Restorer,
    gateways: Gateways,
    pub(super) lost_writes: AtomicU64,
    /// This process has found its own data here.
    was_whole: AtomicBool,
    /// Since when every call is known, in microseconds; 0: that was not seen yet.
    pub(super) whole_since_us: AtomicI64,
    /// What is remembered has been put back since the loss was noticed.
    is_mended: AtomicBool,
    /// The epoch of a prepared acceptance; until it is accepted it closes the store for all gateways.
    prepared: Mutex<Option<Manifest>>,
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
            prepared: Mutex::default(),
        }
    }

    /// Compares what is there with what is remembered, puts back what was lost and is still known, and
    /// says what is missing.
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

    /// Goes on (to the next try) if the manifest has changed meanwhile: an acceptance that has just ended must not be taken back by a look
    /// that began before it.
    async fn compare_once(&self) -> Result<ControlFlow<Option<Reason>>, Error> {
        let (epoch, known) = (self.server.memory.epoch(), self.server.memory.all_writes());
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

    /// Closes the store for the other gateways, too, also for those that have begun to use what is left of it: they
    /// may not know what is missing. The manifest comes first: it says which epoch an acceptance has to follow.
    /// `before` is the manifest from which the loss was judged.
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

    /// Makes every claim be refused until a loss is accepted. Answers whether the manifest says so after that, too: if
    /// not, the store was emptied once more, or another gateway has begun with it or accepts the loss.
    ///
    /// An acceptance that begins meanwhile is not undone: it writes the manifest first, and then an epoch that was not
    /// there when the partition was read. `epoch`: a gateway without one has no manifest to write.
    async fn close_partitions(&self, epoch: &str) -> Result<bool, Error> {
        let is_closed = |manifest: Option<Manifest>| {
            manifest.map_or(epoch.is_empty(), |manifest| !manifest.lost.is_empty())
        };
        for _ in 0..LOOKS {
            let epochs = |partition: Partition| command("GET", partition.epoch());
            let epochs: Vec<Option<Vec<u8>>> = self.server.link.ask_each(epochs).await?;
            if !is_closed(self.manifest().await?) {
                return Ok(false);
            }
            let close = async |(partition, epoch): (Partition, Option<Vec<u8>>)| {
                let mut run = Run::new(&self.server.scripts.swap);
                run.key(partition.epoch()).arg(epoch.unwrap_or_default());
                Ok::<_, Error>(self.server.run(run.arg("lost")).await?.word == "done")
            };
            let closed = try_join_all(Partition::all().zip(epochs).map(close)).await?;
            if closed.into_iter().all(|is_done| is_done) {
                return Ok(is_closed(self.manifest().await?));
            }
        }
        Ok(false)
    }

    /// Lets the other gateways know up to where this one gives tokens: they remember it in case that the
    /// store and this gateway are lost together.
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

    /// Reads from the manifest since when every call is known, and the highest accepted token. An older store gets now; where that
    /// cannot be written, it is not known yet, and nothing is undone on a guess.
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

    /// `None`: another gateway has just written another manifest.
    async fn say_since(&self, manifest: &Manifest) -> Result<Option<i64>, Error> {
        let since = self.server.now().as_microsecond();
        let next = Manifest {
            whole_since_us: Some(since),
            ..manifest.clone()
        };
        let is_said = self.swap_manifest(Some(manifest), &next).await?;
        Ok(is_said.then_some(since))
    }

    /// An acceptance that broke off here is another's affair by now, or over.
    pub(super) fn forget_acceptance(&self) {
        lock(&self.prepared).take();
    }

    async fn sight(&self) -> Result<Sight, Error> {
        let manifest = self.manifest().await?;
        let epochs = |partition: Partition| command("GET", partition.epoch());
        let epochs: Vec<Option<String>> = self.server.link.ask_each(epochs).await?;
        let writes = |partition: Partition| command("HGETALL", partition.writes());
        let writes: Vec<HashMap<String, u64>> = self.server.link.ask_each(writes).await?;
        let mut sight = Sight {
            manifest,
            epochs: epochs.into_iter().map(Option::unwrap_or_default).collect(),
            tokens: self
                .server
                .link
                .ask(&command("HGETALL", keys::tokens()))
                .await?,
            ..Sight::default()
        };
        for (partition, counts) in Partition::all().zip(writes) {
            for (gateway, count) in counts {
                sight.writes.count(&gateway, partition, count);
            }
        }
        sight.forgotten = self
            .gateways
            .last_counts(self.server.memory.all_writes().absent_from(&sight.writes))
            .await?;
        Ok(sight)
    }

    /// Sets up a Redis that was not used before. Several gateways may do it at once.
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
        let set = |partition: Partition| command("SET", (partition.epoch(), &chosen.epoch, "NX"));
        self.server.link.ask_each::<Value>(set).await?;
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

    /// An operator accepts what is missing: a new epoch begins, which gateways that remember the old one know
    /// as its successor.
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
        Ok(())
    }

    /// Begins the new epoch, but no gateway goes by it as long as its manifest is not complete.
    pub(super) async fn prepare(&self, reason: &str) -> Result<Manifest, Error> {
        self.restorer.put_all_back().await?;
        let sight = self.sight().await?;
        let remembered = self.server.memory.epoch();
        let before = sight.manifest.as_ref();
        if remembered.is_empty() && before.is_none() {
            let why =
                "nobody here has ever met this store: run it where a gateway's watermarks are";
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
        self.server
            .link
            .ask_each::<Value>(|partition| command("SET", (partition.epoch(), &epoch)))
            .await?;
        self.whole_since_us.store(now, Ordering::SeqCst);
        self.server.memory.adopt(&epoch, self.sight().await?);
        *lock(&self.prepared) = Some(manifest.clone());
        Ok(manifest)
    }

    /// Whether an operator is about to accept a loss here: until that is done this process may change documents.
    pub(super) fn is_accepting(&self) -> bool {
        lock(&self.prepared).is_some()
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
