//! Approve, decline and withdraw. What each does to a call is decided by `rules::call`.

use std::sync::Arc;

use super::{Approvals, apply};
use crate::audit;
use crate::calls::{ApprovedCalls, ended_waiting};
use crate::error::{Error, ErrorKind, unavailable};
use crate::transition::{Moved, ROUNDS};
use oncegate_hooks::crash;
use oncegate_rules::actor::By;
use oncegate_rules::approval::Digest;
use oncegate_rules::audit::{Act, Action};
use oncegate_rules::call::{Approved, Declined, Event, Illegal};
use oncegate_rules::caller::Caller;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_rules::session::{Refusal, SessionId};

impl Approvals {
    /// Approves a call as it was `seen`. Once it has all of its approvals it begins.
    ///
    /// The same approval again changes nothing.
    ///
    /// # Errors
    /// The caller may not approve it; it does not wait any more; it would not be sent as it was seen; or its tool is
    /// paused or its session is frozen.
    pub async fn approve(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
        seen: Digest,
        reason: &str,
    ) -> Result<Record, Error> {
        let (own, caller, reason) = (self.clone(), caller.clone(), reason.to_owned());
        let acting = async move {
            let record = own.for_approver(&caller, call_id).await?;
            let act = audited(&caller, Action::Approve, &record, &reason);
            let doing = own.try_to_approve(&caller, call_id, seen, &reason);
            audit::recorded(&own.base, act, doing).await
        };
        self.base.to_its_end(acting).await
    }

    /// Declines a call: it is never sent. `tell`: what the agent is told.
    ///
    /// # Errors
    /// The caller may not decide about it, or it does not wait any more.
    pub async fn decline(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
        tell: &str,
    ) -> Result<Record, Error> {
        let event = Event::Declined(Declined {
            by: caller.name.clone(),
            reason: reason.to_owned(),
            tell: tell.to_owned(),
        });
        let (own, caller, reason) = (self.clone(), caller.clone(), reason.to_owned());
        let acting = async move {
            let record = own.for_approver(&caller, call_id).await?;
            let act = audited(&caller, Action::Decline, &record, &reason);
            audit::recorded(&own.base, act, own.end(call_id, &event)).await
        };
        self.base.to_its_end(acting).await
    }

    /// Takes a call back that was not sent.
    ///
    /// # Errors
    /// Neither made the caller's token the call, nor is the caller an administrator; or the call does not wait any more.
    pub async fn withdraw(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
    ) -> Result<Record, Error> {
        let (own, caller) = (self.clone(), caller.clone());
        let acting = async move {
            let maker = own.base.store.maker(call_id).await.map_err(unavailable)?;
            let is_own = maker.is_some_and(|by| {
                caller.is_admin() || by.tenant == caller.tenant && by.token == caller.name
            });
            if !is_own {
                return Err(ErrorKind::UnknownCall.of_call(call_id));
            }
            let event = Event::Withdrawn(By::token(&caller.name, ""));
            own.end(call_id, &event).await
        };
        self.base.to_its_end(acting).await
    }

    /// A stored call that this caller may decide about.
    async fn for_approver(&self, caller: &Caller, call_id: CallId) -> Result<Record, Error> {
        let record = self.record_for(caller, call_id).await?;
        let intent = &record.intent;
        if !caller.may_approve(&intent.tenant, &intent.tool) {
            return Err(ErrorKind::Forbidden.of_call(call_id));
        }
        Ok(record)
    }

    async fn try_to_approve(
        &self,
        caller: &Caller,
        call_id: CallId,
        seen: Digest,
        reason: &str,
    ) -> Result<Record, Error> {
        for _ in 0..ROUNDS {
            let record = self.waiting(call_id).await?;
            self.must_be_free(&record).await?;
            let at = self.base.tool_of(&record);
            let (shown, _) = self.built(&record).map_err(|why| {
                let why = format!("the call cannot be sent: {why}");
                ErrorKind::WrongState(why).of_call(call_id)
            })?;
            let event = Event::Approved(Approved {
                by: caller.name.clone(),
                reason: reason.to_owned(),
                seen,
                shown,
            });
            let moved = apply(&self.base, at.as_deref(), record, &event).await;
            match moved.map_err(unavailable)? {
                Moved::Written { record, .. } => {
                    if record.state == State::Approved {
                        ended_waiting(&self.base.metrics, &record);
                        crash::point("approved");
                        ApprovedCalls::of(&self.engine).begin_soon(record.clone());
                    }
                    return Ok(self.masked(record));
                }
                Moved::Unchanged(record, _) => return Ok(self.masked(record)),
                Moved::Refused(record, illegal) => return Err(refused(&record, illegal)),
                Moved::Lost(_) => {}
            }
        }
        Err(ErrorKind::JustChanged.of_call(call_id))
    }

    /// Ends the wait of a call by this event.
    async fn end(&self, call_id: CallId, event: &Event) -> Result<Record, Error> {
        for _ in 0..ROUNDS {
            let record = self.waiting(call_id).await?;
            let moved = apply(&self.base, None, record, event).await;
            match moved.map_err(unavailable)? {
                Moved::Written { record, .. } => {
                    ended_waiting(&self.base.metrics, &record);
                    return Ok(self.masked(record));
                }
                Moved::Unchanged(record, _) => return Ok(self.masked(record)),
                Moved::Refused(record, illegal) => return Err(refused(&record, illegal)),
                Moved::Lost(_) => {}
            }
        }
        Err(ErrorKind::JustChanged.of_call(call_id))
    }

    /// The call as it is stored now, in a store that is known to be whole.
    async fn waiting(&self, call_id: CallId) -> Result<Record, Error> {
        self.base.must_know_all_data().await?;
        let record = self.base.store.load(call_id).await.map_err(unavailable)?;
        record.ok_or_else(|| ErrorKind::UnknownCall.of_call(call_id))
    }

    /// Refuses to approve what an operator has stopped, and what its saga does not take any more.
    async fn must_be_free(&self, record: &Record) -> Result<(), Error> {
        let intent = &record.intent;
        if record.state != State::Proposed {
            return Ok(());
        }
        self.pauses.know_pauses().await.map_err(unavailable)?;
        if self.pauses.is_paused(&intent.tool) {
            return Err(ErrorKind::ToolPaused.of_call(intent.call_id));
        }
        let session = self.base.store.session(&SessionId::of(intent)).await;
        if session.map_err(unavailable)?.frozen {
            return Err(ErrorKind::Refused(Refusal::Frozen).of_call(intent.call_id));
        }
        match self.engine.sagas.is_open_for(intent).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let why = "its saga is closed, so it is not sent any more".to_owned();
                Err(ErrorKind::WrongState(why).of_call(intent.call_id))
            }
            Err(_) => Err(unavailable(())),
        }
    }
}

fn audited(caller: &Caller, action: Action, record: &Record, reason: &str) -> Act {
    let intent = &record.intent;
    let on = (intent.call_id, &intent.tenant[..], &intent.tool[..]);
    Act::on_call(caller, action, on, reason)
}

/// Why a decision does not count.
fn refused(record: &Record, illegal: Illegal) -> Error {
    let kind = match illegal {
        Illegal::OwnCall | Illegal::NotAnApprover => ErrorKind::Forbidden,
        Illegal::NotConfirmed => ErrorKind::NotAsShown,
        Illegal::ApprovalOver => {
            ErrorKind::WrongState("the time to decide about the call is over".into())
        }
        _ => {
            let state = record.state.as_str();
            ErrorKind::WrongState(format!("the call is {state}, and waits for no approval"))
        }
    };
    kind.of_call(record.intent.call_id)
}
