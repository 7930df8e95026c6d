//! Keys, their sources, and fingerprints: what counts as the same call.
//!
//! Must not know where a key is stored.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::json::canonical;
use super::secret::Secret;

/// The longest key in bytes: what Stripe, ACP and most tools accept.
pub const MAX_LEN: usize = 255;

/// The member of `args` in which a model may bring a key.
pub const MODEL_MEMBER: &str = "idempotency_key";

/// An idempotency key: 1–255 characters of ASCII 0x21–0x7E, case-sensitive.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

/// The text is not a valid key.
#[derive(Debug, Clone, Copy, thiserror::Error, PartialEq, Eq)]
#[error(
    "an idempotency key is 1 to {MAX_LEN} visible ASCII characters (0x21 to 0x7E) without spaces"
)]
pub struct Invalid;

impl Key {
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let visible = text.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
        if text.is_empty() || text.len() > MAX_LEN || !visible {
            return Err(Invalid);
        }
        Ok(Self(text.to_owned()))
    }

    /// Reads the value of an `Idempotency-Key` header line.
    ///
    /// It is bare as most clients send it, or quoted as draft-ietf-httpapi-idempotency-key-header
    /// asks (an RFC 8941 string). `"k"` and `k` are the same key.
    pub fn from_header(line: &[u8]) -> Result<Self, Invalid> {
        let text = std::str::from_utf8(line)
            .map_err(|_| Invalid)?
            .trim_matches([' ', '\t']);
        match text.strip_prefix('"') {
            None => Self::parse(text),
            Some(rest) => Self::parse(&unquote(rest.strip_suffix('"').ok_or(Invalid)?)?),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The content of an RFC 8941 string, section 4.2.5: a backslash may only stand before `"` and `\`.
fn unquote(inner: &str) -> Result<String, Invalid> {
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(next) = rest.next() {
        match next {
            '"' => return Err(Invalid),
            '\\' => out.push(
                rest.next()
                    .filter(|c| matches!(c, '"' | '\\'))
                    .ok_or(Invalid)?,
            ),
            plain => out.push(plain),
        }
    }
    Ok(out)
}

/// Keys are capability tokens: they are not printed whole by accident.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Where a call's key came from. [`Policy::sources`] says in which order they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The caller's header or body member.
    Runtime,
    /// The tool's `key.fields`.
    Business,
    /// `args.idempotency_key`, which the model filled in.
    Model,
    /// All of `args`.
    Derived,
    /// The gateway itself, for a compensation. The key is kept as long as its call.
    Compensation,
    /// The round whose questions the call answers: each is answered once.
    Round,
    /// Not known: the call was adopted from its effect, which has only the key for the tool.
    Adopted,
}

/// The prefix of compensations' keys. Callers may not bring such a key.
pub const COMPENSATION: &str = "compensate:";
/// The prefix of the keys of calls that answer a round.
pub const ROUND: &str = "oncegate-round:";

impl Source {
    pub const ALL: [Self; 7] = [
        Self::Runtime,
        Self::Business,
        Self::Model,
        Self::Derived,
        Self::Compensation,
        Self::Round,
        Self::Adopted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Business => "business",
            Self::Model => "model",
            Self::Derived => "derived",
            Self::Compensation => "compensation",
            Self::Round => "round",
            Self::Adopted => "adopted",
        }
    }
}

/// A JSON Pointer (RFC 6901) into `args`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer(String);

impl Pointer {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The pointer through members of these names.
    pub fn to(names: &[&str]) -> Self {
        let root = Self(String::new());
        names.iter().fold(root, |at, name| at.below(name))
    }

    /// The pointer to a member below this one.
    pub fn below(&self, name: &str) -> Self {
        let step = name.replace('~', "~0").replace('/', "~1");
        Self(format!("{}/{step}", self.0))
    }

    /// The pointer that goes on from this one.
    pub fn followed_by(&self, rest: &Self) -> Self {
        Self(format!("{}{}", self.0, rest.0))
    }

    /// Whether the other pointer is this one, or below it.
    pub fn holds(&self, other: &Self) -> bool {
        let rest = other.0.strip_prefix(&self.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The pointer that stands for one that cannot be read: it finds only a member without a name.
    pub fn nowhere() -> Self {
        Self("/".into())
    }

    /// The member names (or array indexes) on the way, unescaped.
    pub fn steps(&self) -> impl Iterator<Item = String> {
        self.0
            .split('/')
            .skip(1)
            .map(|step| step.replace("~1", "/").replace("~0", "~"))
    }

    /// Removes the value at this pointer, if there is one.
    pub fn remove_from(&self, value: &mut Value) {
        let Some((parent, _)) = self.0.rsplit_once('/') else {
            return;
        };
        let Some(last) = self.steps().last() else {
            return;
        };
        match value.pointer_mut(parent) {
            Some(Value::Object(members)) => drop(members.remove(&last)),
            Some(Value::Array(items)) => {
                if let Some(index) = last.parse().ok().filter(|index| *index < items.len()) {
                    items.remove(index);
                }
            }
            _ => {}
        }
    }
}

impl FromStr for Pointer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let escapes_hold = text
            .split('~')
            .skip(1)
            .all(|rest| rest.starts_with(['0', '1']));
        if text.starts_with('/') && escapes_hold {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "{text:?} is no JSON Pointer; one looks like \"/order/id\""
            ))
        }
    }
}

/// Whether business fields or the runtime's key name a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prefer {
    /// The fields, whatever key comes with them. The first runtime key becomes a second name.
    #[default]
    Business,
    /// The runtime's key; the fields only where it brings none.
    Runtime,
}

/// Whether business keys are apart for each user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Per {
    /// The same fields of two users are two intents.
    #[default]
    User,
    /// The same fields of two users are one intent.
    Tenant,
}

/// A tool's rules about keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Refuse a call without a key of its own; do not derive one.
    pub required: bool,
    /// The business fields, which make the key. Empty: no business key.
    pub fields: Vec<Pointer>,
    pub prefer: Prefer,
    pub per: Per,
    /// Arguments that the fingerprint ignores: free text that a model words anew each time.
    pub ignore: Vec<Pointer>,
}

impl Policy {
    /// Whether the business fields name a call, whatever key comes with them.
    pub fn is_business(&self) -> bool {
        !self.fields.is_empty() && self.prefer == Prefer::Business
    }

    /// The sources of a key, in the order in which they are asked.
    pub fn sources(&self) -> &'static [Source] {
        if self.is_business() {
            &[Source::Business]
        } else if !self.fields.is_empty() {
            &[Source::Runtime, Source::Business]
        } else if self.required {
            &[Source::Runtime, Source::Model]
        } else {
            &[Source::Runtime, Source::Model, Source::Derived]
        }
    }
}

/// Why a call gets no key.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    #[error("the idempotency key in the {0} is invalid: {1}")]
    Invalid(&'static str, Invalid),
    #[error("the Idempotency-Key header and the body member idempotency_key differ")]
    Conflict,
    #[error("keys that begin with {COMPENSATION} or {ROUND} are the gateway's own")]
    Reserved,
    #[error("this tool takes no call without an idempotency key of its own")]
    Missing,
    #[error("the arguments lack {0}, which makes the key of this tool's calls")]
    FieldMissing(String),
}

/// A call's key, and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    pub key: Key,
    pub source: Source,
}

/// The key that the caller's runtime brought, in header or body.
pub fn from_runtime(header: Option<&[u8]>, body: Option<&str>) -> Result<Option<Key>, Refused> {
    let header = header
        .map(Key::from_header)
        .transpose()
        .map_err(|why| Refused::Invalid("header", why))?;
    let body = body
        .map(Key::parse)
        .transpose()
        .map_err(|why| Refused::Invalid("body", why))?;
    let key = match (header, body) {
        (Some(header), Some(body)) if header != body => return Err(Refused::Conflict),
        (header, body) => header.or(body),
    };
    not_ours(key)
}

/// Refuses the gateway's own keys.
///
/// A caller with a compensation's key could keep it from running.
fn not_ours(key: Option<Key>) -> Result<Option<Key>, Refused> {
    let is_ours = |key: &Key| {
        [COMPENSATION, ROUND]
            .iter()
            .any(|own| key.0.starts_with(own))
    };
    if key.as_ref().is_some_and(is_ours) {
        return Err(Refused::Reserved);
    }
    Ok(key)
}

/// The key of a call that answers another call's questions.
pub(super) fn of_round(asked_by: Uuid) -> Key {
    Key(format!("{ROUND}{asked_by}"))
}

/// The key that the model put into `args`.
pub fn from_model(args: &Value) -> Result<Option<Key>, Refused> {
    let invalid = Refused::Invalid("member args.idempotency_key", Invalid);
    match args.get(MODEL_MEMBER) {
        None => Ok(None),
        Some(Value::String(text)) => not_ours(Some(Key::parse(text).map_err(|_| invalid)?)),
        Some(_) => Err(invalid),
    }
}

/// `hex(SHA-256(canonical JSON of {"name","user","args"}))[:32]`; with a secret its HMAC instead of the SHA-256.
pub(super) fn derive(tool: &str, user_id: &str, args: &Value, secret: Option<&Secret>) -> Key {
    let canonical = canonical(&json!({ "name": tool, "user": user_id, "args": args }));
    let digest: [u8; 32] = match secret {
        Some(secret) => secret.mac("key", [&canonical]),
        None => Sha256::digest(canonical).into(),
    };
    let mut hex = hex::encode(digest);
    hex.truncate(32);
    Key(hex)
}

/// The fingerprint of a call's arguments; never shown.
///
/// An HMAC-SHA-256, under the store's secret, over the canonical arguments without those that the
/// recipe ignores.
pub type Fingerprint = [u8; 32];

/// The first bytes of a fingerprint, which name its secret.
pub(super) const SECRET_ID: usize = 4;

/// Names the calls that one budget counts, or that look alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupKey(pub [u8; 32]);

/// A name under which a call is claimed, and its key at the tool.
///
/// The first 15 bytes of SHA-256 over (tenant, tool, key), each behind its length in eight big-endian bytes; then one
/// byte that follows from the tenant alone. So all names of a tenant lie in one partition of a store, where one step
/// claims several of them, and an effect that is found at a tool leads to its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lookup(pub [u8; Lookup::LEN]);

impl Lookup {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    pub fn new(tenant: &str, tool: &str, key: &str) -> Self {
        let digest = digest([tenant, tool, key]);
        let mut lookup = [0; Self::LEN];
        lookup.copy_from_slice(&digest[..Self::LEN]);
        lookup[Self::LEN - 1] = Self::partition_of(tenant);
        Self(lookup)
    }

    /// The byte that names the partition.
    pub fn partition(&self) -> u8 {
        self.0[Self::LEN - 1]
    }

    /// The last byte of every name of this tenant.
    pub fn partition_of(tenant: &str) -> u8 {
        digest(["tenant", tenant])[0]
    }

    /// The key for the tool: 32 hex digits.
    ///
    /// The same for every attempt of a call, and never the caller's own key.
    pub fn for_tool(&self) -> String {
        hex::encode(self.0)
    }

    /// Reads a key for the tool; `None`: it has another form.
    pub fn of_tool_key(text: &str) -> Option<Self> {
        let mut lookup = [0; Self::LEN];
        hex::decode_to_slice(text, &mut lookup).ok()?;
        let lookup = Self(lookup);
        (lookup.for_tool() == text).then_some(lookup)
    }

    /// The beginning of it, to tell calls apart in a log.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

/// SHA-256 over length-prefixed parts, so that no two lists of parts are alike.
pub fn digest<const N: usize>(parts: [&str; N]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
