//! A store that has lost data opens again only when a person accepts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Error, ErrorKind, Gateway};
use crate::core::call::{self, Event};
use crate::core::caller::Caller;
use crate::core::record::State;
use crate::crash;
use crate::store::{self, Replaced};

/// What a person is told who has accepted a loss.
pub const AFTER_LOSS: &str = "the store may have forgotten what persons have done: look at sessions that were frozen or \
                              unlocked and at tools that were paused, and freeze and pause them again";

/// One acceptance that is under way. It is counted until this is dropped, also after a panic.
struct Acceptance<'a>(&'a AtomicUsize);

impl<'a> Acceptance<'a> {
    fn begin(gateway: &'a Gateway) -> Self {
        gateway.acceptances.fetch_add(1, Ordering::SeqCst);
        Self(&gateway.acceptances)
    }
}

impl Drop for Acceptance<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gateway {
    /// Accepts that the store has lost its newest writes. First every call about which the store may
    /// now be wrong in the dangerous direction becomes unknown: one that runs may have ended, and one
    /// that has failed may have run again. Then the store counts as whole.
    ///
    /// Answers how many calls became unknown. What the store has forgotten altogether nobody can mark.
    ///
    /// # Errors
    /// Who asks is no administrator, nothing is lost, or the store cannot be written.
    pub async fn accept_loss(self: &Arc<Self>, caller: Caller, reason: String) -> Result<usize, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        // In a task of its own: who asked may hang up, and half of it is of no use.
        let gateway = self.clone();
        let accepting = self.tasks.spawn(async move {
            let _counted = Acceptance::begin(&gateway);
            gateway.mark_and_accept(&caller, &reason).await
        });
        accepting.await.unwrap_or_else(|_| Err(ErrorKind::StoreUnavailable.alone()))
    }

    async fn mark_and_accept(&self, caller: &Caller, reason: &str) -> Result<usize, Error> {
        let readiness = self.store.readiness().await;
        if readiness.durability.is_none() {
            return Err(ErrorKind::StoreUnavailable.alone());
        }
        if !readiness.reasons.iter().any(|reason| reason.code == store::LOST_DATA) {
            return Err(ErrorKind::WrongState("the store has not lost any data".into()).alone());
        }
        let unavailable = |_| ErrorKind::StoreUnavailable.alone();
        let doubtful = self.counted("doubtful", self.store.doubtful().await).map_err(unavailable)?;
        let mut marked = 0;
        for call_id in doubtful {
            let event = Event::StoreLost { by: caller.name.clone(), reason: reason.to_owned() };
            let record = self.counted("load", self.store.load(call_id).await).map_err(unavailable)?;
            let Some(record) = record else { continue };
            let Ok(next) = call::next(&self.policy_of(&record), Some(&record), &event, self.now()) else {
                continue;
            };
            let Some(change) = next.change else { continue };
            let replaced = self.counted("replace", self.store.replace(&change, &record).await);
            let is_done = matches!(replaced.map_err(unavailable)?, Replaced::Done(_));
            // One that was unknown before is only in doubt for longer.
            marked += usize::from(is_done && !matches!(record.state, State::Unknown(_)));
        }
        let refused = |error| match error {
            store::Error::Refused(why) => ErrorKind::WrongState(why).alone(),
            error @ (store::Error::Ambiguous(_) | store::Error::Unreadable(_)) => unavailable(error),
        };
        let prepared = self.store.prepare_acceptance(reason).await;
        self.counted("prepare_acceptance", prepared).map_err(refused)?;
        crash::point("loss_prepared");
        // Before anybody may go on with them. If it breaks off here, the store stays closed, and the loss is
        // accepted once more.
        self.stop_sagas(&caller.name, reason).await.map_err(unavailable)?;
        crash::point("loss_stopped");
        self.counted("accept_loss", self.store.accept_loss(reason).await).map_err(refused)?;
        tracing::warn!(by = caller.name, reason, marked, "the loss of data is accepted; {AFTER_LOSS}");
        Ok(marked)
    }
}
