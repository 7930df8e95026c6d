//! Sessions, pauses, documents and recovery after a loss, in memory.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use oncegate::core::document::{Document, Kind};
use oncegate::core::position::Position;
use oncegate::core::record::{CallId, Entry};
use oncegate::core::session::{Lock, Session, SessionId};
use oncegate::store::{
    DocumentQuery, Documents, Durability, Found, Health, LOST_DATA, Listener, LossRecovery, Pauses,
    Put, Readiness, Reason, Result, Secrets, Sessions,
};

use super::{Kept, Memory};

/// The key of a document.
fn name_of(document: &Document) -> (&'static str, String, String) {
    let kind = document.kind.as_str();
    (kind, document.tenant.clone(), document.id.clone())
}

#[async_trait]
impl Sessions for Memory {
    async fn session(&self, id: &SessionId) -> Result<Session> {
        Ok(self
            .lock()
            .kept
            .sessions
            .get(id)
            .cloned()
            .unwrap_or_default())
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool> {
        let mut inner = self.lock();
        let session = inner.kept.sessions.entry(id.clone()).or_default();
        let run = |lock: &Lock| (lock.call_id, lock.token);
        let is_it = session.lock.as_ref().map(run) == Some(run(lock));
        if is_it {
            session.lock = None;
            session.events.push(entry.clone());
        }
        Ok(is_it)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool> {
        let mut inner = self.lock();
        let session = inner.kept.sessions.entry(id.clone()).or_default();
        let was = std::mem::replace(&mut session.frozen, frozen);
        if was != frozen {
            session.events.push(entry.clone());
        }
        Ok(was != frozen)
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<()> {
        let mut inner = self.lock();
        inner
            .kept
            .sessions
            .entry(id.clone())
            .or_default()
            .waiting
            .retain(|(waits, _)| *waits != call_id);
        inner.say_end(call_id);
        Ok(())
    }
}

#[async_trait]
impl Pauses for Memory {
    async fn paused(&self) -> Result<Vec<(String, Entry)>> {
        Ok(self.lock().kept.paused.clone().into_iter().collect())
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool> {
        let Kept {
            paused: tools,
            tool_events,
            ..
        } = &mut self.lock().kept;
        let changed = tools.contains_key(tool) != paused;
        if changed {
            tools.retain(|name, _| name != tool);
            tools.extend(paused.then(|| (tool.to_owned(), entry.clone())));
            let events = tool_events.entry(tool.to_owned()).or_default();
            events.push(entry.clone());
            events.drain(..events.len().saturating_sub(100));
        }
        Ok(changed)
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>> {
        Ok(self
            .lock()
            .kept
            .tool_events
            .get(tool)
            .cloned()
            .unwrap_or_default())
    }
}

#[async_trait]
impl Documents for Memory {
    async fn document(&self, kind: Kind, tenant: &str, id: &str) -> Result<Option<Document>> {
        Ok(self
            .lock()
            .kept
            .documents
            .get(&(kind.as_str(), tenant.to_owned(), id.to_owned()))
            .cloned())
    }

    async fn put_document(&self, document: &Document) -> Result<Put> {
        let mut inner = self.lock();
        let document = document.to_the_microsecond();
        let name = name_of(&document);
        let stored = inner.kept.documents.get(&name);
        if stored == Some(&document) {
            return Ok(Put::Done);
        }
        if stored.map_or(0, |stored| stored.version) + 1 != document.version {
            return Ok(Put::Lost(stored.cloned()));
        }
        inner.may_begin()?;
        inner.kept.documents.insert(name, document);
        Ok(Put::Done)
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put> {
        let mut inner = self.lock();
        let document = document.to_the_microsecond();
        let name = name_of(&document);
        match inner.kept.documents.get(&name) {
            Some(stored) if *stored == document => {}
            Some(stored) if stored.version + 1 != document.version => {
                return Ok(Put::Lost(Some(stored.clone())));
            }
            _ => drop(inner.kept.documents.insert(name, document)),
        }
        Ok(Put::Done)
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>> {
        let inner = self.lock();
        let is_due = |document: &&Document| {
            document.kind == kind && document.due_at.is_some_and(|due| due <= now)
        };
        let mut due: Vec<Document> = inner
            .kept
            .documents
            .values()
            .filter(is_due)
            .cloned()
            .collect();
        due.sort_by_key(|document| document.due_at);
        due.truncate(limit as usize);
        Ok(Found {
            calls: due,
            unreadable: Vec::new(),
        })
    }

    async fn documents(
        &self,
        query: &DocumentQuery,
    ) -> Result<(Found<Document>, Option<Position>)> {
        let inner = self.lock();
        let limit = query.limit;
        let is_asked_for = |document: &&Document| {
            let (tenant, state) = (query.tenant.as_ref(), query.state.as_ref());
            document.kind == query.kind
                && tenant.is_none_or(|tenant| document.tenant == *tenant)
                && state.is_none_or(|state| document.state == *state)
                && (query.before).is_none_or(|before| Position::of_document(document) < before)
        };
        let mut found: Vec<Document> = inner
            .kept
            .documents
            .values()
            .filter(is_asked_for)
            .cloned()
            .collect();
        found.sort_by_key(|document| std::cmp::Reverse(Position::of_document(document)));
        found.truncate(limit as usize);
        let next = found
            .last()
            .filter(|_| found.len() >= limit as usize)
            .map(Position::of_document);
        Ok((
            Found {
                calls: found,
                unreadable: Vec::new(),
            },
            next,
        ))
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>> {
        let mut counts = std::collections::BTreeMap::<String, u64>::new();
        for document in self
            .lock()
            .kept
            .documents
            .values()
            .filter(|document| document.kind == kind)
        {
            *counts.entry(document.state.clone()).or_default() += 1;
        }
        Ok(counts.into_iter().collect())
    }
}

#[async_trait]
impl LossRecovery for Memory {
    async fn calls_at_risk_after_loss(
        &self,
        _from: &str,
        _limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>)> {
        let inner = self.lock();
        let all = ["running", "failed", "unknown", "proposed", "approved"]
            .into_iter()
            .flat_map(|state| inner.kept.in_state(state));
        Ok((all.map(|record| record.intent.call_id).collect(), None))
    }

    async fn whole_until(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    async fn prepare_acceptance(&self, _reason: &str) -> Result<()> {
        Ok(())
    }

    async fn accept_loss(&self, _reason: &str) -> Result<()> {
        Self::accept_loss(self);
        Ok(())
    }
}

impl Secrets for Memory {
    fn remembered_secret(&self) -> Result<Option<Bytes>> {
        Ok(self.lock().secret.clone())
    }

    fn remember_secret(&self, secret: &Bytes) {
        self.lock().secret = Some(secret.clone());
    }
}

#[async_trait]
impl Health for Memory {
    async fn readiness(&self) -> Readiness {
        let lost = Reason::new(LOST_DATA, "writes were lost");
        let reasons = if self.has_lost() {
            vec![lost]
        } else {
            Vec::new()
        };
        Readiness {
            durability: Some(Durability::Strict),
            reasons,
            warnings: Vec::new(),
            lost_writes: 0,
            whole_since: Some(Timestamp::MIN),
        }
    }

    fn clock_offset(&self) -> SignedDuration {
        self.lock().ahead
    }

    /// All gateways that share it are in one process.
    fn is_shared(&self) -> bool {
        false
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        self.lock()
            .endings
            .as_ref()
            .map(|endings| endings.listen(call_id))
    }

    fn cancel_acceptance(&self) {}

    async fn close(&self) {}
}
