//! The steps of the model, and which of them a scene has.

use self::Step::*;
use super::state::{Left, NAMES, PARTS};

/// A step. The first number is the gateway, the second the partition or the name; of `Copy` to `Empty`: the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Claim(usize, usize),
    /// A gateway writes the outcome of a call, also to a closed store.
    End(usize, usize),
    /// A whole look; in a split scene the next part of it.
    Look(usize),
    /// A whole look, after which the gateway begins to forget this name.
    LookToForget(usize, usize),
    /// The next act after a look has found everything whole.
    Act(usize),
    /// The end of a look with all its acts.
    Rest(usize),
    Crash(usize),
    Stop(usize),
    Start(usize),
    Copy(usize),
    /// A server is replaced by one with the older copy, and without scripts.
    SetBack(usize),
    /// The same by two failovers: the server still has its scripts.
    SwitchBack(usize),
    Empty(usize),
    Prepare(usize),
    Accept(usize),
}

/// The bounds of one exploration.
#[derive(Clone, Copy)]
pub(super) struct Scene {
    pub(super) left: Left,
    /// Each partition is on a server of its own.
    pub(super) is_cluster: bool,
    /// Other steps may come between the parts of a look.
    pub(super) is_split: bool,
    /// Gateways write outcomes, too.
    pub(super) ends_calls: bool,
    /// How many of the gateways take part.
    pub(super) gateways: usize,
    pub(super) writers: &'static [usize],
    pub(super) forgetters: &'static [usize],
}

impl Scene {
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for by in 0..self.gateways {
            for at in 0..PARTS {
                steps.extend(self.writers.contains(&by).then_some(Claim(by, at)));
                steps.extend(self.ends_calls.then_some(End(by, at)));
            }
            if self.forgetters.contains(&by) {
                steps.extend((0..NAMES.len()).map(|name| LookToForget(by, name)));
            }
            steps.extend([
                Look(by),
                Act(by),
                Rest(by),
                Crash(by),
                Stop(by),
                Start(by),
                Prepare(by),
                Accept(by),
            ]);
        }
        let empties = self.left.accepts > 0;
        for server in 0..if self.is_cluster { PARTS } else { 1 } {
            steps.extend([Copy(server), SetBack(server), SwitchBack(server)]);
            steps.extend(empties.then_some(Empty(server)));
        }
        steps
    }
}
