//! Acts of operators on single calls. What such an act changes is decided by `rules::call`.

use std::sync::Arc;

use super::ledger::Ledger;
use crate::audit;
use crate::base::Base;
use crate::calls::{Sender, ended_waiting};
use crate::error::{Error, ErrorKind, unavailable};
use crate::recovery::{Probed, Rechecks};
use crate::sagas::Sagas;
use crate::status::Status;
use crate::tools::pauses::Pauses;
use crate::transition::{self, Moved, OnConflict, ROUNDS};
use oncegate_rules::actor::By;
use oncegate_rules::audit::{Act, Action};
use oncegate_rules::call::{Declined, Event, Illegal};
use oncegate_rules::caller::Caller;
use oncegate_rules::many::SeenVersion;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_rules::unknown::Resolution;

/// What an operator does to a call.
#[derive(Debug, Clone)]
pub enum CallAct {
    /// Settle it. Its duplicates get the new outcome.
    Resolve(Resolution),
    /// Ask the tool whether it knows the key, and settle the call if the answer proves anything.
    Probe,
    /// Decline it, if it waits for approval: it is never sent. An approver's act.
    Decline { tell: String },
}

impl CallAct {
    pub(super) fn action(&self) -> Action {
        match self {
            Self::Resolve(_) => Action::Resolve,
            Self::Probe => Action::Probe,
            Self::Decline { .. } => Action::Decline,
        }
    }

    pub(super) fn event(&self, by: &str, reason: &str) -> Event {
        match self {
            Self::Probe => Event::ProbeAsked(By::token(by, reason)),
            Self::Resolve(resolution) => Event::Resolved {
                by: By::token(by, reason),
                resolution: resolution.clone(),
            },
            Self::Decline { tell } => Event::Declined(Declined {
                by: by.to_owned(),
                reason: reason.to_owned(),
                tell: tell.clone(),
            }),
        }
    }

    /// Whether this caller may do it to calls of a tenant and a tool. Administrators may do the others to all.
    pub(super) fn may_do(&self, caller: &Caller, tenant: &str, tool: &str) -> bool {
        match self {
            Self::Decline { .. } => caller.may_approve(tenant, tool),
            Self::Resolve(_) | Self::Probe => caller.is_admin(),
        }
    }
}

/// The result of an act on one call.
pub(super) enum Acted {
    /// `answer`: the answer of the tool, if it proved nothing.
    Done {
        record: Record,
        answer: Option<String>,
    },
    /// The call has changed since the operator saw it.
    Changed(Record),
    Refused(Record, Illegal),
    /// No such call is stored.
    Gone,
    /// Another writer was faster in every round.
    KeepsChanging,
}

/// The acts of operators on calls, and on many calls or sagas at once.
pub struct Operator {
    pub(crate) base: Arc<Base>,
    pub(crate) pauses: Arc<Pauses>,
    pub(crate) status: Arc<Status>,
    pub(crate) sender: Arc<Sender>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) sagas: Arc<Sagas>,
    pub(crate) rechecks: Arc<Rechecks>,
}

impl Operator {
    /// Settles a call, or asks its tool. No call is sent again.
    ///
    /// `seen`: the call as the operator saw it, if it must not have changed since.
    ///
    /// # Errors
    /// The caller is not an administrator, the call is neither unknown nor stuck, it has changed since it was `seen`,
    /// its tool cannot be asked, or it is to count as failed while its request may still be under way.
    pub async fn act_on_call(
        self: &Arc<Self>,
        caller: &Caller,
        act: CallAct,
        call_id: CallId,
        reason: &str,
        seen: Option<SeenVersion>,
    ) -> Result<Record, Error> {
        let (operator, caller, reason) = (self.clone(), caller.clone(), reason.to_owned());
        let acting = async move {
            operator.base.admit_operator(&caller).await?;
            let audited = operator.audited(&caller, act.action(), call_id, &reason);
            let audited = audited.await?;
            let doing = async {
                let acted = operator.try_on_call(&caller, &act, call_id, &reason, seen);
                operator.answer(&act, call_id, acted.await?)
            };
            audit::recorded(&operator.base, audited, doing).await
        };
        self.base.to_its_end(acting).await
    }

    /// An act on a stored call, as the audit keeps it.
    pub(super) async fn audited(
        &self,
        caller: &Caller,
        action: Action,
        call_id: CallId,
        reason: &str,
    ) -> Result<Act, Error> {
        let maker = self.base.store.maker(call_id).await.map_err(unavailable)?;
        let maker = maker.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        let on = (call_id, &maker.tenant[..], &maker.tool[..]);
        Ok(Act::on_call(caller, action, on, reason))
    }

    /// Acts on a call, unless it has changed since it was `seen`.
    pub(super) async fn try_on_call(
        &self,
        caller: &Caller,
        act: &CallAct,
        call_id: CallId,
        reason: &str,
        seen: Option<SeenVersion>,
    ) -> Result<Acted, Error> {
        // Not every change of a call changes what was seen: a gateway may only have planned its next check anew.
        for _ in 0..ROUNDS {
            self.base.must_know_all_data().await?;
            let record = self.base.store.load(call_id).await.map_err(unavailable)?;
            let Some(record) = record else {
                return Ok(Acted::Gone);
            };
            if seen.is_some_and(|seen| seen != SeenVersion::of_call(&record)) {
                return Ok(Acted::Changed(record));
            }
            if !act.may_do(caller, &record.intent.tenant, &record.intent.tool) {
                return Ok(Acted::Refused(record, Illegal::NotAnApprover));
            }
            let moved = match act {
                CallAct::Probe => {
                    let probed = self.rechecks.probe_now(record, &caller.name, reason).await;
                    match probed.map_err(unavailable)? {
                        Probed::Asked { record, answer } => {
                            let is_unknown = matches!(record.state, State::Unknown(_));
                            let answer = is_unknown.then_some(answer);
                            return Ok(Acted::Done { record, answer });
                        }
                        Probed::Not(moved) => moved,
                    }
                }
                CallAct::Resolve(_) | CallAct::Decline { .. } => {
                    let (tool, now) = (self.base.policy_of(&record), self.base.now());
                    let event = act.event(&caller.name, reason);
                    let give_up = OnConflict::GiveUp;
                    let moved =
                        transition::apply(&self.base, &tool, record, &event, now, give_up).await;
                    match moved.map_err(unavailable)? {
                        Moved::Written { record, was, .. } => {
                            match act {
                                CallAct::Decline { .. } => {
                                    ended_waiting(&self.base.metrics, &record);
                                }
                                _ => self.was_resolved(caller, &record, &was, reason).await,
                            }
                            return Ok(Acted::Done {
                                record,
                                answer: None,
                            });
                        }
                        moved => moved,
                    }
                }
            };
            if let Moved::Refused(record, illegal) = moved {
                return Ok(Acted::Refused(record, illegal));
            }
        }
        Ok(Acted::KeepsChanging)
    }

    /// Logs a resolution, and lets the sagas go on that waited for the call.
    async fn was_resolved(&self, caller: &Caller, record: &Record, was: &State, reason: &str) {
        tracing::warn!(
            call_id = %record.intent.call_id,
            trace_id = record.intent.trace_id,
            by = caller.name,
            state = record.state.as_str(),
            "a call was resolved"
        );
        if matches!(was, State::Stuck(_)) {
            let by = By::token(&caller.name, reason);
            self.sagas.go_on_after(record, &by).await;
        }
    }

    /// The call as the operator gets it, or why nothing was done.
    fn answer(&self, act: &CallAct, call_id: CallId, acted: Acted) -> Result<Record, Error> {
        let why = match acted {
            Acted::Done { mut record, .. } => {
                self.ledger.mask(&mut record);
                return Ok(record);
            }
            Acted::Gone => return Err(ErrorKind::UnknownCall.alone()),
            Acted::KeepsChanging => return Err(ErrorKind::JustChanged.of_call(call_id)),
            Acted::Changed(_) => {
                "the call is not as it was shown: look at it again, then decide".to_owned()
            }
            Acted::Refused(record, illegal) => match (act, illegal) {
                (CallAct::Probe | CallAct::Decline { .. }, illegal) => illegal.to_string(),
                (CallAct::Resolve(_), Illegal::MayStillRun) => {
                    let until = record.attempt.lease_until;
                    match until > self.base.now() {
                        true => format!("its request may still be executed until {until:.0}"),
                        false => {
                            "its server still works on it as a task, and is asked again".into()
                        }
                    }
                }
                (CallAct::Resolve(_), _) => {
                    let state = record.state.as_str();
                    format!("the call is {state}, not unknown or stuck")
                }
            },
        };
        Err(ErrorKind::WrongState(why).of_call(call_id))
    }
}
