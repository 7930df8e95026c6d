//! Documents as rows. Must not know what documents mean.

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::link::params;
use super::store::Postgres;
use crate::calls::session::time;
use crate::link::lanes::Verb;
use crate::link::rows::{get, signed, unexpected, unreadable};
use oncegate_rules::document::{Document, Kind, digest};
use oncegate_rules::position::Position;
use oncegate_store::{DocumentQuery, Documents, Found, Put, Result};

const LOAD: &str = "SELECT * FROM documents WHERE digest = $1";
const DUE: &str =
    "SELECT * FROM documents WHERE kind = $1 AND due_at <= $2 ORDER BY due_at, digest LIMIT $3";
/// A page: which documents of the kind. Each with an index of its own, so that no page reads what it does not list.
macro_rules! page {
    ($which:literal) => {
        concat!(
            "SELECT * FROM documents WHERE kind = $1 AND ",
            $which,
            " AND (created_at, digest) < ($4, $5) ORDER BY created_at DESC, digest DESC LIMIT $6"
        )
    };
}
const ALL: &str = page!("$2::bytea IS NULL AND $3::text IS NULL");
const IN_STATE: &str = page!("$2::bytea IS NULL AND state = $3");
const OF: &str = page!("tenant = $2 AND $3::text IS NULL");
const OF_IN_STATE: &str = page!("tenant = $2 AND state = $3");
const COUNT: &str = "SELECT state, count(*) FROM documents WHERE kind = $1 GROUP BY state ORDER BY state COLLATE \"C\"";
const PUT: &str = "put_document_1";

#[async_trait]
impl Documents for Postgres {
    async fn document(&self, kind: Kind, tenant: &str, id: &str) -> Result<Option<Document>> {
        let digest = Uuid::from_bytes(digest(kind, tenant, id));
        let rows = self.server.calls.ask(LOAD, &[&digest]).await?;
        rows.first().map(|row| read(kind, row)).transpose()
    }

    async fn put_document(&self, document: &Document) -> Result<Put> {
        let (status, epochs) = (&self.server.status, &self.watch.epochs);
        // A later version needs only that all data is known to be there, or that an operator is accepting a loss.
        let is_accepting = epochs.is_accepting();
        if document.version == 1 || status.is_in_doubt() && !is_accepting {
            status.must_be_open()?;
        }
        self.write_document(document, !is_accepting).await
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put> {
        // Also while data is missing: the document existed before, and triggers no sending.
        if document.needs_spare_space() {
            self.server.status.must_have_space()?;
        }
        self.write_document(document, false).await
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>> {
        // Until it is known whether data is lost, a stored document may not be the newest version.
        if self.server.status.is_in_doubt() {
            return Ok(Found::default());
        }
        let (word, now, ledger) = (kind.as_str(), now.as_microsecond(), &self.server.ledger);
        let read = move |row: &Row| read(kind, row);
        ledger.search(DUE, &[&word, &now], limit, read, shown).await
    }

    async fn documents(
        &self,
        query: &DocumentQuery,
    ) -> Result<(Found<Document>, Option<Position>)> {
        let (kind, limit, before) = (query.kind, query.limit, query.before);
        let sql = match (&query.tenant, &query.state) {
            (None, None) => ALL,
            (None, Some(_)) => IN_STATE,
            (Some(_), None) => OF,
            (Some(_), Some(_)) => OF_IN_STATE,
        };
        let tenant = query.tenant.as_ref().map(|tenant| tenant.as_bytes());
        let older = before.map_or(i64::MAX, |before| before.created_at.as_microsecond());
        let id = before.map_or(Uuid::nil(), |before| before.id);
        let (word, count) = (kind.as_str(), i64::from(limit));
        let listed: [&(dyn ToSql + Sync); 6] = [&word, &tenant, &query.state, &older, &id, &count];
        let rows = self.server.ledger.ask(sql, &listed).await?;
        // A page may have unreadable documents; the next one begins behind the last row.
        let last = rows.last().filter(|_| rows.len() >= limit as usize);
        let position = |row: &Row| {
            let (id, created_at) = (get(row, "digest")?, time(get(row, "created_at")?)?);
            Ok(Position { created_at, id })
        };
        let next = last.map(position).transpose()?;
        let found = Found::read(&rows, limit, |row| read(kind, row), shown);
        Ok((found, next))
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>> {
        let rows = self.server.ledger.ask(COUNT, &[&kind.as_str()]).await?;
        let count = |row: &Row| Ok((get(row, 0)?, get::<i64>(row, 1)?.unsigned_abs()));
        rows.iter().map(count).collect()
    }
}

impl Postgres {
    /// Writes a document. `is_guarded`: only to the inspected server and the known data.
    async fn write_document(&self, document: &Document, is_guarded: bool) -> Result<Put> {
        let document = document.to_the_microsecond();
        let digest = document.digest();
        let params = params![
            is_guarded.then(|| self.server.known()),
            Uuid::from_bytes(digest),
            document.kind.as_str(),
            document.tenant.clone().into_bytes(),
            document.id.clone().into_bytes(),
            signed(document.version),
            document.state.clone(),
            document.created_at.as_microsecond(),
            document.due_at.map(Timestamp::as_microsecond),
            document.retain_until.map(Timestamp::as_microsecond),
            document.body.to_vec(),
        ];
        let verb = Verb::about(&digest, PUT, params);
        let answer = self.server.run_guarded(verb).await?;
        match get(&answer, 0)? {
            "done" => {
                let written = (document.version, document.retain_until);
                self.server.memory.wrote(Uuid::from_bytes(digest), written);
                Ok(Put::Done)
            }
            "changed" => {
                let stored = self.document(document.kind, &document.tenant, &document.id);
                Ok(Put::Lost(stored.await?))
            }
            word => Err(unexpected(word)),
        }
    }
}

/// The id of a document for the log; its digest if that is unreadable, too.
fn shown(row: &Row) -> String {
    let id =
        text(row, "id").or_else(|_| get(row, "digest").map(|id: Uuid| id.simple().to_string()));
    id.unwrap_or_default()
}

fn read(kind: Kind, row: &Row) -> Result<Document> {
    let maybe_time = |column| {
        let at: Option<i64> = get(row, column)?;
        at.map(|at| time(Some(at))).transpose()
    };
    Ok(Document {
        kind,
        id: text(row, "id")?,
        tenant: text(row, "tenant")?,
        version: get::<i64>(row, "version")?.unsigned_abs(),
        state: get(row, "state")?,
        body: get::<&[u8]>(row, "body")?.to_vec().into(),
        created_at: time(get(row, "created_at")?)?,
        due_at: maybe_time("due_at")?,
        retain_until: maybe_time("retain_until")?,
    })
}

fn text(row: &Row, column: &str) -> Result<String> {
    String::from_utf8(get::<&[u8]>(row, column)?.to_vec()).map_err(unreadable)
}
