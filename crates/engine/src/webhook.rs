//! Sends events to the configured webhook.

use std::sync::Arc;

use serde_json::Value;

use oncegate_tools::Downstream;
use oncegate_tools::outside::Webhook;

/// Sends events to the webhook, if one is configured.
pub(super) struct Notifier {
    pub(super) downstream: Arc<Downstream>,
    pub(super) webhook: Option<Webhook>,
}

impl Notifier {
    /// Sends an event. A repetition has the same `Idempotency-Key`, `event:id`.
    ///
    /// # Errors
    /// The webhook may not have got the event; says why. The caller tries again later.
    pub(super) async fn notify(&self, event: &str, id: &str, body: &Value) -> Result<(), String> {
        match &self.webhook {
            Some(webhook) => self.downstream.tell(webhook, event, id, body).await,
            None => Err("there is no [webhook] in the configuration".into()),
        }
    }
}
