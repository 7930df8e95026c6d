//! Previews: what a request would meet if it were sent now. Nothing is claimed and nothing is
//! counted.

use std::sync::Arc;
use std::time::Duration;

use super::answer::read;
use super::engine::Engine;
use super::prepared::{PreparedCall, Request};
use super::refusal::{expired, reused};
use crate::core::call::{self, Action, Met};
use crate::core::caller::Caller;
use crate::core::record::{Intent, Record};
use crate::gateway::error::{Error, ErrorKind};
use crate::gateway::trace::RequestSpan;
use crate::gateway::transition;

/// Which call a request is, and how it would be answered.
#[derive(Debug)]
pub struct Preview {
    /// The intent as it would be stored; its call id has no meaning.
    pub intent: Arc<Intent>,
    pub would: Would,
    /// The call that holds the key now, if the caller may read it.
    pub meets: Option<Record>,
}

/// The answer to a request, as far as its key decides it.
///
/// Session, tool and store are not asked whether the call may begin.
#[derive(Debug)]
pub enum Would {
    Run,
    /// The call is running; its result would be waited for.
    Wait,
    /// The stored result would be answered.
    Replay,
    /// This failure would be answered, and nothing would run.
    Refuse(ErrorKind),
}

impl Engine {
    /// Reads a request as a call does, and looks once for a stored call.
    ///
    /// # Errors
    /// Why the request would be refused whatever is there, or the store does not answer.
    pub async fn preview(&self, caller: &Caller, request: Request) -> Result<Preview, Error> {
        let at = self.prepare.at_for(caller, &request)?;
        let call = self
            .prepare
            .prepare(at, caller, request, &RequestSpan::default())
            .await?;
        let intent = &call.intent;
        let with_key = |kind: ErrorKind| Error {
            key: call.told_key.clone(),
            ..kind.alone()
        };
        let holders = self.claims.look_up(&call).await.map_err(with_key)?;
        let prints = self
            .claims
            .compared(&call, call.prints.clone(), &holders)
            .await
            .map_err(with_key)?;
        let now = self.base.now();
        let record = |place: usize| holders.get(place).map(|holder| holder.record.clone());
        let (mut is_expired, mut old) = (false, None);
        let holder = match call::meet(&holders, &call.names, intent, &prints, now) {
            Met::Call(place) => record(place),
            Met::Expired(place) => {
                is_expired = true;
                record(place)
            }
            Met::Free { instead_of, .. } => {
                old = instead_of.first().copied().and_then(record);
                None
            }
        };
        let arrival = PreparedCall {
            prints,
            ..call.clone()
        };
        let next = transition::ask(
            &call.at.tool,
            holder.as_ref().or(old.as_ref()),
            &self.claims.arrival(&arrival),
            now,
        );
        let next = next.map_err(|_| with_key(ErrorKind::StoreUnavailable))?;
        // What is found is the answer; if nothing is, why it is no call today.
        if let Some(complaint) = &call.complaint
            && !is_expired
            && matches!(
                next.action,
                Action::Claim | Action::Run | Action::RefuseReused
            )
        {
            return Err(with_key(complaint.clone()));
        }
        let would = match (next.action, &holder) {
            (_, held) if is_expired => {
                Would::Refuse(expired(intent, &arrival.prints, held.as_ref()))
            }
            (Action::Claim | Action::Run, _) => Would::Run,
            (Action::Wait, _) => Would::Wait,
            (Action::Answer | Action::TakeFingerprint, Some(held)) => {
                match read(
                    &Arc::new(held.clone()),
                    true,
                    Duration::ZERO,
                    self.base.now(),
                ) {
                    Ok(_) => Would::Replay,
                    Err(kind) => Would::Refuse(kind),
                }
            }
            (action @ (Action::RefuseReused | Action::RefuseUnclear), Some(held)) => {
                let reused = reused(&call, held, action == Action::RefuseUnclear);
                Would::Refuse(reused.told_to(caller, &call.at.tool.name))
            }
            (Action::RefuseExpired, held) => {
                Would::Refuse(expired(intent, &arrival.prints, held.as_ref()))
            }
            (Action::RefuseOtherSaga, _) => Would::Refuse(ErrorKind::of_another_saga()),
            (Action::RefuseUnfit(why), _) => Would::Refuse(ErrorKind::InvalidRequest(why.into())),
            // An arrival leads to nothing else.
            _ => return Err(with_key(ErrorKind::StoreUnavailable)),
        };
        let meets = holder.or(old).filter(|held| {
            let intent = &held.intent;
            caller.may_read_call(&intent.tenant, &intent.tool, &intent.made_by)
        });
        Ok(Preview {
            intent: call.intent,
            would,
            meets,
        })
    }
}
