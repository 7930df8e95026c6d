//! Forgets key schemes of which no call is kept.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::known::{KeySchemes, key_schemes_of};
use super::learn::Error;
use crate::base::lock::lock;
use oncegate_rules::key_scheme::KeySchemeId;
use oncegate_rules::key_scheme::stored::Remembered;
use oncegate_rules::ledger::Filter;
use oncegate_store::{self as store, Put};

/// Calls that one page has.
const PAGE: u32 = 500;
/// How soon to search again for calls of an overdue key scheme, if some were found.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_hours(24);
/// Most pages of old calls that one search reads.
const PAGES: usize = 20;

impl KeySchemes {
    /// Writes that this gateway uses its key schemes, reads all others, and forgets those without calls.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn keep_key_schemes_once(&self, now: Timestamp) -> Result<(), Error> {
        self.learn_key_schemes().await?;
        let tools = self.base.tools();
        let current: BTreeSet<KeySchemeId> = tools.values().map(|at| at.key_scheme_id).collect();
        let known = self.known.load_full();
        let is_old = |one: &&Remembered| one.is_overdue(now) && !current.contains(&one.id);
        for one in known.iter().filter(is_old) {
            if !self.is_looked_for(one.id, now) || self.has_calls_of(one).await? {
                continue;
            }
            let put = self.base.store.put_document(&one.forgotten(now)).await;
            if matches!(put?, Put::Done) {
                let (tool, key_scheme) = (&one.key_scheme.tool, one.id);
                tracing::info!(tool, %key_scheme, "an earlier setting of the tool's key is forgotten: no call of it is stored");
                self.change(|known| {
                    let of_tool = known.all.entry(tool.clone()).or_default();
                    of_tool.retain(|one| one.id != key_scheme);
                });
            }
        }
        Ok(())
    }

    /// Whether it is time to search for the calls of a key scheme.
    fn is_looked_for(&self, id: KeySchemeId, now: Timestamp) -> bool {
        let mut looked_for = lock(&self.looked_for);
        let is_time = looked_for
            .get(&id)
            .is_none_or(|at| now.duration_since(*at) >= LOOK_AGAIN);
        if is_time {
            looked_for.retain(|_, at| now.duration_since(*at) < LOOK_AGAIN);
            looked_for.insert(id, now);
        }
        is_time
    }

    /// Whether a call of a key scheme is kept. If not every old call can be read, one counts as kept.
    async fn has_calls_of(&self, one: &Remembered) -> Result<bool, store::Error> {
        let filter = Filter {
            tool: Some(one.key_scheme.tool.clone()),
            until: Some(one.made_until()),
            ..Filter::default()
        };
        for tenant in self.base.store.tenants().await? {
            let mut before = None;
            for page in 0.. {
                let found = self.base.store.list(&tenant, &filter, before, PAGE).await?;
                let mut calls = found.found.iter();
                let is_in_use =
                    calls.any(|call| key_schemes_of(&call.record).any(|id| id == one.id));
                before = found.next;
                if is_in_use || found.unreadable > 0 || (before.is_some() && page >= PAGES) {
                    return Ok(true);
                }
                if before.is_none() {
                    break;
                }
            }
        }
        Ok(false)
    }
}
