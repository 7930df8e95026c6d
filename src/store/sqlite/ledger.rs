//! The ledger: listing calls, their duplicates, forgetting them. Must not decide anything.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::worker::Need;
use super::{Sqlite, calls, document, row, sessions};
use crate::core::ledger::{
    Duplicate, Duplicates, Filter, History, Index, Listed, Maker, PAGE_BYTES, Page, Position,
};
use crate::core::record::CallId;
use crate::store::{Error, Ledger};

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
            connection
                .prepare_cached("SELECT tenant, tool, made_by FROM calls WHERE call_id = ?1")?
                .query_row([call_id.to_string()], |row| {
                    Ok(Maker {
                        tenant: row.get(0)?,
                        tool: row.get(1)?,
                        token: row.get(2)?,
                    })
                })
                .optional()
        };
        self.readers.ledger.read(read).await
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        let read = move |connection: &Connection| {
            let Some(record) = calls::by_id(connection, call_id)? else {
                return Ok(None);
            };
            let entries = row::entries(connection, call_id, limit)?;
            let duplicates = duplicates(connection, call_id)?;
            Ok(Some(History {
                record,
                entries,
                duplicates,
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
            let mut over = connection.prepare_cached(
                "SELECT call_id FROM calls WHERE retain_until <= ?1 ORDER BY retain_until LIMIT ?2",
            )?;
            let over: Vec<String> = over
                .query_map(params![now, limit], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
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
            before.call_id.to_string(),
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
        let listed = Listed {
            duplicates: Duplicates::default(),
            record,
        };
        bytes += listed.size();
        if filter.matches(&listed.record) {
            let duplicates = duplicates(connection, listed.record.intent.call_id)?;
            page.found.push(Listed {
                duplicates,
                ..listed
            });
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
    // From one to the next in the index, without looking at what lies between.
    let mut next = connection.prepare_cached(
        "SELECT tenant FROM calls WHERE tenant > ?1 ORDER BY tenant, created_at LIMIT 1",
    )?;
    let mut tenants: Vec<String> = Vec::new();
    let mut last = connection
        .query_row(
            "SELECT tenant FROM calls ORDER BY tenant, created_at LIMIT 1",
            [],
            |row| row.get(0),
        )
        .optional()?;
    while let Some(tenant) = last {
        last = next
            .query_row([&tenant], |row| row.get::<_, String>(0))
            .optional()?;
        tenants.push(tenant);
    }
    Ok(tenants)
}

fn duplicates(connection: &Connection, call_id: CallId) -> rusqlite::Result<Duplicates> {
    let mut found =
        connection.prepare_cached("SELECT count, last FROM duplicates WHERE call_id = ?1")?;
    let found = found.query_row([call_id.to_string()], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
    });
    let Some((count, last)) = found.optional()? else {
        return Ok(Duplicates::default());
    };
    Ok(Duplicates {
        count: count.unsigned_abs(),
        last: read_last(&last),
    })
}

/// Adds to the duplicates of a call, if it is still kept.
fn count(connection: &Connection, call_id: CallId, later: &Duplicates) -> rusqlite::Result<()> {
    let mut all = duplicates(connection, call_id)?;
    all.add(later);
    let mut write = connection.prepare_cached(
        "INSERT OR REPLACE INTO duplicates (call_id, count, last)
         SELECT call_id, ?2, ?3 FROM calls WHERE call_id = ?1",
    )?;
    write.execute(params![
        call_id.to_string(),
        row::integer(all.count),
        write_last(&all.last)
    ])?;
    Ok(())
}

fn write_last(last: &[Duplicate]) -> String {
    let last: Vec<(i64, &str, &str)> = last
        .iter()
        .map(|one| (one.at.as_microsecond(), one.by.as_str(), one.kind.as_str()))
        .collect();
    serde_json::to_string(&last).unwrap_or_default()
}

/// What cannot be read is not shown; the count stands beside it.
fn read_last(text: &str) -> Vec<Duplicate> {
    let last: Vec<(i64, String, String)> = serde_json::from_str(text).unwrap_or_default();
    let read = |(at, by, kind)| {
        Some(Duplicate {
            at: Timestamp::from_microsecond(at).ok()?,
            by,
            kind,
        })
    };
    last.into_iter().filter_map(read).collect()
}

/// Forgets a call that is kept no longer.
fn forget(connection: &Connection, call_id: &str) -> rusqlite::Result<()> {
    row::free_names(connection, call_id)?;
    for sql in [
        "DELETE FROM events WHERE call_id = ?1",
        "DELETE FROM duplicates WHERE call_id = ?1",
        "DELETE FROM calls WHERE call_id = ?1",
    ] {
        connection.prepare_cached(sql)?.execute([call_id])?;
    }
    Ok(())
}
