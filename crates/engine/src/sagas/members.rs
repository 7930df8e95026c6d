//! The calls of a saga.
//!
//! Memory holds only what decides about each call, without the texts of callers and tools. A call is loaded whole
//! before it is changed. `rules::saga` decides about them.

use std::collections::{BTreeSet, HashMap};

use super::registry::SagaRegistry;
use crate::error::{Error, unavailable};
use oncegate_rules::caller::Caller;
use oncegate_rules::compensation::Policy;
use oncegate_rules::key;
use oncegate_rules::ledger::{self, Filter, LIMITS, Page};
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_rules::saga::Saga;
use oncegate_store as store;

/// Most calls of one saga, compensations not counted. A larger saga is stuck when it is aborted.
const MAX_CALLS: usize = 2_000;

/// A call of a saga, without its arguments and its result. Must never be written.
#[derive(Debug, Clone)]
pub(super) struct Member(Record);

impl Member {
    pub(super) fn of(record: Record) -> Self {
        Self(record.without_texts())
    }

    pub(super) fn record(&self) -> &Record {
        &self.0
    }
}

/// Why the calls of a saga are not known.
pub(super) enum Unlisted {
    /// The store did not answer. That was logged.
    Store,
    /// Asking again would not help; says why.
    Broken(String),
}

/// A saga with its calls, and their compensations apart.
#[derive(Debug, Clone)]
pub struct SagaAt {
    pub saga: Saga,
    /// The calls in the order in which they were made, without texts.
    pub(super) calls: Vec<Member>,
    /// The compensations, by their call ids.
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
    pub(super) fn for_caller(mut self, caller: &Caller) -> Self {
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

/// The calls of a saga as they were listed, in no order.
#[derive(Default)]
struct Listed {
    calls: Vec<Member>,
    compensations: HashMap<CallId, Member>,
    unreadable: u64,
}

impl SagaRegistry {
    /// A page of the calls that name a saga, newest first, without texts. Must never be written.
    pub(super) async fn page_of(
        &self,
        saga: &Saga,
        before: Option<Position>,
    ) -> Result<Page<ledger::Listed>, store::Error> {
        let filter = Filter {
            saga_id: Some(saga.id.id.clone()),
            is_brief: true,
            ..Filter::default()
        };
        let store = &self.base.store;
        let page = store.list(&saga.id.tenant, &filter, before, LIMITS.1);
        page.await
    }

    /// The calls that name a saga, or the one call that it undoes. Stops soon after there are too many.
    async fn list(&self, saga: &Saga) -> Result<Listed, store::Error> {
        let (mut listed, mut before) = (Listed::default(), None);
        if let Some(only) = saga.only {
            let only = self.base.store.load(only).await?;
            listed.calls.extend(only.map(Member::of));
        }
        loop {
            let page = self.page_of(saga, before).await?;
            listed.unreadable += page.unreadable;
            for found in page.found {
                let member = Member::of(found.record);
                let intent = &member.record().intent;
                if intent.key_source == key::Source::Compensation {
                    listed.compensations.insert(intent.call_id, member);
                } else {
                    listed.calls.push(member);
                }
            }
            before = page.next;
            if before.is_none() || listed.calls.len() > MAX_CALLS {
                return Ok(listed);
            }
        }
    }

    /// Every call of a saga but compensations, in no order.
    pub(super) async fn calls_of(&self, saga: &Saga) -> Result<Vec<Member>, Unlisted> {
        let listed = self.list(saga).await.map_err(|_| Unlisted::Store)?;
        let why = if listed.unreadable > 0 {
            format!("{} of its calls cannot be read", listed.unreadable)
        } else if listed.calls.len() > MAX_CALLS {
            format!("it has more than {MAX_CALLS} calls")
        } else {
            return Ok(listed.calls);
        };
        Err(Unlisted::Broken(why))
    }

    /// A saga with its calls, as many as can be shown.
    pub(super) async fn with_calls(&self, saga: Saga) -> Result<SagaAt, Error> {
        let listed = self.list(&saga).await.map_err(unavailable)?;
        let (mut calls, mut compensations) = (listed.calls, listed.compensations);
        let is_cut = listed.unreadable > 0 || calls.len() > MAX_CALLS;
        calls.truncate(MAX_CALLS);
        calls.sort_by_key(|member| Position::of(member.record()));
        // A call that was undone by itself has its compensation in another saga.
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
