//! Whether a request asks for the same as a stored call.

use std::sync::Arc;

use serde_json::Value;

use super::{Recipe, RecipeId};
use crate::key::{Fingerprint, Lookup, SECRET_ID, Source};
use crate::nulls::has_nulls;
use crate::proxy::view::view;
use crate::proxy::{credentials, image};
use crate::record::{Alias, Intent, Record};
use crate::secret::{Secret, Secrets};
use crate::{json, redact};

/// Whether an arrival asks for the same as a stored call. Of several findings the greatest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sameness {
    Other,
    /// A key scheme is not known, or the stored arguments are not whole.
    Unclear,
    /// The call was adopted and has no fingerprint yet, and the arrival has its key.
    Unsaid,
    Same,
}

impl Sameness {
    fn of(is_same: bool) -> Self {
        if is_same { Self::Same } else { Self::Other }
    }
}

/// An arrival's fingerprints by earlier key schemes. Its intent has the fingerprint by today's.
#[derive(Debug, Clone, Default)]
pub struct Prints {
    today: Option<(Arc<Recipe>, Secret)>,
    earlier: Vec<Print>,
    /// The fingerprints by each key scheme under the rule of earlier versions, where that makes another one.
    by_older_rule: Vec<(RecipeId, Fingerprint)>,
    /// The fingerprints under each earlier secret, after the one by today's key scheme.
    older: Vec<(Fingerprint, Prints)>,
    /// The arrival's names that are made of its arguments without the model's key.
    ///
    /// A call that the gateway has given one of them has equal arguments.
    of_arguments: Vec<Lookup>,
}

/// An arrival's fingerprint by one earlier key scheme.
#[derive(Debug, Clone, Copy)]
struct Print {
    recipe: RecipeId,
    fingerprint: Fingerprint,
    /// Whether that key scheme makes the same fingerprints as today's.
    is_as_today: bool,
    /// Whether that key scheme counts every credential that counts today.
    counts_credentials: bool,
    /// Whether the arrival has a credential that counts today, and not by that key scheme.
    misses_credential: bool,
}

impl Print {
    /// Whether equal fingerprints show that a stored call was made with the arrival's credentials.
    ///
    /// Calls of earlier versions were compared without most of them.
    fn proves_credentials(&self, today: Option<&Recipe>, stored: &[u8]) -> bool {
        let list = today.and_then(|today| today.headers.as_deref());
        self.counts_credentials
            || !self.misses_credential
                && !credentials::are_in(list.unwrap_or_default(), &image::headers(stored))
    }

    fn of(id: RecipeId, recipe: &Recipe, today: &Recipe, secret: &Secret, args: &Value) -> Self {
        Self {
            recipe: id,
            fingerprint: recipe.fingerprint(secret, args),
            is_as_today: today.ignore == recipe.ignore
                && today.headers == recipe.headers
                && today.fold == recipe.fold
                && today.keeps_member == recipe.keeps_member,
            counts_credentials: recipe.counts_credentials_of(today),
            misses_credential: recipe.misses_credential(today, args),
        }
    }
}

impl Prints {
    /// The fingerprints of arguments by today's key scheme and by earlier ones.
    pub fn of(
        today: &Arc<Recipe>,
        earlier: &[(RecipeId, Arc<Recipe>)],
        secrets: &Secrets,
        args: &Value,
    ) -> Self {
        let under = |secret: &Secret| {
            let print = |(id, recipe): &(RecipeId, Arc<Recipe>)| {
                Print::of(*id, recipe, today, secret, args)
            };
            let of_older = |id: RecipeId, recipe: &Recipe| {
                Some((id, recipe.by_older_rule(args)?.fingerprint(secret, args)))
            };
            let mut by_older_rule: Vec<_> = earlier
                .iter()
                .filter_map(|(id, recipe)| of_older(*id, recipe))
                .collect();
            if has_nulls(args) {
                by_older_rule.extend(of_older(today.id(), today));
            }
            Self {
                today: Some((today.clone(), secret.clone())),
                earlier: earlier.iter().map(print).collect(),
                by_older_rule,
                older: Vec::new(),
                of_arguments: Vec::new(),
            }
        };
        let older = secrets.earlier.iter();
        Self {
            older: older
                .map(|secret| (today.fingerprint(secret, args), under(secret)))
                .collect(),
            ..under(&secrets.today)
        }
    }

    /// The same, with the names that are made of the arguments without the model's key.
    #[must_use]
    pub fn with_names_of_arguments(self, of_arguments: Vec<Lookup>) -> Self {
        Self {
            of_arguments,
            ..self
        }
    }

    /// Whether the call got its name from the arguments, and they are those of the arrival but for the model's key.
    fn has_the_arguments_of(&self, record: &Record) -> bool {
        let is_it = |name: &Lookup| self.of_arguments.contains(name);
        match record.intent.key_source {
            Source::Derived => record.intent.all_names().any(is_it),
            // Its key may be any text. All its further names are made of arguments.
            Source::Model => record.intent.names.iter().any(is_it),
            _ => false,
        }
    }

    /// Whether only the arguments show that an arrival asks for a stored call: no key and no id of the client does.
    pub fn is_met_by_arguments(&self, intent: &Intent, record: &Record) -> bool {
        let shows = |name: &&Lookup| record.all_names().any(|held| held == *name);
        let mut shown = intent.all_names().filter(shows).peekable();
        shown.peek().is_some() && shown.all(|name| self.of_arguments.contains(name))
    }

    /// Whether a call by this key scheme can be compared.
    pub fn covers(&self, intent: &Intent, recipe: RecipeId) -> bool {
        recipe == intent.recipe || self.by(recipe).is_some()
    }

    /// The fingerprint by an earlier key scheme.
    fn by(&self, recipe: RecipeId) -> Option<&Print> {
        self.earlier.iter().find(|print| print.recipe == recipe)
    }

    /// Adds the fingerprint by one more key scheme. `args`: the arguments as they came.
    #[must_use]
    pub fn with(&self, id: RecipeId, recipe: &Recipe, args: &Value) -> Self {
        let mut prints = self.clone();
        if let Some((today, secret)) = &self.today {
            let print = Print::of(id, recipe, today, secret, args);
            prints.earlier.push(print);
            let older = recipe.by_older_rule(args);
            let older = older.map(|older| (id, older.fingerprint(secret, args)));
            prints.by_older_rule.extend(older);
        }
        for (_, older) in &mut prints.older {
            *older = older.with(id, recipe, args);
        }
        prints
    }

    /// Compares an arrival with a stored call.
    ///
    /// They are the same if their fingerprints are equal by the stored call's key scheme or by today's, or if all
    /// arguments but the model's key are: a model makes up another key for the same intent.
    /// An arrival with the key of an alias is compared with the alias. An adopted call has no
    /// fingerprint but those of its aliases.
    pub fn compare(&self, intent: &Intent, record: &Record) -> Sameness {
        if self.has_the_arguments_of(record) {
            return Sameness::Same;
        }
        let has = |name: &Lookup| intent.all_names().any(|asked| asked == name);
        let aliases = record
            .aliases
            .iter()
            .filter(|alias| alias.names.iter().any(has));
        let mut found: Vec<Sameness> = aliases
            .map(|alias| self.compare_alias(intent, alias))
            .collect();
        if record.is_adopted() {
            if found.is_empty() {
                found.push(unsaid(intent, record));
            }
        } else if found.is_empty() || record.intent.all_names().any(has) {
            found.push(self.compare_own(intent, record));
        }
        found.into_iter().max().unwrap_or(Sameness::Other)
    }

    /// Compares an arrival with an alias, whose arguments are not kept.
    fn compare_alias(&self, intent: &Intent, alias: &Alias) -> Sameness {
        let Some((prints, today)) = self.under_secret_of(intent, &alias.fingerprint) else {
            return Sameness::Unclear;
        };
        if prints.is_by_older_rule(alias.recipe, &alias.fingerprint) {
            return Sameness::Same;
        }
        if alias.recipe == intent.recipe {
            return Sameness::of(alias.fingerprint == *today);
        }
        match prints.by(alias.recipe) {
            Some(print) if print.fingerprint == alias.fingerprint && !print.misses_credential => {
                Sameness::Same
            }
            Some(print) if print.is_as_today => Sameness::Other,
            _ => Sameness::Unclear,
        }
    }

    /// The arrival's fingerprints under the secret of a stored one; the second is by today's key scheme.
    ///
    /// `None`: that secret is not known.
    fn under_secret_of<'a>(
        &'a self,
        intent: &'a Intent,
        stored: &Fingerprint,
    ) -> Option<(&'a Self, &'a Fingerprint)> {
        let is_its = |own: &Fingerprint| stored[..SECRET_ID] == own[..SECRET_ID];
        if self.today.is_none() || is_its(&intent.fingerprint) {
            return Some((self, &intent.fingerprint));
        }
        let older = self.older.iter().find(|(own, _)| is_its(own));
        older.map(|(own, prints)| (prints, own))
    }

    /// Compares an arrival with the call's own fingerprint and arguments.
    fn compare_own(&self, intent: &Intent, record: &Record) -> Sameness {
        let stored = &record.intent;
        let Some((prints, today)) = self.under_secret_of(intent, &stored.fingerprint) else {
            // Without the secret only the arguments can be compared, as far as they are kept.
            return match self.by_today(&stored.args) {
                Some(stored) if stored == intent.fingerprint => Sameness::Same,
                Some(_) if stored.recipe == intent.recipe => Sameness::Other,
                Some(_) | None => Sameness::Unclear,
            };
        };
        if prints.is_by_older_rule(stored.recipe, &stored.fingerprint) {
            return Sameness::Same;
        }
        if stored.recipe == intent.recipe {
            let is_same = stored.fingerprint == *today || prints.is_null_apart(stored, today);
            return Sameness::of(is_same);
        }
        let by_its_recipe = prints.by(stored.recipe);
        let is_equal = |print: &&Print| print.fingerprint == stored.fingerprint;
        if let Some(print) = by_its_recipe.filter(is_equal) {
            let by = prints.today.as_ref().map(|(today, _)| &**today);
            let is_same = print.proves_credentials(by, &stored.args)
                || prints
                    .by_today(&stored.args)
                    .is_some_and(|own| own == *today);
            return if is_same {
                Sameness::Same
            } else {
                Sameness::Unclear
            };
        }
        match (prints.by_today(&stored.args), by_its_recipe) {
            (Some(stored), _) if stored == *today => Sameness::Same,
            // They differ by both key schemes, or by the call's, and today's makes the same fingerprints.
            (Some(_), Some(_)) => Sameness::Other,
            (None, Some(print)) if print.is_as_today => Sameness::Other,
            // The stored arguments are not whole, or the call's key scheme is not known.
            _ => Sameness::Unclear,
        }
    }

    /// Whether this is the arrival's fingerprint by a key scheme under the rule of earlier versions.
    fn is_by_older_rule(&self, recipe: RecipeId, fingerprint: &Fingerprint) -> bool {
        self.by_older_rule.contains(&(recipe, *fingerprint))
    }

    /// Whether stored arguments differ from those of the arrival only in members that are null.
    ///
    /// Their fingerprint differs, too, if an earlier version has made it.
    fn is_null_apart(&self, stored: &Intent, today: &Fingerprint) -> bool {
        let counts_nulls = |(recipe, _): &(Arc<Recipe>, Secret)| recipe.headers.is_some();
        let is_proxy = self.today.as_ref().is_some_and(counts_nulls);
        !is_proxy && self.by_today(&stored.args).as_ref() == Some(today)
    }

    /// The fingerprint of stored arguments by today's key scheme.
    ///
    /// `None`: the arguments are not whole, or cannot be read.
    fn by_today(&self, args: &[u8]) -> Option<Fingerprint> {
        let (today, secret) = self.today.as_ref()?;
        if !redact::is_whole(args) {
            return None;
        }
        let args = match today.headers {
            // A fingerprint is made of the request, not of its image. An image lacks credentials, so is not whole with them.
            Some(_) => view(&image::message(args)?, ""),
            None => json::parse(str::from_utf8(args).ok()?).ok()?,
        };
        Some(today.fingerprint(secret, &args))
    }
}

/// Compares an arrival with an adopted call that has no fingerprint yet.
///
/// Only an arrival whose key of today is that of the call surely has the same intent.
fn unsaid(intent: &Intent, record: &Record) -> Sameness {
    let stored = &record.intent;
    let is_its_key = intent.lookup == stored.lookup
        && (&intent.tenant, &intent.tool) == (&stored.tenant, &stored.tool);
    match is_its_key {
        true => Sameness::Unsaid,
        false => Sameness::Unclear,
    }
}

#[cfg(test)]
#[path = "prints_tests.rs"]
mod tests;
