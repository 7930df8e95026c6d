//! The configured reconciliations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::SignedDuration;

use crate::core::key::Pointer;
use crate::core::reconcile::anomaly::{Action, Showing};
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
#[derive(Clone)]
pub(in crate::gateway) struct Reconciliations(Arc<ArcSwap<BTreeMap<String, Arc<Reconciliation>>>>);

impl Reconciliations {
    pub(in crate::gateway) fn new(all: Vec<Reconciliation>) -> Self {
        let named = |one: Reconciliation| (one.name.clone(), Arc::new(one));
        Self(Arc::new(ArcSwap::from_pointee(
            all.into_iter().map(named).collect(),
        )))
    }

    pub(super) fn all(&self) -> Arc<BTreeMap<String, Arc<Reconciliation>>> {
        self.0.load_full()
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Reconciliation>> {
        self.0.load().get(name).cloned()
    }

    /// Takes over what is done about anomalies and what they show, and nothing else.
    pub(in crate::gateway) fn take_over(&self, new: &[&Reconciliation]) {
        let mut all = (*self.all()).clone();
        for new in new {
            if let Some(of) = all.get_mut(&new.name) {
                let of = Arc::make_mut(of);
                (of.on, of.show) = (new.on.clone(), new.show.clone());
            }
        }
        self.0.store(Arc::new(all));
    }
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

    /// Whether forgotten effects are adopted.
    pub(super) fn adopts(&self) -> bool {
        self.on.get(&Kind::Orphan) == Some(&Action::Adopt)
    }

    /// What an anomaly of this source shows. `tools`: the configured ones.
    pub(super) fn showing<'a>(
        &self,
        at: Option<&SourceAt>,
        tools: impl Iterator<Item = &'a Tool>,
    ) -> Showing {
        // An item may have what is secret in arguments or results at the same places.
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
        self.sources
            .iter()
            .find(|source| source.rules.source == name)
    }
}
