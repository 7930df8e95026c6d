//! Writes an effect that the ledger has forgotten back as a succeeded call.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::anomaly_worker::AnomalyWorker;
use super::settings::{Reconciliation, SourceAt};
use crate::ids::new_call_id;
use crate::tools::ToolAt;
use crate::transition::{self, Begin, Begun};
use oncegate_rules::call::{self, Adoption, Event};
use oncegate_rules::key::{self, Lookup};
use oncegate_rules::reconcile::Join;
use oncegate_rules::reconcile::anomaly::{Case, End};
use oncegate_rules::record::{AttemptId, Content, Intent};
use oncegate_rules::work::Blocked;

impl AnomalyWorker {
    /// Adopts an effect: claims its key for a call that has succeeded.
    ///
    /// If another call holds the key, nothing is written: the effect is that call's, or its duplicate. A repeated adoption
    /// finds the same call.
    pub(super) async fn adopt(&self, of: &Reconciliation, case: &Case) -> Result<End, Blocked> {
        let (at, lookup) = adoptable(of, case)?;
        let tool = at.tool.as_ref().and_then(|tool| self.base.tool_at(tool));
        let tool = tool.ok_or_else(|| Blocked::busy("its tool is not configured here"))?;
        let tenant = self.tenant_of(&lookup).await?;
        let now = self.base.now();
        let listed = &case.listed;
        let intent = Intent {
            call_id: new_call_id(&lookup),
            tenant,
            tool: tool.tool.name.clone(),
            lookup,
            names: Vec::new(),
            recipe: tool.recipe_id,
            // The caller's own key does not follow from the tool's.
            key: lookup.for_tool(),
            key_source: key::Source::Adopted,
            fingerprint: [0; 32],
            user_id: String::new(),
            session_id: String::new(),
            saga_id: String::new(),
            trace_id: String::new(),
            made_by: String::new(),
            client_ids: String::new(),
            similar: None,
            // The arguments are not known.
            args: Bytes::from_static(b"null"),
            created_at: now,
        };
        let event = Event::Adopted(Adoption {
            intent: Arc::new(intent),
            attempt: AttemptId::of_effect(&lookup, &listed.effect),
            content: self.content_of(at, &tool, case),
            owner: self.base.instance,
            by: of.name.clone(),
            why: format!(
                "{} has {}, and no call had its key",
                listed.source, listed.effect
            ),
        });
        let next = transition::ask(&tool.tool, None, &event, self.base.with_sleep(now));
        let change = next.ok().and_then(|next| next.change);
        let change = change.ok_or_else(|| Blocked::for_good("it cannot be adopted"))?;
        let claim = Begin::Claim { instead_of: &[] };
        match transition::begin(&self.base, change, claim, 0).await? {
            Begun::Ours(record) => {
                let (call_id, trace_id) = (record.intent.call_id, &record.intent.trace_id);
                tracing::warn!(%call_id, tool = record.intent.tool, trace_id, "a forgotten effect was adopted");
                Ok(End::Adopted(call_id))
            }
            Begun::Not(Some(holder)) => {
                let call_id = holder.intent.call_id;
                match transition::ask(&tool.tool, Some(&holder), &event, self.base.time()) {
                    Ok(_) => Ok(End::Adopted(call_id)),
                    Err(_) => Ok(End::held_by(&tool.tool, &holder)),
                }
            }
            Begun::Not(None) | Begun::Denied(_) | Begun::Unconfirmed(_) => {
                Err(Blocked::busy("the store did not say whether it has it"))
            }
        }
    }

    /// The tenant whose key it is.
    async fn tenant_of(&self, lookup: &Lookup) -> Result<String, Blocked> {
        let mut tenants = BTreeSet::from_iter(self.base.store.tenants().await?);
        tenants.extend(self.base.tenants().iter().cloned());
        call::tenant_of(lookup, tenants).map_err(Blocked::for_good)
    }

    /// The result for its duplicates.
    fn content_of(&self, at: &SourceAt, tool: &ToolAt, case: &Case) -> Content {
        let unavailable = |why: &str| Content::Unavailable(why.into());
        let Some(pointer) = &at.adopted_result else {
            return unavailable("the call was adopted from its effect, without a result");
        };
        // Callers of such tools expect more than a result: a status and headers, or a message of MCP.
        if tool.tool.proxy.is_some() || tool.is_of_upstream() {
            return unavailable("the call was adopted from its effect, which has no answer");
        }
        let item = case.effect.as_ref();
        match item.and_then(|item| item.pointer(pointer.as_str())) {
            None => unavailable("the effect from which the call was adopted has no result"),
            Some(result) => self.kept(result),
        }
    }
}

/// The source and the key of an effect that can be adopted.
///
/// # Errors
/// The key may not be one that the gateway has made.
fn adoptable<'a>(of: &'a Reconciliation, case: &Case) -> Result<(&'a SourceAt, Lookup), Blocked> {
    let Some(at) = of.source(&case.listed.source) else {
        return Err(Blocked::for_good("its source is not configured any more"));
    };
    if at.rules.join != Join::Key {
        let why = "the source does not show the keys that tools get: its items are joined by another value";
        return Err(Blocked::for_good(why));
    }
    if at.tool.is_none() {
        let why = "it is not said of which tool the effects of the source are: add tool";
        return Err(Blocked::for_good(why));
    }
    match Lookup::of_tool_key(&case.listed.key) {
        Some(lookup) => Ok((at, lookup)),
        None => Err(Blocked::for_good("its key is not of the gateway's form")),
    }
}
