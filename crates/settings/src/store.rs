//! The section `[store]`: where records are kept.

use std::fmt;
use std::path::PathBuf;

use super::common::hex_32;
use super::reader::Section;
use oncegate_rules::pace::Pace;
use oncegate_store::Durability;
use oncegate_store::Keys;
use oncegate_store_redis as redis;

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

/// Classes of durability.
const DURABILITIES: [(&str, Durability); 3] = [
    ("strict", Durability::Strict),
    ("bounded", Durability::Bounded),
    ("relaxed", Durability::Relaxed),
];

pub(super) fn store(mut section: Section<'_, '_>) -> (Option<StoreAt>, Option<Keys>) {
    // SQLite is of the strictest class, so it meets every demand.
    let durability = section.word_or("durability", &DURABILITIES, Durability::Strict);
    let url: Option<String> = section.need("url");
    let declared = section.word("declared_durability", &DURABILITIES);
    let ca: Option<String> = section.get("ca");
    let watermarks = section.get_or("watermarks", "oncegate.watermarks".to_owned());
    let stream = section.get_or("stream", false);
    let keys = encryption_keys(&mut section);
    let refused = |why: String| section.mistake("url", &why);
    let store = url.and_then(|url| match url.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => {
            let of_redis = ["declared_durability", "ca", "watermarks", "stream"];
            section.check_absent(&of_redis, "this is for Redis only");
            Some(StoreAt::Sqlite(path.into()))
        }
        Some((scheme, _)) if scheme.starts_with("redis") => {
            let target = redis::Target::parse(&url).map_err(refused).ok()?;
            if target.is_plain_and_remote() {
                section.warn(format!(
                    "the store {target} is on another machine and without TLS"
                ));
            }
            Some(StoreAt::Redis(Box::new(redis::Settings {
                target,
                durability,
                declared,
                ca: ca.map(PathBuf::from),
                watermarks: watermarks.into(),
                stream,
                pace: Pace::default(),
            })))
        }
        _ => {
            refused(NO_STORE.to_owned());
            None
        }
    });
    (store, keys)
}

const NO_STORE: &str =
    "this names no store; one looks like \"sqlite:oncegate.db\" or \"redis://HOST:6379\"";

fn encryption_keys(section: &mut Section<'_, '_>) -> Option<Keys> {
    // The text is a secret, so it is not repeated.
    let why = "each key is 64 hex digits: openssl rand -hex 32";
    let read = |text: &str| hex_32(text.trim()).ok_or_else(|| why.to_owned());
    Keys::new(&section.each_parsed("encryption_keys", read))
}
