//! Which lines of a tool's configuration a trial justifies or refutes.

use serde::Serialize;

use super::{Claim, Finding, Trial, Verdict};
use crate::compensation::Policy;
use crate::tool::{Dedup, OnUnknown, Tool};

/// A setting that makes a claim about the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// `dedup = "key"`
    Dedup,
    /// `unknown = "retry"`
    Retry,
    /// `probe`, and `unknown = "probe"`
    Probe,
    Compensation,
}

/// A setting, and the trial's verdict on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    pub setting: Setting,
    pub verdict: Verdict,
    /// Whether the configuration has the setting.
    pub is_declared: bool,
    /// The claims that decided it, with their reasons.
    pub why: Vec<String>,
}

/// The trial's verdicts on the tool's settings.
pub fn lines(tool: &Tool, has_probe: bool, trial: &Trial, findings: &[Finding]) -> Vec<Line> {
    let line = |setting, is_declared, claims: &[Claim]| {
        let found = findings
            .iter()
            .filter(|found| claims.contains(&found.claim));
        let worst = found.clone().map(|finding| finding.verdict).max()?;
        let decisive = found.filter(|finding| finding.verdict == worst);
        Some(Line {
            setting,
            verdict: worst,
            is_declared,
            why: decisive
                .map(|finding| format!("{} ({})", finding.claim, finding.why))
                .collect(),
        })
    };
    let once = [Claim::OnceInSequence, Claim::OnceAtOnce, Claim::OnceLater];
    let dedup = line(Setting::Dedup, tool.dedup == Dedup::Key, &once);
    let probe = [Claim::ProbeOfUnusedKey, Claim::ProbeOfUsedKey];
    let is_undone = tool.compensation != Policy::Undeclared;
    let retry = dedup
        .as_ref()
        .and_then(|dedup| retry_line(tool, trial, dedup));
    [
        dedup,
        retry,
        line(Setting::Probe, has_probe, &probe),
        line(Setting::Compensation, is_undone, &[Claim::UndoneTwice]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The verdict on `unknown = "retry"`; `None`: other settings forbid it.
fn retry_line(tool: &Tool, trial: &Trial, dedup: &Line) -> Option<Line> {
    if tool.is_exclusive() || !tool.redact.args.is_empty() {
        return None;
    }
    let line = Line {
        setting: Setting::Retry,
        is_declared: tool.unknown == OnUnknown::Retry,
        ..dedup.clone()
    };
    if dedup.verdict == Verdict::Proved && !trial.gives_results_again() {
        let why =
            "a repetition is refused and does not bring the result: its call would stay unknown";
        return Some(Line {
            verdict: Verdict::NotShown,
            why: vec![why.to_owned()],
            ..line
        });
    }
    Some(line)
}

/// The trial's verdict on all declared settings together.
pub fn end(lines: &[Line]) -> Verdict {
    let declared = lines.iter().filter(|line| line.is_declared);
    let worst = declared.map(|line| line.verdict).max();
    worst.unwrap_or(Verdict::Proved)
}
