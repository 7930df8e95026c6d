//! Forgets gateways that are gone, so that the marks do not grow for ever.
//!
//! `loss.rs` says why that hides no loss.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::answer::Answer;
use super::keys::{self, Partition};
use super::loss::{Sight, Writes};
use super::scripts::command;
use super::server::Server;
use crate::store::Error;
use crate::store::lock::lock;

/// How often a gateway announces itself.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// How long a gateway is silent before it is watched.
const GONE_AFTER_US: i64 = 3_600 * 1_000_000;
/// Most gateways that one script forgets: so many take a few milliseconds.
const AT_ONCE: usize = 100;
/// The field with the highest token of all forgotten gateways.
pub(super) const FORGOTTEN: &str = "forgotten";

/// Forgets gateways that are gone.
pub(super) struct Gateways {
    server: Arc<Server>,
    /// How long a gateway that seems gone is watched.
    patience: Duration,
    /// When this gateway last announced itself.
    said_hello: Mutex<Option<Instant>>,
    /// Gateways that seem gone: the time at which each last announced itself, and since when it is watched.
    watched: Mutex<HashMap<String, (f64, Instant)>>,
}

impl Gateways {
    pub(super) fn new(server: Arc<Server>, patience: Duration) -> Self {
        Self {
            server,
            patience,
            said_hello: Mutex::default(),
            watched: Mutex::default(),
        }
    }

    /// Announces this gateway, and forgets others that have been silent for long.
    ///
    /// Call it only with a sight in which no data is missing. A failed step is tried again after the next look.
    pub(super) async fn forget_gone(&self, sight: &Sight) {
        let forgotten = async {
            self.say_hello(sight).await?;
            self.come_back(sight).await?;
            let since = self.server.now().as_microsecond() - GONE_AFTER_US;
            let ask = command(
                "ZRANGEBYSCORE",
                (
                    keys::seen(),
                    "-inf",
                    since,
                    "WITHSCORES",
                    "LIMIT",
                    0,
                    2 * AT_ONCE,
                ),
            );
            let overdue: Vec<(String, f64)> = self.server.link.ask_quietly(&ask).await?;
            self.forget_these(&self.still_gone(overdue), sight).await
        };
        let forgotten: Result<(), Error> = forgotten.await;
        if let Err(error) = forgotten {
            tracing::warn!(%error, "gateways that are gone could not be forgotten yet");
        }
    }

    /// The gateways that stayed silent for all the time that this one watched them.
    ///
    /// If a clock was set, all gateways seem gone at once. Those that live announce themselves while they are watched.
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
    /// Also notes the present time for gateways that have marks and were never announced.
    async fn say_hello(&self, sight: &Sight) -> Result<(), Error> {
        let is_said = |said: Option<Instant>| said.is_some_and(|said| said.elapsed() < SAY_EVERY);
        let was_forgotten = sight
            .forgotten
            .gateways()
            .any(|gateway| gateway == self.server.memory.gateway());
        if !was_forgotten && is_said(*lock(&self.said_hello)) {
            return Ok(());
        }
        let now = self.server.now().as_microsecond();
        let own = self.server.memory.gateway();
        let all = sight
            .writes
            .gateways()
            .chain(sight.tokens.keys().map(String::as_str));
        let all = all.filter(|gateway| *gateway != FORGOTTEN).chain([&*own]);
        let all: Vec<(i64, &str)> = all.map(|gateway| (now, gateway)).collect();
        let others = command("ZADD", (keys::seen(), "NX", all));
        self.server.link.ask_quietly::<()>(&others).await?;
        let own = command("ZADD", (keys::seen(), now, own));
        self.server.link.ask_quietly::<()>(&own).await?;
        *lock(&self.said_hello) = Some(Instant::now());
        Ok(())
    }

    /// Goes on from this gateway's last counts, if it was forgotten.
    async fn come_back(&self, sight: &Sight) -> Result<(), Error> {
        let gateway = self.server.memory.gateway();
        for partition in Partition::all() {
            let was_forgotten = sight.forgotten.of(&gateway, partition) > 0;
            if was_forgotten && sight.writes.of(&gateway, partition) == 0 {
                let names = [partition.marks(), partition.marks()];
                let script = &self.server.scripts.come_back;
                let mut run = self.server.writing_to(script, partition, names);
                run.key(&partition.last_counts(&self.server.memory.epoch())[..]);
                self.server.run(&run).await?;
            }
        }
        Ok(())
    }

    /// Takes gateways out of the marks. Of those that have no marks any more, deletes the announcement.
    async fn forget_these(&self, overdue: &[String], sight: &Sight) -> Result<(), Error> {
        let own = self.server.memory.gateway();
        let counted: BTreeSet<&str> = sight
            .writes
            .gateways()
            .chain(sight.tokens.keys().map(String::as_str))
            .collect();
        let others = overdue.iter().filter(|gateway| **gateway != own);
        let (there, gone): (Vec<&String>, Vec<&String>) =
            others.partition(|gateway| counted.contains(gateway.as_str()));
        if !gone.is_empty() {
            let unseen = command("ZREM", (keys::seen(), &gone));
            self.server.link.ask_quietly::<()>(&unseen).await?;
            tracing::info!(
                gateways = gone.len(),
                "gateways that are gone were forgotten"
            );
        }
        let some = &there[..there.len().min(AT_ONCE)];
        if !some.is_empty() {
            for partition in Partition::all() {
                if !self.take_out(some, partition, sight).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes gateways out of a partition's marks, except those whose count has changed.
    ///
    /// False if the script is not loaded yet or finds data missing. The next look finds that, too.
    async fn take_out(
        &self,
        gone: &[&String],
        partition: Partition,
        sight: &Sight,
    ) -> Result<bool, Error> {
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
        let tokens = if is_first {
            keys::tokens()
        } else {
            partition.marks()
        };
        let names = [tokens.clone(), tokens];
        let mut run =
            self.server
                .writing_to(&self.server.scripts.forget_gateways, partition, names);
        run.key(&partition.last_counts(&self.server.memory.epoch())[..]);
        run.arg(if is_first { FORGOTTEN } else { "" }).arg(counted);
        let Some(answer) = self.server.link.run_if_loaded(&run).await? else {
            return Ok(false);
        };
        let answer = Answer::read(answer)?;
        self.server.saw_count(partition, &answer, 0);
        Ok(answer.word == "done")
    }

    /// The last counts of these gateways in the present epoch.
    ///
    /// Must be read after the counts: a gateway whose count is gone by then has its last count already.
    pub(super) async fn last_counts(&self, gateways: Vec<String>) -> Result<Writes, Error> {
        let mut last = Writes::default();
        if gateways.is_empty() {
            return Ok(last);
        }
        let epoch = self.server.memory.epoch();
        // The older hash is read second: counts that move into it meanwhile were read in the newer one.
        for generation in [0, 1] {
            let ask = |partition: Partition| {
                let key = &partition.last_counts(&epoch)[generation];
                command("HMGET", (key, &gateways))
            };
            let found: Vec<Vec<Option<u64>>> = self.server.link.ask_each(ask).await?;
            for (partition, counts) in Partition::all().zip(found) {
                for (gateway, count) in gateways.iter().zip(counts) {
                    last.count(gateway, partition, count.unwrap_or(0));
                }
            }
        }
        Ok(last)
    }
}
