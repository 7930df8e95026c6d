//! Compares the sources with the ledger.
//!
//! Everything is bounded, and a part that cannot be read fails the run: what is missing would look like an anomaly.

use std::collections::BTreeSet;

use super::service::Reconciler;
use super::settings::{Reconciliation, SourceAt};
use super::source::{Memory, Reservation};
use crate::rules::pairing::{Name, Pairing};
use crate::rules::{Comparison, Doubt, Window, brake};
use oncegate_budget::Charge;
use oncegate_engine::Base;
use oncegate_rules::ledger::{Filter, Listed, Page};
use oncegate_rules::position::Position;
use oncegate_rules::record::Record;

/// The account for the pages of sources: it has a share as a tenant has.
const RECONCILIATIONS: &str = "oncegate:reconciliations";
/// Calls that one page has.
const PAGE: u32 = 500;
/// Most calls of the window per item.
const CALLS_PER_ITEM: usize = 10;
/// Most calls that one search reads for the call that made an item.
const MAX_OLDER: usize = 200_000;

/// The charge for the page that is being read.
struct OfPage(Charge);

impl Memory for OfPage {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn grow(&mut self, more: usize) -> bool {
        self.0.grow(more).is_ok()
    }

    fn shrink_to(&mut self, bytes: usize) {
        self.0.shrink_to(bytes);
    }
}

/// The findings of a run, by source.
pub(super) struct Collected {
    pub(super) found: Vec<Comparison>,
    /// The sources that are not believed, each with the reason.
    pub(super) suspect: Vec<String>,
    pub(super) items: u64,
    pub(super) calls: u64,
    /// The memory of the items.
    _reservation: Reservation,
}

/// Items of one source, and the calls that were found for them so far.
struct Waiting<'a> {
    at: &'a SourceAt,
    pairing: Pairing<'a>,
}

/// Pairs calls with the items of each source.
fn add(all: &mut [Waiting<'_>], calls: &[Listed]) {
    for Listed { record, .. } in calls {
        add_one(all, record);
    }
}

fn add_one(all: &mut [Waiting<'_>], record: &Record) {
    for waiting in all {
        let tool = waiting.at.tool.as_ref();
        if tool.is_none_or(|tool| *tool == record.intent.tool) {
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
        let downstream = &self.anomalies.downstream;
        let held = self.base.limits.memory.charge(RECONCILIATIONS, 0);
        let mut reservation = Reservation::new(OfPage(held.map_err(|error| error.to_string())?));
        let (mut all, mut items) = (Vec::new(), 0);
        for at in &of.sources {
            let times = window.of_source(self.base.now());
            let found =
                at.source
                    .collect(downstream, times, of.max_items, &at.rules, &mut reservation);
            let found = found.await;
            let found = found.map_err(|why| format!("source {}: {why}", at.rules.source))?;
            items += found.len() as u64;
            all.push(Waiting {
                at,
                pairing: Pairing::new(&at.rules, window, found),
            });
        }
        let most = of.max_items.saturating_mul(CALLS_PER_ITEM);
        let filters = of.tools.iter().map(|tool| Filter {
            tool: Some(tool.clone()),
            since: Some(window.of_ledger()),
            ..Filter::default()
        });
        let mut calls = Calls::of_all_tenants(&self.base, filters).await?;
        while let Some(page) = calls.next().await? {
            let page = whole(page)?;
            if calls.read > most {
                return Err(format!("there are more than {most} calls in its time"));
            }
            add(&mut all, &page);
        }
        let mut doubts = self.look_further(of, window, &mut all).await?;
        // Read last: a loss of data that was accepted during the run counts.
        let whole_since = self.base.store.readiness().await.whole_since;
        doubts.extend((!window.is_known_since(whole_since)).then_some(Doubt::Young));
        let found = all.into_iter().map(|Waiting { at, pairing }| {
            let tool = at.tool.as_deref();
            (tool, pairing.finish(&doubts))
        });
        let mut found: Vec<_> = found.collect();
        brake::apply(&mut found);
        let sources = of.sources.iter().map(|at| &at.rules.source);
        let suspect = sources.zip(&found).filter_map(|(source, (_, compared))| {
            let why = compared.suspect.as_ref()?;
            Some(format!("{source}: {why}"))
        });
        Ok(Collected {
            suspect: suspect.collect(),
            found: found.into_iter().map(|(_, compared)| compared).collect(),
            items,
            calls: calls.read as u64,
            _reservation: reservation,
        })
    }

    /// Looks for the calls of items that seem to have none. Returns why some may not be found.
    ///
    /// An older call may have run again, or a call of another tool may have made the item.
    async fn look_further(
        &self,
        of: &Reconciliation,
        window: Window,
        all: &mut [Waiting<'_>],
    ) -> Result<Vec<Doubt>, String> {
        let named = all.iter();
        let named = named.flat_map(|waiting| waiting.pairing.calls_to_look_for());
        for call_id in named.collect::<BTreeSet<_>>() {
            let found = self.base.store.load(call_id).await;
            if let Some(record) = found.map_err(|error| error.to_string())? {
                add_one(all, &record);
            }
        }
        for n in 0..all.len() {
            for (key, name) in all[n].pairing.keys_to_read() {
                if self.read_all_of(all, name).await? {
                    all[n].pairing.has_read(key);
                }
            }
        }
        let filters = of.tools.iter().map(|tool| Filter {
            tool: Some(tool.clone()),
            until: Some(window.of_ledger()),
            ..Filter::default()
        });
        let mut older = Calls::of_all_tenants(&self.base, filters).await?;
        while all
            .iter()
            .any(|waiting| waiting.pairing.names_unknown_calls())
            && let Some(page) = older.next().await?
        {
            let page = whole(page)?;
            if older.read > MAX_OLDER {
                return Ok(vec![Doubt::Unread]);
            }
            add(all, &page);
        }
        let any = std::iter::once(Filter::default());
        let mut others = Calls::of_all_tenants(&self.base, any).await?;
        let has_unclaimed = |waiting: &Waiting<'_>| waiting.pairing.has_unclaimed_items();
        while all.iter().any(has_unclaimed)
            && let Some(page) = others.next().await?
        {
            if others.read > MAX_OLDER || page.unreadable > 0 {
                return Ok(vec![Doubt::Unread]);
            }
            for listed in &page.found {
                for waiting in &mut *all {
                    waiting.pairing.mark_known(&listed.record);
                }
            }
        }
        Ok(Vec::new())
    }

    /// Reads every call of a key. Returns whether all of them could be read.
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
        let mut calls = Calls::new(&self.base, vec![(tenant, filter)]);
        while let Some(page) = calls.next().await? {
            if page.unreadable > 0 || calls.read > MAX_OLDER {
                return Ok(false);
            }
            add(all, &page.found);
        }
        Ok(true)
    }
}

/// The calls of a page.
///
/// # Errors
/// Some of them cannot be read. Their effects would seem to have no call.
fn whole(page: Page<Listed>) -> Result<Vec<Listed>, String> {
    match page.unreadable {
        0 => Ok(page.found),
        unreadable => Err(format!("{unreadable} calls cannot be read")),
    }
}

/// The calls of tenants that pass filters, page after page.
struct Calls<'a> {
    base: &'a Base,
    /// Tenants and filters that are still to be read.
    left: Vec<(String, Filter)>,
    before: Option<Position>,
    /// How many calls were read so far.
    read: usize,
}

impl<'a> Calls<'a> {
    fn new(base: &'a Base, left: Vec<(String, Filter)>) -> Self {
        Self {
            base,
            left,
            before: None,
            read: 0,
        }
    }

    async fn of_all_tenants(
        base: &'a Base,
        filters: impl Iterator<Item = Filter> + Clone,
    ) -> Result<Self, String> {
        let mut left = Vec::new();
        let tenants = base.store.tenants().await;
        for tenant in tenants.map_err(|error| error.to_string())? {
            left.extend(filters.clone().map(|filter| (tenant.clone(), filter)));
        }
        Ok(Self::new(base, left))
    }

    /// The next page, newest first for each tenant and filter; `None`: all pages were read.
    async fn next(&mut self) -> Result<Option<Page<Listed>>, String> {
        let Some((tenant, filter)) = self.left.last() else {
            return Ok(None);
        };
        let store = &self.base.store;
        let page = store.list(tenant, filter, self.before, PAGE).await;
        let page = page.map_err(|error| error.to_string())?;
        self.read += page.found.len();
        self.before = page.next;
        if page.next.is_none() {
            self.left.pop();
        }
        Ok(Some(page))
    }
}
