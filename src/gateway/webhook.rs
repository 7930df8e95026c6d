//! Telling somebody outside.

use serde_json::Value;

use super::Gateway;

impl Gateway {
    /// Tells the webhook. Told again, it is the same `Idempotency-Key`, `event:id`.
    ///
    /// # Errors
    /// It may not have been heard; says why. Whoever wants it told tries again later.
    pub(super) async fn notify(&self, event: &str, id: &str, body: &Value) -> Result<(), String> {
        match &self.reconciling.webhook {
            Some(webhook) => self.downstream.tell(webhook, event, id, body).await,
            None => Err("there is no [webhook] in the configuration".into()),
        }
    }
}
