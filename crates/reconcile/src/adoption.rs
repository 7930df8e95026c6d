//! Writes an effect that the ledger has forgotten back as a succeeded call.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::anomaly_worker::AnomalyWorker;
use super::settings::{Reconciliation, SourceAt};
use crate::rules::Join;
use crate::rules::anomaly::{Case, End};
use oncegate_engine::ToolAt;
use oncegate_engine::wings::{Adopted, adopt, new_call_id};
use oncegate_rules::call::{self, Adoption};
use oncegate_rules::key::{self, Lookup};
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
            lookups: Vec::new(),
            key_scheme: tool.key_scheme_id,
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
        let adoption = Adoption {
            intent: Arc::new(intent),
            attempt: AttemptId::of_effect(&lookup, &listed.effect),
            content: self.content_of(at, &tool, case),
            owner: self.base.instance,
            by: of.name.clone(),
            why: format!(
                "{} has {}, and no call had its key",
                listed.source, listed.effect
            ),
        };
        Ok(match adopt(&self.base, &tool.tool, adoption).await? {
            Adopted::As(call_id) => End::Adopted(call_id),
            Adopted::HeldBy(holder) => End::held_by(&tool.tool, &holder),
        })
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
        if tool.tool.is_proxy() || tool.is_of_upstream() {
            return unavailable("the call was adopted from its effect, which has no answer");
        }
        let item = case.effect.as_ref();
        match item.and_then(|item| item.pointer(pointer.as_str())) {
            None => unavailable("the effect from which the call was adopted has no result"),
            Some(result) => self.stored(result),
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
