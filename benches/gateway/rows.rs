//! The rows, and how they are measured: in several rounds, each row in turn with the others.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Fallible;
use super::client::{Ask, Client, Serials};
use super::many::{self, Replays};
use super::peers;
use super::postgres;
use super::processes::{self, Keeps, Process};

/// What takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const ROUNDS: usize = 3;
/// One key for each connection: requests with one key that arrive together would share one read of the store.
const REPLAY_KEYS: usize = 64;
/// Clients that make new calls while the replays of a busy row are measured.
const BUSY: usize = 64;

/// The measured process.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Of {
    Tool,
    Null,
    Nginx,
    Forward,
    Bare,
    BareSqlite,
    BareRedis,
    Sqlite,
    /// This build, with the same work behind it as the one before.
    SqliteNow,
    SqliteBefore,
    Redis,
    RedisNow,
    RedisBefore,
    Postgres,
    Python,
    Restate,
}

/// Those that claim keys.
const GATEWAYS: [Of; 12] = [
    Of::Bare,
    Of::BareSqlite,
    Of::BareRedis,
    Of::Sqlite,
    Of::SqliteNow,
    Of::SqliteBefore,
    Of::Redis,
    Of::RedisNow,
    Of::RedisBefore,
    Of::Postgres,
    Of::Python,
    Of::Restate,
];

/// The rows, in the order in which they are measured and printed.
const ROWS: [(&str, Of, Ask); 28] = [
    ("direct", Of::Tool, Ask::Do),
    ("null", Of::Null, Ask::Do),
    ("nginx", Of::Nginx, Ask::Do),
    ("forward", Of::Forward, Ask::Do),
    ("bare replay", Of::Bare, Ask::Replay),
    ("bare first", Of::Bare, Ask::First),
    ("durable, SQLite", Of::BareSqlite, Ask::First),
    ("durable, Redis", Of::BareRedis, Ask::First),
    ("replay, SQLite", Of::Sqlite, Ask::Replay),
    ("replay, SQLite, now", Of::SqliteNow, Ask::Replay),
    ("replay, SQLite, before", Of::SqliteBefore, Ask::Replay),
    ("replay by MCP", Of::Sqlite, Ask::McpReplay),
    ("first, SQLite", Of::Sqlite, Ask::First),
    ("first, SQLite, now", Of::SqliteNow, Ask::First),
    ("first, SQLite, before", Of::SqliteBefore, Ask::First),
    ("first by MCP", Of::Sqlite, Ask::McpFirst),
    ("replay, Redis", Of::Redis, Ask::Replay),
    ("replay, Redis, now", Of::RedisNow, Ask::Replay),
    ("replay, Redis, before", Of::RedisBefore, Ask::Replay),
    ("first, Redis", Of::Redis, Ask::First),
    ("first, Redis, now", Of::RedisNow, Ask::First),
    ("first, Redis, before", Of::RedisBefore, Ask::First),
    ("replay, PostgreSQL", Of::Postgres, Ask::Replay),
    ("first, PostgreSQL", Of::Postgres, Ask::First),
    ("replay, Python", Of::Python, Ask::Replay),
    ("first, Python", Of::Python, Ask::First),
    ("replay, Restate", Of::Restate, Ask::Replay),
    ("first, Restate", Of::Restate, Ask::First),
];

/// Rows with replays while new calls keep the store busy.
const BUSY_ROWS: [(&str, Of, Ask); 2] = [
    ("busy replay, SQLite", Of::Sqlite, Ask::Replay),
    ("busy replay, Redis", Of::Redis, Ask::Replay),
];

/// The figures of one row.
#[derive(Clone, Serialize)]
pub(super) struct Figures {
    pub(super) per_second: f64,
    /// Milliseconds.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Processor time of the measured process, in microseconds a request.
    pub(super) cpu_us: Option<f64>,
    /// The same of its Redis or PostgreSQL.
    pub(super) redis_us: Option<f64>,
    /// Resident memory of the measured process.
    pub(super) memory_mib: Option<f64>,
}

/// A row at so many connections.
#[derive(Clone, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) connections: usize,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// A process and, if it has them, its Redis or PostgreSQL and a second process of its own.
struct Subject {
    of: Of,
    process: Process,
    redis: Option<Process>,
    second: Option<Process>,
}

impl Subject {
    fn cpu_seconds(&self) -> Option<f64> {
        let second = self.second.as_ref().map_or(Some(0.0), Process::cpu_seconds);
        Some(self.process.cpu_seconds()? + second?)
    }

    async fn client(&self, number: usize, serials: &Arc<Serials>) -> Fallible<Client> {
        let client = Client::connect(number, self.process.address, serials).await?;
        Ok(if self.of == Of::Restate {
            client.of_restate()
        } else {
            client
        })
    }
}

pub(super) struct Bench {
    subjects: Vec<Subject>,
    /// The tool of all gateways that claim. It must execute each new key once.
    tool: Process,
    serials: Arc<Serials>,
    time: Duration,
    folder: TempDir,
}

impl Bench {
    pub(super) async fn start(time: Duration) -> Fallible<Self> {
        // Not in /tmp, which may be memory: an fsync must reach a disk.
        let whole = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let folder = whole.path();
        let tool = processes::program("tool", "", folder).await?;
        let other = processes::program("tool", "", folder).await?;
        let beside = other.address.to_string();
        let mut subjects = Vec::new();
        let mut add = |of, process, redis| {
            subjects.push(Subject {
                of,
                process,
                redis,
                second: None,
            });
        };
        add(
            Of::Null,
            processes::program("null", "", folder).await?,
            None,
        );
        if let Some(nginx) = processes::nginx(&folder.join("nginx"), other.address).await? {
            add(Of::Nginx, nginx, None);
        }
        let forward = processes::program("forward", &beside, folder).await?;
        add(Of::Forward, forward, None);
        add(Of::Tool, other, None);
        let home = folder.join("sqlite");
        let gateway = processes::gateway(&home, tool.address, "sqlite:oncegate.db").await?;
        add(Of::Sqlite, gateway, None);
        if let Some(redis) = processes::redis(&folder.join("redis"), Keeps::Durable).await? {
            let url = format!("redis://{}", redis.address);
            let gateway = processes::gateway(&folder.join("shared"), tool.address, &url).await?;
            add(Of::Redis, gateway, Some(redis));
        }
        if let Some(server) = postgres::start(&folder.join("postgres")).await? {
            let url = format!("postgres://gate@{}/postgres", server.address);
            let gateway = processes::gateway(&folder.join("tables"), tool.address, &url).await?;
            add(Of::Postgres, gateway, Some(server));
        }
        if let Some(redis) = processes::redis(&folder.join("bare"), Keeps::InMemory).await? {
            let beside = format!("{},redis://{}", tool.address, redis.address);
            let bare = processes::program("bare", &beside, folder).await?;
            add(Of::Bare, bare, Some(redis));
        }
        let beside = format!("{},{}", tool.address, folder.join("durable.db").display());
        let bare = processes::program("bare", &beside, folder).await?;
        add(Of::BareSqlite, bare, None);
        if let Some(redis) = processes::redis(&folder.join("durable"), Keeps::Durable).await? {
            let beside = format!("{},redis://{}", tool.address, redis.address);
            let bare = processes::program("bare", &beside, folder).await?;
            add(Of::BareRedis, bare, Some(redis));
        }
        if let Ok(binary) = std::env::var("ONCEGATE_BENCH_BEFORE") {
            let now = (processes::GATEWAY, "now", Of::SqliteNow, Of::RedisNow);
            let before = (&*binary, "before", Of::SqliteBefore, Of::RedisBefore);
            for (binary, name, of_sqlite, of_redis) in [now, before] {
                let home = |of: &str| folder.join(format!("{of}-{name}"));
                let url = "sqlite:oncegate.db";
                let home_of_file = home("sqlite");
                let gateway = processes::gateway_with(binary, &home_of_file, tool.address, url, "");
                add(of_sqlite, gateway.await?, None);
                if let Some(redis) = processes::redis(&home("redis"), Keeps::Durable).await? {
                    let url = format!("redis://{}", redis.address);
                    let shared = home("shared");
                    let gateway = processes::gateway_with(binary, &shared, tool.address, &url, "");
                    add(of_redis, gateway.await?, Some(redis));
                }
            }
        }
        if let Some(installed) = peers::folder() {
            subjects.extend(peers_in(&installed, folder, tool.address).await?);
        }
        let bench = Self {
            subjects,
            tool,
            serials: Arc::default(),
            time,
            folder: whole,
        };
        for of in GATEWAYS {
            if let Some(subject) = bench.subject(of) {
                timeout(PATIENCE, bench.claim(subject)).await??;
            }
        }
        Ok(bench)
    }

    /// Makes the calls that are replayed.
    async fn claim(&self, subject: &Subject) -> Fallible<()> {
        // The gateway inspects a Redis first. Requests that it refuses until then have no effect, and are not counted.
        let mut first = subject.client(REPLAY_KEYS, &Arc::default()).await?;
        while first.ask(Ask::Claim).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
        self.serials.next();
        let mut client = subject.client(0, &self.serials).await?;
        for number in 0..REPLAY_KEYS {
            client.number = number;
            client.ask(Ask::Claim).await?;
        }
        Ok(())
    }

    fn subject(&self, of: Of) -> Option<&Subject> {
        self.subjects.iter().find(|subject| subject.of == of)
    }

    /// The programs that are not installed, whose rows are left out.
    pub(super) fn left_out(&self) -> Vec<&'static str> {
        let needed = [(Of::Nginx, "nginx"), (Of::Redis, "redis-server")];
        let is_missing = |(of, _): &(Of, _)| self.subject(*of).is_none();
        needed
            .into_iter()
            .filter(is_missing)
            .map(|(_, name)| name)
            .collect()
    }

    /// Measures all rows at so many connections. Each figure is the median of its rounds.
    pub(super) async fn measure_all(&self, connections: usize) -> Fallible<Vec<Row>> {
        let plain = ROWS.into_iter().map(|row| (row, 0));
        let busy = BUSY_ROWS.into_iter().map(|row| (row, BUSY));
        let rows: Vec<_> = plain
            .chain(busy)
            .filter_map(|((name, of, ask), busy)| Some((name, self.subject(of)?, ask, busy)))
            .collect();
        let mut rounds: Vec<Vec<Figures>> = vec![Vec::new(); rows.len()];
        for _ in 0..ROUNDS {
            for (figures, (_, subject, ask, busy)) in rounds.iter_mut().zip(&rows) {
                let measure = self.measure(subject, *ask, connections, *busy);
                figures.push(timeout(self.time * 2 + PATIENCE, measure).await??);
            }
        }
        let row = |(figures, (name, ..)): (&Vec<Figures>, &(&'static str, _, _, _))| Row {
            name,
            connections,
            figures: median_of(figures),
        };
        Ok(rounds.iter().zip(&rows).map(row).collect())
    }

    /// Measures one row once, while `busy` other clients make new calls.
    async fn measure(
        &self,
        subject: &Subject,
        ask: Ask,
        connections: usize,
        busy: usize,
    ) -> Fallible<Figures> {
        let from = Instant::now() + self.time / 4;
        let until = from + self.time;
        let others = self
            .clients(subject, Ask::First, busy, (from, until))
            .await?;
        let clients = self
            .clients(subject, ask, connections, (from, until))
            .await?;
        sleep_until(from).await;
        let redis = || {
            let server = subject.redis.as_ref()?;
            match subject.of {
                Of::Postgres => postgres::cpu_seconds(server),
                _ => server.cpu_seconds(),
            }
        };
        let before = (subject.cpu_seconds(), redis());
        sleep_until(until).await;
        let after = (subject.cpu_seconds(), redis());
        let memory = subject.process.memory();
        let mut took = Vec::new();
        for client in clients {
            took.extend(client.await??);
        }
        for other in others {
            other.await??;
        }
        took.sort_by(f64::total_cmp);
        let count = took.len() as f64;
        let at = |share: f64| {
            let at = took.get((count * share) as usize);
            at.copied().ok_or("nothing was answered in time")
        };
        let each = |before: Option<f64>, after: Option<f64>| {
            let used = after? - before?;
            (busy == 0).then_some(used / count * 1e6)
        };
        Ok(Figures {
            per_second: count / self.time.as_secs_f64(),
            p50: at(0.5)?,
            p99: at(0.99)?,
            cpu_us: each(before.0, after.0),
            redis_us: each(before.1, after.1),
            memory_mib: memory.map(|bytes| bytes / f64::from(1 << 20)),
        })
    }

    async fn clients(
        &self,
        subject: &Subject,
        ask: Ask,
        count: usize,
        (from, until): (Instant, Instant),
    ) -> Fallible<Vec<JoinHandle<Fallible<Vec<f64>>>>> {
        let mut clients = Vec::with_capacity(count);
        for number in 0..count {
            let client = subject.client(number, &self.serials).await?;
            clients.push(tokio::spawn(client.ask_all_the_time(ask, from, until)));
        }
        Ok(clients)
    }

    /// Checks that the tool has executed each new key once. Returns the number of keys.
    pub(super) async fn check_effects(&self) -> Fallible<u64> {
        let mut tool = Client::connect(0, self.tool.address, &Arc::default()).await?;
        let effects: u64 = tool.get("/count").await?.parse()?;
        let wanted = self.serials.count();
        if effects != wanted {
            return Err(
                format!("effects: {effects}, but there were {wanted} first arrivals").into(),
            );
        }
        Ok(effects)
    }

    /// Replays of many calls over SQLite, with 128 MiB for those in memory.
    pub(super) async fn replays_of_many(&self, is_bench: bool) -> Fallible<Replays> {
        let folder = self.folder.path().join("many");
        let (tool, url) = (self.tool.address, "sqlite:oncegate.db");
        let memory = "max_memory = \"512MiB\"\n";
        let gateway = processes::gateway_with(processes::GATEWAY, &folder, tool, url, memory);
        let (gateway, share) = (gateway.await?, if is_bench { 1.0 } else { 0.01 });
        many::measure(gateway.address, &self.serials, self.time, share).await
    }

    /// A gateway that has served nothing yet.
    pub(super) async fn fresh_gateway(&self) -> Fallible<Process> {
        let folder = self.folder.path().join("fresh");
        processes::gateway(&folder, self.tool.address, "sqlite:oncegate.db").await
    }
}

/// Starts the peers that are installed.
async fn peers_in(installed: &Path, folder: &Path, tool: SocketAddr) -> Fallible<Vec<Subject>> {
    let mut subjects = Vec::new();
    if let Some(redis) = processes::redis(&folder.join("python"), Keeps::InMemory).await?
        && let Some(process) = peers::python(installed, folder, tool, redis.address).await?
    {
        subjects.push(Subject {
            of: Of::Python,
            process,
            redis: Some(redis),
            second: None,
        });
    }
    let home = folder.join("restate");
    if let Some((process, service)) = peers::restate(installed, &home, tool).await? {
        subjects.push(Subject {
            of: Of::Restate,
            process,
            redis: None,
            second: Some(service),
        });
    }
    Ok(subjects)
}

fn median_of(rounds: &[Figures]) -> Figures {
    let each = |figure: fn(&Figures) -> f64| median(rounds.iter().map(figure).collect());
    let maybe = |figure: fn(&Figures) -> Option<f64>| {
        let all: Option<Vec<f64>> = rounds.iter().map(figure).collect();
        all.map(median)
    };
    Figures {
        per_second: each(|row| row.per_second),
        p50: each(|row| row.p50),
        p99: each(|row| row.p99),
        cpu_us: maybe(|row| row.cpu_us),
        redis_us: maybe(|row| row.redis_us),
        memory_mib: maybe(|row| row.memory_mib),
    }
}

pub(super) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The folder of the report.
pub(super) fn report_folder() -> std::path::PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    target.unwrap_or(Path::new("target")).join("bench")
}
