//! Waiting in the line of a session. The rules are in `core::session`.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::claim::{ClaimOutcome, Claimer, LinePlace};
use super::large::LargeRequests;
use super::prepared::PreparedCall;
use super::result_memory::ResultMemory;
use super::shared_run::{Progress, RunHandle, heard};
use crate::budget::Charge;
use crate::core::actor::Actor;
use crate::core::record::{CallId, Entry};
use crate::core::session::{self, Denied, Lock, Refusal, SessionId};
use crate::downstream::Deadline;
use crate::gateway::base::Base;
use crate::gateway::error::ErrorKind;
use crate::gateway::places::{Owner, Place, Places};
use crate::gateway::recovery::LostCalls;
use crate::store::{Due, Listener};

/// A call whose turn in the session has come.
pub(in crate::gateway) struct Turn {
    pub(in crate::gateway) claimed: Result<ClaimOutcome, ErrorKind>,
    /// A place to run.
    pub(in crate::gateway) place: Option<Place>,
    /// Memory for its result.
    pub(in crate::gateway) room: Option<Charge>,
    /// Nothing is sent after this.
    pub(in crate::gateway) deadline: Deadline,
}

/// Claims keys in the order of their sessions' lines.
pub(in crate::gateway) struct SessionQueue {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) claims: Arc<Claimer>,
    pub(in crate::gateway) lost: Arc<LostCalls>,
    pub(in crate::gateway) memory: Arc<ResultMemory>,
    pub(in crate::gateway) large: Arc<LargeRequests>,
    /// Places to run.
    pub(in crate::gateway) running: Places,
    /// Places to wait.
    pub(in crate::gateway) waiting: Places,
}

impl SessionQueue {
    /// Claims the key when the session lets it.
    ///
    /// Waits in the session's line for as long as the tool allows. While it waits nothing is
    /// claimed.
    pub(in crate::gateway) async fn claim_in_session_order(
        &self,
        call: &PreparedCall,
        run: &RunHandle,
    ) -> Turn {
        let policy = &call.at.tool.session;
        let came = Instant::now();
        let (mut line, mut waiting) = (None::<LinePlace>, None);
        let (first_pause, longest_pause) = self.base.limits.pace.poll;
        let mut pause = first_pause;
        let mut new_key = None;
        let mut heard_of: Option<(CallId, Option<Listener>)> = None;
        let turn = loop {
            let longest = call.at.longest_answer();
            let room = self
                .memory
                .reserve(&call.intent.tenant, longest, call.args.len());
            let place = room
                .as_ref()
                .and_then(|_| self.running.take(Owner::of(&call.intent)));
            let deadline = Deadline::after(call.at.tool.deadline);
            // Loaded without a memory reservation: few records at once.
            let alone = match &room {
                Some(_) => None,
                None => self.large.without_room().await,
            };
            let held = if room.is_none() && alone.is_none() {
                Err(ErrorKind::NoRoom)
            } else {
                self.claims.claim(call, place.is_some(), &mut new_key).await
            };
            drop(alone);
            let (denied, in_line) = match held {
                Ok(ClaimOutcome::Denied(denied, in_line)) => (denied, in_line),
                // Nothing of it is claimed, so it can wait for the store as it waits for its session.
                Err(ErrorKind::StoreUnavailable)
                    if line.is_some() && came.elapsed() < policy.wait =>
                {
                    drop((place, room));
                    tokio::select! {
                        biased;
                        () = sleep(first_pause) => continue,
                        () = self.base.draining.cancelled() => {
                            let held = Err(ErrorKind::ShuttingDown);
                            break Turn { claimed: held, place: None, room: None, deadline };
                        }
                    }
                }
                Ok(ClaimOutcome::Settled(_)) if room.is_none() => {
                    break Turn {
                        claimed: Err(ErrorKind::NoRoom),
                        place: None,
                        room: None,
                        deadline,
                    };
                }
                held => {
                    break Turn {
                        claimed: held,
                        place,
                        room,
                        deadline,
                    };
                }
            };
            drop((place, room));
            if let Denied::Busy {
                lock: Some(lock), ..
            } = &denied
                && self.clear_left_over(&in_line.session, lock).await
            {
                continue;
            }
            let refused = |kind| Turn {
                claimed: Err(kind),
                place: None,
                room: None,
                deadline,
            };
            let behind = match session::verdict(
                policy,
                &denied,
                came.elapsed(),
                call.at.health.usual_time(),
                self.base.now(),
            ) {
                Ok(behind) => behind,
                Err(refusal) => break refused(ErrorKind::Refused(refusal)),
            };
            line = Some(in_line);
            if waiting.is_none() {
                let Some(place) = self.waiting.take(Owner::of(&call.intent)) else {
                    break refused(ErrorKind::Refused(Refusal::Busy {
                        retry_after: call.at.health.usual_time(),
                    }));
                };
                waiting = Some(place);
                run.say(Progress::Queued);
            }
            if heard_of.as_ref().is_none_or(|(whom, _)| *whom != behind) {
                heard_of = Some((behind, self.base.store.listen(behind)));
                // It may have ended before this listened.
                continue;
            }
            let listener = heard_of
                .as_ref()
                .and_then(|(_, listener)| listener.as_ref());
            tokio::select! {
                biased;
                () = sleep(pause.min(policy.wait.saturating_sub(came.elapsed()))) => {}
                () = heard(listener) => {}
                () = self.base.draining.cancelled() => break refused(ErrorKind::ShuttingDown),
            }
            pause = (pause * 2).min(longest_pause);
        };
        if let Err(ErrorKind::Refused(refusal)) = &turn.claimed {
            self.base
                .metrics
                .denied
                .with_label_values(&[&call.at.tool.name, refusal.as_str()])
                .inc();
        }
        if let (Some(place), false) = (line, matches!(turn.claimed, Ok(ClaimOutcome::Ours(..)))) {
            // The next in line need not wait until its place is forgotten.
            let left = self
                .base
                .store
                .leave_line(&place.session, place.call_id)
                .await;
            drop(left);
        }
        turn
    }

    /// Frees a lock that its holder will not free; returns whether anything has changed.
    ///
    /// The holder's gateway is gone, or the configuration has changed since.
    async fn clear_left_over(&self, id: &SessionId, lock: &Lock) -> bool {
        let now = self.base.now();
        if now < lock.lease_until {
            return false;
        }
        let Ok(holder) = self.base.store.load(lock.call_id).await else {
            return false;
        };
        if session::is_left_over(lock, holder.as_ref(), now) {
            let detail = format!("the lock of call {} was left over", lock.call_id);
            let by = Actor::Gateway(self.base.instance).to_string();
            let entry = Entry {
                at: now,
                event: "left_over".into(),
                attempt: None,
                outcome: None,
                by,
                detail,
            };
            let unlocked = self
                .base
                .store
                .unlock(id, lock, &entry)
                .await
                .unwrap_or(false);
            if unlocked {
                // The call itself may be gone.
                let trace_id = holder
                    .as_ref()
                    .map(|record| record.intent.trace_id.as_str());
                tracing::warn!(call_id = %lock.call_id, trace_id, "the lock of a session was left over");
            }
            return unlocked;
        }
        // Its lease is over: it becomes unknown, and with that its session is free.
        match holder {
            Some(record) => self
                .lost
                .settle_lost(
                    Due {
                        record,
                        owner_ended: false,
                    },
                    now,
                )
                .await
                .unwrap_or(false),
            None => false,
        }
    }
}
