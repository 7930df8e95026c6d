//! What is looked at at the start, on every trouble with the connection, and every second: whether
//! the Redis is there, what it is worth, whether its scripts work, and whether it has lost data.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

use jiff::Timestamp;
use redis::{FromRedisValue, PushInfo, PushKind, cmd};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::barrier::Barrier;
use super::durability::{self, Demand, Node, Verdict};
use super::keys::PARTITIONS;
use super::link::Link;
use super::memory::{Memory, Need, TOKEN_LIMIT_US};
use super::scripts::Scripts;
use super::{Inner, OpenError, Redis, Settings, unreadable};
use crate::store::lock::{lock, read, write};
use crate::store::{Endings, Error, Readiness, Reason};

/// How often it is tried to reach a Redis that is not reached.
const TRY_EVERY: Duration = Duration::from_millis(250);
/// Trouble is looked at at once, but not more often than this.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a subscription may take.
const HEARD: Duration = Duration::from_secs(1);
/// How long a start waits for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// After so many looks in a row that failed, the connection is made anew.
const PATIENCE: u32 = 3;

impl Redis {
    /// Opens a store and looks at it. If it is not reached, or is not as it should be, nothing can be
    /// claimed until it is.
    ///
    /// # Errors
    /// The file of watermarks or the certificate authority cannot be had.
    pub async fn open(settings: Settings) -> Result<Self, OpenError> {
        let memory = Memory::open(&settings.watermarks, false)?;
        Self::over(settings, memory).await
    }

    /// Opens a store for one act of an operator, beside the gateway that the watermarks belong to.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn visit(settings: Settings) -> Result<Self, OpenError> {
        let memory = Memory::open(&settings.watermarks, true)?;
        Self::over(settings, memory).await
    }

    async fn over(settings: Settings, memory: Memory) -> Result<Self, OpenError> {
        let ca = match &settings.ca {
            Some(path) => {
                Some(std::fs::read(path).map_err(|error| OpenError::Ca(path.clone(), error))?)
            }
            None => None,
        };
        let link = Link::new(settings.target.clone(), ca);
        let lanes = if link.target.is_cluster() {
            PARTITIONS.into()
        } else {
            1
        };
        let memory = Arc::new(memory);
        let reasons = vec![Reason::new("unreachable", "Redis has not been reached yet")];
        let inner = Arc::new_cyclic(|weak| Inner {
            weak: weak.clone(),
            barrier: Barrier::new(&link, lanes, memory.clone()),
            ears: link.beside(HEARD),
            is_deaf: true.into(),
            hearings: 0.into(),
            link,
            scripts: Scripts::new(&memory.name()),
            memory,
            endings: Arc::<Endings>::default(),
            settings,
            status: RwLock::new(Readiness {
                durability: None,
                reasons,
                warnings: Vec::new(),
                lost_writes: 0,
                whole_since: None,
            }),
            clock_offset_us: 0.into(),
            lost_writes: 0.into(),
            whole_since_us: 0.into(),
            accepted_token: 0.into(),
            is_mended: false.into(),
            prepared: Mutex::default(),
            was_whole: false.into(),
            closings: 0.into(),
            checked_until: 0.into(),
            tried_on: RwLock::default(),
            met_at: Mutex::default(),
            said_hello: Mutex::default(),
            watched: Mutex::default(),
            looks: watch::Sender::new(0),
        });
        // The loop goes on with it if it takes longer.
        drop(timeout(FIRST_LOOK, Box::pin(inner.look_after())).await);
        tokio::spawn(keep_looking(Arc::downgrade(&inner)));
        Ok(Self(inner))
    }
}

/// Looks as long as a handle of the store is open.
async fn keep_looking(store: Weak<Inner>) {
    let mut failures: u32 = 0;
    loop {
        let Some(inner) = store.upgrade() else { return };
        let (trouble, is_well) = (
            inner.link.trouble.clone(),
            inner.status().reasons.is_empty(),
        );
        let every = inner.settings.pace.redis_look_every;
        drop(inner);
        let rest = if is_well { every } else { TRY_EVERY.min(every) };
        tokio::select! {
            () = sleep(rest) => {}
            () = trouble.notified() => sleep(PAUSE).await,
        }
        let Some(inner) = store.upgrade() else { return };
        failures = if inner.look_after().await {
            0
        } else {
            failures + 1
        };
        if failures >= PATIENCE {
            inner.link.disconnect();
            failures = 1;
        }
    }
}

impl Inner {
    pub(super) fn status(&self) -> Readiness {
        read(&self.status).clone()
    }

    pub(super) fn store_time(&self) -> Timestamp {
        let offset = self.clock_offset_us.load(Ordering::Relaxed);
        let wall = local_time();
        wall.checked_add(jiff::SignedDuration::from_micros(offset))
            .unwrap_or(wall)
    }

    /// One look at everything. Whether the Redis was reached.
    pub(super) async fn look_after(&self) -> bool {
        let closings = self.closings.load(Ordering::SeqCst);
        let looked = self.look().await;
        let reached = looked.is_ok();
        let mut seen = looked.unwrap_or_else(|error| Readiness {
            durability: None,
            reasons: vec![Reason::new(
                "unreachable",
                format!("Redis is not reached: {error}"),
            )],
            warnings: Vec::new(),
            lost_writes: 0,
            whole_since: None,
        });
        if !self.save_watermarks(Need::IfOld).await {
            seen.reasons.push(Reason::new(
                "watermarks",
                "the file of watermarks cannot be written",
            ));
        }
        if self.closings.load(Ordering::SeqCst) != closings && seen.reasons.is_empty() {
            // This look may have seen what was before.
            seen.reasons.push(Reason::new(
                "disconnected",
                "Redis has to be looked at once more",
            ));
            self.link.trouble.notify_one();
        }
        seen.lost_writes = self.lost_writes.load(Ordering::Relaxed);
        let whole_since_us =
            Some(self.whole_since_us.load(Ordering::SeqCst)).filter(|since| *since != 0);
        seen.whole_since = whole_since_us.and_then(|since| Timestamp::from_microsecond(since).ok());
        self.publish(seen);
        self.looks.send_modify(|looks| *looks += 1);
        reached
    }

    /// Makes known what was seen, and says it when it has changed.
    fn publish(&self, seen: Readiness) {
        let codes = |reasons: &[Reason]| {
            reasons
                .iter()
                .map(|reason| reason.code)
                .collect::<Vec<_>>()
                .join(",")
        };
        let before = std::mem::replace(&mut *write(&self.status), seen.clone());
        let is_news = codes(&before.reasons) != codes(&seen.reasons)
            || codes(&before.warnings) != codes(&seen.warnings)
            || before.durability != seen.durability;
        if !is_news {
            return;
        }
        let texts = |reasons: &[Reason]| {
            reasons
                .iter()
                .map(|reason| reason.text.as_str())
                .collect::<Vec<_>>()
                .join("; ")
        };
        let durability = seen
            .durability
            .map_or("not known", |durability| durability.as_str());
        let (store, warnings) = (&self.link.target, texts(&seen.warnings));
        if seen.reasons.is_empty() {
            tracing::info!(%store, durability, warnings, "the store is ready");
        } else if seen
            .reasons
            .iter()
            .all(|reason| matches!(reason.code, "starting" | "restarted"))
        {
            tracing::warn!(%store, durability, reasons = texts(&seen.reasons), warnings, "the store is not ready yet");
        } else {
            tracing::error!(%store, durability, reasons = texts(&seen.reasons), warnings, "the store is not ready");
        }
    }

    async fn look(&self) -> Result<Readiness, Error> {
        if !self.link.is_connected() {
            self.connect().await?;
        }
        self.hear_endings().await;
        let clock_offset_us = self.compare_clocks().await?;
        let nodes = self.ask_nodes().await?;
        let demand = Demand {
            durability: self.settings.durability,
            declared: self.settings.declared,
            clock_offset_us,
        };
        let Verdict {
            durability,
            mut reasons,
            mut warnings,
            wait_for,
        } = durability::judge(&nodes, demand);
        self.barrier.demand(wait_for);
        if reasons.iter().any(|reason| reason.code == "role") {
            // Another one may be the master by now.
            self.link.disconnect();
        }
        let mut servers: Vec<&str> = nodes
            .iter()
            .flat_map(|node| [node.info.get("run_id"), node.info.get("master_replid")])
            .flatten()
            .map(String::as_str)
            .collect();
        servers.sort_unstable();
        let servers = servers.concat();
        if self.memory.token() > self.store_time().as_microsecond().unsigned_abs() + TOKEN_LIMIT_US
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
            reasons.extend(self.look_for_loss().await?);
            reasons.extend(self.let_others_look(&servers));
        }
        if reasons.is_empty() {
            reasons.extend(self.try_scripts(&servers).await);
        }
        warnings.extend(self.who_are_we().await);
        warnings.extend(self.memory.exposed());
        Ok(Readiness {
            durability: Some(durability),
            reasons,
            warnings,
            lost_writes: 0,
            whole_since: None,
        })
    }

    async fn connect(&self) -> Result<(), Error> {
        let (store, trouble) = (self.weak.clone(), self.link.trouble.clone());
        let hear = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                // The next server to answer may be another one, or the same with other data.
                if let Some(store) = store.upgrade() {
                    store.close_for(&Reason::new(
                        "disconnected",
                        "the connection to Redis was lost",
                    ));
                }
                trouble.notify_one();
            }
        };
        self.link
            .connect(hear)
            .await
            .map_err(|error| Error::Refused(error.to_string()))?;
        self.is_deaf.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Where the masters' clocks are, seen from this machine's, to half of a round trip. What is decided by time
    /// goes by the one that is furthest behind: a clock that is ahead ends nothing too early. Answers with the
    /// offset that is furthest off.
    async fn compare_clocks(&self) -> Result<i64, Error> {
        let asked = Instant::now();
        let answers = self.link.ask_masters(cmd("TIME")).await?;
        let half = i64::try_from(asked.elapsed().as_micros() / 2).unwrap_or(0);
        let here = local_time().as_microsecond() - half;
        let offsets = answers.into_iter().map(|answer| {
            let (seconds, microseconds) =
                <(i64, i64)>::from_redis_value(answer).map_err(unreadable)?;
            Ok(seconds * 1_000_000 + microseconds - here)
        });
        let offsets = offsets.collect::<Result<Vec<i64>, Error>>()?;
        self.clock_offset_us.store(
            offsets.iter().copied().min().unwrap_or(0),
            Ordering::Relaxed,
        );
        Ok(offsets
            .into_iter()
            .max_by_key(|offset| offset.unsigned_abs())
            .unwrap_or(0))
    }

    async fn ask_nodes(&self) -> Result<Vec<Node>, Error> {
        let infos = self.link.ask_masters(cmd("INFO")).await?;
        let mut ask = cmd("CONFIG");
        ask.arg("GET").arg(&[
            "appendfsync",
            "no-appendfsync-on-rewrite",
            "min-replicas-to-write",
            "aof-load-truncated",
        ]);
        let configs = self.link.ask_masters_if_allowed(ask).await?;
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

    /// Whether a failover may happen without an operator. `answered`: how many masters did.
    async fn fails_over(&self, answered: usize) -> Result<bool, Error> {
        if !self.link.target.is_cluster() {
            return Ok(self.link.target.fails_over());
        }
        let nodes: String = self.link.ask(cmd("CLUSTER").arg("NODES")).await?;
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
            self.link.disconnect();
            let why = format!("of {masters} masters of the cluster {answered} answered");
            return Err(Error::Refused(why));
        }
        Ok(nodes.iter().any(|node| has_flag(&node, "slave")))
    }

    /// From now on nothing is claimed, until a look that begins after this finds everything well.
    pub(super) fn close_for(&self, reason: &Reason) {
        self.closings.fetch_add(1, Ordering::SeqCst);
        let mut status = write(&self.status);
        if status.reasons.is_empty() {
            tracing::warn!(
                reason = reason.text,
                "the store is closed for the time being"
            );
            status.reasons.push(reason.clone());
        }
    }

    /// A server that was started anew, or is another than before, may have lost what another gateway
    /// wrote, which only that one can see: it gets the time to look and to say so.
    fn let_others_look(&self, servers: &str) -> Option<Reason> {
        let mut since = lock(&self.met_at);
        if self.memory.meet(servers) != servers {
            *since = Some(Instant::now());
        }
        let is_new =
            since.is_some_and(|since| since.elapsed() < self.settings.pace.redis_others_look);
        is_new.then(|| {
            Reason::new(
                "restarted",
                "another Redis is there than before, or one that was started anew: every gateway looks first whether \
                 it has lost data",
            )
        })
    }

    /// A user who may do everything can lose everything.
    async fn who_are_we(&self) -> Option<Reason> {
        let who: Result<String, Error> = self.link.ask_quietly(cmd("ACL").arg("WHOAMI")).await;
        let text = "the gateway is the user \"default\" of Redis; one that may do only what it needs is in config/redis.conf";
        (who.ok()? == "default").then(|| Reason::new("default_user", text))
    }

    /// Writes the file of watermarks. False if it cannot be written.
    pub(super) async fn save_watermarks(&self, need: Need) -> bool {
        let memory = self.memory.clone();
        let saved = tokio::task::spawn_blocking(move || memory.save(need)).await;
        match saved.map_err(std::io::Error::other).flatten() {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "the file of watermarks cannot be written");
                false
            }
        }
    }
}

/// The fields of INFO.
fn fields(text: &str) -> HashMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "to be compared with the store's clock"
)]
fn local_time() -> Timestamp {
    Timestamp::now()
}
