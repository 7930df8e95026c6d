//! Claims a key, or finds the call that holds it.
//!
//! A claim whose answer is lost is asked again. A claim that is never confirmed is not run.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use super::approved::proposals::may_ask;
use super::attempt::Sender;
use super::duplicates::similar::{self, answer_similar};
use super::prepared::PreparedCall;
use super::refusal::{expired, refusal};
use crate::base::Base;
use crate::base::ids::new_attempt;
use crate::callers::permits::{FairPermit, FairPermits};
use crate::callers::throttle::{NewKey, Throttle};
use crate::error::ErrorKind;
use crate::key_schemes::{KeySchemes, key_schemes_of};
use crate::notices::Notices;
use crate::secret::KnownSecrets;
use crate::tools::health::Permit;
use crate::tools::pauses::Pauses;
use crate::transition::{self, Begin, Begun, OnConflict, ROUNDS};
use oncegate_budget::Charge;
use oncegate_rules::call::{self, Action, Arrival, Event, Next, Now, Resolved};
use oncegate_rules::json;
use oncegate_rules::key::Lookup;
use oncegate_rules::key_scheme::fingerprints::{Fingerprints, Sameness};
use oncegate_rules::record::{AttemptId, Holder, Intent, Record, State};
use oncegate_rules::session::Denied;
use oncegate_rules::tool::{Effect, Tool};
use oncegate_store as store;
use oncegate_tools::Deadline;

/// The result of trying to claim a key.
pub(super) enum ClaimOutcome {
    /// This process runs the call.
    Ours(Record, Permit),
    /// The call waits for approval, or for its begin.
    Asked(Record),
    /// Another process runs the call, or it waits for approval.
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
    pub permit: Option<FairPermit>,
    /// Memory for the result.
    pub reservation: Option<Charge>,
    /// Nothing is sent after this.
    pub deadline: Deadline,
}

/// Claims keys.
pub(crate) struct Claimer {
    pub base: Arc<Base>,
    pub key_schemes: Arc<KeySchemes>,
    pub secrets: Arc<KnownSecrets>,
    pub pauses: Arc<Pauses>,
    pub throttle: Arc<Throttle>,
    pub sender: Arc<Sender>,
    pub notices: Arc<Notices>,
    /// Permits for late answers, and for looking after unconfirmed claims.
    pub listening: FairPermits,
}

impl Claimer {
    /// Claims the key, or finds the call that holds it.
    ///
    /// Without a permit to run nothing is claimed, but a stored call is still found.
    ///
    /// `new_key` is the right to claim a new key, where new keys are bounded. It is taken when it is needed, and
    /// kept while the session lets the call wait.
    ///
    /// A refusal says that nothing ran. While the store is known to have lost data, an earlier request may have run all the
    /// same.
    pub(super) async fn claim<'a>(
        self: &'a Arc<Self>,
        request: &PreparedCall,
        has_permit: bool,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Result<ClaimOutcome, ErrorKind> {
        let claimed = self.claim_or_refuse(request, has_permit, new_key).await;
        match claimed {
            Err(why)
                if why.rests_on_all_data() && self.base.must_know_all_data().await.is_err() =>
            {
                Err(ErrorKind::StoreUnavailable)
            }
            claimed => claimed,
        }
    }

    async fn claim_or_refuse<'a>(
        self: &'a Arc<Self>,
        request: &PreparedCall,
        has_permit: bool,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Result<ClaimOutcome, ErrorKind> {
        if request.at.tool.effect == Effect::Read {
            return self.begin_read(request, has_permit, new_key).await;
        }
        let (at, tenant, attempt) = (&request.at, &request.intent.tenant, new_attempt());
        let blocker = self.why_nothing_begins(request, has_permit).await;
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
            // 1. Under which lookup keys may the call be stored?
            let time = self.base.time();
            let now = time.at;
            // Asked after `now`: no gateway claims by older lookup keys what counts as free at `now`.
            let knows_lookups = self.knows_lookups(&call).await;
            if let Some(newer) = self.with_newer_lookups(&call) {
                holders = Some(self.look_up(&newer).await?);
                call = Cow::Owned(newer);
                continue;
            }
            if !knows_lookups && holders.is_none() {
                holders = Some(self.look_up(&call).await?);
            }

            // 2. Which stored call is it?
            let found = holders.as_deref().unwrap_or_default();
            self.compare_with(&mut call, found).await?;
            let (existing, replaced, intent) = self.resolve(&call, found, knows_lookups, time)?;

            // 3. What do the rules decide?
            let event = self.arrival_as(&call, intent, attempt);
            // An arrival is never illegal; if it were, nothing must run.
            // Of calls that give their lookup keys away one is asked about, so that the rules see what the request replaces.
            let stored = existing.or(replaced.first());
            let Ok(Next { change, action }) = transition::ask(&at.tool, stored, &event, time)
            else {
                break;
            };
            let is_asked = matches!(action, Action::Propose);
            let is_new = matches!(action, Action::Claim) || is_asked && existing.is_none();
            let (change, how) = match (action, change, existing) {
                (Action::Wait, _, Some(held)) => return Ok(ClaimOutcome::Theirs(held.clone())),
                (Action::Answer, _, Some(held)) => return Ok(ClaimOutcome::Settled(held.clone())),
                // The call may have run under a lookup key that is not known here, so no refusal may say that nothing ran.
                _ if !knows_lookups => break,
                (Action::TakeFingerprint, Some(_), Some(held)) => {
                    // A request that is not a call of the tool today must not say what the adopted call asked for.
                    if call.complaint.is_some() {
                        return Err(refusal(Action::RefuseUnclear, &call, existing));
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
                (Action::Propose | Action::Begin, Some(change), Some(held))
                    if change.record.intent.call_id == held.intent.call_id =>
                {
                    (change, Begin::Again { held })
                }
                (Action::Claim | Action::Propose, Some(change), _) => {
                    let replaced = replaced.as_slice();
                    (change, Begin::Claim { replaced })
                }
                (Action::Run, Some(change), Some(held)) => (change, Begin::Again { held }),
                (action, ..) => return Err(refusal(action, &call, existing)),
            };

            // 4. May it begin now?
            if let Some(why) = blocker {
                return Err(why);
            }
            if is_asked {
                may_ask(&self.base, &change.record.intent).await?;
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
            if is_asked {
                let expected = self.notices.expect(intent.call_id).await;
                expected.map_err(|_| ErrorKind::StoreUnavailable)?;
            }
            let begun = self.begin(&call, change, how).await;
            if is_new && !matches!(begun, Ok(Begun::Denied(_) | Begun::Not(_))) {
                NewKey::used(new_key);
            }
            let blocking = match begun {
                Ok(Begun::Ours(record)) if record.state != State::Running => {
                    self.base.decided.note(record.intent.call_id);
                    return Ok(ClaimOutcome::Asked(record));
                }
                Ok(Begun::Ours(record)) => {
                    return Ok(ClaimOutcome::Ours(record, permit.unwrap_or_default()));
                }
                Ok(Begun::Denied(Denied::Similar { call_id }))
                    if is_new && similar::replays(&at.tool) =>
                {
                    let answer = answer_similar(&self.base, &call, &intent, call_id, &replaced);
                    match answer.await? {
                        Some(record) => return Ok(ClaimOutcome::Settled(record)),
                        None => None,
                    }
                }
                // In place of refusing it an approver is asked: the next round proposes it. A payment could not wait for that.
                Ok(Begun::Denied(denied))
                    if call.client.payments.is_empty()
                        && let (Some(rule), Some(found)) = (&at.tool.approval, denied.found())
                        && let Some(ask) = rule.ask_about(found, call.ask.as_ref()) =>
                {
                    call.to_mut().ask = Some(ask);
                    continue;
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
        let arrival = Arrival {
            intent,
            fingerprints: call.fingerprints.clone(),
            preconditions: call.preconditions,
            attempt,
            owner: self.base.instance,
        };
        match &call.ask {
            Some(ask) => Event::Asked {
                arrival,
                ask: ask.clone(),
            },
            None => Event::Arrived(arrival),
        }
    }

    /// Why a request cannot begin a run, whatever the store has.
    pub(super) async fn why_nothing_begins(
        &self,
        call: &PreparedCall,
        has_permit: bool,
    ) -> Option<ErrorKind> {
        let pauses = self.pauses.know_pauses().await;
        if let Some(complaint) = &call.complaint {
            return Some(complaint.clone());
        }
        if self.pauses.is_paused(&call.at.tool.name) {
            return Some(ErrorKind::ToolPaused);
        }
        if !has_permit {
            return Some(ErrorKind::RateLimited);
        }
        let is_unsure = self.base.is_out_of_time() || pauses.is_err();
        is_unsure.then_some(ErrorKind::StoreUnavailable)
    }

    /// The calls that hold the lookup keys of a request.
    ///
    /// While data may be missing an empty result proves nothing: a refusal would say that nothing was executed.
    pub(super) async fn look_up(&self, call: &PreparedCall) -> Result<Vec<Holder>, ErrorKind> {
        let lookups: Vec<Lookup> = call.lookups.iter().map(|name| name.lookup).collect();
        let found = self.base.store.holders(&lookups).await;
        let found = found.map_err(|_| ErrorKind::StoreUnavailable)?;
        // Asked after the search: an inspection in between may have found the loss.
        if found.is_empty() && self.base.store.readiness().await.may_lack_data() {
            return Err(ErrorKind::StoreUnavailable);
        }
        Ok(found)
    }

    /// The calls that hold the lookup keys of a request that may be refused.
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

    /// The calls that hold the lookup keys of a request, after one of them blocked its claim.
    ///
    /// The blocking call alone is enough if it is the same call, or if the request has no other lookup key.
    async fn holders_after(
        &self,
        call: &PreparedCall,
        blocking: Option<Record>,
    ) -> Result<Vec<Holder>, ErrorKind> {
        if let Some(record) = blocking {
            let asked_for = call.lookups.iter().map(|name| name.lookup);
            let lookups: Vec<Lookup> = asked_for
                .filter(|name| record.all_lookups().any(|held| held == name))
                .collect();
            let has_no_other_name = call.lookups.len() == 1 && !lookups.is_empty();
            let is_same = call.fingerprints.compare(&call.intent, &record) == Sameness::Same;
            // A call that would run again, or that gives way, may not be the only one.
            let is_answer = !matches!(record.state, State::Failed(_));
            let holder = [Holder { record, lookups }];
            let (tool, dedup_now) = (&call.at.tool, self.base.time().dedup_now());
            let is_met =
                call::resolve(tool, &holder, call.seeking(), dedup_now) == Resolved::Call(0);
            if has_no_other_name || is_same && is_answer && is_met {
                return Ok(holder.into());
            }
        }
        self.look_up(call).await
    }

    /// Whether all lookup keys of a request are known, so that no repetition is missed.
    async fn knows_lookups(&self, call: &PreparedCall) -> bool {
        let is_harmless = call.at.tool.effect == Effect::Read && call.complaint.is_some();
        is_harmless || call.may_claim && self.key_schemes.has_recent_key_schemes(&call.at).await
    }

    /// The request by key schemes and secrets that were learned after it was read. `None`: it was read by all of them.
    pub(super) fn with_newer_lookups(&self, call: &PreparedCall) -> Option<PreparedCall> {
        let (read_by, secrets) = (call.read_by.as_ref()?, self.secrets.current());
        if self.key_schemes.are_earlier(&call.at, &read_by.key_schemes)
            && secrets == read_by.secrets
        {
            return None;
        }
        call.read_again(&self.key_schemes.earlier(&call.at), secrets)
    }

    /// Adds to a request its fingerprints by the key schemes of these calls.
    pub(super) async fn compare_with(
        &self,
        call: &mut Cow<'_, PreparedCall>,
        holders: &[Holder],
    ) -> Result<(), ErrorKind> {
        let is_known = |id| call.fingerprints.covers(&call.intent, id);
        let mut key_schemes = holders
            .iter()
            .flat_map(|holder| key_schemes_of(&holder.record));
        if key_schemes.all(is_known) {
            return Ok(());
        }
        let met = self.key_schemes.key_schemes_met_by(holders, is_known).await;
        let met = met.map_err(|_| ErrorKind::StoreUnavailable)?;
        let raw = str::from_utf8(&call.raw).ok();
        if let Some(raw) = raw.and_then(|raw| json::parse(raw).ok()) {
            let mut fingerprints = Fingerprints::clone(&call.fingerprints);
            for (id, key_scheme) in &met {
                fingerprints = fingerprints.with(*id, key_scheme, &raw);
            }
            call.to_mut().fingerprints = Arc::new(fingerprints);
        }
        Ok(())
    }

    /// Which stored call a request is, and the intent that it would claim.
    fn resolve<'a>(
        &self,
        call: &PreparedCall,
        holders: &'a [Holder],
        knows_lookups: bool,
        now: Now,
    ) -> Result<Meeting<'a>, ErrorKind> {
        let record = |index: usize| holders.get(index).map(|holder| &holder.record);
        let mut intent = call.intent.clone();
        let resolved = call::resolve(&call.at.tool, holders, call.seeking(), now.dedup_now());
        Ok(match resolved {
            Resolved::Expired(_) | Resolved::Free { .. } if !knows_lookups => {
                return Err(ErrorKind::StoreUnavailable);
            }
            Resolved::Expired(old) => return Err(expired(call, record(old))),
            Resolved::Call(index) => (record(index), Vec::new(), intent),
            Resolved::Free { replaced, left } => {
                if !left.is_empty() {
                    if let Some(retry_after) = self.key_schemes.lookups_settle_in(&call.at, now.at)
                    {
                        return Err(ErrorKind::KeysSettle { retry_after });
                    }
                    let lookups = &mut Arc::make_mut(&mut intent).lookups;
                    lookups.retain(|name| !left.contains(name));
                }
                let past = replaced.into_iter().filter_map(record);
                (None, past.cloned().collect(), intent)
            }
        })
    }

    /// Writes down what an adopted call asked for, as its first request says. The rule is in `rules::call`.
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
}

/// The stored call that a request repeats, calls past their window whose lookup keys it takes, and its intent as it would be
/// claimed.
type Meeting<'a> = (Option<&'a Record>, Vec<Record>, Arc<Intent>);
