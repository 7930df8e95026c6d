//! The report of an act on many calls or sagas: a line for each target, and totals at the end.

use std::collections::BTreeMap;

use tokio::sync::mpsc;

use oncegate_rules::record::CallId;
use oncegate_rules::words::words;

/// The result of an act at one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub of: LineOf,
    pub tenant: String,
    pub result: Did,
    /// The target's state now, if it is known.
    pub state: Option<&'static str>,
    /// A sentence, where the result needs one.
    pub why: Option<String>,
}

/// The target of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineOf {
    Call { call_id: CallId, tool: String },
    Saga(String),
}

words! {
    /// What the act has done to a target.
    pub enum Did {
        Done = "done",
        /// The target has changed since it was confirmed. It was not touched.
        Changed = "changed",
        /// The rules do not allow the act in the target's state. It was not touched.
        Refused = "refused",
        /// The store did not answer: the act may be done or not.
        Unclear = "unclear",
    }
}

/// How many targets had which result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    pub total: usize,
    pub done: usize,
    pub changed: usize,
    pub refused: usize,
    pub unclear: usize,
    /// The new states of the targets that are done.
    pub states: BTreeMap<&'static str, usize>,
}

impl Totals {
    pub(super) fn count(&mut self, line: &Line) {
        let counted = match line.result {
            Did::Done => &mut self.done,
            Did::Changed => &mut self.changed,
            Did::Refused => &mut self.refused,
            Did::Unclear => &mut self.unclear,
        };
        *counted += 1;
        if let (Did::Done, Some(state)) = (line.result, line.state) {
            *self.states.entry(state).or_default() += 1;
        }
    }

    /// Targets that the act did not reach, because the gateway was stopped.
    pub fn left(&self) -> usize {
        self.total - self.done - self.changed - self.refused - self.unclear
    }
}

/// One report of an act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    Line(Line),
    /// The last report.
    End(Totals),
}

/// The reports of an act. The act goes on to its end even if they are dropped.
pub type Reports = mpsc::Receiver<Report>;
