//! Claims a key, or finds the call that has it.
//!
//! A claim whose answer is lost is asked again; one that is never confirmed is not run.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::prepared::PreparedCall;
use super::recognise::recognise;
use super::refusal::{expired, refusal};
use super::run::Runner;
use super::similar::{self, Alike, answer_alike};
use crate::core::call::{self, Action, Arrival, Change, Event, Met};
use crate::core::json;
use crate::core::key::Lookup;
use crate::core::outcome::Evidence;
use crate::core::recipe::prints::{Prints, Sameness};
use crate::core::recipe::{Recipe, RecipeId};
use crate::core::record::{AttemptId, CallId, Failure, FailureKind, Holder, Intent, Record};
use crate::core::session::{Denied, SessionId};
use crate::core::tool::Effect;
use crate::gateway::base::Base;
use crate::gateway::error::ErrorKind;
use crate::gateway::health::Permit;
use crate::gateway::ids::new_attempt;
use crate::gateway::pauses::Pauses;
use crate::gateway::places::{Owner, Places};
use crate::gateway::recipes::{Recipes, recipes_of};
use crate::gateway::secret::KnownSecrets;
use crate::gateway::throttle::{NewKey, Throttle};
use crate::gateway::transition::{self, Begin, Begun, ROUNDS};
use crate::store;

/// How often the store must say that there is no such call.
const CLAIM_LOOKS: usize = 10;

/// A call's place in the line of a session.
pub(in crate::gateway) struct LinePlace {
    pub(in crate::gateway) session: SessionId,
    pub(in crate::gateway) call_id: CallId,
}

impl LinePlace {
    pub(in crate::gateway) fn of(intent: &Intent) -> Self {
        Self {
            session: SessionId::of(intent),
            call_id: intent.call_id,
        }
    }
}

/// The result of trying to claim a key.
pub(in crate::gateway) enum ClaimOutcome {
    /// This process runs it.
    Ours(Record, Permit),
    /// Another process runs it.
    Theirs(Record),
    /// It is settled, and its record is the answer.
    Settled(Record),
    /// The key is free, but the session does not let the call begin.
    Denied(Denied, LinePlace),
}

/// Claims keys.
pub(in crate::gateway) struct Claimer {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) recipes: Arc<Recipes>,
    pub(in crate::gateway) secrets: Arc<KnownSecrets>,
    pub(in crate::gateway) pauses: Arc<Pauses>,
    pub(in crate::gateway) throttle: Arc<Throttle>,
    pub(in crate::gateway) runner: Arc<Runner>,
    /// Places for attempts that were given up and may still be answered.
    pub(in crate::gateway) listening: Places,
}

impl Claimer {
    pub(in crate::gateway) fn arrival(&self, call: &PreparedCall) -> Event {
        self.arrival_as(
            call,
            call.intent.clone(),
            call.prints.clone(),
            new_attempt(),
        )
    }

    /// An arrival that is only to be answered: its attempt is never made.
    pub(in crate::gateway) fn repetition(&self, call: &PreparedCall) -> Event {
        let none = AttemptId(Uuid::nil());
        self.arrival_as(call, call.intent.clone(), call.prints.clone(), none)
    }

    fn arrival_as(
        &self,
        call: &PreparedCall,
        intent: Arc<Intent>,
        prints: Arc<Prints>,
        attempt: AttemptId,
    ) -> Event {
        Event::Arrived(Arrival {
            intent,
            prints,
            brought: call.brought,
            attempt,
            owner: self.base.instance,
        })
    }

    /// The calls that hold the names of a request.
    pub(in crate::gateway) async fn look_up(
        &self,
        call: &PreparedCall,
    ) -> Result<Vec<Holder>, ErrorKind> {
        let names: Vec<Lookup> = call.names.iter().map(|name| name.lookup).collect();
        let found = self.base.store.holders(&names).await;
        found.map_err(|_| ErrorKind::StoreUnavailable)
    }

    /// The request's fingerprints, with those by the recipes of these calls.
    pub(in crate::gateway) async fn compared(
        &self,
        call: &PreparedCall,
        prints: Arc<Prints>,
        holders: &[Holder],
    ) -> Result<Arc<Prints>, ErrorKind> {
        let is_known = |id| prints.covers(&call.intent, id);
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
        let raw = str::from_utf8(&call.raw)
            .ok()
            .and_then(|raw| json::parse(raw).ok());
        let Some(raw) = raw else { return Ok(prints) };
        let with =
            |prints: Prints, (id, recipe): &(RecipeId, Arc<Recipe>)| prints.with(*id, recipe, &raw);
        Ok(Arc::new(met.iter().fold((*prints).clone(), with)))
    }

    /// The calls that a request meets, after one of them blocked its claim.
    ///
    /// That call alone is enough if it is the same, or if there is no other name.
    async fn met(
        &self,
        call: &PreparedCall,
        there: Option<Record>,
    ) -> Result<Vec<Holder>, ErrorKind> {
        let Some(record) = there else {
            return self.look_up(call).await;
        };
        let names: Vec<Lookup> = call.names.iter().map(|name| name.lookup).collect();
        let names = names
            .into_iter()
            .filter(|name| record.all_names().any(|held| held == name));
        let holder = Holder {
            names: names.collect(),
            record,
        };
        let is_same = call.prints.compare(&call.intent, &holder.record) == Sameness::Same;
        let is_all = call.names.len() == 1 && !holder.names.is_empty();
        if is_all
            || is_same
                && holder
                    .record
                    .expires_at
                    .is_none_or(|until| until > self.base.now())
        {
            return Ok(vec![holder]);
        }
        self.look_up(call).await
    }

    /// The request by recipes and secrets that came after it; `None`: there are none.
    fn with_newer_names(&self, call: &PreparedCall) -> Option<PreparedCall> {
        let (read_by, secrets) = (call.read_by.as_ref()?, self.secrets.current());
        if self.recipes.are_earlier(&call.at, &read_by.recipes) && secrets == read_by.secrets {
            return None;
        }
        call.read_again(&self.recipes.earlier(&call.at), secrets)
    }

    /// Why a request cannot begin a run, whatever the store has.
    async fn why_nothing_begins(&self, call: &PreparedCall, has_place: bool) -> Option<ErrorKind> {
        let pauses = self.pauses.know_pauses().await;
        if let Some(complaint) = &call.complaint {
            return Some(complaint.clone());
        }
        if self.pauses.is_paused(&call.at.tool.name) {
            return Some(ErrorKind::ToolPaused);
        }
        if !has_place {
            return Some(ErrorKind::RateLimited);
        }
        let is_unsure = self.base.is_out_of_time() || pauses.is_err();
        is_unsure.then_some(ErrorKind::StoreUnavailable)
    }

    /// Claims the key, or finds the call that has it.
    ///
    /// Without a place to run nothing is claimed, but a stored call is still found.
    ///
    /// `new_key` is the right to claim one, where new keys are bounded: taken when it is needed,
    /// and kept while the session lets the call wait.
    pub(in crate::gateway) async fn claim<'a>(
        self: &'a Arc<Self>,
        came: &PreparedCall,
        has_place: bool,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Result<ClaimOutcome, ErrorKind> {
        let (at, attempt) = (&came.at, new_attempt());
        let blocker = self.why_nothing_begins(came, has_place).await;
        let is_breaker_open = !at.health.is_closed_for(&came.intent.tenant);
        // What may not begin, or not for sure, may have begun already.
        let mut has_looked = blocker.is_some() || is_breaker_open || came.new_keys.is_some();
        let mut holders = if has_looked {
            self.look_up_refused(came).await?
        } else {
            Vec::new()
        };
        let mut prints = came.prints.clone();
        let mut renamed = None::<PreparedCall>;
        // Given back unless the call is ours to run.
        let mut permit = None;
        for _ in 0..ROUNDS {
            let now = self.base.now();
            let call = renamed.as_ref().unwrap_or(came);
            // After `now`: what counts as free at that time is claimed by no older names.
            let knows_names = self.knows_names(call).await;
            if let Some(newer) = self.with_newer_names(call) {
                (has_looked, prints) = (true, newer.prints.clone());
                holders = self.look_up(&newer).await?;
                renamed = Some(newer);
                continue;
            }
            if !knows_names && !has_looked {
                has_looked = true;
                holders = self.look_up(call).await?;
            }
            prints = self.compared(call, prints, &holders).await?;
            let Meeting {
                met,
                gives_up,
                intent,
            } = self.meet(call, &holders, &prints, knows_names, now)?;
            let event = self.arrival_as(call, intent, prints.clone(), attempt);
            // An arrival is never illegal; if it were, nothing must run.
            let old = met.as_ref().or(gives_up.first());
            let Ok(next) = transition::ask(&at.tool, old, &event, now) else {
                break;
            };
            let is_new = matches!(next.action, Action::Claim);
            let (change, how) = match (next.action, next.change, &met) {
                (Action::Wait, _, Some(_)) => return found(met, ClaimOutcome::Theirs),
                (Action::Answer, _, Some(_)) => return found(met, ClaimOutcome::Settled),
                // Under a name that is not known here it may have been executed: no refusal may say that it was not.
                _ if !knows_names => break,
                (Action::TakeFingerprint, Some(_), Some(held)) => {
                    // What is no request of the tool today may not say what the call asked for.
                    if call.complaint.is_some() {
                        return Err(refusal(Action::RefuseUnclear, call, &prints, met.as_ref()));
                    }
                    match recognise(&self.base, &at.tool, held.clone(), &event, now).await? {
                        Some(record) => return Ok(ClaimOutcome::Settled(record)),
                        None => {
                            has_looked = true;
                            holders = self.look_up(call).await?;
                            continue;
                        }
                    }
                }
                // What cannot begin may have begun already.
                (Action::RefuseUnfit(_), _, None) if !has_looked => {
                    has_looked = true;
                    holders = self.look_up(call).await?;
                    continue;
                }
                (Action::Claim, Some(change), _) => {
                    let instead_of = gives_up.as_slice();
                    (change, Begin::Claim { instead_of })
                }
                (Action::Run, Some(change), Some(held)) => (change, Begin::Again { held }),
                (action, ..) => return Err(refusal(action, call, &prints, met.as_ref())),
            };
            if let Some(why) = blocker {
                return Err(why);
            }
            if is_new && new_key.is_none() {
                let taken = self.throttle.take_new_key(call.new_keys.as_ref(), new_key);
                taken.map_err(|retry_after| ErrorKind::TooManyNewKeys { retry_after })?;
            }
            if is_breaker_open && permit.is_none() {
                let admitted = at.health.admit(&call.intent.tenant);
                let admitted =
                    admitted.map_err(|retry_after| ErrorKind::BreakerOpen { retry_after })?;
                permit = Some(admitted);
            }
            let intent = change.record.intent.clone();
            let begun = self.begin(call, change, how).await;
            if is_new && !matches!(begun, Ok(Begun::Denied(_) | Begun::Not(_))) {
                NewKey::used(new_key);
            }
            let there = match begun {
                Ok(Begun::Ours(record)) => {
                    return Ok(ClaimOutcome::Ours(record, permit.unwrap_or_default()));
                }
                Ok(Begun::Denied(Denied::Similar { call_id }))
                    if is_new && similar::replays(call) =>
                {
                    let alike = answer_alike(&self.base, call, &intent, call_id, &gives_up);
                    match alike.await? {
                        Alike::Settled(record) => return Ok(ClaimOutcome::Settled(*record)),
                        Alike::Again => None,
                    }
                }
                Ok(Begun::Denied(denied)) => {
                    return Ok(ClaimOutcome::Denied(denied, LinePlace::of(&intent)));
                }
                Ok(Begun::Not(there)) => {
                    // Another call holds the name: the right to a new key goes back.
                    if is_new {
                        drop(new_key.take());
                    }
                    there
                }
                Ok(Begun::Unconfirmed(_)) | Err(_) => break,
            };
            has_looked = true;
            holders = self.met(call, there).await?;
        }
        Err(ErrorKind::StoreUnavailable)
    }

    /// Looks for the calls that hold a request's names, before it is refused.
    async fn look_up_refused(&self, call: &PreparedCall) -> Result<Vec<Holder>, ErrorKind> {
        match (self.look_up(call).await, &call.complaint) {
            // What a read has done is never in doubt.
            (Err(_), Some(complaint)) if call.at.tool.effect == Effect::Read => {
                Err(complaint.clone())
            }
            (looked, _) => looked,
        }
    }

    /// Whether all names of a request are known, so that no repetition is missed.
    async fn knows_names(&self, call: &PreparedCall) -> bool {
        let is_harmless = call.at.tool.effect == Effect::Read && call.complaint.is_some();
        is_harmless || call.may_claim && self.recipes.has_recent_recipes(&call.at).await
    }

    /// Which stored call a request is, and the intent that it would claim.
    fn meet(
        &self,
        call: &PreparedCall,
        holders: &[Holder],
        prints: &Prints,
        knows_names: bool,
        now: Timestamp,
    ) -> Result<Meeting, ErrorKind> {
        let record = |place: usize| holders.get(place).map(|holder| holder.record.clone());
        let mut meeting = Meeting {
            met: None,
            gives_up: Vec::new(),
            intent: call.intent.clone(),
        };
        match call::meet(holders, &call.names, &call.intent, prints, now) {
            Met::Expired(_) | Met::Free { .. } if !knows_names => {
                return Err(ErrorKind::StoreUnavailable);
            }
            Met::Expired(old) => return Err(expired(&call.intent, prints, record(old).as_ref())),
            Met::Call(place) => meeting.met = record(place),
            Met::Free { instead_of, left } => {
                meeting.gives_up = instead_of.into_iter().filter_map(record).collect();
                if !left.is_empty() {
                    if let Some(retry_after) = self.recipes.names_settle_in(&call.at, now) {
                        return Err(ErrorKind::KeysSettle { retry_after });
                    }
                    let intent = Arc::make_mut(&mut meeting.intent);
                    intent.names.retain(|name| !left.contains(name));
                }
            }
        }
        Ok(meeting)
    }

    /// Begins a run. An unconfirmed one is looked for in the background.
    async fn begin(
        self: &Arc<Self>,
        call: &PreparedCall,
        change: Change,
        how: Begin<'_>,
    ) -> Result<Begun, store::Error> {
        let begun = transition::begin(&self.base, change, how, call.longest_line).await?;
        // Where there are too many of them, recovery finds it when its lease is over.
        if let Begun::Unconfirmed(record) = &begun
            && let Some(place) = self.listening.take(Owner::of(&call.intent))
        {
            let disown = self.clone().disown(call.clone(), record.clone());
            drop(self.base.tasks.spawn(async move {
                disown.await;
                drop(place);
            }));
        }
        Ok(begun)
    }

    /// Looks for an unconfirmed run. If the store has it after all, it is ended: nothing was sent.
    async fn disown(self: Arc<Self>, call: PreparedCall, begun: Record) {
        let tool = &call.at.tool;
        let until = Instant::now() + tool.lease();
        let mut looks = 0;
        while looks < CLAIM_LOOKS && Instant::now() < until {
            tokio::select! {
                biased;
                () = sleep(self.base.limits.pace.look_for_claim) => {}
                () = self.base.abandoned.cancelled() => return,
            }
            let found = self.base.store.load(begun.intent.call_id).await;
            match found {
                Ok(Some(record))
                    if record.attempt.id == begun.attempt.id && record.version == begun.version =>
                {
                    let why = "the claim was not confirmed by the store in time".to_owned();
                    let event = if record.intent.saga_id.is_empty() {
                        Event::ended(&record, Evidence::NotSent { why })
                    } else {
                        // Its saga may not have begun.
                        Event::NotJoined {
                            by: self.base.instance,
                            attempt: record.attempt.id,
                            why: Failure::new(FailureKind::Unreachable, why),
                        }
                    };
                    let record = self.runner.settle_alone(&call, record, &event).await;
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

/// Which stored call a request meets.
struct Meeting {
    /// The call that it repeats.
    met: Option<Record>,
    /// Calls past their window, whose names it takes.
    gives_up: Vec<Record>,
    /// The intent as it would be claimed.
    intent: Arc<Intent>,
}

fn found(
    met: Option<Record>,
    outcome: impl FnOnce(Record) -> ClaimOutcome,
) -> Result<ClaimOutcome, ErrorKind> {
    met.map(outcome).ok_or(ErrorKind::StoreUnavailable)
}
