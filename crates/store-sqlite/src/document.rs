//! Documents as rows. Must not know what documents mean.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use uuid::Uuid;

use super::Sqlite;
use super::query::{all, execute, first, is_full, readable};
use super::worker::Need;
use crate::calls::row::{integer, maybe_time, time};
use oncegate_rules::document::{Document, Kind, digest};
use oncegate_rules::position::Position;
use oncegate_store::{DocumentQuery, Documents, Found, Put, Result};

/// A query for whole documents: the columns in the order of `read`.
const SELECT: &str =
    "SELECT id, tenant, version, state, body, created_at, due_at, retain_until FROM documents";

#[async_trait]
impl Documents for Sqlite {
    async fn document(&self, kind: Kind, tenant: &str, id: &str) -> Result<Option<Document>> {
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        let load = move |connection: &Connection| by_id(connection, kind, &tenant, &id);
        self.readers.calls.read(load).await
    }

    async fn put_document(&self, document: &Document) -> Result<Put> {
        let (document, gate) = (document.to_the_microsecond(), self.gate.clone());
        // On a full disk only documents that exist already are written.
        let begins = document.version == 1;
        let need = if begins { Need::Plain } else { Need::Reserve };
        let put = move |connection: &Connection| {
            gate.must_keep_documents()?;
            if begins {
                gate.may_begin()?;
            }
            put(connection, &document)
        };
        self.writer.run(need, put).await
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put> {
        let (document, gate) = (document.to_the_microsecond(), self.gate.clone());
        let put = move |connection: &Connection| {
            if document.needs_spare_space() {
                gate.must_have_space()?;
            }
            put(connection, &document)
        };
        self.writer.run(Need::Plain, put).await
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>> {
        if self.gate.is_closed() {
            return Ok(Found::default());
        }
        let find = move |connection: &Connection| {
            let sql = format!("{SELECT} WHERE kind = ?1 AND due_at <= ?2 ORDER BY due_at, digest");
            let due = params![kind.as_str(), now.as_microsecond()];
            readable(connection, &sql, due, limit, id, |row| read(kind, row))
        };
        self.readers.due.read(find).await
    }

    async fn documents(
        &self,
        query: &DocumentQuery,
    ) -> Result<(Found<Document>, Option<Position>)> {
        let query = query.clone();
        let (index, condition) = match (&query.tenant, &query.state) {
            (None, None) => ("documents_all", "?2 IS NULL AND ?3 IS NULL"),
            (None, Some(_)) => ("documents_state", "?2 IS NULL AND state = ?3"),
            (Some(_), None) => ("documents_of", "tenant = ?2 AND ?3 IS NULL"),
            (Some(_), Some(_)) => ("documents_of_state", "tenant = ?2 AND state = ?3"),
        };
        let sql = format!(
            "{SELECT} INDEXED BY {index} WHERE kind = ?1 AND {condition} AND (created_at, digest) < (?4, ?5)
             ORDER BY created_at DESC, digest DESC"
        );
        let before = query.before;
        let time = before.map_or(i64::MAX, |before| before.created_at.as_microsecond());
        let digest = before.map_or(Uuid::nil(), |before| before.id);
        let list = move |connection: &Connection| {
            let (kind, limit) = (query.kind, query.limit);
            let listed = params![kind.as_str(), query.tenant, query.state, time, digest];
            let found = readable(connection, &sql, listed, limit, id, |row| read(kind, row))?;
            let last = found.calls.last().filter(|_| is_full(&found, limit));
            let next = last.map(Position::of_document);
            Ok((found, next))
        };
        self.readers.ledger.read(list).await
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>> {
        let count = move |connection: &Connection| {
            let sql = "SELECT state, count(*) FROM documents WHERE kind = ?1 GROUP BY state ORDER BY state";
            all(connection, sql, [kind.as_str()], |row| {
                Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs()))
            })
        };
        self.readers.ledger.read(count).await
    }
}

fn by_id(
    connection: &Connection,
    kind: Kind,
    tenant: &str,
    id: &str,
) -> rusqlite::Result<Option<Document>> {
    let sql = format!("{SELECT} WHERE digest = ?1");
    first(connection, &sql, [digest(kind, tenant, id)], |row| {
        read(kind, row)
    })
}

/// Writes a document if its previous version is stored.
fn put(connection: &Connection, document: &Document) -> rusqlite::Result<Put> {
    let stored = by_id(connection, document.kind, &document.tenant, &document.id)?;
    if stored.as_ref() == Some(document) {
        return Ok(Put::Done);
    }
    if stored.as_ref().map_or(0, |stored| stored.version) + 1 != document.version {
        return Ok(Put::Lost(stored));
    }
    let sql = "INSERT OR REPLACE INTO documents
            (digest, kind, tenant, id, version, state, created_at, due_at, retain_until, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let row = params![
        document.digest(),
        document.kind.as_str(),
        document.tenant,
        document.id,
        integer(document.version),
        document.state,
        document.created_at.as_microsecond(),
        document.due_at.map(Timestamp::as_microsecond),
        document.retain_until.map(Timestamp::as_microsecond),
        &document.body[..],
    ];
    execute(connection, sql, row)?;
    Ok(Put::Done)
}

/// Deletes documents past their retention. Answers how many.
///
/// The second comparison reads the row itself (`+` forbids the index), because an index may be damaged.
pub(super) fn prune(connection: &Connection, now: i64, limit: u32) -> rusqlite::Result<usize> {
    let sql = "DELETE FROM documents WHERE digest IN
            (SELECT digest FROM documents WHERE retain_until <= ?1 ORDER BY retain_until LIMIT ?2)
         AND +retain_until <= ?1";
    execute(connection, sql, params![now, limit])
}

/// The id of a document, which is the first column.
fn id(row: &Row<'_>) -> String {
    row.get(0).unwrap_or_default()
}

fn read(kind: Kind, row: &Row<'_>) -> rusqlite::Result<Document> {
    Ok(Document {
        kind,
        id: row.get(0)?,
        tenant: row.get(1)?,
        version: row.get::<_, i64>(2)?.unsigned_abs(),
        state: row.get(3)?,
        body: row.get::<_, Vec<u8>>(4)?.into(),
        created_at: time(row, 5)?,
        due_at: maybe_time(row, 6)?,
        retain_until: maybe_time(row, 7)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Damaged, at, saga};

    #[tokio::test]
    async fn a_document_that_cannot_be_read_is_named() {
        let damaged = Damaged::new();
        let saga = saga();
        let put = damaged.store.put_document(&saga).await;
        assert_eq!(put.expect("an answer"), Put::Done);
        let far = "UPDATE documents SET retain_until = 9223372036854775807";
        assert_eq!(damaged.file.execute(far, []), Ok(1));
        let due = damaged.store.due_documents(Kind::Saga, at(2), 9).await;
        let due = due.expect("an answer");
        let named: Vec<&str> = due.unreadable.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!((due.calls, named), (vec![], vec!["G"]));
    }
}
