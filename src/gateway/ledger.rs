//! What is known of calls.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::{Error, ErrorKind, Gateway};
use crate::core::caller::Caller;
use crate::core::ledger::{Filter, History, Listed, PAGE_BYTES, Page, Position};
use crate::core::outcome::{Content, Failure};
use crate::core::record::{CallId, Record, State};
use crate::core::redact;

/// The most entries of a call's history that one answer holds: the newest.
const MAX_ENTRIES: u32 = 500;
/// How often a store is asked for one page: what few calls match takes several pages.
const ROUNDS: usize = 4;

/// What is asked of the ledger.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Whose calls; if nobody is named, the caller's own, or for an administrator everyone's.
    pub tenant: Option<String>,
    pub filter: Filter,
    /// Only calls before this.
    pub before: Option<Position>,
    pub limit: u32,
}

impl Gateway {
    /// A call with its history.
    ///
    /// # Errors
    /// Another tenant's call is unknown, just as one that is not there.
    pub async fn find_call(&self, caller: &Caller, call_id: CallId) -> Result<History, Error> {
        if !caller.may_read(&caller.tenant) {
            return Err(ErrorKind::Forbidden.alone());
        }
        let found = self.counted("history", self.store.history(call_id, MAX_ENTRIES).await);
        let found = found.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        let mut history = found
            .filter(|history| caller.may_read(&history.record.intent.tenant))
            .ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        self.mask(&mut history.record);
        Ok(history)
    }

    /// Takes out of a record what is not to be shown.
    pub(super) fn mask(&self, record: &mut Record) {
        let Some(at) = self.tools.get(&record.intent.tool) else { return };
        let secret = &at.tool.redact;
        match &mut record.state {
            State::Succeeded(Content::Kept(json)) => *json = redact::mask(json, &secret.result),
            State::Failed(Failure { body: Some(json), .. }) => *json = redact::mask(json, &secret.result),
            State::Succeeded(Content::Unavailable(_))
            | State::Failed(_)
            | State::Running
            | State::Unknown(_) => {}
        }
        if !secret.args.is_empty() {
            // What was made before the configuration said so.
            let intent = Arc::make_mut(&mut record.intent);
            intent.args = redact::mask(&intent.args, &secret.args);
        }
    }

    /// The calls that pass a filter, newest first. A page may hold fewer than there are, even none, and
    /// says from where on to ask for the next: the work for one page is bounded.
    ///
    /// # Errors
    /// The caller may not read these calls, or the store does not answer.
    pub async fn list_calls(&self, caller: &Caller, query: &Query) -> Result<Page<Listed>, Error> {
        let tenants = self.tenants_for(caller, query).await?;
        let limit = query.limit as usize;
        let mut page = Page { found: Vec::new(), next: query.before };
        let mut bytes = 0;
        for _ in 0..ROUNDS {
            let wanted = limit - page.found.len();
            // Of many tenants each has a share; what is then missing comes with the next round.
            let share = if tenants.len() > 1 { wanted / tenants.len() + 4 } else { wanted };
            let share = u32::try_from(share).unwrap_or(query.limit);
            let mut pages = Vec::with_capacity(tenants.len());
            for tenant in &tenants {
                let found = self.store.list(tenant, &query.filter, page.next, share).await;
                pages.push(self.counted("list", found).map_err(|_| ErrorKind::StoreUnavailable.alone())?);
            }
            let more = Page::merge(pages, wanted);
            bytes += more.found.iter().map(Listed::size).sum::<usize>();
            page.found.extend(more.found);
            page.next = more.next;
            if page.next.is_none() || page.found.len() >= limit || bytes >= PAGE_BYTES {
                break;
            }
        }
        page.found.iter_mut().for_each(|listed| self.mask(&mut listed.record));
        Ok(page)
    }

    async fn tenants_for(&self, caller: &Caller, query: &Query) -> Result<Vec<String>, Error> {
        let tenant = query.tenant.as_ref().unwrap_or(&caller.tenant);
        if !caller.may_read(tenant) {
            return Err(ErrorKind::Forbidden.alone());
        }
        if query.tenant.is_some() || !caller.is_admin() {
            return Ok(vec![tenant.clone()]);
        }
        let tenants = self.counted("tenants", self.store.tenants().await);
        tenants.map_err(|_| ErrorKind::StoreUnavailable.alone())
    }

    /// A place for somebody who wants to read everything: there are few, so that calls are not held up.
    ///
    /// # Errors
    /// All of them are taken.
    pub fn place_to_export(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.exports).try_acquire_owned().map_err(|_| ErrorKind::RateLimited.alone())
    }
}
