//! Finding calls: by names, by ids, and by due times.

use std::ops::RangeInclusive;

use bytes::Bytes;
use redis::{FromRedisValue, Value};

use super::record::{self, Corrupt};
use crate::keys::{self, Partition};
use crate::link::Link;
use crate::link::answer::{stored_in, unreadable};
use crate::scripts::{Run, command};
use crate::server::Server;
use oncegate_rules::key::Lookup;
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Holder, Record, State};
use oncegate_store::shared::pages::portions;
use oncegate_store::{Error, Found, Result};

/// How many calls one read gets at most.
pub(crate) const READ_AT_ONCE: usize = 32;
/// How many bytes one read gets at most; a single call may be larger.
pub(crate) const READ_BYTES: usize = 4 << 20;
/// Bytes of a call that usually hold everything before its arguments and its result.
const BRIEF: usize = 2_048;
/// How often the beginning of a call is read again if the call grows meanwhile.
const READS: usize = 3;
/// Calls of an index that a search reads in one round.
pub(crate) const SEARCHED: usize = 256;

impl Link {
    /// The beginnings of calls: everything before arguments and result. `None` for a call that is gone.
    pub(crate) async fn beginnings(&self, ids: &[CallId]) -> Result<Vec<Option<Bytes>>> {
        let range = |call_id: &CallId, length: usize| (keys::call(*call_id), 0, length - 1);
        let ranges = ids.iter().map(|id| command("GETRANGE", range(id, BRIEF)));
        let found: Vec<Bytes> = self.ask_many(ranges).await?;
        let mut beginnings = Vec::with_capacity(found.len());
        for (call_id, mut text) in ids.iter().zip(found) {
            // A long history or many names need a second read. The call may grow between two reads.
            for _ in 0..READS {
                match record::brief(&text) {
                    Ok(length) if length > text.len() && text.len() >= BRIEF => {
                        text = self.ask("GETRANGE", range(call_id, length)).await?;
                    }
                    _ => break,
                }
            }
            beginnings.push(Some(text).filter(|text: &Bytes| !text.is_empty()));
        }
        Ok(beginnings)
    }

    /// The length in bytes of each call at these positions.
    pub(crate) async fn sizes(&self, places: &[Position]) -> Result<Vec<usize>> {
        let length = |place: &Position| command("STRLEN", keys::call(place.call_id()));
        self.ask_many(places.iter().map(length)).await
    }
}

impl Server {
    /// The calls that hold these names, whether or not replicas have them.
    pub(crate) async fn held(&self, lookups: &[Lookup]) -> Result<Vec<Holder>> {
        let Some(first) = lookups.first() else {
            return Ok(Vec::new());
        };
        let partition = Partition::of(first);
        let keys: Vec<String> = lookups.iter().map(|name| partition.holder(name)).collect();
        let run = self.writing(&self.scripts.holders, partition, self.memory.epoch());
        let answer = self.run(run.key(keys).key(partition.counters())).await?;
        let found = answer.fields()?.into_iter();
        let found = found.map(<(Vec<usize>, Value)>::from_redis_value);
        let found: Vec<_> = found.collect::<Result<_, _>>().map_err(unreadable)?;
        let holder = |(numbers, text): (Vec<usize>, Value)| {
            let missing = || Error::Refused("the record behind a key is missing".into());
            let record = stored_in(text)?.ok_or_else(missing)?;
            let name = |number: usize| lookups.get(number.checked_sub(1)?).copied();
            let lookups = numbers.into_iter().filter_map(name).collect();
            Ok(Holder { record, lookups })
        };
        found.into_iter().map(holder).collect()
    }

    pub(crate) async fn fields_of(&self, call_id: CallId) -> Result<Option<Record>> {
        stored_in(self.link.ask("GET", keys::call(call_id)).await?)
    }

    /// Calls without arguments and results; `None` for a call that is gone.
    pub(crate) async fn briefs(
        &self,
        ids: &[CallId],
    ) -> Result<Vec<Result<Option<Record>, Corrupt>>> {
        let beginnings = self.link.beginnings(ids).await?.into_iter();
        let read = |text: Option<Bytes>| text.map(|text| record::read_brief(&text)).transpose();
        Ok(beginnings.map(read).collect())
    }

    /// Returns the record once replicas have it, if they must. A running call is not shown to callers, so it need not wait.
    pub(crate) async fn settled(&self, record: Record) -> Result<Record> {
        if !matches!(record.state, State::Running) {
            let partition = Partition::of(&record.intent.lookup);
            let covered = self.barrier.cover(partition, record.updated_at, self.now());
            covered.await?;
        }
        Ok(record)
    }

    /// The wanted calls of an index within time bounds: at most `limit`, out of the first `searched` entries.
    ///
    /// Oldest first, unless a partition has more than [`SEARCHED`] entries. Also returns up to which time the index was
    /// searched, if it has more entries. Removes entries whose call is gone.
    pub(crate) async fn search(
        &self,
        index: &str,
        times: RangeInclusive<i64>,
        limit: usize,
        searched: usize,
        mut is_wanted: impl FnMut(&Record) -> bool,
    ) -> Result<(Found<Record>, Option<i64>)> {
        let mut found = Found::default();
        // Until lost writes are put back, a stored state may not be the newest one.
        if self.status.is_in_doubt() || limit == 0 {
            return Ok((found, None));
        }
        // Another gateway may have changed a call since the index was read. Whether it is due, the rules decide.
        let is_there = |record: &Record| record::index(record) == index;
        let indexes = Partition::all().map(|partition| partition.key(index));
        let indexes = self.link.existing(indexes.collect()).await?;
        let mut read = 0;
        for from in (0..searched).step_by(SEARCHED) {
            let (mut entries, are_all) = self.entries(&indexes, &times, from).await?;
            entries.truncate(searched - read);
            read += entries.len();
            for some in entries.chunks(READ_AT_ONCE) {
                self.read_wanted(index, some, limit, &mut is_wanted, &mut found)
                    .await?;
                found.calls.retain(is_there);
                if found.calls.len() >= limit {
                    return Ok((found, None));
                }
            }
            if read >= searched {
                return Ok((found, entries.last().map(|(_, time)| *time)));
            }
            if are_all {
                break;
            }
        }
        Ok((found, None))
    }

    /// Up to [`SEARCHED`] entries of each index within time bounds, after the first `from`; and whether these are all.
    async fn entries(
        &self,
        indexes: &[String],
        times: &RangeInclusive<i64>,
        from: usize,
    ) -> Result<(Vec<(Position, i64)>, bool)> {
        let range = |index: &String| {
            let times = (*times.start(), *times.end(), "WITHSCORES");
            command("ZRANGEBYSCORE", (index, times, "LIMIT", from, SEARCHED))
        };
        let found: Vec<Vec<(Vec<u8>, f64)>> = self.link.ask_many(indexes.iter().map(range)).await?;
        let are_all = found.iter().all(|some| some.len() < SEARCHED);
        let mut entries: Vec<(Position, i64)> = Vec::new();
        for (place, time) in found.into_iter().flatten() {
            entries.extend(Position::from_bytes(&place).map(|place| (place, time as i64)));
        }
        entries.sort_by_key(|(_, time)| *time);
        Ok((entries, are_all))
    }

    /// Adds the wanted calls among these entries, up to `limit`. Only wanted calls are read whole.
    async fn read_wanted(
        &self,
        index: &str,
        places: &[(Position, i64)],
        limit: usize,
        mut is_wanted: impl FnMut(&Record) -> bool,
        found: &mut Found<Record>,
    ) -> Result<()> {
        let ids: Vec<CallId> = places.iter().map(|(place, _)| place.call_id()).collect();
        let mut wanted = Vec::new();
        for ((place, _), brief) in places.iter().zip(self.briefs(&ids).await?) {
            match brief {
                Ok(Some(record)) => {
                    if found.calls.len() + wanted.len() < limit && is_wanted(&record) {
                        wanted.push(*place);
                    }
                }
                Ok(None) => self.take_out_of_index(index, place).await?,
                Err(error) => found
                    .unreadable
                    .push((place.call_id().to_string(), error.to_string())),
            }
        }
        self.read_whole(&wanted, found).await
    }

    /// Adds the calls at these positions. Reads them in portions: one large read would delay all other commands.
    async fn read_whole(&self, places: &[Position], found: &mut Found<Record>) -> Result<()> {
        let sizes = self.link.sizes(places).await?;
        for some in portions(places, &sizes, (READ_AT_ONCE, READ_BYTES)) {
            let get = |place: &Position| command("GET", keys::call(place.call_id()));
            let texts: Vec<Value> = self.link.ask_many(some.iter().map(get)).await?;
            for (place, text) in some.iter().zip(texts) {
                match stored_in(text) {
                    Ok(record) => found.calls.extend(record),
                    Err(error) => found
                        .unreadable
                        .push((place.call_id().to_string(), error.to_string())),
                }
            }
        }
        Ok(())
    }

    /// Removes a position from an index of the call's partition, if the call is gone.
    pub(crate) async fn take_out_of_index(&self, index: &str, place: &Position) -> Result<()> {
        let index = Partition::of_call(place.call_id()).key(index);
        self.take_out_of(index, place).await
    }

    /// Removes a position from a list of the call's partition, if the call is gone.
    pub(crate) async fn take_out_of(&self, list: String, place: &Position) -> Result<()> {
        let run = Run::new(&self.scripts.take_out).key((keys::call(place.call_id()), list));
        self.link.run(&run.arg(&place.to_bytes())).await.map(drop)
    }
}
