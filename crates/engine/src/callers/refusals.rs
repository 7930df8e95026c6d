//! Counts what is refused, and logs some of it: refused tokens by reason, and every problem that is answered by its slug.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::lock::lock;
use crate::metrics::{Interface, Metrics};
use oncegate_rules::words::words;

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
    reasons: Mutex<[Noted; TokenRefused::ALL.len()]>,
    /// By their slugs.
    problems: Mutex<BTreeMap<&'static str, Noted>>,
}

/// When one kind of refusal was logged last, and how many there were since.
#[derive(Default, Clone, Copy)]
struct Noted {
    logged_at: Option<Instant>,
    since: u64,
}

impl Noted {
    /// Notes one more. Returns how many there were since the last log line, if another line is due.
    fn note(&mut self, every: Duration, now: Instant) -> Option<u64> {
        self.since += 1;
        if self
            .logged_at
            .is_some_and(|at| now.duration_since(at) < every)
        {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

impl Refusals {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        // The series must exist before the first refusal, or a query for increases misses it.
        for why in TokenRefused::ALL {
            metrics.refused_tokens.with_label_values(&[why.as_str()]);
        }
        Self {
            metrics,
            reasons: Mutex::default(),
            problems: Mutex::default(),
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
        let due = lock(&self.reasons)[why as usize].note(REASON_EVERY, Instant::now());
        if let Some(requests) = due {
            let reason = why.as_str();
            tracing::warn!(
                reason,
                requests,
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
        let mut problems = lock(&self.problems);
        let noted = problems.entry(problem).or_default();
        let due = noted.note(PROBLEM_EVERY, Instant::now());
        drop(problems);
        if let Some(requests) = due {
            tracing::info!(
                problem,
                "door" = interface.as_str(),
                tool = refused.tool,
                tenant = refused.tenant,
                not_logged = requests - 1,
                "a request was answered with a problem"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_logged_once_in_its_time_with_the_number_of_requests() {
        let (mut noted, start) = (Noted::default(), Instant::now());
        let mut note = |seconds| noted.note(REASON_EVERY, start + Duration::from_secs(seconds));
        assert_eq!(note(0), Some(1));
        for second in 1..60 {
            assert_eq!(note(second), None);
        }
        assert_eq!(note(60), Some(60));
    }
}
