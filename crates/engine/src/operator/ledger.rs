//! Questions about calls, and about acts of operators.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;

use crate::audit;
use crate::base::lock::lock;
use crate::base::{Base, Query};
use crate::error::{Error, ErrorKind, tenant_to_list, unavailable};
use oncegate_rules::audit::{Act, Action, Audited, Outcome, Target};
use oncegate_rules::caller::Caller;
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::ledger::{Filter, History, Listed, PAGE_BYTES, Page, Placed};
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Record};
use oncegate_rules::redact;
use oncegate_store as store;

/// Most entries of a call's history in one answer: the newest.
pub(crate) const MAX_ENTRIES: u32 = 500;
/// Calls that one step of a search looks at; and the fewest of each tenant in the first step, which covers all tenants.
///
/// The bound is a number and not a time, so that the same page, asked for again, ends at the same call.
const LOOKS: (usize, usize) = (1_000, 16);
/// Histories that are read at once.
const AT_ONCE: usize = 16;
/// Most steps for one page.
const STEPS: usize = 16;

/// Most exports at once: of one tenant, and of all.
const MAX_EXPORTS: (usize, usize) = (2, 16);

/// How many calls of each tenant the first read of a page asks for.
///
/// The shares make a full page together. What a share leaves out comes with a further read.
pub(super) fn share_of(limit: u32, tenants: usize) -> u32 {
    match u32::try_from(tenants).unwrap_or(u32::MAX) {
        0 | 1 => limit,
        many => limit / many + 4,
    }
}

/// How many calls the pages have up to the position that every page has reached, and of how many bytes.
fn up_to(behind: Position, pages: &[Page<Listed>]) -> (usize, usize) {
    let found = pages.iter().flat_map(|page| &page.found);
    let found = found.filter(|listed| listed.position() >= behind);
    found.fold((0, 0), |(calls, bytes), listed| {
        (calls + 1, bytes + listed.size())
    })
}

/// A permit for an export; dropped, it is free again.
pub struct ExportPermit {
    tenant: String,
    taken: Arc<Mutex<Vec<String>>>,
}

impl Drop for ExportPermit {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(at) = taken.iter().position(|tenant| *tenant == self.tenant) {
            taken.swap_remove(at);
        }
    }
}

/// Answers questions about calls, and about what operators have done.
pub struct Ledger {
    pub(super) base: Arc<Base>,
    /// The tenants of the running exports.
    exports: Arc<Mutex<Vec<String>>>,
}

impl Ledger {
    pub(crate) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            exports: Arc::default(),
        }
    }

    /// A call with its history.
    ///
    /// # Errors
    /// The call does not exist, or the caller may not read it, which looks the same. A token reads the calls that it made
    /// itself, and with the scope `read` all of its tenant.
    pub async fn find_call(&self, caller: &Caller, call_id: CallId) -> Result<History, Error> {
        let unknown = || ErrorKind::UnknownCall.alone();
        // Checked before the call is read: a refusal must take as long as the answer about a call that does not exist.
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

    /// Leaves only the calls on a page that were unknown in a time, by their histories.
    async fn retain_unknown_in(
        &self,
        page: &mut Page<Listed>,
        between: (Timestamp, Timestamp),
    ) -> Result<(), Error> {
        let looks = page.found.drain(..).map(|listed| async move {
            let call_id = listed.record.intent.call_id;
            let history = self.base.store.history(call_id, MAX_ENTRIES).await?;
            let was_unknown = history.is_some_and(|history| history.was_unknown_in(between));
            Ok::<_, store::Error>(was_unknown.then_some(listed))
        });
        let looks: Vec<_> = looks.collect();
        let found: Result<Vec<_>, _> = stream::iter(looks).buffered(AT_ONCE).try_collect().await;
        page.found = found.map_err(unavailable)?.into_iter().flatten().collect();
        Ok(())
    }

    /// Takes secrets out of a record.
    pub(super) fn mask(&self, record: &mut Record) {
        let tool = &record.intent.tool;
        if let Some(json) = record.state.stored_mut() {
            *json = self.without_secrets(tool, json);
        }
        let at = self.base.tool_at(tool);
        let secret = at.as_ref().map_or(&[][..], |at| &at.tool.redact.args);
        // Calls from before this setting are stored with these arguments.
        if !secret.is_empty() {
            let intent = Arc::make_mut(&mut record.intent);
            intent.args = redact::mask(&intent.args, secret);
        }
    }

    /// A tool's result without its secrets. Without the tool's settings all of it may be secret.
    pub(super) fn without_secrets(&self, tool: &str, json: &Bytes) -> Bytes {
        match self.base.tool_at(tool) {
            Some(at) => at.shown(json),
            None => Bytes::from_static(b"\"[hidden: the tool is not configured]\""),
        }
    }

    /// The calls that pass a filter, newest first.
    ///
    /// The work for one page is bounded, so a page may hold fewer calls than pass, even none. It says where the next page
    /// begins.
    ///
    /// # Errors
    /// The caller may not read these calls, or the store does not answer.
    pub async fn list_calls(
        &self,
        caller: &Caller,
        query: &Query<Filter>,
    ) -> Result<Page<Listed>, Error> {
        let tenant = tenant_to_list(caller, query.tenant.as_ref())?;
        let tenants = self.tenants_of(tenant).await?;
        self.list_in(caller, &tenants, query).await
    }

    /// The tenant that was named, or all.
    pub(super) async fn tenants_of(&self, named: Option<String>) -> Result<Vec<String>, Error> {
        match named {
            Some(tenant) => Ok(vec![tenant]),
            None => self.base.store.tenants().await.map_err(unavailable),
        }
    }

    /// A page of calls of these tenants. Its caller has decided that they may be listed.
    pub(super) async fn list_in(
        &self,
        caller: &Caller,
        tenants: &[String],
        query: &Query<Filter>,
    ) -> Result<Page<Listed>, Error> {
        let limit = query.limit as usize;
        let looks = |looks| Filter {
            looks: Some(looks),
            ..query.filter.clone()
        };
        let share = share_of(query.limit, tenants.len());
        let first = looks((LOOKS.0 / tenants.len().max(1)).max(LOOKS.1));
        let mut pages = Vec::with_capacity(tenants.len());
        for tenant in tenants {
            let found = self.base.store.list(tenant, &first, query.before, share);
            pages.push(found.await.map_err(unavailable)?);
        }
        let further = looks(LOOKS.0);
        // A step that finds less than it wants has looked at as many calls as it may. Then no further step is made.
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
        if let Some(between) = query.filter.unknown_in {
            self.retain_unknown_in(&mut page, between).await?;
        }
        page.found
            .iter_mut()
            .for_each(|listed| self.mask(&mut listed.record));
        Ok(page)
    }

    /// The acts of operators, newest first, and the position of the next page.
    ///
    /// Only administrators see acts on targets of no tenant, such as a tool.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, or the store does not answer.
    pub async fn list_acts(
        &self,
        caller: &Caller,
        query: &Query<Option<Action>>,
    ) -> Result<(Vec<Audited>, Option<Position>), Error> {
        let found = self
            .base
            .list_documents(Kind::Act, caller, query, Action::as_str);
        let (found, next) = found.await?;
        let read = |document: &Document| {
            let read = Audited::from_document(document);
            read.inspect_err(|why| tracing::error!(act = document.id, why, "an act cannot be read"))
                .ok()
        };
        Ok((found.iter().filter_map(read).collect(), next))
    }

    /// A permit for an export.
    ///
    /// The permits are few, so that exports do not hold up calls; and each tenant has a part of them, so that a tenant
    /// that reads slowly leaves permits to others.
    ///
    /// # Errors
    /// All permits are taken.
    pub fn permit_to_export(&self, caller: &Caller) -> Result<ExportPermit, Error> {
        let mut taken = lock(&self.exports);
        let own = taken.iter().filter(|tenant| **tenant == caller.tenant);
        let own = own.count();
        if own >= MAX_EXPORTS.0 || taken.len() >= MAX_EXPORTS.1 {
            return Err(ErrorKind::RateLimited.alone());
        }
        taken.push(caller.tenant.clone());
        Ok(ExportPermit {
            tenant: caller.tenant.clone(),
            taken: self.exports.clone(),
        })
    }

    /// Records in the audit that calls were exported: by whom, and with which filter as JSON.
    pub async fn note_export(&self, caller: &Caller, tenant: Option<&str>, filter: String) {
        // A gateway of 0.2.0 that shares the store cannot read such an act: it would log an error at each list.
        if !self.base.store.takes_new_acts() {
            return;
        }
        let tenant = tenant.unwrap_or(&caller.tenant);
        let target = Target::Calls { filter, count: 0 };
        let act = Act::new(caller, Action::Export, tenant, target, "");
        audit::made(&self.base, &act, Outcome::Done).await;
    }
}
