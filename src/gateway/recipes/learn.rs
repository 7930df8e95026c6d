//! Learning recipes: this gateway's are written down, then others are read.

use std::sync::{Arc, PoisonError};

use jiff::Timestamp;
use tokio::time::Instant;

use super::known::{KnownRecipes, Recipes};
use crate::core::document::{Document, Kind};
use crate::core::position::Position;
use crate::core::recipe::stored::{Remembered, name_of, tool_of};
use crate::core::recipe::{MAX_RECIPES, RecipeId};
use crate::core::tool::Effect;
use crate::gateway::error::ErrorKind;
use crate::gateway::tools::ToolAt;
use crate::gateway::transition::ROUNDS;
use crate::store::{self, Put};

/// Documents that one search reads.
const PAGE: u32 = 500;

/// Why a gateway cannot use its recipes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(
        "tool {0}: calls of {MAX_RECIPES} earlier settings of its key are still remembered; another change of key, \
         redact.args or of the schema's member idempotency_key has to wait until the oldest of them are forgotten"
    )]
    TooMany(String),
}

impl Recipes {
    /// Makes sure that calls of a tool are recognised. Answers whether new ones may be claimed.
    ///
    /// # Errors
    /// Nothing was ever read, so that not even a repetition is recognised.
    pub(in crate::gateway) async fn know_recipes(&self, at: &ToolAt) -> Result<bool, ErrorKind> {
        let serves = || self.serves(at) && self.secrets.trouble_with_secret().is_none();
        if self.learn_until(at, serves).await {
            return Ok(true);
        }
        let may_look = self.known.load().read_at.is_some() || at.tool.effect == Effect::Read;
        if may_look {
            Ok(false)
        } else {
            Err(ErrorKind::StoreUnavailable)
        }
    }

    /// Reads the recipes again unless enough are known. Returns whether enough are known then.
    async fn learn_until(&self, at: &ToolAt, is_known: impl Fn() -> bool) -> bool {
        if is_known() {
            return true;
        }
        let asked = Instant::now();
        let _learning = self.learning.lock().await;
        // A request that waited for a failed read does not repeat it.
        let failed_at = *self
            .failed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !is_known()
            && failed_at.is_none_or(|failed_at| failed_at < asked)
            && !self.is_just_read(at, asked)
        {
            let tools = self.base.tools();
            if let Err(error) = self.learn(tools.values().map(Arc::as_ref)).await {
                // What failed in the store is logged there.
                if let Error::TooMany(tool) = &error {
                    tracing::error!(tool, %error, "the recipes of keys are not known");
                }
                *self
                    .failed_at
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            }
        }
        is_known()
    }

    /// Whether another request has read this tool's recipes since this one asked.
    ///
    /// Of a tool that is closed because one of them cannot be read: whether that was a moment ago.
    fn is_just_read(&self, at: &ToolAt, asked: Instant) -> bool {
        let known = self.known.load();
        let is_closed = known.is_unreadable(&at.tool.name);
        // A tool that has come meanwhile was not among those that the other request has learned.
        let is_among_them = is_closed || known.served.contains(&at.recipe_id);
        let pause = self.base.limits.pace.ask_store_every;
        known.read_at.is_some_and(|read_at| {
            is_among_them && read_at >= asked || is_closed && read_at.elapsed() < pause
        })
    }

    /// Whether the list of recipes is young enough to claim by.
    ///
    /// Other gateways may have added to it.
    pub(in crate::gateway) async fn has_recent_recipes(&self, at: &ToolAt) -> bool {
        let max_age = self.base.limits.pace.recipes_max_age;
        !self.base.store.is_shared() || self.learn_until(at, || self.is_younger(max_age)).await
    }

    /// Adds the tools that take no new calls because of their recipes.
    pub(in crate::gateway) async fn look_at_recipes(&self, readiness: &mut store::Readiness) {
        let (mut is_unwritten, mut closed) = (false, Vec::new());
        for at in self.base.tools().values() {
            if self.know_recipes(at).await.unwrap_or(false) {
                continue;
            }
            if self.known.load().is_unreadable(&at.tool.name) {
                closed.push(at.tool.name.clone());
            } else {
                is_unwritten = true;
            }
        }
        if let Some(reason) = self.secrets.trouble_with_secret() {
            readiness.reasons.push(reason);
            return;
        }
        if is_unwritten {
            let why = "the settings of the tools' keys are not written down yet";
            readiness.reasons.push(store::Reason::new("recipes", why));
        }
        if closed.is_empty() {
            return;
        }
        let text = format!(
            "a stored recipe of keys cannot be read, so that earlier calls may not be recognised; no new call is \
             taken of: {}",
            closed.join(", ")
        );
        let reason = store::Reason::new("recipe_unreadable", text);
        if closed.len() == self.base.tools().len() {
            readiness.reasons.push(reason);
        } else {
            readiness.warnings.push(reason);
        }
    }

    /// Writes down the recipes of the tools, and reads all others.
    ///
    /// # Errors
    /// The store failed, or there are too many; what was known stays so.
    pub async fn learn_recipes(&self) -> Result<(), Error> {
        let _learning = self.learning.lock().await;
        let tools = self.base.tools();
        self.learn(tools.values().map(Arc::as_ref)).await
    }

    /// Learns the recipes of tools that are about to be served.
    ///
    /// # Errors
    /// They must not be served.
    pub async fn adopt_recipes(&self, tools: &[ToolAt]) -> Result<(), Error> {
        let _learning = self.learning.lock().await;
        self.learn(tools.iter()).await
    }

    /// Learns the recipes of these tools. The caller has the lock.
    async fn learn(&self, tools: impl Iterator<Item = &ToolAt> + Clone) -> Result<(), Error> {
        let now = self.base.now();
        let began = Instant::now();
        // What was made with the recipes was made with the secret.
        self.secrets.learn_secret().await?;
        self.read_recipes(now, began).await?;
        let known = self.known.load_full();
        // A tool that is closed keeps no other from being served.
        let open = tools.filter(|at| !known.is_unreadable(&at.tool.name));
        let mut has_written = false;
        for at in open.clone() {
            has_written |= self.write_recipe(at, now).await?;
        }
        if has_written {
            let began = Instant::now();
            self.secrets.learn_secret().await?;
            self.read_recipes(now, began).await?;
        }
        let ids: Vec<RecipeId> = open.map(|at| at.recipe_id).collect();
        self.change(|known| known.served.extend(&ids));
        Ok(())
    }

    /// Writes down that a tool uses its recipe. Returns whether that was not known before.
    async fn write_recipe(&self, at: &ToolAt, now: Timestamp) -> Result<bool, Error> {
        let known = self.known.load_full();
        let keep = at.tool.retention;
        if let Some(known) = known.find(&at.tool.name, at.recipe_id) {
            if let Some(renewed) = known.renewed(keep, now) {
                self.put_recipe(&renewed, false).await?;
                // Others may have been written, or forgotten, since this one was read.
                return Ok(true);
            }
            return Ok(false);
        }
        if known
            .all
            .get(&at.tool.name)
            .is_some_and(|all| all.len() >= MAX_RECIPES)
        {
            return Err(Error::TooMany(at.tool.name.clone()));
        }
        self.put_recipe(
            &Remembered::new(at.recipe_id, at.recipe.clone(), keep, now),
            true,
        )
        .await?;
        Ok(true)
    }

    /// Writes a recipe, over any version of its document. `is_new`: it is known from now on.
    async fn put_recipe(&self, recipe: &Remembered, mut is_new: bool) -> Result<(), Error> {
        let mut recipe = recipe.clone();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            if is_new {
                recipe.known_since = self.base.now();
            }
            let put = self.base.store.put_document(&recipe.to_document()).await?;
            let there = match put {
                // Others count from a time at which it was not there yet.
                Put::Done
                    if is_new && began.elapsed() > self.base.limits.pace.recipes_max_age / 2 =>
                {
                    recipe.version += 1;
                    continue;
                }
                Put::Done => {
                    self.change(|known| known.put(recipe.clone()));
                    return Ok(());
                }
                Put::Lost(there) => there,
            };
            recipe.version = there.as_ref().map_or(0, |document| document.version) + 1;
            let is_kept = there.as_ref().is_some_and(Remembered::is_kept);
            if let Some(there) = there.as_ref().and_then(Remembered::from_document) {
                if is_kept {
                    is_new = false;
                    recipe.known_since = there.known_since;
                }
                recipe.used_at = recipe.used_at.max(there.used_at);
                recipe.keep = recipe.keep.max(there.keep);
                recipe.created_at = there.created_at;
            }
        }
        Err(store::Error::Refused("a recipe is written by many at once".into()).into())
    }

    /// Reads the stored recipes.
    ///
    /// A recipe that this gateway knows and the store has lost is written again. `began`: before
    /// the secret was read, too.
    async fn read_recipes(&self, now: Timestamp, began: Instant) -> Result<(), Error> {
        let (mut stored, mut unreadable) = (Vec::<Document>::new(), Vec::<String>::new());
        let mut before: Option<Position> = None;
        loop {
            let found = self
                .base
                .store
                .documents(Kind::Recipe, None, None, before.as_ref(), PAGE)
                .await;
            let (page, next) = found?;
            stored.extend(page.calls);
            unreadable.extend(page.unreadable.into_iter().map(|(id, _)| id));
            before = next;
            if before.is_none() {
                break;
            }
        }
        let mut read = KnownRecipes {
            read_at: Some(began),
            ..KnownRecipes::default()
        };
        for document in stored
            .iter()
            .filter(|document| Remembered::is_kept(document))
        {
            match Remembered::from_document(document) {
                Some(one) => read.put(one),
                None => unreadable.push(document.id.clone()),
            }
        }
        for id in &unreadable {
            if self.base.is_first_said(id) {
                tracing::error!(
                    recipe = id,
                    "a stored recipe cannot be read: its tool takes no new calls"
                );
            }
            match tool_of(id) {
                Some(tool) => _ = read.unreadable.insert(tool.to_owned()),
                None => read.is_any_unreadable = true,
            }
        }
        let known = self.known.load_full();
        for one in known.all.values().flatten() {
            if unreadable.contains(&name_of(&one.recipe.tool, one.id)) {
                read.put(one.clone());
            }
        }
        let is_there = |one: &Remembered| {
            let name = name_of(&one.recipe.tool, one.id);
            stored.iter().any(|document| document.id == name) || unreadable.contains(&name)
        };
        let lost: Vec<Remembered> = known
            .all
            .values()
            .flatten()
            .filter(|one| !is_there(one) && !one.is_overdue(now))
            .cloned()
            .collect();
        // What is not stored is not served until it is written again, but it is known here all the same.
        read.served.clone_from(&known.served);
        for one in &lost {
            read.served.remove(&one.id);
            read.put(one.clone());
        }
        self.known.store(Arc::new(read));
        let mut all = Ok(());
        for one in lost {
            // One that cannot be written must not keep the others.
            all = self
                .put_recipe(&Remembered { version: 1, ..one }, true)
                .await
                .and(all);
        }
        all
    }
}
