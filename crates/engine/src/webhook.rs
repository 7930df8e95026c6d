//! Sends events to the configured webhook.

use std::sync::Arc;

use serde_json::Value;

use crate::base::Base;
use oncegate_tools::Downstream;
use oncegate_tools::outside::Webhook;

/// The events, and whether the webhook took them: the labels of their count.
const EVENTS: [&str; 5] = [
    "saga",
    "anomaly",
    "approval.asked",
    "approval.expiring",
    "approval.ended",
];
const RESULTS: [&str; 2] = ["taken", "failed"];

/// Sends events to the webhook, if one is configured.
pub struct Notifier {
    base: Arc<Base>,
    downstream: Arc<Downstream>,
    pub webhook: Option<Webhook>,
}

impl Notifier {
    pub(super) fn new(
        base: Arc<Base>,
        downstream: Arc<Downstream>,
        webhook: Option<Webhook>,
    ) -> Self {
        if webhook.is_some() {
            // The series exist at zero.
            for event in EVENTS {
                for result in RESULTS {
                    let counts = &base.metrics.webhook_events;
                    counts.with_label_values(&[event, result]);
                }
            }
        }
        Self {
            base,
            downstream,
            webhook,
        }
    }

    /// Sends an event. A repetition has the same `Idempotency-Key`, `event:id`.
    ///
    /// # Errors
    /// The webhook may not have got the event; says why. The caller tries again later.
    pub async fn notify(&self, event: &str, id: &str, body: &Value) -> Result<(), String> {
        let Some(webhook) = &self.webhook else {
            return Err("there is no [webhook] in the configuration".into());
        };
        let now = self.base.wall_time();
        let sent = self.downstream.tell(webhook, (event, id), body, now).await;
        let [taken, failed] = RESULTS;
        let result = if sent.is_ok() { taken } else { failed };
        let counts = &self.base.metrics.webhook_events;
        counts.with_label_values(&[event, result]).inc();
        sent
    }
}
