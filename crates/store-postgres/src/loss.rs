//! Whether the store still has what was written to it.
//!
//! The write-ahead log of a PostgreSQL is one order: if a commit is there, every earlier one is there, too. So each gateway
//! raises a row of its own about once a second, its *beat*, and remembers the number, in memory and in a small file. Between two
//! beats it remembers in memory which versions of calls and documents were acknowledged. After a restart of the server, or a
//! lost connection, it compares: its beat, the beats of other gateways that it has seen, and those versions.
//!
//! The *epoch* is a random id, which lost or foreign data does not have. Each claim names the server that was inspected (by the
//! time of its start) and the epoch, so nothing begins on a server that was not inspected. If data is missing, nothing is claimed
//! until an operator accepts the loss, which begins another epoch.
//!
//! A gateway that was killed beats under another name from its next start on, because its file may lack its newest beat.

pub(crate) mod epoch; // lost data: noticing it, accepting it
pub(crate) mod memory; // what a gateway remembers of the store

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use uuid::Uuid;

/// The ledger's row: which data this is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Ledger {
    pub(crate) epoch: Uuid,
    /// Earlier epochs whose loss an operator has accepted, the newest last.
    pub(crate) follows: Vec<Uuid>,
    /// The data that a gateway has found missing; empty if none. Closes the store for all.
    pub(crate) lost: String,
    /// The highest fencing token before the epoch.
    pub(crate) token: u64,
    /// Since when every call is known, in microseconds.
    pub(crate) whole_since: i64,
}

/// What the loss check compares, as one inspection has read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Sight {
    pub(crate) ledger: Option<Ledger>,
    pub(crate) beats: BTreeMap<Uuid, u64>,
    /// The gateways that have beaten in the last hours.
    pub(crate) recent: BTreeSet<Uuid>,
    /// How many versions are missing that were acknowledged since the last beat.
    #[serde(skip)]
    pub(crate) missing: u64,
    /// The highest token, as far as the store knows.
    pub(crate) token: u64,
}

impl Sight {
    /// The highest token before the last accepted loss.
    pub(crate) fn accepted_token(&self) -> u64 {
        self.ledger.as_ref().map_or(0, |ledger| ledger.token)
    }
}

/// The finding of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// No data is missing.
    Whole,
    /// This installation has not been used yet: name its data.
    Fresh,
    /// An operator has accepted a loss, or this gateway is new here: take over the store's epoch.
    Adopt(Uuid),
    /// Data is missing, and at least so many writes.
    Lost { what: String, writes: u64 },
}

/// Compares the store with this gateway's memory. Pure.
pub(crate) fn compare(sight: &Sight, epoch: Option<Uuid>, known: &BTreeMap<Uuid, u64>) -> Finding {
    let lost = |what: &str| Finding::Lost {
        what: what.to_owned(),
        writes: sight.missing.max(1),
    };
    let Some(ledger) = &sight.ledger else {
        return match epoch {
            None => Finding::Fresh,
            Some(_) => lost("the store is not the one that was used before: it names no data"),
        };
    };
    if !ledger.lost.is_empty() {
        return lost(&ledger.lost);
    }
    match epoch {
        None => return Finding::Adopt(ledger.epoch),
        Some(epoch) if epoch == ledger.epoch => {}
        Some(epoch) if ledger.follows.contains(&epoch) => return Finding::Adopt(ledger.epoch),
        Some(_) => return lost("the store holds other data than before: its epoch is unknown"),
    }
    let behind = known.iter().filter(|(gateway, beat)| {
        let stored = sight.beats.get(*gateway);
        stored.is_none_or(|stored| stored < *beat)
    });
    match (behind.count(), sight.missing) {
        (0, 0) => Finding::Whole,
        (0, missing) => lost(&format!(
            "at least {missing} of the newest writes are missing"
        )),
        _ => lost("the newest seconds are missing: a beat that was stored is not there"),
    }
}

/// Whether a gateway of this epoch may close the store for all because of a loss that it has found. Pure.
///
/// A ledger that does not know the epoch may be that of another installation, which must not be closed; except if this process
/// has used this store itself.
pub(crate) fn may_close(ledger: &Ledger, epoch: Option<Uuid>, was_whole: bool) -> bool {
    let is_named = epoch.is_some_and(|epoch| knows(ledger, epoch));
    if is_named {
        ledger.lost.is_empty()
    } else {
        was_whole
    }
}

/// Whether the ledger leads from this epoch to its own.
pub(crate) fn knows(ledger: &Ledger, epoch: Uuid) -> bool {
    ledger.epoch == epoch || ledger.follows.contains(&epoch)
}

#[cfg(test)]
mod tests;
