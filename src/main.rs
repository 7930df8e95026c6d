//! The command line: read the configuration, build, run, exit.

#[path = "main/about.rs"]
mod about; // version, manual pages, completions
#[path = "main/verify_tool.rs"]
mod verify_tool; // ask a tool what it does with a key

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use oncegate::app::{self, App, Wrapped};
use oncegate::config::{Config, Environment, Log, LogFormat, Mistake, NewToken, SECRET_BYTES};
use oncegate::gateway::AFTER_LOSS;
use oncegate::telemetry::{self, Telemetry};
use oncegate::{gateway, http, import};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::verify_tool::VerifyTool;

/// Gives memory back to the system within seconds, from a thread of its own.
///
/// `docs/operate.md` has the figures.
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
    Check {
        #[arg(long)]
        config: PathBuf,
    },
    /// Print the key of the request body on standard input.
    Key {
        #[arg(long)]
        config: PathBuf,
        #[arg(long)]
        tool: String,
    },
    /// Print a new bearer token and its lines of configuration. The token is shown only now.
    Token {
        /// For logs and the ledger. Two tokens of one name may be valid at once, while one replaces the other.
        #[arg(long)]
        name: String,
        /// The tenant that its calls belong to.
        #[arg(long)]
        tenant: String,
        /// call, call:TOOL, read or admin; may be given several times.
        #[arg(long = "scope", required = true)]
        scopes: Vec<String>,
        /// When it expires, like 2027-01-01T00:00:00Z. Default: never.
        #[arg(long)]
        expires: Option<String>,
    },
    /// Run an MCP server that is a program, and make it safe to repeat its calls: a prefix in a client's mcp.json.
    /// Speaks MCP on standard input and output.
    Wrap {
        /// A file or a Redis instead of a file for this command and folder. A Redis needs --name.
        #[arg(long)]
        store: Option<String>,
        /// The server's name in keys and in the ledger. Default: made of the command and the folder.
        #[arg(long)]
        name: Option<String>,
        /// How long the same arguments count as a repetition.
        #[arg(long, value_name = "TIME", default_value = "10m")]
        dedup_window: String,
        /// How long a call may take; at most the window of repetitions.
        #[arg(long, value_name = "TIME", default_value = "2m")]
        timeout: String,
        /// Count every tool as a write, also if its annotations say that it only reads.
        #[arg(long)]
        distrust_annotations: bool,
        /// The level of log lines on standard error.
        #[arg(long, default_value = "warn")]
        log_level: String,
        /// The server's program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Try a tool, with real effects: whether it executes a key once, and whether its probe and its compensation work.
    /// Prints each request and answer, a verdict on each claim, and the justified lines of configuration.
    VerifyTool(Box<VerifyTool>),
    /// Print an API's description as lines of configuration.
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

#[derive(Subcommand)]
enum StoreAct {
    /// Accept that the store has lost data, and open it again. Calls that ran, or may run again, become
    /// unknown first. A call that the store has forgotten may be executed once more.
    AcceptLoss {
        #[arg(long)]
        config: PathBuf,
        /// What happened, for the ledger and the log.
        #[arg(long)]
        reason: String,
    },
}

/// How long the last sentence on standard error may take.
const LAST_WORD: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    #[cfg(feature = "crash-points")]
    let _points = oncegate::crash::set_up();
    let command = Arguments::parse().command;
    // Other users of the machine must not read what is kept of calls, also in files that libraries make. A wrapped server
    // makes files of its own, for which the user's mask holds; those of calls lie in a folder that only the user sees.
    if !matches!(command, Command::Wrap { .. }) {
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    }
    let done = match command {
        Command::Serve { config } => read(&config).and_then(|read| serve(read, config)),
        Command::Check { config } => read(&config).and_then(|config| {
            let warnings = config.warnings_at(gateway::local_time());
            let memory = config.memory();
            let warnings: String = warnings
                .iter()
                .map(|warning| format!("warning: {warning}\n"))
                .collect();
            say(&format!(
                "{warnings}{memory}\nok: {} tools, {} tokens\n",
                config.tools.len(),
                config.tokens.len()
            ))
        }),
        Command::Key { config, tool } => read(&config).and_then(|config| key(&config, &tool)),
        Command::Token {
            name,
            tenant,
            scopes,
            expires,
        } => token(&NewToken {
            name,
            tenant,
            scopes,
            expires,
        }),
        Command::Wrap {
            store,
            name,
            dedup_window,
            timeout,
            distrust_annotations,
            log_level,
            command,
        } => wrapped(store, name, command).and_then(|wrapped| {
            let wrapped = Wrapped {
                dedup_window: Some(dedup_window),
                timeout: Some(timeout),
                trusts_annotations: !distrust_annotations,
                ..wrapped
            };
            wrap(&wrapped, log_level)
        }),
        Command::VerifyTool(asked) => {
            return asked.run().unwrap_or_else(|message| fail(&message));
        }
        Command::Import { from } => import(from),
        Command::Store {
            act: StoreAct::AcceptLoss { config, reason },
        } => read(&config).and_then(|config| accept_loss(config, &reason)),
        Command::Completions { shell } => say(&about::completions(shell)),
        Command::Man { folder } => about::manual(&folder),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(&message),
    }
}

fn fail(message: &str) -> ExitCode {
    complain(format!("{}\n", message.trim_end()));
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
fn read(path: &Path) -> Result<Config, String> {
    read_lines(path).map_err(|lines| {
        format!(
            "{}\n{}, nothing was started",
            lines.join("\n"),
            mistakes(lines.len())
        )
    })
}

fn mistakes(count: usize) -> String {
    format!(
        "{count} {}",
        if count == 1 { "mistake" } else { "mistakes" }
    )
}

/// The configuration, or each mistake.
fn read_lines(path: &Path) -> Result<Config, Vec<String>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| vec![format!("{}: {error}", path.display())])?;
    let environment = environment();
    let mistake = |mistake: &Mistake| format!("{}:{mistake}", path.display());
    Config::read(&text, &environment)
        .map(|config| at_test_pace(config, &environment))
        .map_err(|mistakes| mistakes.iter().map(mistake).collect())
}

/// A variable that is no text is meant for another program.
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

/// The configuration with the times in `TEST_PACE`, which only test builds know.
#[cfg(feature = "crash-points")]
fn at_test_pace(config: Config, environment: &Environment) -> Config {
    let Some(pace) = environment.get("TEST_PACE") else {
        return config;
    };
    config.at_pace(serde_json::from_str(pace).unwrap_or_else(|error| panic!("TEST_PACE: {error}")))
}

#[cfg(not(feature = "crash-points"))]
fn at_test_pace(config: Config, _environment: &Environment) -> Config {
    config
}

/// Two tokens, cancelled by the first and the second signal to end.
fn on_signals() -> Result<(CancellationToken, CancellationToken), String> {
    // Before anything else: by itself a signal would end the process, or, where it is the first one of a container, be
    // lost.
    let listen = |kind| signal(kind).map_err(|error| error.to_string());
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    let on_signals = [stop.clone(), at_once.clone()];
    tokio::spawn(async move {
        for on_signal in on_signals {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            on_signal.cancel();
        }
    });
    Ok((stop, at_once))
}

fn serve(config: Config, path: PathBuf) -> Result<(), String> {
    let Telemetry {
        set_level,
        exporter,
        lines,
    } = telemetry::start(&config.log, config.tracing.as_ref())?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let ended = runtime.block_on(async {
        let mut hang_up = signal(SignalKind::hangup()).map_err(|error| error.to_string())?;
        let (stop, at_once) = on_signals()?;
        let app = tokio::select! {
            app = App::build(config) => app.map_err(|error| error.to_string())?,
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
        app.run(stop, at_once)
            .await
            .map_err(|error| error.to_string())
    });
    // Whatever still runs has been given up, and said so.
    runtime.shutdown_background();
    exporter.end();
    lines.flush();
    ended
}

/// The program to wrap, by the command line and the environment.
fn wrapped(
    store: Option<String>,
    name: Option<String>,
    command: Vec<String>,
) -> Result<Wrapped, String> {
    let is_url = |at: &String| at.starts_with("redis://") || at.starts_with("rediss://");
    let is_redis = store.as_ref().is_some_and(is_url);
    if is_redis && name.is_none() {
        return Err("a Redis needs --name: by it other machines know the same server".into());
    }
    let environment = environment();
    let folder = std::env::current_dir().map_err(|error| error.to_string())?;
    let home = || environment.get("HOME").map(PathBuf::from);
    let own = environment.get("XDG_DATA_HOME").map(PathBuf::from);
    let data = own.filter(|folder| folder.is_absolute());
    let data = data.or_else(|| {
        let below = if cfg!(target_os = "macos") {
            "Library/Application Support"
        } else {
            ".local/share"
        };
        Some(home()?.join(below))
    });
    let data = data.ok_or("neither XDG_DATA_HOME nor HOME is set; --store names a file")?;
    Ok(Wrapped {
        command,
        environment: environment.into_iter().collect(),
        folder,
        name,
        store,
        data: data.join("oncegate/wrap"),
        dedup_window: None,
        timeout: None,
        trusts_annotations: true,
    })
}

fn wrap(wrapped: &Wrapped, level: String) -> Result<(), String> {
    let log = Log {
        format: LogFormat::Pretty,
        level,
    };
    let telemetry = telemetry::start(&log, None)?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let ended = runtime.block_on(async {
        let (stop, at_once) = on_signals()?;
        let streams = (tokio::io::stdin(), tokio::io::stdout());
        let tell = |what| complain(format!("oncegate wrap: {what}\n"));
        let ended = app::wrap(wrapped, streams, tell, stop, at_once).await;
        ended.map_err(|error| error.to_string())
    });
    // A read of standard input may still be waiting.
    runtime.shutdown_background();
    telemetry.lines.flush();
    ended
}

fn accept_loss(config: Config, reason: &str) -> Result<(), String> {
    let telemetry = telemetry::start(
        &Log {
            level: "warn".into(),
            ..config.log.clone()
        },
        None,
    )?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let accepted = runtime.block_on(app::accept_loss(config, reason));
    telemetry.lines.flush();
    let marked = accepted.map_err(|error| error.to_string())?;
    say(&format!(
        "the loss is accepted; {marked} calls became unknown; {AFTER_LOSS}\n"
    ))
}

fn key(config: &Config, tool: &str) -> Result<(), String> {
    let mut body = Vec::new();
    std::io::stdin()
        .read_to_end(&mut body)
        .map_err(|error| error.to_string())?;
    let tool = config
        .tools
        .iter()
        .find(|at| at.tool.name == tool)
        .ok_or_else(|| format!("there is no tool {tool:?}"))?;
    say(&format!("{}\n", http::dry_run(&tool.tool, &body)?))
}

/// Prints a description's tools to standard output, and left-out parts to standard error.
fn import(import::From::Openapi { file, asked }: import::From) -> Result<(), String> {
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
        0 => Err(broken(&"no operation was imported")),
        _ => Ok(()),
    }
}

fn token(new: &NewToken) -> Result<(), String> {
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut secret).map_err(|error| error.to_string())?;
    say(&new.print(&secret, gateway::local_time())?)
}

fn say(text: &str) -> Result<(), String> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| error.to_string())
}
