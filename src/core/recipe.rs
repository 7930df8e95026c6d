//! The settings of a tool that decide its calls' names and fingerprints.
//!
//! A call keeps the id of the recipe that it was made with. Recipes are remembered as long as their calls are, so
//! that a repetition is recognised under every later configuration. Must not know where they are kept.

pub mod differ; // where arguments differ
pub mod identity; // which call a request is, by all recipes
pub mod prints; // whether two requests ask for the same
pub mod stored; // as a document

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::json::canonical;
use super::key::{self, Fingerprint, MODEL_MEMBER, Per, Pointer, Prefer, SECRET_ID};
use super::proxy::{Policy, view};
use super::secret::Secret;
use super::tool::Tool;

/// Most recipes of one tool that are remembered: an arrival looks under all of them.
pub const MAX_RECIPES: usize = 32;

/// Names a recipe: the first half of the SHA-256 of its canonical JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RecipeId(pub [u8; 16]);

impl fmt::Display for RecipeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// How names and fingerprint of a tool's calls are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    pub tool: String,
    pub key: key::Policy,
    /// Arguments that are not kept: without them no fingerprint can be made of a stored call.
    pub redacted: Vec<Pointer>,
    /// Whether the model's key stays in the arguments, because the tool's schema has that member.
    pub keeps_member: bool,
    /// Headers that count beside path, query and body of a proxy; `None`: it is no proxy.
    pub headers: Option<Vec<String>>,
}

/// A recipe as it is stored. Its members are part of its id.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    tool: String,
    required: bool,
    fields: Vec<String>,
    prefers_runtime: bool,
    per_tenant: bool,
    ignore: Vec<String>,
    redacted: Vec<String>,
    keeps_member: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    headers: Option<Vec<String>>,
}

impl Recipe {
    /// The recipe of a tool as it is configured today.
    pub fn of(tool: &Tool) -> Self {
        Self {
            tool: tool.name.clone(),
            key: tool.key.clone(),
            redacted: tool.redact.args.clone(),
            keeps_member: tool.keeps_key_member || tool.has_property(MODEL_MEMBER),
            headers: tool.proxy.as_ref().map(Policy::counted),
        }
    }

    pub fn id(&self) -> RecipeId {
        let digest: [u8; 32] = Sha256::digest(canonical(&self.to_json())).into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        RecipeId(id)
    }

    pub fn to_json(&self) -> Value {
        let texts =
            |pointers: &[Pointer]| pointers.iter().map(|one| one.as_str().to_owned()).collect();
        let stored = Stored {
            tool: self.tool.clone(),
            required: self.key.required,
            fields: texts(&self.key.fields),
            prefers_runtime: self.key.prefer == Prefer::Runtime,
            per_tenant: self.key.per == Per::Tenant,
            ignore: texts(&self.key.ignore),
            redacted: texts(&self.redacted),
            keeps_member: self.keeps_member,
            headers: self.headers.clone(),
        };
        serde_json::to_value(stored).unwrap_or_default()
    }

    /// `None`: this is no recipe that this version knows.
    pub fn from_json(json: Value) -> Option<Self> {
        let stored: Stored = serde_json::from_value(json).ok()?;
        let pointers = |texts: Vec<String>| {
            texts
                .iter()
                .map(|one| one.parse().ok())
                .collect::<Option<Vec<_>>>()
        };
        Some(Self {
            tool: stored.tool,
            key: key::Policy {
                required: stored.required,
                fields: pointers(stored.fields)?,
                prefer: if stored.prefers_runtime {
                    Prefer::Runtime
                } else {
                    Prefer::Business
                },
                per: if stored.per_tenant {
                    Per::Tenant
                } else {
                    Per::User
                },
                ignore: pointers(stored.ignore)?,
            },
            redacted: pointers(stored.redacted)?,
            keeps_member: stored.keeps_member,
            headers: stored.headers,
        })
    }

    /// The arguments that count.
    ///
    /// They lack the model's key, unless the tool asks for it, and a proxy's headers that do not
    /// count.
    fn counted<'a>(&self, args: &'a Value) -> Cow<'a, Value> {
        if let Some(counted) = &self.headers {
            return Cow::Owned(view::with_headers(args.clone(), counted));
        }
        match args {
            Value::Object(members) if !self.keeps_member && members.contains_key(MODEL_MEMBER) => {
                let mut members = members.clone();
                members.remove(MODEL_MEMBER);
                Cow::Owned(Value::Object(members))
            }
            _ => Cow::Borrowed(args),
        }
    }

    /// The fingerprint of arguments that count.
    fn fingerprint_of(&self, secret: &Secret, counted: &Value) -> Fingerprint {
        let mut counted = Cow::Borrowed(counted);
        for pointer in &self.key.ignore {
            pointer.remove_from(counted.to_mut());
        }
        let mut fingerprint = secret.mac("fingerprint", [&canonical(&counted)]);
        fingerprint[..SECRET_ID].copy_from_slice(&secret.mac("id", [])[..SECRET_ID]);
        fingerprint
    }

    /// The fingerprint of arguments as they came.
    pub fn fingerprint(&self, secret: &Secret, args: &Value) -> Fingerprint {
        self.fingerprint_of(secret, &self.counted(args))
    }
}
