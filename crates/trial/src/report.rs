//! The report of a trial, for an operator or a program.
//!
//! It holds no credentials and no redacted values.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use oncegate_rules::trial::lines::{Line, Setting, end};
use oncegate_rules::trial::{Finding, Verdict, friendly};

/// How much of a request or answer is shown, in characters.
const MAX_SHOWN: usize = 300;

/// The step that reads a count.
pub(super) const COUNT: &str = "count";

/// One request and its answer.
#[derive(Debug, Serialize)]
pub(super) struct Exchanged {
    pub(super) step: &'static str,
    pub(super) method: String,
    pub(super) url: String,
    pub(super) key: Option<String>,
    pub(super) sent: Option<String>,
    /// `None`: there was no answer.
    pub(super) status: Option<u16>,
    pub(super) answer: String,
}

/// The findings of a trial.
#[derive(Debug, Serialize)]
pub struct Report {
    pub(super) tool: String,
    /// The date of the trial, as in `2026-11-23`.
    pub(super) day: String,
    pub(super) exchanges: Vec<Exchanged>,
    pub(super) findings: Vec<Finding>,
    pub(super) lines: Vec<Line>,
    /// What else an operator should know of the tool.
    pub(super) notes: Vec<String>,
    /// The ids of the effects.
    pub(super) effects: Vec<String>,
    /// Whether the first effect was undone.
    pub(super) is_undone: bool,
    /// Whether the effect of a second key was undone.
    pub(super) is_another_undone: bool,
    /// How long the tool has to remember keys.
    #[serde(skip)]
    pub(super) remembers: Duration,
}

/// The beginning of a text, on one line.
pub(super) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain = |char: char| if char.is_control() { ' ' } else { char };
    let mut shown: String = text.chars().take(MAX_SHOWN).map(plain).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

impl Exchanged {
    /// The exchange for an operator, as lines.
    pub(super) fn lines(&self) -> String {
        let (step, answer) = (self.step, printable(self.answer.as_bytes()));
        if step == COUNT {
            return format!("{step}: {answer}\n");
        }
        let mut line = format!("{step}: {} {}", self.method, self.url);
        line.extend(self.key.iter().map(|key| format!(" key {key}")));
        line.extend(self.sent.iter().map(|sent| format!(" {sent}")));
        match self.status {
            Some(status) => format!("{line}\n    {status} {answer}\n"),
            None => format!("{line}\n    no answer: {answer}\n"),
        }
    }
}

impl Report {
    /// The verdict on all declared settings together.
    pub fn end(&self) -> Verdict {
        end(&self.lines)
    }

    /// The report for programs, as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The report for operators, without the exchanges, which were printed before.
    pub fn text(&self) -> String {
        let mut out = String::from("\n");
        for found in &self.findings {
            let (verdict, claim, why) = (found.verdict, found.claim, &found.why);
            // Writing to a text never fails.
            writeln!(out, "{verdict:<11}{claim}\n           {why}").ok();
        }
        if !self.effects.is_empty() {
            let undone = match (self.is_undone, self.is_another_undone) {
                (true, true) => " (the first and that of a second key were undone)",
                (true, false) => " (the first was undone)",
                (false, true) => " (that of a second key was undone)",
                (false, false) => "",
            };
            let effects = self.effects.join(", ");
            writeln!(out, "\nmade by this trial: {effects}{undone}").ok();
        }
        for note in &self.notes {
            writeln!(out, "\nnote: {note}").ok();
        }
        out.push_str(&self.justified());
        for line in &self.lines {
            if line.is_declared && line.verdict != Verdict::Proved {
                let (verdict, name) = (line.verdict, name(line.setting));
                writeln!(out, "\ndeclared, but {verdict}: {name}").ok();
                for why in &line.why {
                    writeln!(out, "    {why}").ok();
                }
            }
        }
        out
    }

    /// The lines that are justified, as TOML.
    fn justified(&self) -> String {
        let is_proved = |line: &&Line| line.verdict == Verdict::Proved;
        let proved: Vec<&Line> = self.lines.iter().filter(is_proved).collect();
        if proved.is_empty() {
            return "\nno line of configuration is justified by this\n".into();
        }
        let name = match self.tool.contains('.') {
            true => format!("\"{}\"", self.tool),
            false => self.tool.clone(),
        };
        let mut out = format!("\njustified now:\n\n[tools.{name}]\n");
        let retries = proved.iter().any(|line| line.setting == Setting::Retry);
        for line in proved {
            // A retry has the same reasons as the line of `dedup` before it.
            if line.setting != Setting::Retry {
                for why in &line.why {
                    writeln!(out, "# verify-tool, {}: {why}", self.day).ok();
                }
            }
            let remembers = friendly(self.remembers);
            let text = match line.setting {
                Setting::Dedup => format!(
                    "# It must remember a key for longer than recheck.give_up_after, {remembers}.\ndedup = \"key\""
                ),
                Setting::Retry => "unknown = \"retry\"".to_owned(),
                Setting::Probe if retries => "# or, with its probe: unknown = \"probe\"".to_owned(),
                Setting::Probe => "unknown = \"probe\"".to_owned(),
                Setting::Compensation => "# compensation as it is".to_owned(),
            };
            writeln!(out, "{text}").ok();
        }
        out
    }
}

fn name(setting: Setting) -> &'static str {
    match setting {
        Setting::Dedup => "dedup = \"key\"",
        Setting::Retry => "unknown = \"retry\"",
        Setting::Probe => "probe",
        Setting::Compensation => "compensation",
    }
}
