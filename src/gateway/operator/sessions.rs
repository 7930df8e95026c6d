//! Acts of persons on sessions. The rules are in `core::session`.

use std::sync::Arc;

use crate::core::actor::Actor;
use crate::core::audit::{Act, Deed};
use crate::core::call::{Event, Illegal};
use crate::core::caller::Caller;
use crate::core::record::{Entry, Record};
use crate::core::session::{Lock, Session, SessionId};
use crate::gateway::audit;
use crate::gateway::base::Base;
use crate::gateway::error::{Error, ErrorKind, unavailable};
use crate::gateway::transition::{self, Moved, OnConflict};

/// The acts of persons on sessions.
pub struct Sessions {
    base: Arc<Base>,
}

impl Sessions {
    pub(in crate::gateway) fn new(base: Arc<Base>) -> Self {
        Self { base }
    }

    /// The state of a session.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, or the store does not answer.
    pub async fn find_session(&self, caller: &Caller, id: &SessionId) -> Result<Session, Error> {
        if !caller.may_read(&id.tenant) {
            return Err(ErrorKind::Forbidden.alone());
        }
        let found = self.base.store.session(id).await;
        found.map_err(unavailable)
    }

    /// Breaks a session's lock: the next call runs, whatever the holder still does.
    ///
    /// Both the session and the holder get an event.
    ///
    /// # Errors
    /// The caller is no administrator, or the lock is free.
    pub async fn unlock_session(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
    ) -> Result<Lock, Error> {
        let (sessions, caller) = (self.clone(), caller.clone());
        let (id, reason) = (id.clone(), reason.to_owned());
        self.base.admit_person(&caller).await?;
        let unlocking = async move {
            let act = Act::on_session(&caller, Deed::Unlock, &id, &reason);
            let doing = sessions.unlock_and_tell(&caller, &id, &reason);
            audit::kept(&sessions.base, act, doing).await
        };
        self.base.to_its_end(unlocking).await
    }

    async fn unlock_and_tell(
        &self,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
    ) -> Result<Lock, Error> {
        let session = self.find_session(caller, id).await?;
        let Some(lock) = session.lock else {
            return Err(ErrorKind::WrongState("the session's lock is free".into()).alone());
        };
        let now = self.base.now();
        let detail = format!(
            "the lock of call {} was taken away from it ({reason})",
            lock.call_id
        );
        let entry = entry(
            "unlocked",
            Actor::Token(&caller.name).to_string(),
            detail,
            now,
        );
        let unlocked = self.base.store.unlock(id, &lock, &entry).await;
        if !unlocked.map_err(unavailable)? {
            return Err(
                ErrorKind::WrongState("the lock has changed hands meanwhile".into()).alone(),
            );
        }
        let told = self.tell_unlocked(&lock, caller, reason).await;
        let trace_id = told.as_ref().map(|record| record.intent.trace_id.as_str());
        tracing::warn!(call_id = %lock.call_id, trace_id, by = caller.name, reason, "a session was unlocked");
        Ok(lock)
    }

    /// Writes into a call's history that its lock was taken away.
    ///
    /// The call goes on. Returns it, if it is still the one that had the lock.
    async fn tell_unlocked(&self, lock: &Lock, caller: &Caller, reason: &str) -> Option<Record> {
        let event = Event::Unlocked {
            by: caller.name.clone(),
            reason: reason.to_owned(),
            fencing: Some(lock.token),
        };
        let moved =
            transition::load_and_apply(&self.base, lock.call_id, &event, OnConflict::RetryOnLatest);
        match moved.await.ok()?? {
            // It was another run that had the lock.
            Moved::Refused(_, Illegal::NotOwner) | Moved::Lost(None) => None,
            Moved::Written { record, .. }
            | Moved::Unchanged(record, _)
            | Moved::Refused(record, _)
            | Moved::Lost(Some(record)) => Some(record),
        }
    }

    /// Freezes a session: none of its writes begins until it is thawed.
    ///
    /// Running calls go on, and stored answers are replayed.
    ///
    /// # Errors
    /// The caller is no administrator, or it is frozen already.
    pub async fn freeze_session(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
    ) -> Result<(), Error> {
        self.freeze_or_thaw(caller, id, true, reason).await
    }

    /// # Errors
    /// The caller is no administrator, or it is not frozen.
    pub async fn thaw_session(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
    ) -> Result<(), Error> {
        self.freeze_or_thaw(caller, id, false, reason).await
    }

    async fn freeze_or_thaw(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SessionId,
        frozen: bool,
        reason: &str,
    ) -> Result<(), Error> {
        self.base.admit_person(caller).await?;
        let (sessions, caller) = (self.clone(), caller.clone());
        let (id, reason) = (id.clone(), reason.to_owned());
        let acting = async move {
            let deed = if frozen { Deed::Freeze } else { Deed::Thaw };
            let act = Act::on_session(&caller, deed, &id, &reason);
            let doing = sessions.set_frozen(&caller, &id, frozen, &reason);
            audit::kept(&sessions.base, act, doing).await
        };
        self.base.to_its_end(acting).await
    }

    async fn set_frozen(
        &self,
        caller: &Caller,
        id: &SessionId,
        frozen: bool,
        reason: &str,
    ) -> Result<(), Error> {
        let what = if frozen { "frozen" } else { "thawed" };
        let entry = entry(
            what,
            Actor::Token(&caller.name).to_string(),
            reason.to_owned(),
            self.base.now(),
        );
        let changed = self.base.store.set_frozen(id, frozen, &entry).await;
        if !changed.map_err(unavailable)? {
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
}

pub(in crate::gateway) fn entry(
    event: &'static str,
    by: String,
    detail: String,
    now: jiff::Timestamp,
) -> Entry {
    Entry {
        at: now,
        event: event.into(),
        attempt: None,
        outcome: None,
        by,
        detail,
    }
}
