//! The names and fingerprints of a request, by today's recipe and by every earlier one.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::prints::Prints;
use super::{Recipe, RecipeId};
use crate::core::key::{self, Chosen, Fingerprint, Key, Lookup, Pointer, Refused, Source};
use crate::core::mcp::round;
use crate::core::proxy::view;
use crate::core::secret::Secrets;

/// The parts of a request from which its names and fingerprints are made.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    pub tenant: &'a str,
    pub user_id: &'a str,
    /// The key that the caller's runtime brought.
    pub runtime: Option<&'a Key>,
    /// The arguments as they came: one object, also with the model's key.
    pub args: &'a Value,
    /// The secrets of the store.
    pub secrets: &'a Secrets,
}

/// The recipe behind a name. Lower values count first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The key by today's recipe. Any call under it blocks the arrival.
    Today,
    /// The runtime's key, where the business fields make the key.
    ///
    /// It counts only where no call has the key of the fields.
    Second,
    /// A key by an earlier recipe. A call under it blocks the arrival only if both are the same
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

/// The names and fingerprints of a request.
#[derive(Debug)]
pub struct Identity {
    /// The key by today's recipe.
    pub key: Result<Chosen, Refused>,
    pub fingerprint: Fingerprint,
    /// The arguments that count by today's recipe; `None`: all of them.
    pub counted: Option<Value>,
    /// The names, each once, today's first. A recipe that makes no key gives no name.
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
    let earlier_recipes = || earlier.iter().map(|(_, recipe)| recipe.as_ref());
    let all = std::iter::once(today.as_ref()).chain(earlier_recipes());
    let older = all.filter_map(|recipe| recipe.by_older_rule(asking.args));
    let older: Vec<Recipe> = older.collect();
    for recipe in earlier_recipes().chain(&older) {
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
    /// Where some of them are redacted, the key reveals nothing about them to a reader without the secret.
    fn derive(&self, asking: &Asking<'_>, user_id: &str, args: &Value) -> Key {
        let secret = (!self.redacted.is_empty()).then_some(&asking.secrets.today);
        key::derive(&self.tool, user_id, args, secret)
    }

    /// The key of a call, from the first source that has one. `counted` lacks the model's key.
    fn choose(&self, asking: &Asking<'_>, counted: &Value) -> Result<Chosen, Refused> {
        let counted = &*self.present(counted);
        // A round is answered once, whichever key comes with the answer.
        if let Some(asked_by) = round::answered_by(asking.args) {
            return Ok(chosen(Source::Round, key::of_round(asked_by.0)));
        }
        let business = || self.business(asking, counted);
        if self.is_business() {
            return business();
        }
        let runtime = asking
            .runtime
            .map(|key| chosen(Source::Runtime, key.clone()));
        // Where a tool has business fields, a model's key counts for nothing.
        if !self.fields.is_empty() {
            return runtime.map_or_else(business, Ok);
        }
        let model = key::from_model(asking.args)?;
        let model = model.map(|key| chosen(Source::Model, key));
        if let Some(own) = runtime.or(model) {
            return Ok(own);
        }
        if self.required {
            return Err(Refused::Missing);
        }
        let mut counted = Cow::Borrowed(counted);
        if self.headers.is_some() {
            // Ignored parts change by themselves, and a caller with another credential must find the call.
            let credential = Pointer::to(&[view::CREDENTIAL]);
            for pointer in self.ignore.iter().chain([&credential]) {
                pointer.remove_from(counted.to_mut());
            }
        }
        let key = self.derive(asking, asking.user_id, &counted);
        Ok(chosen(Source::Derived, key))
    }

    /// The runtime's key, where it is only a second name.
    fn second(&self, asking: &Asking<'_>) -> Option<Chosen> {
        let is_second = self.is_business() && round::answered_by(asking.args).is_none();
        let key = asking.runtime.filter(|_| is_second)?;
        Some(chosen(Source::Runtime, key.clone()))
    }

    /// The key that the business fields make.
    fn business(&self, asking: &Asking<'_>, counted: &Value) -> Result<Chosen, Refused> {
        let mut fields = Map::new();
        for field in &self.fields {
            let value = counted.pointer(field.as_str());
            let value = value.ok_or_else(|| Refused::FieldMissing(field.as_str().to_owned()))?;
            fields.insert(field.as_str().to_owned(), value.clone());
        }
        // A key of the tenant is that of a call that names no user.
        let user_id = match self.per_tenant {
            true => "",
            false => asking.user_id,
        };
        let key = self.derive(asking, user_id, &Value::Object(fields));
        Ok(chosen(Source::Business, key))
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

fn chosen(source: Source, key: Key) -> Chosen {
    Chosen { key, source }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
