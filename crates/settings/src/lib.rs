//! The configuration: defaults, then the file, then the environment.
//!
//! It is checked once, and every mistake is reported with its place. Only `app` sees the whole of
//! it.

mod audit;
mod clear; // secrets in the file
mod common; // settings and checks that several sections have
mod compensations; // whether compensating calls can be made
mod mcp; // the endpoint for clients that speak MCP
mod memory; // how much memory there is
mod outcomes; // what the statuses of a tool mean
mod proxies; // APIs that callers use as they are
mod reader; // TOML with places
mod reconciliations; // reconciliations and the webhook
mod sagas;
mod server; // where it listens, and its bounds
mod store; // where records are kept
mod tokens; // bearer tokens
mod tools; // one tool
mod tracing; // where spans go
mod upstreams; // MCP servers

#[cfg(test)]
mod fuzz_tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sha2::{Digest, Sha256};

pub use self::reader::{Environment, Mistake, Place};
use self::reader::{Reader, Section, Spot};
pub use self::server::Server;
pub use self::store::StoreAt;
pub use self::tokens::{NewToken, SECRET_BYTES};
pub use self::tracing::Tracing;
use oncegate_engine::reconcile::Reconciliation;
use oncegate_engine::{Limits, ToolAt, UpstreamAt};
use oncegate_rules::caller::{Scope, Token};
use oncegate_rules::pace::Pace;
use oncegate_rules::saga;
use oncegate_store::Keys;
use oncegate_tools::outside::Webhook;

/// A configuration that fits together.
#[derive(Debug)]
pub struct Config {
    pub server: Server,
    pub log: Log,
    /// Where spans go; `None`: nowhere.
    pub tracing: Option<Tracing>,
    pub store: StoreAt,
    /// The keys that encrypt arguments and results.
    pub store_keys: Option<Keys>,
    /// Empty: open mode.
    pub tokens: Vec<Token>,
    pub tools: Vec<ToolAt>,
    pub upstreams: Vec<UpstreamAt>,
    pub reconciliations: Vec<Reconciliation>,
    pub webhook: Option<Webhook>,
    pub mcp: mcp::Settings,
    pub limits: Limits,
    /// Warnings to log at every start; see [`Config::warnings_at`].
    pub warnings: Vec<String>,
    /// The settings of the file that are secrets in clear.
    pub in_clear: Vec<String>,
    /// What `check` says beside the warnings.
    pub notes: Vec<String>,
    pub written: Written,
}

/// The configuration as digests.
///
/// They show later which settings have changed, without keeping secrets.
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

    /// The settings, with their sections, that differ between two configurations.
    pub fn differing<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let keys: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differs = |key: &&String| self.0.get(*key) != other.0.get(*key);
        keys.into_iter()
            .filter(differs)
            .map(String::as_str)
            .collect()
    }
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
            Some(config) if mistakes.is_empty() => Ok(Self {
                in_clear: in_clear(text),
                ..config
            }),
            _ => Err(mistakes),
        }
    }

    /// The same, with times that no file sets.
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

    /// The consequences of the bounds on memory, in a sentence.
    pub fn memory(&self) -> String {
        server::memory(&self.server, &self.limits)
    }

    /// The warnings of a start at this time.
    pub fn warnings_at(&self, now: Timestamp) -> Vec<String> {
        let tokens = self.tokens.iter().filter_map(|token| token.warning(now));
        self.warnings.iter().cloned().chain(tokens).collect()
    }
}

/// The settings of a file that are secrets in clear.
fn in_clear(text: &str) -> Vec<String> {
    let nothing = Environment::new();
    let file = Reader::new(text, &nothing);
    clear::secrets(&file.root().leaves())
}

/// Reads all settings; `None` only if there is a mistake.
///
/// It goes on after a mistake, to find the others.
fn read_all(mut root: Section<'_, '_>) -> Option<Config> {
    let written = Written::of(&root);
    let log = log(root.defaulted("log"));
    let (tracing, sample) = root
        .section("tracing")
        .map_or((None, None), tracing::tracing);
    let (store, store_keys) = root.section("store").map_or((None, None), store::store);
    root.check(root.has_taken("store"), "store", "this section is missing");
    let strict = outcomes::usual_outcomes(&mut root).unwrap_or(false);
    let upstreams = upstreams::upstreams(&mut root, strict);
    let tools = root.named("tools", |name, section| {
        tools::tool(name, section, &upstreams, strict)
    });
    let (mut tools, undone): (Vec<ToolAt>, Vec<Spot>) = tools.into_iter().unzip();
    for why in upstreams::link_probes(&mut tools)
        .into_iter()
        .chain(upstreams::doubled(&tools))
    {
        root.mistake("tools", &why);
    }
    let tokens = tokens::tokens(root.defaulted("auth"));
    let (server, limits) = server::server(&mut root, tokens.is_empty());
    let proxies = root.named("proxies", |name, section| {
        proxies::proxy(name, section, tokens.is_empty(), strict)
    });
    for proxy in &proxies {
        let name = &proxy.tool.name;
        let is_tool = tools.iter().any(|at| at.tool.name == *name);
        let why =
            format!("{name} is a tool already, and stands in the ledger and in metrics as one");
        root.check(!is_tool, "proxies", &why);
    }
    let limits = Limits {
        sample: sample.unwrap_or(limits.sample),
        sagas: sagas::sagas(root.defaulted("sagas")),
        audit_retention: audit::audit(root.defaulted("audit")),
        ..limits
    };
    for (at, spot) in tools.iter().zip(&undone) {
        for why in compensations::mistakes(at, &tools) {
            root.mistake_at(spot, &why);
        }
        if let Some(warning) = compensations::shown_secrets(at, &tools) {
            root.warn(warning);
        }
    }
    tools.extend(proxies);
    let tool_names: Vec<&str> = tools.iter().map(|at| at.tool.name.as_str()).collect();
    for scope in tokens.iter().flat_map(|token| &token.caller.scopes) {
        if let Scope::CallTool(name) = scope
            && !tool_names.contains(&name.as_str())
        {
            root.warn(format!(
                "a token may call {name}, but there is no such tool"
            ));
        }
    }
    for why in retention_mistakes(&limits.sagas, &tools) {
        root.mistake("sagas", &why);
    }
    for at in tools
        .iter()
        .filter(|at| at.tool.deadline > limits.shutdown_grace)
    {
        let (name, deadline) = (&at.tool.name, at.tool.deadline);
        root.warn(format!(
            "{name}: its deadline of {deadline:?} is longer than shutdown_grace; a stop may leave its calls unknown"
        ));
    }
    let webhook = root.section("webhook").and_then(reconciliations::webhook);
    let has_webhook = root.has_taken("webhook");
    let reconciliations = root.named("reconciliations", |name, section| {
        reconciliations::reconciliation(name, section, &tools, has_webhook)
    });
    let mcp = mcp::mcp(root.defaulted("mcp"));
    let store = store?;
    let notes = upstreams.values().flatten().filter_map(upstreams::note);
    let notes = notes.collect();
    Some(Config {
        server,
        log,
        tracing,
        store,
        store_keys,
        tokens,
        tools,
        upstreams: upstreams.into_values().flatten().collect(),
        reconciliations,
        webhook,
        mcp,
        limits,
        warnings: root.warnings(),
        in_clear: Vec::new(),
        notes,
        written,
    })
}

/// Tools whose calls are kept longer than sagas.
pub fn retention_mistakes(sagas: &saga::Policy, tools: &[ToolAt]) -> Vec<String> {
    let why = |at: &ToolAt| {
        let name = &at.tool.name;
        format!(
            "retention: it is shorter than that of {name}: a saga of the same name would take up its old calls"
        )
    };
    let outlived = tools.iter();
    let outlived = outlived.filter(|at| sagas.retention < at.tool.retention);
    outlived.map(why).collect()
}

fn log(mut section: Section<'_, '_>) -> Log {
    let words = [("json", LogFormat::Json), ("pretty", LogFormat::Pretty)];
    let format = section.word_or("format", &words, LogFormat::Json);
    let level = section.get_or("level", "info".to_owned());
    let is_level = level.parse::<tracing_subscriber::filter::Targets>().is_ok();
    let why = "this is not a log level; one looks like \"info\" or \"info,oncegate=debug\"";
    section.check(is_level, "level", why);
    Log { format, level }
}
