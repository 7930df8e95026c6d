//! What an act on many calls or sagas reports: a line for each target, and totals at its end.

use std::collections::BTreeMap;

use tokio::sync::mpsc;

use crate::core::record::CallId;

/// What an act has come to at one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub of: LineOf,
    pub tenant: String,
    pub result: Did,
    /// The state now, as far as it is known.
    pub state: Option<&'static str>,
    /// A sentence, unless the result says all.
    pub why: Option<String>,
}

/// The target of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineOf {
    Call { call_id: CallId, tool: String },
    Saga(String),
}

/// The result of an act at one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    Done,
    /// It has changed since it was confirmed, and was not touched.
    Changed,
    /// The rules do not allow it as it is now; it was not touched.
    Refused,
    /// The store did not answer: it may be done or not.
    Unclear,
}

impl Did {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Changed => "changed",
            Self::Refused => "refused",
            Self::Unclear => "unclear",
        }
    }
}

/// How an act has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    pub total: usize,
    pub done: usize,
    pub changed: usize,
    pub refused: usize,
    pub unclear: usize,
    /// The states of those that are done.
    pub states: BTreeMap<&'static str, usize>,
}

impl Totals {
    pub(super) fn of(total: usize) -> Self {
        Self {
            total,
            ..Self::default()
        }
    }

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

    /// Targets to which the act did not come, because the gateway was stopped.
    pub fn left(&self) -> usize {
        self.total - self.done - self.changed - self.refused - self.unclear
    }
}

/// What an act reports while it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    Line(Line),
    /// The last.
    End(Totals),
}

/// The lines of an act. It goes on to its end also if they are dropped.
pub struct Reports {
    lines: mpsc::Receiver<Report>,
}

impl Reports {
    pub(super) fn new(lines: mpsc::Receiver<Report>) -> Self {
        Self { lines }
    }

    /// The next report; `None` after the last.
    pub async fn next(&mut self) -> Option<Report> {
        self.lines.recv().await
    }
}
