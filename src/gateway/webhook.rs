//! Tells the webhook of events.

use std::sync::Arc;

use serde_json::Value;

use crate::downstream::Downstream;
use crate::downstream::outside::Webhook;

/// Tells the configured webhook, if there is one.
pub(super) struct Notifier {
    pub(super) downstream: Arc<Downstream>,
    pub(super) webhook: Option<Webhook>,
}

impl Notifier {
    /// Tells the webhook. A repetition has the same `Idempotency-Key`, `event:id`.
    ///
    /// # Errors
    /// It may not have been heard; says why. The caller tries again later.
    pub(super) async fn notify(&self, event: &str, id: &str, body: &Value) -> Result<(), String> {
        match &self.webhook {
            Some(webhook) => self.downstream.tell(webhook, event, id, body).await,
            None => Err("there is no [webhook] in the configuration".into()),
        }
    }
}
