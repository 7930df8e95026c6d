//! The section `[store]`: where records are kept.

use std::fmt;
use std::path::PathBuf;

use super::common::hex_32;
use super::reader::Section;
#[cfg(any(feature = "postgres", feature = "redis"))]
use oncegate_rules::timings::Timings;
use oncegate_store::{Durability, Keys};
#[cfg(feature = "postgres")]
use oncegate_store_postgres as postgres;
#[cfg(feature = "redis")]
use oncegate_store_redis as redis;

/// Where records are kept.
#[derive(Debug, Clone)]
pub enum StoreAt {
    /// A file of this gateway alone.
    Sqlite(PathBuf),
    /// Shared with other gateways.
    #[cfg(feature = "redis")]
    Redis(Box<redis::Settings>),
    /// Shared with other gateways.
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::Settings>),
}

impl StoreAt {
    /// Whether it is on another machine, and may come later than the gateway.
    pub fn is_remote(&self) -> bool {
        !matches!(self, Self::Sqlite(_))
    }
}

impl fmt::Display for StoreAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            #[cfg(feature = "redis")]
            Self::Redis(settings) => settings.target.fmt(f),
            #[cfg(feature = "postgres")]
            Self::Postgres(settings) => settings.target.fmt(f),
        }
    }
}

/// Classes of durability.
const DURABILITIES: [(&str, Durability); 3] = [
    ("strict", Durability::Strict),
    ("bounded", Durability::Bounded),
    ("relaxed", Durability::Relaxed),
];

/// Where records are kept, and the keys that encrypt them. `left_out`: schemes of stores that this build does not have.
pub(super) fn store(
    mut section: Section<'_, '_>,
    left_out: &[(&str, &str)],
) -> (Option<StoreAt>, Option<Keys>) {
    // SQLite is of the strictest class, so it meets every demand.
    let durability = section.word_or("durability", &DURABILITIES, Durability::Strict);
    let url: Option<String> = section.need("url");
    let shared = Shared {
        durability,
        declared: section.word("declared_durability", &DURABILITIES),
        ca: section.get("ca"),
        watermarks: section.get_or("watermarks", "oncegate.watermarks".to_owned()),
        stream: section.get("stream"),
        schema: section.get("schema"),
    };
    let keys = encryption_keys(&mut section);
    let scheme = url.as_deref().and_then(|url| url.split_once(':'));
    let left_out = left_out
        .iter()
        .find(|(of, _)| scheme.is_some_and(|(scheme, _)| scheme == *of));
    if let Some((_, why)) = left_out {
        section.mistake("url", why);
    }
    let store = url.and_then(|url| match url.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => {
            let of_shared = ["declared_durability", "ca", "watermarks"];
            section.check_absent(&of_shared, "this is for Redis and PostgreSQL only");
            section.check_absent(&["stream"], OF_REDIS);
            section.check_absent(&["schema"], OF_POSTGRES);
            Some(StoreAt::Sqlite(path.into()))
        }
        Some((scheme, _)) if scheme.starts_with("redis") => {
            section.check_absent(&["schema"], OF_POSTGRES);
            redis_at(&section, &url, shared)
        }
        Some(("postgres" | "postgresql", _)) => {
            section.check_absent(&["stream"], OF_REDIS);
            postgres_at(&section, &url, shared)
        }
        _ => {
            section.mistake("url", NO_STORE);
            None
        }
    });
    (store, keys)
}

/// The settings of stores that many gateways share, and the demanded class.
#[cfg_attr(
    not(all(feature = "postgres", feature = "redis")),
    allow(dead_code, reason = "read, so that they are known keys")
)]
struct Shared {
    durability: Durability,
    declared: Option<Durability>,
    ca: Option<String>,
    watermarks: String,
    stream: Option<bool>,
    schema: Option<String>,
}

#[cfg(feature = "redis")]
fn redis_at(section: &Section<'_, '_>, url: &str, shared: Shared) -> Option<StoreAt> {
    let refused = |why: String| section.mistake("url", &why);
    let target = redis::Target::parse(url).map_err(refused).ok()?;
    if target.is_plain_and_remote() {
        warn_of_plain(section, &target);
    }
    Some(StoreAt::Redis(Box::new(redis::Settings {
        target,
        durability: shared.durability,
        declared: shared.declared,
        ca: shared.ca.map(PathBuf::from),
        watermarks: shared.watermarks.into(),
        stream: shared.stream.unwrap_or(false),
        timings: Timings::default(),
        newest_format: redis::FORMAT,
    })))
}

#[cfg(not(feature = "redis"))]
fn redis_at(section: &Section<'_, '_>, _: &str, _: Shared) -> Option<StoreAt> {
    let why = "this build has no Redis: build it with the feature \"redis\"";
    section.mistake("url", why);
    None
}

#[cfg(feature = "postgres")]
fn postgres_at(section: &Section<'_, '_>, url: &str, shared: Shared) -> Option<StoreAt> {
    let refused = |why: String| section.mistake("url", &why);
    let target = postgres::Target::parse(url).map_err(refused).ok();
    let schema = shared.schema.as_deref().unwrap_or(postgres::DEFAULT_SCHEMA);
    let schema = postgres::Schema::parse(schema).map_err(|why| section.mistake("schema", &why));
    let schema = schema.ok();
    let (target, schema) = (target?, schema?);
    if target.is_plain_and_remote() {
        warn_of_plain(section, &target);
    }
    Some(StoreAt::Postgres(Box::new(postgres::Settings {
        target,
        schema,
        durability: shared.durability,
        declared: shared.declared,
        ca: shared.ca.map(PathBuf::from),
        watermarks: shared.watermarks.into(),
        timings: Timings::default(),
    })))
}

/// It is said with the schemes of stores that are left out.
#[cfg(not(feature = "postgres"))]
fn postgres_at(_: &Section<'_, '_>, _: &str, _: Shared) -> Option<StoreAt> {
    None
}

#[cfg(any(feature = "postgres", feature = "redis"))]
fn warn_of_plain(section: &Section<'_, '_>, target: &dyn fmt::Display) {
    section.warn(format!(
        "the store {target} is on another machine and without TLS"
    ));
}

const NO_STORE: &str = "this names no store; one looks like \"sqlite:oncegate.db\", \"redis://HOST:6379\" or \"postgres://USER@HOST/DB\"";
const OF_REDIS: &str = "this is for Redis only";
const OF_POSTGRES: &str = "this is for PostgreSQL only";

fn encryption_keys(section: &mut Section<'_, '_>) -> Option<Keys> {
    // The text is a secret, so it is not repeated.
    let why = "each key is 64 hex digits: openssl rand -hex 32";
    let read = |text: &str| hex_32(text.trim()).ok_or_else(|| why.to_owned());
    Keys::new(&section.each_parsed("encryption_keys", read))
}
