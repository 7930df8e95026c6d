//! The configuration: defaults, then the file, then the environment; checked once, every mistake
//! reported with its place. Only `app` sees the whole of it.

mod reader; // TOML with places

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Method, Url};

use self::reader::{Bytes, Count, Reader, Section, Switch};
pub use self::reader::{Environment, Mistake, Place};
use crate::core::caller::{Caller, Scope, Token};
use crate::core::key::{self, Pointer};
use crate::core::retry;
use crate::core::tool::{Declared, Effect, Schema, SuccessTest, Tool};
use crate::downstream::{Endpoint, secret_header};
use crate::gateway::{Limits, ToolAt};
use crate::store::{Durability, redis};

/// Attempts of one call, at the most.
const MAX_ATTEMPTS: u32 = 20;

/// A configuration that fits together.
#[derive(Debug)]
pub struct Config {
    pub server: Server,
    pub log: Log,
    pub store: StoreAt,
    /// None at all: open mode.
    pub tokens: Vec<Token>,
    pub tools: Vec<ToolAt>,
    pub limits: Limits,
    /// What is allowed, but should be said aloud at every start.
    pub warnings: Vec<String>,
}

/// Where records are kept.
#[derive(Debug, Clone)]
pub enum StoreAt {
    /// A file of this gateway alone.
    Sqlite(PathBuf),
    /// Shared with other gateways.
    Redis(redis::Settings),
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
    /// Of a request, in bytes.
    pub max_body: usize,
    /// Of a tool's answer, in bytes.
    pub max_result: usize,
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
}

/// `None` only if there is a mistake; then the rest was read all the same, to find the others.
fn read_all(mut root: Section<'_, '_>) -> Option<Config> {
    let mut warnings = Vec::new();
    let log = root.section("log").map_or_else(default_log, log);
    let store = root.section("store").and_then(|section| store(section, &mut warnings));
    if !root.has_taken("store") {
        root.mistake("store", "this section is missing");
    }
    let tools: Vec<ToolAt> = root
        .named_sections("tools")
        .into_iter()
        .filter_map(|(name, section)| tool(&name, section, &mut warnings))
        .collect();
    let tokens = root.section("auth").map_or_else(Vec::new, tokens);
    let server = root.section("server").map(|section| server(section, tokens.is_empty()));
    let (server, limits) = server.unwrap_or_else(default_server);
    let tool_names: Vec<&str> = tools.iter().map(|at| at.tool.name.as_str()).collect();
    for scope in tokens.iter().flat_map(|token| &token.caller.scopes) {
        if let Scope::CallTool(name) = scope
            && !tool_names.contains(&name.as_str())
        {
            warnings.push(format!("a token may call {name}, but there is no such tool"));
        }
    }
    root.finish();
    Some(Config { server, log, store: store?, tokens, tools, limits, warnings })
}

fn default_log() -> Log {
    Log { format: LogFormat::Json, level: "info".into() }
}

fn log(mut section: Section<'_, '_>) -> Log {
    let default = default_log();
    let format = section.word("format", &[("json", LogFormat::Json), ("pretty", LogFormat::Pretty)]);
    let level = section.get("level").unwrap_or(default.level);
    if level.parse::<tracing_subscriber::filter::Targets>().is_err() {
        section.mistake("level", "this is no log level; one looks like \"info\" or \"info,oncegate=debug\"");
    }
    section.finish();
    Log { format: format.unwrap_or(default.format), level }
}

fn default_server() -> (Server, Limits) {
    let server =
        Server { listen: SocketAddr::from(([127, 0, 0, 1], 8080)), max_body: 1 << 20, max_result: 1 << 20 };
    let limits = Limits {
        join_wait: Duration::from_secs(10),
        max_running: 1_000,
        max_waiting: 10_000,
        shutdown_grace: Duration::from_secs(30),
    };
    (server, limits)
}

fn server(mut section: Section<'_, '_>, is_open: bool) -> (Server, Limits) {
    let (server, limits) = default_server();
    let listen = section.parsed("listen", |text| {
        text.parse::<SocketAddr>()
            .map_err(|_| format!("{text:?} is no address; one looks like \"127.0.0.1:8080\""))
    });
    let listen = listen.unwrap_or(server.listen);
    if is_open && !listen.ip().is_loopback() {
        section.mistake(
            "listen",
            "without [[auth.tokens]] everyone is let in, so the address must be a loopback one",
        );
    }
    let server = Server {
        listen,
        max_body: section.get_or("max_body", Bytes(server.max_body)).0,
        max_result: section.get_or("max_result", Bytes(server.max_result)).0,
    };
    let limits = Limits {
        join_wait: section.get_or("join_wait", limits.join_wait),
        max_running: section.get("max_running").map_or(limits.max_running, |Count(count)| count as usize),
        max_waiting: section.get("max_waiting").map_or(limits.max_waiting, |Count(count)| count as usize),
        shutdown_grace: section.get_or("shutdown_grace", limits.shutdown_grace),
    };
    section.finish();
    (server, limits)
}

/// What a store can be worth.
const DURABILITIES: [(&str, Durability); 3] =
    [("strict", Durability::Strict), ("bounded", Durability::Bounded), ("relaxed", Durability::Relaxed)];

fn store(mut section: Section<'_, '_>, warnings: &mut Vec<String>) -> Option<StoreAt> {
    // SQLite is of the strictest class, so it meets every demand.
    let durability = section.word("durability", &DURABILITIES).unwrap_or(Durability::Strict);
    let url: Option<String> = section.need("url");
    let store = match url.as_deref().map(|url| (url, url.split_once(':'))) {
        Some((_, Some(("sqlite", path)))) if !path.is_empty() => Some(StoreAt::Sqlite(path.into())),
        Some((url, Some((scheme, _)))) if scheme.starts_with("redis") => match redis::Target::parse(url) {
            Ok(target) => {
                if target.is_plain_and_remote() {
                    warnings.push(format!("the store {target} is on another machine and without TLS"));
                }
                let declared = section.word("declared_durability", &DURABILITIES);
                let ca: Option<String> = section.get("ca");
                let watermarks: Option<String> = section.get("watermarks");
                Some(StoreAt::Redis(redis::Settings {
                    target,
                    durability,
                    declared,
                    ca: ca.map(PathBuf::from),
                    watermarks: watermarks.unwrap_or_else(|| "oncegate.watermarks".into()).into(),
                }))
            }
            Err(why) => {
                section.mistake("url", &why);
                None
            }
        },
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
    section.finish();
    store
}

fn tokens(mut section: Section<'_, '_>) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for mut section in section.list_of_sections("tokens") {
        let name: Option<String> = section.need("name");
        let tenant: Option<String> = section.need("tenant");
        let digest = section.need::<String>("sha256").and_then(|text| {
            let digest = hex::decode(&text).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
            if digest.is_none() {
                section.mistake("sha256", "this must be the SHA-256 of the token in 64 hex digits");
            }
            digest
        });
        let words: Vec<String> = section.need("scopes").unwrap_or_default();
        let mut scopes = Vec::new();
        for word in &words {
            match word.parse::<Scope>() {
                Ok(scope) => scopes.push(scope),
                Err(message) => section.mistake("scopes", &message),
            }
        }
        if let (Some(name), Some(tenant), Some(sha256)) = (name, tenant, digest) {
            if tokens.iter().any(|token| token.sha256 == sha256) {
                section.mistake("sha256", "another entry has the same token");
            }
            if tokens.iter().filter(|token| token.caller.name == name).count() >= 2 {
                section.mistake("name", "two tokens of one name may be valid at once, while one replaces the other; this is a third");
            }
            tokens.push(Token { sha256, caller: Caller { name, tenant, scopes } });
        }
        section.finish();
    }
    section.finish();
    tokens
}

fn tool(name: &str, mut section: Section<'_, '_>, warnings: &mut Vec<String>) -> Option<ToolAt> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if !plain || name.is_empty() || name.len() > 64 {
        section.mistake("", "a tool's name has 1 to 64 characters of a-z, A-Z, 0-9, _ and -");
    }
    let default = Tool::new(name);
    let tool = Tool {
        name: name.to_owned(),
        description: section.get_or("description", default.description),
        effect: section
            .word("effect", &[("read", Effect::Read), ("write", Effect::Write)])
            .unwrap_or(default.effect),
        timeout: section.get_or("timeout", default.timeout),
        deadline: section.get_or("deadline", default.deadline),
        dedup_window: section.get("dedup_window"),
        retention: section.get_or("retention", default.retention),
        schema: section.get("input_schema").and_then(|text| {
            Schema::new(text)
                .map_err(|why| section.mistake("input_schema", &format!("this is no JSON Schema: {why}")))
                .ok()
        }),
        key: section.section("key").map(key_policy).unwrap_or_default(),
        retry: section.section("retry").map_or(default.retry, retry_policy),
        outcomes: outcomes(&mut section),
        success: section.section("success").and_then(success_test),
        remember_rejections: section.get_or("remember_rejections", default.remember_rejections),
    };
    let endpoint = endpoint(&mut section);
    check_times(&tool, &section);
    check_key_fields(&tool, &section);
    section.finish();
    let endpoint = endpoint?;
    warn(&tool, &endpoint, warnings);
    Some(ToolAt { tool, endpoint })
}

fn endpoint(section: &mut Section<'_, '_>) -> Option<Endpoint> {
    let methods = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::GET];
    let methods: Vec<(&str, &Method)> = methods.iter().map(|method| (method.as_str(), method)).collect();
    let method = section.word("method", &methods).cloned().unwrap_or(Method::POST);
    let reuse = section.get_or("connection_reuse", Switch(Some(Duration::from_secs(1))));
    let headers: HeaderMap = section.entries("headers", secret_header).into_iter().collect();
    let url = section.need::<String>("url").and_then(|text| match text.parse::<Url>() {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Some(url),
        // The text may hold a secret, so it is not repeated.
        _ => {
            section.mistake("url", "this is no http:// or https:// URL");
            None
        }
    });
    Some(Endpoint { method, url: url?, headers, connection_reuse: reuse.0 })
}

fn key_policy(mut section: Section<'_, '_>) -> key::Policy {
    let required = section.word("source", &[("derived", false), ("required", true)]).unwrap_or(false);
    let mut pointers = |key| {
        let texts: Vec<String> = section.get(key).unwrap_or_default();
        let read = |text: &String| text.parse::<Pointer>().map_err(|why| section.mistake(key, &why)).ok();
        texts.iter().filter_map(read).collect()
    };
    let policy = key::Policy { required, fields: pointers("fields"), ignore: pointers("ignore") };
    section.finish();
    policy
}

fn retry_policy(mut section: Section<'_, '_>) -> retry::Policy {
    let default = retry::Policy::default();
    let policy = retry::Policy {
        attempts: section.get("attempts").map_or(default.attempts, |Count(count)| count),
        base: section.get_or("base", default.base),
        max: section.get_or("max", default.max),
    };
    if policy.attempts > MAX_ATTEMPTS {
        section.mistake("attempts", &format!("more than {MAX_ATTEMPTS} attempts help nobody"));
    }
    if policy.base > policy.max {
        section.mistake("base", "the first wait is longer than the longest");
    }
    section.finish();
    policy
}

const DECLARED: [(&str, Declared); 4] = [
    ("executed", Declared::Executed),
    ("not_executed", Declared::NotExecuted),
    ("rejected", Declared::Rejected),
    ("unknown", Declared::Unknown),
];

fn outcomes(section: &mut Section<'_, '_>) -> BTreeMap<u16, Declared> {
    let read = |status: &str, word: &str| {
        let known: Option<u16> = status.parse().ok().filter(|status| (200..=599).contains(status));
        let status = known.ok_or_else(|| format!("{status} is no status from 200 to 599"))?;
        let declared = DECLARED.iter().find(|(name, _)| *name == word).map(|(_, declared)| *declared);
        let declared = declared.ok_or_else(|| {
            let words = DECLARED.map(|(word, _)| word).join(", ");
            format!("{word:?} is none of {words}")
        })?;
        Ok((status, declared))
    };
    section.entries("outcomes", read).into_iter().collect()
}

fn success_test(mut section: Section<'_, '_>) -> Option<SuccessTest> {
    if !section.has("pointer") {
        section.mistake("pointer", "this key is missing");
    }
    let pointer = section.parsed("pointer", str::parse);
    let equals = section.need("equals");
    let otherwise =
        section.word("otherwise", &[("rejected", Declared::Rejected), ("unknown", Declared::Unknown)]);
    section.finish();
    Some(SuccessTest {
        pointer: pointer?,
        equals: equals?,
        otherwise: otherwise.unwrap_or(Declared::Unknown),
    })
}

/// The times of a tool must fit into each other, or an inner one ends after an outer one.
fn check_times(tool: &Tool, section: &Section<'_, '_>) {
    if tool.timeout.is_zero() {
        section.mistake("timeout", "no tool answers in no time");
    }
    // With full jitter the waits between attempts may be as short as nothing, so the attempts
    // themselves are what the deadline must have room for; the last is cut off at the deadline.
    let attempts = tool.timeout.saturating_mul(tool.retry.attempts);
    if tool.deadline < attempts {
        let message = format!(
            "the deadline of {:?} is shorter than {} attempts of {:?}",
            tool.deadline, tool.retry.attempts, tool.timeout
        );
        section.mistake("deadline", &message);
    }
    if let Some(window) = tool.dedup_window
        && window < tool.deadline
    {
        section.mistake("dedup_window", "a key would be forgotten before its call's deadline");
    }
    let windows = key::Source::ALL.map(|source| tool.window(source));
    if windows.into_iter().any(|window| window > tool.retention) {
        section.mistake("retention", "records would be deleted while their keys are remembered");
    }
}

/// A field that may be missing would give different intents the same key.
fn check_key_fields(tool: &Tool, section: &Section<'_, '_>) {
    for field in &tool.key.fields {
        if !tool.schema.as_ref().is_some_and(|schema| schema.requires(field)) {
            section.mistake("key", &format!("fields: input_schema does not require {}", field.as_str()));
        }
    }
}

fn warn(tool: &Tool, endpoint: &Endpoint, warnings: &mut Vec<String>) {
    let name = &tool.name;
    for (status, declared) in &tool.outcomes {
        if matches!(declared, Declared::NotExecuted | Declared::Rejected) {
            warnings.push(format!("{name}: status {status} is taken as proof that nothing was executed"));
        }
    }
    if tool.success.as_ref().is_some_and(|test| test.otherwise == Declared::Rejected) {
        warnings.push(format!(
            "{name}: a 2xx that fails its success test is taken as proof that nothing was executed"
        ));
    }
    let is_local = match endpoint.url.host_str() {
        Some("localhost") => true,
        Some(host) => {
            host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
        None => false,
    };
    if endpoint.url.scheme() == "http" && !is_local {
        warnings.push(format!("{name}: its URL is plain http:// to another machine"));
    }
}
