//! The ledger: listing calls, their duplicates, forgetting them. Must not decide anything.
//!
//! Each tenant has lists of its calls, by each property that calls are found by: sorted sets of positions in
//! the tenant's partition, written in the same step as the call.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use redis::{FromRedisValue, Value};

use super::answer::{call_id, unreadable};
use super::keys::{self, Partition};
use super::record;
use super::scripts::{Run, command};
use super::store::Redis;
use crate::core::ledger::{
    self, Duplicates, Filter, History, Index, LISTED_DUPLICATES, Listed, Maker, PAGE_BYTES, Page,
};
use crate::core::position::Position;
use crate::core::record::{CallId, Record};
use crate::store::{Error, Ledger, duplicates};

/// Calls that one script deletes: it keeps all others waiting for some milliseconds.
const FORGOTTEN_AT_ONCE: usize = 100;
const DAY_US: i64 = 24 * 3_600 * 1_000_000;
/// Calls that one page looks at: one that finds little is shorter, rather than slower.
const LOOKS: usize = 2_000;
/// Calls that are looked at in one round.
const LOOKS_AT_ONCE: usize = 64;
/// Calls, and bytes of their arguments and results, that are read in one go; one call at least.
const READ_AT_ONCE: usize = 32;
const READ_BYTES: usize = 4 << 20;

#[async_trait]
impl Ledger for Redis {
    async fn maker(&self, call_id: CallId) -> Result<Option<Maker>, Error> {
        let ask = command("HGET", (keys::call(call_id), "intent"));
        let intent: Option<Vec<u8>> = self.server.link.ask(&ask).await?;
        let maker = intent.map(|intent| record::maker(&intent)).transpose();
        maker.map_err(unreadable)
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        let Some(mut fields) = self
            .fields_of_many(&[call_id], &record::FIELDS)
            .await?
            .pop()
        else {
            return Ok(None);
        };
        let duplicates = read_duplicates(fields.split_off(record::FIELDS.len()));
        let Some(record) = record::read(fields).map_err(unreadable)? else {
            return Ok(None);
        };
        let record = self.server.settled(record).await?;
        // Each version has one entry.
        let oldest = record.version.saturating_sub(u64::from(limit)) + 1;
        let entries: Vec<String> = (oldest..=record.version).map(record::entry_field).collect();
        let ask = command("HMGET", (keys::call(call_id), entries));
        let texts: Vec<Option<Vec<u8>>> = self.server.link.ask(&ask).await?;
        let entries = texts.iter().flatten().map(|text| record::read_entry(text));
        let entries = entries.collect::<Result<_, _>>().map_err(unreadable)?;
        Ok(Some(History {
            record,
            entries,
            duplicates,
        }))
    }

    async fn tenants(&self) -> Result<Vec<String>, Error> {
        let tenants = |partition: Partition| command("SMEMBERS", partition.tenants());
        let tenants: Vec<Vec<String>> = self.server.link.ask_each(tenants).await?;
        let mut tenants = tenants.concat();
        tenants.sort();
        tenants.dedup();
        Ok(tenants)
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>, Error> {
        let limit = limit as usize;
        let mut page = Page {
            found: Vec::new(),
            next: before,
            unreadable: 0,
        };
        let (mut looked, mut bytes) = (0, 0);
        loop {
            // Of those that are looked at few may pass: not one round for each that is missing.
            let wanted = (limit - page.found.len()).max(LOOKS_AT_ONCE);
            let places = self.positions(tenant, filter, page.next, wanted).await?;
            looked += places.found.len();
            for some in self.portions(filter, &places.found).await? {
                let (listed, unreadable) = self.read_listed(tenant, filter, some).await?;
                page.unreadable += unreadable;
                for (position, listed) in listed {
                    bytes += listed.as_ref().map_or(0, Listed::size);
                    page.found
                        .extend(listed.filter(|listed| filter.matches(&listed.record)));
                    if page.found.len() >= limit || bytes >= PAGE_BYTES {
                        page.next = Some(position);
                        return Ok(page);
                    }
                }
            }
            page.next = places.next;
            if page.next.is_none() || looked >= LOOKS {
                return Ok(page);
            }
        }
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error> {
        let mut run = Run::new(&self.server.scripts.arrived);
        run.key(keys::call(call_id))
            .arg(later.count)
            .arg(LISTED_DUPLICATES);
        for one in later.last.iter().take(LISTED_DUPLICATES) {
            run.arg(serde_json::to_string(&duplicates::stored(one)).map_err(unreadable)?);
        }
        self.server.link.run(&run).await.map(drop)
    }

    /// Deletes finished calls and documents whose retention is over, with all that leads to them.
    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        // What was lost is put back before anything is deleted.
        if self.server.status.is_in_doubt() {
            return Ok(0);
        }
        let mut forgotten = self.forget_documents(now, limit).await?;
        let now = now.as_microsecond();
        let over = |partition: Partition| command("ZCOUNT", (partition.retained(), "-inf", now));
        let over: Vec<usize> = self.server.link.ask_each(over).await?;
        let mut left = limit as usize;
        for (partition, mut over) in Partition::all().zip(over) {
            while over > 0 && left > 0 {
                let most = left.min(FORGOTTEN_AT_ONCE);
                let found = self.forget_some(partition, now, most).await?;
                if found == 0 {
                    break;
                }
                forgotten += found as u64;
                left -= found;
                over = over.saturating_sub(found);
            }
        }
        Ok(forgotten)
    }
}

impl Redis {
    /// Where the next calls are that the filter's index finds.
    async fn positions(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: usize,
    ) -> Result<Page<Position>, Error> {
        let below = |bytes: &[u8]| [&b"("[..], bytes].concat();
        let until = filter
            .until
            .map(|until| Position::time_bytes(until).to_vec());
        let before = before.map(|before| before.to_bytes().to_vec());
        let newest = until
            .into_iter()
            .chain(before)
            .min()
            .map_or_else(|| b"+".to_vec(), |to| below(&to));
        let since = filter.since.map(Position::time_bytes);
        let oldest = since.map_or_else(|| b"-".to_vec(), |since| [&b"["[..], &since].concat());
        let list = Partition::of_tenant(tenant).list(tenant, filter.index());
        let ask = command(
            "ZRANGE",
            (list, newest, oldest, "BYLEX", "REV", "LIMIT", 0, limit),
        );
        let found: Vec<Vec<u8>> = self.server.link.ask(&ask).await?;
        let found: Option<Vec<Position>> = found
            .iter()
            .map(|bytes| Position::from_bytes(bytes))
            .collect();
        let found = found.ok_or_else(|| unreadable("this is no position"))?;
        let next = found.last().copied().filter(|_| found.len() >= limit);
        Ok(Page {
            found,
            next,
            unreadable: 0,
        })
    }

    /// The same calls in portions that are small enough to be read in one go.
    async fn portions<'a>(
        &self,
        filter: &Filter,
        positions: &'a [Position],
    ) -> Result<Vec<&'a [Position]>, Error> {
        if filter.is_brief || positions.is_empty() {
            return Ok(positions.chunks(READ_AT_ONCE).collect());
        }
        let ask = |position: &Position| {
            let name = keys::call(position.call_id());
            ["args", "result"].map(|field| command("HSTRLEN", (&name, field)))
        };
        let sizes: Vec<usize> = self
            .server
            .link
            .ask_many(positions.iter().flat_map(ask).collect())
            .await?;
        let sizes: Vec<usize> = sizes.chunks(2).map(|sizes| sizes.iter().sum()).collect();
        Ok(portions(positions, &sizes))
    }

    /// The calls at these positions; `None` for one that has gone, or that cannot be read. And how many of these
    /// there were.
    async fn read_listed(
        &self,
        tenant: &str,
        filter: &Filter,
        positions: &[Position],
    ) -> Result<(Vec<(Position, Option<Listed>)>, u64), Error> {
        let ids: Vec<CallId> = positions
            .iter()
            .map(|position| position.call_id())
            .collect();
        let (mut found, mut unreadable) = (Vec::new(), 0);
        let names = if filter.is_brief {
            &record::BRIEF[..]
        } else {
            &record::FIELDS[..]
        };
        for (position, mut fields) in positions
            .iter()
            .zip(self.fields_of_many(&ids, names).await?)
        {
            let duplicates = read_duplicates(fields.split_off(names.len()));
            let read = if filter.is_brief {
                record::read_brief(fields)
            } else {
                record::read(fields)
            };
            let listed = match read {
                // What a replica does not have yet is as it is shown a moment later, or is lost.
                Ok(Some(record)) => Some(Listed {
                    record: self.server.settled(record).await?,
                    duplicates,
                }),
                Ok(None) => {
                    self.unlist(tenant, filter, position).await?;
                    None
                }
                Err(error) => {
                    tracing::error!(call_id = %position.call_id(), %error, "a call in a list cannot be read");
                    unreadable += 1;
                    None
                }
            };
            found.push((*position, listed));
        }
        Ok((found, unreadable))
    }

    /// Takes a call out of a list that has gone by itself, because no gateway was there for long.
    async fn unlist(
        &self,
        tenant: &str,
        filter: &Filter,
        position: &Position,
    ) -> Result<(), Error> {
        if self.server.status.is_in_doubt() {
            return Ok(());
        }
        let list = Partition::of_call(position.call_id()).list(tenant, filter.index());
        self.server
            .link
            .ask(&command("ZREM", (list, &position.to_bytes()[..])))
            .await
    }

    /// The fields of calls, and of their duplicates.
    async fn fields_of_many(
        &self,
        ids: &[CallId],
        names: &[&str],
    ) -> Result<Vec<Vec<Value>>, Error> {
        let ask = |call_id: &CallId| command("HMGET", (keys::call(*call_id), names, &DUPLICATES));
        self.server
            .link
            .ask_many(ids.iter().map(ask).collect())
            .await
    }

    /// Deletes the next calls of a partition whose time is over, in one step. Answers how many it has looked at.
    async fn forget_some(
        &self,
        partition: Partition,
        now: i64,
        most: usize,
    ) -> Result<usize, Error> {
        let ask = command(
            "ZRANGEBYSCORE",
            (partition.retained(), "-inf", now, "LIMIT", 0, most),
        );
        let ids: Vec<String> = self.server.link.ask(&ask).await?;
        let ids: Vec<CallId> = ids.iter().filter_map(|id| call_id(id)).collect();
        // Another gateway was faster.
        if ids.is_empty() {
            return Ok(0);
        }
        let brief = |id: &CallId| command("HMGET", (keys::call(*id), &record::BRIEF));
        let all: Vec<Vec<Value>> = self
            .server
            .link
            .ask_many(ids.iter().map(brief).collect())
            .await?;
        let mut over = Vec::new();
        for (id, fields) in ids.iter().zip(all) {
            match record::read_brief(fields) {
                Ok(Some(record)) => over.push(record),
                Ok(None) => {
                    for index in [partition.retained(), partition.key("failed")] {
                        let gone = command("ZREM", (index, id.to_string()));
                        self.server.link.ask::<()>(&gone).await?;
                    }
                }
                // A newer gateway may read it. Until then it is not in the way of the others.
                Err(error) => {
                    tracing::error!(call_id = %id, %error, "a call cannot be deleted; it is tried again in a day");
                    let later = (partition.retained(), "XX", now + DAY_US, id.to_string());
                    let later = command("ZADD", later);
                    self.server.link.ask::<()>(&later).await?;
                }
            }
        }
        if !over.is_empty() {
            self.forget(partition, &over, now).await?;
        }
        Ok(ids.len())
    }

    async fn forget(&self, partition: Partition, over: &[Record], now: i64) -> Result<(), Error> {
        let mut lists = BTreeMap::<String, String>::new();
        for (number, record) in (1..).zip(over) {
            let state = Index::State(record.state.as_str());
            for index in ledger::indexes(record).into_iter().chain([state]) {
                let calls = lists
                    .entry(partition.list(&record.intent.tenant, index))
                    .or_default();
                calls.push_str(&format!("{number} "));
            }
        }
        let holders: Vec<(usize, String)> = (1..)
            .zip(over)
            .flat_map(|(number, record)| {
                record
                    .all_names()
                    .map(move |name| (number, partition.holder(name)))
            })
            .collect();
        let names = [partition.retained(), partition.key("failed")];
        let mut run = self
            .server
            .writing_to(&self.server.scripts.forget, partition, names);
        run.arg((now, over.len(), holders.len()));
        for record in over {
            let call_id = record.intent.call_id;
            run.key(keys::call(call_id)).arg(call_id.to_string());
        }
        for record in over {
            run.arg(&Position::of(record).to_bytes()[..]);
        }
        for (number, holder) in holders {
            run.key(holder).arg(number);
        }
        for (list, calls) in lists {
            run.key(list).arg(calls);
        }
        self.server.run_deleting(&run).await.map(drop)
    }
}

/// Portions of items of these sizes, each at most [`READ_AT_ONCE`] and [`READ_BYTES`], or a single item.
fn portions<'a, T>(mut items: &'a [T], sizes: &[usize]) -> Vec<&'a [T]> {
    let (mut portions, mut sizes) = (Vec::new(), sizes.iter());
    while !items.is_empty() {
        let mut bytes = sizes.next().copied().unwrap_or(0);
        let more = sizes.as_slice().iter().take_while(|size| {
            bytes += **size;
            bytes <= READ_BYTES
        });
        let more = more.count().min(READ_AT_ONCE - 1);
        sizes = sizes.as_slice()[more..].iter();
        let (portion, rest) = items.split_at((more + 1).min(items.len()));
        portions.push(portion);
        items = rest;
    }
    portions
}

/// The fields of a call's duplicates.
const DUPLICATES: [&str; 2] = ["duplicates", "arrived"];

/// What cannot be read of the newest ones is not shown; the count stands beside it.
fn read_duplicates(fields: Vec<Value>) -> Duplicates {
    let mut fields = fields
        .into_iter()
        .map(|field| Option::<String>::from_redis_value(field).ok().flatten());
    let count = fields
        .next()
        .flatten()
        .and_then(|count| count.parse().ok())
        .unwrap_or(0);
    let lines = fields.next().flatten().unwrap_or_default();
    let last = lines
        .lines()
        .filter_map(|line| duplicates::read(serde_json::from_str(line).ok()?));
    Duplicates {
        count,
        last: last.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_as_large_as_they_may_be_and_none_is_empty() {
        let lengths = |sizes: &[usize]| {
            let items: Vec<usize> = (0..sizes.len()).collect();
            let portions = portions(&items, sizes);
            assert_eq!(portions.concat(), items, "each once, in their order");
            portions
                .iter()
                .map(|portion| portion.len())
                .collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[]), [0_usize; 0]);
        assert_eq!(lengths(&[1; 70]), [32, 32, 6]);
        let third = READ_BYTES / 3;
        assert_eq!(lengths(&[third; 7]), [3, 3, 1]);
        assert_eq!(
            lengths(&[2 * READ_BYTES, 1, 1, 2 * READ_BYTES, READ_BYTES]),
            [1, 2, 1, 1]
        );
    }
}
