//! Claims a key, or finds the call that holds it.
//!
//! A claim whose answer is lost is asked again. A claim that is never confirmed is not run.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::attempt::Sender;
use super::prepared::PreparedCall;
use super::refusal::{expired, refusal};
use super::similar::{self, answer_similar};
use crate::base::Base;
use crate::error::ErrorKind;
use crate::health::Permit;
use crate::ids::new_attempt;
use crate::pauses::Pauses;
use crate::places::{Owner, Place, Places};
use crate::recipes::{Recipes, recipes_of};
use crate::secret::KnownSecrets;
use crate::throttle::{NewKey, Throttle};
use crate::transition::{self, Begin, Begun, OnConflict, ROUNDS};
use oncegate_budget::Charge;
use oncegate_rules::call::{self, Action, Arrival, Change, Event, Met, Next, Now};
use oncegate_rules::json;
use oncegate_rules::key::Lookup;
use oncegate_rules::outcome::Evidence;
use oncegate_rules::recipe::prints::{Prints, Sameness};
use oncegate_rules::record::{AttemptId, Failure, FailureKind, Holder, Intent, Record, State};
use oncegate_rules::session::Denied;
use oncegate_rules::tool::{Effect, Tool};
use oncegate_store as store;
use oncegate_tools::Deadline;

/// How often the store must say that an unconfirmed call does not exist.
const CLAIM_LOOKS: usize = 10;

/// The result of trying to claim a key.
pub(super) enum ClaimOutcome {
    /// This process runs the call.
    Ours(Record, Permit),
    /// Another process runs the call.
    Theirs(Record),
    /// The call is settled, and its record is the answer.
    Settled(Record),
    /// The key is free, but the session does not let the call with this intent begin.
    Denied(Denied, Arc<Intent>),
}

/// The end of the wait for a session, with what the call needs to run.
pub(super) struct Turn {
    pub claimed: Result<ClaimOutcome, ErrorKind>,
    /// A permit to run.
    pub place: Option<Place>,
    /// Memory for the result.
    pub room: Option<Charge>,
    /// Nothing is sent after this.
    pub deadline: Deadline,
}

/// Claims keys.
pub(crate) struct Claimer {
    pub base: Arc<Base>,
    pub recipes: Arc<Recipes>,
    pub secrets: Arc<KnownSecrets>,
    pub pauses: Arc<Pauses>,
    pub throttle: Arc<Throttle>,
    pub sender: Arc<Sender>,
    /// Places for late answers, and for looking after unconfirmed claims.
    pub listening: Places,
}

impl Claimer {
    /// Claims the key, or finds the call that holds it.
    ///
    /// Without a permit to run nothing is claimed, but a stored call is still found.
    ///
    /// `new_key` is the right to claim a new key, where new keys are bounded. It is taken when it is needed, and
    /// kept while the session lets the call wait.
    pub(super) async fn claim<'a>(
        self: &'a Arc<Self>,
        request: &PreparedCall,
        has_place: bool,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Result<ClaimOutcome, ErrorKind> {
        if request.at.tool.effect == Effect::Read {
            return self.begin_read(request, has_place, new_key).await;
        }
        let (at, tenant, attempt) = (&request.at, &request.intent.tenant, new_attempt());
        let blocker = self.why_nothing_begins(request, has_place).await;
        let is_breaker_open = !at.health.is_closed_for(tenant);
        // A refused request may repeat a call that already ran, so look for it first.
        let may_be_refused = blocker.is_some() || is_breaker_open || request.new_keys.is_some();
        // `None`: the store was not asked yet.
        let mut holders = None;
        if may_be_refused {
            holders = Some(self.look_up_refused(request).await?);
        }
        let mut call = Cow::Borrowed(request);
        // Dropped, and so given back, unless this process runs the call.
        let mut permit = None;
        for _ in 0..ROUNDS {
            // 1. Under which names may the call be stored?
            let time = self.base.time();
            let now = time.at;
            // Asked after `now`: no gateway claims by older names what counts as free at `now`.
            let knows_names = self.knows_names(&call).await;
            if let Some(newer) = self.with_newer_names(&call) {
                holders = Some(self.look_up(&newer).await?);
                call = Cow::Owned(newer);
                continue;
            }
            if !knows_names && holders.is_none() {
                holders = Some(self.look_up(&call).await?);
            }

            // 2. Which stored call is it?
            let found = holders.as_deref().unwrap_or_default();
            self.compare_with(&mut call, found).await?;
            let (met, gives_up, intent) = self.meet(&call, found, knows_names, time)?;

            // 3. What does core decide?
            let event = self.arrival_as(&call, intent, attempt);
            // An arrival is never illegal; if it were, nothing must run.
            let Ok(Next { change, action }) =
                transition::ask(&at.tool, met.or(gives_up.first()), &event, time)
            else {
                break;
            };
            let is_new = matches!(action, Action::Claim);
            let (change, how) = match (action, change, met) {
                (Action::Wait, _, Some(held)) => return Ok(ClaimOutcome::Theirs(held.clone())),
                (Action::Answer, _, Some(held)) => return Ok(ClaimOutcome::Settled(held.clone())),
                // The call may have run under a name that is not known here, so no refusal may say that nothing ran.
                _ if !knows_names => break,
                (Action::TakeFingerprint, Some(_), Some(held)) => {
                    // A request that is not a call of the tool today must not say what the adopted call asked for.
                    if call.complaint.is_some() {
                        return Err(refusal(Action::RefuseUnclear, &call, met));
                    }
                    if let Some(record) = self.recognise(&at.tool, held, &event, now).await? {
                        return Ok(ClaimOutcome::Settled(record));
                    }
                    holders = Some(self.look_up(&call).await?);
                    continue;
                }
                // A refused request may repeat a call that already ran.
                (Action::RefuseUnfit(_), _, None) if holders.is_none() => {
                    holders = Some(self.look_up(&call).await?);
                    continue;
                }
                (Action::Claim, Some(change), _) => {
                    let instead_of = gives_up.as_slice();
                    (change, Begin::Claim { instead_of })
                }
                (Action::Run, Some(change), Some(held)) => (change, Begin::Again { held }),
                (action, ..) => return Err(refusal(action, &call, met)),
            };

            // 4. May it begin now?
            if let Some(why) = blocker {
                return Err(why);
            }
            if is_new && new_key.is_none() {
                *new_key = self.throttle.take_new_key(call.new_keys.as_ref())?;
            }
            if is_breaker_open && permit.is_none() {
                let admitted = at.health.admit(tenant);
                permit =
                    Some(admitted.map_err(|retry_after| ErrorKind::BreakerOpen { retry_after })?);
            }

            // 5. Begin, unless another writer was faster.
            let intent = change.record.intent.clone();
            let begun = self.begin(&call, change, how).await;
            if is_new && !matches!(begun, Ok(Begun::Denied(_) | Begun::Not(_))) {
                NewKey::used(new_key);
            }
            let blocking = match begun {
                Ok(Begun::Ours(record)) => {
                    return Ok(ClaimOutcome::Ours(record, permit.unwrap_or_default()));
                }
                Ok(Begun::Denied(Denied::Similar { call_id }))
                    if is_new && similar::replays(&at.tool) =>
                {
                    let answer = answer_similar(&self.base, &call, &intent, call_id, &gives_up);
                    match answer.await? {
                        Some(record) => return Ok(ClaimOutcome::Settled(record)),
                        None => None,
                    }
                }
                Ok(Begun::Denied(denied)) => return Ok(ClaimOutcome::Denied(denied, intent)),
                Ok(Begun::Not(blocking)) => {
                    // Already claimed: return the permit.
                    if is_new {
                        drop(new_key.take());
                    }
                    blocking
                }
                Ok(Begun::Unconfirmed(_)) | Err(_) => break,
            };
            holders = Some(self.holders_after(&call, blocking).await?);
        }
        Err(ErrorKind::StoreUnavailable)
    }

    pub(super) fn arrival(&self, call: &PreparedCall) -> Event {
        self.arrival_as(call, call.intent.clone(), new_attempt())
    }

    /// An arrival that is only answered: its attempt is never made.
    pub(super) fn repetition(&self, call: &PreparedCall) -> Event {
        self.arrival_as(call, call.intent.clone(), AttemptId(Uuid::nil()))
    }

    pub(super) fn arrival_as(
        &self,
        call: &PreparedCall,
        intent: Arc<Intent>,
        attempt: AttemptId,
    ) -> Event {
        Event::Arrived(Arrival {
            intent,
            prints: call.prints.clone(),
            brought: call.brought,
            attempt,
            owner: self.base.instance,
        })
    }

    /// Why a request cannot begin a run, whatever the store has.
    pub(super) async fn why_nothing_begins(
        &self,
        call: &PreparedCall,
        has_place: bool,
    ) -> Option<ErrorKind> {
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

    /// The calls that hold the names of a request.
    pub(super) async fn look_up(&self, call: &PreparedCall) -> Result<Vec<Holder>, ErrorKind> {
        let names: Vec<Lookup> = call.names.iter().map(|name| name.lookup).collect();
        let found = self.base.store.holders(&names).await;
        found.map_err(|_| ErrorKind::StoreUnavailable)
    }

    /// The calls that hold the names of a request that may be refused.
    pub(super) async fn look_up_refused(
        &self,
        call: &PreparedCall,
    ) -> Result<Vec<Holder>, ErrorKind> {
        match (self.look_up(call).await, &call.complaint) {
            // A repeated read does no harm, so its complaint is reported without a look at the store.
            (Err(_), Some(complaint)) if call.at.tool.effect == Effect::Read => {
                Err(complaint.clone())
            }
            (found, _) => found,
        }
    }

    /// The calls that hold the names of a request, after one of them blocked its claim.
    ///
    /// The blocking call alone is enough if it is the same call, or if the request has no other name.
    async fn holders_after(
        &self,
        call: &PreparedCall,
        blocking: Option<Record>,
    ) -> Result<Vec<Holder>, ErrorKind> {
        if let Some(record) = blocking {
            let asked_for = call.names.iter().map(|name| name.lookup);
            let names: Vec<Lookup> = asked_for
                .filter(|name| record.all_names().any(|held| held == name))
                .collect();
            let has_no_other_name = call.names.len() == 1 && !names.is_empty();
            let is_same = call.prints.compare(&call.intent, &record) == Sameness::Same;
            // A call that would run again, or that gives way, may not be the only one.
            let is_answer = !matches!(record.state, State::Failed(_));
            let holder = [Holder { record, names }];
            let (tool, aged) = (&call.at.tool, self.base.time().aged());
            let is_met = call::meet(tool, &holder, call.seeking(), aged) == Met::Call(0);
            if has_no_other_name || is_same && is_answer && is_met {
                return Ok(holder.into());
            }
        }
        self.look_up(call).await
    }

    /// Whether all names of a request are known, so that no repetition is missed.
    async fn knows_names(&self, call: &PreparedCall) -> bool {
        let is_harmless = call.at.tool.effect == Effect::Read && call.complaint.is_some();
        is_harmless || call.may_claim && self.recipes.has_recent_recipes(&call.at).await
    }

    /// The request by key schemes and secrets that were learned after it was read. `None`: it was read by all of them.
    pub(super) fn with_newer_names(&self, call: &PreparedCall) -> Option<PreparedCall> {
        let (read_by, secrets) = (call.read_by.as_ref()?, self.secrets.current());
        if self.recipes.are_earlier(&call.at, &read_by.recipes) && secrets == read_by.secrets {
            return None;
        }
        call.read_again(&self.recipes.earlier(&call.at), secrets)
    }

    /// Adds to a request its fingerprints by the key schemes of these calls.
    pub(super) async fn compare_with(
        &self,
        call: &mut Cow<'_, PreparedCall>,
        holders: &[Holder],
    ) -> Result<(), ErrorKind> {
        let is_known = |id| call.prints.covers(&call.intent, id);
        let mut recipes = holders.iter().flat_map(|holder| recipes_of(&holder.record));
        if recipes.all(is_known) {
            return Ok(());
        }
        let met = self.recipes.meet_recipes(holders, is_known).await;
        let met = met.map_err(|_| ErrorKind::StoreUnavailable)?;
        let raw = str::from_utf8(&call.raw).ok();
        if let Some(raw) = raw.and_then(|raw| json::parse(raw).ok()) {
            let mut prints = Prints::clone(&call.prints);
            for (id, recipe) in &met {
                prints = prints.with(*id, recipe, &raw);
            }
            call.to_mut().prints = Arc::new(prints);
        }
        Ok(())
    }

    /// Which stored call a request is, and the intent that it would claim.
    fn meet<'a>(
        &self,
        call: &PreparedCall,
        holders: &'a [Holder],
        knows_names: bool,
        now: Now,
    ) -> Result<Meeting<'a>, ErrorKind> {
        let record = |place: usize| holders.get(place).map(|holder| &holder.record);
        let mut intent = call.intent.clone();
        let met = call::meet(&call.at.tool, holders, call.seeking(), now.aged());
        Ok(match met {
            Met::Expired(_) | Met::Free { .. } if !knows_names => {
                return Err(ErrorKind::StoreUnavailable);
            }
            Met::Expired(old) => return Err(expired(call, record(old))),
            Met::Call(place) => (record(place), Vec::new(), intent),
            Met::Free { instead_of, left } => {
                if !left.is_empty() {
                    if let Some(retry_after) = self.recipes.names_settle_in(&call.at, now.at) {
                        return Err(ErrorKind::KeysSettle { retry_after });
                    }
                    let names = &mut Arc::make_mut(&mut intent).names;
                    names.retain(|name| !left.contains(name));
                }
                let past = instead_of.into_iter().filter_map(record);
                (None, past.cloned().collect(), intent)
            }
        })
    }

    /// Writes down what an adopted call asked for, as its first request says. The rule is in `core::call`.
    ///
    /// `None`: another request was faster, or may have been.
    async fn recognise(
        &self,
        tool: &Tool,
        held: &Record,
        event: &Event,
        now: Timestamp,
    ) -> Result<Option<Record>, ErrorKind> {
        let (held, give_up) = (held.clone(), OnConflict::GiveUp);
        match transition::apply(&self.base, tool, held, event, now, give_up).await {
            Ok(moved) => Ok(moved.written()),
            // The change may be written: the stored call tells.
            Err(store::Error::Ambiguous(_)) => Ok(None),
            Err(_) => Err(ErrorKind::StoreUnavailable),
        }
    }

    /// Begins a run. An unconfirmed one is looked for in the background.
    pub(super) async fn begin(
        self: &Arc<Self>,
        call: &PreparedCall,
        change: Change,
        how: Begin<'_>,
    ) -> Result<Begun, store::Error> {
        let begun = transition::begin(&self.base, change, how, call.longest_line).await?;
        // Without a permit recovery finds the call when its lease is over.
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

    /// Looks for an unconfirmed run. If the store has it after all, the run is ended: nothing was sent.
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
            let Ok(found) = self.base.store.load(begun.intent.call_id).await else {
                continue;
            };
            let is_begun = |record: &Record| {
                record.attempt.id == begun.attempt.id && record.version == begun.version
            };
            let Some(record) = found.filter(is_begun) else {
                // Most likely the store never had the claim, so a gateway that drains looks less often.
                let is_draining = self.base.draining.is_cancelled();
                looks += if is_draining { CLAIM_LOOKS / 2 } else { 1 };
                continue;
            };
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
            let record = self.sender.settle_alone(&call, record, &event).await;
            tracing::warn!(
                call_id = %record.intent.call_id,
                tool = tool.name,
                trace_id = record.intent.trace_id,
                state = record.state.as_str(),
                "a claim that was never confirmed was found and released",
            );
            return;
        }
    }
}

/// The stored call that a request repeats, calls past their window whose names it takes, and its intent as it would be
/// claimed.
type Meeting<'a> = (Option<&'a Record>, Vec<Record>, Arc<Intent>);
