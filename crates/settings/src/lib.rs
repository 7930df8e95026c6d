//! The configuration: defaults, then the file, then the environment.
//!
//! It is checked once, and every mistake is reported with its place. Only `app` sees the whole of
//! it.
//!
//! ```
//! use oncegate_settings::{Config, Environment};
//!
//! let text = r#"
//! [store]
//! url = "sqlite:oncegate.db"
//! [tools.ship]
//! url = "http://localhost:9100/ship"
//! timeout = "soon"
//! "#;
//! // `()`: without the sections of wings.
//! let mistakes = Config::<()>::read(text, &Environment::new()).expect_err("a mistake");
//! assert!(mistakes[0].to_string().starts_with("6:11: tools.ship.timeout: "));
//! ```

mod approval; // approval of calls
mod audit;
mod clear; // secrets in the file
mod common; // settings and checks that several sections have
mod compensations; // whether compensating calls can be made
mod memory; // how much memory there is
pub mod outcomes; // what the statuses of a tool mean
pub mod reader; // TOML with places
mod sagas;
mod server; // where it listens, and its bounds
mod store; // where records are kept
pub mod tokens; // bearer tokens
pub mod tools; // one tool
mod tracing; // where spans go
mod upstreams; // MCP servers
mod webhook; // a system that is told what needs an operator
mod wings; // sections that a wing reads by itself

#[cfg(test)]
mod fuzz_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sha2::{Digest, Sha256};

pub use self::reader::{Environment, Mistake, Place};
use self::reader::{Files, Reader, Section, Spot};
pub use self::server::Server;
pub use self::store::StoreAt;
pub use self::tokens::{NewToken, SECRET_BYTES};
pub use self::tracing::Tracing;
pub use self::wings::{Known, Wings};
use oncegate_engine::{Limits, ToolAt};
use oncegate_rules::caller::{Scope, Token};
use oncegate_rules::saga;
use oncegate_rules::timings::Timings;
use oncegate_store::Keys;
use oncegate_tools::UpstreamAt;
use oncegate_tools::outside::Webhook;

/// A configuration that fits together. `W`: the settings of wings.
#[derive(Debug)]
pub struct Config<W = ()> {
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
    pub webhook: Option<Webhook>,
    /// What wings have read.
    pub wings: W,
    pub limits: Limits,
    /// Warnings to log at every start; see [`Config::warnings_at`].
    pub warnings: Vec<String>,
    /// The settings that are secrets in clear, and the file that has them, if it was included.
    pub in_clear: Vec<InClear>,
    /// What `check` says beside the warnings.
    pub notes: Vec<String>,
    pub written: Written,
}

/// Secrets in clear of one file.
#[derive(Debug)]
pub struct InClear {
    /// `None`: the file that was read first.
    pub file: Option<PathBuf>,
    pub settings: Vec<String>,
}

/// The configuration as digests.
///
/// They show later which settings have changed, without keeping secrets.
#[derive(Debug, Clone, Default)]
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

    /// A digest of all settings.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for (path, value) in &self.0 {
            digest.update((path.len() as u64).to_be_bytes());
            digest.update(path);
            digest.update(value);
        }
        digest.finalize().into()
    }

    /// The first 48 bits of the digest, as a number for metrics.
    pub fn number(&self) -> i64 {
        let digest = self.digest();
        digest[..6]
            .iter()
            .fold(0, |number, byte| number << 8 | i64::from(*byte))
    }

    /// Whether a setting is there, or one below it.
    pub fn has(&self, path: &str) -> bool {
        let below = self.0.range(path.to_owned()..);
        let mut is = below.map(|(found, _)| found.strip_prefix(path));
        is.next()
            .flatten()
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
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

impl<W: Wings> Config<W> {
    /// Reads a configuration that includes no files.
    ///
    /// # Errors
    /// Every mistake that can be found, in the order of the file.
    pub fn read(text: &str, environment: &Environment) -> Result<Self, Vec<Mistake>> {
        Self::read_all(&Files::alone(text), environment)
    }

    /// Reads the configuration in a file, with the files that it includes.
    ///
    /// # Errors
    /// Every mistake that can be found, in the order of the files.
    pub fn read_file(
        path: &Path,
        text: &str,
        environment: &Environment,
    ) -> Result<Self, Vec<Mistake>> {
        Self::read_all(&Files::including(path, text), environment)
    }

    fn read_all(files: &Files, environment: &Environment) -> Result<Self, Vec<Mistake>> {
        let reader = Reader::new(files, environment);
        let config = read_all(reader.root());
        let mistakes = reader.mistakes();
        match config {
            Some(config) if mistakes.is_empty() => Ok(Self {
                in_clear: in_clear(files),
                ..config
            }),
            _ => Err(mistakes),
        }
    }

    /// The same, with times that no file sets.
    #[must_use]
    pub fn at_pace(mut self, timings: Timings) -> Self {
        self.limits.sagas.look_again = timings.saga_looks_again;
        for at in &mut self.tools {
            at.tool.lease_margin = timings.lease_margin;
        }
        match &mut self.store {
            StoreAt::Sqlite(_) => {}
            #[cfg(feature = "redis")]
            StoreAt::Redis(settings) => settings.timings = timings,
            #[cfg(feature = "postgres")]
            StoreAt::Postgres(settings) => settings.timings = timings,
        }
        self.limits.timings = timings;
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

/// The settings of each file that are secrets in clear.
fn in_clear(files: &Files) -> Vec<InClear> {
    let nothing = Environment::new();
    let each = files.each().map(|(path, file)| InClear {
        file: path.map(Path::to_owned),
        settings: clear::secrets(&Reader::new(&file, &nothing).root().leaves()),
    });
    each.filter(|file| !file.settings.is_empty()).collect()
}

/// Reads all settings; `None` only if there is a mistake.
///
/// It goes on after a mistake, to find the others.
fn read_all<W: Wings>(mut root: Section<'_, '_>) -> Option<Config<W>> {
    let written = Written::of(&root);
    for (key, why) in W::LEFT_OUT {
        if root.has(key)
            && let Some(section) = root.section(key)
        {
            section.refuse(why);
        }
    }
    let log = log(root.defaulted("log"));
    let (tracing, sample) = root
        .section("tracing")
        .map_or((None, None), tracing::tracing);
    let (store, store_keys) = root
        .section("store")
        .map_or((None, None), |section| store::store(section, W::NO_STORES));
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
    let tenants = tokens.iter().map(|token| &token.caller.tenant);
    let known = Known {
        tools: &tools,
        is_open: tokens.is_empty(),
        tenants: tenants.collect::<BTreeSet<_>>().len(),
        strict,
    };
    let of_wings = W::tools(&mut root, &known);
    let (approvals, approval_console) = approval::limits(root.defaulted("approvals"));
    let limits = Limits {
        approvals,
        approval_console,
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
    for why in approval::mistakes(&tools, upstreams.values().flatten(), &tokens) {
        root.mistake("tools", &why);
    }
    for warning in approval::warnings(&tools) {
        root.warn(warning);
    }
    let default_timeout = tools::note(&tools);
    tools.extend(of_wings);
    let tool_names: Vec<&str> = tools.iter().map(|at| at.tool.name.as_str()).collect();
    for scope in tokens.iter().flat_map(|token| &token.caller.scopes) {
        let (may, name) = match scope {
            Scope::CallTool(name) => ("call", name),
            Scope::ApproveTool(name) => ("approve", name),
            Scope::Call | Scope::Read | Scope::Admin | Scope::Approve => continue,
        };
        if !tool_names.contains(&name.as_str()) {
            root.warn(format!(
                "a token may {may} {name}, but there is no such tool"
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
    let webhook = root.section("webhook").and_then(webhook::webhook);
    let has_webhook = root.has_taken("webhook");
    if !has_webhook {
        approval::warn_without_webhook(&tools, limits.approval_console.as_ref(), &root);
    }
    let wings = W::read(&mut root, &tools, has_webhook);
    let store = store?;
    let notes = upstreams.values().flatten().filter_map(upstreams::note);
    let notes = default_timeout.into_iter().chain(notes).collect();
    Some(Config {
        server,
        log,
        tracing,
        store,
        store_keys,
        tokens,
        tools,
        upstreams: upstreams.into_values().flatten().collect(),
        webhook,
        wings,
        limits,
        warnings: root.warnings(),
        in_clear: Vec::new(),
        notes,
        written,
    })
}

/// Whether a setting is one of these, or in a section of theirs.
pub fn is_below(key: &str, all: &[&str]) -> bool {
    all.iter().any(|one| {
        key.strip_prefix(one)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
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
