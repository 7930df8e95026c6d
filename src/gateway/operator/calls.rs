//! Acts of persons on calls: settle, replay, verify. The rules are in `core::call::verify`.

use std::sync::Arc;

use bytes::Bytes;

use super::ledger::{Ledger, MAX_ENTRIES, hidden};
use crate::core::actor::Actor;
use crate::core::audit::{Act, Deed};
use crate::core::call::{Event, Illegal};
use crate::core::caller::Caller;
use crate::core::many::Mark;
use crate::core::outcome::{Body, Evidence, Outcome, Sent, classify};
use crate::core::record::{CallId, Content, Record, State};
use crate::core::replay::{Fresh, differences};
use crate::core::session::Refusal;
use crate::core::unknown::{CheckBlocker, Resolution};
use crate::downstream::Deadline;
use crate::gateway::audit::{self, Steps};
use crate::gateway::base::Base;
use crate::gateway::calls::{PreparedCall, Sender};
use crate::gateway::error::{Error, ErrorKind, must_be_admin, unavailable};
use crate::gateway::pauses::Pauses;
use crate::gateway::recovery::{Probed, Rechecks};
use crate::gateway::sagas::Sagas;
use crate::gateway::status::Status;
use crate::gateway::trace::Trace;
use crate::gateway::transition::{self, Moved, OnConflict, ROUNDS};

/// A stored result and, if the tool was asked, a fresh one.
#[derive(Debug, Clone)]
pub struct Replay {
    pub call_id: CallId,
    /// The stored result as one JSON text, as a duplicate gets it.
    pub stored: Bytes,
    pub fresh: Option<Bytes>,
    /// JSON Pointers to where the two differ.
    pub differences: Vec<String>,
}

/// The acts of persons on single calls.
pub struct Operator {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) pauses: Arc<Pauses>,
    pub(in crate::gateway) status: Arc<Status>,
    pub(in crate::gateway) sender: Arc<Sender>,
    pub(in crate::gateway) ledger: Arc<Ledger>,
    pub(in crate::gateway) sagas: Arc<Sagas>,
    pub(in crate::gateway) rechecks: Arc<Rechecks>,
}

impl Operator {
    /// Settles an unknown call. Its duplicates get the new outcome.
    ///
    /// # Errors
    /// The caller is no administrator, the call is not unknown or not as it was `seen`, or it is to count as failed
    /// while its request may still be under way.
    pub async fn resolve(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
        resolution: &Resolution,
        seen: Option<Mark>,
    ) -> Result<Record, Error> {
        let (operator, caller) = (self.clone(), caller.clone());
        let (reason, resolution) = (reason.to_owned(), resolution.clone());
        let settling = async move {
            let act = operator.act_on(&caller, Deed::Resolve, call_id, &reason);
            let act = act.await?;
            let doing = operator.settle(&caller, call_id, &reason, &resolution, seen);
            audit::kept(&operator.base, act, doing).await
        };
        self.base.to_its_end(settling).await
    }

    /// Asks the tool of an unknown call now whether it knows the key, and settles the call if that proves anything.
    ///
    /// Nothing is sent again.
    ///
    /// # Errors
    /// The caller is no administrator, the call is not unknown, or its tool cannot be asked.
    pub async fn probe(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
    ) -> Result<Record, Error> {
        let (operator, caller, reason) = (self.clone(), caller.clone(), reason.to_owned());
        let probing = async move {
            let act = operator.act_on(&caller, Deed::Probe, call_id, &reason);
            let act = act.await?;
            let doing = operator.ask_tool(&caller, call_id, &reason);
            audit::kept(&operator.base, act, doing).await
        };
        self.base.to_its_end(probing).await
    }

    async fn ask_tool(
        &self,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
    ) -> Result<Record, Error> {
        // A check by a gateway may come in between.
        for _ in 0..ROUNDS {
            let record = self.base.store.load(call_id).await.map_err(unavailable)?;
            let record = record.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
            let probed = self.rechecks.probe_now(record, &caller.name, reason).await;
            match probed.map_err(unavailable)? {
                Probed::Asked { mut record, .. } => {
                    self.ledger.mask(&mut record);
                    return Ok(record);
                }
                Probed::Not(Moved::Refused(_, illegal)) => {
                    return Err(ErrorKind::WrongState(illegal.to_string()).of_call(call_id));
                }
                Probed::Not(_) => {}
            }
        }
        Err(ErrorKind::JustChanged.of_call(call_id))
    }

    /// An act of an administrator on a call that there is.
    async fn act_on(
        &self,
        caller: &Caller,
        deed: Deed,
        call_id: CallId,
        reason: &str,
    ) -> Result<Act, Error> {
        self.base.admit_person(caller).await?;
        let maker = self.base.store.maker(call_id).await.map_err(unavailable)?;
        let maker = maker.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        let on = (call_id, &maker.tenant[..], &maker.tool[..]);
        Ok(Act::on_call(caller, deed, on, reason))
    }

    /// Settles a call, and lets the sagas go on that waited for it.
    async fn settle(
        &self,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
        resolution: &Resolution,
        seen: Option<Mark>,
    ) -> Result<Record, Error> {
        let wrong = |why: String| ErrorKind::WrongState(why).of_call(call_id);
        let event = Event::Resolved {
            by: caller.name.clone(),
            reason: reason.to_owned(),
            resolution: resolution.clone(),
        };
        let moved = self.apply_if_as_seen(call_id, &event, seen).await?;
        match moved {
            None | Some(Moved::Lost(None)) => Err(ErrorKind::UnknownCall.alone()),
            Some(Moved::Refused(record, Illegal::MayStillRun)) => {
                let until = record.attempt.lease_until;
                Err(wrong(format!(
                    "its request may still be executed until {until:.0}"
                )))
            }
            Some(Moved::Refused(record, _)) => Err(wrong(format!(
                "the call is {}, not unknown or stuck",
                record.state.as_str()
            ))),
            Some(Moved::Unchanged(..) | Moved::Lost(Some(_))) => Err(unavailable(())),
            Some(Moved::Written {
                mut record, was, ..
            }) => {
                self.was_resolved(caller, &record, &was, reason).await;
                self.ledger.mask(&mut record);
                Ok(record)
            }
        }
    }

    /// Applies an event to a call that is still as the person has seen it.
    async fn apply_if_as_seen(
        &self,
        call_id: CallId,
        event: &Event,
        seen: Option<Mark>,
    ) -> Result<Option<Moved>, Error> {
        // A gateway may only have planned its check anew.
        for _ in 0..ROUNDS {
            let record = self.base.store.load(call_id).await.map_err(unavailable)?;
            let Some(record) = record else {
                return Ok(None);
            };
            if seen.is_some_and(|seen| seen != Mark::of_call(&record)) {
                let why = "the call is not as it was shown: look at it again, then decide";
                return Err(ErrorKind::WrongState(why.into()).of_call(call_id));
            }
            let (tool, now) = (self.base.policy_of(&record), self.base.now());
            let moved =
                transition::apply(&self.base, &tool, record, event, now, OnConflict::GiveUp).await;
            match moved.map_err(unavailable)? {
                Moved::Lost(Some(_)) => {}
                moved => return Ok(Some(moved)),
            }
        }
        Err(ErrorKind::JustChanged.of_call(call_id))
    }

    /// Logs a resolution, and lets the sagas go on that waited for the call.
    pub(super) async fn was_resolved(
        &self,
        caller: &Caller,
        record: &Record,
        was: &State,
        reason: &str,
    ) {
        tracing::warn!(
            call_id = %record.intent.call_id,
            trace_id = record.intent.trace_id,
            by = caller.name,
            state = record.state.as_str(),
            "a call was resolved"
        );
        if matches!(was, State::Stuck(_)) {
            self.sagas
                .go_on_after(record, &Actor::Token(&caller.name).to_string(), reason)
                .await;
        }
    }

    /// The result as a duplicate gets it. Nothing is sent.
    ///
    /// # Errors
    /// The caller is no administrator, or the call has no result.
    pub async fn replay_stored(&self, caller: &Caller, call_id: CallId) -> Result<Replay, Error> {
        let record = self.to_replay(caller, call_id).await?;
        match &record.state {
            State::Succeeded(Content::Kept(json)) => {
                let stored = self.shown(&record, json);
                Ok(Replay {
                    call_id,
                    stored,
                    fresh: None,
                    differences: Vec::new(),
                })
            }
            _ => Err(without_result(&record)),
        }
    }

    /// Sends the same request once more, where that has no effect, and compares.
    ///
    /// The stored result stays.
    ///
    /// # Errors
    /// The caller is no administrator, the call has no result, to send it again would not be safe, nothing
    /// may be sent at present, or the tool gave nothing to compare.
    pub async fn replay_verified(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
    ) -> Result<Replay, Error> {
        must_be_admin(caller)?;
        let maker = self.base.store.maker(call_id).await.map_err(unavailable)?;
        let maker = maker.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        let on = (call_id, &maker.tenant[..], &maker.tool[..]);
        let act = Act::on_call(caller, Deed::Verify, on, "");
        let (operator, caller) = (self.clone(), caller.clone());
        let verifying = async move {
            let steps = Steps::default();
            let doing = operator.verify(&caller, call_id, &steps);
            audit::kept_as(&operator.base, act, doing, |done| steps.outcome(done)).await
        };
        self.base.to_its_end(verifying).await
    }

    async fn verify(
        &self,
        caller: &Caller,
        call_id: CallId,
        steps: &Steps,
    ) -> Result<Replay, Error> {
        let of_call = |kind: ErrorKind| kind.of_call(call_id);
        let unavailable = |_| of_call(ErrorKind::StoreUnavailable);
        let record = self.to_replay(caller, call_id).await?;
        let Some(at) = self.base.tool_of(&record) else {
            return Err(of_call(ErrorKind::ReplayUnsafe(
                "the tool is not configured any more",
            )));
        };
        let trace = Trace::of(&record.intent.trace_id, self.base.limits.sample);
        let call = PreparedCall::again(at, &record, trace);
        if self.base.draining.is_cancelled() {
            return Err(of_call(ErrorKind::ShuttingDown));
        }
        self.pauses.know_pauses().await.map_err(unavailable)?;
        if self.pauses.is_paused(&record.intent.tool) {
            return Err(of_call(ErrorKind::ToolPaused));
        }
        if !self.status.readiness().await.reasons.is_empty() {
            return Err(of_call(ErrorKind::StoreUnavailable));
        }
        // As for any further attempt: a frozen session, a tool that keeps failing, a key that stands for another call.
        let permit = self.sender.may_send(&call.at, &record).await;
        let permit = permit.map_err(|blocker| of_call(blocked_by(blocker)))?;
        let holders = self.base.store.holders(&[record.intent.lookup]).await;
        let holders = holders.map_err(unavailable)?;
        if holders
            .first()
            .is_none_or(|holder| holder.record.intent.call_id != call_id)
        {
            return Err(of_call(ErrorKind::ReplayUnsafe(
                "its key does not stand for the call any more",
            )));
        }
        let history = self.base.store.history(call_id, MAX_ENTRIES).await;
        let entries = history
            .map_err(unavailable)?
            .map(|history| history.entries)
            .unwrap_or_default();
        let by_person = entries.iter().any(|entry| entry.event == "resolved");
        let event = Event::ToVerify {
            by: caller.name.clone(),
            by_person,
        };
        let (tool, now) = (&call.at.tool, self.base.now());
        let moved =
            transition::apply(&self.base, tool, record, &event, now, OnConflict::GiveUp).await;
        let record = match moved.map_err(unavailable)? {
            Moved::Written { record, .. } => record,
            Moved::Refused(_, Illegal::ReplayUnsafe(why)) => {
                return Err(of_call(ErrorKind::ReplayUnsafe(why)));
            }
            Moved::Refused(record, _) | Moved::Unchanged(record, _) => {
                return Err(without_result(&record));
            }
            Moved::Lost(_) => return Err(of_call(ErrorKind::JustChanged)),
        };
        steps.made();
        let deadline = Deadline::after(call.at.tool.timeout);
        let attempted = self.sender.attempt(&call, &record, &permit, deadline).await;
        let fresh = fresh_result(&call, &record, attempted.evidence);
        let State::Succeeded(Content::Kept(stored)) = record.state.clone() else {
            return Err(without_result(&record));
        };
        let found = match &fresh {
            Ok(fresh) => Fresh::Compared(differences(&stored, fresh, &call.at.tool.replay_ignore)),
            Err(why) => Fresh::Unclear(why.clone()),
        };
        self.note_verified(record.clone(), caller, &found).await;
        match (fresh, found) {
            (Ok(fresh), Fresh::Compared(differences)) => {
                let (stored, fresh) = (self.shown(&record, &stored), self.shown(&record, &fresh));
                Ok(Replay {
                    call_id,
                    stored,
                    fresh: Some(fresh),
                    differences,
                })
            }
            (Err(why), _) | (_, Fresh::Unclear(why)) => Err(of_call(ErrorKind::WrongState(
                format!("the tool gave nothing to compare: {why}"),
            ))),
        }
    }

    /// A result without the tool's secrets.
    fn shown(&self, record: &Record, json: &Bytes) -> Bytes {
        let at = self.base.tool_at(&record.intent.tool);
        at.map_or_else(hidden, |at| at.shown(json))
    }

    async fn to_replay(&self, caller: &Caller, call_id: CallId) -> Result<Record, Error> {
        must_be_admin(caller)?;
        let record = self.base.store.load(call_id).await;
        let record = record.map_err(unavailable)?;
        record.ok_or_else(|| ErrorKind::UnknownCall.alone())
    }

    /// Notes the result of a verified replay.
    ///
    /// The entry that the request was sent is there already; if this one fails, it stays alone.
    async fn note_verified(&self, record: Record, caller: &Caller, found: &Fresh) {
        let event = Event::Verified {
            by: caller.name.clone(),
            fresh: found.clone(),
        };
        let (tool, now) = (self.base.policy_of(&record), self.base.now());
        let retry = OnConflict::RetryOnLatest;
        drop(transition::apply(&self.base, &tool, record, &event, now, retry).await);
    }
}

fn blocked_by(blocker: CheckBlocker) -> ErrorKind {
    match blocker {
        CheckBlocker::NotWanted => {
            ErrorKind::WrongState("what it belongs to is being undone".into())
        }
        CheckBlocker::BreakerOpen(retry_after) => ErrorKind::BreakerOpen { retry_after },
        CheckBlocker::Frozen => ErrorKind::Refused(Refusal::Frozen),
        CheckBlocker::Store | CheckBlocker::KeyGone | CheckBlocker::Unplaced => {
            ErrorKind::StoreUnavailable
        }
    }
}

/// A result to compare, or why there is none.
fn fresh_result(call: &PreparedCall, record: &Record, evidence: Evidence) -> Result<Bytes, String> {
    match (
        classify(&call.at.tool, &evidence, Sent::of(record)),
        evidence,
    ) {
        ((Outcome::Executed(Content::Kept(json)), _), _) => Ok(json),
        (
            (_, why),
            Evidence::Answer {
                body: Body::Whole(_) | Body::Broken(_),
                status,
                ..
            },
        ) => Err(format!("status {status}: {why}")),
        ((_, why), _) => Err(why),
    }
}

fn without_result(record: &Record) -> Error {
    let why = format!("the call is {} and has no result", record.state.as_str());
    ErrorKind::WrongState(why).of_call(record.intent.call_id)
}
