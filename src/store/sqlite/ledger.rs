//! The ledger: listing calls, their duplicates, forgetting them. Must not decide anything.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::query::{all, execute, first};
use super::worker::Need;
use super::{Sqlite, calls, document, row, sessions};
use crate::core::ledger::{Duplicates, Filter, History, Index, Listed, Maker, PAGE_BYTES, Page};
use crate::core::position::Position;
use crate::core::record::CallId;
use crate::store::{Error, Ledger, duplicates};

/// Calls that one page looks at: one that finds little is shorter, rather than slower.
const LOOKS: usize = 2_000;

/// The calls that one index finds, newest first, from a position on.
macro_rules! listing {
    ($index:literal, $condition:literal) => {
        concat!(
            row::columns!(),
            " FROM calls INDEXED BY ",
            $index,
            " WHERE tenant = ?1 AND ",
            $condition,
            " AND created_at BETWEEN ?3 AND ?4 AND (created_at < ?4 OR call_id < ?5)
              ORDER BY created_at DESC, call_id DESC"
        )
    };
}

#[async_trait]
impl Ledger for Sqlite {
    async fn maker(&self, call_id: CallId) -> Result<Option<Maker>, Error> {
        let read = move |connection: &Connection| {
            let sql = "SELECT tenant, tool, made_by FROM calls WHERE call_id = ?1";
            first(connection, sql, [call_id.to_string()], |row| {
                Ok(Maker {
                    tenant: row.get(0)?,
                    tool: row.get(1)?,
                    token: row.get(2)?,
                })
            })
        };
        self.readers.ledger.read(read).await
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        let read = move |connection: &Connection| {
            let Some(record) = calls::by_id(connection, call_id)? else {
                return Ok(None);
            };
            Ok(Some(History {
                record,
                entries: row::entries(connection, call_id, limit)?,
                duplicates: duplicates_of(connection, call_id)?,
            }))
        };
        self.readers.ledger.read(read).await
    }

    async fn tenants(&self) -> Result<Vec<String>, Error> {
        self.readers.ledger.read(tenants).await
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>, Error> {
        let (tenant, filter) = (tenant.to_owned(), filter.clone());
        let list = move |connection: &Connection| list(connection, &tenant, &filter, before, limit);
        self.readers.ledger.read(list).await
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error> {
        let later = later.clone();
        let count = move |connection: &Connection| count(connection, call_id, &later);
        self.writer.run(Need::Plain, count).await
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        // A call that is over by what is there may not be over by what was lost.
        if self.gate.has_lost_data() {
            return Ok(0);
        }
        let now = now.as_microsecond();
        let prune = move |connection: &Connection| {
            let sql =
                "SELECT call_id FROM calls WHERE retain_until <= ?1 ORDER BY retain_until LIMIT ?2";
            let over: Vec<String> = all(connection, sql, params![now, limit], |row| row.get(0))?;
            for call_id in &over {
                forget(connection, call_id)?;
            }
            let documents = document::prune(connection, now, limit)?;
            Ok((over.len() + sessions::prune(connection, now, limit)? + documents) as u64)
        };
        self.writer.run(Need::Plain, prune).await
    }
}

/// The calls of a tenant that pass the filter.
fn list(
    connection: &Connection,
    tenant: &str,
    filter: &Filter,
    before: Option<Position>,
    limit: u32,
) -> rusqlite::Result<Page<Listed>> {
    let (sql, value) = match filter.index() {
        Index::All => (listing!("ledger_all", "?2 = ''"), ""),
        Index::Key(key) => (listing!("ledger_key", "key = ?2"), key),
        Index::Trace(trace) => (listing!("ledger_trace", "trace_id = ?2"), trace),
        Index::Tool(tool) => (listing!("ledger_tool", "tool = ?2"), tool),
        Index::Session(session) => (
            listing!("ledger_session", "session_id = ?2 AND session_id <> ''"),
            session,
        ),
        Index::User(user) => (
            listing!("ledger_user", "user_id = ?2 AND user_id <> ''"),
            user,
        ),
        Index::Saga(saga) => (
            listing!("ledger_saga", "saga_id = ?2 AND saga_id <> ''"),
            saga,
        ),
        Index::State(state) => (
            listing!("ledger_state", "state = ?2 AND state <> 'succeeded'"),
            state,
        ),
    };
    let since = filter.since.map_or(i64::MIN, Timestamp::as_microsecond);
    // The last microsecond of what is asked for, and in it only ids below this one.
    let until = filter
        .until
        .map(|until| (until.as_microsecond().saturating_sub(1), "g".to_owned()));
    let before = before.map(|before| {
        (
            before.created_at.as_microsecond(),
            before.call_id().to_string(),
        )
    });
    let (until, below) = until
        .into_iter()
        .chain(before)
        .min()
        .unwrap_or((i64::MAX, "g".to_owned()));
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params![tenant, value, since, until, below])?;
    let mut page = Page {
        found: Vec::new(),
        next: None,
        unreadable: 0,
    };
    let (mut looked, mut bytes) = (0, 0);
    while let Some(row) = rows.next()? {
        looked += 1;
        let record = match row::record(row) {
            Ok(record) if filter.is_brief => record.without_texts(),
            Ok(record) => record,
            // One that cannot be read keeps no other back.
            Err(error) => {
                tracing::error!(%error, "a call in the ledger cannot be read");
                page.unreadable += 1;
                continue;
            }
        };
        let position = Position::of(&record);
        let mut listed = Listed {
            record,
            duplicates: Duplicates::default(),
        };
        bytes += listed.size();
        if filter.matches(&listed.record) {
            listed.duplicates = duplicates_of(connection, listed.record.intent.call_id)?;
            page.found.push(listed);
        }
        if looked >= LOOKS || page.found.len() >= limit as usize || bytes >= PAGE_BYTES {
            page.next = Some(position);
            break;
        }
    }
    Ok(page)
}

/// All tenants with a call.
fn tenants(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut tenants: Vec<String> = Vec::new();
    let sql = "SELECT tenant FROM calls ORDER BY tenant, created_at LIMIT 1";
    let mut last: Option<String> = first(connection, sql, [], |row| row.get(0))?;
    // From one to the next in the index, without looking at what lies between.
    let sql = "SELECT tenant FROM calls WHERE tenant > ?1 ORDER BY tenant, created_at LIMIT 1";
    while let Some(tenant) = last {
        last = first(connection, sql, [&tenant], |row| row.get(0))?;
        tenants.push(tenant);
    }
    Ok(tenants)
}

fn duplicates_of(connection: &Connection, call_id: CallId) -> rusqlite::Result<Duplicates> {
    let sql = "SELECT count, last FROM duplicates WHERE call_id = ?1";
    let found = first(connection, sql, [call_id.to_string()], |row| {
        let last: Vec<duplicates::Stored> =
            serde_json::from_str(&row.get::<_, String>(1)?).unwrap_or_default();
        Ok(Duplicates {
            count: row.get::<_, i64>(0)?.unsigned_abs(),
            // What cannot be read is not shown; the count stands beside it.
            last: last.into_iter().filter_map(duplicates::read).collect(),
        })
    });
    Ok(found?.unwrap_or_default())
}

/// Adds to the duplicates of a call, if it is still kept.
fn count(connection: &Connection, call_id: CallId, later: &Duplicates) -> rusqlite::Result<()> {
    let mut all = duplicates_of(connection, call_id)?;
    all.add(later);
    let sql = "INSERT OR REPLACE INTO duplicates (call_id, count, last)
         SELECT call_id, ?2, ?3 FROM calls WHERE call_id = ?1";
    let last: Vec<_> = all.last.iter().map(duplicates::stored).collect();
    let last = serde_json::to_string(&last).unwrap_or_default();
    execute(
        connection,
        sql,
        params![call_id.to_string(), row::integer(all.count), last],
    )
    .map(drop)
}

/// Forgets a call that is kept no longer.
fn forget(connection: &Connection, call_id: &str) -> rusqlite::Result<()> {
    row::free_names(connection, call_id)?;
    for sql in [
        "DELETE FROM events WHERE call_id = ?1",
        "DELETE FROM duplicates WHERE call_id = ?1",
        "DELETE FROM calls WHERE call_id = ?1",
    ] {
        execute(connection, sql, [call_id])?;
    }
    Ok(())
}
