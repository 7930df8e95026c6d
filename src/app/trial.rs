//! `oncegate verify-tool`: tests with real effects what a tool does with an idempotency key.
//!
//! `core::trial` judges the tool's answers.

mod asker; // the requests of a trial
mod plan; // the options, read and checked
mod report; // the report for an operator or a program
mod secrets; // texts of the configuration that are hidden

use self::asker::Asker;
pub use self::plan::{TrialOptions, TrialPlan};
pub use self::report::Report;
use crate::core::key::MODEL_MEMBER;
use crate::core::tool::Tool;
use crate::core::trial::lines::lines;
use crate::downstream::{Downstream, Endpoint};
use crate::gateway::local_time;

/// Runs the trial and reports its findings.
///
/// `tell` gets each request with its answer as it comes, as lines.
///
/// # Errors
/// The first request had no effect, or a count cannot be read: then the trial shows nothing.
pub async fn verify_tool(plan: &TrialPlan, tell: &mut dyn FnMut(&str)) -> Result<Report, String> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let at = plan.at();
    let mut endpoints: Vec<&Endpoint> = plan.config.tools.iter().map(|at| &at.endpoint).collect();
    endpoints.extend(plan.count.iter().map(|count| &count.endpoint));
    let downstream = Downstream::new(endpoints, plan.config.server.max_result);
    let mut asker = Asker {
        plan,
        downstream: downstream?,
        exchanges: Vec::new(),
        tell,
    };
    let trial = asker.trial().await;
    asker.downstream.close().await;
    let trial = trial?;
    let findings = trial.findings();
    let (is_undone, is_another_undone) = trial.undone_effects();
    Ok(Report {
        tool: at.tool.name.clone(),
        day: local_time().strftime("%Y-%m-%d").to_string(),
        remembers: at.tool.recheck.give_up_after,
        exchanges: asker.exchanges,
        notes: notes(&at.tool),
        effects: trial.known_effects(),
        is_undone,
        is_another_undone,
        lines: lines(&at.tool, at.has_probe(), &trial, &findings),
        findings,
    })
}

/// What an operator should know of a tool beside the findings.
fn notes(tool: &Tool) -> Vec<String> {
    let has_own_key = tool.takes_models_keys() && tool.has_property(MODEL_MEMBER);
    let own_key = || {
        format!(
            "the tool's own argument {MODEL_MEMBER} is filled in by a model, which makes up another value when it tries again: the tool's own deduplication does not see that, and the gateway takes calls with equal other arguments for one"
        )
    };
    has_own_key.then(own_key).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use reqwest::header::{AUTHORIZATION, HeaderValue};

    use super::*;

    /// A tool with a credential.
    pub(super) fn tool(url: &str) -> Endpoint {
        let authorization = HeaderValue::from_static("Bearer secret-of-shop");
        let headers = [(AUTHORIZATION, authorization)].into_iter().collect();
        Endpoint::new(url.parse().expect("a URL"), headers, None)
    }
}
