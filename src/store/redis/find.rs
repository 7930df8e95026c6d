//! Finding calls: by their names, by their ids, and by when they need work.

use std::ops::RangeInclusive;

use redis::{FromRedisValue, Value};

use super::answer::{call_id, stored_in, unreadable};
use super::keys::{self, Partition};
use super::record;
use super::scripts::{Run, command};
use super::server::Server;
use crate::core::key::Lookup;
use crate::core::record::{CallId, Holder, Record, State};
use crate::store::{Error, Found};

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
        let ask = command("HMGET", (keys::call(call_id), &record::FIELDS));
        stored_in(self.link.ask(&ask).await?)
    }

    /// A record, when replicas have it too, if they have to. One that runs is not shown to callers.
    pub(super) async fn settled(&self, record: Record) -> Result<Record, Error> {
        if !matches!(record.state, State::Running) {
            let partition = Partition::of(&record.intent.lookup);
            self.barrier
                .cover(partition, record.updated_at, self.now())
                .await?;
        }
        Ok(record)
    }

    /// The wanted calls of an index whose time is within these bounds, the oldest first, at most `limit` of the
    /// `searched` first; and up to when it was looked through, if there was no end to it. What points to no call is taken away.
    pub(super) async fn search(
        &self,
        index: &str,
        times: RangeInclusive<i64>,
        limit: usize,
        searched: usize,
        mut is_wanted: impl FnMut(&Record) -> bool,
    ) -> Result<(Found<Record>, Option<i64>), Error> {
        let mut found = Found::default();
        // What was lost is put back before any call is taken for its newest state.
        if self.status.is_in_doubt() {
            return Ok((found, None));
        }
        let mut over: Vec<(CallId, i64)> = Vec::new();
        let listed = self.link.ask_each(|partition| {
            let times = (*times.start(), *times.end(), "WITHSCORES");
            command(
                "ZRANGEBYSCORE",
                (partition.key(index), times, "LIMIT", 0, searched),
            )
        });
        let listed: Vec<Vec<(String, f64)>> = listed.await?;
        for (id, time) in listed.into_iter().flatten() {
            over.extend(call_id(&id).map(|call_id| (call_id, time as i64)));
        }
        over.sort_by_key(|(_, time)| *time);
        let mut last = over.get(searched - 1).map(|(_, time)| *time);
        for (call_id, _) in over.into_iter().take(searched) {
            if found.calls.len() >= limit {
                last = None;
                break;
            }
            let ask = command("HMGET", (keys::call(call_id), &record::FIELDS));
            match stored_in(self.link.ask(&ask).await?) {
                Ok(Some(record)) if is_wanted(&record) => found.calls.push(record),
                Ok(Some(_)) => {}
                Ok(None) => {
                    let index = Partition::of_call(call_id).key(index);
                    let take_away = command("ZREM", (index, call_id.to_string()));
                    self.link.ask::<()>(&take_away).await?;
                }
                Err(error) => found
                    .unreadable
                    .push((call_id.to_string(), error.to_string())),
            }
        }
        Ok((found, last))
    }

    /// One page of the calls about which a store that has lost data may be wrong. `from`: index, partition and cursor.
    pub(super) async fn at_risk_after_loss(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        // Those that become unknown meanwhile are not met again.
        const INDEXES: [&str; 3] = ["unknown", "failed", "running"];
        let mut parts = from.split(':').map(|part| part.parse::<u64>().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        let (index, partition, mut cursor) = (next(), next(), next());
        let places = (0_u64..).zip(INDEXES).flat_map(|(number, name)| {
            (0_u64..)
                .zip(Partition::all())
                .map(move |(at, partition)| (number, at, partition.key(name)))
        });
        for (number, at, key) in
            places.skip_while(|(number, at, _)| (*number, *at) < (index, partition))
        {
            loop {
                let ask = command("ZSCAN", (&key, cursor, "COUNT", limit));
                let (next, found): (u64, Vec<(String, f64)>) = self.link.ask(&ask).await?;
                cursor = next;
                let calls: Vec<CallId> = found.iter().filter_map(|(id, _)| call_id(id)).collect();
                // Cursor 0 ends one index; the one after it begins with 0, too.
                let (number, at) = if cursor == 0 {
                    (number, at + 1)
                } else {
                    (number, at)
                };
                if !calls.is_empty() {
                    return Ok((calls, Some(format!("{number}:{at}:{cursor}"))));
                }
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok((Vec::new(), None))
    }
}
