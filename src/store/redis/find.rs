//! Finding calls: by names, by ids, and by due times.

use std::ops::RangeInclusive;

use bytes::Bytes;
use redis::{FromRedisValue, Value};

use super::answer::{stored_in, unreadable};
use super::keys::{self, Partition};
use super::link::Link;
use super::record::{self, Corrupt};
use super::scripts::{Run, command};
use super::server::Server;
use crate::core::key::Lookup;
use crate::core::position::Position;
use crate::core::record::{CallId, Holder, Record, State};
use crate::store::{Error, Found};

/// Most calls of one read.
pub(super) const READ_AT_ONCE: usize = 32;
/// Most bytes of one read; a single call may be larger.
const READ_BYTES: usize = 4 << 20;
/// Bytes of a call that usually hold everything before its arguments and its result.
const BRIEF: usize = 2_048;
/// How often the beginning of a call is read again if the call grows meanwhile.
const ASKS: usize = 3;
/// Calls of an index that a search reads in one round.
pub(super) const SEARCHED: usize = 256;

impl Link {
    /// The beginnings of calls: all before arguments and result.
    pub(super) async fn beginnings(&self, ids: &[CallId]) -> Result<Vec<Option<Bytes>>, Error> {
        let ask = |call_id: &CallId, most: usize| {
            command("GETRANGE", (keys::call(*call_id), 0, most - 1))
        };
        let asks = ids.iter().map(|call_id| ask(call_id, BRIEF));
        let found: Vec<Bytes> = self.ask_many(asks.collect()).await?;
        let mut beginnings = Vec::with_capacity(found.len());
        for (call_id, mut text) in ids.iter().zip(found) {
            // A long history or many names need a second read. The call may grow between two reads.
            for _ in 0..ASKS {
                match record::brief(&text) {
                    Ok(whole) if whole > text.len() && text.len() >= BRIEF => {
                        text = self.ask(&ask(call_id, whole)).await?;
                    }
                    _ => break,
                }
            }
            beginnings.push(Some(text).filter(|text: &Bytes| !text.is_empty()));
        }
        Ok(beginnings)
    }

    /// The length in bytes of each call at these positions.
    pub(super) async fn sizes(&self, places: &[Position]) -> Result<Vec<usize>, Error> {
        let ask = |place: &Position| command("STRLEN", keys::call(place.call_id()));
        self.ask_many(places.iter().map(ask).collect()).await
    }
}

impl Server {
    /// The calls that hold these names, whether or not replicas have them.
    pub(super) async fn held(&self, names: &[Lookup]) -> Result<Vec<Holder>, Error> {
        let Some(first) = names.first() else {
            return Ok(Vec::new());
        };
        let partition = Partition::of(first);
        let mut run = Run::new(&self.scripts.holders);
        for name in names {
            run.key(partition.holder(name));
        }
        run.arg(partition.prefix());
        let found = Vec::<(Vec<usize>, Value)>::from_redis_value(self.link.run(&run).await?);
        let holder = |(places, fields): (Vec<usize>, Value)| {
            let missing = || Error::Refused("the record behind a key is missing".into());
            let record = stored_in(fields)?.ok_or_else(missing)?;
            let names = places
                .iter()
                .filter_map(|place| names.get(place.checked_sub(1)?).copied())
                .collect();
            Ok(Holder { record, names })
        };
        found.map_err(unreadable)?.into_iter().map(holder).collect()
    }

    pub(super) async fn fields_of(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        stored_in(self.link.ask(&command("GET", keys::call(call_id))).await?)
    }

    /// Calls without arguments and results; `None` for one that is gone.
    pub(super) async fn briefs(
        &self,
        ids: &[CallId],
    ) -> Result<Vec<Result<Option<Record>, Corrupt>>, Error> {
        let beginnings = self.link.beginnings(ids).await?.into_iter();
        let read = |text: Option<Bytes>| text.map(|text| record::read_brief(&text)).transpose();
        Ok(beginnings.map(read).collect())
    }

    /// Returns the record when replicas have it, if they must. A running one need not wait: no caller is shown it.
    pub(super) async fn settled(&self, record: Record) -> Result<Record, Error> {
        if !matches!(record.state, State::Running) {
            let partition = Partition::of(&record.intent.lookup);
            self.barrier
                .cover(partition, record.updated_at, self.now())
                .await?;
        }
        Ok(record)
    }

    /// The wanted calls of an index within time bounds: at most `limit`, out of the first `searched` entries.
    ///
    /// Oldest first, unless a partition has more than [`SEARCHED`] entries. Also returns up to which time the index was
    /// searched, if it has more entries. Removes entries without a call.
    pub(super) async fn search(
        &self,
        index: &str,
        times: RangeInclusive<i64>,
        limit: usize,
        searched: usize,
        mut is_wanted: impl FnMut(&Record) -> bool,
    ) -> Result<(Found<Record>, Option<i64>), Error> {
        let mut found = Found::default();
        // Until lost writes are put back, a stored state may not be the newest one.
        if self.status.is_in_doubt() {
            return Ok((found, None));
        }
        let names = Partition::all().map(|partition| partition.key(index));
        let names = self.link.existing(names.collect()).await?;
        let mut looked = 0;
        for from in (0..searched).step_by(SEARCHED) {
            let (mut over, is_all) = self.listed(&names, &times, from).await?;
            over.truncate(searched - looked);
            looked += over.len();
            for some in over.chunks(READ_AT_ONCE) {
                if found.calls.len() >= limit {
                    return Ok((found, None));
                }
                self.read_wanted(index, some, limit, &mut is_wanted, &mut found)
                    .await?;
            }
            if found.calls.len() >= limit {
                return Ok((found, None));
            }
            if looked >= searched {
                return Ok((found, over.last().map(|(_, time)| *time)));
            }
            if is_all {
                break;
            }
        }
        Ok((found, None))
    }

    /// Up to [`SEARCHED`] entries of each index within time bounds, after the first `from`; and whether these are all.
    async fn listed(
        &self,
        indexes: &[String],
        times: &RangeInclusive<i64>,
        from: usize,
    ) -> Result<(Vec<(Position, i64)>, bool), Error> {
        let ask = |name: &String| {
            let times = (*times.start(), *times.end(), "WITHSCORES");
            command("ZRANGEBYSCORE", (name, times, "LIMIT", from, SEARCHED))
        };
        let asks = indexes.iter().map(ask).collect();
        let listed: Vec<Vec<(Vec<u8>, f64)>> = self.link.ask_many(asks).await?;
        let is_all = listed.iter().all(|some| some.len() < SEARCHED);
        let mut over: Vec<(Position, i64)> = Vec::new();
        for (place, time) in listed.into_iter().flatten() {
            over.extend(Position::from_bytes(&place).map(|place| (place, time as i64)));
        }
        over.sort_by_key(|(_, time)| *time);
        Ok((over, is_all))
    }

    /// Adds the wanted calls among these, up to `limit`. Only wanted ones are read whole.
    async fn read_wanted(
        &self,
        index: &str,
        places: &[(Position, i64)],
        limit: usize,
        mut is_wanted: impl FnMut(&Record) -> bool,
        found: &mut Found<Record>,
    ) -> Result<(), Error> {
        let ids: Vec<CallId> = places.iter().map(|(place, _)| place.call_id()).collect();
        let mut wanted = Vec::new();
        for ((place, _), brief) in places.iter().zip(self.briefs(&ids).await?) {
            match brief {
                Ok(Some(record)) if found.calls.len() + wanted.len() < limit => {
                    if is_wanted(&record) {
                        wanted.push(*place);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => self.take_out_of(index, place).await?,
                Err(error) => found
                    .unreadable
                    .push((place.call_id().to_string(), error.to_string())),
            }
        }
        self.read_whole(&wanted, found).await
    }

    /// Adds the calls at these positions. Reads them in portions: one large read would delay all other commands.
    async fn read_whole(
        &self,
        places: &[Position],
        found: &mut Found<Record>,
    ) -> Result<(), Error> {
        let sizes = self.link.sizes(places).await?;
        for some in portions(places, &sizes) {
            let ask = |place: &Position| command("GET", keys::call(place.call_id()));
            let texts: Vec<Value> = self.link.ask_many(some.iter().map(ask).collect()).await?;
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

    /// Removes a position from an index, if there is no such call.
    pub(super) async fn take_out_of(&self, index: &str, place: &Position) -> Result<(), Error> {
        let index = Partition::of_call(place.call_id()).key(index);
        self.take_out_of_list(index, place).await
    }

    /// The same for any list of the call's partition.
    pub(super) async fn take_out_of_list(
        &self,
        list: String,
        place: &Position,
    ) -> Result<(), Error> {
        let mut run = Run::new(&self.scripts.take_out);
        run.key((keys::call(place.call_id()), list));
        self.link
            .run(run.arg(&place.to_bytes()[..]))
            .await
            .map(drop)
    }
}

/// Splits items of these sizes into portions.
///
/// Each has at most [`READ_AT_ONCE`] items and [`READ_BYTES`] bytes, or is a single item.
pub(super) fn portions<'a, T>(mut items: &'a [T], sizes: &[usize]) -> Vec<&'a [T]> {
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
