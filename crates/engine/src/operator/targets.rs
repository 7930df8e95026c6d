//! Finds the targets of an act on many calls or sagas, and sums them up.

use std::sync::Arc;

use super::calls::{CallAct, Operator};
use crate::base::Query;
use crate::error::{Error, ErrorKind};
use crate::sagas::SagaAct;
use crate::transition;
use oncegate_rules::audit::{Act, Action, Target};
use oncegate_rules::call::Event;
use oncegate_rules::caller::Caller;
use oncegate_rules::ledger::{Filter, LIMITS, Listed};
use oncegate_rules::many::{SAMPLE, SeenVersion, Summary, name_of_saga};
use oncegate_rules::record::{CallId, Content, Record};
use oncegate_rules::saga::{self, Saga, SagaId};
use oncegate_rules::unknown::Resolution;

/// An act on all calls or sagas that a filter finds.
#[derive(Debug, Clone)]
pub struct Many<A> {
    pub act: A,
    /// The tenant of the targets; `None`: all tenants.
    pub tenant: Option<String>,
    /// Of calls; sagas are found by their tenant alone.
    pub filter: Filter,
    /// The filter as the operator gave it, as JSON, for the audit.
    pub filter_json: String,
    pub reason: String,
}

/// The answer to a dry run. Nothing was changed.
#[derive(Debug)]
pub struct DryRun<T> {
    pub summary: Summary,
    /// How many of the targets would refuse the act as they are now.
    pub refused: usize,
    /// Calls that cannot be read, so that the filter could not be applied to them.
    pub unreadable: u64,
    /// The newest of the targets.
    pub sample: Vec<T>,
}

/// One target, as it was listed.
pub(super) struct Item<I> {
    pub(super) id: I,
    pub(super) version: SeenVersion,
    /// The tool of a call, or the tenant of a saga.
    pub(super) group: String,
    pub(super) tenant: String,
}

/// The targets of an act, and how a dry run shows them.
pub(super) type Targets<I, T> = (Vec<Item<I>>, DryRun<T>);

/// Adds a target, unless the act would have too many.
///
/// # Errors
/// It would.
fn take<I>(items: &mut Vec<Item<I>>, item: Item<I>, most: usize) -> Result<(), Error> {
    if items.len() >= most {
        let why = format!(
            "the filter finds more than {most}, which is the most for one act; narrow it, for example by tool, tenant, since and until"
        );
        return Err(ErrorKind::InvalidRequest(why).alone());
    }
    items.push(item);
    Ok(())
}

/// The summary of an act. `act`: words that tell it from others; `name`: what tells a target from others.
fn summary<I>(act: &[&str], items: &[Item<I>], name: impl Fn(&I) -> String) -> Summary {
    let targets = items.iter().map(|item| (name(&item.id), item.version));
    Summary::of(act, targets.collect())
}

impl<A> Many<A> {
    /// The act as the audit keeps it.
    pub(super) fn audited(&self, caller: &Caller, action: Action, target: Target) -> Act {
        let tenant = self.tenant.as_deref().unwrap_or_default();
        Act::new(caller, action, tenant, target, &self.reason)
    }
}

impl Operator {
    pub(super) async fn find_calls(
        self: Arc<Self>,
        caller: Caller,
        many: Arc<Many<CallAct>>,
    ) -> Result<Targets<CallId, Listed>, Error> {
        let filter = Filter {
            is_brief: true,
            ..many.filter.clone()
        };
        let mut query = Query::newest(many.tenant.clone(), filter, LIMITS.1);
        let tenants = self.ledger.tenants_of(many.tenant.clone()).await?;
        let event = many.act.event(&caller.name, &many.reason);
        let most = self.base.limits.timings.most_targets;
        let (mut items, mut refused, mut unreadable, mut sample) = (Vec::new(), 0, 0, Vec::new());
        loop {
            let page = self.ledger.list_in(&caller, &tenants, &query).await?;
            unreadable += page.unreadable;
            for listed in page.found {
                let record = &listed.record;
                let intent = &record.intent;
                if !many.act.may_do(&caller, &intent.tenant, &intent.tool) {
                    continue;
                }
                refused += usize::from(self.would_refuse(record, &event));
                let item = Item {
                    id: record.intent.call_id,
                    version: SeenVersion::of_call(record),
                    group: record.intent.tool.clone(),
                    tenant: record.intent.tenant.clone(),
                };
                take(&mut items, item, most)?;
                if sample.len() < SAMPLE {
                    sample.push(listed);
                }
            }
            if page.next.is_none() {
                break;
            }
            self.must_go_on()?;
            query.before = page.next;
        }
        let act: &[&str] = match &many.act {
            CallAct::Probe => &["probe"],
            CallAct::Decline { tell } => &["decline", tell],
            CallAct::Resolve(Resolution::Failed) => &["resolve", "failed"],
            CallAct::Resolve(Resolution::Succeeded(content)) => match content {
                Content::Unavailable(_) => &["resolve", "succeeded"],
                Content::Stored(json) => &["resolve", "succeeded", &String::from_utf8_lossy(json)],
            },
        };
        let dry_run = DryRun {
            summary: summary(act, &items, CallId::to_string),
            refused,
            unreadable,
            sample,
        };
        Ok((items, dry_run))
    }

    /// Whether a listed call would refuse an event now. A listed call lacks its texts, so this is a guess.
    fn would_refuse(&self, record: &Record, event: &Event) -> bool {
        let at = self.base.tool_at(&record.intent.tool);
        if at.is_some() && self.base.tool_of(record).is_none() {
            return false;
        }
        let tool = self.base.policy_of(record);
        transition::ask(&tool, Some(record), event, self.base.time()).is_err()
    }

    pub(super) async fn find_sagas(
        self: Arc<Self>,
        caller: Caller,
        many: Arc<Many<SagaAct>>,
    ) -> Result<Targets<SagaId, Saga>, Error> {
        let stuck = Some(saga::State::Stuck);
        let mut query = Query::newest(many.tenant.clone(), stuck, LIMITS.1);
        let most = self.base.limits.timings.most_targets;
        let (mut items, mut refused, mut sample) = (Vec::new(), 0, Vec::new());
        loop {
            let (sagas, next) = self.sagas.list_sagas(&caller, &query).await?;
            for saga in sagas {
                let may_go_on = match many.act {
                    SagaAct::Retry => saga.may_be_retried(),
                    SagaAct::Skip => saga.call_to_skip().is_some(),
                };
                refused += usize::from(!may_go_on);
                let item = Item {
                    id: saga.id.clone(),
                    version: SeenVersion::of_saga(&saga),
                    group: saga.id.tenant.clone(),
                    tenant: saga.id.tenant.clone(),
                };
                take(&mut items, item, most)?;
                if sample.len() < SAMPLE {
                    sample.push(saga);
                }
            }
            if next.is_none() {
                break;
            }
            self.must_go_on()?;
            query.before = next;
        }
        let act = [many.act.action().as_str(), "sagas"];
        let dry_run = DryRun {
            summary: summary(&act, &items, name_of_saga),
            refused,
            unreadable: 0,
            sample,
        };
        Ok((items, dry_run))
    }

    /// A search may take longer than the grace of a shutdown, so it ends when that begins.
    fn must_go_on(&self) -> Result<(), Error> {
        if self.base.draining.is_cancelled() {
            return Err(ErrorKind::ShuttingDown.alone());
        }
        Ok(())
    }
}
