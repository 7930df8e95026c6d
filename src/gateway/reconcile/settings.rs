//! Reconciliations as they are configured.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;

use crate::core::key::Pointer;
use crate::core::reconcile::anomaly::Action;
use crate::core::reconcile::{Kind, Rules};
use crate::core::time::signed;
use crate::core::tool::{OnUnknown, Tool};
use crate::downstream::outside::Source;

/// One reconciliation, as it is configured.
#[derive(Debug, Clone)]
pub struct Reconciliation {
    pub name: String,
    /// How often it runs; `None`: by request only.
    pub every: Option<Duration>,
    /// How far behind the clock its window ends: sources may be late.
    pub lag: SignedDuration,
    /// How much time one run looks at, at the most.
    pub window: SignedDuration,
    /// How long reports are kept.
    pub retention: SignedDuration,
    /// Of one source, in one run.
    pub max_items: usize,
    /// More than this is a mistake of the configuration, or a catastrophe: nothing is acted on then.
    pub max_anomalies: usize,
    pub tools: Vec<String>,
    pub sources: Vec<SourceAt>,
    pub on: BTreeMap<Kind, Action>,
}

/// A source, and how it is read.
#[derive(Debug, Clone)]
pub struct SourceAt {
    pub rules: Rules,
    pub source: Source,
    /// The tool whose effects it has; `None`: those of all.
    pub tool: Option<String>,
    /// Where an item has what a duplicate of a settled call gets; `None`: the whole item.
    pub result: Option<Pointer>,
}

impl Reconciliation {
    /// By how much more than its window a source is asked for: an effect lies within a lease of the end of
    /// its call, and clocks differ.
    pub fn margin<'a>(&self, tools: impl Iterator<Item = &'a Tool>) -> SignedDuration {
        let time = |tool: &Tool| match tool.unknown {
            OnUnknown::Retry => tool.lease() + tool.recheck.give_up_after,
            _ => tool.lease(),
        };
        let longest = tools.map(time).max().unwrap_or_default();
        self.lag.saturating_add(signed(longest))
    }

    /// Whether what is of this kind is undone.
    pub(super) fn compensates(&self, kind: Kind) -> bool {
        self.on.get(&kind) == Some(&Action::Compensate)
    }

    pub(super) fn source(&self, name: &str) -> Option<&SourceAt> {
        self.sources
            .iter()
            .find(|source| source.rules.source == name)
    }
}
