//! Forgets gateways that are gone, so that the loss counters do not grow for ever.
//!
//! `loss.rs` explains why that hides no loss.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tokio::try_join;

use super::abilities;
use super::{Sight, Writes};
use crate::keys::{self, Partition};
use crate::link::answer::Answer;
use crate::scripts::command;
use crate::server::Server;
use oncegate_store::Result;
use oncegate_store::lock::lock;

/// How often a gateway announces itself.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(60);
/// How long a gateway is silent before it is watched.
const GONE_AFTER_US: i64 = 3_600 * 1_000_000;
/// How many gateways one script forgets at most, which takes a few milliseconds.
const AT_ONCE: usize = 100;
/// The field with the highest token of all forgotten gateways.
const FORGOTTEN: &str = "forgotten";

/// Forgets gateways that are gone.
pub(crate) struct Gateways {
    server: Arc<Server>,
    /// How long a gateway that seems gone is watched.
    patience: Duration,
    /// When this gateway last announced itself.
    announced_at: Mutex<Option<Instant>>,
    /// Gateways that seem gone: when each last announced itself, and since when it is watched.
    watched: Mutex<HashMap<String, (f64, Instant)>>,
}

impl Gateways {
    pub(crate) fn new(server: Arc<Server>, patience: Duration) -> Self {
        Self {
            server,
            patience,
            announced_at: Mutex::default(),
            watched: Mutex::default(),
        }
    }

    /// Announces this gateway, and forgets others that have been silent for long.
    ///
    /// Call it only with a sight in which no data is missing. A failed step is tried again after the next inspection.
    pub(crate) async fn forget_gone(&self, sight: &Sight) {
        let forgotten: Result<()> = async {
            let come_back = async {
                self.announce(sight).await?;
                self.come_back(sight).await
            };
            let since = self.server.now().as_microsecond() - GONE_AFTER_US;
            let limit = ("LIMIT", 0, 2 * AT_ONCE);
            let range = (keys::seen(), "-inf", since, "WITHSCORES", limit);
            let overdue = self.server.link.ask_quietly("ZRANGEBYSCORE", range);
            let ((), overdue) = try_join!(come_back, overdue)?;
            self.forget_these(&self.still_gone(overdue), sight).await
        }
        .await;
        if let Err(error) = forgotten {
            let text = "gateways that are gone could not be forgotten yet";
            if let Some(left_out) = self.server.repeats.note(text) {
                tracing::warn!(%error, left_out, "{text}");
            }
        }
    }

    /// The gateways that stayed silent for all the time that this gateway watched them.
    ///
    /// If a clock was set, all gateways seem gone at once. Live ones announce themselves while they are watched.
    fn still_gone(&self, overdue: Vec<(String, f64)>) -> Vec<String> {
        let mut watched = lock(&self.watched);
        let before = std::mem::take(&mut *watched);
        for (gateway, last) in overdue {
            let known = before.get(&gateway).filter(|(seen, _)| *seen == last);
            let since = known.map_or_else(Instant::now, |(_, since)| *since);
            watched.insert(gateway, (last, since));
        }
        let gone = watched
            .iter()
            .filter(|(_, (_, since))| since.elapsed() >= self.patience);
        gone.map(|(gateway, _)| gateway.clone()).collect()
    }

    /// Announces this gateway once a minute, and at once if it was forgotten.
    ///
    /// Also notes the present time for gateways that have loss counters and were never announced.
    async fn announce(&self, sight: &Sight) -> Result<()> {
        if self.server.memory.is_visitor() || self.server.has_left.load(Ordering::Relaxed) {
            return Ok(());
        }
        let own = self.server.memory.gateway();
        let was_forgotten = sight.forgotten.gateways().any(|gateway| gateway == own);
        let is_recent = |at: &Instant| at.elapsed() < ANNOUNCE_EVERY;
        if !was_forgotten && lock(&self.announced_at).as_ref().is_some_and(is_recent) {
            return Ok(());
        }
        let (link, now) = (&self.server.link, self.server.now().as_microsecond());
        let all = sight.gateways().filter(|gateway| *gateway != FORGOTTEN);
        let all: Vec<_> = all.chain([&*own]).map(|gateway| (now, gateway)).collect();
        let others = (keys::seen(), "NX", all);
        let own = (keys::seen(), now, &own);
        try_join!(
            link.ask_quietly::<()>("ZADD", others),
            link.ask_quietly::<()>("ZADD", own),
            abilities::announce(&self.server)
        )?;
        *lock(&self.announced_at) = Some(Instant::now());
        Ok(())
    }

    /// Goes on from this gateway's last counts, if it was forgotten.
    async fn come_back(&self, sight: &Sight) -> Result<()> {
        let gateway = self.server.memory.gateway();
        for partition in Partition::all() {
            let was_forgotten = sight.forgotten.of(&gateway, partition) > 0;
            if was_forgotten && sight.writes.of(&gateway, partition) == 0 {
                let keys = [partition.counters(), partition.counters()];
                let script = &self.server.scripts.come_back;
                let last = partition.last_counts(&self.server.memory.epoch());
                let run = self.server.writing_two(script, partition, keys);
                self.server.run(run.key(&last)).await?;
            }
        }
        Ok(())
    }

    /// Takes gateways out of the loss counters, or deletes the announcements of those that have no loss counters any more.
    async fn forget_these(&self, overdue: &[String], sight: &Sight) -> Result<()> {
        let own = self.server.memory.gateway();
        let counted: BTreeSet<&str> = sight.gateways().collect();
        let others = overdue.iter().filter(|gateway| **gateway != own);
        let (counted, gone): (Vec<&String>, Vec<&String>) =
            others.partition(|gateway| counted.contains(gateway.as_str()));
        if !gone.is_empty() {
            let announcements = (keys::seen(), &gone);
            let link = &self.server.link;
            link.ask_quietly::<()>("ZREM", announcements).await?;
            abilities::forget(&self.server, &gone).await?;
            let gateways = gone.len();
            tracing::info!(gateways, "gateways that are gone were forgotten");
        }
        let some = &counted[..counted.len().min(AT_ONCE)];
        if !some.is_empty() {
            for partition in Partition::all() {
                if !self.take_out(some, partition, sight).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes gateways out of a partition's loss counters, except those whose count has changed.
    ///
    /// False if the script is not loaded yet or finds data missing, which the next inspection finds, too.
    async fn take_out(
        &self,
        gone: &[&String],
        partition: Partition,
        sight: &Sight,
    ) -> Result<bool> {
        let is_first = partition == Partition::FIRST;
        let counted = gone
            .iter()
            .map(|gateway| (*gateway, sight.writes.of(gateway, partition)));
        // The first partition has the tokens of all gateways.
        let counted: Vec<(&String, u64)> = counted
            .filter(|(_, count)| is_first || *count > 0)
            .collect();
        if counted.is_empty() {
            return Ok(true);
        }
        let (tokens, forgotten) = if is_first {
            (keys::tokens(), FORGOTTEN)
        } else {
            (partition.counters(), "")
        };
        let script = &self.server.scripts.forget_gateways;
        let run = self
            .server
            .writing_two(script, partition, [tokens.clone(), tokens])
            .key(&partition.last_counts(&self.server.memory.epoch()))
            .arg((forgotten, counted));
        let Some(answer) = self.server.link.run_if_loaded(&run).await? else {
            return Ok(false);
        };
        let answer = Answer::read(answer)?;
        self.server.saw_count(partition, &answer, 0);
        Ok(answer.word == "done")
    }

    /// The last counts of these gateways in the present epoch.
    ///
    /// Must be read after the counts: then a gateway whose count is gone has its last count already.
    pub(crate) async fn last_counts(&self, gateways: Vec<String>) -> Result<Writes> {
        let mut last = Writes::default();
        if gateways.is_empty() {
            return Ok(last);
        }
        let epoch = self.server.memory.epoch();
        // The older hash is read second: counts that move into it meanwhile were read in the newer one.
        for generation in [0, 1] {
            let counts = |partition: Partition| {
                let key = &partition.last_counts(&epoch)[generation];
                command("HMGET", (key, &gateways))
            };
            let found: Vec<Vec<Option<u64>>> = self.server.link.ask_each(counts).await?;
            for (partition, counts) in Partition::all().zip(found) {
                for (gateway, count) in gateways.iter().zip(counts) {
                    last.count(gateway, partition, count.unwrap_or(0));
                }
            }
        }
        Ok(last)
    }
}
