//! The key schemes that a gateway knows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex as Guard};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::base::Base;
use crate::secret::KnownSecrets;
use crate::tools::ToolAt;
use oncegate_rules::document::Kind;
use oncegate_rules::key_scheme::stored::{Remembered, name_of};
use oncegate_rules::key_scheme::{KeyScheme, KeySchemeId};
use oncegate_rules::record::{Holder, Intent, Record};
use oncegate_store as store;

/// The key schemes that a gateway knows.
pub struct KeySchemes {
    pub(super) base: Arc<Base>,
    pub(super) secrets: Arc<KnownSecrets>,
    pub(super) known: ArcSwap<KnownKeySchemes>,
    /// Held by the one request that reads key schemes for all. When such a read last failed.
    pub(super) learning: Mutex<Option<Instant>>,
    /// When calls of an overdue key scheme were last searched.
    pub(super) looked_for: Guard<HashMap<KeySchemeId, Timestamp>>,
    /// New key schemes that this gateway has sent to the store, and of which no answer says that they are stored. Other gateways
    /// may find one later than its `known_since`.
    pub(super) unconfirmed: Guard<BTreeSet<KeySchemeId>>,
}

#[derive(Default, Clone)]
pub(super) struct KnownKeySchemes {
    /// Key schemes by tool, the newest first.
    pub(super) all: BTreeMap<String, Vec<Remembered>>,
    /// Key schemes of this gateway that are stored, with all other key schemes read after that.
    pub(super) served: BTreeSet<KeySchemeId>,
    /// When the newest read began.
    pub(super) read_at: Option<Instant>,
    /// Tools with an unreadable key scheme: no call of theirs is claimed.
    pub(super) unreadable: BTreeSet<String>,
    /// Whether an unreadable key scheme names no tool: then no call is claimed.
    pub(super) is_any_unreadable: bool,
}

impl KnownKeySchemes {
    pub(super) fn find(&self, tool: &str, id: KeySchemeId) -> Option<&Remembered> {
        self.all.get(tool)?.iter().find(|one| one.id == id)
    }

    pub(super) fn is_unreadable(&self, tool: &str) -> bool {
        self.is_any_unreadable || self.unreadable.contains(tool)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Remembered> {
        self.all.values().flatten()
    }

    pub(super) fn put(&mut self, one: Remembered) {
        let of_tool = self.all.entry(one.key_scheme.tool.clone()).or_default();
        of_tool.retain(|known| known.id != one.id);
        of_tool.push(one);
        of_tool.sort_by_key(|one| (std::cmp::Reverse(one.created_at), one.id));
    }
}

impl KeySchemes {
    pub(crate) fn new(base: Arc<Base>, secrets: Arc<KnownSecrets>) -> Self {
        Self {
            base,
            secrets,
            known: ArcSwap::default(),
            learning: Mutex::default(),
            looked_for: Guard::default(),
            unconfirmed: Guard::default(),
        }
    }

    /// The tools with a stored key scheme. Other tools have no stored calls.
    pub fn tools(&self) -> Vec<String> {
        self.known.load().all.keys().cloned().collect()
    }

    /// A tool's key schemes except today's, the newest first.
    pub(crate) fn earlier(&self, at: &ToolAt) -> Vec<(KeySchemeId, Arc<KeyScheme>)> {
        let known = self.known.load();
        let of_tool = known.all.get(&at.tool.name).into_iter().flatten();
        let earlier = of_tool.filter(|one| one.id != at.key_scheme_id);
        earlier
            .map(|one| (one.id, one.key_scheme.clone()))
            .collect()
    }

    /// The key scheme that says how the key of a call is sent: that by which the call was made.
    ///
    /// # Errors
    /// It is not known; says why.
    pub(crate) async fn of_call(
        &self,
        at: &ToolAt,
        intent: &Intent,
    ) -> Result<Arc<KeyScheme>, String> {
        // Only to proxies keys are sent in several ways.
        if intent.key_scheme == at.key_scheme_id || !at.tool.is_proxy() {
            return Ok(at.key_scheme.clone());
        }
        let found = self.find(&at.tool.name, intent.key_scheme).await;
        let found = found.map_err(|_| "the store did not say how its key is sent")?;
        found.ok_or_else(|| "it is not known how its key is sent".to_owned())
    }

    /// A key scheme, from the store if it is not known yet. `None`: the store lacks it, or it cannot be read.
    async fn find(
        &self,
        tool: &str,
        id: KeySchemeId,
    ) -> Result<Option<Arc<KeyScheme>>, store::Error> {
        if let Some(one) = self.known.load().find(tool, id) {
            return Ok(Some(one.key_scheme.clone()));
        }
        let (store, name) = (&self.base.store, name_of(tool, id));
        let found = store.document(Kind::KeyScheme, "", &name).await?;
        let found = found.as_ref().and_then(Remembered::from_document);
        Ok(found.map(|one| {
            self.change(|known| known.put(one.clone()));
            one.key_scheme
        }))
    }

    /// Whether these are a tool's key schemes except today's.
    pub(crate) fn are_earlier(&self, at: &ToolAt, ids: &[KeySchemeId]) -> bool {
        let earlier = self.earlier(at);
        earlier.iter().map(|(id, _)| id).eq(ids)
    }

    pub(super) fn change(&self, change: impl Fn(&mut KnownKeySchemes)) {
        self.known.rcu(|known| {
            let mut known = KnownKeySchemes::clone(known);
            change(&mut known);
            known
        });
    }

    /// How long until every gateway knows the tool's key scheme of today; `None`: all know it.
    ///
    /// Until then a claim must include the lookup keys by earlier key schemes: a gateway that does not know today's key
    /// scheme looks for those alone.
    pub(crate) fn lookups_settle_in(&self, at: &ToolAt, now: Timestamp) -> Option<Duration> {
        if !self.base.store.is_shared() {
            return None;
        }
        let max_age = self.base.limits.timings.key_schemes_max_age;
        let known = self.known.load();
        known
            .find(&at.tool.name, at.key_scheme_id)
            .map_or(Some(max_age), |today| today.settles_in(max_age, now))
    }

    /// The key schemes of stored calls that a request does not know yet. A key scheme that the store lacks is left out.
    ///
    /// # Errors
    /// The store did not answer.
    pub(crate) async fn key_schemes_met_by(
        &self,
        holders: &[Holder],
        is_known: impl Fn(KeySchemeId) -> bool,
    ) -> Result<Vec<(KeySchemeId, Arc<KeyScheme>)>, store::Error> {
        let mut new: Vec<(KeySchemeId, Arc<KeyScheme>)> = Vec::new();
        for holder in holders {
            let tool = &holder.record.intent.tool;
            for id in key_schemes_of(&holder.record) {
                if is_known(id) || new.iter().any(|(known, _)| *known == id) {
                    continue;
                }
                if let Some(key_scheme) = self.find(tool, id).await? {
                    new.push((id, key_scheme));
                }
            }
        }
        Ok(new)
    }
}

/// The key schemes by which the lookup keys of a call were made.
pub(crate) fn key_schemes_of(record: &Record) -> impl Iterator<Item = KeySchemeId> {
    std::iter::once(record.intent.key_scheme)
        .chain(record.aliases.iter().map(|alias| alias.key_scheme))
}
