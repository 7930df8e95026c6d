//! Acts of operators on many calls or sagas: first a dry run, then one target after the other, each by its version.
//!
//! `rules::many` decides whether the targets are still those that were confirmed; `rules::call` and `rules::saga` decide
//! what the act changes at each target.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::calls::{Acted, CallAct, Operator};
use super::ledger::ExportPermit;
use super::report::{Did, Line, LineOf, Report, Reports, Totals};
use super::targets::{DryRun, Item, Many, Targets};
use crate::audit::{self, Steps};
use crate::base::Base;
use crate::error::{Error, ErrorKind, unavailable};
use crate::sagas::SagaAct;
use oncegate_hooks::crash;
use oncegate_rules::audit::{Act, Outcome, Target};
use oncegate_rules::caller::Caller;
use oncegate_rules::ledger::Listed;
use oncegate_rules::many::{SeenVersion, Summary};
use oncegate_rules::record::CallId;
use oncegate_rules::saga::{Saga, SagaId};

/// Targets of one tool, or sagas of one tenant, at once.
const AT_ONCE: usize = 8;
const GONE: &str = "it is not there";
const UNANSWERED: &str = "the store did not answer: it may be done or not";

impl Operator {
    /// Finds the calls that an act would change. Changes nothing.
    ///
    /// # Errors
    /// The caller may not act so on these calls, the filter finds too many, or the store does not answer.
    pub async fn try_on_calls(
        self: &Arc<Self>,
        caller: &Caller,
        many: &Many<CallAct>,
    ) -> Result<DryRun<Listed>, Error> {
        let mut many = many.clone();
        let _permit = self.admit_to_calls(caller, &mut many).await?;
        let many = Arc::new(many);
        let (_, dry_run) = self.clone().find_calls(caller.clone(), many).await?;
        Ok(dry_run)
    }

    /// Finds the sagas that an act would change. Changes nothing.
    ///
    /// # Errors
    /// As [`try_on_calls`](Self::try_on_calls).
    pub async fn try_on_sagas(
        self: &Arc<Self>,
        caller: &Caller,
        many: &Many<SagaAct>,
    ) -> Result<DryRun<Saga>, Error> {
        let _permit = self.admit(caller).await?;
        let many = Arc::new(many.clone());
        let (_, dry_run) = self.clone().find_sagas(caller.clone(), many).await?;
        Ok(dry_run)
    }

    /// Acts on the calls that were confirmed, and reports each as it is done.
    ///
    /// The act goes on to its end even if its caller hangs up. A call that has changed meanwhile is not touched.
    ///
    /// # Errors
    /// As [`try_on_calls`](Self::try_on_calls); or the filter does not find what was confirmed. Then nothing is done.
    pub async fn act_on_calls(
        self: &Arc<Self>,
        caller: &Caller,
        mut many: Many<CallAct>,
        confirmed: Summary,
    ) -> Result<Reports, Error> {
        let permit = self.admit_to_calls(caller, &mut many).await?;
        let (filter, count) = (many.filter_json.clone(), confirmed.count);
        let act = many.audited(caller, many.act.action(), Target::Calls { filter, count });
        let (operator, caller, many) = (self.clone(), caller.clone(), Arc::new(many));
        let find = operator.clone().find_calls(caller.clone(), many.clone());
        let one = move |item| {
            operator
                .clone()
                .act_on_one_call(caller.clone(), many.clone(), item)
        };
        self.begin(permit, act, confirmed, find, one).await
    }

    /// Acts on the sagas that were confirmed, and reports each as it is done.
    ///
    /// # Errors
    /// As [`act_on_calls`](Self::act_on_calls).
    pub async fn act_on_sagas(
        self: &Arc<Self>,
        caller: &Caller,
        many: Many<SagaAct>,
        confirmed: Summary,
    ) -> Result<Reports, Error> {
        let permit = self.admit(caller).await?;
        let (filter, count) = (many.filter_json.clone(), confirmed.count);
        let act = many.audited(caller, many.act.action(), Target::Sagas { filter, count });
        let (operator, caller, many) = (self.clone(), caller.clone(), Arc::new(many));
        let find = operator.clone().find_sagas(caller.clone(), many.clone());
        let one = move |item| {
            operator
                .clone()
                .act_on_one_saga(caller.clone(), many.clone(), item)
        };
        self.begin(permit, act, confirmed, find, one).await
    }

    /// A permit for a dry run or an act on calls. An approver's act is on calls of its own tenant.
    async fn admit_to_calls(
        &self,
        caller: &Caller,
        many: &mut Many<CallAct>,
    ) -> Result<ExportPermit, Error> {
        let CallAct::Decline { .. } = many.act else {
            return self.admit(caller).await;
        };
        if !caller.is_approver() {
            return Err(ErrorKind::Forbidden.alone());
        }
        if !caller.is_admin() && *many.tenant.get_or_insert(caller.tenant.clone()) != caller.tenant
        {
            return Err(ErrorKind::Forbidden.alone());
        }
        self.base.must_know_all_data().await?;
        // No call waits in such a store, and a gateway of 0.2.0 that shares it could not read the act.
        if !self.base.store.takes_new_acts() {
            return Err(unavailable(()));
        }
        self.ledger.permit_to_export(caller)
    }

    /// A permit for a dry run or an act. They share the few permits of exports.
    async fn admit(&self, caller: &Caller) -> Result<ExportPermit, Error> {
        self.base.admit_operator(caller).await?;
        self.ledger.permit_to_export(caller)
    }

    /// Begins an act in a task of its own; returns once its targets are known to be those that were confirmed.
    async fn begin<I: Send + 'static, T: Send, Acting: Future<Output = Line> + Send + 'static>(
        &self,
        permit: ExportPermit,
        act: Act,
        confirmed: Summary,
        find: impl Future<Output = Result<Targets<I, T>, Error>> + Send + 'static,
        one: impl Fn(Item<I>) -> Acting + Send + Sync + 'static,
    ) -> Result<Reports, Error> {
        // The channel has room for every line, so a slow or vanished reader holds up no act.
        let (lines, reports) =
            mpsc::channel(confirmed.count.min(self.base.limits.timings.most_targets) + 1);
        let (begun, is_begun) = oneshot::channel();
        let base = self.base.clone();
        let acting = async move {
            let (mut begun, mut totals) = (Some(begun), Totals::default());
            let doing = async {
                let (items, found) = find.await?;
                if let Err(different) = found.summary.confirm(&confirmed) {
                    return Err(ErrorKind::NotConfirmed(different).alone());
                }
                if let Some(begun) = begun.take() {
                    drop(begun.send(Ok(())));
                }
                totals = act_on_each(&base, items, one, &lines).await;
                // Targets are left if the gateway was stopped. A further act may be made on them.
                if totals.left() > 0 {
                    return Err(unavailable(()));
                }
                Ok(())
            };
            let done = audit::recorded(&base, act, doing).await;
            drop(permit);
            // The end is reported only now: an act that an operator reads as ended stands in the audit as ended.
            match (begun, done) {
                (Some(begun), Err(error)) => drop(begun.send(Err(error))),
                _ => drop(lines.try_send(Report::End(totals))),
            }
        };
        drop(self.base.tasks.spawn(acting));
        is_begun.await.map_err(unavailable)??;
        Ok(reports)
    }

    async fn act_on_one_call(
        self: Arc<Self>,
        caller: Caller,
        many: Arc<Many<CallAct>>,
        item: Item<CallId>,
    ) -> Line {
        let (act, reason) = (&many.act, &many.reason);
        let acted = self.try_on_call(&caller, act, item.id, reason, Some(item.version));
        let (result, record, why) = match acted.await {
            Ok(Acted::Done { record, answer }) => (Did::Done, Some(record), answer),
            Ok(Acted::Changed(record)) => (Did::Changed, Some(record), None),
            Ok(Acted::Refused(record, illegal)) => {
                (Did::Refused, Some(record), Some(illegal.to_string()))
            }
            Ok(Acted::Gone) => (Did::Changed, None, Some(GONE.into())),
            Ok(Acted::KeepsChanging) => (Did::Changed, None, Some("it keeps changing".into())),
            Err(_) => (Did::Unclear, None, Some(UNANSWERED.into())),
        };
        Line {
            of: LineOf::Call {
                call_id: item.id,
                tool: item.group,
            },
            tenant: item.tenant,
            result,
            state: record.map(|record| record.state.as_str()),
            why,
        }
    }

    async fn act_on_one_saga(
        self: Arc<Self>,
        caller: Caller,
        many: Arc<Many<SagaAct>>,
        item: Item<SagaId>,
    ) -> Line {
        let line = |result, state, why| Line {
            of: LineOf::Saga(item.id.id.clone()),
            tenant: item.tenant.clone(),
            result,
            state,
            why,
        };
        let unclear = || line(Did::Unclear, None, Some(UNANSWERED.into()));
        if self.base.must_know_all_data().await.is_err() {
            return unclear();
        }
        match self.sagas.registry.saga(&item.id).await {
            Ok(Some(saga)) if SeenVersion::of_saga(&saga) == item.version => {}
            Ok(Some(saga)) => return line(Did::Changed, Some(saga.state().as_str()), None),
            Ok(None) => return line(Did::Changed, None, Some(GONE.into())),
            Err(_) => return unclear(),
        }
        let (id, reason, seen) = (&item.id, &many.reason, Some(item.version));
        let (sagas, steps) = (&self.sagas, Steps::default());
        let done = sagas.settle(&caller, many.act, id, reason, seen, &steps);
        let done = done.await;
        let is_half_done = steps.outcome(&done) == Outcome::Unknown;
        match done {
            Ok(saga) => line(Did::Done, Some(saga.state().as_str()), None),
            Err(_) if is_half_done => unclear(),
            Err(error) => match error.kind {
                ErrorKind::JustChanged | ErrorKind::UnknownSaga => line(Did::Changed, None, None),
                ErrorKind::WrongState(why) => line(Did::Refused, None, Some(why)),
                _ => unclear(),
            },
        }
    }
}

/// Acts on each target and reports it. Each group has a bound of its own, so a slow tool holds up no other.
async fn act_on_each<I: Send + 'static, Acting: Future<Output = Line> + Send>(
    base: &Base,
    items: Vec<Item<I>>,
    one: impl Fn(Item<I>) -> Acting + Sync,
    lines: &mpsc::Sender<Report>,
) -> Totals {
    let mut totals = Totals {
        total: items.len(),
        ..Totals::default()
    };
    let mut groups = BTreeMap::<String, Vec<Item<I>>>::new();
    for item in items {
        groups.entry(item.group.clone()).or_default().push(item);
    }
    let one = &one;
    let begin = |item| async move {
        // Targets that are left are only counted; the same act may be made again.
        if base.draining.is_cancelled() {
            return None;
        }
        let line = one(item).await;
        if line.result == Did::Done {
            crash::point("acted_on_one");
        }
        Some(line)
    };
    let groups = groups.into_values();
    let groups = groups.map(|items| stream::iter(items).map(begin).buffer_unordered(AT_ONCE));
    let mut all = stream::select_all(groups.map(Box::pin));
    while let Some(line) = all.next().await {
        if let Some(line) = line {
            totals.count(&line);
            // This fails if the caller has hung up; the act goes on.
            drop(lines.try_send(Report::Line(line)));
        }
    }
    totals
}
