//! Waits in the line of an exclusive session. The rules are in `rules::session`.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::claim::{ClaimOutcome, Turn};
use super::duplicates::shared_run::{Progress, RunHandle, notified};
use super::engine::Engine;
use super::prepared::PreparedCall;
use crate::callers::permits::Owner;
use crate::callers::throttle::NewKey;
use crate::error::ErrorKind;
use oncegate_budget::Charge;
use oncegate_rules::actor::Actor;
use oncegate_rules::record::{CallId, Entry, Intent};
use oncegate_rules::session::{self, Denied, Lock, Refusal, SessionId};
use oncegate_store::{Due, Listener};
use oncegate_tools::Deadline;

impl Engine {
    /// Claims the key when the session lets it.
    ///
    /// Waits in the session's line for as long as the tool allows. While the call waits nothing is claimed.
    pub(super) async fn claim_in_session_order(
        &self,
        call: &PreparedCall,
        run: &RunHandle,
    ) -> Turn {
        let (policy, owner) = (&call.at.tool.session, Owner::of(&call.intent));
        let came = Instant::now();
        let (first_pause, longest_pause) = self.base.limits.timings.poll;
        let mut pause = first_pause;
        let mut new_key = None;
        // Once the call has a place in the line: the intent that has it.
        let mut in_line = None::<Arc<Intent>>;
        let mut waiting = None;
        let mut ahead = None::<(CallId, Option<Listener>)>;
        let turn = loop {
            let turn = self.try_to_claim(call, &mut new_key).await;
            let deadline = turn.deadline;
            let refused = |kind| Turn {
                claimed: Err(kind),
                permit: None,
                reservation: None,
                deadline,
            };
            let (denied, intent) = match turn.claimed {
                Ok(ClaimOutcome::Denied(denied, intent)) => (denied, intent),
                // Nothing is claimed yet, so the call waits for the store as it waits for its session.
                Err(ErrorKind::StoreUnavailable)
                    if in_line.is_some() && came.elapsed() < policy.wait =>
                {
                    drop((turn.permit, turn.reservation));
                    tokio::select! {
                        biased;
                        () = sleep(first_pause) => continue,
                        () = self.base.draining.cancelled() => break refused(ErrorKind::ShuttingDown),
                    }
                }
                _ => break turn,
            };
            drop((turn.permit, turn.reservation));
            if let Denied::Busy {
                lock: Some(lock), ..
            } = &denied
                && self.clear_left_over(&SessionId::of(&intent), lock).await
            {
                continue;
            }
            // Also a call that may wait no longer has got a place.
            if let Denied::Busy {
                behind: Some(_), ..
            } = &denied
            {
                in_line = Some(intent);
            }
            let (usual, now) = (call.at.health.usual_time(), self.base.now());
            let behind = match session::verdict(policy, &denied, came.elapsed(), usual, now) {
                Ok(behind) => behind,
                Err(refusal) => break refused(ErrorKind::Refused(refusal)),
            };
            if waiting.is_none() {
                waiting = self.waiting.take(owner.clone());
                if waiting.is_none() {
                    let retry_after = call.at.health.usual_time();
                    break refused(ErrorKind::Refused(Refusal::Busy { retry_after }));
                }
                run.report(Progress::Queued);
            }
            let listener = match &ahead {
                Some((call_id, listener)) if *call_id == behind => listener.as_ref(),
                _ => {
                    ahead = Some((behind, self.base.store.listen(behind)));
                    // The call ahead may have ended before this listened to it.
                    continue;
                }
            };
            tokio::select! {
                biased;
                () = sleep(pause.min(policy.wait.saturating_sub(came.elapsed()))) => {}
                () = notified(listener) => {}
                () = self.base.draining.cancelled() => break refused(ErrorKind::ShuttingDown),
            }
            pause = (pause * 2).min(longest_pause);
        };
        if let Err(ErrorKind::Refused(refusal)) = &turn.claimed {
            let labels = [&call.at.tool.name, refusal.as_str()];
            self.base.metrics.denied.with_label_values(&labels).inc();
        }
        if let (Some(intent), false) = (in_line, matches!(turn.claimed, Ok(ClaimOutcome::Ours(..))))
        {
            // The next in line need not wait until the store forgets this call's place.
            let (session, store) = (SessionId::of(&intent), &self.base.store);
            drop(store.leave_line(&session, intent.call_id).await);
        }
        turn
    }

    /// Takes memory and a permit to run, and tries to claim the key.
    async fn try_to_claim<'a>(
        &'a self,
        call: &PreparedCall,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Turn {
        let (tenant, longest) = (&call.intent.tenant, call.at.longest_answer());
        let reservation = self.memory.reserve(tenant, longest, call.args.len());
        let take_permit = |_: &Charge| self.running.take(Owner::of(&call.intent));
        let permit = reservation.as_ref().and_then(take_permit);
        let deadline = Deadline::after(call.at.tool.deadline);
        let claimed = match &reservation {
            Some(_) => self.claims.claim(call, permit.is_some(), new_key).await,
            // Few records at once are loaded without memory for their results.
            None => match self.large.without_reservation().await {
                Some(_alone) => match self.claims.claim(call, false, new_key).await {
                    Ok(ClaimOutcome::Settled(_)) => Err(ErrorKind::NoMemory),
                    claimed => claimed,
                },
                None => Err(ErrorKind::NoMemory),
            },
        };
        Turn {
            claimed,
            permit,
            reservation,
            deadline,
        }
    }

    /// Frees a lock that its holder will not free. Returns whether anything has changed.
    ///
    /// The holder's gateway is gone, or the configuration has changed since.
    async fn clear_left_over(&self, id: &SessionId, lock: &Lock) -> bool {
        let (store, now) = (&self.base.store, self.base.now());
        if now < lock.lease_until {
            return false;
        }
        let Ok(holder) = store.load(lock.call_id).await else {
            return false;
        };
        if session::is_left_over(lock, holder.as_ref(), now) {
            let detail = format!("the lock of call {} was left over", lock.call_id);
            let by = Actor::Gateway(self.base.instance);
            let entry = Entry::new(now, "left_over", by, detail);
            let unlocked = store.unlock(id, lock, &entry).await.unwrap_or(false);
            if unlocked {
                // The call itself may be gone.
                let trace_id = holder.as_ref().map(|record| &record.intent.trace_id[..]);
                tracing::warn!(call_id = %lock.call_id, trace_id, "the lock of a session was left over");
            }
            return unlocked;
        }
        let Some(record) = holder else { return false };
        // The lease of the holder is over: the holder becomes unknown, and that frees its session.
        let due = Due {
            record,
            owner_ended: false,
        };
        self.lost.settle_lost(due, now).await.unwrap_or(false)
    }
}
