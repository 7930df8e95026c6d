//! Documents. Must not know what they mean.
//!
//! All of them are in the first partition, so that one command reads a list on a cluster, too. There are far fewer
//! documents than calls.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use redis::{FromRedisValue, Script, Value};
use serde::{Deserialize, Serialize};

use super::keys::{self, Partition};
use super::scripts::command;
use super::store::Redis;
use crate::calls::record;
use crate::link::answer::{positions, unreadable};
use oncegate_rules::document::{Document, Kind, digest};
use oncegate_rules::position::Position;
use oncegate_store::{DocumentQuery, Documents, Error, Found, Put, Result, UNREADABLE};

const PARTITION: Partition = Partition::FIRST;
/// The fields of a document, in the order of `read`.
const FIELDS: [&str; 4] = ["version", "state", "rest", "body"];

/// The members of a document that scripts do not read.
#[derive(Serialize, Deserialize)]
struct Rest {
    tenant: String,
    id: String,
    created_at: i64,
    due_at: Option<i64>,
    retain_until: Option<i64>,
}

#[async_trait]
impl Documents for Redis {
    async fn document(&self, kind: Kind, tenant: &str, id: &str) -> Result<Option<Document>> {
        let key = keys::document(digest(kind, tenant, id));
        read(kind, self.server.link.ask("HMGET", (key, &FIELDS)).await?)
    }

    async fn put_document(&self, document: &Document) -> Result<Put> {
        let begins = document.version == 1;
        // A later version needs only that all data is known to be there, or that an operator is accepting a loss.
        let is_accepting = self.watch.epochs.is_accepting();
        if begins || self.server.status.is_in_doubt() && !is_accepting {
            self.server.status.must_be_open()?;
        }
        let scripts = &self.server.scripts;
        let scripts = [&scripts.create_document, &scripts.change_document];
        let epoch = self.server.memory.epoch();
        self.write_document(document, scripts, epoch, is_accepting)
            .await
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put> {
        // Also while data is missing: the document existed before, and triggers no sending.
        if document.needs_spare_space() {
            self.server.status.must_have_space()?;
        }
        let scripts = &self.server.scripts;
        let scripts = [&scripts.make_again, &scripts.put_back];
        self.write_document(document, scripts, String::new(), true)
            .await
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>> {
        let mut due = Found::default();
        // Until lost writes are put back, a stored document may not be the newest version.
        if self.server.status.is_in_doubt() {
            return Ok(due);
        }
        // Unreadable documents may be due before readable ones.
        for from in (0..=UNREADABLE).step_by(limit.max(1) as usize) {
            let digests = self.in_order("due", kind, now, from, limit).await?;
            let found = self.read_documents(kind, &digests).await?;
            // Another gateway may have taken one since the index was read. It is not due any more.
            let is_due = |document: &Document| document.due_at.is_some_and(|due_at| due_at <= now);
            due.calls.extend(found.calls.into_iter().filter(is_due));
            due.unreadable.extend(found.unreadable);
            if due.calls.len() >= limit as usize || digests.len() < limit as usize {
                break;
            }
        }
        due.calls.truncate(limit as usize);
        Ok(due)
    }

    async fn documents(
        &self,
        query: &DocumentQuery,
    ) -> Result<(Found<Document>, Option<Position>)> {
        let (kind, limit) = (query.kind, query.limit);
        let newest = query.before.map_or_else(
            || b"+".to_vec(),
            |before| [&b"("[..], &before.to_bytes()].concat(),
        );
        let list = keys::documents(kind, query.tenant.as_deref(), query.state.as_deref());
        let range = (list, newest, "-", "BYLEX", "REV", "LIMIT", 0, limit);
        let places: Vec<Vec<u8>> = self.server.link.ask("ZRANGE", range).await?;
        let places = positions(&places)?;
        let digests: Vec<_> = places.iter().map(|place| place.id.into_bytes()).collect();
        let found = self.read_documents(kind, &digests).await?;
        let may_be_more = places.len() >= limit as usize;
        Ok((found, places.last().copied().filter(|_| may_be_more)))
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>> {
        let key = keys::documents_by("count", kind);
        let counts: Vec<(String, i64)> = self.server.link.ask("HGETALL", key).await?;
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        let counts = counts.map(|(state, count)| (state, count.unsigned_abs()));
        let mut counts: Vec<_> = counts.collect();
        counts.sort();
        Ok(counts)
    }
}

impl Redis {
    /// Writes a document, with the first script if it is the first version.
    ///
    /// `epoch`: of the data that it is written to; empty for any data. `is_inspected`: also to a restarted server.
    async fn write_document(
        &self,
        document: &Document,
        [first, later]: [&Script; 2],
        epoch: String,
        is_inspected: bool,
    ) -> Result<Put> {
        let document = document.to_the_microsecond();
        // The script of a first version says itself what is stored.
        let stored = match document.version {
            1 => None,
            _ => {
                self.document(document.kind, &document.tenant, &document.id)
                    .await?
            }
        };
        let version = stored.as_ref().map_or(0, |stored| stored.version);
        if version + 1 != document.version && stored.as_ref() != Some(&document) {
            return Ok(Put::Lost(stored));
        }
        let before = stored.as_ref().map(|stored| stored.state.as_str());
        let expected = record::or_empty(stored.as_ref().map(|stored| stored.version));
        let place = Position::of_document(&document);
        let script = if document.version == 1 { first } else { later };
        let run = self
            .server
            .writing(script, PARTITION, epoch)
            .key(names(&document))
            .key(&state_lists(&document, before.unwrap_or(&document.state)))
            .arg((place.id.as_bytes(), &place.to_bytes()))
            .arg((expected, before.unwrap_or_default()))
            .arg((document.version, &document.state))
            .arg((rest(&document)?, &document.body[..]))
            .arg(record::microseconds(document.due_at))
            .arg(record::microseconds(document.retain_until));
        // Accepting a loss has inspected a restarted server. To put a document back loads no script after which a
        // request may be sent.
        let answer = if is_inspected {
            self.server.run(run).await?
        } else {
            self.server.run_guarded(run).await?
        };
        match answer.word.as_str() {
            "done" => {
                self.server.counted(PARTITION, &answer, 0).await?;
                Ok(Put::Done)
            }
            "changed" => Ok(Put::Lost(read(document.kind, answer.fields()?)?)),
            _ => Err(answer.unexpected()),
        }
    }

    /// Deletes documents past their retention, and answers how many.
    pub(super) async fn forget_documents(&self, now: Timestamp, limit: u32) -> Result<u64> {
        let mut forgotten = 0;
        for kind in Kind::ALL {
            let digests = self.in_order("retained", kind, now, 0, limit).await?;
            for document in self.read_documents(kind, &digests).await?.calls {
                let script = &self.server.scripts.forget_document;
                let place = Position::of_document(&document);
                let run = self
                    .server
                    .writing(script, PARTITION, self.server.memory.epoch())
                    .key(names(&document))
                    .arg((place.id.as_bytes(), &place.to_bytes()))
                    .arg((now.as_microsecond(), &document.state));
                self.server.run_deleting(run).await?;
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }

    /// The digests of the documents in an index up to now, the earliest first.
    async fn in_order(
        &self,
        index: &str,
        kind: Kind,
        now: Timestamp,
        from: u32,
        limit: u32,
    ) -> Result<Vec<[u8; 16]>> {
        let (index, now) = (keys::documents_by(index, kind), now.as_microsecond());
        let range = (index, "-inf", now, "LIMIT", from, limit);
        self.server.link.ask("ZRANGEBYSCORE", range).await
    }

    /// Reads documents. Leaves out those that were deleted meanwhile.
    async fn read_documents(&self, kind: Kind, digests: &[[u8; 16]]) -> Result<Found<Document>> {
        let fields = |digest: &[u8; 16]| command("HMGET", (keys::document(*digest), &FIELDS));
        let all = self.server.link.ask_many(digests.iter().map(fields));
        let all: Vec<Vec<Value>> = all.await?;
        let mut found = Found::default();
        for (digest, fields) in digests.iter().zip(all) {
            let id = id_of(&fields);
            match read(kind, fields) {
                Ok(document) => found.calls.extend(document),
                Err(error) => {
                    let id = id.unwrap_or_else(|| hex::encode(digest));
                    found.unreadable.push((id, error.to_string()));
                }
            }
        }
        Ok(found)
    }
}

/// The keys of a script about a document, in the order of the scripts.
fn names(document: &Document) -> Vec<String> {
    let (kind, tenant) = (document.kind, &document.tenant);
    let mut names = vec![
        keys::document(document.digest()),
        keys::documents_by("due", kind),
        PARTITION.counters(),
        keys::documents_by("retained", kind),
        keys::documents_by("count", kind),
        keys::documents(kind, None, None),
        keys::documents(kind, Some(tenant), None),
    ];
    names.extend(state_lists(document, &document.state));
    names
}

/// The lists of documents in a state: of all tenants, and of the document's tenant.
fn state_lists(document: &Document, state: &str) -> [String; 2] {
    [None, Some(&*document.tenant)]
        .map(|tenant| keys::documents(document.kind, tenant, Some(state)))
}

fn rest(document: &Document) -> Result<String> {
    let rest = Rest {
        tenant: document.tenant.clone(),
        id: document.id.clone(),
        created_at: document.created_at.as_microsecond(),
        due_at: document.due_at.map(Timestamp::as_microsecond),
        retain_until: document.retain_until.map(Timestamp::as_microsecond),
    };
    serde_json::to_string(&rest).map_err(|error| Error::Refused(error.to_string()))
}

/// The id of a document, as far as it can be read.
fn id_of(fields: &[Value]) -> Option<String> {
    let rest = Vec::<u8>::from_redis_value(fields.get(2)?.clone()).ok()?;
    serde_json::from_slice(&rest).ok().map(|rest: Rest| rest.id)
}

fn read(kind: Kind, fields: Vec<Value>) -> Result<Option<Document>> {
    if fields.iter().all(|field| matches!(field, Value::Nil)) {
        return Ok(None);
    }
    let fields = <[Vec<u8>; 4]>::from_redis_value(Value::Array(fields)).map_err(unreadable)?;
    let [version, state, rest, body] = fields;
    let utf8 = |text: Vec<u8>| String::from_utf8(text).map_err(unreadable);
    let rest: Rest = serde_json::from_slice(&rest).map_err(unreadable)?;
    let time = |time: i64| Timestamp::from_microsecond(time).map_err(unreadable);
    Ok(Some(Document {
        kind,
        tenant: rest.tenant,
        id: rest.id,
        version: utf8(version)?.parse().map_err(unreadable)?,
        state: utf8(state)?,
        created_at: time(rest.created_at)?,
        due_at: rest.due_at.map(time).transpose()?,
        retain_until: rest.retain_until.map(time).transpose()?,
        body: Bytes::from(body),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_cannot_be_read_is_named_if_its_id_can_be() {
        let rest =
            r#"{"tenant":"shop","id":"saga 7","created_at":0,"due_at":null,"retain_until":null}"#;
        let fields = |rest: &str| {
            let fields = ["no number", "open", rest, "{}"];
            fields.map(|field| Value::BulkString(field.into())).to_vec()
        };
        assert!(read(Kind::Saga, fields(rest)).is_err());
        assert_eq!(id_of(&fields(rest)).as_deref(), Some("saga 7"));
        assert_eq!(id_of(&fields("spoiled")), None);
        assert_eq!(id_of(&[]), None);
    }
}
