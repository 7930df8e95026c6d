//! Whether a request asks for the same as a stored call.

use std::sync::Arc;

use serde_json::Value;

use super::{Recipe, RecipeId};
use crate::core::key::{Fingerprint, Lookup, SECRET_ID};
use crate::core::proxy::image;
use crate::core::proxy::view::view;
use crate::core::record::{Alias, Intent, Record};
use crate::core::secret::{Secret, Secrets};
use crate::core::{json, redact};

/// Whether an arrival asks for the same as a stored call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sameness {
    Same,
    Other,
    /// Unclear: a recipe is not known, or the stored arguments are not whole.
    Unclear,
    /// The call was adopted, and no request has said yet what it asked for. This one has just its key.
    Unsaid,
}

/// An arrival's fingerprints by earlier recipes. Its intent has the one by today's.
#[derive(Debug, Clone, Default)]
pub struct Prints {
    today: Option<(Arc<Recipe>, Secret)>,
    earlier: Vec<Print>,
    /// The fingerprints under each earlier secret, with the one by today's recipe.
    older: Vec<(Fingerprint, Prints)>,
}

/// An arrival's fingerprint by one earlier recipe.
#[derive(Debug, Clone, Copy)]
struct Print {
    recipe: RecipeId,
    fingerprint: Fingerprint,
    /// Whether that recipe makes the same fingerprints as today's.
    is_as_today: bool,
}

impl Print {
    fn of(id: RecipeId, recipe: &Recipe, today: &Recipe, fingerprint: Fingerprint) -> Self {
        Self {
            recipe: id,
            fingerprint,
            is_as_today: today.key.ignore == recipe.key.ignore
                && today.headers == recipe.headers
                && today.keeps_member == recipe.keeps_member,
        }
    }
}

impl Prints {
    /// The fingerprints of arguments by today's recipe and by earlier ones.
    pub fn of(
        today: &Arc<Recipe>,
        earlier: &[(RecipeId, Arc<Recipe>)],
        secrets: &Secrets,
        args: &Value,
    ) -> Self {
        let under = |secret: &Secret| {
            let print = |(id, recipe): &(RecipeId, Arc<Recipe>)| {
                Print::of(*id, recipe, today, recipe.fingerprint(secret, args))
            };
            Self {
                today: Some((today.clone(), secret.clone())),
                earlier: earlier.iter().map(print).collect(),
                older: Vec::new(),
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

    /// Whether a call by this recipe can be compared.
    pub fn covers(&self, intent: &Intent, recipe: RecipeId) -> bool {
        recipe == intent.recipe || self.earlier.iter().any(|print| print.recipe == recipe)
    }

    /// The same with one more recipe, applied to the arguments as they came.
    #[must_use]
    pub fn with(&self, id: RecipeId, recipe: &Recipe, args: &Value) -> Self {
        let mut prints = self.clone();
        if let Some((today, secret)) = &self.today {
            prints.earlier.push(Print::of(
                id,
                recipe,
                today,
                recipe.fingerprint(secret, args),
            ));
        }
        for (_, older) in &mut prints.older {
            *older = older.with(id, recipe, args);
        }
        prints
    }

    /// Compares an arrival with a stored call.
    ///
    /// They are the same if equal by the stored call's recipe or by today's. Where the arrival has
    /// the key of an alias, it is compared with the alias. An adopted call has no fingerprint but
    /// that of an alias.
    pub fn compare(&self, intent: &Intent, record: &Record) -> Sameness {
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
        let of = |wanted| found.contains(&wanted).then_some(wanted);
        of(Sameness::Same)
            .or_else(|| of(Sameness::Unsaid))
            .or_else(|| of(Sameness::Unclear))
            .unwrap_or(Sameness::Other)
    }

    /// Compares an arrival with an alias, whose arguments are not kept.
    fn compare_alias(&self, intent: &Intent, alias: &Alias) -> Sameness {
        let same = |fingerprint| {
            if fingerprint == alias.fingerprint {
                Sameness::Same
            } else {
                Sameness::Other
            }
        };
        let Some((prints, asked)) = self.under_secret_of(intent, &alias.fingerprint) else {
            return Sameness::Unclear;
        };
        if alias.recipe == intent.recipe {
            return same(*asked);
        }
        let theirs = prints
            .earlier
            .iter()
            .find(|print| print.recipe == alias.recipe);
        match theirs.map(|print| (print, same(print.fingerprint))) {
            Some((_, Sameness::Same)) => Sameness::Same,
            Some((print, other)) if print.is_as_today => other,
            _ => Sameness::Unclear,
        }
    }

    /// The arrival's fingerprints under the secret of a stored one, the second by today's recipe.
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

    fn compare_own(&self, intent: &Intent, record: &Record) -> Sameness {
        let stored = &record.intent;
        let Some((prints, asked)) = self.under_secret_of(intent, &stored.fingerprint) else {
            // Its secret is gone: only the arguments themselves can be compared, as far as they are kept.
            return match self.by_today(&stored.args) {
                Some(stored) if stored == intent.fingerprint => Sameness::Same,
                Some(_) if stored.recipe == intent.recipe => Sameness::Other,
                Some(_) | None => Sameness::Unclear,
            };
        };
        if stored.recipe == intent.recipe {
            let is_same = stored.fingerprint == *asked;
            return if is_same {
                Sameness::Same
            } else {
                Sameness::Other
            };
        }
        let theirs = prints
            .earlier
            .iter()
            .find(|print| print.recipe == stored.recipe);
        if theirs.is_some_and(|print| print.fingerprint == stored.fingerprint) {
            return Sameness::Same;
        }
        match (prints.by_today(&stored.args), theirs) {
            (Some(stored), _) if stored == *asked => Sameness::Same,
            // It differs by both recipes; or by theirs, and today's would say the same.
            (Some(_), Some(_)) => Sameness::Other,
            (None, Some(theirs)) if theirs.is_as_today => Sameness::Other,
            // What is stored is not whole, so it cannot be read by today's recipe; or theirs is not known.
            _ => Sameness::Unclear,
        }
    }

    /// The stored fingerprint by today's recipe; `None`: the arguments are not whole, or not
    /// readable.
    fn by_today(&self, args: &[u8]) -> Option<Fingerprint> {
        let (today, secret) = self.today.as_ref()?;
        if !redact::is_whole(args) {
            return None;
        }
        let args = match today.headers {
            // What is kept of a request is not what its fingerprint is made of. With credentials it is not whole.
            Some(_) => view(&image::message(args)?, ""),
            None => json::parse(str::from_utf8(args).ok()?).ok()?,
        };
        Some(today.fingerprint(secret, &args))
    }
}

/// Compares an arrival with an adopted call whose arguments no request has said yet.
///
/// Only by its key of today it is surely the same intent.
fn unsaid(intent: &Intent, record: &Record) -> Sameness {
    let stored = &record.intent;
    let is_its_key = intent.lookup == stored.lookup
        && (&intent.tenant, &intent.tool) == (&stored.tenant, &stored.tool);
    if is_its_key {
        Sameness::Unsaid
    } else {
        Sameness::Unclear
    }
}

#[cfg(test)]
#[path = "prints_tests.rs"]
mod tests;
