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
use oncegate_rules::recipe::stored::{Remembered, name_of};
use oncegate_rules::recipe::{Recipe, RecipeId};
use oncegate_rules::record::{Holder, Record};
use oncegate_store as store;

/// The key schemes that a gateway knows.
pub struct Recipes {
    pub(super) base: Arc<Base>,
    pub(super) secrets: Arc<KnownSecrets>,
    pub(super) known: ArcSwap<KnownRecipes>,
    /// Held by the one request that reads key schemes for all. When such a read last failed.
    pub(super) learning: Mutex<Option<Instant>>,
    /// When calls of an overdue key scheme were last searched.
    pub(super) looked_for: Guard<HashMap<RecipeId, Timestamp>>,
}

#[derive(Default, Clone)]
pub(super) struct KnownRecipes {
    /// Key schemes by tool, the newest first.
    pub(super) all: BTreeMap<String, Vec<Remembered>>,
    /// Key schemes of this gateway that are stored, with all other key schemes read after that.
    pub(super) served: BTreeSet<RecipeId>,
    /// When the newest read began.
    pub(super) read_at: Option<Instant>,
    /// Tools with an unreadable key scheme: no call of theirs is claimed.
    pub(super) unreadable: BTreeSet<String>,
    /// Whether an unreadable key scheme names no tool: then no call is claimed.
    pub(super) is_any_unreadable: bool,
}

impl KnownRecipes {
    pub(super) fn find(&self, tool: &str, id: RecipeId) -> Option<&Remembered> {
        self.all.get(tool)?.iter().find(|one| one.id == id)
    }

    pub(super) fn is_unreadable(&self, tool: &str) -> bool {
        self.is_any_unreadable || self.unreadable.contains(tool)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Remembered> {
        self.all.values().flatten()
    }

    pub(super) fn put(&mut self, one: Remembered) {
        let of_tool = self.all.entry(one.recipe.tool.clone()).or_default();
        of_tool.retain(|known| known.id != one.id);
        of_tool.push(one);
        of_tool.sort_by_key(|one| (std::cmp::Reverse(one.created_at), one.id));
    }
}

impl Recipes {
    pub(crate) fn new(base: Arc<Base>, secrets: Arc<KnownSecrets>) -> Self {
        Self {
            base,
            secrets,
            known: ArcSwap::default(),
            learning: Mutex::default(),
            looked_for: Guard::default(),
        }
    }

    /// The tools with a stored key scheme. Other tools have no stored calls.
    pub(crate) fn tools(&self) -> Vec<String> {
        self.known.load().all.keys().cloned().collect()
    }

    /// A tool's key schemes except today's, the newest first.
    pub(crate) fn earlier(&self, at: &ToolAt) -> Vec<(RecipeId, Arc<Recipe>)> {
        let known = self.known.load();
        let of_tool = known.all.get(&at.tool.name).into_iter().flatten();
        let earlier = of_tool.filter(|one| one.id != at.recipe_id);
        earlier.map(|one| (one.id, one.recipe.clone())).collect()
    }

    /// Whether these are a tool's key schemes except today's.
    pub(crate) fn are_earlier(&self, at: &ToolAt, ids: &[RecipeId]) -> bool {
        let earlier = self.earlier(at);
        earlier.iter().map(|(id, _)| id).eq(ids)
    }

    pub(super) fn change(&self, change: impl Fn(&mut KnownRecipes)) {
        self.known.rcu(|known| {
            let mut known = KnownRecipes::clone(known);
            change(&mut known);
            known
        });
    }

    /// How long until every gateway knows the tool's key scheme of today; `None`: all know it.
    ///
    /// Until then a claim must include the lookup keys by earlier key schemes: a gateway that does not know today's key
    /// scheme looks for those alone.
    pub(crate) fn names_settle_in(&self, at: &ToolAt, now: Timestamp) -> Option<Duration> {
        if !self.base.store.is_shared() {
            return None;
        }
        let max_age = self.base.limits.pace.recipes_max_age;
        let known = self.known.load();
        known
            .find(&at.tool.name, at.recipe_id)
            .map_or(Some(max_age), |today| today.settles_in(max_age, now))
    }

    /// The key schemes of stored calls that a request does not know yet. A key scheme that the store lacks is left out.
    ///
    /// # Errors
    /// The store did not answer.
    pub(crate) async fn meet_recipes(
        &self,
        holders: &[Holder],
        is_known: impl Fn(RecipeId) -> bool,
    ) -> Result<Vec<(RecipeId, Arc<Recipe>)>, store::Error> {
        let mut new: Vec<(RecipeId, Arc<Recipe>)> = Vec::new();
        for holder in holders {
            let tool = &holder.record.intent.tool;
            for id in recipes_of(&holder.record) {
                if is_known(id) || new.iter().any(|(known, _)| *known == id) {
                    continue;
                }
                if let Some(one) = self.known.load().find(tool, id) {
                    new.push((id, one.recipe.clone()));
                    continue;
                }
                let (store, name) = (&self.base.store, name_of(tool, id));
                let found = store.document(Kind::Recipe, "", &name).await?;
                if let Some(one) = found.as_ref().and_then(Remembered::from_document) {
                    self.change(|known| known.put(one.clone()));
                    new.push((id, one.recipe));
                }
            }
        }
        Ok(new)
    }
}

/// The key schemes by which the lookup keys of a call were made.
pub(crate) fn recipes_of(record: &Record) -> impl Iterator<Item = RecipeId> {
    std::iter::once(record.intent.recipe).chain(record.aliases.iter().map(|alias| alias.recipe))
}
