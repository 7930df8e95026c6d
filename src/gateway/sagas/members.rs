//! The calls of a saga.
//!
//! Memory holds only what decides about each, without the texts of callers and tools: a call is
//! loaded whole before it is changed. `core::saga` decides about them.

use std::collections::{BTreeSet, HashMap};

use super::member::{Member, Unlisted};
use super::registry::SagaRegistry;
use crate::core::caller::Caller;
use crate::core::compensation::Policy;
use crate::core::ledger::{Filter, LIMITS, Page};
use crate::core::position::Position;
use crate::core::record::{CallId, Record, State};
use crate::core::saga::Saga;
use crate::gateway::error::{Error, unavailable};
use crate::store;

/// Most calls of one saga, compensations not counted. A larger one is stuck when it is aborted.
const MAX_CALLS: usize = 2_000;

/// A saga with its calls, and their compensations apart.
#[derive(Debug, Clone)]
pub struct SagaAt {
    pub saga: Saga,
    /// The calls in the order in which they were made, without texts; so are the others.
    pub(super) calls: Vec<Member>,
    pub(super) compensations: HashMap<CallId, Member>,
    /// Whether there are more calls, or unreadable ones.
    pub is_cut: bool,
}

impl SagaAt {
    pub fn calls(&self) -> impl Iterator<Item = &Record> {
        self.calls.iter().map(Member::record)
    }

    /// The saga for one caller.
    ///
    /// Without the scope `read` a caller sees only the state and its own calls.
    pub(in crate::gateway) fn for_caller(mut self, caller: &Caller) -> Self {
        if caller.may_read(&self.saga.id.tenant) {
            return self;
        }
        let all = self.calls.len();
        self.calls.retain(|member| {
            let intent = &member.record().intent;
            caller.may_read_call(&intent.tenant, &intent.tool, &intent.made_by)
        });
        self.is_cut |= self.calls.len() < all;
        self.saga = Saga {
            reason: String::new(),
            trouble: None,
            events: Vec::new(),
            ..self.saga
        };
        self
    }

    /// The stored compensation of a call.
    pub fn compensation_of(&self, record: &Record) -> Option<&Record> {
        let decided = record.compensation()?;
        self.compensations.get(&decided.call_id).map(Member::record)
    }
}

impl SagaRegistry {
    /// A page of the calls that name a saga, newest first, without texts. Must never be written.
    pub(in crate::gateway) async fn page_of(
        &self,
        saga: &Saga,
        before: Option<Position>,
    ) -> Result<Page<Record>, store::Error> {
        let filter = Filter {
            saga_id: Some(saga.id.id.clone()),
            is_brief: true,
            ..Filter::default()
        };
        let store = &self.base.store;
        let page = store
            .list(&saga.id.tenant, &filter, before, LIMITS.1)
            .await?;
        let found = page.found.into_iter().map(|listed| listed.record);
        Ok(Page {
            found: found.collect(),
            next: page.next,
            unreadable: page.unreadable,
        })
    }

    /// Every call of a saga but compensations, in no order.
    ///
    /// The calls that name it, or the one call that it undoes.
    pub(in crate::gateway) async fn calls_of(&self, saga: &Saga) -> Result<Vec<Member>, Unlisted> {
        let (mut calls, mut before) = (Vec::new(), None);
        if let Some(only) = saga.only {
            calls.extend(self.base.store.load(only).await?.map(Member::of));
        }
        loop {
            let page = self.page_of(saga, before).await?;
            if page.unreadable > 0 {
                return Err(Unlisted::Broken(format!(
                    "{} of its calls cannot be read",
                    page.unreadable
                )));
            }
            let found = page.found.into_iter().map(Member::of);
            calls.extend(found.filter(|member| !member.undoes_another()));
            if calls.len() > MAX_CALLS {
                return Err(Unlisted::Broken(format!(
                    "it has more than {MAX_CALLS} calls"
                )));
            }
            before = page.next;
            if before.is_none() {
                return Ok(calls);
            }
        }
    }

    /// A saga with its calls, as many as can be shown.
    pub(super) async fn with_calls(&self, saga: Saga) -> Result<SagaAt, Error> {
        let (mut calls, mut compensations, mut before) = (Vec::new(), HashMap::new(), None);
        let mut is_cut = false;
        if let Some(only) = saga.only {
            let only = self.base.store.load(only).await.map_err(unavailable)?;
            calls.extend(only.map(Member::of));
        }
        loop {
            let page = self.page_of(&saga, before).await.map_err(unavailable)?;
            is_cut |= page.unreadable > 0;
            for member in page.found.into_iter().map(Member::of) {
                if member.undoes_another() {
                    compensations.insert(member.record().intent.call_id, member);
                } else {
                    calls.push(member);
                }
            }
            before = page.next;
            if before.is_none() {
                break;
            }
            if calls.len() > MAX_CALLS {
                is_cut = true;
                break;
            }
        }
        is_cut |= calls.len() > MAX_CALLS;
        calls.truncate(MAX_CALLS);
        calls.sort_by_key(|member| Position::of(member.record()));
        // What was undone by itself was undone by a call of another saga.
        for record in calls.iter().map(Member::record) {
            let is_done = matches!(record.state, State::Compensated(_) | State::Stuck(_));
            if let Some(by) = record.compensation().map(|decided| decided.call_id)
                && is_done
                && !compensations.contains_key(&by)
            {
                let made = self.base.store.load(by).await.map_err(unavailable)?;
                compensations.extend(made.map(|made| (by, Member::of(made))));
            }
        }
        Ok(SagaAt {
            saga,
            calls,
            compensations,
            is_cut,
        })
    }

    /// The tools of a saga's calls and of their compensations, as decided or configured now.
    ///
    /// `None` if not all of its calls are known.
    pub(super) fn saga_tools(&self, at: &SagaAt) -> Option<BTreeSet<String>> {
        let mut tools = BTreeSet::new();
        for record in at.calls() {
            tools.insert(record.intent.tool.clone());
            tools.extend(record.compensation().map(|decided| decided.tool.clone()));
            if let Policy::By(template) = self.base.policy_of(record).compensation {
                tools.insert(template.tool);
            }
        }
        (!at.is_cut).then_some(tools)
    }
}
