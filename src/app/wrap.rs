//! `oncegate wrap`: one MCP server that is a program, for one client on standard input, with a store of its own.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
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
/// Most bytes of succeeded calls in memory. Many of these commands may run on one machine, each for one client.
const MAX_REMEMBERED: usize = 16 << 20;
/// How long to wait for a process that is draining, before another file is taken.
const PATIENCE: Duration = Duration::from_secs(150);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How much input is read before the store is open, in bytes.
const AHEAD: usize = 256 << 10;

/// The command to wrap, and its settings.
#[derive(Clone)]
pub struct Wrapped {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The whole environment of the program.
    pub environment: Vec<(String, String)>,
    /// The folder in which it runs: another folder is another server.
    pub folder: PathBuf,
    /// The name under which its calls are kept; `None`: one made of the command and the folder.
    pub name: Option<String>,
    /// A Redis or a file, instead of a file of its own in `data`.
    pub store: Option<String>,
    /// Where the files of wrapped servers lie.
    pub data: PathBuf,
    /// How long a derived key is remembered, and the timeout of a call.
    pub dedup_window: Option<String>,
    pub timeout: Option<String>,
    /// Whether a tool reads if its annotations say so.
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
        let times = [
            ("dedup_window", &self.dedup_window),
            ("timeout", &self.timeout),
        ];
        let times = times
            .into_iter()
            .filter_map(|(key, time)| Some(format!("{key} = {}\n", quoted(time.as_ref()?))));
        let times: String = times.collect();
        let url = match store {
            Place::File(_) => "sqlite:oncegate.db",
            Place::Url(url) => url,
        };
        let text = format!(
            "[server]\nmax_body = \"8MiB\"\nmax_result = \"8MiB\"\nmax_memory = \"4GiB\"\n\
             shutdown_grace = \"130s\"\n[store]\nurl = {}\n[upstreams.{}]\ncommand = [\"set below\"]\n\
             trust_annotations = {}\n{times}",
            quoted(url),
            quoted(&self.name()),
            self.trusts_annotations
        );
        let mut config = Config::read(&text, &Environment::new()).map_err(|mistakes| {
            let mistakes = mistakes.into_iter().map(|mistake| mistake.message);
            Error::Wrap(mistakes.collect::<Vec<_>>().join("\n"))
        })?;
        config.limits.max_remembered = MAX_REMEMBERED;
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

    /// Opens the given store, or a file of this command that no other process has.
    ///
    /// # Errors
    /// It cannot be opened, or the client has gone (`gone`) before it could be.
    async fn open(
        &self,
        tell: &impl Fn(String),
        gone: &CancellationToken,
    ) -> Result<(Opened, Draining), Error> {
        if let Some(store) = &self.store {
            if store.starts_with("redis://") || store.starts_with("rediss://") {
                let opened = open(self.config(&Place::Url(store.clone()))?).await?;
                tell(format!("calls are kept in {}", opened.store));
                return Ok((opened, Draining(None)));
            }
            let path = PathBuf::from(store);
            return match self.open_file(&path, gone).await? {
                (Some(opened), _) => {
                    tell(format!("calls are kept in {}", path.display()));
                    Ok((opened, Draining::of(&path)))
                }
                (None, _) => Err(Error::Sqlite(sqlite::OpenError::InUse(path))),
            };
        }
        let wrong = |error: io::Error| Error::Wrap(format!("{}: {error}", self.data.display()));
        private_folder(&self.data).map_err(wrong)?;
        let (mut chosen, mut others): (Option<(Opened, PathBuf)>, _) = (None, 0);
        for number in 1..=MAX_FILES {
            let path = self.data.join(format!("{}-{number}.db", self.name()));
            let is_new = !path.exists();
            if is_new && chosen.is_some() {
                break;
            }
            let (opened, has_waited) = self.open_file(&path, gone).await?;
            let Some(opened) = opened else {
                others += 1;
                continue;
            };
            // This client may have made the calls that were waited for, or those that are unknown, and may ask for them.
            let is_it = has_waited || is_new || has_unknown(&opened).await;
            let unused = if is_it || chosen.is_none() {
                chosen.replace((opened, path))
            } else {
                Some((opened, path))
            };
            if let Some((unused, _)) = unused {
                unused.gateway.close().await;
            }
            if is_it {
                break;
            }
        }
        let (opened, path) = chosen
            .ok_or_else(|| Error::Wrap(format!("{MAX_FILES} clients run this command already")))?;
        tell(format!("calls are kept in {}", path.display()));
        if others > 0 {
            tell("another client runs the same command: they do not see each other's calls".into());
        }
        Ok((opened, Draining::of(&path)))
    }

    /// Opens a file; `None`: another process has it and takes calls.
    ///
    /// Also says whether it waited for a draining process.
    async fn open_file(
        &self,
        path: &Path,
        gone: &CancellationToken,
    ) -> Result<(Option<Opened>, bool), Error> {
        let (draining, patience) = (Draining::of(path), Instant::now() + PATIENCE);
        let mut has_waited = false;
        loop {
            match open(self.config(&Place::File(path.to_owned()))?).await {
                Ok(opened) => {
                    draining.end();
                    return Ok((Some(opened), has_waited));
                }
                Err(Error::Sqlite(sqlite::OpenError::InUse(_)))
                    if draining.is_there() && Instant::now() < patience =>
                {
                    has_waited = true;
                    tokio::select! {
                        () = sleep(LOOK_AGAIN) => {}
                        () = gone.cancelled() => {
                            return Err(Error::Wrap("the client is gone".into()));
                        }
                    }
                }
                Err(Error::Sqlite(sqlite::OpenError::InUse(_))) => return Ok((None, has_waited)),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Makes a folder that only its user sees.
fn private_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// Whether a store has calls whose outcome is unknown.
async fn has_unknown(opened: &Opened) -> bool {
    let census = opened.records.census().await;
    census.is_ok_and(|rows| {
        rows.iter()
            .any(|row| row.state == "unknown" && row.calls > 0)
    })
}

enum Place {
    File(PathBuf),
    Url(String),
}

/// A file which says that the store's holder is draining; a Redis has none.
struct Draining(Option<PathBuf>);

impl Draining {
    fn of(store: &Path) -> Self {
        let mut path = store.as_os_str().to_owned();
        path.push(".draining");
        Self(Some(path.into()))
    }

    // If it cannot be made, another client takes another file. A link in its place is not followed.
    fn begin(&self) {
        if let Some(path) = &self.0 {
            File::create_new(path).ok();
        }
    }

    fn is_there(&self) -> bool {
        self.0.as_ref().is_some_and(|path| path.exists())
    }

    fn end(&self) {
        if let Some(path) = &self.0 {
            std::fs::remove_file(path).ok();
        }
    }
}

/// Reads the input ahead, so that its end is seen while nothing takes it.
///
/// `ended` is cancelled then.
fn ahead(
    mut input: impl AsyncRead + Unpin + Send + 'static,
    ended: CancellationToken,
) -> impl AsyncRead + Unpin {
    let (mut writes, reads) = tokio::io::duplex(AHEAD);
    tokio::spawn(async move {
        // Either way nothing more comes.
        tokio::io::copy(&mut input, &mut writes).await.ok();
        ended.cancel();
    });
    reads
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
        impl AsyncRead + Unpin + Send + 'static,
        impl AsyncWrite + Unpin + Send + 'static,
    ),
    tell: impl Fn(String),
    stop: CancellationToken,
    at_once: CancellationToken,
) -> Result<(), Error> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let gone = stop.child_token();
    let input = ahead(input, gone.clone());
    let (opened, draining) = wrapped.open(&tell, &gone).await?;
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
        is_tls: false,
    };
    let path = format!("/mcp/{}", wrapped.name());
    let path = path
        .parse()
        .map_err(|_| Error::Wrap(format!("{path:?} is no path")))?;
    let drains = || draining.begin();
    let door = http::upstream_router(http);
    let serving = stdio::serve(door, path, server.max_body, input, output, &stop, drains);
    let end_loops = CancellationToken::new();
    let mut loops = loops::begin(&gateway, pace, &end_loops);
    let ended = tokio::select! {
        biased;
        () = fatal.cancelled() => return Err(Error::StoreFailed),
        () = at_once.cancelled() => Ok(()),
        () = serving => Ok(()),
        // These end only when they are told to.
        _ = loops.join_next() => Err(Error::Loop),
    };
    drains();
    end_loops.cancel();
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
    draining.end();
    ended
}
