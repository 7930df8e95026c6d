//! Counts refused tokens by reason, and logs each reason at most once a minute.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::lock::lock;
use crate::metrics::Metrics;
use oncegate_rules::words::words;

/// How often one reason is logged.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

words! {
    /// Why a token was refused, in one word for metrics and the log.
    pub enum TokenRefused {
        /// The request has no bearer token, or more than one.
        Missing = "missing",
        Unknown = "unknown",
        Expired = "expired",
        /// The token is known, but its scopes do not cover the request.
        Scope = "scope",
    }
}

/// Counts and logs refused tokens.
pub struct Refusals {
    metrics: Arc<Metrics>,
    noted: Mutex<[Noted; TokenRefused::ALL.len()]>,
}

/// When a reason was logged last, and how many requests were refused for it since.
#[derive(Default, Clone, Copy)]
struct Noted {
    logged_at: Option<Instant>,
    since: u64,
}

impl Refusals {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        // The series must exist before the first refusal, or a query for increases misses it.
        for why in TokenRefused::ALL {
            metrics.refused_tokens.with_label_values(&[why.as_str()]);
        }
        Self {
            metrics,
            noted: Mutex::default(),
        }
    }

    /// Notes that a request's token was refused. The token itself is neither kept nor logged.
    pub fn note_refused(&self, why: TokenRefused) {
        self.metrics
            .refused_tokens
            .with_label_values(&[why.as_str()])
            .inc();
        if let Some(requests) = self.note(why, Instant::now()) {
            let reason = why.as_str();
            tracing::warn!(
                reason,
                requests,
                "requests were refused because of their token"
            );
        }
    }

    /// How many requests were refused since the last log line, if another line is due.
    fn note(&self, why: TokenRefused, now: Instant) -> Option<u64> {
        let mut noted = lock(&self.noted);
        let Noted { logged_at, since } = &mut noted[why as usize];
        *since += 1;
        if logged_at.is_some_and(|at| now.duration_since(at) < LOGGED_EVERY) {
            return None;
        }
        *logged_at = Some(now);
        Some(std::mem::take(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_logged_once_a_minute_with_the_number_of_requests() {
        let (refusals, start) = (Refusals::new(Arc::new(Metrics::new())), Instant::now());
        let note = |why, seconds| refusals.note(why, start + Duration::from_secs(seconds));
        assert_eq!(note(TokenRefused::Unknown, 0), Some(1));
        for second in 1..60 {
            assert_eq!(note(TokenRefused::Unknown, second), None);
        }
        assert_eq!(note(TokenRefused::Scope, 30), Some(1), "each for itself");
        assert_eq!(note(TokenRefused::Unknown, 60), Some(60));
    }
}
