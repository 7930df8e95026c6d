//! Whether the store still has what was written to it.
//!
//! Each partition holds the *epoch*, a random word that lost or foreign data does not have, and counts
//! the writes of each gateway. A gateway remembers both, in memory and in a small file, and every claim
//! compares them in its own atomic step. Where they do not fit nothing may be claimed until an operator
//! accepts the loss, which begins a new epoch.
//!
//! A gateway that was killed counts under another name from its next start on. Its file may lack its newest writes. If the
//! store loses these, too, the gateway would count up to them again under the old name, and hide the loss. The old name is
//! then that of a gateway that is gone.
//!
//! A gateway that has been silent for long is *forgotten*: another one takes it out of each partition's counters, and keeps
//! its *last count* there in the same step. That hides no loss from the remaining gateways:
//! * A gateway that remembers a count of a forgotten one compares it with the last count, which is in the same partition.
//!   Any older state of the partition has the count in one of the two places, or lacks those writes.
//! * A gateway that has dropped the forgotten one has seen its counter missing in every partition. Taking it out is counted
//!   as a write of the gateway that does it, in the same step and string. So a gateway that saw the partition without the
//!   forgotten one knows of that write, and an older state of the partition lacks it.
//! * A gateway that comes back finds its own last counts, compares them, and goes on from them.
//!
//! `loss_model` explores all states of a model of these rules.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::keys::{PARTITIONS, Partition};

/// The epoch of a partition that a gateway has closed because of a loss.
pub(super) const CLOSED: &str = "lost";
/// The version of the keys and values. Data of another version is never touched.
pub(super) const FORMAT: u32 = 5;

/// The manifest of all partitions: which epoch holds, and which ones it followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) partitions: u8,
    pub(super) epoch: String,
    /// Earlier epochs whose loss an operator has accepted, the newest last.
    pub(super) follows: Vec<String>,
    /// False until every partition has the epoch.
    pub(super) complete: bool,
    /// Why an operator began this epoch; empty for the first.
    pub(super) reason: String,
    /// The data that a gateway has found missing; empty if none. Closes the store for all.
    #[serde(default)]
    pub(super) lost: String,
    /// The highest fencing token before the epoch, as far as gateways remembered.
    #[serde(default)]
    pub(super) token: u64,
    /// Since when every call is known, in microseconds: a new store, or an accepted loss.
    #[serde(default)]
    pub(super) whole_since_us: Option<i64>,
}

/// How many writes each gateway has made in each partition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Writes(BTreeMap<String, Vec<u64>>);

impl Writes {
    pub(super) fn of(&self, gateway: &str, partition: Partition) -> u64 {
        self.0
            .get(gateway)
            .and_then(|counts| counts.get(partition.index()))
            .copied()
            .unwrap_or(0)
    }

    /// Notes a count, unless a higher one is known.
    pub(super) fn count(&mut self, gateway: &str, partition: Partition, writes: u64) {
        let counts = self.0.entry(gateway.to_owned()).or_default();
        counts.resize(PARTITIONS.into(), 0);
        let known = &mut counts[partition.index()];
        *known = writes.max(*known);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (gateway, counts) in &other.0 {
            for (partition, writes) in Partition::all().zip(counts) {
                self.count(gateway, partition, *writes);
            }
        }
    }

    /// How many of these writes are not counted there. Last counts stand in only for counters that
    /// are absent: a counter that is there and too low belongs to a server that was set back.
    pub(super) fn missing_in(&self, there: &Self, forgotten: &Self) -> u64 {
        let missing = self.0.iter().flat_map(|(gateway, counts)| {
            let found = move |at| match there.of(gateway, at) {
                0 => forgotten.of(gateway, at),
                counted => counted,
            };
            Partition::all()
                .zip(counts)
                .map(move |(at, count)| count.saturating_sub(found(at)))
        });
        missing.sum()
    }

    /// The gateways with any writes.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(|(_, counts)| counts.iter().any(|count| *count > 0))
            .map(|(gateway, _)| &**gateway)
    }

    /// The gateways that have written to a partition which does not know them in `there`.
    pub(super) fn absent_from(&self, there: &Self) -> Vec<String> {
        let is_absent = |(gateway, counts): &(&String, &Vec<u64>)| {
            Partition::all()
                .zip(*counts)
                .any(|(at, count)| *count > 0 && there.of(gateway, at) == 0)
        };
        self.0
            .iter()
            .filter(is_absent)
            .map(|(gateway, _)| gateway.clone())
            .collect()
    }

    /// Drops every gateway that `there` does not know at all, except this one.
    pub(super) fn forget_absent(&mut self, there: &Self, own: &str) {
        let known: BTreeSet<&str> = there.gateways().collect();
        self.0
            .retain(|gateway, _| gateway == own || known.contains(&**gateway));
    }
}

impl Manifest {
    /// Most accepted epochs that are remembered.
    const MAX_FOLLOWED: usize = 32;

    pub(super) fn first() -> Self {
        Self::after(&[], "", false)
    }

    /// A new epoch after these.
    pub(super) fn after(epochs: &[&str], reason: &str, complete: bool) -> Self {
        let mut follows: Vec<String> = Vec::new();
        for epoch in epochs.iter().filter(|epoch| !epoch.is_empty()) {
            if !follows.iter().any(|known| known == epoch) {
                follows.push((*epoch).to_owned());
            }
        }
        follows.drain(..follows.len().saturating_sub(Self::MAX_FOLLOWED));
        let epoch = Uuid::new_v4().simple().to_string();
        Self {
            format: FORMAT,
            partitions: PARTITIONS,
            epoch,
            follows,
            complete,
            reason: reason.to_owned(),
            lost: String::new(),
            token: 0,
            whole_since_us: None,
        }
    }
}

/// The store's data for the loss check, as one look saw it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sight {
    pub(super) manifest: Option<Manifest>,
    /// The epoch of each partition; empty if there is none.
    pub(super) epochs: Vec<String>,
    pub(super) writes: Writes,
    /// The last counts of forgotten gateways that this one remembers.
    pub(super) forgotten: Writes,
    /// For each gateway the highest token that it may have given.
    pub(super) tokens: BTreeMap<String, u64>,
}

impl Sight {
    /// The highest token before an accepted loss.
    pub(super) fn accepted_token(&self) -> u64 {
        self.manifest.as_ref().map_or(0, |manifest| manifest.token)
    }

    /// The highest token, as far as the store knows.
    pub(super) fn token(&self) -> u64 {
        self.tokens
            .values()
            .copied()
            .fold(self.accepted_token(), u64::max)
    }
}

/// The finding of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// No data is missing.
    Whole,
    /// This Redis is new, or its set-up was interrupted: begin.
    Fresh(Manifest),
    /// An operator has accepted a loss, or this gateway is new here: take over the store's epoch.
    Adopt(String),
    /// The data has another version: nothing is written to it.
    Foreign(String),
    /// Data is missing, and at least so many writes.
    Lost { what: String, writes: u64 },
}

/// Compares the store with this gateway's memory. Pure.
pub(super) fn compare(sight: &Sight, epoch: &str, known: &Writes) -> Finding {
    let lost = |what: String, writes| Finding::Lost { what, writes };
    let missing = known.missing_in(&sight.writes, &sight.forgotten);
    let Some(manifest) = &sight.manifest else {
        return if epoch.is_empty() && sight.epochs.iter().all(String::is_empty) {
            Finding::Fresh(Manifest::first())
        } else {
            lost(
                "the store is not the one that was used before: its manifest is gone".into(),
                missing,
            )
        };
    };
    if (manifest.format, manifest.partitions) != (FORMAT, PARTITIONS) {
        return Finding::Foreign(format!(
            "the store has format {} in {} partitions; this gateway knows format {FORMAT} in {PARTITIONS}",
            manifest.format, manifest.partitions
        ));
    }
    if !manifest.lost.is_empty() {
        return lost(manifest.lost.clone(), missing);
    }
    if !manifest.complete {
        return if manifest.follows.is_empty() && epoch.is_empty() {
            Finding::Fresh(manifest.clone())
        } else {
            lost(
                "the acceptance of a loss was interrupted: accept it again".into(),
                0,
            )
        };
    }
    if let Some(at) = sight.epochs.iter().position(|have| *have != manifest.epoch) {
        return lost(format!("partition {at} has lost its data"), missing);
    }
    if manifest.epoch != epoch {
        return if epoch.is_empty() || manifest.follows.iter().any(|followed| followed == epoch) {
            Finding::Adopt(manifest.epoch.clone())
        } else {
            lost(
                "the store holds other data than before: its epoch is a stranger".into(),
                missing,
            )
        };
    }
    match missing {
        0 => Finding::Whole,
        missing => lost(format!("the newest {missing} writes are missing"), missing),
    }
}

/// The manifest that closes the store because of a loss. Pure.
///
/// It names `epoch`, that of the gateway that has found it, among those that an acceptance follows: without that the
/// gateway would take the accepted store for a stranger's. `None` if the manifest says all that already, or belongs to
/// another Redis than the gateway has used since it started (`was_whole`): that one's gateways need not suffer.
pub(super) fn warning(
    before: Option<&Manifest>,
    epoch: &str,
    what: &str,
    was_whole: bool,
) -> Option<Manifest> {
    let Some(before) = before else {
        return Some(Manifest {
            lost: what.to_owned(),
            ..Manifest::after(&[epoch], "", true)
        });
    };
    let is_named = before.epoch == epoch || before.follows.iter().any(|followed| followed == epoch);
    // Also while it is being accepted.
    let is_closed = !before.lost.is_empty() || !before.complete && !before.follows.is_empty();
    if is_named && is_closed || !is_named && !was_whole {
        return None;
    }
    let mut warning = before.clone();
    if warning.lost.is_empty() {
        what.clone_into(&mut warning.lost);
    }
    if !is_named {
        warning.follows.push(epoch.to_owned());
    }
    Some(warning)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(epoch: &str, writes: u64) -> Sight {
        let manifest = Manifest {
            epoch: epoch.into(),
            complete: true,
            ..Manifest::after(&["older"], "r", true)
        };
        Sight {
            manifest: Some(manifest),
            epochs: vec![epoch.into(); PARTITIONS.into()],
            writes: known(writes),
            forgotten: Writes::default(),
            tokens: BTreeMap::new(),
        }
    }

    /// The counts of two gateways, in every partition.
    fn known(writes: u64) -> Writes {
        let mut known = Writes::default();
        for partition in Partition::all() {
            known.count("me", partition, writes);
            known.count("other", partition, writes);
        }
        known
    }

    fn partition(number: usize) -> Partition {
        Partition::all().nth(number).expect("a partition")
    }

    fn missing(finding: Finding) -> Option<u64> {
        match finding {
            Finding::Lost { writes, .. } => Some(writes),
            _ => None,
        }
    }

    #[test]
    fn a_store_that_has_all_that_is_remembered_is_whole() {
        assert_eq!(compare(&whole("e", 5), "e", &known(5)), Finding::Whole);
        let later = compare(&whole("e", 6), "e", &known(5));
        assert_eq!(later, Finding::Whole, "written while it was looked at");
    }

    #[test]
    fn writes_that_are_missing_are_counted() {
        for gateway in ["me", "other"] {
            let mut more = known(5);
            more.count(gateway, partition(7), 8);
            assert_eq!(missing(compare(&whole("e", 5), "e", &more)), Some(3));
        }
    }

    #[test]
    fn a_forgotten_gateway_is_not_missing_but_what_it_had_lost_is() {
        let mut sight = whole("e", 5);
        sight.writes = Writes::default();
        Partition::all().for_each(|at| sight.writes.count("me", at, 9));
        assert_eq!(sight.writes.gateways().collect::<Vec<_>>(), ["me"]);
        assert_eq!(known(5).absent_from(&sight.writes), ["other"]);
        assert_eq!(
            missing(compare(&sight, "e", &known(5))),
            Some(5 * 64),
            "no last counts were written"
        );
        for (last, lost) in [(5, None), (7, None), (4, Some(64))] {
            sight.forgotten = Writes::default();
            Partition::all().for_each(|at| sight.forgotten.count("other", at, last));
            assert_eq!(missing(compare(&sight, "e", &known(5))), lost, "{last}");
        }
        // Last counts do not hide that a counter is back and too low.
        let mut set_back = sight.clone();
        Partition::all().for_each(|at| set_back.forgotten.count("other", at, 7));
        assert_eq!(compare(&set_back, "e", &known(5)), Finding::Whole);
        set_back.writes.count("other", partition(9), 3);
        assert_eq!(missing(compare(&set_back, "e", &known(5))), Some(2));
        // It is kept in mind until no partition has it.
        let mut remembered = known(5);
        let mut half = sight.writes.clone();
        half.count("other", partition(63), 5);
        remembered.forget_absent(&half, "me");
        assert_eq!(remembered, known(5));
        remembered.forget_absent(&sight.writes, "me");
        assert_eq!(remembered.gateways().collect::<Vec<_>>(), ["me"]);
        remembered.forget_absent(&Writes::default(), "me");
        assert_eq!(remembered.of("me", partition(0)), 5, "never this one");
    }

    #[test]
    fn what_one_gateway_has_found_missing_closes_the_store_for_all() {
        let mut sight = whole("e", 5);
        let manifest = sight.manifest.as_mut().expect("a manifest");
        manifest.lost = "the newest 3 writes are missing".into();
        assert_eq!(missing(compare(&sight, "e", &known(5))), Some(0));
        assert_eq!(
            missing(compare(&sight, "", &Writes::default())),
            Some(0),
            "also for who comes anew"
        );
    }

    #[test]
    fn an_empty_store_is_fresh_only_for_who_has_never_met_it() {
        let empty = Sight {
            epochs: vec![String::new(); 64],
            ..Sight::default()
        };
        assert!(matches!(
            compare(&empty, "", &Writes::default()),
            Finding::Fresh(_)
        ));
        assert_eq!(
            missing(compare(&empty, "e", &known(1))),
            Some(128),
            "flushed"
        );
        let mut half = empty.clone();
        half.epochs[3] = "e".into();
        assert!(
            missing(compare(&half, "", &Writes::default())).is_some(),
            "one master of a cluster was flushed"
        );
    }

    #[test]
    fn a_warning_names_the_epoch_of_who_gives_it_and_is_given_once() {
        let new = warning(None, "e", "gone", true).expect("a warning");
        assert_eq!(
            (new.lost.as_str(), &new.follows[..]),
            ("gone", &["e".to_owned()][..])
        );
        assert!(new.complete && new.epoch != "e");
        assert_eq!(warning(Some(&new), "e", "gone", true), None, "it is said");
        // A newcomer has set up what was emptied, or another gateway has warned without knowing of this one.
        let lost = Manifest {
            lost: "first".into(),
            ..Manifest::first()
        };
        for (before, what) in [(Manifest::first(), "gone"), (lost, "first")] {
            assert_eq!(
                warning(Some(&before), "e", "gone", false),
                None,
                "another Redis"
            );
            let both = warning(Some(&before), "e", "gone", true).expect("a warning");
            assert_eq!(
                (both.lost.as_str(), &both.follows[..]),
                (what, &["e".to_owned()][..])
            );
            assert_eq!(
                (&both.epoch, both.complete),
                (&before.epoch, before.complete)
            );
        }
        let accepting = Manifest::after(&["e"], "flushed", false);
        assert_eq!(
            warning(Some(&accepting), "e", "gone", true),
            None,
            "it is being accepted"
        );
    }

    #[test]
    fn an_epoch_is_adopted_by_newcomers_and_by_those_whose_loss_was_accepted() {
        let accepted = whole("e2", 0);
        assert_eq!(
            compare(&accepted, "", &Writes::default()),
            Finding::Adopt("e2".into())
        );
        assert_eq!(
            compare(&accepted, "older", &known(9)),
            Finding::Adopt("e2".into())
        );
        assert!(missing(compare(&accepted, "stranger", &known(9))).is_some());
    }

    #[test]
    fn a_partition_without_the_epoch_is_lost() {
        let mut sight = whole("e", 5);
        sight.epochs[63].clear();
        assert_eq!(missing(compare(&sight, "e", &known(5))), Some(0));
    }

    #[test]
    fn who_was_interrupted_in_the_first_set_up_goes_on_with_it_and_in_an_acceptance_does_not() {
        let begun = Manifest::first();
        let sight = Sight {
            manifest: Some(begun.clone()),
            epochs: vec![String::new(); 64],
            ..Sight::default()
        };
        assert_eq!(
            compare(&sight, "", &Writes::default()),
            Finding::Fresh(begun)
        );
        let accepting = Manifest::after(&["e"], "flushed", false);
        let sight = Sight {
            manifest: Some(accepting),
            ..sight
        };
        assert!(missing(compare(&sight, "e", &Writes::default())).is_some());
    }
}
