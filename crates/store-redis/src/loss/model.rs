//! A model of the loss check. The tests explore every state that it can reach within small bounds.
//!
//! The model has up to three gateways, a store of two partitions on one server or on two, and an older copy of the
//! store. All events happen in every order. The real rules of `loss.rs` decide what a gateway finds and remembers. The
//! effect of a script is modelled here; a comment names the script. A *look* is one inspection of the store.
//!
//! **Who knows a write.** Only acknowledged, counted writes matter. A gateway *knows* such a write if the gateway made
//! it, or if a look of the gateway read the partition with the write in it and found everything whole. After a crash a
//! gateway knows the writes that it knew when its file of watermarks was last written; after an accepted loss, the
//! writes that it found then.
//!
//! **The promise.**
//! * Let a write be missing from the store that no operator has given up. Each gateway that knows the write finds a
//!   loss at its next look, also after a restart, and claims nothing before.
//! * Where nothing was lost, no gateway finds a loss.
//!
//! The model has no time: a gateway may be forgotten at any moment, also while it works. A gateway that is gone for
//! ever never starts again. A claim and the check whether the store is open are one step.

mod judge; // the findings of a look, by the real rules
mod scene; // the steps, and the bounds of an exploration
mod state; // gateways, their files, and the store
mod steps; // carries out a step

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use self::judge::Break;
use self::scene::{Scene, Step};
use self::state::{Left, State};
use self::steps::Model;

/// Explores all states. Returns their number, and the shortest way to break the promise.
fn explore(scene: Scene, broken: Break) -> (usize, Option<(Vec<Step>, String)>) {
    let (mut model, first) = (Model::new(scene, broken), State::first(scene.left));
    let steps = scene.steps();
    // Only the hash of a state is kept: two of a million states have the same hash once in ten million runs.
    let hasher = RandomState::new();
    let mut seen = HashSet::from([hasher.hash_one(first)]);
    // For each state the number of the state before, and the step between them.
    let mut trail: Vec<(usize, Option<Step>)> = vec![(0, None)];
    let mut waiting = VecDeque::from([(first, 0)]);
    while let Some((state, at)) = waiting.pop_front() {
        if state.is_settled() {
            continue;
        }
        for step in &steps {
            match model.after(state, *step) {
                None => {}
                Some(Ok(next)) => {
                    let next = next.plain();
                    if seen.insert(hasher.hash_one(next)) {
                        waiting.push_back((next, trail.len()));
                        trail.push((at, Some(*step)));
                    }
                }
                Some(Err(why)) => return (seen.len(), Some((way_to(&trail, at, *step), why))),
            }
        }
    }
    (seen.len(), None)
}

fn way_to(trail: &[(usize, Option<Step>)], mut at: usize, last: Step) -> Vec<Step> {
    let mut way = vec![last];
    while let (before, Some(step)) = trail[at] {
        way.push(step);
        at = before;
    }
    way.reverse();
    way
}

/// The bounds, in this order: writes, copies, losses, ends, forgets, acceptances.
const fn at_most([writes, copies, losses, ends, forgets, accepts]: [u8; 6]) -> Left {
    Left {
        writes,
        copies,
        losses,
        ends,
        forgets,
        accepts,
    }
}

/// A gateway is killed or stopped, and comes back or does not.
const ENDS: Scene = Scene {
    left: at_most([2, 1, 1, 1, 0, 0]),
    is_cluster: false,
    is_split: false,
    ends_calls: false,
    gateways: 3,
    writers: &[0],
    forgetters: &[1],
};
/// A gateway is forgotten, and goes on.
const FORGETS: Scene = Scene {
    left: at_most([2, 1, 1, 0, 1, 0]),
    ..ENDS
};
/// A gateway is forgotten, and any of them may end.
const FORGETS_AND_ENDS: Scene = Scene {
    left: at_most([1, 1, 1, 1, 1, 0]),
    ..ENDS
};
/// A gateway that forgets another gateway is forgotten, too.
const FORGETS_TWICE: Scene = Scene {
    left: at_most([1, 0, 1, 0, 2, 0]),
    forgetters: &[1, 2],
    ..ENDS
};
/// Other gateways act between the steps of a look.
const BETWEEN: Scene = Scene {
    left: at_most([1, 0, 1, 0, 1, 0]),
    is_split: true,
    gateways: 2,
    ..ENDS
};
/// An operator accepts a loss, and the store may lose more.
const ACCEPTS: Scene = Scene {
    left: at_most([2, 1, 2, 0, 0, 1]),
    gateways: 2,
    ..ENDS
};
/// Outcomes are written, also while the store is closed for claims.
const OUTCOMES: Scene = Scene {
    left: at_most([2, 1, 1, 0, 1, 0]),
    ends_calls: true,
    gateways: 2,
    ..ENDS
};

fn on_cluster(scene: Scene) -> Scene {
    Scene {
        is_cluster: true,
        ..scene
    }
}

fn holds(scenes: &[Scene]) {
    for scene in scenes {
        let (states, broken) = explore(*scene, Break::None);
        assert_eq!(broken, None);
        assert!(states > 1_000, "{states} states: hardly anything happens");
    }
}

#[test]
fn a_gateway_that_ends_hides_no_loss() {
    holds(&[ENDS, on_cluster(ENDS)]);
}

#[test]
fn a_gateway_that_is_forgotten_hides_no_loss() {
    holds(&[FORGETS, FORGETS_AND_ENDS, FORGETS_TWICE, OUTCOMES]);
}

#[test]
fn a_gateway_that_is_forgotten_on_a_cluster_hides_no_loss() {
    holds(&[on_cluster(FORGETS_AND_ENDS), on_cluster(FORGETS_TWICE)]);
}

#[test]
fn events_during_a_look_hide_no_loss() {
    holds(&[BETWEEN, on_cluster(BETWEEN)]);
}

#[test]
fn an_accepted_loss_hides_no_later_one() {
    holds(&[ACCEPTS]);
}

/// Leaves out one rule at a time, and shows the shortest way to break the promise without it.
#[test]
fn each_rule_is_needed() {
    let mut ways = String::new();
    for (broken, scene) in [
        (Break::LastCountsAreNotStored, FORGETS),
        (Break::LastCountsAreReadFirst, BETWEEN),
        (Break::LastCountsAreWhatWasRead, FORGETS),
        (Break::CountsHealThemselves, OUTCOMES),
        (Break::TakingOutIsNotCounted, FORGETS),
        (Break::AbsentOnesAreDroppedEarly, ENDS),
        (Break::AKilledGatewayGoesOnCounting, ENDS),
        (Break::AComebackTakesWhatItHasRead, BETWEEN),
        (Break::NoLookAfterALoss, ENDS),
    ] {
        let found = explore(scene, broken).1;
        let (way, why) = found.unwrap_or_else(|| panic!("{broken:?} is not found"));
        ways += &format!("{broken:?}: {why}\n  {way:?}\n");
    }
    insta::assert_snapshot!(ways, @"
    LastCountsAreNotStored: a loss is found where there was none
      [Claim(0, 0), LookToForget(1, 0), Act(1), Look(0)]
    LastCountsAreReadFirst: a loss is found where there was none
      [Claim(0, 0), Look(0), Look(1), Look(1), Look(1), LookToForget(1, 0), Act(1), Look(0), Look(0), Look(0)]
    LastCountsAreWhatWasRead: a look finds Whole, and a write that is known is not there
      [Claim(0, 0), LookToForget(1, 0), SwitchBack(0), Act(1), Look(0)]
    CountsHealThemselves: a look finds Whole, and a write that is known is not there
      [Claim(0, 0), SetBack(0), End(0, 0), Look(0)]
    TakingOutIsNotCounted: a look finds Whole, and a write that is known is not there
      [Claim(0, 0), LookToForget(1, 0), Act(1), Look(2), SetBack(0), Look(2)]
    AbsentOnesAreDroppedEarly: a look finds Whole, and a write that is known is not there
      [Claim(0, 1), Look(1), SetBack(0), Look(1)]
    AKilledGatewayGoesOnCounting: a look finds Whole, and a write that is known is not there
      [Claim(0, 0), Crash(0), Start(0), Look(1), SetBack(0), Look(0), Claim(0, 0), Look(1)]
    AComebackTakesWhatItHasRead: a look finds Whole, and a write that is known is not there
      [Look(0), Look(0), Claim(0, 0), Look(0), Look(1), Look(1), Look(1), LookToForget(1, 0), Act(1), Look(0), SetBack(0), Act(0), Act(0), Rest(0), Look(0), Look(0), Look(0), Look(0)]
    NoLookAfterALoss: a claim goes through, and a write that is known is not there
      [Claim(0, 0), Crash(0), Start(0), Look(0), SwitchBack(0), Claim(0, 0)]
    ");
}
