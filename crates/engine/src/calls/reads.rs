//! Reads: each is a call of its own, which no other request joins or repeats.

use std::borrow::Cow;
use std::sync::Arc;

use super::claim::{ClaimOutcome, Claimer};
use super::duplicates::shared_run::RunHandle;
use super::engine::Engine;
use super::prepared::PreparedCall;
use super::result_memory::move_in;
use super::run::{Begun as Run, Keep};
use crate::base::ids::{new_attempt, random};
use crate::callers::throttle::NewKey;
use crate::error::ErrorKind;
use crate::tools::health::Permit;
use crate::transition::{self, Begin, Begun};
use oncegate_budget::Charge;
use oncegate_rules::call::{self, Action, Next};
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{Intent, Record, State};
use oncegate_tools::Deadline;

impl Claimer {
    /// Begins a read, unless it repeats a call that is in doubt.
    ///
    /// # Errors
    /// Why it does not begin. After [`StoreUnavailable`](ErrorKind::StoreUnavailable) it may run without being stored.
    pub(super) async fn begin_read<'a>(
        self: &'a Arc<Self>,
        request: &PreparedCall,
        has_permit: bool,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Result<ClaimOutcome, ErrorKind> {
        let (at, tenant) = (&request.at, &request.intent.tenant);
        let blocker = self.why_nothing_begins(request, has_permit).await;
        if let Some(record) = self.in_doubt(request).await? {
            return Ok(match record.state {
                State::Running => ClaimOutcome::Theirs(record),
                _ => ClaimOutcome::Settled(record),
            });
        }
        if let Some(why) = blocker {
            return Err(why);
        }
        if !self.secrets.is_known() {
            return Err(ErrorKind::StoreUnavailable);
        }
        if new_key.is_none() {
            *new_key = self.throttle.take_new_key(request.new_keys.as_ref())?;
        }
        let permit = match at.health.is_closed_for(tenant) {
            true => None,
            false => {
                let admitted = at.health.admit(tenant);
                Some(admitted.map_err(|retry_after| ErrorKind::BreakerOpen { retry_after })?)
            }
        };
        let event = self.arrival_as(request, own_intent(request), new_attempt());
        let next = transition::ask(&at.tool, None, &event, self.base.time());
        let Ok(Next {
            change: Some(change),
            action: Action::Claim,
        }) = next
        else {
            return Err(ErrorKind::StoreUnavailable);
        };
        let how = Begin::Claim { replaced: &[] };
        let begun = self.begin(request, change, how).await;
        if !matches!(begun, Ok(Begun::Denied(_) | Begun::Not(_))) {
            NewKey::used(new_key);
        }
        match begun {
            Ok(Begun::Ours(record)) => Ok(ClaimOutcome::Ours(record, permit.unwrap_or_default())),
            // A read has no conditions, and no other call has its lookup key.
            Ok(Begun::Denied(_) | Begun::Not(_) | Begun::Unconfirmed(_)) | Err(_) => {
                Err(ErrorKind::StoreUnavailable)
            }
        }
    }

    /// The call in doubt that a read repeats.
    pub(super) async fn in_doubt(
        &self,
        request: &PreparedCall,
    ) -> Result<Option<Record>, ErrorKind> {
        let newer = self.with_newer_lookups(request);
        let mut call = newer.map_or(Cow::Borrowed(request), Cow::Owned);
        let holders = self.look_up_refused(&call).await?;
        self.compare_with(&mut call, &holders).await?;
        let found = call::in_doubt(&holders, &call.intent, &call.fingerprints);
        Ok(found.cloned())
    }
}

impl Engine {
    /// Runs a read without a store: a repetition has no effect.
    pub(super) async fn pass_through(
        &self,
        call: &PreparedCall,
        reservation: &mut Option<Charge>,
        run: RunHandle,
        deadline: Deadline,
    ) {
        let tool = &call.at.tool;
        let next = transition::ask(tool, None, &self.claims.arrival(call), self.base.time());
        let Some(change) = next.ok().and_then(|next| next.change) else {
            return run.end(Err(ErrorKind::StoreUnavailable), false);
        };
        let proxied = &self.base.metrics.pass_through;
        proxied.with_label_values(&[&tool.name]).inc();
        call.at.health.earn_retry();
        let begun = Run {
            record: change.record,
            permit: Permit::default(),
            deadline,
        };
        let attempts = self
            .sender
            .run_attempts(call, begun, Some(&run), Keep::Nothing);
        let (mut record, _) = attempts.await;
        self.sender.count_end(call, &record);
        move_in(&mut record, reservation);
        run.end(Ok(Arc::new(record)), true);
    }
}

/// The intent of a read, under a name that no other request has.
fn own_intent(request: &PreparedCall) -> Arc<Intent> {
    let intent = &request.intent;
    Arc::new(Intent {
        lookup: Lookup::of_read(&intent.tenant, &intent.tool, random()),
        lookups: [].into(),
        ..(**intent).clone()
    })
}
