//! Calls that the gateway makes itself, to undo what others have done. They go the way of every call.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::call::{Asked, Patience};
use super::engine::Engine;
use super::error::ErrorKind;
use super::flight::Phase;
use super::ids::new_call_id;
use super::recipes::one_name;
use super::trace::Trace;
use crate::core::key::{self, Lookup};
use crate::core::recipe::prints::Prints;
use crate::core::record::{CallId, Intent, Record};
use crate::core::redact;
use crate::core::session::{Brought, LINE_LENGTH};

/// A call that the gateway makes itself.
pub(super) struct Own {
    pub(super) tenant: String,
    pub(super) tool: String,
    /// Begins with [`key::COMPENSATION`], so that no caller can bring it.
    pub(super) key: String,
    pub(super) args: serde_json::Value,
    /// The id it gets, if that is decided already.
    pub(super) call_id: Option<CallId>,
    pub(super) user_id: String,
    pub(super) session_id: String,
    pub(super) saga_id: String,
    pub(super) trace_id: String,
}

impl Engine {
    /// Makes a call of the gateway's own, by the same way as any other: it is claimed, kept in the ledger,
    /// retried, and held when its outcome is unknown. Asked again it is the same call.
    ///
    /// # Errors
    /// Why nothing was sent; or that it is not known yet how it ended.
    pub(super) async fn run_own(self: &Arc<Self>, own: Own) -> Result<Arc<Record>, ErrorKind> {
        let at = self.base.tool_at(&own.tool).ok_or(ErrorKind::UnknownTool)?;
        let may_claim = self.recipes.know_recipes(&at).await?;
        // It may have been made before the configuration was another.
        let mistakes = at
            .tool
            .schema
            .as_ref()
            .map(|schema| schema.mistakes(&own.args));
        let mistakes = mistakes.filter(|mistakes| !mistakes.is_empty());
        let complaint = mistakes.map(ErrorKind::InvalidArguments);
        let lookup = Lookup::new(&own.tenant, &own.tool, &own.key);
        let args: bytes::Bytes = own.args.to_string().into();
        let secrets = self.secrets.current();
        let fingerprint = at.recipe.fingerprint(&secrets.today, &own.args);
        let prints = Prints::of(&at.recipe, &self.recipes.earlier(&at), &secrets, &own.args);
        let intent = Intent {
            call_id: own.call_id.unwrap_or_else(|| new_call_id(&lookup)),
            tenant: own.tenant,
            tool: own.tool,
            lookup,
            names: Vec::new(),
            recipe: at.recipe_id,
            key: own.key,
            key_source: key::Source::Compensation,
            fingerprint,
            user_id: own.user_id,
            session_id: own.session_id,
            saga_id: own.saga_id,
            trace_id: own.trace_id,
            made_by: String::new(),
            similar: None,
            args: redact::mask(&args, &at.tool.redact.args),
            created_at: self.base.now(),
        };
        let (wait, session_wait) = (at.tool.longest(), at.tool.session.wait);
        let brought = Brought::default();
        let trace = Trace::of(&intent.trace_id, self.base.limits.sample);
        let asked = Asked {
            at,
            intent: Arc::new(intent),
            names: one_name(lookup).into(),
            prints: Arc::new(prints),
            read_by: None,
            runtime: None,
            raw: args.clone(),
            complaint,
            may_claim,
            told_key: None,
            args,
            brought,
            longest_line: LINE_LENGTH,
            new_keys: None,
            trace,
        };
        let saga_id = asked.intent.saga_id.clone();
        let (phases, pilot) =
            self.runs
                .join_or_begin((lookup, fingerprint, brought, saga_id, None));
        if let Some(pilot) = pilot {
            drop(
                self.base
                    .tasks
                    .spawn(self.clone().fly(asked, pilot, Instant::now())),
            );
        }
        match self
            .attend(phases, Patience::default(), wait, session_wait)
            .await
        {
            Phase::Ended { record, .. } => record,
            Phase::Claiming | Phase::Queued | Phase::Running { .. } => {
                Err(ErrorKind::CallInProgress {
                    retry_after: Duration::ZERO,
                })
            }
            Phase::Unwritten { .. } | Phase::Lost { .. } => {
                Err(ErrorKind::OutcomeUnknown { retry_after: None })
            }
        }
    }
}
