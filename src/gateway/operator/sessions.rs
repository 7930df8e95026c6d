//! Acts of persons on sessions. The rules are in `core::session`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::core::actor::Actor;
use crate::core::audit::{Act, Deed};
use crate::core::call::{Event, Illegal};
use crate::core::caller::Caller;
use crate::core::document::{Document, Kind};
use crate::core::frozen::{self, FROZEN};
use crate::core::ledger::{Filter, PAGE_BYTES, Page};
use crate::core::position::Position;
use crate::core::record::{CallId, Entry, Record, State};
use crate::core::session::{Lock, Session, SessionId};
use crate::gateway::audit;
use crate::gateway::base::Base;
use crate::gateway::error::{Error, ErrorKind, unavailable};
use crate::gateway::transition::{self, Moved, OnConflict, ROUNDS};
use crate::store::{self, Put};

/// A question about sessions that are frozen or locked.
#[derive(Debug, Clone)]
pub struct SessionQuery {
    /// `None`: the caller's own tenant, or every tenant for an administrator.
    pub tenant: Option<String>,
    pub frozen: bool,
    pub locked: bool,
    pub before: Option<Position>,
    pub limit: u32,
}

/// A session that a list found, and the place where it was found.
struct Place {
    at: Position,
    id: SessionId,
    /// The call that may have its lock; `None`: it was found by its mark.
    holder: Option<CallId>,
}

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
    /// `seen`: the call that had the lock when the person looked.
    ///
    /// # Errors
    /// The caller is no administrator, the lock is free, or another call has it.
    pub async fn unlock_session(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
        seen: Option<CallId>,
    ) -> Result<Lock, Error> {
        let (sessions, caller) = (self.clone(), caller.clone());
        let (id, reason) = (id.clone(), reason.to_owned());
        self.base.admit_person(&caller).await?;
        let unlocking = async move {
            let act = Act::on_session(&caller, Deed::Unlock, &id, &reason);
            let doing = sessions.unlock_and_tell(&caller, &id, &reason, seen);
            audit::kept(&sessions.base, act, doing).await
        };
        self.base.to_its_end(unlocking).await
    }

    async fn unlock_and_tell(
        &self,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
        seen: Option<CallId>,
    ) -> Result<Lock, Error> {
        let session = self.find_session(caller, id).await?;
        let Some(lock) = session.lock else {
            return Err(ErrorKind::WrongState("the session's lock is free".into()).alone());
        };
        if seen.is_some_and(|seen| seen != lock.call_id) {
            return Err(ErrorKind::JustChanged.alone());
        }
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

    /// Marks a session as frozen or thawed, so that it is found. A freeze must not fail for want of a mark.
    async fn mark(&self, id: &SessionId, frozen: bool) {
        let store = &self.base.store;
        let marking = async {
            let mut there = store.document(Kind::Session, &id.tenant, &id.id).await?;
            for _ in 0..ROUNDS {
                let now = self.base.now();
                let Some(mark) = frozen::marked(id, there.as_ref(), frozen, now) else {
                    return Ok(());
                };
                match store.put_back_document(&mark).await? {
                    Put::Done => return Ok(()),
                    Put::Lost(newer) => there = newer,
                }
            }
            Err(store::Error::Refused("a mark changes too fast".into()))
        };
        if let Err(error) = marking.await {
            tracing::error!(frozen, %error, "the list of frozen sessions is wrong about a session");
        }
    }

    /// Marks a session after an act, and again if another act has changed it meanwhile.
    ///
    /// Whichever of two acts marks last, looks last: so acts that cross each other leave a mark that is right.
    async fn mark_as_it_is(&self, id: &SessionId, after_act: bool) {
        let mut frozen = after_act;
        for _ in 0..ROUNDS {
            self.mark(id, frozen).await;
            match self.base.store.session(id).await {
                Ok(session) if session.frozen != frozen => frozen = session.frozen,
                Ok(_) => return,
                Err(error) => {
                    tracing::error!(%error, "the list of frozen sessions may be wrong about a session");
                    return;
                }
            }
        }
    }

    /// Sessions that are frozen, or locked, or both; and the position of the next page.
    ///
    /// A page looks at `limit` marks or calls, so it may be short, and even empty. A listed session that is not frozen
    /// lost its freeze: the store has forgotten it, or its gateway ended before it was written.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, or the store does not answer.
    pub async fn list_sessions(
        &self,
        caller: &Caller,
        query: &SessionQuery,
    ) -> Result<(Vec<(SessionId, Session)>, Option<Position>), Error> {
        let own = (!caller.is_admin()).then(|| caller.tenant.clone());
        let tenant = query.tenant.clone().or(own);
        let may_read = |tenant: &String| caller.may_read(tenant);
        if !tenant.as_ref().map_or(caller.is_admin(), may_read) {
            return Err(ErrorKind::Forbidden.alone());
        }
        let (listed, mut next) = if query.frozen {
            self.marked_sessions(tenant.as_deref(), query).await
        } else {
            self.sessions_of_calls(tenant, query).await
        }
        .map_err(unavailable)?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        for Place { at, id, holder } in listed {
            let session = match self.base.store.session(&id).await {
                Ok(session) => session,
                Err(error @ store::Error::Unreadable(_)) => {
                    tracing::error!(%error, "a session is left out of a list: it cannot be read");
                    continue;
                }
                Err(error) => return Err(unavailable(error)),
            };
            let lock = session.lock.as_ref();
            // Of all calls of a session one at most has its lock.
            let is_asked_for = match holder {
                Some(call_id) => lock.is_some_and(|lock| lock.call_id == call_id),
                None => !query.locked || lock.is_some(),
            };
            if is_asked_for {
                bytes += session.size();
                found.push((id, session));
            }
            if bytes >= PAGE_BYTES {
                next = Some(at);
                break;
            }
        }
        Ok((found, next))
    }

    /// The sessions with a mark.
    async fn marked_sessions(
        &self,
        tenant: Option<&str>,
        query: &SessionQuery,
    ) -> Result<(Vec<Place>, Option<Position>), store::Error> {
        let (store, before) = (&self.base.store, query.before.as_ref());
        let marks = store.documents(Kind::Session, tenant, Some(FROZEN), before, query.limit);
        let (marks, next) = self.base.readable_page(marks.await)?;
        let place = |mark: Document| Place {
            at: Position::of_document(&mark),
            id: SessionId {
                tenant: mark.tenant,
                id: mark.id,
            },
            holder: None,
        };
        Ok((marks.into_iter().map(place).collect(), next))
    }

    /// The sessions of calls that may have a lock: those that run, and unknown ones within their lease.
    async fn sessions_of_calls(
        &self,
        tenant: Option<String>,
        query: &SessionQuery,
    ) -> Result<(Vec<Place>, Option<Position>), store::Error> {
        // A call may be sent again while the unknown ones are read: then it runs, and is found by reading once more.
        const READ: [&str; 3] = ["running", "unknown", "running"];
        let tenants = match tenant {
            Some(tenant) => vec![tenant],
            None => self.base.store.tenants().await?,
        };
        // Of many tenants each has a share; what is then missing comes with the next page.
        let limit = query.limit as usize;
        let share = if tenants.len() > 1 {
            limit / tenants.len() + 4
        } else {
            limit
        };
        let share = u32::try_from(share).unwrap_or(query.limit);
        let now = self.base.now();
        let may_lock = |record: &Record| {
            let is_running = matches!(record.state, State::Running);
            !record.intent.session_id.is_empty() && (is_running || record.attempt.lease_until > now)
        };
        let (mut pages, mut seen) = (Vec::new(), HashSet::new());
        for tenant in &tenants {
            for state in READ {
                let filter = Filter {
                    state: Some(state.to_owned()),
                    is_brief: true,
                    ..Filter::default()
                };
                let (store, before) = (&self.base.store, query.before);
                let mut page = store.list(tenant, &filter, before, share).await?;
                // One that has changed its state meanwhile comes once.
                page.found.retain(|listed| {
                    may_lock(&listed.record) && seen.insert(listed.record.intent.call_id)
                });
                pages.push(page);
            }
        }
        let page = Page::merge(pages, limit);
        let records = page.found.iter().map(|listed| &listed.record);
        let places = records.map(|record| Place {
            at: Position::of(record),
            id: SessionId::of(&record.intent),
            holder: Some(record.intent.call_id),
        });
        Ok((places.collect(), page.next))
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
        // Marked before it is frozen, and until it is thawed: none that is frozen is missing in the list.
        if frozen {
            self.mark(id, true).await;
        }
        let changed = self.base.store.set_frozen(id, frozen, &entry).await;
        // If it is not known whether it is frozen, it stays marked.
        if frozen || changed.is_ok() {
            self.mark_as_it_is(id, frozen).await;
        }
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
