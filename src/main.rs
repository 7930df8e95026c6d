//! The command line: read the configuration, build, run, exit.

#[path = "main/about.rs"]
mod about; // version, manual pages, completions
#[cfg(all(feature = "console", feature = "mcp", feature = "sqlite"))]
#[path = "main/approvals.rs"]
mod approvals; // calls of wrapped servers that wait for approval
#[path = "main/check.rs"]
mod check; // every mistake of a configuration
#[path = "main/health.rs"]
mod health; // ask a gateway whether it is ready
#[cfg(feature = "redis")]
#[path = "main/shared_store.rs"]
mod shared_store; // acts on a Redis
#[path = "main/store.rs"]
mod store; // acts on the store
#[cfg(feature = "trial")]
#[path = "main/verify_tool.rs"]
mod verify_tool; // ask a tool what it does with a key

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use oncegate::app::App;
#[cfg(all(feature = "mcp", feature = "sqlite"))]
use oncegate::app::{self, WrapOptions, Wrapped};
use oncegate::config::{Config, Environment, InClear, Mistake, NewToken, SECRET_BYTES};
#[cfg(all(feature = "mcp", feature = "sqlite"))]
use oncegate::config::{Log, LogFormat};
#[cfg(feature = "import")]
use oncegate::import;
use oncegate::telemetry::{self, Telemetry};
use oncegate::{gateway, http};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[cfg(all(feature = "console", feature = "mcp", feature = "sqlite"))]
use self::approvals::Approvals;
use self::check::Check;
use self::health::Health;
use self::store::StoreAct;
#[cfg(feature = "trial")]
use self::verify_tool::VerifyTool;

/// Gives memory back to the system within seconds, from a thread of its own.
///
/// `docs/operate.md` has the figures.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// An HTTP gateway between AI agents and the tools that change the world: one intent, at most one
/// side effect.
#[derive(Parser)]
#[command(version = about::VERSION)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway.
    Serve {
        #[arg(long)]
        config: PathBuf,
    },
    /// Check a configuration and print every mistake with its line and column.
    Check(Check),
    /// Ask a gateway whether it is ready, as /readyz says it: exit status 0 if so, otherwise 1 and the reason. For
    /// health checks of images without a shell.
    Health(Health),
    /// Print the key of the request body on standard input.
    Key {
        #[arg(long)]
        config: PathBuf,
        #[arg(long)]
        tool: String,
    },
    /// Print a new bearer token and its lines of configuration. The token is shown only now.
    Token(NewToken),
    /// Run an MCP server that is a program, and make it safe to repeat its calls: a prefix in a client's mcp.json.
    /// Speaks MCP on standard input and output.
    #[cfg(all(feature = "mcp", feature = "sqlite"))]
    Wrap(WrapOptions),
    /// Show and decide calls of servers behind `oncegate wrap --approve` that wait for approval.
    #[cfg(all(feature = "console", feature = "mcp", feature = "sqlite"))]
    Approvals(Approvals),
    /// Try a tool, with real effects: whether it executes a key once, and whether its probe and its compensation work.
    /// Prints each request and answer, a verdict on each claim, and the justified lines of configuration.
    #[cfg(feature = "trial")]
    VerifyTool(Box<VerifyTool>),
    /// Print an API's description as lines of configuration.
    #[cfg(feature = "import")]
    Import {
        #[command(subcommand)]
        from: import::From,
    },
    /// Acts of an operator on the store.
    Store {
        #[command(subcommand)]
        act: StoreAct,
    },
    /// Print what makes a shell complete these commands.
    Completions { shell: clap_complete::Shell },
    /// Write the manual pages into a folder: oncegate.1 and one for each command.
    Man { folder: PathBuf },
}

impl Command {
    /// Whether an MCP server runs below this process.
    fn is_wrap(&self) -> bool {
        #[cfg(all(feature = "mcp", feature = "sqlite"))]
        return matches!(self, Self::Wrap(_));
        #[cfg(not(all(feature = "mcp", feature = "sqlite")))]
        false
    }
}

/// Why a command failed, in a sentence for standard error.
type Failure = Box<dyn Error>;

/// How long the last sentence on standard error may take.
const LAST_WORD: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    #[cfg(feature = "crash-points")]
    let _points = oncegate_hooks::crash::set_up();
    let command = Arguments::parse().command;
    // Other users of the machine must not read what is kept of calls, also in files that libraries make. A wrapped server
    // makes files of its own, for which the user's mask holds; those of calls lie in a folder that only the user sees.
    if !command.is_wrap() {
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    }
    let done = match command {
        Command::Serve { config } => read(&config).and_then(|read| serve(read, config)),
        Command::Check(check) => check.run(),
        Command::Health(asked) => asked.run().and_then(|ready| say(&ready)),
        Command::Key { config, tool } => read(&config).and_then(|config| key(&config, &tool)),
        Command::Token(new) => token(&new),
        #[cfg(all(feature = "mcp", feature = "sqlite"))]
        Command::Wrap(options) => wrap(options),
        #[cfg(all(feature = "console", feature = "mcp", feature = "sqlite"))]
        Command::Approvals(asked) => asked.run(),
        #[cfg(feature = "trial")]
        Command::VerifyTool(asked) => {
            return asked.run().unwrap_or_else(fail);
        }
        #[cfg(feature = "import")]
        Command::Import { from } => import(from),
        Command::Store { act } => act.run(),
        Command::Completions { shell } => say(&about::completions(shell)),
        Command::Man { folder } => about::manual(&folder),
    };
    done.map_or_else(fail, |()| ExitCode::SUCCESS)
}

fn fail(failure: Failure) -> ExitCode {
    complain(format!("{}\n", failure.to_string().trim_end()));
    ExitCode::FAILURE
}

/// Writes the last sentence to standard error. Waits only a moment if it is not read.
fn complain(message: String) {
    let (written, is_written) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // There is nowhere left to complain to if it is closed.
        drop(std::io::stderr().write_all(message.as_bytes()));
        written.send(()).ok();
    });
    is_written.recv_timeout(LAST_WORD).ok();
}

/// The configuration, or all mistakes in one text.
fn read(path: &Path) -> Result<Config, Failure> {
    read_lines(path).map_err(|lines| {
        let (all, count) = (lines.join("\n"), lines.len());
        let noun = if count == 1 { "mistake" } else { "mistakes" };
        format!("{all}\n{count} {noun}, nothing was started").into()
    })
}

/// The configuration, or each mistake.
fn read_lines(path: &Path) -> Result<Config, Vec<String>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| vec![format!("{}: {error}", path.display())])?;
    let environment = environment();
    let mut config = Config::read_file(path, &text, &environment).map_err(|mistakes| {
        let mistake = |mistake: &Mistake| mistake.in_file(path);
        mistakes.iter().map(mistake).collect::<Vec<_>>()
    })?;
    for InClear { file, settings } in &config.in_clear {
        let path = file.as_deref().unwrap_or(path);
        config.warnings.extend(exposed(path, settings));
    }
    #[cfg(feature = "crash-points")]
    if let Some(timings) = environment.get("TEST_PACE") {
        let timings = serde_json::from_str(timings);
        return Ok(config.at_pace(timings.unwrap_or_else(|error| panic!("TEST_PACE: {error}"))));
    }
    Ok(config)
}

/// The warning that other users may read a file with these secrets.
///
/// The group may: the service's own group often has to.
fn exposed(path: &Path, secrets: &[String]) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o007 != 0).then(|| {
        format!(
            "{}: other users may read or write it, and it holds secrets ({}); chmod o-rwx, or take them from variables, as in \
             \"${{NAME}}\"",
            path.display(),
            secrets.join(", ")
        )
    })
}

/// A variable that is not text is meant for another program.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the environment is read"
)]
fn environment() -> Environment {
    let readable = |variable: std::ffi::OsString| variable.into_string().ok();
    std::env::vars_os()
        .filter_map(|(name, value)| Some((readable(name)?, readable(value)?)))
        .collect()
}

/// How long signals to end count as the first one.
///
/// A terminal sends Ctrl-C to a launcher (uvx, npm), too, which forwards it a moment later.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

/// Two tokens, cancelled by the first and the second signal to end.
fn on_signals() -> Result<(CancellationToken, CancellationToken), Failure> {
    // Before anything else: by itself a signal would end the process, or, where it is the first one of a container, be
    // lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    let (on_first, on_second) = (stop.clone(), at_once.clone());
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        on_first.cancel();
        let repeated = async {
            loop {
                next().await;
            }
        };
        tokio::time::timeout(ONE_SIGNAL, repeated).await.ok();
        next().await;
        on_second.cancel();
    });
    Ok((stop, at_once))
}

fn serve(config: Config, path: PathBuf) -> Result<(), Failure> {
    let Telemetry {
        set_level,
        exporter,
        lines,
    } = telemetry::start(&config.log, config.tracing.as_ref())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let ended = runtime.block_on(async {
        let mut hang_up = signal(SignalKind::hangup())?;
        let (stop, at_once) = on_signals()?;
        let app = tokio::select! {
            app = App::build(config) => app?,
            () = stop.cancelled() => return Ok(()),
        };
        lines.count_in(app.log_lines_dropped());
        let reloader = app.reloader();
        tokio::spawn(async move {
            while hang_up.recv().await.is_some() {
                if let Some(log) = reloader.reload(read_lines(&path)).await {
                    set_level.set(&log.level);
                }
            }
        });
        Ok(app.run(stop, at_once).await?)
    });
    // Whatever still runs has been given up, and said so.
    runtime.shutdown_background();
    exporter.end();
    lines.flush();
    ended
}

#[cfg(all(feature = "mcp", feature = "sqlite"))]
fn wrap(options: WrapOptions) -> Result<(), Failure> {
    let log = Log {
        format: LogFormat::Pretty,
        level: options.log_level.clone(),
    };
    let wrapped = Wrapped::new(options, environment(), std::env::current_dir()?)?;
    let telemetry = telemetry::start(&log, None)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let ended = runtime.block_on(async {
        let (stop, at_once) = on_signals()?;
        let streams = (tokio::io::stdin(), tokio::io::stdout());
        let tell = |what| complain(format!("oncegate wrap: {what}\n"));
        Ok(app::wrap(&wrapped, streams, tell, stop, at_once).await?)
    });
    // A read of standard input may still be waiting.
    runtime.shutdown_background();
    telemetry.lines.flush();
    ended
}

fn key(config: &Config, name: &str) -> Result<(), Failure> {
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    let tool = config.tools.iter().find(|at| at.tool.name == name);
    let tool = tool.ok_or_else(|| format!("there is no tool {name:?}"))?;
    say(&format!("{}\n", http::dry_run(&tool.tool, &body)?))
}

/// Prints a description's tools to standard output, and left-out parts to standard error.
#[cfg(feature = "import")]
fn import(import::From::Openapi { file, asked }: import::From) -> Result<(), Failure> {
    let broken = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    let description = std::fs::File::open(&file).map_err(|error| broken(&error))?;
    let mut text = String::new();
    // One byte more than is taken tells that it is too large.
    let most = import::MAX_BYTES as u64 + 1;
    let read = description.take(most).read_to_string(&mut text);
    read.map_err(|error| broken(&error))?;
    let printed = import::openapi(&text, &asked).map_err(|why| broken(&why))?;
    say(&printed.text)?;
    let remarks = printed.remarks.iter().map(|remark| format!("{remark}\n"));
    complain(remarks.collect());
    match printed.imported {
        0 => Err(broken(&"no operation was imported").into()),
        _ => Ok(()),
    }
}

fn token(new: &NewToken) -> Result<(), Failure> {
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut secret)?;
    say(&new.print(&secret, gateway::local_time())?)
}

fn say(text: &str) -> Result<(), Failure> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
