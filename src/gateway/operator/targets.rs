//! The targets of an act on many calls or sagas: what a filter finds, and how it is summed up.

use std::sync::Arc;

use super::ledger::{Ledger, Query};
use crate::core::audit::{Act, Deed, Target};
use crate::core::call::Event;
use crate::core::caller::Caller;
use crate::core::ledger::{Filter, LIMITS, Listed};
use crate::core::many::{Mark, SAMPLE, Summary, name_of_saga};
use crate::core::record::{CallId, Content, Record};
use crate::core::saga::{self, Saga, SagaId};
use crate::core::unknown::Resolution;
use crate::gateway::base::Base;
use crate::gateway::error::{Error, ErrorKind};
use crate::gateway::sagas::{SagaAct, SagaQuery, Sagas};
use crate::gateway::transition;

/// What to do to calls.
#[derive(Debug, Clone)]
pub enum CallAct {
    Resolve(Resolution),
    /// Ask their tools whether they know the keys.
    Probe,
}

/// An act on all that a filter finds.
#[derive(Debug, Clone)]
pub struct Many<A> {
    pub act: A,
    /// The tenant of the targets; `None`: all tenants.
    pub tenant: Option<String>,
    /// Of calls; a filter of sagas has nothing but the tenant.
    pub filter: Filter,
    /// The filter as a person gave it, as JSON, for the audit.
    pub filter_json: String,
    pub reason: String,
}

/// The answer to a dry run. Nothing was changed.
#[derive(Debug)]
pub struct DryRun<T> {
    pub summary: Summary,
    /// How many of the targets would refuse the act as they are now.
    pub refused: usize,
    /// Those that the filter could not look into, because they cannot be read.
    pub unreadable: u64,
    /// The newest of the targets.
    pub sample: Vec<T>,
}

/// One target, as it was listed.
pub(super) struct Item<I> {
    pub(super) id: I,
    pub(super) mark: Mark,
    /// The tool of a call, or the tenant of a saga.
    pub(super) group: String,
    pub(super) tenant: String,
}

/// What a filter has found.
pub(super) struct Found<I, T> {
    pub(super) items: Vec<Item<I>>,
    pub(super) refused: usize,
    pub(super) unreadable: u64,
    pub(super) sample: Vec<T>,
}

impl<I, T> Default for Found<I, T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            refused: 0,
            unreadable: 0,
            sample: Vec::new(),
        }
    }
}

impl<I, T> Found<I, T> {
    pub(super) fn dry_run(self, summary: Summary) -> DryRun<T> {
        DryRun {
            summary,
            refused: self.refused,
            unreadable: self.unreadable,
            sample: self.sample,
        }
    }

    /// # Errors
    /// There are more than one act may have.
    fn take(&mut self, item: Item<I>, shown: T, most: usize) -> Result<(), Error> {
        if self.items.len() >= most {
            let why = format!(
                "the filter finds more than {most}, which is the most for one act; narrow it, for example by tool, tenant, since and until"
            );
            return Err(ErrorKind::InvalidRequest(why).alone());
        }
        self.items.push(item);
        if self.sample.len() < SAMPLE {
            self.sample.push(shown);
        }
        Ok(())
    }
}

impl CallAct {
    pub(super) fn deed(&self) -> Deed {
        match self {
            Self::Resolve(_) => Deed::Resolve,
            Self::Probe => Deed::Probe,
        }
    }

    /// The words that tell the act from others.
    fn words(&self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Probe => &["probe"],
            Self::Resolve(Resolution::Failed) => &["resolve", "failed"],
            Self::Resolve(Resolution::Succeeded(Content::Unavailable(_))) => {
                &["resolve", "succeeded"]
            }
            Self::Resolve(Resolution::Succeeded(Content::Kept(json))) => {
                return vec![
                    "resolve".into(),
                    "succeeded".into(),
                    String::from_utf8_lossy(json).into_owned(),
                ];
            }
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    pub(super) fn event(&self, by: &str, reason: &str) -> Event {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        match self {
            Self::Probe => Event::ProbeAsked { by, reason },
            Self::Resolve(resolution) => Event::Resolved {
                by,
                reason,
                resolution: resolution.clone(),
            },
        }
    }
}

impl<A> Many<A> {
    /// The act as the audit keeps it.
    pub(super) fn audited(&self, caller: &Caller, deed: Deed, target: Target) -> Act {
        Act::on_many(caller, deed, self.tenant.as_deref(), target, &self.reason)
    }
}

/// Finds the targets of acts.
pub(in crate::gateway) struct Finder {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) ledger: Arc<Ledger>,
    pub(in crate::gateway) sagas: Arc<Sagas>,
}

impl Finder {
    pub(super) async fn find_calls(
        &self,
        caller: &Caller,
        many: &Many<CallAct>,
    ) -> Result<Found<CallId, Listed>, Error> {
        let filter = Filter {
            is_brief: true,
            ..many.filter.clone()
        };
        let mut query = Query {
            tenant: many.tenant.clone(),
            filter,
            before: None,
            limit: LIMITS.1,
        };
        let event = many.act.event(&caller.name, &many.reason);
        let (mut found, most) = (Found::default(), self.base.limits.pace.most_targets);
        loop {
            let page = self.ledger.list_calls(caller, &query).await?;
            found.unreadable += page.unreadable;
            for listed in page.found {
                let record = &listed.record;
                found.refused += usize::from(self.would_refuse(record, &event));
                let item = Item {
                    id: record.intent.call_id,
                    mark: Mark::of_call(record),
                    group: record.intent.tool.clone(),
                    tenant: record.intent.tenant.clone(),
                };
                found.take(item, listed, most)?;
            }
            if page.next.is_none() {
                return Ok(found);
            }
            self.must_go_on()?;
            query.before = page.next;
        }
    }

    /// Whether a call would refuse an event now. Of a listed one not all is known.
    fn would_refuse(&self, record: &Record, event: &Event) -> bool {
        let at = self.base.tool_at(&record.intent.tool);
        if at.is_some() && self.base.tool_of(record).is_none() {
            return false;
        }
        let tool = self.base.policy_of(record);
        transition::ask(&tool, Some(record), event, self.base.now()).is_err()
    }

    pub(super) async fn find_sagas(
        &self,
        caller: &Caller,
        many: &Many<SagaAct>,
    ) -> Result<Found<SagaId, Saga>, Error> {
        let mut query = SagaQuery {
            tenant: many.tenant.clone(),
            state: Some(saga::State::Stuck),
            before: None,
            limit: LIMITS.1,
        };
        let (mut found, most) = (Found::default(), self.base.limits.pace.most_targets);
        loop {
            let (sagas, next) = self.sagas.list_sagas(caller, &query).await?;
            for saga in sagas {
                let may_go_on = match many.act {
                    SagaAct::Retry => saga.may_be_retried(),
                    SagaAct::Skip => saga.call_to_skip().is_some(),
                };
                found.refused += usize::from(!may_go_on);
                let item = Item {
                    id: saga.id.clone(),
                    mark: Mark::of_saga(&saga),
                    group: saga.id.tenant.clone(),
                    tenant: saga.id.tenant.clone(),
                };
                found.take(item, saga, most)?;
            }
            if next.is_none() {
                return Ok(found);
            }
            self.must_go_on()?;
            query.before = next;
        }
    }

    /// A long search is not worth the grace of a stop.
    fn must_go_on(&self) -> Result<(), Error> {
        if self.base.draining.is_cancelled() {
            return Err(ErrorKind::ShuttingDown.alone());
        }
        Ok(())
    }
}

/// The summary of an act on calls.
pub(super) fn of_calls(act: &CallAct, items: &[Item<CallId>]) -> Summary {
    let words = act.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let targets = items.iter().map(|item| (item.id.to_string(), item.mark));
    Summary::of(&words, targets.collect())
}

/// The summary of an act on sagas.
pub(super) fn of_sagas(act: SagaAct, items: &[Item<SagaId>]) -> Summary {
    let targets = items.iter().map(|item| (name_of_saga(&item.id), item.mark));
    Summary::of(&[act.deed().as_str(), "sagas"], targets.collect())
}
