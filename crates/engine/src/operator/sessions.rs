//! Acts of operators on sessions, and lists of frozen or locked ones. The rules are in `rules::session`.

use std::collections::HashSet;
use std::sync::Arc;

use super::ledger::share_of;
use crate::audit;
use crate::base::{Base, Query};
use crate::error::{Error, ErrorKind, tenant_to_list, unavailable};
use crate::transition::{self, Moved, OnConflict, ROUNDS};
use oncegate_rules::actor::{Actor, By};
use oncegate_rules::audit::{Act, Action};
use oncegate_rules::call::{Event, Illegal};
use oncegate_rules::caller::Caller;
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::frozen::{self, FROZEN};
use oncegate_rules::ledger::{Filter, PAGE_BYTES, Page};
use oncegate_rules::many::SeenVersion;
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Entry, Record, State};
use oncegate_rules::session::{Lock, Session, SessionId};
use oncegate_store::{self as store, DocumentQuery, Put};

/// Which sessions a list has: those that are frozen, or locked, or both.
#[derive(Debug, Clone, Copy)]
pub struct SessionFilter {
    pub frozen: bool,
    pub locked: bool,
}

/// A session that a list found, and its position in the list.
struct Row {
    at: Position,
    id: SessionId,
    /// The call that may have the session's lock; `None`: the session was found by its flag.
    holder: Option<CallId>,
}

/// The acts of operators on sessions.
pub struct Sessions {
    pub(crate) base: Arc<Base>,
}

impl Sessions {
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
    /// Both the session and the holder get an event. `seen`: the version of the lock that the operator looked at.
    ///
    /// # Errors
    /// The caller is not an administrator, the lock is free, or another run has it.
    pub async fn unlock_session(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SessionId,
        reason: &str,
        seen: Option<SeenVersion>,
    ) -> Result<Lock, Error> {
        self.base.admit_operator(caller).await?;
        let act = Act::on_session(caller, Action::Unlock, id, reason);
        let (sessions, id, by) = (self.clone(), id.clone(), act.clone());
        let unlocking = async move { sessions.unlock(&by, &id, seen).await };
        audit::recorded_to_its_end(&self.base, act, unlocking).await
    }

    async fn unlock(
        &self,
        act: &Act,
        id: &SessionId,
        seen: Option<SeenVersion>,
    ) -> Result<Lock, Error> {
        let session = self.base.store.session(id).await.map_err(unavailable)?;
        let Some(lock) = session.lock else {
            return Err(ErrorKind::WrongState("the session's lock is free".into()).alone());
        };
        if seen.is_some_and(|seen| seen != SeenVersion::of_lock(&lock)) {
            return Err(ErrorKind::JustChanged.alone());
        }
        let (call_id, reason) = (lock.call_id, &act.reason);
        let detail = format!("the lock of call {call_id} was taken away from it ({reason})");
        let by = Actor::Token(&act.by);
        let entry = Entry::new(self.base.now(), "unlocked", by, detail);
        let unlocked = self.base.store.unlock(id, &lock, &entry).await;
        if !unlocked.map_err(unavailable)? {
            let why = "the lock has changed hands meanwhile";
            return Err(ErrorKind::WrongState(why.into()).alone());
        }
        let trace_id = self.note_unlocked(&lock, act).await;
        tracing::warn!(%call_id, trace_id, by = act.by, reason, "a session was unlocked");
        Ok(lock)
    }

    /// Writes into a call's history that its lock was taken away. The call goes on.
    ///
    /// Returns the call's trace, if its current run is the one that had the lock.
    async fn note_unlocked(&self, lock: &Lock, act: &Act) -> Option<String> {
        let event = Event::Unlocked {
            by: By::token(&act.by, &act.reason),
            fencing: Some(lock.token),
        };
        let retry = OnConflict::RetryOnLatest;
        let moved = transition::load_and_apply(&self.base, lock.call_id, &event, retry).await;
        match moved.ok()?? {
            // Another run had the lock.
            Moved::Refused(_, Illegal::NotOwner) | Moved::Lost(None) => None,
            Moved::Written { record, .. }
            | Moved::Unchanged(record, _)
            | Moved::Refused(record, _)
            | Moved::Lost(Some(record)) => Some(record.intent.trace_id.clone()),
        }
    }

    /// Marks a session as frozen or thawed, so that lists find it.
    ///
    /// A failure is only logged: a freeze must not fail because its flag cannot be written.
    async fn flag(&self, id: &SessionId, frozen: bool) {
        let store = &self.base.store;
        let flagging = async {
            let mut stored = store.document(Kind::Session, &id.tenant, &id.id).await?;
            for _ in 0..ROUNDS {
                let now = self.base.now();
                let Some(flag) = frozen::flagged(id, stored.as_ref(), frozen, now) else {
                    return Ok(());
                };
                match store.put_back_document(&flag).await? {
                    Put::Done => return Ok(()),
                    Put::Lost(newer) => stored = newer,
                }
            }
            Err(store::Error::Refused(
                "the marker of a frozen session changes too fast".into(),
            ))
        };
        if let Err(error) = flagging.await {
            tracing::error!(frozen, %error, "the list of frozen sessions is wrong about a session");
        }
    }

    /// Marks a session after an act, and again if another act has changed it meanwhile.
    ///
    /// Each act reads the session after it has flagged it. So of two concurrent acts the one that flags last corrects the
    /// flag.
    async fn flag_as_it_is(&self, id: &SessionId, after_act: bool) {
        let mut frozen = after_act;
        for _ in 0..ROUNDS {
            self.flag(id, frozen).await;
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
    /// A page reads `limit` marks or calls, so it may be short, and even empty. A listed session that is not frozen
    /// lost its freeze: the store has forgotten it, or its gateway ended before the freeze was written.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, or the store does not answer.
    pub async fn list_sessions(
        &self,
        caller: &Caller,
        query: &Query<SessionFilter>,
    ) -> Result<(Vec<(SessionId, Session)>, Option<Position>), Error> {
        let tenant = tenant_to_list(caller, query.tenant.as_ref())?;
        let (listed, mut next) = if query.filter.frozen {
            self.flagged_sessions(tenant, query).await
        } else {
            self.sessions_of_calls(tenant, query).await
        }
        .map_err(unavailable)?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        for Row { at, id, holder } in listed {
            let session = match self.base.store.session(&id).await {
                Ok(session) => session,
                Err(error @ store::Error::Unreadable(_)) => {
                    tracing::error!(%error, "a session is left out of a list: it cannot be read");
                    continue;
                }
                Err(error) => return Err(unavailable(error)),
            };
            let lock = session.lock.as_ref();
            // A session is found once for each of its calls, and at most one of them has the lock.
            let is_asked_for = match holder {
                Some(call_id) => lock.is_some_and(|lock| lock.call_id == call_id),
                None => !query.filter.locked || lock.is_some(),
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

    /// The sessions with a flag.
    async fn flagged_sessions(
        &self,
        tenant: Option<String>,
        query: &Query<SessionFilter>,
    ) -> Result<(Vec<Row>, Option<Position>), store::Error> {
        let query = DocumentQuery {
            tenant,
            before: query.before,
            ..DocumentQuery::in_state(Kind::Session, FROZEN, query.limit)
        };
        let (flags, next) = self.base.readable_page(&query).await?;
        let row = |flag: Document| Row {
            at: Position::of_document(&flag),
            id: SessionId {
                tenant: flag.tenant,
                id: flag.id,
            },
            holder: None,
        };
        Ok((flags.into_iter().map(row).collect(), next))
    }

    /// The sessions of calls that may have a lock: those that run, and unknown ones within their lease.
    async fn sessions_of_calls(
        &self,
        tenant: Option<String>,
        query: &Query<SessionFilter>,
    ) -> Result<(Vec<Row>, Option<Position>), store::Error> {
        // An unknown call that is sent again between the first two reads runs by then; the third read finds it.
        const READ: [&str; 3] = ["running", "unknown", "running"];
        let tenants = match tenant {
            Some(tenant) => vec![tenant],
            None => self.base.store.tenants().await?,
        };
        let share = share_of(query.limit, tenants.len());
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
                // A call that changes its state between two reads is listed once.
                page.found.retain(|listed| {
                    may_lock(&listed.record) && seen.insert(listed.record.intent.call_id)
                });
                pages.push(page);
            }
        }
        let page = Page::merge(pages, query.limit as usize);
        let records = page.found.iter().map(|listed| &listed.record);
        let rows = records.map(|record| Row {
            at: Position::of(record),
            id: SessionId::of(&record.intent),
            holder: Some(record.intent.call_id),
        });
        Ok((rows.collect(), page.next))
    }

    /// Freezes or thaws a session. No write of a frozen session begins.
    ///
    /// Running calls go on, and stored answers are replayed.
    ///
    /// # Errors
    /// The caller is not an administrator, or the session is frozen or thawed already.
    pub async fn set_frozen(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SessionId,
        frozen: bool,
        reason: &str,
    ) -> Result<(), Error> {
        self.base.admit_operator(caller).await?;
        let action = if frozen { Action::Freeze } else { Action::Thaw };
        let act = Act::on_session(caller, action, id, reason);
        let (sessions, id, by) = (self.clone(), id.clone(), act.clone());
        let acting = async move { sessions.write_frozen(&by, &id, frozen).await };
        audit::recorded_to_its_end(&self.base, act, acting).await
    }

    async fn write_frozen(&self, act: &Act, id: &SessionId, frozen: bool) -> Result<(), Error> {
        let (event, refusal) = if frozen {
            ("frozen", "the session is frozen already")
        } else {
            ("thawed", "the session is not frozen")
        };
        let by = Actor::Token(&act.by);
        let entry = Entry::new(self.base.now(), event, by, &*act.reason);
        // The flag is written before the freeze and goes after the thaw, so that lists miss no frozen session.
        if frozen {
            self.flag(id, true).await;
        }
        let changed = self.base.store.set_frozen(id, frozen, &entry).await;
        // After a thaw that may have failed the session stays marked.
        if frozen || changed.is_ok() {
            self.flag_as_it_is(id, frozen).await;
        }
        if !changed.map_err(unavailable)? {
            return Err(ErrorKind::WrongState(refusal.into()).alone());
        }
        let (by, reason) = (&act.by, &act.reason);
        tracing::warn!(by, reason, frozen, "a session was frozen or thawed");
        Ok(())
    }
}
