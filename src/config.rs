//! The configuration: defaults, then the file, then the environment; checked once, every mistake
//! reported with its place. Only `app` sees the whole of it.

mod compensations; // whether what undoes a tool's calls can be made
mod memory; // how much of it there is
mod reader; // TOML with places
mod reconciliations; // what is said of reconciliations, and of the webhook
mod sagas; // what is done about sagas
mod tokens; // what is said of one bearer token
mod tools; // what is said of one tool
mod tracing; // where spans go

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use self::reader::{Bytes, Count, Reader, Section, Spot};
pub use self::reader::{Environment, Mistake, Place};
pub use self::tokens::{NewToken, SECRET_BYTES};
pub use self::tracing::Tracing;
use crate::budget::Budget;
use crate::core::caller::{Scope, Token};
use crate::core::pace::Pace;
use crate::core::saga;
use crate::downstream::outside::Webhook;
use crate::gateway::reconcile::Reconciliation;
use crate::gateway::{Limits, ToolAt};
use crate::serve::{Bounds, Network, Tls, Unfit};
use crate::store::sealed::Keys;
use crate::store::{Durability, redis};

/// A configuration that fits together.
#[derive(Debug)]
pub struct Config {
    pub server: Server,
    pub log: Log,
    /// Where spans go; `None`: nowhere.
    pub tracing: Option<Tracing>,
    pub store: StoreAt,
    /// With which arguments and results are encrypted.
    pub store_keys: Option<Keys>,
    /// None at all: open mode.
    pub tokens: Vec<Token>,
    pub tools: Vec<ToolAt>,
    pub reconciliations: Vec<Reconciliation>,
    pub webhook: Option<Webhook>,
    pub limits: Limits,
    /// What is allowed, but should be said aloud at every start; see [`Config::warnings_at`].
    pub warnings: Vec<String>,
    pub written: Written,
}

/// What was written, as digests: to see later what has changed, without keeping secrets.
#[derive(Debug, Default)]
pub struct Written(BTreeMap<String, [u8; 32]>);

impl Written {
    fn of(root: &Section<'_, '_>) -> Self {
        let digest = |value: serde_json::Value| Sha256::digest(value.to_string()).into();
        Self(
            root.leaves()
                .into_iter()
                .map(|(path, value)| (path, digest(value)))
                .collect(),
        )
    }

    /// The keys, with their sections, that are not the same in both.
    pub fn differing<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let keys: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differs = |key: &&String| self.0.get(*key) != other.0.get(*key);
        keys.into_iter()
            .filter(differs)
            .map(String::as_str)
            .collect()
    }
}

/// Where records are kept.
#[derive(Debug, Clone)]
pub enum StoreAt {
    /// A file of this gateway alone.
    Sqlite(PathBuf),
    /// Shared with other gateways.
    Redis(Box<redis::Settings>),
}

impl fmt::Display for StoreAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Redis(settings) => settings.target.fmt(f),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Server {
    pub listen: SocketAddr,
    /// Where the ops doors are; `None`: at `listen`.
    pub ops_listen: Option<SocketAddr>,
    /// The SHA-256 of the token that opens them.
    pub ops_token: Option<[u8; 32]>,
    /// Of a request, in bytes.
    pub max_body: usize,
    /// How long that may take to arrive.
    pub body_timeout: Duration,
    /// Of a tool's answer, in bytes.
    pub max_result: usize,
    pub bounds: Bounds,
    /// How long all is served as before when the gateway is told to stop, so that others may notice.
    pub drain_delay: Duration,
    pub tls: Option<Tls>,
}

#[derive(Debug, Clone)]
pub struct Log {
    pub format: LogFormat,
    /// Directives as of `RUST_LOG`.
    pub level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Pretty,
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Every mistake that can be found, in the order of the file.
    pub fn read(text: &str, environment: &Environment) -> Result<Self, Vec<Mistake>> {
        let reader = Reader::new(text, environment);
        let config = read_all(reader.root());
        let mistakes = reader.mistakes();
        match config {
            Some(config) if mistakes.is_empty() => Ok(config),
            _ => Err(mistakes),
        }
    }

    /// The same with other times than the usual ones, which no file sets.
    #[must_use]
    pub fn at_pace(mut self, pace: Pace) -> Self {
        self.limits.sagas.look_again = pace.saga_looks_again;
        for at in &mut self.tools {
            at.tool.lease_margin = pace.lease_margin;
        }
        if let StoreAt::Redis(settings) = &mut self.store {
            settings.pace = pace;
        }
        self.limits.pace = pace;
        self
    }

    /// What follows from the bounds on memory, in a sentence.
    pub fn memory(&self) -> String {
        memory::describe(&self.server, &self.limits)
    }

    /// What should be said at a start at this time.
    pub fn warnings_at(&self, now: Timestamp) -> Vec<String> {
        let tokens = self.tokens.iter().filter_map(|token| token.warning(now));
        self.warnings.iter().cloned().chain(tokens).collect()
    }
}

/// `None` only if there is a mistake; then the rest was read all the same, to find the others.
fn read_all(mut root: Section<'_, '_>) -> Option<Config> {
    let mut warnings = Vec::new();
    let written = Written::of(&root);
    let log = root.section("log").map_or_else(default_log, log);
    let (tracing, sample) = root
        .section("tracing")
        .map_or((None, None), tracing::tracing);
    let (store, store_keys) = root
        .section("store")
        .map_or((None, None), |section| store(section, &mut warnings));
    if !root.has_taken("store") {
        root.mistake("store", "this section is missing");
    }
    let (tools, undone): (Vec<ToolAt>, Vec<Spot>) = root
        .named_sections("tools")
        .into_iter()
        .filter_map(|(name, section)| tools::tool(&name, section, &mut warnings))
        .unzip();
    let tokens = root.section("auth").map_or_else(Vec::new, tokens::tokens);
    let server = root
        .section("server")
        .map(|section| server(section, tokens.is_empty()));
    let (server, limits) = server.unwrap_or_else(default_server);
    let sample = sample.unwrap_or(limits.sample);
    let limits = Limits {
        sample,
        sagas: root.section("sagas").map(sagas::sagas).unwrap_or_default(),
        ..limits
    };
    let tool_names: Vec<&str> = tools.iter().map(|at| at.tool.name.as_str()).collect();
    for scope in tokens.iter().flat_map(|token| &token.caller.scopes) {
        if let Scope::CallTool(name) = scope
            && !tool_names.contains(&name.as_str())
        {
            warnings.push(format!(
                "a token may call {name}, but there is no such tool"
            ));
        }
    }
    for (at, spot) in tools.iter().zip(&undone) {
        for why in compensations::mistakes(at, &tools) {
            root.mistake_at(spot, &why);
        }
    }
    for why in retention_mistakes(&limits.sagas, &tools) {
        root.mistake("sagas", &why);
    }
    for why in store
        .iter()
        .flat_map(|store| one_master_mistakes(store, &tools))
    {
        root.mistake("tools", &why);
    }
    for at in tools
        .iter()
        .filter(|at| at.tool.deadline > limits.shutdown_grace)
    {
        let (name, deadline) = (&at.tool.name, at.tool.deadline);
        warnings.push(format!(
            "{name}: its deadline of {deadline:?} is longer than shutdown_grace; a stop may leave its calls unknown"
        ));
    }
    let webhook = root
        .section("webhook")
        .and_then(|section| reconciliations::webhook(section, &mut warnings));
    let around = reconciliations::Around {
        tools: &tools,
        has_webhook: root.has_taken("webhook"),
    };
    let named = root.named_sections("reconciliations").into_iter();
    let reconciliations = named
        .filter_map(|(name, section)| {
            reconciliations::reconciliation(&name, section, &around, &mut warnings)
        })
        .collect();
    root.finish();
    let store = store?;
    Some(Config {
        server,
        log,
        tracing,
        store,
        store_keys,
        tokens,
        tools,
        reconciliations,
        webhook,
        limits,
        warnings,
        written,
    })
}

/// Whose calls are kept for longer than sagas are.
pub fn retention_mistakes(sagas: &saga::Policy, tools: &[ToolAt]) -> Vec<String> {
    let why = |at: &ToolAt| {
        let name = &at.tool.name;
        format!(
            "retention: it is shorter than that of {name}: a saga of the same name would take up its old calls"
        )
    };
    tools
        .iter()
        .filter(|at| sagas.retention < at.tool.retention)
        .map(why)
        .collect()
}

/// Which tools want what this store cannot give.
pub fn one_master_mistakes(store: &StoreAt, tools: &[ToolAt]) -> Vec<String> {
    if !matches!(store, StoreAt::Redis(settings) if settings.target.is_cluster()) {
        return Vec::new();
    }
    let why = |at: &ToolAt| {
        let name = &at.tool.name;
        format!(
            "{name}: an exclusive session, a budget and similar calls need a store with one master; on a cluster a session and a call are on different ones"
        )
    };
    tools
        .iter()
        .filter(|at| at.tool.needs_one_master())
        .map(why)
        .collect()
}

fn default_log() -> Log {
    Log {
        format: LogFormat::Json,
        level: "info".into(),
    }
}

fn log(mut section: Section<'_, '_>) -> Log {
    let default = default_log();
    let format = section.word(
        "format",
        &[("json", LogFormat::Json), ("pretty", LogFormat::Pretty)],
    );
    let level = section.get("level").unwrap_or(default.level);
    if level
        .parse::<tracing_subscriber::filter::Targets>()
        .is_err()
    {
        section.mistake(
            "level",
            "this is no log level; one looks like \"info\" or \"info,oncegate=debug\"",
        );
    }
    section.finish();
    Log {
        format: format.unwrap_or(default.format),
        level,
    }
}

/// The longest that a duplicate waits, as long as `Prefer: wait` may ask for.
const MAX_JOIN_WAIT: Duration = Duration::from_secs(60);

fn default_server() -> (Server, Limits) {
    let server = Server {
        listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
        ops_listen: None,
        ops_token: None,
        max_body: 1 << 20,
        body_timeout: Duration::from_secs(15),
        max_result: 1 << 20,
        bounds: Bounds {
            max_connections: 10_000,
            per_address: 5_000,
            proxies: Vec::new(),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
        },
        drain_delay: Duration::ZERO,
        tls: None,
    };
    let limits = Limits {
        join_wait: Duration::from_secs(10),
        max_running: 1_000,
        max_waiting: 10_000,
        shutdown_grace: Duration::from_secs(30),
        sample: 1.0,
        sagas: saga::Policy::default(),
        pace: Pace::default(),
        memory: Budget::new(memory::default_budget()),
    };
    (server, limits)
}

fn server(mut section: Section<'_, '_>, is_open: bool) -> (Server, Limits) {
    let (server, limits) = default_server();
    let listen = section.parsed("listen", address).unwrap_or(server.listen);
    if is_open && !listen.ip().is_loopback() {
        section.mistake(
            "listen",
            "without [[auth.tokens]] everyone is let in, so the address must be a loopback one",
        );
    }
    let ops_listen = section.parsed("ops_listen", address);
    if ops_listen == Some(listen) && listen.port() != 0 {
        section.mistake(
            "ops_listen",
            "this is server.listen; the ops doors need another address or port",
        );
    }
    let ops_token = section.parsed("ops_token", |text| {
        let digest = hex::decode(text)
            .ok()
            .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        digest.ok_or_else(|| "this must be the SHA-256 of the token in 64 hex digits".to_owned())
    });
    let max_connections = section
        .get("max_connections")
        .map_or(server.bounds.max_connections, |Count(count)| count as usize);
    let per_address = section.get("max_connections_per_address");
    let server = Server {
        listen,
        ops_listen,
        ops_token,
        max_body: section.get_or("max_body", Bytes(server.max_body)).0,
        body_timeout: section.get_or("body_timeout", server.body_timeout),
        max_result: section.get_or("max_result", Bytes(server.max_result)).0,
        bounds: Bounds {
            max_connections,
            per_address: per_address.map_or_else(
                || (max_connections / 2).max(FEW_CONNECTIONS),
                |Count(count)| count as usize,
            ),
            proxies: proxies(&mut section),
            header_timeout: section.get_or("header_timeout", server.bounds.header_timeout),
            idle_timeout: section.get_or("idle_timeout", server.bounds.idle_timeout),
        },
        drain_delay: section.get_or("drain_delay", server.drain_delay),
        tls: section.section("tls").and_then(tls),
    };
    let limits = Limits {
        join_wait: section.get_or("join_wait", limits.join_wait),
        max_running: section
            .get("max_running")
            .map_or(limits.max_running, |Count(count)| count as usize),
        max_waiting: section
            .get("max_waiting")
            .map_or(limits.max_waiting, |Count(count)| count as usize),
        shutdown_grace: section.get_or("shutdown_grace", limits.shutdown_grace),
        sample: limits.sample,
        sagas: limits.sagas,
        pace: limits.pace,
        memory: section
            .get("max_memory")
            .map_or(limits.memory, |Bytes(bytes)| Budget::new(bytes)),
    };
    if let Some(why) = memory::mistake(&server, &limits) {
        section.mistake("max_memory", &why);
    }
    if limits.join_wait > MAX_JOIN_WAIT {
        section.mistake(
            "join_wait",
            "no caller waits for a running call for more than a minute",
        );
    }
    section.finish();
    (server, limits)
}

fn proxies(section: &mut Section<'_, '_>) -> Vec<Network> {
    let texts: Vec<String> = section.get("proxies").unwrap_or_default();
    let networks: Result<Vec<Network>, String> =
        texts.iter().map(|text| Network::parse(text)).collect();
    networks.unwrap_or_else(|why| {
        section.mistake("proxies", &why);
        Vec::new()
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no address; one looks like \"127.0.0.1:8080\""))
}

fn tls(mut section: Section<'_, '_>) -> Option<Tls> {
    let (cert, key): (Option<String>, Option<String>) = (section.need("cert"), section.need("key"));
    let tls =
        cert.zip(key).and_then(
            |(cert, key)| match Tls::read(Path::new(&cert), Path::new(&key)) {
                Ok(tls) => Some(tls),
                Err(Unfit::Cert(why)) => {
                    section.mistake("cert", &why);
                    None
                }
                Err(Unfit::Key(why)) => {
                    section.mistake("key", &why);
                    None
                }
            },
        );
    section.finish();
    tls
}

/// Lower bound of the default of `max_connections_per_address`.
const FEW_CONNECTIONS: usize = 16;

/// What a store can be worth.
const DURABILITIES: [(&str, Durability); 3] = [
    ("strict", Durability::Strict),
    ("bounded", Durability::Bounded),
    ("relaxed", Durability::Relaxed),
];

fn store(
    mut section: Section<'_, '_>,
    warnings: &mut Vec<String>,
) -> (Option<StoreAt>, Option<Keys>) {
    // SQLite is of the strictest class, so it meets every demand.
    let durability = section
        .word("durability", &DURABILITIES)
        .unwrap_or(Durability::Strict);
    let url: Option<String> = section.need("url");
    let store = match url.as_deref().map(|url| (url, url.split_once(':'))) {
        Some((_, Some(("sqlite", path)))) if !path.is_empty() => Some(StoreAt::Sqlite(path.into())),
        Some((url, Some((scheme, _)))) if scheme.starts_with("redis") => {
            match redis::Target::parse(url) {
                Ok(target) => {
                    if target.is_plain_and_remote() {
                        warnings.push(format!(
                            "the store {target} is on another machine and without TLS"
                        ));
                    }
                    let declared = section.word("declared_durability", &DURABILITIES);
                    let ca: Option<String> = section.get("ca");
                    let watermarks: Option<String> = section.get("watermarks");
                    Some(StoreAt::Redis(Box::new(redis::Settings {
                        target,
                        durability,
                        declared,
                        ca: ca.map(PathBuf::from),
                        watermarks: watermarks
                            .unwrap_or_else(|| "oncegate.watermarks".into())
                            .into(),
                        pace: Pace::default(),
                    })))
                }
                Err(why) => {
                    section.mistake("url", &why);
                    None
                }
            }
        }
        Some(_) => {
            section.mistake(
                "url",
                "this names no store; one looks like \"sqlite:oncegate.db\" or \"redis://HOST:6379\"",
            );
            None
        }
        None => None,
    };
    if !matches!(store, Some(StoreAt::Redis(_))) {
        for key in ["declared_durability", "ca", "watermarks"] {
            if section.get::<String>(key).is_some() && store.is_some() {
                section.mistake(key, "this is for Redis only");
            }
        }
    }
    let keys = encryption_keys(&mut section);
    section.finish();
    (store, keys)
}

fn encryption_keys(section: &mut Section<'_, '_>) -> Option<Keys> {
    let texts: Vec<String> = section.get("encryption_keys").unwrap_or_default();
    let mut keys = Vec::new();
    for text in &texts {
        let key = hex::decode(text.trim())
            .ok()
            .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        match key {
            // The text is a secret, so it is not repeated.
            None => section.mistake(
                "encryption_keys",
                "each key is 64 hex digits: openssl rand -hex 32",
            ),
            Some(key) => keys.push(key),
        }
    }
    Keys::new(&keys)
}
