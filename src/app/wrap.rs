//! `oncegate wrap`: one MCP server that is a program, for one client on standard input, with a store of its own.

#[cfg(feature = "console")]
mod desk; // calls that wait for approval
#[cfg(feature = "console")]
mod desk_text; // what is printed of them
mod draining; // a file that one process leaves to the next
mod folder; // where files of calls lie, and that they are its user's

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Error, LOOP_ENDED, Opened, loops, open, routes};
use crate::config::{Config, Environment, StoreAt};
use crate::downstream::Program;
use crate::http::{Http, MaxBody, Ops, Tokens};
use crate::mcp::stdio;
#[cfg(any(feature = "postgres", feature = "redis"))]
use crate::store::shared::OpenError;
use crate::store::sqlite;
#[cfg(any(feature = "postgres", feature = "redis"))]
use crate::store::watermarks::WatermarksError;

#[cfg(feature = "console")]
pub use self::desk::sockets as approval_sockets;
#[cfg(feature = "console")]
use self::desk::{Asks, Place};
use self::draining::Draining;
pub use self::folder::data_folder;
use self::folder::must_be_ours;

/// Files for clients that run the same command at once.
const MAX_FILES: usize = 16;
/// Most bytes of succeeded calls in memory. Many of these commands may run on one machine, each for one client.
const MAX_REMEMBERED: usize = 16 << 20;
/// How long to wait for a process that is draining, before another file is taken.
const PATIENCE: Duration = Duration::from_secs(150);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long a process may take to notice that its client is gone. A client that comes back at once waits for that.
const NOTICED: Duration = Duration::from_millis(300);

/// The options of `oncegate wrap`.
#[derive(Args)]
pub struct WrapOptions {
    #[cfg_attr(
        not(feature = "postgres"),
        doc = "A file or a Redis instead of a file for this command and folder. A Redis needs --name."
    )]
    #[cfg_attr(
        feature = "postgres",
        doc = "A file, a Redis or a PostgreSQL instead of a file for this command and folder. The last two need --name."
    )]
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
    /// Calls that are sent only once you have approved them: those of these tools, or, with the word writes, of all that write.
    #[cfg(feature = "console")]
    #[arg(long, value_name = "writes|TOOL,…")]
    approve: Option<Asks>,
    /// The level of log lines on standard error.
    #[arg(long, default_value = "warn")]
    pub log_level: String,
    /// The server's program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// The command to wrap, and its settings.
pub struct Wrapped {
    options: WrapOptions,
    /// The whole environment of the program.
    environment: Environment,
    /// The folder in which it runs: another folder is another server.
    folder: PathBuf,
    /// Where the files of wrapped servers lie.
    data: PathBuf,
    /// Where its user decides about calls that wait.
    pages: OnceLock<String>,
}

impl Wrapped {
    /// # Errors
    /// A name or a folder for the calls is missing.
    pub fn new(
        options: WrapOptions,
        environment: Environment,
        folder: PathBuf,
    ) -> Result<Self, &'static str> {
        let store = options.store.as_deref();
        if store.is_some_and(is_shared) && options.name.is_none() {
            let is_redis = store.is_some_and(|store| store.starts_with("redis"));
            return Err(if is_redis {
                "a Redis needs --name: by it other machines know the same server"
            } else {
                "a PostgreSQL needs --name: by it other machines know the same server"
            });
        }
        let data = data_folder(&environment);
        // A file that is named needs no such folder; a shared store has its watermarks there, and approvals their socket.
        let is_named = store.is_some_and(|store| !is_shared(store));
        #[cfg(feature = "console")]
        let is_named = is_named && options.approve.is_none();
        let data = data.or_else(|| is_named.then(|| PathBuf::from("oncegate/wrap")));
        let data = data.ok_or("neither XDG_DATA_HOME nor HOME is set; --store names a file")?;
        Ok(Self {
            options,
            environment,
            folder,
            data,
            pages: OnceLock::new(),
        })
    }

    /// The name of the server in keys and in the ledger.
    fn name(&self) -> String {
        let WrapOptions { name, command, .. } = &self.options;
        if let Some(name) = name {
            return name.clone();
        }
        let mut digest = Sha256::new();
        for part in command {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.update(self.folder.as_os_str().as_encoded_bytes());
        let program = command.first().map(Path::new);
        let stem = program.and_then(Path::file_stem);
        let stem = stem.map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let plain = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
        let stem: String = stem.chars().filter(plain).take(40).collect();
        let stem = stem.trim_start_matches(|char: char| !char.is_ascii_alphabetic());
        let stem = if stem.is_empty() { "server" } else { stem };
        format!("{stem}-{}", hex::encode(&digest.finalize()[..6]))
    }

    /// The configuration over the store at this URL.
    ///
    /// # Errors
    /// Something of it cannot be read.
    fn config(&self, store: &str) -> Result<Config, Error> {
        let quoted = |text: &str| Value::from(text).to_string();
        let text = format!(
            "[server]\nmax_body = \"8MiB\"\nmax_result = \"8MiB\"\nmax_memory = \"4GiB\"\n\
             shutdown_grace = \"130s\"\n[store]\nurl = {}\n[upstreams.{}]\ncommand = [\"set below\"]\n\
             trust_annotations = {}\ndedup_window = {}\ntimeout = {}\n",
            quoted(store),
            quoted(&self.name()),
            !self.options.distrust_annotations,
            quoted(&self.options.dedup_window),
            quoted(&self.options.timeout)
        );
        let mut config = Config::read(&text, &Environment::new()).map_err(|mistakes| {
            let mistakes = mistakes.into_iter().map(|mistake| mistake.message);
            Error::Other(mistakes.collect::<Vec<_>>().join("\n"))
        })?;
        config.limits.max_remembered = MAX_REMEMBERED;
        let program = Arc::new(Program {
            command: self.options.command.clone(),
            environment: self.environment.clone().into_iter().collect(),
            shows_errors: true,
        });
        for upstream in &mut config.upstreams {
            if let Some(mcp) = &mut upstream.endpoint.mcp {
                mcp.program = Some(program.clone());
            }
            #[cfg(feature = "console")]
            if let Some(asks) = &self.options.approve {
                upstream.approval = Some(desk::rule());
                if let Asks::Of(tools) = asks {
                    upstream.asked_about.clone_from(tools);
                }
            }
        }
        config.wings.mcp.pages = self.pages.get().cloned();
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
    ) -> Result<(Opened, Option<Draining>), Error> {
        if let Some(store) = &self.options.store {
            if is_shared(store) {
                let opened = self.open_shared(store).await?;
                tell(format!("calls are stored in {}", opened.config.store));
                return Ok((opened, None));
            }
            let path = PathBuf::from(store);
            return match self.open_file(&path, gone).await? {
                (Some(opened), _) => {
                    tell(format!("calls are stored in {}", path.display()));
                    Ok((opened, Some(Draining::of(&path))))
                }
                (None, _) => Err(Error::Sqlite(sqlite::OpenError::InUse(path))),
            };
        }
        self.make_folder()?;
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
            .ok_or_else(|| Error::Other(format!("{MAX_FILES} clients run this command already")))?;
        tell(format!("calls are stored in {}", path.display()));
        if others > 0 {
            tell("another client runs the same command: they do not see each other's calls".into());
        }
        Ok((opened, Some(Draining::of(&path))))
    }

    /// The port of the console for approvals.
    ///
    /// # Errors
    /// There is none, or the folder of its socket cannot be made.
    #[cfg(feature = "console")]
    fn place(&self) -> Result<Place, Error> {
        self.make_folder()?;
        let place = Place::take()?;
        drop(self.pages.set(place.pages()));
        Ok(place)
    }

    /// Makes the folder of the files. Only its user may see what is kept of calls.
    ///
    /// # Errors
    /// It cannot be made, or others may write there.
    fn make_folder(&self) -> Result<(), Error> {
        let wrong = |error: io::Error| Error::Other(format!("{}: {error}", self.data.display()));
        let mut folder = DirBuilder::new();
        let made = folder.recursive(true).mode(0o700).create(&self.data);
        made.map_err(wrong)?;
        must_be_ours(std::iter::once(&*self.data))
    }

    /// Refuses a store that this build does not have as `check` does.
    #[cfg(not(any(feature = "postgres", feature = "redis")))]
    async fn open_shared(&self, store: &str) -> Result<Opened, Error> {
        open(self.config(store)?).await
    }

    /// Opens a store of many gateways, with a file of watermarks that no other process has.
    ///
    /// # Errors
    /// It cannot be opened.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    async fn open_shared(&self, store: &str) -> Result<Opened, Error> {
        self.make_folder()?;
        // What an earlier release has left in the working folder knows what it has written.
        let left = self.folder.join("oncegate.watermarks");
        let left = left.exists().then_some(left);
        let numbered = (1..=MAX_FILES).map(|number| self.watermarks(store, number));
        for path in left.into_iter().chain(numbered) {
            let mut config = self.config(store)?;
            let watermarks = match &mut config.store {
                #[cfg(feature = "redis")]
                StoreAt::Redis(settings) => &mut settings.watermarks,
                #[cfg(feature = "postgres")]
                StoreAt::Postgres(settings) => &mut settings.watermarks,
                StoreAt::Sqlite(_) => {
                    return Err(Error::Other("--store names no shared store".into()));
                }
            };
            must_be_ours([&*path, &path.with_added_extension("lock")].into_iter())?;
            *watermarks = path;
            match open(config).await {
                Err(Error::Shared(OpenError::Watermarks(WatermarksError::InUse(_)))) => {}
                opened => return opened,
            }
        }
        Err(Error::Other(format!(
            "{MAX_FILES} clients use this store already under this name"
        )))
    }

    /// A file of watermarks. They belong to one store, which counts without its credentials.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    fn watermarks(&self, store: &str, number: usize) -> PathBuf {
        let address = store.rsplit_once('@').map_or(store, |(_, address)| address);
        let address = hex::encode(&Sha256::digest(address)[..6]);
        let name = format!("{}-{address}-{number}.watermarks", self.name());
        self.data.join(name)
    }

    /// Opens a file; `None`: another process has it and takes calls.
    ///
    /// Also says whether it waited for a draining process.
    async fn open_file(
        &self,
        path: &Path,
        gone: &CancellationToken,
    ) -> Result<(Option<Opened>, bool), Error> {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let files = sqlite::files_of(path);
        must_be_ours(std::iter::once(folder).chain(files.iter().map(PathBuf::as_path)))?;
        let (draining, came) = (Draining::of(path), Instant::now());
        let mut has_waited = false;
        loop {
            let mut config = self.config("sqlite:oncegate.db")?;
            config.store = StoreAt::Sqlite(path.to_owned());
            match open(config).await {
                Ok(opened) => {
                    draining.end();
                    return Ok((Some(opened), has_waited));
                }
                Err(Error::Sqlite(sqlite::OpenError::InUse(_)))
                    if came.elapsed() < NOTICED
                        || draining.is_there() && came.elapsed() < PATIENCE =>
                {
                    has_waited |= draining.is_there();
                    tokio::select! {
                        () = sleep(LOOK_AGAIN) => {}
                        () = gone.cancelled() => {
                            return Err(Error::Other("the client is gone".into()));
                        }
                    }
                }
                Err(Error::Sqlite(sqlite::OpenError::InUse(_))) => return Ok((None, has_waited)),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether a store has calls whose outcome is unknown.
async fn has_unknown(opened: &Opened) -> bool {
    let census = opened.records.census().await;
    census.is_ok_and(|rows| {
        rows.iter()
            .any(|row| row.state == "unknown" && row.calls > 0)
    })
}

/// Whether a store's name is the address of a Redis of any kind or of a PostgreSQL.
fn is_shared(store: &str) -> bool {
    store
        .split_once("://")
        .is_some_and(|(scheme, _)| scheme.starts_with("redis") || scheme.starts_with("postgres"))
}

/// Serves one client until its input ends and its calls have ended.
///
/// `tell` says what an operator should know. `stop`: nothing new is taken, and calls are finished; `at_once`: nothing
/// is waited for, and calls that run are recorded as unknown.
///
/// # Errors
/// The store cannot be opened, or can no longer be trusted.
pub async fn wrap(
    wrapped: &Wrapped,
    (input, output): (
        impl AsyncRead + Unpin + Send + 'static,
        impl AsyncWrite + Unpin + Send + 'static,
    ),
    tell: impl Fn(String) + Send + Sync + 'static,
    stop: CancellationToken,
    at_once: CancellationToken,
) -> Result<(), Error> {
    let gone = stop.child_token();
    let input = stdio::ahead(input, gone.clone());
    #[cfg(feature = "console")]
    let place = wrapped
        .options
        .approve
        .as_ref()
        .map(|_| wrapped.place())
        .transpose()?;
    let (opened, draining) = wrapped.open(&tell, &gone).await?;
    let Opened {
        gateway,
        wings,
        fatal,
        config,
        ..
    } = opened;
    let server = config.server;
    let (ops, _) = Ops::of(None, false);
    let http = Http {
        gateway: gateway.clone(),
        tokens: Tokens::default(),
        max_body: MaxBody {
            bytes: server.max_body,
            time: server.body_timeout,
        },
        ops,
        is_tls: false,
    };
    #[cfg(feature = "console")]
    let _desk = place
        .map(|place| {
            let at = (
                wrapped.data.clone(),
                desk::has_display(&wrapped.environment),
            );
            desk::begin((&gateway, &wings), place, at, &http, server.bounds, tell)
        })
        .transpose()?;
    let path = format!("/mcp/{}", wrapped.name());
    let path = path
        .parse()
        .map_err(|_| Error::Other(format!("{path:?} is not a path")))?;
    let drains = || draining.iter().for_each(Draining::begin);
    let router = routes::upstream_router(&http, &wings);
    let serving = stdio::serve(router, path, server.max_body, input, output, &stop, drains);
    let end_loops = CancellationToken::new();
    let mut loops = loops::begin(&gateway, &wings, config.limits.timings, &end_loops);
    let ended = tokio::select! {
        biased;
        () = fatal.cancelled() => return Err(Error::StoreFailed),
        () = at_once.cancelled() => Ok(()),
        () = serving => Ok(()),
        // These end only when they are told to.
        _ = loops.join_next() => Err(Error::Other(LOOP_ENDED.into())),
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
    draining.iter().for_each(Draining::end);
    ended
}
