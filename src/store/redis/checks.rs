//! The inspection of a Redis: reachable, durable, permissions, and loss of data.
//!
//! At the start, on every trouble with the connection, and every second.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use jiff::Timestamp;
use redis::{FromRedisValue, PushInfo, PushKind};
use tokio::time::{Instant, sleep};

use super::answer::unreadable;
use super::durability::{self, Demand, Node, Verdict};
use super::ears::Ears;
use super::epoch::Epochs;
use super::memory::{Need, TOKEN_LIMIT_US};
use super::scripts::command;
use super::server::{Server, local_time};
use super::status::{readiness, unreachable};
use super::target::Settings;
use crate::core::pace::Pace;
use crate::store::lock::lock;
use crate::store::{Durability, Error, Readiness, Reason};

/// How often it tries to reach a Redis that does not answer.
const TRY_EVERY: Duration = Duration::from_millis(250);
/// The shortest time between two inspections after trouble.
const PAUSE: Duration = Duration::from_millis(50);
/// Failed inspections in a row, until the connection is made anew.
const PATIENCE: u32 = 3;

/// Inspects a Redis, all of it each time.
pub(super) struct Watch {
    server: Arc<Server>,
    epochs: Arc<Epochs>,
    ears: Arc<Ears>,
    /// The least durability; below it nothing is claimed.
    durability: Durability,
    /// The declared durability, where CONFIG is not allowed.
    declared: Option<Durability>,
    pace: Pace,
    /// Since when there are other servers than before.
    met_at: Mutex<Option<Instant>>,
}

/// Inspects as long as a handle of the store is open.
pub(super) async fn keep_looking(store: Weak<Watch>) {
    let mut failures: u32 = 0;
    loop {
        let Some(watch) = store.upgrade() else { return };
        let (trouble, is_well) = (
            watch.server.link.trouble.clone(),
            watch.server.status.get().reasons.is_empty(),
        );
        let every = watch.pace.redis_look_every;
        drop(watch);
        let rest = if is_well { every } else { TRY_EVERY.min(every) };
        tokio::select! {
            () = sleep(rest) => {}
            () = trouble.notified() => sleep(PAUSE).await,
        }
        let Some(watch) = store.upgrade() else { return };
        failures = if watch.look_after().await {
            0
        } else {
            failures + 1
        };
        if failures >= PATIENCE {
            watch.server.link.disconnect();
            failures = 1;
        }
    }
}

impl Watch {
    pub(super) fn new(
        server: Arc<Server>,
        epochs: Arc<Epochs>,
        ears: Arc<Ears>,
        settings: Settings,
    ) -> Self {
        Self {
            server,
            epochs,
            ears,
            durability: settings.durability,
            declared: settings.declared,
            pace: settings.pace,
            met_at: Mutex::default(),
        }
    }

    /// One inspection of everything. Returns whether the Redis was reached.
    pub(super) async fn look_after(&self) -> bool {
        let closings = self.server.status.closings();
        let looked = self.look().await;
        let reached = looked.is_ok();
        let mut seen =
            looked.unwrap_or_else(|error| unreachable(format!("Redis is not reached: {error}")));
        if !self.server.save_watermarks(Need::IfOld).await {
            seen.reasons.push(Reason::new(
                "watermarks",
                "the file of watermarks cannot be written",
            ));
        }
        if self.server.status.closings() != closings && seen.reasons.is_empty() {
            // This look may have seen what was before.
            seen.reasons.push(Reason::new(
                "disconnected",
                "Redis has to be looked at once more",
            ));
            self.server.link.trouble.notify_one();
        }
        seen.lost_writes = self.epochs.lost_writes.load(Ordering::Relaxed);
        let whole_since_us =
            Some(self.epochs.whole_since_us.load(Ordering::SeqCst)).filter(|since| *since != 0);
        seen.whole_since = whole_since_us.and_then(|since| Timestamp::from_microsecond(since).ok());
        self.server.status.publish(seen, &self.server.link.target);
        self.server.looks.send_modify(|looks| *looks += 1);
        reached
    }

    async fn look(&self) -> Result<Readiness, Error> {
        if !self.server.link.is_connected() {
            self.connect().await?;
        }
        self.ears.hear_endings().await;
        let clock_offset_us = self.compare_clocks().await?;
        let nodes = self.ask_nodes().await?;
        let demand = Demand {
            durability: self.durability,
            declared: self.declared,
            clock_offset_us,
        };
        let Verdict {
            durability,
            mut reasons,
            mut warnings,
            wait_for,
        } = durability::judge(&nodes, demand);
        self.server.barrier.demand(wait_for);
        if reasons.iter().any(|reason| reason.code == "role") {
            // Another one may be the master by now.
            self.server.link.disconnect();
        }
        let mut servers: Vec<&str> = nodes
            .iter()
            .flat_map(|node| [node.info.get("run_id"), node.info.get("master_replid")])
            .flatten()
            .map(String::as_str)
            .collect();
        servers.sort_unstable();
        let servers = servers.concat();
        if self.server.memory.token()
            > self.server.now().as_microsecond().unsigned_abs() + TOKEN_LIMIT_US
        {
            reasons.push(Reason::new(
                "tokens_ahead",
                "fencing tokens are more than a day ahead of the clock",
            ));
        }
        if !reasons
            .iter()
            .any(|reason| matches!(reason.code, "role" | "loading" | "version"))
        {
            reasons.extend(self.epochs.look_for_loss().await?);
            reasons.extend(self.let_others_look(&servers));
        }
        if reasons.is_empty() {
            reasons.extend(self.server.try_scripts(&servers).await);
        }
        warnings.extend(self.who_are_we().await);
        warnings.extend(self.server.memory.exposed());
        Ok(readiness(Some(durability), reasons, warnings))
    }

    async fn connect(&self) -> Result<(), Error> {
        let (status, trouble) = (self.server.status.clone(), self.server.link.trouble.clone());
        let hear = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                // The next server to answer may be another one, or the same with other data.
                status.close_for(&Reason::new(
                    "disconnected",
                    "the connection to Redis was lost",
                ));
                trouble.notify_one();
            }
        };
        self.server
            .link
            .connect(hear)
            .await
            .map_err(|error| Error::Refused(error.to_string()))?;
        self.ears.is_cut_off();
        Ok(())
    }

    /// Compares the masters' clocks with this machine's, to half of a round trip.
    ///
    /// The clock that is furthest behind decides: a clock that is ahead ends nothing too early.
    /// Answers with the offset that is furthest off.
    async fn compare_clocks(&self) -> Result<i64, Error> {
        let asked = Instant::now();
        let answers = self.server.link.ask_masters(redis::cmd("TIME")).await?;
        let half = i64::try_from(asked.elapsed().as_micros() / 2).unwrap_or(0);
        let here = local_time().as_microsecond() - half;
        let offsets = answers.into_iter().map(|answer| {
            let (seconds, microseconds) =
                <(i64, i64)>::from_redis_value(answer).map_err(unreadable)?;
            Ok(seconds * 1_000_000 + microseconds - here)
        });
        let offsets = offsets.collect::<Result<Vec<i64>, Error>>()?;
        self.server.clock_offset_us.store(
            offsets.iter().copied().min().unwrap_or(0),
            Ordering::Relaxed,
        );
        Ok(offsets
            .into_iter()
            .max_by_key(|offset| offset.unsigned_abs())
            .unwrap_or(0))
    }

    async fn ask_nodes(&self) -> Result<Vec<Node>, Error> {
        let infos = self.server.link.ask_masters(redis::cmd("INFO")).await?;
        let settings = [
            "appendfsync",
            "no-appendfsync-on-rewrite",
            "min-replicas-to-write",
            "aof-load-truncated",
        ];
        let ask = command("CONFIG", ("GET", &settings));
        let configs = self.server.link.ask_masters_if_allowed(ask).await?;
        let mut configs: Vec<_> = configs.into_iter().flatten().map(Some).collect();
        configs.resize_with(infos.len(), || None);
        let fails_over = self.fails_over(infos.len()).await?;
        let nodes = infos.into_iter().zip(configs).map(|(info, config)| {
            let text = String::from_redis_value(info).map_err(unreadable)?;
            let config = config
                .map(HashMap::from_redis_value)
                .transpose()
                .map_err(unreadable)?;
            Ok(Node {
                info: fields(&text),
                config,
                fails_over,
            })
        });
        nodes.collect()
    }

    /// Whether a failover may happen without an operator. `answered`: how many masters answered.
    async fn fails_over(&self, answered: usize) -> Result<bool, Error> {
        if !self.server.link.target.is_cluster() {
            return Ok(self.server.link.target.fails_over());
        }
        let nodes: String = self.server.link.ask(&command("CLUSTER", "NODES")).await?;
        let nodes: Vec<Vec<&str>> = nodes
            .lines()
            .map(|line| line.split(' ').collect())
            .collect();
        let has_flag =
            |node: &&Vec<&str>, flag| node.get(2).is_some_and(|flags| flags.contains(flag));
        // Behind its state stand a node's slots.
        let masters = nodes
            .iter()
            .filter(|node| has_flag(node, "master") && node.len() > 8)
            .count();
        if masters != answered {
            // After a failover the connection may not know the new one, which was not looked at then.
            self.server.link.disconnect();
            let why = format!("of {masters} masters of the cluster {answered} answered");
            return Err(Error::Refused(why));
        }
        Ok(nodes.iter().any(|node| has_flag(&node, "slave")))
    }

    /// Waits, after a restart or exchange of the server, until other gateways have looked.
    ///
    /// It may have lost writes that only their gateway can miss.
    fn let_others_look(&self, servers: &str) -> Option<Reason> {
        let mut since = lock(&self.met_at);
        if self.server.memory.meet(servers) != servers {
            *since = Some(Instant::now());
        }
        let is_new = since.is_some_and(|since| since.elapsed() < self.pace.redis_others_look);
        is_new.then(|| {
            Reason::new(
                "restarted",
                "another Redis is there than before, or one that was started anew: every gateway looks first whether \
                 it has lost data",
            )
        })
    }

    /// The warning about a user with all permissions.
    async fn who_are_we(&self) -> Option<Reason> {
        let who: Result<String, Error> = self
            .server
            .link
            .ask_quietly(&command("ACL", "WHOAMI"))
            .await;
        let text = "the gateway is the user \"default\" of Redis; one that may do only what it needs is in config/redis.conf";
        (who.ok()? == "default").then(|| Reason::new("default_user", text))
    }
}

/// Which run of a server has answered INFO with this text.
pub(super) fn run_id(info: &str) -> Option<String> {
    fields(info).remove("run_id")
}

/// The fields of INFO.
fn fields(text: &str) -> HashMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}
