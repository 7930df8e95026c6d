//! An approved call begins: its request is built again, compared with what was approved, and sent once.
//!
//! A call that may not begin now stays approved, and the worker tries again until the approval is no longer good.

pub(super) mod proposals; // whether a call may wait, and how its wait has ended
mod request; // the request of a call as it would be sent

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

pub(crate) use self::proposals::{built, ended_waiting, is_as_approved};
pub use self::request::BuiltRequest;
use super::duplicates::shared_run::RunHandle;
use super::engine::Engine;
use super::prepared::PreparedCall;
use super::run::{Begun as Run, Keep};
use crate::base::ids::new_attempt;
use crate::base::measured::with_call_context;
use crate::callers::permits::{FairPermit, Owner};
use crate::error::ErrorKind;
use crate::tools::ToolAt;
use crate::tools::health::Permit;
use crate::transition::{self, Begin, Begun};
use oncegate_budget::Charge;
use oncegate_hooks::crash;
use oncegate_rules::actor::{Actor, By};
use oncegate_rules::call::{self, Action, Event, Next};
use oncegate_rules::record::{Record, State};
use oncegate_rules::session::Denied;
use oncegate_tools::Deadline;

/// What a run takes before it begins.
struct Taken {
    permit: Permit,
    running: FairPermit,
    memory: Charge,
    deadline: Deadline,
}

impl Engine {
    /// What a request does whose call waits for approval: it joins the call's saga, and waits as long as it likes.
    pub(super) async fn wait_for_approval(
        self: &Arc<Self>,
        call: &PreparedCall,
        record: Record,
        run: RunHandle,
    ) {
        crash::point("saga_claimed");
        if record.state == State::Proposed
            && let Err(kind) = self.sagas.join_saga(&record.intent).await
        {
            return self.turn_away(call, record, kind, run).await;
        }
        crash::point("proposed");
        if record.state == State::Approved {
            ApprovedCalls::of(self).begin_soon(record.clone());
        }
        self.watch(record, run, Owner::of(&call.intent)).await;
    }
}

/// Begins approved calls.
#[derive(Clone)]
pub(crate) struct ApprovedCalls(Arc<Engine>);

impl ApprovedCalls {
    pub(crate) fn of(engine: &Arc<Engine>) -> Self {
        Self(engine.clone())
    }

    /// Begins an approved call in the background, unless something holds it.
    pub(crate) fn begin_soon(self, record: Record) {
        let (tasks, now) = (self.0.base.tasks.clone(), self.0.base.now());
        let begin = async move { self.begin(record, now).await };
        drop(tasks.spawn(begin));
    }

    /// Begins an approved call, unless something holds it. Returns whether its state has changed.
    ///
    /// Many gateways may do this at once: one of them begins the call.
    pub(crate) async fn begin(self, record: Record, now: Timestamp) -> bool {
        let intent = record.intent.clone();
        with_call_context(intent, self.begin_or_put_off(record, now)).await
    }

    async fn begin_or_put_off(self, record: Record, now: Timestamp) -> bool {
        // A tool that is not configured here is left to gateways that have it.
        let Some(at) = self.0.base.tool_of(&record) else {
            return false;
        };
        // Its process may have ended before it had joined. An abort after that finds the call.
        match self.0.sagas.join_saga(&record.intent).await {
            Ok(()) => {}
            Err(ErrorKind::WrongState(_)) => {
                let why = "its saga is closed";
                let by = By::new(Actor::Gateway(self.0.base.instance), why);
                return self.end_waiting(&record, &Event::Withdrawn(by), now).await;
            }
            Err(_) => return false,
        }
        let Some(taken) = self.take_for_run(&at, &record).await else {
            return false;
        };
        let now = now.max(self.0.base.now());
        let today = self.0.secrets.current();
        let bound = match built(&at, &record, &today.today) {
            Ok((shown, _)) => shown.bound,
            // What makes no request was not approved: the approvals are void.
            Err(_) => [0; 32],
        };
        let event = Event::Begun(call::Begun {
            by: self.0.base.instance,
            attempt: new_attempt(),
            bound,
        });
        let next = transition::ask(&at.tool, Some(&record), &event, self.0.base.with_sleep(now));
        let change = match next {
            Ok(Next {
                change: Some(change),
                action: Action::Run,
            }) => change,
            Ok(_) => return self.end_waiting(&record, &event, now).await,
            Err(_) => return false,
        };
        let call = PreparedCall {
            began: Instant::now(),
            ..PreparedCall::again(at, &record, self.0.base.limits.sample)
        };
        let how = Begin::Again { held: &record };
        let event = match self.0.claims.begin(&call, change, how).await {
            Ok(Begun::Ours(begun)) => {
                let run = self.clone().run(call, begun, taken);
                drop(self.0.base.tasks.spawn(run));
                return true;
            }
            Ok(Begun::Denied(Denied::Similar { call_id })) => Event::Voided {
                by: self.0.base.instance,
                similar: call_id,
            },
            Ok(Begun::Denied(Denied::Stale | Denied::NotGiven)) => Event::Outdated {
                by: self.0.base.instance,
            },
            // It is tried again as long as the approval is good.
            Ok(Begun::Denied(_) | Begun::Not(_) | Begun::Unconfirmed(_)) | Err(_) => return false,
        };
        self.end_waiting(&record, &event, now).await
    }

    /// What a run needs: nothing holds its tool, and there is room for it. `None`: not now.
    async fn take_for_run(&self, at: &ToolAt, record: &Record) -> Option<Taken> {
        let (base, intent) = (&self.0.base, &record.intent);
        let knows_pauses = self.0.pauses.know_pauses().await.is_ok();
        let is_held = !knows_pauses
            || self.0.pauses.is_paused(&at.tool.name)
            || base.is_out_of_time()
            || base.draining.is_cancelled()
            || !base.store.takes_new_acts();
        if is_held {
            return None;
        }
        Some(Taken {
            permit: at.health.admit(&intent.tenant).ok()?,
            running: self.0.running.take(Owner::of(intent))?,
            memory: self.0.memory.reserve(
                &intent.tenant,
                at.longest_answer(),
                intent.args.len(),
            )?,
            deadline: Deadline::after(at.tool.deadline),
        })
    }

    async fn run(self, mut call: PreparedCall, record: Record, taken: Taken) {
        let intent = record.intent.clone();
        let work = async move {
            crash::point("begun");
            call.trace.begin_call(&record.intent);
            let begun = Run {
                record,
                permit: taken.permit,
                deadline: taken.deadline,
            };
            call.at.health.earn_retry();
            let attempts = self.0.sender.run_attempts(&call, begun, None, Keep::Stored);
            let (record, silent) = Box::pin(attempts).await;
            self.0.sender.count_end(&call, &record);
            drop((taken.running, taken.memory));
            if let (State::Unknown(_), Some(exchange)) = (&record.state, silent) {
                self.0
                    .listen_late(&call, record, exchange, taken.deadline)
                    .await;
            }
        };
        with_call_context(intent, work).await;
    }

    /// Writes that the call does not begin by this approval. Returns whether it is written.
    async fn end_waiting(&self, record: &Record, event: &Event, now: Timestamp) -> bool {
        let ended = transition::change(&self.0.base, record, event, now).await;
        if let Some(record) = &ended {
            ended_waiting(&self.0.base.metrics, record);
        }
        ended.is_some()
    }
}
