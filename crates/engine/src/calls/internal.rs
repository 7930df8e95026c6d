//! Calls that the gateway makes itself: compensations. They go the way of every call.

use std::sync::Arc;
use std::time::Duration;

use super::answer::follow;
use super::duplicates::shared_run::Progress;
use super::engine::Engine;
use super::prepare::mistakes;
use super::prepared::{Patience, PreparedCall};
use crate::base::ids::new_call_id;
use crate::error::ErrorKind;
use crate::trace::Trace;
use oncegate_rules::key::{self, Lookup};
use oncegate_rules::key_scheme::fingerprints::Fingerprints;
use oncegate_rules::key_scheme::identity::{LookupKey, Part};
use oncegate_rules::record::{CallId, Intent, Record};
use oncegate_rules::redact;

/// A call that the gateway makes itself.
pub struct InternalCall {
    pub tenant: String,
    pub tool: String,
    /// Begins with [`key::COMPENSATION`], so that no caller can bring this key.
    pub key: String,
    pub args: serde_json::Value,
    /// The call id, if it is decided already.
    pub call_id: Option<CallId>,
    pub user_id: String,
    pub session_id: String,
    pub saga_id: String,
    pub trace_id: String,
}

impl Engine {
    /// Runs a call of the gateway's own, in the way of any other call.
    ///
    /// The call is claimed, kept in the ledger, retried, and held when its outcome is unknown. A repetition is the
    /// same call.
    ///
    /// # Errors
    /// Why nothing was sent; or that the outcome is not known yet.
    pub async fn run_internal(
        self: &Arc<Self>,
        own: InternalCall,
    ) -> Result<Arc<Record>, ErrorKind> {
        let at = self.base.tool_at(&own.tool).ok_or(ErrorKind::UnknownTool)?;
        let may_claim = self.key_schemes.know_key_schemes(&at).await?;
        // The arguments may have been made under an earlier configuration.
        let complaint = mistakes(&at.tool, &own.args).map(ErrorKind::InvalidArguments);
        let lookup = Lookup::new(&own.tenant, &own.tool, &own.key);
        let args: bytes::Bytes = own.args.to_string().into();
        let secrets = self.secrets.current();
        let fingerprint = at.key_scheme.fingerprint(&secrets.today, &own.args);
        let earlier = self.key_schemes.earlier(&at);
        let fingerprints = Fingerprints::of(&at.key_scheme, &earlier, &secrets, &own.args);
        let intent = Intent {
            call_id: own.call_id.unwrap_or_else(|| new_call_id(&lookup)),
            tenant: own.tenant,
            tool: own.tool,
            lookup,
            lookups: Vec::new(),
            key_scheme: at.key_scheme_id,
            key: own.key,
            key_source: key::Source::Compensation,
            fingerprint,
            user_id: own.user_id,
            session_id: own.session_id,
            saga_id: own.saga_id,
            trace_id: own.trace_id,
            made_by: String::new(),
            client_ids: String::new(),
            similar: None,
            args: redact::mask(&args, &at.tool.redact.args),
            created_at: self.base.now(),
        };
        let name = LookupKey {
            lookup,
            part: Part::Today,
            is_runtime: false,
        };
        let (wait, session_wait) = (at.tool.longest(), at.tool.session.wait);
        let trace = Trace::of(&intent.trace_id, self.base.limits.sample);
        let call = PreparedCall {
            lookups: [name].into(),
            fingerprints: Arc::new(fingerprints),
            raw: args.clone(),
            complaint,
            may_claim,
            ..PreparedCall::new(at, Arc::new(intent), args, trace)
        };
        let (progress, _) = self.join_or_begin(call);
        let progress = follow(progress, Patience::default(), wait, session_wait).await;
        match self.as_stored(progress).await {
            Progress::Ended { record, .. } => record,
            Progress::Claiming | Progress::Queued | Progress::Running { .. } => {
                Err(ErrorKind::CallInProgress {
                    retry_after: Duration::ZERO,
                })
            }
            Progress::Unwritten(_) | Progress::Lost(_) => {
                Err(ErrorKind::OutcomeUnknown { retry_after: None })
            }
        }
    }
}
