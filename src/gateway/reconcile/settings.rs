//! The configured reconciliations.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;

use crate::core::key::Pointer;
use crate::core::reconcile::anomaly::Action;
use crate::core::reconcile::{Kind, Rules};
use crate::core::time::signed;
use crate::core::tool::{OnUnknown, Tool};
use crate::downstream::outside::Source;

/// One configured reconciliation.
#[derive(Debug, Clone)]
pub struct Reconciliation {
    pub name: String,
    /// The interval between runs; `None`: by request only.
    pub every: Option<Duration>,
    /// How far behind the clock a window ends: sources may be late.
    pub lag: SignedDuration,
    /// The longest window of one run.
    pub window: SignedDuration,
    /// How long reports are kept.
    pub retention: SignedDuration,
    /// Most items of one source in one run.
    pub max_items: usize,
    /// Most anomalies of one run.
    ///
    /// More are a mistake of the configuration, or a catastrophe: nothing is done then.
    pub max_anomalies: usize,
    pub tools: Vec<String>,
    pub sources: Vec<SourceAt>,
    pub on: BTreeMap<Kind, Action>,
}

/// A source, and how to read it.
#[derive(Debug, Clone)]
pub struct SourceAt {
    pub rules: Rules,
    pub source: Source,
    /// The tool of its effects; `None`: all tools.
    pub tool: Option<String>,
    /// The pointer to the result for duplicates of a settled call; `None`: the whole item.
    pub result: Option<Pointer>,
}

impl Reconciliation {
    /// How much wider than its window a source is asked.
    ///
    /// An effect lies within a lease of the end of its call, and clocks differ.
    pub fn margin<'a>(&self, tools: impl Iterator<Item = &'a Tool>) -> SignedDuration {
        let time = |tool: &Tool| match tool.unknown {
            OnUnknown::Retry => tool.lease() + tool.recheck.give_up_after,
            _ => tool.lease(),
        };
        let longest = tools.map(time).max().unwrap_or_default();
        self.lag.saturating_add(signed(longest))
    }

    /// Whether anomalies of this kind are undone.
    pub(super) fn compensates(&self, kind: Kind) -> bool {
        self.on.get(&kind) == Some(&Action::Compensate)
    }

    pub(super) fn source(&self, name: &str) -> Option<&SourceAt> {
        self.sources
            .iter()
            .find(|source| source.rules.source == name)
    }
}
