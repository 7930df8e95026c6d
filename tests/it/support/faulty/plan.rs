//! What goes wrong by itself.

use std::time::Duration;

use super::{Fault, index};

/// How often each fault comes, in percent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    pub err_before: u8,
    pub execute_then_timeout: u8,
    pub execute_late: u8,
    pub duplicate: u8,
}

/// What goes wrong by itself. The n-th operation of a verb has the same fate in every run.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub seed: u64,
    pub claim: Rates,
    pub replace: Rates,
    /// Of every other verb.
    pub others: Rates,
    /// The most that a late execution is late.
    pub late_ms: u64,
    /// The most that the way to the store takes, and the most that the way back takes.
    pub way_ms: u64,
}

impl Plan {
    pub(super) fn fault(&self, verb: &str, n: usize) -> Option<Fault> {
        let rates = match verb {
            "claim" => self.claim,
            "replace" => self.replace,
            _ => self.others,
        };
        let late = Duration::from_millis(self.draw(verb, n, 1) % (self.late_ms + 1));
        let mut left = self.draw(verb, n, 0) % 100;
        for (rate, fault) in [
            (rates.err_before, Fault::ErrBefore),
            (rates.execute_then_timeout, Fault::ExecuteThenTimeout),
            (rates.execute_late, Fault::ExecuteLate(late)),
            (rates.duplicate, Fault::Duplicate),
        ] {
            let Some(rest) = left.checked_sub(rate.into()) else {
                return Some(fault);
            };
            left = rest;
        }
        None
    }

    /// How long the way there takes, and the way back.
    pub(super) fn ways(&self, verb: &str, n: usize) -> [Duration; 2] {
        [2, 3].map(|what| Duration::from_millis(self.draw(verb, n, what) % (self.way_ms + 1)))
    }

    /// A number that depends on nothing but this (SplitMix64).
    fn draw(&self, verb: &str, n: usize, what: u64) -> u64 {
        let mut mixed = self.seed;
        for part in [index(verb) as u64, n as u64, what] {
            mixed = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
        }
        mixed
    }
}
