//! Gateways that are gone are forgotten, so that thousands of past ones leave no trace in what each look reads. Why that
//! hides no loss is said in `loss`.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::answer::{Answer, unreadable};
use super::keys::{self, Partition};
use super::loss::{Sight, Writes};
use super::scripts::command;
use super::server::Server;
use crate::store::Error;
use crate::store::lock::lock;

/// How often a gateway says that it is there.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// A gateway that was not there for this long is forgotten.
const GONE_AFTER_US: i64 = 3_600 * 1_000_000;
/// Gateways that are forgotten in one go. One script about so many takes a few milliseconds.
const AT_ONCE: usize = 100;
/// Among the tokens: the highest of all forgotten gateways.
pub(super) const FORGOTTEN: &str = "forgotten";

/// Forgets gateways that are gone.
pub(super) struct Gateways {
    server: Arc<Server>,
    /// For how long a gateway that seems to be gone is watched.
    patience: Duration,
    /// When this gateway last said that it is there.
    said_hello: Mutex<Option<Instant>>,
    /// Gateways that seem to be gone: when they were there last, and since when that is watched.
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

    /// Says that this gateway is there, and forgets those that have not been for long. Nothing is missing in what it is
    /// shown. What fails is tried again with the next look.
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

    /// Gateways that were silent for the whole time in which this one watched them.
    ///
    /// A clock that was set makes all of them seem to be gone at once; those that are there say so in that time.
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

    /// Once a minute, and if this gateway was forgotten. A gateway of which it was never written when it was there counts as there now.
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

    /// If this gateway was forgotten while it was away, it goes on from its last counts.
    async fn come_back(&self, sight: &Sight) -> Result<(), Error> {
        let gateway = self.server.memory.gateway();
        for partition in Partition::all() {
            let last = sight.forgotten.of(&gateway, partition);
            if last > 0 && sight.writes.of(&gateway, partition) == 0 {
                let set = command("HSETNX", (partition.writes(), &gateway, last));
                self.server.link.ask_quietly::<()>(&set).await?;
            }
        }
        Ok(())
    }

    /// Takes out those that are still counted; what was said of those that are not is deleted.
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
            // Begins with the first one, where the last counts are written down.
            for partition in Partition::all() {
                if !self.take_out(some, partition, sight).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes gateways out of a partition's counters, as far as these have not changed. False if the script is not loaded
    /// yet, or finds that data is missing, which the next look does, too.
    async fn take_out(
        &self,
        gone: &[&String],
        partition: Partition,
        sight: &Sight,
    ) -> Result<bool, Error> {
        let is_first = partition == Partition::FIRST;
        let tokens = if is_first {
            keys::tokens()
        } else {
            partition.writes()
        };
        let names = [tokens.clone(), tokens];
        let mut run =
            self.server
                .writing_to(&self.server.scripts.forget_gateways, partition, names);
        run.arg(if is_first { FORGOTTEN } else { "" });
        for gateway in gone {
            run.arg(*gateway).arg(sight.writes.of(gateway, partition));
            if is_first {
                let last =
                    serde_json::to_string(&sight.writes.all_of(gateway)).map_err(unreadable)?;
                run.key(keys::last_counts(&self.server.memory.epoch(), gateway))
                    .arg(last);
            } else {
                run.arg("");
            }
        }
        let Some(answer) = self.server.link.run_if_loaded(&run).await? else {
            return Ok(false);
        };
        let answer = Answer::read(answer)?;
        self.server.saw_count(partition, &answer, 0);
        Ok(answer.word == "done")
    }

    /// What was written down of these gateways when they were forgotten in the epoch that this one knows.
    pub(super) async fn last_counts(&self, gateways: Vec<String>) -> Result<Writes, Error> {
        let mut last = Writes::default();
        if gateways.is_empty() {
            return Ok(last);
        }
        let epoch = self.server.memory.epoch();
        let ask = |gateway: &String| command("GET", keys::last_counts(&epoch, gateway));
        let found: Vec<Value> = self
            .server
            .link
            .ask_many(gateways.iter().map(ask).collect())
            .await?;
        for (gateway, text) in gateways.iter().zip(found) {
            let text: Option<Vec<u8>> = redis::from_redis_value(text).map_err(unreadable)?;
            let Some(text) = text else { continue };
            let counts: Vec<u64> = serde_json::from_slice(&text).map_err(unreadable)?;
            for (partition, count) in Partition::all().zip(counts) {
                last.count(gateway, partition, count);
            }
        }
        Ok(last)
    }
}
