//! What a duplicate would get, and whether the tool would still say the same. The rules are in
//! `core::call::verify`.

use std::sync::Arc;

use bytes::Bytes;

use super::call::Asked;
use super::ledger::{MAX_ENTRIES, hidden};
use super::trace::Trace;
use super::transition::{self, Moved, OnConflict};
use super::{Error, ErrorKind, Gateway};
use crate::core::call::{Event, Illegal};
use crate::core::caller::Caller;
use crate::core::outcome::{Body, Evidence, Outcome, Sent, classify};
use crate::core::record::Content;
use crate::core::record::{CallId, Record, State};
use crate::core::redact;
use crate::core::replay::{Fresh, differences};
use crate::core::session::Refusal;
use crate::core::unknown::Hindrance;
use crate::downstream::Deadline;

/// A stored result, and what the tool says today if it was asked.
#[derive(Debug, Clone)]
pub struct Replay {
    pub call_id: CallId,
    /// One JSON text, as a duplicate gets it.
    pub stored: Bytes,
    pub fresh: Option<Bytes>,
    /// JSON Pointers to where the two differ.
    pub differences: Vec<String>,
}

impl Gateway {
    /// What a duplicate of the call gets. Nothing is sent.
    ///
    /// # Errors
    /// Who asks is no administrator, or the call has no result.
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

    /// Sends the same request once more, where that has no effect, and compares. What the call has
    /// answered stays its result.
    ///
    /// # Errors
    /// Who asks is no administrator, the call has no result, to send it again would not be safe, nothing
    /// may be sent at present, or the tool gave nothing to compare.
    pub async fn replay_verified(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
    ) -> Result<Replay, Error> {
        // In a task of its own: who asked may hang up, and what was sent is followed to its end.
        let (gateway, caller) = (self.clone(), caller.clone());
        let verifying = self
            .tasks
            .spawn(async move { gateway.verify(&caller, call_id).await });
        verifying
            .await
            .unwrap_or_else(|_| Err(ErrorKind::StoreUnavailable.alone()))
    }

    async fn verify(&self, caller: &Caller, call_id: CallId) -> Result<Replay, Error> {
        let of_call = |kind: ErrorKind| Error {
            call_id: Some(call_id),
            ..kind.alone()
        };
        let unavailable = |_| of_call(ErrorKind::StoreUnavailable);
        let record = self.to_replay(caller, call_id).await?;
        let Some(at) = self.tool_at(&record.intent.tool) else {
            return Err(of_call(ErrorKind::ReplayUnsafe(
                "the tool is not configured any more",
            )));
        };
        let trace = Trace::of(&record.intent.trace_id, self.limits.sample);
        let asked = Asked::again(at, &record, trace);
        if self.draining.is_cancelled() {
            return Err(of_call(ErrorKind::ShuttingDown));
        }
        self.know_pauses().await.map_err(unavailable)?;
        if self.is_paused(&record.intent.tool) {
            return Err(of_call(ErrorKind::ToolPaused));
        }
        if !self.readiness().await.reasons.is_empty() {
            return Err(of_call(ErrorKind::StoreUnavailable));
        }
        // As for any further attempt: a frozen session, a tool that keeps failing, a key that stands for another call.
        let permit = self.may_send(&asked.at, &record).await;
        let permit = permit.map_err(|hindrance| of_call(in_the_way(hindrance)))?;
        let holders = self.store.holders(&[record.intent.lookup]).await;
        let holders = self
            .counted_for(&record.intent, "holders", holders)
            .map_err(unavailable)?;
        if holders
            .first()
            .is_none_or(|holder| holder.record.intent.call_id != call_id)
        {
            return Err(of_call(ErrorKind::ReplayUnsafe(
                "its key does not stand for the call any more",
            )));
        }
        let history = self.counted("history", self.store.history(call_id, MAX_ENTRIES).await);
        let entries = history
            .map_err(unavailable)?
            .map(|history| history.entries)
            .unwrap_or_default();
        let by_person = entries.iter().any(|entry| entry.event == "resolved");
        let event = Event::ToVerify {
            by: caller.name.clone(),
            by_person,
        };
        let (tool, now) = (&asked.at.tool, self.now());
        let moved = transition::apply(self, tool, record, &event, now, OnConflict::GiveUp).await;
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
        let deadline = Deadline::after(asked.at.tool.timeout);
        let attempted = self.attempt(&asked, &record, &permit, deadline).await;
        let fresh = fresh_result(&asked, &record, attempted.evidence);
        let State::Succeeded(Content::Kept(stored)) = record.state.clone() else {
            return Err(without_result(&record));
        };
        let found = match &fresh {
            Ok(fresh) => Fresh::Compared(differences(&stored, fresh, &asked.at.tool.replay_ignore)),
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

    /// A result of the call's tool without what is secret in it.
    fn shown(&self, record: &Record, json: &Bytes) -> Bytes {
        let at = self.tool_at(&record.intent.tool);
        at.map_or_else(hidden, |at| redact::mask(json, &at.tool.redact.result))
    }

    async fn to_replay(&self, caller: &Caller, call_id: CallId) -> Result<Record, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        let record = self.counted("load", self.store.load(call_id).await);
        let record = record.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        record.ok_or_else(|| ErrorKind::UnknownCall.alone())
    }

    /// The entry that the request was sent is there already; what came of it may be missing.
    async fn note_verified(&self, record: Record, caller: &Caller, found: &Fresh) {
        let event = Event::Verified {
            by: caller.name.clone(),
            fresh: found.clone(),
        };
        let (tool, now) = (self.policy_of(&record), self.now());
        let retry = OnConflict::RetryOnLatest;
        drop(transition::apply(self, &tool, record, &event, now, retry).await);
    }
}

fn in_the_way(hindrance: Hindrance) -> ErrorKind {
    match hindrance {
        Hindrance::NotWanted => ErrorKind::WrongState("what it belongs to is being undone".into()),
        Hindrance::Resting(retry_after) => ErrorKind::ToolResting { retry_after },
        Hindrance::Frozen => ErrorKind::Refused(Refusal::Frozen),
        Hindrance::Store | Hindrance::KeyGone => ErrorKind::StoreUnavailable,
    }
}

/// A result to compare with, or why there is none.
fn fresh_result(asked: &Asked, record: &Record, evidence: Evidence) -> Result<Bytes, String> {
    match (
        classify(&asked.at.tool, &evidence, Sent::of(record)),
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
    Error {
        call_id: Some(record.intent.call_id),
        ..ErrorKind::WrongState(why).alone()
    }
}
