//! Measures a gateway over a large SQLite file: export, erasure, growth, shrinking, and its start.
//!
//! `cargo bench --bench large`. Makes a file of `ONCEGATE_BENCH_CALLS` calls (1,000,000), a tenth of them of one user; then a
//! file of ten times as many by copies. Each figure is of the real binary, over HTTP or by its command line.

#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own, without the gateway's rooms"
)]

#[path = "ledger/calls.rs"]
#[expect(dead_code, reason = "the bench of the ledger uses the rest")]
mod calls; // the calls that fill a store
#[path = "ledger/copies.rs"]
mod copies; // makes a file larger by copies of its calls
#[path = "gateway/processes.rs"]
#[expect(dead_code, reason = "the bench of the gateway uses the rest")]
mod processes; // the measured processes
#[path = "ledger/table.rs"]
#[expect(dead_code, reason = "the bench of the ledger uses the rest")]
mod table; // the printed lines

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use oncegate::store::Store;
use oncegate::store::sqlite::Sqlite;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::calls::{DAYS, Fallible, ME, Whose, fill, time_of, user_of};
use self::copies::multiply;
use self::processes::{Process, free_address};
use self::table::say;

/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// Tasks that make calls at once.
const FILLERS: usize = 512;
const LARGE_USER: &str = "user-large";
const WHOSE: Whose<'static> = ("default", |n| {
    if n.is_multiple_of(10) {
        LARGE_USER.to_owned()
    } else {
        user_of(n)
    }
});

fn main() -> Fallible<()> {
    // Of no use over plain HTTP, but the client asks for one.
    drop(rustls::crypto::ring::default_provider().install_default());
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run())
}

async fn run() -> Fallible<()> {
    let calls = match std::env::var("ONCEGATE_BENCH_CALLS") {
        Ok(text) => text.parse()?,
        Err(_) => 1_000_000,
    };
    // Not in /tmp, which may be memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let folder = folder.path();
    let file = folder.join("oncegate.db");
    // It makes the secret of the fingerprints.
    started(folder, "an empty file").await?;
    let began = Instant::now();
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&file, ME, &CancellationToken::new())?);
    fill(&store, WHOSE, 0..calls, FILLERS, move |n| time_of(n, calls)).await?;
    close(&store, &file).await?;
    drop(store);
    say(&format!(
        "{calls} calls in {:.0} s: {}",
        seconds(began),
        size(&file)?
    ));
    started(folder, "warm").await?;
    let gateway = started(folder, "warm again").await?;
    exported(&gateway, "", calls).await?;
    let of_user = format!("?user_id={LARGE_USER}");
    exported(&gateway, &of_user, calls / 10).await?;
    erased(&gateway).await?;
    exported(&gateway, &of_user, calls / 10).await?;
    drop(gateway);
    half_is_over(folder, &file).await?;

    let began = Instant::now();
    multiply(&file, 20)?;
    say(&format!(
        "copied twenty times in {:.0} s: {}, {} calls",
        seconds(began),
        size(&file)?,
        count(&file)?
    ));
    started(folder, "warm").await?;
    if fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        started(folder, "nothing of the file in memory").await?;
    }
    Ok(())
}

/// Starts a gateway over the file, and says when it answers, when it is ready, and when its check is at its end.
async fn started(folder: &Path, how: &str) -> Fallible<Process> {
    let address = free_address()?;
    let path = configured(folder, &address.to_string(), "")?;
    let began = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(["serve", "--config"]).arg(&path);
    let gateway = Process::start(&mut command, address, folder).await?;
    let listens = seconds(began);
    until(&gateway, "/readyz", |status, _| status == 200).await?;
    let ready = seconds(began);
    until(&gateway, "/metrics", |_, text| {
        !text.contains("oncegate_store_checked_percent")
            || text.contains("oncegate_store_checked_percent 100")
    })
    .await?;
    say(&format!(
        "start, {how}: listens after {listens:.2} s, ready after {ready:.2} s, checked after {:.0} s, {}",
        seconds(began),
        memory(&gateway)
    ));
    Ok(gateway)
}

/// Writes the configuration. `more`: a line of each tool.
fn configured(folder: &Path, address: &str, more: &str) -> Fallible<PathBuf> {
    let file = folder.join("oncegate.db");
    let mut config = format!(
        "[server]\nlisten = \"{address}\"\n[log]\nlevel = \"error\"\n[store]\nurl = \"sqlite:{}\"\n",
        file.display()
    );
    for tool in ["pay", "ship", "mail", "book"] {
        config += &format!("[tools.{tool}]\nurl = \"http://127.0.0.1:9/{tool}\"\n{more}\n");
    }
    let path = folder.join("oncegate.toml");
    fs::write(&path, config)?;
    Ok(path)
}

/// Lets the command line do something with the file.
fn run_command(folder: &Path, arguments: &[&str]) -> Fallible<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(arguments).arg("--config");
    match command
        .arg(folder.join("oncegate.toml"))
        .status()?
        .success()
    {
        true => Ok(()),
        false => Err(format!("{} has failed", arguments.join(" ")).into()),
    }
}

/// Reads an export to its last line.
async fn exported(gateway: &Process, query: &str, most: usize) -> Fallible<()> {
    let began = Instant::now();
    let before = gateway.cpu_seconds();
    let url = format!("http://{}/v1/export{query}", gateway.address);
    let mut answer = client()?.get(url).send().await?.error_for_status()?;
    let (mut bytes, mut lines, mut end) = (0, 0, Vec::new());
    while let Some(some) = answer.chunk().await? {
        bytes += some.len();
        lines += some.iter().filter(|byte| **byte == b'\n').count();
        end.extend_from_slice(&some);
        end.drain(..end.len().saturating_sub(100));
    }
    if !String::from_utf8_lossy(&end).contains("\"end\":true") {
        return Err("the export broke off".into());
    }
    let took = seconds(began);
    let used = before.zip(gateway.cpu_seconds());
    say(&format!(
        "export{query}: {} of {most} calls, {} MB in {took:.1} s ({:.0} calls/s, {:.1} s of processor), {}",
        lines - 1,
        bytes / 1_000_000,
        (lines - 1) as f64 / took,
        used.map_or(0.0, |(before, after)| after - before),
        memory(gateway)
    ));
    Ok(())
}

/// Erases the one user who has many calls.
async fn erased(gateway: &Process) -> Fallible<()> {
    let began = Instant::now();
    let url = format!("http://{}/v1/users/{LARGE_USER}", gateway.address);
    let mut first = 0.0;
    loop {
        let answer = client()?.delete(&url).send().await?.error_for_status()?;
        let wish: serde_json::Value = serde_json::from_slice(&answer.bytes().await?)?;
        if first == 0.0 {
            first = seconds(began);
        }
        if wish["state"] != "going_on" {
            say(&format!(
                "erasure: first answer after {first:.2} s, ended after {:.0} s, {}",
                seconds(began),
                memory(gateway)
            ));
            return Ok(());
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// A shorter retention counts for stored calls, so that half of them are over: how fast they go, and what becomes of the file.
async fn half_is_over(folder: &Path, file: &Path) -> Fallible<()> {
    let hours = DAYS * 24 / 2;
    configured(folder, "127.0.0.1:0", &format!("retention = \"{hours}h\""))?;
    let began = Instant::now();
    run_command(folder, &["store", "retention", "--apply"])?;
    say(&format!(
        "store retention --apply: {:.0} s, {}",
        seconds(began),
        size(file)?
    ));
    let before = size(file)?;
    let gateway = started(folder, "half is over").await?;
    let began = Instant::now();
    let all = count(file)?;
    let mut left = all;
    loop {
        sleep(Duration::from_secs(2)).await;
        let now = count(file)?;
        if now == left {
            break;
        }
        left = now;
    }
    say(&format!(
        "retention: {} of {all} calls deleted in {:.0} s; the file was {before}, and is {}",
        all - left,
        seconds(began),
        size(file)?
    ));
    sleep(Duration::from_secs(20)).await;
    say(&format!("20 s later it is {}", size(file)?));
    drop(gateway);
    let began = Instant::now();
    run_command(folder, &["store", "compact"])?;
    say(&format!(
        "compact: {:.0} s, {}",
        seconds(began),
        size(file)?
    ));
    Ok(())
}

async fn until(gateway: &Process, path: &str, is_so: impl Fn(u16, &str) -> bool) -> Fallible<()> {
    let url = format!("http://{}{path}", gateway.address);
    let client = client()?;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Ok(answer) = client.get(&url).send().await {
            let status = answer.status().as_u16();
            if is_so(status, &answer.text().await?) {
                return Ok(());
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
    Err(format!("{path} does not say so").into())
}

/// The thread that closes the file may go on for a while.
async fn close(store: &Arc<dyn Store>, file: &Path) -> Fallible<()> {
    store.close().await;
    let began = Instant::now();
    while file.with_extension("db-wal").exists() && began.elapsed() < PATIENCE {
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

fn client() -> Fallible<reqwest::Client> {
    Ok(reqwest::Client::builder().timeout(PATIENCE).build()?)
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

fn memory(gateway: &Process) -> String {
    let bytes = gateway.memory().unwrap_or_default();
    format!("{:.0} MB of memory", bytes / 1_000_000.0)
}

fn count(file: &Path) -> Fallible<i64> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = rusqlite::Connection::open_with_flags(file, flags)?;
    Ok(connection.query_row("SELECT count(*) FROM calls", [], |row| row.get(0))?)
}

/// The file and its free pages, in words.
fn size(file: &Path) -> Fallible<String> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = rusqlite::Connection::open_with_flags(file, flags)?;
    let number = |name: &str| connection.query_row(name, [], |row| row.get::<_, i64>(0));
    let page = number("PRAGMA page_size")?;
    let free = number("PRAGMA freelist_count")? * page;
    let all = fs::metadata(file)?.len();
    Ok(format!(
        "{} MB, {} of them free",
        all / 1_000_000,
        free / 1_000_000
    ))
}
