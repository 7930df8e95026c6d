//! What the ledger costs when it is large: how long a question takes, and how much room a call.
//!
//! `cargo bench --bench ledger`. Fills a fresh SQLite file, and a Redis if there is a `redis-server`, with
//! calls that are spread over 15 days, users, sessions and traces, and asks for the first page and for one
//! from the middle. `ONCEGATE_BENCH_CALLS` says how many calls; a million takes a quarter of an hour.

#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own, without the gateway's rooms"
)]

use std::error::Error;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use oncegate::core::call::{Arrival, Change, Event, next};
use oncegate::core::key::{Lookup, Source};
use oncegate::core::ledger::Filter;
use oncegate::core::outcome::{Body, Evidence};
use oncegate::core::position::Position;
use oncegate::core::recipe::RecipeId;
use oncegate::core::record::{AttemptId, CallId, InstanceId, Intent};
use oncegate::core::session::Brought;
use oncegate::core::tool::Tool;
use oncegate::store::redis::{Redis, Settings, Target};
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Claimed, Durability, Replaced, Store};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Who writes at the same time.
const WRITERS: usize = 64;
/// Over which the calls are spread.
const DAYS: i64 = 15;
/// How often a question is asked; the median counts.
const ROUNDS: usize = 21;
const ME: InstanceId = InstanceId(Uuid::from_u128(1));

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Fallible<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run())
}

async fn run() -> Fallible<()> {
    let calls: usize =
        std::env::var("ONCEGATE_BENCH_CALLS").map_or(Ok(100_000), |text| text.parse())?;
    // Not in memory, as /tmp may be.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let file = folder.path().join("oncegate.db");
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&file, ME, &CancellationToken::new())?);
    let before = size_of(&file)?;
    measure(
        "SQLite",
        store,
        calls,
        async || Ok(size_of(&file)? - before),
    )
    .await?;

    let Ok(server) = Server::start(folder.path()) else {
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
        pace: oncegate::core::pace::Pace::default(),
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
    let before = used(&mut connection).await?;
    measure("Redis", store, calls, async || {
        Ok(used(&mut connection.clone()).await? - before)
    })
    .await
}

async fn measure(
    name: &str,
    store: Arc<dyn Store>,
    calls: usize,
    room: impl AsyncFn() -> Fallible<u64>,
) -> Fallible<()> {
    let began = Instant::now();
    fill(&store, calls).await?;
    let took = began.elapsed().as_secs_f64();
    let bytes = room().await? / calls as u64;
    say(&format!(
        "\n{name}: {calls} calls in {took:.0} s ({:.0} claims with their outcome a second), {bytes} bytes a call",
        calls as f64 / took
    ));
    say("filter                              first page   middle page   calls");
    let middle = Position {
        created_at: time_of(calls / 2, calls),
        id: Uuid::max(),
    };
    let text = |text: &str| Some(text.to_owned());
    let none = Filter::default;
    let filters = [
        ("none", none()),
        (
            "trace_id",
            Filter {
                trace_id: text("trace-1000"),
                ..none()
            },
        ),
        (
            "session_id",
            Filter {
                session_id: text("session-7"),
                ..none()
            },
        ),
        (
            "user_id",
            Filter {
                user_id: text("user-7"),
                ..none()
            },
        ),
        (
            "tool",
            Filter {
                tool: text("ship"),
                ..none()
            },
        ),
        (
            "key",
            Filter {
                key: text("key-1000"),
                ..none()
            },
        ),
        (
            "state=succeeded",
            Filter {
                state: text("succeeded"),
                ..none()
            },
        ),
        (
            "state=failed",
            Filter {
                state: text("failed"),
                ..none()
            },
        ),
        (
            "state=unknown",
            Filter {
                state: text("unknown"),
                ..none()
            },
        ),
        (
            "state=running",
            Filter {
                state: text("running"),
                ..none()
            },
        ),
        (
            "until",
            Filter {
                until: Some(time_of(calls / 3, calls)),
                ..none()
            },
        ),
        (
            "since",
            Filter {
                since: Some(time_of(calls / 3, calls)),
                ..none()
            },
        ),
        (
            "tool, user_id, state",
            Filter {
                tool: text("ship"),
                user_id: text("user-8"),
                state: text("succeeded"),
                ..none()
            },
        ),
    ];
    for (name, filter) in filters {
        let (first, found) = ask(&*store, &filter, None).await?;
        let (then, _) = ask(&*store, &filter, Some(middle)).await?;
        say(&format!(
            "{name:34} {first:9.2} ms  {then:9.2} ms   {found:5}"
        ));
    }
    Ok(())
}

/// The median time of a question for 50 calls, in milliseconds, and how many were found.
async fn ask(
    store: &dyn Store,
    filter: &Filter,
    before: Option<Position>,
) -> Fallible<(f64, usize)> {
    let (mut times, mut found) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        found = store.list("shop", filter, before, 50).await?.found.len();
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[ROUNDS / 2], found))
}

async fn fill(store: &Arc<dyn Store>, calls: usize) -> Fallible<()> {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            let tool = Tool::new("act");
            for n in (writer..calls).step_by(WRITERS) {
                write(&*store, &tool, n, calls).await?;
            }
            Fallible::Ok(())
        });
    }
    writers.join_all().await.into_iter().collect()
}

async fn write(store: &dyn Store, tool: &Tool, n: usize, calls: usize) -> Fallible<()> {
    // What a busy machine did not answer in time is asked again; both verbs know their own.
    let claim = arrival(tool, n, calls)?;
    let record = loop {
        match store.claim(&claim, &[]).await {
            Ok(Claimed::Yours(record)) => break record,
            Ok(other) => return Err(format!("not claimed: {other:?}").into()),
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    };
    // Nearly all succeed.
    let status = match n % 1_000 {
        0 => return Ok(()),
        1..=5 => 500,
        6..=25 => 422,
        _ => 200,
    };
    let json = format!(
        "{{\"order_id\":\"ord_{n}\",\"status\":\"created\",\"total\":1999,\"note\":\"{:100}\"}}",
        ""
    );
    let body = Body::Whole(json.into());
    let evidence = Evidence::Answer {
        status,
        body,
        retry_after: None,
        newest_token: None,
    };
    let event = Event::Ended {
        attempt: record.attempt.id,
        fencing: record.fencing,
        evidence,
        retry: None,
    };
    let change = next(
        tool,
        Some(&record),
        &event,
        time_of(n, calls) + SignedDuration::from_millis(80),
    );
    let change = change
        .map_err(|error| format!("{error:?}"))?
        .change
        .ok_or("nothing to write")?;
    loop {
        match store.replace(&change, &record).await {
            Ok(Replaced::Done(_)) => return Ok(()),
            Ok(other) => return Err(format!("not written: {other:?}").into()),
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    }
}

fn arrival(tool: &Tool, n: usize, calls: usize) -> Fallible<Change> {
    let (name, key) = (["pay", "ship", "mail", "book"][n % 4], format!("key-{n}"));
    let lookup = Lookup::new("shop", name, &key);
    let created_at = time_of(n, calls);
    let intent = Intent {
        call_id: CallId::new(Uuid::now_v7(), &lookup),
        tenant: "shop".into(),
        tool: name.into(),
        lookup,
        names: Vec::new(),
        recipe: RecipeId::default(),
        key,
        key_source: Source::Runtime,
        fingerprint: [7; 32],
        user_id: format!("user-{}", n % 10_000),
        session_id: format!("session-{}", n / 50),
        saga_id: String::new(),
        trace_id: format!("trace-{}", n / 8),
        made_by: "agent".into(),
        client_ids: String::new(),
        similar: None,
        args: format!(
            "{{\"business_id\":\"B-{n}\",\"sku\":\"widget-7\",\"quantity\":2,\"amount_cents\":1999}}"
        )
        .into(),
        created_at,
    };
    let (intent, brought) = (Arc::new(intent), Brought::default());
    let event = Event::Arrived(Arrival {
        intent,
        prints: Arc::default(),
        brought,
        attempt: AttemptId(Uuid::new_v4()),
        owner: ME,
    });
    let change = next(tool, None, &event, created_at).map_err(|error| format!("{error:?}"))?;
    change.change.ok_or_else(|| "nothing to write".into())
}

/// When the n-th call was made.
fn time_of(n: usize, calls: usize) -> Timestamp {
    static NOW: std::sync::OnceLock<Timestamp> = std::sync::OnceLock::new();
    let span = SignedDuration::from_hours(24 * DAYS);
    let part =
        span / i32::try_from(calls).unwrap_or(i32::MAX) * i32::try_from(n).unwrap_or(i32::MAX);
    *NOW.get_or_init(Timestamp::now) - span + part
}

/// Of a database with its log.
fn size_of(file: &Path) -> Fallible<u64> {
    let log = file.with_extension("db-wal");
    Ok(std::fs::metadata(file)?.len() + std::fs::metadata(log).map_or(0, |log| log.len()))
}

struct Server {
    port: u16,
    process: Child,
}

impl Server {
    fn start(folder: &Path) -> Fallible<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
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
            .arg("--dir")
            .arg(folder)
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { port, process })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[expect(clippy::print_stdout, reason = "that is what it is for")]
fn say(line: &str) {
    println!("{line}");
}
