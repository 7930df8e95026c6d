//! Which call a request is: its names and fingerprints by today's recipe and by every earlier one.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::prints::Prints;
use super::{Recipe, RecipeId};
use crate::core::key::{self, Chosen, Fingerprint, Key, Lookup, Per, Pointer, Refused, Source};
use crate::core::mcp::round;
use crate::core::proxy::view;
use crate::core::secret::Secrets;

/// The parts of a request that decide which call it is.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    pub tenant: &'a str,
    pub user_id: &'a str,
    /// The key that the caller's runtime brought.
    pub runtime: Option<&'a Key>,
    /// The arguments as they came: one object, with the model's key.
    pub args: &'a Value,
    /// The secrets of the store.
    pub secrets: &'a Secrets,
}

/// Which recipe gives a name. Lower values count first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The key by today's recipe. Any call under it blocks the arrival.
    Today,
    /// The runtime's key, where the business fields make the key.
    ///
    /// It counts only where the fields find nothing.
    Second,
    /// A key by an earlier recipe. A call under it blocks the arrival only if it is the same
    /// intent.
    Earlier,
}

/// A name of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    pub lookup: Lookup,
    pub part: Part,
    /// Whether the name is the key that the caller's runtime brought.
    pub is_runtime: bool,
}

/// Which call a request is, by today's recipe and by every earlier one.
#[derive(Debug)]
pub struct Identity {
    /// The key by today's recipe.
    pub key: Result<Chosen, Refused>,
    pub fingerprint: Fingerprint,
    /// The arguments that count by today's recipe; `None`: all of them.
    pub counted: Option<Value>,
    /// The names, today's first and none twice. A recipe that gives no key gives no name.
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
    let counted = today.counted(asking.args);
    let key = today.choose(asking, &counted);
    let (mut names, mut keys): (Vec<Name>, Vec<Chosen>) = (Vec::new(), Vec::new());
    let mut add = |recipe: &Recipe, chosen: Chosen, part: Part| {
        let lookup = Lookup::new(asking.tenant, &recipe.tool, chosen.key.as_str());
        if names.iter().all(|name| name.lookup != lookup) {
            names.push(Name {
                lookup,
                part,
                is_runtime: chosen.source == Source::Runtime,
            });
            keys.push(chosen);
        }
    };
    for (chosen, part) in today.names(asking, &key, Part::Today, Part::Second) {
        add(today, chosen, part);
    }
    for (_, recipe) in earlier {
        let key = recipe.choose(asking, &recipe.counted(asking.args));
        for (chosen, part) in recipe.names(asking, &key, Part::Earlier, Part::Earlier) {
            add(recipe, chosen, part);
        }
    }
    let fingerprint = today.fingerprint_of(&asking.secrets.today, &counted);
    let counted = match counted {
        Cow::Borrowed(_) => None,
        Cow::Owned(counted) => Some(counted),
    };
    Identity {
        key,
        fingerprint,
        counted,
        names,
        keys,
        prints: Prints::of(today, earlier, asking.secrets, asking.args),
    }
}

impl Recipe {
    /// The key that arguments make.
    ///
    /// Where some of them are redacted, it reveals nothing about them without the secret.
    fn derive(&self, asking: &Asking<'_>, user_id: &str, args: &Value) -> Key {
        let secret = (!self.redacted.is_empty()).then_some(&asking.secrets.today);
        key::derive(&self.tool, user_id, args, secret)
    }

    /// The key of a call, from the first source that has one. `counted` lacks the model's key.
    fn choose(&self, asking: &Asking<'_>, counted: &Value) -> Result<Chosen, Refused> {
        // Whatever key comes with it: a round is answered once.
        if let Some(asked_by) = round::answered_by(asking.args) {
            return Ok(Chosen {
                key: key::of_round(asked_by.0),
                source: Source::Round,
            });
        }
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
        let mut counted = Cow::Borrowed(counted);
        if self.headers.is_some() {
            // What changes by itself makes no key, and a caller with another credential meets the call.
            let credential = Pointer::to(&[view::CREDENTIAL]);
            for pointer in self.key.ignore.iter().chain([&credential]) {
                pointer.remove_from(counted.to_mut());
            }
        }
        let key = self.derive(asking, asking.user_id, &counted);
        Ok(Chosen {
            key,
            source: Source::Derived,
        })
    }

    /// The runtime's key, where it is only a second name.
    fn second(&self, asking: &Asking<'_>) -> Option<Chosen> {
        let is_second = self.key.is_business() && round::answered_by(asking.args).is_none();
        let key = asking.runtime.filter(|_| is_second)?;
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

    /// The names of a request by this recipe: the keys under every secret, and the runtime's key.
    ///
    /// `as_key`: the part of the keys.
    fn names(
        &self,
        asking: &Asking<'_>,
        key: &Result<Chosen, Refused>,
        as_key: Part,
        as_second: Part,
    ) -> Vec<(Chosen, Part)> {
        let mut names: Vec<_> = key.iter().map(|key| (key.clone(), as_key)).collect();
        if !self.redacted.is_empty() {
            let counted = self.counted(asking.args);
            for earlier in &asking.secrets.earlier {
                let secrets = &Secrets::one(earlier.clone());
                let key = self.choose(&Asking { secrets, ..*asking }, &counted);
                names.extend(key.map(|key| (key, as_key)));
            }
        }
        names.extend(self.second(asking).map(|second| (second, as_second)));
        names
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
