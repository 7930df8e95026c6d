//! `oncegate wrap`: one MCP server that is a program, for one client on standard input, with a store of its own.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Error, Opened, loops, open};
use crate::config::{Config, Environment, StoreAt};
use crate::downstream::Program;
use crate::http::{self, Http, MaxBody, Ops, Tokens, stdio};
use crate::store::sqlite;

/// Files for clients that run the same command at once.
const MAX_FILES: usize = 16;
/// How long to wait for a process that only finishes its calls, before another file is taken.
const PATIENCE: Duration = Duration::from_secs(150);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What to wrap, and how.
#[derive(Clone)]
pub struct Wrapped {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// All that it sees of the environment.
    pub environment: Vec<(String, String)>,
    /// In which folder it runs: another folder is another server.
    pub folder: PathBuf,
    /// The name under which its calls are kept; `None`: one made of the command and the folder.
    pub name: Option<String>,
    /// A Redis, or a file, instead of a file of its own in `data`.
    pub store: Option<String>,
    /// Where the files of wrapped servers lie.
    pub data: PathBuf,
    /// How long a derived key is remembered.
    pub dedup_window: Option<String>,
    /// Whether tools read that say so.
    pub trusts_annotations: bool,
}

impl Wrapped {
    /// The name of the server in keys and in the ledger.
    pub fn name(&self) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let mut digest = Sha256::new();
        for part in &self.command {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.update(self.folder.as_os_str().as_encoded_bytes());
        let program = self.command.first().map(Path::new);
        let stem = program.and_then(Path::file_stem);
        let stem = stem.map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let plain = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
        let stem: String = stem.chars().filter(plain).take(40).collect();
        let stem = stem.trim_start_matches(|char: char| !char.is_ascii_alphabetic());
        let stem = if stem.is_empty() { "server" } else { stem };
        format!("{stem}-{}", hex::encode(&digest.finalize()[..6]))
    }

    /// The configuration over this store.
    ///
    /// # Errors
    /// Something of it cannot be read.
    fn config(&self, store: &Place) -> Result<Config, Error> {
        let quoted = |text: &str| Value::from(text).to_string();
        let window = self.dedup_window.as_deref().map(quoted);
        let window = window.map_or_else(String::new, |window| format!("dedup_window = {window}"));
        let url = match store {
            Place::File(_) => "sqlite:oncegate.db",
            Place::Url(url) => url,
        };
        let text = format!(
            "[server]\nmax_body = \"8MiB\"\nmax_result = \"8MiB\"\nmax_memory = \"256MiB\"\n\
             shutdown_grace = \"130s\"\n[store]\nurl = {}\n[upstreams.{}]\ncommand = [\"set below\"]\n\
             trust_annotations = {}\n{window}\n",
            quoted(url),
            quoted(&self.name()),
            self.trusts_annotations
        );
        let mut config = Config::read(&text, &Environment::new()).map_err(|mistakes| {
            let mistakes = mistakes.into_iter().map(|mistake| mistake.message);
            Error::Wrap(mistakes.collect::<Vec<_>>().join("\n"))
        })?;
        if let Place::File(path) = store {
            config.store = StoreAt::Sqlite(path.clone());
        }
        let program = Arc::new(Program {
            command: self.command.clone(),
            environment: self.environment.clone(),
            shows_errors: true,
        });
        for upstream in &mut config.upstreams {
            if let Some(mcp) = &mut upstream.endpoint.mcp {
                mcp.program = Some(program.clone());
            }
        }
        Ok(config)
    }

    /// Opens the store that was asked for, or the first file of this command that no other process has.
    ///
    /// # Errors
    /// It cannot be opened.
    async fn open(&self, tell: &impl Fn(String)) -> Result<(Opened, Option<Draining>), Error> {
        if let Some(store) = &self.store {
            let place = match store.split_once(':') {
                Some((scheme, _)) if scheme.starts_with("redis") => Place::Url(store.clone()),
                _ => Place::File(store.into()),
            };
            let opened = open(self.config(&place)?).await?;
            tell(format!("calls are kept in {}", opened.store));
            return Ok((opened, None));
        }
        let wrong = |error: io::Error| Error::Wrap(format!("{}: {error}", self.data.display()));
        std::fs::create_dir_all(&self.data).map_err(wrong)?;
        for number in 1..=MAX_FILES {
            let path = self.data.join(format!("{}-{number}.db", self.name()));
            let draining = Draining::of(&path);
            let patience = Instant::now() + PATIENCE;
            loop {
                match open(self.config(&Place::File(path.clone()))?).await {
                    Ok(opened) => {
                        draining.end();
                        tell(format!("calls are kept in {}", path.display()));
                        if number > 1 {
                            tell("another client runs the same command: they do not see each other's calls".into());
                        }
                        return Ok((opened, Some(draining)));
                    }
                    // It takes nothing new, and its calls may be those that this client asks for.
                    Err(Error::Sqlite(sqlite::OpenError::InUse(_)))
                        if draining.is_there() && Instant::now() < patience =>
                    {
                        sleep(LOOK_AGAIN).await;
                    }
                    Err(Error::Sqlite(sqlite::OpenError::InUse(_))) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Err(Error::Wrap(format!(
            "{MAX_FILES} clients run this command already"
        )))
    }
}

enum Place {
    File(PathBuf),
    Url(String),
}

/// A file that says of a store's holder that it only finishes its calls.
struct Draining(PathBuf);

impl Draining {
    fn of(store: &Path) -> Self {
        Self(store.with_extension("draining"))
    }

    // If it cannot be written, another client takes another file.
    fn begin(&self) {
        File::create(&self.0).ok();
    }

    fn is_there(&self) -> bool {
        self.0.exists()
    }

    fn end(&self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Serves one client until its input ends and its calls have ended.
///
/// `tell` says what a person should know. `stop`: nothing new is taken, and calls are finished; `at_once`: nothing is
/// waited for, and calls that run are recorded as unknown.
///
/// # Errors
/// The store cannot be opened, or can no longer be trusted.
pub async fn wrap(
    wrapped: &Wrapped,
    (input, output): (
        impl AsyncRead + Unpin,
        impl AsyncWrite + Unpin + Send + 'static,
    ),
    tell: impl Fn(String),
    stop: CancellationToken,
    at_once: CancellationToken,
) -> Result<(), Error> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let (opened, draining) = wrapped.open(&tell).await?;
    let Opened {
        gateway,
        fatal,
        server,
        mcp,
        pace,
        ..
    } = opened;
    let (ops, _) = Ops::of(None, false);
    let http = Http {
        gateway: gateway.clone(),
        tokens: Tokens::default(),
        max_body: MaxBody {
            bytes: server.max_body,
            time: server.body_timeout,
        },
        mcp: Arc::new(mcp),
        ops,
    };
    let path = format!("/mcp/{}", wrapped.name());
    let path = path
        .parse()
        .map_err(|_| Error::Wrap(format!("{path:?} is no path")))?;
    let drains = || {
        if let Some(draining) = &draining {
            draining.begin();
        }
    };
    let door = http::upstream_router(http);
    let serving = stdio::serve(door, path, server.max_body, input, output, drains);
    let mut loops = loops::begin(&gateway, pace, &stop);
    let ended = tokio::select! {
        biased;
        () = fatal.cancelled() => return Err(Error::StoreFailed),
        () = stop.cancelled() => Ok(()),
        () = serving => Ok(()),
        // These end only when they are told to.
        _ = loops.join_next() => Err(Error::Loop),
    };
    drains();
    let hurrying = async {
        at_once.cancelled().await;
        gateway.give_up();
        // `ending` does the rest.
        std::future::pending::<()>().await;
    };
    let ending = async {
        gateway.shut_down().await;
        loops.abort_all();
        gateway.close().await;
    };
    tokio::select! {
        () = ending => {}
        () = hurrying => {}
        () = fatal.cancelled() => return Err(Error::StoreFailed),
    }
    if let Some(draining) = &draining {
        draining.end();
    }
    ended
}
