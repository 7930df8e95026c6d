//! Whether the store still has what was written to it.
//!
//! Each partition holds the *epoch*, a random word that lost or foreign data does not have, and counts the writes of each
//! gateway. A gateway remembers both, in memory and in a small file, and every claim compares them in its own atomic step.
//! Where they differ nothing may be claimed until an operator accepts the loss, which begins a new epoch.
//!
//! A gateway that was killed counts under another name from its next start on. Its file may lack its newest writes. If the
//! store loses these, too, the gateway would count up to them again under the old name, and hide the loss. The old name is
//! then that of a gateway that is gone.
//!
//! A gateway that has been silent for long is *forgotten*: another gateway takes it out of each partition's counters, and
//! keeps its *last count* there in the same step. That hides no loss from the remaining gateways:
//! * A gateway that remembers a count of a forgotten gateway compares it with the last count, which is in the same
//!   partition. Any older state of the partition has the count in one of the two places, or lacks those writes.
//! * A gateway that has dropped the forgotten gateway has seen its counter missing in every partition. Taking it out is
//!   counted as a write of the gateway that does it, in the same step and string. So a gateway that saw the partition
//!   without the forgotten gateway knows of that write, and an older state of the partition lacks it.
//! * A gateway that comes back finds its own last counts, compares them, and goes on from them.
//!
//! `model` explores all states of a model of these rules.

pub(crate) mod abilities; // what each gateway can read
pub(crate) mod counters; // epoch and counts of a partition
pub(crate) mod epoch; // lost data: noticing it, accepting it
pub(crate) mod format; // the store's format, and the steps to the newest one
pub(crate) mod gateways; // gateways that are gone are forgotten
pub(crate) mod memory; // what a gateway remembers of the store
#[cfg(test)]
mod model; // explores all states of a model of the loss check
pub(crate) mod move_on; // moves the store to the newest format
pub(crate) mod put_back; // writes that the store has lost and the gateway remembers

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use self::format::Format;
use super::keys::{PARTITIONS, Partition};

/// The epoch of a partition that a gateway has closed because of a loss.
pub(super) const CLOSED: &str = "lost";
/// The manifest of all partitions: which epoch holds, and which ones it followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The version of the keys and values. A gateway never writes to data of a version that it does not know.
    pub(super) format: u32,
    /// When the store was moved to this format, in microseconds; `None` if it began with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved_us: Option<i64>,
    pub(super) partitions: u8,
    pub(super) epoch: String,
    /// Earlier epochs whose loss an operator has accepted, the newest last.
    pub(super) follows: Vec<String>,
    /// False until every partition has the epoch.
    pub(super) complete: bool,
    /// Why an operator began this epoch; empty for the first.
    pub(super) reason: String,
    /// The data that a gateway has found missing; empty if none. Closes the store for all.
    pub(super) lost: String,
    /// The highest fencing token before the epoch, as far as gateways remembered.
    pub(super) token: u64,
    /// Since when every call is known, in microseconds: since the set-up or the last accepted loss.
    pub(super) whole_since_us: Option<i64>,
}

/// How many writes each gateway has made in each partition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Writes(BTreeMap<String, Vec<u64>>);

impl Writes {
    pub(super) fn of(&self, gateway: &str, partition: Partition) -> u64 {
        let counts = self.0.get(gateway);
        let count = counts.and_then(|counts| counts.get(partition.index()));
        count.copied().unwrap_or(0)
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

    /// How many of these writes are not counted in `stored`.
    ///
    /// Last counts replace only counters that are absent: a counter that is too low belongs to a server that was set
    /// back.
    pub(super) fn missing_in(&self, stored: &Self, last_counts: &Self) -> u64 {
        let mut missing = 0;
        for (gateway, counts) in &self.0 {
            for (at, count) in Partition::all().zip(counts) {
                let found = match stored.of(gateway, at) {
                    0 => last_counts.of(gateway, at),
                    counted => counted,
                };
                missing += count.saturating_sub(found);
            }
        }
        missing
    }

    /// The gateways with any writes.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &str> {
        let counted = self
            .0
            .iter()
            .filter(|(_, counts)| counts.iter().any(|count| *count > 0));
        counted.map(|(gateway, _)| &**gateway)
    }

    /// The gateways with writes to a partition in which `stored` has no counter of them.
    pub(super) fn absent_from(&self, stored: &Self) -> Vec<String> {
        let is_absent = |(gateway, counts): &(&String, &Vec<u64>)| {
            let mut counts = Partition::all().zip(*counts);
            counts.any(|(at, count)| *count > 0 && stored.of(gateway, at) == 0)
        };
        let absent = self.0.iter().filter(is_absent);
        absent.map(|(gateway, _)| gateway.clone()).collect()
    }

    /// Drops every gateway that `stored` has no counter of at all, except `own`.
    pub(super) fn forget_absent(&mut self, stored: &Self, own: &str) {
        let counted: BTreeSet<&str> = stored.gateways().collect();
        self.0
            .retain(|gateway, _| gateway == own || counted.contains(&**gateway));
    }
}

impl Manifest {
    /// How many accepted epochs are remembered at most.
    const MAX_FOLLOWED: usize = 32;

    /// A new epoch after these, which is not complete yet.
    pub(super) fn after(epochs: &[&str], format: Format) -> Self {
        let mut follows: Vec<String> = Vec::new();
        for epoch in epochs.iter().filter(|epoch| !epoch.is_empty()) {
            if !follows.iter().any(|known| known == epoch) {
                follows.push((*epoch).to_owned());
            }
        }
        follows.drain(..follows.len().saturating_sub(Self::MAX_FOLLOWED));
        Self {
            format: format.number,
            moved_us: format.moved_us,
            partitions: PARTITIONS,
            epoch: Uuid::new_v4().simple().to_string(),
            follows,
            complete: false,
            reason: String::new(),
            lost: String::new(),
            token: 0,
            whole_since_us: None,
        }
    }

    pub(super) fn format(&self) -> Format {
        Format {
            number: self.format,
            moved_us: self.moved_us,
        }
    }

    fn has_followed(&self, epoch: &str) -> bool {
        self.follows.iter().any(|followed| followed == epoch)
    }
}

/// The data that the loss check compares, as one inspection has read it.
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
    /// The highest token before the last accepted loss.
    pub(super) fn accepted_token(&self) -> u64 {
        self.manifest.as_ref().map_or(0, |manifest| manifest.token)
    }

    /// Whether all these writes are there. `epoch`: the one that this gateway knows.
    pub(super) fn has(&self, writes: &Writes, epoch: &str) -> bool {
        // Under another epoch another gateway may have counted new writes instead of lost ones.
        let is_known = |seen: &String| seen == epoch || seen == CLOSED || seen.is_empty();
        self.epochs.iter().all(is_known) && writes.missing_in(&self.writes, &self.forgotten) == 0
    }

    /// The gateways with writes or tokens. Some twice.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &str> {
        let with_tokens = self.tokens.keys().map(String::as_str);
        self.writes.gateways().chain(with_tokens)
    }

    /// The highest token, as far as the store knows.
    pub(super) fn token(&self) -> u64 {
        let tokens = self.tokens.values().copied();
        tokens.fold(self.accepted_token(), u64::max)
    }
}

/// The finding of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// No data is missing.
    Whole,
    /// This Redis is new, or its set-up was interrupted: set it up.
    Fresh(Manifest),
    /// An operator has accepted a loss, or this gateway is new here: take over the store's epoch.
    Adopt(String),
    /// The data has another version: write nothing to it.
    Foreign(String),
    /// Data is missing, and at least so many writes.
    Lost { what: String, writes: u64 },
}

/// Compares the store with this gateway's memory. Pure. `newest`: the newest format that this gateway knows.
pub(super) fn compare(sight: &Sight, epoch: &str, known: &Writes, newest: u32) -> Finding {
    let lost = |what: &str, writes| Finding::Lost {
        what: what.to_owned(),
        writes,
    };
    let missing = known.missing_in(&sight.writes, &sight.forgotten);
    let Some(manifest) = &sight.manifest else {
        return if epoch.is_empty() && sight.epochs.iter().all(String::is_empty) {
            Finding::Fresh(Manifest::after(&[], Format::begun(newest)))
        } else {
            let what = "the store is not the one that was used before: its manifest is gone";
            lost(what, missing)
        };
    };
    if let Some(why) = format::unknown(manifest.format, manifest.partitions, newest) {
        return Finding::Foreign(why);
    }
    if !manifest.lost.is_empty() {
        return lost(&manifest.lost, missing);
    }
    if !manifest.complete {
        return if manifest.follows.is_empty() && epoch.is_empty() {
            Finding::Fresh(manifest.clone())
        } else {
            lost(
                "the acceptance of a loss was interrupted: accept it again",
                0,
            )
        };
    }
    if let Some(at) = sight.epochs.iter().position(|have| *have != manifest.epoch) {
        return lost(&format!("partition {at} has lost its data"), missing);
    }
    if manifest.epoch != epoch {
        return if epoch.is_empty() || manifest.has_followed(epoch) {
            Finding::Adopt(manifest.epoch.clone())
        } else {
            let what = "the store holds other data than before: its epoch is unknown";
            lost(what, missing)
        };
    }
    match missing {
        0 => Finding::Whole,
        missing => lost(&format!("the newest {missing} writes are missing"), missing),
    }
}

/// The manifest that closes the store because of a loss. Pure.
///
/// It names `epoch`, that of the gateway that has found the loss, among those that an acceptance follows: otherwise the
/// gateway would not know the epoch of the accepted store. `None` if the manifest says all that already. Also `None` if
/// it belongs to another Redis than the gateway has used since it started (`was_whole`): that must not close the other
/// Redis for its own gateways. `format`: that of the data, as the gateway remembers it.
pub(super) fn warning(
    before: Option<&Manifest>,
    (epoch, format): (&str, Format),
    what: &str,
    was_whole: bool,
) -> Option<Manifest> {
    let Some(before) = before else {
        return Some(Manifest {
            lost: what.to_owned(),
            complete: true,
            ..Manifest::after(&[epoch], format)
        });
    };
    let is_named = before.epoch == epoch || before.has_followed(epoch);
    // Also while the loss is being accepted.
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
mod tests;
