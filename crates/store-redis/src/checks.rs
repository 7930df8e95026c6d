//! The inspection of a Redis: reachable, durable, permissions, and loss of data.
//!
//! Runs at the start, on every trouble with the connection, and every second.

pub(crate) mod durability; // how durable a Redis is
pub(crate) mod selftest; // a trial of the scripts

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use redis::{FromRedisValue, PushInfo, PushKind};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep};
use tokio::{join, try_join};

use self::durability::{Node, Verdict};
use super::scripts::command;
use super::server::Server;
use super::target::{Kind, Settings};
use crate::link::answer::unreadable;
use crate::link::subscriber::Subscriber;
use crate::loss::epoch::Epochs;
use oncegate_store::shared::clock::local_time;
use oncegate_store::shared::demand::{Class, Demand};
use oncegate_store::shared::inspection::{Inspects, PAUSE, Settling};
use oncegate_store::watermarks::Need;
use oncegate_store::{Error, Readiness, Reason, Result};

/// How often an unreachable or unfit Redis is inspected.
const TRY_EVERY: Duration = Duration::from_millis(250);
/// So little of the time for other gateways is awaited during an inspection, which then opens the store.
const NEARLY: Duration = Duration::from_millis(500);
/// After so many failed inspections in a row the connection is made anew.
const PATIENCE: u32 = 3;

/// Inspects a Redis, all of it each time.
pub(super) struct Watch {
    server: Arc<Server>,
    pub(super) epochs: Epochs,
    turn: Mutex<()>,
    pub(super) subscriber: Subscriber,
    settings: Settings,
    settling: Settling<String>,
    /// How many inspections in a row have failed.
    failures: AtomicU32,
}

#[async_trait]
impl Inspects for Watch {
    fn trouble(&self) -> Arc<Notify> {
        self.server.link.trouble.clone()
    }

    fn pause(&self) -> Duration {
        let every = self.settings.timings.redis_look_every;
        match self.settling.left() {
            // The inspection waits for the rest itself.
            Some(left) if left <= NEARLY => PAUSE,
            _ if self.server.status.is_open() => every,
            _ => TRY_EVERY.min(every),
        }
    }

    fn turn(&self) -> &Mutex<()> {
        &self.turn
    }

    async fn inspect_in_turn(&self) {
        let (server, closings) = (&self.server, self.server.status.closings());
        let found = self.find_out().await;
        let failures = if found.is_ok() {
            0
        } else {
            self.failures.load(Ordering::Relaxed) + 1
        };
        let is_saved = server.memory.keep(Need::IfOld).await;
        let (target, trouble, seen) =
            (&server.link.target, &server.link.trouble, &self.epochs.seen);
        let status = &server.status;
        status.conclude(target, found, closings, is_saved, trouble, seen);
        server.looks.send_replace(());
        let is_over = failures >= PATIENCE;
        if is_over {
            server.link.disconnect();
        }
        // The next one comes over a new connection, so one failure less is needed.
        let counted = if is_over { 1 } else { failures };
        self.failures.store(counted, Ordering::Relaxed);
    }
}

impl Watch {
    pub(super) fn new(server: Arc<Server>, settings: Settings) -> Self {
        Self {
            epochs: Epochs::new(server.clone(), settings.timings.redis_watch_gone),
            turn: Mutex::default(),
            subscriber: Subscriber::new(&server.link),
            server,
            settling: Settling::new(settings.timings.redis_others_look),
            settings,
            failures: 0.into(),
        }
    }

    async fn find_out(&self) -> Result<Readiness> {
        if !self.server.link.is_connected() {
            self.connect().await?;
        }
        // Far away every answer takes its time: what needs no other answer is asked at once.
        let (found, ()) = join!(self.look(), self.subscriber.subscribe());
        found
    }

    async fn look(&self) -> Result<Readiness> {
        let (clock_offset_us, nodes, default_user) =
            join!(self.compare_clocks(), self.ask_nodes(), self.default_user());
        let (clock_offset_us, nodes) = (clock_offset_us?, nodes?);
        let answered_at = Instant::now();
        let demand = Demand {
            durability: self.settings.durability,
            declared: self.settings.declared,
            clock_offset_us,
        };
        let Verdict { class, wait_for } = durability::judge(&nodes, demand);
        let Class {
            durability,
            mut reasons,
            mut warnings,
        } = class;
        self.server.barrier.demand(wait_for);
        let has_reason = |reasons: &[Reason], codes: &[&str]| {
            reasons.iter().any(|reason| codes.contains(&reason.code))
        };
        if has_reason(&reasons, &["role"]) {
            // Another server may be the master by now.
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
        let now = self.server.now().as_microsecond().unsigned_abs();
        reasons.extend(self.server.memory.tokens_ahead(now));
        if !has_reason(&reasons, &["role", "loading", "version"]) {
            if let Some(left) = self.settling.left().filter(|left| *left <= NEARLY) {
                sleep(left).await;
            }
            reasons.extend(self.epochs.look_for_loss().await?);
            reasons.extend(self.let_others_inspect(&servers, answered_at));
        }
        let trying = async {
            match reasons.is_empty() {
                true => self.server.try_scripts(&servers).await,
                false => None,
            }
        };
        let (untried, ()) = join!(trying, self.epochs.tidy_up());
        reasons.extend(untried);
        warnings.extend(default_user);
        warnings.extend(self.server.memory.exposed());
        Ok(Readiness {
            durability: Some(durability),
            reasons,
            warnings,
            ..Readiness::default()
        })
    }

    async fn connect(&self) -> Result<()> {
        let (status, trouble) = (self.server.status.clone(), self.server.link.trouble.clone());
        let hear = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                // The next server to answer may be another one, or the same with other data.
                let text = "the connection to Redis was lost";
                status.close_for(&Reason::new("disconnected", text));
                trouble.notify_one();
            }
        };
        let connected = self.server.link.connect(hear).await;
        connected.map_err(|error| Error::Refused(error.to_string()))?;
        self.subscriber.renew();
        Ok(())
    }

    /// Compares the masters' clocks with this machine's, to half of a round trip.
    ///
    /// The store's clock is the one that is furthest behind, so that a clock that is ahead ends nothing too early.
    /// Returns the largest offset in either direction.
    async fn compare_clocks(&self) -> Result<i64> {
        let asked = Instant::now();
        let answers = self.server.link.ask_masters(redis::cmd("TIME")).await?;
        let (here, took) = (local_time(), asked.elapsed());
        let mut offsets = Vec::new();
        for answer in answers {
            let time = <(i64, i64)>::from_redis_value(answer);
            offsets.push(offset_us(time.map_err(unreadable)?, here, took));
        }
        let smallest = offsets.iter().copied().min().unwrap_or(0);
        self.server.clock.set(smallest);
        let largest = offsets
            .into_iter()
            .max_by_key(|offset| offset.unsigned_abs());
        Ok(largest.unwrap_or(0))
    }

    async fn ask_nodes(&self) -> Result<Vec<Node>> {
        let link = &self.server.link;
        let settings = [
            "appendfsync",
            "no-appendfsync-on-rewrite",
            "min-replicas-to-write",
            "aof-load-truncated",
        ];
        let get = command("CONFIG", ("GET", &settings));
        let (infos, configs, cluster) = try_join!(
            link.ask_masters(redis::cmd("INFO")),
            link.ask_masters_if_allowed(get),
            self.ask_cluster(),
        )?;
        let mut configs = configs.into_iter().flatten();
        let fails_over = self.fails_over(infos.len(), cluster)?;
        let mut nodes = Vec::new();
        for info in infos {
            let info = String::from_redis_value(info).map_err(unreadable)?;
            let config = configs.next().map(HashMap::from_redis_value).transpose();
            nodes.push(Node {
                info: fields(&info),
                config: config.map_err(unreadable)?,
                fails_over,
            });
        }
        Ok(nodes)
    }

    /// The nodes of a cluster; `None` for one Redis.
    async fn ask_cluster(&self) -> Result<Option<String>> {
        let link = &self.server.link;
        if !link.target.is_cluster() {
            return Ok(None);
        }
        link.ask("CLUSTER", "NODES").await.map(Some)
    }

    /// Whether a failover may happen without an operator. `answered`: how many masters answered.
    fn fails_over(&self, answered: usize, cluster: Option<String>) -> Result<bool> {
        let link = &self.server.link;
        let Some(nodes) = cluster else {
            return Ok(matches!(link.target.kind, Kind::Sentinel { .. }));
        };
        let (masters, has_replicas) = of_cluster(&nodes);
        if masters != answered {
            // After a failover the connection may not know the new master, which was not inspected then.
            link.disconnect();
            let why = format!("of {masters} masters of the cluster {answered} answered");
            return Err(Error::Refused(why));
        }
        Ok(has_replicas)
    }

    /// Waits, after a restart or exchange of the server, until other gateways have inspected it.
    ///
    /// The server may have lost writes that only another gateway knows.
    ///
    /// `answered_at`: when these servers were there at the latest.
    fn let_others_inspect(&self, servers: &str, answered_at: Instant) -> Option<Reason> {
        let memory = &self.server.memory;
        let settled = Some(memory.settled_servers());
        self.settling.saw(servers.to_owned(), settled, answered_at);
        if self.settling.left().is_none() {
            memory.note_settled(servers);
            return None;
        }
        let text =
            "Redis was restarted or replaced: first every gateway checks whether it has lost data";
        Some(Reason::new("restarted", text))
    }

    /// The warning about a user with all permissions.
    async fn default_user(&self) -> Option<Reason> {
        let user: Result<String> = self.server.link.ask_quietly("ACL", "WHOAMI").await;
        let text = "the gateway is the user \"default\" of Redis; one that may do only what it needs is in config/redis.conf";
        (user.ok()? == "default").then(|| Reason::new("default_user", text))
    }
}

/// How far a server's clock is ahead, in microseconds: its answer to `TIME` came at `here`, and was awaited for so long.
fn offset_us((seconds, microseconds): (i64, i64), here: Timestamp, took: Duration) -> i64 {
    let half = i64::try_from(took.as_micros() / 2).unwrap_or(0);
    seconds * 1_000_000 + microseconds - (here.as_microsecond() - half)
}

/// How many masters with slots an answer to `CLUSTER NODES` names, and whether it names replicas.
fn of_cluster(nodes: &str) -> (usize, bool) {
    let nodes = nodes.lines().map(|line| line.split(' ').collect());
    let nodes: Vec<Vec<&str>> = nodes.collect();
    let has_flag = |node: &&Vec<&str>, flag| node.get(2).is_some_and(|flags| flags.contains(flag));
    // A node's slots stand after its first eight fields.
    let masters = nodes.iter().filter(|node| has_flag(node, "master"));
    let masters = masters.filter(|node| node.len() > 8).count();
    (masters, nodes.iter().any(|node| has_flag(&node, "slave")))
}

/// The run id of a server in its answer to `INFO`.
pub(super) fn run_id(info: &str) -> Option<String> {
    fields(info).remove("run_id")
}

/// The fields in an answer to `INFO`.
fn fields(text: &str) -> HashMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_clock_is_compared_with_the_middle_of_the_round_trip() {
        let here = Timestamp::from_microsecond(100_000_300).expect("a time");
        let took = Duration::from_micros(600);
        assert_eq!(offset_us((100, 0), here, took), 0);
        assert_eq!(offset_us((103, 7), here, took), 3_000_007);
        assert_eq!(offset_us((98, 999_999), here, took), -1_000_001);
    }

    /// A master without slots has no data, and is not asked.
    #[test]
    fn the_masters_of_a_cluster_are_those_with_slots() {
        let empty = "a 10.0.0.1:6379@16379 master - 0 1700000000000 4 connected\n";
        let masters = "b 10.0.0.2:6379@16379 myself,master - 0 0 1 connected 0-8191\n\
                       c 10.0.0.3:6379@16379 master - 0 1700000000000 2 connected 8192-16382 16383\n";
        let replica = "d 10.0.0.4:6379@16379 slave b 0 1700000000000 1 connected\n";
        assert_eq!(of_cluster(&[empty, masters].concat()), (2, false));
        assert_eq!(of_cluster(&[masters, empty, replica].concat()), (2, true));
    }
}
