//! The recipes that a gateway knows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex as Guard};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::core::document::Kind;
use crate::core::recipe::stored::{Remembered, name_of};
use crate::core::recipe::{Recipe, RecipeId};
use crate::core::record::{Holder, Record};
use crate::gateway::base::Base;
use crate::gateway::secret::KnownSecrets;
use crate::gateway::tools::ToolAt;
use crate::store;

/// The recipes that a gateway knows.
pub struct Recipes {
    pub(super) base: Arc<Base>,
    pub(super) secrets: Arc<KnownSecrets>,
    pub(super) known: ArcSwap<KnownRecipes>,
    /// Held by the one request that reads recipes for all.
    pub(super) learning: Mutex<()>,
    pub(super) failed_at: Guard<Option<Instant>>,
    /// When overdue recipes were last looked for among the calls.
    pub(super) looked_for: Guard<HashMap<RecipeId, Timestamp>>,
}

#[derive(Default, Clone)]
pub(super) struct KnownRecipes {
    /// Recipes by tool, the newest first.
    pub(super) all: BTreeMap<String, Vec<Remembered>>,
    /// Recipes that are written down, with all others read after that.
    pub(super) served: BTreeSet<RecipeId>,
    /// When the newest read began.
    pub(super) read_at: Option<Instant>,
    /// Tools with an unreadable recipe: none of their calls is claimed.
    pub(super) unreadable: BTreeSet<String>,
    /// Whether an unreadable recipe names no tool: then nothing is claimed.
    pub(super) is_any_unreadable: bool,
}

impl KnownRecipes {
    pub(super) fn find(&self, tool: &str, id: RecipeId) -> Option<&Remembered> {
        self.all.get(tool)?.iter().find(|one| one.id == id)
    }

    pub(super) fn is_unreadable(&self, tool: &str) -> bool {
        self.is_any_unreadable || self.unreadable.contains(tool)
    }

    pub(super) fn put(&mut self, one: Remembered) {
        let of_tool = self.all.entry(one.recipe.tool.clone()).or_default();
        of_tool.retain(|there| there.id != one.id);
        of_tool.push(one);
        of_tool.sort_by_key(|one| (std::cmp::Reverse(one.created_at), one.id));
    }
}

impl Recipes {
    pub(in crate::gateway) fn new(base: Arc<Base>, secrets: Arc<KnownSecrets>) -> Self {
        Self {
            base,
            secrets,
            known: ArcSwap::default(),
            learning: Mutex::default(),
            failed_at: Guard::default(),
            looked_for: Guard::default(),
        }
    }

    /// The tools with a stored recipe: no other tool has calls.
    pub(in crate::gateway) fn tools(&self) -> Vec<String> {
        self.known.load().all.keys().cloned().collect()
    }

    /// A tool's recipes but today's, the newest first.
    pub(in crate::gateway) fn earlier(&self, at: &ToolAt) -> Vec<(RecipeId, Arc<Recipe>)> {
        let known = self.known.load();
        let of_tool = known.all.get(&at.tool.name).into_iter().flatten();
        of_tool
            .filter(|one| one.id != at.recipe_id)
            .map(|one| (one.id, one.recipe.clone()))
            .collect()
    }

    /// Whether these are a tool's recipes but today's.
    pub(in crate::gateway) fn are_earlier(&self, at: &ToolAt, ids: &[RecipeId]) -> bool {
        let earlier = self.earlier(at);
        earlier.iter().map(|(id, _)| id).eq(ids)
    }

    /// Whether the recipes were read within this time.
    pub(super) fn is_younger(&self, max_age: Duration) -> bool {
        self.known
            .load()
            .read_at
            .is_some_and(|read_at| read_at.elapsed() <= max_age)
    }

    pub(super) fn serves(&self, at: &ToolAt) -> bool {
        let known = self.known.load();
        known.served.contains(&at.recipe_id) && !known.is_unreadable(&at.tool.name)
    }

    pub(super) fn change(&self, change: impl Fn(&mut KnownRecipes)) {
        self.known.rcu(|known| {
            let mut known = KnownRecipes::clone(known);
            change(&mut known);
            known
        });
    }

    /// How long until every gateway claims names by the tool's recipe of today; `None`: all do.
    ///
    /// Until then no name by an earlier recipe may be left out of a claim: a gateway that does not
    /// know today's recipe looks for no other name.
    pub(in crate::gateway) fn names_settle_in(
        &self,
        at: &ToolAt,
        now: Timestamp,
    ) -> Option<Duration> {
        if !self.base.store.is_shared() {
            return None;
        }
        let max_age = self.base.limits.pace.recipes_max_age;
        let known = self.known.load();
        known
            .find(&at.tool.name, at.recipe_id)
            .map_or(Some(max_age), |today| today.settles_in(max_age, now))
    }

    /// Loads the unknown recipes of calls that a request met.
    ///
    /// A recipe that the store lacks stays unknown.
    ///
    /// # Errors
    /// The store did not answer.
    pub(in crate::gateway) async fn meet_recipes(
        &self,
        holders: &[Holder],
        is_known: impl Fn(RecipeId) -> bool,
    ) -> Result<Vec<(RecipeId, Arc<Recipe>)>, store::Error> {
        let mut met: Vec<(RecipeId, Arc<Recipe>)> = Vec::new();
        for holder in holders {
            let tool = &holder.record.intent.tool;
            for id in recipes_of(&holder.record) {
                if is_known(id) || met.iter().any(|(there, _)| *there == id) {
                    continue;
                }
                if let Some(one) = self.known.load().find(tool, id) {
                    met.push((id, one.recipe.clone()));
                    continue;
                }
                let found = self
                    .base
                    .store
                    .document(Kind::Recipe, "", &name_of(tool, id))
                    .await;
                let found = found?;
                if let Some(one) = found.as_ref().and_then(Remembered::from_document) {
                    self.change(|known| known.put(one.clone()));
                    met.push((id, one.recipe));
                }
            }
        }
        Ok(met)
    }
}

/// The recipes by which the names of a call were made.
pub(in crate::gateway) fn recipes_of(record: &Record) -> impl Iterator<Item = RecipeId> {
    std::iter::once(record.intent.recipe).chain(record.aliases.iter().map(|alias| alias.recipe))
}
