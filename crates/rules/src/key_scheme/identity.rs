//! The lookup keys and fingerprints of a request, by today's key scheme and by every earlier one.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::fingerprints::Fingerprints;
use super::{KeyScheme, KeySchemeId};
use crate::key::{
    self, Chosen, Fingerprint, Key, Lookup, MODEL_MEMBER, Pointer, Refused, Source, places,
};
use crate::mcp::elicitation;
use crate::proxy::{compared_form, credentials, paths};
use crate::record::{Intent, Record};
use crate::secret::Secrets;

/// The parts of a request from which its lookup keys and fingerprints are made.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    pub tenant: &'a str,
    pub user_id: &'a str,
    /// What an earlier release took for the user of such a request, if that was another.
    pub earlier_user: Option<&'a str>,
    /// The client's own id of the call: a further name, beside the key.
    pub client_call: Option<&'a str>,
    /// The key that the caller's runtime brought.
    pub runtime: Option<&'a Key>,
    /// The arguments as they came: one object, also with the model's key.
    pub args: &'a Value,
    /// The secrets of the store.
    pub secrets: &'a Secrets,
}

/// The key scheme behind a lookup key. Lower values count first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The key by today's key scheme. Any call under it blocks the arrival.
    Today,
    /// The runtime's key, where the business fields make the key; or the client's own id of the call.
    ///
    /// It counts only where no call has today's key.
    Fallback,
    /// The lookup key of the arguments without the model's key. A call under it blocks the arrival only if both are the same
    /// intent, and only within the window of derived keys.
    Arguments,
    /// The runtime's key by an earlier key scheme, where it counted for another scope: for all paths of a proxy, or for one.
    ///
    /// Any call that was made by that key scheme blocks the arrival: the key may stand for it.
    OtherScope,
    /// A key by an earlier key scheme. A call under it blocks the arrival only if both are the same
    /// intent.
    Earlier,
}

/// A lookup key of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookupKey {
    pub lookup: Lookup,
    pub part: Part,
    /// Whether the lookup key is the key that the caller's runtime brought, or its id of the call.
    pub is_runtime: bool,
}

/// Whether a request with these lookup keys is a call by its arguments alone: neither a key of its own nor its client's id says so.
pub fn is_by_arguments(lookups: &[LookupKey], record: &Record) -> bool {
    let Intent {
        key_source, lookup, ..
    } = &*record.intent;
    let is_key = |name: &LookupKey| {
        let is_models = *key_source == Source::Model && name.lookup == *lookup;
        name.is_runtime || is_models
    };
    let mut held = lookups.iter();
    matches!(key_source, Source::Model | Source::Derived)
        && !held.any(|name| is_key(name) && record.all_lookups().any(|held| *held == name.lookup))
}

/// The lookup keys and fingerprints of a request.
#[derive(Debug)]
pub struct Identity {
    /// The key by today's key scheme.
    pub key: Result<Chosen, Refused>,
    pub fingerprint: Fingerprint,
    /// The arguments that count by today's key scheme; `None`: all of them.
    pub counted: Option<Value>,
    /// The lookup keys, each once, today's first. A key scheme that makes no key gives none.
    pub lookups: Vec<LookupKey>,
    /// The keys behind the lookup keys.
    pub keys: Vec<Chosen>,
    pub fingerprints: Fingerprints,
}

/// Reads a request by every key scheme. `earlier`: the newest first.
pub fn identify(
    today: &Arc<KeyScheme>,
    earlier: &[(KeySchemeId, Arc<KeyScheme>)],
    asking: &Asking<'_>,
) -> Identity {
    let counted = today.counted(asking.args);
    let key = today.choose(asking, &counted);
    let (mut lookups, mut keys): (Vec<LookupKey>, Vec<Chosen>) = (Vec::new(), Vec::new());
    let mut of_arguments = Vec::new();
    let mut add = |key_scheme: &KeyScheme, Named { chosen, part, by }: Named| {
        let key = key_scheme.within_scope(&chosen.key, asking.args);
        let lookup = Lookup::new(asking.tenant, &key_scheme.tool, &key);
        if by == By::Arguments && !of_arguments.contains(&lookup) {
            of_arguments.push(lookup);
        }
        if lookups.iter().all(|name| name.lookup != lookup) {
            lookups.push(LookupKey {
                lookup,
                part,
                is_runtime: by == By::Runtime,
            });
            keys.push(chosen);
        }
    };
    for named in today.lookups(asking, &key, false) {
        add(today, named);
    }
    let earlier_key_schemes = || earlier.iter().map(|(_, key_scheme)| key_scheme.as_ref());
    let all = std::iter::once(today.as_ref()).chain(earlier_key_schemes());
    let older = all.filter_map(|key_scheme| key_scheme.by_older_rule(asking.args));
    let older: Vec<KeyScheme> = older.collect();
    for key_scheme in earlier_key_schemes().chain(&older) {
        let key = key_scheme.choose(asking, &key_scheme.counted(asking.args));
        for mut named in key_scheme.lookups(asking, &key, true) {
            if named.by == By::Runtime && key_scheme.per_path != today.per_path {
                named.part = Part::OtherScope;
            }
            add(key_scheme, named);
        }
    }
    if let Some(user_id) = asking.earlier_user {
        let asking = Asking {
            user_id,
            client_call: None,
            ..*asking
        };
        for key_scheme in
            std::iter::once(today).chain(earlier.iter().map(|(_, key_scheme)| key_scheme))
        {
            let key = key_scheme.choose(&asking, &key_scheme.counted(asking.args));
            for named in key_scheme.lookups(&asking, &key, true) {
                add(key_scheme, named);
            }
        }
    }
    let fingerprint = today.fingerprint_of(&asking.secrets.today, &counted);
    let counted = match counted {
        Cow::Borrowed(_) => None,
        Cow::Owned(counted) => Some(counted),
    };
    let fingerprints = Fingerprints::of(today, earlier, asking.secrets, asking.args);
    Identity {
        key,
        fingerprint,
        counted,
        lookups,
        keys,
        fingerprints: fingerprints.with_lookups_of_arguments(of_arguments),
    }
}

/// What a lookup key is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// What the caller's runtime brought: a key, or an id of the call.
    Runtime,
    /// The arguments without the model's key.
    Arguments,
    Other,
}

/// A key that is a lookup key, before it is looked up.
#[derive(Debug, Clone)]
struct Named {
    chosen: Chosen,
    part: Part,
    by: By,
}

impl KeyScheme {
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
        // An elicitation is answered once, whichever key comes with the answer.
        if let Some(asked_by) = elicitation::answered_by(asking.args) {
            return Ok(chosen(Source::Elicitation, key::of_elicitation(asked_by.0)));
        }
        let business = || self.business(asking, counted);
        if self.is_business() {
            return business();
        }
        let runtime = self.runtime(asking)?;
        let runtime = runtime.map(|key| chosen(Source::Runtime, key));
        // Where a tool has business fields, a model's key counts for nothing.
        if !self.fields.is_empty() {
            return runtime.map_or_else(business, Ok);
        }
        // A model may take up the key of an earlier answer, which was made of the arguments.
        let is_own =
            |key: &Key| !self.required && self.arguments_keys(asking, counted).contains(key);
        let model = key::from_model(asking.args).filter(|key| !is_own(key));
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
            let credential = Pointer::to(&[compared_form::CREDENTIAL]);
            for pointer in self.ignore.iter().chain([&credential]) {
                pointer.remove_from(counted.to_mut());
            }
            credentials::leave_lasting(counted.to_mut());
        }
        let key = self.derive(asking, asking.user_id, &counted);
        Ok(chosen(Source::Derived, key))
    }

    /// The keys of the arguments without the model's key: of all of them, and of those that the fingerprint covers.
    ///
    /// None for a proxy, whose requests have no key of a model.
    fn arguments_keys(&self, asking: &Asking<'_>, counted: &Value) -> Vec<Key> {
        if self.headers.is_some() {
            return Vec::new();
        }
        let mut others = self.present(counted);
        if key::from_model(counted).is_some() {
            Pointer::to(&[MODEL_MEMBER]).remove_from(others.to_mut());
        }
        let mut keys = vec![self.derive(asking, asking.user_id, &others)];
        if !self.ignore.is_empty() {
            let compared = self.compared(&others);
            let key = self.derive(asking, asking.user_id, &compared);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// The runtime's key, where it is only a second name.
    fn second(&self, asking: &Asking<'_>) -> Option<Chosen> {
        let is_second = self.is_business() && elicitation::answered_by(asking.args).is_none();
        let key = self.runtime(asking).ok()?.filter(|_| is_second)?;
        Some(chosen(Source::Runtime, key))
    }

    /// The key that the caller's runtime brought: beside the arguments, or in them.
    fn runtime(&self, asking: &Asking<'_>) -> Result<Option<Key>, Refused> {
        let values = self.places.iter();
        let mut values = values.filter_map(|place| {
            let value = asking.args.pointer(place.as_str());
            let value = value.filter(|value| !value.is_null());
            value.map(|value| (compared_form::is_of_payment(place), value))
        });
        match (values.next(), asking.runtime) {
            // The server has chosen what stands in a payment, and the client its own key.
            (Some((true, _)) | None, runtime @ Some(_)) => Ok(runtime.cloned()),
            (Some((true, value)), None) => Ok(Some(places::of_payment(value))),
            (Some((false, value)), runtime) => places::in_arguments(value, runtime).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// A key, with what it counts for. Line breaks are in no key.
    ///
    /// Two paths that some server takes for the same one are one path.
    fn within_scope<'a>(&self, key: &'a Key, args: &Value) -> Cow<'a, str> {
        match args["path"].as_str().filter(|_| self.per_path) {
            Some(path) => Cow::Owned(format!("{}\n{}", key.as_str(), paths::plainest(path))),
            None => Cow::Borrowed(key.as_str()),
        }
    }

    /// The key that the business fields make.
    fn business(&self, asking: &Asking<'_>, counted: &Value) -> Result<Chosen, Refused> {
        let mut fields = Map::new();
        let mut counted = Cow::Borrowed(counted);
        self.fold_in(&mut counted);
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

    /// The lookup keys of a request by this key scheme: the keys under every secret, those of the arguments beside a model's key,
    /// the runtime's key, and the client's id of the call.
    fn lookups(
        &self,
        asking: &Asking<'_>,
        key: &Result<Chosen, Refused>,
        is_earlier: bool,
    ) -> Vec<Named> {
        let part = |part| if is_earlier { Part::Earlier } else { part };
        let mut lookups: Vec<Named> = Vec::new();
        self.add_lookups(asking, key, &part, &mut lookups);
        if !self.redacted.is_empty() {
            let counted = self.counted(asking.args);
            for earlier in &asking.secrets.earlier {
                let secrets = &Secrets::one(earlier.clone());
                let asking = Asking { secrets, ..*asking };
                let key = self.choose(&asking, &counted);
                self.add_lookups(&asking, &key, &part, &mut lookups);
            }
        }
        lookups.extend(self.second(asking).map(|chosen| Named {
            chosen,
            part: part(Part::Fallback),
            by: By::Runtime,
        }));
        let is_elicitation = elicitation::answered_by(asking.args).is_some();
        if let Some(id) = asking
            .client_call
            .filter(|_| !is_earlier && !is_elicitation)
        {
            let key = key::of_client_call(asking.user_id, id);
            lookups.push(Named {
                chosen: chosen(Source::Runtime, key),
                part: Part::Fallback,
                by: By::Runtime,
            });
        }
        lookups
    }

    /// Adds a key, and the keys of the arguments beside a model's key or none.
    fn add_lookups(
        &self,
        asking: &Asking<'_>,
        key: &Result<Chosen, Refused>,
        part: &impl Fn(Part) -> Part,
        lookups: &mut Vec<Named>,
    ) {
        let Ok(key) = key else { return };
        let by = match key.source {
            Source::Runtime => By::Runtime,
            Source::Derived if self.headers.is_none() => By::Arguments,
            _ => By::Other,
        };
        lookups.push(Named {
            chosen: key.clone(),
            part: part(Part::Today),
            by,
        });
        if !matches!(key.source, Source::Model | Source::Derived) {
            return;
        }
        let keys = self.arguments_keys(asking, &self.counted(asking.args));
        lookups.extend(keys.into_iter().map(|key| Named {
            chosen: chosen(Source::Derived, key),
            part: part(Part::Arguments),
            by: By::Arguments,
        }));
    }
}

fn chosen(source: Source, key: Key) -> Chosen {
    Chosen { key, source }
}

#[cfg(test)]
mod tests;
