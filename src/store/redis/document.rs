//! Documents. Must not know what they mean.
//!
//! All of it is in the first partition, so that a list is one question on a cluster, too: there are few of
//! them, beside calls.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use redis::{FromRedisValue, Script, Value};
use serde::{Deserialize, Serialize};

use super::answer::unreadable;
use super::keys::{self, Partition};
use super::scripts::command;
use super::store::Redis;
use crate::core::document::{Document, Kind, digest};
use crate::core::position::Position;
use crate::store::{Documents, Error, Found, Put, UNREADABLE};

const PARTITION: Partition = Partition::FIRST;
/// The fields of a document, in the order of `read`.
const FIELDS: [&str; 4] = ["version", "state", "rest", "body"];

/// The members of a document that scripts need not look at.
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
    async fn document(
        &self,
        kind: Kind,
        tenant: &str,
        id: &str,
    ) -> Result<Option<Document>, Error> {
        let ask = command("HMGET", (keys::document(digest(kind, tenant, id)), &FIELDS));
        read(kind, self.server.link.ask(&ask).await?)
    }

    async fn put_document(&self, document: &Document) -> Result<Put, Error> {
        let begins = document.version == 1;
        // What has begun goes on as long as it is known that all data is there, or while an operator accepts a loss.
        let is_accepting = self.epochs.is_accepting();
        if begins || self.server.status.is_in_doubt() && !is_accepting {
            self.server.status.must_be_open()?;
        }
        let scripts = &self.server.scripts;
        let scripts = [&scripts.create_document, &scripts.change_document];
        let epoch = self.server.memory.epoch();
        self.write_document(document, scripts, epoch, is_accepting)
            .await
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put, Error> {
        // Also while data is missing: it existed before, and triggers no sending.
        if document.needs_spare_room() {
            self.server.status.must_have_room()?;
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
    ) -> Result<Found<Document>, Error> {
        let mut due = Found::default();
        // What may have been lost is not worked on.
        if self.server.status.is_in_doubt() {
            return Ok(due);
        }
        // Those that cannot be read may stand before the others.
        for from in (0..=UNREADABLE).step_by(limit.max(1) as usize) {
            let digests = self
                .in_order(keys::documents_by("due", kind), now, from, limit)
                .await?;
            let found = self.read_documents(kind, &digests).await?;
            due.calls.extend(found.calls);
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
        kind: Kind,
        tenant: Option<&str>,
        state: Option<&str>,
        before: Option<&Position>,
        limit: u32,
    ) -> Result<(Found<Document>, Option<Position>), Error> {
        let newest = before.map_or_else(
            || b"+".to_vec(),
            |before| [&b"("[..], &before.to_bytes()[..]].concat(),
        );
        let list = keys::documents(kind, tenant, state);
        let ask = command(
            "ZRANGE",
            (list, newest, "-", "BYLEX", "REV", "LIMIT", 0, limit),
        );
        let places: Vec<Vec<u8>> = self.server.link.ask(&ask).await?;
        let places: Option<Vec<Position>> = places
            .iter()
            .map(|bytes| Position::from_bytes(bytes))
            .collect();
        let places = places.ok_or_else(|| unreadable("this is no place"))?;
        let digests: Vec<Vec<u8>> = places
            .iter()
            .map(|place| place.id.as_bytes().to_vec())
            .collect();
        let found = self.read_documents(kind, &digests).await?;
        let next = places
            .last()
            .copied()
            .filter(|_| places.len() >= limit as usize);
        Ok((found, next))
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>, Error> {
        let counts: Vec<(String, i64)> = self
            .server
            .link
            .ask(&command("HGETALL", keys::documents_by("count", kind)))
            .await?;
        let mut counts: Vec<(String, u64)> = counts
            .into_iter()
            .filter_map(|(state, count)| {
                Some((state, u64::try_from(count).ok().filter(|count| *count > 0)?))
            })
            .collect();
        counts.sort();
        Ok(counts)
    }
}

impl Redis {
    /// Writes a document.
    ///
    /// `scripts`: for its first version, and for later ones. `epoch`: of the data that it is written to; empty for any
    /// data. `is_looked_at`: also to a server that was started anew.
    async fn write_document(
        &self,
        document: &Document,
        [first, later]: [&Script; 2],
        epoch: String,
        is_looked_at: bool,
    ) -> Result<Put, Error> {
        let begins = document.version == 1;
        let document = document.to_the_microsecond();
        let stored = self
            .document(document.kind, &document.tenant, &document.id)
            .await?;
        let version = stored.as_ref().map_or(0, |stored| stored.version);
        if version + 1 != document.version && stored.as_ref() != Some(&document) {
            return Ok(Put::Lost(stored));
        }
        let script = if begins { first } else { later };
        let before = stored.as_ref().map(|stored| stored.state.as_str());
        let mut run = self.server.writing(script, "", PARTITION, epoch);
        run.key(names(&document, before.unwrap_or(&document.state)));
        let place = Position::of_document(&document);
        run.arg((&place.id.as_bytes()[..], &place.to_bytes()[..]));
        run.arg((
            stored
                .as_ref()
                .map_or(String::new(), |_| version.to_string()),
            before.unwrap_or_default(),
        ));
        run.arg((
            document.version,
            &document.state,
            rest(&document)?,
            &document.body[..],
        ));
        for time in [document.due_at, document.retain_until] {
            run.arg(time.map_or(String::new(), |time| time.as_microsecond().to_string()));
        }
        // A server that was started anew has been looked at by who accepts what it has lost. To put a document back
        // loads no script after which something may be sent.
        let answer = if is_looked_at {
            self.server.run(&run).await?
        } else {
            self.server.run_guarded(&run).await?
        };
        match answer.word.as_str() {
            "done" => {
                self.server.counted(PARTITION, &answer, 0).await?;
                Ok(Put::Done)
            }
            "changed" => Ok(Put::Lost(read(document.kind, answer.fields()?)?)),
            _ => Err(answer.no_sense()),
        }
    }
}

impl Redis {
    /// Deletes documents past their retention, and answers how many.
    pub(super) async fn forget_documents(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        let mut forgotten = 0;
        for kind in Kind::ALL {
            let digests = self
                .in_order(keys::documents_by("retained", kind), now, 0, limit)
                .await?;
            for document in self.read_documents(kind, &digests).await?.calls {
                let script = &self.server.scripts.forget_document;
                let mut run =
                    self.server
                        .writing(script, "", PARTITION, self.server.memory.epoch());
                run.key(&names(&document, "")[..9]);
                let place = Position::of_document(&document);
                run.arg((&place.id.as_bytes()[..], &place.to_bytes()[..]));
                run.arg((now.as_microsecond(), &document.state));
                self.server.run_deleting(&run).await?;
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }

    /// The digests of due documents of an index, the earliest first.
    async fn in_order(
        &self,
        index: String,
        now: Timestamp,
        from: u32,
        limit: u32,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let ask = (index, "-inf", now.as_microsecond(), "LIMIT", from, limit);
        self.server.link.ask(&command("ZRANGEBYSCORE", ask)).await
    }

    /// Reads documents. One that was deleted meanwhile is left out.
    async fn read_documents(
        &self,
        kind: Kind,
        digests: &[Vec<u8>],
    ) -> Result<Found<Document>, Error> {
        let mut asks = Vec::new();
        for found in digests {
            let found = found[..]
                .try_into()
                .map_err(|_| unreadable("this is no digest"))?;
            let ask = command("HMGET", (keys::document(found), &FIELDS));
            asks.push(ask);
        }
        let mut found = Found::default();
        if asks.is_empty() {
            return Ok(found);
        }
        let all: Vec<Vec<Value>> = self.server.link.ask_many(asks).await?;
        for (digest, fields) in digests.iter().zip(all) {
            let id = id_of(&fields);
            match read(kind, fields) {
                Ok(document) => found.calls.extend(document),
                Err(error) => {
                    found
                        .unreadable
                        .push((id.unwrap_or_else(|| hex::encode(digest)), error.to_string()));
                }
            }
        }
        Ok(found)
    }
}

/// The keys of a script about a document, in the order of the scripts.
fn names(document: &Document, before: &str) -> Vec<String> {
    let Document {
        kind,
        tenant,
        id,
        state,
        ..
    } = document;
    let tenants = |state: &str| {
        [
            keys::documents(*kind, None, Some(state)),
            keys::documents(*kind, Some(tenant), Some(state)),
        ]
    };
    let mut names = vec![
        keys::document(digest(*kind, tenant, id)),
        keys::documents_by("due", *kind),
        PARTITION.marks(),
        keys::documents_by("retained", *kind),
        keys::documents_by("count", *kind),
        keys::documents(*kind, None, None),
        keys::documents(*kind, Some(tenant), None),
    ];
    names.extend(tenants(state));
    names.extend(tenants(before));
    names
}

fn rest(document: &Document) -> Result<String, Error> {
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
    let rest = fields
        .get(2)
        .cloned()
        .and_then(|rest| Vec::<u8>::from_redis_value(rest).ok())?;
    serde_json::from_slice(&rest).ok().map(|rest: Rest| rest.id)
}

fn read(kind: Kind, fields: Vec<Value>) -> Result<Option<Document>, Error> {
    if fields.iter().all(|field| matches!(field, Value::Nil)) {
        return Ok(None);
    }
    let fields: Vec<Vec<u8>> = fields
        .into_iter()
        .map(FromRedisValue::from_redis_value)
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    let [version, state, rest, body] =
        <[Vec<u8>; 4]>::try_from(fields).map_err(|_| unreadable("a document has other fields"))?;
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
