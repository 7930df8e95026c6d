//! Calls and their ledger, in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use oncegate::core::call::{Change, Takes};
use oncegate::core::document::Document;
use oncegate::core::key::Lookup;
use oncegate::core::ledger::{Duplicates, Filter, History, Listed, Maker, Page, Placed};
use oncegate::core::position::Position;
use oncegate::core::record::{CallId, Holder, Record, State};
use oncegate::store::{Calls, Census, Claimed, Due, Error, Found, Ledger, Replaced, Result};

use super::Memory;

/// Whether both are the same version of the same call.
fn is_same(one: &Record, other: &Record) -> bool {
    let what = |record: &Record| (record.intent.call_id, record.version, record.attempt.id);
    what(one) == what(other)
}

#[async_trait]
impl Calls for Memory {
    async fn claim(&self, change: &Change, replaced: &[Record]) -> Result<Claimed> {
        let mut inner = self.lock();
        inner.may_begin()?;
        for name in change.record.intent.all_lookups() {
            let Some(holder) = inner.kept.holder(name) else {
                continue;
            };
            if is_same(holder, &change.record) {
                return Ok(Claimed::Yours(holder.clone()));
            }
            if !replaced.iter().any(|seen| is_same(holder, seen)) {
                return Ok(Claimed::Existing(holder.clone()));
            }
        }
        if let Some(denied) = inner.denied(change) {
            return Ok(Claimed::Denied(denied));
        }
        let record = inner.write(change);
        for name in record.intent.all_lookups() {
            inner.kept.holders.insert(*name, record.intent.call_id);
        }
        Ok(Claimed::Yours(record))
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced> {
        let mut inner = self.lock();
        let stored = inner.kept.load(expected.intent.call_id).cloned();
        let is_gone_back = stored
            .as_ref()
            .is_none_or(|stored| stored.version < expected.version);
        if change.record.state == State::Running {
            inner.may_begin()?;
            if is_gone_back {
                return Err(Error::Refused("writes were lost".into()));
            }
            let mut holders = expected
                .intent
                .all_lookups()
                .filter_map(|name| inner.kept.holder(name));
            if let Some(other) =
                holders.find(|holder| holder.intent.call_id != expected.intent.call_id)
            {
                return Ok(Replaced::Lost(Some(other.clone())));
            }
        } else if is_gone_back {
            // The store has lost the call, so the known record is written back as a whole.
            let record = inner.write(change);
            for name in record.all_lookups() {
                let is_over = |holder: &Record| {
                    holder
                        .expires_at
                        .is_some_and(|expires_at| expires_at <= record.attempt.run_started_at)
                };
                if inner.kept.holder(name).is_none_or(is_over) {
                    inner.kept.holders.insert(*name, record.intent.call_id);
                }
            }
            return Ok(Replaced::Done(record));
        }
        let Takes { lookups, replaced } = &change.takes;
        Ok(match stored {
            Some(stored) if is_same(&stored, expected) && stored.fencing == expected.fencing => {
                if !lookups.is_empty() {
                    inner.may_begin()?;
                }
                let mut holders = lookups.iter().filter_map(|name| inner.kept.holder(name));
                let gives_up = |holder: &Record| replaced.iter().any(|seen| is_same(holder, seen));
                let is_own = |holder: &Record| holder.intent.call_id == expected.intent.call_id;
                if let Some(other) = holders.find(|holder| !is_own(holder) && !gives_up(holder)) {
                    return Ok(Replaced::Lost(Some(other.clone())));
                }
                match inner.denied(change) {
                    Some(denied) => Replaced::Denied(denied),
                    None => {
                        let record = inner.write(change);
                        for name in lookups {
                            inner.kept.holders.insert(*name, record.intent.call_id);
                        }
                        Replaced::Done(record)
                    }
                }
            }
            Some(stored) if stored == change.as_stored(&stored) => Replaced::Done(stored),
            stored => Replaced::Lost(stored),
        })
    }

    async fn watch(&self, _: &Lookup, _: CallId) -> Result<Option<Record>> {
        Err(Error::Refused("it tells of no changes".into()))
    }

    async fn holders(&self, lookups: &[Lookup]) -> Result<Vec<Holder>> {
        let inner = self.lock();
        let mut holders: Vec<Holder> = Vec::new();
        for (name, record) in lookups
            .iter()
            .filter_map(|name| Some((name, inner.kept.holder(name)?)))
        {
            match holders
                .iter_mut()
                .find(|holder| holder.record.intent.call_id == record.intent.call_id)
            {
                Some(holder) => holder.lookups.push(*name),
                None => holders.push(Holder {
                    record: record.clone(),
                    lookups: vec![*name],
                }),
            }
        }
        Ok(holders)
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>> {
        Ok(self.lock().kept.load(call_id).cloned())
    }

    /// Goes by the lease only: a shared store cannot know that an owner has ended.
    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>> {
        let inner = self.lock();
        let running = inner.kept.in_state(State::Running.as_str());
        let mut due: Vec<Record> = running
            .filter(|record| record.attempt.lease_until <= now)
            .cloned()
            .collect();
        due.sort_by_key(|record| record.attempt.lease_until);
        due.truncate(limit as usize);
        let due = due.into_iter().map(|record| Due {
            record,
            owner_ended: false,
        });
        Ok(Found {
            calls: due.collect(),
            unreadable: Vec::new(),
        })
    }

    async fn due_rechecks(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>> {
        let inner = self.lock();
        let is_due = |record: &&Record| {
            record
                .check
                .and_then(|check| check.at)
                .is_some_and(|at| at <= now)
        };
        let mut due: Vec<&Record> = inner.kept.in_state("unknown").filter(is_due).collect();
        due.sort_by_key(|record| record.check.and_then(|check| check.at));
        let of = |tool: &String| {
            let due = due.iter().filter(move |record| record.intent.tool == *tool);
            due.take(each as usize)
                .map(|record| (*record).clone())
                .collect::<Vec<_>>()
        };
        Ok(Found {
            calls: tools.iter().flat_map(of).collect(),
            unreadable: Vec::new(),
        })
    }

    async fn unscheduled_unknown(&self, tools: &[String], limit: u32) -> Result<Found<Record>> {
        let inner = self.lock();
        let held = inner
            .kept
            .in_state("unknown")
            .filter(|record| record.check.is_none());
        let held = held.filter(|record| tools.contains(&record.intent.tool));
        Ok(Found {
            calls: held.take(limit as usize).cloned().collect(),
            unreadable: Vec::new(),
        })
    }

    async fn due_proposals(&self, now: Timestamp, limit: u32) -> Result<Found<Record>> {
        let inner = self.lock();
        let due_at = |record: &Record| match record.state {
            State::Proposed => record.proposal.as_ref().map(|asked| asked.until),
            _ => Some(record.updated_at),
        };
        let proposed = inner.kept.in_state("proposed");
        let waiting = proposed.chain(inner.kept.in_state("approved"));
        let mut due: Vec<Record> = waiting
            .filter(|record| due_at(record).is_some_and(|at| at <= now))
            .cloned()
            .collect();
        due.sort_by_key(due_at);
        due.truncate(limit as usize);
        Ok(Found {
            calls: due,
            unreadable: Vec::new(),
        })
    }

    async fn census(&self) -> Result<Vec<Census>> {
        let inner = self.lock();
        let mut counts = BTreeMap::<(&str, &str), u64>::new();
        for state in ["running", "unknown", "proposed", "approved"] {
            for record in inner.kept.in_state(state) {
                *counts.entry((&record.intent.tool, state)).or_default() += 1;
            }
        }
        let census = counts.into_iter();
        Ok(census
            .map(|((tool, state), calls)| Census {
                tool: tool.to_owned(),
                state: state.to_owned(),
                calls,
            })
            .collect())
    }
}

#[async_trait]
impl Ledger for Memory {
    async fn maker(&self, call_id: CallId) -> Result<Option<Maker>> {
        let inner = self.lock();
        let intent = inner.kept.load(call_id).map(|record| &record.intent);
        Ok(intent.map(|intent| Maker {
            tenant: intent.tenant.clone(),
            tool: intent.tool.clone(),
            token: intent.made_by.clone(),
        }))
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>> {
        let inner = self.lock();
        let found = inner.kept.calls.get(&call_id).cloned();
        let duplicates = inner.duplicates.get(&call_id).cloned().unwrap_or_default();
        Ok(found.map(|(record, mut entries)| {
            entries.drain(..entries.len().saturating_sub(limit as usize));
            History {
                record,
                entries,
                duplicates,
            }
        }))
    }

    async fn tenants(&self) -> Result<Vec<String>> {
        let mut tenants: Vec<String> = self
            .lock()
            .kept
            .calls
            .values()
            .map(|(record, _)| record.intent.tenant.clone())
            .collect();
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
        let inner = self.lock();
        let is_asked_for = |record: &Record| {
            let is_before = before.is_none_or(|before| Position::of(record) < before);
            record.intent.tenant == tenant && is_before && filter.matches(record)
        };
        let found = inner
            .kept
            .calls
            .values()
            .map(|(record, _)| record)
            .filter(|record| is_asked_for(record));
        let found = found.filter_map(|record| {
            let duplicates = inner
                .duplicates
                .get(&record.intent.call_id)
                .cloned()
                .unwrap_or_default();
            let record = record.clone();
            let record = if filter.is_brief {
                record.without_texts()
            } else {
                record
            };
            Some(Listed { record, duplicates }).filter(|listed| filter.lists(listed))
        });
        let mut page = Page {
            found: found.collect::<Vec<Listed>>(),
            next: None,
            unreadable: 0,
        };
        page.found
            .sort_by_key(|listed| std::cmp::Reverse(listed.position()));
        page.cut_bytes();
        page.cut(limit as usize);
        Ok(page)
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<()> {
        self.lock()
            .duplicates
            .entry(call_id)
            .or_default()
            .add(later);
        Ok(())
    }

    /// Keeps all sessions.
    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64> {
        let mut inner = self.lock();
        let is_over = |record: &Record| record.retain_until.is_some_and(|until| until <= now);
        let over = inner
            .kept
            .calls
            .values()
            .filter(|(record, _)| is_over(record));
        let over: Vec<CallId> = over
            .map(|(record, _)| record.intent.call_id)
            .take(limit as usize)
            .collect();
        for call_id in &over {
            inner.kept.calls.remove(call_id);
            inner.kept.holders.retain(|_, holder| holder != call_id);
        }
        let over_documents =
            |document: &Document| document.retain_until.is_some_and(|until| until <= now);
        let before = inner.kept.documents.len();
        inner
            .kept
            .documents
            .retain(|_, document| !over_documents(document));
        Ok((over.len() + before - inner.kept.documents.len()) as u64)
    }
}
