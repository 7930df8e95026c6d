//! Compares the cost of the gateway with programs that do less, in one run. Prints a table, then ratios.
//!
//! `cargo bench --bench gateway`. The clients run in this process. These are processes of their own:
//! * the *tool*;
//! * *null*: an empty handler;
//! * *nginx* and *forward* (a few lines of Rust), which pass requests on to a tool;
//! * *bare*: a gateway made of `SET NX EX` and `INCR`, without a ledger and without durability;
//! * *durable*: the same over one SQLite table with group commits, and over a Redis that syncs every write;
//! * the gateway over a fresh SQLite file, and over a Redis that syncs every write, both on the disk of `target`;
//! * the gateway over a PostgreSQL on the same disk.
//!
//! With `make bench-peers` also a bare gateway in Python, and Restate. With `ONCEGATE_BENCH_BEFORE`, which names another
//! binary of the gateway, also that one: the rows *before*, beside rows *now* of this build with the same work behind it. Beside
//! the usual rows it would be too good: the more calls a file has, the more a first arrival costs.
//!
//! Each row is measured in several rounds, in turn with the other rows, and each figure is the median of its rounds,
//! because no machine is quiet for long. `ONCEGATE_BENCH_SECONDS` sets the length of one measurement. The figures also go
//! to `speed.json` and `speed.svg` in `target/bench`.

#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own, without the gateway's rooms"
)]

mod bare; // the bare gateway, over Redis or over SQLite
mod client; // a client with one connection
mod many; // replays of more calls than fit into memory
mod memory; // memory of connections and calls
mod passes; // requests to the tool
mod peers; // a Python gateway and Restate, if they are installed
mod postgres; // a PostgreSQL
mod processes; // the processes that are started and measured
mod programs; // the programs that the gateway is compared with
mod report; // table, ratios, JSON, picture
mod rows; // the rows of the table, and how they are measured

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use self::rows::{Bench, median};

const CONNECTIONS: [usize; 3] = [1, 16, 64];

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

async fn run() -> Fallible<()> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, name, listen, beside] = &arguments[..]
        && word == "program"
    {
        return programs::run(name, listen.parse()?, beside).await;
    }
    let fsync = fsync_time()?;
    let is_bench = arguments.iter().any(|argument| argument == "--bench");
    let bench = Bench::start(time(is_bench)?).await?;
    let held = memory::measure(&bench.fresh_gateway().await?).await?;
    say(report::HEAD)?;
    let mut rows = Vec::new();
    for connections in CONNECTIONS {
        for row in bench.measure_all(connections).await? {
            say(&report::line(&row))?;
            rows.push(row);
        }
    }
    let many = bench.replays_of_many(is_bench).await?;
    say(&report::many(&many))?;
    let effects = bench.check_effects().await?;
    say(&format!("effects: {effects}, as many as first arrivals"))?;
    if let Some(held) = &held {
        say(&report::held(held))?;
    }
    for name in bench.left_out() {
        say(&format!("{name} was left out: it is not installed"))?;
    }
    let cores = std::thread::available_parallelism()?;
    say(&format!(
        "{cores} cores for clients, tool and gateway together; 16 KiB and an fsync take {fsync:.2} ms. Compare ratios, not \
         absolute figures."
    ))?;
    let ratios = report::ratios(&rows, &many, held.as_ref());
    for ratio in &ratios {
        say(&report::ratio_line(ratio))?;
    }
    let folder = report::write(&rows, &ratios, held.as_ref(), &many)?;
    say(&format!("written to {folder}"))
}

/// The median time of a write with fsync, in milliseconds. A first arrival waits for two.
fn fsync_time() -> std::io::Result<f64> {
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR"))?;
    let mut took = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        file.write_all(&[0x5a; 16 << 10])?;
        file.sync_data()?;
        took.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(median(took))
}

/// The length of one measurement. Without `--bench`, which only `cargo bench` sets, a short run shows whether it works.
fn time(is_bench: bool) -> Fallible<Duration> {
    let default = if is_bench { 2.0 } else { 0.5 };
    let seconds = std::env::var("ONCEGATE_BENCH_SECONDS").ok();
    let seconds = seconds.map_or(Ok(default), |seconds| seconds.parse());
    let seconds = seconds.map_err(|_| "ONCEGATE_BENCH_SECONDS must be a number of seconds")?;
    Ok(Duration::try_from_secs_f64(seconds)?)
}

fn say(line: &str) -> Fallible<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run().await else {
        return ExitCode::SUCCESS;
    };
    // If standard error is closed there is no place for the message.
    drop(writeln!(std::io::stderr(), "{error}"));
    ExitCode::FAILURE
}
