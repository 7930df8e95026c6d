//! The settings of a tool that decide its calls' names and fingerprints.
//!
//! A call keeps the id of its key scheme. Key schemes are remembered as long as their calls, so that a repetition is
//! recognised under every later configuration. Must not know where key schemes are kept.

pub mod differ; // where arguments differ
pub mod fingerprints; // whether a request asks for the same as a stored call
pub mod identity; // the lookup keys and fingerprints of a request, by all key schemes
pub mod stored; // a key scheme as a document

#[cfg(test)]
mod reading_tests; // calls whose bodies were read in another way

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::json::canonical;
use crate::key::{
    Fingerprint, Folded, Lookup, MODEL_MEMBER, Per, Pointer, Prefer, SECRET_ID, Source,
};
use crate::nulls::{has_nulls, without_nulls};
use crate::proxy::compared_form::CountedBody;
use crate::proxy::{Compare, KeyScope, Policy, SendKey, compared_form, credentials};
use crate::secret::Secret;
use crate::tool::Tool;

/// Most key schemes of one tool that are remembered: an arrival looks under all of them.
pub const MAX_KEY_SCHEMES: usize = 32;

/// The id of a key scheme: the first half of the SHA-256 of its canonical JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct KeySchemeId(pub [u8; 16]);

impl fmt::Display for KeySchemeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// How lookup keys and fingerprint of a tool's calls are made.
///
/// Its JSON is what is stored, and its id is made of that: another member or name would change the id of every key
/// scheme.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyScheme {
    pub tool: String,
    /// Here and below: the [`key::Policy`](crate::key::Policy) of the tool.
    required: bool,
    fields: Vec<Pointer>,
    prefers_runtime: bool,
    per_tenant: bool,
    ignore: Vec<Pointer>,
    /// Arguments that are not kept, so that no fingerprint can be made of a stored call.
    redacted: Vec<Pointer>,
    /// Whether the member with the model's key is an argument, because the tool's schema names it.
    keeps_member: bool,
    /// Headers that count beside path, query and body of a proxy; `None`: it is not a proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    headers: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fold: Vec<Folded>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    places: Vec<Pointer>,
    /// Of a proxy: whether each path has keys of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    per_path: bool,
    /// Of a proxy: whether bodies are compared byte for byte.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    exact: bool,
    /// Of a proxy: the key that the API gets, if it is not the call's own. It is asked later about the key that it got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sends: Option<SendKey>,
    /// Whether members that are null count, as they did before 0.3.0. Not stored: calls of either rule have the same
    /// key scheme.
    #[serde(skip)]
    counts_nulls: bool,
}

impl KeyScheme {
    /// The key scheme of a tool as it is configured today.
    pub fn of(tool: &Tool) -> Self {
        Self {
            tool: tool.name.clone(),
            required: tool.key.required,
            fields: tool.key.fields.clone(),
            prefers_runtime: tool.key.prefer == Prefer::Runtime,
            per_tenant: tool.key.per == Per::Tenant,
            ignore: tool.key.ignore.clone(),
            redacted: tool.redact.args.clone(),
            keeps_member: tool.keeps_key_member || tool.has_property(MODEL_MEMBER),
            headers: tool.proxy().map(Policy::counted),
            fold: tool.key.fold.clone(),
            places: tool.key.places.clone(),
            per_path: tool
                .proxy()
                .is_some_and(|policy| policy.key_scope == KeyScope::Path),
            exact: tool
                .proxy()
                .is_some_and(|policy| policy.compare == Compare::Bytes),
            sends: tool
                .proxy()
                .map(|policy| policy.send_key)
                .filter(|sends| *sends != SendKey::Derived),
            counts_nulls: false,
        }
    }

    pub fn id(&self) -> KeySchemeId {
        let digest: [u8; 32] = Sha256::digest(canonical(&self.to_json())).into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        KeySchemeId(id)
    }

    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The key that the tool gets for a call with this key; `None`: none.
    pub fn key_sent(&self, source: Source, key: &str, lookup: &Lookup) -> Option<String> {
        match self.sends {
            Some(SendKey::Never) => None,
            Some(SendKey::AsIs) if source == Source::Runtime => Some(key.to_owned()),
            Some(SendKey::AsIs | SendKey::Derived) | None => Some(lookup.for_tool()),
        }
    }

    /// Whether the business fields name a call, whichever key comes with them.
    fn is_business(&self) -> bool {
        !self.fields.is_empty() && !self.prefers_runtime
    }

    /// Whether it counts every credential of a request that another key scheme counts.
    fn counts_credentials_of(&self, other: &Self) -> bool {
        let list = |key_scheme: &Self| key_scheme.headers.clone().unwrap_or_default();
        credentials::are_all_in(&list(self), &list(other))
    }

    /// Whether a request has a credential that counts by another key scheme, and not by this one.
    fn misses_credential(&self, other: &Self, args: &Value) -> bool {
        let list = |key_scheme: &Self| key_scheme.headers.clone().unwrap_or_default();
        !self.counts_credentials_of(other)
            && credentials::are_missed(args, &list(other), &list(self))
    }

    /// The arguments that count.
    ///
    /// These lack the model's key, unless the tool takes it as an argument, and those headers of a proxy
    /// that do not count.
    fn counted<'a>(&self, args: &'a Value) -> Cow<'a, Value> {
        if let Some(counted) = &self.headers {
            // Key schemes of 0.2.0 lack this word: their calls were compared by the bytes that were sent.
            let is_decoded = counted.iter().any(|name| name == compared_form::DECODED);
            let body = match (self.exact, is_decoded) {
                (true, _) => CountedBody::Exact,
                (false, true) => CountedBody::Decoded,
                (false, false) => CountedBody::Sent,
            };
            let compared_form = compared_form::with_one_body(args.clone(), body);
            return Cow::Owned(compared_form::with_headers(compared_form, counted));
        }
        let mut counted = Cow::Borrowed(args);
        if !self.keeps_member && args.get(MODEL_MEMBER).is_some() {
            Pointer::to(&[MODEL_MEMBER]).remove_from(counted.to_mut());
        }
        counted
    }

    /// The same key scheme by the rule of earlier versions, for arguments of which that rule makes other lookup keys.
    ///
    /// `None`: no member is null, or null counts in any case.
    fn by_older_rule(&self, args: &Value) -> Option<Self> {
        let differs = self.headers.is_none() && has_nulls(args);
        differs.then(|| Self {
            counts_nulls: true,
            ..self.clone()
        })
    }

    /// The counted arguments without those that are null.
    ///
    /// The body of a proxied request is the API's own, and null may be what its caller means.
    fn present<'a>(&self, counted: &'a Value) -> Cow<'a, Value> {
        match self.counts_nulls || self.headers.is_some() {
            true => Cow::Borrowed(counted),
            false => without_nulls(counted),
        }
    }

    /// The counted arguments that a fingerprint covers.
    fn compared<'a>(&self, counted: &'a Value) -> Cow<'a, Value> {
        let mut compared = self.present(counted);
        for pointer in &self.ignore {
            pointer.remove_from(compared.to_mut());
        }
        self.fold_in(&mut compared);
        compared
    }

    /// Folds the fields of which not every character counts.
    fn fold_in(&self, args: &mut Cow<'_, Value>) {
        for folded in &self.fold {
            folded.fold_in(args.to_mut());
        }
    }

    /// The fingerprint of arguments that count.
    fn fingerprint_of(&self, secret: &Secret, counted: &Value) -> Fingerprint {
        let mut fingerprint = secret.mac("fingerprint", [&canonical(&self.compared(counted))]);
        fingerprint[..SECRET_ID].copy_from_slice(&secret.mac("id", [])[..SECRET_ID]);
        fingerprint
    }

    /// The fingerprint of arguments as they came.
    pub fn fingerprint(&self, secret: &Secret, args: &Value) -> Fingerprint {
        self.fingerprint_of(secret, &self.counted(args))
    }
}

#[cfg(test)]
mod nulls_tests;
