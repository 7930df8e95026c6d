//! Shows a stored result again, or sends its request once more to compare. The rules are in `rules::call::verify`.

use std::sync::Arc;

use bytes::Bytes;

use super::calls::Operator;
use super::ledger::MAX_ENTRIES;
use crate::audit::{self, Steps};
use crate::calls::PreparedCall;
use crate::error::{Error, ErrorKind, must_be_admin, unavailable};
use crate::transition::{self, Moved, OnConflict};
use oncegate_rules::audit::Action;
use oncegate_rules::call::{Event, Illegal};
use oncegate_rules::caller::Caller;
use oncegate_rules::outcome::{Body, Evidence, Outcome, Sent, classify};
use oncegate_rules::record::{CallId, Content, Record, State};
use oncegate_rules::replay::{Fresh, differences};
use oncegate_rules::session::Refusal;
use oncegate_rules::unknown::CheckBlocker;
use oncegate_tools::Deadline;

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

impl Operator {
    /// The result as a duplicate gets it. Nothing is sent.
    ///
    /// # Errors
    /// The caller is not an administrator, or the call has no result.
    pub async fn replay_stored(&self, caller: &Caller, call_id: CallId) -> Result<Replay, Error> {
        must_be_admin(caller)?;
        let record = self.stored_call(call_id).await?;
        let State::Succeeded(Content::Stored(json)) = &record.state else {
            return Err(without_result(&record).of_call(call_id));
        };
        Ok(Replay {
            call_id,
            stored: self.ledger.without_secrets(&record.intent.tool, json),
            fresh: None,
            differences: Vec::new(),
        })
    }

    /// Sends the same request once more, where that has no effect, and compares the results.
    ///
    /// The stored result stays.
    ///
    /// # Errors
    /// The caller is not an administrator, the call has no result, to send it again would not be safe, nothing
    /// may be sent at present, or the tool gave nothing to compare.
    pub async fn replay_verified(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
    ) -> Result<Replay, Error> {
        must_be_admin(caller)?;
        let act = self.audited(caller, Action::Verify, call_id, "").await?;
        let (operator, caller) = (self.clone(), caller.clone());
        let verifying = async move {
            let steps = Steps::default();
            let doing = async {
                let record = operator.stored_call(call_id).await?;
                let verified = operator.verify(&caller, record, &steps).await;
                verified.map_err(|kind| kind.of_call(call_id))
            };
            audit::recorded_as(&operator.base, act, doing, |done| steps.outcome(done)).await
        };
        self.base.to_its_end(verifying).await
    }

    async fn verify(
        &self,
        caller: &Caller,
        record: Record,
        steps: &Steps,
    ) -> Result<Replay, ErrorKind> {
        let unavailable = |_| ErrorKind::StoreUnavailable;
        let call_id = record.intent.call_id;
        if record.proposal.is_some() {
            return Err(ErrorKind::ReplayUnsafe(
                "an approver has approved one sending of it",
            ));
        }
        let at = self.base.tool_of(&record);
        let at = at.ok_or(ErrorKind::ReplayUnsafe(
            "the tool is not configured any more",
        ))?;
        let call = PreparedCall::again(at, &record, self.base.limits.sample);
        if self.base.draining.is_cancelled() {
            return Err(ErrorKind::ShuttingDown);
        }
        self.pauses.know_pauses().await.map_err(unavailable)?;
        if self.pauses.is_paused(&record.intent.tool) {
            return Err(ErrorKind::ToolPaused);
        }
        if !self.status.readiness().await.reasons.is_empty() {
            return Err(ErrorKind::StoreUnavailable);
        }
        // What blocks any further attempt blocks this one: a frozen session, an open breaker, a key that now stands for
        // another call.
        let permit = self.sender.may_send(&call.at, &record).await;
        let permit = permit.map_err(blocked_by)?;
        let holders = self.base.store.holders(&[record.intent.lookup]).await;
        let holders = holders.map_err(unavailable)?;
        let holder = holders.first().map(|holder| holder.record.intent.call_id);
        if holder != Some(call_id) {
            return Err(ErrorKind::ReplayUnsafe(
                "its key does not stand for the call any more",
            ));
        }
        let history = self.base.store.history(call_id, MAX_ENTRIES).await;
        let history = history.map_err(unavailable)?;
        let mut entries = history.iter().flat_map(|history| &history.entries);
        let event = Event::ToVerify {
            by: caller.name.clone(),
            by_operator: entries.any(|entry| entry.event == "resolved"),
        };
        let (tool, now) = (&call.at.tool, self.base.now());
        let moved =
            transition::apply(&self.base, tool, record, &event, now, OnConflict::GiveUp).await;
        let record = match moved.map_err(unavailable)? {
            Moved::Written { record, .. } => record,
            Moved::Refused(_, Illegal::ReplayUnsafe(why)) => {
                return Err(ErrorKind::ReplayUnsafe(why));
            }
            Moved::Refused(record, _) | Moved::Unchanged(record, _) => {
                return Err(without_result(&record));
            }
            Moved::Lost(_) => return Err(ErrorKind::JustChanged),
        };
        steps.made();
        let deadline = Deadline::after(tool.timeout);
        let attempted = self
            .sender
            .attempt(&call, &record, &permit, deadline, false)
            .await;
        let State::Succeeded(Content::Stored(stored)) = &record.state else {
            return Err(without_result(&record));
        };
        let compared = fresh_result(&call, &record, attempted.evidence)
            .map(|fresh| (differences(stored, &fresh, &tool.replay_ignore), fresh));
        let event = Event::Verified {
            by: caller.name.clone(),
            fresh: match &compared {
                Ok((differences, _)) => Fresh::Compared(differences.clone()),
                Err(why) => Fresh::Unclear(why.clone()),
            },
        };
        let (policy, now) = (self.base.policy_of(&record), self.base.now());
        let retry = OnConflict::RetryOnLatest;
        // That the request was sent is written already. If this second entry fails, the first stays alone.
        drop(transition::apply(&self.base, &policy, record.clone(), &event, now, retry).await);
        let (differences, fresh) = compared.map_err(|why| {
            ErrorKind::WrongState(format!("the tool gave nothing to compare: {why}"))
        })?;
        let shown = |json| self.ledger.without_secrets(&record.intent.tool, json);
        Ok(Replay {
            call_id,
            stored: shown(stored),
            fresh: Some(shown(&fresh)),
            differences,
        })
    }

    async fn stored_call(&self, call_id: CallId) -> Result<Record, Error> {
        let record = self.base.store.load(call_id).await.map_err(unavailable)?;
        record.ok_or_else(|| ErrorKind::UnknownCall.alone())
    }
}

fn blocked_by(blocker: CheckBlocker) -> ErrorKind {
    match blocker {
        CheckBlocker::NotWanted => {
            ErrorKind::WrongState("what it belongs to is being undone".into())
        }
        CheckBlocker::NotAsApproved => {
            ErrorKind::WrongState("what would be sent now is not what was approved".into())
        }
        CheckBlocker::BreakerOpen(retry_after) => ErrorKind::BreakerOpen { retry_after },
        CheckBlocker::Frozen => ErrorKind::Refused(Refusal::Frozen),
        CheckBlocker::Store | CheckBlocker::KeyGone | CheckBlocker::NoRule => {
            ErrorKind::StoreUnavailable
        }
    }
}

/// A result to compare, or why there is none.
fn fresh_result(call: &PreparedCall, record: &Record, evidence: Evidence) -> Result<Bytes, String> {
    let (outcome, why) = classify(&call.at.tool, &evidence, Sent::of(record));
    match (outcome, evidence) {
        (Outcome::Executed(Content::Stored(json)), _) => Ok(json),
        (
            _,
            Evidence::Answer {
                body: Body::Whole(_) | Body::Broken(_),
                status,
                ..
            },
        ) => Err(format!("status {status}: {why}")),
        _ => Err(why),
    }
}

fn without_result(record: &Record) -> ErrorKind {
    let state = record.state.as_str();
    ErrorKind::WrongState(format!("the call is {state} and has no result"))
}
