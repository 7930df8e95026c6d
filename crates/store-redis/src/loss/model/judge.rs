//! The findings of a look, and the warning of other gateways, by the real rules.

use super::state::{AllCounts, CLOSED, Counts, Head, Memory, NAMES, State, Store, bit};
use crate::keys::{PARTITIONS, Partition};
use crate::loss::format::{FORMAT, Format};
use crate::loss::{Finding, Manifest, Sight, Writes, compare, warning};

/// The rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Break {
    None,
    LastCountsAreNotStored,
    LastCountsAreReadFirst,
    LastCountsAreWhatWasRead,
    CountsHealThemselves,
    TakingOutIsNotCounted,
    AbsentOnesAreDroppedEarly,
    AKilledGatewayGoesOnCounting,
    AComebackTakesWhatItHasRead,
    NoLookAfterALoss,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Whole,
    Fresh,
    Adopt,
    Lost,
}

/// The finding, and the counts that are known after it if everything is whole.
pub(super) type Judged = (Found, AllCounts);

pub(super) fn judge(seen: &Store, known: &AllCounts, memory: &Memory, broken: Break) -> Judged {
    let (own, known) = (NAMES[usize::from(memory.name)], writes_of(known));
    let mut after = writes_of(&memory.writes);
    let mut sight = Sight {
        manifest: manifest_of(&seen.head),
        epochs: seen.parts.iter().map(|part| name_of(part.epoch)).collect(),
        writes: writes_of(&seen.counts()),
        ..Sight::default()
    };
    // gateways.rs: last_counts
    let last = writes_of(&seen.parts.map(|part| part.last_counts(memory.epoch)));
    for gateway in after.absent_from(&sight.writes) {
        for at in Partition::all() {
            sight.forgotten.count(&gateway, at, last.of(&gateway, at));
        }
    }
    let found = match compare(&sight, &name_of(memory.epoch), &known, FORMAT) {
        Finding::Whole => Found::Whole,
        Finding::Fresh(_) => Found::Fresh,
        Finding::Adopt(_) => Found::Adopt,
        Finding::Foreign(_) | Finding::Lost { .. } => Found::Lost,
    };
    // memory.rs: saw_all
    after.merge(&sight.writes);
    let mut there = sight.writes;
    if broken == Break::AbsentOnesAreDroppedEarly {
        there = writes_of(&[seen.parts[0].counts, Counts::default()]);
    }
    after.forget_absent(&there, own);
    let mut counts = AllCounts::default();
    for (counts, at) in counts.iter_mut().zip(Partition::all()) {
        *counts = NAMES.map(|name| after.of(name, at) as u8);
    }
    (found, counts)
}

pub(super) fn name_of(epoch: u8) -> String {
    if epoch == 0 {
        String::new()
    } else {
        format!("epoch {epoch}")
    }
}

pub(super) fn manifest_of(head: &Head) -> Option<Manifest> {
    let epochs = (1..CLOSED).filter(|epoch| head.follows & bit(*epoch) != 0);
    let manifest = Manifest {
        format: FORMAT,
        partitions: PARTITIONS,
        epoch: name_of(head.epoch),
        follows: epochs.map(name_of).collect(),
        complete: head.is_complete,
        lost: if head.is_lost { "lost" } else { "" }.to_owned(),
        ..Manifest::after(&[], Format::begun(FORMAT))
    };
    (head.epoch != 0).then_some(manifest)
}

pub(super) fn writes_of(counts: &AllCounts) -> Writes {
    let mut writes = Writes::default();
    for (counts, at) in counts.iter().zip(Partition::all()) {
        for (name, count) in NAMES.iter().zip(counts).filter(|(_, count)| **count > 0) {
            writes.count(name, at, (*count).into());
        }
    }
    writes
}

/// epoch.rs: warn_others and close_partitions.
pub(super) fn warn_others(state: &mut State, by: usize) {
    let gateway = &state.gateways[by];
    let before = manifest_of(&state.store.head);
    let epoch = name_of(gateway.memory.epoch);
    let known = (&*epoch, Format::begun(FORMAT));
    let Some(warning) = warning(before.as_ref(), known, "lost", gateway.was_whole) else {
        return;
    };
    if before.is_none() {
        state.store.head = Head::default();
        (state.store.head.epoch, state.store.head.is_complete) = (state.new_epoch(), true);
    }
    let head = &mut state.store.head;
    head.is_lost = true;
    for epoch in (1..CLOSED).filter(|epoch| warning.follows.contains(&name_of(*epoch))) {
        head.follows |= bit(epoch);
    }
    state.store.set_epochs(CLOSED);
}
