//! The demanded durability of a shared store, and what becomes of a weakness. Pure.

use crate::{Durability, Reason};

/// How far a server's clock may be off this machine's, in microseconds.
const CLOCK_SLACK_US: u64 = 2_000_000;

/// The demanded durability, and what the server itself does not say.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// The least durability.
    pub durability: Durability,
    /// The operator's declaration about what cannot be inspected.
    pub declared: Option<Durability>,
    /// From this machine's clock to the server's, in microseconds; of several servers the largest.
    pub clock_offset_us: i64,
}

/// Something about a server, with the best class that it allows.
pub type Weakness = (Durability, Reason);

/// How durable a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    pub durability: Durability,
    /// Why nothing may be claimed.
    pub reasons: Vec<Reason>,
    /// The weaknesses that the demanded durability allows.
    pub warnings: Vec<Reason>,
}

impl Class {
    /// Without a weakness.
    pub fn strict() -> Self {
        Self {
            durability: Durability::Strict,
            reasons: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Takes weaknesses into account. One that makes the store weaker than demanded is a reason, another one a warning.
    pub fn weaken(&mut self, demand: Demand, weaknesses: impl IntoIterator<Item = Weakness>) {
        for (class, reason) in weaknesses {
            self.durability = self.durability.min(class);
            if class < demand.durability {
                self.reasons.push(reason);
            } else {
                self.warnings.push(reason);
            }
        }
    }
}

impl Demand {
    /// The weakness that the server's clock is not this machine's.
    pub fn clock(self) -> Option<Weakness> {
        let is_off = self.clock_offset_us.unsigned_abs() > CLOCK_SLACK_US;
        let offset_ms = self.clock_offset_us / 1_000;
        let text = format!("its clock is {offset_ms} ms away from this machine's");
        is_off.then(|| (Durability::Relaxed, Reason::new("clock", text)))
    }
}
