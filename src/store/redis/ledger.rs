//! The ledger: listing calls, and their duplicates. Must not decide anything.
//!
//! Each tenant has lists of its calls, one for each property by which calls are searched. A list is a sorted set of
//! positions in the tenant's partition, and is written in the same step as the call. The lists of a tenant's tools have all
//! its calls. A call is found by its key through its name; if that name does not find it, it is in a list by key.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use super::answer::unreadable;
use super::find::{READ_AT_ONCE, portions};
use super::keys::{self, Partition};
use super::record;
use super::scripts::{Run, command};
use super::store::Redis;
use crate::core::key::Lookup;
use crate::core::ledger::{
    Duplicates, Filter, History, Index, LISTED_DUPLICATES, Listed, Maker, PAGE_BYTES, Page,
};
use crate::core::position::Position;
use crate::core::record::CallId;
use crate::store::{Error, Ledger, codec};

/// Most calls that one page looks at: with few matches it ends early.
const LOOKS: usize = 2_000;
/// Calls of one round.
const LOOKS_AT_ONCE: usize = 64;

#[async_trait]
impl Ledger for Redis {
    async fn maker(&self, call_id: CallId) -> Result<Option<Maker>, Error> {
        let beginning = self
            .server
            .link
            .beginnings(&[call_id])
            .await?
            .pop()
            .flatten();
        let maker = beginning.map(|text| record::maker(&text)).transpose();
        maker.map_err(unreadable)
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        let Some([text, duplicates]) = self.texts(&[call_id]).await?.pop() else {
            return Ok(None);
        };
        let Some(text) = text else { return Ok(None) };
        let record = record::read(&text).map_err(unreadable)?;
        let entries = record::entries(&text, &record, limit).map_err(unreadable)?;
        Ok(Some(History {
            record: self.server.settled(record).await?,
            entries,
            duplicates: read_duplicates(duplicates),
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
        let (mut looked, mut bytes, mut unplaced) = (0, 0, 0);
        let most = filter.looks.map_or(LOOKS, |most| most.min(LOOKS));
        loop {
            // Of those that are looked at few may pass: not one round for each that is missing.
            let wanted = (limit - page.found.len()).max(LOOKS_AT_ONCE);
            let places = self.positions(tenant, filter, page.next, wanted).await?;
            looked += places.found.len();
            // Each round meets the same ones.
            page.unreadable += places.unreadable.saturating_sub(unplaced);
            unplaced = places.unreadable.max(unplaced);
            for some in self.portions(filter, &places.found).await? {
                let (listed, unreadable) = self.read_listed(tenant, filter, some).await?;
                page.unreadable += unreadable;
                for (position, listed) in listed {
                    bytes += listed.as_ref().map_or(0, Listed::size);
                    page.found
                        .extend(listed.filter(|listed| filter.lists(listed)));
                    if page.found.len() >= limit || bytes >= PAGE_BYTES {
                        page.next = Some(position);
                        return Ok(page);
                    }
                }
            }
            page.next = places.next;
            if page.next.is_none() || looked >= most {
                return Ok(page);
            }
        }
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error> {
        let mut run = Run::new(&self.server.scripts.arrived);
        run.key((keys::call(call_id), keys::duplicates(call_id)))
            .arg(later.count)
            .arg(LISTED_DUPLICATES);
        for one in later.last.iter().take(LISTED_DUPLICATES) {
            run.arg(codec::duplicate(one));
        }
        self.server.link.run(&run).await.map(drop)
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        self.forget_all(now, limit).await
    }
}

impl Redis {
    /// The positions of the next calls in the filter's index.
    async fn positions(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: usize,
    ) -> Result<Page<Position>, Error> {
        let mut unreadable = 0;
        let found = match filter.index() {
            Index::All => {
                let tools = self.tools(tenant).await?;
                let lists = tools.iter().map(|tool| Index::Tool(tool)).collect();
                self.in_lists(tenant, lists, filter, before, limit).await?
            }
            Index::Key(key) => {
                let lists = vec![Index::Key(key)];
                let mut found = self.in_lists(tenant, lists, filter, before, limit).await?;
                let (held, unplaced) = self.under_key(tenant, key).await?;
                found.extend(held);
                unreadable = unplaced;
                found
            }
            Index::State("running") => self.running(tenant).await?,
            index => {
                let lists = vec![index];
                self.in_lists(tenant, lists, filter, before, limit).await?
            }
        };
        Ok(Page {
            unreadable,
            ..newest(found, filter, before, limit)
        })
    }

    /// The next positions of each of these lists.
    async fn in_lists(
        &self,
        tenant: &str,
        lists: Vec<Index<'_>>,
        filter: &Filter,
        before: Option<Position>,
        limit: usize,
    ) -> Result<Vec<Position>, Error> {
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
        let partition = Partition::of_tenant(tenant);
        let ask = |list| {
            let names = (partition.list(tenant, list), &newest, &oldest);
            command("ZRANGE", (names, "BYLEX", "REV", "LIMIT", 0, limit))
        };
        let found: Vec<Vec<Vec<u8>>> = self
            .server
            .link
            .ask_many(lists.into_iter().map(ask).collect())
            .await?;
        let found: Option<Vec<Position>> = found
            .iter()
            .flatten()
            .map(|bytes| Position::from_bytes(bytes))
            .collect();
        found.ok_or_else(|| unreadable("this is no position"))
    }

    /// The tools that a tenant has called.
    async fn tools(&self, tenant: &str) -> Result<Vec<String>, Error> {
        let tools = Partition::of_tenant(tenant).tools(tenant);
        self.server.link.ask(&command("SMEMBERS", tools)).await
    }

    /// The calls that hold this key at each tool of the tenant.
    ///
    /// Also how many of them cannot be read: only the call says where it stands.
    async fn under_key(&self, tenant: &str, key: &str) -> Result<(Vec<Position>, u64), Error> {
        let partition = Partition::of_tenant(tenant);
        let tools = self.tools(tenant).await?;
        let names = tools
            .iter()
            .map(|tool| partition.holder(&Lookup::new(tenant, tool, key)));
        let holders = self.server.link.get_all(names.collect()).await?;
        let ids: Vec<CallId> = holders
            .iter()
            .flatten()
            .filter_map(|id| keys::call_id(id))
            .collect();
        let (mut found, mut unreadable) = (Vec::new(), 0);
        unreadable += (holders.iter().flatten().count() - ids.len()) as u64;
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

    /// The running calls of a tenant: there are few in a partition.
    async fn running(&self, tenant: &str) -> Result<Vec<Position>, Error> {
        let index = Partition::of_tenant(tenant).key("running");
        let all: Vec<Vec<u8>> = self
            .server
            .link
            .ask(&command("ZRANGE", (index, 0, -1)))
            .await?;
        let all: Vec<Position> = all
            .iter()
            .filter_map(|bytes| Position::from_bytes(bytes))
            .collect();
        let mut of_tenant = Vec::new();
        for some in all.chunks(LOOKS) {
            let ids: Vec<CallId> = some.iter().map(|place| place.call_id()).collect();
            let calls = self.server.briefs(&ids).await?;
            for (place, call) in some.iter().zip(calls) {
                let is_its_own = match call {
                    Ok(Some(record)) => record.intent.tenant == tenant,
                    Ok(None) => false,
                    // It is reported when it is read; its tenant's lists know it.
                    Err(_) => self.is_listed(tenant, place).await?,
                };
                of_tenant.extend(is_its_own.then_some(*place));
            }
        }
        Ok(of_tenant)
    }

    /// Whether a call stands in the list of one of the tenant's tools.
    async fn is_listed(&self, tenant: &str, place: &Position) -> Result<bool, Error> {
        let tools = self.tools(tenant).await?;
        let ask = |tool: &String| {
            let list = Partition::of_tenant(tenant).list(tenant, Index::Tool(tool));
            command("ZSCORE", (list, &place.to_bytes()[..]))
        };
        let scores = self.server.link.ask_many(tools.iter().map(ask).collect());
        Ok(scores.await?.iter().any(Option::<f64>::is_some))
    }

    /// Splits calls into portions that are small enough for one read.
    async fn portions<'a>(
        &self,
        filter: &Filter,
        positions: &'a [Position],
    ) -> Result<Vec<&'a [Position]>, Error> {
        if filter.is_brief || positions.is_empty() {
            return Ok(positions.chunks(READ_AT_ONCE).collect());
        }
        let sizes = self.server.link.sizes(positions).await?;
        Ok(portions(positions, &sizes))
    }

    /// The calls at these positions; `None` for one that is gone or unreadable.
    ///
    /// Also how many of them there were.
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
        let read = if filter.is_brief {
            let duplicates = ids.iter().map(|call_id| keys::duplicates(*call_id));
            let duplicates = self.server.link.get_all(duplicates.collect()).await?;
            let briefs = self.server.briefs(&ids).await?;
            briefs.into_iter().zip(duplicates).collect::<Vec<_>>()
        } else {
            let read = |[text, duplicates]: [Option<Bytes>; 2]| {
                let record = text.map(|text| record::read(&text)).transpose();
                (record, duplicates.map(Vec::from))
            };
            self.texts(&ids).await?.into_iter().map(read).collect()
        };
        for (position, (read, duplicates)) in positions.iter().zip(read) {
            let duplicates = read_duplicates(duplicates.map(Bytes::from));
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

    /// Removes a call from a list, if the call itself is gone.
    async fn unlist(
        &self,
        tenant: &str,
        filter: &Filter,
        position: &Position,
    ) -> Result<(), Error> {
        if self.server.status.is_in_doubt() {
            return Ok(());
        }
        let tools = self.tools(tenant).await?;
        let lists: Vec<Index<'_>> = match filter.index() {
            Index::All => tools.iter().map(|tool| Index::Tool(tool)).collect(),
            Index::State("running") => return Ok(()),
            index => vec![index],
        };
        for list in lists {
            let list = Partition::of_call(position.call_id()).list(tenant, list);
            self.server.take_out_of_list(list, position).await?;
        }
        Ok(())
    }

    /// The texts of calls and of their duplicates.
    async fn texts(&self, ids: &[CallId]) -> Result<Vec<[Option<Bytes>; 2]>, Error> {
        let ask = |call_id: &CallId| {
            [keys::call(*call_id), keys::duplicates(*call_id)].map(|key| command("GET", key))
        };
        let asks = ids.iter().flat_map(ask).collect();
        let texts: Vec<Option<Bytes>> = self.server.link.ask_many(asks).await?;
        Ok(texts.as_chunks().0.to_vec())
    }
}

/// The newest of these positions that pass the filter.
fn newest(
    mut found: Vec<Position>,
    filter: &Filter,
    before: Option<Position>,
    limit: usize,
) -> Page<Position> {
    found.retain(|position| {
        before.is_none_or(|before| *position < before)
            && filter
                .since
                .is_none_or(|since| position.created_at >= since)
            && filter.until.is_none_or(|until| position.created_at < until)
    });
    found.sort_unstable_by(|one, other| other.cmp(one));
    found.dedup();
    found.truncate(limit);
    Page {
        next: found.last().copied().filter(|_| found.len() >= limit),
        found,
        unreadable: 0,
    }
}

/// Reads the newest duplicates. Unreadable ones are left out; the count stands before them.
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
