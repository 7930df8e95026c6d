//! `oncegate verify-tool`: tests with real effects what a tool does with an idempotency key.
//!
//! `oncegate_rules::trial` judges the tool's answers. The options are checked before anything is sent:
//!
//! ```
//! use clap::{Args as _, Command, FromArgMatches as _};
//! use oncegate_engine::ToolAt;
//! use oncegate_rules::tool::Tool;
//! use oncegate_tools::Endpoint;
//! use oncegate_trial::{TrialOptions, TrialPlan};
//! use reqwest::header::HeaderMap;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let file = std::env::temp_dir().join(format!("args-{}.json", std::process::id()));
//! # std::fs::write(&file, r#"{ "order_id": "O-1" }"#)?;
//! # let file = file.to_str().unwrap_or_default();
//! let url = "http://127.0.0.1:9100/orders".parse()?;
//! let tool = ToolAt::new(Tool::new("create_order"), Endpoint::new(url, HeaderMap::new(), None));
//! let command = TrialOptions::augment_args(Command::new("verify-tool"));
//! let asked = command.get_matches_from(["verify-tool", "create_order", "--args", file]);
//! let plan = TrialPlan::new(vec![tool], 1 << 20, TrialOptions::from_arg_matches(&asked)?)?;
//! // What an operator has to confirm.
//! assert!(plan.warning().starts_with("create_order at http://127.0.0.1:9100"));
//! # Ok(())
//! # }
//! ```

mod asker; // the requests of a trial
mod plan; // the options, read and checked
mod report; // the report for an operator or a program
mod secrets; // texts of the configuration that are hidden

use self::asker::Asker;
pub use self::plan::{TrialOptions, TrialPlan};
pub use self::report::Report;
use oncegate_engine::local_time;
use oncegate_rules::key::MODEL_MEMBER;
use oncegate_rules::tool::Tool;
use oncegate_rules::trial::lines::lines;
use oncegate_tools::{Downstream, Endpoint};

/// Runs the trial and reports its findings.
///
/// `tell` gets each request with its answer as it comes, as lines.
///
/// # Errors
/// The first request had no effect, or a count cannot be read: then the trial shows nothing.
pub async fn verify_tool(plan: &TrialPlan, tell: &mut dyn FnMut(&str)) -> Result<Report, String> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let at = plan.at();
    let mut endpoints: Vec<&Endpoint> = plan.tools.iter().map(|at| &at.endpoint).collect();
    endpoints.extend(plan.count.iter().map(|count| &count.endpoint));
    let downstream = Downstream::new(endpoints, plan.max_result);
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
