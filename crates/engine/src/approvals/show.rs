//! What an approver sees of calls that wait, or that were decided.

use std::sync::Arc;

use super::Approvals;
use crate::calls::{BuiltRequest, built};
use crate::error::{Error, ErrorKind, unavailable};
use oncegate_rules::approval::{self, Digest};
use oncegate_rules::caller::Caller;
use oncegate_rules::ledger::Filter;
use oncegate_rules::record::{CallId, Record};
use oncegate_rules::redact;

/// Most calls of a list.
const MOST: usize = 500;
/// Calls of each tenant that are looked at: so many pages of so many calls.
const PAGES: usize = 4;
const AT_ONCE: u32 = 500;
/// How many of a session's newest calls are shown.
const OF_SESSION: u32 = 10;

/// Which calls a list has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Open,
    Decided,
}

/// A filter for the list.
#[derive(Debug, Clone, Default)]
pub struct Look {
    pub state: State,
    pub tool: Option<String>,
    pub session_id: Option<String>,
}

/// A list, newest first.
#[derive(Debug)]
pub struct Proposals {
    pub found: Vec<Record>,
    /// Whether there are more.
    pub has_more: bool,
}

/// A call that was asked about, as an approver sees it.
#[derive(Debug)]
pub struct Shown {
    pub record: Record,
    /// The request, if the call waits; or why there is none.
    pub request: Option<Result<BuiltRequest, String>>,
    /// What has to be sent back with an approval.
    pub seen: Option<Digest>,
    /// The similar call that is shown.
    pub similar: Option<Record>,
    /// The newest calls of its session, without their texts.
    pub session: Vec<Record>,
}

impl Approvals {
    /// Calls that wait for approval, or that were decided, newest first.
    ///
    /// # Errors
    /// The caller may not see them, or the store does not answer.
    pub async fn list(&self, caller: &Caller, look: &Look) -> Result<Proposals, Error> {
        if !caller.may_see_proposals() {
            return Err(ErrorKind::Forbidden.alone());
        }
        let tenants = match caller.is_admin() {
            true => self.base.store.tenants().await.map_err(unavailable)?,
            false => vec![caller.tenant.clone()],
        };
        let states: &[Option<&str>] = match look.state {
            State::Open => &[Some("proposed"), Some("approved")],
            State::Decided => &[None],
        };
        let mut found: Vec<Record> = Vec::new();
        let mut has_more = false;
        for tenant in &tenants {
            for state in states {
                let filter = Filter {
                    state: state.map(str::to_owned),
                    tool: look.tool.clone(),
                    session_id: look.session_id.clone(),
                    ..Filter::default()
                };
                let mut before = None;
                for _ in 0..PAGES {
                    let page = self.base.store.list(tenant, &filter, before, AT_ONCE).await;
                    let page = page.map_err(unavailable)?;
                    before = page.next;
                    let records = page.found.into_iter();
                    let records = records.map(|listed| self.masked(listed.record));
                    found.extend(records.filter(|record| {
                        let is_asked = record.proposal.is_some();
                        let is_open = record.state.waits_for_approval();
                        is_asked
                            && is_open == (look.state == State::Open)
                            && caller.may_see_proposal(tenant, &record.intent.tool)
                    }));
                    if before.is_none() {
                        break;
                    }
                }
                has_more |= before.is_some();
            }
        }
        found.sort_by_key(|record| std::cmp::Reverse(asked_at(record)));
        has_more |= found.len() > MOST;
        found.truncate(MOST);
        Ok(Proposals { found, has_more })
    }

    /// A call that was asked about.
    ///
    /// # Errors
    /// The caller may not see it, which looks as if it did not exist; or it was never asked about.
    pub async fn show(&self, caller: &Caller, call_id: CallId) -> Result<Shown, Error> {
        let record = self.record_for(caller, call_id).await?;
        if record.proposal.is_none() {
            let why = "the call was never asked about".to_owned();
            return Err(ErrorKind::WrongState(why).of_call(call_id));
        }
        let (mut request, mut seen) = (None, None);
        if record.state.waits_for_approval() {
            let made = self.built(&record);
            seen = made.as_ref().ok().map(|(shown, _)| shown.seen);
            request = Some(made.map(|(_, request)| request));
        }
        let similar = match record.similar_to {
            Some(similar) => self.base.store.load(similar).await.map_err(unavailable)?,
            None => None,
        };
        let similar = similar.map(|similar| self.masked(similar));
        let session = self.calls_of_session(&record).await?;
        let record = self.masked(record);
        Ok(Shown {
            record,
            request,
            seen,
            similar,
            session,
        })
    }

    /// A stored call whose proposal this caller may see.
    pub(super) async fn record_for(
        &self,
        caller: &Caller,
        call_id: CallId,
    ) -> Result<Record, Error> {
        let unknown = || ErrorKind::UnknownCall.of_call(call_id);
        // Checked before the call is read: see `Ledger::find_call`.
        let maker = self.base.store.maker(call_id).await.map_err(unavailable)?;
        let may_see = maker.is_some_and(|by| caller.may_see_proposal(&by.tenant, &by.tool));
        let found = match may_see {
            true => self.base.store.load(call_id).await.map_err(unavailable)?,
            false => None,
        };
        found.ok_or_else(unknown)
    }

    /// The call as it would begin now.
    ///
    /// # Errors
    /// It would not; says why.
    pub(super) fn built(&self, record: &Record) -> Result<(approval::Shown, BuiltRequest), String> {
        let at = self.base.tool_of(record);
        let at = at.ok_or("its tool is not configured here")?;
        built(&at, record, &self.engine.secrets.current().today)
    }

    /// A record without arguments that are secret by now.
    pub(super) fn masked(&self, mut record: Record) -> Record {
        let at = self.base.tool_at(&record.intent.tool);
        let secret = at.as_ref().map_or(&[][..], |at| &at.tool.redact.args);
        if !secret.is_empty() {
            let intent = Arc::make_mut(&mut record.intent);
            intent.args = redact::mask(&intent.args, secret);
        }
        record
    }

    async fn calls_of_session(&self, record: &Record) -> Result<Vec<Record>, Error> {
        let intent = &record.intent;
        if intent.session_id.is_empty() {
            return Ok(Vec::new());
        }
        let filter = Filter {
            session_id: Some(intent.session_id.clone()),
            is_brief: true,
            ..Filter::default()
        };
        let page = self
            .base
            .store
            .list(&intent.tenant, &filter, None, OF_SESSION);
        let page = page.await.map_err(unavailable)?;
        let records = page.found.into_iter().map(|listed| listed.record);
        Ok(records
            .filter(|one| one.intent.call_id != intent.call_id)
            .collect())
    }
}

fn asked_at(record: &Record) -> jiff::Timestamp {
    let proposal = record.proposal.as_deref();
    proposal.map_or(record.intent.created_at, |asked| asked.asked_at)
}
