//! Keys, their sources, and fingerprints: what counts as the same call.
//!
//! Must not know where a key is stored.

mod fold; // fields that people type
pub mod nulls; // members that are null
pub mod places; // keys in arguments and in payments
pub mod secret; // what fingerprints are made with
mod spelling; // the bytes of a key as other systems print them

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use self::fold::{Fold, Folded};
use crate::json::canonical;
use crate::secret::Secret;
use crate::words::words;

/// The longest key in bytes: what Stripe, ACP and most tools accept.
pub const MAX_LEN: usize = 255;

/// The member of `args` in which a model may bring a key.
pub const MODEL_MEMBER: &str = "idempotency_key";

/// The member of `args` in which a model may say that a call with equal arguments is meant as well.
pub const CONFIRM_MEMBER: &str = "confirm_duplicate_of";

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
    /// Most clients send it bare; draft-ietf-httpapi-idempotency-key-header asks for a quoted string
    /// (RFC 8941). `"k"` and `k` are the same key.
    pub fn from_header(line: &[u8]) -> Result<Self, Invalid> {
        let text = str::from_utf8(line).map_err(|_| Invalid)?;
        let text = text.trim_matches([' ', '\t']);
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
            '\\' => match rest.next() {
                Some(escaped @ ('"' | '\\')) => out.push(escaped),
                _ => return Err(Invalid),
            },
            plain => out.push(plain),
        }
    }
    Ok(out)
}

/// Prints nothing of the key: a key gives access to a result.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

words! {
    /// Where a call's key came from. The order of the values is stored: new ones go to the end.
    ///
    /// [`Policy::sources`] has the order in which sources are asked.
    pub enum Source {
        /// The caller's header or body member.
        Runtime = "runtime",
        /// The tool's `key.fields`.
        Business = "business",
        /// `args.idempotency_key`, which the model filled in.
        Model = "model",
        /// All of `args`.
        Derived = "derived",
        /// The gateway, for a compensation. The key is kept as long as its call.
        Compensation = "compensation",
        /// The elicitation that the call answers. Each is answered once.
        Elicitation = "round",
        /// Unknown: the call was adopted from its effect, which shows only the key for the tool.
        Adopted = "adopted",
    }
}

/// The prefix of compensations' keys. Callers may not bring such a key.
pub const COMPENSATION: &str = "compensate:";
/// The prefix of the keys of calls that answer an elicitation.
pub const ELICITATION: &str = "oncegate-round:";
/// The prefix of the lookup keys of calls by the client's own id of the call.
const CLIENT_CALL: &str = "oncegate-client-call:";
/// The beginning of what makes the name of a read.
const READ: &str = "oncegate-read:";

/// A JSON Pointer (RFC 6901) into `args`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
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

    /// Whether one of the two pointers holds the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.holds(other) || other.holds(self)
    }

    /// The pointer in place of one that cannot be read: it finds only a member without a name.
    pub fn nowhere() -> Self {
        Self("/".into())
    }

    /// The member names and array indexes of the pointer, unescaped.
    pub fn steps(&self) -> impl Iterator<Item = String> {
        let steps = self.0.split('/').skip(1);
        steps.map(|step| step.replace("~1", "/").replace("~0", "~"))
    }

    /// Removes the value at this pointer, and each object around it that is empty then.
    ///
    /// An object that was empty before, and one in a list, stays.
    pub fn take_from(&self, value: &mut Value) {
        if value.pointer(&self.0).is_none() {
            return;
        }
        self.remove_from(value);
        let mut emptied = self.holder();
        while let Some(place) = emptied
            && let Some(holder) = place.holder()
            && matches!(value.pointer(&place.0), Some(Value::Object(all)) if all.is_empty())
            && matches!(value.pointer(&holder.0), Some(Value::Object(_)))
        {
            place.remove_from(value);
            emptied = Some(holder);
        }
    }

    /// The place of the object or list around this place; `None`: this is the whole.
    fn holder(&self) -> Option<Self> {
        let (holder, _) = self.0.rsplit_once('/')?;
        Some(Self(holder.to_owned()))
    }

    /// Removes the value at this pointer.
    pub fn remove_from(&self, value: &mut Value) {
        let (Some((parent, _)), Some(last)) = (self.0.rsplit_once('/'), self.steps().last()) else {
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
        let mut escapes = text.split('~').skip(1);
        if text.starts_with('/') && escapes.all(|rest| rest.starts_with(['0', '1'])) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "{text:?} is not a JSON Pointer; one looks like \"/order/id\""
            ))
        }
    }
}

impl TryFrom<String> for Pointer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

words! {
    /// Whether business fields or the runtime's key name a call.
    #[derive(Default)]
    pub enum Prefer {
        /// The fields, whatever key the runtime brings. The first runtime key becomes a second name.
        #[default]
        Business = "business",
        /// The runtime's key; the fields only for a request without a key.
        Runtime = "runtime",
    }
}

words! {
    /// Whether each user has business keys of its own.
    #[derive(Default)]
    pub enum Per {
        /// The same fields of two users are two intents.
        #[default]
        User = "user",
        /// The same fields of two users are one intent.
        Tenant = "tenant",
    }
}

/// A tool's rules about keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether a call without a key of its own is refused. Otherwise its key is derived.
    pub required: bool,
    /// The business fields, which make the key. Empty: no business key.
    pub fields: Vec<Pointer>,
    /// The fields of which not every character counts.
    pub fold: Vec<Folded>,
    /// Where a request may have its key in its arguments: the first place with a value counts.
    pub places: Vec<Pointer>,
    pub prefer: Prefer,
    pub per: Per,
    /// Arguments that the fingerprint ignores, as free text that a model words anew each time.
    pub ignore: Vec<Pointer>,
}

impl Policy {
    /// Whether the business fields name a call, whatever key comes with them.
    pub fn is_business(&self) -> bool {
        !self.fields.is_empty() && self.prefer == Prefer::Business
    }

    /// The fields that are empty in these arguments, each with a sentence: they would make one key for different intents.
    pub fn empty_fields(&self, args: &Value) -> Vec<(String, String)> {
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::String(text) => text.trim().is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(members) => members.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        };
        let fields = self.fields.iter();
        let empty = fields.filter(|field| args.pointer(field.as_str()).is_some_and(is_empty));
        let why = "it is empty, and makes the key of this tool's calls";
        empty
            .map(|field| (field.as_str().to_owned(), why.to_owned()))
            .collect()
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
    #[error("the idempotency key in the {0} is invalid: {why}", why = Invalid)]
    Invalid(&'static str),
    #[error("the Idempotency-Key header and the key in the body differ")]
    Conflict,
    #[error(
        "keys that begin with {COMPENSATION}, {ELICITATION} or {CLIENT_CALL} are the gateway's own"
    )]
    Reserved,
    #[error("this tool requires an idempotency key for each call")]
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

/// The key that the caller's runtime brings, in header or body.
pub fn from_runtime(header: Option<&[u8]>, body: Option<&str>) -> Result<Option<Key>, Refused> {
    let invalid = |place| move |_| Refused::Invalid(place);
    let header = header.map(Key::from_header).transpose();
    let header = header.map_err(invalid("header"))?;
    let body = body.map(Key::parse).transpose();
    let body = body.map_err(invalid("body"))?;
    let key = match (header, body) {
        (Some(header), Some(body)) if header != body => return Err(Refused::Conflict),
        (header, body) => header.or(body),
    };
    not_ours(key)
}

/// The prefixes of the gateway's own keys.
const OWN: [&str; 3] = [COMPENSATION, ELICITATION, CLIENT_CALL];

/// Refuses the gateway's own keys.
///
/// A caller that claims a compensation's key could keep the compensation from running.
fn not_ours(key: Option<Key>) -> Result<Option<Key>, Refused> {
    match &key {
        Some(Key(text)) if OWN.iter().any(|own| text.starts_with(own)) => Err(Refused::Reserved),
        _ => Ok(key),
    }
}

/// The key of a call that answers another call's questions.
pub(super) fn of_elicitation(asked_by: Uuid) -> Key {
    Key(format!("{ELICITATION}{asked_by}"))
}

/// The lookup key of a call by the client's own id of it. Each user has ids of their own.
pub(super) fn of_client_call(user_id: &str, id: &str) -> Key {
    let name = short_digest(["client call", user_id, id]);
    Key(format!("{CLIENT_CALL}{}", hex::encode(name)))
}

/// The key that the model has put into `args`.
///
/// It proves sameness, never difference: models make up a new one when they try again. A member that is not a valid key
/// is none.
pub fn from_model(args: &Value) -> Option<Key> {
    let text = args.get(MODEL_MEMBER)?.as_str()?;
    not_ours(Key::parse(text).ok()).ok().flatten()
}

/// The key that follows from all arguments.
///
/// `hex(SHA-256(canonical JSON of {"name","user","args"}))[:32]`; with a secret, an HMAC instead of the SHA-256.
pub(super) fn derive(tool: &str, user_id: &str, args: &Value, secret: Option<&Secret>) -> Key {
    let canonical = canonical(&json!({ "name": tool, "user": user_id, "args": args }));
    let digest: [u8; 32] = match secret {
        Some(secret) => secret.mac("key", [&canonical]),
        None => Sha256::digest(canonical).into(),
    };
    Key(hex::encode(&digest[..16]))
}

/// The fingerprint of a call's arguments. It is never shown.
///
/// An HMAC-SHA-256 with the store's secret over the canonical arguments, without those that the key scheme
/// ignores.
pub type Fingerprint = [u8; 32];

/// The first bytes of a fingerprint, which name its secret.
pub(super) const SECRET_ID: usize = 4;

/// Names a group of calls: those that one budget counts, or that look alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupKey(pub [u8; 32]);

/// A lookup key: a call is claimed under it. That of its key is also the key that the tool gets.
///
/// The first 15 bytes are of SHA-256 over (tenant, tool, key), each behind its length in eight big-endian bytes. The last
/// byte follows from the tenant alone: all lookup keys of a tenant lie in one partition of a store, where one step claims
/// several of them, and an effect that is found at a tool leads to its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lookup(pub [u8; Lookup::LEN]);

impl Lookup {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    pub fn new(tenant: &str, tool: &str, key: &str) -> Self {
        let mut lookup = short_digest([tenant, tool, key]);
        lookup[Self::LEN - 1] = Self::partition_of(tenant);
        Self(lookup)
    }

    /// The lookup key of one read: no other request has it. `unique`: a random number.
    pub fn of_read(tenant: &str, tool: &str, unique: Uuid) -> Self {
        Self::new(tenant, tool, &format!("{READ}{unique}"))
    }

    /// The number of the partition.
    pub fn partition(&self) -> u8 {
        self.0[Self::LEN - 1]
    }

    /// The last byte of every lookup key of this tenant.
    pub fn partition_of(tenant: &str) -> u8 {
        digest(["tenant", tenant])[0]
    }

    /// The key for the tool: 32 hex digits.
    ///
    /// The same for every attempt of a call, and never the caller's own key.
    pub fn for_tool(&self) -> String {
        hex::encode(self.0)
    }

    /// Reads a key for the tool in any spelling of its 16 bytes; `None`: the text has another form.
    ///
    /// Systems print a key in their own way: a UUID column with dashes and in capitals, a binary column with a prefix or as
    /// base64.
    pub fn of_tool_key(text: &str) -> Option<Self> {
        spelling::bytes_of(text).map(Self)
    }

    /// The first eight hex digits, to tell calls apart in a log.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

/// The first half of [`digest`]: enough to name something.
pub(super) fn short_digest<const N: usize>(parts: [&str; N]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&digest(parts)[..16]);
    short
}

/// SHA-256 over parts with their lengths, so that two different lists of parts never hash the same bytes.
pub fn digest<const N: usize>(parts: [&str; N]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
