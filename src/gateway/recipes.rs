//! The recipes by which keys are made. Those of this gateway are written down before it serves by them, and those
//! of every other gateway are read after that: of two gateways that share a store at least one knows both, so
//! that their claims of one call meet. The rules are in `core::recipe`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex as Guard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::base::Base;
use super::error::ErrorKind;
use super::secret::KnownSecrets;
use super::tools::ToolAt;
use crate::core::document::{Document, Kind};
use crate::core::key::Lookup;
use crate::core::ledger::Filter;
use crate::core::position::Position;
use crate::core::recipe::identity::{Name, Part};
use crate::core::recipe::stored::{Remembered, name_of, tool_of};
use crate::core::recipe::{MAX_RECIPES, Recipe, RecipeId};
use crate::core::record::{Holder, Record};
use crate::core::tool::Effect;
use crate::store::{self, Put};

/// Documents that are read in one go.
const PAGE: u32 = 500;
/// How often a recipe whose time is over is looked for among the calls again, if one was found.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_hours(24);
/// Pages of old calls that such a look reads at the most.
const PAGES: usize = 20;

/// Why a gateway does not serve by its recipes.
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

/// What is known of recipes.
pub struct Recipes {
    base: Arc<Base>,
    secrets: Arc<KnownSecrets>,
    seen: ArcSwap<Seen>,
    /// One reads for all.
    learning: Mutex<()>,
    failed_at: Guard<Option<Instant>>,
    /// When recipes whose time is over were last looked for among the calls.
    looked_for: Guard<HashMap<RecipeId, Timestamp>>,
}

#[derive(Default, Clone)]
struct Seen {
    /// By tool, the newest first.
    all: BTreeMap<String, Vec<Remembered>>,
    /// Those that are written down, with all others read after that.
    served: BTreeSet<RecipeId>,
    /// When what was read last began to be read.
    read_at: Option<Instant>,
    /// Tools of which a stored recipe cannot be read: nothing of them is claimed.
    unreadable: BTreeSet<String>,
    /// A stored recipe of which not even the tool can be read: nothing of any tool is claimed.
    is_any_unreadable: bool,
}

impl Seen {
    fn find(&self, tool: &str, id: RecipeId) -> Option<&Remembered> {
        self.all.get(tool)?.iter().find(|one| one.id == id)
    }

    fn is_unreadable(&self, tool: &str) -> bool {
        self.is_any_unreadable || self.unreadable.contains(tool)
    }

    fn put(&mut self, one: Remembered) {
        let of_tool = self.all.entry(one.recipe.tool.clone()).or_default();
        of_tool.retain(|there| there.id != one.id);
        of_tool.push(one);
        of_tool.sort_by_key(|one| (std::cmp::Reverse(one.created_at), one.id));
    }
}

impl Recipes {
    pub(super) fn new(base: Arc<Base>, secrets: Arc<KnownSecrets>) -> Self {
        Self {
            base,
            secrets,
            seen: ArcSwap::default(),
            learning: Mutex::default(),
            failed_at: Guard::default(),
            looked_for: Guard::default(),
        }
    }

    /// The recipes of a tool but today's, the newest first.
    pub(super) fn earlier(&self, at: &ToolAt) -> Vec<(RecipeId, Arc<Recipe>)> {
        let seen = self.seen.load();
        let of_tool = seen.all.get(&at.tool.name).into_iter().flatten();
        of_tool
            .filter(|one| one.id != at.recipe_id)
            .map(|one| (one.id, one.recipe.clone()))
            .collect()
    }

    /// Whether these are the recipes of a tool but today's.
    pub(super) fn are_earlier(&self, at: &ToolAt, ids: &[RecipeId]) -> bool {
        let seen = self.seen.load();
        let of_tool = seen.all.get(&at.tool.name).into_iter().flatten();
        of_tool
            .map(|one| one.id)
            .filter(|id| *id != at.recipe_id)
            .eq(ids.iter().copied())
    }

    /// Whether what is known was read within this time.
    fn is_younger(&self, max_age: Duration) -> bool {
        self.seen
            .load()
            .read_at
            .is_some_and(|read_at| read_at.elapsed() <= max_age)
    }

    fn serves(&self, at: &ToolAt) -> bool {
        let seen = self.seen.load();
        seen.served.contains(&at.recipe_id) && !seen.is_unreadable(&at.tool.name)
    }

    fn change(&self, change: impl Fn(&mut Seen)) {
        self.seen.rcu(|seen| {
            let mut seen = Seen::clone(seen);
            change(&mut seen);
            seen
        });
    }
}

impl Recipes {
    /// Makes sure that calls of a tool are recognised. Answers whether new ones may be claimed.
    ///
    /// # Errors
    /// Nothing was ever read, so that not even a repetition is recognised.
    pub(super) async fn know_recipes(&self, at: &ToolAt) -> Result<bool, ErrorKind> {
        let serves = || self.serves(at) && self.secrets.trouble_with_secret().is_none();
        if self.learn_until(at, serves).await {
            return Ok(true);
        }
        let may_look = self.seen.load().read_at.is_some() || at.tool.effect == Effect::Read;
        if may_look {
            Ok(false)
        } else {
            Err(ErrorKind::StoreUnavailable)
        }
    }

    /// Reads the recipes again unless enough is known. Answers whether it is then.
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
                tracing::error!(tool = at.tool.name, %error, "the recipes of keys are not known");
                *self
                    .failed_at
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            }
        }
        is_known()
    }

    /// Whether another request has read the recipes since this one asked; and of a tool that is closed because one of
    /// them cannot be read, whether that was a moment ago.
    fn is_just_read(&self, at: &ToolAt, asked: Instant) -> bool {
        let seen = self.seen.load();
        let is_closed = seen.is_unreadable(&at.tool.name);
        let pause = self.base.limits.pace.ask_store_every;
        seen.read_at
            .is_some_and(|read_at| read_at >= asked || is_closed && read_at.elapsed() < pause)
    }

    /// Whether the list of recipes is young enough to claim by: other gateways may have added to it.
    pub(super) async fn has_recent_recipes(&self, at: &ToolAt) -> bool {
        let max_age = self.base.limits.pace.recipes_max_age;
        !self.base.store.is_shared() || self.learn_until(at, || self.is_younger(max_age)).await
    }

    /// How long until every gateway claims names by the tool's recipe of today, too; `None`: all do. Until then no
    /// name by an earlier recipe may be left out of a claim: it is all that a gateway which does not know today's
    /// looks for.
    pub(super) fn names_settle_in(&self, at: &ToolAt, now: Timestamp) -> Option<Duration> {
        if !self.base.store.is_shared() {
            return None;
        }
        let max_age = self.base.limits.pace.recipes_max_age;
        let seen = self.seen.load();
        seen.find(&at.tool.name, at.recipe_id)
            .map_or(Some(max_age), |today| today.settles_in(max_age, now))
    }

    /// Says which tools take no new calls because of their recipes.
    pub(super) async fn look_at_recipes(&self, readiness: &mut store::Readiness) {
        let (mut is_unwritten, mut closed) = (false, Vec::new());
        for at in self.base.tools().values() {
            if self.know_recipes(at).await.unwrap_or(false) {
                continue;
            }
            if self.seen.load().is_unreadable(&at.tool.name) {
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

    /// Writes down the recipes of the tools as they are now, and reads those of others.
    ///
    /// # Errors
    /// The store failed, or there are too many; what was known stays so.
    pub async fn learn_recipes(&self) -> Result<(), Error> {
        let _learning = self.learning.lock().await;
        let tools = self.base.tools();
        self.learn(tools.values().map(Arc::as_ref)).await
    }

    /// The same for tools that are about to be served.
    ///
    /// # Errors
    /// They must not be served.
    pub async fn adopt_recipes(&self, tools: &[ToolAt]) -> Result<(), Error> {
        let _learning = self.learning.lock().await;
        self.learn(tools.iter()).await
    }

    /// The caller has the lock.
    async fn learn(&self, tools: impl Iterator<Item = &ToolAt> + Clone) -> Result<(), Error> {
        let now = self.base.now();
        let began = Instant::now();
        // What was made with the recipes was made with the secret.
        self.secrets.learn_secret().await?;
        self.read_recipes(now, began).await?;
        let seen = self.seen.load_full();
        // A tool that is closed keeps no other from being served.
        let open = tools.filter(|at| !seen.is_unreadable(&at.tool.name));
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
        self.change(|seen| seen.served.extend(&ids));
        Ok(())
    }

    /// Writes down that a tool is served by its recipe. Whether that was not known before.
    async fn write_recipe(&self, at: &ToolAt, now: Timestamp) -> Result<bool, Error> {
        let seen = self.seen.load_full();
        let keep = at.tool.retention;
        if let Some(known) = seen.find(&at.tool.name, at.recipe_id) {
            if let Some(renewed) = known.renewed(keep, now) {
                self.put_recipe(&renewed, false).await?;
                // Others may have been written, or forgotten, since this one was read.
                return Ok(true);
            }
            return Ok(false);
        }
        if seen
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

    /// Writes a recipe, whatever version of its document is there. `is_new`: it is known from now on.
    async fn put_recipe(&self, recipe: &Remembered, mut is_new: bool) -> Result<(), Error> {
        let mut recipe = recipe.clone();
        for _ in 0..super::transition::ROUNDS {
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
                    self.change(|seen| seen.put(recipe.clone()));
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

    /// Reads what is stored. What this gateway knows and the store has lost is written again. `began`: before the
    /// secret was read, too.
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
        let mut read = Seen {
            read_at: Some(began),
            ..Seen::default()
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
        let known = self.seen.load_full();
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
        self.seen.store(Arc::new(read));
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

    /// Loads the recipes of calls that were met, as far as they are not known. One that is not there stays
    /// unknown.
    ///
    /// # Errors
    /// The store did not answer.
    pub(super) async fn meet_recipes(
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
                if let Some(one) = self.seen.load().find(tool, id) {
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
                    self.change(|seen| seen.put(one.clone()));
                    met.push((id, one.recipe));
                }
            }
        }
        Ok(met)
    }

    /// Says that the recipes of this gateway are served by, reads those of others, and forgets those by which
    /// no kept call was made.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn keep_recipes_once(&self, now: Timestamp) -> Result<(), Error> {
        self.learn_recipes().await?;
        let current: BTreeSet<RecipeId> =
            self.base.tools().values().map(|at| at.recipe_id).collect();
        let seen = self.seen.load_full();
        for one in seen
            .all
            .values()
            .flatten()
            .filter(|one| one.is_overdue(now) && !current.contains(&one.id))
        {
            if !self.is_looked_for(one.id, now) || self.has_calls_of(one).await? {
                continue;
            }
            let put = self.base.store.put_document(&one.forgotten(now)).await;
            if matches!(put?, Put::Done) {
                let (tool, recipe) = (&one.recipe.tool, one.id);
                tracing::info!(tool, %recipe, "an earlier setting of the tool's key is forgotten: no call of it is kept");
                self.change(|seen| {
                    seen.all
                        .entry(tool.clone())
                        .or_default()
                        .retain(|there| there.id != recipe);
                });
            }
        }
        Ok(())
    }

    /// Whether it is time to look for the calls of a recipe.
    fn is_looked_for(&self, id: RecipeId, now: Timestamp) -> bool {
        let mut looked_for = self
            .looked_for
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_time = looked_for
            .get(&id)
            .is_none_or(|at| now.duration_since(*at) >= LOOK_AGAIN);
        if is_time {
            looked_for.retain(|_, at| now.duration_since(*at) < LOOK_AGAIN);
            looked_for.insert(id, now);
        }
        is_time
    }

    /// Whether a call that was made by a recipe is kept; so it is if that cannot be said.
    async fn has_calls_of(&self, one: &Remembered) -> Result<bool, store::Error> {
        let filter = Filter {
            tool: Some(one.recipe.tool.clone()),
            until: Some(one.made_until()),
            ..Filter::default()
        };
        for tenant in self.base.store.tenants().await? {
            let mut before: Option<Position> = None;
            for page in 0.. {
                let found = self.base.store.list(&tenant, &filter, before, PAGE).await;
                let found = found?;
                let is_of_it = found
                    .found
                    .iter()
                    .any(|listed| recipes_of(&listed.record).any(|id| id == one.id));
                before = found.next;
                if is_of_it || found.unreadable > 0 || (before.is_some() && page >= PAGES) {
                    return Ok(true);
                }
                if before.is_none() {
                    break;
                }
            }
        }
        Ok(false)
    }
}

/// The recipes by which the names of a call were made.
pub(super) fn recipes_of(record: &Record) -> impl Iterator<Item = RecipeId> {
    std::iter::once(record.intent.recipe).chain(record.aliases.iter().map(|alias| alias.recipe))
}

/// The names that a call of one key goes by.
pub(super) fn one_name(lookup: Lookup) -> Vec<Name> {
    vec![Name {
        lookup,
        part: Part::Today,
        is_runtime: false,
    }]
}
