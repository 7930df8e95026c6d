//! What a gateway says of a call that waits for approval: whether it may wait, what would be sent, and how its wait has ended.

use super::request::BuiltRequest;
use crate::base::Base;
use crate::error::ErrorKind;
use crate::metrics::Metrics;
use crate::tools::ToolAt;
use oncegate_rules::approval::{self, Built};
use oncegate_rules::ledger::Filter;
use oncegate_rules::record::{FailureKind, Intent, Record, State};
use oncegate_rules::secret::Secret;
use oncegate_rules::time::elapsed_ms;

/// Counts and logs how the wait for approval has ended for now.
pub(crate) fn ended_waiting(metrics: &Metrics, record: &Record) {
    let outcome = match &record.state {
        State::Approved => "approved",
        State::Proposed => "voided",
        State::Failed(failure) => match failure.kind {
            FailureKind::Declined => "declined",
            FailureKind::Lapsed => "lapsed",
            _ => "withdrawn",
        },
        _ => return,
    };
    let tool = &record.intent.tool;
    metrics.approvals.with_label_values(&[tool, outcome]).inc();
    if let (State::Approved, Some(proposal)) = (&record.state, record.proposal.as_deref()) {
        let waited = elapsed_ms(proposal.asked_at, record.updated_at) as f64 / 1000.0;
        metrics.approval_wait.observe(waited);
    }
    tracing::info!(
        call_id = %record.intent.call_id,
        tool,
        trace_id = record.intent.trace_id,
        outcome,
        "a call that waits for approval",
    );
}

/// The call as this gateway would begin it now, and its request.
///
/// # Errors
/// By today's configuration the call makes no request; says why.
pub(crate) fn built(
    at: &ToolAt,
    record: &Record,
    secret: &Secret,
) -> Result<(approval::Shown, BuiltRequest), String> {
    let request = BuiltRequest::of(at, record)?;
    let rule = at.tool.approval.as_ref();
    let rule = rule.map_or([0; 32], approval::Policy::digest);
    let similar: Vec<_> = record.similar_to.into_iter().collect();
    let built = Built {
        rule: &rule,
        request: &request.bytes(),
        similar: &similar,
    };
    let shown = approval::shown(secret, record, built);
    let shown = shown.ok_or("the call was never asked about")?;
    Ok((shown, request))
}

/// Whether a call that has begun would be sent as it was approved. A call that needed no approval always is.
pub(crate) fn is_as_approved(at: &ToolAt, record: &Record, secret: &Secret) -> bool {
    let Some(proposal) = record.proposal.as_deref() else {
        return true;
    };
    // The begin has noted anew which call looked the same.
    let shown = [record.similar_to, proposal.confirmed, None];
    proposal.bound.is_some_and(|bound| {
        shown.into_iter().any(|similar_to| {
            let record = Record {
                similar_to,
                ..record.clone()
            };
            built(at, &record, secret).is_ok_and(|(shown, _)| shown.bound == bound)
        })
    })
}

/// Whether another call may wait for approval.
///
/// # Errors
/// Why it may not. Nothing was written.
pub(crate) async fn may_ask(base: &Base, intent: &Intent) -> Result<(), ErrorKind> {
    // A gateway of 0.2.0 that shares the store could not read such a call.
    if !base.store.takes_new_acts() {
        tracing::error!(
            tool = intent.tool,
            "a call needs approval, and the store is of a format that has none: see `oncegate store upgrade`"
        );
        return Err(ErrorKind::StoreUnavailable);
    }
    let limits = base.limits.approvals;
    let (mut all, mut of_session) = (0, 0);
    for state in ["proposed", "approved"] {
        let filter = Filter {
            state: Some(state.to_owned()),
            is_brief: true,
            ..Filter::default()
        };
        let list = base
            .store
            .list(&intent.tenant, &filter, None, limits.max_open);
        let page = list.await.map_err(|_| ErrorKind::StoreUnavailable)?;
        let is_of_session = |id: &str| !id.is_empty() && id == intent.session_id;
        let found = page.found.iter().filter(|listed| {
            // A call that asks again has its place already.
            listed.record.intent.lookup != intent.lookup
        });
        for listed in found {
            all += 1;
            of_session += u32::from(is_of_session(&listed.record.intent.session_id));
        }
    }
    if all >= limits.max_open || of_session >= limits.max_open_per_session {
        let retry_after = limits.retry_after;
        return Err(ErrorKind::TooManyProposals { retry_after });
    }
    Ok(())
}
