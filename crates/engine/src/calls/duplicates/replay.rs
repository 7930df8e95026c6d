//! Answers a request that does not run its call: from memory, or by waiting for the run.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::shared_run::Progress;
use crate::callers::permits::Owner;
use crate::calls::answer::follow;
use crate::calls::engine::Engine;
use crate::calls::prepared::{Patience, PreparedCall};
use crate::tools::ToolAt;
use crate::transition;
use oncegate_rules::call::Action;
use oncegate_rules::caller::Caller;
use oncegate_rules::record::State;
use oncegate_rules::time::{after, signed};
use oncegate_rules::tool::Effect;

impl Engine {
    /// Answers from a remembered call, if the rules allow it. Does not read the store.
    ///
    /// Looks only for the call that holds the request's first name: if several stored calls match a request, the
    /// rules prefer that one.
    pub(in crate::calls) fn replayed_at_once(&self, call: &PreparedCall) -> Option<Progress> {
        if call.at.tool.effect == Effect::Read {
            return None;
        }
        let replay_cache = self.base.replay_cache.as_ref()?;
        let record = replay_cache.get(&call.intent.lookup)?;
        if self.base.is_out_of_time() {
            return None;
        }
        let now = self.base.time();
        // After its retention the store may have deleted the call, and its name may be free.
        if !record.is_remembered_at(after(now.dedup_now(), signed(replay_cache.slack()))) {
            return None;
        }
        let event = self.claims.repetition(call);
        let next = transition::ask(&call.at.tool, Some(&record), &event, now).ok()?;
        (next.action == Action::Answer).then(|| Progress::Ended {
            record: self.memory.with_reservation_beside(record).map(Arc::new),
            ours: false,
        })
    }

    /// Waits for a run as long as the caller wants, and for the outcome of an unknown call.
    pub(in crate::calls) async fn wait(
        &self,
        caller: &Caller,
        at: &ToolAt,
        progress: watch::Receiver<Progress>,
        patience: Patience,
        is_first: bool,
    ) -> Progress {
        let came = Instant::now();
        // A request that joined a run needs a permit to wait.
        let joined = (!is_first).then(|| self.waiting.take(Owner::of_caller(caller)));
        let (for_run, default) = match &joined {
            None => (patience, at.tool.longest()),
            Some(Some(_permit)) => {
                let join_wait = self.base.limits.join_wait;
                (patience, patience.longest.unwrap_or(join_wait))
            }
            Some(None) => {
                let wait = None;
                (Patience { wait, ..patience }, Duration::ZERO)
            }
        };
        let progress = follow(progress, for_run, default, at.tool.session.wait).await;
        drop(joined);
        let progress = self.as_stored(progress).await;
        self.wait_until_known(caller, progress, patience, came)
            .await
    }

    /// Waits until a late answer, a probe or an operator settles an unknown call.
    async fn wait_until_known(
        &self,
        caller: &Caller,
        progress: Progress,
        patience: Patience,
        came: Instant,
    ) -> Progress {
        let Progress::Ended {
            record: Ok(record), ..
        } = &progress
        else {
            return progress;
        };
        let (State::Unknown(_), Some(wait)) = (&record.state, patience.wait) else {
            return progress;
        };
        let until = came + wait;
        if Instant::now() >= until {
            return progress;
        }
        let Some(_permit) = self.waiting.take(Owner::of_caller(caller)) else {
            return progress;
        };
        match self.outcome_of(record, until).await {
            Some(Ok(found)) => Progress::Ended {
                record: Ok(Arc::new(found)),
                ours: false,
            },
            // Without memory for the result the caller is still told that the outcome is unknown: the call ran.
            Some(Err(_)) | None => progress,
        }
    }
}
