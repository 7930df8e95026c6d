//! Reads: each is a call of its own, which no other request joins or repeats.

use std::borrow::Cow;
use std::sync::Arc;

use super::claim::{ClaimOutcome, Claimer};
use super::prepared::PreparedCall;
use crate::error::ErrorKind;
use crate::ids::{new_attempt, random};
use crate::throttle::NewKey;
use crate::transition::{self, Begin, Begun};
use oncegate_rules::call::{self, Action, Next};
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{Intent, Record, State};

impl Claimer {
    /// Begins a read, unless it repeats a call that is in doubt.
    pub(super) async fn begin_read<'a>(
        self: &'a Arc<Self>,
        request: &PreparedCall,
        has_place: bool,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Result<ClaimOutcome, ErrorKind> {
        let (at, tenant) = (&request.at, &request.intent.tenant);
        let blocker = self.why_nothing_begins(request, has_place).await;
        if let Some(record) = self.in_doubt(request).await? {
            return Ok(match record.state {
                State::Running => ClaimOutcome::Theirs(record),
                _ => ClaimOutcome::Settled(record),
            });
        }
        if let Some(why) = blocker {
            return Err(why);
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
        let how = Begin::Claim { instead_of: &[] };
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
        let newer = self.with_newer_names(request);
        let mut call = newer.map_or(Cow::Borrowed(request), Cow::Owned);
        let holders = self.look_up_refused(&call).await?;
        self.compare_with(&mut call, &holders).await?;
        let found = call::in_doubt(&holders, &call.intent, &call.prints);
        Ok(found.cloned())
    }
}

/// The intent of a read, under a name that no other request has.
fn own_intent(request: &PreparedCall) -> Arc<Intent> {
    let intent = &request.intent;
    Arc::new(Intent {
        lookup: Lookup::of_read(&intent.tenant, &intent.tool, random()),
        names: [].into(),
        ..(**intent).clone()
    })
}
