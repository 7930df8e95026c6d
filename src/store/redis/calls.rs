//! Calls: claims, changes, and finding those that need work.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use jiff::Timestamp;
use redis::{FromRedisValue, Value, cmd};

use super::keys::Partition;
use super::scripts::Run;
use super::session::{Entered, Met};
use super::write::is_seen;
use super::{Inner, NEVER, Redis, call_id, record, stored_in, unreadable};
use crate::core::call::Change;
use crate::core::key::Lookup;
use crate::core::record::{CallId, Holder, Record, State};
use crate::store::{Calls, Census, Claimed, Due, Error, Found, Replaced};

/// Calls of an index that are looked at in one go.
const SEARCHED: usize = 256;

#[async_trait]
impl Calls for Redis {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let intent = &change.record.intent;
        match self.try_claim(change, instead_of).await {
            // What is there can be told all the same; but nothing runs on it.
            Err(Error::Refused(why)) if self.is_reached() => {
                match self.in_the_way(change, instead_of).await {
                    Ok(Some(holder)) if holder.intent.call_id == intent.call_id => {
                        Err(Error::Ambiguous(why))
                    }
                    Ok(Some(holder)) => Ok(Claimed::Existing(self.settled(holder).await?)),
                    _ => Err(Error::Refused(why)),
                }
            }
            Ok(Claimed::Existing(holder)) => Ok(Claimed::Existing(self.settled(holder).await?)),
            claimed => claimed,
        }
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        let met = match &change.admission {
            None => Met::NotAsked,
            Some(admission) if !self.is_cluster() => {
                Met::InTheSameStep(self.asked(change, admission)?)
            }
            Some(admission) => match self.fields_of(expected.intent.call_id).await? {
                // Asked again: it has its token.
                Some(stored) if record::cas(&stored) == record::cas(&change.record) => {
                    Met::Before(Entered::of(&stored))
                }
                Some(stored) if !is_seen(&stored, std::slice::from_ref(expected)) => {
                    return Ok(Replaced::Lost(Some(stored)));
                }
                _ => match self.enter(change, admission).await? {
                    Ok(entered) => Met::Before(entered),
                    Err(denied) => return Ok(Replaced::Denied(denied)),
                },
            },
        };
        let replaced = self.replace_with(change, expected, &met).await;
        if let (Met::Before(entered), Ok(Replaced::Lost(_)) | Err(Error::Refused(_))) =
            (&met, &replaced)
        {
            self.take_back(change, entered).await;
        }
        replaced
    }

    async fn holders(&self, names: &[Lookup]) -> Result<Vec<Holder>, Error> {
        let mut holders = self.held(names).await?;
        for holder in &mut holders {
            holder.record = self.settled(holder.record.clone()).await?;
        }
        Ok(holders)
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        match self.fields_of(call_id).await? {
            Some(record) => Ok(Some(self.settled(record).await?)),
            None => Ok(None),
        }
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        // No gateway can tell that the owner has ended; its lease is what counts.
        let (limit, times) = (limit as usize, 0..=now.as_microsecond());
        let over = self
            .search("running", times, limit, limit.max(SEARCHED), |_| true)
            .await?
            .0;
        Ok(over.map(|record| Due {
            record,
            owner_ended: false,
        }))
    }

    async fn due_rechecks(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>, Error> {
        let mut free: HashMap<&str, u32> = tools.iter().map(|tool| (tool.as_str(), each)).collect();
        let limit = tools.len().saturating_mul(each as usize);
        let has_place = |record: &Record| match free.get_mut(record.intent.tool.as_str()) {
            None | Some(0) => false,
            Some(places) => {
                *places -= 1;
                true
            }
        };
        // The index knows no tools: what stands before a long backlog is met in the next rounds.
        let from = self.checked_until.load(Ordering::Relaxed);
        let (found, last) = self
            .search(
                "unknown",
                from..=now.as_microsecond(),
                limit,
                SEARCHED,
                has_place,
            )
            .await?;
        self.checked_until
            .store(last.unwrap_or(0), Ordering::Relaxed);
        Ok(found)
    }

    async fn unscheduled_unknown(
        &self,
        tools: &[String],
        limit: u32,
    ) -> Result<Found<Record>, Error> {
        self.must_be_open()?;
        let is_asked_for = |record: &Record| tools.contains(&record.intent.tool);
        Ok(self
            .search(
                "unknown",
                NEVER..=NEVER,
                limit as usize,
                SEARCHED,
                is_asked_for,
            )
            .await?
            .0)
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        let mut census: Vec<Census> = Vec::new();
        for counts in self
            .link
            .ask_each(|partition| cmd("HGETALL").arg(partition.key("census")).to_owned())
            .await?
        {
            for (name, calls) in
                Vec::<(String, i64)>::from_redis_value(counts).map_err(unreadable)?
            {
                let Some((state, tool)) = name.split_once(':') else {
                    continue;
                };
                let calls = u64::try_from(calls).unwrap_or(0);
                if calls == 0 {
                    continue;
                }
                match census
                    .iter_mut()
                    .find(|count| count.state == state && count.tool == tool)
                {
                    Some(count) => count.calls += calls,
                    None => census.push(Census {
                        tool: tool.to_owned(),
                        state: state.to_owned(),
                        calls,
                    }),
                }
            }
        }
        Ok(census)
    }
}

impl Inner {
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
        let mut ask = cmd("HMGET");
        ask.arg(Partition::of_call(call_id).call(call_id))
            .arg(&record::FIELDS);
        stored_in(self.link.ask(&ask).await?)
    }

    /// A record, when replicas have it too, if they have to. One that runs is not shown to callers.
    pub(super) async fn settled(&self, record: Record) -> Result<Record, Error> {
        if !matches!(record.state, State::Running) {
            let partition = Partition::of(&record.intent.lookup);
            self.barrier
                .cover(partition, record.updated_at, self.store_time())
                .await?;
        }
        Ok(record)
    }

    /// The wanted calls of an index whose time is within these bounds, the oldest first, at most `limit` of the
    /// `searched` first; and up to when it was looked through, if there was no end to it. What points to no call is taken away.
    async fn search(
        &self,
        index: &str,
        times: RangeInclusive<i64>,
        limit: usize,
        searched: usize,
        mut is_wanted: impl FnMut(&Record) -> bool,
    ) -> Result<(Found<Record>, Option<i64>), Error> {
        let mut found = Found::default();
        // What was lost is put back before any call is taken for its newest state.
        if self.is_in_doubt() {
            return Ok((found, None));
        }
        let mut over: Vec<(CallId, i64)> = Vec::new();
        let listed = self.link.ask_each(|partition| {
            let mut ask = cmd("ZRANGEBYSCORE");
            ask.arg(partition.key(index))
                .arg(*times.start())
                .arg(*times.end())
                .arg("WITHSCORES");
            ask.arg("LIMIT").arg(0).arg(searched);
            ask
        });
        for ids in listed.await? {
            let ids = Vec::<(String, f64)>::from_redis_value(ids).map_err(unreadable)?;
            over.extend(
                ids.into_iter()
                    .filter_map(|(id, time)| Some((call_id(&id)?, time as i64))),
            );
        }
        over.sort_by_key(|(_, time)| *time);
        let mut last = over.get(searched - 1).map(|(_, time)| *time);
        for (call_id, _) in over.into_iter().take(searched) {
            if found.calls.len() >= limit {
                last = None;
                break;
            }
            let partition = Partition::of_call(call_id);
            let mut ask = cmd("HMGET");
            ask.arg(partition.call(call_id)).arg(&record::FIELDS);
            match stored_in(self.link.ask(&ask).await?) {
                Ok(Some(record)) if is_wanted(&record) => found.calls.push(record),
                Ok(Some(_)) => {}
                Ok(None) => {
                    let mut take_away = cmd("ZREM");
                    take_away.arg(partition.key(index)).arg(call_id.to_string());
                    self.link.ask::<()>(&take_away).await?;
                }
                Err(error) => found
                    .unreadable
                    .push((call_id.to_string(), error.to_string())),
            }
        }
        Ok((found, last))
    }
}
