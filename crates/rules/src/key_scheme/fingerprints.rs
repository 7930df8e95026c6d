//! Whether a request asks for the same as a stored call.

use std::sync::Arc;

use serde_json::Value;

use super::{KeyScheme, KeySchemeId};
use crate::key::{Fingerprint, Lookup, SECRET_ID, Source};
use crate::nulls::has_nulls;
use crate::proxy::compared_form::whole_form;
use crate::proxy::{credentials, stored_form};
use crate::record::{Alias, DELETED, ERASED, Intent, Record};
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
pub struct Fingerprints {
    today: Option<(Arc<KeyScheme>, Secret)>,
    earlier: Vec<Print>,
    /// The fingerprints by each key scheme under the rule of earlier versions, where that makes another one.
    by_older_rule: Vec<(KeySchemeId, Fingerprint)>,
    /// The fingerprints under each earlier secret, after the one by today's key scheme.
    older: Vec<(Fingerprint, Fingerprints)>,
    /// The arrival's names that are made of its arguments without the model's key.
    ///
    /// A call that the gateway has given one of them has equal arguments.
    of_arguments: Vec<Lookup>,
}

/// An arrival's fingerprint by one earlier key scheme.
#[derive(Debug, Clone, Copy)]
struct Print {
    key_scheme: KeySchemeId,
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
    /// Calls of earlier versions were compared without most of them. A call without its arguments does not show which it had.
    fn proves_credentials(&self, today: Option<&KeyScheme>, stored: &[u8]) -> bool {
        let list = today.and_then(|today| today.headers.as_deref());
        self.counts_credentials
            || !self.misses_credential
                && ![ERASED, DELETED].map(str::as_bytes).contains(&stored)
                && !credentials::are_in(list.unwrap_or_default(), &stored_form::headers(stored))
    }

    fn of(
        id: KeySchemeId,
        key_scheme: &KeyScheme,
        today: &KeyScheme,
        secret: &Secret,
        args: &Value,
    ) -> Self {
        Self {
            key_scheme: id,
            fingerprint: key_scheme.fingerprint(secret, args),
            is_as_today: today.ignore == key_scheme.ignore
                && today.headers == key_scheme.headers
                && today.fold == key_scheme.fold
                && today.exact == key_scheme.exact
                && today.keeps_member == key_scheme.keeps_member,
            counts_credentials: key_scheme.counts_credentials_of(today),
            misses_credential: key_scheme.misses_credential(today, args),
        }
    }
}

impl Fingerprints {
    /// The fingerprints of arguments by today's key scheme and by earlier ones.
    pub fn of(
        today: &Arc<KeyScheme>,
        earlier: &[(KeySchemeId, Arc<KeyScheme>)],
        secrets: &Secrets,
        args: &Value,
    ) -> Self {
        let under = |secret: &Secret| {
            let print = |(id, key_scheme): &(KeySchemeId, Arc<KeyScheme>)| {
                Print::of(*id, key_scheme, today, secret, args)
            };
            let of_older = |id: KeySchemeId, key_scheme: &KeyScheme| {
                Some((
                    id,
                    key_scheme.by_older_rule(args)?.fingerprint(secret, args),
                ))
            };
            let mut by_older_rule: Vec<_> = earlier
                .iter()
                .filter_map(|(id, key_scheme)| of_older(*id, key_scheme))
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
    pub fn with_lookups_of_arguments(self, of_arguments: Vec<Lookup>) -> Self {
        Self {
            of_arguments,
            ..self
        }
    }

    /// Whether the call got its name from the arguments, and they are those of the arrival but for the model's key.
    fn has_the_arguments_of(&self, record: &Record) -> bool {
        let is_it = |name: &Lookup| self.of_arguments.contains(name);
        match record.intent.key_source {
            Source::Derived => record.intent.all_lookups().any(is_it),
            // Its key may be any text. All its further names are made of arguments.
            Source::Model => record.intent.lookups.iter().any(is_it),
            _ => false,
        }
    }

    /// Whether only the arguments show that an arrival asks for a stored call: no key and no id of the client does.
    pub fn is_met_by_arguments(&self, intent: &Intent, record: &Record) -> bool {
        let shows = |name: &&Lookup| record.all_lookups().any(|held| held == *name);
        let mut shown = intent.all_lookups().filter(shows).peekable();
        shown.peek().is_some() && shown.all(|name| self.of_arguments.contains(name))
    }

    /// Whether a call by this key scheme can be compared.
    pub fn covers(&self, intent: &Intent, key_scheme: KeySchemeId) -> bool {
        key_scheme == intent.key_scheme || self.by(key_scheme).is_some()
    }

    /// The fingerprint by an earlier key scheme.
    fn by(&self, key_scheme: KeySchemeId) -> Option<&Print> {
        self.earlier
            .iter()
            .find(|print| print.key_scheme == key_scheme)
    }

    /// Adds the fingerprint by one more key scheme. `args`: the arguments as they came.
    #[must_use]
    pub fn with(&self, id: KeySchemeId, key_scheme: &KeyScheme, args: &Value) -> Self {
        let mut fingerprints = self.clone();
        if let Some((today, secret)) = &self.today {
            let print = Print::of(id, key_scheme, today, secret, args);
            fingerprints.earlier.push(print);
            let older = key_scheme.by_older_rule(args);
            let older = older.map(|older| (id, older.fingerprint(secret, args)));
            fingerprints.by_older_rule.extend(older);
        }
        for (_, older) in &mut fingerprints.older {
            *older = older.with(id, key_scheme, args);
        }
        fingerprints
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
        let has = |name: &Lookup| intent.all_lookups().any(|asked| asked == name);
        let aliases = record
            .aliases
            .iter()
            .filter(|alias| alias.lookups.iter().any(has));
        let mut found: Vec<Sameness> = aliases
            .map(|alias| self.compare_alias(intent, alias))
            .collect();
        if record.is_adopted() {
            if found.is_empty() {
                found.push(unsaid(intent, record));
            }
        } else if found.is_empty() || record.intent.all_lookups().any(has) {
            found.push(self.compare_own(intent, record));
        }
        found.into_iter().max().unwrap_or(Sameness::Other)
    }

    /// Compares an arrival with an alias, whose arguments are not kept.
    fn compare_alias(&self, intent: &Intent, alias: &Alias) -> Sameness {
        let Some((fingerprints, today)) = self.under_secret_of(intent, &alias.fingerprint) else {
            return Sameness::Unclear;
        };
        if fingerprints.is_by_older_rule(alias.key_scheme, &alias.fingerprint) {
            return Sameness::Same;
        }
        if alias.key_scheme == intent.key_scheme {
            return Sameness::of(alias.fingerprint == *today);
        }
        match fingerprints.by(alias.key_scheme) {
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
        older.map(|(own, fingerprints)| (fingerprints, own))
    }

    /// Compares an arrival with the call's own fingerprint and arguments.
    fn compare_own(&self, intent: &Intent, record: &Record) -> Sameness {
        let stored = &record.intent;
        let Some((fingerprints, today)) = self.under_secret_of(intent, &stored.fingerprint) else {
            // Without the secret only the arguments can be compared, as far as they are kept.
            return match self.by_today(&stored.args) {
                Some(stored) if stored == intent.fingerprint => Sameness::Same,
                Some(_) if stored.key_scheme == intent.key_scheme => Sameness::Other,
                Some(_) | None => Sameness::Unclear,
            };
        };
        if fingerprints.is_by_older_rule(stored.key_scheme, &stored.fingerprint) {
            return Sameness::Same;
        }
        if stored.key_scheme == intent.key_scheme {
            let is_same = stored.fingerprint == *today || fingerprints.is_null_apart(stored, today);
            return Sameness::of(is_same);
        }
        let by_its_key_scheme = fingerprints.by(stored.key_scheme);
        let is_equal = |print: &&Print| print.fingerprint == stored.fingerprint;
        if let Some(print) = by_its_key_scheme.filter(is_equal) {
            let by = fingerprints.today.as_ref().map(|(today, _)| &**today);
            let is_same = print.proves_credentials(by, &stored.args)
                || fingerprints
                    .by_today(&stored.args)
                    .is_some_and(|own| own == *today);
            return if is_same {
                Sameness::Same
            } else {
                Sameness::Unclear
            };
        }
        match (fingerprints.by_today(&stored.args), by_its_key_scheme) {
            (Some(stored), _) if stored == *today => Sameness::Same,
            // They differ by both key schemes, or by the call's, and today's makes the same fingerprints.
            (Some(_), Some(_)) => Sameness::Other,
            (None, Some(print)) if print.is_as_today => Sameness::Other,
            // The stored arguments are not whole, or the call's key scheme is not known.
            _ => Sameness::Unclear,
        }
    }

    /// Whether this is the arrival's fingerprint by a key scheme under the rule of earlier versions.
    fn is_by_older_rule(&self, key_scheme: KeySchemeId, fingerprint: &Fingerprint) -> bool {
        self.by_older_rule.contains(&(key_scheme, *fingerprint))
    }

    /// Whether stored arguments differ from those of the arrival only in members that are null.
    ///
    /// Their fingerprint differs, too, if an earlier version has made it.
    fn is_null_apart(&self, stored: &Intent, today: &Fingerprint) -> bool {
        let counts_nulls =
            |(key_scheme, _): &(Arc<KeyScheme>, Secret)| key_scheme.headers.is_some();
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
            // A fingerprint is made of the request, not of its stored form. A stored form lacks credentials, so is not whole with them.
            Some(_) => whole_form(&stored_form::message(args)?, ""),
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
mod tests;
