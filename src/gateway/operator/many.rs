//! Acts of persons on many calls or sagas: first a dry run, then one target after the other, each by its version.
//!
//! What was confirmed, and whether it still holds, is decided by `core::many`; what an act does to one target, by
//! `core::call` and `core::saga`.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::calls::Operator;
use super::ledger::ExportPlace;
use super::report::{Did, Line, LineOf, Report, Reports, Totals};
use super::targets::{CallAct, DryRun, Finder, Item, Many, of_calls, of_sagas};
use crate::core::audit::{Act, Outcome, Target};
use crate::core::caller::Caller;
use crate::core::ledger::Listed;
use crate::core::many::{Mark, Summary};
use crate::core::record::{CallId, Record, State};
use crate::core::saga::{Saga, SagaId};
use crate::crash;
use crate::gateway::audit::{self, Steps};
use crate::gateway::base::Base;
use crate::gateway::error::{Error, ErrorKind, unavailable};
use crate::gateway::recovery::{Probed, Rechecks};
use crate::gateway::sagas::SagaAct;
use crate::gateway::transition::{self, Moved, OnConflict, ROUNDS};
use crate::store;

/// Targets of one tool, or sagas of one tenant, at once.
const AT_ONCE: usize = 8;
const UNANSWERED: &str = "the store did not answer: it may be done or not";

/// Acts of persons on many calls or sagas.
pub struct ManyActs {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) finder: Finder,
    pub(in crate::gateway) operator: Arc<Operator>,
    pub(in crate::gateway) rechecks: Arc<Rechecks>,
}

impl ManyActs {
    /// Says what an act on calls would be done to. Changes nothing.
    ///
    /// # Errors
    /// The caller is no administrator, the filter finds too many, or the store does not answer.
    pub async fn try_on_calls(
        &self,
        caller: &Caller,
        many: &Many<CallAct>,
    ) -> Result<DryRun<Listed>, Error> {
        let _place = self.admit(caller).await?;
        let found = self.finder.find_calls(caller, many).await?;
        let summary = of_calls(&many.act, &found.items);
        Ok(found.dry_run(summary))
    }

    /// Says what an act on sagas would be done to. Changes nothing.
    ///
    /// # Errors
    /// As [`try_on_calls`](Self::try_on_calls).
    pub async fn try_on_sagas(
        &self,
        caller: &Caller,
        many: &Many<SagaAct>,
    ) -> Result<DryRun<Saga>, Error> {
        let _place = self.admit(caller).await?;
        let found = self.finder.find_sagas(caller, many).await?;
        let summary = of_sagas(many.act, &found.items);
        Ok(found.dry_run(summary))
    }

    /// Acts on the calls that were confirmed, and reports each as it is done.
    ///
    /// It goes on to its end also if its caller hangs up. One that has changed meanwhile is not touched.
    ///
    /// # Errors
    /// As [`try_on_calls`](Self::try_on_calls); or what there is, is not what was confirmed. Nothing is done then.
    pub async fn act_on_calls(
        self: &Arc<Self>,
        caller: &Caller,
        many: Many<CallAct>,
        confirmed: Summary,
    ) -> Result<Reports, Error> {
        let place = self.admit(caller).await?;
        let (filter, count) = (many.filter_json.clone(), confirmed.count);
        let act = many.audited(caller, many.act.deed(), Target::Calls { filter, count });
        let (acts, caller, many) = (self.clone(), caller.clone(), Arc::new(many));
        let find = {
            let (acts, caller, many) = (acts.clone(), caller.clone(), many.clone());
            async move {
                let found = acts.finder.find_calls(&caller, &many).await?;
                Ok((of_calls(&many.act, &found.items), found.items))
            }
        };
        let one = move |item| {
            let (acts, caller, many) = (acts.clone(), caller.clone(), many.clone());
            async move { acts.act_on_call(&caller, &many, item).await }
        };
        self.begin(place, act, confirmed, find, one).await
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
        let place = self.admit(caller).await?;
        let (filter, count) = (many.filter_json.clone(), confirmed.count);
        let act = many.audited(caller, many.act.deed(), Target::Sagas { filter, count });
        let (acts, caller, many) = (self.clone(), caller.clone(), Arc::new(many));
        let find = {
            let (acts, caller, many) = (acts.clone(), caller.clone(), many.clone());
            async move {
                let found = acts.finder.find_sagas(&caller, &many).await?;
                Ok((of_sagas(many.act, &found.items), found.items))
            }
        };
        let one = move |item| {
            let (acts, caller, many) = (acts.clone(), caller.clone(), many.clone());
            async move { acts.act_on_saga(&caller, &many, item).await }
        };
        self.begin(place, act, confirmed, find, one).await
    }

    /// A place for a dry run or an act: there are as few as for exports.
    async fn admit(&self, caller: &Caller) -> Result<ExportPlace, Error> {
        self.base.admit_person(caller).await?;
        self.finder.ledger.place_to_export(caller)
    }

    /// Begins an act in a task of its own, once it is clear that it is what was confirmed.
    async fn begin<I: Send + 'static, Acting: Future<Output = Line> + Send + 'static>(
        &self,
        place: ExportPlace,
        act: Act,
        confirmed: Summary,
        find: impl Future<Output = Result<(Summary, Vec<Item<I>>), Error>> + Send + 'static,
        one: impl Fn(Item<I>) -> Acting + Send + Sync + 'static,
    ) -> Result<Reports, Error> {
        // A reader that is slow or gone holds up no act: there is room for every line.
        let (lines, reports) =
            mpsc::channel(confirmed.count.min(self.base.limits.pace.most_targets) + 1);
        let (begun, is_begun) = oneshot::channel();
        let base = self.base.clone();
        let acting = async move {
            let (mut begun, mut totals) = (Some(begun), Totals::default());
            let doing = async {
                let (now, items) = find.await?;
                if let Err(different) = now.confirm(&confirmed) {
                    return Err(ErrorKind::NotConfirmed(different).alone());
                }
                if let Some(begun) = begun.take() {
                    drop(begun.send(Ok(())));
                }
                totals = act_on_each(&base, items, one, &lines).await;
                // The gateway was stopped: what is left may be done by another act.
                if totals.left() > 0 {
                    return Err(unavailable(()));
                }
                Ok(())
            };
            let done = audit::kept(&base, act, doing).await;
            drop(place);
            // Only now: what a person reads as ended stands in the audit so.
            match (begun, done) {
                (Some(begun), Err(error)) => drop(begun.send(Err(error))),
                _ => drop(lines.try_send(Report::End(totals))),
            }
        };
        drop(self.base.tasks.spawn(acting));
        is_begun.await.map_err(unavailable)??;
        Ok(Reports::new(reports))
    }

    async fn act_on_call(&self, caller: &Caller, many: &Many<CallAct>, item: Item<CallId>) -> Line {
        let line = |result, state, why: Option<String>| Line {
            of: LineOf::Call {
                call_id: item.id,
                tool: item.group.clone(),
            },
            tenant: item.tenant.clone(),
            result,
            state,
            why,
        };
        let changed = |record: &Record| line(Did::Changed, Some(record.state.as_str()), None);
        for _ in 0..ROUNDS {
            let record = match self.still_there(item.id).await {
                Ok(Some(record)) => record,
                Ok(None) => return line(Did::Changed, None, Some("it is not there".into())),
                Err(_) => return line(Did::Unclear, None, Some(UNANSWERED.into())),
            };
            if Mark::of_call(&record) != item.mark {
                return changed(&record);
            }
            let done = match &many.act {
                CallAct::Probe => self.probe(caller, &many.reason, record).await,
                CallAct::Resolve(_) => self.resolve(caller, many, record).await,
            };
            match done {
                Ok(Acted::Done { record, why }) => {
                    crash::point("acted_on_one");
                    return line(Did::Done, Some(record.state.as_str()), why);
                }
                Ok(Acted::Not(Moved::Refused(record, illegal))) => {
                    let state = Some(record.state.as_str());
                    return line(Did::Refused, state, Some(illegal.to_string()));
                }
                // A gateway may only have planned its check anew.
                Ok(Acted::Not(_)) => {}
                Err(_) => return line(Did::Unclear, None, Some(UNANSWERED.into())),
            }
        }
        line(Did::Changed, None, Some("it keeps changing".into()))
    }

    async fn still_there(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        self.base.must_know_all_data().await?;
        self.base.store.load(call_id).await.map_err(unavailable)
    }

    async fn probe(
        &self,
        caller: &Caller,
        reason: &str,
        record: Record,
    ) -> Result<Acted, store::Error> {
        let probed = self
            .rechecks
            .probe_now(record, &caller.name, reason)
            .await?;
        Ok(match probed {
            Probed::Asked { record, told } => {
                let is_unknown = matches!(record.state, State::Unknown(_));
                let why = is_unknown.then_some(told);
                Acted::Done { record, why }
            }
            Probed::Not(moved) => Acted::Not(moved),
        })
    }

    async fn resolve(
        &self,
        caller: &Caller,
        many: &Many<CallAct>,
        record: Record,
    ) -> Result<Acted, store::Error> {
        let (tool, now) = (self.base.policy_of(&record), self.base.now());
        let event = many.act.event(&caller.name, &many.reason);
        let moved =
            transition::apply(&self.base, &tool, record, &event, now, OnConflict::GiveUp).await?;
        Ok(match moved {
            Moved::Written { record, was, .. } => {
                self.operator
                    .was_resolved(caller, &record, &was, &many.reason)
                    .await;
                Acted::Done { record, why: None }
            }
            other => Acted::Not(other),
        })
    }

    async fn act_on_saga(&self, caller: &Caller, many: &Many<SagaAct>, item: Item<SagaId>) -> Line {
        let line = |result, state, why: Option<String>| Line {
            of: LineOf::Saga(item.id.id.clone()),
            tenant: item.tenant.clone(),
            result,
            state,
            why,
        };
        if self.base.must_know_all_data().await.is_err() {
            return line(Did::Unclear, None, Some(UNANSWERED.into()));
        }
        match self.finder.sagas.registry.saga(&item.id).await {
            Ok(Some(saga)) if Mark::of_saga(&saga) == item.mark => {}
            Ok(Some(saga)) => return line(Did::Changed, Some(saga.state().as_str()), None),
            Ok(None) => return line(Did::Changed, None, Some("it is not there".into())),
            Err(_) => return line(Did::Unclear, None, Some(UNANSWERED.into())),
        }
        let (id, reason, seen) = (&item.id, &many.reason[..], Some(item.mark));
        let (sagas, steps) = (&self.finder.sagas, Steps::default());
        let done = sagas.settle(caller, many.act, id, reason, seen, &steps);
        let done = done.await;
        let is_half_done = steps.outcome(&done) == Outcome::Unknown;
        match done {
            Ok(saga) => {
                crash::point("acted_on_one");
                line(Did::Done, Some(saga.state().as_str()), None)
            }
            Err(error) => match error.kind {
                _ if is_half_done => line(Did::Unclear, None, Some(UNANSWERED.into())),
                ErrorKind::JustChanged | ErrorKind::UnknownSaga => line(Did::Changed, None, None),
                ErrorKind::WrongState(why) => line(Did::Refused, None, Some(why)),
                _ => line(Did::Unclear, None, Some(UNANSWERED.into())),
            },
        }
    }
}

/// What became of one call.
enum Acted {
    Done { record: Record, why: Option<String> },
    Not(Moved),
}

/// Acts on each target, those of different groups beside each other, and reports.
async fn act_on_each<I: Send + 'static, Acting: Future<Output = Line> + Send>(
    base: &Base,
    items: Vec<Item<I>>,
    one: impl Fn(Item<I>) -> Acting + Sync,
    lines: &mpsc::Sender<Report>,
) -> Totals {
    let mut totals = Totals::of(items.len());
    let mut groups = BTreeMap::<String, Vec<Item<I>>>::new();
    for item in items {
        groups.entry(item.group.clone()).or_default().push(item);
    }
    let one = &one;
    let begin = |item| async move {
        // What is left is named by its number; the same act may be made again.
        let goes_on = !base.draining.is_cancelled();
        if goes_on { Some(one(item).await) } else { None }
    };
    let groups = groups.into_values();
    let groups = groups.map(|items| stream::iter(items).map(begin).buffer_unordered(AT_ONCE));
    let mut all = stream::select_all(groups.map(Box::pin));
    while let Some(line) = all.next().await {
        if let Some(line) = line {
            totals.count(&line);
            // The caller may have hung up.
            drop(lines.try_send(Report::Line(line)));
        }
    }
    totals
}
