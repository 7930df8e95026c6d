//! Documents as rows. Must not know what they mean.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Sqlite;
use super::row::{self, Columns};
use super::worker::Need;
use crate::core::document::{Document, Kind, Place, digest};
use crate::store::{Documents, Error, Found, Put, UNREADABLE};

/// A query for whole documents: the columns as `read` reads them.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT tenant, id, version, state, body, created_at, due_at, retain_until FROM documents",
            $rest
        )
    };
}

#[async_trait]
impl Documents for Sqlite {
    async fn document(
        &self,
        kind: Kind,
        tenant: &str,
        id: &str,
    ) -> Result<Option<Document>, Error> {
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        let load = move |connection: &Connection| by_id(connection, kind, &tenant, &id);
        self.readers.calls.read(load).await
    }

    async fn put_document(&self, document: &Document) -> Result<Put, Error> {
        let (document, gate) = (document.to_the_microsecond(), self.gate.clone());
        // What has begun is finished on a full disk, too.
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

    async fn put_back_document(&self, document: &Document) -> Result<Put, Error> {
        let document = document.to_the_microsecond();
        let put = move |connection: &Connection| put(connection, &document);
        self.writer.run(Need::Plain, put).await
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>, Error> {
        if self.gate.has_lost_data() {
            return Ok(Found::default());
        }
        let find = move |connection: &Connection| due(connection, kind, now, limit);
        self.readers.due.read(find).await
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
            let (tenant, state) = (tenant.as_deref(), state.as_deref());
            list(connection, kind, tenant, state, before, limit)
        };
        self.readers.ledger.read(list).await
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>, Error> {
        let count = move |connection: &Connection| count(connection, kind);
        self.readers.ledger.read(count).await
    }
}

fn by_id(
    connection: &Connection,
    kind: Kind,
    tenant: &str,
    id: &str,
) -> rusqlite::Result<Option<Document>> {
    let mut found = connection.prepare_cached(select!(" WHERE digest = ?1"))?;
    found
        .query_row([digest(kind, tenant, id)], |row| read(kind, row))
        .optional()
}

/// Writes a document if what is stored has still the version before it.
fn put(connection: &Connection, document: &Document) -> rusqlite::Result<Put> {
    let stored = by_id(connection, document.kind, &document.tenant, &document.id)?;
    if stored.as_ref() == Some(document) {
        return Ok(Put::Done);
    }
    if stored.as_ref().map_or(0, |stored| stored.version) + 1 != document.version {
        return Ok(Put::Lost(stored));
    }
    let mut write = connection.prepare_cached(
        "INSERT OR REPLACE INTO documents
            (digest, kind, tenant, id, version, state, created_at, due_at, retain_until, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?;
    write.execute(params![
        digest(document.kind, &document.tenant, &document.id),
        document.kind.as_str(),
        document.tenant,
        document.id,
        row::integer(document.version),
        document.state,
        document.created_at.as_microsecond(),
        document.due_at.map(Timestamp::as_microsecond),
        document.retain_until.map(Timestamp::as_microsecond),
        &document.body[..],
    ])?;
    Ok(Put::Done)
}

fn due(
    connection: &Connection,
    kind: Kind,
    now: Timestamp,
    limit: u32,
) -> rusqlite::Result<Found<Document>> {
    let sql = select!(" WHERE kind = ?1 AND due_at <= ?2 ORDER BY due_at, digest");
    Ok(readable(
        connection,
        sql,
        params![kind.as_str(), now.as_microsecond()],
        kind,
        limit,
    )?
    .0)
}

fn list(
    connection: &Connection,
    kind: Kind,
    tenant: Option<&str>,
    state: Option<&str>,
    before: Option<Place>,
    limit: u32,
) -> rusqlite::Result<(Found<Document>, Option<Place>)> {
    macro_rules! listing {
        ($index:literal, $condition:literal) => {
            concat!(
                select!(" INDEXED BY "),
                $index,
                " WHERE kind = ?1 AND ",
                $condition,
                " AND (created_at, digest) < (?4, ?5) ORDER BY created_at DESC, digest DESC"
            )
        };
    }
    let sql = match (tenant, state) {
        (None, None) => listing!("documents_all", "?2 IS NULL AND ?3 IS NULL"),
        (None, Some(_)) => listing!("documents_state", "?2 IS NULL AND state = ?3"),
        (Some(_), None) => listing!("documents_of", "tenant = ?2 AND ?3 IS NULL"),
        (Some(_), Some(_)) => listing!("documents_of_state", "tenant = ?2 AND state = ?3"),
    };
    let (time, below) = before.map_or((i64::MAX, Vec::new()), |place| {
        (place.created_at.as_microsecond(), place.digest.to_vec())
    });
    let listed = params![kind.as_str(), tenant, state, time, below];
    let (found, is_cut) = readable(connection, sql, listed, kind, limit)?;
    let next = found.calls.last().filter(|_| is_cut).map(Place::of);
    Ok((found, next))
}

/// The documents of a query, at most `limit`, and whether there may be more. Those that cannot be read are passed
/// over.
fn readable(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    kind: Kind,
    limit: u32,
) -> rusqlite::Result<(Found<Document>, bool)> {
    let mut query = connection.prepare_cached(sql)?;
    let mut rows = query.query(params)?;
    let mut found = Found::default();
    while found.calls.len() < limit as usize && found.unreadable.len() < UNREADABLE as usize {
        let Some(row) = rows.next()? else {
            return Ok((found, false));
        };
        match read(kind, row) {
            Ok(document) => found.calls.push(document),
            Err(error) => {
                let id = row.get::<_, String>(1).unwrap_or_default();
                found.unreadable.push((id, error.to_string()));
            }
        }
    }
    Ok((found, true))
}

fn count(connection: &Connection, kind: Kind) -> rusqlite::Result<Vec<(String, u64)>> {
    let mut counts = connection.prepare_cached(
        "SELECT state, count(*) FROM documents WHERE kind = ?1 GROUP BY state ORDER BY state",
    )?;
    let counts = counts.query_map([kind.as_str()], |row| {
        Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs()))
    })?;
    counts.collect()
}

/// Deletes documents that are kept no longer, and answers how many.
pub(super) fn prune(connection: &Connection, now: i64, limit: u32) -> rusqlite::Result<usize> {
    let mut over = connection.prepare_cached(
        "DELETE FROM documents WHERE digest IN
            (SELECT digest FROM documents WHERE retain_until <= ?1 ORDER BY retain_until LIMIT ?2)",
    )?;
    over.execute(params![now, limit])
}

fn read(kind: Kind, row: &Row<'_>) -> rusqlite::Result<Document> {
    let mut columns = Columns::of(row);
    Ok(Document {
        kind,
        tenant: columns.read()?,
        id: columns.read()?,
        version: columns.read::<i64>()?.unsigned_abs(),
        state: columns.read()?,
        body: Bytes::from(columns.read::<Vec<u8>>()?),
        created_at: columns.time()?,
        due_at: columns.maybe_time()?,
        retain_until: columns.maybe_time()?,
    })
}
