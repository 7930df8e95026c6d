//! Questions about calls.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::core::audit::{Audited, Deed};
use crate::core::caller::Caller;
use crate::core::document::{Document, Kind};
use crate::core::ledger::{Filter, History, Listed, PAGE_BYTES, Page, Placed};
use crate::core::position::Position;
use crate::core::record::{CallId, Record};
use crate::core::redact;
use crate::gateway::base::Base;
use crate::gateway::error::{Error, ErrorKind, unavailable};

/// Most entries of a call's history in one answer: the newest.
pub(in crate::gateway) const MAX_ENTRIES: u32 = 500;
/// Calls that one step of a search looks at, and the fewest of a tenant in the first step, which is of all tenants.
///
/// Not a time: the same page, asked for again, must not end at another call.
const LOOKS: (usize, usize) = (1_000, 16);
/// Most steps for one page.
const STEPS: usize = 16;

/// How many exports may run at once: for a tenant, and in all.
const MAX_EXPORTS: (usize, usize) = (2, 16);

/// How many calls the pages have up to a position to which all of them have looked, and of how many bytes.
fn up_to(behind: Position, pages: &[Page<Listed>]) -> (usize, usize) {
    let found = pages.iter().flat_map(|page| &page.found);
    let found = found.filter(|listed| listed.position() >= behind);
    found.fold((0, 0), |(calls, bytes), listed| {
        (calls + 1, bytes + listed.size())
    })
}

/// A place for an export; dropped, it is free again.
pub struct ExportPlace {
    tenant: String,
    taken: Arc<Mutex<Vec<String>>>,
}

impl Drop for ExportPlace {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = taken.iter().position(|tenant| *tenant == self.tenant) {
            taken.swap_remove(at);
        }
    }
}

/// The text in place of a result whose tool is not configured here.
///
/// Which parts of it are secret is not known.
pub(in crate::gateway) fn hidden() -> Bytes {
    Bytes::from_static(b"\"[hidden: the tool is not configured]\"")
}

/// A question to the ledger.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// The tenant of the calls; if none is named, the caller's own, or for an administrator every
    /// tenant.
    pub tenant: Option<String>,
    pub filter: Filter,
    /// Only calls before this.
    pub before: Option<Position>,
    pub limit: u32,
}

/// A question about acts of persons.
#[derive(Debug, Clone)]
pub struct AuditQuery {
    /// The tenant of the targets; as in [`Query`].
    pub tenant: Option<String>,
    pub deed: Option<Deed>,
    pub before: Option<Position>,
    pub limit: u32,
}

/// Answers questions about calls, and about what persons have done.
pub struct Ledger {
    base: Arc<Base>,
    /// The tenants of the running exports.
    exports: Arc<Mutex<Vec<String>>>,
}

impl Ledger {
    pub(in crate::gateway) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            exports: Arc::default(),
        }
    }

    /// A call with its history.
    ///
    /// # Errors
    /// Another's call is unknown, just as one that is not there: a token reads the calls that it made itself, and
    /// with the scope `read` those of its tenant.
    pub async fn find_call(&self, caller: &Caller, call_id: CallId) -> Result<History, Error> {
        let unknown = || ErrorKind::UnknownCall.alone();
        // First: another's call must take as long as one that is not there.
        let maker = self.base.store.maker(call_id).await.map_err(unavailable)?;
        maker
            .filter(|by| caller.may_read_call(&by.tenant, &by.tool, &by.token))
            .ok_or_else(unknown)?;
        let found = self.base.store.history(call_id, MAX_ENTRIES).await;
        let found = found.map_err(unavailable)?;
        let found = found.filter(|history| caller.may_see(&history.record));
        let mut history = found.ok_or_else(unknown)?;
        self.mask(&mut history.record);
        Ok(history)
    }

    /// Takes secrets out of a record.
    pub(in crate::gateway) fn mask(&self, record: &mut Record) {
        let at = self.base.tool_at(&record.intent.tool);
        let mask = |json: &Bytes| at.as_ref().map_or_else(hidden, |at| at.shown(json));
        if let Some(json) = record.state.kept_mut() {
            *json = mask(json);
        }
        if let Some(secret) = at
            .as_ref()
            .map(|at| &at.tool.redact)
            .filter(|secret| !secret.args.is_empty())
        {
            // What was made before the configuration said so.
            let intent = Arc::make_mut(&mut record.intent);
            intent.args = redact::mask(&intent.args, &secret.args);
        }
    }

    /// The calls that pass a filter, newest first.
    ///
    /// The work for one page is bounded. So a page may hold fewer calls than there are, even none;
    /// it says where the next one begins.
    ///
    /// # Errors
    /// The caller may not read these calls, or the store does not answer.
    pub async fn list_calls(&self, caller: &Caller, query: &Query) -> Result<Page<Listed>, Error> {
        let tenants = self.tenants_for(caller, query).await?;
        let limit = query.limit as usize;
        let looks = |looks| Filter {
            looks: Some(looks),
            ..query.filter.clone()
        };
        // Of many tenants each has a share; what is then missing comes with the next steps.
        let share = match tenants.len() {
            0 | 1 => query.limit,
            many => u32::try_from(limit / many + 4).unwrap_or(query.limit),
        };
        let first = looks((LOOKS.0 / tenants.len().max(1)).max(LOOKS.1));
        let mut pages = Vec::with_capacity(tenants.len());
        for tenant in &tenants {
            let found = self.base.store.list(tenant, &first, query.before, share);
            pages.push(found.await.map_err(unavailable)?);
        }
        let further = looks(LOOKS.0);
        // Once a step has found too little, it has looked at as many calls as it may.
        let mut is_spent = false;
        for _ in 0..STEPS {
            let Some(behind) = pages.iter().filter_map(|page| page.next).max() else {
                break;
            };
            let (calls, bytes) = up_to(behind, &pages);
            if calls >= limit || bytes >= PAGE_BYTES || is_spent {
                break;
            }
            let wanted = u32::try_from(limit - calls).unwrap_or(query.limit);
            let each = tenants.iter().zip(&mut pages);
            for (tenant, page) in each.filter(|(_, page)| page.next == Some(behind)) {
                let more = self.base.store.list(tenant, &further, page.next, wanted);
                let more = more.await.map_err(unavailable)?;
                is_spent |= more.next.is_some() && more.found.len() < wanted as usize;
                page.found.extend(more.found);
                page.unreadable += more.unreadable;
                page.next = more.next;
            }
        }
        let mut page = Page::merge(pages, limit);
        page.cut_bytes();
        page.found.retain(|listed| caller.may_see(&listed.record));
        page.found
            .iter_mut()
            .for_each(|listed| self.mask(&mut listed.record));
        Ok(page)
    }

    /// The acts of persons, newest first, and the position of the next page.
    ///
    /// Acts on what belongs to no tenant, such as a tool, are shown to administrators.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, or the store does not answer.
    pub async fn list_acts(
        &self,
        caller: &Caller,
        query: &AuditQuery,
    ) -> Result<(Vec<Audited>, Option<Position>), Error> {
        let own = (!caller.is_admin()).then(|| caller.tenant.clone());
        let tenant = query.tenant.clone().or(own);
        if !tenant
            .as_ref()
            .map_or(caller.is_admin(), |tenant| caller.may_read(tenant))
        {
            return Err(ErrorKind::Forbidden.alone());
        }
        let (deed, before) = (query.deed.map(Deed::as_str), query.before.as_ref());
        let store = &self.base.store;
        let found = store.documents(Kind::Act, tenant.as_deref(), deed, before, query.limit);
        let (found, next) = self.base.readable_page(found.await).map_err(unavailable)?;
        let read = |document: &Document| {
            let read = Audited::from_document(document);
            read.inspect_err(|why| tracing::error!(act = document.id, why, "an act cannot be read"))
                .ok()
        };
        Ok((found.iter().filter_map(read).collect(), next))
    }

    async fn tenants_for(&self, caller: &Caller, query: &Query) -> Result<Vec<String>, Error> {
        let tenant = query.tenant.as_ref().unwrap_or(&caller.tenant);
        if !caller.may_read(tenant) {
            return Err(ErrorKind::Forbidden.alone());
        }
        if query.tenant.is_some() || !caller.is_admin() {
            return Ok(vec![tenant.clone()]);
        }
        let tenants = self.base.store.tenants().await;
        tenants.map_err(unavailable)
    }

    /// A place for an export.
    ///
    /// There are few, so that calls are not held up; and a tenant that reads slowly leaves some to
    /// the others.
    ///
    /// # Errors
    /// All of them are taken.
    pub fn place_to_export(&self, caller: &Caller) -> Result<ExportPlace, Error> {
        let mut taken = self.exports.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken
            .iter()
            .filter(|tenant| **tenant == caller.tenant)
            .count();
        if own >= MAX_EXPORTS.0 || taken.len() >= MAX_EXPORTS.1 {
            return Err(ErrorKind::RateLimited.alone());
        }
        taken.push(caller.tenant.clone());
        Ok(ExportPlace {
            tenant: caller.tenant.clone(),
            taken: self.exports.clone(),
        })
    }
}
