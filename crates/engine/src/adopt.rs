//! Writes an effect that the ledger has forgotten back as a succeeded call. The rule is in `rules::call`.

use super::base::Base;
use super::transition::{self, Begin, Begun};
use oncegate_rules::call::{Adoption, Event};
use oncegate_rules::record::{CallId, Record};
use oncegate_rules::tool::Tool;
use oncegate_rules::work::Blocked;

/// What became of an effect that was to be adopted.
pub enum Adopted {
    /// The effect is this call, from now on or from an earlier adoption.
    As(CallId),
    /// Another call holds its key: the effect is that call's, or its duplicate.
    HeldBy(Box<Record>),
}

/// Claims the key of an effect for a call that has succeeded.
///
/// If another call holds the key, nothing is written. A repeated adoption finds the same call.
///
/// # Errors
/// The effect cannot be adopted, or the store did not say whether it was.
pub async fn adopt(base: &Base, tool: &Tool, adoption: Adoption) -> Result<Adopted, Blocked> {
    let now = base.with_sleep(adoption.intent.created_at);
    let event = Event::Adopted(adoption);
    let next = transition::ask(tool, None, &event, now);
    let change = next.ok().and_then(|next| next.change);
    let change = change.ok_or_else(|| Blocked::for_good("it cannot be adopted"))?;
    let claim = Begin::Claim { replaced: &[] };
    match transition::begin(base, change, claim, 0).await? {
        Begun::Ours(record) => {
            let (call_id, trace_id) = (record.intent.call_id, &record.intent.trace_id);
            tracing::warn!(%call_id, tool = record.intent.tool, trace_id, "a forgotten effect was adopted");
            Ok(Adopted::As(call_id))
        }
        Begun::Not(Some(holder)) => {
            let call_id = holder.intent.call_id;
            match transition::ask(tool, Some(&holder), &event, base.time()) {
                Ok(_) => Ok(Adopted::As(call_id)),
                Err(_) => Ok(Adopted::HeldBy(Box::new(holder))),
            }
        }
        Begun::Not(None) | Begun::Denied(_) | Begun::Unconfirmed(_) => {
            Err(Blocked::busy("the store did not say whether it has it"))
        }
    }
}
