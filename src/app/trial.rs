//! `oncegate verify-tool`: tries with real effects what a tool does with a key.
//!
//! `core::trial` judges its answers.

mod asker; // the requests
mod plan; // what an operator asks for
mod report; // what a person or a program is told
mod secrets; // what of the configuration is not shown

use self::asker::Asker;
use self::plan::find;
pub use self::plan::{TrialOptions, TrialPlan};
pub use self::report::Report;
use crate::core::trial::lines::lines;
use crate::downstream::{Downstream, Endpoint};
use crate::gateway::local_time;

/// Runs the trial and reports what it shows. `tell` gets each request with its answer as it comes,
/// as lines.
///
/// # Errors
/// The first request had no effect, or a count cannot be read: then nothing can be shown.
pub async fn verify_tool(plan: &TrialPlan, tell: &mut dyn FnMut(&str)) -> Result<Report, String> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let at = find(&plan.config, &plan.name).ok_or("the tool is gone")?;
    let mut endpoints: Vec<&Endpoint> = plan.config.tools.iter().map(|at| &at.endpoint).collect();
    endpoints.extend(plan.count.iter().map(|count| &count.endpoint));
    let downstream = Downstream::new(endpoints, plan.config.server.max_result);
    let downstream = downstream.map_err(|error| error.to_string())?;
    let mut asker = Asker::new(plan, at, downstream, tell);
    let trial = asker.trial().await;
    let exchanges = asker.end().await;
    let trial = trial?;
    let findings = trial.findings();
    let lines = lines(&at.tool, at.has_probe(), &trial, &findings);
    Ok(Report {
        tool: plan.name.clone(),
        day: local_time().strftime("%Y-%m-%d").to_string(),
        remembers: at.tool.recheck.give_up_after,
        exchanges,
        effects: trial.known_effects(),
        is_undone: trial.is_undone(),
        is_another_undone: trial.is_another_undone(),
        findings,
        lines,
    })
}
