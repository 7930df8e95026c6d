//! What may happen, and which of it does.

use self::Step::*;
use super::state::{Left, NAMES, PARTS};

/// By number of the gateway, and of the partition, the server or the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Claim(usize, usize),
    /// The outcome of a call is written, also to a store that is closed.
    End(usize, usize),
    /// All of a look, or what comes next in it.
    Look(usize),
    /// The same, and then this name is forgotten.
    LookToForget(usize, usize),
    /// What comes next after everything was found whole.
    Act(usize),
    /// The look ends.
    Rest(usize),
    Crash(usize),
    Stop(usize),
    Start(usize),
    Copy(usize),
    /// A server starts anew, with the older copy.
    SetBack(usize),
    /// The same by two failovers: it has its scripts.
    SwitchBack(usize),
    Empty(usize),
    Prepare(usize),
    Accept(usize),
}

/// What is explored.
#[derive(Clone, Copy)]
pub(super) struct Scene {
    pub(super) left: Left,
    /// Each partition is on a server of its own.
    pub(super) is_cluster: bool,
    /// Other steps come between those of a look.
    pub(super) is_split: bool,
    /// Gateways that write outcomes, too.
    pub(super) ends_calls: bool,
    /// How many of the gateways do anything.
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
            for name in 0..NAMES.len() {
                steps.extend(
                    self.forgetters
                        .contains(&by)
                        .then_some(LookToForget(by, name)),
                );
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
