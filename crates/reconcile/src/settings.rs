//! The configured reconciliations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::SignedDuration;

use super::source::Source;
use crate::rules::anomaly::{Act, Showing};
use crate::rules::{Kind, Rules};
use oncegate_rules::key::Pointer;
use oncegate_rules::time::signed;
use oncegate_rules::tool::{OnUnknown, Tool};

/// One configured reconciliation.
#[derive(Debug, Clone)]
pub struct Reconciliation {
    pub name: String,
    /// The interval between runs; `None`: by request only.
    pub every: Option<Duration>,
    /// How far behind the clock a window ends: sources may show effects late.
    pub lag: SignedDuration,
    /// The longest window of one run.
    pub window: SignedDuration,
    /// How long reports are kept.
    pub retention: SignedDuration,
    /// How long an anomaly is worked on, and then kept.
    ///
    /// At least the shortest retention of its tools at the start: no run takes up again what was decided, unless a reload
    /// raises that retention.
    pub anomaly_retention: SignedDuration,
    /// Most items of one source in one run.
    pub max_items: usize,
    /// Most anomalies of one run.
    ///
    /// More are a mistake of the configuration, or a catastrophe. Then nothing is undone by itself.
    pub max_anomalies: usize,
    /// So many more unknown calls of its tools bring its next run forward.
    pub when_unknown: Option<u64>,
    pub tools: Vec<String>,
    pub sources: Vec<SourceAt>,
    pub on: BTreeMap<Kind, Act>,
    /// Pointers to the values of an item that reports show.
    pub show: Vec<Pointer>,
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
    /// The pointer to the result for duplicates of an adopted call; `None`: it has none.
    pub adopted_result: Option<Pointer>,
}

/// The reconciliations of a gateway by their names.
pub(super) type Reconciliations = ArcSwap<BTreeMap<String, Arc<Reconciliation>>>;

pub(crate) fn by_name(all: Vec<Reconciliation>) -> Reconciliations {
    let named = all.into_iter().map(|one| (one.name.clone(), Arc::new(one)));
    ArcSwap::from_pointee(named.collect())
}

impl Reconciliation {
    /// How much further than its window a run reads a source, at both ends.
    ///
    /// An effect is made at most a lease before the end of its call, and clocks differ.
    pub fn margin<'a>(&self, tools: impl Iterator<Item = &'a Tool>) -> SignedDuration {
        let time = |tool: &Tool| match tool.unknown {
            OnUnknown::Retry => tool.lease() + tool.recheck.give_up_after,
            _ => tool.lease(),
        };
        let longest = tools.map(time).max().unwrap_or_default();
        self.lag.saturating_add(signed(longest))
    }

    /// Whether the configuration asks for an act on anomalies of this kind.
    pub(super) fn asks_for(&self, act: Act, kind: Kind) -> bool {
        match act {
            Act::Compensate => self.on.get(&kind) == Some(&Act::Compensate),
            Act::Adopt => self.on.get(&Kind::Orphan) == Some(&Act::Adopt),
            // Such an anomaly is worked on even if the configuration asks for nothing any more.
            Act::Report | Act::Settle | Act::Webhook => true,
        }
    }

    /// What an anomaly of this source shows. `tools`: the configured ones.
    pub(super) fn showing<'a>(
        &self,
        at: Option<&SourceAt>,
        tools: impl Iterator<Item = &'a Tool>,
    ) -> Showing {
        // An item may have the secret values of arguments or results at the same places.
        let secret = tools.flat_map(|tool| tool.redact.args.iter().chain(&tool.redact.result));
        let mut secret: Vec<Pointer> = secret.cloned().collect();
        if let Some(result) = at.and_then(|at| at.result.as_ref()) {
            let below = |pointer: &Pointer| result.followed_by(pointer);
            let below: Vec<Pointer> = secret.iter().map(below).collect();
            secret.extend(below);
        }
        Showing {
            values: self.show.clone(),
            time: at.and_then(|at| at.rules.time.clone()),
            secret,
        }
    }

    pub(super) fn source(&self, name: &str) -> Option<&SourceAt> {
        let mut sources = self.sources.iter();
        sources.find(|at| at.rules.source == name)
    }
}
