//! What has happened: a run in which too little did proves nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::scenario::fresh_key;
use super::world::World;
use crate::support::Answer;
use crate::support::faulty::{Fault, Verb};

/// How often everything happened that must happen for a run to mean anything, by name.
pub(super) type Tally = BTreeMap<&'static str, usize>;

impl World {
    /// What has happened so far.
    pub(super) fn tally(&self) -> Tally {
        let heard = self.heard.lock().expect("not poisoned");
        let answers: Vec<&Answer> = heard
            .iter()
            .filter_map(|heard| heard.answer.as_ref())
            .collect();
        let with = |slugs: &[&str]| {
            answers
                .iter()
                .filter(|answer| slugs.contains(&answer.problem().as_str()))
                .count()
        };
        let replays = answers
            .iter()
            .filter(|answer| answer.status == 200 && answer.at("/replayed") == true);
        let entries: Vec<_> = self
            .memory
            .records()
            .into_iter()
            .flat_map(|(_, entries)| entries)
            .collect();
        let events = |event: &str| entries.iter().filter(|entry| entry.event == event).count();
        let metrics = self
            .gateways
            .each_ref()
            .map(|at| at.gateway.base.metrics.clone());
        let ambiguous = |operation: &str| {
            let errors = metrics.iter().map(|metrics| &metrics.store_errors);
            errors
                .map(|errors| errors.with_label_values(&[operation, "ambiguous"]).get() as usize)
                .sum()
        };
        let fresh = heard
            .iter()
            .filter(|heard| heard.ask.key >= fresh_key(0, 0));
        let fresh = fresh.filter(|heard| {
            heard
                .answer
                .as_ref()
                .is_some_and(|answer| answer.status == 200)
        });
        let lines = self.memory.lines();
        let is_exclusive = self.bounds.exclusive_wait_ms.is_some();
        let locked =
            |name: &'static str, times: usize| (name, if is_exclusive { times } else { 0 });
        let mut tally = Tally::from([
            ("lost writes", self.lost.lock().expect("not poisoned").len()),
            ("ambiguous claims", ambiguous("claim")),
            ("ambiguous replacements", ambiguous("replace")),
            (
                "refused stale owners",
                metrics
                    .iter()
                    .map(|metrics| metrics.stale_owners.get() as usize)
                    .sum(),
            ),
            ("calls whose lease was over", events("lease_over")),
            ("late answers", events("ended_late")),
            ("retries", events("retried")),
            ("runs after a failure", events("run_again")),
            ("agents that hung up", heard.len() - answers.len()),
            ("successes", with(&[""])),
            ("replays", replays.count()),
            (
                "claims confirmed after a doubt",
                self.store.confirmed(Verb::Claim),
            ),
            (
                "failures without effect",
                with(&["tool-rejected", "tool-unreachable", "tool-unavailable"]),
            ),
            ("unknown outcomes", with(&["outcome-unknown"])),
            ("calls that waited in a line", lines.joined),
            ("calls that came to their turn", lines.served),
            ("unknown calls that kept their session", lines.ended),
            ("busy sessions", with(&["session-busy"])),
            ("budgets used up", with(&["budget-exceeded"])),
            (
                "calls that looked like an earlier one",
                with(&["possible-duplicate"]),
            ),
            locked(
                "doubted claims that met a locked session",
                self.store.denied_in_doubt(),
            ),
            locked(
                "exclusive calls that were taken from their owner",
                events("lease_over"),
            ),
            ("sessions that ran one more call", fresh.count()),
            ("lost results", with(&["result-unavailable"])),
            ("reused keys", with(&["key-reused"])),
            ("refusals of the store", with(&["store-unavailable"])),
        ]);
        for (name, verb, fault) in [
            ("claims: refused", Verb::Claim, Fault::ErrBefore),
            ("claims: unanswered", Verb::Claim, Fault::ExecuteThenTimeout),
            (
                "claims: late",
                Verb::Claim,
                Fault::ExecuteLate(Duration::ZERO),
            ),
            ("claims: twice", Verb::Claim, Fault::Duplicate),
            ("replacements: refused", Verb::Replace, Fault::ErrBefore),
            (
                "replacements: unanswered",
                Verb::Replace,
                Fault::ExecuteThenTimeout,
            ),
            (
                "replacements: late",
                Verb::Replace,
                Fault::ExecuteLate(Duration::ZERO),
            ),
            ("replacements: twice", Verb::Replace, Fault::Duplicate),
        ] {
            tally.insert(name, self.store.injected(verb, fault));
        }
        tally
    }
}
