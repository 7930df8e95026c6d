//! The ledger: listing calls, and their duplicates. Must not decide anything.
//!
//! Each tenant has lists of its calls, one for each property by which calls are searched. A list is a sorted set of
//! positions in the tenant's partition, and is written in the same step as the call. The lists of a tenant's tools together
//! have all its calls. The name of an idempotency key leads to the call that holds it; other calls with the key are in a
//! list by key.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use crate::calls::find::{READ_AT_ONCE, READ_BYTES};
use crate::calls::record;
use crate::keys::{self, Partition};
use crate::link::answer::{positions, unreadable};
use crate::scripts::{Run, command};
use crate::server::Server;
use crate::store::Redis;
use oncegate_rules::key::Lookup;
use oncegate_rules::ledger::{
    Duplicates, Filter, History, Index, LISTED_DUPLICATES, Listed, Maker, Page,
};
use oncegate_rules::position::Position;
use oncegate_rules::record::CallId;
use oncegate_store::shared::pages::{self, LOOKS, page};
use oncegate_store::{Ledger, Result, codec};

#[async_trait]
impl Ledger for Redis {
    async fn maker(&self, call_id: CallId) -> Result<Option<Maker>> {
        let beginning = self.server.link.beginnings(&[call_id]).await?.pop();
        let maker = beginning.flatten().map(|text| record::maker(&text));
        let maker = maker.transpose();
        maker.map_err(unreadable)
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>> {
        let texts = texts(&self.server, &[call_id]).await?.pop();
        let Some([Some(text), duplicates]) = texts else {
            return Ok(None);
        };
        let record = record::read(&text).map_err(unreadable)?;
        let entries = record::entries(&text, &record, limit).map_err(unreadable)?;
        Ok(Some(History {
            record: self.server.settled(record).await?,
            entries,
            duplicates: read_duplicates(duplicates),
        }))
    }

    async fn tenants(&self) -> Result<Vec<String>> {
        let tenants = |partition: Partition| command("SMEMBERS", partition.key("tenants"));
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
    ) -> Result<Page<Listed>> {
        let listing = Listing {
            server: &self.server,
            partition: Partition::of_tenant(tenant),
            tenant,
            filter,
        };
        page(&listing, before, limit as usize).await
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<()> {
        let last = later.last.iter().take(LISTED_DUPLICATES);
        let run = Run::new(&self.server.scripts.arrived)
            .key((keys::call(call_id), keys::duplicates(call_id)))
            .arg((later.count, LISTED_DUPLICATES))
            .arg(last.map(codec::duplicate).collect::<Vec<_>>());
        self.server.link.run(&run).await.map(drop)
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64> {
        self.forget_all(now, limit).await
    }
}

/// A search for calls of a tenant.
struct Listing<'a> {
    server: &'a Server,
    partition: Partition,
    tenant: &'a str,
    filter: &'a Filter,
}

#[async_trait]
impl pages::Listing for Listing<'_> {
    const PORTION: (usize, usize) = (READ_AT_ONCE, READ_BYTES);

    fn filter(&self) -> &Filter {
        self.filter
    }

    async fn positions(&self, before: Option<Position>, limit: usize) -> Result<Page<Position>> {
        let mut unreadable = 0;
        let mut found = match self.filter.index() {
            Index::All => {
                let tools = self.tools().await?;
                let lists: Vec<_> = tools.iter().map(|tool| Index::Tool(tool)).collect();
                self.in_lists(&lists, before, limit).await?
            }
            Index::Key(key) => {
                let mut found = self.in_lists(&[Index::Key(key)], before, limit).await?;
                let (holders, unplaced) = self.holders_of_key(key).await?;
                found.extend(holders);
                unreadable = unplaced;
                found
            }
            Index::State("running") => self.running().await?,
            index => self.in_lists(&[index], before, limit).await?,
        };
        let since = self.filter.since;
        found.retain(|position| {
            let time = position.created_at;
            before.is_none_or(|before| *position < before)
                && since.is_none_or(|since| time >= since)
        });
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.dedup();
        found.truncate(limit);
        Ok(Page {
            unreadable,
            ..Page::first(found, limit)
        })
    }

    async fn sizes(&self, positions: &[Position]) -> Result<Vec<usize>> {
        self.server.link.sizes(positions).await
    }

    async fn read(&self, positions: &[Position]) -> Result<(Vec<(Position, Option<Listed>)>, u64)> {
        let ids: Vec<CallId> = positions.iter().map(Position::call_id).collect();
        let (mut found, mut unreadable) = (Vec::new(), 0);
        let read: Vec<_> = if self.filter.is_brief {
            let duplicates = ids.iter().map(|call_id| keys::duplicates(*call_id));
            let duplicates = self.server.link.get_all(duplicates).await?;
            let duplicates = duplicates.into_iter().map(|text| text.map(Bytes::from));
            let briefs = self.server.briefs(&ids).await?.into_iter();
            briefs.zip(duplicates).collect()
        } else {
            let read = |[text, duplicates]: [Option<Bytes>; 2]| {
                let record = text.map(|text| record::read(&text)).transpose();
                (record, duplicates)
            };
            let texts = texts(self.server, &ids).await?;
            texts.into_iter().map(read).collect()
        };
        for (position, (read, duplicates)) in positions.iter().zip(read) {
            let call = match read {
                // A call that a replica lacks is shown once the replica has it, or is lost.
                Ok(Some(record)) => Some(Listed {
                    record: self.server.settled(record).await?,
                    duplicates: read_duplicates(duplicates),
                }),
                Ok(None) => {
                    self.unlist(position).await?;
                    None
                }
                Err(error) => {
                    tracing::error!(call_id = %position.call_id(), %error, "a call in a list cannot be read");
                    unreadable += 1;
                    None
                }
            };
            found.push((*position, call));
        }
        Ok((found, unreadable))
    }
}

impl Listing<'_> {
    /// The next positions of each of these lists.
    async fn in_lists(
        &self,
        lists: &[Index<'_>],
        before: Option<Position>,
        limit: usize,
    ) -> Result<Vec<Position>> {
        let bound = |sign: &[u8], bytes: &[u8]| [sign, bytes].concat();
        let below = before.map(|before| before.to_bytes());
        let newest = below.map_or_else(|| b"+".to_vec(), |below| bound(b"(", &below));
        let since = self.filter.since.map(Position::time_bytes);
        let oldest = since.map_or_else(|| b"-".to_vec(), |since| bound(b"[", &since));
        let range = |list: &Index<'_>| {
            let bounds = (self.partition.list(self.tenant, *list), &newest, &oldest);
            command("ZRANGE", (bounds, "BYLEX", "REV", "LIMIT", 0, limit))
        };
        let ranges = lists.iter().map(range);
        let found: Vec<Vec<Vec<u8>>> = self.server.link.ask_many(ranges).await?;
        positions(&found.concat())
    }

    /// The tools that the tenant has called.
    async fn tools(&self) -> Result<Vec<String>> {
        let tools = self.partition.tools(self.tenant);
        self.server.link.ask("SMEMBERS", tools).await
    }

    /// The calls that hold this key at each tool of the tenant.
    ///
    /// Also how many of them cannot be read: only the call itself says at which position it is listed.
    async fn holders_of_key(&self, key: &str) -> Result<(Vec<Position>, u64)> {
        let tools = self.tools().await?;
        let names = tools.iter().map(|tool| Lookup::new(self.tenant, tool, key));
        let holders = names.map(|name| self.partition.holder(&name));
        let holders = self.server.link.get_all(holders).await?;
        let (mut found, mut unreadable, mut ids) = (Vec::new(), 0, Vec::new());
        for holder in holders.iter().flatten() {
            match keys::call_id(holder) {
                Some(call_id) => ids.push(call_id),
                None => unreadable += 1,
            }
        }
        for (call_id, call) in ids.iter().zip(self.server.briefs(&ids).await?) {
            match call {
                Ok(record) => found.extend(record.as_ref().map(Position::of)),
                Err(error) => {
                    tracing::error!(%call_id, %error, "the call that holds a key cannot be read");
                    unreadable += 1;
                }
            }
        }
        Ok((found, unreadable))
    }

    /// The running calls of the tenant: its partition has few.
    async fn running(&self) -> Result<Vec<Position>> {
        let index = (self.partition.key("running"), 0, -1);
        let all: Vec<Vec<u8>> = self.server.link.ask("ZRANGE", index).await?;
        let all = all.iter().filter_map(|bytes| Position::from_bytes(bytes));
        let mut of_tenant = Vec::new();
        for some in all.collect::<Vec<_>>().chunks(LOOKS) {
            let ids: Vec<CallId> = some.iter().map(Position::call_id).collect();
            let calls = self.server.briefs(&ids).await?;
            for (place, call) in some.iter().zip(calls) {
                let is_its_own = match call {
                    Ok(Some(record)) => record.intent.tenant == self.tenant,
                    Ok(None) => false,
                    // Its tenant's lists show whose call it is. That it is unreadable is logged when it is read.
                    Err(_) => self.is_listed(place).await?,
                };
                of_tenant.extend(is_its_own.then_some(*place));
            }
        }
        Ok(of_tenant)
    }

    /// Whether a call is in the list of one of the tenant's tools.
    async fn is_listed(&self, place: &Position) -> Result<bool> {
        let tools = self.tools().await?;
        let score = |tool: &String| {
            let list = self.partition.list(self.tenant, Index::Tool(tool));
            command("ZSCORE", (list, &place.to_bytes()))
        };
        let scores: Vec<Option<f64>> = self.server.link.ask_many(tools.iter().map(score)).await?;
        Ok(scores.iter().any(Option::is_some))
    }

    /// Removes a call from a list, if the call itself is gone.
    async fn unlist(&self, position: &Position) -> Result<()> {
        if self.server.status.is_in_doubt() {
            return Ok(());
        }
        let tools = self.tools().await?;
        let lists: Vec<Index<'_>> = match self.filter.index() {
            Index::All => tools.iter().map(|tool| Index::Tool(tool)).collect(),
            Index::State("running") => return Ok(()),
            index => vec![index],
        };
        for list in lists {
            let list = Partition::of_call(position.call_id()).list(self.tenant, list);
            self.server.take_out_of(list, position).await?;
        }
        Ok(())
    }
}

/// The texts of calls and of their duplicates.
async fn texts(server: &Server, ids: &[CallId]) -> Result<Vec<[Option<Bytes>; 2]>> {
    let keys = |call_id: &CallId| [keys::call(*call_id), keys::duplicates(*call_id)];
    let gets = ids.iter().flat_map(keys).map(|key| command("GET", key));
    let texts: Vec<Option<Bytes>> = server.link.ask_many(gets).await?;
    Ok(texts.as_chunks().0.to_vec())
}

/// Reads the count of duplicates and the newest of them. Leaves out unreadable ones, which are counted all the same.
fn read_duplicates(text: Option<Bytes>) -> Duplicates {
    let text = text.unwrap_or_default();
    let Some((count, mut rest)) = text.split_first_chunk() else {
        return Duplicates::default();
    };
    let mut last = Vec::new();
    while let Some((length, more)) = rest.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        let (one, more) = more.split_at(length.min(more.len()));
        last.extend(codec::read_duplicate(one));
        rest = more;
    }
    Duplicates {
        count: u64::from_be_bytes(*count),
        last,
    }
}
