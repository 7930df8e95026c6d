//! Waiting for one's turn in a session, and what persons do to one. The rules are in `core::session`.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::call::Asked;
use super::flight::{Phase, Pilot};
use super::hold::Hold;
use super::places::{self, Owner};
use super::run::heard;
use super::transition::{self, Moved, OnConflict};
use super::{Error, ErrorKind, Gateway};
use crate::budget::Charge;
use crate::core::call::{Event, Illegal};
use crate::core::caller::Caller;
use crate::core::record::{CallId, Entry, Intent, Record};
use crate::core::session::{self, Denied, Lock, Refusal, Session, SessionId, Verdict};
use crate::downstream::Deadline;
use crate::store::{Due, Listener};

/// What a call has when it is its turn.
pub(super) struct Turn {
    pub(super) held: Result<Hold, ErrorKind>,
    /// A place to run.
    pub(super) place: Option<places::Place>,
    /// Room for its result.
    pub(super) room: Option<Charge>,
    /// Nothing is sent after this.
    pub(super) deadline: Deadline,
}

/// A call's place in the line of a session.
pub(super) struct Place {
    pub(super) session: SessionId,
    pub(super) call_id: CallId,
}

impl Place {
    pub(super) fn of(intent: &Intent) -> Self {
        Self {
            session: SessionId::of(intent),
            call_id: intent.call_id,
        }
    }
}

impl Gateway {
    /// Gets hold of the key when its session lets it: waits in the session's line for as long as the
    /// tool allows. While it waits nothing is claimed.
    pub(super) async fn hold_in_turn(self: &Arc<Self>, asked: &Asked, pilot: &Pilot) -> Turn {
        let policy = &asked.at.tool.session;
        let came = Instant::now();
        let (mut line, mut waiting) = (None::<Place>, None);
        let (first_pause, longest_pause) = self.limits.pace.poll;
        let mut pause = first_pause;
        let mut new_key = None;
        let mut heard_of: Option<(CallId, Option<Listener>)> = None;
        let turn = loop {
            let room = self.keep_room(asked);
            let place = room
                .as_ref()
                .and_then(|_| self.running.take(Owner::of(&asked.intent)));
            let deadline = Deadline::after(asked.at.tool.deadline);
            // Loaded without a memory reservation: few records at once, each for a moment.
            let alone = if room.is_none() {
                self.reading.acquire().await.ok()
            } else {
                None
            };
            let held = self.hold(asked, place.is_some(), &mut new_key).await;
            drop(alone);
            let (denied, in_line) = match held {
                Ok(Hold::Denied(denied, in_line)) => (denied, in_line),
                // Nothing of it is claimed, so it can wait for the store as it waits for its session.
                Err(ErrorKind::StoreUnavailable)
                    if line.is_some() && came.elapsed() < policy.wait =>
                {
                    drop((place, room));
                    tokio::select! {
                        () = sleep(first_pause) => continue,
                        () = self.draining.cancelled() => {
                            let held = Err(ErrorKind::ShuttingDown);
                            break Turn { held, place: None, room: None, deadline };
                        }
                    }
                }
                Ok(Hold::Settled(_)) if room.is_none() => {
                    break Turn {
                        held: Err(ErrorKind::NoRoom),
                        place: None,
                        room: None,
                        deadline,
                    };
                }
                held => {
                    break Turn {
                        held,
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
                held: Err(kind),
                place: None,
                room: None,
                deadline,
            };
            let behind = match session::verdict(
                policy,
                &denied,
                came.elapsed(),
                asked.at.health.usual_time(),
                self.now(),
            ) {
                Verdict::Wait { behind } => behind,
                Verdict::Refuse(refusal) => break refused(ErrorKind::Refused(refusal)),
            };
            line = Some(in_line);
            if waiting.is_none() {
                let Some(place) = self.waiting.take(Owner::of(&asked.intent)) else {
                    break refused(ErrorKind::Refused(Refusal::Busy {
                        retry_after: asked.at.health.usual_time(),
                    }));
                };
                waiting = Some(place);
                pilot.say(Phase::Queued);
            }
            if heard_of.as_ref().is_none_or(|(whom, _)| *whom != behind) {
                heard_of = Some((behind, self.store.listen(behind)));
                // It may have ended before anybody listened.
                continue;
            }
            let listener = heard_of
                .as_ref()
                .and_then(|(_, listener)| listener.as_ref());
            tokio::select! {
                () = sleep(pause.min(policy.wait.saturating_sub(came.elapsed()))) => {}
                () = heard(listener) => {}
                () = self.draining.cancelled() => break refused(ErrorKind::ShuttingDown),
            }
            pause = (pause * 2).min(longest_pause);
        };
        if let Err(ErrorKind::Refused(refusal)) = &turn.held {
            self.metrics
                .denied
                .with_label_values(&[&asked.at.tool.name, refusal.as_str()])
                .inc();
        }
        if let (Some(place), false) = (line, matches!(turn.held, Ok(Hold::Ours(..)))) {
            // Whoever stands behind it need not wait until its place is forgotten.
            let left = self.store.leave_line(&place.session, place.call_id).await;
            drop(self.counted_for(&asked.intent, "leave_line", left));
        }
        turn
    }

    /// Gives a lock free whose call will not do it: that one's gateway is gone, or the configuration has
    /// changed since. Whether anything has changed.
    async fn clear_left_over(&self, id: &SessionId, lock: &Lock) -> bool {
        let now = self.now();
        if now < lock.lease_until {
            return false;
        }
        let Ok(holder) = self.counted("load", self.store.load(lock.call_id).await) else {
            return false;
        };
        if session::is_left_over(lock, holder.as_ref(), now) {
            let detail = format!("the lock of call {} was left over", lock.call_id);
            let by = format!("gateway {}", self.instance);
            let entry = entry("left_over", by, detail, now);
            let unlocked = self
                .counted("unlock", self.store.unlock(id, lock, &entry).await)
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

    /// What a session is like.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, or the store does not answer.
    pub async fn find_session(&self, caller: &Caller, id: &SessionId) -> Result<Session, Error> {
        if !caller.may_read(&id.tenant) {
            return Err(ErrorKind::Forbidden.alone());
        }
        let found = self.counted("session", self.store.session(id).await);
        found.map_err(|_| ErrorKind::StoreUnavailable.alone())
    }

    /// Breaks a session's lock: the next call runs, whatever the one that has the lock still does. Both
    /// the session and that call have an event that says so.
    ///
    /// # Errors
    /// Who asks is no administrator, or the lock is free.
    pub async fn unlock_session(
        &self,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
    ) -> Result<Lock, Error> {
        let session = self.session_of(caller, id).await?;
        let Some(lock) = session.lock else {
            return Err(ErrorKind::WrongState("the session's lock is free".into()).alone());
        };
        let now = self.now();
        let detail = format!(
            "the lock of call {} was taken away from it ({reason})",
            lock.call_id
        );
        let entry = entry("unlocked", format!("token {}", caller.name), detail, now);
        let unlocked = self.counted("unlock", self.store.unlock(id, &lock, &entry).await);
        if !unlocked.map_err(|_| ErrorKind::StoreUnavailable.alone())? {
            return Err(
                ErrorKind::WrongState("the lock has changed hands meanwhile".into()).alone(),
            );
        }
        let told = self.tell_unlocked(&lock, caller, reason).await;
        let trace_id = told.as_ref().map(|record| record.intent.trace_id.as_str());
        tracing::warn!(call_id = %lock.call_id, trace_id, by = caller.name, reason, "a session was unlocked");
        Ok(lock)
    }

    /// Writes into a call's history that its lock was taken away. What it does goes on. Answers with the call, if
    /// it is still the one that had the lock.
    async fn tell_unlocked(&self, lock: &Lock, caller: &Caller, reason: &str) -> Option<Record> {
        let event = Event::Unlocked {
            by: caller.name.clone(),
            reason: reason.to_owned(),
            fencing: Some(lock.token),
        };
        let moved =
            transition::load_and_apply(self, lock.call_id, &event, OnConflict::RetryOnLatest);
        match moved.await.ok()?? {
            // It was another run that had the lock.
            Moved::Refused(_, Illegal::NotOwner) | Moved::Lost(None) => None,
            Moved::Written { record, .. }
            | Moved::Unchanged(record, _)
            | Moved::Refused(record, _)
            | Moved::Lost(Some(record)) => Some(record),
        }
    }

    /// Stops a session: no write of it begins until it is thawed. What runs goes on, and what has ended
    /// is replayed.
    ///
    /// # Errors
    /// Who asks is no administrator, or it is frozen already.
    pub async fn freeze_session(
        &self,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
    ) -> Result<(), Error> {
        self.set_frozen(caller, id, true, reason).await
    }

    /// # Errors
    /// Who asks is no administrator, or it is not frozen.
    pub async fn thaw_session(
        &self,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
    ) -> Result<(), Error> {
        self.set_frozen(caller, id, false, reason).await
    }

    async fn set_frozen(
        &self,
        caller: &Caller,
        id: &SessionId,
        frozen: bool,
        reason: &str,
    ) -> Result<(), Error> {
        self.session_of(caller, id).await?;
        let what = if frozen { "frozen" } else { "thawed" };
        let entry = entry(
            what,
            format!("token {}", caller.name),
            reason.to_owned(),
            self.now(),
        );
        let changed = self.counted(
            "set_frozen",
            self.store.set_frozen(id, frozen, &entry).await,
        );
        if !changed.map_err(|_| ErrorKind::StoreUnavailable.alone())? {
            let why = if frozen {
                "the session is frozen already"
            } else {
                "the session is not frozen"
            };
            return Err(ErrorKind::WrongState(why.into()).alone());
        }
        tracing::warn!(
            by = caller.name,
            reason,
            frozen,
            "a session was frozen or thawed"
        );
        Ok(())
    }

    /// For somebody who wants to act on it.
    async fn session_of(&self, caller: &Caller, id: &SessionId) -> Result<Session, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        self.must_know_all_data().await?;
        self.find_session(caller, id).await
    }
}

fn entry(event: &'static str, by: String, detail: String, now: jiff::Timestamp) -> Entry {
    Entry {
        at: now,
        event: event.into(),
        attempt: None,
        outcome: None,
        by,
        detail,
    }
}
