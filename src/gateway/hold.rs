//! Getting hold of a key: claim it, or find out who has it. What is claimed here is run by `run`.
//!
//! A claim whose answer is lost is asked again; one that is never confirmed is not run.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::base::Base;
use super::call::Asked;
use super::error::{Differs, ErrorKind, Reused};
use super::health::Permit;
use super::ids::new_attempt;
use super::pause::Pauses;
use super::places::{Owner, Places};
use super::recipes::{Recipes, recipes_of};
use super::run::{Keep, Runner};
use super::secret::KnownSecrets;
use super::session::Place;
use super::similar::{self, Alike};
use super::throttle::{NewKey, Throttle};
use super::transition::{self, Begin, Begun, ROUNDS};
use crate::core::call::{self, Action, Change, Event, Met};
use crate::core::json;
use crate::core::key::{Lookup, Source};
use crate::core::outcome::Evidence;
use crate::core::recipe::prints::{Prints, Sameness};
use crate::core::recipe::{Recipe, RecipeId};
use crate::core::record::FailureKind;
use crate::core::record::{AttemptId, Holder, Intent, Record};
use crate::core::session::Denied;
use crate::core::tool::Effect;
use crate::store;

/// How often the store must say that there is none.
const CLAIM_LOOKS: usize = 10;

/// What came of trying to get hold of a key.
pub(super) enum Hold {
    /// Ours to run.
    Ours(Record, Permit),
    /// Somebody else runs it.
    Theirs(Record),
    /// It is settled, and the record answers.
    Settled(Record),
    /// Nobody has it, but the session does not let the call begin.
    Denied(Denied, Place),
}

/// Gets hold of keys.
pub(super) struct Claimer {
    pub(super) base: Arc<Base>,
    pub(super) recipes: Arc<Recipes>,
    pub(super) secrets: Arc<KnownSecrets>,
    pub(super) pauses: Arc<Pauses>,
    pub(super) throttle: Arc<Throttle>,
    pub(super) runner: Arc<Runner>,
    /// Places for attempts that were given up and may still be answered.
    pub(super) listening: Places,
}

impl Claimer {
    pub(super) fn arrival(&self, asked: &Asked) -> Event {
        self.arrival_as(
            asked,
            asked.intent.clone(),
            asked.prints.clone(),
            new_attempt(),
        )
    }

    fn arrival_as(
        &self,
        asked: &Asked,
        intent: Arc<Intent>,
        prints: Arc<Prints>,
        attempt: AttemptId,
    ) -> Event {
        Event::Arrived {
            intent,
            prints,
            brought: asked.brought,
            attempt,
            owner: self.base.instance,
        }
    }

    /// The calls that hold the names of a request, and what it is by the recipe of each of them.
    pub(super) async fn look_up(&self, asked: &Asked) -> Result<Vec<Holder>, ErrorKind> {
        let names: Vec<Lookup> = asked.names.iter().map(|name| name.lookup).collect();
        let found = self.base.store.holders(&names).await;
        found.map_err(|_| ErrorKind::StoreUnavailable)
    }

    /// What a request is by the recipes of these calls, too.
    pub(super) async fn compared(
        &self,
        asked: &Asked,
        prints: Arc<Prints>,
        holders: &[Holder],
    ) -> Result<Arc<Prints>, ErrorKind> {
        let is_known = |id| prints.covers(&asked.intent, id);
        if holders
            .iter()
            .all(|holder| recipes_of(&holder.record).all(is_known))
        {
            return Ok(prints);
        }
        let met = self
            .recipes
            .meet_recipes(holders, is_known)
            .await
            .map_err(|_| ErrorKind::StoreUnavailable)?;
        let raw = str::from_utf8(&asked.raw)
            .ok()
            .and_then(|raw| json::parse(raw).ok());
        let Some(raw) = raw else { return Ok(prints) };
        let with =
            |prints: Prints, (id, recipe): &(RecipeId, Arc<Recipe>)| prints.with(*id, recipe, &raw);
        Ok(Arc::new(met.iter().fold((*prints).clone(), with)))
    }

    /// The calls that a request meets, after one of them was in the way of its claim. That one alone is enough
    /// if it is the same, or if there is no other name.
    async fn met(&self, asked: &Asked, there: Option<Record>) -> Result<Vec<Holder>, ErrorKind> {
        let Some(record) = there else {
            return self.look_up(asked).await;
        };
        let names: Vec<Lookup> = asked.names.iter().map(|name| name.lookup).collect();
        let names = names
            .into_iter()
            .filter(|name| record.all_names().any(|held| held == name));
        let holder = Holder {
            names: names.collect(),
            record,
        };
        let is_same = asked.prints.compare(&asked.intent, &holder.record) == Sameness::Same;
        let is_all = asked.names.len() == 1 && !holder.names.is_empty();
        if is_all
            || is_same
                && holder
                    .record
                    .expires_at
                    .is_none_or(|until| until > self.base.now())
        {
            return Ok(vec![holder]);
        }
        self.look_up(asked).await
    }

    /// The request with its names by the recipes and secrets that are known now, if there are others than when it came.
    fn with_newer_names(&self, asked: &Asked) -> Option<Asked> {
        let (read_by, secrets) = (asked.read_by.as_ref()?, self.secrets.current());
        if self.recipes.are_earlier(&asked.at, &read_by.recipes) && secrets == read_by.secrets {
            return None;
        }
        asked.read_again(&self.recipes.earlier(&asked.at), secrets)
    }

    fn why_nothing_begins(&self, asked: &Asked, has_place: bool) -> Option<ErrorKind> {
        if self.pauses.is_paused(&asked.at.tool.name) {
            return Some(ErrorKind::ToolPaused);
        }
        if !has_place {
            return Some(ErrorKind::RateLimited);
        }
        self.base
            .is_out_of_time()
            .then_some(ErrorKind::StoreUnavailable)
    }

    /// Gets hold of the key, or finds out who has it. Without a place to run nothing is claimed, but
    /// what is there is still found.
    ///
    /// `new_key` is the right to claim one, where new keys are bounded: taken when it is needed, and kept
    /// while the session lets the call wait.
    pub(super) async fn hold<'a>(
        self: &'a Arc<Self>,
        asked: &Asked,
        has_place: bool,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Result<Hold, ErrorKind> {
        let tool = &asked.at.tool;
        let attempt = new_attempt();
        let mut holders: Vec<Holder> = Vec::new();
        let mut prints = asked.prints.clone();
        let mut has_looked = false;
        let unknown_pauses = self
            .pauses
            .know_pauses()
            .await
            .err()
            .map(|_| ErrorKind::StoreUnavailable);
        // What may not begin, or not for sure, may have begun already.
        let refused = asked
            .complaint
            .clone()
            .or_else(|| self.why_nothing_begins(asked, has_place));
        let refused = refused.or(unknown_pauses);
        let is_wary = !asked.at.health.is_closed_for(&asked.intent.tenant);
        // Given back unless the call is ours to run.
        let mut permit = None;
        if refused.is_some() || is_wary || asked.new_keys.is_some() {
            has_looked = true;
            holders = match (self.look_up(asked).await, &asked.complaint) {
                (Ok(holders), _) => holders,
                // What a read has done is never in doubt.
                (Err(_), Some(complaint)) if tool.effect == Effect::Read => {
                    return Err(complaint.clone());
                }
                (Err(error), _) => return Err(error),
            };
        }
        let (came, mut renamed) = (asked, None::<Asked>);
        for _ in 0..ROUNDS {
            let now = self.base.now();
            let asked = renamed.as_ref().unwrap_or(came);
            // After `now`: what counts as free at that time is claimed by no older names.
            let is_harmless = tool.effect == Effect::Read && asked.complaint.is_some();
            let knows_names =
                is_harmless || asked.may_claim && self.recipes.has_recent_recipes(&asked.at).await;
            if let Some(newer) = self.with_newer_names(asked) {
                (has_looked, prints) = (true, newer.prints.clone());
                holders = self.look_up(&newer).await?;
                renamed = Some(newer);
                continue;
            }
            if !knows_names && !has_looked {
                has_looked = true;
                holders = self.look_up(asked).await?;
            }
            prints = self.compared(asked, prints, &holders).await?;
            let (mut intent, mut gives_up, mut met) = (asked.intent.clone(), Vec::new(), None);
            match call::meet(&holders, &asked.names, &intent, &prints, now) {
                Met::Expired(_) if !knows_names => return Err(ErrorKind::StoreUnavailable),
                Met::Free { .. } if !knows_names => return Err(ErrorKind::StoreUnavailable),
                Met::Expired(old) => {
                    let old = holders.get(old).map(|holder| &holder.record);
                    return Err(expired(&asked.intent, &prints, old));
                }
                Met::Call(call) => met = holders.get(call).map(|holder| holder.record.clone()),
                Met::Free { instead_of, left } => {
                    let old = instead_of.iter().filter_map(|old| holders.get(*old));
                    gives_up = old.map(|holder| holder.record.clone()).collect();
                    if !left.is_empty() {
                        if let Some(retry_after) = self.recipes.names_settle_in(&asked.at, now) {
                            return Err(ErrorKind::KeysSettle { retry_after });
                        }
                        Arc::make_mut(&mut intent)
                            .names
                            .retain(|name| !left.contains(name));
                    }
                }
            }
            let event = self.arrival_as(asked, intent, prints.clone(), attempt);
            // An arrival is never illegal; if it were, nothing must run.
            let Ok(next) = transition::ask(tool, met.as_ref().or(gives_up.first()), &event, now)
            else {
                break;
            };
            let there = match (next.action, next.change, met) {
                // Under a name that is not known here it may have been executed: no refusal may say that it was not.
                (
                    Action::Claim { .. }
                    | Action::Run
                    | Action::RefuseReused
                    | Action::RefuseUnclear
                    | Action::RefuseExpired
                    | Action::RefuseOtherSaga
                    | Action::RefuseUnfit(_),
                    ..,
                ) if !knows_names => return Err(ErrorKind::StoreUnavailable),
                (Action::Claim { .. } | Action::Run, ..) if let Some(why) = refused => {
                    return Err(why);
                }
                (Action::Claim { .. }, ..)
                    if new_key.is_none()
                        && let Err(retry_after) =
                            self.throttle.take_new_key(asked.new_keys.as_ref(), new_key) =>
                {
                    return Err(ErrorKind::TooManyNewKeys { retry_after });
                }
                (Action::Claim { .. } | Action::Run, ..)
                    if is_wary
                        && permit.is_none()
                        && let Err(retry_after) = asked
                            .at
                            .health
                            .admit(&asked.intent.tenant)
                            .map(|given| permit = Some(given)) =>
                {
                    return Err(ErrorKind::ToolResting { retry_after });
                }
                (Action::Claim { .. }, Some(change), _) => {
                    let intent = change.record.intent.clone();
                    match self
                        .begin(
                            asked,
                            change,
                            Begin::Claim {
                                instead_of: &gives_up,
                            },
                        )
                        .await
                    {
                        Ok(Begun::Denied(Denied::Similar { call_id }))
                            if similar::replays(asked) =>
                        {
                            match self
                                .answer_alike(asked, &intent, call_id, &gives_up)
                                .await?
                            {
                                Alike::Settled(record) => return Ok(Hold::Settled(*record)),
                                Alike::Again => None,
                            }
                        }
                        Ok(Begun::Denied(denied)) => {
                            return Ok(Hold::Denied(denied, Place::of(&intent)));
                        }
                        Ok(Begun::Not(there)) => {
                            // Somebody else was faster: it goes back.
                            drop(new_key.take());
                            there
                        }
                        Ok(Begun::Ours(record)) => {
                            NewKey::used(new_key);
                            return Ok(Hold::Ours(record, permit.unwrap_or_default()));
                        }
                        Ok(Begun::Unconfirmed(_)) | Err(_) => {
                            NewKey::used(new_key);
                            break;
                        }
                    }
                }
                (Action::Run, Some(change), Some(held)) => {
                    let intent = change.record.intent.clone();
                    match self
                        .begin(asked, change, Begin::Again { held: &held })
                        .await
                    {
                        Ok(Begun::Ours(record)) => {
                            return Ok(Hold::Ours(record, permit.unwrap_or_default()));
                        }
                        Ok(Begun::Denied(denied)) => {
                            return Ok(Hold::Denied(denied, Place::of(&intent)));
                        }
                        Ok(Begun::Not(there)) => there,
                        Ok(Begun::Unconfirmed(_)) | Err(_) => break,
                    }
                }
                (Action::Wait, _, Some(held)) => return Ok(Hold::Theirs(held)),
                (Action::Answer, _, Some(held)) => return Ok(Hold::Settled(held)),
                (action @ (Action::RefuseReused | Action::RefuseUnclear), _, Some(held)) => {
                    // What it asks for is no call today, and is not found to have been one.
                    let is_unclear = action == Action::RefuseUnclear;
                    let complaint = asked.complaint.clone().filter(|_| !is_unclear);
                    return Err(complaint.unwrap_or_else(|| reused(asked, &held, is_unclear)));
                }
                (Action::RefuseExpired, _, held) => {
                    return Err(expired(&asked.intent, &prints, held.as_ref()));
                }
                (Action::RefuseOtherSaga, _, _) => return Err(ErrorKind::of_another_saga()),
                // What cannot begin may have begun already.
                (Action::RefuseUnfit(_), _, None) if !has_looked => {
                    has_looked = true;
                    holders = self.look_up(asked).await?;
                    continue;
                }
                (Action::RefuseUnfit(why), _, _) => {
                    return Err(ErrorKind::InvalidRequest(why.into()));
                }
                _ => break,
            };
            has_looked = true;
            holders = self.met(asked, there).await?;
        }
        Err(ErrorKind::StoreUnavailable)
    }

    /// Begins a run. One that was never confirmed is looked for in the background.
    async fn begin(
        self: &Arc<Self>,
        asked: &Asked,
        change: Change,
        how: Begin<'_>,
    ) -> Result<Begun, store::Error> {
        let begun = transition::begin(&self.base, change, how, asked.longest_line).await?;
        // Where there are too many of them, recovery finds it when its lease is over.
        if let Begun::Unconfirmed(record) = &begun
            && let Some(place) = self.listening.take(Owner::of(&asked.intent))
        {
            let disown = self.clone().disown(asked.clone(), record.clone());
            drop(self.base.tasks.spawn(async move {
                disown.await;
                drop(place);
            }));
        }
        Ok(begun)
    }

    /// Looks for a run that was never confirmed to have begun. If the store has it after all, it is
    /// ended: nothing was sent.
    async fn disown(self: Arc<Self>, asked: Asked, begun: Record) {
        let tool = &asked.at.tool;
        let until = Instant::now() + tool.lease();
        let mut looks = 0;
        while looks < CLAIM_LOOKS && Instant::now() < until {
            tokio::select! {
                () = sleep(self.base.limits.pace.look_for_claim) => {}
                () = self.base.abandoned.cancelled() => return,
            }
            let found = self.base.store.load(begun.intent.call_id).await;
            match found {
                Ok(Some(record))
                    if record.attempt.id == begun.attempt.id && record.version == begun.version =>
                {
                    let why = "the claim was not confirmed by the store in time".to_owned();
                    let (attempt, fencing) = (record.attempt.id, record.fencing);
                    let event = if record.intent.saga_id.is_empty() {
                        Event::Ended {
                            attempt,
                            fencing,
                            evidence: Evidence::NotSent { why },
                            retry: None,
                        }
                    } else {
                        // Its saga may not have begun.
                        Event::NotJoined {
                            by: self.base.instance,
                            attempt,
                            kind: FailureKind::Unreachable,
                            why,
                        }
                    };
                    let (record, _) = self
                        .runner
                        .settle(&asked, record, &event, None, Keep::Stored)
                        .await;
                    tracing::warn!(
                        call_id = %record.intent.call_id,
                        tool = tool.name,
                        trace_id = record.intent.trace_id,
                        state = record.state.as_str(),
                        "a claim that was never confirmed was found and released",
                    );
                    return;
                }
                // A gateway that stops does not wait for what most likely never was.
                Ok(_) if self.base.draining.is_cancelled() => looks += CLAIM_LOOKS / 2,
                Ok(_) => looks += 1,
                Err(_) => {}
            }
        }
    }
}

/// What is told of a key that stands for another call, or may.
pub(super) fn reused(asked: &Asked, there: &Record, is_unclear: bool) -> ErrorKind {
    let intent = &asked.intent;
    // Whatever key comes with the same business fields meets the same call.
    let is_business = intent.key_source == Source::Business
        && there.all_names().any(|name| *name == intent.lookup);
    let reused = match (is_unclear, is_business) {
        (true, _) => Reused::Unclear,
        (false, true) => Reused::SameFields,
        (false, false) => Reused::Other,
    };
    // The arguments of an alias are not kept.
    let is_comparable = reused != Reused::Unclear
        && intent
            .all_names()
            .any(|name| there.intent.all_names().any(|own| own == name));
    let places = if is_comparable {
        asked.at.recipe.differing(&there.intent.args, &asked.raw)
    } else {
        Vec::new()
    };
    let differs = Differs {
        places,
        made_by: there.intent.made_by.clone(),
    };
    ErrorKind::KeyReused {
        call_id: there.intent.call_id,
        reused,
        differs,
    }
}

/// What is told of a key whose call is past its window. What cannot be compared may be a repetition.
pub(super) fn expired(intent: &Intent, prints: &Prints, there: Option<&Record>) -> ErrorKind {
    let is_repetition = there.is_none_or(|there| prints.compare(intent, there) != Sameness::Other);
    ErrorKind::KeyExpired { is_repetition }
}
