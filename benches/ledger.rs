//! Measures a large store: claims, replays, pages, cleanup, and the bytes of a call.
//!
//! `cargo bench --bench ledger`. Fills a fresh SQLite file, and a PostgreSQL and a Redis where they are installed. The calls
//! have 300 bytes of arguments and 100 of results, and are spread over 15 days, users, sessions and traces. It measures at
//! each of the sizes in `ONCEGATE_BENCH_CALLS` (10,000 and 100,000 if it is not set). After each figure comes the ratio of its
//! cost to that at the smallest size. `ONCEGATE_BENCH_REDIS` and `ONCEGATE_BENCH_POSTGRES` are the largest sizes for these.

#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own, without the gateway's rooms"
)]

#[path = "ledger/calls.rs"]
mod calls; // the calls that fill a store
#[path = "ledger/copies.rs"]
mod copies; // makes a file larger by copies of its calls
#[path = "ledger/masters.rs"]
mod masters; // many tenants on one master and on three
#[path = "ledger/postgres.rs"]
mod postgres; // a PostgreSQL
#[path = "ledger/table.rs"]
mod table; // the printed table

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use oncegate::core::key::Lookup;
use oncegate::core::ledger::Filter;
use oncegate::core::position::Position;
use oncegate::core::timings::next_batch;
use oncegate::store::redis::{FORMAT, Redis, Settings, Target};
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Durability, Store};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::calls::{
    Fallible, ME, TOOLS, Whose, fill, key_of, now, patient, session_of, time_of, trace_of, user_of,
};
use self::copies::multiply;
use self::table::{Table, median, processor_time, say};

const SHOP: Whose<'static> = ("shop", user_of);
/// Tasks that read or write at once: while something is measured, and while a store is filled.
const WRITERS: usize = 64;
const FILLERS: usize = 512;
/// How often each figure is measured; the median counts.
const ROUNDS: usize = 21;
/// Replays in one measurement, and first arrivals: few of these, so that a small store stays small.
const BURST: usize = 2_000;
const MADE: usize = 200;
/// Up to this size calls are made one by one; a larger file is filled with copies.
const COPIED: usize = 1_000_000;
/// Most calls that are deleted at each size.
const CLEANED: usize = 20_000;

fn main() -> Fallible<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run())
}

async fn run() -> Fallible<()> {
    let sizes = numbers("ONCEGATE_BENCH_CALLS", &[10_000, 100_000])?;
    // Not in /tmp, which may be memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let file = folder.path().join("oncegate.db");
    let open = || -> Fallible<Arc<dyn Store>> {
        Ok(Arc::new(Sqlite::open(
            &file,
            ME,
            &CancellationToken::new(),
        )?))
    };
    let mut growing = Growing::new(open()?, used_of_file(&file)?, &sizes);
    for &size in &sizes {
        if size <= COPIED {
            growing.grow(size).await?;
        } else {
            growing.store.close().await;
            let began = Instant::now();
            multiply(&file, size / growing.made)?;
            let copied = began.elapsed().as_secs_f64();
            // The thread that closes the file may still be at work.
            growing.store = loop {
                match open() {
                    Ok(store) => break store,
                    Err(_) if began.elapsed() < Duration::from_secs(900) => {
                        sleep(Duration::from_millis(100)).await;
                    }
                    Err(error) => return Err(error),
                }
            };
            let opened = began.elapsed().as_secs_f64() - copied;
            say(&format!(
                "{size} calls: copied in {copied:.0} s, opened in {opened:.0} s"
            ));
        }
        growing.measure(size, used_of_file(&file)?).await?;
    }
    growing.table.print("SQLite", &sizes);
    growing.store.close().await;
    drop(growing);

    let most = numbers("ONCEGATE_BENCH_POSTGRES", &[1_000_000])?[0];
    over_postgres(folder.path(), &sizes, most).await?;
    let Ok(server) = Server::start(folder.path(), &[]) else {
        say("no redis-server, so no figures for Redis");
        return Ok(());
    };
    let url = format!("redis://127.0.0.1:{}", server.port);
    let settings = Settings {
        target: Target::parse(&url)?,
        durability: Durability::Relaxed,
        declared: None,
        ca: None,
        watermarks: folder.path().join("watermarks"),
        stream: false,
        timings: patient(),
        newest_format: FORMAT,
    };
    let store: Arc<dyn Store> = Arc::new(Redis::open(settings).await?);
    while !store.readiness().await.reasons.is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let used = async |connection: &mut redis::aio::MultiplexedConnection| -> Fallible<u64> {
        let info: String = redis::cmd("INFO")
            .arg("memory")
            .query_async(connection)
            .await?;
        let used = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        Ok(used.ok_or("no used_memory")?.trim().parse()?)
    };
    let most = numbers("ONCEGATE_BENCH_REDIS", &[1_000_000])?[0];
    let sizes: Vec<usize> = sizes.into_iter().filter(|size| *size <= most).collect();
    let mut growing = Growing::new(store, used(&mut connection).await?, &sizes);
    for &size in &sizes {
        growing.grow(size).await?;
        growing.measure(size, used(&mut connection).await?).await?;
    }
    growing.table.print("Redis", &sizes);
    drop((growing, server));
    masters::measure(folder.path()).await
}

async fn over_postgres(folder: &Path, sizes: &[usize], most: usize) -> Fallible<()> {
    let Some(server) = postgres::Server::start(&folder.join("postgres")).await? else {
        say("no PostgreSQL is installed, so no figures for it");
        return Ok(());
    };
    let sizes: Vec<usize> = sizes.iter().copied().filter(|size| *size <= most).collect();
    let store = server.store(folder).await?;
    let mut growing = Growing::new(store, server.used().await?, &sizes);
    for &size in &sizes {
        growing.grow(size).await?;
        growing.measure(size, server.used().await?).await?;
    }
    growing.table.print("PostgreSQL", &sizes);
    growing.store.close().await;
    Ok(())
}

fn numbers(name: &str, usual: &[usize]) -> Fallible<Vec<usize>> {
    let Ok(text) = std::env::var(name) else {
        return Ok(usual.to_vec());
    };
    let numbers = text.split(',').map(|number| number.trim().parse());
    Ok(numbers.collect::<Result<_, _>>()?)
}

/// A store while it grows.
struct Growing {
    store: Arc<dyn Store>,
    /// The bytes of the empty store.
    empty: u64,
    /// Calls that were made so far, that will be made in all, and that were deleted.
    made: usize,
    most: usize,
    deleted: usize,
    table: Table,
}

impl Growing {
    fn new(store: Arc<dyn Store>, empty: u64, sizes: &[usize]) -> Self {
        Self {
            store,
            empty,
            made: 0,
            most: sizes
                .iter()
                .copied()
                .filter(|size| *size <= COPIED)
                .max()
                .unwrap_or(1),
            deleted: 0,
            table: Table::default(),
        }
    }

    /// Makes calls until the store has this size.
    async fn grow(&mut self, size: usize) -> Fallible<()> {
        let (began, most) = (Instant::now(), self.most);
        fill(&self.store, SHOP, self.made..size, FILLERS, move |n| {
            time_of(n, most)
        })
        .await?;
        let took = began.elapsed().as_secs_f64();
        say(&format!("{} calls in {took:.0} s", size - self.made));
        self.made = size;
        Ok(())
    }

    /// Measures a store of this size, which takes so many bytes.
    async fn measure(&mut self, size: usize, used: u64) -> Fallible<()> {
        let Self {
            store,
            table,
            made,
            most,
            ..
        } = self;
        let (made, most) = (*made, *most);
        table.add("bytes a call", "", (used - self.empty) as f64 / size as f64);
        replays(store, made, table).await?;
        let middle = Position {
            created_at: time_of(made / 2, most),
            id: Uuid::max(),
        };
        for (filter, asked) in filters(made, most) {
            let first = ask(&**store, &asked, None).await?;
            table.add(&format!("first page, {filter}"), "ms", first);
            let then = ask(&**store, &asked, Some(middle)).await?;
            table.add(&format!("middle page, {filter}"), "ms", then);
        }
        first_arrivals(store, size, table).await?;
        self.deleted += CLEANED.min(made / 20);
        cleanup(&**store, time_of(self.deleted, most), table).await
    }
}

/// Measures first arrivals, many at once: each is a claim with its outcome.
async fn first_arrivals(store: &Arc<dyn Store>, size: usize, table: &mut Table) -> Fallible<()> {
    let (mut rates, before) = (Vec::new(), processor_time());
    for round in 0..ROUNDS {
        // Numbers that no other call has.
        let from = (size * 100 + round) * 1_000_000 + 1;
        let began = Instant::now();
        let at = |n: usize| {
            now() + SignedDuration::from_micros(i64::try_from(n % 1_000_000_000_000).unwrap_or(0))
        };
        fill(store, SHOP, from..from + MADE, WRITERS, at).await?;
        rates.push(MADE as f64 / began.elapsed().as_secs_f64());
    }
    let used = (processor_time() - before) / (ROUNDS * MADE) as f64;
    table.add("first arrivals, 64 at once", "/s", median(rates));
    table.add("first arrival, processor", "µs", used);
    Ok(())
}

/// Measures replays: reads of calls by their names.
async fn replays(store: &Arc<dyn Store>, size: usize, table: &mut Table) -> Fallible<()> {
    let name = move |n: usize| {
        // Spread over the whole store, in no order.
        let n = n.wrapping_mul(2_654_435_761) % (size - size / 10) + size / 10;
        Lookup::new("shop", TOOLS[n % 4], &key_of(n))
    };
    let mut times = Vec::new();
    for n in 0..BURST {
        let began = Instant::now();
        let found = store.holders(&[name(n)]).await?;
        times.push(began.elapsed().as_secs_f64() * 1_000_000.0);
        if found.len() != 1 {
            return Err(format!("call {n} is not found").into());
        }
    }
    table.add("replay, alone", "µs", median(times));
    let (mut rates, before) = (Vec::new(), processor_time());
    for round in 0..ROUNDS {
        let mut readers = JoinSet::new();
        let began = Instant::now();
        for reader in 0..WRITERS {
            let store = store.clone();
            readers.spawn(async move {
                for n in (reader..BURST).step_by(WRITERS) {
                    store.holders(&[name(n + (round + 1) * BURST)]).await?;
                }
                Fallible::Ok(())
            });
        }
        readers
            .join_all()
            .await
            .into_iter()
            .collect::<Fallible<()>>()?;
        rates.push(BURST as f64 / began.elapsed().as_secs_f64());
    }
    let used = (processor_time() - before) / (ROUNDS * BURST) as f64;
    table.add("replays, 64 at once", "/s", median(rates));
    table.add("replay, processor", "µs", used);
    Ok(())
}

/// Measures the deletion of the calls that were made up to this time.
async fn cleanup(store: &dyn Store, over: Timestamp, table: &mut Table) -> Fallible<()> {
    let now = over + SignedDuration::from_hours(24 * 30);
    let (mut deleted, mut times, before) = (0, Vec::new(), processor_time());
    // As a gateway does.
    let most = if store.is_shared() { 1_000 } else { 100 };
    let mut batch = most;
    loop {
        let began = Instant::now();
        let some = store.prune(now, batch).await?;
        let took = began.elapsed();
        times.push(took.as_secs_f64());
        deleted += some;
        if some < u64::from(batch) {
            break;
        }
        if !store.is_shared() {
            batch = next_batch(batch, took, most);
        }
    }
    let took: f64 = times.iter().sum();
    let used = (processor_time() - before) / deleted as f64;
    table.add("deletion of a call, processor", "µs", used);
    table.add("cleanup", "/s", deleted as f64 / took);
    times.sort_by(f64::total_cmp);
    let late = times[times.len() * 99 / 100] * 1_000.0;
    table.add("cleanup, a batch", "ms", times[times.len() / 2] * 1_000.0);
    table.add("cleanup, p99 of a batch", "ms", late);
    Ok(())
}

fn filters(calls: usize, most: usize) -> Vec<(&'static str, Filter)> {
    let text = |text: String| Some(text);
    let (none, one) = (Filter::default, calls / 3);
    vec![
        ("no filter", none()),
        (
            "trace",
            Filter {
                trace_id: text(trace_of(one)),
                ..none()
            },
        ),
        (
            "session",
            Filter {
                session_id: text(session_of(one)),
                ..none()
            },
        ),
        (
            "user",
            Filter {
                user_id: text(user_of(one)),
                ..none()
            },
        ),
        (
            "tool",
            Filter {
                tool: text("ship".into()),
                ..none()
            },
        ),
        (
            "key",
            Filter {
                key: text(key_of(one)),
                ..none()
            },
        ),
        (
            "state=failed",
            Filter {
                state: text("failed".into()),
                ..none()
            },
        ),
        (
            "state=running",
            Filter {
                state: text("running".into()),
                ..none()
            },
        ),
        (
            "since",
            Filter {
                since: Some(time_of(one, most)),
                ..none()
            },
        ),
    ]
}

/// The median time of a question for 50 calls, in milliseconds.
async fn ask(store: &dyn Store, filter: &Filter, before: Option<Position>) -> Fallible<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        store.list("shop", filter, before, 50).await?;
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
    }
    Ok(median(times))
}

/// Bytes of a database that are in use.
fn used_of_file(file: &Path) -> Fallible<u64> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = rusqlite::Connection::open_with_flags(file, flags)?;
    let pragma = |name: &str| connection.query_row(name, [], |row| row.get::<_, i64>(0));
    let pages = pragma("PRAGMA page_count")? - pragma("PRAGMA freelist_count")?;
    Ok((pages * pragma("PRAGMA page_size")?).unsigned_abs())
}

fn free_port() -> Fallible<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

struct Server {
    port: u16,
    process: Child,
}

impl Server {
    fn start(folder: &Path, more: &[&str]) -> Fallible<Self> {
        let port = free_port()?;
        let process = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--appendonly",
                "yes",
                "--appendfsync",
                "everysec",
            ])
            .args([
                "--maxmemory-policy",
                "noeviction",
                "--aof-load-truncated",
                "no",
            ])
            .args(more)
            .arg("--dir")
            .arg(folder)
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { port, process })
    }

    /// Asks it, as soon as it listens.
    async fn ask(&self, command: &[&str]) -> Fallible<()> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let mut connection = loop {
            match client.get_multiplexed_async_connection().await {
                Ok(connection) => break connection,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        };
        let (name, arguments) = command.split_first().ok_or("no command")?;
        Ok(redis::cmd(name)
            .arg(arguments)
            .query_async(&mut connection)
            .await?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
