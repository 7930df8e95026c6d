//! The embedded store: one SQLite file, one gateway process.
//!
//! WAL with `synchronous=FULL`: what is committed survives the loss of the process and, if the disk
//! honours fsync, of power. All writes go through one thread that commits in groups. Calls look with
//! connections of their own, so that a long question to the ledger never holds up a call.

mod document; // what is kept beside the calls
mod files; // locks, and whether the files are still those that were opened
mod ledger; // what the ledger is asked
mod log; // the write-ahead log, and when it is moved into the file
mod open; // start-up checks: file system, lock, schema, integrity
mod pause; // tools that persons have paused
mod reserve; // disk space for the outcomes of a full disk
mod row; // records as rows
mod session; // conditions, and what follows from them
mod together; // whether the file and its log belong together
mod watermarks; // whether the file still has what was written to it
mod worker; // the threads, and the group commit of the one that writes

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, InterruptHandle, OptionalExtension, params};

use self::files::Files;
pub use self::open::OpenError;
use self::watermarks::Watermarks;
use self::worker::{Need, Worker};
use super::{
    Census, Claimed, Due, Durability, Endings, Error, Found, LOST_DATA, Listener, Put, Readiness,
    Reason, Replaced, Store,
};
use crate::core::call::Change;
use crate::core::document::{Document, Kind, Place};
use crate::core::key;
use crate::core::ledger::{Duplicates, Filter, History, Listed, Page, Position};
use crate::core::record::{AttemptId, CallId, Entry, Holder, InstanceId, Record, State};
use crate::core::session::{Lock, Session, SessionId};

/// Why a loss cannot be accepted.
const NOTHING_LOST: &str = "the store has not lost any data";
/// How long the files may take to be closed.
const CLOSING: Duration = Duration::from_secs(5);

/// Clones share one store.
#[derive(Clone)]
pub struct Sqlite {
    writer: Worker,
    readers: Arc<Readers>,
    /// This run of the gateway. A running call of another owner has lost it: the file is ours alone.
    instance: InstanceId,
    /// The disk is full and the reserve in use.
    short_of_space: Arc<AtomicBool>,
    watermarks: Arc<Watermarks>,
    files: Weak<Files>,
    /// Who waits for a call of this process.
    endings: Arc<Endings>,
}

/// Those who read, apart from each other. All of them are the writer if there is one connection only.
struct Readers {
    /// What a call looks at first.
    calls: Worker,
    /// What is to be worked on.
    due: Worker,
    /// What persons ask, and exports.
    ledger: Worker,
    interrupts: Vec<InterruptHandle>,
}

#[async_trait]
impl Store for Sqlite {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let change = change.clone();
        let instead_of: Vec<Seen> = instead_of.iter().map(Seen::of).collect();
        let (short_of_space, watermarks) = (self.short_of_space.clone(), self.watermarks.clone());
        let claim = move |connection: &Connection| {
            for name in change.record.intent.all_names() {
                let Some(holder) = row::holder_of(connection, name)? else {
                    continue;
                };
                let seen = Seen::of(&holder);
                if seen == Seen::of(&change.record) {
                    return Ok(Claimed::Yours(holder));
                }
                if !instead_of.contains(&seen) {
                    return Ok(Claimed::Existing(holder));
                }
            }
            if watermarks.is_lost() {
                return Err(worker::lost());
            }
            if short_of_space.load(Ordering::SeqCst) {
                return Err(worker::full());
            }
            let record = match session::enter(connection, &change)? {
                Ok(record) => record,
                Err(denied) => return Ok(Claimed::Denied(denied)),
            };
            row::insert(connection, &record)?;
            row::insert_entry(connection, &record, &change.entry)?;
            Ok(Claimed::Yours(record))
        };
        self.writer.run(Need::Plain, claim).await
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        let (change, expected) = (change.clone(), expected.clone());
        // What is to be sent next needs room for its outcome: it waits until there is room again.
        let begins = matches!(change.record.state, State::Running)
            && change.record.attempt.id != expected.attempt.id;
        let claims = begins || !change.takes.names.is_empty();
        let need = if claims { Need::Plain } else { Need::Reserve };
        let instead_of: Vec<Seen> = change.takes.instead_of.iter().map(Seen::of).collect();
        let (short_of_space, watermarks) = (self.short_of_space.clone(), self.watermarks.clone());
        let replace = move |connection: &Connection| {
            if matches!(change.record.state, State::Running) {
                for name in change.record.intent.all_names() {
                    let holder = row::holder_of(connection, name)?;
                    if let Some(holder) = holder
                        && holder.intent.call_id != change.record.intent.call_id
                    {
                        return Ok(Replaced::Lost(Some(holder)));
                    }
                }
            }
            if !row::is_still(connection, &expected)? {
                // Another change may have come to the same version: only what is the same was ours.
                let is_ours = |stored: &Record| *stored == change.as_stored(stored);
                return Ok(match row::by_id(connection, expected.intent.call_id)? {
                    Some(stored) if is_ours(&stored) => Replaced::Done(stored),
                    stored => Replaced::Lost(stored),
                });
            }
            for name in &change.takes.names {
                if let Some(holder) = row::holder_of(connection, name)?
                    && holder.intent.call_id != change.record.intent.call_id
                    && !instead_of.contains(&Seen::of(&holder))
                {
                    return Ok(Replaced::Lost(Some(holder)));
                }
            }
            if claims && watermarks.is_lost() {
                return Err(worker::lost());
            }
            if claims && short_of_space.load(Ordering::SeqCst) {
                return Err(worker::full());
            }
            let record = match session::enter(connection, &change)? {
                Ok(record) => record,
                Err(denied) => return Ok(Replaced::Denied(denied)),
            };
            row::update(connection, &record)?;
            if begins {
                row::update_asked(connection, &record)?;
            }
            if let Some(seq) = row::seq_of(connection, record.intent.call_id, &change.takes.names)?
            {
                row::take_names(connection, seq, change.takes.names.iter())?;
            }
            row::insert_entry(connection, &record, &change.entry)?;
            session::release(connection, &change)?;
            Ok(Replaced::Done(record))
        };
        let replaced = self.writer.run(need, replace).await?;
        if let Replaced::Done(record) = &replaced
            && !matches!(record.state, State::Running)
        {
            self.endings.say(record.intent.call_id);
        }
        Ok(replaced)
    }

    async fn holders(&self, names: &[key::Lookup]) -> Result<Vec<Holder>, Error> {
        let names = names.to_vec();
        self.readers
            .calls
            .run(Need::Plain, move |connection| {
                row::holders(connection, &names)
            })
            .await
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        self.readers
            .calls
            .run(Need::Plain, move |connection| {
                row::by_id(connection, call_id)
            })
            .await
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        let read = move |connection: &Connection| {
            let Some(record) = row::by_id(connection, call_id)? else {
                return Ok(None);
            };
            let entries = row::entries(connection, call_id, limit)?;
            let duplicates = ledger::duplicates(connection, call_id)?;
            Ok(Some(History {
                record,
                entries,
                duplicates,
            }))
        };
        self.readers.ledger.run(Need::Plain, read).await
    }

    async fn tenants(&self) -> Result<Vec<String>, Error> {
        self.readers.ledger.run(Need::Plain, ledger::tenants).await
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>, Error> {
        let (tenant, filter) = (tenant.to_owned(), filter.clone());
        let list = move |connection: &Connection| {
            ledger::list(connection, &tenant, &filter, before, limit)
        };
        self.readers.ledger.run(Need::Plain, list).await
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error> {
        let later = later.clone();
        let count = move |connection: &Connection| ledger::count(connection, call_id, &later);
        self.writer.run(Need::Plain, count).await
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        let instance = self.instance;
        self.readers
            .due
            .run(Need::Plain, move |connection| {
                row::due(connection, now, instance, limit)
            })
            .await
    }

    async fn to_check(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>, Error> {
        if self.watermarks.is_lost() {
            return Ok(Found::default());
        }
        let tools = tools.to_vec();
        self.readers
            .due
            .run(Need::Plain, move |connection| {
                row::to_check(connection, now, &tools, each)
            })
            .await
    }

    async fn unchecked(&self, tools: &[String], limit: u32) -> Result<Found<Record>, Error> {
        let tools = tools.to_vec();
        self.readers
            .due
            .run(Need::Plain, move |connection| {
                row::unchecked(connection, &tools, limit)
            })
            .await
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        let count = |connection: &Connection| {
            let mut counts = connection.prepare_cached(
                "SELECT tool, 'running', count(*) FROM calls WHERE state = 'running' GROUP BY tool
                 UNION ALL SELECT tool, 'unknown', count(*) FROM calls WHERE state = 'unknown' GROUP BY tool",
            )?;
            let rows = counts.query_map([], |row| {
                let calls = row.get::<_, i64>(2)?.unsigned_abs();
                Ok(Census {
                    tool: row.get(0)?,
                    state: row.get(1)?,
                    calls,
                })
            })?;
            rows.collect()
        };
        self.readers.ledger.run(Need::Plain, count).await
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        // A call that is over by what is there may not be over by what was lost.
        if self.watermarks.is_lost() {
            return Ok(0);
        }
        let now = now.as_microsecond();
        let prune = move |connection: &Connection| {
            let mut over = connection.prepare_cached(
                "SELECT call_id FROM calls WHERE retain_until <= ?1 ORDER BY retain_until LIMIT ?2",
            )?;
            let over: Vec<String> = over
                .query_map(params![now, limit], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            for call_id in &over {
                ledger::forget(connection, call_id)?;
            }
            let documents = document::prune(connection, now, limit)?;
            Ok((over.len() + session::prune(connection, now, limit)? + documents) as u64)
        };
        self.writer.run(Need::Plain, prune).await
    }

    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let id = id.clone();
        self.readers
            .calls
            .run(Need::Plain, move |connection| {
                session::look(connection, &id)
            })
            .await
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error> {
        let (id, lock, entry) = (id.clone(), *lock, entry.clone());
        let watermarks = self.watermarks.clone();
        let unlock = move |connection: &Connection| {
            if watermarks.is_lost() {
                return Err(worker::lost());
            }
            session::unlock(connection, &id, &lock, &entry)
        };
        let unlocked = self.writer.run(Need::Plain, unlock).await?;
        self.endings.say(lock.call_id);
        Ok(unlocked)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error> {
        let (id, entry) = (id.clone(), entry.clone());
        let watermarks = self.watermarks.clone();
        let freeze = move |connection: &Connection| {
            if watermarks.is_lost() {
                return Err(worker::lost());
            }
            session::set_frozen(connection, &id, frozen, &entry)
        };
        self.writer.run(Need::Plain, freeze).await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<(), Error> {
        let id = id.clone();
        let leave = move |connection: &Connection| session::leave_line(connection, &id, call_id);
        self.writer.run(Need::Plain, leave).await?;
        self.endings.say(call_id);
        Ok(())
    }

    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        self.readers.calls.run(Need::Plain, pause::paused).await
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
        let (tool, entry) = (tool.to_owned(), entry.clone());
        let set =
            move |connection: &Connection| pause::set_paused(connection, &tool, paused, &entry);
        self.writer.run(Need::Plain, set).await
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        let tool = tool.to_owned();
        self.readers
            .ledger
            .run(Need::Plain, move |connection| {
                pause::events(connection, &tool)
            })
            .await
    }

    async fn document(
        &self,
        kind: Kind,
        tenant: &str,
        id: &str,
    ) -> Result<Option<Document>, Error> {
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        self.readers
            .calls
            .run(Need::Plain, move |connection| {
                document::by_id(connection, kind, &tenant, &id)
            })
            .await
    }

    async fn put_document(&self, document: &Document) -> Result<Put, Error> {
        let document = document.to_the_microsecond();
        // What has begun is finished on a full disk, too.
        let begins = document.version == 1;
        let need = if begins { Need::Plain } else { Need::Reserve };
        let (short_of_space, watermarks) = (self.short_of_space.clone(), self.watermarks.clone());
        let put = move |connection: &Connection| {
            if !watermarks.keeps_documents() || begins && watermarks.is_lost() {
                return Err(worker::lost());
            }
            if begins && short_of_space.load(Ordering::SeqCst) {
                return Err(worker::full());
            }
            document::put(connection, &document)
        };
        self.writer.run(need, put).await
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put, Error> {
        let document = document.to_the_microsecond();
        self.writer
            .run(Need::Plain, move |connection| {
                document::put(connection, &document)
            })
            .await
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>, Error> {
        if self.watermarks.is_lost() {
            return Ok(Found::default());
        }
        self.readers
            .due
            .run(Need::Plain, move |connection| {
                document::due(connection, kind, now, limit)
            })
            .await
    }

    async fn documents(
        &self,
        kind: Kind,
        tenant: Option<&str>,
        state: Option<&str>,
        before: Option<&Place>,
        limit: u32,
    ) -> Result<(Found<Document>, Option<Place>), Error> {
        let (tenant, state) = (tenant.map(str::to_owned), state.map(str::to_owned));
        let before = before.copied();
        let list = move |connection: &Connection| {
            document::list(
                connection,
                kind,
                tenant.as_deref(),
                state.as_deref(),
                before,
                limit,
            )
        };
        self.readers.ledger.run(Need::Plain, list).await
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>, Error> {
        self.readers
            .ledger
            .run(Need::Plain, move |connection| {
                document::count(connection, kind)
            })
            .await
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        Some(self.endings.listen(call_id))
    }

    fn clock_offset(&self) -> SignedDuration {
        SignedDuration::ZERO
    }

    fn is_shared(&self) -> bool {
        false
    }

    async fn doubtful(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        let from = from.to_owned();
        let page = move |connection: &Connection| row::doubtful(connection, &from, limit);
        let page = self.readers.ledger.run(Need::Plain, page).await?;
        let next = page.last().map(ToString::to_string);
        Ok((page, next))
    }

    async fn prepare_acceptance(&self, _reason: &str) -> Result<(), Error> {
        if self.watermarks.prepare() {
            Ok(())
        } else {
            Err(Error::Refused(NOTHING_LOST.into()))
        }
    }

    fn sealing_key(&self) -> String {
        String::new()
    }

    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        Ok(self.watermarks.secret())
    }

    fn remember_secret(&self, secret: &Bytes) {
        self.watermarks.remember_secret(secret);
    }

    fn break_off_acceptance(&self) {
        self.watermarks.break_off();
    }

    async fn accept_loss(&self, reason: &str) -> Result<(), Error> {
        self.prepare_acceptance(reason).await?;
        let watermarks = self.watermarks.clone();
        let accept = move |connection: &Connection| watermarks.begin_epoch(connection);
        self.writer.run(Need::Plain, accept).await?;
        self.watermarks.accepted();
        Ok(())
    }

    /// Leaves one file with everything in it, and the watermarks beside it. Nothing can be asked any more.
    async fn close(&self) {
        let Readers {
            calls,
            due,
            ledger,
            interrupts,
        } = &*self.readers;
        interrupts.iter().for_each(InterruptHandle::interrupt);
        let all = async {
            if !interrupts.is_empty() {
                tokio::join!(calls.stop(), due.stop(), ledger.stop());
            }
            self.writer.stop().await;
        };
        if tokio::time::timeout(CLOSING, all).await.is_err() {
            tracing::warn!(
                "the database could not be closed in time; the next start reads its log"
            );
        }
    }

    async fn readiness(&self) -> Readiness {
        let mut reasons = Vec::new();
        let lost = self.watermarks.lost().clone();
        if let Some(lost) = &lost {
            let text = format!(
                "{}; nothing is claimed until a person accepts that: POST /v1/store/accept-loss, or, while no gateway \
                 runs, `oncegate store accept-loss`",
                lost.what
            );
            reasons.push(Reason::new(LOST_DATA, text));
        }
        if self.short_of_space.load(Ordering::SeqCst) {
            reasons.push(Reason::new("disk_full", "the disk is full"));
        }
        if let Err(error) = self.writer.run(Need::Plain, |_| Ok(())).await {
            reasons.push(Reason::new("failed", error.to_string()));
        }
        let since = |connection: &Connection| {
            connection
                .prepare_cached("SELECT whole_since FROM ledger")?
                .query_row([], |row| row.get::<_, i64>(0))
        };
        let since = self.readers.calls.run(Need::Plain, since).await.ok();
        Readiness {
            durability: Some(Durability::Strict),
            reasons,
            warnings: self
                .files
                .upgrade()
                .and_then(|files| files.exposed())
                .into_iter()
                .collect(),
            lost_writes: lost.map_or(0, |lost| lost.commits),
            whole_since: since.and_then(|since| Timestamp::from_microsecond(since).ok()),
        }
    }
}

/// A record as somebody has seen it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    call_id: CallId,
    version: u64,
    attempt: AttemptId,
}

impl Seen {
    fn of(record: &Record) -> Self {
        Self {
            call_id: record.intent.call_id,
            version: record.version,
            attempt: record.attempt.id,
        }
    }
}

/// The value of one PRAGMA.
fn pragma<T: rusqlite::types::FromSql>(
    connection: &Connection,
    name: &str,
) -> rusqlite::Result<Option<T>> {
    connection
        .query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
        .optional()
}
