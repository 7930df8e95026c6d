//! Compares the sources with the ledger.
//!
//! Everything is bounded, and a part that cannot be read fails the run: half of the truth would
//! look like an anomaly.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::service::Reconciler;
use super::settings::{Reconciliation, SourceAt};
use crate::core::ledger::{Filter, Listed, Page};
use crate::core::position::Position;
use crate::core::reconcile::pairing::{Name, Pairing};
use crate::core::reconcile::{Comparison, Doubt, Window};
use crate::core::record::Record;
use crate::downstream::outside::Room;
use crate::gateway::base::Base;

/// Calls that one search reads.
const AT_ONCE: u32 = 500;
/// Calls of the window per item, at most.
const CALLS_PER_ITEM: usize = 10;
/// Older calls that are searched for the one that made an item, at most.
const MAX_OLDER: usize = 200_000;

/// The findings of a run, by source.
pub(super) struct Collected {
    pub(super) found: Vec<Comparison>,
    pub(super) items: u64,
    pub(super) calls: u64,
}

/// Items of one source that wait for the calls of its tool.
struct Waiting<'a> {
    at: &'a SourceAt,
    pairing: Pairing<'a>,
}

fn add(all: &mut [Waiting<'_>], record: &Record) {
    for waiting in all {
        if waiting
            .at
            .tool
            .as_ref()
            .is_none_or(|tool| *tool == record.intent.tool)
        {
            waiting.pairing.add(record);
        } else {
            waiting.pairing.mark_known(record);
        }
    }
}

impl Reconciler {
    pub(super) async fn collect(
        &self,
        of: &Reconciliation,
        window: Window,
    ) -> Result<Collected, String> {
        let tools = self.base.tools();
        if let Some(gone) = of.tools.iter().find(|tool| !tools.contains_key(*tool)) {
            return Err(format!("the tool {gone} is not configured any more"));
        }
        let (mut all, mut items, mut room) = (Vec::new(), 0, Room::default());
        for at in &of.sources {
            let times = window.of_source(self.base.now());
            let found = self
                .downstream
                .collect(&at.source, times, of.max_items, &at.rules, &mut room)
                .await;
            let found = found.map_err(|why| format!("source {}: {why}", at.rules.source))?;
            items += found.len() as u64;
            all.push(Waiting {
                at,
                pairing: Pairing::new(&at.rules, window, found),
            });
        }
        let most = of.max_items.saturating_mul(CALLS_PER_ITEM);
        let mut read = 0;
        let mut calls = Calls::of(&self.base, of, (Some(window.of_ledger()), None)).await?;
        while let Some(page) = calls.next().await? {
            let page = whole(page)?;
            read += page.len();
            if read > most {
                return Err(format!("there are more than {most} calls in its time"));
            }
            page.iter().for_each(|listed| add(&mut all, &listed.record));
        }
        let mut doubts = self.look_further(of, window, &mut all).await?;
        // Asked last: a loss that was accepted meanwhile counts.
        let whole_since = self.base.store.readiness().await.whole_since;
        doubts.extend((!window.is_known_since(whole_since)).then_some(Doubt::Young));
        let found = all
            .into_iter()
            .map(|waiting| waiting.pairing.finish(&doubts))
            .collect();
        Ok(Collected {
            found,
            items,
            calls: read as u64,
        })
    }

    /// Looks for calls of items that seem to have none.
    ///
    /// A call of long ago may have run again, and a call of another tool may have made them.
    /// Returns why it is in doubt that all were found.
    async fn look_further(
        &self,
        of: &Reconciliation,
        window: Window,
        all: &mut [Waiting<'_>],
    ) -> Result<Vec<Doubt>, String> {
        let named: BTreeSet<_> = all
            .iter()
            .flat_map(|waiting| waiting.pairing.names_to_look_for())
            .collect();
        for call_id in named {
            let found = self.base.store.load(call_id).await;
            if let Some(record) = found.map_err(|error| error.to_string())? {
                add(all, &record);
            }
        }
        for n in 0..all.len() {
            for (key, name) in all[n].pairing.keys_to_read() {
                if self.read_all_of(all, name).await? {
                    all[n].pairing.has_read(key);
                }
            }
        }
        let mut read = 0;
        let mut older = Calls::of(&self.base, of, (None, Some(window.of_ledger()))).await?;
        while all.iter().any(|waiting| waiting.pairing.has_strangers()) {
            let Some(page) = older.next().await? else {
                break;
            };
            let page = whole(page)?;
            read += page.len();
            if read > MAX_OLDER {
                return Ok(vec![Doubt::Unread]);
            }
            page.iter().for_each(|listed| add(all, &listed.record));
        }
        let mut read = 0;
        let mut others = Calls::of_all_tools(&self.base).await?;
        while all
            .iter()
            .any(|waiting| waiting.pairing.has_unclaimed_items())
        {
            let Some(page) = others.next().await? else {
                break;
            };
            read += page.found.len();
            if read > MAX_OLDER || page.unreadable > 0 {
                return Ok(vec![Doubt::Unread]);
            }
            for listed in &page.found {
                all.iter_mut()
                    .for_each(|waiting| waiting.pairing.mark_known(&listed.record));
            }
        }
        Ok(Vec::new())
    }

    /// Reads every call of this key. Returns whether all of them could be read.
    async fn read_all_of(
        &self,
        all: &mut [Waiting<'_>],
        (tenant, tool, key): Name,
    ) -> Result<bool, String> {
        let filter = Filter {
            tool: Some(tool),
            key: Some(key),
            ..Filter::default()
        };
        let (mut before, mut read) = (None, 0);
        loop {
            let page = self
                .base
                .store
                .list(&tenant, &filter, before, AT_ONCE)
                .await;
            let page = page.map_err(|error| error.to_string())?;
            read += page.found.len();
            if page.unreadable > 0 || read > MAX_OLDER {
                return Ok(false);
            }
            page.found
                .iter()
                .for_each(|listed| add(all, &listed.record));
            before = page.next;
            if before.is_none() {
                return Ok(true);
            }
        }
    }
}

/// Fails if calls of a page cannot be read.
///
/// Their effects would seem to have no call.
fn whole(page: Page<Listed>) -> Result<Vec<Listed>, String> {
    match page.unreadable {
        0 => Ok(page.found),
        unreadable => Err(format!("{unreadable} calls cannot be read")),
    }
}

/// The calls of some tools in some time, page after page.
struct Calls<'a> {
    base: &'a Base,
    /// Tenants, with tools that are still to be read.
    places: Vec<(String, Option<String>)>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    before: Option<Position>,
}

impl<'a> Calls<'a> {
    async fn of(
        base: &'a Base,
        of: &Reconciliation,
        (since, until): (Option<Timestamp>, Option<Timestamp>),
    ) -> Result<Self, String> {
        let tenants = base.store.tenants().await;
        let mut places = Vec::new();
        for tenant in tenants.map_err(|error| error.to_string())? {
            places.extend(
                of.tools
                    .iter()
                    .map(|tool| (tenant.clone(), Some(tool.clone()))),
            );
        }
        Ok(Self {
            base,
            places,
            since,
            until,
            before: None,
        })
    }

    async fn of_all_tools(base: &'a Base) -> Result<Self, String> {
        let tenants = base.store.tenants().await;
        let tenants = tenants.map_err(|error| error.to_string())?;
        let places = tenants.into_iter().map(|tenant| (tenant, None)).collect();
        Ok(Self {
            base,
            places,
            since: None,
            until: None,
            before: None,
        })
    }

    /// The next page, newest first in each place; `None`: that was all.
    async fn next(&mut self) -> Result<Option<Page<Listed>>, String> {
        let Some((tenant, tool)) = self.places.last().cloned() else {
            return Ok(None);
        };
        let (since, until) = (self.since, self.until);
        let filter = Filter {
            tool,
            since,
            until,
            ..Filter::default()
        };
        let page = self
            .base
            .store
            .list(&tenant, &filter, self.before, AT_ONCE)
            .await;
        let page = page.map_err(|error| error.to_string())?;
        self.before = page.next;
        if page.next.is_none() {
            self.places.pop();
        }
        Ok(Some(page))
    }
}
