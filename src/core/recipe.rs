//! Everything that decides which call a request is: the names that it goes by, and its fingerprint.
//!
//! A call keeps the id of the recipe that it was made with. Recipes are remembered as long as their calls are, so
//! that a repetition is recognised under every later configuration. Must not know where they are kept.

pub mod differ; // where arguments differ
pub mod stored; // as a document

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::json::{self, canonical};
use super::key::{
    self, Chosen, Fingerprint, Key, Lookup, MODEL_MEMBER, Per, Pointer, Prefer, Refused, Source,
};
use super::record::{Alias, Intent, Record};
use super::redact;
use super::secret::Secret;
use super::tool::Tool;

/// Recipes of one tool that are remembered at once: an arrival looks under all of them.
pub const MAX_RECIPES: usize = 32;

/// How many bytes of a fingerprint, the first, name the secret that it was made with.
const SECRET_ID: usize = 4;

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
    /// Of the arguments, what is not kept: without it no fingerprint can be made of what is stored.
    pub redacted: Vec<Pointer>,
    /// Whether the model's key stays in the arguments, because the tool's own schema has such a member.
    pub keeps_member: bool,
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
}

impl Recipe {
    /// What a tool's configuration says today.
    pub fn of(tool: &Tool) -> Self {
        Self {
            tool: tool.name.clone(),
            key: tool.key.clone(),
            redacted: tool.redact.args.clone(),
            keeps_member: tool.has_property(MODEL_MEMBER),
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
        })
    }

    /// The arguments that count: without the model's key, unless the tool asks for it.
    fn counted<'a>(&self, args: &'a Value) -> Cow<'a, Value> {
        match args {
            Value::Object(members) if !self.keeps_member && members.contains_key(MODEL_MEMBER) => {
                let mut members = members.clone();
                members.remove(MODEL_MEMBER);
                Cow::Owned(Value::Object(members))
            }
            _ => Cow::Borrowed(args),
        }
    }

    /// What a call asks for.
    fn fingerprint_of(&self, secret: &Secret, counted: &Value) -> Fingerprint {
        let mut counted = Cow::Borrowed(counted);
        for pointer in &self.key.ignore {
            pointer.remove_from(counted.to_mut());
        }
        let mut fingerprint = secret.mac("fingerprint", [&canonical(&counted)]);
        fingerprint[..SECRET_ID].copy_from_slice(&secret.mac("id", [])[..SECRET_ID]);
        fingerprint
    }

    /// The same for arguments as they came.
    pub fn fingerprint(&self, secret: &Secret, args: &Value) -> Fingerprint {
        self.fingerprint_of(secret, &self.counted(args))
    }

    /// A key that arguments make. Where some of them are not to be kept, it reveals nothing
    /// about them without the secret.
    fn derive(&self, asking: &Asking<'_>, user_id: &str, args: &Value) -> Key {
        let secret = (!self.redacted.is_empty()).then_some(asking.secret);
        key::derive(&self.tool, user_id, args, secret)
    }

    /// The key of a call, by the first source that has one. `counted` is without the model's key.
    fn choose(&self, asking: &Asking<'_>, counted: &Value) -> Result<Chosen, Refused> {
        let business = || self.business(asking, counted);
        if self.key.is_business() {
            return business();
        }
        let runtime = asking.runtime.map(|key| Chosen {
            key: key.clone(),
            source: Source::Runtime,
        });
        // Where there are business fields, a model's key counts for nothing.
        if !self.key.fields.is_empty() {
            return runtime.map_or_else(business, Ok);
        }
        let model = key::from_model(asking.args)?;
        if let Some(runtime) = runtime {
            return Ok(runtime);
        }
        if let Some(key) = model {
            return Ok(Chosen {
                key,
                source: Source::Model,
            });
        }
        if self.key.required {
            return Err(Refused::Missing);
        }
        let key = self.derive(asking, asking.user_id, counted);
        Ok(Chosen {
            key,
            source: Source::Derived,
        })
    }

    /// The runtime's key, where it is only a second name.
    fn second(&self, asking: &Asking<'_>) -> Option<Chosen> {
        let key = asking.runtime.filter(|_| self.key.is_business())?;
        Some(Chosen {
            key: key.clone(),
            source: Source::Runtime,
        })
    }

    /// The key that the business fields make.
    fn business(&self, asking: &Asking<'_>, counted: &Value) -> Result<Chosen, Refused> {
        let mut fields = Map::new();
        for field in &self.key.fields {
            let value = counted.pointer(field.as_str());
            let value = value.ok_or_else(|| Refused::FieldMissing(field.as_str().to_owned()))?;
            fields.insert(field.as_str().to_owned(), value.clone());
        }
        // Like a call that names no user.
        let user_id = if self.key.per == Per::Tenant {
            ""
        } else {
            asking.user_id
        };
        let key = self.derive(asking, user_id, &Value::Object(fields));
        Ok(Chosen {
            key,
            source: Source::Business,
        })
    }

    /// What a request is by this recipe.
    fn read<'a>(&self, asking: &Asking<'a>) -> Reading<'a> {
        let counted = self.counted(asking.args);
        let key = self.choose(asking, &counted);
        Reading {
            key,
            fingerprint: self.fingerprint_of(asking.secret, &counted),
            counted,
        }
    }
}

/// A request, as far as it decides which call it is.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    pub tenant: &'a str,
    pub user_id: &'a str,
    /// The key that the caller's runtime brought.
    pub runtime: Option<&'a Key>,
    /// As they came: one object, with the model's key.
    pub args: &'a Value,
    /// The store's.
    pub secret: &'a Secret,
}

/// A request by one recipe.
struct Reading<'a> {
    key: Result<Chosen, Refused>,
    fingerprint: Fingerprint,
    counted: Cow<'a, Value>,
}

/// Which recipe gives a name; the first counts before the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The key by today's recipe: what stands under it is in the way.
    Today,
    /// By today's recipe the runtime's key, where the business fields make the key: it counts only where they find
    /// nothing.
    Second,
    /// A key by an earlier recipe: what stands under it is only in the way if it is the same intent.
    Earlier,
}

/// A name that an arrival goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    pub lookup: Lookup,
    pub part: Part,
    /// It is the key that the caller's runtime brought.
    pub is_runtime: bool,
}

/// Which call a request is, by today's recipe and by every earlier one.
#[derive(Debug)]
pub struct Identity {
    /// By today's recipe.
    pub key: Result<Chosen, Refused>,
    pub fingerprint: Fingerprint,
    /// The arguments that count by today's recipe; `None`: as they came.
    pub counted: Option<Value>,
    /// No name twice, today's first. Where a recipe gives no key it gives no name.
    pub names: Vec<Name>,
    /// The keys behind the names.
    pub keys: Vec<Chosen>,
    pub prints: Prints,
}

/// Reads a request by every recipe. `earlier`: the newest first.
pub fn identify(
    today: &Arc<Recipe>,
    earlier: &[(RecipeId, Arc<Recipe>)],
    asking: &Asking<'_>,
) -> Identity {
    let Reading {
        key,
        fingerprint,
        counted,
    } = today.read(asking);
    let (mut names, mut keys): (Vec<Name>, Vec<Chosen>) = (Vec::new(), Vec::new());
    let mut add = |recipe: &Recipe, chosen: &Chosen, part: Part| {
        let lookup = Lookup::new(asking.tenant, &recipe.tool, chosen.key.as_str());
        if names.iter().all(|name| name.lookup != lookup) {
            names.push(Name {
                lookup,
                part,
                is_runtime: chosen.source == Source::Runtime,
            });
            keys.push(chosen.clone());
        }
    };
    if let Ok(chosen) = &key {
        add(today, chosen, Part::Today);
    }
    if let Some(second) = today.second(asking) {
        add(today, &second, Part::Second);
    }
    let mut prints = Vec::with_capacity(earlier.len());
    for (id, recipe) in earlier {
        let reading = recipe.read(asking);
        prints.push(Print::of(*id, recipe, Some(today), reading.fingerprint));
        if let Ok(chosen) = &reading.key {
            add(recipe, chosen, Part::Earlier);
        }
        if let Some(second) = recipe.second(asking) {
            add(recipe, &second, Part::Earlier);
        }
    }
    let counted = match counted {
        Cow::Borrowed(_) => None,
        Cow::Owned(counted) => Some(counted),
    };
    let prints = Prints {
        today: Some((today.clone(), asking.secret.clone())),
        earlier: prints,
    };
    Identity {
        key,
        fingerprint,
        counted,
        names,
        keys,
        prints,
    }
}

/// Whether an arrival asks for what a stored call has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sameness {
    Same,
    Other,
    /// By one of the two recipes it cannot be said: that recipe is not known, or the stored arguments are not whole.
    Unclear,
}

/// An arrival's fingerprints by the earlier recipes. By today's it has its own.
#[derive(Debug, Clone, Default)]
pub struct Prints {
    today: Option<(Arc<Recipe>, Secret)>,
    earlier: Vec<Print>,
}

/// An arrival's fingerprint by one earlier recipe.
#[derive(Debug, Clone, Copy)]
struct Print {
    recipe: RecipeId,
    fingerprint: Fingerprint,
    /// That recipe makes fingerprints as today's does: what differs by the one differs by the other.
    is_as_today: bool,
}

impl Print {
    fn of(
        id: RecipeId,
        recipe: &Recipe,
        today: Option<&Arc<Recipe>>,
        fingerprint: Fingerprint,
    ) -> Self {
        let is_as_today = today.is_some_and(|today| {
            today.key.ignore == recipe.key.ignore && today.keeps_member == recipe.keeps_member
        });
        Self {
            recipe: id,
            fingerprint,
            is_as_today,
        }
    }
}

impl Prints {
    /// Of arguments that are read by today's recipe and by earlier ones.
    pub fn of(
        today: &Arc<Recipe>,
        earlier: &[(RecipeId, Arc<Recipe>)],
        secret: &Secret,
        args: &Value,
    ) -> Self {
        let print = |(id, recipe): &(RecipeId, Arc<Recipe>)| {
            Print::of(*id, recipe, Some(today), recipe.fingerprint(secret, args))
        };
        let earlier = earlier.iter().map(print).collect();
        Self {
            today: Some((today.clone(), secret.clone())),
            earlier,
        }
    }

    /// Whether a call that was made with this recipe can be compared.
    pub fn covers(&self, intent: &Intent, recipe: RecipeId) -> bool {
        recipe == intent.recipe || self.earlier.iter().any(|print| print.recipe == recipe)
    }

    /// The same with one more recipe, of which the arguments as they came have been read.
    #[must_use]
    pub fn with(&self, id: RecipeId, recipe: &Recipe, args: &Value) -> Self {
        let mut prints = self.clone();
        if let Some((today, secret)) = &self.today {
            prints.earlier.push(Print::of(
                id,
                recipe,
                Some(today),
                recipe.fingerprint(secret, args),
            ));
        }
        prints
    }

    /// The same if equal by the stored call's recipe or by today's. Where the arrival has the key of an alias
    /// it counts what that one has asked for.
    pub fn compare(&self, intent: &Intent, record: &Record) -> Sameness {
        let has = |name: &Lookup| intent.all_names().any(|asked| asked == name);
        let aliases = record
            .aliases
            .iter()
            .filter(|alias| alias.names.iter().any(has));
        let mut found: Vec<Sameness> = aliases
            .map(|alias| self.compare_alias(intent, alias))
            .collect();
        if found.is_empty() || record.intent.all_names().any(has) {
            found.push(self.compare_own(intent, record));
        }
        let of = |wanted| found.contains(&wanted).then_some(wanted);
        of(Sameness::Same)
            .or_else(|| of(Sameness::Unclear))
            .unwrap_or(Sameness::Other)
    }

    /// The arguments of an alias are not kept.
    fn compare_alias(&self, intent: &Intent, alias: &Alias) -> Sameness {
        let same = |fingerprint| {
            if fingerprint == alias.fingerprint {
                Sameness::Same
            } else {
                Sameness::Other
            }
        };
        if !self.is_of_this_secret(intent, &alias.fingerprint) {
            return Sameness::Unclear;
        }
        if alias.recipe == intent.recipe {
            return same(intent.fingerprint);
        }
        let theirs = self
            .earlier
            .iter()
            .find(|print| print.recipe == alias.recipe);
        match theirs.map(|print| (print, same(print.fingerprint))) {
            Some((_, Sameness::Same)) => Sameness::Same,
            Some((print, other)) if print.is_as_today => other,
            _ => Sameness::Unclear,
        }
    }

    /// Whether a stored fingerprint was made with the secret that the arrival's was made with.
    fn is_of_this_secret(&self, intent: &Intent, stored: &Fingerprint) -> bool {
        self.today.is_none() || stored[..SECRET_ID] == intent.fingerprint[..SECRET_ID]
    }

    fn compare_own(&self, intent: &Intent, record: &Record) -> Sameness {
        let stored = &record.intent;
        if !self.is_of_this_secret(intent, &stored.fingerprint) {
            // Its secret is gone: only the arguments themselves can be compared, as far as they are kept.
            return match self.by_today(&stored.args) {
                Some(stored) if stored == intent.fingerprint => Sameness::Same,
                Some(_) if stored.recipe == intent.recipe => Sameness::Other,
                Some(_) | None => Sameness::Unclear,
            };
        }
        if stored.recipe == intent.recipe {
            let is_same = stored.fingerprint == intent.fingerprint;
            return if is_same {
                Sameness::Same
            } else {
                Sameness::Other
            };
        }
        let theirs = self
            .earlier
            .iter()
            .find(|print| print.recipe == stored.recipe);
        if theirs.is_some_and(|print| print.fingerprint == stored.fingerprint) {
            return Sameness::Same;
        }
        match (self.by_today(&stored.args), theirs) {
            (Some(stored), _) if stored == intent.fingerprint => Sameness::Same,
            // It differs by both recipes; or by theirs, and today's would say the same.
            (Some(_), Some(_)) => Sameness::Other,
            (None, Some(theirs)) if theirs.is_as_today => Sameness::Other,
            // What is stored is not whole, so it cannot be read by today's recipe; or theirs is not known.
            _ => Sameness::Unclear,
        }
    }

    /// What is stored, by today's recipe; `None` if not all of it is kept, or it cannot be read.
    fn by_today(&self, args: &[u8]) -> Option<Fingerprint> {
        let (today, secret) = self.today.as_ref()?;
        if !redact::is_whole(args) {
            return None;
        }
        let args = json::parse(str::from_utf8(args).ok()?).ok()?;
        Some(today.fingerprint(secret, &args))
    }
}

#[cfg(test)]
#[path = "recipe_tests.rs"]
mod tests;
