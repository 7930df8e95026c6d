//! What the gateway costs, beside programs that do less: one run, ratios last.
//!
//! `cargo bench --bench gateway`. Clients live in this process. The tool, an empty handler (null), nginx and a bare
//! forwarder that only pass on, and a bare gateway with `SET NX EX` and `INCR` but no ledger and nothing durable are
//! processes of their own; so is the gateway, once over a fresh SQLite file and once over a Redis that syncs every write,
//! both on the disk that holds `target`. A row is measured in several rounds, in turn with the others, and every figure
//! is the median of the rounds, for no machine is quiet for long. `ONCEGATE_BENCH_SECONDS` says how long one
//! measurement takes. The figures are written to `target/bench`, too, as `speed.json` and `speed.svg`.

#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own, without the gateway's rooms"
)]

mod client; // one connection that asks
mod memory; // what connections and calls hold
mod processes; // what is started and measured
mod programs; // what the gateway is compared with
mod report; // table, ratios, JSON, picture
mod rows; // what is measured

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
    let ratios = report::ratios(&rows);
    for ratio in &ratios {
        say(&report::ratio_line(ratio))?;
    }
    let folder = report::write(&rows, &ratios, held.as_ref())?;
    say(&format!("written to {folder}"))
}

/// In which time the disk takes a write, in milliseconds. A first arrival waits for two.
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

/// How long one measurement takes. Only `cargo bench` says `--bench`; else it is seen whether all works.
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
    // Nowhere is left to complain to if standard error is closed.
    drop(writeln!(std::io::stderr(), "{error}"));
    ExitCode::FAILURE
}
