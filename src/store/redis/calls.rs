//! Calls: claims, changes, and finding those that need work.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use jiff::Timestamp;

use super::find::SEARCHED;
use super::keys::Partition;
use super::record::NEVER;
use super::scripts::command;
use super::store::Redis;
use crate::core::call::Change;
use crate::core::key::Lookup;
use crate::core::record::{CallId, Holder, Record};
use crate::store::{Calls, Census, Claimed, Due, Error, Found, Replaced, UNREADABLE};

/// Most unknown calls that are looked at for those of some tools; this is done once after a start.
const LOOKED_AT: usize = 10_000;

#[async_trait]
impl Calls for Redis {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let intent = &change.record.intent;
        match self.writer.try_claim(change, instead_of).await {
            // What is there can be told all the same; but nothing runs on it.
            Err(Error::Refused(why)) if self.server.status.is_reached() => {
                match self.writer.in_the_way(change, instead_of).await {
                    Ok(Some(holder)) if holder.intent.call_id == intent.call_id => {
                        Err(Error::Ambiguous(why))
                    }
                    Ok(Some(holder)) => Ok(Claimed::Existing(self.server.settled(holder).await?)),
                    _ => Err(Error::Refused(why)),
                }
            }
            Ok(Claimed::Existing(holder)) => {
                Ok(Claimed::Existing(self.server.settled(holder).await?))
            }
            claimed => claimed,
        }
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        self.writer.try_replace(change, expected).await
    }

    async fn holders(&self, names: &[Lookup]) -> Result<Vec<Holder>, Error> {
        let mut holders = self.server.held(names).await?;
        for holder in &mut holders {
            holder.record = self.server.settled(holder.record.clone()).await?;
        }
        Ok(holders)
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        match self.server.fields_of(call_id).await? {
            Some(record) => Ok(Some(self.server.settled(record).await?)),
            None => Ok(None),
        }
    }

    async fn watch(&self, name: &Lookup, call_id: CallId) -> Result<Option<Record>, Error> {
        match self.tracker.get() {
            Some(tracker) => tracker.watch(name, call_id).await,
            None => Err(Error::Refused("no memory is told of changes".into())),
        }
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        // No gateway can tell that the owner has ended; its lease is what counts.
        let (limit, times) = (limit as usize, 0..=now.as_microsecond());
        let over = self
            .server
            .search("running", times, limit, limit + UNREADABLE as usize, |_| {
                true
            })
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
            .server
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
        self.server.status.must_be_open()?;
        let is_asked_for = |record: &Record| tools.contains(&record.intent.tool);
        Ok(self
            .server
            .search(
                "unknown",
                NEVER..=NEVER,
                limit as usize,
                LOOKED_AT,
                is_asked_for,
            )
            .await?
            .0)
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        let mut census: Vec<Census> = Vec::new();
        let counts = |partition: Partition| command("HGETALL", partition.key("census"));
        let counts: Vec<Vec<(String, i64)>> = self.server.link.ask_each(counts).await?;
        for (name, calls) in counts.into_iter().flatten() {
            let (Some((state, tool)), Ok(calls @ 1..)) =
                (name.split_once(':'), u64::try_from(calls))
            else {
                continue;
            };
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
        Ok(census)
    }
}
