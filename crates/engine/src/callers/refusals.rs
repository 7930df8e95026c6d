//! Counts what is refused, and logs some of it: refused tokens by reason, and every problem that is answered by its slug.

use std::sync::Arc;
use std::time::Duration;

use crate::metrics::{Interface, Metrics};
use oncegate_rules::words::words;
use oncegate_store::repeats::Repeats;

/// How often one reason is logged.
const REASON_EVERY: Duration = Duration::from_secs(60);
/// How often one problem is logged.
const PROBLEM_EVERY: Duration = Duration::from_secs(10);

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

/// A request that was answered with a problem.
#[derive(Debug, Clone, Copy)]
pub struct Refused<'a> {
    /// The slug of the problem.
    pub problem: &'static str,
    pub interface: Interface,
    /// The configured tool that it asked for.
    pub tool: Option<&'a str>,
    /// `None`: it came without a valid token.
    pub tenant: Option<&'a str>,
}

/// Counts and logs refused tokens, and answers that are problems.
pub struct Refusals {
    metrics: Arc<Metrics>,
    reasons: Repeats,
    /// By their slugs.
    problems: Repeats,
}

impl Refusals {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        // The series must exist before the first refusal, or a query for increases misses it.
        for why in TokenRefused::ALL {
            metrics.refused_tokens.with_label_values(&[why.as_str()]);
        }
        Self {
            metrics,
            reasons: Repeats::every(REASON_EVERY),
            problems: Repeats::every(PROBLEM_EVERY),
        }
    }

    /// Makes the series of these problems exist at zero.
    pub fn expect(&self, problems: impl Iterator<Item = &'static str>) {
        for problem in problems {
            for interface in Interface::ALL {
                let labels = [problem, interface.as_str()];
                self.metrics.refusals.with_label_values(&labels);
            }
        }
    }

    /// Notes that a request's token was refused. The token itself is neither kept nor logged.
    pub fn note_refused(&self, why: TokenRefused) {
        self.metrics
            .refused_tokens
            .with_label_values(&[why.as_str()])
            .inc();
        let reason = why.as_str();
        if let Some(left_out) = self.reasons.note(reason) {
            tracing::warn!(
                reason,
                requests = left_out + 1,
                "requests were refused because of their token"
            );
        }
    }

    /// Notes that a request was answered with a problem. Of a flood only one in ten seconds is logged for each slug.
    pub fn note_problem(&self, refused: Refused<'_>) {
        let Refused {
            problem, interface, ..
        } = refused;
        let labels = [problem, interface.as_str()];
        self.metrics.refusals.with_label_values(&labels).inc();
        if let Some(not_logged) = self.problems.note(problem) {
            tracing::info!(
                problem,
                "door" = interface.as_str(),
                tool = refused.tool,
                tenant = refused.tenant,
                not_logged,
                "a request was answered with a problem"
            );
        }
    }
}
