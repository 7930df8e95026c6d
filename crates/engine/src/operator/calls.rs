//! Acts of operators on single calls. What such an act changes is decided by `core::call`.

use std::sync::Arc;

use super::ledger::Ledger;
use crate::audit;
use crate::base::Base;
use crate::calls::Sender;
use crate::error::{Error, ErrorKind, unavailable};
use crate::pauses::Pauses;
use crate::recovery::{Probed, Rechecks};
use crate::sagas::Sagas;
use crate::status::Status;
use crate::transition::{self, Moved, OnConflict, ROUNDS};
use oncegate_rules::actor::By;
use oncegate_rules::audit::{Act, Deed};
use oncegate_rules::call::{Event, Illegal};
use oncegate_rules::caller::Caller;
use oncegate_rules::many::Mark;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_rules::unknown::Resolution;

/// What an operator does to a call.
#[derive(Debug, Clone)]
pub enum CallAct {
    /// Settle it. Its duplicates get the new outcome.
    Resolve(Resolution),
    /// Ask the tool whether it knows the key, and settle the call if the answer proves anything.
    Probe,
}

impl CallAct {
    pub(super) fn deed(&self) -> Deed {
        match self {
            Self::Resolve(_) => Deed::Resolve,
            Self::Probe => Deed::Probe,
        }
    }

    pub(super) fn event(&self, by: &str, reason: &str) -> Event {
        let by = By::token(by, reason);
        match self {
            Self::Probe => Event::ProbeAsked(by),
            Self::Resolve(resolution) => Event::Resolved {
                by,
                resolution: resolution.clone(),
            },
        }
    }
}

/// The result of an act on one call.
pub(super) enum Acted {
    /// `told`: the answer of the tool, if it proved nothing.
    Done {
        record: Record,
        told: Option<String>,
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
        seen: Option<Mark>,
    ) -> Result<Record, Error> {
        let (operator, caller, reason) = (self.clone(), caller.clone(), reason.to_owned());
        let acting = async move {
            operator.base.admit_person(&caller).await?;
            let audited = operator.audited(&caller, act.deed(), call_id, &reason);
            let audited = audited.await?;
            let doing = async {
                let acted = operator.try_on_call(&caller, &act, call_id, &reason, seen);
                operator.answer(&act, call_id, acted.await?)
            };
            audit::kept(&operator.base, audited, doing).await
        };
        self.base.to_its_end(acting).await
    }

    /// An act on a stored call, as the audit keeps it.
    pub(super) async fn audited(
        &self,
        caller: &Caller,
        deed: Deed,
        call_id: CallId,
        reason: &str,
    ) -> Result<Act, Error> {
        let maker = self.base.store.maker(call_id).await.map_err(unavailable)?;
        let maker = maker.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        let on = (call_id, &maker.tenant[..], &maker.tool[..]);
        Ok(Act::on_call(caller, deed, on, reason))
    }

    /// Acts on a call, unless it has changed since it was `seen`.
    pub(super) async fn try_on_call(
        &self,
        caller: &Caller,
        act: &CallAct,
        call_id: CallId,
        reason: &str,
        seen: Option<Mark>,
    ) -> Result<Acted, Error> {
        // Not every change of a call changes its mark: a gateway may only have planned its next check anew.
        for _ in 0..ROUNDS {
            self.base.must_know_all_data().await?;
            let record = self.base.store.load(call_id).await.map_err(unavailable)?;
            let Some(record) = record else {
                return Ok(Acted::Gone);
            };
            if seen.is_some_and(|seen| seen != Mark::of_call(&record)) {
                return Ok(Acted::Changed(record));
            }
            let moved = match act {
                CallAct::Probe => {
                    let probed = self.rechecks.probe_now(record, &caller.name, reason).await;
                    match probed.map_err(unavailable)? {
                        Probed::Asked { record, told } => {
                            let is_unknown = matches!(record.state, State::Unknown(_));
                            let told = is_unknown.then_some(told);
                            return Ok(Acted::Done { record, told });
                        }
                        Probed::Not(moved) => moved,
                    }
                }
                CallAct::Resolve(_) => {
                    let (tool, now) = (self.base.policy_of(&record), self.base.now());
                    let event = act.event(&caller.name, reason);
                    let give_up = OnConflict::GiveUp;
                    let moved =
                        transition::apply(&self.base, &tool, record, &event, now, give_up).await;
                    match moved.map_err(unavailable)? {
                        Moved::Written { record, was, .. } => {
                            self.was_resolved(caller, &record, &was, reason).await;
                            return Ok(Acted::Done { record, told: None });
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
                (CallAct::Probe, illegal) => illegal.to_string(),
                (CallAct::Resolve(_), Illegal::MayStillRun) => {
                    let until = record.attempt.lease_until;
                    format!("its request may still be executed until {until:.0}")
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
