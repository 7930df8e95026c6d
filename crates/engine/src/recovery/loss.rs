//! Accepting a loss of data: only an operator opens the store again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use jiff::Timestamp;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, timeout_at};

use super::acceptance::{Accepted, Progress};
use crate::audit::{self, Steps};
use crate::base::Base;
use crate::error::{Error, ErrorKind, must_be_admin, of_store, unavailable};
use crate::sagas::SagaRegistry;
use crate::secret::KnownSecrets;
use crate::transition::{self, Moved, OnConflict};
use oncegate_hooks::crash;
use oncegate_rules::actor::By;
use oncegate_rules::audit::{Act, Action, Target};
use oncegate_rules::call::Event;
use oncegate_rules::caller::Caller;
use oncegate_rules::record::{CallId, State};
use oncegate_store as store;

/// The notice for an operator who has accepted a loss of data.
pub const AFTER_LOSS: &str = "the store may have forgotten what operators have done: look at sessions that were frozen or \
                              unlocked and at tools that were paused, and freeze and pause them again";

/// How long a request waits for the end of the acceptance that it has begun.
const SOON: Duration = Duration::from_secs(1);
/// Calls of one page, and how many of them are marked at once.
const PAGE: u32 = 500;
const AT_ONCE: usize = 32;

/// One acceptance under way.
///
/// It is counted until this is dropped, also after a panic; then the store is no longer prepared for it.
struct Acceptance<'a>(&'a LossAcceptance);

impl<'a> Acceptance<'a> {
    fn begin(loss: &'a LossAcceptance) -> Self {
        loss.sagas.acceptances.fetch_add(1, Ordering::SeqCst);
        Self(loss)
    }
}

impl Drop for Acceptance<'_> {
    fn drop(&mut self) {
        // The store first: while an acceptance is counted no saga is set going. The store then refuses another
        // acceptance that is under way, and the operator may ask for that one again.
        self.0.base.store.cancel_acceptance();
        self.0.sagas.acceptances.fetch_sub(1, Ordering::SeqCst);
        self.0.progress.ended(Some("it broke off".into()));
    }
}

/// What an operator has to accept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// Newest writes of the store.
    Data,
    /// The store has all data but its secret.
    SecretAlone,
}

fn wrong(why: &str) -> Error {
    ErrorKind::WrongState(why.into()).alone()
}

/// Opens a store that has lost data, when an operator accepts the loss.
pub struct LossAcceptance {
    pub(crate) base: Arc<Base>,
    pub(crate) secrets: Arc<KnownSecrets>,
    pub(crate) sagas: Arc<SagaRegistry>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) accepting: Arc<Mutex<()>>,
}

impl LossAcceptance {
    /// Accepts that the store has lost its newest writes.
    ///
    /// First every call becomes unknown for which the old data is dangerous: a running call may have ended, and a
    /// failed call may have run again. Then the store counts as whole.
    ///
    /// Returns how many calls became unknown. Calls that the store has forgotten altogether cannot be marked.
    ///
    /// # Errors
    /// The caller is not an administrator, nothing is lost, or the store cannot be written.
    pub async fn accept_loss(
        self: &Arc<Self>,
        caller: Caller,
        reason: String,
    ) -> Result<usize, Error> {
        must_be_admin(&caller)?;
        let loss = self.clone();
        let accepting = async move {
            let _alone = loss.accepting.lock().await;
            loss.accept(&caller, &reason).await
        };
        self.base.to_its_end(accepting).await
    }

    /// The same for a request, which is soon answered: the acceptance goes on without it.
    ///
    /// A request that asks again while it is under way hears so, and the first one after its end hears the result.
    ///
    /// # Errors
    /// As for [`accept_loss`](Self::accept_loss), if that is known soon. Later it is a reason in the readiness.
    pub async fn begin_to_accept_loss(
        self: &Arc<Self>,
        caller: Caller,
        reason: String,
    ) -> Result<Accepted, Error> {
        must_be_admin(&caller)?;
        let until = Instant::now() + SOON;
        let Ok(alone) = timeout_at(until, self.accepting.clone().lock_owned()).await else {
            return Ok(Accepted::UnderWay);
        };
        let (tell, mut answer) = oneshot::channel();
        let loss = self.clone();
        self.base.tasks.spawn(async move {
            let _alone = alone;
            let done = loss.accept(&caller, &reason).await;
            if let Err(Ok(marked)) = tell.send(done) {
                loss.progress.keep(marked);
            }
        });
        if let Ok(done) = timeout_at(until, &mut answer).await {
            return done
                .unwrap_or_else(|_| Err(unavailable(())))
                .map(Accepted::Done);
        }
        // From here on the result is kept for the next request.
        answer.close();
        match answer.try_recv() {
            Ok(done) => done.map(Accepted::Done),
            Err(_) => Ok(Accepted::UnderWay),
        }
    }

    /// Whether a loss is being accepted.
    pub fn is_under_way(&self) -> bool {
        self.progress.is_under_way()
    }

    /// Accepts the loss. One at a time: an acceptance would complete what another one has prepared.
    async fn accept(&self, caller: &Caller, reason: &str) -> Result<usize, Error> {
        let _counted = Acceptance::begin(self);
        let lost = self.find_loss().await;
        if let Ok(None) = lost
            && let Some(marked) = self.progress.unreported()
        {
            return Ok(marked);
        }
        let act = Act::new(caller, Action::AcceptLoss, "", Target::Store, reason);
        let steps = Steps::default();
        let doing = async {
            let done = self.accept_found(lost, caller, reason, &steps).await;
            let why = done.as_ref().err().map(|error| error.kind.to_string());
            self.progress.ended(why);
            done
        };
        audit::recorded_as(&self.base, act, doing, |done| steps.outcome(done)).await
    }

    /// What is lost; `None`: nothing is.
    ///
    /// # Errors
    /// The store is not reached, or it is not known yet whether it has lost data.
    async fn find_loss(&self) -> Result<Option<Lost>, Error> {
        let readiness = self.base.store.readiness().await;
        if readiness.durability.is_none() {
            return Err(unavailable(()));
        }
        // Perhaps only the secret is gone. Whether it is known is looked at below.
        drop(self.secrets.learn_secret().await);
        let has_reason = |codes: &[&str]| {
            let mut reasons = readiness.reasons.iter();
            reasons.any(|reason| codes.contains(&reason.code))
        };
        if has_reason(&[store::LOST_DATA]) {
            return Ok(Some(Lost::Data));
        }
        if has_reason(&store::SETTLING) {
            let why = "it is not known yet whether the store has lost data: try again in a moment";
            return Err(wrong(why));
        }
        Ok(self.secrets.has_lost_secret().then_some(Lost::SecretAlone))
    }

    /// Accepts the loss that was found.
    async fn accept_found(
        &self,
        lost: Result<Option<Lost>, Error>,
        caller: &Caller,
        reason: &str,
        steps: &Steps,
    ) -> Result<usize, Error> {
        let Some(lost) = lost? else {
            return Err(wrong("the store has not lost any data"));
        };
        let is_lost = lost == Lost::Data;
        self.progress
            .is_at("calls of which newer data may be lost become unknown");
        // Asked before anything is changed: unreadable sagas could not be stopped below.
        self.sagas.sagas_at_stake().await.map_err(of_store)?;
        let whole_until = self.base.store.whole_until().await.map_err(of_store)?;
        let (mut marked, mut from) = (0, Some(String::new()));
        while let Some(here) = from {
            let page = self.base.store.calls_at_risk_after_loss(&here, PAGE).await;
            let (calls, next) = page.map_err(of_store)?;
            let accept = |call_id| self.mark_lost(call_id, caller, reason, whole_until);
            let marking = stream::iter(calls.into_iter().map(accept)).buffer_unordered(AT_ONCE);
            let done: Vec<bool> = marking.try_collect().await.map_err(unavailable)?;
            if !done.is_empty() {
                steps.made();
            }
            marked += done.into_iter().filter(|is_marked| *is_marked).count();
            from = next;
        }
        let refused = |error| match error {
            store::Error::Refused(why) => wrong(&why),
            error => unavailable(error),
        };
        if is_lost {
            let prepared = self.base.store.prepare_acceptance(reason).await;
            prepared.map_err(refused)?;
        }
        self.progress.is_at(self.secrets.why_join_waits());
        self.secrets.join_secrets().await.map_err(of_store)?;
        steps.made();
        crash::point("loss_prepared");
        // Sagas are stopped before any gateway may go on with them. If this breaks off here, the store stays closed,
        // and the operator accepts the loss once more.
        self.progress.is_at("open sagas are stopped");
        let stopped = self.sagas.stop_sagas(&caller.name, reason).await;
        stopped.map_err(of_store)?;
        crash::point("loss_stopped");
        let waiting = self.secrets.wait_for_others();
        if is_lost {
            self.base.store.accept_loss(reason).await.map_err(refused)?;
        }
        self.progress.is_at(self.secrets.why_learning_waits());
        let learned = self.secrets.learn_secret_after_loss(waiting).await;
        learned.map_err(unavailable)?;
        tracing::warn!(
            by = caller.name,
            reason,
            marked,
            "the loss of data is accepted; {AFTER_LOSS}"
        );
        Ok(marked)
    }

    /// Makes a call unknown whose stored state may be outdated. Returns whether it was not unknown before.
    async fn mark_lost(
        &self,
        call_id: CallId,
        caller: &Caller,
        reason: &str,
        whole_until: Option<Timestamp>,
    ) -> Result<bool, store::Error> {
        let event = Event::StoreLost {
            by: By::token(&caller.name, reason),
            whole_until,
        };
        let retry = OnConflict::RetryOnLatest;
        let moved = transition::load_and_apply(&self.base, call_id, &event, retry).await?;
        match moved {
            // A call that was unknown before is only unknown for longer.
            Some(Moved::Written { was, .. }) => Ok(!matches!(was, State::Unknown(_))),
            // A call that keeps changing may still be outdated: the loss is not accepted now.
            Some(Moved::Lost(Some(_))) => {
                let why = format!("call {call_id} keeps changing: accept the loss once more");
                Err(store::Error::Refused(why))
            }
            Some(Moved::Unchanged(..) | Moved::Refused(..) | Moved::Lost(None)) | None => Ok(false),
        }
    }
}
