//! The address of a PostgreSQL, and the demands on it.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use oncegate_rules::timings::Timings;
use oncegate_store::{Durability, distrust};

/// How long a server may be silent, in each step of a connection.
pub(crate) const SILENT: Duration = Duration::from_secs(5);
/// The schema of an installation that names none.
pub const DEFAULT_SCHEMA: &str = "oncegate";
const PARAMETERS: &str = "sslmode, sslrootcert, passfile and target_session_attrs";

/// The settings of a PostgreSQL store.
#[derive(Debug, Clone)]
pub struct Settings {
    pub target: Target,
    /// The schema of the installation.
    pub schema: Schema,
    /// The least durability; below it nothing is claimed.
    pub durability: Durability,
    /// The declared durability, where it cannot be inspected.
    pub declared: Option<Durability>,
    /// A certificate authority to trust instead of the system's, in PEM.
    pub ca: Option<PathBuf>,
    /// The gateway's file of watermarks.
    pub watermarks: PathBuf,
    /// Not set by operators.
    pub timings: Timings,
}

/// The name of a schema, which needs no quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema(String);

impl Schema {
    /// Reads a name.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse(name: &str) -> Result<Self, String> {
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        if !begins || !name.chars().all(is_word) || name.len() > 40 || name.starts_with("pg_") {
            return Err("a schema is a lower-case word of at most 40 letters, digits and _".into());
        }
        Ok(Self(name.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The address of a PostgreSQL. Printed without its password.
#[derive(Debug, Clone)]
pub struct Target {
    config: Config,
    /// A certificate authority in PEM, from the URL.
    pub(crate) root: Option<PathBuf>,
    pub(crate) has_tls: bool,
    shown: String,
}

impl Target {
    /// Reads a URL `postgres://USER[:PASSWORD]@HOST[:PORT][,HOST…]/DB[?PARAMETER=VALUE&…]`.
    ///
    /// # Errors
    /// A sentence that does not repeat the URL, for it may hold a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("this is not a URL")?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err("this is not the scheme postgres://".into());
        }
        if rest.contains('#') {
            return Err("a # in a password is written %23".into());
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if place.matches('@').count() > 1 {
            return Err("a @ in a password is written %40".into());
        }
        let parameters = Parameters::read(query)?;
        let mut config: Config = format!("postgres://{place}")
            .parse()
            .map_err(|_| "one of its hosts is not a HOST:PORT, or a part of it is not UTF-8")?;
        let user = config.get_user().unwrap_or_default().to_owned();
        let database = config.get_dbname().unwrap_or_default().to_owned();
        if user.is_empty() || database.is_empty() || database.contains('/') {
            let why = "it names a user and one database, as in postgres://oncegate@HOST/DB";
            return Err(why.into());
        }
        let is_named = |host: &Host| !matches!(host, Host::Tcp(name) if name.is_empty());
        if config.get_hosts().is_empty() || !config.get_hosts().iter().all(is_named) {
            return Err("it names no host, as in postgres://oncegate@HOST/DB".into());
        }
        config
            .connect_timeout(SILENT)
            .tcp_user_timeout(SILENT)
            .keepalives_idle(SILENT)
            .keepalives_interval(Duration::from_secs(1))
            .keepalives_retries(3)
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        let is_local = config.get_hosts().iter().all(is_local);
        let has_tls = parameters.has_tls.unwrap_or(!is_local);
        config.ssl_mode(if has_tls {
            SslMode::Require
        } else {
            SslMode::Disable
        });
        if let (None, Some(file)) = (config.get_password(), parameters.passfile)
            && let Some(password) = from_passfile(&file, &config)?
        {
            config.password(password);
        }
        let (_, named) = place.split_once('@').unwrap_or_default();
        Ok(Self {
            config,
            root: parameters.root,
            has_tls,
            shown: format!("postgres://{user}@{named}"),
        })
    }

    /// Whether a connection without TLS leads to another machine.
    pub fn is_plain_and_remote(&self) -> bool {
        !self.has_tls && !self.config.get_hosts().iter().all(is_local)
    }

    /// The name of the gateway's role.
    pub fn user(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }

    /// The configuration of a connection with these startup options.
    pub(crate) fn config(&self, options: &str) -> Config {
        let mut config = self.config.clone();
        config.options(options).application_name("oncegate");
        config
    }
}

/// The parameters of a URL.
#[derive(Default)]
struct Parameters {
    has_tls: Option<bool>,
    root: Option<PathBuf>,
    passfile: Option<PathBuf>,
}

impl Parameters {
    fn read(query: &str) -> Result<Self, String> {
        let mut read = Self::default();
        let mut requires = false;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = percent_decode_str(value).decode_utf8();
            let value = value.map_err(|_| "it is not UTF-8")?;
            match (name, &*value) {
                ("sslmode", "disable") => read.has_tls = Some(false),
                ("sslmode", "verify-full") => read.has_tls = Some(true),
                ("sslmode", "require") => (read.has_tls, requires) = (Some(true), true),
                ("sslmode", _) => return Err("sslmode is verify-full or disable".into()),
                ("sslrootcert", path) => read.root = Some(path.into()),
                ("passfile", path) => read.passfile = Some(path.into()),
                ("target_session_attrs", "read-write") => {}
                ("target_session_attrs", _) => {
                    return Err("target_session_attrs is always read-write".into());
                }
                _ => {
                    return Err(format!(
                        "it has an unknown parameter; known are {PARAMETERS}"
                    ));
                }
            }
        }
        if requires && read.root.is_none() {
            return Err(
                "sslmode=require checks no certificate; write sslmode=verify-full, and sslrootcert=FILE if its \
                 authority is not one that this system trusts"
                    .into(),
            );
        }
        Ok(read)
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            let address: Result<IpAddr, _> = name.parse();
            name == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
        Host::Unix(_) => true,
    }
}

/// The password of the first line that fits, as libpq reads a passfile.
fn from_passfile(file: &Path, config: &Config) -> Result<Option<String>, String> {
    let shown = file.display();
    if let Some(why) = distrust(file) {
        return Err(format!("the passfile is not used: {why}"));
    }
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the passfile {shown} cannot be read: {error}"))?;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(folder)) => folder.display().to_string(),
        None => String::new(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5_432);
    let [database, user] = [config.get_dbname(), config.get_user()].map(Option::unwrap_or_default);
    let wanted = [&*host, &port.to_string(), database, user].map(str::to_owned);
    let fits = |line: &str| {
        let mut fields = fields(line).into_iter();
        let fits = wanted.iter().all(|wanted| {
            let field = fields.next();
            field.is_some_and(|field| field == "*" || field == *wanted)
        });
        fields.next().filter(|_| fits)
    };
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(lines.find_map(fits))
}

/// The fields of a line, between colons without a backslash before them.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field) = (Vec::new(), String::new());
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => field.extend(letters.next()),
            // A password has colons, too.
            ':' if fields.len() < 4 => fields.push(std::mem::take(&mut field)),
            letter => field.push(letter),
        }
    }
    fields.push(field);
    fields
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown.fmt(f)
    }
}

#[cfg(test)]
mod tests;
